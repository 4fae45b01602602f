/* Planning what each shard will hold, and writing it tensor by tensor: see transform.h. */
#include "engine/transform/transform.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/terminal.h"
#include "engine/checkpoint/formats.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_config.h"
#include "engine/model/laguna_quantization.h"
#include "engine/transform/envelope.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 4 << 20, ROOM_BESIDE = 1 << 20, HEADER_ALIGN = 64 };

static const char CONFIG[] = "config.json", INDEX[] = "model.safetensors.index.json";

/* A tensor of the result: a source's as it is, or one of the three of a quantised projection. */
enum part { PART_COPY, PART_CODES, PART_SCALES, PART_BIASES };
struct item {
    struct tensor_spec spec;
    const struct tensor *from;
    enum part part;
    uint64_t bytes;
};

struct shard {
    const char *name;
    struct item *items; /* in the order of the source's data */
    size_t count;
    bool changed;
    struct buffer header;
    uint64_t payload;
};

struct job {
    const struct transform_options *o;
    struct transform_result *result;
    struct error *err;
    struct arena arena;
    struct checkpoint *source;
    struct laguna_config config;
    json_t *changed_config; /* NULL: as it is */
    struct shard *shards;
    const char **others; /* files beside the weights, copied */
    size_t other_count;
    struct progress progress;
    uint64_t done;
    double error_squares, squares;
};

/* ---- what is permitted, and the source ---- */

static bool check_permitted(struct job *j)
{
    struct quantization_envelope envelope = {0};
    if (j->o->contract && !envelope_read(j->o->contract, &envelope, j->err))
        return false;
    if (!j->o->int8_attention || envelope.attention_int8_group32)
        return true;
    error_set(j->err, "QUANTIZATION-NOT-PERMITTED",
              j->o->contract ? "the contract does not permit INT8 attention"
                             : "INT8 attention needs a --contract that permits it");
    return error_at(j->err, j->o->contract, "quantization_envelope.attention_int8_group32", NULL);
}

static bool check_inventory(struct job *j, const struct checkpoint *k, struct laguna_config *c)
{
    const char *file = path_join(&j->arena, k->folder, CONFIG);
    if (strcmp(k->model_type, "laguna") != 0) {
        error_set(j->err, "UNKNOWN-MODEL-TYPE", "only a Laguna can be transformed");
        return error_at(j->err, file, "model_type", k->model_type);
    }
    struct inventory inventory = {.arena = &j->arena};
    if (!laguna_config_parse(&j->arena, k->config, file, c, j->err))
        return false;
    laguna_config_inventory(c, &inventory);
    return inventory_check(&inventory, k, j->err);
}

/* Regular files of the folder itself that are no weights and not hidden: tokenizer, licence. */
static bool list_others(struct job *j)
{
    const char *folder = j->source->folder;
    DIR *d = opendir(folder);
    if (!d)
        return error_errno(j->err, folder, "cannot open");
    size_t room = 0;
    const struct dirent *e;
    while ((e = readdir(d))) {
        struct stat st;
        const char *path = path_join(&j->arena, folder, e->d_name);
        if (e->d_name[0] == '.' || text_ends(e->d_name, ".safetensors") ||
            strcmp(e->d_name, CONFIG) == 0 || strcmp(e->d_name, INDEX) == 0 ||
            stat(path, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (j->other_count == room) {
            const char **more = arena_array(&j->arena, room = 2 * room + 16, sizeof *more);
            if (j->other_count)
                memcpy(more, j->others, j->other_count * sizeof *more);
            j->others = more;
        }
        j->others[j->other_count++] = arena_strdup(&j->arena, e->d_name);
    }
    closedir(d);
    return true;
}

/* ---- the plan ---- */

static struct item *add_item(struct job *j, struct shard *s, const struct tensor *from,
                             enum part part, const char *name, enum dtype dtype, int64_t columns)
{
    struct item *i = &s->items[s->count++];
    i->from = from;
    i->part = part;
    i->spec.name = name;
    i->spec.dtype = dtype;
    i->spec.rank = from->rank;
    memcpy(i->spec.shape, from->shape, sizeof i->spec.shape);
    if (part != PART_COPY)
        i->spec.shape[1] = columns;
    i->bytes = part == PART_COPY ? from->bytes
                                 : (uint64_t)from->shape[0] * (uint64_t)columns * dtype_size(dtype);
    s->payload += i->bytes;
    j->result->bytes += i->bytes;
    j->result->tensors++;
    return i;
}

/* The projection that a tensor is the weight of, or -1. */
static int projection_of(const struct job *j, const char *name, int *layer)
{
    char wanted[96];
    for (int l = 0; l < j->config.layer_count; l++) {
        const int n = snprintf(wanted, sizeof wanted, "model.layers.%d.self_attn.", l);
        if (strncmp(name, wanted, (size_t)n) != 0)
            continue;
        for (int p = 0; p < LAGUNA_PROJECTIONS; p++) {
            snprintf(wanted + n, sizeof wanted - (size_t)n, "%s.weight",
                     laguna_projection_names[p]);
            if (strcmp(name, wanted) == 0) {
                *layer = l;
                return p;
            }
        }
    }
    return -1;
}

static void add_entry(struct job *j, const char *module)
{
    static const char *const blocks[] = {"quantization", "quantization_config"};
    if (!j->changed_config)
        j->changed_config = json_deep_copy(j->source->config);
    for (size_t i = 0; i < 2; i++) {
        json_t *block = json_object_get(j->changed_config, blocks[i]);
        if (json_is_object(block))
            json_object_set_new(block, module,
                                json_pack("{s:i, s:i, s:s}", "group_size", AFFINE_GROUP, "bits",
                                          AFFINE_BITS, "mode", "affine"));
    }
}

static void plan_tensor(struct job *j, struct shard *s, const struct tensor *t)
{
    int layer = 0;
    const int p = j->o->int8_attention ? projection_of(j, t->name, &layer) : -1;
    if (p >= 0 && j->config.layers[layer].int8 >> p & 1)
        j->result->int8_before++;
    else if (p >= 0 && t->shape[1] % AFFINE_GROUP != 0)
        j->result->kept++;
    if (p < 0 || t->dtype != DTYPE_BF16 || t->shape[1] % AFFINE_GROUP != 0) {
        add_item(j, s, t, PART_COPY, t->name, t->dtype, 0);
        return;
    }
    const size_t length = strlen(t->name) - strlen(".weight");
    const char *module = arena_strndup(&j->arena, t->name, length);
    const int64_t in = t->shape[1];
    add_item(j, s, t, PART_CODES, t->name, DTYPE_U32, in / AFFINE_CODES_PER_WORD);
    add_item(j, s, t, PART_SCALES, arena_printf(&j->arena, "%s.scales", module), DTYPE_BF16,
             in / AFFINE_GROUP);
    add_item(j, s, t, PART_BIASES, arena_printf(&j->arena, "%s.biases", module), DTYPE_BF16,
             in / AFFINE_GROUP);
    add_entry(j, module);
    s->changed = true;
    j->result->quantized++;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;
    return (*x)->data < (*y)->data   ? -1
           : (*x)->data > (*y)->data ? 1
                                     : strcmp((*x)->name, (*y)->name);
}

static void write_header(struct shard *s)
{
    struct buffer text = {0};
    uint64_t at = 0;
    buffer_text(&text, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < s->count; i++) {
        const struct item *t = &s->items[i];
        buffer_char(&text, ',');
        json_write_string(t->spec.name, strlen(t->spec.name), &text);
        buffer_printf(&text, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->spec.dtype));
        for (int k = 0; k < t->spec.rank; k++)
            buffer_printf(&text, "%s%" PRId64, k ? "," : "", t->spec.shape[k]);
        buffer_printf(&text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    buffer_char(&text, '}');
    while ((text.length + 8) % HEADER_ALIGN != 0)
        buffer_char(&text, ' ');
    for (int i = 0; i < 8; i++)
        buffer_char(&s->header, (char)((uint64_t)text.length >> (8 * i) & 0xff));
    buffer_append(&s->header, text.data, text.length);
    buffer_free(&text);
}

static void plan(struct job *j)
{
    const struct checkpoint *k = j->source;
    const struct tensor **order = arena_array(&j->arena, k->tensor_count + 1, sizeof *order);
    j->shards = arena_array(&j->arena, k->shard_count, sizeof *j->shards);
    for (size_t s = 0; s < k->shard_count; s++) {
        size_t n = 0;
        for (size_t i = 0; i < k->tensor_count; i++)
            if (k->tensors[i].shard == (int)s)
                order[n++] = &k->tensors[i];
        qsort(order, n, sizeof *order, by_place);
        struct shard *to = &j->shards[s];
        to->name = k->shards[s].file_name;
        to->items = arena_array(&j->arena, 3 * n + 1, sizeof *to->items);
        for (size_t i = 0; i < n; i++)
            plan_tensor(j, to, order[i]);
        if (to->changed)
            write_header(to);
    }
    j->result->shards = k->shard_count;
    j->result->source_bytes = k->tensor_bytes;
    j->result->source_bytes_per_token = laguna_config_bytes_per_token(&j->config);
}

/* ---- writing ---- */

static bool write_pieces(struct job *j, struct folder_file *f, const void *data, uint64_t length)
{
    for (uint64_t at = 0; at < length; at += PIECE) {
        const size_t n = length - at < PIECE ? (size_t)(length - at) : PIECE;
        if (!folder_write_file(f, (const char *)data + at, n, j->err))
            return false;
        progress_update(&j->progress, j->done += n);
    }
    return true;
}

static bool not_finite(struct job *j, const struct tensor *t)
{
    error_set(j->err, "WEIGHTS-NOT-FINITE", "a value is not finite, or a group beyond float32");
    return error_at(j->err,
                    path_join(&j->arena, j->source->folder, j->source->shards[t->shard].file_name),
                    t->name, NULL);
}

static void add_errors(struct job *j, const float *x, const float *back, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double d = (double)back[i] - (double)x[i];
        j->error_squares += d * d;
        j->squares += (double)x[i] * (double)x[i];
    }
}

/* items[0..3) are the codes, scales and biases of one projection. */
static bool write_quantized(struct job *j, struct folder_file *f, const struct item *items)
{
    enum { ROUND = 1 << 20 }; /* values in hand */
    const struct tensor *t = items[0].from;
    const size_t n = (size_t)t->shape[0] * (size_t)t->shape[1];
    uint16_t *scales = memory_alloc(items[1].bytes + 1), *biases = memory_alloc(items[2].bytes + 1);
    float *x = memory_alloc(2 * ROUND * sizeof *x), *back = x + ROUND;
    uint8_t *codes = memory_alloc(ROUND);
    bool ok = true;
    for (size_t at = 0; ok && at < n; at += ROUND) {
        const size_t count = n - at < ROUND ? n - at : ROUND, group = at / AFFINE_GROUP;
        for (size_t i = 0; i < count; i++) {
            uint16_t b;
            memcpy(&b, t->data + 2 * (at + i), sizeof b);
            x[i] = bf16_to_f32(b);
        }
        ok = affine_quantize(x, count, codes, scales + group, biases + group) || not_finite(j, t);
        if (ok) {
            affine_dequantize(codes, scales + group, biases + group, count, back);
            add_errors(j, x, back, count);
            ok = write_pieces(j, f, codes, count);
        }
    }
    ok = ok && write_pieces(j, f, scales, items[1].bytes) &&
         write_pieces(j, f, biases, items[2].bytes);
    free(scales);
    free(biases);
    free(x);
    free(codes);
    return ok;
}

static bool write_items(struct job *j, struct folder_file *f, const struct shard *s)
{
    bool ok = folder_write_file(f, s->header.data, s->header.length, j->err);
    for (size_t i = 0; ok && i < s->count; i++) {
        if (s->items[i].part == PART_COPY) {
            ok = write_pieces(j, f, s->items[i].from->data, s->items[i].bytes);
        } else {
            ok = write_quantized(j, f, &s->items[i]);
            i += 2;
        }
    }
    return ok;
}

/* One file of the result: a shard's items, or all bytes of a map. */
static bool write_file(struct job *j, const struct folder_build *build, const char *name,
                       const struct shard *s, const struct file_map *whole)
{
    struct folder_file f;
    if (!folder_create_file(build, name, &f, j->err))
        return false;
    bool ok = whole ? write_pieces(j, &f, whole->data, whole->length) : write_items(j, &f, s);
    ok = folder_close_file(&f, ok, j->err);
    j->result->files += ok;
    return ok;
}

static bool copy_file(struct job *j, const struct folder_build *build, const char *name)
{
    struct file_map map;
    if (!file_map_open(path_join(&j->arena, j->source->folder, name), &map, j->err))
        return false;
    const bool ok = write_file(j, build, name, NULL, &map);
    file_unmap(&map);
    return ok;
}

static bool write_json(struct job *j, const char *folder, const char *name, const json_t *value,
                       int indent)
{
    struct buffer text = {0};
    json_write_ordered(value, indent, &text);
    buffer_char(&text, '\n');
    const bool ok =
        file_write_atomic(path_join(&j->arena, folder, name), text.data, text.length, j->err);
    buffer_free(&text);
    j->result->files += ok;
    return ok;
}

struct place {
    const char *tensor, *file;
};

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->tensor, ((const struct place *)b)->tensor);
}

/* The source's index with the new tensors; what else it says of the whole stays. */
static bool write_index(struct job *j, const char *folder)
{
    const char *path = path_join(&j->arena, j->source->folder, INDEX);
    if (!file_exists(path)) /* one file without an index */
        return true;
    json_t *index = json_read_file(path, (size_t)256 << 20, JSON_DEPTH_DEFAULT, j->err);
    if (!index)
        return false;
    struct place *places = arena_array(&j->arena, j->result->tensors + 1, sizeof *places);
    size_t n = 0;
    for (size_t s = 0; s < j->result->shards; s++)
        for (size_t i = 0; i < j->shards[s].count; i++)
            places[n++] = (struct place){j->shards[s].items[i].spec.name, j->shards[s].name};
    qsort(places, n, sizeof *places, by_tensor);
    json_t *map = json_object(), *metadata = json_object_get(index, "metadata");
    for (size_t i = 0; i < n; i++)
        json_object_set_new(map, places[i].tensor, json_string(places[i].file));
    if (!metadata) {
        metadata = json_object();
        json_object_set_new(index, "metadata", metadata);
    }
    json_object_set_new(metadata, "total_size", json_integer((json_int_t)j->result->bytes));
    json_object_set_new(index, "weight_map", map);
    const bool ok = write_json(j, folder, INDEX, index, 4);
    json_decref(index);
    return ok;
}

/* The result is opened as an engine would, before it is put in place. */
static bool read_back(struct job *j, const char *folder)
{
    struct checkpoint *k;
    struct laguna_config c;
    if (!checkpoint_open(folder, &k, j->err))
        return false;
    const bool ok = check_inventory(j, k, &c);
    if (ok)
        j->result->bytes_per_token = laguna_config_bytes_per_token(&c);
    checkpoint_close(k);
    return ok;
}

static bool write_folder(struct job *j, struct folder_build *build)
{
    const struct checkpoint *k = j->source;
    const char *to = build->temporary;
    if (!folder_begin(build, j->err))
        return false;
    progress_begin(&j->progress, "writing weights", "bytes", j->result->bytes);
    bool ok = true;
    for (size_t i = 0; ok && i < k->shard_count; i++)
        ok = write_file(j, build, j->shards[i].name, &j->shards[i],
                        j->shards[i].changed ? NULL : &k->shards[i].map);
    progress_end(&j->progress);
    for (size_t i = 0; ok && i < j->other_count; i++)
        ok = copy_file(j, build, j->others[i]);
    if (j->changed_config)
        ok = ok && write_json(j, to, CONFIG, j->changed_config, 2) && write_index(j, to);
    else
        ok = ok && copy_file(j, build, CONFIG) &&
             (!file_exists(path_join(&j->arena, k->folder, INDEX)) || copy_file(j, build, INDEX));
    ok = ok && read_back(j, to);
    if (ok && interrupt_requested())
        ok = error_set(j->err, "INTERRUPTED", "stopped by a signal");
    ok = ok && folder_commit(build, j->err);
    if (!ok)
        folder_abandon(build);
    return ok;
}

static bool make(struct job *j)
{
    struct folder_build build;
    if (!check_permitted(j) || !checkpoint_open(j->o->source, &j->source, j->err) ||
        !check_inventory(j, j->source, &j->config) ||
        !folder_plan(&j->arena, j->o->out, &build, j->err) || !list_others(j))
        return false;
    plan(j);
    return folder_check_space(&build, j->result->bytes + ROOM_BESIDE, j->err) &&
           write_folder(j, &build);
}

bool transform(const struct transform_options *o, struct transform_result *result,
               struct error *err)
{
    *result = (struct transform_result){0};
    struct error own = {0};
    const int64_t started = clock_now_ns();
    struct job j = {
        .o = o, .result = result, .err = err ? err : &own, .progress = {.quiet = o->quiet}};
    const bool ok = make(&j);
    result->seconds = clock_seconds(started);
    result->relative_error = j.squares > 0 ? sqrt(j.error_squares / j.squares) : 0;
    for (size_t i = 0; j.shards && i < j.source->shard_count; i++)
        buffer_free(&j.shards[i].header);
    json_decref(j.changed_config);
    checkpoint_close(j.source);
    arena_free(&j.arena);
    return ok;
}
