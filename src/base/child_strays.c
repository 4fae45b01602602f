/* Strays: a daemon of a child's leaves its process group, but not the tree below a subreaper. */
#include "base/child_strays.h"

#include "base/interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A stray that forks for ever is not chased for ever. */
enum { ROUNDS_MAX = 1000 };

void strays_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* The parent of a process: the second number after its name, which may hold anything but is ended
 * by the last ')'. 0: it is gone. */
static pid_t parent_of(const char *pid)
{
    char path[300], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    return end && strlen(end) > 4 ? (pid_t)strtol(end + 4, NULL, 10) : 0;
}

/* One look at all processes; true when a stray was there. */
static bool end_round(void)
{
    bool found = false;
    const pid_t self = getpid();
    DIR *all = opendir("/proc");
    const struct dirent *entry;
    while (all && (entry = readdir(all))) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || parent_of(entry->d_name) != self || interrupt_knows_group(pid))
            continue;
        found = true;
        kill(pid, SIGKILL); /* ours until it is reaped: the number cannot be another's */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (all)
        closedir(all);
    return found;
}

void strays_end(void)
{
    for (int i = 0; i < ROUNDS_MAX && end_round(); i++)
        continue;
}
