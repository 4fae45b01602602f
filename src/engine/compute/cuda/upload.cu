/* The weights of each block: which pieces it needs, and where they are then. */
#include "engine/compute/cuda/order.h"

extern "C" {
#include "base/arena.h"
}

#include <stdlib.h>
#include <string.h>

bool cuda_weights_take_embedding(struct cuda_weights *w, const struct weight_matrix *table)
{
    struct order o;
    if (!order_begin(w, &o))
        return false;
    if (order_is_taken(w, BLOCK_EMBEDDING, table->data))
        return true;
    if (!order_check(w, table))
        return false;
    if (table->format != WEIGHT_BF16)
        return order_refuse(w, "an embedding table that is not bf16");
    order_plain(&o, table->data, (size_t)table->out, (size_t)table->in * 2);
    const bool ok = order_fetch(&o, "the embedding table");
    if (ok)
        order_enter(&o, BLOCK_EMBEDDING, table->data, NULL);
    order_end(&o);
    return ok;
}

struct attention_plan {
    struct run runs[4], output;
    int run_of[4], row_of[4], run_count;
    int input_norm, q_norm, k_norm, cosine, sine;
};

/* q, k, v and the gate, where there is one; neighbours of one format are one run. */
static bool plan_projections(struct order *o, const struct attention_block *b,
                             struct attention_plan *p)
{
    const struct weight_matrix *const all[] = {&b->q, &b->k, &b->v, &b->gate};
    const int count = b->gate.data != NULL ? 4 : 3;
    for (int i = 0; i < count;) {
        int end = i, rows = 0;
        while (end < count && all[end]->format == all[i]->format && all[end]->in == all[i]->in) {
            p->run_of[end] = p->run_count;
            p->row_of[end] = rows;
            rows += all[end++]->out;
        }
        if (!order_run(o, &all[i], end - i, &p->runs[p->run_count++]))
            return false;
        i = end;
    }
    return true;
}

static bool plan_attention(struct order *o, const struct attention_block *b,
                           struct attention_plan *p)
{
    const struct rope_table *rope = b->rope;
    memset(p, 0, sizeof *p);
    if (!plan_projections(o, b, p) || !order_matrix(o, &b->o, &p->output))
        return false;
    p->input_norm = order_plain(o, b->input_norm, 1, (size_t)b->q.in * 2);
    p->q_norm = order_plain(o, b->q_norm, 1, (size_t)b->head_dim * 2);
    p->k_norm = order_plain(o, b->k_norm, 1, (size_t)b->head_dim * 2);
    p->cosine = p->sine = -1;
    if (rope == NULL || rope->dim == 0)
        return true;
    const size_t row = (size_t)rope->dim / 2 * sizeof(float);
    p->cosine = order_plain(o, rope->cosine, (size_t)rope->positions, row);
    p->sine = order_plain(o, rope->sine, (size_t)rope->positions, row);
    return true;
}

static struct cuda_attention *bind_attention(const struct order *o, const struct attention_block *b,
                                             const struct attention_plan *p)
{
    enum { K = 1, V = 2 };
    struct cuda_attention *a = (struct cuda_attention *)memory_alloc(sizeof *a);
    a->block = b;
    a->projects = p->run_count;
    for (int i = 0; i < p->run_count; i++)
        a->project[i] = order_bind(o, &p->runs[i]);
    a->output = order_bind(o, &p->output);
    const bool together = p->run_of[K] == p->run_of[V];
    a->appends = together ? 1 : 2;
    a->append[0] = order_bind_rows(o, &p->runs[p->run_of[K]], p->row_of[K],
                                   together ? b->k.out + b->v.out : b->k.out);
    if (!together)
        a->append[1] = order_bind_rows(o, &p->runs[p->run_of[V]], p->row_of[V], b->v.out);
    a->input_norm = (const uint16_t *)order_bind_plain(o, p->input_norm);
    a->q_norm = (const uint16_t *)order_bind_plain(o, p->q_norm);
    a->k_norm = (const uint16_t *)order_bind_plain(o, p->k_norm);
    a->cosine = (const float *)order_bind_plain(o, p->cosine);
    a->sine = (const float *)order_bind_plain(o, p->sine);
    a->rotary = p->cosine < 0 ? 0 : b->rope->dim;
    a->input_scale = p->cosine < 0 ? 1.0f : b->rope->input_scale;
    return a;
}

bool cuda_weights_take_attention(struct cuda_weights *w, const struct attention_block *b)
{
    struct order o;
    struct attention_plan p;
    if (!order_begin(w, &o))
        return false;
    if (order_is_taken(w, BLOCK_ATTENTION, b))
        return true;
    const bool ok = plan_attention(&o, b, &p) && order_fetch(&o, "a layer's attention weights");
    if (ok)
        order_enter(&o, BLOCK_ATTENTION, b, bind_attention(&o, b, &p));
    order_end(&o);
    return ok;
}

struct ffn_plan {
    struct run dense[3], router, experts[3], shared[3];
    bool shared_inside;
    int norm, selection_bias;
};

static const struct weight_matrix *part_of(const struct mlp_weights *m, int part)
{
    return part == 0 ? &m->gate : part == 1 ? &m->up : &m->down;
}

static bool alike(const struct weight_matrix *a, const struct weight_matrix *b)
{
    return a->format == b->format && a->out == b->out && a->in == b->in;
}

static bool plan_mlp(struct order *o, const struct mlp_weights *m, struct run out[3])
{
    for (int part = 0; part < 3; part++)
        if (!order_matrix(o, part_of(m, part), &out[part]))
            return false;
    return true;
}

static bool plan_experts(struct order *o, const struct ffn_block *b, struct ffn_plan *p)
{
    p->shared_inside = b->has_shared;
    for (int part = 0; part < 3; part++) {
        const struct weight_matrix *first = part_of(&b->expert[0], part);
        p->shared_inside = p->shared_inside && alike(first, part_of(&b->shared, part));
        for (int e = 1; e < b->experts; e++)
            if (!alike(first, part_of(&b->expert[e], part)))
                return order_refuse(o->w, "experts of several formats or sizes");
    }
    const int count = b->experts + (p->shared_inside ? 1 : 0);
    const struct weight_matrix **all =
        (const struct weight_matrix **)memory_alloc((size_t)count * sizeof *all);
    bool ok = true;
    for (int part = 0; ok && part < 3; part++) {
        for (int e = 0; e < count; e++)
            all[e] = part_of(e < b->experts ? &b->expert[e] : &b->shared, part);
        ok = order_run(o, all, count, &p->experts[part]);
    }
    free(all);
    return ok && (!b->has_shared || p->shared_inside || plan_mlp(o, &b->shared, p->shared));
}

static bool plan_ffn(struct order *o, const struct ffn_block *b, struct ffn_plan *p)
{
    memset(p, 0, sizeof *p);
    p->selection_bias = -1;
    p->norm = order_plain(o, b->norm, 1, (size_t)(b->sparse ? b->router.in : b->dense.gate.in) * 2);
    if (!b->sparse)
        return plan_mlp(o, &b->dense, p->dense);
    if (b->experts < 1 || b->expert == NULL || b->experts > CUDA_MOST_EXPERTS ||
        b->top_k > CUDA_MOST_TOP_K)
        return order_refuse(o->w, "more experts than 512, or more than 16 for a token");
    if (b->selection_bias != NULL)
        p->selection_bias =
            order_plain(o, b->selection_bias, 1, (size_t)b->experts * sizeof(float));
    return order_matrix(o, &b->router, &p->router) && plan_experts(o, b, p);
}

static struct cuda_experts bind_experts(const struct order *o, const struct run *r, int count)
{
    struct cuda_experts e = {};
    e.first = order_bind_rows(o, r, 0, r->out / count);
    e.count = count;
    e.data_stride = (size_t)e.first.out * e.first.row_bytes;
    e.scale_stride = (size_t)e.first.out * e.first.scale_bytes;
    return e;
}

static struct cuda_ffn *bind_ffn(const struct order *o, const struct ffn_block *b,
                                 const struct ffn_plan *p)
{
    struct cuda_ffn *f = (struct cuda_ffn *)memory_alloc(sizeof *f);
    f->block = b;
    f->norm = (const uint16_t *)order_bind_plain(o, p->norm);
    if (!b->sparse) {
        f->dense_gate = order_bind(o, &p->dense[0]);
        f->dense_up = order_bind(o, &p->dense[1]);
        f->dense_down = order_bind(o, &p->dense[2]);
        return f;
    }
    const int count = b->experts + (p->shared_inside ? 1 : 0);
    f->router = order_bind(o, &p->router);
    f->selection_bias = (const float *)order_bind_plain(o, p->selection_bias);
    f->gate = bind_experts(o, &p->experts[0], count);
    f->up = bind_experts(o, &p->experts[1], count);
    f->down = bind_experts(o, &p->experts[2], count);
    f->shared_inside = p->shared_inside;
    if (b->has_shared && !p->shared_inside) {
        f->shared_gate = order_bind(o, &p->shared[0]);
        f->shared_up = order_bind(o, &p->shared[1]);
        f->shared_down = order_bind(o, &p->shared[2]);
    }
    return f;
}

bool cuda_weights_take_ffn(struct cuda_weights *w, const struct ffn_block *b)
{
    struct order o;
    struct ffn_plan p;
    if (!order_begin(w, &o))
        return false;
    if (order_is_taken(w, BLOCK_FFN, b))
        return true;
    const bool ok = plan_ffn(&o, b, &p) &&
                    order_fetch(&o, b->sparse ? "a layer's experts" : "a layer's ffn weights");
    if (ok)
        order_enter(&o, BLOCK_FFN, b, bind_ffn(&o, b, &p));
    order_end(&o);
    return ok;
}

bool cuda_weights_take_head(struct cuda_weights *w, const struct head_block *b)
{
    struct order o;
    struct run output;
    if (!order_begin(w, &o))
        return false;
    if (order_is_taken(w, BLOCK_HEAD, b))
        return true;
    const int norm = order_plain(&o, b->norm, 1, (size_t)b->output.in * 2);
    const bool ok = order_matrix(&o, &b->output, &output) && order_fetch(&o, "the head");
    if (ok) {
        struct cuda_head *h = (struct cuda_head *)memory_alloc(sizeof *h);
        h->block = b;
        h->norm = (const uint16_t *)order_bind_plain(&o, norm);
        h->output = order_bind(&o, &output);
        order_enter(&o, BLOCK_HEAD, b, h);
    }
    order_end(&o);
    return ok;
}

bool cuda_weights_take_context(struct cuda_weights *w, const struct context_block *b)
{
    struct order o;
    struct run fc;
    if (!order_begin(w, &o))
        return false;
    if (order_is_taken(w, BLOCK_CONTEXT, b))
        return true;
    if (b->taps < 1)
        return order_refuse(w, "a drafter without taps");
    const size_t row = (size_t)b->fc.out * 2;
    const int hidden_norm = order_plain(&o, b->hidden_norm, 1, row);
    const int tap_norm = order_piece(&o, STAGING_PLAIN, 0, row, row, b->taps);
    for (int i = 0; i < b->taps; i++)
        order_add_rows(&o, tap_norm, b->tap_norm[i], 1);
    const bool ok =
        order_matrix(&o, &b->fc, &fc) && order_fetch(&o, "the drafter's context weights");
    if (ok) {
        struct cuda_context *c = (struct cuda_context *)memory_alloc(sizeof *c);
        c->block = b;
        c->tap_norm = (const uint16_t *)order_bind_plain(&o, tap_norm);
        c->hidden_norm = (const uint16_t *)order_bind_plain(&o, hidden_norm);
        c->fc = order_bind(&o, &fc);
        order_enter(&o, BLOCK_CONTEXT, b, c);
    }
    order_end(&o);
    return ok;
}
