/* Where a tolerance comes from (docs/calibration.md): honest engines and cheats run the same
 * goldens with nothing enforced but the shape of their answers, a reference walks each one's own
 * chain, and what they differ by is measured. A tolerance separates when the largest honest drift
 * lies below what every cheat shows in each run. */
#ifndef MLXFAST_JUDGE_CALIBRATE_FIDELITY_H
#define MLXFAST_JUDGE_CALIBRATE_FIDELITY_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/dflash_golden.h"
#include "judge/fidelity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of readouts against the reference's: the largest difference of a logit, the largest of
 * |a - b| / max(|a|, |b|), and the mean of the first. */
struct calibration_drift {
    int64_t rows;
    double absolute, relative, mean;
};
/* One run of one engine. */
struct calibration_run {
    char refused[64]; /* name of the error that ended it; "": it ran to its end */
    char message[256];
    int64_t tokens;
    struct calibration_drift emitted, rejected;
    double near_tie_gap; /* largest: the reference's first logit less that of the token given */
    double flat_gap; /* largest gap of the reference's two logits in a rejected row whose first id
                        is another: what counts as flat must reach so far */
    int64_t other_tokens; /* tokens that are not the reference's first */
    int64_t
        unbound_rows; /* tokens that are not their own readout's first: no tolerance admits it */
    int64_t accepted, drafted;
};
/* Pure: what the references say of a finished run. False when they hold no logit for a token given
 * (ReferenceInvalid). */
bool calibration_measure(const struct fidelity_run *run,
                         const struct fidelity_reference_round *references,
                         struct calibration_run *out, struct error *err);

enum calibration_kind { CALIBRATION_HONEST, CALIBRATION_CHEAT };
struct calibration_engine {
    enum calibration_kind kind;
    const char *name;        /* as shown */
    const char *engine;      /* program */
    const char *weights;     /* folder */
    const char *environment; /* NAME=VALUE for its worker; NULL: nothing */
    struct calibration_run *runs;
};

/* What is looked at: a readout's largest difference, its largest relative one, a token's distance
 * from the reference's first or a flat row's gap, the mean difference of the emitted rows. */
enum calibration_quantity {
    CALIBRATION_ABSOLUTE,
    CALIBRATION_RELATIVE,
    CALIBRATION_NEAR_TIE,
    CALIBRATION_MEAN,
    CALIBRATION_QUANTITIES
};
const char *calibration_quantity_name(enum calibration_quantity q); /* "absolute" */
double calibration_of(const struct calibration_run *r, enum calibration_quantity q);
/* Over an engine's runs that ended: the largest, and the smallest (what a run shows at least). */
struct calibration_range {
    bool any;
    double least, most;
};
struct calibration_range calibration_range_of(const struct calibration_engine *e, size_t runs,
                                              enum calibration_quantity q);

struct calibration_verdict {
    double honest;                            /* largest of the honest engines */
    const struct calibration_engine *nearest; /* the cheat that shows least, NULL: none ran */
    double cheat;                             /* its least */
    bool separates;                           /* honest < cheat */
    /* The nearest cheat above the honest drift, and the middle between the two: what is below it is
     * missed. NULL: no cheat is above. */
    const struct calibration_engine *caught;
    double caught_at, tolerance;
};
struct calibration_verdict calibration_judge(const struct calibration_engine *engines, size_t count,
                                             size_t runs, enum calibration_quantity q);

struct calibration_plan {
    const char *reference, *weights, *drafter; /* the organiser's */
    struct dflash_golden *const *goldens;
    size_t golden_count;
    int64_t tokens, vocab_size;
    int block_size;
    uint64_t schedule_seed;
    double run_ceiling_seconds;   /* per token */
    struct client_options client; /* deadlines; the rest is filled in */
    bool quiet;
};
/* Runs one engine over every golden: a fresh engine and a fresh reference each, without a sandbox.
 * What the engine does is in runs; false is the organiser's trouble only: a reference that fails,
 * an interruption. */
bool calibration_run_engine(const struct calibration_plan *plan, struct calibration_engine *e,
                            struct error *err);
/* "NAME=VALUE" with a NAME that may pass to a worker, or MLXFAST_CPU, which is handed on as
 * BENCH_WORKER_CPU. Error USAGE. */
bool calibration_environment_valid(const char *text, struct error *err);

#endif
