/* The pairs of a ranked run of block decoding: what makes one not count, what may be measured
 * again, and what the accepted ones come to (dflash-track.md section 2). A pair is a serial control
 * leg and a candidate leg on one prompt; a rejected pair is no failure of the participant. */
#ifndef MLXFAST_JUDGE_BLOCK_PAIRS_H
#define MLXFAST_JUDGE_BLOCK_PAIRS_H

#include "judge/contract.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(class, meaning), in the order in which they are looked at. */
#define BLOCK_REJECTIONS(X)                                                                        \
    X(decode_tokens, "a leg tells of another number of tokens than was configured")                \
    X(temperature_timeout, "the machine did not become cool within its limit")                     \
    X(telemetry, "clocks were not read, show throttling, or others were at work")                  \
    X(stall_guardrail, "a request took more than the stall factor times the median one")           \
    X(calibration_band, "the serial control is not as fast as this machine's calibration")

enum block_rejection {
#define BLOCK_REJECTION_ENUM(class, meaning) BLOCK_REJECTION_##class,
    BLOCK_REJECTIONS(BLOCK_REJECTION_ENUM)
#undef BLOCK_REJECTION_ENUM
        BLOCK_REJECTION_COUNT /* none: the pair is accepted */
};
const char *block_rejection_name(enum block_rejection r);
const char *block_rejection_meaning(enum block_rejection r);

/* What is known of a pair once both legs have run. */
struct block_pair {
    double serial, candidate; /* seconds per token */
    int64_t serial_tokens, candidate_tokens;
    bool stalled;          /* either leg */
    bool telemetry_holds;  /* both legs */
    bool temperature_held; /* both gates */
};
/* BLOCK_REJECTION_COUNT when the pair counts. tokens: the configured number. The band is asked for
 * where the contract has a calibration for that number of tokens; a time that is not finite and
 * above 0 is a leg without its tokens. */
enum block_rejection block_pair_rejection(const struct contract_block_decode *b, int64_t tokens,
                                          const struct block_pair *pair);
/* A serial time against the calibration; false where there is none for so many tokens. */
bool block_calibration_holds(const struct contract_block_decode *b, int64_t tokens, double serial);

/* One retry for each class in a run, behind the temperature gate as every leg. */
struct block_retries {
    bool taken[BLOCK_REJECTION_COUNT];
};
bool block_retry_take(struct block_retries *r, enum block_rejection why);

/* The order of legs alternates: the control first in pairs 0, 2, ... */
bool block_pair_serial_first(size_t pair);

struct block_aggregate {
    size_t count;
    double serial_mean, candidate_mean;
    double ratio_of_means; /* the raw speedup */
    double median, least;  /* of the pairs' own speedups, told and not scored */
};
/* False when there is no pair, or a time is not finite and above 0. */
bool block_pairs_aggregate(const struct block_pair *pairs, size_t count,
                           struct block_aggregate *out);
/* Enough accepted pairs for a score. */
bool block_pairs_suffice(const struct contract_block_decode *b, size_t accepted);

#endif
