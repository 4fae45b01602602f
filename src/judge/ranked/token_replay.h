/* The replay of what a candidate said otherwise than the golden: one reference worker, fed the same
 * tokens one by one, untimed, says which of them it would have said itself (contract-and-scoring.md
 * section 5). */
#ifndef MLXFAST_JUDGE_RANKED_TOKEN_REPLAY_H
#define MLXFAST_JUDGE_RANKED_TOKEN_REPLAY_H

#include "base/error.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/golden.h"
#include "judge/ranked/combine.h"

#include <stdbool.h>
#include <stdint.h>

/* A candidate's decode window. */
struct replay_window {
    struct golden_tokens seed;
    int64_t seed_token;    /* what it said after the seed, */
    const int64_t *tokens; /* and then: [steps] */
    int64_t steps;
};

/* ---- the judgement, apart from the worker ---- */

/* One position: what was said, and the reference's answer to the same prefix. */
void token_replay_begin(struct pair_tokens *t);
void token_replay_position(struct pair_tokens *t, const struct contract *c, int64_t step,
                           int64_t said, int64_t argmax, const struct wire_top_logits *top);
/* positions of them were judged. Errors: TIMED-DIVERGENCE-NOT-A-NEAR-TIE (the contract declares a
 * near-tie gap, and a mismatch is not the reference's second choice within it), then
 * TIMED-DIVERGENCE-OVER-TOLERANCE. */
bool token_replay_end(const struct pair_tokens *t, const struct contract *c, int64_t positions,
                      struct error *err);

/* ---- the worker ---- */

/* Replays one window in a started session of a trusted worker and closes its interval. The errors
 * above, and TIMED-REPLAY-FAILED: the worker cannot say. */
bool token_replay_window(struct client *reference, const struct contract *c,
                         const struct replay_window *w, struct pair_tokens *out, struct error *err);

#endif
