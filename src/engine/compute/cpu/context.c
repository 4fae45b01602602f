/* The context of a block drafter (dflash.md section 3): hidden rows of the target are kept as they
 * pass, become context rows, and enter each drafter layer as keys and values. */
#include "engine/compute/cpu/backend.h"
#include "engine/compute/cpu/machine.h"

#include <stdlib.h>
#include <string.h>

bool cpu_taps_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                  struct error *err)
{
    *out = NULL;
    struct tap_rows *t = calloc(1, sizeof *t);
    size_t bytes = 0;
    if (t != NULL && taps > 0 && capacity > 0) {
        t->backend = &cpu_backend;
        t->capacity = capacity;
        t->hidden = (size_t)c->shape.hidden;
        if (!__builtin_mul_overflow(t->hidden, (size_t)taps, &t->width) &&
            !__builtin_mul_overflow(t->width, (size_t)capacity, &bytes) &&
            !__builtin_mul_overflow(bytes, sizeof *t->rows, &bytes) &&
            pages_new(bytes, c->pages, &t->memory))
            t->rows = t->memory.data;
    }
    if (t == NULL || t->rows == NULL) {
        cpu_taps_free(t);
        return error_set(err, "OUT-OF-MEMORY", "no memory for the hidden rows of %lld positions",
                         (long long)capacity);
    }
    pages_populate(&t->memory); /* so that the first decoded tokens do not pay for them */
    *out = t;
    return true;
}

void cpu_taps_free(struct tap_rows *t)
{
    if (t == NULL)
        return;
    pages_free(&t->memory);
    free(t);
}

size_t cpu_taps_bytes(const struct tap_rows *t)
{
    return t->width * (size_t)t->capacity * sizeof *t->rows;
}

static float *tap_row(const struct tap_rows *t, int64_t position)
{
    return t->rows + (size_t)(position % t->capacity) * t->width;
}

void cpu_tap(struct compute *c, struct tap_rows *t, int tap, int64_t pos0, int rows)
{
    for (int r = 0; r < rows; r++)
        memcpy(tap_row(t, pos0 + r) + (size_t)tap * t->hidden, c->x + (size_t)r * t->hidden,
               t->hidden * sizeof *c->x);
}

void cpu_read_taps(const struct tap_rows *t, int64_t position, float *out)
{
    memcpy(out, tap_row(t, position), t->width * sizeof *out);
}

struct context_region {
    struct compute *c;
    const struct context_block *b;
    const struct tap_rows *taps;
    int64_t pos0;
    int rows;
    struct linear_job fc;
};

static void context_work(void *context, int thread, int threads)
{
    const struct context_region *g = context;
    const struct compute *c = g->c;
    const struct context_block *b = g->b;
    const int hidden = c->shape.hidden;
    float *y = (float *)(void *)thread_scratch(c, thread);
    const struct range mine = range_of(g->rows, 1, thread, threads);
    for (int r = mine.begin; r < mine.end; r++) {
        const float *x = tap_row(g->taps, g->pos0 + r);
        for (int j = 0; j < b->taps; j++)
            c->kernels->rms_norm(c->activations, x + (size_t)j * (size_t)hidden, b->tap_norm[j],
                                 hidden, b->eps, y + (size_t)j * (size_t)hidden);
        c->kernels->prepare(c->activations, y, b->fc.in, c->input + (size_t)r * c->input_stride);
    }
    pool_barrier(c->pool, thread);
    linear_jobs_run(c, &g->fc, 1, thread, threads);
    pool_barrier(c->pool, thread);
    for (int r = mine.begin; r < mine.end; r++) {
        float *x = c->x + (size_t)r * (size_t)hidden;
        c->kernels->rms_norm(c->activations, x, b->hidden_norm, hidden, b->eps, x);
    }
}

void cpu_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                 int64_t pos0, int rows)
{
    if (rows <= 0)
        return;
    const uint64_t mode = machine_float_enter();
    rows_point(c, rows);
    struct context_region g = {.c = c, .b = b, .taps = t, .pos0 = pos0, .rows = rows};
    g.fc = (struct linear_job){
        .w = &b->fc, .x = c->rows, .rows = rows, .y = c->x, .y_stride = (size_t)c->shape.hidden};
    pool_run(c->pool, region_threads(c, linear_jobs_cost(&g.fc, 1), rows), context_work, &g);
    machine_float_leave(mode);
}

struct append_region {
    struct compute *c;
    const struct attention_block *b;
    struct kv_layer *kv;
    int64_t pos0;
    int rows;
    struct linear_job project[2];
};

static void append_work(void *context, int thread, int threads)
{
    const struct append_region *g = context;
    const struct compute *c = g->c;
    rows_normalize(c, g->b->input_norm, g->b->eps, 0, g->rows, thread, threads);
    rows_sum_groups(c, g->project, 2, c->shape.hidden, g->rows, thread, threads);
    pool_barrier(c->pool, thread);
    linear_jobs_run(c, g->project, 2, thread, threads);
    pool_barrier(c->pool, thread);
    kv_append(c, g->b, g->kv, g->pos0, g->rows, thread, threads);
}

void cpu_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                int64_t pos0, int rows)
{
    if (rows <= 0)
        return;
    const uint64_t mode = machine_float_enter();
    rows_point(c, rows);
    struct append_region g = {.c = c, .b = b, .kv = kv, .pos0 = pos0, .rows = rows};
    const struct weight_matrix *const weights[] = {&b->k, &b->v};
    float *const outputs[] = {c->k, c->v};
    for (int i = 0; i < 2; i++)
        g.project[i] = (struct linear_job){.w = weights[i],
                                           .x = c->rows,
                                           .rows = rows,
                                           .y = outputs[i],
                                           .y_stride = (size_t)weights[i]->out};
    pool_run(c->pool, region_threads(c, linear_jobs_cost(g.project, 2), rows), append_work, &g);
    machine_float_leave(mode);
}
