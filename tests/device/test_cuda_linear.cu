/* Linear layers and the head on the device against the CPU's kernels, byte for byte, with weights
 * brought into lanes order here from the words of cuda.h.
 *
 *     test_cuda_linear            the checks
 *     test_cuda_linear --time     the real shapes: time, rate, share of what plain reading gives
 *     test_cuda_linear --tune     the same for the ways in which few rows can be cut
 */
#include "engine/compute/cuda/linear.cuh"

extern "C" {
#include "base/error.h"
#include "engine/checkpoint/formats.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        checks++;                                                                                  \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

static struct cuda_fault fault;
static struct cuda_device device;
static cudaStream_t stream;
static unsigned kernels;

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static void *device_new(size_t bytes)
{
    void *p = NULL;
    must(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    return p;
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

static void finish(void)
{
    must(cudaStreamSynchronize(stream), "the kernels");
    if (fault.set) {
        printf("%s: %s\n", fault.error.name, fault.error.message);
        exit(1);
    }
}

static uint64_t seed = 20261130;

static uint32_t random32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* About a bell curve, so that sums neither vanish nor run away. */
static float random_value(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(random32() >> 8) / 16777216.0f - 0.5f;
    return sum;
}

static uint16_t random_bf16(void)
{
    const uint32_t kind = random32() % 64;
    if (kind == 0)
        return (uint16_t)(random32() & 0x8000u);
    if (kind == 1) /* a wide range */
        return f32_to_bf16(ldexpf(random_value(), (int)(random32() % 40) - 20));
    return f32_to_bf16(random_value());
}

/* ---- Weights ---- */

struct host_matrix {
    struct weight_matrix w;
    uint8_t *data, *scales, *biases;
};

static struct host_matrix matrix_new(enum weight_format format, int out, int in)
{
    struct host_matrix m = {};
    const size_t n = (size_t)out * (size_t)in;
    m.w.format = format;
    m.w.out = out;
    m.w.in = in;
    if (format == WEIGHT_BF16) {
        m.data = (uint8_t *)malloc(n * 2);
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)m.data)[i] = random_bf16();
    } else if (format == WEIGHT_INT8_AFFINE32) {
        m.data = (uint8_t *)malloc(n);
        m.scales = (uint8_t *)malloc(n / 16);
        m.biases = (uint8_t *)malloc(n / 16);
        for (size_t i = 0; i < n; i++)
            m.data[i] = (uint8_t)random32();
        for (size_t i = 0; i < n / 32; i++) {
            ((uint16_t *)m.scales)[i] = f32_to_bf16(random_value() / 100.0f);
            ((uint16_t *)m.biases)[i] = f32_to_bf16(random_value());
        }
    } else {
        m.data = (uint8_t *)malloc(n / 2);
        m.scales = (uint8_t *)malloc(n / 16);
        for (size_t i = 0; i < n / 2; i++)
            m.data[i] = (uint8_t)random32();
        for (size_t i = 0; i < n / 16; i++) /* every scale that there is */
            m.scales[i] = (uint8_t)random32();
    }
    m.w.data = m.data;
    m.w.scales = m.scales;
    m.w.biases = m.biases;
    return m;
}

static void matrix_free(struct host_matrix *m)
{
    free(m->data);
    free(m->scales);
    free(m->biases);
}

/* A copy on the device in lanes order. */
static struct cuda_matrix matrix_upload(const struct weight_matrix *w)
{
    struct cuda_matrix m = {};
    const int group = w->format == WEIGHT_BF16            ? CUDA_BF16_GROUP
                      : w->format == WEIGHT_INT8_AFFINE32 ? CUDA_INT8_GROUP
                                                          : CUDA_NVFP4_GROUP;
    m.format = w->format;
    m.out = w->out;
    m.in = w->in;
    m.padded = (w->in + group - 1) / group * group;
    m.row_bytes = (size_t)(m.padded / group) * 256;
    const int blocks = m.padded / 32;
    if (w->format == WEIGHT_INT8_AFFINE32)
        m.scale_bytes = (size_t)blocks * 2;
    else if (w->format == WEIGHT_NVFP4)
        m.scale_bytes = (size_t)blocks * 2;
    const size_t bytes = m.row_bytes * (size_t)m.out, scale = m.scale_bytes * (size_t)m.out;
    uint8_t *data = (uint8_t *)calloc(bytes + 1, 1), *scales = (uint8_t *)calloc(scale + 1, 1);
    uint8_t *biases = (uint8_t *)calloc(scale + 1, 1);
    for (int o = 0; o < w->out; o++) {
        uint8_t *row = data + (size_t)o * m.row_bytes;
        for (int k = 0; k < w->in; k++) {
            const size_t at = (size_t)o * (size_t)w->in + (size_t)k;
            const int b = k / 32, lane = k % 32 / 2, part = k % 2, g = k / group;
            if (w->format == WEIGHT_BF16)
                ((uint16_t *)row)[((g * 16 + lane) * 4 + b % 4) * 2 + part] =
                    ((const uint16_t *)w->data)[at];
            else if (w->format == WEIGHT_INT8_AFFINE32)
                row[((g * 16 + lane) * 8 + b % 8) * 2 + part] = ((const uint8_t *)w->data)[at];
            else
                row[(g * 16 + lane) * 16 + b % 16] |=
                    (uint8_t)((((const uint8_t *)w->data)[at / 2] >> 4 * part & 15) << 4 * part);
        }
        for (int b = 0; b < w->in / 32; b++) {
            const size_t from = (size_t)o * (size_t)(w->in / 32) + (size_t)b;
            const size_t to = (size_t)o * m.scale_bytes;
            if (w->format == WEIGHT_INT8_AFFINE32) {
                memcpy(scales + to + 2 * b, w->scales + 2 * from, 2);
                memcpy(biases + to + 2 * b, w->biases + 2 * from, 2);
            } else if (w->format == WEIGHT_NVFP4) {
                scales[to + (size_t)b] = w->scales[2 * from];
                scales[to + (size_t)(blocks + b)] = w->scales[2 * from + 1];
            }
        }
    }
    uint8_t *d = (uint8_t *)device_new(bytes), *s = (uint8_t *)device_new(scale);
    uint8_t *z = (uint8_t *)device_new(scale);
    must(cudaMemcpy(d, data, bytes, cudaMemcpyHostToDevice), "a matrix");
    must(cudaMemcpy(s, scales, scale, cudaMemcpyHostToDevice), "scales");
    must(cudaMemcpy(z, biases, scale, cudaMemcpyHostToDevice), "biases");
    m.data = d;
    m.scales = s;
    m.biases = z;
    free(data);
    free(scales);
    free(biases);
    return m;
}

static void matrix_release(struct cuda_matrix *m)
{
    cudaFree((void *)m->data);
    cudaFree((void *)m->scales);
    cudaFree((void *)m->biases);
}

/* ---- The CPU's answer ---- */

/* y[r * out + o] of rows of bf16, stride elements apart. */
static void reference(const struct weight_matrix *w, const uint16_t *x, int stride,
                      const uint16_t *norm, float eps, int rows, bool add, float *y)
{
    const struct cpu_kernels *k = &cpu_kernels_portable;
    const uint64_t mode = machine_float_enter();
    const int n = w->in, padded = kernel_pad(n, KERNEL_BLOCK);
    const size_t bytes = (size_t)padded * sizeof(float) + kernel_sums_bytes(n);
    uint8_t *prepared = (uint8_t *)calloc((size_t)rows, bytes);
    const void **pointers = (const void **)calloc((size_t)rows, sizeof *pointers);
    float *f = (float *)calloc((size_t)padded, sizeof(float));
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < n; i++)
            f[i] = bf16_to_f32(x[(size_t)r * (size_t)stride + (size_t)i]);
        if (norm != NULL)
            k->rms_norm(ACTIVATIONS_BF16, f, norm, n, eps, f);
        void *row = prepared + (size_t)r * bytes;
        k->prepare(ACTIVATIONS_BF16, f, n, row);
        if (w->format == WEIGHT_INT8_AFFINE32)
            k->group_sums(ACTIVATIONS_BF16, n, row);
        pointers[r] = row;
    }
    struct linear_call call = {};
    call.w = w;
    call.x = pointers;
    call.rows = rows;
    call.count = w->out;
    call.y = y;
    call.y_stride = (size_t)w->out;
    call.add = add;
    k->linear(ACTIVATIONS_BF16, &call);
    free(f);
    free(pointers);
    free(prepared);
    machine_float_leave(mode);
}

/* ---- Checks ---- */

static const char *format_name(enum weight_format f)
{
    return f == WEIGHT_BF16 ? "bf16" : f == WEIGHT_NVFP4 ? "nvfp4" : "int8";
}

enum { MOST_ROWS = 70 };

/* One matrix with several numbers of rows; stride_more: elements between the rows. */
static void check_linear(enum weight_format format, int out, int in, const int *rows, int counts,
                         bool with_norm, bool add, int stride_more)
{
    struct host_matrix m = matrix_new(format, out, in);
    struct cuda_matrix w = matrix_upload(&m.w);
    const int stride = in + stride_more, y_stride = out + 3;
    uint16_t *x = (uint16_t *)malloc((size_t)MOST_ROWS * (size_t)stride * 2);
    uint16_t *norm = (uint16_t *)malloc((size_t)in * 2);
    uint16_t *y = (uint16_t *)malloc((size_t)MOST_ROWS * (size_t)y_stride * 2);
    uint16_t *old = (uint16_t *)malloc((size_t)MOST_ROWS * (size_t)y_stride * 2);
    float *want = (float *)malloc((size_t)MOST_ROWS * (size_t)out * sizeof(float));
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)stride; i++)
        x[i] = random_bf16();
    for (int i = 0; i < in; i++)
        norm[i] = random_bf16();
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)y_stride; i++)
        old[i] = random_bf16();
    uint16_t *dx = (uint16_t *)device_new((size_t)MOST_ROWS * (size_t)stride * 2);
    uint16_t *dn = (uint16_t *)device_new((size_t)in * 2);
    uint16_t *dy = (uint16_t *)device_new((size_t)MOST_ROWS * (size_t)y_stride * 2);
    must(cudaMemcpy(dx, x, (size_t)MOST_ROWS * (size_t)stride * 2, cudaMemcpyHostToDevice), "x");
    must(cudaMemcpy(dn, norm, (size_t)in * 2, cudaMemcpyHostToDevice), "norm");
    const float eps = 1e-6f;
    for (int r = 0; r < MOST_ROWS; r++)
        for (int o = 0; o < out; o++)
            want[(size_t)r * (size_t)out + (size_t)o] =
                bf16_to_f32(old[(size_t)r * (size_t)y_stride + (size_t)o]);
    int most = 0;
    for (int i = 0; i < counts; i++)
        most = rows[i] > most ? rows[i] : most;
    reference(&m.w, x, stride, with_norm ? norm : NULL, eps, most, add, want);
    const struct cuda_launch l = launch_new();
    for (int i = 0; i < counts; i++) {
        must(cudaMemcpy(dy, old, (size_t)MOST_ROWS * (size_t)y_stride * 2, cudaMemcpyHostToDevice),
             "y");
        struct cuda_linear a = {};
        a.w = &w;
        a.x = dx;
        a.x_stride = (size_t)stride;
        a.norm = with_norm ? dn : NULL;
        a.eps = eps;
        a.rows = rows[i];
        a.y = dy;
        a.y_stride = (size_t)y_stride;
        a.add = add;
        cuda_linear(&l, &a);
        finish();
        must(cudaMemcpy(y, dy, (size_t)MOST_ROWS * (size_t)y_stride * 2, cudaMemcpyDeviceToHost),
             "y");
        int wrong = 0, first = -1, outside = 0;
        for (int r = 0; r < MOST_ROWS; r++) {
            for (int o = 0; o < y_stride; o++) {
                const size_t at = (size_t)r * (size_t)y_stride + (size_t)o;
                if (r < rows[i] && o < out) {
                    const float f = want[(size_t)r * (size_t)out + (size_t)o];
                    if (y[at] != f32_to_bf16(f) && wrong++ == 0)
                        first = (int)at;
                } else if (y[at] != old[at]) {
                    outside++;
                }
            }
        }
        CHECK(wrong == 0 && outside == 0,
              "%s %d x %d, %d rows%s%s, stride + %d: %d of %d differ, the first in row %d output "
              "%d; %d others written",
              format_name(format), out, in, rows[i], with_norm ? ", norm" : "", add ? ", add" : "",
              stride_more, wrong, rows[i] * out, first / y_stride, first % y_stride, outside);
    }
    cudaFree(dx);
    cudaFree(dn);
    cudaFree(dy);
    matrix_release(&w);
    matrix_free(&m);
    free(x);
    free(norm);
    free(y);
    free(old);
    free(want);
}

static void check_linears(void)
{
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64};
    static const int some[] = {1, 3, 8, 16, 17};
    static const enum weight_format formats[] = {WEIGHT_BF16, WEIGHT_INT8_AFFINE32, WEIGHT_NVFP4};
    enum { ALL = sizeof all / sizeof *all, SOME = sizeof some / sizeof *some };
    for (int f = 0; f < 3; f++) {
        check_linear(formats[f], 100, 256, all, ALL, true, false, 0);
        check_linear(formats[f], 48, 160, all, ALL, false, true, 32);
        for (int kind = 0; kind < 4; kind++) {
            const bool norm = kind % 2, add = kind / 2;
            check_linear(formats[f], 1, 32, some, SOME, norm, add, 0);
            check_linear(formats[f], 7, 96, some, SOME, norm, add, 16);
            check_linear(formats[f], 17, 2048, some, SOME, norm, add, 0);
        }
        check_linear(formats[f], 9, 6144, some, SOME, false, true, 0);
        check_linear(formats[f], 5, 8192, some, SOME, true, false, 0);
        check_linear(formats[f], 5, 10240, some, SOME, false, false, 0);
    }
    /* more outputs than 40 for each multiprocessor: the other way of cutting them */
    check_linear(WEIGHT_BF16, 40 * device.multiprocessors + 5, 64, all, ALL, true, false, 0);
    check_linear(WEIGHT_INT8_AFFINE32, 40 * device.multiprocessors + 5, 64, all, ALL, true, true,
                 0);
    /* rows that cannot be read two elements at a time */
    check_linear(WEIGHT_BF16, 11, 101, some, SOME, true, true, 0);
    check_linear(WEIGHT_BF16, 11, 100, some, SOME, true, false, 1);
}

static void check_head(enum weight_format format, int vocab, int hidden, const int *rows,
                       int counts)
{
    enum { NAN_AT = 5, ROWS = 40 };
    struct host_matrix m = matrix_new(format, vocab, hidden);
    if (format == WEIGHT_BF16) { /* ties, and one that is no number */
        uint16_t *d = (uint16_t *)m.data;
        for (int o = vocab / 2; o < vocab; o++)
            if (random32() % 2)
                memcpy(d + (size_t)o * (size_t)hidden,
                       d + (size_t)(random32() % (unsigned)(vocab / 2 + 1)) * (size_t)hidden,
                       (size_t)hidden * 2);
        if (vocab > NAN_AT)
            d[(size_t)NAN_AT * (size_t)hidden + 3] = 0x7fc0;
    }
    struct cuda_head h = {};
    struct head_block block = {};
    block.eps = 1e-5f;
    h.block = &block;
    h.output = matrix_upload(&m.w);
    uint16_t *x = (uint16_t *)malloc((size_t)ROWS * (size_t)hidden * 2);
    uint16_t *norm = (uint16_t *)malloc((size_t)hidden * 2);
    for (size_t i = 0; i < (size_t)ROWS * (size_t)hidden; i++)
        x[i] = random_bf16();
    for (int i = 0; i < hidden; i++)
        norm[i] = random_bf16();
    const size_t logit_count = (size_t)ROWS * (size_t)vocab;
    float *want = (float *)calloc(logit_count, sizeof(float));
    float *got = (float *)calloc(logit_count, sizeof(float));
    uint16_t *dx = (uint16_t *)device_new((size_t)ROWS * (size_t)hidden * 2);
    uint16_t *dn = (uint16_t *)device_new((size_t)hidden * 2);
    float *dl = (float *)device_new(logit_count * sizeof(float));
    void *scratch = device_new(cuda_head_scratch(vocab, ROWS));
    struct head_pick *picks = NULL;
    must(cudaHostAlloc((void **)&picks, ROWS * sizeof *picks, cudaHostAllocMapped), "picks");
    must(cudaMemset(scratch, 0, cuda_head_scratch(vocab, ROWS)), "scratch");
    must(cudaMemcpy(dx, x, (size_t)ROWS * (size_t)hidden * 2, cudaMemcpyHostToDevice), "x");
    must(cudaMemcpy(dn, norm, (size_t)hidden * 2, cudaMemcpyHostToDevice), "norm");
    h.norm = dn;
    reference(&m.w, x, hidden, norm, block.eps, ROWS, false, want);
    const struct cuda_launch l = launch_new();
    for (int i = 0; i < 3 * counts; i++) {
        const int n = rows[i % counts], kind = i / counts; /* with both, no logits, no picks */
        must(cudaMemset(dl, 0xa5, logit_count * sizeof(float)), "logits");
        memset(picks, 0x5a, ROWS * sizeof *picks);
        cuda_head_run(&l, &h, dx, hidden, n, kind == 1 ? NULL : dl, kind == 2 ? NULL : picks,
                      scratch);
        finish();
        must(cudaMemcpy(got, dl, logit_count * sizeof(float), cudaMemcpyDeviceToHost), "logits");
        int wrong = 0, outside = 0;
        for (size_t at = 0; at < logit_count; at++) {
            uint32_t bits;
            memcpy(&bits, &got[at], sizeof bits);
            if (kind == 1 || at >= (size_t)n * (size_t)vocab)
                outside += bits != 0xa5a5a5a5u;
            else if (want[at] != want[at])
                wrong += got[at] == got[at];
            else
                wrong += memcmp(&got[at], &want[at], sizeof bits) != 0;
        }
        CHECK(wrong == 0 && outside == 0, "head %s %d x %d, %d rows: %d logits differ, %d outside",
              format_name(format), vocab, hidden, n, wrong, outside);
        for (int r = 0; r < ROWS; r++) {
            struct head_pick p = {{-1, -1}, {-INFINITY, -INFINITY}};
            for (int o = 0; o < vocab; o++)
                kernel_pick_one(&p, o, want[(size_t)r * (size_t)vocab + (size_t)o]);
            if (kind == 2 || r >= n)
                memset(&p, 0x5a, sizeof p);
            CHECK(memcmp(&p, &picks[r], sizeof p) == 0,
                  "head %s %d x %d, %d rows: row %d picks %d (%g) %d (%g), not %d (%g) %d (%g)",
                  format_name(format), vocab, hidden, n, r, picks[r].token[0],
                  (double)picks[r].logit[0], picks[r].token[1], (double)picks[r].logit[1],
                  p.token[0], (double)p.logit[0], p.token[1], (double)p.logit[1]);
        }
    }
    cudaFreeHost(picks);
    cudaFree(dx);
    cudaFree(dn);
    cudaFree(dl);
    cudaFree(scratch);
    matrix_release(&h.output);
    matrix_free(&m);
    free(x);
    free(norm);
    free(want);
    free(got);
}

static void check_heads(void)
{
    static const int rows[] = {1, 2, 3, 5, 8, 16, 17, 33};
    enum { COUNT = sizeof rows / sizeof *rows };
    check_head(WEIGHT_BF16, 1000, 64, rows, COUNT);
    check_head(WEIGHT_BF16, 1, 32, rows, COUNT);
    check_head(WEIGHT_BF16, 37, 2048, rows, COUNT);
    check_head(WEIGHT_BF16, 23001, 32, rows, 2); /* two tiles of a block */
    check_head(WEIGHT_INT8_AFFINE32, 500, 96, rows, COUNT);
    check_head(WEIGHT_INT8_AFFINE32, 23001, 32, rows, 2);
    check_head(WEIGHT_NVFP4, 300, 160, rows, COUNT);
}

/* ---- Timing ---- */

#ifndef CUDA_EMULATED

static __global__ void fill_kernel(uint32_t *p, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t v = (uint32_t)i * 2654435761u;
        v ^= v >> 15;
        v *= 2246822519u;
        v ^= v >> 13;
        p[i] = (v & 0x807f807fu) | 0x3c003c00u; /* bf16 about 0.01 */
    }
}

static __global__ void read_kernel(const uint4 *p, size_t count, uint32_t *out)
{
    uint32_t sum = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = load_stream(p + i + (size_t)j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static uint8_t *pool;
static size_t pool_bytes;
static double plain; /* bytes per second */

/* Milliseconds of a graph of what `body` launches, the best of a few. */
static double graph_time(void (*body)(void *), void *context)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    must(cudaEventCreate(&from), "an event");
    must(cudaEventCreate(&to), "an event");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    body(context);
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    double best = 1e9;
    for (int i = 0; i < 4; i++) {
        float ms;
        must(cudaEventRecord(from, stream), "event");
        must(cudaGraphLaunch(exec, stream), "graph");
        must(cudaEventRecord(to, stream), "event");
        finish();
        must(cudaEventElapsedTime(&ms, from, to), "event");
        if (i > 0 && ms < best)
            best = ms;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return best;
}

static void read_all(void *context)
{
    read_kernel<<<device.multiprocessors * 8, 256, 0, stream>>>(
        (const uint4 *)pool, pool_bytes / 16, (uint32_t *)context);
}

struct timed {
    enum weight_format format;
    int out, in, rows, copies;
    bool norm, add, overlap;
    uint16_t *x, *y, *weights;
    bool (*launch)(const struct cuda_launch *, const struct cuda_linear *,
                   const struct linear_plan *);
    struct linear_plan plan;
    float *logits; /* the head */
    struct head_pick *picks;
    void *scratch;
};

static struct cuda_matrix matrix_of_pool(const struct timed *t, int copy)
{
    struct cuda_matrix m = {};
    const int group = t->format == WEIGHT_BF16            ? CUDA_BF16_GROUP
                      : t->format == WEIGHT_INT8_AFFINE32 ? CUDA_INT8_GROUP
                                                          : CUDA_NVFP4_GROUP;
    m.format = t->format;
    m.out = t->out;
    m.in = t->in;
    m.padded = (t->in + group - 1) / group * group;
    m.row_bytes = (size_t)(m.padded / group) * 256;
    if (t->format != WEIGHT_BF16)
        m.scale_bytes = (size_t)m.padded / 16;
    const size_t bytes = (m.row_bytes + m.scale_bytes * 2) * (size_t)m.out;
    m.data = pool + (size_t)copy * ((bytes + 255) / 256 * 256);
    m.scales = m.data + m.row_bytes * (size_t)m.out;
    m.biases = m.scales + m.scale_bytes * (size_t)m.out;
    return m;
}

static size_t matrix_read(const struct timed *t)
{
    const struct cuda_matrix m = matrix_of_pool(t, 0);
    return (m.row_bytes + m.scale_bytes * (t->format == WEIGHT_NVFP4 ? 1 : 2)) * (size_t)m.out;
}

static void timed_body(void *context)
{
    const struct timed *t = (const struct timed *)context;
    struct cuda_launch l = launch_new();
    l.overlap = t->overlap;
    for (int i = 0; i < t->copies; i++) {
        struct cuda_matrix w = matrix_of_pool(t, i);
        struct cuda_linear a = {};
        a.w = &w;
        a.x = t->x;
        a.x_stride = (size_t)t->in;
        a.norm = t->norm ? t->weights : NULL;
        a.eps = 1e-6f;
        a.rows = t->rows;
        a.y = t->y;
        a.y_stride = (size_t)t->out;
        a.add = t->add;
        if (t->logits != NULL) {
            struct head_block block = {};
            block.eps = 1e-6f;
            struct cuda_head h = {};
            h.block = &block;
            h.norm = t->weights;
            h.output = w;
            cuda_head_run(&l, &h, t->x, t->in, t->rows, t->logits, t->picks, t->scratch);
        } else if (t->launch != NULL) {
            if (!t->launch(&l, &a, &t->plan))
                printf("  (not launched)");
        } else {
            cuda_linear(&l, &a);
        }
    }
}

static double timed_run(struct timed *t)
{
    const size_t each = (matrix_read(t) + 4095) / 256 * 256;
    t->copies = (int)(pool_bytes / (each + each / 8));
    if (t->copies > 60)
        t->copies = 60;
    return graph_time(timed_body, t) * 1e3 / t->copies;
}

struct shape {
    const char *name;
    int out, in;
    bool norm, add;
};

static const struct shape shapes[] = {
    {"project 64", 10304, 2048, true, false}, {"project 48", 8240, 2048, true, false},
    {"output 64", 2048, 8192, false, true},   {"output 48", 2048, 6144, false, true},
    {"dense gate", 8192, 2048, true, false},  {"dense down", 2048, 8192, false, true},
    {"fc", 2048, 10240, false, false}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct timed timed_new(const struct shape *s, enum weight_format format, int rows)
{
    static uint16_t *x, *y, *weights;
    if (x == NULL) {
        x = (uint16_t *)device_new((size_t)1024 * 10304 * 2);
        y = (uint16_t *)device_new((size_t)1024 * 10304 * 2);
        weights = (uint16_t *)device_new((size_t)16384 * 2);
        fill_kernel<<<1024, 256, 0, stream>>>((uint32_t *)x, (size_t)1024 * 10304 / 2);
        fill_kernel<<<1024, 256, 0, stream>>>((uint32_t *)y, (size_t)1024 * 10304 / 2);
        fill_kernel<<<16, 256, 0, stream>>>((uint32_t *)weights, 8192);
        finish();
    }
    struct timed t = {};
    t.format = format;
    t.out = s->out;
    t.in = s->in;
    t.rows = rows;
    t.norm = s->norm;
    t.add = s->add;
    t.overlap = true;
    t.x = x;
    t.y = y;
    t.weights = weights;
    return t;
}

static void tell(const char *name, const struct timed *t, double us, double one)
{
    const double rate = (double)matrix_read(t) / us / 1e6;
    printf("%-11s %-5s %6d x %-5d rows %3d%s %8.2f us %6.2f TB/s %5.1f %%", name,
           format_name(t->format), t->out, t->in, t->rows, t->overlap ? "" : " alone", us, rate,
           100.0 * rate * 1e12 / plain);
    if (one > 0)
        printf("  %.2f of one row", us / one);
    printf("\n");
    fflush(stdout);
}

static void time_open(void)
{
    pool_bytes = (size_t)3 << 30;
    pool = (uint8_t *)device_new(pool_bytes);
    fill_kernel<<<4096, 256, 0, stream>>>((uint32_t *)pool, pool_bytes / 4);
    finish();
    uint32_t *sink = (uint32_t *)device_new(4);
    const double ms = graph_time(read_all, sink);
    plain = (double)pool_bytes / ms * 1e3;
    printf("%s, %d multiprocessors; plain reading of %.1f GB: %.3f TB/s\n", device.name,
           device.multiprocessors, (double)pool_bytes / 1e9, plain / 1e12);
}

/* Many rows as if they were few, several times. */
static bool launch_by_sixteen(const struct cuda_launch *l, const struct cuda_linear *a,
                              const struct linear_plan *plan)
{
    (void)plan;
    struct cuda_linear part = *a;
    for (int at = 0; at < a->rows; at += CUDA_RECORD_ROWS) {
        part.x = a->x + (size_t)at * a->x_stride;
        part.y = a->y + (size_t)at * a->y_stride;
        part.rows = a->rows - at < CUDA_RECORD_ROWS ? a->rows - at : CUDA_RECORD_ROWS;
        cuda_linear(l, &part);
    }
    return true;
}

static void time_all(void)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 8, 16};
    time_open();
    for (int s = 0; s < SHAPES; s++) {
        double one = 0;
        for (int i = 0; i < 8; i++) {
            struct timed t = timed_new(&shapes[s], WEIGHT_BF16, rows[i]);
            const double us = timed_run(&t);
            tell(shapes[s].name, &t, us, one);
            if (i == 0) {
                one = us;
                t.overlap = false;
                tell(shapes[s].name, &t, timed_run(&t), 0);
            }
        }
    }
    for (int s = 0; s < 4; s++) {
        double one = 0;
        for (int i = 0; i < 5; i++) {
            struct timed t = timed_new(&shapes[s], WEIGHT_INT8_AFFINE32, rows[i]);
            const double us = timed_run(&t);
            tell(shapes[s].name, &t, us, one);
            one = i == 0 ? us : one;
        }
    }
    double one = 0;
    for (int i = 0; i < 8; i++) {
        const struct shape head = {"head", 100352, 2048, true, false};
        struct timed t = timed_new(&head, WEIGHT_BF16, rows[i]);
        static void *scratch;
        static float *logits;
        static struct head_pick *picks;
        if (scratch == NULL) {
            scratch = device_new(cuda_head_scratch(100352, 16));
            logits = (float *)device_new((size_t)16 * 100352 * 4);
            must(cudaMemset(scratch, 0, cuda_head_scratch(100352, 16)), "scratch");
            must(cudaHostAlloc((void **)&picks, 16 * sizeof *picks, cudaHostAllocMapped), "picks");
        }
        t.scratch = scratch;
        t.logits = logits;
        t.picks = picks;
        const double us = timed_run(&t);
        tell("head", &t, us, one);
        one = i == 0 ? us : one;
    }
    static const int many[] = {17, 32, 64, 128, 512};
    for (int s = 0; s < 4; s += 2) {
        for (int i = 0; i < 5; i++) {
            for (int kind = 0; kind < 3; kind++) {
                struct timed t =
                    timed_new(&shapes[s], kind == 1 ? WEIGHT_INT8_AFFINE32 : WEIGHT_BF16, many[i]);
                t.launch = kind == 2 ? launch_by_sixteen : NULL;
                const double us = timed_run(&t);
                printf("%-11s %-5s %6d x %-5d rows %3d strict%s %8.1f us %6.1f TFLOP/s\n",
                       shapes[s].name, format_name(t.format), t.out, t.in, t.rows,
                       kind == 2 ? " by 16" : "", us, 2.0 * t.out * t.in * t.rows / us / 1e6);
            }
        }
    }
}

struct way {
    int outputs, depth;
    bool (*launch[4])(const struct cuda_launch *, const struct cuda_linear *,
                      const struct linear_plan *);
};

#define WAY(O, D)                                                                                  \
    {                                                                                              \
        O, D,                                                                                      \
        {                                                                                          \
            linear_few_launch<WEIGHT_BF16, 1, O, D>, linear_few_launch<WEIGHT_BF16, 2, O, D>,      \
                linear_few_launch<WEIGHT_BF16, 4, O, D>, linear_few_launch<WEIGHT_BF16, 8, O, D>   \
        }                                                                                          \
    }

static void tune_all(void)
{
    static const struct way ways[] = {WAY(1, 8), WAY(1, 16), WAY(2, 8), WAY(2, 16), WAY(4, 16)};
    static const int rows[] = {1, 2, 4, 8}, which[] = {0, 1, 2, 3};
    time_open();
    for (int w = 0; w < 4; w++) {
        const struct shape *s = &shapes[which[w]];
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 5; i++) {
                for (int kind = 0; kind < 4; kind++) {
                    struct timed t = timed_new(s, WEIGHT_BF16, rows[r]);
                    t.plan.outputs = ways[i].outputs;
                    t.plan.depth = ways[i].depth;
                    t.plan.warps = kind % 2 ? 8 : 4;
                    t.plan.late = kind / 2;
                    t.plan.tiles = 1;
                    t.launch = ways[i].launch[r];
                    const double us = timed_run(&t);
                    char name[64];
                    snprintf(name, sizeof name, "O%d D%d W%d%s", t.plan.outputs, t.plan.depth,
                             t.plan.warps, t.plan.late ? " late" : "");
                    tell(name, &t, us, 0);
                }
            }
        }
    }
}

#endif

int main(int argc, char **argv)
{
    struct error err = {};
    if (!cuda_device_open(&device, &err)) {
        printf("%s: %s\n", err.name, err.message);
        return 1;
    }
    must(cudaSetDevice(device.index), "the device");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
#ifndef CUDA_EMULATED
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_all();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--tune") == 0) {
        tune_all();
        return 0;
    }
#endif
    if (argc > 1) {
        fprintf(stderr, "usage: %s [--time | --tune]\n", argv[0]);
        return 2;
    }
    check_linears();
    check_heads();
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
