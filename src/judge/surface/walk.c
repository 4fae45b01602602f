#include "judge/surface/walk.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_DEPTH_MAX = 200 };

struct walk {
    struct arena *arena;
    const char *tree;
    walk_visit *visit;
    void *context;
    struct error *err;
};

static bool unreadable(const struct walk *w, const char *path, const char *why)
{
    error_set(w->err, "SURFACE-UNREADABLE", "\"%s\" cannot be read: %s", path, why);
    return error_at(w->err, path_join(w->arena, w->tree, path), NULL, NULL);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names in a folder, sorted. */
static bool list_names(const struct walk *w, const char *path, const char ***out, size_t *count)
{
    size_t room = 64;
    DIR *d = opendir(*path != '\0' ? path_join(w->arena, w->tree, path) : w->tree);
    if (d == NULL)
        return unreadable(w, path, strerror(errno));
    *out = arena_array(w->arena, room, sizeof **out);
    *count = 0;
    const struct dirent *e;
    errno = 0;
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (*count == room) {
            const char **wider = arena_array(w->arena, room * 2, sizeof *wider);
            memcpy(wider, *out, room * sizeof *wider);
            *out = wider;
            room *= 2;
        }
        (*out)[(*count)++] = arena_strdup(w->arena, e->d_name);
    }
    const int failed = errno;
    closedir(d);
    if (failed != 0)
        return unreadable(w, path, strerror(failed));
    qsort(*out, *count, sizeof **out, by_name);
    return true;
}

static bool walk_folder(const struct walk *w, const char *path, int depth);

static bool walk_one(const struct walk *w, const char *path, const struct stat *s, int depth)
{
    bool descend = true;
    return w->visit(w->context, path, s, &descend, w->err) &&
           (!S_ISDIR(s->st_mode) || !descend || walk_folder(w, path, depth));
}

static bool walk_folder(const struct walk *w, const char *path, int depth)
{
    const char **names = NULL;
    size_t count = 0;
    if (depth > WALK_DEPTH_MAX)
        return unreadable(w, path, "it lies deeper than 200 folders");
    if (!list_names(w, path, &names, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *child = *path != '\0' ? path_join(w->arena, path, names[i]) : names[i];
        struct stat s;
        if (lstat(path_join(w->arena, w->tree, child), &s) != 0)
            return unreadable(w, child, strerror(errno));
        if (!walk_one(w, child, &s, depth + 1))
            return false;
    }
    return true;
}

bool walk_tree(struct arena *a, const char *tree, const char *path, walk_visit *visit,
               void *context, struct error *err)
{
    const struct walk w = {a, tree, visit, context, err};
    struct stat s = {0};
    if (*path == '\0')
        return walk_folder(&w, path, 0);
    for (const char *end = path; end != NULL;) {
        end = strchr(end, '/');
        const char *part = end != NULL ? arena_strndup(a, path, (size_t)(end - path)) : path;
        if (lstat(path_join(a, tree, part), &s) != 0)
            return errno == ENOENT || errno == ENOTDIR || unreadable(&w, part, strerror(errno));
        if (end != NULL && !S_ISDIR(s.st_mode))
            return true;
        end = end != NULL ? end + 1 : NULL;
    }
    return walk_one(&w, path, &s, 0);
}
