/* Serial legs of the organiser's tree on its goldens: what `benchd calibrate-baseline` and `benchd
 * measure-noop` are made of. Each leg is an engine of its own, as the control leg of a ranked run
 * is: same tree, same warm-ups, same gates, its own resident where the tree has one. */
#ifndef MLXFAST_JUDGE_RANKED_REFERENCE_H
#define MLXFAST_JUDGE_RANKED_REFERENCE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/golden.h"
#include "judge/leg.h"
#include "judge/quiet/quiet.h"
#include "judge/ranked/roots.h"

#include <stdbool.h>
#include <stddef.h>

struct reference_options {
    const char *workspace;        /* NULL: MLXFAST_BASELINE_WORKSPACE */
    const char *engine, *weights; /* below it; NULL: "weights" */
    const char *contract;
    const char *track; /* must be the contract's; NULL: not asked */
    const char *const *goldens, *const *prompts;
    size_t golden_count, prompt_count;           /* no prompts: the goldens' own names */
    const char *const *resources, *const *trees; /* NULL-terminated, or NULL */
    bool no_sandbox, no_cool_gate, silent;
};

struct reference_golden {
    const char *prompt;
    struct golden *golden;
    struct measure_oracle oracle;
};

struct reference {
    const struct reference_options *o;
    struct arena arena;
    struct contract *contract;
    struct leg_roots roots;
    struct reference_golden *goldens; /* as many as the options have */
    struct sandbox_plan sandbox;      /* without a resident */
    struct quiet *quiet;
    bool cuda, has_residents;
    struct tree_digest weights;
    char weights_stamp[SHA256_HEX], engine_stamp[SHA256_HEX];
    bool has_last;
    struct leg_identity last; /* of the leg before */
};

/* The contract, the options against it, the prompts' names: what fails here is misuse. */
bool reference_open(struct reference *r, const struct reference_options *o, struct error *err);
/* Trees, goldens, sandbox, the readers of the gates. */
bool reference_prepare(struct reference *r, struct error *err);

struct reference_times {
    double prefill_seconds_per_token, decode_seconds_per_token;
};
/* One leg on the golden of that index; at: pair and leg of its gates (the phase is the leg's).
 * Errors: the leg's, the gates', the resident's, and CALIBRATION-SPEC-ARMED: the engine speculated.
 */
bool reference_leg(struct reference *r, size_t golden, const struct quiet_point *at,
                   struct reference_times *out, struct error *err);

/* The tree is still the one that was opened. Errors WEIGHTS-CHANGED, ENGINE-CHANGED. */
bool reference_check_unchanged(const struct reference *r, struct error *err);
void reference_close(struct reference *r);

#endif
