/* json.h: cases.md A3 and its neighbours, getters, writers. */
#include "base/json.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static json_t *parse(const char *text, struct error *err)
{
    return json_parse_strict(text, strlen(text), JSON_DEPTH_DEFAULT, "file.json", err);
}

static void refused(const char *text, size_t length)
{
    struct error err = {0};
    json_t *v = json_parse_strict(text, length, JSON_DEPTH_DEFAULT, "file.json", &err);
    if (v)
        fail_msg("accepted: %s", text);
    assert_string_equal(err.name, "JSON-INVALID");
    assert_string_equal(err.file, "file.json");
    assert_non_null(strstr(err.message, "line "));
    assert_non_null(strstr(err.message, "column "));
    assert_null(json_parse_strict(text, length, JSON_DEPTH_DEFAULT, NULL, NULL));
}

/* A-JS2, A-JS3, A-JS4 and what stands beside them. */
static void refuses(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        " ",
        "NaN",
        "[NaN]",
        "Infinity",
        "[-Infinity]",
        "-",
        "[-]",
        "01",
        "[-01]",
        "1.",
        "[1.]",
        ".5",
        "[-.5]",
        "+1",
        "1e",
        "1e+",
        "0x10",
        "1e400",
        "-1e400",
        "[1e5000000000000]",
        "9223372036854775808",
        "-9223372036854775809",
        "[99999999999999999999999999]",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800x\"",
        "\"\\ud83d\\u0041\"",
        "\"\\ude00\\ud83d\"",
        "\xef\xbb\xbf{}",
        "{\"a\\u0000b\":1}",
        "[\"a\\u0000b\"]",
        "\"\xff\"",
        "\"\xed\xa0\x80\"",
        "\"\xc0\xaf\"",
        "\"a\tb\"",
        "\"a\nb\"",
        "\"\\x41\"",
        "\"\\u12G4\"",
        "\"abc",
        "'a'",
        "[1,]",
        "[,1]",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "{\"a\":}",
        "[1 2]",
        "[1] x",
        "{} {}",
        "[",
        "]",
        "{",
        "}",
        "[}",
        "nul",
        "True",
        "/*c*/[]",
        "[] // c",
        "\xff\xfe[\0]\0",
        "1\xa0",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(bad[i], strlen(bad[i]));
    refused("[1\0]", 4);
    refused("[1]\0", 4);
    refused("\0", 1);
    refused("\"a\0b\"", 5);
}

static void accepts(void **state)
{
    (void)state;
    struct error err;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {" [ 1 , -2 , 1.5 ] ", "[1,-2,1.5]"},
        {"1e2", "100.0"},
        {"[1E+2,1e-2,0.0,-0.0]", "[100.0,0.01,0.0,-0.0]"},
        {"-0", "0"},
        {"1e-400", "0.0"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""},
        {"\"\\u00e9\\/\\b\\f\\n\\r\\t\\u001F\\u007f\"", "\"\xc3\xa9/\\b\\f\\n\\r\\t\\u001f\x7f\""},
        {"{\"b\":1,\"a\":{\"d\":null,\"c\":[true,false]}}",
         "{\"a\":{\"c\":[true,false],\"d\":null},\"b\":1}"},
        {"{\"a\":1,\"A\":2}", "{\"A\":2,\"a\":1}"},
        {"\"[[[[{{{{\"", "\"[[[[{{{{\""},
        {"{}", "{}"},
        {"[]", "[]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buffer out = {0};
        json_t *v = parse(rows[i].in, &err);
        assert_non_null(v);
        json_write_canonical(v, 0, &out);
        assert_string_equal(out.data, rows[i].out);
        json_decref(v);
        buffer_free(&out);
    }
}

/* A-JS1: refused before jansson sees it, on a small stack. */
static void depth(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    struct error err;
    char *text = memory_alloc(MANY + 1);
    memset(text, '[', MANY);
    assert_null(json_parse_strict(text, MANY, JSON_DEPTH_DEFAULT, "deep.json", &err));
    assert_string_equal(err.name, "JSON-TOO-DEEP");
    assert_string_equal(err.file, "deep.json");
    for (int i = 0; i < MANY / 5; i++)
        memcpy(text + 5 * i, "{\"a\":", 5);
    assert_null(json_parse_strict(text, MANY, JSON_DEPTH_DEFAULT, "deep.json", &err));
    assert_string_equal(err.name, "JSON-TOO-DEEP");
    free(text);
    char nested[2 * 65 + 1] = {0};
    memset(nested, '[', 64);
    memset(nested + 64, ']', 64);
    json_t *v = parse(nested, &err);
    assert_non_null(v);
    json_decref(v);
    memset(nested, '[', 65);
    memset(nested + 65, ']', 65);
    assert_null(parse(nested, &err));
    assert_string_equal(err.name, "JSON-TOO-DEEP");
    assert_null(json_parse_strict("[[1]]", 5, 1, NULL, &err));
    assert_string_equal(err.name, "JSON-TOO-DEEP");
    /* Brackets in strings do not count, escaped quotes do not end a string. */
    v = json_parse_strict("[\"\\\"[[[[\\\\\"]", 12, 1, NULL, &err);
    assert_non_null(v);
    json_decref(v);
}

static void names_the_duplicate_key(void **state)
{
    (void)state;
    struct error err;
    assert_null(parse("{\"a\":1,\n \"a\":2}", &err));
    assert_string_equal(err.name, "JSON-INVALID");
    assert_string_equal(err.message, "duplicate key a (line 2, column 4)");
    assert_string_equal(err.field, "a");
    assert_null(parse("[{\"x\":{\"model.layers.0.self_attn.k_proj.weight\":1,"
                      "\"model.layers.0.self_attn.k_proj.weight\" : 2}}]",
                      &err));
    assert_non_null(strstr(err.message, "duplicate key model.layers.0.self_attn.k_proj.weight ("));
    assert_null(parse("{\"q\\\"\\\\\":1,\"q\\\"\\\\\":2}", &err));
    assert_non_null(strstr(err.message, "duplicate key q\\\"\\\\ ("));
    assert_null(parse("{\"\":1,\"\":2}", &err));
    assert_non_null(strstr(err.message, "duplicate key  ("));
    assert_null(parse("{\"a\":1,\"\\u0061\":2}", &err)); /* the same key, spelled otherwise */
    assert_non_null(strstr(err.message, "duplicate key "));
}

static void places(void **state)
{
    (void)state;
    struct error err;
    assert_null(parse("{\n  \"a\": nope\n}", &err));
    assert_non_null(strstr(err.message, "line 2"));
    assert_null(json_parse_strict("[\n1,\0]", 6, 9, NULL, &err));
    assert_non_null(strstr(err.message, "a NUL byte (line 2, column 3)"));
}

static void getters(void **state)
{
    (void)state;
    struct error err;
    json_t *v = parse("{\"s\":\"t\",\"i\":5,\"r\":5.0,\"f\":1.5,\"b\":true,\"n\":null,"
                      "\"a\":[1,2],\"o\":{},\"big\":[1,99,3],\"mixed\":[1,2.0]}",
                      &err);
    assert_non_null(v);
    const struct json_view view = {v, "g.json", "cases[3]"}, root = {v, "g.json", ""};
    const char *text;
    int64_t i = 0, *items;
    size_t count;
    double d;
    bool b;
    const json_t *part;
    struct arena arena = {0};
    assert_true(json_get_string(&view, "s", &text, &err));
    assert_string_equal(text, "t");
    assert_true(json_get_int64(&view, "i", 5, 5, &i, &err));
    assert_int_equal(i, 5);
    assert_true(json_get_double(&view, "i", &d, &err) && d == 5);
    assert_true(json_get_double(&view, "f", &d, &err) && d == 1.5);
    assert_true(json_get_bool(&view, "b", &b, &err) && b);
    assert_true(json_get_array(&view, "a", &part, &err) && json_array_size(part) == 2);
    assert_true(json_get_object(&view, "o", &part, &err) && json_object_size(part) == 0);
    assert_true(json_get_int64_array(&arena, &view, "a", 0, 9, &items, &count, &err));
    assert_int_equal(count, 2);
    assert_int_equal(items[1], 2);
    assert_true(json_has(&view, "n"));
    assert_false(json_has(&view, "none"));

    assert_false(json_get_string(&view, "none", &text, &err));
    assert_string_equal(err.name, "JSON-FIELD-MISSING");
    assert_string_equal(err.file, "g.json");
    assert_string_equal(err.field, "cases[3].none");
    assert_false(json_get_string(&root, "n", &text, &err));
    assert_string_equal(err.name, "JSON-FIELD-TYPE");
    assert_string_equal(err.field, "n");
    assert_string_equal(err.value, "null");
    assert_false(json_get_int64(&view, "r", 0, 9, &i, &err)); /* 5.0 is no integer */
    assert_string_equal(err.name, "JSON-FIELD-TYPE");
    assert_string_equal(err.value, "5.0");
    assert_false(json_get_int64(&view, "i", 6, 9, &i, &err));
    assert_string_equal(err.name, "JSON-FIELD-RANGE");
    assert_string_equal(err.value, "5");
    assert_false(json_get_int64(&view, "b", 0, 9, &i, &err));
    assert_false(json_get_double(&view, "s", &d, &err));
    assert_string_equal(err.value, "\"t\"");
    assert_false(json_get_bool(&view, "i", &b, &err));
    assert_false(json_get_array(&view, "o", &part, &err));
    assert_false(json_get_object(&view, "a", &part, &err));
    assert_string_equal(err.name, "JSON-FIELD-TYPE");
    assert_false(json_get_int64_array(&arena, &view, "big", 0, 9, &items, &count, &err));
    assert_string_equal(err.name, "JSON-FIELD-RANGE");
    assert_string_equal(err.field, "cases[3].big[1]");
    assert_string_equal(err.value, "99");
    assert_false(json_get_int64_array(&arena, &root, "mixed", 0, 9, &items, &count, &err));
    assert_string_equal(err.name, "JSON-FIELD-TYPE");
    assert_string_equal(err.field, "mixed[1]");
    assert_int_equal(i, 5);
    arena_free(&arena);
    json_decref(v);
}

static void closed(void **state)
{
    (void)state;
    struct error err;
    json_t *v = parse("{\"a\":1,\"b\":2}", &err);
    const struct json_view view = {v, "c.json", "x"};
    const char *const both[] = {"b", "a", "c", NULL}, *const one[] = {"a", NULL};
    assert_true(json_view_closed(&view, both, &err));
    assert_false(json_view_closed(&view, one, &err));
    assert_string_equal(err.name, "JSON-UNKNOWN-KEY");
    assert_string_equal(err.field, "x.b");
    json_decref(v);
}

static void writers(void **state)
{
    (void)state;
    struct error err;
    struct buffer out = {0};
    json_t *v = parse("{\"b\":[1,{\"z\":[],\"y\":{}}],\"a\":0.1,\"\xc3\xa9\":\"\\\"\"}", &err);
    json_write_canonical(v, 2, &out);
    assert_string_equal(out.data, "{\n  \"a\": 0.1,\n  \"b\": [\n    1,\n    {\n      \"y\": {},\n"
                                  "      \"z\": []\n    }\n  ],\n  \"\xc3\xa9\": \"\\\"\"\n}");
    buffer_clear(&out);
    json_write_ordered(v, 0, &out);
    assert_string_equal(out.data,
                        "{\"b\":[1,{\"z\":[],\"y\":{}}],\"a\":0.1,\"\xc3\xa9\":\"\\\"\"}");
    json_decref(v);
    buffer_clear(&out);
    json_write_string("a\0b\x01", 4, &out);
    assert_string_equal(out.data, "\"a\\u0000b\\u0001\"");
    buffer_clear(&out);
    json_write_string("", 0, &out);
    assert_string_equal(out.data, "\"\"");
    buffer_free(&out);
}

static void files(void **state)
{
    (void)state;
    char path[] = "/tmp/mlxfast-test-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct error err;
    assert_null(json_read_file(path, 100, 4, &err)); /* empty */
    assert_string_equal(err.name, "JSON-INVALID");
    assert_string_equal(err.file, path);
    assert_true(file_write_atomic(path, "{\"a\":[1]}\n", 10, &err));
    json_t *v = json_read_file(path, 10, 4, &err);
    assert_non_null(v);
    json_decref(v);
    assert_null(json_read_file(path, 9, 4, &err));
    assert_string_equal(err.name, "FILE-TOO-LARGE");
    assert_null(json_read_file(path, 100, 1, &err));
    assert_string_equal(err.name, "JSON-TOO-DEEP");
    unlink(path);
    assert_null(json_read_file(path, 100, 4, &err));
    assert_string_equal(err.name, "IO");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses), cmocka_unit_test(accepts),
        cmocka_unit_test(depth),   cmocka_unit_test(names_the_duplicate_key),
        cmocka_unit_test(places),  cmocka_unit_test(getters),
        cmocka_unit_test(closed),  cmocka_unit_test(writers),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
