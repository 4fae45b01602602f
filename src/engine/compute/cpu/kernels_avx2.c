/* Kernels for x86 with AVX2, FMA and F16C: sixteen lanes are two registers. */
#include "engine/compute/cpu/kernels_lanes.h"

#include <immintrin.h>

typedef struct {
    __m256 a, b; /* lanes 0-7, 8-15 */
} v16;

INLINE v16 both(__m256 a, __m256 b)
{
    return (v16){a, b};
}

INLINE v16 v16_zero(void)
{
    return both(_mm256_setzero_ps(), _mm256_setzero_ps());
}

INLINE v16 v16_set(float f)
{
    return both(_mm256_set1_ps(f), _mm256_set1_ps(f));
}

INLINE v16 v16_load(const float *p)
{
    return both(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

INLINE void v16_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

INLINE __m256 widen(const void *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}

INLINE v16 v16_load_bf16(const void *p)
{
    return both(widen(p), widen((const uint8_t *)p + 16));
}

/* f32_to_bf16, kept as a float. */
INLINE __m256 round8(__m256 v)
{
    const __m256i u = _mm256_castps_si256(v), upper = _mm256_set1_epi32((int)0xffff0000);
    const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(nan),
                                      _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_ps(r, _mm256_castsi256_ps(upper));
}

INLINE v16 v16_round(v16 v)
{
    return both(round8(v.a), round8(v.b));
}

INLINE v16 v16_add(v16 x, v16 y)
{
    return both(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}

INLINE v16 v16_sub(v16 x, v16 y)
{
    return both(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}

INLINE v16 v16_mul(v16 x, v16 y)
{
    return both(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}

INLINE v16 v16_div(v16 x, v16 y)
{
    return both(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}

INLINE v16 v16_fma(v16 x, v16 y, v16 z)
{
    return both(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

INLINE v16 v16_max(v16 x, v16 y)
{
    return both(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}

INLINE v16 v16_abs(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return both(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}

INLINE v16 v16_neg(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return both(_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign));
}

INLINE v16 v16_roundeven(v16 x)
{
    return both(_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE __m256 power_of_two(__m256i k)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
}

INLINE __m256 scale8(__m256 y, __m256 n)
{
    const __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1);
    const __m256 once = _mm256_mul_ps(y, power_of_two(half));
    return _mm256_mul_ps(once, power_of_two(_mm256_sub_epi32(k, half)));
}

INLINE v16 v16_scale2(v16 y, v16 n)
{
    return both(scale8(y.a, n.a), scale8(y.b, n.b));
}

INLINE v16 v16_select_lt(v16 p, v16 q, v16 x, v16 y)
{
    return both(_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ)));
}

INLINE v16 v16_select_nan(v16 p, v16 x, v16 y)
{
    return both(_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, p.a, _CMP_UNORD_Q)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, p.b, _CMP_UNORD_Q)));
}

INLINE bool v16_any_lt(v16 x, v16 y)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ),
                                           _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))) != 0;
}

/* The tree of halves. */
INLINE float v16_sum(v16 v)
{
    const __m256 s8 = _mm256_add_ps(v.a, v.b);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* Halves of two vectors of eight, added: x's four sums, then y's. */
INLINE __m256 fold(__m256 x, __m256 y)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}

INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
    const __m256 ab = fold(_mm256_add_ps(a.a, a.b), _mm256_add_ps(b.a, b.b));
    const __m256 cd = fold(_mm256_add_ps(c.a, c.b), _mm256_add_ps(d.a, d.b));
    const __m256 s2 =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m256 s1 = _mm256_hadd_ps(s2, s2); /* a c a c | b d b d */
    _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(s1), _mm256_extractf128_ps(s1, 1)));
}

/* The trees of up to sixteen vectors. */
INLINE v16 v16_sums(const v16 *v, const int n)
{
    float sum[KERNEL_LANES] = {0};
    int i = 0;
    UNROLL
    for (; i + 4 <= n; i += 4)
        v16_sum4(v[i], v[i + 1], v[i + 2], v[i + 3], sum + i);
    UNROLL
    for (; i < n; i++)
        sum[i] = v16_sum(v[i]);
    return v16_load(sum);
}

/* ---- Scales: E4M3 is a half without its upper exponent bits, 2^8 too small ---- */

typedef struct {
    float f[16];
} scales16;

INLINE scales16 scales_decode(const uint8_t *p, int count)
{
    uint8_t some[16] = {0};
    if (count < 16) {
        memcpy(some, p, (size_t)count);
        p = some;
    }
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x7f)), 7);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi16(0x80)), 8);
    const __m256i half = _mm256_or_si256(magnitude, sign);
    const __m256 factor = _mm256_set1_ps(256.0f);
    scales16 s;
    _mm256_storeu_ps(s.f, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor));
    _mm256_storeu_ps(s.f + 8,
                     _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor));
    return s;
}

INLINE v16 scales_pair(const scales16 *s, int block)
{
    return both(_mm256_broadcast_ss(s->f + 2 * block), _mm256_broadcast_ss(s->f + 2 * block + 1));
}

/* ---- Rows as float32, evens and odds of a block apart ---- */

struct pair {
    v16 even, odd;
};

INLINE struct pair split_load_x(const void *row, int block)
{
    const float *p = (const float *)row + KERNEL_BLOCK * (size_t)block;
    return (struct pair){v16_load(p), v16_load(p + KERNEL_LANES)};
}

/* Pairs 0-7 and 8-15 as they lie: the even element is the lower half of 32 bits. */
INLINE struct pair pair_of_bf16(__m256i a, __m256i b)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (struct pair){both(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                              _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))),
                         both(_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
                              _mm256_castsi256_ps(_mm256_and_si256(b, upper)))};
}

INLINE struct pair split_load_w(enum weight_kind kind, const uint8_t *p)
{
    if (kind == KIND_FLOAT)
        return split_load_x(p, 0);
    return pair_of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p),
                        _mm256_loadu_si256((const __m256i *)(const void *)(p + 32)));
}

/* Each byte is doubled, so that its low nibble (even element) and high nibble (odd) stand in a
 * word; the two bytes of a code's bf16 value are looked up apart and interleaved, which leaves
 * pairs as in a row of bf16. The interleaving works within 128-bit halves, hence the order of the
 * doubling. */
INLINE struct pair split_load_codes(const uint8_t *p)
{
    const __m128i upper = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                        -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
    const __m128i lower = _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80,
                                        -0x40, 0, 0x40, -0x80, -0x40);
    const __m256i twice = _mm256_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11, 4, 4,
                                           5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15);
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)), twice);
    const __m256i codes =
        _mm256_or_si256(_mm256_and_si256(bytes, _mm256_set1_epi16(0x000f)),
                        _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(0x0f00)));
    const __m256i high = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(upper), codes);
    const __m256i low = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(lower), codes);
    return pair_of_bf16(_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
}

enum { DOT_ROWS = 4, DOT_OUTPUTS = 4 };

INLINE int dot_outputs(enum weight_kind kind, int rows)
{
    if (rows == 1)
        return kind == KIND_NVFP4 || kind == KIND_NVFP4_64 ? 2 : 4;
    return rows == 2 ? 2 : 1;
}

#include "engine/compute/cpu/kernels_split.h"

/* ---- INT8 ---- */

/* Eight is common: a row of 256. */
INLINE v16 v16_load_bf16_some(const void *p, int n)
{
    uint16_t t[KERNEL_LANES] = {0};
    if (n >= KERNEL_LANES)
        return v16_load_bf16(p);
    if (n == KERNEL_LANES / 2)
        memcpy(t, p, sizeof t / 2);
    else
        memcpy(t, p, (size_t)n * sizeof *t);
    return v16_load_bf16(t);
}

INLINE v16 split_pair_sums(const void *row, int block)
{
    const struct pair x = split_load_x(row, block);
    return v16_add(x.even, x.odd);
}

INLINE struct pair split_load_bytes(const uint8_t *p)
{
    const __m256i low = _mm256_set1_epi32(0xff);
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i b =
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)));
    return (struct pair){both(_mm256_cvtepi32_ps(_mm256_and_si256(a, low)),
                              _mm256_cvtepi32_ps(_mm256_and_si256(b, low))),
                         both(_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 8)),
                              _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 8)))};
}

enum { INT8_PACKED = false };
#define INT8_BF16(name) split_##name
#include "engine/compute/cpu/kernels_int8.h"
#include "engine/compute/cpu/kernels_int8_linear.h"

static void prepare(enum activations a, const float *x, int n, void *out)
{
    (void)a;
    split_prepare(x, n, out);
}

static void dot_bf16(enum activations a, const struct dot_call *c, int rows, int count)
{
    (void)a;
    split_bf16(c, rows, count);
}

static void dot_nvfp4(enum activations a, const struct dot_call *c, int rows, int count)
{
    (void)a;
    split_nvfp4(c, rows, count);
}

enum { HEADS_IN_FLIGHT = 4, VALUES_IN_FLIGHT = 1 };

#include "engine/compute/cpu/kernels_simd.h"

const struct cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2", .prepared_bytes = {sizeof(float), sizeof(float)}, KERNEL_FUNCTIONS};
