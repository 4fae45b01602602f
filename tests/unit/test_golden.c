/* The golden loader: the 183 rows of goldens.md section 6 and rows of our own, pins, the order of
 * the checks, and what an accepted golden holds. */
#include "base/file.h"
#include "base/json.h"
#include "judge/golden.h"

#include "golden_corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct golden_rules strict = {.required_steps = 64,
                                           .required_prompt_tokens = 1024,
                                           .vocab_size = 248320,
                                           .required_model_type = "qwen4_exp_text",
                                           .require_benchmark = true};

static json_t *tokens(size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)(5 + i)));
    return list;
}

/* A document that uses every section and every optional field but the baselines. */
static json_t *good_document(void)
{
    return json_pack(
        "{s:i, s:s, s:[{s:s, s:o, s:o}],"
        " s:{s:[{s:s, s:o, s:i, s:o, s:i, s:f}],"
        "    s:[{s:s, s:o, s:o, s:i}],"
        "    s:[{s:s, s:o, s:[o, o], s:i, s:s, s:s}]},"
        " s:{s:o, s:i, s:o, s:i, s:o}}",
        "version", 1, "model_type", "qwen4_exp_text", "cases", "name", "c1", "prompt_tokens",
        tokens(1024), "expected_tokens", tokens(64), "correctness_gates", "anchors", "name", "a1",
        "context_tokens", tokens(8), "expected_token", 7, "accepted_tokens", tokens(2),
        "max_expected_rank", 2, "max_top_logit_delta", 0.5, "free_run", "name", "f1",
        "prompt_tokens", tokens(1024), "expected_tokens", tokens(6), "exact_prefix_tokens", 4,
        "behavior", "name", "b1", "prompt_tokens", tokens(12), "accepted_token_sequences",
        tokens(2), tokens(4), "max_new_tokens", 4, "semantic_prompt", "why?", "semantic_domain",
        "physics", "benchmark", "prefill_prompt_tokens", tokens(1024), "expected_prefill_token", 3,
        "decode_seed_tokens", tokens(1024), "expected_decode_seed_token", 4,
        "expected_decode_tokens", tokens(128));
}

/* The container of the last part of a dotted path; *last is that part. */
static json_t *container(json_t *root, const char *path, char *last, size_t size)
{
    json_t *at = root;
    for (;;) {
        size_t n = strcspn(path, ".");
        assert_true(n < size);
        memcpy(last, path, n);
        last[n] = '\0';
        if (path[n] == '\0')
            return at;
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(last, NULL, 10))
                               : json_object_get(at, last);
        assert_non_null(at);
        path += n + 1;
    }
}

static void mutate_document(json_t *root, const struct mutation *m)
{
    char last[128];
    if (m->op == OP_NONE || m->op >= OP_RAW)
        return;
    json_t *at = container(root, m->a, last, sizeof last);
    size_t index = (size_t)strtoul(last, NULL, 10);
    json_t *value = json_is_array(at) ? json_array_get(at, index) : json_object_get(at, last);
    switch (m->op) {
    case OP_SET: {
        json_t *fresh = json_loads(m->b, JSON_DECODE_ANY, NULL);
        assert_non_null(fresh);
        if (json_is_array(at))
            assert_int_equal(json_array_set_new(at, index, fresh), 0);
        else
            assert_int_equal(json_object_set_new(at, last, fresh), 0);
        break;
    }
    case OP_DELETE:
        assert_int_equal(json_object_del(at, last), 0);
        break;
    case OP_LENGTH: {
        size_t wanted = (size_t)strtoul(m->b, NULL, 10);
        assert_true(json_is_array(value));
        while (json_array_size(value) > wanted)
            json_array_remove(value, json_array_size(value) - 1);
        while (json_array_size(value) < wanted)
            json_array_append_new(value, json_integer(5));
        break;
    }
    case OP_DUPLICATE:
        assert_non_null(value);
        assert_int_equal(json_array_append_new(at, json_deep_copy(value)), 0);
        break;
    default:
        break;
    }
}

static void mutate_text(struct buffer *text, const struct mutation *m)
{
    struct buffer fresh = {0};
    const char *found;
    switch (m->op) {
    case OP_RAW:
        buffer_text(&fresh, m->a);
        break;
    case OP_TAIL:
        buffer_printf(&fresh, "%s%s", text->data, m->a);
        break;
    case OP_CUT:
        buffer_append(&fresh, text->data, text->length - (size_t)strtoul(m->b, NULL, 10));
        break;
    case OP_REPLACE:
        found = strstr(text->data, m->a);
        assert_non_null(found);
        buffer_append(&fresh, text->data, (size_t)(found - text->data));
        buffer_printf(&fresh, "%s%s", m->b, found + strlen(m->a));
        break;
    default:
        return;
    }
    buffer_free(text);
    *text = fresh;
}

static void row_text(const struct corpus_row *row, struct buffer *text)
{
    json_t *root = good_document();
    assert_non_null(root);
    for (size_t i = 0; i < COUNT_OF(row->mutations); i++)
        mutate_document(root, &row->mutations[i]);
    char *dump = json_dumps(root, JSON_COMPACT);
    buffer_text(text, dump);
    free(dump);
    json_decref(root);
    for (size_t i = 0; i < COUNT_OF(row->mutations); i++)
        mutate_text(text, &row->mutations[i]);
}

static const struct corpus_row *find_row(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(corpus); i++)
        if (strcmp(corpus[i].name, name) == 0)
            return &corpus[i];
    fail_msg("no row %s", name);
    return NULL;
}

static bool parse(const char *text, size_t length, const struct golden_rules *rules,
                  struct golden **out, struct error *err)
{
    memset(err, 0, sizeof *err);
    /* An exact copy on the heap: a read past the end is seen by the sanitizers. */
    char *copy = memory_alloc(length ? length : 1);
    memcpy(copy, text, length);
    bool ok = golden_parse("dir/mine.golden.json", copy, length, rules, out, err);
    free(copy);
    assert_true(ok == (*out != NULL));
    return ok;
}

static bool parse_row(const char *name, const struct golden_rules *rules, struct golden **out,
                      struct error *err)
{
    struct buffer text = {0};
    row_text(find_row(name), &text);
    bool ok = parse(text.data, text.length, rules, out, err);
    buffer_free(&text);
    return ok;
}

static void test_every_row_has_its_verdict(void **state)
{
    (void)state;
    size_t accepted = 0, rejected = 0;
    for (size_t i = 0; i < COUNT_OF(corpus); i++) {
        const struct corpus_row *row = &corpus[i];
        struct buffer text = {0};
        struct golden *g = NULL;
        struct error err;
        row_text(row, &text);
        bool ok = parse(text.data ? text.data : "", text.length, &strict, &g, &err);
        if (ok != row->accept)
            fail_msg("%s: %s: %s", row->name, ok ? "accepted" : "refused", err.message);
        if (!ok) {
            assert_string_equal(err.name, "GOLDEN-INVALID");
            assert_string_equal(err.file, "dir/mine.golden.json");
            if (!strstr(err.message, row->why) && !strstr(err.field, row->why))
                fail_msg("%s: refused for another reason: %s", row->name, err.message);
        }
        if (i < CORPUS_COUNT) {
            accepted += ok;
            rejected += !ok;
        }
        golden_free(g);
        buffer_free(&text);
    }
    assert_int_equal(accepted, CORPUS_ACCEPT);
    assert_int_equal(rejected, CORPUS_REJECT);
}

static void test_row_names_are_unique(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(corpus); i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(corpus[i].name, corpus[k].name);
}

static void test_accepted_golden_holds_its_values(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    struct buffer text = {0};
    char sha256[SHA256_HEX];
    row_text(find_row("valid_with_behavior"), &text);
    sha256_hex(text.data, text.length, sha256);
    assert_true(parse(text.data, text.length, &strict, &g, &err));
    assert_string_equal(g->sha256, sha256);
    assert_int_equal(g->bytes, text.length);
    buffer_free(&text);
    assert_string_equal(g->prompt_name, "mine");
    assert_string_equal(g->model_type, "qwen4_exp_text");
    assert_null(g->provenance_repository);
    assert_int_equal(g->case_count, 1);
    assert_string_equal(g->cases[0].name, "c1");
    assert_int_equal(g->cases[0].prompt.count, 1024);
    assert_int_equal(g->cases[0].prompt.items[1023], 5 + 1023);
    assert_int_equal(g->cases[0].expected.count, 64);
    assert_true(g->has_gates);
    assert_int_equal(g->anchor_count, 1);
    assert_int_equal(g->anchors[0].expected_token, 7);
    assert_int_equal(g->anchors[0].accepted.count, 2);
    assert_true(g->anchors[0].has_rank && g->anchors[0].max_expected_rank == 2);
    assert_true(g->anchors[0].has_delta && g->anchors[0].max_top_logit_delta == 0.5);
    assert_int_equal(g->free_run_count, 1);
    assert_int_equal(g->free_runs[0].exact_prefix, 4);
    assert_int_equal(g->behavior_count, 1);
    assert_int_equal(g->behaviors[0].accepted_count, 2);
    assert_int_equal(g->behaviors[0].accepted[1].count, 4);
    assert_int_equal(g->behaviors[0].max_new_tokens, 4);
    assert_string_equal(g->behaviors[0].semantic_prompt, "why?");
    assert_null(g->behaviors[0].semantic_answer_key);
    assert_true(g->benchmark.present);
    assert_false(g->benchmark.has_baseline);
    assert_int_equal(g->benchmark.expected_decode.count, 128);
    assert_int_equal(golden_gate_case_count(g), 4);
    golden_free(g);
}

static void test_optional_fields_when_absent(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    assert_true(parse_row("valid_anchor_optional_null", &strict, &g, &err));
    assert_int_equal(g->anchors[0].accepted.count, 0);
    assert_false(g->anchors[0].has_rank || g->anchors[0].has_delta);
    golden_free(g);
    assert_true(parse_row("free_run_prefix_null", &strict, &g, &err));
    assert_int_equal(g->free_runs[0].exact_prefix, g->free_runs[0].expected.count);
    golden_free(g);
    assert_true(parse_row("minus_zero_token", &strict, &g, &err));
    assert_int_equal(g->cases[0].prompt.items[0], 0);
    golden_free(g);
    assert_true(parse_row("name_surrogate_pair", &strict, &g, &err));
    assert_string_equal(g->cases[0].name, "\xf0\x9f\x98\x80");
    golden_free(g);
}

static void test_benchmark_is_asked_for_by_rule(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    struct golden_rules gates_only = strict;
    gates_only.require_benchmark = false;
    assert_true(parse_row("valid_cases_only", &gates_only, &g, &err));
    assert_false(g->benchmark.present || g->has_gates);
    golden_free(g);
}

static void test_stored_baseline(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    struct golden_rules live = strict;
    live.refuse_stored_baseline = true;
    assert_true(parse_row("benchmark_baseline_pair", &strict, &g, &err));
    assert_true(g->benchmark.has_baseline);
    assert_true(g->benchmark.baseline_prefill == 1 && g->benchmark.baseline_decode == 0.01);
    golden_free(g);
    assert_false(parse_row("benchmark_baseline_pair", &live, &g, &err));
    assert_string_equal(err.name, "GOLDEN-CARRIES-STORED-BASELINE");
    /* A pair that is no pair is a fault of the golden first. */
    assert_false(parse_row("benchmark_baseline_bad_00", &live, &g, &err));
    assert_string_equal(err.name, "GOLDEN-INVALID");
    assert_true(parse_row("valid", &live, &g, &err));
    golden_free(g);
}

static void test_step_counts_come_from_the_rules(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    struct golden_rules rules = strict;
    rules.required_steps = 65;
    assert_false(parse_row("valid", &rules, &g, &err));
    assert_non_null(strstr(err.message, "has 64 tokens, not at least 65"));
    rules = strict;
    rules.required_decode_steps = 129;
    assert_false(parse_row("valid", &rules, &g, &err));
    assert_non_null(strstr(err.message, "has 128 tokens, not at least 129"));
    rules = strict;
    rules.vocab_size = 1028; /* the documents' largest token */
    assert_false(parse_row("valid", &rules, &g, &err));
    assert_non_null(strstr(err.message, "=1028 is outside configured vocab range 0..<1028"));
    const struct golden_rules bad[] = {
        {.required_steps = 0, .required_prompt_tokens = 1024, .vocab_size = 248320},
        {.required_steps = 64, .required_prompt_tokens = 0, .vocab_size = 248320},
        {.required_steps = 64, .required_prompt_tokens = 1024}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(parse_row("valid", &bad[i], &g, &err));
        assert_non_null(strstr(err.message, "must be positive"));
    }
}

static void test_pins(void **state)
{
    (void)state;
    static const char text[] = "not a golden at all";
    char sha256[SHA256_HEX], padded[SHA256_HEX + 8];
    struct golden *g = NULL;
    struct error err;
    struct golden_rules rules = strict;
    sha256_hex(text, strlen(text), sha256);
    rules.pin_sha256 = sha256;
    rules.pin_bytes = strlen(text) + 1;
    /* The byte count is compared first, and both before the text is read as JSON. */
    assert_false(parse(text, strlen(text), &rules, &g, &err));
    assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");
    assert_string_equal(err.message,
                        "correctness golden byte count mismatch: expected 20, actual 19");
    rules.pin_bytes = strlen(text);
    assert_false(parse(text, strlen(text), &rules, &g, &err));
    assert_string_equal(err.name, "GOLDEN-INVALID");
    rules.pin_sha256 = "0000000000000000000000000000000000000000000000000000000000000000";
    assert_false(parse(text, strlen(text), &rules, &g, &err));
    assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");
    assert_non_null(strstr(err.message, "correctness golden sha256 mismatch: expected 0000"));
    assert_non_null(strstr(err.message, sha256));
    rules.pin_sha256 = "00";
    assert_false(parse(text, strlen(text), &rules, &g, &err));
    assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");

    struct buffer good = {0};
    row_text(find_row("valid"), &good);
    sha256_hex(good.data, good.length, sha256);
    snprintf(padded, sizeof padded, " %s\n", sha256);
    for (char *p = padded; *p; p++)
        if (*p >= 'a' && *p <= 'f')
            *p = (char)(*p - 'a' + 'A');
    rules.pin_sha256 = padded; /* any letter case, trimmed */
    rules.pin_bytes = good.length;
    assert_true(parse(good.data, good.length, &rules, &g, &err));
    golden_free(g);
    buffer_free(&good);
}

static void test_reference_model_pin(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    struct golden_rules rules = strict;
    rules.pin_repository = "x/y";
    rules.pin_revision = "0123456789012345678901234567890123456789";
    assert_true(parse_row("provenance_well_formed", &rules, &g, &err));
    assert_string_equal(g->provenance_repository, "x/y");
    golden_free(g);
    assert_true(parse_row("valid", &rules, &g, &err)); /* optional in the document */
    golden_free(g);
    rules.pin_revision = "1123456789012345678901234567890123456789";
    assert_false(parse_row("provenance_well_formed", &rules, &g, &err));
    assert_string_equal(
        err.message, "correctness golden model_provenance does not match the pinned reference "
                     "model: golden names x/y@0123456789012345678901234567890123456789, the track "
                     "pins x/y@1123456789012345678901234567890123456789");
    /* wrong_model_type_and_provenance: the model type is told first. */
    rules.required_model_type = "gemma4_text";
    assert_false(parse_row("provenance_well_formed", &rules, &g, &err));
    assert_non_null(strstr(err.message, "the track requires gemma4_text"));
    rules.required_model_type = NULL;
    assert_true(parse_row("model_type_missing", &rules, &g, &err));
    golden_free(g);
}

/* Earlier checks win over later ones. */
static void test_order_of_checks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"{\"version\":2,\"cases\":7}", "cases must be an array"},
        {"{\"version\":2,\"model_type\":\"\",\"cases\":[]}", "version must be 1"},
        {"{\"version\":1,\"model_type\":\"\",\"model_provenance\":{\"repository\":\"\","
         "\"revision\":\"\"},\"cases\":[]}",
         "model_type is empty"},
        {"{\"version\":1,\"model_type\":\"x\",\"model_provenance\":{\"repository\":\"\","
         "\"revision\":\"\"},\"cases\":[]}",
         "repository is empty"},
        {"{\"version\":1,\"model_type\":\"x\",\"cases\":[]}", "the track requires"},
        {"{\"version\":1,\"model_type\":\"qwen4_exp_text\",\"cases\":[],"
         "\"correctness_gates\":{}}",
         "cases is empty"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct golden *g = NULL;
        struct error err;
        assert_false(parse(rows[i].text, strlen(rows[i].text), &strict, &g, &err));
        if (!strstr(err.message, rows[i].why))
            fail_msg("row %zu: %s", i, err.message);
    }
}

static void test_deep_nesting_is_refused(void **state)
{
    (void)state;
    static const char *const openings[] = {"[", "{\"a\":", "[[{\"version\":"};
    for (size_t k = 0; k < COUNT_OF(openings); k++) {
        struct buffer text = {0};
        struct golden *g = NULL;
        struct error err;
        for (int i = 0; i < 100000; i++)
            buffer_text(&text, openings[k]);
        assert_false(parse(text.data, text.length, &strict, &g, &err));
        assert_string_equal(err.name, "GOLDEN-INVALID");
        assert_non_null(strstr(err.message, "nested deeper"));
        buffer_free(&text);
    }
}

static void test_load_reads_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_golden.XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    struct golden *g = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "%s/pool-one.json", folder);
    assert_false(golden_load(path, &strict, &g, &err));
    assert_string_equal(err.name, "IO");
    assert_null(g);
    struct buffer text = {0};
    row_text(find_row("valid"), &text);
    assert_true(file_write_atomic(path, text.data, text.length, &err));
    assert_true(golden_load(path, &strict, &g, &err));
    assert_string_equal(g->prompt_name, "pool-one");
    golden_free(g);
    buffer_free(&text);
    unlink(path);
    rmdir(folder);
}

/* A name is told as it stands, whatever it holds: the message stays one line. */
static void test_messages_are_one_line(void **state)
{
    (void)state;
    struct golden *g = NULL;
    struct error err;
    char line[2200];
    assert_false(parse_row("case_name_control", &strict, &g, &err));
    error_line(&err, line, sizeof line);
    for (const char *p = line; *p; p++)
        assert_true((unsigned char)*p >= 0x20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_has_its_verdict),
        cmocka_unit_test(test_row_names_are_unique),
        cmocka_unit_test(test_accepted_golden_holds_its_values),
        cmocka_unit_test(test_optional_fields_when_absent),
        cmocka_unit_test(test_benchmark_is_asked_for_by_rule),
        cmocka_unit_test(test_stored_baseline),
        cmocka_unit_test(test_step_counts_come_from_the_rules),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_reference_model_pin),
        cmocka_unit_test(test_order_of_checks),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_load_reads_files),
        cmocka_unit_test(test_messages_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
