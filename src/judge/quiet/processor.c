/* See processor.h. */
#include "judge/quiet/processor.h"

#include "base/arena.h"
#include "base/number.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LOAD_SECONDS = 60; /* the decay of the kernel's 1-minute load */
static const double WINDOW_LEAST = 0.2;

static void add_process(struct processes *p, pid_t pid, const char *text)
{
    struct process one = {.pid = pid};
    if (!parse_process(text, &one.parent, &one.ticks))
        return;
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 256;
        p->all = memory_realloc(p->all, p->capacity * sizeof *p->all);
    }
    p->all[p->count++] = one;
}

static bool is_ours(const struct processes *p, pid_t pid)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->all[i].pid == pid)
            return p->all[i].ours;
    return false;
}

static void mark_ours(struct processes *p, pid_t self)
{
    bool more = true;
    for (size_t i = 0; i < p->count; i++)
        p->all[i].ours = p->all[i].pid == self;
    while (more) {
        more = false;
        for (size_t i = 0; i < p->count; i++)
            if (!p->all[i].ours && is_ours(p, p->all[i].parent))
                p->all[i].ours = more = true;
    }
}

struct processes processes_list(const struct quiet_system *s)
{
    struct processes found = {0};
    struct buffer path = {0}, text = {0};
    buffer_printf(&path, "%s/proc", s->root);
    DIR *folder = opendir(path.data);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        int64_t pid;
        if (!number_int64(entry->d_name, 1, INT32_MAX, &pid))
            continue;
        buffer_clear(&path);
        buffer_printf(&path, "/proc/%lld/stat", (long long)pid);
        if (quiet_system_read(s, path.data, &text))
            add_process(&found, (pid_t)pid, text.data);
    }
    if (folder)
        closedir(folder);
    buffer_free(&path);
    buffer_free(&text);
    mark_ours(&found, s->self);
    return found;
}

static double own_seconds(const struct quiet_system *s)
{
    struct processes p = processes_list(s);
    uint64_t ticks = 0;
    bool found = false;
    for (size_t i = 0; i < p.count; i++)
        if (p.all[i].ours) {
            found = true;
            ticks += p.all[i].ticks;
        }
    free(p.all);
    return found ? (double)ticks / s->ticks : NAN;
}

struct work work_read(const struct quiet_system *s)
{
    struct work w = {.whole = NAN, .stolen = NAN};
    struct buffer text = {0};
    struct cpu_times *times = memory_alloc(sizeof *times);
    w.own = own_seconds(s);
    w.at = s->now(s->context);
    if (quiet_system_read(s, "/proc/stat", &text) && parse_stat(text.data, times)) {
        w.whole = (double)times->whole.busy / s->ticks;
        w.stolen = (double)times->whole.stolen / s->ticks;
    }
    free(times);
    buffer_free(&text);
    return w;
}

struct share work_between(const struct work *from, const struct work *to)
{
    struct share r = {to->at - from->at, NAN, NAN, NAN};
    if (r.seconds > 0 && to->stolen >= from->stolen)
        r.stolen = (to->stolen - from->stolen) / r.seconds;
    if (!(r.seconds >= WINDOW_LEAST))
        return r;
    /* A process that ended unseen takes its time with it: the counters may go back. */
    r.own = fmax(0, (to->own - from->own) / r.seconds);
    if (!isnan(to->whole - from->whole))
        r.others = fmax(0, (to->whole - from->whole) / r.seconds - r.own);
    return r;
}

void own_load_update(struct own_load *o, const struct work *now)
{
    const double seconds = now->at - o->last.at;
    if (seconds > 0 && !isnan(now->own - o->last.own)) {
        const double kept = exp(-seconds / LOAD_SECONDS);
        const double running = fmax(0, (now->own - o->last.own) / seconds);
        o->load = o->load * kept + running * (1 - kept);
    }
    if (seconds > 0)
        o->last = *now;
}

double load_read(const struct quiet_system *s)
{
    struct buffer text = {0};
    double load = NAN;
    if (!quiet_system_read(s, "/proc/loadavg", &text) || !parse_load(text.data, &load))
        load = NAN;
    buffer_free(&text);
    return load;
}

static double frequency_of(const struct quiet_system *s, size_t processor)
{
    struct buffer path = {0}, text = {0};
    double mhz = NAN;
    buffer_printf(&path, "/sys/devices/system/cpu/cpu%zu/cpufreq/scaling_cur_freq", processor);
    if (!quiet_system_read(s, path.data, &text) || !parse_kilohertz(text.data, &mhz))
        mhz = NAN;
    buffer_free(&path);
    buffer_free(&text);
    return mhz;
}

const char *clocks_source(const struct quiet_system *s)
{
    struct buffer text = {0};
    double mhz = NAN;
    const char *source = NULL;
    if (!isnan(frequency_of(s, 0)))
        source = "cpufreq";
    else if (quiet_system_read(s, "/proc/cpuinfo", &text) &&
             parse_cpuinfo_clocks(text.data, &mhz, 1) == 1 && !isnan(mhz))
        source = "/proc/cpuinfo";
    buffer_free(&text);
    return source;
}

double clock_of(const struct quiet_system *s, size_t processor, const char *cpuinfo)
{
    if (!cpuinfo)
        return frequency_of(s, processor);
    if (processor >= QUIET_CPUS_MAX)
        return NAN;
    double *all = memory_alloc(QUIET_CPUS_MAX * sizeof *all);
    const size_t count = parse_cpuinfo_clocks(cpuinfo, all, QUIET_CPUS_MAX);
    const double mhz = processor < count ? all[processor] : NAN;
    free(all);
    return mhz;
}

bool throttle_count_read(const struct quiet_system *s, uint64_t *count)
{
    static const char *const names[] = {"core_throttle_count", "package_throttle_count"};
    struct buffer path = {0}, text = {0};
    bool found = false;
    *count = 0;
    buffer_printf(&path, "%s/sys/devices/system/cpu", s->root);
    DIR *folder = opendir(path.data);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        int64_t number;
        if (!text_starts(entry->d_name, "cpu") ||
            !number_int64(entry->d_name + 3, 0, INT32_MAX, &number))
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            uint64_t value;
            buffer_clear(&path);
            buffer_printf(&path, "/sys/devices/system/cpu/%s/thermal_throttle/%s", entry->d_name,
                          names[i]);
            if (quiet_system_read(s, path.data, &text) && parse_count(text.data, &value)) {
                *count += value;
                found = true;
            }
        }
    }
    if (folder)
        closedir(folder);
    buffer_free(&path);
    buffer_free(&text);
    return found;
}
