/* A model folder on disk: safetensors shards (memory-mapped), the index, config.json.
 *
 * Opening checks everything that can be checked without reading tensor data: header lengths against
 * the file size, no duplicate names, ranges equal to shape x dtype size, no overlap, no gap beyond
 * the format's, the last byte inside the file; index and shards agree both ways; config.json is a
 * strict JSON object. Errors: CHECKPOINT-MISSING-FILE (all missing names), SAFETENSORS-INVALID,
 * CHECKPOINT-INDEX-MISMATCH, CONFIG-INVALID; file and field say where. */
#ifndef MLXFAST_ENGINE_CHECKPOINT_CHECKPOINT_H
#define MLXFAST_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "engine/memory/pages.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_COUNT
};
const char *dtype_name(enum dtype t); /* the safetensors spelling */
size_t dtype_size(enum dtype t);      /* bytes */

enum { TENSOR_MAX_RANK = 8 };
struct tensor {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    /* In the map (or in checkpoint.packed, on a cache line), there at any byte offset: a shard may
     * place a tensor of 2- or 4-byte elements at an odd address. Readers load with memcpy or
     * unaligned vector loads, never through uint16_t * or float *. */
    const uint8_t *data;
    uint64_t bytes;
    int shard; /* index into checkpoint.shards */
};

struct checkpoint_shard {
    const char *file_name; /* relative to the folder */
    struct file_map map;
};

struct checkpoint {
    struct arena arena;
    const char *folder;
    json_t *config; /* the parsed config.json */
    const char *model_type;
    struct checkpoint_shard *shards;
    size_t shard_count;
    struct tensor *tensors; /* sorted by name, bytewise */
    size_t tensor_count;
    uint64_t tensor_bytes;
    struct pages packed; /* the tensors' copies, once they were made (pack.h); maps are gone then */
};

bool checkpoint_open(const char *folder, struct checkpoint **out, struct error *err);
void checkpoint_close(struct checkpoint *c);
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name); /* or NULL */

/* Parses one safetensors header (for files of their own, the fuzzer, tools). data/length is the
 * whole file. The tensors are put into the arena, sorted by name. Refusals are SAFETENSORS-INVALID;
 * the rules are listed in docs/checkpoint.md. */
bool safetensors_parse(struct arena *a, const char *file, const uint8_t *data, size_t length,
                       struct tensor **tensors, size_t *count, struct error *err);

/* Only config.json: for `manifest --weights`, which must not read weights. */
bool checkpoint_read_config(const char *folder, json_t **out, struct error *err);

#endif
