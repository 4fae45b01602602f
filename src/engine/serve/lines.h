/* Lines from a descriptor, bounded: a line longer than the limit is thrown away as it comes, never
 * held. */
#ifndef MLXFAST_ENGINE_SERVE_LINES_H
#define MLXFAST_ENGINE_SERVE_LINES_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct line_reader { /* zeroed but for fd and limit, and what ends a wait if anything does */
    int fd;
    size_t limit;  /* bytes of a line, newline not counted */
    int wake;      /* a descriptor: readable, it ends the wait (INTERRUPTED); 0: none */
    int silent_ms; /* so long without a byte ends it too (IDLE-TIMEOUT); 0: never */
    struct buffer held;
    size_t start; /* of the next line in held */
    bool discarding, ended;
};

enum line_result {
    LINE_READ,
    LINE_TOO_LONG, /* the whole line has been skipped */
    LINE_CUT,      /* the stream ended inside a line */
    LINE_END,      /* the stream ended after a newline, or was empty */
    LINE_ERROR
};
/* The line (without its newline) is valid until the next call. */
enum line_result line_reader_next(struct line_reader *r, const char **line, size_t *length,
                                  struct error *err);
void line_reader_free(struct line_reader *r);

/* Writes all of it. Error IO, also for a reader that has gone (the caller ignores SIGPIPE). */
bool line_write(int fd, const char *data, size_t length, struct error *err);

#endif
