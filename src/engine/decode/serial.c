/* Serial decoding: rounds of one row (speculate.h). */
#include "engine/decode/serial.h"

#include "engine/decode/speculate.h"

bool serial_decode(struct session *s, const struct serial_request *request,
                   struct serial_result *result, struct error *err)
{
    return speculate_decode(s, request, NULL, NULL, result, err);
}

static bool keep_token(void *context, int32_t token)
{
    int64_t **out = context;
    *(*out)++ = token;
    return true;
}

bool serial_rounds(struct session *s, int32_t *token, size_t count, int64_t *out, struct error *err)
{
    const struct serial_request request = {.count = count, .on_token = keep_token, .context = &out};
    struct serial_result result = {.end = SERIAL_END_LENGTH};
    if (!speculate_rounds(s, token, &request, NULL, NULL, &result, err))
        return false;
    return result.end == SERIAL_END_LENGTH ||
           error_set(err, "INTERRUPTED", "interrupted after %zu rounds", result.made);
}
