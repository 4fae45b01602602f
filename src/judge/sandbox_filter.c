#include "judge/sandbox_filter.h"

#include "judge/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Names that a libseccomp or an architecture does not know are passed over: they then do not exist
 * for the engine. clone3 is not here on purpose: its flags lie in memory, where a filter cannot
 * look, and a C library that gets ENOSYS uses clone. Nor map_shadow_stack: the kernel counts what
 * it gives as stack, which RLIMIT_DATA does not see. */
static const char *const allowed[] = {
    /* files */
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2",
    "pwritev2", "open", "openat", "openat2", "close", "close_range", "stat", "fstat", "lstat",
    "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2", "readlink",
    "readlinkat", "getdents", "getdents64", "getcwd", "chdir", "fchdir", "lseek", "fsync",
    "fdatasync", "sync_file_range", "truncate", "ftruncate", "fallocate", "fadvise64", "readahead",
    "copy_file_range", "sendfile", "splice", "tee", "vmsplice", "mkdir", "mkdirat", "rmdir",
    "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink",
    "symlinkat", "chmod", "fchmod", "fchmodat", "fchmodat2", "utimensat", "umask", "getxattr",
    "lgetxattr", "fgetxattr", "listxattr", "flistxattr", "inotify_init1", "inotify_add_watch",
    "inotify_rm_watch", "flock", "cachestat",
    /* descriptors */
    "dup", "dup2", "dup3", "fcntl", "ioctl", "pipe", "pipe2", "poll", "ppoll", "select", "pselect6",
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
    "eventfd", "eventfd2", "signalfd", "signalfd4", "timerfd_create", "timerfd_settime",
    "timerfd_gettime", "socketpair", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg",
    "recvmmsg", "shutdown", "getsockopt", "setsockopt", "getsockname", "getpeername",
    /* memory */
    "brk", "mmap", "mprotect", "munmap", "mremap", "madvise", "mincore", "msync", "mlock", "mlock2",
    "mlockall", "munlock", "munlockall", "membarrier", "mbind", "set_mempolicy", "get_mempolicy",
    "set_mempolicy_home_node", "pkey_alloc", "pkey_free", "pkey_mprotect", "mseal",
    /* threads and the process itself */
    "clone", "execveat", "exit", "exit_group", "futex", "futex_waitv", "futex_wake", "futex_wait",
    "futex_requeue", "set_robust_list", "get_robust_list", "set_tid_address", "rseq", "gettid",
    "getpid", "getppid", "getpgid", "getpgrp", "setpgid", "getsid", "setsid", "getuid", "geteuid",
    "getgid", "getegid", "getresuid", "getresgid", "getgroups", "wait4", "waitid", "prctl",
    "arch_prctl", "capget", "seccomp", "personality", "landlock_create_ruleset",
    "landlock_add_rule", "landlock_restrict_self", "getrlimit", "setrlimit", "prlimit64",
    "getrusage", "times", "getcpu", "getpriority", "setpriority", "sched_yield",
    "sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler",
    "sched_getparam", "sched_setparam", "sched_getattr", "sched_setattr", "sched_get_priority_max",
    "sched_get_priority_min", "sched_rr_get_interval", "uname", "sysinfo",
    /* signals and time */
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigsuspend",
    "rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sigaltstack", "kill", "tkill",
    "tgkill", "pause", "restart_syscall", "clock_gettime", "clock_getres", "clock_nanosleep",
    "nanosleep", "gettimeofday", "time", "timer_create", "timer_settime", "timer_gettime",
    "timer_getoverrun", "timer_delete", "setitimer", "getitimer", "alarm", "getrandom"};

/* Refused by name; these say EPERM rather than ENOSYS, because an engine that tries one of them is
 * told what it did. */
static const char *const denied[] = {"fork",
                                     "vfork",
                                     "execve",
                                     "ptrace",
                                     "process_vm_readv",
                                     "process_vm_writev",
                                     "process_madvise",
                                     "process_mrelease",
                                     "pidfd_open",
                                     "pidfd_getfd",
                                     "pidfd_send_signal",
                                     "kcmp",
                                     "mount",
                                     "umount2",
                                     "mount_setattr",
                                     "move_mount",
                                     "open_tree",
                                     "fsopen",
                                     "fsconfig",
                                     "fsmount",
                                     "fspick",
                                     "pivot_root",
                                     "chroot",
                                     "swapon",
                                     "swapoff",
                                     "unshare",
                                     "setns",
                                     "bpf",
                                     "perf_event_open",
                                     "keyctl",
                                     "add_key",
                                     "request_key",
                                     "kexec_load",
                                     "kexec_file_load",
                                     "init_module",
                                     "finit_module",
                                     "delete_module",
                                     "reboot",
                                     "userfaultfd",
                                     "memfd_secret",
                                     "shmget",
                                     "shmat",
                                     "shmctl",
                                     "shmdt",
                                     "semget",
                                     "semop",
                                     "semtimedop",
                                     "semctl",
                                     "msgget",
                                     "msgsnd",
                                     "msgrcv",
                                     "msgctl",
                                     "mq_open",
                                     "mq_unlink",
                                     "open_by_handle_at",
                                     "name_to_handle_at",
                                     "fanotify_init",
                                     "fanotify_mark",
                                     "acct",
                                     "quotactl",
                                     "quotactl_fd",
                                     "syslog",
                                     "sethostname",
                                     "setdomainname",
                                     "settimeofday",
                                     "clock_settime",
                                     "clock_adjtime",
                                     "adjtimex",
                                     "iopl",
                                     "ioperm",
                                     "modify_ldt",
                                     "vhangup",
                                     "mknod",
                                     "mknodat",
                                     "setuid",
                                     "setgid",
                                     "setreuid",
                                     "setregid",
                                     "setresuid",
                                     "setresgid",
                                     "setgroups",
                                     "setfsuid",
                                     "setfsgid",
                                     "capset",
                                     "bind",
                                     "listen",
                                     "accept",
                                     "accept4",
                                     "migrate_pages",
                                     "move_pages"};

/* Allowed with one feature, refused without it. */
static const struct {
    const char *name;
    unsigned feature;
} featured[] = {{"socket", SANDBOX_RESIDENT},        {"connect", SANDBOX_RESIDENT},
                {"io_uring_setup", SANDBOX_RING},    {"io_uring_enter", SANDBOX_RING},
                {"io_uring_register", SANDBOX_RING}, {"memfd_create", SANDBOX_GPU}};

enum { SHARED_KIND = 0x0f }; /* the mapping's type in mmap's flags (MAP_TYPE) */

/* Refused when the comparison holds. needs, unless: the features that a rule belongs to, and those
 * that lift it. The comparisons are of whole registers, so that bits above an int cannot hide one
 * value behind another. */
static const struct conditional {
    const char *name, *text;
    unsigned needs, unless;
    unsigned count;
    struct scmp_arg_cmp args[1];
} conditional[] = {
    {"clone", "without CLONE_THREAD", 0, 0, 1, {{0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0}}},
    {"mmap",
     "shared and anonymous (no limit would count it)",
     0,
     SANDBOX_GPU,
     1,
     {{3, SCMP_CMP_MASKED_EQ, SHARED_KIND | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS}}},
    {"mmap",
     "shared, validated and anonymous",
     0,
     SANDBOX_GPU,
     1,
     {{3, SCMP_CMP_MASKED_EQ, SHARED_KIND | MAP_ANONYMOUS, MAP_SHARED_VALIDATE | MAP_ANONYMOUS}}},
    {"mmap",
     "with MAP_GROWSDOWN (counted as stack)",
     0,
     0,
     1,
     {{3, SCMP_CMP_MASKED_EQ, MAP_GROWSDOWN, MAP_GROWSDOWN}}},
    {"ioctl", "TIOCSTI", 0, 0, 1, {{1, SCMP_CMP_MASKED_EQ, 0xffffffffu, TIOCSTI}}},
    {"ioctl", "TIOCLINUX", 0, 0, 1, {{1, SCMP_CMP_MASKED_EQ, 0xffffffffu, TIOCLINUX}}},
    /* Once the trusted listener is closed the kernel takes another one, and where two filters ask
     * it is the engine's own, the younger, that may say "go on" to an execveat. */
    {"seccomp",
     "with a listener of its own",
     0,
     0,
     1,
     {{1, SCMP_CMP_MASKED_EQ, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_NEW_LISTENER}}},
    {"personality", "other than asking for it", 0, 0, 1, {{0, SCMP_CMP_NE, 0xffffffffu, 0}}},
    {"socketpair", "of a family other than AF_UNIX", 0, 0, 1, {{0, SCMP_CMP_NE, AF_UNIX, 0}}},
    {"socket",
     "of a family other than AF_UNIX",
     SANDBOX_RESIDENT,
     0,
     1,
     {{0, SCMP_CMP_NE, AF_UNIX, 0}}},
};

static bool applies(const struct conditional *c, unsigned features)
{
    return (features & c->needs) == c->needs && !(features & c->unless);
}

#define COUNT(x) (sizeof(x) / sizeof *(x))

static int add(scmp_filter_ctx f, uint32_t action, const char *name, unsigned count,
               const struct scmp_arg_cmp *args)
{
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0)
        return 0;
    const int code = seccomp_rule_add_array(f, action, number, count, args);
    return code == -EACCES ? 0 : code; /* the rule is the default already */
}

/* No speculation barriers for filtered threads (they would slow the engine's arithmetic, and it
 * keeps no secrets from itself); a foreign architecture's calls end the process. */
static scmp_filter_ctx begin(uint32_t otherwise)
{
    scmp_filter_ctx f = seccomp_init(otherwise);
    if (f != NULL) {
        seccomp_attr_set(f, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
        seccomp_attr_set(f, SCMP_FLTATR_CTL_SSB, 1);
        seccomp_attr_set(f, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    }
    return f;
}

static bool finish(scmp_filter_ctx f, int code, int *listener)
{
    if (f == NULL)
        code = -ENOMEM;
    if (code == 0)
        code = seccomp_load(f);
    if (code == 0 && listener != NULL)
        *listener = seccomp_notify_fd(f);
    if (f != NULL)
        seccomp_release(f);
    errno = -code;
    return code == 0;
}

static bool install_allowed(unsigned features)
{
    scmp_filter_ctx f = begin(SCMP_ACT_ERRNO(ENOSYS));
    int code = 0;
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(allowed); i++)
        code = add(f, SCMP_ACT_ALLOW, allowed[i], 0, NULL);
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(featured); i++)
        if (features & featured[i].feature)
            code = add(f, SCMP_ACT_ALLOW, featured[i].name, 0, NULL);
    return finish(f, code, NULL);
}

static bool install_denied(unsigned features, int *listener)
{
    scmp_filter_ctx f = begin(SCMP_ACT_ALLOW);
    const uint32_t refuse = SCMP_ACT_ERRNO(EPERM);
    int code = 0;
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(denied); i++)
        code = add(f, refuse, denied[i], 0, NULL);
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(featured); i++)
        if (!(features & featured[i].feature))
            code = add(f, refuse, featured[i].name, 0, NULL);
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(conditional); i++)
        if (applies(&conditional[i], features))
            code = add(f, refuse, conditional[i].name, conditional[i].count, conditional[i].args);
    if (f != NULL && code == 0)
        code = add(f, SCMP_ACT_NOTIFY, "execveat", 0, NULL);
    return finish(f, code, listener);
}

bool sandbox_filter_install(unsigned features, int *listener)
{
    /* Where both refuse, the kernel takes the answer of the one installed last. */
    return install_allowed(features) && install_denied(features, listener);
}

bool sandbox_filter_pass_once(int listener, pid_t pid)
{
    struct seccomp_notif *asked = NULL;
    struct seccomp_notif_resp *answer = NULL;
    bool ok = seccomp_notify_alloc(&asked, &answer) == 0 &&
              seccomp_notify_receive(listener, asked) == 0 && asked->pid == (uint32_t)pid &&
              asked->data.nr == seccomp_syscall_resolve_name("execveat");
    if (ok) {
        answer->id = asked->id;
        answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ok = seccomp_notify_respond(listener, answer) == 0;
    }
    if (asked != NULL)
        seccomp_notify_free(asked, answer);
    close(listener);
    return ok;
}

bool sandbox_filter_install_init(void)
{
    static const char *const needed[] = {"wait4",      "waitid",       "exit",
                                         "exit_group", "rt_sigreturn", "restart_syscall"};
    scmp_filter_ctx f = begin(SCMP_ACT_ERRNO(EPERM));
    int code = 0;
    for (size_t i = 0; f != NULL && code == 0 && i < COUNT(needed); i++)
        code = add(f, SCMP_ACT_ALLOW, needed[i], 0, NULL);
    return finish(f, code, NULL);
}

void sandbox_filter_describe(unsigned features, struct buffer *out)
{
    buffer_text(out, "seccomp, calls of another architecture: kill the process\n");
    for (size_t i = 0; i < COUNT(denied); i++)
        buffer_printf(out, "seccomp %s: EPERM\n", denied[i]);
    for (size_t i = 0; i < COUNT(featured); i++)
        buffer_printf(out, "seccomp %s: %s\n", featured[i].name,
                      features & featured[i].feature ? "allowed" : "EPERM");
    for (size_t i = 0; i < COUNT(conditional); i++)
        if (applies(&conditional[i], features))
            buffer_printf(out, "seccomp %s, %s: EPERM\n", conditional[i].name, conditional[i].text);
    for (size_t i = 0; i < COUNT(allowed); i++)
        buffer_printf(out, "seccomp %s: allowed\n", allowed[i]);
    buffer_text(out, "seccomp execveat: once, by the trusted process that becomes the engine; then "
                     "ENOSYS\n"
                     "seccomp, every other call: ENOSYS\n");
}
