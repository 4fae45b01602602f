/* The contract's groups block_decode and fidelity: every member, both sides of every limit, half
 * groups, unknown keys, and the resolvers. */
#include "judge/contract.h"
#include "judge/fidelity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const char whole[] =
    "{\"track_id\":\"t-v1\",\"golden_model_type\":\"laguna\",\"vocab_size\":4096,"
    "\"num_hidden_layers\":8,\"seed_tokens\":512,\"block_decode\":{"
    "\"protocol\":\"trusted_dflash_block_v1\",\"block_size\":4,\"maximum_block_size\":16,"
    "\"decode_tokens\":512,\"maximum_decode_tokens\":1536,\"local_iterate_decode_tokens\":64,"
    "\"local_submit_decode_tokens\":128,\"min_accepted_pairs\":3,\"target_pairs\":4,"
    "\"stall_factor\":4.0,\"raw_speedup_min\":0.5,\"raw_speedup_max\":5.0,"
    "\"calibration\":{\"serial_seconds_per_token\":0.014873,\"band\":0.05,"
    "\"decode_tokens\":512,\"machine\":\"m5-bench\"}},"
    "\"fidelity\":{\"near_tie_logits\":4.875,\"near_tie_per_thousand\":40,"
    "\"residual_per_thousand\":5,\"work_binding_absolute\":4.75,\"work_binding_relative\":0.25,"
    "\"work_binding_mean\":0.5,\"conditions\":{\"largest_honest_drift\":4.625,\"nearest_cheat\":5."
    "0,"
    "\"nearest_cheat_name\":\"fewer experts\",\"decode_tokens\":256,\"machine\":\"box\","
    "\"measured_with\":\"benchd calibrate-fidelity --tokens 256\","
    "\"largest_honest_mean\":0.375,\"nearest_cheat_mean\":0.75}}}";

/* "a.b.c" = value in the object; value NULL: left out. */
static void set_member(json_t *root, const char *path, const char *value)
{
    char text[128];
    strncpy(text, path, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    char *key = text, *dot;
    json_t *object = root;
    while ((dot = strchr(key, '.'))) {
        *dot = '\0';
        object = json_object_get(object, key);
        assert_non_null(object);
        key = dot + 1;
    }
    if (value) {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        json_object_set_new(object, key, parsed);
    } else {
        assert_int_equal(json_object_del(object, key), 0);
    }
}

/* The whole contract with one member, or two, set otherwise. */
static bool parse_with(const char *path, const char *value, const char *path2, const char *value2,
                       struct contract **out, struct error *err)
{
    json_t *root = json_loads(whole, 0, NULL);
    assert_non_null(root);
    if (path)
        set_member(root, path, value);
    if (path2)
        set_member(root, path2, value2);
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    memset(err, 0, sizeof *err);
    *out = NULL;
    const bool ok = contract_parse("tracks/x/contract.json", text, strlen(text), NULL, out, err);
    free(text);
    json_decref(root);
    return ok;
}

static void test_every_member_is_read(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    struct fidelity_limits l;
    if (!parse_with(NULL, NULL, NULL, NULL, &c, &err))
        fail_msg("%s: %s", err.name, err.message);
    const struct contract_block_decode *b = &c->block_decode;
    assert_true(c->has_block_decode && b->has_calibration && c->has_fidelity);
    assert_true(b->block_size == 4 && b->maximum_block_size == 16);
    assert_true(b->decode_tokens == 512 && b->maximum_decode_tokens == 1536);
    assert_true(b->local_iterate_decode_tokens == 64 && b->local_submit_decode_tokens == 128);
    assert_true(b->min_accepted_pairs == 3 && b->target_pairs == 4);
    assert_true(b->stall_factor == 4 && b->raw_speedup_min == 0.5 && b->raw_speedup_max == 5);
    assert_true(b->serial_seconds_per_token == 0.014873 && b->calibration_band == 0.05);
    assert_int_equal(b->calibration_decode_tokens, 512);
    assert_string_equal(b->calibration_machine, "m5-bench");
    const struct contract_fidelity *f = &c->fidelity;
    assert_true(f->largest_honest_drift == 4.625 && f->nearest_cheat == 5);
    assert_string_equal(f->nearest_cheat_name, "fewer experts");
    assert_string_equal(f->machine, "box");
    assert_string_equal(f->measured_with, "benchd calibrate-fidelity --tokens 256");
    assert_int_equal(f->decode_tokens, 256);
    assert_true(contract_require_block_decode(c, &err) && contract_require_fidelity(c, &err));
    assert_true(contract_fidelity_limits(c, &l, &err));
    assert_int_equal(l.vocab_size, 4096);
    assert_true(l.near_tie_logits == 4.875 && l.absolute == 4.75 && l.relative == 0.25);
    assert_true(l.near_tie_per_thousand == 40 && l.residual_per_thousand == 5);
    assert_true(f->has_work_binding_mean && f->work_binding_mean == 0.5);
    assert_true(f->largest_honest_mean == 0.375 && f->nearest_cheat_mean == 0.75);
    assert_true(l.has_mean && l.mean == 0.5);
    contract_free(c);
    assert_true(parse_with("block_decode.calibration", NULL, NULL, NULL, &c, &err));
    assert_true(c->has_block_decode && !c->block_decode.has_calibration);
    contract_free(c);
}

static void test_a_mean_need_not_be_declared(void **state)
{
    (void)state;
    static const char *const members[] = {"largest_honest_mean", "nearest_cheat_mean"};
    json_t *root = json_loads(whole, 0, NULL);
    json_t *fidelity = json_object_get(root, "fidelity");
    json_object_del(fidelity, "work_binding_mean");
    for (size_t i = 0; i < COUNT_OF(members); i++)
        json_object_del(json_object_get(fidelity, "conditions"), members[i]);
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    struct contract *c;
    struct fidelity_limits l;
    struct error err;
    assert_true(contract_parse("c", text, strlen(text), NULL, &c, &err));
    assert_true(contract_fidelity_limits(c, &l, &err));
    assert_false(c->fidelity.has_work_binding_mean || l.has_mean);
    contract_free(c);
    free(text);
    json_decref(root);
}

static void test_undeclared_groups_are_refused_by_name(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    struct fidelity_limits l;
    assert_true(parse_with("block_decode", NULL, "fidelity", NULL, &c, &err));
    assert_false(c->has_block_decode || c->has_fidelity);
    assert_false(contract_require_block_decode(c, &err));
    assert_string_equal(err.name, "BLOCK-DECODE-UNDECLARED-FOR-TRACK");
    assert_string_equal(err.field, "block_decode");
    assert_false(contract_require_fidelity(c, &err));
    assert_string_equal(err.name, "FIDELITY-UNDECLARED-FOR-TRACK");
    assert_string_equal(err.field, "fidelity");
    assert_false(contract_fidelity_limits(c, &l, &err));
    assert_string_equal(err.name, "FIDELITY-UNDECLARED-FOR-TRACK");
    contract_free(c);
    static const char bare[] = "{\"track_id\":\"t-v1\",\"fidelity\":{\"near_tie_logits\":0,"
                               "\"near_tie_per_thousand\":0,\"residual_per_thousand\":0,"
                               "\"work_binding_absolute\":0,\"work_binding_relative\":0,"
                               "\"conditions\":{\"largest_honest_drift\":0,\"nearest_cheat\":0.5,"
                               "\"nearest_cheat_name\":\"a\",\"decode_tokens\":1,"
                               "\"machine\":\"b\",\"measured_with\":\"c\"}}}";
    if (!contract_parse("c", bare, strlen(bare), NULL, &c, &err))
        fail_msg("%s: %s", err.message, err.field);
    assert_false(contract_fidelity_limits(c, &l, &err));
    assert_string_equal(err.name, "MODEL-IDENTITY-UNDECLARED-FOR-TRACK");
    contract_free(c);
}

/* A value just inside and one just outside; the fault is named by its whole path. */
static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *path, *inside, *outside;
    } rows[] = {
        {"block_decode.protocol", "\"trusted_dflash_block_v1\"", "\"trusted_dflash_block_v2\""},
        {"block_decode.block_size", "1", "0"},
        {"block_decode.block_size", "16", "17"},
        {"block_decode.block_size", "2", "2.0"},
        {"block_decode.maximum_block_size", "16", "17"},
        {"block_decode.maximum_block_size", "4", "0"},
        {"block_decode.decode_tokens", "512", "0"},
        {"block_decode.maximum_decode_tokens", "2147483647", "2147483648"},
        {"block_decode.local_iterate_decode_tokens", "1", "0"},
        {"block_decode.local_iterate_decode_tokens", "1536", "1537"},
        {"block_decode.local_submit_decode_tokens", "1", "0"},
        {"block_decode.local_submit_decode_tokens", "1536", "1537"},
        {"block_decode.min_accepted_pairs", "4", "5"},
        {"block_decode.min_accepted_pairs", "1", "0"},
        {"block_decode.target_pairs", "3", "0"},
        {"block_decode.stall_factor", "1", "0.999"},
        {"block_decode.stall_factor", "4", "0"},
        {"block_decode.raw_speedup_min", "0.001", "0"},
        {"block_decode.raw_speedup_min", "4.999", "5.0"},
        {"block_decode.raw_speedup_max", "0.501", "\"5\""},
        {"block_decode.calibration.serial_seconds_per_token", "0.001", "0"},
        {"block_decode.calibration.band", "0.999", "1"},
        {"block_decode.calibration.band", "0.001", "0"},
        {"block_decode.calibration.decode_tokens", "512", "511"},
        {"block_decode.calibration.machine", "\"a\"", "\"\""},
        {"fidelity.near_tie_logits", "0", "-0.001"},
        {"fidelity.near_tie_per_thousand", "0", "-1"},
        {"fidelity.near_tie_per_thousand", "1000", "1001"},
        {"fidelity.residual_per_thousand", "0", "-1"},
        {"fidelity.residual_per_thousand", "1000", "1001"},
        {"fidelity.work_binding_absolute", "4.625", "-1"},
        {"fidelity.work_binding_relative", "0", "-0.001"},
        {"fidelity.work_binding_relative", "1.999", "2"},
        {"fidelity.work_binding_mean", "0.375", "0"},
        {"fidelity.work_binding_mean", "0.5", "4.751"},
        {"fidelity.work_binding_mean", "0.5", "null"},
        {"fidelity.conditions.largest_honest_mean", "0.5", "0.501"},
        {"fidelity.conditions.largest_honest_mean", "0", "-1"},
        {"fidelity.conditions.nearest_cheat_mean", "0.501", "0.5"},
        {"fidelity.conditions.nearest_cheat_mean", "9", "0"},
        {"fidelity.conditions.largest_honest_drift", "4.75", "4.751"},
        {"fidelity.conditions.largest_honest_drift", "0", "-1"},
        {"fidelity.conditions.nearest_cheat", "4.751", "4.75"},
        {"fidelity.conditions.nearest_cheat", "1000", "0"},
        {"fidelity.conditions.nearest_cheat_name", "\"x\"", "\" x\""},
        {"fidelity.conditions.decode_tokens", "1", "0"},
        {"fidelity.conditions.machine", "\"x\"", "7"},
        {"fidelity.conditions.measured_with", "\"x\"", "\"\""},
        {"block_decode.calibration",
         "{\"serial_seconds_per_token\":1,\"band\":0.5,"
         "\"decode_tokens\":512,\"machine\":\"m\"}",
         "null"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c;
        struct error err;
        if (!parse_with(rows[i].path, rows[i].inside, NULL, NULL, &c, &err))
            fail_msg("refused %s = %s: %s %s", rows[i].path, rows[i].inside, err.message,
                     err.field);
        contract_free(c);
        if (parse_with(rows[i].path, rows[i].outside, NULL, NULL, &c, &err))
            fail_msg("accepted %s = %s", rows[i].path, rows[i].outside);
        assert_string_equal(err.name, "CONTRACT-INVALID");
        assert_string_equal(err.field, rows[i].path);
        assert_null(c);
    }
}

/* Limits that another member sets. */
static void test_members_against_each_other(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *path2, *value2, *field; /* field NULL: accepted */
    } rows[] = {
        {"block_decode.maximum_block_size", "2", "block_decode.block_size", "2", NULL},
        {"block_decode.maximum_block_size", "2", "block_decode.block_size", "3",
         "block_decode.block_size"},
        {"block_decode.decode_tokens", "1536", "block_decode.calibration", NULL, NULL},
        {"block_decode.decode_tokens", "1537", "block_decode.calibration", NULL,
         "block_decode.decode_tokens"},
        {"block_decode.decode_tokens", "128", "block_decode.calibration.decode_tokens", "128",
         NULL},
        {"block_decode.decode_tokens", "128", "block_decode.calibration.band", "0.05",
         "block_decode.calibration.decode_tokens"},
        {"block_decode.target_pairs", "3", "block_decode.min_accepted_pairs", "4",
         "block_decode.min_accepted_pairs"},
        {"fidelity.work_binding_absolute", "5.0", "fidelity.conditions.nearest_cheat", "5.0",
         "fidelity.conditions.nearest_cheat"},
        {"fidelity.work_binding_absolute", "5.0", "fidelity.conditions.nearest_cheat", "5.001",
         NULL},
        {"fidelity.work_binding_mean", "4.75", "fidelity.conditions.nearest_cheat_mean", "4.751",
         NULL},
        {"fidelity.work_binding_mean", NULL, NULL, NULL, "fidelity.conditions.largest_honest_mean"},
        {"fidelity.work_binding_mean", NULL, "fidelity.conditions.largest_honest_mean", NULL,
         "fidelity.conditions.nearest_cheat_mean"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c;
        struct error err;
        const bool ok =
            parse_with(rows[i].path, rows[i].value, rows[i].path2, rows[i].value2, &c, &err);
        if (ok != !rows[i].field)
            fail_msg("%s = %s: %s %s", rows[i].path, rows[i].value, err.message, err.field);
        if (!ok) {
            assert_string_equal(err.name, "CONTRACT-INVALID");
            assert_string_equal(err.field, rows[i].field);
        }
        contract_free(c);
    }
}

static void test_half_a_group_is_refused(void **state)
{
    (void)state;
    json_t *root = json_loads(whole, 0, NULL);
    static const char *const groups[][2] = {
        {"block_decode", NULL},
        {"block_decode", "calibration"},
        {"fidelity", NULL},
        {"fidelity", "conditions"},
    };
    size_t tried = 0;
    for (size_t g = 0; g < COUNT_OF(groups); g++) {
        json_t *object = json_object_get(root, groups[g][0]);
        if (groups[g][1])
            object = json_object_get(object, groups[g][1]);
        const char *key;
        json_t *value;
        json_object_foreach(object, key, value)
        {
            char path[128];
            struct contract *c;
            struct error err;
            if (strcmp(key, "calibration") == 0 || strcmp(key, "work_binding_mean") == 0)
                continue;
            snprintf(path, sizeof path, "%s%s%s.%s", groups[g][0], groups[g][1] ? "." : "",
                     groups[g][1] ? groups[g][1] : "", key);
            assert_false(parse_with(path, NULL, NULL, NULL, &c, &err));
            assert_string_equal(err.name, "CONTRACT-INVALID");
            assert_string_equal(err.field, path);
            assert_string_equal(err.value, "missing");
            tried++;
        }
    }
    assert_int_equal(tried, 12 + 4 + 6 + 8);
    static const char *const empty[] = {"block_decode", "fidelity", "block_decode.calibration",
                                        "fidelity.conditions"};
    for (size_t i = 0; i < COUNT_OF(empty); i++) {
        struct contract *c;
        struct error err;
        assert_false(parse_with(empty[i], "{}", NULL, NULL, &c, &err));
        assert_string_equal(err.name, "CONTRACT-INVALID");
        assert_false(parse_with(empty[i], "[]", NULL, NULL, &c, &err));
        assert_string_equal(err.name, "CONTRACT-INVALID");
        assert_string_equal(err.field, empty[i]);
    }
    json_decref(root);
}

static void test_unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *path, *nearest;
    } rows[] = {
        {"block_decode.blok_size", "block_size"},
        {"block_decode.calibration.bands", "band"},
        {"fidelity.residual_per_thousands", "residual_per_thousand"},
        {"fidelity.work_binding_meen", "work_binding_mean"},
        {"fidelity.conditions.largest_honest_meen", "largest_honest_mean"},
        {"fidelity.conditions.nearest_cheet", "nearest_cheat"},
        {"block_decod", "block_decode"},
        {"fidelty", "fidelity"},
        {"block_decode.frobnicate", NULL},
        {"block_decode.near_tie_logits", NULL}, /* known, but not there */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct contract *c;
        struct error err;
        char wanted[128];
        assert_false(parse_with(rows[i].path, "1", NULL, NULL, &c, &err));
        assert_string_equal(err.name, "CONTRACT-UNKNOWN-KEY");
        assert_string_equal(err.field, rows[i].path);
        snprintf(wanted, sizeof wanted, "did you mean %s?", rows[i].nearest ? rows[i].nearest : "");
        if (rows[i].nearest ? !strstr(err.message, wanted) : !!strstr(err.message, "did you mean"))
            fail_msg("%s: %s", rows[i].path, err.message);
    }
    struct contract *c;
    struct error err;
    assert_true(parse_with("fidelity.conditions.why_note", "\"remark\"", NULL, NULL, &c, &err));
    contract_free(c);
}

/* Not one of block decoding, and of the same form: one object, whole or not at all. */
static void test_quantization_envelope(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    assert_true(parse_with(NULL, NULL, NULL, NULL, &c, &err));
    assert_false(c->has_quantization_envelope || c->attention_int8_group32);
    contract_free(c);
    assert_true(parse_with("quantization_envelope", "{\"attention_int8_group32\":true}", NULL, NULL,
                           &c, &err));
    assert_true(c->has_quantization_envelope && c->attention_int8_group32);
    contract_free(c);
    assert_true(parse_with("quantization_envelope",
                           "{\"attention_int8_group32\":false,\"a_note\":1}", NULL, NULL, &c,
                           &err));
    assert_true(c->has_quantization_envelope && !c->attention_int8_group32);
    contract_free(c);
    static const struct {
        const char *value, *name, *field, *nearest;
    } rows[] = {
        {"{}", "CONTRACT-INVALID", "quantization_envelope.attention_int8_group32", NULL},
        {"null", "CONTRACT-INVALID", "quantization_envelope", NULL},
        {"[]", "CONTRACT-INVALID", "quantization_envelope", NULL},
        {"{\"attention_int8_group32\":\"yes\"}", "CONTRACT-INVALID",
         "quantization_envelope.attention_int8_group32", NULL},
        {"{\"attention_int8_group32\":true,\"attention_int8_group_32\":true}",
         "CONTRACT-UNKNOWN-KEY", "quantization_envelope.attention_int8_group_32",
         "did you mean attention_int8_group32?"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_false(parse_with("quantization_envelope", rows[i].value, NULL, NULL, &c, &err));
        assert_string_equal(err.name, rows[i].name);
        assert_string_equal(err.field, rows[i].field);
        assert_true(!rows[i].nearest || strstr(err.message, rows[i].nearest));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_is_read),
        cmocka_unit_test(test_a_mean_need_not_be_declared),
        cmocka_unit_test(test_undeclared_groups_are_refused_by_name),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_members_against_each_other),
        cmocka_unit_test(test_half_a_group_is_refused),
        cmocka_unit_test(test_unknown_keys_name_the_nearest),
        cmocka_unit_test(test_quantization_envelope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
