/* Planning what each shard will hold, and writing it tensor by tensor: see transform.h. */
#include "engine/transform/transform.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/formats.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_config.h"
#include "engine/model/laguna_quantization.h"
#include "engine/transform/envelope.h"
#include "engine/transform/experts.h"
#include "engine/transform/rewrite.h"
#include "engine/transform/stream.h"
#include "engine/transform/weights_cap.h"

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

enum { ROOM_BESIDE = 1 << 20, HEADER_ALIGN = 64, INDEX_LIMIT = 64 << 20 };

static const char CONFIG[] = "config.json", INDEX[] = "model.safetensors.index.json";
static const char SOURCE_DIGEST[] = ".benchmark-source.sha256";

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
    size_t count;       /* 0: it holds nothing that is kept, and is left out */
    bool changed;       /* else the source's file as it is */
    struct buffer header;
    uint64_t payload;
    uint64_t file_bytes;
};

/* A file of the source that the result is made of. */
struct input {
    const char *path;
    const char *copied; /* its name where it is copied as it is, else NULL */
    struct stream_stamp before;
};

struct job {
    const struct transform_options *o;
    struct transform_result *result;
    struct error *err;
    struct arena arena;
    struct checkpoint *source;
    struct checkpoint kept; /* a view of it: the tensors of text alone */
    bool split;             /* the tensors that are not of experts, instead of those of text */
    struct laguna_config config;
    json_t *new_config;
    struct shard *shards;
    struct input *inputs;
    size_t input_count, input_room;
    struct buffer config_text, index_text; /* the latter empty where the source has no index */
    struct buffer manifest_text;           /* of experts; empty where there is none */
    struct progress progress;
    struct stream stream;
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
    if (j->split && !j->o->int8_attention)
        return true; /* the format, not the model: no inventory of it is here */
    if (strcmp(k->model_type, "laguna") != 0) {
        error_set(j->err, "UNKNOWN-MODEL-TYPE",
                  j->split ? "only a Laguna has INT8 attention"
                           : "only a Laguna or a DeepSeek V4 can be "
                             "transformed");
        return error_at(j->err, file, "model_type", k->model_type);
    }
    struct inventory inventory = {.arena = &j->arena};
    if (!laguna_config_parse(&j->arena, k->config, file, c, j->err))
        return false;
    laguna_config_inventory(c, &inventory);
    return inventory_check(&inventory, k, j->err);
}

/* ---- which files, which tensors ---- */

bool transform_is_unsealed(const char *name)
{
    return strcmp(name, SOURCE_DIGEST) == 0 || strcmp(name, ".gitkeep") == 0;
}

static bool add_input(struct job *j, const char *name, bool copied)
{
    if (j->input_count == j->input_room) {
        struct input *more =
            arena_array(&j->arena, j->input_room = 2 * j->input_room + 16, sizeof *more);
        if (j->input_count)
            memcpy(more, j->inputs, j->input_count * sizeof *more);
        j->inputs = more;
    }
    struct input *i = &j->inputs[j->input_count++];
    *i = (struct input){.path = path_join(&j->arena, j->source->folder, name),
                        .copied = copied ? arena_strdup(&j->arena, name) : NULL};
    return stream_stamp_take(i->path, &i->before, j->err);
}

/* Tokenizer and the like (dflash-track.md section 14). */
static bool is_metadata(const char *name)
{
    static const char *const endings[] = {".json", ".model", ".tiktoken", ".txt"};
    if (name[0] == '.' || strcmp(name, CONFIG) == 0 || strcmp(name, INDEX) == 0)
        return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (text_ends(name, endings[i]))
            return true;
    return false;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct input *)a)->path, ((const struct input *)b)->path);
}

static bool refuse_name(struct job *j, const char *name)
{
    error_set(j->err, "FILE-NAME-INVALID", "a file's name holds a newline");
    return error_at(j->err, j->source->folder, NULL, name);
}

static bool list_metadata(struct job *j)
{
    const char *folder = j->source->folder;
    DIR *d = opendir(folder);
    bool ok = d || error_errno(j->err, folder, "cannot open");
    const struct dirent *e;
    while (ok && (e = readdir(d))) {
        struct stat st;
        if (!is_metadata(e->d_name) || fstatat(dirfd(d), e->d_name, &st, 0) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        ok = strchr(e->d_name, '\n') ? refuse_name(j, e->d_name) : add_input(j, e->d_name, true);
    }
    if (d)
        closedir(d);
    return ok;
}

static bool list_inputs(struct job *j)
{
    bool ok = add_input(j, CONFIG, false);
    if (file_exists(path_join(&j->arena, j->source->folder, INDEX)))
        ok = ok && add_input(j, INDEX, false);
    for (size_t s = 0; ok && s < j->source->shard_count; s++) {
        const char *name = j->source->shards[s].file_name;
        ok = strchr(name, '\n') ? refuse_name(j, name) : add_input(j, name, false);
    }
    ok = ok && list_metadata(j);
    if (ok)
        qsort(j->inputs, j->input_count, sizeof *j->inputs, by_path);
    return ok;
}

/* What was read is what still stands there: the same files, unchanged. */
static bool check_inputs(struct job *j)
{
    for (size_t i = 0; i < j->input_count; i++)
        if (!stream_stamp_check(j->inputs[i].path, &j->inputs[i].before, j->err))
            return false;
    struct job again = {.arena = j->arena, .source = j->source, .err = j->err};
    const bool ok = list_metadata(&again);
    j->arena = again.arena;
    size_t copied = 0;
    for (size_t i = 0; i < j->input_count; i++)
        copied += j->inputs[i].copied != NULL;
    if (!ok || again.input_count == copied)
        return ok;
    char value[32];
    snprintf(value, sizeof value, "%zu", again.input_count);
    error_set(j->err, "SOURCE-CHANGED", "there were %zu files beside the weights", copied);
    return error_at(j->err, j->source->folder, "files", value);
}

/* A tensor of text that an engine loads: rotary frequencies are computed. */
static bool is_kept(const char *name)
{
    return (text_starts(name, "model.") || text_starts(name, "lm_head.")) &&
           !text_ends(name, "rotary_emb.inv_freq");
}

static void select_tensors(struct job *j)
{
    const struct checkpoint *k = j->source;
    j->kept = *k;
    j->kept.tensors = arena_array(&j->arena, k->tensor_count + 1, sizeof *j->kept.tensors);
    j->kept.tensor_count = 0;
    j->kept.tensor_bytes = 0;
    for (size_t i = 0; i < k->tensor_count; i++) {
        const struct tensor *t = &k->tensors[i];
        if (j->split ? !experts_is_expert(t->name) : is_kept(t->name)) {
            j->kept.tensors[j->kept.tensor_count++] = *t;
            j->kept.tensor_bytes += t->bytes;
        } else if (j->split) {
            j->result->experts++;
            j->result->expert_bytes += t->bytes;
        } else {
            j->result->dropped++;
            j->result->dropped_bytes += t->bytes;
        }
    }
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
    rewrite_config_add_int8(j->new_config, module);
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

static void plan_shards(struct job *j)
{
    const struct checkpoint *k = j->source;
    const struct tensor **order = arena_array(&j->arena, k->tensor_count + 1, sizeof *order);
    j->shards = arena_array(&j->arena, k->shard_count, sizeof *j->shards);
    for (size_t s = 0; s < k->shard_count; s++) {
        size_t n = 0, all = 0;
        for (size_t i = 0; i < k->tensor_count; i++)
            all += k->tensors[i].shard == (int)s;
        for (size_t i = 0; i < j->kept.tensor_count; i++)
            if (j->kept.tensors[i].shard == (int)s)
                order[n++] = &j->kept.tensors[i];
        if (!j->split) /* there the spec wants them by name, as they are */
            qsort(order, n, sizeof *order, by_place);
        struct shard *to = &j->shards[s];
        to->name = k->shards[s].file_name;
        to->items = arena_array(&j->arena, 3 * n + 1, sizeof *to->items);
        to->changed = n < all;
        for (size_t i = 0; i < n; i++)
            plan_tensor(j, to, order[i]);
        if (n == 0)
            continue;
        if (to->changed)
            write_header(to);
        to->file_bytes = to->changed ? to->header.length + to->payload : k->shards[s].map.length;
        j->result->shards++;
        j->result->cloned += !to->changed;
    }
}

static bool plan_index(struct job *j)
{
    const char *path = path_join(&j->arena, j->source->folder, INDEX);
    if (!file_exists(path)) /* one file without an index */
        return true;
    struct buffer text = {0};
    json_t *map = json_object();
    for (size_t s = 0; s < j->source->shard_count; s++)
        for (size_t i = 0; i < j->shards[s].count; i++)
            json_object_set_new(map, j->shards[s].items[i].spec.name,
                                json_string(j->shards[s].name));
    const bool ok =
        file_read(path, INDEX_LIMIT, &text, j->err) &&
        rewrite_index(text.data, text.length, path, map, j->result->bytes, &j->index_text, j->err);
    buffer_free(&text);
    json_decref(map);
    return ok;
}

static bool plan_manifest(struct job *j)
{
    char *path;
    return experts_find_path(&j->arena, j->o->placed_at ? j->o->placed_at : j->o->out,
                             j->source->folder, &path, j->err) &&
           experts_write_manifest(&j->arena, j->source, path, &j->manifest_text, j->err);
}

/* Everything that will be written is known before anything is. */
static bool plan(struct job *j)
{
    struct transform_result *r = j->result;
    j->new_config = rewrite_config(j->source->config);
    plan_shards(j);
    rewrite_text(j->new_config, &j->config_text);
    if (!plan_index(j) || (j->split && !plan_manifest(j)))
        return false;
    r->source_bytes = j->source->tensor_bytes;
    r->source_bytes_per_token = j->split ? 0 : laguna_config_bytes_per_token(&j->config);
    r->file_bytes = j->config_text.length + j->index_text.length + j->manifest_text.length;
    for (size_t s = 0; s < j->source->shard_count; s++)
        r->file_bytes += j->shards[s].file_bytes;
    for (size_t i = 0; i < j->input_count; i++)
        r->file_bytes += j->inputs[i].copied ? j->inputs[i].before.bytes : 0;
    return true;
}

/* Room for what is written; a clone that shares its blocks takes none. */
static bool check_space(struct job *j, const struct folder_build *build)
{
    uint64_t bytes = j->result->file_bytes + ROOM_BESIDE;
    for (size_t s = 0; s < j->source->shard_count; s++) {
        const struct shard *to = &j->shards[s];
        if (to->count && !to->changed &&
            stream_shares_blocks(path_join(&j->arena, j->source->folder, to->name), build->parent))
            bytes -= to->file_bytes;
    }
    return folder_check_space(build, bytes, j->err);
}

/* ---- writing ---- */

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
static bool write_quantized(struct job *j, const struct stream_source *from, uint64_t at_source,
                            struct folder_file *f, const struct item *items)
{
    enum { ROUND = 1 << 20 }; /* values in hand */
    const struct tensor *t = items[0].from;
    const size_t n = (size_t)t->shape[0] * (size_t)t->shape[1];
    uint16_t *scales = memory_alloc(items[1].bytes + 1), *biases = memory_alloc(items[2].bytes + 1);
    float *x = memory_alloc(2 * ROUND * sizeof *x), *back = x + ROUND;
    uint8_t *codes = memory_alloc(ROUND);
    uint16_t *raw = memory_alloc(ROUND * sizeof *raw);
    bool ok = true;
    for (size_t at = 0; ok && at < n; at += ROUND) {
        const size_t count = n - at < ROUND ? n - at : ROUND, group = at / AFFINE_GROUP;
        ok = stream_read(from, at_source + at * sizeof *raw, raw, count * sizeof *raw, j->err);
        for (size_t i = 0; ok && i < count; i++)
            x[i] = bf16_to_f32(raw[i]);
        ok = ok &&
             (affine_quantize(x, count, codes, scales + group, biases + group) || not_finite(j, t));
        if (ok) {
            affine_dequantize(codes, scales + group, biases + group, count, back);
            add_errors(j, x, back, count);
            ok = stream_write(&j->stream, f, codes, count);
        }
    }
    ok = ok && stream_write(&j->stream, f, scales, items[1].bytes) &&
         stream_write(&j->stream, f, biases, items[2].bytes);
    free(scales);
    free(biases);
    free(x);
    free(codes);
    free(raw);
    return ok;
}

static bool write_items(struct job *j, const struct stream_source *from, struct folder_file *f,
                        const struct shard *s)
{
    bool ok = stream_write(&j->stream, f, s->header.data, s->header.length);
    for (size_t i = 0; ok && i < s->count; i++) {
        const struct item *t = &s->items[i];
        const uint64_t at = (uint64_t)(t->from->data - j->source->shards[t->from->shard].map.data);
        if (t->part == PART_COPY) {
            ok = stream_copy(&j->stream, from, at, t->bytes, f);
        } else {
            ok = write_quantized(j, from, at, f, t);
            i += 2;
        }
    }
    return ok;
}

/* One file of the result: a shard's items, or a source's file as it is. */
static bool write_from(struct job *j, const struct folder_build *build, const char *name,
                       const struct shard *items)
{
    struct stream_source from;
    struct folder_file f;
    if (!stream_open(path_join(&j->arena, j->source->folder, name), &from, j->err))
        return false;
    bool ok = folder_create_file(build, name, &f, j->err);
    if (ok) {
        ok = items ? write_items(j, &from, &f, items) : stream_clone(&j->stream, &from, &f);
        ok = folder_close_file(&f, ok, j->err);
    }
    stream_close(&from);
    j->result->files += ok;
    return ok;
}

static bool write_text(struct job *j, const struct folder_build *build, const char *name,
                       const char *text, size_t length)
{
    struct folder_file f;
    if (!folder_create_file(build, name, &f, j->err))
        return false;
    const bool ok = stream_write(&j->stream, &f, text, length);
    if (!folder_close_file(&f, ok, j->err))
        return false;
    j->result->files++;
    return true;
}

/* The result is opened as an engine would, before it is put in place. */
static bool read_back(struct job *j, const char *folder)
{
    struct checkpoint *k;
    struct laguna_config c;
    if (!checkpoint_open(folder, &k, j->err))
        return false;
    struct experts_seen seen;
    const bool ok = check_inventory(j, k, &c) &&
                    (!j->split || experts_check(folder, j->source->folder, &seen, j->err));
    if (ok && !j->split)
        j->result->bytes_per_token = laguna_config_bytes_per_token(&c);
    checkpoint_close(k);
    return ok;
}

static bool write_folder(struct job *j, struct folder_build *build)
{
    bool ok = folder_begin(build, j->err);
    if (!ok)
        return false;
    progress_begin(&j->progress, "writing weights", "bytes", j->result->file_bytes);
    for (size_t s = 0; ok && s < j->source->shard_count; s++)
        if (j->shards[s].count)
            ok = write_from(j, build, j->shards[s].name,
                            j->shards[s].changed ? &j->shards[s] : NULL);
    for (size_t i = 0; ok && i < j->input_count; i++)
        if (j->inputs[i].copied)
            ok = write_from(j, build, j->inputs[i].copied, NULL);
    ok = ok && write_text(j, build, CONFIG, j->config_text.data, j->config_text.length);
    if (j->index_text.length)
        ok = ok && write_text(j, build, INDEX, j->index_text.data, j->index_text.length);
    if (j->manifest_text.length)
        ok = ok && write_text(j, build, experts_manifest_name, j->manifest_text.data,
                              j->manifest_text.length);
    progress_end(&j->progress);
    const char *digest = arena_printf(&j->arena, "%s\n", transform_source_sha256);
    ok = ok && write_text(j, build, SOURCE_DIGEST, digest, strlen(digest)) && check_inputs(j) &&
         read_back(j, build->temporary);
    if (ok && j->o->inspect)
        ok = j->o->inspect(j->o->context, build->temporary, j->err);
    if (ok && interrupt_requested())
        ok = error_set(j->err, "INTERRUPTED", "stopped by a signal");
    const bool placed = ok && !j->o->inspect && folder_commit(build, j->err);
    if (!placed)
        folder_abandon(build);
    return placed || (ok && j->o->inspect);
}

static bool make(struct job *j)
{
    struct folder_build build;
    if (!weights_cap_read(j->o->max_bytes, &j->result->max_bytes, j->err) || !check_permitted(j) ||
        !checkpoint_open(j->o->source, &j->source, j->err) || !list_inputs(j))
        return false;
    j->split = experts_is_split(j->source->model_type);
    select_tensors(j);
    if (!check_inventory(j, &j->kept, &j->config) ||
        !folder_plan(&j->arena, j->o->out, &build, j->err) || !plan(j) ||
        !weights_cap_check(j->result->max_bytes, j->result->file_bytes, j->o->out, j->err))
        return false;
    build.scratch = j->o->inspect != NULL;
    return check_space(j, &build) && write_folder(j, &build);
}

bool transform(const struct transform_options *o, struct transform_result *result,
               struct error *err)
{
    *result = (struct transform_result){0};
    struct error own = {0};
    const int64_t started = clock_now_ns();
    struct job j = {
        .o = o, .result = result, .err = err ? err : &own, .progress = {.quiet = o->quiet}};
    j.stream = (struct stream){.progress = &j.progress, .err = j.err};
    const bool ok = make(&j);
    result->seconds = clock_seconds(started);
    result->relative_error = j.squares > 0 ? sqrt(j.error_squares / j.squares) : 0;
    for (size_t i = 0; j.shards && i < j.source->shard_count; i++)
        buffer_free(&j.shards[i].header);
    buffer_free(&j.config_text);
    buffer_free(&j.index_text);
    buffer_free(&j.manifest_text);
    json_decref(j.new_config);
    checkpoint_close(j.source);
    arena_free(&j.arena);
    return ok;
}
