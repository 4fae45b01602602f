/* The judge's reading of a runner manifest: the digest vector of the specification, the closed
 * reader, and the derivations at their edges. */
#include "judge/manifest_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* runner-contract.md section 3. Fields and spaces are in no order of their own here. */
static const char vector[] =
    "{ \"requiresKeepMask\": true, \"recurrentLayers\": true, \"multimodal\": false,\n"
    "  \"regimes\": [{\"perStreamTiming\": false, \"timing\": \"freeRun\", \"batch\": "
    "\"single\"},\n"
    "              {\"batch\": \"single\", \"timing\": \"teacherForced\", \"perStreamTiming\": "
    "false}],\n"
    "  \"decoders\": [{\"depth\": null, \"mode\": \"serial\", \"drafter\": \"none\",\n"
    "                \"state\": \"stateless\"},\n"
    "               {\"mode\": \"mtp\", \"drafter\": \"embeddedHead\", \"state\": "
    "\"requestStateful\",\n"
    "                \"depth\": [1, 3]}],\n"
    "  \"kvBackends\": [\"contiguous\"],\n"
    "  \"engine\": {\"supportsMTP\": true, \"supportsPrefixReuse\": false, \"supportsPagedKV\": "
    "false,\n"
    "             \"supportsCompiledDecode\": false, \"supportsPackedPrefill\": false,\n"
    "             \"supportsCompactRecurrentMTPReplay\": false},\n"
    "  \"backend\": \"mlx\", \"modelTypes\": [\"qwen4_exp\", \"qwen4_exp_text\"],\n"
    "  \"runnerID\": \"layr/qwen4exp-125b-a6b\", \"schemaVersion\": 1 }\n";

static bool parse(struct arena *a, const char *text, struct runner_description *m,
                  struct error *err)
{
    return manifest_check_parse(a, "m.json", text, strlen(text), m, err);
}

static void digest_vector(void **state)
{
    (void)state;
    struct arena a = {0};
    struct runner_description m;
    struct error err = {0};
    char hex[SHA256_HEX];
    assert_true(parse(&a, vector, &m, &err));
    manifest_check_digest(&m, hex);
    assert_string_equal(hex, "474efd9965aef3453e1e8324e99f9711d8e44bb2dceb0366d9c14c7d8e9ecebe");
    /* The order of a list is a fact about the runner. */
    const char *first = m.model_types[0];
    m.model_types[0] = m.model_types[1];
    m.model_types[1] = first;
    char other[SHA256_HEX];
    manifest_check_digest(&m, other);
    assert_string_not_equal(hex, other);
    arena_free(&a);
}

static void bytes_are_compact(void **state)
{
    (void)state;
    struct arena a = {0};
    struct runner_description m, again;
    struct error err = {0};
    struct buffer out = {0}, twice = {0};
    assert_true(parse(&a, vector, &m, &err));
    m.runner_id = "a \"quoted\"\\ \xc3\xbc\n\x01";
    m.regimes[0].single = false;
    m.regimes[0].up_to = 8;
    manifest_check_write(&m, &out);
    assert_non_null(strstr(out.data,
                           "{\"schemaVersion\":1,\"runnerID\":\"a \\\"quoted\\\"\\\\ \xc3\xbc"
                           "\\n\\u0001\",\"modelTypes\":[\"qwen4_exp\","));
    assert_non_null(strstr(out.data, "\"regimes\":[{\"batch\":{\"upTo\":8},\"timing\":\"freeRun\","
                                     "\"perStreamTiming\":false},"));
    assert_non_null(strstr(out.data, "\"state\":\"stateless\",\"depth\":null}"));
    assert_null(strstr(out.data, ": "));
    assert_true(parse(&a, out.data, &again, &err));
    manifest_check_write(&again, &twice);
    assert_string_equal(out.data, twice.data);
    buffer_free(&out);
    buffer_free(&twice);
    arena_free(&a);
}

/* The vector with one text replaced. */
static void expect_refusal(const char *from, const char *to, const char *field)
{
    struct arena a = {0};
    struct runner_description m;
    struct error err = {0};
    struct buffer text = {0};
    const char *at = strstr(vector, from);
    assert_non_null(at);
    buffer_append(&text, vector, (size_t)(at - vector));
    buffer_text(&text, to);
    buffer_text(&text, at + strlen(from));
    if (parse(&a, text.data, &m, &err))
        fail_msg("accepted: %s -> %s", from, to);
    assert_string_equal(err.name, "MANIFEST-INVALID");
    if (field != NULL)
        assert_string_equal(err.field, field);
    buffer_free(&text);
    arena_free(&a);
}

static void closed_at_every_level(void **state)
{
    (void)state;
    expect_refusal("\"schemaVersion\": 1", "\"schemaVersion\": 1, \"extra\": 1", "extra");
    expect_refusal("\"supportsMTP\": true", "\"supportsMTP\": true, \"fast\": true", NULL);
    expect_refusal("\"depth\": null", "\"depth\": null, \"width\": 2", NULL);
    expect_refusal("\"timing\": \"freeRun\"", "\"timing\": \"freeRun\", \"x\": 0", NULL);
    expect_refusal("\"batch\": \"single\"}", "\"batch\": {\"upTo\": 2, \"x\": 0}}", NULL);
    expect_refusal("\"schemaVersion\": 1", "\"schemaVersion\": 1, \"schemaVersion\": 1", NULL);
}

static void every_field_required(void **state)
{
    (void)state;
    expect_refusal(", \"schemaVersion\": 1", "", "schemaVersion");
    expect_refusal("\"runnerID\": \"layr/qwen4exp-125b-a6b\", ", "", "runnerID");
    expect_refusal(", \"modelTypes\": [\"qwen4_exp\", \"qwen4_exp_text\"]", "", "modelTypes");
    expect_refusal("\"backend\": \"mlx\", ", "", "backend");
    expect_refusal("\"kvBackends\": [\"contiguous\"],", "", "kvBackends");
    expect_refusal("\"requiresKeepMask\": true, ", "", "requiresKeepMask");
    expect_refusal("\"supportsMTP\": true, ", "", "engine.supportsMTP");
    expect_refusal("\"depth\": null, ", "", "decoders[0].depth");
    expect_refusal(", \"batch\": \"single\"}", "}", "regimes[0].batch");
    expect_refusal("\"perStreamTiming\": false, ", "", "regimes[0].perStreamTiming");
}

static void wrong_values(void **state)
{
    (void)state;
    expect_refusal("\"schemaVersion\": 1", "\"schemaVersion\": -1", "schemaVersion");
    expect_refusal("\"schemaVersion\": 1", "\"schemaVersion\": 1.0", "schemaVersion");
    expect_refusal("\"schemaVersion\": 1", "\"schemaVersion\": 4294967296", "schemaVersion");
    expect_refusal("[\"contiguous\"]", "[\"paged\", \"other\"]", "kvBackends[1]");
    expect_refusal("[\"contiguous\"]", "[7]", "kvBackends[0]");
    expect_refusal("\"embeddedHead\"", "\"telepathy\"", "decoders[1].drafter");
    expect_refusal("\"requestStateful\"", "\"none\"", "decoders[1].state");
    expect_refusal("[1, 3]", "[3, 1]", "decoders[1].depth");
    expect_refusal("[1, 3]", "[1]", "decoders[1].depth");
    expect_refusal("[1, 3]", "[1, 2, 3]", "decoders[1].depth");
    expect_refusal("[1, 3]", "[-1, 3]", "decoders[1].depth");
    expect_refusal("\"freeRun\"", "\"free\"", "regimes[0].timing");
    expect_refusal("\"batch\": \"single\"}", "\"batch\": \"double\"}", "regimes[0].batch");
    expect_refusal("\"batch\": \"single\"}", "\"batch\": {\"upTo\": 0}}", NULL);
    expect_refusal("\"multimodal\": false", "\"multimodal\": 0", "multimodal");
    struct arena a = {0};
    struct runner_description m;
    struct error err = {0};
    assert_false(parse(&a, "[]", &m, &err));
    assert_string_equal(err.name, "MANIFEST-INVALID");
    assert_false(parse(&a, "", &m, &err));
    assert_string_equal(err.name, "MANIFEST-INVALID");
    assert_false(manifest_check_load(&a, "/nowhere/m.json", &m, &err));
    assert_string_equal(err.name, "IO");
    arena_free(&a);
}

static void capabilities_follow_the_regimes(void **state)
{
    (void)state;
    const char *names[MANIFEST_CAPABILITIES];
    struct runner_regime r[2] = {{.single = true, .timing = "teacherForced"},
                                 {.single = true, .timing = "teacherForced"}};
    struct runner_description m = {.regimes = r, .regime_count = 2};
    assert_int_equal(manifest_check_capabilities(&m, false, names), 0);
    assert_int_equal(manifest_check_capabilities(&m, true, names), 1);
    assert_string_equal(names[0], "cohort_reference_replay");
    r[1] = (struct runner_regime){.up_to = 1, .timing = "freeRun"};
    assert_int_equal(manifest_check_capabilities(&m, false, names), 1); /* a width of 1 is none */
    assert_string_equal(names[0], "free_run_decode");
    r[1] = (struct runner_regime){.up_to = 2, .timing = "freeRun", .per_stream_timing = true};
    assert_int_equal(manifest_check_capabilities(&m, true, names), 4);
    assert_string_equal(names[0], "batched_free_run_decode");
    assert_string_equal(names[3], "per_stream_timing");
}

static void verdicts_of_a_hello(void **state)
{
    (void)state;
    struct arena a = {0};
    struct runner_description m;
    struct error err = {0};
    struct manifest_verdict v[MANIFEST_CHECKS];
    char hex[SHA256_HEX];
    assert_true(parse(&a, vector, &m, &err));
    manifest_check_digest(&m, hex);
    const char *modes[] = {"mtp", "serial"}, *capabilities[] = {"free_run_decode"};
    struct wire_response h = {.backend = {"mlx"}};
    h.spec_modes = (struct wire_texts){true, 2, modes};
    h.capabilities = (struct wire_texts){true, 1, capabilities};
    h.runner = (struct wire_runner){true, "id", "type", hex, "build"};
    manifest_check_hello(&m, false, &h, v);
    for (int i = 0; i < MANIFEST_CHECKS; i++) {
        assert_true(v[i].applies && v[i].passed);
        assert_string_equal(v[i].name, manifest_check_names[i]);
    }
    h.max_batch_size = (struct wire_u32){true, 1};
    h.runner.present = false;
    h.backend.text = NULL;
    manifest_check_hello(&m, true, &h, v);
    const bool passed[] = {true, false, false, false, false, false};
    for (int i = 0; i < MANIFEST_CHECKS; i++) {
        assert_int_equal(v[i].passed, passed[i]);
        assert_int_equal(v[i].applies, i < 5);
        assert_true(v[i].passed || i == 5 || v[i].detail[0] != '\0');
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_vector),         cmocka_unit_test(bytes_are_compact),
        cmocka_unit_test(closed_at_every_level), cmocka_unit_test(every_field_required),
        cmocka_unit_test(wrong_values),          cmocka_unit_test(capabilities_follow_the_regimes),
        cmocka_unit_test(verdicts_of_a_hello),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
