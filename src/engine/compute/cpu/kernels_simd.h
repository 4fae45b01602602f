/* The kernels in terms of sixteen lanes: the body of every kernels_<instruction set>.c, which
 * defines v16 and its operations, the dot products (kernels_dot.h), and then includes this file.
 * The same operations per element as kernels_portable.c, so the same bits.
 *
 * Before it: v16_zero, set, load, store, load_bf16, round (to bf16 values), add, sub, mul, div,
 * fma, max, abs, neg, roundeven, scale2 (times 2^n), select_lt (a < b ? x : y), select_nan (a is
 * NaN ? x : y), any_lt, sum; HEADS_IN_FLIGHT, VALUES_IN_FLIGHT; prepare, dot_bf16, dot_nvfp4,
 * dot_keys, group_sums, linear_int8. */

INLINE v16 rounded(enum activations a, v16 v)
{
    return a == ACTIVATIONS_BF16 ? v16_round(v) : v;
}

/* The last n < 16 values of a row; the other lanes are zero. */
INLINE v16 load_some(const float *p, int n)
{
    if (n >= KERNEL_LANES)
        return v16_load(p);
    float t[KERNEL_LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return v16_load(t);
}

INLINE v16 load_bf16_some(const uint16_t *p, int n)
{
    if (n >= KERNEL_LANES)
        return v16_load_bf16(p);
    uint16_t t[KERNEL_LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return v16_load_bf16(t);
}

INLINE void store_some(float *p, v16 v, int n)
{
    if (n >= KERNEL_LANES) {
        v16_store(p, v);
        return;
    }
    float t[KERNEL_LANES];
    v16_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *t);
}

/* ---- Elementary functions, operation by operation as elementary.h ---- */

INLINE v16 v16_exp(v16 x)
{
    const v16 low = v16_set(ELEMENTARY_EXP_LOW), high = v16_set(ELEMENTARY_EXP_HIGH);
    v16 in = v16_select_lt(x, low, low, x);
    in = v16_select_lt(high, in, high, in);
    const v16 n = v16_roundeven(v16_mul(in, v16_set(ELEMENTARY_LOG2_E)));
    v16 r = v16_fma(n, v16_set(ELEMENTARY_LN2_HIGH), in);
    r = v16_fma(n, v16_set(ELEMENTARY_LN2_LOW), r);
    v16 p = v16_set(ELEMENTARY_EXP_C6);
    p = v16_fma(p, r, v16_set(ELEMENTARY_EXP_C5));
    p = v16_fma(p, r, v16_set(ELEMENTARY_EXP_C4));
    p = v16_fma(p, r, v16_set(ELEMENTARY_EXP_C3));
    p = v16_fma(p, r, v16_set(ELEMENTARY_EXP_C2));
    p = v16_fma(p, r, v16_set(ELEMENTARY_EXP_C1));
    v16 y = v16_fma(p, v16_mul(r, r), r);
    y = v16_scale2(v16_add(y, v16_set(1.0f)), n);
    y = v16_select_lt(x, low, v16_zero(), y);
    y = v16_select_lt(high, x, v16_set(INFINITY), y);
    return v16_select_nan(x, x, y);
}

INLINE v16 v16_sigmoid(v16 z)
{
    const v16 one = v16_set(1.0f);
    const v16 e = v16_exp(v16_neg(v16_abs(z)));
    const v16 s = v16_div(one, v16_add(one, e));
    const v16 below = v16_fma(v16_neg(e), v16_mul(e, s), e);
    return v16_select_lt(z, v16_zero(), below, s);
}

INLINE v16 v16_softplus(v16 z)
{
    static const float terms[] = ELEMENTARY_LOG1P_TERMS;
    const v16 x = v16_exp(v16_neg(v16_abs(z)));
    v16 p = v16_set(terms[0]);
    for (int i = 1; i < ELEMENTARY_LOG1P_COUNT; i++)
        p = v16_fma(p, x, v16_set(terms[i]));
    const v16 log1p_x = v16_fma(v16_mul(x, x), p, x);
    return v16_add(v16_select_lt(v16_zero(), z, z, v16_zero()), log1p_x);
}

/* ---- Linear ---- */

static void linear(enum activations a, const struct linear_call *call)
{
    const struct weight_matrix *w = call->w;
    if (w->format == WEIGHT_INT8_AFFINE32) {
        linear_int8(a, call);
        return;
    }
    const bool bf16 = w->format == WEIGHT_BF16;
    struct dot_call c = {.kind = bf16 ? KIND_BF16 : KIND_NVFP4,
                         .w_stride = bf16 ? (size_t)w->in * 2 : (size_t)w->in / 2,
                         .scales_stride = bf16 ? 0 : (size_t)w->in / NVFP4_GROUP,
                         .in = w->in,
                         .x = call->x,
                         .y = call->y + call->first,
                         .y_stride = call->y_stride,
                         .round = a == ACTIVATIONS_BF16,
                         .add = call->add};
    c.w = (const uint8_t *)w->data + (size_t)call->first * c.w_stride;
    if (bf16) {
        dot_bf16(a, &c, call->rows, call->count);
    } else {
        c.scales = w->scales + (size_t)call->first * c.scales_stride;
        dot_nvfp4(a, &c, call->rows, call->count);
    }
}

/* ---- Attention ---- */

/* What is read next, which a processor does not see coming: so many bytes further on than a row, so
 * many cache lines of it. */
struct ahead {
    ptrdiff_t bytes;
    int lines;
};

/* o[h] += p[h][j] * value row j, in ascending j: H heads, D vectors of 16 dimensions from d on. */
INLINE void weigh(enum activations a, const int H, const int D, const uint8_t *values,
                  size_t row_bytes, int count, const float *p, float *o, int o_stride, int d,
                  struct ahead next)
{
    v16 acc[HEADS_IN_FLIGHT * VALUES_IN_FLIGHT];
    UNROLL
    for (int h = 0; h < H; h++) {
        UNROLL
        for (int i = 0; i < D; i++)
            acc[h * D + i] = v16_load(o + h * o_stride + d + KERNEL_LANES * i);
    }
    for (int j = 0; j < count; j++) {
        const uint8_t *row = values + (size_t)j * row_bytes;
        for (int i = 0; i < next.lines; i++)
            prefetch_far((uintptr_t)row + (uintptr_t)next.bytes + 64 * (uintptr_t)i);
        v16 v[VALUES_IN_FLIGHT];
        UNROLL
        for (int i = 0; i < D; i++)
            v[i] = a == ACTIVATIONS_BF16
                       ? v16_load_bf16((const uint16_t *)(const void *)row + d + KERNEL_LANES * i)
                       : v16_load((const float *)(const void *)row + d + KERNEL_LANES * i);
        UNROLL
        for (int h = 0; h < H; h++) {
            const v16 ph = v16_set(p[h * KERNEL_CHUNK + j]);
            UNROLL
            for (int i = 0; i < D; i++)
                acc[h * D + i] = v16_fma(ph, v[i], acc[h * D + i]);
        }
    }
    UNROLL
    for (int h = 0; h < H; h++) {
        UNROLL
        for (int i = 0; i < D; i++)
            v16_store(o + h * o_stride + d + KERNEL_LANES * i, acc[h * D + i]);
    }
}

/* Each pass over the values brings its share of the lines ahead. */
INLINE void weigh_heads(enum activations a, const int H, const uint8_t *values, size_t row_bytes,
                        int count, const float *p, float *o, int o_stride, struct ahead *next)
{
    int d = 0;
    for (; d + VALUES_IN_FLIGHT * KERNEL_LANES <= o_stride; d += VALUES_IN_FLIGHT * KERNEL_LANES) {
        weigh(a, H, VALUES_IN_FLIGHT, values, row_bytes, count, p, o, o_stride, d, *next);
        next->bytes += 64 * next->lines;
    }
    for (; VALUES_IN_FLIGHT > 2 && d + 2 * KERNEL_LANES <= o_stride; d += 2 * KERNEL_LANES)
        weigh(a, H, VALUES_IN_FLIGHT > 2 ? 2 : 1, values, row_bytes, count, p, o, o_stride, d,
              (struct ahead){0, 0});
    for (; d < o_stride; d += KERNEL_LANES)
        weigh(a, H, 1, values, row_bytes, count, p, o, o_stride, d, (struct ahead){0, 0});
}

/* next: bytes from the first value row to the first row of what is read after, 0: nothing. */
INLINE void weigh_any(enum activations a, int heads, const uint8_t *values, size_t row_bytes,
                      int count, const float *p, float *o, int o_stride, ptrdiff_t next)
{
    const int passes = (heads / HEADS_IN_FLIGHT + heads % HEADS_IN_FLIGHT / 2 + heads % 2) *
                       (o_stride / (VALUES_IN_FLIGHT * KERNEL_LANES));
    struct ahead ahead = {next, 0};
    if (next != 0 && passes > 0)
        ahead.lines = ((int)row_bytes / 64 + passes - 1) / passes;
    int h = 0;
    for (; h + HEADS_IN_FLIGHT <= heads; h += HEADS_IN_FLIGHT)
        weigh_heads(a, HEADS_IN_FLIGHT, values, row_bytes, count, p + h * KERNEL_CHUNK,
                    o + h * o_stride, o_stride, &ahead);
    for (; h + 2 <= heads; h += 2)
        weigh_heads(a, 2, values, row_bytes, count, p + h * KERNEL_CHUNK, o + h * o_stride,
                    o_stride, &ahead);
    for (; h < heads; h++)
        weigh_heads(a, 1, values, row_bytes, count, p + h * KERNEL_CHUNK, o + h * o_stride,
                    o_stride, &ahead);
}

/* Scores to exp(score - maximum) in place over [first, last] of a chunk; the rest of the blocks of
 * 16 that they touch becomes zero. Returns the sum in lanes. */
INLINE float soften(float *s, int first, int last, float scale, float *maximum)
{
    const int begin = first / KERNEL_LANES * KERNEL_LANES;
    const int end = (last / KERNEL_LANES + 1) * KERNEL_LANES;
    for (int j = begin; j < first; j++)
        s[j] = -INFINITY;
    for (int j = last + 1; j < end; j++)
        s[j] = -INFINITY;
    const v16 factor = v16_set(scale);
    v16 top = v16_set(-INFINITY);
    for (int j = begin; j < end; j += KERNEL_LANES) {
        const v16 v = v16_mul(v16_load(s + j), factor);
        v16_store(s + j, v);
        top = v16_max(top, v);
    }
    float lane[KERNEL_LANES], m = -INFINITY;
    v16_store(lane, top);
    for (int l = 0; l < KERNEL_LANES; l++)
        m = lane[l] > m ? lane[l] : m;
    const v16 mv = v16_set(m);
    v16 sum = v16_zero();
    for (int j = begin; j < end; j += KERNEL_LANES) {
        const v16 e = v16_exp(v16_sub(v16_load(s + j), mv));
        v16_store(s + j, e);
        sum = v16_add(sum, e);
    }
    *maximum = m;
    return v16_sum(sum);
}

INLINE ptrdiff_t distance(const uint8_t *from, const uint8_t *to)
{
    return (ptrdiff_t)((uintptr_t)to - (uintptr_t)from);
}

struct softmax_state {
    float m[KERNEL_HEADS], l[KERNEL_HEADS];
};

/* Keys first..last of one chunk, for up to eight heads: m, l, and o [heads, dim]. */
static void attention_chunk(enum activations a, const struct attention_call *call, int head,
                            int heads, int64_t first, int64_t last, struct softmax_state *state,
                            float *o)
{
    _Alignas(64) float s[KERNEL_HEADS * KERNEL_CHUNK];
    const size_t key_bytes = kernel_key_bytes(a, call->head_dim);
    const size_t value_bytes = kernel_value_bytes(a, call->head_dim);
    const int dim = kernel_pad(call->head_dim, KERNEL_LANES);
    const int base = (int)(first % KERNEL_CHUNK), count = (int)(last - first) + 1;
    /* The ring may end within the chunk: two runs of rows. */
    const int64_t slot = first % call->capacity;
    const int before_wrap = call->capacity - slot < count ? (int)(call->capacity - slot) : count;
    const int run[2] = {before_wrap, count - before_wrap};
    const size_t start[2] = {(size_t)slot, 0};

    for (int i = 0, at = base; i < 2; at += run[i], i++) {
        if (run[i] == 0)
            continue;
        /* While the keys are read, the values come. */
        const uint8_t *keys = (const uint8_t *)call->keys + start[i] * key_bytes;
        const uint8_t *values = (const uint8_t *)call->values + start[i] * value_bytes;
        const struct dot_call c = {.kind = a == ACTIVATIONS_BF16 ? KIND_BF16 : KIND_FLOAT,
                                   .w = keys,
                                   .w_stride = key_bytes,
                                   .in = kernel_pad(call->head_dim, KERNEL_BLOCK),
                                   .ahead = distance(keys, values),
                                   .x = call->q + head,
                                   .y = s + at,
                                   .y_stride = KERNEL_CHUNK};
        if (a == ACTIVATIONS_BF16)
            dot_bf16(a, &c, heads, run[i]);
        else
            dot_keys(&c, heads, run[i]);
    }
    for (int h = 0; h < heads; h++)
        state->l[h] =
            soften(s + h * KERNEL_CHUNK, base, base + count - 1, call->scale, &state->m[h]);
    for (int i = 0; i < heads * dim; i++)
        o[i] = 0.0f;
    for (int i = 0, at = base; i < 2; at += run[i], i++) {
        const uint8_t *values = (const uint8_t *)call->values + start[i] * value_bytes;
        /* While the values are read, the keys of the next chunk. */
        const uint8_t *keys = (const uint8_t *)call->keys + start[i] * key_bytes;
        const ptrdiff_t next =
            last < call->last ? distance(values, keys) + (ptrdiff_t)(key_bytes * (size_t)count) : 0;
        if (a == ACTIVATIONS_BF16)
            weigh_any(ACTIVATIONS_BF16, heads, values, value_bytes, run[i], s + at, o, dim, next);
        else
            weigh_any(ACTIVATIONS_F32, heads, values, value_bytes, run[i], s + at, o, dim, next);
    }
}

/* The chunks before, in total, with one more. */
INLINE void merge(struct softmax_state *total, float *o_total, const struct softmax_state *chunk,
                  const float *o, int heads, int dim)
{
    for (int h = 0; h < heads; h++) {
        const float m = chunk->m[h] > total->m[h] ? chunk->m[h] : total->m[h];
        const float old_part = elementary_exp(total->m[h] - m);
        const float new_part = elementary_exp(chunk->m[h] - m);
        total->l[h] = fmaf(chunk->l[h], new_part, total->l[h] * old_part);
        total->m[h] = m;
        for (int d = h * dim; d < (h + 1) * dim; d += KERNEL_LANES) {
            const v16 old = v16_mul(v16_load(o_total + d), v16_set(old_part));
            v16_store(o_total + d, v16_fma(v16_load(o + d), v16_set(new_part), old));
        }
    }
}

static void attention(enum activations a, const struct attention_call *call)
{
    const int n = call->head_dim, dim = kernel_pad(n, KERNEL_LANES);
    float *o_total = call->scratch, *o = call->scratch + KERNEL_HEADS * dim;
    for (int head = 0; head < call->heads; head += KERNEL_HEADS) {
        const int left = call->heads - head;
        const int heads = left < KERNEL_HEADS ? left : KERNEL_HEADS;
        struct softmax_state total, chunk;
        for (int64_t i = call->first / KERNEL_CHUNK; i <= call->last / KERNEL_CHUNK; i++) {
            const int64_t low = i * KERNEL_CHUNK, high = low + KERNEL_CHUNK - 1;
            const int64_t first = low > call->first ? low : call->first;
            const int64_t last = high < call->last ? high : call->last;
            if (first == call->first) {
                attention_chunk(a, call, head, heads, first, last, &total, o_total);
            } else {
                attention_chunk(a, call, head, heads, first, last, &chunk, o);
                merge(&total, o_total, &chunk, o, heads, dim);
            }
        }
        for (int h = 0; h < heads; h++) {
            const v16 l = v16_set(total.l[h]), gate = v16_set(call->gate[head + h]);
            float *out = call->out + (size_t)(head + h) * (size_t)n;
            for (int d = 0; d < n; d += KERNEL_LANES) {
                const v16 mean = rounded(a, v16_div(v16_load(o_total + h * dim + d), l));
                store_some(out + d, rounded(a, v16_mul(mean, gate)), n - d);
            }
        }
    }
}

/* ---- Rows and elements ---- */

static void rms_norm(enum activations a, const float *x, const uint16_t *w, int n, float eps,
                     float *y)
{
    v16 sum = v16_zero();
    for (int i = 0; i < n; i += KERNEL_LANES) {
        const v16 v = load_some(x + i, n - i);
        sum = v16_fma(v, v, sum);
    }
    const float mean = v16_sum(sum) / (float)n;
    const v16 inv = v16_set(1.0f / sqrtf(mean + eps));
    for (int i = 0; i < n; i += KERNEL_LANES) {
        const v16 t = rounded(a, v16_mul(load_some(x + i, n - i), inv));
        store_some(y + i, rounded(a, v16_mul(t, load_bf16_some(w + i, n - i))), n - i);
    }
}

static void rope(enum activations a, const struct rope_table *table, int64_t position, float *x)
{
    const int half = table->dim / 2;
    const float *cosine = table->cosine + (size_t)position * (size_t)half;
    const float *sine = table->sine + (size_t)position * (size_t)half;
    for (int i = 0; i < half; i += KERNEL_LANES) {
        const int n = half - i;
        v16 x1 = load_some(x + i, n), x2 = load_some(x + half + i, n);
        const v16 c = load_some(cosine + i, n), s = load_some(sine + i, n);
        if (table->input_scale != 1.0f) {
            const v16 factor = v16_set(table->input_scale);
            x1 = rounded(a, v16_mul(x1, factor));
            x2 = rounded(a, v16_mul(x2, factor));
        }
        const v16 minus = v16_mul(x2, s), plus = v16_mul(x1, s);
        store_some(x + i, rounded(a, v16_fma(x1, c, v16_neg(minus))), n);
        store_some(x + half + i, rounded(a, v16_fma(x2, c, plus)), n);
    }
}

static void silu_up(enum activations a, const float *gate, const float *up, int n, float *out)
{
    for (int i = 0; i < n; i += KERNEL_LANES) {
        const v16 z = load_some(gate + i, n - i);
        const v16 t = rounded(a, v16_mul(z, rounded(a, v16_sigmoid(z))));
        store_some(out + i, rounded(a, v16_mul(t, load_some(up + i, n - i))), n - i);
    }
}

static void sigmoid(const float *x, int n, float *out)
{
    for (int i = 0; i < n; i += KERNEL_LANES)
        store_some(out + i, v16_sigmoid(load_some(x + i, n - i)), n - i);
}

static void softplus(enum activations a, const float *x, int n, float *out)
{
    for (int i = 0; i < n; i += KERNEL_LANES)
        store_some(out + i, rounded(a, v16_softplus(load_some(x + i, n - i))), n - i);
}

static void scale(enum activations a, const float *y, float w, int n, float *out)
{
    for (int i = 0; i < n; i += KERNEL_LANES)
        store_some(out + i, rounded(a, v16_mul(load_some(y + i, n - i), v16_set(w))), n - i);
}

static void accumulate(enum activations a, const float *y, float w, int n, float *sum)
{
    for (int i = 0; i < n; i += KERNEL_LANES) {
        const v16 t = rounded(a, v16_mul(load_some(y + i, n - i), v16_set(w)));
        store_some(sum + i, rounded(a, v16_add(load_some(sum + i, n - i), t)), n - i);
    }
}

static void add(enum activations a, const float *y, int n, float *x)
{
    for (int i = 0; i < n; i += KERNEL_LANES) {
        const v16 t = v16_add(load_some(x + i, n - i), load_some(y + i, n - i));
        store_some(x + i, rounded(a, t), n - i);
    }
}

/* Few logits are above the second largest of those before: most of a row is compared and left. */
static void pick(const float *logits, int first, int n, struct head_pick *p)
{
    int i = 0;
    for (; i < n && p->token[1] < 0; i++)
        kernel_pick_one(p, first + i, logits[i]);
    for (; i + KERNEL_LANES <= n; i += KERNEL_LANES)
        if (v16_any_lt(v16_set(p->logit[1]), v16_load(logits + i)))
            for (int l = 0; l < KERNEL_LANES; l++)
                kernel_pick_one(p, first + i + l, logits[i + l]);
    for (; i < n; i++)
        kernel_pick_one(p, first + i, logits[i]);
}

#define KERNEL_FUNCTIONS                                                                           \
    .prepare = prepare, .group_sums = group_sums, .linear = linear, .attention = attention,        \
    .rms_norm = rms_norm, .rope = rope, .silu_up = silu_up, .sigmoid = sigmoid,                    \
    .softplus = softplus, .scale = scale, .accumulate = accumulate, .add = add, .pick = pick
