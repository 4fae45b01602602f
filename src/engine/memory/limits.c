#include "engine/memory/limits.h"

#include "engine/memory/system.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* What a process takes besides weights and caches while it starts: the program, thread stacks. */
static const uint64_t other_addresses = (uint64_t)64 << 20;

char *memory_text(uint64_t bytes, char *out)
{
    if (bytes >= 1000000000)
        snprintf(out, 32, "%.2f GB", (double)bytes / 1e9);
    else
        snprintf(out, 32, "%.1f MB", (double)bytes / 1e6);
    return out;
}

static uint64_t less(uint64_t limit, uint64_t used)
{
    return limit == UINT64_MAX ? limit : limit > used ? limit - used : 0;
}

static void lower(struct memory_limits *l, uint64_t available, const char *name, const char *folder)
{
    if (available >= l->available)
        return;
    l->available = available;
    snprintf(l->source, sizeof l->source, "%s of %s", name, folder);
}

static uint64_t number_of(const char *folder, const char *name)
{
    struct buffer path = {0};
    uint64_t value = UINT64_MAX;
    buffer_printf(&path, "%s/%s", folder, name);
    if (!system_read_number(path.data, &value))
        value = UINT64_MAX;
    buffer_free(&path);
    return value;
}

/* Bytes that the group holds and cannot drop: all but the pages of files. */
static uint64_t held(const char *folder, const char *usage, bool version2)
{
    struct buffer path = {0}, text = {0};
    uint64_t used = number_of(folder, usage), active = 0, inactive = 0;
    buffer_printf(&path, "%s/memory.stat", folder);
    if (system_read(path.data, &text)) {
        system_find_number(text.data, version2 ? "active_file " : "total_active_file ", &active);
        system_find_number(text.data, version2 ? "inactive_file " : "total_inactive_file ",
                           &inactive);
    }
    buffer_free(&path);
    buffer_free(&text);
    return used == UINT64_MAX ? 0 : less(used, active + inactive);
}

static void read_group(void *context, const char *folder, bool version2)
{
    struct memory_limits *l = context;
    static const char *const names[2][2] = {{"memory.limit_in_bytes", "memory.soft_limit_in_bytes"},
                                            {"memory.max", "memory.high"}};
    /* A soft limit of version 1 holds nobody back; memory.high does. */
    for (int i = 0; i < (version2 ? 2 : 1); i++) {
        const uint64_t limit = number_of(folder, names[version2][i]);
        /* version 1 writes "no limit" as the largest number of whole pages */
        if (limit >= (uint64_t)1 << 62)
            continue;
        lower(l,
              less(limit,
                   held(folder, version2 ? "memory.current" : "memory.usage_in_bytes", version2)),
              names[version2][i], folder);
    }
}

static uint64_t resource_left(int resource, const char *status, const char *used_key)
{
    struct rlimit r;
    uint64_t kilobytes = 0;
    if (getrlimit(resource, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    if (status)
        system_find_number(status, used_key, &kilobytes);
    return less(r.rlim_cur, kilobytes * 1024);
}

void memory_limits_read(struct memory_limits *out)
{
    struct buffer text = {0};
    uint64_t kilobytes;
    *out = (struct memory_limits){.available = UINT64_MAX};
    if (system_read("/proc/meminfo", &text) &&
        system_find_number(text.data, "MemAvailable:", &kilobytes))
        lower(out, kilobytes * 1024, "MemAvailable", "/proc/meminfo");
    system_visit_groups("memory", read_group, out);
    const char *status = system_read("/proc/self/status", &text) ? text.data : NULL;
    out->data = resource_left(RLIMIT_DATA, status, "VmData:");
    out->addresses = resource_left(RLIMIT_AS, status, "VmSize:");
    out->lockable = resource_left(RLIMIT_MEMLOCK, status, "VmLck:");
    buffer_free(&text);
}

bool memory_check_mapping(const struct memory_limits *l, uint64_t bytes, const char *folder,
                          struct error *err)
{
    char needed[32], left[32];
    if (l->addresses == UINT64_MAX || bytes + other_addresses <= l->addresses)
        return true;
    error_set(err, "MEMORY-INSUFFICIENT",
              "mapping the weights needs %s of addresses, %s are left by RLIMIT_AS; raise it "
              "(ulimit -v)",
              memory_text(bytes + other_addresses, needed), memory_text(l->addresses, left));
    return error_at(err, folder, NULL, NULL);
}

void memory_use_read(struct memory_use *out, bool huge_too)
{
    static const char *const keys[] = {"VmRSS:", "RssAnon:", "RssFile:", "VmHWM:", "VmLck:"};
    struct buffer text = {0};
    *out = (struct memory_use){0};
    uint64_t *const fields[] = {&out->resident, &out->anonymous, &out->file, &out->peak,
                                &out->locked};
    if (system_read("/proc/self/status", &text))
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (system_find_number(text.data, keys[i], fields[i]))
                *fields[i] *= 1024;
    if (huge_too && system_read("/proc/self/smaps_rollup", &text) &&
        system_find_number(text.data, "AnonHugePages:", &out->huge))
        out->huge *= 1024;
    buffer_free(&text);
}
