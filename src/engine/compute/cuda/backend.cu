/* The CUDA backend as a table: instances, forwards recorded and replayed, and which stages each
 * block is made of. */
#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/facts.h"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECORDINGS_MOST = 96, /* of an instance; the oldest gives way */
    LOGIT_ROWS = CUDA_RECORD_ROWS,
    KINDS = 4 /* of forwards: each has an input of its own */
};

/* What instances on one device share: the first one's, which is freed last. */
struct shared {
    struct cuda_fault fault;
    struct cuda_device device;
    cudaStream_t stream;
    struct cuda_weights *weights;
    enum arithmetic arithmetic;
    bool no_overlap, no_graphs, no_prefetch; /* MLXFAST_CUDA_PLAIN: for debugging */
};

struct recording {
    const void *owner;
    int kind, rows, logit_rows, chunks;
    cudaGraphExec_t graph;
    unsigned kernels;
    uint64_t used;
};

enum mode { MODE_NONE, MODE_DIRECT, MODE_RECORD, MODE_REPLAYED };

struct compute {
    const struct compute_backend *backend;
    struct shared *shared;
    bool owns_shared;
    struct compute_shape shape;
    struct compute_meter *meter;
    struct cuda_meter *events;
    char name[192], kind[64];

    struct cuda_input *inputs[KINDS]; /* pinned */
    struct cuda_input *input;         /* of the forward that is under way */
    bool pending[KINDS];              /* a forward that gives nothing back was not waited for */
    struct head_pick *picks;          /* pinned [max(max_rows, LOGIT_ROWS)] */
    float *logits_row;                /* pinned [vocab] */
    struct cuda_step *step;           /* device, all below too */
    uint16_t *x, *projected, *attended, *context_scratch;
    size_t projected_width; /* elements */
    float *logits;          /* [LOGIT_ROWS, vocab] */
    void *head_scratch, *ffn_scratch, *attend_scratch;
    size_t attend_bytes;
    int attend_chunks; /* the most that any ring has asked for */

    enum mode mode;
    struct compute_forward forward;
    int chunks;
    unsigned kernels, last_kernels;
    struct recording recordings[RECORDINGS_MOST];
    uint64_t clock;

    /* Blocks in the order of their preparation: what is read after a block. */
    const void **order;
    size_t order_count, order_room;
};

int cuda_chunks(int64_t pos0, int rows)
{
    const int64_t need = (pos0 + rows - 1) / CUDA_CHUNK + 1;
    int chunks = 2;
    while (chunks < need)
        chunks *= 2;
    return chunks;
}

/* ---- Making and freeing ---- */

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

/* Without the attention's, which the rings' length decides. */
static bool scratch_bytes(const struct compute_options *o, const struct compute_shape *s,
                          uint64_t *out, struct error *err)
{
    (void)o;
    (void)err;
    const size_t rows = (size_t)rows_of(s), heads = (size_t)s->max_heads * (size_t)s->head_dim;
    *out = rows * ((size_t)s->hidden + projected_of(s) + heads) * sizeof(uint16_t) +
           (size_t)LOGIT_ROWS * (size_t)s->vocab * sizeof(float) +
           cuda_head_scratch(s->vocab, LOGIT_ROWS) + cuda_ffn_scratch(s, s->max_rows) +
           context_bytes(s) +
           cuda_attend_scratch(s->max_heads, s->max_kv_heads, s->head_dim, s->max_rows,
                               cuda_chunks(0, s->max_rows));
    return true;
}

static bool pinned_new(struct compute *c, size_t bytes, void **out)
{
    return cuda_ok(&c->shared->fault, cudaHostAlloc(out, bytes, cudaHostAllocMapped),
                   "pinned host memory");
}

static bool zeroed_new(struct compute *c, size_t bytes, const char *what, void **out)
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
    c->projected_width = projected_of(s);
    for (int i = 0; i < KINDS; i++)
        if (!pinned_new(c, sizeof *c->input + rows * sizeof(int32_t), (void **)&c->inputs[i]))
            return false;
    c->input = c->inputs[0];
    return pinned_new(c, rows * sizeof *c->picks, (void **)&c->picks) &&
           pinned_new(c, (size_t)s->vocab * sizeof(float), (void **)&c->logits_row) &&
           zeroed_new(c, sizeof *c->step, "the step", (void **)&c->step) &&
           cuda_memory_new(f, rows * (size_t)s->hidden * element, "the stream", (void **)&c->x) &&
           cuda_memory_new(f, rows * c->projected_width * element, "projections",
                           (void **)&c->projected) &&
           cuda_memory_new(f, rows * heads * element, "attention output", (void **)&c->attended) &&
           cuda_memory_new(f, context_bytes(s), "the context", (void **)&c->context_scratch) &&
           cuda_memory_new(f, (size_t)LOGIT_ROWS * (size_t)s->vocab * sizeof(float), "logits",
                           (void **)&c->logits) &&
           zeroed_new(c, cuda_head_scratch(s->vocab, LOGIT_ROWS), "head scratch",
                      &c->head_scratch) &&
           zeroed_new(c, cuda_ffn_scratch(s, s->max_rows), "ffn scratch", &c->ffn_scratch);
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
    for (int i = 0; i < KINDS; i++)
        if (c->inputs[i] != NULL)
            cudaFreeHost(c->inputs[i]);
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
        cuda_weights_free(c->shared->weights);
        if (c->shared->stream != NULL)
            cudaStreamDestroy(c->shared->stream);
        free(c->shared);
    }
    free(c->order);
    free(c);
}

static bool say(const struct cuda_fault *f, struct error *err)
{
    if (err != NULL)
        *err = f->error;
    return false;
}

static bool instance_new(struct shared *shared, bool owns, const struct compute_shape *shape,
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
        say(&shared->fault, err);
        compute_destroy(c);
        return false;
    }
    *out = c;
    return true;
}

static bool create(const struct compute_options *o, const struct compute_shape *shape,
                   struct compute **out, struct error *err)
{
    struct shared *s = (struct shared *)calloc(1, sizeof *s);
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
    const char *plain = getenv("MLXFAST_CUDA_PLAIN"); /* any of: graphs, overlap, prefetch */
    s->no_graphs = plain != NULL && strstr(plain, "graphs") != NULL;
    s->no_overlap = plain != NULL && strstr(plain, "overlap") != NULL;
    s->no_prefetch = plain != NULL && strstr(plain, "prefetch") != NULL;
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

/* ---- Weights ---- */

static bool note_order(struct compute *c, const void *block)
{
    if (c->order_count == c->order_room) {
        const size_t room = c->order_room * 2 + 64;
        const void **more = (const void **)realloc((void *)c->order, room * sizeof *more);
        if (more == NULL)
            return false;
        c->order = more;
        c->order_room = room;
    }
    c->order[c->order_count++] = block;
    return true;
}

/* What a prepare function answers. */
static bool taken(struct compute *c, bool ok, const void *block, struct error *err)
{
    if (!ok)
        return say(&c->shared->fault, err);
    if (block != NULL && !note_order(c, block))
        return error_set(err, "OUT-OF-MEMORY", "no memory for the list of blocks");
    return true;
}

static bool prepare_embedding(struct compute *c, const struct weight_matrix *table,
                              struct error *err)
{
    return taken(c, cuda_weights_take_embedding(c->shared->weights, table), NULL, err);
}

static bool prepare_attention(struct compute *c, const struct attention_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_attention(c->shared->weights, b), b, err);
}

static bool prepare_ffn(struct compute *c, const struct ffn_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_ffn(c->shared->weights, b), b, err);
}

static bool prepare_head(struct compute *c, const struct head_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_head(c->shared->weights, b), b, err);
}

static bool prepare_context(struct compute *c, const struct context_block *b, struct error *err)
{
    return taken(c, cuda_weights_take_context(c->shared->weights, b), NULL, err);
}

static void prepare_begin(struct compute *c,
                          void (*progress)(void *context, uint64_t done, uint64_t total),
                          void *context, uint64_t total)
{
    cuda_weights_progress(c->shared->weights, progress, context, total);
}

static bool prepare_end(struct compute *c, struct error *err)
{
    return taken(c, cuda_weights_finish(c->shared->weights), NULL, err);
}

static uint64_t prepared_bytes(const struct compute *c)
{
    return cuda_weights_bytes(c->shared->weights);
}

static struct l2_prefetch prefetch_of(const struct cuda_matrix *m, size_t skip, size_t most)
{
    struct l2_prefetch p = {NULL, 0};
    const size_t bytes = (size_t)m->out * m->row_bytes;
    if (skip < bytes) {
        p.from = m->data + skip;
        p.bytes = bytes - skip < most ? bytes - skip : most;
    }
    return p;
}

/* The matrix that is read first after a block of this instance. */
static const struct cuda_matrix *read_after(const struct compute *c, const void *block)
{
    for (size_t i = 0; i + 1 < c->order_count; i++) {
        if (c->order[i] != block)
            continue;
        const void *next = c->order[i + 1];
        const struct cuda_attention *a =
            cuda_weights_attention(c->shared->weights, (const struct attention_block *)next);
        if (a != NULL)
            return &a->project[0];
        const struct cuda_head *h =
            cuda_weights_head(c->shared->weights, (const struct head_block *)next);
        return h != NULL ? &h->output : NULL;
    }
    return NULL;
}

/* ---- Keys, values, taps ---- */

static int padded(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

static uint64_t kv_need(enum activations a, int kv_heads, int head_dim, int64_t capacity)
{
    (void)a;
    uint64_t rows, bytes;
    const uint64_t stride =
        (uint64_t)padded(head_dim, CUDA_BF16_GROUP) + (uint64_t)padded(head_dim, 8);
    if (__builtin_mul_overflow((uint64_t)kv_heads, (uint64_t)capacity, &rows) ||
        __builtin_mul_overflow(rows, stride * sizeof(uint16_t), &bytes) || bytes > UINT64_MAX / 4)
        return UINT64_MAX;
    return bytes;
}

static void forget_all(struct compute *c);

/* A longer ring may have more chunks than any before. */
static bool attend_scratch_grow(struct compute *c, int64_t capacity)
{
    const int chunks = cuda_chunks(capacity - 1, 1);
    if (chunks <= c->attend_chunks)
        return true;
    const size_t bytes = cuda_attend_scratch(c->shape.max_heads, c->shape.max_kv_heads,
                                             c->shape.head_dim, c->shape.max_rows, chunks);
    forget_all(c);
    cudaStreamSynchronize(c->shared->stream);
    cuda_memory_free(c->attend_scratch);
    c->attend_scratch = NULL;
    if (!zeroed_new(c, bytes, "attention scratch", &c->attend_scratch))
        return false;
    c->attend_bytes = bytes;
    c->attend_chunks = chunks;
    return true;
}

static void kv_free(struct kv_layer *kv)
{
    if (kv == NULL)
        return;
    cudaStreamSynchronize(kv->owner->shared->stream);
    cuda_memory_free(kv->keys);
    cuda_memory_free(kv->values);
    free(kv);
}

static bool kv_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                   struct kv_layer **out, struct error *err)
{
    struct kv_layer *kv = (struct kv_layer *)calloc(1, sizeof *kv);
    *out = NULL;
    if (kv == NULL || kv_need(ACTIVATIONS_BF16, kv_heads, head_dim, capacity) == UINT64_MAX) {
        free(kv);
        return error_set(err, "OUT-OF-MEMORY",
                         "no memory for the keys and values of %lld positions",
                         (long long)capacity);
    }
    kv->backend = &cuda_backend;
    kv->owner = c;
    kv->kv_heads = kv_heads;
    kv->head_dim = head_dim;
    kv->capacity = capacity;
    kv->key_stride = padded(head_dim, CUDA_BF16_GROUP);
    kv->value_stride = padded(head_dim, 8);
    const size_t rows = (size_t)kv_heads * (size_t)capacity, element = sizeof(uint16_t);
    const size_t keys = rows * (size_t)kv->key_stride * element;
    const size_t values = rows * (size_t)kv->value_stride * element;
    kv->bytes = keys + values;
    /* Padding is never written; it is read as zeros. */
    if (!zeroed_new(c, keys, "keys", (void **)&kv->keys) ||
        !zeroed_new(c, values, "values", (void **)&kv->values) ||
        !attend_scratch_grow(c, capacity)) {
        kv_free(kv);
        return say(&c->shared->fault, err);
    }
    *out = kv;
    return true;
}

static size_t kv_bytes(const struct kv_layer *kv)
{
    return kv->bytes;
}

static void taps_free(struct tap_rows *t)
{
    if (t == NULL)
        return;
    cudaStreamSynchronize(t->owner->shared->stream);
    cuda_memory_free(t->rows);
    free(t);
}

static size_t taps_bytes(const struct tap_rows *t)
{
    return (size_t)t->capacity * (size_t)t->taps * (size_t)t->hidden * sizeof *t->rows;
}

static bool taps_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                     struct error *err)
{
    struct tap_rows *t = (struct tap_rows *)calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL)
        return error_set(err, "OUT-OF-MEMORY", "no memory for the taps");
    t->backend = &cuda_backend;
    t->owner = c;
    t->capacity = capacity;
    t->taps = taps;
    t->hidden = c->shape.hidden;
    if (!cuda_memory_new(&c->shared->fault, taps_bytes(t), "taps", (void **)&t->rows)) {
        free(t);
        return say(&c->shared->fault, err);
    }
    *out = t;
    return true;
}

/* Copies bf16 values out and widens them in place: they are put into the upper half of `out`. */
static void read_bf16(const struct shared *s, const uint16_t *from, size_t n, float *out)
{
    uint16_t *narrow = (uint16_t *)(void *)out + n;
    struct cuda_fault *fault = (struct cuda_fault *)(uintptr_t)&s->fault;
    if (fault->set ||
        !cuda_ok(
            fault,
            cudaMemcpyAsync(narrow, from, n * sizeof *narrow, cudaMemcpyDeviceToHost, s->stream),
            "reading rows") ||
        !cuda_ok(fault, cudaStreamSynchronize(s->stream), "reading rows")) {
        memset(out, 0, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)narrow[i] << 16;
        memcpy(&out[i], &u, sizeof u);
    }
}

static void read_taps(const struct tap_rows *t, int64_t position, float *out)
{
    const size_t width = (size_t)t->taps * (size_t)t->hidden;
    read_bf16(t->owner->shared, t->rows + (size_t)(position % t->capacity) * width, width, out);
}

static void read_rows(const struct compute *c, int first_row, int rows, float *out)
{
    const size_t hidden = (size_t)c->shape.hidden;
    read_bf16(c->shared, c->x + (size_t)first_row * hidden, (size_t)rows * hidden, out);
}

/* ---- Forwards ---- */

static struct cuda_launch launch_of(struct compute *c)
{
    struct cuda_launch l = {};
    l.stream = c->shared->stream;
    l.fault = &c->shared->fault;
    l.device = &c->shared->device;
    l.step = c->step;
    l.overlap = c->meter == NULL && !c->shared->no_overlap;
    l.fast = c->shared->arithmetic == ARITHMETIC_FAST;
    l.kernels = &c->kernels;
    return l;
}

static void recording_drop(struct recording *r)
{
    if (r->graph != NULL)
        cudaGraphExecDestroy(r->graph);
    memset(r, 0, sizeof *r);
}

static void forget_all(struct compute *c)
{
    for (int i = 0; i < RECORDINGS_MOST; i++)
        recording_drop(&c->recordings[i]);
}

static void forget(struct compute *c, const void *owner)
{
    cudaStreamSynchronize(c->shared->stream);
    for (int i = 0; i < RECORDINGS_MOST; i++)
        if (c->recordings[i].owner == owner)
            recording_drop(&c->recordings[i]);
}

static struct recording *find(struct compute *c, const struct compute_forward *f, int chunks)
{
    for (int i = 0; i < RECORDINGS_MOST; i++) {
        struct recording *r = &c->recordings[i];
        if (r->graph != NULL && r->owner == f->owner && r->kind == f->kind && r->rows == f->rows &&
            r->logit_rows == f->logit_rows && r->chunks == chunks)
            return r;
    }
    return NULL;
}

static struct recording *oldest(struct compute *c)
{
    struct recording *least = &c->recordings[0];
    for (int i = 0; i < RECORDINGS_MOST; i++)
        if (c->recordings[i].used < least->used)
            least = &c->recordings[i];
    return least;
}

static void fill_input(struct compute *c, const int32_t *ids, int64_t pos0, int rows)
{
    c->input->pos0 = pos0;
    c->input->rows = rows;
    if (ids != NULL)
        memcpy(c->input->ids, ids, (size_t)rows * sizeof *ids);
}

static bool begin(struct compute *c, const struct compute_forward *f)
{
    struct shared *s = c->shared;
    c->forward = *f;
    c->mode = MODE_DIRECT;
    c->kernels = 0;
    c->chunks = cuda_chunks(f->pos0, f->rows);
    if (s->fault.set)
        return false;
    c->input = c->inputs[f->kind % KINDS];
    if (c->pending[f->kind % KINDS]) {
        cuda_ok(&s->fault, cudaStreamSynchronize(s->stream), "a forward");
        memset(c->pending, 0, sizeof c->pending);
    }
    fill_input(c, f->ids, f->pos0, f->rows);
    if (f->rows <= CUDA_RECORD_ROWS && c->meter == NULL && !s->no_graphs) {
        struct recording *r = find(c, f, c->chunks);
        if (r != NULL) {
            c->mode = MODE_REPLAYED;
            c->kernels = r->kernels;
            r->used = ++c->clock;
            cuda_ok(&s->fault, cudaGraphLaunch(r->graph, s->stream), "replaying a forward");
            return true;
        }
        if (!cuda_ok(&s->fault, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal),
                     "recording a forward"))
            return false;
        c->mode = MODE_RECORD;
    }
    if (c->meter != NULL)
        cuda_meter_begin(&c->events, &s->fault, s->stream);
    if (f->ids == NULL) {
        const struct cuda_launch l = launch_of(c);
        cuda_set_step(&l, c->input, c->step);
    }
    return false;
}

/* Ends the capture, keeps the graph and runs it. */
static void finish_recording(struct compute *c)
{
    struct shared *s = c->shared;
    cudaGraph_t graph = NULL;
    struct recording *r = oldest(c);
    recording_drop(r);
    /* Always ended: a stream that captures can do nothing else. */
    const cudaError_t ended = cudaStreamEndCapture(s->stream, &graph);
    if (!s->fault.set && cuda_ok(&s->fault, ended, "recording a forward") &&
        cuda_ok(&s->fault, cudaGraphInstantiate(&r->graph, graph, 0), "recording a forward")) {
        r->owner = c->forward.owner;
        r->kind = c->forward.kind;
        r->rows = c->forward.rows;
        r->logit_rows = c->forward.logit_rows;
        r->chunks = c->chunks;
        r->kernels = c->kernels;
        r->used = ++c->clock;
        cuda_ok(&s->fault, cudaGraphLaunch(r->graph, s->stream), "running a forward");
    }
    if (graph != NULL)
        cudaGraphDestroy(graph);
}

static bool end(struct compute *c, struct error *err)
{
    struct shared *s = c->shared;
    const struct compute_forward *f = &c->forward;
    if (c->mode == MODE_RECORD)
        finish_recording(c);
    c->mode = MODE_NONE;
    c->last_kernels = c->kernels;
    if (!s->fault.set && f->logits != NULL && f->logit_rows > 0 && f->logit_rows <= LOGIT_ROWS)
        cuda_ok(&s->fault,
                cudaMemcpyAsync(f->logits, c->logits,
                                (size_t)f->logit_rows * (size_t)c->shape.vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, s->stream),
                "reading logits");
    /* What gives nothing back is not waited for: the next forward that does shows its failure. */
    if (f->kind != 0 && f->logit_rows == 0 && c->meter == NULL) {
        c->pending[f->kind % KINDS] = true;
    } else if (!s->fault.set) {
        cuda_ok(&s->fault, cudaStreamSynchronize(s->stream), "a forward");
        memset(c->pending, 0, sizeof c->pending);
    }
    if (s->fault.set)
        return say(&s->fault, err);
    if (f->picks != NULL && f->logit_rows > 0)
        memcpy(f->picks, c->picks, (size_t)f->logit_rows * sizeof *f->picks);
    if (c->meter != NULL)
        cuda_meter_end(c->events, &s->fault, c->meter);
    return true;
}

static bool read_logits(struct compute *c, int row, float *out)
{
    struct shared *s = c->shared;
    const size_t vocab = (size_t)c->shape.vocab;
    if (s->fault.set || row < 0 || row >= LOGIT_ROWS ||
        !cuda_ok(&s->fault,
                 cudaMemcpyAsync(c->logits_row, c->logits + (size_t)row * vocab,
                                 vocab * sizeof(float), cudaMemcpyDeviceToHost, s->stream),
                 "reading logits") ||
        !cuda_ok(&s->fault, cudaStreamSynchronize(s->stream), "reading logits"))
        return false;
    memcpy(out, c->logits_row, vocab * sizeof *out);
    return true;
}

static unsigned kernels(const struct compute *c)
{
    return c->last_kernels;
}

/* Blocks that are called by themselves (tests): each is a forward of its own. */
static bool alone_begin(struct compute *c, int64_t pos0, int rows)
{
    if (c->mode != MODE_NONE)
        return false;
    memset(&c->forward, 0, sizeof c->forward);
    c->kernels = 0;
    c->chunks = cuda_chunks(pos0, rows);
    fill_input(c, NULL, pos0, rows);
    const struct cuda_launch l = launch_of(c);
    cuda_set_step(&l, c->input, c->step);
    return true;
}

static void alone_end(struct compute *c, bool alone)
{
    if (alone)
        cuda_ok(&c->shared->fault, cudaStreamSynchronize(c->shared->stream), "a block");
}

static void mark(struct compute *c, enum meter_part part)
{
    if (c->meter != NULL && c->mode == MODE_DIRECT)
        cuda_meter_mark(c->events, &c->shared->fault, c->shared->stream, part, c->meter->layer);
}

static void embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                  int rows)
{
    const bool alone = c->mode == MODE_NONE;
    if (c->shared->fault.set || rows <= 0)
        return;
    if (alone) {
        c->kernels = 0;
        fill_input(c, ids, 0, rows);
    }
    mark(c, METER_EMBED);
    const struct cuda_launch l = launch_of(c);
    cuda_embed(&l, c->input, c->step, cuda_weights_embedding(c->shared->weights, table->data),
               c->shape.hidden, rows, c->x);
    if (c->meter != NULL)
        c->meter->part[METER_EMBED].bytes += (uint64_t)rows * (uint64_t)c->shape.hidden * 2;
    alone_end(c, alone);
}

/* How much of what follows a stage asks into L2 while it waits for others; bytes, found by
 * measuring (docs/performance.md). MLXFAST_CUDA_PREFETCH=a,b,c,d,e in MB replaces them. */
static size_t prefetch_most(enum cuda_prefetch_site site)
{
    static size_t most[CUDA_PREFETCH_SITES] = {0,         24u << 20, 4u << 20,
                                               12u << 20, 12u << 20, 12u << 20};
    static bool read;
    if (!read) {
        const char *text = getenv("MLXFAST_CUDA_PREFETCH");
        for (int i = 0; text != NULL && i < CUDA_PREFETCH_SITES; i++) {
            char *stop;
            const double mb = strtod(text, &stop);
            if (stop == text || !(mb >= 0 && mb < 1000))
                break;
            most[i] = (size_t)(mb * (1 << 20));
            text = *stop == ',' ? stop + 1 : stop;
        }
        read = true;
    }
    return most[site];
}

static struct l2_prefetch ahead(const struct compute *c, const struct cuda_matrix *m, size_t *done,
                                enum cuda_prefetch_site site)
{
    struct l2_prefetch none = {NULL, 0};
    if (m == NULL || c->shared->no_prefetch)
        return none;
    const struct l2_prefetch p = prefetch_of(m, *done, prefetch_most(site));
    *done += p.bytes;
    return p;
}

static void linear_run(const struct cuda_launch *l, const struct cuda_matrix *w, int count,
                       struct cuda_linear *a)
{
    struct cuda_launch one = *l;
    for (int i = 0; i < count; i++) {
        a->w = &w[i];
        cuda_linear(&one, a);
        a->y += w[i].out;
        one.next[0].bytes = 0;
    }
}

static void attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                      int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const struct cuda_attention *w = cuda_weights_attention(c->shared->weights, b);
    const bool alone = alone_begin(c, pos0, rows);
    const size_t hidden = (size_t)c->shape.hidden, wide = (size_t)(b->heads * b->head_dim);
    const size_t projected = wide + 2 * (size_t)(b->kv_heads * b->head_dim) + (size_t)b->heads;
    struct cuda_launch l = launch_of(c);
    size_t done = 0;

    mark(c, METER_PROJECT);
    l.next[0] = ahead(c, &w->output, &done, CUDA_PREFETCH_PROJECT);
    struct cuda_linear in = {};
    in.x = c->x;
    in.x_stride = hidden;
    in.norm = w->input_norm;
    in.eps = b->eps;
    in.rows = rows;
    in.y = c->projected;
    in.y_stride = projected;
    linear_run(&l, w->project, w->projects, &in);

    mark(c, METER_ATTEND);
    l.next[1] = ahead(c, &w->output, &done, CUDA_PREFETCH_ATTEND);
    struct cuda_attend attend = {};
    attend.w = w;
    attend.kv = kv;
    attend.projected = c->projected;
    attend.projected_stride = projected;
    attend.rows = rows;
    attend.chunks = c->chunks < c->attend_chunks ? c->chunks : c->attend_chunks;
    attend.out = c->attended;
    attend.scratch = c->attend_scratch;
    cuda_attend(&l, &attend);

    mark(c, METER_OUTPUT);
    l.next[0].bytes = 0;
    struct cuda_linear out = {};
    out.x = c->attended;
    out.x_stride = wide;
    out.rows = rows;
    out.y = c->x;
    out.y_stride = hidden;
    out.add = true;
    linear_run(&l, &w->output, 1, &out);
    if (c->meter != NULL) {
        cuda_meter_attention(c->meter, b, pos0, rows);
        mark(c, METER_REST);
    }
    alone_end(c, alone);
}

static void append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                   int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const struct cuda_attention *w = cuda_weights_attention(c->shared->weights, b);
    const bool alone = alone_begin(c, pos0, rows);
    const struct cuda_launch l = launch_of(c);
    const size_t projected = 2 * (size_t)(b->kv_heads * b->head_dim);
    struct cuda_linear in = {};
    in.x = c->x;
    in.x_stride = (size_t)c->shape.hidden;
    in.norm = w->input_norm;
    in.eps = b->eps;
    in.rows = rows;
    in.y = c->projected;
    in.y_stride = projected;
    linear_run(&l, w->append, w->appends, &in);
    struct cuda_attend attend = {};
    attend.w = w;
    attend.kv = kv;
    attend.projected = c->projected;
    attend.projected_stride = projected;
    attend.rows = rows;
    attend.scratch = c->attend_scratch;
    cuda_append(&l, &attend);
    alone_end(c, alone);
}

static void ffn(struct compute *c, const struct ffn_block *b, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = alone_begin(c, 0, rows);
    struct cuda_launch l = launch_of(c);
    const struct cuda_matrix *next = read_after(c, b);
    size_t done = 0;
    l.next[0] = ahead(c, next, &done, CUDA_PREFETCH_ROUTER);
    l.next[1] = ahead(c, next, &done, CUDA_PREFETCH_UP);
    l.next[2] = ahead(c, next, &done, CUDA_PREFETCH_DOWN);
    struct cuda_ffn_run run = {};
    run.w = cuda_weights_ffn(c->shared->weights, b);
    run.x = c->x;
    run.hidden = c->shape.hidden;
    run.rows = rows;
    run.scratch = c->ffn_scratch;
    mark(c, b->sparse ? METER_EXPERTS : METER_DENSE);
    cuda_ffn_forward(&l, &run);
    if (c->meter != NULL) {
        cuda_meter_ffn(c->meter, b, rows);
        mark(c, METER_REST);
    }
    alone_end(c, alone);
}

/* Logits of more rows than fit at once leave for the host in pieces. */
static void head(struct compute *c, const struct head_block *b, int first_row, int rows,
                 float *logits, struct head_pick *picks)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = alone_begin(c, 0, rows);
    const struct cuda_launch l = launch_of(c);
    const size_t hidden = (size_t)c->shape.hidden, vocab = (size_t)c->shape.vocab;
    const struct cuda_head *w = cuda_weights_head(c->shared->weights, b);
    float *wanted = alone ? logits : c->forward.logits;
    mark(c, METER_HEAD);
    for (int at = 0; at < rows; at += LOGIT_ROWS) {
        const int n = rows - at < LOGIT_ROWS ? rows - at : LOGIT_ROWS;
        cuda_head_run(&l, w, c->x + (size_t)(first_row + at) * hidden, c->shape.hidden, n,
                      c->logits, c->picks + at, c->head_scratch);
        if (wanted != NULL && (alone || rows > LOGIT_ROWS))
            cuda_ok(&c->shared->fault,
                    cudaMemcpyAsync(wanted + (size_t)at * vocab, c->logits,
                                    (size_t)n * vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                    c->shared->stream),
                    "reading logits");
    }
    if (c->meter != NULL) {
        meter_linear(c->meter, METER_HEAD, &b->output, rows);
        mark(c, METER_REST);
    }
    alone_end(c, alone);
    if (alone && picks != NULL && !c->shared->fault.set)
        memcpy(picks, c->picks, (size_t)rows * sizeof *picks);
}

static void tap(struct compute *c, struct tap_rows *t, int number, int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = alone_begin(c, pos0, rows);
    const struct cuda_launch l = launch_of(c);
    cuda_tap(&l, c->x, t, number, rows);
    alone_end(c, alone);
}

static void context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                    int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = alone_begin(c, pos0, rows);
    const struct cuda_launch l = launch_of(c);
    cuda_context_run(&l, cuda_weights_context(c->shared->weights, b), t, rows, c->x,
                     c->context_scratch);
    alone_end(c, alone);
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
    .begin = begin,
    .end = end,
    .forget = forget,
    .read_logits = read_logits,
    .kernels = kernels,
    .kv_new = kv_new,
    .kv_free = kv_free,
    .kv_bytes = kv_bytes,
    .kv_need = kv_need,
    .embed = embed,
    .attention = attention,
    .ffn = ffn,
    .head = head,
    .taps_new = taps_new,
    .taps_free = taps_free,
    .taps_bytes = taps_bytes,
    .tap = tap,
    .context = context,
    .append = append,
    .read_taps = read_taps,
    .read_rows = read_rows,
    .set_meter = set_meter,
    .get_meter = get_meter,
    .roofline_read = read_rate,
    .roofline_peak = peak,
    .device_facts = device_facts,
    .roofline_copy = copy_rate,
};
