/* JSON behind a few rules: see json.h. jansson refuses NaN, Infinity, leading zeros, bare points,
 * lone surrogates, a BOM, raw control bytes, bad UTF-8, U+0000, integers outside int64, reals that
 * overflow, and (asked to) duplicate keys; tests/unit/test_json.c holds it to that. What it lacks
 * is a depth limit of ours, the name of a duplicate key of any length, and an eye for NUL bytes,
 * which it skips between tokens. */
#include "base/json.h"

#include "base/file.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* Largest nesting of [ and {, strings skipped; the text need not be valid. */
static int text_depth(const char *data, size_t length, int stop)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < length && deepest <= stop; i++) {
        char c = data[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return deepest;
}

/* The key whose closing quote is data[end - 1], raw as it stands in the text. */
static void find_key_before(const char *data, size_t end, size_t *start, size_t *stop)
{
    *stop = end > 0 ? end - 1 : 0;
    for (size_t i = *stop; i > 0; i--) {
        if (data[i - 1] != '"')
            continue;
        size_t slashes = 0;
        while (slashes < i - 1 && data[i - 2 - slashes] == '\\')
            slashes++;
        if (slashes % 2 == 0) {
            *start = i;
            return;
        }
    }
    *start = *stop;
}

json_t *json_parse_strict(const char *data, size_t length, int max_depth, const char *file,
                          struct error *err)
{
    if (text_depth(data, length, max_depth) > max_depth) {
        error_set(err, "JSON-TOO-DEEP", "nested deeper than the %d levels allowed here", max_depth);
        error_at(err, file, NULL, NULL);
        return NULL;
    }
    const char *nul = length ? memchr(data, '\0', length) : NULL;
    if (nul) {
        int line = 1, column = 1;
        for (const char *p = data; p < nul; p++, column++)
            if (*p == '\n') {
                line++;
                column = 0;
            }
        error_set(err, "JSON-INVALID", "not JSON: a NUL byte (line %d, column %d)", line, column);
        error_at(err, file, NULL, NULL);
        return NULL;
    }
    json_error_t why;
    json_t *value =
        json_loadb(length ? data : "", length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (value)
        return value;
    if (json_error_code(&why) == json_error_duplicate_key && why.position > 0 &&
        (size_t)why.position <= length) {
        size_t start, stop;
        find_key_before(data, (size_t)why.position, &start, &stop);
        char *key = strndup(data + start, stop - start);
        error_set(err, "JSON-INVALID", "duplicate key %.200s (line %d, column %d)", key ? key : "",
                  why.line, why.column);
        error_at(err, file, key, NULL);
        free(key);
    } else {
        error_set(err, "JSON-INVALID", "not JSON: %s (line %d, column %d)", why.text, why.line,
                  why.column);
        error_at(err, file, NULL, NULL);
    }
    return NULL;
}

json_t *json_read_file(const char *path, size_t limit, int max_depth, struct error *err)
{
    struct buffer text = {0};
    json_t *value = NULL;
    if (file_read(path, limit, &text, err))
        value = json_parse_strict(text.data, text.length, max_depth, path, err);
    buffer_free(&text);
    return value;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "a value";
}

/* Fills file, field ("path.key[index]", index < 0: none) and the offending value. */
static bool fail_at(const struct json_view *v, const char *key, long index, const json_t *value,
                    struct error *err)
{
    struct buffer field = {0}, shown = {0};
    buffer_printf(&field, "%s%s%s", v->path ? v->path : "", v->path && *v->path ? "." : "", key);
    if (index >= 0)
        buffer_printf(&field, "[%ld]", index);
    if (value && !json_is_object(value) && !json_is_array(value))
        json_write_canonical(value, 0, &shown);
    error_at(err, v->file, field.data, shown.data);
    buffer_free(&field);
    buffer_free(&shown);
    return false;
}

static bool fail_type(const struct json_view *v, const char *key, long index, const json_t *value,
                      const char *wanted, struct error *err)
{
    error_set(err, "JSON-FIELD-TYPE", "must be %s, not %s", wanted, type_name(value));
    return fail_at(v, key, index, value, err);
}

static bool fail_range(const struct json_view *v, const char *key, long index, const json_t *value,
                       int64_t min, int64_t max, struct error *err)
{
    error_set(err, "JSON-FIELD-RANGE", "must be within %lld and %lld", (long long)min,
              (long long)max);
    return fail_at(v, key, index, value, err);
}

static const json_t *find_required(const struct json_view *v, const char *key, struct error *err)
{
    const json_t *value = json_object_get(v->object, key);
    if (!value) {
        error_set(err, "JSON-FIELD-MISSING", "the field is missing");
        fail_at(v, key, -1, NULL, err);
    }
    return value;
}

bool json_view_closed(const struct json_view *v, const char *const *keys, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v->object, key, value)
    {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0)
            i++;
        if (!keys[i]) {
            error_set(err, "JSON-UNKNOWN-KEY", "a key that is not known here");
            return fail_at(v, key, -1, NULL, err);
        }
    }
    return true;
}

bool json_get_string(const struct json_view *v, const char *key, const char **out,
                     struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_string(value))
        return fail_type(v, key, -1, value, "a string", err);
    *out = json_string_value(value);
    return true;
}

bool json_get_int64(const struct json_view *v, const char *key, int64_t min, int64_t max,
                    int64_t *out, struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_integer(value))
        return fail_type(v, key, -1, value, "an integer", err);
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return fail_range(v, key, -1, value, min, max, err);
    *out = number;
    return true;
}

bool json_get_double(const struct json_view *v, const char *key, double *out, struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_number(value))
        return fail_type(v, key, -1, value, "a number", err);
    *out = json_number_value(value);
    return true;
}

bool json_get_bool(const struct json_view *v, const char *key, bool *out, struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_boolean(value))
        return fail_type(v, key, -1, value, "a boolean", err);
    *out = json_is_true(value);
    return true;
}

bool json_get_array(const struct json_view *v, const char *key, const json_t **out,
                    struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_array(value))
        return fail_type(v, key, -1, value, "an array", err);
    *out = value;
    return true;
}

bool json_get_object(const struct json_view *v, const char *key, const json_t **out,
                     struct error *err)
{
    const json_t *value = find_required(v, key, err);
    if (!value)
        return false;
    if (!json_is_object(value))
        return fail_type(v, key, -1, value, "an object", err);
    *out = value;
    return true;
}

bool json_has(const struct json_view *v, const char *key)
{
    return json_object_get(v->object, key) != NULL;
}

bool json_get_int64_array(struct arena *a, const struct json_view *v, const char *key, int64_t min,
                          int64_t max, int64_t **out, size_t *count, struct error *err)
{
    const json_t *array;
    if (!json_get_array(v, key, &array, err))
        return false;
    size_t n = json_array_size(array);
    int64_t *items = arena_array(a, n, sizeof *items);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value))
            return fail_type(v, key, (long)i, value, "an integer", err);
        items[i] = json_integer_value(value);
        if (items[i] < min || items[i] > max)
            return fail_range(v, key, (long)i, value, min, max, err);
    }
    *out = items;
    *count = n;
    return true;
}

void json_write_string(const char *text, size_t length, struct buffer *out)
{
    static const char hex[] = "0123456789abcdef";
    buffer_reserve(out, length + 2);
    buffer_char(out, '"');
    size_t done = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buffer_append(out, text + done, i - done);
        done = i + 1;
        static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
        const char *at = c ? strchr(plain, c) : NULL;
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        if (at)
            escape[1] = letter[at - plain];
        buffer_append(out, escape, at ? 2 : 6);
    }
    buffer_append(out, text + done, length - done);
    buffer_char(out, '"');
}

struct member {
    const char *key;
    const json_t *value;
};

static int compare_members(const void *a, const void *b)
{
    return strcmp(((const struct member *)a)->key, ((const struct member *)b)->key);
}

static void new_line(int indent, int level, struct buffer *out)
{
    if (indent > 0)
        buffer_printf(out, "\n%*s", indent * level, "");
}

static void write_value(const json_t *value, int indent, int level, bool sorted,
                        struct buffer *out);

static void write_object(const json_t *object, int indent, int level, bool sorted,
                         struct buffer *out)
{
    size_t n = json_object_size(object), i = 0;
    struct member *members = memory_alloc((n + 1) * sizeof *members);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) members[i++] =
        (struct member){key, value};
    if (sorted)
        qsort(members, n, sizeof *members, compare_members);
    buffer_char(out, '{');
    for (i = 0; i < n; i++) {
        if (i)
            buffer_char(out, ',');
        new_line(indent, level + 1, out);
        json_write_string(members[i].key, strlen(members[i].key), out);
        buffer_text(out, indent > 0 ? ": " : ":");
        write_value(members[i].value, indent, level + 1, sorted, out);
    }
    if (n)
        new_line(indent, level, out);
    buffer_char(out, '}');
    free(members);
}

static void write_value(const json_t *value, int indent, int level, bool sorted, struct buffer *out)
{
    char text[40];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(value, indent, level, sorted, out);
        break;
    case JSON_ARRAY:
        buffer_char(out, '[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i)
                buffer_char(out, ',');
            new_line(indent, level + 1, out);
            write_value(json_array_get(value, i), indent, level + 1, sorted, out);
        }
        if (json_array_size(value))
            new_line(indent, level, out);
        buffer_char(out, ']');
        break;
    case JSON_STRING:
        json_write_string(json_string_value(value), json_string_length(value), out);
        break;
    case JSON_INTEGER:
        buffer_printf(out, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        buffer_text(out, number_format_double(json_real_value(value), text, sizeof text));
        break;
    case JSON_TRUE:
        buffer_text(out, "true");
        break;
    case JSON_FALSE:
        buffer_text(out, "false");
        break;
    case JSON_NULL:
        buffer_text(out, "null");
        break;
    }
}

void json_write_canonical(const json_t *value, int indent, struct buffer *out)
{
    write_value(value, indent, 0, true, out);
}

void json_write_ordered(const json_t *value, int indent, struct buffer *out)
{
    write_value(value, indent, 0, false, out);
}
