#include "judge/page/pairs.h"

#include "judge/score.h"

#include <math.h>
#include <string.h>

static double ratio_of(double control, double candidate)
{
    return control > 0 && candidate > 0 ? control / candidate : NAN;
}

static void read_legs(const json_t *record, const struct contract *contract, struct report_pair *p)
{
    p->control_prefill = source_real(record, "control_prefill_seconds_per_token");
    p->control_decode = source_real(record, "control_decode_seconds_per_token");
    p->candidate_prefill = source_real(record, "candidate_prefill_seconds_per_token");
    p->candidate_decode = source_real(record, "candidate_decode_seconds_per_token");
    p->counts = true;
    p->prefill_ratio = ratio_of(p->control_prefill, p->candidate_prefill);
    p->decode_ratio = ratio_of(p->control_decode, p->candidate_decode);
    p->composite =
        contract && contract->has_weights
            ? score_composite(p->prefill_ratio, p->decode_ratio, contract->score_prefill_weight,
                              contract->score_decode_weight)
            : NAN;
}

static void read_blocks(const json_t *record, struct report_pair *p)
{
    p->control_prefill = p->candidate_prefill = p->prefill_ratio = p->composite = NAN;
    p->control_decode = source_real(record, "control_seconds_per_token");
    p->candidate_decode = source_real(record, "candidate_seconds_per_token");
    p->counts = source_flag(record, "accepted");
    p->decode_ratio = p->counts ? ratio_of(p->control_decode, p->candidate_decode) : NAN;
    p->attempt = json_integer_value(json_object_get(record, "attempt"));
    p->order = source_text(record, "order");
    p->rejection = source_text(record, "rejection");
    p->control_median = source_real(record, "control_p50_request_seconds");
    p->control_longest = source_real(record, "control_max_request_seconds");
    p->candidate_median = source_real(record, "candidate_p50_request_seconds");
    p->candidate_longest = source_real(record, "candidate_max_request_seconds");
}

struct report_pairs pairs_of(struct arena *a, const json_t *metrics, const char *key,
                             const struct contract *contract)
{
    const json_t *list = json_object_get(metrics, key);
    const bool blocks = list == NULL;
    if (blocks)
        list = json_object_get(metrics,
                               strcmp(key, "null_pairs") == 0 ? "block_null_pairs" : "block_pairs");
    struct report_pairs out = {.count = json_array_size(list), .blocks = blocks};
    out.items = arena_array(a, out.count + 1, sizeof *out.items);
    for (size_t i = 0; i < out.count; i++) {
        const json_t *record = json_array_get(list, i);
        out.items[i].number = json_integer_value(json_object_get(record, "pair"));
        if (blocks)
            read_blocks(record, &out.items[i]);
        else
            read_legs(record, contract, &out.items[i]);
    }
    return out;
}

static double bound(const json_t *object, const char *key, size_t index)
{
    const json_t *value = json_array_get(json_object_get(object, key), index);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

struct report_statistics statistics_of(const json_t *metrics)
{
    const json_t *s = json_object_get(metrics, "statistics");
    const json_t *null = json_object_get(s, "null");
    const json_t *rule = json_object_get(s, "sequential");
    return (struct report_statistics){
        .there = json_is_object(s),
        .axis = source_text(s, "axis"),
        .quoted = source_text(s, "quoted"),
        .method = source_text(s, "method"),
        .stopped = source_text(rule, "stopped"),
        .confidence = source_real(s, "confidence"),
        .pairs = source_real(s, "pairs"),
        .ratio = source_real(s, "ratio"),
        .sd = source_real(s, "sd"),
        .low = bound(s, "interval", 0),
        .high = bound(s, "interval", 1),
        .boot_low = bound(s, "bootstrap_interval", 0),
        .boot_high = bound(s, "bootstrap_interval", 1),
        .smallest_effect = source_real(s, "smallest_effect"),
        .null_pairs = source_real(null, "pairs"),
        .null_ratio = source_real(null, "ratio"),
        .null_low = bound(null, "interval", 0),
        .null_high = bound(null, "interval", 1),
        .null_there = json_is_object(null),
        .null_differs = json_is_false(json_object_get(null, "contains_one")),
        .computed_confidence = source_real(s, "computed_confidence"),
        .min_pairs = source_real(rule, "min_pairs"),
        .max_pairs = source_real(rule, "max_pairs"),
        .half_width = source_real(rule, "half_width"),
    };
}
