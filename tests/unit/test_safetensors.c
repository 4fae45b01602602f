/* Safetensors headers, sound and broken: cases.md A1, A3 and their neighbours. */
#include "../malformed/files.h"
#include "engine/checkpoint/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool parse(struct bytes file, struct arena *a, struct tensor **t, size_t *n,
                  struct error *err)
{
    memset(err, 0, sizeof *err);
    return safetensors_parse(a, "x.safetensors", file.data, file.length, t, n, err);
}

/* The file is refused by name, with this field and with `say` in the message. */
static void refused(struct bytes file, const char *field, const char *say)
{
    struct arena a = {0};
    struct tensor *t;
    size_t n;
    struct error err;
    if (parse(file, &a, &t, &n, &err))
        fail_msg("accepted: %.200s", (const char *)file.data + 8);
    assert_string_equal(err.name, "SAFETENSORS-INVALID");
    assert_string_equal(err.file, "x.safetensors");
    if (strcmp(err.field, field) != 0 || !strstr(err.message, say))
        fail_msg("%s: field \"%s\", expected \"%s\" with \"%s\"", err.message, err.field, field,
                 say);
    assert_true(a.total < 4096 + 1024 * file.length); /* nothing sized by a bad value */
    arena_free(&a);
    free(file.data);
}

static void refused_header(const char *header, size_t payload, const char *field, const char *say)
{
    refused(bytes_safetensors(header, payload), field, say);
}

static size_t accepted(struct bytes file)
{
    struct arena a = {0};
    struct tensor *t;
    size_t n = 0;
    struct error err;
    if (!parse(file, &a, &t, &n, &err))
        fail_msg("refused: %s (%s %s)", err.message, err.field, err.value);
    arena_free(&a);
    free(file.data);
    return n;
}

static size_t accepted_header(const char *header, size_t payload)
{
    return accepted(bytes_safetensors(header, payload));
}

static void test_sound_file(void **state)
{
    (void)state;
    struct bytes file = bytes_safetensors(
        "{'__metadata__':{'format':'mlx'},'b':{'dtype':'F32','shape':[2,1],'data_offsets':[1,9]},"
        "'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
        "'s':{'dtype':'BF16','shape':[],'data_offsets':[9,11]},"
        "'z':{'dtype':'I64','shape':[3,0],'data_offsets':[11,11]}}",
        11);
    struct arena a = {0};
    struct tensor *t;
    size_t n;
    struct error err;
    assert_true(parse(file, &a, &t, &n, &err));
    assert_int_equal(n, 4);
    assert_string_equal(t[0].name, "a");
    assert_string_equal(t[1].name, "b");
    assert_int_equal(t[1].dtype, DTYPE_F32);
    assert_int_equal(t[1].rank, 2);
    assert_int_equal(t[1].shape[0], 2);
    assert_int_equal(t[1].shape[1], 1);
    assert_int_equal(t[1].bytes, 8);
    assert_int_equal(t[1].data[0], 1); /* unaligned, and where the header says */
    assert_ptr_equal(t[1].data, file.data + file.length - 10);
    assert_int_equal(t[2].rank, 0);
    assert_int_equal(t[2].bytes, 2);
    assert_int_equal(t[3].bytes, 0);
    arena_free(&a);
    free(file.data);
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t size;
    } all[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
               {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
               {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
    assert_int_equal(sizeof all / sizeof *all, DTYPE_COUNT);
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'t':{'dtype':'%s','shape':[3],'data_offsets':[0,%zu]}}",
                 all[i].name, 3 * all[i].size);
        assert_int_equal(accepted_header(header, 3 * all[i].size), 1);
        assert_string_equal(dtype_name((enum dtype)i), all[i].name);
        assert_int_equal(dtype_size((enum dtype)i), all[i].size);
    }
}

/* --- cases.md A1 ------------------------------------------------------------------------------*/

static void test_A_ST1_duplicate_name(void **state)
{
    (void)state;
    refused_header("{'model.w':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
                   "'model.w':{'dtype':'U8','shape':[1],'data_offsets':[1,2]}}",
                   2, "model.w", "duplicate key");
    refused_header("{'w':{'dtype':'U8','dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "dtype",
                   "duplicate key");
    refused_header("{'__metadata__':{'a':'1','a':'2'}}", 0, "a", "duplicate key");
    refused_header("{'__metadata__':{},'__metadata__':{}}", 0, "__metadata__", "duplicate key");
    /* The same name by another spelling. */
    refused_header("{'w':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
                   "'\\u0077':{'dtype':'U8','shape':[1],'data_offsets':[1,2]}}",
                   2, "\\u0077", "duplicate key");
}

static void test_A_ST2_header_length_near_the_limit(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {UINT64_MAX,     UINT64_MAX - 4, UINT64_MAX - 5,
                                       UINT64_MAX - 7, UINT64_MAX - 8, (uint64_t)INT64_MAX,
                                       1u << 31,       200000000,      3};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        refused(bytes_claiming(lengths[i], "{}", 0), "header length", "beyond the file");
    assert_int_equal(accepted(bytes_claiming(2, "{}", 0)), 0);
    for (size_t n = 0; n < 8; n++)
        refused(bytes_raw("\0\0\0\0\0\0\0\0", n), "", "a header length needs 8");
    refused(bytes_claiming(0, "", 0), "header length", "does not begin with '{'");
    refused(bytes_claiming(1, "", 0), "header length", "beyond the file");
    refused(bytes_claiming(1, "{}", 0), "", "not JSON"); /* half a header */
}

static void test_header_cap(void **state)
{
    (void)state;
    const size_t n = 100000001; /* a sparse file would do; here the memory is only reserved */
    struct bytes file = {calloc(1, n + 8), n + 8};
    assert_non_null(file.data);
    for (int i = 0; i < 8; i++)
        file.data[i] = (uint8_t)((uint64_t)n >> (8 * i));
    refused(file, "header length", "longer than 100,000,000");
}

static void test_A_ST3_range_is_not_shape_times_dtype(void **state)
{
    (void)state;
    refused_header("{'w':{'dtype':'F32','shape':[1000,1000],'data_offsets':[0,4]}}", 4,
                   "w.data_offsets", "covers 4 bytes but shape and dtype need 4000000");
    refused_header("{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,8]}}", 8, "w.data_offsets",
                   "covers 8 bytes");
    refused_header("{'w':{'dtype':'F32','shape':[0],'data_offsets':[0,4]}}", 4, "w.data_offsets",
                   "need 0");
    refused_header("{'w':{'dtype':'BF16','shape':[],'data_offsets':[0,0]}}", 0, "w.data_offsets",
                   "need 2");
}

static void test_A_ST4_overlap(void **state)
{
    (void)state;
    refused_header("{'k_proj':{'dtype':'U8','shape':[4],'data_offsets':[0,4]},"
                   "'v_proj':{'dtype':'U8','shape':[4],'data_offsets':[0,4]}}",
                   4, "v_proj", "k_proj already owns");
    refused_header("{'a':{'dtype':'U8','shape':[4],'data_offsets':[0,4]},"
                   "'b':{'dtype':'U8','shape':[4],'data_offsets':[3,7]}}",
                   7, "b", "overlap");
    refused_header("{'a':{'dtype':'U8','shape':[9],'data_offsets':[0,9]},"
                   "'b':{'dtype':'U8','shape':[0],'data_offsets':[3,3]},"
                   "'c':{'dtype':'U8','shape':[1],'data_offsets':[9,10]}}",
                   10, "b", "overlap");
    /* Two empty tensors at one place own nothing. */
    assert_int_equal(accepted_header("{'a':{'dtype':'U8','shape':[0],'data_offsets':[1,1]},"
                                     "'b':{'dtype':'U8','shape':[0],'data_offsets':[1,1]},"
                                     "'c':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}",
                                     1),
                     3);
}

static void test_A_ST5_product_overflows(void **state)
{
    (void)state;
    refused_header("{'w':{'dtype':'U8','shape':[4294967296,4294967296],'data_offsets':[0,0]}}", 0,
                   "w.shape", "overflows");
    refused_header("{'w':{'dtype':'F32','shape':[4611686018427387904],'data_offsets':[0,0]}}", 0,
                   "w.shape", "overflows");
    /* The zero comes too late. */
    refused_header("{'w':{'dtype':'U8','shape':[4294967296,4294967296,0],'data_offsets':[0,0]}}", 0,
                   "w.shape", "overflows");
    refused_header("{'w':{'dtype':'U8','shape':[9223372036854775807,2],'data_offsets':[0,0]}}", 0,
                   "w.shape", "overflows");
    refused_header("{'w':{'dtype':'U8','shape':[-1],'data_offsets':[0,0]}}", 0, "w.shape",
                   "non-negative");
    refused_header("{'w':{'dtype':'U8','shape':[-2,-2],'data_offsets':[0,4]}}", 4, "w.shape",
                   "non-negative");
    refused_header("{'w':{'dtype':'U8','shape':[9223372036854775808],'data_offsets':[0,0]}}", 0, "",
                   "not JSON");
    refused_header("{'w':{'dtype':'U8','shape':[1000000000000],'data_offsets':[0,1000000000000]}}",
                   1, "w.data_offsets", "999999999999 bytes beyond");
    static const char *const wrong[] = {"[1.0]", "['1']", "[true]", "[null]", "[[1]]", "[1e0]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'w':{'dtype':'U8','shape':%s,'data_offsets':[0,1]}}",
                 wrong[i]);
        refused_header(header, 1, "w.shape", "non-negative integer");
    }
    refused_header("{'w':{'dtype':'U8','shape':1,'data_offsets':[0,1]}}", 1, "w.shape",
                   "not an array");
}

static void test_A_ST7_cut_file(void **state)
{
    (void)state;
    static const char header[] = "{'a':{'dtype':'U8','shape':[5],'data_offsets':[0,5]},"
                                 "'b':{'dtype':'F32','shape':[4],'data_offsets':[5,21]}}";
    assert_int_equal(accepted_header(header, 21), 2);
    for (size_t payload = 5; payload < 21; payload++)
        refused_header(header, payload, "b.data_offsets", "the file is cut");
    refused_header(header, 0, "a.data_offsets", "5 bytes beyond its end");
    refused_header(header, 22, "data_offsets", "22 bytes but the tensors own only 21");
    /* Every beginning of the whole file is refused too. */
    struct bytes whole = bytes_safetensors(header, 21);
    for (size_t n = 0; n < whole.length; n++) {
        struct bytes part = bytes_raw(whole.data, n);
        struct arena a = {0};
        struct tensor *t;
        size_t count;
        struct error err;
        assert_false(parse(part, &a, &t, &count, &err));
        assert_string_equal(err.name, "SAFETENSORS-INVALID");
        arena_free(&a);
        free(part.data);
    }
    free(whole.data);
}

static void test_A_ST8_empty_metadata(void **state)
{
    (void)state;
    assert_int_equal(accepted_header("{'__metadata__':{}}", 0), 0);
    assert_int_equal(accepted_header("{'__metadata__':{},'w':{'dtype':'U8','shape':[1],"
                                     "'data_offsets':[0,1]}}",
                                     1),
                     1);
    refused_header("{'__metadata__':{'step':1}}", 0, "__metadata__.step", "not a string");
    refused_header("{'__metadata__':{'x':{}}}", 0, "__metadata__.x", "not a string");
    refused_header("{'__metadata__':[]}", 0, "__metadata__", "not an object");
    refused_header("{'__metadata__':null}", 0, "__metadata__", "not an object");
}

/* --- the neighbours ---------------------------------------------------------------------------*/

static void test_gaps(void **state)
{
    (void)state;
    refused_header("{'a':{'dtype':'U8','shape':[1],'data_offsets':[1,2]}}", 2, "a",
                   "bytes 0 to 1 belong to no tensor");
    refused_header("{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
                   "'b':{'dtype':'U8','shape':[1],'data_offsets':[2,3]}}",
                   3, "b", "bytes 1 to 2 belong to no tensor");
    refused_header("{}", 1, "data_offsets", "1 bytes but the tensors own only 0");
    refused_header("{'a':{'dtype':'U8','shape':[0],'data_offsets':[1,1]}}", 1, "a", "gap");
}

static void test_entries(void **state)
{
    (void)state;
    refused_header("{'w':{'dtype':'F7','shape':[1],'data_offsets':[0,1]}}", 1, "w.dtype",
                   "unknown dtype");
    refused_header("{'w':{'dtype':'u8','shape':[1],'data_offsets':[0,1]}}", 1, "w.dtype",
                   "unknown dtype");
    refused_header("{'w':{'dtype':8,'shape':[1],'data_offsets':[0,1]}}", 1, "w.dtype",
                   "not a string");
    refused_header("{'w':{'shape':[1],'data_offsets':[0,1]}}", 1, "w.dtype", "missing");
    refused_header("{'w':{'dtype':'U8','data_offsets':[0,1]}}", 1, "w.shape", "missing");
    refused_header("{'w':{'dtype':'U8','shape':[1]}}", 1, "w.data_offsets", "missing");
    refused_header("{'w':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'x':0}}", 1, "w.x",
                   "unknown key");
    refused_header("{'w':[]}", 0, "w", "not an object");
    refused_header("{'w':null}", 0, "w", "not an object");
    refused_header("{'':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "", "empty name");
    static const char *const ranges[] = {"[0]", "[0,1,1]", "[1,0]",     "[-1,0]",   "[0,-1]", "0",
                                         "{}",  "[0,1.0]", "['0','1']", "[null,1]", "[]"};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'w':{'dtype':'U8','shape':[1],'data_offsets':%s}}",
                 ranges[i]);
        refused_header(header, 1, "w.data_offsets", "not [begin, end]");
    }
}

static void test_rank(void **state)
{
    (void)state;
    assert_int_equal(accepted_header("{'w':{'dtype':'U8','shape':[1,1,1,1,1,1,1,2],"
                                     "'data_offsets':[0,2]}}",
                                     2),
                     1);
    refused_header("{'w':{'dtype':'U8','shape':[1,1,1,1,1,1,1,1,1],'data_offsets':[0,1]}}", 1,
                   "w.shape", "more than 8");
}

static void test_white_space(void **state)
{
    (void)state;
    assert_int_equal(accepted_header("{}      ", 0), 0);
    assert_int_equal(accepted_header("{ \n\t}\n", 0), 0);
    refused_header(" {}", 0, "header length", "does not begin with '{'");
    refused_header("\xEF\xBB\xBF{}", 0, "header length", "does not begin with '{'");
    refused_header("[]", 0, "header length", "does not begin with '{'");
    refused_header("{} x", 0, "", "not JSON");
    refused(bytes_claiming(3, "{}", 1), "", ""); /* a NUL behind the object */
}

/* --- cases.md A3, in a header -----------------------------------------------------------------*/

static void test_A_JS1_depth(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH + 6);
    assert_non_null(deep);
    memcpy(deep, "{'a':", 5);
    memset(deep + 5, '[', DEPTH);
    deep[DEPTH + 5] = '\0';
    refused_header(deep, 0, "", "64 levels");
    memset(deep, '{', DEPTH);
    refused_header(deep, 0, "", "64 levels");
    free(deep);
}

static void test_A_JS2_duplicate_keys(void **state)
{
    (void)state;
    refused_header("{'a':1,'a':2}", 0, "a", "duplicate key");
}

static void test_A_JS3_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"NaN", "Infinity", "-Infinity", "-",  "01", "1.",
                                        ".5",  "+1",       "0x1",       "1e", "--1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'w':{'dtype':'U8','shape':[%s],'data_offsets':[0,1]}}",
                 wrong[i]);
        refused_header(header, 1, "", "not JSON");
    }
}

static void test_A_JS4_surrogates(void **state)
{
    (void)state;
    refused_header("{'\\ud800':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "",
                   "not JSON");
    refused_header("{'\\ude00\\ud83d':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "",
                   "not JSON");
    refused_header("{'\xED\xA0\x80':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "",
                   "not JSON");
    refused_header("{'a\\u0000b':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "",
                   "not JSON");
    struct bytes file =
        bytes_safetensors("{'\\ud83d\\ude00':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1);
    struct arena a = {0};
    struct tensor *t;
    size_t n;
    struct error err;
    assert_true(parse(file, &a, &t, &n, &err));
    assert_string_equal(t[0].name, "\xF0\x9F\x98\x80");
    arena_free(&a);
    free(file.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_file),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_A_ST1_duplicate_name),
        cmocka_unit_test(test_A_ST2_header_length_near_the_limit),
        cmocka_unit_test(test_header_cap),
        cmocka_unit_test(test_A_ST3_range_is_not_shape_times_dtype),
        cmocka_unit_test(test_A_ST4_overlap),
        cmocka_unit_test(test_A_ST5_product_overflows),
        cmocka_unit_test(test_A_ST7_cut_file),
        cmocka_unit_test(test_A_ST8_empty_metadata),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_rank),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_A_JS1_depth),
        cmocka_unit_test(test_A_JS2_duplicate_keys),
        cmocka_unit_test(test_A_JS3_numbers),
        cmocka_unit_test(test_A_JS4_surrogates),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
