/* The loop of the ranked run of block decoding: pairs of a serial control leg and a block leg, in
 * alternating order; null pairs, two control legs, between them; which of them count, which are
 * measured again, and when there are enough (dflash-track.md section 2, docs/ranked-blocks.md).
 * Legs are measured and judged by functions, so that the loop knows no engine and no clock. */
#ifndef MLXFAST_JUDGE_BLOCKS_LOOP_H
#define MLXFAST_JUDGE_BLOCKS_LOOP_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/block_pairs.h"
#include "judge/block_score.h"
#include "judge/contract.h"
#include "judge/stats/paired.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum blocks_role { BLOCKS_CONTROL, BLOCKS_CANDIDATE, BLOCKS_NULL_A, BLOCKS_NULL_B };
const char *blocks_role_name(enum blocks_role role); /* control, candidate, null-a, null-b */

/* One leg that is to be measured. */
struct blocks_slot {
    enum blocks_role role;
    int pair;    /* 1-based, of its kind */
    int attempt; /* 1-based, of its pair */
};

/* What a leg came to. The machine's trouble is told by the two flags and is no error. */
struct blocks_leg {
    bool temperature_held;                  /* its gate opened in time; else the leg was not run */
    bool telemetry_holds;                   /* clocks were read, and show no throttling */
    bool measured;                          /* it ran to its end: what is below is known */
    double median_request, longest_request; /* seconds, of its rounds */
    bool stalled;                           /* the guardrail */
    struct block_report report;             /* times at once; counts once it was judged */
    void *record;                           /* the measurer's own: what it judges */
};

struct blocks_doors {
    void *context;
    /* Times one leg, gates before it and telemetry with it. False ends the run. */
    bool (*measure)(void *context, const struct blocks_slot *slot, struct blocks_leg *out,
                    struct error *err);
    /* Holds a leg that was measured against the reference, after both legs of its pair were timed;
     * one that will not count too. False, a violation or the reference's own trouble, ends the run.
     */
    bool (*judge)(void *context, const struct blocks_slot *slot, struct blocks_leg *leg,
                  struct error *err);
    /* Told of every attempt when it is decided; NULL: nobody. */
    void (*decided)(void *context, const struct blocks_slot *slot, enum block_rejection why,
                    bool again);
};

/* One attempt at a pair: for the record, whether it counts or not. */
struct blocks_attempt {
    int pair, attempt;
    bool null_pair;     /* control is null-a, candidate null-b */
    bool control_first; /* true of every null pair */
    struct blocks_leg control, candidate;
    enum block_rejection rejection; /* BLOCK_REJECTION_COUNT: it counts */
    bool unfinished;                /* the run ended in it: there is no verdict */
};

struct blocks_runs {
    struct blocks_attempt *attempts; /* in the order of the run */
    size_t count;
    struct block_report *control, *candidate; /* [accepted], in order */
    size_t accepted, null_accepted;
    size_t rejected[BLOCK_REJECTION_COUNT]; /* attempts, of pairs and null pairs */
    enum paired_next stopped;
    bool has_statistics;                            /* from one accepted pair on */
    struct paired_estimate estimate, null_estimate; /* null_estimate.count 0: none */
    enum blocks_role failed;                        /* on false: the leg in which the run ended */
};

/* The rule of a block track: the contract's group "statistics", target_pairs of it at least, on the
 * axis of decoding. */
struct paired_rule blocks_rule(const struct contract *c);

/* target_pairs pairs with the null pairs behind the first of them; then, where the rule allows it,
 * more, up to max_pairs, until the interval of those that count is narrow enough: only its width is
 * looked at. A pair that is rejected is measured again where the class has not had its retry in
 * this run (block_retry_take; null pairs have retries of their own), and else is left out. On false
 * out holds what came before. Everything is in the arena. */
bool blocks_loop_run(const struct contract *c, const struct paired_rule *rule,
                     const struct blocks_doors *doors, struct arena *a, struct blocks_runs *out,
                     struct error *err);

/* Whether there is a score in it. False, with the classes that were met and how often: too few
 * pairs count, or no null pair does. SERIAL-CONTROL-LEG-OUTSIDE-BAND where the calibration's band
 * was among them (nothing is scored on a machine that is not the calibrated one), else
 * BLOCK-PAIRS-REJECTED. */
bool blocks_loop_suffices(const struct contract *c, const struct blocks_runs *runs,
                          struct error *err);

#endif
