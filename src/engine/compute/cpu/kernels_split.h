/* Rows as float32, the evens and odds of each block of 32 apart: the form of instruction sets
 * without a bf16 dot product, and of ACTIVATIONS_F32 everywhere. Included once by a kernels_*.c,
 * after struct pair, split_load_x, split_load_w and split_load_codes. */

INLINE v16 split_step(v16 acc, struct pair w, struct pair x)
{
    return v16_fma(w.even, x.even, v16_fma(w.odd, x.odd, acc));
}

INLINE v16 split_product(struct pair w, struct pair x)
{
    return v16_fma(w.even, x.even, v16_mul(w.odd, x.odd));
}

#define DOT(name) split_##name
#define w_pair struct pair
#define x_pair struct pair
#include "engine/compute/cpu/kernels_dot.h"

/* Keys of ACTIVATIONS_F32 lie in the ring in this form. */
static __attribute__((noinline)) void dot_keys(const struct dot_call *c, int rows, int count)
{
    split_kind(c, KIND_FLOAT, false, rows, count);
}

static void split_prepare(const float *x, int n, float *out)
{
    for (int b = 0; b < n; b += KERNEL_BLOCK) {
        float rest[KERNEL_BLOCK] = {0};
        const float *from = x + b;
        if (n - b < KERNEL_BLOCK) {
            memcpy(rest, from, (size_t)(n - b) * sizeof *rest);
            from = rest;
        }
        for (int l = 0; l < KERNEL_LANES; l++) {
            out[b + l] = from[2 * l];
            out[b + KERNEL_LANES + l] = from[2 * l + 1];
        }
    }
}
