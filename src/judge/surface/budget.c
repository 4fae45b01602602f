/* How many bytes the surface holds, and how many it may. */
#include "judge/surface/surface.h"
#include "judge/surface/walk.h"

#include <inttypes.h>
#include <string.h>

struct charge {
    const struct surface *s;
    const struct surface_entry *entry; /* that is being walked */
    bool capped;
    const char *tree;
    struct surface_size size;
};

static bool over(const struct charge *c, const char *name, const char *path, const char *what,
                 uint64_t bytes, int64_t most, struct error *err)
{
    error_set(err, name, "\"%s\": %s %" PRIu64 " bytes, the %slimit is %" PRId64, path, what, bytes,
              c->entry->exempt ? "exempt " : "", most);
    return error_at(err, c->tree, path, NULL);
}

static bool charge_file(struct charge *c, const char *path, uint64_t bytes, struct error *err)
{
    const struct surface *s = c->s;
    const bool exempt = c->entry->exempt;
    uint64_t *sum = exempt ? &c->size.exempt_bytes : &c->size.bytes;
    const int64_t file_max = exempt ? s->exempt_file_max : s->file_max;
    const int64_t total_max = exempt ? s->exempt_total_max : s->total_max;
    c->size.files++;
    if (c->capped && bytes > (uint64_t)file_max)
        return over(c, "SURFACE-FILE-TOO-LARGE", path, "it has", bytes, file_max, err);
    *sum += bytes;
    if (c->capped && *sum > (uint64_t)total_max)
        return over(c, "SURFACE-TOO-LARGE", path, "with it the surface has", *sum, total_max, err);
    return true;
}

static bool visit(void *context, const char *path, const struct stat *s, bool *descend,
                  struct error *err)
{
    struct charge *c = context;
    /* What is an entry of its own is charged there. */
    if (surface_find(c->s, path) != c->entry) {
        *descend = false;
        return true;
    }
    return !S_ISREG(s->st_mode) || charge_file(c, path, (uint64_t)s->st_size, err);
}

static bool walk_entries(struct charge *c, struct surface_size *out, struct error *err)
{
    bool ok = true;
    for (size_t i = 0; ok && i < c->s->entry_count; i++) {
        struct arena a = {0};
        c->entry = &c->s->entries[i];
        ok = walk_tree(&a, c->tree, c->entry->path, visit, c, err);
        arena_free(&a);
    }
    *out = c->size;
    return ok;
}

bool surface_check_budget(const struct surface *s, const char *tree, struct surface_size *out,
                          struct error *err)
{
    struct charge c = {.s = s, .capped = true, .tree = tree};
    if (!walk_entries(&c, out, err))
        return false;
    if (out->files > 0)
        return true;
    error_set(err, "SURFACE-EMPTY", "the tree holds no file of the editable surface");
    return error_at(err, tree, s->entries[0].path, NULL);
}

bool surface_measure_tree(const struct surface *s, const char *tree, struct surface_size *out,
                          struct error *err)
{
    struct charge c = {.s = s, .tree = tree};
    return walk_entries(&c, out, err);
}

bool surface_check_growth(const struct surface *s, const struct surface_size *before,
                          const struct surface_size *after, struct error *err)
{
    if (after->bytes <= before->bytes || after->bytes - before->bytes <= (uint64_t)s->growth_max)
        return true;
    error_set(err, "SURFACE-GROWTH-EXCEEDED",
              "the editable surface grew from %" PRIu64 " to %" PRIu64
              " bytes, by more than the %" PRId64 " allowed",
              before->bytes, after->bytes, s->growth_max);
    return error_at(err, s->manifest, s->entries[0].path, NULL);
}
