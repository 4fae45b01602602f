/* The ffn block on the device against the CPU backend, byte for byte: random blocks of every form,
 * brought into the layouts of cuda.h here.
 *
 *     test_cuda_ffn              the checks; exit 1 on a difference
 *     test_cuda_ffn --few        fewer of them (the emulator)
 *     test_cuda_ffn --moe        fewer yet, of moe.cu's shapes
 *     test_cuda_ffn --time       on a GPU: the shapes of Laguna XS 2.1, microseconds and GB/s
 */
#include "engine/compute/cuda/experts_route.cuh"
#include "engine/compute/cuda/launch.cuh"

extern "C" {
#include "engine/checkpoint/formats.h"
#include "engine/compute/blocks.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;
static uint64_t seed = 20261130;
static struct cuda_fault fault;
static struct cuda_device device;
static cudaStream_t stream;
static unsigned kernels;

static uint32_t random32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float random_value(float scale)
{
    float sum = -1.5f;
    for (int i = 0; i < 3; i++)
        sum += (float)(random32() >> 8) / 16777216.0f;
    return sum * scale;
}

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static void *device_new(size_t bytes, const void *from)
{
    void *p = NULL;
    must(cudaMalloc(&p, bytes > 0 ? bytes : 1), "cudaMalloc");
    if (from != NULL)
        must(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "a copy");
    return p;
}

static void finish(void)
{
    must(cudaStreamSynchronize(stream), "the kernels");
    if (fault.set) {
        printf("%s: %s\n", fault.error.name, fault.error.message);
        exit(1);
    }
}

static struct cuda_launch launch_new(void)
{
    struct cuda_launch l = {};
    l.stream = stream;
    l.fault = &fault;
    l.device = &device;
    l.overlap = true;
    l.kernels = &kernels;
    return l;
}

/* ---- Weights ---- */

static struct weight_matrix matrix_new(enum weight_format format, int out, int in, float size)
{
    struct weight_matrix w = {};
    const size_t n = (size_t)out * (size_t)in;
    w.format = format;
    w.out = out;
    w.in = in;
    if (format == WEIGHT_BF16) {
        uint16_t *p = (uint16_t *)malloc(n * 2);
        for (size_t i = 0; i < n; i++)
            p[i] = f32_to_bf16(random_value(size));
        w.data = p;
        return w;
    }
    const size_t groups = n / (format == WEIGHT_NVFP4 ? 16 : 32);
    const size_t bytes = format == WEIGHT_NVFP4 ? n / 2 : n;
    uint8_t *p = (uint8_t *)malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)random32();
    w.data = p;
    if (format == WEIGHT_NVFP4) {
        uint8_t *s = (uint8_t *)malloc(groups);
        for (size_t i = 0; i < groups; i++) /* now and then any, its sign too; 0x7f is 480 */
            s[i] = random32() % 16 == 0 ? (uint8_t)(random32() & 0xbf)
                                        : e4m3_encode(size * (1.0f + random_value(0.5f)) / 3.0f);
        w.scales = s;
    } else {
        uint16_t *s = (uint16_t *)malloc(groups * 2), *b = (uint16_t *)malloc(groups * 2);
        for (size_t i = 0; i < groups; i++) {
            s[i] = f32_to_bf16(size / 128.0f * (1.0f + random_value(0.5f)));
            b[i] = f32_to_bf16(-size + random_value(0.1f * size));
        }
        w.scales = (const uint8_t *)s;
        w.biases = (const uint8_t *)b;
    }
    return w;
}

static void matrix_free(struct weight_matrix *w)
{
    free((void *)w->data);
    free((void *)w->scales);
    free((void *)w->biases);
}

static size_t row_bytes_of(enum weight_format format, int padded)
{
    return format == WEIGHT_BF16    ? (size_t)padded * 2
           : format == WEIGHT_NVFP4 ? (size_t)padded / 2
                                    : (size_t)padded;
}

/* One matrix in lanes order, behind what is there already. */
static void matrix_lay(const struct weight_matrix *w, const struct cuda_matrix *m, uint8_t *data,
                       uint8_t *scales, uint8_t *biases)
{
    for (int o = 0; o < w->out; o++) {
        uint8_t *row = data + (size_t)o * m->row_bytes;
        const size_t from = (size_t)o * (size_t)w->in;
        for (int k = 0; k < w->in; k++) {
            const int b = k / 32, lane = k % 32 / 2, odd = k % 2;
            if (w->format == WEIGHT_BF16) {
                ((uint16_t *)row)[((b / 4 * 16 + lane) * 4 + b % 4) * 2 + odd] =
                    ((const uint16_t *)w->data)[from + (size_t)k];
            } else if (w->format == WEIGHT_NVFP4) {
                const uint8_t byte = ((const uint8_t *)w->data)[(from + (size_t)k) / 2];
                row[(b / 16 * 16 + lane) * 16 + b % 16] = byte;
                scales[(size_t)o * m->scale_bytes + (size_t)(k % 32 / 16 * (m->padded / 32) + b)] =
                    w->scales[(from + (size_t)k) / 16];
            } else {
                row[((b / 8 * 16 + lane) * 8 + b % 8) * 2 + odd] =
                    ((const uint8_t *)w->data)[from + (size_t)k];
                ((uint16_t *)(scales + (size_t)o * m->scale_bytes))[b] =
                    ((const uint16_t *)w->scales)[(from + (size_t)k) / 32];
                ((uint16_t *)(biases + (size_t)o * m->scale_bytes))[b] =
                    ((const uint16_t *)w->biases)[(from + (size_t)k) / 32];
            }
        }
    }
}

/* `count` matrices of one shape on the device. */
static struct cuda_experts experts_lay(const struct weight_matrix *const *w, int count)
{
    struct cuda_experts x = {};
    struct cuda_matrix *m = &x.first;
    const int group = w[0]->format == WEIGHT_BF16    ? CUDA_BF16_GROUP
                      : w[0]->format == WEIGHT_NVFP4 ? CUDA_NVFP4_GROUP
                                                     : CUDA_INT8_GROUP;
    m->format = w[0]->format;
    m->out = w[0]->out;
    m->in = w[0]->in;
    m->padded = (m->in + group - 1) / group * group;
    m->row_bytes = row_bytes_of(m->format, m->padded);
    m->scale_bytes = m->format == WEIGHT_BF16 ? 0 : (size_t)m->padded / 16;
    x.count = count;
    x.data_stride = m->row_bytes * (size_t)m->out;
    x.scale_stride = m->scale_bytes * (size_t)m->out;
    uint8_t *data = (uint8_t *)calloc(x.data_stride, (size_t)count);
    uint8_t *scales = (uint8_t *)calloc(x.scale_stride + 1, (size_t)count);
    uint8_t *biases = (uint8_t *)calloc(x.scale_stride + 1, (size_t)count);
    for (int i = 0; i < count; i++)
        matrix_lay(w[i], m, data + (size_t)i * x.data_stride, scales + (size_t)i * x.scale_stride,
                   biases + (size_t)i * x.scale_stride);
    m->data = (uint8_t *)device_new(x.data_stride * (size_t)count, data);
    if (m->scale_bytes > 0)
        m->scales = (uint8_t *)device_new(x.scale_stride * (size_t)count, scales);
    if (m->format == WEIGHT_INT8_AFFINE32)
        m->biases = (uint8_t *)device_new(x.scale_stride * (size_t)count, biases);
    free(data);
    free(scales);
    free(biases);
    return x;
}

static void experts_free(struct cuda_experts *x)
{
    cudaFree((void *)x->first.data);
    cudaFree((void *)x->first.scales);
    cudaFree((void *)x->first.biases);
}

/* ---- A block ---- */

enum shared { SHARED_NONE, SHARED_INSIDE, SHARED_APART };
enum odd { ODD_NOTHING, ODD_TIES, ODD_NAN };

struct shape {
    const char *name;
    int hidden, width, experts, top_k; /* experts 0: dense */
    enum weight_format format;
    enum shared shared;
    bool normalize;
    enum odd odd;
};

struct both {
    struct ffn_block host;
    struct cuda_ffn device;
    struct mlp_weights *expert;
    uint16_t *norm;
    float *bias;
};

static struct mlp_weights mlp_new(enum weight_format format, int hidden, int width)
{
    struct mlp_weights m;
    m.gate = matrix_new(format, width, hidden, 2.0f / sqrtf((float)hidden));
    m.up = matrix_new(format, width, hidden, 2.0f / sqrtf((float)hidden));
    m.down = matrix_new(format, hidden, width, 2.0f / sqrtf((float)width));
    return m;
}

static void mlp_free(struct mlp_weights *m)
{
    matrix_free(&m->gate);
    matrix_free(&m->up);
    matrix_free(&m->down);
}

static struct cuda_matrix lay_one(const struct weight_matrix *w)
{
    return experts_lay(&w, 1).first;
}

/* Logits of the router: some rows alike (ties), or one that is not a number. */
static void router_make_odd(struct weight_matrix *router, float *bias, enum odd odd)
{
    uint16_t *w = (uint16_t *)router->data;
    const size_t row = (size_t)router->in;
    if (odd == ODD_TIES)
        for (int e = 1; e < router->out; e++)
            if (e % 3 != 0) {
                memcpy(w + (size_t)e * row, w + (size_t)(e / 3 * 3) * row, row * 2);
                bias[e] = bias[e / 3 * 3];
            }
    if (odd == ODD_NAN) {
        w[0] = 0x7fc0;
        w[(size_t)(router->out / 2) * row + 5] = 0xffc0;
        bias[router->out - 1] = -INFINITY;
    }
}

static void block_new(const struct shape *s, struct both *out)
{
    memset(out, 0, sizeof *out);
    struct ffn_block *b = &out->host;
    struct cuda_ffn *d = &out->device;
    out->norm = (uint16_t *)malloc((size_t)s->hidden * 2);
    for (int i = 0; i < s->hidden; i++)
        out->norm[i] = f32_to_bf16(1.0f + random_value(0.3f));
    b->eps = 1e-6f;
    b->norm = out->norm;
    d->block = b;
    d->norm = (uint16_t *)device_new((size_t)s->hidden * 2, out->norm);
    if (s->experts == 0) {
        b->dense = mlp_new(s->format, s->hidden, s->width);
        d->dense_gate = lay_one(&b->dense.gate);
        d->dense_up = lay_one(&b->dense.up);
        d->dense_down = lay_one(&b->dense.down);
        return;
    }
    const int apart = s->shared == SHARED_APART ? s->width / 2 : s->width;
    b->sparse = true;
    b->experts = s->experts;
    b->top_k = s->top_k;
    b->normalize_top_k = s->normalize;
    b->routed_scale = s->normalize ? 2.5f : 1.0f;
    b->router = matrix_new(WEIGHT_BF16, s->experts, s->hidden, 2.0f / sqrtf((float)s->hidden));
    out->bias = (float *)malloc((size_t)s->experts * sizeof(float));
    for (int e = 0; e < s->experts; e++)
        out->bias[e] = random_value(0.1f);
    router_make_odd(&b->router, out->bias, s->odd);
    b->selection_bias = out->bias;
    out->expert = (struct mlp_weights *)malloc((size_t)(s->experts + 1) * sizeof *out->expert);
    for (int e = 0; e < s->experts; e++)
        out->expert[e] = mlp_new(s->format, s->hidden, s->width);
    b->expert = out->expert;
    b->has_shared = s->shared != SHARED_NONE;
    if (b->has_shared)
        b->shared = mlp_new(s->format, s->hidden, apart);

    d->router = lay_one(&b->router);
    d->selection_bias = (float *)device_new((size_t)s->experts * sizeof(float), out->bias);
    d->shared_inside = s->shared == SHARED_INSIDE;
    const int count = s->experts + (d->shared_inside ? 1 : 0);
    const struct weight_matrix **list =
        (const struct weight_matrix **)malloc((size_t)count * sizeof *list);
    for (int m = 0; m < 3; m++) {
        for (int e = 0; e < count; e++) {
            const struct mlp_weights *w = e < s->experts ? &b->expert[e] : &b->shared;
            list[e] = m == 0 ? &w->gate : m == 1 ? &w->up : &w->down;
        }
        *(m == 0 ? &d->gate : m == 1 ? &d->up : &d->down) = experts_lay(list, count);
    }
    free(list);
    if (s->shared == SHARED_APART) {
        d->shared_gate = lay_one(&b->shared.gate);
        d->shared_up = lay_one(&b->shared.up);
        d->shared_down = lay_one(&b->shared.down);
    }
}

static void block_free(const struct shape *s, struct both *p)
{
    struct ffn_block *b = &p->host;
    struct cuda_ffn *d = &p->device;
    struct cuda_matrix *one[] = {&d->dense_gate,  &d->dense_up,  &d->dense_down, &d->router,
                                 &d->shared_gate, &d->shared_up, &d->shared_down};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        cudaFree((void *)one[i]->data);
        cudaFree((void *)one[i]->scales);
        cudaFree((void *)one[i]->biases);
    }
    experts_free(&d->gate);
    experts_free(&d->up);
    experts_free(&d->down);
    cudaFree((void *)d->norm);
    cudaFree((void *)d->selection_bias);
    if (s->experts == 0)
        mlp_free(&b->dense);
    else
        matrix_free(&b->router);
    for (int e = 0; e < s->experts; e++)
        mlp_free(&p->expert[e]);
    if (b->has_shared)
        mlp_free(&b->shared);
    free(p->expert);
    free(p->norm);
    free(p->bias);
}

/* ---- Checks ---- */

enum { GUARD = 4096 };

static struct compute_shape compute_shape_of(const struct shape *s, int rows)
{
    struct compute_shape c = {};
    c.max_rows = rows;
    c.hidden = s->hidden;
    c.vocab = 32;
    c.max_heads = 1;
    c.max_kv_heads = 1;
    c.head_dim = 32;
    c.max_ffn_width = s->width;
    c.max_experts = s->experts;
    c.max_top_k = s->top_k;
    return c;
}

static bool same_value(uint16_t a, uint16_t b)
{
    return a == b || ((a & 0x7fff) > 0x7f80 && (b & 0x7fff) > 0x7f80);
}

/* Whether moe.cu is for it: where it silently were not, slower kernels would give the same bits. */
static bool is_one_kernel(const struct shape *s, int rows)
{
    return s->hidden == 2048 && s->width == 512 && s->shared == SHARED_INSIDE &&
           s->format == WEIGHT_NVFP4 && rows <= 4 && device.shared_most >= 227 * 1024;
}

/* scratch: what forwards of other rows have left of it, zeros before the first. */
static void compare(const struct shape *s, const struct both *block, struct compute *c, int rows,
                    uint8_t *scratch)
{
    const size_t n = (size_t)rows * (size_t)s->hidden;
    uint16_t *table = (uint16_t *)malloc(n * 2), *got = (uint16_t *)malloc(n * 2);
    float *want = (float *)malloc(n * sizeof(float));
    int32_t *ids = (int32_t *)malloc((size_t)rows * sizeof *ids);
    for (size_t i = 0; i < n; i++)
        table[i] = random32() % 64 == 0 ? (uint16_t)(random32() & 0x8000)
                                        : f32_to_bf16(random_value(1.0f));
    for (int r = 0; r < rows; r++)
        ids[r] = r;
    const struct weight_matrix embedding = {WEIGHT_BF16, rows, s->hidden, table, NULL, NULL};
    compute_embed(c, &embedding, ids, rows);
    compute_ffn(c, &block->host, rows);
    compute_read_rows(c, 0, rows, want);

    const struct compute_shape shape = compute_shape_of(s, rows);
    const size_t bytes = cuda_ffn_scratch(&shape, rows);
    must(cudaMemset(scratch + bytes, 0xab, GUARD), "a fill");
    must(cudaDeviceSynchronize(), "a fill"); /* the stream does not wait for it */
    uint16_t *x = (uint16_t *)device_new(n * 2, NULL);
    struct cuda_launch l = launch_new();
    struct cuda_ffn_run run = {};
    run.w = &block->device;
    run.x = x;
    run.hidden = s->hidden;
    run.rows = rows;
    run.scratch = scratch;
    for (int again = 0; again < 2; again++) {
        must(cudaMemcpyAsync(x, table, n * 2, cudaMemcpyHostToDevice, stream), "a copy");
        l.overlap = again == 0;
        kernels = 0;
        cuda_ffn_forward(&l, &run);
        finish();
        if (is_one_kernel(s, rows) && kernels != 1) {
            failures++;
            printf("%s, %d rows: %u kernels, not moe.cu's one\n", s->name, rows, kernels);
        }
        must(cudaMemcpy(got, x, n * 2, cudaMemcpyDeviceToHost), "a copy");
        size_t wrong = 0, first = 0;
        for (size_t i = n; i-- > 0;)
            if (!same_value(got[i], f32_to_bf16(want[i]))) {
                wrong++;
                first = i;
            }
        checks++;
        if (wrong > 0) {
            failures++;
            printf("%s, %d rows, run %d: %zu of %zu values differ, first [%zu, %zu]: %g, not %g\n",
                   s->name, rows, again, wrong, n, first / (size_t)s->hidden,
                   first % (size_t)s->hidden, (double)bf16_to_f32(got[first]), (double)want[first]);
            break;
        }
    }
    uint8_t guard[GUARD];
    must(cudaMemcpy(guard, scratch + bytes, GUARD, cudaMemcpyDeviceToHost), "a copy");
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0xab) {
            failures++;
            printf("%s, %d rows: written %d bytes behind the scratch\n", s->name, rows, i);
            break;
        }
    cudaFree(x);
    free(table);
    free(got);
    free(want);
    free(ids);
}

static void check_shape(const struct shape *s, const int *rows, int count)
{
    int most = 0;
    for (int i = 0; i < count; i++)
        most = rows[i] > most ? rows[i] : most;
    struct both block;
    block_new(s, &block);
    const struct compute_shape shape = compute_shape_of(s, most);
    struct compute_options options = {};
    struct compute *c = NULL;
    struct error err = {};
    options.backend = "cpu";
    options.activations = ACTIVATIONS_BF16;
    options.threads = 1;
    options.small_pages = true;
    if (!compute_new(&options, &shape, &c, &err)) {
        printf("%s: %s\n", err.name, err.message);
        exit(1);
    }
    const int before = failures;
    const size_t bytes = cuda_ffn_scratch(&shape, most) + GUARD;
    uint8_t *scratch = (uint8_t *)device_new(bytes, NULL);
    must(cudaMemset(scratch, 0, bytes), "a fill");
    for (int i = 0; i < count; i++)
        compare(s, &block, c, rows[i], scratch);
    cudaFree(scratch);
    printf("%-44s %s\n", s->name, failures == before ? "ok" : "DIFFERS");
    fflush(stdout);
    compute_free(c);
    block_free(s, &block);
}

/* few: fewer rows; moe: of moe.cu, and few of them. */
static void check_all(bool few, bool moe)
{
    static const struct shape small[] = {
        {"top 1 of 4", 64, 32, 4, 1, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
        {"top 2 of 4", 64, 32, 4, 2, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
        {"all of 4", 64, 32, 4, 4, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
        {"top 3 of 5, no shared expert", 96, 48, 5, 3, WEIGHT_NVFP4, SHARED_NONE, true,
         ODD_NOTHING},
        {"top 2 of 4, not normalised", 64, 32, 4, 2, WEIGHT_NVFP4, SHARED_INSIDE, false,
         ODD_NOTHING},
        {"shared expert apart", 64, 64, 4, 2, WEIGHT_NVFP4, SHARED_APART, true, ODD_NOTHING},
        {"ties", 64, 32, 40, 8, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_TIES},
        {"NaN logits, not chosen", 64, 32, 40, 8, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NAN},
        {"NaN logits, chosen", 64, 32, 4, 4, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NAN},
        {"300 experts", 64, 32, 300, 10, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_TIES},
        {"256 experts", 64, 32, 256, 8, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
        {"two groups of inputs", 1024, 1024, 5, 2, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
        {"hidden 2048, no shared expert", 2048, 64, 6, 2, WEIGHT_NVFP4, SHARED_NONE, true,
         ODD_NOTHING},
        {"bf16 experts", 64, 32, 4, 2, WEIGHT_BF16, SHARED_INSIDE, true, ODD_NOTHING},
        {"bf16 experts, shared apart", 64, 32, 6, 3, WEIGHT_BF16, SHARED_APART, false, ODD_NOTHING},
        {"dense bf16", 64, 96, 0, 0, WEIGHT_BF16, SHARED_NONE, true, ODD_NOTHING},
        {"dense NVFP4", 96, 48, 0, 0, WEIGHT_NVFP4, SHARED_NONE, true, ODD_NOTHING},
    };
    /* Those of moe.cu. */
    static const struct shape real[] = {
        {"hidden 2048, width 512, top 8 of 16", 2048, 512, 16, 8, WEIGHT_NVFP4, SHARED_INSIDE, true,
         ODD_NOTHING},
        {"the same, top 3 of 12", 2048, 512, 12, 3, WEIGHT_NVFP4, SHARED_INSIDE, false,
         ODD_NOTHING},
        {"the same, top 7 of 16, NaN logits", 2048, 512, 16, 7, WEIGHT_NVFP4, SHARED_INSIDE, true,
         ODD_NAN},
        {"the same, top 8 of 24, ties", 2048, 512, 24, 8, WEIGHT_NVFP4, SHARED_INSIDE, true,
         ODD_TIES},
        {"the same, top 8 of 256, ties", 2048, 512, 256, 8, WEIGHT_NVFP4, SHARED_INSIDE, true,
         ODD_TIES},
        {"the same, top 1 of 6", 2048, 512, 6, 1, WEIGHT_NVFP4, SHARED_INSIDE, true, ODD_NOTHING},
    };
    /* The router has not shared memory for as many rows as it takes. */
    static const struct shape wide = {"hidden 8192", 8192,        32,   4,          2,
                                      WEIGHT_NVFP4,  SHARED_NONE, true, ODD_NOTHING};
    static const int wide_rows[] = {1, 9, 17};
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64};
    static const int few_rows[] = {1, 2, 3, 5, 9, 16, 17, 33};
    static const int real_rows[] = {1, 2, 3, 4}, few_real[] = {1, 2, 4, 5};
    enum { ROWS = sizeof rows / sizeof *rows, REAL = sizeof real / sizeof *real };
    if (!moe)
        check_shape(&wide, wide_rows, sizeof wide_rows / sizeof *wide_rows);
    for (size_t i = 0; i < sizeof small / sizeof *small && !moe; i++) {
        if (few)
            check_shape(&small[i], few_rows, sizeof few_rows / sizeof *few_rows);
        else
            check_shape(&small[i], rows, ROWS);
    }
    if (moe)
        check_shape(&real[0], real_rows, 2);
    else if (few)
        check_shape(&real[0], few_real, sizeof few_real / sizeof *few_real);
    else
        check_shape(&real[0], rows, ROWS);
    /* Also as on smaller devices, whose blocks have several turns. */
    const int all = device.multiprocessors;
    for (size_t i = 1; i < REAL; i++) {
        device.multiprocessors = i == 2 ? all * 3 / 5 : i == 3 ? all * 3 / 10 : all;
        check_shape(&real[i], real_rows, !few && !moe ? 4 : i == 2 || i == 3 ? 2 : 1);
    }
    device.multiprocessors = all;
}

/* ---- Time ---- */

enum {
    TIME_LAYERS = 8, /* 2 to 4 times what L2 holds, with one row */
    TIME_REPEATS = 20,
    TIME_WARM = 3,
    TIME_ROWS = 8,
    TIME_HIDDEN = 2048,
    TIME_WIDTH = 512,
    TIME_EXPERTS = 256,
    TIME_TOP_K = 8
};

static __global__ void fill_random(uint32_t *p, size_t words, uint32_t mask, uint32_t base)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t v = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 20) * 40503u;
        v ^= v >> 15;
        v *= 2246822519u;
        v ^= v >> 13;
        v *= 3266489917u;
        p[i] = (v & mask) | base;
    }
}

static __global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint4 v = p[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static void fill(void *p, size_t bytes, uint32_t mask, uint32_t base)
{
    struct cuda_launch l = launch_new();
    l.overlap = false;
    cuda_launch(&l, "fill", fill_random, dim3(1024), dim3(256), 0, (uint32_t *)p, bytes / 4, mask,
                base);
}

static struct cuda_experts random_experts(int out, int in)
{
    struct cuda_experts x = {};
    struct cuda_matrix *m = &x.first;
    m->format = WEIGHT_NVFP4;
    m->out = out;
    m->in = in;
    m->padded = in;
    m->row_bytes = (size_t)in / 2;
    m->scale_bytes = (size_t)in / 16;
    x.count = TIME_EXPERTS + 1;
    x.data_stride = m->row_bytes * (size_t)out;
    x.scale_stride = m->scale_bytes * (size_t)out;
    uint8_t *data = (uint8_t *)device_new(x.data_stride * (TIME_EXPERTS + 1), NULL);
    uint8_t *scales = (uint8_t *)device_new(x.scale_stride * (TIME_EXPERTS + 1), NULL);
    fill(data, x.data_stride * (TIME_EXPERTS + 1), 0xffffffffu, 0);
    fill(scales, x.scale_stride * (TIME_EXPERTS + 1), 0x07070707u, 0x08080808u); /* 1/64 .. */
    m->data = data;
    m->scales = scales;
    return x;
}

struct timed_layer {
    struct ffn_block host;
    struct cuda_ffn w;
    struct experts_run run; /* of the kernels behind the router */
    struct experts_few few;
    uint16_t *x;
    void *scratch;
};

typedef void (*timed_stage)(const struct cuda_launch *l, struct timed_layer *y);

static int timed_rows;

/* Each layer's rows as they begin, and as they are: a stage adds to them, and each replay is to
 * measure the same ones. They begin alike: so layer 0's weights choose the same experts of them. */
enum { TIME_X_BYTES = TIME_LAYERS * TIME_ROWS * TIME_HIDDEN * 2 };
static uint16_t *timed_start, *timed_x;

static void reset_rows(void)
{
    must(cudaMemcpyAsync(timed_x, timed_start, TIME_X_BYTES, cudaMemcpyDeviceToDevice, stream),
         "a copy");
}

static struct cuda_ffn_run run_of(const struct timed_layer *y, int rows)
{
    struct cuda_ffn_run run = {};
    run.w = &y->w;
    run.x = y->x;
    run.hidden = TIME_HIDDEN;
    run.rows = rows;
    run.scratch = y->scratch;
    return run;
}

static void stage_block(const struct cuda_launch *l, struct timed_layer *y)
{
    const struct cuda_ffn_run run = run_of(y, timed_rows);
    cuda_ffn_forward(l, &run);
}

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes);
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a copy");
    return to;
}

static void put_back(void *to, void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy");
    free(from);
}

/* What the kernels behind the router of any shape take. Few rows of this one have moe.cu, which
 * keeps what it routes to itself: so all rows are routed, and the first ones' is taken. */
static void route_rows(const struct cuda_launch *l, struct timed_layer *y)
{
    const struct cuda_ffn_run all = run_of(y, TIME_ROWS), run = run_of(y, timed_rows);
    const size_t choices = (size_t)timed_rows * TIME_EXPERTS * 4;
    const size_t rows = (size_t)timed_rows * TIME_HIDDEN * 2;
    struct experts_run routed;
    cuda_ffn_forward(l, &all);
    finish();
    ffn_experts_run(&all, &routed);
    ffn_experts_run(&run, &y->run);
    void *key = copy_of(routed.key, choices), *score = copy_of(routed.score, choices);
    void *normed = copy_of(routed.normed, rows);
    put_back(y->run.key, key, choices);
    put_back(y->run.score, score, choices);
    put_back(y->run.normed, normed, rows);
}

static void stage_up(const struct cuda_launch *l, struct timed_layer *y)
{
    experts_few_up(l, &y->run, &y->few);
}

static void stage_down(const struct cuda_launch *l, struct timed_layer *y)
{
    experts_few_down(l, &y->run, &y->few);
}

static void stage_experts(const struct cuda_launch *l, struct timed_layer *y)
{
    experts_few_up(l, &y->run, &y->few);
    experts_few_down(l, &y->run, &y->few);
}

/* Microseconds of a stage of one layer; a graph of all layers is replayed, each time from the same
 * rows, or of one layer's weights again and again: then they are in L2, and what is left is the
 * work of the multiprocessors. */
static double time_stage(struct timed_layer *layer, timed_stage stage, bool overlap, bool cached)
{
    struct cuda_launch l = launch_new();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t from[TIME_REPEATS], to[TIME_REPEATS];
    double all = 0;
    l.overlap = overlap;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
    for (int i = 0; i < TIME_LAYERS; i++) {
        struct timed_layer y = layer[cached ? 0 : i];
        y.x = y.run.x = layer[i].x;
        stage(&l, &y);
    }
    must(cudaStreamEndCapture(stream, &graph), "a capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    for (int i = 0; i < TIME_REPEATS; i++) {
        must(cudaEventCreate(&from[i]), "an event");
        must(cudaEventCreate(&to[i]), "an event");
    }
    for (int i = -TIME_WARM; i < TIME_REPEATS; i++) { /* nothing waits for the host meanwhile */
        reset_rows();
        if (i >= 0)
            must(cudaEventRecord(from[i], stream), "an event");
        must(cudaGraphLaunch(exec, stream), "a graph");
        if (i >= 0)
            must(cudaEventRecord(to[i], stream), "an event");
    }
    finish();
    for (int i = 0; i < TIME_REPEATS; i++) {
        float ms = 0;
        must(cudaEventElapsedTime(&ms, from[i], to[i]), "an event");
        all += ms;
        cudaEventDestroy(from[i]);
        cudaEventDestroy(to[i]);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return 1000.0 * all / (TIME_REPEATS * TIME_LAYERS);
}

static double time_reading(const struct timed_layer *layer)
{
    cudaEvent_t from, to;
    float ms = 0;
    uint32_t *out = (uint32_t *)device_new(4, NULL);
    struct cuda_launch l = launch_new();
    l.overlap = false;
    must(cudaEventCreate(&from), "an event");
    must(cudaEventCreate(&to), "an event");
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        bytes = 0;
        must(cudaEventRecord(from, stream), "an event");
        for (int i = 0; i < TIME_LAYERS; i++) {
            const size_t n = layer[i].w.gate.data_stride * (TIME_EXPERTS + 1);
            cuda_launch(&l, "read", read_all, dim3((unsigned)device.multiprocessors * 8), dim3(256),
                        0, (const uint4 *)layer[i].w.gate.first.data, n / 16, out);
            bytes += n;
        }
        must(cudaEventRecord(to, stream), "an event");
        finish();
    }
    must(cudaEventElapsedTime(&ms, from, to), "an event");
    cudaFree(out);
    return (double)bytes / (1e6 * ms);
}

/* What the choices of a layer's rows come to, by the router's keys: distinct experts. */
static int distinct_of(const struct timed_layer *y)
{
    enum { MOST = TIME_ROWS * TIME_TOP_K };
    uint32_t key[TIME_EXPERTS];
    int seen[TIME_EXPERTS] = {0}, distinct = 0;
    for (int r = 0; r < timed_rows; r++) {
        must(cudaMemcpy(key, y->run.key + (size_t)r * TIME_EXPERTS, sizeof key,
                        cudaMemcpyDeviceToHost),
             "a copy");
        for (int i = 0; i < TIME_TOP_K; i++) {
            int best = 0;
            for (int e = 1; e < TIME_EXPERTS; e++)
                best = key[e] > key[best] ? e : best;
            key[best] = 0;
            distinct += seen[best]++ == 0;
        }
    }
    return distinct;
}

static void time_all(void)
{
    static struct timed_layer layer[TIME_LAYERS];
    const struct shape s = {"",           TIME_HIDDEN,   TIME_WIDTH, TIME_EXPERTS, TIME_TOP_K,
                            WEIGHT_NVFP4, SHARED_INSIDE, true,       ODD_NOTHING};
    const struct compute_shape shape = compute_shape_of(&s, TIME_ROWS);
    const size_t bytes = cuda_ffn_scratch(&shape, TIME_ROWS);
    uint16_t *x = (uint16_t *)malloc(TIME_X_BYTES);
    for (int i = 0; i < TIME_X_BYTES / 2; i++)
        x[i] = i < TIME_ROWS * TIME_HIDDEN ? f32_to_bf16(random_value(1.0f))
                                           : x[i - TIME_ROWS * TIME_HIDDEN];
    timed_start = (uint16_t *)device_new(TIME_X_BYTES, x);
    timed_x = (uint16_t *)device_new(TIME_X_BYTES, x);
    free(x);
    for (int i = 0; i < TIME_LAYERS; i++) {
        struct timed_layer *y = &layer[i];
        uint16_t norm[TIME_HIDDEN];
        float bias[TIME_EXPERTS] = {0};
        for (int k = 0; k < TIME_HIDDEN; k++)
            norm[k] = f32_to_bf16(1.0f);
        y->host.eps = 1e-6f;
        y->host.sparse = true;
        y->host.experts = TIME_EXPERTS;
        y->host.top_k = TIME_TOP_K;
        y->host.normalize_top_k = true;
        y->host.routed_scale = 1.0f / 1024;
        y->host.has_shared = true;
        y->w.block = &y->host;
        y->w.norm = (uint16_t *)device_new(sizeof norm, norm);
        y->w.selection_bias = (float *)device_new(sizeof bias, bias);
        struct weight_matrix router =
            matrix_new(WEIGHT_BF16, TIME_EXPERTS, TIME_HIDDEN, 2.0f / sqrtf(TIME_HIDDEN));
        y->w.router = lay_one(&router);
        matrix_free(&router);
        y->w.gate = random_experts(TIME_WIDTH, TIME_HIDDEN);
        y->w.up = random_experts(TIME_WIDTH, TIME_HIDDEN);
        y->w.down = random_experts(TIME_HIDDEN, TIME_WIDTH);
        y->w.shared_inside = true;
        y->x = timed_x + (size_t)i * TIME_ROWS * TIME_HIDDEN;
        y->scratch = device_new(bytes, NULL);
        must(cudaMemset(y->scratch, 0, bytes), "a fill");
    }
    must(cudaDeviceSynchronize(), "fills");
    const double peak = time_reading(layer);
    printf("%s, %d multiprocessors: reading %.0f GB/s\n", device.name, device.multiprocessors,
           peak);
    static const int rows[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        timed_rows = rows[i];
        double distinct = 0;
        reset_rows();
        for (int k = 0; k < TIME_LAYERS; k++) {
            struct cuda_launch l = launch_new();
            route_rows(&l, &layer[k]);
            experts_few_plan(&l, &layer[k].run, &layer[k].few);
            distinct += distinct_of(&layer[k]) / (double)TIME_LAYERS;
        }
        const double of_expert = TIME_WIDTH * TIME_HIDDEN * (0.5 + 1.0 / 16);
        const double all = (distinct + 1) * 3 * of_expert + 2.0 * TIME_EXPERTS * TIME_HIDDEN;
        const double block = time_stage(layer, stage_block, true, false);
        printf("rows %d: %.1f experts, %.1f MB: block %.2f us (%.0f GB/s, %.0f %% of reading), "
               "without overlap %.2f, out of L2 %.2f\n",
               timed_rows, distinct + 1, all / 1e6, block, all / block / 1e3,
               100 * all / block / 1e3 / peak, time_stage(layer, stage_block, false, false),
               time_stage(layer, stage_block, true, true));
        static const struct {
            const char *name;
            timed_stage stage;
            int matrices;
        } stages[] = {{"gate, up and down", stage_experts, 3},
                      {"gate and up", stage_up, 2},
                      {"down", stage_down, 1}};
        for (size_t k = 0; k < sizeof stages / sizeof *stages; k++) {
            const double us = time_stage(layer, stages[k].stage, true, false);
            printf("    %-34s %.2f us (%.0f GB/s), without overlap %.2f, out of L2 %.2f\n",
                   stages[k].name, us, (distinct + 1) * stages[k].matrices * of_expert / us / 1e3,
                   time_stage(layer, stages[k].stage, false, false),
                   time_stage(layer, stages[k].stage, true, true));
        }
    }
}

int main(int argc, char **argv)
{
    struct error err = {};
    const bool timing = argc > 1 && strcmp(argv[1], "--time") == 0;
    const bool few = argc > 1 && strcmp(argv[1], "--few") == 0;
    const bool moe = argc > 1 && strcmp(argv[1], "--moe") == 0;
    if (!cuda_device_open(&device, &err)) {
        printf("%s: %s\n", err.name, err.message);
        return 1;
    }
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    if (timing) {
        time_all();
        return 0;
    }
    check_all(few, moe);
    printf("%d checks, %d failures\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
