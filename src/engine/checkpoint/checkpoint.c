/* Opening a model folder: which files there must be, and that index and shards tell one story. */
#include "engine/checkpoint/checkpoint.h"
#include "base/json.h"
#include "engine/memory/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char CONFIG_NAME[] = "config.json";
static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char SINGLE_NAME[] = "model.safetensors";
static const char SHARD_SUFFIX[] = ".safetensors";

enum { CONFIG_LIMIT = 16 << 20, INDEX_LIMIT = 64 << 20 };

/* "file_name" -> shard number comes from the sorted list; one entry per tensor of the index. */
struct placement {
    const char *tensor;
    const char *shard;
    bool seen;
};

struct index {
    const char *path;
    struct placement *items; /* sorted by tensor */
    size_t count;
};

/* A list of names for a message: the first few, then how many more. */
struct name_list {
    struct buffer text;
    size_t count;
};

enum { NAMES_SHOWN = 8 };

static void name_list_add(struct name_list *l, const char *name)
{
    if (l->count++ < NAMES_SHOWN)
        buffer_printf(&l->text, "%s%s", l->count > 1 ? ", " : "", name);
}

static const char *name_list_text(struct name_list *l)
{
    if (l->count > NAMES_SHOWN)
        buffer_printf(&l->text, " and %zu more", l->count - NAMES_SHOWN);
    return l->text.data ? l->text.data : "";
}

bool checkpoint_read_config(const char *folder, json_t **out, struct error *err)
{
    struct arena scratch = {0};
    const char *path = path_join(&scratch, folder, CONFIG_NAME);
    bool ok = false;
    if (!file_is_directory(folder)) {
        error_set(err, "CHECKPOINT-MISSING-FILE", "there is no such folder");
        error_at(err, folder, NULL, NULL);
    } else if (!file_exists(path)) {
        error_set(err, "CHECKPOINT-MISSING-FILE", "missing: %s", CONFIG_NAME);
        error_at(err, folder, NULL, CONFIG_NAME);
    } else {
        json_t *config = json_read_file(path, CONFIG_LIMIT, JSON_DEPTH_DEFAULT, err);
        if (config && json_is_object(config)) {
            *out = config;
            ok = true;
        } else if (config) {
            json_decref(config);
            error_set(err, "CONFIG-INVALID", "the file is not a JSON object");
            error_at(err, path, NULL, NULL);
        } else if (err && text_starts(err->name, "JSON-")) {
            text_copy(err->name, sizeof err->name, "CONFIG-INVALID");
        }
    }
    arena_free(&scratch);
    return ok;
}

/* A shard's name stays inside the folder: relative, no empty, "." or ".." component. */
static bool shard_name_valid(const char *name)
{
    if (!text_ends(name, SHARD_SUFFIX) || strchr(name, '\\'))
        return false;
    for (const char *part = name;;) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        if (part[n] == '\0')
            return true;
        part += n + 1;
    }
}

static bool index_refuse(const struct index *index, struct error *err, const char *field,
                         const char *value, const char *why)
{
    error_set(err, "CHECKPOINT-INDEX-MISMATCH", "%s", why);
    return error_at(err, index->path, field, value);
}

static int compare_placements(const void *a, const void *b)
{
    return strcmp(((const struct placement *)a)->tensor, ((const struct placement *)b)->tensor);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool index_read(struct checkpoint *c, const json_t *root, struct index *index,
                       struct error *err)
{
    const json_t *map = json_object_get(root, "weight_map");
    const json_t *metadata = json_object_get(root, "metadata");
    if (metadata && !json_is_object(metadata))
        return index_refuse(index, err, "metadata", NULL, "metadata is not an object");
    if (!json_is_object(map))
        return index_refuse(index, err, "weight_map", NULL, "the index has no weight_map object");
    if (json_object_size(map) == 0)
        return index_refuse(index, err, "weight_map", "{}", "the weight_map is empty");
    index->items = arena_array(&c->arena, json_object_size(map), sizeof *index->items);
    const char *tensor;
    json_t *shard;
    json_object_foreach((json_t *)map, tensor, shard)
    {
        if (!json_is_string(shard))
            return index_refuse(index, err, tensor, NULL, "a shard name is not a string");
        if (!shard_name_valid(json_string_value(shard)))
            return index_refuse(index, err, tensor, json_string_value(shard),
                                "a shard name must be a relative path to a .safetensors file "
                                "inside the folder");
        struct placement *p = &index->items[index->count++];
        p->tensor = arena_strdup(&c->arena, tensor);
        p->shard = arena_strdup(&c->arena, json_string_value(shard));
    }
    qsort(index->items, index->count, sizeof *index->items, compare_placements);
    return true;
}

static void shards_add(struct checkpoint *c, const char *name)
{
    c->shards[c->shard_count++].file_name = name;
}

/* The distinct shard names of the index, sorted. */
static void shards_from_index(struct checkpoint *c, const struct index *index)
{
    const char **names = arena_array(&c->arena, index->count, sizeof *names);
    for (size_t i = 0; i < index->count; i++)
        names[i] = index->items[i].shard;
    qsort(names, index->count, sizeof *names, compare_text);
    size_t distinct = 0;
    for (size_t i = 0; i < index->count; i++)
        if (i == 0 || strcmp(names[i], names[distinct - 1]) != 0)
            names[distinct++] = names[i];
    c->shards = arena_array(&c->arena, distinct, sizeof *c->shards);
    for (size_t i = 0; i < distinct; i++)
        shards_add(c, names[i]);
}

/* Reads the index, if there is one, and lists every file that is not there before any is opened. */
static bool find_files(struct checkpoint *c, struct index *index, struct error *err)
{
    if (!file_is_directory(c->folder)) {
        error_set(err, "CHECKPOINT-MISSING-FILE", "there is no such folder");
        return error_at(err, c->folder, NULL, NULL);
    }
    struct name_list missing = {0};
    if (!file_exists(path_join(&c->arena, c->folder, CONFIG_NAME)))
        name_list_add(&missing, CONFIG_NAME);
    index->path = path_join(&c->arena, c->folder, INDEX_NAME);
    if (file_exists(index->path)) {
        json_t *root = json_read_file(index->path, INDEX_LIMIT, JSON_DEPTH_DEFAULT, err);
        if (!root && err && text_starts(err->name, "JSON-"))
            text_copy(err->name, sizeof err->name, "CHECKPOINT-INDEX-MISMATCH");
        const bool ok = root && index_read(c, root, index, err);
        json_decref(root);
        if (!ok) {
            buffer_free(&missing.text);
            return false;
        }
        shards_from_index(c, index);
    } else {
        c->shards = arena_array(&c->arena, 1, sizeof *c->shards);
        shards_add(c, SINGLE_NAME);
    }
    for (size_t i = 0; i < c->shard_count; i++)
        if (!file_exists(path_join(&c->arena, c->folder, c->shards[i].file_name)))
            name_list_add(&missing, c->shards[i].file_name);
    if (missing.count > 0) {
        error_set(err, "CHECKPOINT-MISSING-FILE", "missing: %s%s", name_list_text(&missing),
                  index->count == 0 ? " (and there is no model.safetensors.index.json)" : "");
        error_at(err, c->folder, NULL, NULL);
    }
    buffer_free(&missing.text);
    return missing.count == 0;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static struct placement *index_find(const struct index *index, const char *tensor)
{
    const struct placement key = {.tensor = tensor};
    return index->count ? bsearch(&key, index->items, index->count, sizeof key, compare_placements)
                        : NULL;
}

/* Both ways: every tensor of a shard is placed there by the index, every placement was found. */
static bool index_check(const struct checkpoint *c, struct index *index, struct error *err)
{
    struct name_list unplaced = {0}, elsewhere = {0}, absent = {0};
    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct tensor *t = &c->tensors[i];
        const char *shard = c->shards[t->shard].file_name;
        struct placement *p = index_find(index, t->name);
        if (!p) {
            name_list_add(&unplaced, t->name);
        } else if (strcmp(p->shard, shard) != 0) {
            struct buffer b = {0};
            buffer_printf(&b, "%s (in %s, the index says %s)", t->name, shard, p->shard);
            name_list_add(&elsewhere, b.data);
            buffer_free(&b);
            p->seen = true;
        } else {
            p->seen = true;
        }
    }
    for (size_t i = 0; i < index->count; i++)
        if (!index->items[i].seen)
            name_list_add(&absent, index->items[i].tensor);
    const bool ok = unplaced.count + elsewhere.count + absent.count == 0;
    if (!ok) {
        struct buffer b = {0};
        if (absent.count)
            buffer_printf(&b, "; %zu in the index but in no shard: %s", absent.count,
                          name_list_text(&absent));
        if (elsewhere.count)
            buffer_printf(&b, "; %zu in another shard: %s", elsewhere.count,
                          name_list_text(&elsewhere));
        if (unplaced.count)
            buffer_printf(&b, "; %zu in a shard but not in the index: %s", unplaced.count,
                          name_list_text(&unplaced));
        error_set(err, "CHECKPOINT-INDEX-MISMATCH", "index and shards disagree%s", b.data);
        error_at(err, index->path, "weight_map", NULL);
        buffer_free(&b);
    }
    buffer_free(&unplaced.text);
    buffer_free(&elsewhere.text);
    buffer_free(&absent.text);
    return ok;
}

/* A limit on addresses is passed by mapping alone. What is not there is refused when it is opened.
 */
static bool check_addresses(const struct checkpoint *c, struct error *err)
{
    struct memory_limits limits;
    struct stat st;
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->shard_count; i++) {
        struct arena a = {0};
        if (stat(path_join(&a, c->folder, c->shards[i].file_name), &st) == 0)
            bytes += (uint64_t)st.st_size;
        arena_free(&a);
    }
    memory_limits_read(&limits);
    return memory_check_mapping(&limits, bytes, c->folder, err);
}

static bool map_shards(struct checkpoint *c, struct error *err)
{
    if (!check_addresses(c, err))
        return false;
    struct tensor **lists = arena_array(&c->arena, c->shard_count, sizeof *lists);
    size_t *counts = arena_array(&c->arena, c->shard_count, sizeof *counts);
    for (size_t i = 0; i < c->shard_count; i++) {
        struct checkpoint_shard *s = &c->shards[i];
        const char *path = path_join(&c->arena, c->folder, s->file_name);
        if (!file_map_open(path, &s->map, err) ||
            !safetensors_parse(&c->arena, path, s->map.data, s->map.length, &lists[i], &counts[i],
                               err))
            return false;
        c->tensor_count += counts[i];
    }
    c->tensors = arena_array(&c->arena, c->tensor_count + 1, sizeof *c->tensors);
    size_t n = 0;
    for (size_t i = 0; i < c->shard_count; i++)
        for (size_t j = 0; j < counts[i]; j++) {
            c->tensors[n] = lists[i][j];
            c->tensors[n].shard = (int)i;
            c->tensor_bytes += lists[i][j].bytes;
            n++;
        }
    qsort(c->tensors, c->tensor_count, sizeof *c->tensors, compare_tensors);
    return true;
}

static bool read_model_type(struct checkpoint *c, struct error *err)
{
    if (!checkpoint_read_config(c->folder, &c->config, err))
        return false;
    c->model_type = json_string_value(json_object_get(c->config, "model_type"));
    if (!c->model_type) {
        error_set(err, "CONFIG-INVALID", "model_type is missing or not a string");
        return error_at(err, path_join(&c->arena, c->folder, CONFIG_NAME), "model_type", NULL);
    }
    return true;
}

bool checkpoint_open(const char *folder, struct checkpoint **out, struct error *err)
{
    struct checkpoint *c = memory_alloc(sizeof *c);
    struct index index = {0};
    c->folder = arena_strdup(&c->arena, folder);
    if (!find_files(c, &index, err) || !read_model_type(c, err) || !map_shards(c, err) ||
        (index.count > 0 && !index_check(c, &index, err))) {
        checkpoint_close(c);
        return false;
    }
    *out = c;
    return true;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->shard_count; i++)
        file_unmap(&c->shards[i].map);
    pages_free(&c->packed);
    json_decref(c->config);
    arena_free(&c->arena);
    free(c);
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    const struct tensor key = {.name = name};
    return c->tensor_count ? bsearch(&key, c->tensors, c->tensor_count, sizeof key, compare_tensors)
                           : NULL;
}
