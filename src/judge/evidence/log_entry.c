/* Entries and inclusion proofs: their one spelling, and the reading of it. */
#include "judge/evidence/log.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { ENTRY_MOST = 1024, PROOF_MOST = 16384, LOG_VERSION = 1 };

static bool invalid(struct error *err, const char *file, const char *field, const char *what)
{
    error_set(err, "LOG-INVALID", "%s", what);
    return error_at(err, file, field, NULL);
}

/* A name that the caller's own error replaces with the log's. */
static bool renamed(struct error *err)
{
    if (err)
        text_copy(err->name, sizeof err->name, "LOG-INVALID");
    return false;
}

static json_t *entry_value(const struct log_entry *e, bool with_hash)
{
    json_t *o = json_object();
    if (with_hash)
        json_object_set_new(o, "hash", json_string(e->hash));
    json_object_set_new(o, "index", json_integer((json_int_t)e->index));
    json_object_set_new(o, "previous", json_string(e->previous));
    json_object_set_new(o, "score", json_string(e->score));
    json_object_set_new(o, "statement", json_string(e->statement));
    json_object_set_new(o, "time", json_string(e->time));
    json_object_set_new(o, "version", json_integer(LOG_VERSION));
    return o;
}

static void write_value(json_t *value, struct buffer *out)
{
    json_write_canonical(value, 0, out);
    json_decref(value);
}

void log_entry_seal(struct log_entry *e)
{
    struct buffer text = {0};
    write_value(entry_value(e, false), &text);
    merkle_leaf(text.data, text.length, &e->leaf);
    text_hex(e->hash, e->leaf.bytes, SHA256_BYTES);
    buffer_free(&text);
}

void log_entry_render(const struct log_entry *e, struct buffer *out)
{
    write_value(entry_value(e, true), out);
}

static bool get_digest(const struct json_view *v, const char *key, char out[SHA256_HEX],
                       struct error *err)
{
    const char *text;
    if (!json_get_string(v, key, &text, err))
        return renamed(err);
    if (!text_is_lower_hex(text, SHA256_HEX - 1))
        return invalid(err, v->file, key, "must be 64 lower-case hexadecimal digits");
    return text_copy(out, SHA256_HEX, text);
}

/* "2026-01-31T12:00:00Z" by its shape. */
static bool is_time(const char *text)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:ddZ";
    for (size_t i = 0; i < sizeof shape; i++)
        if (shape[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != shape[i])
            return false;
    return true;
}

static bool read_entry(const struct json_view *v, struct log_entry *out, struct error *err)
{
    static const char *const keys[] = {"hash",      "index", "previous", "score",
                                       "statement", "time",  "version",  NULL};
    const char *time;
    int64_t index, version;
    char hash[SHA256_HEX];
    if (!json_view_closed(v, keys, err) ||
        !json_get_int64(v, "version", LOG_VERSION, LOG_VERSION, &version, err) ||
        !json_get_int64(v, "index", 0, INT64_MAX - 1, &index, err) ||
        !json_get_string(v, "time", &time, err))
        return renamed(err);
    if (!is_time(time))
        return invalid(err, v->file, "time", "must be a time in UTC such as 2026-01-31T12:00:00Z");
    *out = (struct log_entry){.index = (uint64_t)index};
    text_copy(out->time, sizeof out->time, time);
    if (!get_digest(v, "previous", out->previous, err) ||
        !get_digest(v, "score", out->score, err) ||
        !get_digest(v, "statement", out->statement, err) || !get_digest(v, "hash", hash, err))
        return false;
    log_entry_seal(out);
    return strcmp(hash, out->hash) == 0 ||
           invalid(err, v->file, "hash", "is not the hash of this entry: it was edited");
}

bool log_entry_parse(const char *file, const char *data, size_t length, struct log_entry *out,
                     struct error *err)
{
    if (length > ENTRY_MOST)
        return invalid(err, file, NULL, "is longer than any entry");
    json_t *value = json_parse_strict(data, length, 4, file, err);
    if (!value)
        return renamed(err);
    const struct json_view v = {value, file, ""};
    struct buffer again = {0};
    bool ok =
        json_is_object(value) ? read_entry(&v, out, err) : invalid(err, file, NULL, "is no object");
    if (ok) {
        log_entry_render(out, &again);
        ok = (again.length == length && memcmp(again.data, data, length) == 0) ||
             invalid(err, file, NULL, "is not spelt as the log spells an entry");
    }
    buffer_free(&again);
    json_decref(value);
    return ok;
}

/* ---- Inclusion ---- */

static void set_hash(json_t *o, const char *key, const struct merkle_hash *h)
{
    char hex[SHA256_HEX];
    text_hex(hex, h->bytes, SHA256_BYTES);
    json_object_set_new(o, key, json_string(hex));
}

/* A way of hashes, with where it leads. */
static json_t *way_value(const struct merkle_hash *path, size_t length,
                         const struct merkle_hash *root, uint64_t size)
{
    json_t *o = json_object(), *list = json_array();
    char hex[SHA256_HEX];
    for (size_t i = 0; i < length; i++) {
        text_hex(hex, path[i].bytes, SHA256_BYTES);
        json_array_append_new(list, json_string(hex));
    }
    json_object_set_new(o, "path", list);
    set_hash(o, "root", root);
    json_object_set_new(o, "size", json_integer((json_int_t)size));
    return o;
}

void log_inclusion_render(const struct log_inclusion *p, struct buffer *out)
{
    json_t *o = way_value(p->path, p->length, &p->root, p->size);
    json_object_set_new(o, "entry", entry_value(&p->entry, true));
    json_object_set_new(
        o, "extends",
        p->before ? way_value(p->before_path, p->before_length, &p->before_root, p->before)
                  : json_null());
    json_object_set_new(o, "version", json_integer(LOG_VERSION));
    json_write_canonical(o, 2, out);
    json_decref(o);
}

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static bool read_hash(const char *text, struct merkle_hash *out)
{
    if (!text || !text_is_lower_hex(text, SHA256_HEX - 1))
        return false;
    for (size_t i = 0; i < SHA256_BYTES; i++)
        out->bytes[i] = (uint8_t)(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    return true;
}

static bool read_way(const struct json_view *v, struct merkle_hash path[MERKLE_PATH_MOST],
                     size_t *length, struct merkle_hash *root, uint64_t *size, struct error *err)
{
    const json_t *list;
    const char *text;
    int64_t n;
    if (!json_get_array(v, "path", &list, err) || !json_get_string(v, "root", &text, err) ||
        !json_get_int64(v, "size", 1, INT64_MAX, &n, err))
        return renamed(err);
    if (!read_hash(text, root))
        return invalid(err, v->file, "root", "must be 64 lower-case hexadecimal digits");
    *size = (uint64_t)n;
    *length = json_array_size(list);
    if (*length > MERKLE_PATH_MOST)
        return invalid(err, v->file, "path", "is longer than any way to a root");
    for (size_t i = 0; i < *length; i++)
        if (!read_hash(json_string_value(json_array_get(list, i)), &path[i]))
            return invalid(err, v->file, "path", "must hold 64 lower-case hexadecimal digits each");
    return true;
}

/* The earlier root that the log goes on from; null: none is spoken of. */
static bool read_extends(const struct json_view *v, struct log_inclusion *out, struct error *err)
{
    static const char *const keys[] = {"path", "root", "size", NULL};
    const json_t *object;
    if (json_is_null(json_object_get(v->object, "extends")))
        return true;
    if (!json_get_object(v, "extends", &object, err))
        return renamed(err);
    const struct json_view e = {object, v->file, "extends"};
    if (!json_view_closed(&e, keys, err))
        return renamed(err);
    if (!read_way(&e, out->before_path, &out->before_length, &out->before_root, &out->before, err))
        return false;
    return merkle_check_extends(out->before, out->size, &out->before_root, &out->root,
                                out->before_path, out->before_length) ||
           invalid(err, v->file, "extends", "does not lead from the earlier root to the later one");
}

static bool read_inclusion(const struct json_view *v, struct log_inclusion *out, struct error *err)
{
    static const char *const keys[] = {"entry", "extends", "path", "root", "size", "version", NULL};
    const json_t *entry;
    int64_t version;
    *out = (struct log_inclusion){0};
    if (!json_view_closed(v, keys, err) || !json_get_object(v, "entry", &entry, err) ||
        !json_get_int64(v, "version", LOG_VERSION, LOG_VERSION, &version, err))
        return renamed(err);
    const struct json_view e = {entry, v->file, "entry"};
    if (!read_entry(&e, &out->entry, err) ||
        !read_way(v, out->path, &out->length, &out->root, &out->size, err))
        return false;
    if (!merkle_check(&out->entry.leaf, out->entry.index, out->size, out->path, out->length,
                      &out->root))
        return invalid(err, v->file, "path", "does not lead from the entry to the root");
    return read_extends(v, out, err);
}

bool log_inclusion_parse(const char *file, const char *data, size_t length,
                         struct log_inclusion *out, struct error *err)
{
    if (length > PROOF_MOST)
        return invalid(err, file, NULL, "is longer than any proof");
    json_t *value = json_parse_strict(data, length, 8, file, err);
    if (!value)
        return renamed(err);
    const struct json_view v = {value, file, ""};
    struct buffer again = {0};
    bool ok = json_is_object(value) ? read_inclusion(&v, out, err)
                                    : invalid(err, file, NULL, "is no object");
    if (ok) {
        log_inclusion_render(out, &again);
        ok = (again.length == length && memcmp(again.data, data, length) == 0) ||
             invalid(err, file, NULL, "is not spelt as a proof is");
    }
    buffer_free(&again);
    json_decref(value);
    return ok;
}
