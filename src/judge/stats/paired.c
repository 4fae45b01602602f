#include "judge/stats/paired.h"

#include "base/stats.h"
#include "judge/fidelity.h"
#include "judge/stats/student.h"

#include <math.h>
#include <string.h>

/* A look at fewer pairs is too easily fooled by values that lie close by chance. */
enum { SEQUENTIAL_LEAST = 4 };
/* Stopping where the interval happens to be narrow takes up to 3.6 points of its coverage; halving
 * the share of misses gives them back for every rule from four pairs on (docs/statistics.md). */
static const double sequential_share = 0.5;

/* The percentile bootstrap: means of n draws with replacement, PAIRED_BOOTSTRAP_ROUNDS times. */
void paired_bootstrap(const double *logs, size_t n, double confidence, uint64_t seed, double *low,
                      double *high)
{
    double means[PAIRED_BOOTSTRAP_ROUNDS];
    uint64_t state = seed;
    for (size_t round = 0; round < PAIRED_BOOTSTRAP_ROUNDS; round++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += logs[(fidelity_splitmix64(&state) >> 32) * n >> 32];
        means[round] = sum / (double)n;
    }
    *low = stats_quantile(means, PAIRED_BOOTSTRAP_ROUNDS, 0.5 - confidence / 2);
    *high = stats_quantile(means, PAIRED_BOOTSTRAP_ROUNDS, 0.5 + confidence / 2);
}

static bool log_ratios(const double *control, const double *candidate, size_t n, double *out)
{
    if (n < 1 || n > PAIRED_COUNT_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(control[i]) || !isfinite(candidate[i]) || control[i] <= 0 ||
            candidate[i] <= 0)
            return false;
        out[i] = log(control[i]) - log(candidate[i]);
    }
    return true;
}

static double half_width(double sd, size_t n, double confidence)
{
    return student_quantile(0.5 + confidence / 2, (double)n - 1) * sd / sqrt((double)n);
}

bool paired_interval(const double *control, const double *candidate, size_t n, double confidence,
                     struct paired_estimate *out)
{
    double logs[PAIRED_COUNT_MAX];
    *out = (struct paired_estimate){0};
    if (!(confidence > 0 && confidence < 1) || !log_ratios(control, candidate, n, logs))
        return false;
    out->count = n;
    out->confidence = confidence;
    out->mean_log_ratio = stats_mean(logs, n);
    out->ratio = exp(out->mean_log_ratio);
    out->t_high = INFINITY;
    if (n < 2)
        return true;
    out->sd = stats_sample_sd(logs, n);
    const double half = half_width(out->sd, n, confidence);
    out->t_low = exp(out->mean_log_ratio - half);
    out->t_high = exp(out->mean_log_ratio + half);
    return true;
}

bool paired_estimate(const double *control, const double *candidate, size_t n, double confidence,
                     uint64_t bootstrap_seed, struct paired_estimate *out)
{
    double logs[PAIRED_COUNT_MAX];
    if (!paired_interval(control, candidate, n, confidence, out))
        return false;
    if (n < 2) {
        out->boot_high = out->smallest_effect = INFINITY;
        return true;
    }
    log_ratios(control, candidate, n, logs);
    paired_bootstrap(logs, n, confidence, bootstrap_seed, &out->boot_low, &out->boot_high);
    out->boot_low = exp(out->boot_low);
    out->boot_high = exp(out->boot_high);
    const double errors = student_detectable(confidence, PAIRED_POWER, (double)n - 1);
    out->smallest_effect = expm1(errors * out->sd / sqrt((double)n));
    return true;
}

bool paired_rule_is_sequential(const struct paired_rule *r)
{
    return r->max_pairs > r->min_pairs && r->half_width > 0;
}

double paired_rule_confidence(const struct paired_rule *r)
{
    return paired_rule_is_sequential(r) ? 1 - sequential_share * (1 - r->confidence)
                                        : r->confidence;
}

enum paired_next paired_next(const struct paired_rule *r, const double *control,
                             const double *candidate, size_t n)
{
    if (n < r->min_pairs)
        return PAIRED_MORE;
    if (!paired_rule_is_sequential(r) || n >= r->max_pairs)
        return PAIRED_BOUND_REACHED;
    double logs[PAIRED_COUNT_MAX];
    if (n < SEQUENTIAL_LEAST || !log_ratios(control, candidate, n, logs))
        return PAIRED_MORE;
    const double half = half_width(stats_sample_sd(logs, n), n, paired_rule_confidence(r));
    return half <= r->half_width ? PAIRED_NARROW_ENOUGH : PAIRED_MORE;
}

bool paired_null_check(const struct paired_estimate *pair, const struct paired_estimate *null_pair,
                       double confidence, struct paired_null *out)
{
    *out = (struct paired_null){0};
    if (null_pair->count < 1)
        return false;
    const double pair_freedom = pair->count > 1 ? (double)pair->count - 1 : 0;
    const double null_freedom = (double)null_pair->count - 1;
    const double freedom = pair_freedom + null_freedom;
    if (freedom < 1)
        return false;
    const double sd =
        sqrt((pair_freedom * pair->sd * pair->sd + null_freedom * null_pair->sd * null_pair->sd) /
             freedom);
    const double half =
        student_quantile(0.5 + confidence / 2, freedom) * sd / sqrt((double)null_pair->count);
    out->low = exp(null_pair->mean_log_ratio - half);
    out->high = exp(null_pair->mean_log_ratio + half);
    out->contains_one = out->low <= 1 && out->high >= 1;
    return true;
}

enum paired_verdict paired_verdict(const struct paired_estimate *e, double claim_floor)
{
    if (e->count < 2)
        return PAIRED_NO_DIFFERENCE;
    if (e->t_low > 1 + claim_floor)
        return PAIRED_FASTER;
    return e->t_high < 1 / (1 + claim_floor) ? PAIRED_SLOWER : PAIRED_NO_DIFFERENCE;
}

double paired_smallest_claim(const struct paired_estimate *e, double claim_floor)
{
    return claim_floor + e->smallest_effect * (1 + claim_floor);
}

const char *paired_verdict_text(enum paired_verdict v)
{
    static const char *const texts[] = {[PAIRED_FASTER] = "faster",
                                        [PAIRED_SLOWER] = "slower",
                                        [PAIRED_NO_DIFFERENCE] = "no difference seen"};
    return texts[v];
}
