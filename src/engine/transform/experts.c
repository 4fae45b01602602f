#include "engine/transform/experts.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANIFEST_LIMIT = 64 << 20, LENGTH_BYTES = 8 };

const char experts_manifest_name[] = "experts/manifest.json";
const char experts_folder_variable[] = "MLXFAST_REFERENCE_DIR";

bool experts_is_split(const char *model_type)
{
    return strcmp(model_type, "deepseek_v4") == 0;
}

bool experts_is_expert(const char *tensor)
{
    return (strstr(tensor, ".ffn.experts.") || strstr(tensor, ".ffn.switch_mlp.")) &&
           !strstr(tensor, ".shared_experts.");
}

/* ---- the path ---- */

static char *resolve(struct arena *a, const char *path, struct error *err)
{
    char whole[PATH_MAX];
    if (realpath(path, whole))
        return arena_strdup(a, whole);
    error_errno(err, path, "cannot find the folder");
    return NULL;
}

bool experts_find_path(struct arena *a, const char *weights, const char *source, char **out,
                       struct error *err)
{
    size_t length = strlen(weights);
    while (length > 1 && weights[length - 1] == '/')
        length--;
    const char *place = arena_strndup(a, weights, length), *name = path_basename(place);
    const char *parent = name > place ? arena_strndup(a, place, (size_t)(name - place)) : ".";
    const char *from = resolve(a, parent, err), *to = from ? resolve(a, source, err) : NULL;
    if (!to)
        return false;
    from = path_join(a, from, name);
    /* What both have at their start, in whole components. */
    size_t same = 0;
    for (size_t i = 0;; i++) {
        const bool ends = (from[i] == '\0' || from[i] == '/') && (to[i] == '\0' || to[i] == '/');
        if (ends)
            same = i;
        if (from[i] != to[i] || from[i] == '\0')
            break;
    }
    struct buffer b = {0};
    for (const char *p = from + same; *p; p++)
        if (*p == '/' && p[1])
            buffer_text(&b, b.length ? "/.." : "..");
    const char *rest = to + same + (to[same] == '/');
    buffer_printf(&b, "%s%s", b.length && *rest ? "/" : "", rest);
    *out = arena_strdup(a, b.length ? b.data : ".");
    buffer_free(&b);
    return true;
}

/* ---- writing ---- */

static bool refuse(struct error *err, const char *file, const char *field, const char *value,
                   const char *what)
{
    error_set(err, "EXPERTS-INVALID", "%s", what);
    return error_at(err, file, field, value);
}

static uint64_t data_begin(const struct file_map *map)
{
    uint64_t header = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        header |= (uint64_t)map->data[i] << (8 * i);
    return LENGTH_BYTES + header;
}

static json_t *make_record(const struct checkpoint *k, const struct tensor *t)
{
    const struct checkpoint_shard *s = &k->shards[t->shard];
    const uint64_t at = (uint64_t)(t->data - s->map.data), in = at - data_begin(&s->map);
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    return json_pack("{s:s, s:s, s:s, s:o, s:[I, I], s:I, s:I}", "name", t->name, "shard",
                     s->file_name, "dtype", dtype_name(t->dtype), "shape", shape, "data_offsets",
                     (json_int_t)in, (json_int_t)(in + t->bytes), "byte_offset", (json_int_t)at,
                     "byte_length", (json_int_t)t->bytes);
}

bool experts_write_manifest(struct arena *a, const struct checkpoint *source, const char *path,
                            struct buffer *out, struct error *err)
{
    json_t *list = json_array();
    bool ok = true;
    /* Shards are sorted by name, and so are tensors. */
    for (size_t s = 0; ok && s < source->shard_count; s++)
        for (size_t i = 0; ok && i < source->tensor_count; i++) {
            const struct tensor *t = &source->tensors[i];
            if (t->shard != (int)s || !experts_is_expert(t->name))
                continue;
            ok = t->bytes > 0 ||
                 refuse(err, path_join(a, source->folder, source->shards[s].file_name), t->name,
                        "0", "an expert tensor without bytes");
            json_array_append_new(list, make_record(source, t));
        }
    const size_t n = json_array_size(list);
    ok = ok && ((n > 0 && n < source->tensor_count) ||
                refuse(err, source->folder, NULL, NULL,
                       n ? "every tensor is an expert's: there is nothing dense"
                         : "no tensor is an expert's (.ffn.experts., .ffn.switch_mlp.)"));
    json_t *root = json_pack("{s:i, s:s, s:s, s:o}", "version", 1, "source", "safetensors",
                             "reference_path", path, "expert_tensors", list);
    if (ok) {
        json_write_canonical(root, 2, out);
        buffer_char(out, '\n');
    }
    json_decref(root);
    return ok;
}

/* ---- reading ---- */

struct reader {
    struct arena *arena;
    const char *manifest, *reference;
    struct error *err;
    const char *shard; /* that is open */
    struct file_map map;
    struct tensor *tensors;
    size_t count;
};

static bool is_plain_name(const char *name)
{
    return text_ends(name, ".safetensors") && !strchr(name, '/') && !strchr(name, '\\') &&
           name[0] != '.';
}

static bool open_shard(struct reader *r, const char *name)
{
    if (r->shard && strcmp(r->shard, name) == 0)
        return true;
    file_unmap(&r->map);
    r->map = (struct file_map){0};
    r->shard = NULL;
    const char *path = path_join(r->arena, r->reference, name);
    if (!file_exists(path)) {
        error_set(r->err, "CHECKPOINT-MISSING-FILE",
                  "a shard with experts is missing (%s says where they are)",
                  experts_folder_variable);
        return error_at(r->err, path, NULL, NULL);
    }
    if (!file_map_open(path, &r->map, r->err) ||
        !safetensors_parse(r->arena, path, r->map.data, r->map.length, &r->tensors, &r->count,
                           r->err))
        return false;
    r->shard = arena_strdup(r->arena, name);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static bool same_shape(const json_t *shape, const struct tensor *t)
{
    bool same = json_array_size(shape) == (size_t)t->rank;
    for (int i = 0; same && i < t->rank; i++)
        same = json_is_integer(json_array_get(shape, (size_t)i)) &&
               json_integer_value(json_array_get(shape, (size_t)i)) == t->shape[i];
    return same;
}

static bool differs(struct reader *r, const char *name, const char *key, uint64_t expected,
                    int64_t found)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRId64, found);
    error_set(r->err, "EXPERTS-INVALID", "%s of %s: the shard's header says %" PRIu64, key, name,
              expected);
    return error_at(r->err, r->manifest, key, value);
}

/* The shard's header was checked when it was read: a record that says the same is within bounds. */
static bool check_record(struct reader *r, const json_t *record, const char **name, uint64_t *bytes)
{
    const struct json_view v = {record, r->manifest, "expert_tensors"};
    const char *shard, *dtype;
    const json_t *shape, *offsets;
    int64_t at, length;
    if (!json_get_string(&v, "name", name, r->err) ||
        !json_get_string(&v, "shard", &shard, r->err) ||
        !json_get_string(&v, "dtype", &dtype, r->err) ||
        !json_get_array(&v, "shape", &shape, r->err) ||
        !json_get_array(&v, "data_offsets", &offsets, r->err) ||
        !json_get_int64(&v, "byte_offset", 0, INT64_MAX, &at, r->err) ||
        !json_get_int64(&v, "byte_length", 1, INT64_MAX, &length, r->err))
        return false;
    if (!experts_is_expert(*name))
        return refuse(r->err, r->manifest, "name", *name, "not an expert's tensor");
    if (!is_plain_name(shard))
        return refuse(r->err, r->manifest, "shard", shard, "not a plain name of a shard");
    if (!open_shard(r, shard))
        return false;
    const struct tensor key = {.name = *name};
    const struct tensor *t =
        r->count ? bsearch(&key, r->tensors, r->count, sizeof key, by_name) : NULL;
    if (!t)
        return refuse(r->err, path_join(r->arena, r->reference, shard), *name, NULL,
                      "the shard does not hold this tensor");
    const uint64_t begin = (uint64_t)(t->data - r->map.data), in = begin - data_begin(&r->map);
    const int64_t first = json_integer_value(json_array_get(offsets, 0)),
                  last = json_integer_value(json_array_get(offsets, 1));
    *bytes = t->bytes;
    if (strcmp(dtype, dtype_name(t->dtype)) != 0)
        return refuse(r->err, r->manifest, "dtype", dtype, "the shard's header says another dtype");
    if (!same_shape(shape, t))
        return refuse(r->err, r->manifest, "shape", *name, "the shard's header says another shape");
    if ((uint64_t)at != begin)
        return differs(r, *name, "byte_offset", begin, at);
    if ((uint64_t)length != t->bytes)
        return differs(r, *name, "byte_length", t->bytes, length);
    if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return refuse(r->err, r->manifest, "data_offsets", *name,
                      "expected two whole numbers, data_offsets of this tensor are something else");
    if ((uint64_t)first != in)
        return differs(r, *name, "data_offsets", in, first);
    return (uint64_t)last == in + t->bytes ||
           differs(r, *name, "data_offsets", in + t->bytes, last);
}

static bool check_head(struct reader *r, const json_t *root, const char **reference,
                       const json_t **list)
{
    const struct json_view v = {root, r->manifest, ""};
    const char *source;
    int64_t version;
    if (!json_get_int64(&v, "version", 1, 1, &version, r->err) ||
        !json_get_string(&v, "source", &source, r->err) ||
        !json_get_string(&v, "reference_path", reference, r->err) ||
        !json_get_array(&v, "expert_tensors", list, r->err))
        return false;
    if (strcmp(source, "safetensors") != 0)
        return refuse(r->err, r->manifest, "source", source, "expected safetensors");
    return json_array_size(*list) > 0 ||
           refuse(r->err, r->manifest, "expert_tensors", "[]", "there is no expert tensor");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool check_records(struct reader *r, const json_t *list, struct experts_seen *out)
{
    const size_t n = json_array_size(list);
    const char **names = arena_array(r->arena, n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = 0;
        if (!check_record(r, json_array_get(list, i), &names[i], &bytes))
            return false;
        out->tensors++;
        out->bytes += bytes;
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return refuse(r->err, r->manifest, "name", names[i], "a tensor stands there twice");
    return true;
}

bool experts_check(const char *weights, const char *reference, struct experts_seen *out,
                   struct error *err)
{
    struct arena a = {0};
    struct error own = {0};
    struct reader r = {.arena = &a, .err = err ? err : &own};
    const char *path = NULL;
    const json_t *list = NULL;
    *out = (struct experts_seen){0};
    r.manifest = path_join(&a, weights, experts_manifest_name);
    json_t *root = json_read_file(r.manifest, MANIFEST_LIMIT, JSON_DEPTH_DEFAULT, r.err);
    bool ok = root && check_head(&r, root, &path, &list);
    if (ok) {
        r.reference = reference ? reference : *path == '/' ? path : path_join(&a, weights, path);
        ok = check_records(&r, list, out);
    }
    if (!ok && text_starts(r.err->name, "JSON-"))
        text_copy(r.err->name, sizeof r.err->name, "EXPERTS-INVALID");
    file_unmap(&r.map);
    json_decref(root);
    arena_free(&a);
    return ok;
}
