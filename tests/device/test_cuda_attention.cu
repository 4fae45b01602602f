/* Attention, the begin of a forward and taps on the device against the portable kernels of the CPU:
 * bytes of outputs and of rings are equal, for any rows, positions, windows and heads.
 *
 *     test_cuda_attention           the checks; exit 1 on a difference
 *     test_cuda_attention --time    on a GPU: microseconds for the shapes of Laguna XS 2.1
 */
#include "engine/compute/cuda/cuda.h"

extern "C" {
#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;
static uint64_t seed = 20261130;
static struct cuda_fault fault;
static struct cuda_device device;
static unsigned kernels;

static uint32_t random32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static int random_below(int n)
{
    return (int)(random32() % (uint32_t)n);
}

static float random_value(float scale)
{
    const float sum =
        (float)(random32() >> 8) + (float)(random32() >> 8) + (float)(random32() >> 8);
    return (sum / 16777216.0f - 1.5f) * scale;
}

static uint16_t random_bf16(float scale)
{
    return f32_to_bf16(random_value(scale));
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
    must(from != NULL ? cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice)
                      : cudaMemset(p, 0, bytes > 0 ? bytes : 1),
         "filling");
    return p;
}

static void device_read(void *to, const void *from, size_t bytes)
{
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "reading");
}

static void check_equal(const char *what, const char *where, const void *a, const void *b,
                        size_t elements)
{
    const uint16_t *x = (const uint16_t *)a, *y = (const uint16_t *)b;
    checks++;
    for (size_t i = 0; i < elements; i++) {
        if (x[i] == y[i])
            continue;
        failures++;
        printf("%s: %s: element %zu of %zu is %04x (%g), not %04x (%g)\n", where, what, i, elements,
               x[i], (double)bf16_to_f32(x[i]), y[i], (double)bf16_to_f32(y[i]));
        return;
    }
}

/* Where element k of a row lies in the lanes order of cuda.h. */
static int lanes_place(int k)
{
    const int group = k / 128, block = k % 128 / 32, lane = k % 32 / 2;
    return group * 128 + lane * 8 + block * 2 + k % 2;
}

/* ---- One layer: sizes, weights, a ring here and on the device ---- */

struct layer {
    int heads, kv_heads, head_dim, window, rotary;
    float input_scale;
    int64_t capacity, positions;
    struct attention_block block;
    struct rope_table rope;
    struct cuda_attention weights;
    struct kv_layer ring;
    uint8_t *keys, *values; /* the CPU's rings */
    size_t key_bytes, value_bytes;
    struct cuda_step *step;
    struct cuda_input *input;
    void *scratch;
};

static void layer_new(struct layer *g, int max_rows)
{
    const int dim = g->head_dim, half = g->rotary / 2;
    uint16_t *q_norm = (uint16_t *)malloc((size_t)dim * 2),
             *k_norm = (uint16_t *)malloc((size_t)dim * 2);
    const float sharp = random_below(3) == 0 ? 2.0f : 0.5f; /* few keys count, or many */
    for (int i = 0; i < dim; i++) {
        q_norm[i] = random_bf16(sharp);
        k_norm[i] = random_bf16(sharp);
    }
    const size_t table = (size_t)g->positions * (size_t)half;
    float *cosine = (float *)malloc(table * 4 + 4), *sine = (float *)malloc(table * 4 + 4);
    for (size_t i = 0; i < table; i++) {
        const double angle =
            (double)(i / (size_t)half) / pow(10000.0, (double)(i % (size_t)half) / half);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    g->rope = {g->rotary, g->positions, cosine, sine, g->input_scale};
    g->block.heads = g->heads;
    g->block.kv_heads = g->kv_heads;
    g->block.head_dim = dim;
    g->block.window = g->window;
    g->block.eps = 1e-6f;
    g->block.q_norm = q_norm;
    g->block.k_norm = k_norm;
    g->block.rope = &g->rope;
    g->weights.block = &g->block;
    g->weights.q_norm = (const uint16_t *)device_new((size_t)dim * 2, q_norm);
    g->weights.k_norm = (const uint16_t *)device_new((size_t)dim * 2, k_norm);
    g->weights.cosine = (const float *)device_new(table * 4, cosine);
    g->weights.sine = (const float *)device_new(table * 4, sine);
    g->weights.rotary = g->rotary;
    g->weights.input_scale = g->input_scale;
    g->key_bytes = kernel_key_bytes(ACTIVATIONS_BF16, dim);
    g->value_bytes = kernel_value_bytes(ACTIVATIONS_BF16, dim);
    const size_t slots = (size_t)g->kv_heads * (size_t)g->capacity;
    g->keys = (uint8_t *)malloc(slots * g->key_bytes);
    g->values = (uint8_t *)malloc(slots * g->value_bytes);
    g->ring.kv_heads = g->kv_heads;
    g->ring.head_dim = dim;
    g->ring.capacity = g->capacity;
    g->ring.key_stride = (dim + 127) / 128 * 128;
    g->ring.value_stride = (dim + 7) / 8 * 8;
    g->ring.keys = (uint16_t *)device_new(slots * (size_t)g->ring.key_stride * 2, NULL);
    g->ring.values = (uint16_t *)device_new(slots * (size_t)g->ring.value_stride * 2, NULL);
    g->step = (struct cuda_step *)device_new(sizeof *g->step, NULL);
    must(cudaHostAlloc((void **)&g->input, sizeof *g->input + 4096 * 4, cudaHostAllocMapped),
         "cudaHostAlloc");
    g->scratch = device_new(
        cuda_attend_scratch(g->heads, g->kv_heads, dim, max_rows, cuda_chunks(g->capacity - 1, 1)),
        NULL);
}

static void layer_free(struct layer *g)
{
    const void *const own[] = {g->block.q_norm, g->block.k_norm, g->rope.cosine,
                               g->rope.sine,    g->keys,         g->values};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        free((void *)own[i]);
    const void *const there[] = {g->weights.q_norm, g->weights.k_norm, g->weights.cosine,
                                 g->weights.sine,   g->ring.keys,      g->ring.values,
                                 g->step,           g->scratch};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        cudaFree((void *)there[i]);
    cudaFreeHost(g->input);
}

/* The CPU's rings as the device has them. */
static void rings_expected(const struct layer *g, uint16_t *keys, uint16_t *values)
{
    const int dim = g->head_dim, key_stride = g->ring.key_stride,
              value_stride = g->ring.value_stride;
    for (size_t s = 0; s < (size_t)g->kv_heads * (size_t)g->capacity; s++) {
        uint16_t *k = keys + s * (size_t)key_stride, *v = values + s * (size_t)value_stride;
        memset(k, 0, (size_t)key_stride * 2);
        memset(v, 0, (size_t)value_stride * 2);
        for (int i = 0; i < dim; i++) {
            memcpy(&k[lanes_place(i)], g->keys + s * g->key_bytes + (size_t)i * 2, 2);
            memcpy(&v[i], g->values + s * g->value_bytes + (size_t)i * 2, 2);
        }
    }
}

/* Keys and values of the positions before pos0 that may be seen; the rest is NaN. */
static void rings_fill(struct layer *g, int64_t pos0)
{
    const size_t slots = (size_t)g->kv_heads * (size_t)g->capacity;
    memset(g->keys, 0xff, slots * g->key_bytes);
    memset(g->values, 0xff, slots * g->value_bytes);
    const int64_t oldest = g->window > 0 && pos0 - g->window + 1 > 0 ? pos0 - g->window + 1 : 0;
    float row[256];
    for (int h = 0; h < g->kv_heads; h++)
        for (int64_t p = oldest; p < pos0; p++) {
            const size_t s = (size_t)h * (size_t)g->capacity + (size_t)(p % g->capacity);
            for (int i = 0; i < g->head_dim; i++)
                row[i] = bf16_to_f32(random_bf16(3.0f));
            kernel_key_store(&cpu_kernels_portable, ACTIVATIONS_BF16, row, g->head_dim,
                             g->keys + s * g->key_bytes);
            for (int i = 0; i < g->head_dim; i++)
                row[i] = bf16_to_f32(random_bf16(3.0f));
            kernel_value_store(ACTIVATIONS_BF16, row, g->head_dim, g->values + s * g->value_bytes);
        }
    const size_t key_bytes = slots * (size_t)g->ring.key_stride * 2;
    const size_t value_bytes = slots * (size_t)g->ring.value_stride * 2;
    uint16_t *keys = (uint16_t *)malloc(key_bytes), *values = (uint16_t *)malloc(value_bytes);
    rings_expected(g, keys, values);
    must(cudaMemcpy(g->ring.keys, keys, key_bytes, cudaMemcpyHostToDevice), "keys");
    must(cudaMemcpy(g->ring.values, values, value_bytes, cudaMemcpyHostToDevice), "values");
    free(keys);
    free(values);
}

static void rings_check(const struct layer *g, const char *where)
{
    const size_t slots = (size_t)g->kv_heads * (size_t)g->capacity;
    const size_t keys = slots * (size_t)g->ring.key_stride;
    const size_t values = slots * (size_t)g->ring.value_stride;
    uint16_t *expected = (uint16_t *)malloc((keys + values) * 2);
    uint16_t *found = (uint16_t *)malloc((keys + values) * 2);
    rings_expected(g, expected, expected + keys);
    device_read(found, g->ring.keys, keys * 2);
    device_read(found + keys, g->ring.values, values * 2);
    check_equal("keys", where, found, expected, keys);
    check_equal("values", where, found + keys, expected + keys, values);
    free(expected);
    free(found);
}

/* What the CPU does with projections [rows, stride]: out [rows, heads*head_dim], NULL: keys and
 * values only, which lie at key_at. */
static void cpu_attend(struct layer *g, const uint16_t *projected, size_t stride, int key_at,
                       int64_t pos0, int rows, uint16_t *out)
{
    const struct cpu_kernels *k = &cpu_kernels_portable;
    const enum activations bf16 = ACTIVATIONS_BF16;
    const int dim = g->head_dim, share = g->heads / g->kv_heads;
    float x[256], gate[256], result[256];
    float *scratch = (float *)aligned_alloc(64, (kernel_attention_scratch(dim) * 4 + 63) / 64 * 64);
    float *prepared = (float *)aligned_alloc(64, 1024);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < g->kv_heads; h++) {
            const uint16_t *row = projected + (size_t)r * stride + key_at + h * dim;
            const size_t s = (size_t)h * (size_t)g->capacity + (size_t)((pos0 + r) % g->capacity);
            for (int i = 0; i < dim; i++)
                x[i] = bf16_to_f32(row[i]);
            k->rms_norm(bf16, x, g->block.k_norm, dim, g->block.eps, x);
            k->rope(bf16, &g->rope, pos0 + r, x);
            kernel_key_store(k, bf16, x, dim, g->keys + s * g->key_bytes);
            for (int i = 0; i < dim; i++)
                x[i] = bf16_to_f32(row[g->kv_heads * dim + i]);
            kernel_value_store(bf16, x, dim, g->values + s * g->value_bytes);
        }
    for (int r = 0; out != NULL && r < rows; r++)
        for (int h = 0; h < g->heads; h++) {
            const uint16_t *row = projected + (size_t)r * stride;
            for (int i = 0; i < dim; i++)
                x[i] = bf16_to_f32(row[h * dim + i]);
            k->rms_norm(bf16, x, g->block.q_norm, dim, g->block.eps, x);
            k->rope(bf16, &g->rope, pos0 + r, x);
            k->prepare(bf16, x, dim, prepared);
            const float logit = bf16_to_f32(row[key_at + 2 * g->kv_heads * dim + h]);
            k->softplus(bf16, &logit, 1, gate);
            const int64_t last = pos0 + r;
            const int64_t first =
                g->window > 0 && last - g->window + 1 > 0 ? last - g->window + 1 : 0;
            const void *q = prepared;
            const size_t ring = (size_t)(h / share) * (size_t)g->capacity;
            struct attention_call call = {};
            call.heads = 1;
            call.head_dim = dim;
            call.scale = (float)(1.0 / sqrt((double)dim));
            call.q = &q;
            call.gate = gate;
            call.keys = g->keys + ring * g->key_bytes;
            call.values = g->values + ring * g->value_bytes;
            call.capacity = g->capacity;
            call.first = first;
            call.last = last;
            call.out = result;
            call.scratch = scratch;
            k->attention(bf16, &call);
            for (int i = 0; i < dim; i++)
                out[((size_t)r * (size_t)g->heads + (size_t)h) * (size_t)dim + (size_t)i] =
                    f32_to_bf16(result[i]);
        }
    free(scratch);
    free(prepared);
}

static struct cuda_launch launch_of(const struct cuda_step *step, bool overlap)
{
    struct cuda_launch l = {};
    l.fault = &fault;
    l.device = &device;
    l.step = step;
    l.overlap = overlap;
    l.kernels = &kernels;
    return l;
}

/* Some forwards, one after the other from pos0 on. */
static void try_layer(struct layer *g, int64_t pos0, const int *rows_of, int forwards)
{
    char where[256];
    const int wide = g->heads * g->head_dim, narrow = g->kv_heads * g->head_dim;
    const size_t stride = (size_t)(wide + 2 * narrow + g->heads + random_below(3));
    rings_fill(g, pos0);
    for (int f = 0; f < forwards; f++) {
        const int rows = rows_of[f];
        snprintf(where, sizeof where,
                 "heads %d/%d x %d, window %d, rotary %d, ring %lld, position %lld, rows %d, %d "
                 "multiprocessors",
                 g->heads, g->kv_heads, g->head_dim, g->window, g->rotary, (long long)g->capacity,
                 (long long)pos0, rows, device.multiprocessors);
        const size_t n = (size_t)rows * stride, out_n = (size_t)rows * (size_t)wide;
        uint16_t *projected = (uint16_t *)malloc(n * 2);
        for (size_t i = 0; i < n; i++)
            projected[i] = random_bf16(2.5f);
        uint16_t *expected = (uint16_t *)malloc(out_n * 2), *found = (uint16_t *)malloc(out_n * 2);
        const bool only_append = random_below(8) == 0;

        g->input->pos0 = pos0;
        g->input->rows = rows;
        const struct cuda_launch l = launch_of(g->step, random_below(2) == 0);
        struct cuda_attend a = {};
        a.w = &g->weights;
        a.kv = &g->ring;
        a.projected_stride = stride;
        a.rows = rows;
        const int chunks = cuda_chunks(pos0, rows), most = cuda_chunks(g->capacity - 1, 1);
        a.chunks = chunks < most ? chunks : most; /* as an instance whose rings are no longer */
        a.scratch = g->scratch;
        a.out = (uint16_t *)device_new(out_n * 2, NULL);
        uint16_t *there = (uint16_t *)device_new(n * 2, projected);
        a.projected = there;
        cuda_set_step(&l, g->input, g->step);
        if (only_append) {
            cpu_attend(g, projected + wide, stride, 0, pos0, rows, NULL);
            a.projected += wide;
            cuda_append(&l, &a);
        } else {
            cpu_attend(g, projected, stride, wide, pos0, rows, expected);
            cuda_attend(&l, &a);
        }
        if (fault.set) {
            printf("%s: %s\n", where, fault.error.message);
            exit(1);
        }
        if (!only_append) {
            device_read(found, a.out, out_n * 2);
            check_equal("output", where, found, expected, out_n);
        }
        rings_check(g, where);
        cudaFree(a.out);
        cudaFree(there);
        free(projected);
        free(expected);
        free(found);
        pos0 += rows;
        if (failures > 20)
            exit(1);
    }
}

struct layer_case {
    int heads, kv_heads, head_dim, window, rotary;
    float input_scale;
};

static void test_layers(void)
{
    static const struct layer_case cases[] = {
        {8, 2, 32, 128, 32, 1.0f},      {6, 1, 128, 512, 64, 1.3465736f},
        {16, 2, 128, 512, 128, 1.0f},   {4, 4, 16, 0, 16, 1.0f},
        {6, 2, 64, 0, 20, 1.0f},        {3, 1, 256, 0, 256, 1.0f},
        {8, 1, 128, 0, 64, 1.3465736f}, {2, 1, 80, 5, 40, 1.0f},
        {2, 2, 192, 256, 96, 1.0f},     {12, 2, 24, 300, 24, 1.0f},
        {5, 1, 128, 257, 128, 1.0f},    {8, 8, 128, 1, 128, 1.0f},
    };
    static const int starts[] = {0, 1, 200, 255, 256, 500, 511, 767, 1000};
    static const int shapes[][3] = {{1, 1, 1},  {2, 1, 3},  {4, 8, 1},
                                    {16, 5, 6}, {17, 1, 2}, {33, 7, 1}};
    static const int processors[] = {4, 24, 132};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct layer_case *k = &cases[c];
        for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
            const size_t shape = (c * 5 + s) % (sizeof shapes / sizeof *shapes);
            struct layer g = {};
            g.heads = k->heads;
            g.kv_heads = k->kv_heads;
            g.head_dim = k->head_dim;
            g.window = k->window;
            g.rotary = k->rotary;
            g.input_scale = k->input_scale;
            g.positions = 1200;
            int most = 0;
            for (int f = 0; f < 3; f++)
                most = shapes[shape][f] > most ? shapes[shape][f] : most;
            g.capacity = k->window > 0 ? k->window + most - 1 + random_below(3) * 7 : g.positions;
            layer_new(&g, most);
            device.multiprocessors = processors[random_below(3)];
            device.shared_most = random_below(2) == 0 ? 99 * 1024 : 227 * 1024;
            try_layer(&g, starts[s], shapes[shape], 3);
            layer_free(&g);
        }
    }
}

/* Every number of rows over a seam of chunks and of the ring. */
static void test_rows(void)
{
    for (int rows = 1; rows <= 18; rows++) {
        struct layer g = {};
        g.heads = rows % 2 == 0 ? 12 : 16;
        g.kv_heads = 2;
        g.head_dim = 128;
        g.window = 300;
        g.rotary = 128;
        g.input_scale = 1.0f;
        g.positions = 800;
        g.capacity = 300 + rows - 1;
        layer_new(&g, rows);
        device.multiprocessors = rows % 3 == 0 ? 132 : 12;
        const int twice[2] = {rows, rows};
        try_layer(&g, 512 - rows / 2 - 1, twice, 2);
        layer_free(&g);
    }
}

/* ---- The begin of a forward, taps, context rows ---- */

static void try_context(int hidden, int taps, int64_t capacity, int64_t pos0, int rows)
{
    char where[160];
    snprintf(where, sizeof where, "hidden %d, %d taps, ring %lld, position %lld, rows %d", hidden,
             taps, (long long)capacity, (long long)pos0, rows);
    const size_t h = (size_t)hidden, wide = h * (size_t)taps, padded = (wide + 127) / 128 * 128;
    const enum activations bf16 = ACTIVATIONS_BF16;
    const struct cpu_kernels *k = &cpu_kernels_portable;
    const int vocab = 50;

    /* Rows of the table, by ids. */
    uint16_t *table = (uint16_t *)malloc((size_t)vocab * h * 2);
    for (size_t i = 0; i < (size_t)vocab * h; i++)
        table[i] = random_bf16(2.0f);
    struct cuda_input *input = NULL;
    must(cudaHostAlloc((void **)&input, sizeof *input + (size_t)rows * 4, cudaHostAllocMapped),
         "cudaHostAlloc");
    input->pos0 = pos0;
    input->rows = rows;
    for (int r = 0; r < rows; r++)
        input->ids[r] = random_below(vocab);
    struct cuda_step *step = (struct cuda_step *)device_new(sizeof *step, NULL);
    uint16_t *x = (uint16_t *)device_new((size_t)rows * h * 2, NULL);
    uint16_t *rows_there = (uint16_t *)device_new((size_t)vocab * h * 2, table);
    const struct cuda_launch l = launch_of(step, true);
    uint16_t *found = (uint16_t *)malloc((size_t)rows * h * 2);
    uint16_t *expected = (uint16_t *)malloc((size_t)rows * h * 2);
    for (int r = 0; r < rows; r++)
        memcpy(expected + (size_t)r * h, table + (size_t)input->ids[r] * h, h * 2);
    cuda_embed(&l, input, step, rows_there, hidden, rows, x, NULL);
    device_read(found, x, (size_t)rows * h * 2);
    check_equal("embedded rows", where, found, expected, (size_t)rows * h);
    /* The same, the odd rows' ids picked by a draft; none picked: the first of the table. */
    struct head_pick *drafted = NULL;
    must(cudaHostAlloc((void **)&drafted, (size_t)rows * sizeof *drafted, cudaHostAllocMapped),
         "cudaHostAlloc");
    for (int r = 1; r < rows; r += 2) {
        drafted[r - 1].token[0] = r % 5 == 0 ? -1 : input->ids[r];
        if (r % 5 == 0)
            memcpy(expected + (size_t)r * h, table, h * 2);
        input->ids[r] = -1;
    }
    cuda_embed(&l, input, step, rows_there, hidden, rows, x, drafted);
    device_read(found, x, (size_t)rows * h * 2);
    check_equal("embedded drafts", where, found, expected, (size_t)rows * h);
    cudaFreeHost(drafted);
    struct cuda_step read = {};
    device_read(&read, step, sizeof read);
    checks++;
    if (read.pos0 != pos0 || read.rows != rows) {
        failures++;
        printf("%s: the step is of position %lld, %d rows\n", where, (long long)read.pos0,
               read.rows);
    }

    /* Taps of them: the first as they are, the others of other rows. */
    struct tap_rows ring = {};
    ring.capacity = capacity;
    ring.taps = taps;
    ring.hidden = hidden;
    ring.rows = (uint16_t *)device_new((size_t)capacity * wide * 2, NULL);
    uint16_t *kept = (uint16_t *)calloc((size_t)capacity * wide, 2);
    for (int t = 0; t < taps; t++) {
        for (size_t i = 0; i < (size_t)rows * h; i++)
            expected[i] = t == 0 ? expected[i] : random_bf16(1.0f);
        must(cudaMemcpy(x, expected, (size_t)rows * h * 2, cudaMemcpyHostToDevice), "rows");
        cuda_tap(&l, x, &ring, t, rows);
        must(cudaDeviceSynchronize(), "cuda_tap");
        for (int r = 0; r < rows; r++)
            memcpy(kept + (size_t)((pos0 + r) % capacity) * wide + (size_t)t * h,
                   expected + (size_t)r * h, h * 2);
    }
    uint16_t *taps_found = (uint16_t *)malloc((size_t)capacity * wide * 2);
    device_read(taps_found, ring.rows, (size_t)capacity * wide * 2);
    check_equal("taps", where, taps_found, kept, (size_t)capacity * wide);

    /* The context rows that are made of them. */
    uint16_t *weights = (uint16_t *)malloc(h * wide * 2),
             *norms = (uint16_t *)malloc((wide + h) * 2);
    uint16_t *ordered = (uint16_t *)calloc(h * padded, 2);
    for (size_t i = 0; i < wide + h; i++)
        norms[i] = random_bf16(1.5f);
    for (size_t o = 0; o < h; o++)
        for (size_t i = 0; i < wide; i++) {
            weights[o * wide + i] = random_bf16(0.2f);
            ordered[o * padded + (size_t)lanes_place((int)i)] = weights[o * wide + i];
        }
    struct context_block block = {};
    block.eps = 1e-6f;
    block.taps = taps;
    struct cuda_context w = {};
    w.block = &block;
    w.tap_norm = (const uint16_t *)device_new((wide + h) * 2, norms);
    w.hidden_norm = w.tap_norm + wide;
    w.fc.format = WEIGHT_BF16;
    w.fc.out = hidden;
    w.fc.in = (int)wide;
    w.fc.padded = (int)padded;
    w.fc.data = (const uint8_t *)device_new(h * padded * 2, ordered);
    w.fc.row_bytes = padded * 2;
    uint16_t *scratch = (uint16_t *)device_new((size_t)rows * (wide + h) * 2, NULL);
    cuda_context_run(&l, &w, &ring, rows, x, scratch);
    device_read(found, x, (size_t)rows * h * 2);
    float *y = (float *)malloc(wide * 4), *made = (float *)malloc(h * 4);
    float *prepared = (float *)aligned_alloc(64, (padded * 4 + 63) / 64 * 64);
    struct weight_matrix fc = {};
    fc.format = WEIGHT_BF16;
    fc.out = hidden;
    fc.in = (int)wide;
    fc.data = weights;
    for (int r = 0; r < rows; r++) {
        const uint16_t *row = kept + (size_t)((pos0 + r) % capacity) * wide;
        for (size_t i = 0; i < wide; i++)
            y[i] = bf16_to_f32(row[i]);
        for (int t = 0; t < taps; t++)
            k->rms_norm(bf16, y + (size_t)t * h, norms + (size_t)t * h, hidden, block.eps,
                        y + (size_t)t * h);
        k->prepare(bf16, y, (int)wide, prepared);
        const void *prepared_row = prepared;
        struct linear_call call = {};
        call.w = &fc;
        call.x = &prepared_row;
        call.rows = 1;
        call.count = hidden;
        call.y = made;
        call.y_stride = h;
        k->linear(bf16, &call);
        k->rms_norm(bf16, made, norms + wide, hidden, block.eps, made);
        for (size_t i = 0; i < h; i++)
            expected[(size_t)r * h + i] = f32_to_bf16(made[i]);
    }
    check_equal("context rows", where, found, expected, (size_t)rows * h);
    if (fault.set) {
        printf("%s: %s\n", where, fault.error.message);
        exit(1);
    }
    void *const there[] = {step,   x, rows_there, ring.rows, (void *)w.tap_norm, (void *)w.fc.data,
                           scratch};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        cudaFree(there[i]);
    void *const own[] = {table, found,   expected, kept, taps_found, weights,
                         norms, ordered, y,        made, prepared};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        free(own[i]);
    cudaFreeHost(input);
}

static void test_contexts(void)
{
    try_context(256, 3, 40, 0, 1);
    try_context(256, 3, 40, 35, 16);
    try_context(64, 1, 33, 100, 33);
    try_context(96, 5, 20, 7, 17);
    try_context(44, 2, 9, 1000000, 3);
    try_context(512, 5, 700, 650, 129);
}

/* ---- Times ---- */

/* Layers whose rings together are more than L2 holds. */
static void time_shape(int heads, int window, int64_t pos0, int rows)
{
    const int kv_heads = 8, dim = 128, layers = window > 0 || pos0 < 4096 ? 40 : 10;
    struct layer g[40];
    memset((void *)g, 0, sizeof g);
    const int wide = heads * dim, narrow = kv_heads * dim;
    const size_t stride = (size_t)(wide + 2 * narrow + heads);
    for (int i = 0; i < layers; i++) {
        g[i].heads = heads;
        g[i].kv_heads = kv_heads;
        g[i].head_dim = dim;
        g[i].window = window;
        g[i].rotary = window > 0 ? 128 : 64;
        g[i].input_scale = 1.0f;
        g[i].positions = pos0 + rows;
        g[i].capacity = window > 0 ? window + rows : pos0 + rows;
        layer_new(&g[i], rows);
    }
    uint16_t *projected = (uint16_t *)device_new((size_t)rows * stride * 2, NULL);
    uint16_t *out = (uint16_t *)device_new((size_t)rows * (size_t)wide * 2, NULL);
    g[0].input->pos0 = pos0;
    g[0].input->rows = rows;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t from, to;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&from), "an event");
    must(cudaEventCreate(&to), "an event");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    struct cuda_launch l = launch_of(g[0].step, true);
    l.stream = stream;
    cuda_set_step(&l, g[0].input, g[0].step);
    for (int i = 0; i < layers; i++) {
        struct cuda_attend a = {};
        a.w = &g[i].weights;
        a.kv = &g[i].ring;
        a.projected = projected;
        a.projected_stride = stride;
        a.rows = rows;
        a.chunks = cuda_chunks(pos0, rows);
        a.out = out;
        a.scratch = g[0].scratch;
        cuda_attend(&l, &a);
    }
    must(cudaStreamEndCapture(stream, &graph), "capturing");
    must(cudaGraphInstantiate(&run, graph, 0), "a graph");
    if (fault.set) {
        printf("%s\n", fault.error.message);
        exit(1);
    }
    const int times = rows > CUDA_RECORD_ROWS ? 3 : 20;
    float least = 1e30f;
    for (int i = 0; i < times + 2; i++) {
        float ms;
        must(cudaEventRecord(from, stream), "an event");
        must(cudaGraphLaunch(run, stream), "a graph");
        must(cudaEventRecord(to, stream), "an event");
        must(cudaStreamSynchronize(stream), "a graph");
        must(cudaEventElapsedTime(&ms, from, to), "an event");
        least = i >= 2 && ms < least ? ms : least;
    }
    const int64_t seen = window > 0 && pos0 + 1 > window ? window : pos0 + 1;
    const double microseconds = (double)least * 1e3 / layers;
    printf("%d heads, window %d, position %lld, %d rows, %d multiprocessors: %.2f us a layer, "
           "%.0f GB/s of keys and values of the first row\n",
           heads, window, (long long)pos0, rows, device.multiprocessors, microseconds,
           (double)(seen * kv_heads * dim * 4) / microseconds * 1e-3);
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaStreamDestroy(stream);
    cudaFree(projected);
    cudaFree(out);
    for (int i = 0; i < layers; i++)
        layer_free(&g[i]);
}

static int time_all(void)
{
    struct cudaDeviceProp about;
    must(cudaGetDeviceProperties(&about, 0), "a device");
    device.multiprocessors = about.multiProcessorCount;
    device.shared_most = about.sharedMemPerBlockOptin;
    static const int rows[] = {1, 2, 4, 8, 16};
    for (int i = 0; i < 5; i++) {
        time_shape(64, 512, 600, rows[i]);
        time_shape(48, 0, 600, rows[i]);
        time_shape(48, 0, 4100, rows[i]);
        time_shape(48, 0, 8100, rows[i]);
    }
    /* Other cuts of the same work: what a device of so many multiprocessors would be given. */
    static const int processors[] = {32, 264, 1056};
    for (int i = 0; i < 3; i++) {
        device.multiprocessors = processors[i];
        time_shape(64, 512, 600, 1);
        time_shape(64, 512, 600, 2);
        time_shape(64, 512, 600, 4);
        time_shape(48, 0, 600, 1);
        time_shape(48, 0, 4100, 1);
        time_shape(48, 0, 8100, 1);
    }
    device.multiprocessors = about.multiProcessorCount;
    time_shape(64, 512, 0, 512);
    time_shape(48, 0, 0, 512);
    time_shape(64, 512, 4096, 512);
    time_shape(48, 0, 4096, 512);
    return 0;
}

int main(int argc, char **argv)
{
    machine_float_enter();
    struct cudaDeviceProp about;
    must(cudaGetDeviceProperties(&about, 0), "the device");
    device.multiprocessors = 4;
    device.shared_most = 227 * 1024;
    device.major = about.major;
    if (argc > 1 && strcmp(argv[1], "--time") == 0)
        return time_all();
    test_contexts();
    test_rows();
    test_layers();
#ifndef CUDA_EMULATED /* which is asked for by CUDA_EMULATOR_CC */
    device.major = 8; /* without clusters */
    test_rows();
    test_layers();
#endif
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
