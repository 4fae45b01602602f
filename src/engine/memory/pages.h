/* Memory by the page, for what is large and lives long: weights, keys and values, scratch. */
#ifndef MLXFAST_ENGINE_MEMORY_PAGES_H
#define MLXFAST_ENGINE_MEMORY_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pages_kind {
    PAGES_HUGE,    /* huge pages asked for; whole ones are taken at the first touch */
    PAGES_ORDINARY /* small, never more than what was touched */
};

struct pages {
    void *data; /* NULL: none */
    size_t bytes;
};

/* Zeroed, aligned to a page (a huge one where the piece is that large), spread over the memory
 * nodes where there are several. False when there is no memory, or the size is absurd; out is then
 * empty. */
bool pages_new(size_t bytes, enum pages_kind kind, struct pages *out);
void pages_free(struct pages *p); /* p is empty then; an empty one is nothing */
/* Takes all pages now, so that no later touch pays for one. Advice: failure changes nothing. */
void pages_populate(const struct pages *p);
/* Keeps them from being paged out, if they fit in what RLIMIT_MEMLOCK leaves. */
bool pages_lock(const struct pages *p);

#endif
