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

/* A block for each (row, part): n values at part * n of the row, by weights + part * n. The sum is
 * a half-warp's, as its order wants; the rest is everyone's. */
__global__ static void rows_normalize(const struct cuda_step *step, struct row_place from,
                                      const uint16_t *weights, int n, float eps,
                                      struct row_place to)
{
    extern __shared__ float tap_row[]; /* [n] */
    __shared__ float inverse;
    const int row = (int)blockIdx.x;
    const size_t part = (size_t)blockIdx.y * (size_t)n;
    pdl_launch_next();
    pdl_wait();
    const uint16_t *x = place_row(&from, step, row) + part;
    for (int i = (int)threadIdx.x; i < n; i += TAP_THREADS)
        tap_row[i] = bf16_float(x[i]);
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = 0.0f;
        int i = (int)threadIdx.x % CUDA_LANES;
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
        if (threadIdx.x == 0)
            inverse = 1.0f / sqrtf(mean + eps);
    }
    __syncthreads();
    uint16_t *y = place_row(&to, step, row) + part;
    for (int i = (int)threadIdx.x; i < n; i += TAP_THREADS) {
        const float t = rounded(tap_row[i] * inverse);
        y[i] = bf16_of(t * bf16_float(weights[part + (size_t)i]));
    }
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
