/* A config.json and an index, after a line "----", on their way through mlxfast transform: what is
 * kept stays as it is, the result is in its one form and means the same model. */
#include "base/json.h"
#include "engine/checkpoint/formats.h"
#include "engine/model/laguna_config.h"
#include "engine/transform/rewrite.h"

#include <stdlib.h>
#include <string.h>

/* The fuzz library holds checkpoint and text only. */
#include "engine/model/config_reader.c"
#include "engine/model/laguna_config.c"
#include "engine/model/laguna_quantization.c"
#include "engine/model/laguna_tensors.c"
#include "engine/transform/rewrite.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static json_t *parse(const char *text, size_t length, struct error *err)
{
    return json_parse_strict(text, length, JSON_DEPTH_DEFAULT, "fuzz", err);
}

/* Every key of one that is not left out is in the other, as it was. */
static void same_but_for(json_t *from, const json_t *to, const char *out1, const char *out2)
{
    const char *key;
    json_t *value;
    json_object_foreach(from, key, value)
        require(strcmp(key, out1) == 0 || strcmp(key, out2) == 0 ||
                json_equal(value, json_object_get(to, key)));
}

static void same_text(const struct buffer *a, const struct buffer *b)
{
    require(a->length == b->length && memcmp(a->data, b->data, a->length) == 0);
}

static void same_model(json_t *source, json_t *result)
{
    struct arena a = {0};
    struct error err = {0};
    struct laguna_config before, after;
    if (laguna_config_parse(&a, source, "fuzz", &before, &err) && before.layer_count <= 64) {
        struct inventory x = {.arena = &a}, y = {.arena = &a};
        require(laguna_config_parse(&a, result, "fuzz", &after, &err));
        laguna_config_inventory(&before, &x);
        laguna_config_inventory(&after, &y);
        require(x.count == y.count);
        for (size_t i = 0; i < x.count; i++)
            require(strcmp(x.items[i].name, y.items[i].name) == 0 &&
                    x.items[i].dtype == y.items[i].dtype && x.items[i].rank == y.items[i].rank &&
                    memcmp(x.items[i].shape, y.items[i].shape, sizeof x.items[i].shape) == 0);
    }
    arena_free(&a);
}

static void config(const char *text, size_t length)
{
    struct error err = {0};
    struct buffer once = {0}, twice = {0};
    json_t *source = parse(text, length, &err);
    if (!json_is_object(source)) {
        json_decref(source);
        return;
    }
    json_t *made = rewrite_config(source);
    same_but_for(source, made, "vision_config", "");
    require(!json_object_get(made, "vision_config"));
    rewrite_text(made, &once);
    json_t *back = parse(once.data, once.length, &err);
    require(json_equal(made, back));
    rewrite_text(back, &twice);
    same_text(&once, &twice);
    same_model(source, back);

    rewrite_config_add_int8(made, "model.layers.0.self_attn.q_proj");
    same_but_for(back, made, "quantization", "quantization_config");
    buffer_clear(&once);
    rewrite_text(made, &once);
    json_t *again = parse(once.data, once.length, &err);
    require(json_equal(made, again));
    json_decref(source);
    json_decref(made);
    json_decref(back);
    json_decref(again);
    buffer_free(&once);
    buffer_free(&twice);
}

static void index_of(const char *text, size_t length)
{
    struct error err = {0};
    struct buffer once = {0}, twice = {0};
    json_t *map = json_pack("{s:s, s:s}", "model.embed_tokens.weight", "a.safetensors",
                            "lm_head.weight", "b.safetensors");
    const uint64_t bytes = (uint64_t)1 << 40;
    if (rewrite_index(text, length, "fuzz", map, bytes, &once, &err)) {
        json_t *before = parse(text, length, &err), *after = parse(once.data, once.length, &err);
        require(json_is_object(after) && json_equal(json_object_get(after, "weight_map"), map));
        same_but_for(before, after, "metadata", "weight_map");
        json_t *metadata = json_object_get(after, "metadata");
        require(json_integer_value(json_object_get(metadata, "total_size")) == (json_int_t)bytes);
        same_but_for(json_object_get(before, "metadata"), metadata, "total_size", "");
        require(rewrite_index(once.data, once.length, "fuzz", map, bytes, &twice, &err));
        same_text(&once, &twice);
        json_decref(before);
        json_decref(after);
    } else {
        require(err.name[0] && err.message[0] && once.length == 0);
    }
    json_decref(map);
    buffer_free(&once);
    buffer_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char line[] = "\n----\n";
    const char *text = (const char *)data;
    const char *cut = size ? memmem(text, size, line, sizeof line - 1) : NULL;
    const size_t first = cut ? (size_t)(cut - text) : size;
    config(text, first);
    if (cut)
        index_of(cut + sizeof line - 1, size - first - (sizeof line - 1));
    return 0;
}
