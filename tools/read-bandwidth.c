/* Measures how fast this machine's memory can be read: the roofline beside every decode figure.
 * usage: read-bandwidth [--threads T] [--megabytes M] [--passes P]
 * Prints one number: GB/s (1e9 bytes), the best of P passes over M megabytes with T threads. */
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct part {
    const uint64_t *data;
    size_t words;
    uint64_t sum;
};

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
__attribute__((optimize("O3")))
#endif
static uint64_t
sum_words(const uint64_t *p, size_t n)
{
    uint64_t s[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (int l = 0; l < 32; l++)
            s[l] += p[i + l];
    uint64_t total = 0;
    for (int l = 0; l < 32; l++)
        total += s[l];
    return total;
}

static void *sum_part(void *argument)
{
    struct part *part = argument;
    part->sum = sum_words(part->data, part->words);
    return NULL;
}

int main(int argc, char **argv)
{
    int64_t threads = sysconf(_SC_NPROCESSORS_ONLN), megabytes = 512, passes = 5;
    const struct option_spec options[] = {
        {"--threads", OPTION_INT, false, "T", "Reading threads (default: one per core).", &threads,
         NULL, 1, 64},
        {"--megabytes", OPTION_INT, false, "M", "Size of the buffer (default 512).", &megabytes,
         NULL, 1, 65536},
        {"--passes", OPTION_INT, false, "P", "Passes; the best counts (default 5).", &passes, NULL,
         1, 1000},
    };
    const struct command command = {
        "read-bandwidth", "Measures memory read bandwidth in GB/s.", NULL, NULL,
        options,          sizeof options / sizeof *options};
    struct error err;
    switch (options_parse(&command, argc - 1, argv + 1, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return 0;
    case OPTIONS_ERROR: {
        char line[2048];
        fprintf(stderr, "read-bandwidth: %s\n", error_line(&err, line, sizeof line));
        return 2;
    }
    case OPTIONS_OK:
        break;
    }
    size_t bytes = (size_t)megabytes << 20;
    uint64_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        fprintf(stderr, "read-bandwidth: no memory for --megabytes %lld\n", (long long)megabytes);
        return 1;
    }
    madvise(data, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes / 8; i++)
        data[i] = i;
    struct part parts[64];
    double best = 0;
    uint64_t check = 0;
    for (int64_t pass = 0; pass < passes; pass++) {
        pthread_t ids[64];
        size_t share = bytes / 8 / (size_t)threads / 32 * 32;
        int64_t started = clock_now_ns();
        for (int64_t t = 0; t < threads; t++) {
            parts[t] = (struct part){data + (size_t)t * share, share, 0};
            if (t > 0 && pthread_create(&ids[t], NULL, sum_part, &parts[t]) != 0) {
                fprintf(stderr, "read-bandwidth: a thread could not be started\n");
                return 1;
            }
        }
        sum_part(&parts[0]);
        for (int64_t t = 1; t < threads; t++)
            pthread_join(ids[t], NULL);
        double seconds = clock_seconds(started);
        for (int64_t t = 0; t < threads; t++)
            check += parts[t].sum;
        double rate = (double)(share * 8 * (size_t)threads) / seconds / 1e9;
        if (rate > best)
            best = rate;
    }
    /* The sum is used, so that the reads cannot be left out. */
    if (check == 1)
        fprintf(stderr, "unlikely\n");
    printf("%.2f\n", best);
    return 0;
}
