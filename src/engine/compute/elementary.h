/* Elementary functions of the compute path: float32 in, float32 out, every operation fixed
 * (docs/numerics.md), within 2 ulp of the true value. No libm here but fmaf and rintf, which are
 * exact. Vector versions (cpu/kernels_simd.h) do the same operations per element, so any build
 * gives the same bits. Run with denormals as zero (cpu/machine.h). */
#ifndef MLXFAST_ENGINE_COMPUTE_ELEMENTARY_H
#define MLXFAST_ENGINE_COMPUTE_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* How they are declared; a GPU's compiler needs its own words. */
#ifndef ELEMENTARY_FUNCTION
#define ELEMENTARY_FUNCTION static inline
#endif

#define ELEMENTARY_EXP_LOW -87.33654f
#define ELEMENTARY_EXP_HIGH 88.72283f
#define ELEMENTARY_LOG2_E 1.44269504f
/* -ln 2 in two pieces; the first has few bits, so that n times it is exact. */
#define ELEMENTARY_LN2_HIGH -0.693359375f
#define ELEMENTARY_LN2_LOW 2.12194440e-4f
#define ELEMENTARY_EXP_C6 1.9875691500e-4f
#define ELEMENTARY_EXP_C5 1.3981999507e-3f
#define ELEMENTARY_EXP_C4 8.3334519073e-3f
#define ELEMENTARY_EXP_C3 4.1665795894e-2f
#define ELEMENTARY_EXP_C2 1.6666665459e-1f
#define ELEMENTARY_EXP_C1 5.0000001201e-1f

/* (log(1+x) - x) / x^2 on [0, 1], highest power first. */
#define ELEMENTARY_LOG1P_TERMS                                                                     \
    {                                                                                              \
        -0.0033065376337617636f, 0.020150331780314445f, -0.05756152793765068f,                     \
            0.10670012980699539f, -0.15349097549915314f, 0.19693192839622498f,                     \
            -0.24958156049251556f, 0.3333047032356262f, -0.4999993145465851f                       \
    }
enum { ELEMENTARY_LOG1P_COUNT = 9 };

ELEMENTARY_FUNCTION float elementary_power_of_two(int k) /* -126 .. 127 */
{
    const uint32_t u = (uint32_t)(k + 127) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

ELEMENTARY_FUNCTION float elementary_exp(float x)
{
    if (isnan(x))
        return x;
    if (x < ELEMENTARY_EXP_LOW)
        return 0.0f;
    if (x > ELEMENTARY_EXP_HIGH)
        return INFINITY;
    const float t = x * ELEMENTARY_LOG2_E;
    const float n = rintf(t);
    float r = fmaf(n, ELEMENTARY_LN2_HIGH, x);
    r = fmaf(n, ELEMENTARY_LN2_LOW, r);
    float p = ELEMENTARY_EXP_C6;
    p = fmaf(p, r, ELEMENTARY_EXP_C5);
    p = fmaf(p, r, ELEMENTARY_EXP_C4);
    p = fmaf(p, r, ELEMENTARY_EXP_C3);
    p = fmaf(p, r, ELEMENTARY_EXP_C2);
    p = fmaf(p, r, ELEMENTARY_EXP_C1);
    const float q = r * r;
    const float y = fmaf(p, q, r) + 1.0f;
    /* 2^n in two exact steps: n may be 128 or leave a product below the smallest normal. */
    const int k = (int)n, a = k >> 1, b = k - a;
    return y * elementary_power_of_two(a) * elementary_power_of_two(b);
}

ELEMENTARY_FUNCTION float elementary_sigmoid(float z)
{
    const float e = elementary_exp(-fabsf(z));
    const float s = 1.0f / (1.0f + e);
    if (z < 0.0f)
        return fmaf(-e, e * s, e);
    return s;
}

/* x in [0, 1] only. */
ELEMENTARY_FUNCTION float elementary_log1p(float x)
{
    const float terms[] = ELEMENTARY_LOG1P_TERMS;
    float p = terms[0];
    for (int i = 1; i < ELEMENTARY_LOG1P_COUNT; i++)
        p = fmaf(p, x, terms[i]);
    const float q = x * x;
    return fmaf(q, p, x);
}

ELEMENTARY_FUNCTION float elementary_softplus(float z)
{
    if (isnan(z))
        return z;
    const float m = z > 0.0f ? z : 0.0f;
    return m + elementary_log1p(elementary_exp(-fabsf(z)));
}

#endif
