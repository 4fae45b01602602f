/* What the probe's tries share. Each file of tries has one table; probe_tries.c joins them. */
#ifndef MLXFAST_JUDGE_PROBE_TRIES_H
#define MLXFAST_JUDGE_PROBE_TRIES_H

#include "judge/probe.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>

struct probe_tries {
    const struct probe_try *items;
    size_t count;
};
struct probe_tries probe_tries_system(void); /* network, processes, the kernel */
struct probe_tries probe_tries_files(void);
struct probe_tries probe_tries_rest(void); /* limits, what engines need */

typedef const char *const *places_t;
#define TRY(name) static bool name(places_t p, const char **detail)
#define UNUSED (void)p, (void)detail

/* Closes fd; false when there is none. */
bool probe_closed(int fd);
bool probe_can_read(const char *path, const char **detail);
bool probe_can_list(const char *path, const char **detail);
/* Runs f in a process of its own where there can be one, so that what it changes ends with it. */
bool probe_apart(long (*f)(places_t), places_t p);

#define APART(name, f)                                                                             \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)detail;                                                                              \
        return probe_apart(f, p);                                                                  \
    }
#define WRITE_TO(name, path)                                                                       \
    TRY(name)                                                                                      \
    {                                                                                              \
        UNUSED;                                                                                    \
        return probe_closed(open(path, O_WRONLY | O_CLOEXEC));                                     \
    }
#define READ_OF(name, path)                                                                        \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)p;                                                                                   \
        return probe_can_read(path, detail);                                                       \
    }
#define LIST_OF(name, path)                                                                        \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)p;                                                                                   \
        return probe_can_list(path, detail);                                                       \
    }

#endif
