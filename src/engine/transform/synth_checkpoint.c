#include "engine/transform/synth_checkpoint.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/terminal.h"
#include "engine/checkpoint/formats.h"
#include "engine/memory/cores.h"
#include "engine/model/config_reader.h"
#include "engine/model/dflash_config.h"
#include "engine/model/laguna_config.h"
#include "engine/model/laguna_quantization.h"
#include "engine/transform/rewrite.h"
#include "engine/transform/synth_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ALIGN = 4096, ROOM_BESIDE = 1 << 20 /* config, index, folder */ };

/* Published shards end before this many bytes of tensors; so ours divide at the same tensors. */
static const uint64_t SHARD_BYTES = (uint64_t)5 << 30;

struct shard {
    const struct tensor_spec *tensors;
    size_t count;
    uint64_t payload;
    const char *name;
    struct buffer header;
    struct folder_file file; /* while it is written */
    bool open;
};

struct job {
    const struct synth_options *o;
    struct synth_result *result;
    struct error *err;
    struct arena arena;
    json_t *config;
    struct buffer config_text;
    bool drafter;
    struct laguna_config *laguna; /* NULL: a drafter's */
    struct tensor_spec *tensors;  /* in the order of the files */
    size_t count;
    struct shard *shards;
    size_t shard_count;
    struct progress progress;
};

static bool refuse(struct job *j, const char *name, const char *what, const char *field,
                   const char *value)
{
    error_set(j->err, name, "%s", what);
    return error_at(j->err, strcmp(name, "USAGE") == 0 ? NULL : j->o->config, field, value);
}

/* ---- the configuration and its slice ---- */

static int layers_in(const json_t *config)
{
    const json_t *n = json_object_get(config, "num_hidden_layers");
    return json_is_integer(n) && json_integer_value(n) <= INT32_MAX ? (int)json_integer_value(n)
                                                                    : -1;
}

static void cut_list(json_t *config, const char *key, int layers)
{
    json_t *list = json_object_get(config, key);
    while (json_is_array(list) && json_array_size(list) > (size_t)layers)
        json_array_remove(list, json_array_size(list) - 1);
}

/* The first layers only: the per-layer lists are cut, and lists of layers lose those beyond. */
static void cut_config(json_t *config, int layers)
{
    static const char *const lists[] = {"num_attention_heads_per_layer", "layer_types",
                                        "mlp_layer_types", "gating_types"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        cut_list(config, lists[i], layers);
    json_t *dense = json_object_get(config, "mlp_only_layers");
    for (size_t i = json_is_array(dense) ? json_array_size(dense) : 0; i-- > 0;)
        if (json_integer_value(json_array_get(dense, i)) >= layers)
            json_array_remove(dense, i);
    json_object_set_new(config, "num_hidden_layers", json_integer(layers));
}

/* The target's layers whose rows a drafter takes, brought into a slice of it: its last stays the
 * last, the others keep their proportion, none is named twice. */
static bool fit_target(struct job *j, int layers)
{
    json_t *block = json_object_get(j->config, "dflash_config");
    json_t *taps = json_object_get(block, "target_layer_ids");
    const int count = (int)json_array_size(taps);
    const int64_t whole = json_integer_value(json_object_get(j->config, "num_target_layers"));
    if (count > layers)
        return refuse(j, "CONFIG-INVALID", "it takes rows of more layers than the target has",
                      "dflash_config.target_layer_ids", NULL);
    for (int i = 0; i < count; i++) {
        const int64_t was = json_integer_value(json_array_get(taps, (size_t)i));
        int64_t now = whole > 1 ? was * (layers - 1) / (whole - 1) : 0;
        for (int k = 0; k < i; k++) /* at most count steps: there are as many layers */
            if (json_integer_value(json_array_get(taps, (size_t)k)) == now)
                now = (now + 1) % layers, k = -1;
        json_array_set_new(taps, (size_t)i, json_integer(now));
    }
    json_object_set_new(j->config, "num_target_layers", json_integer(layers));
    return true;
}

static bool parse_config(struct job *j, struct inventory *inventory)
{
    const char *file = j->o->config;
    if (j->drafter) {
        struct dflash_config *c = arena_alloc(&j->arena, sizeof *c);
        if (!dflash_config_parse(&j->arena, j->config, file, c, j->err))
            return false;
        dflash_config_inventory(c, DFLASH_REPACKED, inventory);
        j->result->layers = c->layer_count;
        return true;
    }
    struct laguna_config *c = j->laguna = arena_alloc(&j->arena, sizeof *c);
    if (!laguna_config_parse(&j->arena, j->config, file, c, j->err))
        return false;
    laguna_config_inventory(c, inventory);
    j->result->layers = c->layer_count;
    return true;
}

/* As `mlxfast transform --int8-attention` stores it. */
static void set_int8(struct job *j)
{
    for (int l = 0; l < j->laguna->layer_count; l++)
        for (int p = 0; p < LAGUNA_PROJECTIONS; p++) {
            int out, in;
            laguna_projection_shape(j->laguna, l, (enum laguna_projection)p, &out, &in);
            if (in % AFFINE_GROUP == 0)
                rewrite_config_add_int8(j->config,
                                        arena_printf(&j->arena, "model.layers.%d.self_attn.%s", l,
                                                     laguna_projection_names[p]));
        }
}

static bool read_config(struct job *j, struct inventory *inventory)
{
    const struct synth_options *o = j->o;
    char value[32];
    if (!file_read(o->config, 1 << 20, &j->config_text, j->err))
        return false;
    j->config = json_parse_strict(j->config_text.data ? j->config_text.data : "",
                                  j->config_text.length, JSON_DEPTH_DEFAULT, o->config, j->err);
    if (!j->config)
        return false;
    if (!json_is_object(j->config))
        return refuse(j, "CONFIG-INVALID", "the configuration is not a JSON object", NULL, NULL);
    j->drafter = json_object_get(j->config, "dflash_config") != NULL;
    if (!parse_config(j, inventory))
        return false;
    if (o->target_layers > 0 && !j->drafter)
        return refuse(j, "USAGE", "only a drafter has a target", "--target-layers", NULL);
    if (o->int8_attention && j->drafter)
        return refuse(j, "USAGE", "a drafter's attention stays bf16", "--int8-attention", NULL);
    const bool cut = o->layers > 0 && o->layers != layers_in(j->config);
    if (!cut && o->target_layers == 0 && !o->int8_attention)
        return true; /* the text stays as it is, to the byte */
    if (o->layers > layers_in(j->config)) {
        snprintf(value, sizeof value, "%d", layers_in(j->config));
        return refuse(j, "CONFIG-INVALID", "--layers asks for more than there are",
                      "num_hidden_layers", value);
    }
    if (cut)
        cut_config(j->config, (int)o->layers);
    if (o->target_layers > 0 && !fit_target(j, (int)o->target_layers))
        return false;
    inventory->count = 0;
    if (!parse_config(j, inventory))
        return false;
    if (o->int8_attention)
        set_int8(j);
    buffer_clear(&j->config_text);
    json_write_ordered(j->config, 2, &j->config_text);
    buffer_char(&j->config_text, '\n');
    inventory->count = 0;
    return parse_config(j, inventory);
}

/* ---- which tensor lies where ---- */

static uint64_t tensor_bytes(const struct tensor_spec *t)
{
    uint64_t n = dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i]; /* the configuration's parser has bounded the whole */
    return n;
}

static bool is_layer_norm(const struct tensor_spec *t)
{
    return text_ends(t->name, "layernorm.weight");
}

static bool same_layer(const struct tensor_spec *a, const struct tensor_spec *b)
{
    const char *x = strstr(a->name, "layers."), *y = strstr(b->name, "layers.");
    if (!x || !y)
        return false;
    return strtol(x + 7, NULL, 10) == strtol(y + 7, NULL, 10);
}

/* The order of the published files: a layer's two norms come last. */
static void order_tensors(struct job *j, const struct inventory *inventory)
{
    const struct tensor_spec *t = inventory->items;
    j->tensors = arena_array(&j->arena, inventory->count, sizeof *j->tensors);
    for (size_t i = 0, end; i < inventory->count; i = end) {
        end = i + 1;
        while (end < inventory->count && same_layer(&t[i], &t[end]))
            end++;
        for (int norms = 0; norms < 2; norms++)
            for (size_t k = i; k < end; k++)
                if (is_layer_norm(&t[k]) == (norms == 1))
                    j->tensors[j->count++] = t[k];
    }
}

static void cut_shards(struct job *j)
{
    j->shards = arena_array(&j->arena, j->count, sizeof *j->shards);
    struct shard *s = NULL;
    for (size_t i = 0; i < j->count; i++) {
        const uint64_t bytes = tensor_bytes(&j->tensors[i]);
        if (!s || (s->payload + bytes > SHARD_BYTES && s->count > 0)) {
            s = &j->shards[j->shard_count++];
            s->tensors = &j->tensors[i];
        }
        s->count++;
        s->payload += bytes;
        j->result->tensor_bytes += bytes;
    }
    for (size_t i = 0; i < j->shard_count; i++)
        j->shards[i].name = j->shard_count == 1
                                ? "model.safetensors"
                                : arena_printf(&j->arena, "model-%05zu-of-%05zu.safetensors", i + 1,
                                               j->shard_count);
}

/* The length and the header: compact JSON as published, padded with spaces only if asked to. */
static void write_header(struct job *j, struct shard *s)
{
    struct buffer text = {0};
    uint64_t at = 0;
    buffer_text(&text, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor_spec *t = &s->tensors[i];
        const uint64_t bytes = tensor_bytes(t);
        buffer_char(&text, ',');
        json_write_string(t->name, strlen(t->name), &text);
        buffer_printf(&text, ":{\"data_offsets\":[%" PRIu64 ",%" PRIu64 "],\"dtype\":\"%s\",", at,
                      at + bytes, dtype_name(t->dtype));
        buffer_text(&text, "\"shape\":[");
        for (int k = 0; k < t->rank; k++)
            buffer_printf(&text, "%s%" PRId64, k ? "," : "", t->shape[k]);
        buffer_text(&text, "]}");
        at += bytes;
    }
    buffer_char(&text, '}');
    while ((text.length + 8) % (size_t)j->o->align != 0)
        buffer_char(&text, ' ');
    for (int i = 0; i < 8; i++)
        buffer_char(&s->header, (char)((uint64_t)text.length >> (8 * i) & 0xff));
    buffer_append(&s->header, text.data, text.length);
    buffer_free(&text);
    j->result->file_bytes += s->header.length + s->payload;
}

struct place {
    const char *tensor, *file;
};

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->tensor, ((const struct place *)b)->tensor);
}

/* As the published index is written: of the whole XS 2.1 it has the published bytes. */
static void write_index(struct job *j, struct buffer *out)
{
    struct place *places = arena_array(&j->arena, j->count, sizeof *places);
    uint64_t parameters = 0;
    size_t n = 0;
    for (size_t i = 0; i < j->shard_count; i++)
        for (size_t k = 0; k < j->shards[i].count; k++) {
            const struct tensor_spec *t = &j->shards[i].tensors[k];
            const uint64_t elements = tensor_bytes(t) / dtype_size(t->dtype);
            if (t->dtype == DTYPE_U32)
                parameters += elements * (uint64_t)(synth_is_affine(t) ? AFFINE_CODES_PER_WORD
                                                                       : NVFP4_CODES_PER_WORD);
            else if (t->dtype != DTYPE_U8 && !synth_is_affine(t)) /* scales are none */
                parameters += elements;
            places[n++] = (struct place){t->name, j->shards[i].name};
        }
    qsort(places, n, sizeof *places, by_tensor);
    json_t *map = json_object(), *metadata = json_object(), *index = json_object();
    for (size_t i = 0; i < n; i++)
        json_object_set_new(map, places[i].tensor, json_string(places[i].file));
    json_object_set_new(metadata, "total_size", json_integer((json_int_t)j->result->tensor_bytes));
    json_object_set_new(metadata, "total_parameters", json_integer((json_int_t)parameters));
    json_object_set_new(index, "metadata", metadata);
    json_object_set_new(index, "weight_map", map);
    json_write_ordered(index, 4, out);
    json_decref(index);
}

/* ---- writing ---- */

static bool begin_shard(struct job *j, const struct folder_build *build, struct shard *s)
{
    struct folder_file *f = &s->file;
    s->open = folder_create_file(build, s->name, f, j->err);
    if (!s->open || !folder_write_file(f, s->header.data, s->header.length, j->err))
        return false;
    return ftruncate(f->fd, (off_t)(s->header.length + s->payload)) == 0 ||
           error_errno(j->err, f->path, "cannot set the length");
}

static size_t cut_shard(struct job *j, const struct shard *s, struct synth_piece *out)
{
    size_t n = 0;
    uint64_t at = s->header.length;
    for (size_t i = 0; i < s->count; i++) {
        const uint64_t bytes = tensor_bytes(&s->tensors[i]);
        struct synth_recipe *recipe = arena_alloc(&j->arena, sizeof *recipe);
        *recipe = synth_recipe_of(&s->tensors[i], j->o->seed);
        for (uint64_t first = 0; first < bytes; first += SYNTH_PIECE) {
            const uint64_t left = bytes - first;
            if (out)
                out[n] = (struct synth_piece){&s->file, at + first, recipe, first,
                                              left < SYNTH_PIECE ? (size_t)left : SYNTH_PIECE};
            n++;
        }
        at += bytes;
    }
    return n;
}

/* Files take turns: a file system lets one thread at a time write to a file. */
static bool write_weights(struct job *j)
{
    size_t most = 0, count = 0;
    for (size_t i = 0; i < j->shard_count; i++) {
        const size_t n = cut_shard(j, &j->shards[i], NULL);
        most = n > most ? n : most;
    }
    struct synth_piece *all = memory_alloc(j->shard_count * most * sizeof *all),
                       *one = memory_alloc(j->shard_count * most * sizeof *one);
    size_t *counts = memory_alloc(j->shard_count * sizeof *counts);
    for (size_t i = 0; i < j->shard_count; i++)
        counts[i] = cut_shard(j, &j->shards[i], one + i * most);
    for (size_t k = 0; k < most; k++)
        for (size_t i = 0; i < j->shard_count; i++)
            if (k < counts[i])
                all[count++] = one[i * most + k];
    const int threads = j->o->threads > 0 ? (int)j->o->threads : cores_allowed();
    const bool ok = synth_write(all, count, threads, &j->progress, j->err);
    free(all);
    free(one);
    free(counts);
    return ok;
}

static bool write_shards(struct job *j, const struct folder_build *build)
{
    bool ok = true;
    for (size_t i = 0; ok && i < j->shard_count; i++)
        ok = begin_shard(j, build, &j->shards[i]);
    ok = ok && (j->o->headers_only || write_weights(j));
    for (size_t i = 0; i < j->shard_count; i++)
        if (j->shards[i].open)
            ok = folder_close_file(&j->shards[i].file, ok, j->err);
    return ok;
}

static bool write_folder(struct job *j, struct folder_build *build)
{
    struct arena *a = &j->arena;
    struct buffer index = {0};
    if (!folder_begin(build, j->err))
        return false;
    progress_begin(&j->progress, j->o->headers_only ? "writing headers" : "writing weights",
                   "bytes", j->result->tensor_bytes);
    bool ok = write_shards(j, build);
    if (ok)
        progress_end(&j->progress);
    if (ok && !j->drafter) { /* a drafter is one file, published without an index */
        write_index(j, &index);
        ok = file_write_atomic(path_join(a, build->temporary, "model.safetensors.index.json"),
                               index.data, index.length, j->err);
        buffer_free(&index);
    }
    ok = ok && file_write_atomic(path_join(a, build->temporary, "config.json"), j->config_text.data,
                                 j->config_text.length, j->err);
    if (ok && interrupt_requested())
        ok = error_set(j->err, "INTERRUPTED", "stopped by a signal");
    ok = ok && folder_commit(build, j->err);
    if (!ok)
        folder_abandon(build);
    return ok;
}

static bool make(struct job *j)
{
    const struct synth_options *o = j->o;
    struct inventory inventory = {.arena = &j->arena};
    struct folder_build build;
    if (o->align < 1 || o->align > MOST_ALIGN)
        return refuse(j, "USAGE", "the alignment is 1 to 4096 bytes", "--align", NULL);
    if (!read_config(j, &inventory) ||
        (!o->dry_run && !folder_plan(&j->arena, o->out, &build, j->err)))
        return false;
    order_tensors(j, &inventory);
    cut_shards(j);
    for (size_t i = 0; i < j->shard_count; i++)
        write_header(j, &j->shards[i]);
    j->result->tensors = j->count;
    j->result->shards = j->shard_count;
    if (o->dry_run)
        return true;
    const uint64_t wanted = o->headers_only ? 0 : j->result->file_bytes;
    return folder_check_space(&build, wanted + ROOM_BESIDE, j->err) && write_folder(j, &build);
}

bool synth_checkpoint(const struct synth_options *o, struct synth_result *result, struct error *err)
{
    *result = (struct synth_result){0};
    struct error own = {0};
    const int64_t started = clock_now_ns();
    struct job j = {
        .o = o, .result = result, .err = err ? err : &own, .progress = {.quiet = o->quiet}};
    const bool ok = make(&j);
    result->seconds = clock_seconds(started);
    for (size_t i = 0; i < j.shard_count; i++)
        buffer_free(&j.shards[i].header);
    json_decref(j.config);
    buffer_free(&j.config_text);
    arena_free(&j.arena);
    return ok;
}
