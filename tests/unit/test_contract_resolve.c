/* What a run asks of a contract, refusal by refusal; misspelt keys; the shapes that tracks publish.
 * Runs from the repository's root. */
#include "base/buffer.h"
#include "judge/contract.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static bool parse(const char *text, struct contract **out, struct error *err)
{
    memset(err, 0, sizeof *err);
    return contract_parse("tracks/x/contract.json", text, strlen(text), NULL, out, err);
}

/* {"track_id":"t-v1",<members>} */
static bool parse_members(const char *members, struct contract **out, struct error *err)
{
    struct buffer text = {0};
    buffer_printf(&text, "{\"track_id\":\"t-v1\"%s%s}", *members ? "," : "", members);
    bool ok = parse(text.data, out, err);
    buffer_free(&text);
    return ok;
}

/* Resolvers with two outcomes beside "not declared": every row is one question to one contract. */
static bool require_one_golden(const struct contract *c, struct error *err)
{
    return contract_require_pairs(c, 1, err);
}

static bool require_two_goldens(const struct contract *c, struct error *err)
{
    return contract_require_pairs(c, 2, err);
}

static bool require_no_golden(const struct contract *c, struct error *err)
{
    return contract_require_pairs(c, 0, err);
}

static bool require_single_stream(const struct contract *c, struct error *err)
{
    return contract_require_batch(c, 1, err);
}

static bool require_eight_streams(const struct contract *c, struct error *err)
{
    return contract_require_batch(c, 8, err);
}

#define BANDS                                                                                      \
    "\"prefill_band_up_tolerance\":0.1,\"prefill_band_down_tolerance\":0.2,"                       \
    "\"prefill_band_down_enabled\":true,\"decode_band_up_tolerance\":0.3,"                         \
    "\"decode_band_down_tolerance\":0.4,\"decode_band_down_enabled\":false"

static void test_resolvers(void **state)
{
    (void)state;
    static const struct {
        bool (*require)(const struct contract *c, struct error *err);
        const char *members, *name, *field; /* name NULL: granted */
    } rows[] = {
        {contract_require_official_scoring, "\"official_scoring_enabled\":true", NULL, NULL},
        {contract_require_official_scoring, "\"official_scoring_enabled\":false",
         "OFFICIAL-SCORING-DISABLED-FOR-TRACK", "official_scoring_enabled"},
        {contract_require_official_scoring, "", "OFFICIAL-SCORING-UNDECLARED-FOR-TRACK",
         "official_scoring_enabled"},
        {contract_require_control_leg_rule, "\"scores_against_live_control_leg\":false", NULL,
         NULL},
        {contract_require_control_leg_rule, "\"scores_against_live_control_leg\":true", NULL, NULL},
        {contract_require_control_leg_rule, "", "CONTROL-LEG-UNDECLARED-FOR-TRACK",
         "scores_against_live_control_leg"},
        {require_one_golden, "\"official_pairs\":1", NULL, NULL},
        {require_two_goldens, "\"official_pairs\":2", NULL, NULL},
        {require_two_goldens, "\"official_pairs\":4", NULL, NULL},
        {require_two_goldens, "\"official_pairs\":3", "OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS",
         "official_pairs"},
        {require_two_goldens, "\"official_pairs\":1", "OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS",
         "official_pairs"},
        {require_no_golden, "\"official_pairs\":1", "OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS",
         "official_pairs"},
        {require_one_golden, "", "OFFICIAL-PAIRS-UNDECLARED-FOR-TRACK", "official_pairs"},
        {contract_require_paired_flow, "\"paired_flow_retired\":false", NULL, NULL},
        {contract_require_paired_flow, "\"paired_flow_retired\":true",
         "PAIRED-FLOW-RETIRED-FOR-TRACK", "paired_flow_retired"},
        {contract_require_paired_flow, "", "PAIRED-FLOW-UNDECLARED-FOR-TRACK",
         "paired_flow_retired"},
        {contract_require_capture, "\"scores_against_live_control_leg\":false", NULL, NULL},
        {contract_require_capture, "\"scores_against_live_control_leg\":true",
         "CAPTURE-RETIRED-FOR-LIVE-CONTROL-LEG", "scores_against_live_control_leg"},
        {contract_require_capture, "", "CONTROL-LEG-UNDECLARED-FOR-TRACK",
         "scores_against_live_control_leg"},
        {require_single_stream, "\"scored_batch_size\":1", NULL, NULL},
        {require_single_stream, "\"scored_batch_size\":2", "SCORED-BATCH-SIZE-UNSUPPORTED",
         "scored_batch_size"},
        {require_eight_streams, "\"scored_batch_size\":8", NULL, NULL},
        {require_eight_streams, "\"scored_batch_size\":9", "SCORED-BATCH-SIZE-UNSUPPORTED",
         "scored_batch_size"},
        {require_single_stream, "", "SCORED-REGIME-PENDING-DECLARATION", "scored_batch_size"},
        {contract_require_regime, "\"scored_batch_size\":1", "SCORED-REGIME-PENDING-DECLARATION",
         "scored_batch_size"},
        {contract_require_bands, BANDS, NULL, NULL},
        {contract_require_official_baseline,
         "\"official_baseline_prefill_seconds_per_token\":1,"
         "\"official_baseline_decode_seconds_per_token\":1," BANDS,
         NULL, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        if (!parse_members(rows[i].members, &c, &err))
            fail_msg("%s: %s", rows[i].members, err.message);
        const bool granted = rows[i].require(c, &err);
        if (granted != (rows[i].name == NULL))
            fail_msg("row %zu, %s: %s", i, rows[i].members, err.name);
        if (!granted) {
            assert_string_equal(err.name, rows[i].name);
            assert_string_equal(err.field, rows[i].field);
            assert_non_null(
                strstr(err.message, "the --contract track fixture for \"t-v1\" declares"));
        }
        contract_free(c);
    }
}

/* Both refusals of the arm begin alike and end differently. */
static void test_the_arm_has_two_texts(void **state)
{
    (void)state;
    static const char start[] = "official scoring is not enabled for this track:";
    char first[sizeof((struct error *)0)->message];
    struct contract *c = NULL;
    struct error err;
    assert_true(parse_members("\"official_scoring_enabled\":false", &c, &err));
    assert_false(contract_require_official_scoring(c, &err));
    assert_int_equal(strncmp(err.message, start, sizeof start - 1), 0);
    memcpy(first, err.message, sizeof first);
    contract_free(c);
    assert_true(parse_members("", &c, &err));
    assert_false(contract_require_official_scoring(c, &err));
    assert_int_equal(strncmp(err.message, start, sizeof start - 1), 0);
    assert_string_not_equal(err.message, first);
    contract_free(c);
}

static void test_misspelt_keys_get_a_suggestion(void **state)
{
    (void)state;
    static const struct {
        const char *members, *nearest; /* NULL: none is near */
    } rows[] = {
        {"\"decode_speedup_flor\":0.95", "decode_speedup_floor"},
        {"\"decode_speedup_floors\":0.95", "decode_speedup_floor"},
        {"\"Decode-Speedup-Floor\":0.95", "decode_speedup_floor"},
        {"\"ofical_pairs\":2", "official_pairs"},
        {"\"mismatch_logits_gap\":2", "mismatch_logit_gap"},
        {"\"vocab_szie\":2", "vocab_size"},
        {"\"lisence\":{}", "license"},
        {"\"protocl\":{}", "protocol"},
        {"\"timed_prompt_pool\":[{\"sha265\":\"x\"}]", "sha256"},
        {"\"hidden_correctness_golden\":{\"byte\":1}", "bytes"},
        {"\"frobnicate\":1", NULL},
        {"\"x\":1", NULL},
        {"\"\":1", NULL},
        {"\"official_baseline_prefill_seconds_per_token_and_a_good_deal_more_than_that_in_fact\":1",
         NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        assert_false(parse_members(rows[i].members, &c, &err));
        assert_string_equal(err.name, "CONTRACT-UNKNOWN-KEY");
        char wanted[128];
        snprintf(wanted, sizeof wanted, "did you mean %s?", rows[i].nearest ? rows[i].nearest : "");
        if (rows[i].nearest ? !strstr(err.message, wanted) : !!strstr(err.message, "did you mean"))
            fail_msg("%s: %s", rows[i].members, err.message);
    }
    struct contract *c = NULL;
    struct error err;
    assert_false(parse("{\"track_idd\":\"t-v1\"}", &c, &err)); /* not "missing" */
    assert_string_equal(err.field, "track_idd");
    assert_non_null(strstr(err.message, "did you mean track_id?"));
}

static void test_mismatch_logit_gap(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        bool good;
        double gap;
    } rows[] = {
        {"0", true, 0},         {"0.0", true, 0},       {"-0.0", true, 0},     {"1", true, 1},
        {"0.625", true, 0.625}, {"1e300", true, 1e300}, {"-1e-300", false, 0}, {"-1", false, 0},
        {"null", false, 0},     {"\"0.5\"", false, 0},  {"true", false, 0},    {"[0.5]", false, 0},
    };
    struct contract *c = NULL;
    struct error err;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char members[64];
        snprintf(members, sizeof members, "\"mismatch_logit_gap\":%s", rows[i].value);
        if (parse_members(members, &c, &err) != rows[i].good)
            fail_msg("%s", members);
        if (rows[i].good)
            assert_true(c->has_mismatch_logit_gap && c->mismatch_logit_gap == rows[i].gap);
        else
            assert_string_equal(err.field, "mismatch_logit_gap");
        contract_free(c);
    }
    assert_true(parse_members("", &c, &err));
    assert_false(c->has_mismatch_logit_gap);
    contract_free(c);
}

static void test_platform_of_the_id(void **state)
{
    (void)state;
    static const struct {
        const char *id, *platform;
    } rows[] = {
        {"qwen3.8-125b-a6b-mlx-v1", "mlx"},
        {"qwen3.8-125b-a6b-cuda-v12", "cuda"},
        {"laguna-xs-2.1-dflash-v1", NULL},
        {"t-v1", NULL},
        {"mlx-v1", NULL},
        {"x-cudamlx-v1", NULL},
        {"x-cuda-mlx-v2", "mlx"},
        {"x-cuda-v1-v2", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buffer text = {0};
        struct contract *c = NULL;
        struct error err;
        buffer_printf(&text, "{\"track_id\":\"%s\"}", rows[i].id);
        assert_true(parse(text.data, &c, &err));
        if (rows[i].platform)
            assert_string_equal(c->platform, rows[i].platform);
        else
            assert_null(c->platform);
        contract_free(c);
        buffer_free(&text);
    }
}

#define HEX64_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEX64_B "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_declared_lengths_of_the_pool_hold(void **state)
{
    (void)state;
    static const struct {
        const char *sha256;
        uint64_t bytes;
        bool good;
    } rows[] = {
        {HEX64_A, 9, true},  {HEX64_A, 8, false}, {HEX64_A, 10, false},
        {HEX64_A, 0, false}, {HEX64_B, 77, true}, /* no length declared */
        {"f", 8, true},                           /* not in the pool */
    };
    struct contract *c = NULL;
    struct error err;
    assert_true(parse_members("\"timed_prompt_pool\":[{\"sha256\":\"" HEX64_B
                              "\"},{\"sha256\":\"" HEX64_A "\",\"bytes\":9}]",
                              &c, &err));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        memset(&err, 0, sizeof err);
        assert_true(contract_check_pooled(c, rows[i].sha256, rows[i].bytes, &err) == rows[i].good);
        if (rows[i].good)
            continue;
        assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");
        assert_string_equal(err.field, "timed_prompt_pool[1].bytes");
    }
    contract_free(c);
}

/* The newer shape: the regime's exponents gave way to weights, the batch size stands alone. */
static void test_newer_shape_loads(void **state)
{
    (void)state;
    static const struct {
        const char *path, *track, *platform, *model;
        int warmups;
    } rows[] = {
        {"tests/vectors/contracts/qwen3.8-125b-a6b-mlx-v1.json", "qwen3.8-125b-a6b-mlx-v1", "mlx",
         "Vontra/Qwen3.8-Flash-Next-MLX-4bit-MTP", 1},
        {"tests/vectors/contracts/qwen3.8-125b-a6b-cuda-v1.json", "qwen3.8-125b-a6b-cuda-v1",
         "cuda", "unsloth/Qwen3.8-Flash-Next-GGUF", 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err = {0};
        if (!contract_load(rows[i].path, rows[i].track, &c, &err))
            fail_msg("%s: %s (%s)", err.name, err.message, err.field);
        assert_string_equal(c->platform, rows[i].platform);
        assert_string_equal(c->target_model_id, rows[i].model);
        assert_int_equal(c->official_prefill_warmup_runs, rows[i].warmups);
        assert_int_equal(c->pool_count, 8);
        assert_int_equal(c->vocab_size, 248320);
        assert_int_equal(c->num_hidden_layers, 48);
        assert_int_equal(c->seed_tokens, 1024);
        assert_string_equal(c->golden_model_type, "qwen4_exp_text");
        assert_true(c->score_prefill_weight == 0.25 && c->score_decode_weight == 0.75);
        assert_true(c->prefill_band_up == 0.05 && c->decode_band_up == 0.02);
        assert_true(c->has_hidden_golden && c->has_target_pin && !c->combine_mean);
        assert_true(contract_require_official_scoring(c, &err) &&
                    contract_require_window(c, &err) && contract_require_model(c, &err) &&
                    contract_require_weights(c, &err) && contract_require_floors(c, &err) &&
                    contract_require_pairs(c, 2, &err) && contract_require_batch(c, 1, &err) &&
                    contract_require_control_leg_rule(c, &err));
        assert_false(contract_require_regime(c, &err));
        assert_string_equal(err.name, "SCORED-REGIME-PENDING-DECLARATION");
        assert_false(contract_require_paired_flow(c, &err));
        assert_string_equal(err.name, "PAIRED-FLOW-RETIRED-FOR-TRACK");
        contract_free(c);
    }
}

static void test_older_shape_loads(void **state)
{
    (void)state;
    struct contract *c = NULL;
    struct error err = {0};
    if (!contract_load("tests/vectors/contracts/qwen3.8-125b-a6b-mlx-v1.older.json", NULL, &c,
                       &err))
        fail_msg("%s: %s (%s)", err.name, err.message, err.field);
    assert_false(contract_require_weights(c, &err));
    assert_string_equal(err.name, "SCORING-WEIGHTS-UNDECLARED-FOR-TRACK");
    assert_false(contract_require_bands(c, &err));
    assert_false(contract_require_regime(c, &err)); /* the nested spelling is measure-job's */
    contract_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolvers),
        cmocka_unit_test(test_the_arm_has_two_texts),
        cmocka_unit_test(test_misspelt_keys_get_a_suggestion),
        cmocka_unit_test(test_mismatch_logit_gap),
        cmocka_unit_test(test_platform_of_the_id),
        cmocka_unit_test(test_declared_lengths_of_the_pool_hold),
        cmocka_unit_test(test_newer_shape_loads),
        cmocka_unit_test(test_older_shape_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
