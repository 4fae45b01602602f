/* The reference walks a candidate's own chain (dflash-track.md section 7): one continuous width-1
 * cache, frames of other widths beside it, and each block as the candidate ran it. A reference is a
 * worker of the organiser's: whatever goes wrong here is the judge's trouble, never a violation.
 *
 * Errors: ReferenceInvalid (an answer lacks a row, has another shape, or contradicts itself or the
 * question), ReferenceFailed (the worker cannot be started, dies, refuses, or breaks the protocol;
 * the message goes on with the client's name), Interrupted. */
#ifndef MLXFAST_JUDGE_FIDELITY_REPLAY_H
#define MLXFAST_JUDGE_FIDELITY_REPLAY_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/fidelity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* client_start for a reference: the options' trusted and block_protocol are set, its errors and
 * those of a worker without dflash_reference are ReferenceFailed. */
bool replay_start(const struct client_options *o, struct client **out, struct error *err);

/* client_call under the reference's names. */
bool replay_call(struct client *c, struct wire_request *q, const struct wire_response **reply,
                 struct error *err);

/* A chain being walked. prefix grows: the seed, its token, then every token given out. */
struct replay {
    struct client *client;
    int64_t vocab_size;
    int64_t *prefix;
    size_t seed_count, walked; /* prefix holds seed_count + 1 + walked tokens */
    int64_t seed_token;        /* the reference's own */
};
/* Prefills the seed; most is the number of rows that will be walked at most. The prefix is in the
 * arena. */
bool replay_begin(struct client *c, const int64_t *seed, size_t seed_count, size_t most,
                  int64_t vocab_size, struct arena *a, struct replay *out, struct error *err);
/* Rows that follow, with the tokens given out for them. verify (may be NULL) is a block as it was
 * run: its first token is the last of the prefix. */
struct replay_question {
    const int64_t *given;
    int count;
    int width;             /* of the declared frame */
    const int64_t *verify; /* [verify_count] */
    int verify_count;
};
struct replay_answer {
    struct fidelity_reference_round round;
    int width_count;
    int64_t widths[2];
    const int64_t *frame_argmax[2]; /* [count] for each width */
};
/* Everything that it makes is in the arena. */
bool replay_rows(struct replay *r, const struct replay_question *q, struct arena *a,
                 struct replay_answer *out, struct error *err);

/* A whole finished run, round after round: out[run->round_count], in the arena. */
bool replay_run(struct client *c, const struct fidelity_run *run, int64_t vocab_size, bool quiet,
                struct arena *a, struct fidelity_reference_round **out, struct error *err);

#endif
