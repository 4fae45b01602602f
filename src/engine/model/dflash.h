/* A DFlash block drafter (dflash.md): from hidden rows of its target and the last committed token
 * it proposes up to block - 1 tokens in one forward. It has no embedding and no head; it borrows
 * the target's, and works on the target's threads. Opened once and then immutable; what belongs to
 * one sequence is a dflash_state.
 *
 * Positions are the target's. A draft at position p (that of the bonus, whose row the target has
 * not run) takes the taps of positions below p, of which the last window - 1 matter; those that
 * were not needed yet are appended to the keys and values then, so that rounds without a draft cost
 * nothing but the copying of their taps. */
#ifndef MLXFAST_ENGINE_MODEL_DFLASH_H
#define MLXFAST_ENGINE_MODEL_DFLASH_H

#include "base/error.h"
#include "engine/compute/blocks.h"
#include "engine/model/dflash_config.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a drafter takes from its target; all of it outlives the drafter. */
struct dflash_target {
    struct compute *compute;
    const struct weight_matrix *embedding, *output; /* bf16 [vocab, hidden] */
    struct dflash_target_sizes sizes;
    int64_t context;
    int max_rows; /* rows of one target forward: how far the taps may be taken back */
    struct memory_request memory; /* the target's; nothing is announced again */
};
struct dflash_target dflash_target_of(struct model *m);

struct dflash;
/* Both layouts are read; embed_tokens.* and lm_head.* are passed over. Errors: CONFIG-INVALID,
 * INVENTORY-MISMATCH, MEMORY-INSUFFICIENT, OUT-OF-MEMORY, and the checkpoint's. */
bool dflash_open(const char *folder, const struct dflash_target *target, struct dflash **out,
                 struct error *err);
void dflash_close(struct dflash *d);
const struct dflash_config *dflash_get_config(const struct dflash *d);
enum dflash_layout dflash_get_layout(const struct dflash *d);
uint64_t dflash_weight_bytes(const struct dflash *d); /* its own, without what it borrows */

struct dflash_state;
bool dflash_state_new(struct dflash *d, struct dflash_state **out, struct error *err);
void dflash_state_free(struct dflash_state *s);
size_t dflash_state_bytes(const struct dflash_state *s); /* keys, values and taps */
/* Where the target's forwards put their taps, and for how many positions it has room. */
struct tap_rows *dflash_state_taps(struct dflash_state *s, int64_t *capacity);
/* Rows from this position on are not what they were; to be told of every step back. */
void dflash_state_rewind(struct dflash_state *s, int64_t position);
/* Can a block of `rows` be drafted at this position, when the taps from tapped_from on are held?
 * False only where the context or the drafter's own positions end, or a sequence was taken back
 * further than the taps reach. */
bool dflash_can_draft(const struct dflash_state *s, int64_t position, int64_t tapped_from,
                      int rows);
/* Takes the context rows that a draft at this position needs and that are not in its keys and
 * values yet, so that the draft itself does not pay for them: a prompt's belong to its prefill.
 * Where nothing can be drafted it does nothing. */
void dflash_take_context(struct dflash_state *s, int64_t position, int64_t tapped_from);
/* The same for `rows` positions that the target runs from this one on, if all before them are there
 * already. */
void dflash_take_rows(struct dflash_state *s, int64_t position, int rows, int64_t tapped_from);
/* Drafts: rows in 2 .. block; logits float32 [rows - 1, vocab] and picks [rows - 1], row i for
 * position + 1 + i. picks NULL, where compute_follows: nothing is waited for, dflash_drafted gives
 * them. */
bool dflash_draft(struct dflash_state *s, int64_t position, int64_t tapped_from, int32_t bonus,
                  int rows, float *logits, struct head_pick *picks, struct error *err);
void dflash_drafted(struct dflash_state *s, int rows, struct head_pick *picks);
/* The instance that drafts, for compute_forward's `drafted`. */
const struct compute *dflash_state_compute(const struct dflash_state *s);

#endif
