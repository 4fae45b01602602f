/* See telemetry.h. */
#include "judge/quiet/telemetry.h"

#include "base/arena.h"
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

bool throttle_is_throttling(uint64_t bits)
{
    return (bits & (THROTTLE_HARDWARE | THROTTLE_SOFTWARE_THERMAL | THROTTLE_HARDWARE_THERMAL |
                    THROTTLE_POWER_BRAKE | THROTTLE_CPU_THERMAL | THROTTLE_CLOCK_FLOOR)) != 0;
}

json_t *throttle_names(uint64_t bits)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } names[] = {
        {THROTTLE_POWER_CAP, "power-cap"},
        {THROTTLE_HARDWARE, "hardware-slowdown"},
        {THROTTLE_SYNC_BOOST, "sync-boost"},
        {THROTTLE_SOFTWARE_THERMAL, "software-thermal"},
        {THROTTLE_HARDWARE_THERMAL, "hardware-thermal"},
        {THROTTLE_POWER_BRAKE, "power-brake"},
        {THROTTLE_CPU_THERMAL, "cpu-thermal"},
        {THROTTLE_CLOCK_FLOOR, "clock-floor"},
    };
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (bits & names[i].bit)
            json_array_append_new(list, json_string(names[i].name));
    return list;
}

void samples_add(struct samples *s, const struct sample *one)
{
    if (s->count == SAMPLES_MAX)
        return;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1024;
        s->all = memory_realloc(s->all, s->capacity * sizeof *s->all);
    }
    s->all[s->count++] = *one;
}

/* The known values of one member; returns how many. */
static size_t collect(const struct samples *s, size_t offset, double *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++) {
        const double value = *(const double *)(const void *)((const char *)&s->all[i] + offset);
        if (!isnan(value))
            out[n++] = value;
    }
    return n;
}

void telemetry_summarise(const struct samples *s, double loaded_use, double floor_mhz,
                         uint64_t extra, struct telemetry *out)
{
    double *values = memory_alloc((s->count + 1) * sizeof *values);
    size_t n = collect(s, offsetof(struct sample, clock_mhz), values);
    *out = (struct telemetry){.samples = s->count, .clock_steady_min = NAN, .throttle = extra};
    out->clock_min = n ? stats_min(values, n) : NAN;
    out->clock_median = n ? stats_median(values, n) : NAN;
    n = collect(s, offsetof(struct sample, celsius), values);
    out->celsius_max = n ? stats_max(values, n) : NAN;
    n = collect(s, offsetof(struct sample, load), values);
    out->load_max = n ? stats_max(values, n) : NAN;
    n = collect(s, offsetof(struct sample, use), values);
    out->use_median = n ? stats_median(values, n) : NAN;
    free(values);
    for (size_t i = 0; i < s->count; i++) {
        const struct sample *one = &s->all[i];
        out->throttle |= one->throttle;
        if (i == 0 || !(one->use >= loaded_use) || !(one[-1].use >= loaded_use) ||
            isnan(one->clock_mhz))
            continue;
        out->steady++;
        out->clock_steady_min = fmin(out->clock_steady_min, one->clock_mhz);
    }
    if (floor_mhz > 0 && out->clock_steady_min < floor_mhz)
        out->throttle |= THROTTLE_CLOCK_FLOOR;
}

double telemetry_rounded(double x)
{
    return round(x * 1000) / 1000;
}

json_t *telemetry_number(double x)
{
    return isnan(x) ? json_null() : json_real(telemetry_rounded(x));
}

json_t *telemetry_series(const struct samples *s)
{
    json_t *seconds = json_array(), *celsius = json_array(), *clock = json_array();
    const size_t kept = s->count < SERIES_MOST ? s->count : SERIES_MOST;
    for (size_t i = 0; i < kept; i++) {
        const size_t at = kept > 1 ? i * (s->count - 1) / (kept - 1) : 0;
        json_array_append_new(seconds, telemetry_number(s->all[at].seconds));
        json_array_append_new(celsius, telemetry_number(s->all[at].celsius));
        json_array_append_new(clock, telemetry_number(s->all[at].clock_mhz));
    }
    json_t *series = json_object();
    json_object_set_new(series, "seconds", seconds);
    json_object_set_new(series, "celsius", celsius);
    json_object_set_new(series, "clock_mhz", clock);
    return series;
}
