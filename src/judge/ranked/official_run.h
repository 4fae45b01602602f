/* The ranked run's own state, shared by the files official*.c and by nobody else. */
#ifndef MLXFAST_JUDGE_RANKED_OFFICIAL_RUN_H
#define MLXFAST_JUDGE_RANKED_OFFICIAL_RUN_H

#include "base/sha256.h"
#include "judge/digest.h"
#include "judge/gates.h"
#include "judge/golden.h"
#include "judge/leg.h"
#include "judge/quiet/quiet.h"
#include "judge/ranked/calibration.h"
#include "judge/ranked/combine.h"
#include "judge/ranked/official.h"
#include "judge/ranked/pairs.h"
#include "judge/ranked/roots.h"
#include "judge/run.h"

/* A golden with its control leg's oracle. */
struct official_prompt {
    struct golden *golden, *control; /* control: the same one where no other is given */
    struct measure_oracle oracle, control_oracle;
    const char *name;                            /* in the calibration */
    const struct calibration_prompt *calibrated; /* NULL: gates-only */
};

/* One tree of the run, and what it was before the first leg. */
struct official_tree {
    const char *workspace, *engine, *weights; /* weights and engine: paths to use */
    char weights_stamp[SHA256_HEX], engine_stamp[SHA256_HEX];
};

struct official {
    const struct official_options *o;
    struct arena arena;
    struct contract *contract;
    bool gates_only, drawn; /* drawn: the prompt is hidden, and named nowhere */
    struct wire_spec spec;
    struct paired_rule rule;

    struct official_prompt *prompts;
    size_t prompt_count;
    const char **prompt_sha256; /* [prompt_count] */
    const char **hidden;        /* files that no engine may see, NULL-terminated */
    const char *calibration_path;
    struct calibration *calibration;
    char calibration_sha256[SHA256_HEX];
    const char *box;
    struct official_tree candidate, reference;
    struct tree_digest weights;
    bool has_weights, residents;
    const char *sandbox_seal; /* of the candidate's legs; NULL: none was planned */

    struct quiet *quiet;
    struct quiet_point at; /* of the leg under way */
    /* Why the last leg failed: the machine was not fit to be timed on, or its engine. */
    bool machine_refused, engine_failed;
    int64_t started_ns;
    double preflight_seconds;
    struct ranked_runs runs;
    struct leg_result *candidates; /* [pair], the candidate's legs of the pairs proper */
    size_t candidate_count;
    struct leg_identity last_resident; /* of the leg before, where there are residents */
    bool has_last_resident;
    struct calibration_tally tally;
    bool outside_band; /* too many control legs, or the scored pair's */
    struct combined combined;
    struct leg_result correctness; /* gates alone */
    struct gates_latency latency;
    struct semantic_judge semantic;
    uint64_t peak_bytes, resident_bytes; /* of the candidate, the most of all legs */
    double timed_seconds;
    struct score_document score;
};

/* official_open.c: contract, goldens, trees. The first is what a refusal (no score file) answers;
 * the second fails into a sealed score. */
bool official_open(struct official *r, struct error *err);
bool official_prepare(struct official *r, struct error *err);
void official_close(struct official *r);
bool official_is_local_iterate(const struct official *r); /* which integrity file is written */

/* official_leg.c: legs of the pairs (ranked_measure), the replay, and correctness. */
bool official_measure(void *context, const struct ranked_slot *slot, struct pair_times *out,
                      struct error *err);
/* The control leg of the pair whose figures are the score's is inside its band. */
bool official_check_enforced(struct official *r, struct error *err);
bool official_replay(struct official *r, struct error *err);
bool official_check_correctness(struct official *r, struct error *err);
/* The trees are what they were. */
bool official_check_unchanged(struct official *r, struct error *err);

/* official_seal.c */
/* Whose failure it is, by its name (docs/ranked-run.md, "How it ends"): ITERATE_NOT_PASSED,
 * ITERATE_CALIBRATION or ITERATE_DECLINED. */
enum iterate_exit official_blame(const char *name);
void official_fill(struct official *r, bool ran, const struct error *why);
bool official_seal(struct official *r, struct error *err);
/* Where a key is named: the statement about what was sealed, passed or not, and its entry in the
 * log. True as well when there is nothing to do. */
bool official_sign(struct official *r, struct error *err);
void official_show(const struct official *r);

#endif
