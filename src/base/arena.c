/* Arenas: see arena.h. A chain of blocks; the head is the one being filled. */
#include "base/arena.h"

#include "base/number.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 64, ARENA_FIRST = 16 << 10, ARENA_LARGEST = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t used, size; /* of the payload */
    char *payload;     /* aligned; calloc leaves it zeroed, and lazily so where it is large */
};

static _Noreturn void give_up(const char *what, size_t size)
{
    fprintf(stderr, "mlxfast: %s (%zu bytes)\n", what, size);
    abort();
}

#ifdef MLXFAST_DEBUG
static _Thread_local int guard_depth;
static void guard_check(size_t size)
{
    if (guard_depth > 0)
        give_up("an allocation where none is allowed", size);
}
void memory_guard_begin(void)
{
    guard_depth++;
}
void memory_guard_end(void)
{
    guard_depth--;
}
#else
static void guard_check(size_t size)
{
    (void)size;
}
void memory_guard_begin(void)
{
}
void memory_guard_end(void)
{
}
#endif

static struct arena_block *block_new(size_t size)
{
    size_t whole;
    if (!size_add(size, sizeof(struct arena_block) + ARENA_ALIGN, &whole))
        give_up("out of memory", size);
    struct arena_block *b = calloc(1, whole);
    if (!b)
        give_up("out of memory", size);
    uintptr_t start = (uintptr_t)(b + 1);
    b->payload = (char *)b + ((start + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN - (uintptr_t)b);
    b->size = size;
    return b;
}

void *arena_alloc(struct arena *a, size_t size)
{
    guard_check(size);
    a->total += size;
#ifdef MLXFAST_DEBUG
    /* One block for each allocation, so that the sanitizer sees an overrun. */
    struct arena_block *own = block_new(size);
    own->next = a->head;
    a->head = own;
    return own->payload;
#else
    struct arena_block *head = a->head;
    size_t start = head ? (head->used + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN : 0;
    if (head && start <= head->size && size <= head->size - start) {
        head->used = start + size;
        return head->payload + start;
    }
    if (size > ARENA_LARGEST / 4) { /* a block of its own, behind the one being filled */
        struct arena_block *own = block_new(size);
        own->used = size;
        if (head) {
            own->next = head->next;
            head->next = own;
        } else {
            a->head = own;
        }
        return own->payload;
    }
    size_t next_size = head && head->size < ARENA_LARGEST ? head->size * 2 : ARENA_FIRST;
    if (head && head->size >= ARENA_LARGEST)
        next_size = ARENA_LARGEST;
    while (next_size < size)
        next_size *= 2;
    struct arena_block *block = block_new(next_size);
    block->next = head;
    block->used = size;
    a->head = block;
    return block->payload;
#endif
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
    size_t whole;
    if (!size_multiply(count, size, &whole))
        give_up("an array larger than memory", count);
    return arena_alloc(a, whole);
}

char *arena_strndup(struct arena *a, const char *text, size_t length)
{
    size_t whole;
    if (!size_add(length, 1, &whole))
        give_up("out of memory", length);
    char *copy = arena_alloc(a, whole);
    if (length)
        memcpy(copy, text, length);
    return copy;
}

char *arena_strdup(struct arena *a, const char *text)
{
    return arena_strndup(a, text, strlen(text));
}

char *arena_printf(struct arena *a, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0)
        give_up("a text that cannot be formatted", 0);
    char *out = arena_alloc(a, (size_t)n + 1);
    vsnprintf(out, (size_t)n + 1, format, again);
    va_end(again);
    return out;
}

void arena_free(struct arena *a)
{
    struct arena_block *b = a->head;
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
    *a = (struct arena){0};
}

void *memory_alloc(size_t size)
{
    guard_check(size);
    void *p = calloc(1, size ? size : 1);
    if (!p)
        give_up("out of memory", size);
    return p;
}

void *memory_realloc(void *p, size_t size)
{
    guard_check(size);
    void *q = realloc(p, size ? size : 1);
    if (!q)
        give_up("out of memory", size);
    return q;
}

char *memory_strdup(const char *text)
{
    size_t length = strlen(text) + 1;
    char *copy = memory_alloc(length);
    memcpy(copy, text, length);
    return copy;
}
