/* The arithmetic of numerics.md on the device: rounding, lanes, the elementary functions, and rows
 * brought into lanes order. Compiled without contraction and with denormals as zero. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_ARITHMETIC_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_ARITHMETIC_CUH

#include "engine/compute/cuda/cuda.h"

#define ELEMENTARY_FUNCTION static __device__ __forceinline__
#include "engine/compute/elementary.h"

static __device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ float bf16_float(uint16_t b)
{
    return __uint_as_float((uint32_t)b << 16);
}

/* Nearest even; NaN stays one (f32_to_bf16 of checkpoint/formats.h). */
static __device__ __forceinline__ uint16_t bf16_of(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    u += 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)(u >> 16);
}

static __device__ __forceinline__ float rounded(float f)
{
    return bf16_float(bf16_of(f));
}

/* The tree of halves over the 16 lanes of a half-warp; every lane gets the sum. All 32 threads of
 * the warp come here. */
static __device__ __forceinline__ float lanes_sum(float v)
{
    v = v + __shfl_xor_sync(0xffffffffu, v, 8);
    v = v + __shfl_xor_sync(0xffffffffu, v, 4);
    v = v + __shfl_xor_sync(0xffffffffu, v, 2);
    v = v + __shfl_xor_sync(0xffffffffu, v, 1);
    return v;
}

/* A lane's sum over 4 blocks of bf16 in lanes order: odd elements first. */
static __device__ __forceinline__ float lanes_dot(uint4 w, uint4 x, float acc)
{
    acc = fmaf(bf16_low(w.x), bf16_low(x.x), fmaf(bf16_high(w.x), bf16_high(x.x), acc));
    acc = fmaf(bf16_low(w.y), bf16_low(x.y), fmaf(bf16_high(w.y), bf16_high(x.y), acc));
    acc = fmaf(bf16_low(w.z), bf16_low(x.z), fmaf(bf16_high(w.z), bf16_high(x.z), acc));
    return fmaf(bf16_low(w.w), bf16_low(x.w), fmaf(bf16_high(w.w), bf16_high(x.w), acc));
}

/* Where element k of a bf16 row lies in lanes order (elements). */
static __device__ __host__ __forceinline__ int lanes_index(int k)
{
    const int block = k / CUDA_BLOCK, lane = k % CUDA_BLOCK / 2;
    return (block / 4 * CUDA_LANES + lane) * 8 + block % 4 * 2 + k % 2;
}

#endif
