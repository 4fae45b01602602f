/* How much memory this process may still take, and who says so. */
#ifndef MLXFAST_ENGINE_MEMORY_LIMITS_H
#define MLXFAST_ENGINE_MEMORY_LIMITS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* UINT64_MAX: no limit. Pages of files that can be dropped count as available. */
struct memory_limits {
    uint64_t available; /* of the machine or of a control group, the least */
    char source[96];    /* whose that is: "MemAvailable of /proc/meminfo", a memory.max with its
                           folder */
    uint64_t data;      /* of RLIMIT_DATA: what is written to, not of files */
    uint64_t addresses; /* of RLIMIT_AS: all that is mapped */
    uint64_t lockable;  /* of RLIMIT_MEMLOCK */
};
void memory_limits_read(struct memory_limits *out);

/* Before files of so many bytes are mapped. Error MEMORY-INSUFFICIENT. */
bool memory_check_mapping(const struct memory_limits *l, uint64_t bytes, const char *folder,
                          struct error *err);

/* This process, from /proc/self/status. */
struct memory_use {
    uint64_t resident, anonymous, file, peak, locked; /* bytes; peak: the most ever resident */
    uint64_t huge; /* of the anonymous ones, in huge pages; only with huge_too */
};
void memory_use_read(struct memory_use *out, bool huge_too);

/* "5.73 GB", "12.3 MB": for messages. Returns out, which has room for 32 bytes. */
char *memory_text(uint64_t bytes, char *out);

#endif
