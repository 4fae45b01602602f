/* benchd quiet, and the hidden benchd --local-cool-gate-only. */
#include "judge/tools.h"

#include "base/child.h"
#include "base/json.h"
#include "base/number.h"
#include "judge/contract.h"
#include "judge/quiet/inside.h"
#include "judge/tools_common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INTERRUPTED_EXIT = 130 };
static const double WINDOW = 2; /* as before a ranked phase */

/* What one look found, and what a ranked run would say to it. */
struct finding {
    struct quiescence_result quiescence;
    struct cool_result cool;
    const char *verdict; /* NULL: it would start */
    char why[256];
};

static void find(struct finding *f, const char *verdict, const char *why)
{
    if (f->verdict)
        return;
    f->verdict = verdict;
    text_copy(f->why, sizeof f->why, why);
}

/* Nothing to say between the readings. */
static void silent(void *context, const char *text)
{
    (void)context;
    (void)text;
}

static bool look(struct quiet *q, struct finding *f, struct error *err)
{
    const struct quiet_rules *r = &q->rules;
    char line[128];
    *f = (struct finding){.cool.celsius = NAN};
    if (q->off)
        find(f, "QUIET-GATES-DISABLED", "MLXFAST_LOCAL_COOL_GATE is 0");
    /* A ranked run is refused for it before it waits for anything. */
    if (q->thermometer.kind == THERMOMETER_NONE && r->temperature_required)
        find(f, "TEMPERATURE-READER-MISSING", "no reader, and MLXFAST_GPU_TEMP_CMD is not set");
    q->last = work_read(q->system);
    if (!q->system->sleep(q->system->context, WINDOW, err))
        return false;
    quiet_look(q, &f->quiescence.last);
    if (quiescence_broken(&f->quiescence.last, r, true, f->quiescence.why,
                          sizeof f->quiescence.why)) {
        f->quiescence.state = QUIESCENCE_NOT_QUIET;
        find(f, "QUIESCENCE-TIMEOUT", f->quiescence.why);
    }
    if (q->thermometer.kind == THERMOMETER_NONE)
        f->cool.state = COOL_SKIPPED_NO_READER;
    else if (!cool_gate(q->system, r->celsius_max, 0, quiet_look_celsius, silent, q, &f->cool, err))
        return false;
    if (f->cool.state == COOL_SKIPPED_NO_READER && r->temperature_required)
        find(f, "TEMPERATURE-READER-MISSING", "no usable temperature");
    if (f->cool.state == COOL_NOT_COOL) {
        snprintf(line, sizeof line, "%.1f C, the limit is %g C", f->cool.celsius, r->celsius_max);
        find(f, "COOL-GATE-TIMEOUT", line);
    }
    return true;
}

static const char *shown(double x, const char *format, char out[32])
    __attribute__((format(printf, 2, 0)));
static const char *shown(double x, const char *format, char out[32])
{
    if (isnan(x))
        text_copy(out, 32, "unknown");
    else
        snprintf(out, 32, format, x);
    return out;
}

static const char *or_none(const char *text)
{
    return text && *text ? text : "none";
}

static void print_text(const struct quiet *q, const struct finding *f)
{
    char text[32];
    const struct quiescence *n = &f->quiescence.last;
    const struct quiet_rules *r = &q->rules;
    printf("readers\n  temperature    %s\n  clock          %s\n  GPU            %s\n",
           or_none(q->thermometer.name), or_none(sampler_clock_source(q->sampler)),
           or_none(gpu_name(&q->gpu)));
    printf("now\n  1-minute load  %s (below %g)\n", shown(n->load, "%.2f", text), r->load_max);
    printf("  others' work   %s processors (below %g)\n", shown(n->others_cpu, "%.2f", text),
           r->others_cpu_max);
    printf("  GPU use        %s (below %g)\n", shown(n->gpu_use, "%.2f", text), r->gpu_use_max);
    printf("  temperature    %s (%g C at most)\n", shown(f->cool.celsius, "%.1f C", text),
           r->celsius_max);
    if (!f->verdict)
        printf("a ranked run would start\n");
    else if (strcmp(f->verdict, "QUIESCENCE-TIMEOUT") == 0)
        printf("a ranked run would wait, and after %g s: %s: declined: contention: %s\n",
               r->quiescence_wait_seconds, f->verdict, f->why);
    else if (strcmp(f->verdict, "COOL-GATE-TIMEOUT") == 0)
        printf("a ranked run would wait, and after %g s: %s: %s\n", r->cool_wait_seconds,
               f->verdict, f->why);
    else
        printf("a ranked run would be refused: %s: %s\n", f->verdict, f->why);
}

static json_t *name_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static void print_json(const struct quiet *q, const struct finding *f)
{
    struct buffer out = {0};
    json_t *o = json_object(), *readers = json_object();
    json_object_set_new(readers, "temperature", name_or_null(q->thermometer.name));
    json_object_set_new(readers, "clock", name_or_null(sampler_clock_source(q->sampler)));
    json_object_set_new(readers, "gpu", name_or_null(gpu_name(&q->gpu)));
    json_object_set_new(o, "readers", readers);
    json_object_set_new(o, "quiescence", record_quiescence(&f->quiescence));
    json_object_set_new(o, "temperature",
                        record_temperature(&f->cool, q->rules.celsius_max, q->thermometer.name));
    json_object_set_new(o, "quiet", json_boolean(f->verdict == NULL));
    json_object_set_new(o, "verdict", name_or_null(f->verdict));
    json_object_set_new(o, "why", json_string(f->why));
    json_write_ordered(o, 2, &out);
    printf("%s\n", out.data);
    json_decref(o);
    buffer_free(&out);
}

static bool measure_sampler(struct quiet *q, int64_t seconds, bool as_json, struct error *err)
{
    double share;
    sampler_start(q->sampler);
    const bool slept = q->system->sleep(q->system->context, (double)seconds, err);
    const struct samples *s = sampler_stop(q->sampler, &share);
    if (!slept)
        return false;
    if (as_json)
        printf("{\"samples\":%zu,\"seconds\":%lld,\"sampler_share\":%.6f}\n", s->count,
               (long long)seconds, isnan(share) ? 0 : share);
    else
        printf("sampler: %zu samples in %lld s, %.3f %% of a core\n", s->count, (long long)seconds,
               100 * (isnan(share) ? 0 : share));
    return true;
}

/* Without a contract the device is a GPU where one can be read. */
static bool open_local(struct quiet_system *s, struct quiet_rules *rules, bool any_device,
                       struct quiet **out, struct error *err)
{
    if (any_device) {
        struct gpu gpu;
        gpu_open(&gpu, s);
        rules->device = gpu_name(&gpu) ? QUIET_GPU : QUIET_CPU;
    }
    return quiet_open_on(s, rules, false, true, out, err);
}

static int fail(const char *tool, const struct error *err)
{
    tool_complain(tool, err);
    return strcmp(err->name, "Interrupted") == 0 ? INTERRUPTED_EXIT : TOOL_REJECTED;
}

int tool_quiet(int argc, char **argv)
{
    static const char tool[] = "quiet";
    const char *contract = NULL, *track = NULL;
    bool as_json = false, has_cost = false;
    int64_t cost = 0;
    const struct option_spec options[] = {
        {"--contract", OPTION_TEXT, false, "FILE",
         "The track's contract: its group quiet. Without it the defaults, and a GPU where there "
         "is one.",
         &contract, NULL, 0, 0},
        {"--json", OPTION_SWITCH, false, NULL, "A JSON object instead of text.", &as_json, NULL, 0,
         0},
        {"--sampler-cost", OPTION_INT, false, "SECONDS",
         "Instead: run the telemetry for so long and print the share of a core it takes.", &cost,
         &has_cost, 1, 600},
    };
    const struct command command = {
        "benchd quiet",
        "Says what can be read of this machine and whether a ranked run would start now.",
        "One look of two seconds; nothing is waited for.\n"
        "Exit: 0 quiet, 1 not, 2 usage or unusable contract, 130 interrupted.\n"
        "Environment: MLXFAST_GPU_TEMP_CMD, a command for /bin/sh, prints the temperature in "
        "degrees Celsius and wins over every other reader.",
        NULL,
        options,
        sizeof options / sizeof options[0]};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct error err = {0};
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct contract *c = NULL;
    if (contract && (!contract_track_from_environment(&track, &err) ||
                     !contract_load(contract, track, &c, &err))) {
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    if (c)
        rules = c->quiet;
    struct quiet_system *s = quiet_system_open();
    struct quiet *q = NULL;
    struct finding f;
    if (!open_local(s, &rules, c == NULL, &q, &err) ||
        (has_cost ? !measure_sampler(q, cost, as_json, &err) : !look(q, &f, &err))) {
        code = fail(tool, &err);
    } else if (has_cost) {
        code = TOOL_OK;
    } else {
        if (as_json)
            print_json(q, &f);
        else
            print_text(q, &f);
        code = f.verdict ? TOOL_REJECTED : TOOL_OK;
    }
    quiet_close(q);
    quiet_system_close(s);
    contract_free(c);
    return code;
}

/* ---- --local-cool-gate-only ---- */

/* MLXFAST_LOCAL_TEST_CLOCK=1, of tests, here alone: waiting takes no time. */
static double passed;
static double test_now(void *context)
{
    (void)context;
    return passed;
}
static bool test_sleep(void *context, double seconds, struct error *err)
{
    (void)context;
    passed += seconds;
    return !interrupt_requested() ||
           error_set(err, "Interrupted", "stopped by a signal while waiting for quiet");
}

static bool read_limit(struct quiet_rules *rules, struct error *err)
{
    static const char name[] = "MLXFAST_LOCAL_COOL_TARGET_C";
    const char *text = getenv(name);
    if (!text || !*text)
        return true;
    if (number_double(text, &rules->celsius_max) && parse_celsius_is_usable(rules->celsius_max))
        return true;
    error_set(err, "USAGE", "%s is a temperature in degrees Celsius", name);
    return error_at(err, NULL, name, text);
}

struct phase_gate {
    struct quiet *quiet;
    const char *phase;
};

static bool phase_celsius(void *context, double *celsius)
{
    return quiet_look_celsius(((const struct phase_gate *)context)->quiet, celsius);
}

static void phase_say(void *context, const char *text)
{
    fprintf(stderr, "%s: %s\n", ((const struct phase_gate *)context)->phase, text);
}

static int report_gate(const struct phase_gate *g, const struct cool_result *r)
{
    const struct quiet *q = g->quiet;
    switch (r->state) {
    case COOL_FIRED:
    case COOL_WAITED:
        fprintf(stderr, "%s: cool gate: %.1f C, cool (%g at most), waited %.0f s; %s\n", g->phase,
                r->celsius, q->rules.celsius_max, r->waited_seconds, q->thermometer.name);
        return TOOL_OK;
    case COOL_SKIPPED_NO_READER:
        fprintf(stderr, "%s: cool gate: skipped, no usable temperature reader\n", g->phase);
        return TOOL_OK;
    case COOL_OFF:
        fprintf(stderr, "%s: cool gate: off, MLXFAST_LOCAL_COOL_GATE is 0\n", g->phase);
        return TOOL_OK;
    case COOL_NOT_COOL:
        break;
    }
    fprintf(stderr, "%s: cool gate: aborted, %.1f C after %.0f s%s, the limit is %g C\n", g->phase,
            r->celsius, r->waited_seconds, r->stalled ? " and not getting cooler" : "",
            q->rules.celsius_max);
    return TOOL_REJECTED;
}

int tool_cool_gate_only(int argc, char **argv)
{
    static const char tool[] = "--local-cool-gate-only";
    const struct command command = {
        "benchd --local-cool-gate-only",
        "Runs the cool gate alone (for scripts).",
        "Exit: 0 cool or skipped, 1 aborted, 2 usage, 130 interrupted.\n"
        "Environment: MLXFAST_LOCAL_COOL_GATE_PHASE (local) is the label of the lines; "
        "MLXFAST_LOCAL_COOL_TARGET_C (60) the limit; MLXFAST_LOCAL_COOL_GATE=0 turns it off; "
        "MLXFAST_GPU_TEMP_CMD is the reader.",
        NULL,
        NULL,
        0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct error err = {0};
    struct quiet_rules rules = quiet_rules_default(NULL);
    const char *phase = getenv("MLXFAST_LOCAL_COOL_GATE_PHASE");
    const char *clock = getenv("MLXFAST_LOCAL_TEST_CLOCK");
    struct phase_gate g = {.phase = phase && *phase ? phase : "local"};
    struct cool_result r = {.celsius = NAN, .state = COOL_SKIPPED_NO_READER};
    if (!read_limit(&rules, &err)) {
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    struct quiet_system *s = quiet_system_open();
    if (clock && strcmp(clock, "1") == 0) {
        s->now = test_now;
        s->sleep = test_sleep;
    }
    if (!open_local(s, &rules, true, &g.quiet, &err)) {
        quiet_system_close(s);
        return fail(tool, &err);
    }
    if (g.quiet->off)
        r.state = COOL_OFF;
    else if (g.quiet->thermometer.kind != THERMOMETER_NONE &&
             !cool_gate(s, rules.celsius_max, rules.cool_wait_seconds, phase_celsius, phase_say, &g,
                        &r, &err)) {
        quiet_close(g.quiet);
        quiet_system_close(s);
        return fail(tool, &err);
    }
    /* A signal while a temperature was read looks like a reading that failed. */
    if (interrupt_requested()) {
        error_set(&err, "Interrupted", "stopped by a signal while waiting for quiet");
        code = fail(tool, &err);
    } else {
        code = report_gate(&g, &r);
    }
    quiet_close(g.quiet);
    quiet_system_close(s);
    return code;
}
