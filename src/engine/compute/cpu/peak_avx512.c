#include "engine/compute/cpu/peak.h"

#include <immintrin.h>

static float sum_of(const __m512 acc[PEAK_CHAINS])
{
    __m512 s = acc[0];
    for (int i = 1; i < PEAK_CHAINS; i++)
        s = _mm512_add_ps(s, acc[i]);
    return _mm512_reduce_add_ps(s);
}

static float dense(int64_t rounds)
{
    __m512 acc[PEAK_CHAINS];
    __m512bh w = (__m512bh)_mm512_set1_epi16(0x3f00), x = (__m512bh)_mm512_set1_epi16(0x3e80);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+v"(w), "+v"(x)); /* values that are not known ahead */
        for (int i = 0; i < PEAK_CHAINS; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], w, x);
    }
    return sum_of(acc);
}

/* As the kernels form it (numerics.md: t = fma(c0, x0, c1 * x1), acc = fma(t, scale, acc)): both
 * products are one instruction, from -0. */
static float mixed(int64_t rounds)
{
    __m512 acc[PEAK_CHAINS];
    __m512bh c = (__m512bh)_mm512_set1_epi16(0x3f00), x = (__m512bh)_mm512_set1_epi16(0x3e80);
    __m512 s = _mm512_set1_ps(0.125f);
    const __m512 none = _mm512_set1_ps(-0.0f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) {
            __asm__ volatile("" : "+v"(c), "+v"(x), "+v"(s));
            acc[i] = _mm512_fmadd_ps(_mm512_dpbf16_ps(none, c, x), s, acc[i]);
        }
    return sum_of(acc);
}

const struct peak_loops peak_loops_avx512 = {.name = "avx512",
                                             .dense_instruction = "VDPBF16PS zmm",
                                             .mixed_instruction = "VDPBF16PS and VFMADD zmm",
                                             .dense = dense,
                                             .mixed = mixed,
                                             .dense_flops = PEAK_CHAINS * 16 * 4,
                                             .mixed_flops = PEAK_CHAINS * 16 * 4};
