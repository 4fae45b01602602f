/* What runs on this machine, from /proc. */
#ifndef MLXFAST_ARENA_DOCTOR_PROCESSES_H
#define MLXFAST_ARENA_DOCTOR_PROCESSES_H

#include "arena/doctor/machine.h"

enum { PROCESSES_MOST = 32768 };

struct process {
    pid_t pid, parent, session;
    char state;
    char name[32];       /* as the kernel has it, at most 15 bytes */
    const char *program; /* last part of its first argument; else the name */
    uint64_t all_ticks;  /* of processor, with those of children that it has seen end */
    uint64_t started;    /* ticks since the machine's start: with pid, who it is */
    uint64_t resident;   /* bytes */
    uid_t user;
};

struct process_table {
    struct process *items; /* by pid */
    size_t count;
};
/* In an arena. What ends meanwhile is left out. */
void processes_read(const struct machine *m, struct arena *a, struct process_table *out);
const struct process *process_find(const struct process_table *t, pid_t pid); /* NULL: none */

/* Processor time of the whole machine, in ticks. */
struct machine_ticks {
    uint64_t work;   /* user, nice, system, interrupts */
    uint64_t stolen; /* by the host */
    uint64_t all;    /* with idle */
};
bool machine_ticks_read(const struct machine *m, struct machine_ticks *out);

#endif
