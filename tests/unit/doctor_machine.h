/* A made-up machine for the tests of mlxfast doctor: a folder with proc/, sys/, bin/ and a
 * repository, programs and measurements that say what the test wants, a clock that they move. */
#ifndef MLXFAST_TESTS_DOCTOR_MACHINE_H
#define MLXFAST_TESTS_DOCTOR_MACHINE_H

#include "arena/doctor/doctor.h"
#include "arena/doctor/examine.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct answer {
    const char *program, *argument; /* of the call: the last part of argv[0], argv[1] */
    enum asked how;
    const char *out, *complaint;
};

struct made {
    struct machine m;
    struct findings f;
    struct patient p;
    struct arena arena;
    char root[64];
    struct {
        const char *name, *value;
    } variables[16];
    struct answer answers[16];
    double clock, ask_takes;
    int asked; /* programs so far */
    /* When the clock is asked to pass, what /proc then says. */
    void (*pass)(struct made *t);
    bool interrupted, socket_answers;
    uint64_t space;
    struct memory_rate memory;
    struct disk_rate disk;
    struct weights_report weights;
    struct error fault; /* name not empty: of whatever is measured */
};

static inline const char *in_root(struct made *t, const char *path)
{
    return arena_printf(&t->arena, "%s%s", t->root, path);
}

static inline void put(struct made *t, const char *path, const char *text)
{
    struct error err;
    const char *whole = in_root(t, path);
    char *folder = arena_strndup(&t->arena, whole, (size_t)(strrchr(whole, '/') - whole));
    assert_true(file_make_directories(folder, &err));
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static inline void put_program(struct made *t, const char *path)
{
    put(t, path, "#!/bin/false\n");
    assert_int_equal(chmod(in_root(t, path), 0755), 0);
}

static inline void put_time(struct made *t, const char *path, long seconds)
{
    const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, in_root(t, path), times, 0), 0);
}

static inline void set(struct made *t, const char *name, const char *value)
{
    size_t i = 0;
    while (t->variables[i].name && strcmp(t->variables[i].name, name) != 0)
        i++;
    assert_true(i < 15);
    t->variables[i].name = name;
    t->variables[i].value = value;
}

static inline void say(struct made *t, const char *program, const char *argument, enum asked how,
                       const char *out, const char *complaint)
{
    size_t i = 0;
    while (t->answers[i].program && (strcmp(t->answers[i].program, program) != 0 ||
                                     strcmp(t->answers[i].argument, argument) != 0))
        i++;
    assert_true(i < 15);
    t->answers[i] = (struct answer){program, argument, how, out, complaint};
}

static inline double now(void *context)
{
    return ((struct made *)context)->clock;
}

static inline bool sleep_for(void *context, double seconds)
{
    struct made *t = context;
    t->clock += seconds;
    if (t->pass)
        t->pass(t);
    return !t->interrupted;
}

static inline const char *variable(void *context, const char *name)
{
    const struct made *t = context;
    for (size_t i = 0; t->variables[i].name; i++)
        if (strcmp(t->variables[i].name, name) == 0)
            return t->variables[i].value;
    return NULL;
}

static inline enum asked ask(void *context, const char *const *argv, double seconds,
                             struct buffer *out, struct buffer *complaint)
{
    struct made *t = context;
    assert_true(seconds > 0);
    t->asked++;
    t->clock += t->ask_takes;
    buffer_clear(out);
    buffer_clear(complaint);
    buffer_text(out, "");
    buffer_text(complaint, "");
    if (t->interrupted)
        return ASKED_INTERRUPTED;
    for (size_t i = 0; t->answers[i].program; i++) {
        const struct answer *a = &t->answers[i];
        if (strcmp(a->program, path_basename(argv[0])) != 0 || strcmp(a->argument, argv[1]) != 0)
            continue;
        buffer_text(out, a->out ? a->out : "");
        buffer_text(complaint, a->complaint ? a->complaint : "");
        return a->how;
    }
    return ASKED_IN_VAIN;
}

static inline bool answers(void *context, const char *socket)
{
    (void)socket;
    return ((struct made *)context)->socket_answers;
}

static inline bool failed(const struct made *t, struct error *err)
{
    *err = t->fault;
    return !t->fault.name[0];
}

static inline bool space(void *context, const char *folder, uint64_t *free_bytes, struct error *err)
{
    assert_true(file_is_directory(folder));
    *free_bytes = ((struct made *)context)->space;
    return failed(context, err);
}

static inline bool read_memory(void *context, double seconds, struct memory_rate *out,
                               struct error *err)
{
    (void)seconds;
    *out = ((struct made *)context)->memory;
    return failed(context, err);
}

static inline bool read_disk(void *context, struct arena *a, const char *folder, double seconds,
                             struct disk_rate *out, struct error *err)
{
    (void)a, (void)seconds;
    assert_true(file_is_directory(folder));
    *out = ((struct made *)context)->disk;
    return failed(context, err);
}

static inline bool preflight(void *context, struct arena *a, const char *weights, const char *track,
                             struct weights_report *out, struct error *err)
{
    (void)a;
    assert_non_null(track);
    assert_true(file_is_directory(weights));
    *out = ((struct made *)context)->weights;
    return failed(context, err);
}

static inline int make(void **state)
{
    struct made *t = calloc(1, sizeof *t);
    snprintf(t->root, sizeof t->root, "/tmp/test-doctor-XXXXXX");
    if (!t || !mkdtemp(t->root))
        return -1;
    t->clock = 100;
    t->space = (uint64_t)100 << 30;
    t->memory = (struct memory_rate){40e9, 256 << 20, 8};
    t->disk = (struct disk_rate){2e9, 512 << 20, "model.safetensors"};
    t->m = (struct machine){.root = t->root,
                            .repository = in_root(t, "/repository"),
                            .build = in_root(t, "/repository/build"),
                            .temporary = in_root(t, "/tmp"),
                            .self = 100,
                            .user = geteuid(),
                            .ticks = 100,
                            .page_bytes = 4096,
                            .engine = {.kernels = "avx2",
                                       .best_kernels = "avx2",
                                       .processors = 4,
                                       .processors_in_mask = 4,
                                       .memory = (uint64_t)20 << 30,
                                       .memory_source = "MemAvailable of /proc/meminfo",
                                       .limit_data = UINT64_MAX,
                                       .limit_addresses = UINT64_MAX,
                                       .lockable = 8 << 20},
                            .context = t,
                            .now = now,
                            .sleep = sleep_for,
                            .variable = variable,
                            .ask = ask,
                            .answers = answers,
                            .space = space,
                            .read_memory = read_memory,
                            .read_disk = read_disk,
                            .preflight = preflight};
    t->p = (struct patient){
        .m = &t->m, .f = &t->f, .a = &t->f.arena, .began = t->clock, .weights = t->root};
    put(t, "/proc/meminfo", "MemTotal:       25165824 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
    put(t, "/tmp/unrelated", "");
    set(t, "PATH", arena_printf(&t->arena, "relative::%s/bin", t->root));
    *state = t;
    return 0;
}

static inline int remove_one(const char *path, const struct stat *s, int type, struct FTW *w)
{
    (void)s, (void)type, (void)w;
    return remove(path);
}

static inline int unmake(void **state)
{
    struct made *t = *state;
    nftw(t->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    finding_list_free(&t->f);
    arena_free(&t->arena);
    free(t);
    return 0;
}

/* The one finding of that id, and nothing of what came before. NULL: no fix. */
static inline void expect(struct made *t, const char *id, enum finding_state state,
                          const char *what, const char *fix)
{
    const struct finding *f = finding_find(&t->f, id);
    if (!f)
        fail_msg("no finding %s", id);
    if (f->state != state || !strstr(f->what, what))
        fail_msg("%s: %s %s, not %s %s", id, finding_state_name(f->state), f->what,
                 finding_state_name(state), what);
    if (fix ? !f->fix || !strstr(f->fix, fix) : f->fix != NULL)
        fail_msg("%s: to mend: %s, not %s", id, f->fix ? f->fix : "(none)", fix ? fix : "(none)");
    /* the whole list at once: what a function adds is looked at after each call */
    t->f.count = 0;
    memset(t->f.of, 0, sizeof t->f.of);
}

/* As expect, the others of the same look left alone. */
static inline void expect_of(struct made *t, const char *id, enum finding_state state,
                             const char *what, const char *fix)
{
    const size_t count = t->f.count;
    expect(t, id, state, what, fix);
    t->f.count = count;
}

#endif
