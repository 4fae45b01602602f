/* Made-up weights: the bytes of any part of a tensor from a key and a position, so that they do not
 * depend on how a file is cut into pieces, on the machine or on its instruction set.
 *
 * Scales are chosen so that a model of any depth stays in range: a linear layer keeps the RMS of a
 * normed input near 1, what is added to the stream has an RMS well below 1 (so that the stream's
 * grows like the square root of the depth), norms are near 1, logits have an RMS of 3. Rows of the
 * router are drawn alike, and its selection bias is small: every expert is as likely as another. */
#ifndef MLXFAST_ENGINE_TRANSFORM_SYNTH_FILL_H
#define MLXFAST_ENGINE_TRANSFORM_SYNTH_FILL_H

#include "engine/checkpoint/inventory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum synth_kind {
    SYNTH_BF16,  /* center +- spread, uniform */
    SYNTH_F32,   /* the same */
    SYNTH_CODES, /* E2M1: every code alike */
    SYNTH_SCALES /* E4M3: one of sixteen */
};

struct synth_recipe {
    enum synth_kind kind;
    uint64_t key; /* of the seed and the name */
    float center, spread;
    uint8_t scales[16];
};

/* What a tensor of a Laguna or of its drafter is filled with, by its name, dtype and shape. */
struct synth_recipe synth_recipe_of(const struct tensor_spec *t, uint64_t seed);

/* Codes, scales or biases of an affine INT8 projection. */
bool synth_is_affine(const struct tensor_spec *t);

enum { SYNTH_UNIT = 64 };
/* Bytes [first, first + count) of the tensor; first is a multiple of SYNTH_UNIT. */
void synth_fill(const struct synth_recipe *r, uint64_t first, uint8_t *out, size_t count);

#endif
