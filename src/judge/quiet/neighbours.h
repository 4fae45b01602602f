/* Who else worked during a phase, and whether it cost our engine anything, in phases that are too
 * short for the hundredths of a second of /proc/stat: both are read in nanoseconds, once just
 * before the phase and once just after it.
 *
 * Others' work is the kernel's processor clock of every process that is not ours. A process that
 * began and ended within the phase is not seen, nor are interrupts. The run delay is what threads
 * of our own processes but this one stood in a run queue (/proc/PID/task/TID/schedstat): ready to
 * work, and no processor to work on. That others had it, and not a thread of the engine itself, is
 * what the two say together (docs/quiet.md). */
#ifndef MLXFAST_JUDGE_QUIET_NEIGHBOURS_H
#define MLXFAST_JUDGE_QUIET_NEIGHBOURS_H

#include "judge/quiet/system.h"

struct neighbours;
struct neighbours *neighbours_open(const struct quiet_system *s);
void neighbours_close(struct neighbours *n); /* NULL is allowed */

void neighbours_begin(struct neighbours *n);

/* Processors' worth over the phase, and threads' worth of waiting; NAN: not known. */
struct neighbours_seen {
    double seconds, others, run_delay;
};
void neighbours_end(struct neighbours *n, struct neighbours_seen *out);

#endif
