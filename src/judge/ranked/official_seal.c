/* What is sealed of a ranked run: what is known of it, however far it came. */
#include "judge/ranked/official_run.h"

#include "base/clock.h"
#include "base/terminal.h"
#include "judge/evidence/evidence.h"
#include "judge/seal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void fill_times(struct official *r)
{
    struct score_document *d = &r->score;
    const struct combined *k = &r->combined;
    const struct pair_times *c = &k->control, *x = &k->candidate;
    score_set_number(d, "prefill_seconds_per_token", x->prefill);
    score_set_number(d, "decode_seconds_per_token", x->decode);
    score_set_number(d, "baseline_prefill_seconds_per_token", c->prefill);
    score_set_number(d, "baseline_decode_seconds_per_token", c->decode);
    score_set_number(d, "prefill_speedup", k->gains.prefill);
    score_set_number(d, "decode_speedup", k->gains.decode);
    score_set_bool(d, "passed_prefill_speedup_floor", k->prefill_floor);
    score_set_bool(d, "passed_decode_speedup_floor", k->decode_floor);
    score_set_number(d, "baseline_leg_prefill_seconds_per_token", c->prefill);
    score_set_number(d, "baseline_leg_decode_seconds_per_token", c->decode);
    score_set_number(d, "candidate_leg_prefill_seconds_per_token", x->prefill);
    score_set_number(d, "candidate_leg_decode_seconds_per_token", x->decode);
    score_set_number(d, "baseline_leg_decode_window_seconds_per_token", c->decode);
    score_set_number(d, "candidate_leg_decode_window_seconds_per_token", x->decode);
    score_set_number(d, "baseline_leg_seed_prefill_window_seconds_per_token",
                     c->seed_prefill_window);
    score_set_number(d, "candidate_leg_seed_prefill_window_seconds_per_token",
                     x->seed_prefill_window);
}

/* The enforced pair's tokens stand in the metrics themselves. */
static void fill_tokens(struct official *r)
{
    struct score_document *d = &r->score;
    const struct contract *c = r->contract;
    const struct pair_tokens *t = &r->runs.pairs[r->combined.enforced].tokens;
    if (!c->has_token_tolerance || !t->judged)
        return;
    score_set_int(d, "timed_token_tolerance_per_thousand", c->token_tolerance_per_thousand);
    if (c->has_near_tie_gap)
        score_set_number(d, "timed_token_near_tie_relative_gap", c->near_tie_relative_gap);
    score_set_int(d, "token_mismatch_count", t->mismatches);
    if (t->first_step >= 0)
        score_set_int(d, "token_mismatch_first_step", t->first_step);
    score_set_int(d, "token_mismatch_near_tie_count", t->near_ties);
    score_set_int(d, "token_mismatch_second_choice_count", t->second_choices);
    score_set_number(d, "token_mismatch_second_choice_max_relative_gap",
                     t->largest_second_choice_gap);
}

/* How the candidate speculated, prompt by prompt, over its legs. */
static void fill_prompts(struct official *r)
{
    json_t *list = json_array();
    for (size_t g = 0; g < r->prompt_count; g++) {
        uint64_t rounds = 0, drafted = 0, accepted = 0, legs = 0;
        int64_t tokens = 0;
        double seconds = 0;
        const char *head = NULL;
        for (size_t i = 0; i < r->runs.count; i++) {
            const struct measure_result *m = &r->candidates[i].timing;
            if (r->runs.pairs[i].golden != g)
                continue;
            legs++;
            rounds += m->rounds;
            drafted += m->drafted;
            accepted += m->accepted;
            tokens += m->decode_tokens;
            seconds += m->decode_seconds_per_token;
            head = r->candidates[i].identity.head_provenance_sha256;
        }
        if (legs == 0)
            continue;
        json_t *o = json_object();
        json_object_set_new(o, "prompt_sha256", json_string(r->prompt_sha256[g]));
        json_object_set_new(o, "effective_mean_draft_len",
                            json_real(rounds > 0 ? (double)drafted / (double)rounds : 0));
        json_object_set_new(o, "mtp_seconds_per_token_mean", json_real(seconds / (double)legs));
        json_object_set_new(o, "spec_rounds", json_integer((json_int_t)rounds));
        json_object_set_new(o, "spec_drafted_total", json_integer((json_int_t)drafted));
        json_object_set_new(o, "spec_accepted_total", json_integer((json_int_t)accepted));
        if (head != NULL)
            json_object_set_new(o, "head_provenance_sha256", json_string(head));
        json_array_append_new(list, o);
    }
    score_set_json(&r->score, "per_prompt", list);
}

static void fill_runs(struct official *r)
{
    struct score_document *d = &r->score;
    if (r->gates_only)
        return;
    if (r->runs.count > 0)
        score_set_json(d, "paired_legs", combine_seal(r->runs.pairs, r->runs.count));
    if (r->runs.null_count > 0)
        score_set_json(d, "null_pairs", combine_seal(r->runs.nulls, r->runs.null_count));
    if (r->runs.count > 0)
        score_set_int(d, "pairs_set_aside", (int64_t)r->runs.set_aside);
    if (r->quiet != NULL)
        score_set_json(d, "gates", quiet_records(r->quiet));
    score_set_text(d, "official_pair_combine", r->contract->combine_mean ? "mean" : "lower_median");
    score_set_text(d, "baseline_source", "serial-control-leg");
    if (r->box != NULL)
        score_set_text(d, "baseline_box", r->box);
    if (r->calibration != NULL) {
        score_set_text(d, "baseline_calibration_sha256", r->calibration_sha256);
        score_set_text(d, "baseline_reference_commit", r->calibration->reference_commit);
    }
    if (r->runs.count > 0) {
        score_set_bool(d, "baseline_band_passed", !r->outside_band);
        score_set_int(d, "baseline_legs_outside_band", (int64_t)r->tally.outside);
    }
    if (r->runs.has_statistics)
        score_set_json(d, "statistics",
                       paired_seal(&r->runs.estimate,
                                   r->runs.null_count > 0 ? &r->runs.null_estimate : NULL, &r->rule,
                                   r->runs.stopped));
    score_set_number(d, "timed_benchmark_seconds", r->timed_seconds);
}

static bool combined(const struct official *r)
{
    return isfinite(r->combined.control.decode) && r->combined.control.decode > 0;
}

static void fill_enforced(struct official *r)
{
    struct score_document *d = &r->score;
    const size_t i = r->combined.enforced;
    if (!combined(r))
        return;
    const struct leg_result *leg = &r->candidates[i];
    const struct official_prompt *p = &r->prompts[r->runs.pairs[i].golden];
    fill_times(r);
    fill_tokens(r);
    fill_prompts(r);
    score_set_text(d, "golden_hash", p->golden->sha256);
    score_set_text(d, "baseline_golden_sha256", p->control->sha256);
    leg_seal_speculation(&leg->timing, d);
    run_seal_experts(&leg->timing.expert_stats, leg->timing.decode_tokens, d);
}

static void fill_correctness(struct official *r)
{
    struct score_document *d = &r->score;
    const struct leg_result *k = &r->correctness;
    const struct golden *first = r->prompt_count > 0 ? r->prompts[0].golden : NULL;
    if (first != NULL && !combined(r)) {
        score_set_text(d, "golden_hash", first->sha256);
        score_set_int(d, "case_count", (int64_t)golden_gate_case_count(first));
    }
    score_set_bool(d, "passed_correctness", k->gates_ran && k->gates.passed);
    score_set_number(d, "correctness_seconds", k->correctness_seconds);
    if (!k->gates_ran)
        return;
    gates_seal(&k->gates, d);
    gates_seal_latency(&r->latency, d);
}

/* The token that was wrong in a candidate's leg: where, and of a golden that is no secret, which.
 */
static void fill_mismatch(struct official *r)
{
    struct score_document *d = &r->score;
    if (r->candidate_count == 0)
        return;
    const struct token_mismatch *m = &r->candidates[r->candidate_count - 1].timing.mismatch;
    if (!m->present || r->drawn)
        return;
    score_set_text(d, "first_failing_case", m->label);
    score_set_int(d, "first_failing_step", m->step);
    score_set_int(d, "expected_token", m->expected);
    score_set_int(d, "actual_token", m->actual);
}

enum iterate_exit official_blame(const char *name)
{
    static const char *const control[] = {"BASELINE-", "CALIBRATION-", "SERIAL-CONTROL-LEG-",
                                          "CONTROL-GOLDEN-", "TIMED-REPLAY-FAILED"};
    static const char *const machine[] = {"QUIESCENCE-", "COOL-GATE-", "TEMPERATURE-READER-",
                                          "TELEMETRY-", "QUIET-GATES-"};
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        if (strncmp(name, control[i], strlen(control[i])) == 0)
            return ITERATE_CALIBRATION;
    for (size_t i = 0; i < sizeof machine / sizeof *machine; i++)
        if (strncmp(name, machine[i], strlen(machine[i])) == 0)
            return ITERATE_DECLINED;
    return ITERATE_NOT_PASSED;
}

/* Of a hidden prompt a failure is told by its category alone; one that is not the submission's is
 * none of its categories. */
static void fail(struct official *r, const struct error *why)
{
    if (r->drawn && official_blame(why->name) != ITERATE_NOT_PASSED)
        score_fail(&r->score, "no_score", NULL);
    else if (r->drawn)
        score_fail_hidden(&r->score, why->name, why->message);
    else
        run_seal_failure(why, &r->score);
}

static void fill_verdict(struct official *r, bool ran, const struct error *why)
{
    struct score_document *d = &r->score;
    const struct gates_result *g = &r->correctness.gates;
    if (!ran) {
        fail(r, why);
    } else if (!r->gates_only && r->combined.error != NULL) {
        score_fail(d, r->combined.error, r->combined.text);
    } else if (!g->passed) {
        struct buffer text = {0};
        gates_failure_text(g, &text);
        if (r->drawn)
            score_fail_hidden(d, g->error, text.data);
        else
            score_fail(d, g->error, text.data);
        buffer_free(&text);
    } else {
        d->passed = true;
        d->has_score = !r->gates_only;
        d->score = r->combined.score;
    }
}

void official_fill(struct official *r, bool ran, const struct error *why)
{
    struct score_document *d = &r->score;
    const struct leg_identity *identity = r->candidate_count > 0
                                              ? &r->candidates[r->candidate_count - 1].identity
                                          : r->correctness.started ? &r->correctness.identity
                                                                   : NULL;
    run_seal_contract(r->contract, d);
    if (identity != NULL)
        leg_seal_identity(identity, d);
    fill_runs(r);
    fill_enforced(r);
    fill_correctness(r);
    fill_mismatch(r);
    score_set_bool(d, "partial_result", r->gates_only);
    score_set_number(d, "peak_ram_gb", (double)r->peak_bytes * 1e-9);
    score_set_number(d, "process_resident_memory_gb", (double)r->resident_bytes * 1e-9);
    score_set_number(d, "preflight_seconds", r->preflight_seconds);
    score_set_number(d, "benchmark_wall_seconds", clock_seconds(r->started_ns));
    fill_verdict(r, ran, why);
}

bool official_seal(struct official *r, struct error *err)
{
    const struct golden *golden =
        r->prompt_count == 0 ? NULL
        : combined(r)        ? r->prompts[r->runs.pairs[r->combined.enforced].golden].golden
                             : r->prompts[0].golden;
    const struct seal_inputs in = {.score_path = r->o->score_path,
                                   .weights_path = r->o->weights,
                                   .weights_sha256 = r->has_weights ? r->weights.sha256 : NULL,
                                   .weights_file_count = r->weights.files,
                                   .weights_byte_count = r->weights.bytes,
                                   .golden_path = golden != NULL && !r->drawn ? golden->path : NULL,
                                   .golden_sha256 = golden != NULL ? golden->sha256 : NULL,
                                   .candidate_executable = r->o->engine,
                                   .benchd_executable = run_own_path(&r->arena),
                                   .sandbox = r->sandbox_seal,
                                   .local_iterate = official_is_local_iterate(r)};
    return seal_write(&r->score, &in, err);
}

bool official_sign(struct official *r, struct error *err)
{
    const char *key = evidence_key_of(r->o->signing_key), *log = evidence_log_of(r->o->log);
    if (r->o->local || key == NULL) /* nor a log: evidence_ready */
        return true;
    const char **goldens = arena_array(&r->arena, 2 * r->prompt_count + 1, sizeof *goldens);
    size_t count = 0;
    for (size_t i = 0; i < r->prompt_count; i++) {
        const struct official_prompt *p = &r->prompts[i];
        if (p->golden != NULL)
            goldens[count++] = p->golden->path;
        if (p->control != NULL && p->control != p->golden)
            goldens[count++] = p->control->path;
    }
    const struct evidence_signing in = {
        .files = {.score = r->o->score_path,
                  .contract = r->o->contract,
                  .goldens = goldens,
                  .golden_count = count,
                  .calibration = r->calibration != NULL ? r->calibration_path : NULL},
        .key = key,
        .baseline_engine = r->reference.engine,
        .box = r->box,
        .log = log};
    struct evidence_signed done;
    if (!evidence_sign(&in, &done, err))
        return false;
    if (!r->o->quiet && done.logged)
        fprintf(stderr, "signed by %s, entry %llu of the log\n", done.key,
                (unsigned long long)done.entry.index);
    else if (!r->o->quiet)
        fprintf(stderr, "signed by %s\n", done.key);
    return true;
}

/* ---- for people ---- */

static void row(struct table *t, const char *what, const char *format, double a, double b, double c)
{
    char text[160];
    snprintf(text, sizeof text, format, a, b, c);
    table_row(t, what, text);
}

/* Control against control: what this machine makes of nothing. */
static void show_null(const struct official *r, struct table *t)
{
    const struct paired_estimate *e = &r->runs.estimate, *n = &r->runs.null_estimate;
    struct paired_null check;
    if (!r->runs.has_statistics || r->runs.null_count == 0)
        return;
    row(t, "null pairs", "%.0f; ratio %.4f", (double)r->runs.null_count, n->ratio, 0);
    if (paired_null_check(e, n, e->confidence, &check))
        row(t, "null interval",
            check.contains_one ? "%.4f to %.4f" : "%.4f to %.4f, without 1: distrust this run",
            check.low, check.high, 0);
}

void official_show(const struct official *r)
{
    const struct combined *k = &r->combined;
    const struct paired_estimate *e = &r->runs.estimate;
    struct table *t = table_new(2);
    table_row(t, "correctness",
              !r->correctness.gates_ran     ? "not reached"
              : r->correctness.gates.passed ? "passed"
                                            : "FAILED");
    if (combined(r)) {
        row(t, "prefill", "%.6f times (%.1f against %.1f tok/s)", k->gains.prefill,
            1 / k->candidate.prefill, 1 / k->control.prefill);
        row(t, "decode", "%.6f times (%.1f against %.1f tok/s)", k->gains.decode,
            1 / k->candidate.decode, 1 / k->control.decode);
    }
    if (r->runs.has_statistics && e->count > 1) {
        row(t, "pairs", "%.0f; ratio %.4f (sd %.4f)", (double)e->count, e->ratio, e->sd);
        row(t, "interval", "%.4f to %.4f at confidence %.3g", e->t_low, e->t_high,
            r->rule.confidence);
        row(t, "smallest effect", "%.2f %% could have been seen",
            100 * paired_smallest_claim(e, PAIRED_CLAIM_FLOOR), 0, 0);
        table_row(t, "the candidate is",
                  paired_verdict_text(paired_verdict(e, PAIRED_CLAIM_FLOOR)));
    }
    show_null(r, t);
    if (r->score.has_score)
        row(t, "score", "%.6f", r->score.score, 0, 0);
    else
        table_row(t, "score",
                  r->gates_only && r->score.passed ? "none (gates only)" : "none (not passed)");
    table_row(t, "sealed in", r->o->score_path);
    table_print(t);
}
