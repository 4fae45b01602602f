/* Dot products with affine INT8 weights (docs/numerics.md): a part of kernels_*.c that is included
 * once for each form of prepared rows, after kernels_dot.h and with its definitions, and
 *   DOT(load_bytes)(p)             32 codes -> w_pair
 *   DOT(pair_sums)(row, block)     even + odd of a block's inputs -> v16
 *   v16_load_bf16_some(p, n)       n <= 16 bf16 values, the rest zero
 * The biases cost one step for sixteen groups: the sums of the inputs were taken before. */

/* Where group_sums puts the sums of a row of n inputs. */
INLINE float *DOT(sums_of)(const void *row, int n)
{
    return (float *)(uintptr_t)((const uint8_t *)row + (size_t)n * sizeof(x_pair) / KERNEL_BLOCK);
}

static void DOT(group_sums)(void *row, int n)
{
    const int groups = n / KERNEL_BLOCK;
    float *sum = DOT(sums_of)(row, n);
    for (int g0 = 0; g0 < groups; g0 += KERNEL_LANES) {
        v16 v[KERNEL_LANES];
        for (int i = 0; i < KERNEL_LANES; i++)
            v[i] = g0 + i < groups ? DOT(pair_sums)(row, g0 + i) : v16_zero();
        v16_store(sum + g0, v16_sums(v, KERNEL_LANES));
    }
}

/* R rows from row r0 on, T outputs from o on. */
INLINE void DOT(int8_tile)(const struct dot_call *c, const int R, const int T, int r0, int o)
{
    v16 acc[TILE_MAX];
    const void *x[DOT_ROWS];
    const uint8_t *w = c->w + (size_t)o * c->w_stride;
    const uint8_t *scales = c->scales + (size_t)o * c->scales_stride;
    const uint8_t *biases = c->biases + (size_t)o * c->scales_stride;
    const int groups = c->in / KERNEL_BLOCK;
    UNROLL
    for (int r = 0; r < R; r++)
        x[r] = c->x[r0 + r];
    UNROLL
    for (int i = 0; i < R * T; i++)
        acc[i] = v16_zero();
    for (int g0 = 0; g0 < groups; g0 += KERNEL_LANES) {
        v16 bias[DOT_OUTPUTS];
        if (r0 == 0) {
            UNROLL
            for (int t = 0; t < T; t++) {
                const size_t next = (size_t)(t + DOT_OUTPUTS) * c->scales_stride + 2 * (size_t)g0;
                __builtin_prefetch(biases + next);
                __builtin_prefetch(scales + next);
            }
        }
        UNROLL
        for (int t = 0; t < T; t++)
            bias[t] = v16_load_bf16_some(biases + (size_t)t * c->scales_stride + 2 * (size_t)g0,
                                         groups - g0);
        UNROLL
        for (int r = 0; r < R; r++) {
            const v16 sum = v16_load(DOT(sums_of)(x[r], c->in) + g0);
            UNROLL
            for (int t = 0; t < T; t++)
                acc[r * T + t] = v16_fma(bias[t], sum, acc[r * T + t]);
        }
    }
    for (int b0 = 0; b0 < groups; b0 += KERNEL_LANES) {
        _Alignas(64) float scale[DOT_OUTPUTS][KERNEL_LANES];
        const int end = groups - b0 < KERNEL_LANES ? groups : b0 + KERNEL_LANES;
        UNROLL
        for (int t = 0; t < T; t++)
            v16_store(scale[t],
                      v16_load_bf16_some(scales + (size_t)t * c->scales_stride + 2 * (size_t)b0,
                                         groups - b0));
        for (int b = b0; b < end; b++) {
            const uint8_t *block = w + (size_t)b * KERNEL_BLOCK;
            /* As in kernels_dot.h: many short streams. A line holds two blocks. */
            if (r0 == 0 && b % 2 == 0) {
                UNROLL
                for (int t = 0; t < T; t++)
                    __builtin_prefetch(block + (size_t)(t + DOT_OUTPUTS) * c->w_stride);
            }
            UNROLL
            for (int t = 0; t < T; t++) {
                const w_pair wt = DOT(load_bytes)(block + (size_t)t * c->w_stride);
                const v16 st = v16_set(scale[t][b - b0]);
                UNROLL
                for (int r = 0; r < R; r++)
                    acc[r * T + t] =
                        v16_fma(DOT(product)(wt, DOT(load_x)(x[r], b)), st, acc[r * T + t]);
            }
        }
    }
    DOT(emit)(c, acc, R, T, r0, o);
}

/* R rows, `outputs` outputs from o on. */
INLINE void DOT(int8_tiles)(const struct dot_call *c, const int R, int r0, int o, const int outputs)
{
    const int most = dot_outputs(KIND_BF16, R), T = most < outputs ? most : outputs;
    for (int t = 0; t < outputs; t += T)
        DOT(int8_tile)(c, R, T, r0, o + t);
}

/* All rows, cut as in kernels_dot.h. */
INLINE void DOT(int8_rows)(const struct dot_call *c, int rows, int o, const int outputs)
{
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        const int n = left <= DOT_ROWS ? left : left >= 2 * DOT_ROWS ? DOT_ROWS : (left + 1) / 2;
        switch (n) {
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        if (R <= DOT_ROWS)                                                                         \
            DOT(int8_tiles)(c, R <= DOT_ROWS ? R : 1, r, o, outputs);                              \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
            CASE(7)
            CASE(8)
#undef CASE
        }
        r += n;
    }
}

static __attribute__((noinline)) void DOT(int8)(const struct dot_call *c, int rows, int count)
{
    int o = 0;
    for (; o + DOT_OUTPUTS <= count; o += DOT_OUTPUTS)
        DOT(int8_rows)(c, rows, o, DOT_OUTPUTS);
    for (; o < count; o++)
        DOT(int8_rows)(c, rows, o, 1);
}
