/* Rotary tables (laguna.md section 5.3): frequencies in double, angles in float32, and cosines and
 * sines by our own double-precision code, so that a table has the same bits on every machine. */
#ifndef MLXFAST_ENGINE_MODEL_ROPE_H
#define MLXFAST_ENGINE_MODEL_ROPE_H

#include "base/arena.h"
#include "engine/compute/blocks.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>

struct rope_parameters {
    int dim; /* rotary dimensions, even, >= 2 */
    double theta;
    bool yarn; /* the rest is read only when set */
    double factor;
    double original_positions;
    double beta_fast, beta_slow;
    bool has_attention_factor;
    double attention_factor;
};

/* 0.1 ln(factor) + 1; 1 when factor <= 1. */
double rope_derived_magnitude(double factor);

/* out[dim/2]: theta^(-2i/dim), blended by the YaRN ramp when yarn is set; double, not rounded. */
void rope_inverse_frequencies(const struct rope_parameters *p, double *out);

/* sin and cos of x, |x| < 2^26, x a float32 value; error below 1e-16. */
void rope_sincos(double x, double *sine, double *cosine);

/* The table for positions 0 .. positions-1 (positions <= 2^24, so that float32 holds each exactly).
 * The rows lie in the arena. */
struct rope_table rope_table_new(struct arena *arena, const struct rope_parameters *p,
                                 int64_t positions, enum yarn_magnitude magnitude);

#endif
