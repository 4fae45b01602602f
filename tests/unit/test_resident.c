/* Residents: what the scripts are told, what of them is believed, and that nothing of them is left.
 * The scripts are this program's: it stands in as the resident, and as the guard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "judge/ranked/resident.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define TOY "toy-resident"

/* ---- the resident ---- */

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    text_copy(address.sun_path, sizeof address.sun_path, path);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 4) != 0)
        return -1;
    return fd;
}

/* A process that has left the script: its own session, its parent gone. */
static int toy_main(const char *path)
{
    const pid_t first = fork();
    if (first != 0)
        return waitpid(first, NULL, 0) == first ? 0 : 1;
    setsid();
    if (fork() != 0)
        _exit(0);
    FILE *pid = fopen("pid", "w");
    if (pid == NULL)
        _exit(1);
    fprintf(pid, "%d\n", (int)getpid());
    fclose(pid);
    if (listen_at(path) < 0)
        _exit(1);
    for (;;)
        pause();
}

/* ---- the tree ---- */

struct fixture {
    struct arena a;
    char folder[64];
    const char *tree, *self;
    struct resident_plan plan;
    struct resident *resident;
    struct error err;
};

static const char *at(struct fixture *f, const char *name)
{
    return arena_printf(&f->a, "%s/%s", f->folder, name);
}

static const char *read_text(struct fixture *f, const char *name)
{
    struct buffer b = {0};
    const bool ok = file_read(at(f, name), 1 << 20, &b, NULL);
    const char *text = arena_strdup(&f->a, ok && b.data != NULL ? b.data : "");
    buffer_free(&b);
    return text;
}

/* The usual: boots the toy, waits for its socket, names it; kills it on --stop. */
#define BOOT_TOY "$SELF toy-resident $PWD/s.sock; while ! [ -S s.sock ]; do sleep 0.01; done\n"
#define NAME_IT "echo $PWD/s.sock > \"$7\"\n"
#define STOP_IT "kill $(cat pid) 2>/dev/null; rm -f \"$3\"\n"

static void write_script(struct fixture *f, const char *name, const char *boot, const char *stop)
{
    const char *path = arena_printf(&f->a, "%s/%s", f->tree, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out,
            "#!/bin/sh\nSELF=%s\necho \"$PWD: $*\" >> log\ncase \"$1\" in\n--boot)\n%s;;\n"
            "--stop)\n%s;;\nesac\n",
            f->self, boot, stop);
    fclose(out);
    assert_int_equal(chmod(path, 0755), 0);
}

static int begin(void **state)
{
    char self[PATH_MAX] = "";
    struct fixture *f = calloc(1, sizeof *f);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    f->self = arena_strdup(&f->a, self);
    text_copy(f->folder, sizeof f->folder, "/tmp/mlxfast-resident-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    f->tree = at(f, "tree");
    assert_int_equal(mkdir(f->tree, 0755), 0);
    assert_int_equal(mkdir(at(f, "tree/tools"), 0755), 0);
    assert_int_equal(mkdir(at(f, "tmp"), 0755), 0);
    setenv("TMPDIR", at(f, "tmp"), 1);
    f->plan = (struct resident_plan){.workspace = f->tree,
                                     .boot_seconds = 60,
                                     .stop_seconds = 60,
                                     .environment = environ,
                                     .silent = true};
    *state = f;
    return 0;
}

static int end(void **state)
{
    struct fixture *f = *state;
    char command[128];
    resident_free(f->resident);
    unsetenv("TMPDIR");
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    const int code = system(command);
    arena_free(&f->a);
    free(f);
    return code;
}

static bool boot(struct fixture *f)
{
    return resident_boot(&f->plan, &f->resident, &f->err);
}

static pid_t toy(struct fixture *f)
{
    const pid_t pid = (pid_t)strtol(read_text(f, "tree/pid"), NULL, 10);
    assert_true(pid > 1);
    return pid;
}

static bool is_empty(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n == 2;
}

/* No process, no socket, no private folder. */
static void assert_nothing_left(struct fixture *f, pid_t pid)
{
    assert_true(pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH));
    assert_false(file_exists(at(f, "tree/s.sock")));
    assert_true(is_empty(at(f, "tmp")));
}

static void boot_failed(struct fixture *f, const char *part)
{
    assert_false(boot(f));
    assert_null(f->resident);
    assert_string_equal(f->err.name, "LEG-SERVE-BOOT-FAILED");
    if (strstr(f->err.message, part) == NULL)
        fail_msg("%s: not about %s", f->err.message, part);
    assert_true(is_empty(at(f, "tmp")));
}

/* ---- what goes well ---- */

static void test_a_whole_life(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, STOP_IT);
    assert_true(boot(f));
    const char *path = at(f, "tree/s.sock");
    const pid_t pid = toy(f);
    assert_string_equal(resident_socket(f->resident), path);
    assert_int_equal(kill(pid, 0), 0);
    const char *const *variables = resident_variables(f->resident);
    assert_string_equal(variables[0], arena_printf(&f->a, "BENCH_WORKER_RESIDENT_SOCKET=%s", path));
    assert_string_equal(variables[1], "BENCH_WORKER_RESIDENT_HELLO=1");
    assert_null(variables[2]);
    assert_true(resident_stop(f->resident, &f->err));
    assert_nothing_left(f, pid);
    assert_true(resident_stop(f->resident, &f->err)); /* and nothing is run again */
    const char *log = read_text(f, "tree/log");
    const char *want =
        arena_printf(&f->a, "%s: --boot --spec serial --draft-len 0 --socket-out ", f->tree);
    assert_true(text_starts(log, want));
    assert_true(text_ends(log, arena_printf(&f->a, "\n%s: --stop --socket %s\n", f->tree, path)));
    assert_null(strstr(strstr(log, "--stop") + 1, "--stop"));
}

static void test_cuda_has_another_script_and_variable(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/serve-up.sh", "env > told\n" BOOT_TOY NAME_IT, STOP_IT);
    f->plan.yarn_magnitude = "derived";
    f->plan.arithmetic = "strict";
    assert_true(resident_is_used(f->tree, true));
    assert_false(resident_is_used(f->tree, false));
    f->plan.cuda = true;
    f->plan.spec_mode = "mtp";
    f->plan.draft_length = 3;
    assert_true(boot(f));
    const char *path = resident_socket(f->resident);
    const char *const *variables = resident_variables(f->resident);
    assert_string_equal(variables[2], arena_printf(&f->a, "DS4_RESIDENT_SOCKET=%s", path));
    assert_null(variables[3]);
    assert_non_null(
        strstr(read_text(f, "tree/log"), "--boot --spec mtp --draft-len 3 --socket-out"));
    assert_non_null(strstr(read_text(f, "tree/told"), "BENCH_WORKER_YARN_MAGNITUDE=derived\n"));
    assert_non_null(strstr(read_text(f, "tree/told"), "BENCH_WORKER_ARITHMETIC=strict\n"));
    /* What the sandbox must see replaces what was said before. */
    char *const given[] = {"A=1", "BENCH_WORKER_RESIDENT_SOCKET=/old", "DS4_RESIDENT_SOCKET=/old",
                           "B=2", NULL};
    char *const *all = resident_environment(f->resident, &f->a, given);
    assert_string_equal(all[0], "A=1");
    assert_string_equal(all[1], "B=2");
    assert_string_equal(all[2], variables[0]);
    assert_string_equal(all[3], variables[1]);
    assert_string_equal(all[4], variables[2]);
    assert_null(all[5]);
    assert_true(resident_stop(f->resident, &f->err));
}

/* ---- scripts that are not there, or fail ---- */

static void test_script_missing(void **state)
{
    struct fixture *f = *state;
    const char *script = at(f, "tree/tools/resident-up.sh");
    assert_false(boot(f));
    assert_string_equal(f->err.name, "LEG-SERVE-SCRIPT-MISSING");
    assert_string_equal(f->err.file, script);
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, STOP_IT);
    assert_int_equal(chmod(script, 0644), 0);
    assert_false(boot(f));
    assert_string_equal(f->err.name, "LEG-SERVE-SCRIPT-MISSING");
    /* A link, of the script itself and of its folder. */
    assert_int_equal(chmod(script, 0755), 0);
    assert_int_equal(rename(script, at(f, "elsewhere.sh")), 0);
    assert_int_equal(symlink(at(f, "elsewhere.sh"), script), 0);
    assert_false(boot(f));
    assert_string_equal(f->err.name, "LEG-SERVE-SCRIPT-MISSING");
    unlink(script);
    assert_int_equal(rename(at(f, "elsewhere.sh"), script), 0);
    assert_int_equal(rename(at(f, "tree/tools"), at(f, "tree/others")), 0);
    assert_int_equal(symlink("others", at(f, "tree/tools")), 0);
    assert_false(boot(f));
    assert_string_equal(f->err.name, "LEG-SERVE-SCRIPT-MISSING");
    assert_true(is_empty(at(f, "tmp")));
}

static void test_boot_exits_with_an_error(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT "echo no lock >&2; exit 3\n", STOP_IT);
    boot_failed(f, "no lock");
    assert_string_equal(f->err.value, "exit status 3");
    assert_nothing_left(f, toy(f)); /* it had been named, so it was stopped too */
    assert_non_null(strstr(read_text(f, "tree/log"), "--stop --socket"));
    f->plan.withhold_text = true;
    boot_failed(f, "");
    assert_null(strstr(f->err.message, "no lock"));
}

static void test_boot_does_not_end(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY "while :; do sleep 1000; done\n", STOP_IT);
    f->plan.boot_seconds = 1;
    boot_failed(f, "within 1 seconds");
    const pid_t pid = toy(f);
    assert_true(kill(pid, 0) != 0 && errno == ESRCH);
}

static void test_socket_files(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *write, *about;
    } rows[] = {
        {":\n", "no socket file"},
        {"ln -s $PWD/log \"$7\"\n", "no socket file"},
        {": > \"$7\"\n", "empty"},
        {"printf '\\n/x\\n' > \"$7\"\n", "empty"},
        {"echo s.sock > \"$7\"\n", "absolute"},
        {"printf '/a\\033b\\n' > \"$7\"\n", "control characters"},
        {"printf '/a\\0b\\n' > \"$7\"\n", "control characters"},
        {"printf '/a\\377\\n' > \"$7\"\n", "UTF-8"},
        {"printf '/%0107d\\n' 1 > \"$7\"\n", "107 bytes"},
        {"head -c 5000 /dev/zero > \"$7\"\n", "4096"},
        {"echo $PWD/none > \"$7\"\n", "not there"},
        {"echo $PWD/log > \"$7\"\n", "no socket"},
        {BOOT_TOY "ln -s s.sock link; echo $PWD/link > \"$7\"\n", "no socket"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        write_script(f, "tools/resident-up.sh", rows[i].write, "exit 0\n");
        boot_failed(f, rows[i].about);
        assert_string_equal(f->err.field, "--socket-out");
        assert_string_equal(f->err.file, at(f, "tree/tools/resident-up.sh"));
    }
}

static void test_socket_of_another_user(void **state)
{
    struct fixture *f = *state;
    if (geteuid() != 0)
        skip();
    write_script(f, "tools/resident-up.sh", BOOT_TOY "chown 1 s.sock\n" NAME_IT, "exit 0\n");
    boot_failed(f, "another user");
}

/* The first line counts, with or without its end. */
static void test_socket_text(void **state)
{
    struct fixture *f = *state;
    const char *path = NULL;
    static const char one[] = "/a/b", more[] = "/a/b\n/c\n\x01";
    assert_true(resident_read_socket_text("f", one, sizeof one - 1, &f->a, &path, &f->err));
    assert_string_equal(path, "/a/b");
    assert_true(resident_read_socket_text("f", more, sizeof more - 1, &f->a, &path, &f->err));
    assert_string_equal(path, "/a/b");
    assert_false(resident_read_socket_text("f", NULL, 0, &f->a, &path, &f->err));
    assert_string_equal(f->err.name, "LEG-SERVE-BOOT-FAILED");
    char longest[108] = "/";
    memset(longest + 1, 'x', 106);
    assert_true(resident_read_socket_text("f", longest, 107, &f->a, &path, &f->err));
    assert_false(resident_read_socket_text("f", longest, 108, &f->a, &path, &f->err));
}

/* ---- the end ---- */

static void stop_failed(struct fixture *f, const char *part)
{
    assert_false(resident_stop(f->resident, &f->err));
    assert_string_equal(f->err.name, "LEG-SERVE-STOP-FAILED");
    if (strstr(f->err.message, part) == NULL)
        fail_msg("%s: not about %s", f->err.message, part);
    f->err = (struct error){0};
    assert_false(resident_stop(f->resident, &f->err)); /* the same answer */
    assert_string_equal(f->err.name, "LEG-SERVE-STOP-FAILED");
}

static void test_stop_fails(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, "exit 4\n");
    assert_true(boot(f));
    const pid_t pid = toy(f);
    stop_failed(f, "were killed");
    assert_nothing_left(f, pid);
}

static void test_stop_does_not_end(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, "while :; do sleep 1000; done\n");
    f->plan.stop_seconds = 1;
    assert_true(boot(f));
    const pid_t pid = toy(f);
    stop_failed(f, "within 1 seconds");
    assert_nothing_left(f, pid);
}

/* A script that says it has stopped what still runs, with the sidecars of a resident beside it. */
static void test_a_daemon_that_is_not_stopped_is_killed(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh",
                 BOOT_TOY "touch s.sock.pid s.sock.ready s.sock.log\n" NAME_IT, "exit 0\n");
    assert_true(boot(f));
    const pid_t pid = toy(f);
    assert_true(resident_stop(f->resident, &f->err));
    assert_nothing_left(f, pid);
    assert_false(file_exists(at(f, "tree/s.sock.pid")));
    assert_false(file_exists(at(f, "tree/s.sock.ready")));
    assert_true(file_exists(at(f, "tree/s.sock.log"))); /* not one of the protocol's */
}

/* Somebody else's process at the socket cannot be ended from here. */
static void test_something_else_answers(void **state)
{
    struct fixture *f = *state;
    const int fd = listen_at(at(f, "foreign.sock"));
    assert_true(fd >= 0);
    /* Moved away while --stop and the tidying up go on, so that only the answer is left to see. */
    write_script(f, "tools/resident-up.sh", "echo $PWD/../foreign.sock > \"$7\"\n",
                 "mv ../foreign.sock ../moved.sock; ln -s moved.sock ../foreign.sock\n");
    assert_true(boot(f));
    stop_failed(f, "still answers");
    close(fd);
}

static void test_interrupted(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT "while :; do sleep 1000; done\n",
                 STOP_IT);
    interrupt_install();
    raise(SIGINT);
    assert_false(boot(f));
    interrupt_reset();
    assert_string_equal(f->err.name, "Interrupted");
    assert_true(is_empty(at(f, "tmp")));
    /* And a stop while the program is being interrupted runs its script. */
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, STOP_IT);
    assert_true(boot(f));
    const pid_t pid = toy(f);
    raise(SIGTERM);
    const bool stopped = resident_stop(f->resident, &f->err);
    interrupt_reset();
    assert_true(stopped);
    assert_nothing_left(f, pid);
    assert_non_null(strstr(read_text(f, "tree/log"), "--stop"));
}

/* The judge is killed, with no chance to stop anything. */
static void test_judge_is_killed(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT,
                 "echo a word on a pipe that nobody reads\n" STOP_IT);
    const pid_t judge = fork();
    if (judge == 0) {
        struct resident *r = NULL;
        if (!resident_boot(&f->plan, &r, NULL))
            _exit(1);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(judge, &status, 0), judge);
    assert_true(WIFSIGNALED(status));
    const pid_t pid = toy(f);
    const int64_t began = clock_now_ns();
    while ((kill(pid, 0) == 0 || !is_empty(at(f, "tmp"))) && clock_seconds(began) < 30)
        usleep(10000);
    assert_nothing_left(f, pid);
    assert_non_null(strstr(read_text(f, "tree/log"), "--stop --socket"));
}

/* ---- environment and identity ---- */

static void test_inherited_socket(void **state)
{
    struct fixture *f = *state;
    write_script(f, "tools/resident-up.sh", BOOT_TOY NAME_IT, STOP_IT);
    char *const both[][2] = {{"BENCH_WORKER_RESIDENT_SOCKET=/x", NULL},
                             {"DS4_RESIDENT_SOCKET=/x", NULL}};
    char *const near[] = {"BENCH_WORKER_RESIDENT_SOCKETS=/x", "XDS4_RESIDENT_SOCKET=/x", NULL};
    for (size_t i = 0; i < 2; i++) {
        f->plan.environment = both[i];
        assert_false(boot(f));
        assert_string_equal(f->err.name, "LEG-SERVE-INHERITED-SOCKET");
        assert_string_equal(f->err.value, "/x");
        assert_false(resident_check_environment(both[i], &f->err));
    }
    assert_true(resident_check_environment(near, &f->err));
}

static void test_two_legs(void **state)
{
    struct fixture *f = *state;
    const struct leg_identity one = {
        .has_resident = true, .resident_pid = 7, .resident_load_epoch = 1};
    struct leg_identity other = one;
    assert_false(resident_check_legs(&one, &other, &f->err));
    assert_string_equal(f->err.name, "LEG-SERVE-SHARED-RESIDENT");
    other.resident_load_epoch = 2; /* the number of a process may come again */
    assert_true(resident_check_legs(&one, &other, &f->err));
    other = one;
    other.resident_pid = 8;
    assert_true(resident_check_legs(&one, &other, &f->err));
    other.has_resident = false;
    assert_false(resident_check_legs(&one, &other, &f->err));
    assert_string_equal(f->err.name, "LEG-SERVE-IDENTITY-MISSING");
    assert_false(resident_check_legs(&other, &one, &f->err));
    assert_string_equal(f->err.name, "LEG-SERVE-IDENTITY-MISSING");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], RESIDENT_GUARD) == 0)
        return resident_guard_main(argc - 2, argv + 2);
    if (argc > 2 && strcmp(argv[1], TOY) == 0)
        return toy_main(argv[2]);
#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {T(test_a_whole_life),
                                       T(test_cuda_has_another_script_and_variable),
                                       T(test_script_missing),
                                       T(test_boot_exits_with_an_error),
                                       T(test_boot_does_not_end),
                                       T(test_socket_files),
                                       T(test_socket_of_another_user),
                                       T(test_socket_text),
                                       T(test_stop_fails),
                                       T(test_stop_does_not_end),
                                       T(test_a_daemon_that_is_not_stopped_is_killed),
                                       T(test_something_else_answers),
                                       T(test_interrupted),
                                       T(test_judge_is_killed),
                                       T(test_inherited_socket),
                                       T(test_two_legs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
