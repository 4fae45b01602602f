/* What the machine can do, measured beside what the engine does: reading memory, and the
 * arithmetic of the instructions that the kernels use. On the engine's own threads. */
#ifndef MLXFAST_ENGINE_COMPUTE_ROOFLINE_H
#define MLXFAST_ENGINE_COMPUTE_ROOFLINE_H

#include "engine/compute/blocks.h"

#include <stddef.h>
#include <stdint.h>

/* Seconds of one pass over the bytes, which all threads share; nothing is done with them but a
 * sum. bytes is cut to whole pieces of 256 for each thread. */
double roofline_read(struct compute *c, const void *data, size_t bytes);

/* Operations per second (two for each multiply-add) of all threads, in loops that touch no memory.
 */
struct roofline_peak {
    const char *dense_instruction, *mixed_instruction;
    double dense_flops; /* of bf16 products as the kernels form them */
    double mixed_flops; /* of NVFP4 ones: two products, and a scaling, per lane and pair */
};
struct roofline_peak roofline_measure_peak(struct compute *c);

#endif
