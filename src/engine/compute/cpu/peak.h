/* Loops of the kernels' instructions on registers alone, for the peak that a share is taken of. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_PEAK_H
#define MLXFAST_ENGINE_COMPUTE_CPU_PEAK_H

#include <stdint.h>

/* Runs `rounds` rounds and returns a value that depends on all of them. */
typedef float peak_loop(int64_t rounds);

struct peak_loops {
    const char *name; /* of the kernels' table */
    const char *dense_instruction, *mixed_instruction;
    peak_loop *dense, *mixed;
    double dense_flops, mixed_flops; /* of one round */
};

extern const struct peak_loops peak_loops_portable;
#if defined(__x86_64__)
extern const struct peak_loops peak_loops_avx2, peak_loops_avx512;
#elif defined(__aarch64__)
extern const struct peak_loops peak_loops_neon;
#endif

/* Independent chains in flight: more than any core's latency times its units. */
enum { PEAK_CHAINS = 12 };

#endif
