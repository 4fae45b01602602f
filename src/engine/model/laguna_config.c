/* config.json of a Laguna model to plain sizes; the rules are those of laguna.md section 2. */
#include "engine/model/laguna_config.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/formats.h"
#include "engine/model/config_reader.h"
#include "engine/model/laguna_quantization.h"

#include <math.h>
#include <string.h>

static const int64_t MAX_POSITIONS = INT32_MAX;

/* An absent or null switch is fine, and so is the one value that the model code implements. */
static bool require_switch(const struct config_reader *r, const char *key, bool value)
{
    bool found = value;
    if (config_given(r, key) && !config_bool(r, key, &found))
        return false;
    return found == value || config_refuse(r, key, "this setting is not implemented");
}

static bool require_text(const struct config_reader *r, const char *key, const char *value)
{
    const char *found;
    if (!json_get_string(&r->view, key, &found, r->err))
        return config_renamed(r->err);
    return strcmp(found, value) == 0 || config_refuse(r, key, "this setting is not implemented");
}

static bool read_list(const struct config_reader *r, const char *key, int length,
                      const json_t **out)
{
    if (!json_get_array(&r->view, key, out, r->err))
        return config_renamed(r->err);
    return json_array_size(*out) == (size_t)length ||
           config_refuse(r, key, "the list must have one entry for each layer");
}

/* A per-layer list of two possible words: second[i] tells which. */
static bool read_words(const struct config_reader *r, const char *key, int length,
                       const char *word_false, const char *word_true, bool *second)
{
    const json_t *list;
    if (!read_list(r, key, length, &list))
        return false;
    for (int i = 0; i < length; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!word || (strcmp(word, word_false) != 0 && strcmp(word, word_true) != 0)) {
            struct buffer field = {0};
            buffer_printf(&field, "%s[%d]", key, i);
            error_set(r->err, "CONFIG-INVALID", "must be \"%s\" or \"%s\"", word_false, word_true);
            error_at(r->err, r->view.file, field.data, word ? word : "(not a string)");
            buffer_free(&field);
            return false;
        }
        second[i] = strcmp(word, word_true) == 0;
    }
    return true;
}

/* Settings that would change the arithmetic: only the implemented value passes. */
static bool check_switches(const struct config_reader *r)
{
    static const char *const must_be_absent[] = {"qkv_bias", "moe_router_logit_softcapping"};
    if (!require_text(r, "model_type", "laguna"))
        return false;
    for (size_t i = 0; i < sizeof must_be_absent / sizeof *must_be_absent; i++)
        if (config_given(r, must_be_absent[i]))
            return config_refuse(r, must_be_absent[i],
                                 "must be absent or null, whatever its value");
    if (config_given(r, "hidden_act") && !require_text(r, "hidden_act", "silu"))
        return false;
    if (!json_is_true(json_object_get(r->view.object, "gating")) &&
        !require_text(r, "gating", "per-head")) /* true means the same in transformers */
        return false;
    bool tied;
    if (!config_bool(r, "tie_word_embeddings", &tied))
        return false;
    if (tied)
        return config_refuse(r, "tie_word_embeddings", "this setting is not implemented");
    return require_switch(r, "attention_bias", false) &&
           require_switch(r, "moe_apply_router_weight_on_input", false);
}

static bool check_gating_types(const struct config_reader *r, int layers)
{
    const json_t *list;
    if (!config_given(r, "gating_types"))
        return true;
    if (!read_list(r, "gating_types", layers, &list))
        return false;
    for (int i = 0; i < layers; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!word || strcmp(word, "per_head") != 0)
            return config_refuse(r, "gating_types", "every entry must be \"per_head\"");
    }
    return true;
}

static bool read_sizes(const struct config_reader *r, struct laguna_config *c)
{
    if (!config_int(r, "vocab_size", 1, LAGUNA_MAX_SIZE, &c->vocab) ||
        !config_int(r, "hidden_size", 1, LAGUNA_MAX_SIZE, &c->hidden) ||
        !config_int(r, "num_hidden_layers", 1, LAGUNA_MAX_LAYERS, &c->layer_count) ||
        !config_int(r, "head_dim", 2, LAGUNA_MAX_SIZE, &c->head_dim) ||
        !config_int(r, "num_key_value_heads", 1, LAGUNA_MAX_SIZE, &c->kv_heads) ||
        !config_int64(r, "max_position_embeddings", 1, MAX_POSITIONS, &c->max_positions) ||
        !config_positive(r, "rms_norm_eps", &c->eps))
        return false;
    if (c->head_dim % 2 != 0)
        return config_refuse(r, "head_dim", "must be even");
    if (c->eps >= 1)
        return config_refuse(r, "rms_norm_eps", "must be below 1");
    if ((int64_t)c->kv_heads * c->head_dim > LAGUNA_MAX_SIZE)
        return config_refuse(r, "num_key_value_heads", "heads times head_dim is above 2^20");
    return true;
}

static bool read_heads(struct arena *a, const struct config_reader *r, struct laguna_config *c)
{
    const char *key = "num_attention_heads_per_layer";
    int64_t *list = NULL;
    size_t count = 0;
    int shared = 0;
    const bool per_layer = config_given(r, key);
    if ((!per_layer || config_given(r, "num_attention_heads")) &&
        !config_int(r, "num_attention_heads", 1, LAGUNA_MAX_SIZE, &shared))
        return false;
    if (per_layer &&
        !json_get_int64_array(a, &r->view, key, 1, LAGUNA_MAX_SIZE, &list, &count, r->err))
        return config_renamed(r->err);
    if (per_layer && count != (size_t)c->layer_count)
        return config_refuse(r, key, "the list must have one entry for each layer");
    for (int i = 0; i < c->layer_count; i++) {
        const int64_t heads = per_layer ? list[i] : shared;
        const char *from = per_layer ? key : "num_attention_heads";
        if (heads % c->kv_heads != 0)
            return config_refuse(r, from, "query heads must be a multiple of num_key_value_heads");
        if (heads * c->head_dim > LAGUNA_MAX_SIZE)
            return config_refuse(r, from, "heads times head_dim is above 2^20");
        c->layers[i].heads = (int)heads;
    }
    return true;
}

static bool read_layer_types(struct arena *a, const struct config_reader *r,
                             struct laguna_config *c)
{
    bool *sliding = arena_array(a, (size_t)c->layer_count, sizeof *sliding), any = false;
    if (!read_words(r, "layer_types", c->layer_count, "full_attention", "sliding_attention",
                    sliding))
        return false;
    for (int i = 0; i < c->layer_count; i++) {
        c->layers[i].attention = sliding[i] ? LAGUNA_SLIDING_ATTENTION : LAGUNA_FULL_ATTENTION;
        any |= sliding[i];
    }
    int window = 0;
    if ((any || config_given(r, "sliding_window")) &&
        !config_int(r, "sliding_window", 1, LAGUNA_MAX_SIZE, &window))
        return false;
    c->sliding_window = any ? window : 0;
    return true;
}

/* mlp_layer_types, or else mlp_only_layers with decoder_sparse_step; both must agree if both are
 * there. */
static bool read_mlp_types(struct arena *a, const struct config_reader *r, struct laguna_config *c)
{
    const int n = c->layer_count;
    bool *types = arena_array(a, (size_t)n, sizeof *types);
    bool *rule = arena_array(a, (size_t)n, sizeof *rule);
    const bool has_types = config_given(r, "mlp_layer_types"),
               has_rule = config_given(r, "mlp_only_layers");
    if (!has_types && !has_rule)
        return config_refuse(r, "mlp_layer_types",
                             "neither mlp_layer_types nor mlp_only_layers is there");
    if (has_types && !read_words(r, "mlp_layer_types", n, "dense", "sparse", types))
        return false;
    int step = 1;
    if (config_given(r, "decoder_sparse_step") &&
        !config_int(r, "decoder_sparse_step", 1, LAGUNA_MAX_LAYERS, &step))
        return false;
    if (has_rule) {
        int64_t *dense;
        size_t count;
        if (!json_get_int64_array(a, &r->view, "mlp_only_layers", 0, n - 1, &dense, &count, r->err))
            return config_renamed(r->err);
        for (int i = 0; i < n; i++)
            rule[i] = (i + 1) % step == 0;
        for (size_t i = 0; i < count; i++)
            rule[dense[i]] = false;
        if (has_types && memcmp(types, rule, (size_t)n * sizeof *types) != 0)
            return config_refuse(r, "mlp_only_layers", "mlp_layer_types says otherwise");
    } else if (step != 1) {
        return config_refuse(r, "decoder_sparse_step", "must be 1 where mlp_only_layers is absent");
    }
    for (int i = 0; i < n; i++)
        c->layers[i].sparse = has_types ? types[i] : rule[i];
    return true;
}

/* An input width of an NVFP4 matrix: whole groups of 16. */
static bool check_groups(const struct config_reader *r, const char *key, int width)
{
    return width % NVFP4_GROUP == 0 || config_refuse(r, key, "must be a multiple of 16 (NVFP4)");
}

static bool read_mlp(const struct config_reader *r, struct laguna_config *c)
{
    bool dense = false, sparse = false;
    for (int i = 0; i < c->layer_count; i++) {
        dense |= !c->layers[i].sparse;
        sparse |= c->layers[i].sparse;
    }
    if ((dense || config_given(r, "intermediate_size")) &&
        !config_int(r, "intermediate_size", 1, LAGUNA_MAX_SIZE, &c->dense_width))
        return false;
    if (!sparse)
        return true;
    if (!config_int(r, "num_experts", 1, LAGUNA_MAX_SIZE, &c->experts) ||
        !config_int(r, "num_experts_per_tok", 1, LAGUNA_MAX_SIZE, &c->top_k) ||
        !config_int(r, "moe_intermediate_size", 1, LAGUNA_MAX_SIZE, &c->expert_width) ||
        !config_int(r, "shared_expert_intermediate_size", 0, LAGUNA_MAX_SIZE, &c->shared_width) ||
        !config_positive(r, "moe_routed_scaling_factor", &c->routed_scale))
        return false;
    c->normalize_top_k = true;
    if (config_given(r, "norm_topk_prob") && !config_bool(r, "norm_topk_prob", &c->normalize_top_k))
        return false;
    if (c->top_k > c->experts)
        return config_refuse(r, "num_experts_per_tok", "must not exceed num_experts");
    return check_groups(r, "hidden_size", c->hidden) &&
           check_groups(r, "moe_intermediate_size", c->expert_width) &&
           check_groups(r, "shared_expert_intermediate_size", c->shared_width);
}

static bool read_yarn(const struct config_reader *r, struct laguna_rope *rope)
{
    /* These would change the frequencies or the magnitude in ways that no Laguna uses. */
    static const char *const unknown[] = {"mscale", "mscale_all_dim"};
    for (size_t i = 0; i < 2; i++)
        if (config_given(r, unknown[i]))
            return config_refuse(r, unknown[i], "this setting is not implemented");
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->attention_factor = 1;
    rope->has_attention_factor = config_given(r, "attention_factor");
    if (!require_switch(r, "truncate", true) || !config_positive(r, "factor", &rope->factor) ||
        !config_int64(r, "original_max_position_embeddings", 1, MAX_POSITIONS,
                      &rope->original_max_positions) ||
        (config_given(r, "beta_fast") && !config_positive(r, "beta_fast", &rope->beta_fast)) ||
        (config_given(r, "beta_slow") && !config_positive(r, "beta_slow", &rope->beta_slow)) ||
        (rope->has_attention_factor &&
         !config_positive(r, "attention_factor", &rope->attention_factor)))
        return false;
    if (rope->factor < 1)
        return config_refuse(r, "factor", "must be at least 1");
    if (rope->beta_fast < rope->beta_slow)
        return config_refuse(r, "beta_fast", "must not be below beta_slow");
    return true;
}

static bool read_rope(const struct config_reader *r, const char *key, int head_dim,
                      struct laguna_rope *rope)
{
    const json_t *object;
    if (!json_get_object(&r->view, key, &object, r->err))
        return config_renamed(r->err);
    struct buffer path = {0};
    buffer_printf(&path, "%s.%s", r->view.path, key);
    const struct config_reader k = {{object, r->view.file, path.data}, r->err};
    const char *type = json_string_value(json_object_get(object, "rope_type"));
    bool ok = true;
    rope->partial_rotary_factor = 1;
    if (!type || (strcmp(type, "default") != 0 && strcmp(type, "yarn") != 0))
        ok = config_refuse(&k, "rope_type", "must be \"default\" or \"yarn\"");
    else
        rope->type = strcmp(type, "yarn") == 0 ? LAGUNA_ROPE_YARN : LAGUNA_ROPE_DEFAULT;
    if (ok)
        ok = config_positive(&k, "rope_theta", &rope->theta);
    if (ok && config_given(&k, "partial_rotary_factor"))
        ok = config_positive(&k, "partial_rotary_factor", &rope->partial_rotary_factor);
    if (ok && rope->theta <= 1)
        ok = config_refuse(&k, "rope_theta", "must be above 1");
    if (ok && rope->partial_rotary_factor > 1)
        ok = config_refuse(&k, "partial_rotary_factor", "must not be above 1");
    if (ok) {
        rope->dim = (int)(head_dim * rope->partial_rotary_factor);
        if (rope->dim < 2 || rope->dim % 2 != 0)
            ok = config_refuse(&k, "partial_rotary_factor",
                               "head_dim times this must be an even number, at least 2");
    }
    if (ok && rope->type == LAGUNA_ROPE_YARN)
        ok = read_yarn(&k, rope);
    buffer_free(&path);
    return ok;
}

static bool read_ropes(const struct config_reader *r, struct laguna_config *c)
{
    static const char *const names[2] = {"full_attention", "sliding_attention"};
    const json_t *object;
    if (!json_get_object(&r->view, "rope_parameters", &object, r->err))
        return config_renamed(r->err);
    const struct config_reader k = {{object, r->view.file, "rope_parameters"}, r->err};
    for (int kind = 0; kind < 2; kind++) {
        bool used = false;
        for (int i = 0; i < c->layer_count; i++)
            used |= (int)c->layers[i].attention == kind;
        if (used && !read_rope(&k, names[kind], c->head_dim, &c->rope[kind]))
            return false;
    }
    return true;
}

static bool add_stop(struct laguna_config *c, const struct config_reader *r, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= c->vocab)
        return config_refuse(r, "eos_token_id",
                             "must be one token id of the vocabulary, or several");
    const int32_t id = (int32_t)json_integer_value(value);
    for (int i = 0; i < c->eos_count; i++)
        if (c->eos[i] == id)
            return true;
    if (c->eos_count == LAGUNA_MAX_EOS)
        return config_refuse(r, "eos_token_id", "the stop set has more than 16 ids");
    c->eos[c->eos_count++] = id;
    return true;
}

static bool add_stops(struct laguna_config *c, const struct config_reader *r)
{
    const json_t *value = json_object_get(r->view.object, "eos_token_id");
    if (!json_is_array(value))
        return add_stop(c, r, value);
    if (json_array_size(value) == 0)
        return config_refuse(r, "eos_token_id", "the list is empty");
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_stop(c, r, json_array_get(value, i)))
            return false;
    return true;
}

static bool read_tokens(const struct config_reader *r, struct laguna_config *c)
{
    c->bos = c->pad = -1;
    int bos = -1, pad = -1;
    if ((config_given(r, "bos_token_id") &&
         !config_int(r, "bos_token_id", 0, c->vocab - 1, &bos)) ||
        (config_given(r, "pad_token_id") && !config_int(r, "pad_token_id", 0, c->vocab - 1, &pad)))
        return false;
    c->bos = bos;
    c->pad = pad;
    return add_stops(c, r);
}

/* Weights in all, against 2^60 bytes, so that no sum of sizes overflows. */
static bool check_total(const struct config_reader *r, const struct laguna_config *c)
{
    const __int128 sparse = (__int128)c->experts * c->expert_width * c->hidden * 3 * 5 / 8 +
                            (__int128)c->experts * (2 * c->hidden + 4);
    const __int128 dense = (__int128)c->dense_width * c->hidden * 3 * 2;
    const __int128 rest = (__int128)8 * LAGUNA_MAX_SIZE * c->hidden * 2; /* attention, shared */
    const __int128 total = (sparse + dense + rest) * (c->layer_count + 1);
    return total < (__int128)1 << 60 ||
           config_refuse(r, "num_hidden_layers", "the model is larger than 2^60 bytes");
}

bool laguna_config_parse(struct arena *a, const json_t *config, const char *file,
                         struct laguna_config *out, struct error *err)
{
    const struct config_reader r = {{config, file, ""}, err};
    struct laguna_config c = {0};
    if (!json_is_object(config)) {
        error_set(err, "CONFIG-INVALID", "the configuration is not a JSON object");
        return error_at(err, file, NULL, NULL);
    }
    if (!check_switches(&r) || !read_sizes(&r, &c))
        return false;
    c.layers = arena_array(a, (size_t)c.layer_count, sizeof *c.layers);
    if (!check_gating_types(&r, c.layer_count) || !read_heads(a, &r, &c) ||
        !read_layer_types(a, &r, &c) || !read_mlp_types(a, &r, &c) || !read_mlp(&r, &c) ||
        !read_ropes(&r, &c) || !laguna_quantization_read(&r, &c) || !read_tokens(&r, &c) ||
        !check_total(&r, &c))
        return false;
    *out = c;
    return true;
}

bool laguna_config_read_generation(const char *folder, struct laguna_config *c, struct error *err)
{
    struct arena scratch = {0};
    const char *path = path_join(&scratch, folder, "generation_config.json");
    bool ok = true;
    if (file_exists(path)) {
        json_t *root = json_read_file(path, 1 << 20, JSON_DEPTH_DEFAULT, err);
        const struct config_reader r = {{root, path, ""}, err};
        if (!root) {
            ok = config_renamed(err);
        } else if (!json_is_object(root)) {
            error_set(err, "CONFIG-INVALID", "the file is not a JSON object");
            ok = error_at(err, path, NULL, NULL);
        } else if (config_given(&r, "eos_token_id")) {
            ok = add_stops(c, &r);
        }
        json_decref(root);
    }
    arena_free(&scratch);
    return ok;
}
