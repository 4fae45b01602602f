#include "judge/explain_statistics.h"

#include "judge/stats/paired.h"

void explain_statistics(const struct page *p, const struct contract *c)
{
    struct paired_rule rule;
    contract_paired_rule(c, &rule);
    page_item(p,
              "The mean of the pairs' log ratios is sealed with its %.6g %% interval (paired t), "
              "the interval of %zu null pair%s, control against control, and the smallest effect "
              "that the run could have seen with power %.6g%s: `metrics.statistics`.",
              100 * rule.confidence, rule.null_pairs, rule.null_pairs == 1 ? "" : "s", PAIRED_POWER,
              c->has_statistics ? "" : " (`statistics` is not declared)");
    if (paired_rule_is_sequential(&rule))
        page_item(p,
                  "Pairs are added, up to %zu, until the interval is the mean plus or minus %.6g "
                  "%% or narrower; where it lies is not looked at. Because stopping so costs "
                  "coverage, it is computed at %.6g %%.",
                  rule.max_pairs, 100 * rule.half_width, 100 * paired_rule_confidence(&rule));
}
