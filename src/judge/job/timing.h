/* One leg of the older flow: an engine process of its own, warmed up, timed in one of three ways,
 * its tokens checked. And what else is asked of engines there: the exactness probe, and which of
 * the ways an engine can be timed in. */
#ifndef MLXFAST_JUDGE_JOB_TIMING_H
#define MLXFAST_JUDGE_JOB_TIMING_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/job/inputs.h"
#include "judge/job/pairs.h"
#include "judge/quiet/quiet.h"
#include "judge/sandbox.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* How a decode window is timed. Two numbers compare only where their tags are equal. */
enum job_series { JOB_TEACHER_FORCED, JOB_FREE_RUN, JOB_COHORT_RUN };
const char *job_series_tag(enum job_series s);    /* "free_run_v1_1" */
const char *job_series_regime(enum job_series s); /* "free-run-v1_1-timed" */

enum { JOB_FREE_RUN_TOKENS = 128, JOB_TEACHER_FORCED_TOKENS = 512, JOB_PROBE_TOKENS = 128 };

struct job_engine {
    const char *engine, *weights;
    const char *drafter;          /* folder; NULL: none */
    const char *const *resources; /* NAME=PATH, NULL-terminated; may be NULL */
    const struct wire_spec *spec; /* sent on timed decode windows; NULL: none */
    const struct sandbox_plan *sandbox;
    const char *yarn_magnitude; /* the contract's */
    const char *arithmetic;     /* its engine_arithmetic */
    bool withhold_text, silent;
};

struct job_leg_plan {
    const struct job_engine *engine;
    const struct job_engine *reference; /* replays a cohort: a trusted worker of the baseline */
    enum job_series series;
    int64_t steps;                           /* tokens after each seed's */
    const struct job_prompt *const *members; /* one, or a cohort's in slot order */
    size_t streams;
    struct quiet *quiet; /* NULL: no gates */
    struct quiet_point at;
};
/* Errors: the client's; TokenMismatch; GOLDEN-INVALID, TAPE-INVALID; the gates'. Of a cohort:
 * cohort.h's, and TIMED-REPLAY-FAILED, the reference could not say. Texts are in the arena,
 * out->cohort is the caller's. */
bool job_leg_run(const struct job_leg_plan *p, struct arena *a, struct job_leg *out,
                 struct error *err);

/* Whether it advertises free_run_decode when it may be timed. Errors: the client's. */
bool job_engine_can_free_run(const struct job_engine *e, bool *out, struct error *err);

/* The strict worker, without speculation, fed the golden's tokens one by one: each of its own must
 * be the golden's. Error EXACTNESS-PROBE-FAILED, or the client's. */
bool job_probe_exactness(const struct job_engine *e, const struct job_prompt *p, int64_t steps,
                         struct error *err);

#endif
