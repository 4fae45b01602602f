/* The attention block (laguna.md section 5): norm, projections, per-head norm, rotary, cache,
 * softmax over the visible keys, gate per head, output projection, residual. */
#include "engine/compute/cpu/backend.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/trace.h"

#include <math.h>

struct attention_region {
    struct compute *c;
    const struct attention_block *b;
    struct kv_layer *kv;
    int64_t pos0;
    int rows;
    float scale;
    struct linear_job project[4], output;
};

void kv_append(const struct compute *c, const struct attention_block *b, struct kv_layer *kv,
               int64_t pos0, int rows, int thread, int threads)
{
    const size_t dim = (size_t)b->head_dim, narrow = dim * (size_t)b->kv_heads;
    const struct range mine = range_of(rows * b->kv_heads, 1, thread, threads);
    for (int i = mine.begin; i < mine.end; i++) {
        const int r = i / b->kv_heads, h = i % b->kv_heads;
        const int64_t position = pos0 + r;
        float *k = c->k + (size_t)r * narrow + (size_t)h * dim;
        const float *v = c->v + (size_t)r * narrow + (size_t)h * dim;
        c->kernels->rms_norm(c->activations, k, b->k_norm, b->head_dim, b->eps, k);
        c->kernels->rope(c->activations, b->rope, position, k);
        const size_t slot = (size_t)h * (size_t)kv->capacity + (size_t)(position % kv->capacity);
        kernel_key_store(c->kernels, c->activations, k, b->head_dim,
                         kv->keys + slot * kv->key_bytes);
        kernel_value_store(c->activations, v, b->head_dim, kv->values + slot * kv->value_bytes);
    }
}

/* `count` query heads from `first` on, all of one key/value head, of row r. */
static void attend(const struct attention_region *g, int r, int kv_head, int first, int count,
                   int thread)
{
    const struct compute *c = g->c;
    const struct attention_block *b = g->b;
    const size_t dim = (size_t)b->head_dim, wide = dim * (size_t)b->heads;
    const int64_t position = g->pos0 + r;

    /* Thread scratch: the kernel's, prepared queries, pointers to them, gates. */
    uint8_t *piece = thread_scratch(c, thread);
    float *scratch = (float *)(void *)piece;
    piece += kernel_attention_scratch(b->head_dim) * sizeof(float);
    const size_t stride = prepared_stride(c, b->head_dim);
    uint8_t *prepared = piece;
    piece += (size_t)count * stride;
    const void **q = (const void **)(void *)piece;
    piece += (size_t)count * sizeof *q;
    float *gate = (float *)(void *)piece;

    for (int i = 0; i < count; i++) {
        float *x = c->q + (size_t)r * wide + (size_t)(first + i) * dim;
        c->kernels->rms_norm(c->activations, x, b->q_norm, b->head_dim, b->eps, x);
        c->kernels->rope(c->activations, b->rope, position, x);
        q[i] = prepared + (size_t)i * stride;
        c->kernels->prepare(c->activations, x, b->head_dim, prepared + (size_t)i * stride);
    }
    c->kernels->softplus(c->activations, c->gate_logit + (size_t)r * (size_t)b->heads + first,
                         count, gate);

    const int64_t oldest = b->window > 0 ? position - b->window + 1 : 0;
    const size_t ring = (size_t)kv_head * (size_t)g->kv->capacity;
    const struct attention_call call = {.heads = count,
                                        .head_dim = b->head_dim,
                                        .scale = g->scale,
                                        .q = q,
                                        .gate = gate,
                                        .keys = g->kv->keys + ring * g->kv->key_bytes,
                                        .values = g->kv->values + ring * g->kv->value_bytes,
                                        .capacity = g->kv->capacity,
                                        .first = oldest > 0 ? oldest : 0,
                                        .last = position,
                                        .out = c->heads + (size_t)r * wide + (size_t)first * dim,
                                        .scratch = scratch};
    c->kernels->attention(c->activations, &call);
}

/* Items are (key/value head, row), taken in turn so that late rows, which see more keys, are
 * shared out, and so that the rows of a head find its keys in the cache; when there are fewer items
 * than threads, the query heads of an item are cut too. */
static void attend_all(const struct attention_region *g, int thread, int threads)
{
    const struct attention_block *b = g->b;
    const int group = b->heads / b->kv_heads, items = g->rows * b->kv_heads;
    int parts = (threads + items - 1) / items;
    if (parts > group)
        parts = group;
    for (int i = thread; i < items * parts; i += threads) {
        const int item = i / parts, part = i % parts;
        const struct range heads = range_of(group, 1, part, parts);
        const int kv_head = item / g->rows;
        attend(g, item % g->rows, kv_head, kv_head * group + heads.begin, heads.end - heads.begin,
               thread);
    }
}

static void attention_work(void *context, int thread, int threads)
{
    const struct attention_region *g = context;
    const struct compute *c = g->c;
    const int wide = g->b->heads * g->b->head_dim;

    rows_normalize(c, g->b->input_norm, g->b->eps, 0, g->rows, thread, threads);
    rows_sum_groups(c, g->project, 4, c->shape.hidden, g->rows, thread, threads);
    pool_barrier(c->pool, thread);
    meter_mark(c, thread, METER_PROJECT);
    linear_jobs_run(c, g->project, 4, thread, threads);
    pool_barrier(c->pool, thread);
    meter_mark(c, thread, METER_ATTEND);
    kv_append(c, g->b, g->kv, g->pos0, g->rows, thread, threads);
    pool_barrier(c->pool, thread);
    attend_all(g, thread, threads);
    pool_barrier(c->pool, thread);
    meter_mark(c, thread, METER_OUTPUT);
    const struct range mine = range_of(g->rows, 1, thread, threads);
    for (int r = mine.begin; r < mine.end; r++)
        c->kernels->prepare(c->activations, c->heads + (size_t)r * (size_t)wide, wide,
                            c->input + (size_t)r * c->input_stride);
    rows_sum_groups(c, &g->output, 1, wide, g->rows, thread, threads);
    pool_barrier(c->pool, thread);
    linear_jobs_run(c, &g->output, 1, thread, threads);
}

/* What the block read: weights once, the keys and values that any of its rows sees. */
static void measure(const struct attention_region *g)
{
    const struct attention_block *b = g->b;
    struct compute_meter *m = g->c->meter;
    for (int i = 0; i < 4; i++)
        meter_linear(m, METER_PROJECT, g->project[i].w, g->rows);
    meter_linear(m, METER_OUTPUT, g->output.w, g->rows);
    for (int r = 0; r < g->rows; r++) {
        const int64_t p = g->pos0 + r + 1, seen = b->window > 0 && p > b->window ? b->window : p;
        m->part[METER_ATTEND].flops += 4.0 * (double)seen * b->heads * b->head_dim;
    }
    const int64_t oldest = b->window > 0 ? g->pos0 - b->window + 1 : 0;
    m->kv_bytes += (uint64_t)(g->pos0 + g->rows - (oldest > 0 ? oldest : 0)) *
                   (uint64_t)b->kv_heads * (g->kv->key_bytes + g->kv->value_bytes);
    meter_switch(m, METER_REST);
}

void cpu_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                   int64_t pos0, int rows)
{
    if (rows <= 0)
        return;
    const uint64_t mode = machine_float_enter();
    rows_point(c, rows);
    struct attention_region g = {.c = c, .b = b, .kv = kv, .pos0 = pos0, .rows = rows};
    g.scale = (float)(1.0 / sqrt((double)b->head_dim));
    const struct weight_matrix *const weights[] = {&b->q, &b->k, &b->v, &b->gate};
    float *const outputs[] = {c->q, c->k, c->v, c->gate_logit};
    for (int i = 0; i < 4; i++)
        g.project[i] = (struct linear_job){.w = weights[i],
                                           .x = c->rows,
                                           .rows = rows,
                                           .y = outputs[i],
                                           .y_stride = (size_t)weights[i]->out};
    g.output = (struct linear_job){.w = &b->o,
                                   .x = c->rows,
                                   .rows = rows,
                                   .y = c->x,
                                   .y_stride = (size_t)c->shape.hidden,
                                   .add = true};
    const double cost = linear_jobs_cost(g.project, 4) + linear_jobs_cost(&g.output, 1);
    pool_run(c->pool, region_threads(c, cost, rows), attention_work, &g);
    if (c->meter != NULL)
        measure(&g);
    if (rows * b->kv_heads >= pool_threads(c->pool))
        trace_ran(TRACE_ATTENTION_GROUP);
    else
        trace_fell_back(TRACE_ATTENTION_GROUP,
                        "fewer key/value heads than threads: the query heads of one are shared "
                        "out, and its keys read by each");
    machine_float_leave(mode);
}
