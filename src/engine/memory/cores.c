#include "engine/memory/cores.h"

#include "engine/memory/system.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_CORES = 8192 };

int cores_in_mask(void)
{
    /* The kernel refuses a mask that is smaller than its own: more than 1024 are possible. */
    cpu_set_t *set = CPU_ALLOC(MOST_CORES);
    const size_t bytes = CPU_ALLOC_SIZE(MOST_CORES);
    int n = set != NULL && sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (n < 1)
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n;
}

static double quota_of(const char *folder, bool version2)
{
    struct buffer path = {0}, text = {0};
    double quota = INFINITY;
    uint64_t period = 0, time = 0;
    buffer_printf(&path, "%s/%s", folder, version2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (system_read(path.data, &text)) {
        char *end = text.data;
        time = strtoull(text.data, &end, 10); /* 0 for "max"; -1 means none too */
        if (text.data[0] == '-')
            time = 0;
        if (version2) {
            period = strtoull(end, NULL, 10);
        } else {
            buffer_clear(&path);
            buffer_printf(&path, "%s/cpu.cfs_period_us", folder);
            system_read_number(path.data, &period);
        }
        if (time > 0 && period > 0)
            quota = (double)time / (double)period;
    }
    buffer_free(&path);
    buffer_free(&text);
    return quota;
}

static void lower_quota(void *context, const char *folder, bool version2)
{
    double *least = context;
    const double quota = quota_of(folder, version2);
    if (quota < *least)
        *least = quota;
}

int cores_allowed(void)
{
    double quota = INFINITY;
    const int mask = cores_in_mask();
    system_visit_groups("cpu", lower_quota, &quota);
    if (quota >= mask)
        return mask;
    return quota < 1 ? 1 : (int)quota;
}
