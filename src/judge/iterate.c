#include "judge/iterate.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/file.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/gates.h"
#include "judge/golden.h"
#include "judge/leg.h"
#include "judge/measure.h"
#include "judge/quiet/quiet.h"
#include "judge/report.h"
#include "judge/run.h"
#include "judge/sandbox.h"
#include "judge/score.h"
#include "judge/seal.h"
#include "judge/weights_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *runtime;
} modes[] = {[ITERATE_LOCAL_ITERATE] = {"local-iterate", "rust-local-iterate"},
             [ITERATE_LOCAL_SUBMIT] = {"local-submit", "rust-local-submit"}};

struct run {
    const struct iterate_options *o;
    struct arena arena;
    struct contract *contract;
    struct golden *golden;
    struct sandbox_plan sandbox;
    struct wire_spec spec;
    struct score_document score;
    struct tree_digest weights;
    bool has_weights;
    /* before they were read */
    char weights_stamp[SHA256_HEX], engine_stamp[SHA256_HEX], drafter_stamp[SHA256_HEX];
    int64_t decode_steps;
    struct leg_result leg;
    struct gates_latency latency;
    struct semantic_judge semantic;
    struct quiet *quiet; /* NULL: not opened */
    int64_t started_ns;
    double preflight_seconds;
};

/* The contract's own rules; nothing is written when one of them fails. */

static bool check_contract(struct run *r, struct error *err)
{
    const struct contract *c = r->contract;
    if (!contract_require_window(c, err) || !contract_require_model(c, err))
        return false;
    if (!contract_require_control_leg_rule(c, err))
        return false;
    if (c->scores_against_live_control_leg) {
        if (r->o->stored_baseline_given)
            return error_set(err, "STORED-BASELINE-OVERRIDE-REFUSED",
                             "track \"%s\" scores against a live control leg; a stored baseline "
                             "pair has no place in it",
                             c->track_id);
        return true;
    }
    if (!c->has_official_baseline)
        return error_set(err, "OFFICIAL-BASELINE-PENDING-CAPTURE",
                         "track \"%s\" scores against a stored pair and declares none",
                         c->track_id);
    return contract_require_weights(c, err) && contract_require_floors(c, err);
}

/* Preflight: everything that can be known before the engine starts. */

static bool load_golden(struct run *r, struct error *err)
{
    const struct contract *c = r->contract;
    struct golden_rules rules = run_golden_rules(c, r->decode_steps);
    rules.pin_sha256 = r->o->golden_sha256;
    rules.pin_bytes = r->o->golden_bytes;
    return golden_load(r->o->golden, &rules, &r->golden, err) &&
           contract_check_pooled(c, r->golden->sha256, r->golden->bytes, err);
}

/* Local modes go on without a sandbox where none can be built, and say so. */
static bool plan_sandbox(struct run *r, struct error *err)
{
    const struct iterate_options *o = r->o;
    const char *const hidden[] = {o->golden, o->contract, NULL};
    const struct sandbox_request request = {.mode = SANDBOX_LOCAL,
                                            .switched_off = o->no_sandbox,
                                            .engine = o->engine,
                                            .weights = o->weights,
                                            .drafter = o->drafter,
                                            .engine_trees = o->engine_trees,
                                            .resources = o->resources,
                                            .hidden = hidden,
                                            .features =
                                                contract_is_cuda(r->contract) ? SANDBOX_GPU : 0,
                                            .environment = environ};
    if (!sandbox_plan(&r->arena, &request, &r->sandbox, err))
        return false;
    if (r->sandbox.reason != NULL && !o->quiet)
        fprintf(stderr, "sandbox: none, the engine runs unsandboxed (%s)\n", r->sandbox.reason);
    return true;
}

static bool preflight(struct run *r, struct leg_plan *plan, struct error *err)
{
    const struct iterate_options *o = r->o;
    struct score_document *d = &r->score;
    if (!run_seal_source(false, d, err))
        return false;
    if (!file_is_directory(o->weights)) {
        error_set(err, "WEIGHTS-MISSING", "the weights folder is not there");
        return error_at(err, o->weights, NULL, NULL);
    }
    if (o->drafter != NULL && !file_is_directory(o->drafter)) {
        error_set(err, "DRAFTER-MISSING", "the drafter's folder is not there");
        return error_at(err, o->drafter, NULL, NULL);
    }
    if ((o->drafter != NULL && !path_stamp(o->drafter, r->drafter_stamp, err)) ||
        !path_stamp(o->weights, r->weights_stamp, err) ||
        !weights_digest(o->weights, &r->weights, err))
        return false;
    r->has_weights = true;
    score_set_text(d, "weights_hash", r->weights.sha256);
    score_set_int(d, "weights_byte_count", (int64_t)r->weights.bytes);
    score_set_int(d, "weights_file_count", (int64_t)r->weights.files);
    if (!load_golden(r, err) || !weights_check_golden(o->weights, o->golden, err) ||
        !weights_check_format(o->weights, r->contract, err) ||
        !weights_check_shape(o->weights, r->contract, err) ||
        (o->drafter != NULL && !weights_check_golden(o->drafter, o->golden, err)))
        return false;
    score_set_text(d, "golden_hash", r->golden->sha256);
    score_set_int(d, "case_count", (int64_t)golden_gate_case_count(r->golden));
    if (o->strict &&
        !semantic_check_ready(&r->semantic, r->golden, r->contract->semantic_min_pass, err))
        return false;
    if (!measure_find_oracle(r->golden, r->decode_steps, &plan->oracle, err))
        return false;
    return run_check_engine(o->engine, err) && path_stamp(o->engine, r->engine_stamp, err) &&
           plan_sandbox(r, err);
}

/* The machine's condition around each phase: told, and of no consequence. */

static bool look_before(void *context, const char *phase, struct error *err)
{
    struct run *r = context;
    const struct quiet_point at = {.pair = 0, .leg = "candidate", .phase = phase};
    return quiet_before(r->quiet, &at, err);
}

static bool look_after(void *context, const char *phase, struct error *err)
{
    struct run *r = context;
    (void)phase;
    return quiet_after(r->quiet, err);
}

static bool drive(struct run *r, struct leg_plan *plan, struct error *err)
{
    const struct iterate_options *o = r->o;
    struct gates_plan gates = run_gates_plan(r->contract, r->golden, &r->semantic);
    gates.all = o->strict;
    gates.quiet = o->quiet;
    gates.latency = &r->latency;
    struct quiet_rules rules = r->contract->quiet;
    const struct measure_watch watch = {look_before, look_after, r};
    rules.cool_gate = o->cool_gate;
    r->latency = run_latency(r->contract, &r->arena);
    plan->sandbox = &r->sandbox;
    plan->gates = &gates;
    plan->watch = &watch;
    const bool ok = quiet_open(&rules, false, o->quiet, &r->quiet, err) &&
                    leg_run(plan, &r->arena, &r->leg, err);
    if (r->quiet != NULL)
        score_set_json(&r->score, "gates", quiet_records(r->quiet));
    if (r->leg.started)
        leg_seal_identity(&r->leg.identity, &r->score);
    if (r->leg.peak_bytes > 0) {
        score_set_number(&r->score, "peak_ram_gb", (double)r->leg.peak_bytes * 1e-9);
        score_set_number(&r->score, "process_resident_memory_gb",
                         (double)r->leg.resident_bytes * 1e-9);
    }
    return ok;
}

/* Filling in the document. */

static void seal_timing(struct run *r)
{
    struct score_document *d = &r->score;
    const struct measure_result *m = &r->leg.timing;
    if (m->prefill_seconds_per_token > 0) {
        score_set_number(d, "prefill_seconds_per_token", m->prefill_seconds_per_token);
        score_set_number(d, "candidate_leg_prefill_seconds_per_token",
                         m->prefill_seconds_per_token);
    }
    score_set_number(d, "timed_benchmark_seconds",
                     m->prefill_seconds + m->seed_window_seconds + m->decode_window_seconds);
    if (!m->timed)
        return;
    score_set_number(d, "decode_seconds_per_token", m->decode_seconds_per_token);
    score_set_number(d, "candidate_leg_decode_seconds_per_token", m->decode_seconds_per_token);
    score_set_number(d, "candidate_leg_decode_window_seconds_per_token",
                     m->decode_seconds_per_token);
    score_set_number(d, "candidate_leg_seed_prefill_window_seconds_per_token",
                     m->seed_window_seconds_per_token);
    leg_seal_speculation(m, d);
    run_seal_experts(&m->expert_stats, m->decode_tokens, d);
}

static void seal_gates(struct run *r)
{
    struct score_document *d = &r->score;
    const struct gates_result *g = &r->leg.gates;
    score_set_bool(d, "passed_correctness", r->leg.gates_ran && g->passed);
    score_set_number(d, "correctness_seconds", r->leg.correctness_seconds);
    gates_seal(g, d);
    gates_seal_latency(&r->latency, d);
    if (r->leg.timing.mismatch.present) {
        score_set_text(d, "first_failing_case", r->leg.timing.mismatch.label);
        score_set_int(d, "first_failing_step", r->leg.timing.mismatch.step);
        score_set_int(d, "expected_token", r->leg.timing.mismatch.expected);
        score_set_int(d, "actual_token", r->leg.timing.mismatch.actual);
    }
}

static void seal_phases(struct run *r, bool started)
{
    const char *timing = !started ? "not_run" : r->leg.timing.timed ? "passed" : "failed";
    const char *correctness = !r->leg.timing.timed                      ? "not_run"
                              : r->leg.gates_ran && r->leg.gates.passed ? "passed"
                                                                        : "failed";
    json_t *phases = json_object();
    json_object_set_new(phases, "correctness", json_string(correctness));
    json_object_set_new(phases, "correctness_checked_steps",
                        json_integer(r->leg.gates.checked_steps));
    json_object_set_new(phases, "timing", json_string(timing));
    score_set_json(&r->score, "local_phases", phases);
}

/* The first axis that is faster than its acceptance band allows (contract-and-scoring.md section
 * 2), in words; "" where none is. */
static void find_disbelieved(const struct contract *c, const struct measure_result *m, char *text,
                             size_t size)
{
    const struct {
        const char *axis;
        bool enabled;
        double seconds, reference, down;
    } axes[] = {
        {"prefill", c->prefill_band_down_enabled, m->prefill_seconds_per_token,
         c->official_baseline_prefill, c->prefill_band_down},
        {"decode", c->decode_band_down_enabled, m->decode_seconds_per_token,
         c->official_baseline_decode, c->decode_band_down},
    };
    text[0] = '\0';
    for (size_t i = 0; i < sizeof axes / sizeof *axes && text[0] == '\0'; i++)
        if (axes[i].enabled && !score_is_believed(axes[i].seconds, axes[i].reference, axes[i].down))
            snprintf(text, size, "%s_seconds_per_token=%.9g is less than %.9g", axes[i].axis,
                     axes[i].seconds, axes[i].reference * (1 - axes[i].down));
}

/* Stored-pair tracks only: the captured pair of the contract is the local denominator. */
static void seal_stored_score(struct run *r)
{
    struct score_document *d = &r->score;
    const struct contract *c = r->contract;
    const double prefill =
        score_speedup(c->official_baseline_prefill, r->leg.timing.prefill_seconds_per_token);
    const double decode =
        score_speedup(c->official_baseline_decode, r->leg.timing.decode_seconds_per_token);
    const bool prefill_ok = score_clears_floor(prefill, c->prefill_speedup_floor);
    const bool decode_ok = score_clears_floor(decode, c->decode_speedup_floor);
    const double score =
        score_composite(prefill, decode, c->score_prefill_weight, c->score_decode_weight);
    score_set_text(d, "baseline_source", "contract");
    score_set_number(d, "baseline_prefill_seconds_per_token", c->official_baseline_prefill);
    score_set_number(d, "baseline_decode_seconds_per_token", c->official_baseline_decode);
    score_set_number(d, "prefill_speedup", prefill);
    score_set_number(d, "decode_speedup", decode);
    score_set_bool(d, "passed_prefill_speedup_floor", prefill_ok);
    score_set_bool(d, "passed_decode_speedup_floor", decode_ok);
    char text[256];
    find_disbelieved(c, &r->leg.timing, text, sizeof text);
    if (!isfinite(score)) {
        score_fail(d, "score", "computed score was not finite");
    } else if (!prefill_ok || !decode_ok) {
        snprintf(text, sizeof text,
                 "decode_speedup=%.6f floor=%.6f prefill_speedup=%.6f floor=%.6f", decode,
                 c->decode_speedup_floor, prefill, c->prefill_speedup_floor);
        score_fail(d, "performance floor failed", text);
    } else if (text[0] != '\0') {
        score_fail(d, "acceptance band failed", text);
    } else {
        d->has_score = true;
        d->score = score;
    }
}

static void seal_verdict(struct run *r, bool ran, const struct error *why)
{
    struct score_document *d = &r->score;
    if (!ran) {
        run_seal_failure(why, d);
    } else if (!r->leg.gates.passed) {
        struct buffer text = {0};
        gates_failure_text(&r->leg.gates, &text);
        score_fail(d, r->leg.gates.error, text.data);
        buffer_free(&text);
    } else {
        d->passed = true;
        if (r->contract->scores_against_live_control_leg)
            score_set_text(d, "baseline_source", "none (local mode: unscored)");
        else
            seal_stored_score(r);
    }
}

static bool seal(struct run *r, struct error *err)
{
    const struct iterate_options *o = r->o;
    const struct seal_inputs in = {.score_path = o->score_path,
                                   .weights_path = o->weights,
                                   .weights_sha256 = r->has_weights ? r->weights.sha256 : NULL,
                                   .weights_file_count = r->weights.files,
                                   .weights_byte_count = r->weights.bytes,
                                   .golden_path = o->golden,
                                   .golden_sha256 = r->golden != NULL ? r->golden->sha256 : NULL,
                                   .candidate_executable = o->engine,
                                   .benchd_executable = run_own_path(&r->arena),
                                   .sandbox = r->sandbox.seal, /* NULL, "none": never planned */
                                   .local_iterate = o->mode == ITERATE_LOCAL_ITERATE};
    return seal_write(&r->score, &in, err);
}

static enum iterate_exit run_and_seal(struct run *r, struct leg_plan *plan, struct error *err)
{
    struct error why = {0};
    const bool ready = preflight(r, plan, &why);
    r->preflight_seconds = clock_seconds(r->started_ns);
    if (interrupt_requested()) { /* hashing large weights takes a while */
        error_set(err, "Interrupted", "interrupted before the engine was started");
        return ITERATE_INTERRUPTED;
    }
    bool ran = ready && drive(r, plan, &why);
    if (strcmp(why.name, "Interrupted") == 0) {
        *err = why;
        return ITERATE_INTERRUPTED;
    }
    ran = ran && stamp_check_weights(r->o->weights, r->weights_stamp, &why) &&
          (r->o->drafter == NULL || stamp_check_drafter(r->o->drafter, r->drafter_stamp, &why)) &&
          stamp_check_engine(r->o->engine, r->engine_stamp, &why);
    run_seal_contract(r->contract, &r->score);
    seal_timing(r);
    seal_gates(r);
    seal_phases(r, r->leg.started);
    seal_verdict(r, ran, &why);
    score_set_number(&r->score, "preflight_seconds", r->preflight_seconds);
    score_set_number(&r->score, "benchmark_wall_seconds", clock_seconds(r->started_ns));
    const bool passed = r->score.passed;
    if (!seal(r, err))
        return ITERATE_NOT_PASSED;
    if (!r->o->quiet)
        report_run(&r->score, &r->leg.gates, r->leg.gates_ran, &r->leg.timing, r->o->score_path);
    if (passed)
        return ITERATE_PASSED;
    if (!ran)
        *err = why;
    else
        error_set(err, "NOT-PASSED", "%s",
                  json_string_value(json_object_get(r->score.metrics, "error")));
    return ITERATE_NOT_PASSED;
}

static bool keeps_inputs(const struct iterate_options *o, struct error *err)
{
    const char *const inputs[] = {o->contract, o->golden, o->engine, o->weights, o->drafter};
    return seal_keeps(o->score_path, o->mode == ITERATE_LOCAL_ITERATE, inputs,
                      sizeof inputs / sizeof *inputs, err);
}

enum iterate_exit iterate_run(const struct iterate_options *o, struct error *err)
{
    struct run r = {.o = o, .started_ns = clock_now_ns()};
    const char *track;
    struct client_options checked = {0}; /* what the environment says wrongly is misuse */
    double ceiling;
    struct leg_plan plan = {.engine = o->engine,
                            .weights = o->weights,
                            .drafter = o->drafter,
                            .resources = o->resources,
                            .silent = o->quiet};
    enum iterate_exit result = ITERATE_REFUSED;
    score_document_init(&r.score, modes[o->mode].runtime);
    if (contract_track_from_environment(&track, err) &&
        contract_load(o->contract, track, &r.contract, err) && check_contract(&r, err) &&
        run_resolve_spec(&r.arena, r.contract, o->candidate_spec, o->mtp_depth, &r.spec, err) &&
        client_deadlines_from_environment(&checked, err) &&
        client_ceiling_from_environment(&ceiling, err) &&
        semantic_judge_from_environment(&r.semantic, err) && keeps_inputs(o, err) &&
        seal_check(o->score_path, o->mode == ITERATE_LOCAL_ITERATE, err)) {
        const struct contract *c = r.contract;
        r.decode_steps = o->mode == ITERATE_LOCAL_SUBMIT ? c->local_submit_benchmark_decode_steps
                                                         : c->benchmark_decode_steps;
        plan.yarn_magnitude = c->yarn_magnitude;
        plan.arithmetic = c->engine_arithmetic;
        plan.spec = r.spec.present ? &r.spec : NULL;
        /* A first pass pays for cold pages; local modes always make one. */
        plan.rewarm_runs = c->rewarm_runs;
        plan.warmup_runs =
            c->official_prefill_warmup_runs > 0 ? c->official_prefill_warmup_runs : 1;
        result = run_and_seal(&r, &plan, err);
    }
    quiet_close(r.quiet);
    score_document_free(&r.score);
    golden_free(r.golden);
    contract_free(r.contract);
    run_free_spec(&r.spec);
    arena_free(&r.arena);
    return result;
}
