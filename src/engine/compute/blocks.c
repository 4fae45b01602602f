/* From a call of blocks.h to the backend that it is for. */
#include "engine/compute/backend.h"

#include <string.h>

static const struct compute_backend *const backends[] = {
    &cpu_backend,
#ifdef MLXFAST_CUDA
    &cuda_backend,
#endif
};
enum { BACKENDS = sizeof backends / sizeof *backends };
static const char *const known[] = {"cpu", "cuda"};

/* NULL: not in this build, or unknown. */
static const struct compute_backend *find(const char *name)
{
    for (int i = 0; i < BACKENDS; i++)
        if (name == NULL ? i == 0 : strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static const struct compute_backend *of(const void *instance)
{
    return *(const struct compute_backend *const *)instance;
}

static const struct compute_backend *choose(const struct compute_options *o, struct error *err)
{
    const struct compute_backend *b = find(o->backend);
    if (b != NULL)
        return b;
    bool there = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        there = there || strcmp(known[i], o->backend) == 0;
    if (there)
        error_set(err, "BACKEND-NOT-BUILT",
                  "this program was built without it: build it with `make CUDA=1`");
    else
        error_set(err, "BACKEND-UNKNOWN", "the backends are cpu and cuda");
    error_at(err, NULL, "--backend", o->backend);
    return NULL;
}

static struct compute_meter *default_meter;

void compute_set_default_meter(struct compute_meter *m)
{
    default_meter = m;
}

struct compute_meter *compute_default_meter(void)
{
    return default_meter;
}

bool compute_check(const struct compute_options *options, struct error *err)
{
    const struct compute_backend *b = choose(options, err);
    return b != NULL && b->check(options, err);
}

size_t compute_capabilities(const char *backend, const int **out)
{
    const struct compute_backend *b = find(backend);
    *out = NULL;
    return b != NULL && b->capabilities != NULL ? b->capabilities(out) : 0;
}

bool compute_device_memory(const struct compute_options *options, uint64_t *available,
                           char source[96])
{
    const struct compute_backend *b = find(options->backend);
    return b != NULL && b->device_memory != NULL && b->device_memory(options, available, source);
}

uint64_t compute_matrix_bytes(const struct compute_options *options, enum weight_format format,
                              int out, int in)
{
    const struct compute_backend *b = find(options->backend);
    return b != NULL && b->matrix_bytes != NULL ? b->matrix_bytes(format, out, in) : 0;
}

bool compute_new(const struct compute_options *options, const struct compute_shape *shape,
                 struct compute **out, struct error *err)
{
    const struct compute_backend *b = choose(options, err);
    *out = NULL;
    return b != NULL && b->create(options, shape, out, err);
}

bool compute_scratch_bytes(const struct compute_options *options, const struct compute_shape *shape,
                           uint64_t *out, struct error *err)
{
    const struct compute_backend *b = choose(options, err);
    return b != NULL && b->scratch_bytes(options, shape, out, err);
}

bool compute_new_beside(struct compute *owner, const struct compute_shape *shape,
                        struct compute **out, struct error *err)
{
    return of(owner)->create_beside(owner, shape, out, err);
}

void compute_free(struct compute *c)
{
    if (c != NULL)
        of(c)->free(c);
}

const char *compute_name(const struct compute *c)
{
    return of(c)->instance_name(c);
}

const char *compute_cpu_name(const struct compute *c)
{
    return of(c)->cpu_name(c);
}

const char *compute_backend_name(const struct compute *c)
{
    return of(c)->name;
}

const char *compute_device_name(const struct compute *c)
{
    return of(c)->device_name != NULL ? of(c)->device_name(c) : NULL;
}

enum arithmetic compute_arithmetic(const struct compute *c)
{
    return of(c)->arithmetic != NULL ? of(c)->arithmetic(c) : ARITHMETIC_STRICT;
}

int compute_threads(const struct compute *c)
{
    return of(c)->threads(c);
}

void compute_prepare_begin(struct compute *c,
                           void (*progress)(void *context, uint64_t done, uint64_t total),
                           void *context, uint64_t total)
{
    if (of(c)->prepare_begin != NULL)
        of(c)->prepare_begin(c, progress, context, total);
}

bool compute_prepare_end(struct compute *c, struct error *err)
{
    return of(c)->prepare_end == NULL || of(c)->prepare_end(c, err);
}

bool compute_prepare_embedding(struct compute *c, const struct weight_matrix *table,
                               struct error *err)
{
    return of(c)->prepare_embedding == NULL || of(c)->prepare_embedding(c, table, err);
}

bool compute_prepare_attention(struct compute *c, const struct attention_block *b,
                               struct error *err)
{
    return of(c)->prepare_attention == NULL || of(c)->prepare_attention(c, b, err);
}

bool compute_prepare_ffn(struct compute *c, const struct ffn_block *b, struct error *err)
{
    return of(c)->prepare_ffn == NULL || of(c)->prepare_ffn(c, b, err);
}

bool compute_prepare_head(struct compute *c, const struct head_block *b, struct error *err)
{
    return of(c)->prepare_head == NULL || of(c)->prepare_head(c, b, err);
}

bool compute_prepare_context(struct compute *c, const struct context_block *b, struct error *err)
{
    return of(c)->prepare_context == NULL || of(c)->prepare_context(c, b, err);
}

uint64_t compute_prepared_bytes(const struct compute *c)
{
    return of(c)->prepared_bytes != NULL ? of(c)->prepared_bytes(c) : 0;
}

bool compute_begin(struct compute *c, const struct compute_forward *f)
{
    return of(c)->begin != NULL && of(c)->begin(c, f);
}

void compute_run(struct compute *c)
{
    if (of(c)->run != NULL)
        of(c)->run(c);
}

bool compute_follows(const struct compute *c)
{
    return of(c)->picks != NULL;
}

void compute_picks(struct compute *c, struct head_pick *out, int rows)
{
    if (of(c)->picks != NULL)
        of(c)->picks(c, out, rows);
}

bool compute_end(struct compute *c, struct error *err)
{
    return of(c)->end == NULL || of(c)->end(c, err);
}

void compute_forget(struct compute *c, const void *owner)
{
    if (of(c)->forget != NULL)
        of(c)->forget(c, owner);
}

bool compute_keeps_logits(const struct compute *c)
{
    return of(c)->read_logits != NULL;
}

bool compute_read_logits(struct compute *c, int row, float *out)
{
    return of(c)->read_logits != NULL && of(c)->read_logits(c, row, out);
}

unsigned compute_kernels(const struct compute *c)
{
    return of(c)->kernels != NULL ? of(c)->kernels(c) : 0;
}

bool kv_layer_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                  struct kv_layer **out, struct error *err)
{
    return of(c)->kv_new(c, kv_heads, head_dim, capacity, out, err);
}

void kv_layer_free(struct kv_layer *kv)
{
    if (kv != NULL)
        of(kv)->kv_free(kv);
}

size_t kv_layer_bytes(const struct kv_layer *kv)
{
    return of(kv)->kv_bytes(kv);
}

uint64_t kv_layer_need(const char *backend, enum activations a, int kv_heads, int head_dim,
                       int64_t capacity)
{
    const struct compute_backend *b = find(backend);
    return b != NULL ? b->kv_need(a, kv_heads, head_dim, capacity) : UINT64_MAX;
}

void compute_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                   int rows)
{
    of(c)->embed(c, table, ids, rows);
}

void compute_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                       int64_t pos0, int rows)
{
    of(c)->attention(c, b, kv, pos0, rows);
}

void compute_ffn(struct compute *c, const struct ffn_block *b, int rows)
{
    of(c)->ffn(c, b, rows);
}

void compute_head(struct compute *c, const struct head_block *b, int first_row, int rows,
                  float *logits, struct head_pick *picks)
{
    of(c)->head(c, b, first_row, rows, logits, picks);
}

bool tap_rows_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                  struct error *err)
{
    return of(c)->taps_new(c, taps, capacity, out, err);
}

void tap_rows_free(struct tap_rows *t)
{
    if (t != NULL)
        of(t)->taps_free(t);
}

size_t tap_rows_bytes(const struct tap_rows *t)
{
    return of(t)->taps_bytes(t);
}

void compute_tap(struct compute *c, struct tap_rows *t, int tap, int64_t pos0, int rows)
{
    of(c)->tap(c, t, tap, pos0, rows);
}

void compute_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                     int64_t pos0, int rows)
{
    of(c)->context(c, b, t, pos0, rows);
}

void compute_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                    int64_t pos0, int rows)
{
    of(c)->append(c, b, kv, pos0, rows);
}

void compute_read_taps(const struct tap_rows *t, int64_t position, float *out)
{
    of(t)->read_taps(t, position, out);
}

void compute_read_rows(const struct compute *c, int first_row, int rows, float *out)
{
    of(c)->read_rows(c, first_row, rows, out);
}

void compute_set_meter(struct compute *c, struct compute_meter *m)
{
    of(c)->set_meter(c, m);
}

struct compute_meter *compute_get_meter(const struct compute *c)
{
    return of(c)->get_meter(c);
}

double roofline_read(struct compute *c, const void *data, size_t bytes)
{
    return of(c)->roofline_read(c, data, bytes);
}

struct roofline_peak roofline_measure_peak(struct compute *c)
{
    return of(c)->roofline_peak(c);
}

bool compute_has_timeline(const char *backend)
{
    const struct compute_backend *b = find(backend);
    return b != NULL && b->take_timeline != NULL;
}

size_t compute_take_timeline(struct compute *c, struct timeline_stamp **out)
{
    *out = NULL;
    return of(c)->take_timeline != NULL ? of(c)->take_timeline(c, out) : 0;
}

bool roofline_device(const struct compute *c, struct device_facts *out)
{
    *out = (struct device_facts){0};
    if (of(c)->device_facts == NULL)
        return false;
    of(c)->device_facts(c, out);
    return true;
}

double roofline_copy(struct compute *c, size_t bytes)
{
    return of(c)->roofline_copy != NULL ? of(c)->roofline_copy(c, bytes) : 0;
}
