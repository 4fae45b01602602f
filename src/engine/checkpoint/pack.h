/* Weights in memory of their own: copied once from the mapped shards, each tensor on a cache line.
 * Published shards put tensors at any byte, and their pages are small ones of the file system; the
 * copy is in huge pages. Values stay what they are. */
#ifndef MLXFAST_ENGINE_CHECKPOINT_PACK_H
#define MLXFAST_ENGINE_CHECKPOINT_PACK_H

#include "base/error.h"
#include "engine/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

enum { PACK_ALIGN = 64 };

struct pack_options {
    int threads; /* that copy, the caller one of them; at least 1 */
    /* Bytes copied so far, from the caller's thread, now and then and at the end. May be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

/* Bytes that the copy takes. */
uint64_t checkpoint_packed_bytes(const struct checkpoint *c);
/* Copies all tensors, points them at their copies and lets go of the maps; the files may change
 * then. Before checkpoint_find's data is handed on. Errors: OUT-OF-MEMORY, INTERRUPTED; the
 * checkpoint is then as it was. */
bool checkpoint_pack(struct checkpoint *c, const struct pack_options *o, struct error *err);

#endif
