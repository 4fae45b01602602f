/* Scores: the arithmetic, and the document from its defaults to its bytes. What keys there are is
 * in score_keys.c. */
#include "judge/score.h"

#include "base/json.h"
#include "judge/fidelity.h"
#include "judge/score_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double score_speedup(double baseline, double candidate)
{
    if (!isfinite(baseline) || !isfinite(candidate) || baseline <= 0 || candidate <= 0)
        return 0;
    return baseline / candidate;
}

/* A gain whose weight is 0 is not read at all. */
static double factor(double gain, double weight, double total)
{
    if (weight == 0)
        return 1;
    if (isnan(gain) || gain <= 0)
        return NAN;
    return weight / total == 1 ? gain : pow(gain, weight / total);
}

double score_composite(double prefill_gain, double decode_gain, double prefill_weight,
                       double decode_weight)
{
    double total = decode_weight + prefill_weight;
    if (!isfinite(decode_weight) || !isfinite(prefill_weight) || decode_weight < 0 ||
        prefill_weight < 0 || isnan(total) || total <= 0)
        return NAN;
    /* Decode first: the order of the product is part of the definition. */
    return factor(decode_gain, decode_weight, total) * factor(prefill_gain, prefill_weight, total);
}

bool score_clears_floor(double gain, double floor)
{
    return isfinite(gain) && isfinite(floor) && gain >= floor;
}

bool score_is_believed(double seconds, double reference, double down)
{
    return isfinite(seconds) && isfinite(reference) && seconds > 0 && reference > 0 &&
           !(seconds < reference * (1 - down));
}

double score_coarsen(double value)
{
    char text[32];
    if (value == 0 || !isfinite(value))
        return value;
    snprintf(text, sizeof text, "%.1e", value);
    return strtod(text, NULL);
}

static json_t *default_value(const struct score_key *k)
{
    if (k->nullable)
        return json_null();
    switch (k->kind) {
    case SCORE_INT:
        return json_integer(0);
    case SCORE_REAL:
        return json_real(0);
    case SCORE_BOOL:
        return json_false();
    case SCORE_TEXT:
        return json_string("");
    case SCORE_OBJECT:
    case SCORE_ARRAY:
        break;
    }
    return json_null();
}

void score_document_init(struct score_document *d, const char *runtime)
{
    memset(d, 0, sizeof *d);
    d->metrics = json_object();
    size_t count;
    const struct score_key *keys = score_keys_required(&count);
    for (size_t i = 0; i < count; i++)
        json_object_set_new(d->metrics, keys[i].key, default_value(&keys[i]));
    score_set_text(d, "runtime", runtime);
    score_set_text(d, "bandwidth_source", "ram_resident_model");
}

void score_document_free(struct score_document *d)
{
    json_decref(d->metrics);
    d->metrics = NULL;
}

/* A JSON string of any bytes: what is not UTF-8 becomes \xNN, as in an error's text. */
static json_t *text_value(const char *text)
{
    size_t length = strlen(text);
    if (utf8_valid(text, length))
        return json_string(text);
    struct buffer clean = {0};
    for (size_t i = 0; i < length;) {
        int n = utf8_sequence((const uint8_t *)text + i, length - i);
        if (n > 0)
            buffer_append(&clean, text + i, (size_t)n);
        else
            buffer_printf(&clean, "\\x%02x", (unsigned char)text[i]);
        i += n > 0 ? (size_t)n : 1;
    }
    json_t *value = json_string(clean.data);
    buffer_free(&clean);
    return value;
}

void score_set_json(struct score_document *d, const char *key, json_t *value)
{
    json_object_set_new(d->metrics, key, value ? value : json_null());
}

void score_set_text(struct score_document *d, const char *key, const char *value)
{
    score_set_json(d, key, value ? text_value(value) : json_null());
}

void score_set_number(struct score_document *d, const char *key, double value)
{
    score_set_json(d, key, json_real(isfinite(value) ? value : 0));
}

void score_set_int(struct score_document *d, const char *key, int64_t value)
{
    score_set_json(d, key, json_integer(value));
}

void score_set_bool(struct score_document *d, const char *key, bool value)
{
    score_set_json(d, key, json_boolean(value));
}

static const char *error_text(const struct score_document *d)
{
    const char *text = json_string_value(json_object_get(d->metrics, "error"));
    return text ? text : "";
}

void score_fail(struct score_document *d, const char *error_class, const char *text)
{
    d->passed = false;
    d->has_score = false;
    d->score = 0;
    if (*error_text(d))
        return;
    struct buffer line = {0};
    buffer_text(&line, error_class);
    if (text && *text)
        buffer_printf(&line, ": %s", text);
    score_set_text(d, "error", line.data && *line.data ? line.data : "unknown");
    buffer_free(&line);
}

void score_fail_hidden(struct score_document *d, const char *error_class, const char *text)
{
    struct buffer failure = {0}, published = {0};
    buffer_printf(&failure, "%s: %s", error_class, text ? text : "");
    fidelity_publish(failure.data, &published);
    score_fail(d, published.data, NULL);
    buffer_free(&failure);
    buffer_free(&published);
}

static double number_at(const json_t *metrics, const char *key)
{
    return json_number_value(json_object_get(metrics, key));
}

/* An upper figure is never published below the one that it contains. */
static void raise_to(json_t *metrics, const char *key, const char *at_least)
{
    if (number_at(metrics, key) < number_at(metrics, at_least))
        json_object_set_new(metrics, key, json_real(number_at(metrics, at_least)));
}

static void coarsen_metrics(json_t *metrics)
{
    /* sealing-and-digests.md section 1.3 */
    static const char *const keys[] = {"peak_ram_gb",
                                       "process_resident_memory_gb",
                                       "bandwidth_gb_per_token",
                                       "benchmark_wall_seconds",
                                       "preflight_seconds",
                                       "correctness_seconds",
                                       "timed_benchmark_seconds",
                                       "gpqa_ttft_seconds",
                                       "gpqa_ttft_p50_seconds",
                                       "gpqa_ttft_max_seconds",
                                       "expert_read_seconds",
                                       "expert_hit_rate",
                                       "max_abs_diff"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        json_object_set_new(metrics, keys[i],
                            json_real(score_coarsen(number_at(metrics, keys[i]))));
    raise_to(metrics, "benchmark_wall_seconds", "timed_benchmark_seconds");
    raise_to(metrics, "gpqa_ttft_max_seconds", "gpqa_ttft_p50_seconds");
}

bool score_render(struct score_document *d, struct buffer *out, struct error *err)
{
    if (d->passed && d->has_score && !isfinite(d->score))
        score_fail(d, "computed score was not finite", NULL);
    if (!d->passed)
        score_fail(d, "incomplete", "the run ended before it passed");
    if (!score_keys_check(d->metrics, err))
        return false;
    if (d->passed && *error_text(d)) {
        error_set(err, "SCORE-INVALID", "the run passed and carries an error");
        return error_at(err, NULL, "metrics.error", error_text(d));
    }
    coarsen_metrics(d->metrics);
    json_t *document = json_object();
    json_object_set(document, "metrics", d->metrics);
    json_object_set_new(document, "passed", json_boolean(d->passed));
    json_object_set_new(document, "score",
                        d->passed && d->has_score ? json_real(d->score) : json_null());
    buffer_clear(out);
    json_write_canonical(document, 2, out);
    json_decref(document);
    return true;
}

static bool invalid(struct error *err, const char *field, const char *what)
{
    error_set(err, "SCORE-INVALID", "%s %s", field, what);
    return error_at(err, NULL, field, NULL);
}

static bool validate_document(const json_t *document, struct error *err)
{
    if (!json_is_object(document))
        return invalid(err, "(root)", "must be an object");
    const json_t *metrics = json_object_get(document, "metrics");
    const json_t *passed = json_object_get(document, "passed");
    const json_t *score = json_object_get(document, "score");
    if (!metrics || !passed || !score || json_object_size(document) != 3)
        return invalid(err, "(root)", "must hold exactly metrics, passed and score");
    if (!json_is_boolean(passed))
        return invalid(err, "passed", "must be true or false");
    if (!json_is_null(score) && !json_is_number(score))
        return invalid(err, "score", "must be a number or null");
    if (json_is_false(passed) && !json_is_null(score))
        return invalid(err, "score", "must be null when passed is false");
    if (!score_keys_check(metrics, err))
        return false;
    const char *error = json_string_value(json_object_get(metrics, "error"));
    if (json_is_true(passed) != (*error == '\0'))
        return invalid(err, "metrics.error", "must be empty exactly when passed is true");
    if (number_at(metrics, "benchmark_wall_seconds") <
        number_at(metrics, "timed_benchmark_seconds"))
        return invalid(err, "metrics.benchmark_wall_seconds",
                       "must not be below timed_benchmark_seconds");
    return number_at(metrics, "gpqa_ttft_max_seconds") >=
               number_at(metrics, "gpqa_ttft_p50_seconds") ||
           invalid(err, "metrics.gpqa_ttft_max_seconds", "must not be below gpqa_ttft_p50_seconds");
}

bool score_validate(const char *data, size_t length, struct error *err)
{
    json_t *document = json_parse_strict(data, length, JSON_DEPTH_DEFAULT, NULL, err);
    if (!document) {
        if (err)
            text_copy(err->name, sizeof err->name, "SCORE-INVALID");
        return false;
    }
    bool ok = validate_document(document, err);
    json_decref(document);
    return ok;
}
