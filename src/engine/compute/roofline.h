/* What the machine can do, measured beside what the engine does: reading memory, and the
 * arithmetic of the instructions that the kernels use. On the engine's own threads. */
#ifndef MLXFAST_ENGINE_COMPUTE_ROOFLINE_H
#define MLXFAST_ENGINE_COMPUTE_ROOFLINE_H

#include "engine/compute/blocks.h"

#include <stddef.h>
#include <stdint.h>

/* Seconds of one pass over the bytes, which all threads share; nothing is done with them but a
 * sum. bytes is cut to whole pieces of 256 for each thread. A backend with memory of its own reads
 * that (data is not looked at), the best of several passes; 0: it failed. */
double roofline_read(struct compute *c, const void *data, size_t bytes);

/* Operations per second (two for each multiply-add) of all threads, in loops that touch no memory.
 */
struct roofline_peak {
    const char *dense_instruction, *mixed_instruction;
    double dense_flops; /* of bf16 products as the kernels form them */
    double mixed_flops; /* of NVFP4 ones: two products, and a scaling, per lane and pair */
};
struct roofline_peak roofline_measure_peak(struct compute *c);

/* ---- Backends with memory of their own ---- */

/* As the device tells it; 0: it does not. Versions are 1000 * major + 10 * minor. */
struct device_facts {
    char name[128];
    int major, minor, multiprocessors;
    int driver, runtime;
    int clock_khz, memory_clock_khz; /* the highest */
    int bus_bits;
    uint64_t memory_bytes, memory_free, cache_bytes;
};
/* False: the work runs on the machine's processor. */
bool roofline_device(const struct compute *c, struct device_facts *out);
/* Seconds to copy so many bytes of device memory to another place of it (each is read once and
 * written once); 0: there is none, or it failed. */
double roofline_copy(struct compute *c, size_t bytes);

#endif
