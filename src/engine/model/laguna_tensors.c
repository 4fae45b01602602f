/* What a Laguna configuration implies: its tensors, its traffic, and the one pinned configuration
 * (laguna.md sections 2 and 3). */
#include "base/buffer.h"
#include "base/json.h"
#include "engine/checkpoint/formats.h"
#include "engine/model/laguna_config.h"
#include "engine/model/laguna_quantization.h"

#include <stdio.h>
#include <string.h>

/* Names of one layer's tensors: "model.layers.N." before each. */
struct writer {
    struct inventory *inventory;
    char prefix[48];
};

static void add(const struct writer *w, const char *name, enum dtype dtype, int rank, int64_t a,
                int64_t b, int64_t c)
{
    char full[160];
    const int64_t shape[3] = {a, b, c};
    snprintf(full, sizeof full, "%s%s", w->prefix, name);
    inventory_add(w->inventory, full, dtype, rank, shape);
}

static void add_vector(const struct writer *w, const char *name, int n)
{
    add(w, name, DTYPE_BF16, 1, n, 0, 0);
}

static void add_matrix(const struct writer *w, const char *name, int64_t out, int in)
{
    add(w, name, DTYPE_BF16, 2, out, in, 0);
}

/* NVFP4 [out, in], or [experts, out, in] where experts > 0: packed codes and their scales. */
static void add_nvfp4(const struct writer *w, const char *name, int experts, int out, int in)
{
    char full[96];
    const int codes = in / NVFP4_CODES_PER_WORD, scales = in / NVFP4_GROUP;
    snprintf(full, sizeof full, "%s.weight", name);
    if (experts > 0)
        add(w, full, DTYPE_U32, 3, experts, out, codes);
    else
        add(w, full, DTYPE_U32, 2, out, codes, 0);
    snprintf(full, sizeof full, "%s.scales", name);
    if (experts > 0)
        add(w, full, DTYPE_U8, 3, experts, out, scales);
    else
        add(w, full, DTYPE_U8, 2, out, scales, 0);
}

void laguna_projection_shape(const struct laguna_config *c, int layer, enum laguna_projection p,
                             int *out, int *in)
{
    const int heads = c->layers[layer].heads, width = heads * c->head_dim;
    *in = p == LAGUNA_O ? width : c->hidden;
    *out = p == LAGUNA_Q   ? width
           : p == LAGUNA_O ? c->hidden
           : p == LAGUNA_G ? heads
                           : c->kv_heads * c->head_dim;
}

static void add_projection(const struct writer *w, const struct laguna_config *c, int layer,
                           enum laguna_projection p)
{
    char name[64];
    int out, in;
    laguna_projection_shape(c, layer, p, &out, &in);
    snprintf(name, sizeof name, "self_attn.%s.weight", laguna_projection_names[p]);
    if (!(c->layers[layer].int8 >> p & 1)) {
        add_matrix(w, name, out, in);
        return;
    }
    add(w, name, DTYPE_U32, 2, out, in / AFFINE_CODES_PER_WORD, 0);
    snprintf(name, sizeof name, "self_attn.%s.scales", laguna_projection_names[p]);
    add_matrix(w, name, out, in / AFFINE_GROUP);
    snprintf(name, sizeof name, "self_attn.%s.biases", laguna_projection_names[p]);
    add_matrix(w, name, out, in / AFFINE_GROUP);
}

static void add_attention(const struct writer *w, const struct laguna_config *c, int layer)
{
    for (int p = 0; p < LAGUNA_PROJECTIONS; p++)
        add_projection(w, c, layer, (enum laguna_projection)p);
    add_vector(w, "self_attn.q_norm.weight", c->head_dim);
    add_vector(w, "self_attn.k_norm.weight", c->head_dim);
}

static void add_mlp(const struct writer *w, const struct laguna_config *c, bool sparse)
{
    if (!sparse) {
        add_matrix(w, "mlp.gate_proj.weight", c->dense_width, c->hidden);
        add_matrix(w, "mlp.up_proj.weight", c->dense_width, c->hidden);
        add_matrix(w, "mlp.down_proj.weight", c->hidden, c->dense_width);
        return;
    }
    add_matrix(w, "mlp.gate.weight", c->experts, c->hidden);
    add(w, "mlp.gate.e_score_correction_bias", DTYPE_F32, 1, c->experts, 0, 0);
    add_nvfp4(w, "mlp.switch_mlp.gate_proj", c->experts, c->expert_width, c->hidden);
    add_nvfp4(w, "mlp.switch_mlp.up_proj", c->experts, c->expert_width, c->hidden);
    add_nvfp4(w, "mlp.switch_mlp.down_proj", c->experts, c->hidden, c->expert_width);
    if (c->shared_width == 0)
        return;
    add_nvfp4(w, "mlp.shared_expert.gate_proj", 0, c->shared_width, c->hidden);
    add_nvfp4(w, "mlp.shared_expert.up_proj", 0, c->shared_width, c->hidden);
    add_nvfp4(w, "mlp.shared_expert.down_proj", 0, c->hidden, c->shared_width);
}

void laguna_config_inventory(const struct laguna_config *c, struct inventory *inventory)
{
    struct writer w = {.inventory = inventory};
    add_matrix(&w, "model.embed_tokens.weight", c->vocab, c->hidden);
    for (int i = 0; i < c->layer_count; i++) {
        snprintf(w.prefix, sizeof w.prefix, "model.layers.%d.", i);
        add_vector(&w, "input_layernorm.weight", c->hidden);
        add_attention(&w, c, i);
        add_vector(&w, "post_attention_layernorm.weight", c->hidden);
        add_mlp(&w, c, c->layers[i].sparse);
    }
    w.prefix[0] = '\0';
    add_vector(&w, "model.norm.weight", c->hidden);
    add_matrix(&w, "lm_head.weight", c->vocab, c->hidden);
}

static uint64_t bf16_bytes(int64_t out, int64_t in)
{
    return (uint64_t)(2 * out * in);
}

static uint64_t nvfp4_bytes(int64_t out, int64_t in)
{
    return (uint64_t)(out * in / 2 + out * in / NVFP4_GROUP);
}

static uint64_t int8_bytes(int64_t out, int64_t in)
{
    return (uint64_t)(out * in + 4 * (out * in / AFFINE_GROUP));
}

uint64_t laguna_config_bytes_per_token(const struct laguna_config *c)
{
    const int64_t hidden = c->hidden;
    uint64_t total = bf16_bytes(1, hidden) * 2 + bf16_bytes(c->vocab, hidden); /* row, norm, head */
    for (int i = 0; i < c->layer_count; i++) {
        total += bf16_bytes(2, hidden) + bf16_bytes(2, c->head_dim);
        for (int p = 0; p < LAGUNA_PROJECTIONS; p++) {
            int out, in;
            laguna_projection_shape(c, i, (enum laguna_projection)p, &out, &in);
            total += c->layers[i].int8 >> p & 1 ? int8_bytes(out, in) : bf16_bytes(out, in);
        }
        if (!c->layers[i].sparse) {
            total += 3 * bf16_bytes(c->dense_width, hidden);
            continue;
        }
        total += bf16_bytes(c->experts, hidden) + (uint64_t)c->experts * sizeof(float);
        total += 3 * (uint64_t)c->top_k * nvfp4_bytes(c->expert_width, hidden);
        total += 3 * nvfp4_bytes(c->shared_width, hidden);
    }
    return total;
}

/* laguna.md section 2. The lists, which follow a rule, are filled in by pin_new. */
static const char PIN_TEXT[] =
    "{\"architectures\":[\"LagunaForCausalLM\"],\"model_type\":\"laguna\","
    "\"torch_dtype\":\"bfloat16\",\"vocab_size\":100352,\"hidden_size\":2048,"
    "\"num_hidden_layers\":40,\"head_dim\":128,\"num_attention_heads\":48,"
    "\"num_key_value_heads\":8,\"intermediate_size\":8192,\"moe_intermediate_size\":512,"
    "\"shared_expert_intermediate_size\":512,\"num_experts\":256,\"num_experts_per_tok\":8,"
    "\"norm_topk_prob\":true,\"moe_routed_scaling_factor\":2.5,"
    "\"moe_apply_router_weight_on_input\":false,\"router_aux_loss_coef\":0.0,"
    "\"decoder_sparse_step\":1,\"mlp_only_layers\":[0],\"sliding_window\":512,"
    "\"gating\":\"per-head\",\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"rms_norm_eps\":1e-06,\"max_position_embeddings\":262144,\"tie_word_embeddings\":false,"
    "\"use_cache\":true,\"bos_token_id\":2,\"eos_token_id\":[2,24],\"pad_token_id\":9,"
    "\"quantization\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"},"
    "\"quantization_config\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"},"
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":500000.0,"
    "\"factor\":32.0,\"original_max_position_embeddings\":8192,\"beta_fast\":64.0,"
    "\"beta_slow\":1.0,\"attention_factor\":1.0,\"partial_rotary_factor\":0.5},"
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"
    "\"partial_rotary_factor\":1.0}}}";

/* Absent, or null, in the pinned configuration. */
static const char *const PIN_ABSENT[] = {"qkv_bias", "moe_router_logit_softcapping", "hidden_act"};

static json_t *pin_new(struct error *err)
{
    json_t *pin = json_parse_strict(PIN_TEXT, sizeof PIN_TEXT - 1, 8, "pin", err);
    if (!pin)
        return NULL;
    json_t *heads = json_array(), *layers = json_array(), *mlp = json_array();
    json_t *gates = json_array();
    for (int i = 0; i < 40; i++) {
        const bool full = i % 4 == 0;
        json_array_append_new(heads, json_integer(full ? 48 : 64));
        json_array_append_new(layers, json_string(full ? "full_attention" : "sliding_attention"));
        json_array_append_new(mlp, json_string(i == 0 ? "dense" : "sparse"));
        json_array_append_new(gates, json_string("per_head"));
    }
    json_object_set_new(pin, "num_attention_heads_per_layer", heads);
    json_object_set_new(pin, "layer_types", layers);
    json_object_set_new(pin, "mlp_layer_types", mlp);
    json_object_set_new(pin, "gating_types", gates);
    return pin;
}

/* As json_equal, but 1 and 1.0 are one number, as they are to the tools that write these files. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!same_value(json_array_get(a, i), json_array_get(b, i)))
                return false;
        return true;
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !same_value(value, other))
            return false;
    }
    return true;
}

static bool pin_refuse(const char *file, const char *key, const json_t *expected,
                       const json_t *found, struct error *err)
{
    struct buffer want = {0}, have = {0};
    if (expected)
        json_write_canonical(expected, 0, &want);
    else
        buffer_text(&want, "no such key");
    if (found)
        json_write_canonical(found, 0, &have);
    error_set(err, "CONFIG-PIN-MISMATCH", "Laguna XS 2.1 has %.300s here", want.data);
    error_at(err, file, key, have.data ? have.data : "(missing)");
    buffer_free(&want);
    buffer_free(&have);
    return false;
}

bool laguna_config_pin_xs21(const json_t *config, const char *file, struct error *err)
{
    json_t *pin = pin_new(err);
    if (!pin)
        return false;
    bool ok = true;
    const char *key;
    json_t *expected;
    json_object_foreach(pin, key, expected)
    {
        const json_t *found = json_object_get(config, key);
        if (!found || !same_value(expected, found)) {
            ok = pin_refuse(file, key, expected, found, err);
            break;
        }
    }
    for (size_t i = 0; ok && i < sizeof PIN_ABSENT / sizeof *PIN_ABSENT; i++) {
        const json_t *found = json_object_get(config, PIN_ABSENT[i]);
        if (found && !json_is_null(found))
            ok = pin_refuse(file, PIN_ABSENT[i], NULL, found, err);
    }
    json_decref(pin);
    return ok;
}
