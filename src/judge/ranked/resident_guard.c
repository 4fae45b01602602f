/* The guard of a resident: the process below which the scripts run (resident.h). It adopts whatever
 * leaves their process groups, and outlives the judge by what --stop takes: when the judge is gone,
 * its end of the pipe closes, and nothing that was started for the leg is left. */
#include "judge/ranked/resident_guard.h"

#include "base/buffer.h"
#include "base/child_strays.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"
#include "judge/ranked/resident.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void guard_remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(path);
}

static const int64_t TERM_NS = 2000000000; /* from SIGTERM to SIGKILL */

struct guard {
    char **arguments;
    struct arena arena;
    int children; /* signalfd of SIGCHLD */
    int64_t boot_seconds, stop_seconds;
    bool asked_to_end; /* stdin has ended */
    pid_t script;
    bool script_ended;
    int script_status;
};

/* The script of the tree. Nothing of the guard's pipes is its: what it prints goes to the log. */
static bool start_script(struct guard *g, const char *const *argv)
{
    g->script_ended = false;
    g->script = fork();
    if (g->script != 0)
        return g->script > 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    const int nothing = open("/dev/null", O_RDWR);
    struct pollfd log = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&log, 1, 0) > 0 && (log.revents & POLLERR))
        dup2(nothing, STDERR_FILENO); /* the judge is gone: its words must not end the script */
    dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    for (int fd = 3; fd < 16; fd++)
        close(fd);
    execve(argv[0], (char *const *)(uintptr_t)argv, environ);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static void reap(struct guard *g)
{
    struct signalfd_siginfo seen;
    while (read(g->children, &seen, sizeof seen) > 0)
        continue;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == g->script) {
            g->script_ended = true;
            g->script_status = status;
        }
}

/* stdin carries nothing: it only ends. */
static void look_at_stdin(struct guard *g)
{
    char piece[64];
    const ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        g->asked_to_end = true;
}

enum waiting { UNTIL_SCRIPT_OR_ASKED, UNTIL_SCRIPT, UNTIL_ASKED };

/* deadline_ns 0: none. */
static void wait_until(struct guard *g, enum waiting what, int64_t deadline_ns)
{
    for (;;) {
        if (what != UNTIL_ASKED && g->script_ended)
            return;
        if (what != UNTIL_SCRIPT && g->asked_to_end)
            return;
        int left = -1;
        if (deadline_ns != 0) {
            const int64_t ms = (deadline_ns - clock_now_ns() + 999999) / 1000000;
            if (ms <= 0)
                return;
            left = ms > 60000 ? 60000 : (int)ms;
        }
        struct pollfd fds[2] = {{g->children, POLLIN, 0},
                                {g->asked_to_end ? -1 : STDIN_FILENO, POLLIN, 0}};
        if (poll(fds, 2, left) < 0 && errno != EINTR)
            return;
        if (fds[0].revents)
            reap(g);
        if (fds[1].revents)
            look_at_stdin(g);
    }
}

/* True: the script ended by itself. */
static bool run_script(struct guard *g, const char *const *argv, enum waiting what, int64_t seconds)
{
    if (!start_script(g, argv)) {
        g->script_ended = true;
        g->script_status = 127 << 8;
        return true;
    }
    wait_until(g, what, clock_now_ns() + seconds * 1000000000);
    if (g->script_ended)
        return true;
    kill(g->script, SIGTERM); /* what it has not named yet only it can tidy up */
    wait_until(g, UNTIL_SCRIPT, clock_now_ns() + TERM_NS);
    if (!g->script_ended)
        kill(g->script, SIGKILL);
    wait_until(g, UNTIL_SCRIPT, 0);
    return false;
}

static void say(const char *text)
{
    char line[128];
    const int n = snprintf(line, sizeof line, "%s\n", text);
    const ssize_t written = write(STDOUT_FILENO, line, (size_t)n);
    (void)written; /* a judge that is gone needs no answer: the end of stdin is next */
}

static void boot(struct guard *g, const char *file)
{
    char **a = g->arguments;
    const char *const argv[] = {a[GUARD_SCRIPT], "--boot",      "--spec",
                                a[GUARD_SPEC],   "--draft-len", a[GUARD_DRAFT_LENGTH],
                                "--socket-out",  file,          NULL};
    char text[64];
    if (!run_script(g, argv, UNTIL_SCRIPT_OR_ASKED, g->boot_seconds)) {
        say(GUARD_TIMEOUT);
        return;
    }
    if (WIFSIGNALED(g->script_status))
        snprintf(text, sizeof text, "signal %d", WTERMSIG(g->script_status));
    else
        snprintf(text, sizeof text, "exit status %d", WEXITSTATUS(g->script_status));
    say(text);
}

/* What a resident that was killed leaves beside its socket (runner-contract.md section 7). */
static void remove_leftovers(struct guard *g, const char *path)
{
    static const char *const suffixes[] = {".pid", ".ready"};
    struct stat s;
    if (lstat(path, &s) != 0 || !S_ISSOCK(s.st_mode) || s.st_uid != geteuid())
        return;
    unlink(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const char *sidecar = arena_printf(&g->arena, "%s%s", path, suffixes[i]);
        if (lstat(sidecar, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid())
            unlink(sidecar);
    }
}

static int stop(struct guard *g, const char *file)
{
    struct buffer text = {0};
    const char *path = NULL;
    int result = GUARD_STOPPED;
    if (file_read(file, GUARD_SOCKET_FILE_LIMIT, &text, NULL) &&
        resident_read_socket_text(file, text.data != NULL ? text.data : "", text.length, &g->arena,
                                  &path, NULL)) {
        const char *const argv[] = {g->arguments[GUARD_SCRIPT], "--stop", "--socket", path, NULL};
        if (!run_script(g, argv, UNTIL_SCRIPT, g->stop_seconds))
            result = GUARD_STOP_TIMEOUT;
        else if (!WIFEXITED(g->script_status) || WEXITSTATUS(g->script_status) != 0)
            result = GUARD_STOP_FAILED;
    }
    buffer_free(&text);
    strays_end();
    if (path != NULL)
        remove_leftovers(g, path);
    guard_remove_folder(g->arguments[GUARD_FOLDER]);
    return result;
}

/* In a session of its own: what kills the judge's process groups does not reach it, so that it can
 * still tidy up. */
static int keep(struct guard *g)
{
    sigset_t child;
    setsid();
    strays_adopt();
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    g->children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g->children < 0)
        return GUARD_BROKEN;
    const char *file = path_join(&g->arena, g->arguments[GUARD_FOLDER], GUARD_SOCKET_FILE);
    boot(g, file);
    wait_until(g, UNTIL_ASKED, 0);
    return stop(g, file);
}

int resident_guard_main(int argc, char **argv)
{
    struct guard g = {.arguments = argv};
    if (argc != GUARD_ARGUMENTS ||
        !number_int64(argv[GUARD_BOOT_SECONDS], 1, 86400, &g.boot_seconds) ||
        !number_int64(argv[GUARD_STOP_SECONDS], 1, 86400, &g.stop_seconds))
        return GUARD_BROKEN;
    const pid_t keeper = fork();
    if (keeper < 0)
        return GUARD_BROKEN;
    if (keeper == 0) {
        const int code = keep(&g);
        arena_free(&g.arena);
        _exit(code);
    }
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    int status;
    while (waitpid(keeper, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : GUARD_BROKEN;
}
