/* Dot products of NVFP4 rows: the table of codes, the scales as floats, rows in lanes order, and
 * the sums of a group. A half-warp owns an output, a thread its lane of numerics.md. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum {
    /* 256 bytes of codes, each its two values as a pair of bf16 for every thread of a warp in its
     * own bank, 128 bytes apart from the next: an address is one byte permutation. */
    NVFP4_TABLE_BYTES = 256 * 256,
    NVFP4_GROUP_BLOCKS = 16
};

/* The bf16 of an E2M1 code. */
static __device__ __forceinline__ uint32_t nvfp4_bf16(uint32_t code)
{
    const uint32_t v = code & 7;
    uint32_t bits = 0x3f80u + (v - 2) * 0x40u;
    bits = v == 1 ? 0x3f00u : bits;
    bits = v == 0 ? 0u : bits;
    return bits | (code & 8) << 12;
}

static __device__ __forceinline__ void nvfp4_fill_table(uint8_t *table, int thread, int threads)
{
    for (int i = thread; i < 256 * 8; i += threads) {
        const uint32_t byte = (uint32_t)i / 8;
        const uint32_t pair = nvfp4_bf16(byte & 15) | nvfp4_bf16(byte >> 4) << 16;
        ((uint4 *)(table + byte * 256))[i % 8] = make_uint4(pair, pair, pair, pair);
    }
}

/* E4M3: its exponent is 120 below that of the float with its bits; 0x7f comes to 480. */
static __device__ __forceinline__ float nvfp4_scale(uint32_t byte)
{
    return multiply_keep(__uint_as_float((byte & 0x80u) << 24 | (byte & 0x7fu) << 20),
                         __uint_as_float(0x7b800000u));
}

/* Two E4M3 scales, in the low byte of each half, as a pair of bf16: the same by bits. */
static __device__ __forceinline__ uint32_t nvfp4_scales_of(uint32_t two)
{
    return bf16_pairs_fma((two & 0x00800080u) << 8 | (two & 0x007f007fu) << 4, 0x7b807b80u,
                          0x80008000u);
}
/* Where a warp keeps the scales of `matrices` rows for each of its half-warps, as floats:
 * [half-warp] [matrix][half of the lanes][blocks], apart so that the four reads of a warp are of
 * different banks. */
static __host__ __device__ __forceinline__ int nvfp4_scales_half(int blocks)
{
    return blocks + 4;
}
static __host__ __device__ __forceinline__ int nvfp4_scales_floats(int blocks, int matrices)
{
    return 2 * (matrices * 2 * nvfp4_scales_half(blocks) + 8);
}
static __host__ __device__ __forceinline__ int nvfp4_scales_at(int blocks, int matrices,
                                                               int half_warp, int matrix, int half)
{
    return half_warp * (matrices * 2 * nvfp4_scales_half(blocks) + 8) +
           (2 * matrix + half) * nvfp4_scales_half(blocks);
}

/* A bf16 row of n values (even) as floats in the order in which lanes read them: [two blocks][lane]
 * [block 2][2]; zeros up to `padded`. Past L1: another kernel wrote it. */
static __device__ __forceinline__ void nvfp4_take_row(const uint16_t *row, int n, int padded,
                                                      float *x, int thread, int threads)
{
    enum { BATCH = 3 };
    if (n % 8 != 0) {
        for (int i = thread; i < padded / 2; i += threads) {
            const int block = i / CUDA_LANES, lane = i % CUDA_LANES;
            const uint32_t pair = 2 * i < n ? __ldcg((const unsigned *)row + i) : 0;
            *(float2 *)(x + (block / 2 * CUDA_LANES + lane) * 4 + block % 2 * 2) =
                make_float2(bf16_low(pair), bf16_high(pair));
        }
        return;
    }
    for (int i = thread; i < padded / 8; i += threads * BATCH) {
        uint4 v[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            v[j] = (i + j * threads) * 8 < n ? __ldcg((const uint4 *)row + i + j * threads)
                                             : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int at = i + j * threads, block = at / 4;
            float *to = x + (block / 2 * CUDA_LANES + at % 4 * 4) * 4 + block % 2 * 2;
            if (at >= padded / 8)
                break;
            *(float2 *)to = make_float2(bf16_low(v[j].x), bf16_high(v[j].x));
            *(float2 *)(to + 4) = make_float2(bf16_low(v[j].y), bf16_high(v[j].y));
            *(float2 *)(to + 8) = make_float2(bf16_low(v[j].z), bf16_high(v[j].z));
            *(float2 *)(to + 12) = make_float2(bf16_low(v[j].w), bf16_high(v[j].w));
        }
    }
}

/* One group (16 blocks) of `matrices` rows against `rows` inputs. code: this lane's bytes. scale:
 * this lane's scales of the group. x[r]: row r's group, this lane's place in it. */
template <int matrices, int rows>
static __device__ __forceinline__ void
nvfp4_group(const uint8_t *table, const uint4 code[matrices], const float *const scale[matrices],
            const float *const x[rows], float acc[matrices][rows])
{
    const uint32_t place = threadIdx.x % 32 * 4;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float4 s[matrices];
        uint32_t word[matrices];
#pragma unroll
        for (int m = 0; m < matrices; m++) {
            s[m] = *(const float4 *)(scale[m] + 4 * q);
            word[m] = q == 0 ? code[m].x : q == 1 ? code[m].y : q == 2 ? code[m].z : code[m].w;
            /* Or the compiler decodes a row's codes once for all calls, and has no registers. */
            asm volatile("" : "+r"(word[m]));
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t pair[matrices][2];
#pragma unroll
            for (int m = 0; m < matrices; m++) {
                pair[m][0] = *(const uint32_t *)(table + __byte_perm(word[m], place,
                                                                     h == 0 ? 0x5504 : 0x5524));
                pair[m][1] = *(const uint32_t *)(table + __byte_perm(word[m], place,
                                                                     h == 0 ? 0x5514 : 0x5534));
            }
#pragma unroll
            for (int r = 0; r < rows; r++) {
                const float4 v = *(const float4 *)(x[r] + (2 * q + h) * CUDA_LANES * 4);
#pragma unroll
                for (int m = 0; m < matrices; m++) {
                    const float first = h == 0 ? s[m].x : s[m].z, second = h == 0 ? s[m].y : s[m].w;
                    float t = fmaf(bf16_low(pair[m][0]), v.x, bf16_high(pair[m][0]) * v.y);
                    acc[m][r] = fmaf(t, first, acc[m][r]);
                    t = fmaf(bf16_low(pair[m][1]), v.z, bf16_high(pair[m][1]) * v.w);
                    acc[m][r] = fmaf(t, second, acc[m][r]);
                }
            }
        }
    }
}

#endif
