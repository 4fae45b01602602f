/* The groups of a contract that decode in blocks: how it is run, and what a token and a readout may
 * differ by (dflash-track.md sections 2, 4 and 7). */
#include "judge/contract_read.h"

#include "judge/fidelity.h"

#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { PER_THOUSAND_MAX = 1000 };
static const char block_protocol[] = "trusted_dflash_block_v1";
/* |a - b| / max(|a|, |b|) never exceeds 2: a tolerance of 2 would be none. */
static const double RELATIVE_END = 2;

static bool read_calibration(const struct contract_reader *outer)
{
    static const char *const keys[] = {"serial_seconds_per_token", "band", "decode_tokens",
                                       "machine"};
    struct contract_block_decode *b = &outer->c->block_decode;
    struct contract_reader r;
    b->has_calibration = contract_has(outer, "calibration");
    if (!b->has_calibration)
        return true;
    if (!contract_open_object(outer, CONTRACT_CALIBRATION, "calibration", &r) ||
        !contract_is_whole(&r, keys, COUNT_OF(keys)) ||
        !contract_get_real(&r, keys[0], CONTRACT_REAL_POSITIVE, &b->serial_seconds_per_token) ||
        !contract_get_real(&r, keys[1], CONTRACT_REAL_POSITIVE, &b->calibration_band) ||
        !contract_get_count(&r, keys[2], 1, CONTRACT_COUNT_MAX, &b->calibration_decode_tokens) ||
        !contract_get_name(&r, keys[3], &b->calibration_machine))
        return false;
    if (b->calibration_band >= 1)
        return contract_refuse_value(&r, keys[1], "must be below 1");
    /* The seed's share of the window changes with its length (section 17): a time belongs to one
     * number of tokens. */
    return b->calibration_decode_tokens == b->decode_tokens ||
           contract_refuse_value(&r, keys[2], "must be block_decode.decode_tokens");
}

static bool read_block_counts(const struct contract_reader *r)
{
    struct contract_block_decode *b = &r->c->block_decode;
    return contract_get_count(r, "maximum_block_size", 1, FIDELITY_BLOCK_MOST,
                              &b->maximum_block_size) &&
           contract_get_count(r, "block_size", 1, b->maximum_block_size, &b->block_size) &&
           contract_get_count(r, "maximum_decode_tokens", 1, CONTRACT_COUNT_MAX,
                              &b->maximum_decode_tokens) &&
           contract_get_count(r, "decode_tokens", 1, b->maximum_decode_tokens, &b->decode_tokens) &&
           contract_get_count(r, "local_iterate_decode_tokens", 1, b->maximum_decode_tokens,
                              &b->local_iterate_decode_tokens) &&
           contract_get_count(r, "local_submit_decode_tokens", 1, b->maximum_decode_tokens,
                              &b->local_submit_decode_tokens) &&
           contract_get_count(r, "target_pairs", 1, CONTRACT_COUNT_MAX, &b->target_pairs) &&
           contract_get_count(r, "min_accepted_pairs", 1, b->target_pairs, &b->min_accepted_pairs);
}

bool contract_read_block_decode(const struct contract_reader *root)
{
    static const char *const keys[] = {"protocol",
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
                                       "raw_speedup_max"};
    struct contract *c = root->c;
    struct contract_block_decode *b = &c->block_decode;
    struct contract_reader r;
    const char *protocol = NULL;
    if (!contract_has(root, "block_decode"))
        return true;
    if (!contract_open_object(root, CONTRACT_BLOCK_DECODE, "block_decode", &r) ||
        !contract_is_whole(&r, keys, COUNT_OF(keys)) ||
        !contract_get_text(&r, "protocol", &protocol))
        return false;
    if (strcmp(protocol, block_protocol) != 0)
        return contract_refuse_value(&r, "protocol", "must be trusted_dflash_block_v1");
    if (!read_block_counts(&r) ||
        !contract_get_real(&r, "stall_factor", CONTRACT_REAL_POSITIVE, &b->stall_factor) ||
        !contract_get_real(&r, "raw_speedup_min", CONTRACT_REAL_POSITIVE, &b->raw_speedup_min) ||
        !contract_get_real(&r, "raw_speedup_max", CONTRACT_REAL_POSITIVE, &b->raw_speedup_max))
        return false;
    if (b->stall_factor < 1)
        return contract_refuse_value(&r, "stall_factor",
                                     "must be 1 or more: the longest is never below the median");
    if (b->raw_speedup_min >= b->raw_speedup_max)
        return contract_refuse_value(&r, "raw_speedup_min", "must be below raw_speedup_max");
    c->has_block_decode = true;
    return read_calibration(&r);
}

/* The mean's conditions are declared with it and not without: a number that belongs to no limit
 * would be taken for one. */
static bool read_mean_conditions(const struct contract_reader *r)
{
    static const char *const keys[] = {"largest_honest_mean", "nearest_cheat_mean"};
    struct contract_fidelity *f = &r->c->fidelity;
    if (!f->has_work_binding_mean) {
        for (size_t i = 0; i < COUNT_OF(keys); i++)
            if (contract_has(r, keys[i]))
                return contract_refuse_value(r, keys[i], "needs fidelity.work_binding_mean");
        return true;
    }
    if (!contract_is_whole(r, keys, COUNT_OF(keys)) ||
        !contract_get_real(r, keys[0], CONTRACT_REAL_NOT_NEGATIVE, &f->largest_honest_mean) ||
        !contract_get_real(r, keys[1], CONTRACT_REAL_POSITIVE, &f->nearest_cheat_mean))
        return false;
    if (f->largest_honest_mean > f->work_binding_mean)
        return contract_refuse_value(r, keys[0], "must be fidelity.work_binding_mean at most");
    return f->nearest_cheat_mean > f->work_binding_mean ||
           contract_refuse_value(r, keys[1], "must be above fidelity.work_binding_mean");
}

/* A tolerance is believed with what it was measured on, and only where it separates (section 17:
 * an honest run near it and a cheat beyond it). */
static bool read_conditions(const struct contract_reader *outer)
{
    static const char *const keys[] = {
        "largest_honest_drift", "nearest_cheat", "nearest_cheat_name",
        "decode_tokens",        "machine",       "measured_with"};
    struct contract_fidelity *f = &outer->c->fidelity;
    struct contract_reader r;
    if (!contract_open_object(outer, CONTRACT_CONDITIONS, "conditions", &r) ||
        !contract_is_whole(&r, keys, COUNT_OF(keys)) ||
        !contract_get_real(&r, keys[0], CONTRACT_REAL_NOT_NEGATIVE, &f->largest_honest_drift) ||
        !contract_get_real(&r, keys[1], CONTRACT_REAL_POSITIVE, &f->nearest_cheat) ||
        !contract_get_name(&r, keys[2], &f->nearest_cheat_name) ||
        !contract_get_count(&r, keys[3], 1, CONTRACT_COUNT_MAX, &f->decode_tokens) ||
        !contract_get_name(&r, keys[4], &f->machine) ||
        !contract_get_name(&r, keys[5], &f->measured_with))
        return false;
    if (f->largest_honest_drift > f->work_binding_absolute)
        return contract_refuse_value(&r, keys[0], "must be fidelity.work_binding_absolute at most");
    if (f->nearest_cheat <= f->work_binding_absolute)
        return contract_refuse_value(&r, keys[1], "must be above fidelity.work_binding_absolute");
    return read_mean_conditions(&r);
}

/* Optional: how far the rows may be from the reference's on average. No mean exceeds the largest of
 * what it is made of. */
static bool read_mean(const struct contract_reader *r)
{
    static const char key[] = "work_binding_mean";
    struct contract_fidelity *f = &r->c->fidelity;
    f->has_work_binding_mean = contract_has(r, key);
    if (!f->has_work_binding_mean)
        return true;
    if (!contract_get_real(r, key, CONTRACT_REAL_POSITIVE, &f->work_binding_mean))
        return false;
    return f->work_binding_mean <= f->work_binding_absolute ||
           contract_refuse_value(r, key, "must be work_binding_absolute at most");
}

bool contract_read_fidelity(const struct contract_reader *root)
{
    static const char *const keys[] = {"near_tie_logits",       "near_tie_per_thousand",
                                       "residual_per_thousand", "work_binding_absolute",
                                       "work_binding_relative", "conditions"};
    struct contract *c = root->c;
    struct contract_fidelity *f = &c->fidelity;
    struct contract_reader r;
    if (!contract_has(root, "fidelity"))
        return true;
    if (!contract_open_object(root, CONTRACT_FIDELITY, "fidelity", &r) ||
        !contract_is_whole(&r, keys, COUNT_OF(keys)) ||
        !contract_get_real(&r, keys[0], CONTRACT_REAL_NOT_NEGATIVE, &f->near_tie_logits) ||
        !contract_get_count(&r, keys[1], 0, PER_THOUSAND_MAX, &f->near_tie_per_thousand) ||
        !contract_get_count(&r, keys[2], 0, PER_THOUSAND_MAX, &f->residual_per_thousand) ||
        !contract_get_real(&r, keys[3], CONTRACT_REAL_NOT_NEGATIVE, &f->work_binding_absolute) ||
        !contract_get_real(&r, keys[4], CONTRACT_REAL_NOT_NEGATIVE, &f->work_binding_relative))
        return false;
    if (f->work_binding_relative >= RELATIVE_END)
        return contract_refuse_value(&r, keys[4], "must be below 2, which no difference exceeds");
    if (!read_mean(&r))
        return false;
    c->has_fidelity = true;
    return read_conditions(&r);
}
