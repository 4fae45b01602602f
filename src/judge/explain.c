/* See explain.h. Every sentence is made from the contract's values and from the constants that the
 * judge itself uses, and every refusal named here by the resolver that would refuse. */
#include "judge/explain.h"

#include "judge/client.h"
#include "judge/contract_keys.h"
#include "judge/explain_page.h"
#include "judge/explain_quiet.h"
#include "judge/explain_statistics.h"
#include "judge/fidelity.h"
#include "judge/gates.h"
#include "judge/measure.h"
#include "judge/ranked/calibration.h"
#include "judge/ranked/combine.h"
#include "judge/score.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { ALLOWED_PER_THOUSAND = 1000 };

static int64_t allowed(int64_t per_thousand, int64_t count)
{
    /* Counts are below 2^31 and the tolerance at most 1000: no overflow. */
    return per_thousand * count / ALLOWED_PER_THOUSAND;
}

/* Lists of quoted texts, built in a buffer that the caller frees. */
static void add_quoted(struct buffer *list, const char *text)
{
    buffer_text(list, list->length ? ", `" : "`");
    page_quote(list, text);
    buffer_char(list, '`');
}

static void explain_arm(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    if (contract_require_official_scoring(c, &err))
        page_item(p, "Runs are scored officially (`official_scoring_enabled` is true).");
    else
        page_item(p,
                  "No run is scored officially: `%s`, because `official_scoring_enabled` is %s. "
                  "Local runs work.",
                  err.name, c->has_official_scoring_enabled ? "false" : "not declared");
}

static void explain_pool(const struct page *p, const struct contract *c)
{
    if (c->pool_count == 0) {
        page_item(p, "No prompt is pinned (`timed_prompt_pool`).");
        return;
    }
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < c->pool_count; i++) {
        const double x = c->pool[i].noop_decode_speedup;
        if (x > 0) {
            low = fmin(low, x);
            high = fmax(high, x);
        }
    }
    page_item(p, "Timed prompts come from a pool of %zu, each pinned by its SHA-256.",
              c->pool_count);
    if (high > 0)
        page_item(p,
                  "The unmodified engine's own decode speedup is pinned for the pool's prompts, "
                  "from %.6g to %.6g; the older decode-only flow divides by it.",
                  low, high);
}

static void explain_track(const struct page *p, const struct contract *c)
{
    struct buffer text = {0};
    page_heading(p, 2, "The track");
    page_quote(&text, c->track_id);
    page_item(p,
              "Its id is `%s`%s%s. `MLXFAST_TRACK_ID` or `MLXFAST_QWEN_MTP_TRACK_ID`, where set, "
              "must say the same: `TRACK-ID-MISMATCH`.",
              text.data, c->platform ? "; the platform is " : "",
              c->platform ? strcmp(c->platform, "cuda") == 0 ? "CUDA" : "MLX" : "");
    buffer_clear(&text);
    if (c->track_name) {
        page_quote(&text, c->track_name);
        page_item(p, "Its name is `%s`.", text.data ? text.data : "");
        buffer_clear(&text);
    }
    page_item(p, "The contract's SHA-256 is `%s`; a score seals it as `contract_sha256`.",
              c->sha256);
    explain_arm(p, c);
    for (size_t i = 0; i < c->allowed_mode_count; i++)
        add_quoted(&text, c->allowed_modes[i]);
    page_item(p,
              "An engine may decode in these modes: %s. Another one in `--candidate-spec` or "
              "`--mtp-depth` is refused: `SPEC-MODE-NOT-ALLOWED-FOR-TRACK`.",
              text.data);
    explain_pool(p, c);
    buffer_free(&text);
}

static void explain_pins(const struct page *p, const struct contract *c)
{
    struct buffer model = {0};
    if (c->has_target_pin) {
        page_quote(&model, c->target_model_id);
        page_item(p, "Where a golden says which model made it, that must be `%s` at revision `%s`.",
                  model.data, c->target_revision);
    } else {
        page_item(p, "No reference model is pinned (`target`): a golden's provenance is checked in "
                     "its shape only.");
    }
    if (c->has_hidden_golden)
        page_item(p, "The hidden correctness golden is pinned: %" PRIu64 " bytes, SHA-256 `%s`.",
                  c->hidden_golden_bytes, c->hidden_golden_sha256);
    buffer_free(&model);
}

/* iterate's rule for the length of a base case: the steps of the check, and the decode window. */
static int64_t base_case_length(const struct contract *c, int64_t decode_steps)
{
    return decode_steps + 1 > c->correctness_steps ? decode_steps + 1 : c->correctness_steps;
}

static void explain_goldens(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    page_heading(p, 2, "The golden");
    if (!contract_require_model(c, &err)) {
        page_item(p,
                  "Neither the model type nor the vocabulary, the layers and the length of a "
                  "prompt are declared: every run is refused before an engine starts, `%s`.",
                  err.name);
    } else {
        struct buffer type = {0};
        page_quote(&type, c->golden_model_type);
        page_item(p,
                  "It must be of model type `%s`, with token ids from 0 to %" PRId64
                  " and prompts of exactly %" PRId64 " tokens; the model has %" PRId64
                  " layers. Anything else: `GOLDEN-INVALID`.",
                  type.data, c->vocab_size - 1, c->seed_tokens, c->num_hidden_layers);
        buffer_free(&type);
    }
    if (c->has_window)
        page_item(p,
                  "Its oracle must hold at least %" PRId64 " decode tokens. A base case must hold "
                  "at least %" PRId64 " expected tokens to be checked for correctness, %" PRId64
                  " in local-iterate and %" PRId64 " in local-submit.",
                  c->benchmark_decode_steps, c->correctness_steps,
                  base_case_length(c, c->benchmark_decode_steps),
                  base_case_length(c, c->local_submit_benchmark_decode_steps));
    explain_pins(p, c);
    if (c->scores_against_live_control_leg)
        page_item(p, "It must not carry a stored baseline: `GOLDEN-CARRIES-STORED-BASELINE`.");
}

static void explain_window(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    page_heading(p, 2, "What is timed");
    if (!contract_require_window(c, &err)) {
        page_item(p,
                  "The step counts are not declared: every run is refused before an engine "
                  "starts, `%s`.",
                  err.name);
        return;
    }
    const int64_t warmups =
        c->official_prefill_warmup_runs > 1 ? c->official_prefill_warmup_runs : 1;
    page_item(p,
              "First %" PRId64 " warm-up prefill%s and a decode of %d tokens, on prompts made for "
              "it; not judged.",
              warmups, warmups == 1 ? "" : "s", MEASURE_WARMUP_DECODE_TOKENS);
    if (c->has_model)
        page_item(p,
                  "Prefill: one prompt of %" PRId64 " tokens. Seconds per token are its time "
                  "over %" PRId64 ".",
                  c->seed_tokens, c->seed_tokens);
    page_item(p,
              "Decode: %" PRId64 " tokens in one free run after the seed; in local-submit %" PRId64
              ". The window begins when the seed's token is there. Seconds per token are the "
              "window over the number of tokens.",
              c->benchmark_decode_steps, c->local_submit_benchmark_decode_steps);
    page_item(p,
              "A decode that takes longer than %.6g seconds (local-submit: %.6g) is ended with "
              "`RunTimeout`, unless a calibration or `MLXFAST_RUN_CEILING_S` sets another pace.",
              (double)c->benchmark_decode_steps * CLIENT_RUN_FALLBACK_CEILING *
                  CLIENT_RUN_TIMEOUT_MARGIN,
              (double)c->local_submit_benchmark_decode_steps * CLIENT_RUN_FALLBACK_CEILING *
                  CLIENT_RUN_TIMEOUT_MARGIN);
    if (c->has_scored_batch_size && c->scored_batch_size > 1)
        page_item(p,
                  "%" PRIu32 " streams run together; a run that cannot do so refuses: "
                  "`SCORED-BATCH-SIZE-UNSUPPORTED`.",
                  c->scored_batch_size);
    else if (c->has_scored_batch_size)
        page_item(p, "One stream at a time (batch size 1).");
}

static void explain_timed_tokens(const struct page *p, const struct contract *c)
{
    if (!c->has_token_tolerance) {
        page_item(p, "Timed tokens: every one must be the golden's. The first that is not ends the "
                     "run: `TokenMismatch`.");
        return;
    }
    page_item(p,
              "Timed decode tokens of a ranked run: differences are looked at afterwards by a "
              "reference engine that is given the candidate's own tokens. At most %" PRId64
              " in a thousand may be other than its first choice: `TIMED-DIVERGENCE-OVER-"
              "TOLERANCE`. The prefill's token and local runs stay exact: `TokenMismatch`.",
              c->token_tolerance_per_thousand);
    if (c->has_window)
        page_item(p, "That is %" PRId64 " of %" PRId64 " tokens.",
                  allowed(c->token_tolerance_per_thousand, c->benchmark_decode_steps),
                  c->benchmark_decode_steps);
    if (c->has_near_tie_gap)
        page_item(p,
                  "Each of them must be the reference's second choice, and no further from the "
                  "first than %.10g of its size (of 1 where that is smaller): "
                  "`TIMED-DIVERGENCE-NOT-A-NEAR-TIE`.",
                  c->near_tie_relative_gap);
}

/* Of a run with a live control leg. */
static void explain_seed_window(const struct page *p, const struct contract *c)
{
    page_item(
        p,
        "What comes before the decode window is not scored: the prefill of the decode seed may "
        "take %.10g of it longer than the same leg's timed prefill, else `seed window failed`. The "
        "barrier before it and the one behind it may take as long as the control leg's, and a "
        "hundredth of the window more: `decode barrier failed`.",
        c->has_seed_window_tolerance ? c->seed_window_tolerance : COMBINE_SEED_WINDOW_TOLERANCE);
}

static void explain_blocks(const struct page *p, const struct contract *c)
{
    const struct contract_block_decode *b = &c->block_decode;
    if (!c->has_block_decode)
        return;
    page_heading(p, 2, "Decoding in blocks");
    page_item(p,
              "Protocol `trusted_dflash_block_v1`. A ranked run decodes %" PRId64
              " tokens in rounds of at most %" PRId64 "; no run may ask for more than %" PRId64
              " tokens or rounds wider than %" PRId64 ".",
              b->decode_tokens, b->block_size, b->maximum_decode_tokens, b->maximum_block_size);
    page_item(p,
              "Locally, dflash-local-iterate decodes %" PRId64 " tokens and dflash-local-submit "
              "%" PRId64 ".",
              b->local_iterate_decode_tokens, b->local_submit_decode_tokens);
    page_item(p,
              "The clock starts before the seed and stops when the last token is there: the seed's "
              "prefill is inside the window, for the candidate and for its serial control.");
    page_item(p,
              "A leg whose slowest request takes more than %.6g times the median one is measured "
              "again: the stall guardrail.",
              b->stall_factor);
    page_item(p,
              "A score needs %" PRId64 " accepted pairs; %" PRId64 " are aimed at. The speedup is "
              "the ratio of the mean times. Below %.6g or above %.6g it is not believed: "
              "`RAW-SPEEDUP-IMPLAUSIBLE`.",
              b->min_accepted_pairs, b->target_pairs, b->raw_speedup_min, b->raw_speedup_max);
    page_item(p, "It is divided by the unmodified engine's own speedup on the same prompt "
                 "(`noop_decode_speedup`), and the floor is on that number.");
    if (b->has_calibration) {
        struct buffer machine = {0};
        page_quote(&machine, b->calibration_machine);
        page_item(p,
                  "On `%s` the serial control must take within %.6g %% of %.10g seconds per token "
                  "over %" PRId64 " tokens, or the pair does not count.",
                  machine.data, 100 * b->calibration_band, b->serial_seconds_per_token,
                  b->calibration_decode_tokens);
        buffer_free(&machine);
    } else {
        page_item(p, "How fast the serial control must be is not pinned (`calibration`).");
    }
}

static void explain_fidelity(const struct page *p, const struct contract *c)
{
    const struct contract_fidelity *f = &c->fidelity;
    if (!c->has_fidelity)
        return;
    page_heading(p, 2, "Token fidelity of blocks");
    page_item(p, "Afterwards a reference walks the candidate's own tokens. A token must be its "
                 "first choice, alone or in a frame as wide as the round (docs/fidelity.md).");
    page_item(p,
              "Else it may lie %.10g logits below the first choice, for %" PRId64 " in a thousand "
              "tokens, or be the second choice, for %" PRId64 " in a thousand "
              "(`dflash_token_not_admissible`, `dflash_residual_budget_exhausted`).",
              f->near_tie_logits, f->near_tie_per_thousand, f->residual_per_thousand);
    if (c->has_block_decode)
        page_item(p, "That is %" PRId64 " and %" PRId64 " of %" PRId64 " tokens.",
                  fidelity_budget(f->near_tie_per_thousand, c->block_decode.decode_tokens),
                  fidelity_budget(f->residual_per_thousand, c->block_decode.decode_tokens),
                  c->block_decode.decode_tokens);
    page_item(p,
              "The two largest logits of every row must be the reference's within %.10g and within "
              "%.10g of their size, both (`dflash_work_binding_logit_mismatch`, "
              "`dflash_rejected_row_readout_mismatch`).",
              f->work_binding_absolute, f->work_binding_relative);
    if (f->has_work_binding_mean)
        page_item(p,
                  "On average over a run's scored rows, and over the first %d comparisons of them, "
                  "they may differ by %.10g at most, where there are %d comparisons or more, two "
                  "a token (`dflash_work_binding_logit_mismatch`).",
                  FIDELITY_MEAN_FIRST, f->work_binding_mean, FIDELITY_MEAN_LEAST);
    struct buffer machine = {0}, cheat = {0}, how = {0};
    page_quote(&machine, f->machine);
    page_quote(&cheat, f->nearest_cheat_name);
    page_quote(&how, f->measured_with);
    page_item(p,
              "Measured with `%s` on `%s` over %" PRId64 " tokens: honest builds differ by %.10g "
              "at most; the nearest cheat (`%s`) differs by %.10g.",
              how.data, machine.data, f->decode_tokens, f->largest_honest_drift, cheat.data,
              f->nearest_cheat);
    if (f->has_work_binding_mean)
        page_item(p,
                  "Measured likewise, on average: honest builds %.10g at most, the nearest cheat "
                  "%.10g.",
                  f->largest_honest_mean, f->nearest_cheat_mean);
    buffer_free(&machine);
    buffer_free(&cheat);
    buffer_free(&how);
}

static void explain_correctness(const struct page *p, const struct contract *c)
{
    page_heading(p, 2, "What must be right");
    explain_timed_tokens(p, c);
    if (c->has_window)
        page_item(p,
                  "Base cases: %" PRId64 " steps, the engine being given the golden's token after "
                  "each. At most %" PRId64 " may differ (%d in a thousand); a tie within %g of the "
                  "top logit is no difference.",
                  c->correctness_steps,
                  allowed(GATE_BASE_BUDGET_PER_THOUSAND, c->correctness_steps),
                  GATE_BASE_BUDGET_PER_THOUSAND, GATE_TIE_TOLERANCE);
    if (c->has_mismatch_logit_gap)
        page_item(p,
                  "A difference must be small as well as rare: the expected token must be found "
                  "in well-formed top logits within %.10g of the top one, at every step that "
                  "differs, or the case fails (`mismatch_logit_gap`).",
                  c->mismatch_logit_gap);
    else
        page_item(p, "How far from the top logit an expected token lies does not matter "
                     "(`mismatch_logit_gap` is not declared).");
    page_item(p, "Anchors, free runs and behaviour cases, where the golden has them: as the golden "
                 "says. They run in ranked runs and with `--strict`.");
    if (c->semantic_min_pass > 0)
        page_item(p,
                  "Answers that are judged by their meaning, where the golden has them: at least "
                  "%" PRId64 " must be right (`semantic_min_pass`).",
                  c->semantic_min_pass);
    else
        page_item(p, "Answers that are judged by their meaning, where the golden has them: every "
                     "one must be right (`semantic_min_pass` is not declared).");
    if (c->attention_int8_group32)
        page_item(p, "The weights may hold q, k, v, o and g of attention as affine INT8 in groups "
                     "of 32 (`quantization_envelope`). Another module in a format of its own: "
                     "`QUANTIZATION-NOT-PERMITTED`.");
    else
        page_item(p,
                  "The weights must be in the checkpoint's own format; INT8 attention is refused, "
                  "since `quantization_envelope` %s: `QUANTIZATION-NOT-PERMITTED`.",
                  c->has_quantization_envelope ? "does not permit it" : "is not declared");
    if (c->yarn_magnitude)
        page_item(p,
                  "The engine is told to take its YaRN magnitude from `%s` "
                  "(`BENCH_WORKER_YARN_MAGNITUDE`).",
                  c->yarn_magnitude);
    if (c->engine_arithmetic && strcmp(c->engine_arithmetic, "strict") == 0)
        page_item(p, "The engine is told to compute strictly, to the same bits on every machine "
                     "(`BENCH_WORKER_ARITHMETIC`, `engine_arithmetic`), and its hello must say "
                     "that it does, else `ENGINE-ARITHMETIC-MISMATCH`.");
    else if (c->engine_arithmetic)
        page_item(p, "The engine may choose its arithmetic (`engine_arithmetic`); the score names "
                     "it.");
}

/* How slow the control leg may be against its calibration (contract-and-scoring.md section 6). */
static void explain_control_band(const struct page *p, const struct contract *c)
{
    const char *legs = c->combine_mean ? "Every control leg"
                                       : "The scored pair's control leg and at least half of all";
    if (c->has_bands)
        page_item(p,
                  "%s must be well: at most %.6g %% (prefill) and %.6g %% (decode) "
                  "slower than this box's calibration, else `SERIAL-CONTROL-LEG-OUTSIDE-BAND`. "
                  "Being faster is no fault.",
                  legs, 100 * c->prefill_band_up, 100 * c->decode_band_up);
    else
        page_item(
            p,
            "The acceptance bands are not declared. %s may be at most 5 %% (prefill) and 2 %% "
            "(decode) slower than this box's calibration, else "
            "`SERIAL-CONTROL-LEG-OUTSIDE-BAND`.",
            legs);
}

static void explain_fast_side(const struct page *p, const struct contract *c)
{
    const struct {
        const char *axis;
        bool enabled;
        double down;
    } axes[] = {
        {"prefill", c->prefill_band_down_enabled, c->prefill_band_down},
        {"decode", c->decode_band_down_enabled, c->decode_band_down},
    };
    for (size_t i = 0; c->has_bands && i < COUNT_OF(axes); i++)
        if (axes[i].enabled)
            page_item(p,
                      "A %s time of less than %.10g times its reference is not believed: "
                      "`acceptance band failed`.",
                      axes[i].axis, 1 - axes[i].down);
}

static void explain_denominator(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    page_heading(p, 2, "What it is compared with");
    if (!contract_require_control_leg_rule(c, &err)) {
        page_item(p,
                  "It is not declared whether a control leg is measured or a stored pair is used "
                  "(`scores_against_live_control_leg`): timed runs are refused, `%s`.",
                  err.name);
        return;
    }
    if (c->scores_against_live_control_leg) {
        page_item(p,
                  "With the serial control leg of the organisers' tree, measured on the same box "
                  "in the same job beside the candidate's. Its tokens must be exact: "
                  "`SERIAL-CONTROL-LEG-FAILED`.");
        if (!c->has_block_decode) { /* what holds of blocks stands under their heading */
            explain_control_band(p, c);
            explain_seed_window(p, c);
        }
        contract_require_capture(c, &err);
        page_item(p,
                  "Nothing stored may stand in for it: `STORED-BASELINE-OVERRIDE-REFUSED`, `%s`.",
                  err.name);
        page_item(p, "A local run measures the candidate alone and has no score.");
    } else if (contract_require_official_baseline(c, &err)) {
        page_item(p, "With a stored pair: prefill %.10g and decode %.10g seconds per token.",
                  c->official_baseline_prefill, c->official_baseline_decode);
    } else {
        page_item(p,
                  "With a stored pair, which is not there yet: timed runs are refused, `%s`. "
                  "It may be captured.",
                  err.name);
    }
    explain_fast_side(p, c);
}

static void explain_calibration(const struct page *p, const struct contract *c)
{
    page_item(p,
              "A box is calibrated where its passes vary by %.6g %% at most%s, else "
              "`CALIBRATION-CV-EXCEEDED`.",
              100 * calibration_cv_limit(c),
              c->has_calibration_cv_max ? "" : " (`calibration_cv_max` is not declared)");
}

static void explain_pairs(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    if (!c->scores_against_live_control_leg)
        return;
    if (!contract_require_pairs(c, 1, &err)) {
        page_item(p, "The number of pairs is not declared: ranked runs are refused, `%s`.",
                  err.name);
        return;
    }
    page_item(
        p,
        "A ranked run measures %" PRIu32 " pair%s of a control leg and a candidate leg, the "
        "control leg first%s. It may be given several goldens, in a number that divides the pairs: "
        "`OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS`.",
        c->official_pairs, c->official_pairs == 1 ? "" : "s",
        c->alternate_pairs ? " but in every second pair" : "");
    explain_statistics(p, c);
    explain_calibration(p, c);
    if (c->combine_mean)
        page_item(p, "The score is the mean of the pairs' composites; every pair must clear the "
                     "floors.");
    else
        page_item(p, "The score is that of the pair with the lower-median composite; the floors "
                     "are that pair's.");
}

/* A ranked run of blocks (dflash-track.md section 2). */
static void explain_block_score(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    const int64_t pairs = c->block_decode.target_pairs;
    page_item(p, "The score is the control legs' mean seconds per token over the candidate legs', "
                 "divided by the prompt's `noop_decode_speedup`: 1 is as fast as the unmodified "
                 "engine with blocks.");
    page_item(p,
              "A ranked run measures %" PRId64 " pair%s of a serial control leg and a candidate "
              "leg, in alternating order, on one prompt that is drawn from the pool. A pair that "
              "does not count is measured again once for each class of reason.",
              pairs, pairs == 1 ? "" : "s");
    explain_statistics(p, c);
    if (contract_require_decode_floor(c, &err))
        page_item(p, "A score below %.10g fails the run: `performance floor failed`.",
                  c->decode_speedup_floor);
    else
        page_item(p, "`%s` is not declared: scored runs are refused, `%s`.", err.field, err.name);
}

static void explain_score(const struct page *p, const struct contract *c)
{
    struct error err = {0};
    page_heading(p, 2, "The score");
    if (c->has_block_decode) {
        explain_block_score(p, c);
        return;
    }
    page_item(p, "A gain is the reference's seconds per token over the candidate's.");
    if (contract_require_weights(c, &err)) {
        const double sum = c->score_prefill_weight + c->score_decode_weight;
        page_item(p,
                  "The score is prefill gain^%.6g x decode gain^%.6g. Twice the decode speed "
                  "alone is worth %.4f, twice the prefill speed alone %.4f.",
                  c->score_prefill_weight / sum, c->score_decode_weight / sum,
                  score_composite(1, 2, c->score_prefill_weight, c->score_decode_weight),
                  score_composite(2, 1, c->score_prefill_weight, c->score_decode_weight));
    } else {
        page_item(p, "The weights are not declared: scored runs are refused, `%s`.", err.name);
    }
    explain_pairs(p, c);
    if (c->has_prefill_floor)
        page_item(p, "A prefill gain below %.10g fails the run: `performance floor failed`.",
                  c->prefill_speedup_floor);
    if (c->has_decode_floor)
        page_item(p, "A decode gain below %.10g fails the run: `performance floor failed`.",
                  c->decode_speedup_floor);
    if (!contract_require_floors(c, &err))
        page_item(p, "`%s` is not declared: scored runs are refused, `%s`.", err.field, err.name);
}

static bool require_pairs(const struct contract *c, struct error *err)
{
    return contract_require_pairs(c, 1, err);
}

static bool require_batch(const struct contract *c, struct error *err)
{
    return contract_require_batch(c, UINT32_MAX, err);
}

static bool decodes_blocks(const struct contract *c)
{
    bool allowed_mode = false;
    for (size_t i = 0; i < c->allowed_mode_count; i++)
        allowed_mode = allowed_mode || strcmp(c->allowed_modes[i], "dflash") == 0;
    return allowed_mode || c->has_block_decode || c->has_fidelity;
}

/* What each question is asked for, and the name that a contract without an answer gets. */
static void explain_refusals(const struct page *p, const struct contract *c)
{
    static const struct {
        const char *group, *asked_by;
        bool (*require)(const struct contract *c, struct error *err);
        enum { ASKED_ALWAYS, ASKED_LIVE, ASKED_STORED, ASKED_BLOCKS, ASKED_WITHOUT_BLOCKS } asked;
    } rows[] = {
        {"Window shape", "every run", contract_require_window, ASKED_ALWAYS},
        {"Model shape", "every run", contract_require_model, ASKED_ALWAYS},
        {"Control leg or stored pair", "every timed run", contract_require_control_leg_rule,
         ASKED_ALWAYS},
        {"Official scoring", "ranked runs", contract_require_official_scoring, ASKED_ALWAYS},
        {"Scoring weights", "scored runs", contract_require_weights, ASKED_WITHOUT_BLOCKS},
        {"Speedup floors", "scored runs", contract_require_floors, ASKED_WITHOUT_BLOCKS},
        {"Pairs", "ranked runs with a control leg", require_pairs, ASKED_LIVE},
        {"Batch size", "ranked runs", require_batch, ASKED_ALWAYS},
        {"Stored pair", "runs against a stored pair", contract_require_official_baseline,
         ASKED_STORED},
        {"Acceptance bands", "runs against a stored pair", contract_require_bands, ASKED_STORED},
        {"Batch size with gain exponents", "the older flow's cohort score", contract_require_regime,
         ASKED_ALWAYS},
        {"Older paired flow", "`measure-job`, `overlay-timing`", contract_require_paired_flow,
         ASKED_ALWAYS},
        {"Capture of a stored pair", "`--capture-baseline`", contract_require_capture,
         ASKED_ALWAYS},
        {"Block decoding", "`dflash-probe`, `dflash-benchmark`, `dflash-score`",
         contract_require_block_decode, ASKED_BLOCKS},
        {"Decode floor", "ranked runs of blocks", contract_require_decode_floor, ASKED_BLOCKS},
        {"Token fidelity", "`dflash-benchmark`", contract_require_fidelity, ASKED_BLOCKS},
    };
    page_heading(p, 2, "What is refused");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct error err = {0};
        const bool live = c->scores_against_live_control_leg;
        if (rows[i].asked == (live ? ASKED_STORED : ASKED_LIVE) ||
            (rows[i].asked == ASKED_BLOCKS && !decodes_blocks(c)) ||
            (rows[i].asked == ASKED_WITHOUT_BLOCKS && c->has_block_decode))
            continue;
        if (rows[i].require(c, &err))
            page_item(p, "%s (%s): granted.", rows[i].group, rows[i].asked_by);
        else
            page_item(p, "%s (%s): refused, `%s`.", rows[i].group, rows[i].asked_by, err.name);
    }
}

static void explain_other_keys(const struct page *p, const struct contract *c)
{
    struct buffer list = {0};
    const char *key;
    json_t *value;
    json_object_foreach(c->json, key, value) if (contract_key_is_for_others(key))
        add_quoted(&list, key);
    if (list.length) {
        page_heading(p, 2, "For other readers");
        page_item(p, "The judge knows these keys and does not read them: %s.", list.data);
    }
    buffer_free(&list);
}

void explain_contract(const struct contract *c, bool markdown, struct buffer *out)
{
    const struct page p = {markdown, out};
    struct buffer title = {0};
    buffer_text(&title, markdown ? "What a run under `" : "What a run under ");
    page_quote(&title, c->track_id);
    buffer_text(&title, markdown ? "` does, and what can fail it" : " does, and what can fail it");
    page_heading(&p, 1, title.data);
    buffer_free(&title);
    if (markdown)
        page_paragraph(&p,
                       "Written by `benchd explain-contract --markdown` from `contract.json`; do "
                       "not edit. Every name is explained in `docs/refusals.md`; how a ranked run "
                       "goes, in `docs/ranked-run.md`.");
    explain_track(&p, c);
    explain_goldens(&p, c);
    explain_window(&p, c);
    explain_quiet(&p, c);
    explain_correctness(&p, c);
    explain_blocks(&p, c);
    explain_fidelity(&p, c);
    explain_denominator(&p, c);
    explain_score(&p, c);
    explain_refusals(&p, c);
    explain_other_keys(&p, c);
}
