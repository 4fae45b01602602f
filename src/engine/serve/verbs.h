/* What the worker does for each request kind (engine-protocol.md section 6, runner-contract.md
 * section 6): checks of order and of fields, calls into the session, the reply's fields. The kinds
 * of the block protocol are checked here and answered in block_verbs.h. A session may speak both: a
 * request of one protocol ends the open sequence of the other. */
#ifndef MLXFAST_ENGINE_SERVE_VERBS_H
#define MLXFAST_ENGINE_SERVE_VERBS_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/decode/session.h"
#include "engine/model/model.h"
#include "engine/serve/block_verbs.h"
#include "engine/serve/manifest.h"
#include "engine/serve/served_drafter.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The sequence that is open: which step verbs may follow. */
enum verbs_sequence { SEQUENCE_NONE, SEQUENCE_DECODE, SEQUENCE_CORRECTNESS, SEQUENCE_FREE_RUN };

struct verbs {
    struct model *model;
    struct session *session;
    const struct runner_manifest *manifest;
    struct served_drafter drafter; /* all zero: none */
    struct block_verbs block;      /* served where there is a drafter */
    bool speculative, trusted;     /* --speculative-protocol v1.1, --trusted */
    enum verbs_sequence sequence;
    int64_t completed_work; /* forwards since the phase opened */
    int32_t next_token;     /* free run: what the next round feeds */
    int width;              /* free run: rows of each round, 1 for serial */
};

/* Fills out's fields for the kind (not id, nonce, ok). What it points to lives in the arena; the
 * caller releases the message. On an error the phase's state is gone. */
bool verbs_answer(struct verbs *v, struct arena *arena, const struct wire_request *request,
                  struct wire_response *out, struct error *err);
/* Forgets the phase: sequences of both protocols, session, counter. */
void verbs_drop(struct verbs *v);
/* A line was refused before it was a request: the phase is dropped, and a session that has spoken
 * the block protocol is poisoned. */
void verbs_refused(struct verbs *v);

#endif
