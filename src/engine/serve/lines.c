/* Bounded line input, whole-line output. */
#include "engine/serve/lines.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 64 << 10, KEEP = 1 << 20 };

/* Drops what has been handed out, and the memory of an unusually long line with it. */
static void forget_consumed(struct line_reader *r)
{
    if (r->start == 0)
        return;
    size_t rest = r->held.length - r->start;
    if (r->held.capacity > KEEP && rest < KEEP / 2) {
        struct buffer small = {0};
        buffer_append(&small, r->held.data + r->start, rest);
        buffer_free(&r->held);
        r->held = small;
    } else {
        memmove(r->held.data, r->held.data + r->start, rest);
        r->held.length = rest;
    }
    r->start = 0;
}

static bool wait_for_bytes(const struct line_reader *r, struct error *err)
{
    struct pollfd both[2] = {{.fd = r->fd, .events = POLLIN},
                             {.fd = r->wake > 0 ? r->wake : -1, .events = POLLIN}};
    int n;
    if (r->wake <= 0 && r->silent_ms <= 0)
        return true;
    do
        n = poll(both, 2, r->silent_ms > 0 ? r->silent_ms : -1);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return error_errno(err, NULL, "waiting for requests");
    if (both[1].revents)
        return error_set(err, "INTERRUPTED", "stopped by a signal");
    return n > 0 || error_set(err, "IDLE-TIMEOUT", "no request within %d s", r->silent_ms / 1000);
}

static bool read_piece(struct line_reader *r, struct error *err)
{
    char piece[PIECE];
    ssize_t n;
    if (!wait_for_bytes(r, err))
        return false;
    do
        n = read(r->fd, piece, sizeof piece);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return error_errno(err, NULL, "reading requests");
    if (n == 0)
        r->ended = true;
    else
        buffer_append(&r->held, piece, (size_t)n);
    return true;
}

enum line_result line_reader_next(struct line_reader *r, const char **line, size_t *length,
                                  struct error *err)
{
    forget_consumed(r);
    size_t searched = 0;
    for (;;) {
        char *newline = r->held.length > searched
                            ? memchr(r->held.data + searched, '\n', r->held.length - searched)
                            : NULL;
        size_t before = newline ? (size_t)(newline - r->held.data) : r->held.length;
        if (before > r->limit)
            r->discarding = true;
        if (newline) {
            r->start = before + 1;
            bool skipped = r->discarding;
            r->discarding = false;
            if (skipped)
                return LINE_TOO_LONG;
            *line = r->held.data;
            *length = before;
            return LINE_READ;
        }
        if (r->ended) {
            bool inside = r->discarding || r->held.length > 0;
            r->discarding = false;
            buffer_clear(&r->held);
            return inside ? LINE_CUT : LINE_END;
        }
        if (r->discarding)
            buffer_clear(&r->held);
        searched = r->held.length;
        if (!read_piece(r, err))
            return LINE_ERROR;
    }
}

void line_reader_free(struct line_reader *r)
{
    buffer_free(&r->held);
}

bool line_write(int fd, const char *data, size_t length, struct error *err)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, NULL, "writing a response");
        data += n;
        length -= (size_t)n;
    }
    return true;
}
