/* The records of metrics.gates: docs/quiet.md. */
#include "judge/quiet/inside.h"

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

json_t *record_quiescence(const struct quiescence_result *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "state", json_string(quiescence_state_name(r->state)));
    json_object_set_new(o, "waited_seconds", telemetry_number(r->waited_seconds));
    json_object_set_new(o, "load", telemetry_number(r->last.load));
    json_object_set_new(o, "own_load", telemetry_number(r->last.own_load));
    json_object_set_new(o, "others_cpu", telemetry_number(r->last.others_cpu));
    json_object_set_new(o, "own_cpu", telemetry_number(r->last.own_cpu));
    json_object_set_new(o, "window_seconds", telemetry_number(r->last.window_seconds));
    json_object_set_new(o, "gpu_use", telemetry_number(r->last.gpu_use));
    return o;
}

json_t *record_temperature(const struct cool_result *r, double limit, const char *reader)
{
    json_t *o = json_object();
    json_object_set_new(o, "state", json_string(cool_state_name(r->state)));
    json_object_set_new(o, "waited_seconds", telemetry_number(r->waited_seconds));
    json_object_set_new(o, "celsius", telemetry_number(r->celsius));
    json_object_set_new(o, "limit", json_real(limit));
    json_object_set_new(o, "reader", text_or_null(reader));
    return o;
}

json_t *record_telemetry(const struct telemetry *t, const struct samples *s, const struct phase *p)
{
    json_t *o = json_object();
    json_object_set_new(o, "seconds", telemetry_number(p->seconds));
    json_object_set_new(o, "samples", json_integer((json_int_t)t->samples));
    json_object_set_new(o, "steady_samples", json_integer((json_int_t)t->steady));
    json_object_set_new(o, "clock_reader", text_or_null(p->clock_source));
    json_object_set_new(o, "clock_mhz_min", telemetry_number(t->clock_min));
    json_object_set_new(o, "clock_mhz_median", telemetry_number(t->clock_median));
    json_object_set_new(o, "clock_steady_mhz_min", telemetry_number(t->clock_steady_min));
    json_object_set_new(o, "celsius_max", telemetry_number(t->celsius_max));
    json_object_set_new(o, "gpu_use_median", telemetry_number(t->use_median));
    json_object_set_new(o, "load_max", telemetry_number(t->load_max));
    json_object_set_new(o, "others_cpu", telemetry_number(p->others_cpu));
    json_object_set_new(o, "engine_run_delay", telemetry_number(p->run_delay));
    json_object_set_new(o, "stolen_cpu", telemetry_number(p->stolen));
    json_object_set_new(o, "sampler_share", telemetry_number(p->sampler_share));
    json_object_set_new(o, "throttled", json_boolean(throttle_is_throttling(t->throttle)));
    json_object_set_new(o, "throttle_reasons", throttle_names(t->throttle));
    json_object_set_new(o, "series", telemetry_series(s));
    return o;
}
