#include "engine/model/weights.h"

#include "engine/checkpoint/pack.h"
#include "engine/compute/trace.h"
#include "engine/memory/cores.h"
#include "engine/memory/nodes.h"

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

bool weights_load(struct checkpoint *c, const struct memory_request *request,
                  const struct memory_plan *plan, int threads, struct error *err)
{
    bool here = true;
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
