/* Paired measurements: what two legs that were timed side by side, pair after pair, say of each
 * other. Everything is about log(control / candidate), so that above 0, and a ratio above 1, the
 * candidate is faster; whatever slows both legs of a pair alike drops out. Pure arithmetic.
 *
 * How it is done and what it was tested on: docs/statistics.md. */
#ifndef MLXFAST_JUDGE_STATS_PAIRED_H
#define MLXFAST_JUDGE_STATS_PAIRED_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAIRED_CONFIDENCE 0.95
#define PAIRED_POWER 0.8 /* with which smallest_effect would be seen */
/* What is claimed is a difference of more than this: the whole interval must lie beyond it. Builds
 * differ by about as much through where their code and data happen to lie, which pairs do not
 * average out (docs/statistics.md). */
#define PAIRED_CLAIM_FLOOR 0.003
enum { PAIRED_COUNT_MAX = 1000, PAIRED_BOOTSTRAP_ROUNDS = 2000 };
/* For callers that have no seed of their own to state. */
#define PAIRED_BOOTSTRAP_SEED UINT64_C(20260802)

struct paired_estimate {
    size_t count;
    double confidence;
    double mean_log_ratio, ratio; /* ratio: exp of the mean */
    double sd;                    /* of the log ratios; 0 for one pair */
    double t_low, t_high;         /* paired t; the interval that is quoted */
    double boot_low, boot_high;   /* percentile bootstrap, for comparison */
    double smallest_effect;       /* relative: told from none with PAIRED_POWER at this n, sd and
                                     confidence */
};

/* n pairs of finite numbers above 0, 2 to PAIRED_COUNT_MAX of them. False for anything else, and
 * for a confidence outside (0, 1). All bounds are of the ratio. Of one pair (n = 1) it is true as
 * well, and the interval is from 0 to infinity, as is the smallest effect. The same numbers and
 * seed give the same estimate. */
bool paired_estimate(const double *control, const double *candidate, size_t n, double confidence,
                     uint64_t bootstrap_seed, struct paired_estimate *out);

/* The same without what takes milliseconds: the bootstrap and the smallest effect stay 0. */
bool paired_interval(const double *control, const double *candidate, size_t n, double confidence,
                     struct paired_estimate *out);
/* The bootstrap of the mean of n log ratios, by itself: bounds of the log ratio. */
void paired_bootstrap(const double *logs, size_t n, double confidence, uint64_t seed, double *low,
                      double *high);

/* The contract's group "statistics"; min_pairs is its official_pairs. */
struct paired_rule {
    size_t min_pairs, max_pairs; /* max_pairs <= min_pairs: a fixed number of pairs */
    double half_width;           /* of the log ratio's interval; 0: a fixed number of pairs */
    double confidence;
    size_t null_pairs;
    const char *axis; /* "composite" or "decode"; NULL: composite */
};

/* The rule may add pairs: it is not a fixed number. */
bool paired_rule_is_sequential(const struct paired_rule *r);
/* The confidence at which the intervals of this rule are computed so that what is quoted after it
 * stopped covers the truth with r->confidence at least; r->confidence itself for a fixed number. To
 * be handed to paired_estimate. */
double paired_rule_confidence(const struct paired_rule *r);

enum paired_next { PAIRED_MORE, PAIRED_NARROW_ENOUGH, PAIRED_BOUND_REACHED };
/* Whether to measure another pair after n of them. Looks at the interval's width alone, never at
 * where it lies. A fixed number ends with PAIRED_BOUND_REACHED at min_pairs. */
enum paired_next paired_next(const struct paired_rule *r, const double *control,
                             const double *candidate, size_t n);

/* Null pairs, control against control: the interval of their mean ratio, with the standard
 * deviation pooled from them and from the pairs proper, since two or three of them alone say next
 * to nothing. Unknown (false) when neither has two. */
struct paired_null {
    double low, high;
    bool contains_one;
};
bool paired_null_check(const struct paired_estimate *pair, const struct paired_estimate *null_pair,
                       double confidence, struct paired_null *out);

/* What an estimate may be claimed to show: faster or slower where every ratio of the interval is
 * so by more than claim_floor (0.003: 0.3 %). */
enum paired_verdict { PAIRED_FASTER, PAIRED_SLOWER, PAIRED_NO_DIFFERENCE };
enum paired_verdict paired_verdict(const struct paired_estimate *e, double claim_floor);
const char *paired_verdict_text(enum paired_verdict v); /* "faster", "slower", ... */
/* The relative difference that this verdict finds with PAIRED_POWER at this n, sd and confidence;
 * infinite for one pair. */
double paired_smallest_claim(const struct paired_estimate *e, double claim_floor);

/* metrics.statistics, a new reference. null_pair may be NULL or of count 0: "null" is null then. */
json_t *paired_seal(const struct paired_estimate *pair, const struct paired_estimate *null_pair,
                    const struct paired_rule *r, enum paired_next why);

#endif
