/* Speculation, correctness, memory, identity, the contract, and every metric. */
#include "judge/page/parts.h"

#include "judge/page/units.h"

#include "base/buffer.h"
#include "base/json.h"
#include "base/number.h"
#include "judge/explain.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { LENGTHS_MOST = 64 };

/* A metric as text: numbers as they are sealed, arrays by their length. */
static const char *value_text(struct arena *a, const json_t *value)
{
    char number[64];
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_integer(value))
        return arena_printf(a, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    if (json_is_real(value))
        return arena_strdup(a, number_format_double(json_real_value(value), number, sizeof number));
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (json_is_array(value))
        return arena_printf(a, "%zu entries", json_array_size(value));
    if (!json_is_object(value))
        return NULL;
    struct buffer text = {0};
    json_write_canonical(value, 0, &text);
    const char *copy = arena_strdup(a, text.data ? text.data : "");
    buffer_free(&text);
    return copy;
}

/* A row for each key that is there and, if a text, not empty. */
struct fact {
    const char *name, *key;
};
static size_t facts_there(const json_t *m, const struct fact *facts, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += json_object_get(m, facts[i].key) != NULL;
    return n;
}

static void facts_table(struct sheet *s, const json_t *m, const char *caption,
                        const struct fact *facts, size_t count)
{
    static const char *const heads[] = {"what", "value"};
    sheet_table(s, SHEET_BOTH, caption, 2, heads);
    for (size_t i = 0; i < count; i++) {
        const char *value = value_text(&s->arena, json_object_get(m, facts[i].key));
        if (value && *value)
            sheet_row(s, facts[i].name, value);
    }
}

/* metrics.acceptance_lengths: of each round, how many of its tokens held. */
static void acceptance_chart(struct sheet *s, const json_t *m)
{
    static const char *const heads[] = {"length", "rounds"};
    const json_t *list = json_object_get(m, "acceptance_lengths");
    size_t counts[LENGTHS_MOST + 1] = {0}, most = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t length = json_integer_value(json_array_get(list, i));
        const size_t at = length < 0 ? 0 : length > LENGTHS_MOST ? LENGTHS_MOST : (size_t)length;
        counts[at]++;
        most = at > most ? at : most;
    }
    if (json_array_size(list) == 0)
        return;
    json_t *chart = sheet_chart_new("bars", "length", "rounds");
    json_t *series = sheet_chart_series(s, chart, "rounds");
    for (size_t i = 0; i <= most; i++) {
        sheet_chart_label(s, chart, arena_printf(&s->arena, "%zu", i));
        sheet_push(series, "values", (double)counts[i]);
    }
    sheet_chart(s, "Acceptance: how many rounds were how long", chart);
    sheet_table(s, SHEET_FOLDED, "How many rounds were how long", 2, heads);
    for (size_t i = 0; i <= most; i++)
        sheet_row(s, arena_printf(&s->arena, "%zu", i), arena_printf(&s->arena, "%zu", counts[i]));
}

static void prompts_table(struct sheet *s, const json_t *m)
{
    static const char *const heads[] = {"prompt (SHA-256)", "mean length", "per token",
                                        "rounds",           "drafted",     "accepted"};
    const json_t *list = json_object_get(m, "per_prompt");
    struct arena *a = &s->arena;
    if (json_array_size(list) == 0)
        return;
    sheet_table(s, SHEET_BOTH, "By prompt", 6, heads);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        sheet_row(s, arena_strndup(a, source_text(p, "prompt_sha256"), 16),
                  unit_number(a, source_real(p, "effective_mean_draft_len"), NULL),
                  unit_seconds(a, source_real(p, "mtp_seconds_per_token_mean")),
                  value_text(a, json_object_get(p, "spec_rounds")),
                  value_text(a, json_object_get(p, "spec_drafted_total")),
                  value_text(a, json_object_get(p, "spec_accepted_total")));
    }
}

void part_speculation(struct sheet *s, const struct report_source *r)
{
    static const struct fact counters[] = {
        {"rounds", "spec_rounds"},
        {"tokens drafted", "spec_drafted_total"},
        {"drafts accepted", "spec_accepted_total"},
        {"share accepted", "spec_acceptance_rate"},
        {"accepted, of the legs of blocks", "accepted_draft_rate"},
        {"rows in a block, at most", "block_size"},
        {"trained drafter", "uses_trained_drafter"},
        {"verification", "spec_verification_mode"},
        {"rounds verified in a rectangle", "spec_rectangular_verification_rounds"},
        {"rounds verified serially", "spec_serial_verification_rounds"},
        {"replays that disagreed", "spec_verify_replay_disagreements"},
    };
    const json_t *m = r->score.metrics;
    const char *mode = source_text(m, "effective_spec_mode");
    sheet_begin(s, "speculation", "Speculation");
    if (facts_there(m, counters, sizeof counters / sizeof counters[0]) == 0) {
        sheet_say(s, SHEET_PLAIN, "%s",
                  strcmp(mode, "serial") == 0 ? "Decoding was serial: nothing was drafted."
                                              : "No speculation is sealed.");
        return;
    }
    sheet_say(s, SHEET_PLAIN, "Mode %s, depth %s.", *mode ? mode : "not told",
              json_object_get(m, "effective_spec_depth")
                  ? value_text(&s->arena, json_object_get(m, "effective_spec_depth"))
                  : "not told");
    facts_table(s, m, "Drafts", counters, sizeof counters / sizeof counters[0]);
    acceptance_chart(s, m);
    prompts_table(s, m);
}

void part_correctness(struct sheet *s, const struct report_source *r)
{
    static const struct fact facts[] = {
        {"passed", "passed_correctness"},
        {"cases", "case_count"},
        {"steps checked", "checked_steps"},
        {"first failing case", "first_failing_case"},
        {"its step", "first_failing_step"},
        {"expected token", "expected_token"},
        {"actual token", "actual_token"},
        {"timed tokens that differed", "token_mismatch_count"},
        {"of them near ties", "token_mismatch_near_tie_count"},
        {"of them second choices", "token_mismatch_second_choice_count"},
        {"allowed per thousand", "timed_token_tolerance_per_thousand"},
        {"all tokens matched", "all_tokens_matched"},
        {"parity of every pair", "parity_all_ok"},
        {"residual divergences", "residual_divergence_count"},
        {"tripwire of public drift passed", "public_drift_tripwire_passed"},
        {"golden judged by", "reference_engine"},
    };
    const json_t *m = r->score.metrics;
    const bool passed = source_flag(m, "passed_correctness");
    const json_t *phases = json_object_get(m, "local_phases");
    sheet_begin(s, "correctness", "Correctness");
    if (strcmp(source_text(phases, "correctness"), "not_run") == 0)
        sheet_say(s, SHEET_CAUTION, "Correctness was not run.");
    else
        sheet_say(s, passed ? SHEET_GOOD : SHEET_BAD, "%s",
                  passed ? "Every check of tokens that ran has passed."
                         : "The tokens are not sealed as right.");
    facts_table(s, m, "Tokens", facts, sizeof facts / sizeof facts[0]);
}

void part_memory(struct sheet *s, const struct report_source *r)
{
    static const char *const heads[] = {"memory", "amount"};
    static const struct fact rows[] = {{"peak of the engine", "peak_ram_gb"},
                                       {"resident at the end", "process_resident_memory_gb"},
                                       {"read per token", "bandwidth_gb_per_token"}};
    const json_t *m = r->score.metrics;
    struct arena *a = &s->arena;
    bool any = false;
    sheet_begin(s, "memory", "Memory");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        any |= source_real(m, rows[i].key) > 0;
    if (!any) {
        sheet_say(s, SHEET_PLAIN, "No use of memory is sealed.");
        return;
    }
    sheet_say(s, SHEET_PLAIN, "Sealed to two digits.");
    sheet_table(s, SHEET_BOTH, "Memory", 2, heads);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double amount = source_real(m, rows[i].key);
        sheet_row(s, rows[i].name, amount > 0 ? unit_bytes(a, amount * 1e9) : NULL);
    }
    sheet_row(s, "weights",
              unit_bytes(a, (double)json_integer_value(json_object_get(m, "weights_byte_count"))));
}

void part_identity(struct sheet *s, const struct report_source *r)
{
    static const struct fact facts[] = {
        {"commit", "commit"},
        {"measured at", "timestamp"},
        {"engine", "runner_id"},
        {"engine's build", "runner_build"},
        {"backend", "engine_backend"},
        {"device", "engine_device"},
        {"arithmetic", "engine_arithmetic"},
        {"model type", "runner_model_type"},
        {"manifest", "runner_manifest_sha256"},
        {"contract", "contract_sha256"},
        {"golden", "golden_hash"},
        {"weights", "weights_hash"},
        {"files of weights", "weights_file_count"},
        {"harness", "harness_hash"},
        {"drafter", "head_provenance_sha256"},
        {"drafter's weights", "dflash_weights_hash"},
        {"control from", "baseline_source"},
        {"box of the control", "baseline_box"},
        {"calibration", "baseline_calibration_sha256"},
        {"reference's commit", "baseline_reference_commit"},
        {"control within its band", "baseline_band_passed"},
    };
    static const char *const heads[] = {"file", "SHA-256"};
    sheet_begin(s, "identity", "Identity");
    sheet_say(s, r->score.sidecar == SIDECAR_DIFFERS ? SHEET_BAD : SHEET_PLAIN, "%s",
              r->score.sidecar == SIDECAR_HOLDS
                  ? "The digest beside the score (.sha256) is that of the file."
              : r->score.sidecar == SIDECAR_DIFFERS
                  ? "The digest beside the score (.sha256) is not that of the file."
                  : "No digest (.sha256) lies beside the score.");
    facts_table(s, r->score.metrics, "What ran, and against what (digests are SHA-256)", facts,
                sizeof facts / sizeof facts[0]);
    sheet_table(s, SHEET_BOTH, "The files of this report", 2, heads);
    sheet_row(s, r->score.name, r->score.sha256);
    for (size_t i = 0; i < r->other_count; i++)
        sheet_row(s, r->others[i].name, r->others[i].sha256);
}

void part_contract(struct sheet *s, const struct report_source *r)
{
    sheet_begin(s, "contract", "The contract in plain words");
    if (!r->contract) {
        sheet_say(s, SHEET_PLAIN, "The contract was not given (--contract FILE).");
        return;
    }
    struct buffer plain = {0}, markdown = {0};
    explain_contract(r->contract, false, &plain);
    explain_contract(r->contract, true, &markdown);
    sheet_prose(s, plain.data ? plain.data : "", markdown.data ? markdown.data : "");
    buffer_free(&plain);
    buffer_free(&markdown);
}

void part_metrics(struct sheet *s, const struct report_source *r)
{
    static const char *const heads[] = {"metric", "value"};
    const char *key;
    json_t *value;
    sheet_begin(s, "metrics", "Every metric");
    sheet_say(s, SHEET_PLAIN,
              "As they are sealed. Names that end in seconds are seconds, gb are "
              "gigabytes of a thousand million bytes.");
    sheet_table(s, SHEET_FOLDED, "Metrics", 2, heads);
    json_object_foreach((json_t *)r->score.metrics, key, value)
        sheet_row(s, key, value_text(&s->arena, value));
}
