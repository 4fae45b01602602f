/* Lines to structs. jansson has read the line by then (base/json.h); here every value is checked
 * for its type and range, and every object for unknown keys. */
#include "base/json.h"
#include "wire/objects.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct reader {
    struct arena *arena;
    struct error *err;
};

/* Where a value stands, as a chain on the stack: turned into text only when something is wrong. */
struct place {
    const struct place *up;
    const char *key; /* NULL: an element of an array */
    size_t index;
};

static void place_write(const struct place *p, struct buffer *out)
{
    if (!p)
        return;
    place_write(p->up, out);
    if (p->key)
        buffer_printf(out, "%s%s", out->length ? "." : "", p->key);
    else
        buffer_printf(out, "[%zu]", p->index);
}

static bool fail(const struct reader *r, const struct place *at, const json_t *value,
                 const char *name, const char *format, ...) __attribute__((format(printf, 5, 6)));

static bool fail(const struct reader *r, const struct place *at, const json_t *value,
                 const char *name, const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    struct buffer field = {0}, shown = {0};
    place_write(at, &field);
    if (value && !json_is_object(value) && !json_is_array(value))
        json_write_ordered(value, 0, &shown);
    error_set(r->err, name, "%s", text);
    error_at(r->err, NULL, field.data, shown.data);
    buffer_free(&field);
    buffer_free(&shown);
    return false;
}

static bool fail_type(const struct reader *r, const struct place *at, const json_t *value,
                      const char *wanted)
{
    return fail(r, at, value, "WIRE-INVALID", "must be %s", wanted);
}

/* ---- single values ---- */

/* A real never passes for an integer, not even 5.0. */
static bool take_integer(const struct reader *r, const struct place *at, const json_t *v,
                         int64_t min, int64_t max, int64_t *out)
{
    if (!json_is_integer(v))
        return fail_type(r, at, v, "an integer");
    int64_t value = json_integer_value(v);
    if (value < min || value > max)
        return fail(r, at, v, "WIRE-INVALID", "out of range: %lld to %lld", (long long)min,
                    (long long)max);
    *out = value;
    return true;
}

static bool take_i64(const struct reader *r, const struct place *at, const json_t *v, int64_t *out)
{
    return take_integer(r, at, v, INT64_MIN, INT64_MAX, out);
}

static bool take_u32(const struct reader *r, const struct place *at, const json_t *v, uint32_t *out)
{
    int64_t value = 0;
    if (!take_integer(r, at, v, 0, UINT32_MAX, &value))
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool take_u64(const struct reader *r, const struct place *at, const json_t *v, uint64_t *out)
{
    int64_t value = 0; /* JSON integers end at 2^63 - 1 here (base/json.h) */
    if (!take_integer(r, at, v, 0, INT64_MAX, &value))
        return false;
    *out = (uint64_t)value;
    return true;
}

static bool take_f64(const struct reader *r, const struct place *at, const json_t *v, double *out)
{
    if (!json_is_number(v))
        return fail_type(r, at, v, "a number");
    *out = json_number_value(v);
    return true;
}

static bool take_text(const struct reader *r, const struct place *at, const json_t *v,
                      const char **out)
{
    if (!json_is_string(v))
        return fail_type(r, at, v, "a string");
    *out = arena_strndup(r->arena, json_string_value(v), json_string_length(v));
    return true;
}

static bool take_choice(const struct reader *r, const struct place *at, const json_t *v,
                        const char *const *choices, const char **out)
{
    if (!take_text(r, at, v, out))
        return false;
    for (size_t i = 0; choices[i]; i++)
        if (strcmp(choices[i], *out) == 0)
            return true;
    return fail(r, at, v, "WIRE-INVALID", "not one of the known values");
}

#define READ_SINGLE(type, member)                                                                  \
    static bool read_##type(const struct reader *r, const struct place *at, const json_t *v,       \
                            struct wire_##type *out)                                               \
    {                                                                                              \
        out->present = take_##type(r, at, v, &out->member);                                        \
        return out->present;                                                                       \
    }
READ_SINGLE(i64, value)
READ_SINGLE(u32, value)
READ_SINGLE(u64, value)
READ_SINGLE(f64, value)
#undef READ_SINGLE

static bool read_flag(const struct reader *r, const struct place *at, const json_t *v,
                      struct wire_flag *out)
{
    if (!json_is_boolean(v))
        return fail_type(r, at, v, "true or false");
    *out = (struct wire_flag){true, json_is_true(v)};
    return true;
}

static bool read_text(const struct reader *r, const struct place *at, const json_t *v,
                      struct wire_text *out)
{
    const char *const *choices = wire_text_choices(at->key);
    return choices ? take_choice(r, at, v, choices, &out->text) : take_text(r, at, v, &out->text);
}

/* ---- arrays ---- */

static bool take_array(const struct reader *r, const struct place *at, const json_t *v,
                       size_t *count)
{
    if (!json_is_array(v))
        return fail_type(r, at, v, "an array");
    *count = json_array_size(v);
    return true;
}

/* An array whose elements are read by take(reader, place, value, &items[i]). */
#define READ_ARRAY(type, take)                                                                     \
    static bool read_##type(const struct reader *r, const struct place *at, const json_t *v,       \
                            struct wire_##type *out)                                               \
    {                                                                                              \
        size_t count = 0;                                                                          \
        if (!take_array(r, at, v, &count))                                                         \
            return false;                                                                          \
        out->items = arena_array(r->arena, count, sizeof *out->items);                             \
        for (size_t i = 0; i < count; i++) {                                                       \
            const struct place element = {at, NULL, i};                                            \
            if (!take(r, &element, json_array_get(v, i), &out->items[i]))                          \
                return false;                                                                      \
        }                                                                                          \
        out->count = count;                                                                        \
        out->present = true;                                                                       \
        return true;                                                                               \
    }

static bool take_object(const struct reader *r, const struct place *at, const json_t *v,
                        const struct object_table *table, void *out);

static bool take_top_logit(const struct reader *r, const struct place *at, const json_t *v,
                           struct wire_top_logit *out)
{
    return take_object(r, at, v, &object_top_logit, out);
}

READ_ARRAY(tokens, take_i64)
READ_ARRAY(u32s, take_u32)
READ_ARRAY(u64s, take_u64)
READ_ARRAY(texts, take_text)
READ_ARRAY(top_logits, take_top_logit)
READ_ARRAY(f64s, take_f64)
READ_ARRAY(token_lists, read_tokens)
READ_ARRAY(f64_lists, read_f64s)
READ_ARRAY(u32_lists, read_u32s)
#undef READ_ARRAY

/* ---- objects ---- */

static bool is_object(const struct reader *r, const struct place *at, const json_t *v)
{
    return json_is_object(v) || fail_type(r, at, v, "an object");
}

static bool fail_unknown(const struct reader *r, const struct place *up, const char *key)
{
    const struct place at = {up, key, 0};
    return fail(r, &at, NULL, "WIRE-UNKNOWN-KEY", "a key that the protocol does not know here");
}

static bool fail_missing(const struct reader *r, const struct place *at)
{
    return fail(r, at, NULL, "WIRE-MISSING-KEY", "a required key is missing");
}

static bool take_object(const struct reader *r, const struct place *at, const json_t *v,
                        const struct object_table *table, void *out)
{
    if (!is_object(r, at, v))
        return false;
    for (size_t i = 0; i < table->count; i++) {
        const struct object_member *m = &table->members[i];
        const struct place here = {at, m->name, 0};
        const json_t *value = json_object_get(v, m->name);
        void *target = (char *)out + m->offset;
        bool ok = false;
        if (!value)
            return fail_missing(r, &here);
        switch (m->kind) {
        case MEMBER_I64:
            ok = take_i64(r, &here, value, target);
            break;
        case MEMBER_U32:
            ok = take_u32(r, &here, value, target);
            break;
        case MEMBER_U64:
            ok = take_u64(r, &here, value, target);
            break;
        case MEMBER_F64:
            ok = take_f64(r, &here, value, target);
            break;
        case MEMBER_TEXT:
            ok = take_text(r, &here, value, target);
            break;
        case MEMBER_HASH:
            ok = take_text(r, &here, value, target) &&
                 (text_is_lower_hex(*(const char **)target, 64) ||
                  fail(r, &here, value, "WIRE-INVALID", "not 64 lower-case hexadecimal digits"));
            break;
        }
        if (!ok)
            return false;
    }
    if (json_object_size(v) == table->count)
        return true;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        size_t i = 0;
        while (i < table->count && strcmp(table->members[i].name, key) != 0)
            i++;
        if (i == table->count)
            return fail_unknown(r, at, key);
    }
    return true;
}

#define READ_OBJECT(type)                                                                          \
    static bool read_##type(const struct reader *r, const struct place *at, const json_t *v,       \
                            struct wire_##type *out)                                               \
    {                                                                                              \
        out->present = take_object(r, at, v, &object_##type, out);                                 \
        return out->present;                                                                       \
    }
READ_OBJECT(expert_stats)
READ_OBJECT(head_provenance)
READ_OBJECT(runner)
READ_OBJECT(resident)
#undef READ_OBJECT

static bool read_counts(const struct reader *r, const struct place *at, const json_t *v,
                        struct wire_counts *out)
{
    if (!is_object(r, at, v))
        return false;
    size_t count = json_object_size(v), i = 0;
    out->keys = arena_array(r->arena, count, sizeof *out->keys);
    out->values = arena_array(r->arena, count, sizeof *out->values);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const struct place here = {at, key, 0};
        out->keys[i] = arena_strdup(r->arena, key);
        if (!take_u32(r, &here, value, &out->values[i++]))
            return false;
    }
    out->count = count;
    out->present = true;
    return true;
}

/* An optional member of v that is there and not null, or NULL. */
static const json_t *optional(const json_t *v, const char *key)
{
    const json_t *value = json_object_get(v, key);
    return json_is_null(value) ? NULL : value;
}

static bool take_opaque(const struct reader *r, const struct place *up, const json_t *v,
                        const char *key, json_t **out)
{
    const json_t *value = optional(v, key);
    const struct place at = {up, key, 0};
    if (!value)
        return true;
    if (!is_object(r, &at, value))
        return false;
    *out = json_incref((json_t *)(uintptr_t)value);
    return true;
}

static bool read_mtp(const struct reader *r, const struct place *at, const json_t *v,
                     struct wire_spec *out)
{
    if (!is_object(r, at, v))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const struct place here = {at, key, 0};
        if (strcmp(key, "depth") != 0)
            return fail_unknown(r, at, key);
        if (!json_is_null(value) && !read_u32(r, &here, value, &out->mtp_depth))
            return false;
    }
    out->has_mtp = true;
    return true;
}

static bool read_spec(const struct reader *r, const struct place *at, const json_t *v,
                      struct wire_spec *out)
{
    static const char *const known[] = {"mode", "mtp", "dflash", "dspark"};
    if (!is_object(r, at, v))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        size_t i = 0;
        while (i < 4 && strcmp(known[i], key) != 0)
            i++;
        if (i == 4)
            return fail_unknown(r, at, key);
    }
    const struct place mode_at = {at, "mode", 0}, mtp_at = {at, "mtp", 0};
    const json_t *mode = json_object_get(v, "mode"), *mtp = optional(v, "mtp");
    if (!mode)
        return fail_missing(r, &mode_at);
    if (!take_choice(r, &mode_at, mode, wire_spec_modes, &out->mode) ||
        (mtp && !read_mtp(r, &mtp_at, mtp, out)))
        return false;
    if (!take_opaque(r, at, v, "dflash", &out->dflash) ||
        !take_opaque(r, at, v, "dspark", &out->dspark))
        return false;
    out->present = true;
    return true;
}

/* ---- the replay report: open objects, its load-bearing numbers checked ---- */

static bool check_i64(const struct reader *r, const struct place *up, const json_t *v,
                      const char *key)
{
    const struct place at = {up, key, 0};
    const json_t *value = json_object_get(v, key);
    int64_t unused = 0;
    return value ? take_i64(r, &at, value, &unused) : fail_missing(r, &at);
}

/* An array of objects below v, each checked by one function. */
static bool check_each(const struct reader *r, const struct place *up, const json_t *v,
                       const char *key,
                       bool (*check)(const struct reader *, const struct place *, const json_t *))
{
    const struct place at = {up, key, 0};
    const json_t *array = json_object_get(v, key);
    size_t count = 0;
    if (!array)
        return fail_missing(r, &at);
    if (!take_array(r, &at, array, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct place here = {&at, NULL, i};
        const json_t *element = json_array_get(array, i);
        if (!is_object(r, &here, element) || !check(r, &here, element))
            return false;
    }
    return true;
}

static bool check_position(const struct reader *r, const struct place *at, const json_t *v)
{
    return check_i64(r, at, v, "committed_token") && check_i64(r, at, v, "sequential_argmax");
}

static bool check_stream(const struct reader *r, const struct place *at, const json_t *v)
{
    return check_i64(r, at, v, "slot") && check_each(r, at, v, "positions", check_position);
}

static bool read_replay(const struct reader *r, const struct place *at, const json_t *v,
                        struct wire_replay *out)
{
    const struct place width_at = {at, "replay_width", 0};
    if (!is_object(r, at, v) || !check_each(r, at, v, "streams", check_stream))
        return false;
    const json_t *width = optional(v, "replay_width");
    if (width && !json_is_string(width))
        return fail_type(r, &width_at, width, "a string");
    out->report = json_incref((json_t *)(uintptr_t)v);
    out->present = true;
    return true;
}

/* ---- the envelopes ---- */

static json_t *parse_object(const struct reader *r, const char *text, size_t length)
{
    struct error why;
    json_t *v = json_parse_strict(text, length, JSON_DEPTH_DEFAULT, NULL, &why);
    if (!v) {
        error_set(r->err, "WIRE-INVALID", "%s", why.message);
        error_at(r->err, NULL, why.field[0] ? why.field : NULL, NULL);
    } else if (!json_is_object(v)) {
        fail_type(r, NULL, v, "one JSON object");
        json_decref(v);
        v = NULL;
    }
    return v;
}

static bool null_required(const struct reader *r, const struct place *at, const json_t *value)
{
    return value ? fail_type(r, at, value, "there: it is required") : fail_missing(r, at);
}

#define READ_FIELD(type, name, required)                                                           \
    {                                                                                              \
        const struct place at = {NULL, #name, 0};                                                  \
        const json_t *value = json_object_get(v, #name);                                           \
        known += value != NULL;                                                                    \
        if (value && !json_is_null(value)) {                                                       \
            if (!read_##type(r, &at, value, &out->name))                                           \
                return false;                                                                      \
        } else if (required) {                                                                     \
            return null_required(r, &at, value);                                                   \
        }                                                                                          \
    }
#define NAME_FIELD(type, name, required) #name,
#define COUNT_FIELD(type, name, required) char name;

static bool fail_unknown_of(const struct reader *r, const json_t *v, const char *const *names,
                            size_t count)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        size_t i = 0;
        while (i < count && strcmp(names[i], key) != 0)
            i++;
        if (i == count)
            return fail_unknown(r, NULL, key);
    }
    return true;
}

/* The keys that a message of the block protocol shares with v1's. */
static bool is_shared_key(const char *key)
{
#define SHARED(name) #name,
    static const char *const names[] = {WIRE_BLOCK_SHARED_REQUEST_FIELDS(SHARED)};
#undef SHARED
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return false;
}

static bool read_block_request(const struct reader *r, const json_t *v, struct wire_request *out)
{
    static const char *const names[] = {WIRE_REQUEST_FIELDS(NAME_FIELD)
                                            WIRE_BLOCK_REQUEST_FIELDS(NAME_FIELD)};
    enum { V1 = sizeof(struct {WIRE_REQUEST_FIELDS(COUNT_FIELD)}) };
    size_t known = 0;
    for (size_t i = 0; i < V1; i++)
        if (!is_shared_key(names[i]) && json_object_get(v, names[i]))
            return fail_unknown(r, NULL, names[i]);
    WIRE_REQUEST_FIELDS(READ_FIELD)
    WIRE_BLOCK_REQUEST_FIELDS(READ_FIELD)
    return known == json_object_size(v) ||
           fail_unknown_of(r, v, names, sizeof names / sizeof *names);
}

static bool read_request(const struct reader *r, const json_t *v, struct wire_request *out)
{
    static const char *const names[] = {WIRE_REQUEST_FIELDS(NAME_FIELD)};
    const json_t *kind = json_object_get(v, "kind");
    if (json_is_string(kind) && wire_kind_is_block(wire_kind_find(json_string_value(kind))))
        return read_block_request(r, v, out);
    size_t known = 0;
    WIRE_REQUEST_FIELDS(READ_FIELD)
    if (known != json_object_size(v))
        return fail_unknown_of(r, v, names, sizeof names / sizeof *names);
    if (wire_kind_find(out->kind.text) == WIRE_KIND_UNKNOWN) {
        const struct place at = {NULL, "kind", 0};
        return fail(r, &at, json_object_get(v, "kind"), "WIRE-UNKNOWN-KIND",
                    "not a kind of request");
    }
    return true;
}

static bool read_response(const struct reader *r, const json_t *v, struct wire_response *out)
{
    static const char *const names[] = {WIRE_RESPONSE_FIELDS(NAME_FIELD)};
    size_t known = 0;
    WIRE_RESPONSE_FIELDS(READ_FIELD)
    return known == json_object_size(v) ||
           fail_unknown_of(r, v, names, sizeof names / sizeof *names);
}

static bool read_block_response(const struct reader *r, const json_t *v, struct wire_response *out)
{
    static const char *const names[] = {WIRE_RESPONSE_FIELDS(NAME_FIELD)
                                            WIRE_BLOCK_RESPONSE_FIELDS(NAME_FIELD)};
    size_t known = 0;
    WIRE_RESPONSE_FIELDS(READ_FIELD)
    WIRE_BLOCK_RESPONSE_FIELDS(READ_FIELD)
    return known == json_object_size(v) ||
           fail_unknown_of(r, v, names, sizeof names / sizeof *names);
}

bool wire_request_decode(struct arena *a, const char *line, size_t length, struct wire_request *out,
                         struct error *err)
{
    const struct reader r = {a, err};
    memset(out, 0, sizeof *out);
    json_t *v = parse_object(&r, line, length);
    bool ok = v && read_request(&r, v, out);
    json_decref(v);
    if (!ok)
        wire_request_free(out);
    return ok;
}

static bool decode_response(struct arena *a, const char *line, size_t length,
                            bool (*read)(const struct reader *, const json_t *,
                                         struct wire_response *),
                            struct wire_response *out, struct error *err)
{
    const struct reader r = {a, err};
    memset(out, 0, sizeof *out);
    json_t *v = parse_object(&r, line, length);
    bool ok = v && read(&r, v, out);
    json_decref(v);
    if (!ok)
        wire_response_free(out);
    return ok;
}

bool wire_response_decode(struct arena *a, const char *line, size_t length,
                          struct wire_response *out, struct error *err)
{
    return decode_response(a, line, length, read_response, out, err);
}

bool wire_block_response_decode(struct arena *a, const char *line, size_t length,
                                struct wire_response *out, struct error *err)
{
    return decode_response(a, line, length, read_block_response, out, err);
}

bool wire_spec_decode(struct arena *a, const char *text, size_t length, struct wire_spec *out,
                      struct error *err)
{
    const struct reader r = {a, err};
    memset(out, 0, sizeof *out);
    json_t *v = parse_object(&r, text, length);
    bool ok = v && read_spec(&r, NULL, v, out);
    json_decref(v);
    if (!ok)
        wire_spec_free(out);
    return ok;
}

void wire_spec_free(struct wire_spec *s)
{
    json_decref(s->dflash);
    json_decref(s->dspark);
    memset(s, 0, sizeof *s);
}

void wire_request_free(struct wire_request *m)
{
    wire_spec_free(&m->spec);
    memset(m, 0, sizeof *m);
}

void wire_response_free(struct wire_response *m)
{
    wire_spec_free(&m->effective_spec);
    json_decref(m->cohort_reference_replay.report);
    memset(m, 0, sizeof *m);
}
