/* The context of a block drafter: taps are kept as they pass, normed, and brought together by fc
 * (cpu/context.c). */
#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum { TAP_THREADS = 256 };

/* Where the rows of a kernel lie: row r at base + r * stride; or in a ring, the row of position
 * step->pos0 + r at its slot. */
struct row_place {
    uint16_t *base;
    size_t stride; /* elements */
    int64_t ring;  /* slots; 0: no ring */
};

static __device__ __forceinline__ uint16_t *place_row(const struct row_place *p,
                                                      const struct cuda_step *step, int row)
{
    const int64_t slot = p->ring > 0 ? (step->pos0 + row) % p->ring : row;
    return p->base + (size_t)slot * p->stride;
}

__global__ static void tap_copy(const struct cuda_step *step, const uint16_t *x,
                                struct row_place to, int hidden)
{
    pdl_launch_next();
    pdl_wait();
    const int row = (int)blockIdx.x;
    uint16_t *target = place_row(&to, step, row);
    const uint16_t *source = x + (size_t)row * (size_t)hidden;
    if (hidden % 8 == 0 && to.stride % 8 == 0) {
        for (int i = (int)threadIdx.x; i < hidden / 8; i += TAP_THREADS)
            ((uint4 *)target)[i] = ((const uint4 *)source)[i];
    } else {
        for (int i = (int)threadIdx.x; i < hidden; i += TAP_THREADS)
            target[i] = source[i];
    }
}

void cuda_tap(const struct cuda_launch *l, const uint16_t *x, struct tap_rows *t, int tap, int rows)
{
    const struct row_place to = {t->rows + (size_t)tap * (size_t)t->hidden,
                                 (size_t)t->taps * (size_t)t->hidden, t->capacity};
    cuda_launch(l, "tap_copy", tap_copy, dim3((unsigned)rows), dim3(TAP_THREADS), 0, l->step, x, to,
                t->hidden);
}

/* Eight elements of a row from i on, and back. Aligned: by 16 bytes. */
static __device__ __forceinline__ void tap_load(const uint16_t *x, bool aligned, uint32_t word[4])
{
    if (aligned) {
        const uint4 v = __ldcg((const uint4 *)x);
        word[0] = v.x;
        word[1] = v.y;
        word[2] = v.z;
        word[3] = v.w;
        return;
    }
    for (int k = 0; k < 4; k++)
        word[k] = __ldcg(x + 2 * k) | (uint32_t)__ldcg(x + 2 * k + 1) << 16;
}

/* A block for each (row, part): n values at part * n of the row, by weights + part * n. The sum is
 * a half-warp's, as its order wants; the rest is everyone's, eight elements at once. */
__global__ static void rows_normalize(const struct cuda_step *step, struct row_place from,
                                      const uint16_t *weights, int n, float eps,
                                      struct row_place to)
{
    extern __shared__ float tap_row[]; /* [n] */
    __shared__ float inverse;
    const int row = (int)blockIdx.x, eights = n / 8, thread = (int)threadIdx.x;
    const size_t part = (size_t)blockIdx.y * (size_t)n;
    const bool aligned =
        n % 8 == 0 && from.stride % 8 == 0 && to.stride % 8 == 0 && (uintptr_t)weights % 16 == 0;
    uint32_t weight[4] = {};
    weights += part;
    pdl_launch_next();
    if (thread < eights)
        tap_load(weights + thread * 8, aligned, weight); /* before the row is there */
    pdl_wait();
    const uint16_t *x = place_row(&from, step, row) + part;
    for (int i = thread; i < eights; i += TAP_THREADS) {
        uint32_t word[4];
        tap_load(x + i * 8, aligned, word);
        for (int k = 0; k < 4; k++) {
            tap_row[i * 8 + 2 * k] = bf16_low(word[k]);
            tap_row[i * 8 + 2 * k + 1] = bf16_high(word[k]);
        }
    }
    for (int i = eights * 8 + thread; i < n; i += TAP_THREADS)
        tap_row[i] = bf16_float(x[i]);
    __syncthreads();
    if (thread < 32) {
        float sum = 0.0f;
        int i = thread % CUDA_LANES;
#pragma unroll 2
        for (; i + 7 * CUDA_LANES < n; i += 8 * CUDA_LANES) {
            float v[8];
            for (int j = 0; j < 8; j++)
                v[j] = tap_row[i + j * CUDA_LANES];
            for (int j = 0; j < 8; j++)
                sum = fmaf(v[j], v[j], sum);
        }
        for (; i < n; i += CUDA_LANES)
            sum = fmaf(tap_row[i], tap_row[i], sum);
        const float mean = lanes_sum(sum) / (float)n;
        if (thread == 0)
            inverse = 1.0f / sqrtf(mean + eps);
    }
    __syncthreads();
    uint16_t *y = place_row(&to, step, row) + part;
    const float by = inverse;
    for (int i = thread; i < eights; i += TAP_THREADS) {
        uint32_t pair[4];
        if (i != thread)
            tap_load(weights + i * 8, aligned, weight);
        for (int k = 0; k < 4; k++)
            pair[k] = bf16_pair_of(rounded(tap_row[i * 8 + 2 * k] * by) * bf16_low(weight[k]),
                                   rounded(tap_row[i * 8 + 2 * k + 1] * by) * bf16_high(weight[k]));
        if (aligned) {
            *(uint4 *)(y + i * 8) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        } else {
            for (int k = 0; k < 8; k++)
                y[i * 8 + k] = (uint16_t)(pair[k / 2] >> 16 * (k % 2));
        }
    }
    for (int i = eights * 8 + thread; i < n; i += TAP_THREADS)
        y[i] = bf16_of(rounded(tap_row[i] * by) * bf16_float(weights[i]));
}

void cuda_context_run(const struct cuda_launch *l, const struct cuda_context *w,
                      const struct tap_rows *t, int rows, uint16_t *x, uint16_t *scratch)
{
    const int hidden = t->hidden, wide = t->taps * hidden;
    const float eps = w->block->eps;
    const struct row_place ring = {t->rows, (size_t)wide, t->capacity};
    const struct row_place normed = {scratch, (size_t)wide, 0};
    const struct row_place stream = {x, (size_t)hidden, 0};
    const struct row_place made = {scratch + (size_t)rows * (size_t)wide, (size_t)hidden, 0};
    const size_t shared = (size_t)hidden * sizeof(float);
    cuda_launch(l, "rows_normalize", rows_normalize, dim3((unsigned)rows, (unsigned)t->taps),
                dim3(TAP_THREADS), shared, l->step, ring, w->tap_norm, hidden, eps, normed);
    struct cuda_linear fc = {};
    fc.w = &w->fc;
    fc.x = normed.base;
    fc.x_stride = normed.stride;
    fc.rows = rows;
    fc.y = made.base;
    fc.y_stride = made.stride;
    cuda_linear(l, &fc);
    cuda_launch(l, "rows_normalize", rows_normalize, dim3((unsigned)rows), dim3(TAP_THREADS),
                shared, l->step, made, w->hidden_norm, hidden, eps, stream);
}
