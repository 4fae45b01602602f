/* Reading the reports of legs: closed, typed, finite, and true to their own sums. */
#include "judge/block_score.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { REPORT_BYTES_MAX = 4 << 20 };
/* Quotients that were written and read again. */
static const double ROUNDING = 1e-9;

enum report_kind { REPORT_TEXT, REPORT_FLAG, REPORT_COUNT, REPORT_REAL, REPORT_LIST };
struct report_key {
    const char *key;
    enum report_kind kind;
    bool optional;
};

/* dflash-track.md section 9, and the last four, keys of ours. */
static const struct report_key report_keys[] = {
    {"track_id", REPORT_TEXT, false},
    {"official_score_produced", REPORT_FLAG, false},
    {"all_tokens_matched", REPORT_FLAG, false},
    {"parent_measured_seconds_per_token", REPORT_REAL, false},
    {"decode_token_count", REPORT_COUNT, false},
    {"block_size", REPORT_COUNT, false},
    {"uses_trained_drafter", REPORT_FLAG, false},
    {"max_block_request_seconds", REPORT_REAL, false},
    {"p50_block_request_seconds", REPORT_REAL, false},
    {"decode_seconds", REPORT_REAL, false},
    {"accepted_draft_rate", REPORT_REAL, false},
    {"residual_divergence_count", REPORT_COUNT, false},
    {"admissible_exact_count", REPORT_COUNT, false},
    {"admissible_declared_frame_count", REPORT_COUNT, false},
    {"admissible_near_tie_count", REPORT_COUNT, false},
    {"emitted_token_total", REPORT_COUNT, false},
    {"declared_rows_total", REPORT_COUNT, false},
    {"reference_checked_row_total", REPORT_COUNT, false},
    {"rejected_rows_reference_checked", REPORT_COUNT, false},
    {"verify_block_replayed_round_count", REPORT_COUNT, false},
    {"rejected_tail_comparison_count", REPORT_COUNT, false},
    {"max_rejected_tail_logit_delta", REPORT_REAL, false},
    {"accepted_draft_total", REPORT_COUNT, false},
    {"rejected_draft_total", REPORT_COUNT, false},
    {"target_tail_total", REPORT_COUNT, false},
    {"round_count", REPORT_COUNT, false},
    {"seed_token_count", REPORT_COUNT, false},
    {"target_cache_offset_final", REPORT_COUNT, false},
    {"work_binding_comparison_count", REPORT_COUNT, false},
    {"max_top2_logit_delta", REPORT_REAL, false},
    {"mean_top2_logit_delta", REPORT_REAL, false},
    {"p50_top2_logit_delta", REPORT_REAL, false},
    {"p99_top2_logit_delta", REPORT_REAL, false},
    {"max_top2_logit_relative_delta", REPORT_REAL, false},
    {"p99_top2_logit_relative_delta", REPORT_REAL, false},
    {"work_binding_tolerance_absolute", REPORT_REAL, false},
    {"work_binding_tolerance_relative", REPORT_REAL, false},
    {"work_binding_logit_deltas", REPORT_LIST, true},
    {"work_binding_comparison_widths", REPORT_LIST, true},
    {"max_over_median_round_latency", REPORT_REAL, true},
    {"reference_engine", REPORT_TEXT, false},
    {"golden_sha256", REPORT_TEXT, false},
    {"weights_sha256", REPORT_TEXT, false},
    {"drafter_sha256", REPORT_TEXT, false},
};
static const struct report_key failure_keys[] = {
    {"track_id", REPORT_TEXT, false},    {"official_score_produced", REPORT_FLAG, false},
    {"error", REPORT_TEXT, false},       {"decode_token_count", REPORT_COUNT, false},
    {"block_size", REPORT_COUNT, false},
};
static const struct report_key tripwire_keys[] = {
    {"passed", REPORT_FLAG, false},     {"case_count", REPORT_COUNT, false},
    {"run_count", REPORT_COUNT, false}, {"error", REPORT_TEXT, false},
    {"diverged", REPORT_LIST, false},
};
static const struct report_key divergence_keys[] = {
    {"case", REPORT_TEXT, false},
    {"step", REPORT_COUNT, false},
    {"expected_token", REPORT_COUNT, false},
    {"actual_token", REPORT_COUNT, false},
    {"mismatches", REPORT_COUNT, false},
};

struct reader {
    const char *path;
    const json_t *object;
    struct error *err;
};

static bool refuse(const struct reader *r, const char *field, const char *what)
{
    error_set(r->err, "BLOCK-REPORT-INVALID", "%s %s", field, what);
    return error_at(r->err, r->path, field, NULL);
}

static bool has_kind(enum report_kind kind, const json_t *value)
{
    switch (kind) {
    case REPORT_TEXT:
        return json_is_string(value);
    case REPORT_FLAG:
        return json_is_boolean(value);
    case REPORT_COUNT: /* below 2^31: sums of them stay whole */
        return json_is_integer(value) && json_integer_value(value) >= 0 &&
               json_integer_value(value) <= INT32_MAX;
    case REPORT_REAL:
        return json_is_number(value) && isfinite(json_number_value(value)) &&
               json_number_value(value) >= 0;
    case REPORT_LIST:
        return json_is_array(value);
    }
    return false;
}

static bool check_keys(const struct reader *r, const struct report_key *keys, size_t count)
{
    const char *key;
    json_t *value;
    if (!json_is_object(r->object))
        return refuse(r, "(root)", "must be an object");
    json_object_foreach((json_t *)r->object, key, value)
    {
        size_t i = 0;
        while (i < count && strcmp(keys[i].key, key) != 0)
            i++;
        if (i == count)
            return refuse(r, key, "is not a key of such a report");
        if (!has_kind(keys[i].kind, value))
            return refuse(r, key, "has the wrong type, or is not finite, or out of range");
    }
    for (size_t i = 0; i < count; i++)
        if (!keys[i].optional && !json_object_get(r->object, keys[i].key))
            return refuse(r, keys[i].key, "is missing");
    return true;
}

static int64_t count_at(const struct reader *r, const char *key)
{
    return json_integer_value(json_object_get(r->object, key));
}

static double real_at(const struct reader *r, const char *key)
{
    return json_number_value(json_object_get(r->object, key));
}

static bool flag_at(const struct reader *r, const char *key)
{
    return json_is_true(json_object_get(r->object, key));
}

static const char *text_at(const struct reader *r, const char *key)
{
    return json_string_value(json_object_get(r->object, key));
}

static bool is_near(double a, double b)
{
    return isfinite(a) && isfinite(b) && fabs(a - b) <= ROUNDING * fmax(fabs(a), fabs(b));
}

/* a is b at most, but for rounding. */
static bool is_within(double a, double b)
{
    return a <= b || is_near(a, b);
}

/* What every report says of its leg, a failed one too. */
static bool check_leg(const struct reader *r, const struct block_report_rules *rules)
{
    const int64_t width = count_at(r, "block_size"), tokens = count_at(r, "decode_token_count");
    if (strcmp(json_string_value(json_object_get(r->object, "track_id")), rules->track_id) != 0)
        return refuse(r, "track_id", "is not the contract's");
    if (flag_at(r, "official_score_produced"))
        return refuse(r, "official_score_produced", "must be false: a leg has no score");
    if (width < rules->least_block_size || width > rules->most_block_size)
        return refuse(r, "block_size",
                      rules->most_block_size == 1 ? "must be 1: a probe is the serial control"
                                                  : "is no width that the track decodes with");
    if (tokens == rules->tokens)
        return true;
    error_set(r->err, "DECODE-TOKENS-MISMATCH", "the leg decoded %lld tokens; %lld are configured",
              (long long)tokens, (long long)rules->tokens);
    return error_at(r->err, r->path, "decode_token_count", NULL);
}

static bool check_sums(const struct reader *r)
{
    const int64_t tokens = count_at(r, "decode_token_count");
    const int64_t matched =
        count_at(r, "admissible_exact_count") + count_at(r, "admissible_declared_frame_count");
    const int64_t admitted = matched + count_at(r, "admissible_near_tie_count") +
                             count_at(r, "residual_divergence_count");
    const int64_t accepted = count_at(r, "accepted_draft_total");
    const int64_t drafted = accepted + count_at(r, "rejected_draft_total");
    if (count_at(r, "emitted_token_total") != tokens)
        return refuse(r, "emitted_token_total", "is not decode_token_count");
    if (admitted != tokens)
        return refuse(r, "admissible_exact_count", "and its like do not add up to the tokens");
    if (flag_at(r, "all_tokens_matched") != (matched == tokens))
        return refuse(r, "all_tokens_matched", "contradicts the counts");
    if (count_at(r, "reference_checked_row_total") != tokens)
        return refuse(r, "reference_checked_row_total", "is not the tokens");
    if (count_at(r, "target_tail_total") != count_at(r, "round_count"))
        return refuse(r, "target_tail_total", "is not round_count");
    if (drafted + count_at(r, "target_tail_total") != count_at(r, "declared_rows_total"))
        return refuse(r, "declared_rows_total", "is not accepted, rejected and tail together");
    if (!is_near(real_at(r, "accepted_draft_rate"),
                 drafted > 0 ? (double)accepted / (double)drafted : 0))
        return refuse(r, "accepted_draft_rate", "contradicts the counts");
    /* A round gives one token at least, and no more than one behind its accepted drafts. */
    if (count_at(r, "round_count") > tokens || count_at(r, "round_count") + accepted < tokens)
        return refuse(r, "round_count", "cannot have given the tokens");
    if (count_at(r, "declared_rows_total") > count_at(r, "round_count") * count_at(r, "block_size"))
        return refuse(r, "declared_rows_total", "is more than the rounds can hold");
    return count_at(r, "target_cache_offset_final") == count_at(r, "seed_token_count") + tokens ||
           refuse(r, "target_cache_offset_final", "is not the seed and the tokens");
}

/* Every block is replayed, every row compared: nothing was left out. */
static bool check_comparisons(const struct reader *r)
{
    const int64_t tokens = count_at(r, "decode_token_count");
    const int64_t behind = count_at(r, "declared_rows_total") - tokens;
    if (count_at(r, "verify_block_replayed_round_count") != count_at(r, "round_count"))
        return refuse(r, "verify_block_replayed_round_count", "is not round_count");
    if (count_at(r, "rejected_rows_reference_checked") != behind)
        return refuse(r, "rejected_rows_reference_checked", "is not the rows behind the tokens");
    if (count_at(r, "rejected_tail_comparison_count") != 2 * behind)
        return refuse(r, "rejected_tail_comparison_count", "is not two for each row");
    return count_at(r, "work_binding_comparison_count") == 2 * tokens ||
           refuse(r, "work_binding_comparison_count", "is not two for each token");
}

/* A leg whose report says otherwise would have failed. */
static bool check_limits(const struct reader *r, const struct fidelity_limits *l)
{
    static const struct {
        const char *less, *more;
    } orders[] = {{"mean_top2_logit_delta", "max_top2_logit_delta"},
                  {"p50_top2_logit_delta", "p99_top2_logit_delta"},
                  {"p99_top2_logit_delta", "max_top2_logit_delta"},
                  {"p99_top2_logit_relative_delta", "max_top2_logit_relative_delta"},
                  {"max_top2_logit_delta", "work_binding_tolerance_absolute"},
                  {"max_rejected_tail_logit_delta", "work_binding_tolerance_absolute"},
                  {"max_top2_logit_relative_delta", "work_binding_tolerance_relative"},
                  {"p50_block_request_seconds", "max_block_request_seconds"},
                  {"max_block_request_seconds", "decode_seconds"}};
    const int64_t tokens = count_at(r, "decode_token_count");
    for (size_t i = 0; i < COUNT_OF(orders); i++)
        if (!is_within(real_at(r, orders[i].less), real_at(r, orders[i].more))) {
            char what[80];
            snprintf(what, sizeof what, "is above %s", orders[i].more);
            return refuse(r, orders[i].less, what);
        }
    if (l->has_mean && count_at(r, "work_binding_comparison_count") >= FIDELITY_MEAN_LEAST &&
        real_at(r, "mean_top2_logit_delta") > l->mean)
        return refuse(r, "mean_top2_logit_delta", "is above the contract's limit");
    if (count_at(r, "admissible_near_tie_count") >
        fidelity_budget(l->near_tie_per_thousand, tokens))
        return refuse(r, "admissible_near_tie_count", "is above the contract's budget");
    return count_at(r, "residual_divergence_count") <=
               fidelity_budget(l->residual_per_thousand, tokens) ||
           refuse(r, "residual_divergence_count", "is above the contract's budget");
}

/* From the middle of the sorted times on each is the median at least, and one is the longest. */
static bool check_latency(const struct reader *r)
{
    const double median = real_at(r, "p50_block_request_seconds");
    const double longest = real_at(r, "max_block_request_seconds");
    const int64_t rounds = count_at(r, "round_count");
    const json_t *ratio = json_object_get(r->object, "max_over_median_round_latency");
    if (!is_within(longest + median * (double)(rounds - rounds / 2 - 1),
                   real_at(r, "decode_seconds")))
        return refuse(r, "p50_block_request_seconds", "is more than the rounds' time allows");
    return ratio == NULL || (median > 0 && is_near(json_number_value(ratio), longest / median)) ||
           refuse(r, "max_over_median_round_latency", "contradicts the times");
}

/* What ran, and who judged it. */
static bool check_origin(const struct reader *r, const struct block_report_rules *rules)
{
    const char *by = text_at(r, "reference_engine");
    if (strcmp(by, BLOCK_OWN_REFERENCE) != 0 && strcmp(by, BLOCK_OTHER_REFERENCE) != 0)
        return refuse(r, "reference_engine", "is neither of the two");
    if (strcmp(text_at(r, "golden_sha256"), rules->golden_sha256) != 0)
        return refuse(r, "golden_sha256", "is of another golden");
    if (!text_is_lower_hex(text_at(r, "weights_sha256"), 64))
        return refuse(r, "weights_sha256", "is no SHA-256");
    return text_is_lower_hex(text_at(r, "drafter_sha256"), 64) ||
           refuse(r, "drafter_sha256", "is no SHA-256");
}

static bool check_times_and_rules(const struct reader *r, const struct block_report_rules *rules)
{
    const double each = real_at(r, "parent_measured_seconds_per_token");
    if (each <= 0)
        return refuse(r, "parent_measured_seconds_per_token", "must be above 0");
    if (!is_near(each * (double)count_at(r, "decode_token_count"), real_at(r, "decode_seconds")))
        return refuse(r, "decode_seconds", "is not the tokens at their seconds each");
    if (flag_at(r, "uses_trained_drafter") != (count_at(r, "block_size") > 1))
        return refuse(r, "uses_trained_drafter", "contradicts block_size");
    if (count_at(r, "seed_token_count") != rules->seed_count)
        return refuse(r, "seed_token_count", "is not that of the golden");
    /* A widened tolerance is for looking, not for scoring (section 9). */
    if (json_object_get(r->object, "work_binding_logit_deltas") ||
        json_object_get(r->object, "work_binding_comparison_widths") ||
        real_at(r, "work_binding_tolerance_absolute") != rules->limits.absolute ||
        real_at(r, "work_binding_tolerance_relative") != rules->limits.relative)
        return refuse(r, "work_binding_tolerance_absolute",
                      "or its relative one is not the contract's");
    return true;
}

static bool read_report(const struct reader *r, const struct block_report_rules *rules,
                        struct arena *a, struct block_report *out)
{
    const bool failed = json_object_get(r->object, "error") != NULL;
    if (!(failed ? check_keys(r, failure_keys, COUNT_OF(failure_keys))
                 : check_keys(r, report_keys, COUNT_OF(report_keys))) ||
        !check_leg(r, rules))
        return false;
    *out = (struct block_report){.tokens = count_at(r, "decode_token_count"),
                                 .block_size = count_at(r, "block_size")};
    if (failed) {
        const char *error = json_string_value(json_object_get(r->object, "error"));
        if (*error == '\0')
            return refuse(r, "error", "must not be empty");
        out->error = arena_strdup(a, error);
        return true;
    }
    if (!check_sums(r) || !check_times_and_rules(r, rules) || !check_comparisons(r) ||
        !check_limits(r, &rules->limits) || !check_latency(r) || !check_origin(r, rules))
        return false;
    out->seconds_per_token = real_at(r, "parent_measured_seconds_per_token");
    out->decode_seconds = real_at(r, "decode_seconds");
    out->seed_count = count_at(r, "seed_token_count");
    out->rounds = count_at(r, "round_count");
    out->accepted = count_at(r, "accepted_draft_total");
    out->rejected = count_at(r, "rejected_draft_total");
    out->residual = count_at(r, "residual_divergence_count");
    out->accepted_rate = real_at(r, "accepted_draft_rate");
    out->longest = real_at(r, "max_block_request_seconds");
    out->has_latency = json_object_get(r->object, "max_over_median_round_latency") != NULL;
    out->max_over_median = real_at(r, "max_over_median_round_latency");
    out->own_reference = strcmp(text_at(r, "reference_engine"), BLOCK_OWN_REFERENCE) == 0;
    out->weights = arena_strdup(a, text_at(r, "weights_sha256"));
    out->drafter = arena_strdup(a, text_at(r, "drafter_sha256"));
    out->all_matched = flag_at(r, "all_tokens_matched");
    out->trained_drafter = flag_at(r, "uses_trained_drafter");
    return true;
}

static json_t *parse(const char *path, const char *data, size_t length, struct error *err)
{
    json_t *object = json_parse_strict(data, length, JSON_DEPTH_DEFAULT, path, err);
    if (!object && err)
        text_copy(err->name, sizeof err->name, "BLOCK-REPORT-INVALID");
    return object;
}

bool block_report_parse(const char *path, const char *data, size_t length,
                        const struct block_report_rules *rules, struct arena *a,
                        struct block_report *out, struct error *err)
{
    json_t *object = parse(path, data, length, err);
    if (!object)
        return false;
    const struct reader r = {path, object, err};
    const bool ok = read_report(&r, rules, a, out);
    json_decref(object);
    return ok;
}

bool block_report_load(const char *path, const struct block_report_rules *rules, struct arena *a,
                       struct block_report *out, struct error *err)
{
    struct buffer bytes = {0};
    const bool ok =
        file_read(path, REPORT_BYTES_MAX, &bytes, err) &&
        block_report_parse(path, bytes.data ? bytes.data : "", bytes.length, rules, a, out, err);
    buffer_free(&bytes);
    return ok;
}

bool block_tripwire_parse(const char *path, const char *data, size_t length,
                          struct block_tripwire_report *out, struct error *err)
{
    *out = (struct block_tripwire_report){0};
    json_t *object = parse(path, data, length, err);
    if (!object)
        return false;
    const struct reader r = {path, object, err};
    bool ok = check_keys(&r, tripwire_keys, COUNT_OF(tripwire_keys));
    json_t *list = json_object_get(object, "diverged");
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const struct reader entry = {path, json_array_get(list, i), err};
        ok = check_keys(&entry, divergence_keys, COUNT_OF(divergence_keys));
    }
    if (ok && flag_at(&r, "passed") &&
        (count_at(&r, "case_count") == 0 || *text_at(&r, "error") != '\0'))
        ok = refuse(&r, "passed", "is contradicted: nothing was compared, or it failed");
    if (ok)
        *out = (struct block_tripwire_report){.passed = flag_at(&r, "passed"),
                                              .case_count = count_at(&r, "case_count"),
                                              .diverged = json_incref(list)};
    json_decref(object);
    return ok;
}

bool block_tripwire_load(const char *path, struct block_tripwire_report *out, struct error *err)
{
    struct buffer bytes = {0};
    *out = (struct block_tripwire_report){0};
    const bool ok =
        file_read(path, REPORT_BYTES_MAX, &bytes, err) &&
        block_tripwire_parse(path, bytes.data ? bytes.data : "", bytes.length, out, err);
    buffer_free(&bytes);
    return ok;
}
