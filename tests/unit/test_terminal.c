/* terminal.h: one line on a terminal, plain lines elsewhere, nothing when quiet; tables. */
#include "base/terminal.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/clock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct buffer captured;

/* Runs act with a descriptor (1 or 2) turned into a file, and reads the file. */
static const char *capture(int fd, void (*act)(void))
{
    char path[] = "/tmp/mlxfast-test-terminal-XXXXXX", piece[4096];
    int file = mkstemp(path), kept = dup(fd);
    assert_true(file >= 0 && kept >= 0);
    unlink(path);
    fflush(NULL);
    dup2(file, fd);
    act();
    fflush(NULL);
    dup2(kept, fd);
    close(kept);
    lseek(file, 0, SEEK_SET);
    buffer_clear(&captured);
    buffer_text(&captured, "");
    ssize_t n;
    while ((n = read(file, piece, sizeof piece)) > 0)
        buffer_append(&captured, piece, (size_t)n);
    close(file);
    return captured.data;
}

/* As if the given time had gone by since the last line. */
static void make_due(struct progress *p)
{
    p->last_shown_ns -= 10000000000;
    p->started_ns -= 10000000000;
}

static void to_a_file(void)
{
    struct progress p = {0};
    progress_begin(&p, "decode", "tokens", 400);
    progress_update(&p, 10); /* too early for a line */
    make_due(&p);
    progress_update(&p, 100);
    progress_update(&p, 101);
    p.done = 400;
    progress_end(&p);
}

static void plain_lines(void **state)
{
    (void)state;
    const char *text = capture(STDERR_FILENO, to_a_file);
    const char *first = "decode: 100 tokens of 400 tokens (25%), ";
    assert_true(text_starts(text, first));
    assert_non_null(strstr(text, " s left\ndecode: 400 tokens in 1"));
    assert_true(text_ends(text, " tokens/s\n"));
    assert_null(strchr(text, '\r'));
    int lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, 2);
}

static void bytes_to_a_file(void)
{
    struct progress p = {0};
    progress_begin(&p, "read", "bytes", 0);
    make_due(&p);
    progress_update(&p, 12500000);
    p.done = 3000000000u;
    progress_end(&p);
}

static void bytes_are_readable(void **state)
{
    (void)state;
    const char *text = capture(STDERR_FILENO, bytes_to_a_file);
    assert_true(text_starts(text, "read: 12.5 MB, 1."));
    assert_non_null(strstr(text, "\nread: 3.00 GB in 10."));
    assert_null(strstr(text, "left"));
}

static void nothing_done(void)
{
    struct progress p = {0};
    progress_begin(&p, "idle", "tokens", 5);
    progress_end(&p);
}

static void quietly(void)
{
    struct progress p = {.quiet = true};
    progress_begin(&p, "decode", "tokens", 400);
    make_due(&p);
    progress_update(&p, 100);
    progress_end(&p);
}

static void quiet_and_empty(void **state)
{
    (void)state;
    assert_string_equal(capture(STDERR_FILENO, quietly), "");
    assert_true(text_starts(capture(STDERR_FILENO, nothing_done), "idle: 0 tokens in 0.0"));
}

/* On a terminal the line is overwritten, and ended once. */
static void on_a_terminal(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY), kept = dup(STDERR_FILENO);
    assert_true(slave >= 0);
    setenv("TERM", "xterm", 1);
    dup2(slave, STDERR_FILENO);
    struct progress p = {0};
    progress_begin(&p, "decode", "tokens", 4);
    bool terminal = p.is_terminal;
    make_due(&p);
    progress_update(&p, 2);
    progress_end(&p);
    setenv("TERM", "dumb", 1);
    struct progress dumb = {0};
    progress_begin(&dumb, "x", "tokens", 0);
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_true(terminal);
    assert_false(dumb.is_terminal);
    char text[1000] = {0};
    /* What was written may arrive in pieces; the last line ends with the only newline. */
    for (size_t length = 0; strchr(text, '\n') == NULL;) {
        ssize_t n = read(master, text + length, sizeof text - 1 - length);
        assert_true(n > 0);
        length += (size_t)n;
    }
    assert_true(text_starts(text, "\rdecode: 2 tokens of 4 tokens (50%), "));
    assert_non_null(strstr(text, "\033[K\rdecode: 2 tokens in 10."));
    close(slave);
    close(master);
}

static void print_table(void)
{
    struct table *t = table_new(3);
    table_row(t, "leg", "tokens/s", "n");
    table_row(t,
              "d\xc3\xa9"
              "code",
              "81.25", "1024");
    for (int i = 0; i < 20; i++)
        table_row(t, "x", "", "1");
    table_print(t);
    table_print(table_new(2));
    t = table_new(1);
    table_row(t, "only");
    table_print(t);
}

static void tables(void **state)
{
    (void)state;
    const char *text = capture(STDOUT_FILENO, print_table);
    assert_true(text_starts(text, "leg     tokens/s     n\n"
                                  "d\xc3\xa9"
                                  "code     81.25  1024\n"
                                  "x                    1\n"));
    assert_true(text_ends(text, "\nonly\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_lines),     cmocka_unit_test(bytes_are_readable),
        cmocka_unit_test(quiet_and_empty), cmocka_unit_test(on_a_terminal),
        cmocka_unit_test(tables),
    };
    int failed = cmocka_run_group_tests_name("terminal", tests, NULL, NULL);
    buffer_free(&captured);
    return failed;
}
