/* The track's contract (--contract FILE): read once, hashed, checked whole, then immutable.
 *
 * Every scored value comes from here (contract-and-scoring.md section 1). Groups are all or
 * nothing. A field that is not declared is absent, and the resolver that needs it refuses by the
 * spec's name. Unknown keys are refused (CONTRACT-UNKNOWN-KEY) unless they are on the list of known
 * engine-side keys or end in "_note". */
#ifndef MLXFAST_JUDGE_CONTRACT_H
#define MLXFAST_JUDGE_CONTRACT_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/quiet/quiet.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct contract_pool_entry {
    char sha256[SHA256_HEX];
    uint64_t bytes;             /* 0: not declared */
    double noop_decode_speedup; /* 0: not declared */
    const char *path;           /* r2_path or path; NULL: not declared */
};

/* How a track decodes in blocks (dflash-track.md sections 2 and 4). Every member is declared; what
 * is pinned of the machine's serial control is optional. */
struct contract_block_decode {
    int64_t block_size;         /* of a ranked run */
    int64_t maximum_block_size; /* 16 at most */
    int64_t decode_tokens;      /* of a ranked run */
    int64_t maximum_decode_tokens;
    int64_t local_iterate_decode_tokens, local_submit_decode_tokens;
    int64_t min_accepted_pairs, target_pairs;
    double stall_factor;                     /* a block's latency over the median one, at most */
    double raw_speedup_min, raw_speedup_max; /* outside of them a speedup is not believed */
    bool has_calibration;
    double serial_seconds_per_token, calibration_band; /* mean serial time: within so much of it */
    int64_t calibration_decode_tokens;                 /* equals decode_tokens */
    const char *calibration_machine;
};

/* What a candidate's tokens and logits may differ by from the reference's (section 7), with the
 * conditions under which that was found. Every member but the mean is declared. */
struct contract_fidelity {
    double near_tie_logits;
    int64_t near_tie_per_thousand, residual_per_thousand;
    double work_binding_absolute, work_binding_relative;
    /* largest_honest_drift <= work_binding_absolute < nearest_cheat */
    double largest_honest_drift, nearest_cheat;
    bool has_work_binding_mean; /* with it: largest_honest_mean <= work_binding_mean < */
    double work_binding_mean, largest_honest_mean, nearest_cheat_mean;
    const char *nearest_cheat_name, *machine, *measured_with;
    int64_t decode_tokens;
};

/* How many pairs a ranked run measures, and how sure it is to be (docs/statistics.md). */
struct contract_statistics {
    int64_t null_pairs, max_pairs; /* the least is official_pairs */
    double half_width;             /* of the log ratio's interval; 0: no pairs are added */
    double confidence;
};

struct contract {
    struct arena arena;
    const char *path;
    char sha256[SHA256_HEX]; /* of the raw bytes */
    json_t *json;

    const char *track_id, *track_name;
    const char *platform; /* "mlx", "cuda", or NULL: the id predates the naming rule */
    bool has_official_scoring_enabled, official_scoring_enabled;
    const char *allowed_modes[8];
    size_t allowed_mode_count; /* absent in the file: serial, mtp */
    struct contract_pool_entry *pool;
    size_t pool_count;

    bool has_official_pairs;
    uint32_t official_pairs;
    bool combine_mean;    /* official_pair_combine == "mean" */
    bool alternate_pairs; /* official_pair_order == "alternate": a key of ours */
    bool has_scores_against_live_control_leg, scores_against_live_control_leg;
    bool has_paired_flow_retired, paired_flow_retired;
    bool has_token_tolerance;
    int64_t token_tolerance_per_thousand;
    bool has_near_tie_gap;
    double near_tie_relative_gap;

    /* A key of ours: how much longer than its timed prefill the prefill of a candidate's decode
     * seed may take, which is not scored; not declared: COMBINE_SEED_WINDOW_TOLERANCE. */
    /* A key of ours: prefills (or warm rounds of blocks) between the gates and the clock, 0 where
     * it is not declared. An engine that stood still while the machine was looked at is cold. */
    int64_t rewarm_runs;
    bool has_seed_window_tolerance;
    double seed_window_tolerance;

    /* A key of ours. When declared, every teacher-forced mismatch must be near: the expected token
     * within this many logits of the top one, as found in trustworthy top logits; else the case
     * fails, even inside the mismatch tolerance. 0: only an exact tie is near. */
    bool has_mismatch_logit_gap;
    double mismatch_logit_gap;

    /* A key of ours: how many of the golden's cases that are judged by their meaning must be right;
     * 0: not declared, every one. */
    int64_t semantic_min_pass;

    bool has_decode_floor, has_prefill_floor;
    double decode_speedup_floor, prefill_speedup_floor;

    bool has_regime; /* scored_batch_size with both exponents */
    bool has_scored_batch_size;
    uint32_t scored_batch_size;
    double prefill_gain_exponent, decode_gain_exponent;

    bool has_official_baseline;
    double official_baseline_prefill, official_baseline_decode; /* seconds per token */

    bool has_bands;
    double prefill_band_up, prefill_band_down, decode_band_up, decode_band_down;
    bool prefill_band_down_enabled, decode_band_down_enabled;

    bool has_weights;
    double score_decode_weight, score_prefill_weight;

    bool has_window;
    int64_t correctness_steps, benchmark_decode_steps, local_submit_benchmark_decode_steps;
    int64_t official_prefill_warmup_runs;

    bool has_model;
    const char *golden_model_type;
    int64_t vocab_size, num_hidden_layers, seed_tokens;

    bool has_target_pin;
    const char *target_model_id, *target_revision;
    bool has_hidden_golden;
    char hidden_golden_sha256[SHA256_HEX];
    uint64_t hidden_golden_bytes;

    bool has_block_decode;
    struct contract_block_decode block_decode;
    bool has_fidelity;
    struct contract_fidelity fidelity;

    /* A key of ours: the coefficient of variation that the passes of a calibration may have. */
    bool has_calibration_cv_max;
    double calibration_cv_max;

    bool has_statistics;
    struct contract_statistics statistics;

    /* What the weights may be stored as, beside the checkpoint's own format: q, k, v, o and g of
     * attention as affine INT8 in groups of 32. Not declared: nothing. */
    bool has_quantization_envelope, attention_int8_group32;

    /* How quiet a machine must be for a ranked run; not declared: the platform's defaults. */
    bool has_quiet;
    struct quiet_rules quiet;

    const char *yarn_magnitude; /* "attention_factor" | "derived" | NULL: not declared */

    /* A key of ours: "strict" (the bits of numerics.md, and a hello that says so) | "any" | NULL:
     * not declared, as any. */
    const char *engine_arithmetic;
};

/* Errors: IO, CONTRACT-INVALID (shape, range, half-declared group; field and value named),
 * CONTRACT-UNKNOWN-KEY. track_env is the value of MLXFAST_QWEN_MTP_TRACK_ID / MLXFAST_TRACK_ID or
 * NULL; a value that disagrees with the contract is TRACK-ID-MISMATCH. */
bool contract_load(const char *path, const char *track_env, struct contract **out,
                   struct error *err);
/* The same on bytes. path only names the source in errors. */
bool contract_parse(const char *path, const char *data, size_t length, const char *track_env,
                    struct contract **out, struct error *err);
void contract_free(struct contract *c);

/* The track id that the environment asks for: MLXFAST_QWEN_MTP_TRACK_ID, or its plain alias
 * MLXFAST_TRACK_ID; NULL when neither is set. Both set to different values: TRACK-ID-MISMATCH. */
bool contract_track_from_environment(const char **out, struct error *err);

/* Resolvers: each answers one question that a run asks of a contract, and is false with the spec's
 * refusal name (contract-and-scoring.md section 8; ours where the spec has none). */
bool contract_require_window(const struct contract *c, struct error *err);
bool contract_require_model(const struct contract *c, struct error *err);
bool contract_require_weights(const struct contract *c, struct error *err);
bool contract_require_floors(const struct contract *c, struct error *err);
bool contract_require_decode_floor(const struct contract *c,
                                   struct error *err); /* that one alone */
bool contract_require_regime(const struct contract *c, struct error *err);
bool contract_require_official_baseline(const struct contract *c, struct error *err);
bool contract_require_bands(const struct contract *c, struct error *err);
/* A scored run: official_scoring_enabled is true. Not declared and false are two refusals. */
bool contract_require_official_scoring(const struct contract *c, struct error *err);
/* scores_against_live_control_leg is declared; the value is the contract's. */
bool contract_require_control_leg_rule(const struct contract *c, struct error *err);
/* official_pairs is declared and a multiple of the number of goldens (1 or more). */
bool contract_require_pairs(const struct contract *c, uint32_t goldens, struct error *err);
/* measure-job and overlay-timing: paired_flow_retired is declared, and false. */
bool contract_require_paired_flow(const struct contract *c, struct error *err);
/* Capturing a stored pair: not where a control leg is measured live. */
bool contract_require_capture(const struct contract *c, struct error *err);
/* scored_batch_size is declared and no wider than what the caller can run. */
bool contract_require_batch(const struct contract *c, uint32_t widest, struct error *err);

/* block_decode and fidelity are declared. */
bool contract_require_block_decode(const struct contract *c, struct error *err);
bool contract_require_fidelity(const struct contract *c, struct error *err);
/* The gate's limits: of fidelity, and the vocabulary of the model shape; both are required. */
struct fidelity_limits;
bool contract_fidelity_limits(const struct contract *c, struct fidelity_limits *out,
                              struct error *err);

/* The rule of the pairs: what is declared, else official_pairs of them and one null pair at 95%. */
struct paired_rule;
void contract_paired_rule(const struct contract *c, struct paired_rule *out);

/* A golden that the pool pins by its digest has the length that the pool declares for it, where it
 * declares one. Error GOLDEN-PIN-MISMATCH. A golden that is not in the pool is no matter of this.
 */
bool contract_check_pooled(const struct contract *c, const char *sha256, uint64_t bytes,
                           struct error *err);

bool contract_is_cuda(const struct contract *c); /* its platform */

/* metrics.contract_sources: the eight keys with "contract" or "device"; a new reference. */
json_t *contract_sources(const struct contract *c);

#endif
