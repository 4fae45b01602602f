/* Between resident.c and resident_guard.c: how the two processes speak. */
#ifndef MLXFAST_JUDGE_RANKED_RESIDENT_GUARD_H
#define MLXFAST_JUDGE_RANKED_RESIDENT_GUARD_H

/* The guard's arguments after its name: a private folder, which it removes, two bounds in seconds,
 * and the script with what --boot is told. Its working folder is the workspace. */
enum {
    GUARD_FOLDER,
    GUARD_BOOT_SECONDS,
    GUARD_STOP_SECONDS,
    GUARD_SCRIPT,
    GUARD_SPEC,
    GUARD_DRAFT_LENGTH,
    GUARD_ARGUMENTS
};

/* On stdout, once, after --boot: one of these, or the status in words. The end of its stdin asks
 * for the end of the resident. */
#define GUARD_BOOTED "exit status 0"
#define GUARD_TIMEOUT "timeout"

/* The guard's own exit status. */
enum { GUARD_STOPPED = 0, GUARD_STOP_FAILED = 1, GUARD_STOP_TIMEOUT = 2, GUARD_BROKEN = 3 };

/* In the private folder: where the script writes the socket's path, and how much of it is read. */
#define GUARD_SOCKET_FILE "socket"
enum { GUARD_SOCKET_FILE_LIMIT = 4096 };

/* The folder and the plain files in it. */
void guard_remove_folder(const char *path);

#endif
