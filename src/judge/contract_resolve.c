/* What a run asks of a contract: the track that the environment means, the groups that must be
 * declared (refusal names of contract-and-scoring.md section 8), and what is sealed about them. */
#include "judge/contract.h"

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

bool contract_require_floors(const struct contract *c, struct error *err)
{
    static const char name[] = "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK";
    if (!c->has_decode_floor)
        return undeclared(c, name, "decode speedup floor", "decode_speedup_floor", err);
    return c->has_prefill_floor ||
           undeclared(c, name, "prefill speedup floor", "prefill_speedup_floor", err);
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
