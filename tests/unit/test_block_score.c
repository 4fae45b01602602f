/* The score of block decoding: reports read strictly, the arithmetic, the document. */
#include "base/buffer.h"
#include "base/json.h"
#include "judge/block_score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define POOLED "1111111111111111111111111111111111111111111111111111111111111111"
#define OTHER "2222222222222222222222222222222222222222222222222222222222222222"

static const char report[] =
    "{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"all_tokens_matched\":false,"
    "\"parent_measured_seconds_per_token\":0.25,\"decode_token_count\":64,\"block_size\":8,"
    "\"uses_trained_drafter\":true,\"max_block_request_seconds\":1.5,"
    "\"p50_block_request_seconds\":0.5,\"decode_seconds\":16.0,\"accepted_draft_rate\":0.625,"
    "\"residual_divergence_count\":1,\"admissible_exact_count\":60,"
    "\"admissible_declared_frame_count\":2,\"admissible_near_tie_count\":1,"
    "\"emitted_token_total\":64,\"declared_rows_total\":100,\"reference_checked_row_total\":64,"
    "\"rejected_rows_reference_checked\":36,\"verify_block_replayed_round_count\":20,"
    "\"rejected_tail_comparison_count\":72,\"max_rejected_tail_logit_delta\":0.0,"
    "\"accepted_draft_total\":50,\"rejected_draft_total\":30,\"target_tail_total\":20,"
    "\"round_count\":20,\"seed_token_count\":24,\"target_cache_offset_final\":88,"
    "\"work_binding_comparison_count\":128,\"max_top2_logit_delta\":0.25,"
    "\"mean_top2_logit_delta\":0,\"p50_top2_logit_delta\":0.0,\"p99_top2_logit_delta\":0.0,"
    "\"max_top2_logit_relative_delta\":0.0,\"p99_top2_logit_relative_delta\":0.0,"
    "\"work_binding_tolerance_absolute\":0.5,\"work_binding_tolerance_relative\":0.25,"
    "\"max_over_median_round_latency\":3.0,\"reference_engine\":\"another engine\","
    "\"golden_sha256\":\"" POOLED "\",\"weights_sha256\":\"" OTHER "\","
    "\"drafter_sha256\":\"" OTHER "\"}";

static const struct block_report_rules rules = {.track_id = "t-v1",
                                                .tokens = 64,
                                                .least_block_size = 2,
                                                .most_block_size = 16,
                                                .seed_count = 24,
                                                .golden_sha256 = POOLED,
                                                .limits = {.absolute = 0.5,
                                                           .relative = 0.25,
                                                           .has_mean = true,
                                                           .mean = 0.125,
                                                           .near_tie_per_thousand = 40,
                                                           .residual_per_thousand = 5}};

/* The report with one member set; value NULL: left out. */
static bool parse_with(const char *key, const char *value, struct block_report *out,
                       struct error *err)
{
    static struct arena a;
    json_t *root = json_loads(report, 0, NULL);
    assert_non_null(root);
    if (key && value)
        json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else if (key)
        assert_int_equal(json_object_del(root, key), 0);
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    memset(err, 0, sizeof *err);
    arena_free(&a);
    const bool ok = block_report_parse("P.json", text, strlen(text), &rules, &a, out, err);
    free(text);
    json_decref(root);
    return ok;
}

static void test_report_is_read(void **state)
{
    (void)state;
    struct block_report r;
    struct error err;
    if (!parse_with(NULL, NULL, &r, &err))
        fail_msg("%s %s", err.message, err.field);
    assert_null(r.error);
    assert_true(r.tokens == 64 && r.block_size == 8 && r.seed_count == 24 && r.rounds == 20);
    assert_true(r.accepted == 50 && r.rejected == 30 && r.residual == 1);
    assert_true(r.seconds_per_token == 0.25 && r.decode_seconds == 16 && r.accepted_rate == 0.625);
    assert_true(!r.all_matched && r.trained_drafter);
    assert_true(r.has_latency && r.max_over_median == 3);
    assert_true(parse_with("max_over_median_round_latency", NULL, &r, &err));
    assert_false(r.has_latency);
}

static void test_every_key_is_required_and_typed(void **state)
{
    (void)state;
    json_t *root = json_loads(report, 0, NULL);
    const char *key;
    json_t *value;
    size_t tried = 0;
    json_object_foreach(root, key, value)
    {
        static const char *const wrong[] = {"null", "{}", "-1", "\"x\"", "true"};
        struct block_report r;
        struct error err;
        tried++;
        if (strcmp(key, "max_over_median_round_latency") != 0) {
            assert_false(parse_with(key, NULL, &r, &err));
            assert_string_equal(err.name, "BLOCK-REPORT-INVALID");
            assert_string_equal(err.field, key);
        }
        for (size_t i = 0; i < COUNT_OF(wrong); i++) {
            if ((json_is_string(value) && wrong[i][0] == '"') ||
                (json_is_boolean(value) && wrong[i][0] == 't'))
                continue;
            if (parse_with(key, wrong[i], &r, &err))
                fail_msg("accepted %s = %s", key, wrong[i]);
            assert_string_equal(err.name, "BLOCK-REPORT-INVALID");
            assert_string_equal(err.field, key);
            assert_string_equal(err.file, "P.json");
        }
        if (json_is_integer(value) && strcmp(key, "mean_top2_logit_delta") != 0)
            assert_false(parse_with(key, "1.5", &r, &err));
    }
    assert_int_equal(tried, 42);
    json_decref(root);
}

/* One member changed: what it contradicts; NULL: nothing. */
static void test_report_agrees_with_itself_and_the_rules(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"track_id", "\"u-v1\"", "track_id"},
        {"official_score_produced", "true", "official_score_produced"},
        {"all_tokens_matched", "true", "all_tokens_matched"},
        {"parent_measured_seconds_per_token", "0", "parent_measured_seconds_per_token"},
        {"parent_measured_seconds_per_token", "0.2500001", "decode_seconds"},
        {"parent_measured_seconds_per_token", "0.25000000001", NULL},
        {"decode_seconds", "15.9", "decode_seconds"},
        {"block_size", "1", "block_size"},
        {"block_size", "5", NULL},
        {"block_size", "4", "declared_rows_total"},
        {"block_size", "16", NULL},
        {"block_size", "17", "block_size"},
        {"uses_trained_drafter", "false", "uses_trained_drafter"},
        {"accepted_draft_rate", "0.626", "accepted_draft_rate"},
        {"residual_divergence_count", "0", "admissible_exact_count"},
        {"admissible_exact_count", "61", "admissible_exact_count"},
        {"admissible_near_tie_count", "2", "admissible_exact_count"},
        {"emitted_token_total", "65", "emitted_token_total"},
        {"declared_rows_total", "101", "declared_rows_total"},
        {"accepted_draft_total", "51", "declared_rows_total"},
        {"rejected_draft_total", "29", "declared_rows_total"},
        {"target_tail_total", "21", "target_tail_total"},
        {"round_count", "19", "target_tail_total"},
        {"reference_checked_row_total", "63", "reference_checked_row_total"},
        {"reference_checked_row_total", "65", "reference_checked_row_total"},
        {"verify_block_replayed_round_count", "19", "verify_block_replayed_round_count"},
        {"rejected_rows_reference_checked", "35", "rejected_rows_reference_checked"},
        {"rejected_tail_comparison_count", "71", "rejected_tail_comparison_count"},
        {"work_binding_comparison_count", "127", "work_binding_comparison_count"},
        {"max_top2_logit_delta", "0.5", NULL},
        {"max_top2_logit_delta", "0.5001", "max_top2_logit_delta"},
        {"mean_top2_logit_delta", "0.125", NULL},
        {"mean_top2_logit_delta", "0.126", "mean_top2_logit_delta"},
        {"mean_top2_logit_delta", "0.26", "mean_top2_logit_delta"},
        {"p50_top2_logit_delta", "0.1", "p50_top2_logit_delta"},
        {"p99_top2_logit_delta", "0.26", "p99_top2_logit_delta"},
        {"p99_top2_logit_relative_delta", "0.1", "p99_top2_logit_relative_delta"},
        {"max_top2_logit_relative_delta", "0.25", NULL},
        {"max_top2_logit_relative_delta", "0.2501", "max_top2_logit_relative_delta"},
        {"max_rejected_tail_logit_delta", "0.5", NULL},
        {"max_rejected_tail_logit_delta", "0.5001", "max_rejected_tail_logit_delta"},
        {"p50_block_request_seconds", "1.6", "p50_block_request_seconds"},
        {"p50_block_request_seconds", "0.75", "max_over_median_round_latency"},
        {"max_block_request_seconds", "16.1", "max_block_request_seconds"},
        {"max_block_request_seconds", "12", "p50_block_request_seconds"},
        {"max_over_median_round_latency", "1", "max_over_median_round_latency"},
        {"reference_engine", "\"the engine itself\"", NULL},
        {"reference_engine", "\"the organiser\"", "reference_engine"},
        {"golden_sha256", "\"" OTHER "\"", "golden_sha256"},
        {"weights_sha256", "\"x\"", "weights_sha256"},
        {"drafter_sha256", "\"x\"", "drafter_sha256"},
        {"seed_token_count", "25", "target_cache_offset_final"},
        {"target_cache_offset_final", "89", "target_cache_offset_final"},
        {"work_binding_tolerance_absolute", "0.51", "work_binding_tolerance_absolute"},
        {"work_binding_tolerance_relative", "0.26", "work_binding_tolerance_absolute"},
        {"work_binding_logit_deltas", "[]", "work_binding_tolerance_absolute"},
        {"work_binding_comparison_widths", "[]", "work_binding_tolerance_absolute"},
        {"acceptance", "1", "acceptance"},
        {"error", "\"x\"", "all_tokens_matched"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct block_report r;
        struct error err;
        const bool ok = parse_with(rows[i][0], rows[i][1], &r, &err);
        if (ok != !rows[i][2] || (!ok && strcmp(err.field, rows[i][2]) != 0))
            fail_msg("%s = %s: %s %s", rows[i][0], rows[i][1], err.message, err.field);
        if (!ok)
            assert_string_equal(err.name, "BLOCK-REPORT-INVALID");
    }
    struct block_report r;
    struct error err;
    assert_false(parse_with("decode_token_count", "63", &r, &err));
    assert_string_equal(err.name, "DECODE-TOKENS-MISMATCH");
    assert_string_equal(err.field, "decode_token_count");
}

static void test_other_texts_are_no_reports(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
    } rows[] = {
        {"", "BLOCK-REPORT-INVALID"},
        {"[]", "BLOCK-REPORT-INVALID"},
        {"{}", "BLOCK-REPORT-INVALID"},
        {"{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"error\":\"X\","
         "\"decode_token_count\":64,\"block_size\":4}",
         NULL},
        {"{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"error\":\"\","
         "\"decode_token_count\":64,\"block_size\":4}",
         "BLOCK-REPORT-INVALID"},
        {"{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"error\":\"X\","
         "\"decode_token_count\":65,\"block_size\":4}",
         "DECODE-TOKENS-MISMATCH"},
        {"{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"error\":\"X\","
         "\"block_size\":4}",
         "BLOCK-REPORT-INVALID"},
        {"{\"track_id\":\"t-v1\",\"official_score_produced\":false,\"error\":\"X\","
         "\"decode_token_count\":64,\"block_size\":4,\"decode_seconds\":1}",
         "BLOCK-REPORT-INVALID"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena a = {0};
        struct block_report r;
        struct error err = {0};
        const bool ok =
            block_report_parse("P.json", rows[i].text, strlen(rows[i].text), &rules, &a, &r, &err);
        if (ok != !rows[i].name || (!ok && strcmp(err.name, rows[i].name) != 0))
            fail_msg("row %zu: %s %s", i, err.name, err.message);
        if (ok)
            assert_string_equal(r.error, "X");
        arena_free(&a);
    }
}

static void test_tripwire_report(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } rows[] = {
        {"{\"passed\":false,\"case_count\":2,\"run_count\":2,\"error\":\"e\",\"diverged\":["
         "{\"case\":\"a\",\"step\":3,\"expected_token\":5,\"actual_token\":6,\"mismatches\":1}]}",
         true},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\",\"diverged\":[]}", true},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\"}", false},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\",\"diverged\":[],"
         "\"x\":1}",
         false},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\",\"diverged\":[1]}",
         false},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\",\"diverged\":["
         "{\"case\":\"a\",\"step\":3,\"expected_token\":5,\"actual_token\":6}]}",
         false},
        {"{\"passed\":true,\"case_count\":2,\"run_count\":2,\"error\":\"\",\"diverged\":["
         "{\"case\":\"a\",\"step\":-3,\"expected_token\":5,\"actual_token\":6,\"mismatches\":1}]}",
         false},
        {"nonsense", false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct block_tripwire_report r;
        struct error err = {0};
        assert_int_equal(
            block_tripwire_parse("T.json", rows[i].text, strlen(rows[i].text), &r, &err),
            rows[i].good);
        if (rows[i].good)
            assert_int_equal(r.case_count, 2);
        else
            assert_string_equal(err.name, "BLOCK-REPORT-INVALID");
        assert_int_equal(r.passed, i == 1);
        json_decref(r.diverged);
    }
}

/* ---- Arithmetic and document ---- */

static const char contract_text[] =
    "{\"track_id\":\"t-v1\",\"decode_speedup_floor\":0.95,\"timed_prompt_pool\":["
    "{\"sha256\":\"" POOLED "\",\"noop_decode_speedup\":0.875},"
    "{\"sha256\":\"3333333333333333333333333333333333333333333333333333333333333333\"}],"
    "\"block_decode\":{\"protocol\":\"trusted_dflash_block_v1\",\"block_size\":4,"
    "\"maximum_block_size\":16,\"decode_tokens\":512,\"maximum_decode_tokens\":1536,"
    "\"local_iterate_decode_tokens\":64,\"local_submit_decode_tokens\":128,"
    "\"min_accepted_pairs\":3,\"target_pairs\":4,\"stall_factor\":4.0,\"raw_speedup_min\":0.5,"
    "\"raw_speedup_max\":5.0}}";

struct fixture {
    struct contract *contract;
    struct block_report probes[2], benchmarks[2];
    struct block_score_inputs in;
    struct score_document document;
    struct buffer text;
};

/* One pair, serial and candidate seconds per token, on the given golden. */
static void build(struct fixture *f, const char *golden, double serial, double candidate)
{
    struct error err = {0};
    memset(f, 0, sizeof *f);
    if (!contract_parse("c", contract_text, strlen(contract_text), NULL, &f->contract, &err))
        fail_msg("%s", err.message);
    f->probes[0] = (struct block_report){.tokens = 64,
                                         .block_size = 1,
                                         .seconds_per_token = serial,
                                         .decode_seconds = 64 * serial,
                                         .all_matched = true};
    f->benchmarks[0] = (struct block_report){.tokens = 64,
                                             .block_size = 4,
                                             .seconds_per_token = candidate,
                                             .decode_seconds = 64 * candidate,
                                             .rounds = 20,
                                             .accepted = 44,
                                             .rejected = 12,
                                             .residual = 1,
                                             .all_matched = true,
                                             .trained_drafter = true};
    f->in = (struct block_score_inputs){.contract = f->contract,
                                        .mode = BLOCK_LOCAL_ITERATE,
                                        .tokens = 64,
                                        .golden_sha256 = golden,
                                        .probes = f->probes,
                                        .benchmarks = f->benchmarks,
                                        .pair_count = 1,
                                        .tripwire = BLOCK_TRIPWIRE_PASSED};
}

static const json_t *score(struct fixture *f)
{
    struct error err = {0};
    score_document_init(&f->document, "");
    block_score_fill(&f->document, &f->in);
    if (!score_render(&f->document, &f->text, &err) ||
        !score_validate(f->text.data, f->text.length, &err))
        fail_msg("%s %s", err.message, err.field);
    return f->document.metrics;
}

static void drop(struct fixture *f)
{
    score_document_free(&f->document);
    contract_free(f->contract);
    buffer_free(&f->text);
}

static double number(const json_t *m, const char *key)
{
    assert_true(json_is_number(json_object_get(m, key)));
    return json_number_value(json_object_get(m, key));
}

static const char *text(const json_t *m, const char *key)
{
    assert_true(json_is_string(json_object_get(m, key)));
    return json_string_value(json_object_get(m, key));
}

static void test_normalised_score(void **state)
{
    (void)state;
    struct fixture f;
    build(&f, POOLED, 0.875, 0.5);
    const json_t *m = score(&f);
    assert_true(f.document.passed && f.document.score == 2);
    assert_true(number(m, "dflash_decode_speedup") == 1.75);
    assert_true(number(m, "dflash_decode_speedup_normalized") == 2);
    assert_true(number(m, "noop_reference_decode_speedup") == 0.875);
    assert_true(json_is_true(json_object_get(m, "scoring_normalized")));
    assert_true(json_is_true(json_object_get(m, "passed_decode_speedup_floor")));
    assert_true(json_is_true(json_object_get(m, "passed_correctness")));
    assert_true(json_is_true(json_object_get(m, "public_drift_tripwire_passed")));
    assert_true(json_is_false(json_object_get(m, "official_score")));
    assert_true(json_is_false(json_object_get(m, "rankable")));
    assert_true(strlen(text(m, "not_rankable_reason")) > 0);
    assert_string_equal(text(m, "mode"), "dflash-local-iterate");
    assert_string_equal(text(m, "oracle"), "candidate-local-dflash-reference-golden");
    assert_true(number(m, "ranked_decode_speedup_floor") == 0.95);
    assert_int_equal(number(m, "decode_tokens"), 64);
    assert_int_equal(number(m, "block_size"), 4);
    assert_true(json_is_true(json_object_get(m, "all_tokens_matched")));
    assert_true(json_is_true(json_object_get(m, "uses_trained_drafter")));
    assert_true(number(m, "serial_seconds_per_token") == 0.875);
    assert_true(number(m, "dflash_seconds_per_token") == 0.5);
    assert_true(number(m, "accepted_draft_rate") == 44.0 / 56);
    assert_int_equal(number(m, "residual_divergence_count"), 1);
    assert_string_equal(text(m, "golden_hash"), POOLED);
    drop(&f);
}

static void test_floor_is_on_the_normalised_number(void **state)
{
    (void)state;
    static const struct {
        const char *golden;
        double serial;
        bool passed;
    } rows[] = {
        {POOLED, 0.95 * 0.875, true}, /* exactly the floor, below it as a raw ratio */
        {POOLED, 0.9499 * 0.875, false},
        {OTHER, 0.6, true}, /* no normaliser: told, not asked for */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, rows[i].golden, rows[i].serial, 1);
        const json_t *m = score(&f);
        assert_int_equal(f.document.passed, rows[i].passed);
        if (!rows[i].passed)
            assert_true(strncmp(text(m, "error"), "performance floor failed: ", 26) == 0);
        drop(&f);
    }
}

static void test_pairs_are_a_ratio_of_means(void **state)
{
    (void)state;
    struct fixture f;
    build(&f, OTHER, 1, 0.5);
    f.probes[1] = f.probes[0];
    f.benchmarks[1] = f.benchmarks[0];
    f.probes[1].seconds_per_token = 2;
    f.benchmarks[1].seconds_per_token = 0.25;
    f.benchmarks[1].all_matched = false;
    f.in.pair_count = 2;
    const json_t *m = score(&f);
    assert_true(f.document.passed && f.document.score == 4);
    assert_true(number(m, "dflash_decode_speedup_ratio_of_means") == 4);
    assert_true(number(m, "dflash_decode_speedup_median") == 5); /* of 2 and 8 */
    assert_true(number(m, "dflash_decode_speedup_min") == 2);
    assert_int_equal(number(m, "accepted_pair_count"), 2);
    assert_int_equal(number(m, "residual_divergence_count"), 2);
    assert_true(json_is_false(json_object_get(m, "all_tokens_matched")));
    assert_int_equal(number(m, "spec_rounds"), 40);
    assert_int_equal(number(m, "spec_drafted_total"), 112);
    assert_int_equal(number(m, "spec_accepted_total"), 88);
    assert_int_equal(number(m, "effective_spec_depth"), 3);
    assert_true(number(m, "timed_benchmark_seconds") ==
                190); /* 192, as public figures are rounded */
    assert_true(json_is_false(json_object_get(m, "scoring_normalized")));
    assert_null(json_object_get(m, "dflash_decode_speedup_normalized"));
    drop(&f);
}

static void test_bounds_of_the_raw_speedup(void **state)
{
    (void)state;
    static const struct {
        double serial;
        bool passed;
    } rows[] = {{5, true}, {5.0001, false}, {0.5, true}, {0.4999, false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, OTHER, rows[i].serial, 1);
        const json_t *m = score(&f);
        assert_int_equal(f.document.passed, rows[i].passed);
        if (!rows[i].passed)
            assert_true(strncmp(text(m, "error"), "RAW-SPEEDUP-IMPLAUSIBLE: ", 25) == 0);
        struct error err = {0};
        assert_int_equal(block_score_check_raw(&f.contract->block_decode, rows[i].serial, &err),
                         rows[i].passed);
        assert_false(block_score_check_raw(&f.contract->block_decode, NAN, &err));
        assert_string_equal(err.name, "RAW-SPEEDUP-IMPLAUSIBLE");
        drop(&f);
    }
}

static void test_tripwire(void **state)
{
    (void)state;
    static const char drift[] = "[{\"case\":\"a\",\"step\":3,\"expected_token\":5,"
                                "\"actual_token\":6,\"mismatches\":1}]";
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        json_t *diverged = json_loads(drift, 0, NULL);
        build(&f, POOLED, 1, 0.5);
        f.in.tripwire = (enum block_tripwire)i;
        f.in.diverged = i == BLOCK_TRIPWIRE_NOT_RUN ? NULL : diverged;
        f.in.tripwire_cases = 4;
        const json_t *m = score(&f);
        const bool passed = i == BLOCK_TRIPWIRE_PASSED;
        assert_int_equal(f.document.passed, passed);
        assert_int_equal(json_is_true(json_object_get(m, "passed_correctness")), passed);
        assert_int_equal(json_is_true(json_object_get(m, "public_drift_tripwire_passed")), passed);
        if (!passed)
            assert_true(strncmp(text(m, "error"), "PUBLIC-DRIFT-TRIPWIRE: ", 23) == 0);
        assert_true(number(m, "dflash_decode_speedup") == 2); /* told all the same */
        if (i == BLOCK_TRIPWIRE_NOT_RUN)
            assert_null(json_object_get(m, "public_drift_divergences"));
        else
            assert_int_equal(json_array_size(json_object_get(m, "public_drift_divergences")), 1);
        if (i == BLOCK_TRIPWIRE_DRIFTED) {
            assert_string_equal(text(m, "first_failing_case"), "a");
            assert_int_equal(number(m, "actual_token"), 6);
        } else {
            assert_true(json_is_null(json_object_get(m, "first_failing_case")));
        }
        json_decref(diverged);
        drop(&f);
    }
}

static void test_failed_leg_fails_the_score(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        struct fixture f;
        build(&f, POOLED, 1, 0.5);
        (side ? f.benchmarks : f.probes)[0].error = "dflash_token_not_admissible: round=3";
        const json_t *m = score(&f);
        assert_false(f.document.passed);
        assert_string_equal(text(m, "error"), "dflash_token_not_admissible: round=3");
        assert_true(json_is_false(json_object_get(m, "passed_correctness")));
        assert_true(number(m, "dflash_decode_speedup") == 0);
        drop(&f);
    }
    struct fixture f;
    build(&f, POOLED, 1, 0.5); /* the second pair's; and the first failure is told */
    f.probes[1] = f.probes[0];
    f.benchmarks[1] = f.benchmarks[0];
    f.benchmarks[1].error = "dflash_empty_block: round=1";
    f.in.pair_count = 2;
    assert_string_equal(text(score(&f), "error"), "dflash_empty_block: round=1");
    drop(&f);
    build(&f, POOLED, 1, 0.5);
    f.probes[0].error = "EngineExited";
    f.benchmarks[0].error = "dflash_empty_block: round=1";
    const json_t *first = score(&f);
    assert_string_equal(text(first, "error"), "EngineExited");
    assert_true(number(first, "accepted_draft_rate") == 0);
    assert_int_equal(number(first, "residual_divergence_count"), 0);
    drop(&f);
    build(&f, POOLED, 1e300, 1e-300);
    const json_t *m = score(&f);
    assert_string_equal(text(m, "error"), "computed score was not finite");
    drop(&f);
}

/* A candidate that drafted nothing, and one of whose pairs ran without its drafter. */
static void test_no_drafts(void **state)
{
    (void)state;
    struct fixture f;
    build(&f, OTHER, 1, 0.5);
    f.benchmarks[0].accepted = f.benchmarks[0].rejected = 0;
    assert_true(number(score(&f), "accepted_draft_rate") == 0);
    drop(&f);
    build(&f, OTHER, 1, 0.5);
    f.benchmarks[0].accepted = 1;
    f.benchmarks[0].rejected = 0;
    f.probes[1] = f.probes[0];
    f.benchmarks[1] = f.benchmarks[0];
    f.benchmarks[1].accepted = 0;
    f.benchmarks[1].trained_drafter = false;
    f.in.pair_count = 2;
    const json_t *m = score(&f);
    assert_true(number(m, "accepted_draft_rate") == 1);
    assert_true(json_is_false(json_object_get(m, "uses_trained_drafter")));
    drop(&f);
}

/* Two pairs, factor 4; a ratio below 0 is not told. */
static void test_stall_guardrail(void **state)
{
    (void)state;
    static const struct {
        double probes[2], benchmarks[2];
        bool failed;
        json_type said;
        size_t pair;
        bool of_the_benchmark;
    } rows[] = {
        {{1, 1}, {1, 4}, false, JSON_TRUE, 1, true},
        {{4, 1}, {1, 1}, false, JSON_TRUE, 0, false},
        {{1, 1}, {1, 4.001}, false, JSON_FALSE, 1, true},
        {{1, 1}, {5, 1}, false, JSON_FALSE, 0, true},
        {{1, 4.001}, {1, 1}, false, JSON_FALSE, 1, false},
        {{6, 7}, {8, 9}, false, JSON_FALSE, 1, true},
        {{-1, 1}, {2, 1}, false, JSON_NULL, 0, true},
        {{1, 1}, {1, -1}, false, JSON_NULL, 0, false},
        {{-1, -1}, {-1, -1}, false, JSON_NULL, 0, false},
        {{-1, 1}, {1, 4.001}, false, JSON_FALSE, 1, true},
        {{1, 1}, {1, 1}, true, JSON_NULL, 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, OTHER, 1, 0.5);
        f.probes[1] = f.probes[0];
        f.benchmarks[1] = f.benchmarks[0];
        f.in.pair_count = 2;
        for (size_t k = 0; k < 2; k++) {
            f.probes[k].has_latency = rows[i].probes[k] >= 0;
            f.probes[k].max_over_median = rows[i].probes[k];
            f.benchmarks[k].has_latency = rows[i].benchmarks[k] >= 0;
            f.benchmarks[k].max_over_median = rows[i].benchmarks[k];
        }
        if (rows[i].failed)
            f.benchmarks[1].error = "dflash_empty_block";
        const json_t *told = json_object_get(score(&f), "stall_guardrail_passed");
        if (!told || json_typeof(told) != rows[i].said)
            fail_msg("row %zu", i);
        assert_int_equal(f.document.passed, !rows[i].failed); /* it decides nothing */
        const struct block_stall s = block_score_stall(&f.in);
        assert_int_equal(s.stalled, rows[i].said == JSON_FALSE);
        assert_int_equal(s.known, rows[i].said != JSON_NULL);
        assert_int_equal(s.failed, rows[i].failed);
        assert_true(s.pair == rows[i].pair && s.of_the_benchmark == rows[i].of_the_benchmark);
        drop(&f);
    }
}

static void test_normaliser(void **state)
{
    (void)state;
    struct fixture f;
    struct error err = {0};
    double noop = -1;
    build(&f, POOLED, 1, 1);
    assert_true(block_score_require_normaliser(f.contract, POOLED, &noop, &err));
    assert_true(noop == 0.875);
    assert_false(block_score_require_normaliser(f.contract, OTHER, &noop, &err));
    assert_string_equal(err.name, "NOOP-SPEEDUP-UNPINNED");
    assert_false(block_score_require_normaliser(/* pooled, without one */
                                                f.contract,
                                                "33333333333333333333333333333333333333333333333333"
                                                "33333333333333",
                                                &noop, &err));
    assert_string_equal(err.name, "NOOP-SPEEDUP-UNPINNED");
    enum block_mode mode;
    assert_true(block_mode_parse("dflash-local-iterate", &mode) && mode == BLOCK_LOCAL_ITERATE);
    assert_true(block_mode_parse("dflash-local-submit", &mode) && mode == BLOCK_LOCAL_SUBMIT);
    assert_false(block_mode_parse("dflash-paired-decode-only", &mode));
    assert_int_equal(block_mode_tokens(&f.contract->block_decode, BLOCK_LOCAL_ITERATE), 64);
    assert_int_equal(block_mode_tokens(&f.contract->block_decode, BLOCK_LOCAL_SUBMIT), 128);
    contract_free(f.contract);
}

/* The mode's keys: all of them there, of no other mode, of their types, and nowhere without it. */
static void test_keys_of_the_mode(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"mode", "\"dflash-paired-decode-only\""},
        {"mode", NULL},
        {"oracle", NULL},
        {"residual_divergence_count", NULL},
        {"rankable", "0"},
        {"public_drift_divergences", "[{}]"},
        {"public_drift_divergences", "{}"},
        {"dflash_tokens", "1"},
        {"stall_guardrail_passed", "0"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        struct error err = {0};
        build(&f, POOLED, 1, 0.5);
        score(&f);
        if (rows[i][1])
            score_set_json(&f.document, rows[i][0], json_loads(rows[i][1], JSON_DECODE_ANY, NULL));
        else
            json_object_del(f.document.metrics, rows[i][0]);
        if (score_render(&f.document, &f.text, &err))
            fail_msg("%s = %s", rows[i][0], rows[i][1] ? rows[i][1] : "absent");
        assert_string_equal(err.name, "SCORE-INVALID");
        drop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_is_read),
        cmocka_unit_test(test_every_key_is_required_and_typed),
        cmocka_unit_test(test_report_agrees_with_itself_and_the_rules),
        cmocka_unit_test(test_other_texts_are_no_reports),
        cmocka_unit_test(test_tripwire_report),
        cmocka_unit_test(test_normalised_score),
        cmocka_unit_test(test_floor_is_on_the_normalised_number),
        cmocka_unit_test(test_pairs_are_a_ratio_of_means),
        cmocka_unit_test(test_bounds_of_the_raw_speedup),
        cmocka_unit_test(test_tripwire),
        cmocka_unit_test(test_failed_leg_fails_the_score),
        cmocka_unit_test(test_no_drafts),
        cmocka_unit_test(test_stall_guardrail),
        cmocka_unit_test(test_normaliser),
        cmocka_unit_test(test_keys_of_the_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
