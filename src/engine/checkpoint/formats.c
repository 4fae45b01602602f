/* Tables and the NVFP4 quantiser; every number here is from laguna.md section 7. */
#include "engine/checkpoint/formats.h"

#include <math.h>

const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Exponent bias 7, three mantissa bits, subnormals m * 2^-9; 0x7F is a plain 480, never NaN. */
#define E4M3_MAGNITUDE(b)                                                                          \
    (((b)&0x78) ? (float)(8 + ((b)&7)) * (float)(1 << (((b) >> 3) & 15)) / 1024.0f                 \
                : (float)((b)&7) / 512.0f)
#define E4M3(b) (((b)&0x80) ? -E4M3_MAGNITUDE(b) : E4M3_MAGNITUDE(b))
#define E4M3_8(b)                                                                                  \
    E4M3(b), E4M3((b) + 1), E4M3((b) + 2), E4M3((b) + 3), E4M3((b) + 4), E4M3((b) + 5),            \
        E4M3((b) + 6), E4M3((b) + 7)
#define E4M3_64(b)                                                                                 \
    E4M3_8(b), E4M3_8((b) + 8), E4M3_8((b) + 16), E4M3_8((b) + 24), E4M3_8((b) + 32),              \
        E4M3_8((b) + 40), E4M3_8((b) + 48), E4M3_8((b) + 56)

const float e4m3_values[256] = {E4M3_64(0), E4M3_64(64), E4M3_64(128), E4M3_64(192)};

enum { E4M3_LARGEST = 0x7E, E2M1_NAN_CODE = 7 };

uint8_t e2m1_encode(float x_over_scale)
{
    if (isnan(x_over_scale))
        return E2M1_NAN_CODE;
    const float a = fabsf(x_over_scale);
    const uint8_t sign = signbit(x_over_scale) ? 8 : 0;
    uint8_t code = 0;
    if (a > 5.0f)
        code = 7;
    else if (a >= 3.5f)
        code = 6;
    else if (a > 2.5f)
        code = 5;
    else if (a >= 1.75f)
        code = 4;
    else if (a > 1.25f)
        code = 3;
    else if (a >= 0.75f)
        code = 2;
    else if (a > 0.25f)
        code = 1;
    return (uint8_t)(sign | code);
}

uint8_t e4m3_encode(float x)
{
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    const float a = fabsf(x);
    if (!(a < e4m3_values[E4M3_LARGEST])) /* NaN too: a scale byte has no other way to say it */
        return (uint8_t)(sign | E4M3_LARGEST);
    /* Below 2^-6 the step is 2^-9, above it is 2^(exponent-3): rounding a to the step with the
     * current mode (nearest even) by rintf is exact, since a/step has at most 24 bits. A carry
     * into the next binade is the next byte, so that adding the fields is enough. */
    int exponent = 0;
    if (a < 0.015625f)
        return (uint8_t)(sign | (uint8_t)rintf(a * 512.0f));
    frexpf(a, &exponent); /* a = f * 2^exponent, f in [0.5, 1) */
    const int biased = exponent - 1 + 7;
    const int mantissa = (int)rintf(ldexpf(a, 3 - (exponent - 1))); /* 8 .. 16 */
    return (uint8_t)(sign | ((biased << 3) + (mantissa - 8)));
}

void nvfp4_quantize(const float *x, size_t n, uint32_t *codes, uint8_t *scales)
{
    for (size_t g = 0; g < n / NVFP4_GROUP; g++) {
        const float *group = x + g * NVFP4_GROUP;
        float peak = 0.0f;
        for (int i = 0; i < NVFP4_GROUP; i++) {
            const float a = fabsf(group[i]);
            if (isnan(a) || a > peak) /* NaN stays: nothing compares above it */
                peak = a;
        }
        scales[g] = e4m3_encode(peak / 6.0f);
        const float scale = e4m3_values[scales[g]];
        for (int word = 0; word < NVFP4_GROUP / NVFP4_CODES_PER_WORD; word++) {
            uint32_t packed = 0;
            for (int t = 0; t < NVFP4_CODES_PER_WORD; t++) {
                /* A group whose scale rounds to zero holds nothing but code 0. */
                const float v = group[word * NVFP4_CODES_PER_WORD + t];
                const uint32_t code = scale == 0.0f ? 0u : e2m1_encode(v / scale);
                packed |= code << (4 * t);
            }
            codes[g * 2 + (size_t)word] = packed;
        }
    }
}

void nvfp4_dequantize(const uint32_t *codes, const uint8_t *scales, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t code =
            (codes[i / NVFP4_CODES_PER_WORD] >> (4 * (i % NVFP4_CODES_PER_WORD))) & 15u;
        out[i] = e2m1_values[code] * e4m3_values[scales[i / NVFP4_GROUP]];
    }
}
