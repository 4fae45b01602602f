/* Serial decoding: one token, one forward. Greedy; the same steps whoever asks. */
#ifndef MLXFAST_ENGINE_DECODE_SERIAL_H
#define MLXFAST_ENGINE_DECODE_SERIAL_H

#include "base/error.h"
#include "engine/decode/session.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum serial_end {
    SERIAL_END_LENGTH, /* as many tokens as were asked for */
    SERIAL_END_STOP,   /* the last token is in the stop set; it is delivered, nothing after it */
    SERIAL_END_CALLER, /* on_token returned false */
    SERIAL_END_INTERRUPT
};

struct serial_request {
    size_t count; /* tokens to make */
    const int32_t *stop;
    int stop_count; /* 0: nothing stops it */
    /* Called for each token as soon as it is known; false ends. May be NULL. */
    bool (*on_token)(void *context, int32_t token);
    void *context;
};

struct serial_result {
    size_t made;
    enum serial_end end;
};

/* Continues a session that has been fed a prompt: the first token is the argmax of its logits.
 * Feeds a token only when another one is wanted after it, so the session ends at position
 * prompt + made - 1. An error leaves in result what was made before it. */
bool serial_decode(struct session *s, const struct serial_request *request,
                   struct serial_result *result, struct error *err);

/* count rounds that feed first: round i feeds *token, then sets *token and out[i] to the next one.
 * The session moves by exactly count. No stop set (the fixed benchmark build). */
bool serial_rounds(struct session *s, int32_t *token, size_t count, int64_t *out,
                   struct error *err);

#endif
