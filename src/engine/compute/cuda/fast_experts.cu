/* Routed experts in NVFP4 on tensor cores. The codes go from a ring of asynchronous copies straight
 * to the fragments of the left factor (16 outputs x 16 inputs), decoded once for up to
 * FAST_EXPERT_ROWS entries, which are the right factor's columns. A code times its scale has at
 * most 6 significant bits and is exact in bf16. */
#include "engine/compute/cuda/fast.cuh"

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

/* Half of a group of 512 inputs a step: the 8 lanes of one scale. Thread t of a row's four has
 * lanes t and t + 4 of the half: 16 bytes of codes each, a byte of each block's two; 4 bytes (a
 * word) make two products of 16 inputs. The halves of a register hold blocks b and b + 2 of a word,
 * so that codes come apart by shifts and masks alone. FAST_ORDER_EXPERTS has the inputs so. */
enum {
    HALF = 256, /* inputs of a step */
    HALF_BYTES = 2 * HALF,
    HALF_PIECES = HALF_BYTES / 16,
    CODE_PIECES = 12, /* of a thread and step: of 4 rows of outputs two of codes, one of scales */
    INPUT_BYTES = FAST_EXPERT_ROWS * HALF_BYTES,
    COLUMNS = FAST_EXPERT_ROWS / 8,
    DOWN_OUTS = 512 /* outputs of down that a piece of work has */
};
template <bool up_, int warps_, int stages_> struct experts_shape {
    enum {
        up = up_,
        warps = warps_,
        stages = stages_,
        threads = 32 * warps,
        code_bytes = CODE_PIECES * threads * 16,
        stage_pieces = (code_bytes + INPUT_BYTES) / 16,
        shared = stages * stage_pieces * 16,
        blocks = 8 / warps, /* of a multiprocessor */
        part_outs = 16 * warps,
        set_outs = up ? part_outs : 2 * part_outs, /* gate's and up's; down's two parts */
        outs = up ? part_outs : DOWN_OUTS,         /* of a piece of work */
        sets = outs / set_outs,
        loads = FAST_EXPERT_ROWS / warps /* rows that a warp copies */
    };
};

/* Codes as bf16 are code 2^-126; scales are taken times 2^118; sums come out times 2^-8. */
#define SUM_FACTOR 256.0f

struct experts_call {
    struct cuda_experts first, second; /* gate and up; down and nothing */
    const struct fast_tile *tiles;
    const int *tile_count;
    const int *row_of; /* of an entry among x's rows; NULL: the entry's own */
    const uint16_t *x; /* FAST_ORDER_EXPERTS */
    int padded;        /* inputs of a row of x */
    uint16_t *out;     /* up: [entries, out_stride] in FAST_ORDER_EXPERTS; down: natural */
    int out_stride, outs;
};

extern __shared__ uint4 fast_experts_shared[];

/* The pair of codes at `shift` of each half of a word, as bf16 times 2^-126: the sign at the top,
 * two bits of exponent and one of mantissa in their places. */
template <int shift> static __device__ __forceinline__ uint32_t codes_at(uint32_t w)
{
    const uint32_t rest = shift <= 6 ? w << ((6 - shift) & 31) : w >> ((shift - 6) & 31);
    const uint32_t sign = w << (12 - shift);
    return (rest & 0x01c001c0u) | (sign & 0x80008000u);
}

/* Scales of blocks b and b + 2 of a word of four, times 2^118. */
template <int b> static __device__ __forceinline__ uint32_t scales_at(uint32_t w)
{
    const uint32_t sign = b == 0 ? w << 8 : w;
    const uint32_t rest = b == 0 ? w << 4 : w >> 4;
    const uint32_t bits = (rest & 0x07f007f0u) | (sign & 0x80008000u);    /* times 2^-120 */
    const uint32_t once = bf16_pairs_fma(bits, 0x7b807b80u, 0x80008000u); /* 2^120 */
    return bf16_pairs_fma(once, 0x7a807a80u, 0x80008000u);                /* 2^118 */
}

static __device__ __forceinline__ uint32_t scaled(uint32_t codes, uint32_t scales)
{
    return bf16_pairs_fma(codes, scales, 0x80008000u);
}

/* An output of this thread's rows: row g (or g + 8) of fragment `part`. Up: a chunk of 8 elements
 * of FAST_ORDER_EXPERTS is the 8 rows, so that they are stored together. */
template <typename S>
static __device__ __forceinline__ int output_of(int base, int part, int warp, int row)
{
    if (!S::up)
        return base + part * S::part_outs + warp * 16 + row;
    const int g = row % 8, lane = base % 128 / 8 + 2 * warp + row / 8;
    return base / 128 * 128 + CUDA_BLOCK * (2 * (g & 1) + (g >> 2)) + 2 * lane + (g >> 1 & 1);
}

/* Where the loads are, and what they need to know of the work. */
template <typename S> struct experts_loader {
    int work, step;
    const uint8_t *codes[4], *scales[4]; /* of the thread's rows of outputs */
    size_t half_scales;                  /* bytes from half 0's scales to half 1's */
    const uint16_t *row[S::loads];
    int rows; /* of the tile */
    bool there;
};

template <typename S>
static __device__ __forceinline__ void loader_open(const struct experts_call &a, int works,
                                                   int chunks, int halves,
                                                   struct experts_loader<S> *l)
{
    l->there = l->work < works;
    if (!l->there)
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct fast_tile tile = a.tiles[l->work / chunks];
    if (l->step == 0) {
        l->rows = tile.count;
#pragma unroll
        for (int i = 0; i < S::loads; i++) {
            const int column = warp + S::warps * i;
            const int entry = tile.first + (column < tile.count ? column : 0);
            const int row = a.row_of == NULL ? entry : a.row_of[entry];
            l->row[i] = a.x + (size_t)row * (size_t)a.padded + lane * 8;
        }
    }
    const int base = l->work % chunks * S::outs + l->step / halves * S::set_outs;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int o = output_of<S>(base, i / 2, warp, lane / 4 + i % 2 * 8);
        o = o < a.outs ? o : a.outs - 1;
        const struct cuda_experts &w = S::up && i / 2 == 1 ? a.second : a.first;
        l->codes[i] = w.first.data + (size_t)tile.expert * w.data_stride +
                      (size_t)o * w.first.row_bytes + lane % 4 * 16;
        l->scales[i] =
            w.first.scales + (size_t)tile.expert * w.scale_stride + (size_t)o * w.first.scale_bytes;
    }
}

/* Asks for the next step of this block's work and moves on. */
template <typename S>
static __device__ __forceinline__ void loader_load(const struct experts_call &a, int works,
                                                   int chunks, int halves, int steps,
                                                   struct experts_loader<S> *l, uint4 *stage)
{
    if (!l->there)
        return;
    const int half = l->step % halves;
    uint4 *codes = stage + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        copy_async(codes + (3 * i) * S::threads, l->codes[i] + half * 128);
        copy_async(codes + (3 * i + 1) * S::threads, l->codes[i] + half * 128 + 64);
        copy_async(codes + (3 * i + 2) * S::threads,
                   l->scales[i] + half % 2 * l->half_scales + half / 2 * 16);
    }
    uint4 *input = stage + S::code_bytes / 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::loads; i++) {
        const int column = warp + S::warps * i;
        if (column < (l->rows + 7) / 8 * 8)
            copy_async(input + column * HALF_PIECES + (lane ^ (column & 1) * 4),
                       l->row[i] + half * HALF);
    }
    if (++l->step == steps) {
        l->step = 0;
        l->work += gridDim.x;
    }
    if (l->step % halves == 0)
        loader_open<S>(a, works, chunks, halves, l);
}

/* d += the step's products, of 8 * columns entries. */
template <typename S, int columns>
static __device__ __forceinline__ void experts_multiply(const uint4 *stage, float d[2][COLUMNS][4])
{
    const uint4 *mine = stage + threadIdx.x;
    const int lane = threadIdx.x % 32, column = lane / 4;
    const uint4 *input = stage + S::code_bytes / 16 + column * HALF_PIECES;
    const int flip = (column & 1) * 4;
    uint32_t codes[2][4][4], scales[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint4 v = mine[(3 * i + j) * S::threads];
            codes[j][i][0] = v.x;
            codes[j][i][1] = v.y;
            codes[j][i][2] = v.z;
            codes[j][i][3] = v.w;
        }
        const uint4 v = mine[(3 * i + 2) * S::threads];
        scales[i][0] = v.x;
        scales[i][1] = v.y;
        scales[i][2] = v.z;
        scales[i][3] = v.w;
    }
#pragma unroll
    for (int word = 0; word < 4; word++) {
        uint32_t s[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i][0] = scales_at<0>(scales[i][word]);
            s[i][1] = scales_at<1>(scales[i][word]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint4 x[columns];
#pragma unroll
            for (int n = 0; n < columns; n++)
                x[n] = input[8 * n * HALF_PIECES + ((word * 8 + 4 * j + lane % 4) ^ flip)];
            uint32_t w[2][2][4];
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const uint32_t low = codes[j][2 * part][word], high = codes[j][2 * part + 1][word];
                const uint32_t *s_low = s[2 * part], *s_high = s[2 * part + 1];
                w[part][0][0] = scaled(codes_at<0>(low), s_low[0]);
                w[part][0][1] = scaled(codes_at<0>(high), s_high[0]);
                w[part][0][2] = scaled(codes_at<4>(low), s_low[0]);
                w[part][0][3] = scaled(codes_at<4>(high), s_high[0]);
                w[part][1][0] = scaled(codes_at<8>(low), s_low[1]);
                w[part][1][1] = scaled(codes_at<8>(high), s_high[1]);
                w[part][1][2] = scaled(codes_at<12>(low), s_low[1]);
                w[part][1][3] = scaled(codes_at<12>(high), s_high[1]);
            }
            /* sums that follow each other are of different fragments */
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < columns; n++) {
                    const uint32_t b[2] = {k == 0 ? x[n].x : x[n].z, k == 0 ? x[n].y : x[n].w};
                    mma_bf16(d[0][n], w[0][k], b);
                    mma_bf16(d[1][n], w[1][k], b);
                }
        }
    }
}

/* silu(gate) * up, rounded as silu_up of the CPU rounds. */
static __device__ __forceinline__ uint16_t silu_up(float gate, float up)
{
    const float g = rounded(gate);
    const float t = rounded(g * rounded(elementary_sigmoid(g)));
    return bf16_of(t * rounded(up));
}

template <typename S>
static __device__ __forceinline__ void experts_store(const struct experts_call &a,
                                                     const struct fast_tile &tile, int base,
                                                     float d[2][COLUMNS][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = 8 * n + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 * 8;
            if (column >= tile.count)
                continue;
            uint16_t *out = a.out + (size_t)(tile.first + column) * (size_t)a.out_stride;
            if constexpr (S::up != 0) {
                const int o = output_of<S>(base, 0, warp, row);
                /* [group of 512][half][word][lane of the half][8]: see order_input */
                const int in_block = base % 128 / 8 + 2 * warp + row / 8;
                const int chunk = in_block / 8 * 32 + base % 512 / 128 * 8 + in_block % 8;
                out[base / 512 * 512 + chunk * 8 + row % 8] =
                    o < a.outs ? silu_up(d[0][n][i] * SUM_FACTOR, d[1][n][i] * SUM_FACTOR)
                               : (uint16_t)0;
            } else {
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const int o = output_of<S>(base, part, warp, row);
                    if (o < a.outs)
                        out[o] = bf16_of(d[part][n][i] * SUM_FACTOR);
                }
            }
        }
}

/* As many blocks as the device runs at once; block b does pieces of work b, b + blocks, .. one
 * after the other without letting the ring run empty. A piece: a tile's entries by some outputs. */
template <typename S>
static __global__ void __launch_bounds__(S::threads, S::blocks)
    fast_experts_kernel(struct experts_call a)
{
    pdl_launch_next();
    pdl_wait();
    const int halves = a.padded / HALF, steps = S::sets * halves;
    const int chunks = ((S::up ? a.out_stride : a.outs) + S::outs - 1) / S::outs;
    const int works = *a.tile_count * chunks;
    struct experts_loader<S> l = {
    };
    l.work = blockIdx.x;
    l.half_scales = a.first.first.scale_bytes / 2;
    loader_open<S>(a, works, chunks, halves, &l);
    for (int s = 0; s < S::stages - 1; s++) {
        loader_load<S>(a, works, chunks, halves, steps, &l,
                       fast_experts_shared + s * S::stage_pieces);
        copy_commit();
    }
    int now = 0, next = S::stages - 1;
    for (int work = blockIdx.x; work < works; work += gridDim.x) {
        const struct fast_tile tile = a.tiles[work / chunks];
        const int base = work % chunks * S::outs;
        for (int set = 0; set < S::sets; set++) {
            float d[2][COLUMNS][4] = {};
            for (int half = 0; half < halves; half++) {
                copy_wait<S::stages - 2>();
                __syncthreads();
                loader_load<S>(a, works, chunks, halves, steps, &l,
                               fast_experts_shared + next * S::stage_pieces);
                copy_commit();
                const uint4 *stage = fast_experts_shared + now * S::stage_pieces;
                const int columns = (tile.count + 7) / 8;
                if (columns == 1)
                    experts_multiply<S, 1>(stage, d);
                else if (columns == 2)
                    experts_multiply<S, 2>(stage, d);
                else if (columns == 3)
                    experts_multiply<S, 3>(stage, d);
                else
                    experts_multiply<S, 4>(stage, d);
                now = now + 1 == S::stages ? 0 : now + 1;
                next = next + 1 == S::stages ? 0 : next + 1;
            }
            experts_store<S>(a, tile, base + set * S::set_outs, d);
        }
    }
    copy_wait<0>();
}

/* ---- Host ---- */

static size_t piece(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t padded_of(int n)
{
    return (size_t)(n + CUDA_NVFP4_GROUP - 1) / CUDA_NVFP4_GROUP * CUDA_NVFP4_GROUP;
}

static size_t most_tiles(size_t entries, int experts)
{
    return entries / FAST_EXPERT_ROWS + (size_t)experts + 2;
}

size_t fast_experts_bytes(int rows, int hidden, int width, int experts, int top_k)
{
    const size_t entries = (size_t)rows * (size_t)(top_k + 1);
    return piece((size_t)rows * padded_of(hidden) * 2) + piece(entries * padded_of(width) * 2) +
           piece(most_tiles(entries, experts) * sizeof(struct fast_tile)) + piece(sizeof(int));
}

/* Rows of outputs begin at multiples of 16 bytes in whole groups: what upload.cu makes. */
static bool takes(const struct cuda_experts *e, int out, int in)
{
    const struct cuda_matrix *m = &e->first;
    return m->format == WEIGHT_NVFP4 && m->out == out && m->in == in &&
           m->padded == (int)padded_of(in) && m->row_bytes == (size_t)m->padded / 2 &&
           m->scale_bytes == (size_t)m->padded / 16 && e->data_stride % 16 == 0 &&
           e->scale_stride % 16 == 0 && ((uintptr_t)m->data & 15) == 0 &&
           ((uintptr_t)m->scales & 15) == 0;
}

template <typename S>
static void experts_launch(const struct cuda_launch *l, const struct experts_call *c,
                           const char *name)
{
    cuda_launch(l, name, fast_experts_kernel<S>, dim3(S::blocks * l->device->multiprocessors),
                dim3(S::threads), S::shared, *c);
}

bool cuda_experts_fast(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                       const struct cuda_experts_sorted *s)
{
    typedef experts_shape<true, 8, 3> up_shape;
    typedef experts_shape<false, 8, 3> down_shape;
    const struct cuda_ffn *w = a->w;
    const int experts = s->experts + (w->shared_inside ? 1 : 0);
    if (!takes(&w->gate, s->width, s->hidden) || !takes(&w->up, s->width, s->hidden) ||
        !takes(&w->down, s->hidden, s->width) || l->device->shared_most < up_shape::shared ||
        (size_t)s->hidden * 2 > l->device->shared_most)
        return false;
    const size_t hidden = padded_of(s->hidden), width = padded_of(s->width);
    const size_t entries = (size_t)s->entries;
    const size_t rows_bytes = piece((size_t)s->rows * hidden * 2);
    const size_t inner_bytes = piece(entries * width * 2);
    const size_t tiles_bytes = piece(most_tiles(entries, experts) * sizeof(struct fast_tile));
    uint8_t *memory =
        (uint8_t *)fast_scratch(l, rows_bytes + inner_bytes + tiles_bytes + piece(sizeof(int)));
    if (memory == NULL)
        return true; /* the fault tells */

    struct fast_rows rows = {};
    rows.x = s->normed;
    rows.x_stride = (size_t)s->hidden;
    rows.rows = s->rows;
    rows.in = s->hidden;
    rows.padded = (int)hidden;
    rows.order = FAST_ORDER_EXPERTS;
    rows.out = (uint16_t *)(void *)memory;
    rows.start = s->start;
    rows.experts = experts;
    rows.tiles = (struct fast_tile *)(void *)(memory + rows_bytes + inner_bytes);
    rows.tile_count = (int *)(void *)(memory + rows_bytes + inner_bytes + tiles_bytes);
    fast_rows_prepare(l, &rows);

    struct experts_call up = {};
    up.first = w->gate;
    up.second = w->up;
    up.tiles = rows.tiles;
    up.tile_count = rows.tile_count;
    up.row_of = s->row_of;
    up.x = rows.out;
    up.padded = (int)hidden;
    up.out = (uint16_t *)(void *)(memory + rows_bytes);
    up.out_stride = (int)width;
    up.outs = s->width;
    experts_launch<up_shape>(l, &up, "fast experts, gate and up");

    struct experts_call down = {};
    down.first = w->down;
    down.second = w->down;
    down.tiles = rows.tiles;
    down.tile_count = rows.tile_count;
    down.x = up.out;
    down.padded = (int)width;
    down.out = s->out;
    down.out_stride = s->hidden;
    down.outs = s->hidden;
    experts_launch<down_shape>(l, &down, "fast experts, down");
    return true;
}
