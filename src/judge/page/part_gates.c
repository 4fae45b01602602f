/* Gates before the timed phases, and the telemetry of the phases, one after another. */
#include "judge/page/parts.h"

#include "judge/page/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SERIES_POINTS_MOST = 4000, LEGS_MOST = 16 };

/* A run without pairs has pair 0. */
static const char *point_name(struct arena *a, const json_t *record)
{
    const long long pair = json_integer_value(json_object_get(record, "pair"));
    return arena_printf(a, "%s%s, %s", pair != 0 ? arena_printf(a, "pair %lld, ", pair) : "",
                        source_text(record, "leg"), source_text(record, "phase"));
}

static const char *waited(struct arena *a, const json_t *gate)
{
    const double seconds = source_real(gate, "waited_seconds");
    const char *state = json_is_object(gate) ? source_text(gate, "state") : NULL;
    return seconds > 0 ? arena_printf(a, "%s, %s", state, unit_seconds(a, seconds)) : state;
}

static const char *throttling(struct arena *a, const json_t *telemetry)
{
    const json_t *reasons = json_object_get(telemetry, "throttle_reasons");
    const char *text = source_flag(telemetry, "throttled") ? "throttled" : "no";
    for (size_t i = 0; i < json_array_size(reasons) && i < 8; i++) {
        const char *reason = json_string_value(json_array_get(reasons, i));
        text = arena_printf(a, "%s%s %s", text, i ? "," : ":", reason ? reason : "?");
    }
    return json_is_object(telemetry) ? text : NULL;
}

static void gates_table(struct sheet *s, const json_t *gates)
{
    static const char *const gate_heads[] = {"before",         "quiet",   "load (1 min)",
                                             "CPUs of others", "GPU use", "cool",
                                             "temperature",    "limit",   "read from"};
    static const char *const phase_heads[] = {"during",       "samples",      "highest temperature",
                                              "median clock", "lowest clock", "lowest steady clock",
                                              "GPU use",      "highest load", "CPUs of others",
                                              "run delay",    "throttled"};
    struct arena *a = &s->arena;
    sheet_table(s, SHEET_FOLDED, "The gates before each timed phase", 9, gate_heads);
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *g = json_array_get(gates, i);
        const json_t *q = json_object_get(g, "quiescence"), *t = json_object_get(g, "temperature");
        const char *reader = source_text(t, "reader");
        sheet_row(s, point_name(a, g), waited(a, q), unit_number(a, source_real(q, "load"), NULL),
                  unit_number(a, source_real(q, "others_cpu"), NULL),
                  unit_percent(a, source_real(q, "gpu_use")), waited(a, t),
                  unit_number(a, source_real(t, "celsius"), "°C"),
                  unit_number(a, source_real(t, "limit"), "°C"), *reader ? reader : NULL);
    }
    sheet_table(s, SHEET_FOLDED, "Telemetry during each timed phase", 11, phase_heads);
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *g = json_array_get(gates, i), *t = json_object_get(g, "telemetry");
        sheet_row(s, point_name(a, g), unit_number(a, source_real(t, "samples"), NULL),
                  unit_number(a, source_real(t, "celsius_max"), "°C"),
                  unit_number(a, source_real(t, "clock_mhz_median"), "MHz"),
                  unit_number(a, source_real(t, "clock_mhz_min"), "MHz"),
                  unit_number(a, source_real(t, "clock_steady_mhz_min"), "MHz"),
                  unit_percent(a, source_real(t, "gpu_use_median")),
                  unit_number(a, source_real(t, "load_max"), NULL),
                  unit_number(a, source_real(t, "others_cpu"), NULL),
                  unit_number(a, source_real(t, "engine_run_delay"), NULL), throttling(a, t));
    }
}

static size_t points_of(const json_t *gates, const char *key)
{
    size_t total = 0;
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *t = json_object_get(json_array_get(gates, i), "telemetry");
        const json_t *values = json_object_get(json_object_get(t, "series"), key);
        for (size_t k = 0; k < json_array_size(values); k++)
            total += json_is_number(json_array_get(values, k));
    }
    return total;
}

/* The series of the leg, found or begun. NULL: more legs than can be told apart. */
static json_t *leg_series(struct sheet *s, json_t *chart, const char *leg)
{
    json_t *all = json_object_get(chart, "series");
    const char *name = sheet_clean(&s->arena, *leg ? leg : "leg");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (strcmp(source_text(json_array_get(all, i), "name"), name) == 0)
            return json_array_get(all, i);
    return json_array_size(all) < LEGS_MOST ? sheet_chart_series(s, chart, leg) : NULL;
}

/* Phases follow one another; what lies between them is not measured and takes no room. */
static void series_chart(struct sheet *s, const json_t *gates, const char *key, const char *y,
                         const char *caption)
{
    const size_t total = points_of(gates, key);
    if (total == 0) {
        sheet_say(s, SHEET_PLAIN, "%s: no reader gave a value.", caption);
        return;
    }
    const size_t stride = (total + SERIES_POINTS_MOST - 1) / SERIES_POINTS_MOST;
    json_t *chart = sheet_chart_new("lines", "seconds of timed phases, one after another", y);
    double begin = 0, limit = NAN;
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *record = json_array_get(gates, i);
        const json_t *data = json_object_get(json_object_get(record, "telemetry"), "series");
        const json_t *seconds = json_object_get(data, "seconds"),
                     *values = json_object_get(data, key);
        json_t *series = leg_series(s, chart, source_text(record, "leg"));
        const double duration = source_real(json_object_get(record, "telemetry"), "seconds");
        double end = begin + (duration > 0 ? duration : 0);
        limit = fmax(limit, source_real(json_object_get(record, "temperature"), "limit"));
        for (size_t k = 0; series && k < json_array_size(values); k += stride) {
            const json_t *at = json_array_get(seconds, k), *value = json_array_get(values, k);
            const double offset = json_is_number(at) ? json_number_value(at) : NAN;
            if (!(offset >= 0) || !json_is_number(value))
                continue;
            sheet_push(series, "x", begin + offset);
            sheet_push(series, "y", json_number_value(value));
            end = fmax(end, begin + offset);
        }
        if (series && end > begin) { /* the line ends with its phase */
            sheet_push(series, "x", end);
            sheet_push(series, "y", NAN);
        }
        begin = end;
    }
    if (strcmp(key, "celsius") == 0)
        sheet_chart_mark(chart, "limit of the gate", limit);
    json_object_set_new(chart, "dense", json_true());
    sheet_chart(s, caption, chart);
}

void part_gates(struct sheet *s, const struct report_source *r)
{
    const json_t *gates = json_object_get(r->score.metrics, "gates");
    size_t throttled = 0;
    sheet_begin(s, "gates", "Gates and temperatures");
    if (json_array_size(gates) == 0) {
        sheet_say(s, SHEET_PLAIN, "No gate stood before a timed phase, and no telemetry was kept.");
        return;
    }
    for (size_t i = 0; i < json_array_size(gates); i++)
        throttled +=
            source_flag(json_object_get(json_array_get(gates, i), "telemetry"), "throttled");
    sheet_say(s, throttled ? SHEET_CAUTION : SHEET_PLAIN,
              "Before each timed phase the judge waits for a quiet and cool machine; during it, it "
              "samples clock and temperature. Throttled phases: %zu of %zu.",
              throttled, json_array_size(gates));
    series_chart(s, gates, "celsius", "°C", "Temperature during the timed phases");
    series_chart(s, gates, "clock_mhz", "MHz", "Clock during the timed phases");
    gates_table(s, gates);
}
