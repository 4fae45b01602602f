/* Fixed-seed random values for the compute tests, and comparing floats bit by bit. */
#ifndef MLXFAST_TESTS_COMPUTE_RANDOM_H
#define MLXFAST_TESTS_COMPUTE_RANDOM_H

#include "engine/checkpoint/formats.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *r)
{
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state * 0x2545f4914f6cdd1du;
}

static inline int random_int(struct random *r, int low, int high) /* both included */
{
    return low + (int)((random_next(r) >> 20) % (uint64_t)(high - low + 1));
}

static inline float random_float(struct random *r) /* [-1, 1) */
{
    return (float)((int64_t)(random_next(r) >> 40) - (1 << 23)) / (float)(1 << 23);
}

static inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float to_bf16(float f)
{
    return bf16_to_f32(f32_to_bf16(f));
}

/* A value that a sum may meet: mostly ordinary, now and then zero of either sign, tiny, large, or
 * (wild) so small that it counts as zero or makes products that do. */
static inline float random_value(struct random *r, bool wild)
{
    const int kind = random_int(r, 0, 63);
    if (kind == 0)
        return 0.0f;
    if (kind == 1)
        return -0.0f;
    if (wild && kind == 2)
        return bits_float((uint32_t)random_next(r) & 0x807fffffu);
    if (wild && kind < 8)
        return random_float(r) * 1e-20f;
    if (wild && kind < 10)
        return random_float(r) * 1e18f;
    return random_float(r) * 2.0f;
}

/* Same bits, or both NaN (whose sign and payload are not fixed). */
static inline bool same_float(float a, float b)
{
    return float_bits(a) == float_bits(b) || (isnan(a) && isnan(b));
}

static inline bool same_floats(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_float(a[i], b[i]))
            return false;
    return true;
}

/* Memory of exactly this size, so that a sanitizer sees a byte too many; offset moves the start off
 * alignment. Freed by random_free with the same offset. */
static inline uint8_t *random_bytes_new(size_t size, size_t offset)
{
    uint8_t *p = malloc(size + offset);
    return p + offset;
}

static inline void random_bytes_free(const uint8_t *p, size_t offset)
{
    free((void *)(uintptr_t)(p - offset));
}

#endif
