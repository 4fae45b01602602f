/* Rows in the order of their weights, and products with bf16 and int8 matrices on tensor cores. */
#include "engine/compute/cuda/fast.cuh"

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

#include <pthread.h>

/* ---- Scratch ---- */

enum { FAST_STREAMS = 64 };
static struct {
    cudaStream_t stream;
    void *memory;
    size_t bytes;
} fast_pieces[FAST_STREAMS];
static pthread_mutex_t fast_lock = PTHREAD_MUTEX_INITIALIZER;

static void *scratch_take(struct cuda_fault *fault, cudaStream_t stream, size_t bytes)
{
    void *out = NULL;
    pthread_mutex_lock(&fast_lock);
    int at = -1;
    for (int i = FAST_STREAMS - 1; i >= 0; i--)
        if (fast_pieces[i].memory == NULL && (at < 0 || fast_pieces[at].memory == NULL))
            at = i;
        else if (fast_pieces[i].memory != NULL && fast_pieces[i].stream == stream)
            at = i;
    if (at < 0) {
        cuda_ok(fault, cudaErrorMemoryAllocation, "scratch of one more stream");
    } else if (fast_pieces[at].memory != NULL && fast_pieces[at].bytes >= bytes) {
        out = fast_pieces[at].memory;
    } else {
        if (fast_pieces[at].memory != NULL) {
            cuda_ok(fault, cudaStreamSynchronize(stream), "fast scratch");
            cuda_memory_free(fast_pieces[at].memory);
            fast_pieces[at].memory = NULL;
        }
        if (!fault->set && cuda_memory_new(fault, bytes, "fast scratch", &out)) {
            fast_pieces[at].stream = stream;
            fast_pieces[at].memory = out;
            fast_pieces[at].bytes = bytes;
        }
    }
    pthread_mutex_unlock(&fast_lock);
    return out;
}

void *fast_scratch(const struct cuda_launch *l, size_t bytes)
{
    return l->fault->set ? NULL : scratch_take(l->fault, l->stream, bytes);
}

void cuda_fast_free(cudaStream_t stream)
{
    pthread_mutex_lock(&fast_lock);
    for (int i = 0; i < FAST_STREAMS; i++)
        if (fast_pieces[i].memory != NULL && fast_pieces[i].stream == stream) {
            cuda_memory_free(fast_pieces[i].memory);
            fast_pieces[i].memory = NULL;
        }
    pthread_mutex_unlock(&fast_lock);
}

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

size_t cuda_fast_bytes(const struct compute_shape *s)
{
    int widest = s->hidden;
    const int inputs[] = {s->max_heads * s->head_dim, s->max_ffn_width, s->max_context_width};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i] > widest)
            widest = inputs[i];
    const size_t linear = (size_t)s->max_rows * (size_t)round_up(widest, CUDA_INT8_GROUP) * 2;
    const int width = s->max_expert_width > 0 ? s->max_expert_width : s->max_ffn_width;
    const size_t experts = s->max_experts > 0 ? fast_experts_bytes(s->max_rows, s->hidden, width,
                                                                   s->max_experts, s->max_top_k)
                                              : 0;
    return linear > experts ? linear : experts;
}

bool cuda_fast_reserve(struct cuda_fault *fault, cudaStream_t stream,
                       const struct compute_shape *shape)
{
    return !fault->set && scratch_take(fault, stream, cuda_fast_bytes(shape)) != NULL;
}

/* ---- Rows ---- */

/* The input that stands at place `at` of a row in this order. */
template <int order> static __device__ __forceinline__ int order_input(int at)
{
    if (order == FAST_ORDER_EXPERTS) {
        /* [group of 512][half 2][word 4][lane of the half 8][block 2][even, odd][block + 2]: what
         * a thread of the NVFP4 kernel multiplies by two words of codes is 16 bytes (there). */
        const int high = at & 1, odd = at >> 1 & 1, low = at >> 2 & 1, lane = at >> 3 & 7;
        const int word = at >> 6 & 3, half = at >> 8 & 1;
        const int block = 4 * word + 2 * high + low;
        return at / 512 * 512 + block * CUDA_BLOCK + 2 * (8 * half + lane) + odd;
    }
    const int blocks = order == FAST_ORDER_INT8 ? 8 : 4, group = blocks * CUDA_BLOCK;
    const int pair = at % group / 2;
    return at / group * group + pair % blocks * CUDA_BLOCK + pair / blocks * 2 + at % 2;
}

enum { ROWS_THREADS = 256 };

/* The tiles of the experts, the shared one's first: it has the longest. One block. */
static __device__ void rows_tiles(const struct fast_rows &a, int *counts)
{
    const int thread = threadIdx.x;
    for (int e = thread; e < a.experts; e += ROWS_THREADS) {
        const int n = a.start[e + 1] - a.start[e];
        counts[e] = (n + FAST_EXPERT_ROWS - 1) / FAST_EXPERT_ROWS;
    }
    __syncthreads();
    for (int e = thread; e < a.experts; e += ROWS_THREADS) {
        int at = 0;
        for (int f = a.experts - 1; f > e; f--)
            at += counts[f];
        const int first = a.start[e], n = a.start[e + 1] - first;
        for (int i = 0; i < counts[e]; i++) {
            const int left = n - i * FAST_EXPERT_ROWS;
            struct fast_tile *t = &a.tiles[at + i];
            t->expert = e;
            t->first = first + i * FAST_EXPERT_ROWS;
            t->count = left < FAST_EXPERT_ROWS ? left : FAST_EXPERT_ROWS;
        }
        if (e == 0)
            *a.tile_count = at + counts[0];
    }
}

extern __shared__ uint4 fast_rows_shared[]; /* [in] bf16: the row as it came; or [experts] int */

template <int order>
static __global__ void __launch_bounds__(ROWS_THREADS) fast_rows_kernel(struct fast_rows a)
{
    __shared__ float inverse;
    pdl_launch_next();
    pdl_wait();
    uint16_t *const row = (uint16_t *)(void *)fast_rows_shared;
    const int thread = threadIdx.x, r = blockIdx.x;
    if (r == a.rows) {
        rows_tiles(a, (int *)(void *)fast_rows_shared);
        return;
    }
    const uint16_t *x = a.x + (size_t)r * a.x_stride;
    if (a.in % 8 == 0 && ((uintptr_t)x & 15) == 0) {
        for (int i = thread; i < a.in / 8; i += ROWS_THREADS)
            fast_rows_shared[i] = ((const uint4 *)(const void *)x)[i];
    } else {
        for (int i = thread; i < a.in; i += ROWS_THREADS)
            row[i] = x[i];
    }
    __syncthreads();
    if (a.norm != NULL) {
        if (thread < 32) {
            float sum = 0.0f;
            for (int i = thread % CUDA_LANES; i < a.in; i += CUDA_LANES) {
                const float v = bf16_float(row[i]);
                sum = fmaf(v, v, sum);
            }
            sum = lanes_sum(sum);
            if (thread == 0)
                inverse = 1.0f / sqrtf(sum / (float)a.in + a.eps);
        }
        __syncthreads();
    }
    uint32_t *out = (uint32_t *)(void *)(a.out + (size_t)r * (size_t)a.padded);
    for (int i = thread; i < a.padded / 2; i += ROWS_THREADS) {
        uint32_t pair = 0;
        for (int j = 0; j < 2; j++) {
            const int k = order_input<order>(2 * i + j);
            uint16_t v = 0;
            if (k < a.in) {
                v = row[k];
                if (a.norm != NULL)
                    v = bf16_of(rounded(bf16_float(v) * inverse) * bf16_float(a.norm[k]));
            }
            pair |= (uint32_t)v << 16 * j;
        }
        out[i] = pair;
    }
}

void fast_rows_prepare(const struct cuda_launch *l, const struct fast_rows *a)
{
    size_t shared = (size_t)a->in * sizeof(uint16_t);
    if (a->start != NULL && (size_t)a->experts * sizeof(int) > shared)
        shared = (size_t)a->experts * sizeof(int);
    const dim3 grid(a->rows + (a->start != NULL ? 1 : 0)), block(ROWS_THREADS);
    if (a->order == FAST_ORDER_BF16)
        cuda_launch(l, "fast rows", fast_rows_kernel<FAST_ORDER_BF16>, grid, block, shared, *a);
    else if (a->order == FAST_ORDER_INT8)
        cuda_launch(l, "fast rows, int8", fast_rows_kernel<FAST_ORDER_INT8>, grid, block, shared,
                    *a);
    else
        cuda_launch(l, "fast rows, experts", fast_rows_kernel<FAST_ORDER_EXPERTS>, grid, block,
                    shared, *a);
}

/* ---- Linear ---- */

struct fast_linear {
    const uint16_t *x; /* in order, [rows, padded] */
    int rows, padded;
    const uint8_t *data, *scales, *biases;
    size_t row_bytes, scale_bytes;
    int out, row_tiles;
    uint16_t *y;
    size_t y_stride;
    bool add, pairs; /* pairs: y takes 4-byte stores */
};

/* A tile of `rows` x `outs` a block, in steps of STEP inputs through a ring of stages in shared
 * memory; a warp has warp_rows x warp_outs of it. Where that leaves few warps, `groups` of them
 * share a step's inputs and their sums are added at the end, group 0 first. */
enum { STEP = 64, STEP_BYTES = 2 * STEP, STEP_PIECES = STEP_BYTES / 16 };
template <int rows_, int outs_, int warp_rows_, int warp_outs_, int groups_, int stages_,
          bool int8_>
struct linear_shape {
    enum {
        rows = rows_,
        outs = outs_,
        warp_rows = warp_rows_,
        warp_outs = warp_outs_,
        groups = groups_,
        stages = stages_,
        int8 = int8_,
        row_warps = rows / warp_rows,
        out_warps = outs / warp_outs,
        threads = 32 * row_warps * out_warps * groups,
        m = warp_rows / 16,
        n = warp_outs / 8,
        x_bytes = rows * STEP_BYTES,
        w_pieces = int8 ? STEP / 16 : STEP_PIECES, /* of a row: of its codes or weights */
        /* int8: codes, then the scales and the biases of 8 blocks */
        w_row_bytes = int8 ? STEP + 32 : STEP_BYTES,
        w_bytes = outs * w_row_bytes,
        stage_bytes = x_bytes + w_bytes,
        converted_bytes = int8 ? outs * STEP_BYTES : 0,
        shared = stages * stage_bytes + converted_bytes,
        /* the smaller tile runs beside a second block */
        blocks = 1
    };
    static_assert(rows * STEP_PIECES % threads == 0 && outs * STEP_PIECES % threads == 0,
                  "every thread copies as much");
    static_assert((groups - 1) * row_warps * out_warps * 32 * m * n * 16 <= stages * stage_bytes,
                  "sums of the other groups fit into the ring");
};

extern __shared__ uint4 fast_linear_shared[];

/* Where piece c of a row of 128 bytes lies: rows of a tile read together hit different banks. */
static __device__ __forceinline__ int piece_at(int row, int c)
{
    return row * STEP_PIECES + (c ^ (row & 7));
}

/* What this thread copies of each step: a piece of every so many rows. */
struct linear_loader {
    const uint8_t *x, *w, *scales; /* of the next step's first piece; scales or biases */
    int x_row, w_row, scale_row;   /* among the rows, the outputs */
};

template <typename S>
static __device__ __forceinline__ struct linear_loader loader_new(const struct fast_linear &a,
                                                                  int row0, int out0)
{
    const int thread = threadIdx.x;
    struct linear_loader l = {};
    l.x_row = row0 + thread / STEP_PIECES;
    l.x = (const uint8_t *)(a.x + (size_t)l.x_row * (size_t)a.padded) + thread % STEP_PIECES * 16;
    l.w_row = out0 + thread / S::w_pieces;
    l.w = a.data + (size_t)l.w_row * a.row_bytes + thread % S::w_pieces * 16;
    if constexpr (S::int8 != 0) {
        l.scale_row = out0 + thread / 2;
        l.scales = (thread % 2 == 0 ? a.scales : a.biases) + (size_t)l.scale_row * a.scale_bytes;
    }
    return l;
}

template <typename S>
static __device__ __forceinline__ void
loader_weights(const struct fast_linear &a, struct linear_loader *l, int step, uint4 *stage)
{
    enum { rows = S::threads / S::w_pieces, scale_rows = S::threads / 2 };
    const int thread = threadIdx.x;
    uint4 *w = stage + S::x_bytes / 16;
    if constexpr (S::int8 != 0) {
#pragma unroll
        for (int i = 0; i < (S::outs + rows - 1) / rows; i++)
            if (S::outs % rows == 0 || thread < S::outs * S::w_pieces)
                copy_async_or_zero(w + thread + i * S::threads,
                                   l->w + (size_t)(i * rows) * a.row_bytes,
                                   l->w_row + i * rows < a.out);
        /* behind the codes: a row's scales, its biases; 8 blocks of each, for 4 steps */
        uint4 *scales = w + S::outs * S::w_pieces + thread;
#pragma unroll
        for (int i = 0; i < (S::outs + scale_rows - 1) / scale_rows; i++)
            if (S::outs % scale_rows == 0 || thread < 2 * S::outs)
                copy_async_or_zero(scales + i * S::threads,
                                   l->scales + (size_t)(i * scale_rows) * a.scale_bytes +
                                       step / 4 * 16,
                                   l->scale_row + i * scale_rows < a.out);
    } else {
        w += piece_at(thread / STEP_PIECES, thread % STEP_PIECES);
#pragma unroll
        for (int i = 0; i < S::outs / rows; i++)
            copy_async_or_zero(w + i * S::threads, l->w + (size_t)(i * rows) * a.row_bytes,
                               l->w_row + i * rows < a.out);
    }
    l->w += S::w_pieces * 16;
}

template <typename S>
static __device__ __forceinline__ void loader_rows(const struct fast_linear &a,
                                                   struct linear_loader *l, uint4 *stage)
{
    enum { rows = S::threads / STEP_PIECES };
    const int thread = threadIdx.x;
    uint4 *x = stage + piece_at(thread / STEP_PIECES, thread % STEP_PIECES);
#pragma unroll
    for (int i = 0; i < S::rows / rows; i++)
        copy_async_or_zero(x + i * S::threads,
                           l->x + (size_t)(i * rows) * (size_t)a.padded * sizeof(uint16_t),
                           l->x_row + i * rows < a.rows);
    l->x += STEP_BYTES;
}

/* A stage's codes as bf16 weights, round(scale code + bias), in the places of a bf16 matrix. */
template <typename S>
static __device__ __forceinline__ void linear_convert(const uint4 *stage, uint4 *converted)
{
    const uint4 *w = stage + S::x_bytes / 16;
#pragma unroll
    for (int j = 0; j < (S::outs * 4 + S::threads - 1) / S::threads; j++) {
        const int i = threadIdx.x + j * S::threads, row = i / 4, lane = i % 4;
        if (S::outs * 4 % S::threads != 0 && i >= S::outs * 4)
            break;
        const uint4 c = w[i], s = w[S::outs * 4 + 2 * row], b = w[S::outs * 4 + 2 * row + 1];
        const uint32_t codes[] = {c.x, c.y, c.z, c.w}, scale[] = {s.x, s.y, s.z, s.w};
        const uint32_t bias[] = {b.x, b.y, b.z, b.w};
        uint32_t out[8];
#pragma unroll
        for (int block = 0; block < 8; block++) {
            /* a byte behind the bits of 2^23 is 2^23 + code */
            const uint32_t word = codes[block / 2];
            const float even =
                __uint_as_float(__byte_perm(word, 0x4b000000u, block % 2 ? 0x7542 : 0x7540)) -
                8388608.0f;
            const float odd =
                __uint_as_float(__byte_perm(word, 0x4b000000u, block % 2 ? 0x7543 : 0x7541)) -
                8388608.0f;
            const unsigned both = block % 2 ? 0x3232 : 0x1010;
            out[block] =
                bf16_pairs_fma(bf16_pair_of(even, odd), __byte_perm(scale[block / 2], 0, both),
                               __byte_perm(bias[block / 2], 0, both));
        }
        converted[piece_at(row, 2 * lane)] = make_uint4(out[0], out[1], out[2], out[3]);
        converted[piece_at(row, 2 * lane + 1)] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

/* One step: d += x w of this warp's part and its group's share of the inputs. */
template <typename S>
static __device__ __forceinline__ void linear_multiply(const uint4 *x, const uint4 *w, int group,
                                                       float d[S::m][S::n][4])
{
    enum { mine = STEP / 16 / S::groups };
    const int lane = threadIdx.x % 32;
    const int x_row = lane % 16, x_piece = lane / 16;
    const int w_row = lane / 16 * 8 + lane % 8, w_piece = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < mine; k++) {
        const int c = 2 * (group * mine + k);
        uint32_t fx[S::m][4], fw[S::n / 2][4];
#pragma unroll
        for (int m = 0; m < S::m; m++)
            load_tiles(fx[m], x + piece_at(16 * m + x_row, c + x_piece));
#pragma unroll
        for (int n = 0; n < S::n / 2; n++)
            load_tiles(fw[n], w + piece_at(16 * n + w_row, c + w_piece));
#pragma unroll
        for (int m = 0; m < S::m; m++)
#pragma unroll
            for (int n = 0; n < S::n; n++)
                mma_bf16(d[m][n], fx[m], fw[n / 2] + n % 2 * 2);
    }
}

static __device__ __forceinline__ void linear_store(const struct fast_linear &a, int r, int o,
                                                    float low, float high)
{
    if (r >= a.rows || o >= a.out)
        return;
    uint16_t *y = a.y + (size_t)r * a.y_stride + o;
    if (a.pairs && o + 1 < a.out) {
        uint32_t pair = bf16_pair_of(low, high);
        if (a.add) {
            const uint32_t old = *(const uint32_t *)(const void *)y;
            pair = bf16_pair_of(bf16_low(old) + bf16_low(pair), bf16_high(old) + bf16_high(pair));
        }
        *(uint32_t *)(void *)y = pair;
        return;
    }
    y[0] = a.add ? bf16_of(bf16_float(y[0]) + rounded(low)) : bf16_of(low);
    if (o + 1 < a.out)
        y[1] = a.add ? bf16_of(bf16_float(y[1]) + rounded(high)) : bf16_of(high);
}

template <typename S>
static __global__ void __launch_bounds__(S::threads, S::blocks)
    fast_linear_kernel(struct fast_linear a)
{
    pdl_launch_next();
    uint4 *const stages = fast_linear_shared;
    uint4 *const converted = fast_linear_shared + S::stages * S::stage_bytes / 16;
    enum { stage = S::stage_bytes / 16 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = warp / (S::row_warps * S::out_warps);
    const int warp_row = warp / S::out_warps % S::row_warps * S::warp_rows;
    const int warp_out = warp % S::out_warps * S::warp_outs;
    const int row0 = blockIdx.x % a.row_tiles * S::rows;
    const int out0 = blockIdx.x / a.row_tiles * S::outs;
    const int steps = a.padded / STEP;

    struct linear_loader l = loader_new<S>(a, row0, out0);
    for (int s = 0; s < S::stages - 1 && s < steps; s++)
        loader_weights<S>(a, &l, s, stages + s * stage);
    pdl_wait();
    for (int s = 0; s < S::stages - 1; s++) {
        if (s < steps)
            loader_rows<S>(a, &l, stages + s * stage);
        copy_commit();
    }
    float d[S::m][S::n][4] = {};
    int now = 0, next = S::stages - 1;
    for (int s = 0; s < steps; s++) {
        copy_wait<S::stages - 2>();
        __syncthreads();
        if (s + S::stages - 1 < steps) {
            loader_weights<S>(a, &l, s + S::stages - 1, stages + next * stage);
            loader_rows<S>(a, &l, stages + next * stage);
        }
        copy_commit();
        const uint4 *x = stages + now * stage, *w = x + S::x_bytes / 16;
        if constexpr (S::int8 != 0) {
            linear_convert<S>(x, converted);
            __syncthreads();
            w = converted;
        }
        linear_multiply<S>(x + warp_row * STEP_PIECES, w + warp_out * STEP_PIECES, group, d);
        now = now + 1 == S::stages ? 0 : now + 1;
        next = next + 1 == S::stages ? 0 : next + 1;
    }
    copy_wait<0>();
    if (S::groups > 1) {
        __syncthreads();
        float4 *sums = (float4 *)(void *)stages + warp % (S::row_warps * S::out_warps) * 32 + lane;
        enum { stride = S::row_warps * S::out_warps * 32 };
        if (group > 0)
            for (int i = 0; i < S::m * S::n; i++) {
                const float *v = d[i / S::n][i % S::n];
                sums[((group - 1) * S::m * S::n + i) * stride] =
                    make_float4(v[0], v[1], v[2], v[3]);
            }
        __syncthreads();
        if (group > 0)
            return;
        for (int g = 0; g < S::groups - 1; g++)
#pragma unroll
            for (int i = 0; i < S::m * S::n; i++) {
                const float4 v = sums[(g * S::m * S::n + i) * stride];
                float *own = d[i / S::n][i % S::n];
                own[0] += v.x;
                own[1] += v.y;
                own[2] += v.z;
                own[3] += v.w;
            }
    }
#pragma unroll
    for (int m = 0; m < S::m; m++)
#pragma unroll
        for (int n = 0; n < S::n; n++) {
            const int r = row0 + warp_row + 16 * m + lane / 4;
            const int o = out0 + warp_out + 8 * n + lane % 4 * 2;
            linear_store(a, r, o, d[m][n][0], d[m][n][1]);
            linear_store(a, r + 8, o, d[m][n][2], d[m][n][3]);
        }
}

template <typename S>
static void linear_launch(const struct cuda_launch *l, struct fast_linear *a, const char *name)
{
    a->row_tiles = (a->rows + S::rows - 1) / S::rows;
    const int tiles = a->row_tiles * ((a->out + S::outs - 1) / S::outs);
    cuda_launch(l, name, fast_linear_kernel<S>, dim3(tiles), dim3(S::threads), S::shared, *a);
}

/* Large: two blocks to a multiprocessor. Middle: half the rows, the inputs of a step shared by two
 * groups of warps. Small: few rows, where the number of blocks decides. The choice follows the
 * shape alone, never the device: results are the same bits on every one. */
template <bool int8> static void linear_choose(const struct cuda_launch *l, struct fast_linear *a)
{
    typedef linear_shape<128, 128, 64, 64, 1, 3, int8> large;
    const long outs = (a->out + 127) / 128;
    const bool room = (size_t)large::shared <= l->device->shared_most;
    if ((a->rows + 127) / 128 * outs >= 200 && room)
        linear_launch<large>(l, a, "fast linear, large");
    else if ((a->rows + 127) / 128 * outs >= 200) /* the same sums */
        linear_launch<linear_shape<128, 128, 64, 64, 1, 2, int8>>(l, a, "fast linear, large");
    else if ((a->rows + 63) / 64 * outs >= 80)
        linear_launch<linear_shape<64, 128, 32, 64, 2, 4, int8>>(l, a, "fast linear, middle");
    else
        linear_launch<linear_shape<64, 32, 32, 32, 4, 6, int8>>(l, a, "fast linear, small");
}

bool cuda_linear_fast(const struct cuda_launch *l, const struct cuda_linear *a)
{
    const struct cuda_matrix *w = a->w;
    const bool int8 = w->format == WEIGHT_INT8_AFFINE32;
    if ((w->format != WEIGHT_BF16 && !int8) ||
        (size_t)w->in * sizeof(uint16_t) > l->device->shared_most)
        return false;
    uint16_t *x = (uint16_t *)fast_scratch(l, (size_t)a->rows * (size_t)w->padded * 2);
    if (x == NULL)
        return true; /* the fault tells */
    struct fast_rows rows = {};
    rows.x = a->x;
    rows.x_stride = a->x_stride;
    rows.norm = a->norm;
    rows.eps = a->eps;
    rows.rows = a->rows;
    rows.in = w->in;
    rows.padded = w->padded;
    rows.order = int8 ? FAST_ORDER_INT8 : FAST_ORDER_BF16;
    rows.out = x;
    fast_rows_prepare(l, &rows);

    struct fast_linear f = {};
    f.x = x;
    f.rows = a->rows;
    f.padded = w->padded;
    f.data = w->data;
    f.scales = w->scales;
    f.biases = w->biases;
    f.row_bytes = w->row_bytes;
    f.scale_bytes = w->scale_bytes;
    f.out = w->out;
    f.y = a->y;
    f.y_stride = a->y_stride;
    f.add = a->add;
    f.pairs = a->y_stride % 2 == 0 && ((uintptr_t)a->y & 3) == 0;
    if (int8)
        linear_choose<true>(l, &f);
    else
        linear_choose<false>(l, &f);
    return true;
}
