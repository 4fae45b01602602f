#include "engine/serve/profile.h"

#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_name(json_t *events, int thread, const struct meter_recording *r, const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "%s: %d row%s at position %lld", what, r->rows,
             r->rows == 1 ? "" : "s", (long long)r->position);
    json_array_append_new(events,
                          json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name", "ph",
                                    "M", "pid", 1, "tid", thread, "args", "name", name));
}

static void add_events(json_t *events, int thread, const struct meter_recording *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct meter_event *e = &r->events[i];
        json_t *args = json_object();
        if (e->layer >= 0)
            json_object_set_new(args, "layer", json_integer(e->layer));
        json_array_append_new(events,
                              json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name",
                                        meter_part_text(e->part), "cat", meter_part_key(e->part),
                                        "ph", "X", "pid", 1, "tid", thread, "ts",
                                        (double)(e->start - r->events[0].start) / 1e3, "dur",
                                        (double)(e->end - e->start) / 1e3, "args", args));
    }
}

void profile_write(const struct meter_recorder *r, struct buffer *out)
{
    static const char *const names[METER_KINDS] = {"prefill chunk", "decode step"};
    json_t *root = json_object(), *events = json_array(), *other = json_object();
    json_int_t dropped = 0;
    for (int k = 0; k < METER_KINDS; k++) {
        if (r->kind[k].rows == 0)
            continue;
        add_name(events, k + 1, &r->kind[k], names[k]);
        add_events(events, k + 1, &r->kind[k]);
        dropped += (json_int_t)r->kind[k].dropped;
    }
    json_object_set_new(root, "displayTimeUnit", json_string("ns"));
    json_object_set_new(other, "dropped_events", json_integer(dropped));
    json_object_set_new(root, "otherData", other);
    json_object_set_new(root, "traceEvents", events);
    json_write_ordered(root, 0, out);
    buffer_char(out, '\n');
    json_decref(root);
}

/* ---- what the environment asks for ---- */

static const char PROFILE_VARIABLE[] = "MLXFAST_PROFILE";
static struct compute_meter meter;
static const char *profile_path;

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static bool wants_trace(void)
{
    static const char *const variables[] = {"MLXFAST_TRACE_KERNELS", "DARKBLOOM_TRACE_FUSION"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = environment(variables[i]);
        if (value && strcmp(value, "0") != 0)
            return true;
    }
    return false;
}

bool profile_begin(trace_sink *sink, struct error *err)
{
    if (wants_trace())
        trace_begin(sink, NULL);
    profile_path = environment(PROFILE_VARIABLE);
    if (!profile_path)
        return true;
    if (!file_check_target(profile_path, err))
        return error_at(err, NULL, PROFILE_VARIABLE, NULL);
    meter.recorder = meter_recorder_new();
    compute_set_default_meter(&meter);
    return true;
}

bool profile_end(struct error *err)
{
    struct meter_recorder *r = meter.recorder;
    if (!r)
        return true;
    compute_set_default_meter(NULL);
    bool ok = true;
    if (r->kind[0].rows > 0 || r->kind[1].rows > 0) {
        struct buffer text = {0};
        profile_write(r, &text);
        ok = file_write_atomic(profile_path, text.data, text.length, err);
        buffer_free(&text);
    }
    meter_recorder_free(r);
    meter.recorder = NULL;
    return ok;
}
