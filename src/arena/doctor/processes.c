#include "arena/doctor/processes.h"

#include "base/file.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The numbers of a line, up to most; anything else ends them. */
static size_t read_numbers(const char *text, uint64_t *out, size_t most)
{
    size_t count = 0;
    while (count < most) {
        text += strspn(text, " ");
        const bool minus = *text == '-'; /* tty and tpgid may be -1; nobody reads them */
        char number[24];
        const size_t n = strspn(text + minus, "0123456789");
        if (n == 0 || n >= sizeof number)
            break;
        memcpy(number, text + minus, n);
        number[n] = '\0';
        if (!number_uint64(number, UINT64_MAX, &out[count]))
            break;
        count++;
        text += minus + n;
    }
    return count;
}

/* "pid (name) S parent group session ..."; a name may hold anything, so its end is the last ')'. */
static bool parse_stat(const char *text, uint64_t page_bytes, struct process *p)
{
    enum {
        PARENT,
        GROUP,
        SESSION,
        USER = 10,
        SYSTEM,
        CHILD_USER,
        CHILD_SYSTEM,
        START = 18,
        RSS = 20
    };
    uint64_t n[RSS + 1];
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open || close[1] != ' ' || close[2] == '\0' ||
        read_numbers(close + 3, n, RSS + 1) != RSS + 1)
        return false;
    size_t length = (size_t)(close - open - 1);
    length = length < sizeof p->name - 1 ? length : sizeof p->name - 1;
    memcpy(p->name, open + 1, length);
    p->name[length] = '\0';
    p->state = close[2];
    p->parent = (pid_t)n[PARENT];
    p->session = (pid_t)n[SESSION];
    p->all_ticks = n[USER] + n[SYSTEM] + n[CHILD_USER] + n[CHILD_SYSTEM];
    p->started = n[START];
    p->resident = n[RSS] * page_bytes;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    const struct process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

void processes_read(const struct machine *m, struct arena *a, struct process_table *out)
{
    const char **names;
    struct buffer text = {0};
    const size_t count = machine_list(m, a, "/proc", PROCESSES_MOST, &names);
    *out = (struct process_table){.items = arena_array(a, count + 1, sizeof *out->items)};
    for (size_t i = 0; i < count; i++) {
        struct process p = {0};
        struct stat s;
        int64_t pid;
        char path[64];
        if (!number_int64(names[i], 1, INT32_MAX, &pid))
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", names[i]);
        if (!machine_read(m, path, &text) || !parse_stat(text.data, m->page_bytes, &p))
            continue;
        p.pid = (pid_t)pid;
        p.program = arena_strdup(a, p.name);
        snprintf(path, sizeof path, "/proc/%s/cmdline", names[i]);
        if (machine_read(m, path, &text) && text.data[0]) /* arguments end with NUL: the first */
            p.program = path_basename(arena_strdup(a, text.data));
        snprintf(path, sizeof path, "/proc/%s", names[i]);
        p.user = stat(arena_printf(a, "%s%s", m->root, path), &s) == 0 ? s.st_uid : 0;
        out->items[out->count++] = p;
    }
    buffer_free(&text);
    qsort(out->items, out->count, sizeof *out->items, by_pid);
}

const struct process *process_find(const struct process_table *t, pid_t pid)
{
    const struct process key = {.pid = pid};
    return t->count ? bsearch(&key, t->items, t->count, sizeof *t->items, by_pid) : NULL;
}

bool machine_ticks_read(const struct machine *m, struct machine_ticks *out)
{
    enum { USER, NICE, SYSTEM, IDLE, WAIT, IRQ, SOFT, STEAL, FIELDS };
    struct buffer text = {0};
    uint64_t n[FIELDS] = {0};
    *out = (struct machine_ticks){0};
    const bool ok = machine_read(m, "/proc/stat", &text) && strncmp(text.data, "cpu ", 4) == 0 &&
                    read_numbers(text.data + 4, n, FIELDS) >= STEAL;
    buffer_free(&text);
    out->work = n[USER] + n[NICE] + n[SYSTEM] + n[IRQ] + n[SOFT];
    out->stolen = n[STEAL];
    out->all = out->work + out->stolen + n[IDLE] + n[WAIT];
    return ok;
}
