/* The pool of hidden prompts: what makes it whole, and that every entry is drawn equally often. */
#include "base/buffer.h"
#include "base/file.h"
#include "judge/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A contract whose pool has count entries; entry `odd` has `members` instead of its own. */
static struct contract *contract_with(size_t count, size_t odd, const char *members)
{
    struct buffer text = {0};
    struct contract *c = NULL;
    struct error err = {0};
    buffer_text(&text, "{\"track_id\":\"t-v1\",\"timed_prompt_pool\":[");
    for (size_t i = 0; i < count; i++) {
        buffer_text(&text, i ? ",{" : "{");
        if (members && i == odd)
            buffer_text(&text, members);
        else
            buffer_printf(&text,
                          "\"sha256\":\"%064zx\",\"bytes\":1,\"noop_decode_speedup\":0.9,"
                          "\"r2_path\":\"pool/%zu.json\"",
                          i, i);
        buffer_text(&text, "}");
    }
    buffer_text(&text, "]}");
    if (!contract_parse("contract.json", text.data, text.length, NULL, &c, &err))
        fail_msg("%s: %s", err.name, err.message);
    buffer_free(&text);
    return c;
}

#define SHA(last)                                                                                  \
    "\"sha256\":\"00000000000000000000000000000000000000000000000000000000000000" last "\""

static void test_whole_pools(void **state)
{
    (void)state;
    static const struct {
        size_t count;
        const char *members; /* of one entry */
        const char *field;   /* NULL: whole; '#': that entry */
    } rows[] = {
        {8, NULL, NULL},
        {9, NULL, NULL},
        {7, NULL, "timed_prompt_pool"},
        {0, NULL, "timed_prompt_pool"},
        {8, SHA("02") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"x\"",
         "timed_prompt_pool"},
        {9, SHA("02") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"x\"", NULL},
        {8, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"pool/2.json\"",
         "timed_prompt_pool"},
        {9, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"pool/2.json\"", NULL},
        {9, SHA("77") ",\"noop_decode_speedup\":0.9,\"path\":\"x\"", "#.bytes"},
        {9, SHA("77") ",\"bytes\":1,\"path\":\"x\"", "#.noop_decode_speedup"},
        {9, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9", "#.path"},
        {9, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"a/\"", "#.path"},
        {9, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"a/..\"", "#.path"},
        {9, SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\".\"", "#.path"},
    };
    static const size_t places[] = {0, 3, 7};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct contract *c = contract_with(rows[i].count, places[k], rows[i].members);
            struct error err = {0};
            char field[96] = "";
            const bool ok = pool_check(c, NULL, &err);
            if (rows[i].field && rows[i].field[0] == '#')
                snprintf(field, sizeof field, "timed_prompt_pool[%zu]%s", places[k],
                         rows[i].field + 1);
            else if (rows[i].field)
                snprintf(field, sizeof field, "%s", rows[i].field);
            if (ok != !rows[i].field || (!ok && strcmp(err.field, field) != 0))
                fail_msg("row %zu: %s %s", i, err.message, err.field);
            if (!ok)
                assert_string_equal(err.name, "POOL-INVALID");
            contract_free(c);
        }
    }
}

/* The same digest, or the same path, as the first entry's. */
static void test_doubles_of_the_first(void **state)
{
    (void)state;
    static const char *const members[] = {
        SHA("00") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"x\"",
        SHA("77") ",\"bytes\":1,\"noop_decode_speedup\":0.9,\"path\":\"pool/0.json\""};
    for (size_t i = 0; i < 2; i++) {
        struct contract *c = contract_with(8, 5, members[i]);
        struct error err = {0};
        assert_false(pool_check(c, NULL, &err));
        assert_string_equal(err.field, "timed_prompt_pool");
        contract_free(c);
    }
}

static void test_files_are_what_is_pinned(void **state)
{
    (void)state;
    char folder[] = "/tmp/prompt-pool-XXXXXX", path[256];
    assert_non_null(mkdtemp(folder));
    struct buffer text = {0};
    struct contract *c = NULL;
    struct error err = {0};
    buffer_text(&text, "{\"track_id\":\"t-v1\",\"timed_prompt_pool\":[");
    for (int i = 0; i < 8; i++) {
        char content[16], sha256[SHA256_HEX];
        snprintf(content, sizeof content, "file %d", i);
        snprintf(path, sizeof path, "%s/%d.json", folder, i);
        assert_true(file_write_atomic(path, content, strlen(content), &err));
        sha256_hex(content, strlen(content), sha256);
        buffer_printf(&text,
                      "%s{\"sha256\":\"%s\",\"bytes\":6,\"noop_decode_speedup\":0.9,"
                      "\"r2_path\":\"far/away/%d.json\"}",
                      i ? "," : "", sha256, i);
    }
    buffer_text(&text, "]}");
    assert_true(contract_parse("c", text.data, text.length, NULL, &c, &err));
    assert_true(pool_check(c, folder, &err));
    snprintf(path, sizeof path, "%s/0.json", folder); /* the first and the last: all are read */
    assert_true(file_write_atomic(path, "file 8", 6, &err));
    assert_false(pool_check(c, folder, &err));
    assert_string_equal(err.file, path);
    assert_true(file_write_atomic(path, "file 0", 6, &err));
    snprintf(path, sizeof path, "%s/7.json", folder);
    assert_true(file_write_atomic(path, "file 8", 6, &err));
    assert_false(pool_check(c, folder, &err));
    assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");
    assert_string_equal(err.file, path);
    c->pool[7].bytes = 7;
    assert_true(file_write_atomic(path, "file 7", 6, &err));
    assert_false(pool_check(c, folder, &err));
    assert_string_equal(err.name, "GOLDEN-PIN-MISMATCH");
    c->pool[7].bytes = 6;
    unlink(path);
    assert_false(pool_check(c, folder, &err));
    assert_string_equal(err.name, "IO");
    contract_free(c);
    buffer_free(&text);
    for (int i = 0; i < 7; i++) {
        snprintf(path, sizeof path, "%s/%d.json", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

struct numbers {
    uint16_t next;
    uint32_t asked;
    uint32_t fail_at; /* 0: never */
    uint16_t step;
};

static bool count_up(void *context, uint16_t *out)
{
    struct numbers *n = context;
    n->asked++;
    if (n->fail_at && n->asked >= n->fail_at)
        return false;
    *out = n->next;
    n->next = (uint16_t)(n->next + n->step);
    return true;
}

/* Every value of the 16 bits as the first answer: each index as often as the others, and the tail,
 * which is shorter than count, is asked for again. */
static void test_every_index_is_drawn_equally_often(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 2, 3, 7, 8, 9, 10, 100, 255, 4096, 40000, 65535, 65536};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const size_t count = counts[k];
        uint32_t *drawn = calloc(count, sizeof *drawn);
        uint32_t again = 0;
        for (uint32_t value = 0; value < 65536; value++) {
            struct numbers n = {.next = (uint16_t)value, .fail_at = 2};
            struct error err = {0};
            size_t index = count;
            if (pool_draw(count_up, &n, count, &index, &err)) {
                assert_true(index < count);
                drawn[index]++;
            } else {
                assert_string_equal(err.name, "PROMPT-DRAW-FAILED");
                again++;
            }
        }
        for (size_t i = 0; i < count; i++)
            if (drawn[i] != 65536 / count)
                fail_msg("%zu of %zu: drawn %u times", i, count, drawn[i]);
        assert_int_equal(again, 65536 % count);
        free(drawn);
    }
}

static void test_draws_that_fail(void **state)
{
    (void)state;
    struct error err = {0};
    size_t index = 77;
    struct numbers n = {.next = 5, .step = 1};
    assert_false(pool_draw(count_up, &n, 0, &index, &err));
    assert_string_equal(err.name, "PROMPT-DRAW-FAILED");
    assert_false(pool_draw(count_up, &n, 65537, &index, &err));
    assert_int_equal(n.asked, 0);
    n = (struct numbers){.next = 65535, .step = 0}; /* 65535 is the tail of 3 for ever */
    assert_false(pool_draw(count_up, &n, 3, &index, &err));
    assert_string_equal(err.name, "PROMPT-DRAW-FAILED");
    assert_int_equal(n.asked, 64);
    n = (struct numbers){.next = 65535, .step = 1}; /* then 0 */
    assert_true(pool_draw(count_up, &n, 3, &index, &err));
    assert_int_equal(index, 0);
    assert_int_equal(n.asked, 2);
    uint16_t number;
    assert_true(pool_kernel_random(NULL, &number));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_pools),
        cmocka_unit_test(test_doubles_of_the_first),
        cmocka_unit_test(test_files_are_what_is_pinned),
        cmocka_unit_test(test_every_index_is_drawn_equally_often),
        cmocka_unit_test(test_draws_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
