/* Any bytes into the contract loader; what is accepted must answer its resolvers without trouble
 * and hold its ranges. */
#include "judge/contract.h"
#include "judge/explain.h"
#include "judge/fidelity.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct contract *c = NULL;
    struct error err = {0};
    if (!contract_parse("contract.json", (const char *)data, size, NULL, &c, &err)) {
        require(c == NULL && err.name[0] && err.message[0]);
        return 0;
    }
    require(c->track_id && c->allowed_mode_count >= 1 && c->allowed_mode_count <= 3);
    if (contract_require_window(c, &err))
        require(c->correctness_steps >= 1 && c->official_prefill_warmup_runs >= 0);
    if (contract_require_model(c, &err))
        require(c->vocab_size >= 1 && c->seed_tokens >= 1 && c->golden_model_type[0]);
    if (contract_require_weights(c, &err))
        require(isfinite(c->score_decode_weight + c->score_prefill_weight) &&
                c->score_decode_weight + c->score_prefill_weight > 0);
    if (contract_require_floors(c, &err))
        require(c->decode_speedup_floor > 0 && c->prefill_speedup_floor > 0);
    if (contract_require_regime(c, &err))
        require(c->scored_batch_size >= 1);
    if (contract_require_official_baseline(c, &err))
        require(c->has_bands && !c->scores_against_live_control_leg);
    contract_require_bands(c, &err);
    contract_require_paired_flow(c, &err);
    contract_require_capture(c, &err);
    require(contract_require_official_scoring(c, &err) == c->official_scoring_enabled);
    require(contract_require_control_leg_rule(c, &err) == c->has_scores_against_live_control_leg);
    if (contract_require_pairs(c, 2, &err))
        require(c->official_pairs >= 2 && c->official_pairs % 2 == 0);
    if (contract_require_batch(c, 8, &err))
        require(c->scored_batch_size >= 1 && c->scored_batch_size <= 8);
    if (contract_require_block_decode(c, &err)) {
        const struct contract_block_decode *b = &c->block_decode;
        require(b->block_size >= 1 && b->block_size <= b->maximum_block_size &&
                b->maximum_block_size <= FIDELITY_BLOCK_MOST);
        require(b->decode_tokens >= 1 && b->decode_tokens <= b->maximum_decode_tokens);
        require(b->min_accepted_pairs >= 1 && b->min_accepted_pairs <= b->target_pairs);
        require(b->raw_speedup_min > 0 && b->raw_speedup_min < b->raw_speedup_max);
        require(!b->has_calibration || b->calibration_decode_tokens == b->decode_tokens);
    }
    struct fidelity_limits limits;
    if (contract_fidelity_limits(c, &limits, &err)) {
        require(limits.vocab_size >= 1 && isfinite(limits.absolute) && limits.relative < 2);
        require(c->fidelity.largest_honest_drift <= limits.absolute &&
                c->fidelity.nearest_cheat > limits.absolute);
    }
    require(!c->has_mismatch_logit_gap ||
            (isfinite(c->mismatch_logit_gap) && c->mismatch_logit_gap >= 0));
    struct buffer page = {0};
    explain_contract(c, size % 2 == 0, &page);
    require(page.length > 0);
    buffer_free(&page);
    json_decref(contract_sources(c));
    contract_free(c);
    return 0;
}
