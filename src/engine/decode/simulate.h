/* Rounds whose outcome is decided beforehand: what drafting would cost and bring if the drafter
 * were right so often. Every draft and every verification is run; which drafts count as right is
 * taken from a fixed sequence, and those are replaced by what serial decoding gave. For timing
 * only, where a drafter's weights are made up: nothing that is judged, and nothing that gives
 * tokens out, calls this. */
#ifndef MLXFAST_ENGINE_DECODE_SIMULATE_H
#define MLXFAST_ENGINE_DECODE_SIMULATE_H

#include "base/error.h"
#include "engine/decode/session.h"

#include <stddef.h>
#include <stdint.h>

struct simulate_request {
    /* tokens[0] was given out but not fed yet (a round's first row), the others follow it as serial
     * decoding makes them. Rounds go on while a whole block of them is left. */
    const int32_t *tokens;
    size_t count;
    int block;         /* rows of a round; within session_block_limit */
    double acceptance; /* 0 .. 1: of a draft whose predecessors were accepted */
    size_t first;      /* number of the first round in the sequence: a run may go on */
    bool apart;        /* drafts are waited for, so that it shows what they take */
};

struct simulate_result {
    size_t rounds, tokens, accepted; /* tokens: a round gives its accepted drafts and one more */
    double seconds;
    double draft_seconds, verify_seconds; /* where `apart` */
};

/* Drafts of round number n that are accepted, 0 .. block - 1: at least i of them with probability
 * acceptance^i. The sequence is equidistributed, so that a short run has the mean of a long one. */
int simulate_accepted(size_t n, double acceptance, int block);

/* Errors: of session_draft and session_verify; ROWS-DIFFER where a row that is kept does not give
 * what serial decoding gave; DRAFT-IMPOSSIBLE; INTERRUPTED. */
bool simulate_rounds(struct session *s, const struct simulate_request *request,
                     struct simulate_result *result, struct error *err);

#endif
