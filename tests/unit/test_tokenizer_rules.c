/* The tokenizer's own rules on a small file made here: cases.md A4, and what is refused. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* GPT-2's printable character of a byte, as UTF-8; written from its definition, not from ours. */
static const char *character_of(int byte, char *out)
{
    int code = byte;
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    if (!printable) {
        code = 0x100;
        for (int b = 0; b < byte; b++)
            code += !((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
    }
    if (code < 0x80) {
        out[0] = (char)code;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        out[2] = '\0';
    }
    return out;
}

enum { ID_HE = 256, ID_LL, ID_HELL, ID_HELLO, ID_END, ID_EOS, ID_SPACED, VOCAB };

/* Ids 0..255 are the bytes; merges make "hello"; </end> (a plain added token, also reachable by
 * merges of its characters) and <eos> (special) are added. No pre-tokenizer pattern. */
static json_t *small(void)
{
    static const char text[] =
        "{\"added_tokens\":[{\"id\":260,\"content\":\"</end>\",\"special\":false,"
        "\"normalized\":false,\"single_word\":false,\"lstrip\":false,\"rstrip\":false},"
        "{\"id\":261,\"content\":\"<eos>\",\"special\":true,\"normalized\":false}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":false},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
        "{\"id\":\"<eos>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
        "\"special_tokens\":{\"<eos>\":{\"id\":\"<eos>\",\"ids\":[261],\"tokens\":[\"<eos>\"]}}},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"truncation\":null,\"padding\":null,"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"he\":256,\"ll\":257,\"hell\":258,\"hello\":259,"
        "\"</end>\":260,\"\\u0120hello\":262},"
        "\"merges\":[[\"l\",\"l\"],[\"h\",\"e\"],\"he ll\",[\"hell\",\"o\"]]}}";
    struct error err = {0};
    json_t *root = json_parse_strict(text, strlen(text), 64, "small", &err);
    if (!root)
        fail_msg("%s", err.message);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (int b = 0; b < 256; b++) {
        char name[4];
        json_object_set_new(vocab, character_of(b, name), json_integer(b));
    }
    return root;
}

static bool open_json(json_t *root, struct tokenizer **t, struct error *err)
{
    char path[] = "/tmp/mlxfast-tokenizer-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    memset(err, 0, sizeof *err);
    const bool ok = tokenizer_open(path, t, err);
    unlink(path);
    if (!ok)
        assert_string_equal(err->file, path);
    return ok;
}

static struct tokenizer *open_small(void)
{
    struct tokenizer *t = NULL;
    struct error err;
    if (!open_json(small(), &t, &err))
        fail_msg("%s %s %s", err.field, err.value, err.message);
    return t;
}

static json_t *at(json_t *value, const char *a, const char *b)
{
    value = json_object_get(value, a);
    return b ? json_object_get(value, b) : value;
}

static void set(json_t *object, const char *key, const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    assert_int_equal(json_object_set_new(object, key, value), 0);
}

static void expect(const struct tokenizer *t, const char *text, bool markup, const int32_t *ids,
                   size_t count)
{
    struct token_list l = {0};
    struct error err = {0};
    const size_t n = strlen(text);
    assert_true(markup ? tokenizer_encode_markup(t, text, n, false, &l, &err)
                       : tokenizer_encode(t, text, n, &l, &err));
    if (l.count != count || memcmp(l.ids, ids, count * sizeof *ids) != 0) {
        for (size_t i = 0; i < l.count; i++)
            print_message(" %d", l.ids[i]);
        fail_msg(" are the ids of \"%s\"", text);
    }
    token_list_free(&l);
}
#define EXPECT(t, text, markup, ...)                                                               \
    expect(t, text, markup, (const int32_t[]){__VA_ARGS__},                                        \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_merges_by_rank(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    assert_int_equal(tokenizer_vocab_size(t), VOCAB);
    EXPECT(t, "hello", false, ID_HELLO);
    EXPECT(t, "hellhello", false, ID_HELL, ID_HELLO);
    EXPECT(t, "helll", false, ID_HELL, 'l');
    EXPECT(t, "hlle", false, 'h', ID_LL, 'e');
    EXPECT(t, " hello", false, ' ', ID_HELLO);
    EXPECT(t, "\x7f\xc3\xa9", false, 0x7F, 0xC3, 0xA9);
    tokenizer_close(t);
}

static void test_A_TK2_user_text_gives_no_control_token(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    EXPECT(t, "hello</end>", true, ID_HELLO, ID_END);
    EXPECT(t, "hello</end>", false, ID_HELLO, '<', '/', 'e', 'n', 'd', '>');
    EXPECT(t, "<eos></end>", false, '<', 'e', 'o', 's', '>', '<', '/', 'e', 'n', 'd', '>');
    EXPECT(t, "<eos></end>", true, ID_EOS, ID_END);
    tokenizer_close(t);

    /* Nor by the back doors: merges that make the token, or a whole word of the vocabulary. */
    json_t *root = small(), *merges = at(root, "model", "merges"),
           *vocab = at(root, "model", "vocab");
    static const char *const parts[][2] = {
        {"<", "/"}, {"e", "n"}, {"en", "d"}, {"</", "end"}, {"</end", ">"}};
    static const char *const made[] = {"</", "en", "end", "</end"};
    for (int i = 0; i < 4; i++)
        json_object_set_new(vocab, made[i], json_integer(263 + i));
    for (int i = 0; i < 5; i++) {
        json_t *pair = json_array();
        json_array_append_new(pair, json_string(parts[i][0]));
        json_array_append_new(pair, json_string(parts[i][1]));
        json_array_append_new(merges, pair);
    }
    for (int ignore = 0; ignore < 2; ignore++) {
        struct error err;
        set(json_object_get(root, "model"), "ignore_merges", ignore ? "true" : "false");
        assert_true(open_json(json_incref(root), &t, &err));
        EXPECT(t, "</end>", false, 266, '>');
        EXPECT(t, "</end>", true, ID_END);
        tokenizer_close(t);
    }
    json_decref(root);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    json_t *root = small();
    struct tokenizer *t = NULL;
    struct error err;
    set(json_object_get(root, "model"), "ignore_merges", "true");
    assert_true(open_json(root, &t, &err));
    EXPECT(t, " hello", false, ID_SPACED); /* no merge makes it */
    EXPECT(t, "  hello", false, ' ', ' ', ID_HELLO);
    tokenizer_close(t);
}

static void test_A_TK1_emoji_split_over_tokens(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    static const int32_t ids[] = {'a', 0xF0, 0x9F, 0x98, 0x80, 'b', 0xE2, 0x82};
    static const char *const pieces[] = {"a", "", "", "", "\xF0\x9F\x98\x80", "b", "", ""};
    struct token_stream s;
    struct error err = {0};
    struct buffer all = {0}, whole = {0};
    token_stream_begin(&s, t, false);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const size_t before = all.length;
        assert_true(token_stream_push(&s, ids[i], &all, &err));
        assert_string_equal(all.data ? all.data + before : "", pieces[i]);
        assert_true(utf8_valid(all.data, all.length));
    }
    token_stream_finish(&s, &all);
    assert_string_equal(all.data, "a\xF0\x9F\x98\x80"
                                  "b\xEF\xBF\xBD");
    assert_true(tokenizer_decode(t, ids, sizeof ids / sizeof *ids, false, &whole, &err));
    assert_string_equal(whole.data, all.data);
    token_stream_finish(&s, &all); /* nothing is left */
    assert_int_equal(all.length, whole.length);
    buffer_free(&all);
    buffer_free(&whole);
    tokenizer_close(t);
}

static void test_special_tokens_between_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    static const int32_t ids[] = {0xC3, ID_EOS, 0xA9, ID_END};
    struct buffer out = {0};
    struct error err = {0};
    assert_true(tokenizer_decode(t, ids, 4, true, &out, &err));
    assert_string_equal(out.data, "\xC3\xA9</end>"); /* only the flagged one is left out */
    buffer_clear(&out);
    assert_true(tokenizer_decode(t, ids, 4, false, &out, &err));
    assert_string_equal(out.data, "\xEF\xBF\xBD<eos>\xEF\xBF\xBD</end>");
    assert_true(tokenizer_is_special(t, ID_EOS));
    assert_false(tokenizer_is_special(t, ID_END));
    assert_false(tokenizer_is_special(t, 'a'));
    assert_int_equal(tokenizer_find(t, "<eos>"), ID_EOS);
    assert_int_equal(tokenizer_find(t, "</end>"), ID_END);
    assert_int_equal(tokenizer_find(t, "hello"), -1);
    buffer_free(&out);
    tokenizer_close(t);
}

static void test_ids_outside_the_vocabulary(void **state)
{
    (void)state;
    json_t *root = small();
    json_object_set_new(at(root, "model", "vocab"), "far", json_integer(300));
    struct tokenizer *t = NULL;
    struct error err;
    assert_true(open_json(root, &t, &err));
    assert_int_equal(tokenizer_vocab_size(t), 301);
    static const int32_t bad[] = {-1, 301, 299, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buffer out = {0};
        const char *bytes;
        size_t length;
        assert_false(tokenizer_decode(t, &bad[i], 1, false, &out, &err));
        assert_string_equal(err.name, "TOKEN-UNKNOWN");
        assert_false(tokenizer_token_bytes(t, bad[i], &bytes, &length));
        assert_false(tokenizer_is_special(t, bad[i]));
        buffer_free(&out);
    }
    tokenizer_close(t);
}

static void test_invalid_utf8_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_small();
    static const char *const bad[] = {"a\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF5\x80\x80\x80",
                                      "\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct token_list l = {0};
        struct error err = {0};
        token_list_append(&l, 7);
        assert_false(tokenizer_encode(t, bad[i], strlen(bad[i]), &l, &err));
        assert_string_equal(err.name, "TEXT-INVALID-UTF8");
        assert_false(tokenizer_encode_markup(t, bad[i], strlen(bad[i]), true, &l, &err));
        assert_int_equal(l.count, 1);
        token_list_free(&l);
    }
    tokenizer_close(t);
}

static void test_A_TK3_long_runs(void **state)
{
    (void)state;
    /* The ids of such runs are compared in test_tokenizer; here their size: a megabyte of one
     * piece, which a quadratic merge would take hours for, loses no byte. */
    json_t *root = small();
    json_t *vocab = at(root, "model", "vocab"), *merges = at(root, "model", "merges");
    char name[64] = "a";
    int id = 263;
    for (int n = 1; n < 32; n *= 2) { /* aa, aaaa, ... */
        json_t *pair = json_array();
        json_array_append_new(pair, json_string(name));
        json_array_append_new(pair, json_string(name));
        json_array_append_new(merges, pair);
        memset(name, 'a', 2 * (size_t)n);
        json_object_set_new(vocab, name, json_integer(id++));
    }
    struct tokenizer *t = NULL;
    struct error err;
    assert_true(open_json(root, &t, &err));
    const size_t length = 1 << 20;
    char *text = malloc(length);
    assert_non_null(text);
    memset(text, 'a', length);
    struct token_list l = {0};
    assert_true(tokenizer_encode(t, text, length, &l, &err));
    assert_int_equal(l.count, length / 32);
    for (size_t i = 0; i < l.count; i++)
        assert_int_equal(l.ids[i], id - 1);
    free(text);
    token_list_free(&l);
    tokenizer_close(t);
}

/* --- refusals ---------------------------------------------------------------------------------*/

static void refused_at(json_t *root, const char *name, const char *field, int line)
{
    struct tokenizer *t = NULL;
    struct error err;
    if (open_json(root, &t, &err))
        fail_msg("line %d: accepted, expected %s %s", line, name, field);
    assert_null(t);
    if (strcmp(err.name, name) != 0 || strcmp(err.field, field) != 0)
        fail_msg("line %d: %s at %s (%s), expected %s at %s", line, err.name, err.field,
                 err.message, name, field);
    assert_true(strlen(err.message) > 0);
}
#define REFUSED(root, name, field) refused_at(root, "TOKENIZER-" name, field, __LINE__)

/* small() with one member of the root, or of the model, replaced. */
static json_t *with(const char *key, const char *text)
{
    json_t *root = small();
    set(root, key, text);
    return root;
}

static json_t *with_model(const char *key, const char *text)
{
    json_t *root = small();
    set(json_object_get(root, "model"), key, text);
    return root;
}

static void test_refused_components(void **state)
{
    (void)state;
    REFUSED(with("model", "[]"), "INVALID", "model");
    REFUSED(with("truncation", "{\"max_length\":3}"), "UNSUPPORTED", "truncation");
    REFUSED(with("padding", "{}"), "UNSUPPORTED", "padding");
    REFUSED(with("normalizer", "{\"type\":\"Lowercase\"}"), "UNSUPPORTED", "normalizer");
    REFUSED(with("normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"}]}"),
            "UNSUPPORTED", "normalizer");
    REFUSED(with("normalizer", "3"), "INVALID", "normalizer");
    REFUSED(with("pre_tokenizer", "null"), "UNSUPPORTED", "pre_tokenizer");
    REFUSED(with("pre_tokenizer", "{\"type\":\"Metaspace\"}"), "UNSUPPORTED", "pre_tokenizer.type");
    REFUSED(with("pre_tokenizer", "{\"type\":\"Digits\"}"), "UNSUPPORTED", "pre_tokenizer");
    REFUSED(with("pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                                  "\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
            "UNSUPPORTED", "pre_tokenizer.pretokenizers[1].type");
    REFUSED(with("pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":1}"), "INVALID",
            "pre_tokenizer.add_prefix_space");
    REFUSED(with("pre_tokenizer", "[]"), "INVALID", "pre_tokenizer");
    REFUSED(with("post_processor", "{\"type\":\"BertProcessing\"}"), "UNSUPPORTED",
            "post_processor");
    REFUSED(with("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[],"
                                   "\"special_tokens\":{}}"),
            "UNSUPPORTED", "post_processor.single");
    REFUSED(with("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                                   "{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                                   "\"special_tokens\":{}}"),
            "INVALID", "post_processor.special_tokens");
    REFUSED(with("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                                   "{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                                   "\"special_tokens\":{\"x\":{\"ids\":[9999]}}}"),
            "INVALID", "post_processor.special_tokens");
    REFUSED(with("decoder", "null"), "UNSUPPORTED", "decoder");
    REFUSED(with("decoder", "{\"type\":\"WordPiece\"}"), "UNSUPPORTED", "decoder");
    REFUSED(with("decoder", "{\"type\":\"Sequence\",\"decoders\":[]}"), "UNSUPPORTED", "decoder");
}

static void test_refused_models(void **state)
{
    (void)state;
    REFUSED(with_model("type", "\"Unigram\""), "UNSUPPORTED", "model.type");
    REFUSED(with_model("byte_fallback", "true"), "UNSUPPORTED", "model.byte_fallback");
    REFUSED(with_model("byte_fallback", "1"), "INVALID", "model.byte_fallback");
    REFUSED(with_model("ignore_merges", "\"true\""), "INVALID", "model.ignore_merges");
    REFUSED(with_model("dropout", "0.1"), "UNSUPPORTED", "model.dropout");
    REFUSED(with_model("continuing_subword_prefix", "\"##\""), "UNSUPPORTED",
            "model.continuing_subword_prefix");
    REFUSED(with_model("end_of_word_suffix", "\"</w>\""), "UNSUPPORTED",
            "model.end_of_word_suffix");
    REFUSED(with_model("vocab", "{}"), "INVALID", "model.vocab");
    REFUSED(with_model("vocab", "[]"), "INVALID", "model.vocab");
    REFUSED(with_model("vocab", "{\"a\":0}"), "INVALID", "model.merges[0]");
    REFUSED(with_model("merges", "null"), "INVALID", "model.merges");
    REFUSED(with_model("merges", "[\"hello\"]"), "INVALID", "model.merges[0]");
    REFUSED(with_model("merges", "[\"l l\",\"h e l\"]"), "INVALID", "model.merges[1]");
    REFUSED(with_model("merges", "[[\"l\"]]"), "INVALID", "model.merges[0]");
    REFUSED(with_model("merges", "[[\"l\",3]]"), "INVALID", "model.merges[0]");
    REFUSED(with_model("merges", "[[\"zz\",\"l\"]]"), "INVALID", "model.merges[0]");
    REFUSED(with_model("merges", "[[\"q\",\"q\"]]"), "INVALID", "model.merges[0]");
    static const char *const ids[] = {
        "-1", "1.5", "\"3\"", "null", "5", "1048576", "9223372036854775807"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        json_t *root = small();
        set(at(root, "model", "vocab"), "new", ids[i]);
        REFUSED(root, "INVALID", "model.vocab");
    }
    json_t *root = small();
    char space[4];
    json_object_del(at(root, "model", "vocab"), character_of(' ', space));
    REFUSED(root, "UNSUPPORTED", "model.vocab"); /* no token for the space */
    root = small();
    json_object_set_new(at(root, "model", "vocab"), "", json_integer(263));
    REFUSED(root, "INVALID", "model.vocab");
}

static void test_refused_added_tokens(void **state)
{
    (void)state;
    REFUSED(with("added_tokens", "{}"), "INVALID", "added_tokens");
    REFUSED(with("added_tokens", "[3]"), "INVALID", "added_tokens[0]");
    REFUSED(with("added_tokens", "[{\"id\":261,\"content\":\"\"}]"), "INVALID", "added_tokens[0]");
    REFUSED(with("added_tokens", "[{\"id\":\"261\",\"content\":\"x\"}]"), "INVALID",
            "added_tokens[0].id");
    REFUSED(with("added_tokens", "[{\"id\":-1,\"content\":\"x\"}]"), "INVALID",
            "added_tokens[0].id");
    REFUSED(with("added_tokens", "[{\"id\":1048576,\"content\":\"x\"}]"), "INVALID", "model.vocab");
    REFUSED(with("added_tokens", "[{\"id\":261,\"content\":\"x\",\"special\":1}]"), "INVALID",
            "added_tokens[0].special");
    REFUSED(with("added_tokens", "[{\"id\":259,\"content\":\"<z>\"}]"), "INVALID",
            "added_tokens[0]"); /* the id of "hello" */
    REFUSED(with("added_tokens", "[{\"id\":264,\"content\":\"hello\"}]"), "INVALID",
            "added_tokens[0]"); /* "hello" has another */
    REFUSED(with("added_tokens", "[{\"id\":261,\"content\":\"<e>\"},{\"id\":261,"
                                 "\"content\":\"<f>\"}]"),
            "INVALID", "added_tokens[1]");
    REFUSED(with("added_tokens", "[{\"id\":263,\"content\":\"<e>\"},{\"id\":264,"
                                 "\"content\":\"<e>\"}]"),
            "INVALID", "added_tokens");
    REFUSED(with("added_tokens", "[{\"id\":97,\"content\":\"a\"}]"), "UNSUPPORTED",
            "model.vocab"); /* then user text could not have an a */
}

/* What Oniguruma and PCRE2 read differently and no rewriting settles. */
static void test_refused_patterns(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a{1,3}+", "a{2}?",  "\\bx",   "\\h",    "\\R",   "\\X",   "(?m)x",     "a(?i)b",
        "(?<n>x)", "(a)\\1", "[a[b]]", "[a&&b]", "[\\W]", "[]a]",  "\\pL",      "\\x80",
        "(",       "[a",     "\\",     "*",      "\\u12", "(*F)x", "\\p{Nope}", "(?<=a+)b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *root = small();
        set(root, "pre_tokenizer",
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":"
            "\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"}]}");
        json_t *split = json_array_get(at(root, "pre_tokenizer", "pretokenizers"), 0);
        json_t *pattern = json_object();
        json_object_set_new(pattern, "Regex", json_string(bad[i]));
        json_object_set_new(split, "pattern", pattern);
        struct tokenizer *t = NULL;
        struct error err;
        if (open_json(root, &t, &err))
            fail_msg("accepted: %s", bad[i]);
        assert_string_equal(err.name, "TOKENIZER-UNSUPPORTED");
        assert_string_equal(err.field, "pre_tokenizer.pretokenizers[0].pattern");
        assert_string_equal(err.value, bad[i]);
    }
}

static void test_refused_files(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct error err = {0};
    assert_false(tokenizer_open("/nonexistent/tokenizer.json", &t, &err));
    assert_string_equal(err.name, "IO");
    char path[] = "/tmp/mlxfast-tokenizer-XXXXXX";
    const int fd = mkstemp(path);
    static const char text[] = "{\"model\":{},\"model\":{}}";
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    close(fd);
    assert_false(tokenizer_open(path, &t, &err));
    assert_string_equal(err.name, "TOKENIZER-INVALID");
    assert_string_equal(err.field, "model");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_rank),
        cmocka_unit_test(test_A_TK1_emoji_split_over_tokens),
        cmocka_unit_test(test_A_TK2_user_text_gives_no_control_token),
        cmocka_unit_test(test_A_TK3_long_runs),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_special_tokens_between_bytes),
        cmocka_unit_test(test_ids_outside_the_vocabulary),
        cmocka_unit_test(test_invalid_utf8_text),
        cmocka_unit_test(test_refused_components),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_refused_added_tokens),
        cmocka_unit_test(test_refused_patterns),
        cmocka_unit_test(test_refused_files),
    };
    return cmocka_run_group_tests_name("tokenizer_rules", tests, NULL, NULL);
}
