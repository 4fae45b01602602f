#include "engine/compute/cpu/peak.h"

#include <immintrin.h>

static float sum_of(const __m256 acc[PEAK_CHAINS])
{
    float lanes[8], total = 0;
    __m256 s = acc[0];
    for (int i = 1; i < PEAK_CHAINS; i++)
        s = _mm256_add_ps(s, acc[i]);
    _mm256_storeu_ps(lanes, s);
    for (int i = 0; i < 8; i++)
        total += lanes[i];
    return total;
}

static float dense(int64_t rounds)
{
    __m256 acc[PEAK_CHAINS];
    __m256 w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+x"(w), "+x"(x)); /* values that are not known ahead */
        for (int i = 0; i < PEAK_CHAINS; i++)
            acc[i] = _mm256_fmadd_ps(w, x, acc[i]);
    }
    return sum_of(acc);
}

/* numerics.md: t = fma(c0, x0, c1 * x1), acc = fma(t, scale, acc). */
static float mixed(int64_t rounds)
{
    __m256 acc[PEAK_CHAINS];
    __m256 c = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f), s = _mm256_set1_ps(0.125f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) {
            __asm__ volatile("" : "+x"(c), "+x"(x), "+x"(s));
            const __m256 t = _mm256_fmadd_ps(c, x, _mm256_mul_ps(x, c));
            acc[i] = _mm256_fmadd_ps(t, s, acc[i]);
        }
    return sum_of(acc);
}

const struct peak_loops peak_loops_avx2 = {.name = "avx2",
                                           .dense_instruction = "VFMADD ymm",
                                           .mixed_instruction = "VFMADD/VMUL ymm",
                                           .dense = dense,
                                           .mixed = mixed,
                                           .dense_flops = PEAK_CHAINS * 8 * 2,
                                           .mixed_flops = PEAK_CHAINS * 8 * 4};
