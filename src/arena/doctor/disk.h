/* How fast a folder's disk is read, past the page cache. */
#ifndef MLXFAST_ARENA_DOCTOR_DISK_H
#define MLXFAST_ARENA_DOCTOR_DISK_H

#include "arena/doctor/machine.h"

/* Reads, for so many seconds at most, the largest regular file of the folder, or, where that is
 * small, a temporary one that has no name and is written for it (half the time). out's texts live
 * in a. Errors: INTERRUPTED; IO and DISK-UNREAD (a file system that has no direct reads, a folder
 * without a large file that may not be written to): there is no rate to tell. */
bool disk_read_rate(struct arena *a, const char *folder, double seconds, struct disk_rate *out,
                    struct error *err);

#endif
