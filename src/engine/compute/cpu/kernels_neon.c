/* Kernels for AArch64 (Advanced SIMD): sixteen lanes are four registers. Its bf16 dot products are
 * not used: they round otherwise. */
#include "engine/compute/cpu/kernels_lanes.h"

#include <arm_neon.h>

typedef struct {
    float32x4_t q[4]; /* lanes 0-3, 4-7, 8-11, 12-15 */
} v16;

#define EACH(expression)                                                                           \
    v16 out;                                                                                       \
    UNROLL                                                                                         \
    for (int i = 0; i < 4; i++)                                                                    \
        out.q[i] = (expression);                                                                   \
    return out

INLINE v16 v16_set(float f)
{
    EACH(vdupq_n_f32(f));
}

INLINE v16 v16_zero(void)
{
    return v16_set(0.0f);
}

INLINE v16 v16_load(const float *p)
{
    EACH(vld1q_f32(p + 4 * i));
}

INLINE void v16_store(float *p, v16 v)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.q[i]);
}

/* Bytes, because weights may stand at odd addresses. */
INLINE uint16x8_t load_words(const void *p)
{
    return vreinterpretq_u16_u8(vld1q_u8(p));
}

INLINE v16 v16_load_bf16(const void *p)
{
    const uint16x8_t a = load_words(p), b = load_words((const uint8_t *)p + 16);
    return (v16){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(a), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(b), 16))}};
}

/* f32_to_bf16, kept as a float. */
INLINE float32x4_t round4(float32x4_t v)
{
    const uint32x4_t u = vreinterpretq_u32_f32(v);
    const uint32x4_t lowest = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(u, vaddq_u32(lowest, vdupq_n_u32(0x7fff)));
    const uint32x4_t nan = vorrq_u32(u, vdupq_n_u32(0x400000));
    const uint32x4_t r = vbslq_u32(vceqq_f32(v, v), up, nan);
    return vreinterpretq_f32_u32(vandq_u32(r, vdupq_n_u32(0xffff0000)));
}

INLINE v16 v16_round(v16 v)
{
    EACH(round4(v.q[i]));
}

INLINE v16 v16_add(v16 x, v16 y)
{
    EACH(vaddq_f32(x.q[i], y.q[i]));
}

INLINE v16 v16_sub(v16 x, v16 y)
{
    EACH(vsubq_f32(x.q[i], y.q[i]));
}

INLINE v16 v16_mul(v16 x, v16 y)
{
    EACH(vmulq_f32(x.q[i], y.q[i]));
}

INLINE v16 v16_div(v16 x, v16 y)
{
    EACH(vdivq_f32(x.q[i], y.q[i]));
}

INLINE v16 v16_fma(v16 x, v16 y, v16 z)
{
    EACH(vfmaq_f32(z.q[i], x.q[i], y.q[i]));
}

INLINE v16 v16_max(v16 x, v16 y)
{
    EACH(vmaxq_f32(x.q[i], y.q[i]));
}

INLINE v16 v16_abs(v16 x)
{
    EACH(vabsq_f32(x.q[i]));
}

INLINE v16 v16_neg(v16 x)
{
    EACH(vnegq_f32(x.q[i]));
}

INLINE v16 v16_roundeven(v16 x)
{
    EACH(vrndnq_f32(x.q[i]));
}

INLINE float32x4_t power_of_two(int32x4_t k)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k, vdupq_n_s32(127)), 23));
}

INLINE float32x4_t scale4(float32x4_t y, float32x4_t n)
{
    const int32x4_t k = vcvtq_s32_f32(n), half = vshrq_n_s32(k, 1);
    return vmulq_f32(vmulq_f32(y, power_of_two(half)), power_of_two(vsubq_s32(k, half)));
}

INLINE v16 v16_scale2(v16 y, v16 n)
{
    EACH(scale4(y.q[i], n.q[i]));
}

INLINE v16 v16_select_lt(v16 p, v16 q, v16 x, v16 y)
{
    EACH(vbslq_f32(vcltq_f32(p.q[i], q.q[i]), x.q[i], y.q[i]));
}

INLINE v16 v16_select_nan(v16 p, v16 x, v16 y)
{
    EACH(vbslq_f32(vceqq_f32(p.q[i], p.q[i]), y.q[i], x.q[i]));
}

INLINE bool v16_any_lt(v16 x, v16 y)
{
    const uint32x4_t a = vorrq_u32(vcltq_f32(x.q[0], y.q[0]), vcltq_f32(x.q[1], y.q[1]));
    const uint32x4_t b = vorrq_u32(vcltq_f32(x.q[2], y.q[2]), vcltq_f32(x.q[3], y.q[3]));
    return vmaxvq_u32(vorrq_u32(a, b)) != 0;
}

/* The tree of halves, down to four. */
INLINE float32x4_t sum_to_four(v16 v)
{
    return vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
}

INLINE float v16_sum(v16 v)
{
    const float32x4_t s4 = sum_to_four(v);
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

INLINE void v16_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
    const float32x4_t sa = sum_to_four(a), sb = sum_to_four(b);
    const float32x4_t sc = sum_to_four(c), sd = sum_to_four(d);
    const float32x4_t ab = vaddq_f32(vcombine_f32(vget_low_f32(sa), vget_low_f32(sb)),
                                     vcombine_f32(vget_high_f32(sa), vget_high_f32(sb)));
    const float32x4_t cd = vaddq_f32(vcombine_f32(vget_low_f32(sc), vget_low_f32(sd)),
                                     vcombine_f32(vget_high_f32(sc), vget_high_f32(sd)));
    vst1q_f32(out, vpaddq_f32(ab, cd));
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

INLINE void scales_widen(uint8x8_t b8, float *out)
{
    const uint16x8_t b = vmovl_u8(b8);
    const uint16x8_t magnitude = vshlq_n_u16(vandq_u16(b, vdupq_n_u16(0x7f)), 7);
    const uint16x8_t sign = vshlq_n_u16(vandq_u16(b, vdupq_n_u16(0x80)), 8);
    const float16x8_t half = vreinterpretq_f16_u16(vorrq_u16(magnitude, sign));
    const float32x4_t factor = vdupq_n_f32(256.0f);
    vst1q_f32(out, vmulq_f32(vcvt_f32_f16(vget_low_f16(half)), factor));
    vst1q_f32(out + 4, vmulq_f32(vcvt_f32_f16(vget_high_f16(half)), factor));
}

INLINE scales16 scales_decode(const uint8_t *p, int count)
{
    uint8_t some[16] = {0};
    if (count < 16) {
        memcpy(some, p, (size_t)count);
        p = some;
    }
    scales16 s;
    scales_widen(vld1_u8(p), s.f);
    scales_widen(vld1_u8(p + 8), s.f + 8);
    return s;
}

INLINE v16 scales_pair(const scales16 *s, int block)
{
    const float32x4_t first = vdupq_n_f32(s->f[2 * block]);
    const float32x4_t second = vdupq_n_f32(s->f[2 * block + 1]);
    return (v16){{first, first, second, second}};
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

INLINE struct pair split_load_w(enum weight_kind kind, const uint8_t *p)
{
    if (kind == KIND_FLOAT)
        return split_load_x(p, 0);
    struct pair w;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32x4_t u = vreinterpretq_u32_u8(vld1q_u8(p + 16 * i));
        w.even.q[i] = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
        w.odd.q[i] = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000)));
    }
    return w;
}

/* bf16 bytes of sixteen codes to floats in order. */
INLINE v16 codes_to_floats(uint8x16_t codes)
{
    static const uint8_t upper[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                      0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static const uint8_t lower[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                      0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
    const uint8x16_t high = vqtbl1q_u8(vld1q_u8(upper), codes);
    const uint8x16_t low = vqtbl1q_u8(vld1q_u8(lower), codes);
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    const uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(low, high));
    return (v16){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(a), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(b), 16))}};
}

INLINE struct pair split_load_codes(const uint8_t *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    return (struct pair){codes_to_floats(vandq_u8(bytes, vdupq_n_u8(15))),
                         codes_to_floats(vshrq_n_u8(bytes, 4))};
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

INLINE v16 bytes_to_floats(uint8x16_t bytes)
{
    const uint16x8_t a = vmovl_u8(vget_low_u8(bytes)), b = vmovl_u8(vget_high_u8(bytes));
    return (v16){
        {vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(a))),
         vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(b)))}};
}

INLINE struct pair split_load_bytes(const uint8_t *p)
{
    const uint8x16x2_t v = vld2q_u8(p);
    return (struct pair){bytes_to_floats(v.val[0]), bytes_to_floats(v.val[1])};
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

const struct cpu_kernels cpu_kernels_neon = {
    .name = "neon", .prepared_bytes = {sizeof(float), sizeof(float)}, KERNEL_FUNCTIONS};
