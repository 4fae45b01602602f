#include "arena/fetch/track.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool optional_string(struct arena *a, const struct json_view *v, const char *key,
                            const char **out, struct error *err)
{
    if (!json_has(v, key))
        return true;
    if (!json_get_string(v, key, out, err))
        return false;
    *out = arena_strdup(a, *out);
    return true;
}

static bool required_string(struct arena *a, const struct json_view *v, const char *key,
                            const char **out, struct error *err)
{
    if (!json_get_string(v, key, out, err))
        return false;
    *out = arena_strdup(a, *out);
    return true;
}

static const char *from_root(struct arena *a, const char *root, const char *path)
{
    return path ? path_join(a, root, path) : NULL;
}

/* Names that become folders of the cache. */
static bool is_plain(const char *text, bool slash)
{
    const size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-/");
    const char *first = strchr(text, '/');
    return text[0] && text[n] == '\0' && !strstr(text, "..") && text[0] != '.' && text[0] != '/' &&
           (slash ? first && first[1] && !strchr(first + 1, '/') : !first);
}

/* Within the repository, whoever wrote the file: no absolute path, no "..", nothing hidden. A
 * manifest may be another track's: one "../" before it. */
static bool check_inside(const struct json_view *v, const char *key, const char *path, bool beside,
                         struct error *err)
{
    const char *at = path;
    if (!path)
        return true;
    if (beside && text_starts(at, "../"))
        at += 3;
    for (;; at++) {
        if (*at == '\0' || *at == '/' || *at == '.')
            break;
        at += strcspn(at, "/");
        if (*at == '\0')
            return true;
    }
    error_set(err, "TRACK-INVALID",
              beside ? "expected the name of a file beside it, or ../TRACK/NAME"
                     : "expected a path within the repository, none of its parts beginning with "
                       "'.'");
    return error_at(err, v->file, key, path);
}

static bool read_model(struct arena *a, const char *folder, const struct json_view *v,
                       struct fetch_track *t, struct error *err)
{
    static const char *const keys[] = {"manifest", "repo",         "revision",
                                       "base_url", "fallback_url", "folder",
                                       "link",     "min_free_gib", NULL};
    if (!json_view_closed(v, keys, err) || !required_string(a, v, "manifest", &t->manifest, err) ||
        !required_string(a, v, "repo", &t->repo, err) ||
        !required_string(a, v, "revision", &t->revision, err) ||
        !optional_string(a, v, "base_url", &t->base_url, err) ||
        !optional_string(a, v, "fallback_url", &t->fallback_url, err) ||
        !optional_string(a, v, "folder", &t->folder, err) ||
        !optional_string(a, v, "link", &t->link, err) ||
        (json_has(v, "min_free_gib") &&
         !json_get_int64(v, "min_free_gib", 0, 1 << 20, &t->min_free_gib, err)))
        return false;
    const bool repo = is_plain(t->repo, true);
    if (!repo || !is_plain(t->revision, false)) {
        error_set(err, "TRACK-INVALID", "a repository is owner/name, a revision a plain name");
        return error_at(err, v->file, repo ? "revision" : "repo", repo ? t->revision : t->repo);
    }
    if (!check_inside(v, "manifest", t->manifest, true, err) ||
        !check_inside(v, "folder", t->folder, false, err) ||
        !check_inside(v, "link", t->link, false, err))
        return false;
    t->manifest = path_join(a, folder, t->manifest);
    t->folder = from_root(a, t->root, t->folder);
    t->link = from_root(a, t->root, t->link);
    return true;
}

/* The folder is an absolute path. */
static void place(struct arena *a, const char *folder, struct fetch_track *t)
{
    char *root = arena_strdup(a, folder);
    t->id = path_basename(folder);
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(root, '/');
        slash[slash == root] = '\0';
    }
    t->root = root;
}

static bool read_value(struct arena *a, const char *folder, const json_t *value, const char *file,
                       bool drafter, struct fetch_track *out, struct error *err)
{
    static const char *const models[] = {"target", "drafter", NULL};
    const char *model = drafter ? "drafter" : "target";
    const struct json_view all = {value, file, ""};
    const json_t *object = NULL;
    if (!json_view_closed(&all, models, err))
        return false;
    if (!json_has(&all, model)) {
        error_set(err, "TRACK-UNKNOWN", "the track has no %s to fetch", model);
        return error_at(err, file, model, NULL);
    }
    if (!json_get_object(&all, model, &object, err))
        return false;
    const struct json_view one = {object, file, model};
    return read_model(a, folder, &one, out, err);
}

bool fetch_track_parse(struct arena *a, const char *folder, const char *text, size_t length,
                       bool drafter, struct fetch_track *out, struct error *err)
{
    const char *file = path_join(a, folder, "fetch.json");
    *out = (struct fetch_track){.file = file};
    place(a, folder, out);
    json_t *value = json_parse_strict(text, length, JSON_DEPTH_DEFAULT, file, err);
    const bool ok = value && read_value(a, folder, value, file, drafter, out, err);
    json_decref(value);
    return ok;
}

bool fetch_track_read(struct arena *a, const char *track, bool drafter, struct fetch_track *out,
                      struct error *err)
{
    char real[PATH_MAX];
    const char *given = strchr(track, '/') ? track : path_join(a, "tracks", track);
    *out = (struct fetch_track){0};
    if (!*track || strcmp(track, ".") == 0 || strcmp(track, "..") == 0 || !realpath(given, real)) {
        error_set(err, "TRACK-UNKNOWN",
                  "there is no such track here (run it from the repository, "
                  "or give the track's folder)");
        return error_at(err, given, NULL, NULL);
    }
    const char *folder = arena_strdup(a, real), *file = path_join(a, folder, "fetch.json");
    if (!file_exists(file)) {
        error_set(err, "TRACK-UNKNOWN", "the track says nothing about fetching");
        return error_at(err, file, NULL, NULL);
    }
    struct buffer text = {0};
    const bool ok = file_read(file, FETCH_TRACK_BYTES_MOST, &text, err) &&
                    fetch_track_parse(a, folder, text.data, text.length, drafter, out, err);
    buffer_free(&text);
    return ok;
}
