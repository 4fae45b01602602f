/* Three kernels for few rows of NVFP4 experts with the shared one among them: the router; gate and
 * up; down, mixture and residual. A half-warp owns an output of an expert, a thread its lane. Work
 * is cut as finely as it goes, because at these sizes nothing but latency counts. */
#include "engine/compute/cuda/moe.cuh"

#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/meter.h"
#include "engine/compute/cuda/nvfp4.cuh"
#include "engine/compute/cuda/rows.cuh"

enum {
    MOE_ROWS = 4,
    MOE_TOP_K = 8,
    MOE_TILES = MOE_ROWS * MOE_TOP_K + 1,
    ROUTER_THREADS = 128,
    ROUTER_OUTPUTS = ROUTER_THREADS / CUDA_LANES,
    ROUTER_UNITS = 16, /* 256-byte pieces of an output: up to 2048 inputs */
    MOE_THREADS = 576, /* 36 half-warps: 4608 outputs of 9 experts are one each on 132 blocks */
    MOE_HALVES = MOE_THREADS / CUDA_LANES,
    UP_GROUPS = 4, /* 512 inputs each: up to 2048 */
    DOWN_OUTPUTS = 16,
    DOWN_WIDTH = CUDA_NVFP4_GROUP,
    DOWN_BATCH = 2 /* items of a half-warp that are under way at once */
};

struct router_call {
    struct rows_call rows;
    const uint8_t *w;
    size_t row_bytes;
    int units, experts;
    const float *bias;
    uint32_t *key;
    float *score;
    uint16_t *lanes; /* [rows, hidden] normed, in lanes order */
};

template <int R>
static __global__ __launch_bounds__(ROUTER_THREADS) void moe_router(const struct router_call c)
{
    const int lane = threadIdx.x % CUDA_LANES;
    const int expert = (int)blockIdx.x * ROUTER_OUTPUTS + (int)threadIdx.x / CUDA_LANES;
    const uint8_t *from = c.w + (size_t)expert * c.row_bytes + lane * 16;
    uint4 w[ROUTER_UNITS], norm[ROWS_PIECES];
    float acc[R] = {};
    pdl_launch_next();
#pragma unroll
    for (int u = 0; u < ROUTER_UNITS; u++)
        if (u < c.units)
            w[u] = load_stream(from + u * CUDA_LANES * 16);
    rows_take_norm<true>(c.rows, norm);
    const float bias = c.bias[expert];
    pdl_wait();
    rows_stage<R, true>(c.rows, norm);
    const int pieces = c.rows.inputs / ROWS_PIECE;
    for (int r = (int)blockIdx.x; r < R; r += (int)gridDim.x) /* kept for the next kernel */
        for (int i = threadIdx.x; i < pieces; i += ROUTER_THREADS)
            ((uint4 *)c.lanes)[r * pieces + i] = rows_shared[r * pieces + i];
#pragma unroll
    for (int u = 0; u < ROUTER_UNITS; u++)
        if (u < c.units)
#pragma unroll
            for (int r = 0; r < R; r++)
                acc[r] = lanes_dot(w[u], rows_shared[r * pieces + u * CUDA_LANES + lane], acc[r]);
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float logit = rounded(lanes_sum(acc[r]));
        if (lane == r) {
            const float score = elementary_sigmoid(logit);
            c.score[r * c.experts + expert] = score;
            c.key[r * c.experts + expert] = route_key(score + bias);
        }
    }
}

/* ---- Which experts, and whose rows ---- */

/* A tile is an expert that some row chose, or the shared one (the last), with its members: entries
 * r * slots + slot. One warp fills it. */
struct moe_tiles {
    int chosen[MOE_ROWS * MOE_TOP_K];
    int expert[MOE_TILES], count[MOE_TILES];
    int member[MOE_TILES][MOE_ROWS];
    int tiles;
};

static __device__ __forceinline__ void find_tiles(const struct experts_run &e, struct moe_tiles *t)
{
    const int lane = threadIdx.x % 32, entries = e.rows * e.top_k;
    const int expert = lane < entries ? t->chosen[lane] : -1 - lane;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    const bool leads = lane < entries && __ffs((int)same) - 1 == lane;
    const unsigned leaders = __ballot_sync(0xffffffffu, leads);
    const int tiles = __popc(leaders), mine = __popc(leaders & ((1u << lane) - 1));
    if (leads) {
        unsigned left = same;
        int n = 0;
        for (; left != 0; left &= left - 1) {
            const int entry = __ffs((int)left) - 1;
            t->member[mine][n++] = entry / e.top_k * e.slots + entry % e.top_k;
        }
        t->expert[mine] = expert;
        t->count[mine] = n;
    }
    if (lane < e.rows)
        t->member[tiles][lane] = lane * e.slots + e.top_k;
    if (lane == 0) {
        t->expert[tiles] = e.experts;
        t->count[tiles] = e.rows;
        t->tiles = tiles + 1;
    }
    __syncwarp();
}

/* ---- Gate and up ---- */

extern __shared__ __align__(16) uint8_t moe_memory[];

struct up_item {
    uint4 code[UP_GROUPS][2];
    uint2 scale[2];
};

static __device__ __forceinline__ void up_load(const struct experts_run &e, int expert, int output,
                                               int groups, int lane, struct up_item *w)
{
    const struct cuda_experts *const of[2] = {&e.gate, &e.up};
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint8_t *data = of[m]->first.data + (size_t)expert * of[m]->data_stride +
                              (size_t)output * of[m]->first.row_bytes + lane * 16;
        const uint8_t *scales = of[m]->first.scales + (size_t)expert * of[m]->scale_stride +
                                (size_t)output * of[m]->first.scale_bytes;
#pragma unroll
        for (int g = 0; g < UP_GROUPS; g++)
            if (g < groups)
                w->code[g][m] = load_stream(data + g * CUDA_LANES * 16);
        /* two halves of 16 bytes a group; a lane takes 8 */
        if (lane < 4 * groups)
            w->scale[m] = load_stream8(scales + lane * 8);
    }
}

static __device__ __forceinline__ void put_scales(uint2 bytes, float *to)
{
    const uint32_t word[2] = {bytes.x, bytes.y};
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(float4 *)(to + 4 * i) =
            make_float4(nvfp4_scale(word[i] & 0xffu), nvfp4_scale(word[i] >> 8 & 0xffu),
                        nvfp4_scale(word[i] >> 16 & 0xffu), nvfp4_scale(word[i] >> 24));
}

template <int M>
static __device__ __forceinline__ void
up_multiply(const struct experts_run &e, const struct up_item *w, const float *scales,
            const float *x, int groups, const int *member, int n, int output, int lane)
{
    const int blocks = groups * NVFP4_GROUP_BLOCKS;
    const float *row[M];
    float acc[2][M] = {};
#pragma unroll
    for (int i = 0; i < M; i++)
        row[i] = x + member[i < n ? i : 0] / e.slots * e.hidden + lane * 4;
#pragma unroll
    for (int g = 0; g < UP_GROUPS; g++) {
        if (g < groups) {
            const float *const scale[2] = {
                scales + nvfp4_scales_at(blocks, 2, 0, 0, lane / 8) + g * NVFP4_GROUP_BLOCKS,
                scales + nvfp4_scales_at(blocks, 2, 0, 1, lane / 8) + g * NVFP4_GROUP_BLOCKS};
            const float *at[M];
#pragma unroll
            for (int i = 0; i < M; i++)
                at[i] = row[i] + g * CUDA_NVFP4_GROUP;
            nvfp4_group<2, M>(moe_memory, w->code[g], scale, at, acc);
        }
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
        const float gate = rounded(lanes_sum(acc[0][i])), up = rounded(lanes_sum(acc[1][i]));
        if (lane == i && i < n)
            e.inner[(size_t)member[i] * (size_t)e.width + (size_t)output] = silu_up(gate, up);
    }
}

struct up_layout {
    int rows_at, scales_at, tiles_at, bytes;
};

static __host__ __device__ __forceinline__ struct up_layout up_lay_out(int rows, int hidden)
{
    struct up_layout p;
    const int blocks = hidden / CUDA_BLOCK;
    p.rows_at = NVFP4_TABLE_BYTES;
    p.scales_at = p.rows_at + rows * hidden * (int)sizeof(float);
    p.tiles_at = p.scales_at + MOE_HALVES / 2 * nvfp4_scales_floats(blocks, 2) * (int)sizeof(float);
    p.bytes = p.tiles_at + (int)sizeof(struct moe_tiles);
    return p;
}

template <int R>
static __global__ __launch_bounds__(MOE_THREADS, 1) void moe_up(const struct experts_run e)
{
    const struct up_layout p = up_lay_out(R, e.hidden);
    float *x = (float *)(moe_memory + p.rows_at);
    struct moe_tiles *tiles = (struct moe_tiles *)(moe_memory + p.tiles_at);
    const int thread = (int)threadIdx.x, half = thread / CUDA_LANES, lane = thread % CUDA_LANES;
    const int groups = e.hidden / CUDA_NVFP4_GROUP, blocks = e.hidden / CUDA_BLOCK;
    float *scales =
        (float *)(moe_memory + p.scales_at) + half * (nvfp4_scales_floats(blocks, 2) / 2);

    nvfp4_fill_table(moe_memory, thread, MOE_THREADS);
    pdl_wait();
    pdl_launch_next(); /* not before: the next kernel reads the router's results as it starts */
    if (thread < 32) {
#pragma unroll
        for (int r = 0; r < R; r++)
            route_row(e.key + (size_t)r * (size_t)e.experts, e.experts, e.top_k, thread,
                      tiles->chosen + r * e.top_k);
        find_tiles(e, tiles);
    } else {
        /* rows come in lanes order: four blocks a piece */
        for (int i = thread - 32; i < R * e.hidden / ROWS_PIECE; i += MOE_THREADS - 32) {
            const uint4 v = load_fresh(e.normed + (size_t)i * ROWS_PIECE);
            const int group = i / CUDA_LANES, at = i % CUDA_LANES;
            float4 *to = (float4 *)x + group * 2 * CUDA_LANES + at;
            to[0] = make_float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
            to[CUDA_LANES] =
                make_float4(bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w));
        }
    }
    __syncthreads();

    const int items = tiles->tiles * e.width, step = (int)gridDim.x * MOE_HALVES;
    struct up_item w;
    int item = (int)blockIdx.x * MOE_HALVES + half;
    const int mine = item;
    if (item < items)
        up_load(e, tiles->expert[item / e.width], item % e.width, groups, lane, &w);
    /* Both half-warps of a warp go round together. */
    for (; item - (mine & 1) < items; item += step) {
        const bool here = item < items;
        const int tile = here ? item / e.width : 0, output = item % e.width;
        __syncwarp();
#pragma unroll
        for (int m = 0; m < 2; m++)
            if (here && lane < 4 * groups)
                put_scales(w.scale[m], scales +
                                           nvfp4_scales_at(blocks, 2, 0, m, lane / (2 * groups)) +
                                           lane % (2 * groups) * 8);
        __syncwarp();
        const struct up_item now = w;
        if (item + step < items)
            up_load(e, tiles->expert[(item + step) / e.width], (item + step) % e.width, groups,
                    lane, &w);
        const int *member = tiles->member[tile];
        const int n = here ? tiles->count[tile] : 0;
        if (R == 1) {
            up_multiply<1>(e, &now, scales, x, groups, member, n, output, lane);
        } else {
            const int most = max(n, __shfl_xor_sync(0xffffffffu, n, 16));
            if (most <= 1)
                up_multiply<1>(e, &now, scales, x, groups, member, n, output, lane);
            else if (most == 2)
                up_multiply<2>(e, &now, scales, x, groups, member, n, output, lane);
            else
                up_multiply<R>(e, &now, scales, x, groups, member, n, output, lane);
        }
    }
}

/* ---- Down, mixture, residual ---- */

struct down_layout {
    int rows_at, scales_at, out_at, mix_at, tiles_at, bytes;
};

static __host__ __device__ __forceinline__ struct down_layout down_lay_out(int rows, int slots)
{
    struct down_layout p;
    p.rows_at = NVFP4_TABLE_BYTES;
    p.scales_at = p.rows_at + rows * slots * DOWN_WIDTH * (int)sizeof(float);
    p.out_at = p.scales_at + MOE_HALVES / 2 * nvfp4_scales_floats(NVFP4_GROUP_BLOCKS, DOWN_BATCH) *
                                 (int)sizeof(float);
    p.mix_at = p.out_at + rows * slots * DOWN_OUTPUTS * (int)sizeof(float);
    p.tiles_at = p.mix_at + rows * MOE_TOP_K * (int)sizeof(float);
    p.bytes = p.tiles_at + (int)sizeof(struct moe_tiles);
    return p;
}

template <int M>
static __device__ __forceinline__ void down_multiply(const uint4 *code, const float *scale,
                                                     const float *x, const int *member, int n,
                                                     float *out, int output, int lane)
{
    const float *const scales[1] = {scale};
    const float *at[M];
    float acc[1][M] = {};
#pragma unroll
    for (int i = 0; i < M; i++)
        at[i] = x + member[i < n ? i : 0] * DOWN_WIDTH + lane * 4;
    nvfp4_group<1, M>(moe_memory, code, scales, at, acc);
#pragma unroll
    for (int i = 0; i < M; i++) {
        const float v = rounded(lanes_sum(acc[0][i]));
        if (lane == i && i < n)
            out[member[i] * DOWN_OUTPUTS + output] = v;
    }
}

/* Of one row: registers are kept to what lets the next layer's projections beside a block. */
static constexpr int down_blocks(int rows)
{
    return rows == 1 ? 2 : 1;
}

template <int R>
static __global__ __launch_bounds__(MOE_THREADS,
                                    down_blocks(R)) void moe_down(const struct experts_run e)
{
    const struct down_layout p = down_lay_out(R, e.slots);
    float *x = (float *)(moe_memory + p.rows_at), *out = (float *)(moe_memory + p.out_at);
    float *mix = (float *)(moe_memory + p.mix_at);
    struct moe_tiles *tiles = (struct moe_tiles *)(moe_memory + p.tiles_at);
    const int thread = (int)threadIdx.x, half = thread / CUDA_LANES, lane = thread % CUDA_LANES;
    const int first = (int)blockIdx.x * DOWN_OUTPUTS;
    float *scales = (float *)(moe_memory + p.scales_at) +
                    half * (nvfp4_scales_floats(NVFP4_GROUP_BLOCKS, DOWN_BATCH) / 2);

    pdl_launch_next();
    nvfp4_fill_table(moe_memory, thread, MOE_THREADS);
    /* Gate and up let this kernel start when the router had ended. */
    if (thread < 32) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            route_row(e.key + (size_t)r * (size_t)e.experts, e.experts, e.top_k, thread,
                      tiles->chosen + r * e.top_k);
            route_mix(e.score + (size_t)r * (size_t)e.experts, tiles->chosen + r * e.top_k, e.top_k,
                      e.normalize, thread, mix + r * MOE_TOP_K);
        }
        find_tiles(e, tiles);
    }
    __syncthreads();

    const int items = tiles->tiles * DOWN_OUTPUTS, batch = DOWN_BATCH * MOE_HALVES;
    bool waited = false;
    for (int from = 0; from < items; from += batch) {
        uint4 code[DOWN_BATCH];
#pragma unroll
        for (int j = 0; j < DOWN_BATCH; j++) {
            const int item = from + j * MOE_HALVES + half;
            const size_t expert = (size_t)tiles->expert[item < items ? item / DOWN_OUTPUTS : 0];
            const size_t output = (size_t)(first + item % DOWN_OUTPUTS);
            code[j] = load_stream(e.down.first.data + expert * e.down.data_stride +
                                  output * e.down.first.row_bytes + lane * 16);
            const uint16_t two =
                *(const uint16_t *)(e.down.first.scales + expert * e.down.scale_stride +
                                    output * e.down.first.scale_bytes + lane * 2);
            __syncwarp();
            *(float2 *)(scales + nvfp4_scales_at(NVFP4_GROUP_BLOCKS, DOWN_BATCH, 0, j, lane / 8) +
                        lane % 8 * 2) =
                make_float2(nvfp4_scale(two & 0xffu), nvfp4_scale((uint32_t)two >> 8));
        }
        if (!waited) {
            waited = true;
            pdl_wait();
            const int all = R * e.slots * DOWN_WIDTH;
            nvfp4_take_row(e.inner, all, all, x, thread, MOE_THREADS);
            __syncthreads();
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < DOWN_BATCH; j++) {
            const int item = from + j * MOE_HALVES + half;
            const bool here = item < items;
            const int tile = here ? item / DOWN_OUTPUTS : 0, output = item % DOWN_OUTPUTS;
            const float *scale =
                scales + nvfp4_scales_at(NVFP4_GROUP_BLOCKS, DOWN_BATCH, 0, j, lane / 8);
            const int *member = tiles->member[tile];
            const int n = here ? tiles->count[tile] : 0;
            const int most = R == 1 ? 1 : max(n, __shfl_xor_sync(0xffffffffu, n, 16));
            if (R == 1 || most <= 1)
                down_multiply<1>(&code[j], scale, x, member, n, out, output, lane);
            else if (most == 2)
                down_multiply<2>(&code[j], scale, x, member, n, out, output, lane);
            else
                down_multiply<R>(&code[j], scale, x, member, n, out, output, lane);
        }
    }
    __syncthreads();
    if (thread < R * DOWN_OUTPUTS) {
        const int r = thread / DOWN_OUTPUTS, output = thread % DOWN_OUTPUTS;
        const float *y = out + r * e.slots * DOWN_OUTPUTS + output;
        uint16_t *to = e.x + (size_t)r * (size_t)e.hidden + (size_t)(first + output);
        float sum = 0.0f;
        for (int i = 0; i < e.top_k; i++) {
            const float part = rounded(y[i * DOWN_OUTPUTS] * mix[r * MOE_TOP_K + i]);
            sum = i == 0 ? part : rounded(sum + part);
        }
        sum = rounded(sum * e.routed_scale);
        sum = rounded(sum + y[e.top_k * DOWN_OUTPUTS]);
        *to = bf16_of(bf16_float(load_fresh_one(to)) + sum);
    }
}

template <int R>
static void moe_launch(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                       const struct experts_run *e)
{
    struct router_call c = {};
    c.rows.x = a->x;
    c.rows.norm = a->w->norm;
    c.rows.x_stride = (size_t)a->hidden;
    c.rows.inputs = a->hidden;
    c.rows.eps = a->w->block->eps;
    c.w = a->w->router.data;
    c.row_bytes = a->w->router.row_bytes;
    c.units = a->hidden / CUDA_BF16_GROUP;
    c.experts = e->experts;
    c.bias = a->w->selection_bias;
    c.key = e->key;
    c.score = e->score;
    c.lanes = e->normed;
    const int bytes = rows_bytes(&c.rows, R, true);
    cuda_meter_stage(METER_ROUTER);
    cuda_launch(l, "moe_router", moe_router<R>, dim3((unsigned)(e->experts / ROUTER_OUTPUTS)),
                dim3(ROUTER_THREADS), (size_t)bytes, c);
    cuda_meter_stage(METER_EXPERTS);
    cuda_launch(l, "moe_up", moe_up<R>, dim3((unsigned)l->device->multiprocessors),
                dim3(MOE_THREADS), (size_t)up_lay_out(R, e->hidden).bytes, *e);
    cuda_launch(l, "moe_down", moe_down<R>, dim3((unsigned)(e->hidden / DOWN_OUTPUTS)),
                dim3(MOE_THREADS), (size_t)down_lay_out(R, e->slots).bytes, *e);
}

static bool is_nvfp4(const struct cuda_experts *m)
{
    return m->first.format == WEIGHT_NVFP4 && m->first.in == m->first.padded &&
           m->first.scale_bytes % 8 == 0 && m->scale_stride % 8 == 0;
}

bool cuda_moe(const struct cuda_launch *l, const struct cuda_ffn_run *a,
              const struct experts_run *e)
{
    const struct cuda_matrix *router = &a->w->router;
    if (a->rows > MOE_ROWS || !e->shared || e->top_k > MOE_TOP_K || e->width != DOWN_WIDTH ||
        e->hidden % CUDA_NVFP4_GROUP != 0 || e->hidden > UP_GROUPS * CUDA_NVFP4_GROUP ||
        e->experts % ROUTER_OUTPUTS != 0 || router->format != WEIGHT_BF16 || !is_nvfp4(&e->gate) ||
        !is_nvfp4(&e->up) || !is_nvfp4(&e->down) || (uintptr_t)a->x % 16 != 0 ||
        (uintptr_t)a->w->norm % 16 != 0 ||
        (size_t)up_lay_out(a->rows, e->hidden).bytes > l->device->shared_most ||
        (size_t)down_lay_out(a->rows, e->slots).bytes > l->device->shared_most)
        return false;
    switch (a->rows) {
    case 1:
        moe_launch<1>(l, a, e);
        break;
    case 2:
        moe_launch<2>(l, a, e);
        break;
    case 3:
        moe_launch<3>(l, a, e);
        break;
    default:
        moe_launch<4>(l, a, e);
    }
    return true;
}
