/* The tables of metric keys, and the check of a metrics object against them. */
#include "judge/score_keys.h"

#include "base/buffer.h"
#include "base/json.h"
#include "judge/block_pairs.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define NULLABLE true

static const struct score_key required_keys[] = {
    /* correctness */
    {"passed_correctness", SCORE_BOOL, false},
    {"case_count", SCORE_INT, false},
    {"checked_steps", SCORE_INT, false},
    {"correctness_seconds", SCORE_REAL, false},
    {"first_failing_case", SCORE_TEXT, NULLABLE},
    {"first_failing_layer", SCORE_INT, NULLABLE},
    {"first_failing_step", SCORE_INT, NULLABLE},
    {"expected_token", SCORE_INT, NULLABLE},
    {"actual_token", SCORE_INT, NULLABLE},
    {"max_abs_diff", SCORE_REAL, false},
    {"num_layers", SCORE_INT, false},
    /* speed */
    {"prefill_seconds_per_token", SCORE_REAL, false},
    {"decode_seconds_per_token", SCORE_REAL, false},
    {"baseline_prefill_seconds_per_token", SCORE_REAL, false},
    {"baseline_decode_seconds_per_token", SCORE_REAL, false},
    {"prefill_speedup", SCORE_REAL, false},
    {"decode_speedup", SCORE_REAL, false},
    {"prefill_speedup_floor", SCORE_REAL, false},
    {"decode_speedup_floor", SCORE_REAL, false},
    {"passed_prefill_speedup_floor", SCORE_BOOL, false},
    {"passed_decode_speedup_floor", SCORE_BOOL, false},
    /* wall time */
    {"benchmark_wall_seconds", SCORE_REAL, false},
    {"timed_benchmark_seconds", SCORE_REAL, false},
    {"preflight_seconds", SCORE_REAL, false},
    /* memory */
    {"peak_ram_gb", SCORE_REAL, false},
    {"process_resident_memory_gb", SCORE_REAL, false},
    {"bandwidth_gb_per_token", SCORE_REAL, false},
    {"bandwidth_source", SCORE_TEXT, false},
    /* expert streaming */
    {"expert_bytes_read", SCORE_INT, false},
    {"expert_read_seconds", SCORE_REAL, false},
    {"expert_cache_hits", SCORE_INT, false},
    {"expert_cache_misses", SCORE_INT, false},
    {"expert_cache_evictions", SCORE_INT, false},
    {"expert_hit_rate", SCORE_REAL, false},
    {"expert_peak_cached_tensors", SCORE_INT, false},
    /* behaviour gates: not run, so they keep their defaults */
    {"gpqa_ttft_case_count", SCORE_INT, false},
    {"gpqa_ttft_pass_count", SCORE_INT, false},
    {"gpqa_ttft_passed", SCORE_BOOL, false},
    {"gpqa_ttft_seconds", SCORE_REAL, false},
    {"gpqa_ttft_p50_seconds", SCORE_REAL, false},
    {"gpqa_ttft_max_seconds", SCORE_REAL, false},
    {"gpqa_ttft_source", SCORE_TEXT, false},
    {"semantic_gpqa_case_count", SCORE_INT, false},
    {"semantic_gpqa_pass_count", SCORE_INT, false},
    {"semantic_gpqa_passed", SCORE_BOOL, false},
    {"semantic_gpqa_model", SCORE_TEXT, false},
    /* identity */
    {"commit", SCORE_TEXT, false},
    {"runtime", SCORE_TEXT, false},
    {"timestamp", SCORE_TEXT, false},
    {"golden_hash", SCORE_TEXT, false},
    {"harness_hash", SCORE_TEXT, false},
    {"weights_hash", SCORE_TEXT, false},
    {"weights_byte_count", SCORE_INT, false},
    {"weights_file_count", SCORE_INT, false},
    /* outcome */
    {"error", SCORE_TEXT, false},
    {"partial_result", SCORE_BOOL, false},
};
_Static_assert(COUNT_OF(required_keys) == 56, "section 1.1 lists 56 keys");

static const struct score_key optional_keys[] = {
    /* engine identity */
    {"engine_protocol_version", SCORE_INT, false},
    {"engine_backend", SCORE_TEXT, false},
    {"engine_device", SCORE_TEXT, false},
    {"engine_arithmetic", SCORE_TEXT, false},
    {"runner_id", SCORE_TEXT, false},
    {"runner_model_type", SCORE_TEXT, false},
    {"runner_build", SCORE_TEXT, false},
    {"runner_manifest_sha256", SCORE_TEXT, false},
    {"resident_pid", SCORE_INT, false},
    {"resident_load_epoch", SCORE_INT, false},
    /* speculation */
    {"effective_spec_mode", SCORE_TEXT, false},
    {"effective_spec_depth", SCORE_INT, false},
    {"acceptance_lengths", SCORE_ARRAY, false},
    {"head_provenance_sha256", SCORE_TEXT, false},
    {"spec_rounds", SCORE_INT, false},
    {"spec_drafted_total", SCORE_INT, false},
    {"spec_accepted_total", SCORE_INT, false},
    {"spec_acceptance_rate", SCORE_REAL, false},
    {"spec_verification_mode", SCORE_TEXT, false},
    {"spec_verify_replay_disagreements", SCORE_INT, false},
    {"spec_rectangular_verification_rounds", SCORE_INT, false},
    {"spec_serial_verification_rounds", SCORE_INT, false},
    /* local, contract */
    {"local_phases", SCORE_OBJECT, false},
    {"contract_sha256", SCORE_TEXT, false},
    {"contract_sources", SCORE_OBJECT, false},
    /* baseline */
    {"baseline_source", SCORE_TEXT, false},
    {"baseline_box", SCORE_TEXT, false},
    {"baseline_calibration_sha256", SCORE_TEXT, false},
    {"baseline_golden_sha256", SCORE_TEXT, false},
    {"baseline_reference_commit", SCORE_TEXT, false},
    {"baseline_band_passed", SCORE_BOOL, false},
    {"baseline_legs_outside_band", SCORE_INT, false},
    {"pairs_set_aside", SCORE_INT, false},
    /* legs */
    {"baseline_leg_prefill_seconds_per_token", SCORE_REAL, false},
    {"baseline_leg_decode_seconds_per_token", SCORE_REAL, false},
    {"candidate_leg_prefill_seconds_per_token", SCORE_REAL, false},
    {"candidate_leg_decode_seconds_per_token", SCORE_REAL, false},
    {"baseline_leg_decode_window_seconds_per_token", SCORE_REAL, false},
    {"candidate_leg_decode_window_seconds_per_token", SCORE_REAL, false},
    {"baseline_leg_seed_prefill_window_seconds_per_token", SCORE_REAL, false},
    {"candidate_leg_seed_prefill_window_seconds_per_token", SCORE_REAL, false},
    /* pairs, gates */
    {"official_pair_combine", SCORE_TEXT, false},
    {"paired_legs", SCORE_ARRAY, false},
    {"null_pairs", SCORE_ARRAY, false},
    {"step_seconds", SCORE_ARRAY, false},
    {"gates", SCORE_ARRAY, false},
    {"statistics", SCORE_OBJECT, false},
    /* token tolerance */
    {"timed_token_tolerance_per_thousand", SCORE_INT, false},
    {"timed_token_near_tie_relative_gap", SCORE_REAL, false},
    {"token_mismatch_count", SCORE_INT, false},
    {"token_mismatch_first_step", SCORE_INT, false},
    {"token_mismatch_near_tie_count", SCORE_INT, false},
    {"token_mismatch_second_choice_count", SCORE_INT, false},
    {"token_mismatch_second_choice_max_relative_gap", SCORE_REAL, false},
    /* per prompt, overlay */
    {"per_prompt", SCORE_ARRAY, false},
    {"scoring_mode", SCORE_TEXT, false},
    {"decode_speedup_ceiling", SCORE_REAL, false},
    {"aggregation", SCORE_TEXT, false},
};

/* A score of block decoding has a mode, and then these (dflash-track.md section 11). */
enum { BLOCK_REQUIRED = 16 };
static const struct score_key block_keys[] = {
    {"mode", SCORE_TEXT, false}, /* the first sixteen are required locally */
    {"oracle", SCORE_TEXT, false},
    {"official_score", SCORE_BOOL, false},
    {"rankable", SCORE_BOOL, false},
    {"not_rankable_reason", SCORE_TEXT, false},
    {"ranked_decode_speedup_floor", SCORE_REAL, false},
    {"public_drift_tripwire_passed", SCORE_BOOL, false},
    {"decode_tokens", SCORE_INT, false},
    {"block_size", SCORE_INT, false},
    {"all_tokens_matched", SCORE_BOOL, false},
    {"uses_trained_drafter", SCORE_BOOL, false},
    {"serial_seconds_per_token", SCORE_REAL, false},
    {"dflash_seconds_per_token", SCORE_REAL, false},
    {"dflash_decode_speedup", SCORE_REAL, false},
    {"accepted_draft_rate", SCORE_REAL, false},
    {"residual_divergence_count", SCORE_INT, false},
    {"scoring_normalized", SCORE_BOOL, false},
    {"accepted_pair_count", SCORE_INT, false},
    {"target_pair_count", SCORE_INT, false},
    {"dflash_decode_speedup_normalized", SCORE_REAL, false},
    {"noop_reference_decode_speedup", SCORE_REAL, false},
    {"dflash_decode_speedup_ratio_of_means", SCORE_REAL, false},
    {"dflash_decode_speedup_median", SCORE_REAL, false},
    {"dflash_decode_speedup_min", SCORE_REAL, false},
    {"public_drift_divergences", SCORE_ARRAY, false},
    {"reference_engine", SCORE_TEXT, false},
    {"stall_guardrail_passed", SCORE_BOOL, NULLABLE}, /* null: not known */
    /* ranked (docs/ranked-blocks.md) */
    {"parity_all_ok", SCORE_BOOL, false},
    {"baseline_serial_seconds_per_token_mean", SCORE_REAL, false},
    {"candidate_dflash_seconds_per_token_mean", SCORE_REAL, false},
    {"dflash_weights_hash", SCORE_TEXT, false},
    {"block_pairs", SCORE_ARRAY, false},
    {"block_null_pairs", SCORE_ARRAY, false},
};
static const char official_blocks[] = "dflash-paired-decode-only";
/* What a ranked score has besides what every score has. */
static const char *const block_official_required[] = {
    "oracle",
    "official_score",
    "rankable",
    "aggregation",
    "scoring_normalized",
    "decode_tokens",
    "block_size",
    "accepted_pair_count",
    "target_pair_count",
    "parity_all_ok",
    "dflash_decode_speedup_normalized",
    "noop_reference_decode_speedup",
    "dflash_decode_speedup_ratio_of_means",
    "dflash_decode_speedup_median",
    "dflash_decode_speedup_min",
    "baseline_serial_seconds_per_token_mean",
    "candidate_dflash_seconds_per_token_mean",
    "dflash_weights_hash",
};
/* Of what was measured: there when the score has passed. */
static const char *const block_official_passed[] = {"block_pairs", "block_null_pairs", "statistics",
                                                    "gates"};
/* One attempt at a pair; null: its leg was not run. */
static const struct score_key block_pair_keys[] = {
    {"pair", SCORE_INT, false},
    {"attempt", SCORE_INT, false},
    {"order", SCORE_TEXT, false},
    {"control_seconds_per_token", SCORE_REAL, NULLABLE},
    {"control_p50_request_seconds", SCORE_REAL, NULLABLE},
    {"control_max_request_seconds", SCORE_REAL, NULLABLE},
    {"candidate_seconds_per_token", SCORE_REAL, NULLABLE},
    {"candidate_p50_request_seconds", SCORE_REAL, NULLABLE},
    {"candidate_max_request_seconds", SCORE_REAL, NULLABLE},
    {"accepted", SCORE_BOOL, false},
    {"rejection", SCORE_TEXT, NULLABLE}, /* null: it counts */
};
static const struct score_key divergence_keys[] = {
    {"case", SCORE_TEXT, false},          {"step", SCORE_INT, false},
    {"expected_token", SCORE_INT, false}, {"actual_token", SCORE_INT, false},
    {"mismatches", SCORE_INT, false},
};

static const struct score_key local_phase_keys[] = {
    {"correctness", SCORE_TEXT, false},
    {"correctness_checked_steps", SCORE_INT, false},
    {"timing", SCORE_TEXT, false},
};

static const struct score_key source_keys[] = {
    {"scored_regime", SCORE_TEXT, false},    {"live_control_leg", SCORE_TEXT, false},
    {"paired_flow", SCORE_TEXT, false},      {"official_baseline", SCORE_TEXT, false},
    {"acceptance_bands", SCORE_TEXT, false}, {"scoring_weights", SCORE_TEXT, false},
    {"window_shape", SCORE_TEXT, false},     {"model_shape", SCORE_TEXT, false},
};

enum { PAIR_REQUIRED = 6 };
static const struct score_key pair_keys[] = {
    {"pair", SCORE_INT, false}, /* the first six are required */
    {"prompt_sha256", SCORE_TEXT, false},
    {"control_prefill_seconds_per_token", SCORE_REAL, false},
    {"control_decode_seconds_per_token", SCORE_REAL, false},
    {"candidate_prefill_seconds_per_token", SCORE_REAL, false},
    {"candidate_decode_seconds_per_token", SCORE_REAL, false},
    {"control_seed_prefill_window_seconds_per_token", SCORE_REAL, false},
    {"control_decode_window_seconds_per_token", SCORE_REAL, false},
    {"candidate_seed_prefill_window_seconds_per_token", SCORE_REAL, false},
    {"candidate_decode_window_seconds_per_token", SCORE_REAL, false},
    {"control_prefill_barrier_seconds", SCORE_REAL, false}, /* these four are ours */
    {"control_decode_barrier_seconds", SCORE_REAL, false},
    {"candidate_prefill_barrier_seconds", SCORE_REAL, false},
    {"candidate_decode_barrier_seconds", SCORE_REAL, false},
    {"token_mismatch_count", SCORE_INT, false},
    {"token_mismatch_first_step", SCORE_INT, false},
    {"token_mismatch_near_tie_count", SCORE_INT, false},
    {"token_mismatch_second_choice_count", SCORE_INT, false},
    {"token_mismatch_second_choice_max_relative_gap", SCORE_REAL, false},
};

enum { PROMPT_REQUIRED = 3 };
static const struct score_key prompt_keys[] = {
    {"prompt_sha256", SCORE_TEXT, false}, /* the first three are required */
    {"effective_mean_draft_len", SCORE_REAL, false},
    {"mtp_seconds_per_token_mean", SCORE_REAL, false},
    {"spec_rounds", SCORE_INT, false},
    {"spec_drafted_total", SCORE_INT, false},
    {"spec_accepted_total", SCORE_INT, false},
    {"head_provenance_sha256", SCORE_TEXT, false},
};

/* metrics.gates (docs/quiet.md); null: not known, or the run ended before it. */
static const struct score_key gate_keys[] = {
    {"pair", SCORE_INT, false},          {"leg", SCORE_TEXT, false},
    {"phase", SCORE_TEXT, false},        {"quiescence", SCORE_OBJECT, false},
    {"temperature", SCORE_OBJECT, true}, {"telemetry", SCORE_OBJECT, true},
};
static const struct score_key quiescence_keys[] = {
    {"state", SCORE_TEXT, false},          {"waited_seconds", SCORE_REAL, false},
    {"load", SCORE_REAL, NULLABLE},        {"own_load", SCORE_REAL, NULLABLE},
    {"others_cpu", SCORE_REAL, NULLABLE},  {"own_cpu", SCORE_REAL, NULLABLE},
    {"window_seconds", SCORE_REAL, false}, {"gpu_use", SCORE_REAL, NULLABLE},
};
static const struct score_key temperature_keys[] = {
    {"state", SCORE_TEXT, false},      {"waited_seconds", SCORE_REAL, false},
    {"celsius", SCORE_REAL, NULLABLE}, {"limit", SCORE_REAL, false},
    {"reader", SCORE_TEXT, NULLABLE},
};
enum { TELEMETRY_OPTIONAL = 2 }; /* the last ones: older scores do not have them */
static const struct score_key telemetry_keys[] = {
    {"seconds", SCORE_REAL, false},
    {"samples", SCORE_INT, false},
    {"steady_samples", SCORE_INT, false},
    {"clock_reader", SCORE_TEXT, NULLABLE},
    {"clock_mhz_min", SCORE_REAL, NULLABLE},
    {"clock_mhz_median", SCORE_REAL, NULLABLE},
    {"clock_steady_mhz_min", SCORE_REAL, NULLABLE},
    {"celsius_max", SCORE_REAL, NULLABLE},
    {"gpu_use_median", SCORE_REAL, NULLABLE},
    {"load_max", SCORE_REAL, NULLABLE},
    {"others_cpu", SCORE_REAL, NULLABLE},
    {"sampler_share", SCORE_REAL, NULLABLE},
    {"throttled", SCORE_BOOL, false},
    {"throttle_reasons", SCORE_ARRAY, false},
    {"series", SCORE_OBJECT, false},
    {"engine_run_delay", SCORE_REAL, NULLABLE},
    {"stolen_cpu", SCORE_REAL, NULLABLE},
};

/* metrics.statistics and its parts (docs/statistics.md); null: not known from so few pairs. */
static const struct score_key statistics_keys[] = {
    {"method", SCORE_TEXT, false},
    {"quoted", SCORE_TEXT, false},
    {"confidence", SCORE_REAL, false},
    {"computed_confidence", SCORE_REAL, false},
    {"pairs", SCORE_INT, false},
    {"axis", SCORE_TEXT, false},
    {"ratio", SCORE_REAL, false},
    {"mean_log_ratio", SCORE_REAL, false},
    {"sd", SCORE_REAL, NULLABLE},
    {"interval", SCORE_ARRAY, NULLABLE},
    {"bootstrap_interval", SCORE_ARRAY, NULLABLE},
    {"smallest_effect", SCORE_REAL, NULLABLE},
    {"null", SCORE_OBJECT, NULLABLE},
    {"sequential", SCORE_OBJECT, false},
};
static const struct score_key statistics_null_keys[] = {
    {"pairs", SCORE_INT, false},
    {"ratio", SCORE_REAL, false},
    {"interval", SCORE_ARRAY, NULLABLE},
    {"contains_one", SCORE_BOOL, NULLABLE},
};
static const struct score_key sequential_keys[] = {
    {"min_pairs", SCORE_INT, false},
    {"max_pairs", SCORE_INT, false},
    {"half_width", SCORE_REAL, false},
    {"stopped", SCORE_TEXT, false},
};

const struct score_key *score_keys_required(size_t *count)
{
    *count = COUNT_OF(required_keys);
    return required_keys;
}

const struct score_key *score_keys_optional(size_t *count)
{
    *count = COUNT_OF(optional_keys);
    return optional_keys;
}

static const struct score_key *find(const struct score_key *keys, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].key, key) == 0)
            return &keys[i];
    return NULL;
}

static bool bad(struct error *err, const char *path, const char *key, const char *what)
{
    char field[256];
    snprintf(field, sizeof field, "%s%s%s", path, *key ? "." : "", key);
    error_set(err, "SCORE-INVALID", "%s %s", field, what);
    return error_at(err, NULL, field, NULL);
}

static bool has_kind(const struct score_key *k, const json_t *value)
{
    if (k->nullable && json_is_null(value))
        return true;
    switch (k->kind) {
    case SCORE_INT:
        return json_is_integer(value);
    case SCORE_REAL:
        return json_is_number(value);
    case SCORE_BOOL:
        return json_is_boolean(value);
    case SCORE_TEXT:
        return json_is_string(value);
    case SCORE_OBJECT:
        return json_is_object(value);
    case SCORE_ARRAY:
        return json_is_array(value);
    }
    return false;
}

/* One closed record: the first `required` keys of the table must be there. */
static bool check_record(const struct score_key *keys, size_t count, size_t required,
                         const json_t *record, const char *path, struct error *err)
{
    if (!json_is_object(record))
        return bad(err, path, "", "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)record, key, value)
    {
        const struct score_key *k = find(keys, count, key);
        if (!k)
            return bad(err, path, key, "is not a key of this record");
        if (!has_kind(k, value))
            return bad(err, path, key, "has the wrong type");
    }
    for (size_t i = 0; i < required; i++)
        if (!json_object_get(record, keys[i].key))
            return bad(err, path, keys[i].key, "is missing");
    return true;
}

static bool check_records(const struct score_key *keys, size_t count, size_t required,
                          const json_t *list, const char *path, struct error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        char place[96];
        snprintf(place, sizeof place, "%s[%zu]", path, i);
        if (!check_record(keys, count, required, json_array_get(list, i), place, err))
            return false;
    }
    return true;
}

/* Every text of the record must be one of the words. */
static bool check_words(const json_t *record, const char *path, const char *const *words,
                        struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)record, key, value)
    {
        const char *text = json_string_value(value);
        size_t i = 0;
        while (text && words[i] && strcmp(words[i], text) != 0)
            i++;
        if (text && !words[i])
            return bad(err, path, key, "is not one of the words allowed there");
    }
    return true;
}

/* null, or two numbers in their order. */
static bool check_interval(const json_t *record, const char *path, const char *key,
                           struct error *err)
{
    const json_t *pair = json_object_get(record, key);
    const json_t *low = json_array_get(pair, 0), *high = json_array_get(pair, 1);
    if (json_is_null(pair) ||
        (json_array_size(pair) == 2 && json_is_number(low) && json_is_number(high) &&
         json_number_value(low) <= json_number_value(high)))
        return true;
    return bad(err, path, key, "must be two numbers, the lower one first");
}

static bool check_statistics(const json_t *metrics, struct error *err)
{
    static const char *const words[] = {"paired log ratio", "paired-t", "bootstrap",
                                        "composite",        "decode",   NULL};
    static const char *const ends[] = {"narrow-enough", "bound-reached", "fixed", NULL};
    static const char path[] = "metrics.statistics", null_path[] = "metrics.statistics.null",
                      rule_path[] = "metrics.statistics.sequential";
    const json_t *s = json_object_get(metrics, "statistics");
    if (!s)
        return true;
    const json_t *null_pairs = json_object_get(s, "null"), *rule = json_object_get(s, "sequential");
    if (!check_record(statistics_keys, COUNT_OF(statistics_keys), COUNT_OF(statistics_keys), s,
                      path, err) ||
        !check_words(s, path, words, err) || !check_interval(s, path, "interval", err) ||
        !check_interval(s, path, "bootstrap_interval", err) ||
        !check_record(sequential_keys, COUNT_OF(sequential_keys), COUNT_OF(sequential_keys), rule,
                      rule_path, err) ||
        !check_words(rule, rule_path, ends, err))
        return false;
    return json_is_null(null_pairs) ||
           (check_record(statistics_null_keys, COUNT_OF(statistics_null_keys),
                         COUNT_OF(statistics_null_keys), null_pairs, null_path, err) &&
            check_interval(null_pairs, null_path, "interval", err));
}

/* A part of a gate record, where it is not null: closed, and its state one of the words. */
static bool check_gate_part(const json_t *record, const char *place, const char *key,
                            const struct score_key *keys, size_t count, size_t required,
                            const char *const *states, struct error *err)
{
    char path[128];
    const json_t *part = json_object_get(record, key);
    snprintf(path, sizeof path, "%s.%s", place, key);
    if (json_is_null(part))
        return true;
    if (!check_record(keys, count, required, part, path, err))
        return false;
    const char *state = json_string_value(json_object_get(part, "state"));
    for (size_t i = 0; state && states[i]; i++)
        if (strcmp(states[i], state) == 0)
            return true;
    return !state || bad(err, path, "state", "is not one of the words allowed there");
}

/* A list of texts or of numbers, null among the latter where a reading was not to be had. */
static bool check_items(const json_t *record, const char *path, const char *key, bool texts,
                        struct error *err)
{
    const json_t *list = json_object_get(record, key);
    if (!json_is_array(list))
        return bad(err, path, key, "must be an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (texts ? !json_is_string(item) : !json_is_number(item) && !json_is_null(item))
            return bad(err, path, key, texts ? "must hold texts" : "must hold numbers");
    }
    return true;
}

static bool check_series(const json_t *telemetry, const char *place, struct error *err)
{
    static const char *const keys[] = {"seconds", "celsius", "clock_mhz"};
    char path[128];
    const json_t *series = json_object_get(telemetry, "series");
    snprintf(path, sizeof path, "%s.telemetry.series", place);
    if (json_object_size(series) != COUNT_OF(keys))
        return bad(err, path, "", "must hold seconds, celsius and clock_mhz");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (!check_items(series, path, keys[i], false, err))
            return false;
        if (json_array_size(json_object_get(series, keys[i])) !=
            json_array_size(json_object_get(series, keys[0])))
            return bad(err, path, keys[i], "has another length than seconds");
    }
    snprintf(path, sizeof path, "%s.telemetry", place);
    return check_items(telemetry, path, "throttle_reasons", true, err);
}

static bool check_gates(const json_t *gates, struct error *err)
{
    static const char *const quiescence[] = {"quiet", "waited", "off", "not-quiet", NULL};
    static const char *const temperature[] = {"fired", "waited",   "skipped-no-reader",
                                              "off",   "not-cool", NULL};
    for (size_t i = 0; i < json_array_size(gates); i++) {
        const json_t *record = json_array_get(gates, i);
        char place[96];
        snprintf(place, sizeof place, "metrics.gates[%zu]", i);
        if (!check_record(gate_keys, COUNT_OF(gate_keys), COUNT_OF(gate_keys), record, place,
                          err) ||
            !check_gate_part(record, place, "quiescence", quiescence_keys,
                             COUNT_OF(quiescence_keys), COUNT_OF(quiescence_keys), quiescence,
                             err) ||
            !check_gate_part(record, place, "temperature", temperature_keys,
                             COUNT_OF(temperature_keys), COUNT_OF(temperature_keys), temperature,
                             err) ||
            !check_gate_part(record, place, "telemetry", telemetry_keys, COUNT_OF(telemetry_keys),
                             COUNT_OF(telemetry_keys) - TELEMETRY_OPTIONAL, NULL, err))
            return false;
        const json_t *telemetry = json_object_get(record, "telemetry");
        if (!json_is_null(telemetry) && !check_series(telemetry, place, err))
            return false;
    }
    return true;
}

static bool check_nested(const json_t *metrics, struct error *err)
{
    static const char *const phases[] = {"not_run", "passed", "failed", NULL};
    static const char *const sources[] = {"contract", "device", "table", NULL};
    const json_t *local = json_object_get(metrics, "local_phases");
    const json_t *source = json_object_get(metrics, "contract_sources");
    const json_t *lengths = json_object_get(metrics, "acceptance_lengths");
    if (local && !(check_record(local_phase_keys, COUNT_OF(local_phase_keys),
                                COUNT_OF(local_phase_keys), local, "metrics.local_phases", err) &&
                   check_words(local, "metrics.local_phases", phases, err)))
        return false;
    if (source && !(check_record(source_keys, COUNT_OF(source_keys), COUNT_OF(source_keys), source,
                                 "metrics.contract_sources", err) &&
                    check_words(source, "metrics.contract_sources", sources, err)))
        return false;
    for (size_t i = 0; i < json_array_size(lengths); i++)
        if (!json_is_integer(json_array_get(lengths, i)))
            return bad(err, "metrics.acceptance_lengths", "", "must hold integers");
    return check_statistics(metrics, err) && check_gates(json_object_get(metrics, "gates"), err) &&
           check_records(pair_keys, COUNT_OF(pair_keys), PAIR_REQUIRED,
                         json_object_get(metrics, "paired_legs"), "metrics.paired_legs", err) &&
           check_records(pair_keys, COUNT_OF(pair_keys), PAIR_REQUIRED,
                         json_object_get(metrics, "null_pairs"), "metrics.null_pairs", err) &&
           check_records(prompt_keys, COUNT_OF(prompt_keys), PROMPT_REQUIRED,
                         json_object_get(metrics, "per_prompt"), "metrics.per_prompt", err);
}

static bool has_all(const json_t *metrics, const char *const *keys, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!json_object_get(metrics, keys[i]))
            return bad(err, "metrics", keys[i], "is missing");
    return true;
}

/* A pair counts exactly when it has no class of rejection, and then both of its legs were run. */
static bool check_block_pairs(const json_t *metrics, const char *key, struct error *err)
{
    static const char *const words[] = {"control-first", "candidate-first",
#define REJECTION_WORD(class, meaning) #class,
                                        BLOCK_REJECTIONS(REJECTION_WORD)
#undef REJECTION_WORD
                                            NULL};
    const json_t *list = json_object_get(metrics, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        char place[96];
        snprintf(place, sizeof place, "metrics.%s[%zu]", key, i);
        if (!check_record(block_pair_keys, COUNT_OF(block_pair_keys), COUNT_OF(block_pair_keys),
                          pair, place, err) ||
            !check_words(pair, place, words, err))
            return false;
        const bool accepted = json_is_true(json_object_get(pair, "accepted"));
        if (accepted != json_is_null(json_object_get(pair, "rejection")))
            return bad(err, place, "rejection", "must be null exactly when the pair counts");
        if (accepted && (!json_is_number(json_object_get(pair, "control_seconds_per_token")) ||
                         !json_is_number(json_object_get(pair, "candidate_seconds_per_token"))))
            return bad(err, place, "accepted", "must not be true of a leg that was not run");
    }
    return true;
}

static size_t count_accepted(const json_t *list)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        count += json_is_true(json_object_get(json_array_get(list, i), "accepted"));
    return count;
}

static bool check_official_blocks(const json_t *metrics, struct error *err)
{
    const bool passed = json_is_true(json_object_get(metrics, "rankable"));
    const char *error = json_string_value(json_object_get(metrics, "error"));
    if (passed != (error != NULL && *error == '\0'))
        return bad(err, "metrics", "rankable", "must be true exactly when there is no error");
    if (!has_all(metrics, block_official_required, COUNT_OF(block_official_required), err) ||
        (passed &&
         !has_all(metrics, block_official_passed, COUNT_OF(block_official_passed), err)) ||
        !check_block_pairs(metrics, "block_pairs", err) ||
        !check_block_pairs(metrics, "block_null_pairs", err))
        return false;
    const json_t *count = json_object_get(metrics, "accepted_pair_count");
    return !passed ||
           json_integer_value(count) ==
               (json_int_t)count_accepted(json_object_get(metrics, "block_pairs")) ||
           bad(err, "metrics", "accepted_pair_count", "must be the pairs that count");
}

/* The keys of block decoding: a mode's, and only there. */
static bool check_blocks(const json_t *metrics, struct error *err)
{
    static const char *const modes[] = {"dflash-local-iterate", "dflash-local-submit"};
    const char *mode = json_string_value(json_object_get(metrics, "mode"));
    if (!mode)
        return true;
    if (strcmp(mode, official_blocks) == 0)
        return check_official_blocks(metrics, err);
    if (strcmp(mode, modes[0]) != 0 && strcmp(mode, modes[1]) != 0)
        return bad(err, "metrics", "mode", "is not one of the words allowed there");
    for (size_t i = 0; i < BLOCK_REQUIRED; i++)
        if (!json_object_get(metrics, block_keys[i].key))
            return bad(err, "metrics", block_keys[i].key, "is missing");
    return check_records(divergence_keys, COUNT_OF(divergence_keys), COUNT_OF(divergence_keys),
                         json_object_get(metrics, "public_drift_divergences"),
                         "metrics.public_drift_divergences", err);
}

bool score_keys_check(const json_t *metrics, struct error *err)
{
    if (!json_is_object(metrics))
        return bad(err, "metrics", "", "must be an object");
    const bool blocks = json_object_get(metrics, "mode") != NULL;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metrics, key, value)
    {
        const struct score_key *k = find(required_keys, COUNT_OF(required_keys), key);
        k = k ? k : find(optional_keys, COUNT_OF(optional_keys), key);
        k = k || !blocks ? k : find(block_keys, COUNT_OF(block_keys), key);
        if (!k)
            return bad(err, "metrics", key, "is not a key of a score");
        if (!has_kind(k, value))
            return bad(err, "metrics", key, "has the wrong type");
    }
    for (size_t i = 0; i < COUNT_OF(required_keys); i++)
        if (!json_object_get(metrics, required_keys[i].key))
            return bad(err, "metrics", required_keys[i].key, "is missing");
    return check_blocks(metrics, err) && check_nested(metrics, err);
}
