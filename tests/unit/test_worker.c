/* The worker's parts that need no model: bounded lines, option checks, what a parent may be told.
 */
#include "engine/serve/lines.h"
#include "engine/serve/token_file.h"
#include "engine/serve/worker.h"

#include "base/buffer.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- lines ---- */

/* Text through a pipe, and what the reader makes of it: "line|", "LONG|", "CUT", "END". */
static char *read_all(const char *text, size_t limit)
{
    static struct buffer seen;
    int ends[2];
    struct error err;
    assert_int_equal(pipe(ends), 0);
    assert_true(line_write(ends[1], text, strlen(text), &err));
    close(ends[1]);
    struct line_reader r = {.fd = ends[0], .limit = limit};
    buffer_clear(&seen);
    buffer_text(&seen, "");
    for (;;) {
        const char *line = NULL;
        size_t length = 0;
        enum line_result result = line_reader_next(&r, &line, &length, &err);
        if (result == LINE_READ)
            buffer_append(&seen, line, length);
        else
            buffer_text(&seen, result == LINE_TOO_LONG ? "LONG"
                               : result == LINE_CUT    ? "CUT"
                               : result == LINE_END    ? "END"
                                                       : "ERROR");
        if (result != LINE_READ && result != LINE_TOO_LONG)
            break;
        buffer_char(&seen, '|');
    }
    line_reader_free(&r);
    close(ends[0]);
    return seen.data;
}

static void lines_are_bounded(void **state)
{
    (void)state;
    assert_string_equal(read_all("", 8), "END");
    assert_string_equal(read_all("ab\ncd\n", 8), "ab|cd|END");
    assert_string_equal(read_all("\n\n", 8), "||END");
    assert_string_equal(read_all("ab\ncd", 8), "ab|CUT");
    assert_string_equal(read_all("12345678\n", 8), "12345678|END");
    assert_string_equal(read_all("123456789\nab\n", 8), "LONG|ab|END");
    assert_string_equal(read_all("123456789", 8), "CUT");

    /* Far longer than one read: nothing of it is kept. */
    size_t length = 50000;
    char *text = calloc(1, length + 16);
    memset(text, 'x', length);
    memcpy(text + length, "\nok\n", 4);
    assert_string_equal(read_all(text, 100), "LONG|ok|END");
    text[length] = 'x';
    assert_string_equal(read_all(text, 100), "LONG|END");
    free(text);
}

static void a_flood_without_newline_is_not_held(void **state)
{
    (void)state;
    int ends[2];
    struct error err;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char block[8192];
        memset(block, 'x', sizeof block);
        close(ends[0]);
        for (int i = 0; i < 4096; i++) /* 32 MiB */
            if (!line_write(ends[1], block, sizeof block, NULL))
                _exit(1);
        _exit(0);
    }
    close(ends[1]);
    struct line_reader r = {.fd = ends[0], .limit = 1 << 20};
    const char *line;
    size_t bytes;
    assert_int_equal(line_reader_next(&r, &line, &bytes, &err), LINE_CUT);
    assert_true(r.held.capacity <= 4 << 20);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    line_reader_free(&r);
    close(ends[0]);
}

/* ---- options ---- */

static void options_are_checked_by_name(void **state)
{
    (void)state;
    struct error err;
    const char *good[] = {"a.b-c_9=/x", "other=y=z"};
    struct worker_options base = {
        .weights = "nowhere", .kv_bytes = 1, .resources = good, .resource_count = 2};
    assert_true(worker_check_options(&base, &err));

    struct worker_options o = base;
    o.weights = NULL;
    assert_false(worker_check_options(&o, &err));
    assert_string_equal(err.name, "missingWeights");
    o = base;
    o.runner = "  ";
    assert_false(worker_check_options(&o, &err));
    assert_string_equal(err.name, "emptyRunnerID");
    o.runner = "layr/none";
    assert_false(worker_check_options(&o, &err));
    assert_string_equal(err.name, "unknownRunner");
    assert_non_null(strstr(err.message, "unknownRunner(layr/none)"));
    o.runner = "mlxfast/laguna";
    assert_true(worker_check_options(&o, &err));
    o.drafter = "some/folder";
    assert_true(worker_check_options(&o, &err));
    o.drafter = " ";
    assert_false(worker_check_options(&o, &err));
    assert_non_null(strstr(err.message, "badValue(--drafter)"));
    o = base;
    o.speculative_protocol = "v1.2";
    assert_false(worker_check_options(&o, &err));
    assert_non_null(strstr(err.message, "badValue(--speculative-protocol)"));
    o.speculative_protocol = "v1.1";
    assert_true(worker_check_options(&o, &err));
    o.kv_bytes = 0;
    assert_false(worker_check_options(&o, &err));
    assert_non_null(strstr(err.message, "badValue(--kv-bytes)"));

    static const char *const bad[] = {"=x",      "name",       "name=", "na me=x",
                                      "na/me=x", "\xc3\xa4=x", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o = base;
        o.resources = &bad[i];
        o.resource_count = 1;
        assert_false(worker_check_options(&o, &err));
        assert_non_null(strstr(err.message, "badValue(--resource)"));
    }
    const char *twice[] = {"a=1", "b=2", "a=3"};
    o.resources = twice;
    o.resource_count = 3;
    assert_false(worker_check_options(&o, &err));
    assert_non_null(strstr(err.message, "twice"));
}

/* ---- what the parent is told ---- */

static void refusals_tell_no_values(void **state)
{
    (void)state;
    struct error err;
    char text[1536];
    error_set(&err, "TOKEN-OUT-OF-RANGE", "a token is outside the vocabulary");
    error_at(&err, NULL, "tokens[3]", "77001");
    assert_string_equal(worker_error_text(&err, text, sizeof text),
                        "TOKEN-OUT-OF-RANGE: a token is outside the vocabulary (field tokens[3])");
    error_set(&err, "WIRE-INVALID", "expected an integer near 77001");
    error_at(&err, NULL, "token", "77001");
    assert_string_equal(
        worker_error_text(&err, text, sizeof text),
        "WIRE-INVALID: the line is not a valid Engine Protocol v1 request (field token)");
    error_set(&err, "WIRE-UNKNOWN-KEY", "not a key");
    error_at(&err, NULL, "Expected_tokens", NULL);
    assert_string_equal(worker_error_text(&err, text, sizeof text),
                        "WIRE-UNKNOWN-KEY: the line is not a valid Engine Protocol v1 request");
    error_set(&err, "SOME", "the aCtUaL thing");
    assert_string_equal(worker_error_text(&err, text, sizeof text),
                        "REFUSED: the request was refused");
    error_set(&err, "", "spec requires --speculative-protocol v1.1");
    assert_string_equal(worker_error_text(&err, text, sizeof text),
                        "spec requires --speculative-protocol v1.1");
}

/* ---- token files ---- */

static bool read_tokens(const char *text, size_t length, struct token_file *out, struct error *err)
{
    char path[] = "/tmp/test-worker-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(file_write_atomic(path, text, length, NULL));
    bool ok = token_file_read(path, out, err);
    if (!ok)
        assert_string_equal(err->file, path);
    unlink(path);
    return ok;
}

static void token_files_in_both_forms(void **state)
{
    (void)state;
    static const char *const same[] = {"[5, 0,12]", "  [5,0,12]\n",    "5 0 12",
                                       "5,0,12\n",  " 5,\t0\r\n12 \n", ",5,,0,12,"};
    struct token_file t;
    struct error err;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_true(read_tokens(same[i], strlen(same[i]), &t, &err));
        assert_int_equal(t.count, 3);
        assert_true(t.ids[0] == 5 && t.ids[1] == 0 && t.ids[2] == 12);
        token_file_free(&t);
    }
    static const struct {
        const char *text, *name, *field, *value;
    } bad[] = {{"", "EMPTY-PROMPT", "", ""},
               {" \n", "EMPTY-PROMPT", "", ""},
               {"[]", "EMPTY-PROMPT", "", ""},
               {"1 2 x3", "TOKENS-INVALID", "tokens[2]", "x3"},
               {"1 -2", "TOKENS-INVALID", "tokens[1]", "-2"},
               {"1.0", "TOKENS-INVALID", "tokens[0]", "1.0"},
               {"99999999999999999999", "TOKENS-INVALID", "tokens[0]", "99999999999999999999"},
               {"1 1234567890123456789012345678901234", "TOKENS-INVALID", "tokens[1]",
                "123456789012345678901234..."},
               {"[1,2.0]", "TOKENS-INVALID", "tokens[1]", "2.0"},
               {"[1,-1]", "TOKENS-INVALID", "tokens[1]", "-1"},
               {"[1,\"2\"]", "TOKENS-INVALID", "tokens[1]", "\"2\""},
               {"[1,null]", "TOKENS-INVALID", "tokens[1]", "null"},
               {"[1,2", "JSON-INVALID", NULL, NULL},
               {"[1] 2", "JSON-INVALID", NULL, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(read_tokens(bad[i].text, strlen(bad[i].text), &t, &err));
        assert_string_equal(err.name, bad[i].name);
        if (bad[i].field) {
            assert_string_equal(err.field, bad[i].field);
            assert_string_equal(err.value, bad[i].value);
        }
        assert_null(t.ids);
    }
    assert_false(read_tokens("1\0002", 3, &t, &err));
    assert_string_equal(err.name, "TOKENS-INVALID");

    int64_t ids[] = {0, 9, 10};
    assert_true(tokens_check_range(ids, 2, 10, "f", &err));
    assert_false(tokens_check_range(ids, 3, 10, "f", &err));
    assert_string_equal(err.field, "tokens[2]");
    assert_string_equal(err.value, "10");
    assert_string_equal(err.file, "f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_bounded),
        cmocka_unit_test(a_flood_without_newline_is_not_held),
        cmocka_unit_test(options_are_checked_by_name),
        cmocka_unit_test(refusals_tell_no_values),
        cmocka_unit_test(token_files_in_both_forms),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
