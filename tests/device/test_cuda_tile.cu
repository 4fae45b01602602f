/* The dot products of NVFP4 rows on tensor cores (nvfp4_tile.cuh) against fma in the order of
 * numerics.md, each float's bits: what rounding to bf16 would hide. A row of weights has one scale
 * that is not 0, so that one product of a block is all that is seen, or all of them. */
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/nvfp4_tile.cuh"

#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    INPUTS = CUDA_NVFP4_GROUP,
    UNITS = INPUTS / (CUDA_BLOCK * TILE_UNIT),
    BLOCKS = INPUTS / CUDA_BLOCK,
    CODES = INPUTS / 2, /* bytes of an output */
    SCALES = INPUTS / 16,
    THREADS = 64,
    ODD_AT = UNITS * TILE_UNIT_WORDS * 4,
    ZERO_AT = ODD_AT + tile_odd_words(UNITS) * 4,
    CODES_AT = ZERO_AT + TILE_ZEROS,
    SCALES_AT = CODES_AT + TILE_OUTPUTS * CODES,
    SHARED = SCALES_AT + TILE_OUTPUTS * SCALES,
#ifdef CUDA_EMULATED
    TRIALS = 2000
#else
    TRIALS = 20000
#endif
};

struct trial {
    uint16_t x[INPUTS];
    uint8_t codes[TILE_OUTPUTS][CODES], scales[TILE_OUTPUTS][SCALES];
};

static __global__ void multiply(const struct trial *trials, float4 *out)
{
    const struct trial *t = &trials[blockIdx.x];
    const int thread = (int)threadIdx.x;
    for (int i = thread; i < (CODES_AT - ODD_AT) / 4; i += THREADS)
        tile_at<uint32_t>(ODD_AT)[i] = 0;
    for (int i = thread; i < TILE_OUTPUTS * CODES; i += THREADS)
        tile_at<uint8_t>(CODES_AT)[i] = (&t->codes[0][0])[i];
    for (int i = thread; i < TILE_OUTPUTS * SCALES; i += THREADS)
        tile_at<uint8_t>(SCALES_AT)[i] = (&t->scales[0][0])[i];
    __syncthreads();
    if (blockIdx.x % 2 == 0) {
        tile_put_piece(tile_at<uint32_t>(0), tile_at<uint32_t>(ODD_AT), UNITS, thread,
                       ((const uint4 *)t->x)[thread]);
    } else {
        const int unit = thread / CUDA_LANES, lane = thread % CUDA_LANES;
        const uint32_t *x = (const uint32_t *)t->x + unit * TILE_UNIT * CUDA_LANES + lane;
        tile_put_lane(tile_at<uint32_t>(0), tile_at<uint32_t>(ODD_AT), UNITS, lane, unit,
                      make_uint4(x[0], x[CUDA_LANES], x[2 * CUDA_LANES], x[3 * CUDA_LANES]));
    }
    __syncthreads();
    const struct tile_rows rows = {CODES_AT, SCALES_AT, CODES, 8 * CODES, SCALES, 8 * SCALES};
    out[blockIdx.x * THREADS + threadIdx.x] =
        tile_multiply(rows, thread / 32, 1, 0, ODD_AT, ZERO_AT);
}

static uint64_t seed = 20261130;

static uint32_t random32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

/* Denormals are zeros. */
static float flush(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v;
}

static float bf16_value(uint16_t bits)
{
    const uint32_t u = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &u, sizeof v);
    return (bits & 0x7f80) == 0 ? copysignf(0.0f, v) : v;
}

static float code_value(int code)
{
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

static float scale_value(int byte)
{
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float v =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return byte & 0x80 ? -v : v;
}

static float expected(const struct trial *t, int output, int lane)
{
    float acc = 0.0f;
    for (int b = 0; b < BLOCKS; b++) {
        const int byte = t->codes[output][lane * BLOCKS + b];
        const uint16_t *x = &t->x[CUDA_BLOCK * b + 2 * lane];
        const float second = flush(code_value(byte >> 4) * bf16_value(x[1]));
        const float sum = flush(fmaf(code_value(byte & 15), bf16_value(x[0]), second));
        acc = flush(fmaf(sum, scale_value(t->scales[output][lane / 8 * BLOCKS + b]), acc));
    }
    return acc;
}

static uint16_t with_exponent(int exponent)
{
    return (uint16_t)((random32() & 0x807f) | (uint32_t)exponent << 7);
}

/* Inputs by what is said of them in tile_put_pair: as far apart as a pair may be or a little
 * further, at the ends of what is not wild and behind them, and any bits. */
static void fill_inputs(uint16_t *x, int kind)
{
    for (int i = 0; i < INPUTS; i += 2) {
        const int apart = (int)(random32() % 15), base = 40 + (int)(random32() % (110 - 14));
        const int order = (int)(random32() & 1);
        x[i + order] = with_exponent(base);
        x[i + 1 - order] = with_exponent(base + (kind == 0 ? 12 : apart));
        if (kind == 2) {
            x[i] = with_exponent(random32() & 1 ? 40 : 149);
            x[i + 1] = with_exponent(random32() & 1 ? 40 : 149);
        } else if (kind == 3) {
            x[i] = (uint16_t)random32();
            x[i + 1] = (uint16_t)random32();
        } else if (kind == 4 && random32() % 64 == 0) {
            x[i] = with_exponent(random32() & 1 ? 1 + (int)(random32() % 39)
                                                : 150 + (int)(random32() % 100));
        }
        for (int k = 0; k < 2; k++)
            if (random32() % 16 == 0)
                x[i + k] = (uint16_t)(random32() & 0x8000);
    }
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)) || (a == 0 && b == 0);
}

int main(void)
{
    struct error err = {};
    struct cuda_device device;
    struct cuda_fault fault = {};
    unsigned kernels = 0;
    if (!cuda_device_open(&device, &err)) {
        printf("%s: %s\n", err.name, err.message);
        return 1;
    }
    struct trial *trials = (struct trial *)malloc(TRIALS * sizeof *trials), *there = NULL;
    float4 *got = (float4 *)malloc(TRIALS * THREADS * sizeof *got), *out = NULL;
    for (int i = 0; i < TRIALS; i++) {
        struct trial *t = &trials[i];
        const bool all = i / 5 % 4 == 0;
        fill_inputs(t->x, i % 5);
        for (int o = 0; o < TILE_OUTPUTS; o++) {
            for (int k = 0; k < CODES; k++)
                t->codes[o][k] = (uint8_t)random32();
            for (int k = 0; k < SCALES; k++)
                t->scales[o][k] =
                    all || k % BLOCKS == (i / 5 + o) % BLOCKS ? (uint8_t)random32() : (uint8_t)0;
        }
    }
    must(cudaMalloc((void **)&there, TRIALS * sizeof *trials), "cudaMalloc");
    must(cudaMalloc((void **)&out, TRIALS * THREADS * sizeof *out), "cudaMalloc");
    must(cudaMemcpy(there, trials, TRIALS * sizeof *trials, cudaMemcpyHostToDevice), "a copy");
    struct cuda_launch l = {};
    l.fault = &fault;
    l.device = &device;
    l.kernels = &kernels;
    cuda_launch(&l, "multiply", multiply, dim3(TRIALS), dim3(THREADS), SHARED,
                (const struct trial *)there, out);
    must(cudaDeviceSynchronize(), "the kernel");
    must(cudaMemcpy(got, out, TRIALS * THREADS * sizeof *got, cudaMemcpyDeviceToHost), "a copy");
    for (int i = 0; i < TRIALS && failures < 20; i++)
        for (int thread = 0; thread < THREADS; thread++) {
            const float4 v = got[i * THREADS + thread];
            const float found[4] = {v.x, v.y, v.z, v.w}; /* lane t or t + 4, output g or g + 8 */
            for (int k = 0; k < 4; k++) {
                const int output = thread % 32 / 4 + k % 2 * 8;
                const int lane = thread / 32 * 8 + thread % 4 + k / 2 * 4;
                const float right = expected(&trials[i], output, lane);
                CHECK(same(found[k], right), "trial %d, output %d, lane %d: %a, not %a", i, output,
                      lane, (double)found[k], (double)right);
            }
        }
    printf("%d checks, %d failures\n", checks, failures);
    return failures > 0;
}
