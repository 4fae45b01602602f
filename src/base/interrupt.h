/* Between interrupt.c and child.c only: the descriptor that wakes a poll, and the groups that a
 * second signal takes down with the program. The public part is in child.h. */
#ifndef MLXFAST_BASE_INTERRUPT_H
#define MLXFAST_BASE_INTERRUPT_H

#include <stdbool.h>
#include <sys/types.h>

int interrupt_descriptor(void); /* readable once interrupted; -1 when not installed */
void interrupt_quiet(void);     /* empties the descriptor */
void interrupt_remember_group(pid_t group);
void interrupt_forget_group(pid_t group);

#endif
