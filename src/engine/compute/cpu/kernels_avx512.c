/* Kernels for x86 with AVX-512 F, BW, VL, DQ, BF16, VBMI: sixteen lanes are one register, and one
 * instruction (VDPBF16PS) is the step of a dot product of bf16 values, odd element first. */
#include "engine/compute/cpu/kernels_lanes.h"

#include <immintrin.h>

typedef __m512 v16;

INLINE v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE v16 v16_set(float f)
{
    return _mm512_set1_ps(f);
}

INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void v16_store(float *p, v16 v)
{
    _mm512_storeu_ps(p, v);
}

INLINE v16 widen(__m256i bf16)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

INLINE v16 v16_load_bf16(const void *p)
{
    return widen(_mm256_loadu_si256((const __m256i *)p));
}

INLINE v16 v16_round(v16 v)
{
    return widen((__m256i)_mm512_cvtneps_pbh(v));
}

INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

INLINE v16 v16_abs(v16 a)
{
    return _mm512_abs_ps(a);
}

INLINE v16 v16_neg(v16 a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

INLINE v16 v16_roundeven(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE v16 v16_scale2(v16 a, v16 n)
{
    return _mm512_scalef_ps(a, n);
}

INLINE v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

INLINE v16 v16_select_nan(v16 a, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, x);
}

INLINE bool v16_any_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0;
}

/* The tree of halves. */
INLINE float v16_sum(v16 v)
{
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* Four trees down to four values each: vector i is in the 128 bits i. */
INLINE v16 fold4(v16 a, v16 b, v16 c, v16 d)
{
    const v16 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const v16 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/* Pairs of such, down to two values each, and pairs of those, down to one. */
INLINE v16 fold2(v16 p, v16 q)
{
    return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xee));
}

INLINE v16 fold1(v16 r, v16 s)
{
    return _mm512_add_ps(_mm512_shuffle_ps(r, s, 0x88), _mm512_shuffle_ps(r, s, 0xdd));
}

/* The trees of up to sixteen vectors at once: vectors are folded into one another, so that each
 * addition serves several. */
INLINE v16 v16_sums(const v16 *v, const int n)
{
    v16 four[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        four[i] = 4 * i >= n ? v16_zero()
                             : fold4(v[4 * i], 4 * i + 1 < n ? v[4 * i + 1] : v16_zero(),
                                     4 * i + 2 < n ? v[4 * i + 2] : v16_zero(),
                                     4 * i + 3 < n ? v[4 * i + 3] : v16_zero());
    const v16 low = fold2(four[0], n > 4 ? four[1] : four[0]);
    const v16 all = fold1(low, n > 8 ? fold2(four[2], n > 12 ? four[3] : four[2]) : low);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, all);
}

/* ---- Scales: E4M3 is a half without its upper exponent bits, 2^8 too small ---- */

typedef __m512 scales16;

INLINE scales16 scales_decode(const uint8_t *p, int count)
{
    const __mmask16 there = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    /* The sign is spread over the upper byte: bit 14 is to be none of it. */
    const __m256i b = _mm256_cvtepi8_epi16(_mm_maskz_loadu_epi8(there, p));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16(-0x4001));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

/* Lanes 0-7 get the scale of the block's first group, lanes 8-15 that of its second. */
INLINE v16 scales_pair(const scales16 *s, int block)
{
#define TWICE(i)                                                                                   \
    {                                                                                              \
        i, i, i, i, i, i, i, i, i + 1, i + 1, i + 1, i + 1, i + 1, i + 1, i + 1, i + 1             \
    }
    static const _Alignas(64) int32_t lanes[8][16] = {TWICE(0), TWICE(2),  TWICE(4),  TWICE(6),
                                                      TWICE(8), TWICE(10), TWICE(12), TWICE(14)};
#undef TWICE
    return _mm512_permutexvar_ps(_mm512_load_si512(lanes[block]), *s);
}

/* bf16 values of the codes, by the low five bits: the table stands twice. */
INLINE __m512i code_table(void)
{
    static const _Alignas(64) uint16_t table[32] = {
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
        0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
        0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    return _mm512_load_si512(table);
}

/* 16 bytes to 32 bf16 values in order: a byte fills a 32-bit lane, its upper nibble goes to the
 * upper half. */
INLINE __m512i codes_to_bf16(const uint8_t *p)
{
    const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_permutexvar_epi16(_mm512_or_si512(b, _mm512_slli_epi32(b, 12)), code_table());
}

/* ---- Rows as packed bf16 (ACTIVATIONS_BF16): the instruction takes pairs as they lie ---- */

enum { DOT_ROWS = 8, DOT_OUTPUTS = 8 };

INLINE int dot_outputs(enum weight_kind kind, int rows)
{
    (void)kind;
    return rows <= 2 ? 8 : rows <= 6 ? 4 : 2;
}

INLINE __m512bh packed_load_x(const void *row, int block)
{
    return (__m512bh)_mm512_loadu_si512((const uint8_t *)row + 64 * (size_t)block);
}

INLINE __m512bh packed_load_w(enum weight_kind kind, const uint8_t *p)
{
    (void)kind;
    return (__m512bh)_mm512_loadu_si512(p);
}

INLINE __m512bh packed_load_codes(const uint8_t *p)
{
    return (__m512bh)codes_to_bf16(p);
}

INLINE v16 packed_step(v16 acc, __m512bh w, __m512bh x)
{
    return _mm512_dpbf16_ps(acc, w, x);
}

/* From -0, which leaves a first product as it is, even a zero's sign. */
INLINE v16 packed_product(__m512bh w, __m512bh x)
{
    return _mm512_dpbf16_ps(_mm512_set1_ps(-0.0f), w, x);
}

#define DOT(name) packed_##name
#define w_pair __m512bh
#define x_pair __m512bh
#include "engine/compute/cpu/kernels_dot.h"
#undef DOT
#undef w_pair
#undef x_pair

#include "engine/compute/cpu/kernels_panel.h"

/* ---- Rows as float32, evens and odds of a block apart (ACTIVATIONS_F32) ---- */

struct pair {
    v16 even, odd;
};

INLINE struct pair split_load_x(const void *row, int block)
{
    const float *p = (const float *)row + KERNEL_BLOCK * (size_t)block;
    return (struct pair){v16_load(p), v16_load(p + KERNEL_LANES)};
}

INLINE struct pair pair_of_bf16(__m512i b)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return (struct pair){_mm512_castsi512_ps(_mm512_slli_epi32(b, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(b, upper))};
}

INLINE struct pair split_load_w(enum weight_kind kind, const uint8_t *p)
{
    if (kind == KIND_FLOAT)
        return split_load_x(p, 0);
    return pair_of_bf16(_mm512_loadu_si512(p));
}

INLINE struct pair split_load_codes(const uint8_t *p)
{
    return pair_of_bf16(codes_to_bf16(p));
}

#include "engine/compute/cpu/kernels_split.h"

/* ---- INT8: codes are whole numbers, exact in the upper half of a float ---- */

INLINE v16 v16_load_bf16_some(const void *p, int n)
{
    const __mmask16 there = n >= KERNEL_LANES ? 0xffff : (__mmask16)((1u << n) - 1);
    return widen(_mm256_maskz_loadu_epi16(there, p));
}

INLINE struct pair split_load_bytes(const uint8_t *p)
{
    const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (struct pair){_mm512_cvtepi32_ps(_mm512_and_si512(u, _mm512_set1_epi32(0xff))),
                         _mm512_cvtepi32_ps(_mm512_srli_epi32(u, 8))};
}

INLINE v16 split_pair_sums(const void *row, int block)
{
    const struct pair x = split_load_x(row, block);
    return v16_add(x.even, x.odd);
}

#include "engine/compute/cpu/kernels_int8.h"
#undef DOT
#undef w_pair
#undef x_pair

INLINE __m512bh packed_load_bytes(const uint8_t *p)
{
    const struct pair w = split_load_bytes(p);
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(w.even), 16),
                                     _mm512_castps_si512(w.odd));
}

INLINE v16 packed_pair_sums(const void *row, int block)
{
    const struct pair x = pair_of_bf16((__m512i)packed_load_x(row, block));
    return v16_add(x.even, x.odd);
}

#define DOT(name) packed_##name
#define w_pair __m512bh
#define x_pair __m512bh
#include "engine/compute/cpu/kernels_int8.h"

enum { INT8_PACKED = true };
#define INT8_BF16(name) packed_##name
#include "engine/compute/cpu/kernels_int8_linear.h"

static void prepare(enum activations a, const float *x, int n, void *out)
{
    if (a == ACTIVATIONS_F32) {
        split_prepare(x, n, out);
        return;
    }
    uint16_t *b = out;
    for (int i = 0; i < kernel_pad(n, KERNEL_BLOCK); i += KERNEL_LANES) {
        const int left = n - i;
        const __mmask16 there =
            left >= KERNEL_LANES ? 0xffff : (__mmask16)(left > 0 ? (1u << left) - 1 : 0);
        const __m256bh v = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, x + i));
        _mm256_storeu_si256((__m256i *)(void *)(b + i), (__m256i)v);
    }
}

static void dot_bf16(enum activations a, const struct dot_call *c, int rows, int count)
{
    if (a == ACTIVATIONS_BF16 && rows >= PANEL_LEAST && c->in >= PANEL_INPUTS)
        panel_bf16(c, rows, count);
    else if (a == ACTIVATIONS_BF16)
        packed_bf16(c, rows, count);
    else
        split_bf16(c, rows, count);
}

static void dot_nvfp4(enum activations a, const struct dot_call *c, int rows, int count)
{
    if (a == ACTIVATIONS_BF16)
        packed_nvfp4(c, rows, count);
    else
        split_nvfp4(c, rows, count);
}

enum { HEADS_IN_FLIGHT = 4, VALUES_IN_FLIGHT = 4 };

#include "engine/compute/cpu/kernels_simd.h"

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512", .prepared_bytes = {sizeof(uint16_t), sizeof(float)}, KERNEL_FUNCTIONS};
