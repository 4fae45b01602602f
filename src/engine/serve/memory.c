#include "engine/serve/memory.h"

#include <sys/resource.h>

static uint64_t peak_resident_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (uint64_t)usage.ru_maxrss * 1024;
}

void memory_report_peak(struct wire_response *out)
{
    out->peak_ram_gb = (struct wire_f64){true, (double)peak_resident_bytes() / 1e9};
}

void memory_report(const struct session *s, uint64_t weight_bytes, struct wire_response *out)
{
    const uint64_t active = weight_bytes + session_bytes(s), peak = peak_resident_bytes();
    memory_report_peak(out);
    out->mlx_active_memory_bytes = (struct wire_u64){true, active};
    out->mlx_cache_memory_bytes = (struct wire_u64){true, 0};
    out->mlx_peak_memory_bytes = (struct wire_u64){true, peak > active ? peak : active};
}
