/* Runner manifests: the contract's test vector through the one canonical writer, our own runner,
 * the derivations of the hello. */
#include "engine/serve/manifest.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *const qwen_types[] = {"qwen4_exp", "qwen4_exp_text", NULL};
static const char *const contiguous[] = {"contiguous", NULL};
static const struct manifest_decoder qwen_decoders[] = {
    {.mode = "serial", .drafter = "none", .state = "stateless"},
    {.mode = "mtp",
     .drafter = "embeddedHead",
     .state = "requestStateful",
     .has_depth = true,
     .depth_low = 1,
     .depth_high = 3}};
static const struct manifest_regime singles[] = {{.batch = 1, .free_run = true},
                                                 {.batch = 1, .free_run = false}};
/* runner-contract.md section 3 */
static const struct runner_manifest qwen = {.runner_id = "layr/qwen4exp-125b-a6b",
                                            .model_types = qwen_types,
                                            .backend = "mlx",
                                            .engine = {.mtp = true},
                                            .kv_backends = contiguous,
                                            .decoders = qwen_decoders,
                                            .decoder_count = 2,
                                            .regimes = singles,
                                            .regime_count = 2,
                                            .recurrent_layers = true,
                                            .requires_keep_mask = true};

static void digest_of_the_contract(void **state)
{
    (void)state;
    char hex[SHA256_HEX];
    manifest_digest(&qwen, hex);
    assert_string_equal(hex, "474efd9965aef3453e1e8324e99f9711d8e44bb2dceb0366d9c14c7d8e9ecebe");
}

static void laguna_bytes(void **state)
{
    (void)state;
    struct buffer out = {0};
    manifest_write(manifest_find_runner("mlxfast/laguna", "cpu"), &out);
    assert_string_equal(
        out.data,
        "{\"schemaVersion\":1,\"runnerID\":\"mlxfast/laguna\",\"modelTypes\":[\"laguna\"],"
        "\"backend\":\"cpu\",\"engine\":{\"supportsPrefixReuse\":false,\"supportsPagedKV\":false,"
        "\"supportsCompiledDecode\":false,\"supportsPackedPrefill\":false,\"supportsMTP\":false,"
        "\"supportsCompactRecurrentMTPReplay\":false},\"kvBackends\":[\"contiguous\"],"
        "\"decoders\":[{\"mode\":\"serial\",\"drafter\":\"none\",\"state\":\"stateless\","
        "\"depth\":null},{\"mode\":\"dflash\",\"drafter\":\"assistantCheckpoint\","
        "\"state\":\"requestStateful\",\"depth\":[1,15]}],\"regimes\":[{\"batch\":\"single\","
        "\"timing\":\"freeRun\","
        "\"perStreamTiming\":false},{\"batch\":\"single\",\"timing\":\"teacherForced\","
        "\"perStreamTiming\":false}],\"multimodal\":false,\"recurrentLayers\":false,"
        "\"requiresKeepMask\":false}");
    struct error err;
    json_t *parsed = json_parse_strict(out.data, out.length, 16, "manifest", &err);
    assert_int_equal(json_object_size(parsed), 11);
    json_decref(parsed);
    buffer_free(&out);
}

static void cohort_regimes_and_escapes(void **state)
{
    (void)state;
    static const char *const odd[] = {"a\"b\\c\n\r\t\x01", NULL};
    static const struct manifest_regime wide[] = {
        {.batch = 4, .free_run = true, .per_stream_timing = true}, {.batch = 8, .free_run = true}};
    struct runner_manifest m = qwen;
    m.model_types = odd;
    m.regimes = wide;
    struct buffer out = {0};
    manifest_write(&m, &out);
    assert_non_null(strstr(out.data, "[\"a\\\"b\\\\c\\n\\r\\t\\u0001\"]"));
    assert_non_null(strstr(out.data, "{\"batch\":{\"upTo\":4},\"timing\":\"freeRun\","
                                     "\"perStreamTiming\":true}"));
    buffer_free(&out);
    assert_int_equal(manifest_max_batch(&m), 8);
    const char *names[4];
    assert_int_equal(manifest_capabilities(&m, true, names), 4);
    assert_string_equal(names[1], "batched_free_run_decode");
    assert_string_equal(names[2], "per_stream_timing");
    assert_string_equal(names[3], "cohort_reference_replay");
}

static void registry(void **state)
{
    (void)state;
    const struct runner_manifest *laguna = manifest_find_model_type("laguna", "cpu");
    assert_non_null(laguna);
    assert_ptr_equal(laguna, manifest_find_runner("mlxfast/laguna", "cpu"));
    assert_true(manifest_claims(laguna, "laguna") && !manifest_claims(laguna, "llama"));
    assert_null(manifest_find_runner("layr/laguna", "cpu"));
    assert_null(manifest_find_model_type("", "cpu"));
    assert_string_equal(manifest_find_runner("mlxfast/laguna", "cuda")->backend, "cuda");
    assert_string_equal(manifest_find_model_type("laguna", "cuda")->backend, "cuda");
    assert_null(manifest_find_runner("mlxfast/laguna", "metal"));
    assert_int_equal(manifest_max_batch(laguna), 1);
    const char *names[4];
    assert_int_equal(manifest_capabilities(laguna, false, names), 1);
    assert_string_equal(names[0], "free_run_decode");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_of_the_contract),
        cmocka_unit_test(laguna_bytes),
        cmocka_unit_test(cohort_regimes_and_escapes),
        cmocka_unit_test(registry),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
