/* overlay-timing (benchd-cli.md section 5): a score that passed the gates and was not timed, and
 * the results of a job on the same commit and weights, become one timed score. */
#ifndef MLXFAST_JUDGE_JOB_OVERLAY_H
#define MLXFAST_JUDGE_JOB_OVERLAY_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/score.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define OVERLAY_SCORING_MODE "qwen-native-mtp-paired-decode-only"
#define OVERLAY_MEDIAN_TOLERANCE 1e-7    /* absolute */
#define OVERLAY_COMPOSITE_TOLERANCE 1e-9 /* relative */

/* What both files are held against. */
struct overlay_rules {
    const char *track_id, *contract_sha256;
    const char *harness_hash; /* of the working folder, at this moment */
    size_t pool_size, min_pairs_per_prompt;
    double prefill_exponent, decode_exponent; /* of cohorts: the contract's */
    const char *timed_series;                 /* the tag that must have been timed; NULL: any */
};
/* What they say together. */
struct overlay_outcome {
    bool cohorts;
    double score;
    double prefill_gain, decode_gain; /* of cohorts; the median of each */
    double serial_mean, candidate_mean;
};
/* A gates-only score document. Error OVERLAY-GATES-REFUSED, each check with its own message and
 * field. */
bool overlay_check_gates(const json_t *gates, const struct overlay_rules *r, struct error *err);
/* A results document. Errors: RESULTS-INVALID (its form), OVERLAY-RESULTS-REFUSED (each check with
 * its own message and field), PerPairBound. Means, ratios, median and composite are computed from
 * the pairs and must be those that are sealed. */
bool overlay_check_results(const json_t *results, const struct overlay_rules *r,
                           struct overlay_outcome *out, struct error *err);
/* Both speak of one commit and one weights folder. Error OVERLAY-MISMATCH. */
bool overlay_check_both(const json_t *gates, const json_t *results, const struct overlay_rules *r,
                        struct error *err);
/* The timed score: the gates' metrics with what was measured. False: it does not pass, by Floor,
 * Ceiling or SCORE-NOT-FINITE, and d says so. d: to be freed by the caller. */
bool overlay_apply(const json_t *gates, const json_t *results, const struct overlay_outcome *o,
                   struct score_document *d, struct error *err);

struct overlay_options {
    const char *gates_score, *results, *score_path, *contract;
    const char *integrity; /* a record whose other members are kept; NULL: none */
};
enum overlay_exit { OVERLAY_PASSED = 0, OVERLAY_FAILED = 1, OVERLAY_USAGE = 2 };
/* OVERLAY_FAILED: refused, and nothing is written; or it does not pass, and a failing score is. */
enum overlay_exit overlay_run(const struct overlay_options *o, struct error *err);

#endif
