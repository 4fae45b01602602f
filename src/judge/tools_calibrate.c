/* benchd calibrate-fidelity. */
#include "judge/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/terminal.h"
#include "judge/calibrate_fidelity.h"
#include "judge/contract.h"
#include "judge/tools_common.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { TOOL_INTERRUPTED = 130, TOKENS_DEFAULT = 64, BLOCK_DEFAULT = 8 };
static const char tool[] = "calibrate-fidelity";

struct request {
    const char *reference, *weights, *drafter, *contract;
    struct option_list goldens, honest, honest_env, cheats, cheat_weights;
    int64_t tokens, block_size, schedule_seed;
    bool json, quiet;
};

struct calibration {
    struct arena arena;
    struct contract *contract;
    struct dflash_golden **goldens;
    struct calibration_engine *engines;
    size_t count;
    struct calibration_plan plan;
};

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static void add(struct calibration *c, struct calibration_engine e)
{
    e.runs = arena_array(&c->arena, c->plan.golden_count, sizeof *e.runs);
    c->engines[c->count++] = e;
}

/* The honest ones first. Doctored weights are run by the first honest engine, as it is. */
static void list_engines(struct calibration *c, const struct request *q)
{
    const size_t most = q->honest.count + q->cheats.count + q->cheat_weights.count;
    c->engines = arena_array(&c->arena, most, sizeof *c->engines);
    for (size_t i = 0; i < q->honest.count; i++) {
        const char *env = i < q->honest_env.count ? q->honest_env.items[i] : "";
        const char *name = last_part(q->honest.items[i]);
        add(c, (struct calibration_engine){
                   .kind = CALIBRATION_HONEST,
                   .name = env[0] ? arena_printf(&c->arena, "%s %s", name, env) : name,
                   .engine = q->honest.items[i],
                   .weights = q->weights,
                   .environment = env[0] ? env : NULL});
    }
    for (size_t i = 0; i < q->cheats.count; i++)
        add(c, (struct calibration_engine){.kind = CALIBRATION_CHEAT,
                                           .name = last_part(q->cheats.items[i]),
                                           .engine = q->cheats.items[i],
                                           .weights = q->weights});
    for (size_t i = 0; i < q->cheat_weights.count; i++)
        add(c, (struct calibration_engine){.kind = CALIBRATION_CHEAT,
                                           .name = last_part(q->cheat_weights.items[i]),
                                           .engine = q->honest.items[0],
                                           .weights = q->cheat_weights.items[i]});
}

static bool check_request(const struct request *q, struct error *err)
{
    if (q->goldens.count == 0 || q->honest.count == 0) {
        const char *missing = q->goldens.count == 0 ? "--golden" : "--honest";
        error_set(err, "USAGE", "at least one is needed");
        return error_at(err, NULL, missing, NULL);
    }
    if (q->honest_env.count > q->honest.count) {
        error_set(err, "USAGE", "more of them than --honest");
        return error_at(err, NULL, "--honest-env", q->honest_env.items[q->honest.count]);
    }
    for (size_t i = 0; i < q->honest_env.count; i++)
        if (q->honest_env.items[i][0] &&
            !calibration_environment_valid(q->honest_env.items[i], err))
            return false;
    return true;
}

static bool prepare(struct calibration *c, const struct request *q, struct error *err)
{
    const char *track = NULL;
    if (!check_request(q, err) || !contract_track_from_environment(&track, err) ||
        !contract_load(q->contract, track, &c->contract, err) ||
        !contract_require_model(c->contract, err))
        return false;
    const struct contract_block_decode *b =
        c->contract->has_block_decode ? &c->contract->block_decode : NULL;
    c->plan = (struct calibration_plan){.reference = q->reference,
                                        .weights = q->weights,
                                        .drafter = q->drafter,
                                        .golden_count = q->goldens.count,
                                        .tokens = q->tokens ? q->tokens
                                                  : b       ? b->local_iterate_decode_tokens
                                                            : TOKENS_DEFAULT,
                                        .vocab_size = c->contract->vocab_size,
                                        .block_size = (int)(q->block_size ? q->block_size
                                                            : b           ? b->block_size
                                                                          : BLOCK_DEFAULT),
                                        .schedule_seed = (uint64_t)q->schedule_seed,
                                        .quiet = true};
    const struct dflash_golden_rules rules = {.vocab_size = c->contract->vocab_size,
                                              .require_self_consistent = true};
    c->goldens = arena_array(&c->arena, q->goldens.count, sizeof *c->goldens);
    for (size_t i = 0; i < q->goldens.count; i++)
        if (!dflash_golden_load(q->goldens.items[i], &rules, &c->goldens[i], err))
            return false;
    c->plan.goldens = c->goldens;
    list_engines(c, q);
    return client_deadlines_from_environment(&c->plan.client, err) &&
           client_ceiling_from_environment(&c->plan.run_ceiling_seconds, err);
}

static void release(struct calibration *c)
{
    for (size_t i = 0; c->goldens != NULL && i < c->plan.golden_count; i++)
        dflash_golden_free(c->goldens[i]);
    contract_free(c->contract);
    arena_free(&c->arena);
}

static bool run_all(struct calibration *c, bool quiet, struct error *err)
{
    struct progress p = {.quiet = quiet};
    bool ok = true;
    progress_begin(&p, "calibration", "engines", c->count);
    for (size_t i = 0; ok && i < c->count; i++) {
        ok = calibration_run_engine(&c->plan, &c->engines[i], err);
        progress_update(&p, i + 1);
    }
    progress_end(&p);
    return ok;
}

static size_t refused_runs(const struct calibration *c, const struct calibration_engine *e)
{
    size_t n = 0;
    for (size_t i = 0; i < c->plan.golden_count; i++)
        n += e->runs[i].refused[0] != '\0';
    return n;
}

/* ---- For people ---- */

static double largest(const struct calibration *c, const struct calibration_engine *e,
                      bool rejected, bool relative)
{
    double most = 0;
    for (size_t i = 0; i < c->plan.golden_count; i++) {
        const struct calibration_drift *d = rejected ? &e->runs[i].rejected : &e->runs[i].emitted;
        const double v = relative ? d->relative : d->absolute;
        most = v > most ? v : most;
    }
    return most;
}

static void print_engines(const struct calibration *c)
{
    struct table *t = table_new(10);
    table_row(t, "engine", "kind", "emitted abs", "rel", "rejected abs", "rel", "least abs", "gap",
              "mean", "refused");
    for (size_t i = 0; i < c->count; i++) {
        const struct calibration_engine *e = &c->engines[i];
        const double values[] = {
            largest(c, e, false, false),
            largest(c, e, false, true),
            largest(c, e, true, false),
            largest(c, e, true, true),
            calibration_range_of(e, c->plan.golden_count, CALIBRATION_ABSOLUTE).least,
            calibration_range_of(e, c->plan.golden_count, CALIBRATION_NEAR_TIE).most,
            calibration_range_of(e, c->plan.golden_count, CALIBRATION_MEAN).most};
        char cells[COUNT_OF(values)][32], refused[32];
        for (size_t k = 0; k < COUNT_OF(values); k++)
            snprintf(cells[k], sizeof cells[k], "%.6g", values[k]);
        snprintf(refused, sizeof refused, "%zu/%zu", refused_runs(c, e), c->plan.golden_count);
        table_row(t, e->name, e->kind == CALIBRATION_HONEST ? "honest" : "cheat", cells[0],
                  cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], refused);
    }
    table_print(t);
}

static void print_verdict(const struct calibration *c, enum calibration_quantity q)
{
    const struct calibration_verdict v =
        calibration_judge(c->engines, c->count, c->plan.golden_count, q);
    const char *name = calibration_quantity_name(q);
    printf("%s: largest honest %.6g", name, v.honest);
    if (v.nearest == NULL) {
        printf("; no cheat ran to its end\n");
        return;
    }
    printf(", nearest cheat %.6g (%s)", v.cheat, v.nearest->name);
    if (v.separates)
        printf(": %.6g separates them, with %.6g to either side\n", v.tolerance,
               v.tolerance - v.honest);
    else if (v.caught != NULL)
        printf(": no tolerance separates all; %.6g catches from %s (%.6g) on\n", v.tolerance,
               v.caught->name, v.caught_at);
    else
        printf(": no tolerance catches any\n");
}

/* ---- For programs ---- */

static json_t *drift_json(const struct calibration_drift *d)
{
    return json_pack("{s:I, s:f, s:f, s:f}", "rows", (json_int_t)d->rows, "absolute", d->absolute,
                     "relative", d->relative, "mean", d->mean);
}

static json_t *run_json(const struct calibration_run *r, const char *golden)
{
    if (r->refused[0] != '\0')
        return json_pack("{s:s, s:s, s:s}", "golden", golden, "refused", r->refused, "message",
                         r->message);
    return json_pack("{s:s, s:I, s:o, s:o, s:f, s:f, s:I, s:I, s:I, s:I}", "golden", golden,
                     "tokens", (json_int_t)r->tokens, "emitted", drift_json(&r->emitted),
                     "rejected", drift_json(&r->rejected), "near_tie_gap", r->near_tie_gap,
                     "flat_gap", r->flat_gap, "other_tokens", (json_int_t)r->other_tokens,
                     "unbound_rows", (json_int_t)r->unbound_rows, "accepted",
                     (json_int_t)r->accepted, "drafted", (json_int_t)r->drafted);
}

static json_t *verdict_json(const struct calibration *c, enum calibration_quantity q)
{
    const struct calibration_verdict v =
        calibration_judge(c->engines, c->count, c->plan.golden_count, q);
    json_t *missed = json_array();
    for (size_t i = 0; i < c->count; i++) {
        const struct calibration_engine *e = &c->engines[i];
        const struct calibration_range r = calibration_range_of(e, c->plan.golden_count, q);
        if (e->kind == CALIBRATION_CHEAT && r.any && r.least <= v.honest)
            json_array_append_new(missed, json_string(e->name));
    }
    json_t *o = json_pack("{s:f, s:b, s:o}", "largest_honest", v.honest, "separates",
                          (int)v.separates, "missed", missed);
    if (v.nearest != NULL) {
        json_object_set_new(o, "nearest_cheat", json_real(v.cheat));
        json_object_set_new(o, "nearest_cheat_name", json_string(v.nearest->name));
    }
    if (v.caught != NULL) {
        json_object_set_new(o, "nearest_caught", json_real(v.caught_at));
        json_object_set_new(o, "nearest_caught_name", json_string(v.caught->name));
        json_object_set_new(o, "tolerance", json_real(v.tolerance));
        json_object_set_new(o, "margin", json_real(v.tolerance - v.honest));
    }
    return o;
}

static void print_json(const struct calibration *c)
{
    json_t *engines = json_array(), *verdicts = json_object();
    for (size_t i = 0; i < c->count; i++) {
        const struct calibration_engine *e = &c->engines[i];
        json_t *runs = json_array();
        for (size_t g = 0; g < c->plan.golden_count; g++)
            json_array_append_new(runs, run_json(&e->runs[g], last_part(c->goldens[g]->path)));
        json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "name", e->name, "kind",
                              e->kind == CALIBRATION_HONEST ? "honest" : "cheat", "engine",
                              e->engine, "weights", e->weights);
        if (e->environment != NULL)
            json_object_set_new(o, "environment", json_string(e->environment));
        json_object_set_new(o, "runs", runs);
        json_array_append_new(engines, o);
    }
    for (int q = 0; q < CALIBRATION_QUANTITIES; q++)
        json_object_set_new(verdicts, calibration_quantity_name(q), verdict_json(c, q));
    json_t *page = json_pack("{s:s, s:I, s:i, s:o, s:o}", "track_id", c->contract->track_id,
                             "decode_tokens", (json_int_t)c->plan.tokens, "block_size",
                             c->plan.block_size, "engines", engines, "verdicts", verdicts);
    struct buffer text = {0};
    json_write_ordered(page, 2, &text);
    fwrite(text.data, 1, text.length, stdout);
    fputc('\n', stdout);
    buffer_free(&text);
    json_decref(page);
}

/* An honest engine that an exact rule refuses is a fact about the rule, and the first to know. */
static int report(const struct calibration *c, bool as_json)
{
    if (as_json) {
        print_json(c);
    } else {
        printf("%s: %zu goldens, %" PRId64 " tokens, widths to %d\n", c->contract->track_id,
               c->plan.golden_count, c->plan.tokens, c->plan.block_size);
        print_engines(c);
        for (int q = 0; q < CALIBRATION_QUANTITIES; q++)
            print_verdict(c, q);
    }
    int code = TOOL_OK;
    for (size_t i = 0; i < c->count; i++) {
        const struct calibration_engine *e = &c->engines[i];
        for (size_t g = 0; g < c->plan.golden_count; g++) {
            if (e->runs[g].refused[0] == '\0')
                continue;
            fprintf(stderr, "benchd %s: %s, %s: %s: ", tool, e->name,
                    last_part(c->goldens[g]->path), e->runs[g].refused);
            tool_put_line(stderr, e->runs[g].message);
            fputc('\n', stderr);
            if (e->kind == CALIBRATION_HONEST)
                code = TOOL_REJECTED;
        }
    }
    return code;
}

static int error_code(const struct error *err)
{
    return strcmp(err->name, "Interrupted") == 0     ? TOOL_INTERRUPTED
           : strncmp(err->name, "Reference", 9) == 0 ? TOOL_IO
                                                     : TOOL_USAGE;
}

int tool_calibrate_fidelity(int argc, char **argv)
{
    struct request q = {0};
    const struct option_spec options[] = {
        {"--reference-engine", OPTION_TEXT, true, "PATH", "The organiser's worker.", &q.reference,
         NULL, 0, 0},
        {"--weights", OPTION_TEXT, true, "DIR", "The weights, of the reference too.", &q.weights,
         NULL, 0, 0},
        {"--drafter", OPTION_TEXT, true, "DIR", "The drafter.", &q.drafter, NULL, 0, 0},
        {"--contract", OPTION_TEXT, true, "FILE",
         "The track's contract: vocabulary and defaults. Its tolerances are not looked at.",
         &q.contract, NULL, 0, 0},
        {"--golden", OPTION_LIST, false, "FILE", "A golden whose seed is decoded; repeatable.",
         &q.goldens, NULL, 0, 0},
        {"--honest", OPTION_LIST, false, "PATH", "A worker that computes everything; repeatable.",
         &q.honest, NULL, 0, 0},
        {"--honest-env", OPTION_LIST, false, "NAME=VALUE",
         "For the first, second, ... --honest in order: a variable of its environment; an empty "
         "value stands for none. MLXFAST_CPU reaches the worker as BENCH_WORKER_CPU.",
         &q.honest_env, NULL, 0, 0},
        {"--cheat", OPTION_LIST, false, "PATH", "A worker that computes less; repeatable.",
         &q.cheats, NULL, 0, 0},
        {"--cheat-weights", OPTION_LIST, false, "DIR",
         "Weights with something taken out, run by the first --honest; repeatable.",
         &q.cheat_weights, NULL, 0, 0},
        {"--tokens", OPTION_INT, false, "N",
         "Tokens of each run. Default: the contract's local_iterate_decode_tokens, else 64.",
         &q.tokens, NULL, 1, 65536},
        {"--block-size", OPTION_INT, false, "K",
         "The widest round. Default: the contract's block_size, else 8.", &q.block_size, NULL, 1,
         FIDELITY_BLOCK_MOST},
        {"--schedule-seed", OPTION_INT, false, "S", "Of the widths (default 0).", &q.schedule_seed,
         NULL, 0, INT64_MAX},
        {"--json", OPTION_SWITCH, false, NULL, "One JSON object instead of the table.", &q.json,
         NULL, 0, 0},
        {"--quiet", OPTION_SWITCH, false, NULL, "No progress.", &q.quiet, NULL, 0, 0},
    };
    const struct command command = {
        "benchd calibrate-fidelity",
        "Measures what honest engines and cheats differ by from the reference.",
        "Each engine decodes each golden's seed with a process of its own, without a sandbox and "
        "with no tolerance enforced; a reference then walks its chain. Largest differences are "
        "over all goldens, a cheat's least is that of the golden on which it shows least.\n"
        "Exit: 0 measured, 1 an honest engine was refused by a rule that knows no tolerance, 2 "
        "usage, 3 the reference failed, 130 interrupted.",
        NULL,
        options,
        COUNT_OF(options)};
    struct calibration c = {0};
    struct error err = {0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    if (prepare(&c, &q, &err) && run_all(&c, q.quiet, &err)) {
        code = report(&c, q.json);
    } else {
        tool_complain(tool, &err);
        code = error_code(&err);
    }
    release(&c);
    return code;
}
