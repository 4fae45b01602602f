/* Processes that a child started and that left its group: between child.c and child_strays.c. */
#ifndef MLXFAST_BASE_CHILD_STRAYS_H
#define MLXFAST_BASE_CHILD_STRAYS_H

/* From here on the kernel gives processes whose parent has ended to this program, not to init. */
void strays_adopt(void);

/* Kills and reaps every process of which this program is the parent and that is no child of
 * child_start, and what those leave in turn. Not while another thread starts a child. */
void strays_end(void);

#endif
