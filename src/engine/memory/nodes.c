#include "engine/memory/nodes.h"

#include "engine/memory/system.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Numbers and ranges between commas, as the kernel writes them; visit each. */
static bool parse_list(const char *text, int most, void (*visit)(void *context, int n),
                       void *context)
{
    const char *at = text;
    while (*at && *at != '\n') {
        char *end;
        if (*at < '0' || *at > '9')
            return false;
        const long first = strtol(at, &end, 10);
        long last = first;
        at = end;
        if (*at == '-') {
            if (at[1] < '0' || at[1] > '9')
                return false;
            last = strtol(at + 1, &end, 10);
            at = end;
        }
        if (first > last || last >= most)
            return false;
        for (long i = first; i <= last; i++)
            visit(context, (int)i);
        if (*at == ',' && at[1] >= '0' && at[1] <= '9')
            at++;
        else if (*at && *at != '\n')
            return false;
    }
    return true;
}

static void set_bit(void *context, int n)
{
    *(uint64_t *)context |= (uint64_t)1 << n;
}

bool nodes_parse(const char *text, uint64_t *out)
{
    uint64_t bits = 0;
    if (!parse_list(text, NODES_MOST, set_bit, &bits))
        return false;
    *out = bits;
    return true;
}

enum { MOST_CORES = 8192 };

struct cores {
    cpu_set_t *all, *here; /* of the process; of them those of a node */
    size_t bytes;
};

static void add_core(void *context, int n)
{
    struct cores *c = context;
    if (CPU_ISSET_S((size_t)n, c->bytes, c->all))
        CPU_SET_S((size_t)n, c->bytes, c->here);
}

static bool cores_begin(struct cores *c)
{
    c->all = CPU_ALLOC(MOST_CORES);
    c->here = CPU_ALLOC(MOST_CORES);
    c->bytes = CPU_ALLOC_SIZE(MOST_CORES);
    return c->all != NULL && c->here != NULL && sched_getaffinity(0, c->bytes, c->all) == 0;
}

static void cores_end(struct cores *c)
{
    CPU_FREE(c->all);
    CPU_FREE(c->here);
}

/* Fills `here`; false when the node has no core of the process's. */
static bool cores_of_node(struct cores *c, int node)
{
    struct buffer path = {0}, text = {0};
    CPU_ZERO_S(c->bytes, c->here);
    buffer_printf(&path, "/sys/devices/system/node/node%d/cpulist", node);
    const bool known =
        system_read(path.data, &text) && parse_list(text.data, MOST_CORES, add_core, c);
    buffer_free(&path);
    buffer_free(&text);
    return known && CPU_COUNT_S(c->bytes, c->here) > 0;
}

/* What a control group's cpuset allows: "Mems_allowed_list:\t0-1". */
static uint64_t nodes_allowed(void)
{
    static const char key[] = "Mems_allowed_list:";
    struct buffer text = {0};
    uint64_t bits = UINT64_MAX;
    const char *at = system_read("/proc/self/status", &text) ? strstr(text.data, key) : NULL;
    if (at != NULL) {
        at += sizeof key - 1;
        at += strspn(at, " \t");
        if (!nodes_parse(at, &bits) || bits == 0)
            bits = UINT64_MAX;
    }
    buffer_free(&text);
    return bits;
}

uint64_t nodes_read(void)
{
    struct buffer text = {0};
    uint64_t memory = 0, usable = 0;
    if (!system_read("/sys/devices/system/node/has_memory", &text) ||
        !nodes_parse(text.data, &memory))
        memory = 0;
    buffer_free(&text);
    memory &= nodes_allowed();
    struct cores c;
    if (cores_begin(&c))
        for (int i = 0; i < NODES_MOST; i++)
            if (memory >> i & 1 && cores_of_node(&c, i))
                usable |= (uint64_t)1 << i;
    cores_end(&c);
    return usable;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t known;

static void read_nodes(void)
{
    known = nodes_read();
}

uint64_t nodes_usable(void)
{
    pthread_once(&once, read_nodes);
    return known;
}

static bool several(uint64_t nodes)
{
    return (nodes & (nodes - 1)) != 0;
}

bool nodes_spread(void *data, size_t bytes)
{
    const unsigned long mask = nodes_usable();
    return several(mask) && syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, &mask,
                                    (unsigned long)NODES_MOST + 1, 0) == 0;
}

void nodes_settle(int index)
{
    const uint64_t nodes = nodes_usable();
    if (!several(nodes))
        return;
    int turn = index % __builtin_popcountll(nodes), node = 0;
    while (!(nodes >> node & 1) || turn-- > 0)
        node++;
    struct cores c;
    if (cores_begin(&c) && cores_of_node(&c, node))
        sched_setaffinity(0, c.bytes, c.here);
    cores_end(&c);
}

void nodes_spread_begin(void)
{
    const unsigned long mask = nodes_usable();
    if (several(mask))
        syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &mask, (unsigned long)NODES_MOST + 1);
}

void nodes_spread_end(void)
{
    if (several(nodes_usable()))
        syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
}
