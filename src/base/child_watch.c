#include "base/child_watch.h"

#include "base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Only async-signal-safe calls. Nothing of the program's is held but the pipe. */
static _Noreturn void keep_watch(int pipe_end, int open_max)
{
    pid_t group = 0, read_group;
    ssize_t n;
    setsid(); /* a signal for the program's group is not for this one */
    dup2(pipe_end, 0);
    if (syscall(SYS_close_range, 1u, ~0u, 0u) != 0)
        for (int fd = 1; fd < open_max; fd++)
            close(fd);
    do {
        n = read(0, &read_group, sizeof read_group);
        if (n == (ssize_t)sizeof read_group)
            group = read_group;
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (group > 1)
        kill(-group, SIGKILL);
    _exit(0);
}

bool child_watch_begin(struct child_watch *w)
{
    int ends[2];
    *w = (struct child_watch){.fd = -1};
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const int open_max = (int)sysconf(_SC_OPEN_MAX);
    const int above = fcntl(ends[1], F_DUPFD_CLOEXEC, 3);
    int code = errno;
    close(ends[1]);
    const pid_t pid = above < 0 ? -1 : fork();
    if (pid == 0)
        keep_watch(ends[0], open_max);
    code = above < 0 ? code : errno;
    close(ends[0]);
    if (pid > 0) {
        interrupt_remember_group(pid); /* no stray */
        *w = (struct child_watch){.pid = pid, .fd = above};
        return true;
    }
    if (above >= 0)
        close(above);
    errno = code;
    return false;
}

void child_watch_this(const struct child_watch *w)
{
    const pid_t self = getpid();
    const ssize_t n = write(w->fd, &self, sizeof self);
    (void)n; /* a program that is gone has told this child so by then */
}

void child_watch_end(struct child_watch *w)
{
    if (w->fd < 0)
        return;
    kill(w->pid, SIGKILL);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    interrupt_forget_group(w->pid);
    close(w->fd);
    w->fd = -1;
}
