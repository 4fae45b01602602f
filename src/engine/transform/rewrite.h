/* config.json and the index of a result, made of those of its source: functions of text alone. */
#ifndef MLXFAST_ENGINE_TRANSFORM_REWRITE_H
#define MLXFAST_ENGINE_TRANSFORM_REWRITE_H

#include "base/buffer.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A copy that the caller owns, without what is not of text. */
json_t *rewrite_config(const json_t *source);
/* From now on the module (its tensor's name without ".weight") is affine INT8, wherever the config
 * says how modules are stored. */
void rewrite_config_add_int8(json_t *config, const char *module);
/* The one form in which a result's JSON is written: canonical, with a newline. */
void rewrite_text(const json_t *value, struct buffer *out);
/* The source's index, as text from path, with map (tensor: file; kept by the caller) and the bytes
 * of all tensors; what else it says of the whole stays. Errors: those of json_parse_strict,
 * CHECKPOINT-INDEX-MISMATCH. */
bool rewrite_index(const char *text, size_t length, const char *path, json_t *map, uint64_t bytes,
                   struct buffer *out, struct error *err);

#endif
