#include "judge/evidence/statement.h"

#include "base/json.h"
#include "judge/evidence/key.h"

#include <math.h>
#include <string.h>

enum { STATEMENT_VERSION = 1 };
static const char type_name[] = "mlxfast-statement";

static void set_text(json_t *o, const char *key, const char *text)
{
    json_object_set_new(o, key, text && *text ? json_string(text) : json_null());
}

static void set_count(json_t *o, const char *key, uint64_t n)
{
    json_object_set_new(o, key, json_integer((json_int_t)n));
}

static json_t *statement_value(const struct statement *s)
{
    json_t *o = json_object(), *programs = json_object(), *weights = json_object();
    json_t *goldens = json_array(), *log = s->has_log ? json_object() : json_null();
    set_text(programs, "baseline", s->baseline_sha256);
    set_text(programs, "benchd", s->benchd_sha256);
    set_text(programs, "candidate", s->candidate_sha256);
    set_count(weights, "bytes", s->weights_bytes);
    set_count(weights, "files", s->weights_files);
    set_text(weights, "sha256", s->weights_sha256);
    for (size_t i = 0; i < s->golden_count; i++) {
        json_t *g = json_object();
        set_count(g, "bytes", s->goldens[i].bytes);
        set_text(g, "sha256", s->goldens[i].sha256);
        json_array_append_new(goldens, g);
    }
    if (s->has_log) {
        set_count(log, "index", s->log_index);
        set_text(log, "previous", s->log_previous);
    }
    set_text(o, "box", s->box);
    set_text(o, "calibration_sha256", s->calibration_sha256);
    set_text(o, "contract_sha256", s->contract_sha256);
    set_text(o, "drafter_sha256", s->drafter_sha256);
    json_object_set_new(o, "executables", programs);
    set_text(o, "gates_sha256", s->gates_sha256);
    json_object_set_new(o, "goldens", goldens);
    set_text(o, "harness_sha256", s->harness_sha256);
    set_text(o, "integrity_sha256", s->integrity_sha256);
    set_text(o, "key", s->key);
    json_object_set_new(o, "log", log);
    json_object_set_new(o, "passed", json_boolean(s->passed));
    json_object_set_new(o, "score", s->has_score ? json_real(s->score) : json_null());
    set_text(o, "score_sha256", s->score_sha256);
    set_text(o, "source_commit", s->source_commit);
    set_text(o, "time", s->time);
    set_text(o, "track_id", s->track_id);
    set_text(o, "type", type_name);
    set_count(o, "version", STATEMENT_VERSION);
    json_object_set_new(o, "weights", weights);
    return o;
}

void statement_render(const struct statement *s, struct buffer *out)
{
    json_t *value = statement_value(s);
    json_write_canonical(value, 2, out);
    json_decref(value);
}

void statement_gates_digest(const json_t *metrics, char out[SHA256_HEX])
{
    const json_t *gates = json_object_get(metrics, "gates");
    out[0] = '\0';
    if (!gates)
        return;
    struct buffer text = {0};
    json_write_canonical(gates, 0, &text);
    sha256_hex(text.data, text.length, out);
    buffer_free(&text);
}

/* ---- Reading ---- */

static bool invalid(const struct json_view *v, const char *field, const char *what,
                    struct error *err)
{
    error_set(err, "STATEMENT-INVALID", "%s", what);
    return error_at(err, v->file, field, NULL);
}

static bool renamed(struct error *err)
{
    if (err)
        text_copy(err->name, sizeof err->name, "STATEMENT-INVALID");
    return false;
}

/* A text, or null where it may be absent: "". digits: so many lower-case hexadecimal ones; 0: any
 * text. */
static bool get_text(const struct json_view *v, const char *key, bool nullable, size_t digits,
                     struct arena *a, const char **out, struct error *err)
{
    const char *text;
    if (nullable && json_is_null(json_object_get(v->object, key))) {
        *out = "";
        return true;
    }
    if (!json_get_string(v, key, &text, err))
        return renamed(err);
    if (digits ? !text_is_lower_hex(text, digits) : *text == '\0')
        return invalid(v, key,
                       digits ? "must be a digest in lower-case hexadecimal" : "must not be empty",
                       err);
    *out = arena_strdup(a, text);
    return true;
}

static bool get_count(const struct json_view *v, const char *key, uint64_t *out, struct error *err)
{
    int64_t n;
    if (!json_get_int64(v, key, 0, INT64_MAX, &n, err))
        return renamed(err);
    *out = (uint64_t)n;
    return true;
}

static bool closed(const struct json_view *v, const char *const *keys, struct error *err)
{
    if (!json_is_object(v->object))
        return invalid(v, v->path, "must be an object", err);
    return json_view_closed(v, keys, err) || renamed(err);
}

static bool read_goldens(const struct json_view *v, struct statement *s, struct error *err)
{
    static const char *const keys[] = {"bytes", "sha256", NULL};
    const json_t *list;
    if (!json_get_array(v, "goldens", &list, err))
        return renamed(err);
    s->golden_count = json_array_size(list);
    if (s->golden_count > STATEMENT_GOLDENS_MOST)
        return invalid(v, "goldens", "names more goldens than a run can have", err);
    for (size_t i = 0; i < s->golden_count; i++) {
        const struct json_view g = {json_array_get(list, i), v->file, "goldens"};
        const char *digest;
        struct arena a = {0};
        const bool ok = closed(&g, keys, err) &&
                        get_text(&g, "sha256", false, SHA256_HEX - 1, &a, &digest, err) &&
                        get_count(&g, "bytes", &s->goldens[i].bytes, err);
        if (ok)
            text_copy(s->goldens[i].sha256, SHA256_HEX, digest);
        arena_free(&a);
        if (!ok)
            return false;
    }
    return true;
}

static bool read_nested(const struct json_view *v, struct arena *a, struct statement *s,
                        struct error *err)
{
    static const char *const program_keys[] = {"baseline", "benchd", "candidate", NULL};
    static const char *const weight_keys[] = {"bytes", "files", "sha256", NULL};
    static const char *const log_keys[] = {"index", "previous", NULL};
    const struct json_view programs = {json_object_get(v->object, "executables"), v->file,
                                       "executables"};
    const struct json_view weights = {json_object_get(v->object, "weights"), v->file, "weights"};
    const struct json_view log = {json_object_get(v->object, "log"), v->file, "log"};
    const size_t hex = SHA256_HEX - 1;
    if (!closed(&programs, program_keys, err) ||
        !get_text(&programs, "baseline", true, hex, a, &s->baseline_sha256, err) ||
        !get_text(&programs, "benchd", true, hex, a, &s->benchd_sha256, err) ||
        !get_text(&programs, "candidate", true, hex, a, &s->candidate_sha256, err) ||
        !closed(&weights, weight_keys, err) ||
        !get_count(&weights, "bytes", &s->weights_bytes, err) ||
        !get_count(&weights, "files", &s->weights_files, err) ||
        !get_text(&weights, "sha256", true, hex, a, &s->weights_sha256, err))
        return false;
    s->has_log = log.object != NULL && !json_is_null(log.object);
    return !s->has_log ||
           (closed(&log, log_keys, err) && get_count(&log, "index", &s->log_index, err) &&
            get_text(&log, "previous", false, hex, a, &s->log_previous, err));
}

static bool read_outcome(const struct json_view *v, struct statement *s, struct error *err)
{
    s->has_score = !json_is_null(json_object_get(v->object, "score"));
    if (!json_get_bool(v, "passed", &s->passed, err) ||
        (s->has_score && !json_get_double(v, "score", &s->score, err)))
        return renamed(err);
    return s->passed || !s->has_score ||
           invalid(v, "score", "must be null when passed is false", err);
}

static bool read_statement(const struct json_view *v, struct arena *a, struct statement *s,
                           struct error *err)
{
    static const char *const keys[] = {"box",
                                       "calibration_sha256",
                                       "contract_sha256",
                                       "drafter_sha256",
                                       "executables",
                                       "gates_sha256",
                                       "goldens",
                                       "harness_sha256",
                                       "integrity_sha256",
                                       "key",
                                       "log",
                                       "passed",
                                       "score",
                                       "score_sha256",
                                       "source_commit",
                                       "time",
                                       "track_id",
                                       "type",
                                       "version",
                                       "weights",
                                       NULL};
    const size_t hex = SHA256_HEX - 1;
    const char *type;
    int64_t version;
    if (!closed(v, keys, err) || !get_text(v, "type", false, 0, a, &type, err))
        return false;
    if (strcmp(type, type_name) != 0)
        return invalid(v, "type", "is not that of a statement", err);
    if (!json_get_int64(v, "version", STATEMENT_VERSION, STATEMENT_VERSION, &version, err))
        return renamed(err);
    return get_text(v, "box", true, 0, a, &s->box, err) &&
           get_text(v, "calibration_sha256", true, hex, a, &s->calibration_sha256, err) &&
           get_text(v, "contract_sha256", false, hex, a, &s->contract_sha256, err) &&
           get_text(v, "drafter_sha256", true, hex, a, &s->drafter_sha256, err) &&
           get_text(v, "gates_sha256", true, hex, a, &s->gates_sha256, err) &&
           get_text(v, "harness_sha256", true, hex, a, &s->harness_sha256, err) &&
           get_text(v, "integrity_sha256", false, hex, a, &s->integrity_sha256, err) &&
           get_text(v, "key", false, KEY_ID - 1, a, &s->key, err) &&
           get_text(v, "score_sha256", false, hex, a, &s->score_sha256, err) &&
           get_text(v, "source_commit", true, 40, a, &s->source_commit, err) &&
           get_text(v, "time", false, 0, a, &s->time, err) &&
           get_text(v, "track_id", false, 0, a, &s->track_id, err) && read_outcome(v, s, err) &&
           read_goldens(v, s, err) && read_nested(v, a, s, err);
}

bool statement_parse(const char *file, const char *data, size_t length, struct arena *a,
                     struct statement *out, struct error *err)
{
    *out = (struct statement){0};
    if (length > STATEMENT_BYTES_MOST) {
        error_set(err, "STATEMENT-INVALID", "longer than any statement");
        return error_at(err, file, NULL, NULL);
    }
    json_t *value = json_parse_strict(data, length, 8, file, err);
    if (!value)
        return renamed(err);
    const struct json_view v = {value, file, ""};
    struct buffer again = {0};
    bool ok = read_statement(&v, a, out, err);
    if (ok) {
        statement_render(out, &again);
        ok = (again.length == length && memcmp(again.data, data, length) == 0) ||
             invalid(&v, NULL, "is not in canonical form", err);
    }
    buffer_free(&again);
    json_decref(value);
    return ok;
}
