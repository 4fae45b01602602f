/* What the vector kernels share before their lanes are defined: see kernels_dot.h, kernels_simd.h.
 */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_KERNELS_LANES_H
#define MLXFAST_ENGINE_COMPUTE_CPU_KERNELS_LANES_H

#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/elementary.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* KIND_NVFP4_64: of 64 inputs, the width of small experts */
enum weight_kind { KIND_BF16, KIND_NVFP4, KIND_NVFP4_64, KIND_FLOAT };

/* One linear layer's rows of weights, from the first output wanted on. */
struct dot_call {
    enum weight_kind kind;
    const uint8_t *w;
    size_t w_stride;                /* bytes from one output's weights to the next */
    const uint8_t *scales, *biases; /* biases: of int8, as far apart as its scales */
    size_t scales_stride;
    int in;
    ptrdiff_t ahead;      /* bytes from a weight to what is fetched beside it; 0: later outputs */
    const void *const *x; /* [rows] prepared */
    float *y;             /* [rows, y_stride] */
    size_t y_stride;
    bool round, add;
};

/* Into the first-level cache, or the second alone; the address may be any. */
INLINE void prefetch_near(uintptr_t address)
{
    __builtin_prefetch((const void *)address);
}

INLINE void prefetch_far(uintptr_t address)
{
    __builtin_prefetch((const void *)address, 0, 2);
}

enum { TILE_MAX = 32 /* rows x outputs */, BLOCKS_PER_SCALES = 8 };

#endif
