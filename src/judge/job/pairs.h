/* The loop of pairs: a serial leg of the baseline's tree and a leg of the candidate's, in turns the
 * one first and the other (benchd-cli.md section 4). What a leg is comes in as a function. */
#ifndef MLXFAST_JUDGE_JOB_PAIRS_H
#define MLXFAST_JUDGE_JOB_PAIRS_H

#include "base/arena.h"
#include "judge/job/score.h"
#include "wire/wire.h"

#include <jansson.h>

enum { JOB_LEG_ATTEMPTS = 2, JOB_LOCAL_PAIR_BUDGET = 4 };

enum job_role { JOB_SERIAL, JOB_CANDIDATE };

struct job_leg {
    struct job_windows windows;
    double decode_seconds_per_token;
    const char *gate_state; /* of the temperature gate before it: fired, waited, ... */
    const char *spec_mode;  /* what it ran: "serial", ... */
    int64_t spec_depth;     /* 0: serial, or not said */
    struct wire_u32s acceptance_lengths;
    json_t
        *cohort; /* near ties and attestation of a cohort's leg; NULL: none. Owned by the pairs */
};

/* A unit is what a pair is of: one prompt, or one cohort. */
struct job_pair {
    size_t unit;
    bool serial_first;
    struct job_leg serial, candidate;
    bool certified; /* both legs' windows; else they were not asked for */
};
struct job_rejection {
    size_t unit;
    bool serial_first;
    enum job_role role;
    const char *class, *text; /* the refusal's name, or prefill-window-uncertified */
};

struct job_pairs_plan {
    size_t units, min_pairs, target_pairs; /* the last two of each unit; min <= target */
    bool local_dev;       /* a failed pair is tried again, up to four times the target */
    bool certify_windows; /* the contract's prefill exponent is not 0 */
    void *context;
    /* An exactness probe, or nothing, before the pair-th pair (from 0) of a unit. NULL: none. Its
     * failure is the candidate's. */
    bool (*before_pair)(void *context, size_t unit, size_t pair, struct error *err);
    bool (*run_leg)(void *context, size_t unit, size_t pair, enum job_role role,
                    struct job_leg *out, struct error *err);
};

struct job_pairs {
    struct job_pair *accepted; /* by unit, then in time */
    size_t accepted_count, accepted_room;
    struct job_rejection *rejected;
    size_t rejected_count, rejected_room;
};

enum job_end {
    JOB_END_DONE,      /* every unit has its pairs */
    JOB_END_CANDIDATE, /* the candidate is rejected */
    JOB_END_BASELINE,  /* the serial leg could not be had */
    JOB_END_MACHINE,   /* the machine was not quiet, or the run was interrupted */
};
/* Texts in the arena. err: why it did not end well. PAIRS-TOO-FEW: local runs only, a unit has
 * fewer pairs than min_pairs. */
enum job_end job_pairs_run(const struct job_pairs_plan *p, struct arena *a, struct job_pairs *out,
                           struct error *err);
void job_pairs_free(struct job_pairs *p);

struct job_times job_pair_times(const struct job_pair *p);
/* Whether a leg that failed so may be run once more: the process or the machine failed, nobody's
 * tokens were judged. */
bool job_may_retry(const char *name);

#endif
