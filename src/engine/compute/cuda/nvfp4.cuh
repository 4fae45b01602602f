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

/* d = a b of a warp, a 16x8, b 8x8, bf16. With g = lane / 4, t = lane % 4: a[0] = A[g][2t..],
 * a[1] = A[g+8][2t..], b = B[2t..][g], d = {D[g][2t], D[g][2t+1], D[g+8][2t], D[g+8][2t+1]}. Here B
 * is a diagonal, so that every element of D is one product, and exact. */
static __device__ __forceinline__ void nvfp4_products(float d[4], uint32_t a0, uint32_t a1,
                                                      uint32_t b)
{
#ifdef CUDA_EMULATED
    uint32_t mine[3] = {a0, a1, b}, all[32][3];
    emulator_warp_exchange(mine, sizeof mine, all);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, column = 2 * t + i % 2;
        d[i] = 0.0f;
        for (int k = 0; k < 8; k++) {
            const uint32_t pa = all[g * 4 + k / 2][row], pb = all[column * 4 + k / 2][2];
            d[i] = fmaf(k % 2 ? bf16_high(pa) : bf16_low(pa), k % 2 ? bf16_high(pb) : bf16_low(pb),
                        d[i]);
        }
    }
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
#endif
}

/* `threads` threads of a block that name the same barrier, 1 to 15, wait for each other. */
static __device__ __forceinline__ void nvfp4_barrier(int number, int threads)
{
#ifdef CUDA_EMULATED
    emulator_named_barrier(number, threads);
#else
    asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(threads) : "memory");
#endif
}

static __device__ __forceinline__ uint32_t nvfp4_word(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ __forceinline__ float nvfp4_float(float4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Four scale bytes as floats. */
static __device__ __forceinline__ float4 nvfp4_scales4(uint32_t bytes)
{
    return make_float4(nvfp4_scale(bytes & 0xffu), nvfp4_scale(bytes >> 8 & 0xffu),
                       nvfp4_scale(bytes >> 16 & 0xffu), nvfp4_scale(bytes >> 24));
}

/* Inputs for products: [first or second of a pair][lane][block], the other half of a word zero.
 * In words; strides by which the four lanes of both kinds fall into different banks. */
static __host__ __device__ __forceinline__ constexpr int nvfp4_inputs_lane(int blocks)
{
    return (blocks + 31) / 32 * 32 + 20 - (blocks % 32 == 16 ? 32 : 0);
}
static __host__ __device__ __forceinline__ constexpr int nvfp4_inputs_kind(int blocks)
{
    return CUDA_LANES * nvfp4_inputs_lane(blocks) + 16;
}

/* Eight inputs from element 8 * place on of a row. */
static __device__ __forceinline__ void nvfp4_put_inputs(uint32_t *inputs, uint4 v, int place,
                                                        int blocks)
{
    uint32_t *to = inputs + place % 4 * 4 * nvfp4_inputs_lane(blocks) + place / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        to[j * nvfp4_inputs_lane(blocks)] = nvfp4_word(v, j) & 0xffffu;
        to[j * nvfp4_inputs_lane(blocks) + nvfp4_inputs_kind(blocks)] =
            nvfp4_word(v, j) & 0xffff0000u;
    }
}

/* Four blocks of 16 rows of codes (this thread's words of rows g and g + 8, with their scales)
 * against the four lanes of `rows` inputs (this thread's part of each diagonal): acc[0] is of row
 * g, acc[1] of g + 8. */
template <int rows>
static __device__ __forceinline__ void nvfp4_four(const uint8_t *table, uint32_t w0, uint32_t w1,
                                                  float4 s0, float4 s1, const uint4 b[rows],
                                                  float acc[2][rows])
{
    const uint32_t place = threadIdx.x % 32 * 4;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t pick = 0x5504u + 0x10u * (uint32_t)k;
        const uint32_t a0 = *(const uint32_t *)(table + __byte_perm(w0, place, pick));
        const uint32_t a1 = *(const uint32_t *)(table + __byte_perm(w1, place, pick));
#pragma unroll
        for (int r = 0; r < rows; r++) {
            float d[4];
            nvfp4_products(d, a0, a1, nvfp4_word(b[r], k));
            acc[0][r] = fmaf(d[0] + d[1], nvfp4_float(s0, k), acc[0][r]);
            acc[1][r] = fmaf(d[2] + d[3], nvfp4_float(s1, k), acc[1][r]);
        }
    }
}

#endif
