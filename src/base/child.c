/* Child processes: see child.h. */
#include "base/child.h"

#include "base/arena.h"
#include "base/child_stderr.h"
#include "base/child_strays.h"
#include "base/child_watch.h"
#include "base/clock.h"
#include "base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { READ_PIECE = 65536 };

struct child {
    pid_t pid; /* also the group's number */
    int pidfd; /* -1 on kernels without it */
    int in, out;
    struct child_watch watch;
    struct stderr_reader *stderr_reader;
    struct buffer pending; /* stdout bytes read and not yet returned begin at start */
    size_t start, scanned; /* no newline in [start, scanned) */
    bool ended, exited_by_itself, end_strays;
    int status;
    uint64_t peak_rss;
    char status_text[64];
};

/* ---- start ---- */

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* A pipe whose ends are above 2, so that the child's dup2 calls cannot overwrite one another even
 * where the program was started with 0, 1 or 2 closed. */
static bool pipe_above_standard(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (ends[i] > 2)
            continue;
        int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
        int code = errno;
        close(ends[i]);
        ends[i] = moved;
        if (moved < 0) {
            errno = code;
            return false;
        }
    }
    return true;
}

struct start_failure {
    int code;
    int step; /* index into step_names */
};
static const char *const step_names[] = {"cannot change to its folder", "cannot execute it"};

/* In the new process, only async-signal-safe calls: another thread may have held any lock. */
static _Noreturn void become_child(const struct child_options *o, const int ends[3], int report,
                                   const struct child_watch *watch, pid_t parent, int open_max)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    child_watch_this(watch);
    if (getppid() != parent) /* the parent died before the prctl */
        _exit(127);
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    struct start_failure why = {0, 0};
    for (int i = 0; i < 3; i++)
        dup2(ends[i], i);
    if (report != 3) {
        dup3(report, 3, O_CLOEXEC);
        report = 3;
    }
    if (syscall(SYS_close_range, 4u, ~0u, 0u) != 0)
        for (int fd = 4; fd < open_max; fd++)
            close(fd);
    if (!o->working_directory || chdir(o->working_directory) == 0) {
        why.step = 1;
        execve(o->argv[0], (char *const *)(uintptr_t)o->argv, (char *const *)(uintptr_t)o->envp);
    }
    why.code = errno;
    ssize_t n = write(report, &why, sizeof why);
    (void)n; /* a parent that is gone needs no report */
    _exit(127);
}

static bool spawn_failed(const struct child_options *o, const char *step, int code,
                         struct error *err)
{
    char text[128];
    error_set(err, "SPAWN-FAILED", "%s: %s", step, strerror_r(code, text, sizeof text));
    return error_at(err, o->argv[0], NULL, NULL);
}

/* Waits until the child has become its program (the pipe closes) or says why not. */
static bool read_report(int fd, struct start_failure *why)
{
    ssize_t n;
    do {
        n = read(fd, why, sizeof *why);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *why;
}

/* False when the status is lost, because other code in the program took it. */
static bool reap(struct child *c)
{
    struct rusage usage = {0};
    pid_t pid;
    do {
        pid = wait4(c->pid, &c->status, 0, &usage);
    } while (pid < 0 && errno == EINTR);
    c->peak_rss = (uint64_t)usage.ru_maxrss * 1024;
    close_if_open(&c->pidfd);
    return pid == c->pid;
}

/* A program that was started with SIGCHLD ignored would never see its children's status. */
static void keep_child_status(void)
{
    struct sigaction old;
    if (sigaction(SIGCHLD, NULL, &old) == 0 &&
        (old.sa_handler == SIG_IGN || (old.sa_flags & SA_NOCLDWAIT)))
        signal(SIGCHLD, SIG_DFL);
}

bool child_start(const struct child_options *options, struct child **out, struct error *err)
{
    int in[2] = {-1, -1}, outp[2] = {-1, -1}, errp[2] = {-1, -1}, report[2] = {-1, -1};
    int *const all[] = {in, in + 1, outp, outp + 1, errp, errp + 1, report, report + 1};
    int code = 0;
    *out = NULL;
    if (!pipe_above_standard(in) || !pipe_above_standard(outp) || !pipe_above_standard(errp) ||
        !pipe_above_standard(report)) {
        code = errno;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            close_if_open(all[i]);
        return spawn_failed(options, "no pipe for it", code, err);
    }
    keep_child_status();
    if (options->end_strays)
        strays_adopt();
    int open_max = (int)sysconf(_SC_OPEN_MAX);
    pid_t parent = getpid();
    /* No handler of ours may run in the child before it has reset them; the reader thread inherits
     * the full mask, so that signals go to the program's own threads. */
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    struct child_watch watch;
    pid_t pid = child_watch_begin(&watch) ? fork() : -1;
    if (pid == 0) {
        const int ends[3] = {in[0], outp[1], errp[1]};
        become_child(options, ends, report[1], &watch, parent, open_max);
    }
    code = pid < 0 ? errno : 0;
    close_if_open(&in[0]);
    close_if_open(&outp[1]);
    close_if_open(&errp[1]);
    close_if_open(&report[1]);
    struct child *c = memory_alloc(sizeof *c);
    c->pid = pid;
    c->pidfd = -1;
    c->watch = watch;
    c->end_strays = options->end_strays;
    const char *step = "cannot make a process";
    if (code == 0) {
        setpgid(pid, pid); /* both sides do it: whoever comes first */
        c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        interrupt_remember_group(pid);
        struct start_failure why;
        if (read_report(report[0], &why)) {
            step = step_names[why.step == 1];
            code = why.code;
        } else if (fcntl(in[1], F_SETFL, O_NONBLOCK) != 0 ||
                   fcntl(outp[0], F_SETFL, O_NONBLOCK) != 0) {
            step = "cannot prepare its pipes";
            code = errno;
        } else {
            c->stderr_reader = stderr_reader_begin(errp[0], options);
            errp[0] = -1;
            step = "no thread for its stderr";
            code = c->stderr_reader ? 0 : errno;
        }
        if (code != 0) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            child_watch_end(&c->watch);
            reap(c);
            interrupt_forget_group(pid);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close_if_open(&report[0]);
    if (code != 0) {
        child_watch_end(&c->watch);
        close_if_open(&in[1]);
        close_if_open(&outp[0]);
        close_if_open(&errp[0]);
        free(c);
        return spawn_failed(options, step, code, err);
    }
    c->in = in[1];
    c->out = outp[0];
    *out = c;
    return true;
}

/* ---- talk ---- */

enum wait_result { WAIT_READY, WAIT_TIMEOUT, WAIT_INTERRUPTED, WAIT_FAILED };

static enum wait_result wait_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        if (interrupt_requested())
            return WAIT_INTERRUPTED;
        int64_t left = deadline_ns - clock_now_ns();
        left = left < 0 ? 0 : left;
        struct timespec t = {left / 1000000000, left % 1000000000};
        struct pollfd fds[2] = {{fd, events, 0}, {interrupt_descriptor(), POLLIN, 0}};
        int n = ppoll(fds, 2, &t, NULL);
        if (n < 0 && errno != EINTR)
            return WAIT_FAILED;
        if (n > 0 && fds[0].revents)
            return WAIT_READY;
        if (left == 0)
            return WAIT_TIMEOUT;
        if (n > 0 && !interrupt_requested()) /* meant for a process that shares it by a fork */
            interrupt_quiet();
    }
}

static bool interrupted(struct error *err)
{
    return error_set(err, "INTERRUPTED", "stopped by a signal");
}

/* write without SIGPIPE, whatever the program has set for it: blocked on this thread, and taken
 * from the queue if the write raised it. */
static ssize_t write_quietly(int fd, const void *data, size_t length)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    ssize_t n = write(fd, data, length);
    int code = errno;
    if (n < 0 && code == EPIPE && !sigismember(&before, SIGPIPE)) {
        sigpending(&pending);
        if (sigismember(&pending, SIGPIPE)) {
            const struct timespec now = {0, 0};
            while (sigtimedwait(&pipe_signal, NULL, &now) < 0 && errno == EINTR)
                continue;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return n;
}

bool child_write(struct child *c, const void *data, size_t length, int64_t deadline_ns,
                 struct error *err)
{
    const char *p = data;
    while (length > 0) {
        if (interrupt_requested())
            return interrupted(err);
        ssize_t n = c->in >= 0 ? write_quietly(c->in, p, length) : (errno = EPIPE, -1);
        if (n > 0) {
            p += n;
            length -= (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EPIPE)
            return error_set(err, "ENGINE-CLOSED", "the process closed its input");
        if (n < 0 && errno != EAGAIN)
            return error_errno(err, NULL, "cannot write to the process");
        switch (wait_for(c->in, POLLOUT, deadline_ns)) {
        case WAIT_READY:
            break;
        case WAIT_TIMEOUT:
            return error_set(err, "ENGINE-WRITE-TIMEOUT",
                             "the process did not take its input in time (%zu bytes left)", length);
        case WAIT_INTERRUPTED:
            return interrupted(err);
        case WAIT_FAILED:
            return error_errno(err, NULL, "cannot wait for the process");
        }
    }
    return true;
}

/* A whole line in pending, if there is one. */
static bool take_line(struct child *c, const char **line, size_t *length)
{
    if (c->scanned == c->pending.length)
        return false;
    char *newline = memchr(c->pending.data + c->scanned, '\n', c->pending.length - c->scanned);
    c->scanned = c->pending.length;
    if (!newline)
        return false;
    *line = c->pending.data + c->start;
    *length = (size_t)(newline - *line);
    if (*length > 0 && newline[-1] == '\r')
        --*length;
    c->pending.data[c->start + *length] = '\0';
    c->start = c->scanned = (size_t)(newline - c->pending.data) + 1;
    return true;
}

static enum child_read_result line_too_long(size_t limit, struct error *err)
{
    error_set(err, "ENGINE-LINE-TOO-LONG", "a line longer than the %zu bytes allowed here", limit);
    return CHILD_READ_TOO_LONG;
}

static enum child_read_result line_cut_short(const struct child *c, struct error *err)
{
    error_set(err, "ENGINE-CLOSED", "the process closed its output (%zu bytes of a line not ended)",
              c->pending.length - c->start);
    return CHILD_READ_EOF;
}

/* Waits for more output and takes what is there; CHILD_READ_LINE: look again. *last: the deadline
 * has passed, so this was the last look. Bytes that keep dripping in must not carry a read past its
 * deadline. */
static enum child_read_result take_more(struct child *c, int64_t deadline_ns, bool *last,
                                        struct error *err)
{
    *last = clock_now_ns() >= deadline_ns;
    switch (wait_for(c->out, POLLIN, deadline_ns)) {
    case WAIT_READY:
        break;
    case WAIT_TIMEOUT:
        *last = true;
        return CHILD_READ_LINE;
    case WAIT_INTERRUPTED:
        interrupted(err);
        return CHILD_READ_ERROR;
    case WAIT_FAILED:
        error_errno(err, NULL, "cannot wait for the process");
        return CHILD_READ_ERROR;
    }
    if (c->start > 0) { /* what was returned before is no longer needed */
        memmove(c->pending.data, c->pending.data + c->start, c->pending.length - c->start);
        c->pending.length -= c->start;
        c->scanned -= c->start;
        c->start = 0;
    }
    buffer_reserve(&c->pending, READ_PIECE);
    ssize_t n = read(c->out, c->pending.data + c->pending.length, READ_PIECE);
    if (n > 0)
        c->pending.length += (size_t)n;
    else if (n == 0)
        close_if_open(&c->out);
    else if (errno != EINTR && errno != EAGAIN) {
        error_errno(err, NULL, "cannot read from the process");
        return CHILD_READ_ERROR;
    }
    return CHILD_READ_LINE;
}

static enum child_read_result read_timed_out(const char *what, struct error *err)
{
    error_set(err, "ENGINE-READ-TIMEOUT", "%s", what);
    return CHILD_READ_TIMEOUT;
}

enum child_read_result child_read_line(struct child *c, size_t limit, int64_t deadline_ns,
                                       const char **line, size_t *length, struct error *err)
{
    bool last = false;
    for (;;) {
        if (take_line(c, line, length))
            return *length > limit ? line_too_long(limit, err) : CHILD_READ_LINE;
        size_t held = c->pending.length - c->start;
        if (held > limit && held - 1 > limit) /* - 1: a \r that may go */
            return line_too_long(limit, err);
        if (last)
            return read_timed_out("no whole line from the process in time", err);
        if (c->out < 0)
            return line_cut_short(c, err);
        if (take_more(c, deadline_ns, &last, err) != CHILD_READ_LINE)
            return CHILD_READ_ERROR;
    }
}

enum child_read_result child_read_rest(struct child *c, size_t limit, int64_t deadline_ns,
                                       struct buffer *out, struct error *err)
{
    bool last = false;
    for (;;) {
        size_t held = c->pending.length - c->start;
        if (held > limit) {
            error_set(err, "ENGINE-LINE-TOO-LONG", "more than the %zu bytes allowed here", limit);
            return CHILD_READ_TOO_LONG;
        }
        if (c->out < 0) {
            if (held > 0)
                buffer_append(out, c->pending.data + c->start, held);
            c->start = c->scanned = c->pending.length;
            return CHILD_READ_EOF;
        }
        if (last)
            return read_timed_out("the process did not end its output in time", err);
        if (take_more(c, deadline_ns, &last, err) != CHILD_READ_LINE)
            return CHILD_READ_ERROR;
    }
}

void child_close_input(struct child *c)
{
    close_if_open(&c->in);
}

/* ---- end ---- */

static bool has_exited(const struct child *c)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == c->pid;
}

/* Up to grace_ms for the child to end by itself. Its output is read and dropped meanwhile: a child
 * held by a full pipe could not end. */
static bool wait_for_exit(struct child *c, int grace_ms)
{
    int64_t deadline = clock_now_ns() + (int64_t)grace_ms * 1000000;
    char piece[4096];
    for (;;) {
        if (has_exited(c))
            return true;
        int64_t left = (deadline - clock_now_ns() + 999999) / 1000000;
        if (left <= 0)
            return false;
        struct pollfd fds[2] = {{c->pidfd, POLLIN, 0}, {c->out, POLLIN, 0}};
        int step = c->pidfd < 0 && left > 5 ? 5 : (int)left; /* without a pidfd: look again */
        if (poll(fds, 2, step) > 0 && fds[1].revents) {
            ssize_t n = read(c->out, piece, sizeof piece);
            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
                close_if_open(&c->out);
        }
    }
}

const char *child_end(struct child *c, int grace_ms)
{
    if (c->ended)
        return c->status_text;
    close_if_open(&c->in);
    bool by_itself = wait_for_exit(c, grace_ms);
    /* Before the child is reaped: until then its number, and so the group's, cannot be reused. */
    kill(-c->pid, SIGKILL);
    child_watch_end(&c->watch);
    bool reaped = reap(c);
    interrupt_forget_group(c->pid);
    if (c->end_strays)
        strays_end(); /* before the reader is joined: they may hold its pipe */
    stderr_reader_end(c->stderr_reader);
    c->stderr_reader = NULL;
    close_if_open(&c->out);
    c->ended = true;
    c->exited_by_itself = by_itself && reaped;
    if (!reaped) {
        text_copy(c->status_text, sizeof c->status_text, "exit status not known");
    } else if (WIFSIGNALED(c->status)) {
        const char *name = sigdescr_np(WTERMSIG(c->status));
        snprintf(c->status_text, sizeof c->status_text, "signal %d (%s)", WTERMSIG(c->status),
                 name ? name : "unknown");
    } else {
        snprintf(c->status_text, sizeof c->status_text, "exit status %d", WEXITSTATUS(c->status));
    }
    return c->status_text;
}

bool child_exited_normally(const struct child *c)
{
    return c->ended && c->exited_by_itself && WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0;
}

int child_input_descriptor(const struct child *c)
{
    return c->in;
}

int child_output_descriptor(const struct child *c)
{
    return c->out;
}

pid_t child_pid(const struct child *c)
{
    return c->pid;
}

uint64_t child_peak_rss(const struct child *c)
{
    return c->peak_rss;
}

void child_free(struct child *c)
{
    if (!c)
        return;
    child_end(c, 0);
    buffer_free(&c->pending);
    free(c);
}
