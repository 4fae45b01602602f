/* The backend itself, the small blocks (embedding, head), and what all blocks share. */
#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/backend.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool shape_is_sane(const struct compute_shape *s)
{
    enum { LIMIT = 1 << 24 }; /* of any one size; keeps products of two within size_t */
    const int sizes[] = {s->max_rows,     s->hidden,   s->vocab,        s->max_heads,
                         s->max_kv_heads, s->head_dim, s->max_ffn_width};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i] < 1 || sizes[i] > LIMIT)
            return false;
    const int counts[] = {s->max_experts, s->max_top_k, s->max_expert_width, s->max_context_width};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i] < 0 || counts[i] > LIMIT)
            return false;
    return (int64_t)s->head_dim * s->max_heads <= LIMIT;
}

void cpu_set_meter(struct compute *c, struct compute_meter *m)
{
    c->meter = m;
}

struct compute_meter *cpu_get_meter(const struct compute *c)
{
    return c->meter;
}

/* All of an instance but its scratch. Without a pool to borrow it starts its own threads. */
static bool begin(const struct cpu_kernels *kernels, enum activations activations,
                  const struct compute_shape *shape, struct pool *borrowed, int threads,
                  struct compute **out, struct error *err)
{
    if (!shape_is_sane(shape))
        return error_set(err, "OUT-OF-MEMORY", "a size of the model is out of range");
    struct compute *c = calloc(1, sizeof *c);
    if (c == NULL)
        return error_set(err, "OUT-OF-MEMORY", "no memory for the CPU backend");
    c->backend = &cpu_backend;
    c->kernels = kernels;
    c->activations = activations;
    c->shape = *shape;
    /* About 100 microseconds of one core: below it, what other threads could save is less than what
     * waiting for one of them costs when the machine has something else to do. */
    c->cost_alone = 4e6;
    /* About 8 microseconds: rounds of several rows come in a row of such regions, in which a thread
     * that is awake answers within half of one. Single steps are left alone: what they would gain
     * is little, and keeps a core from others. */
    c->cost_awake = 8e5;
    /* About 0.3 ms, a region of a large model: there a thread without a core costs no more, on
     * average, than going on without it would. */
    c->cost_long = 3e7;
    c->cost_per_thread = 4e5;
    c->pool = borrowed;
    c->borrows_pool = borrowed != NULL;
    c->meter = borrowed == NULL ? compute_default_meter() : NULL;
    if (borrowed == NULL && !pool_new(threads, &c->pool, err)) {
        free(c);
        return false;
    }
    *out = c;
    return true;
}

static bool finish(struct compute *c, struct compute **out, struct error *err)
{
    c->threads = pool_threads(c->pool);
    if (!scratch_new(c)) {
        const size_t wanted = scratch_bytes(c);
        cpu_free(c);
        return error_set(err, "OUT-OF-MEMORY", "no memory for %zu bytes of scratch", wanted);
    }
    snprintf(c->name, sizeof c->name, "cpu %s, %d thread%s", c->kernels->name, c->threads,
             c->threads == 1 ? "" : "s");
    *out = c;
    return true;
}

static void trace_kernels(const struct cpu_kernels *chosen, enum activations a)
{
    const struct cpu_kernels *have[KERNELS_MAX];
    if (chosen == have[kernels_available(have) - 1])
        trace_ran(TRACE_BEST_KERNELS);
    else
        trace_fell_back(TRACE_BEST_KERNELS, "another one was asked for");
    if (strcmp(chosen->name, "avx512") != 0)
        trace_fell_back(TRACE_BF16_DOT, "only the avx512 kernels have it (VDPBF16PS)");
    else if (a == ACTIVATIONS_F32)
        trace_fell_back(TRACE_BF16_DOT, "activations are float32");
    else
        trace_ran(TRACE_BF16_DOT);
}

bool cpu_new(const struct compute_options *options, const struct compute_shape *shape,
             struct compute **out, struct error *err)
{
    *out = NULL;
    const struct cpu_kernels *kernels = NULL;
    struct compute *c = NULL;
    if (!kernels_choose(options->cpu, &kernels, err))
        return false;
    trace_kernels(kernels, options->activations);
    if (!begin(kernels, options->activations, shape, NULL, options->threads, &c, err))
        return false;
    c->pages = options->small_pages ? PAGES_ORDINARY : PAGES_HUGE;
    return finish(c, out, err);
}

bool cpu_scratch_bytes(const struct compute_options *options, const struct compute_shape *shape,
                       uint64_t *out, struct error *err)
{
    struct compute c = {.activations = options->activations, .shape = *shape};
    if (!shape_is_sane(shape))
        return error_set(err, "OUT-OF-MEMORY", "a size of the model is out of range");
    if (!kernels_choose(options->cpu, &c.kernels, err))
        return false;
    c.threads = pool_choose_threads(options->threads);
    *out = scratch_bytes(&c);
    return true;
}

bool cpu_new_beside(struct compute *owner, const struct compute_shape *shape, struct compute **out,
                    struct error *err)
{
    *out = NULL;
    struct compute *c = NULL;
    if (!begin(owner->kernels, owner->activations, shape, owner->pool, 0, &c, err))
        return false;
    c->pages = owner->pages;
    return finish(c, out, err);
}

void cpu_free(struct compute *c)
{
    if (c == NULL)
        return;
    if (!c->borrows_pool)
        pool_free(c->pool);
    pages_free(&c->memory);
    free(c);
}

const char *cpu_name(const struct compute *c)
{
    return c->name;
}

const char *cpu_kernels_name(const struct compute *c)
{
    return c->kernels->name;
}

int cpu_threads(const struct compute *c)
{
    return pool_threads(c->pool);
}

/* ---- Shared by the blocks ---- */

uint8_t *thread_scratch(const struct compute *c, int thread)
{
    return c->thread_scratch + (size_t)thread * c->thread_bytes;
}

struct range range_of(int n, int unit, int thread, int threads)
{
    const int64_t pieces = ((int64_t)n + unit - 1) / unit;
    const int64_t begin = pieces * thread / threads * unit;
    const int64_t end = pieces * (thread + 1) / threads * unit;
    const struct range r = {(int)(begin < n ? begin : n), (int)(end < n ? end : n)};
    return r;
}

int region_threads(const struct compute *c, double cost, int rows)
{
    int most = pool_threads(c->pool);
    if (c->cost_alone > 0) {
        const bool small = cost < (rows > 1 ? c->cost_awake : c->cost_alone);
        if (small && most > 1)
            trace_fell_back(TRACE_SHARED_REGIONS, "a block this small is faster on one thread");
        if (most == 1 || small)
            return 1;
        if (cost < c->cost_long)
            most = pool_ready(c->pool, cost >= c->cost_alone);
        if (most == 1)
            trace_fell_back(TRACE_SHARED_REGIONS, "something else wants the cores");
        else
            trace_ran(TRACE_SHARED_REGIONS);
    }
    const double n = 1 + cost / c->cost_per_thread;
    return n < most ? (int)n : most;
}

static double output_cost(const struct linear_job *j)
{
    return (double)j->w->in * (j->rows + 2);
}

double linear_jobs_cost(const struct linear_job *jobs, int count)
{
    double cost = 0;
    for (int i = 0; i < count; i++)
        cost += output_cost(&jobs[i]) * jobs[i].w->out;
    return cost;
}

/* The first output of a job that lies past a point of the whole cost, in pieces of eight. */
static int output_at(const struct linear_job *j, double before, double point)
{
    enum { PIECE = 8 };
    const double outputs = (point - before) / output_cost(j);
    if (outputs <= 0)
        return 0;
    if (outputs >= j->w->out)
        return j->w->out;
    const int o = kernel_pad((int)outputs, PIECE);
    return o < j->w->out ? o : j->w->out;
}

/* Outputs [first, end) of a job with its picks: taken from each piece while it is in the
 * first-level cache. */
static void run_and_pick(const struct compute *c, struct linear_call *call, int end,
                         struct head_pick *picks)
{
    enum { PIECE = 128 };
    for (; call->first < end; call->first += call->count) {
        call->count = end - call->first < PIECE ? end - call->first : PIECE;
        c->kernels->linear(c->activations, call);
        for (int r = 0; r < call->rows; r++)
            c->kernels->pick(call->y + (size_t)r * call->y_stride + call->first, call->first,
                             call->count, &picks[r]);
    }
}

void linear_jobs_run(const struct compute *c, const struct linear_job *jobs, int count, int thread,
                     int threads)
{
    const double total = linear_jobs_cost(jobs, count);
    const double low = total * thread / threads, high = total * (thread + 1) / threads;
    double before = 0;
    for (int i = 0; i < count; i++) {
        const struct linear_job *j = &jobs[i];
        const int first = thread == 0 ? 0 : output_at(j, before, low);
        const int end = thread == threads - 1 ? j->w->out : output_at(j, before, high);
        before += output_cost(j) * j->w->out;
        if (first >= end)
            continue;
        struct linear_call call = {.w = j->w,
                                   .x = j->x,
                                   .rows = j->rows,
                                   .first = first,
                                   .count = end - first,
                                   .y = j->y,
                                   .y_stride = j->y_stride,
                                   .add = j->add};
        if (j->picks != NULL)
            run_and_pick(c, &call, end, j->picks + (size_t)thread * (size_t)c->shape.max_rows);
        else
            c->kernels->linear(c->activations, &call);
    }
}

void rows_normalize(const struct compute *c, const uint16_t *norm, float eps, int first_row,
                    int rows, int thread, int threads)
{
    const int hidden = c->shape.hidden;
    float *y = (float *)(void *)thread_scratch(c, thread);
    const struct range mine = range_of(rows, 1, thread, threads);
    for (int r = mine.begin; r < mine.end; r++) {
        const float *x = c->x + (size_t)(first_row + r) * (size_t)hidden;
        c->kernels->rms_norm(c->activations, x, norm, hidden, eps, y);
        c->kernels->prepare(c->activations, y, hidden, c->input + (size_t)r * c->input_stride);
    }
}

void rows_sum_groups(const struct compute *c, const struct linear_job *jobs, int count, int n,
                     int rows, int thread, int threads)
{
    bool wanted = false;
    for (int i = 0; i < count; i++)
        wanted = wanted || jobs[i].w->format == WEIGHT_INT8_AFFINE32;
    const struct range mine = range_of(rows, 1, thread, threads);
    for (int r = mine.begin; wanted && r < mine.end; r++)
        c->kernels->group_sums(c->activations, n, c->input + (size_t)r * c->input_stride);
}

void rows_point(struct compute *c, int rows)
{
    for (int r = 0; r < rows; r++)
        c->rows[r] = c->input + (size_t)r * c->input_stride;
}

/* ---- Embedding, head, reading ---- */

void cpu_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids, int rows)
{
    const size_t hidden = (size_t)c->shape.hidden;
    meter_mark(c, 0, METER_EMBED);
    for (int r = 0; r < rows; r++) {
        const uint8_t *row = (const uint8_t *)table->data + (size_t)ids[r] * hidden * 2;
        float *x = c->x + (size_t)r * hidden;
        for (size_t i = 0; i < hidden; i++) {
            uint16_t b;
            memcpy(&b, row + 2 * i, sizeof b);
            x[i] = bf16_to_f32(b);
        }
    }
    if (c->meter != NULL) {
        c->meter->part[METER_EMBED].bytes += (uint64_t)rows * hidden * 2;
        meter_switch(c->meter, METER_REST);
    }
}

struct head_region {
    struct compute *c;
    const struct head_block *b;
    struct linear_job job;
    int first_row;
};

static void head_work(void *context, int thread, int threads)
{
    const struct head_region *h = context;
    for (int r = 0; h->job.picks != NULL && r < h->job.rows; r++)
        h->job.picks[(size_t)thread * (size_t)h->c->shape.max_rows + r] =
            (struct head_pick){{-1, -1}, {-INFINITY, -INFINITY}};
    rows_normalize(h->c, h->b->norm, h->b->eps, h->first_row, h->job.rows, thread, threads);
    pool_barrier(h->c->pool, thread);
    meter_mark(h->c, thread, METER_HEAD);
    linear_jobs_run(h->c, &h->job, 1, thread, threads);
}

/* Threads have ascending parts of the outputs; one that had none left its picks empty. */
static void merge_picks(const struct compute *c, int threads, int rows, struct head_pick *picks)
{
    for (int r = 0; r < rows; r++) {
        picks[r] = c->picks[r];
        for (int t = 1; t < threads; t++) {
            const struct head_pick *more = &c->picks[(size_t)t * (size_t)c->shape.max_rows + r];
            for (int i = 0; i < 2 && more->token[i] >= 0; i++)
                kernel_pick_one(&picks[r], more->token[i], more->logit[i]);
        }
    }
}

void cpu_head(struct compute *c, const struct head_block *b, int first_row, int rows, float *logits,
              struct head_pick *picks)
{
    if (rows <= 0)
        return;
    const uint64_t mode = machine_float_enter();
    rows_point(c, rows);
    struct head_region h = {.c = c, .b = b, .first_row = first_row};
    h.job = (struct linear_job){.w = &b->output,
                                .x = c->rows,
                                .rows = rows,
                                .y = logits,
                                .y_stride = (size_t)b->output.out,
                                .picks = picks == NULL ? NULL : c->picks};
    const int threads = region_threads(c, linear_jobs_cost(&h.job, 1), rows);
    pool_run(c->pool, threads, head_work, &h);
    if (picks != NULL) {
        merge_picks(c, threads, rows, picks);
        trace_ran(TRACE_HEAD_PICKS);
    } else {
        trace_fell_back(TRACE_HEAD_PICKS, "only the logits were asked for");
    }
    if (c->meter != NULL) {
        meter_linear(c->meter, METER_HEAD, &b->output, rows);
        meter_switch(c->meter, METER_REST);
    }
    machine_float_leave(mode);
}

void cpu_read_rows(const struct compute *c, int first_row, int rows, float *out)
{
    const size_t hidden = (size_t)c->shape.hidden;
    memcpy(out, c->x + (size_t)first_row * hidden, (size_t)rows * hidden * sizeof *out);
}
