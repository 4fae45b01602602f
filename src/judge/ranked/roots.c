#include "judge/ranked/roots.h"

#include "base/buffer.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As many links as Linux follows in one path. */
enum { LINKS_MAX = 40, PARTS_MAX = 256 };

/* What is looked for, and the names of its refusals. */
struct wanted {
    const char *flag, *what, *not_relative, *missing;
};
static const struct wanted wanted_engine = {
    "--engine", "the engine", "BASELINE-ENGINE-NOT-ROOT-RELATIVE", "BASELINE-WORKSPACE-NO-ENGINE"};
static const struct wanted wanted_weights = {"--weights", "the weights folder",
                                             "BASELINE-WEIGHTS-NOT-ROOT-RELATIVE",
                                             "BASELINE-WORKSPACE-NO-WEIGHTS"};

static const struct wanted wanted_tree = {"--engine-tree", "a folder of the engine",
                                          "BASELINE-ENGINE-NOT-ROOT-RELATIVE",
                                          "BASELINE-WORKSPACE-NO-ENGINE"};

struct walk {
    const struct wanted *w;
    const char *root, *relative;
    struct arena *a;
    struct error *err;
    const char *parts[PARTS_MAX]; /* below the root, links resolved */
    size_t count;
    int links;
};

static bool refuse(const struct walk *k, const char *name, const char *why)
{
    error_set(k->err, name, "%s %s", k->w->what, why);
    return error_at(k->err, k->root, k->w->flag, k->relative != NULL ? k->relative : "none");
}

static const char *here(const struct walk *k)
{
    struct buffer b = {0};
    buffer_text(&b, k->root);
    for (size_t i = 0; i < k->count; i++)
        buffer_printf(&b, "/%s", k->parts[i]);
    const char *path = arena_strdup(k->a, b.data);
    buffer_free(&b);
    return path;
}

static bool walk_down(struct walk *k, const char *path);

/* A link is followed here and not by the system, so that each step of it is seen: one that leaves
 * the tree and comes back in is another's to turn. */
static bool follow(struct walk *k, const char *link)
{
    char target[PATH_MAX];
    const ssize_t n = readlink(link, target, sizeof target - 1);
    if (n <= 0)
        return refuse(k, k->w->missing, "has a link in its path that cannot be read");
    target[n] = '\0';
    if (++k->links > LINKS_MAX)
        return refuse(k, k->w->missing, "has too many symbolic links in its path");
    if (target[0] == '/')
        return refuse(k, k->w->not_relative,
                      "has a symbolic link to an absolute path in its path, which leads out of the "
                      "workspace");
    k->count--;
    return walk_down(k, target);
}

static bool step(struct walk *k, const char *part)
{
    struct stat s;
    if (strcmp(part, "..") == 0) {
        if (k->count == 0)
            return refuse(k, k->w->not_relative,
                          "has a symbolic link in its path that leads out of the workspace");
        k->count--;
        return true;
    }
    if (k->count == PARTS_MAX)
        return refuse(k, k->w->missing, "has too long a path");
    k->parts[k->count++] = part;
    const char *path = here(k);
    if (lstat(path, &s) != 0)
        return refuse(k, k->w->missing,
                      errno == ENOENT || errno == ENOTDIR ? "is not in the workspace"
                                                          : "cannot be looked at");
    return !S_ISLNK(s.st_mode) || follow(k, path);
}

static bool walk_down(struct walk *k, const char *path)
{
    while (*path != '\0') {
        const size_t n = strcspn(path, "/");
        const char *part = arena_strndup(k->a, path, n);
        path += n;
        path += strspn(path, "/");
        if (n == 0 || strcmp(part, ".") == 0)
            continue;
        if (!step(k, part))
            return false;
        /* What ".." leaves must be a folder, as for the system. */
        if (*path != '\0' && !file_is_directory(here(k)))
            return refuse(k, k->w->missing, "has a file in its path where a folder must be");
    }
    return true;
}

/* The text itself, before anything is looked at. */
static bool check_relative(const struct walk *k)
{
    const char *p = k->relative;
    if (p == NULL || *p == '\0')
        return refuse(k, k->w->not_relative, "is not named by a path");
    if (*p == '/')
        return refuse(k, k->w->not_relative,
                      "is named by an absolute path; it is relative to the submission's root");
    for (; *p != '\0'; p += strcspn(p, "/"), p += strspn(p, "/"))
        if (strcspn(p, "/") == 2 && p[0] == '.' && p[1] == '.')
            return refuse(k, k->w->not_relative, "has '..' in its path");
    return true;
}

static bool find(const char *root, const char *relative, const struct wanted *w, struct arena *a,
                 const char **out, struct error *err)
{
    struct walk k = {.w = w, .root = root, .relative = relative, .a = a, .err = err};
    if (!check_relative(&k) || !walk_down(&k, relative))
        return false;
    if (k.count == 0)
        return refuse(&k, w->not_relative, "is the workspace itself");
    *out = here(&k);
    return true;
}

static bool refuse_workspace(const char *path, const char *why, struct error *err)
{
    error_set(err, "BASELINE-WORKSPACE-MISSING", "the baseline workspace %s", why);
    return error_at(err, NULL, "--baseline-workspace", path);
}

static bool find_workspace(const char *path, struct arena *a, const char **out, struct error *err)
{
    struct stat s;
    char real[PATH_MAX];
    if (path == NULL || *path == '\0')
        return refuse_workspace(
            NULL, "is not given, and MLXFAST_BASELINE_WORKSPACE does not name it", err);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') /* behind a slash lstat would follow the link */
        n--;
    if (lstat(arena_strndup(a, path, n), &s) != 0)
        return refuse_workspace(path, "is not there", err);
    if (S_ISLNK(s.st_mode))
        return refuse_workspace(path, "is a symbolic link; name the folder itself", err);
    if (!S_ISDIR(s.st_mode))
        return refuse_workspace(path, "is no folder", err);
    if (realpath(path, real) == NULL)
        return refuse_workspace(path, "cannot be looked at", err);
    *out = arena_strdup(a, real);
    return true;
}

bool roots_resolve(const char *workspace, const char *relative_engine, const char *relative_weights,
                   struct arena *a, struct leg_roots *out, struct error *err)
{
    struct stat s;
    *out = (struct leg_roots){0};
    if (!find_workspace(workspace, a, &out->workspace, err) ||
        !find(out->workspace, relative_engine, &wanted_engine, a, &out->engine, err))
        return false;
    if (stat(out->engine, &s) != 0 || !S_ISREG(s.st_mode) || access(out->engine, X_OK) != 0) {
        const struct walk k = {
            .w = &wanted_engine, .root = out->workspace, .relative = relative_engine, .err = err};
        return refuse(&k, wanted_engine.missing, "is no executable file");
    }
    if (!find(out->workspace, relative_weights, &wanted_weights, a, &out->weights, err))
        return false;
    if (!file_is_directory(out->weights)) {
        const struct walk k = {
            .w = &wanted_weights, .root = out->workspace, .relative = relative_weights, .err = err};
        return refuse(&k, wanted_weights.missing, "is no folder");
    }
    return true;
}

bool roots_engine_trees(const char *workspace, const char *const *trees, struct arena *a,
                        const char *const **out, struct error *err)
{
    size_t count = 0;
    *out = NULL;
    while (trees != NULL && trees[count] != NULL)
        count++;
    if (count == 0)
        return true;
    const char **own = arena_array(a, count + 1, sizeof *own);
    for (size_t i = 0; i < count; i++) {
        struct walk k = {
            .w = &wanted_tree, .root = workspace, .relative = trees[i], .a = a, .err = err};
        own[i] = trees[i];
        if (trees[i][0] == '/')
            continue;
        if (!check_relative(&k) || !walk_down(&k, trees[i]))
            return false;
        own[i] = here(&k);
    }
    own[count] = NULL;
    *out = own;
    return true;
}

const char *roots_workspace(const char *flag)
{
    if (flag != NULL)
        return flag;
    const char *path = getenv("MLXFAST_BASELINE_WORKSPACE");
    return path != NULL && *path != '\0' ? path : NULL;
}
