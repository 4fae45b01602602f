/* What overlay-timing asks of its two files, and what comes of them. */
#include "judge/job/overlay.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/stats.h"
#include "judge/job/inputs.h"
#include "judge/job/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A refusal with the place and its value. */
static bool refuse(struct error *err, const char *name, const char *field, const json_t *value,
                   const char *what)
{
    struct buffer text = {0};
    if (value != NULL)
        json_write_canonical(value, 0, &text);
    error_set(err, name, "%s", what);
    error_at(err, NULL, field, text.data);
    buffer_free(&text);
    return false;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static bool is_positive(const json_t *value)
{
    return json_is_number(value) && isfinite(json_number_value(value)) &&
           json_number_value(value) > 0;
}

/* ---- the gates' side ---- */

static bool refuse_gates(struct error *err, const char *field, const json_t *value,
                         const char *what)
{
    return refuse(err, "OVERLAY-GATES-REFUSED", field, value, what);
}

bool overlay_check_gates(const json_t *gates, const struct overlay_rules *r, struct error *err)
{
    static const char *const baselines[] = {"baseline_prefill_seconds_per_token",
                                            "baseline_decode_seconds_per_token"};
    const json_t *m = json_object_get(gates, "metrics"), *v = json_object_get(gates, "passed");
    if (!json_is_true(v))
        return refuse_gates(err, "passed", v, "the gates did not pass");
    v = json_object_get(gates, "score");
    if (!json_is_null(v))
        return refuse_gates(err, "score", v, "it has a score already");
    v = json_object_get(m, "partial_result");
    if (!json_is_true(v))
        return refuse_gates(err, "metrics.partial_result", v, "it is no gates-only result");
    v = json_object_get(m, "error");
    if (!json_is_string(v) || *json_string_value(v) != '\0')
        return refuse_gates(err, "metrics.error", v, "it carries an error");
    v = json_object_get(m, "passed_correctness");
    if (!json_is_true(v))
        return refuse_gates(err, "metrics.passed_correctness", v, "correctness did not pass");
    for (size_t i = 0; i < 2; i++) {
        char field[64];
        snprintf(field, sizeof field, "metrics.%s", baselines[i]);
        v = json_object_get(m, baselines[i]);
        if (!is_positive(v))
            return refuse_gates(err, field, v, "its baseline is not finite and above 0");
    }
    v = json_object_get(m, "harness_hash");
    if (!text_is_lower_hex(text_at(m, "harness_hash"), 64))
        return refuse_gates(err, "metrics.harness_hash", v,
                            "its harness hash is not 64 lower-case hex digits");
    return strcmp(text_at(m, "harness_hash"), r->harness_hash) == 0 ||
           refuse_gates(err, "metrics.harness_hash", v,
                        "the harness of the working folder is another now");
}

/* ---- both ---- */

static bool check_equal(const json_t *metrics, const char *key, const json_t *results,
                        struct error *err)
{
    const char *a = text_at(metrics, key), *b = text_at(results, key);
    char field[64], what[128];
    snprintf(field, sizeof field, "metrics.%s", key);
    snprintf(what, sizeof what, "the gates' score names no %s", key);
    if (*a == '\0')
        return refuse(err, "OVERLAY-MISMATCH", field, json_object_get(metrics, key), what);
    snprintf(what, sizeof what, "the results name no %s", key);
    if (*b == '\0')
        return refuse(err, "OVERLAY-MISMATCH", key, json_object_get(results, key), what);
    snprintf(what, sizeof what, "the gates' score and the results have a different %s", key);
    return strcmp(a, b) == 0 ||
           refuse(err, "OVERLAY-MISMATCH", key, json_object_get(results, key), what);
}

bool overlay_check_both(const json_t *gates, const json_t *results, const struct overlay_rules *r,
                        struct error *err)
{
    static const char key[] = "contract_sha256";
    const json_t *m = json_object_get(gates, "metrics");
    if (!check_equal(m, "commit", results, err) || !check_equal(m, "weights_hash", results, err))
        return false;
    if (strcmp(text_at(results, "track_id"), r->track_id) != 0)
        return refuse(err, "OVERLAY-MISMATCH", "track_id", json_object_get(results, "track_id"),
                      "the results are of another track than the contract");
    /* Files of other makers need not say which contract they were made under. */
    if (json_object_get(m, key) != NULL && strcmp(text_at(m, key), r->contract_sha256) != 0)
        return refuse(err, "OVERLAY-MISMATCH", "metrics.contract_sha256", json_object_get(m, key),
                      "the gates' score was made under another contract");
    return json_object_get(results, key) == NULL ||
           strcmp(text_at(results, key), r->contract_sha256) == 0 ||
           refuse(err, "OVERLAY-MISMATCH", key, json_object_get(results, key),
                  "the results were made under another contract");
}

/* ---- the results' side ---- */

static bool refuse_results(struct error *err, const char *field, const json_t *value,
                           const char *what)
{
    return refuse(err, "OVERLAY-RESULTS-REFUSED", field, value, what);
}

/* One reading of one document. */
struct reader {
    struct arena arena;
    const json_t *root, *pairs, *units;
    const struct overlay_rules *r;
    bool cohorts;
    struct job_times *times; /* of every pair */
    struct error *err;
};

static bool check_form(struct reader *d)
{
    static const char name[] = "RESULTS-INVALID";
    d->pairs = json_object_get(d->root, "pairs");
    d->cohorts = json_object_get(d->root, "per_cohort") != NULL;
    d->units = json_object_get(d->root, d->cohorts ? "per_cohort" : "per_prompt");
    if (!json_is_object(d->root))
        return refuse(d->err, name, "(root)", NULL, "the results are no object");
    if (!json_is_array(d->pairs))
        return refuse(d->err, name, "pairs", d->pairs, "the pairs are no array");
    if (!json_is_array(d->units) || json_array_size(d->units) == 0)
        return refuse(d->err, name, d->cohorts ? "per_cohort" : "per_prompt", NULL,
                      "the results hold neither prompts nor cohorts");
    if (!json_is_object(json_object_get(d->root, "aggregate")))
        return refuse(d->err, name, "aggregate", NULL, "the aggregate is no object");
    if (!json_is_object(json_object_get(d->root, "timed_series")))
        return refuse(d->err, name, "timed_series", NULL, "the timed series is no object");
    return true;
}

static bool check_acceptance(const struct reader *d)
{
    const json_t *v = json_object_get(d->root, "candidate_accepted");
    if (!json_is_true(v))
        return refuse_results(d->err, "candidate_accepted", v, "the candidate was not accepted");
    v = json_object_get(d->root, "local_dev");
    if (json_is_true(v))
        return refuse_results(d->err, "local_dev", v, "a developer's run is not scored");
    v = json_object_get(d->root, "calibration_bootstrap");
    if (json_is_true(v))
        return refuse_results(d->err, "calibration_bootstrap", v,
                              "a run for a calibration is not scored");
    return true;
}

static bool check_count(const struct reader *d)
{
    const json_t *v = json_object_get(d->root, "accepted_pair_count");
    const size_t count = json_array_size(d->pairs);
    if (!json_is_integer(v) || json_integer_value(v) != (json_int_t)count)
        return refuse_results(d->err, "accepted_pair_count", v,
                              "it is not the number of the pairs");
    const size_t least =
        d->cohorts ? d->r->min_pairs_per_prompt : d->r->pool_size * d->r->min_pairs_per_prompt;
    char what[128];
    snprintf(what, sizeof what, "fewer pairs were accepted than the %zu that are needed", least);
    return (count > 0 && count >= least) || refuse_results(d->err, "accepted_pair_count", v, what);
}

/* ---- the series ---- */

static bool check_series(const struct reader *d)
{
    const json_t *s = json_object_get(d->root, "timed_series");
    const json_t *v = json_object_get(s, "homogeneous");
    const char *tag = text_at(s, "candidate_leg_timed_mode");
    if (!json_is_true(v))
        return refuse_results(d->err, "timed_series.homogeneous", v,
                              "the pairs were not all timed in one way");
    if (*tag == '\0' || strcmp(tag, text_at(s, "serial_leg_timed_mode")) != 0)
        return refuse_results(d->err, "timed_series.serial_leg_timed_mode",
                              json_object_get(s, "serial_leg_timed_mode"),
                              "the legs were timed in different ways");
    v = json_object_get(s, "candidate_leg_timed_mode");
    if (d->r->timed_series != NULL && strcmp(d->r->timed_series, tag) != 0)
        return refuse_results(d->err, "timed_series.candidate_leg_timed_mode", v,
                              "MLXFAST_QWEN_MTP_TIMED_SERIES asks for another way of timing");
    for (size_t i = 0; i < json_array_size(d->pairs); i++) {
        static const char *const keys[] = {"serial_timed_mode", "candidate_timed_mode"};
        for (size_t k = 0; k < 2; k++) {
            char field[64];
            v = json_object_get(json_array_get(d->pairs, i), keys[k]);
            snprintf(field, sizeof field, "pairs[%zu].%s", i, keys[k]);
            if (!json_is_string(v) || strcmp(json_string_value(v), tag) != 0)
                return refuse_results(d->err, field, v,
                                      "a pair was timed in another way than the series says");
        }
    }
    return true;
}

/* ---- pairs ---- */

static bool read_number(const struct reader *d, const json_t *object, const char *path,
                        const char *key, double *out)
{
    char field[128];
    const json_t *v = json_object_get(object, key);
    *out = json_number_value(v);
    snprintf(field, sizeof field, "%s.%s", path, key);
    return is_positive(v) || refuse_results(d->err, field, v, "it is no finite number above 0");
}

static bool read_windows(const struct reader *d, const json_t *pair, const char *path,
                         struct job_times *t)
{
    char inner[64];
    const json_t *w = json_object_get(pair, "phase_windows");
    snprintf(inner, sizeof inner, "%s.phase_windows", path);
    if (d->r->prefill_exponent != 0 && !json_is_true(json_object_get(w, "certified")))
        return refuse_results(d->err, inner, json_object_get(w, "certified"),
                              "a pair's windows are not certified");
    return read_number(d, w, inner, "serial_prefill_window_seconds", &t->serial_prefill) &&
           read_number(d, w, inner, "candidate_prefill_window_seconds", &t->candidate_prefill) &&
           read_number(d, w, inner, "serial_decode_window_seconds", &t->serial_decode) &&
           read_number(d, w, inner, "candidate_decode_window_seconds", &t->candidate_decode);
}

static bool differs(double a, double b)
{
    return !(fabs(a - b) <= OVERLAY_MEDIAN_TOLERANCE);
}

static bool read_pair(struct reader *d, size_t i)
{
    const json_t *pair = json_array_get(d->pairs, i);
    struct job_times *t = &d->times[i];
    char path[40], field[64];
    double ratio;
    snprintf(path, sizeof path, "pairs[%zu]", i);
    snprintf(field, sizeof field, "%s.parity_ok", path);
    if (!json_is_true(json_object_get(pair, "parity_ok")))
        return refuse_results(d->err, field, json_object_get(pair, "parity_ok"),
                              "a pair's tokens were not the golden's");
    if (!read_number(d, pair, path, "serial_seconds_per_token", &t->serial) ||
        !read_number(d, pair, path, "mtp_seconds_per_token", &t->candidate) ||
        !read_number(d, pair, path, "raw_ratio", &ratio) ||
        (d->cohorts && !read_windows(d, pair, path, t)))
        return false;
    snprintf(field, sizeof field, "%s.raw_ratio", path);
    return !differs(ratio, job_pair_ratio(t)) ||
           refuse_results(d->err, field, json_object_get(pair, "raw_ratio"),
                          "it is not the ratio of the pair's two figures");
}

/* ---- prompts and cohorts ---- */

/* A unit's pairs follow one another, in the units' order. */
struct unit {
    char path[40];
    const json_t *record;
    const char *digest_key, *candidate_key;
    size_t first, count;
    double ratio; /* of means */
    struct job_composite composite;
};

static bool check_digest(const struct reader *d, const struct unit *u, size_t index)
{
    char field[96];
    const json_t *v = json_object_get(u->record, u->digest_key);
    const char *digest = json_string_value(v);
    snprintf(field, sizeof field, "%s.%s", u->path, u->digest_key);
    if (digest == NULL || !text_is_lower_hex(digest, 64))
        return refuse_results(d->err, field, v, "it is no SHA-256 of 64 lower-case hex digits");
    for (size_t i = 0; i < index; i++)
        if (strcmp(text_at(json_array_get(d->units, i), u->digest_key), digest) == 0)
            return refuse_results(d->err, field, v, "two of them are the same");
    for (size_t i = u->first; i < u->first + u->count; i++) {
        const json_t *said = json_object_get(json_array_get(d->pairs, i), u->digest_key);
        if (said != NULL && (!json_is_string(said) || strcmp(json_string_value(said), digest) != 0))
            return refuse_results(d->err, field, said, "a pair among its own is of another");
    }
    return true;
}

static bool check_sealed(const struct reader *d, const struct unit *u, const char *key,
                         double computed)
{
    char field[96];
    double sealed;
    snprintf(field, sizeof field, "%s.%s", u->path, key);
    if (!read_number(d, u->record, u->path, key, &sealed))
        return false;
    return !differs(sealed, computed) ||
           refuse_results(d->err, field, json_object_get(u->record, key),
                          "it is not what the pairs add up to");
}

static bool check_composite(const struct reader *d, struct unit *u)
{
    const json_t *exponents = json_object_get(u->record, "composite_scored_exponents");
    const json_t *e_p = json_object_get(exponents, "prefill_gain_exponent");
    const json_t *e_d = json_object_get(exponents, "decode_gain_exponent");
    const json_t *sealed =
        json_object_get(json_object_get(u->record, "composite"), "composite_score");
    char field[96];
    snprintf(field, sizeof field, "%s.composite_scored_exponents", u->path);
    if (!json_is_number(e_p) || !json_is_number(e_d) || json_number_value(e_p) < 0 ||
        json_number_value(e_d) < 0)
        return refuse_results(d->err, field, exponents, "the exponents are no two numbers");
    if (json_number_value(e_p) != d->r->prefill_exponent ||
        json_number_value(e_d) != d->r->decode_exponent)
        return refuse_results(d->err, field, exponents, "the exponents are not the contract's");
    snprintf(field, sizeof field, "%s.composite", u->path);
    if (!is_positive(sealed))
        return refuse_results(d->err, field, json_object_get(u->record, "composite_absent_reason"),
                              "the cohort has no composite");
    u->composite = job_cohort_composite(d->times + u->first, u->count, json_number_value(e_p),
                                        json_number_value(e_d));
    const double said = json_number_value(sealed);
    return fabs(said - u->composite.score) <= OVERLAY_COMPOSITE_TOLERANCE * fabs(said) ||
           refuse_results(d->err, field, sealed, "it is not what the pairs' windows add up to");
}

static bool check_unit(const struct reader *d, size_t index, struct unit *u)
{
    char field[96];
    const json_t *v = json_object_get(u->record, "accepted_pair_count");
    snprintf(field, sizeof field, "%s.accepted_pair_count", u->path);
    if (!json_is_integer(v) || json_integer_value(v) < 1 ||
        (size_t)json_integer_value(v) < d->r->min_pairs_per_prompt ||
        (size_t)json_integer_value(v) > json_array_size(d->pairs) - u->first)
        return refuse_results(d->err, field, v, "it has too few pairs, or more than there are");
    u->count = (size_t)json_integer_value(v);
    v = json_object_get(u->record, "parity_ok");
    snprintf(field, sizeof field, "%s.parity_ok", u->path);
    if (!json_is_true(v))
        return refuse_results(d->err, field, v, "its tokens were not the golden's");
    const struct job_means m = job_ratio_of_means(d->times + u->first, u->count);
    u->ratio = m.ratio;
    return check_digest(d, u, index) &&
           check_sealed(d, u, "serial_seconds_per_token_mean", m.serial) &&
           check_sealed(d, u, u->candidate_key, m.candidate) &&
           check_sealed(d, u, "raw_ratio_of_means", m.ratio) &&
           (!d->cohorts || check_composite(d, u));
}

static bool check_bounds(const struct reader *d)
{
    const size_t n = json_array_size(d->pairs);
    double *ratios = memory_alloc((n + 1) * sizeof *ratios);
    for (size_t i = 0; i < n; i++)
        ratios[i] = job_pair_ratio(&d->times[i]);
    const bool ok = job_judge_pairs(ratios, n, d->err);
    free(ratios);
    return ok;
}

/* Ratios of means, composites and gains of the units, and their medians. */
static bool check_units(struct reader *d, struct overlay_outcome *out)
{
    const size_t n = json_array_size(d->units), pairs = json_array_size(d->pairs);
    double *ratios = arena_array(&d->arena, n, sizeof *ratios);
    double *scores = arena_array(&d->arena, n, sizeof *scores);
    double *prefill = arena_array(&d->arena, n, sizeof *prefill);
    double *decode = arena_array(&d->arena, n, sizeof *decode);
    size_t first = 0;
    for (size_t i = 0; i < n; i++) {
        struct unit u = {.record = json_array_get(d->units, i),
                         .digest_key = d->cohorts ? "cohort_sha256" : "prompt_sha256",
                         .candidate_key = d->cohorts ? "candidate_seconds_per_token_mean"
                                                     : "mtp_seconds_per_token_mean",
                         .first = first};
        snprintf(u.path, sizeof u.path, "%s[%zu]", d->cohorts ? "per_cohort" : "per_prompt", i);
        if (!check_unit(d, i, &u))
            return false;
        first += u.count;
        ratios[i] = u.ratio;
        scores[i] = u.composite.score;
        prefill[i] = u.composite.prefill_gain;
        decode[i] = u.composite.decode_gain;
    }
    if (first != pairs)
        return refuse_results(d->err, d->cohorts ? "per_cohort" : "per_prompt", NULL,
                              "their pairs are fewer than the results have");
    const double median = stats_median(ratios, n);
    const json_t *sealed =
        json_object_get(json_object_get(d->root, "aggregate"), "raw_decode_speedup_median");
    if (!json_is_number(sealed) || differs(json_number_value(sealed), median))
        return refuse_results(d->err, "aggregate.raw_decode_speedup_median", sealed,
                              "it is not the median of the ratios of means");
    const struct job_means all = job_ratio_of_means(d->times, pairs);
    *out = (struct overlay_outcome){.cohorts = d->cohorts,
                                    .score = d->cohorts ? stats_median(scores, n) : median,
                                    .prefill_gain = d->cohorts ? stats_median(prefill, n) : 0,
                                    .decode_gain = d->cohorts ? stats_median(decode, n) : median,
                                    .serial_mean = all.serial,
                                    .candidate_mean = all.candidate};
    return true;
}

bool overlay_check_results(const json_t *results, const struct overlay_rules *r,
                           struct overlay_outcome *out, struct error *err)
{
    struct reader d = {.root = results, .r = r, .err = err};
    bool ok = check_form(&d) && check_acceptance(&d) && check_count(&d) && check_series(&d);
    if (ok)
        d.times = arena_array(&d.arena, json_array_size(d.pairs), sizeof *d.times);
    for (size_t i = 0; ok && i < json_array_size(d.pairs); i++)
        ok = read_pair(&d, i);
    ok = ok && check_bounds(&d) && check_units(&d, out);
    arena_free(&d.arena);
    return ok;
}

/* ---- the score ---- */

static json_t *prompt_metrics(const json_t *results)
{
    static const char *const keys[] = {"prompt_sha256", "effective_mean_draft_len",
                                       "mtp_seconds_per_token_mean"};
    json_t *list = json_array();
    size_t i;
    const json_t *from;
    json_array_foreach(json_object_get(results, "per_prompt"), i, from)
    {
        json_t *o = json_object();
        for (size_t k = 0; k < 3; k++)
            json_object_set(o, keys[k], json_object_get(from, keys[k]));
        /* Only a free run tells how far it went in a round. */
        if (json_object_size(o) == 3)
            json_array_append(list, o);
        json_decref(o);
    }
    if (json_array_size(list) > 0)
        return list;
    json_decref(list);
    return NULL;
}

static void fail_score(const struct overlay_outcome *o, struct score_document *d,
                       const struct error *why)
{
    char text[256];
    if (strcmp(why->name, "Floor") == 0) {
        snprintf(text, sizeof text,
                 "decode_speedup=%.6f floor=%.6f prefill_speedup=%.6f floor=%.6f", o->score,
                 JOB_SPEEDUP_FLOOR,
                 json_number_value(json_object_get(d->metrics, "prefill_speedup")),
                 json_number_value(json_object_get(d->metrics, "prefill_speedup_floor")));
        score_fail(d, "performance floor failed", text);
    } else if (strcmp(why->name, "Ceiling") == 0) {
        snprintf(text, sizeof text, "decode_speedup=%.6f ceiling=%.6f", o->score,
                 JOB_SPEEDUP_CEILING);
        score_fail(d, "performance ceiling failed", text);
    } else {
        score_fail(d, "computed score was not finite", NULL);
    }
}

bool overlay_apply(const json_t *gates, const json_t *results, const struct overlay_outcome *o,
                   struct score_document *d, struct error *err)
{
    char when[32];
    *d = (struct score_document){.metrics = json_deep_copy(json_object_get(gates, "metrics"))};
    score_set_bool(d, "partial_result", false);
    score_set_text(d, "timestamp", clock_utc_text(when, sizeof when));
    score_set_text(d, "scoring_mode", OVERLAY_SCORING_MODE);
    score_set_text(d, "aggregation",
                   o->cohorts ? "shared_window_composite_prefill_decode_gain"
                              : "median_of_per_prompt_raw_ratio_of_means");
    score_set_number(d, "decode_speedup_floor", JOB_SPEEDUP_FLOOR);
    score_set_number(d, "decode_speedup_ceiling", JOB_SPEEDUP_CEILING);
    score_set_number(d, "decode_speedup", o->decode_gain);
    if (o->cohorts)
        score_set_number(d, "prefill_speedup", o->prefill_gain);
    score_set_number(d, "decode_seconds_per_token", o->candidate_mean);
    score_set_number(d, "baseline_decode_seconds_per_token", o->serial_mean);
    json_t *prompts = o->cohorts ? NULL : prompt_metrics(results);
    if (prompts != NULL)
        score_set_json(d, "per_prompt", prompts);
    const bool passed = job_judge_score(o->score, err);
    score_set_bool(d, "passed_decode_speedup_floor", o->score >= JOB_SPEEDUP_FLOOR);
    if (!passed) {
        fail_score(o, d, err);
        return false;
    }
    d->passed = d->has_score = true;
    d->score = o->score;
    return true;
}
