#include "engine/model/laguna_quantization.h"

#include "engine/checkpoint/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const BLOCKS[] = {"quantization", "quantization_config"};

const char *const laguna_projection_names[LAGUNA_PROJECTIONS] = {"q_proj", "k_proj", "v_proj",
                                                                 "o_proj", "g_proj"};

static bool text_is(const struct config_reader *r, const char *key, const char *value)
{
    const char *found;
    if (!json_get_string(&r->view, key, &found, r->err))
        return config_renamed(r->err);
    return strcmp(found, value) == 0 || config_refuse(r, key, "this setting is not implemented");
}

/* Of the block: a key whose format the envelope does not have (dflash-track.md section 13). */
static bool not_permitted(const struct config_reader *q, const char *key, const char *why)
{
    config_refuse(q, key, why);
    if (q->err)
        text_copy(q->err->name, sizeof q->err->name, "QUANTIZATION-NOT-PERMITTED");
    return false;
}

static bool is_format(const json_t *value, int bits, int group, const char *mode, bool may_omit)
{
    const char *key, *found = NULL;
    json_t *member;
    if (!json_is_object(value))
        return false;
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (strcmp(key, "bits") != 0 && strcmp(key, "group_size") != 0 && strcmp(key, "mode") != 0)
            return false;
    }
    const json_t *m = json_object_get(value, "mode");
    const json_t *b = json_object_get(value, "bits"), *g = json_object_get(value, "group_size");
    found = json_string_value(m);
    return json_is_integer(b) && json_integer_value(b) == bits && json_is_integer(g) &&
           json_integer_value(g) == group && (m ? found && strcmp(found, mode) == 0 : may_omit);
}

/* "model.layers.N.": the rest of the name, or NULL. N is written without leading zeros. */
static const char *layer_of(const char *name, int *layer)
{
    static const char prefix[] = "model.layers.";
    if (!text_starts(name, prefix))
        return NULL;
    const char *digits = name + sizeof prefix - 1;
    const size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 7 || digits[n] != '.' || (n > 1 && digits[0] == '0'))
        return NULL;
    *layer = (int)strtol(digits, NULL, 10);
    return digits + n + 1;
}

static int projection_of(const char *rest)
{
    static const char prefix[] = "self_attn.";
    if (text_starts(rest, prefix))
        for (int p = 0; p < LAGUNA_PROJECTIONS; p++)
            if (strcmp(rest + sizeof prefix - 1, laguna_projection_names[p]) == 0)
                return p;
    return -1;
}

/* Repeats of the block's own format, which some tools write. */
static bool is_nvfp4_module(const char *rest)
{
    static const char *const names[] = {"mlp.switch_mlp.gate_proj",  "mlp.switch_mlp.up_proj",
                                        "mlp.switch_mlp.down_proj",  "mlp.shared_expert.gate_proj",
                                        "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(rest, names[i]) == 0)
            return true;
    return false;
}

static bool read_entry(const struct config_reader *q, const struct laguna_config *c,
                       const char *name, const json_t *value, unsigned *int8)
{
    int layer = 0;
    const char *rest = layer_of(name, &layer);
    if (rest && layer >= c->layer_count)
        return config_refuse(q, name, "the model has no such layer");
    const int p = rest ? projection_of(rest) : -1;
    if (p < 0) {
        if (rest && is_nvfp4_module(rest) && is_format(value, 4, NVFP4_GROUP, "nvfp4", false))
            return true;
        return not_permitted(q, name,
                             "only q, k, v, o and g of attention may have a format of their own");
    }
    if (!is_format(value, AFFINE_BITS, AFFINE_GROUP, "affine", true))
        return not_permitted(q, name,
                             "attention may be bf16, or affine with 8 bits in groups of 32");
    const int in = p == LAGUNA_O ? c->layers[layer].heads * c->head_dim : c->hidden;
    if (in % AFFINE_GROUP != 0)
        return config_refuse(q, name, "its inputs are no multiple of 32");
    int8[layer] |= 1u << p;
    return true;
}

static bool read_block(const struct config_reader *r, const char *block_name,
                       const struct laguna_config *c, unsigned *int8)
{
    const json_t *block;
    int bits, group;
    if (!json_get_object(&r->view, block_name, &block, r->err))
        return config_renamed(r->err);
    const struct config_reader q = {{block, r->view.file, block_name}, r->err};
    if (!config_int(&q, "bits", 4, 4, &bits) ||
        !config_int(&q, "group_size", NVFP4_GROUP, NVFP4_GROUP, &group) ||
        !text_is(&q, "mode", "nvfp4"))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)block, key, value)
    {
        if (strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0)
            continue;
        if (!json_is_object(value))
            return config_refuse(&q, key, "unknown key");
        if (!read_entry(&q, c, key, value, int8))
            return false;
    }
    return true;
}

bool laguna_quantization_read(const struct config_reader *r, struct laguna_config *c)
{
    const size_t layers = (size_t)c->layer_count;
    unsigned *int8[2] = {memory_alloc(layers * sizeof **int8),
                         memory_alloc(layers * sizeof **int8)};
    bool given[2], ok = true;
    for (int i = 0; i < 2; i++) {
        given[i] = config_given(r, BLOCKS[i]);
        ok = ok && (!given[i] || read_block(r, BLOCKS[i], c, int8[i]));
    }
    if (ok && !given[0] && !given[1])
        ok = config_refuse(r, BLOCKS[0], "the field is missing");
    if (ok && given[0] && given[1] && memcmp(int8[0], int8[1], layers * sizeof **int8) != 0) {
        error_set(r->err, "CONFIG-INVALID", "quantization names other modules");
        ok = error_at(r->err, r->view.file, BLOCKS[1], NULL);
    }
    for (size_t i = 0; ok && i < layers; i++)
        c->layers[i].int8 = int8[given[0] ? 0 : 1][i];
    free(int8[0]);
    free(int8[1]);
    return ok;
}
