/* See neighbours.h. */
#include "judge/quiet/neighbours.h"

#include "base/arena.h"
#include "base/number.h"
#include "judge/quiet/processor.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>

/* A count of one thread or process at the start of the phase. */
struct mark {
    pid_t id;
    double seconds; /* NAN: not known */
};
struct marks {
    struct mark *all;
    size_t count, capacity;
};

struct neighbours {
    const struct quiet_system *system;
    struct processes processes; /* at the start */
    struct marks worked;        /* of others, by process */
    struct marks waited;        /* of our own, by thread */
    double began;
};

static void add_mark(struct marks *m, pid_t id, double seconds)
{
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 256;
        m->all = memory_realloc(m->all, m->capacity * sizeof *m->all);
    }
    m->all[m->count++] = (struct mark){id, seconds};
}

/* An id that was given anew counts from its beginning. */
static double since(double before, double now)
{
    return now >= before ? now - before : now;
}

/* 0 for one that was not there yet. */
static double mark_of(const struct marks *m, pid_t id)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->all[i].id == id)
            return m->all[i].seconds;
    return 0;
}

struct neighbours *neighbours_open(const struct quiet_system *s)
{
    struct neighbours *n = memory_alloc(sizeof *n);
    n->system = s;
    return n;
}

void neighbours_close(struct neighbours *n)
{
    if (!n)
        return;
    free(n->processes.all);
    free(n->worked.all);
    free(n->waited.all);
    free(n);
}

/* Every thread of the process. */
static void add_waits(const struct quiet_system *s, pid_t pid, struct marks *out)
{
    struct buffer path = {0}, text = {0};
    buffer_printf(&path, "%s/proc/%d/task", s->root, (int)pid);
    DIR *folder = opendir(path.data);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        int64_t thread;
        double seconds;
        if (!number_int64(entry->d_name, 1, INT32_MAX, &thread))
            continue;
        buffer_clear(&path);
        buffer_printf(&path, "/proc/%d/task/%d/schedstat", (int)pid, (int)thread);
        if (quiet_system_read(s, path.data, &text) && parse_run_delay(text.data, &seconds))
            add_mark(out, (pid_t)thread, seconds);
    }
    if (folder)
        closedir(folder);
    buffer_free(&path);
    buffer_free(&text);
}

/* Our own processes' threads; this program waits for the engine, and does not count. */
static void add_own_waits(const struct neighbours *n, struct marks *out)
{
    const struct processes *p = &n->processes;
    out->count = 0;
    for (size_t i = 0; i < p->count; i++)
        if (p->all[i].ours && p->all[i].pid != n->system->self)
            add_waits(n->system, p->all[i].pid, out);
}

static double seconds_of(const struct neighbours *n, pid_t pid)
{
    return n->system->process_seconds ? n->system->process_seconds(n->system->context, pid) : NAN;
}

void neighbours_begin(struct neighbours *n)
{
    free(n->processes.all);
    n->processes = processes_list(n->system);
    add_own_waits(n, &n->waited);
    n->worked.count = 0;
    for (size_t i = 0; i < n->processes.count; i++)
        if (!n->processes.all[i].ours) {
            const pid_t pid = n->processes.all[i].pid;
            add_mark(&n->worked, pid, seconds_of(n, pid));
        }
    n->began = n->system->now(n->system->context);
}

static bool was_there(const struct processes *p, pid_t pid)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->all[i].pid == pid)
            return true;
    return false;
}

/* What those did that have come since. */
static double newcomers(const struct neighbours *n)
{
    struct processes now = processes_list(n->system);
    double sum = 0;
    for (size_t i = 0; i < now.count; i++) {
        const pid_t pid = now.all[i].pid;
        const double seconds =
            now.all[i].ours || was_there(&n->processes, pid) ? NAN : seconds_of(n, pid);
        if (!isnan(seconds))
            sum += seconds;
    }
    free(now.all);
    return sum;
}

void neighbours_end(struct neighbours *n, struct neighbours_seen *out)
{
    struct marks waited = {0};
    double others = 0, delay = 0;
    bool any = false;
    const double seconds = n->system->now(n->system->context) - n->began;
    /* First what moves: the clocks of those that were there. */
    for (size_t i = 0; i < n->worked.count; i++) {
        const struct mark *m = &n->worked.all[i];
        const double now = seconds_of(n, m->id);
        if (isnan(now) || isnan(m->seconds)) /* gone, or never to be read */
            continue;
        others += since(m->seconds, now);
        any = true;
    }
    add_own_waits(n, &waited);
    for (size_t i = 0; i < waited.count; i++)
        delay += since(mark_of(&n->waited, waited.all[i].id), waited.all[i].seconds);
    *out = (struct neighbours_seen){seconds, NAN, NAN};
    if (seconds > 0 && any)
        out->others = (others + newcomers(n)) / seconds;
    if (seconds > 0 && waited.count > 0)
        out->run_delay = delay / seconds;
    free(waited.all);
}
