/* A session: one sequence being decoded. Prompts of any length go through in chunks; decoding is
 * greedy. The one place where positions move. Nothing allocates after session_new. */
#ifndef MLXFAST_ENGINE_DECODE_SESSION_H
#define MLXFAST_ENGINE_DECODE_SESSION_H

#include "base/error.h"
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
const float *session_logits(const struct session *s); /* [vocab] */

/* Greedy: token = argmax of the current logits (lowest id on ties; NaN never wins; an all-NaN row
 * is LOGITS-NOT-FINITE; nothing fed since a rewind is NO-LOGITS). session_step feeds that token and
 * leaves the next logits. */
bool session_argmax(const struct session *s, int32_t *token, struct error *err);
bool session_step(struct session *s, int32_t token, struct error *err);
bool session_rewind(struct session *s, int64_t position, struct error *err);

#endif
