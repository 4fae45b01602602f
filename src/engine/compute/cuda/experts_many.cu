/* The routed experts of any number of rows: entries sorted by expert, then tiles of up to
 * EXPERTS_TILE entries of one expert against its outputs, then each row's mixture. NVFP4 has
 * kernels of its own; bf16 has plain ones, which also serve devices with little shared
 * memory. */
#include "engine/compute/cuda/experts_route.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/nvfp4.cuh"

extern __shared__ __align__(16) uint8_t many_memory[];

enum {
    ROUTE_THREADS = 128,
    SORT_THREADS = 1024,
    MANY_WARPS = 16,
    MANY_WARPS_LEAST = 4,
    MANY_SPLITS = 4, /* thread blocks that share a tile's outputs */
    PLAIN_THREADS = 128,
    COMBINE_THREADS = 256
};

/* ---- Choice and order ---- */

static __global__ void experts_route(struct experts_run e)
{
    __shared__ int chosen[ROUTE_THREADS / 32][CUDA_MOST_TOP_K];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = (int)blockIdx.x * (ROUTE_THREADS / 32) + warp;
    pdl_launch_next();
    pdl_wait();
    if (row >= e.rows)
        return;
    route_row(e.key + (size_t)row * (size_t)e.experts, e.experts, e.top_k, lane, chosen[warp]);
    route_mix(route_score(e.score + (size_t)row * (size_t)e.experts, chosen[warp], e.top_k, lane),
              e.top_k, e.normalize, lane, e.mix + row * e.top_k);
    if (lane < e.top_k)
        e.chosen[row * e.top_k + lane] = chosen[warp][lane];
}

struct sort_run {
    const int *chosen;
    int *start, *row_of, *entry_of, *tile_count;
    struct cuda_experts_tile *tiles;
    int rows, top_k, experts;
    bool shared;
};

/* By a warp: sums of what lies before, of n values. */
static __device__ __forceinline__ void sort_prefix(const int *value, int n, int *before, int lane)
{
    const int per = (n + 31) / 32;
    int sum = 0;
    for (int j = 0; j < per; j++)
        sum += per * lane + j < n ? value[per * lane + j] : 0;
    int all = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, all, (unsigned)step);
        all += lane >= step ? left : 0;
    }
    int at = all - sum;
    for (int j = 0; j < per; j++) {
        if (per * lane + j >= n)
            break;
        before[per * lane + j] = at;
        at += value[per * lane + j];
    }
    if (lane == 31)
        before[n] = all;
}

/* One thread block. */
static __global__ __launch_bounds__(SORT_THREADS) void experts_sort(struct sort_run s)
{
    enum { MOST = CUDA_MOST_EXPERTS + 1 };
    __shared__ int count[MOST], start[MOST + 1], tiles[MOST], first_tile[MOST + 1];
    const int thread = (int)threadIdx.x, routed = s.rows * s.top_k;
    const int experts = s.experts + (s.shared ? 1 : 0);
    pdl_launch_next();
    pdl_wait();
    for (int e = thread; e < experts; e += SORT_THREADS)
        count[e] = e == s.experts ? s.rows : 0;
    __syncthreads();
    for (int i = thread; i < routed; i += SORT_THREADS)
        atomicAdd(&count[__ldcg(s.chosen + i)], 1);
    __syncthreads();
    for (int e = thread; e < experts; e += SORT_THREADS)
        tiles[e] = (count[e] + EXPERTS_TILE - 1) / EXPERTS_TILE;
    __syncthreads();
    if (thread < 32)
        sort_prefix(count, experts, start, thread);
    else if (thread < 64)
        sort_prefix(tiles, experts, first_tile, thread - 32);
    __syncthreads();
    for (int e = thread; e <= experts; e += SORT_THREADS)
        s.start[e] = start[e];
    for (int e = thread; e < experts; e += SORT_THREADS)
        for (int t = 0; t < tiles[e]; t++) {
            const int left = count[e] - t * EXPERTS_TILE;
            struct cuda_experts_tile tile;
            tile.expert = e;
            tile.first = start[e] + t * EXPERTS_TILE;
            tile.count = left < EXPERTS_TILE ? left : EXPERTS_TILE;
            s.tiles[first_tile[e] + t] = tile;
        }
    if (thread == 0)
        *s.tile_count = first_tile[experts];
    __syncthreads();
    for (int i = thread; i < routed; i += SORT_THREADS) {
        const int e = __ldcg(s.chosen + i);
        const int entry = start[e] + atomicSub(&count[e], 1) - 1;
        s.row_of[entry] = i / s.top_k;
        s.entry_of[i] = entry;
    }
    for (int r = thread; s.shared && r < s.rows; r += SORT_THREADS)
        s.row_of[routed + r] = r;
}

/* ---- NVFP4 tiles ---- */

/* Offsets into dynamic shared memory, behind the table. */
struct many_shape {
    int warps, blocks; /* inputs in blocks of 32 */
    int rows_at, scales_at, bytes;
};

/* A product of `matrices` matrices of one expert with a tile's rows. */
struct many_run {
    struct cuda_experts w[2];
    const struct cuda_experts_tile *tiles;
    const int *tile_count;
    const int *row_of; /* of an entry among x's rows; NULL: the entry's own */
    const uint16_t *x; /* bf16 [.., inputs] */
    uint16_t *y;       /* bf16 [entries, outputs]; of two matrices: silu(first) * second */
    int inputs, outputs;
};

template <int matrices, int rows>
static __device__ __forceinline__ void
many_rows(const struct many_run *a, const uint8_t *table, const uint8_t *const data[matrices],
          const float *scales, const float *x, int blocks, int entry, int n, int output, int lane)
{
    const int input = blocks * CUDA_BLOCK;
    float acc[matrices][rows];
#pragma unroll
    for (int m = 0; m < matrices; m++)
#pragma unroll
        for (int r = 0; r < rows; r++)
            acc[m][r] = 0.0f;
    for (int g = 0; g < blocks / NVFP4_GROUP_BLOCKS; g++) {
        uint4 code[matrices];
        const float *scale[matrices], *at[rows];
#pragma unroll
        for (int m = 0; m < matrices; m++) {
            code[m] = *(const uint4 *)(data[m] + (g * CUDA_LANES + lane) * 16);
            scale[m] =
                scales + nvfp4_scales_at(blocks, matrices, 0, m, lane / 8) + g * NVFP4_GROUP_BLOCKS;
        }
#pragma unroll
        for (int r = 0; r < rows; r++)
            at[r] = x + (r < n ? r : 0) * input + g * CUDA_NVFP4_GROUP + lane * 4;
        nvfp4_group<matrices, rows>(table, code, scale, at, acc);
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
        float v[matrices];
#pragma unroll
        for (int m = 0; m < matrices; m++)
            v[m] = rounded(lanes_sum(acc[m][r]));
        if (lane == 0 && r < n && output < a->outputs)
            a->y[(size_t)(entry + r) * (size_t)a->outputs + (size_t)output] =
                matrices == 2 ? silu_up(v[0], v[matrices - 1]) : bf16_of(v[0]);
    }
}

template <int matrices>
static __global__ __launch_bounds__(MANY_WARPS * 32, 1) void experts_tiles(struct many_run a,
                                                                           struct many_shape shape)
{
    uint8_t *table = many_memory;
    float *x = (float *)(many_memory + shape.rows_at);
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x, warp = thread / 32;
    const int half_warp = thread / CUDA_LANES % 2, lane = thread % CUDA_LANES;
    const int blocks = shape.blocks, input = blocks * CUDA_BLOCK;
    float *scales = (float *)(many_memory + shape.scales_at) +
                    (warp * 2 + half_warp) * (nvfp4_scales_floats(blocks, matrices) / 2);
    pdl_launch_next();
    nvfp4_fill_table(table, thread, threads);
    pdl_wait();
    if ((int)blockIdx.x >= __ldcg(a.tile_count))
        return;
    const int *tile = (const int *)(a.tiles + blockIdx.x);
    const int expert = __ldcg(tile), entry = __ldcg(tile + 1), count = __ldcg(tile + 2);
    for (int r = 0; r < count; r++) {
        const int row = a.row_of != NULL ? __ldcg(a.row_of + entry + r) : entry + r;
        nvfp4_take_row(a.x + (size_t)row * (size_t)a.inputs, a.inputs, input, x + r * input, thread,
                       threads);
    }
    __syncthreads();
    const int pairs = (a.outputs + 1) / 2;
    for (int pair = (int)blockIdx.y * shape.warps + warp; pair < pairs;
         pair += shape.warps * (int)gridDim.y) {
        const int output = 2 * pair + half_warp;
        const size_t safe = (size_t)(output < a.outputs ? output : a.outputs - 1);
        const uint8_t *data[matrices];
#pragma unroll
        for (int m = 0; m < matrices; m++) {
            const struct cuda_experts *w = &a.w[m];
            const uint8_t *bytes =
                w->first.scales + (size_t)expert * w->scale_stride + safe * w->first.scale_bytes;
            data[m] = w->first.data + (size_t)expert * w->data_stride + safe * w->first.row_bytes;
            for (int i = 2 * lane; i < 2 * blocks; i += 2 * CUDA_LANES) {
                const uint32_t two = *(const uint16_t *)(bytes + i);
                *(float2 *)(scales + nvfp4_scales_at(blocks, matrices, 0, m, i / blocks) +
                            i % blocks) =
                    make_float2(nvfp4_scale(two & 0xffu), nvfp4_scale(two >> 8));
            }
        }
        __syncwarp();
        if (count > 4)
            many_rows<matrices, EXPERTS_TILE>(&a, table, data, scales, x, blocks, entry, count,
                                              output, lane);
        else if (count > 2)
            many_rows<matrices, 4>(&a, table, data, scales, x, blocks, entry, count, output, lane);
        else if (count > 1)
            many_rows<matrices, 2>(&a, table, data, scales, x, blocks, entry, count, output, lane);
        else
            many_rows<matrices, 1>(&a, table, data, scales, x, blocks, entry, count, output, lane);
        __syncwarp();
    }
}

static bool many_shape_of(const struct cuda_launch *l, const struct cuda_matrix *w, int matrices,
                          struct many_shape *s)
{
    s->blocks = w->padded / CUDA_BLOCK;
    s->rows_at = NVFP4_TABLE_BYTES;
    s->scales_at = s->rows_at + EXPERTS_TILE * w->padded * (int)sizeof(float);
    const int of_warp = nvfp4_scales_floats(s->blocks, matrices) * (int)sizeof(float);
    const int room = ((int)l->device->shared_most - s->scales_at) / of_warp;
    s->warps = room < MANY_WARPS ? room : MANY_WARPS;
    s->bytes = s->scales_at + s->warps * of_warp;
    return w->format == WEIGHT_NVFP4 && s->warps >= MANY_WARPS_LEAST && w->in % 2 == 0;
}

/* ---- bf16, and NVFP4 where shared memory is too little ---- */

/* Inputs 32 b + 2 lane and the next of a bf16 row of n. */
static __device__ __forceinline__ float2 plain_pair(const uint16_t *x, int b, int lane, int n)
{
    const int k = CUDA_BLOCK * b + 2 * lane;
    return make_float2(k < n ? bf16_float(__ldcg(x + k)) : 0.0f,
                       k + 1 < n ? bf16_float(__ldcg(x + k + 1)) : 0.0f);
}

static __device__ __forceinline__ float plain_bf16(const uint8_t *data, const uint16_t *x, int n,
                                                   int lane)
{
    float acc = 0.0f;
    for (int b = 0; b < (n + CUDA_BLOCK - 1) / CUDA_BLOCK; b++) {
        const float2 v = plain_pair(x, b, lane, n);
        const uint32_t w =
            ((const uint32_t *)(const void *)data)[(b / 4 * CUDA_LANES + lane) * 4 + b % 4];
        acc = fmaf(bf16_low(w), v.x, fmaf(bf16_high(w), v.y, acc));
    }
    return acc;
}

static __device__ __forceinline__ float plain_nvfp4(const uint8_t *data, const uint8_t *scales,
                                                    int blocks, const uint16_t *x, int n, int lane)
{
    float acc = 0.0f;
    for (int b = 0; b < (n + CUDA_BLOCK - 1) / CUDA_BLOCK; b++) {
        const float2 v = plain_pair(x, b, lane, n);
        const uint32_t code =
            data[(b / NVFP4_GROUP_BLOCKS * CUDA_LANES + lane) * 16 + b % NVFP4_GROUP_BLOCKS];
        const float first = __uint_as_float(nvfp4_bf16(code & 15) << 16);
        const float second = __uint_as_float(nvfp4_bf16(code >> 4) << 16);
        const float t = fmaf(first, v.x, second * v.y);
        acc = fmaf(t, nvfp4_scale(scales[lane / 8 * blocks + b]), acc);
    }
    return acc;
}

static __device__ __forceinline__ float plain_dot(const struct cuda_experts *w, int expert,
                                                  int output, const uint16_t *x, int lane)
{
    const struct cuda_matrix *m = &w->first;
    const uint8_t *data = m->data + (size_t)expert * w->data_stride + (size_t)output * m->row_bytes;
    const size_t at = (size_t)expert * w->scale_stride + (size_t)output * m->scale_bytes;
    const float acc =
        m->format == WEIGHT_BF16
            ? plain_bf16(data, x, m->in, lane)
            : plain_nvfp4(data, m->scales + at, m->padded / CUDA_BLOCK, x, m->in, lane);
    return rounded(lanes_sum(acc));
}

template <int matrices>
static __global__ __launch_bounds__(PLAIN_THREADS) void experts_plain(struct many_run a)
{
    const int lane = (int)threadIdx.x % CUDA_LANES;
    const int output = (int)(blockIdx.y * (PLAIN_THREADS / CUDA_LANES) + threadIdx.x / CUDA_LANES);
    const int safe = output < a.outputs ? output : a.outputs - 1;
    pdl_launch_next();
    pdl_wait();
    if ((int)blockIdx.x >= __ldcg(a.tile_count))
        return;
    const int *tile = (const int *)(a.tiles + blockIdx.x);
    const int expert = __ldcg(tile), entry = __ldcg(tile + 1), count = __ldcg(tile + 2);
    for (int r = 0; r < count; r++) {
        const int row = a.row_of != NULL ? __ldcg(a.row_of + entry + r) : entry + r;
        const uint16_t *x = a.x + (size_t)row * (size_t)a.inputs;
        const float v = plain_dot(&a.w[0], expert, safe, x, lane);
        const float u = matrices == 2 ? plain_dot(&a.w[1], expert, safe, x, lane) : 0.0f;
        if (lane == 0 && output < a.outputs)
            a.y[(size_t)(entry + r) * (size_t)a.outputs + (size_t)output] =
                matrices == 2 ? silu_up(v, u) : bf16_of(v);
    }
}

/* ---- Mixture and residual ---- */

static __global__ __launch_bounds__(COMBINE_THREADS) void experts_combine(struct experts_run e,
                                                                          const int *entry_of,
                                                                          const uint16_t *out)
{
    const int row = (int)blockIdx.y;
    const int d = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    pdl_launch_next();
    pdl_wait();
    if (d >= e.hidden)
        return;
    float sum = 0.0f;
    for (int i = 0; i < e.top_k; i++) {
        const size_t entry = (size_t)__ldcg(entry_of + row * e.top_k + i);
        const float y = rounded(bf16_float(__ldcg(out + entry * (size_t)e.hidden + (size_t)d)) *
                                __ldcg(e.mix + row * e.top_k + i));
        sum = i == 0 ? y : rounded(sum + y);
    }
    sum = rounded(sum * e.routed_scale);
    const size_t at = (size_t)row * (size_t)e.hidden + (size_t)d;
    if (e.shared)
        sum = rounded(sum +
                      bf16_float(__ldcg(out + (size_t)(e.rows * e.top_k) * (size_t)e.hidden + at)));
    else if (e.shared_out != NULL)
        sum = rounded(sum + bf16_float(__ldcg(e.shared_out + at)));
    e.x[at] = bf16_of(bf16_float(__ldcg(e.x + at)) + sum);
}

/* ---- Launches ---- */

template <int matrices>
static void product(const struct cuda_launch *l, const char *name, const struct many_run *a,
                    int most_tiles)
{
    struct many_shape shape;
    bool special = many_shape_of(l, &a->w[0].first, matrices, &shape);
    if (matrices == 2)
        special = special && a->w[1].first.format == WEIGHT_NVFP4;
    if (special)
        cuda_launch(l, name, experts_tiles<matrices>, dim3((unsigned)most_tiles, MANY_SPLITS),
                    dim3((unsigned)shape.warps * 32), (size_t)shape.bytes, *a, shape);
    else
        cuda_launch(
            l, name, experts_plain<matrices>,
            dim3((unsigned)most_tiles, (unsigned)(a->outputs + PLAIN_THREADS / CUDA_LANES - 1) /
                                           (PLAIN_THREADS / CUDA_LANES)),
            dim3(PLAIN_THREADS), 0, *a);
}

void experts_many_run(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                      const struct experts_run *e, const struct cuda_experts_sorted *s)
{
    struct sort_run sort = {};
    sort.chosen = s->chosen;
    sort.start = (int *)s->start;
    sort.row_of = (int *)s->row_of;
    sort.entry_of = (int *)s->entry_of;
    sort.tile_count = (int *)s->tile_count;
    sort.tiles = (struct cuda_experts_tile *)s->tiles;
    sort.rows = e->rows;
    sort.top_k = e->top_k;
    sort.experts = e->experts;
    sort.shared = e->shared;
    const unsigned rows_of_block = ROUTE_THREADS / 32;
    cuda_launch(l, "experts route", experts_route,
                dim3(((unsigned)e->rows + rows_of_block - 1) / rows_of_block), dim3(ROUTE_THREADS),
                0, *e);
    cuda_launch(l, "experts sort", experts_sort, dim3(1), dim3(SORT_THREADS), 0, sort);
    if (!l->fast || e->rows <= CUDA_RECORD_ROWS || !cuda_experts_fast(l, a, s)) {
        struct many_run up = {};
        up.w[0] = e->gate;
        up.w[1] = e->up;
        up.tiles = s->tiles;
        up.tile_count = s->tile_count;
        up.row_of = s->row_of;
        up.x = s->normed;
        up.y = s->inner;
        up.inputs = s->hidden;
        up.outputs = s->width;
        struct many_run down = up;
        down.w[0] = e->down;
        down.row_of = NULL;
        down.x = s->inner;
        down.y = s->out;
        down.inputs = s->width;
        down.outputs = s->hidden;
        product<2>(l, "experts gate and up, many rows", &up, s->most_tiles);
        product<1>(l, "experts down, many rows", &down, s->most_tiles);
    }
    cuda_launch(
        l, "experts combine", experts_combine,
        dim3((unsigned)(e->hidden + COMBINE_THREADS - 1) / COMBINE_THREADS, (unsigned)e->rows),
        dim3(COMBINE_THREADS), 0, *e, s->entry_of, (const uint16_t *)s->out);
}
