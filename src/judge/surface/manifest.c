/* Reading of benchmark.json: the parts that say what may be edited. */
#include "judge/surface/surface.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { MANIFEST_BYTES_MAX = 4 << 20, ENTRIES_MAX = 4096 };

static const char *const default_scope[] = {"Package.swift",
                                            "Package.resolved",
                                            "Sources/MLXFastTrustedHarness",
                                            "Sources/MLXFastCLI",
                                            "Sources/MLXFastCore",
                                            ".github",
                                            "tools",
                                            SURFACE_MANIFEST};

/* One reading of one manifest. */
struct reader {
    struct arena *arena;
    struct surface *s;
    const json_t *root;
    struct error *err;
};

static bool refuse(const struct reader *r, const char *field, const json_t *value, const char *what)
{
    struct buffer text = {0};
    if (value != NULL)
        json_write_canonical(value, 0, &text);
    error_set(r->err, "SURFACE-MANIFEST-INVALID", "%s %s", field, what);
    error_at(r->err, r->s->manifest, field, text.data);
    buffer_free(&text);
    return false;
}

/* Why a path is no entry; NULL: it is one. */
static const char *bad_shape(const char *path)
{
    if (*path == '\0')
        return "is empty";
    if (*path == '/')
        return "is absolute";
    if (*path == ':')
        return "begins with a colon";
    if (strchr(path, '\\') != NULL)
        return "holds a backslash";
    for (const char *part = path; part != NULL;) {
        const char *end = strchr(part, '/');
        const size_t n = end != NULL ? (size_t)(end - part) : strlen(part);
        if (n == 0)
            return "holds an empty segment";
        if ((n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return "holds a '.' or '..' segment";
        part = end != NULL ? end + 1 : NULL;
    }
    return NULL;
}

/* An optional array of entries: none where the key is absent. */
static bool read_paths(const struct reader *r, const json_t *from, const char *prefix,
                       const char *key, const char ***out, size_t *count)
{
    char field[128];
    const json_t *list = json_object_get(from, key);
    *out = NULL;
    *count = 0;
    if (list == NULL)
        return true;
    snprintf(field, sizeof field, "%s%s", prefix, key);
    if (!json_is_array(list))
        return refuse(r, field, list, "must be an array of paths");
    if (json_array_size(list) > ENTRIES_MAX)
        return refuse(r, field, NULL, "holds more than 4096 entries");
    *out = arena_array(r->arena, json_array_size(list), sizeof **out);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        snprintf(field, sizeof field, "%s%s[%zu]", prefix, key, i);
        if (!json_is_string(item))
            return refuse(r, field, item, "must be a string");
        const char *why = bad_shape(json_string_value(item));
        if (why != NULL)
            return refuse(r, field, item, why);
        (*out)[(*count)++] = arena_strdup(r->arena, json_string_value(item));
    }
    return true;
}

static bool holds(const char *const *list, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], text) == 0)
            return true;
    return false;
}

/* What stands twice is one entry. */
static void add_entries(struct reader *r, const char *const *paths, size_t count)
{
    struct surface *s = r->s;
    for (size_t i = 0; i < count; i++) {
        bool seen = false;
        for (size_t j = 0; j < s->entry_count && !seen; j++)
            seen = strcmp(s->entries[j].path, paths[i]) == 0;
        if (!seen)
            s->entries[s->entry_count++] = (struct surface_entry){
                paths[i], holds((const char *const *)s->exempt, s->exempt_count, paths[i])};
    }
}

static bool read_cap(const struct reader *r, const json_t *block, const char *key, int64_t *out)
{
    char field[128];
    const json_t *value = json_object_get(block, key);
    if (value == NULL)
        return true;
    snprintf(field, sizeof field, "editableSurfaceByteBudget.%s", key);
    if (!json_is_integer(value) || json_integer_value(value) <= 0)
        return refuse(r, field, value, "must be an integer above 0");
    *out = json_integer_value(value);
    return true;
}

static bool read_budget(struct reader *r)
{
    static const char name[] = "editableSurfaceByteBudget";
    static const char *const keys[] = {
        "exemptPaths",   "exemptPathMaxBytes", "exemptPathMaxFileBytes",
        "maxTotalBytes", "maxFileBytes",       "maxGrowthBytes"};
    struct surface *s = r->s;
    const json_t *block = json_object_get(r->root, name);
    s->total_max = SURFACE_TOTAL_DEFAULT;
    s->file_max = SURFACE_FILE_DEFAULT;
    s->growth_max = SURFACE_GROWTH_DEFAULT;
    s->exempt_total_max = SURFACE_EXEMPT_TOTAL_DEFAULT;
    s->exempt_file_max = SURFACE_EXEMPT_FILE_DEFAULT;
    if (block == NULL)
        return true;
    if (!json_is_object(block))
        return refuse(r, name, block, "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)block, key, value)
    {
        char field[160];
        if (holds(keys, sizeof keys / sizeof *keys, key))
            continue;
        snprintf(field, sizeof field, "%s.%.100s", name, key);
        return refuse(r, field, value, "is no key of the budget");
    }
    if (!read_paths(r, block, "editableSurfaceByteBudget.", "exemptPaths", &s->exempt,
                    &s->exempt_count) ||
        !read_cap(r, block, "exemptPathMaxBytes", &s->exempt_total_max) ||
        !read_cap(r, block, "exemptPathMaxFileBytes", &s->exempt_file_max) ||
        !read_cap(r, block, "maxTotalBytes", &s->total_max) ||
        !read_cap(r, block, "maxFileBytes", &s->file_max) ||
        !read_cap(r, block, "maxGrowthBytes", &s->growth_max))
        return false;
    if (s->file_max > s->total_max)
        return refuse(r, "editableSurfaceByteBudget.maxFileBytes",
                      json_object_get(block, "maxFileBytes"), "is above maxTotalBytes");
    if (s->exempt_file_max > s->exempt_total_max)
        return refuse(r, "editableSurfaceByteBudget.exemptPathMaxFileBytes",
                      json_object_get(block, "exemptPathMaxFileBytes"),
                      "is above exemptPathMaxBytes");
    return true;
}

/* A tree of another shape than the original's names its own trusted paths; the manifest is always
 * one of them. */
static bool read_scope(struct reader *r)
{
    struct surface *s = r->s;
    const char **listed;
    size_t count;
    if (!read_paths(r, r->root, "", "trustedScope", &listed, &count))
        return false;
    if (listed == NULL) {
        s->scope = (const char **)default_scope;
        s->scope_count = sizeof default_scope / sizeof *default_scope;
        return true;
    }
    if (count == 0)
        return refuse(r, "trustedScope", json_object_get(r->root, "trustedScope"),
                      "must name a path");
    s->scope = arena_array(r->arena, count + 1, sizeof *s->scope);
    memcpy(s->scope, listed, count * sizeof *listed);
    s->scope_count = count;
    if (!holds((const char *const *)listed, count, SURFACE_MANIFEST))
        s->scope[s->scope_count++] = SURFACE_MANIFEST;
    return true;
}

static bool read_manifest(struct reader *r)
{
    const char **editable, **optional;
    size_t editable_count, optional_count;
    if (!json_is_object(r->root))
        return refuse(r, "(root)", NULL, "must be an object");
    if (!read_budget(r) || !read_scope(r) ||
        !read_paths(r, r->root, "", "editablePaths", &editable, &editable_count) ||
        !read_paths(r, r->root, "", "optionalEditablePaths", &optional, &optional_count))
        return false;
    if (editable_count == 0)
        return refuse(r, "editablePaths", json_object_get(r->root, "editablePaths"),
                      "must name at least one path");
    r->s->entries = arena_array(r->arena, editable_count + optional_count, sizeof *r->s->entries);
    add_entries(r, (const char *const *)editable, editable_count);
    add_entries(r, (const char *const *)optional, optional_count);
    return true;
}

bool surface_parse(struct arena *a, const char *path, const char *data, size_t length,
                   struct surface *out, struct error *err)
{
    struct error none;
    *out = (struct surface){.manifest = arena_strdup(a, path)};
    json_t *root =
        json_parse_strict(data, length, JSON_DEPTH_DEFAULT, path, err != NULL ? err : &none);
    if (root == NULL)
        return false;
    struct reader r = {.arena = a, .s = out, .root = root, .err = err};
    const bool ok = read_manifest(&r);
    json_decref(root);
    return ok;
}

bool surface_load(struct arena *a, const char *trusted_tree, struct surface *out, struct error *err)
{
    struct buffer bytes = {0};
    const char *path = path_join(a, trusted_tree, SURFACE_MANIFEST);
    const bool ok =
        file_read(path, MANIFEST_BYTES_MAX, &bytes, err) &&
        surface_parse(a, path, bytes.data != NULL ? bytes.data : "", bytes.length, out, err);
    buffer_free(&bytes);
    return ok;
}

bool surface_is_below(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* What a build or a run leaves there. */
bool surface_is_left_out(const char *path)
{
    static const char *const names[] = {".git", ".build", ".build-worker", "weights"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (surface_is_below(path, names[i]))
            return true;
    return false;
}

const struct surface_entry *surface_find(const struct surface *s, const char *path)
{
    const struct surface_entry *best = NULL;
    for (size_t i = 0; i < s->entry_count; i++)
        if (surface_is_below(path, s->entries[i].path) &&
            (best == NULL || strlen(s->entries[i].path) > strlen(best->path)))
            best = &s->entries[i];
    return best;
}
