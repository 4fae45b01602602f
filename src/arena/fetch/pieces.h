/* The bytes of a file between the transfer, which fills pieces, and the threads that write
 * (writer.h) and hash (digest.h) them, each all of them and both from the same memory. A piece is
 * free again when everybody has let it go; the transfer waits for a free one, so that memory does
 * not grow with the file. */
#ifndef MLXFAST_ARENA_FETCH_PIECES_H
#define MLXFAST_ARENA_FETCH_PIECES_H

#include <stddef.h>
#include <stdint.h>

enum { PIECE_BYTES = 2 << 20, PIECE_COUNT = 4, PIECE_ALIGN = 4096 };

struct piece_ring;
struct piece {
    uint8_t *data; /* as far beyond a multiple of PIECE_ALIGN as at */
    size_t length, room;
    uint64_t at; /* in the file */
    /* Of pieces.c. */
    struct piece_ring *of;
    uint8_t *memory;
    int holders; /* 0: free */
};

struct piece_ring *piece_ring_make(void);
/* A free piece for the bytes from there on, held by the caller; waits for one. */
struct piece *piece_ring_take(struct piece_ring *p, uint64_t at);
void piece_hold(struct piece *piece);       /* one more holder */
void piece_let_go(struct piece *piece);     /* one fewer */
void piece_ring_free(struct piece_ring *p); /* nobody holds any; NULL is allowed */

#endif
