/* Any bytes as a log and as a proof of inclusion. What is accepted is a chain, spelt as it would be
 * written, and each of its entries can be proved. */
#include "judge/evidence/log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_log(const struct log *l, const uint8_t *data, size_t size)
{
    struct buffer again = {0};
    require(l->bytes + l->torn == size);
    for (size_t i = 0; i < l->count; i++) {
        struct log_inclusion p, read;
        struct buffer proof = {0};
        log_entry_render(&l->entries[i], &again);
        buffer_char(&again, '\n');
        require(l->entries[i].index == i);
        log_prove(l, &l->entries[i], size % (l->count + 1), &p);
        log_inclusion_render(&p, &proof);
        require(log_inclusion_parse("proof", proof.data, proof.length, &read, NULL));
        buffer_free(&proof);
    }
    require(again.length == l->bytes && (l->bytes == 0 || memcmp(again.data, data, l->bytes) == 0));
    buffer_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct log l;
    struct log_inclusion p;
    struct error err = {0};
    struct buffer again = {0};
    if (log_parse("log", (const char *)data, size, &a, &l, &err))
        check_log(&l, data, size);
    else
        require(strcmp(err.name, "LOG-INVALID") == 0 && err.message[0]);
    if (log_inclusion_parse("proof", (const char *)data, size, &p, &err)) {
        log_inclusion_render(&p, &again);
        require(again.length == size && memcmp(again.data, data, size) == 0);
        require(p.entry.index < p.size && p.before <= p.size);
    }
    buffer_free(&again);
    arena_free(&a);
    return 0;
}
