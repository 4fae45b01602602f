/* Serial decoding. */
#include "engine/decode/serial.h"

#include "base/child.h"

static bool in_stop_set(const struct serial_request *r, int32_t token)
{
    for (int i = 0; i < r->stop_count; i++)
        if (r->stop[i] == token)
            return true;
    return false;
}

bool serial_decode(struct session *s, const struct serial_request *request,
                   struct serial_result *result, struct error *err)
{
    *result = (struct serial_result){.end = SERIAL_END_LENGTH};
    while (result->made < request->count) {
        if (interrupt_requested()) {
            result->end = SERIAL_END_INTERRUPT;
            return true;
        }
        int32_t token;
        if (!session_argmax(s, &token, err))
            return false;
        result->made++;
        if (request->on_token && !request->on_token(request->context, token)) {
            result->end = SERIAL_END_CALLER;
            return true;
        }
        if (in_stop_set(request, token)) {
            result->end = SERIAL_END_STOP;
            return true;
        }
        if (result->made < request->count && !session_step(s, token, err))
            return false;
    }
    return true;
}

bool serial_rounds(struct session *s, int32_t *token, size_t count, int64_t *out, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!session_step(s, *token, err) || !session_argmax(s, token, err))
            return false;
        out[i] = *token;
    }
    return true;
}
