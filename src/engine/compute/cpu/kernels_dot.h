/* Dot products of prepared rows with weights, in tiles of rows x outputs: a part of kernels_*.c
 * that is included once for each form of prepared rows (as a template is). Each output has one
 * chain per lane (docs/numerics.md); speed comes from the outputs and rows of a tile being in
 * flight together. The weights of a tile are read and decoded once for its rows, and its sums are
 * folded, rounded and added as vectors: where rows are short, that is half of the work.
 *
 * The file that includes it defines
 *   DOT(name)                      name, made its own for this form
 *   w_pair, x_pair                 32 weights, 32 inputs of a row, as pairs
 *   DOT(load_x)(row, block)        -> x_pair
 *   DOT(load_w)(kind, p)           64 (bf16) or 128 (float32) bytes -> w_pair
 *   DOT(load_codes)(p)             16 bytes of E2M1 codes -> w_pair
 *   DOT(step)(acc, w, x)           fma(even, even, fma(odd, odd, acc))
 *   DOT(product)(w, x)             fma(even, even, odd * odd)
 * and, once, v16, scales16 with their functions, DOT_ROWS (the most rows of a tile, at most 8) and
 * dot_outputs(kind, rows): how many outputs such a tile has, a power of two, at most DOT_OUTPUTS.
 */

/* Finishes the sums of a tile of R rows and T outputs and puts them where they belong. */
INLINE void DOT(emit)(const struct dot_call *c, const v16 *acc, const int R, const int T, int r0,
                      int o)
{
    UNROLL
    for (int i = 0; i < R * T; i += KERNEL_LANES) {
        const int n = R * T - i < KERNEL_LANES ? R * T - i : KERNEL_LANES;
        float *y = c->y + (size_t)(r0 + i / T) * c->y_stride + o;
        v16 v = v16_sums(acc + i, n);
        if (c->round)
            v = v16_round(v);
        if (c->add) {
            _Alignas(64) float before[KERNEL_LANES] = {0};
            UNROLL
            for (int j = 0; j < n; j += T)
                memcpy(before + j, y + (size_t)(j / T) * c->y_stride, (size_t)T * sizeof *y);
            v = v16_add(v16_load(before), v);
            if (c->round)
                v = v16_round(v);
        }
        _Alignas(64) float sum[KERNEL_LANES];
        v16_store(sum, v);
        UNROLL
        for (int j = 0; j < n; j += T)
            memcpy(y + (size_t)(j / T) * c->y_stride, sum + j, (size_t)T * sizeof *y);
    }
}

/* Block b of all: R rows with T outputs' codes at w, their scales decoded, `share` outputs' in one.
 */
INLINE void DOT(codes_step)(const struct dot_call *c, const int R, const int T, v16 *acc,
                            const void *const *x, const uint8_t *w, const scales16 *scale, int b,
                            int b0, const int share)
{
    UNROLL
    for (int t = 0; t < T; t++) {
        const w_pair wt = DOT(load_codes)(w + (size_t)t * c->w_stride);
        const v16 st =
            scales_pair(&scale[t / share], t % share * (BLOCKS_PER_SCALES / share) + b - b0);
        UNROLL
        for (int r = 0; r < R; r++)
            acc[r * T + t] = v16_fma(DOT(product)(wt, DOT(load_x)(x[r], b)), st, acc[r * T + t]);
    }
}

/* The last inputs, fewer than a block, of one row and one output: what is not there is zero. */
INLINE void DOT(rest)(const struct dot_call *c, const enum weight_kind kind, v16 *acc,
                      const void *x, int o)
{
    const int whole = c->in / KERNEL_BLOCK, rest = c->in % KERNEL_BLOCK;
    const uint8_t *w = c->w + (size_t)o * c->w_stride;
    uint8_t block[KERNEL_BLOCK * 4] = {0};
    if (kind == KIND_NVFP4) { /* a last group of 16 */
        const uint8_t *s = c->scales + (size_t)o * c->scales_stride + 2 * (size_t)whole;
        const scales16 scale = scales_decode(s, 1);
        memcpy(block, w + 16 * (size_t)whole, 8);
        DOT(codes_step)(c, 1, 1, acc, &x, block, &scale, whole, whole, 1);
        return;
    }
    const size_t bytes = kind == KIND_BF16 ? 2 : 4;
    memcpy(block, w + (size_t)whole * KERNEL_BLOCK * bytes, (size_t)rest * bytes);
    *acc = DOT(step)(*acc, DOT(load_w)(kind, block), DOT(load_x)(x, whole));
}

/* R rows from row r0 on, T outputs from o on. streamed: bf16 weights are fetched in the order of
 * memory, the next tile's while this one is worked on. */
INLINE void DOT(tile)(const struct dot_call *c, const enum weight_kind kind, const bool ragged,
                      const bool streamed, const int R, const int T, int r0, int o)
{
    v16 acc[TILE_MAX];
    UNROLL
    for (int i = 0; i < R * T; i++)
        acc[i] = v16_zero();
    const void *x[DOT_ROWS];
    UNROLL
    for (int r = 0; r < R; r++)
        x[r] = c->x[r0 + r];
    const uint8_t *w = c->w + (size_t)o * c->w_stride;
    const int whole = c->in / KERNEL_BLOCK;

    if (kind == KIND_NVFP4_64) { /* four groups an output: the scales of four fill one decoding */
        scales16 scale[DOT_OUTPUTS];
        UNROLL
        for (int t = 0; t < T; t += 4)
            scale[t / 4] = scales_decode(c->scales + 4 * (size_t)(o + t), T < 4 ? 4 * T : 16);
        if (r0 == 0) {
            UNROLL
            for (int t = 0; t < T; t += 2)
                __builtin_prefetch(w + 32 * (size_t)(t + 2 * DOT_OUTPUTS));
            __builtin_prefetch(c->scales + 4 * (size_t)(o + 2 * DOT_OUTPUTS));
        }
        UNROLL
        for (int b = 0; b < 2; b++)
            DOT(codes_step)(c, R, T, acc, x, w + 16 * b, scale, b, 0, 4);
    } else if (kind == KIND_NVFP4) {
        const uint8_t *s = c->scales + (size_t)o * c->scales_stride;
        for (int b0 = 0; b0 < whole; b0 += BLOCKS_PER_SCALES) {
            scales16 scale[DOT_OUTPUTS];
            const int groups = 2 * (whole - b0);
            UNROLL
            for (int t = 0; t < T; t++)
                scale[t] = scales_decode(s + (size_t)t * c->scales_stride + 2 * b0, groups);
            const int end = b0 + BLOCKS_PER_SCALES < whole ? b0 + BLOCKS_PER_SCALES : whole;
            /* Further on: too many short streams for a processor to see them coming. */
            if (r0 == 0) {
                UNROLL
                for (int t = 0; t < T; t++) {
                    const uint8_t *next =
                        w + (size_t)(t + DOT_OUTPUTS) * c->w_stride + 16 * (size_t)b0;
                    __builtin_prefetch(next);
                    __builtin_prefetch(next + 64);
                    __builtin_prefetch(s + (size_t)(t + DOT_OUTPUTS) * c->scales_stride + 2 * b0);
                }
            }
            for (int b = b0; b < end; b++)
                DOT(codes_step)(c, R, T, acc, x, w + 16 * (size_t)b, scale, b, b0, 1);
        }
    } else {
        const size_t bytes = kind == KIND_BF16 ? 2 : 4;
        const size_t group = (streamed ? (size_t)T : DOT_OUTPUTS) * c->w_stride;
        const uintptr_t ahead = (uintptr_t)w + (c->ahead != 0 ? (uintptr_t)c->ahead : group);
        /* Of what is fetched: from one output to the next, from one block to the next. */
        const size_t across = streamed ? KERNEL_BLOCK * bytes : c->w_stride;
        const size_t along = (streamed ? (size_t)T : 1) * KERNEL_BLOCK * bytes;
        for (int b = 0; b < whole; b++) {
            w_pair wp[DOT_OUTPUTS];
            /* Streams of half a page each end before a processor has seen them coming. */
            if (r0 == 0) {
                UNROLL
                for (int t = 0; t < T; t++)
                    prefetch_near(ahead + (size_t)t * across + (size_t)b * along);
            }
            UNROLL
            for (int t = 0; t < T; t++)
                wp[t] = DOT(load_w)(kind,
                                    w + (size_t)t * c->w_stride + (size_t)b * KERNEL_BLOCK * bytes);
            UNROLL
            for (int r = 0; r < R; r++) {
                const x_pair xp = DOT(load_x)(x[r], b);
                UNROLL
                for (int t = 0; t < T; t++)
                    acc[r * T + t] = DOT(step)(acc[r * T + t], wp[t], xp);
            }
        }
    }
    if (ragged) /* a tile of one */
        DOT(rest)(c, kind, acc, x[0], o);
    DOT(emit)(c, acc, R, T, r0, o);
}

/* R rows, `outputs` outputs from o on. Two streams keep a core at the speed of memory, eight a page
 * apart do not (docs/performance.md). */
INLINE void DOT(tiles)(const struct dot_call *c, const enum weight_kind kind, const bool streamed,
                       const int R, int r0, int o, const int outputs)
{
    const int most = streamed ? 2 : dot_outputs(kind, R);
    const int T = most < outputs ? most : outputs;
    for (int t = 0; t < outputs; t += T)
        DOT(tile)(c, kind, false, streamed, R, T, r0, o + t);
}

/* All rows: the weights that several tiles of rows share stay in the first-level cache between
 * them. Nine rows are five and four, not eight and a lonely one. */
INLINE void DOT(rows)(const struct dot_call *c, const enum weight_kind kind, const bool streamed,
                      int rows, int o, const int outputs)
{
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        const int n = left <= DOT_ROWS ? left : left >= 2 * DOT_ROWS ? DOT_ROWS : (left + 1) / 2;
        switch (n) {
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        if (R <= DOT_ROWS)                                                                         \
            DOT(tiles)(c, kind, streamed, R <= DOT_ROWS ? R : 1, r, o, outputs);                   \
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

INLINE void DOT(kind)(const struct dot_call *c, const enum weight_kind kind, const bool streamed,
                      int rows, int count)
{
    int o = 0;
    for (; o + DOT_OUTPUTS <= count; o += DOT_OUTPUTS)
        DOT(rows)(c, kind, streamed, rows, o, DOT_OUTPUTS);
    for (; o + 2 <= count; o += 2)
        DOT(rows)(c, kind, streamed, rows, o, 2);
    if (o < count)
        DOT(rows)(c, kind, streamed, rows, o, 1);
}

INLINE void DOT(one_by_one)(const struct dot_call *c, const enum weight_kind kind, int rows,
                            int count)
{
    for (int o = 0; o < count; o++)
        for (int r = 0; r < rows; r++)
            DOT(tile)(c, kind, true, false, 1, 1, r, o);
}

#define APART static __attribute__((noinline))

APART void DOT(bf16_whole)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_BF16, false, rows, count);
}

/* Weights of a page and more an output: two at a time, while rows leave that bound by memory. */
APART void DOT(bf16_streamed)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_BF16, true, rows, count);
}

APART void DOT(bf16_ragged)(const struct dot_call *c, int rows, int count)
{
    DOT(one_by_one)(c, KIND_BF16, rows, count);
}

APART void DOT(nvfp4_64)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_NVFP4_64, false, rows, count);
}

APART void DOT(nvfp4_whole)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_NVFP4, false, rows, count);
}

APART void DOT(nvfp4_ragged)(const struct dot_call *c, int rows, int count)
{
    DOT(one_by_one)(c, KIND_NVFP4, rows, count);
}

#undef APART

INLINE void DOT(bf16)(const struct dot_call *c, int rows, int count)
{
    enum { PAGE = 4096 };
    if (c->in % KERNEL_BLOCK == 0 && c->w_stride >= PAGE && c->ahead == 0 && rows < DOT_ROWS)
        DOT(bf16_streamed)(c, rows, count);
    else if (c->in % KERNEL_BLOCK == 0)
        DOT(bf16_whole)(c, rows, count);
    else
        DOT(bf16_ragged)(c, rows, count);
}

INLINE void DOT(nvfp4)(const struct dot_call *c, int rows, int count)
{
    if (c->in == 4 * NVFP4_GROUP)
        DOT(nvfp4_64)(c, rows, count);
    else if (c->in % KERNEL_BLOCK == 0)
        DOT(nvfp4_whole)(c, rows, count);
    else
        DOT(nvfp4_ragged)(c, rows, count);
}
