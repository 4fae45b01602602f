/* results.json of a job (sealing-and-digests.md section 3): what its pairs add up to, and the
 * document. docs/older-flow.md has the whole list of fields. */
#ifndef MLXFAST_JUDGE_JOB_RESULTS_H
#define MLXFAST_JUDGE_JOB_RESULTS_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/contract.h"
#include "judge/job/inputs.h"
#include "judge/job/pairs.h"
#include "judge/job/timing.h"

#include <jansson.h>
#include <stdbool.h>

#define JOB_RESULTS_NAME "results.json"
#define JOB_INTEGRITY_NAME "benchmark-integrity.results.json"

/* What one prompt's or cohort's accepted pairs say. */
struct job_unit {
    size_t pairs;
    struct job_means means;
    double normalised; /* means.ratio by the pool's no-op speedup; NaN: it pins none */
    struct job_composite composite;
    double mean_draft_length; /* NaN: the candidate's legs told no lengths */
};
struct job_summary {
    struct job_unit *units;
    size_t unit_count;
    double serial_mean, candidate_mean;       /* over all pairs */
    double raw_median;                        /* of the units' ratios of means */
    double normalised_median, normalised_min; /* NaN where a unit has none */
    double score; /* the raw median, or of cohorts the median composite; NaN: no value */
};

struct job_results_plan {
    const struct contract *contract;
    const struct job_inputs *inputs;
    const struct job_pairs *pairs;
    enum job_series series; /* of both legs */
    double prefill_exponent, decode_exponent;
    const char *tag;
    size_t min_pairs, target_pairs;
    int64_t mtp_depth;
    const char *commit, *weights_hash;
    bool local_dev, bootstrap;
    bool accepted;                /* the pairs stand */
    const struct error *rejected; /* why they do not, or why their score does not; NULL: neither */
    const char *candidate_executable, *baseline_executable; /* as published */
    const char *sandbox;                                    /* as the plan seals it */
    json_t *thermal, *gates, *probes;                       /* borrowed; may be NULL */
};

/* In the arena. The units are the cohorts where there are any, else the prompts. */
void job_summarise(struct arena *a, const struct job_results_plan *p, struct job_summary *out);
/* The gates on it, in order (score.h). False with the first that fails. *stands: false, the pairs
 * themselves are not to be believed (PerPairBound, SCORE-NOT-FINITE). */
bool job_judge(const struct job_results_plan *p, const struct job_summary *s, bool *stands,
               struct error *err);
json_t *job_results_build(const struct job_results_plan *p, const struct job_summary *s);

#endif
