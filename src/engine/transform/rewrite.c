#include "engine/transform/rewrite.h"

#include "base/json.h"
#include "engine/checkpoint/formats.h"

json_t *rewrite_config(const json_t *source)
{
    json_t *config = json_deep_copy(source);
    json_object_del(config, "vision_config");
    return config;
}

void rewrite_config_add_int8(json_t *config, const char *module)
{
    static const char *const blocks[] = {"quantization", "quantization_config"};
    for (size_t i = 0; i < 2; i++) {
        json_t *block = json_object_get(config, blocks[i]);
        if (json_is_object(block))
            json_object_set_new(block, module,
                                json_pack("{s:i, s:i, s:s}", "group_size", AFFINE_GROUP, "bits",
                                          AFFINE_BITS, "mode", "affine"));
    }
}

void rewrite_text(const json_t *value, struct buffer *out)
{
    json_write_canonical(value, 2, out);
    buffer_char(out, '\n');
}

bool rewrite_index(const char *text, size_t length, const char *path, json_t *map, uint64_t bytes,
                   struct buffer *out, struct error *err)
{
    json_t *index = json_parse_strict(text, length, JSON_DEPTH_DEFAULT, path, err);
    if (!index)
        return false;
    json_t *metadata = json_object_get(index, "metadata");
    if (!json_is_object(index) || (metadata && !json_is_object(metadata))) {
        /* It was opened before, but a file may change meanwhile. */
        error_set(err, "CHECKPOINT-INDEX-MISMATCH", "not an object, or metadata is none");
        error_at(err, path, NULL, NULL);
        json_decref(index);
        return false;
    }
    if (!metadata) {
        metadata = json_object();
        json_object_set_new(index, "metadata", metadata);
    }
    json_object_set_new(metadata, "total_size", json_integer((json_int_t)bytes));
    json_object_set(index, "weight_map", map);
    rewrite_text(index, out);
    json_decref(index);
    return true;
}
