/* Memory: how much, how fast, in which pages, and whether it may be paged out. */
#include "arena/doctor/examine.h"

#include "base/number.h"

#include <string.h>

/* Of a line such as "MemTotal:  123 kB"; 0 where there is none. */
static uint64_t kilobytes_of(const struct patient *p, const char *text, const char *key)
{
    const char *value = text_value(p->a, text, key);
    uint64_t kb = 0;
    if (value)
        number_uint64(arena_strndup(p->a, value, strcspn(value, " ")), UINT64_MAX / 1024, &kb);
    return kb;
}

static uint64_t meminfo(const struct patient *p, const char *key)
{
    struct buffer text = {0};
    uint64_t kb = 0;
    if (machine_read(p->m, "/proc/meminfo", &text))
        kb = kilobytes_of(p, text.data, key);
    buffer_free(&text);
    return kb * 1024;
}

void examine_memory(const struct patient *p)
{
    const struct engine_facts *e = &p->m->engine;
    const char *total = bytes_text(p->a, (double)meminfo(p, "MemTotal"));
    const char *left = bytes_text(p->a, (double)e->memory);
    const bool data = e->limit_data != UINT64_MAX, addresses = e->limit_addresses != UINT64_MAX;
    /* The engine's own rule for copying weights: a tenth to spare (docs/memory.md). */
    if (p->pinned_bytes > 0 && (double)p->pinned_bytes * 1.1 > (double)e->memory)
        finding_add(
            p->f, "memory", FINDING_WARN, "end what holds memory, or take a machine with more",
            "%s of %s left by %s: the track's %s do not fit with a tenth to spare, so weights "
            "stay in files and parts of them may be read again for each token",
            left, total, e->memory_source, bytes_text(p->a, (double)p->pinned_bytes));
    else if (data || addresses)
        finding_add(p->f, "memory", FINDING_WARN,
                    addresses
                        ? data ? "ulimit -v unlimited; ulimit -d unlimited" : "ulimit -v unlimited"
                        : "ulimit -d unlimited",
                    "%s of %s left, but this shell limits a program to %s of %s", left, total,
                    bytes_text(p->a, (double)(addresses ? e->limit_addresses : e->limit_data)),
                    addresses ? "addresses (RLIMIT_AS)" : "data (RLIMIT_DATA)");
    else if (e->memory < (uint64_t)1 << 30)
        finding_add(p->f, "memory", FINDING_WARN, "ps aux --sort=-rss | head shows who holds it",
                    "%s of %s left by %s: the bundled model fits, no other does", left, total,
                    e->memory_source);
    else
        finding_add(p->f, "memory", FINDING_OK, NULL, "%s of %s left by %s", left, total,
                    e->memory_source);
}

bool examine_memory_rate(const struct patient *p)
{
    enum { SLOW = 5 }; /* GB/s: below one channel of any memory that AVX2 processors have */
    struct memory_rate r;
    struct error err = {0};
    if (!p->m->read_memory(p->m->context, 0.4, &r, &err)) {
        if (strcmp(err.name, "INTERRUPTED") == 0)
            return false;
        finding_add(p->f, "memory-bandwidth", FINDING_WARN, NULL, "not measured: %s", err.message);
        return true;
    }
    const double rate = r.bytes_per_second / 1e9;
    if (rate < SLOW)
        finding_add(p->f, "memory-bandwidth", FINDING_WARN,
                    "see load and processors; then run this again",
                    "%.1f GB/s read by %d threads, over %s: little for any machine", rate,
                    r.threads, bytes_text(p->a, (double)r.bytes));
    else
        finding_add(p->f, "memory-bandwidth", FINDING_OK, NULL,
                    "%.1f GB/s read by %d threads, over %s", rate, r.threads,
                    bytes_text(p->a, (double)r.bytes));
    return true;
}

void examine_huge_pages(const struct patient *p)
{
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    const char *line = machine_line(p->m, p->a, file);
    const char *chosen = line ? strchr(line, '[') : NULL;
    const char *word = chosen ? arena_strndup(p->a, chosen + 1, strcspn(chosen + 1, "]")) : NULL;
    uint64_t reserved = 0;
    struct buffer text = {0};
    if (machine_read(p->m, "/proc/meminfo", &text)) {
        const uint64_t pages = kilobytes_of(p, text.data, "HugePages_Free"); /* no unit there */
        reserved = pages * kilobytes_of(p, text.data, "Hugepagesize") * 1024;
    }
    buffer_free(&text);
    if (!word)
        finding_add(p->f, "huge-pages", FINDING_WARN, "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
                    "this kernel has no transparent huge pages: reading weights is slower");
    else if (strcmp(word, "never") == 0)
        finding_add(p->f, "huge-pages", FINDING_WARN,
                    arena_printf(p->a, "echo madvise | sudo tee %s", file),
                    "transparent huge pages are off (never): reading weights is slower");
    else if (reserved > (uint64_t)1 << 30)
        finding_add(
            p->f, "huge-pages", FINDING_WARN, "echo 0 | sudo tee /proc/sys/vm/nr_hugepages",
            "%s: the engine asks for them; but %s are set aside as fixed huge pages, which it "
            "does not use",
            word, bytes_text(p->a, (double)reserved));
    else
        finding_add(p->f, "huge-pages", FINDING_OK, NULL, "%s: the engine asks for them", word);
}

void examine_swap(const struct patient *p)
{
    enum { WORTH_A_WORD = 64 << 20 };
    const uint64_t total = meminfo(p, "SwapTotal"), unused = meminfo(p, "SwapFree");
    const uint64_t used = total > unused ? total - unused : 0;
    if (total == 0)
        finding_add(p->f, "swap", FINDING_OK, NULL, "none");
    else if (used > WORTH_A_WORD)
        finding_add(
            p->f, "swap", FINDING_WARN, "sudo swapoff -a && sudo swapon -a",
            "%s of %s in use: memory was short, and what comes back from there takes the disk",
            bytes_text(p->a, (double)used), bytes_text(p->a, (double)total));
    else if (p->pinned_bytes > 0 && p->m->engine.lockable < p->pinned_bytes)
        finding_add(
            p->f, "swap", FINDING_WARN,
            "ulimit -l unlimited (as root; for good: memlock in /etc/security/limits.conf), "
            "or sudo swapoff -a",
            "%s, and this shell may lock %s only: the track's weights can be paged out",
            bytes_text(p->a, (double)total), bytes_text(p->a, (double)p->m->engine.lockable));
    else
        finding_add(p->f, "swap", FINDING_OK, NULL, "%s, hardly in use",
                    bytes_text(p->a, (double)total));
}
