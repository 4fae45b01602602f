#include "judge/calibrate_fidelity.h"

#include "judge/block_run.h"
#include "judge/fidelity_replay.h"
#include "judge/launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One run ---- */

static void compare(struct calibration_drift *d, const struct fidelity_readout *a,
                    const struct fidelity_readout *b)
{
    for (int k = 0; k < 2; k++) {
        const double delta = fabs(a->logit[k] - b->logit[k]);
        const double size = fmax(fabs(a->logit[k]), fabs(b->logit[k]));
        d->absolute = fmax(d->absolute, delta);
        if (size > 0)
            d->relative = fmax(d->relative, delta / size);
        d->mean += delta;
    }
    d->rows++;
}

static void finish(struct calibration_drift *d)
{
    if (d->rows > 0)
        d->mean /= 2.0 * (double)d->rows;
}

bool calibration_measure(const struct fidelity_run *run,
                         const struct fidelity_reference_round *references,
                         struct calibration_run *out, struct error *err)
{
    *out = (struct calibration_run){0};
    for (size_t i = 0; i < run->round_count; i++) {
        const struct fidelity_round *r = &run->rounds[i];
        const struct fidelity_reference_round *f = &references[i];
        if (f->emitted_logit == NULL || f->count != r->scored || r->readout_count < r->count ||
            (f->verify_count != 0 && f->verify_count != r->readout_count))
            return error_set(err, "ReferenceInvalid",
                             "the reference does not tell the logit of every token given");
        for (int t = 0; t < r->scored; t++) {
            compare(&out->emitted, &r->readouts[t], &f->top[t]);
            out->near_tie_gap = fmax(out->near_tie_gap, f->top1_logit[t] - f->emitted_logit[t]);
            out->other_tokens += r->tokens[t] != f->k1_argmax[t];
            out->unbound_rows += r->readouts[t].token[0] != r->tokens[t];
        }
        for (int t = r->count; t < f->verify_count; t++) {
            const struct fidelity_readout *v = &f->verify[t];
            compare(&out->rejected, &r->readouts[t], v);
            if (r->readouts[t].token[0] != v->token[0])
                out->flat_gap = fmax(out->flat_gap, v->logit[0] - v->logit[1]);
        }
        out->tokens += r->scored;
        out->accepted += r->accepted;
        out->drafted += r->draft_count;
    }
    finish(&out->emitted);
    finish(&out->rejected);
    return true;
}

/* ---- All of them ---- */

const char *calibration_quantity_name(enum calibration_quantity q)
{
    static const char *const names[] = {"absolute", "relative", "near_tie", "mean"};
    return names[q];
}

double calibration_of(const struct calibration_run *r, enum calibration_quantity q)
{
    switch (q) {
    case CALIBRATION_ABSOLUTE:
        return fmax(r->emitted.absolute, r->rejected.absolute);
    case CALIBRATION_RELATIVE:
        return fmax(r->emitted.relative, r->rejected.relative);
    case CALIBRATION_MEAN:
        return r->emitted.mean;
    default:
        return fmax(r->near_tie_gap, r->flat_gap);
    }
}

struct calibration_range calibration_range_of(const struct calibration_engine *e, size_t runs,
                                              enum calibration_quantity q)
{
    struct calibration_range range = {0};
    for (size_t i = 0; i < runs; i++) {
        if (e->runs[i].refused[0] != '\0')
            continue;
        const double v = calibration_of(&e->runs[i], q);
        range.least = range.any ? fmin(range.least, v) : v;
        range.most = range.any ? fmax(range.most, v) : v;
        range.any = true;
    }
    return range;
}

struct calibration_verdict calibration_judge(const struct calibration_engine *engines, size_t count,
                                             size_t runs, enum calibration_quantity q)
{
    struct calibration_verdict v = {0};
    for (size_t i = 0; i < count; i++)
        if (engines[i].kind == CALIBRATION_HONEST)
            v.honest = fmax(v.honest, calibration_range_of(&engines[i], runs, q).most);
    for (size_t i = 0; i < count; i++) {
        const struct calibration_range r = calibration_range_of(&engines[i], runs, q);
        if (engines[i].kind != CALIBRATION_CHEAT || !r.any)
            continue;
        if (v.nearest == NULL || r.least < v.cheat) {
            v.nearest = &engines[i];
            v.cheat = r.least;
        }
        if (r.least > v.honest && (v.caught == NULL || r.least < v.caught_at)) {
            v.caught = &engines[i];
            v.caught_at = r.least;
        }
    }
    v.separates = v.nearest != NULL && v.honest < v.cheat;
    if (v.caught != NULL)
        v.tolerance = (v.honest + v.caught_at) / 2;
    return v;
}

/* ---- Running an engine ---- */

bool calibration_environment_valid(const char *text, struct error *err)
{
    const char *equals = strchr(text, '=');
    const size_t length = equals != NULL ? (size_t)(equals - text) : 0;
    if (length > 0 &&
        ((length == strlen("MLXFAST_CPU") && memcmp(text, "MLXFAST_CPU", length) == 0) ||
         launch_environment_allows(text, length)))
        return true;
    error_set(err, "USAGE",
              "it is NAME=VALUE with a name that an engine may be given, or MLXFAST_CPU=VALUE");
    return error_at(err, NULL, "--honest-env", text);
}

/* The worker's environment is made from this program's own. */
struct variable {
    char name[128];
    char *before;
};

static void set_variable(const char *text, struct variable *v)
{
    *v = (struct variable){0};
    if (text == NULL)
        return;
    const size_t length = strcspn(text, "=");
    const bool cpu = length == strlen("MLXFAST_CPU") && memcmp(text, "MLXFAST_CPU", length) == 0;
    snprintf(v->name, sizeof v->name, "%.*s", cpu ? 16 : (int)length,
             cpu ? "BENCH_WORKER_CPU" : text);
    const char *before = getenv(v->name);
    v->before = before != NULL ? memory_strdup(before) : NULL;
    setenv(v->name, text + length + 1, 1);
}

static void restore_variable(struct variable *v)
{
    if (v->name[0] != '\0' && v->before != NULL)
        setenv(v->name, v->before, 1);
    else if (v->name[0] != '\0')
        unsetenv(v->name);
    free(v->before);
}

static bool start_engine(const struct calibration_plan *p, const struct calibration_engine *e,
                         struct client **out, struct error *err)
{
    struct client_options o = p->client;
    struct variable v;
    o.engine = e->engine;
    o.weights = e->weights;
    o.drafter = p->drafter;
    o.block_protocol = true;
    set_variable(e->environment, &v);
    const bool ok = client_start(&o, out, err);
    restore_variable(&v);
    return ok;
}

static bool run_candidate(const struct calibration_plan *p, const struct calibration_engine *e,
                          const struct dflash_golden *g, struct arena *a,
                          struct block_run_result *out, struct error *err)
{
    /* Nothing is a drift here; what an answer must hold at all is asked as ever. */
    const struct fidelity_limits any = {.vocab_size = p->vocab_size,
                                        .near_tie_logits = HUGE_VAL,
                                        .near_tie_per_thousand = 1000,
                                        .residual_per_thousand = 1000,
                                        .absolute = HUGE_VAL,
                                        .relative = HUGE_VAL};
    const struct block_run_plan plan = {.seed = g->seed,
                                        .seed_count = g->seed_count,
                                        .seed_token = g->seed_token,
                                        .tokens = p->tokens,
                                        .block_size = p->block_size,
                                        .schedule_seed = p->schedule_seed,
                                        .limits = &any,
                                        .run_ceiling_seconds = p->run_ceiling_seconds,
                                        .quiet = p->quiet};
    struct client *c = NULL;
    const bool ok = start_engine(p, e, &c, err) && block_run(c, &plan, a, out, err);
    if (c != NULL)
        client_end(c);
    client_free(c);
    return ok;
}

static bool walk(const struct calibration_plan *p, const struct fidelity_run *run, struct arena *a,
                 struct fidelity_reference_round **out, struct error *err)
{
    struct client_options o = p->client;
    o.engine = p->reference;
    o.weights = p->weights;
    o.drafter = p->drafter;
    struct client *c = NULL;
    const bool ok =
        replay_start(&o, &c, err) && replay_run(c, run, p->vocab_size, p->quiet, a, out, err);
    if (c != NULL)
        client_end(c);
    client_free(c);
    return ok;
}

bool calibration_run_engine(const struct calibration_plan *plan, struct calibration_engine *e,
                            struct error *err)
{
    bool ok = true;
    for (size_t i = 0; ok && i < plan->golden_count; i++) {
        struct arena a = {0};
        struct block_run_result result;
        struct fidelity_reference_round *references;
        struct calibration_run *r = &e->runs[i];
        if (run_candidate(plan, e, plan->goldens[i], &a, &result, err)) {
            ok = walk(plan, &result.run, &a, &references, err) &&
                 calibration_measure(&result.run, references, r, err);
        } else {
            ok = strcmp(err->name, "Interrupted") != 0;
            *r = (struct calibration_run){0};
            snprintf(r->refused, sizeof r->refused, "%.63s", err->name);
            snprintf(r->message, sizeof r->message, "%.255s", err->message);
        }
        arena_free(&a);
    }
    return ok;
}
