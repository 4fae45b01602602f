/* Routed experts that stay in the source's shards: which tensors they are, and
 * experts/manifest.json, which says where each lies (expert-streaming.md section 1). */
#ifndef MLXFAST_ENGINE_TRANSFORM_EXPERTS_H
#define MLXFAST_ENGINE_TRANSFORM_EXPERTS_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "engine/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const char experts_manifest_name[];   /* in the folder of weights */
extern const char experts_folder_variable[]; /* MLXFAST_REFERENCE_DIR: where the shards are, instead
                                                of reference_path */

bool experts_is_split(const char *model_type); /* whether a model is split into dense and experts */
bool experts_is_expert(const char *tensor);

/* The path that leads from the folder weights (which need not be there, its parent must) to
 * source. */
bool experts_find_path(struct arena *a, const char *weights, const char *source, char **out,
                       struct error *err);
/* The manifest's text: records by shard, then name. Error EXPERTS-INVALID: no expert tensor, or
 * nothing but them, or one without bytes. */
bool experts_write_manifest(struct arena *a, const struct checkpoint *source, const char *path,
                            struct buffer *out, struct error *err);

struct experts_seen {
    size_t tensors;
    uint64_t bytes;
};
/* Reads <weights>/experts/manifest.json and holds it to its rules and to the shards' sizes and
 * headers; no weight is read. reference: the shards' folder, NULL: what the manifest says, from
 * weights. Errors: EXPERTS-INVALID (record, value), CHECKPOINT-MISSING-FILE (a shard),
 * SAFETENSORS-INVALID. */
bool experts_check(const char *weights, const char *reference, struct experts_seen *out,
                   struct error *err);

#endif
