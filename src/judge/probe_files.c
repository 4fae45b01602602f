/* Tries at files. */
#include "judge/probe_tries.h"

#include "judge/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */

static bool can_create(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/.mlxfast-probe-%ld", folder, (long)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    close(fd);
    unlink(path);
    return true;
}
#define IN_FOLDER(name, path)                                                                      \
    TRY(name)                                                                                      \
    {                                                                                              \
        UNUSED;                                                                                    \
        return can_create(path);                                                                   \
    }
IN_FOLDER(write_root, "/")
IN_FOLDER(write_usr, "/usr")
IN_FOLDER(write_etc, "/etc")
IN_FOLDER(write_run, "/run")
IN_FOLDER(write_dev, "/dev")
IN_FOLDER(write_shm, "/dev/shm")
IN_FOLDER(write_weights, p[PROBE_WEIGHTS])
WRITE_TO(write_engine, p[PROBE_ENGINE])
WRITE_TO(write_sysctl, "/proc/sys/kernel/core_pattern")
WRITE_TO(write_drop_caches, "/proc/sys/vm/drop_caches")
WRITE_TO(write_sysrq, "/proc/sysrq-trigger")
WRITE_TO(write_terminal, "/dev/tty")
WRITE_TO(write_cpu, "/sys/devices/system/cpu/cpu1/online")
WRITE_TO(write_first_memory, "/proc/1/mem")
READ_OF(read_golden, p[PROBE_GOLDEN])
READ_OF(read_masked, p[PROBE_MASKED])
READ_OF(read_contract, p[PROBE_CONTRACT])
READ_OF(read_private, p[PROBE_PRIVATE])
READ_OF(read_shadow, "/etc/shadow")
READ_OF(read_passwd, "/etc/passwd")
READ_OF(read_first_environ, "/proc/1/environ")
READ_OF(read_kmsg, "/dev/kmsg")
READ_OF(read_mem, "/dev/mem")
READ_OF(read_kcore, "/proc/kcore")
LIST_OF(list_first_descriptors, "/proc/1/fd")

/* Other names than those on the way to what is shown. */
TRY(list_home)
{
    const char *const shown[] = {p[PROBE_ENGINE], p[PROBE_FOLDER]};
    bool found = false;
    DIR *d = opendir(p[PROBE_HOME]);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[4096];
        bool way = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                   strcmp(e->d_name, PROBE_LEFT_FILE) == 0;
        const int n = snprintf(path, sizeof path, "%s/%s", p[PROBE_HOME], e->d_name);
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
            way = way || strncmp(shown[i], path, (size_t)n) == 0;
        found = found || !way;
    }
    if (d != NULL)
        closedir(d);
    *detail = found ? "its names are there" : "not there";
    return found;
}
/* In the sandbox the folder may be a private one of the same name; the outer half looks. */
static bool can_leave(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, PROBE_LEFT_FILE);
    return probe_closed(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}
TRY(leave_file)
{
    (void)detail;
    return can_leave(p[PROBE_FOLDER]);
}
TRY(write_home)
{
    (void)detail;
    return can_leave(p[PROBE_HOME]);
}
TRY(find_golden)
{
    bool found = false;
    DIR *d = opendir(p[PROBE_FOLDER]);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        found = found || strcmp(e->d_name, strrchr(p[PROBE_GOLDEN], '/') + 1) == 0;
    if (d != NULL)
        closedir(d);
    *detail = found ? "its name is there" : "not there";
    return found;
}
TRY(write_weights_file)
{
    (void)detail;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", p[PROBE_WEIGHTS], PROBE_WEIGHTS_FILE);
    return probe_closed(open(path, O_WRONLY | O_CLOEXEC));
}
TRY(chmod_weights)
{
    (void)detail;
    return chmod(p[PROBE_WEIGHTS], 0755) == 0;
}
TRY(make_device)
{
    UNUSED;
    const char *path = "/tmp/.mlxfast-probe-device";
    if (mknod(path, S_IFCHR | 0600, 0x103) != 0)
        return false;
    unlink(path);
    return true;
}

static const struct probe_try tries[] = {
    {"writing", "create a file in /", false, write_root, 0},
    {"writing", "create a file in /usr", false, write_usr, 0},
    {"writing", "create a file in /etc", false, write_etc, 0},
    {"writing", "create a file in /run", false, write_run, 0},
    {"writing", "create a file in /dev", false, write_dev, 0},
    {"writing", "create a file in /dev/shm", false, write_shm, 0},
    {"writing", "create a file in the weights folder", false, write_weights, 0},
    {"writing", "write a weights file", false, write_weights_file, 0},
    {"writing", "change the weights folder's mode", false, chmod_weights, 0},
    {"writing", "write the engine's file", false, write_engine, 0},
    {"writing", PROBE_LEFT_HOME_TRY, false, write_home, 0},
    {"writing", PROBE_LEFT_TRY, false, leave_file, 0},
    {"writing", "write a sysctl", false, write_sysctl, 0},
    {"writing", "drop the page cache", false, write_drop_caches, 0},
    {"writing", "write /proc/sysrq-trigger", false, write_sysrq, 0},
    {"writing", "take a processor offline", false, write_cpu, 0},
    {"writing", "the judge's terminal", false, write_terminal, 0},
    {"writing", "make a device node", false, make_device, 0},
    {"reading", "the golden beside the weights", false, read_golden, 0},
    {"reading", "a golden inside the engine's folder", false, read_masked, 0},
    {"reading", "the contract", false, read_contract, 0},
    {"reading", "the private folder", false, read_private, 0},
    {"reading", "list the home folder", false, list_home, 0},
    {"reading", "the golden's name", false, find_golden, 0},
    {"reading", "/etc/shadow", false, read_shadow, 0},
    {"reading", "/etc/passwd", false, read_passwd, 0},
    {"reading", "/dev/mem", false, read_mem, 0},
    {"reading", "/dev/kmsg", false, read_kmsg, 0},
    {"reading", "/proc/kcore", false, read_kcore, 0},
    {"other processes", "write the first process's memory", false, write_first_memory, 0},
    {"other processes", "/proc/1/environ", false, read_first_environ, 0},
    {"other processes", "/proc/1/fd", false, list_first_descriptors, 0},
};

struct probe_tries probe_tries_files(void)
{
    return (struct probe_tries){tries, sizeof tries / sizeof *tries};
}
