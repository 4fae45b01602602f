/* Engine Protocol lines: whatever decodes encodes to a line that decodes, and to the same bytes. */
#include "wire/wire.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_error(const struct error *err)
{
    must(strncmp(err->name, "WIRE-", 5) == 0 && err->message[0] != '\0');
}

#define ROUND(type)                                                                                \
    static void round_##type(const char *text, size_t length)                                      \
    {                                                                                              \
        struct arena a = {0};                                                                      \
        struct buffer once = {0}, twice = {0};                                                     \
        struct wire_##type m, again;                                                               \
        struct error err = {0};                                                                    \
        if (wire_##type##_decode(&a, text, length, &m, &err)) {                                    \
            wire_##type##_encode(&m, &once);                                                       \
            must(wire_##type##_decode(&a, once.data, once.length, &again, &err));                  \
            wire_##type##_encode(&again, &twice);                                                  \
            must(once.length == twice.length && memcmp(once.data, twice.data, once.length) == 0);  \
            wire_##type##_free(&again);                                                            \
        } else {                                                                                   \
            check_error(&err);                                                                     \
        }                                                                                          \
        wire_##type##_free(&m);                                                                    \
        buffer_free(&once);                                                                        \
        buffer_free(&twice);                                                                       \
        arena_free(&a);                                                                            \
    }
ROUND(request)
ROUND(response)
ROUND(spec)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    round_request((const char *)data, size);
    round_response((const char *)data, size);
    round_spec((const char *)data, size);
    return 0;
}
