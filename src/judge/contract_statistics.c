/* The group "statistics": how many pairs a ranked run measures at most, when it has enough, and
 * how sure its interval is (docs/statistics.md). */
#include "judge/contract_read.h"

#include "judge/stats/paired.h"

bool contract_read_statistics(const struct contract_reader *root)
{
    static const char key[] = "statistics";
    static const char *const keys[] = {"null_pairs", "max_pairs", "half_width", "confidence"};
    struct contract *c = root->c;
    struct contract_reader r;
    struct contract_statistics *s = &c->statistics;
    if (!contract_has(root, key))
        return true;
    if (!contract_open_object(root, CONTRACT_STATISTICS, key, &r) ||
        !contract_is_whole(&r, keys, sizeof keys / sizeof *keys))
        return false;
    if (!c->has_official_pairs)
        return contract_refuse_value(root, key, "needs official_pairs");
    if (!contract_get_count(&r, "null_pairs", 1, PAIRED_COUNT_MAX, &s->null_pairs) ||
        !contract_get_count(&r, "max_pairs", c->official_pairs, PAIRED_COUNT_MAX, &s->max_pairs) ||
        !contract_get_real(&r, "half_width", CONTRACT_REAL_NOT_NEGATIVE, &s->half_width) ||
        !contract_get_real(&r, "confidence", CONTRACT_REAL_POSITIVE, &s->confidence))
        return false;
    if (s->confidence < 0.5 || s->confidence >= 1)
        return contract_refuse_value(&r, "confidence", "must be 0.5 or more and below 1");
    if (s->half_width >= 1)
        return contract_refuse_value(&r, "half_width",
                                     "must be below 1: a half of the log ratio's "
                                     "interval, 0.005 for half a percent");
    c->has_statistics = true;
    return true;
}

void contract_paired_rule(const struct contract *c, struct paired_rule *out)
{
    const size_t pairs = c->has_official_pairs ? c->official_pairs : 1;
    *out = (struct paired_rule){
        .min_pairs = pairs, .max_pairs = pairs, .confidence = PAIRED_CONFIDENCE, .null_pairs = 1};
    if (!c->has_statistics)
        return;
    out->max_pairs = (size_t)c->statistics.max_pairs;
    out->half_width = c->statistics.half_width;
    out->confidence = c->statistics.confidence;
    out->null_pairs = (size_t)c->statistics.null_pairs;
}
