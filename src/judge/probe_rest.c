/* Tries at limits and at what leaks; what must work. */
#include "judge/probe_tries.h"

#include "judge/sandbox.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/wait.h>

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
    return probe_closed((int)syscall(SYS_memfd_create, "mlxfast-probe", 1));
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
    {"leaks", "capabilities", false, capabilities, 0},
    {"leaks", "the judge's MLXFAST_ variables", false, judge_variables, 0},
    {"leaks", "BENCH_GOLDEN_PATH", false, golden_variable, 0},
    {"leaks", "LD_PRELOAD", false, preload_variable, 0},
    {"leaks", "SSH_AUTH_SOCK", false, agent_variable, 0},
    {"leaks", "descriptors of the judge", false, inherited_descriptors, 0},
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

struct probe_tries probe_tries_rest(void)
{
    return (struct probe_tries){tries, sizeof tries / sizeof *tries};
}
