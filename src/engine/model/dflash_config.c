/* config.json of a drafter to plain sizes, and the tensors that they imply (dflash.md sections 1
 * and 2). */
#include "engine/model/dflash_config.h"

#include "base/json.h"
#include "engine/model/config_reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool text_is(const struct config_reader *r, const char *key, const char *value)
{
    const char *found = json_string_value(json_object_get(r->view.object, key));
    return (found && strcmp(found, value) == 0) ||
           config_refuse(r, key, "this setting is not implemented");
}

/* Settings that would change the arithmetic: absent, or the one that is implemented. */
static bool check_settings(const struct config_reader *r)
{
    static const char *const absent[] = {"rope_scaling", "final_logit_softcapping"};
    if (config_given(r, "model_type") && !text_is(r, "model_type", "laguna"))
        return false;
    if (config_given(r, "decoder_layer_type") && !text_is(r, "decoder_layer_type", "laguna_xs"))
        return false;
    if (config_given(r, "gating") && !text_is(r, "gating", "per-head"))
        return false;
    if (config_given(r, "hidden_act") && !text_is(r, "hidden_act", "silu"))
        return false;
    if (config_given(r, "causal") && !json_is_true(json_object_get(r->view.object, "causal")))
        return config_refuse(r, "causal", "this setting is not implemented");
    if (config_given(r, "attention_bias") &&
        !json_is_false(json_object_get(r->view.object, "attention_bias")))
        return config_refuse(r, "attention_bias", "this setting is not implemented");
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (config_given(r, absent[i]))
            return config_refuse(r, absent[i], "must be absent or null, whatever its value");
    return true;
}

static bool read_sizes(const struct config_reader *r, struct dflash_config *c)
{
    if (!config_int(r, "vocab_size", 1, DFLASH_MAX_SIZE, &c->vocab) ||
        !config_int(r, "hidden_size", 1, DFLASH_MAX_SIZE, &c->hidden) ||
        !config_int(r, "num_hidden_layers", 1, DFLASH_MAX_LAYERS, &c->layer_count) ||
        !config_int(r, "intermediate_size", 1, DFLASH_MAX_SIZE, &c->width) ||
        !config_int(r, "num_attention_heads", 1, DFLASH_MAX_SIZE, &c->heads) ||
        !config_int(r, "num_key_value_heads", 1, DFLASH_MAX_SIZE, &c->kv_heads) ||
        !config_int(r, "head_dim", 2, DFLASH_MAX_SIZE, &c->head_dim) ||
        !config_int(r, "block_size", 2, DFLASH_MAX_BLOCK, &c->block) ||
        !config_int(r, "num_target_layers", 1, DFLASH_MAX_SIZE, &c->target_layers) ||
        !config_positive(r, "rms_norm_eps", &c->eps) ||
        !config_positive(r, "rope_theta", &c->theta))
        return false;
    if (!json_get_int64(&r->view, "max_position_embeddings", 1, INT32_MAX, &c->max_positions,
                        r->err))
        return config_renamed(r->err);
    int draft_vocab = c->vocab;
    if (config_given(r, "draft_vocab_size") &&
        !config_int(r, "draft_vocab_size", 1, DFLASH_MAX_SIZE, &draft_vocab))
        return false;
    if (draft_vocab != c->vocab)
        return config_refuse(r, "draft_vocab_size", "must be vocab_size");
    if (c->head_dim % 2 != 0)
        return config_refuse(r, "head_dim", "must be even");
    if (c->eps >= 1)
        return config_refuse(r, "rms_norm_eps", "must be below 1");
    if (c->heads % c->kv_heads != 0)
        return config_refuse(r, "num_attention_heads", "must be a multiple of num_key_value_heads");
    if ((int64_t)c->heads * c->head_dim > DFLASH_MAX_SIZE)
        return config_refuse(r, "num_attention_heads", "heads times head_dim is above 2^20");
    return true;
}

static bool read_layers(const struct config_reader *r, struct dflash_config *c)
{
    const json_t *list;
    if (!json_get_array(&r->view, "layer_types", &list, r->err))
        return config_renamed(r->err);
    if (json_array_size(list) != (size_t)c->layer_count)
        return config_refuse(r, "layer_types", "the list must have one entry for each layer");
    for (int i = 0; i < c->layer_count; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!word || strcmp(word, "sliding_attention") != 0)
            return config_refuse(r, "layer_types", "every entry must be \"sliding_attention\"");
    }
    return config_int(r, "sliding_window", 2, DFLASH_MAX_SIZE, &c->window);
}

static bool read_taps(struct arena *a, const struct config_reader *root, struct dflash_config *c)
{
    const json_t *block;
    int64_t *list;
    size_t count;
    int mask;
    if (!json_get_object(&root->view, "dflash_config", &block, root->err))
        return config_renamed(root->err);
    const struct config_reader r = {{block, root->view.file, "dflash_config"}, root->err};
    if (!config_int(&r, "mask_token_id", 0, c->vocab - 1, &mask))
        return false;
    c->mask = mask;
    if (!json_get_int64_array(a, &r.view, "target_layer_ids", 0, c->target_layers - 1, &list,
                              &count, r.err))
        return config_renamed(r.err);
    if (count < 1 || count > DFLASH_MAX_TAPS || (int64_t)count * c->hidden > DFLASH_MAX_SIZE)
        return config_refuse(&r, "target_layer_ids",
                             "must name from 1 to 64 layers, 2^20 values in all");
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            if (list[j] == list[i])
                return config_refuse(&r, "target_layer_ids", "a layer is named twice");
        c->taps[i] = (int)list[i];
    }
    c->tap_count = (int)count;
    return true;
}

bool dflash_config_parse(struct arena *a, const json_t *config, const char *file,
                         struct dflash_config *out, struct error *err)
{
    const struct config_reader r = {{config, file, ""}, err};
    *out = (struct dflash_config){0};
    return check_settings(&r) && read_sizes(&r, out) && read_layers(&r, out) &&
           read_taps(a, &r, out);
}

bool dflash_config_match(const struct dflash_config *c, const struct dflash_target_sizes *target,
                         const char *file, struct error *err)
{
    const struct {
        const char *key;
        int mine, its;
    } sizes[] = {{"hidden_size", c->hidden, target->hidden},
                 {"vocab_size", c->vocab, target->vocab},
                 {"num_target_layers", c->target_layers, target->layers}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].mine != sizes[i].its) {
            char value[32];
            snprintf(value, sizeof value, "%d", sizes[i].mine);
            error_set(err, "CONFIG-INVALID", "the drafter is for another model: the target has %d",
                      sizes[i].its);
            return error_at(err, file, sizes[i].key, value);
        }
    return true;
}

static void add(struct inventory *inventory, const char *prefix, const char *name, int rank,
                int64_t a, int64_t b)
{
    char full[96];
    const int64_t shape[2] = {a, b};
    snprintf(full, sizeof full, "%s%s", prefix, name);
    inventory_add(inventory, full, DTYPE_BF16, rank, shape);
}

void dflash_config_inventory(const struct dflash_config *c, enum dflash_layout layout,
                             struct inventory *inventory)
{
    const int64_t hidden = c->hidden;
    const int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    char prefix[48];
    for (int i = 0; i < c->layer_count; i++) {
        snprintf(prefix, sizeof prefix, "layers.%d.", i);
        add(inventory, prefix, "input_layernorm.weight", 1, hidden, 0);
        add(inventory, prefix, "mlp.down_proj.weight", 2, hidden, c->width);
        add(inventory, prefix, "mlp.gate_proj.weight", 2, c->width, hidden);
        add(inventory, prefix, "mlp.up_proj.weight", 2, c->width, hidden);
        add(inventory, prefix, "post_attention_layernorm.weight", 1, hidden, 0);
        add(inventory, prefix, "self_attn.g_proj.weight", 2, c->heads, hidden);
        add(inventory, prefix, "self_attn.k_norm.weight", 1, c->head_dim, 0);
        add(inventory, prefix, "self_attn.o_proj.weight", 2, hidden, q);
        add(inventory, prefix, "self_attn.q_norm.weight", 1, c->head_dim, 0);
        if (layout == DFLASH_FUSED) {
            add(inventory, prefix, "self_attn.qkv_proj.weight", 2, q + 2 * kv, hidden);
            continue;
        }
        add(inventory, prefix, "self_attn.k_proj.weight", 2, kv, hidden);
        add(inventory, prefix, "self_attn.q_proj.weight", 2, q, hidden);
        add(inventory, prefix, "self_attn.v_proj.weight", 2, kv, hidden);
    }
    for (int j = 0; j < c->tap_count; j++) {
        snprintf(prefix, sizeof prefix, "aux_hidden_norms.%d.", j);
        add(inventory, prefix, "weight", 1, hidden, 0);
    }
    add(inventory, "", "fc.weight", 2, hidden, hidden * c->tap_count);
    add(inventory, "", "hidden_norm.weight", 1, hidden, 0);
    add(inventory, "", "norm.weight", 1, hidden, 0);
}
