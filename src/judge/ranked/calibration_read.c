/* The calibration file's reader: every rule of contract-and-scoring.md section 6. */
#include "judge/ranked/calibration.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char invalid[] = "BASELINE-CALIBRATION-INVALID";
enum { CALIBRATION_BYTES_MAX = 16 << 20, PASSES_MAX = 0x7fffffff };

/* What the getters of JSON found wrong is this file's own refusal. */
static bool renamed(struct error *err)
{
    if (err != NULL)
        text_copy(err->name, sizeof err->name, invalid);
    return false;
}

static const char *field_of(struct arena *a, const struct json_view *v, const char *key)
{
    return *v->path != '\0' ? arena_printf(a, "%s.%s", v->path, key) : arena_strdup(a, key);
}

static bool refuse(struct arena *a, const struct json_view *v, const char *key, const char *name,
                   const char *what, struct error *err)
{
    struct buffer text = {0};
    const json_t *value = json_object_get(v->object, key);
    if (value != NULL)
        json_write_canonical(value, 0, &text);
    error_set(err, name, "%s", what);
    error_at(err, v->file, field_of(a, v, key), text.data);
    buffer_free(&text);
    return false;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n\v\f")] == '\0';
}

static bool get_text(struct arena *a, const struct json_view *v, const char *key, const char **out,
                     struct error *err)
{
    const char *text;
    if (!json_get_string(v, key, &text, err))
        return renamed(err);
    if (is_blank(text))
        return refuse(a, v, key, invalid, "must not be blank", err);
    *out = arena_strdup(a, text);
    return true;
}

static bool get_commit(struct arena *a, const struct json_view *v, const char *key,
                       const char **out, struct error *err)
{
    const char *text;
    if (!json_get_string(v, key, &text, err))
        return renamed(err);
    if (!text_is_lower_hex(text, 40))
        return refuse(a, v, key, invalid, "must be 40 lower-case hex digits", err);
    *out = arena_strdup(a, text);
    return true;
}

static bool get_positive(struct arena *a, const struct json_view *v, const char *key, double *out,
                         struct error *err)
{
    if (!json_get_double(v, key, out, err))
        return renamed(err);
    if (!isfinite(*out) || *out <= 0)
        return refuse(a, v, key, invalid, "must be finite and above 0", err);
    return true;
}

static bool read_axis(struct arena *a, const struct json_view *v, const char *axis, double cv_max,
                      struct calibration_axis *out, struct error *err)
{
    const char *mean = arena_printf(a, "%s_seconds_per_token_mean", axis);
    const char *cv = arena_printf(a, "%s_cv", axis);
    const char *low = arena_printf(a, "%s_band_low", axis);
    const char *high = arena_printf(a, "%s_band_high", axis);
    if (!get_positive(a, v, mean, &out->seconds_per_token_mean, err))
        return false;
    if (!json_get_double(v, cv, &out->cv, err))
        return renamed(err);
    if (!isfinite(out->cv) || out->cv < 0)
        return refuse(a, v, cv, invalid, "must be finite, 0 or more", err);
    if (out->cv > cv_max) {
        char limit[96];
        snprintf(limit, sizeof limit,
                 "the passes differ too much: a coefficient of variation above %g", cv_max);
        return refuse(a, v, cv, "CALIBRATION-CV-EXCEEDED", limit, err);
    }
    if (!get_positive(a, v, low, &out->band_low, err) ||
        !get_positive(a, v, high, &out->band_high, err))
        return false;
    if (out->band_low > 1)
        return refuse(a, v, low, invalid, "must be 1 at most", err);
    if (out->band_high < 1)
        return refuse(a, v, high, invalid, "must be 1 or more", err);
    return true;
}

static bool read_prompt(struct calibration *c, const json_t *value, size_t index, double cv_max,
                        struct error *err)
{
    static const char *const keys[] = {"prompt",
                                       "passes",
                                       "prefill_seconds_per_token_mean",
                                       "decode_seconds_per_token_mean",
                                       "prefill_cv",
                                       "decode_cv",
                                       "prefill_band_low",
                                       "prefill_band_high",
                                       "decode_band_low",
                                       "decode_band_high",
                                       NULL};
    struct arena *a = &c->arena;
    struct calibration_prompt *p = &c->prompts[index];
    const char *path = arena_printf(a, "prompts[%zu]", index);
    if (!json_is_object(value)) {
        error_set(err, invalid, "must be an object");
        return error_at(err, c->path, path, NULL);
    }
    const struct json_view v = {value, c->path, path};
    if (!json_view_closed(&v, keys, err) ||
        !json_get_int64(&v, "passes", INT64_MIN, INT64_MAX, &p->passes, err))
        return renamed(err);
    if (!get_text(a, &v, "prompt", &p->prompt, err))
        return false;
    for (size_t i = 0; i < index; i++)
        if (strcmp(c->prompts[i].prompt, p->prompt) == 0)
            return refuse(a, &v, "prompt", invalid, "stands there twice", err);
    if (p->passes < CALIBRATION_PASSES_LEAST || p->passes > PASSES_MAX)
        return refuse(a, &v, "passes", invalid, "must be 2 or more", err);
    return read_axis(a, &v, "prefill", cv_max, &p->prefill, err) &&
           read_axis(a, &v, "decode", cv_max, &p->decode, err);
}

static bool read_prompts(struct calibration *c, const struct json_view *root, double cv_max,
                         struct error *err)
{
    const json_t *list;
    if (!json_get_array(root, "prompts", &list, err))
        return renamed(err);
    c->prompt_count = json_array_size(list);
    if (c->prompt_count == 0)
        return refuse(&c->arena, root, "prompts", invalid, "must not be empty", err);
    c->prompts = arena_array(&c->arena, c->prompt_count, sizeof *c->prompts);
    for (size_t i = 0; i < c->prompt_count; i++)
        if (!read_prompt(c, json_array_get(list, i), i, cv_max, err))
            return false;
    return true;
}

/* One reading before one phase of one pass: what docs/quiet.md tells of a record of metrics.gates,
 * but for whose it is. Its three parts are kept as they were measured. */
static bool read_gate(struct calibration *c, const json_t *value, size_t index, struct error *err)
{
    static const char *const keys[] = {"pass",        "phase",     "quiescence",
                                       "temperature", "telemetry", NULL};
    static const char *const parts[] = {"quiescence", "temperature", "telemetry"};
    const char *path = arena_printf(&c->arena, "gates[%zu]", index);
    const char *phase;
    const json_t *part;
    int64_t pass;
    if (!json_is_object(value)) {
        error_set(err, invalid, "must be an object");
        return error_at(err, c->path, path, NULL);
    }
    const struct json_view v = {value, c->path, path};
    if (!json_view_closed(&v, keys, err) || !json_get_int64(&v, "pass", 1, PASSES_MAX, &pass, err))
        return renamed(err);
    if (!get_text(&c->arena, &v, "phase", &phase, err))
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!json_get_object(&v, parts[i], &part, err))
            return renamed(err);
    return true;
}

static bool read_gates(struct calibration *c, const struct json_view *root, struct error *err)
{
    const json_t *list;
    if (!json_has(root, "gates"))
        return true;
    if (!json_get_array(root, "gates", &list, err))
        return renamed(err);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_gate(c, json_array_get(list, i), i, err))
            return false;
    c->gates = json_incref((json_t *)(uintptr_t)list);
    return true;
}

static bool read_version(struct calibration *c, const struct json_view *v, struct error *err)
{
    int64_t version;
    if (!json_get_int64(v, "version", INT64_MIN, INT64_MAX, &version, err))
        return renamed(err);
    if (version == 1 || version == 2)
        return refuse(&c->arena, v, "version", "BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE",
                      "files of version 1 and 2 time the whole decode window with its seed; "
                      "calibrate again",
                      err);
    return version == CALIBRATION_VERSION ||
           refuse(&c->arena, v, "version", invalid, "must be 3", err);
}

static bool read_all(struct calibration *c, const json_t *root, double cv_max, struct error *err)
{
    static const char *const keys[] = {
        "version", "track_id", "box", "captured_at", "reference_commit", "benchd_source_commit",
        "prompts", "gates",    NULL};
    struct arena *a = &c->arena;
    if (!json_is_object(root)) {
        error_set(err, invalid, "must hold one JSON object");
        return error_at(err, c->path, NULL, NULL);
    }
    const struct json_view v = {root, c->path, ""};
    if (!read_version(c, &v, err))
        return false;
    if (!json_view_closed(&v, keys, err))
        return renamed(err);
    return get_text(a, &v, "track_id", &c->track_id, err) && get_text(a, &v, "box", &c->box, err) &&
           get_text(a, &v, "captured_at", &c->captured_at, err) &&
           get_commit(a, &v, "reference_commit", &c->reference_commit, err) &&
           get_commit(a, &v, "benchd_source_commit", &c->benchd_source_commit, err) &&
           read_prompts(c, &v, cv_max, err) && read_gates(c, &v, err);
}

bool calibration_parse(const char *path, const char *data, size_t length, double cv_max,
                       struct calibration **out, struct error *err)
{
    *out = NULL;
    json_t *root = json_parse_strict(data, length, JSON_DEPTH_DEFAULT, path, err);
    if (root == NULL)
        return renamed(err);
    struct calibration *c = memory_alloc(sizeof *c);
    c->path = arena_strdup(&c->arena, path);
    const bool ok = read_all(c, root, cv_max, err);
    json_decref(root);
    if (ok)
        *out = c;
    else
        calibration_free(c);
    return ok;
}

bool calibration_load(const char *path, double cv_max, struct calibration **out, struct error *err)
{
    struct buffer text = {0};
    *out = NULL;
    if (path == NULL || !file_exists(path)) {
        error_set(err, "BASELINE-CALIBRATION-MISSING", "%s",
                  path == NULL ? "no calibration of this box is given, and "
                                 "MLXFAST_BASELINE_CALIBRATION does not name it"
                               : "the calibration of this box is not there");
        return error_at(err, path, "--baseline-calibration", NULL);
    }
    if (!file_read(path, CALIBRATION_BYTES_MAX, &text, err))
        return renamed(err);
    const bool ok =
        calibration_parse(path, text.data != NULL ? text.data : "", text.length, cv_max, out, err);
    buffer_free(&text);
    return ok;
}

void calibration_free(struct calibration *c)
{
    if (c == NULL)
        return;
    json_decref(c->gates);
    arena_free(&c->arena);
    free(c);
}
