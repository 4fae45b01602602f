/* This machine: see system.h. */
#include "judge/quiet/system.h"

#include "base/arena.h"
#include "base/child.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { FILE_MAX = 256 * 1024 }; /* /proc/stat and /proc/cpuinfo of a large machine */

struct here {
    struct quiet_system system;
    struct nvml *nvml;
    bool nvml_tried;
};

static double here_now(void *context)
{
    (void)context;
    return (double)clock_now_ns() * 1e-9;
}

static double here_process_seconds(void *context, pid_t pid)
{
    (void)context;
    clockid_t id;
    struct timespec t;
    if (clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &t) != 0)
        return NAN;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* In slices: a signal between the look at the flag and the sleep is seen a slice later. */
static bool here_sleep(void *context, double seconds, struct error *err)
{
    static const double SLICE = 0.2;
    const double until = here_now(context) + seconds;
    for (;;) {
        if (interrupt_requested())
            return error_set(err, "Interrupted", "stopped by a signal while waiting for quiet");
        double left = until - here_now(context);
        if (left <= 0)
            return true;
        left = left < SLICE ? left : SLICE;
        const struct timespec t = {0, (long)(left * 1e9)};
        nanosleep(&t, NULL);
    }
}

static const char *here_variable(void *context, const char *name)
{
    (void)context;
    return getenv(name);
}

static bool here_command(void *context, const char *script, double seconds, size_t limit,
                         struct buffer *out)
{
    (void)context;
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    const struct child_options options = {.argv = argv, .envp = (const char *const *)environ};
    struct child *c = NULL;
    buffer_clear(out);
    buffer_text(out, "");
    if (!child_start(&options, &c, NULL))
        return false;
    const int64_t deadline = clock_now_ns() + (int64_t)(seconds * 1e9);
    child_close_input(c);
    const bool whole = child_read_rest(c, limit, deadline, out, NULL) == CHILD_READ_EOF;
    child_end(c, whole ? 100 : 0);
    const bool ok = whole && child_exited_normally(c);
    child_free(c);
    return ok;
}

static bool here_nvml(void *context, struct gpu_reading *out)
{
    struct here *h = context;
    if (!h->nvml_tried) {
        h->nvml_tried = true;
        h->nvml = nvml_open();
    }
    return h->nvml && nvml_read(h->nvml, out);
}

struct quiet_system *quiet_system_open(void)
{
    struct here *h = memory_alloc(sizeof *h);
    h->system = (struct quiet_system){
        .root = "",
        .self = getpid(),
        .ticks = (double)sysconf(_SC_CLK_TCK),
        .sample_seconds = 0.1,
        .say = stderr,
        .context = h,
        .now = here_now,
        .process_seconds = here_process_seconds,
        .sleep = here_sleep,
        .variable = here_variable,
        .command = here_command,
        .nvml = here_nvml,
    };
    return &h->system;
}

void quiet_system_close(struct quiet_system *s)
{
    if (!s)
        return;
    struct here *h = s->context;
    nvml_close(h->nvml);
    free(h);
}

bool quiet_system_read(const struct quiet_system *s, const char *path, struct buffer *out)
{
    struct buffer whole = {0};
    buffer_printf(&whole, "%s%s", s->root, path);
    const int fd = open(whole.data, O_RDONLY | O_CLOEXEC);
    buffer_free(&whole);
    buffer_clear(out);
    buffer_text(out, "");
    if (fd < 0)
        return false;
    ssize_t n = 1;
    while (n > 0 && out->length < FILE_MAX) {
        char block[8192];
        n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            buffer_append(out, block, (size_t)n);
    }
    close(fd);
    return n == 0 && out->length > 0;
}
