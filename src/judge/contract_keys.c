#include "judge/contract_keys.h"

#include "base/buffer.h"

#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const char *const read_keys[] = {
    "track_id",
    "track_name",
    "official_scoring_enabled",
    "allowed_modes",
    "timed_prompt_pool",
    "official_pairs",
    "official_pair_combine",
    "official_pair_order",
    "scores_against_live_control_leg",
    "paired_flow_retired",
    "timed_token_tolerance_per_thousand",
    "timed_token_near_tie_relative_gap",
    "seed_window_tolerance",
    "rewarm_runs",
    "mismatch_logit_gap",
    "semantic_min_pass",
    "decode_speedup_floor",
    "prefill_speedup_floor",
    "scored_batch_size",
    "prefill_gain_exponent",
    "decode_gain_exponent",
    "official_baseline_prefill_seconds_per_token",
    "official_baseline_decode_seconds_per_token",
    "prefill_band_up_tolerance",
    "prefill_band_down_tolerance",
    "prefill_band_down_enabled",
    "decode_band_up_tolerance",
    "decode_band_down_tolerance",
    "decode_band_down_enabled",
    "score_decode_weight",
    "score_prefill_weight",
    "correctness_steps",
    "benchmark_decode_steps",
    "local_submit_benchmark_decode_steps",
    "official_prefill_warmup_runs",
    "golden_model_type",
    "vocab_size",
    "num_hidden_layers",
    "seed_tokens",
    "target",
    "hidden_correctness_golden",
    "yarn_magnitude",
    "engine_arithmetic",
    "block_decode",
    "fidelity",
    "quantization_envelope",
    "statistics",
    "quiet",
    "calibration_cv_max",
};

/* Known, and meant for other readers: the last row of section 1's table, what the published DFlash
 * fixture declares, and the pin of tracks.md section 2. */
static const char *const engine_side_keys[] = {
    "live_golden",
    "live_golden_speculative",
    "baseline_reference_commit",
    "kv_backend",
    "mtp_head",
    "mlx_swift_lm_revision",
    "runner",
    "license",
    "scoring_semantics",
    "schema_version",
    "benchmark_name",
    "ngram_shard_dir",
    "scored_exponents",
    "editablePaths",
    "assistant",
    "protocol",
    "reference_baseline",
    "proposed_scoring",
    "engine_pin",
};

static const char *const pool_keys[] = {"sha256", "bytes", "noop_decode_speedup", "r2_path",
                                        "path"};
static const char *const hidden_golden_keys[] = {"sha256", "bytes", "r2_path", "path"};
static const char *const block_decode_keys[] = {"protocol",
                                                "block_size",
                                                "maximum_block_size",
                                                "decode_tokens",
                                                "maximum_decode_tokens",
                                                "local_iterate_decode_tokens",
                                                "local_submit_decode_tokens",
                                                "min_accepted_pairs",
                                                "target_pairs",
                                                "stall_factor",
                                                "raw_speedup_min",
                                                "raw_speedup_max",
                                                "calibration"};
static const char *const calibration_keys[] = {"serial_seconds_per_token", "band", "decode_tokens",
                                               "machine"};
static const char *const fidelity_keys[] = {"near_tie_logits",
                                            "near_tie_per_thousand",
                                            "residual_per_thousand",
                                            "work_binding_absolute",
                                            "work_binding_relative",
                                            "work_binding_mean",
                                            "conditions"};
static const char *const condition_keys[] = {
    "largest_honest_drift", "nearest_cheat",       "nearest_cheat_name", "decode_tokens", "machine",
    "measured_with",        "largest_honest_mean", "nearest_cheat_mean"};

static const char *const envelope_keys[] = {"attention_int8_group32"};
static const char *const quiet_keys[] = {
    "load_max",        "gpu_use_max",    "celsius_max",   "temperature_required", "wait_seconds",
    "clock_floor_mhz", "others_cpu_max", "run_delay_max", "loaded_use",           "window_seconds"};
static const char *const statistics_keys[] = {"null_pairs", "max_pairs", "half_width",
                                              "confidence"};

static const struct {
    const char *const *keys;
    size_t count;
} places[] = {
    [CONTRACT_TOP] = {read_keys, COUNT_OF(read_keys)},
    [CONTRACT_POOL_ENTRY] = {pool_keys, COUNT_OF(pool_keys)},
    [CONTRACT_HIDDEN_GOLDEN] = {hidden_golden_keys, COUNT_OF(hidden_golden_keys)},
    [CONTRACT_BLOCK_DECODE] = {block_decode_keys, COUNT_OF(block_decode_keys)},
    [CONTRACT_CALIBRATION] = {calibration_keys, COUNT_OF(calibration_keys)},
    [CONTRACT_FIDELITY] = {fidelity_keys, COUNT_OF(fidelity_keys)},
    [CONTRACT_CONDITIONS] = {condition_keys, COUNT_OF(condition_keys)},
    [CONTRACT_ENVELOPE] = {envelope_keys, COUNT_OF(envelope_keys)},
    [CONTRACT_QUIET] = {quiet_keys, COUNT_OF(quiet_keys)},
    [CONTRACT_STATISTICS] = {statistics_keys, COUNT_OF(statistics_keys)},
};

enum { KEY_LENGTH_MAX = 64 }; /* of keys that are compared; the longest known has 43 */

static bool is_listed(const char *const *list, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

bool contract_key_is_for_others(const char *key)
{
    return is_listed(engine_side_keys, COUNT_OF(engine_side_keys), key);
}

bool contract_key_is_known(enum contract_place place, const char *key)
{
    return text_ends(key, "_note") || is_listed(places[place].keys, places[place].count, key) ||
           (place == CONTRACT_TOP && contract_key_is_for_others(key));
}

static char folded(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' || c == ' ' ? '_' : c;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Optimal string alignment: insertions, deletions, changes and swaps of neighbours cost 1. Case and
 * the kind of dash cost nothing. Both keys are at most KEY_LENGTH_MAX long. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][KEY_LENGTH_MAX + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    const size_t n = strlen(a), m = strlen(b);
    for (size_t j = 0; j <= m; j++)
        above[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const bool same = folded(a[i - 1]) == folded(b[j - 1]);
            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                folded(a[i - 2]) == folded(b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        size_t *last = before;
        before = above;
        above = row;
        row = last;
    }
    return above[m];
}

static void nearest_of(const char *const *list, size_t count, const char *key, size_t *best,
                       const char **found)
{
    for (size_t i = 0; i < count; i++) {
        const size_t d = distance(key, list[i]);
        if (d < *best) {
            *best = d;
            *found = list[i];
        }
    }
}

const char *contract_key_nearest(enum contract_place place, const char *key)
{
    const size_t length = strlen(key);
    if (length > KEY_LENGTH_MAX)
        return NULL;
    size_t best = length / 3 + 2; /* a third of the letters and one more may be wrong */
    const char *found = NULL;
    if (length < 3)
        return NULL;
    nearest_of(places[place].keys, places[place].count, key, &best, &found);
    if (place == CONTRACT_TOP)
        nearest_of(engine_side_keys, COUNT_OF(engine_side_keys), key, &best, &found);
    return found;
}
