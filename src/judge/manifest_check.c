#include "judge/manifest_check.h"

#include "base/file.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { MANIFEST_LIMIT = 1 << 20, MANIFEST_DEPTH = 8 };

/* ---- reading ---- */

static const char *const root_keys[] = {
    "schemaVersion", "runnerID", "modelTypes", "backend",         "engine",           "kvBackends",
    "decoders",      "regimes",  "multimodal", "recurrentLayers", "requiresKeepMask", NULL};
static const char *const engine_keys[] = {"supportsPrefixReuse",
                                          "supportsPagedKV",
                                          "supportsCompiledDecode",
                                          "supportsPackedPrefill",
                                          "supportsMTP",
                                          "supportsCompactRecurrentMTPReplay",
                                          NULL};
static const char *const decoder_keys[] = {"mode", "drafter", "state", "depth", NULL};
static const char *const regime_keys[] = {"batch", "timing", "perStreamTiming", NULL};
static const char *const batch_keys[] = {"upTo", NULL};

static const char *const kv_words[] = {"contiguous", "paged", NULL};
static const char *const drafter_words[] = {"none", "embeddedHead", "assistantCheckpoint", "ngram",
                                            NULL};
static const char *const state_words[] = {"stateless", "requestStateful", NULL};
static const char *const timing_words[] = {"freeRun", "teacherForced", NULL};

/* Everything that a reader below says becomes MANIFEST-INVALID, with its place. */
static bool invalid(struct error *err)
{
    if (err != NULL && strcmp(err->name, "IO") != 0)
        text_copy(err->name, sizeof err->name, "MANIFEST-INVALID");
    return false;
}

static bool check_word(const char *word, const char *const *words, const char *file,
                       const char *field, struct error *err)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    error_set(err, "MANIFEST-INVALID", "not one of the words allowed here");
    return error_at(err, file, field, word);
}

static bool get_word(const struct json_view *v, const char *key, const char *const *words,
                     const char **out, struct error *err)
{
    char field[128];
    if (!json_get_string(v, key, out, err))
        return false;
    snprintf(field, sizeof field, "%s%s%s", v->path, v->path[0] != '\0' ? "." : "", key);
    return check_word(*out, words, v->file, field, err);
}

/* Strings of the JSON go with it: texts are copied. words may be NULL: any text. */
static bool get_texts(struct arena *a, const struct json_view *v, const char *key,
                      const char *const *words, const char ***out, size_t *count, struct error *err)
{
    const json_t *list;
    if (!json_get_array(v, key, &list, err))
        return false;
    *count = json_array_size(list);
    *out = arena_array(a, *count + 1, sizeof **out);
    for (size_t i = 0; i < *count; i++) {
        char field[128];
        const json_t *item = json_array_get(list, i);
        snprintf(field, sizeof field, "%s[%zu]", key, i);
        if (!json_is_string(item)) {
            error_set(err, "MANIFEST-INVALID", "not a string");
            return error_at(err, v->file, field, NULL);
        }
        (*out)[i] = arena_strdup(a, json_string_value(item));
        if (words != NULL && !check_word((*out)[i], words, v->file, field, err))
            return false;
    }
    return true;
}

static bool view_of(const json_t *list, size_t i, const char *key, const char *file, char *path,
                    size_t path_size, const char *const *keys, struct json_view *out,
                    struct error *err)
{
    snprintf(path, path_size, "%s[%zu]", key, i);
    *out = (struct json_view){.object = json_array_get(list, i), .file = file, .path = path};
    if (json_is_object(out->object))
        return json_view_closed(out, keys, err);
    error_set(err, "MANIFEST-INVALID", "not an object");
    return error_at(err, file, path, NULL);
}

static bool read_depth(const struct json_view *v, struct runner_decoder *d, struct error *err)
{
    const json_t *depth = json_object_get(v->object, "depth");
    if (json_is_null(depth))
        return true;
    const json_t *low = json_array_get(depth, 0), *high = json_array_get(depth, 1);
    if (json_array_size(depth) != 2 || !json_is_integer(low) || !json_is_integer(high) ||
        json_integer_value(low) < 0 || json_integer_value(high) > UINT32_MAX ||
        json_integer_value(low) > json_integer_value(high)) {
        char field[128];
        snprintf(field, sizeof field, "%s.depth", v->path);
        error_set(err, "MANIFEST-INVALID", "a depth is [low, high] with low <= high, or null");
        return error_at(err, v->file, field, depth == NULL ? "(absent)" : NULL);
    }
    d->has_depth = true;
    d->depth_low = (uint32_t)json_integer_value(low);
    d->depth_high = (uint32_t)json_integer_value(high);
    return true;
}

static bool read_decoders(struct arena *a, const struct json_view *root,
                          struct runner_description *m, struct error *err)
{
    const json_t *list;
    if (!json_get_array(root, "decoders", &list, err))
        return false;
    m->decoder_count = json_array_size(list);
    m->decoders = arena_array(a, m->decoder_count + 1, sizeof *m->decoders);
    for (size_t i = 0; i < m->decoder_count; i++) {
        char path[64];
        struct json_view v;
        struct runner_decoder *d = &m->decoders[i];
        if (!view_of(list, i, "decoders", root->file, path, sizeof path, decoder_keys, &v, err) ||
            !json_get_string(&v, "mode", &d->mode, err) ||
            !get_word(&v, "drafter", drafter_words, &d->drafter, err) ||
            !get_word(&v, "state", state_words, &d->state, err) || !read_depth(&v, d, err))
            return false;
        d->mode = arena_strdup(a, d->mode);
        d->drafter = arena_strdup(a, d->drafter);
        d->state = arena_strdup(a, d->state);
    }
    return true;
}

static bool read_batch(const struct json_view *v, struct runner_regime *r, struct error *err)
{
    const json_t *batch = json_object_get(v->object, "batch");
    char path[64];
    snprintf(path, sizeof path, "%s.batch", v->path);
    if (json_is_string(batch) && strcmp(json_string_value(batch), "single") == 0) {
        r->single = true;
        return true;
    }
    const struct json_view inner = {.object = batch, .file = v->file, .path = path};
    int64_t n;
    if (!json_is_object(batch)) {
        error_set(err, "MANIFEST-INVALID", "a batch is \"single\" or {\"upTo\":n}");
        return error_at(err, v->file, path, batch == NULL ? "(absent)" : NULL);
    }
    if (!json_view_closed(&inner, batch_keys, err) ||
        !json_get_int64(&inner, "upTo", 1, UINT32_MAX, &n, err))
        return false;
    r->up_to = (uint32_t)n;
    return true;
}

static bool read_regimes(struct arena *a, const struct json_view *root,
                         struct runner_description *m, struct error *err)
{
    const json_t *list;
    if (!json_get_array(root, "regimes", &list, err))
        return false;
    m->regime_count = json_array_size(list);
    m->regimes = arena_array(a, m->regime_count + 1, sizeof *m->regimes);
    for (size_t i = 0; i < m->regime_count; i++) {
        char path[64];
        struct json_view v;
        struct runner_regime *r = &m->regimes[i];
        if (!view_of(list, i, "regimes", root->file, path, sizeof path, regime_keys, &v, err) ||
            !read_batch(&v, r, err) || !get_word(&v, "timing", timing_words, &r->timing, err) ||
            !json_get_bool(&v, "perStreamTiming", &r->per_stream_timing, err))
            return false;
        r->timing = arena_strdup(a, r->timing);
    }
    return true;
}

static bool read_root(struct arena *a, const struct json_view *v, struct runner_description *m,
                      struct error *err)
{
    int64_t version;
    const json_t *engine;
    if (!json_view_closed(v, root_keys, err) ||
        !json_get_int64(v, "schemaVersion", 0, UINT32_MAX, &version, err) ||
        !json_get_string(v, "runnerID", &m->runner_id, err) ||
        !get_texts(a, v, "modelTypes", NULL, &m->model_types, &m->model_type_count, err) ||
        !json_get_string(v, "backend", &m->backend, err) ||
        !json_get_object(v, "engine", &engine, err))
        return false;
    m->schema_version = (uint32_t)version;
    m->runner_id = arena_strdup(a, m->runner_id);
    m->backend = arena_strdup(a, m->backend);
    const struct json_view flags = {.object = engine, .file = v->file, .path = "engine"};
    if (!json_view_closed(&flags, engine_keys, err))
        return false;
    for (size_t i = 0; i < RUNNER_ENGINE_FLAGS; i++)
        if (!json_get_bool(&flags, engine_keys[i], &m->engine[i], err))
            return false;
    return get_texts(a, v, "kvBackends", kv_words, &m->kv_backends, &m->kv_backend_count, err) &&
           read_decoders(a, v, m, err) && read_regimes(a, v, m, err) &&
           json_get_bool(v, "multimodal", &m->multimodal, err) &&
           json_get_bool(v, "recurrentLayers", &m->recurrent_layers, err) &&
           json_get_bool(v, "requiresKeepMask", &m->requires_keep_mask, err);
}

bool manifest_check_parse(struct arena *a, const char *path, const char *data, size_t length,
                          struct runner_description *out, struct error *err)
{
    *out = (struct runner_description){0};
    json_t *json = json_parse_strict(data, length, MANIFEST_DEPTH, path, err);
    if (json == NULL)
        return invalid(err);
    const struct json_view v = {.object = json, .file = path, .path = ""};
    bool ok;
    if (json_is_object(json))
        ok = read_root(a, &v, out, err);
    else
        ok = error_set(err, "MANIFEST-INVALID", "a manifest is a JSON object") ||
             error_at(err, path, NULL, NULL);
    json_decref(json);
    return ok || invalid(err);
}

bool manifest_check_load(struct arena *a, const char *path, struct runner_description *out,
                         struct error *err)
{
    struct buffer data = {0};
    const bool ok = file_read(path, MANIFEST_LIMIT, &data, err)
                        ? manifest_check_parse(a, path, data.data != NULL ? data.data : "",
                                               data.length, out, err)
                        : invalid(err);
    buffer_free(&data);
    return ok;
}

/* ---- the canonical bytes ---- */

static void put_text(struct buffer *out, const char *key, const char *text)
{
    buffer_printf(out, "\"%s\":", key);
    json_write_string(text, strlen(text), out);
}

static void put_flag(struct buffer *out, const char *key, bool value)
{
    buffer_printf(out, "\"%s\":%s", key, value ? "true" : "false");
}

static void put_texts(struct buffer *out, const char *key, const char **texts, size_t count)
{
    buffer_printf(out, "\"%s\":[", key);
    for (size_t i = 0; i < count; i++) {
        buffer_text(out, i > 0 ? "," : "");
        json_write_string(texts[i], strlen(texts[i]), out);
    }
    buffer_char(out, ']');
}

static void put_decoder(struct buffer *out, const struct runner_decoder *d)
{
    buffer_char(out, '{');
    put_text(out, "mode", d->mode);
    buffer_char(out, ',');
    put_text(out, "drafter", d->drafter);
    buffer_char(out, ',');
    put_text(out, "state", d->state);
    if (d->has_depth)
        buffer_printf(out, ",\"depth\":[%" PRIu32 ",%" PRIu32 "]}", d->depth_low, d->depth_high);
    else
        buffer_text(out, ",\"depth\":null}");
}

static void put_regime(struct buffer *out, const struct runner_regime *r)
{
    if (r->single)
        buffer_text(out, "{\"batch\":\"single\",");
    else
        buffer_printf(out, "{\"batch\":{\"upTo\":%" PRIu32 "},", r->up_to);
    put_text(out, "timing", r->timing);
    buffer_char(out, ',');
    put_flag(out, "perStreamTiming", r->per_stream_timing);
    buffer_char(out, '}');
}

void manifest_check_write(const struct runner_description *m, struct buffer *out)
{
    buffer_printf(out, "{\"schemaVersion\":%" PRIu32 ",", m->schema_version);
    put_text(out, "runnerID", m->runner_id);
    buffer_char(out, ',');
    put_texts(out, "modelTypes", m->model_types, m->model_type_count);
    buffer_char(out, ',');
    put_text(out, "backend", m->backend);
    buffer_text(out, ",\"engine\":{");
    for (size_t i = 0; i < RUNNER_ENGINE_FLAGS; i++) {
        buffer_text(out, i > 0 ? "," : "");
        put_flag(out, engine_keys[i], m->engine[i]);
    }
    buffer_text(out, "},");
    put_texts(out, "kvBackends", m->kv_backends, m->kv_backend_count);
    buffer_text(out, ",\"decoders\":[");
    for (size_t i = 0; i < m->decoder_count; i++) {
        buffer_text(out, i > 0 ? "," : "");
        put_decoder(out, &m->decoders[i]);
    }
    buffer_text(out, "],\"regimes\":[");
    for (size_t i = 0; i < m->regime_count; i++) {
        buffer_text(out, i > 0 ? "," : "");
        put_regime(out, &m->regimes[i]);
    }
    buffer_text(out, "],");
    put_flag(out, "multimodal", m->multimodal);
    buffer_char(out, ',');
    put_flag(out, "recurrentLayers", m->recurrent_layers);
    buffer_char(out, ',');
    put_flag(out, "requiresKeepMask", m->requires_keep_mask);
    buffer_char(out, '}');
}

void manifest_check_digest(const struct runner_description *m, char hex[SHA256_HEX])
{
    struct buffer bytes = {0};
    manifest_check_write(m, &bytes);
    sha256_hex(bytes.data, bytes.length, hex);
    buffer_free(&bytes);
}

/* ---- the six checks ---- */

const char *const manifest_check_names[MANIFEST_CHECKS] = {
    "spec_modes_declared", "capabilities_derived",    "max_batch_size_derived",
    "backend_matches",     "runner_identity_present", "manifest_digest_matches"};

size_t manifest_check_capabilities(const struct runner_description *m, bool trusted,
                                   const char *names[MANIFEST_CAPABILITIES])
{
    bool free_run = false, batched = false, per_stream = false;
    for (size_t i = 0; i < m->regime_count; i++) {
        const struct runner_regime *r = &m->regimes[i];
        free_run = free_run || strcmp(r->timing, "freeRun") == 0;
        batched = batched || (!r->single && r->up_to > 1);
        per_stream = per_stream || r->per_stream_timing;
    }
    size_t n = 0; /* in the order of their names */
    if (batched)
        names[n++] = "batched_free_run_decode";
    if (trusted)
        names[n++] = "cohort_reference_replay";
    if (free_run)
        names[n++] = "free_run_decode";
    if (per_stream)
        names[n++] = "per_stream_timing";
    return n;
}

static void settle(struct manifest_verdict *v, bool passed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void settle(struct manifest_verdict *v, bool passed, const char *format, ...)
{
    v->applies = true;
    v->passed = passed;
    if (passed)
        return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(v->detail, sizeof v->detail, format, ap);
    va_end(ap);
}

static bool declares_mode(const struct runner_description *m, const char *mode)
{
    for (size_t i = 0; i < m->decoder_count; i++)
        if (strcmp(m->decoders[i].mode, mode) == 0)
            return true;
    return false;
}

static void check_modes(const struct runner_description *m, const struct wire_texts *modes,
                        struct manifest_verdict *v)
{
    settle(v, true, "-");
    for (size_t i = 0; i < modes->count && v->passed; i++)
        if (!declares_mode(m, modes->items[i]))
            settle(v, false, "the hello lists mode \"%.64s\", which is no decoder's",
                   modes->items[i]);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void join(const char *const *items, size_t count, struct buffer *out)
{
    buffer_char(out, '[');
    for (size_t i = 0; i < count; i++)
        buffer_printf(out, "%s%s", i > 0 ? ", " : "", items[i]);
    buffer_char(out, ']');
}

bool manifest_check_is_block_capability(const char *name)
{
    return strcmp(name, "dflash_block_decode") == 0 || strcmp(name, "dflash_reference") == 0;
}

static void check_capabilities(const struct runner_description *m, bool trusted,
                               const struct wire_texts *said, struct manifest_verdict *v)
{
    const char *derived[MANIFEST_CAPABILITIES];
    const size_t count = manifest_check_capabilities(m, trusted, derived);
    struct arena a = {0};
    const char **sorted = arena_array(&a, said->count + 1, sizeof *sorted);
    size_t held = 0;
    for (size_t i = 0; i < said->count; i++)
        if (!manifest_check_is_block_capability(said->items[i]))
            sorted[held++] = said->items[i];
    qsort(sorted, held, sizeof *sorted, compare_texts);
    bool same = held == count;
    for (size_t i = 0; same && i < count; i++)
        same = strcmp(sorted[i], derived[i]) == 0;
    struct buffer got = {0}, wanted = {0};
    join(sorted, held, &got);
    join(derived, count, &wanted);
    settle(v, same, "the hello carries %.200s, the manifest gives %s", got.data, wanted.data);
    buffer_free(&got);
    buffer_free(&wanted);
    arena_free(&a);
}

static void check_batch(const struct runner_description *m, const struct wire_u32 *said,
                        struct manifest_verdict *v)
{
    bool any = false;
    uint32_t largest = 0;
    for (size_t i = 0; i < m->regime_count; i++) {
        any = any || !m->regimes[i].single;
        if (!m->regimes[i].single && m->regimes[i].up_to > largest)
            largest = m->regimes[i].up_to;
    }
    char got[16] = "absent", wanted[16] = "absent";
    if (said->present)
        snprintf(got, sizeof got, "%" PRIu32, said->value);
    if (any)
        snprintf(wanted, sizeof wanted, "%" PRIu32, largest);
    settle(v, said->present == any && (!any || said->value == largest),
           "max_batch_size is %s, the manifest gives %s", got, wanted);
}

void manifest_check_hello(const struct runner_description *m, bool trusted,
                          const struct wire_response *hello,
                          struct manifest_verdict out[MANIFEST_CHECKS])
{
    for (size_t i = 0; i < MANIFEST_CHECKS; i++)
        out[i] = (struct manifest_verdict){.name = manifest_check_names[i]};
    check_modes(m, &hello->spec_modes, &out[0]);
    check_capabilities(m, trusted, &hello->capabilities, &out[1]);
    check_batch(m, &hello->max_batch_size, &out[2]);
    const char *backend = hello->backend.text != NULL ? hello->backend.text : "absent";
    settle(&out[3], hello->backend.text != NULL && strcmp(backend, m->backend) == 0,
           "backend is \"%.64s\", the manifest says \"%.64s\"", backend, m->backend);
    settle(&out[4], hello->runner.present, "the hello carries no runner");
    if (!hello->runner.present)
        return;
    char digest[SHA256_HEX];
    manifest_check_digest(m, digest);
    settle(&out[5], strcmp(hello->runner.manifest_sha256, digest) == 0,
           "the hello's manifest_sha256 is %.64s, the manifest's digest %s",
           hello->runner.manifest_sha256, digest);
}
