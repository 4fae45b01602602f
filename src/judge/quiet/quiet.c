/* See quiet.h. */
#include "judge/quiet/quiet.h"

#include "base/arena.h"
#include "judge/quiet/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double STEADY_AFTER = 2;  /* a phase this long must show steady samples */
static const double BRIEF_BELOW = 0.2; /* where the ticks of /proc/stat are too coarse */
enum { BRIEF_CONTENDED_LEAST = 3 };
static const char SWITCH[] = "MLXFAST_LOCAL_COOL_GATE";

struct quiet_rules quiet_rules_default(const char *platform)
{
    struct quiet_rules r = {
        .load_max = 2,
        .gpu_use_max = 0.10,
        .celsius_max = 60,
        .temperature_required = true,
        .quiescence_wait_seconds = 900,
        .cool_wait_seconds = 900,
        .window_seconds = 2,
        .others_cpu_max = 0.25,
        .run_delay_max = 0.25 * QUIET_RUN_DELAY,
        .loaded_use = 0.95,
        .device = QUIET_CPU,
    };
    if (platform && strcmp(platform, "mlx") == 0)
        r.celsius_max = 40;
    if (platform && strcmp(platform, "cuda") == 0)
        r.device = QUIET_GPU;
    return r;
}

void quiet_say(void *context, const char *text)
{
    const struct quiet *q = context;
    if (!q->silent && q->system->say)
        fprintf(q->system->say, "%s\n", text);
}

static void say_readers(struct quiet *q)
{
    struct buffer line = {0};
    const char *gpu = gpu_name(&q->gpu), *clock = sampler_clock_source(q->sampler);
    buffer_printf(&line, "quiet: temperature from %s, clock from %s, GPU from %s",
                  q->thermometer.name[0] ? q->thermometer.name : "no reader",
                  clock ? clock : "no reader", gpu ? gpu : "no reader");
    quiet_say(q, line.data);
    buffer_free(&line);
}

bool quiet_open_on(const struct quiet_system *s, const struct quiet_rules *rules, bool ranked,
                   bool silent, struct quiet **out, struct error *err)
{
    const char *gate = s->variable(s->context, SWITCH);
    const bool off = gate && strcmp(gate, "0") == 0;
    *out = NULL;
    if (off && ranked) {
        error_set(err, "QUIET-GATES-DISABLED",
                  "%s=0 turns the gates off, which a ranked run does not allow", SWITCH);
        return error_at(err, NULL, SWITCH, gate);
    }
    struct quiet *q = memory_alloc(sizeof *q);
    q->system = s;
    q->rules = *rules;
    q->ranked = ranked;
    q->silent = silent;
    q->off = off;
    q->records = json_array();
    gpu_open(&q->gpu, s);
    thermometer_open(&q->thermometer, s, &q->gpu, rules->device);
    q->sampler = sampler_open(s, &q->gpu, &q->thermometer, rules->device, rules->loaded_use);
    q->neighbours = neighbours_open(s);
    q->last = work_read(s);
    q->own.last = q->last;
    if (ranked && rules->temperature_required && q->thermometer.kind == THERMOMETER_NONE) {
        quiet_close(q);
        return error_set(err, "TEMPERATURE-READER-MISSING",
                         "no reader: no NVML, nvidia-smi, hwmon or thermal zone of the %s, and "
                         "MLXFAST_GPU_TEMP_CMD is not set",
                         rules->device == QUIET_GPU ? "GPU" : "processor");
    }
    if (ranked || rules->cool_gate)
        say_readers(q);
    *out = q;
    return true;
}

bool quiet_open(const struct quiet_rules *rules, bool ranked, bool silent, struct quiet **out,
                struct error *err)
{
    struct quiet_system *s = quiet_system_open();
    if (!quiet_open_on(s, rules, ranked, silent, out, err)) {
        quiet_system_close(s);
        return false;
    }
    (*out)->owned = s;
    return true;
}

void quiet_look(void *context, struct quiescence *out)
{
    struct quiet *q = context;
    struct gpu_reading gpus;
    const struct work now = work_read(q->system);
    const struct share share = work_between(&q->last, &now);
    own_load_update(&q->own, &now);
    q->last = now;
    *out = (struct quiescence){
        .load = load_read(q->system),
        .own_load = telemetry_rounded(q->own.load),
        .gpu_use = gpu_read(&q->gpu, &gpus) ? gpu_use(&gpus) : NAN,
        .others_cpu = telemetry_rounded(share.others),
        .own_cpu = telemetry_rounded(share.own),
        .window_seconds = share.seconds,
    };
}

bool quiet_look_celsius(void *context, double *celsius)
{
    double value;
    if (!thermometer_read(&((struct quiet *)context)->thermometer, &value))
        return false;
    *celsius = telemetry_rounded(value);
    return true;
}

/* The window begins now, not where the leg before ended. */
static bool wait_for_quiescence(struct quiet *q, const struct quiet_rules *rules,
                                struct quiescence_result *out, struct error *err)
{
    q->last = work_read(q->system);
    own_load_update(&q->own, &q->last);
    return quiescence_gate(q->system, rules, rules->window_seconds, quiet_look, quiet_say, q, out,
                           err);
}

/* Once more after a wait for the temperature, within what is left of the bound. */
static bool confirm_quiescence(struct quiet *q, struct quiescence_result *r, struct error *err)
{
    struct quiet_rules left = q->rules;
    const struct quiescence_result before = *r;
    left.quiescence_wait_seconds -= before.waited_seconds;
    if (!wait_for_quiescence(q, &left, r, err))
        return false;
    r->waited_seconds += before.waited_seconds;
    if (r->state == QUIESCENCE_QUIET)
        r->state = before.state;
    return true;
}

static bool gate_quiescence(struct quiet *q, struct quiescence_result *out, struct error *err)
{
    *out = (struct quiescence_result){.state = QUIESCENCE_QUIET};
    if (q->ranked)
        return wait_for_quiescence(q, &q->rules, out, err);
    /* A local run looks back instead of waiting. */
    quiet_look(q, &out->last);
    if (quiescence_broken(&out->last, &q->rules, false, out->why, sizeof out->why)) {
        out->state = QUIESCENCE_NOT_QUIET;
        if (!q->off) {
            char line[sizeof out->why + 40];
            snprintf(line, sizeof line, "the machine is not quiet: %s", out->why);
            quiet_say(q, line);
        }
    }
    if (q->off)
        out->state = QUIESCENCE_OFF;
    return true;
}

static bool gate_temperature(struct quiet *q, struct cool_result *out, struct error *err)
{
    *out = (struct cool_result){.celsius = NAN};
    if (q->off || !(q->ranked || q->rules.cool_gate)) {
        out->state = COOL_OFF;
        if (q->thermometer.kind != THERMOMETER_COMMAND && !quiet_look_celsius(q, &out->celsius))
            out->celsius = NAN;
        return true;
    }
    if (q->thermometer.kind == THERMOMETER_NONE)
        out->state = COOL_SKIPPED_NO_READER;
    else if (!cool_gate(q->system, q->rules.celsius_max, q->rules.cool_wait_seconds,
                        quiet_look_celsius, quiet_say, q, out, err))
        return false;
    if (out->state == COOL_SKIPPED_NO_READER)
        quiet_say(q, "cool gate: skipped, no temperature reader gives a usable value");
    return true;
}

static bool refuse_contention(const struct quiescence_result *r, struct error *err)
{
    return error_set(err, "QUIESCENCE-TIMEOUT", "declined: contention: %s, after %.0f s", r->why,
                     r->waited_seconds);
}

static bool judge_temperature(struct quiet *q, const struct cool_result *r, struct error *err)
{
    char line[256];
    if (r->state == COOL_NOT_COOL) {
        snprintf(line, sizeof line, "%.1f C after %.0f s%s, the limit is %g C", r->celsius,
                 r->waited_seconds, r->stalled ? " and not getting cooler" : "",
                 q->rules.celsius_max);
        if (q->ranked)
            return error_set(err, "COOL-GATE-TIMEOUT", "the machine is not cool: %s", line);
        char text[300];
        snprintf(text, sizeof text, "cool gate: not cool: %s", line);
        quiet_say(q, text);
    }
    if (r->state == COOL_SKIPPED_NO_READER && q->ranked && q->rules.temperature_required)
        return error_set(err, "TEMPERATURE-READER-MISSING",
                         "no reader: %s gave no usable temperature three times in a row",
                         q->thermometer.name);
    return true;
}

static json_t *add_record(struct quiet *q, const struct quiet_point *at,
                          const struct quiescence_result *quiescence)
{
    json_t *o = json_object();
    json_object_set_new(o, "pair", json_integer(at->pair));
    json_object_set_new(o, "leg", json_string(at->leg ? at->leg : ""));
    json_object_set_new(o, "phase", json_string(at->phase ? at->phase : ""));
    json_object_set_new(o, "quiescence", record_quiescence(quiescence));
    json_object_set_new(o, "temperature", json_null());
    json_object_set_new(o, "telemetry", json_null());
    json_array_append_new(q->records, o);
    return o;
}

/* Where the phase was too short for /proc/stat: by the processes' own clocks, and at least so much
 * as the host must have taken for the counter to move so far. */
static double others_of(const struct quiet *q, const struct share *share,
                        const struct neighbours_seen *seen)
{
    if (!isnan(share->others) || isnan(seen->others))
        return share->others;
    const double stolen = share->stolen - 1 / (q->system->ticks * share->seconds);
    return seen->others + fmax(0, stolen); /* fmax: 0 where it is not known */
}

/* An engine's threads may stand in their own way: what others did bounds what they can have cost.
 */
bool quiet_is_contended(const struct quiet_rules *r, double others_cpu, double run_delay)
{
    return others_cpu >= r->others_cpu_max ||
           (others_cpu >= r->run_delay_max && run_delay >= r->run_delay_max);
}

bool quiet_is_brief(double seconds)
{
    return seconds < BRIEF_BELOW;
}

bool quiet_lets_through(size_t contended, size_t brief_phases)
{
    return contended <= BRIEF_CONTENDED_LEAST || 4 * contended <= brief_phases;
}

static void end_phase(struct quiet *q, struct telemetry *t, double *seconds)
{
    uint64_t count;
    struct phase p = {.clock_source = sampler_clock_source(q->sampler)};
    struct neighbours_seen seen;
    neighbours_end(q->neighbours, &seen); /* first: what follows is work of our own */
    const struct samples *s = sampler_stop(q->sampler, &p.sampler_share);
    const struct work now = work_read(q->system);
    const struct share share = work_between(&q->began, &now);
    own_load_update(&q->own, &now);
    q->last = now;
    q->running = false;
    const bool counted =
        q->counts_throttling && throttle_count_read(q->system, &count) && count > q->throttle_count;
    p.seconds = *seconds = share.seconds;
    p.others_cpu = others_of(q, &share, &seen);
    p.run_delay = seen.run_delay;
    p.stolen = share.stolen;
    telemetry_summarise(s, q->rules.loaded_use, q->rules.clock_floor_mhz,
                        counted ? THROTTLE_CPU_THERMAL : 0, t);
    q->throttled = throttle_is_throttling(t->throttle);
    q->contended = quiet_is_contended(&q->rules, telemetry_rounded(p.others_cpu),
                                      telemetry_rounded(p.run_delay));
    q->brief = quiet_is_brief(telemetry_rounded(p.seconds));
    q->brief_phases += q->brief;
    q->brief_contended += q->brief && q->contended;
    json_object_set_new(q->point, "telemetry", record_telemetry(t, s, &p));
}

bool quiet_before(struct quiet *q, const struct quiet_point *at, struct error *err)
{
    struct quiescence_result quiescence;
    struct cool_result cool;
    struct error ignored;
    if (q->running)
        quiet_after(q, &ignored);
    q->throttled = q->contended = false;
    if (!gate_quiescence(q, &quiescence, err))
        return false;
    q->point = add_record(q, at, &quiescence);
    if (q->ranked && quiescence.state == QUIESCENCE_NOT_QUIET)
        return refuse_contention(&quiescence, err);
    if (!gate_temperature(q, &cool, err))
        return false;
    json_object_set_new(q->point, "temperature",
                        record_temperature(&cool, q->rules.celsius_max, q->thermometer.name));
    if (!judge_temperature(q, &cool, err))
        return false;
    if (q->ranked && cool.state == COOL_WAITED) {
        if (!confirm_quiescence(q, &quiescence, err))
            return false;
        json_object_set_new(q->point, "quiescence", record_quiescence(&quiescence));
        if (quiescence.state == QUIESCENCE_NOT_QUIET)
            return refuse_contention(&quiescence, err);
    }
    q->counts_throttling = throttle_count_read(q->system, &q->throttle_count);
    q->began = work_read(q->system);
    own_load_update(&q->own, &q->began);
    q->last = q->began;
    q->running = true;
    sampler_start(q->sampler);
    neighbours_begin(q->neighbours); /* last: its window is the phase and little more */
    return true;
}

static bool refuse_throttled(const struct telemetry *t, struct error *err)
{
    json_t *names = throttle_names(t->throttle);
    struct buffer list = {0};
    for (size_t i = 0; i < json_array_size(names); i++)
        buffer_printf(&list, "%s%s", i ? ", " : "", json_string_value(json_array_get(names, i)));
    error_set(err, "TELEMETRY-THROTTLED",
              "the machine was slowed down during the phase: %s; lowest steady clock %.0f MHz",
              list.data, t->clock_steady_min);
    buffer_free(&list);
    json_decref(names);
    return false;
}

bool quiet_after(struct quiet *q, struct error *err)
{
    struct telemetry t;
    double seconds;
    if (!q->running)
        return true;
    end_phase(q, &t, &seconds);
    struct error found = {0};
    bool ok = true;
    if (q->throttled)
        ok = refuse_throttled(&t, &found);
    else if ((q->rules.device == QUIET_GPU || q->rules.clock_floor_mhz > 0) && t.steady == 0 &&
             seconds >= STEADY_AFTER)
        ok = error_set(&found, "TELEMETRY-MISSING",
                       "no steady sample of the clock in %.1f s of the phase: %zu samples, "
                       "clock from %s",
                       seconds, t.samples,
                       sampler_clock_source(q->sampler) ? sampler_clock_source(q->sampler)
                                                        : "no reader");
    if (ok)
        return true;
    if (!q->ranked) {
        if (q->throttled)
            quiet_say(q, found.message);
        return true;
    }
    if (err)
        *err = found;
    return false;
}

bool quiet_last_was_throttled(const struct quiet *q)
{
    return q->throttled;
}

bool quiet_last_was_contended(const struct quiet *q)
{
    return q->contended;
}

bool quiet_after_alone(struct quiet *q, struct error *err)
{
    const bool running = q->running;
    if (!quiet_after(q, err))
        return false;
    if (!running || !q->ranked || !q->contended)
        return true;
    const json_t *t = json_object_get(q->point, "telemetry");
    const double others = json_number_value(json_object_get(t, "others_cpu"));
    if (q->brief && quiet_lets_through(q->brief_contended, q->brief_phases)) {
        char line[128];
        snprintf(line, sizeof line, "others took %.2f processors during a phase of %.0f ms", others,
                 json_number_value(json_object_get(t, "seconds")) * 1e3);
        quiet_say(q, line);
        return true;
    }
    if (others >= q->rules.others_cpu_max)
        return error_set(err, "TELEMETRY-CONTENDED",
                         "declined: contention: others took %.2f processors during the phase, the "
                         "limit is %.2f",
                         others, q->rules.others_cpu_max);
    return error_set(err, "TELEMETRY-CONTENDED",
                     "declined: contention: the engine waited for a processor for %.2f of the "
                     "phase while others took %.2f, the limit is %.2f",
                     json_number_value(json_object_get(t, "engine_run_delay")), others,
                     q->rules.run_delay_max);
}

json_t *quiet_records(const struct quiet *q)
{
    return json_deep_copy(q->records);
}

void quiet_close(struct quiet *q)
{
    if (!q)
        return;
    sampler_close(q->sampler);
    neighbours_close(q->neighbours);
    json_decref(q->records);
    quiet_system_close(q->owned);
    free(q);
}
