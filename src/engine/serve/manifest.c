/* Runner manifests: the table of runners, the canonical writer, the derivations. */
#include "engine/serve/manifest.h"

#include "base/json.h"

#include <string.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

enum { MANIFEST_SCHEMA_VERSION = 1 };

static const char *const laguna_model_types[] = {"laguna", NULL};
static const char *const contiguous_only[] = {"contiguous", NULL};
/* A drafter keeps keys and values of its own for each sequence. A block of the wire has 16 rows. */
static const struct manifest_decoder serial_and_dflash[] = {
    {.mode = "serial", .drafter = "none", .state = "stateless"},
    {.mode = "dflash",
     .drafter = "assistantCheckpoint",
     .state = "requestStateful",
     .has_depth = true,
     .depth_low = 1,
     .depth_high = 15}};
static const struct manifest_regime single_stream[] = {{.batch = 1, .free_run = true},
                                                       {.batch = 1, .free_run = false}};

#define LAGUNA_ON(name)                                                                            \
    {                                                                                              \
        .runner_id = "mlxfast/laguna", .model_types = laguna_model_types, .backend = (name),       \
        .kv_backends = contiguous_only, .decoders = serial_and_dflash, .decoder_count = 2,         \
        .regimes = single_stream, .regime_count = 2                                                \
    }
static const struct runner_manifest runners[] = {LAGUNA_ON("cpu"), LAGUNA_ON("cuda")};

static void write_text(struct buffer *out, const char *text)
{
    json_write_string(text, strlen(text), out);
}

static void write_texts(struct buffer *out, const char *const *texts)
{
    buffer_char(out, '[');
    for (size_t i = 0; texts[i]; i++) {
        if (i)
            buffer_char(out, ',');
        write_text(out, texts[i]);
    }
    buffer_char(out, ']');
}

static void write_flag(struct buffer *out, const char *key, bool value)
{
    buffer_printf(out, "\"%s\":%s", key, value ? "true" : "false");
}

static void write_engine(struct buffer *out, const struct manifest_engine *e)
{
    write_flag(out, "supportsPrefixReuse", e->prefix_reuse);
    buffer_char(out, ',');
    write_flag(out, "supportsPagedKV", e->paged_kv);
    buffer_char(out, ',');
    write_flag(out, "supportsCompiledDecode", e->compiled_decode);
    buffer_char(out, ',');
    write_flag(out, "supportsPackedPrefill", e->packed_prefill);
    buffer_char(out, ',');
    write_flag(out, "supportsMTP", e->mtp);
    buffer_char(out, ',');
    write_flag(out, "supportsCompactRecurrentMTPReplay", e->compact_recurrent_mtp_replay);
}

static void write_decoder(struct buffer *out, const struct manifest_decoder *d)
{
    buffer_text(out, "{\"mode\":");
    write_text(out, d->mode);
    buffer_text(out, ",\"drafter\":");
    write_text(out, d->drafter);
    buffer_text(out, ",\"state\":");
    write_text(out, d->state);
    if (d->has_depth)
        buffer_printf(out, ",\"depth\":[%d,%d]}", d->depth_low, d->depth_high);
    else
        buffer_text(out, ",\"depth\":null}");
}

static void write_regime(struct buffer *out, const struct manifest_regime *r)
{
    if (r->batch > 1)
        buffer_printf(out, "{\"batch\":{\"upTo\":%d}", r->batch);
    else
        buffer_text(out, "{\"batch\":\"single\"");
    buffer_printf(out, ",\"timing\":\"%s\",", r->free_run ? "freeRun" : "teacherForced");
    write_flag(out, "perStreamTiming", r->per_stream_timing);
    buffer_char(out, '}');
}

void manifest_write(const struct runner_manifest *m, struct buffer *out)
{
    buffer_printf(out, "{\"schemaVersion\":%d,\"runnerID\":", MANIFEST_SCHEMA_VERSION);
    write_text(out, m->runner_id);
    buffer_text(out, ",\"modelTypes\":");
    write_texts(out, m->model_types);
    buffer_text(out, ",\"backend\":");
    write_text(out, m->backend);
    buffer_text(out, ",\"engine\":{");
    write_engine(out, &m->engine);
    buffer_text(out, "},\"kvBackends\":");
    write_texts(out, m->kv_backends);
    buffer_text(out, ",\"decoders\":[");
    for (size_t i = 0; i < m->decoder_count; i++) {
        if (i)
            buffer_char(out, ',');
        write_decoder(out, &m->decoders[i]);
    }
    buffer_text(out, "],\"regimes\":[");
    for (size_t i = 0; i < m->regime_count; i++) {
        if (i)
            buffer_char(out, ',');
        write_regime(out, &m->regimes[i]);
    }
    buffer_text(out, "],");
    write_flag(out, "multimodal", m->multimodal);
    buffer_char(out, ',');
    write_flag(out, "recurrentLayers", m->recurrent_layers);
    buffer_char(out, ',');
    write_flag(out, "requiresKeepMask", m->requires_keep_mask);
    buffer_char(out, '}');
}

void manifest_digest(const struct runner_manifest *m, char hex[SHA256_HEX])
{
    struct buffer bytes = {0};
    manifest_write(m, &bytes);
    sha256_hex(bytes.data, bytes.length, hex);
    buffer_free(&bytes);
}

bool manifest_claims(const struct runner_manifest *m, const char *model_type)
{
    for (const char *const *t = m->model_types; *t; t++)
        if (strcmp(*t, model_type) == 0)
            return true;
    return false;
}

static bool is_on(const struct runner_manifest *m, const char *backend)
{
    return strcmp(m->backend, backend) == 0;
}

const struct runner_manifest *manifest_find_runner(const char *runner_id, const char *backend)
{
    for (size_t i = 0; i < sizeof runners / sizeof *runners; i++)
        if (is_on(&runners[i], backend) && strcmp(runners[i].runner_id, runner_id) == 0)
            return &runners[i];
    return NULL;
}

const struct runner_manifest *manifest_find_model_type(const char *model_type, const char *backend)
{
    for (size_t i = 0; i < sizeof runners / sizeof *runners; i++)
        if (is_on(&runners[i], backend) && manifest_claims(&runners[i], model_type))
            return &runners[i];
    return NULL;
}

int manifest_max_batch(const struct runner_manifest *m)
{
    int largest = 1;
    for (size_t i = 0; i < m->regime_count; i++)
        if (m->regimes[i].batch > largest)
            largest = m->regimes[i].batch;
    return largest;
}

size_t manifest_capabilities(const struct runner_manifest *m, bool trusted, const char **names)
{
    bool free_run = false, per_stream = false;
    for (size_t i = 0; i < m->regime_count; i++) {
        free_run |= m->regimes[i].free_run;
        per_stream |= m->regimes[i].per_stream_timing;
    }
    size_t count = 0;
    if (free_run)
        names[count++] = "free_run_decode";
    if (manifest_max_batch(m) > 1)
        names[count++] = "batched_free_run_decode";
    if (per_stream)
        names[count++] = "per_stream_timing";
    if (trusted)
        names[count++] = "cohort_reference_replay";
    return count;
}

const char *manifest_build_text(void)
{
    return "mlxfast 0.1.0 (" COMPILER ")";
}
