/* bf16's linear layers of one row without a norm: the output layer, whose row attention makes. Each
 * half-warp has one output. The first units of its weights come through registers, the rest through
 * places in shared memory, filled by bulk copies; before compute capability 9.0 each thread fills
 * its own part of them. All of that is under way before the row is there, and leaves attention room
 * on the multiprocessor. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_RING_ONE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_RING_ONE_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"
#include "engine/compute/cuda/rows.cuh"
#include "engine/compute/cuda/timeline.cuh"

enum {
    ONE_OUTPUTS = 16, /* of a block, at most: its half-warps */
    ONE_UNIT = 256,
    ONE_HELD = 8, /* units in registers */
    ONE_PLACES = 8,
    ONE_PLACE = 4, /* units of a place */
    ONE_PLACE_BYTES = ONE_PLACE * ONE_UNIT,
    ONE_PIECES = 4 /* of the row, that a thread has under way */
};

struct one_call {
    const uint8_t *w;
    size_t row_bytes;
    struct rows_call rows;
    uint16_t *y;
    int out, outputs; /* outputs: of a block */
    bool add;
    int barriers_at, ring_at; /* in shared memory */
};

/* Nothing that is made of it is made before: there are no registers for that. */
static __device__ __forceinline__ void one_keep(uint4 &v)
{
#ifndef CUDA_EMULATED
    asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : : "memory");
#else
    (void)v;
#endif
}

/* Registers: 128, beside attention. */
static __global__ __launch_bounds__(ONE_OUTPUTS *CUDA_LANES, 2) void ring_one(const one_call c)
{
    const int lane = threadIdx.x % CUDA_LANES, half = threadIdx.x / CUDA_LANES;
    const int output = (int)blockIdx.x * c.outputs + half;
    const bool there = half < c.outputs && output < c.out;
    const int units = c.rows.inputs / CUDA_BF16_GROUP;
    uint8_t *shared = (uint8_t *)rows_shared;
    uint8_t *room = shared + c.ring_at + half * (ONE_PLACES * ONE_PLACE_BYTES);
    const uint8_t *next = c.w + (there ? (size_t)output * c.row_bytes : 0);
    uint64_t *barriers = (uint64_t *)(shared + c.barriers_at) + half * ONE_PLACES;
    int left = there ? (units - ONE_HELD) / ONE_PLACE : 0; /* places to be filled */

    auto fetch = [&](int place) {
        uint8_t *to = room + place * ONE_PLACE_BYTES;
        if (left > 0) {
            if (!PTX_HOPPER) {
#pragma unroll
                for (int j = 0; j < ONE_PLACE; j++)
                    copy_async(to + j * ONE_UNIT + lane * 16, next + j * ONE_UNIT + lane * 16);
            } else if (lane == 0) {
                bulk_expect(&barriers[place], ONE_PLACE_BYTES);
                bulk_copy(to, next, ONE_PLACE_BYTES, &barriers[place]);
            }
        }
        left--;
        next += ONE_PLACE_BYTES;
        if (!PTX_HOPPER)
            copy_commit();
    };
    timeline_mark(TIMELINE_OUTPUT_STARTS);
    uint4 held[ONE_HELD];
#pragma unroll
    for (int i = 0; i < ONE_HELD; i++)
        held[i] = load_stream(next + i * ONE_UNIT + lane * 16);
    next += ONE_HELD * ONE_UNIT;
    if (PTX_HOPPER && lane == 0)
#pragma unroll 1
        for (int i = 0; i < ONE_PLACES; i++)
            bytes_barrier_init(&barriers[i]);
#pragma unroll 1
    for (int i = 0; i < ONE_PLACES; i++)
        fetch(i);
    timeline_mark(TIMELINE_OUTPUT_WAITS);
    pdl_wait();
    /* Not before: so nothing that starts early can meet a kernel before this one's predecessor. */
    pdl_launch_next();
    timeline_mark(TIMELINE_OUTPUT_THERE);

    const bool mine = there && lane == 0;
    float before = 0.0f;
    if (c.add && mine)
        before = bf16_float(load_fresh_one(c.y + output));
    rows_stage<1, false, ONE_PIECES>(c.rows, NULL, []() {});
    timeline_mark(TIMELINE_OUTPUT_STAGED);

    float acc = 0.0f;
#pragma unroll
    for (int i = 0; i < ONE_HELD; i++) {
        one_keep(held[i]);
        acc = lanes_dot(held[i], rows_shared[i * CUDA_LANES + lane], acc);
    }
    int place = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int unit = ONE_HELD; unit < units; unit += ONE_PLACE) {
        if (!PTX_HOPPER)
            copy_wait<ONE_PLACES - 1>();
        else if (there)
            bulk_wait(&barriers[place], turn);
#pragma unroll
        for (int j = 0; j < ONE_PLACE; j++)
            acc = lanes_dot(
                *(const uint4 *)(room + place * ONE_PLACE_BYTES + j * ONE_UNIT + lane * 16),
                rows_shared[(unit + j) * CUDA_LANES + lane], acc);
        if (PTX_HOPPER)
            __syncwarp();
        fetch(place);
        if (++place == ONE_PLACES) {
            place = 0;
            turn++;
        }
    }
    acc = lanes_sum(acc);
    timeline_mark(TIMELINE_OUTPUT_MULTIPLIED);
    if (mine)
        c.y[output] = c.add ? bf16_of(before + rounded(acc)) : bf16_of(acc);
    timeline_mark(TIMELINE_OUTPUT_ENDS);
}

/* False, and nothing launched: these sizes do not fit. */
static bool ring_one_launch(const struct cuda_launch *l, const struct cuda_linear *a)
{
    const int blocks = l->device->multiprocessors, units = a->w->in / CUDA_BF16_GROUP;
    struct one_call c = {};
    c.w = a->w->data;
    c.row_bytes = a->w->row_bytes;
    c.rows.x = a->x;
    c.rows.inputs = a->w->in;
    c.y = a->y;
    c.out = a->w->out;
    c.outputs = (c.out + blocks - 1) / blocks;
    c.add = a->add;
    if (c.outputs > ONE_OUTPUTS || units < ONE_HELD || (units - ONE_HELD) % ONE_PLACE != 0)
        return false;
    int at = rows_bytes(&c.rows, 1, false);
    c.barriers_at = at;
    at += ONE_OUTPUTS * ONE_PLACES * (int)sizeof(uint64_t);
    at = (at + 127) / 128 * 128;
    c.ring_at = at;
    at += ONE_OUTPUTS * ONE_PLACES * ONE_PLACE_BYTES;
    if ((size_t)at > l->device->shared_most)
        return false;
    cuda_launch(l, "ring_one", ring_one, dim3((unsigned)((c.out + c.outputs - 1) / c.outputs)),
                dim3(ONE_OUTPUTS * CUDA_LANES), (size_t)at, c);
    return true;
}

#endif
