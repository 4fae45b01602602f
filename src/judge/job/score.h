/* The arithmetic of the older flow (contract-and-scoring.md section 4): ratios of pairs, of prompts
 * and of cohorts, the gates on them, and the certification of a leg's windows. Pure functions. */
#ifndef MLXFAST_JUDGE_JOB_SCORE_H
#define MLXFAST_JUDGE_JOB_SCORE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_PAIR_RATIO_MAX 8.0
#define JOB_SPEEDUP_FLOOR 0.90
#define JOB_SPEEDUP_CEILING 5.0
#define JOB_WINDOW_TOLERANCE 0.05 /* relative, of the whole window */

/* The two windows of a leg on the judge's clock, each by itself, and from the opening of the first
 * to the closing of the second. Seconds; 0: not observed. A cohort's are shared by its streams, and
 * its token counts are those of all of them. */
struct job_windows {
    double prefill, decode, whole;
    uint64_t prefill_tokens, decode_tokens;
};
/* Errors: PREFILL-WINDOW-NOT-OBSERVED (a half that is not finite and above 0, or of no token),
 * PREFILL-WINDOW-DISAGREES (the halves do not add up to the whole). */
bool job_windows_certify(const struct job_windows *w, struct error *err);

/* One accepted pair's two legs. */
struct job_times {
    double serial, candidate;                 /* decode seconds per token */
    double serial_prefill, candidate_prefill; /* window, seconds */
    double serial_decode, candidate_decode;   /* likewise */
};
double job_pair_ratio(const struct job_times *t); /* not finite or <= 0: what it is */

struct job_means {
    double serial, candidate; /* arithmetic means of the pairs */
    double ratio;             /* of the means */
};
struct job_means job_ratio_of_means(const struct job_times *pairs, size_t count);

/* A cohort's composite: summed windows of both roles, each gain to its exponent as it stands (they
 * are not divided by their sum). A gain whose exponent is 0 is not read. NaN: no value. */
struct job_composite {
    double prefill_gain, decode_gain, score;
};
struct job_composite job_cohort_composite(const struct job_times *pairs, size_t count,
                                          double prefill_exponent, double decode_exponent);

/* The gates, in order: PerPairBound (a ratio that is not finite, not above 0, or above 8),
 * SCORE-NOT-FINITE, Floor (below 0.90), Ceiling (above 5). ratios: of every accepted pair. */
bool job_judge_pairs(const double *ratios, size_t count, struct error *err);
bool job_judge_score(double score, struct error *err); /* the last three */

#endif
