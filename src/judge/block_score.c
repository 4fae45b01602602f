#include "judge/block_score.h"

#include "judge/seal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double block_score_normaliser(const struct contract *c, const char *golden_sha256)
{
    for (size_t i = 0; i < c->pool_count; i++)
        if (strcmp(c->pool[i].sha256, golden_sha256) == 0 && c->pool[i].noop_decode_speedup > 0)
            return c->pool[i].noop_decode_speedup;
    return 0;
}

bool block_score_require_normaliser(const struct contract *c, const char *golden_sha256,
                                    double *out, struct error *err)
{
    *out = block_score_normaliser(c, golden_sha256);
    if (*out > 0)
        return true;
    error_set(err, "NOOP-SPEEDUP-UNPINNED",
              "the --contract track fixture for \"%s\" pins no noop_decode_speedup for the golden",
              c->track_id);
    return error_at(err, c->path, "timed_prompt_pool", golden_sha256);
}

bool block_score_check_raw(const struct contract_block_decode *b, double raw, struct error *err)
{
    if (isfinite(raw) && raw >= b->raw_speedup_min && raw <= b->raw_speedup_max)
        return true;
    return error_set(err, "RAW-SPEEDUP-IMPLAUSIBLE",
                     "a raw speedup of %.6f is not believed: the bounds are %.6g and %.6g", raw,
                     b->raw_speedup_min, b->raw_speedup_max);
}

static const char *const mode_names[] = {[BLOCK_LOCAL_ITERATE] = "dflash-local-iterate",
                                         [BLOCK_LOCAL_SUBMIT] = "dflash-local-submit",
                                         [BLOCK_OFFICIAL] = "dflash-paired-decode-only"};

const char *block_mode_name(enum block_mode mode)
{
    return mode_names[mode];
}

bool block_mode_parse(const char *text, enum block_mode *out)
{
    for (size_t i = 0; i < BLOCK_OFFICIAL; i++) {
        if (strcmp(mode_names[i], text) != 0)
            continue;
        *out = (enum block_mode)i;
        return true;
    }
    return false;
}

int64_t block_mode_tokens(const struct contract_block_decode *b, enum block_mode mode)
{
    return mode == BLOCK_OFFICIAL        ? b->decode_tokens
           : mode == BLOCK_LOCAL_ITERATE ? b->local_iterate_decode_tokens
                                         : b->local_submit_decode_tokens;
}

/* ---- The document ---- */

static const char local_reason[] = "a local run: the participant's own machine, build and "
                                   "reference, no temperature or clock record";

static bool is_official(const struct block_score_inputs *in)
{
    return in->mode == BLOCK_OFFICIAL;
}

static void set_local(struct score_document *d, const struct block_score_inputs *in)
{
    score_set_text(d, "oracle", "candidate-local-dflash-reference-golden");
    score_set_bool(d, "official_score", false);
    score_set_bool(d, "rankable", false);
    score_set_text(d, "not_rankable_reason", local_reason);
    score_set_number(d, "ranked_decode_speedup_floor", in->contract->decode_speedup_floor);
    score_set_text(d, "golden_hash", in->golden_sha256);
}

/* Nothing of the hidden prompt: the golden that is named is the one of correctness. */
static void set_official(struct score_document *d, const struct block_score_inputs *in)
{
    score_set_text(d, "oracle", "baseline-reference-replay");
    score_set_bool(d, "official_score", true);
    score_set_bool(d, "rankable", false); /* until it has passed */
    score_set_bool(d, "parity_all_ok", false);
    score_set_bool(d, "passed_correctness", in->passed_correctness);
    score_set_number(d, "dflash_decode_speedup_normalized", 0);
    score_set_number(d, "noop_reference_decode_speedup", 0);
    if (in->correctness_sha256)
        score_set_text(d, "golden_hash", in->correctness_sha256);
    score_set_text(d, "dflash_weights_hash", in->drafter_sha256 ? in->drafter_sha256 : "");
}

static void set_identity(struct score_document *d, const struct block_score_inputs *in)
{
    const struct contract *c = in->contract;
    const int64_t size =
        is_official(in) ? c->block_decode.block_size : in->benchmarks[0].block_size;
    score_set_text(d, "mode", block_mode_name(in->mode));
    if (is_official(in))
        set_official(d, in);
    else
        set_local(d, in);
    score_set_number(d, "decode_speedup_floor", c->decode_speedup_floor);
    score_set_int(d, "decode_tokens", in->tokens);
    score_set_int(d, "block_size", size);
    score_set_text(d, "contract_sha256", c->sha256);
    score_set_json(d, "contract_sources", contract_sources(c));
    score_set_int(d, "target_pair_count", c->block_decode.target_pairs);
    score_set_text(d, "effective_spec_mode", "dflash");
    score_set_int(d, "effective_spec_depth", size - 1);
    score_set_text(d, "aggregation", "ratio_of_means");
}

static void set_tripwire(struct score_document *d, const struct block_score_inputs *in)
{
    const bool passed = in->tripwire == BLOCK_TRIPWIRE_PASSED;
    const json_t *first = json_array_get(in->diverged, 0);
    score_set_bool(d, "public_drift_tripwire_passed", passed);
    score_set_bool(d, "passed_correctness", passed);
    score_set_int(d, "case_count", in->tripwire_cases);
    if (in->diverged)
        score_set_json(d, "public_drift_divergences", json_incref(in->diverged));
    if (!first || passed) /* a drift inside a case's leniency fails nothing */
        return;
    score_set_json(d, "first_failing_case", json_incref(json_object_get(first, "case")));
    score_set_json(d, "first_failing_step", json_incref(json_object_get(first, "step")));
    score_set_json(d, "expected_token", json_incref(json_object_get(first, "expected_token")));
    score_set_json(d, "actual_token", json_incref(json_object_get(first, "actual_token")));
}

/* What the candidate's legs say, over all pairs. */
static void set_legs(struct score_document *d, const struct block_score_inputs *in)
{
    int64_t accepted = 0, rejected = 0, rounds = 0, residual = 0;
    bool matched = true, trained = true, own = false;
    double seconds = 0;
    for (size_t i = 0; i < in->pair_count; i++) {
        const struct block_report *b = &in->benchmarks[i];
        accepted += b->accepted;
        rejected += b->rejected;
        rounds += b->rounds;
        residual += b->residual;
        matched = matched && b->all_matched;
        trained = trained && b->trained_drafter;
        own = own || b->own_reference;
        seconds += b->decode_seconds + in->probes[i].decode_seconds;
    }
    const int64_t drafted = accepted + rejected;
    const double rate = drafted > 0 ? (double)accepted / (double)drafted : 0;
    score_set_bool(d, "all_tokens_matched", matched);
    score_set_bool(d, "uses_trained_drafter", trained);
    score_set_text(d, "reference_engine", own ? BLOCK_OWN_REFERENCE : BLOCK_OTHER_REFERENCE);
    score_set_number(d, "accepted_draft_rate", rate);
    score_set_int(d, "residual_divergence_count", residual);
    score_set_int(d, "spec_rounds", rounds);
    score_set_int(d, "spec_drafted_total", drafted);
    score_set_int(d, "spec_accepted_total", accepted);
    score_set_number(d, "spec_acceptance_rate", rate);
    score_set_number(d, "timed_benchmark_seconds", seconds);
    score_set_number(d, "benchmark_wall_seconds", seconds);
}

static void set_speed(struct score_document *d, const struct block_score_inputs *in,
                      const struct block_aggregate *all)
{
    if (is_official(in)) {
        score_set_number(d, "baseline_serial_seconds_per_token_mean", all->serial_mean);
        score_set_number(d, "candidate_dflash_seconds_per_token_mean", all->candidate_mean);
    }
    score_set_int(d, "accepted_pair_count", (int64_t)all->count);
    score_set_number(d, "serial_seconds_per_token", all->serial_mean);
    score_set_number(d, "dflash_seconds_per_token", all->candidate_mean);
    score_set_number(d, "dflash_decode_speedup", all->ratio_of_means);
    score_set_number(d, "dflash_decode_speedup_ratio_of_means", all->ratio_of_means);
    score_set_number(d, "dflash_decode_speedup_median", all->median);
    score_set_number(d, "dflash_decode_speedup_min", all->least);
    score_set_number(d, "baseline_decode_seconds_per_token", all->serial_mean);
    score_set_number(d, "decode_seconds_per_token", all->candidate_mean);
    score_set_number(d, "decode_speedup", all->ratio_of_means);
}

struct block_stall block_score_stall(const struct block_score_inputs *in)
{
    struct block_stall s = {.known = true};
    for (size_t i = 0; i < 2 * in->pair_count; i++) {
        const bool of_the_benchmark = i % 2 != 0;
        const struct block_report *leg = &(of_the_benchmark ? in->benchmarks : in->probes)[i / 2];
        s.failed = s.failed || leg->error;
        s.known = s.known && !leg->error && leg->has_latency;
        if (leg->error || !leg->has_latency || leg->max_over_median <= s.worst)
            continue;
        s.worst = leg->max_over_median;
        s.pair = i / 2;
        s.of_the_benchmark = of_the_benchmark;
    }
    s.stalled = s.worst > in->contract->block_decode.stall_factor;
    s.known = s.known || s.stalled;
    return s;
}

static void set_stall(struct score_document *d, const struct block_score_inputs *in)
{
    const struct block_stall s = block_score_stall(in);
    score_set_json(d, "stall_guardrail_passed", s.known ? json_boolean(!s.stalled) : json_null());
}

/* A leg that failed has no time: its failure is the run's. */
static bool fail_legs(struct score_document *d, const struct block_score_inputs *in)
{
    for (size_t i = 0; i < 2 * in->pair_count; i++) {
        const char *error = (i % 2 == 0 ? in->probes : in->benchmarks)[i / 2].error;
        if (!error)
            continue;
        struct buffer text = {0};
        seal_scrub(error, &text);
        score_set_bool(d, "passed_correctness", false);
        score_fail(d, text.data && *text.data ? text.data : "BLOCK-REPORT-INVALID", NULL);
        buffer_free(&text);
        return true;
    }
    return false;
}

static void fail(struct score_document *d, const struct block_score_inputs *in,
                 const char *error_class, const char *text)
{
    if (is_official(in))
        score_fail_hidden(d, error_class, text);
    else
        score_fail(d, error_class, text);
}

static void judge_score(struct score_document *d, const struct block_score_inputs *in,
                        const struct block_aggregate *all)
{
    const struct contract *c = in->contract;
    double noop = block_score_normaliser(c, in->golden_sha256);
    const double score = noop > 0 ? all->ratio_of_means / noop : all->ratio_of_means;
    const bool clears = noop > 0 && score_clears_floor(score, c->decode_speedup_floor);
    struct error err = {0};
    score_set_bool(d, "scoring_normalized", noop > 0);
    if (noop > 0) {
        score_set_number(d, "noop_reference_decode_speedup", noop);
        score_set_number(d, "dflash_decode_speedup_normalized", score);
        score_set_bool(d, "passed_decode_speedup_floor", clears);
    }
    if (is_official(in) && !in->passed_correctness) {
        fail(d, in, "correctness_failed", NULL);
    } else if (is_official(in) &&
               !block_score_require_normaliser(c, in->golden_sha256, &noop, &err)) {
        fail(d, in, err.name, err.message);
    } else if (!is_official(in) && in->tripwire != BLOCK_TRIPWIRE_PASSED) {
        score_fail(d, "PUBLIC-DRIFT-TRIPWIRE",
                   in->tripwire == BLOCK_TRIPWIRE_DRIFTED
                       ? "the engine's tokens have drifted from the public golden's"
                       : "the engine's tokens were not compared with the public golden's");
    } else if (!block_score_check_raw(&c->block_decode, all->ratio_of_means, &err)) {
        fail(d, in, err.name, err.message);
    } else if (noop > 0 && !clears) {
        char text[96];
        snprintf(text, sizeof text, "decode_speedup=%.6f floor=%.6f", score,
                 c->decode_speedup_floor);
        fail(d, in, "performance floor failed", text);
    } else {
        if (is_official(in))
            score_set_bool(d, "rankable", true);
        d->passed = true;
        d->has_score = true;
        d->score = score;
    }
}

/* Every key of the mode has a value from the start, as the others do. */
static void set_defaults(struct score_document *d, const struct block_score_inputs *in)
{
    static const struct block_aggregate none;
    set_speed(d, in, &none);
    score_set_bool(d, "all_tokens_matched", false);
    score_set_bool(d, "uses_trained_drafter", false);
    score_set_number(d, "accepted_draft_rate", 0);
    score_set_int(d, "residual_divergence_count", 0);
    score_set_bool(d, "scoring_normalized", false);
}

void block_score_fill(struct score_document *d, const struct block_score_inputs *in)
{
    struct arena a = {0};
    struct block_aggregate all;
    set_defaults(d, in);
    set_identity(d, in);
    if (is_official(in)) {
        if (in->failure) {
            score_fail_hidden(d, in->failure->name, in->failure->message);
            return;
        }
        score_set_bool(d, "parity_all_ok", true); /* each leg was judged, or the run had failed */
    } else {
        set_tripwire(d, in);
        set_stall(d, in);
        if (fail_legs(d, in))
            return;
    }
    set_legs(d, in);
    struct block_pair *pairs = arena_array(&a, in->pair_count, sizeof *pairs);
    for (size_t i = 0; i < in->pair_count; i++) {
        pairs[i].serial = in->probes[i].seconds_per_token;
        pairs[i].candidate = in->benchmarks[i].seconds_per_token;
    }
    if (block_pairs_aggregate(pairs, in->pair_count, &all)) {
        set_speed(d, in, &all);
        judge_score(d, in, &all);
    } else {
        fail(d, in, "computed score was not finite", NULL);
    }
    arena_free(&a);
}
