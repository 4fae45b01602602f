/* A child's stderr, line by line, on a thread of its own. */
#include "base/child_stderr.h"

#include "base/arena.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LINE_LIMIT = 65536, END_MS = 500 }; /* engine-protocol.md sections 1 and 9 */
static const char too_long[] = "[worker stderr line exceeded 65536 bytes]";

struct stderr_reader {
    int fd, stop; /* stop: an eventfd, readable once stderr_reader_end was called */
    void (*on_line)(void *context, const char *line, size_t length);
    void *context;
    pthread_t thread;
    size_t length;
    bool skipping; /* inside a line that was too long */
    char line[LINE_LIMIT + 1];
};

static void deliver(struct stderr_reader *r, const char *line, size_t length)
{
    if (r->on_line)
        r->on_line(r->context, line, length);
}

static void end_line(struct stderr_reader *r)
{
    if (!r->skipping) {
        if (r->length > 0 && r->line[r->length - 1] == '\r')
            r->length--;
        r->line[r->length] = '\0';
        deliver(r, r->line, r->length);
    }
    r->skipping = false;
    r->length = 0;
}

static void feed(struct stderr_reader *r, const char *data, size_t length)
{
    while (length > 0) {
        const char *newline = memchr(data, '\n', length);
        size_t n = newline ? (size_t)(newline - data) : length;
        if (!r->skipping && n > LINE_LIMIT - r->length) {
            deliver(r, too_long, sizeof too_long - 1);
            r->skipping = true;
        }
        if (!r->skipping) {
            memcpy(r->line + r->length, data, n);
            r->length += n;
        }
        if (newline) {
            end_line(r);
            n++;
        }
        data += n;
        length -= n;
    }
}

static void *drain(void *argument)
{
    struct stderr_reader *r = argument;
    char piece[16384];
    int64_t deadline = INT64_MAX;
    for (;;) {
        bool stopping = deadline != INT64_MAX;
        int64_t left = stopping ? deadline - clock_now_ns() : 0;
        if (stopping && left <= 0)
            break;
        struct pollfd fds[2] = {{r->fd, POLLIN, 0}, {stopping ? -1 : r->stop, POLLIN, 0}};
        int n = poll(fds, 2, stopping ? (int)(left / 1000000) + 1 : -1);
        if (n < 0 && errno != EINTR)
            break;
        if (n <= 0)
            continue;
        if (fds[1].revents)
            deadline = clock_now_ns() + (int64_t)END_MS * 1000000;
        if (!fds[0].revents)
            continue;
        ssize_t got = read(r->fd, piece, sizeof piece);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
            break;
        if (got > 0)
            feed(r, piece, (size_t)got);
    }
    if (r->length > 0)
        end_line(r);
    return NULL;
}

struct stderr_reader *stderr_reader_begin(int fd, const struct child_options *options)
{
    struct stderr_reader *r = memory_alloc(sizeof *r);
    r->fd = fd;
    r->on_line = options->on_stderr_line;
    r->context = options->context;
    r->stop = eventfd(0, EFD_CLOEXEC);
    int code = r->stop < 0 ? errno : 0;
    /* Non-blocking: poll may wake without data, and a read that waits would hold the end. */
    if (code == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        code = errno;
    if (code == 0)
        code = pthread_create(&r->thread, NULL, drain, r);
    if (code == 0)
        return r;
    close(fd);
    if (r->stop >= 0)
        close(r->stop);
    free(r);
    errno = code;
    return NULL;
}

void stderr_reader_end(struct stderr_reader *r)
{
    const uint64_t one = 1;
    ssize_t n = write(r->stop, &one, sizeof one); /* cannot fail: the counter is 0 */
    (void)n;
    pthread_join(r->thread, NULL);
    close(r->fd);
    close(r->stop);
    free(r);
}
