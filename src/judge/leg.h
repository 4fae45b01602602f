/* One leg: one engine process on one golden, timed, and if wanted checked after that in the same
 * session; started and ended here. Local runs, both legs of a ranked pair, calibration and
 * comparisons are made of legs. Nothing is written. */
#ifndef MLXFAST_JUDGE_LEG_H
#define MLXFAST_JUDGE_LEG_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/gates.h"
#include "judge/measure.h"
#include "judge/sandbox.h"
#include "judge/score.h"

#include <stdbool.h>
#include <stdint.h>

struct leg_plan {
    const char *engine, *weights;
    const char *drafter;            /* folder; NULL: none */
    const char *const *resources;   /* NAME=PATH, NULL-terminated; may be NULL */
    const char *const *environment; /* NAME=VALUE for the worker alone; likewise */
    const struct sandbox_plan *sandbox;
    const char *yarn_magnitude; /* the contract's */
    const char *arithmetic;     /* its engine_arithmetic */
    bool withhold_text; /* hidden prompts: no error holds a word or number of the engine's */
    bool silent;        /* no progress, no engine log */

    bool untimed; /* correctness alone: the members of the window are not looked at */
    struct measure_oracle oracle;
    int64_t warmup_runs;          /* prefills before the timed one */
    int64_t rewarm_runs;          /* measure.h */
    const struct wire_spec *spec; /* NULL: serial */
    bool tolerant;                /* measure.h */
    const struct measure_watch *watch;

    const struct gates_plan *gates; /* after the timing; NULL: none */
};

/* What an engine says of itself: the hello's texts, clipped, without control bytes. */
struct leg_identity {
    int64_t protocol_version;
    const char *backend, *device, *arithmetic; /* NULL: not said */
    const char *runner_id, *runner_model_type, *runner_build, *runner_manifest_sha256;
    bool has_resident;
    int64_t resident_pid;
    uint64_t resident_load_epoch;
    const char *head_provenance_sha256;
};

struct leg_result {
    bool started; /* the engine said hello: identity is known */
    struct leg_identity identity;
    struct measure_result timing;
    bool gates_ran;
    struct gates_result gates; /* its texts are the golden's */
    double correctness_seconds;
    uint64_t peak_bytes, resident_bytes; /* of the engine; the second after the window */
};

/* False when the leg could not be measured, or its correctness could not be asked: err is the
 * client's, measure.h's or the watch's, and out holds what came before. Gates that fail are no
 * error: out->gates.passed tells. Texts and tokens are in the arena. Deadlines are those of the
 * environment (client.h). */
bool leg_run(const struct leg_plan *p, struct arena *a, struct leg_result *out, struct error *err);

/* The score's optional keys of a leg: the engine's identity, and how it speculated. */
void leg_seal_identity(const struct leg_identity *i, struct score_document *d);
void leg_seal_speculation(const struct measure_result *m, struct score_document *d);

#endif
