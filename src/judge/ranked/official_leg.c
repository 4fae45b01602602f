/* The legs of a ranked run: each its own process (and resident service, where the tree has one), in
 * the sandbox, between the quiet gates; then the replay and the check of correctness. */
#include "judge/ranked/official_run.h"

#include "base/clock.h"
#include "judge/ranked/resident.h"
#include "judge/ranked/token_replay.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- what the machine must be like ---- */

static bool before(void *context, const char *phase, struct error *err)
{
    struct official *r = context;
    r->at.phase = phase;
    r->machine_refused = !quiet_before(r->quiet, &r->at, err);
    return !r->machine_refused;
}

static bool after(void *context, const char *phase, struct error *err)
{
    struct official *r = context;
    (void)phase;
    r->machine_refused = !quiet_after_alone(r->quiet, err);
    return !r->machine_refused;
}

/* ---- one engine of one tree ---- */

static bool plan_sandbox(struct official *r, const struct official_tree *t, bool reference,
                         char *const *environment, struct sandbox_plan *out, struct error *err)
{
    const struct official_options *o = r->o;
    const char *const *trees = o->engine_trees;
    if (reference && !roots_engine_trees(t->workspace, trees, &r->arena, &trees, err))
        return false;
    const struct sandbox_request request = {.mode = o->local ? SANDBOX_LOCAL : SANDBOX_OFFICIAL,
                                            .switched_off = o->no_sandbox,
                                            .reference_leg = reference,
                                            .engine = t->engine,
                                            .weights = t->weights,
                                            .engine_trees = trees,
                                            .resources = o->resources,
                                            .hidden = r->hidden,
                                            .features =
                                                contract_is_cuda(r->contract) ? SANDBOX_GPU : 0,
                                            .environment = environment};
    if (!sandbox_plan(&r->arena, &request, out, err))
        return false;
    if (!reference || r->sandbox_seal == NULL)
        r->sandbox_seal = out->seal;
    return true;
}

static int64_t draft_length(const struct wire_spec *spec)
{
    if (spec == NULL)
        return 0;
    const json_t *depth = json_object_get(spec->dflash, "depth");
    return spec->has_mtp ? spec->mtp_depth.value : json_integer_value(depth);
}

/* A resident of the leg's own tree, ready before the worker starts. NULL where there are none. */
static bool boot(struct official *r, const struct official_tree *t, const struct wire_spec *spec,
                 struct resident **out, struct error *err)
{
    *out = NULL;
    if (!r->residents)
        return true;
    const struct resident_plan plan = {.workspace = t->workspace,
                                       .cuda = contract_is_cuda(r->contract),
                                       .spec_mode = spec != NULL ? spec->mode : NULL,
                                       .draft_length = draft_length(spec),
                                       .environment = environ,
                                       .yarn_magnitude = r->contract->yarn_magnitude,
                                       .arithmetic = r->contract->engine_arithmetic,
                                       .silent = r->o->quiet};
    return resident_boot(&plan, out, err);
}

/* Two legs must not have shared a resident. */
static bool check_resident(struct official *r, const struct leg_result *leg, struct error *err)
{
    if (!r->residents)
        return true;
    const bool ok =
        !r->has_last_resident || resident_check_legs(&r->last_resident, &leg->identity, err);
    r->last_resident = leg->identity;
    r->has_last_resident = true;
    return ok;
}

/* Runs the plan in the tree: sandbox and resident around it. */
static bool run_in_tree(struct official *r, const struct official_tree *t, bool reference,
                        struct leg_plan *plan, struct leg_result *out, struct error *err)
{
    struct sandbox_plan sandbox;
    struct resident *resident;
    *out = (struct leg_result){0};
    if (!boot(r, t, plan->spec, &resident, err))
        return false;
    char *const *environment =
        resident != NULL ? resident_environment(resident, &r->arena, environ) : environ;
    plan->engine = t->engine;
    plan->weights = t->weights;
    plan->resources = r->o->resources;
    plan->yarn_magnitude = r->contract->yarn_magnitude;
    plan->arithmetic = r->contract->engine_arithmetic;
    plan->withhold_text = !r->o->local;
    plan->silent = !r->o->local || r->o->quiet; /* an engine's log is no part of a ranked run */
    plan->sandbox = &sandbox;
    plan->environment = resident != NULL ? resident_variables(resident) : NULL;
    r->machine_refused = r->engine_failed = false;
    bool ok = plan_sandbox(r, t, reference, environment, &sandbox, err);
    if (ok) {
        ok = leg_run(plan, &r->arena, out, err);
        r->engine_failed = !ok && !r->machine_refused;
    }
    ok = ok && check_resident(r, out, err);
    struct error stop = {0};
    if (!resident_stop(resident, &stop) && ok) {
        *err = stop;
        ok = false;
    }
    resident_free(resident);
    return ok;
}

/* ---- the legs of pairs ---- */

static bool is_candidate(const struct ranked_slot *slot)
{
    return slot->role == RANKED_CANDIDATE;
}

/* A control leg's engine that fails is no failure of the candidate, and has a name that says so. */
static bool control_failed(const struct official *r, const struct ranked_slot *slot,
                           struct error *err)
{
    const struct error why = *err;
    if (!r->engine_failed || strcmp(why.name, "Interrupted") == 0)
        return false;
    return error_set(err, "SERIAL-CONTROL-LEG-FAILED", "pair %d, %s leg: %s: %s", slot->pair,
                     ranked_role_name(slot->role), why.name, why.message);
}

static void say_leg(const struct official *r, const struct ranked_slot *slot)
{
    if (r->o->quiet)
        return;
    const double seconds = clock_seconds(r->started_ns) - r->preflight_seconds;
    const size_t left = slot->planned - slot->done;
    if (slot->done == 0)
        fprintf(stderr, "leg 1 of %zu: pair %d, %s\n", slot->planned, slot->pair,
                ranked_role_name(slot->role));
    else
        fprintf(stderr, "leg %zu of %zu: pair %d, %s (about %.0f s left)\n", slot->done + 1,
                slot->planned, slot->pair, ranked_role_name(slot->role),
                seconds / (double)slot->done * (double)left);
}

static void take_times(const struct measure_result *m, struct pair_times *out)
{
    *out = (struct pair_times){.prefill = m->prefill_seconds_per_token,
                               .decode = m->decode_seconds_per_token,
                               .seed_prefill_window = m->seed_window_seconds_per_token,
                               .prefill_barrier = m->prefill_barrier_seconds,
                               .decode_barrier = m->decode_barrier_seconds};
}

/* A pair that is measured again: its last leg. */
static void take_candidate(struct official *r, int pair, const struct leg_result *leg)
{
    r->candidates[pair - 1] = *leg;
    r->candidate_count = (size_t)pair;
    if (leg->peak_bytes > r->peak_bytes)
        r->peak_bytes = leg->peak_bytes;
    if (leg->resident_bytes > r->resident_bytes)
        r->resident_bytes = leg->resident_bytes;
}

/* Whether this box is what it was when it was calibrated: this leg, or most of them. */
static bool check_health(struct official *r, const struct ranked_slot *slot,
                         const struct pair_times *leg, struct error *err)
{
    const struct calibration_bands bands = calibration_bands(r->contract);
    struct calibration_tally *t = &r->tally;
    struct error why = {0};
    t->every = r->contract->combine_mean;
    t->planned = r->rule.min_pairs + 2 * r->rule.null_pairs;
    const bool healthy = calibration_health(r->prompts[slot->golden].calibrated, &bands,
                                            leg->prefill, leg->decode, &why);
    if (calibration_tally_add(t, healthy))
        return true;
    r->outside_band = true;
    *err = why;
    return false;
}

bool official_measure(void *context, const struct ranked_slot *slot, struct pair_times *out,
                      struct error *err)
{
    struct official *r = context;
    const struct official_prompt *p = &r->prompts[slot->golden];
    const bool candidate = is_candidate(slot);
    const struct measure_watch watch = {before, after, r};
    struct leg_plan plan = {.oracle = candidate ? p->oracle : p->control_oracle,
                            .warmup_runs = r->contract->official_prefill_warmup_runs,
                            .rewarm_runs = r->contract->rewarm_runs,
                            .spec = candidate && r->spec.present ? &r->spec : NULL,
                            .tolerant = candidate && r->contract->has_token_tolerance,
                            .watch = &watch};
    struct leg_result leg;
    r->at = (struct quiet_point){.pair = slot->pair, .leg = ranked_role_name(slot->role)};
    say_leg(r, slot);
    const bool ok =
        run_in_tree(r, candidate ? &r->candidate : &r->reference, !candidate, &plan, &leg, err);
    const struct measure_result *m = &leg.timing;
    r->timed_seconds += m->prefill_seconds + m->seed_window_seconds + m->decode_window_seconds;
    take_times(m, out);
    if (candidate && leg.started)
        take_candidate(r, slot->pair, &leg);
    if (candidate)
        return ok;
    if (!ok)
        return control_failed(r, slot, err);
    if (leg.timing.speculated)
        return error_set(err, "SERIAL-CONTROL-LEG-FAILED",
                         "pair %d: the control leg's engine speculated", slot->pair);
    return check_health(r, slot, out, err);
}

bool official_check_enforced(struct official *r, struct error *err)
{
    const struct ranked_pair *p = &r->runs.pairs[r->combined.enforced];
    const struct calibration_bands bands = calibration_bands(r->contract);
    r->outside_band = !calibration_health(r->prompts[p->golden].calibrated, &bands,
                                          p->control.prefill, p->control.decode, err);
    return !r->outside_band;
}

/* ---- after the timing ---- */

/* A window that is the golden's to the letter needs no replay. */
static bool differs(const struct official *r, size_t pair)
{
    const struct measure_result *m = &r->candidates[pair].timing;
    const struct measure_oracle *o = &r->prompts[r->runs.pairs[pair].golden].oracle;
    return m->different > 0 || m->said_seed_token != o->seed_token;
}

static bool replay_pairs(struct official *r, struct client *c, struct error *err)
{
    for (size_t i = 0; i < r->runs.count; i++) {
        struct ranked_pair *p = &r->runs.pairs[i];
        const struct measure_result *m = &r->candidates[i].timing;
        if (!differs(r, i)) {
            token_replay_begin(&p->tokens);
            continue;
        }
        const struct replay_window w = {.seed = r->prompts[p->golden].oracle.decode_seed,
                                        .seed_token = m->said_seed_token,
                                        .tokens = m->said_tokens,
                                        .steps = m->decode_tokens};
        if (!token_replay_window(c, r->contract, &w, &p->tokens, err))
            return false;
    }
    return true;
}

bool official_replay(struct official *r, struct error *err)
{
    bool wanted = false;
    for (size_t i = 0; i < r->runs.count; i++)
        wanted = wanted || differs(r, i);
    if (!r->contract->has_token_tolerance)
        return true;
    if (!wanted)
        return replay_pairs(r, NULL, err);
    struct sandbox_plan sandbox;
    struct client_options options = {.engine = r->reference.engine,
                                     .weights = r->reference.weights,
                                     .resources = r->o->resources,
                                     .yarn_magnitude = r->contract->yarn_magnitude,
                                     .arithmetic = r->contract->engine_arithmetic,
                                     .trusted = true,
                                     .withhold_text = true,
                                     .sandbox = &sandbox};
    struct client *c = NULL;
    if (!r->o->quiet)
        fprintf(stderr, "replay of tokens that are not the golden's\n");
    if (!client_deadlines_from_environment(&options, err) ||
        !plan_sandbox(r, &r->reference, true, environ, &sandbox, err))
        return false;
    if (!client_start(&options, &c, err)) {
        const struct error why = *err;
        return strcmp(why.name, "Interrupted") != 0 &&
               error_set(err, "TIMED-REPLAY-FAILED", "the reference worker does not start: %s: %s",
                         why.name, why.message);
    }
    const bool ok = replay_pairs(r, c, err);
    client_end(c);
    client_free(c);
    return ok;
}

bool official_check_correctness(struct official *r, struct error *err)
{
    const size_t golden = r->gates_only ? 0 : r->runs.pairs[r->combined.enforced].golden;
    struct gates_plan gates = run_gates_plan(r->contract, r->prompts[golden].golden, &r->semantic);
    gates.all = !r->o->local || r->o->strict;
    gates.quiet = r->o->quiet;
    gates.latency = &r->latency;
    struct leg_plan plan = {.untimed = true, .gates = &gates};
    if (!run_in_tree(r, &r->candidate, false, &plan, &r->correctness, err))
        return false;
    if (r->correctness.peak_bytes > r->peak_bytes)
        r->peak_bytes = r->correctness.peak_bytes;
    return true;
}

bool official_check_unchanged(struct official *r, struct error *err)
{
    return stamp_check_weights(r->candidate.weights, r->candidate.weights_stamp, err) &&
           stamp_check_engine(r->candidate.engine, r->candidate.engine_stamp, err) &&
           (r->gates_only ||
            (stamp_check_weights(r->reference.weights, r->reference.weights_stamp, err) &&
             stamp_check_engine(r->reference.engine, r->reference.engine_stamp, err)));
}
