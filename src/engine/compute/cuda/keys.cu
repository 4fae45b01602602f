/* What an instance keeps of a sequence: keys, values, taps; and rows copied out. */
#include "engine/compute/cuda/instance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int padded(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

uint64_t cuda_kv_need(enum activations a, int kv_heads, int head_dim, int64_t capacity)
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

/* A longer ring may have more chunks than any before. What there is stays until there is more:
 * other sequences use it. */
static bool attend_scratch_grow(struct compute *c, int64_t capacity)
{
    const int chunks = cuda_chunks(capacity - 1, 1);
    void *more;
    if (chunks <= c->attend_chunks)
        return true;
    const size_t bytes = cuda_attend_scratch(c->shape.max_heads, c->shape.max_kv_heads,
                                             c->shape.head_dim, c->shape.max_rows, chunks);
    if (!cuda_zeroed_new(c, bytes, "attention scratch", &more)) {
        cuda_memory_free(more);
        return false;
    }
    cuda_forget_all(c);
    cudaStreamSynchronize(c->shared->stream);
    cuda_memory_free(c->attend_scratch);
    c->attend_scratch = more;
    c->attend_bytes = bytes;
    c->attend_chunks = chunks;
    return true;
}

void cuda_kv_free(struct kv_layer *kv)
{
    if (kv == NULL)
        return;
    cudaStreamSynchronize(kv->owner->shared->stream);
    cuda_memory_free(kv->keys);
    cuda_memory_free(kv->values);
    free(kv);
}

bool cuda_kv_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                 struct kv_layer **out, struct error *err)
{
    struct kv_layer *kv = (struct kv_layer *)calloc(1, sizeof *kv);
    *out = NULL;
    if (kv == NULL || cuda_kv_need(ACTIVATIONS_BF16, kv_heads, head_dim, capacity) == UINT64_MAX) {
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
    if (!cuda_zeroed_new(c, keys, "keys", (void **)&kv->keys) ||
        !cuda_zeroed_new(c, values, "values", (void **)&kv->values) ||
        !attend_scratch_grow(c, capacity)) {
        cuda_say(c->shared, err);
        cuda_kv_free(kv);
        return false;
    }
    *out = kv;
    return true;
}

size_t cuda_kv_bytes(const struct kv_layer *kv)
{
    return kv->bytes;
}

void cuda_taps_free(struct tap_rows *t)
{
    if (t == NULL)
        return;
    cudaStreamSynchronize(t->owner->shared->stream);
    cuda_memory_free(t->rows);
    free(t);
}

size_t cuda_taps_bytes(const struct tap_rows *t)
{
    return (size_t)t->capacity * (size_t)t->taps * (size_t)t->hidden * sizeof *t->rows;
}

bool cuda_taps_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
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
    if (!cuda_memory_new(&c->shared->fault, cuda_taps_bytes(t), "taps", (void **)&t->rows)) {
        free(t);
        return cuda_say(c->shared, err);
    }
    *out = t;
    return true;
}

/* Copies bf16 values out and widens them in place: they are put into the upper half of `out`. */
static void read_bf16(const struct cuda_shared *s, const uint16_t *from, size_t n, float *out)
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

void cuda_read_taps(const struct tap_rows *t, int64_t position, float *out)
{
    const size_t width = (size_t)t->taps * (size_t)t->hidden;
    read_bf16(t->owner->shared, t->rows + (size_t)(position % t->capacity) * width, width, out);
}

void cuda_read_rows(const struct compute *c, int first_row, int rows, float *out)
{
    const size_t hidden = (size_t)c->shape.hidden;
    read_bf16(c->shared, c->x + (size_t)first_row * hidden, (size_t)rows * hidden, out);
}
