/* The repacked form of a DFlash drafter: which bytes of the published file go where, and the text
 * of the two files around them. Nothing is read or written here.
 *
 * The published layout holds q, k and v of a layer in one tensor, the repacked one in three
 * (dflash.md section 2). Values are copied. The texts have the form of the published repack, so
 * that the same source gives the same file; docs/convert-drafter.md states the form and what proves
 * it. */
#ifndef MLXFAST_ENGINE_TRANSFORM_REPACK_H
#define MLXFAST_ENGINE_TRANSFORM_REPACK_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "engine/model/dflash_config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a repack came from, as both files record it. */
struct repack_record {
    const char *repo, *revision;
    const char *sha256;       /* of the source's model.safetensors */
    const char *converted_at; /* 2026-07-27T04:23:30Z */
};

/* A source whose digest is known, with the record that its published repack carries. */
struct repack_published {
    struct repack_record record; /* converted_at NULL: no repack of it was published */
    const char *sha256;          /* of the repack's model.safetensors, or NULL */
    const char *config_sha256;   /* of its config.json, or NULL */
};
/* NULL: this source is not known. */
const struct repack_published *repack_find_published(const char *source_sha256);

/* The source's config with block_size and num_target_layers at the top, where the engine reads
 * them, whichever of the two places they came from. Checked by dflash_config_parse and by what only
 * a source says (its architecture, causal). Errors: CONFIG-INVALID. *flat: json_decref. */
bool repack_read_config(struct arena *a, const json_t *source, const char *file, json_t **flat,
                        struct dflash_config *out, struct error *err);

struct repack_tensor {
    const char *name;
    int rank;
    int64_t shape[2];
    uint64_t offset, bytes; /* in the payload; two bytes for each value */
    const char *from;       /* the source's tensor */
    uint64_t skip;          /* bytes of it that come before */
};
struct repack_plan {
    struct repack_tensor *tensors; /* sorted by name, as they lie in the payload */
    size_t count;
    uint64_t payload; /* bytes */
};
void repack_make_plan(struct arena *a, const struct dflash_config *c, struct repack_plan *out);

/* The length and the header of model.safetensors: compact JSON in the payload's order, then
 * __metadata__; no padding. */
void repack_write_header(const struct repack_plan *plan, const struct repack_record *record,
                         struct buffer *out);
/* config.json whole: the keys in the order of dflash.md section 1, two spaces, a final newline.
 * Numbers keep the form of an integer or a real. */
void repack_write_config(const json_t *flat, const struct repack_record *record,
                         struct buffer *out);

#endif
