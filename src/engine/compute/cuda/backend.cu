/* The CUDA backend as a table: making, freeing and naming instances, and their weights. */
#include "engine/compute/cuda/facts.h"
#include "engine/compute/cuda/fast.cuh"
#include "engine/compute/cuda/instance.h"
#include "engine/compute/cuda/launch.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool check(const struct compute_options *o, struct error *err)
{
    struct cuda_device device;
    if (o->activations != ACTIVATIONS_BF16)
        return error_set(err, "ACTIVATIONS-UNSUPPORTED",
                         "the cuda backend has bf16 activations only");
    return cuda_device_open(&device, err);
}

static int rows_of(const struct compute_shape *s)
{
    return s->max_rows > LOGIT_ROWS ? s->max_rows : LOGIT_ROWS;
}

static size_t projected_of(const struct compute_shape *s)
{
    return (size_t)s->max_heads * (size_t)s->head_dim +
           2 * (size_t)s->max_kv_heads * (size_t)s->head_dim + (size_t)s->max_heads;
}

static size_t context_bytes(const struct compute_shape *s)
{
    return s->max_context_width > 0
               ? (size_t)s->max_rows * ((size_t)s->max_context_width + (size_t)s->hidden) *
                     sizeof(uint16_t)
               : 0;
}

/* The attention's is that of the longest ring (keys.cu). */
static bool scratch_bytes(const struct compute_options *o, const struct compute_shape *s,
                          uint64_t *out, struct error *err)
{
    (void)err;
    const size_t rows = (size_t)rows_of(s), heads = (size_t)s->max_heads * (size_t)s->head_dim;
    const int chunks = s->max_positions > s->max_rows ? cuda_chunks(s->max_positions - 1, 1)
                                                      : cuda_chunks(0, s->max_rows);
    *out = rows * ((size_t)s->hidden + projected_of(s) + heads) * sizeof(uint16_t) +
           (size_t)LOGIT_ROWS * (size_t)s->vocab * sizeof(float) +
           cuda_head_scratch(s->vocab, LOGIT_ROWS) + cuda_ffn_scratch(s, s->max_rows) +
           context_bytes(s) + (o->arithmetic == ARITHMETIC_FAST ? cuda_fast_bytes(s) : 0) +
           cuda_attend_scratch(s->max_heads, s->max_kv_heads, s->head_dim, s->max_rows, chunks);
    return true;
}

static bool pinned_new(struct compute *c, size_t bytes, void **out)
{
    return cuda_ok(&c->shared->fault, cudaHostAlloc(out, bytes, cudaHostAllocMapped),
                   "pinned host memory");
}

bool cuda_zeroed_new(struct compute *c, size_t bytes, const char *what, void **out)
{
    return cuda_memory_new(&c->shared->fault, bytes, what, out) &&
           (bytes == 0 ||
            cuda_ok(&c->shared->fault, cudaMemsetAsync(*out, 0, bytes, c->shared->stream), what));
}

static bool buffers_new(struct compute *c)
{
    const struct compute_shape *s = &c->shape;
    struct cuda_fault *f = &c->shared->fault;
    const size_t rows = (size_t)rows_of(s), element = sizeof(uint16_t);
    const size_t heads = (size_t)s->max_heads * (size_t)s->head_dim;
    c->projected_elements = rows * projected_of(s);
    for (int i = 0; i < KINDS; i++)
        if (!pinned_new(c, sizeof *c->input + rows * sizeof(int32_t), (void **)&c->inputs[i]))
            return false;
    c->input = c->inputs[0];
    for (int i = 0; i < KINDS; i++)
        if (!cuda_ok(f, cudaEventCreateWithFlags(&c->ran[i], cudaEventDisableTiming), "an event"))
            return false;
    for (int i = 0; i <= BRANCHES; i++)
        if ((i < BRANCHES &&
             !cuda_ok(f, cudaStreamCreateWithFlags(&c->branch[i], cudaStreamNonBlocking),
                      "a stream")) ||
            !cuda_ok(f, cudaEventCreateWithFlags(&c->branched[i], cudaEventDisableTiming),
                     "an event"))
            return false;
    return pinned_new(c, rows * sizeof *c->picks, (void **)&c->picks) &&
           pinned_new(c, (size_t)s->vocab * sizeof(float), (void **)&c->logits_row) &&
           cuda_zeroed_new(c, sizeof *c->step, "the step", (void **)&c->step) &&
           cuda_memory_new(f, rows * (size_t)s->hidden * element, "the stream", (void **)&c->x) &&
           cuda_memory_new(f, c->projected_elements * element, "projections",
                           (void **)&c->projected) &&
           cuda_memory_new(f, rows * heads * element, "attention output", (void **)&c->attended) &&
           cuda_memory_new(f, context_bytes(s), "the context", (void **)&c->context_scratch) &&
           cuda_memory_new(f, (size_t)LOGIT_ROWS * (size_t)s->vocab * sizeof(float), "logits",
                           (void **)&c->logits) &&
           cuda_zeroed_new(c, cuda_head_scratch(s->vocab, LOGIT_ROWS), "head scratch",
                           &c->head_scratch) &&
           cuda_zeroed_new(c, cuda_ffn_scratch(s, s->max_rows), "ffn scratch", &c->ffn_scratch);
}

static void compute_destroy(struct compute *c)
{
    if (c == NULL)
        return;
    if (c->shared != NULL && c->shared->stream != NULL)
        cudaStreamSynchronize(c->shared->stream);
    for (int i = 0; i < RECORDINGS_MOST; i++)
        if (c->recordings[i].graph != NULL)
            cudaGraphExecDestroy(c->recordings[i].graph);
    for (int i = 0; i < KINDS; i++) {
        if (c->inputs[i] != NULL)
            cudaFreeHost(c->inputs[i]);
        if (c->ran[i] != NULL)
            cudaEventDestroy(c->ran[i]);
    }
    for (int i = 0; i <= BRANCHES; i++) {
        if (i < BRANCHES && c->branch[i] != NULL)
            cudaStreamDestroy(c->branch[i]);
        if (c->branched[i] != NULL)
            cudaEventDestroy(c->branched[i]);
    }
    void *const pinned[] = {c->picks, c->logits_row};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i] != NULL)
            cudaFreeHost(pinned[i]);
    void *const device[] = {c->step,         c->x,           c->projected,
                            c->attended,     c->logits,      c->context_scratch,
                            c->head_scratch, c->ffn_scratch, c->attend_scratch};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        cuda_memory_free(device[i]);
    cuda_meter_free(c->events);
    if (c->owns_shared) {
        cuda_fast_free(c->shared->stream);
        cuda_weights_free(c->shared->weights);
        if (c->shared->stream != NULL)
            cudaStreamDestroy(c->shared->stream);
        free(c->shared);
    } else {
        cuda_weights_release(c->shared->weights, c); /* its addresses may be another's soon */
    }
    free(c);
}

bool cuda_say(struct cuda_shared *s, struct error *err)
{
    struct cuda_fault *f = &s->fault;
    if (err == NULL)
        return false;
    *err = f->error;
    s->untold = NULL;
    if (strcmp(f->error.name, "OUT-OF-MEMORY") == 0) {
        f->set = false;
        cuda_ok(f, cudaStreamSynchronize(s->stream), "the device, after it had no memory left");
    }
    return false;
}

static bool instance_new(struct cuda_shared *shared, bool owns, const struct compute_shape *shape,
                         struct compute **out, struct error *err)
{
    struct compute *c = (struct compute *)calloc(1, sizeof *c);
    if (c == NULL) {
        if (owns)
            free(shared);
        return error_set(err, "OUT-OF-MEMORY", "no memory for the CUDA backend");
    }
    c->backend = &cuda_backend;
    c->shared = shared;
    c->owns_shared = owns;
    c->shape = *shape;
    c->meter = owns ? compute_default_meter() : NULL;
    const struct cuda_device *d = &shared->device;
    const char *mode = shared->arithmetic == ARITHMETIC_FAST ? "fast" : "strict";
    snprintf(c->name, sizeof c->name, "cuda %s, sm_%d%d, %s", d->name, d->major, d->minor, mode);
    snprintf(c->kind, sizeof c->kind, "sm_%d%d, %s", d->major, d->minor, mode);
    const bool ok =
        (!owns ||
         (cuda_ok(&shared->fault, cudaStreamCreateWithFlags(&shared->stream, cudaStreamNonBlocking),
                  "a stream") &&
          cuda_weights_new(&shared->fault, shared->stream, &shared->weights))) &&
        buffers_new(c);
    if (!ok) {
        cuda_say(shared, err);
        compute_destroy(c);
        return false;
    }
    *out = c;
    return true;
}

static bool create(const struct compute_options *o, const struct compute_shape *shape,
                   struct compute **out, struct error *err)
{
    struct cuda_shared *s = (struct cuda_shared *)calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return error_set(err, "OUT-OF-MEMORY", "no memory for the CUDA backend");
    if (o->activations != ACTIVATIONS_BF16 || !cuda_device_open(&s->device, err)) {
        free(s);
        return o->activations == ACTIVATIONS_BF16 ||
                       error_set(err, "ACTIVATIONS-UNSUPPORTED",
                                 "the cuda backend has bf16 activations only")
                   ? false
                   : false;
    }
    s->arithmetic = o->arithmetic;
    const char *plain = getenv("MLXFAST_CUDA_PLAIN"); /* any of: graphs, overlap */
    s->no_graphs = plain != NULL && strstr(plain, "graphs") != NULL;
    /* Programmatic launches came with 9.0. */
    s->no_overlap = s->device.major < 9 || (plain != NULL && strstr(plain, "overlap") != NULL);
    return instance_new(s, true, shape, out, err);
}

static bool create_beside(struct compute *owner, const struct compute_shape *shape,
                          struct compute **out, struct error *err)
{
    *out = NULL;
    return instance_new(owner->shared, false, shape, out, err);
}

static const char *instance_name(const struct compute *c)
{
    return c->name;
}

static const char *cpu_name(const struct compute *c)
{
    return c->kind;
}

static const char *device_name(const struct compute *c)
{
    return c->shared->device.name;
}

static enum arithmetic arithmetic(const struct compute *c)
{
    return c->shared->arithmetic;
}

static int threads(const struct compute *c)
{
    (void)c;
    return 1;
}

/* What a prepare function answers. */
static bool taken(struct compute *c, bool ok, struct error *err)
{
    return ok || cuda_say(c->shared, err);
}

static bool prepare_embedding(struct compute *c, const struct weight_matrix *table,
                              struct error *err)
{
    return taken(c, cuda_weights_take_embedding(c->shared->weights, table), err);
}

static bool prepare_attention(struct compute *c, const struct attention_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_attention(c->shared->weights, b), err);
}

static bool prepare_ffn(struct compute *c, const struct ffn_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_ffn(c->shared->weights, b), err);
}

static bool prepare_head(struct compute *c, const struct head_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_head(c->shared->weights, b), err);
}

static bool prepare_context(struct compute *c, const struct context_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_context(c->shared->weights, b), err);
}

static void prepare_begin(struct compute *c,
                          void (*progress)(void *context, uint64_t done, uint64_t total),
                          void *context, uint64_t total)
{
    cuda_weights_owner(c->shared->weights, c);
    cuda_weights_progress(c->shared->weights, progress, context, total);
}

static bool prepare_end(struct compute *c, struct error *err)
{
    return taken(c, cuda_weights_finish(c->shared->weights), err);
}

static uint64_t prepared_bytes(const struct compute *c)
{
    return cuda_weights_bytes(c->shared->weights);
}

static unsigned kernels(const struct compute *c)
{
    return c->last_kernels;
}

static void set_meter(struct compute *c, struct compute_meter *m)
{
    c->meter = m;
}

static struct compute_meter *get_meter(const struct compute *c)
{
    return c->meter;
}

static double read_rate(struct compute *c, const void *data, size_t bytes)
{
    (void)data; /* the host's: what the device reads of its own memory is measured */
    return cuda_meter_read_seconds(&c->shared->fault, c->shared->stream, &c->shared->device, bytes);
}

static struct roofline_peak peak(struct compute *c)
{
    (void)c;
    return roofline_peak{"none", "none", 0, 0};
}

static void device_facts(const struct compute *c, struct device_facts *out)
{
    cuda_facts_read(&c->shared->device, out);
}

static double copy_rate(struct compute *c, size_t bytes)
{
    return cuda_facts_copy_seconds(&c->shared->fault, c->shared->stream, bytes);
}

extern "C" const struct compute_backend cuda_backend = {
    .name = "cuda",
    .check = check,
    .capabilities = cuda_capabilities,
    .device_memory = cuda_device_memory,
    .create = create,
    .scratch_bytes = scratch_bytes,
    .create_beside = create_beside,
    .free = compute_destroy,
    .instance_name = instance_name,
    .cpu_name = cpu_name,
    .device_name = device_name,
    .arithmetic = arithmetic,
    .threads = threads,
    .matrix_bytes = cuda_matrix_bytes,
    .prepare_begin = prepare_begin,
    .prepare_end = prepare_end,
    .prepare_embedding = prepare_embedding,
    .prepare_attention = prepare_attention,
    .prepare_ffn = prepare_ffn,
    .prepare_head = prepare_head,
    .prepare_context = prepare_context,
    .prepared_bytes = prepared_bytes,
    .begin = cuda_begin,
    .run = cuda_run,
    .end = cuda_end,
    .picks = cuda_picks,
    .forget = cuda_forget,
    .read_logits = cuda_read_logits,
    .kernels = kernels,
    .kv_new = cuda_kv_new,
    .kv_free = cuda_kv_free,
    .kv_bytes = cuda_kv_bytes,
    .kv_need = cuda_kv_need,
    .embed = cuda_block_embed,
    .attention = cuda_block_attention,
    .ffn = cuda_block_ffn,
    .head = cuda_block_head,
    .taps_new = cuda_taps_new,
    .taps_free = cuda_taps_free,
    .taps_bytes = cuda_taps_bytes,
    .tap = cuda_block_tap,
    .context = cuda_block_context,
    .append = cuda_block_append,
    .read_taps = cuda_read_taps,
    .read_rows = cuda_read_rows,
    .set_meter = set_meter,
    .get_meter = get_meter,
    .roofline_read = read_rate,
    .roofline_peak = peak,
    .device_facts = device_facts,
    .roofline_copy = copy_rate,
#ifdef CUDA_TIMELINE
    .take_timeline = cuda_timeline_take,
#else
    .take_timeline = NULL,
#endif
};
