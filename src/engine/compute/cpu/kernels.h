/* Kernels: the inner loops of the CPU backend, one table of functions per instruction set. The
 * portable table is the reference; every other gives its bits (docs/numerics.md), whatever the
 * number of rows in a call and however outputs or heads are cut into calls.
 *
 * Activations are float32 in memory. With ACTIVATIONS_BF16 every value that the model rounds is a
 * bf16 value held in a float; with ACTIVATIONS_F32 nothing is rounded. Callers have set
 * machine_float_enter. Weights may be unaligned; everything else is aligned to its type. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_KERNELS_H
#define MLXFAST_ENGINE_COMPUTE_CPU_KERNELS_H

#include "base/error.h"
#include "engine/compute/blocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KERNEL_LANES = 16,  /* lanes of every long sum */
    KERNEL_BLOCK = 32,  /* inputs that one step of a dot product takes; rows are padded to it */
    KERNEL_CHUNK = 256, /* attention: keys per chunk, aligned to absolute positions */
    KERNEL_HEADS = 8    /* attention: query heads worked on together */
};

static inline int kernel_pad(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Bytes after a prepared row of n inputs that group_sums fills: its sums over groups of 32,
 * float32, padded with zeros to KERNEL_LANES of them. */
static inline size_t kernel_sums_bytes(int n)
{
    return (size_t)kernel_pad((n + KERNEL_BLOCK - 1) / KERNEL_BLOCK, KERNEL_LANES) * sizeof(float);
}

/* y[r * y_stride + o] = x[r] . w[o] for r < rows, o in [first, first + count). Rounded. With add,
 * y = round(y + round(dot)): the residual. */
struct linear_call {
    const struct weight_matrix *w;
    const void *const *x; /* [rows], each made by prepare with n = w->in; for WEIGHT_INT8_AFFINE32
                             by group_sums too */
    int rows, first, count;
    float *y;
    size_t y_stride;
    bool add;
};

/* The query heads of one key/value head, for one row: out[h] = round(round(softmax(q k) v) *
 * gate[h]). Keys and values lie in rings: the row of position p is p % capacity. */
struct attention_call {
    int heads, head_dim;
    float scale;
    const void *const *q; /* [heads], each made by prepare with n = head_dim */
    const float *gate;    /* [heads] */
    const void *keys;     /* [capacity] rows as key_store writes them */
    const void *values;   /* [capacity] rows as value_store writes them */
    int64_t capacity;
    int64_t first, last; /* visible positions, both included; last - first < capacity */
    float *out;          /* [heads, head_dim] */
    float *scratch;      /* kernel_attention_scratch(head_dim) floats, 64-byte aligned */
};

struct cpu_kernels {
    const char *name;
    /* Bytes per element of a prepared row: [ACTIVATIONS_BF16], [ACTIVATIONS_F32]. A prepared row
     * has kernel_pad(n, KERNEL_BLOCK) elements, 64-byte aligned. */
    int prepared_bytes[2];
    /* Brings a row of n values (bf16 values with ACTIVATIONS_BF16) into the form that linear and
     * attention take. */
    void (*prepare)(enum activations a, const float *x, int n, void *out);
    /* Sums of a prepared row's groups of 32, put behind its n (a multiple of 32) elements. */
    void (*group_sums)(enum activations a, int n, void *prepared);
    void (*linear)(enum activations a, const struct linear_call *call);
    void (*attention)(enum activations a, const struct attention_call *call);
    /* y = round(round(x * inv) * w), inv = 1 / sqrt(sum(x^2) / n + eps). y may be x. */
    void (*rms_norm)(enum activations a, const float *x, const uint16_t *w, int n, float eps,
                     float *y);
    /* Rotates the first table->dim values of x in place. */
    void (*rope)(enum activations a, const struct rope_table *table, int64_t position, float *x);
    /* out = round(round(gate * round(sigmoid(gate))) * up) */
    void (*silu_up)(enum activations a, const float *gate, const float *up, int n, float *out);
    void (*sigmoid)(const float *x, int n, float *out);                      /* never rounded */
    void (*softplus)(enum activations a, const float *x, int n, float *out); /* rounded */
    void (*scale)(enum activations a, const float *y, float w, int n, float *out); /* round(y*w) */
    /* sum = round(sum + round(y * w)) */
    void (*accumulate)(enum activations a, const float *y, float w, int n, float *sum);
    void (*add)(enum activations a, const float *y, int n, float *x); /* x = round(x + y) */
    /* Takes the logits of n ids from `first` on into what was picked among lower ids. */
    void (*pick)(const float *logits, int first, int n, struct head_pick *pick);
};

/* The rule of struct head_pick, for one more logit: its id is above those seen. */
static inline void kernel_pick_one(struct head_pick *p, int32_t token, float logit)
{
    if (p->token[0] < 0 ? logit == logit : logit > p->logit[0]) {
        p->token[1] = p->token[0];
        p->logit[1] = p->logit[0];
        p->token[0] = token;
        p->logit[0] = logit;
    } else if (p->token[1] < 0 ? logit == logit : logit > p->logit[1]) {
        p->token[1] = token;
        p->logit[1] = logit;
    }
}

/* Bytes of one key or value row of a ring. */
size_t kernel_key_bytes(enum activations a, int head_dim);
size_t kernel_value_bytes(enum activations a, int head_dim);
/* Writes one. Keys are bf16 (F32: as prepare makes them), padded with zeros to KERNEL_BLOCK; values
 * are bf16 or float32, padded with zeros to KERNEL_LANES. */
void kernel_key_store(const struct cpu_kernels *k, enum activations a, const float *x, int head_dim,
                      void *out);
void kernel_value_store(enum activations a, const float *x, int head_dim, void *out);
size_t kernel_attention_scratch(int head_dim);

extern const struct cpu_kernels cpu_kernels_portable;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#elif defined(__aarch64__)
extern const struct cpu_kernels cpu_kernels_neon;
#endif

/* The tables that this machine can run, portable first, best last. Returns how many. */
enum { KERNELS_MAX = 4 };
int kernels_available(const struct cpu_kernels *out[KERNELS_MAX]);
/* name NULL: MLXFAST_CPU, then BENCH_WORKER_CPU, then the best. Error CPU-UNSUPPORTED, naming where
 * the value came from and the value. */
bool kernels_choose(const char *name, const struct cpu_kernels **out, struct error *err);

#endif
