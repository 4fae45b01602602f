/* What ends a child's group when this program is killed: between child.c and child_watch.c.
 *
 * PDEATHSIG reaches the child alone. What the child has started by then is its own to end, and a
 * child that was killed while it was starting something (bubblewrap between its clone and the word
 * that lets the clone go on) leaves it waiting for ever. So a process of a session of its own holds
 * a pipe from this program, and kills the group when the pipe ends. */
#ifndef MLXFAST_BASE_CHILD_WATCH_H
#define MLXFAST_BASE_CHILD_WATCH_H

#include <stdbool.h>
#include <sys/types.h>

struct child_watch {
    pid_t pid;
    int fd; /* above 2 */
};

/* With every signal blocked, before the child is forked. On false errno says why, and there is
 * nothing to end. */
bool child_watch_begin(struct child_watch *w);
/* In the child: its group, which it leads, is the one. Async-signal-safe. */
void child_watch_this(const struct child_watch *w);
/* When the group was killed, and before the child is reaped. */
void child_watch_end(struct child_watch *w);

#endif
