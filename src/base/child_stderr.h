/* Between child_stderr.c and child.c only: the thread that drains a child's stderr into lines. */
#ifndef MLXFAST_BASE_CHILD_STDERR_H
#define MLXFAST_BASE_CHILD_STDERR_H

#include "base/child.h"

struct stderr_reader;

/* Takes fd over (closed by stderr_reader_end). NULL with errno when no thread can be made. */
struct stderr_reader *stderr_reader_begin(int fd, const struct child_options *options);
/* Waits for the end of the stream, at most 500 ms from now, then joins and frees. */
void stderr_reader_end(struct stderr_reader *r);

#endif
