/* What runs of before left behind: engines whose judge is gone, residents, their sockets and
 * folders. Named, never touched. */
#include "arena/doctor/examine.h"

#include "base/file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- engines ---- */

static bool is_named(const struct process *q, const char *name)
{
    return strcmp(q->name, name) == 0 || strcmp(q->program, name) == 0;
}

/* Its parent is gone: it was handed to another one, which stands in another session. The rule of
 * benchmark.sh's own look (tools/local_run/guard.py); bwrap may stand between judge and engine. */
static bool is_left_behind(const struct process *q, const struct process_table *t)
{
    const struct process *parent = process_find(t, q->parent);
    for (int steps = 0; parent && is_named(parent, "bwrap") && steps < 8; steps++) {
        q = parent;
        parent = process_find(t, q->parent);
    }
    if (!parent || parent->pid == 1)
        return true;
    return q->session != q->pid && q->session != parent->session;
}

/* "kill 12 13", by root where one of them is somebody else's. */
static const char *kill_command(const struct patient *p, const struct process *const *all,
                                size_t count)
{
    struct buffer text = {0};
    bool foreign = false;
    for (size_t i = 0; i < count; i++)
        foreign |= p->m->user != 0 && all[i]->user != p->m->user;
    buffer_text(&text, foreign ? "sudo kill" : "kill");
    for (size_t i = 0; i < count; i++)
        buffer_printf(&text, " %d", (int)all[i]->pid);
    const char *command = arena_strdup(p->a, text.data);
    buffer_free(&text);
    return command;
}

void examine_orphans(const struct patient *p, const struct process_table *t)
{
    const struct process **left = arena_array(p->a, t->count + 1, sizeof *left);
    size_t count = 0, busy = 0;
    uint64_t held = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct process *q = &t->items[i];
        if (!is_named(q, "bench-worker") || q->state == 'Z' || q->state == 'X')
            continue;
        if (is_left_behind(q, t)) {
            left[count++] = q;
            held += q->resident;
        } else {
            busy++;
        }
    }
    if (count > 0)
        finding_add(
            p->f, "orphans", FINDING_FIX, kill_command(p, left, count),
            "%zu bench-worker left behind by a run that is gone (first: pid %d): %s of memory",
            count, (int)left[0]->pid, bytes_text(p->a, (double)held));
    else if (busy > 0)
        finding_add(p->f, "orphans", FINDING_WARN, "wait until it ends",
                    "no engine is left behind, but %zu bench-worker of somebody's run at work",
                    busy);
    else
        finding_add(p->f, "orphans", FINDING_OK, NULL, "no bench-worker runs");
}

/* ---- residents ---- */

static const char *resident_variable(const struct patient *p)
{
    static const char *const names[] = {"BENCH_WORKER_RESIDENT_SOCKET", "DS4_RESIDENT_SOCKET"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (machine_variable(p->m, names[i]))
            return names[i];
    return NULL;
}

struct traces {
    const char *silent, *folder, *answering; /* the first of each */
    size_t silent_count, folder_count, answering_count;
    struct buffer remove; /* " PATH PATH.pid ..." */
};

static bool exists(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

static void note_socket(const struct patient *p, const char *path, struct traces *t)
{
    const char *pid = arena_printf(p->a, "%s.pid", path),
               *ready = arena_printf(p->a, "%s.ready", path);
    if (!exists(pid) && !exists(ready))
        return; /* somebody else's: a resident's has one of them beside it */
    if (p->m->answers(p->m->context, path)) {
        if (t->answering_count++ == 0)
            t->answering = path;
        return;
    }
    if (t->silent_count++ == 0)
        t->silent = path;
    buffer_printf(&t->remove, " %s", shell_word(p->a, path));
    if (exists(pid))
        buffer_printf(&t->remove, " %s", shell_word(p->a, pid));
    if (exists(ready))
        buffer_printf(&t->remove, " %s", shell_word(p->a, ready));
}

/* Sockets, and the folders that legs and probes make and remove (ranked-run.md). */
static void search(const struct patient *p, const char *folder, struct traces *t)
{
    struct machine plain = *p->m;
    const char **names;
    plain.root = ""; /* not of /proc or /sys: where this program puts temporary files */
    const size_t count = machine_list(&plain, p->a, folder, 16384, &names);
    for (size_t i = 0; i < count; i++) {
        struct stat s;
        const char *path = path_join(p->a, folder, names[i]);
        if (lstat(path, &s) != 0 || s.st_uid != p->m->user)
            continue;
        if (S_ISSOCK(s.st_mode)) {
            note_socket(p, path, t);
        } else if (S_ISDIR(s.st_mode) && (text_starts(names[i], "mlxfast-leg-") ||
                                          text_starts(names[i], "mlxfast-probe-"))) {
            if (t->folder_count++ == 0)
                t->folder = path;
            buffer_printf(&t->remove, " %s", shell_word(p->a, path));
        }
    }
}

/* What a resident's .pid says, when that process is there. 0: not known. */
static pid_t resident_pid(const struct patient *p, const char *socket,
                          const struct process_table *t)
{
    struct machine plain = *p->m;
    uint64_t pid;
    plain.root = "";
    if (!machine_number(&plain, arena_printf(p->a, "%s.pid", socket), &pid) || pid == 0 ||
        pid > INT32_MAX || !process_find(t, (pid_t)pid))
        return 0;
    return (pid_t)pid;
}

void examine_residents(const struct patient *p, const struct process_table *t)
{
    const char *variable = resident_variable(p);
    struct traces found = {0};
    bool judge = false;
    for (size_t i = 0; i < t->count; i++)
        judge |= is_named(&t->items[i], "benchd") && t->items[i].state != 'Z';
    if (variable) {
        finding_add(p->f, "residents", FINDING_FIX, arena_printf(p->a, "unset %s", variable),
                    "%s is set: bench-worker refuses it, and a ranked run too "
                    "(LEG-SERVE-INHERITED-SOCKET)",
                    variable);
        return;
    }
    if (judge) {
        finding_add(p->f, "residents", FINDING_OK, NULL,
                    "a benchd is at work: what it uses is not looked at");
        return;
    }
    search(p, p->m->temporary, &found);
    if (p->m->repository)
        search(p, path_join(p->a, p->m->repository, "out"), &found);
    if (found.answering_count > 0) {
        const pid_t pid = resident_pid(p, found.answering, t);
        finding_add(p->f, "residents", FINDING_FIX,
                    pid ? arena_printf(p->a, "kill %d", (int)pid)
                        : arena_printf(p->a,
                                       "tools/resident-up.sh --stop --socket %s, of the tree that "
                                       "started it",
                                       shell_word(p->a, found.answering)),
                    "a resident of a run that is gone answers at %s, and holds its model",
                    found.answering);
    } else if (found.remove.length > 0) {
        finding_add(
            p->f, "residents", FINDING_WARN, arena_printf(p->a, "rm -r%s", found.remove.data),
            "left behind: %zu sockets that nobody answers, %zu folders of legs and probes "
            "(first: %s)",
            found.silent_count, found.folder_count, found.silent ? found.silent : found.folder);
    } else {
        finding_add(p->f, "residents", FINDING_OK, NULL, "nothing of a resident is left in %s",
                    p->m->temporary);
    }
    buffer_free(&found.remove);
}
