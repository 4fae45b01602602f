/* See gpu.h. */
#include "judge/quiet/gpu.h"

#include <math.h>

enum { SMI_SECONDS = 5, SMI_BYTES = 8192 };

#define SMI_FIELDS "utilization.gpu,temperature.gpu,clocks.sm"
#define SMI(fields) "exec nvidia-smi --query-gpu=" fields " --format=csv,noheader,nounits"

/* Newest name of the bits first. */
static const struct {
    const char *query;
    bool has_throttle;
} queries[] = {
    {SMI(SMI_FIELDS ",clocks_event_reasons.active"), true},
    {SMI(SMI_FIELDS ",clocks_throttle_reasons.active"), true},
    {SMI(SMI_FIELDS), false},
};

static bool ask_smi(const struct gpu *g, struct gpu_reading *out)
{
    struct buffer text = {0};
    const struct quiet_system *s = g->system;
    const bool ok = s->command(s->context, g->query, SMI_SECONDS, SMI_BYTES, &text) &&
                    parse_nvidia_smi(text.data, g->query_has_throttle, out);
    buffer_free(&text);
    return ok;
}

/* A shell for each query only where there is such a program. */
static bool has_smi(const struct quiet_system *s)
{
    struct buffer text = {0};
    const bool found =
        s->command(s->context, "command -v nvidia-smi", SMI_SECONDS, SMI_BYTES, &text);
    buffer_free(&text);
    return found;
}

void gpu_open(struct gpu *g, const struct quiet_system *s)
{
    struct gpu_reading reading;
    *g = (struct gpu){.system = s};
    if (s->nvml(s->context, &reading)) {
        g->source = GPU_NVML;
        return;
    }
    for (size_t i = 0; i < sizeof queries / sizeof *queries && has_smi(s); i++) {
        g->query = queries[i].query;
        g->query_has_throttle = queries[i].has_throttle;
        if (ask_smi(g, &reading)) {
            g->source = GPU_SMI;
            return;
        }
    }
}

const char *gpu_name(const struct gpu *g)
{
    return g->source == GPU_NVML ? "nvml" : g->source == GPU_SMI ? "nvidia-smi" : NULL;
}

bool gpu_read(const struct gpu *g, struct gpu_reading *out)
{
    out->count = 0;
    return g->source == GPU_NVML  ? g->system->nvml(g->system->context, out)
           : g->source == GPU_SMI ? ask_smi(g, out)
                                  : false;
}

double gpu_use(const struct gpu_reading *r)
{
    double most = NAN;
    for (size_t i = 0; i < r->count; i++)
        most = fmax(most, r->each[i].use); /* fmax passes NAN over */
    return most;
}

double gpu_celsius(const struct gpu_reading *r)
{
    double most = NAN;
    for (size_t i = 0; i < r->count; i++)
        most = fmax(most, r->each[i].celsius);
    return most;
}

double gpu_clock(const struct gpu_reading *r, double loaded)
{
    const double most = gpu_use(r);
    double least = NAN;
    for (size_t i = 0; i < r->count; i++)
        if (r->each[i].use >= fmin(loaded, most))
            least = fmin(least, r->each[i].clock_mhz);
    return least;
}

uint64_t gpu_throttle(const struct gpu_reading *r)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < r->count; i++)
        bits |= r->each[i].throttle;
    return bits;
}
