/* The CPU backend's insides, shared by its blocks: the stream, scratch, and how linear layers are
 * cut over threads. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_BACKEND_H
#define MLXFAST_ENGINE_COMPUTE_CPU_BACKEND_H

#include "engine/compute/backend.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/pool.h"
#include "engine/compute/meter.h"
#include "engine/memory/pages.h"

struct compute {
    const struct compute_backend *backend;
    const struct cpu_kernels *kernels;
    enum activations activations;
    struct compute_shape shape;
    struct pool *pool;
    bool borrows_pool;
    struct compute_meter *meter; /* NULL: off */
    /* Costs (linear_jobs_cost) below which the caller works alone: at any time, and with several
     * rows when other threads are awake (0: it never does); from which all share it, busy as
     * the machine may be; and per thread. */
    double cost_alone, cost_awake, cost_long, cost_per_thread;
    char name[64];
    int threads;           /* of the pool */
    enum pages_kind pages; /* of this and of the keys and values */
    struct pages memory;   /* everything below */

    float *x;       /* the stream [max_rows, hidden] */
    uint8_t *input; /* prepared rows, input_stride bytes apart: of the norm's output, of the
                       attention's; [max_rows] */
    size_t input_stride;
    float *q, *k, *v, *gate_logit; /* [max_rows, heads * head_dim] .. [max_rows, heads] */
    float *heads;                  /* attention output [max_rows, heads * head_dim] */

    /* ffn: an "entry" is one row in one expert, grouped by expert, the shared expert last; a dense
     * layer has one entry per row. */
    float *ffn_gate, *ffn_up; /* [entries, width] */
    uint8_t *ffn_input;       /* prepared rows of silu(gate) * up */
    float *ffn_out;           /* [entries, hidden] */
    float *router;            /* [max_rows, experts]: logits, then scores */
    float *router_key;        /* [max_rows, experts]: score + bias */
    int *chosen;              /* [max_rows, top_k] experts in selection order */
    float *mix;               /* [max_rows, top_k] weights */
    int *entry_of;            /* [max_rows, top_k] the entry of a row's choice */
    int *expert_start;        /* [experts + 1] first entry of each expert */
    int *expert_filled;       /* [experts] */

    struct head_pick *picks; /* [threads, max_rows]: of each thread's part of the head */

    const void **rows;       /* pointers to prepared rows */
    struct linear_job *jobs; /* [3 * (experts + 1)] */

    uint8_t *thread_scratch; /* one piece per thread, thread_bytes apart */
    size_t thread_bytes;
};

struct kv_layer {
    const struct compute_backend *backend;
    int kv_heads, head_dim;
    int64_t capacity;
    size_t key_bytes, value_bytes; /* of one row of one head */
    uint8_t *keys, *values;        /* [kv_heads, capacity] rows, in memory */
    struct pages memory;
};

struct tap_rows {
    const struct compute_backend *backend;
    int64_t capacity;
    size_t width; /* taps * hidden values of one row */
    size_t hidden;
    float *rows; /* in memory */
    struct pages memory;
};

/* From here on the caller's time is another part's; the other threads measure nothing. */
static inline void meter_mark(const struct compute *c, int thread, enum meter_part part)
{
    if (c->meter != NULL && thread == 0)
        meter_switch(c->meter, part);
}

/* A linear layer to be shared by the threads of a region. */
struct linear_job {
    const struct weight_matrix *w;
    const void *const *x; /* [rows] prepared */
    int rows;
    float *y;
    size_t y_stride;
    bool add;
    struct head_pick
        *picks; /* [threads, max_rows]: of the outputs that each thread runs; NULL: no */
};

/* Runs this thread's part of the outputs of all jobs: the cost is cut evenly, in pieces of eight
 * outputs. */
void linear_jobs_run(const struct compute *c, const struct linear_job *jobs, int count, int thread,
                     int threads);
/* What the jobs cost, in multiply-adds with the streaming of the weights counted as two rows. */
double linear_jobs_cost(const struct linear_job *jobs, int count);

/* How many threads a region of this cost and so many rows deserves. */
int region_threads(const struct compute *c, double cost, int rows);

/* This thread's part of n items, in multiples of unit. */
struct range {
    int begin, end;
};
struct range range_of(int n, int unit, int thread, int threads);

/* norm(x[first_row + r]) of this thread's rows, prepared into c->input + r * input_stride. */
void rows_normalize(const struct compute *c, const uint16_t *norm, float eps, int first_row,
                    int rows, int thread, int threads);
/* Where one of the weights is INT8: the group sums of this thread's prepared rows of n inputs,
 * those that rows_normalize has for this thread. */
void rows_sum_groups(const struct compute *c, const struct linear_job *jobs, int count, int n,
                     int rows, int thread, int threads);
/* c->rows[r] = c->input + r * input_stride */
void rows_point(struct compute *c, int rows);

/* Norm and rotary of this thread's part of the keys in c->k; they and c->v go to the ring. */
void kv_append(const struct compute *c, const struct attention_block *b, struct kv_layer *kv,
               int64_t pos0, int rows, int thread, int threads);

/* Bytes from one prepared row of n values to the next. */
size_t prepared_stride(const struct compute *c, int n);
uint8_t *thread_scratch(const struct compute *c, int thread);
/* The functions of cpu_backend (backend.c) that other files have. */
bool cpu_new(const struct compute_options *options, const struct compute_shape *shape,
             struct compute **out, struct error *err);
bool cpu_scratch_bytes(const struct compute_options *options, const struct compute_shape *shape,
                       uint64_t *out, struct error *err);
bool cpu_new_beside(struct compute *owner, const struct compute_shape *shape, struct compute **out,
                    struct error *err);
void cpu_free(struct compute *c);
const char *cpu_name(const struct compute *c);
const char *cpu_kernels_name(const struct compute *c);
int cpu_threads(const struct compute *c);
void cpu_set_meter(struct compute *c, struct compute_meter *m);
struct compute_meter *cpu_get_meter(const struct compute *c);
bool cpu_kv_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                struct kv_layer **out, struct error *err);
void cpu_kv_free(struct kv_layer *kv);
size_t cpu_kv_bytes(const struct kv_layer *kv);
uint64_t cpu_kv_need(enum activations a, int kv_heads, int head_dim, int64_t capacity);
void cpu_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids, int rows);
void cpu_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                   int64_t pos0, int rows);
void cpu_ffn(struct compute *c, const struct ffn_block *b, int rows);
void cpu_head(struct compute *c, const struct head_block *b, int first_row, int rows, float *logits,
              struct head_pick *picks);
bool cpu_taps_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                  struct error *err);
void cpu_taps_free(struct tap_rows *t);
size_t cpu_taps_bytes(const struct tap_rows *t);
void cpu_tap(struct compute *c, struct tap_rows *t, int tap, int64_t pos0, int rows);
void cpu_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                 int64_t pos0, int rows);
void cpu_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                int64_t pos0, int rows);
void cpu_read_taps(const struct tap_rows *t, int64_t position, float *out);
void cpu_read_rows(const struct compute *c, int first_row, int rows, float *out);
double cpu_roofline_read(struct compute *c, const void *data, size_t bytes);
struct roofline_peak cpu_roofline_peak(struct compute *c);

/* What the shape, the kernels and c->threads ask for; SIZE_MAX: more than can be. scratch_new takes
 * it and points c's pieces into it; false: no memory. */
size_t scratch_bytes(const struct compute *c);
bool scratch_new(struct compute *c);

#endif
