/* `mlxfast transform`: a Laguna checkpoint as an engine is to load it. What is not asked for stays
 * as it is, to the byte; with int8_attention the bf16 projections of attention (q, k, v, o, g)
 * whose inputs are whole groups of 32 become affine INT8, as mlx quantises them. No time and no
 * place goes into the files: the same source and options give the same bytes. */
#ifndef MLXFAST_ENGINE_TRANSFORM_TRANSFORM_H
#define MLXFAST_ENGINE_TRANSFORM_TRANSFORM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct transform_options {
    const char *source, *out; /* folders; nothing may stand at out */
    const char *contract;     /* what permits int8_attention; NULL: nothing does */
    bool int8_attention;
    bool quiet;
};

struct transform_result {
    size_t tensors, shards, files;       /* of out; files: all of them */
    size_t quantized, kept, int8_before; /* projections: made INT8, left bf16, INT8 in the source */
    uint64_t source_bytes, bytes;        /* of tensors */
    uint64_t source_bytes_per_token, bytes_per_token; /* weights that one decoded token reads */
    double relative_error; /* sqrt(sum (w' - w)^2 / sum w^2) of what was made INT8 */
    double seconds;
};

/* Errors: QUANTIZATION-NOT-PERMITTED (the contract, or none), those of envelope_read and
 * checkpoint_open, UNKNOWN-MODEL-TYPE, CONFIG-INVALID, INVENTORY-MISMATCH, WEIGHTS-NOT-FINITE
 * (tensor), OUT-EXISTS, NO-SPACE, INTERRUPTED, IO. After an error nothing stands at out. */
bool transform(const struct transform_options *o, struct transform_result *result,
               struct error *err);

#endif
