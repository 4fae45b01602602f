/* The block protocol, trusted_dflash_block_v1 (docs/block-protocol.md): one round at a time, and
 * every row of it told. Its state is apart from that of Engine Protocol v1; the session is the same
 * one, so whoever opens a sequence ends the other protocol's. */
#ifndef MLXFAST_ENGINE_SERVE_BLOCK_VERBS_H
#define MLXFAST_ENGINE_SERVE_BLOCK_VERBS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "engine/decode/session.h"
#include "engine/model/dflash.h"
#include "engine/model/model.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum block_sequence { BLOCK_NONE, BLOCK_DECODE, BLOCK_REFERENCE };

struct block_verbs {
    const struct model_info *info;
    struct session *session;            /* with its drafter */
    const struct dflash_config *config; /* NULL: the protocol is not served */
    uint64_t weight_bytes;              /* of target and drafter */
    bool begun;    /* a request of this protocol has come: from then on a refusal poisons */
    bool poisoned; /* every request is refused */

    enum block_sequence sequence;
    size_t seed_count;
    int32_t last; /* decode: the last token given out */
    int64_t accepted, rejected, rollbacks;
    /* reference: seed, seed token and every token given out so far, as the judge told them;
     * [chain_count], of which seed_count + walked have been fed. Room for context + 1. */
    int64_t *chain;
    size_t chain_count, walked;
    float *taps; /* [session_tap_width] */
};

/* b is zeroed; the drafter is the session's. */
void block_verbs_open(struct block_verbs *b, const struct model *m, const struct dflash *drafter,
                      struct session *s);
void block_verbs_close(struct block_verbs *b);
/* Forgets the sequence; the session is the caller's to reset. */
void block_verbs_end(struct block_verbs *b);
/* A request, of whatever kind, was refused. */
void block_verbs_refused(struct block_verbs *b);

/* kind is one of the block protocol's, and the request has its fields. Errors: OUT-OF-ORDER,
 * TOKEN-NOT-LAST, TAPS-NOT-HELD, BLOCK-WIDTH-INVALID, ROWS-INVALID, PREFIX-MISMATCH,
 * CONTEXT-EXCEEDED, TOKEN-OUT-OF-RANGE, EMPTY-PROMPT, LOGITS-NOT-FINITE. */
bool block_verbs_answer(struct block_verbs *b, struct arena *arena, enum wire_kind kind,
                        const struct wire_request *r, struct wire_response *out, struct error *err);

/* SHA-256 of a row's hidden values as little-endian float32, with one zero and one NaN, so that it
 * does not depend on what a machine makes of their signs. The values are overwritten. */
void block_row_digest(float *values, size_t count, char hex[SHA256_HEX]);

/* dflash_decode_warm, which the worker also does before its hello. Leaves the session empty. */
bool block_verbs_warm(struct block_verbs *b, struct error *err);

#endif
