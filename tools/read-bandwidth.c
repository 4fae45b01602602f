/* Measures how fast this machine's memory can be read: the roofline beside every decode figure.
 * usage: read-bandwidth [--threads T] [--megabytes M] [--passes P] [--compare FILE]
 * Prints one number: GB/s (1e9 bytes), the best of P passes over M megabytes with T threads. With
 * --compare a table: the first M megabytes of a file where they are mapped, and copies of them in
 * ordinary and in huge pages, on a cache line and off it; all take turns. */
#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "engine/compute/cpu/bandwidth.h"
#include "engine/memory/limits.h"
#include "engine/memory/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PLACES = 5 };

struct place {
    const char *name;
    const uint8_t *data;
    double best, sum;
};

static int compare(struct pool *pool, const char *file, size_t most, int64_t passes)
{
    struct error err;
    struct file_map map;
    struct pages huge = {0}, ordinary = {0};
    struct memory_use use;
    char line[2048];
    if (!file_map_open(file, &map, &err)) {
        fprintf(stderr, "read-bandwidth: %s\n", error_line(&err, line, sizeof line));
        return 1;
    }
    const size_t off = 13, bytes = map.length < most ? map.length : most;
    if (bytes <= off || !pages_new(bytes, PAGES_HUGE, &huge) ||
        !pages_new(bytes, PAGES_ORDINARY, &ordinary)) {
        fprintf(stderr,
                "read-bandwidth: the file is empty, or there is no memory for two copies\n");
        return 1;
    }
    memcpy(huge.data, map.data, bytes);
    memcpy(ordinary.data, map.data, bytes);
    memory_use_read(&use, true);
    struct place places[PLACES] = {
        {"mapped", map.data, 0, 0},
        {"copy, ordinary pages", ordinary.data, 0, 0},
        {"copy, huge pages", huge.data, 0, 0},
        {"mapped, 13 bytes off", map.data + off, 0, 0},
        {"copy, huge pages, 13 bytes off", (uint8_t *)huge.data + off, 0, 0}};
    for (int64_t pass = 0; pass < passes; pass++)
        for (int i = 0; i < PLACES; i++) {
            const double seconds =
                bandwidth_pass(pool, pool_threads(pool), places[i].data, bytes - off);
            const double rate = (double)(bytes - off) / seconds / 1e9;
            places[i].best = rate > places[i].best ? rate : places[i].best;
            places[i].sum += rate;
        }
    printf("%d threads, %.0f MB, %.0f MB of the copies in huge pages\n", pool_threads(pool),
           (double)bytes / 1e6, (double)use.huge / 1e6);
    for (int i = 0; i < PLACES; i++)
        printf("%-32s best %5.1f GB/s, mean %5.1f\n", places[i].name, places[i].best,
               places[i].sum / (double)passes);
    pages_free(&huge);
    pages_free(&ordinary);
    file_unmap(&map);
    return 0;
}

int main(int argc, char **argv)
{
    int64_t threads = 0, megabytes = 512, passes = 5;
    const char *file = NULL;
    const struct option_spec options[] = {
        {"--threads", OPTION_INT, false, "T", "Reading threads (default: one per core).", &threads,
         NULL, 1, 64},
        {"--megabytes", OPTION_INT, false, "M", "Size of the buffer (default 512).", &megabytes,
         NULL, 1, 65536},
        {"--passes", OPTION_INT, false, "P", "Passes; the best counts (default 5).", &passes, NULL,
         1, 1000},
        {"--compare", OPTION_TEXT, false, "FILE",
         "Compares the file's own pages with copies of it in ordinary and huge pages.", &file, NULL,
         0, 0},
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
    if (file != NULL) {
        if (!pool_new((int)threads, &pool, &err)) {
            fprintf(stderr, "read-bandwidth: %s\n", error_line(&err, line, sizeof line));
            return 1;
        }
        const int status = compare(pool, file, bytes, passes);
        pool_free(pool);
        return status;
    }
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
