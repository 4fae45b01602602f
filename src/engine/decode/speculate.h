/* Decoding in rounds (dflash.md section 4): draft a block, verify it in one forward of the target,
 * keep what is right. The tokens, the position and the logits at the end are those of serial
 * decoding, bit for bit, whatever the widths; serial decoding is a run whose rounds have width 1.
 * Nothing here allocates. */
#ifndef MLXFAST_ENGINE_DECODE_SPECULATE_H
#define MLXFAST_ENGINE_DECODE_SPECULATE_H

#include "base/error.h"
#include "engine/decode/serial.h"
#include "engine/decode/session.h"

#include <stddef.h>
#include <stdint.h>

enum { SPECULATE_MOST = 64 };

/* Which width each round has: rows of the target's forward, the last token and width - 1 drafts. It
 * is cut to what is still wanted, to the drafter's block and to the end of the context. */
struct speculate_plan {
    int block; /* > 0: of every round */
    /* else, where it is set, of round 0, 1, .. */
    int (*schedule)(void *context, size_t round);
    void *context;
    /* else by what was measured (width.h) */
};

struct speculate_counts {
    size_t rounds;  /* forwards of the target after the prompt; each gave a token or more */
    size_t drafted; /* drafts that were verified */
    size_t
        accepted; /* of these, tokens given out; a round gives its accepted drafts and one more */
    /* offered[i]: i-th drafts whose predecessors were accepted; taken[i]: those accepted too */
    size_t offered[SPECULATE_MOST], taken[SPECULATE_MOST];
};

/* As serial_decode. plan NULL: every round has width 1. counts may be NULL. A stop token, the count
 * or the caller may end it inside a block: the session is then where serial decoding leaves it. */
bool speculate_decode(struct session *s, const struct serial_request *request,
                      const struct speculate_plan *plan, struct speculate_counts *counts,
                      struct serial_result *result, struct error *err);
/* The same without the token that the current logits give: *token was given out before and is fed
 * first; at the end it is the last one made. */
bool speculate_rounds(struct session *s, int32_t *token, const struct serial_request *request,
                      const struct speculate_plan *plan, struct speculate_counts *counts,
                      struct serial_result *result, struct error *err);

#endif
