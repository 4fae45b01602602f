#include "engine/transform/weights_cap.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t DEFAULT_CAP = 26843545600u; /* 25 GiB */
static const char VARIABLE[] = "MLXFAST_MAX_WEIGHTS_BYTES";

bool weights_cap_read(const char *text, uint64_t *out, struct error *err)
{
    const char *name = "--max-bytes";
    *out = DEFAULT_CAP;
    if (!text) {
        text = getenv(VARIABLE);
        name = VARIABLE;
        if (!text || !*text)
            return true;
    }
    if (strcmp(text, "none") == 0 || strcmp(text, "unlimited") == 0) {
        *out = UINT64_MAX;
        return true;
    }
    if (!number_uint64(text, UINT64_MAX, out)) {
        error_set(err, "USAGE", "%s must be a number of bytes, 0, none or unlimited", name);
        return error_at(err, NULL, name, text);
    }
    if (*out == 0)
        *out = UINT64_MAX;
    return true;
}

bool weights_cap_check(uint64_t cap, uint64_t bytes, const char *folder, struct error *err)
{
    char value[32];
    if (bytes <= cap)
        return true;
    snprintf(value, sizeof value, "%" PRIu64, bytes);
    error_set(err, "WEIGHTS-TOO-LARGE",
              "the weights may have %" PRIu64 " bytes (MLXFAST_MAX_WEIGHTS_BYTES, --max-bytes)",
              cap);
    return error_at(err, folder, "bytes", value);
}
