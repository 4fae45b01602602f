/* Measures how fast this machine's memory can be read: the roofline beside every decode figure.
 * usage: read-bandwidth [--threads T] [--megabytes M] [--passes P]
 * Prints one number: GB/s (1e9 bytes), the best of P passes over M megabytes with T threads. */
#include "base/error.h"
#include "base/options.h"
#include "engine/compute/cpu/bandwidth.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
    int64_t threads = 0, megabytes = 512, passes = 5;
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
    struct pool *pool = NULL;
    char line[2048];
    switch (options_parse(&command, argc - 1, argv + 1, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return 0;
    case OPTIONS_ERROR:
        fprintf(stderr, "read-bandwidth: %s\n", error_line(&err, line, sizeof line));
        return 2;
    case OPTIONS_OK:
        break;
    }
    const size_t bytes = (size_t)megabytes << 20;
    uint64_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        fprintf(stderr, "read-bandwidth: no memory for --megabytes %lld\n", (long long)megabytes);
        return 1;
    }
    if (!pool_new((int)threads, &pool, &err)) {
        fprintf(stderr, "read-bandwidth: %s\n", error_line(&err, line, sizeof line));
        return 1;
    }
    madvise(data, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes / 8; i++)
        data[i] = i;
    double best = 0;
    for (int64_t pass = 0; pass < passes; pass++) {
        const double seconds = bandwidth_pass(pool, pool_threads(pool), data, bytes);
        const double rate = (double)bytes / seconds / 1e9;
        best = rate > best ? rate : best;
    }
    pool_free(pool);
    printf("%.2f\n", best);
    return 0;
}
