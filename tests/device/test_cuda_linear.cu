/* Linear layers and the head on the device against the CPU's kernels, byte for byte, with weights
 * brought into lanes order here from the words of cuda.h.
 *
 *     test_cuda_linear            the checks
 *     test_cuda_linear --time     the real shapes: time, rate, share of what plain reading gives
 *     test_cuda_linear --tune     the same for the ways in which few rows can be cut
 */
#include "check.h"
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

/* Waited for: the kernels' stream does not wait for the default one, where a memset, and a copy
 * from pageable memory, may outlast its call. */
static void device_fill(void *to, const void *from, size_t bytes, const char *what)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), what);
    must(cudaDeviceSynchronize(), what);
}

static void device_set(void *to, int value, size_t bytes, const char *what)
{
    must(cudaMemset(to, value, bytes), what);
    must(cudaDeviceSynchronize(), what);
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
    device_fill(d, data, bytes, "a matrix");
    device_fill(s, scales, scale, "scales");
    device_fill(z, biases, scale, "biases");
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
    device_fill(dx, x, (size_t)MOST_ROWS * (size_t)stride * 2, "x");
    device_fill(dn, norm, (size_t)in * 2, "norm");
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
        device_fill(dy, old, (size_t)MOST_ROWS * (size_t)y_stride * 2, "y");
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
    /* one row of bf16 without a norm: several outputs of a block, the last block with fewer; as
     * many as fit; too many. Rows that stay in registers, that fill some places, that do not fit */
    static const int one[] = {1}, times[] = {3, 16, 17}, inputs[] = {1024, 1280, 1536, 6144};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 4; i++)
            check_linear(WEIGHT_BF16, times[t] * device.multiprocessors - 1, inputs[i], one, 1,
                         false, i % 2, 0);
    /* rows that cannot be read two elements at a time */
    check_linear(WEIGHT_BF16, 11, 101, some, SOME, true, true, 0);
    check_linear(WEIGHT_BF16, 11, 100, some, SOME, true, false, 1);
}

/* Layers that follow each other without a wait: h = up(norm(x)), x += down(h), several times. With
 * CUDA_EMULATOR_EARLY each begins before the last has ended. */
static void check_chain(int rows)
{
    enum { HIDDEN = 256, WIDE = 384, TIMES = 5 };
    struct host_matrix up = matrix_new(WEIGHT_BF16, WIDE, HIDDEN);
    struct host_matrix down = matrix_new(WEIGHT_INT8_AFFINE32, HIDDEN, WIDE);
    struct cuda_matrix w_up = matrix_upload(&up.w), w_down = matrix_upload(&down.w);
    const size_t narrow = (size_t)rows * HIDDEN, wide = (size_t)rows * WIDE;
    uint16_t *x = (uint16_t *)malloc(narrow * 2), *h = (uint16_t *)malloc(wide * 2);
    uint16_t *got = (uint16_t *)malloc(narrow * 2), norm[HIDDEN];
    float *fx = (float *)malloc(narrow * sizeof(float)),
          *fh = (float *)malloc(wide * sizeof(float));
    for (size_t i = 0; i < narrow; i++)
        x[i] = random_bf16();
    for (int i = 0; i < HIDDEN; i++)
        norm[i] = random_bf16();
    uint16_t *dx = (uint16_t *)device_new(narrow * 2), *dh = (uint16_t *)device_new(wide * 2);
    uint16_t *dn = (uint16_t *)device_new(sizeof norm);
    device_fill(dx, x, narrow * 2, "x");
    device_fill(dn, norm, sizeof norm, "norm");
    const struct cuda_launch l = launch_new();
    for (int t = 0; t < TIMES; t++) {
        struct cuda_linear a = {};
        a.w = &w_up;
        a.x = dx;
        a.x_stride = HIDDEN;
        a.norm = dn;
        a.eps = 1e-6f;
        a.rows = rows;
        a.y = dh;
        a.y_stride = WIDE;
        cuda_linear(&l, &a);
        struct cuda_linear b = {};
        b.w = &w_down;
        b.x = dh;
        b.x_stride = WIDE;
        b.rows = rows;
        b.y = dx;
        b.y_stride = HIDDEN;
        b.add = true;
        cuda_linear(&l, &b);
    }
    finish();
    must(cudaMemcpy(got, dx, narrow * 2, cudaMemcpyDeviceToHost), "x");
    for (int t = 0; t < TIMES; t++) {
        reference(&up.w, x, HIDDEN, norm, 1e-6f, rows, false, fh);
        for (size_t i = 0; i < wide; i++)
            h[i] = f32_to_bf16(fh[i]);
        for (size_t i = 0; i < narrow; i++)
            fx[i] = bf16_to_f32(x[i]);
        reference(&down.w, h, WIDE, NULL, 0, rows, true, fx);
        for (size_t i = 0; i < narrow; i++)
            x[i] = f32_to_bf16(fx[i]);
    }
    CHECK(memcmp(got, x, narrow * 2) == 0, "%d layers in a row, %d rows", 2 * TIMES, rows);
    cudaFree(dx);
    cudaFree(dh);
    cudaFree(dn);
    matrix_release(&w_up);
    matrix_release(&w_down);
    matrix_free(&up);
    matrix_free(&down);
    free(x);
    free(h);
    free(got);
    free(fx);
    free(fh);
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
    device_set(scratch, 0, cuda_head_scratch(vocab, ROWS), "scratch");
    device_fill(dx, x, (size_t)ROWS * (size_t)hidden * 2, "x");
    device_fill(dn, norm, (size_t)hidden * 2, "norm");
    h.norm = dn;
    reference(&m.w, x, hidden, norm, block.eps, ROWS, false, want);
    const struct cuda_launch l = launch_new();
    for (int i = 0; i < 3 * counts; i++) {
        const int n = rows[i % counts], kind = i / counts; /* with both, no logits, no picks */
        device_set(dl, 0xa5, logit_count * sizeof(float), "logits");
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

#ifndef CUDA_EMULATED
#include "linear_timing.cuh"
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
    static const int rows[] = {1, 2, 5, 16, 20};
    for (int r : rows)
        check_chain(r);
    check_heads();
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
