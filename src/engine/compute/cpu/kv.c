/* Keys and values of one layer: a ring per key/value head, the row of position p at p % capacity.
 */
#include "engine/compute/cpu/backend.h"

#include <stdlib.h>

static bool bytes_of(int kv_heads, int64_t capacity, size_t row, size_t *out)
{
    size_t bytes;
    if (kv_heads < 1 || capacity < 1 ||
        __builtin_mul_overflow((size_t)kv_heads, (size_t)capacity, &bytes) ||
        __builtin_mul_overflow(bytes, row, &bytes) || bytes > SIZE_MAX / 4)
        return false;
    *out = bytes;
    return true;
}

/* Keys first; values from the next cache line on. */
static size_t values_at(size_t keys)
{
    enum { ALIGN = 64 };
    return (keys + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t cpu_kv_need(enum activations a, int kv_heads, int head_dim, int64_t capacity)
{
    size_t keys, values;
    if (!bytes_of(kv_heads, capacity, kernel_key_bytes(a, head_dim), &keys) ||
        !bytes_of(kv_heads, capacity, kernel_value_bytes(a, head_dim), &values))
        return UINT64_MAX;
    return values_at(keys) + values;
}

bool cpu_kv_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                struct kv_layer **out, struct error *err)
{
    *out = NULL;
    struct kv_layer *kv = calloc(1, sizeof *kv);
    size_t keys = 0;
    if (kv != NULL) {
        kv->backend = &cpu_backend;
        kv->kv_heads = kv_heads;
        kv->head_dim = head_dim;
        kv->capacity = capacity;
        kv->key_bytes = kernel_key_bytes(c->activations, head_dim);
        kv->value_bytes = kernel_value_bytes(c->activations, head_dim);
        const uint64_t all = cpu_kv_need(c->activations, kv_heads, head_dim, capacity);
        /* Not touched: a row is read only after it was written, and a long context that is never
         * reached costs no memory. */
        if (all != UINT64_MAX && bytes_of(kv_heads, capacity, kv->key_bytes, &keys) &&
            pages_new((size_t)all, c->pages, &kv->memory)) {
            kv->keys = kv->memory.data;
            kv->values = kv->keys + values_at(keys);
        }
    }
    if (kv == NULL || kv->keys == NULL) {
        cpu_kv_free(kv);
        return error_set(err, "OUT-OF-MEMORY",
                         "no memory for the keys and values of %lld positions",
                         (long long)capacity);
    }
    *out = kv;
    return true;
}

void cpu_kv_free(struct kv_layer *kv)
{
    if (kv == NULL)
        return;
    pages_free(&kv->memory);
    free(kv);
}

size_t cpu_kv_bytes(const struct kv_layer *kv)
{
    return (size_t)kv->kv_heads * (size_t)kv->capacity * (kv->key_bytes + kv->value_bytes);
}
