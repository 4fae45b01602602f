/* The emulator itself: that it computes what CUDA says, sees what kernels may not do, and fails
 * where it is told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {
#include <cmocka.h>
}
#include <cuda_bf16.h>
#include <cuda_runtime.h>

enum { ALL = 0xffffffffu, THREADS = 96, MOST = 4096 };

static uint32_t *device_words; /* [MOST] */
static uint32_t host_words[MOST];

static const char *const orders[] = {"forward", "reverse", "shuffle:1", "shuffle:77"};

static void set_order(const char *order)
{
    assert_int_equal(setenv("CUDA_EMULATOR_ORDER", order, 1), 0);
    emulator_reset();
}

template <typename... Parameters, typename... Arguments>
static cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                          cudaStream_t stream, Arguments... arguments)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    return cudaLaunchKernelEx(&c, kernel, static_cast<Parameters>(arguments)...);
}

/* Runs it and brings the words back. */
template <typename... Arguments>
static void compute(void (*kernel)(uint32_t *, Arguments...), dim3 grid, dim3 block, size_t shared,
                    Arguments... arguments)
{
    assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
    assert_int_equal(launch(kernel, grid, block, shared, NULL, device_words, arguments...),
                     cudaSuccess);
    assert_int_equal(
        cudaMemcpy(host_words, device_words, sizeof host_words, cudaMemcpyDeviceToHost),
        cudaSuccess);
}

static void forget_environment(void)
{
    const char *const names[] = {"FAIL", "MEMORY", "DEVICES", "DRIVER", "CC", "EARLY", "COPIES"};
    for (const char *name : names) {
        char whole[64];
        snprintf(whole, sizeof whole, "CUDA_EMULATOR_%s", name);
        unsetenv(whole);
    }
}

static int set_up(void **state)
{
    (void)state;
    forget_environment();
    set_order("forward");
    return cudaMalloc(&device_words, sizeof host_words) == cudaSuccess ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    forget_environment();
    set_order("forward");
    return cudaFree(device_words) == cudaSuccess ? 0 : -1;
}

/* f in a process of its own: it must abort, saying all of `words`. */
static void must_abort(void (*f)(void), const char *const *words)
{
    int ends[2];
    char text[4096];
    size_t have = 0;
    ssize_t n;
    int status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        signal(SIGABRT, SIG_DFL);
        f();
        _exit(0);
    }
    close(ends[1]);
    while (have < sizeof text - 1 && (n = read(ends[0], text + have, sizeof text - 1 - have)) > 0)
        have += (size_t)n;
    text[have] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL)
            fail_msg("not said: '%s' in: %s", *words, text);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define MUST_ABORT(statement, ...)                                                                 \
    do {                                                                                           \
        const char *const words[] = {__VA_ARGS__, NULL};                                           \
        must_abort([]() { statement; }, words);                                                    \
    } while (0)

template <typename... Arguments>
static void run(void (*kernel)(uint32_t *, Arguments...), unsigned threads, size_t shared,
                Arguments... arguments)
{
    launch(kernel, 2, threads, shared, NULL, device_words, arguments...);
}

/* ---- Indices ---- */

static __global__ void where(uint32_t *out)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        blockIdx.x << 20 | blockIdx.y << 16 | blockIdx.z << 12 | threadIdx.x << 8 |
        threadIdx.y << 4 | threadIdx.z;
}

static void test_indices(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        compute(where, dim3(3, 2, 2), dim3(5, 4, 3), 0);
        int at = 0;
        for (unsigned b = 0; b < 12; b++)
            for (unsigned t = 0; t < 60; t++, at++)
                assert_int_equal(host_words[at], (b % 3) << 20 | (b / 3 % 2) << 16 | (b / 6) << 12 |
                                                     (t % 5) << 8 | (t / 5 % 4) << 4 | t / 20);
        assert_int_equal(host_words[at], 0);
    }
}

/* ---- Warps ---- */

static __global__ void shuffles(uint32_t *out)
{
    const unsigned lane = threadIdx.x % 32, t = threadIdx.x;
    const uint64_t wide = (uint64_t)t << 40 | t;
    out[t] = __shfl_xor_sync(ALL, t, 5);
    out[THREADS + t] = (uint32_t)__shfl_down_sync(ALL, (int)t, 3);
    out[2 * THREADS + t] = __shfl_up_sync(ALL, t, 4);
    out[3 * THREADS + t] = __shfl_sync(ALL, t, 9);
    out[4 * THREADS + t] = (uint32_t)__shfl_sync(ALL, (float)t, (int)lane + 1, 8);
    out[5 * THREADS + t] = __shfl_down_sync(ALL, t, 3, 16);
    out[6 * THREADS + t] = __shfl_up_sync(ALL, t, 3, 8);
    out[7 * THREADS + t] = (uint32_t)(__shfl_xor_sync(ALL, wide, 1) >> 40);
    out[8 * THREADS + t] = __shfl_xor_sync(ALL, t, 16, 16);
}

static void test_shuffles(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        compute(shuffles, 1, THREADS, 0);
        for (unsigned t = 0; t < THREADS; t++) {
            const unsigned lane = t % 32, base = t - lane;
            assert_int_equal(host_words[t], t ^ 5);
            assert_int_equal(host_words[THREADS + t], lane + 3 < 32 ? t + 3 : t);
            assert_int_equal(host_words[2 * THREADS + t], lane >= 4 ? t - 4 : t);
            assert_int_equal(host_words[3 * THREADS + t], base + 9);
            assert_int_equal(host_words[4 * THREADS + t], t / 8 * 8 + (t + 1) % 8);
            assert_int_equal(host_words[5 * THREADS + t], t % 16 + 3 < 16 ? t + 3 : t);
            assert_int_equal(host_words[6 * THREADS + t], t % 8 >= 3 ? t - 3 : t);
            assert_int_equal(host_words[7 * THREADS + t], t ^ 1);
            /* down to a lower segment, never up into a higher one */
            assert_int_equal(host_words[8 * THREADS + t], lane >= 16 ? t - 16 : t);
        }
    }
}

static __global__ void votes(uint32_t *out)
{
    const unsigned t = threadIdx.x;
    out[t] = __ballot_sync(ALL, t % 3 == 0);
    out[32 + t] = (uint32_t)__any_sync(ALL, t == 40) * 2 + (uint32_t)__all_sync(ALL, t < 32);
    out[64 + t] = __match_any_sync(ALL, t % 4);
    out[96 + t] = __reduce_add_sync(ALL, t);
    out[128 + t] = __reduce_max_sync(ALL, t ^ 7u);
    out[160 + t] = __reduce_min_sync(ALL, t + 3u);
    out[192 + t] = (uint32_t)__reduce_max_sync(ALL, -(int)t - 2);
    out[224 + t] = (uint32_t)__reduce_min_sync(ALL, 5 - (int)t);
    out[256 + t] = __reduce_or_sync(ALL, 1u << t % 5);
    out[288 + t] = __activemask();
    /* two halves, each for itself and not equally often */
    const unsigned half = t < 16 ? 0xffffu : 0xffff0000u;
    unsigned sum = t;
    for (unsigned i = 0; i < (t < 16 ? 3u : 1u); i++)
        sum += __shfl_xor_sync(half, sum, 1);
    __syncwarp();
    out[320 + t] = __reduce_add_sync(ALL, sum);
}

static void test_votes(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        compute(votes, 1, 32, 0);
        unsigned sum = 0;
        for (unsigned t = 0; t < 32; t++)
            sum += t < 16 ? 4 * (t + (t ^ 1)) : t + (t ^ 1);
        for (unsigned t = 0; t < 32; t++) {
            assert_int_equal(host_words[t], 0x49249249u);
            assert_int_equal(host_words[32 + t], 1);
            assert_int_equal(host_words[64 + t], 0x11111111u << t % 4);
            assert_int_equal(host_words[96 + t], 31 * 16);
            assert_int_equal(host_words[128 + t], 31);
            assert_int_equal(host_words[160 + t], 3);
            assert_int_equal((int)host_words[192 + t], -2);
            assert_int_equal((int)host_words[224 + t], 5 - 31);
            assert_int_equal(host_words[256 + t], 31);
            assert_int_equal(host_words[288 + t], ALL);
            assert_int_equal(host_words[320 + t], sum);
        }
    }
}

static void reverse_lanes(void *const mine[32])
{
    for (int l = 0; l < 16; l++) {
        const uint32_t low = *(uint32_t *)mine[l];
        *(uint32_t *)mine[l] = *(uint32_t *)mine[31 - l];
        *(uint32_t *)mine[31 - l] = low;
    }
}

static __global__ void products(uint32_t *out)
{
    const struct {
        uint32_t square[3];
    } mine = {{threadIdx.x, threadIdx.x * threadIdx.x, 7}};
    uint32_t all[32][3], sum = 0, turned = threadIdx.x;
    emulator_warp_exchange(&mine, sizeof mine, all);
    for (int l = 0; l < 32; l++)
        sum += all[l][1] * all[l][2];
    out[threadIdx.x] = sum;
    emulator_warp_together(&turned, reverse_lanes);
    out[64 + threadIdx.x] = turned;
}

static void test_products(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        compute(products, 1, 64, 0);
        for (unsigned t = 0; t < 64; t++) {
            const unsigned first = t / 32 * 32;
            unsigned sum = 0;
            for (unsigned l = first; l < first + 32; l++)
                sum += 7 * l * l;
            assert_int_equal(host_words[t], sum);
            assert_int_equal(host_words[64 + t], first + 31 - t % 32);
        }
    }
}

/* ---- Blocks ---- */

static __device__ unsigned block_sum(unsigned v)
{
    __shared__ unsigned of_warp[32];
    for (int with = 16; with > 0; with /= 2)
        v += __shfl_xor_sync(ALL, v, with);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    unsigned sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++)
        sum += of_warp[w];
    __syncthreads();
    return sum;
}

static __global__ void block_work(uint32_t *out)
{
    extern __shared__ __align__(16) uint32_t dynamic_words[];
    __shared__ uint32_t once;
    const unsigned t = threadIdx.x, n = blockDim.x;
    out += blockIdx.x * 4 * n;
    out[t] = block_sum(t + blockIdx.x);
    dynamic_words[t] = t * t;
    if (t == n - 1)
        once = 11;
    __syncthreads();
    out[n + t] = dynamic_words[(t + 1) % n] + once;
    out[2 * n + t] = (uint32_t)__syncthreads_count(t % 5 == 0);
    out[3 * n + t] = (uint32_t)__syncthreads_or(t == 3) * 10 + (uint32_t)__syncthreads_and(t != 3);
}

static void test_blocks(void **state)
{
    (void)state;
    const unsigned n = 256;
    for (const char *order : orders) {
        set_order(order);
        compute(block_work, 3, n, n * 4);
        for (unsigned b = 0; b < 3; b++)
            for (unsigned t = 0; t < n; t++) {
                const uint32_t *at = host_words + b * 4 * n;
                assert_int_equal(at[t], n * (n - 1) / 2 + n * b);
                assert_int_equal(at[n + t], (t + 1) % n * ((t + 1) % n) + 11);
                assert_int_equal(at[2 * n + t], 52);
                assert_int_equal(at[3 * n + t], 10);
            }
    }
}

static __global__ void read_unset(uint32_t *out)
{
    extern __shared__ __align__(16) uint32_t dynamic_words[];
    __shared__ uint32_t unset[32];
    if (out[0] > 1000) /* never: g++ must not know that nothing is written */
        unset[threadIdx.x] = dynamic_words[threadIdx.x] = 5;
    out[1 + threadIdx.x] = unset[threadIdx.x];
    out[33 + threadIdx.x] = dynamic_words[threadIdx.x];
    unset[threadIdx.x] = dynamic_words[threadIdx.x] = 0;
}

static void test_poison(void **state)
{
    (void)state;
    compute(read_unset, 2, 32, 128);
    for (int i = 0; i < 64; i++)
        assert_int_equal(host_words[1 + i], ALL);
    uint32_t *fresh, word;
    assert_int_equal(cudaMalloc(&fresh, 64), cudaSuccess);
    assert_int_equal(cudaMemcpy(&word, fresh + 15, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(word, ALL);
    assert_int_equal(cudaFree(fresh), cudaSuccess);
}

static __global__ void atomics(uint32_t *out)
{
    const unsigned t = threadIdx.x + blockIdx.x * blockDim.x;
    atomicAdd(&out[0], t);
    atomicAdd((unsigned long long *)&out[2], 1ull << 33);
    atomicAdd((float *)&out[4], 1.0f);
    atomicMax(&out[5], t ^ 3u);
    atomicMin((int *)&out[6], -(int)t);
    atomicExch(&out[8 + t], atomicAdd(&out[7], 1u));
    if (atomicCAS(&out[1], 0u, t + 1) == 0)
        atomicOr(&out[1], 0x8000u);
    /* the last block of all, by a ticket */
    __shared__ bool last;
    __threadfence();
    if (threadIdx.x == 0)
        last = atomicInc(&out[1000], gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last)
        out[1001 + threadIdx.x] = out[0];
}

static void test_atomics(void **state)
{
    (void)state;
    const unsigned n = 4 * 64;
    for (const char *order : orders) {
        set_order(order);
        compute(atomics, 4, 64, 0);
        float f;
        uint64_t wide;
        bool seen[n] = {};
        memcpy(&f, &host_words[4], 4);
        memcpy(&wide, &host_words[2], 8);
        assert_int_equal(host_words[0], n * (n - 1) / 2);
        assert_true(wide == (uint64_t)n << 33);
        assert_true(f == (float)n);
        assert_int_equal(host_words[5], n - 1);
        assert_int_equal((int)host_words[6], -(int)n + 1);
        assert_int_equal(host_words[1] & 0x8000u, 0x8000u);
        for (unsigned i = 0; i < n; i++) {
            assert_in_range(host_words[8 + i], 0, n - 1);
            assert_false(seen[host_words[8 + i]]);
            seen[host_words[8 + i]] = true;
        }
        assert_int_equal(host_words[1000], 0);
        assert_int_equal(host_words[1001], n * (n - 1) / 2);
    }
}

static __global__ void named(uint32_t *out)
{
    __shared__ uint32_t left[32], right[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned round = 0; round < 4; round++) {
        if (warp == 0) {
            left[lane] = lane + round;
            emulator_named_barrier(1, 64);
            emulator_named_barrier(2, 64);
            out[round * 32 + lane] = right[31 - lane];
        } else {
            emulator_named_barrier(1, 64);
            right[lane] = left[lane] * 2;
            emulator_named_barrier(2, 64);
        }
        __syncthreads();
    }
}

static void test_named_barriers(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        compute(named, 1, 64, 0);
        for (unsigned round = 0; round < 4; round++)
            for (unsigned lane = 0; lane < 32; lane++)
                assert_int_equal(host_words[round * 32 + lane], (31 - lane + round) * 2);
    }
}

static __global__ void copies(uint32_t *out, unsigned left)
{
    __shared__ __align__(16) uint32_t words[2][128];
    const unsigned t = threadIdx.x;
    for (unsigned half = 0; half < 2; half++) {
        emulator_copy_async(&words[half][t * 4], out + half * 128 + t * 4, 16);
        emulator_copy_commit();
    }
    emulator_copy_wait(left);
    __syncthreads();
    out[1000 + t] = words[0][127 - t];
    out[1100 + t] = words[1][127 - t];
}

static void test_copies_arrive_when_waited_for(void **state)
{
    (void)state;
    compute(copies, 1, 32, 0, 0u);
    assert_int_equal(host_words[1000], 0);
    assert_int_equal(host_words[1100], 0);
    compute(copies, 1, 32, 0, 1u);
    assert_int_equal(host_words[1000], 0);
    assert_int_equal(host_words[1100], ALL);
    compute(copies, 1, 32, 0, 2u);
    assert_int_equal(host_words[1000], ALL);
    assert_int_equal(host_words[1131], ALL);
    setenv("CUDA_EMULATOR_COPIES", "early", 1);
    emulator_reset();
    compute(copies, 1, 32, 0, 2u);
    assert_int_equal(host_words[1000], 0);
    assert_int_equal(host_words[1131], 0);
}

/* ---- Copies in bulk, and clusters ---- */

static __global__ void bulk_copies(uint32_t *out, unsigned waits)
{
    __shared__ __align__(16) uint32_t words[2][16];
    __shared__ uint64_t barriers[2];
    const unsigned t = threadIdx.x;
    if (t == 0)
        for (int i = 0; i < 2; i++) {
            emulator_bytes_init(&barriers[i]);
            emulator_bytes_expect(&barriers[i], sizeof words[i]);
            emulator_bulk_copy(words[i], out + 16 * i, 32, &barriers[i]);
            emulator_bulk_copy(words[i] + 8, out + 16 * i + 8, 32, &barriers[i]);
        }
    __syncthreads();
    if (waits > 0)
        emulator_bytes_wait(&barriers[0], 0);
    out[1000 + t] = words[0][t % 16];
    out[1100 + t] = words[1][t % 16];
    if (waits < 2)
        return;
    __syncthreads();
    emulator_bytes_wait(&barriers[1], 0);
    out[1200 + t] = words[1][t % 16];
}

/* A place is filled again before all lanes have read it. */
static __global__ void bulk_careless(uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[32];
    __shared__ uint64_t barrier;
    const unsigned t = threadIdx.x;
    out[t] = t;
    out[32 + t] = 100 + t;
    if (t == 0)
        emulator_bytes_init(&barrier);
    auto fetch = [&](unsigned turn) {
        if (t != 31)
            return;
        emulator_bytes_expect(&barrier, 128);
        emulator_bulk_copy(words, out + 32 * turn, 128, &barrier);
    };
    __syncwarp();
    fetch(0);
    __syncwarp();
    emulator_bytes_wait(&barrier, 0);
    __syncwarp();
    out[1000 + t] = words[t];
    fetch(1);
    __syncwarp();
    emulator_bytes_wait(&barrier, 1);
    out[1064 + t] = words[t];
}

/* Ten turns of three places; each turn is expected behind or in front of its copy. */
static __global__ void bulk_turns(uint32_t *out)
{
    __shared__ __align__(16) uint32_t words[3][32];
    __shared__ uint64_t barriers[3];
    const unsigned t = threadIdx.x, turns = 10;
    auto fetch = [&](unsigned turn) {
        if (t != 31)
            return;
        uint64_t *barrier = &barriers[turn % 3];
        if (turn % 2)
            emulator_bytes_expect(barrier, 128);
        emulator_bulk_copy(words[turn % 3], out + 32 * turn, 128, barrier);
        if (turn % 2 == 0)
            emulator_bytes_expect(barrier, 128);
    };
    out[t] = out[32 + t] = t;
    for (unsigned i = 2; i < turns; i++)
        out[32 * i + t] = t + i;
    if (t < 3)
        emulator_bytes_init(&barriers[t]);
    __syncwarp();
    for (unsigned i = 0; i < 3; i++)
        fetch(i);
    for (unsigned i = 0; i < turns; i++) {
        emulator_bytes_wait(&barriers[i % 3], i / 3);
        out[1000 + 32 * i + t] = words[i % 3][31 - t];
        __syncwarp();
        if (i + 3 < turns)
            fetch(i + 3);
    }
}

static void test_bulk_copies(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        MUST_ABORT(run(bulk_copies, 32, 0, 0u), "kernel bulk_copies", "ends while 4 copies");
        MUST_ABORT(run(bulk_copies, 32, 0, 1u), "ends while 2 copies");
        compute(bulk_copies, 1, 32, 0, 2u);
        for (int i = 0; i < 32; i++) {
            assert_int_equal(host_words[1000 + i], 0);
            assert_int_equal(host_words[1100 + i], ALL); /* not waited for yet */
            assert_int_equal(host_words[1200 + i], 0);
        }
        for (const char *copies : {"early", "late"}) {
            setenv("CUDA_EMULATOR_COPIES", copies, 1);
            emulator_reset();
            compute(bulk_turns, 1, 32, 0);
            for (unsigned i = 0; i < 10; i++)
                for (unsigned t = 0; t < 32; t++)
                    assert_int_equal(host_words[1000 + 32 * i + t], 31 - t + (i > 1 ? i : 0));
        }
    }
    set_order("reverse"); /* lane 31 first */
    for (const char *copies : {"late", "early"}) {
        setenv("CUDA_EMULATOR_COPIES", copies, 1);
        emulator_reset();
        compute(bulk_careless, 1, 32, 0);
        for (unsigned t = 0; t < 32; t++) {
            const bool late_to_read = t > 0 && t < 31; /* 0 comes last, and goes on */
            assert_int_equal(host_words[1000 + t], (*copies == 'e' && late_to_read ? 100 : 0) + t);
            assert_int_equal(host_words[1064 + t], 100 + t);
        }
    }
    compute(bulk_copies, 1, 32, 0, 0u);
    assert_int_equal(host_words[1000], 0);
    assert_int_equal(host_words[1131], 0);
}

enum bulk_fault {
    BULK_NO_BARRIER,
    BULK_TWICE,
    BULK_SHORT,
    BULK_OUTSIDE,
    BULK_MISPLACED,
    BULK_LATE
};

static __global__ void bad_bulk(uint32_t *out, unsigned fault)
{
    __shared__ __align__(16) uint32_t words[8];
    __shared__ uint64_t barrier;
    if (fault != BULK_NO_BARRIER)
        emulator_bytes_init(&barrier);
    emulator_bytes_expect(&barrier, 32);
    if (fault == BULK_TWICE)
        emulator_bytes_expect(&barrier, 32);
    else if (fault == BULK_OUTSIDE)
        emulator_bulk_copy(words + 4, out, 32, &barrier);
    else if (fault == BULK_MISPLACED)
        emulator_bulk_copy(words, out + 1, 32, &barrier);
    else
        emulator_bulk_copy(words, out, fault == BULK_SHORT ? 16 : 32, &barrier);
    emulator_bytes_wait(&barrier, fault == BULK_LATE ? 1 : 0);
    if (fault == BULK_LATE) { /* there was nothing to wait for then: now it is of the next turn */
        emulator_bytes_wait(&barrier, 0);
        emulator_bytes_wait(&barrier, 1);
    }
}

static void test_bad_bulk_copies_abort(void **state)
{
    (void)state;
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_NO_BARRIER), "kernel bad_bulk", "has set up");
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_TWICE), "a second time in turn 0");
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_SHORT), "a loop waits for ever");
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_OUTSIDE), "not within shared memory");
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_MISPLACED), "not aligned");
    MUST_ABORT(run(bad_bulk, 1, 0, (unsigned)BULK_LATE), "a loop waits for ever");
    setenv("CUDA_EMULATOR_CC", "8.0", 1);
    emulator_reset();
    MUST_ABORT(run(bulk_copies, 32, 0, 2u), "before compute capability 9.0");
}

enum { CLUSTER = 4 };

/* Each block sends its number to the first of its cluster, twice a thread, which writes the sums.
 */
static __global__ void cluster_sums(uint32_t *out, unsigned fault)
{
    extern __shared__ __align__(16) uint32_t dynamic_words[]; /* [CLUSTER][64] */
    __shared__ uint64_t barrier;
    const unsigned t = threadIdx.x, rank = blockIdx.x % CLUSTER;
    if (t == 0)
        emulator_bytes_init(&barrier);
    __syncwarp();
    if (fault != 1) {
        emulator_cluster_arrive();
        if (fault != 2)
            emulator_cluster_wait();
    }
    emulator_dependency_wait();
    const uint32_t pair[2] = {blockIdx.x, t};
    if (fault != 4 || rank != 0)
        emulator_cluster_send(dynamic_words + 64 * rank + 2 * t, pair, &barrier,
                              fault == 3 ? CLUSTER : 0);
    if (rank != 0 || fault == 4)
        return;
    if (t == 7)
        emulator_bytes_expect(&barrier, CLUSTER * 32 * 8);
    emulator_bytes_wait(&barrier, 0);
    uint32_t sum = 0;
    for (int i = 0; i < CLUSTER; i++)
        sum += dynamic_words[64 * i + 2 * t] << 16 | dynamic_words[64 * i + 2 * t + 1];
    const unsigned cluster = (blockIdx.x + gridDim.x * blockIdx.y) / CLUSTER;
    out[32 * cluster + t] = sum;
}

static cudaError_t launch_clusters(unsigned blocks, unsigned cluster, unsigned fault)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attributes[2] = {};
    c.gridDim = dim3(blocks, 3);
    c.blockDim = 32;
    c.dynamicSmemBytes = CLUSTER * 64 * 4;
    c.attrs = attributes;
    c.numAttrs = 2;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {cluster, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    return cudaLaunchKernelEx(&c, cluster_sums, device_words, fault);
}

static void test_clusters(void **state)
{
    (void)state;
    for (const char *order : orders)
        for (unsigned early = 0; early < 2; early++)
            for (unsigned blocks = CLUSTER; blocks < 130; blocks += 60) {
                setenv("CUDA_EMULATOR_EARLY", early ? "1" : "0", 1);
                set_order(order);
                assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
                assert_int_equal(launch_clusters(blocks, CLUSTER, 0), cudaSuccess);
                assert_int_equal(
                    cudaMemcpy(host_words, device_words, sizeof host_words, cudaMemcpyDeviceToHost),
                    cudaSuccess);
                for (unsigned i = 0; i < 3 * blocks / CLUSTER; i++)
                    for (unsigned t = 0; t < 32; t++)
                        assert_int_equal(host_words[32 * i + t],
                                         (4 * (i % (blocks / CLUSTER) * CLUSTER) + 6) << 16 |
                                             4 * t);
            }
    forget_environment();
    for (const char *order : orders) {
        set_order(order);
        MUST_ABORT(launch_clusters(CLUSTER, CLUSTER, 1), "kernel cluster_sums", "not have begun");
        MUST_ABORT(launch_clusters(CLUSTER, CLUSTER, 3), "to block 4 of a cluster of 4");
    }
    set_order("reverse");
    MUST_ABORT(launch_clusters(CLUSTER, CLUSTER, 2), "not have begun");
    MUST_ABORT(launch_clusters(CLUSTER, CLUSTER, 4), "which has ended");
    assert_int_equal(launch_clusters(CLUSTER + 1, CLUSTER, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_clusters(9, 9, 0), cudaErrorInvalidConfiguration);
    setenv("CUDA_EMULATOR_CC", "8.0", 1);
    emulator_reset();
    assert_int_equal(launch_clusters(CLUSTER, CLUSTER, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

/* ---- Grids ---- */

enum { LINK_THREADS = 128, LINK_BLOCKS = 80 };

/* out[i] = from[i] + 1, read in time or before the launches in front have ended. late: the next
 * launch may begin only when this one has waited. */
static __global__ void chain_link(uint32_t *out, const uint32_t *from, bool too_early, bool late)
{
    __shared__ uint32_t kept[LINK_THREADS];
    const unsigned i = blockIdx.x % 8 * LINK_THREADS + threadIdx.x;
    if (!late)
        emulator_dependents_launch();
    kept[threadIdx.x] = blockIdx.x;
    uint32_t v = too_early ? from[i] : 0;
    __syncthreads();
    emulator_dependency_wait();
    if (late)
        emulator_dependents_launch();
    v = too_early ? v : from[i];
    __syncthreads();
    if (blockIdx.x < 8)
        out[i] = v + 1;
    else if (kept[(threadIdx.x + 1) % LINK_THREADS] != blockIdx.x)
        out[i] = 0;
}

/* Area 1 of 1024 words from area 0, 2 from 1, 3 from `third`. */
static void run_chain(bool too_early, int third, bool late, cudaStream_t stream)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = LINK_BLOCKS;
    c.blockDim = LINK_THREADS;
    c.stream = stream;
    c.attrs = &attribute;
    c.numAttrs = 1;
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaLaunchKernelEx(&c, chain_link, device_words + (i + 1) * 1024,
                                            device_words + (i < 2 ? i : third) * 1024,
                                            too_early && (i == 2 || third == 2), late),
                         cudaSuccess);
}

static void get_words(void)
{
    assert_int_equal(
        cudaMemcpy(host_words, device_words, sizeof host_words, cudaMemcpyDeviceToHost),
        cudaSuccess);
}

static void test_early_launches(void **state)
{
    (void)state;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    for (const char *order : orders) {
        /* in turn nobody sees that it is read too early; where launches begin early it shows */
        for (unsigned early = 0; early < 3; early++) {
            setenv("CUDA_EMULATOR_EARLY", early == 0 ? "0" : early == 1 ? "1" : "2", 1);
            set_order(order);
            assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
            run_chain(false, 2, false, NULL);
            get_words();
            for (int i = 0; i < 1024; i++)
                assert_int_equal(host_words[3 * 1024 + i], 3);
            assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                             cudaSuccess);
            run_chain(true, 2, false, stream);
            assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
            assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
            get_words();
            if (order == orders[0]) /* of other orders, other blocks begin early */
                assert_int_equal(host_words[3 * 1024], early == 0 ? 3 : 1);
            assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
            assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
            /* what the launch before the last wrote is there if the last let this one begin late */
            for (int late = 0; late < 2; late++) {
                assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
                run_chain(true, 1, late, stream);
                get_words();
                if (order == orders[0])
                    assert_int_equal(host_words[3 * 1024], early == 2 && !late ? 1 : 2);
            }
        }
    }
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* out[0..3]: from[0..3], asked for before the wait by cp.async, in bulk, or behind it. */
static __global__ void early_copies(uint32_t *out, const uint32_t *from, unsigned how)
{
    __shared__ __align__(16) uint32_t words[4];
    __shared__ uint64_t barrier;
    emulator_bytes_init(&barrier);
    if (how == 2)
        emulator_dependency_wait();
    if (how == 0) {
        emulator_copy_async(words, from, 16);
        emulator_copy_commit();
    } else {
        emulator_bytes_expect(&barrier, 16);
        emulator_bulk_copy(words, from, 16, &barrier);
    }
    if (how != 2)
        emulator_dependency_wait();
    if (how == 0)
        emulator_copy_wait(0);
    else
        emulator_bytes_wait(&barrier, 0);
    memcpy(out, words, 16);
}

/* What is copied too early shows too, and behind launches that are not programmatic. */
static void test_early_copies(void **state)
{
    (void)state;
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = c.blockDim = 1;
    c.attrs = &attribute;
    c.numAttrs = 1;
    for (const char *early : {"0", "1", "2"}) {
        setenv("CUDA_EMULATOR_EARLY", early, 1);
        emulator_reset();
        for (unsigned how = 0; how < 3; how++) {
            assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
            assert_int_equal(launch(chain_link, 1, LINK_THREADS, 0, NULL, device_words + 1024,
                                    device_words, false, false),
                             cudaSuccess);
            assert_int_equal(cudaLaunchKernelEx(&c, early_copies, device_words,
                                                (const uint32_t *)device_words + 1024, how),
                             cudaSuccess);
            get_words();
            for (int i = 0; i < 4; i++)
                assert_int_equal(host_words[i], how == 2 || *early == '0');
            assert_int_equal(host_words[1024], 1);
        }
    }
}

static __global__ void grid_work(uint32_t *out)
{
    extern __shared__ __align__(16) uint32_t dynamic_words[];
    __shared__ uint32_t kept[32];
    const unsigned t = threadIdx.x, b = blockIdx.x, n = gridDim.x;
    kept[t] = b * 100 + t;
    dynamic_words[t] = b + t;
    out[b * 32 + t] = kept[t];
    emulator_grid_barrier();
    const uint32_t other = out[(b + 1) % n * 32 + t];
    emulator_grid_barrier();
    out[b * 32 + t] = other + kept[t] + dynamic_words[t];
    /* a barrier of one's own, by waiting for a counter */
    __syncthreads();
    if (t == 0) {
        atomicAdd(&out[1000], 1u);
        while (*(volatile uint32_t *)&out[1000] < n)
            __nanosleep(20);
    }
    __syncthreads();
    if (b == 0)
        out[1001 + t] = out[(n - 1) * 32 + t];
}

static void test_cooperative(void **state)
{
    (void)state;
    const unsigned n = 5;
    for (const char *order : orders) {
        set_order(order);
        assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
        cudaLaunchConfig_t c = {};
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
        c.gridDim = n;
        c.blockDim = 32;
        c.dynamicSmemBytes = 128;
        c.attrs = &attribute;
        c.numAttrs = 1;
        assert_int_equal(cudaLaunchKernelEx(&c, grid_work, device_words), cudaSuccess);
        assert_int_equal(
            cudaMemcpy(host_words, device_words, sizeof host_words, cudaMemcpyDeviceToHost),
            cudaSuccess);
        for (unsigned b = 0; b < n; b++)
            for (unsigned t = 0; t < 32; t++)
                assert_int_equal(host_words[b * 32 + t], ((b + 1) % n + b) * 100 + 2 * t + b + t);
        for (unsigned t = 0; t < 32; t++)
            assert_int_equal(host_words[1001 + t], host_words[(n - 1) * 32 + t]);
        c.gridDim = 4 * 32 + 1;
        assert_int_equal(cudaLaunchKernelEx(&c, grid_work, device_words),
                         cudaErrorCooperativeLaunchTooLarge);
        assert_int_equal(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
    }
}

/* ---- Arithmetic ---- */

static __constant__ float constants[4];
static __device__ uint32_t device_variable = 3;

static __global__ void arithmetic(uint32_t *out, float tiny)
{
    const float nan = __uint_as_float(0x7fc00001u);
    int i = 0;
    out[i++] = __byte_perm(0x33221100u, 0x77665544u, 0x7410u);
    out[i++] = __funnelshift_l(0x80000001u, 0x12345678u, 4);
    out[i++] = __funnelshift_r(0x80000001u, 0x12345678u, 36);
    out[i++] = __brev(0x00000003u);
    out[i++] = (uint32_t)(__popc(0xff0fu) + 100 * __clz(1) + 10000 * __ffs(8) + 1000000 * __clz(0));
    out[i++] = (uint32_t)__dp4a((int)0x80ff7f01u, (int)0x02030405u, 7);
    out[i++] = __dp4a(0xffffffffu, 0x01010101u, 1u);
    out[i++] = __float_as_uint(fmaxf(nan, 2.0f));
    out[i++] = __float_as_uint(fmaxf(-0.0f, 0.0f));
    out[i++] = __float_as_uint(fminf(0.0f, -0.0f));
    out[i++] = __float_as_uint(fmaf(1.0f + 0x1p-23f, 1.0f - 0x1p-23f, -1.0f));
    out[i++] = __float_as_uint(tiny * 0.5f); /* a denormal: 0 */
    out[i++] = __float_as_uint(emulator_multiply_keep(tiny, 0.5f));
    out[i++] = __float_as_uint(__fdiv_rn(1.0f, 3.0f));
    out[i++] = __float_as_uint(__fsqrt_rn(2.0f));
    out[i++] = (uint32_t)__float2int_rn(2.5f) + (uint32_t)__float2int_rz(-2.5f) * 10;
    out[i++] = (uint32_t)__float2int_rn(1e20f);
    out[i++] = __float2uint_rn(-1.0f) + (uint32_t)__float2int_rn(nan);
    out[i++] = max(-1, 1) + (uint32_t)min(3u, 5) * 10;
    out[i++] = __bfloat16_as_ushort(__float2bfloat16_rn(1.00390625f)); /* a tie: to even */
    out[i++] = __float_as_uint(constants[threadIdx.x + 2]);
    out[i++] = device_variable++;
    out[i++] = __ldg(out);
    out[i++] = (uint32_t)__umulhi(0x80000000u, 6u) + (uint32_t)sizeof(uint4) * 100;
}

static void test_arithmetic(void **state)
{
    (void)state;
    const float values[4] = {1, 2, 3, 4};
    assert_int_equal(cudaMemcpyToSymbol(constants, values, sizeof values), cudaSuccess);
    assert_int_equal(cudaMemcpyToSymbol(constants, values, sizeof values, 4),
                     cudaErrorInvalidValue);
    compute(arithmetic, 1, 1, 0, 0x1p-126f);
    const uint32_t expected[] = {0x77441100u,
                                 0x23456788u,
                                 0x88000000u,
                                 0xc0000000u,
                                 12 + 3100 + 40000 + 32000000,
                                 7 + 5 * 1 + 4 * 127 + 3 * -1 + 2 * -128,
                                 4 * 255 + 1,
                                 0x40000000u,
                                 0,
                                 0x80000000u,
                                 0xa8800000u,
                                 0,
                                 0x00400000u,
                                 0x3eaaaaabu,
                                 0x3fb504f3u,
                                 (uint32_t)(2 - 20),
                                 0x7fffffffu,
                                 0,
                                 31,
                                 0x3f80,
                                 0x40400000u,
                                 3,
                                 0x77441100u,
                                 3 + 1600};
    for (size_t i = 0; i < sizeof expected / 4; i++)
        assert_int_equal(host_words[i], expected[i]);
    uint32_t back;
    assert_int_equal(cudaMemcpyFromSymbol(&back, device_variable, 4), cudaSuccess);
    assert_int_equal(back, 4);
    /* products with denormals, against the processor's own without the modes of a launch */
    uint32_t random = 1;
    for (int i = 0; i < 100000; i++) {
        random = random * 1664525u + 1013904223u;
        const float a = __uint_as_float(i % 2 ? random & 0x80ffffffu : random);
        random = random * 1664525u + 1013904223u;
        const float b = __uint_as_float(i % 3 ? (random & 0x87ffffffu) + 0x38000000u : random);
        const float product = a * b;
        if (product == product)
            assert_int_equal(__float_as_uint(emulator_multiply_keep(a, b)),
                             __float_as_uint(product));
    }
    /* the host's mode is as it was */
    volatile float denormal = 0x1p-126f;
    assert_true(denormal * 0.5f > 0);
}

/* ---- Races ---- */

static __global__ void last_writer(uint32_t *out)
{
    out[blockIdx.x] = threadIdx.x;
    out[100] = blockIdx.x;
}

static __global__ void no_barrier(uint32_t *out)
{
    __shared__ uint32_t words[64];
    words[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = words[threadIdx.x ^ 33];
}

static void test_races_show(void **state)
{
    (void)state;
    compute(last_writer, 3, 64, 0);
    assert_int_equal(host_words[1], 63);
    assert_int_equal(host_words[100], 2);
    set_order("reverse");
    compute(last_writer, 3, 64, 0);
    assert_int_equal(host_words[1], 0);
    assert_int_equal(host_words[100], 0);
    set_order("forward");
    compute(no_barrier, 1, 64, 0);
    assert_int_equal(host_words[0], ALL);
    assert_int_equal(host_words[63], 30);
    set_order("reverse");
    compute(no_barrier, 1, 64, 0);
    assert_int_equal(host_words[0], 33);
    assert_int_equal(host_words[63], ALL);
    set_order("shuffle:5");
    compute(no_barrier, 1, 64, 0);
    int unset = 0;
    for (int t = 0; t < 64; t++)
        unset += host_words[t] == ALL;
    assert_in_range(unset, 1, 63);
}

/* ---- What may not be done ---- */

static __global__ void ends_early(uint32_t *out)
{
    if (threadIdx.x == 40)
        return;
    __syncthreads();
    out[0] = 1;
}

static __global__ void waits_elsewhere(uint32_t *out)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[0] = 1;
}

static __global__ void lacks_lanes(uint32_t *out)
{
    if (threadIdx.x % 2)
        out[threadIdx.x] = __shfl_xor_sync(ALL, 1u, 2);
    else
        __syncthreads();
}

static __global__ void not_of_mask(uint32_t *out)
{
    out[threadIdx.x] = __shfl_sync(0xffffu, 1u, 0);
}

static __global__ void reads_outside(uint32_t *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1u, 16);
}

static __global__ void other_kind(uint32_t *out)
{
    if (threadIdx.x == 7)
        out[0] = __ballot_sync(ALL, 1);
    else
        __syncwarp();
}

static __global__ void writes_behind(uint32_t *out)
{
    extern __shared__ __align__(16) uint32_t dynamic_words[];
    dynamic_words[16 + 3 * (out != NULL)] = 1;
}

static __global__ void waits_for_ever(uint32_t *out)
{
    while (((volatile uint32_t *)out)[5] != 77)
        __nanosleep(10);
}

static __global__ void dependency(uint32_t *out, unsigned twice, unsigned never)
{
    if (threadIdx.x >= never)
        return;
    emulator_dependency_wait();
    if (threadIdx.x == twice)
        emulator_dependency_wait();
    out[threadIdx.x] = 1;
}

static __global__ void traps(uint32_t *out)
{
    if (out != NULL && threadIdx.x == 2)
        __trap();
}

static void test_bad_kernels_abort(void **state)
{
    (void)state;
    for (const char *order : orders) {
        set_order(order);
        MUST_ABORT(run(ends_early, 64, 0), "kernel ends_early, block (", "), thread (", "end",
                   "__syncthreads");
        MUST_ABORT(run(waits_elsewhere, 64, 0), "kernel waits_elsewhere, block (",
                   "others wait at the one of", "test_emulator.cu:");
        MUST_ABORT(run(lacks_lanes, 32, 0), "kernel lacks_lanes, block (", "threads wait for ever",
                   "16 from (1, 0, 0) on at a shuffle", "16 from (0, 0, 0) on at __syncthreads");
        MUST_ABORT(run(not_of_mask, 32, 0), "kernel not_of_mask", "lacks the calling lane");
        MUST_ABORT(run(reads_outside, 32, 0), "kernel reads_outside", "which is not of its mask");
        MUST_ABORT(run(other_kind, 32, 0), "kernel other_kind", "a vote", "__syncwarp");
        MUST_ABORT(run(not_of_mask, 8, 0), "do not exist");
        MUST_ABORT(run(dependency, 32, 0, 3u, 99u), "kernel dependency", "thread (3, 0, 0)",
                   "waits twice");
        MUST_ABORT(run(dependency, 32, 0, 99u, 9u), "kernel dependency", "end without");
        MUST_ABORT(run(traps, 32, 0), "kernel traps", "thread (2, 0, 0)", "__trap");
    }
    set_order("forward");
    MUST_ABORT(run(waits_for_ever, 1, 0), "kernel waits_for_ever", "a loop waits for ever");
#ifndef __SANITIZE_ADDRESS__ /* it says so in its own words */
    MUST_ABORT(run(writes_behind, 32, 64), "kernel writes_behind", "64 bytes of dynamic shared");
    MUST_ABORT(device_words[MOST] = 0; cudaFree(device_words), "wrote behind a piece of device");
#else
    MUST_ABORT(run(writes_behind, 32, 64), "AddressSanitizer");
#endif
    compute(dependency, 1, 32, 0, 99u, 99u);
    assert_int_equal(host_words[31], 1);
}

/* ---- The host's calls ---- */

static void test_memory(void **state)
{
    (void)state;
    size_t before, total, available;
    unsigned char *a, *b, *pinned, bytes[64] = {};
    void *device;
    assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&a, 1000), cudaSuccess);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    assert_int_equal(before - available, 1000);
    assert_int_equal(cudaMemcpy(a + 990, bytes, 10, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(a + 990, bytes, 11, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(bytes, a + 960, 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    /* the wrong way round */
    assert_int_equal(cudaMemcpy(a, bytes, 8, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(a, 1, 1001), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(bytes, 1, 8), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(a + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(a), cudaSuccess);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    assert_int_equal(cudaMallocHost(&pinned, 64), cudaSuccess);
    assert_int_equal(cudaFree(pinned), cudaErrorInvalidValue);
    assert_int_equal(cudaHostGetDevicePointer(&device, pinned, 0), cudaSuccess);
    assert_ptr_equal(device, pinned);
    assert_int_equal(cudaHostGetDevicePointer(&device, bytes, 0), cudaErrorInvalidValue);
    assert_int_equal(cudaHostRegister(bytes, sizeof bytes, 0), cudaSuccess);
    assert_int_equal(cudaHostRegister(bytes, sizeof bytes, 0),
                     cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(cudaHostUnregister(bytes), cudaSuccess);
    assert_int_equal(cudaHostUnregister(bytes), cudaErrorHostMemoryNotRegistered);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    setenv("CUDA_EMULATOR_MEMORY", "100000", 1);
    emulator_reset();
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    assert_int_equal(total, 100000);
    assert_int_equal(cudaMalloc(&a, available), cudaSuccess);
    assert_int_equal(cudaMalloc(&b, 1), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_string_equal(cudaGetErrorName(cudaPeekAtLastError()), "cudaErrorMemoryAllocation");
    assert_string_equal(cudaGetErrorString(cudaGetLastError()), "out of memory");
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaFree(a), cudaSuccess);
}

struct step {
    uint32_t by[5];
};
static __global__ void add_step(uint32_t *out, struct step s, uint32_t index)
{
    out[threadIdx.x] += s.by[index];
}

static void test_graphs(void **state)
{
    (void)state;
    cudaStream_t stream, other;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t forked, joined, recorded;
    enum cudaStreamCaptureStatus status;
    size_t nodes = 0;
    uint32_t *pinned;
    void *p;
    float milliseconds;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&other), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventCreate(&joined), cudaSuccess);
    assert_int_equal(cudaEventCreate(&recorded), cudaSuccess);
    assert_int_equal(cudaMallocHost(&pinned, 4), cudaSuccess);
    assert_int_equal(cudaMemset(device_words, 0, sizeof host_words), cudaSuccess);
    pinned[0] = 1;

    const uint64_t before = emulator_launches();
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_int_equal(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    assert_int_equal(cudaMemcpyAsync(device_words + 100, pinned, 4, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    {
        struct step s = {{0, 0, 10, 0, 0}};
        assert_int_equal(launch(add_step, 1, 32, 0, stream, device_words, s, 2u), cudaSuccess);
        s.by[2] = 99; /* arguments are of the launch */
    }
    assert_int_equal(cudaEventRecord(forked, stream), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, forked, 0), cudaSuccess);
    assert_int_equal(launch(add_step, 1, 32, 0, other, device_words + 32, (struct step){{7}}, 0u),
                     cudaSuccess);
    assert_int_equal(cudaEventRecord(joined, other), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(stream, joined, 0), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(device_words + 101, 5, 4, stream), cudaSuccess);
    assert_int_equal(cudaEventRecordWithFlags(recorded, stream, cudaEventRecordExternal),
                     cudaSuccess);
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(emulator_launches(), before);
    assert_int_equal(cudaStreamIsCapturing(other, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_int_equal(cudaGraphGetNodes(graph, NULL, &nodes), cudaSuccess);
    assert_int_equal(nodes, 5);
    cudaGraphNode_t list[5];
    enum cudaGraphNodeType type;
    assert_int_equal(cudaGraphGetNodes(graph, list, &nodes), cudaSuccess);
    assert_int_equal(cudaGraphNodeGetType(list[1], &type), cudaSuccess);
    assert_int_equal(type, cudaGraphNodeTypeKernel);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);

    for (uint32_t round = 1; round <= 3; round++) {
        pinned[0] = 40 + round;
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        assert_int_equal(
            cudaMemcpy(host_words, device_words, sizeof host_words, cudaMemcpyDeviceToHost),
            cudaSuccess);
        assert_int_equal(host_words[31], 10 * round);
        assert_int_equal(host_words[32], 7 * round);
        assert_int_equal(host_words[100], 40 + round);
        assert_int_equal(host_words[101], 0x05050505);
    }
    assert_int_equal(emulator_launches(), before + 6);
    assert_int_equal(cudaEventElapsedTime(&milliseconds, recorded, recorded), cudaSuccess);
    assert_true(milliseconds == 0);
    assert_int_equal(cudaEventElapsedTime(&milliseconds, forked, recorded),
                     cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);

    /* a wait inside of a capture spoils it */
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(launch(last_writer, 1, 1, 0, stream, device_words),
                     cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnmatched);

    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaEventDestroy(forked), cudaSuccess);
    assert_int_equal(cudaEventDestroy(joined), cudaSuccess);
    assert_int_equal(cudaEventDestroy(recorded), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void test_launch_limits(void **state)
{
    (void)state;
    struct cudaFuncAttributes attributes;
    int blocks;
    assert_int_equal(launch(last_writer, 1, 1025, 0, NULL, device_words),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(launch(last_writer, 0, 32, 0, NULL, device_words),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(launch(last_writer, 1, 32, 48 * 1024, NULL, device_words), cudaSuccess);
    assert_int_equal(launch(last_writer, 1, 32, 48 * 1024 + 4, NULL, device_words),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(last_writer, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          227 * 1024 + 1),
                     cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(last_writer, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024),
        cudaSuccess);
    assert_int_equal(launch(last_writer, 1, 32, 227 * 1024, NULL, device_words), cudaSuccess);
    assert_int_equal(cudaFuncGetAttributes(&attributes, no_barrier), cudaSuccess);
    assert_int_equal(attributes.sharedSizeBytes, 256);
    assert_int_equal(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, last_writer, 256, 100 * 1024),
        cudaSuccess);
    assert_int_equal(blocks, 2);
    assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, last_writer, 256, 0),
                     cudaSuccess);
    assert_int_equal(blocks, 8);
}

static void test_failures(void **state)
{
    (void)state;
    void *p;
    cudaStream_t stream;
    setenv("CUDA_EMULATOR_FAIL", "cudaMalloc:2,cudaLaunchKernelEx:1,cudaStreamSynchronize:3", 1);
    emulator_reset();
    assert_int_equal(cudaMalloc(&p, 16), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&p, 16), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(launch(last_writer, 1, 1, 0, NULL, device_words), cudaErrorLaunchFailure);
    assert_int_equal(launch(last_writer, 1, 1, 0, NULL, device_words), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void test_devices(void **state)
{
    (void)state;
    struct cudaDeviceProp p;
    int count, value;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 1);
    assert_int_equal(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    assert_string_equal(p.name, "emulated");
    assert_int_equal(p.major * 10 + p.minor, 90);
    assert_int_equal(p.multiProcessorCount, 4);
    assert_int_equal(p.sharedMemPerBlockOptin, 227 * 1024);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, 0), cudaSuccess);
    assert_int_equal(value, 50 * 1024 * 1024);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);

    setenv("CUDA_EMULATOR_CC", "7.5", 1);
    emulator_reset();
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 0),
                     cudaSuccess);
    assert_int_equal(value, 5);
    assert_int_equal(launch(last_writer, 1, 1, 0, NULL, device_words),
                     cudaErrorNoKernelImageForDevice);
    setenv("CUDA_EMULATOR_DRIVER", "12020", 1);
    emulator_reset();
    assert_int_equal(cudaDriverGetVersion(&value), cudaSuccess);
    assert_int_equal(value, 12020);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    unsetenv("CUDA_EMULATOR_DRIVER");
    setenv("CUDA_EMULATOR_DEVICES", "0", 1);
    emulator_reset();
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(test_indices),        TEST(test_shuffles),
        TEST(test_votes),          TEST(test_products),
        TEST(test_blocks),         TEST(test_poison),
        TEST(test_atomics),        TEST(test_named_barriers),
        TEST(test_cooperative),    TEST(test_copies_arrive_when_waited_for),
        TEST(test_early_launches), TEST(test_early_copies),
        TEST(test_bulk_copies),    TEST(test_bad_bulk_copies_abort),
        TEST(test_clusters),       TEST(test_arithmetic),
        TEST(test_races_show),     TEST(test_bad_kernels_abort),
        TEST(test_memory),         TEST(test_graphs),
        TEST(test_launch_limits),  TEST(test_failures),
        TEST(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
