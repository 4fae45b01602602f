/* The kernel's own files, as text. */
#ifndef MLXFAST_ENGINE_MEMORY_SYSTEM_H
#define MLXFAST_ENGINE_MEMORY_SYSTEM_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads a file of /proc or /sys, of at most 64 KiB (what lies beyond is left out); false where
 * there is none. MLXFAST_SYSTEM_FILES=DIR, for tests, puts DIR in front of every path. */
bool system_read(const char *path, struct buffer *out);
/* A file that holds one number; "max" is UINT64_MAX. */
bool system_read_number(const char *path, uint64_t *out);
/* The number after a key that begins a line, as in /proc/meminfo ("MemAvailable:  123 kB"). */
bool system_find_number(const char *text, const char *key, uint64_t *out);

/* The process's path in a cgroup hierarchy, from /proc/self/cgroup. controller NULL: version 2.
 * False where there is none. */
bool system_cgroup_path(const char *controller, struct buffer *out);
/* Calls visit with each folder, from the process's own group up to the root, of the hierarchy of
 * version 2 and of the named controller of version 1. Folders that are not there (a group seen from
 * inside a container) are visited too: their files cannot be read. */
typedef void system_group_visit(void *context, const char *folder, bool version2);
void system_visit_groups(const char *controller, system_group_visit *visit, void *context);

#endif
