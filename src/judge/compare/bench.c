#include "judge/compare/bench.h"

#include "base/file.h"
#include "judge/digest.h"
#include "judge/launch.h"
#include "judge/leg.h"
#include "judge/run.h"
#include "judge/weights_format.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernel counts processors' time in ticks of 10 ms: the share that others took of a shorter
 * time than this is mostly rounding. */
static const double SHARE_KNOWN_AFTER = 0.25;

bool bench_is_clean(const struct bench_times *t)
{
    return !t->contended && !t->throttled;
}

static bool load_golden(struct bench *b, struct error *err)
{
    const struct contract *c = b->contract;
    const int64_t steps =
        b->flags->decode_steps > 0 ? b->flags->decode_steps : c->benchmark_decode_steps;
    const struct golden_rules rules = run_golden_rules(c, steps);
    return golden_load(b->flags->golden, &rules, &b->golden, err) &&
           contract_check_pooled(c, b->golden->sha256, b->golden->bytes, err) &&
           measure_find_oracle(b->golden, steps, &b->oracle, err);
}

static bool check_resources(const struct option_list *list, struct error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        size_t length;
        if (!launch_resource_valid(list->items[i], &length)) {
            error_set(err, "USAGE", "NAME=PATH, the name of letters, digits, '.', '_' and '-'");
            return error_at(err, NULL, "--engine-resource", list->items[i]);
        }
    }
    return true;
}

bool bench_open(struct bench *b, const struct bench_flags *f, struct error *err)
{
    const char *track;
    struct error none;
    *b = (struct bench){.flags = f};
    if (!check_resources(&f->resources, err) || !contract_track_from_environment(&track, err) ||
        !contract_load(f->contract, track, &b->contract, err) ||
        !contract_require_window(b->contract, err) || !contract_require_model(b->contract, err))
        return false;
    b->usable = true;
    if (!load_golden(b, err))
        return false;
    b->has_composite = contract_require_weights(b->contract, &none);
    if (b->has_composite) {
        const double sum = b->contract->score_prefill_weight + b->contract->score_decode_weight;
        b->weight_prefill = b->contract->score_prefill_weight / sum;
        b->weight_decode = b->contract->score_decode_weight / sum;
    }
    return quiet_open(&b->contract->quiet, false, true, &b->quiet, err);
}

void bench_close(struct bench *b)
{
    quiet_close(b->quiet);
    golden_free(b->golden);
    contract_free(b->contract);
    arena_free(&b->arena);
}

/* NAME=VALUE with a name that the judge does not set itself. */
static bool check_variable(const char *text, struct error *err)
{
    static const char *const own[] = {"BENCH_WORKER_YARN_MAGNITUDE", "MLXFAST_USE_RUNTIME_WORKER"};
    size_t n = 0;
    while (text[n] == '_' ||
           (n > 0 ? isalnum((unsigned char)text[n]) : isalpha((unsigned char)text[n])))
        n++;
    if (n == 0 || text[n] != '=') {
        error_set(err, "USAGE", "a setting is NAME=VALUE, the name of letters, digits and '_'");
        return error_at(err, NULL, NULL, text);
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && memcmp(own[i], text, n) == 0) {
            error_set(err, "USAGE", "the judge sets %s itself", own[i]);
            return error_at(err, NULL, NULL, text);
        }
    return true;
}

static bool plan_sandbox(struct bench *b, struct bench_setting *s, struct error *err)
{
    const struct bench_flags *f = b->flags;
    const char *const hidden[] = {f->golden, f->contract, NULL};
    const struct sandbox_request request = {
        .mode = SANDBOX_LOCAL,
        .switched_off = f->no_sandbox,
        .engine = s->engine,
        .weights = s->weights,
        .engine_trees = f->trees.count > 0 ? f->trees.items : NULL,
        .resources = f->resources.count > 0 ? f->resources.items : NULL,
        .hidden = hidden,
        .features = contract_is_cuda(b->contract) ? SANDBOX_GPU : 0,
        .environment = environ};
    if (!sandbox_plan(&b->arena, &request, &s->sandbox, err))
        return false;
    if (s->sandbox.reason != NULL && !f->quiet)
        fprintf(stderr, "sandbox: none, %s runs unsandboxed (%s)\n", s->label, s->sandbox.reason);
    return true;
}

bool bench_prepare(struct bench *b, struct bench_setting *s, struct error *err)
{
    uint8_t digest[SHA256_BYTES];
    for (size_t i = 0; s->environment != NULL && s->environment[i] != NULL; i++)
        if (!check_variable(s->environment[i], err))
            return false;
    if (!file_is_directory(s->weights)) {
        error_set(err, "WEIGHTS-MISSING", "the weights folder is not there");
        return error_at(err, s->weights, NULL, NULL);
    }
    if (!run_check_engine(s->engine, err) || !path_stamp(s->weights, s->weights_stamp, err) ||
        !path_stamp(s->engine, s->engine_stamp, err) ||
        !weights_check_golden(s->weights, b->flags->golden, err) ||
        !weights_check_format(s->weights, b->contract, err) ||
        !sha256_file(s->engine, digest, NULL, err))
        return false;
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(s->engine_sha256 + 2 * i, 3, "%02x", digest[i]);
    return plan_sandbox(b, s, err);
}

bool bench_check_unchanged(const struct bench_setting *s, struct error *err)
{
    return stamp_check_weights(s->weights, s->weights_stamp, err) &&
           stamp_check_engine(s->engine, s->engine_stamp, err);
}

struct watcher {
    struct quiet *quiet;
    struct quiet_point point;
};

static bool watch_before(void *context, const char *phase, struct error *err)
{
    struct watcher *w = context;
    w->point.phase = phase;
    return quiet_before(w->quiet, &w->point, err);
}

static bool watch_after(void *context, const char *phase, struct error *err)
{
    (void)phase;
    return quiet_after(((struct watcher *)context)->quiet, err);
}

/* What the records from `first` on, one leg's, say of the machine. */
static void judge_records(struct bench *b, size_t first, struct bench_times *out)
{
    json_t *records = quiet_records(b->quiet);
    double seconds = 0, others = 0;
    for (size_t i = first; i < json_array_size(records); i++) {
        const json_t *r = json_array_get(records, i);
        const json_t *t = json_object_get(r, "telemetry");
        const char *state =
            json_string_value(json_object_get(json_object_get(r, "quiescence"), "state"));
        const json_t *share = json_object_get(t, "others_cpu");
        const double length = json_number_value(json_object_get(t, "seconds"));
        out->contended |= state != NULL && strcmp(state, "not-quiet") == 0;
        out->throttled |= json_is_true(json_object_get(t, "throttled"));
        if (json_is_number(share)) {
            seconds += length;
            others += length * json_number_value(share);
        }
    }
    out->contended |=
        seconds >= SHARE_KNOWN_AFTER && others / seconds >= b->contract->quiet.others_cpu_max;
    b->record_count = json_array_size(records);
    json_decref(records);
}

bool bench_leg(struct bench *b, const struct bench_setting *s, int round, struct bench_times *out,
               struct error *err)
{
    const struct contract *c = b->contract;
    struct watcher watcher = {.quiet = b->quiet, .point = {.pair = round, .leg = s->label}};
    const struct measure_watch watch = {watch_before, watch_after, &watcher};
    const struct leg_plan plan = {
        .engine = s->engine,
        .weights = s->weights,
        .resources = b->flags->resources.count > 0 ? b->flags->resources.items : NULL,
        .environment = s->environment,
        .sandbox = &s->sandbox,
        .yarn_magnitude = c->yarn_magnitude,
        .arithmetic = c->engine_arithmetic,
        .silent = true,
        .oracle = b->oracle,
        .rewarm_runs = c->rewarm_runs,
        .warmup_runs = c->official_prefill_warmup_runs > 0 ? c->official_prefill_warmup_runs : 1,
        .watch = &watch};
    struct arena leg = {0};
    struct leg_result result;
    struct error ignored;
    *out = (struct bench_times){0};
    const bool ok = leg_run(&plan, &leg, &result, err);
    if (!ok)
        quiet_after(b->quiet, &ignored); /* the phase under way */
    judge_records(b, b->record_count, out);
    out->prefill = result.timing.prefill_seconds_per_token;
    out->decode = result.timing.decode_seconds_per_token;
    arena_free(&leg);
    return ok;
}

json_t *bench_seal_setting(const struct bench_setting *s)
{
    json_t *o = json_object(), *environment = json_array();
    json_object_set_new(o, "label", json_string(s->label));
    json_object_set_new(o, "engine", json_string(s->engine));
    json_object_set_new(o, "engine_sha256", json_string(s->engine_sha256));
    json_object_set_new(o, "weights", json_string(s->weights));
    for (size_t i = 0; s->environment != NULL && s->environment[i] != NULL; i++)
        json_array_append_new(environment, json_string(s->environment[i]));
    json_object_set_new(o, "environment", environment);
    return o;
}

static void widen(const json_t *value, double range[2])
{
    if (!json_is_number(value))
        return;
    range[0] = fmin(range[0], json_number_value(value));
    range[1] = fmax(range[1], json_number_value(value));
}

void bench_conditions_text(const json_t *records, struct buffer *out)
{
    double load[2] = {INFINITY, -INFINITY}, celsius[2] = {INFINITY, -INFINITY};
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *r = json_array_get(records, i);
        widen(json_object_get(json_object_get(r, "quiescence"), "load"), load);
        widen(json_object_get(json_object_get(r, "temperature"), "celsius"), celsius);
        widen(json_object_get(json_object_get(r, "telemetry"), "celsius_max"), celsius);
    }
    if (load[0] <= load[1])
        buffer_printf(out, "load %.2f to %.2f", load[0], load[1]);
    else
        buffer_text(out, "load not known");
    if (celsius[0] <= celsius[1])
        buffer_printf(out, ", %.1f to %.1f C", celsius[0], celsius[1]);
    else
        buffer_text(out, ", no temperature reader");
}
