/* The standard streams: see standard.h. */
#include "base/standard.h"

#include "base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char lost_memory_line[160];

/* A mapped file was cut short, or its disk failed: the memory that a read wanted is not there. Only
 * async-signal-safe calls. */
static void on_lost_memory(int signal_number)
{
    const ssize_t n = write(STDERR_FILENO, lost_memory_line, strlen(lost_memory_line));
    (void)n;
    (void)signal_number;
    interrupt_remove_partial();
    _exit(1);
}

void standard_begin(const char *program)
{
    int fd;
    snprintf(lost_memory_line, sizeof lost_memory_line,
             "%s: FILE-CHANGED: a file was cut short, or its disk failed, while it was in use\n",
             program);
    do {
        fd = open("/dev/null", O_RDONLY); /* the lowest free number */
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is an error of the write too */
    signal(SIGBUS, on_lost_memory);
}

bool standard_finish(struct error *err)
{
    errno = 0;
    const bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout))
        return true;
    if (errno == 0) /* an earlier write failed, and its number is gone */
        return error_set(err, "IO", "writing to stdout failed");
    return error_errno(err, "stdout", "writing the output");
}
