/* See weights_format.h. The judge's own reading of a checkpoint's headers: it shares nothing with
 * the engine's. */
#include "judge/weights_format.h"

#include "base/file.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG_MAX = 16 << 20, HEADER_MAX = 64 << 20, GROUP = 32, BITS = 8 };

struct check {
    struct arena arena;
    const struct contract *c;
    struct error *err;
    bool affine; /* the whole is: its modules have biases of their own */
};

static bool refuse(struct check *k, const char *file, const char *module, const char *what)
{
    error_set(k->err, "QUANTIZATION-NOT-PERMITTED",
              "the contract for \"%s\" does not permit weights in this format: %s", k->c->track_id,
              what);
    return error_at(k->err, file, module, NULL);
}

static bool is_projection(const char *module)
{
    static const char *const names[] = {".self_attn.q_proj", ".self_attn.k_proj",
                                        ".self_attn.v_proj", ".self_attn.o_proj",
                                        ".self_attn.g_proj"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (text_ends(module, names[i]))
            return true;
    return false;
}

static bool judge_module(struct check *k, const char *file, const char *module, bool int8)
{
    if (!is_projection(module))
        return refuse(k, file, module, "only q, k, v, o and g of attention may be another");
    if (!int8)
        return refuse(k, file, module, "attention may only be affine, 8 bits, in groups of 32");
    return k->c->attention_int8_group32 ||
           refuse(k, file, module, "quantization_envelope.attention_int8_group32 is not true");
}

static bool same_format(const json_t *a, const json_t *b, const char *key, const char *absent)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    if (!x && !y)
        return true;
    if (absent && (!x || !y)) {
        const char *text = json_string_value(x ? x : y);
        return text && strcmp(text, absent) == 0;
    }
    return x && y && json_equal(x, y);
}

static bool check_block(struct check *k, const char *file, const json_t *block)
{
    const char *mode = json_string_value(json_object_get(block, "mode")), *module;
    json_t *entry;
    k->affine = k->affine || !mode || strcmp(mode, "affine") == 0;
    json_object_foreach((json_t *)(uintptr_t)block, module, entry)
    {
        if (!json_is_object(entry) || (same_format(entry, block, "bits", NULL) &&
                                       same_format(entry, block, "group_size", NULL) &&
                                       same_format(entry, block, "mode", "affine")))
            continue;
        const char *own = json_string_value(json_object_get(entry, "mode"));
        const bool int8 = json_integer_value(json_object_get(entry, "bits")) == BITS &&
                          json_integer_value(json_object_get(entry, "group_size")) == GROUP &&
                          (!json_object_get(entry, "mode") || (own && strcmp(own, "affine") == 0));
        if (!judge_module(k, file, module, int8))
            return false;
    }
    return true;
}

static bool check_config(struct check *k, const char *file)
{
    static const char *const blocks[] = {"quantization", "quantization_config"};
    bool ok = true;
    json_t *config = json_read_file(file, CONFIG_MAX, JSON_DEPTH_DEFAULT, NULL);
    for (size_t i = 0; ok && i < 2; i++) {
        const json_t *block = json_object_get(config, blocks[i]);
        ok = !json_is_object(block) || check_block(k, file, block);
    }
    json_decref(config);
    return ok;
}

static bool has_shape(const json_t *tensor, const char *dtype, int64_t rows, int64_t columns)
{
    const char *found = json_string_value(json_object_get(tensor, "dtype"));
    const json_t *shape = json_object_get(tensor, "shape");
    return found && strcmp(found, dtype) == 0 && json_array_size(shape) == 2 &&
           json_integer_value(json_array_get(shape, 0)) == rows &&
           json_integer_value(json_array_get(shape, 1)) == columns;
}

/* M.biases beside M.scales: affine codes, of 8 bits in groups of 32 by their shapes. A shard may
 * end between the three; what is not in it is not held against it. */
static bool check_header(struct check *k, const char *file, const json_t *header)
{
    static const char suffix[] = ".biases";
    const char *name;
    json_t *biases;
    json_object_foreach((json_t *)(uintptr_t)header, name, biases)
    {
        if (!text_ends(name, suffix))
            continue;
        const char *module = arena_strndup(&k->arena, name, strlen(name) - (sizeof suffix - 1));
        const json_t *shape = json_object_get(biases, "shape");
        const int64_t rows = json_integer_value(json_array_get(shape, 0)),
                      groups = json_integer_value(json_array_get(shape, 1));
        const json_t *codes = json_object_get(header, arena_printf(&k->arena, "%s.weight", module));
        const bool int8 = groups > 0 && groups < (int64_t)1 << 40 &&
                          has_shape(biases, "BF16", rows, groups) &&
                          (!codes || has_shape(codes, "U32", rows, groups * GROUP / (32 / BITS)));
        if (!judge_module(k, file, module, int8))
            return false;
    }
    return true;
}

static bool check_shard(struct check *k, const char *file)
{
    struct file_map map;
    uint64_t length = 0;
    bool ok = true;
    if (!file_map_open(file, &map, k->err))
        return false;
    for (int i = 7; map.length > 8 && i >= 0; i--)
        length = length << 8 | map.data[i];
    if (length > 0 && length <= HEADER_MAX && length <= map.length - 8) {
        json_t *header = json_parse_strict((const char *)map.data + 8, (size_t)length,
                                           JSON_DEPTH_DEFAULT, file, NULL);
        ok = !json_is_object(header) || check_header(k, file, header);
        json_decref(header);
    }
    file_unmap(&map);
    return ok;
}

bool weights_check_format(const char *folder, const struct contract *c, struct error *err)
{
    struct error own = {0};
    struct check k = {.c = c, .err = err ? err : &own};
    char **names;
    size_t count;
    bool ok = file_list_recursive(&k.arena, folder, &names, &count, k.err) &&
              check_config(&k, path_join(&k.arena, folder, "config.json"));
    for (size_t i = 0; ok && !k.affine && i < count; i++)
        if (text_ends(names[i], ".safetensors"))
            ok = check_shard(&k, path_join(&k.arena, folder, names[i]));
    arena_free(&k.arena);
    return ok;
}

static bool other_shape(const char *path, const char *key, const char *value, const char *wanted,
                        const struct contract *c, struct error *err)
{
    error_set(err, "WEIGHTS-SHAPE-MISMATCH",
              "the weights are of another model than the contract for \"%s\" pins: %s %s",
              c->track_id, key, wanted);
    return error_at(err, path, key, value);
}

static bool same_count(const char *path, const json_t *config, const char *key, int64_t wanted,
                       const struct contract *c, struct error *err)
{
    const json_t *own = json_object_get(config, key);
    if (!own)
        own = json_object_get(json_object_get(config, "text_config"), key);
    if (!json_is_integer(own) || json_integer_value(own) == wanted)
        return true;
    char value[32], text[32];
    snprintf(value, sizeof value, "%" JSON_INTEGER_FORMAT, json_integer_value(own));
    snprintf(text, sizeof text, "%" PRId64, wanted);
    return other_shape(path, key, value, text, c, err);
}

/* A model of text inside another may be named at either place. */
static bool same_type(const char *path, const json_t *config, const char *wanted,
                      const struct contract *c, struct error *err)
{
    static const char key[] = "model_type";
    const char *top = json_string_value(json_object_get(config, key));
    const char *text =
        json_string_value(json_object_get(json_object_get(config, "text_config"), key));
    if ((!top && !text) || (top && strcmp(top, wanted) == 0) || (text && strcmp(text, wanted) == 0))
        return true;
    return other_shape(path, key, text ? text : top, wanted, c, err);
}

bool weights_check_shape(const char *folder, const struct contract *c, struct error *err)
{
    struct arena a = {0};
    const char *path = path_join(&a, folder, "config.json");
    json_t *config = json_read_file(path, CONFIG_MAX, JSON_DEPTH_DEFAULT, NULL);
    const bool ok = !c->has_model || !config ||
                    (same_type(path, config, c->golden_model_type, c, err) &&
                     same_count(path, config, "vocab_size", c->vocab_size, c, err) &&
                     same_count(path, config, "num_hidden_layers", c->num_hidden_layers, c, err));
    json_decref(config);
    arena_free(&a);
    return ok;
}
