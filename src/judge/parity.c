/* See parity.h. Walks both documents together; the bucket of a field decides how far apart its two
 * values may be. */
#include "judge/parity.h"

#include "base/json.h"
#include "judge/score.h"
#include "judge/score_keys.h"
#include "judge/stats/paired.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* What is exact is not listed: of the keys that a score may have, those with another bucket. */
static const struct {
    const char *key;
    enum parity_bucket bucket;
} buckets[] = {
    {"score", PARITY_TIMED},
    {"prefill_seconds_per_token", PARITY_TIMED},
    {"decode_seconds_per_token", PARITY_TIMED},
    {"baseline_prefill_seconds_per_token", PARITY_TIMED},
    {"baseline_decode_seconds_per_token", PARITY_TIMED},
    {"prefill_speedup", PARITY_TIMED},
    {"decode_speedup", PARITY_TIMED},
    {"correctness_seconds", PARITY_TIMED},
    {"benchmark_wall_seconds", PARITY_TIMED},
    {"timed_benchmark_seconds", PARITY_TIMED},
    {"preflight_seconds", PARITY_TIMED},
    {"expert_read_seconds", PARITY_TIMED},
    {"gpqa_ttft_seconds", PARITY_TIMED},
    {"gpqa_ttft_p50_seconds", PARITY_TIMED},
    {"gpqa_ttft_max_seconds", PARITY_TIMED},
    {"baseline_leg_prefill_seconds_per_token", PARITY_TIMED},
    {"baseline_leg_decode_seconds_per_token", PARITY_TIMED},
    {"candidate_leg_prefill_seconds_per_token", PARITY_TIMED},
    {"candidate_leg_decode_seconds_per_token", PARITY_TIMED},
    {"baseline_leg_decode_window_seconds_per_token", PARITY_TIMED},
    {"candidate_leg_decode_window_seconds_per_token", PARITY_TIMED},
    {"baseline_leg_seed_prefill_window_seconds_per_token", PARITY_TIMED},
    {"candidate_leg_seed_prefill_window_seconds_per_token", PARITY_TIMED},
    {"control_prefill_seconds_per_token", PARITY_TIMED},
    {"control_decode_seconds_per_token", PARITY_TIMED},
    {"candidate_prefill_seconds_per_token", PARITY_TIMED},
    {"candidate_decode_seconds_per_token", PARITY_TIMED},
    {"control_seed_prefill_window_seconds_per_token", PARITY_TIMED},
    {"control_decode_window_seconds_per_token", PARITY_TIMED},
    {"candidate_seed_prefill_window_seconds_per_token", PARITY_TIMED},
    {"candidate_decode_window_seconds_per_token", PARITY_TIMED},
    {"control_prefill_barrier_seconds", PARITY_TIMED},
    {"control_decode_barrier_seconds", PARITY_TIMED},
    {"candidate_prefill_barrier_seconds", PARITY_TIMED},
    {"candidate_decode_barrier_seconds", PARITY_TIMED},
    {"mtp_seconds_per_token_mean", PARITY_TIMED},
    {"step_seconds", PARITY_TIMED},
    {"peak_ram_gb", PARITY_DET_TOL},
    {"process_resident_memory_gb", PARITY_DET_TOL}, /* the same kind of figure */
    {"first_failing_case", PARITY_FAILING},
    {"first_failing_layer", PARITY_FAILING},
    {"first_failing_step", PARITY_FAILING},
    {"expected_token", PARITY_FAILING},
    {"actual_token", PARITY_FAILING},
    {"error", PARITY_ERROR},
    {"commit", PARITY_ENV},
    {"runtime", PARITY_ENV},
    {"timestamp", PARITY_ENV},
    {"harness_hash", PARITY_ENV},
    {"engine_device", PARITY_ENV},
    {"runner_build", PARITY_ENV},
    {"runner_manifest_sha256", PARITY_ENV},
    {"resident_pid", PARITY_ENV},
    {"resident_load_epoch", PARITY_ENV},
    {"baseline_box", PARITY_ENV},
    {"baseline_calibration_sha256", PARITY_ENV},
    {"gates", PARITY_ENV},      /* temperatures and loads */
    {"statistics", PARITY_ENV}, /* what follows from the times of the pairs */
};

/* Keys of the records inside metrics that stand in no table of top-level keys. */
static const char *const record_keys[] = {
    "correctness",
    "correctness_checked_steps",
    "timing",
    "scored_regime",
    "live_control_leg",
    "paired_flow",
    "official_baseline",
    "acceptance_bands",
    "scoring_weights",
    "window_shape",
    "model_shape",
    "pair",
    "prompt_sha256",
    "effective_mean_draft_len",
};

static bool in_table(const struct score_key *keys, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].key, key) == 0)
            return true;
    return false;
}

static bool is_required(const char *key)
{
    size_t count;
    const struct score_key *keys = score_keys_required(&count);
    return in_table(keys, count, key);
}

static bool is_metric(const char *key)
{
    size_t count;
    const struct score_key *keys = score_keys_optional(&count);
    return in_table(keys, count, key) || is_required(key);
}

enum parity_bucket parity_bucket_of(const char *key)
{
    for (size_t i = 0; i < COUNT_OF(buckets); i++)
        if (strcmp(buckets[i].key, key) == 0)
            return buckets[i].bucket;
    for (size_t i = 0; i < COUNT_OF(record_keys); i++)
        if (strcmp(record_keys[i], key) == 0)
            return PARITY_DET;
    return is_metric(key) ? PARITY_DET : PARITY_UNKNOWN;
}

struct walk {
    struct buffer *lines;
    struct parity_result *result;
    bool both_failed;
};

static const char *tag_of(enum parity_bucket bucket)
{
    switch (bucket) {
    case PARITY_TIMED:
        return "TIMED";
    case PARITY_DET:
    case PARITY_ENV:
        return "DET";
    case PARITY_DET_TOL:
        return "DET-TOL";
    case PARITY_FAILING:
        return "FAILING";
    case PARITY_ERROR:
        return "ERROR-CLASS";
    case PARITY_UNKNOWN:
        break;
    }
    return "UNKNOWN-FIELD";
}

/* One line; a value that is not there is shown as (absent), long ones are clipped. */
static void put_value(struct buffer *out, const json_t *value)
{
    enum { SHOWN_MAX = 200 };
    struct buffer text = {0};
    if (!value) {
        buffer_text(out, "(absent)");
        return;
    }
    json_write_canonical(value, 0, &text);
    buffer_append(out, text.data, text.length < SHOWN_MAX ? text.length : SHOWN_MAX);
    if (text.length > SHOWN_MAX)
        buffer_text(out, "...");
    buffer_free(&text);
}

static void put_name(struct buffer *out, const char *text)
{
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            buffer_printf(out, "\\x%02x", c);
        else
            buffer_char(out, (char)c);
    }
}

static void differ(const struct walk *w, const char *tag, const char *field, const json_t *a,
                   const json_t *b)
{
    buffer_printf(w->lines, "%s ", tag);
    put_name(w->lines, field);
    buffer_text(w->lines, ": ");
    put_value(w->lines, a);
    buffer_text(w->lines, " | ");
    put_value(w->lines, b);
    buffer_char(w->lines, '\n');
    w->result->differences++;
}

static bool within(const json_t *a, const json_t *b, double band, double floor)
{
    const double x = json_number_value(a), y = json_number_value(b);
    return x == y || fabs(x - y) <= band * fmax(fmax(fabs(x), fabs(y)), floor);
}

static bool same_error_class(const json_t *a, const json_t *b)
{
    const char *x = json_string_value(a), *y = json_string_value(b);
    if (!x || !y)
        return false;
    const size_t n = strcspn(x, ":"), m = strcspn(y, ":");
    if (n != m)
        return false;
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)x[i]) != tolower((unsigned char)y[i]))
            return false;
    return true;
}

/* Two values of one kind. Integers are exact; two numbers of which one is a real are floats. */
static bool same(enum parity_bucket bucket, const json_t *a, const json_t *b)
{
    if (bucket == PARITY_ERROR)
        return same_error_class(a, b);
    if (!json_is_number(a) || !json_is_number(b))
        return json_equal(a, b);
    if (bucket == PARITY_TIMED)
        return within(a, b, PARITY_TIMED_BAND, 0);
    if (bucket == PARITY_DET_TOL)
        return within(a, b, PARITY_DET_TOL_BAND, 0);
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    return within(a, b, PARITY_DET_BAND, 1);
}

static void compare_records(const struct walk *w, const char *path, const json_t *a,
                            const json_t *b);

static void compare_lists(const struct walk *w, const char *path, enum parity_bucket bucket,
                          const json_t *a, const json_t *b)
{
    const size_t n = json_array_size(a), m = json_array_size(b);
    for (size_t i = 0; i < n || i < m; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        struct buffer field = {0};
        buffer_printf(&field, "%s[%zu]", path, i);
        if (!x || !y) {
            differ(w, "SCHEMA-DRIFT-MISSING", field.data, x, y);
        } else if (json_is_object(x) && json_is_object(y)) {
            compare_records(w, field.data, x, y);
        } else {
            w->result->compared++;
            if (!same(bucket, x, y))
                differ(w, tag_of(bucket), field.data, x, y);
        }
        buffer_free(&field);
    }
}

/* A field that both sides have. */
static void compare_field(const struct walk *w, const char *path, enum parity_bucket bucket,
                          const json_t *a, const json_t *b)
{
    if (json_is_object(a) && json_is_object(b)) {
        compare_records(w, path, a, b);
        return;
    }
    if (json_is_array(a) && json_is_array(b)) {
        compare_lists(w, path, bucket, a, b);
        return;
    }
    w->result->compared++;
    if (same(bucket, a, b))
        return;
    if (bucket == PARITY_TIMED && w->both_failed)
        w->result->waived++;
    else
        differ(w, tag_of(bucket), path, a, b);
}

static void compare_key(const struct walk *w, const char *path, const char *key, bool required,
                        const json_t *a, const json_t *b)
{
    const enum parity_bucket bucket = parity_bucket_of(key);
    struct buffer field = {0};
    buffer_printf(&field, "%s.%s", path, key);
    if (bucket == PARITY_UNKNOWN) {
        differ(w, "UNKNOWN-FIELD", field.data, a, b);
    } else if (a && b) {
        if (bucket == PARITY_ENV)
            w->result->not_compared++;
        else
            compare_field(w, field.data, bucket, a, b);
    } else if (required || bucket != PARITY_ENV) {
        if (!required && bucket == PARITY_TIMED && w->both_failed)
            w->result->waived++; /* one side stopped before it had timed anything */
        else
            differ(w, "SCHEMA-DRIFT-MISSING", field.data, a, b);
    } else {
        w->result->not_compared++;
    }
    buffer_free(&field);
}

/* Every key of either side, those of `a` in its order and then those that only `b` has. */
static void compare_records(const struct walk *w, const char *path, const json_t *a,
                            const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value)
        compare_key(w, path, key, false, value, json_object_get(b, key));
    json_object_foreach((json_t *)b, key, value) if (!json_object_get(a, key))
        compare_key(w, path, key, false, NULL, value);
}

static void compare_metrics(const struct walk *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    size_t count;
    const struct score_key *keys = score_keys_required(&count);
    if (!json_is_object(a) || !json_is_object(b)) {
        differ(w, "SCHEMA-DRIFT-MISSING", "metrics", a, b);
        return;
    }
    for (size_t i = 0; i < count; i++)
        compare_key(w, "metrics", keys[i].key, true, json_object_get(a, keys[i].key),
                    json_object_get(b, keys[i].key));
    json_object_foreach((json_t *)a, key, value) if (!is_required(key))
        compare_key(w, "metrics", key, false, value, json_object_get(b, key));
    json_object_foreach((json_t *)b, key, value) if (!is_required(key) && !json_object_get(a, key))
        compare_key(w, "metrics", key, false, NULL, value);
}

static void compare_passed(const struct walk *w, const json_t *a, const json_t *b)
{
    if (!a || !b) {
        differ(w, "SCHEMA-DRIFT-MISSING", "passed", a, b);
    } else if (!json_is_boolean(a) || !json_is_boolean(b)) {
        differ(w, "PASSED-NOT-BOOL", "passed", a, b);
    } else {
        w->result->compared++;
        if (!json_equal(a, b))
            differ(w, "DET", "passed", a, b);
    }
}

static bool is_top_key(const char *key)
{
    return strcmp(key, "metrics") == 0 || strcmp(key, "passed") == 0 || strcmp(key, "score") == 0;
}

static void compare_top_keys(const struct walk *w, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value) if (!is_top_key(key))
        differ(w, "UNKNOWN-FIELD", key, value, json_object_get(b, key));
    json_object_foreach((json_t *)b, key, value) if (!is_top_key(key) && !json_object_get(a, key))
        differ(w, "UNKNOWN-FIELD", key, NULL, value);
}

void parity_diff(const json_t *a, const json_t *b, struct buffer *lines,
                 struct parity_result *result)
{
    const json_t *passed_a = json_object_get(a, "passed"), *passed_b = json_object_get(b, "passed");
    const json_t *score_a = json_object_get(a, "score"), *score_b = json_object_get(b, "score");
    const struct walk w = {lines, result, json_is_false(passed_a) && json_is_false(passed_b)};
    *result = (struct parity_result){0};
    compare_top_keys(&w, a, b);
    compare_passed(&w, passed_a, passed_b);
    if (score_a && score_b)
        compare_field(&w, "score", PARITY_TIMED, score_a, score_b);
    else
        differ(&w, "SCHEMA-DRIFT-MISSING", "score", score_a, score_b);
    compare_metrics(&w, json_object_get(a, "metrics"), json_object_get(b, "metrics"));
}

static json_t *sample_value(const struct score_key *k)
{
    switch (k->kind) {
    case SCORE_INT:
        return json_integer(1);
    case SCORE_REAL:
        return json_real(0.5);
    case SCORE_BOOL:
        return json_true();
    case SCORE_TEXT:
        return json_string("sample");
    case SCORE_OBJECT: /* contract_sources and statistics are made by name below */
        return json_pack("{s:s,s:i,s:s}", "correctness", "passed", "correctness_checked_steps", 1,
                         "timing", "passed");
    case SCORE_ARRAY:
        break;
    }
    return json_array();
}

bool parity_sample(struct buffer *out, struct error *err)
{
    static const char *const groups[] = {"scored_regime",     "live_control_leg", "paired_flow",
                                         "official_baseline", "acceptance_bands", "scoring_weights",
                                         "window_shape",      "model_shape"};
    struct score_document d;
    size_t count;
    const struct score_key *keys = score_keys_optional(&count);
    score_document_init(&d, "rust");
    for (size_t i = 0; i < count; i++)
        score_set_json(&d, keys[i].key, sample_value(&keys[i]));
    static const double control[] = {1, 1.5}, candidate[] = {1, 1};
    const struct paired_rule rule = {.min_pairs = 2, .confidence = PAIRED_CONFIDENCE};
    struct paired_estimate pair;
    paired_estimate(control, candidate, 2, rule.confidence, PAIRED_BOOTSTRAP_SEED, &pair);
    score_set_json(&d, "statistics", paired_seal(&pair, &pair, &rule, PAIRED_BOUND_REACHED));
    json_t *sources = json_object();
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        json_object_set_new(sources, groups[i], json_string("contract"));
    score_set_json(&d, "contract_sources", sources);
    d.passed = d.has_score = true;
    d.score = 1;
    const bool ok = score_render(&d, out, err);
    score_document_free(&d);
    return ok;
}
