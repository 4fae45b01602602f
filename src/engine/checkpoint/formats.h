/* Number formats of stored weights: bf16, E2M1, E4M3, NVFP4 groups of 16, affine INT8 groups of 32
 * (laguna.md section 7). */
#ifndef MLXFAST_ENGINE_CHECKPOINT_FORMATS_H
#define MLXFAST_ENGINE_CHECKPOINT_FORMATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { NVFP4_GROUP = 16, NVFP4_CODES_PER_WORD = 8 };
enum { AFFINE_GROUP = 32, AFFINE_CODES_PER_WORD = 4, AFFINE_BITS = 8 };

static inline float bf16_to_f32(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays NaN (quiet). Denormal results are kept by this function: the
 * compute path runs with denormals-as-zero and flush-to-zero set (numerics.md). */
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    u += 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)(u >> 16);
}

extern const float e2m1_values[16];  /* code -> value; 8..15 are the negatives, 8 is -0 */
extern const float e4m3_values[256]; /* byte -> value; 0x7F -> 480, 0xFF -> -480 */
uint8_t e2m1_encode(float x_over_scale);
uint8_t e4m3_encode(float x); /* nearest even, saturating at 448 (0x7E); sign kept */

/* Quantises n (a multiple of 16) floats: n/8 code words and n/16 scale bytes. */
void nvfp4_quantize(const float *x, size_t n, uint32_t *codes, uint8_t *scales);
void nvfp4_dequantize(const uint32_t *codes, const uint8_t *scales, size_t n, float *out);

/* Quantises n (a multiple of 32) floats as mlx does, 8 bits in groups of 32: a value is about
 * scale * code + bias. n codes (four to a little-endian word of the stored form), n/32 scales and
 * biases as bf16. False when a value is not finite, or a group wider than float32. */
bool affine_quantize(const float *x, size_t n, uint8_t *codes, uint16_t *scales, uint16_t *biases);
void affine_dequantize(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases,
                       size_t n, float *out);

#endif
