/* parity-diff: every key has a bucket, every bucket its band on both sides, every tag its line. */
#include "base/json.h"
#include "judge/parity.h"
#include "judge/score.h"
#include "judge/score_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static json_t *sample(void)
{
    struct buffer text = {0};
    struct error err = {0};
    if (!parity_sample(&text, &err))
        fail_msg("%s: %s", err.name, err.message);
    json_t *score = json_parse_strict(text.data, text.length, JSON_DEPTH_DEFAULT, "sample", &err);
    assert_non_null(score);
    buffer_free(&text);
    return score;
}

static json_t *metrics_of(json_t *score)
{
    json_t *metrics = json_object_get(score, "metrics");
    assert_non_null(metrics);
    return metrics;
}

static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

/* The lines of a comparison; the caller frees them. */
static struct parity_result compare(const json_t *a, const json_t *b, struct buffer *lines)
{
    struct parity_result r, turned;
    struct buffer other = {0};
    buffer_clear(lines);
    parity_diff(a, b, lines, &r);
    parity_diff(b, a, &other, &turned); /* which side is which does not matter */
    assert_int_equal(r.differences, turned.differences);
    assert_int_equal(r.waived, turned.waived);
    buffer_free(&other);
    return r;
}

static void test_sample_is_a_score_with_every_key(void **state)
{
    (void)state;
    struct buffer text = {0};
    struct error err = {0};
    assert_true(parity_sample(&text, &err));
    assert_true(score_validate(text.data, text.length, &err));
    json_t *score = sample();
    size_t required, optional;
    score_keys_required(&required);
    score_keys_optional(&optional);
    assert_int_equal(json_object_size(metrics_of(score)), required + optional);
    json_decref(score);
    buffer_free(&text);
}

static void test_every_key_has_a_bucket(void **state)
{
    (void)state;
    size_t count;
    const struct score_key *keys = score_keys_required(&count);
    for (size_t i = 0; i < count; i++)
        assert_int_not_equal(parity_bucket_of(keys[i].key), PARITY_UNKNOWN);
    keys = score_keys_optional(&count);
    for (size_t i = 0; i < count; i++) {
        assert_int_not_equal(parity_bucket_of(keys[i].key), PARITY_UNKNOWN);
        /* A name in seconds is a time, a text is never one. */
        if (strstr(keys[i].key, "seconds"))
            assert_int_equal(parity_bucket_of(keys[i].key), PARITY_TIMED);
        if (keys[i].kind == SCORE_TEXT)
            assert_int_not_equal(parity_bucket_of(keys[i].key), PARITY_TIMED);
    }
    assert_int_equal(parity_bucket_of("peak_ram_gb"), PARITY_DET_TOL);
    assert_int_equal(parity_bucket_of("error"), PARITY_ERROR);
    assert_int_equal(parity_bucket_of("golden_hash"), PARITY_DET);
    assert_int_equal(parity_bucket_of("first_failing_step"), PARITY_FAILING);
    assert_int_equal(parity_bucket_of("nonsense"), PARITY_UNKNOWN);
}

static void test_a_score_is_the_same_as_itself(void **state)
{
    (void)state;
    json_t *a = sample(), *b = sample();
    struct buffer lines = {0};
    const struct parity_result r = compare(a, b, &lines);
    assert_int_equal(r.differences, 0);
    assert_int_equal(r.waived, 0);
    assert_int_equal(lines.length, 0);
    assert_true(r.compared > 80 && r.not_compared >= 11);
    json_decref(a);
    json_decref(b);
    buffer_free(&lines);
}

static void test_bands_on_both_sides(void **state)
{
    (void)state;
    static const struct {
        const char *key, *a, *b, *tag; /* NULL: the same */
    } rows[] = {
        {"decode_seconds_per_token", "1.0", "0.9", NULL},
        {"decode_seconds_per_token", "100", "90", NULL},
        {"decode_seconds_per_token", "100", "89.999", "TIMED"},
        {"decode_seconds_per_token", "0", "0.0", NULL},
        {"decode_seconds_per_token", "0", "1e-9", "TIMED"},
        {"prefill_speedup", "-1", "1", "TIMED"},
        {"timed_benchmark_seconds", "1", "null", "TIMED"},
        {"peak_ram_gb", "100", "95", NULL},
        {"peak_ram_gb", "100", "94.999", "DET-TOL"},
        {"max_abs_diff", "0.5", "0.5000000001", NULL},
        {"max_abs_diff", "0.5", "0.500000002", "DET"},
        {"max_abs_diff", "1e6", "1000000.0005", NULL},
        {"max_abs_diff", "1e6", "1000000.002", "DET"},
        {"case_count", "3", "3", NULL},
        {"case_count", "3", "4", "DET"},
        {"case_count", "3", "3.0", NULL},
        {"checked_steps", "9007199254740993", "9007199254740992", "DET"},
        {"golden_hash", "\"aa\"", "\"ab\"", "DET"},
        {"golden_hash", "\"aa\"", "7", "DET"},
        {"passed_correctness", "true", "false", "DET"},
        {"partial_result", "true", "1", "DET"},
        {"first_failing_case", "\"x\"", "\"y\"", "FAILING"},
        {"first_failing_step", "null", "3", "FAILING"},
        {"expected_token", "7", "8", "FAILING"},
        {"error", "\"NOT-PASSED: a\"", "\"not-passed: b\"", NULL},
        {"error", "\"NOT-PASSED\"", "\"Not-Passed: b: c\"", NULL},
        {"error", "\"\"", "\"x\"", "ERROR-CLASS"},
        {"error", "\"ab: x\"", "\"abc: x\"", "ERROR-CLASS"},
        {"error", "\"ab\"", "null", "ERROR-CLASS"},
        {"commit", "\"a\"", "\"b\"", NULL},
        {"gates", "[{\"t\":1}]", "[]", NULL},
        {"acceptance_lengths", "[1,2]", "[1,2]", NULL},
        {"acceptance_lengths", "[1,2]", "[1,3]", "DET"},
        {"acceptance_lengths", "[1,2]", "[1]", "SCHEMA-DRIFT-MISSING"},
        {"paired_legs", "[{\"pair\":1,\"control_decode_seconds_per_token\":1.0}]",
         "[{\"pair\":1,\"control_decode_seconds_per_token\":0.95}]", NULL},
        {"paired_legs", "[{\"pair\":1,\"control_decode_seconds_per_token\":1.0}]",
         "[{\"pair\":1,\"control_decode_seconds_per_token\":0.85}]", "TIMED"},
        {"paired_legs", "[{\"pair\":1}]", "[{\"pair\":2}]", "DET"},
        {"paired_legs", "[{\"pair\":1}]", "[{}]", "SCHEMA-DRIFT-MISSING"},
        {"paired_legs", "[{\"pair\":1}]", "[{\"pair\":1,\"pear\":1}]", "UNKNOWN-FIELD"},
        {"paired_legs", "[{\"pair\":1}]", "[]", "SCHEMA-DRIFT-MISSING"},
        {"local_phases", "{\"timing\":\"passed\"}", "{\"timing\":\"failed\"}", "DET"},
        {"local_phases", "{\"timing\":\"passed\"}", "\"passed\"", "DET"},
    };
    struct buffer lines = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *a = sample(), *b = sample();
        json_object_set_new(metrics_of(a), rows[i].key, value_of(rows[i].a));
        json_object_set_new(metrics_of(b), rows[i].key, value_of(rows[i].b));
        const struct parity_result r = compare(a, b, &lines);
        if (r.differences != (rows[i].tag ? 1 : 0))
            fail_msg("%s %s %s: %s", rows[i].key, rows[i].a, rows[i].b,
                     lines.data ? lines.data : "");
        if (rows[i].tag &&
            (strncmp(lines.data, rows[i].tag, strlen(rows[i].tag)) != 0 ||
             lines.data[strlen(rows[i].tag)] != ' ' || !strstr(lines.data, rows[i].key)))
            fail_msg("%s %s %s: %s", rows[i].key, rows[i].a, rows[i].b, lines.data);
        json_decref(a);
        json_decref(b);
    }
    buffer_free(&lines);
}

static void test_presence(void **state)
{
    (void)state;
    static const struct {
        const char *key, *tag;
    } rows[] = {
        {"harness_hash", "SCHEMA-DRIFT-MISSING metrics.harness_hash"}, /* required, though Env */
        {"decode_speedup", "SCHEMA-DRIFT-MISSING metrics.decode_speedup"},
        {"spec_rounds", "SCHEMA-DRIFT-MISSING metrics.spec_rounds"},
        {"candidate_leg_decode_seconds_per_token", "SCHEMA-DRIFT-MISSING"},
        {"baseline_box", NULL}, /* optional and Env */
    };
    struct buffer lines = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *a = sample(), *b = sample();
        json_object_del(metrics_of(b), rows[i].key);
        const struct parity_result r = compare(a, b, &lines);
        assert_int_equal(r.differences, rows[i].tag ? 1 : 0);
        if (rows[i].tag) {
            assert_int_equal(strncmp(lines.data, rows[i].tag, strlen(rows[i].tag)), 0);
            assert_non_null(strstr(lines.data, "(absent)"));
        }
        json_decref(a);
        json_decref(b);
    }
    /* A required key that neither side has is a drift of both. */
    json_t *a = sample(), *b = sample();
    json_object_del(metrics_of(a), "num_layers");
    json_object_del(metrics_of(b), "num_layers");
    assert_int_equal(compare(a, b, &lines).differences, 1);
    json_decref(a);
    json_decref(b);
    buffer_free(&lines);
}

static void test_top_level(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b, *line;
    } rows[] = {
        {"{\"passed\":1}", "{}", "PASSED-NOT-BOOL passed: 1 | true\n"},
        {"{\"passed\":\"true\"}", "{\"passed\":null}", "PASSED-NOT-BOOL passed: \"true\" | null\n"},
        {"{\"passed\":false}", "{}", "DET passed: false | true\n"},
        {"{\"score\":2.0}", "{}", "TIMED score: 2.0 | 1.0\n"},
        {"{\"score\":null}", "{}", "TIMED score: null | 1.0\n"},
        {"{\"score\":1.05}", "{}", ""},
        {"{\"extra\":1}", "{}", "UNKNOWN-FIELD extra: 1 | (absent)\n"},
        {"{}", "{\"extra\\n\":1}", "UNKNOWN-FIELD extra\\x0a: (absent) | 1\n"},
        {"{\"metrics\":7}", "{\"metrics\":7}", "SCHEMA-DRIFT-MISSING metrics: 7 | 7\n"},
    };
    struct buffer lines = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *a = sample(), *b = sample();
        json_t *changes_a = value_of(rows[i].a), *changes_b = value_of(rows[i].b);
        json_object_update(a, changes_a);
        json_object_update(b, changes_b);
        compare(a, b, &lines);
        assert_string_equal(lines.data ? lines.data : "", rows[i].line);
        json_decref(changes_a);
        json_decref(changes_b);
        json_decref(a);
        json_decref(b);
    }
    json_t *a = json_object(), *b = json_object();
    assert_int_equal(compare(a, b, &lines).differences, 3); /* passed, score, metrics */
    json_decref(a);
    json_decref(b);
    buffer_free(&lines);
}

/* Times do not matter when neither run got to its end; all else does. */
static void test_waiver(void **state)
{
    (void)state;
    struct buffer lines = {0};
    json_t *a = sample(), *b = sample();
    json_object_set_new(metrics_of(b), "decode_seconds_per_token", json_real(9));
    json_object_set_new(b, "score", json_null());
    json_object_del(metrics_of(b), "candidate_leg_decode_seconds_per_token");
    json_object_set_new(a, "passed", json_false());
    struct parity_result r = compare(a, b, &lines);
    assert_int_equal(r.waived, 0); /* one side passed */
    assert_int_equal(r.differences, 4);
    json_object_set_new(b, "passed", json_false());
    r = compare(a, b, &lines);
    assert_int_equal(r.differences, 0);
    assert_int_equal(r.waived, 3);
    json_object_set_new(metrics_of(b), "first_failing_step", json_integer(12));
    json_object_set_new(metrics_of(b), "peak_ram_gb", json_real(50));
    json_object_del(metrics_of(b), "prefill_seconds_per_token"); /* a required key is not a time */
    r = compare(a, b, &lines);
    assert_int_equal(r.differences, 3);
    assert_non_null(strstr(lines.data, "FAILING metrics.first_failing_step: "));
    assert_non_null(strstr(lines.data, "DET-TOL metrics.peak_ram_gb: "));
    assert_non_null(strstr(lines.data, "SCHEMA-DRIFT-MISSING metrics.prefill_seconds_per_token: "));
    json_decref(a);
    json_decref(b);
    buffer_free(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_is_a_score_with_every_key),
        cmocka_unit_test(test_every_key_has_a_bucket),
        cmocka_unit_test(test_a_score_is_the_same_as_itself),
        cmocka_unit_test(test_bands_on_both_sides),
        cmocka_unit_test(test_presence),
        cmocka_unit_test(test_top_level),
        cmocka_unit_test(test_waiver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
