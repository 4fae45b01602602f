/* Rows of weights into the orders of cuda.h. */
#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"
#include "engine/compute/cuda/staging.h"

/* Each function gives 16 bytes of a row, the ones that begin at 16 * unit. */

static __device__ __forceinline__ uint32_t bf16_pair(const uint8_t *row, int k, int in)
{
    const uint16_t *value = (const uint16_t *)row + k;
    const uint32_t low = k < in ? value[0] : 0;
    const uint32_t high = k + 1 < in ? value[1] : 0;
    return low | high << 16;
}

static __device__ __forceinline__ uint4 bf16_unit(const uint8_t *row, int in, int unit)
{
    const int block = unit / CUDA_LANES * 4, lane = unit % CUDA_LANES;
    uint32_t word[4];
    for (int b = 0; b < 4; b++)
        word[b] = bf16_pair(row, (block + b) * CUDA_BLOCK + 2 * lane, in);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __forceinline__ uint4 int8_unit(const uint8_t *row, int in, int unit)
{
    const int block = unit / CUDA_LANES * 8, lane = unit % CUDA_LANES;
    uint32_t word[4] = {0, 0, 0, 0};
    for (int b = 0; b < 8; b++) {
        const int k = (block + b) * CUDA_BLOCK + 2 * lane;
        if (k < in)
            word[b / 2] |= (uint32_t) * (const uint16_t *)(row + k) << (b % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* bf16 of blocks 8 * unit .. */
static __device__ __forceinline__ uint4 int8_scale_unit(const uint8_t *row, int in, int unit)
{
    uint32_t word[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; i++) {
        const int block = unit * 8 + i;
        if (block < in / CUDA_BLOCK)
            word[i / 2] |= (uint32_t)((const uint16_t *)row)[block] << (i % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __forceinline__ uint4 nvfp4_unit(const uint8_t *row, int in, int unit)
{
    const int block = unit / CUDA_LANES * 16, lane = unit % CUDA_LANES;
    uint32_t word[4] = {0, 0, 0, 0};
    for (int b = 0; b < 16; b++) {
        const int at = (block + b) * (CUDA_BLOCK / 2) + lane; /* the byte of elements 2 * at, .. */
        if (at < in / 2)
            word[b / 4] |= (uint32_t)row[at] << (b % 4 * 8);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __forceinline__ uint4 nvfp4_scale_unit(const uint8_t *row, int in, int unit,
                                                         int blocks)
{
    const int half = unit * 16 / blocks, block = unit * 16 % blocks;
    uint32_t word[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++) {
        const int group = 2 * (block + i) + half;
        if (group < in / 16)
            word[i / 4] |= (uint32_t)row[group] << (i % 4 * 8);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __global__ void repack_rows(struct staging_rows r)
{
    pdl_launch_next();
    pdl_wait();
    const uint32_t units = r.device_row_bytes / 16, all = units * r.rows;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        const uint8_t *row = r.from + (size_t)(i / units) * r.row_bytes;
        const int unit = (int)(i % units);
        uint4 v = make_uint4(0, 0, 0, 0);
        switch (r.layout) {
        case STAGING_PLAIN:
            break;
        case STAGING_BF16:
            v = bf16_unit(row, r.in, unit);
            break;
        case STAGING_INT8:
            v = int8_unit(row, r.in, unit);
            break;
        case STAGING_INT8_SCALES:
            v = int8_scale_unit(row, r.in, unit);
            break;
        case STAGING_NVFP4:
            v = nvfp4_unit(row, r.in, unit);
            break;
        case STAGING_NVFP4_SCALES:
            v = nvfp4_scale_unit(row, r.in, unit, (int)r.device_row_bytes / 2);
            break;
        }
        ((uint4 *)r.to)[i] = v;
    }
}

void staging_repack(const struct cuda_launch *l, const struct staging_rows *r)
{
    const unsigned threads = 256, most = 4096;
    const uint64_t units = (uint64_t)r->rows * (r->device_row_bytes / 16);
    const uint64_t blocks = (units + threads - 1) / threads;
    cuda_launch(l, "repacking weights", repack_rows, dim3(blocks < most ? (unsigned)blocks : most),
                dim3(threads), 0, *r);
}
