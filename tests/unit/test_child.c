/* child.h with small shell children: every way in which an engine can misbehave ends in a named
 * result, and no process of its group is left. No test waits for time to pass: deadlines that must
 * expire are short, the others are far away and never reached. */
#include "base/child.h"

#include "base/arena.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT = 1 << 20 };

static int64_t soon(void)
{
    return clock_now_ns() + 30000000;
}

static int64_t later(void)
{
    return clock_now_ns() + 60000000000;
}

struct lines {
    struct buffer text; /* the lines, each followed by \n */
    size_t count;
};

static void keep_line(void *context, const char *line, size_t length)
{
    struct lines *l = context;
    assert_int_equal(line[length], 0);
    buffer_append(&l->text, line, length);
    buffer_char(&l->text, '\n');
    l->count++;
}

static const char *const environment[] = {"PATH=/usr/bin:/bin", "ONE=1", NULL};

static struct child *start_with(const char *script, struct lines *lines)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    const struct child_options o = {
        .argv = argv,
        .envp = environment,
        .on_stderr_line = lines ? keep_line : NULL,
        .context = lines,
    };
    struct child *c;
    struct error err = {0};
    if (!child_start(&o, &c, &err))
        fail_msg("%s: %s", err.name, err.message);
    return c;
}

static struct child *start(const char *script)
{
    return start_with(script, NULL);
}

/* The group is empty but for zombies, which only their parent can take away. */
static bool group_is_gone(pid_t group)
{
    char command[200];
    snprintf(command, sizeof command,
             "ps -eo pgid=,stat= | awk '$1==%d && $2 !~ /^Z/ {n++} END {exit n>0}'", (int)group);
    return kill(-group, 0) != 0 || system(command) == 0;
}

/* Waits until a process has ended; its descriptor must have been opened while it lived. */
static void assert_ends(int pidfd)
{
    struct pollfd p = {pidfd, POLLIN, 0};
    assert_true(pidfd >= 0);
    assert_int_equal(poll(&p, 1, 60000), 1);
    close(pidfd);
}

static int open_process(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void assert_line(struct child *c, const char *expected)
{
    const char *line = NULL;
    size_t length;
    struct error err;
    assert_int_equal(child_read_line(c, LIMIT, later(), &line, &length, &err), CHILD_READ_LINE);
    assert_string_equal(line, expected);
    assert_int_equal(length, strlen(expected));
}

static enum child_read_result read_once(struct child *c, size_t limit, int64_t deadline,
                                        struct error *err)
{
    const char *line;
    size_t length;
    return child_read_line(c, limit, deadline, &line, &length, err);
}

static long read_number(struct child *c)
{
    const char *line;
    size_t length;
    struct error err;
    assert_int_equal(child_read_line(c, LIMIT, later(), &line, &length, &err), CHILD_READ_LINE);
    return strtol(line, NULL, 10);
}

static void echoes(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("exec cat");
    pid_t pid = child_pid(c);
    assert_int_equal(getpgid(pid), pid);
    assert_true(child_write(c, "one\ntwo\r\n\nthr", 13, later(), &err));
    assert_true(child_write(c, "ee\n", 3, later(), &err));
    assert_line(c, "one");
    assert_line(c, "two");
    assert_line(c, "");
    assert_line(c, "three");
    assert_false(child_exited_normally(c));
    assert_int_equal(child_peak_rss(c), 0);
    assert_string_equal(child_end(c, 60000), "exit status 0");
    assert_true(child_exited_normally(c));
    assert_true(child_peak_rss(c) > 100000);
    assert_string_equal(child_end(c, 0), "exit status 0");
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_EOF);
    assert_false(child_write(c, "x", 1, later(), &err));
    assert_string_equal(err.name, "ENGINE-CLOSED");
    assert_true(group_is_gone(pid));
    child_free(c);
    child_free(NULL);
}

static void large_lines_both_ways(void **state)
{
    (void)state;
    enum { SIZE = 3 << 20 };
    struct error err;
    /* It takes the whole line before it answers, as an engine does. */
    struct child *c = start("read -r line; printf '%s\\n' \"$line\"");
    char *text = memory_alloc(SIZE + 2);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = (char)('a' + i % 23);
    text[SIZE] = '\n';
    assert_true(child_write(c, text, SIZE + 1, later(), &err));
    const char *line;
    size_t length;
    assert_int_equal(child_read_line(c, SIZE, later(), &line, &length, &err), CHILD_READ_LINE);
    assert_int_equal(length, SIZE);
    assert_memory_equal(line, text, SIZE);
    assert_string_equal(child_end(c, 60000), "exit status 0");
    child_free(c);
    free(text);
}

static void hangs(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("echo ready; exec sleep 1000");
    pid_t pid = child_pid(c);
    assert_line(c, "ready");
    assert_int_equal(read_once(c, LIMIT, soon(), &err), CHILD_READ_TIMEOUT);
    assert_string_equal(err.name, "ENGINE-READ-TIMEOUT");
    assert_int_equal(read_once(c, LIMIT, 0, &err), CHILD_READ_TIMEOUT); /* long past */
    assert_string_equal(child_end(c, 20), "signal 9 (Killed)");
    assert_false(child_exited_normally(c));
    assert_true(group_is_gone(pid));
    child_free(c);
}

static void drips_without_a_newline(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("while :; do printf x; done");
    assert_int_equal(read_once(c, SIZE_MAX, soon(), &err), CHILD_READ_TIMEOUT);
    assert_string_equal(child_end(c, 0), "signal 9 (Killed)");
    child_free(c);
}

static void floods(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("exec tr '\\0' x </dev/zero");
    pid_t pid = child_pid(c);
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_TOO_LONG);
    assert_string_equal(err.name, "ENGINE-LINE-TOO-LONG");
    assert_string_equal(child_end(c, 20), "signal 9 (Killed)");
    assert_true(group_is_gone(pid));
    child_free(c);
    /* Lines without end, read for a while. */
    c = start("exec yes");
    for (int i = 0; i < 100000; i++) {
        const char *line;
        size_t length;
        assert_int_equal(child_read_line(c, 1, later(), &line, &length, &err), CHILD_READ_LINE);
        assert_string_equal(line, "y");
    }
    child_free(c);
}

static void line_limit(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("printf '12345\\r\\n12345\\n123456\\n1\\n'");
    const char *line;
    size_t length;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(child_read_line(c, 5, later(), &line, &length, &err), CHILD_READ_LINE);
        assert_string_equal(line, "12345");
    }
    assert_int_equal(read_once(c, 5, later(), &err), CHILD_READ_TOO_LONG);
    assert_int_equal(child_read_line(c, 5, later(), &line, &length, &err), CHILD_READ_LINE);
    assert_string_equal(line, "1");
    child_free(c);
}

/* A program that is asked once: the end of its input, then all of its output. */
static void rest_of_the_output(void **state)
{
    (void)state;
    struct error err;
    struct buffer out = {0};
    const char *line;
    size_t length;
    struct child *c = start("cat; echo; printf end");
    assert_true(child_write(c, "one\ntwo", 7, later(), &err));
    child_close_input(c);
    assert_false(child_write(c, "x", 1, later(), &err)); /* it is closed */
    assert_string_equal(err.name, "ENGINE-CLOSED");
    assert_int_equal(child_read_line(c, LIMIT, later(), &line, &length, &err), CHILD_READ_LINE);
    assert_string_equal(line, "one"); /* what was read is not in the rest */
    assert_int_equal(child_read_rest(c, 8, later(), &out, &err), CHILD_READ_EOF);
    assert_string_equal(out.data, "two\nend");
    assert_int_equal(child_read_rest(c, 0, later(), &out, &err), CHILD_READ_EOF); /* no more */
    assert_int_equal(out.length, 7);
    child_end(c, 60000);
    assert_true(child_exited_normally(c));
    child_free(c);

    c = start("printf 12345678");
    assert_int_equal(child_read_rest(c, 7, later(), &out, &err), CHILD_READ_TOO_LONG);
    assert_string_equal(err.name, "ENGINE-LINE-TOO-LONG");
    child_free(c);
    c = start("printf begun; sleep 1000");
    assert_int_equal(child_read_rest(c, LIMIT, soon(), &out, &err), CHILD_READ_TIMEOUT);
    assert_string_equal(err.name, "ENGINE-READ-TIMEOUT");
    child_free(c);
    c = start("while echo x; do :; done"); /* dripping does not carry it past its deadline */
    assert_int_equal(child_read_rest(c, SIZE_MAX, soon(), &out, &err), CHILD_READ_TIMEOUT);
    child_free(c);
    assert_int_equal(out.length, 7); /* a read that failed gives nothing */
    buffer_free(&out);
}

static void dies_early(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("printf '{\"half'; exit 3");
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_EOF);
    assert_string_equal(err.name, "ENGINE-CLOSED");
    assert_non_null(strstr(err.message, "6 bytes of a line not ended"));
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_EOF);
    assert_string_equal(child_end(c, 60000), "exit status 3");
    assert_false(child_exited_normally(c));
    child_free(c);
    c = start("kill -SEGV $$");
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_EOF);
    assert_string_equal(child_end(c, 60000), "signal 11 (Segmentation fault)");
    assert_false(child_exited_normally(c));
    child_free(c);
}

static void does_not_read(void **state)
{
    (void)state;
    struct error err;
    char *text = memory_alloc(LIMIT);
    memset(text, 'x', LIMIT);
    struct child *c = start("exec sleep 1000");
    assert_false(child_write(c, text, LIMIT, soon(), &err));
    assert_string_equal(err.name, "ENGINE-WRITE-TIMEOUT");
    child_free(c);
    /* A closed stdin is an error of the call, not a SIGPIPE for the program. */
    signal(SIGPIPE, SIG_DFL);
    c = start("exec 0<&-; echo closed; exec sleep 1000");
    assert_line(c, "closed");
    assert_false(child_write(c, text, LIMIT, later(), &err));
    assert_string_equal(err.name, "ENGINE-CLOSED");
    sigset_t pending;
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    child_free(c);
    free(text);
}

/* After a normal exit too, the rest of the group is killed: it would hold the pipes. */
static void grandchild_holds_the_pipes(void **state)
{
    (void)state;
    struct error err;
    struct child *c = start("sleep 1000 & echo $!");
    pid_t pid = child_pid(c);
    pid_t grandchild = (pid_t)read_number(c);
    int watched = open_process(grandchild);
    assert_int_equal(read_once(c, LIMIT, soon(), &err), CHILD_READ_TIMEOUT);
    assert_string_equal(child_end(c, 60000), "exit status 0");
    assert_true(child_exited_normally(c));
    assert_ends(watched);
    assert_true(group_is_gone(pid));
    child_free(c);
    c = start("(trap '' TERM INT HUP; while :; do :; done) & echo $!; exec sleep 1000");
    watched = open_process((pid_t)read_number(c));
    assert_string_equal(child_end(c, 0), "signal 9 (Killed)");
    assert_ends(watched);
    child_free(c);
}

/* One that left the group is out of reach, but cannot hold child_end by its stderr. */
static void escaped_grandchild(void **state)
{
    (void)state;
    struct child *c = start("setsid sh -c 'echo $$; exec sleep 1000' & wait");
    pid_t escaped = (pid_t)read_number(c);
    int watched = open_process(escaped);
    assert_string_equal(child_end(c, 0), "signal 9 (Killed)");
    child_free(c);
    assert_int_equal(kill(escaped, SIGKILL), 0);
    assert_ends(watched);
}

/* What it still prints on the way out must not keep it from going. */
static void output_while_ending(void **state)
{
    (void)state;
    struct child *c = start("cat >/dev/null; head -c 1000000 /dev/zero; exit 0");
    assert_string_equal(child_end(c, 60000), "exit status 0");
    assert_true(child_exited_normally(c));
    child_free(c);
}

static void start_failures(void **state)
{
    (void)state;
    struct child *c = (struct child *)1;
    struct error err;
    const char *argv[] = {"/nonexistent/engine", NULL};
    struct child_options o = {.argv = argv, .envp = environment};
    assert_false(child_start(&o, &c, &err));
    assert_null(c);
    assert_string_equal(err.name, "SPAWN-FAILED");
    assert_string_equal(err.file, "/nonexistent/engine");
    assert_non_null(strstr(err.message, "cannot execute it: No such file"));
    argv[0] = "/etc/passwd";
    assert_false(child_start(&o, &c, &err));
    assert_non_null(strstr(err.message, "Permission denied"));
    argv[0] = "/bin/true";
    o.working_directory = "/nonexistent";
    assert_false(child_start(&o, &c, &err));
    assert_non_null(strstr(err.message, "cannot change to its folder"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing to reap */
    assert_int_equal(errno, ECHILD);
}

static void clean_surroundings(void **state)
{
    (void)state;
    struct lines lines = {0};
    int leaked = dup2(STDERR_FILENO, 77); /* not close-on-exec */
    assert_int_equal(leaked, 77);
    sigset_t some, before;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &some, &before);
    signal(SIGUSR2, SIG_IGN);
    const char *const argv[] = {
        "/bin/sh", "-c",
        "[ -e /proc/self/fd/77 ] && echo leaked || echo closed; pwd; env | grep -c ONE=1;"
        "env | grep -c MLXFAST_SECRET; exec grep -E 'SigBlk|SigIgn' /proc/self/status",
        NULL};
    const struct child_options o = {
        .argv = argv, .envp = environment, .working_directory = "/", .context = &lines};
    struct child *c;
    struct error err;
    setenv("MLXFAST_SECRET", "x", 1);
    assert_true(child_start(&o, &c, &err));
    assert_line(c, "closed");
    assert_line(c, "/");
    assert_line(c, "1");
    assert_line(c, "0");
    assert_line(c, "SigBlk:\t0000000000000000");
    assert_line(c, "SigIgn:\t0000000000000000");
    child_free(c);
    signal(SIGUSR2, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(leaked);
    unsetenv("MLXFAST_SECRET");
}

static void stderr_lines(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct child *c = start_with("printf 'a\\r\\n\\nb' >&2", &lines);
    assert_string_equal(child_end(c, 60000), "exit status 0");
    child_free(c);
    assert_string_equal(lines.text.data, "a\n\nb\n");
    assert_int_equal(lines.count, 3);
    buffer_free(&lines.text);
}

static void stderr_too_long(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct child *c = start_with("{ head -c 65536 /dev/zero | tr '\\0' x; echo;"
                                 "head -c 65537 /dev/zero | tr '\\0' y; echo; echo after;"
                                 "head -c 300000 /dev/zero | tr '\\0' z; } >&2",
                                 &lines);
    assert_string_equal(child_end(c, 60000), "exit status 0");
    child_free(c);
    assert_int_equal(lines.count, 4);
    assert_int_equal(lines.text.data[65535], 'x');
    assert_string_equal(lines.text.data + 65536,
                        "\n[worker stderr line exceeded 65536 bytes]\nafter\n"
                        "[worker stderr line exceeded 65536 bytes]\n");
    buffer_free(&lines.text);
}

/* More than a pipe holds, while nobody waits for it: the child is not held up. */
static void stderr_flood(void **state)
{
    (void)state;
    struct lines lines = {0};
    struct child *c = start_with("yes abcdefg | head -n 100000 >&2; echo done", &lines);
    assert_line(c, "done");
    assert_string_equal(child_end(c, 60000), "exit status 0");
    child_free(c);
    assert_int_equal(lines.count, 100000);
    assert_int_equal(lines.text.length, 800000);
    buffer_free(&lines.text);
    c = start("yes abcdefg | head -n 100000 >&2; echo done"); /* drained without a callback too */
    assert_line(c, "done");
    child_free(c);
}

static void interrupts(void **state)
{
    (void)state;
    struct error err;
    interrupt_install();
    assert_false(interrupt_requested());
    struct child *c = start("kill -TERM $PPID; exec sleep 1000");
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_ERROR); /* woken, not expired */
    assert_string_equal(err.name, "INTERRUPTED");
    assert_true(interrupt_requested());
    assert_false(child_write(c, "x", 1, later(), &err));
    assert_string_equal(err.name, "INTERRUPTED");
    child_free(c);
    interrupt_reset();
    assert_false(interrupt_requested());
    c = start("echo again; exec cat");
    assert_line(c, "again");
    raise(SIGINT);
    assert_true(interrupt_requested());
    assert_int_equal(read_once(c, LIMIT, later(), &err), CHILD_READ_ERROR);
    assert_string_equal(err.name, "INTERRUPTED");
    child_free(c);
    interrupt_reset();
}

/* In another process, because it ends it: runs act there and passes back what it writes. */
static pid_t in_another_process(void (*act)(int out, int in), int *from, int *to)
{
    int out[2], in[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        act(out[1], in[0]);
        _exit(0);
    }
    close(out[1]);
    close(in[0]);
    *from = out[0];
    *to = in[1];
    return pid;
}

static pid_t start_and_tell(int out, int in)
{
    struct child *c = start("sleep 1000 & echo $!; exec sleep 1000");
    pid_t pids[2] = {child_pid(c), (pid_t)read_number(c)};
    char go;
    if (write(out, pids, sizeof pids) != sizeof pids || read(in, &go, 1) != 1)
        _exit(99);
    return pids[0];
}

static void signal_twice(int out, int in)
{
    interrupt_install();
    start_and_tell(out, in);
    raise(SIGTERM);
    if (!interrupt_requested())
        _exit(98);
    raise(SIGTERM);
}

static void die_at_once(int out, int in)
{
    start_and_tell(out, in);
    kill(getpid(), SIGKILL);
}

static void dies_with_its_parent(void (*act)(int, int), int expected_signal)
{
    int from, to, watched[2], status;
    pid_t pids[2], pid = in_another_process(act, &from, &to);
    assert_int_equal(read(from, pids, sizeof pids), sizeof pids);
    for (int i = 0; i < 2; i++)
        watched[i] = open_process(pids[i]);
    assert_int_equal(write(to, "g", 1), 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), expected_signal);
    for (int i = 0; i < 2; i++)
        assert_ends(watched[i]);
    close(from);
    close(to);
}

static void second_signal_ends_everything(void **state)
{
    (void)state;
    dies_with_its_parent(signal_twice, SIGTERM);
}

/* SIGKILL of the parent leaves no time for anything: the kernel ends the child itself, and the
 * process that watches the rest of its group. */
static void killed_parent(void **state)
{
    (void)state;
    dies_with_its_parent(die_at_once, SIGKILL);
}

static void without_standard_descriptors(int out, int in)
{
    (void)in;
    char result = 'f';
    close(0);
    close(1);
    close(2);
    const char *const argv[] = {"/bin/sh", "-c", "read x; echo \"got $x\"; echo e >&2", NULL};
    struct lines lines = {0};
    const struct child_options o = {
        .argv = argv, .envp = environment, .on_stderr_line = keep_line, .context = &lines};
    struct child *c;
    const char *line;
    size_t length;
    if (child_start(&o, &c, NULL) && child_write(c, "it\n", 3, later(), NULL) &&
        child_read_line(c, LIMIT, later(), &line, &length, NULL) == CHILD_READ_LINE &&
        strcmp(line, "got it") == 0 && strcmp(child_end(c, 60000), "exit status 0") == 0 &&
        lines.count == 1)
        result = 'p';
    if (write(out, &result, 1) != 1)
        _exit(99);
}

static void closed_standard_descriptors(void **state)
{
    (void)state;
    int from, to, status;
    char result = 0;
    pid_t pid = in_another_process(without_standard_descriptors, &from, &to);
    assert_int_equal(read(from, &result, 1), 1);
    assert_int_equal(result, 'p');
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(from);
    close(to);
}

static void ignored_sigchld(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    struct child *c = start("exit 7");
    assert_string_equal(child_end(c, 60000), "exit status 7");
    child_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echoes),
        cmocka_unit_test(large_lines_both_ways),
        cmocka_unit_test(hangs),
        cmocka_unit_test(drips_without_a_newline),
        cmocka_unit_test(floods),
        cmocka_unit_test(line_limit),
        cmocka_unit_test(rest_of_the_output),
        cmocka_unit_test(dies_early),
        cmocka_unit_test(does_not_read),
        cmocka_unit_test(grandchild_holds_the_pipes),
        cmocka_unit_test(escaped_grandchild),
        cmocka_unit_test(output_while_ending),
        cmocka_unit_test(start_failures),
        cmocka_unit_test(clean_surroundings),
        cmocka_unit_test(stderr_lines),
        cmocka_unit_test(stderr_too_long),
        cmocka_unit_test(stderr_flood),
        cmocka_unit_test(interrupts),
        cmocka_unit_test(second_signal_ends_everything),
        cmocka_unit_test(killed_parent),
        cmocka_unit_test(closed_standard_descriptors),
        cmocka_unit_test(ignored_sigchld),
    };
    return cmocka_run_group_tests_name("child", tests, NULL, NULL);
}
