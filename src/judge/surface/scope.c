/* The freeze of the trusted scope: an entry that reaches it would let a submission edit its own
 * judge. Letters are compared without their case, since a tree may lie on a file system that does
 * the same; and by device and inode, since a link gives a second name. */
#include "judge/surface/surface.h"

#include "base/file.h"

#include <string.h>
#include <sys/stat.h>

static char folded(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_below_folded(const char *path, const char *folder)
{
    while (*folder != '\0' && folded(*path) == folded(*folder))
        path++, folder++;
    return *folder == '\0' && (*path == '\0' || *path == '/');
}

/* Whether the file or folder itself stands among the parts of path, all below tree. */
static bool leads_through(struct arena *a, const char *tree, const char *path,
                          const struct stat *target)
{
    for (const char *end = path; end != NULL;) {
        end = strchr(end, '/');
        const char *part = end != NULL ? arena_strndup(a, path, (size_t)(end - path)) : path;
        struct stat s;
        if (stat(path_join(a, tree, part), &s) != 0)
            return false;
        if (s.st_dev == target->st_dev && s.st_ino == target->st_ino)
            return true;
        end = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static bool reaches(struct arena *a, const char *tree, const char *entry, const char *trusted)
{
    struct stat e, t;
    return is_below_folded(entry, trusted) || is_below_folded(trusted, entry) ||
           (stat(path_join(a, tree, trusted), &t) == 0 && leads_through(a, tree, entry, &t)) ||
           (stat(path_join(a, tree, entry), &e) == 0 && leads_through(a, tree, trusted, &e));
}

static bool check_entry(struct arena *a, const struct surface *s, const char *tree,
                        const char *entry, struct error *err)
{
    for (size_t i = 0; i < s->scope_count; i++) {
        if (!reaches(a, tree, entry, s->scope[i]))
            continue;
        error_set(err, "TRUSTED-SCOPE-EDITABLE",
                  "the editable entry \"%s\" is, holds or lies in the trusted path \"%s\"", entry,
                  s->scope[i]);
        return error_at(err, s->manifest, entry, NULL);
    }
    return true;
}

bool surface_check_scope(const struct surface *s, const char *tree, struct error *err)
{
    struct arena a = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < s->scope_count; i++) {
        struct stat t;
        if (stat(path_join(&a, tree, s->scope[i]), &t) == 0)
            continue;
        error_set(err, "TRUSTED-SCOPE-MISSING", "the trusted path \"%s\" is not in the tree",
                  s->scope[i]);
        ok = error_at(err, tree, s->scope[i], NULL);
    }
    for (size_t i = 0; ok && i < s->entry_count; i++)
        ok = check_entry(&a, s, tree, s->entries[i].path, err);
    for (size_t i = 0; ok && i < s->exempt_count; i++)
        ok = check_entry(&a, s, tree, s->exempt[i], err);
    arena_free(&a);
    return ok;
}
