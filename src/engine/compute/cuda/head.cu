/* The head: logits as float32 and the best two of each row in the same pass. A block keeps the best
 * of its own outputs; the last block to end merges them. */
#include "engine/compute/cuda/linear.cuh"

#include <limits.h>

enum {
    HEAD_WARPS = 4,
    HEAD_HALF_WARPS = 2 * HEAD_WARPS,
    HEAD_OUTPUTS = 2, /* of a half-warp */
    HEAD_TILES = 8,   /* of a block, at most: its rows are normed once for them */
    HEAD_BLOCKS = 700,
    HEAD_PICK_THREADS = 256
};

/* Nothing picked: an id above all others. */
enum { HEAD_NONE = INT_MAX };

struct head_out {
    float *logits;
    struct head_pick *picks; /* the host's */
    unsigned *counter;       /* blocks that have ended */
    uint4 *best;             /* [block][row R]: a head_pick each */
    int vocab;
};

static __device__ __forceinline__ struct head_pick head_none(void)
{
    struct head_pick p;
    p.token[0] = p.token[1] = HEAD_NONE;
    p.logit[0] = p.logit[1] = -INFINITY;
    return p;
}

static __device__ __forceinline__ bool head_before(float logit, int token, float than, int other)
{
    return logit > than || (logit == than && token < other);
}

/* The rule of struct head_pick, in any order of ids. NaN comes before nothing. */
static __device__ __forceinline__ void head_take(struct head_pick *p, int token, float logit)
{
    if (head_before(logit, token, p->logit[0], p->token[0])) {
        p->token[1] = p->token[0];
        p->logit[1] = p->logit[0];
        p->token[0] = token;
        p->logit[0] = logit;
    } else if (head_before(logit, token, p->logit[1], p->token[1])) {
        p->token[1] = token;
        p->logit[1] = logit;
    }
}

static __device__ __forceinline__ void head_merge(struct head_pick *p, const struct head_pick *more)
{
    head_take(p, more->token[0], more->logit[0]);
    head_take(p, more->token[1], more->logit[1]);
}

/* The best of a half-warp's lanes, in all of them. */
static __device__ __forceinline__ void head_merge_lanes(struct head_pick *p)
{
    for (int step = 8; step >= 1; step /= 2) {
        struct head_pick more;
        for (int i = 0; i < 2; i++) {
            more.token[i] = __shfl_xor_sync(0xffffffffu, p->token[i], step);
            more.logit[i] = __shfl_xor_sync(0xffffffffu, p->logit[i], step);
        }
        head_merge(p, &more);
    }
}

static __device__ __forceinline__ uint4 head_pack(struct head_pick p)
{
    return make_uint4((unsigned)p.token[0], (unsigned)p.token[1], __float_as_uint(p.logit[0]),
                      __float_as_uint(p.logit[1]));
}

static __device__ __forceinline__ struct head_pick head_unpack(uint4 q)
{
    struct head_pick p;
    p.token[0] = (int)q.x;
    p.token[1] = (int)q.y;
    p.logit[0] = __uint_as_float(q.z);
    p.logit[1] = __uint_as_float(q.w);
    return p;
}

static __device__ __forceinline__ void head_give(struct head_pick *to, struct head_pick p)
{
    for (int i = 0; i < 2; i++)
        if (p.token[i] == HEAD_NONE)
            p.token[i] = -1;
    *to = p;
}

/* The last block: from each block's best to the picks. Each row has its share of the half-warps. */
template <int R>
static __device__ __forceinline__ void head_finish(const struct head_out &out, int rows,
                                                   uint4 *shared)
{
    constexpr int PARTS = R < HEAD_HALF_WARPS ? HEAD_HALF_WARPS / R : 1;
    const int half_warp = (int)(threadIdx.x / CUDA_LANES), lane = threadIdx.x % CUDA_LANES;
    for (int base = half_warp / 2 * 2; base < R * PARTS; base += HEAD_HALF_WARPS) {
        const int task = base + half_warp % 2, r = task / PARTS, part = task % PARTS;
        struct head_pick p = head_none();
#pragma unroll 4
        for (unsigned b = part * CUDA_LANES + lane; r < R && b < gridDim.x;
             b += PARTS * CUDA_LANES) {
            const uint4 *from = &out.best[(size_t)b * R + r];
            const struct head_pick more =
                head_unpack(make_uint4(load_fresh_word(&from->x), load_fresh_word(&from->y),
                                       load_fresh_word(&from->z), load_fresh_word(&from->w)));
            head_merge(&p, &more);
        }
        head_merge_lanes(&p);
        if (r < R && lane == 0)
            shared[task] = head_pack(p);
    }
    __syncthreads();
    for (int r = (int)threadIdx.x; r < rows; r += (int)blockDim.x) {
        struct head_pick p = head_unpack(shared[r * PARTS]);
        for (int part = 1; part < PARTS; part++) {
            const struct head_pick more = head_unpack(shared[r * PARTS + part]);
            head_merge(&p, &more);
        }
        head_give(&out.picks[r], p);
    }
    if (threadIdx.x == 0)
        *out.counter = 0;
}

template <int F, int R, int O, int D>
static __global__ void __launch_bounds__(HEAD_WARPS *LINEAR_WARP)
    head_kernel(const struct linear_few p, const struct head_out out)
{
    extern __shared__ uint4 linear_shared[];
    constexpr int LEFT = linear_scatter_left(R * O), ENTRIES = HEAD_HALF_WARPS * O;
    struct linear_stream<O, D / O> s;
    linear_few_open<F, O, D>(p, linear_shared, s);
    linear_few_begin<F, R>(p, linear_shared);
    const int lane = threadIdx.x % CUDA_LANES, first = linear_scatter_first<R * O, 8>(lane);
    const bool twin = lane & linear_scatter_twins(R * O);
    struct head_pick best[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; i++)
        best[i] = head_none();
#pragma unroll 1
    for (int tile = 0; tile < p.tiles; tile++) {
        const int output = linear_few_output<O>(p, tile);
        float v[R * O];
        linear_few_tile<F, R, O, D>(p, linear_shared, s, tile, v);
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            const int r = (first + i) / O, o = output + (first + i) % O;
            const float logit = rounded(v[i]);
            if (r >= p.rows.rows || o >= out.vocab)
                continue;
            head_take(&best[i], o, logit);
            if (out.logits != NULL && !twin)
                out.logits[(size_t)r * out.vocab + o] = logit;
        }
    }
    if (out.picks == NULL)
        return;

    __syncthreads(); /* the rows are not needed any more */
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        const int r = (first + i) / O, o = (first + i) % O;
        if (!twin)
            linear_shared[r * ENTRIES + (int)(threadIdx.x / CUDA_LANES) * O + o] =
                head_pack(best[i]);
    }
    __syncthreads();
    for (int base = (int)(threadIdx.x / LINEAR_WARP) * 2; base < R; base += HEAD_HALF_WARPS) {
        const int r = base + (int)(threadIdx.x / CUDA_LANES) % 2;
        struct head_pick p0 = head_none();
        if (r < R && lane < ENTRIES)
            p0 = head_unpack(linear_shared[r * ENTRIES + lane]);
        head_merge_lanes(&p0);
        if (r < R && lane == 0)
            out.best[(size_t)blockIdx.x * R + r] = head_pack(p0);
    }
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(out.counter, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    head_finish<R>(out, p.rows.rows, linear_shared);
}

/* Picks from logits that are there: a block for each row. */
static __global__ void __launch_bounds__(HEAD_PICK_THREADS)
    head_pick_kernel(const float *logits, int vocab, struct head_pick *picks)
{
    __shared__ uint4 best[HEAD_PICK_THREADS / CUDA_LANES];
    pdl_launch_next();
    pdl_wait();
    const float *row = logits + (size_t)blockIdx.x * vocab;
    struct head_pick p = head_none();
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < vocab; i += HEAD_PICK_THREADS)
        head_take(&p, i, __uint_as_float(load_fresh_word(row + i)));
    head_merge_lanes(&p);
    if (threadIdx.x % CUDA_LANES == 0)
        best[threadIdx.x / CUDA_LANES] = head_pack(p);
    __syncthreads();
    if (threadIdx.x >= LINEAR_WARP)
        return;
    p = head_unpack(best[threadIdx.x % CUDA_LANES]);
    head_merge_lanes(&p);
    if (threadIdx.x == 0)
        head_give(&picks[blockIdx.x], p);
}

/* ---- Host ---- */

static int head_tiles(int vocab)
{
    const int tiles = vocab / (HEAD_BLOCKS * HEAD_HALF_WARPS * HEAD_OUTPUTS);
    return tiles < 1 ? 1 : tiles > HEAD_TILES ? HEAD_TILES : tiles;
}

enum { HEAD_COUNTER_BYTES = 256 };

size_t cuda_head_scratch(int vocab, int rows)
{
    const size_t outputs = (size_t)head_tiles(vocab) * HEAD_HALF_WARPS; /* of a block, at least */
    const size_t blocks = ((size_t)vocab + outputs - 1) / outputs;
    return HEAD_COUNTER_BYTES +
           blocks * CUDA_RECORD_ROWS * (rows > 0 ? sizeof(struct head_pick) : 0);
}

template <int F, int R, int O, int D>
static bool head_launch(const struct cuda_launch *l, const struct cuda_linear *a,
                        const struct head_out *out)
{
    struct linear_plan plan = {};
    plan.outputs = O;
    plan.depth = D;
    plan.warps = HEAD_WARPS;
    plan.tiles = head_tiles(a->w->out);
    struct linear_few p;
    if (!linear_few_fill(l, a, R, &plan, &p))
        return false;
    const int outputs = HEAD_HALF_WARPS * O * plan.tiles;
    cuda_launch(l, "head", head_kernel<F, R, O, D>,
                dim3((unsigned)((a->w->out + outputs - 1) / outputs)),
                dim3(HEAD_WARPS * LINEAR_WARP), (size_t)p.shared, p, *out);
    return true;
}

template <int F, int O, int D>
static void head_format(const struct cuda_launch *l, const struct cuda_linear *a,
                        const struct head_out *out)
{
    bool done = false;
    if (a->rows == 1)
        done = head_launch<F, 1, O, D>(l, a, out);
    else if (a->rows == 2)
        done = head_launch<F, 2, O, D>(l, a, out);
    else if (a->rows <= 4)
        done = head_launch<F, 4, O, D>(l, a, out);
    else if (a->rows <= 8)
        done = head_launch<F, 8, O, D>(l, a, out);
    if (!done)
        head_launch<F, CUDA_RECORD_ROWS, O, D>(l, a, out);
}

static void head_few(const struct cuda_launch *l, const struct cuda_linear *a,
                     const struct head_out *out)
{
    if (a->w->format == WEIGHT_BF16)
        head_format<WEIGHT_BF16, 2, 8>(l, a, out);
    else if (a->w->format == WEIGHT_INT8_AFFINE32)
        head_format<WEIGHT_INT8_AFFINE32, 2, 8>(l, a, out);
    else
        head_format<WEIGHT_NVFP4, 1, 4>(l, a, out);
}

void cuda_head_run(const struct cuda_launch *l, const struct cuda_head *h, const uint16_t *x,
                   int hidden, int rows, float *logits, struct head_pick *picks, void *scratch)
{
    const size_t vocab = (size_t)h->output.out;
    struct cuda_linear a = {};
    a.w = &h->output;
    a.x = x;
    a.x_stride = (size_t)hidden;
    a.norm = h->norm;
    a.eps = h->block->eps;
    a.rows = rows;
    a.y_stride = vocab;
    if (rows > CUDA_RECORD_ROWS && logits != NULL) {
        linear_many(l, &a, logits);
        if (picks != NULL)
            cuda_launch(l, "picks", head_pick_kernel, dim3((unsigned)rows), dim3(HEAD_PICK_THREADS),
                        0, logits, h->output.out, picks);
        return;
    }
    struct head_out out = {};
    out.counter = (unsigned *)scratch;
    out.best = (uint4 *)((uint8_t *)scratch + HEAD_COUNTER_BYTES);
    out.vocab = h->output.out;
    for (int at = 0; at < rows; at += CUDA_RECORD_ROWS) {
        a.x = x + (size_t)at * a.x_stride;
        a.rows = rows - at < CUDA_RECORD_ROWS ? rows - at : CUDA_RECORD_ROWS;
        out.logits = logits == NULL ? NULL : logits + (size_t)at * vocab;
        out.picks = picks == NULL ? NULL : picks + at;
        head_few(l, &a, &out);
    }
}
