/* Everything that quiet/ takes from outside, as a struct of functions: a test makes up a machine,
 * its clock and its GPU, and waits for nothing. */
#ifndef MLXFAST_JUDGE_QUIET_SYSTEM_H
#define MLXFAST_JUDGE_QUIET_SYSTEM_H

#include "base/buffer.h"
#include "base/error.h"
#include "judge/quiet/parse.h"
#include "judge/quiet/quiet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct quiet_system {
    const char *root;      /* "", or a folder that holds proc/ and sys/ */
    pid_t self;            /* whose processes are ours */
    double ticks;          /* per second, of /proc */
    double sample_seconds; /* of the sampler's thread, 0.1; 0: no thread (sampler.h) */
    FILE *say;             /* where people read; NULL: nowhere */
    void *context;
    double (*now)(void *context); /* seconds of a clock that never jumps */
    /* Processor time of a process so far, by the kernel's finest clock; NAN: not known. */
    double (*process_seconds)(void *context, pid_t pid);
    /* Error Interrupted: a signal asks the program to stop. */
    bool (*sleep)(void *context, double seconds, struct error *err);
    const char *(*variable)(void *context, const char *name); /* environment; NULL: not set */
    /* /bin/sh -c script: its output, at most limit bytes within so many seconds, and exit status
     * 0; else false. out is NUL-terminated. */
    bool (*command)(void *context, const char *script, double seconds, size_t limit,
                    struct buffer *out);
    bool (*nvml)(void *context, struct gpu_reading *out); /* false: no NVML, no GPU */
};

/* This machine. */
struct quiet_system *quiet_system_open(void);
void quiet_system_close(struct quiet_system *s);

/* A whole small file below the root; false: it cannot be read. out is cleared first. */
bool quiet_system_read(const struct quiet_system *s, const char *path, struct buffer *out);

/* quiet_open on a machine that the caller keeps until quiet_close. */
bool quiet_open_on(const struct quiet_system *s, const struct quiet_rules *rules, bool ranked,
                   bool silent, struct quiet **out, struct error *err);

/* NVML, found when the program runs (dlopen of libnvidia-ml.so.1), never linked. NULL: it is not
 * there or does not start. */
struct nvml;
struct nvml *nvml_open(void);
bool nvml_read(const struct nvml *n, struct gpu_reading *out); /* every GPU, QUIET_GPUS_MAX most */
void nvml_close(struct nvml *n);

#endif
