/* Dot products of 16 NVFP4 rows by a warp, with the bits of numerics.md: a lane's t of a block,
 * fma(c0, x0, c1 * x1), comes from tensor cores, t * scale is added by fma in the order of blocks.
 *
 * One product of matrices (m16n8k16) is a block's half: its 16 rows are outputs, its 8 columns the
 * half's lanes, and a column has but its own lane's two inputs among the 16, the others are 0. So
 * each sum has two products, of 10 bits each: exact, and so the same as rounded once, where the
 * inputs' exponents are at most 9 apart. Other pairs of inputs are `odd` (about one of 400); their
 * columns are mended by fma. (A sum of two zeros may have another sign than fma's: nothing is made
 * of it, since accumulators begin as +0.)
 *
 * Of a warp's thread: g = lane / 4, t = lane % 4. It has outputs g and g + 8 and, in an accumulator
 * of four, their lanes 2t and 2t + 1 of the half. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_TILE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_TILE_CUH

#include "engine/compute/cuda/nvfp4.cuh"

#ifdef CUDA_EMULATED
#define TILE_APART __attribute__((noinline))
#else
#define TILE_APART __noinline__
#endif

enum {
    TILE_OUTPUTS = 16,
    TILE_UNIT = 4 /* blocks: a lane's 16 bytes of inputs in lanes order */
};
static_assert((int)NVFP4_TABLE_BYTES == 1 << 16, "the table is 64 KB at 64 KB");

/* Whether a pair of bf16 inputs is left to fma: exponents too far apart, or of what products and
 * sums of floats treat in a way of their own. */
static __device__ __forceinline__ bool tile_is_odd(uint32_t pair)
{
    enum { APART = 9, LEAST = 40 << 7, MOST = 250 << 7 }; /* no product is infinite below */
    const int a = (int)(pair & 0x7fffu), b = (int)(pair >> 16 & 0x7fffu);
    const int apart = (a >> 7) - (b >> 7);
    return (a != 0 && (a < LEAST || a >= MOST)) || (b != 0 && (b < LEAST || b >= MOST)) ||
           (a != 0 && b != 0 && (apart > APART || apart < -APART));
}

/* The odd pairs of rows in lanes order (words in all, a multiple of 32) by all warps of a block:
 * odd[unit][half of the lanes], bit 4 * (lane % 8) + block % 4. */
static __device__ __forceinline__ void tile_find_odd(const uint32_t *rows, int words, uint32_t *odd)
{
    for (int i = (int)threadIdx.x; i < words; i += (int)blockDim.x) {
        const unsigned mask = __ballot_sync(0xffffffffu, tile_is_odd(rows[i]));
        if (threadIdx.x % 32 == 0)
            odd[i / 32] = mask;
    }
}

/* The codes' values (nvfp4.cuh) where an address is a byte permutation: from 64 KB of shared memory
 * on. Its offset behind the beginning of dynamic shared memory: */
static __device__ __forceinline__ int tile_table_at(const uint8_t *dynamic)
{
#ifdef CUDA_EMULATED
    (void)dynamic;
    return NVFP4_TABLE_BYTES;
#else
    return NVFP4_TABLE_BYTES - (int)__cvta_generic_to_shared(dynamic);
#endif
}

/* The two values of byte j of a word of codes. */
static __device__ __forceinline__ uint32_t tile_values(const uint8_t *dynamic, uint32_t word, int j)
{
    const uint32_t place = threadIdx.x % 32 * 4 + NVFP4_TABLE_BYTES;
    const uint32_t at = __byte_perm(word, place, 0x7604 + 16 * j);
#ifdef CUDA_EMULATED
    return *(const uint32_t *)(dynamic + at);
#else
    uint32_t v;
    (void)dynamic;
    asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
#endif
}

/* Makes a unit's odd t anew. c: this thread's codes, of output g and g + 8 by lane t, of both by
 * lane t + 4; x: its lane's inputs (lane g of the half); d: what the tensor cores gave. */
static __device__ __forceinline__ void tile_mend(const uint8_t *dynamic, const uint32_t c[4],
                                                 uint4 x, uint32_t odds, float d[TILE_UNIT][4])
{
    const unsigned lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int j = 0; j < TILE_UNIT; j++) {
        const uint32_t mine = j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
#pragma unroll 1
        for (uint32_t odd = odds & 0x11111111u << j; odd != 0; odd &= odd - 1) {
            const unsigned column = (unsigned)(__ffs((int)odd) - 1) / 4;
            const unsigned from = lane / 4 * 4 + column % 4;
            const uint32_t w = __shfl_sync(0xffffffffu, mine, (int)(column * 4));
            const uint32_t p = __shfl_sync(
                0xffffffffu, tile_values(dynamic, column < 4 ? c[0] : c[2], j), (int)from);
            const uint32_t q = __shfl_sync(
                0xffffffffu, tile_values(dynamic, column < 4 ? c[1] : c[3], j), (int)from);
            const float first = fmaf(bf16_low(p), bf16_low(w), bf16_high(p) * bf16_high(w));
            const float second = fmaf(bf16_low(q), bf16_low(w), bf16_high(q) * bf16_high(w));
            if (column == 2 * t) {
                d[j][0] = first;
                d[j][2] = second;
            }
            if (column == 2 * t + 1) {
                d[j][1] = first;
                d[j][3] = second;
            }
        }
    }
}

/* Where 16 rows lie in shared memory: row g at codes + g * stride, row g + 8 `apart` bytes behind
 * it; likewise their scales (E4M3, [half of the lanes][blocks]). */
struct tile_rows {
    const uint8_t *codes, *scales;
    int stride, apart, scale_stride, scale_apart;
};

/* A half's accumulators of 16 rows of `groups` groups. dynamic: the beginning of dynamic shared
 * memory. x: the row in lanes order. odd: its odd pairs. Not inlined, and a loop of few
 * instructions: those that are not in the cache come slower than weights do. */
static __device__ TILE_APART float4 tile_multiply(const uint8_t *dynamic,
                                                  const struct tile_rows rows, int half, int groups,
                                                  const uint4 *x, const uint32_t *odd)
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool low = g == t, high = g == t + 4; /* where this thread's lane's inputs stand */
    /* Rows lie a multiple of 32 banks apart: every second one takes its pieces in the other order.
     */
    const unsigned turned = g % 2 * 4;
    const uint8_t *codes = rows.codes + g * (unsigned)rows.stride + (unsigned)half * 128 + t * 16;
    const uint8_t *scales =
        rows.scales + g * (unsigned)rows.scale_stride + half * groups * NVFP4_GROUP_BLOCKS + t * 4;
    float acc[4] = {};
    uint4 c[4];          /* of output g, g + 8 by lane t; of both by lane t + 4 of the half */
    uint32_t pair[2][2]; /* scales [output][of blocks 4t and 4t + 2; 4t + 1 and 4t + 3] */
    x += (unsigned)half * 8 + g;
    odd += half;
#pragma unroll 1
    for (int unit = 0; unit < groups * (NVFP4_GROUP_BLOCKS / TILE_UNIT); unit++) {
        const int u = unit % (NVFP4_GROUP_BLOCKS / TILE_UNIT);
        if (u == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 one = *(const uint4 *)(codes + r * rows.apart + turned * 16);
                const uint4 two = *(const uint4 *)(codes + r * rows.apart + (4 - turned) * 16);
                const uint32_t word = *(const uint32_t *)(scales + r * rows.scale_apart);
                c[r] = turned ? two : one;
                c[2 + r] = turned ? one : two;
                pair[r][0] = nvfp4_scales_of(word);
                pair[r][1] = nvfp4_scales_of(word >> 8);
            }
            codes += CUDA_LANES * 16;
            scales += NVFP4_GROUP_BLOCKS;
        }
        const uint4 inputs = *x;
        const uint32_t odds = *odd;
        uint32_t s[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                s[r][i] = __shfl_sync(0xffffffffu, pair[r][i], (int)(g * 4) + u);
        const uint32_t now[4] = {c[0].x, c[1].x, c[2].x, c[3].x};
        float d[TILE_UNIT][4];
#pragma unroll
        for (int j = 0; j < TILE_UNIT; j++) {
            const uint32_t w = j == 0 ? inputs.x : j == 1 ? inputs.y : j == 2 ? inputs.z : inputs.w;
            const uint32_t b[2] = {low ? w : 0, high ? w : 0};
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = tile_values(dynamic, now[i], j);
            mma_bf16_product(d[j], a, b);
        }
        if (odds != 0)
            tile_mend(dynamic, now, inputs, odds, d);
#pragma unroll
        for (int j = 0; j < TILE_UNIT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t both = s[i / 2][j % 2];
                acc[i] = fmaf(d[j][i], j < 2 ? bf16_low(both) : bf16_high(both), acc[i]);
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[i].x = c[i].y;
            c[i].y = c[i].z;
            c[i].z = c[i].w;
        }
        x += CUDA_LANES;
        odd += 2;
    }
    return make_float4(acc[0], acc[1], acc[2], acc[3]);
}

/* The tree over the 16 lanes, from the first half's accumulator and the second's: outputs g and
 * g + 8, in all four threads of a row. */
static __device__ __forceinline__ float2 tile_sum(float4 first, float4 second)
{
    float v[4] = {first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w};
#pragma unroll
    for (int step = 2; step >= 1; step /= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = v[i] + __shfl_xor_sync(0xffffffffu, v[i], step);
    return make_float2(v[0] + v[1], v[2] + v[3]);
}

#endif
