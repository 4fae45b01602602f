/* Dot products of prepared rows with weights, in tiles of rows x outputs: a part of kernels_*.c
 * that is included once for each form of prepared rows (as a template is). Each output has one
 * chain per lane (docs/numerics.md); speed comes from the outputs and rows of a tile being in
 * flight together, and the weights of a tile are read from memory once for all rows.
 *
 * The file that includes it defines
 *   DOT(name)                      name, made its own for this form
 *   w_pair, x_pair                 32 weights, 32 inputs of a row, as pairs
 *   DOT(load_x)(row, block)        -> x_pair
 *   DOT(load_w)(kind, p)           64 (bf16) or 128 (float32) bytes -> w_pair
 *   DOT(load_codes)(p)             16 bytes of E2M1 codes -> w_pair
 *   DOT(step)(acc, w, x)           fma(even, even, fma(odd, odd, acc))
 *   DOT(product)(w, x)             fma(even, even, odd * odd)
 * and, once, v16, scales16 with their functions, and how many outputs a tile has: for one row
 * DOT_OUTPUTS (bf16), DOT_OUTPUTS_CODES (NVFP4), for 2, 4 and 8 rows at most DOT_OUTPUTS_2, _4, _8
 * (0: never eight rows); all powers of two. */

/* R rows from row r0 on, T outputs from o on. */
INLINE void DOT(tile)(const struct dot_call *c, const enum weight_kind kind, const int R,
                      const int T, int r0, int o)
{
    v16 acc[TILE_MAX];
    UNROLL
    for (int i = 0; i < R * T; i++)
        acc[i] = v16_zero();
    const void *const *x = c->x + r0;
    const uint8_t *w = c->w + (size_t)o * c->w_stride;
    const int whole = c->in / KERNEL_BLOCK, rest = c->in % KERNEL_BLOCK;

    if (kind == KIND_NVFP4) {
        const uint8_t *s = c->scales + (size_t)o * c->scales_stride;
        for (int b0 = 0; b0 < whole || (b0 == whole && rest > 0); b0 += BLOCKS_PER_SCALES) {
            scales16 scale[TILE_MAX];
            const int groups = c->in / NVFP4_GROUP - 2 * b0;
            UNROLL
            for (int t = 0; t < T; t++)
                scale[t] = scales_decode(s + (size_t)t * c->scales_stride + 2 * b0, groups);
            const int end = b0 + BLOCKS_PER_SCALES < whole ? b0 + BLOCKS_PER_SCALES : whole;
            /* The next tile's: too many short streams for a processor to see them coming. */
            if (r0 == 0) {
                UNROLL
                for (int t = 0; t < T; t++) {
                    const uint8_t *next = w + (size_t)(t + T) * c->w_stride + 16 * (size_t)b0;
                    __builtin_prefetch(next);
                    __builtin_prefetch(next + 64);
                    __builtin_prefetch(s + (size_t)(t + T) * c->scales_stride + 2 * b0);
                }
            }
            for (int b = b0; b < end; b++) {
                UNROLL
                for (int t = 0; t < T; t++) {
                    const w_pair wt = DOT(load_codes)(w + (size_t)t * c->w_stride + 16 * (size_t)b);
                    const v16 st = scales_pair(&scale[t], b - b0);
                    UNROLL
                    for (int r = 0; r < R; r++)
                        acc[r * T + t] =
                            v16_fma(DOT(product)(wt, DOT(load_x)(x[r], b)), st, acc[r * T + t]);
                }
            }
            if (b0 + BLOCKS_PER_SCALES <= whole || rest == 0)
                continue;
            /* a last group of 16: the other half of its block is zeros */
            UNROLL
            for (int t = 0; t < T; t++) {
                uint8_t codes[16] = {0};
                memcpy(codes, w + (size_t)t * c->w_stride + 16 * (size_t)whole, 8);
                const w_pair wt = DOT(load_codes)(codes);
                const v16 st = scales_pair(&scale[t], whole - b0);
                UNROLL
                for (int r = 0; r < R; r++)
                    acc[r * T + t] =
                        v16_fma(DOT(product)(wt, DOT(load_x)(x[r], whole)), st, acc[r * T + t]);
            }
            break;
        }
    } else {
        const size_t bytes = kind == KIND_BF16 ? 2 : 4;
        for (int b = 0; b < whole; b++) {
            w_pair wp[TILE_MAX];
            /* Eight streams of whole lines are noticed; fewer, half used, need the hint. */
            if (T < 8 && r0 == 0) {
                UNROLL
                for (int t = 0; t < T; t++)
                    __builtin_prefetch(w + (size_t)(t + T) * c->w_stride +
                                       (size_t)b * KERNEL_BLOCK * bytes);
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
        if (rest > 0) {
            UNROLL
            for (int t = 0; t < T; t++) {
                uint8_t block[KERNEL_BLOCK * 4] = {0};
                memcpy(block, w + (size_t)t * c->w_stride + (size_t)whole * KERNEL_BLOCK * bytes,
                       (size_t)rest * bytes);
                const w_pair wt = DOT(load_w)(kind, block);
                UNROLL
                for (int r = 0; r < R; r++)
                    acc[r * T + t] = DOT(step)(acc[r * T + t], wt, DOT(load_x)(x[r], whole));
            }
        }
    }

    float sum[TILE_MAX];
    if (R * T % 4 == 0) {
        UNROLL
        for (int i = 0; i < R * T; i += 4)
            v16_sum4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], sum + i);
    } else {
        UNROLL
        for (int i = 0; i < R * T; i++)
            sum[i] = v16_sum(acc[i]);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        float *y = c->y + (size_t)(r0 + r) * c->y_stride + o;
        UNROLL
        for (int t = 0; t < T; t++)
            y[t] = emit(c, y + t, sum[r * T + t]);
    }
}

/* All rows, `outputs` outputs from o on (1 for the last few): the weights that several rows share
 * stay in the first-level cache between them. */
INLINE void DOT(rows)(const struct dot_call *c, const enum weight_kind kind, int rows, int o,
                      const int outputs)
{
    const int at_2 = outputs < DOT_OUTPUTS_2 ? outputs : DOT_OUTPUTS_2;
    const int at_4 = outputs < DOT_OUTPUTS_4 ? outputs : DOT_OUTPUTS_4;
    const int at_8 = outputs < DOT_OUTPUTS_8 ? outputs : DOT_OUTPUTS_8;
    int r = 0;
    for (; DOT_OUTPUTS_8 > 0 && r + 8 <= rows; r += 8)
        for (int t = 0; t < outputs; t += at_8)
            DOT(tile)(c, kind, 8, at_8, r, o + t);
    for (; r + 4 <= rows; r += 4)
        for (int t = 0; t < outputs; t += at_4)
            DOT(tile)(c, kind, 4, at_4, r, o + t);
    for (; r + 2 <= rows; r += 2)
        for (int t = 0; t < outputs; t += at_2)
            DOT(tile)(c, kind, 2, at_2, r, o + t);
    for (; r < rows; r++)
        DOT(tile)(c, kind, 1, outputs, r, o);
}

INLINE void DOT(kind)(const struct dot_call *c, const enum weight_kind kind, int rows, int count)
{
    const int outputs = kind == KIND_NVFP4 ? DOT_OUTPUTS_CODES : DOT_OUTPUTS;
    int o = 0;
    for (; o + outputs <= count; o += outputs)
        DOT(rows)(c, kind, rows, o, outputs);
    for (; o < count; o++)
        DOT(rows)(c, kind, rows, o, 1);
}

static __attribute__((noinline)) void DOT(bf16)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_BF16, rows, count);
}

static __attribute__((noinline)) void DOT(nvfp4)(const struct dot_call *c, int rows, int count)
{
    DOT(kind)(c, KIND_NVFP4, rows, count);
}
