/* A session: one sequence being decoded. Prompts of any length go through in chunks; decoding is
 * greedy. The one place where positions move. Nothing allocates after session_new. */
#ifndef MLXFAST_ENGINE_DECODE_SESSION_H
#define MLXFAST_ENGINE_DECODE_SESSION_H

#include "base/error.h"
#include "engine/model/dflash.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session;
bool session_new(struct model *m, struct session **out, struct error *err);
void session_free(struct session *s);
void session_reset(struct session *s);
int64_t session_position(const struct session *s);
size_t session_bytes(const struct session *s); /* of its keys and values */

/* Feeds tokens (prefill or one step) and leaves the last row's logits in session_logits.
 * Errors: TOKEN-OUT-OF-RANGE (index and value), CONTEXT-EXCEEDED, EMPTY-PROMPT, LOGITS-NOT-FINITE.
 * After an error the session is back at the position before the call. (Where a long feed has run
 * over a sliding ring, the next feed there is refused with REWIND-TOO-FAR until session_reset.) */
bool session_feed(struct session *s, const int64_t *tokens, size_t count, struct error *err);
/* [vocab]. Where the backend keeps logits on its device they are fetched here: ask before another
 * session of the model is fed. */
const float *session_logits(struct session *s);

/* The largest two of the current logits; token -1 where there are none. */
struct head_pick session_pick(const struct session *s);

/* Greedy: token = argmax of the current logits (lowest id on ties; NaN never wins; an all-NaN row
 * is LOGITS-NOT-FINITE; nothing fed since a rewind is NO-LOGITS). session_step feeds that token and
 * leaves the next logits. */
bool session_argmax(const struct session *s, int32_t *token, struct error *err);
bool session_step(struct session *s, int32_t token, struct error *err);
bool session_rewind(struct session *s, int64_t position, struct error *err);

/* ---- Blocks (speculate.h is what decodes with them) ---- */

/* Gives a new session a drafter, opened for the same model; it outlives the session. */
bool session_set_drafter(struct session *s, struct dflash *d, struct error *err);
/* The widest block that fits here: 1 without a drafter, at the end of the context, and where the
 * drafter has not the hidden rows that it needs. */
int session_block_limit(const struct session *s);
/* Lets the drafter take the hidden rows of what has been fed, which the next draft would otherwise
 * do first: the end of a prompt's prefill. Does nothing where nothing can be drafted. */
void session_prepare_drafts(struct session *s);
/* drafts[0 .. width-2] for a block of `width` rows whose first is `bonus`. *count tells how many
 * are usable: fewer when the drafter's logits are NaN. width within session_block_limit. */
bool session_draft(struct session *s, int32_t bonus, int width, int32_t *drafts, int *count,
                   struct error *err);
/* One forward over tokens[0..rows): next[r] are the largest two logits of row r, token[0] (the
 * argmax) -1 when all of it is NaN. The session has moved by rows; session_keep follows. After an
 * error it has not moved. */
bool session_verify(struct session *s, const int32_t *tokens, int rows, struct head_pick *next,
                    struct error *err);
/* Drafts a block of `width` rows and verifies it, as session_draft and session_verify do, but where
 * the device can go on by itself nobody waits in between. tokens[0 .. known) are given, the first
 * is the bonus; the others are drafted. *rows: that count, fewer than width where the drafter's
 * logits are NaN; next[0 .. *rows). session_keep follows, for at most that many. */
bool session_round(struct session *s, int32_t *tokens, int width, int known, int *rows,
                   struct head_pick *next, struct error *err);
/* Takes back all but the first `kept` rows (0 .. rows) of the last block; the current logits are
 * those of the last kept row (none when kept is 0). */
void session_keep(struct session *s, int kept);

/* The hidden rows that the drafter takes of one position: taps * hidden values, 0 without a
 * drafter. */
size_t session_tap_width(const struct session *s);
/* Copies those of an absolute position out, side by side in the order of the drafter's taps,
 * float32 [session_tap_width]. False, and nothing written, where they are not held: at and past
 * session_position, and further back than the drafter's window. Rows of a session_verify are held
 * until session_keep takes them back. */
bool session_read_taps(const struct session *s, int64_t position, float *out);

#endif
