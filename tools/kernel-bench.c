/* How fast the linear kernels stream weights: GB/s per instruction set, format, threads and rows,
 * beside a plain read of the same buffer a moment before, as a ratio in one run; multiply-adds per
 * second, and the time as a multiple of that of one row.
 *
 *   kernel-bench [MEGABYTES [INPUTS]]      (256 and 2048)
 *
 * Weights are random, in huge pages, and by default larger than the caches; a ratio near 1 means
 * that one row costs no more than reading its weights. */
#include "base/clock.h"
#include "base/number.h"
#include "engine/compute/cpu/bandwidth.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/cpu/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ROWS = 16, REPEATS = 15, HUGE_PAGE = 2 << 20 };

struct bench {
    const struct cpu_kernels *kernels;
    struct weight_matrix w;
    const void *x[MAX_ROWS];
    float *y;
    int rows;
    const uint8_t *buffer;
    size_t bytes;
};

static void linear_work(void *context, int thread, int threads)
{
    const struct bench *b = context;
    const int pieces = b->w.out / 8;
    const int begin = (int)((int64_t)pieces * thread / threads) * 8;
    const int end = (int)((int64_t)pieces * (thread + 1) / threads) * 8;
    const struct linear_call call = {.w = &b->w,
                                     .x = b->x,
                                     .rows = b->rows,
                                     .first = begin,
                                     .count = end - begin,
                                     .y = b->y,
                                     .y_stride = (size_t)b->w.out};
    const uint64_t mode = machine_float_enter();
    b->kernels->linear(ACTIVATIONS_BF16, &call);
    machine_float_leave(mode);
}

static double seconds_of(struct pool *pool, int threads, pool_work *work, struct bench *b)
{
    const int64_t start = clock_now_ns();
    pool_run(pool, threads, work, b);
    return clock_seconds(start);
}

/* Returns the seconds of the kernel; `one` are those of one row, 0 when this is it. */
static double measure(struct pool *pool, int threads, struct bench *b, const char *format,
                      double one)
{
    double best_read = INFINITY, best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        const double r = bandwidth_pass(pool, threads, b->buffer, b->bytes);
        const double k = seconds_of(pool, threads, linear_work, b);
        best_read = r < best_read ? r : best_read;
        best = k < best ? k : best;
    }
    const double gb = (double)b->bytes / 1e9;
    const double macs = (double)b->w.in * b->w.out * b->rows;
    printf("%-9s %-6s %7d %5d %10.1f %10.1f %7.2f %7.1f %9.2f\n", b->kernels->name, format, threads,
           b->rows, gb / best, gb / best_read, best_read / best, macs / best / 1e9,
           one > 0 ? best / one : 1.0);
    fflush(stdout);
    return best;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int main(int argc, char **argv)
{
    int64_t megabytes = 256, inputs = 2048;
    if (argc > 3 || (argc > 1 && !number_int64(argv[1], 1, 65536, &megabytes)) ||
        (argc > 2 && (!number_int64(argv[2], 32, 65536, &inputs) || inputs % 32 != 0))) {
        fprintf(stderr, "usage: kernel-bench [MEGABYTES [INPUTS, a multiple of 32]]\n");
        return 2;
    }
    const size_t bytes = ((size_t)megabytes + 1) / 2 * HUGE_PAGE;
    struct error err;
    char line[256];
    struct pool *pool;
    if (!pool_new(0, &pool, &err)) {
        fprintf(stderr, "%s\n", error_line(&err, line, sizeof line));
        return 1;
    }
    const size_t row = (size_t)inputs;
    const size_t most_outputs = bytes / (row / 2);
    uint8_t *buffer = aligned_alloc(HUGE_PAGE, bytes);
    const size_t stride = row * sizeof(float) + 64; /* as the backend's: not a power of two */
    uint8_t *prepared = aligned_alloc(64, MAX_ROWS * stride);
    float *values = malloc(row * sizeof *values);
    float *y = malloc(most_outputs * MAX_ROWS * sizeof *y);
    if (buffer == NULL || prepared == NULL || values == NULL || y == NULL) {
        fprintf(stderr, "OUT-OF-MEMORY\n");
        return 1;
    }
    madvise(buffer, bytes, MADV_HUGEPAGE); /* as weights are kept */
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < bytes; i += 8) {
        /* exponents of ordinary weights as bf16, any codes as NVFP4 */
        const uint64_t r = (next_random(&state) & 0x83ff83ff83ff83ffu) | 0x3c003c003c003c00u;
        memcpy(buffer + i, &r, 8);
    }

    printf("%-9s %-6s %7s %5s %10s %10s %7s %7s %9s\n", "kernels", "format", "threads", "rows",
           "GB/s", "read GB/s", "ratio", "GMAC/s", "times one");
    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    for (int i = count - 1; i >= 0; i--) {
        struct bench b = {.kernels = have[i], .y = y, .buffer = buffer, .bytes = bytes};
        const bool slow = i == 0; /* portable: a taste is enough */
        if (slow)
            b.bytes = bytes / 8;
        for (int r = 0; r < MAX_ROWS; r++) {
            uint8_t *to = prepared + (size_t)r * stride;
            for (size_t j = 0; j < row; j++)
                values[j] = (float)((int)(next_random(&state) % 256) - 128) / 64.0f;
            b.kernels->prepare(ACTIVATIONS_BF16, values, (int)inputs, to);
            b.x[r] = to;
        }
        static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
        for (int format = 0; format < 2; format++) {
            /* NVFP4: 9 bytes per 16 weights, codes first, then scales */
            const size_t out =
                format == 0 ? b.bytes / (row * 2) / 8 * 8 : b.bytes / (row / 16 * 9) / 8 * 8;
            b.w = (struct weight_matrix){.format = format == 0 ? WEIGHT_BF16 : WEIGHT_NVFP4,
                                         .out = (int)out,
                                         .in = (int)inputs,
                                         .data = buffer,
                                         .scales = buffer + out * row / 2};
            for (int threads = 1; threads <= pool_threads(pool); threads *= 2) {
                double one = 0;
                for (size_t r = 0; r < (slow ? 1 : sizeof rows / sizeof rows[0]); r++) {
                    b.rows = rows[r];
                    const double t =
                        measure(pool, threads, &b, format == 0 ? "bf16" : "nvfp4", one);
                    one = r == 0 ? t : one;
                }
            }
        }
    }
    pool_free(pool);
    free(buffer);
    free(prepared);
    free(values);
    free(y);
    return 0;
}
