/* Each thing that the probe tries. A try that succeeds undoes what it did: the probe can also be
 * run without a sandbox. */
#include "judge/probe.h"

#include "judge/sandbox.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef const char *const *places_t;
#define TRY(name) static bool name(places_t p, const char **detail)
#define UNUSED (void)p, (void)detail

static bool closed(int fd)
{
    if (fd < 0)
        return false;
    close(fd);
    return true;
}

/* Runs f in a process of its own where there can be one, so that what it changes ends with it. */
static bool apart(long (*f)(places_t), places_t p)
{
    const pid_t pid = fork();
    int status;
    if (pid < 0) {
        errno = 0;
        return f(p) >= 0;
    }
    if (pid == 0)
        _exit(f(p) >= 0 ? 0 : errno & 127);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return false;
    errno = WEXITSTATUS(status);
    return WEXITSTATUS(status) == 0;
}

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
    return closed(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
}
TRY(packet_socket)
{
    UNUSED;
    return closed(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)));
}
TRY(netlink_socket)
{
    UNUSED;
    return closed(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
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

#define APART(name, f)                                                                             \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)detail;                                                                              \
        return apart(f, p);                                                                        \
    }
APART(exec_true_call, exec_true)
APART(exec_shell_call, exec_shell)
APART(exec_descriptor_call, exec_descriptor)
APART(exec_path_at_call, exec_path_at)
APART(exec_path_flag_call, exec_path_flag)
APART(raise_files_call, raise_files)

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
static bool can_open_to_write(const char *path)
{
    return closed(open(path, O_WRONLY | O_CLOEXEC));
}
/* An empty answer is no answer: what is hidden inside a folder that is shown reads as empty. */
static bool can_read(const char *path, const char **detail)
{
    char byte;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool done = read(fd, &byte, 1) == 1;
    close(fd);
    if (!done)
        *detail = "empty";
    return done;
}
static bool can_list(const char *path, const char **detail)
{
    int entries = 0;
    DIR *d = opendir(path);
    if (d == NULL)
        return false;
    while (readdir(d) != NULL)
        entries++;
    closedir(d);
    if (entries <= 2)
        *detail = "empty";
    return entries > 2;
}

#define IN_FOLDER(name, path)                                                                      \
    TRY(name)                                                                                      \
    {                                                                                              \
        UNUSED;                                                                                    \
        return can_create(path);                                                                   \
    }
#define WRITE_TO(name, path)                                                                       \
    TRY(name)                                                                                      \
    {                                                                                              \
        UNUSED;                                                                                    \
        return can_open_to_write(path);                                                            \
    }
#define READ_OF(name, path)                                                                        \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)p;                                                                                   \
        return can_read(path, detail);                                                             \
    }
#define LIST_OF(name, path)                                                                        \
    TRY(name)                                                                                      \
    {                                                                                              \
        (void)p;                                                                                   \
        return can_list(path, detail);                                                             \
    }
IN_FOLDER(write_root, "/")
IN_FOLDER(write_usr, "/usr")
IN_FOLDER(write_etc, "/etc")
IN_FOLDER(write_run, "/run")
IN_FOLDER(write_dev, "/dev")
IN_FOLDER(write_shm, "/dev/shm")
IN_FOLDER(write_weights, p[PROBE_WEIGHTS])
IN_FOLDER(write_home, p[PROBE_HOME])
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
LIST_OF(list_home, p[PROBE_HOME])
LIST_OF(list_first_descriptors, "/proc/1/fd")

/* In the sandbox the folder may be a private one of the same name; the outer half looks. */
TRY(leave_file)
{
    (void)detail;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", p[PROBE_FOLDER], PROBE_LEFT_FILE);
    return closed(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
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
    return can_open_to_write(path);
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
    return closed((int)syscall(SYS_pidfd_open, getpid(), 0));
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
    return closed((int)syscall(SYS_bpf, 0, attributes, sizeof attributes));
}
TRY(perf_call)
{
    UNUSED;
    struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE,
                                .size = sizeof a,
                                .config = PERF_COUNT_SW_TASK_CLOCK,
                                .exclude_kernel = 1};
    return closed((int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}
TRY(userfaultfd_call)
{
    UNUSED;
    return closed((int)syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
}
TRY(io_uring_call)
{
    UNUSED;
    uint64_t parameters[15] = {0};
    return closed((int)syscall(SYS_io_uring_setup, 4, parameters));
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

/* ---- limits ---- */

static bool can_map(size_t length, int protection, int flags, int fd)
{
    void *at = mmap(NULL, length, protection, flags, fd, 0);
    if (at == MAP_FAILED)
        return false;
    munmap(at, length);
    return true;
}
static size_t all_memory(void)
{
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}
enum { PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

TRY(memory_beyond)
{
    UNUSED;
    return can_map(all_memory(), PROT_READ | PROT_WRITE, PRIVATE, -1);
}
TRY(memory_later_writable)
{
    UNUSED;
    const size_t length = all_memory();
    void *at = mmap(NULL, length, PROT_READ, PRIVATE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    const bool done = mprotect(at, length, PROT_READ | PROT_WRITE) == 0;
    const int why = errno;
    munmap(at, length);
    errno = why;
    return done;
}
TRY(memory_shared)
{
    UNUSED;
    return can_map(1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
}
TRY(memory_zero_device)
{
    UNUSED;
    const int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool done = can_map(1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    close(fd);
    return done;
}
TRY(memory_stack_kind)
{
    UNUSED;
    return can_map(1 << 20, PROT_READ | PROT_WRITE, PRIVATE | MAP_GROWSDOWN, -1);
}
TRY(memory_file)
{
    UNUSED;
    return closed((int)syscall(SYS_memfd_create, "mlxfast-probe", 1));
}
TRY(files_open)
{
    UNUSED;
    int fds[SANDBOX_NOFILE + 1];
    int count = 0;
    while (count < SANDBOX_NOFILE + 1 &&
           (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        count++;
    const int why = errno;
    for (int i = 0; i < count; i++)
        close(fds[i]);
    errno = why;
    return count == SANDBOX_NOFILE + 1;
}

static int open_scratch(void)
{
    char path[4096];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/.mlxfast-probe-XXXXXX", folder != NULL ? folder : "/tmp");
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}
TRY(file_too_long)
{
    UNUSED;
    const int fd = open_scratch();
    const bool done = fd >= 0 && ftruncate(fd, (off_t)SANDBOX_FILE_BYTES + 1) == 0;
    const int why = errno;
    close(fd);
    errno = why;
    return done;
}
TRY(scratch_too_full)
{
    UNUSED;
    const int one = open_scratch(), two = open_scratch();
    const off_t most = SANDBOX_TMP_BYTES / 4 * 3;
    const bool done = one >= 0 && two >= 0 && posix_fallocate(one, 0, most) == 0 &&
                      (errno = posix_fallocate(two, 0, most)) == 0;
    const int why = errno;
    close(one);
    close(two);
    errno = why;
    return done;
}

struct crowd {
    pthread_mutex_t gate;
};
static void *stand(void *context)
{
    struct crowd *c = context;
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
    return NULL;
}
TRY(threads_too_many)
{
    UNUSED;
    static pthread_t threads[SANDBOX_THREADS + 1];
    struct crowd c = {.gate = PTHREAD_MUTEX_INITIALIZER};
    pthread_attr_t small;
    int count = 0, code = 0;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_mutex_lock(&c.gate);
    while (count < SANDBOX_THREADS + 1 && code == 0) {
        code = pthread_create(&threads[count], &small, stand, &c);
        count += code == 0;
    }
    pthread_mutex_unlock(&c.gate);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_attr_destroy(&small);
    errno = code;
    return count == SANDBOX_THREADS + 1;
}
TRY(core_file)
{
    UNUSED;
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_CORE, &all) == 0;
}
TRY(survive_memory_killer)
{
    UNUSED;
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, "-999", 4) == 4;
    const int why = errno;
    if (done && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "0", 1) != 1)
        *detail = "and cannot undo it";
    close(fd);
    errno = why;
    return done;
}

/* ---- what leaks ---- */

TRY(judge_variables)
{
    UNUSED;
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "MLXFAST_", 8) == 0 && strcmp(*e, "MLXFAST_USE_RUNTIME_WORKER=0") != 0) {
            *detail = "in its environment";
            return true;
        }
    return false;
}
TRY(golden_variable)
{
    UNUSED;
    return getenv("BENCH_GOLDEN_PATH") != NULL;
}
TRY(preload_variable)
{
    UNUSED;
    return getenv("LD_PRELOAD") != NULL;
}
TRY(agent_variable)
{
    UNUSED;
    return getenv("SSH_AUTH_SOCK") != NULL;
}
TRY(inherited_descriptors)
{
    UNUSED;
    for (int fd = 3; fd < SANDBOX_NOFILE + 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0) {
            *detail = "others than 0, 1, 2";
            return true;
        }
    *detail = "only 0, 1, 2";
    return false;
}
TRY(capabilities)
{
    UNUSED;
    char line[256];
    bool some = false;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "CapEff:", 7) == 0 || strncmp(line, "CapPrm:", 7) == 0)
            some = some || strspn(line + 7, "\t 0\n") != strlen(line + 7);
    if (f != NULL)
        fclose(f);
    *detail = some ? "has some" : "none";
    return some;
}

/* ---- what must work ---- */

static void *answer(void *context)
{
    *(int *)context = 42;
    return NULL;
}
TRY(use_threads)
{
    UNUSED;
    pthread_t t[8];
    int values[8] = {0}, sum = 0;
    for (int i = 0; i < 8; i++)
        if (pthread_create(&t[i], NULL, answer, &values[i]) != 0)
            return false;
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], NULL);
        sum += values[i];
    }
    return sum == 8 * 42;
}

static bool weights_right(const unsigned char *data)
{
    for (size_t i = 0; i < PROBE_WEIGHTS_BYTES; i++)
        if (data[i] != (unsigned char)(i * 7 + 1))
            return false;
    return true;
}
static int open_weights(places_t p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", p[PROBE_WEIGHTS], PROBE_WEIGHTS_FILE);
    return open(path, O_RDONLY | O_CLOEXEC);
}
static bool map_weights_with(places_t p, int flags)
{
    const int fd = open_weights(p);
    void *at = mmap(NULL, PROBE_WEIGHTS_BYTES, PROT_READ, flags, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return false;
    madvise(at, PROBE_WEIGHTS_BYTES, MADV_WILLNEED);
    const bool done = weights_right(at);
    munmap(at, PROBE_WEIGHTS_BYTES);
    return done;
}
TRY(map_weights)
{
    (void)detail;
    return map_weights_with(p, MAP_PRIVATE) && map_weights_with(p, MAP_SHARED);
}
TRY(read_weights)
{
    (void)detail;
    static unsigned char data[PROBE_WEIGHTS_BYTES];
    const int fd = open_weights(p);
    ssize_t got = 0, n;
    while ((n = pread(fd, data + got, sizeof data - (size_t)got, got)) > 0)
        got += n;
    close(fd);
    return got == PROBE_WEIGHTS_BYTES && weights_right(data);
}
LIST_OF(list_weights, p[PROBE_WEIGHTS])
TRY(write_scratch)
{
    UNUSED;
    char text[4] = "";
    const int fd = open_scratch();
    const bool done = fd >= 0 && write(fd, "abc", 3) == 3 && pread(fd, text, 3, 0) == 3 &&
                      memcmp(text, "abc", 3) == 0;
    close(fd);
    return done;
}
TRY(random_bytes)
{
    UNUSED;
    char bytes[16];
    return getrandom(bytes, sizeof bytes, 0) == sizeof bytes;
}
READ_OF(random_device, "/dev/urandom")
TRY(read_clock)
{
    UNUSED;
    struct timespec a, b, tick = {0, 1000};
    return clock_gettime(CLOCK_MONOTONIC, &a) == 0 && nanosleep(&tick, NULL) == 0 &&
           clock_gettime(CLOCK_MONOTONIC, &b) == 0 &&
           (b.tv_sec > a.tv_sec || b.tv_nsec > a.tv_nsec);
}
TRY(map_a_gigabyte)
{
    UNUSED;
    return can_map((size_t)1 << 30, PROT_READ | PROT_WRITE, PRIVATE, -1);
}
READ_OF(read_topology, "/sys/devices/system/cpu/online")
READ_OF(read_own_status, "/proc/self/status")
TRY(choose_processors)
{
    UNUSED;
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 &&
           sched_setaffinity(0, sizeof set, &set) == 0;
}
TRY(wait_for_descriptors)
{
    UNUSED;
    int ends[2];
    const uint64_t one = 1;
    const int event = eventfd(0, EFD_CLOEXEC);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    struct pollfd fds[2] = {{ends[0], POLLIN, 0}, {event, POLLIN, 0}};
    const bool done = write(ends[1], "x", 1) == 1 && write(event, &one, sizeof one) == 8 &&
                      poll(fds, 2, 1000) == 2;
    close(ends[0]);
    close(ends[1]);
    close(event);
    return done;
}
TRY(own_pair)
{
    UNUSED;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    close(ends[0]);
    close(ends[1]);
    return true;
}
static volatile sig_atomic_t signalled;
static void on_signal(int number)
{
    signalled = number;
}
TRY(own_signals)
{
    UNUSED;
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    signal(SIGUSR1, SIG_DFL);
    return signalled == SIGUSR1;
}
TRY(own_timer)
{
    UNUSED;
    struct sigevent quiet = {.sigev_notify = SIGEV_NONE};
    timer_t timer;
    return timer_create(CLOCK_MONOTONIC, &quiet, &timer) == 0 && timer_delete(timer) == 0;
}
TRY(passed_variable)
{
    UNUSED;
    const char *text = getenv(PROBE_PASSED_VARIABLE);
    return text != NULL && strcmp(text, "1") == 0;
}
WRITE_TO(use_null, "/dev/null")
TRY(ask_limits)
{
    UNUSED;
    struct sysinfo info;
    struct rusage usage;
    return sysinfo(&info) == 0 && getrusage(RUSAGE_SELF, &usage) == 0 &&
           sysconf(_SC_NPROCESSORS_ONLN) > 0;
}

static const struct probe_try tries[] = {
    /* First: what later tries leave open must not count. */
    {"leaks", "the judge's MLXFAST_ variables", false, judge_variables, 0},
    {"leaks", "BENCH_GOLDEN_PATH", false, golden_variable, 0},
    {"leaks", "LD_PRELOAD", false, preload_variable, 0},
    {"leaks", "SSH_AUTH_SOCK", false, agent_variable, 0},
    {"leaks", "descriptors of the judge", false, inherited_descriptors, 0},
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
    {"processes", "raise the limit of open files", false, raise_files_call, 0},
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
    {"writing", "create a file in the home folder", false, write_home, 0},
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
    {"reading", "the kernel's log", false, kernel_log, 0},
    {"other processes", "see other processes", false, see_processes, 0},
    {"other processes", "signal the judge", false, signal_judge, 0},
    {"other processes", "trace the first process", false, trace_first, 0},
    {"other processes", "write the first process's memory", false, write_first_memory, 0},
    {"other processes", "/proc/1/environ", false, read_first_environ, 0},
    {"other processes", "/proc/1/fd", false, list_first_descriptors, 0},
    {"other processes", "ask to be traced", false, trace_me_call, 0},
    {"other processes", "process_vm_readv", false, read_foreign_memory, 0},
    {"other processes", "pidfd_open", false, pidfd_call, 0},
    {"kernel", "mount", false, mount_try, 0},
    {"kernel", "open_tree (clone of a mount)", false, open_tree_try, 0},
    {"kernel", "fsopen", false, fsopen_try, 0},
    {"kernel", "new user namespace", false, unshare_user_try, 0},
    {"kernel", "unshare", false, unshare_files_try, 0},
    {"kernel", "setns", false, setns_try, 0},
    {"kernel", "chroot", false, chroot_try, 0},
    {"kernel", "sethostname", false, name_try, 0},
    {"kernel", "become root", false, root_try, 0},
    {"kernel", "capabilities", false, capabilities, 0},
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
    {"kernel", "evade the out-of-memory killer", false, survive_memory_killer, 0},
    {"limits", "map more private memory than the machine has", false, memory_beyond, 0},
    {"limits", "make such a mapping writable later", false, memory_later_writable, 0},
    {"limits", "shared anonymous memory", false, memory_shared, SANDBOX_GPU},
    {"limits", "shared memory of /dev/zero", false, memory_zero_device, 0},
    {"limits", "a mapping counted as stack", false, memory_stack_kind, 0},
    {"limits", "memfd_create", false, memory_file, SANDBOX_GPU},
    {"limits", "more open files than the limit", false, files_open, 0},
    {"limits", "a file longer than the limit", false, file_too_long, 0},
    {"limits", "fill more than the scratch folder's size", false, scratch_too_full, 0},
    {"limits", "more threads than the limit", false, threads_too_many, 0},
    {"limits", "core files", false, core_file, 0},
    {"engines need", "threads", true, use_threads, 0},
    {"engines need", "map the weights", true, map_weights, 0},
    {"engines need", "read the weights", true, read_weights, 0},
    {"engines need", "list the weights folder", true, list_weights, 0},
    {"engines need", "write to TMPDIR", true, write_scratch, 0},
    {"engines need", "getrandom", true, random_bytes, 0},
    {"engines need", "/dev/urandom", true, random_device, 0},
    {"engines need", "/dev/null", true, use_null, 0},
    {"engines need", "clocks and sleep", true, read_clock, 0},
    {"engines need", "map 1 GiB of private memory", true, map_a_gigabyte, 0},
    {"engines need", "the processors' topology", true, read_topology, 0},
    {"engines need", "/proc/self/status", true, read_own_status, 0},
    {"engines need", "affinity", true, choose_processors, 0},
    {"engines need", "pipes, events, poll", true, wait_for_descriptors, 0},
    {"engines need", "a socket pair", true, own_pair, 0},
    {"engines need", "signals of its own", true, own_signals, 0},
    {"engines need", "timers", true, own_timer, 0},
    {"engines need", "sysinfo, rusage", true, ask_limits, 0},
    {"engines need", "BENCH_WORKER_ variables", true, passed_variable, 0},
};

const struct probe_try *probe_tries(size_t *count)
{
    *count = sizeof tries / sizeof *tries;
    return tries;
}

int probe_role_main(int argc, char **argv)
{
    if (argc != PROBE_PLACES) {
        fprintf(stderr, "probe: this is the inner half of probe-sandbox; benchd starts it\n");
        return 2;
    }
    signal(SIGXFSZ, SIG_IGN); /* the error is wanted, not the end */
    signal(SIGPIPE, SIG_DFL);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const char *detail = NULL;
        errno = 0;
        const bool done = tries[i].run((places_t)argv, &detail);
        if (detail == NULL)
            detail = done || errno == 0 ? "-" : strerrorname_np(errno);
        printf("%zu %s %s\n", i, done ? "done" : "refused", detail != NULL ? detail : "-");
        fflush(stdout); /* one that ends the process leaves what came before */
    }
    return 0;
}
