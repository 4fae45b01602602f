/* The ffn block (laguna.md section 6): dense, or the router and routed experts. Here: what a block
 * needs of scratch, the dense form, the router, and which of the experts' kernels run. */
#include "engine/compute/cuda/experts_route.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/meter.h"
#include "engine/compute/cuda/moe.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum {
    ALIGN = 256,
    ELEMENTWISE_THREADS = 256,
    ROUTER_THREADS = 128,
    ROUTER_OUTPUTS = ROUTER_THREADS / CUDA_LANES, /* of a block */
    ROUTER_ROWS = 8,   /* of a block, at most: two rows are normed by a warp */
    ROUTER_GROUPS = 16 /* the kernel that holds its weights: 2048 inputs */
};

/* ---- Scratch ---- */

struct ffn_sizes {
    size_t rows, hidden;
    size_t width; /* of the dense form, or of a shared expert that is not among the others */
    size_t experts, top_k, expert_width; /* experts 0: dense */
};

struct ffn_memory {
    struct moe_exchange *exchange; /* the first: at the same place in every block */
    uint16_t *gate, *up;           /* [rows, width] */
    uint16_t *shared_out;          /* [rows, hidden] */
    uint16_t *normed;              /* [rows, hidden] */
    uint32_t *key;                 /* [rows, experts] */
    float *score;                  /* [rows, experts] */
    int *chosen, *entry_of;        /* [rows, top_k] */
    float *mix;                    /* [rows, top_k] */
    uint16_t *inner, *out;         /* [entries, expert_width], [entries, hidden] */
    int *start, *row_of;           /* [experts + 2], [entries] */
    int *tile_count;               /* [1] */
    struct cuda_experts_tile *tiles;
    size_t bytes;
};

static void *take(uint8_t *base, size_t *used, size_t count, size_t element)
{
    uint8_t *p = base + *used;
    *used += (count * element + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static size_t tiles_most(const struct ffn_sizes *s)
{
    const size_t entries = s->rows * s->top_k;
    return entries / EXPERTS_TILE + (entries < s->experts ? entries : s->experts) +
           (s->rows + EXPERTS_TILE - 1) / EXPERTS_TILE;
}

static struct ffn_memory lay_out(const struct ffn_sizes *s, void *base)
{
    struct ffn_memory m;
    uint8_t *b = (uint8_t *)base;
    size_t used = 0;
    m.exchange = (struct moe_exchange *)take(b, &used, 1, sizeof *m.exchange);
    m.gate = (uint16_t *)take(b, &used, s->rows * s->width, sizeof(uint16_t));
    m.up = (uint16_t *)take(b, &used, s->rows * s->width, sizeof(uint16_t));
    const size_t rows = s->experts > 0 ? s->rows : 0, entries = rows * (s->top_k + 1);
    m.shared_out = (uint16_t *)take(b, &used, rows * s->hidden, sizeof(uint16_t));
    m.normed = (uint16_t *)take(b, &used, rows * s->hidden, sizeof(uint16_t));
    m.key = (uint32_t *)take(b, &used, rows * s->experts, sizeof(uint32_t));
    m.score = (float *)take(b, &used, rows * s->experts, sizeof(float));
    m.chosen = (int *)take(b, &used, rows * s->top_k, sizeof(int));
    m.entry_of = (int *)take(b, &used, rows * s->top_k, sizeof(int));
    m.mix = (float *)take(b, &used, rows * s->top_k, sizeof(float));
    m.inner = (uint16_t *)take(b, &used, entries * s->expert_width, sizeof(uint16_t));
    m.out = (uint16_t *)take(b, &used, entries * s->hidden, sizeof(uint16_t));
    m.start = (int *)take(b, &used, s->experts + 2, sizeof(int));
    m.row_of = (int *)take(b, &used, entries, sizeof(int));
    m.tile_count = (int *)take(b, &used, 1, sizeof(int));
    m.tiles = (struct cuda_experts_tile *)take(b, &used, s->experts > 0 ? tiles_most(s) : 0,
                                               sizeof *m.tiles);
    m.bytes = used;
    return m;
}

size_t cuda_ffn_scratch(const struct compute_shape *shape, int rows)
{
    struct ffn_sizes s = {};
    s.rows = (size_t)rows;
    s.hidden = (size_t)shape->hidden;
    s.width = (size_t)shape->max_ffn_width;
    s.experts = (size_t)shape->max_experts;
    s.top_k = (size_t)shape->max_top_k;
    s.expert_width =
        (size_t)(shape->max_expert_width > 0 ? shape->max_expert_width : shape->max_ffn_width);
    return lay_out(&s, NULL).bytes;
}

/* ---- Dense ---- */

static __global__ void ffn_silu_up(uint16_t *gate, const uint16_t *up, int n)
{
    pdl_launch_next();
    pdl_wait();
    const int pair = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (2 * pair + 1 < n) {
        const uint32_t g = __ldcg((const unsigned *)gate + pair);
        const uint32_t u = __ldcg((const unsigned *)up + pair);
        const uint32_t low = silu_up(bf16_low(g), bf16_low(u));
        ((uint32_t *)gate)[pair] = low | (uint32_t)silu_up(bf16_high(g), bf16_high(u)) << 16;
    } else if (2 * pair < n) {
        gate[2 * pair] =
            silu_up(bf16_float(__ldcg(gate + 2 * pair)), bf16_float(__ldcg(up + 2 * pair)));
    }
}

static struct cuda_linear linear_of(const struct cuda_matrix *w, const uint16_t *x, int rows,
                                    uint16_t *y)
{
    struct cuda_linear a = {};
    a.w = w;
    a.x = x;
    a.x_stride = (size_t)w->in;
    a.rows = rows;
    a.y = y;
    a.y_stride = (size_t)w->out;
    return a;
}

/* y = down(silu(gate(norm(x))) * up(norm(x))), added to y or not. */
static void swiglu(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                   const struct cuda_matrix *gate, const struct cuda_matrix *up,
                   const struct cuda_matrix *down, const struct ffn_memory *m, uint16_t *y,
                   bool add)
{
    const struct cuda_ffn *w = a->w;
    struct cuda_linear g = linear_of(gate, a->x, a->rows, m->gate);
    struct cuda_linear u = linear_of(up, a->x, a->rows, m->up);
    struct cuda_linear d = linear_of(down, m->gate, a->rows, y);
    g.norm = u.norm = w->norm;
    g.eps = u.eps = w->block->eps;
    d.add = add;
    cuda_linear(l, &g);
    cuda_linear(l, &u);
    const int n = a->rows * gate->out;
    cuda_launch(l, "ffn silu", ffn_silu_up,
                dim3((unsigned)((n + 1) / 2 + ELEMENTWISE_THREADS - 1) / ELEMENTWISE_THREADS),
                dim3(ELEMENTWISE_THREADS), 0, m->gate, m->up, n);
    cuda_linear(l, &d);
}

/* ---- Router ---- */

struct router_run {
    struct cuda_matrix w; /* bf16 */
    const uint16_t *norm;
    const float *bias;
    float eps;
    const uint16_t *x;
    int rows, hidden, experts;
    int rows_each; /* of a block */
    uint32_t *key;
    float *score;
    uint16_t *normed;
    int lanes_at, norm_at; /* in dynamic shared memory; the rows as they are stand first */
};

extern __shared__ __align__(16) uint8_t router_memory[];

/* One expert's scores and keys of `most` rows from `first` on. held: the weights, where groups > 0.
 */
template <int groups, int most>
static __device__ __forceinline__ void
router_rows(const struct router_run *a, const uint4 *held, const uint8_t *weights,
            const uint16_t *lanes, int first, int n, int row0, int expert, float bias, int lane)
{
    const int all = a->w.padded / CUDA_BF16_GROUP;
    float acc[most];
#pragma unroll
    for (int r = 0; r < most; r++)
        acc[r] = 0.0f;
    if (groups > 0) {
#pragma unroll
        for (int g = 0; g < groups; g++)
#pragma unroll
            for (int r = 0; r < most; r++)
                acc[r] =
                    lanes_dot(held[g],
                              *((const uint4 *)(lanes + (first + (r < n ? r : 0)) * a->w.padded) +
                                g * CUDA_LANES + lane),
                              acc[r]);
    } else {
        for (int g = 0; g < all; g++) {
            const uint4 w = load_stream(weights + (g * CUDA_LANES + lane) * 16);
#pragma unroll
            for (int r = 0; r < most; r++)
                acc[r] =
                    lanes_dot(w,
                              *((const uint4 *)(lanes + (first + (r < n ? r : 0)) * a->w.padded) +
                                g * CUDA_LANES + lane),
                              acc[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < most; r++) {
        const float score = elementary_sigmoid(rounded(lanes_sum(acc[r])));
        if (lane == 0 && r < n && expert < a->experts) {
            const size_t at = (size_t)(row0 + first + r) * (size_t)a->experts + (size_t)expert;
            a->score[at] = score;
            a->key[at] = route_key(score + bias);
        }
    }
}

/* Norms up to ROUTER_ROWS rows in every block, and gives each half-warp an expert: its score and
 * its key for each. Block r of a row also keeps its r-th row, normed. */
template <int groups>
static __global__ __launch_bounds__(ROUTER_THREADS) void ffn_router(struct router_run a)
{
    __shared__ float inverse[ROUTER_ROWS];
    uint16_t *raw = (uint16_t *)router_memory;
    uint16_t *lanes = (uint16_t *)(router_memory + a.lanes_at);
    uint16_t *norm = (uint16_t *)(router_memory + a.norm_at);
    const int thread = (int)threadIdx.x, lane = thread % CUDA_LANES;
    const int expert = (int)blockIdx.x * ROUTER_OUTPUTS + thread / CUDA_LANES;
    const int row0 = (int)blockIdx.y * a.rows_each;
    const int rows = a.rows - row0 < a.rows_each ? a.rows - row0 : a.rows_each;
    const uint8_t *weights =
        a.w.data + (size_t)(expert < a.experts ? expert : a.experts - 1) * a.w.row_bytes;
    const float bias = a.bias[expert < a.experts ? expert : a.experts - 1];
    uint4 held[groups > 0 ? groups : 1];

    pdl_launch_next();
#pragma unroll
    for (int g = 0; g < groups; g++)
        held[g] = load_stream(weights + (g * CUDA_LANES + lane) * 16);
    for (int i = thread; i < a.hidden; i += ROUTER_THREADS)
        norm[i] = a.norm[i];
    pdl_wait();

    const uint16_t *x = a.x + (size_t)row0 * (size_t)a.hidden;
    if (a.hidden % 8 == 0) {
        const int pieces = rows * a.hidden / 8;
        for (int i = thread; i < pieces; i += 2 * ROUTER_THREADS) {
            const int j = i + ROUTER_THREADS;
            const uint4 v = __ldcg((const uint4 *)x + i);
            const uint4 u = j < pieces ? __ldcg((const uint4 *)x + j) : make_uint4(0, 0, 0, 0);
            ((uint4 *)raw)[i] = v;
            if (j < pieces)
                ((uint4 *)raw)[j] = u;
        }
    } else {
        for (int i = thread; i < rows * a.hidden; i += ROUTER_THREADS)
            raw[i] = __ldcg(x + i);
    }
    __syncthreads();
    if (thread / 32 * 2 < rows) {
        const int r = thread / CUDA_LANES < rows ? thread / CUDA_LANES : rows - 1;
        const uint16_t *mine = raw + r * a.hidden;
        float sum = 0.0f;
#pragma unroll 16
        for (int i = lane; i < a.hidden; i += CUDA_LANES) {
            const float v = bf16_float(mine[i]);
            sum = fmaf(v, v, sum);
        }
        const float mean = lanes_sum(sum) / (float)a.hidden;
        if (lane == 0 && thread / CUDA_LANES < rows)
            inverse[r] = 1.0f / sqrtf(mean + a.eps);
    }
    __syncthreads();
    for (int r = 0; r < rows; r++) {
        const float by = inverse[r];
        const bool mine = (int)blockIdx.x == r % (int)gridDim.x;
        uint16_t *normed = a.normed + (size_t)(row0 + r) * (size_t)a.hidden;
#pragma unroll 4
        for (int i = thread; i < a.w.padded / 2; i += ROUTER_THREADS) {
            uint32_t pair = 0;
            if (2 * i < a.hidden) {
                const uint32_t v = *(const uint32_t *)(raw + r * a.hidden + 2 * i);
                const uint32_t w = *(const uint32_t *)(norm + 2 * i);
                pair = bf16_of(rounded(bf16_low(v) * by) * bf16_low(w)) |
                       (uint32_t)bf16_of(rounded(bf16_high(v) * by) * bf16_high(w)) << 16;
                if (mine)
                    ((uint32_t *)normed)[i] = pair;
            }
            *(uint32_t *)(lanes + r * a.w.padded + lanes_index(2 * i)) = pair;
        }
    }
    __syncthreads();
    for (int first = 0; first < rows; first += 4) {
        const int n = rows - first;
        if (n == 1)
            router_rows<groups, 1>(&a, held, weights, lanes, first, 1, row0, expert, bias, lane);
        else if (n == 2)
            router_rows<groups, 2>(&a, held, weights, lanes, first, 2, row0, expert, bias, lane);
        else
            router_rows<groups, 4>(&a, held, weights, lanes, first, n < 4 ? n : 4, row0, expert,
                                   bias, lane);
    }
}

static void router(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                   const struct experts_run *e)
{
    const struct cuda_ffn *w = a->w;
    struct router_run r = {};
    r.w = w->router;
    r.norm = w->norm;
    r.bias = w->selection_bias;
    r.eps = w->block->eps;
    r.x = a->x;
    r.rows = a->rows;
    r.hidden = a->hidden;
    r.experts = e->experts;
    r.key = e->key;
    r.score = e->score;
    r.normed = e->normed;
    size_t bytes;
    /* As many rows as there is shared memory for. */
    for (r.rows_each = a->rows < ROUTER_ROWS ? a->rows : ROUTER_ROWS;; r.rows_each--) {
        r.lanes_at = (r.rows_each * a->hidden * 2 + 15) / 16 * 16;
        r.norm_at = r.lanes_at + r.rows_each * w->router.padded * 2;
        bytes = (size_t)(r.norm_at + a->hidden * 2);
        if (bytes + ROUTER_ROWS * sizeof(float) <= l->device->shared_most || r.rows_each == 1)
            break;
    }
    const dim3 grid((unsigned)(e->experts + ROUTER_OUTPUTS - 1) / ROUTER_OUTPUTS,
                    (unsigned)((a->rows + r.rows_each - 1) / r.rows_each));
    if (w->router.padded == ROUTER_GROUPS * CUDA_BF16_GROUP)
        cuda_launch(l, "router", ffn_router<ROUTER_GROUPS>, grid, dim3(ROUTER_THREADS), bytes, r);
    else
        cuda_launch(l, "router", ffn_router<0>, grid, dim3(ROUTER_THREADS), bytes, r);
}

/* ---- The block ---- */

static struct ffn_sizes sparse_sizes(const struct cuda_ffn_run *a)
{
    const struct cuda_ffn *w = a->w;
    struct ffn_sizes s = {};
    s.rows = (size_t)a->rows;
    s.hidden = (size_t)a->hidden;
    s.width = w->block->has_shared && !w->shared_inside ? (size_t)w->shared_gate.out : 0;
    s.experts = (size_t)w->block->experts;
    s.top_k = (size_t)w->block->top_k;
    s.expert_width = (size_t)w->gate.first.out;
    return s;
}

void ffn_experts_run(const struct cuda_ffn_run *a, struct experts_run *out)
{
    const struct cuda_ffn *w = a->w;
    const struct ffn_block *b = w->block;
    const struct ffn_sizes sizes = sparse_sizes(a);
    const struct ffn_memory m = lay_out(&sizes, a->scratch);
    struct experts_run e = {};
    e.gate = w->gate;
    e.up = w->up;
    e.down = w->down;
    e.rows = a->rows;
    e.hidden = a->hidden;
    e.width = w->gate.first.out;
    e.experts = b->experts;
    e.top_k = b->top_k;
    e.shared = w->shared_inside;
    e.slots = b->top_k + (e.shared ? 1 : 0);
    e.normalize = b->normalize_top_k;
    e.routed_scale = b->routed_scale;
    e.key = m.key;
    e.score = m.score;
    e.normed = m.normed;
    e.chosen = m.chosen;
    e.mix = m.mix;
    e.inner = m.inner;
    e.shared_out = b->has_shared && !w->shared_inside ? m.shared_out : NULL;
    e.x = a->x;
    e.exchange = m.exchange;
    *out = e;
}

static void sparse(const struct cuda_launch *l, const struct cuda_ffn_run *a)
{
    const struct cuda_ffn *w = a->w;
    const struct ffn_sizes sizes = sparse_sizes(a);
    const struct ffn_memory m = lay_out(&sizes, a->scratch);
    struct experts_run e;
    struct experts_few few;
    ffn_experts_run(a, &e);
    if (cuda_moe(l, a, &e))
        return;
    if (e.shared_out != NULL) {
        cuda_meter_stage(METER_SHARED);
        swiglu(l, a, &w->shared_gate, &w->shared_up, &w->shared_down, &m, m.shared_out, false);
    }
    cuda_meter_stage(METER_ROUTER);
    router(l, a, &e);
    cuda_meter_stage(METER_EXPERTS);
    if (experts_few_plan(l, &e, &few)) {
        experts_few_up(l, &e, &few);
        experts_few_down(l, &e, &few);
        return;
    }

    struct cuda_experts_sorted s = {};
    s.rows = a->rows;
    s.hidden = a->hidden;
    s.width = e.width;
    s.experts = e.experts;
    s.top_k = e.top_k;
    s.entries = a->rows * e.slots;
    s.start = m.start;
    s.row_of = m.row_of;
    s.entry_of = m.entry_of;
    s.chosen = m.chosen;
    s.mix = m.mix;
    s.tiles = m.tiles;
    s.tile_count = m.tile_count;
    s.most_tiles = (int)tiles_most(&sizes);
    s.normed = m.normed;
    s.inner = m.inner;
    s.out = m.out;
    experts_many_run(l, a, &e, &s);
}

void cuda_ffn_forward(const struct cuda_launch *l, const struct cuda_ffn_run *a)
{
    const struct cuda_ffn *w = a->w;
    if (w->block->sparse) {
        sparse(l, a);
        return;
    }
    struct ffn_sizes sizes = {};
    sizes.rows = (size_t)a->rows;
    sizes.hidden = (size_t)a->hidden;
    sizes.width = (size_t)w->dense_gate.out;
    const struct ffn_memory m = lay_out(&sizes, a->scratch);
    swiglu(l, a, &w->dense_gate, &w->dense_up, &w->dense_down, &m, a->x, true);
}
