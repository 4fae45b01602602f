#include "engine/compute/cpu/bandwidth.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { WORDS = 32, PIECE = WORDS * 8 };

struct pass {
    const uint8_t *data;
    size_t pieces;
    _Atomic uint64_t sum; /* so that the reads cannot be left out */
};

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
sum_pieces(const uint8_t *data, size_t pieces)
{
    uint64_t sum[WORDS] = {0};
    for (size_t i = 0; i < pieces; i++) {
        uint64_t word[WORDS]; /* the weights' address may be any */
        memcpy(word, data + i * PIECE, sizeof word);
        for (int l = 0; l < WORDS; l++)
            sum[l] += word[l];
    }
    for (int l = 1; l < WORDS; l++)
        sum[0] += sum[l];
    return sum[0];
}

static void read_part(void *context, int thread, int threads)
{
    struct pass *p = context;
    const size_t begin = p->pieces * (size_t)thread / (size_t)threads;
    const size_t end = p->pieces * ((size_t)thread + 1) / (size_t)threads;
    atomic_fetch_add(&p->sum, sum_pieces(p->data + begin * PIECE, end - begin));
}

double bandwidth_pass(struct pool *p, int threads, const void *data, size_t bytes)
{
    struct pass pass = {.data = data, .pieces = bytes / PIECE};
    const int64_t start = clock_now_ns();
    pool_run(p, threads, read_part, &pass);
    return clock_seconds(start);
}
