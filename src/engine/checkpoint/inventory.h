/* The complete inventory check: what a model family expects against what a checkpoint holds.
 * Any missing, extra, renamed, re-typed or re-shaped tensor is refused. */
#ifndef MLXFAST_ENGINE_CHECKPOINT_INVENTORY_H
#define MLXFAST_ENGINE_CHECKPOINT_INVENTORY_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/checkpoint/checkpoint.h"

struct tensor_spec {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
};

struct inventory { /* grows in an arena */
    struct arena *arena;
    struct tensor_spec *items;
    size_t count, capacity;
};
void inventory_add(struct inventory *inv, const char *name, enum dtype dtype, int rank,
                   const int64_t *shape);
/* Error INVENTORY-MISMATCH: the message counts each class (missing, extra, re-typed, re-shaped) and
 * names the first few; a missing and an extra tensor of equal dtype and shape whose names differ in
 * one component are reported as "renamed". */
bool inventory_check(const struct inventory *expected, const struct checkpoint *found,
                     struct error *err);
/* The canonical hash of laguna.md section 1: every tensor sorted by name as compact JSON
 * [name,dtype,shape,shard_name] + LF. hex has 65 bytes. */
void inventory_canonical_sha256(const struct checkpoint *found, char *hex);

/* The same of a list in any order, for inventories that are known without their weights. */
struct inventory_line {
    struct tensor_spec tensor;
    const char *shard;
};
void inventory_canonical_sha256_list(const struct inventory_line *lines, size_t count, char *hex);

#endif
