/* Timed-prompt tapes: decode and check in one pass, key by key (goldens.md section 5). */
#include "judge/tape.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TAPE_BYTES_MAX = 256 << 20,
    TAPE_DEPTH_MAX = 16 /* the deepest field stands at 4 */
};

static const char *const tape_keys[] = {"seed_tokens",    "reference_seed_token",
                                        "rows",           "reference_self_consistent",
                                        "emitted_tokens", NULL};
static const char *const row_keys[] = {"sequential_argmax", "top2_tokens", "top2_logits",
                                       "top1_logit", NULL};

/* One reading of one tape. */
struct reader {
    struct tape *t;
    int64_t vocab_size;
    struct error *err;
};

static bool refuse(const struct reader *r, const char *field, const json_t *value, const char *what)
{
    struct buffer text = {0};
    if (value)
        json_write_canonical(value, 0, &text);
    error_set(r->err, "TAPE-INVALID", "%s %s", field, what);
    error_at(r->err, r->t->path, field, text.data);
    buffer_free(&text);
    return false;
}

/* Keeps the place and the words of json.h's getters under the tape's own name. */
static bool renamed(bool ok, struct error *err)
{
    static const char name[] = "TAPE-INVALID";
    if (!ok && err)
        text_copy(err->name, sizeof err->name, name);
    return ok;
}

static bool refuse_token(const struct reader *r, const char *field, int64_t token)
{
    struct buffer text = {0};
    buffer_printf(&text, "%lld", (long long)token);
    error_set(r->err, "TAPE-INVALID", "%s=%s is outside configured vocab range 0..<%lld", field,
              text.data, (long long)r->vocab_size);
    error_at(r->err, r->t->path, field, text.data);
    buffer_free(&text);
    return false;
}

static bool in_vocabulary(const struct reader *r, int64_t token)
{
    return token >= 0 && token < r->vocab_size;
}

/* The whole path of a key, for a message. */
static const char *field_of(const struct reader *r, const struct json_view *v, const char *key)
{
    return arena_printf(&r->t->arena, "%s%s%s", v->path, *v->path ? "." : "", key);
}

/* A key that must be an array of tokens, none outside the vocabulary. */
static bool read_tokens(const struct reader *r, const struct json_view *v, const char *key,
                        int64_t **out, size_t *count)
{
    struct arena *a = &r->t->arena;
    if (!renamed(json_get_int64_array(a, v, key, INT64_MIN, INT64_MAX, out, count, r->err), r->err))
        return false;
    for (size_t i = 0; i < *count; i++)
        if (!in_vocabulary(r, (*out)[i]))
            return refuse_token(r, arena_printf(a, "%s[%zu]", field_of(r, v, key), i), (*out)[i]);
    return true;
}

static bool read_token(const struct reader *r, const struct json_view *v, const char *key,
                       int64_t *out)
{
    if (!renamed(json_get_int64(v, key, INT64_MIN, INT64_MAX, out, r->err), r->err))
        return false;
    return in_vocabulary(r, *out) || refuse_token(r, field_of(r, v, key), *out);
}

static bool read_top2_tokens(const struct reader *r, const struct json_view *v,
                             struct tape_row *row)
{
    static const char key[] = "top2_tokens";
    int64_t *items = NULL;
    size_t count = 0;
    row->has_top2_tokens = json_has(v, key);
    if (!row->has_top2_tokens)
        return true;
    if (!read_tokens(r, v, key, &items, &count))
        return false;
    if (count != 2)
        return refuse(r, field_of(r, v, key), json_object_get(v->object, key),
                      "must hold two tokens");
    memcpy(row->top2_tokens, items, sizeof row->top2_tokens);
    return true;
}

static bool read_top2_logits(const struct reader *r, const struct json_view *v,
                             struct tape_row *row)
{
    static const char key[] = "top2_logits";
    const json_t *list = NULL;
    row->has_top2_logits = json_has(v, key);
    if (!row->has_top2_logits)
        return true;
    if (!renamed(json_get_array(v, key, &list, r->err), r->err))
        return false;
    if (json_array_size(list) != 2)
        return refuse(r, field_of(r, v, key), list, "must hold two numbers");
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(list, i);
        row->top2_logits[i] = json_is_number(item) ? json_number_value(item) : NAN;
        if (!isfinite(row->top2_logits[i]))
            return refuse(r, arena_printf(&r->t->arena, "%s[%zu]", field_of(r, v, key), i), item,
                          "must be a finite number");
    }
    return true;
}

static bool read_row(const struct reader *r, const json_t *entry, const char *path,
                     struct tape_row *row)
{
    const struct json_view v = {entry, r->t->path, path};
    if (!json_is_object(entry))
        return refuse(r, path, entry, "must be an object");
    if (!renamed(json_view_closed(&v, row_keys, r->err), r->err) ||
        !read_token(r, &v, "sequential_argmax", &row->sequential_argmax) ||
        !read_top2_tokens(r, &v, row) || !read_top2_logits(r, &v, row))
        return false;
    row->has_top1_logit = json_has(&v, "top1_logit");
    return !row->has_top1_logit ||
           renamed(json_get_double(&v, "top1_logit", &row->top1_logit, r->err), r->err);
}

static bool read_rows(const struct reader *r, const struct json_view *v)
{
    struct tape *t = r->t;
    const json_t *list = NULL;
    if (!renamed(json_get_array(v, "rows", &list, r->err), r->err))
        return false;
    t->row_count = json_array_size(list);
    if (t->row_count == 0)
        return refuse(r, "rows", list, "must not be empty");
    struct tape_row *rows = arena_array(&t->arena, t->row_count, sizeof *rows);
    t->rows = rows;
    for (size_t i = 0; i < t->row_count; i++) {
        char path[48];
        struct buffer text = {0};
        buffer_printf(&text, "rows[%zu]", i);
        text_copy(path, sizeof path, text.data);
        buffer_free(&text);
        if (!read_row(r, json_array_get(list, i), path, &rows[i]))
            return false;
    }
    return true;
}

/* The flag of the tape's maker, and the second list of the same tokens. */
static bool read_attestations(const struct reader *r, const struct json_view *v)
{
    struct tape *t = r->t;
    int64_t *emitted = NULL;
    size_t count = 0;
    bool consistent = true;
    t->has_self_consistent = json_has(v, "reference_self_consistent");
    if (t->has_self_consistent &&
        !renamed(json_get_bool(v, "reference_self_consistent", &consistent, r->err), r->err))
        return false;
    if (!consistent) {
        error_set(r->err, "TAPE-NOT-SELF-CONSISTENT",
                  "the reference did not agree with itself when this tape was made: an operator's "
                  "fault, record it again");
        return error_at(r->err, t->path, "reference_self_consistent", "false");
    }
    t->has_emitted_tokens = json_has(v, "emitted_tokens");
    if (!t->has_emitted_tokens)
        return true;
    if (!read_tokens(r, v, "emitted_tokens", &emitted, &count))
        return false;
    if (count != t->row_count)
        return refuse(r, "emitted_tokens", NULL, "must be as long as rows");
    for (size_t i = 0; i < count; i++)
        if (emitted[i] != t->rows[i].sequential_argmax)
            return refuse(r, arena_printf(&t->arena, "emitted_tokens[%zu]", i),
                          json_array_get(json_object_get(v->object, "emitted_tokens"), i),
                          "is not the row's sequential_argmax");
    return true;
}

static bool read_tape(const struct reader *r, const json_t *root)
{
    struct tape *t = r->t;
    const struct json_view v = {root, t->path, ""};
    int64_t *seed = NULL;
    if (!json_is_object(root))
        return refuse(r, "(root)", NULL, "must be an object");
    if (r->vocab_size < 1)
        return refuse(r, "(vocabulary)", NULL, "must hold a token");
    if (!renamed(json_view_closed(&v, tape_keys, r->err), r->err) ||
        !read_tokens(r, &v, "seed_tokens", &seed, &t->seed_count))
        return false;
    t->seed_tokens = seed;
    if (t->seed_count == 0)
        return refuse(r, "seed_tokens", json_object_get(root, "seed_tokens"), "must not be empty");
    return read_token(r, &v, "reference_seed_token", &t->reference_seed_token) &&
           read_rows(r, &v) && read_attestations(r, &v);
}

static const char *prompt_name(struct arena *a, const char *path)
{
    static const char *const endings[] = {".golden.json", ".json"};
    const char *name = path_basename(path);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (text_ends(name, endings[i]))
            return arena_strndup(a, name, strlen(name) - strlen(endings[i]));
    return arena_strdup(a, name);
}

bool tape_parse(const char *path, const char *data, size_t length, int64_t vocab_size,
                struct tape **out, struct error *err)
{
    struct tape *t = memory_alloc(sizeof *t);
    const struct reader r = {t, vocab_size, err};
    *out = NULL;
    t->path = arena_strdup(&t->arena, path);
    t->prompt_name = prompt_name(&t->arena, path);
    t->bytes = length;
    sha256_hex(data, length, t->sha256);
    json_t *root = json_parse_strict(data, length, TAPE_DEPTH_MAX, t->path, err);
    const bool ok = renamed(root != NULL, err) && read_tape(&r, root);
    json_decref(root);
    if (!ok) {
        tape_free(t);
        return false;
    }
    *out = t;
    return true;
}

bool timed_input_route_bytes(const char *path, const char *data, size_t length,
                             enum timed_input *out, struct error *err)
{
    static const char neither[] = "TIMED-INPUT-UNKNOWN";
    json_t *root = json_parse_strict(data, length, TAPE_DEPTH_MAX, path, err);
    if (!root) {
        if (err)
            text_copy(err->name, sizeof err->name, neither);
        return false;
    }
    bool ok = true;
    if (json_object_get(root, "seed_tokens") && json_object_get(root, "reference_seed_token") &&
        json_object_get(root, "rows")) {
        *out = TIMED_INPUT_TAPE;
    } else if (json_object_get(root, "cases")) {
        *out = TIMED_INPUT_GOLDEN;
    } else {
        error_set(err, neither,
                  "--golden %s matches NEITHER accepted shape: a tape has seed_tokens, "
                  "reference_seed_token and rows, a golden has cases",
                  path);
        ok = error_at(err, path, NULL, NULL);
    }
    json_decref(root);
    return ok;
}

bool timed_input_route(const char *path, enum timed_input *out, struct error *err)
{
    struct buffer bytes = {0};
    const bool ok =
        file_read(path, TAPE_BYTES_MAX, &bytes, err) &&
        timed_input_route_bytes(path, bytes.data ? bytes.data : "", bytes.length, out, err);
    buffer_free(&bytes);
    return ok;
}

bool tape_load(const char *path, int64_t vocab_size, struct tape **out, struct error *err)
{
    struct buffer bytes = {0};
    *out = NULL;
    const bool ok =
        file_read(path, TAPE_BYTES_MAX, &bytes, err) &&
        tape_parse(path, bytes.data ? bytes.data : "", bytes.length, vocab_size, out, err);
    buffer_free(&bytes);
    return ok;
}

void tape_free(struct tape *t)
{
    if (!t)
        return;
    arena_free(&t->arena);
    free(t);
}
