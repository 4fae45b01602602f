#include "judge/dflash_golden.h"

#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BYTES_MAX = 256 << 20,
    DEPTH_MAX = 8 /* the deepest value stands at 4 */
};

struct reader {
    const struct dflash_golden_rules *rules;
    struct dflash_golden *g;
    struct error *err;
};

static bool refuse(const struct reader *r, const char *path, const char *key, const char *value,
                   const char *what)
{
    char field[200];
    snprintf(field, sizeof field, "%s%s%s", path, *path != '\0' ? "." : "", key);
    error_set(r->err, "GOLDEN-INVALID", "%s %s", field, what);
    return error_at(r->err, r->g->path, field, value);
}

static bool refuse_number(const struct reader *r, const char *path, const char *key, int64_t value,
                          const char *what)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return refuse(r, path, key, text, what);
}

/* The reader of JSON names its own errors; here all of them are one. */
static bool renamed(const struct reader *r, bool ok)
{
    if (!ok && r->err != NULL)
        text_copy(r->err->name, sizeof r->err->name, "GOLDEN-INVALID");
    return ok;
}

static bool read_token(const struct reader *r, const struct json_view *v, const char *key,
                       int64_t *out)
{
    return json_get_int64(v, key, 0, r->rules->vocab_size - 1, out, r->err);
}

static bool read_tokens(const struct reader *r, const struct json_view *v, const char *key,
                        int64_t **out, size_t *count)
{
    return json_get_int64_array(&r->g->arena, v, key, 0, r->rules->vocab_size - 1, out, count,
                                r->err);
}

static bool read_logits(const struct reader *r, const struct json_view *v, const char *key,
                        double out[2])
{
    const json_t *list;
    if (!json_get_array(v, key, &list, r->err))
        return false;
    if (json_array_size(list) != 2)
        return refuse_number(r, v->path, key, (int64_t)json_array_size(list),
                             "must hold two logits");
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_number(item))
            return refuse(r, v->path, key, NULL, "must hold two numbers");
        out[i] = json_number_value(item);
    }
    return true;
}

/* {"<width>": token}: widths as plain decimals, 1 to 16. */
static bool read_frames(const struct reader *r, const struct json_view *v, struct dflash_row *row)
{
    static const char key[] = "declared_frame_argmax";
    const json_t *frames;
    if (!json_get_object(v, key, &frames, r->err))
        return false;
    if (json_object_size(frames) == 0)
        return refuse(r, v->path, key, NULL, "must hold the argmax of one width at least");
    for (int w = 0; w <= FIDELITY_BLOCK_MOST; w++)
        row->frame_argmax[w] = -1;
    char path[160];
    snprintf(path, sizeof path, "%s.%s", v->path, key);
    const struct json_view inner = {frames, v->file, path};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)frames, name, value)
    {
        int64_t width;
        if (name[0] == '0' || !number_int64(name, 1, FIDELITY_BLOCK_MOST, &width))
            return refuse(r, path, name, NULL, "is no width of 1 to 16");
        if (!read_token(r, &inner, name, &row->frame_argmax[width]))
            return false;
    }
    return true;
}

static bool check_row(const struct reader *r, const char *path, const struct dflash_row *row)
{
    const struct fidelity_readout *t = &row->top;
    if (t->token[0] == t->token[1])
        return refuse_number(r, path, "top2_tokens", t->token[0], "names one token twice");
    if (t->logit[0] < t->logit[1])
        return refuse(r, path, "top2_logits", NULL, "must descend");
    if (t->logit[0] == t->logit[1] && t->token[0] > t->token[1])
        return refuse(r, path, "top2_tokens", NULL, "must name the lower id of a tie first");
    if (row->top1_logit != t->logit[0])
        return refuse(r, path, "top1_logit", NULL, "must be the first of top2_logits");
    if (row->sequential_argmax != t->token[0])
        return refuse_number(r, path, "sequential_argmax", row->sequential_argmax,
                             "must be the first of top2_tokens");
    const double emitted = row->emitted_token_logit;
    const bool fits = row->emitted_token == t->token[0]   ? emitted == t->logit[0]
                      : row->emitted_token == t->token[1] ? emitted == t->logit[1]
                                                          : emitted <= t->logit[1];
    return fits || refuse(r, path, "emitted_token_logit", NULL, "contradicts top2_logits");
}

static bool read_row(const struct reader *r, const json_t *value, size_t index,
                     struct dflash_row *row)
{
    static const char *const keys[] = {
        "sequential_argmax", "declared_frame_argmax", "top2_tokens",         "top2_logits",
        "top1_logit",        "emitted_token",         "emitted_token_logit", NULL};
    char path[40];
    snprintf(path, sizeof path, "rows[%zu]", index);
    if (!json_is_object(value))
        return refuse(r, "", path, NULL, "must be an object");
    const struct json_view v = {value, r->g->path, path};
    int64_t *pair;
    size_t count;
    if (!json_view_closed(&v, keys, r->err) ||
        !read_token(r, &v, "sequential_argmax", &row->sequential_argmax) ||
        !read_frames(r, &v, row) || !read_tokens(r, &v, "top2_tokens", &pair, &count))
        return false;
    if (count != 2)
        return refuse_number(r, path, "top2_tokens", (int64_t)count, "must hold two tokens");
    memcpy(row->top.token, pair, sizeof row->top.token);
    return read_logits(r, &v, "top2_logits", row->top.logit) &&
           json_get_double(&v, "top1_logit", &row->top1_logit, r->err) &&
           read_token(r, &v, "emitted_token", &row->emitted_token) &&
           json_get_double(&v, "emitted_token_logit", &row->emitted_token_logit, r->err) &&
           check_row(r, path, row);
}

static bool read_rows(const struct reader *r, const struct json_view *v)
{
    const json_t *list;
    struct dflash_golden *g = r->g;
    if (!json_get_array(v, "rows", &list, r->err))
        return false;
    const int64_t most =
        r->rules->maximum_rows > 0 ? r->rules->maximum_rows : DFLASH_GOLDEN_ROWS_MOST;
    g->row_count = json_array_size(list);
    if (g->row_count == 0 || g->row_count > (size_t)most)
        return refuse_number(r, "", "rows", (int64_t)g->row_count,
                             "holds no row, or more than may be decoded");
    g->rows = arena_array(&g->arena, g->row_count, sizeof *g->rows);
    for (size_t i = 0; i < g->row_count; i++)
        if (!read_row(r, json_array_get(list, i), i, &g->rows[i]))
            return false;
    return true;
}

static bool read_emitted(const struct reader *r, const struct json_view *v)
{
    const struct dflash_golden *g = r->g;
    int64_t *emitted;
    size_t count;
    if (!read_tokens(r, v, "emitted_tokens", &emitted, &count))
        return false;
    if (count != g->row_count)
        return refuse_number(r, "", "emitted_tokens", (int64_t)count,
                             "must hold one token for each row");
    for (size_t i = 0; i < count; i++)
        if (emitted[i] != g->rows[i].emitted_token) {
            char field[48];
            snprintf(field, sizeof field, "emitted_tokens[%zu]", i);
            return refuse_number(r, "", field, emitted[i], "must be the row's emitted_token");
        }
    return true;
}

static bool read_root(const struct reader *r, const json_t *root)
{
    static const char *const keys[] = {"seed_tokens",    "reference_seed_token",      "rows",
                                       "emitted_tokens", "reference_self_consistent", NULL};
    struct dflash_golden *g = r->g;
    const struct json_view v = {root, g->path, ""};
    if (!json_is_object(root))
        return refuse(r, "", "the document", NULL, "must be an object");
    if (!json_view_closed(&v, keys, r->err) ||
        !read_tokens(r, &v, "seed_tokens", &g->seed, &g->seed_count))
        return false;
    const int64_t wanted = r->rules->seed_tokens;
    if (wanted > 0 ? g->seed_count != (size_t)wanted
                   : g->seed_count == 0 || g->seed_count > DFLASH_GOLDEN_SEED_MOST)
        return refuse_number(r, "", "seed_tokens", (int64_t)g->seed_count,
                             "is not as long as the track's seed");
    if (!read_token(r, &v, "reference_seed_token", &g->seed_token) || !read_rows(r, &v) ||
        !read_emitted(r, &v) ||
        !json_get_bool(&v, "reference_self_consistent", &g->self_consistent, r->err))
        return false;
    if (g->self_consistent && !dflash_golden_rows_agree(g))
        return refuse(r, "", "reference_self_consistent", "true", "is contradicted by the rows");
    return true;
}

bool dflash_golden_rows_agree(const struct dflash_golden *g)
{
    for (size_t i = 0; i < g->row_count; i++)
        if (g->rows[i].emitted_token != g->rows[i].sequential_argmax)
            return false;
    return true;
}

bool dflash_golden_parse(const char *path, const char *data, size_t length,
                         const struct dflash_golden_rules *rules, struct dflash_golden **out,
                         struct error *err)
{
    struct error unasked;
    struct dflash_golden *g = memory_alloc(sizeof *g);
    const struct reader r = {rules, g, err != NULL ? err : &unasked};
    *out = NULL;
    g->path = arena_strdup(&g->arena, path);
    g->bytes = length;
    sha256_hex(data, length, g->sha256);
    json_t *root = json_parse_strict(data, length, DEPTH_MAX, g->path, r.err);
    bool ok = renamed(&r, root != NULL && read_root(&r, root));
    json_decref(root);
    if (ok && rules->require_self_consistent && !g->self_consistent) {
        error_set(r.err, "GOLDEN-NOT-SELF-CONSISTENT",
                  "the reference that made this golden disagreed with itself or with the tokens");
        ok = error_at(r.err, g->path, "reference_self_consistent", "false");
    }
    if (!ok) {
        dflash_golden_free(g);
        return false;
    }
    *out = g;
    return true;
}

bool dflash_golden_load(const char *path, const struct dflash_golden_rules *rules,
                        struct dflash_golden **out, struct error *err)
{
    struct buffer bytes = {0};
    *out = NULL;
    const bool ok = file_read(path, BYTES_MAX, &bytes, err) &&
                    dflash_golden_parse(path, bytes.data != NULL ? bytes.data : "", bytes.length,
                                        rules, out, err);
    buffer_free(&bytes);
    return ok;
}

void dflash_golden_free(struct dflash_golden *g)
{
    if (g == NULL)
        return;
    arena_free(&g->arena);
    free(g);
}

static json_t *token_list(const int64_t *tokens, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    return list;
}

static json_t *emitted_list(const struct dflash_golden *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->row_count; i++)
        json_array_append_new(list, json_integer(g->rows[i].emitted_token));
    return list;
}

static json_t *row_object(const struct dflash_row *row)
{
    json_t *o = json_object(), *frames = json_object(), *logits = json_array();
    for (int w = 1; w <= FIDELITY_BLOCK_MOST; w++) {
        char key[16];
        snprintf(key, sizeof key, "%d", w);
        if (row->frame_argmax[w] >= 0)
            json_object_set_new(frames, key, json_integer(row->frame_argmax[w]));
    }
    for (int i = 0; i < 2; i++)
        json_array_append_new(logits, json_real(row->top.logit[i]));
    json_object_set_new(o, "sequential_argmax", json_integer(row->sequential_argmax));
    json_object_set_new(o, "declared_frame_argmax", frames);
    json_object_set_new(o, "top2_tokens", token_list(row->top.token, 2));
    json_object_set_new(o, "top2_logits", logits);
    json_object_set_new(o, "top1_logit", json_real(row->top1_logit));
    json_object_set_new(o, "emitted_token", json_integer(row->emitted_token));
    json_object_set_new(o, "emitted_token_logit", json_real(row->emitted_token_logit));
    return o;
}

static void write_document(json_t *document, struct buffer *out)
{
    json_write_ordered(document, 2, out);
    buffer_char(out, '\n');
    json_decref(document);
}

void dflash_golden_write(const struct dflash_golden *g, struct buffer *out)
{
    json_t *document = json_object(), *rows = json_array();
    for (size_t i = 0; i < g->row_count; i++)
        json_array_append_new(rows, row_object(&g->rows[i]));
    json_object_set_new(document, "seed_tokens", token_list(g->seed, g->seed_count));
    json_object_set_new(document, "reference_seed_token", json_integer(g->seed_token));
    json_object_set_new(document, "rows", rows);
    json_object_set_new(document, "reference_self_consistent", json_boolean(g->self_consistent));
    json_object_set_new(document, "emitted_tokens", emitted_list(g));
    write_document(document, out);
}

void dflash_plan_write(const struct dflash_golden *g, const struct dflash_plan_round *rounds,
                       size_t round_count, struct buffer *out)
{
    json_t *document = json_object(), *list = json_array();
    for (size_t i = 0; i < round_count; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "block_size", json_integer(rounds[i].block_size));
        json_object_set_new(o, "count", json_integer(rounds[i].count));
        json_array_append_new(list, o);
    }
    json_object_set_new(document, "seed_tokens", token_list(g->seed, g->seed_count));
    json_object_set_new(document, "emitted", emitted_list(g));
    json_object_set_new(document, "rounds", list);
    write_document(document, out);
}
