/* The kernels in plain C: the reference for every other instruction set, written to be read beside
 * docs/numerics.md and the model's equations. */
#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/elementary.h"

static float rounded(enum activations a, float v)
{
    return a == ACTIVATIONS_BF16 ? bf16_to_f32(f32_to_bf16(v)) : v;
}

/* Weights come straight from a mapped file and may stand at odd addresses. */
static float load_bf16(const void *p, int i)
{
    uint16_t b;
    memcpy(&b, (const uint8_t *)p + 2 * (size_t)i, sizeof b);
    return bf16_to_f32(b);
}

/* make SUM_ORDER=sequential: dot products as one plain chain, for measuring what another order of
 * sums does to the logits (docs/calibration.md). Never in a build that is used. */
#ifdef SUM_ORDER_SEQUENTIAL
#define DOT_LANE(l) 0
#else
#define DOT_LANE(l) (l)
#endif

/* The tree of halves over 16 lanes. */
static float lanes_sum(const float lane[KERNEL_LANES])
{
    float s[KERNEL_LANES];
    memcpy(s, lane, sizeof s);
    for (int half = KERNEL_LANES / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            s[l] = s[l] + s[l + half];
    return s[0];
}

/* One block of 32 inputs: lane l takes elements 2l (even) and 2l+1 (odd), odd first. */
static void dot_block(const float w[KERNEL_BLOCK], const float x[KERNEL_BLOCK],
                      float acc[KERNEL_LANES])
{
    for (int l = 0; l < KERNEL_LANES; l++)
        acc[DOT_LANE(l)] =
            fmaf(w[2 * l], x[2 * l], fmaf(w[2 * l + 1], x[2 * l + 1], acc[DOT_LANE(l)]));
}

/* As dot_block for codes of two groups of 16: lanes 0-7 have scale[0], lanes 8-15 scale[1]. */
static void dot_block_scaled(const float c[KERNEL_BLOCK], const float scale[2],
                             const float x[KERNEL_BLOCK], float acc[KERNEL_LANES])
{
    for (int l = 0; l < KERNEL_LANES; l++) {
        const float odd = c[2 * l + 1] * x[2 * l + 1];
        const float t = fmaf(c[2 * l], x[2 * l], odd);
        acc[DOT_LANE(l)] = fmaf(t, scale[l / 8], acc[DOT_LANE(l)]);
    }
}

static float dot_bf16(const uint8_t *w, const float *x, int n)
{
    float acc[KERNEL_LANES] = {0};
    for (int i = 0; i < n; i += KERNEL_BLOCK) {
        float block[KERNEL_BLOCK] = {0};
        for (int j = 0; j < KERNEL_BLOCK && i + j < n; j++)
            block[j] = load_bf16(w, i + j);
        dot_block(block, x + i, acc);
    }
    return lanes_sum(acc);
}

static float dot_f32(const float *w, const float *x, int n)
{
    float acc[KERNEL_LANES] = {0};
    for (int i = 0; i < n; i += KERNEL_BLOCK)
        dot_block(w + i, x + i, acc);
    return lanes_sum(acc);
}

/* Two codes a byte, low nibble first; one E4M3 scale per 16 (laguna.md section 7). */
static float dot_nvfp4(const uint8_t *codes, const uint8_t *scales, const float *x, int n)
{
    float acc[KERNEL_LANES] = {0};
    for (int i = 0; i < n; i += KERNEL_BLOCK) {
        float block[KERNEL_BLOCK] = {0}, scale[2] = {0};
        for (int j = 0; j < KERNEL_BLOCK && i + j < n; j += 2) {
            const uint8_t pair = codes[(i + j) / 2];
            block[j] = e2m1_values[pair & 15];
            block[j + 1] = e2m1_values[pair >> 4];
        }
        for (int g = 0; g < 2 && i + g * NVFP4_GROUP < n; g++)
            scale[g] = e4m3_values[scales[i / NVFP4_GROUP + g]];
        dot_block_scaled(block, scale, x + i, acc);
    }
    return lanes_sum(acc);
}

/* The sums of x over groups of 32: pairs first, then the tree of halves. */
static void group_sums(enum activations a, int n, void *prepared)
{
    (void)a;
    const float *x = prepared;
    float *sum = (float *)prepared + n;
    for (int i = 0; i < n / KERNEL_BLOCK; i++) {
        float lane[KERNEL_LANES];
        for (int l = 0; l < KERNEL_LANES; l++)
            lane[l] = x[KERNEL_BLOCK * i + 2 * l] + x[KERNEL_BLOCK * i + 2 * l + 1];
        sum[i] = lanes_sum(lane);
    }
    for (int i = n / KERNEL_BLOCK; i < kernel_pad(n / KERNEL_BLOCK, KERNEL_LANES); i++)
        sum[i] = 0.0f;
}

/* The lanes begin with bias times sum, group g in lane g mod 16; then a block per group. */
static float dot_int8(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases,
                      const float *x, int n)
{
    const float *sum = x + n;
    float acc[KERNEL_LANES] = {0};
    for (int g = 0; g < kernel_pad(n / AFFINE_GROUP, KERNEL_LANES); g++) {
        const float bias = g < n / AFFINE_GROUP ? load_bf16(biases, g) : 0.0f;
        acc[DOT_LANE(g % KERNEL_LANES)] = fmaf(bias, sum[g], acc[DOT_LANE(g % KERNEL_LANES)]);
    }
    for (int i = 0; i < n; i += KERNEL_BLOCK) {
        const float scale = load_bf16(scales, i / AFFINE_GROUP);
        for (int l = 0; l < KERNEL_LANES; l++) {
            const float odd = (float)codes[i + 2 * l + 1] * x[i + 2 * l + 1];
            const float t = fmaf((float)codes[i + 2 * l], x[i + 2 * l], odd);
            acc[DOT_LANE(l)] = fmaf(t, scale, acc[DOT_LANE(l)]);
        }
    }
    return lanes_sum(acc);
}

static void prepare(enum activations a, const float *x, int n, void *out)
{
    (void)a;
    float *f = out;
    memcpy(f, x, (size_t)n * sizeof *f);
    for (int i = n; i < kernel_pad(n, KERNEL_BLOCK); i++)
        f[i] = 0.0f;
}

static float dot_row(const struct weight_matrix *w, int o, const float *x)
{
    const size_t row = (size_t)o * (size_t)w->in;
    const uint8_t *data = w->data;
    if (w->format == WEIGHT_BF16)
        return dot_bf16(data + row * 2, x, w->in);
    if (w->format == WEIGHT_INT8_AFFINE32) {
        const size_t group = row / AFFINE_GROUP * sizeof(uint16_t);
        return dot_int8(data + row, w->scales + group, w->biases + group, x, w->in);
    }
    return dot_nvfp4(data + row / 2, w->scales + row / NVFP4_GROUP, x, w->in);
}

static void linear(enum activations a, const struct linear_call *call)
{
    for (int o = call->first; o < call->first + call->count; o++) {
        for (int r = 0; r < call->rows; r++) {
            float *y = call->y + (size_t)r * call->y_stride + o;
            const float v = rounded(a, dot_row(call->w, o, call->x[r]));
            *y = call->add ? rounded(a, *y + v) : v;
        }
    }
}

/* One chunk of one head: the maximum m, the sum l of exp(s - m), and o = sum of exp(s - m) v. */
static void attention_chunk(enum activations a, const struct attention_call *call, int head,
                            int64_t first, int64_t last, float *m, float *l, float *o)
{
    const int n = call->head_dim;
    const size_t key_bytes = kernel_key_bytes(a, n), value_bytes = kernel_value_bytes(a, n);
    float p[KERNEL_CHUNK], lane[KERNEL_LANES] = {0};
    *m = -INFINITY;
    for (int64_t j = first; j <= last; j++) {
        const uint8_t *key = (const uint8_t *)call->keys + (size_t)(j % call->capacity) * key_bytes;
        const float dot = a == ACTIVATIONS_BF16
                              ? dot_bf16(key, call->q[head], n)
                              : dot_f32((const float *)(const void *)key, call->q[head], n);
        const float s = dot * call->scale;
        p[j % KERNEL_CHUNK] = s;
        *m = s > *m ? s : *m;
    }
    for (int d = 0; d < n; d++)
        o[d] = 0.0f;
    for (int64_t j = first; j <= last; j++) {
        const float e = elementary_exp(p[j % KERNEL_CHUNK] - *m);
        lane[j % KERNEL_LANES] = lane[j % KERNEL_LANES] + e;
        const uint8_t *value =
            (const uint8_t *)call->values + (size_t)(j % call->capacity) * value_bytes;
        for (int d = 0; d < n; d++) {
            const float v = a == ACTIVATIONS_BF16 ? load_bf16(value, d)
                                                  : ((const float *)(const void *)value)[d];
            o[d] = fmaf(e, v, o[d]);
        }
    }
    *l = lanes_sum(lane);
}

static void attention(enum activations a, const struct attention_call *call)
{
    const int n = call->head_dim;
    float *o_total = call->scratch, *o = call->scratch + n;
    for (int h = 0; h < call->heads; h++) {
        float m_total = 0, l_total = 0;
        for (int64_t chunk = call->first / KERNEL_CHUNK; chunk <= call->last / KERNEL_CHUNK;
             chunk++) {
            const int64_t low = chunk * KERNEL_CHUNK, high = low + KERNEL_CHUNK - 1;
            const int64_t first = low > call->first ? low : call->first;
            const int64_t last = high < call->last ? high : call->last;
            if (first == call->first) {
                attention_chunk(a, call, h, first, last, &m_total, &l_total, o_total);
                continue;
            }
            float m, l;
            attention_chunk(a, call, h, first, last, &m, &l, o);
            const float m_new = m > m_total ? m : m_total;
            const float old_part = elementary_exp(m_total - m_new);
            const float new_part = elementary_exp(m - m_new);
            l_total = fmaf(l, new_part, l_total * old_part);
            for (int d = 0; d < n; d++)
                o_total[d] = fmaf(o[d], new_part, o_total[d] * old_part);
            m_total = m_new;
        }
        for (int d = 0; d < n; d++) {
            const float mean = rounded(a, o_total[d] / l_total);
            call->out[(size_t)h * (size_t)n + (size_t)d] = rounded(a, mean * call->gate[h]);
        }
    }
}

static void rms_norm(enum activations a, const float *x, const uint16_t *w, int n, float eps,
                     float *y)
{
    float lane[KERNEL_LANES] = {0};
    for (int i = 0; i < n; i++)
        lane[i % KERNEL_LANES] = fmaf(x[i], x[i], lane[i % KERNEL_LANES]);
    const float mean = lanes_sum(lane) / (float)n;
    const float inv = 1.0f / sqrtf(mean + eps);
    for (int i = 0; i < n; i++) {
        const float t = rounded(a, x[i] * inv);
        y[i] = rounded(a, t * load_bf16(w, i));
    }
}

static void rope(enum activations a, const struct rope_table *table, int64_t position, float *x)
{
    const int half = table->dim / 2;
    const float *cosine = table->cosine + (size_t)position * (size_t)half;
    const float *sine = table->sine + (size_t)position * (size_t)half;
    for (int i = 0; i < half; i++) {
        float x1 = x[i], x2 = x[i + half];
        if (table->input_scale != 1.0f) {
            x1 = rounded(a, x1 * table->input_scale);
            x2 = rounded(a, x2 * table->input_scale);
        }
        const float minus = x2 * sine[i], plus = x1 * sine[i];
        x[i] = rounded(a, fmaf(x1, cosine[i], -minus));
        x[i + half] = rounded(a, fmaf(x2, cosine[i], plus));
    }
}

static void silu_up(enum activations a, const float *gate, const float *up, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        const float s = rounded(a, elementary_sigmoid(gate[i]));
        const float t = rounded(a, gate[i] * s);
        out[i] = rounded(a, t * up[i]);
    }
}

static void sigmoid(const float *x, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = elementary_sigmoid(x[i]);
}

static void softplus(enum activations a, const float *x, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = rounded(a, elementary_softplus(x[i]));
}

static void scale(enum activations a, const float *y, float w, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = rounded(a, y[i] * w);
}

static void accumulate(enum activations a, const float *y, float w, int n, float *sum)
{
    for (int i = 0; i < n; i++) {
        const float t = rounded(a, y[i] * w);
        sum[i] = rounded(a, sum[i] + t);
    }
}

static void add(enum activations a, const float *y, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = rounded(a, x[i] + y[i]);
}

static void pick(const float *logits, int first, int n, struct head_pick *p)
{
    for (int i = 0; i < n; i++)
        kernel_pick_one(p, first + i, logits[i]);
}

const struct cpu_kernels cpu_kernels_portable = {
    .name = "portable",
    .prepared_bytes = {sizeof(float), sizeof(float)},
    .prepare = prepare,
    .group_sums = group_sums,
    .linear = linear,
    .attention = attention,
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_up = silu_up,
    .sigmoid = sigmoid,
    .softplus = softplus,
    .scale = scale,
    .accumulate = accumulate,
    .add = add,
    .pick = pick,
};
