/* The calibration file: every rule by a file that breaks it, both sides of each limit, the health
 * of a control leg, writing and reading again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "judge/ranked/calibration.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define A40 "0123456789abcdef0123456789abcdef01234567"
#define AXIS(name, mean, cv)                                                                       \
    "\"" name "_seconds_per_token_mean\":" mean ",\"" name "_cv\":" cv ",\"" name                  \
    "_band_low\":0.95,\"" name "_band_high\":1.05"
#define PROMPT(name)                                                                               \
    "{\"prompt\":\"" name                                                                          \
    "\",\"passes\":4," AXIS("prefill", "0.001", "0.01") "," AXIS("decode", "0.01", "0.002") "}"
#define HEAD                                                                                       \
    "\"version\":3,\"track_id\":\"t-v1\",\"box\":\"b\",\"captured_at\":\"now\","                   \
    "\"reference_commit\":\"" A40 "\",\"benchd_source_commit\":\"" A40 "\","
#define GATE                                                                                       \
    "{\"pass\":1,\"phase\":\"prefill\",\"quiescence\":{},\"temperature\":{},\"telemetry\":{}}"

static const char good[] = "{" HEAD "\"prompts\":[" PROMPT("one") "," PROMPT("two") "]}";

static struct error err;

static struct calibration *parse(const char *text)
{
    struct calibration *c = NULL;
    err = (struct error){0};
    if (!calibration_parse("c.json", text, strlen(text), CALIBRATION_CV_MAX, &c, &err))
        assert_null(c);
    return c;
}

/* A text with one part of it replaced. */
static char *with(const char *text, const char *part, const char *other)
{
    const char *found = strstr(text, part);
    assert_non_null(found);
    struct buffer b = {0};
    buffer_append(&b, text, (size_t)(found - text));
    buffer_text(&b, other);
    buffer_text(&b, found + strlen(part));
    return b.data;
}

static void refused(const char *text, const char *name, const char *field)
{
    assert_null(parse(text));
    assert_string_equal(err.name, name);
    assert_string_equal(err.field, field);
    assert_string_equal(err.file, "c.json");
    assert_true(err.message[0] != '\0');
}

static void test_a_good_file(void **state)
{
    (void)state;
    struct calibration *c = parse(good);
    assert_non_null(c);
    assert_string_equal(c->track_id, "t-v1");
    assert_string_equal(c->box, "b");
    assert_string_equal(c->reference_commit, A40);
    assert_int_equal(c->prompt_count, 2);
    assert_string_equal(c->prompts[1].prompt, "two");
    assert_int_equal(c->prompts[0].passes, 4);
    assert_true(c->prompts[0].prefill.seconds_per_token_mean == 0.001);
    assert_true(c->prompts[0].decode.cv == 0.002);
    assert_null(c->gates);
    calibration_free(c);
}

static void test_versions(void **state)
{
    (void)state;
    static const char flat[] = "{\"version\":1,\"prompt\":\"one\",\"passes\":4}";
    refused(flat, "BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE", "version");
    refused("{\"version\":2}", "BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE", "version");
    static const char *const other[] = {"{\"version\":0}",
                                        "{\"version\":4}",
                                        "{\"version\":-3}",
                                        "{\"version\":3.0}",
                                        "{\"version\":\"3\"}",
                                        "{\"version\":null}",
                                        "{}"};
    for (size_t i = 0; i < COUNT_OF(other); i++)
        refused(other[i], "BASELINE-CALIBRATION-INVALID", "version");
}

static void test_no_json_of_ours(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "[]", "3", "{\"version\":3", "{\"version\":3}x"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_null(parse(wrong[i]));
        assert_string_equal(err.name, "BASELINE-CALIBRATION-INVALID");
    }
}

/* One part of a good file replaced, and the field that is named. */
static void test_every_rule(void **state)
{
    (void)state;
    static const struct {
        const char *part, *other, *field;
    } rows[] = {
        {"\"track_id\":\"t-v1\"", "\"track_id\":\"\"", "track_id"},
        {"\"track_id\":\"t-v1\"", "\"track_id\":\" \\t\"", "track_id"},
        {"\"track_id\":\"t-v1\"", "\"track_id\":3", "track_id"},
        {"\"track_id\":\"t-v1\",", "", "track_id"},
        {"\"box\":\"b\"", "\"box\":\" \"", "box"},
        {"\"box\":\"b\",", "", "box"},
        {"\"captured_at\":\"now\"", "\"captured_at\":\"\"", "captured_at"},
        {"\"captured_at\":\"now\",", "", "captured_at"},
        {"\"reference_commit\":\"" A40 "\"", "\"reference_commit\":\"" A40 "0\"",
         "reference_commit"},
        {"\"reference_commit\":\"0123", "\"reference_commit\":\"012G", "reference_commit"},
        {"\"reference_commit\":\"" A40 "\",", "", "reference_commit"},
        {"\"benchd_source_commit\":\"0123", "\"benchd_source_commit\":\"012A",
         "benchd_source_commit"},
        {"\"benchd_source_commit\":\"" A40 "\",", "", "benchd_source_commit"},
        {"\"box\":\"b\"", "\"box\":\"b\",\"machine\":\"x\"", "machine"},
        {"\"prompt\":\"two\"", "\"prompt\":\"one\"", "prompts[1].prompt"},
        {"\"prompt\":\"two\"", "\"prompt\":\"\"", "prompts[1].prompt"},
        {"\"prompt\":\"two\"", "\"prompt\":\"two\",\"note\":1", "prompts[1].note"},
        {"\"passes\":4", "\"passes\":1", "prompts[0].passes"},
        {"\"passes\":4", "\"passes\":-4", "prompts[0].passes"},
        {"\"passes\":4", "\"passes\":4.0", "prompts[0].passes"},
        {"\"passes\":4,", "", "prompts[0].passes"},
        {"\"prefill_seconds_per_token_mean\":0.001", "\"prefill_seconds_per_token_mean\":0",
         "prompts[0].prefill_seconds_per_token_mean"},
        {"\"prefill_seconds_per_token_mean\":0.001", "\"prefill_seconds_per_token_mean\":-1",
         "prompts[0].prefill_seconds_per_token_mean"},
        {"\"decode_seconds_per_token_mean\":0.01", "\"decode_seconds_per_token_mean\":0.0",
         "prompts[0].decode_seconds_per_token_mean"},
        {"\"decode_seconds_per_token_mean\":0.01,", "", "prompts[0].decode_seconds_per_token_mean"},
        {"\"prefill_cv\":0.01", "\"prefill_cv\":-0.001", "prompts[0].prefill_cv"},
        {"\"decode_cv\":0.002", "\"decode_cv\":\"small\"", "prompts[0].decode_cv"},
        {"\"prefill_band_low\":0.95", "\"prefill_band_low\":0", "prompts[0].prefill_band_low"},
        {"\"prefill_band_low\":0.95", "\"prefill_band_low\":1.001", "prompts[0].prefill_band_low"},
        {"\"prefill_band_high\":1.05", "\"prefill_band_high\":0.999",
         "prompts[0].prefill_band_high"},
        {"\"decode_band_low\":0.95", "\"decode_band_low\":-1", "prompts[0].decode_band_low"},
        {"\"decode_band_high\":1.05", "\"decode_band_high\":0.5", "prompts[0].decode_band_high"},
        {"\"decode_band_high\":1.05", "\"decode_band_higher\":1.05",
         "prompts[0].decode_band_higher"},
        {"\"prompts\":[" PROMPT("one") "," PROMPT("two") "]", "\"prompts\":[]", "prompts"},
        {"\"prompts\":[" PROMPT("one") "," PROMPT("two") "]", "\"prompts\":{}", "prompts"},
        {"\"prompts\":[" PROMPT("one") "," PROMPT("two") "]", "\"prompts\":[1]", "prompts[0]"},
        {"\"version\":3,", "\"version\":3,\"gates\":{},", "gates"},
        {"\"version\":3,", "\"version\":3,\"gates\":[1],", "gates[0]"},
        {"\"version\":3,", "\"version\":3,\"gates\":[{}],", "gates[0].pass"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char *text = with(good, rows[i].part, rows[i].other);
        refused(text, "BASELINE-CALIBRATION-INVALID", rows[i].field);
        free(text);
    }
}

static void test_limits_are_inside(void **state)
{
    (void)state;
    static const struct {
        const char *part, *other;
    } rows[] = {
        {"\"passes\":4", "\"passes\":2"},
        {"\"prefill_cv\":0.01", "\"prefill_cv\":0"},
        {"\"prefill_band_low\":0.95", "\"prefill_band_low\":1"},
        {"\"prefill_band_high\":1.05", "\"prefill_band_high\":1"},
        {"\"prefill_band_low\":0.95", "\"prefill_band_low\":1e-9"},
        {"\"version\":3,", "\"version\":3,\"gates\":[],"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char *text = with(good, rows[i].part, rows[i].other);
        struct calibration *c = parse(text);
        assert_non_null(c);
        calibration_free(c);
        free(text);
    }
}

static void test_cv_on_both_sides_of_its_limit(void **state)
{
    (void)state;
    char *text = with(good, "\"prefill_cv\":0.01", "\"prefill_cv\":0.010000001");
    refused(text, "CALIBRATION-CV-EXCEEDED", "prompts[0].prefill_cv");
    struct calibration *c = NULL; /* a contract that declares another */
    assert_true(calibration_parse("c.json", text, strlen(text), 0.02, &c, &err));
    calibration_free(c);
    free(text);
    text = with(good, "\"decode_cv\":0.002", "\"decode_cv\":0.5");
    refused(text, "CALIBRATION-CV-EXCEEDED", "prompts[0].decode_cv");
    free(text);
}

static void test_gates(void **state)
{
    (void)state;
    char *text = with(good, "\"version\":3,", "\"version\":3,\"gates\":[" GATE "," GATE "],");
    struct calibration *c = parse(text);
    assert_non_null(c);
    assert_int_equal(json_array_size(c->gates), 2);
    calibration_free(c);
    static const struct {
        const char *part, *other, *field;
    } rows[] = {
        {"\"pass\":1", "\"pass\":0", "gates[0].pass"},
        {"\"pass\":1", "\"pair\":1", "gates[0].pair"},
        {"\"pass\":1", "\"pass\":1,\"leg\":\"control\"", "gates[0].leg"},
        {"\"phase\":\"prefill\"", "\"phase\":\" \"", "gates[0].phase"},
        {"\"quiescence\":{}", "\"quiescence\":null", "gates[0].quiescence"},
        {"\"temperature\":{}", "\"temperature\":[]", "gates[0].temperature"},
        {",\"telemetry\":{}", "", "gates[0].telemetry"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char *wrong = with(text, rows[i].part, rows[i].other);
        refused(wrong, "BASELINE-CALIBRATION-INVALID", rows[i].field);
        free(wrong);
    }
    free(text);
}

static void test_lookup_is_exact(void **state)
{
    (void)state;
    struct calibration *c = parse(good);
    const struct calibration_prompt *p = NULL;
    assert_true(calibration_find(c, "two", "b", "t-v1", &p, &err));
    assert_string_equal(p->prompt, "two");
    static const struct {
        const char *prompt, *box, *track, *name;
    } rows[] = {
        {"two", "b", "t-v2", "BASELINE-CALIBRATION-TRACK-MISMATCH"},
        {"two", "b", "T-v1", "BASELINE-CALIBRATION-TRACK-MISMATCH"},
        {"three", "other", "t-v2", "BASELINE-CALIBRATION-TRACK-MISMATCH"}, /* the first of three */
        {"two", "b ", "t-v1", "BASELINE-CALIBRATION-BOX-MISMATCH"},
        {"three", "", "t-v1", "BASELINE-CALIBRATION-BOX-MISMATCH"},
        {"tw", "b", "t-v1", "BASELINE-CALIBRATION-PROMPT-MISMATCH"},
        {"two.", "b", "t-v1", "BASELINE-CALIBRATION-PROMPT-MISMATCH"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_false(calibration_find(c, rows[i].prompt, rows[i].box, rows[i].track, &p, &err));
        assert_null(p);
        assert_string_equal(err.name, rows[i].name);
    }
    calibration_free(c);
}

/* Means 0.001 and 0.01. */
static void test_health_on_both_sides_of_each_limit(void **state)
{
    (void)state;
    struct calibration *c = parse(good);
    const struct calibration_prompt *p = &c->prompts[0];
    const struct contract bare = {0};
    const struct calibration_bands bands = calibration_bands(&bare);
    assert_true(bands.prefill_high == 1.05 && bands.decode_high == 1.02);
    assert_true(bands.prefill_low == 0.95 && bands.decode_low == 0.98);
    const double prefill = 0.001 * 1.05, decode = 0.01 * 1.02;
    assert_true(calibration_health(p, &bands, 0.001, 0.01, &err));
    assert_true(calibration_health(p, &bands, prefill, decode, &err)); /* equality passes */
    assert_true(calibration_health(p, &bands, 1e-9, 1e-9, &err));      /* the low side is open */
    assert_false(calibration_health(p, &bands, nextafter(prefill, 1), 0.01, &err));
    assert_string_equal(err.name, "SERIAL-CONTROL-LEG-OUTSIDE-BAND");
    assert_string_equal(err.field, "prefill_seconds_per_token");
    assert_false(calibration_health(p, &bands, 0.001, nextafter(decode, 1), &err));
    assert_string_equal(err.name, "SERIAL-CONTROL-LEG-OUTSIDE-BAND");
    assert_string_equal(err.field, "decode_seconds_per_token");
    const double wrong[] = {0, -0.001, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_false(calibration_health(p, &bands, wrong[i], 0.01, &err));
        assert_false(calibration_health(p, &bands, 0.001, wrong[i], &err));
    }
    calibration_free(c);
}

/* The mean of pairs: any leg. The median: when the legs outside are more than half of all there
 * will be. */
static void test_tally(void **state)
{
    (void)state;
    struct calibration_tally every = {.every = true, .planned = 9};
    assert_true(calibration_tally_add(&every, true));
    assert_false(calibration_tally_add(&every, false));
    assert_false(calibration_tally_add(&every, true));
    struct calibration_tally one = {.planned = 1};
    assert_false(calibration_tally_add(&one, false));
    struct calibration_tally most = {.planned = 4};
    assert_true(calibration_tally_add(&most, false));
    assert_true(calibration_tally_add(&most, false));
    assert_true(calibration_tally_add(&most, true));
    assert_true(calibration_tally_add(&most, true));
    assert_true(calibration_tally_add(&most, true)); /* more than were planned */
    assert_true(calibration_tally_add(&most, false));
    assert_false(calibration_tally_add(&most, false));
    assert_int_equal(most.legs, 7);
    assert_int_equal(most.outside, 4);
}

static void test_bands_and_cv_limit_of_a_contract(void **state)
{
    (void)state;
    const struct contract declared = {.has_bands = true,
                                      .prefill_band_up = 0.5,
                                      .prefill_band_down = 0.25,
                                      .decode_band_up = 0,
                                      .decode_band_down = 0.125,
                                      .has_calibration_cv_max = true,
                                      .calibration_cv_max = 0.02};
    const struct contract bare = {0};
    const struct calibration_bands b = calibration_bands(&declared);
    assert_true(b.prefill_high == 1.5 && b.prefill_low == 0.75);
    assert_true(b.decode_high == 1 && b.decode_low == 0.875);
    assert_true(calibration_cv_limit(&declared) == 0.02);
    assert_true(calibration_cv_limit(&bare) == 0.01);
}

/* 0.98, 1, 1.02: the sample's standard deviation is 0.02. */
static void test_axis_is_mean_and_sample_cv(void **state)
{
    (void)state;
    const double x[] = {2 * 0.98, 2 * 1.0, 2 * 1.02};
    const struct calibration_axis a = calibration_axis_of(x, 3, 0.9, 1.1);
    assert_true(fabs(a.seconds_per_token_mean - 2) < 1e-15);
    assert_true(fabs(a.cv - 0.02) < 1e-15);
    assert_true(a.band_low == 0.9 && a.band_high == 1.1);
}

static void test_written_file_reads_back(void **state)
{
    (void)state;
    char folder[] = "/tmp/mlxfast-calibration-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c.json", folder);
    char *text = with(good, "\"version\":3,", "\"version\":3,\"gates\":[" GATE "],");
    struct calibration *c = parse(text), *again = NULL;
    free(text);
    struct buffer first = {0}, second = {0};
    assert_true(calibration_write(c, path, CALIBRATION_CV_MAX, &err));
    assert_true(calibration_load(path, CALIBRATION_CV_MAX, &again, &err));
    calibration_render(c, &first);
    calibration_render(again, &second);
    assert_string_equal(first.data, second.data);
    assert_true(file_read(path, 1 << 20, &second, NULL));
    assert_string_equal(first.data, second.data);
    assert_true(text_ends(first.data, "}\n"));
    /* What the reader would refuse is not written, and the file stays. */
    c->prompts[0].decode.cv = 0.02;
    assert_false(calibration_write(c, path, CALIBRATION_CV_MAX, &err));
    assert_string_equal(err.name, "CALIBRATION-CV-EXCEEDED");
    assert_true(file_read(path, 1 << 20, &second, NULL));
    assert_string_equal(first.data, second.data);
    buffer_free(&first);
    buffer_free(&second);
    calibration_free(c);
    calibration_free(again);
    unlink(path);
    assert_false(calibration_load(path, CALIBRATION_CV_MAX, &again, &err));
    assert_string_equal(err.name, "BASELINE-CALIBRATION-MISSING");
    assert_false(calibration_load(NULL, CALIBRATION_CV_MAX, &again, &err));
    assert_string_equal(err.name, "BASELINE-CALIBRATION-MISSING");
    assert_false(calibration_load(folder, CALIBRATION_CV_MAX, &again, &err));
    assert_string_equal(err.name, "BASELINE-CALIBRATION-INVALID");
    rmdir(folder);
}

static void test_box_name(void **state)
{
    (void)state;
    const char *box;
    setenv("RUNNER_NAME", "of-the-runner", 1);
    assert_true(calibration_box("of-the-flag", &box, &err));
    assert_string_equal(box, "of-the-runner");
    assert_true(calibration_box(NULL, &box, &err));
    assert_string_equal(box, "of-the-runner");
    setenv("RUNNER_NAME", " ", 1); /* no name */
    assert_true(calibration_box("of-the-flag", &box, &err));
    assert_string_equal(box, "of-the-flag");
    unsetenv("RUNNER_NAME");
    const char *const none[] = {NULL, "", " \t"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        assert_false(calibration_box(none[i], &box, &err));
        assert_string_equal(err.name, "BASELINE-BOX-UNRESOLVED");
    }
}

static void test_where_the_file_is(void **state)
{
    (void)state;
    setenv("MLXFAST_BASELINE_CALIBRATION", "/of/the/environment", 1);
    assert_string_equal(calibration_path("/of/the/flag"), "/of/the/flag");
    assert_string_equal(calibration_path(NULL), "/of/the/environment");
    unsetenv("MLXFAST_BASELINE_CALIBRATION");
    assert_null(calibration_path(NULL));
}

static void test_contract_declares_the_cv(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        bool taken;
    } rows[] = {{"0.02", true}, {"0.1", true}, {"1e-9", true},   {"0.1000001", false},
                {"0", false},   {"-1", false}, {"\"1%\"", false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[128];
        struct contract *c = NULL;
        snprintf(text, sizeof text, "{\"track_id\":\"x-v1\",\"calibration_cv_max\":%s}",
                 rows[i].value);
        const bool taken = contract_parse("k.json", text, strlen(text), NULL, &c, &err);
        assert_int_equal(taken, rows[i].taken);
        if (taken)
            assert_true(c->has_calibration_cv_max && c->calibration_cv_max > 0);
        else
            assert_string_equal(err.field, "calibration_cv_max");
        contract_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_file),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_no_json_of_ours),
        cmocka_unit_test(test_every_rule),
        cmocka_unit_test(test_limits_are_inside),
        cmocka_unit_test(test_cv_on_both_sides_of_its_limit),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_lookup_is_exact),
        cmocka_unit_test(test_health_on_both_sides_of_each_limit),
        cmocka_unit_test(test_tally),
        cmocka_unit_test(test_bands_and_cv_limit_of_a_contract),
        cmocka_unit_test(test_axis_is_mean_and_sample_cv),
        cmocka_unit_test(test_written_file_reads_back),
        cmocka_unit_test(test_box_name),
        cmocka_unit_test(test_where_the_file_is),
        cmocka_unit_test(test_contract_declares_the_cv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
