#include "engine/compute/cpu/peak.h"

#include <arm_neon.h>

static float sum_of(const float32x4_t acc[PEAK_CHAINS])
{
    float32x4_t s = acc[0];
    for (int i = 1; i < PEAK_CHAINS; i++)
        s = vaddq_f32(s, acc[i]);
    return vaddvq_f32(s);
}

static float dense(int64_t rounds)
{
    float32x4_t acc[PEAK_CHAINS];
    float32x4_t w = vdupq_n_f32(0.5f), x = vdupq_n_f32(0.25f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = vdupq_n_f32((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+w"(w), "+w"(x)); /* values that are not known ahead */
        for (int i = 0; i < PEAK_CHAINS; i++)
            acc[i] = vfmaq_f32(acc[i], w, x);
    }
    return sum_of(acc);
}

/* numerics.md: t = fma(c0, x0, c1 * x1), acc = fma(t, scale, acc). */
static float mixed(int64_t rounds)
{
    float32x4_t acc[PEAK_CHAINS];
    float32x4_t c = vdupq_n_f32(0.5f), x = vdupq_n_f32(0.25f), s = vdupq_n_f32(0.125f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = vdupq_n_f32((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) {
            __asm__ volatile("" : "+w"(c), "+w"(x), "+w"(s));
            const float32x4_t t = vfmaq_f32(vmulq_f32(x, c), c, x);
            acc[i] = vfmaq_f32(acc[i], t, s);
        }
    return sum_of(acc);
}

const struct peak_loops peak_loops_neon = {.name = "neon",
                                           .dense_instruction = "FMLA 4s",
                                           .mixed_instruction = "FMLA/FMUL 4s",
                                           .dense = dense,
                                           .mixed = mixed,
                                           .dense_flops = PEAK_CHAINS * 4 * 2,
                                           .mixed_flops = PEAK_CHAINS * 4 * 4};
