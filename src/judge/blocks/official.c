#include "judge/blocks/official.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "judge/blocks/document.h"
#include "judge/blocks/legs.h"
#include "judge/blocks/loop.h"
#include "judge/blocks/setup.h"
#include "judge/evidence/evidence.h"
#include "judge/leg.h"
#include "judge/ranked/calibration.h"
#include "judge/run.h"
#include "judge/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whose trouble it is that a run has ended. */
enum blame { BLAME_SUBMISSION, BLAME_CONTROL, BLAME_MACHINE };

struct official {
    const struct blocks_official_options *o;
    struct blocks_setup setup;
    struct quiet *quiet;
    struct leg_result gates; /* the walk of the correctness golden */
    struct paired_rule rule;
    struct blocks_runs runs;
    struct score_document score;
    struct error failure; /* of the submission, or of the run; "" name: none */
    bool gates_only;      /* MLXFAST_BENCHMARK_SKIP_TIMED is 1: correctness alone */
    bool failed, measured;
    enum blame blame;
    int64_t started_ns;
    double preflight_seconds;
};

static bool is_named(const struct error *err, const char *name)
{
    return strcmp(err->name, name) == 0;
}

static bool is_interrupted(const struct error *err)
{
    return interrupt_is_cause(err) || interrupt_requested();
}

static bool end(struct official *r, enum blame blame, const struct error *err)
{
    r->failed = true;
    r->blame = blame;
    r->failure = *err;
    return false;
}

/* ---- Correctness: before anything is timed ---- */

static bool check_correctness(struct official *r)
{
    const struct blocks_setup *s = &r->setup;
    const struct contract *c = s->contract;
    struct error err = {0};
    struct gates_plan gates = run_gates_plan(c, s->golden, &s->semantic);
    gates.all = true;
    gates.quiet = r->o->quiet;
    const struct leg_plan plan = {.engine = r->o->engine,
                                  .weights = r->o->weights,
                                  .drafter = r->o->drafter,
                                  .resources = r->o->resources,
                                  .sandbox = &s->candidate_sandbox,
                                  .yarn_magnitude = c->yarn_magnitude,
                                  .arithmetic = c->engine_arithmetic,
                                  .withhold_text = true,
                                  .silent = true,
                                  .untimed = true,
                                  .gates = &gates};
    if (!leg_run(&plan, &r->setup.arena, &r->gates, &err))
        return end(r, BLAME_SUBMISSION, &err);
    if (r->gates.gates.passed)
        return true;
    const char *why = r->gates.gates.error;
    if (why == NULL || *why == '\0')
        why = "correctness_failed";
    error_set(&err, why, "the correctness golden");
    return end(r, BLAME_SUBMISSION, &err);
}

/* ---- Pairs ---- */

/* The reference and the control leg are the organiser's, the gates the machine's. */
static enum blame blame_of(const struct error *err, enum blocks_role role)
{
    static const char *const machine[] = {"QUIESCENCE-TIMEOUT", "TEMPERATURE-READER-MISSING"};
    for (size_t i = 0; i < sizeof machine / sizeof *machine; i++)
        if (is_named(err, machine[i]))
            return BLAME_MACHINE;
    if (is_named(err, "ReferenceInvalid") || is_named(err, "ReferenceFailed"))
        return BLAME_CONTROL;
    return role == BLOCKS_CANDIDATE ? BLAME_SUBMISSION : BLAME_CONTROL;
}

static bool measure_pairs(struct official *r)
{
    struct blocks_setup *s = &r->setup;
    struct error err = {0};
    struct blocks_legs legs = {.contract = s->contract,
                               .limits = &s->limits,
                               .prompt = s->prompt,
                               .control = s->control,
                               .candidate = s->candidate,
                               .reference = s->reference,
                               .run_ceiling_seconds = s->run_ceiling_seconds,
                               .quiet = r->quiet,
                               .silent = r->o->quiet,
                               .own_reference = s->own_reference,
                               .arena = &s->arena};
    const struct blocks_doors doors = blocks_legs_doors(&legs);
    if (blocks_loop_run(s->contract, &r->rule, &doors, &s->arena, &r->runs, &err)) {
        r->measured = true;
        if (!blocks_setup_check_baseline(s, &err))
            return end(r, BLAME_CONTROL, &err);
        if (!blocks_setup_check_submission(s, &err))
            return end(r, BLAME_SUBMISSION, &err);
        return blocks_loop_suffices(s->contract, &r->runs, &err) ||
               end(r,
                   is_named(&err, "SERIAL-CONTROL-LEG-OUTSIDE-BAND") ? BLAME_CONTROL
                                                                     : BLAME_MACHINE,
                   &err);
    }
    const enum blame blame = blame_of(&err, r->runs.failed);
    if (blame == BLAME_CONTROL && !is_interrupted(&err)) {
        struct error cause = err;
        error_set(&err, "SERIAL-CONTROL-LEG-FAILED",
                  "no failure of the submission: the baseline's %s leg, or its replay: %s: %s",
                  blocks_role_name(r->runs.failed), cause.name, cause.message);
    }
    return end(r, blame, &err);
}

static bool run(struct official *r)
{
    struct error err = {0};
    if (!blocks_setup_prepare(&r->setup, &err))
        return end(r, BLAME_SUBMISSION, &err);
    r->preflight_seconds = clock_seconds(r->started_ns);
    if (!check_correctness(r) || r->gates_only)
        return !r->failed;
    if (!blocks_setup_draw(&r->setup, pool_kernel_random, NULL, &err))
        return end(r, BLAME_MACHINE, &err);
    return measure_pairs(r);
}

/* ---- The seal ---- */

/* Of a golden that may be hidden: no case, no step, no token. */
static void seal_correctness(struct official *r)
{
    struct score_document *d = &r->score;
    struct gates_result told = r->gates.gates;
    told.first_failing_case = NULL;
    score_set_int(d, "case_count", (int64_t)golden_gate_case_count(r->setup.golden));
    if (r->gates.started)
        leg_seal_identity(&r->gates.identity, d);
    if (r->gates.gates_ran)
        gates_seal(&told, d);
    score_set_number(d, "correctness_seconds", r->gates.correctness_seconds);
    score_set_number(d, "peak_ram_gb", (double)r->gates.peak_bytes * 1e-9);
    score_set_number(d, "process_resident_memory_gb", (double)r->gates.resident_bytes * 1e-9);
}

static void fill_blocks(struct official *r)
{
    const struct blocks_setup *s = &r->setup;
    struct score_document *d = &r->score;
    /* What is no failure of the submission is no category of its failures. */
    static const struct error no_score = {.name = "no_score"};
    const bool is_submissions = r->blame == BLAME_SUBMISSION;
    struct block_score_inputs in = {.contract = s->contract,
                                    .mode = BLOCK_OFFICIAL,
                                    .tokens = s->contract->block_decode.decode_tokens,
                                    .golden_sha256 = s->prompt != NULL ? s->prompt->sha256 : "",
                                    .probes = r->runs.control,
                                    .benchmarks = r->runs.candidate,
                                    .pair_count = r->failed ? 0 : r->runs.accepted,
                                    .tripwire = BLOCK_TRIPWIRE_NOT_RUN,
                                    .correctness_sha256 = s->golden->sha256,
                                    .drafter_sha256 = s->drafter.sha256,
                                    .passed_correctness =
                                        r->gates.gates_ran && r->gates.gates.passed};
    if (r->failed)
        in.failure = is_submissions ? &r->failure : &no_score;
    block_score_fill(d, &in);
    score_set_text(d, "baseline_source", "serial-control-leg");
    score_set_text(d, "baseline_box", s->box);
    if (r->quiet != NULL)
        score_set_json(d, "gates", quiet_records(r->quiet));
    if (r->measured || (r->failed && !is_submissions))
        blocks_seal_runs(&r->runs, &r->rule, d);
}

/* The keys of every score and no mode: nothing was to be timed. */
static void fill_gates_only(struct official *r)
{
    struct score_document *d = &r->score;
    const bool passed = r->gates.gates_ran && r->gates.gates.passed;
    score_set_text(d, "golden_hash", r->setup.golden->sha256);
    score_set_bool(d, "passed_correctness", passed);
    score_set_bool(d, "partial_result", true);
    if (r->failed)
        score_fail_hidden(d, r->failure.name, r->failure.message);
    else
        d->passed = true;
}

static void fill(struct official *r)
{
    const struct blocks_setup *s = &r->setup;
    struct score_document *d = &r->score;
    if (r->gates_only)
        fill_gates_only(r);
    else
        fill_blocks(r);
    run_seal_contract(s->contract, d);
    seal_correctness(r);
    score_set_text(d, "weights_hash", s->weights.sha256);
    score_set_int(d, "weights_byte_count", (int64_t)s->weights.bytes);
    score_set_int(d, "weights_file_count", (int64_t)s->weights.files);
    score_set_number(d, "preflight_seconds", r->preflight_seconds);
    score_set_number(d, "benchmark_wall_seconds", clock_seconds(r->started_ns));
}

static bool seal(struct official *r, struct error *err)
{
    struct blocks_setup *s = &r->setup;
    const struct seal_inputs in = {.score_path = r->o->score_path,
                                   .weights_path = r->o->weights,
                                   .weights_sha256 = s->weights.sha256,
                                   .weights_file_count = s->weights.files,
                                   .weights_byte_count = s->weights.bytes,
                                   .golden_path = r->o->golden,
                                   .golden_sha256 = s->golden->sha256,
                                   .candidate_executable = r->o->engine,
                                   .benchd_executable = run_own_path(&s->arena),
                                   .sandbox = s->baseline_sandbox.seal,
                                   .local_iterate = false};
    fill(r);
    return seal_write(&r->score, &in, err);
}

/* The correctness golden is named, the hidden prompt is not. */
static bool sign(struct official *r, struct error *err)
{
    const struct blocks_official_options *o = r->o;
    const struct blocks_setup *s = &r->setup;
    const char *key = evidence_key_of(o->signing_key), *box = NULL;
    if (key == NULL)
        return true;
    const struct evidence_signing in = {.files = {.score = o->score_path,
                                                  .contract = o->contract,
                                                  .goldens = &o->golden,
                                                  .golden_count = 1},
                                        .key = key,
                                        .drafter = o->drafter,
                                        .baseline_engine = s->baseline.engine,
                                        .box = calibration_box(o->box, &box, err) ? box : NULL,
                                        .log = evidence_log_of(o->log)};
    struct evidence_signed done;
    if (!evidence_sign(&in, &done, err))
        return false;
    if (!o->quiet)
        fprintf(stderr, "signed by %s%s\n", done.key, done.logged ? ", and in the log" : "");
    return true;
}

static enum iterate_exit finish(struct official *r, struct error *err)
{
    if (r->failed && is_interrupted(&r->failure)) {
        *err = r->failure;
        return ITERATE_INTERRUPTED;
    }
    if (!seal(r, err) || !sign(r, err))
        return ITERATE_NOT_PASSED;
    if (!r->o->quiet && r->measured)
        blocks_print_table(&r->runs, &r->score);
    else if (!r->o->quiet && r->gates_only && r->score.passed)
        printf("PASSED, no score: correctness alone\n");
    if (r->score.passed)
        return ITERATE_PASSED;
    if (!r->failed) { /* measured, and not good enough */
        error_set(err, "NOT-PASSED", "%s",
                  json_string_value(json_object_get(r->score.metrics, "error")));
        return ITERATE_NOT_PASSED;
    }
    *err = r->failure;
    return r->blame == BLAME_SUBMISSION ? ITERATE_NOT_PASSED
           : r->blame == BLAME_CONTROL  ? ITERATE_CALIBRATION
                                        : ITERATE_DECLINED;
}

static enum iterate_exit refused(const struct error *err)
{
    if (is_interrupted(err))
        return ITERATE_INTERRUPTED;
    return blocks_setup_is_calibration(err) ? ITERATE_CALIBRATION : ITERATE_REFUSED;
}

enum iterate_exit blocks_official_run(const struct blocks_official_options *o, struct error *err)
{
    struct official r = {.o = o, .setup = {.o = o}, .started_ns = clock_now_ns()};
    enum iterate_exit result;
    const char *skip = getenv("MLXFAST_BENCHMARK_SKIP_TIMED");
    r.gates_only = skip != NULL && strcmp(skip, "1") == 0;
    score_document_init(&r.score, "rust");
    if (!evidence_ready(evidence_key_of(o->signing_key), evidence_log_of(o->log), err) ||
        !blocks_setup_open(&r.setup, err) || !run_seal_source(true, &r.score, err)) {
        result = refused(err);
    } else if (!r.gates_only &&
               !quiet_open(&r.setup.contract->quiet, true, o->quiet, &r.quiet, err)) {
        /* Switched off is misuse; a machine without a reader is the machine's. */
        result = is_named(err, "TEMPERATURE-READER-MISSING") ? ITERATE_DECLINED : refused(err);
    } else {
        r.rule = blocks_rule(r.setup.contract);
        run(&r);
        result = finish(&r, err);
    }
    quiet_close(r.quiet);
    score_document_free(&r.score);
    blocks_setup_close(&r.setup);
    return result;
}
