/* Goldens of block decoding: what is read, each field's every fault, the rules between fields, the
 * writer. */
#include "base/arena.h"
#include "base/buffer.h"
#include "judge/dflash_golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct dflash_golden_rules rules = {
    .vocab_size = 100, .seed_tokens = 3, .maximum_rows = 2};

static const char whole[] =
    "{\"seed_tokens\": [1, 2, 99], \"reference_seed_token\": 7, \"rows\": ["
    "{\"sequential_argmax\": 8, \"declared_frame_argmax\": {\"2\": 8, \"16\": 9}, "
    "\"top2_tokens\": [8, 9], \"top2_logits\": [1.5, -2.25], \"top1_logit\": 1.5, "
    "\"emitted_token\": 8, \"emitted_token_logit\": 1.5}, "
    "{\"sequential_argmax\": 0, \"declared_frame_argmax\": {\"1\": 0}, \"top2_tokens\": [0, 5], "
    "\"top2_logits\": [3.0, 3.0], \"top1_logit\": 3.0, \"emitted_token\": 0, "
    "\"emitted_token_logit\": 3.0}], "
    "\"reference_self_consistent\": true, \"emitted_tokens\": [8, 0]}";

static bool parse_with(const struct dflash_golden_rules *r, const char *text,
                       struct dflash_golden **out, struct error *err)
{
    memset(err, 0, sizeof *err);
    const size_t length = strlen(text);
    char *copy = memory_alloc(length ? length : 1); /* no NUL behind it */
    memcpy(copy, text, length);
    const bool ok = dflash_golden_parse("g.json", copy, length, r, out, err);
    free(copy);
    assert_true(ok == (*out != NULL));
    return ok;
}

/* The whole golden with `from` replaced by `to`. Free it. */
static char *changed(const char *from, const char *to)
{
    const char *at = strstr(whole, from);
    if (at == NULL)
        fail_msg("the golden does not hold %s", from);
    struct buffer b = {0};
    buffer_append(&b, whole, (size_t)(at - whole));
    buffer_text(&b, to);
    buffer_text(&b, at + strlen(from));
    return b.data;
}

static void test_everything_is_read(void **state)
{
    (void)state;
    struct dflash_golden *g;
    struct error err;
    char digest[SHA256_HEX];
    if (!parse_with(&rules, whole, &g, &err))
        fail_msg("%s: %s", err.name, err.message);
    sha256_hex(whole, strlen(whole), digest);
    assert_string_equal(g->sha256, digest);
    assert_int_equal(g->bytes, strlen(whole));
    assert_int_equal(g->seed_count, 3);
    assert_int_equal(g->seed[2], 99);
    assert_int_equal(g->seed_token, 7);
    assert_int_equal(g->row_count, 2);
    assert_true(g->self_consistent && dflash_golden_rows_agree(g));
    const struct dflash_row *row = &g->rows[0];
    assert_int_equal(row->sequential_argmax, 8);
    assert_int_equal(row->frame_argmax[2], 8);
    assert_int_equal(row->frame_argmax[16], 9);
    for (int w = 0; w <= FIDELITY_BLOCK_MOST; w++)
        assert_true(w == 2 || w == 16 || row->frame_argmax[w] == -1);
    assert_int_equal(row->top.token[1], 9);
    assert_true(row->top.logit[0] == 1.5 && row->top.logit[1] == -2.25);
    assert_true(row->top1_logit == 1.5 && row->emitted_token_logit == 1.5);
    assert_int_equal(row->emitted_token, 8);
    assert_int_equal(g->rows[1].frame_argmax[1], 0);
    dflash_golden_free(g);
    dflash_golden_free(NULL);
}

/* Each required key: absent, null, of another type; each closed object: an unknown key. */
static const struct {
    const char *from, *to, *field;
} faults[] = {
    {whole, "[]", "the document"},
    {"\"seed_tokens\": [1, 2, 99], ", "", "seed_tokens"},
    {"[1, 2, 99]", "null", "seed_tokens"},
    {"[1, 2, 99]", "{}", "seed_tokens"},
    {"[1, 2, 99]", "[1, 2, 100]", "seed_tokens[2]"},
    {"[1, 2, 99]", "[-1, 2, 9]", "seed_tokens[0]"},
    {"[1, 2, 99]", "[1, 2.0, 9]", "seed_tokens[1]"},
    {"[1, 2, 99]", "[1, 2]", "seed_tokens"},
    {"[1, 2, 99]", "[1, 2, 3, 4]", "seed_tokens"},
    {"\"reference_seed_token\": 7, ", "", "reference_seed_token"},
    {"\"reference_seed_token\": 7", "\"reference_seed_token\": 100", "reference_seed_token"},
    {"\"reference_seed_token\": 7", "\"reference_seed_token\": \"7\"", "reference_seed_token"},
    {"\"rows\"", "\"row\"", "row"},
    {"[8, 0]", "[8]", "emitted_tokens"},
    {"[8, 0]", "[8, 1]", "emitted_tokens[1]"},
    {"[8, 0]", "[8, 100]", "emitted_tokens[1]"},
    {", \"emitted_tokens\": [8, 0]", "", "emitted_tokens"},
    {"true", "1", "reference_self_consistent"},
    {"true", "null", "reference_self_consistent"},
    {"\"reference_self_consistent\": true, ", "", "reference_self_consistent"},
    {"{\"seed", "{\"extra\": 1, \"seed", "extra"},
    {"{\"sequential_argmax\": 8", "{\"extra\": 1, \"sequential_argmax\": 8", "rows[0].extra"},
    {"{\"sequential_argmax\": 8, ", "{", "rows[0].sequential_argmax"},
    {"\"sequential_argmax\": 8", "\"sequential_argmax\": 9", "rows[0].sequential_argmax"},
    {"\"sequential_argmax\": 8", "\"sequential_argmax\": 100", "rows[0].sequential_argmax"},
    {"\"declared_frame_argmax\": {\"2\": 8, \"16\": 9}, ", "", "rows[0].declared_frame_argmax"},
    {"{\"2\": 8, \"16\": 9}", "{}", "rows[0].declared_frame_argmax"},
    {"{\"2\": 8, \"16\": 9}", "[8]", "rows[0].declared_frame_argmax"},
    {"\"16\": 9", "\"17\": 9", "rows[0].declared_frame_argmax.17"},
    {"\"16\": 9", "\"0\": 9", "rows[0].declared_frame_argmax.0"},
    {"\"16\": 9", "\"02\": 9", "rows[0].declared_frame_argmax.02"},
    {"\"16\": 9", "\"x\": 9", "rows[0].declared_frame_argmax.x"},
    {"\"16\": 9", "\"\": 9", "rows[0].declared_frame_argmax."},
    {"\"16\": 9", "\"16\": 100", "rows[0].declared_frame_argmax.16"},
    {"\"16\": 9", "\"16\": null", "rows[0].declared_frame_argmax.16"},
    {"\"top2_tokens\": [8, 9]", "\"top2_tokens\": [8]", "rows[0].top2_tokens"},
    {"\"top2_tokens\": [8, 9]", "\"top2_tokens\": [8, 9, 10]", "rows[0].top2_tokens"},
    {"\"top2_tokens\": [8, 9]", "\"top2_tokens\": [8, 8]", "rows[0].top2_tokens"},
    {"\"top2_tokens\": [8, 9]", "\"top2_tokens\": [8, 100]", "rows[0].top2_tokens[1]"},
    {"\"top2_tokens\": [0, 5]", "\"top2_tokens\": [5, 0]", "rows[1].top2_tokens"},
    {"[1.5, -2.25]", "[1.5]", "rows[0].top2_logits"},
    {"[1.5, -2.25]", "[1.5, \"2\"]", "rows[0].top2_logits"},
    {"[1.5, -2.25]", "[1.5, 2.25]", "rows[0].top2_logits"},
    {"[1.5, -2.25]", "1.5", "rows[0].top2_logits"},
    {"\"top1_logit\": 1.5", "\"top1_logit\": 1.25", "rows[0].top1_logit"},
    {"\"top1_logit\": 1.5, ", "", "rows[0].top1_logit"},
    {"\"top1_logit\": 1.5", "\"top1_logit\": \"1.5\"", "rows[0].top1_logit"},
    {"\"emitted_token\": 8, ", "", "rows[0].emitted_token"},
    {"\"emitted_token\": 8", "\"emitted_token\": -1", "rows[0].emitted_token"},
    {"\"emitted_token_logit\": 1.5", "\"emitted_token_logit\": 1", "rows[0].emitted_token_logit"},
    {"\"emitted_token_logit\": 1.5", "\"emitted_token_logit\": null",
     "rows[0].emitted_token_logit"},
};

static void test_each_fault_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        char *text = changed(faults[i].from, faults[i].to);
        struct dflash_golden *g;
        struct error err;
        if (parse_with(&rules, text, &g, &err))
            fail_msg("accepted: %s", text);
        assert_string_equal(err.name, "GOLDEN-INVALID");
        assert_string_equal(err.file, "g.json");
        if (strcmp(err.field, faults[i].field) != 0)
            fail_msg("%s -> %s: field %s, not %s (%s)", faults[i].from, faults[i].to, err.field,
                     faults[i].field, err.message);
        assert_true(err.message[0] != '\0');
        assert_false(dflash_golden_parse("g.json", text, strlen(text), &rules, &g, NULL));
        free(text);
    }
}

static void refused(const char *text, const char *name)
{
    struct dflash_golden *g;
    struct error err;
    assert_false(parse_with(&rules, text, &g, &err));
    assert_string_equal(err.name, name);
}

static void test_bytes_that_are_no_golden(void **state)
{
    (void)state;
    refused("", "GOLDEN-INVALID");
    refused("{", "GOLDEN-INVALID");
    refused("null", "GOLDEN-INVALID");
    refused("[[[[[[[[[[1]]]]]]]]]]", "GOLDEN-INVALID"); /* deeper than any golden */
    struct dflash_golden *g;
    struct error err = {0};
    assert_false(dflash_golden_load("/nowhere/g.json", &rules, &g, &err));
    assert_string_equal(err.name, "IO");
}

static void test_rows_and_their_number(void **state)
{
    (void)state;
    struct dflash_golden *g;
    struct error err;
    struct dflash_golden_rules r = rules;
    char *none = changed(strstr(whole, "{\"sequential_argmax\": 8"), "], \"emitted_tokens\": []}");
    refused(none, "GOLDEN-INVALID");
    free(none);
    r.maximum_rows = 1;
    assert_false(parse_with(&r, whole, &g, &err));
    assert_string_equal(err.field, "rows");
    r.maximum_rows = 0;
    r.seed_tokens = 0; /* any length */
    assert_true(parse_with(&r, whole, &g, &err));
    dflash_golden_free(g);
}

static void test_another_token_was_given_out(void **state)
{
    (void)state;
    struct dflash_golden *g;
    struct error err;
    struct dflash_golden_rules r = rules;
    /* The second row's token is the second largest: its golden cannot call itself consistent. */
    struct buffer b = {0};
    char *text = changed("\"emitted_token\": 0, ", "\"emitted_token\": 5, ");
    char *end = strstr(text, "true");
    buffer_append(&b, text, (size_t)(end - text));
    buffer_text(&b, "true, \"emitted_tokens\": [8, 5]}");
    refused(b.data, "GOLDEN-INVALID");
    buffer_clear(&b);
    buffer_append(&b, text, (size_t)(end - text));
    buffer_text(&b, "false, \"emitted_tokens\": [8, 5]}");
    assert_true(parse_with(&r, b.data, &g, &err));
    assert_false(g->self_consistent || dflash_golden_rows_agree(g));
    dflash_golden_free(g);
    r.require_self_consistent = true;
    assert_false(parse_with(&r, b.data, &g, &err));
    assert_string_equal(err.name, "GOLDEN-NOT-SELF-CONSISTENT");
    assert_true(parse_with(&r, whole, &g, &err));
    dflash_golden_free(g);
    /* A token that is neither of the two has no larger logit than the second. */
    free(text);
    buffer_clear(&b);
    text = changed("\"emitted_token\": 8, \"emitted_token_logit\": 1.5",
                   "\"emitted_token\": 40, \"emitted_token_logit\": -2.25");
    end = strstr(text, "true");
    buffer_append(&b, text, (size_t)(end - text));
    buffer_text(&b, "false, \"emitted_tokens\": [40, 0]}");
    assert_true(parse_with(&rules, b.data, &g, &err));
    dflash_golden_free(g);
    *strstr(b.data, "2.25}") = '1'; /* -1.25 */
    assert_false(parse_with(&rules, b.data, &g, &err));
    assert_string_equal(err.field, "rows[0].emitted_token_logit");
    buffer_free(&b);
    free(text);
}

static void test_written_as_it_was_read(void **state)
{
    (void)state;
    struct dflash_golden *g, *again;
    struct error err;
    struct buffer text = {0}, twice = {0};
    assert_true(parse_with(&rules, whole, &g, &err));
    dflash_golden_write(g, &text);
    assert_true(parse_with(&rules, text.data, &again, &err));
    assert_memory_equal(g->rows, again->rows, g->row_count * sizeof *g->rows);
    assert_memory_equal(g->seed, again->seed, g->seed_count * sizeof *g->seed);
    assert_true(again->self_consistent && again->seed_token == g->seed_token);
    dflash_golden_write(again, &twice);
    assert_string_equal(text.data, twice.data);
    assert_true(text_ends(text.data, "}\n"));
    dflash_golden_free(again);
    dflash_golden_free(g);
    buffer_free(&text);
    buffer_free(&twice);
}

static void test_the_plan(void **state)
{
    (void)state;
    struct dflash_golden *g;
    struct error err;
    struct buffer text = {0};
    const struct dflash_plan_round rounds[] = {{3, 1}, {2, 1}};
    assert_true(parse_with(&rules, whole, &g, &err));
    dflash_plan_write(g, rounds, COUNT_OF(rounds), &text);
    char flat[512];
    size_t n = 0;
    for (const char *p = text.data; *p != '\0'; p++)
        if (*p != ' ' && *p != '\n')
            flat[n++] = *p;
    flat[n] = '\0';
    assert_string_equal(flat, "{\"seed_tokens\":[1,2,99],\"emitted\":[8,0],\"rounds\":["
                              "{\"block_size\":3,\"count\":1},{\"block_size\":2,\"count\":1}]}");
    dflash_golden_free(g);
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_read),
        cmocka_unit_test(test_each_fault_is_named),
        cmocka_unit_test(test_bytes_that_are_no_golden),
        cmocka_unit_test(test_rows_and_their_number),
        cmocka_unit_test(test_another_token_was_given_out),
        cmocka_unit_test(test_written_as_it_was_read),
        cmocka_unit_test(test_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
