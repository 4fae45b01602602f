/* Timed-prompt tapes: every rule of goldens.md section 5 on both its sides, and the routing. */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "judge/tape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { VOCAB = 100 };

static bool parse(const char *text, struct tape **out, struct error *err)
{
    memset(err, 0, sizeof *err);
    const size_t length = strlen(text);
    char *copy = memory_alloc(length ? length : 1); /* no NUL behind it */
    memcpy(copy, text, length);
    const bool ok = tape_parse("pool/novel.golden.json", copy, length, VOCAB, out, err);
    free(copy);
    assert_true(ok == (*out != NULL));
    return ok;
}

static const char whole[] =
    "{\"seed_tokens\":[1,2,99],\"reference_seed_token\":7,\"rows\":["
    "{\"sequential_argmax\":8,\"top2_tokens\":[8,9],\"top2_logits\":[1.5,-2],\"top1_logit\":1.5},"
    "{\"sequential_argmax\":0}],\"reference_self_consistent\":true,\"emitted_tokens\":[8,0]}";

static void test_everything_is_read(void **state)
{
    (void)state;
    struct tape *t;
    struct error err;
    char digest[SHA256_HEX];
    if (!parse(whole, &t, &err))
        fail_msg("%s: %s", err.name, err.message);
    sha256_hex(whole, strlen(whole), digest);
    assert_string_equal(t->sha256, digest);
    assert_int_equal(t->bytes, strlen(whole));
    assert_string_equal(t->prompt_name, "novel");
    assert_int_equal(t->seed_count, 3);
    assert_int_equal(t->seed_tokens[2], 99);
    assert_int_equal(t->reference_seed_token, 7);
    assert_int_equal(t->row_count, 2);
    assert_int_equal(t->rows[0].sequential_argmax, 8);
    assert_true(t->rows[0].has_top2_tokens && t->rows[0].has_top2_logits);
    assert_int_equal(t->rows[0].top2_tokens[1], 9);
    assert_true(t->rows[0].top2_logits[0] == 1.5 && t->rows[0].top2_logits[1] == -2);
    assert_true(t->rows[0].has_top1_logit && t->rows[0].top1_logit == 1.5);
    assert_false(t->rows[1].has_top2_tokens || t->rows[1].has_top2_logits ||
                 t->rows[1].has_top1_logit);
    assert_true(t->has_self_consistent && t->has_emitted_tokens);
    tape_free(t);
}

#define SEED "\"seed_tokens\":[1]"
#define FIRST "\"reference_seed_token\":2"
#define ROWS "\"rows\":[{\"sequential_argmax\":3}]"
#define TAPE(rest) "{" SEED "," FIRST "," ROWS rest "}"
#define ROW(row) "{" SEED "," FIRST ",\"rows\":[{\"sequential_argmax\":3}," row "]}"

static void test_accepted(void **state)
{
    (void)state;
    static const char *const rows[] = {
        TAPE(""),
        TAPE(",\"reference_self_consistent\":true"),
        TAPE(",\"emitted_tokens\":[3]"),
        "{\"rows\":[{\"sequential_argmax\":99}]," FIRST ",\"seed_tokens\":[0,99]}",
        "{" SEED ",\"reference_seed_token\":0," ROWS "}",
        "{" SEED ",\"reference_seed_token\":99," ROWS "}",
        ROW("{\"sequential_argmax\":0,\"top2_tokens\":[0,99]}"),
        ROW("{\"sequential_argmax\":0,\"top2_logits\":[1,1e300]}"),
        ROW("{\"sequential_argmax\":0,\"top1_logit\":-1}"),
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tape *t;
        struct error err;
        if (!parse(rows[i], &t, &err))
            fail_msg("%s: %s", rows[i], err.message);
        tape_free(t);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *field;
    } rows[] = {
        {"", ""},
        {"{", ""},
        {"[]", "(root)"},
        {TAPE("") TAPE(""), ""},
        {TAPE("," SEED), "seed_tokens"},     /* a key twice */
        {TAPE(",\"version\":1"), "version"}, /* a tape has none */
        {TAPE(",\"cases\":[]"), "cases"},    /* a broken tape, not a golden */
        {"{" FIRST "," ROWS "}", "seed_tokens"},
        {"{\"seed_tokens\":null," FIRST "," ROWS "}", "seed_tokens"},
        {"{\"seed_tokens\":[]," FIRST "," ROWS "}", "seed_tokens"},
        {"{\"seed_tokens\":{}," FIRST "," ROWS "}", "seed_tokens"},
        {"{\"seed_tokens\":[-1]," FIRST "," ROWS "}", "seed_tokens[0]"},
        {"{\"seed_tokens\":[1,100]," FIRST "," ROWS "}", "seed_tokens[1]"},
        {"{\"seed_tokens\":[1.0]," FIRST "," ROWS "}", "seed_tokens[0]"},
        {"{\"seed_tokens\":[\"1\"]," FIRST "," ROWS "}", "seed_tokens[0]"},
        {"{\"seed_tokens\":[null]," FIRST "," ROWS "}", "seed_tokens[0]"},
        {"{" SEED "," ROWS "}", "reference_seed_token"},
        {"{" SEED ",\"reference_seed_token\":100," ROWS "}", "reference_seed_token"},
        {"{" SEED ",\"reference_seed_token\":-1," ROWS "}", "reference_seed_token"},
        {"{" SEED ",\"reference_seed_token\":1e0," ROWS "}", "reference_seed_token"},
        {"{" SEED ",\"reference_seed_token\":[2]," ROWS "}", "reference_seed_token"},
        {"{" SEED "," FIRST "}", "rows"},
        {"{" SEED "," FIRST ",\"rows\":[]}", "rows"},
        {"{" SEED "," FIRST ",\"rows\":{}}", "rows"},
        {ROW("3"), "rows[1]"},
        {ROW("{}"), "rows[1].sequential_argmax"},
        {ROW("{\"sequential_argmax\":100}"), "rows[1].sequential_argmax"},
        {ROW("{\"sequential_argmax\":-1}"), "rows[1].sequential_argmax"},
        {ROW("{\"sequential_argmax\":9223372036854775807}"), "rows[1].sequential_argmax"},
        {ROW("{\"sequential_argmax\":1,\"argmax\":1}"), "rows[1].argmax"},
        {ROW("{\"sequential_argmax\":1,\"emitted_token\":1}"), "rows[1].emitted_token"},
        {ROW("{\"sequential_argmax\":1,\"top2_tokens\":[1]}"), "rows[1].top2_tokens"},
        {ROW("{\"sequential_argmax\":1,\"top2_tokens\":[1,2,3]}"), "rows[1].top2_tokens"},
        {ROW("{\"sequential_argmax\":1,\"top2_tokens\":[1,100]}"), "rows[1].top2_tokens[1]"},
        {ROW("{\"sequential_argmax\":1,\"top2_tokens\":null}"), "rows[1].top2_tokens"},
        {ROW("{\"sequential_argmax\":1,\"top2_logits\":[1]}"), "rows[1].top2_logits"},
        {ROW("{\"sequential_argmax\":1,\"top2_logits\":[1,2,3]}"), "rows[1].top2_logits"},
        {ROW("{\"sequential_argmax\":1,\"top2_logits\":[1,\"2\"]}"), "rows[1].top2_logits[1]"},
        {ROW("{\"sequential_argmax\":1,\"top2_logits\":[1,null]}"), "rows[1].top2_logits[1]"},
        {ROW("{\"sequential_argmax\":1,\"top2_logits\":{}}"), "rows[1].top2_logits"},
        {ROW("{\"sequential_argmax\":1,\"top1_logit\":\"1\"}"), "rows[1].top1_logit"},
        {ROW("{\"sequential_argmax\":1,\"top1_logit\":null}"), "rows[1].top1_logit"},
        {TAPE(",\"reference_self_consistent\":1"), "reference_self_consistent"},
        {TAPE(",\"reference_self_consistent\":null"), "reference_self_consistent"},
        {TAPE(",\"emitted_tokens\":[]"), "emitted_tokens"},
        {TAPE(",\"emitted_tokens\":[3,3]"), "emitted_tokens"},
        {TAPE(",\"emitted_tokens\":[4]"), "emitted_tokens[0]"},
        {TAPE(",\"emitted_tokens\":[100]"), "emitted_tokens[0]"},
        {TAPE(",\"emitted_tokens\":null"), "emitted_tokens"},
        {TAPE(",\"emitted_tokens\":3"), "emitted_tokens"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct tape *t;
        struct error err;
        if (parse(rows[i].text, &t, &err))
            fail_msg("accepted: %s", rows[i].text);
        if (strcmp(err.name, "TAPE-INVALID") != 0 || strcmp(err.field, rows[i].field) != 0)
            fail_msg("%s: %s at %s: %s", rows[i].text, err.name, err.field, err.message);
        assert_string_equal(err.file, "pool/novel.golden.json");
    }
}

static void test_vocabulary_text_and_bounds(void **state)
{
    (void)state;
    struct tape *t;
    struct error err;
    assert_false(parse("{\"seed_tokens\":[1,100]," FIRST "," ROWS "}", &t, &err));
    assert_non_null(
        strstr(err.message, "seed_tokens[1]=100 is outside configured vocab range 0..<100"));
    for (int64_t vocab = -1; vocab <= 4; vocab++)
        assert_true(tape_parse("x", TAPE(""), strlen(TAPE("")), vocab, &t, &err) == (vocab == 4) &&
                    (t == NULL) == (vocab < 4));
    tape_free(t);
}

static void test_operator_fault_has_its_own_name(void **state)
{
    (void)state;
    struct tape *t;
    struct error err;
    assert_false(parse(TAPE(",\"reference_self_consistent\":false"), &t, &err));
    assert_string_equal(err.name, "TAPE-NOT-SELF-CONSISTENT");
    assert_string_equal(err.field, "reference_self_consistent");
    /* A broken row is told first. */
    assert_false(
        parse("{" SEED "," FIRST ",\"rows\":[],\"reference_self_consistent\":false}", &t, &err));
    assert_string_equal(err.name, "TAPE-INVALID");
}

static void test_deep_nesting(void **state)
{
    (void)state;
    struct buffer text = {0};
    struct tape *t;
    struct error err;
    buffer_text(&text, "{" SEED "," FIRST ",\"rows\":");
    for (int i = 0; i < 100000; i++)
        buffer_text(&text, "[");
    assert_false(parse(text.data, &t, &err));
    assert_string_equal(err.name, "TAPE-INVALID");
    buffer_free(&text);
}

static void test_routing(void **state)
{
    (void)state;
    enum { TAPE_SHAPE = TIMED_INPUT_TAPE, GOLDEN_SHAPE = TIMED_INPUT_GOLDEN, NEITHER };
    static const struct {
        const char *text;
        int shape;
    } rows[] = {
        {TAPE(""), TAPE_SHAPE},
        {TAPE(",\"cases\":[],\"version\":1"), TAPE_SHAPE},
        {"{\"seed_tokens\":0,\"reference_seed_token\":null,\"rows\":{}}", TAPE_SHAPE},
        {"{\"cases\":[]}", GOLDEN_SHAPE},
        {"{\"cases\":null," SEED "," FIRST "}", GOLDEN_SHAPE},
        {"{" SEED "," FIRST "}", NEITHER},
        {"{" SEED "," ROWS "}", NEITHER},
        {"{" FIRST "," ROWS "}", NEITHER},
        {"{}", NEITHER},
        {"[]", NEITHER},
        {"7", NEITHER},
    };
    enum timed_input shape;
    struct error err = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const bool ok =
            timed_input_route_bytes("a.json", rows[i].text, strlen(rows[i].text), &shape, &err);
        if (ok != (rows[i].shape != NEITHER) || (ok && (int)shape != rows[i].shape))
            fail_msg("%s", rows[i].text);
        if (!ok) {
            assert_string_equal(err.name, "TIMED-INPUT-UNKNOWN");
            assert_non_null(strstr(err.message, "--golden a.json matches NEITHER accepted shape"));
        }
    }
    assert_false(timed_input_route_bytes("a.json", "{", 1, &shape, &err));
    assert_string_equal(err.name, "TIMED-INPUT-UNKNOWN");
}

static void test_files(void **state)
{
    (void)state;
    static const struct {
        const char *file, *name;
    } rows[] = {{"a.golden.json", "a"}, {"b.json", "b"}, {"c", "c"}};
    char folder[] = "/tmp/test_tape_XXXXXX";
    struct arena arena = {0};
    struct tape *t;
    struct error err = {0};
    enum timed_input shape;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *path = path_join(&arena, folder, rows[i].file);
        assert_true(file_write_atomic(path, whole, strlen(whole), &err));
        assert_true(timed_input_route(path, &shape, &err) && shape == TIMED_INPUT_TAPE);
        assert_true(tape_load(path, VOCAB, &t, &err));
        assert_string_equal(t->prompt_name, rows[i].name);
        tape_free(t);
        unlink(path);
        assert_false(tape_load(path, VOCAB, &t, &err));
        assert_string_equal(err.name, "IO");
        assert_false(timed_input_route(path, &shape, &err));
        assert_string_equal(err.name, "IO");
    }
    rmdir(folder);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_read),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_vocabulary_text_and_bounds),
        cmocka_unit_test(test_operator_fault_has_its_own_name),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
