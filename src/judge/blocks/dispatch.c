#include "judge/blocks/dispatch.h"

#include "judge/blocks/official.h"
#include "judge/contract.h"

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

/* The contract that the run itself will read again, and refuse by name where it must. */
static bool is_for_blocks(const struct official_options *o)
{
    struct contract *c = NULL;
    struct error ignored = {0};
    const bool is = contract_load(o->contract, NULL, &c, &ignored) && blocks_official_is_for(c);
    contract_free(c);
    return is;
}

static bool check(const struct official_options *o, struct error *err)
{
    if (o->stored_baseline_given)
        return error_set(err, "STORED-BASELINE-OVERRIDE-REFUSED",
                         "a ranked run of block decoding measures its own control leg; a stored "
                         "baseline pair has no place in it");
    if (o->golden_count > 1)
        return misuse(err, "--golden", o->goldens[1].path,
                      "a ranked run of block decoding has one golden, of correctness; what it "
                      "times is drawn from --pool");
    if (o->golden_count == 1 && o->goldens[0].control_path != NULL)
        return misuse(err, "--control-golden", o->goldens[0].control_path,
                      "both legs of block decoding have the prompt that is drawn");
    if (o->baseline_calibration != NULL)
        return misuse(err, "--baseline-calibration", o->baseline_calibration,
                      "the calibration of block decoding stands in the contract");
    if (o->candidate_spec != NULL || o->mtp_depth > 0)
        return misuse(err, o->candidate_spec != NULL ? "--candidate-spec" : "--mtp-depth", NULL,
                      "block decoding has the contract's block_size and no other speculation");
    return true;
}

bool blocks_dispatch(const struct official_options *o, enum iterate_exit *result, struct error *err)
{
    if (!is_for_blocks(o))
        return false;
    *result = ITERATE_REFUSED;
    if (!check(o, err))
        return true;
    struct blocks_official_options b = {.engine = o->engine,
                                        .weights = o->weights,
                                        .baseline_workspace = o->baseline_workspace,
                                        .drafter = o->drafter,
                                        .contract = o->contract,
                                        .pool_folder = o->pool,
                                        .draw_record = o->draw_file,
                                        .box = o->box,
                                        .score_path = o->score_path,
                                        .signing_key = o->signing_key,
                                        .log = o->log,
                                        .resources = o->resources,
                                        .engine_trees = o->engine_trees,
                                        .no_sandbox = o->no_sandbox,
                                        .quiet = o->quiet};
    if (o->golden_count == 1) {
        b.golden = o->goldens[0].path;
        b.golden_sha256 = o->goldens[0].pin_sha256;
        b.golden_bytes = o->goldens[0].pin_bytes;
    }
    *result = blocks_official_run(&b, err);
    return true;
}
