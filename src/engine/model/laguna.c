/* Laguna: from a checked checkpoint to the list of its blocks. */
#include "engine/model/laguna.h"

#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_quantization.h"
#include "engine/model/plan.h"

#include <string.h>

struct rope_parameters laguna_rope_parameters(const struct laguna_rope *rope)
{
    return (struct rope_parameters){.dim = rope->dim,
                                    .theta = rope->theta,
                                    .yarn = rope->type == LAGUNA_ROPE_YARN,
                                    .factor = rope->factor,
                                    .original_positions = (double)rope->original_max_positions,
                                    .beta_fast = rope->beta_fast,
                                    .beta_slow = rope->beta_slow,
                                    .has_attention_factor = rope->has_attention_factor,
                                    .attention_factor = rope->attention_factor};
}

static bool laguna_check(struct arena *arena, const struct checkpoint *checkpoint,
                         void **family_state, int64_t *max_context, struct error *err)
{
    struct laguna_config *config = arena_alloc(arena, sizeof *config);
    char *file = path_join(arena, checkpoint->folder, "config.json");
    if (!laguna_config_parse(arena, checkpoint->config, file, config, err) ||
        !laguna_config_read_generation(checkpoint->folder, config, err))
        return false;
    struct inventory inventory = {.arena = arena};
    laguna_config_inventory(config, &inventory);
    if (!inventory_check(&inventory, checkpoint, err))
        return false;
    *family_state = config;
    *max_context = config->max_positions;
    return true;
}

/* Where names are looked up. The inventory check has passed, so every name is there with its dtype
 * and shape; a missing one is remembered all the same, never dereferenced. */
struct binder {
    struct arena *arena;
    const struct checkpoint *checkpoint;
    const char *missing;
};

static const void *bind_data(struct binder *b, const char *name)
{
    const struct tensor *t = checkpoint_find(b->checkpoint, name);
    if (t)
        return t->data;
    if (!b->missing)
        b->missing = name;
    return NULL;
}

static const void *bind_layer_data(struct binder *b, int layer, const char *name)
{
    return bind_data(b, arena_printf(b->arena, "model.layers.%d.%s", layer, name));
}

static struct weight_matrix bind_bf16(struct binder *b, int layer, const char *name, int out,
                                      int in)
{
    return (struct weight_matrix){
        .format = WEIGHT_BF16, .out = out, .in = in, .data = bind_layer_data(b, layer, name)};
}

static struct weight_matrix bind_nvfp4(struct binder *b, int layer, const char *name, int out,
                                       int in)
{
    return (struct weight_matrix){
        .format = WEIGHT_NVFP4,
        .out = out,
        .in = in,
        .data = bind_layer_data(b, layer, arena_printf(b->arena, "%s.weight", name)),
        .scales = bind_layer_data(b, layer, arena_printf(b->arena, "%s.scales", name))};
}

/* A projection of attention in the format that the config says. */
static struct weight_matrix bind_projection(struct binder *b, const struct laguna_config *c,
                                            int layer, enum laguna_projection p)
{
    const char *name = arena_printf(b->arena, "self_attn.%s", laguna_projection_names[p]);
    struct weight_matrix m = {
        .format = WEIGHT_BF16,
        .data = bind_layer_data(b, layer, arena_printf(b->arena, "%s.weight", name))};
    laguna_projection_shape(c, layer, p, &m.out, &m.in);
    if (c->layers[layer].int8 >> p & 1) {
        m.format = WEIGHT_INT8_AFFINE32;
        m.scales = bind_layer_data(b, layer, arena_printf(b->arena, "%s.scales", name));
        m.biases = bind_layer_data(b, layer, arena_printf(b->arena, "%s.biases", name));
    }
    return m;
}

/* Expert e of a stacked tensor: [experts, out, in] along the leading axis. */
static struct weight_matrix expert_slice(const struct weight_matrix *stack, int e)
{
    struct weight_matrix m = *stack;
    size_t rows = (size_t)e * (size_t)m.out;
    if (m.data)
        m.data = (const uint8_t *)m.data + rows * ((size_t)m.in / 2);
    if (m.scales)
        m.scales += rows * ((size_t)m.in / 16);
    return m;
}

static int layer_window(const struct laguna_config *c, int layer)
{
    return c->layers[layer].attention == LAGUNA_SLIDING_ATTENTION ? c->sliding_window : 0;
}

static const struct attention_block *bind_attention(struct binder *b, const struct laguna_config *c,
                                                    int layer, const struct rope_table *rope)
{
    struct attention_block *a = arena_alloc(b->arena, sizeof *a);
    int heads = c->layers[layer].heads;
    a->heads = heads;
    a->kv_heads = c->kv_heads;
    a->head_dim = c->head_dim;
    a->window = layer_window(c, layer);
    a->eps = (float)c->eps;
    a->input_norm = bind_layer_data(b, layer, "input_layernorm.weight");
    a->q_norm = bind_layer_data(b, layer, "self_attn.q_norm.weight");
    a->k_norm = bind_layer_data(b, layer, "self_attn.k_norm.weight");
    a->q = bind_projection(b, c, layer, LAGUNA_Q);
    a->k = bind_projection(b, c, layer, LAGUNA_K);
    a->v = bind_projection(b, c, layer, LAGUNA_V);
    a->o = bind_projection(b, c, layer, LAGUNA_O);
    a->gate = bind_projection(b, c, layer, LAGUNA_G);
    a->rope = rope;
    return a;
}

static const struct ffn_block *bind_ffn(struct binder *b, const struct laguna_config *c, int layer)
{
    struct ffn_block *f = arena_alloc(b->arena, sizeof *f);
    f->eps = (float)c->eps;
    f->norm = bind_layer_data(b, layer, "post_attention_layernorm.weight");
    f->sparse = c->layers[layer].sparse;
    if (!f->sparse) {
        f->dense.gate = bind_bf16(b, layer, "mlp.gate_proj.weight", c->dense_width, c->hidden);
        f->dense.up = bind_bf16(b, layer, "mlp.up_proj.weight", c->dense_width, c->hidden);
        f->dense.down = bind_bf16(b, layer, "mlp.down_proj.weight", c->hidden, c->dense_width);
        return f;
    }
    f->experts = c->experts;
    f->top_k = c->top_k;
    f->normalize_top_k = c->normalize_top_k;
    f->routed_scale = (float)c->routed_scale;
    f->router = bind_bf16(b, layer, "mlp.gate.weight", c->experts, c->hidden);
    f->selection_bias = bind_layer_data(b, layer, "mlp.gate.e_score_correction_bias");
    struct mlp_weights stack = {
        .gate = bind_nvfp4(b, layer, "mlp.switch_mlp.gate_proj", c->expert_width, c->hidden),
        .up = bind_nvfp4(b, layer, "mlp.switch_mlp.up_proj", c->expert_width, c->hidden),
        .down = bind_nvfp4(b, layer, "mlp.switch_mlp.down_proj", c->hidden, c->expert_width)};
    struct mlp_weights *expert = arena_array(b->arena, (size_t)c->experts, sizeof *expert);
    for (int e = 0; e < c->experts; e++) {
        expert[e].gate = expert_slice(&stack.gate, e);
        expert[e].up = expert_slice(&stack.up, e);
        expert[e].down = expert_slice(&stack.down, e);
    }
    f->expert = expert;
    f->has_shared = c->shared_width > 0;
    if (f->has_shared) {
        int w = c->shared_width;
        f->shared.gate = bind_nvfp4(b, layer, "mlp.shared_expert.gate_proj", w, c->hidden);
        f->shared.up = bind_nvfp4(b, layer, "mlp.shared_expert.up_proj", w, c->hidden);
        f->shared.down = bind_nvfp4(b, layer, "mlp.shared_expert.down_proj", c->hidden, w);
    }
    return f;
}

/* The line of model_info.choices: which authority the YaRN factor follows, and its value
 * (cases.md A-SM4: the choice is printed). */
static const char *describe_choices(struct arena *arena, const struct laguna_config *c,
                                    enum yarn_magnitude magnitude)
{
    const struct laguna_rope *yarn = NULL;
    for (int kind = 0; kind < 2; kind++)
        if (c->rope[kind].dim > 0 && c->rope[kind].type == LAGUNA_ROPE_YARN)
            yarn = &c->rope[kind];
    if (!yarn)
        return "yarn magnitude none (no yarn layers)";
    bool derived = magnitude == YARN_DERIVED || !yarn->has_attention_factor;
    double value = derived ? rope_derived_magnitude(yarn->factor) : yarn->attention_factor;
    return arena_printf(arena, "yarn magnitude %.9g (%s%s)", (double)(float)value,
                        magnitude == YARN_DERIVED ? "derived" : "attention_factor",
                        magnitude != YARN_DERIVED && derived ? " absent: 0.1 ln(factor) + 1" : "");
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static struct compute_shape laguna_shape(const struct laguna_config *c)
{
    int heads = 0, width = c->shared_width;
    for (int i = 0; i < c->layer_count; i++) {
        heads = larger(heads, c->layers[i].heads);
        width = larger(width, c->layers[i].sparse ? c->expert_width : c->dense_width);
    }
    return (struct compute_shape){.hidden = c->hidden,
                                  .vocab = c->vocab,
                                  .max_heads = heads,
                                  .max_kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim,
                                  .max_ffn_width = width,
                                  .max_experts = c->experts,
                                  .max_top_k = c->top_k};
}

static void laguna_needs(struct arena *arena, const void *family_state, struct model_needs *out)
{
    const struct laguna_config *c = family_state;
    struct kv_shape *kv = arena_array(arena, (size_t)c->layer_count, sizeof *kv);
    for (int i = 0; i < c->layer_count; i++)
        kv[i] = (struct kv_shape){
            .kv_heads = c->kv_heads, .head_dim = c->head_dim, .window = layer_window(c, i)};
    *out = (struct model_needs){.shape = laguna_shape(c),
                                .bytes_per_token = laguna_config_bytes_per_token(c),
                                .kv = kv,
                                .attention_count = c->layer_count};
    for (int kind = 0; kind < 2; kind++)
        out->table_bytes += (uint64_t)c->rope[kind].dim * sizeof(float);
}

static bool laguna_bind(struct arena *arena, const struct checkpoint *checkpoint,
                        void *family_state, const struct model_options *options,
                        struct model_plan *plan, struct error *err)
{
    const struct laguna_config *c = family_state;
    struct binder b = {.arena = arena, .checkpoint = checkpoint};

    struct rope_table *rope = arena_array(arena, 2, sizeof *rope);
    for (int kind = 0; kind < 2; kind++)
        if (c->rope[kind].dim > 0) {
            struct rope_parameters p = laguna_rope_parameters(&c->rope[kind]);
            rope[kind] = rope_table_new(arena, &p, options->context, options->yarn_magnitude);
        }

    plan->embedding = (struct weight_matrix){.format = WEIGHT_BF16,
                                             .out = c->vocab,
                                             .in = c->hidden,
                                             .data = bind_data(&b, "model.embed_tokens.weight")};
    plan->block_count = 2 * (size_t)c->layer_count;
    plan->blocks = arena_array(arena, plan->block_count, sizeof *plan->blocks);
    for (int i = 0; i < c->layer_count; i++) {
        plan->blocks[2 * i].attention = bind_attention(&b, c, i, &rope[c->layers[i].attention]);
        plan->blocks[2 * i + 1].ffn = bind_ffn(&b, c, i);
        plan->blocks[2 * i + 1].ends_layer = true;
    }
    plan->attention_count = c->layer_count;
    plan->head = (struct head_block){.eps = (float)c->eps,
                                     .norm = bind_data(&b, "model.norm.weight"),
                                     .output = {.format = WEIGHT_BF16,
                                                .out = c->vocab,
                                                .in = c->hidden,
                                                .data = bind_data(&b, "lm_head.weight")}};
    if (b.missing) {
        error_set(err, "INVENTORY-MISMATCH", "the checkpoint has no tensor %s", b.missing);
        return error_at(err, checkpoint->folder, b.missing, NULL);
    }
    plan->shape = laguna_shape(c);
    plan->info =
        (struct model_info){.family = laguna_family.name,
                            .model_type = checkpoint->model_type,
                            .vocab = c->vocab,
                            .hidden = c->hidden,
                            .layers = c->layer_count,
                            .eos_count = c->eos_count,
                            .bos = c->bos,
                            .weight_bytes = checkpoint->tensor_bytes,
                            .bytes_per_token = laguna_config_bytes_per_token(c),
                            .choices = describe_choices(arena, c, options->yarn_magnitude)};
    memcpy(plan->info.eos, c->eos, sizeof c->eos);
    return true;
}

const struct model_family laguna_family = {
    .name = "laguna",
    .model_types = {"laguna", NULL},
    .check = laguna_check,
    .needs = laguna_needs,
    .bind = laguna_bind,
};
