/* What a run asks of a contract: the track that the environment means, the groups that must be
 * declared (refusal names of contract-and-scoring.md section 8), and what is sealed about them. */
#include "judge/contract.h"

#include "base/buffer.h"
#include "judge/fidelity.h"

#include <stdlib.h>
#include <string.h>

bool contract_track_from_environment(const char **out, struct error *err)
{
    static const char first[] = "MLXFAST_QWEN_MTP_TRACK_ID", alias[] = "MLXFAST_TRACK_ID";
    const char *a = getenv(first), *b = getenv(alias);
    a = a && *a ? a : NULL;
    b = b && *b ? b : NULL;
    *out = a ? a : b;
    if (!a || !b || strcmp(a, b) == 0)
        return true;
    error_set(err, "TRACK-ID-MISMATCH", "%s and %s name different tracks", first, alias);
    return error_at(err, NULL, alias, b);
}

static bool undeclared(const struct contract *c, const char *name, const char *what,
                       const char *field, struct error *err)
{
    error_set(err, name, "the --contract track fixture for \"%s\" declares no %s", c->track_id,
              what);
    return error_at(err, c->path, field, NULL);
}

bool contract_is_cuda(const struct contract *c)
{
    return c->platform && strcmp(c->platform, "cuda") == 0;
}

bool contract_require_window(const struct contract *c, struct error *err)
{
    return c->has_window || undeclared(c, "WINDOW-SHAPE-UNDECLARED-FOR-TRACK", "window shape",
                                       "correctness_steps", err);
}

bool contract_require_model(const struct contract *c, struct error *err)
{
    return c->has_model || undeclared(c, "MODEL-IDENTITY-UNDECLARED-FOR-TRACK", "model shape",
                                      "golden_model_type", err);
}

bool contract_require_weights(const struct contract *c, struct error *err)
{
    return c->has_weights || undeclared(c, "SCORING-WEIGHTS-UNDECLARED-FOR-TRACK",
                                        "scoring weights", "score_decode_weight", err);
}

static const char no_floor[] = "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK";

bool contract_require_decode_floor(const struct contract *c, struct error *err)
{
    return c->has_decode_floor ||
           undeclared(c, no_floor, "decode speedup floor", "decode_speedup_floor", err);
}

bool contract_require_floors(const struct contract *c, struct error *err)
{
    return contract_require_decode_floor(c, err) &&
           (c->has_prefill_floor ||
            undeclared(c, no_floor, "prefill speedup floor", "prefill_speedup_floor", err));
}

bool contract_require_regime(const struct contract *c, struct error *err)
{
    return c->has_regime || undeclared(c, "SCORED-REGIME-PENDING-DECLARATION", "scored regime",
                                       "scored_batch_size", err);
}

bool contract_require_official_baseline(const struct contract *c, struct error *err)
{
    return c->has_official_baseline ||
           undeclared(c, "OFFICIAL-BASELINE-PENDING-CAPTURE", "official baseline",
                      "official_baseline_prefill_seconds_per_token", err);
}

bool contract_require_bands(const struct contract *c, struct error *err)
{
    return c->has_bands || undeclared(c, "ACCEPTANCE-BANDS-UNDECLARED-FOR-TRACK",
                                      "acceptance bands", "prefill_band_up_tolerance", err);
}

bool contract_require_official_scoring(const struct contract *c, struct error *err)
{
    if (c->has_official_scoring_enabled && c->official_scoring_enabled)
        return true;
    if (c->has_official_scoring_enabled) {
        error_set(err, "OFFICIAL-SCORING-DISABLED-FOR-TRACK",
                  "official scoring is not enabled for this track: the --contract track fixture "
                  "for \"%s\" declares official_scoring_enabled false",
                  c->track_id);
        return error_at(err, c->path, "official_scoring_enabled", "false");
    }
    error_set(err, "OFFICIAL-SCORING-UNDECLARED-FOR-TRACK",
              "official scoring is not enabled for this track: the --contract track fixture for "
              "\"%s\" declares no official_scoring_enabled",
              c->track_id);
    return error_at(err, c->path, "official_scoring_enabled", NULL);
}

bool contract_require_control_leg_rule(const struct contract *c, struct error *err)
{
    return c->has_scores_against_live_control_leg ||
           undeclared(c, "CONTROL-LEG-UNDECLARED-FOR-TRACK", "scores_against_live_control_leg",
                      "scores_against_live_control_leg", err);
}

bool contract_require_pairs(const struct contract *c, uint32_t goldens, struct error *err)
{
    if (!c->has_official_pairs)
        return undeclared(c, "OFFICIAL-PAIRS-UNDECLARED-FOR-TRACK", "official_pairs",
                          "official_pairs", err);
    if (goldens > 0 && c->official_pairs % goldens == 0)
        return true;
    error_set(err, "OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS",
              "the --contract track fixture for \"%s\" declares %u official pairs, no multiple of "
              "%u goldens",
              c->track_id, c->official_pairs, goldens);
    return error_at(err, c->path, "official_pairs", NULL);
}

bool contract_require_paired_flow(const struct contract *c, struct error *err)
{
    if (!c->has_paired_flow_retired)
        return undeclared(c, "PAIRED-FLOW-UNDECLARED-FOR-TRACK", "paired_flow_retired",
                          "paired_flow_retired", err);
    if (!c->paired_flow_retired)
        return true;
    error_set(err, "PAIRED-FLOW-RETIRED-FOR-TRACK",
              "the --contract track fixture for \"%s\" declares paired_flow_retired: measure-job "
              "and overlay-timing have no place in this track",
              c->track_id);
    return error_at(err, c->path, "paired_flow_retired", "true");
}

bool contract_require_capture(const struct contract *c, struct error *err)
{
    if (!contract_require_control_leg_rule(c, err))
        return false;
    if (!c->scores_against_live_control_leg)
        return true;
    error_set(err, "CAPTURE-RETIRED-FOR-LIVE-CONTROL-LEG",
              "the --contract track fixture for \"%s\" declares scores_against_live_control_leg: "
              "there is no stored pair to capture",
              c->track_id);
    return error_at(err, c->path, "scores_against_live_control_leg", "true");
}

bool contract_require_batch(const struct contract *c, uint32_t widest, struct error *err)
{
    if (!c->has_scored_batch_size)
        return undeclared(c, "SCORED-REGIME-PENDING-DECLARATION", "scored_batch_size",
                          "scored_batch_size", err);
    if (c->scored_batch_size <= widest)
        return true;
    error_set(err, "SCORED-BATCH-SIZE-UNSUPPORTED",
              "the --contract track fixture for \"%s\" declares scored_batch_size %u, wider than "
              "the %u streams that can be run",
              c->track_id, c->scored_batch_size, widest);
    return error_at(err, c->path, "scored_batch_size", NULL);
}

bool contract_require_block_decode(const struct contract *c, struct error *err)
{
    return c->has_block_decode || undeclared(c, "BLOCK-DECODE-UNDECLARED-FOR-TRACK",
                                             "block decoding", "block_decode", err);
}

bool contract_require_fidelity(const struct contract *c, struct error *err)
{
    return c->has_fidelity || undeclared(c, "FIDELITY-UNDECLARED-FOR-TRACK",
                                         "limits of token fidelity", "fidelity", err);
}

bool contract_fidelity_limits(const struct contract *c, struct fidelity_limits *out,
                              struct error *err)
{
    if (!contract_require_fidelity(c, err) || !contract_require_model(c, err))
        return false;
    *out = (struct fidelity_limits){.vocab_size = c->vocab_size,
                                    .near_tie_logits = c->fidelity.near_tie_logits,
                                    .near_tie_per_thousand = c->fidelity.near_tie_per_thousand,
                                    .residual_per_thousand = c->fidelity.residual_per_thousand,
                                    .absolute = c->fidelity.work_binding_absolute,
                                    .relative = c->fidelity.work_binding_relative,
                                    .has_mean = c->fidelity.has_work_binding_mean,
                                    .mean = c->fidelity.work_binding_mean};
    return true;
}

bool contract_check_pooled(const struct contract *c, const char *sha256, uint64_t bytes,
                           struct error *err)
{
    for (size_t i = 0; i < c->pool_count; i++) {
        const struct contract_pool_entry *entry = &c->pool[i];
        if (strcmp(entry->sha256, sha256) != 0 || entry->bytes == 0 || entry->bytes == bytes)
            continue;
        struct buffer field = {0};
        buffer_printf(&field, "timed_prompt_pool[%zu].bytes", i);
        error_set(err, "GOLDEN-PIN-MISMATCH",
                  "the --contract track fixture for \"%s\" declares %llu bytes for the golden %s, "
                  "which has %llu",
                  c->track_id, (unsigned long long)entry->bytes, sha256, (unsigned long long)bytes);
        error_at(err, c->path, field.data, NULL);
        buffer_free(&field);
        return false;
    }
    return true;
}

json_t *contract_sources(const struct contract *c)
{
    const struct {
        const char *key;
        bool declared;
    } groups[] = {
        {"scored_regime", c->has_regime},
        {"live_control_leg", c->has_scores_against_live_control_leg},
        {"paired_flow", c->has_paired_flow_retired},
        {"official_baseline", c->has_official_baseline},
        {"acceptance_bands", c->has_bands},
        {"scoring_weights", c->has_weights},
        {"window_shape", c->has_window},
        {"model_shape", c->has_model},
    };
    json_t *sources = json_object();
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        json_object_set_new(sources, groups[i].key,
                            json_string(groups[i].declared ? "contract" : "device"));
    return sources;
}
