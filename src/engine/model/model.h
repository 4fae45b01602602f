/* Model families: how a checkpoint's model_type becomes something that can be run.
 *
 * A model is opened once (weights mapped, checked, bound by name) and is then immutable; all state
 * of a request lives in a session (engine/decode/session.h). */
#ifndef MLXFAST_ENGINE_MODEL_MODEL_H
#define MLXFAST_ENGINE_MODEL_MODEL_H

#include "base/error.h"
#include "engine/compute/blocks.h"
#include "engine/memory/startup.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum yarn_magnitude { YARN_ATTENTION_FACTOR, YARN_DERIVED }; /* laguna.md section 5.3 */

struct model_options {
    struct compute_options compute;
    enum yarn_magnitude yarn_magnitude;
    int64_t context; /* positions to serve; 0: min(config maximum, 8192) */
    int max_rows;    /* rows of one forward; 0: 256, 64 in the low memory profile */
    struct memory_request memory;
};

struct model; /* opaque: the checkpoint, the bound weights, the backend */

/* Sizes of an opened model that callers need. */
struct model_info {
    const char *family, *model_type;
    int vocab, hidden, layers;
    int window; /* the widest sliding window; 0: no layer slides */
    int64_t context;
    int max_rows;
    enum memory_profile memory; /* full or low: as it was chosen */
    int32_t eos[16]; /* stop set: config's eos_token_id (one or several), generation_config's too */
    int eos_count;
    int32_t bos;              /* -1: none */
    uint64_t weight_bytes;    /* tensor bytes */
    uint64_t bytes_per_token; /* weight bytes that decoding one token reads (KV excluded) */
    const char
        *choices; /* what was chosen at load, one line: "yarn magnitude 1 (attention_factor)" */
};

/* Errors: UNKNOWN-MODEL-TYPE, CONFIG-INVALID, INVENTORY-MISMATCH, MEMORY-INSUFFICIENT (before
 * anything is loaded), INTERRUPTED while weights are copied, and the checkpoint's. */
bool model_open(const char *folder, const struct model_options *options, struct model **out,
                struct error *err);
void model_close(struct model *m);
const struct model_info *model_get_info(const struct model *m);
struct compute *model_compute(struct model *m);
struct checkpoint; /* engine/checkpoint/checkpoint.h */
const struct checkpoint *model_checkpoint(const struct model *m);
/* As it was asked for; low where low was chosen. */
const struct memory_request *model_memory(const struct model *m);
int model_experts(const struct model *m); /* the most routed experts of a layer; 0: none */
/* What a drafter borrows: bf16 [vocab, hidden] each. */
const struct weight_matrix *model_embedding(const struct model *m);
const struct weight_matrix *model_output(const struct model *m);

/* The state of one sequence: a KV layer per attention layer. position = rows written. */
struct model_state;
bool model_state_new(struct model *m, struct model_state **out, struct error *err);
void model_state_free(struct model_state *s);
/* Moves the position back (or to 0); rows beyond it are forgotten. n within what the ring keeps. */
void model_state_rewind(struct model_state *s, int64_t position);
int64_t model_state_position(const struct model_state *s);
size_t model_state_bytes(const struct model_state *s);

/* From now on each forward keeps the stream after the layers taps[0..count) (zero-based) in rows,
 * which holds `capacity` positions. All stay the caller's and outlive the state. */
void model_state_tap(struct model_state *s, struct tap_rows *rows, const int *taps, int count,
                     int64_t capacity);
/* The oldest position whose taps are still held; all from there to the position are. The position
 * itself when there are none. */
int64_t model_state_tapped_from(const struct model_state *s);

/* Runs ids[0..rows) at the state's position (rows <= max_rows, all ids in the vocabulary, position
 * + rows <= context: CONTEXT-EXCEEDED otherwise) and advances it. The last `logit_rows` rows'
 * logits go to logits [logit_rows, vocab] and the largest two of each to picks [logit_rows] (may be
 * NULL); 0 skips the head. logits may be NULL where the backend keeps them (compute_keeps_logits).
 * Error CUDA-FAILED: nothing works any more. */
bool model_forward(struct model *m, struct model_state *s, const int32_t *ids, int rows,
                   int logit_rows, float *logits, struct head_pick *picks, struct error *err);
/* The same in two steps: what it runs is on its way after the first, and has ended and moved the
 * state after the second. drafted: compute_forward's, where ids of rows behind the first may be -1;
 * or NULL. */
bool model_forward_run(struct model *m, struct model_state *s, const int32_t *ids, int rows,
                       int logit_rows, float *logits, struct head_pick *picks,
                       const struct compute *drafted, struct error *err);
bool model_forward_end(struct model *m, struct model_state *s, int rows, struct error *err);

#endif
