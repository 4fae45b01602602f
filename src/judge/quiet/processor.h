/* The processors: who works on them, how fast they are clocked, whether they were slowed down.
 *
 * The 1-minute load remembers our own legs for minutes. So that a run of pairs need not wait them
 * away, our part of it is reckoned from the processor time of our own processes (this program and
 * all below it) with the load's own decay, and taken off; what others are doing now is the work of
 * the whole machine over a short window, our own processes' taken off (docs/quiet.md). */
#ifndef MLXFAST_JUDGE_QUIET_PROCESSOR_H
#define MLXFAST_JUDGE_QUIET_PROCESSOR_H

#include "judge/quiet/system.h"

/* One look at the counters. Times are in seconds of processor since some beginning. */
struct work {
    double at;     /* the clock */
    double whole;  /* of the machine, time stolen by its host included; NAN: not known */
    double own;    /* of our processes; NAN: not known */
    double stolen; /* of whole: what the host gave to others; NAN: not known */
};
struct work work_read(const struct quiet_system *s);

/* Processors' worth of work between two looks; NAN where not known or the window is too short for
 * the counters' hundredths of a second. */
struct share {
    double seconds, own, others;
    double
        stolen; /* to the hundredth of a second that it is counted in, however short the window */
};
struct share work_between(const struct work *from, const struct work *to);

/* The processes there are; the caller frees all. */
struct process {
    pid_t pid, parent;
    uint64_t ticks;
    bool ours; /* this program and all below it; the daemons of a subreaper come back to it */
};
struct processes {
    struct process *all;
    size_t count, capacity;
};
struct processes processes_list(const struct quiet_system *s);

/* Our part of the 1-minute load, carried from look to look. Starts at 0. */
struct own_load {
    struct work last;
    double load;
};
void own_load_update(struct own_load *o, const struct work *now);

double load_read(const struct quiet_system *s); /* the 1-minute load; NAN: not known */

/* How processor clocks are read: "cpufreq", "/proc/cpuinfo", or NULL: not at all. */
const char *clocks_source(const struct quiet_system *s);
/* Of one processor in MHz; NAN: not known. cpuinfo: the text of /proc/cpuinfo where that is the
 * source, else NULL. */
double clock_of(const struct quiet_system *s, size_t processor, const char *cpuinfo);

/* Sum of the processors' throttle counters; false: they have none (AMD, ARM, virtual machines). */
bool throttle_count_read(const struct quiet_system *s, uint64_t *count);

#endif
