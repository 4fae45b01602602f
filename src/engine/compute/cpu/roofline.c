#include "engine/compute/roofline.h"

#include "base/clock.h"
#include "engine/compute/cpu/backend.h"
#include "engine/compute/cpu/bandwidth.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/cpu/peak.h"

#include <math.h>
#include <string.h>

static float portable_dense(int64_t rounds)
{
    float acc[PEAK_CHAINS], w = 0.5f, x = 0.25f;
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = (float)i;
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+m"(w), "+m"(x)); /* values that are not known ahead */
        for (int i = 0; i < PEAK_CHAINS; i++)
            acc[i] = fmaf(w, x, acc[i]);
    }
    float sum = 0;
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum += acc[i];
    return sum;
}

static float portable_mixed(int64_t rounds)
{
    float acc[PEAK_CHAINS], c = 0.5f, x = 0.25f, s = 0.125f;
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = (float)i;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < PEAK_CHAINS; i++) {
            __asm__ volatile("" : "+m"(c), "+m"(x), "+m"(s));
            acc[i] = fmaf(fmaf(c, x, c * x), s, acc[i]);
        }
    float sum = 0;
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum += acc[i];
    return sum;
}

const struct peak_loops peak_loops_portable = {.name = "portable",
                                               .dense_instruction = "fmaf",
                                               .mixed_instruction = "fmaf, multiply",
                                               .dense = portable_dense,
                                               .mixed = portable_mixed,
                                               .dense_flops = PEAK_CHAINS * 2,
                                               .mixed_flops = PEAK_CHAINS * 4};

static const struct peak_loops *const all_loops[] = {
    &peak_loops_portable,
#if defined(__x86_64__)
    &peak_loops_avx2,
    &peak_loops_avx512,
#elif defined(__aarch64__)
    &peak_loops_neon,
#endif
};

double cpu_roofline_read(struct compute *c, const void *data, size_t bytes)
{
    return bandwidth_pass(c->pool, pool_threads(c->pool), data, bytes);
}

struct peak_work {
    peak_loop *loop;
    int64_t rounds;
    _Alignas(64) float results[POOL_MAX_THREADS]; /* written, so that no loop is left out */
};

static void run_loop(void *context, int thread, int threads)
{
    (void)threads;
    struct peak_work *w = context;
    w->results[thread] = w->loop(w->rounds);
}

/* The best of a few runs of about 20 ms. */
static double measure(struct compute *c, peak_loop *loop, double flops)
{
    enum { RUNS = 10 };
    const double least = 0.02;
    const int threads = pool_threads(c->pool);
    struct peak_work w = {.loop = loop, .rounds = 1000};
    double best = 0;
    for (int run = 0; run < RUNS;) {
        const int64_t start = clock_now_ns();
        pool_run(c->pool, threads, run_loop, &w);
        const double seconds = clock_seconds(start);
        if (seconds < least) {
            w.rounds *= seconds > 0 && seconds * 2 > least ? 2 : 4;
            continue;
        }
        const double rate = flops * (double)w.rounds * threads / seconds;
        best = rate > best ? rate : best;
        run++;
    }
    return best;
}

struct roofline_peak cpu_roofline_peak(struct compute *c)
{
    const struct peak_loops *p = all_loops[0];
    for (size_t i = 0; i < sizeof all_loops / sizeof *all_loops; i++)
        if (strcmp(all_loops[i]->name, cpu_kernels_name(c)) == 0)
            p = all_loops[i];
    const uint64_t mode = machine_float_enter();
    const struct roofline_peak peak = {.dense_instruction = p->dense_instruction,
                                       .mixed_instruction = p->mixed_instruction,
                                       .dense_flops = measure(c, p->dense, p->dense_flops),
                                       .mixed_flops = measure(c, p->mixed, p->mixed_flops)};
    machine_float_leave(mode);
    return peak;
}
