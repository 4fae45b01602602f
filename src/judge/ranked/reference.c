#include "judge/ranked/reference.h"

#include "base/child.h"
#include "base/file.h"
#include "judge/ranked/resident.h"
#include "judge/run.h"
#include "judge/weights_format.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool check_track(const struct reference *r, struct error *err)
{
    const char *track = r->o->track;
    if (track == NULL || strcmp(track, r->contract->track_id) == 0)
        return true;
    error_set(err, "TRACK-ID-MISMATCH", "the contract is of track \"%s\"", r->contract->track_id);
    return error_at(err, r->o->contract, "--track", track);
}

static bool check_prompts(const struct reference *r, struct error *err)
{
    const struct reference_options *o = r->o;
    if (o->prompt_count == 0 || o->prompt_count == o->golden_count)
        return true;
    char text[32];
    snprintf(text, sizeof text, "%zu for %zu", o->prompt_count, o->golden_count);
    error_set(err, "GOLDEN-COUNT-MISMATCH", "--prompt is given once for each --golden, or not");
    return error_at(err, NULL, "--prompt", text);
}

bool reference_open(struct reference *r, const struct reference_options *o, struct error *err)
{
    const char *track;
    *r = (struct reference){.o = o};
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(o->contract, track, &r->contract, err) || !check_track(r, err) ||
        !check_prompts(r, err) || !contract_require_window(r->contract, err) ||
        !contract_require_model(r->contract, err))
        return false;
    r->cuda = contract_is_cuda(r->contract);
    return true;
}

static bool load_golden(struct reference *r, size_t index, struct error *err)
{
    const struct contract *c = r->contract;
    const char *path = r->o->goldens[index];
    struct reference_golden *g = &r->goldens[index];
    const int64_t steps = c->benchmark_decode_steps;
    const struct golden_rules rules = run_golden_rules(c, steps);
    if (!golden_load(path, &rules, &g->golden, err) ||
        !contract_check_pooled(c, g->golden->sha256, g->golden->bytes, err) ||
        !weights_check_golden(r->roots.weights, path, err) ||
        !measure_find_oracle(g->golden, steps, &g->oracle, err))
        return false;
    g->prompt = r->o->prompt_count > 0 ? r->o->prompts[index] : g->golden->prompt_name;
    for (size_t i = 0; i < index; i++)
        if (strcmp(r->goldens[i].prompt, g->prompt) == 0) {
            error_set(err, "USAGE", "two goldens would have one prompt's name; see --prompt");
            return error_at(err, path, "--prompt", g->prompt);
        }
    return true;
}

static bool plan_sandbox(struct reference *r, char *const *environment, struct arena *a,
                         struct sandbox_plan *out, struct error *err)
{
    const struct reference_options *o = r->o;
    const char **hidden = arena_array(a, o->golden_count + 2, sizeof *hidden);
    for (size_t i = 0; i < o->golden_count; i++)
        hidden[i] = o->goldens[i];
    hidden[o->golden_count] = o->contract;
    const char *const *trees;
    if (!roots_engine_trees(r->roots.workspace, o->trees, a, &trees, err))
        return false;
    const struct sandbox_request request = {.mode = SANDBOX_LOCAL,
                                            .switched_off = o->no_sandbox,
                                            .reference_leg = true,
                                            .engine = r->roots.engine,
                                            .weights = r->roots.weights,
                                            .engine_trees = trees,
                                            .resources = o->resources,
                                            .hidden = hidden,
                                            .features = r->cuda ? SANDBOX_GPU : 0,
                                            .environment = environment};
    return sandbox_plan(a, &request, out, err);
}

static bool open_quiet(struct reference *r, struct error *err)
{
    /* Without the cool gate nothing is waited for or refused; what there was is kept all the same.
     */
    return quiet_open(&r->contract->quiet, !r->o->no_cool_gate, r->o->silent, &r->quiet, err);
}

bool reference_prepare(struct reference *r, struct error *err)
{
    const struct reference_options *o = r->o;
    if (!resident_check_environment(environ, err) ||
        !roots_resolve(roots_workspace(o->workspace), o->engine,
                       o->weights != NULL ? o->weights : "weights", &r->arena, &r->roots, err) ||
        !path_stamp(r->roots.engine, r->engine_stamp, err) ||
        !path_stamp(r->roots.weights, r->weights_stamp, err) ||
        !weights_digest(r->roots.weights, &r->weights, err) ||
        !weights_check_format(r->roots.weights, r->contract, err))
        return false;
    r->goldens = arena_array(&r->arena, o->golden_count, sizeof *r->goldens);
    for (size_t i = 0; i < o->golden_count; i++)
        if (!load_golden(r, i, err))
            return false;
    r->has_residents = resident_is_used(r->roots.workspace, r->cuda);
    if (!plan_sandbox(r, environ, &r->arena, &r->sandbox, err) || !open_quiet(r, err))
        return false;
    if (r->sandbox.reason != NULL && !o->silent)
        fprintf(stderr, "sandbox: none, the engine runs unsandboxed (%s)\n", r->sandbox.reason);
    return true;
}

/* ---- a leg ---- */

struct watched {
    struct reference *r;
    struct quiet_point at;
};

static bool before(void *context, const char *phase, struct error *err)
{
    struct watched *w = context;
    w->at.phase = phase;
    return quiet_before(w->r->quiet, &w->at, err);
}

static bool after(void *context, const char *phase, struct error *err)
{
    const struct watched *w = context;
    (void)phase; /* the one that was begun */
    return quiet_after_alone(w->r->quiet, err);
}

static bool check_serial(const struct leg_result *leg, struct error *err)
{
    const struct measure_result *m = &leg->timing;
    if (!m->speculated && m->drafted == 0 && m->rounds == (uint64_t)m->decode_tokens)
        return true;
    error_set(err, "CALIBRATION-SPEC-ARMED",
              "the reference engine speculated: %llu rounds for %lld tokens, %llu drafted",
              (unsigned long long)m->rounds, (long long)m->decode_tokens,
              (unsigned long long)m->drafted);
    return error_at(err, NULL, "effective_spec",
                    m->effective_spec.present ? m->effective_spec.mode : NULL);
}

static bool run_leg(struct reference *r, size_t golden, const struct quiet_point *at,
                    const struct sandbox_plan *sandbox, const char *const *environment,
                    struct arena *a, struct leg_result *leg, struct error *err)
{
    struct watched w = {r, *at};
    const struct measure_watch watch = {before, after, &w};
    const struct leg_plan plan = {.engine = r->roots.engine,
                                  .weights = r->roots.weights,
                                  .resources = r->o->resources,
                                  .environment = environment,
                                  .sandbox = sandbox,
                                  .yarn_magnitude = r->contract->yarn_magnitude,
                                  .arithmetic = r->contract->engine_arithmetic,
                                  .silent = r->o->silent,
                                  .oracle = r->goldens[golden].oracle,
                                  .warmup_runs = r->contract->official_prefill_warmup_runs,
                                  .rewarm_runs = r->contract->rewarm_runs,
                                  .watch = &watch};
    const bool ok = leg_run(&plan, a, leg, err);
    quiet_after(r->quiet, NULL); /* of a phase that failed; else nothing */
    return ok && check_serial(leg, err);
}

static bool check_resident(struct reference *r, const struct leg_identity *now, struct error *err)
{
    const bool ok = !r->has_last || resident_check_legs(&r->last, now, err);
    /* Its numbers alone are kept: the texts are the leg's. */
    r->last = (struct leg_identity){.has_resident = now->has_resident,
                                    .resident_pid = now->resident_pid,
                                    .resident_load_epoch = now->resident_load_epoch};
    r->has_last = true;
    return ok;
}

static bool run_served_leg(struct reference *r, size_t golden, const struct quiet_point *at,
                           struct arena *a, struct leg_result *leg, struct error *err)
{
    const struct resident_plan plan = {.workspace = r->roots.workspace,
                                       .cuda = r->cuda,
                                       .environment = environ,
                                       .yarn_magnitude = r->contract->yarn_magnitude,
                                       .arithmetic = r->contract->engine_arithmetic,
                                       .silent = r->o->silent};
    struct resident *resident;
    struct sandbox_plan sandbox;
    if (!resident_boot(&plan, &resident, err))
        return false;
    bool ok = plan_sandbox(r, resident_environment(resident, a, environ), a, &sandbox, err) &&
              run_leg(r, golden, at, &sandbox, resident_variables(resident), a, leg, err) &&
              check_resident(r, &leg->identity, err);
    if (!resident_stop(resident, ok ? err : NULL))
        ok = false;
    resident_free(resident);
    return ok;
}

bool reference_leg(struct reference *r, size_t golden, const struct quiet_point *at,
                   struct reference_times *out, struct error *err)
{
    struct arena a = {0};
    struct leg_result leg;
    const bool ok = r->has_residents ? run_served_leg(r, golden, at, &a, &leg, err)
                                     : run_leg(r, golden, at, &r->sandbox, NULL, &a, &leg, err);
    if (ok)
        *out = (struct reference_times){leg.timing.prefill_seconds_per_token,
                                        leg.timing.decode_seconds_per_token};
    arena_free(&a);
    return ok;
}

bool reference_check_unchanged(const struct reference *r, struct error *err)
{
    return stamp_check_weights(r->roots.weights, r->weights_stamp, err) &&
           stamp_check_engine(r->roots.engine, r->engine_stamp, err);
}

void reference_close(struct reference *r)
{
    quiet_close(r->quiet);
    for (size_t i = 0; r->goldens != NULL && i < r->o->golden_count; i++)
        golden_free(r->goldens[i].golden);
    contract_free(r->contract);
    arena_free(&r->arena);
}
