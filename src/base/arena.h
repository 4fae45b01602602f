/* Arenas: lifetimes by owner. Allocation either succeeds or aborts the program with a plain
 * message (memory sized by outside data is checked before it is asked for). Freed all at once. */
#ifndef MLXFAST_BASE_ARENA_H
#define MLXFAST_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t total; /* bytes handed out */
};

/* A zeroed struct arena is an empty arena. */
void *arena_alloc(struct arena *a, size_t size);               /* zeroed, 64-byte aligned */
void *arena_array(struct arena *a, size_t count, size_t size); /* checked multiply, zeroed */
char *arena_strdup(struct arena *a, const char *text);
char *arena_strndup(struct arena *a, const char *text, size_t length);
char *arena_printf(struct arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *a); /* gives everything back; the arena is empty again */

/* malloc/realloc/strdup that abort on failure, for the few objects that grow. */
void *memory_alloc(size_t size); /* zeroed */
void *memory_realloc(void *p, size_t size);
char *memory_strdup(const char *text);

/* Decode loops may not allocate: while the guard is on (debug and sanitizer builds) an arena_alloc
 * or memory_* call on this thread aborts. Nested calls count. */
void memory_guard_begin(void);
void memory_guard_end(void);

#endif
