#include "judge/block_pairs.h"

#include "base/arena.h"
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *name, *meaning;
} rejections[] = {
#define REJECTION_ROW(class, meaning) {#class, meaning},
    BLOCK_REJECTIONS(REJECTION_ROW)
#undef REJECTION_ROW
};

const char *block_rejection_name(enum block_rejection r)
{
    return rejections[r].name;
}

const char *block_rejection_meaning(enum block_rejection r)
{
    return rejections[r].meaning;
}

static bool is_time(double seconds)
{
    return isfinite(seconds) && seconds > 0;
}

bool block_calibration_holds(const struct contract_block_decode *b, int64_t tokens, double serial)
{
    return b->has_calibration && b->calibration_decode_tokens == tokens && is_time(serial) &&
           fabs(serial - b->serial_seconds_per_token) <=
               b->calibration_band * b->serial_seconds_per_token;
}

enum block_rejection block_pair_rejection(const struct contract_block_decode *b, int64_t tokens,
                                          const struct block_pair *pair)
{
    if (pair->serial_tokens != tokens || pair->candidate_tokens != tokens ||
        !is_time(pair->serial) || !is_time(pair->candidate))
        return BLOCK_REJECTION_decode_tokens;
    if (!pair->temperature_held)
        return BLOCK_REJECTION_temperature_timeout;
    if (!pair->telemetry_holds)
        return BLOCK_REJECTION_telemetry;
    if (pair->stalled)
        return BLOCK_REJECTION_stall_guardrail;
    const bool calibrated = b->has_calibration && b->calibration_decode_tokens == tokens;
    if (calibrated && !block_calibration_holds(b, tokens, pair->serial))
        return BLOCK_REJECTION_calibration_band;
    return BLOCK_REJECTION_COUNT;
}

bool block_retry_take(struct block_retries *r, enum block_rejection why)
{
    if (why >= BLOCK_REJECTION_COUNT || r->taken[why])
        return false;
    r->taken[why] = true;
    return true;
}

bool block_pair_serial_first(size_t pair)
{
    return pair % 2 == 0;
}

bool block_pairs_aggregate(const struct block_pair *pairs, size_t count,
                           struct block_aggregate *out)
{
    *out = (struct block_aggregate){.count = count};
    if (count == 0)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!is_time(pairs[i].serial) || !is_time(pairs[i].candidate))
            return false;
    struct arena a = {0};
    double *serial = arena_array(&a, count, sizeof *serial);
    double *candidate = arena_array(&a, count, sizeof *candidate);
    double *speedup = arena_array(&a, count, sizeof *speedup);
    for (size_t i = 0; i < count; i++) {
        serial[i] = pairs[i].serial;
        candidate[i] = pairs[i].candidate;
        speedup[i] = serial[i] / candidate[i];
    }
    out->serial_mean = stats_mean(serial, count);
    out->candidate_mean = stats_mean(candidate, count);
    out->ratio_of_means = out->serial_mean / out->candidate_mean;
    out->median = stats_median(speedup, count);
    out->least = stats_min(speedup, count);
    arena_free(&a);
    return isfinite(out->ratio_of_means) && isfinite(out->median);
}

bool block_pairs_suffice(const struct contract_block_decode *b, size_t accepted)
{
    return accepted >= (size_t)b->min_accepted_pairs;
}
