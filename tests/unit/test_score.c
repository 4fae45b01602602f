/* Scores: the arithmetic with its edges, the 56 keys, the closed lists, coarsening, rendering. */
#include "base/json.h"
#include "judge/contract.h"
#include "judge/score.h"
#include "judge/score_keys.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static void test_speedup(void **state)
{
    (void)state;
    assert_true(score_speedup(3, 2) == 1.5);
    const double bad[] = {0, -1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_true(score_speedup(bad[i], 2) == 0);
        assert_true(score_speedup(2, bad[i]) == 0);
    }
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void test_composite(void **state)
{
    (void)state;
    const double gains[] = {0.5, 0.999999, 1, 1.0000001, 1.1216, 3.3096, 1e-300, 1e300};
    for (size_t i = 0; i < COUNT_OF(gains); i++)
        for (size_t k = 0; k < COUNT_OF(gains); k++) {
            double p = gains[i], d = gains[k];
            double wanted = pow(d, 0.75) * pow(p, 0.25);
            assert_true(same_bits(score_composite(p, d, 0.25, 0.75), wanted));
            /* Weights are divided by their sum; powers of two keep the division exact. */
            assert_true(same_bits(score_composite(p, d, 1, 3), wanted));
            /* A weight of 0: the gain is not read, the other is taken as it is. */
            assert_true(same_bits(score_composite(NAN, d, 0, 0.7), d));
            assert_true(same_bits(score_composite(p, -5, 0.3, 0), p));
        }
    const struct {
        double p, d, wp, wd;
    } none[] = {{1, 1, 0, 0},         {1, 1, -1, 2},
                {1, 1, NAN, 1},       {1, 1, 1, INFINITY},
                {0, 1, 0.25, 0.75},   {1, 0, 0.25, 0.75},
                {-1, 1, 0.25, 0.75},  {NAN, 1, 0.25, 0.75},
                {1, NAN, 0.25, 0.75}, {NAN, 1, 1.7e308, 1.7e308}};
    for (size_t i = 0; i < COUNT_OF(none); i++)
        assert_true(isnan(score_composite(none[i].p, none[i].d, none[i].wp, none[i].wd)));
    /* Two finite weights whose sum is not: every exponent is 0. */
    assert_true(score_composite(2, 2, 1.7e308, 1.7e308) == 1);
}

static void test_floor(void **state)
{
    (void)state;
    assert_true(score_clears_floor(0.95, 0.95));
    assert_true(score_clears_floor(1, 0.95));
    assert_false(score_clears_floor(nextafter(0.95, 0), 0.95));
    assert_false(score_clears_floor(NAN, 0.95));
    assert_false(score_clears_floor(1, NAN));
    assert_false(score_clears_floor(INFINITY, 0.95));
    assert_true(score_is_believed(4.5, 6, 0.25));
    assert_false(score_is_believed(nextafter(4.5, 0), 6, 0.25));
    assert_true(score_is_believed(100, 6, 0.25)); /* no slow side */
    assert_true(score_is_believed(1e-9, 6, 1));
    assert_false(score_is_believed(0, 6, 1));
    assert_false(score_is_believed(NAN, 6, 0.25));
    assert_false(score_is_believed(1, INFINITY, 0.25));
    assert_false(score_is_believed(1, 0, 0.25));
}

static void test_coarsen(void **state)
{
    (void)state;
    const struct {
        double value, coarse;
    } rows[] = {{12.345, 12}, {0.0012345, 0.0012}, {0.996, 1},       {99.6, 100},     {1.25, 1.2},
                {1.35, 1.4},  {-12.345, -12},      {1e-310, 1e-310}, {123456, 120000}};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_true(score_coarsen(rows[i].value) == rows[i].coarse);
    assert_true(score_coarsen(0) == 0);
    assert_true(signbit(score_coarsen(-0.0)));
    assert_true(isnan(score_coarsen(NAN)));
    assert_true(isinf(score_coarsen(INFINITY)));
}

static json_t *render(struct score_document *d)
{
    struct buffer text = {0};
    struct error err = {0};
    if (!score_render(d, &text, &err))
        fail_msg("%s: %s", err.name, err.message);
    if (!score_validate(text.data, text.length, &err))
        fail_msg("%s: %s", err.name, err.message);
    assert_true(text.data[text.length - 1] == '}'); /* no final newline */
    assert_true(strncmp(text.data, "{\n  \"metrics\": {\n    \"", 22) == 0);
    json_t *document = json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(document);
    /* Keys sorted bytewise: what jansson itself writes sorted is the same order. */
    const char *last = "";
    for (const char *line = strstr(text.data, "\n    \""); line;
         line = strstr(line + 1, "\n    \"")) {
        assert_true(strcmp(last, line) < 0);
        last = line;
    }
    buffer_free(&text);
    return document;
}

static void test_a_fresh_document_is_a_valid_failure(void **state)
{
    (void)state;
    struct score_document d;
    size_t count;
    score_document_init(&d, "rust-local-iterate");
    assert_int_equal(json_object_size(d.metrics), 56);
    json_t *document = render(&d);
    const struct score_key *keys = score_keys_required(&count);
    const json_t *metrics = json_object_get(document, "metrics");
    assert_int_equal(count, 56);
    assert_int_equal(json_object_size(metrics), 56);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(metrics, keys[i].key);
        assert_non_null(value);
        assert_true(json_is_null(value) == keys[i].nullable);
    }
    assert_true(json_is_false(json_object_get(document, "passed")));
    assert_true(json_is_null(json_object_get(document, "score")));
    assert_string_equal(json_string_value(json_object_get(metrics, "runtime")),
                        "rust-local-iterate");
    assert_string_equal(json_string_value(json_object_get(metrics, "bandwidth_source")),
                        "ram_resident_model");
    assert_string_equal(json_string_value(json_object_get(metrics, "error")),
                        "incomplete: the run ended before it passed");
    json_decref(document);
    score_document_free(&d);
}

/* The spec's list, written out once more, so that a key cannot be renamed by accident. */
static void test_the_56_keys_are_the_specs(void **state)
{
    (void)state;
    static const char *const keys[] = {"passed_correctness",
                                       "case_count",
                                       "checked_steps",
                                       "correctness_seconds",
                                       "first_failing_case",
                                       "first_failing_layer",
                                       "first_failing_step",
                                       "expected_token",
                                       "actual_token",
                                       "max_abs_diff",
                                       "num_layers",
                                       "prefill_seconds_per_token",
                                       "decode_seconds_per_token",
                                       "baseline_prefill_seconds_per_token",
                                       "baseline_decode_seconds_per_token",
                                       "prefill_speedup",
                                       "decode_speedup",
                                       "prefill_speedup_floor",
                                       "decode_speedup_floor",
                                       "passed_prefill_speedup_floor",
                                       "passed_decode_speedup_floor",
                                       "benchmark_wall_seconds",
                                       "timed_benchmark_seconds",
                                       "preflight_seconds",
                                       "peak_ram_gb",
                                       "process_resident_memory_gb",
                                       "bandwidth_gb_per_token",
                                       "bandwidth_source",
                                       "expert_bytes_read",
                                       "expert_read_seconds",
                                       "expert_cache_hits",
                                       "expert_cache_misses",
                                       "expert_cache_evictions",
                                       "expert_hit_rate",
                                       "expert_peak_cached_tensors",
                                       "gpqa_ttft_case_count",
                                       "gpqa_ttft_pass_count",
                                       "gpqa_ttft_passed",
                                       "gpqa_ttft_seconds",
                                       "gpqa_ttft_p50_seconds",
                                       "gpqa_ttft_max_seconds",
                                       "gpqa_ttft_source",
                                       "semantic_gpqa_case_count",
                                       "semantic_gpqa_pass_count",
                                       "semantic_gpqa_passed",
                                       "semantic_gpqa_model",
                                       "commit",
                                       "runtime",
                                       "timestamp",
                                       "golden_hash",
                                       "harness_hash",
                                       "weights_hash",
                                       "weights_byte_count",
                                       "weights_file_count",
                                       "error",
                                       "partial_result"};
    size_t count;
    const struct score_key *table = score_keys_required(&count);
    assert_int_equal(count, COUNT_OF(keys));
    for (size_t i = 0; i < count; i++)
        assert_string_equal(table[i].key, keys[i]);
    const struct score_key *optional = score_keys_optional(&count);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < COUNT_OF(keys); k++)
            assert_string_not_equal(optional[i].key, keys[k]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(optional[i].key, optional[k].key);
    }
}

static void test_passed_with_and_without_score(void **state)
{
    (void)state;
    struct score_document d;
    score_document_init(&d, "rust");
    d.passed = true;
    json_t *document = render(&d);
    assert_true(json_is_true(json_object_get(document, "passed")));
    assert_true(json_is_null(json_object_get(document, "score")));
    json_decref(document);
    d.has_score = true;
    d.score = 1.1216000000000002;
    document = render(&d);
    assert_true(json_real_value(json_object_get(document, "score")) == 1.1216000000000002);
    json_decref(document);
    /* A failure takes the score away, whatever was set. */
    score_fail(&d, "SERIAL-CONTROL-LEG-FAILED", "token 5 at step 3");
    score_fail(&d, "Protocol", "later");
    document = render(&d);
    assert_true(json_is_false(json_object_get(document, "passed")));
    assert_true(json_is_null(json_object_get(document, "score")));
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(document, "metrics"), "error")),
        "SERIAL-CONTROL-LEG-FAILED: token 5 at step 3");
    json_decref(document);
    score_document_free(&d);
}

static void test_a_score_that_is_not_finite_fails(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct score_document d;
        score_document_init(&d, "rust");
        d.passed = d.has_score = true;
        d.score = bad[i];
        json_t *document = render(&d);
        assert_false(d.passed);
        assert_true(json_is_null(json_object_get(document, "score")));
        assert_string_equal(
            json_string_value(json_object_get(json_object_get(document, "metrics"), "error")),
            "computed score was not finite");
        json_decref(document);
        score_document_free(&d);
    }
}

static void test_metrics_that_are_not_finite_become_zero(void **state)
{
    (void)state;
    struct score_document d;
    score_document_init(&d, "rust");
    score_set_number(&d, "decode_speedup", NAN);
    score_set_number(&d, "prefill_speedup", INFINITY);
    json_t *document = render(&d);
    const json_t *metrics = json_object_get(document, "metrics");
    assert_true(json_real_value(json_object_get(metrics, "decode_speedup")) == 0);
    assert_true(json_real_value(json_object_get(metrics, "prefill_speedup")) == 0);
    json_decref(document);
    score_document_free(&d);
}

static void test_coarsening_of_the_document(void **state)
{
    (void)state;
    struct score_document d;
    score_document_init(&d, "rust");
    score_set_number(&d, "peak_ram_gb", 12.345);
    score_set_number(&d, "decode_speedup", 1.2345678901234567);
    score_set_number(&d, "decode_seconds_per_token", 0.012345678);
    /* 9.94 -> 9.9 and 9.96 -> 10: the wall would fall below what it contains. */
    score_set_number(&d, "benchmark_wall_seconds", 9.94);
    score_set_number(&d, "timed_benchmark_seconds", 9.96);
    score_set_number(&d, "gpqa_ttft_p50_seconds", 3.4567);
    score_set_number(&d, "gpqa_ttft_max_seconds", 1);
    json_t *document = render(&d);
    const json_t *metrics = json_object_get(document, "metrics");
    assert_true(json_real_value(json_object_get(metrics, "peak_ram_gb")) == 12);
    assert_true(json_real_value(json_object_get(metrics, "decode_speedup")) == 1.2345678901234567);
    assert_true(json_real_value(json_object_get(metrics, "decode_seconds_per_token")) ==
                0.012345678);
    assert_true(json_real_value(json_object_get(metrics, "timed_benchmark_seconds")) == 10);
    assert_true(json_real_value(json_object_get(metrics, "benchmark_wall_seconds")) == 10);
    assert_true(json_real_value(json_object_get(metrics, "gpqa_ttft_p50_seconds")) == 3.5);
    assert_true(json_real_value(json_object_get(metrics, "gpqa_ttft_max_seconds")) == 3.5);
    json_decref(document);
    score_document_free(&d);
}

static void test_optional_keys(void **state)
{
    (void)state;
    struct score_document d;
    struct contract *c = NULL;
    struct error err = {0};
    static const char contract[] = "{\"track_id\":\"t-v1\"}";
    score_document_init(&d, "rust");
    assert_true(contract_parse("c", contract, strlen(contract), NULL, &c, &err));
    score_set_json(&d, "contract_sources", contract_sources(c));
    contract_free(c);
    score_set_text(&d, "contract_sha256", "00");
    score_set_int(&d, "engine_protocol_version", 1);
    score_set_bool(&d, "baseline_band_passed", true);
    score_set_json(&d, "acceptance_lengths", json_pack("[i,i]", 3, 1));
    score_set_json(&d, "local_phases",
                   json_pack("{s:s,s:i,s:s}", "correctness", "passed", "correctness_checked_steps",
                             64, "timing", "not_run"));
    score_set_json(&d, "paired_legs",
                   json_pack("[{s:i,s:s,s:f,s:f,s:f,s:f,s:i}]", "pair", 1, "prompt_sha256", "00",
                             "control_prefill_seconds_per_token", 1.0,
                             "control_decode_seconds_per_token", 1.0,
                             "candidate_prefill_seconds_per_token", 1.0,
                             "candidate_decode_seconds_per_token", 1.0, "token_mismatch_count", 0));
    score_set_json(&d, "per_prompt",
                   json_pack("[{s:s,s:f,s:f}]", "prompt_sha256", "00", "effective_mean_draft_len",
                             1.0, "mtp_seconds_per_token_mean", 1.0));
    score_set_json(&d, "gates",
                   json_loads("[{\"pair\":1,\"leg\":\"control\",\"phase\":\"decode\","
                              "\"quiescence\":{\"state\":\"quiet\",\"waited_seconds\":0,"
                              "\"load\":0.4,\"own_load\":0,\"others_cpu\":0,\"own_cpu\":0,"
                              "\"window_seconds\":2,\"gpu_use\":null},"
                              "\"temperature\":null,\"telemetry\":null}]",
                              0, NULL));
    json_t *document = render(&d);
    assert_int_equal(json_object_size(json_object_get(document, "metrics")), 56 + 9);
    json_decref(document);
    score_document_free(&d);
}

/* Every row sets one thing; the document must be refused, naming the key. */
static void test_render_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *field;
    } rows[] = {
        {"decode_speedupp", "1.5", "metrics.decode_speedupp"},
        {"secret_golden", "\"x\"", "metrics.secret_golden"},
        {"case_count", "1.5", "metrics.case_count"},
        {"case_count", "null", "metrics.case_count"},
        {"commit", "null", "metrics.commit"},
        {"decode_speedup", "\"1\"", "metrics.decode_speedup"},
        {"passed_correctness", "1", "metrics.passed_correctness"},
        {"first_failing_case", "4", "metrics.first_failing_case"},
        {"expected_token", "\"4\"", "metrics.expected_token"},
        {"acceptance_lengths", "{}", "metrics.acceptance_lengths"},
        {"acceptance_lengths", "[1,2.5]", "metrics.acceptance_lengths"},
        {"contract_sources", "{}", "metrics.contract_sources.scored_regime"},
        {"local_phases", "{\"correctness\":\"passed\",\"correctness_checked_steps\":1}",
         "metrics.local_phases.timing"},
        {"local_phases",
         "{\"correctness\":\"fine\",\"correctness_checked_steps\":1,\"timing\":\"passed\"}",
         "metrics.local_phases.correctness"},
        {"local_phases",
         "{\"correctness\":\"passed\",\"correctness_checked_steps\":1,\"timing\":\"passed\","
         "\"x\":1}",
         "metrics.local_phases.x"},
        {"paired_legs", "[{\"pair\":1}]", "metrics.paired_legs[0].prompt_sha256"},
        {"paired_legs", "[7]", "metrics.paired_legs[0]"},
        {"per_prompt", "[{\"tokens\":[1]}]", "metrics.per_prompt[0].tokens"},
        {"gates", "[1]", "metrics.gates[0]"},
        {"gates", "[{\"pair\":1}]", "metrics.gates[0].leg"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct score_document d;
        struct buffer text = {0};
        struct error err = {0};
        score_document_init(&d, "rust");
        score_set_json(&d, rows[i].key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        if (score_render(&d, &text, &err))
            fail_msg("rendered with %s = %s", rows[i].key, rows[i].value);
        assert_string_equal(err.name, "SCORE-INVALID");
        assert_string_equal(err.field, rows[i].field);
        score_document_free(&d);
        buffer_free(&text);
    }
    struct score_document d;
    struct buffer text = {0};
    struct error err = {0};
    score_document_init(&d, "rust");
    json_object_del(d.metrics, "golden_hash");
    assert_false(score_render(&d, &text, &err));
    assert_string_equal(err.field, "metrics.golden_hash");
    score_document_free(&d);
    score_document_init(&d, "rust");
    score_fail(&d, "Protocol", "x");
    d.passed = true;
    assert_false(score_render(&d, &text, &err));
    assert_string_equal(err.field, "metrics.error");
    score_document_free(&d);
    buffer_free(&text);
}

static void test_text_of_any_bytes(void **state)
{
    (void)state;
    struct score_document d;
    score_document_init(&d, "rust");
    score_set_text(&d, "engine_device", "a\xff\xc3\xa9\xed\xa0\x80z");
    json_t *document = render(&d);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(document, "metrics"), "engine_device")),
        "a\\xff\xc3\xa9\\xed\\xa0\\x80z");
    json_decref(document);
    score_document_free(&d);
}

static void test_validate_refuses(void **state)
{
    (void)state;
    struct score_document d;
    struct buffer text = {0};
    struct error err = {0};
    score_document_init(&d, "rust");
    d.passed = d.has_score = true;
    d.score = 2;
    assert_true(score_render(&d, &text, &err));
    json_t *good = json_loadb(text.data, text.length, 0, NULL);
    static const struct {
        const char *path, *value;
    } rows[] = {
        {"passed", "false"},
        {"passed", "1"},
        {"score", "\"2\""},
        {"metrics", "[]"},
        {"extra", "1"},
        {"metrics.error", "\"x\""},
        {"metrics.extra", "1"},
        {"metrics.commit", "7"},
        {"metrics.timed_benchmark_seconds", "4"},
        {"metrics.gpqa_ttft_p50_seconds", "4"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *copy = json_deep_copy(good);
        json_t *at = copy;
        const char *key = rows[i].path;
        if (strncmp(key, "metrics.", 8) == 0) {
            at = json_object_get(copy, "metrics");
            key += 8;
        }
        json_object_set_new(at, key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        char *dump = json_dumps(copy, 0);
        if (score_validate(dump, strlen(dump), &err))
            fail_msg("accepted %s = %s", rows[i].path, rows[i].value);
        assert_string_equal(err.name, "SCORE-INVALID");
        free(dump);
        json_decref(copy);
    }
    assert_false(score_validate("{", 1, &err));
    assert_string_equal(err.name, "SCORE-INVALID");
    json_object_del(json_object_get(good, "metrics"), "commit");
    char *dump = json_dumps(good, 0);
    assert_false(score_validate(dump, strlen(dump), &err));
    assert_string_equal(err.field, "metrics.commit");
    free(dump);
    json_decref(good);
    buffer_free(&text);
    score_document_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_speedup),
        cmocka_unit_test(test_composite),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_coarsen),
        cmocka_unit_test(test_a_fresh_document_is_a_valid_failure),
        cmocka_unit_test(test_the_56_keys_are_the_specs),
        cmocka_unit_test(test_passed_with_and_without_score),
        cmocka_unit_test(test_a_score_that_is_not_finite_fails),
        cmocka_unit_test(test_metrics_that_are_not_finite_become_zero),
        cmocka_unit_test(test_coarsening_of_the_document),
        cmocka_unit_test(test_optional_keys),
        cmocka_unit_test(test_render_refuses),
        cmocka_unit_test(test_text_of_any_bytes),
        cmocka_unit_test(test_validate_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
