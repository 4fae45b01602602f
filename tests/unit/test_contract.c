/* The contract: every field and rule of contract-and-scoring.md section 1, the refusals by name,
 * the published fixture, the environment. */
#include "base/buffer.h"
#include "base/file.h"
#include "judge/contract.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEX40 "0123456789abcdef0123456789abcdef01234567"

static bool parse(const char *text, const char *track, struct contract **out, struct error *err)
{
    memset(err, 0, sizeof *err);
    size_t length = strlen(text);
    char *copy = memory_alloc(length ? length : 1);
    memcpy(copy, text, length);
    bool ok = contract_parse("tracks/x/contract.json", copy, length, track, out, err);
    free(copy);
    assert_true(ok == (*out != NULL));
    return ok;
}

/* {"track_id":"t-v1",<members>} */
static bool parse_members(const char *members, struct contract **out, struct error *err)
{
    struct buffer text = {0};
    buffer_printf(&text, "{\"track_id\":\"t-v1\"%s%s}", *members ? "," : "", members);
    bool ok = parse(text.data, NULL, out, err);
    buffer_free(&text);
    return ok;
}

static const char whole[] =
    "{\"track_id\":\"laguna-nano-serial-v1\",\"track_name\":\"Nano\","
    "\"official_scoring_enabled\":true,\"official_scoring_enabled_note\":\"why\","
    "\"allowed_modes\":[\"serial\",\"dflash\"],"
    "\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"bytes\":9,\"noop_decode_speedup\":0.88,"
    "\"r2_path\":\"a/b.json\"},{\"sha256\":\"" HEX64
    "\",\"path\":\"pool/b.golden.json\",\"r2_path\":\"z\",\"x_note\":1}],"
    "\"official_pairs\":2,\"official_pair_combine\":\"mean\","
    "\"scores_against_live_control_leg\":true,\"paired_flow_retired\":false,"
    "\"timed_token_tolerance_per_thousand\":100,\"timed_token_near_tie_relative_gap\":0.5,"
    "\"mismatch_logit_gap\":1.5,"
    "\"decode_speedup_floor\":0.95,\"prefill_speedup_floor\":0.9,"
    "\"scored_batch_size\":1,\"prefill_gain_exponent\":0.25,\"decode_gain_exponent\":0.75,"
    "\"prefill_band_up_tolerance\":0.1,\"prefill_band_down_tolerance\":0.2,"
    "\"prefill_band_down_enabled\":true,\"decode_band_up_tolerance\":0.3,"
    "\"decode_band_down_tolerance\":0.4,\"decode_band_down_enabled\":false,"
    "\"score_decode_weight\":0.75,\"score_prefill_weight\":0.25,"
    "\"correctness_steps\":64,\"benchmark_decode_steps\":128,"
    "\"local_submit_benchmark_decode_steps\":1023,\"official_prefill_warmup_runs\":0,"
    "\"golden_model_type\":\"laguna\",\"vocab_size\":4096,\"num_hidden_layers\":8,"
    "\"seed_tokens\":512,"
    "\"target\":{\"upstream_model_id\":\"a/b\",\"upstream_revision\":\"" HEX40 "\",\"more\":1},"
    "\"hidden_correctness_golden\":{\"sha256\":\"" HEX64 "\",\"bytes\":77},"
    "\"yarn_magnitude\":\"attention_factor\",\"engine_arithmetic\":\"strict\",\"runner\":{\"any\":["
    "1]},\"scored_exponents\":{}}";

static void test_every_field_is_read(void **state)
{
    (void)state;
    struct contract *c = NULL;
    struct error err;
    char sha256[SHA256_HEX];
    if (!parse(whole, NULL, &c, &err))
        fail_msg("%s: %s", err.name, err.message);
    sha256_hex(whole, strlen(whole), sha256);
    assert_string_equal(c->sha256, sha256);
    assert_string_equal(c->track_id, "laguna-nano-serial-v1");
    assert_string_equal(c->track_name, "Nano");
    assert_true(c->has_official_scoring_enabled && c->official_scoring_enabled);
    assert_int_equal(c->allowed_mode_count, 2);
    assert_string_equal(c->allowed_modes[1], "dflash");
    assert_int_equal(c->pool_count, 2);
    assert_string_equal(c->pool[0].sha256, HEX64);
    assert_int_equal(c->pool[0].bytes, 9);
    assert_true(c->pool[0].noop_decode_speedup == 0.88);
    assert_string_equal(c->pool[0].path, "a/b.json");
    assert_int_equal(c->pool[1].bytes, 0);
    assert_string_equal(c->pool[1].path, "pool/b.golden.json");
    assert_true(c->has_official_pairs && c->official_pairs == 2 && c->combine_mean);
    assert_true(c->has_scores_against_live_control_leg && c->scores_against_live_control_leg);
    assert_true(c->has_paired_flow_retired && !c->paired_flow_retired);
    assert_true(c->has_token_tolerance && c->token_tolerance_per_thousand == 100);
    assert_true(c->has_near_tie_gap && c->near_tie_relative_gap == 0.5);
    assert_true(c->has_mismatch_logit_gap && c->mismatch_logit_gap == 1.5);
    assert_true(c->has_decode_floor && c->decode_speedup_floor == 0.95);
    assert_true(c->has_prefill_floor && c->prefill_speedup_floor == 0.9);
    assert_true(c->has_regime && c->has_scored_batch_size && c->scored_batch_size == 1);
    assert_true(c->prefill_gain_exponent == 0.25 && c->decode_gain_exponent == 0.75);
    assert_true(c->has_bands && c->prefill_band_up == 0.1 && c->prefill_band_down == 0.2);
    assert_true(c->decode_band_up == 0.3 && c->decode_band_down == 0.4);
    assert_true(c->prefill_band_down_enabled && !c->decode_band_down_enabled);
    assert_true(c->has_weights && c->score_decode_weight == 0.75);
    assert_true(c->score_prefill_weight == 0.25);
    assert_true(c->has_window && c->correctness_steps == 64 && c->benchmark_decode_steps == 128);
    assert_int_equal(c->local_submit_benchmark_decode_steps, 1023);
    assert_int_equal(c->official_prefill_warmup_runs, 0);
    assert_true(c->has_model && c->vocab_size == 4096 && c->num_hidden_layers == 8);
    assert_int_equal(c->seed_tokens, 512);
    assert_string_equal(c->golden_model_type, "laguna");
    assert_true(c->has_target_pin);
    assert_string_equal(c->target_model_id, "a/b");
    assert_string_equal(c->target_revision, HEX40);
    assert_true(c->has_hidden_golden && c->hidden_golden_bytes == 77);
    assert_string_equal(c->hidden_golden_sha256, HEX64);
    assert_string_equal(c->yarn_magnitude, "attention_factor");
    assert_string_equal(c->engine_arithmetic, "strict");
    assert_false(c->has_official_baseline);
    assert_true(contract_require_window(c, &err) && contract_require_model(c, &err) &&
                contract_require_weights(c, &err) && contract_require_floors(c, &err) &&
                contract_require_regime(c, &err) && contract_require_bands(c, &err));
    contract_free(c);
}

static void test_a_bare_contract_declares_nothing(void **state)
{
    (void)state;
    static const struct {
        bool (*require)(const struct contract *c, struct error *err);
        const char *name;
    } rows[] = {
        {contract_require_window, "WINDOW-SHAPE-UNDECLARED-FOR-TRACK"},
        {contract_require_model, "MODEL-IDENTITY-UNDECLARED-FOR-TRACK"},
        {contract_require_weights, "SCORING-WEIGHTS-UNDECLARED-FOR-TRACK"},
        {contract_require_floors, "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK"},
        {contract_require_regime, "SCORED-REGIME-PENDING-DECLARATION"},
        {contract_require_official_baseline, "OFFICIAL-BASELINE-PENDING-CAPTURE"},
        {contract_require_bands, "ACCEPTANCE-BANDS-UNDECLARED-FOR-TRACK"},
    };
    struct contract *c = NULL;
    struct error err;
    assert_true(parse_members("", &c, &err));
    assert_int_equal(c->allowed_mode_count, 2);
    assert_string_equal(c->allowed_modes[0], "serial");
    assert_string_equal(c->allowed_modes[1], "mtp");
    assert_false(c->has_target_pin || c->has_hidden_golden || c->yarn_magnitude ||
                 c->engine_arithmetic);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_false(rows[i].require(c, &err));
        assert_string_equal(err.name, rows[i].name);
        assert_string_equal(err.file, "tracks/x/contract.json");
        assert_non_null(strstr(err.message, "the --contract track fixture for \"t-v1\" declares"));
    }
    json_t *sources = contract_sources(c);
    const char *key;
    json_t *value;
    assert_int_equal(json_object_size(sources), 8);
    json_object_foreach(sources, key, value)
        assert_string_equal(json_string_value(value), "device");
    json_decref(sources);
    contract_free(c);
}

static void test_each_floor_stands_alone(void **state)
{
    (void)state;
    struct contract *c = NULL;
    struct error err;
    assert_true(parse_members("\"decode_speedup_floor\":0.95", &c, &err));
    assert_false(contract_require_floors(c, &err));
    assert_string_equal(err.field, "prefill_speedup_floor");
    contract_free(c);
    assert_true(parse_members("\"prefill_speedup_floor\":0.95", &c, &err));
    assert_false(contract_require_floors(c, &err));
    assert_string_equal(err.field, "decode_speedup_floor");
    contract_free(c);
}

static void test_sources_tell_what_is_declared(void **state)
{
    (void)state;
    static const char *const declared[] = {"scored_regime",    "live_control_leg", "paired_flow",
                                           "acceptance_bands", "scoring_weights",  "window_shape",
                                           "model_shape"};
    struct contract *c = NULL;
    struct error err;
    assert_true(parse(whole, NULL, &c, &err));
    json_t *sources = contract_sources(c);
    for (size_t i = 0; i < COUNT_OF(declared); i++)
        assert_string_equal(json_string_value(json_object_get(sources, declared[i])), "contract");
    assert_string_equal(json_string_value(json_object_get(sources, "official_baseline")), "device");
    json_decref(sources);
    contract_free(c);
}

static void test_accepted_variants(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "\"scored_batch_size\":8",
        "\"scored_batch_size\":1,\"prefill_gain_exponent\":0,\"decode_gain_exponent\":1",
        "\"official_pair_combine\":\"lower_median\"",
        "\"allowed_modes\":[\"dflash\",\"mtp\",\"serial\"]",
        "\"timed_token_tolerance_per_thousand\":0",
        "\"timed_token_tolerance_per_thousand\":1,\"timed_token_near_tie_relative_gap\":0",
        "\"timed_prompt_pool\":[]",
        "\"anything_note\":{\"a\":[1]},\"_note\":null",
        "\"score_decode_weight\":1,\"score_prefill_weight\":0",
        "\"yarn_magnitude\":\"derived\"",
        "\"engine_arithmetic\":\"any\"",
        "\"official_scoring_enabled\":false",
        "\"live_golden\":1,\"live_golden_speculative\":{},\"baseline_reference_commit\":\"x\","
        "\"kv_backend\":\"x\",\"mtp_head\":{},\"mlx_swift_lm_revision\":\"x\",\"license\":{},"
        "\"scoring_semantics\":{},\"schema_version\":1,\"benchmark_name\":\"x\","
        "\"ngram_shard_dir\":\"x\"",
        "\"scores_against_live_control_leg\":false,"
        "\"official_baseline_prefill_seconds_per_token\":0.001,"
        "\"official_baseline_decode_seconds_per_token\":0.01,"
        "\"prefill_band_up_tolerance\":0,\"prefill_band_down_tolerance\":0,"
        "\"prefill_band_down_enabled\":true,\"decode_band_up_tolerance\":0,"
        "\"decode_band_down_tolerance\":0,\"decode_band_down_enabled\":true",
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        if (!parse_members(rows[i], &c, &err))
            fail_msg("%s: %s", rows[i], err.message);
        contract_free(c);
    }
}

/* Each row is refused with its name, and the field that is at fault is named. */
static void test_refusals_name_the_field(void **state)
{
    (void)state;
    static const struct {
        const char *members, *field;
    } rows[] = {
        {"\"track_name\":7", "track_name"},
        {"\"official_scoring_enabled\":1", "official_scoring_enabled"},
        {"\"official_scoring_enabled\":null", "official_scoring_enabled"},
        {"\"allowed_modes\":[]", "allowed_modes"},
        {"\"allowed_modes\":\"serial\"", "allowed_modes"},
        {"\"allowed_modes\":[\"mtp\"]", "allowed_modes"},
        {"\"allowed_modes\":[\"serial\",\"serial\"]", "allowed_modes"},
        {"\"allowed_modes\":[\"serial\",\"dspark\"]", "allowed_modes"},
        {"\"allowed_modes\":[\"serial\",\"turbo\"]", "allowed_modes"},
        {"\"allowed_modes\":[\"serial\",1]", "allowed_modes"},
        {"\"timed_prompt_pool\":{}", "timed_prompt_pool"},
        {"\"timed_prompt_pool\":[1]", "timed_prompt_pool[0]"},
        {"\"timed_prompt_pool\":[{}]", "timed_prompt_pool[0].sha256"},
        {"\"timed_prompt_pool\":[{\"sha256\":\"ABC\"}]", "timed_prompt_pool[0].sha256"},
        {"\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"bytes\":0}]",
         "timed_prompt_pool[0].bytes"},
        {"\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"bytes\":1.5}]",
         "timed_prompt_pool[0].bytes"},
        {"\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"noop_decode_speedup\":0}]",
         "timed_prompt_pool[0].noop_decode_speedup"},
        {"\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"path\":\"\"}]",
         "timed_prompt_pool[0].path"},
        {"\"official_pairs\":0", "official_pairs"},
        {"\"official_pairs\":2.0", "official_pairs"},
        {"\"official_pairs\":4294967296", "official_pairs"},
        {"\"official_pairs\":\"2\"", "official_pairs"},
        {"\"official_pair_combine\":\"median\"", "official_pair_combine"},
        {"\"official_pair_combine\":null", "official_pair_combine"},
        {"\"official_pair_order\":\"random\"", "official_pair_order"},
        {"\"official_pair_order\":1", "official_pair_order"},
        {"\"scores_against_live_control_leg\":\"true\"", "scores_against_live_control_leg"},
        {"\"paired_flow_retired\":0", "paired_flow_retired"},
        {"\"timed_token_tolerance_per_thousand\":-1", "timed_token_tolerance_per_thousand"},
        {"\"timed_token_tolerance_per_thousand\":1001", "timed_token_tolerance_per_thousand"},
        {"\"timed_token_near_tie_relative_gap\":0.1", "timed_token_near_tie_relative_gap"},
        {"\"timed_token_tolerance_per_thousand\":1,\"timed_token_near_tie_relative_gap\":1",
         "timed_token_near_tie_relative_gap"},
        {"\"timed_token_tolerance_per_thousand\":1,\"timed_token_near_tie_relative_gap\":-0.1",
         "timed_token_near_tie_relative_gap"},
        {"\"decode_speedup_floor\":0", "decode_speedup_floor"},
        {"\"prefill_speedup_floor\":-1", "prefill_speedup_floor"},
        {"\"prefill_speedup_floor\":\"0.95\"", "prefill_speedup_floor"},
        {"\"scored_batch_size\":0", "scored_batch_size"},
        {"\"prefill_gain_exponent\":0.25", "scored_batch_size"},
        {"\"scored_batch_size\":1,\"prefill_gain_exponent\":0.25", "decode_gain_exponent"},
        {"\"scored_batch_size\":1,\"decode_gain_exponent\":0.25", "prefill_gain_exponent"},
        {"\"scored_batch_size\":1,\"prefill_gain_exponent\":0,\"decode_gain_exponent\":0",
         "prefill_gain_exponent"},
        {"\"scored_batch_size\":1,\"prefill_gain_exponent\":-1,\"decode_gain_exponent\":2",
         "prefill_gain_exponent"},
        {"\"official_baseline_prefill_seconds_per_token\":1",
         "official_baseline_decode_seconds_per_token"},
        {"\"official_baseline_prefill_seconds_per_token\":1,"
         "\"official_baseline_decode_seconds_per_token\":1",
         "prefill_band_up_tolerance"},
        {"\"official_baseline_prefill_seconds_per_token\":0,"
         "\"official_baseline_decode_seconds_per_token\":1",
         "official_baseline_prefill_seconds_per_token"},
        {"\"scores_against_live_control_leg\":true,"
         "\"official_baseline_prefill_seconds_per_token\":1,"
         "\"official_baseline_decode_seconds_per_token\":1",
         "official_baseline_prefill_seconds_per_token"},
        {"\"prefill_band_up_tolerance\":0.1", "prefill_band_down_tolerance"},
        {"\"prefill_band_up_tolerance\":0.1,\"prefill_band_down_tolerance\":0.2,"
         "\"prefill_band_down_enabled\":true,\"decode_band_up_tolerance\":0.3,"
         "\"decode_band_down_tolerance\":0.4",
         "decode_band_down_enabled"},
        {"\"prefill_band_up_tolerance\":0.1,\"prefill_band_down_tolerance\":0.2,"
         "\"prefill_band_down_enabled\":1,\"decode_band_up_tolerance\":0.3,"
         "\"decode_band_down_tolerance\":0.4,\"decode_band_down_enabled\":true",
         "prefill_band_down_enabled"},
        {"\"score_decode_weight\":1", "score_prefill_weight"},
        {"\"score_prefill_weight\":1", "score_decode_weight"},
        {"\"score_decode_weight\":0,\"score_prefill_weight\":0", "score_decode_weight"},
        {"\"score_decode_weight\":-1,\"score_prefill_weight\":2", "score_decode_weight"},
        {"\"score_decode_weight\":1e308,\"score_prefill_weight\":1.7e308", "score_decode_weight"},
        {"\"correctness_steps\":64", "benchmark_decode_steps"},
        {"\"correctness_steps\":0,\"benchmark_decode_steps\":1,"
         "\"local_submit_benchmark_decode_steps\":1,\"official_prefill_warmup_runs\":0",
         "correctness_steps"},
        {"\"correctness_steps\":1,\"benchmark_decode_steps\":1,"
         "\"local_submit_benchmark_decode_steps\":1,\"official_prefill_warmup_runs\":-1",
         "official_prefill_warmup_runs"},
        {"\"vocab_size\":10", "golden_model_type"},
        {"\"golden_model_type\":\" \",\"vocab_size\":1,\"num_hidden_layers\":1,\"seed_tokens\":1",
         "golden_model_type"},
        {"\"golden_model_type\":\"x\",\"vocab_size\":0,\"num_hidden_layers\":1,\"seed_tokens\":1",
         "vocab_size"},
        {"\"golden_model_type\":\"x\",\"vocab_size\":1e3,\"num_hidden_layers\":1,"
         "\"seed_tokens\":1",
         "vocab_size"},
        {"\"golden_model_type\":\"x\",\"vocab_size\":9223372036854775807,"
         "\"num_hidden_layers\":1,\"seed_tokens\":1",
         "vocab_size"},
        {"\"target\":null", "target"},
        {"\"target\":{}", "target.upstream_model_id"},
        {"\"target\":{\"upstream_model_id\":\"a/b\"}", "target.upstream_revision"},
        {"\"target\":{\"upstream_revision\":\"" HEX40 "\"}", "target.upstream_model_id"},
        {"\"target\":{\"upstream_model_id\":\" a/b\",\"upstream_revision\":\"" HEX40 "\"}",
         "target.upstream_model_id"},
        {"\"target\":{\"upstream_model_id\":\"\",\"upstream_revision\":\"" HEX40 "\"}",
         "target.upstream_model_id"},
        {"\"target\":{\"upstream_model_id\":\"a/b\",\"upstream_revision\":\"main\"}",
         "target.upstream_revision"},
        {"\"hidden_correctness_golden\":null", "hidden_correctness_golden"},
        {"\"hidden_correctness_golden\":{\"sha256\":\"" HEX64 "\"}",
         "hidden_correctness_golden.bytes"},
        {"\"hidden_correctness_golden\":{\"sha256\":\"x\",\"bytes\":1}",
         "hidden_correctness_golden.sha256"},
        {"\"hidden_correctness_golden\":{\"sha256\":\"" HEX64 "\",\"bytes\":0}",
         "hidden_correctness_golden.bytes"},
        {"\"yarn_magnitude\":\"both\"", "yarn_magnitude"},
        {"\"yarn_magnitude\":1", "yarn_magnitude"},
        {"\"engine_arithmetic\":\"fast\"", "engine_arithmetic"},
        {"\"engine_arithmetic\":true", "engine_arithmetic"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        if (parse_members(rows[i].members, &c, &err))
            fail_msg("accepted: %s", rows[i].members);
        if (strcmp(err.name, "CONTRACT-INVALID") != 0 || strcmp(err.field, rows[i].field) != 0)
            fail_msg("%s: %s at %s: %s", rows[i].members, err.name, err.field, err.message);
        assert_string_equal(err.file, "tracks/x/contract.json");
        assert_non_null(strstr(err.message, "the --contract track fixture for \"t-v1\" declares"));
    }
}

static void test_unknown_keys(void **state)
{
    (void)state;
    static const struct {
        const char *members, *field;
    } rows[] = {
        {"\"decode_speedup_flor\":0.95", "decode_speedup_flor"},
        {"\"note\":1", "note"},
        {"\"\":1", ""},
        {"\"timed_prompt_pool\":[{\"sha256\":\"" HEX64 "\",\"noop_decode_speedupp\":1}]",
         "timed_prompt_pool[0].noop_decode_speedupp"},
        {"\"hidden_correctness_golden\":{\"sha256\":\"" HEX64 "\",\"bytes\":1,\"byte\":1}",
         "hidden_correctness_golden.byte"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        assert_false(parse_members(rows[i].members, &c, &err));
        assert_string_equal(err.name, "CONTRACT-UNKNOWN-KEY");
        assert_string_equal(err.field, rows[i].field);
    }
}

static void test_track_ids(void **state)
{
    (void)state;
    static const char *const good[] = {"t-v1", "laguna-xs-2.1-dflash-v1", "qwen3.8-27b-mtp-v1",
                                       "qwen3.8-125b-a6b-mlx-v12"};
    static const char *const bad[] = {"",      "t",       "t-v",    "v1",        "-v1",
                                      "t-1",   "t v-v1",  "a/b-v1", "../x-v1",   ".x-v1",
                                      "t-v1 ", "t\\n-v1", "t-v1a",  "\\u00e9-v1"};
    for (size_t i = 0; i < COUNT_OF(good) + COUNT_OF(bad); i++) {
        bool wanted = i < COUNT_OF(good);
        const char *id = wanted ? good[i] : bad[i - COUNT_OF(good)];
        struct buffer text = {0};
        struct contract *c = NULL;
        struct error err;
        buffer_printf(&text, "{\"track_id\":\"%s\"}", id);
        if (parse(text.data, NULL, &c, &err) != wanted)
            fail_msg("track id '%s': %s", id, err.message);
        contract_free(c);
        buffer_free(&text);
    }
}

static void test_shape_of_the_file(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       "[]",
                                       "7",
                                       "{}",
                                       "{\"track_id\":null}",
                                       "{\"track_id\":\"t-v1\"} {}",
                                       "{\"track_id\":\"t-v1\",\"track_id\":\"t-v1\"}",
                                       "\xef\xbb\xbf{\"track_id\":\"t-v1\"}",
                                       "{\"track_id\":\"t-v1\",\"decode_speedup_floor\":NaN}",
                                       "{\"track_id\":\"t-v1\",\"decode_speedup_floor\":.5}",
                                       "{\"track_id\":\"t-v1\",\"runner\":{\"a\":1,\"a\":2}}"};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c = NULL;
        struct error err;
        if (parse(rows[i], NULL, &c, &err))
            fail_msg("accepted: %s", rows[i]);
        assert_string_equal(err.name, "CONTRACT-INVALID");
    }
    struct buffer deep = {0};
    struct contract *c = NULL;
    struct error err;
    buffer_text(&deep, "{\"track_id\":\"t-v1\",\"runner\":");
    for (int i = 0; i < 100000; i++)
        buffer_text(&deep, "[");
    assert_false(parse(deep.data, NULL, &c, &err));
    assert_string_equal(err.name, "CONTRACT-INVALID");
    buffer_free(&deep);
}

static void test_environment_must_agree(void **state)
{
    (void)state;
    struct contract *c = NULL;
    struct error err = {0};
    const char *track = "x";
    assert_true(parse("{\"track_id\":\"t-v1\"}", "t-v1", &c, &err));
    contract_free(c);
    assert_false(parse("{\"track_id\":\"t-v1\"}", "u-v1", &c, &err));
    assert_string_equal(err.name, "TRACK-ID-MISMATCH");

    unsetenv("MLXFAST_QWEN_MTP_TRACK_ID");
    unsetenv("MLXFAST_TRACK_ID");
    assert_true(contract_track_from_environment(&track, &err));
    assert_null(track);
    setenv("MLXFAST_TRACK_ID", "a-v1", 1);
    assert_true(contract_track_from_environment(&track, &err));
    assert_string_equal(track, "a-v1");
    setenv("MLXFAST_QWEN_MTP_TRACK_ID", "", 1); /* empty counts as not set */
    assert_true(contract_track_from_environment(&track, &err));
    assert_string_equal(track, "a-v1");
    setenv("MLXFAST_QWEN_MTP_TRACK_ID", "b-v1", 1);
    assert_false(contract_track_from_environment(&track, &err));
    assert_string_equal(err.name, "TRACK-ID-MISMATCH");
    setenv("MLXFAST_TRACK_ID", "b-v1", 1);
    assert_true(contract_track_from_environment(&track, &err));
    assert_string_equal(track, "b-v1");
    unsetenv("MLXFAST_QWEN_MTP_TRACK_ID");
    unsetenv("MLXFAST_TRACK_ID");
}

static void test_load_names_the_missing_file(void **state)
{
    (void)state;
    struct contract *c = NULL;
    struct error err = {0};
    assert_false(contract_load("/nonexistent/contract.json", NULL, &c, &err));
    assert_string_equal(err.name, "IO");
    assert_string_equal(err.file, "/nonexistent/contract.json");
    assert_null(c);
}

static void test_published_fixture_loads(void **state)
{
    (void)state;
    const char *shared = getenv("MLXFAST_SHARED");
    char path[512];
    snprintf(path, sizeof path, "%s/data/laguna-xs-2.1-dflash-track.json",
             shared && *shared ? shared : "../shared");
    if (access(path, R_OK) != 0) {
        print_message("%s is not here (MLXFAST_SHARED): skipped\n", path);
        skip();
    }
    struct contract *c = NULL;
    struct error err = {0};
    if (!contract_load(path, "laguna-xs-2.1-dflash-v1", &c, &err))
        fail_msg("%s: %s (%s)", err.name, err.message, err.field);
    assert_int_equal(c->pool_count, 8);
    assert_true(c->pool[4].noop_decode_speedup == 0.8726);
    assert_int_equal(c->pool[0].bytes, 185686);
    assert_true(c->official_scoring_enabled);
    assert_string_equal(c->target_model_id, "poolside/Laguna-XS-2.1");
    assert_false(contract_require_window(c, &err));
    assert_string_equal(err.name, "WINDOW-SHAPE-UNDECLARED-FOR-TRACK");
    contract_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_is_read),
        cmocka_unit_test(test_a_bare_contract_declares_nothing),
        cmocka_unit_test(test_each_floor_stands_alone),
        cmocka_unit_test(test_sources_tell_what_is_declared),
        cmocka_unit_test(test_accepted_variants),
        cmocka_unit_test(test_refusals_name_the_field),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_track_ids),
        cmocka_unit_test(test_shape_of_the_file),
        cmocka_unit_test(test_environment_must_agree),
        cmocka_unit_test(test_load_names_the_missing_file),
        cmocka_unit_test(test_published_fixture_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
