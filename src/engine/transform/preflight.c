/* What the index says, what the shards' headers say, and what the configuration needs, joined by
 * name: see preflight.h. */
#include "engine/transform/preflight.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/formats.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_config.h"
#include "engine/text/tokenizer.h"
#include "engine/transform/experts.h"
#include "engine/transform/transform.h"
#include "engine/transform/weights_cap.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FINDINGS = 64, NAMES_SHOWN = 4, INDEX_LIMIT = 64 << 20, LENGTH_BYTES = 8 };

static const char CONFIG[] = "config.json", INDEX[] = "model.safetensors.index.json";
static const char SINGLE[] = "model.safetensors", TOKENIZER[] = "tokenizer.json";

/* One line of the index, or one tensor of a header. */
struct entry {
    const char *tensor, *shard;
};

struct shard {
    const char *name;
    bool indexed; /* the index names it */
    bool there, readable;
    size_t placed; /* tensors that the index puts in it */
    struct file_map map;
    struct tensor *tensors;
    size_t count;
};

struct names {
    struct buffer text;
    size_t count;
};

struct job {
    const struct preflight_options *o;
    struct preflight_report *report;
    struct arena *arena;
    const char *folder;
    bool has_index, config_read;
    bool split; /* its experts lie elsewhere */
    json_t *config;
    struct laguna_config laguna;
    struct entry *index; /* sorted by tensor */
    size_t index_count;
    struct shard *shards; /* sorted by name */
    size_t shard_count;
    struct checkpoint found; /* a view: the tensors of all readable shards, sorted by name */
};

/* ---- findings ---- */

static void add_finding(struct job *j, const struct error *e)
{
    if (j->report->count < FINDINGS)
        j->report->findings[j->report->count++] = *e;
    else
        j->report->untold++;
}

static void find(struct job *j, const char *name, const char *file, const char *field,
                 const char *value, const char *message)
{
    struct error e = {0};
    error_set(&e, name, "%s", message);
    error_at(&e, file, field, value);
    add_finding(j, &e);
}

static const char *at(struct job *j, const char *name)
{
    return path_join(j->arena, j->folder, name);
}

static void add_name(struct names *n, const char *name)
{
    if (n->count++ < NAMES_SHOWN)
        buffer_printf(&n->text, "%s%s", n->count > 1 ? ", " : "", name);
}

/* "3 tensors are in the index and in no shard: a, b, c", or nothing. */
static void find_names(struct job *j, struct names *n, const char *file, const char *what)
{
    if (n->count) {
        struct buffer text = {0};
        buffer_printf(&text, "%zu tensor%s %s: %s", n->count, n->count > 1 ? "s are" : " is", what,
                      n->text.data);
        if (n->count > NAMES_SHOWN)
            buffer_printf(&text, " and %zu more", n->count - NAMES_SHOWN);
        find(j, "CHECKPOINT-INDEX-MISMATCH", file, "weight_map", NULL, text.data);
        buffer_free(&text);
    }
    buffer_free(&n->text);
}

/* ---- the folder ---- */

static bool look_at_folder(struct job *j)
{
    struct stat st;
    struct error e = {0};
    char **names;
    size_t count;
    if (lstat(j->folder, &st) != 0) {
        find(j, errno == ENOENT ? "CHECKPOINT-MISSING-FILE" : "IO", j->folder, NULL, NULL,
             errno == ENOENT ? "there is no such folder" : "cannot look at the folder");
        return false;
    }
    if (!S_ISDIR(st.st_mode))
        find(j, "NOT-A-FOLDER", j->folder, NULL, NULL, "weights must be a folder, not a link");
    if (!file_is_directory(j->folder))
        return false;
    if (S_ISDIR(st.st_mode) && !file_list_recursive(j->arena, j->folder, &names, &count, &e)) {
        add_finding(j, &e);
    } else if (S_ISDIR(st.st_mode)) {
        for (size_t i = 0; i < count; i++) {
            if (transform_is_unsealed(names[i]) || stat(at(j, names[i]), &st) != 0)
                continue;
            j->report->files++;
            j->report->bytes += (uint64_t)st.st_size;
        }
        if (!weights_cap_check(j->report->max_bytes, j->report->bytes, j->folder, &e))
            add_finding(j, &e);
    }
    return true;
}

static void look_at_config(struct job *j)
{
    struct error e = {0};
    if (!checkpoint_read_config(j->folder, &j->config, &e)) {
        if (strcmp(e.name, "CHECKPOINT-MISSING-FILE") == 0)
            find(j, e.name, at(j, CONFIG), NULL, NULL, "the file is missing");
        else
            add_finding(j, &e);
        return;
    }
    const char *type = json_string_value(json_object_get(j->config, "model_type"));
    j->split = type && experts_is_split(type);
    if (j->split)
        return;
    if (!type || strcmp(type, "laguna") != 0) {
        find(j, type ? "UNKNOWN-MODEL-TYPE" : "CONFIG-INVALID", at(j, CONFIG), "model_type", type,
             "expected laguna or deepseek_v4");
        return;
    }
    j->config_read = laguna_config_parse(j->arena, j->config, at(j, CONFIG), &j->laguna, &e) &&
                     laguna_config_read_generation(j->folder, &j->laguna, &e);
    if (!j->config_read)
        add_finding(j, &e);
}

static void look_at_tokenizer(struct job *j)
{
    struct error e = {0};
    struct tokenizer *t;
    const char *path = at(j, TOKENIZER);
    if (!file_exists(path)) {
        if (!j->o->no_tokenizer)
            find(j, "CHECKPOINT-MISSING-FILE", path, NULL, NULL, "the file is missing");
        return;
    }
    if (!tokenizer_open(path, &t, &e)) {
        add_finding(j, &e);
        return;
    }
    const size_t vocab = tokenizer_vocab_size(t);
    if (j->config_read && vocab > (size_t)j->laguna.vocab) {
        char value[32];
        snprintf(value, sizeof value, "%zu", vocab);
        error_set(&e, "TOKENIZER-INVALID", "it has ids beyond vocab_size of config.json, %d",
                  j->laguna.vocab);
        error_at(&e, path, "ids", value);
        add_finding(j, &e);
    }
    tokenizer_close(t);
}

/* ---- the index ---- */

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->tensor, ((const struct entry *)b)->tensor);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static bool is_shard_name(const char *name)
{
    return text_ends(name, ".safetensors") && name[0] != '/' && !strstr(name, "..") &&
           !strchr(name, '\\');
}

static void read_index(struct job *j)
{
    struct error e = {0};
    const char *path = at(j, INDEX), *tensor;
    json_t *shard, *root, *map;
    j->has_index = file_exists(path);
    if (!j->has_index)
        return;
    root = json_read_file(path, INDEX_LIMIT, JSON_DEPTH_DEFAULT, &e);
    if (!root) {
        if (text_starts(e.name, "JSON-"))
            text_copy(e.name, sizeof e.name, "CHECKPOINT-INDEX-MISMATCH");
        add_finding(j, &e);
        return;
    }
    map = json_object_get(root, "metadata");
    if (map && !json_is_object(map))
        find(j, "CHECKPOINT-INDEX-MISMATCH", path, "metadata", NULL, "expected an object");
    map = json_object_get(root, "weight_map");
    if (json_object_size(map) == 0)
        find(j, "CHECKPOINT-INDEX-MISMATCH", path, "weight_map", NULL,
             "expected an object of tensors and their shards");
    j->index = arena_array(j->arena, json_object_size(map) + 1, sizeof *j->index);
    json_object_foreach(map, tensor, shard)
    {
        const char *name = json_string_value(shard);
        if (!name || !is_shard_name(name))
            find(j, "CHECKPOINT-INDEX-MISMATCH", path, tensor, name,
                 "expected the name of a .safetensors file in the folder");
        else
            j->index[j->index_count++] =
                (struct entry){arena_strdup(j->arena, tensor), arena_strdup(j->arena, name)};
    }
    json_decref(root);
    qsort(j->index, j->index_count, sizeof *j->index, by_tensor);
}

/* ---- the shards ---- */

static struct shard *find_shard(const struct job *j, const char *name)
{
    const struct shard key = {.name = name};
    return j->shard_count ? bsearch(&key, j->shards, j->shard_count, sizeof key, by_name) : NULL;
}

static void add_shard(struct job *j, size_t *room, const struct shard *s)
{
    if (j->shard_count == *room) {
        struct shard *more = arena_array(j->arena, *room = 2 * *room + 16, sizeof *more);
        if (j->shard_count)
            memcpy(more, j->shards, j->shard_count * sizeof *more);
        j->shards = more;
    }
    j->shards[j->shard_count++] = *s;
}

/* Sorted, each once: an index may name as many shards as tensors. */
static void sort_shards(struct job *j)
{
    size_t n = 0;
    if (j->shard_count)
        qsort(j->shards, j->shard_count, sizeof *j->shards, by_name);
    for (size_t i = 0; i < j->shard_count; i++) {
        const struct shard *s = &j->shards[i];
        if (n == 0 || strcmp(j->shards[n - 1].name, s->name) != 0) {
            j->shards[n++] = *s;
        } else {
            j->shards[n - 1].indexed = j->shards[n - 1].indexed || s->indexed;
            j->shards[n - 1].placed += s->placed;
        }
    }
    j->shard_count = n;
}

/* Those that the index names, and those that stand in the folder. */
static void list_shards(struct job *j)
{
    size_t room = 0;
    for (size_t i = 0; i < j->index_count; i++)
        add_shard(j, &room,
                  &(struct shard){.name = j->index[i].shard, .indexed = true, .placed = 1});
    DIR *d = opendir(j->folder);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (text_ends(e->d_name, ".safetensors") && e->d_name[0] != '.' &&
            (j->has_index || strcmp(e->d_name, SINGLE) == 0))
            add_shard(j, &room, &(struct shard){.name = arena_strdup(j->arena, e->d_name)});
    if (d)
        closedir(d);
    sort_shards(j);
    if (j->shard_count == 0 && !j->has_index)
        find(j, "CHECKPOINT-MISSING-FILE", at(j, INDEX), NULL, NULL,
             "the file is missing, and so is model.safetensors");
}

/* How long a file must be that has this header; 0: the header does not say. */
static uint64_t length_by_header(const struct file_map *map)
{
    uint64_t header = 0, end = 0;
    for (size_t i = 0; i < LENGTH_BYTES && i < map->length; i++)
        header |= (uint64_t)map->data[i] << (8 * i);
    if (map->length < LENGTH_BYTES || header > map->length - LENGTH_BYTES ||
        header > (uint64_t)INDEX_LIMIT)
        return 0;
    json_t *root = json_parse_strict((const char *)map->data + LENGTH_BYTES, header,
                                     JSON_DEPTH_DEFAULT, "", NULL);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        const json_int_t last =
            json_integer_value(json_array_get(json_object_get(value, "data_offsets"), 1));
        if (last > 0 && (uint64_t)last > end)
            end = (uint64_t)last;
    }
    json_decref(root);
    return end ? LENGTH_BYTES + header + end : 0;
}

static void read_shard(struct job *j, struct shard *s)
{
    struct error e = {0};
    const char *path = at(j, s->name);
    if (!file_exists(path)) {
        error_set(&e, "CHECKPOINT-MISSING-FILE",
                  "the shard is missing: %zu tensor%s of the index should be in it", s->placed,
                  s->placed == 1 ? "" : "s");
        error_at(&e, path, NULL, NULL);
        add_finding(j, &e);
        return;
    }
    s->there = true;
    if (!file_map_open(path, &s->map, &e)) {
        add_finding(j, &e);
        return;
    }
    s->readable =
        safetensors_parse(j->arena, path, s->map.data, s->map.length, &s->tensors, &s->count, &e);
    if (s->readable) {
        j->report->shards++;
        j->report->tensors += s->count;
        return;
    }
    const uint64_t expected = length_by_header(&s->map);
    if (expected && expected != s->map.length) {
        char value[32];
        snprintf(value, sizeof value, "%zu", s->map.length);
        error_set(&e, "SAFETENSORS-INVALID",
                  "the file is %s: by its header it has %" PRIu64 " bytes",
                  expected > s->map.length ? "cut" : "too long", expected);
        error_at(&e, path, "bytes", value);
    }
    add_finding(j, &e);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static void join_shards(struct job *j)
{
    size_t n = 0;
    j->found = (struct checkpoint){.folder = j->folder};
    j->found.tensors = arena_array(j->arena, j->report->tensors + 1, sizeof *j->found.tensors);
    for (size_t i = 0; i < j->shard_count; i++)
        for (size_t k = 0; k < j->shards[i].count; k++) {
            j->found.tensors[n] = j->shards[i].tensors[k];
            j->found.tensors[n++].shard = (int)i;
        }
    j->found.tensor_count = n;
    if (n)
        qsort(j->found.tensors, n, sizeof *j->found.tensors, compare_tensors);
    for (size_t i = 1; i < n; i++) {
        const struct tensor *a = &j->found.tensors[i - 1], *b = &j->found.tensors[i];
        if (strcmp(a->name, b->name) == 0)
            find(j, "CHECKPOINT-INDEX-MISMATCH", at(j, j->shards[b->shard].name), b->name,
                 j->shards[a->shard].name, "the tensor is in two shards");
    }
}

/* ---- joined ---- */

static const struct entry *find_entry(const struct job *j, const char *tensor)
{
    const struct entry key = {tensor, NULL};
    return j->index_count ? bsearch(&key, j->index, j->index_count, sizeof key, by_tensor) : NULL;
}

/* Which of the three is wrong: in the index and not in a shard; in a shard and not in the index;
 * the shard is missing (read_shard told that). */
static void check_index(struct job *j)
{
    struct names absent = {0}, unplaced = {0}, elsewhere = {0};
    const char *path = at(j, INDEX);
    if (!j->has_index || j->index_count == 0)
        return;
    for (size_t i = 0; i < j->index_count; i++) {
        const struct entry *e = &j->index[i];
        const struct tensor *t = checkpoint_find(&j->found, e->tensor);
        if (t && strcmp(j->shards[t->shard].name, e->shard) != 0) {
            const char *text = arena_printf(j->arena, "%s (in %s, the index says %s)", e->tensor,
                                            j->shards[t->shard].name, e->shard);
            add_name(&elsewhere, text);
        } else if (!t && find_shard(j, e->shard)->readable) {
            add_name(&absent, arena_printf(j->arena, "%s (%s)", e->tensor, e->shard));
        }
    }
    for (size_t i = 0; i < j->found.tensor_count; i++) {
        const struct tensor *t = &j->found.tensors[i];
        if (!find_entry(j, t->name))
            add_name(&unplaced,
                     arena_printf(j->arena, "%s (%s)", t->name, j->shards[t->shard].name));
    }
    find_names(j, &absent, path, "in the index and not in its shard");
    find_names(j, &elsewhere, path, "in another shard");
    find_names(j, &unplaced, path, "in a shard and not in the index");
}

/* What the configuration needs against what the shards have. Tensors that the index has and no
 * shard were told of; those that neither has are missing here. */
static void check_inventory(struct job *j)
{
    struct error e = {0};
    struct inventory all = {.arena = j->arena}, wanted = {.arena = j->arena};
    bool neither = false;
    if (!j->config_read || j->found.tensor_count == 0)
        return;
    laguna_config_inventory(&j->laguna, &all);
    for (size_t i = 0; i < all.count; i++) {
        const struct tensor_spec *s = &all.items[i];
        const bool there = checkpoint_find(&j->found, s->name) != NULL;
        if (!there && find_entry(j, s->name))
            continue;
        neither = neither || !there;
        inventory_add(&wanted, s->name, s->dtype, s->rank, s->shape);
    }
    /* A shard that could not be read may hold them, where no index says what is in it. */
    for (size_t i = 0; neither && i < j->shard_count; i++)
        if (!j->shards[i].readable && !j->shards[i].indexed)
            return;
    if (inventory_check(&wanted, &j->found, &e))
        return;
    if (neither) {
        char text[sizeof e.message];
        text_copy(text, sizeof text, e.message);
        const struct error was = e;
        error_set(&e, was.name, "%s; what is missing is in neither the index nor a shard", text);
        error_at(&e, was.file, was.field, NULL);
    }
    add_finding(j, &e);
}

/* Weights whose experts lie in another folder: what the manifest says of them. A reference, which
 * holds its experts itself, has no manifest. */
static void check_experts(struct job *j)
{
    struct error e = {0};
    struct experts_seen seen;
    const char *reference = getenv(experts_folder_variable);
    bool own = false;
    for (size_t i = 0; i < j->found.tensor_count && !own; i++)
        own = experts_is_expert(j->found.tensors[i].name);
    if (!j->split || own)
        return;
    if (!file_exists(at(j, experts_manifest_name)))
        find(j, "CHECKPOINT-MISSING-FILE", at(j, experts_manifest_name), NULL, NULL,
             "the file is missing, and so are the experts");
    else if (!experts_check(j->folder, reference && *reference ? reference : NULL, &seen, &e))
        add_finding(j, &e);
}

/* ---- the mend ---- */

static void quote(struct buffer *out, const char *text)
{
    buffer_char(out, '\'');
    for (; *text; text++)
        if (*text == '\'')
            buffer_text(out, "'\\''");
        else
            buffer_char(out, *text);
    buffer_char(out, '\'');
}

/* As it is where a shell takes it so. */
static void word(struct buffer *out, const char *text)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                               "0123456789_-./";
    if (text[0] && text[strspn(text, safe)] == '\0')
        buffer_text(out, text);
    else
        quote(out, text);
}

static bool is_sound(const struct job *j, const char *folder)
{
    struct error e = {0};
    struct preflight_report r;
    const struct preflight_options o = {
        .weights = folder, .max_bytes = "none", .no_tokenizer = j->o->no_tokenizer};
    bool sound = preflight(&o, &r, &e);
    /* Downloads are kept as links: a transform reads through them. */
    for (size_t i = 0; sound && i < r.count; i++)
        sound = strcmp(r.findings[i].name, "NOT-A-REGULAR-FILE") == 0 ||
                strcmp(r.findings[i].name, "NOT-A-FOLDER") == 0;
    preflight_free(&r);
    return sound;
}

static bool all_are(const struct preflight_report *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->findings[i].name, name) != 0)
            return false;
    return true;
}

static bool config_has_int8(const json_t *config)
{
    const char *key;
    json_t *module;
    json_object_foreach(json_object_get(config, "quantization"), key, module)
    {
        if (strstr(key, ".self_attn.") &&
            json_integer_value(json_object_get(module, "bits")) == AFFINE_BITS)
            return true;
    }
    return false;
}

/* Attention that is INT8 here and not in the source: it was asked for, and is asked for again. */
static bool was_made_int8(const struct job *j)
{
    json_t *source = NULL;
    if (!j->config || !config_has_int8(j->config) ||
        !checkpoint_read_config(j->o->source, &source, NULL))
        return false;
    const bool made = !config_has_int8(source);
    json_decref(source);
    return made;
}

/* One command: a longer limit where nothing else is wrong; the transform again from a sound source;
 * else what is wrong came from afar and is fetched again. */
static void name_mend(struct job *j)
{
    struct preflight_report *r = j->report;
    struct buffer text = {0};
    if (all_are(r, "WEIGHTS-TOO-LARGE")) {
        word(&text, j->o->program);
        buffer_text(&text, " preflight --max-bytes none --weights ");
        quote(&text, j->folder);
    } else if (j->o->source && is_sound(j, j->o->source)) {
        struct stat st;
        if (lstat(j->folder, &st) == 0) {
            buffer_text(&text, "rm -r -- ");
            quote(&text, j->folder);
            buffer_text(&text, " && ");
        }
        word(&text, j->o->program);
        buffer_text(&text, " transform --source ");
        quote(&text, j->o->source);
        buffer_text(&text, " --out ");
        quote(&text, j->folder);
        if (j->o->int8_attention || was_made_int8(j)) {
            buffer_text(&text, " --int8-attention --contract ");
            quote(&text, j->o->contract
                             ? j->o->contract
                             : arena_printf(j->arena, "tracks/%s/contract.json", j->o->track));
        }
    } else {
        word(&text, j->o->program);
        buffer_text(&text, " fetch ");
        word(&text, j->o->track);
    }
    r->mend = arena_strdup(j->arena, text.data);
    buffer_free(&text);
}

bool preflight(const struct preflight_options *o, struct preflight_report *out, struct error *err)
{
    const int64_t started = clock_now_ns();
    *out = (struct preflight_report){0};
    if (!weights_cap_read(o->max_bytes, &out->max_bytes, err))
        return false;
    out->findings = arena_array(&out->arena, FINDINGS, sizeof *out->findings);
    struct job j = {.o = o, .report = out, .arena = &out->arena, .folder = o->weights};
    if (look_at_folder(&j)) {
        look_at_config(&j);
        look_at_tokenizer(&j);
        read_index(&j);
        list_shards(&j);
        for (size_t i = 0; i < j.shard_count && !interrupt_requested(); i++)
            read_shard(&j, &j.shards[i]);
        join_shards(&j);
        check_index(&j);
        check_inventory(&j);
        check_experts(&j);
    }
    for (size_t i = 0; i < j.shard_count; i++)
        file_unmap(&j.shards[i].map);
    const bool stopped = interrupt_requested();
    if (!stopped && out->count && o->program)
        name_mend(&j);
    json_decref(j.config);
    if (stopped)
        return error_set(err, "INTERRUPTED", "stopped by a signal");
    out->seconds = clock_seconds(started);
    return true;
}

void preflight_free(struct preflight_report *r)
{
    arena_free(&r->arena);
}
