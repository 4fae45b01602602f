/* What a track's contract permits of the weights (dflash-track.md section 13): the one key of it
 * that a transform reads. The judge has a reader of its own and holds the result to it. */
#ifndef MLXFAST_ENGINE_TRANSFORM_ENVELOPE_H
#define MLXFAST_ENGINE_TRANSFORM_ENVELOPE_H

#include "base/error.h"

#include <stdbool.h>

struct quantization_envelope {
    bool attention_int8_group32; /* q, k, v, o and g as affine INT8 in groups of 32 */
};

/* A contract that declares no quantization_envelope permits nothing. Errors: IO, FILE-TOO-LARGE,
 * NOT-A-REGULAR-FILE, CONTRACT-INVALID, CONTRACT-UNKNOWN-KEY. */
bool envelope_read(const char *contract, struct quantization_envelope *out, struct error *err);

#endif
