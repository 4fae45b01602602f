/* The descriptor that wakes a poll, and what a second signal takes down with the program: groups of
 * processes and an unfinished file. Between the files of base, but for interrupt_partial_file and
 * for a server that waits on more than one descriptor. The public part is in child.h. */
#ifndef MLXFAST_BASE_INTERRUPT_H
#define MLXFAST_BASE_INTERRUPT_H

#include <stdbool.h>
#include <sys/types.h>

int interrupt_descriptor(void); /* readable once interrupted; -1 when not installed */
void interrupt_quiet(void);     /* empties the descriptor */
void interrupt_remember_group(pid_t group);
void interrupt_forget_group(pid_t group);
bool interrupt_knows_group(pid_t group);

/* A file that is being made, removed where a signal ends the program at once; NULL: none. The text
 * must live until the next call. */
void interrupt_partial_file(const char *path);
void interrupt_remove_partial(void);

#endif
