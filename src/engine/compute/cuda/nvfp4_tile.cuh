/* Dot products of 16 NVFP4 rows by a warp, with the bits of numerics.md: a lane's t of a block,
 * fma(c0, x0, c1 * x1), comes from tensor cores, t * scale is added by fma in the order of blocks.
 *
 * A warp has one half of the lanes. One product of matrices (m16n8k16) has 16 outputs and, in its 8
 * columns, 4 of those lanes by 2 blocks; a column has but its own two inputs among the 16, the
 * others are 0. Where the inputs' exponents are at most 12 apart a sum of two products fits in 24
 * bits (from below 12 * 2^12 down to 2^-8), and so is what rounding once gives. Other pairs of
 * inputs are `odd`; their columns are mended by fma. A row with inputs near the ends of a float's
 * range is `wild`: all of it is left to fma. (A sum of two zeros may have another sign than fma's:
 * nothing is made of it, since accumulators begin as +0.)
 *
 * Codes are decoded by moving bits: E2M1 with its last exponent bits and its mantissa in those
 * places of a bf16 is the value times 2^-126, a denormal where the code is one, which tensor cores
 * take as it is. Inputs come times 2^100, scales times 2^26. Of a word of 8 codes (4 blocks of a
 * lane), codes i and i + 4 are 16 bits apart and so a register of the product as they stand.
 *
 * Of a warp's thread: g = lane / 4, t = lane % 4. It has outputs g and g + 8, lanes t and t + 4 of
 * the half; products are [lane t or t + 4][blocks 0 and 2, blocks 1 and 3 of a unit]. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_TILE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_NVFP4_TILE_CUH

#include "engine/compute/cuda/nvfp4.cuh"

enum {
    TILE_OUTPUTS = 16,
    TILE_UNIT = 4,         /* blocks: a word of a lane's codes */
    TILE_UNIT_WORDS = 128, /* of a row's inputs as tile_put_pair leaves them: twice a bf16 row's */
    TILE_ZEROS = 3 * 4 * TILE_UNIT_WORDS + 32 /* a group's, of one thread */
};

extern __shared__ uint4 tile_shared[]; /* dynamic shared memory, from its beginning */

/* A place in it; offsets are in bytes. */
template <typename T> static __device__ __forceinline__ T *tile_at(int offset)
{
    return (T *)((uint8_t *)tile_shared + offset);
}

static __device__ __forceinline__ uint32_t tile_word(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* What is said of a row beside its inputs: the odd pairs, [half of the lanes][unit], bit 4 * (lane
 * % 8) + block % 4; behind them whether it is wild, and room up to 16 bytes. 0 before the first
 * tile_put_pair. */
static __host__ __device__ constexpr int tile_odd_words(int units)
{
    return 2 * units + 4;
}

/* Where the inputs of lane `lane` in block `block` stand: [unit][half of the lanes][g][lane t or
 * t + 4][blocks 0 and 2, or 1 and 3][register of the product], for the thread of g that has t = g /
 * 2, whose column g is that lane and block. */
static __device__ __forceinline__ int tile_place(int lane, int block)
{
    const int j = block % TILE_UNIT, g = lane % 4 * 2 + j / 2;
    return block / TILE_UNIT * TILE_UNIT_WORDS + lane / 8 * (TILE_UNIT_WORDS / 2) + g * 8 +
           lane / 4 % 2 * 4 + j % 2 * 2;
}

/* Exponents; between the latter no sum is near a float's ends. */
enum { TILE_APART = 12, TILE_LEAST = 40, TILE_MOST = 150 };

/* What tile_put_pair does with a pair that has a zero, or is odd. */
static __device__ CUDA_CALLED uint32_t tile_unusual(uint32_t *odd, uint32_t bit, uint32_t *wild,
                                                    uint32_t pair)
{
    const unsigned a = pair >> 7 & 255, b = pair >> 23 & 255;
    const bool some = (pair & 0x7fffu) != 0, more = (pair & 0x7fff0000u) != 0;
    const bool ends = (some && (a < TILE_LEAST || a >= TILE_MOST)) ||
                      (more && (b < TILE_LEAST || b >= TILE_MOST));
    if (!ends && !(some && more))
        return pair + ((some ? 100u << 7 : 0) | (more ? 100u << 23 : 0));
    atomicOr(odd, bit);
    if (ends)
        *wild = 1;
    return pair;
}

/* A pair of bf16 inputs to its place `to`. An odd pair stays as it is, and is said in word `odd` of
 * what is said of the row, by its bit; wild: the last of those words. */
static __device__ __forceinline__ void tile_put_pair(uint32_t *to, int shift, uint32_t *odd,
                                                     uint32_t bit, uint32_t *wild, uint32_t pair)
{
    enum : unsigned { RANGE = TILE_MOST - TILE_LEAST };
    const unsigned a = pair >> 7 & 255, b = pair >> 23 & 255;
    if (a - TILE_LEAST < RANGE && b - TILE_LEAST < RANGE && a - b + TILE_APART <= 2u * TILE_APART)
        pair += 100u << 7 | 100u << 23;
    else
        pair = tile_unusual(odd, bit, wild, pair);
    *(uint2 *)to = make_uint2((pair & 0xffffu) << shift, pair >> 16 << shift);
}

/* 8 inputs to their places in a row of `units`, from 8 i on: of lanes 4 (i % 4) .. of block i / 4.
 */
static __device__ __forceinline__ void tile_put_piece(uint32_t *row, uint32_t *odd, int units,
                                                      int i, uint4 v)
{
    const unsigned block = (unsigned)i / 4, lane = (unsigned)i % 4 * 4;
    row += tile_place((int)lane, (int)block);
    uint32_t *const word = odd + lane / 8 * units + block / TILE_UNIT;
#pragma unroll
    for (unsigned k = 0; k < 4; k++)
        tile_put_pair(row + k * 16, (int)(block % TILE_UNIT / 2 * 16), word,
                      1u << ((lane % 8 + k) * TILE_UNIT + block % TILE_UNIT), odd + 2 * units,
                      tile_word(v, (int)k));
}

/* The same of a lane's 8 inputs in a unit. */
static __device__ __forceinline__ void tile_put_lane(uint32_t *row, uint32_t *odd, int units,
                                                     int lane, int unit, uint4 v)
{
    row += tile_place(lane, unit * TILE_UNIT);
#pragma unroll
    for (unsigned j = 0; j < TILE_UNIT; j++)
        tile_put_pair(row + j / 2 * 8 + j % 2 * 2, (int)(j / 2 * 16), odd + lane / 8 * units + unit,
                      1u << ((unsigned)lane % 8 * TILE_UNIT + j), odd + 2 * units,
                      tile_word(v, (int)j));
}

/* Codes i and i + 4 of a word, as bf16 times 2^-126. */
static __device__ __forceinline__ void tile_decode(uint32_t word, uint32_t pair[4])
{
    enum : uint32_t { VALUE = 0x81c081c0u };
    const uint32_t behind = word >> 6;
    pair[0] = ((word & 0x000f000fu) * (1u << 12 | 1u << 6)) & VALUE;
    pair[1] = ((word & 0x00f000f0u) * (1u << 8 | 1u << 2)) & VALUE;
    pair[2] = ((behind & 0x003c003cu) * (1u << 10 | 1u << 4)) & VALUE;
    pair[3] = (word & 0x80008000u) | (behind & 0x01c001c0u);
}

/* The value of code `number` of a word. */
static __device__ __forceinline__ float tile_code(uint32_t word, int number)
{
    const uint32_t code = word >> 4 * number;
    return multiply_keep(__uint_as_float((code & 8) << 28 | (code & 7) << 22), 0x1p126f);
}

/* fma(c0, x0, c1 * x1) of lane `lane` and block j of a unit. x: the half's inputs of the unit. */
static __device__ __forceinline__ float tile_pair(uint32_t word, const uint32_t *x, int lane, int j)
{
    const uint2 in = *(const uint2 *)(x + tile_place(lane, j));
    const float x0 = j < 2 ? bf16_low(in.x) : bf16_high(in.x);
    const float x1 = j < 2 ? bf16_low(in.y) : bf16_high(in.y);
    return fmaf(tile_code(word, 2 * j), x0, tile_code(word, 2 * j + 1) * x1);
}

/* What the tensor cores gave of a unit: [lane t or t + 4][blocks 0 and 2, 1 and 3][as mma.m16n8k16
 * has it]. */
struct tile_products {
    float d[2][2][4];
};

/* With a unit's odd t made anew. now: this thread's words, [lane t or t + 4][output g or g + 8]. */
static __device__ CUDA_CALLED struct tile_products tile_mend(struct tile_products p, uint4 now,
                                                             const uint32_t *x, uint32_t odds)
{
    const int t = (int)threadIdx.x % 4;
#pragma unroll 1
    for (; odds != 0; odds &= odds - 1) {
        const unsigned bit = (unsigned)__ffs((int)odds) - 1;
        const int lane = (int)(bit / TILE_UNIT), j = (int)(bit % TILE_UNIT);
        if (lane % 4 != t)
            continue;
        float *d = &p.d[lane / 4][j % 2][j / 2];
        d[0] = tile_pair(lane < 4 ? now.x : now.z, x, lane, j) * 0x1p-26f;
        d[2] = tile_pair(lane < 4 ? now.y : now.w, x, lane, j) * 0x1p-26f;
    }
    return p;
}

/* Where 16 rows lie in shared memory: row g at codes + g * stride, row g + 8 `apart` bytes behind
 * it; likewise their scales (E4M3, [half of the lanes][blocks]). */
struct tile_rows {
    int codes, scales;
    int stride, apart, scale_stride, scale_apart;
};

/* As tile_multiply, where a row is wild. */
static __device__ CUDA_CALLED float4 tile_multiply_wild(const struct tile_rows rows, int half,
                                                        int groups, int x, int odd)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float acc[2][2] = {};
#pragma unroll 1
    for (int block = 0; block < groups * NVFP4_GROUP_BLOCKS; block++) {
        const int unit = block / TILE_UNIT, j = block % TILE_UNIT;
        const uint32_t odds = *tile_at<const uint32_t>(
            odd + (half * groups * (NVFP4_GROUP_BLOCKS / TILE_UNIT) + unit) * 4);
        const uint32_t *in =
            tile_at<const uint32_t>(x) + unit * TILE_UNIT_WORDS + half * (TILE_UNIT_WORDS / 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float scale = nvfp4_scale(
                *tile_at<const uint8_t>(rows.scales + g * rows.scale_stride + r * rows.scale_apart +
                                        half * groups * NVFP4_GROUP_BLOCKS + block));
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int mine = t + 4 * high;
                const uint32_t word = *tile_at<const uint32_t>(
                    rows.codes + g * rows.stride + r * rows.apart +
                    (block / NVFP4_GROUP_BLOCKS * CUDA_LANES + half * 8 + mine) * 16 +
                    unit % (NVFP4_GROUP_BLOCKS / TILE_UNIT) * 4);
                const float made = tile_pair(word, in, mine, j);
                const bool as_is = odds >> (TILE_UNIT * mine + j) & 1;
                acc[high][r] = fmaf(as_is ? made : made * 0x1p-100f, scale, acc[high][r]);
            }
        }
    }
    return make_float4(acc[0][0], acc[0][1], acc[1][0], acc[1][1]);
}

/* A half's accumulators of 16 rows of `groups` groups: {lane t: outputs g, g + 8; lane t + 4}. x,
 * odd: the row as tile_put_pair left it; zero: TILE_ZEROS bytes of zeros. Not inlined, and small:
 * what is not in the instruction cache comes slower than weights do. */
static __device__ CUDA_CALLED float4 tile_multiply(const struct tile_rows rows, int half,
                                                   int groups, int x, int odd, int zero)
{
    enum { UNITS = NVFP4_GROUP_BLOCKS / TILE_UNIT };
    if (*tile_at<const uint32_t>(odd + 2 * groups * UNITS * 4) != 0)
        return tile_multiply_wild(rows, half, groups, x, odd);
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int codes = rows.codes + g * rows.stride + half * 128 + t * 16;
    int scales = rows.scales + g * rows.scale_stride + half * groups * NVFP4_GROUP_BLOCKS + t * 4;
    x += half * (TILE_UNIT_WORDS / 2) * 4;
    odd += half * groups * UNITS * 4;
    /* This thread's part of a column, or nothing of one. */
    const bool owner = g / 2 == t;
    int mine = owner ? x + g * 32 : zero;
    const int step = owner ? UNITS * TILE_UNIT_WORDS * 4 : 0;
    float acc[2][2] = {};
#pragma unroll 1
    for (int group = 0; group < groups; group++) {
        uint4 c[2][2];       /* [lane t or t + 4][output] */
        uint32_t pair[2][2]; /* scales [output][of blocks 4t and 4t + 2; 4t + 1 and 4t + 3] */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t word = *tile_at<const uint32_t>(scales + r * rows.scale_apart);
            c[0][r] = *tile_at<const uint4>(codes + r * rows.apart);
            c[1][r] = *tile_at<const uint4>(codes + r * rows.apart + 64);
#pragma unroll
            for (int i = 0; i < 2; i++) /* times 2^26 */
                pair[r][i] =
                    bf16_pairs_fma(nvfp4_scales_of(word >> 8 * i), 0x4c804c80u, 0x80008000u);
        }
        const uint4 all = *tile_at<const uint4>(odd);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint32_t odds = tile_word(all, u);
            const uint32_t now[2][2] = {{tile_word(c[0][0], u), tile_word(c[0][1], u)},
                                        {tile_word(c[1][0], u), tile_word(c[1][1], u)}};
            struct tile_products p;
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const uint4 in = *tile_at<const uint4>(mine + u * TILE_UNIT_WORDS * 4 + high * 16);
                uint32_t w[2][4];
                tile_decode(now[high][0], w[0]);
                tile_decode(now[high][1], w[1]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t a[4] = {w[0][2 * i], w[1][2 * i], w[0][2 * i + 1],
                                           w[1][2 * i + 1]};
                    const uint32_t b[2] = {i == 0 ? in.x : in.z, i == 0 ? in.y : in.w};
                    mma_bf16_product(p.d[high][i], a, b);
                }
            }
            if (odds != 0)
                p = tile_mend(p, make_uint4(now[0][0], now[0][1], now[1][0], now[1][1]),
                              tile_at<const uint32_t>(x + u * TILE_UNIT_WORDS * 4), odds);
            uint32_t both[2][2];
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    both[r][i] = __shfl_sync(0xffffffffu, pair[r][i], u, 4);
#pragma unroll
            for (int j = 0; j < TILE_UNIT; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float scale =
                        j < 2 ? bf16_low(both[r][j % 2]) : bf16_high(both[r][j % 2]);
#pragma unroll
                    for (int high = 0; high < 2; high++)
                        acc[high][r] = fmaf(p.d[high][j % 2][2 * r + j / 2], scale, acc[high][r]);
                }
        }
        codes += CUDA_LANES * 16;
        scales += NVFP4_GROUP_BLOCKS;
        mine += step;
        x += UNITS * TILE_UNIT_WORDS * 4;
        odd += UNITS * 4;
    }
    return make_float4(acc[0][0], acc[0][1], acc[1][0], acc[1][1]);
}

/* The tree over the 16 lanes, from the first half's accumulators and the second's: outputs g and
 * g + 8, in all four threads of a row. */
static __device__ __forceinline__ float2 tile_sum(float4 first, float4 second)
{
    float v[2] = {(first.x + second.x) + (first.z + second.z),
                  (first.y + second.y) + (first.w + second.w)};
#pragma unroll
    for (int step = 2; step >= 1; step /= 2)
#pragma unroll
        for (int i = 0; i < 2; i++)
            v[i] = v[i] + __shfl_xor_sync(0xffffffffu, v[i], step);
    return make_float2(v[0], v[1]);
}

#endif
