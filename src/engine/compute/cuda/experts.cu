/* The routed experts of few rows, NVFP4: two kernels after the router's (ffn.cu). The first chooses
 * the experts in every block, and multiplies gate and up of each that any row chose, once; the
 * second owns outputs: down of a row's choices, their mixture, the residual. */
#include "engine/compute/cuda/experts_route.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/nvfp4.cuh"

extern __shared__ __align__(16) uint8_t experts_memory[];

enum {
    UP_WARPS = 18, /* 2304 pairs of outputs of 9 experts over 132 multiprocessors are 17.5 each */
    UP_WARPS_LEAST = 4,
    DOWN_OUTPUTS = 16, /* of a block: as many half-warps for each row */
    DOWN_THREADS = DOWN_OUTPUTS * CUDA_LANES,
    DOWN_ROWS_AT_ONCE = 2,
    DOWN_SLOTS = 9 /* the kernel whose loads are all under way at once */
};

/* ---- Gate and up ---- */

/* Whose rows chose an expert: where in the lists of shared memory. */
struct up_lists {
    int *chosen;  /* [rows * top_k] */
    int *leader;  /* [rows * top_k]: the first entry with the same expert */
    int *tile_of; /* [rows * top_k]: of a leader */
    int *expert;  /* [tiles] */
    int *count;   /* [tiles] */
    int *member;  /* [tiles][rows]: row << 16 | its slot */
};

static __device__ __forceinline__ struct up_lists up_lists_at(int *at, int entries)
{
    struct up_lists s;
    s.chosen = at;
    s.leader = s.chosen + entries;
    s.tile_of = s.leader + entries;
    s.expert = s.tile_of + entries;
    s.count = s.expert + entries + 1;
    s.member = s.count + entries + 1;
    return s;
}

static int up_lists_bytes(const struct experts_run *e)
{
    const int entries = e->rows * e->top_k;
    return (int)sizeof(int) * (3 * entries + (entries + 1) * (2 + e->rows));
}

/* The distinct experts in the order in which entries first name them, behind the shared one; the
 * same in every block. Returns how many. */
static __device__ __forceinline__ int up_group(const struct experts_run *e, struct up_lists s)
{
    const int entries = e->rows * e->top_k, thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const int shared = e->shared ? 1 : 0;
    int distinct = 0;
    for (int t = thread; t < entries; t += threads) {
        int leader = t;
        for (int i = t - 1; i >= 0; i--)
            leader = s.chosen[i] == s.chosen[t] ? i : leader;
        s.leader[t] = leader;
    }
    __syncthreads();
    for (int t = thread; t < entries; t += threads) {
        int before = 0;
        for (int i = 0; i < t; i++)
            before += s.leader[i] == i;
        s.tile_of[t] = shared + before;
    }
    __syncthreads();
    for (int i = 0; i < entries; i++)
        distinct += s.leader[i] == i;
    for (int t = thread; t < entries; t += threads) {
        const int leader = s.leader[t], tile = s.tile_of[leader];
        int place = 0, count = 0;
        for (int i = 0; i < entries; i++) {
            count += s.leader[i] == leader;
            place += i < t && s.leader[i] == leader;
        }
        s.member[tile * e->rows + place] =
            t / e->top_k << 16 | (t / e->top_k * e->slots + t % e->top_k);
        s.expert[tile] = s.chosen[t];
        s.count[tile] = count;
    }
    for (int r = thread; shared && r < e->rows; r += threads) {
        s.member[r] = r << 16 | (r * e->slots + e->top_k);
        s.expert[0] = e->experts;
        s.count[0] = e->rows;
    }
    __syncthreads();
    return shared + distinct;
}

/* This lane's codes of gate and up of one output, all groups at once, and its share of the scales:
 * bytes 8 * lane on of 128. */
template <int groups> struct up_weights {
    uint4 code[groups > 0 ? groups : 1][2];
    uint2 scale[2];
};

template <int groups>
static __device__ __forceinline__ void up_load(const struct experts_run *e, int expert, int output,
                                               int lane, struct up_weights<groups> *w)
{
    const struct cuda_experts *of[2] = {&e->gate, &e->up};
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint8_t *data = of[m]->first.data + (size_t)expert * of[m]->data_stride +
                              (size_t)output * of[m]->first.row_bytes + lane * 16;
        const uint8_t *scales = of[m]->first.scales + (size_t)expert * of[m]->scale_stride +
                                (size_t)output * of[m]->first.scale_bytes + lane * 8;
#pragma unroll
        for (int g = 0; g < groups; g++)
            w->code[g][m] = load_stream(data + g * CUDA_LANES * 16);
        w->scale[m] = load_stream8(scales);
    }
}

/* Eight scale bytes as floats into the warp's shared memory. */
static __device__ __forceinline__ void scales_put8(uint2 bytes, float *to)
{
    const uint32_t word[2] = {bytes.x, bytes.y};
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(float4 *)(to + 4 * i) =
            make_float4(nvfp4_scale(word[i] & 0xffu), nvfp4_scale(word[i] >> 8 & 0xffu),
                        nvfp4_scale(word[i] >> 16 & 0xffu), nvfp4_scale(word[i] >> 24));
}

/* Gate and up of one output for `n` members of its expert, at most `most` at a time. */
template <int groups, int most>
static __device__ __forceinline__ void up_members(const struct experts_run *e, const uint8_t *table,
                                                  const struct up_weights<groups> *w, int expert,
                                                  const float *scales, const float *x, int blocks,
                                                  const int *member, int n, int output, int lane)
{
    const int input = blocks * CUDA_BLOCK;
    const float *gate_scale = scales + nvfp4_scales_at(blocks, 2, 0, 0, lane / 8);
    const float *up_scale = scales + nvfp4_scales_at(blocks, 2, 0, 1, lane / 8);
    const float *row[most];
    float acc[2][most];
#pragma unroll
    for (int r = 0; r < most; r++) {
        row[r] = x + (member[r < n ? r : 0] >> 16) * input + lane * 4;
        acc[0][r] = 0.0f;
        acc[1][r] = 0.0f;
    }
    if (groups > 0) {
#pragma unroll
        for (int g = 0; g < groups; g++) {
            const float *const scale[2] = {gate_scale + g * NVFP4_GROUP_BLOCKS,
                                           up_scale + g * NVFP4_GROUP_BLOCKS};
            const float *at[most];
#pragma unroll
            for (int r = 0; r < most; r++)
                at[r] = row[r] + g * CUDA_NVFP4_GROUP;
            nvfp4_group<2, most>(table, w->code[g], scale, at, acc);
        }
    } else {
        const size_t gate_at = (size_t)output * e->gate.first.row_bytes +
                               (size_t)expert * e->gate.data_stride + (size_t)lane * 16;
        const size_t up_at = (size_t)output * e->up.first.row_bytes +
                             (size_t)expert * e->up.data_stride + (size_t)lane * 16;
        for (int g = 0; g < blocks / NVFP4_GROUP_BLOCKS; g++) {
            const uint4 code[2] = {load_stream(e->gate.first.data + gate_at + g * CUDA_LANES * 16),
                                   load_stream(e->up.first.data + up_at + g * CUDA_LANES * 16)};
            const float *const scale[2] = {gate_scale + g * NVFP4_GROUP_BLOCKS,
                                           up_scale + g * NVFP4_GROUP_BLOCKS};
            const float *at[most];
            for (int r = 0; r < most; r++)
                at[r] = row[r] + g * CUDA_NVFP4_GROUP;
            nvfp4_group<2, most>(table, code, scale, at, acc);
        }
    }
#pragma unroll
    for (int r = 0; r < most; r++) {
        const float gate = rounded(lanes_sum(acc[0][r])), up = rounded(lanes_sum(acc[1][r]));
        if (lane == 0 && r < n)
            e->inner[(size_t)(member[r] & 0xffff) * (size_t)e->width + (size_t)output] =
                silu_up(gate, up);
    }
}

/* What the rows chose, for the next kernel. */
static __device__ __forceinline__ void up_keep(const struct experts_run *e, struct up_lists lists,
                                               int warps)
{
    const int lane = (int)threadIdx.x % 32;
    for (int r = (int)threadIdx.x / 32; r < e->rows; r += warps) {
        const int at = r * e->top_k;
        route_mix(route_score(e->score + (size_t)r * (size_t)e->experts, lists.chosen + at,
                              e->top_k, lane),
                  e->top_k, e->normalize, lane, e->mix + at);
        if (lane < e->top_k)
            e->chosen[at + lane] = lists.chosen[at + lane];
    }
}

/* A warp's item is two neighbouring outputs of one expert, for all rows that chose it; a thread
 * block has a run of items. groups: of the inputs, all loaded at once; 0: any. one: there is one
 * row. */
template <int groups, bool one>
static __global__ __launch_bounds__(one ? 832 : 576, 1) void experts_up(struct experts_run e,
                                                                        struct experts_few plan)
{
    uint8_t *table = experts_memory;
    float *x = (float *)(experts_memory + plan.up.rows_at);
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x, warp = thread / 32;
    const int half_warp = thread / CUDA_LANES % 2, lane = thread % CUDA_LANES;
    const int blocks = plan.up.blocks, pairs = e.width / 2, shared = e.shared ? 1 : 0;
    float *scales = (float *)(experts_memory + plan.up.scales_at) +
                    (warp * 2 + half_warp) * (nvfp4_scales_floats(blocks, 2) / 2);
    const struct up_lists lists =
        up_lists_at((int *)(experts_memory + plan.up.lists_at), e.rows * e.top_k);
    struct up_weights<groups> w;

    int tiles = shared + e.top_k;
    int item = (int)((int64_t)tiles * pairs * blockIdx.x / gridDim.x) + warp;
    /* The shared expert needs no choice: with one row its items are known before it. */
    const bool early = one && groups > 0 && shared && item < pairs;
    if (groups > 0 && early)
        up_load<groups>(&e, e.experts, 2 * item + half_warp, lane, &w);
    nvfp4_fill_table(table, thread, threads);
    pdl_wait();
    /* Not before: the next kernel may read the router's results as it starts. */
    pdl_launch_next();

    if (one) {
        if (warp == 0)
            route_row(e.key, e.experts, e.top_k, thread, lists.chosen);
        else
            nvfp4_take_row(e.normed, e.hidden, blocks * CUDA_BLOCK, x, thread - 32, threads - 32);
        __syncthreads();
    } else {
        for (int r = warp; r < e.rows; r += plan.up.warps)
            route_row(e.key + (size_t)r * (size_t)e.experts, e.experts, e.top_k, thread % 32,
                      lists.chosen + r * e.top_k);
        for (int r = 0; r < e.rows; r++)
            nvfp4_take_row(e.normed + (size_t)r * (size_t)e.hidden, e.hidden, blocks * CUDA_BLOCK,
                           x + r * blocks * CUDA_BLOCK, thread, threads);
        __syncthreads();
        tiles = up_group(&e, lists);
        item = (int)((int64_t)tiles * pairs * blockIdx.x / gridDim.x) + warp;
    }
    const int end = (int)((int64_t)tiles * pairs * (blockIdx.x + 1) / gridDim.x);

    bool loaded = early;
    for (; item < end; item += plan.up.warps) {
        const int tile = item / pairs, output = 2 * (item % pairs) + half_warp;
        const int expert = !one             ? lists.expert[tile]
                           : tile >= shared ? lists.chosen[tile - shared]
                                            : e.experts;
        if (groups > 0) {
            if (!loaded)
                up_load<groups>(&e, expert, output, lane, &w);
            loaded = false;
        }
        if (groups == 4) {
#pragma unroll
            for (int m = 0; m < 2; m++)
                scales_put8(w.scale[m],
                            scales + nvfp4_scales_at(blocks, 2, 0, m, lane / 8) + lane % 8 * 8);
        } else {
            const struct cuda_experts *of[2] = {&e.gate, &e.up};
            for (int m = 0; m < 2; m++) {
                const uint8_t *bytes = of[m]->first.scales + (size_t)expert * of[m]->scale_stride +
                                       (size_t)output * of[m]->first.scale_bytes;
                for (int i = lane; i < 2 * blocks; i += CUDA_LANES)
                    scales[nvfp4_scales_at(blocks, 2, 0, m, i / blocks) + i % blocks] =
                        nvfp4_scale(bytes[i]);
            }
        }
        __syncwarp();
        if (one) {
            const int member = tile >= shared ? tile - shared : e.top_k;
            up_members<groups, 1>(&e, table, &w, expert, scales, x, blocks, &member, 1, output,
                                  lane);
        } else {
            const int *member = lists.member + tile * e.rows;
            for (int left = lists.count[tile]; left > 0; left -= 4, member += 4) {
                if (left == 1)
                    up_members<groups, 1>(&e, table, &w, expert, scales, x, blocks, member, 1,
                                          output, lane);
                else if (left == 2)
                    up_members<groups, 2>(&e, table, &w, expert, scales, x, blocks, member, 2,
                                          output, lane);
                else
                    up_members<groups, 4>(&e, table, &w, expert, scales, x, blocks, member,
                                          left < 4 ? left : 4, output, lane);
            }
        }
        __syncwarp();
    }
    if (!one && blockIdx.x == 0)
        up_keep(&e, lists, plan.up.warps);
}

/* ---- Down, mixture, residual ---- */

/* Two scale bytes of each slot of this lane, as floats into the half-warp's shared memory. */
template <int slots>
static __device__ __forceinline__ void down_scales(const uint16_t bytes[slots], float *scales,
                                                   int blocks, int lane)
{
#pragma unroll
    for (int i = 0; i < slots; i++)
        *(float2 *)(scales + nvfp4_scales_at(blocks, slots, 0, i, lane / 8) + lane % 8 * 2) =
            make_float2(nvfp4_scale(bytes[i] & 0xffu), nvfp4_scale(bytes[i] >> 8));
}

/* A half-warp owns output blockIdx.x * DOWN_OUTPUTS + .. of one row at a time. fixed: slots of a
 * row where the width is one group of inputs: all their loads are under way at once; 0: any. one:
 * there is one row: its experts are chosen anew and their weights loaded before the kernel waits
 * (gate and up let it start when the router had ended). */
template <int fixed, bool one>
static __global__ __launch_bounds__(one ? 896 : 512, 1) void experts_down(struct experts_run e,
                                                                          struct experts_few plan)
{
    enum { SLOTS = fixed > 0 ? fixed : 1 };
    uint8_t *table = experts_memory;
    int *chosen = (int *)(experts_memory + plan.down.chosen_at);
    float *mix = (float *)(experts_memory + plan.down.mix_at);
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const int half_warp = thread / CUDA_LANES, lane = thread % CUDA_LANES;
    const int blocks = plan.down.blocks, input = blocks * CUDA_BLOCK;
    const int here = half_warp / DOWN_OUTPUTS;
    const int output = (int)blockIdx.x * DOWN_OUTPUTS + half_warp % DOWN_OUTPUTS;
    const int safe = output < e.hidden ? output : e.hidden - 1;
    float *x = (float *)(experts_memory + plan.down.rows_at);
    float *scales = (float *)(experts_memory + plan.down.scales_at) +
                    half_warp * (nvfp4_scales_floats(blocks, fixed > 0 ? fixed : 1) / 2);
    const struct cuda_matrix *w = &e.down.first;
    const size_t data_at = (size_t)safe * w->row_bytes + (size_t)lane * 16;
    const size_t scale_at = (size_t)safe * w->scale_bytes;

    pdl_launch_next();
    nvfp4_fill_table(table, thread, threads);
    if (one) {
        if (thread < 32) {
            route_row(e.key, e.experts, e.top_k, thread, chosen);
            route_mix(route_score(e.score, chosen, e.top_k, thread), e.top_k, e.normalize, thread,
                      mix);
        }
    } else {
        pdl_wait();
        for (int i = thread; i < e.rows * e.top_k; i += threads) {
            chosen[i] = __ldcg(e.chosen + i);
            mix[i] = __ldcg(e.mix + i);
        }
    }
    __syncthreads();

    for (int first = 0; first < e.rows; first += plan.down.rows_at_once) {
        const int row = first + here < e.rows ? first + here : e.rows - 1;
        const int *expert = chosen + row * e.top_k;
        uint4 code[SLOTS];
        uint16_t bytes[SLOTS];
        if (fixed > 0) {
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                const size_t n = (size_t)(i < e.top_k ? expert[i] : e.experts);
                code[i] = load_stream(w->data + n * e.down.data_stride + data_at);
                bytes[i] =
                    *(const uint16_t *)(w->scales + n * e.down.scale_stride + scale_at + lane * 2);
            }
            down_scales<SLOTS>(bytes, scales, blocks, lane);
        }
        if (one)
            pdl_wait();
        const int rows_here =
            e.rows - first < plan.down.rows_at_once ? e.rows - first : plan.down.rows_at_once;
        const uint16_t *inner = e.inner + (size_t)first * (size_t)e.slots * (size_t)e.width;
        if (e.width == input)
            nvfp4_take_row(inner, rows_here * e.slots * input, rows_here * e.slots * input, x,
                           thread, threads);
        else
            for (int i = 0; i < rows_here * e.slots; i++)
                nvfp4_take_row(inner + (size_t)i * (size_t)e.width, e.width, input, x + i * input,
                               thread, threads);
        const size_t at = (size_t)row * (size_t)e.hidden + (size_t)safe;
        const float residual = bf16_float(__ldcg(e.x + at));
        const float apart = e.shared_out != NULL ? bf16_float(__ldcg(e.shared_out + at)) : 0.0f;
        __syncthreads();
        const float *mine = x + here * e.slots * input + lane * 4;
        float sum = 0.0f, shared = 0.0f;
        if (fixed > 0) {
            float acc[SLOTS];
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                const float *const scale[1] = {scales +
                                               nvfp4_scales_at(blocks, SLOTS, 0, i, lane / 8)};
                const float *const from[1] = {mine + i * input};
                float one_sum[1][1] = {{0.0f}};
                nvfp4_group<1, 1>(table, &code[i], scale, from, one_sum);
                acc[i] = one_sum[0][0];
            }
#pragma unroll
            for (int i = 0; i < SLOTS; i++)
                acc[i] = rounded(lanes_sum(acc[i]));
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                if (i < e.top_k) {
                    const float y = rounded(acc[i] * mix[row * e.top_k + i]);
                    sum = i == 0 ? y : rounded(sum + y);
                } else {
                    shared = acc[i];
                }
            }
        } else {
            for (int i = 0; i < e.slots; i++) {
                const size_t n = (size_t)(i < e.top_k ? expert[i] : e.experts);
                const uint8_t *data = w->data + n * e.down.data_stride + data_at;
                const uint8_t *byte = w->scales + n * e.down.scale_stride + scale_at;
                float one_sum[1][1] = {{0.0f}};
                __syncwarp();
                for (int j = lane; j < 2 * blocks; j += CUDA_LANES)
                    scales[nvfp4_scales_at(blocks, 1, 0, 0, j / blocks) + j % blocks] =
                        nvfp4_scale(byte[j]);
                __syncwarp();
                for (int g = 0; g < blocks / NVFP4_GROUP_BLOCKS; g++) {
                    const uint4 group[1] = {load_stream(data + g * CUDA_LANES * 16)};
                    const float *const scale[1] = {scales +
                                                   nvfp4_scales_at(blocks, 1, 0, 0, lane / 8) +
                                                   g * NVFP4_GROUP_BLOCKS};
                    const float *const from[1] = {mine + i * input + g * CUDA_NVFP4_GROUP};
                    nvfp4_group<1, 1>(table, group, scale, from, one_sum);
                }
                const float v = rounded(lanes_sum(one_sum[0][0]));
                if (i < e.top_k) {
                    const float y = rounded(v * mix[row * e.top_k + i]);
                    sum = i == 0 ? y : rounded(sum + y);
                } else {
                    shared = v;
                }
            }
        }
        sum = rounded(sum * e.routed_scale);
        if (e.shared)
            sum = rounded(sum + shared);
        else if (e.shared_out != NULL)
            sum = rounded(sum + apart);
        if (lane == 0 && output < e.hidden && first + here < e.rows)
            e.x[at] = bf16_of(residual + sum);
        __syncthreads();
    }
}

/* ---- Launches ---- */

static int round_up(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

static bool up_plan(const struct cuda_launch *l, const struct experts_run *e, struct experts_few *p)
{
    p->up.blocks = e->gate.first.padded / CUDA_BLOCK;
    p->up.rows_at = NVFP4_TABLE_BYTES;
    p->up.scales_at = p->up.rows_at + e->rows * e->gate.first.padded * (int)sizeof(float);
    const int of_warp = nvfp4_scales_floats(p->up.blocks, 2) * (int)sizeof(float);
    const int lists = round_up(up_lists_bytes(e), 16);
    const int warps = ((int)l->device->shared_most - p->up.scales_at - lists) / of_warp;
    p->up.warps = warps < UP_WARPS ? warps : UP_WARPS;
    p->up.lists_at = p->up.scales_at + p->up.warps * of_warp;
    p->up.bytes = p->up.lists_at + lists;
    return p->up.warps >= UP_WARPS_LEAST;
}

static bool down_plan(const struct cuda_launch *l, const struct experts_run *e,
                      struct experts_few *p)
{
    const int entries = e->rows * e->top_k;
    p->down.fixed = e->slots == DOWN_SLOTS && e->down.first.padded == CUDA_NVFP4_GROUP;
    p->down.blocks = e->down.first.padded / CUDA_BLOCK;
    p->down.rows_at = NVFP4_TABLE_BYTES;
    const int row = e->slots * e->down.first.padded * (int)sizeof(float);
    const int scales = DOWN_OUTPUTS *
                       (nvfp4_scales_floats(p->down.blocks, p->down.fixed ? e->slots : 1) / 2) *
                       (int)sizeof(float);
    for (int n = e->rows < DOWN_ROWS_AT_ONCE ? e->rows : DOWN_ROWS_AT_ONCE; n > 0; n--) {
        p->down.rows_at_once = n;
        p->down.scales_at = p->down.rows_at + n * row;
        p->down.chosen_at = p->down.scales_at + n * scales;
        p->down.mix_at = p->down.chosen_at + entries * (int)sizeof(int);
        p->down.bytes = p->down.mix_at + entries * (int)sizeof(float);
        if (p->down.bytes <= (int)l->device->shared_most)
            return true;
    }
    return false;
}

bool experts_few_plan(const struct cuda_launch *l, const struct experts_run *e,
                      struct experts_few *out)
{
    return e->gate.first.format == WEIGHT_NVFP4 && e->up.first.format == WEIGHT_NVFP4 &&
           e->down.first.format == WEIGHT_NVFP4 && e->rows <= CUDA_RECORD_ROWS &&
           e->width % 2 == 0 && e->hidden % 2 == 0 && up_plan(l, e, out) && down_plan(l, e, out);
}

template <int groups, bool one>
static void up_launch(const struct cuda_launch *l, const struct experts_run *e,
                      const struct experts_few *p)
{
    cuda_launch(l, "experts gate and up", experts_up<groups, one>,
                dim3((unsigned)l->device->multiprocessors), dim3((unsigned)p->up.warps * 32),
                (size_t)p->up.bytes, *e, *p);
}

void experts_few_up(const struct cuda_launch *l, const struct experts_run *e,
                    const struct experts_few *p)
{
    const bool real = e->gate.first.padded == 4 * CUDA_NVFP4_GROUP;
    if (real && e->rows == 1)
        up_launch<4, true>(l, e, p);
    else if (real)
        up_launch<4, false>(l, e, p);
    else if (e->rows == 1)
        up_launch<0, true>(l, e, p);
    else
        up_launch<0, false>(l, e, p);
}

template <int fixed, bool one>
static void down_launch(const struct cuda_launch *l, const struct experts_run *e,
                        const struct experts_few *p)
{
    cuda_launch(l, "experts down", experts_down<fixed, one>,
                dim3((unsigned)((e->hidden + DOWN_OUTPUTS - 1) / DOWN_OUTPUTS)),
                dim3((unsigned)(p->down.rows_at_once * DOWN_THREADS)), (size_t)p->down.bytes, *e,
                *p);
}

void experts_few_down(const struct cuda_launch *l, const struct experts_run *e,
                      const struct experts_few *p)
{
    if (p->down.fixed && e->rows == 1)
        down_launch<DOWN_SLOTS, true>(l, e, p);
    else if (p->down.fixed)
        down_launch<DOWN_SLOTS, false>(l, e, p);
    else if (e->rows == 1)
        down_launch<0, true>(l, e, p);
    else
        down_launch<0, false>(l, e, p);
}
