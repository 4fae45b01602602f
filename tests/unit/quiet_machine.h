/* A made-up machine for the tests of judge/quiet: a folder with proc/ and sys/, a clock that only
 * sleeping moves, a GPU and a command that say what the test wants. */
#ifndef MLXFAST_TESTS_QUIET_MACHINE_H
#define MLXFAST_TESTS_QUIET_MACHINE_H

#include "base/file.h"
#include "judge/quiet/inside.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct machine {
    struct quiet_system system;
    struct arena arena;
    char root[64];
    double clock;
    /* Called with the seconds of every sleep, after the clock has moved. */
    void (*on_sleep)(struct machine *m, double seconds);
    int sleeps;
    bool interrupted;           /* the next sleep says so */
    struct gpu_reading gpu;     /* count 0: no NVML */
    const char *gate, *command; /* MLXFAST_LOCAL_COOL_GATE, MLXFAST_GPU_TEMP_CMD */
    const char *output;         /* of any command; NULL: it fails */
    const char *query;          /* of the last command; the machine's arena */
    /* Processor time so far, in seconds: of others, and of us. */
    double others, own;
    double load, idle;
    bool kernel_load; /* the load follows what runs, as the kernel's does */
    /* What runs at every sleep: processors' worth. */
    double others_rate, own_rate;
    /* Of the engine's two threads together so far, in seconds; a process that has come since. */
    double waited, newcomer;
    double stolen;  /* by the host */
    bool no_clocks; /* the kernel has none of processes */
    int step;       /* for a test's own use */
};

static inline void machine_write(struct machine *m, const char *path, const char *text)
{
    struct error err;
    char *whole = arena_printf(&m->arena, "%s%s", m->root, path);
    char *folder = arena_strndup(&m->arena, whole, (size_t)(strrchr(whole, '/') - whole));
    assert_true(file_make_directories(folder, &err));
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* /proc as the numbers above have it: this program is 100 below 1, its engine 101, others 7. */
static inline void machine_tell(struct machine *m)
{
    const long long own = llround(m->own * 100), others = llround(m->others * 100);
    machine_write(m, "/proc/loadavg", arena_printf(&m->arena, "%.2f 0.5 0.5 1/100 7\n", m->load));
    machine_write(m, "/proc/stat",
                  arena_printf(&m->arena,
                               "cpu  %lld 0 0 %lld 0 0 0 %lld 0 0\ncpu0 %lld 0 0 %lld 0 0 0 0 0 0\n"
                               "intr 1 2\n",
                               own + others, llround(m->idle * 100), llround(m->stolen * 100),
                               own + others, llround(m->idle * 100)));
    machine_write(m, "/proc/1/stat", "1 (init) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0\n");
    machine_write(
        m, "/proc/7/stat",
        arena_printf(&m->arena, "7 (a) b) R 1 7 7 0 -1 0 0 0 0 0 %lld 0 0 0 20 0\n", others));
    machine_write(m, "/proc/100/stat", "100 (benchd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0\n");
    machine_write(
        m, "/proc/101/stat",
        arena_printf(&m->arena, "101 (engine) R 100 1 1 0 -1 0 0 0 0 0 %lld 0 0 0 20 0\n", own));
    machine_write(m, "/proc/101/task/101/schedstat",
                  arena_printf(&m->arena, "%lld %lld 5\n", llround(m->own * 1e9),
                               llround(m->waited * 0.25e9)));
    machine_write(m, "/proc/101/task/102/schedstat",
                  arena_printf(&m->arena, "%lld %lld 5\n", llround(m->own * 1e9),
                               llround(m->waited * 0.75e9)));
    if (m->newcomer > 0)
        machine_write(m, "/proc/9/stat", "9 (cron) R 1 9 9 0 -1 0 0 0 0 0 0 0 0 0 20 0\n");
}

/* Time passes: processors work, the clock moves. */
static inline void machine_pass(struct machine *m, double seconds)
{
    m->clock += seconds;
    m->others += m->others_rate * seconds;
    m->own += m->own_rate * seconds;
    m->idle += seconds;
    if (m->kernel_load) {
        const double kept = exp(-seconds / 60);
        m->load = m->load * kept + (m->others_rate + m->own_rate) * (1 - kept);
    }
    machine_tell(m);
}

static inline double machine_now(void *context)
{
    return ((struct machine *)context)->clock;
}

static inline double machine_process_seconds(void *context, pid_t pid)
{
    const struct machine *m = context;
    return m->no_clocks ? NAN
           : pid == 7   ? m->others
           : pid == 9   ? m->newcomer
           : pid == 1   ? 0
                        : NAN; /* 100, 101: nobody asks */
}

static inline bool machine_sleep(void *context, double seconds, struct error *err)
{
    struct machine *m = context;
    assert_true(seconds >= 0);
    m->sleeps++;
    if (m->interrupted)
        return error_set(err, "Interrupted", "stopped");
    machine_pass(m, seconds);
    if (m->on_sleep)
        m->on_sleep(m, seconds);
    return true;
}

static inline const char *machine_variable(void *context, const char *name)
{
    const struct machine *m = context;
    return strcmp(name, "MLXFAST_LOCAL_COOL_GATE") == 0 ? m->gate
           : strcmp(name, "MLXFAST_GPU_TEMP_CMD") == 0  ? m->command
                                                        : NULL;
}

static inline bool machine_command(void *context, const char *script, double seconds, size_t limit,
                                   struct buffer *out)
{
    struct machine *m = context;
    assert_true(seconds > 0 && limit > 0);
    m->query = arena_strdup(&m->arena, script);
    buffer_clear(out);
    buffer_text(out, m->output ? m->output : "");
    return m->output != NULL;
}

static inline bool machine_nvml(void *context, struct gpu_reading *out)
{
    *out = ((const struct machine *)context)->gpu;
    return out->count > 0;
}

static inline int machine_set_up(void **state)
{
    struct machine *m = calloc(1, sizeof *m);
    snprintf(m->root, sizeof m->root, "/tmp/mlxfast-quiet-XXXXXX");
    if (!mkdtemp(m->root))
        return -1;
    m->system = (struct quiet_system){.root = m->root,
                                      .self = 100,
                                      .ticks = 100,
                                      .context = m,
                                      .now = machine_now,
                                      .process_seconds = machine_process_seconds,
                                      .sleep = machine_sleep,
                                      .variable = machine_variable,
                                      .command = machine_command,
                                      .nvml = machine_nvml};
    m->clock = 1000;
    machine_tell(m);
    *state = m;
    return 0;
}

static inline int machine_remove(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s;
    (void)kind;
    (void)at;
    return remove(path);
}

static inline int machine_tear_down(void **state)
{
    struct machine *m = *state;
    nftw(m->root, machine_remove, 8, FTW_DEPTH | FTW_PHYS);
    arena_free(&m->arena);
    free(m);
    return 0;
}

#endif
