/* The tokenizer against the ids and texts of the tokenizers package (tests/vectors/tokenizer), and
 * the rules of its own: user text gives no control token, streams are lossless. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char ROOT[] = "tests/vectors/tokenizer";

static struct buffer unhex(const char *hex)
{
    struct buffer b = {0};
    buffer_text(&b, "");
    for (size_t i = 0; hex[i] && hex[i + 1]; i += 2) {
        const char pair[3] = {hex[i], hex[i + 1], 0};
        buffer_char(&b, (char)strtol(pair, NULL, 16));
    }
    return b;
}

static struct buffer hex_of(const json_t *object, const char *key)
{
    const char *hex = json_string_value(json_object_get(object, key));
    assert_non_null(hex);
    return unhex(hex);
}

static const char *about(const json_t *vector)
{
    return json_string_value(json_object_get(vector, "about"));
}

static void expect_ids(const json_t *vector, const char *key, const struct token_list *got)
{
    const json_t *want = json_object_get(vector, key);
    bool same = json_is_array(want) && json_array_size(want) == got->count;
    for (size_t i = 0; same && i < got->count; i++)
        same = json_integer_value(json_array_get(want, i)) == got->ids[i];
    if (same)
        return;
    struct buffer text = {0};
    for (size_t i = 0; i < got->count; i++)
        buffer_printf(&text, " %d", got->ids[i]);
    fail_msg("\"%s\": %s: got%s", about(vector), key, text.data ? text.data : " nothing");
}

static void expect_text(const json_t *vector, const char *what, const struct buffer *want,
                        const struct buffer *got)
{
    const size_t n = got->length;
    if (want->length != n || memcmp(want->data, got->data ? got->data : "", n) != 0)
        fail_msg("\"%s\": %s: got %.200s", about(vector), what, got->data ? got->data : "");
}

/* Python's incremental decoder, which the vectors' streams come from, holds ED A0..BF for a third
 * byte, in case its surrogatepass handler wants it; those bytes can never be valid UTF-8 and here
 * they are answered at once. The text in all is the same. */
static bool holds_surrogate(const json_t *pieces)
{
    struct buffer all = {0};
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        struct buffer bytes = unhex(json_string_value(json_array_get(pieces, i)));
        buffer_append(&all, bytes.data, bytes.length);
        buffer_free(&bytes);
    }
    bool found = false;
    for (size_t i = 0; i + 1 < all.length; i++)
        found |= (uint8_t)all.data[i] == 0xED && (uint8_t)all.data[i + 1] >= 0xA0;
    buffer_free(&all);
    return found;
}

/* Whole and streamed decoding of the vector's ids. */
static void check_decoding(const struct tokenizer *t, const json_t *vector)
{
    const json_t *ids = json_object_get(vector, "ids");
    struct token_list list = {0};
    struct error err = {0};
    for (size_t i = 0; i < json_array_size(ids); i++)
        token_list_append(&list, (int32_t)json_integer_value(json_array_get(ids, i)));
    for (int skip = 0; skip < 2; skip++) {
        struct buffer want = hex_of(vector, skip ? "decoded_skip" : "decoded"), got = {0};
        assert_true(tokenizer_decode(t, list.ids, list.count, skip, &got, &err));
        expect_text(vector, "decoded", &want, &got);
        buffer_free(&want);
        buffer_free(&got);
    }
    const json_t *pieces = json_object_get(vector, "token_bytes");
    const json_t *stream = json_object_get(vector, "stream");
    assert_int_equal(json_array_size(stream), list.count + 1);
    const bool steps = !holds_surrogate(pieces);
    struct buffer streamed = {0}, whole = hex_of(vector, "decoded");
    struct token_stream s;
    token_stream_begin(&s, t, false);
    for (size_t i = 0; i <= list.count; i++) {
        struct buffer got = {0}, want = unhex(json_string_value(json_array_get(stream, i)));
        if (i < list.count)
            assert_true(token_stream_push(&s, list.ids[i], &got, &err));
        else
            token_stream_finish(&s, &got);
        if (steps)
            expect_text(vector, "stream", &want, &got);
        buffer_append(&streamed, got.data, got.length);
        buffer_free(&got);
        buffer_free(&want);
        if (i == list.count)
            break;
        struct buffer bytes = unhex(json_string_value(json_array_get(pieces, i))), own = {0};
        const char *data;
        size_t length;
        assert_true(tokenizer_token_bytes(t, list.ids[i], &data, &length));
        buffer_append(&own, data, length);
        expect_text(vector, "token_bytes", &bytes, &own);
        buffer_free(&bytes);
        buffer_free(&own);
    }
    expect_text(vector, "the whole stream", &whole, &streamed);
    buffer_free(&streamed);
    buffer_free(&whole);
    token_list_free(&list);
}

static void check_encoding(const struct tokenizer *t, const json_t *vector)
{
    struct buffer text = hex_of(vector, "text");
    struct token_list got = {0};
    struct error err = {0};
    if (!tokenizer_encode_markup(t, text.data, text.length, false, &got, &err))
        fail_msg("%s: %s", about(vector), err.message);
    expect_ids(vector, "ids", &got);
    got.count = 0;
    assert_true(tokenizer_encode_markup(t, text.data, text.length, true, &got, &err));
    expect_ids(vector, "ids_with_special", &got);
    got.count = 0;
    assert_true(tokenizer_encode(t, text.data, text.length, &got, &err));
    expect_ids(vector, "ids_plain", &got);
    token_list_free(&got);
    buffer_free(&text);
}

/* state: the folder's name. */
static void test_vectors(void **state)
{
    char path[256];
    struct error err = {0};
    snprintf(path, sizeof path, "%s/%s/vectors.json", ROOT, (const char *)*state);
    if (!file_exists(path)) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    json_t *root = json_read_file(path, 64 << 20, 64, &err);
    assert_non_null(root);
    const char *file = json_string_value(json_object_get(root, "tokenizer"));
    assert_non_null(file);
    if (!file_exists(file)) {
        print_message("skipped: %s is not there\n", file);
        json_decref(root);
        skip();
    }
    struct tokenizer *t = NULL;
    const bool ok = tokenizer_open(file, &t, &err);
    if (!ok)
        fail_msg("%s: %s %s %s", file, err.name, err.field, err.message);
    const json_t *texts = json_object_get(root, "texts");
    const json_t *sequences = json_object_get(root, "sequences");
    assert_true(json_array_size(texts) > 100);
    assert_true(json_array_size(sequences) > 10);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        check_encoding(t, json_array_get(texts, i));
        check_decoding(t, json_array_get(texts, i));
    }
    for (size_t i = 0; i < json_array_size(sequences); i++)
        check_decoding(t, json_array_get(sequences, i));
    json_decref(root);
    tokenizer_close(t);
}

#define VECTORS(name) cmocka_unit_test_prestate(test_vectors, (void *)(uintptr_t)name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        VECTORS("laguna-style"), VECTORS("laguna-nano"),  VECTORS("gpt2-regex"),
        VECTORS("prefix-space"), VECTORS("digits-split"), VECTORS("other-splits"),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
