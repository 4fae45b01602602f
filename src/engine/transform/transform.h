/* `mlxfast transform`: a Laguna checkpoint as an engine is to load it (dflash-track.md section 14).
 * Kept are the tensors of text: model.* and lm_head.*, but for rotary_emb.inv_freq; a shard of
 * which all are kept is cloned, to the byte. config.json and the index are written anew, in one
 * form. With int8_attention the bf16 projections of attention (q, k, v, o, g) whose inputs are
 * whole groups of 32 become affine INT8, as mlx quantises them. No time and no place goes into the
 * files: the same source and options give the same bytes. Streams; memory does not grow with the
 * weights. */
#ifndef MLXFAST_ENGINE_TRANSFORM_TRANSFORM_H
#define MLXFAST_ENGINE_TRANSFORM_TRANSFORM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct transform_options {
    const char *source, *out; /* folders; nothing may stand at out */
    const char *placed_at;    /* where the result will lie; NULL: at out */
    const char *contract;     /* what permits int8_attention; NULL: nothing does */
    const char *max_bytes;    /* as weights_cap_read */
    bool int8_attention;
    bool quiet;
    /* Not NULL: the result is shown to it where it was made and then removed, nothing comes to
     * stand at out. False: an error, which it set. */
    bool (*inspect)(void *context, const char *folder, struct error *err);
    void *context;
};

struct transform_result {
    size_t tensors, shards, files;       /* of out; files: all of them */
    size_t quantized, kept, int8_before; /* projections: made INT8, left bf16, INT8 in the source */
    size_t cloned;                       /* shards that are their source's, to the byte */
    size_t dropped;                      /* tensors that are not of text */
    uint64_t dropped_bytes;
    size_t experts; /* tensors that stay in the source's shards */
    uint64_t expert_bytes;
    uint64_t source_bytes, bytes;   /* of tensors */
    uint64_t file_bytes, max_bytes; /* of the files that count; UINT64_MAX: no limit */
    uint64_t source_bytes_per_token, bytes_per_token; /* weights that one decoded token reads */
    double relative_error; /* sqrt(sum (w' - w)^2 / sum w^2) of what was made INT8 */
    double seconds;
};

/* Errors: USAGE (max_bytes), QUANTIZATION-NOT-PERMITTED (the contract, or none), those of
 * envelope_read and checkpoint_open, UNKNOWN-MODEL-TYPE, CONFIG-INVALID, INVENTORY-MISMATCH,
 * WEIGHTS-NOT-FINITE (tensor), WEIGHTS-TOO-LARGE, OUT-EXISTS, NO-SPACE, SOURCE-CHANGED,
 * INTERRUPTED, IO. After an error nothing stands at out. */
bool transform(const struct transform_options *o, struct transform_result *result,
               struct error *err);

/* The files of a result that a digest of weights passes over (sealing-and-digests.md section 4). */
bool transform_is_unsealed(const char *name);

/* 64 digits: of the sources that make the result, told by the build (docs/transform.md). */
extern const char transform_source_sha256[];

#endif
