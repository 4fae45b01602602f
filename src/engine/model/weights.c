#include "engine/model/weights.h"

#include "base/buffer.h"
#include "engine/checkpoint/pack.h"
#include "engine/compute/trace.h"
#include "engine/memory/cores.h"
#include "engine/memory/nodes.h"

#include <string.h>
#include <sys/mman.h>

/* Brings the files into memory before anything is timed. Advice only: failure changes nothing. */
static bool populate(const struct checkpoint *c)
{
    bool populated = true;
    nodes_spread_begin();
    for (size_t i = 0; i < c->shard_count; i++) {
        const struct file_map *map = &c->shards[i].map;
        if (map->length == 0)
            continue;
#ifdef MADV_POPULATE_READ
        if (madvise((void *)(uintptr_t)map->data, map->length, MADV_POPULATE_READ) == 0)
            continue;
#endif
        populated = false;
        madvise((void *)(uintptr_t)map->data, map->length, MADV_WILLNEED);
    }
    nodes_spread_end();
    return populated;
}

static bool on_cache_lines(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->tensor_count; i++)
        if ((uintptr_t)c->tensors[i].data % PACK_ALIGN != 0)
            return false;
    return true;
}

static void trace_pages(const struct checkpoint *c)
{
    struct memory_use use;
    if (!trace_on)
        return;
    memory_use_read(&use, true);
    const bool small = c->packed.bytes < (size_t)2 << 20;
    if (c->packed.data == NULL)
        trace_fell_back(TRACE_HUGE_PAGES, "the low memory profile leaves them to the files");
    else if (small || use.huge < c->packed.bytes / 10 * 8)
        trace_fell_back(TRACE_HUGE_PAGES, small ? "a model takes less than one"
                                                : "the kernel has none to give, or may not");
    else
        trace_ran(TRACE_HUGE_PAGES);
}

/* "x.scales" or "x.biases" of a quantised "x.weight": counted with it. */
static bool is_counted_elsewhere(const struct checkpoint *c, const struct tensor *t)
{
    static const char *const parts[] = {".scales", ".biases"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[512];
        const size_t length = strlen(t->name) - strlen(parts[i]);
        if (!text_ends(t->name, parts[i]) || length + sizeof ".weight" > sizeof name)
            continue;
        memcpy(name, t->name, length);
        memcpy(name + length, ".weight", sizeof ".weight");
        const struct tensor *codes = checkpoint_find(c, name);
        return codes && codes->dtype == DTYPE_U32;
    }
    return false;
}

/* Is it affine (it has biases), or nvfp4? */
static bool is_affine(const struct checkpoint *c, const struct tensor *t)
{
    char name[512];
    const size_t length = strlen(t->name) - strlen(".weight");
    if (!text_ends(t->name, ".weight") || length + sizeof ".biases" > sizeof name)
        return false;
    memcpy(name, t->name, length);
    memcpy(name + length, ".biases", sizeof ".biases");
    return checkpoint_find(c, name) != NULL;
}

static uint64_t device_bytes_of(const struct checkpoint *c, const struct compute_options *o,
                                const struct tensor *t)
{
    enum { AFFINE_CODES = 4, NVFP4_CODES = 8, MOST_INPUTS = 1 << 24 };
    if (is_counted_elsewhere(c, t))
        return 0;
    const int64_t last = t->rank > 0 ? t->shape[t->rank - 1] : 0;
    if (t->rank < 2 || last < 1 || last > MOST_INPUTS ||
        (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_U32))
        return t->bytes;
    const uint64_t rows = t->bytes / ((uint64_t)last * dtype_size(t->dtype));
    const bool affine = t->dtype == DTYPE_U32 && is_affine(c, t);
    const enum weight_format format = t->dtype == DTYPE_BF16 ? WEIGHT_BF16
                                      : affine               ? WEIGHT_INT8_AFFINE32
                                                             : WEIGHT_NVFP4;
    const int codes = t->dtype == DTYPE_BF16 ? 1 : affine ? AFFINE_CODES : NVFP4_CODES;
    return rows * compute_matrix_bytes(o, format, 1, (int)last * codes);
}

/* With each tensor's beginning on a boundary. */
static uint64_t device_bytes(const struct checkpoint *c, const struct compute_options *o)
{
    enum { BOUNDARY = 256, PARTS = 3 };
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->tensor_count; i++)
        bytes += device_bytes_of(c, o, &c->tensors[i]) + BOUNDARY * PARTS;
    return bytes;
}

bool weights_on_device(const struct compute_options *o)
{
    uint64_t available;
    char device[96];
    return compute_device_memory(o, &available, device);
}

bool weights_plan(const struct checkpoint *c, const struct compute_options *o,
                  const struct memory_request *request, const struct memory_need *n,
                  struct memory_plan *out, struct error *err)
{
    struct memory_need need = *n;
    struct memory_limits limits;
    uint64_t available;
    char device[96];
    if (!compute_device_memory(o, &available, device)) {
        need.weights = checkpoint_packed_bytes(c);
        memory_limits_read(&limits);
        return memory_plan_make(request->profile, &need, &limits, out, err);
    }
    need.weights = device_bytes(c, o);
    if (!memory_plan_device(request->profile, &need, device, available, out, err))
        return false;
    if (request->destination)
        request->destination(request->context, device);
    return true;
}

void weights_let_go(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->shard_count; i++) {
        const struct file_map *map = &c->shards[i].map;
        if (map->length > 0)
            madvise((void *)(uintptr_t)map->data, map->length, MADV_DONTNEED);
    }
}

bool weights_load(struct checkpoint *c, const struct memory_request *request,
                  const struct memory_plan *plan, int threads, struct error *err)
{
    bool here = true;
    if (plan->device)
        return true;
    if (plan->profile == MEMORY_FULL) {
        const struct pack_options o = {.threads = threads > 0 ? threads : cores_allowed(),
                                       .progress = request->progress,
                                       .context = request->context};
        if (!checkpoint_pack(c, &o, err))
            return false;
        if (plan->lock)
            pages_lock(&c->packed);
    } else {
        here = plan->fits && populate(c);
    }
    if (here)
        trace_ran(TRACE_POPULATED);
    else
        trace_fell_back(TRACE_POPULATED, plan->fits ? "the kernel cannot populate a mapping"
                                                    : "the weights take more memory than is left");
    if (on_cache_lines(c))
        trace_ran(TRACE_ALIGNED);
    else
        trace_fell_back(TRACE_ALIGNED, "the files' headers are not padded: wide loads cross lines");
    trace_pages(c);
    return true;
}
