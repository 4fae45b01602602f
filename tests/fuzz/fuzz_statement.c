/* Any bytes as a statement, and as a public key; what is accepted is spelt as it would be written.
 */
#include "judge/evidence/key.h"
#include "judge/evidence/statement.h"

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
    struct arena a = {0};
    struct statement s;
    struct public_key k;
    struct error err = {0};
    struct buffer again = {0};
    if (statement_parse("statement.json", (const char *)data, size, &a, &s, &err)) {
        statement_render(&s, &again);
        require(again.length == size && memcmp(again.data, data, size) == 0);
        require(s.passed || !s.has_score);
        require(s.golden_count <= STATEMENT_GOLDENS_MOST);
    } else {
        require(strcmp(err.name, "STATEMENT-INVALID") == 0 && err.message[0]);
    }
    buffer_clear(&again);
    if (key_parse_public("key", (const char *)data, size, &k, &err)) {
        key_render_public(&k, &again);
        require(again.length == size && memcmp(again.data, data, size) == 0);
    } else {
        require(err.name[0] && err.message[0]);
    }
    buffer_free(&again);
    arena_free(&a);
    return 0;
}
