/* Any bytes as the head of an answer; whatever it says, bytes are taken only where they belong. */
#include "arena/fetch/response.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fetch_response r = {0};
    for (const uint8_t *at = data, *end = data + size; at < end;) {
        const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
        const size_t n = line ? (size_t)(line - at) + 1 : (size_t)(end - at);
        fetch_response_header(&r, (const char *)at, n);
        at += n;
    }
    const uint64_t sizes[] = {0, 1, 500, 1000};
    for (size_t i = 0; i < 4; i++)
        for (int asked = 0; asked < 2; asked++) {
            struct error err = {0};
            uint64_t offset = UINT64_MAX;
            const uint64_t have = asked ? sizes[i] : 0;
            const enum fetch_verdict v =
                fetch_response_judge(&r, have, 1000, asked, "\"etag\"", &offset, &err);
            if (v == FETCH_TAKE)
                require(offset <= have && (r.status == 200 || (r.status == 206 && asked)));
            else if (v == FETCH_DONE)
                require(have == 1000);
            else if (v != FETCH_MOVED)
                require(err.name[0] && err.message[0]);
        }
    return 0;
}
