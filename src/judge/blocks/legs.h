/* The legs of the ranked run of block decoding, as loop.h's doors: an engine on the hidden prompt
 * between the gates of judge/quiet, and the baseline's engine that walks its chain afterwards. */
#ifndef MLXFAST_JUDGE_BLOCKS_LEGS_H
#define MLXFAST_JUDGE_BLOCKS_LEGS_H

#include "judge/blocks/loop.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/dflash_golden.h"
#include "judge/fidelity.h"
#include "judge/quiet/quiet.h"

#include <stdbool.h>

struct blocks_legs {
    const struct contract *contract;
    const struct fidelity_limits *limits;
    const struct dflash_golden *prompt;
    struct client_options control, candidate, reference;
    double run_ceiling_seconds; /* per token */
    struct quiet *quiet;
    bool silent;
    bool own_reference; /* the reference's program is the candidate's, byte for byte */
    struct arena *arena;
    struct blocks_slot slot; /* of the leg that is being measured */
    bool spoilt;             /* by what the telemetry of that leg tells */
};

/* The doors' context is l, which outlives them. Every leg is decoded with the contract's
 * decode_tokens, the candidate's with its block_size and the schedule of seed 0, as the normalisers
 * were measured. */
struct blocks_doors blocks_legs_doors(struct blocks_legs *l);

#endif
