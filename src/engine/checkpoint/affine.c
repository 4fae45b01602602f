/* The affine quantiser of mlx, operation by operation in float32 (tests/vectors/affine.json). */
#include "engine/checkpoint/formats.h"

#include <math.h>

static const float LARGEST_CODE = 255.0f, SMALLEST_SCALE = 1e-7f;

/* The scale runs from the end of larger magnitude (the largest value where both are as far from 0)
 * towards the other, bent so that 0 has a code of its own. */
static void choose_scale(const float *x, float *scale, float *bias)
{
    float low = x[0], high = x[0];
    for (int i = 1; i < AFFINE_GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const bool below = fabsf(low) > fabsf(high);
    float s = (high - low) / LARGEST_CODE;
    s = s > SMALLEST_SCALE ? s : SMALLEST_SCALE;
    s = below ? s : -s;
    const float edge = below ? low : high, zero_code = rintf(edge / s);
    *scale = zero_code != 0 ? edge / zero_code : s;
    *bias = zero_code != 0 ? edge : 0.0f;
}

bool affine_quantize(const float *x, size_t n, uint8_t *codes, uint16_t *scales, uint16_t *biases)
{
    for (size_t g = 0; g < n / AFFINE_GROUP; g++) {
        const float *group = x + g * AFFINE_GROUP;
        float scale, bias;
        for (int i = 0; i < AFFINE_GROUP; i++)
            if (!isfinite(group[i]))
                return false;
        choose_scale(group, &scale, &bias);
        if (!isfinite(scale)) /* high - low is beyond float32 */
            return false;
        for (int i = 0; i < AFFINE_GROUP; i++) {
            const float code = rintf((group[i] - bias) / scale);
            codes[g * AFFINE_GROUP + (size_t)i] = (uint8_t)(code < 0              ? 0
                                                            : code > LARGEST_CODE ? LARGEST_CODE
                                                                                  : code);
        }
        scales[g] = f32_to_bf16(scale);
        biases[g] = f32_to_bf16(bias);
    }
    return true;
}

void affine_dequantize(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases,
                       size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const size_t g = i / AFFINE_GROUP;
        const float product = bf16_to_f32(scales[g]) * (float)codes[i];
        out[i] = product + bf16_to_f32(biases[g]);
    }
}
