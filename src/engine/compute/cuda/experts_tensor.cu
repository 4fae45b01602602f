/* The two kernels of experts.cu for the shapes of Laguna XS 2.1, their products on tensor cores:
 * each product apart and so exact, the sums where they are in the strict arithmetic. */
#include "engine/compute/cuda/experts_lists.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/nvfp4.cuh"

extern __shared__ __align__(16) uint8_t experts_tensor_memory[];

/* ---- Gate and up on tensor cores ----
 *
 * As in down of one row (below), the left factor's rows 0 to 7 being gate of eight outputs, 8 to 15
 * their up: a team of four warps, each with four lanes, has eight outputs of an expert. */

enum {
    TEAMS = 5, /* 576 times 8 outputs of 9 experts over 132 multiprocessors are 4.4 each */
    TEAM_THREADS = 128,
    TEAM_BLOCKS = 4 * NVFP4_GROUP_BLOCKS,
    TEAM_ROWS = 4, /* inputs at a time */
    TEAM_OUTPUTS = 8,
    TEAM_SCALE_ROW = 2 * TEAM_BLOCKS + 4,
    TEAM_SCALES = 2 * TEAM_OUTPUTS * TEAM_SCALE_ROW, /* words of a team */
    TEAM_LANES = 2 * TEAM_OUTPUTS * CUDA_LANES,      /* of a team and row */
    TEAM_INPUT_ROW = 2 * nvfp4_inputs_kind(TEAM_BLOCKS),
    TEAM_ZERO_AT = NVFP4_TABLE_BYTES,
    TEAM_SCALES_AT = TEAM_ZERO_AT + TEAM_BLOCKS * 4,
    TEAM_LANES_AT = TEAM_SCALES_AT + TEAMS * TEAM_SCALES * 4
};

static int team_inputs_at(bool one)
{
    return TEAM_LANES_AT + (one ? 0 : TEAMS * TEAM_ROWS * TEAM_LANES * 4);
}

/* Where a team reads an expert's codes: this thread's, of gate and of up. */
struct team_weights {
    uint4 code[4][2];
    uint4 scale; /* 16 bytes of a row of the 16 */
};

static __device__ __forceinline__ void team_load(const struct experts_run *e, int expert,
                                                 int output0, struct team_weights *w)
{
    const int member = (int)threadIdx.x % TEAM_THREADS, g = member % 32 / 4;
    const int lane = member / 32 * 4 + member % 4;
    const struct cuda_experts *of[2] = {&e->gate, &e->up};
    /* scales first: they are needed by all four warps */
    const struct cuda_experts *mine = member < TEAM_THREADS / 2 ? of[0] : of[1];
    w->scale = load_stream(mine->first.scales + (size_t)expert * mine->scale_stride +
                           (size_t)output0 * mine->first.scale_bytes +
                           (size_t)(member % (TEAM_THREADS / 2)) * 16);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint8_t *data = of[m]->first.data + (size_t)expert * of[m]->data_stride +
                              (size_t)(output0 + g) * of[m]->first.row_bytes + lane * 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w->code[i][m] = load_stream(data + i * CUDA_LANES * 16);
    }
}

/* `n` members of the expert, at most `most`. lanes: for the sums; may be where the scales are, for
 * which `alone` tells that they are not needed again. */
template <int most>
static __device__ __forceinline__ void
team_multiply(const struct experts_run *e, const uint8_t *table, const uint32_t *zero,
              const uint32_t *inputs, const float *scales, float *lanes,
              const struct team_weights *w, const int *member, int n, int team, int output0,
              bool alone)
{
    const int thread = (int)threadIdx.x % TEAM_THREADS, g = thread % 32 / 4, t = thread % 4;
    const int lane = thread / 32 * 4 + t;
    const float *gate = scales + g * TEAM_SCALE_ROW + lane / 8 * TEAM_BLOCKS;
    const float *up = gate + TEAM_OUTPUTS * TEAM_SCALE_ROW;
    const uint32_t *in[most];
    float acc[2][most];
#pragma unroll
    for (int r = 0; r < most; r++) {
        in[r] = g / 2 == t ? inputs + (member[r < n ? r : 0] >> 16) * TEAM_INPUT_ROW +
                                 g % 2 * nvfp4_inputs_kind(TEAM_BLOCKS) +
                                 lane * nvfp4_inputs_lane(TEAM_BLOCKS)
                           : zero;
        acc[0][r] = acc[1][r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int at = i * NVFP4_GROUP_BLOCKS + 4 * q;
            uint32_t w0 = nvfp4_word(w->code[i][0], q), w1 = nvfp4_word(w->code[i][1], q);
            uint4 b[most];
            asm volatile("" : "+r"(w0), "+r"(w1)); /* as in nvfp4_group */
#pragma unroll
            for (int r = 0; r < most; r++)
                b[r] = *(const uint4 *)(in[r] + at);
            nvfp4_four<most>(table, w0, w1, *(const float4 *)(gate + at),
                             *(const float4 *)(up + at), b, acc);
        }
    if (alone)
        nvfp4_barrier(1 + team, TEAM_THREADS);
#pragma unroll
    for (int r = 0; r < most; r++) {
        lanes[r * TEAM_LANES + g * CUDA_LANES + lane] = acc[0][r];
        lanes[r * TEAM_LANES + (TEAM_OUTPUTS + g) * CUDA_LANES + lane] = acc[1][r];
    }
    nvfp4_barrier(1 + team, TEAM_THREADS);
#pragma unroll
    for (int r = 0; r < most; r++) {
        const float v = rounded(lanes_sum(lanes[r * TEAM_LANES + thread]));
        const float u =
            rounded(lanes_sum(lanes[r * TEAM_LANES + TEAM_OUTPUTS * CUDA_LANES + thread]));
        if (thread % CUDA_LANES == 0 && r < n)
            e->inner[(size_t)(member[r] & 0xffff) * (size_t)e->width +
                     (size_t)(output0 + thread / CUDA_LANES)] = silu_up(v, u);
    }
}

template <bool one>
static __global__ __launch_bounds__(one ? 832 : TEAMS *TEAM_THREADS,
                                    1) void experts_up_teams(struct experts_run e,
                                                             struct experts_few plan,
                                                             struct l2_prefetch next)
{
    uint8_t *table = experts_tensor_memory;
    uint32_t *zero = (uint32_t *)(experts_tensor_memory + TEAM_ZERO_AT);
    uint32_t *inputs = (uint32_t *)(experts_tensor_memory + plan.up.rows_at);
    const int thread = (int)threadIdx.x, threads = TEAMS * TEAM_THREADS, warp = thread / 32;
    const int team = thread / TEAM_THREADS, member = thread % TEAM_THREADS;
    const int pieces = e.width / TEAM_OUTPUTS, shared = e.shared ? 1 : 0;
    float *scales = (float *)(experts_tensor_memory + TEAM_SCALES_AT) + team * TEAM_SCALES;
    float *lanes =
        one ? scales
            : (float *)(experts_tensor_memory + TEAM_LANES_AT) + team * TEAM_ROWS * TEAM_LANES;
    const struct up_lists lists =
        up_lists_at((int *)(experts_tensor_memory + plan.up.lists_at), e.rows * e.top_k);
    struct team_weights w;

    int tiles = shared + e.top_k;
    int item = (int)((int64_t)tiles * pieces * blockIdx.x / gridDim.x) + team;
    /* The shared expert needs no choice: with one row its items are known before it. */
    const bool early = one && shared && item < pieces;
    if (early)
        team_load(&e, e.experts, item * TEAM_OUTPUTS, &w);
    nvfp4_fill_table(table, thread, threads);
    if (thread < TEAM_BLOCKS)
        zero[thread] = 0;
    if (!one)
        pdl_launch_next();
    pdl_wait();
    /* Not before: the next kernel reads the router's results as it starts. */
    if (one)
        pdl_launch_next();

    for (int r = warp; r < e.rows; r += threads / 32)
        route_row(e.key + (size_t)r * (size_t)e.experts, e.experts, e.top_k, thread % 32,
                  lists.chosen + r * e.top_k);
    /* Warps that chose come last. */
    for (int i = threads - 1 - thread; i < e.rows * (4 * CUDA_NVFP4_GROUP / 8); i += threads) {
        const int r = i / (4 * CUDA_NVFP4_GROUP / 8), place = i % (4 * CUDA_NVFP4_GROUP / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (place * 8 < e.hidden)
            v = __ldcg((const uint4 *)(e.normed + (size_t)r * (size_t)e.hidden + place * 8));
        nvfp4_put_inputs(inputs + r * TEAM_INPUT_ROW, v, place, TEAM_BLOCKS);
    }
    __syncthreads();
    if (!one) {
        tiles = up_group(&e, lists);
        item = (int)((int64_t)tiles * pieces * blockIdx.x / gridDim.x) + team;
    }
    const int end = (int)((int64_t)tiles * pieces * (blockIdx.x + 1) / gridDim.x);

    bool loaded = early, asked = false;
    for (; item < end; item += TEAMS) {
        const int tile = item / pieces, output0 = item % pieces * TEAM_OUTPUTS;
        const int expert = !one             ? lists.expert[tile]
                           : tile >= shared ? lists.chosen[tile - shared]
                                            : e.experts;
        if (!loaded)
            team_load(&e, expert, output0, &w);
        loaded = false;
        if (!asked) {
            asked = true;
            prefetch_slice(next, blockIdx.x, gridDim.x);
            up_ask_down(&e, one, tiles, lists, warp, threads / 32);
        }
        const int half = member % 8 / 4, block = member % 4 * NVFP4_GROUP_BLOCKS;
        float *to = scales + member / 8 * TEAM_SCALE_ROW + half * TEAM_BLOCKS + block;
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float4 *)(to + 4 * i) = nvfp4_scales4(nvfp4_word(w.scale, i));
        nvfp4_barrier(1 + team, TEAM_THREADS);
        if (one) {
            const int slot = tile >= shared ? tile - shared : e.top_k;
            team_multiply<1>(&e, table, zero, inputs, scales, lanes, &w, &slot, 1, team, output0,
                             true);
        } else {
            const int *list = lists.member + tile * e.rows;
            for (int left = lists.count[tile]; left > 0; left -= TEAM_ROWS, list += TEAM_ROWS) {
                if (left == 1)
                    team_multiply<1>(&e, table, zero, inputs, scales, lanes, &w, list, 1, team,
                                     output0, false);
                else if (left == 2)
                    team_multiply<2>(&e, table, zero, inputs, scales, lanes, &w, list, 2, team,
                                     output0, false);
                else
                    team_multiply<TEAM_ROWS>(&e, table, zero, inputs, scales, lanes, &w, list,
                                             left < TEAM_ROWS ? left : TEAM_ROWS, team, output0,
                                             false);
                nvfp4_barrier(1 + team, TEAM_THREADS);
            }
        }
        if (one && item + TEAMS < end)
            nvfp4_barrier(1 + team, TEAM_THREADS);
    }
    if (!one && blockIdx.x == 0)
        up_keep(&e, lists, threads / 32);
}

/* ---- Down of one row, its products on tensor cores ----
 *
 * A warp multiplies 16 outputs by 4 lanes: the codes of a pair are the left factor, and the right
 * one has the pair's two inputs in columns of their own, so that every product stays apart and
 * exact; their sum is the fused multiply-add of the strict arithmetic, with the one rounding of
 * both. Codes need no more unpacking than the table's. Thread (g, t) has lane t of the four and
 * outputs g and g + 8. */

enum {
    TENSOR_WARPS = 8, /* a quarter of the lanes and a part of the slots for each */
    TENSOR_PARTS = TENSOR_WARPS / 4,
    TENSOR_SLOTS = (DOWN_SLOTS + TENSOR_PARTS - 1) / TENSOR_PARTS,
    TENSOR_THREADS = TENSOR_WARPS * 32,
    TENSOR_BLOCKS = NVFP4_GROUP_BLOCKS,
    TENSOR_SCALE_ROW = 2 * TENSOR_BLOCKS + 4, /* words: rows in different banks */
    TENSOR_INPUT_SLOT = 2 * nvfp4_inputs_kind(TENSOR_BLOCKS),
    TENSOR_SCALES_AT = NVFP4_TABLE_BYTES,
    TENSOR_INPUTS_AT = TENSOR_SCALES_AT + DOWN_SLOTS * DOWN_OUTPUTS * TENSOR_SCALE_ROW * 4,
    TENSOR_ZERO_AT = TENSOR_INPUTS_AT + DOWN_SLOTS * TENSOR_INPUT_SLOT * 4,
    TENSOR_CHOSEN_AT = TENSOR_ZERO_AT + TENSOR_BLOCKS * 4,
    TENSOR_MIX_AT = TENSOR_CHOSEN_AT + CUDA_MOST_TOP_K * 4,
    TENSOR_BYTES = TENSOR_MIX_AT + CUDA_MOST_TOP_K * 4
};

static __global__ __launch_bounds__(896, 1) void experts_down_one(struct experts_run e,
                                                                  struct l2_prefetch next)
{
    uint8_t *table = experts_tensor_memory;
    float *scales = (float *)(experts_tensor_memory + TENSOR_SCALES_AT);
    uint32_t *inputs = (uint32_t *)(experts_tensor_memory + TENSOR_INPUTS_AT);
    uint32_t *zero = (uint32_t *)(experts_tensor_memory + TENSOR_ZERO_AT);
    int *chosen = (int *)(experts_tensor_memory + TENSOR_CHOSEN_AT);
    float *mix = (float *)(experts_tensor_memory + TENSOR_MIX_AT);
    const int thread = (int)threadIdx.x, warp = thread / 32;
    const int g = thread % 32 / 4, t = thread % 4;
    const int lane = warp % 4 * 4 + t, part = warp / 4, half = lane / 8;
    const int output0 = (int)blockIdx.x * DOWN_OUTPUTS;
    const struct cuda_matrix *w = &e.down.first;

    pdl_launch_next();
    if (warp == 0) {
        route_row(e.key, e.experts, e.top_k, thread, chosen);
        if (thread >= e.top_k && thread < DOWN_SLOTS)
            chosen[thread] = e.experts; /* the shared one */
    } else {
        nvfp4_fill_table(table, thread - 32, TENSOR_THREADS - 32);
    }
    if (thread < TENSOR_BLOCKS)
        zero[thread] = 0;
    __syncthreads();

    uint4 code[TENSOR_SLOTS][2];
#pragma unroll
    for (int j = 0; j < TENSOR_SLOTS; j++) {
        const int slot = part * TENSOR_SLOTS + j;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int output = output0 + g + 8 * r;
            code[j][r] = make_uint4(0, 0, 0, 0);
            if (slot < DOWN_SLOTS)
                code[j][r] = load_stream(
                    w->data + (size_t)chosen[slot] * e.down.data_stride +
                    (size_t)(output < e.hidden ? output : e.hidden - 1) * w->row_bytes + lane * 16);
        }
    }
    for (int i = thread; i < DOWN_SLOTS * DOWN_OUTPUTS * 8; i += TENSOR_THREADS) {
        const int slot = i / (DOWN_OUTPUTS * 8), row = i / 8 % DOWN_OUTPUTS, word = i % 8;
        const int output = output0 + row < e.hidden ? output0 + row : e.hidden - 1;
        const uint32_t four =
            *(const uint32_t *)(w->scales + (size_t)chosen[slot] * e.down.scale_stride +
                                (size_t)output * w->scale_bytes + word * 4);
        *(float4 *)(scales + (slot * DOWN_OUTPUTS + row) * TENSOR_SCALE_ROW + word * 4) =
            nvfp4_scales4(four);
    }
    if (warp == 0)
        route_mix(e.score, chosen, e.top_k, e.normalize, thread, mix);
    prefetch_slice(next, blockIdx.x, gridDim.x);
    pdl_wait();

    const int own = output0 + thread / CUDA_LANES;
    const int safe = own < e.hidden ? own : e.hidden - 1;
    const float residual = bf16_float(__ldcg(e.x + safe));
    for (int i = thread; i < DOWN_SLOTS * CUDA_NVFP4_GROUP / 8; i += TENSOR_THREADS) {
        const int slot = i / (CUDA_NVFP4_GROUP / 8), place = i % (CUDA_NVFP4_GROUP / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (place * 8 < e.width)
            v = __ldcg((const uint4 *)(e.inner + slot * e.width + place * 8));
        nvfp4_put_inputs(inputs + slot * TENSOR_INPUT_SLOT, v, place, TENSOR_BLOCKS);
    }
    __syncthreads();

    /* This thread's part of the diagonal: the first input of a pair, the second, or nothing. */
    const bool some = g / 2 == t;
    const uint32_t *in = some ? inputs + part * TENSOR_SLOTS * TENSOR_INPUT_SLOT +
                                    g % 2 * nvfp4_inputs_kind(TENSOR_BLOCKS) +
                                    lane * nvfp4_inputs_lane(TENSOR_BLOCKS)
                              : zero;
    const int in_step = some ? TENSOR_INPUT_SLOT : 0;
    float acc[TENSOR_SLOTS][2];
#pragma unroll
    for (int j = 0; j < TENSOR_SLOTS; j++) {
        float sum[2][1] = {{0.0f}, {0.0f}};
        const int slot = part * TENSOR_SLOTS + j;
        const float *scale =
            scales + (slot * DOWN_OUTPUTS + g) * TENSOR_SCALE_ROW + half * TENSOR_BLOCKS;
        if (slot >= DOWN_SLOTS)
            break;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const uint4 b[1] = {*(const uint4 *)(in + j * in_step + 4 * q)};
            nvfp4_four<1>(table, nvfp4_word(code[j][0], q), nvfp4_word(code[j][1], q),
                          *(const float4 *)(scale + 4 * q),
                          *(const float4 *)(scale + 8 * TENSOR_SCALE_ROW + 4 * q), b, sum);
        }
        acc[j][0] = sum[0][0];
        acc[j][1] = sum[1][0];
    }
    __syncthreads();
    float *lanes = (float *)(void *)table; /* [slot][output][lane]: the table is done with */
#pragma unroll
    for (int j = 0; j < TENSOR_SLOTS; j++)
        if (part * TENSOR_SLOTS + j < DOWN_SLOTS) {
            float *to = lanes + ((part * TENSOR_SLOTS + j) * DOWN_OUTPUTS + g) * CUDA_LANES + lane;
            to[0] = acc[j][0];
            to[8 * CUDA_LANES] = acc[j][1];
        }
    __syncthreads();
    float sum = 0.0f, shared = 0.0f, v[DOWN_SLOTS];
#pragma unroll
    for (int i = 0; i < DOWN_SLOTS; i++)
        v[i] = rounded(lanes_sum(lanes[i * DOWN_OUTPUTS * CUDA_LANES + thread]));
#pragma unroll
    for (int i = 0; i < DOWN_SLOTS; i++) {
        if (i < e.top_k) {
            const float y = rounded(v[i] * mix[i]);
            sum = i == 0 ? y : rounded(sum + y);
        } else {
            shared = v[i];
        }
    }
    sum = rounded(sum * e.routed_scale);
    if (e.shared)
        sum = rounded(sum + shared);
    else if (e.shared_out != NULL)
        sum = rounded(sum + bf16_float(__ldcg(e.shared_out + safe)));
    if (thread % CUDA_LANES == 0 && own < e.hidden)
        e.x[own] = bf16_of(residual + sum);
}

/* ---- Launches ---- */

bool experts_tensor_plan_up(const struct cuda_launch *l, const struct experts_run *e,
                            struct experts_few *p)
{
    p->up.rows_at = team_inputs_at(e->rows == 1);
    p->up.lists_at = p->up.rows_at + e->rows * TEAM_INPUT_ROW * 4;
    p->up.bytes = p->up.lists_at + up_lists_bytes(e);
    return e->gate.first.padded == TEAM_BLOCKS * CUDA_BLOCK &&
           e->up.first.padded == e->gate.first.padded && e->hidden % 8 == 0 &&
           e->width % TEAM_OUTPUTS == 0 && p->up.bytes <= (int)l->device->shared_most;
}

bool experts_tensor_plan_down(const struct cuda_launch *l, const struct experts_run *e)
{
    return e->rows == 1 && e->slots == DOWN_SLOTS && e->down.first.padded == CUDA_NVFP4_GROUP &&
           e->width % 8 == 0 && (int)l->device->shared_most >= TENSOR_BYTES;
}

void experts_tensor_up(const struct cuda_launch *l, const struct experts_run *e,
                       const struct experts_few *p)
{
    const dim3 grid((unsigned)l->device->multiprocessors), block(TEAMS * TEAM_THREADS);
    if (e->rows == 1)
        cuda_launch(l, "experts gate and up", experts_up_teams<true>, grid, block,
                    (size_t)p->up.bytes, *e, *p, l->next[1]);
    else
        cuda_launch(l, "experts gate and up", experts_up_teams<false>, grid, block,
                    (size_t)p->up.bytes, *e, *p, l->next[1]);
}

void experts_tensor_down(const struct cuda_launch *l, const struct experts_run *e)
{
    cuda_launch(l, "experts down", experts_down_one,
                dim3((unsigned)((e->hidden + DOWN_OUTPUTS - 1) / DOWN_OUTPUTS)),
                dim3(TENSOR_THREADS), TENSOR_BYTES, *e, l->next[2]);
}
