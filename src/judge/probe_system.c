/* Tries at the network, at processes, at the kernel. */
#include "judge/probe_tries.h"

#include "judge/sandbox.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/ethernet.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- network ---- */

static bool reach(int family, const char *address, int port, int type)
{
    struct sockaddr_in six4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 six6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const int fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    int code;
    if (family == AF_INET) {
        inet_pton(AF_INET, address, &six4.sin_addr);
        code = connect(fd, (struct sockaddr *)&six4, sizeof six4);
    } else {
        inet_pton(AF_INET6, address, &six6.sin6_addr);
        code = connect(fd, (struct sockaddr *)&six6, sizeof six6);
    }
    const bool done = code == 0 || errno == EINPROGRESS;
    const int why = errno;
    close(fd);
    errno = why;
    return done;
}

TRY(tcp_loopback)
{
    UNUSED;
    return reach(AF_INET, "127.0.0.1", (int)strtol(p[PROBE_PORT], NULL, 10), SOCK_STREAM);
}
TRY(tcp_outside)
{
    UNUSED;
    return reach(AF_INET, "192.0.2.1", 443, SOCK_STREAM);
}
TRY(tcp6_loopback)
{
    UNUSED;
    return reach(AF_INET6, "::1", (int)strtol(p[PROBE_PORT], NULL, 10), SOCK_STREAM);
}
TRY(udp_dns)
{
    UNUSED;
    return reach(AF_INET, "192.0.2.53", 53, SOCK_DGRAM);
}
TRY(raw_socket)
{
    UNUSED;
    return probe_closed(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
}
TRY(packet_socket)
{
    UNUSED;
    return probe_closed(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)));
}
TRY(netlink_socket)
{
    UNUSED;
    return probe_closed(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
}

static bool reach_unix(const char *name, bool abstract)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(name);
    memcpy(a.sun_path + abstract, name, n < sizeof a.sun_path - 1 ? n : sizeof a.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + abstract + n);
    const bool done = connect(fd, (struct sockaddr *)&a, length) == 0;
    const int why = errno;
    close(fd);
    errno = why;
    return done;
}
TRY(unix_path)
{
    UNUSED;
    return reach_unix(p[PROBE_SOCKET], false);
}
TRY(unix_abstract)
{
    UNUSED;
    return reach_unix(p[PROBE_SOCKET], true);
}
TRY(unix_datagram_pair)
{
    /* A pair is allowed; it must not become a way out. */
    UNUSED;
    int ends[2];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(p[PROBE_SOCKET]);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    memcpy(a.sun_path, p[PROBE_SOCKET], n < sizeof a.sun_path ? n : sizeof a.sun_path);
    const bool done = connect(ends[0], (struct sockaddr *)&a, sizeof a) == 0 || errno == EPROTOTYPE;
    const int why = errno;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    return done;
}
TRY(network_interfaces)
{
    UNUSED;
    char line[512];
    bool found = false;
    FILE *f = fopen("/proc/net/dev", "r");
    if (f == NULL)
        return false;
    for (int i = 0; fgets(line, sizeof line, f) != NULL; i++)
        if (i >= 2 && strncmp(line + strspn(line, " "), "lo:", 3) != 0)
            found = true;
    fclose(f);
    *detail = "only lo is there";
    if (found)
        *detail = "others than lo";
    return found;
}

/* ---- processes ---- */

static bool reaped(pid_t pid)
{
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return false;
    waitpid(pid, NULL, __WALL);
    return true;
}

TRY(fork_call)
{
    UNUSED;
#ifdef SYS_fork
    return reaped((pid_t)syscall(SYS_fork));
#else
    return reaped((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
#endif
}
TRY(vfork_call)
{
    UNUSED;
    const pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    return reaped(pid);
}
TRY(clone_call)
{
    UNUSED;
    return reaped((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}
static int leave(void *context)
{
    (void)context;
    return 0;
}
TRY(clone_vm_call)
{
    UNUSED; /* shares memory, and is a process all the same: as posix_spawn makes them */
    static char stack[65536] __attribute__((aligned(64)));
    return reaped(clone(leave, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
}
TRY(clone3_call)
{
    UNUSED;
    struct clone_args a = {.exit_signal = SIGCHLD};
    return reaped((pid_t)syscall(SYS_clone3, &a, sizeof a));
}
TRY(spawn_call)
{
    UNUSED;
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    char *const env[] = {NULL};
    pid_t pid;
    const int code = posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env);
    errno = code;
    return code == 0 && reaped(pid);
}

static long exec_true(places_t p)
{
    (void)p;
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    return execve("/bin/true", argv, argv + 1);
}
static long exec_shell(places_t p)
{
    (void)p;
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t) "exit 0", NULL};
    return execve("/bin/sh", argv, argv + 3);
}
static long exec_descriptor(places_t p)
{
    (void)p;
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    const int fd = open("/bin/true", O_RDONLY | O_CLOEXEC);
    return syscall(SYS_execveat, fd, "", argv, argv + 1, AT_EMPTY_PATH);
}
static long exec_path_at(places_t p)
{
    (void)p;
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    return syscall(SYS_execveat, AT_FDCWD, "/bin/true", argv, argv + 1, 0);
}
/* As the engine itself was executed, but for the path. */
static long exec_path_flag(places_t p)
{
    (void)p;
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    return syscall(SYS_execveat, -1, "/bin/true", argv, argv + 1, AT_EMPTY_PATH);
}
static long raise_files(places_t p)
{
    (void)p;
    const struct rlimit more = {SANDBOX_NOFILE + 1, SANDBOX_NOFILE + 1};
    return setrlimit(RLIMIT_NOFILE, &more);
}

static long raise_stack(places_t p)
{
    (void)p;
    const struct rlimit more = {SANDBOX_STACK_BYTES + 1, SANDBOX_STACK_BYTES + 1};
    return setrlimit(RLIMIT_STACK, &more);
}

/* A filter of its own that asks before every execveat, and a thread of its own that says yes. */
static void *say_yes(void *context)
{
    const int *listener = context;
    struct seccomp_notif asked = {0};
    if (ioctl(*listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0) {
        struct seccomp_notif_resp answer = {.id = asked.id,
                                            .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(*listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return NULL;
}
static long exec_own_listener(places_t p)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execveat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    static int listener;
    pthread_t thread;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                            &program);
    if (listener < 0 || pthread_create(&thread, NULL, say_yes, &listener) != 0)
        return -1;
    return exec_path_at(p);
}

APART(exec_true_call, exec_true)
APART(exec_shell_call, exec_shell)
APART(exec_descriptor_call, exec_descriptor)
APART(exec_path_at_call, exec_path_at)
APART(exec_path_flag_call, exec_path_flag)
APART(exec_own_listener_call, exec_own_listener)
APART(raise_files_call, raise_files)
APART(raise_stack_call, raise_stack)

/* ---- other processes and the kernel ---- */

static long trace_first_call(places_t p)
{
    (void)p;
    return ptrace(PTRACE_SEIZE, 1, 0, 0); /* its end lets go again */
}
APART(trace_first, trace_first_call)
static long trace_me(places_t p)
{
    (void)p;
    return ptrace(PTRACE_TRACEME, 0, 0, 0);
}
APART(trace_me_call, trace_me)
TRY(read_foreign_memory)
{
    UNUSED;
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)&environ, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}
TRY(signal_judge)
{
    (void)detail;
    return kill((pid_t)strtol(p[PROBE_JUDGE_PID], NULL, 10), 0) == 0;
}
TRY(see_processes)
{
    UNUSED;
    int others = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const long pid = strtol(e->d_name, NULL, 10);
        others += pid > 1 && pid != (long)getpid();
    }
    if (d != NULL)
        closedir(d);
    *detail = others > 0 ? "others are there" : "only itself and the first";
    return others > 0;
}
TRY(pidfd_call)
{
    UNUSED;
    return probe_closed((int)syscall(SYS_pidfd_open, getpid(), 0));
}
static long mount_call(places_t p)
{
    (void)p;
    if (unshare(CLONE_NEWNS) == 0) /* where it can be done, it stays in here */
        return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return mount("none", "/tmp", "tmpfs", 0, NULL);
}
static long open_tree_call(places_t p)
{
    (void)p;
    return syscall(SYS_open_tree, AT_FDCWD, "/", 1);
}
static long fsopen_call(places_t p)
{
    (void)p;
    return syscall(SYS_fsopen, "tmpfs", 0);
}
static long unshare_user(places_t p)
{
    (void)p;
    return unshare(CLONE_NEWUSER);
}
static long unshare_files(places_t p)
{
    (void)p;
    return unshare(CLONE_FILES);
}
static long setns_call(places_t p)
{
    (void)p;
    return setns(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), 0);
}
static long chroot_call(places_t p)
{
    (void)p;
    return chroot("/tmp");
}
static long name_call(places_t p)
{
    (void)p;
    char name[65];
    return gethostname(name, sizeof name) != 0 ? -1 : sethostname(name, strlen(name));
}
static long root_call(places_t p)
{
    (void)p;
    return setresuid(0, 0, 0);
}
static long personality_call(places_t p)
{
    (void)p;
    return personality(ADDR_NO_RANDOMIZE);
}
static long real_time_call(places_t p)
{
    (void)p;
    const struct sched_param one = {.sched_priority = 1};
    return sched_setscheduler(0, SCHED_FIFO, &one);
}
static long nice_call(places_t p)
{
    (void)p;
    return setpriority(PRIO_PROCESS, 0, -5);
}
static long keyring_call(places_t p)
{
    (void)p;
    return syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3, 1);
}
static long add_key_call(places_t p)
{
    (void)p;
    return syscall(SYS_add_key, "user", "mlxfast-probe", "x", 1, -2);
}
APART(mount_try, mount_call)
APART(open_tree_try, open_tree_call)
APART(fsopen_try, fsopen_call)
APART(unshare_user_try, unshare_user)
APART(unshare_files_try, unshare_files)
APART(setns_try, setns_call)
APART(chroot_try, chroot_call)
APART(name_try, name_call)
APART(root_try, root_call)
APART(personality_try, personality_call)
APART(real_time_try, real_time_call)
APART(nice_try, nice_call)
APART(keyring_try, keyring_call)
APART(add_key_try, add_key_call)

TRY(bpf_call)
{
    UNUSED; /* an array map of one element: type 2, key 4, value 4, entries 1 */
    uint32_t attributes[32] = {2, 4, 4, 1};
    return probe_closed((int)syscall(SYS_bpf, 0, attributes, sizeof attributes));
}
TRY(perf_call)
{
    UNUSED;
    struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE,
                                .size = sizeof a,
                                .config = PERF_COUNT_SW_TASK_CLOCK,
                                .exclude_kernel = 1};
    return probe_closed((int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}
TRY(userfaultfd_call)
{
    UNUSED;
    return probe_closed((int)syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
}
TRY(io_uring_call)
{
    UNUSED;
    uint64_t parameters[15] = {0};
    return probe_closed((int)syscall(SYS_io_uring_setup, 4, parameters));
}
TRY(kernel_log)
{
    UNUSED;
    char text[64];
    return klogctl(3, text, sizeof text) >= 0;
}
TRY(adjust_clock)
{
    UNUSED; /* to what it is */
    struct timex t = {0};
    if (adjtimex(&t) < 0)
        return false;
    t.modes = ADJ_FREQUENCY;
    return adjtimex(&t) >= 0;
}
TRY(shared_memory_id)
{
    UNUSED;
    const int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    if (id < 0)
        return false;
    shmctl(id, IPC_RMID, NULL);
    return true;
}
TRY(message_queue)
{
    UNUSED;
    const int id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (id < 0)
        return false;
    msgctl(id, IPC_RMID, NULL);
    return true;
}

static const struct probe_try tries[] = {
    {"network", "connect to a listener on 127.0.0.1", false, tcp_loopback, 0},
    {"network", "connect to a listener on ::1", false, tcp6_loopback, 0},
    {"network", "connect to an outside address", false, tcp_outside, 0},
    {"network", "ask a name server (UDP)", false, udp_dns, 0},
    {"network", "raw socket", false, raw_socket, 0},
    {"network", "packet socket", false, packet_socket, 0},
    {"network", "netlink socket", false, netlink_socket, 0},
    {"network", "connect to a Unix socket by path", false, unix_path, 0},
    {"network", "connect to an abstract Unix socket", false, unix_abstract, 0},
    {"network", "reconnect a Unix datagram pair", false, unix_datagram_pair, 0},
    {"network", "network interfaces other than lo", false, network_interfaces, 0},
    {"processes", "fork", false, fork_call, 0},
    {"processes", "vfork", false, vfork_call, 0},
    {"processes", "clone of a process", false, clone_call, 0},
    {"processes", "clone of a process in shared memory", false, clone_vm_call, 0},
    {"processes", "clone3", false, clone3_call, 0},
    {"processes", "posix_spawn", false, spawn_call, 0},
    {"processes", "execute /bin/true", false, exec_true_call, 0},
    {"processes", "execute /bin/sh", false, exec_shell_call, 0},
    {"processes", "execute a descriptor", false, exec_descriptor_call, 0},
    {"processes", "execveat with a path", false, exec_path_at_call, 0},
    {"processes", "execveat with a path and AT_EMPTY_PATH", false, exec_path_flag_call, 0},
    {"processes", "execveat that a listener of its own lets pass", false, exec_own_listener_call,
     0},
    {"processes", "raise the limit of open files", false, raise_files_call, 0},
    {"processes", "raise the limit of the stack", false, raise_stack_call, 0},
    {"other processes", "see other processes", false, see_processes, 0},
    {"other processes", "signal the judge", false, signal_judge, 0},
    {"other processes", "trace the first process", false, trace_first, 0},
    {"other processes", "ask to be traced", false, trace_me_call, 0},
    {"other processes", "process_vm_readv", false, read_foreign_memory, 0},
    {"other processes", "pidfd_open", false, pidfd_call, 0},
    {"kernel", "the kernel's log", false, kernel_log, 0},
    {"kernel", "mount", false, mount_try, 0},
    {"kernel", "open_tree (clone of a mount)", false, open_tree_try, 0},
    {"kernel", "fsopen", false, fsopen_try, 0},
    {"kernel", "new user namespace", false, unshare_user_try, 0},
    {"kernel", "unshare", false, unshare_files_try, 0},
    {"kernel", "setns", false, setns_try, 0},
    {"kernel", "chroot", false, chroot_try, 0},
    {"kernel", "sethostname", false, name_try, 0},
    {"kernel", "become root", false, root_try, 0},
    {"kernel", "personality without address randomisation", false, personality_try, 0},
    {"kernel", "bpf", false, bpf_call, 0},
    {"kernel", "perf_event_open", false, perf_call, 0},
    {"kernel", "keyctl", false, keyring_try, 0},
    {"kernel", "add_key", false, add_key_try, 0},
    {"kernel", "userfaultfd", false, userfaultfd_call, 0},
    {"kernel", "io_uring_setup", false, io_uring_call, 0},
    {"kernel", "set a clock", false, adjust_clock, 0},
    {"kernel", "System V shared memory", false, shared_memory_id, 0},
    {"kernel", "System V message queue", false, message_queue, 0},
    {"kernel", "real-time scheduling", false, real_time_try, 0},
    {"kernel", "raise its own priority", false, nice_try, 0},
};

struct probe_tries probe_tries_system(void)
{
    return (struct probe_tries){tries, sizeof tries / sizeof *tries};
}
