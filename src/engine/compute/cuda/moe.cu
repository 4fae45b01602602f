/* One kernel for few rows of NVFP4 experts with the shared one among them: norm, router, choice,
 * gate and up, down, mixture and residual. Its blocks, one a multiprocessor, give each other the
 * router's keys and the rows between gate and up and down (moe.cuh). What a stage reads of weights
 * is under way before it waits: at these sizes latency counts as much as bytes. A pair of warps has
 * 16 rows of weights, each warp one half of their lanes (nvfp4_tile.cuh). An entry is a row's use
 * of an expert, number row * slots + slot. */
#include "engine/compute/cuda/moe.cuh"

#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/meter.h"
#include "engine/compute/cuda/nvfp4_tile.cuh"
#include "engine/compute/cuda/rows.cuh"
#include "engine/compute/cuda/timeline.cuh"

enum {
    MOE_TOP_K = 8,
    MOE_SLOTS = MOE_TOP_K + 1,
    MOE_HIDDEN = 2048,
    MOE_WIDTH = CUDA_NVFP4_GROUP,
    MOE_WARPS = 2 * MOE_SLOTS, /* an entry's down */
    MOE_THREADS = 32 * MOE_WARPS,
    UP_OUTPUTS = TILE_OUTPUTS / 2, /* of a pair: gate's rows and up's */
    UP_TILES = MOE_WIDTH / UP_OUTPUTS,
    UP_GROUPS = MOE_HIDDEN / CUDA_NVFP4_GROUP,
    UP_ROW = MOE_HIDDEN / 2, /* bytes of codes of an output; of scales: */
    UP_SCALES = MOE_HIDDEN / 16,
    UP_BYTES = TILE_OUTPUTS * (UP_ROW + UP_SCALES),
    DOWN_TILES = MOE_HIDDEN / TILE_OUTPUTS,
    DOWN_ROW = MOE_WIDTH / 2,
    DOWN_SCALES = MOE_WIDTH / 16,
    DOWN_BYTES = TILE_OUTPUTS * (DOWN_ROW + DOWN_SCALES),
    COPIES = 3 * MOE_SLOTS,            /* that are waited for: pairs', slots' of two rows */
    ROUTER_BYTES = 2 * MOE_HIDDEN * 2, /* two experts */
    /* A row as tile_put leaves it, and what is said of it: bytes. */
    UP_UNITS = MOE_HIDDEN / (CUDA_BLOCK * TILE_UNIT),
    UP_INPUTS = UP_UNITS * TILE_UNIT_WORDS * 4,
    UP_ODD = tile_odd_words(UP_UNITS) * 4,
    DOWN_UNITS = MOE_WIDTH / (CUDA_BLOCK * TILE_UNIT),
    DOWN_INPUTS = DOWN_UNITS * TILE_UNIT_WORDS * 4,
    DOWN_ODD = tile_odd_words(DOWN_UNITS) * 4
};

static_assert((int)MOE_INNER == (int)MOE_SLOTS * (int)MOE_WIDTH, "moe.cuh has room for them");

struct moe_call {
    struct experts_run e;
    struct rows_call rows;
    const uint8_t *router;
    size_t router_bytes; /* of an expert */
    const float *bias;
};

/* Shared memory of R rows. It begins with the rows (rows.cuh); the norm's part of them becomes the
 * rows as tile_put leaves them. Behind all are the codes of gate and up, where later those rows
 * are that gate and up have made and, of several rows, down's weights. */
template <int R> struct moe_place {
    enum {
        PAIRS = R == 1 ? 5 : MOE_SLOTS, /* 576 tiles of a row on 132 blocks */
        INPUTS = R * MOE_HIDDEN * 2,
        EXCHANGE = INPUTS + R * UP_INPUTS,
        ODD = EXCHANGE + MOE_SLOTS * 32 * 16,
        INNER_ODD = ODD + R * UP_ODD,
        OUT = (INNER_ODD + R * MOE_SLOTS * DOWN_ODD + 15) / 16 * 16,
        SCORE = OUT + R * MOE_SLOTS * TILE_OUTPUTS * 4,
        MIX = SCORE + R * MOE_EXPERTS * 4,
        CHOSEN = MIX + R * MOE_TOP_K * 4,
        ZERO = CHOSEN + R * MOE_TOP_K * 4,
        BARRIERS = ZERO + TILE_ZEROS,
        FRONT = (BARRIERS + (COPIES + MOE_SLOTS) * 8 + 127) / 128 * 128,
        DOWN_IN_FRONT = R == 1,
        UP = FRONT + (DOWN_IN_FRONT ? MOE_SLOTS * DOWN_BYTES : 0),
        INNER = UP,
        DOWN = DOWN_IN_FRONT ? (int)FRONT : INNER + R * MOE_SLOTS * DOWN_INPUTS,
        BYTES = UP + PAIRS * UP_BYTES
    };
    static_assert((int)EXCHANGE >= R * (MOE_HIDDEN + MOE_HIDDEN + CUDA_LANES * ROWS_PIECE) * 2 + 16,
                  "the norm's part");
    static_assert((DOWN_IN_FRONT ? (int)DOWN + ROUTER_BYTES <= (int)UP
                                 : DOWN + 2 * MOE_SLOTS * DOWN_BYTES <= (int)BYTES),
                  "two rows' down");
    static_assert((int)ZERO % 16 == 0 && (int)SCORE % 16 == 0, "aligned");
};

extern __shared__ __align__(16) uint8_t moe_memory[];

/* Down's weights; before, the router's. */
template <int R> static __device__ __forceinline__ uint8_t *moe_down_weights(void)
{
    return moe_memory + moe_place<R>::DOWN;
}

/* ---- Copies of whole rows, by bulk or by the pair's threads ---- */

template <int R> static __device__ __forceinline__ uint64_t *moe_barrier(int number)
{
    return (uint64_t *)(moe_memory + moe_place<R>::BARRIERS) + number;
}

/* Starts to copy, by a pair of warps. */
static __device__ __forceinline__ void pair_copy(void *shared, const uint8_t *global, int bytes,
                                                 uint64_t *barrier)
{
    if (PTX_HOPPER) {
        if (threadIdx.x % 64 == 0)
            bulk_copy(shared, global, (unsigned)bytes, barrier);
    } else {
        for (int i = (int)threadIdx.x % 64 * 16; i < bytes; i += 64 * 16)
            copy_async((uint8_t *)shared + i, global + i);
    }
}

static __device__ __forceinline__ void pair_expect(uint64_t *barrier, int bytes)
{
    if (PTX_HOPPER && threadIdx.x % 64 == 0)
        bulk_expect(barrier, (unsigned)bytes);
}

/* Until what a pair copied in its turn `turn` of that barrier is there. */
template <int R> static __device__ __forceinline__ void pair_wait(uint64_t *barrier, int turn)
{
    if (PTX_HOPPER) {
        bulk_wait(barrier, (unsigned)turn);
    } else {
        copy_wait<0>();
        pair_barrier((unsigned *)moe_barrier<R>(COPIES), (int)threadIdx.x / 64);
    }
}

template <int R>
static __device__ __forceinline__ int moe_expert(const struct experts_run &e, int entry)
{
    const int row = R == 1 ? 0 : entry / e.slots, slot = entry - row * e.slots;
    const int *chosen = (const int *)(moe_memory + moe_place<R>::CHOSEN);
    return slot < e.top_k ? chosen[row * MOE_TOP_K + slot] : e.experts;
}

/* ---- Gate and up ---- */

/* Gate's rows, up's rows; their scales. */
template <int R> static __device__ __forceinline__ void up_begin(const struct moe_call &c, int tile)
{
    const int pair = (int)threadIdx.x / 64, output = tile % UP_TILES * UP_OUTPUTS;
    uint8_t *to = moe_memory + moe_place<R>::UP + pair * UP_BYTES;
    uint64_t *barrier = moe_barrier<R>(pair);
    const size_t expert = (size_t)moe_expert<R>(c.e, tile / UP_TILES);
    pair_expect(barrier, UP_BYTES);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const struct cuda_experts &of = m == 0 ? c.e.gate : c.e.up;
        pair_copy(to + m * UP_OUTPUTS * UP_ROW,
                  of.first.data + expert * of.data_stride + (size_t)(output * UP_ROW),
                  UP_OUTPUTS * UP_ROW, barrier);
        pair_copy(to + TILE_OUTPUTS * UP_ROW + m * UP_OUTPUTS * UP_SCALES,
                  of.first.scales + expert * of.scale_stride + (size_t)(output * UP_SCALES),
                  UP_OUTPUTS * UP_SCALES, barrier);
    }
    copy_commit();
}

/* A slot's rows of a tile of outputs, for row r. */
template <int R>
static __device__ __forceinline__ void down_begin(const struct moe_call &c, int tile, int r)
{
    const int slot = (int)threadIdx.x / 64, stage = R == 1 ? 0 : r % 2 * MOE_SLOTS;
    if (slot < c.e.slots && r < R && tile < DOWN_TILES) {
        uint8_t *to = moe_down_weights<R>() + (stage + slot) * DOWN_BYTES;
        uint64_t *barrier = moe_barrier<R>(MOE_SLOTS + stage + slot);
        const struct cuda_experts &of = c.e.down;
        const size_t expert = (size_t)moe_expert<R>(c.e, r * c.e.slots + slot);
        pair_expect(barrier, DOWN_BYTES);
        pair_copy(
            to, of.first.data + expert * of.data_stride + (size_t)(tile * TILE_OUTPUTS * DOWN_ROW),
            TILE_OUTPUTS * DOWN_ROW, barrier);
        pair_copy(to + TILE_OUTPUTS * DOWN_ROW,
                  of.first.scales + expert * of.scale_stride +
                      (size_t)(tile * TILE_OUTPUTS * DOWN_SCALES),
                  TILE_OUTPUTS * DOWN_SCALES, barrier);
    }
    copy_commit();
}

/* Each pair goes its own way. Its first tile is under way. */
template <int R>
static __device__ __forceinline__ void moe_up(const struct moe_call &c, struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const struct experts_run &e = c.e;
    const int pair = (int)threadIdx.x / 64, half = (int)threadIdx.x / 32 % 2;
    const int lane = (int)threadIdx.x % 32, tiles = R * e.slots * UP_TILES;
    const int step = place::PAIRS * (int)gridDim.x;
    float4 *exchange = (float4 *)(moe_memory + place::EXCHANGE) + pair * 32 + lane;
    const int from = place::UP + pair * UP_BYTES;
    const struct tile_rows rows = {from,      from + TILE_OUTPUTS * UP_ROW,
                                   UP_ROW,    UP_OUTPUTS * UP_ROW,
                                   UP_SCALES, UP_OUTPUTS * UP_SCALES};
    int tile = (int)blockIdx.x + pair % place::PAIRS * (int)gridDim.x, turn = 0;
    /* Down is copied behind what gate and up wait for (where they have one turn: a later one's end
     * cannot be told from the first one's beginning). */
    if (place::DOWN_IN_FRONT && (pair >= place::PAIRS || tile >= tiles)) {
        if (PTX_HOPPER && tile < tiles && tile + step >= tiles)
            bulk_wait(moe_barrier<R>(pair % place::PAIRS), 0);
        down_begin<R>(c, (int)blockIdx.x, 0);
    }
    if (pair >= place::PAIRS)
        return;
    for (; tile < tiles; tile += step, turn++) {
        const int entry = tile / UP_TILES, row = R == 1 ? 0 : entry / e.slots;
        pair_wait<R>(moe_barrier<R>(pair), turn);
        timeline_mark(TIMELINE_MOE_UP_THERE);
        if (place::DOWN_IN_FRONT && turn == 0)
            down_begin<R>(c, (int)blockIdx.x, 0);
        const float4 acc = tile_multiply(rows, half, UP_GROUPS, place::INPUTS + row * UP_INPUTS,
                                         place::ODD + row * UP_ODD, place::ZERO);
        timeline_mark(TIMELINE_MOE_UP_MULTIPLIED);
        if (half == 1)
            *exchange = acc;
        pair_barrier((unsigned *)moe_barrier<R>(COPIES), pair);
        if (half == 0) {
            const float2 sums = tile_sum(acc, *exchange); /* of gate, of up */
            const uint16_t inner = silu_up(rounded(sums.x), rounded(sums.y));
            if (lane % 4 == 0) /* one of NaN's bits are those of nothing */
                value_put(&values->inner[tile * UP_OUTPUTS + lane / 4],
                          (uint16_t)(inner == 0xffff ? 1 : ~inner));
        }
        if (!PTX_HOPPER) /* what is copied next goes where the other warp has read */
            pair_barrier((unsigned *)moe_barrier<R>(COPIES), pair);
        if (tile + step < tiles)
            up_begin<R>(c, tile + step);
    }
}

/* ---- Down, mixture, residual ---- */

static __device__ __forceinline__ bool no_half_is_zero(uint32_t v)
{
    return ((v - 0x00010001u) & ~v & 0x80008000u) == 0;
}

/* The rows that gate and up have made, as they come. */
template <int R>
static __device__ __forceinline__ void moe_take_inner(const struct moe_call &c,
                                                      const struct moe_values *values)
{
    typedef struct moe_place<R> place;
    enum { PIECES = MOE_WIDTH / ROWS_PIECE };
    const int pieces = R * c.e.slots * PIECES;
    for (int i = (int)threadIdx.x; i < pieces; i += MOE_THREADS) {
        const int entry = i / PIECES;
        uint4 v;
        do
            v = values_look(&values->inner[i * ROWS_PIECE]);
        while (!no_half_is_zero(v.x) || !no_half_is_zero(v.y) || !no_half_is_zero(v.z) ||
               !no_half_is_zero(v.w));
        v = make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
        tile_put_piece((uint32_t *)(moe_memory + place::INNER + entry * DOWN_INPUTS),
                       (uint32_t *)(moe_memory + place::INNER_ODD + entry * DOWN_ODD), DOWN_UNITS,
                       i % PIECES, v);
    }
    __syncthreads();
}

template <int R>
static __device__ __forceinline__ void moe_mix(const struct moe_call &c, int tile, float before)
{
    const struct experts_run &e = c.e;
    const int r = (int)threadIdx.x / TILE_OUTPUTS, output = (int)threadIdx.x % TILE_OUTPUTS;
    const float *y =
        (const float *)(moe_memory + moe_place<R>::OUT) + r * e.slots * TILE_OUTPUTS + output;
    const float *mix = (const float *)(moe_memory + moe_place<R>::MIX) + r * MOE_TOP_K;
    float sum = 0.0f;
    for (int i = 0; i < e.top_k; i++) {
        const float part = rounded(y[i * TILE_OUTPUTS] * mix[i]);
        sum = i == 0 ? part : rounded(sum + part);
    }
    sum = rounded(sum * e.routed_scale);
    sum = rounded(sum + y[e.top_k * TILE_OUTPUTS]);
    e.x[(size_t)(r * MOE_HIDDEN + tile * TILE_OUTPUTS + output)] = bf16_of(before + sum);
}

template <int R>
static __device__ __forceinline__ float moe_before(const struct experts_run &e, int tile)
{
    const int r = (int)threadIdx.x / TILE_OUTPUTS, output = (int)threadIdx.x % TILE_OUTPUTS;
    return r < R && tile < DOWN_TILES
               ? bf16_float(
                     load_fresh_one(e.x + (size_t)(r * MOE_HIDDEN + tile * TILE_OUTPUTS + output)))
               : 0.0f;
}

/* Its first two rows are under way; a slot's pair of warps each. */
template <int R>
static __device__ __forceinline__ void moe_down(const struct moe_call &c, float before)
{
    typedef struct moe_place<R> place;
    const struct experts_run &e = c.e;
    const int slot = (int)threadIdx.x / 64, half = (int)threadIdx.x / 32 % 2;
    const int lane = (int)threadIdx.x % 32;
    float *out = (float *)(moe_memory + place::OUT);
    float4 *exchange = (float4 *)(moe_memory + place::EXCHANGE) + slot * 32 + lane;
    int turns[2] = {0, 0}; /* of each stage */
    for (int tile = (int)blockIdx.x; tile < DOWN_TILES; tile += (int)gridDim.x) {
        if (tile != (int)blockIdx.x) {
            down_begin<R>(c, tile, 0);
            down_begin<R>(c, tile, 1);
            before = moe_before<R>(e, tile);
        }
        for (int r = 0; r < R && slot < e.slots; r++) {
            const int entry = r * e.slots + slot, stage = R == 1 ? 0 : r % 2;
            const int from = place::DOWN + (stage * MOE_SLOTS + slot) * DOWN_BYTES;
            const struct tile_rows rows = {from,        from + TILE_OUTPUTS * DOWN_ROW,
                                           DOWN_ROW,    TILE_OUTPUTS / 2 * DOWN_ROW,
                                           DOWN_SCALES, TILE_OUTPUTS / 2 * DOWN_SCALES};
            pair_wait<R>(moe_barrier<R>(MOE_SLOTS + stage * MOE_SLOTS + slot), turns[stage]++);
            timeline_mark(TIMELINE_MOE_DOWN_THERE);
            const float4 acc = tile_multiply(rows, half, 1, place::INNER + entry * DOWN_INPUTS,
                                             place::INNER_ODD + entry * DOWN_ODD, place::ZERO);
            timeline_mark(TIMELINE_MOE_DOWN_MULTIPLIED);
            if (half == 1)
                *exchange = acc;
            pair_barrier((unsigned *)moe_barrier<R>(COPIES), slot);
            if (half == 0) {
                const float2 sums = tile_sum(acc, *exchange);
                if (lane % 4 < 2)
                    out[entry * TILE_OUTPUTS + lane % 4 * 8 + lane / 4] =
                        rounded(lane % 4 == 0 ? sums.x : sums.y);
            }
            if (R > 1) { /* the exchange is written again; where there was r is room */
                pair_barrier((unsigned *)moe_barrier<R>(COPIES), slot);
                down_begin<R>(c, tile, r + 2);
            }
        }
        __syncthreads();
        if ((int)threadIdx.x < R * TILE_OUTPUTS)
            moe_mix<R>(c, tile, before);
        __syncthreads();
    }
}

/* ---- The router ---- */

/* Starts to copy the weights of two experts. */
template <int R>
static __device__ __forceinline__ void router_begin(const struct moe_call &c, int pair)
{
    enum { PIECES = ROUTER_BYTES / 16 };
    const int i = (int)threadIdx.x;
    static_assert((int)PIECES <= (int)MOE_THREADS, "a piece each");
    if (i < PIECES && 2 * pair < c.e.experts)
        copy_async(moe_down_weights<R>() + i * 16,
                   c.router + (size_t)(2 * pair + i / (PIECES / 2)) * c.router_bytes +
                       (size_t)(i % (PIECES / 2)) * 16);
    copy_commit();
}

/* Two experts for all rows, a warp for each. Their weights are there. */
template <int R>
static __device__ __forceinline__ void router_multiply(int pair, float bias,
                                                       struct moe_values *values)
{
    enum { UNITS = MOE_HIDDEN / (4 * CUDA_BLOCK) };
    const int r = (int)threadIdx.x / 32, half = (int)threadIdx.x % 32 / CUDA_LANES;
    const int lane = (int)threadIdx.x % CUDA_LANES;
    const uint4 *w = (const uint4 *)moe_down_weights<R>() + half * UNITS * CUDA_LANES + lane;
    const uint4 *x = rows_shared + r * (MOE_HIDDEN / ROWS_PIECE) + lane;
    float acc = 0.0f;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        acc = lanes_dot(w[u * CUDA_LANES], x[u * CUDA_LANES], acc);
    const float score = elementary_sigmoid(rounded(lanes_sum(acc)));
    if (lane == 0)
        value_put(&values->key[r][2 * pair + half],
                  (uint64_t)route_key(score + bias) << 32 | __float_as_uint(score));
}

/* Meanwhile the other warps bring the rows into the form that products take. */
template <int R>
static __device__ __forceinline__ void moe_router(const struct moe_call &c, float bias,
                                                  struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const int warp = (int)threadIdx.x / 32;
    if (warp >= R) {
        enum { WORDS = MOE_HIDDEN / 2 };
        for (int i = (int)threadIdx.x - 32 * R; i < R * WORDS; i += MOE_THREADS - 32 * R) {
            const int row = i / WORDS, at = i % WORDS;
            tile_put((uint32_t *)(moe_memory + place::INPUTS + row * UP_INPUTS),
                     (uint32_t *)(moe_memory + place::ODD + row * UP_ODD), UP_UNITS,
                     at / TILE_UNIT % CUDA_LANES,
                     at / (TILE_UNIT * CUDA_LANES) * TILE_UNIT + at % TILE_UNIT,
                     ((const uint32_t *)rows_shared)[i]);
        }
    } else if (2 * (int)blockIdx.x < c.e.experts) {
        router_multiply<R>((int)blockIdx.x, bias, values);
    }
    for (int pair = (int)(blockIdx.x + gridDim.x); 2 * pair < c.e.experts; pair += (int)gridDim.x) {
        __syncthreads();
        router_begin<R>(c, pair);
        copy_wait<0>();
        __syncthreads();
        if (warp < R)
            router_multiply<R>(pair, c.bias[2 * pair + (int)threadIdx.x / CUDA_LANES % 2], values);
    }
}

/* Row `warp`'s experts, as their keys come; a lane has ROUTE_PER of them. */
template <int R>
static __device__ __forceinline__ void moe_choose(const struct moe_call &c,
                                                  const struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *score = (float *)(moe_memory + place::SCORE) + warp * MOE_EXPERTS + ROUTE_PER * lane;
    uint32_t key[ROUTE_PER] = {};
    static_assert((int)MOE_EXPERTS == 32 * ROUTE_PER, "all keys");
    bool there;
    do {
        there = true;
#pragma unroll
        for (int j = 0; j < ROUTE_PER; j += 2)
            if (ROUTE_PER * lane + j < c.e.experts) {
                const uint4 v = values_look(&values->key[warp][ROUTE_PER * lane + j]);
                key[j] = v.y;
                key[j + 1] = v.w;
                score[j] = __uint_as_float(v.x);
                score[j + 1] = __uint_as_float(v.z);
                there = there && v.y != 0 && v.w != 0;
            }
    } while (!there);
    __syncwarp();
    route_choose<ROUTE_PER>(key, c.e.top_k, lane,
                            (int *)(moe_memory + place::CHOSEN) + warp * MOE_TOP_K);
}

/* Zeros where the launch before had its values: by some threads of each block. */
static __device__ __forceinline__ void moe_clear(struct moe_values *values)
{
    enum { PIECES = sizeof *values / 16 };
    static_assert(sizeof *values % 16 == 0, "whole pieces");
    for (int i = (int)(threadIdx.x * gridDim.x + blockIdx.x); i < PIECES;
         i += MOE_THREADS * (int)gridDim.x)
        ((uint4 *)values)[i] = make_uint4(0, 0, 0, 0);
}

template <int R>
static __global__ __launch_bounds__(MOE_THREADS, 1) void moe(const __grid_constant__ moe_call c)
{
    typedef struct moe_place<R> place;
    const struct experts_run &e = c.e;
    const int thread = (int)threadIdx.x, warp = thread / 32, block = (int)blockIdx.x;
    const int expert = 2 * block + thread / CUDA_LANES % 2;
    uint4 norm[ROWS_PIECES];

    timeline_mark(TIMELINE_MOE_STARTS);
    if (thread == 0)
        for (int i = 0; i < COPIES; i++)
            bytes_barrier_init(moe_barrier<R>(i));
    pair_barrier_init((unsigned *)moe_barrier<R>(COPIES), MOE_SLOTS);
    for (int i = thread; i < ((int)place::OUT - (int)place::ODD) / 4; i += MOE_THREADS)
        ((uint32_t *)(moe_memory + place::ODD))[i] = 0;
    if (thread < TILE_ZEROS / 4)
        ((uint32_t *)(moe_memory + place::ZERO))[thread] = 0;
    router_begin<R>(c, block);
    rows_take_norm<true>(c.rows, norm);
    const float bias = expert < e.experts ? c.bias[expert] : 0.0f;
    timeline_mark(TIMELINE_MOE_WAITS);
    pdl_wait();
    /* Not before: so nothing that starts early can meet a kernel before this one's predecessor. Of
     * one row later yet: what reads ahead would delay gate's and up's weights. */
    if (R > 1)
        pdl_launch_next();
    timeline_mark(TIMELINE_MOE_THERE);
    const uint32_t turn = load_fresh_word(&e.exchange->turn[block]);
    struct moe_values *const values = &e.exchange->values[turn];
    rows_stage<R, true>(c.rows, norm, [&]() { copy_wait<0>(); });
    timeline_mark(TIMELINE_MOE_STAGED);
    moe_router<R>(c, bias, values);
    timeline_mark(TIMELINE_MOE_ROUTED);
    moe_clear(&e.exchange->values[turn ^ 1]);
    if (warp < R)
        moe_choose<R>(c, values);
    __syncthreads();
    timeline_mark(TIMELINE_MOE_CHOSEN);

    const int pair = thread / 64, tile = block + pair * (int)gridDim.x;
    if (pair < place::PAIRS && tile < R * e.slots * UP_TILES)
        up_begin<R>(c, tile);
    moe_up<R>(c, values);
    timeline_mark(TIMELINE_MOE_UP_ENDS);

    __syncthreads();
    if (R == 1)
        pdl_launch_next();
    if (!place::DOWN_IN_FRONT) { /* where gate and up were */
        down_begin<R>(c, block, 0);
        down_begin<R>(c, block, 1);
    }
    const float before = moe_before<R>(e, block);
    const int row = warp - MOE_WARPS + R; /* the last warps */
    if (row >= 0) {
        const int lane = thread % 32;
        const int *chosen = (const int *)(moe_memory + place::CHOSEN) + row * MOE_TOP_K;
        const float *score = (const float *)(moe_memory + place::SCORE) + row * MOE_EXPERTS;
        route_mix(lane < e.top_k ? score[chosen[lane]] : 0.0f, e.top_k, e.normalize, lane,
                  (float *)(moe_memory + place::MIX) + row * MOE_TOP_K);
    }
    moe_take_inner<R>(c, values);
    timeline_mark(TIMELINE_MOE_INNER_STAGED);
    moe_down<R>(c, before);
    timeline_mark(TIMELINE_MOE_ENDS);
    if (thread == 0)
        e.exchange->turn[block] = turn ^ 1;
    for (int i = (int)gridDim.x + thread; block == 0 && i < MOE_BLOCKS; i += MOE_THREADS)
        e.exchange->turn[i] = turn ^ 1; /* where another launch has more blocks */
}

template <int R>
static bool moe_launch(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                       const struct experts_run *e)
{
    const size_t bytes = moe_place<R>::BYTES;
    struct moe_call c = {};
    int blocks = 0;
    if (bytes > l->device->shared_most ||
        cuda_launch_prepare((const void *)moe<R>, bytes) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, moe<R>, MOE_THREADS, bytes) !=
            cudaSuccess ||
        blocks < 1)
        return false; /* nor would all blocks be there at once */
    c.e = *e;
    c.rows.x = a->x;
    c.rows.norm = a->w->norm;
    c.rows.x_stride = MOE_HIDDEN;
    c.rows.inputs = MOE_HIDDEN;
    c.rows.eps = a->w->block->eps;
    rows_bytes(&c.rows, R, true);
    c.router = a->w->router.data;
    c.router_bytes = a->w->router.row_bytes;
    c.bias = a->w->selection_bias;
    cuda_meter_stage(METER_EXPERTS);
    cuda_launch_together(l, "moe", moe<R>, dim3((unsigned)l->device->multiprocessors),
                         dim3(MOE_THREADS), bytes, c);
    return true;
}

static bool is_nvfp4(const struct cuda_experts *m)
{
    return m->first.format == WEIGHT_NVFP4 && m->first.in == m->first.padded &&
           m->first.row_bytes == (size_t)m->first.in / 2 &&
           m->first.scale_bytes == (size_t)m->first.in / 16;
}

bool cuda_moe(const struct cuda_launch *l, const struct cuda_ffn_run *a,
              const struct experts_run *e)
{
    const struct cuda_matrix *router = &a->w->router;
    if (!e->shared || e->top_k > MOE_TOP_K || e->width != MOE_WIDTH || e->hidden != MOE_HIDDEN ||
        e->experts % 2 != 0 || e->experts > MOE_EXPERTS ||
        l->device->multiprocessors > MOE_BLOCKS || router->format != WEIGHT_BF16 ||
        !is_nvfp4(&e->gate) || !is_nvfp4(&e->up) || !is_nvfp4(&e->down) ||
        (uintptr_t)a->x % 16 != 0 || (uintptr_t)a->w->norm % 16 != 0)
        return false;
    switch (a->rows) {
    case 1:
        return moe_launch<1>(l, a, e);
    case 2:
        return moe_launch<2>(l, a, e);
    case 3:
        return moe_launch<3>(l, a, e);
    case 4:
        return moe_launch<4>(l, a, e);
    default:
        return false;
    }
}
