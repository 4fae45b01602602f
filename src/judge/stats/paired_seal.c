/* metrics.statistics: the estimate as it is sealed (docs/statistics.md). */
#include "judge/stats/paired.h"

#include <math.h>

/* JSON has no infinity: a bound that is not known is null. */
static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *interval(double low, double high)
{
    return isfinite(high) ? json_pack("[f, f]", low, high) : json_null();
}

static json_t *seal_null(const struct paired_estimate *pair,
                         const struct paired_estimate *null_pair, double confidence)
{
    struct paired_null check;
    if (!null_pair || null_pair->count < 1)
        return json_null();
    const bool known = paired_null_check(pair, null_pair, confidence, &check);
    json_t *o = json_object();
    json_object_set_new(o, "pairs", json_integer((json_int_t)null_pair->count));
    json_object_set_new(o, "ratio", json_real(null_pair->ratio));
    json_object_set_new(o, "interval", known ? interval(check.low, check.high) : json_null());
    json_object_set_new(o, "contains_one", known ? json_boolean(check.contains_one) : json_null());
    return o;
}

json_t *paired_seal(const struct paired_estimate *pair, const struct paired_estimate *null_pair,
                    const struct paired_rule *r, enum paired_next why)
{
    const bool sequential = paired_rule_is_sequential(r);
    const char *stopped = !sequential                   ? "fixed"
                          : why == PAIRED_NARROW_ENOUGH ? "narrow-enough"
                                                        : "bound-reached";
    json_t *o = json_object();
    json_object_set_new(o, "method", json_string("paired log ratio"));
    json_object_set_new(o, "quoted", json_string("paired-t"));
    json_object_set_new(o, "confidence", json_real(r->confidence));
    json_object_set_new(o, "computed_confidence", json_real(pair->confidence));
    json_object_set_new(o, "pairs", json_integer((json_int_t)pair->count));
    json_object_set_new(o, "axis", json_string(r->axis ? r->axis : "composite"));
    json_object_set_new(o, "ratio", json_real(pair->ratio));
    json_object_set_new(o, "mean_log_ratio", json_real(pair->mean_log_ratio));
    json_object_set_new(o, "sd", pair->count > 1 ? json_real(pair->sd) : json_null());
    json_object_set_new(o, "interval", interval(pair->t_low, pair->t_high));
    json_object_set_new(o, "bootstrap_interval", interval(pair->boot_low, pair->boot_high));
    json_object_set_new(o, "smallest_effect",
                        real_or_null(paired_smallest_claim(pair, PAIRED_CLAIM_FLOOR)));
    json_object_set_new(o, "null", seal_null(pair, null_pair, pair->confidence));
    json_t *rule = json_object();
    json_object_set_new(rule, "min_pairs", json_integer((json_int_t)r->min_pairs));
    json_object_set_new(rule, "max_pairs",
                        json_integer((json_int_t)(sequential ? r->max_pairs : r->min_pairs)));
    json_object_set_new(rule, "half_width", json_real(sequential ? r->half_width : 0));
    json_object_set_new(rule, "stopped", json_string(stopped));
    json_object_set_new(o, "sequential", rule);
    return o;
}
