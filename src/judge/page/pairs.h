/* The pairs of a score as numbers: what the sections about them and about noise share. */
#ifndef MLXFAST_JUDGE_PAGE_PAIRS_H
#define MLXFAST_JUDGE_PAGE_PAIRS_H

#include "base/arena.h"
#include "judge/page/source.h"

struct report_pair {
    int64_t number;
    double control_prefill, control_decode, candidate_prefill, candidate_decode; /* s per token */
    /* control over candidate: above 1 is faster. NaN where a time is not above 0 */
    double prefill_ratio, decode_ratio;
    /* Block decoding's: an attempt that was rejected has no ratio; latency of a leg's requests. */
    bool counts;
    int64_t attempt;
    const char *order, *rejection;
    double control_median, control_longest, candidate_median, candidate_longest;
    double composite; /* by the contract's weights; NaN without them */
};
struct report_pairs {
    struct report_pair *items;
    size_t count;
    bool blocks; /* of block decoding: no prefill */
};
/* key: "paired_legs" or "null_pairs"; where it is not there, "block_pairs" or "block_null_pairs".
 * contract may be NULL. */
struct report_pairs pairs_of(struct arena *a, const json_t *metrics, const char *key,
                             const struct contract *contract);

/* metrics.statistics as numbers; NaN for what is not there. */
struct report_statistics {
    bool there;
    const char *axis, *quoted, *method, *stopped;
    double confidence, pairs, ratio, sd, low, high, boot_low, boot_high, smallest_effect;
    double null_pairs, null_ratio, null_low, null_high;
    bool null_there, null_differs; /* differs: its interval does not contain 1.0 */
    double computed_confidence;
    double min_pairs, max_pairs, half_width;
};
struct report_statistics statistics_of(const json_t *metrics);

#endif
