/* Fast mode's products (compute/cuda/fast.cuh) against float64 on the host, and the same bytes
 * twice.
 *
 * What may differ: one rounding to bf16 for each rounding that the strict kernels have (half an
 * ulp: 2^-8 of the value), and the tensor cores' float32 sums: K / 8 additions that lose at most
 * 2^-23 of what has been summed, so K / 8 * 2^-23 of the sum of |w x|. A product that is left out,
 * doubled or misplaced is of the order of 1 / K of that sum: seen for every K here.
 *
 * test_cuda_fast [--time]: --time measures the shapes of Laguna XS 2.1 instead. */
#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/experts.cuh"
#include "engine/compute/cuda/fast.cuh"

extern "C" {
#include "engine/checkpoint/formats.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cuda_fault fault;
static struct cuda_device device;
static unsigned kernels;
static int checks;
#ifdef CUDA_EMULATED
static const bool emulated = true;
#else
static const bool emulated = false;
#endif

[[noreturn]] static void fail(const char *what, const char *why)
{
    fprintf(stderr, "test_cuda_fast: %s: %s\n", what, why);
    exit(1);
}

static void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fail(what, cudaGetErrorString(e));
}

static void settle(const char *what)
{
    if (fault.set)
        fail(what, fault.error.message);
    must(cudaDeviceSynchronize(), what);
}

static void *host_new(size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    if (p == NULL)
        fail("host memory", "there is no more");
    return p;
}

/* Filled with 0xff: what is read before it is written is a NaN. (The kernels' stream is the default
 * one too: nothing has to be waited for between the two.) */
static void *device_new(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes), "cudaMalloc");
    must(cudaMemset(p, 0xff, bytes), "cudaMemset");
    return p;
}

static void *device_copy(const void *from, size_t bytes)
{
    void *p = device_new(bytes);
    must(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
    return p;
}

static void read_back(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

static uint64_t random_state = 88172645463325252u;
static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static int random_below(int n)
{
    return (int)(random_bits() % (uint32_t)n);
}

static float random_float(void) /* about normal, sd 1 */
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random_bits() >> 8) / 16777216.0f - 0.5f;
    return sum * 1.7320508f;
}

static float bf16_round(float f)
{
    return bf16_to_f32(f32_to_bf16(f));
}

static uint16_t *random_bf16(size_t n, float scale)
{
    uint16_t *p = (uint16_t *)host_new(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = f32_to_bf16(random_float() * scale);
    return p;
}

static struct cuda_launch launch_new(void)
{
    struct cuda_launch l = {};
    l.fault = &fault;
    l.device = &device;
    l.fast = true;
    l.overlap = true;
    l.kernels = &kernels;
    return l;
}

/* ---- Layouts, as cuda.h words them ---- */

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* Place of input k in a row of lanes order, in elements; `blocks` of 32 to a group. */
static int lanes_place(int k, int blocks)
{
    const int block = k / 32, lane = k % 32 / 2;
    return block / blocks * blocks * 32 + lane * blocks * 2 + block % blocks * 2 + k % 2;
}

struct matrix {
    struct cuda_matrix device;
    float *value; /* [out, in], as the tensor cores take them */
    void *owned[3];
};

static void matrix_free(struct matrix *m)
{
    for (int i = 0; i < 3; i++)
        cudaFree(m->owned[i]);
    free(m->value);
}

static void matrix_take(struct matrix *m, const void *data, size_t data_bytes, const void *scales,
                        const void *biases, size_t scale_bytes)
{
    m->owned[0] = device_copy(data, data_bytes);
    m->owned[1] = scale_bytes > 0 ? device_copy(scales, scale_bytes) : NULL;
    m->owned[2] = biases != NULL ? device_copy(biases, scale_bytes) : NULL;
    m->device.data = (const uint8_t *)m->owned[0];
    m->device.scales = (const uint8_t *)m->owned[1];
    m->device.biases = (const uint8_t *)m->owned[2];
}

static struct matrix matrix_bf16(int out, int in)
{
    struct matrix m = {};
    const int padded = round_up(in, CUDA_BF16_GROUP);
    m.value = (float *)host_new(sizeof(float) * (size_t)out * (size_t)in);
    uint16_t *data = (uint16_t *)host_new(2 * (size_t)out * (size_t)padded);
    for (int o = 0; o < out; o++)
        for (int k = 0; k < in; k++) {
            const uint16_t b = f32_to_bf16(random_float() / sqrtf((float)in));
            m.value[(size_t)o * (size_t)in + (size_t)k] = bf16_to_f32(b);
            data[(size_t)o * (size_t)padded + (size_t)lanes_place(k, 4)] = b;
        }
    m.device.format = WEIGHT_BF16;
    m.device.out = out;
    m.device.in = in;
    m.device.padded = padded;
    m.device.row_bytes = 2 * (size_t)padded;
    matrix_take(&m, data, (size_t)out * m.device.row_bytes, NULL, NULL, 0);
    free(data);
    return m;
}

static struct matrix matrix_int8(int out, int in)
{
    struct matrix m = {};
    const int padded = round_up(in, CUDA_INT8_GROUP), blocks = padded / 32;
    m.value = (float *)host_new(sizeof(float) * (size_t)out * (size_t)in);
    uint8_t *data = (uint8_t *)host_new((size_t)out * (size_t)padded);
    uint16_t *scales = (uint16_t *)host_new(2 * (size_t)out * (size_t)blocks);
    uint16_t *biases = (uint16_t *)host_new(2 * (size_t)out * (size_t)blocks);
    for (int o = 0; o < out; o++) {
        for (int b = 0; b < in / 32; b++) {
            const float s = (0.5f + (float)(random_bits() >> 8) / 16777216.0f) / 128.0f;
            scales[o * blocks + b] = f32_to_bf16(s / sqrtf((float)in));
            biases[o * blocks + b] = f32_to_bf16(-128.0f * s / sqrtf((float)in));
        }
        for (int k = 0; k < in; k++) {
            const uint8_t code = (uint8_t)random_bits();
            const float scale = bf16_to_f32(scales[o * blocks + k / 32]);
            const float bias = bf16_to_f32(biases[o * blocks + k / 32]);
            /* exact in float64, almost always in float32: rounded once */
            m.value[(size_t)o * (size_t)in + (size_t)k] =
                bf16_round((float)((double)scale * code + (double)bias));
            data[(size_t)o * (size_t)padded + (size_t)lanes_place(k, 8)] = code;
        }
    }
    m.device.format = WEIGHT_INT8_AFFINE32;
    m.device.out = out;
    m.device.in = in;
    m.device.padded = padded;
    m.device.row_bytes = (size_t)padded;
    m.device.scale_bytes = 2 * (size_t)blocks;
    matrix_take(&m, data, (size_t)out * m.device.row_bytes, scales, biases,
                (size_t)out * m.device.scale_bytes);
    free(data);
    free(scales);
    free(biases);
    return m;
}

/* `count` matrices one after the other; scales of `first` .. `last` as bytes. */
static struct matrix matrix_nvfp4(int count, int out, int in, int first, int last)
{
    struct matrix m = {};
    const int padded = round_up(in, CUDA_NVFP4_GROUP), blocks = padded / 32;
    const size_t rows = (size_t)count * (size_t)out;
    m.value = (float *)host_new(sizeof(float) * rows * (size_t)in);
    uint8_t *data = (uint8_t *)host_new(rows * (size_t)padded / 2);
    uint8_t *scales = (uint8_t *)host_new(rows * (size_t)padded / 16);
    for (size_t o = 0; o < rows; o++) {
        for (int i = 0; i < (in + 15) / 16; i++) /* a group of 16: half a block */
            scales[o * (size_t)padded / 16 + (size_t)(i % 2 * blocks + i / 2)] =
                (uint8_t)(first + random_below(last - first + 1));
        for (int k = 0; k < in; k++) {
            const uint8_t code = (uint8_t)random_below(16);
            const int block = k / 32, lane = k % 32 / 2;
            const float scale =
                e4m3_values[scales[o * (size_t)padded / 16 + (size_t)(lane / 8 * blocks + block)]];
            m.value[o * (size_t)in + (size_t)k] = e2m1_values[code] * scale;
            data[o * (size_t)padded / 2 + (size_t)(block / 16 * 256 + lane * 16 + block % 16)] |=
                (uint8_t)(code << 4 * (k % 2));
        }
    }
    m.device.format = WEIGHT_NVFP4;
    m.device.out = out;
    m.device.in = in;
    m.device.padded = padded;
    m.device.row_bytes = (size_t)padded / 2;
    m.device.scale_bytes = (size_t)padded / 16;
    matrix_take(&m, data, rows * m.device.row_bytes, scales, NULL, rows * m.device.scale_bytes);
    free(data);
    free(scales);
    return m;
}

static struct cuda_experts experts_of(const struct matrix *m, int count)
{
    struct cuda_experts e = {};
    e.first = m->device;
    e.count = count;
    e.data_stride = (size_t)m->device.out * m->device.row_bytes;
    e.scale_stride = (size_t)m->device.out * m->device.scale_bytes;
    return e;
}

/* ---- Reference ---- */

/* The strict norm (numerics.md): 16 lanes, tree of halves. */
static void norm_row(const uint16_t *x, const uint16_t *w, int n, float eps, float *y)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(bf16_to_f32(x[i]), bf16_to_f32(x[i]), lane[i % 16]);
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    const float inverse = 1.0f / sqrtf(lane[0] / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = bf16_round(bf16_round(bf16_to_f32(x[i]) * inverse) * bf16_to_f32(w[i]));
}

static double dot(const float *w, const float *x, int n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < n; k++) {
        sum += (double)w[k] * (double)x[k];
        *size += fabs((double)w[k] * (double)x[k]);
    }
    return sum;
}

static void compare(const char *what, int row, int column, uint16_t got, double want, double most)
{
    const double v = (double)bf16_to_f32(got);
    checks++;
    if (fabs(v - want) <= most)
        return;
    char text[200];
    snprintf(text, sizeof text, "row %d, output %d: %.9g, should be %.9g within %.3g", row, column,
             v, want, most);
    fail(what, text);
}

/* ---- Linear ---- */

/* Of that much work the reference on the processor does a share, spread over rows and columns. */
static int share_of(double multiplications)
{
    return multiplications > 1e9 ? 17 : 1;
}

static void test_linear(struct matrix (*make)(int, int), const char *name, int rows, int out,
                        int in, bool norm, bool add)
{
    char what[120];
    snprintf(what, sizeof what, "%s, %d rows, %d x %d%s%s", name, rows, out, in,
             norm ? ", norm" : "", add ? ", add" : "");
    struct matrix m = make(out, in);
    /* strides wider than the rows, so that a row that runs over is seen */
    const int x_stride = in + (in % 3 == 0 ? 8 : 5), y_stride = out + (out % 2 == 0 ? 6 : 3);
    uint16_t *x = random_bf16((size_t)rows * (size_t)x_stride, 1.0f);
    uint16_t *w = random_bf16((size_t)in, 1.0f);
    uint16_t *before = random_bf16((size_t)rows * (size_t)y_stride, 1.0f);
    const size_t y_bytes = 2 * (size_t)rows * (size_t)y_stride;
    uint16_t *y[2] = {(uint16_t *)host_new(y_bytes), (uint16_t *)host_new(y_bytes)};
    void *dx = device_copy(x, 2 * (size_t)rows * (size_t)x_stride);
    void *dw = device_copy(w, 2 * (size_t)in);
    for (int run = 0; run < 2; run++) {
        void *dy = device_copy(before, y_bytes);
        struct cuda_linear a = {};
        a.w = &m.device;
        a.x = (const uint16_t *)dx;
        a.x_stride = (size_t)x_stride;
        a.norm = norm ? (const uint16_t *)dw : NULL;
        a.eps = 1e-6f;
        a.rows = rows;
        a.y = (uint16_t *)dy;
        a.y_stride = (size_t)y_stride;
        a.add = add;
        const struct cuda_launch l = launch_new();
        if (!cuda_linear_fast(&l, &a))
            fail(what, "not taken");
        settle(what);
        read_back(y[run], dy, y_bytes);
        cudaFree(dy);
    }
    if (memcmp(y[0], y[1], y_bytes) != 0)
        fail(what, "another run gives other bytes");
    float *row = (float *)host_new(sizeof(float) * (size_t)in);
    const int share = share_of((double)rows * out * in);
    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)r * (size_t)x_stride;
        if (norm)
            norm_row(x + at, w, in, 1e-6f, row);
        else
            for (int k = 0; k < in; k++)
                row[k] = bf16_to_f32(x[at + (size_t)k]);
        for (int o = 0; o < y_stride; o++) {
            const size_t to = (size_t)r * (size_t)y_stride + (size_t)o;
            if (o >= out) {
                if (y[0][to] != before[to])
                    fail(what, "wrote beyond its outputs");
                continue;
            }
            if ((o + r) % share != 0)
                continue;
            double size;
            double want = dot(m.value + (size_t)o * (size_t)in, row, in, &size);
            double most = fabs(want) / 255 + in / 8.0 / 8388608 * size;
            if (add) {
                want += (double)bf16_to_f32(before[to]);
                most += fabs(want) / 255;
            }
            compare(what, r, o, y[0][to], want, most);
        }
    }
    free(row);
    free(x);
    free(w);
    free(before);
    free(y[0]);
    free(y[1]);
    cudaFree(dx);
    cudaFree(dw);
    matrix_free(&m);
}

static void test_linears(void)
{
    static const struct {
        int rows, out, in;
    } shapes[] = {{17, 7, 32},    {33, 100, 160},  {17, 128, 512}, {100, 48, 96},
                  {65, 130, 288}, {129, 257, 256}, {33, 1, 640}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int add = 0; add < 2; add++) {
            const int rows = shapes[i].rows, out = shapes[i].out, in = shapes[i].in;
            const bool norm = (i + (size_t)add) % 2 == 0;
            test_linear(matrix_bf16, "bf16", rows, out, in, norm, add);
            test_linear(matrix_int8, "int8", rows, out, in, norm, add);
        }
    /* The larger tiles: what picks them is in linear_choose. */
    test_linear(matrix_bf16, "bf16, middle tiles", 17, 79 * 128 + 5, 96, true, false);
    test_linear(matrix_int8, "int8, middle tiles", 17, 79 * 128 + 5, 96, false, true);
    if (emulated) {
        test_linear(matrix_bf16, "bf16, large tiles", 17, 199 * 128 + 2, 96, false, true);
        test_linear(matrix_int8, "int8, large tiles", 17, 199 * 128 + 2, 96, true, false);
        return;
    }
    for (int add = 0; add < 2; add++) {
        test_linear(matrix_bf16, "bf16", 512, 6500, 2048, true, add);
        test_linear(matrix_int8, "int8", 512, 6500, 2048, true, add);
        test_linear(matrix_bf16, "bf16", 300, 2048, 6144, false, add);
        test_linear(matrix_int8, "int8", 300, 2048, 6144, false, add);
    }
}

/* ---- Experts ---- */

struct entries {
    int rows, experts, top_k, shared;
    int *start, *row_of, *entry_of;
    int entries;
};

/* Random choices, some experts never chosen, expert 0 by every row when `crowd`. */
static struct entries entries_new(int rows, int experts, int top_k, bool shared, bool crowd)
{
    struct entries e = {};
    e.rows = rows;
    e.experts = experts;
    e.top_k = top_k;
    e.shared = shared ? 1 : 0;
    e.entries = rows * (top_k + e.shared);
    e.start = (int *)host_new(sizeof(int) * (size_t)(experts + 2));
    e.row_of = (int *)host_new(sizeof(int) * (size_t)e.entries);
    e.entry_of = (int *)host_new(sizeof(int) * (size_t)(rows * top_k));
    int *chosen = (int *)host_new(sizeof(int) * (size_t)(rows * top_k));
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < top_k; i++) {
            bool taken;
            do {
                chosen[r * top_k + i] = crowd && i == 0 ? 0 : random_below(experts);
                taken = false;
                for (int j = 0; j < i; j++)
                    taken = taken || chosen[r * top_k + j] == chosen[r * top_k + i];
            } while (taken);
        }
    int at = 0;
    for (int x = 0; x < experts; x++) {
        e.start[x] = at;
        for (int i = 0; i < rows * top_k; i++)
            if (chosen[i] == x) {
                e.entry_of[i] = at;
                e.row_of[at++] = i / top_k;
            }
    }
    e.start[experts] = at;
    for (int r = 0; shared && r < rows; r++)
        e.row_of[at++] = r;
    e.start[experts + 1] = at;
    free(chosen);
    return e;
}

static void entries_free(struct entries *e)
{
    free(e->start);
    free(e->row_of);
    free(e->entry_of);
}

/* Inputs are small whole numbers and the scales of gate and up multiples of 2^-9 below 2^-5: every
 * sum is exact in float32, so that gate, up and what silu makes of them are the strict bits and
 * only down's sums may differ. */
static void test_experts(int rows, int hidden, int width, int experts, int top_k, bool shared,
                         bool crowd)
{
    char what[120];
    snprintf(what, sizeof what, "experts, %d rows, hidden %d, width %d, %d of %d%s%s", rows, hidden,
             width, top_k, experts, shared ? ", shared" : "", crowd ? ", crowded" : "");
    const int all = experts + (shared ? 1 : 0);
    struct matrix gate = matrix_nvfp4(all, width, hidden, 0, 15);
    struct matrix up = matrix_nvfp4(all, width, hidden, 0, 15);
    struct matrix down = matrix_nvfp4(all, hidden, width, 0, 0x7f);
    struct entries e = entries_new(rows, experts, top_k, shared, crowd);
    uint16_t *x = (uint16_t *)host_new(2 * (size_t)rows * (size_t)hidden);
    for (int i = 0; i < rows * hidden; i++)
        x[i] = f32_to_bf16((float)(random_below(9) - 4));
    void *dx = device_copy(x, 2 * (size_t)rows * (size_t)hidden);
    void *d_start = device_copy(e.start, sizeof(int) * (size_t)(experts + 2));
    void *d_row_of = device_copy(e.row_of, sizeof(int) * (size_t)e.entries);
    struct ffn_block block = {};
    struct cuda_ffn ffn = {};
    ffn.block = &block;
    ffn.gate = experts_of(&gate, all);
    ffn.up = experts_of(&up, all);
    ffn.down = experts_of(&down, all);
    ffn.shared_inside = shared;
    struct cuda_ffn_run run = {};
    run.w = &ffn;
    run.hidden = hidden;
    run.rows = rows;
    const size_t bytes = 2 * (size_t)e.entries * (size_t)hidden;
    uint16_t *y[2] = {(uint16_t *)host_new(bytes), (uint16_t *)host_new(bytes)};
    for (int i = 0; i < 2; i++) {
        struct cuda_experts_sorted s = {};
        s.rows = rows;
        s.hidden = hidden;
        s.width = width;
        s.experts = experts;
        s.top_k = top_k;
        s.entries = e.entries;
        s.start = (const int *)d_start;
        s.row_of = (const int *)d_row_of;
        s.normed = (const uint16_t *)dx;
        s.out = (uint16_t *)device_new(bytes);
        const struct cuda_launch l = launch_new();
        if (!cuda_experts_fast(&l, &run, &s))
            fail(what, "not taken");
        settle(what);
        read_back(y[i], s.out, bytes);
        cudaFree(s.out);
    }
    if (memcmp(y[0], y[1], bytes) != 0)
        fail(what, "another run gives other bytes");
    float *in = (float *)host_new(sizeof(float) * (size_t)hidden);
    float *inner = (float *)host_new(sizeof(float) * (size_t)width);
    const int share = share_of((double)e.entries * 3 * width * hidden);
    for (int x_ = 0; x_ < all; x_++)
        for (int p = e.start[x_]; p < e.start[x_ + 1]; p++) {
            double size;
            if (p % share != 0 && p != e.start[x_] && p + 1 != e.start[x_ + 1])
                continue;
            for (int k = 0; k < hidden; k++)
                in[k] = bf16_to_f32(x[(size_t)e.row_of[p] * (size_t)hidden + (size_t)k]);
            for (int o = 0; o < width; o++) {
                const size_t at = ((size_t)x_ * (size_t)width + (size_t)o) * (size_t)hidden;
                const float g = bf16_round((float)dot(gate.value + at, in, hidden, &size));
                const float u = bf16_round((float)dot(up.value + at, in, hidden, &size));
                /* numerics.md's sigmoid is within 2 ulp of this one, and rounded to bf16 */
                const float s = bf16_round((float)(1.0 / (1.0 + exp(-(double)g))));
                inner[o] = bf16_round(bf16_round(g * s) * u);
            }
            for (int o = 0; o < hidden; o++) {
                const size_t at = ((size_t)x_ * (size_t)hidden + (size_t)o) * (size_t)width;
                const double want = dot(down.value + at, inner, width, &size);
                compare(what, p, o, y[0][(size_t)p * (size_t)hidden + (size_t)o], want,
                        fabs(want) / 255 + width / 8.0 / 8388608 * size);
            }
        }
    free(in);
    free(inner);
    free(x);
    free(y[0]);
    free(y[1]);
    cudaFree(dx);
    cudaFree(d_start);
    cudaFree(d_row_of);
    entries_free(&e);
    matrix_free(&gate);
    matrix_free(&up);
    matrix_free(&down);
}

static void test_all_experts(void)
{
    test_experts(17, 512, 512, 3, 2, true, false);
    test_experts(70, 64, 32, 4, 2, true, true);
    test_experts(33, 96, 160, 5, 3, false, false);
    test_experts(40, 544, 96, 9, 1, true, false);
    if (emulated)
        return;
    test_experts(100, 2048, 512, 16, 4, true, true);
    test_experts(512, 1024, 512, 32, 8, true, false);
}

/* ---- Attention ---- */

static void test_attention(int rows, int heads, int kv_heads, int dim, int window, int64_t pos0,
                           int64_t capacity)
{
    char what[120];
    snprintf(what, sizeof what, "attention, %d rows at %lld, %d/%d heads of %d, window %d", rows,
             (long long)pos0, heads, kv_heads, dim, window);
    const int key_stride = round_up(dim, CUDA_BF16_GROUP), value_stride = round_up(dim, 8);
    const size_t slots = (size_t)kv_heads * (size_t)capacity;
    /* positions that nothing has written stay NaN */
    uint16_t *keys = (uint16_t *)host_new(2 * slots * (size_t)key_stride);
    uint16_t *values = (uint16_t *)host_new(2 * slots * (size_t)value_stride);
    memset(keys, 0xff, 2 * slots * (size_t)key_stride);
    memset(values, 0xff, 2 * slots * (size_t)value_stride);
    const int64_t end = pos0 + rows, held = end < capacity ? 0 : end - capacity;
    for (int h = 0; h < kv_heads; h++)
        for (int64_t p = held; p < end; p++) {
            const size_t slot = (size_t)h * (size_t)capacity + (size_t)(p % capacity);
            for (int d = 0; d < key_stride; d++)
                keys[slot * (size_t)key_stride + (size_t)lanes_place(d, 4)] =
                    d < dim ? f32_to_bf16(random_float()) : (uint16_t)0;
            for (int d = 0; d < dim; d++)
                values[slot * (size_t)value_stride + (size_t)d] = f32_to_bf16(random_float());
        }
    const int stride = heads * dim + 2 * kv_heads * dim + heads;
    uint16_t *q = random_bf16((size_t)rows * (size_t)(heads * dim), 1.0f);
    uint16_t *projected = random_bf16((size_t)rows * (size_t)stride, 1.0f);
    const size_t bytes = 2 * (size_t)rows * (size_t)(heads * dim);
    uint16_t *y[2] = {(uint16_t *)host_new(bytes), (uint16_t *)host_new(bytes)};
    struct attention_block block = {};
    block.heads = heads;
    block.kv_heads = kv_heads;
    block.head_dim = dim;
    block.window = window;
    struct cuda_attention w = {};
    w.block = &block;
    struct kv_layer kv = {};
    kv.kv_heads = kv_heads;
    kv.head_dim = dim;
    kv.capacity = capacity;
    kv.key_stride = key_stride;
    kv.value_stride = value_stride;
    kv.keys = (uint16_t *)device_copy(keys, 2 * slots * (size_t)key_stride);
    kv.values = (uint16_t *)device_copy(values, 2 * slots * (size_t)value_stride);
    void *dq = device_copy(q, bytes);
    void *dp = device_copy(projected, 2 * (size_t)rows * (size_t)stride);
    const struct cuda_step step = {pos0, rows};
    struct cuda_step *d_step = (struct cuda_step *)device_copy(&step, sizeof step);
    for (int i = 0; i < 2; i++) {
        struct cuda_attend a = {};
        a.w = &w;
        a.kv = &kv;
        a.projected = (const uint16_t *)dp;
        a.projected_stride = (size_t)stride;
        a.rows = rows;
        a.out = (uint16_t *)device_new(bytes);
        struct cuda_launch l = launch_new();
        l.step = d_step;
        if (!cuda_attend_fast_takes(heads, kv_heads, dim))
            fail(what, "not taken");
        cuda_attend_fast(&l, &a, (const uint16_t *)dq);
        settle(what);
        read_back(y[i], a.out, bytes);
        cudaFree(a.out);
    }
    if (memcmp(y[0], y[1], bytes) != 0)
        fail(what, "another run gives other bytes");
    double *score = (double *)host_new(sizeof(double) * (size_t)end);
    const int share = share_of((double)rows * heads * (double)(end - held) * 2 * dim);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++) {
            if ((r + h) % share != 0)
                continue;
            const int64_t last = pos0 + r;
            const int64_t first = window > 0 && last >= window ? last - window + 1 : 0;
            const size_t ring = (size_t)(h / (heads / kv_heads)) * (size_t)capacity;
            const uint16_t *qh = q + ((size_t)r * (size_t)heads + (size_t)h) * (size_t)dim;
            double most = -INFINITY, sum = 0;
            for (int64_t p = first; p <= last; p++) {
                double s = 0;
                for (int d = 0; d < dim; d++)
                    s += (double)bf16_to_f32(qh[d]) *
                         (double)bf16_to_f32(
                             keys[(ring + (size_t)(p % capacity)) * (size_t)key_stride +
                                  (size_t)lanes_place(d, 4)]);
                score[p] = s / sqrt((double)dim);
                most = score[p] > most ? score[p] : most;
            }
            for (int64_t p = first; p <= last; p++) {
                score[p] = exp(score[p] - most);
                sum += score[p];
            }
            const float z = bf16_to_f32(
                projected[(size_t)r * (size_t)stride + (size_t)((heads + 2 * kv_heads) * dim + h)]);
            const double gate = (double)bf16_round((float)log1p(exp((double)z)));
            for (int d = 0; d < dim; d++) {
                double o = 0, size = 0;
                for (int64_t p = first; p <= last; p++) {
                    const double v = (double)bf16_to_f32(
                        values[(ring + (size_t)(p % capacity)) * (size_t)value_stride + (size_t)d]);
                    o += score[p] / sum * v;
                    size += score[p] / sum * fabs(v);
                }
                /* probabilities rounded above and below the fraction: 2 * 2^-8 of the weighted
                 * |v|, scores within 2^-16; the output's and the gate's product's roundings */
                compare(what, r, h * dim + d,
                        y[0][((size_t)r * (size_t)heads + (size_t)h) * (size_t)dim + (size_t)d],
                        o * gate, (size / 125 + fabs(o) / 125) * gate);
            }
        }
    free(score);
    free(keys);
    free(values);
    free(q);
    free(projected);
    free(y[0]);
    free(y[1]);
    cudaFree(kv.keys);
    cudaFree(kv.values);
    cudaFree(dq);
    cudaFree(dp);
    cudaFree(d_step);
}

static void test_attentions(void)
{
    test_attention(17, 4, 2, 128, 0, 0, 64);
    test_attention(33, 6, 2, 32, 0, 100, 140);
    test_attention(20, 3, 1, 48, 24, 200, 50); /* the ring wraps; smaller than a step */
    test_attention(40, 4, 4, 64, 70, 60, 120);
    test_attention(17, 2, 1, 192, 16, 5, 40);
    test_attention(18, 1, 1, 20, 0, 3, 21);
    if (emulated)
        return;
    test_attention(512, 48, 8, 128, 0, 0, 1024);
    test_attention(300, 64, 8, 128, 512, 700, 1024);
    test_attention(100, 64, 8, 128, 0, 2000, 4096);
}

/* ---- Times ---- */

#ifndef CUDA_EMULATED
static cudaEvent_t event_from, event_to;

/* Of one call, in microseconds, after a call that warms up. */
template <typename F> static double time_of(int times, F f)
{
    f();
    must(cudaEventRecord(event_from), "event");
    for (int i = 0; i < times; i++)
        f();
    must(cudaEventRecord(event_to), "event");
    settle("timing");
    float ms;
    must(cudaEventElapsedTime(&ms, event_from, event_to), "event");
    return (double)ms * 1000 / times;
}

/* Random bytes are weights enough to measure with; bf16 ones are kept finite and small. */
static __global__ void fill(uint32_t *p, size_t n, uint32_t keep, uint32_t put)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t v = (uint32_t)i * 2654435761u;
        v ^= v >> 15;
        v *= 2246822519u;
        v ^= v >> 13;
        p[i] = (v & keep) | put;
    }
}

static void *filled(size_t bytes, uint32_t keep, uint32_t put)
{
    void *p = device_new(bytes);
    fill<<<1024, 256>>>((uint32_t *)p, bytes / 4, keep, put);
    must(cudaGetLastError(), "fill");
    return p;
}

static void *filled_bf16(size_t elements) /* +-1 .. 2 */
{
    return filled(2 * elements, 0x807f807fu, 0x3f803f80u);
}

static double time_linear(const char *name, enum weight_format format, int rows, int out, int in,
                          bool norm, bool add)
{
    enum { COPIES = 6 };
    struct cuda_matrix m[COPIES] = {};
    const bool int8 = format == WEIGHT_INT8_AFFINE32;
    for (int i = 0; i < COPIES; i++) {
        m[i].format = format;
        m[i].out = out;
        m[i].in = in;
        m[i].padded = round_up(in, int8 ? CUDA_INT8_GROUP : CUDA_BF16_GROUP);
        m[i].row_bytes = (size_t)m[i].padded * (int8 ? 1 : 2);
        m[i].scale_bytes = int8 ? (size_t)m[i].padded / 16 : 0;
        m[i].data = (const uint8_t *)(int8 ? filled((size_t)out * m[i].row_bytes, ~0u, 0)
                                           : filled_bf16((size_t)out * (size_t)m[i].padded));
        m[i].scales = int8 ? (const uint8_t *)filled_bf16((size_t)out * m[i].scale_bytes) : NULL;
        m[i].biases = int8 ? (const uint8_t *)filled_bf16((size_t)out * m[i].scale_bytes) : NULL;
    }
    struct cuda_linear a = {};
    a.x = (const uint16_t *)filled_bf16((size_t)rows * (size_t)in);
    a.x_stride = (size_t)in;
    a.norm = norm ? (const uint16_t *)filled_bf16((size_t)in) : NULL;
    a.eps = 1e-6f;
    a.rows = rows;
    a.y = (uint16_t *)filled_bf16((size_t)rows * (size_t)out);
    a.y_stride = (size_t)out;
    a.add = add;
    const struct cuda_launch l = launch_new();
    int i = 0;
    const double us = time_of(24, [&] {
        a.w = &m[i++ % COPIES];
        cuda_linear_fast(&l, &a);
    });
    /* the rows alone */
    struct fast_rows f = {};
    f.x = a.x;
    f.x_stride = a.x_stride;
    f.norm = a.norm;
    f.eps = a.eps;
    f.rows = rows;
    f.in = in;
    f.padded = m[0].padded;
    f.order = int8 ? FAST_ORDER_INT8 : FAST_ORDER_BF16;
    f.out = (uint16_t *)fast_scratch(&l, 2 * (size_t)rows * (size_t)f.padded);
    const double rows_us = time_of(24, [&] { fast_rows_prepare(&l, &f); });
    printf("%-22s %4d rows  %6d x %5d  %8.1f us (rows %.1f)  %6.1f TFLOP/s\n", name, rows, out, in,
           us, rows_us, 2e-6 * rows * out * in / us);
    cudaFree((void *)(uintptr_t)a.x);
    cudaFree((void *)(uintptr_t)a.norm);
    cudaFree(a.y);
    for (int c = 0; c < COPIES; c++) {
        cudaFree((void *)(uintptr_t)m[c].data);
        cudaFree((void *)(uintptr_t)m[c].scales);
        cudaFree((void *)(uintptr_t)m[c].biases);
    }
    return us;
}

static struct cuda_experts timed_experts(int count, int out, int in)
{
    struct cuda_experts e = {};
    e.count = count;
    e.first.format = WEIGHT_NVFP4;
    e.first.out = out;
    e.first.in = in;
    e.first.padded = round_up(in, CUDA_NVFP4_GROUP);
    e.first.row_bytes = (size_t)e.first.padded / 2;
    e.first.scale_bytes = (size_t)e.first.padded / 16;
    e.data_stride = (size_t)out * e.first.row_bytes;
    e.scale_stride = (size_t)out * e.first.scale_bytes;
    e.first.data = (const uint8_t *)filled((size_t)count * e.data_stride, ~0u, 0);
    e.first.scales =
        (const uint8_t *)filled((size_t)count * e.scale_stride, 0x07070707u, 0x20202020u);
    return e;
}

static double time_experts(int rows, int experts)
{
    const int hidden = 2048, width = 512, top_k = 8;
    struct entries e = entries_new(rows, experts, top_k, true, false);
    struct ffn_block block = {};
    struct cuda_ffn ffn = {};
    ffn.block = &block;
    ffn.gate = timed_experts(experts + 1, width, hidden);
    ffn.up = timed_experts(experts + 1, width, hidden);
    ffn.down = timed_experts(experts + 1, hidden, width);
    ffn.shared_inside = true;
    struct cuda_ffn_run run = {};
    run.w = &ffn;
    run.hidden = hidden;
    run.rows = rows;
    struct cuda_experts_sorted s = {};
    s.rows = rows;
    s.hidden = hidden;
    s.width = width;
    s.experts = experts;
    s.top_k = top_k;
    s.entries = e.entries;
    s.start = (const int *)device_copy(e.start, sizeof(int) * (size_t)(experts + 2));
    s.row_of = (const int *)device_copy(e.row_of, sizeof(int) * (size_t)e.entries);
    s.normed = (const uint16_t *)filled_bf16((size_t)rows * (size_t)hidden);
    s.out = (uint16_t *)device_new(2 * (size_t)e.entries * (size_t)hidden);
    const struct cuda_launch l = launch_new();
    const double us = time_of(12, [&] { cuda_experts_fast(&l, &run, &s); });
    const double bytes = (experts + 1) * 3.0 * hidden * width * 0.5625;
    printf("%-22s %4d rows  %6d of %4d  %8.1f us  %6.1f TFLOP/s  %6.0f GB/s of weights\n",
           "experts", rows, top_k + 1, experts, us, 6e-6 * e.entries * hidden * width / us,
           bytes / us * 1e-3);
    const struct cuda_experts *own[] = {&ffn.gate, &ffn.up, &ffn.down};
    for (int i = 0; i < 3; i++) {
        cudaFree((void *)(uintptr_t)own[i]->first.data);
        cudaFree((void *)(uintptr_t)own[i]->first.scales);
    }
    cudaFree((void *)(uintptr_t)s.start);
    cudaFree((void *)(uintptr_t)s.row_of);
    cudaFree((void *)(uintptr_t)s.normed);
    cudaFree(s.out);
    entries_free(&e);
    return us;
}

static double time_attention(int rows, int heads, int window, int64_t pos0)
{
    const int kv_heads = 8, dim = 128;
    const int64_t capacity = window > 0 ? 1024 : pos0 + rows;
    struct attention_block block = {};
    block.heads = heads;
    block.kv_heads = kv_heads;
    block.head_dim = dim;
    block.window = window;
    struct cuda_attention w = {};
    w.block = &block;
    struct kv_layer kv = {};
    kv.kv_heads = kv_heads;
    kv.head_dim = dim;
    kv.capacity = capacity;
    kv.key_stride = kv.value_stride = dim;
    kv.keys = (uint16_t *)filled_bf16((size_t)(capacity * kv_heads * dim));
    kv.values = (uint16_t *)filled_bf16((size_t)(capacity * kv_heads * dim));
    const struct cuda_step step = {pos0, rows};
    struct cuda_attend a = {};
    a.w = &w;
    a.kv = &kv;
    a.projected_stride = (size_t)(heads * dim + 2 * kv_heads * dim + heads);
    a.projected = (const uint16_t *)filled_bf16((size_t)rows * a.projected_stride);
    a.rows = rows;
    a.out = (uint16_t *)device_new(2 * (size_t)(rows * heads * dim));
    uint16_t *q = (uint16_t *)filled_bf16((size_t)(rows * heads * dim));
    struct cuda_launch l = launch_new();
    l.step = (const struct cuda_step *)device_copy(&step, sizeof step);
    const double us = time_of(24, [&] { cuda_attend_fast(&l, &a, q); });
    double flops = 0;
    for (int r = 0; r < rows; r++) {
        const int64_t seen = pos0 + r + 1;
        flops += 4.0 * heads * dim * (double)(window > 0 && seen > window ? window : seen);
    }
    printf("%-22s %4d rows  at %5lld, %d heads, window %3d  %8.1f us  %6.1f TFLOP/s\n", "attention",
           rows, (long long)pos0, heads, window, us, flops * 1e-6 / us);
    cudaFree(kv.keys);
    cudaFree(kv.values);
    cudaFree((void *)(uintptr_t)a.projected);
    cudaFree(a.out);
    cudaFree(q);
    cudaFree((void *)(uintptr_t)l.step);
    return us;
}

static void time_all(void)
{
    must(cudaEventCreate(&event_from), "event");
    must(cudaEventCreate(&event_to), "event");
    printf("%s, %d multiprocessors\n", device.name, device.multiprocessors);
    for (int int8 = 0; int8 < 2; int8++) {
        const enum weight_format f = int8 ? WEIGHT_INT8_AFFINE32 : WEIGHT_BF16;
        const char *kind = int8 ? "int8" : "bf16";
        const double wide = time_linear(kind, f, 512, 10304, 2048, true, false);
        const double narrow = time_linear(kind, f, 512, 8240, 2048, true, false);
        const double out_wide = time_linear(kind, f, 512, 2048, 8192, false, true);
        const double out_narrow = time_linear(kind, f, 512, 2048, 6144, false, true);
        printf("%s attention's projections of 40 layers: %.2f ms\n", kind,
               (30 * (wide + out_wide) + 10 * (narrow + out_narrow)) / 1000);
    }
    const double up = time_linear("bf16 dense", WEIGHT_BF16, 512, 8192, 2048, true, false);
    const double down = time_linear("bf16 dense", WEIGHT_BF16, 512, 2048, 8192, false, true);
    time_linear("bf16 fc", WEIGHT_BF16, 512, 2048, 10240, false, false);
    time_linear("bf16 few rows", WEIGHT_BF16, 32, 10304, 2048, true, false);
    time_linear("bf16 few rows", WEIGHT_BF16, 32, 2048, 8192, false, true);
    time_linear("bf16 few rows", WEIGHT_BF16, 128, 2048, 8192, false, true);
    const double experts = time_experts(512, 256);
    time_experts(128, 256);
    time_experts(32, 256);
    const double window = time_attention(512, 64, 512, 0);
    const double full = time_attention(512, 48, 0, 0);
    time_attention(512, 64, 512, 8192);
    time_attention(512, 48, 0, 8192);
    printf("dense %.2f ms, experts of 39 layers %.2f ms, attention of 40 layers %.2f ms\n",
           (2 * up + down) / 1000, 39 * experts / 1000, (30 * window + 10 * full) / 1000);
}
#endif

int main(int argc, char **argv)
{
    struct error err = {};
    if (!cuda_device_open(&device, &err))
        fail("the device", err.message);
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
#ifndef CUDA_EMULATED
        time_all();
        return 0;
#else
        fail("--time", "needs a GPU");
#endif
    }
    test_linears();
    printf("linear: %d values within their tolerances\n", checks);
    test_all_experts();
    printf("experts: %d\n", checks);
    test_attentions();
    printf("attention: %d, all the same twice\n", checks);
    cuda_fast_free(NULL);
    if (fault.set)
        fail("the end", fault.error.message);
    return 0;
}
