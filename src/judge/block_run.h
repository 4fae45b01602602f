/* One leg of a block decoder (docs/dflash.md): warm, begin, rounds of the judge's widths until the
 * configured number of tokens is committed, the worker's own counters at the end. The judge's clock
 * runs from just before the seed was sent to the last byte of the answer that commits the last
 * token; nothing that the worker reports is a time. */
#ifndef MLXFAST_JUDGE_BLOCK_RUN_H
#define MLXFAST_JUDGE_BLOCK_RUN_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/fidelity.h"
#include "judge/measure.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a schedule: 2, or 1 for the serial control, whose widest is 1. */
int block_run_narrowest(int widest);

struct block_run_plan {
    const int64_t *seed;
    size_t seed_count;
    int64_t seed_token; /* the golden's */
    int64_t tokens;     /* configured: 1 or more */
    int block_size;     /* widest width, 1..FIDELITY_BLOCK_MOST */
    uint64_t schedule_seed;
    const struct fidelity_limits *limits;
    double run_ceiling_seconds; /* per token */
    const struct measure_watch
        *watch;          /* of the phase "block-decode", the engine warm; NULL: nobody */
    int64_t rewarm_runs; /* dflash_decode_warm between watch->before and the clock */
    bool quiet;
};

struct block_run_result {
    struct fidelity_run run; /* in the arena; the seed is the plan's */
    double decode_seconds;   /* seed and rounds, on the judge's clock */
};

/* The client was started with block_protocol. A broken rule of an answer is fidelity.h's error, a
 * wrong seed token decode_seed_token_mismatch; both discard the session, as its own errors do. */
bool block_run(struct client *c, const struct block_run_plan *plan, struct arena *a,
               struct block_run_result *out, struct error *err);

#endif
