/* The ffn block (laguna.md section 6): norm, then a dense SwiGLU or routed experts with a shared
 * one, residual. Rows are grouped by expert so that an expert's weights are read once; a row's
 * result does not depend on the grouping. */
#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/backend.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/trace.h"

#include <math.h>
#include <string.h>

struct ffn_region {
    struct compute *c;
    const struct ffn_block *b;
    int rows;
    struct linear_job router;
    struct linear_job *up_jobs, *down_jobs; /* gate and up of each expert in use; its down */
    int up_count, down_count;
    /* Entries are of two widths: routed ones first, then the shared (or dense) ones. */
    int routed, plain;
    int routed_width, plain_width;
};

/* Where an entry's row of gate or up (in floats) and its prepared input (in bytes) begin. */
static size_t entry_floats(const struct ffn_region *g, int entry)
{
    if (entry < g->routed)
        return (size_t)entry * (size_t)g->routed_width;
    return (size_t)g->routed * (size_t)g->routed_width +
           (size_t)(entry - g->routed) * (size_t)g->plain_width;
}

static size_t entry_bytes(const struct ffn_region *g, int entry)
{
    const size_t routed = prepared_stride(g->c, g->routed_width);
    if (entry < g->routed)
        return (size_t)entry * routed;
    return (size_t)g->routed * routed +
           (size_t)(entry - g->routed) * prepared_stride(g->c, g->plain_width);
}

/* Jobs of one mlp over `count` entries from `first` on; x points to their inputs. */
static void add_jobs(struct ffn_region *g, const struct mlp_weights *m, int first, int count,
                     const void *const *x, float *out, bool add)
{
    struct compute *c = g->c;
    const size_t at = entry_floats(g, first);
    const void **inner = c->rows + c->shape.max_rows * (c->shape.max_top_k + 2) + first;
    for (int i = 0; i < count; i++)
        inner[i] = c->ffn_input + entry_bytes(g, first + i);
    const size_t width = (size_t)m->gate.out, hidden = (size_t)c->shape.hidden;
    g->up_jobs[g->up_count++] = (struct linear_job){
        .w = &m->gate, .x = x, .rows = count, .y = c->ffn_gate + at, .y_stride = width};
    g->up_jobs[g->up_count++] = (struct linear_job){
        .w = &m->up, .x = x, .rows = count, .y = c->ffn_up + at, .y_stride = width};
    g->down_jobs[g->down_count++] = (struct linear_job){
        .w = &m->down, .x = inner, .rows = count, .y = out, .y_stride = hidden, .add = add};
}

/* Whether key a ranks before key b; NaN ranks last. */
static bool ranks_before(float a, float b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* Scores, selection and mixture weights of one row: descending score + bias, ties to the lower
 * index; the weights come from the unbiased scores. */
static void route_row(const struct ffn_region *g, int r)
{
    const struct compute *c = g->c;
    const struct ffn_block *b = g->b;
    float *score = c->router + (size_t)r * (size_t)b->experts;
    float *key = c->router_key + (size_t)r * (size_t)b->experts;
    int *chosen = c->chosen + (size_t)r * (size_t)b->top_k;
    float *mix = c->mix + (size_t)r * (size_t)b->top_k;
    c->kernels->sigmoid(score, b->experts, score);
    for (int e = 0; e < b->experts; e++) {
        float bias;
        memcpy(&bias, (const uint8_t *)(const void *)b->selection_bias + 4 * (size_t)e,
               sizeof bias);
        key[e] = score[e] + bias;
    }
    float sum = 0.0f;
    for (int i = 0; i < b->top_k; i++) {
        int best = -1;
        for (int e = 0; e < b->experts; e++) {
            bool taken = false;
            for (int j = 0; j < i; j++)
                taken = taken || chosen[j] == e;
            if (!taken && (best < 0 || ranks_before(key[e], key[best])))
                best = e;
        }
        chosen[i] = best;
        sum = sum + score[best];
    }
    for (int i = 0; i < b->top_k; i++) {
        const float w = b->normalize_top_k ? score[chosen[i]] / sum : score[chosen[i]];
        mix[i] = c->activations == ACTIVATIONS_BF16 ? bf16_to_f32(f32_to_bf16(w)) : w;
    }
}

/* Sorts the rows' choices by expert and makes the jobs. */
static void group_by_expert(struct ffn_region *g)
{
    struct compute *c = g->c;
    const struct ffn_block *b = g->b;
    int *start = c->expert_start, *filled = c->expert_filled;
    for (int e = 0; e < b->experts; e++)
        filled[e] = 0;
    for (int i = 0; i < g->routed; i++)
        filled[c->chosen[i]]++;
    start[0] = 0;
    for (int e = 0; e < b->experts; e++) {
        start[e + 1] = start[e] + filled[e];
        filled[e] = 0;
    }
    const void **inputs = c->rows + c->shape.max_rows;
    for (int i = 0; i < g->routed; i++) {
        const int e = c->chosen[i], entry = start[e] + filled[e]++;
        c->entry_of[i] = entry;
        inputs[entry] = c->rows[i / b->top_k];
    }
    const size_t hidden = (size_t)c->shape.hidden;
    for (int e = 0; e < b->experts; e++)
        if (filled[e] > 0)
            add_jobs(g, &b->expert[e], start[e], filled[e], inputs + start[e],
                     c->ffn_out + (size_t)start[e] * hidden, false);
    if (b->has_shared)
        add_jobs(g, &b->shared, g->routed, g->rows, c->rows,
                 c->ffn_out + (size_t)g->routed * hidden, false);
}

static void route(struct ffn_region *g, int thread, int threads)
{
    const struct compute *c = g->c;
    linear_jobs_run(c, &g->router, 1, thread, threads);
    pool_barrier(c->pool, thread);
    const bool together = g->rows >= threads;
    const struct range mine = range_of(g->rows, 1, thread, threads);
    for (int r = mine.begin; together && r < mine.end; r++)
        route_row(g, r);
    if (together)
        pool_barrier(c->pool, thread);
    if (thread == 0) {
        for (int r = 0; !together && r < g->rows; r++)
            route_row(g, r);
        group_by_expert(g);
    }
    pool_barrier(c->pool, thread);
}

static void activate(const struct ffn_region *g, int thread, int threads)
{
    const struct compute *c = g->c;
    const struct range mine = range_of(g->routed + g->plain, 1, thread, threads);
    for (int i = mine.begin; i < mine.end; i++) {
        const int width = i < g->routed ? g->routed_width : g->plain_width;
        float *gate = c->ffn_gate + entry_floats(g, i);
        const float *up = c->ffn_up + entry_floats(g, i);
        c->kernels->silu_up(c->activations, gate, up, width, gate);
        c->kernels->prepare(c->activations, gate, width, c->ffn_input + entry_bytes(g, i));
    }
}

/* Weighted sum in selection order, scale, shared expert, residual; this thread's columns. */
static void combine(const struct ffn_region *g, int thread, int threads)
{
    const struct compute *c = g->c;
    const struct ffn_block *b = g->b;
    const struct cpu_kernels *k = c->kernels;
    const size_t hidden = (size_t)c->shape.hidden;
    const struct range mine = range_of(c->shape.hidden, KERNEL_LANES, thread, threads);
    const int n = mine.end - mine.begin;
    for (int r = 0; r < g->rows && n > 0; r++) {
        const int *entry = c->entry_of + (size_t)r * (size_t)b->top_k;
        const float *mix = c->mix + (size_t)r * (size_t)b->top_k;
        float *sum = c->ffn_out + (size_t)entry[0] * hidden + mine.begin;
        k->scale(c->activations, sum, mix[0], n, sum);
        for (int i = 1; i < b->top_k; i++)
            k->accumulate(c->activations, c->ffn_out + (size_t)entry[i] * hidden + mine.begin,
                          mix[i], n, sum);
        k->scale(c->activations, sum, b->routed_scale, n, sum);
        if (b->has_shared)
            k->add(c->activations, c->ffn_out + (size_t)(g->routed + r) * hidden + mine.begin, n,
                   sum);
        k->add(c->activations, sum, n, c->x + (size_t)r * hidden + mine.begin);
    }
}

/* What the sparse block read: each expert that any row chose, once. */
static void measure_experts(const struct ffn_region *g)
{
    const struct compute *c = g->c;
    struct compute_meter *m = c->meter;
    const uint64_t routed = m->part[METER_EXPERTS].bytes, shared = m->part[METER_SHARED].bytes;
    for (int e = 0; e < g->b->experts; e++) {
        const struct mlp_weights *w = &g->b->expert[e];
        const int rows = c->expert_start[e + 1] - c->expert_start[e];
        if (rows == 0)
            continue;
        meter_linear(m, METER_EXPERTS, &w->gate, rows);
        meter_linear(m, METER_EXPERTS, &w->up, rows);
        meter_linear(m, METER_EXPERTS, &w->down, rows);
        if (m->expert_rows != NULL && m->layer >= 0 && m->layer < m->expert_layers &&
            e < m->expert_stride)
            m->expert_rows[(size_t)m->layer * (size_t)m->expert_stride + (size_t)e] +=
                (uint64_t)rows;
    }
    if (g->b->has_shared) {
        meter_linear(m, METER_SHARED, &g->b->shared.gate, g->rows);
        meter_linear(m, METER_SHARED, &g->b->shared.up, g->rows);
        meter_linear(m, METER_SHARED, &g->b->shared.down, g->rows);
    }
    meter_linear(m, METER_ROUTER, &g->b->router, g->rows);
    meter_end_experts(m, m->part[METER_EXPERTS].bytes - routed,
                      m->part[METER_SHARED].bytes - shared);
}

static void ffn_work(void *context, int thread, int threads)
{
    struct ffn_region *g = context;
    const struct compute *c = g->c;
    rows_normalize(c, g->b->norm, g->b->eps, 0, g->rows, thread, threads);
    pool_barrier(c->pool, thread);
    if (g->b->sparse) {
        meter_mark(c, thread, METER_ROUTER);
        route(g, thread, threads);
    }
    meter_mark(c, thread, g->b->sparse ? METER_EXPERTS : METER_DENSE);
    linear_jobs_run(c, g->up_jobs, g->up_count, thread, threads);
    pool_barrier(c->pool, thread);
    activate(g, thread, threads);
    pool_barrier(c->pool, thread);
    linear_jobs_run(c, g->down_jobs, g->down_count, thread, threads);
    if (g->b->sparse) {
        pool_barrier(c->pool, thread);
        if (c->meter != NULL && thread == 0)
            measure_experts(g);
        combine(g, thread, threads);
    }
}

static double mlp_cost(const struct mlp_weights *m, double readings, double rows)
{
    return 3.0 * m->gate.in * m->gate.out * (2 * readings + rows);
}

void cpu_ffn(struct compute *c, const struct ffn_block *b, int rows)
{
    if (rows <= 0)
        return;
    const uint64_t mode = machine_float_enter();
    rows_point(c, rows);
    struct ffn_region g = {.c = c, .b = b, .rows = rows};
    g.up_jobs = c->jobs;
    g.down_jobs = c->jobs + 2 * (c->shape.max_experts + 1);
    double cost;
    if (b->sparse) {
        g.routed = rows * b->top_k;
        g.routed_width = b->expert[0].gate.out;
        g.plain = b->has_shared ? rows : 0;
        g.plain_width = b->has_shared ? b->shared.gate.out : 0;
        g.router = (struct linear_job){.w = &b->router,
                                       .x = c->rows,
                                       .rows = rows,
                                       .y = c->router,
                                       .y_stride = (size_t)b->experts};
        const int used = g.routed < b->experts ? g.routed : b->experts;
        cost = linear_jobs_cost(&g.router, 1) + mlp_cost(&b->expert[0], used, g.routed);
        if (b->has_shared)
            cost += mlp_cost(&b->shared, 1, rows);
    } else {
        g.plain = rows;
        g.plain_width = b->dense.gate.out;
        add_jobs(&g, &b->dense, 0, rows, c->rows, c->x, true);
        cost = mlp_cost(&b->dense, 1, rows);
    }
    pool_run(c->pool, region_threads(c, cost, rows), ffn_work, &g);
    if (b->sparse && rows > 1)
        trace_ran(TRACE_EXPERT_UNION);
    if (b->sparse && b->has_shared)
        trace_ran(TRACE_SHARED_EXPERT);
    if (c->meter != NULL) {
        if (!b->sparse) {
            meter_linear(c->meter, METER_DENSE, &b->dense.gate, rows);
            meter_linear(c->meter, METER_DENSE, &b->dense.up, rows);
            meter_linear(c->meter, METER_DENSE, &b->dense.down, rows);
        }
        meter_switch(c->meter, METER_REST);
    }
    machine_float_leave(mode);
}
