/* What the machine says of itself and of this process. */
#include "base/file.h"
#include "base/number.h"
#include "engine/serve/bench.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages of one file that are in memory, and all. */
static void count_pages(int fd, size_t length, uint64_t *resident, uint64_t *all)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (length + page - 1) / page;
    if (length == 0)
        return;
    void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *in = memory_alloc(pages);
    if (map != MAP_FAILED && mincore(map, length, in) == 0) {
        *all += pages;
        for (size_t i = 0; i < pages; i++)
            *resident += in[i] & 1;
    }
    if (map != MAP_FAILED)
        munmap(map, length);
    free(in);
}

double bench_resident_share(const char *folder, bool ask)
{
    uint64_t resident = 0, all = 0;
    struct arena a = {0};
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (!text_ends(e->d_name, ".safetensors"))
            continue;
        const int fd = open(path_join(&a, folder, e->d_name), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            continue;
        const off_t length = lseek(fd, 0, SEEK_END);
        if (ask && length > 0)
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (length > 0)
            count_pages(fd, (size_t)length, &resident, &all);
        close(fd);
    }
    if (d)
        closedir(d);
    arena_free(&a);
    return all > 0 ? (double)resident / (double)all : 0;
}

static uint64_t status_bytes(const char *text, const char *key)
{
    const char *at = text ? strstr(text, key) : NULL;
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

void bench_read_memory(struct bench_result *r)
{
    struct buffer text = {0};
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    char piece[4096];
    ssize_t n;
    while (fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0)
        buffer_append(&text, piece, (size_t)n);
    if (fd >= 0)
        close(fd);
    r->resident_bytes = status_bytes(text.data, "VmRSS:");
    r->resident_anonymous = status_bytes(text.data, "RssAnon:");
    r->resident_file = status_bytes(text.data, "RssFile:");
    r->resident_peak = status_bytes(text.data, "VmHWM:");
    buffer_free(&text);
}

static uint64_t positive(long value)
{
    return value > 0 ? (uint64_t)value : 0;
}

/* The largest cache of the first core, as the kernel knows it: what cpuid says of a whole socket is
 * not a virtual machine's. */
static uint64_t last_cache(void)
{
    uint64_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[96], text[32] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            break;
        const ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        char *unit = text;
        const uint64_t size = n > 0 ? strtoull(text, &unit, 10) : 0;
        const uint64_t bytes = size << (*unit == 'M' ? 20 : *unit == 'K' ? 10 : 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void bench_read_device(struct compute *c, struct bench_result *r)
{
    const uint64_t most = (uint64_t)2 << 30; /* far beyond any cache, long beside a launch */
    r->on_device = roofline_device(c, &r->device);
    if (!r->on_device)
        return;
    r->cache_bytes = r->device.cache_bytes;
    r->buffer_bytes = r->device.memory_free / 4 < most ? r->device.memory_free / 4 : most;
    r->buffer_bytes = r->buffer_bytes / 4096 * 4096;
    const double seconds = roofline_copy(c, r->buffer_bytes / 2);
    r->copy_rate = seconds > 0 ? (double)(r->buffer_bytes / 2) / seconds : 0;
}

void bench_read_machine(struct bench_result *r)
{
    cpu_set_t set;
    r->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    r->page_bytes = positive(sysconf(_SC_PAGESIZE));
    r->memory_bytes = positive(sysconf(_SC_PHYS_PAGES)) * r->page_bytes;
    r->cache_bytes = last_cache();
}
