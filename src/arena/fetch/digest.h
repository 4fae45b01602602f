/* The SHA-256 of a file that is still being written: a thread that follows the writer, so that the
 * hash costs the transfer nothing, and is there when the last byte is. It takes bytes from memory
 * while they are there, from the file where it lies behind. A finished file is hashed likewise. */
#ifndef MLXFAST_ARENA_FETCH_DIGEST_H
#define MLXFAST_ARENA_FETCH_DIGEST_H

#include "arena/fetch/pieces.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stdint.h>

struct digest;

/* fd stays the caller's, open until the digest is freed; path is for messages and must live as
 * long. done(argument) is called from the thread when the result is there; may be NULL. */
struct digest *digest_begin(int fd, const char *path, void (*done)(void *), void *argument);
void digest_advance(struct digest *d, uint64_t length); /* the file now holds so many bytes */
/* The bytes that the file gets next. It holds the piece until it has hashed them, or, where it lies
 * far behind, does not hold it, and reads them from the file later. */
void digest_hand(struct digest *d, struct piece *piece);
void digest_restart(struct digest *d); /* it is about to be cut: nothing of it counts any more */
/* No more will come. sync: bring the file to the disk before the result. */
void digest_close(struct digest *d, bool sync);
uint64_t digest_hashed(struct digest *d); /* bytes so far */
bool digest_is_ready(struct digest *d);
/* After digest_close: waits, gives the result and frees. Errors: IO, FILE-CHANGED. */
bool digest_take(struct digest *d, char hex[SHA256_HEX], struct error *err);
void digest_abandon(struct digest *d); /* stops and frees; NULL is allowed */

#endif
