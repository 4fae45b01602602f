/* The worker: options, load, hello, the request loop. The request kinds are in verbs.c. */
#include "engine/serve/worker.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/serve/manifest.h"
#include "engine/serve/slowed.h"
#include "engine/serve/spec.h"
#include "engine/serve/verbs.h"
#include "wire/wire.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>

enum { NONCE_BYTES = 16, WARM_UP_ROWS = 64, WARM_UP_STEPS = 3, MOST_CAPABILITIES = 6 };

struct worker {
    struct verbs verbs;
    char nonce[2 * NONCE_BYTES + 1];
};

/* ---- options ---- */

static const char *worker_backend(const struct worker_options *o)
{
    return o->model.compute.backend ? o->model.compute.backend : "cpu";
}

static bool bad_value(struct error *err, const char *flag, const char *value, const char *why)
{
    error_set(err, "badValue", "badValue(%s): %s", flag, why);
    return error_at(err, NULL, flag, value);
}

static size_t resource_name_length(const char *resource)
{
    size_t n = 0;
    while (isalnum((unsigned char)resource[n]) || (resource[n] && strchr("._-", resource[n])))
        n++;
    return n;
}

static bool check_resources(const struct worker_options *o, struct error *err)
{
    for (size_t i = 0; i < o->resource_count; i++) {
        const char *r = o->resources[i];
        size_t n = resource_name_length(r);
        if (n == 0 || r[n] != '=' || r[n + 1] == '\0')
            return bad_value(err, "--resource", r,
                             "a resource is NAME=PATH, NAME of letters, digits, '.', '_', '-'");
        for (size_t j = 0; j < i; j++)
            if (strncmp(o->resources[j], r, n + 1) == 0)
                return bad_value(err, "--resource", r, "this resource name was given twice");
    }
    return true;
}

static bool is_blank(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return *text == '\0';
}

bool worker_check_options(const struct worker_options *o, struct error *err)
{
    if (!o->weights || is_blank(o->weights))
        return error_set(err, "missingWeights", "missingWeights: --weights DIR is required");
    if (o->runner && is_blank(o->runner))
        return error_set(err, "emptyRunnerID", "emptyRunnerID: --runner needs a runner id");
    if (o->runner && !manifest_find_runner(o->runner, worker_backend(o))) {
        error_set(err, "unknownRunner", "unknownRunner(%s): no such runner is registered",
                  o->runner);
        return error_at(err, NULL, "--runner", o->runner);
    }
    if (o->speculative_protocol && strcmp(o->speculative_protocol, "v1.1") != 0)
        return bad_value(err, "--speculative-protocol", o->speculative_protocol,
                         "only v1.1 is known");
    if (o->kv_bytes < 1)
        return bad_value(err, "--kv-bytes", NULL, "a positive number of bytes is needed");
    if (!check_resources(o, err))
        return false;
    if (o->drafter && is_blank(o->drafter))
        return bad_value(err, "--drafter", NULL, "a drafter is a folder");
    return true;
}

/* ---- load ---- */

/* The runner of the checkpoint, from config.json alone. */
static bool resolve_runner(const struct worker_options *o, const struct runner_manifest **out,
                           struct error *err)
{
    json_t *config;
    if (!checkpoint_read_config(o->weights, &config, err))
        return false;
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const struct runner_manifest *m =
        o->runner ? manifest_find_runner(o->runner, worker_backend(o))
                  : manifest_find_model_type(type ? type : "", worker_backend(o));
    bool ok = true;
    if (!m)
        ok = error_set(err, "UNKNOWN-MODEL-TYPE", "no runner claims this model_type");
    else if (!type || !manifest_claims(m, type))
        ok = error_set(err, "unexpectedModel", "unexpectedModel: runner %s does not serve it",
                       m->runner_id);
    if (!ok)
        error_at(err, o->weights, "model_type", type ? type : "(absent)");
    json_decref(config);
    *out = m;
    return ok;
}

/* The same forwards whatever the prompts will be: caches, branch predictors and page tables are
 * warm before the hello, and nothing is kept. */
static bool warm_up(struct verbs *v, struct error *err)
{
    const struct model_info *info = model_get_info(v->model);
    int64_t tokens[WARM_UP_ROWS];
    int rows = info->max_rows < WARM_UP_ROWS ? info->max_rows : WARM_UP_ROWS;
    for (int i = 0; i < rows; i++)
        tokens[i] = i % info->vocab;
    if (!session_feed(v->session, tokens, (size_t)rows, err))
        return false;
    for (int i = 0; i < WARM_UP_STEPS && session_position(v->session) < info->context; i++)
        if (!session_feed(v->session, tokens, 1, err))
            return false;
    verbs_drop(v);
    return !v->block.config || block_verbs_warm(&v->block, err);
}

static bool load(struct worker *w, const struct worker_options *o, struct error *err)
{
    struct verbs *v = &w->verbs;
    if (!resolve_runner(o, &v->manifest, err) || !model_open(o->weights, &o->model, &v->model, err))
        return false;
    const struct model_info *info = model_get_info(v->model);
    if (info->vocab < WIRE_TOP_LOGITS) {
        error_set(err, "VOCABULARY-TOO-SMALL",
                  "the protocol reports %d top logits; the vocabulary has %d", WIRE_TOP_LOGITS,
                  info->vocab);
        return error_at(err, o->weights, "vocab_size", NULL);
    }
    if (!session_new(v->model, &v->session, err))
        return false;
    if (o->drafter && (!served_drafter_open(o->drafter, v->model, &v->drafter, err) ||
                       !session_set_drafter(v->session, v->drafter.dflash, err)))
        return false;
    if (session_bytes(v->session) > (uint64_t)o->kv_bytes) {
        error_set(err, "KV-BYTES-EXCEEDED",
                  "a context of %lld needs %zu bytes of keys and values; --kv-bytes allows %lld",
                  (long long)info->context, session_bytes(v->session), (long long)o->kv_bytes);
        return error_at(err, NULL, "--kv-bytes", NULL);
    }
    if (v->drafter.dflash)
        block_verbs_open(&v->block, v->model, v->drafter.dflash, v->session);
    v->speculative = o->speculative_protocol != NULL;
    v->trusted = o->trusted;
    return warm_up(v, err) && worker_begin_session(w, err);
}

bool worker_begin_session(struct worker *w, struct error *err)
{
    uint8_t random[NONCE_BYTES];
    verbs_drop(&w->verbs);
    w->verbs.block.begun = w->verbs.block.poisoned = false;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return error_errno(err, NULL, "making the session nonce");
    text_hex(w->nonce, random, sizeof random);
    return true;
}

bool worker_open(const struct worker_options *o, struct worker **out, struct error *err)
{
    *out = NULL;
    if (!worker_check_options(o, err))
        return false;
    struct worker *w = memory_alloc(sizeof *w);
    if (!load(w, o, err)) {
        worker_close(w);
        return false;
    }
    *out = w;
    return true;
}

void worker_close(struct worker *w)
{
    if (!w)
        return;
    block_verbs_close(&w->verbs.block);
    session_free(w->verbs.session);
    served_drafter_close(&w->verbs.drafter);
    model_close(w->verbs.model);
    free(w);
}

const struct model_info *worker_model_info(const struct worker *w)
{
    return model_get_info(w->verbs.model);
}

/* ---- hello ---- */

/* "AMD EPYC 9654, avx512, 2 threads"; the machine's name where the processor does not say. Of a
 * device "NVIDIA H200, sm_90, strict". */
static char *device_text(struct arena *arena, const struct compute *compute)
{
    char name[256] = "";
    if (compute_device_name(compute))
        return arena_printf(arena, "%s, %s", compute_device_name(compute),
                            compute_cpu_name(compute));
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && !name[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!text_starts(line, "model name") || !colon)
            continue;
        colon += 1 + (colon[1] == ' ');
        colon[strcspn(colon, "\n")] = '\0';
        if (utf8_valid(colon, strlen(colon)))
            text_copy(name, sizeof name, colon);
    }
    if (f)
        fclose(f);
    struct utsname machine;
    if (!name[0] && uname(&machine) == 0)
        text_copy(name, sizeof name, machine.machine);
    return arena_printf(arena, "%s, %s, %d threads", name, compute_cpu_name(compute),
                        compute_threads(compute));
}

static void fill_hello(const struct worker *w, bool tell_arithmetic, struct arena *arena,
                       struct wire_response *hello)
{
    const struct verbs *v = &w->verbs;
    const struct runner_manifest *m = v->manifest;
    hello->id = (struct wire_i64){true, 0};
    hello->nonce.text = w->nonce;
    hello->ok = (struct wire_flag){true, true};
    hello->expert_stats.present = true;
    hello->protocol_version = (struct wire_u32){true, WIRE_PROTOCOL_VERSION};
    hello->backend.text = m->backend;
    hello->device.text = device_text(arena, model_compute(v->model));
    /* Plain v1 leaves its three lists out: an empty one would be a claim. The block protocol is no
     * part of v1.1, so a drafter is told of in any case. */
    const char **names = arena_array(arena, MOST_CAPABILITIES, sizeof *names);
    size_t count = v->speculative ? manifest_capabilities(m, v->trusted, names) : 0;
    if (v->block.config)
        names[count++] = "dflash_block_decode";
    if (v->block.config && v->trusted)
        names[count++] = "dflash_reference";
    if (v->speculative || count > 0)
        hello->capabilities = (struct wire_texts){true, count, names};
    if (v->speculative) {
        const char **modes = arena_array(arena, m->decoder_count, sizeof *modes);
        const size_t loaded = spec_loaded_modes(m, &v->drafter, modes);
        hello->spec_modes = (struct wire_texts){true, loaded, modes};
        if (manifest_max_batch(m) > 1)
            hello->max_batch_size = (struct wire_u32){true, (uint32_t)manifest_max_batch(m)};
    }
    if (v->drafter.dflash)
        hello->head_provenance = (struct wire_head_provenance){.present = true,
                                                               .sha256 = v->drafter.sha256,
                                                               .bytes = v->drafter.bytes,
                                                               .file_count = v->drafter.file_count};
    if (tell_arithmetic)
        hello->arithmetic.text =
            compute_arithmetic(model_compute(v->model)) == ARITHMETIC_FAST ? "fast" : "strict";
    char *digest = arena_alloc(arena, SHA256_HEX);
    manifest_digest(m, digest);
    char *build = arena_printf(arena, "%s%s", manifest_build_text(), slowed_name());
    hello->runner = (struct wire_runner){.present = true,
                                         .id = m->runner_id,
                                         .model_type = model_get_info(v->model)->model_type,
                                         .manifest_sha256 = digest,
                                         .build = build};
}

/* ---- requests ---- */

static bool holds_redacted_word(const char *text)
{
    return strcasestr(text, "expected") || strcasestr(text, "actual");
}

char *worker_error_text(const struct error *err, char *out, size_t size)
{
    /* What the decoder says of a bad line may quote the line: only its name and field go out. */
    bool wire = text_starts(err->name, "WIRE-") || text_starts(err->name, "JSON-");
    const char *message =
        wire ? "the line is not a valid Engine Protocol v1 request" : err->message;
    int n = snprintf(out, size, "%s%s%s", err->name, err->name[0] ? ": " : "", message);
    if (err->field[0] && !holds_redacted_word(err->field) && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, " (field %s)", err->field);
    if (holds_redacted_word(out))
        snprintf(out, size, "%s: the request was refused", wire ? "WIRE-INVALID" : "REFUSED");
    return out;
}

static bool send_response(int output, const struct wire_response *response, struct buffer *line,
                          struct error *err)
{
    buffer_clear(line);
    wire_response_encode(response, line);
    return line_write(output, line->data, line->length, err);
}

static bool send_refusal(const struct worker *w, int output, int64_t id, const struct error *why,
                         struct buffer *line, struct error *err)
{
    char text[1536];
    struct wire_response response = {.id = {true, id},
                                     .nonce = {w->nonce},
                                     .ok = {true, false},
                                     .error = {worker_error_text(why, text, sizeof text)}};
    return send_response(output, &response, line, err);
}

static bool answer_line(struct worker *w, int output, const char *text, size_t length,
                        struct buffer *line, struct error *err)
{
    struct arena arena = {0};
    struct wire_request request;
    struct wire_response response = {0};
    struct error why = {0};
    memset(&request, 0, sizeof request);
    bool sent;
    if (!wire_request_decode(&arena, text, length, &request, &why)) {
        verbs_refused(&w->verbs);
        sent = send_refusal(w, output, WIRE_ERROR_ID, &why, line, err);
    } else {
        const int64_t begun = slowed_begin();
        const bool answered = verbs_answer(&w->verbs, &arena, &request, &response, &why);
        slowed_end(begun, wire_kind_find(request.kind.text));
        if (!answered) {
            sent = send_refusal(w, output, request.id.value, &why, line, err);
        } else {
            response.id = request.id;
            response.nonce.text = w->nonce;
            response.ok = (struct wire_flag){true, true};
            sent = send_response(output, &response, line, err);
        }
        wire_response_free(&response);
        wire_request_free(&request);
    }
    arena_free(&arena);
    return sent;
}

void worker_write_hello(const struct worker *w, const struct wire_resident *resident,
                        bool tell_arithmetic, struct buffer *out)
{
    struct arena arena = {0};
    struct wire_response hello = {0};
    fill_hello(w, tell_arithmetic, &arena, &hello);
    if (resident)
        hello.resident = *resident;
    wire_response_encode(&hello, out);
    arena_free(&arena);
}

bool worker_answer_lines(struct worker *w, struct line_reader *input, int output, struct error *err)
{
    struct buffer line = {0};
    struct error why;
    bool ok = true;
    for (bool more = true; ok && more;) {
        const char *text;
        size_t length;
        switch (line_reader_next(input, &text, &length, err)) {
        case LINE_READ:
            ok = answer_line(w, output, text, length, &line, err);
            break;
        case LINE_TOO_LONG:
            verbs_refused(&w->verbs);
            error_set(&why, "REQUEST-TOO-LONG", "a request line is longer than %d bytes",
                      WIRE_REQUEST_LIMIT);
            ok = send_refusal(w, output, WIRE_ERROR_ID, &why, &line, err);
            break;
        case LINE_CUT:
            error_set(&why, "REQUEST-CUT", "the input ended inside a request line");
            ok = send_refusal(w, output, WIRE_ERROR_ID, &why, &line, err) &&
                 error_set(err, "REQUEST-CUT", "the input ended inside a request line");
            break;
        case LINE_END:
            more = false;
            break;
        case LINE_ERROR:
            ok = false;
            break;
        }
    }
    buffer_free(&line);
    return ok;
}

bool worker_serve(struct worker *w, bool tell_arithmetic, int input, int output, struct error *err)
{
    struct line_reader reader = {.fd = input, .limit = WIRE_REQUEST_LIMIT};
    struct buffer hello = {0};
    worker_write_hello(w, NULL, tell_arithmetic, &hello);
    const bool ok = line_write(output, hello.data, hello.length, err) &&
                    worker_answer_lines(w, &reader, output, err);
    buffer_free(&hello);
    line_reader_free(&reader);
    return ok;
}
