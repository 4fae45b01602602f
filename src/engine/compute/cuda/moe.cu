/* One kernel for few rows of NVFP4 experts with the shared one among them: norm, router, choice,
 * gate and up, down, mixture and residual. Its blocks, one a multiprocessor, give each other the
 * router's keys and the rows between gate and up and down (moe.cuh). What a stage reads of weights
 * is under way before it waits: at these sizes latency counts as much as bytes. A pair of warps has
 * 16 rows of weights, each warp one half of their lanes (nvfp4_tile.cuh). The shared expert waits
 * for no choice: the last pairs of a block, one for each row, multiply by its weights meanwhile. An
 * entry is a row's use of an expert: row * top_k + choice, behind them rows * top_k + row. */
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
    MOE_PAIRS = MOE_TOP_K, /* a choice's down */
    MOE_WARPS = 2 * MOE_PAIRS,
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
    /* Copies that are waited for: pairs', choices' of two rows, the shared expert's. */
    COPY_DOWN = MOE_PAIRS,
    COPY_SHARED_UP = COPY_DOWN + 2 * MOE_TOP_K,
    COPY_SHARED_DOWN,
    COPIES,
    /* Barriers of warps, behind those of the pairs. */
    MEET_INPUTS = MOE_PAIRS,
    MEET_SHARED,
    MEET_INPUTS_ROUTER,
    MEET_ROUTED,
    MEET_ROUTED_SHARED,
    MEETINGS,
    ROUTER_BYTES = 2 * MOE_HIDDEN * 2, /* two experts */
    /* A row as tile_put_pair leaves it, and what is said of it: bytes. */
    UP_UNITS = MOE_HIDDEN / (CUDA_BLOCK * TILE_UNIT),
    UP_INPUTS = UP_UNITS * TILE_UNIT_WORDS * 4,
    UP_ODD = tile_odd_words(UP_UNITS) * 4,
    DOWN_UNITS = MOE_WIDTH / (CUDA_BLOCK * TILE_UNIT),
    DOWN_INPUTS = DOWN_UNITS * TILE_UNIT_WORDS * 4,
    DOWN_ODD = tile_odd_words(DOWN_UNITS) * 4
};

static_assert((int)MOE_INNER == (int)MOE_SLOTS * (int)MOE_WIDTH, "moe.cuh has room for them");
static_assert((int)MEETINGS <= (int)WARPS_BARRIERS, "a barrier each");

struct moe_call {
    struct experts_run e;
    const uint16_t *x, *norm;
    float eps;
    const uint8_t *router;
    size_t router_bytes; /* of an expert */
    const float *bias;
};

/* Shared memory of R rows. It begins with the rows (rows.cuh), where later those are that the
 * shared expert's gate and up have made and, of many rows, its down's weights; the norm's part of
 * them becomes the rows as tile_put_pair leaves them. Behind all are the codes of gate and up,
 * where of several rows the router's weights are before, and later those rows are that gate and up
 * have made and, of several rows, down's weights. */
template <int R> struct moe_place {
    enum {
        PAIRS = R == 1 ? MOE_PAIRS / 2 : MOE_PAIRS, /* 512 tiles of a row on 132 blocks */
        FIRST_SHARED = MOE_PAIRS - R,               /* pair */
        SHARED_THREADS = 64 * R,
        INPUTS = R * MOE_HIDDEN * 2,
        EXCHANGE = INPUTS + R * UP_INPUTS,
        ODD = EXCHANGE + MOE_PAIRS * 32 * 16,
        INNER_ODD = ODD + R * UP_ODD,
        OUT = (INNER_ODD + R * MOE_SLOTS * DOWN_ODD + 15) / 16 * 16,
        SCORE = OUT + R * MOE_SLOTS * TILE_OUTPUTS * 4,
        MIX = SCORE + R * MOE_EXPERTS * 4,
        CHOSEN = MIX + R * MOE_TOP_K * 4,
        ZERO = CHOSEN + R * MOE_TOP_K * 4,
        BARRIERS = ZERO + TILE_ZEROS,
        FRONT = (BARRIERS + COPIES * 8 + MEETINGS * 4 + 127) / 128 * 128,
        DOWN_IN_FRONT = R == 1,
        SHARED_DOWN_BEHIND_ROWS = R >= 3, /* there is room, and none elsewhere */
        SHARED_INNER = 0,
        SHARED_DOWN = SHARED_DOWN_BEHIND_ROWS ? R * DOWN_INPUTS : (int)FRONT,
        DOWN_FRONT = FRONT + (SHARED_DOWN_BEHIND_ROWS ? 0 : DOWN_BYTES),
        UP = DOWN_FRONT + (DOWN_IN_FRONT ? MOE_TOP_K * DOWN_BYTES : 0),
        SHARED_UP = UP + PAIRS * UP_BYTES,
        BYTES = SHARED_UP + UP_BYTES,
        INNER = UP,
        DOWN = DOWN_IN_FRONT ? (int)DOWN_FRONT : INNER + R * MOE_TOP_K * DOWN_INPUTS
    };
    static_assert((int)EXCHANGE >= R * (MOE_HIDDEN + MOE_HIDDEN + CUDA_LANES * ROWS_PIECE) * 2 + 16,
                  "the norm's part");
    static_assert((DOWN_IN_FRONT ? (int)DOWN + ROUTER_BYTES <= (int)UP
                                 : DOWN + 2 * MOE_TOP_K * DOWN_BYTES <= (int)SHARED_UP),
                  "two rows' down");
    static_assert((int)SHARED_DOWN + DOWN_BYTES <=
                      (SHARED_DOWN_BEHIND_ROWS ? (int)INPUTS : (int)DOWN_FRONT),
                  "the shared expert's down");
    static_assert((int)ZERO % 16 == 0 && (int)SCORE % 16 == 0, "aligned");
};

extern __shared__ __align__(16) uint8_t moe_memory[];

/* Down's weights; before, the router's. */
template <int R> static __device__ __forceinline__ uint8_t *moe_down_weights(void)
{
    return moe_memory + moe_place<R>::DOWN;
}

/* ---- Copies of whole rows, by bulk or by threads ---- */

template <int R> static __device__ __forceinline__ uint64_t *moe_barrier(int number)
{
    return (uint64_t *)(moe_memory + moe_place<R>::BARRIERS) + number;
}

/* By each pair's first thread its own, so that no thread has all of them to do; the shared expert's
 * by the thread that begins its copies. */
template <int R> static __device__ __forceinline__ void moe_barriers_init(void)
{
    typedef struct moe_place<R> place;
    const int pair = (int)threadIdx.x / 64;
    if (threadIdx.x % 64 != 0)
        return;
    if (pair == place::FIRST_SHARED) {
        bytes_barrier_init(moe_barrier<R>(COPY_SHARED_UP));
        bytes_barrier_init(moe_barrier<R>(COPY_SHARED_DOWN));
    }
    if (pair < place::PAIRS)
        bytes_barrier_init(moe_barrier<R>(pair));
    bytes_barrier_init(moe_barrier<R>(COPY_DOWN + pair));
    if (R > 1)
        bytes_barrier_init(moe_barrier<R>(COPY_DOWN + MOE_TOP_K + pair));
}

template <int R> static __device__ __forceinline__ unsigned *moe_meetings(void)
{
    return (unsigned *)moe_barrier<R>(COPIES);
}

/* Whole warps, two or more, that copy together: this thread's number and how many they are. */
struct team {
    int thread, threads;
};

/* A pair's first thread is of its second warp: the first may be a router's. */
static __device__ __forceinline__ struct team moe_pair(void)
{
    return {(int)threadIdx.x % 64 ^ 32, 64};
}

/* The row whose experts this warp scores and chooses, or -1: the first warps of the first pairs. */
template <int R> static __device__ __forceinline__ int moe_routed_row(void)
{
    const int warp = (int)threadIdx.x / 32;
    return warp % 2 == 0 && warp < 2 * R ? warp / 2 : -1;
}

/* Those of the shared expert; other threads have numbers below 0. */
template <int R> static __device__ __forceinline__ struct team moe_shared(void)
{
    return {(int)threadIdx.x - 64 * moe_place<R>::FIRST_SHARED, moe_place<R>::SHARED_THREADS};
}

static __device__ __forceinline__ void
team_copy(struct team by, void *shared, const uint8_t *global, int bytes, uint64_t *barrier)
{
    if (PTX_HOPPER) {
        if (by.thread == 0)
            bulk_copy(shared, global, (unsigned)bytes, barrier);
    } else {
        for (int i = by.thread * 16; i < bytes; i += by.threads * 16)
            copy_async((uint8_t *)shared + i, global + i);
    }
}

/* unused: nobody has touched the place before. */
static __device__ __forceinline__ void team_expect(struct team by, uint64_t *barrier, int bytes,
                                                   bool unused)
{
    if (PTX_HOPPER && by.thread == 0) {
        if (unused)
            bytes_barrier_expect(barrier, (unsigned)bytes);
        else
            bulk_expect(barrier, (unsigned)bytes);
    }
}

/* Until what a team copied in its turn `turn` of that barrier is there; meeting: the team's. */
template <int R>
static __device__ __forceinline__ void team_wait(struct team by, uint64_t *barrier, int turn,
                                                 int meeting)
{
    if (PTX_HOPPER) {
        bulk_wait(barrier, (unsigned)turn);
    } else {
        copy_wait<0>();
        warps_barrier(moe_meetings<R>(), meeting, by.threads);
    }
}

template <int R> static __device__ __forceinline__ void pair_meet(void)
{
    warps_barrier(moe_meetings<R>(), (int)threadIdx.x / 64, 64);
}

/* The expert of an entry, as soon as it is chosen. */
template <int R>
static __device__ __forceinline__ int moe_expert(const struct experts_run &e, int entry)
{
    const int row = R == 1 ? 0 : entry / e.top_k;
    return value_wait((const int *)(moe_memory + moe_place<R>::CHOSEN) + row * MOE_TOP_K + entry -
                      row * e.top_k);
}

/* ---- Gate and up ---- */

/* An expert's tile to shared memory at `at`: gate's rows, up's rows; their scales. */
static __device__ __forceinline__ void up_copy(struct team by, const struct experts_run &e,
                                               int expert, int tile, int at, uint64_t *barrier,
                                               bool unused)
{
    const int output = tile * UP_OUTPUTS;
    uint8_t *to = moe_memory + at;
    team_expect(by, barrier, UP_BYTES, unused);
#pragma unroll 1
    for (int m = 0; m < 2; m++) {
        const struct cuda_experts &of = m == 0 ? e.gate : e.up;
        team_copy(by, to + m * UP_OUTPUTS * UP_ROW,
                  of.first.data + (size_t)expert * of.data_stride + (size_t)(output * UP_ROW),
                  UP_OUTPUTS * UP_ROW, barrier);
        team_copy(by, to + TILE_OUTPUTS * UP_ROW + m * UP_OUTPUTS * UP_SCALES,
                  of.first.scales + (size_t)expert * of.scale_stride + (size_t)(output * UP_SCALES),
                  UP_OUTPUTS * UP_SCALES, barrier);
    }
    copy_commit();
}

template <int R>
static __device__ __forceinline__ void up_begin(const struct moe_call &c, int tile, bool unused)
{
    const int pair = (int)threadIdx.x / 64;
    if (!PTX_HOPPER || moe_pair().thread == 0) /* others need not wait for the choice */
        up_copy(moe_pair(), c.e, moe_expert<R>(c.e, tile / UP_TILES), tile % UP_TILES,
                moe_place<R>::UP + pair * UP_BYTES, moe_barrier<R>(pair), unused);
}

/* A row's tile at `at` by a pair. inner: where its first value goes. */
template <int R> static __device__ CUDA_CALLED void up_multiply(int at, int row, uint16_t *inner)
{
    typedef struct moe_place<R> place;
    const int pair = (int)threadIdx.x / 64, half = (int)threadIdx.x / 32 % 2;
    const int lane = (int)threadIdx.x % 32;
    float4 *exchange = (float4 *)(moe_memory + place::EXCHANGE) + pair * 32 + lane;
    const struct tile_rows rows = {at,        at + TILE_OUTPUTS * UP_ROW,
                                   UP_ROW,    UP_OUTPUTS * UP_ROW,
                                   UP_SCALES, UP_OUTPUTS * UP_SCALES};
    const float4 acc = tile_multiply(rows, half, UP_GROUPS, place::INPUTS + row * UP_INPUTS,
                                     place::ODD + row * UP_ODD, place::ZERO);
    timeline_mark(TIMELINE_MOE_UP_MULTIPLIED);
    if (half == 1)
        *exchange = acc;
    pair_meet<R>();
    if (half == 0) {
        const float2 sums = tile_sum(acc, *exchange); /* of gate, of up */
        const uint16_t value = silu_up(rounded(sums.x), rounded(sums.y));
        if (lane % 4 == 0) /* one of NaN's bits are those of nothing */
            value_put(inner + lane / 4, (uint16_t)(value == 0xffff ? 1 : ~value));
    }
}

/* ---- Down ---- */

/* An expert's rows of a tile of outputs to shared memory at `at`. */
static __device__ __forceinline__ void down_copy(struct team by, const struct experts_run &e,
                                                 int expert, int tile, int at, uint64_t *barrier)
{
    uint8_t *to = moe_memory + at;
    const struct cuda_experts &of = e.down;
    team_expect(by, barrier, DOWN_BYTES, false);
    team_copy(by, to,
              of.first.data + (size_t)expert * of.data_stride +
                  (size_t)(tile * TILE_OUTPUTS * DOWN_ROW),
              TILE_OUTPUTS * DOWN_ROW, barrier);
    team_copy(by, to + TILE_OUTPUTS * DOWN_ROW,
              of.first.scales + (size_t)expert * of.scale_stride +
                  (size_t)(tile * TILE_OUTPUTS * DOWN_SCALES),
              TILE_OUTPUTS * DOWN_SCALES, barrier);
    copy_commit();
}

/* A choice's, for row r. */
template <int R>
static __device__ __forceinline__ void down_begin(const struct moe_call &c, int tile, int r)
{
    const int choice = (int)threadIdx.x / 64, stage = R == 1 ? 0 : r % 2 * MOE_TOP_K;
    if (choice < c.e.top_k && r < R && tile < DOWN_TILES)
        down_copy(moe_pair(), c.e, moe_expert<R>(c.e, r * c.e.top_k + choice), tile,
                  moe_place<R>::DOWN + (stage + choice) * DOWN_BYTES,
                  moe_barrier<R>(COPY_DOWN + stage + choice));
}

template <int R>
static __device__ __forceinline__ void down_begin_first(const struct moe_call &c, int tile)
{
#pragma unroll 1
    for (int r = 0; r < (R == 1 ? 1 : 2); r++)
        down_begin<R>(c, tile, r);
}

/* An entry's tile at `at` by a pair; its inner row at `inner`. */
template <int R> static __device__ CUDA_CALLED void down_multiply(int at, int inner, int entry)
{
    typedef struct moe_place<R> place;
    const int pair = (int)threadIdx.x / 64, half = (int)threadIdx.x / 32 % 2;
    const int lane = (int)threadIdx.x % 32;
    float4 *exchange = (float4 *)(moe_memory + place::EXCHANGE) + pair * 32 + lane;
    const struct tile_rows rows = {at,          at + TILE_OUTPUTS * DOWN_ROW,
                                   DOWN_ROW,    TILE_OUTPUTS / 2 * DOWN_ROW,
                                   DOWN_SCALES, TILE_OUTPUTS / 2 * DOWN_SCALES};
    const float4 acc =
        tile_multiply(rows, half, 1, inner, place::INNER_ODD + entry * DOWN_ODD, place::ZERO);
    timeline_mark(TIMELINE_MOE_DOWN_MULTIPLIED);
    if (half == 1)
        *exchange = acc;
    pair_meet<R>();
    if (half == 0) {
        const float2 sums = tile_sum(acc, *exchange);
        if (lane % 4 < 2)
            ((float *)(moe_memory + place::OUT))[entry * TILE_OUTPUTS + lane % 4 * 8 + lane / 4] =
                rounded(lane % 4 == 0 ? sums.x : sums.y);
    }
}

static __device__ __forceinline__ bool no_half_is_zero(uint32_t v)
{
    return ((v - 0x00010001u) & ~v & 0x80008000u) == 0;
}

/* 8 values of a row that gate and up have made, as they come; row: where it goes. */
template <int R>
static __device__ CUDA_CALLED void inner_take(const struct moe_values *values, int entry, int piece,
                                              int row)
{
    const uint16_t *from = &values->inner[entry * MOE_WIDTH + piece * ROWS_PIECE];
    uint4 v;
    do
        v = values_look(from);
    while (!no_half_is_zero(v.x) || !no_half_is_zero(v.y) || !no_half_is_zero(v.z) ||
           !no_half_is_zero(v.w));
    v = make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
    tile_put_piece((uint32_t *)(moe_memory + row),
                   (uint32_t *)(moe_memory + moe_place<R>::INNER_ODD + entry * DOWN_ODD),
                   DOWN_UNITS, piece, v);
}

/* ---- The shared expert, by the last R pairs: a row each ---- */

/* This block's first tile of gate and up: of the last blocks, the first ones have more of the
 * others' tiles. */
static __device__ __forceinline__ int shared_first(void)
{
    return (int)(gridDim.x - 1 - blockIdx.x);
}

template <int R>
static __device__ __forceinline__ void shared_up_begin(const struct moe_call &c, int tile,
                                                       bool unused)
{
    if (moe_shared<R>().thread >= 0 && tile < UP_TILES)
        up_copy(moe_shared<R>(), c.e, c.e.experts, tile, moe_place<R>::SHARED_UP,
                moe_barrier<R>(COPY_SHARED_UP), unused);
}

/* Its first tile is under way. */
template <int R>
static __device__ __forceinline__ void shared_up(const struct moe_call &c,
                                                 struct moe_values *values)
{
    const int row = (int)threadIdx.x / 64 - moe_place<R>::FIRST_SHARED;
    uint16_t *inner = &values->inner[(R * c.e.top_k + row) * MOE_WIDTH];
    int turn = 0;
    for (int tile = shared_first(); tile < UP_TILES; tile += (int)gridDim.x) {
        team_wait<R>(moe_shared<R>(), moe_barrier<R>(COPY_SHARED_UP), turn++, MEET_SHARED);
        up_multiply<R>(moe_place<R>::SHARED_UP, row, inner + tile * UP_OUTPUTS);
        if (tile + (int)gridDim.x < UP_TILES) {
            warps_barrier(moe_meetings<R>(), MEET_SHARED, moe_place<R>::SHARED_THREADS);
            shared_up_begin<R>(c, tile + (int)gridDim.x, false);
        }
    }
}

template <int R>
static __device__ __forceinline__ void shared_down_begin(const struct moe_call &c, int tile)
{
    down_copy(moe_shared<R>(), c.e, c.e.experts, tile, moe_place<R>::SHARED_DOWN,
              moe_barrier<R>(COPY_SHARED_DOWN));
}

/* Its copy is under way, in turn `turn`. */
template <int R>
static __device__ __forceinline__ void shared_down(const struct moe_call &c, int turn)
{
    const int row = (int)threadIdx.x / 64 - moe_place<R>::FIRST_SHARED;
    team_wait<R>(moe_shared<R>(), moe_barrier<R>(COPY_SHARED_DOWN), turn, MEET_SHARED);
    down_multiply<R>(moe_place<R>::SHARED_DOWN, moe_place<R>::SHARED_INNER + row * DOWN_INPUTS,
                     R * c.e.top_k + row);
    pair_meet<R>(); /* the exchange is written again */
}

/* Down of this block's first tile, as soon as all blocks have made the rows. The rows that the
 * router took are not needed any more. */
template <int R>
static __device__ __forceinline__ void shared_down_first(const struct moe_call &c,
                                                         const struct moe_values *values)
{
    const int row = (int)threadIdx.x / 64 - moe_place<R>::FIRST_SHARED;
    static_assert(MOE_WIDTH / ROWS_PIECE == 64, "a piece for each thread of a pair");
    if ((int)blockIdx.x >= DOWN_TILES)
        return;
    if (moe_place<R>::SHARED_DOWN_BEHIND_ROWS)
        shared_down_begin<R>(c, (int)blockIdx.x);
    inner_take<R>(values, R * c.e.top_k + row, (int)threadIdx.x % 64,
                  moe_place<R>::SHARED_INNER + row * DOWN_INPUTS);
    pair_meet<R>();
    shared_down<R>(c, 0);
}

/* ---- The chosen experts ---- */

/* Each pair goes its own way. Its first tile is under way. */
template <int R>
static __device__ __forceinline__ void moe_up(const struct moe_call &c, struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const int pair = (int)threadIdx.x / 64, tiles = R * c.e.top_k * UP_TILES;
    const int step = place::PAIRS * (int)gridDim.x;
    int tile = (int)blockIdx.x + pair % place::PAIRS * (int)gridDim.x, turn = 0;
    /* Down is copied behind what gate and up wait for; of a pair that has none, behind another's
     * (where they have one turn: a later one's end cannot be told from the first one's beginning).
     */
    if (place::DOWN_IN_FRONT) {
        if (PTX_HOPPER && tile < tiles && (pair < place::PAIRS || tile + step >= tiles))
            bulk_wait(moe_barrier<R>(pair % place::PAIRS), 0);
        down_begin<R>(c, (int)blockIdx.x, 0);
    }
    if (pair >= place::PAIRS)
        return;
    for (; tile < tiles; tile += step, turn++) {
        team_wait<R>(moe_pair(), moe_barrier<R>(pair), turn, pair);
        timeline_mark(TIMELINE_MOE_UP_THERE);
        up_multiply<R>(place::UP + pair * UP_BYTES, R == 1 ? 0 : tile / UP_TILES / c.e.top_k,
                       &values->inner[tile * UP_OUTPUTS]);
        if (tile + step < tiles) {
            pair_meet<R>(); /* what is copied next goes where both have read; so the exchange */
            up_begin<R>(c, tile + step, false);
        }
    }
}

template <int R>
static __device__ __forceinline__ void moe_take_inner(const struct moe_call &c,
                                                      const struct moe_values *values)
{
    enum { PIECES = MOE_WIDTH / ROWS_PIECE };
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < R * c.e.top_k * PIECES; i += MOE_THREADS)
        inner_take<R>(values, i / PIECES, i % PIECES,
                      moe_place<R>::INNER + i / PIECES * DOWN_INPUTS);
    __syncthreads();
}

template <int R>
static __device__ __forceinline__ void moe_mix(const struct moe_call &c, int tile, float before)
{
    const struct experts_run &e = c.e;
    const int r = (int)threadIdx.x / TILE_OUTPUTS, output = (int)threadIdx.x % TILE_OUTPUTS;
    const float *y =
        (const float *)(moe_memory + moe_place<R>::OUT) + r * e.top_k * TILE_OUTPUTS + output;
    const float *mix = (const float *)(moe_memory + moe_place<R>::MIX) + r * MOE_TOP_K;
    float sum = 0.0f;
    for (int i = 0; i < e.top_k; i++) {
        const float part = rounded(y[i * TILE_OUTPUTS] * mix[i]);
        sum = i == 0 ? part : rounded(sum + part);
    }
    sum = rounded(sum * e.routed_scale);
    sum = rounded(sum + y[((R - r) * e.top_k + r) * TILE_OUTPUTS]);
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

/* The first two rows of its first tile are under way, of that the shared expert is done; a choice's
 * pair of warps each. */
template <int R>
static __device__ __forceinline__ void moe_down(const struct moe_call &c, float before)
{
    typedef struct moe_place<R> place;
    const struct experts_run &e = c.e;
    const int choice = (int)threadIdx.x / 64;
    int turns[2] = {0, 0}, shared_turn = 0; /* of each stage */
    int tile = (int)blockIdx.x;
    if (tile >= DOWN_TILES)
        return;
#pragma unroll 1
    for (;;) {
        for (int r = 0; r < R && choice < e.top_k; r++) {
            const int entry = r * e.top_k + choice, stage = R == 1 ? 0 : r % 2;
            const int place_of = stage * MOE_TOP_K + choice;
            team_wait<R>(moe_pair(), moe_barrier<R>(COPY_DOWN + place_of), turns[stage]++, choice);
            timeline_mark(TIMELINE_MOE_DOWN_THERE);
            down_multiply<R>(place::DOWN + place_of * DOWN_BYTES,
                             place::INNER + entry * DOWN_INPUTS, entry);
            if (R > 1) { /* the exchange is written again; where there was r is room */
                pair_meet<R>();
                down_begin<R>(c, tile, r + 2);
            }
        }
        __syncthreads();
        if ((int)threadIdx.x < R * TILE_OUTPUTS)
            moe_mix<R>(c, tile, before);
        tile += (int)gridDim.x;
        if (tile >= DOWN_TILES)
            return;
        __syncthreads();
        down_begin_first<R>(c, tile);
        before = moe_before<R>(e, tile);
        if (moe_shared<R>().thread >= 0) {
            shared_down_begin<R>(c, tile);
            shared_down<R>(c, ++shared_turn);
        }
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

/* Where the keys of two experts are, so that a warp that takes ROUTE_PER with each lane reads
 * neighbours at once. */
static __device__ __forceinline__ int moe_key_place(int pair)
{
    enum { EACH = ROUTE_PER / 2 };
    return (pair % EACH * 32 + pair / EACH) * 2;
}

/* Two experts for all rows, a warp for each. Their weights are there. */
template <int R>
static __device__ __forceinline__ void router_multiply(int pair, float bias,
                                                       struct moe_values *values)
{
    enum { UNITS = MOE_HIDDEN / (4 * CUDA_BLOCK) };
    const int r = moe_routed_row<R>(), half = (int)threadIdx.x % 32 / CUDA_LANES;
    const int lane = (int)threadIdx.x % CUDA_LANES;
    const uint4 *w = (const uint4 *)moe_down_weights<R>() + half * UNITS * CUDA_LANES + lane;
    const uint4 *x = rows_shared + r * (MOE_HIDDEN / ROWS_PIECE) + lane;
    float acc = 0.0f;
#pragma unroll 4
    for (int u = 0; u < UNITS; u++)
        acc = lanes_dot(w[u * CUDA_LANES], x[u * CUDA_LANES], acc);
    const float score = elementary_sigmoid(rounded(lanes_sum(acc)));
    if (lane == 0)
        value_put(&values->key[r][moe_key_place(pair) + half],
                  (uint64_t)route_key(score + bias) << 32 | __float_as_uint(score));
}

/* Meanwhile the other warps bring the rows into the form that products take, and meet behind it. */
template <int R>
static __device__ __forceinline__ void moe_router(const struct moe_call &c, float bias,
                                                  struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const int warp = (int)threadIdx.x / 32;
    const bool routes = moe_routed_row<R>() >= 0;
    if (!routes) {
        enum { PIECES = MOE_HIDDEN / ROWS_PIECE };
        const int mine = warp < 2 * R ? warp / 2 : warp - R; /* of the warps that do not route */
#pragma unroll 1
        for (int i = 32 * mine + (int)threadIdx.x % 32; i < R * PIECES; i += MOE_THREADS - 32 * R) {
            const int row = i / PIECES, at = i % PIECES;
            tile_put_lane((uint32_t *)(moe_memory + place::INPUTS + row * UP_INPUTS),
                          (uint32_t *)(moe_memory + place::ODD + row * UP_ODD), UP_UNITS,
                          at % CUDA_LANES, at / CUDA_LANES, rows_shared[i]);
        }
        warps_arrive(moe_meetings<R>(), MEET_INPUTS_ROUTER, MOE_THREADS);
        warps_barrier(moe_meetings<R>(), MEET_INPUTS, MOE_THREADS - 32 * R);
    }
    int pair = (int)blockIdx.x;
    if (2 * pair >= c.e.experts)
        return;
#pragma unroll 1
    for (;;) {
        if (routes)
            router_multiply<R>(pair, bias, values);
        pair += (int)gridDim.x;
        if (2 * pair >= c.e.experts)
            return;
        __syncthreads();
        router_begin<R>(c, pair);
        copy_wait<0>();
        __syncthreads();
        bias = c.bias[2 * pair + (int)threadIdx.x / CUDA_LANES % 2];
    }
}

/* A row's experts, as their keys come; a lane has ROUTE_PER of them. All loads of a look are
 * under way before the first is waited for. */
template <int R>
static __device__ __forceinline__ void moe_choose(const struct moe_call &c,
                                                  const struct moe_values *values)
{
    typedef struct moe_place<R> place;
    const int row = moe_routed_row<R>(), lane = (int)threadIdx.x % 32;
    uint4 v[ROUTE_PER / 2] = {};
    static_assert((int)MOE_EXPERTS == 32 * ROUTE_PER, "all keys");
    bool there;
    do {
        there = true;
#pragma unroll
        for (int j = 0; j < ROUTE_PER / 2; j++)
            if (ROUTE_PER * lane + 2 * j < c.e.experts)
                v[j] = values_look(&values->key[row][moe_key_place(ROUTE_PER / 2 * lane + j)]);
#pragma unroll
        for (int j = 0; j < ROUTE_PER / 2; j++)
            if (ROUTE_PER * lane + 2 * j < c.e.experts)
                there = there && v[j].y != 0 && v[j].w != 0;
    } while (!there);
    __syncwarp();
    timeline_mark(TIMELINE_MOE_SCORED);
    uint32_t key[ROUTE_PER];
#pragma unroll
    for (int j = 0; j < ROUTE_PER; j++)
        key[j] = j % 2 == 0 ? v[j / 2].y : v[j / 2].w;
    route_choose<ROUTE_PER>(key, c.e.top_k, lane,
                            (int *)(moe_memory + place::CHOSEN) + row * MOE_TOP_K);
    float2 *score = (float2 *)(moe_memory + place::SCORE) + row * (MOE_EXPERTS / 2);
#pragma unroll
    for (int j = 0; j < ROUTE_PER / 2; j++)
        score[ROUTE_PER / 2 * lane + j] =
            make_float2(__uint_as_float(v[j].x), __uint_as_float(v[j].z));
}

/* Zeros where the launch before had its values: by some threads of each block. */
static __device__ __forceinline__ void moe_clear(struct moe_values *values)
{
    enum { PIECES = sizeof *values / 16 };
    static_assert(sizeof *values % 16 == 0, "whole pieces");
#pragma unroll 1
    for (int i = (int)(threadIdx.x * gridDim.x + blockIdx.x); i < PIECES;
         i += MOE_THREADS * (int)gridDim.x)
        ((uint4 *)values)[i] = make_uint4(0, 0, 0, 0);
}

template <int R>
static __device__ __forceinline__ struct rows_call moe_rows(const struct moe_call &c)
{
    struct rows_call rows = {};
    static_assert(MOE_HIDDEN / ROWS_PIECE <= (int)MOE_THREADS, "a piece of a row each");
    rows.x = c.x;
    rows.norm = c.norm;
    rows.x_stride = MOE_HIDDEN;
    rows.inputs = MOE_HIDDEN;
    rows.eps = c.eps;
    rows_bytes(&rows, R, true);
    return rows;
}

template <int R>
static __global__ __launch_bounds__(MOE_THREADS, 1) void moe(const __grid_constant__ moe_call c)
{
    typedef struct moe_place<R> place;
    const struct experts_run &e = c.e;
    const int thread = (int)threadIdx.x, warp = thread / 32, block = (int)blockIdx.x;
    const int expert = 2 * block + thread / CUDA_LANES % 2;
    const struct rows_call rows = moe_rows<R>(c);
    uint4 norm[1] = {};

    timeline_mark(TIMELINE_MOE_STARTS);
    moe_barriers_init<R>();
    shared_up_begin<R>(c, shared_first(), true);
    warps_barriers_init(moe_meetings<R>(), MEETINGS);
#pragma unroll 1
    for (int i = thread; i < ((int)place::OUT - (int)place::ODD) / 4; i += MOE_THREADS)
        ((uint32_t *)(moe_memory + place::ODD))[i] = 0;
    if (thread < TILE_ZEROS / 4)
        ((uint32_t *)(moe_memory + place::ZERO))[thread] = 0;
    if (thread < R * MOE_TOP_K)
        ((int *)(moe_memory + place::CHOSEN))[thread] = VALUE_NONE;
    router_begin<R>(c, block);
    rows_take_norm<true, 1>(rows, norm);
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
    rows_stage<R, true, 1>(rows, norm, [&]() { copy_wait<0>(); });
    timeline_mark(TIMELINE_MOE_STAGED);
    moe_router<R>(c, bias, values);
    timeline_mark(TIMELINE_MOE_ROUTED);
    moe_clear(&e.exchange->values[turn ^ 1]);

    const int pair = thread / 64, tile = block + pair * (int)gridDim.x;
    const bool shared = pair >= place::FIRST_SHARED;
    if (moe_routed_row<R>() >= 0) {
        warps_arrive(moe_meetings<R>(), MEET_ROUTED, MOE_THREADS - place::SHARED_THREADS);
        warps_arrive(moe_meetings<R>(), MEET_ROUTED_SHARED, 32 * R + place::SHARED_THREADS);
        moe_choose<R>(c, values);
        warps_barrier(moe_meetings<R>(), MEET_INPUTS_ROUTER, MOE_THREADS);
        timeline_mark(TIMELINE_MOE_CHOSEN);
    } else if (shared) {
        if (!place::SHARED_DOWN_BEHIND_ROWS && block < DOWN_TILES)
            shared_down_begin<R>(c, block);
        shared_up<R>(c, values);
        warps_barrier(moe_meetings<R>(), MEET_ROUTED_SHARED, 32 * R + place::SHARED_THREADS);
    } else {
        warps_barrier(moe_meetings<R>(), MEET_ROUTED, MOE_THREADS - place::SHARED_THREADS);
    }
    /* Where the router's weights and rows were is room now. */
    if (pair < place::PAIRS && tile < R * e.top_k * UP_TILES)
        up_begin<R>(c, tile, R == 1); /* of several, the router's weights were there */
    if (shared)
        shared_down_first<R>(c, values);
    moe_up<R>(c, values);
    timeline_mark(TIMELINE_MOE_UP_ENDS);

    __syncthreads();
    if (R == 1)
        pdl_launch_next();
    if (!place::DOWN_IN_FRONT) { /* where gate and up were */
        down_begin_first<R>(c, block);
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
#pragma unroll 1
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
    c.x = a->x;
    c.norm = a->w->norm;
    c.eps = a->w->block->eps;
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
