/* The drafter: weights bound to blocks, and the forward of dflash.md section 3 over them. */
#include "engine/model/dflash.h"

#include "engine/checkpoint/pack.h"
#include "engine/model/weights.h"

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/rope.h"

#include <stdlib.h>
#include <string.h>

enum { APPEND_ROWS = 64, SPARE_SLOTS = 16 };

struct dflash {
    struct arena arena;
    struct checkpoint *checkpoint;
    struct compute *compute;
    struct dflash_config config;
    enum dflash_layout layout;
    struct weight_matrix embedding;
    struct context_block context;
    struct attention_block *attention; /* [layers] */
    struct ffn_block *ffn;             /* [layers] */
    struct head_block head;
    struct rope_table rope;
    int64_t positions;
    int max_rows, target_rows;
};

struct dflash_state {
    struct dflash *drafter;
    struct kv_layer **kv; /* [layers] */
    struct tap_rows *taps;
    int64_t capacity, tap_capacity;
    int64_t from, end; /* context rows [from, end) are in the rings */
    int64_t reach;     /* highest position + 1 ever written, blocks included */
    int32_t *block;
    size_t bytes;
};

struct dflash_target dflash_target_of(struct model *m)
{
    const struct model_info *info = model_get_info(m);
    return (struct dflash_target){
        .compute = model_compute(m),
        .embedding = model_embedding(m),
        .output = model_output(m),
        .sizes = {.vocab = info->vocab, .hidden = info->hidden, .layers = info->layers},
        .context = info->context,
        .max_rows = info->max_rows,
        .memory = *model_memory(m)};
}

/* ---- Binding. The inventory check has passed, so every name is there. ---- */

static const void *data_of(const struct dflash *d, const char *name)
{
    const struct tensor *t = checkpoint_find(d->checkpoint, name);
    return t ? t->data : NULL;
}

static const void *layer_data(struct dflash *d, int layer, const char *name)
{
    return data_of(d, arena_printf(&d->arena, "layers.%d.%s", layer, name));
}

static struct weight_matrix matrix(const void *data, int out, int in)
{
    return (struct weight_matrix){.format = WEIGHT_BF16, .out = out, .in = in, .data = data};
}

static void bind_qkv(struct dflash *d, int layer, struct attention_block *a)
{
    const int hidden = d->config.hidden;
    const int wide = a->heads * a->head_dim, narrow = a->kv_heads * a->head_dim;
    if (d->layout == DFLASH_FUSED) { /* rows of q, then of k, then of v */
        const size_t row = (size_t)hidden * 2;
        const uint8_t *all = layer_data(d, layer, "self_attn.qkv_proj.weight");
        a->q = matrix(all, wide, hidden);
        a->k = matrix(all + (size_t)wide * row, narrow, hidden);
        a->v = matrix(all + ((size_t)wide + (size_t)narrow) * row, narrow, hidden);
        return;
    }
    a->q = matrix(layer_data(d, layer, "self_attn.q_proj.weight"), wide, hidden);
    a->k = matrix(layer_data(d, layer, "self_attn.k_proj.weight"), narrow, hidden);
    a->v = matrix(layer_data(d, layer, "self_attn.v_proj.weight"), narrow, hidden);
}

static void bind_layer(struct dflash *d, int layer)
{
    const struct dflash_config *c = &d->config;
    struct attention_block *a = &d->attention[layer];
    struct ffn_block *f = &d->ffn[layer];
    a->heads = c->heads;
    a->kv_heads = c->kv_heads;
    a->head_dim = c->head_dim;
    a->window = c->window;
    a->eps = (float)c->eps;
    a->rope = &d->rope;
    a->input_norm = layer_data(d, layer, "input_layernorm.weight");
    a->q_norm = layer_data(d, layer, "self_attn.q_norm.weight");
    a->k_norm = layer_data(d, layer, "self_attn.k_norm.weight");
    bind_qkv(d, layer, a);
    a->o =
        matrix(layer_data(d, layer, "self_attn.o_proj.weight"), c->hidden, c->heads * c->head_dim);
    a->gate = matrix(layer_data(d, layer, "self_attn.g_proj.weight"), c->heads, c->hidden);
    f->eps = (float)c->eps;
    f->norm = layer_data(d, layer, "post_attention_layernorm.weight");
    f->dense.gate = matrix(layer_data(d, layer, "mlp.gate_proj.weight"), c->width, c->hidden);
    f->dense.up = matrix(layer_data(d, layer, "mlp.up_proj.weight"), c->width, c->hidden);
    f->dense.down = matrix(layer_data(d, layer, "mlp.down_proj.weight"), c->hidden, c->width);
}

static void bind(struct dflash *d, const struct dflash_target *target)
{
    const struct dflash_config *c = &d->config;
    const struct rope_parameters rope = {.dim = c->head_dim, .theta = c->theta};
    d->rope = rope_table_new(&d->arena, &rope, d->positions, YARN_ATTENTION_FACTOR);
    d->attention = arena_array(&d->arena, (size_t)c->layer_count, sizeof *d->attention);
    d->ffn = arena_array(&d->arena, (size_t)c->layer_count, sizeof *d->ffn);
    for (int i = 0; i < c->layer_count; i++)
        bind_layer(d, i);
    const uint16_t **norms = arena_array(&d->arena, (size_t)c->tap_count, sizeof *norms);
    for (int j = 0; j < c->tap_count; j++)
        norms[j] = data_of(d, arena_printf(&d->arena, "aux_hidden_norms.%d.weight", j));
    d->context = (struct context_block){
        .eps = (float)c->eps,
        .taps = c->tap_count,
        .tap_norm = norms,
        .fc = matrix(data_of(d, "fc.weight"), c->hidden, c->hidden * c->tap_count),
        .hidden_norm = data_of(d, "hidden_norm.weight")};
    d->embedding = *target->embedding;
    d->head = (struct head_block){
        .eps = (float)c->eps, .norm = data_of(d, "norm.weight"), .output = *target->output};
}

/* The tensors of the layout that is there; tables that belong to the target are passed over. */
static bool check_inventory(struct dflash *d, struct error *err)
{
    struct inventory inventory = {.arena = &d->arena};
    const struct checkpoint *k = d->checkpoint;
    d->layout =
        checkpoint_find(k, "layers.0.self_attn.qkv_proj.weight") ? DFLASH_FUSED : DFLASH_REPACKED;
    dflash_config_inventory(&d->config, d->layout, &inventory);
    for (size_t i = 0; i < k->tensor_count; i++) {
        const struct tensor *t = &k->tensors[i];
        if (text_starts(t->name, "embed_tokens.") || text_starts(t->name, "lm_head."))
            inventory_add(&inventory, t->name, t->dtype, t->rank, t->shape);
    }
    return inventory_check(&inventory, k, err);
}

/* Positions of the rings. A block's rows, and later a context chunk's, must not meet a row that is
 * still visible. */
static int64_t ring_of(const struct dflash *d)
{
    return (int64_t)d->config.window + d->max_rows + SPARE_SLOTS;
}

/* Of the taps. A feed of the target that fails is taken back whole: its rows may not cost those
 * before. */
static int64_t taps_of(const struct dflash *d)
{
    return (int64_t)d->config.window + d->target_rows + SPARE_SLOTS;
}

/* What the machine leaves beside the target, and the weights into memory. */
static bool load(struct dflash *d, const struct dflash_target *target,
                 const struct compute_shape *shape, struct memory_plan *plan, struct error *err)
{
    const struct dflash_config *c = &d->config;
    const char *backend = compute_backend_name(target->compute);
    const uint64_t kv =
        kv_layer_need(backend, ACTIVATIONS_F32, c->kv_heads, c->head_dim, ring_of(d));
    const uint64_t taps = (uint64_t)taps_of(d) * (uint64_t)shape->max_context_width * sizeof(float);
    const struct compute_options options = {.backend = backend,
                                            .arithmetic = compute_arithmetic(target->compute),
                                            .threads = compute_threads(target->compute)};
    struct memory_need n = {.folder = d->checkpoint->folder,
                            .token = d->checkpoint->tensor_bytes,
                            .caches = kv * (uint64_t)c->layer_count + taps,
                            .tables =
                                (uint64_t)d->positions * (uint64_t)c->head_dim * sizeof(float)};
    if (!compute_scratch_bytes(&options, shape, &n.scratch, err))
        return false;
    n.low_caches = n.caches;
    n.low_scratch = n.scratch;
    return weights_plan(d->checkpoint, &options, &target->memory, &n, plan, err) &&
           weights_load(d->checkpoint, &target->memory, plan, options.threads, err);
}

static bool prepare(struct dflash *d, const struct memory_request *request,
                    const struct memory_plan *plan, struct error *err)
{
    compute_prepare_begin(d->compute, request->progress, request->context,
                          d->checkpoint->tensor_bytes);
    bool ok = compute_prepare_embedding(d->compute, &d->embedding, err) &&
              compute_prepare_context(d->compute, &d->context, err);
    for (int i = 0; ok && i < d->config.layer_count; i++)
        ok = compute_prepare_attention(d->compute, &d->attention[i], err) &&
             compute_prepare_ffn(d->compute, &d->ffn[i], err);
    ok = ok && compute_prepare_head(d->compute, &d->head, err) &&
         compute_prepare_end(d->compute, err);
    if (ok && plan->device)
        weights_let_go(d->checkpoint);
    return ok;
}

bool dflash_open(const char *folder, const struct dflash_target *target, struct dflash **out,
                 struct error *err)
{
    struct dflash *d = memory_alloc(sizeof *d);
    struct dflash_config *c = &d->config;
    *out = NULL;
    char *file = path_join(&d->arena, folder, "config.json");
    if (!checkpoint_open(folder, &d->checkpoint, err) ||
        !dflash_config_parse(&d->arena, d->checkpoint->config, file, c, err) ||
        !dflash_config_match(c, &target->sizes, file, err) || !check_inventory(d, err)) {
        dflash_close(d);
        return false;
    }
    d->positions = c->max_positions < target->context ? c->max_positions : target->context;
    d->max_rows = c->block > APPEND_ROWS ? c->block : APPEND_ROWS;
    d->target_rows = target->max_rows;
    const struct compute_shape shape = {.max_rows = d->max_rows,
                                        .hidden = c->hidden,
                                        .vocab = c->vocab,
                                        .max_heads = c->heads,
                                        .max_kv_heads = c->kv_heads,
                                        .head_dim = c->head_dim,
                                        .max_ffn_width = c->width,
                                        .max_context_width = c->hidden * c->tap_count,
                                        .max_positions = ring_of(d)};
    struct memory_plan plan;
    if (!load(d, target, &shape, &plan, err)) {
        dflash_close(d);
        return false;
    }
    bind(d, target);
    if (!compute_new_beside(target->compute, &shape, &d->compute, err) ||
        !prepare(d, &target->memory, &plan, err)) {
        dflash_close(d);
        return false;
    }
    *out = d;
    return true;
}

void dflash_close(struct dflash *d)
{
    if (!d)
        return;
    if (d->compute)
        compute_free(d->compute);
    if (d->checkpoint)
        checkpoint_close(d->checkpoint);
    arena_free(&d->arena);
    free(d);
}

const struct dflash_config *dflash_get_config(const struct dflash *d)
{
    return &d->config;
}

enum dflash_layout dflash_get_layout(const struct dflash *d)
{
    return d->layout;
}

uint64_t dflash_weight_bytes(const struct dflash *d)
{
    return d->checkpoint->tensor_bytes;
}

/* ---- One sequence ---- */

bool dflash_state_new(struct dflash *d, struct dflash_state **out, struct error *err)
{
    const struct dflash_config *c = &d->config;
    struct dflash_state *s = memory_alloc(sizeof *s);
    *out = NULL;
    s->drafter = d;
    s->capacity = ring_of(d);
    s->tap_capacity = taps_of(d);
    s->kv = memory_alloc((size_t)c->layer_count * sizeof *s->kv);
    s->block = memory_alloc((size_t)c->block * sizeof *s->block);
    bool ok = tap_rows_new(d->compute, c->tap_count, s->tap_capacity, &s->taps, err);
    for (int i = 0; ok && i < c->layer_count; i++) {
        ok = kv_layer_new(d->compute, c->kv_heads, c->head_dim, s->capacity, &s->kv[i], err);
        if (ok)
            s->bytes += kv_layer_bytes(s->kv[i]);
    }
    if (!ok) {
        dflash_state_free(s);
        return false;
    }
    s->bytes += tap_rows_bytes(s->taps);
    *out = s;
    return true;
}

void dflash_state_free(struct dflash_state *s)
{
    if (!s)
        return;
    compute_forget(s->drafter->compute, s);
    for (int i = 0; i < s->drafter->config.layer_count; i++)
        kv_layer_free(s->kv[i]);
    tap_rows_free(s->taps);
    free(s->kv);
    free(s->block);
    free(s);
}

size_t dflash_state_bytes(const struct dflash_state *s)
{
    return s->bytes;
}

struct tap_rows *dflash_state_taps(struct dflash_state *s, int64_t *capacity)
{
    *capacity = s->tap_capacity;
    return s->taps;
}

void dflash_state_rewind(struct dflash_state *s, int64_t position)
{
    if (position < s->end)
        s->end = position;
    if (s->from > s->end)
        s->from = s->end;
    if (position == 0)
        s->reach = 0;
}

/* The first position whose context row a draft at `position` needs, and the first that is not in
 * the rings yet. */
static int64_t first_visible(const struct dflash_state *s, int64_t position)
{
    const int64_t first = position - s->drafter->config.window + 1;
    return first > 0 ? first : 0;
}

static int64_t first_missing(const struct dflash_state *s, int64_t position)
{
    const int64_t first = first_visible(s, position);
    const bool held = s->from <= first && first < s->end && first >= s->reach - s->capacity;
    if (!held)
        return first;
    return s->end < position ? s->end : position;
}

bool dflash_can_draft(const struct dflash_state *s, int64_t position, int64_t tapped_from, int rows)
{
    const struct dflash *d = s->drafter;
    return rows >= 2 && rows <= d->config.block && position + rows <= d->positions &&
           (first_missing(s, position) >= tapped_from || first_missing(s, position) == position);
}

enum { FORWARD_DRAFT, FORWARD_CONTEXT }; /* kinds of forwards of a state */

/* A failure shows in the next forward that can tell of one. */
static void append_context(struct dflash_state *s, int64_t begin, int64_t end)
{
    struct dflash *d = s->drafter;
    for (int64_t at = begin; at < end;) {
        const int rows = end - at < d->max_rows ? (int)(end - at) : d->max_rows;
        const struct compute_forward f = {
            .owner = s, .kind = FORWARD_CONTEXT, .pos0 = at, .rows = rows};
        if (!compute_begin(d->compute, &f)) {
            compute_context(d->compute, &d->context, s->taps, at, rows);
            for (int i = 0; i < d->config.layer_count; i++)
                compute_append(d->compute, &d->attention[i], s->kv[i], at, rows);
        }
        compute_end(d->compute, NULL);
        at += rows;
    }
}

void dflash_take_context(struct dflash_state *s, int64_t position, int64_t tapped_from)
{
    if (!dflash_can_draft(s, position, tapped_from, 2))
        return;
    const int64_t begin = first_missing(s, position);
    if (begin != s->end) { /* what is in the rings does not reach: all of it anew */
        s->from = begin;
        s->reach = 0;
    }
    append_context(s, begin, position);
    s->end = position;
    if (position > s->reach)
        s->reach = position;
}

void dflash_take_rows(struct dflash_state *s, int64_t position, int rows, int64_t tapped_from)
{
    if (s->end == position && first_missing(s, position + rows) == position)
        dflash_take_context(s, position + rows, tapped_from);
}

const struct compute *dflash_state_compute(const struct dflash_state *s)
{
    return s->drafter->compute;
}

void dflash_drafted(struct dflash_state *s, int rows, struct head_pick *picks)
{
    compute_picks(s->drafter->compute, picks, rows - 1);
}

bool dflash_draft(struct dflash_state *s, int64_t position, int64_t tapped_from, int32_t bonus,
                  int rows, float *logits, struct head_pick *picks, struct error *err)
{
    struct dflash *d = s->drafter;
    if (!dflash_can_draft(s, position, tapped_from, rows))
        return error_set(err, "DRAFT-IMPOSSIBLE", "%d rows cannot be drafted at position %lld",
                         rows, (long long)position);
    dflash_take_context(s, position, tapped_from);
    s->block[0] = bonus;
    for (int i = 1; i < rows; i++)
        s->block[i] = d->config.mask;
    const struct compute_forward f = {.owner = s,
                                      .kind = FORWARD_DRAFT,
                                      .ids = s->block,
                                      .pos0 = position,
                                      .rows = rows,
                                      .logit_rows = rows - 1,
                                      .logits = logits,
                                      .picks = picks,
                                      .later = picks == NULL};
    if (!compute_begin(d->compute, &f)) {
        compute_embed(d->compute, &d->embedding, s->block, rows);
        for (int i = 0; i < d->config.layer_count; i++) {
            /* The block's keys and values lie past the context and are overwritten by it later. */
            compute_attention(d->compute, &d->attention[i], s->kv[i], position, rows);
            compute_ffn(d->compute, &d->ffn[i], rows);
        }
        compute_head(d->compute, &d->head, 1, rows - 1, logits, picks);
    }
    if (!compute_end(d->compute, err))
        return false;
    if (position + rows > s->reach)
        s->reach = position + rows;
    return true;
}
