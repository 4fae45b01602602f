/* A thread that writes pieces to a file, one after the other: the file never holds a byte without
 * those before it. Past the page cache (O_DIRECT) where file system and place allow it: gigabytes
 * of fresh pages cost more than the disk. What does not begin or end on a block goes through the
 * page cache. */
#ifndef MLXFAST_ARENA_FETCH_WRITER_H
#define MLXFAST_ARENA_FETCH_WRITER_H

#include "arena/fetch/digest.h"
#include "arena/fetch/pieces.h"

#include <stdbool.h>
#include <stdint.h>

struct writer;

/* fd is the file at path, and stays the caller's. */
struct writer *writer_begin(int fd, const char *path);
/* Takes the caller's hold of the piece over. After a failure nothing more is written. */
void writer_put(struct writer *w, struct piece *piece);
/* Who is told of bytes that are in the file; NULL: nobody, from the return on. */
void writer_tell(struct writer *w, struct digest *digest);
/* Waits until all that was put is in the file. False after a failure: why is its errno, length what
 * the file has. */
bool writer_drain(struct writer *w, int *why, uint64_t *length);
bool writer_has_failed(struct writer *w);
void writer_end(struct writer *w); /* waits as writer_drain, and frees; NULL is allowed */

#endif
