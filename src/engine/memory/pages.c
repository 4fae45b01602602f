#include "engine/memory/pages.h"

#include "engine/memory/limits.h"
#include "engine/memory/nodes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t most = (size_t)1 << 42; /* a piece of 4 TiB is a wrong size, not a need */

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Sanitized builds take each piece from the allocator, which sees what runs over its end. */
#if defined(__SANITIZE_ADDRESS__)
#define PAGES_FROM_ALLOCATOR 1
#else

static const size_t huge_page = (size_t)2 << 20;

/* Where huge pages would fit, the piece begins at one: what lies around it is given back. */
static void *map_aligned(size_t bytes, size_t align)
{
    uint8_t *p = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    const size_t before = (size_t)(-(uintptr_t)p & (align - 1));
    if (before > 0)
        munmap(p, before);
    if (align > before)
        munmap(p + before + bytes, align - before);
    return p + before;
}

#endif

bool pages_new(size_t bytes, enum pages_kind kind, struct pages *out)
{
    *out = (struct pages){0};
    if (bytes >= most)
        return false;
#ifdef PAGES_FROM_ALLOCATOR
    (void)kind;
    out->bytes = bytes > 0 ? bytes : 1;
    out->data = aligned_alloc(64, round_up(out->bytes, 64));
    if (out->data != NULL)
        memset(out->data, 0, out->bytes);
    else
        out->bytes = 0;
    return out->data != NULL;
#else
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const bool huge = kind == PAGES_HUGE && bytes >= huge_page;
    /* The last huge page is not filled up: what is asked for is what is taken. */
    bytes = round_up(bytes > 0 ? bytes : 1, page);
    void *data = map_aligned(bytes, huge ? huge_page : page);
    if (data == NULL)
        return false;
    madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    nodes_spread(data, bytes);
    *out = (struct pages){data, bytes};
    return true;
#endif
}

void pages_free(struct pages *p)
{
#ifdef PAGES_FROM_ALLOCATOR
    free(p->data);
#else
    if (p->data != NULL)
        munmap(p->data, p->bytes);
#endif
    *p = (struct pages){0};
}

void pages_populate(const struct pages *p)
{
#ifdef MADV_POPULATE_WRITE
    if (p->data != NULL)
        madvise(p->data, p->bytes, MADV_POPULATE_WRITE);
#else
    (void)p;
#endif
}

bool pages_lock(const struct pages *p)
{
    struct memory_limits l;
    if (p->data == NULL)
        return false;
    memory_limits_read(&l);
    return p->bytes <= l.lockable && mlock(p->data, p->bytes) == 0;
}
