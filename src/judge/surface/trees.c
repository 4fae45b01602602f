/* The gate on what lies outside the surface, between two trees; and the digest of a tree. */
#include "judge/surface/surface.h"
#include "judge/surface/walk.h"

#include "base/buffer.h"
#include "base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum entry_tag { TAG_FILE = 0, TAG_LINK = 1, TAG_OTHER = 2 };

struct tree_entry {
    const char *path;
    enum entry_tag tag;
    struct stat s;
};
struct tree_list {
    struct arena *arena;
    const struct surface *surface; /* what lies in it is left out; NULL: nothing is */
    struct tree_entry *items;
    size_t count, room;
};

static bool collect(void *context, const char *path, const struct stat *s, bool *descend,
                    struct error *err)
{
    struct tree_list *l = context;
    (void)err;
    if (surface_is_left_out(path) ||
        (l->surface != NULL && surface_find(l->surface, path) != NULL)) {
        *descend = false;
        return true;
    }
    if (S_ISDIR(s->st_mode))
        return true;
    if (l->count == l->room) {
        l->room = l->room > 0 ? l->room * 2 : 256;
        l->items = memory_realloc(l->items, l->room * sizeof *l->items);
    }
    l->items[l->count++] = (struct tree_entry){.path = path,
                                               .tag = S_ISREG(s->st_mode)   ? TAG_FILE
                                                      : S_ISLNK(s->st_mode) ? TAG_LINK
                                                                            : TAG_OTHER,
                                               .s = *s};
    return true;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tree_entry *)a)->path, ((const struct tree_entry *)b)->path);
}

/* Names in a folder are sorted, whole paths not yet: "a-b" stands before "a/b". */
static bool list_tree(struct tree_list *l, const char *tree, struct error *err)
{
    if (!walk_tree(l->arena, tree, "", collect, l, err))
        return false;
    if (l->count > 0)
        qsort(l->items, l->count, sizeof *l->items, by_path);
    return true;
}

static bool unreadable(const char *path, const char *name, const char *why, struct error *err)
{
    error_set(err, "SURFACE-UNREADABLE", "\"%s\" cannot be read: %s", name, why);
    return error_at(err, path, NULL, NULL);
}

static bool hash_content(struct sha256 *h, const char *path, const struct tree_entry *e,
                         struct error *err)
{
    if (e->tag == TAG_FILE) {
        struct file_map map;
        struct error inner;
        if (!file_map_open(path, &map, &inner))
            return unreadable(path, e->path, inner.message, err);
        sha256_update(h, map.data, map.length);
        file_unmap(&map);
    } else if (e->tag == TAG_LINK) {
        char target[4096];
        const ssize_t n = readlink(path, target, sizeof target);
        if (n < 0)
            return unreadable(path, e->path, strerror(errno), err);
        sha256_update(h, target, (size_t)n);
    } else {
        const uint64_t kind[] = {e->s.st_mode & S_IFMT, e->s.st_rdev};
        sha256_update(h, kind, sizeof kind);
    }
    return true;
}

static bool hash_entry(struct arena *a, const char *tree, const struct tree_entry *e,
                       uint8_t out[SHA256_BYTES], struct error *err)
{
    const uint8_t tag = (uint8_t)e->tag;
    struct sha256 *h = sha256_begin();
    sha256_update(h, &tag, 1);
    const bool ok = hash_content(h, path_join(a, tree, e->path), e, err);
    sha256_finish(h, out);
    return ok;
}

static bool diverges(const char *tree, const char *path, const char *how, struct error *err)
{
    error_set(err, "write-divergence",
              "\"%s\" was %s outside the modifiable surface (editablePaths)", path, how);
    return error_at(err, tree, NULL, NULL);
}

struct pair_of_trees {
    struct arena *arena;
    const char *baseline, *candidate;
};

static bool check_same(const struct pair_of_trees *p, const struct tree_entry *was,
                       const struct tree_entry *is, struct error *err)
{
    uint8_t a[SHA256_BYTES], b[SHA256_BYTES];
    if (was->tag != is->tag || was->s.st_size != is->s.st_size)
        return diverges(p->candidate, is->path, "changed", err);
    if (was->s.st_dev == is->s.st_dev && was->s.st_ino == is->s.st_ino)
        return true; /* one file under two names */
    if (!hash_entry(p->arena, p->baseline, was, a, err) ||
        !hash_entry(p->arena, p->candidate, is, b, err))
        return false;
    return memcmp(a, b, sizeof a) == 0 || diverges(p->candidate, is->path, "changed", err);
}

static bool compare(const struct pair_of_trees *p, const struct tree_list *was,
                    const struct tree_list *is, struct error *err)
{
    size_t i = 0, j = 0;
    while (i < was->count || j < is->count) {
        const int order = i == was->count  ? 1
                          : j == is->count ? -1
                                           : strcmp(was->items[i].path, is->items[j].path);
        if (order < 0)
            return diverges(p->candidate, was->items[i].path, "deleted", err);
        if (order > 0)
            return diverges(p->candidate, is->items[j].path, "added", err);
        if (!check_same(p, &was->items[i++], &is->items[j++], err))
            return false;
    }
    return true;
}

bool surface_check_trees(const struct surface *s, const char *baseline, const char *candidate,
                         struct error *err)
{
    struct arena a = {0};
    struct tree_list was = {.arena = &a, .surface = s}, is = was;
    const struct pair_of_trees p = {&a, baseline, candidate};
    const bool ok = list_tree(&was, baseline, err) && list_tree(&is, candidate, err) &&
                    compare(&p, &was, &is, err);
    free(was.items);
    free(is.items);
    arena_free(&a);
    return ok;
}

bool surface_tree_sha256(const char *tree, char out[SHA256_HEX], struct error *err)
{
    struct arena a = {0};
    struct tree_list list = {.arena = &a};
    uint8_t digest[SHA256_BYTES];
    struct sha256 *h = sha256_begin();
    bool ok = list_tree(&list, tree, err);
    for (size_t i = 0; ok && i < list.count; i++) {
        const struct tree_entry *e = &list.items[i];
        ok = hash_entry(&a, tree, e, digest, err);
        sha256_update(h, e->path, strlen(e->path) + 1);
        sha256_update(h, digest, sizeof digest);
        sha256_update(h, "", 1);
    }
    sha256_finish(h, digest);
    text_hex(out, digest, sizeof digest);
    free(list.items);
    arena_free(&a);
    return ok;
}
