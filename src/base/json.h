/* JSON, strictly: jansson behind a few rules. No duplicate keys, no trailing bytes, no NaN or
 * Infinity, no lone surrogates, no BOM, no U+0000 in keys or strings, depth limited before parsing
 * (constant stack). Getters give errors that name the file and the field's path. */
#ifndef MLXFAST_BASE_JSON_H
#define MLXFAST_BASE_JSON_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_DEFAULT = 64 };

/* Parses the whole of data. file names the source in errors. Errors: JSON-INVALID (with line and
 * column), JSON-TOO-DEEP. The caller owns the value (json_decref). An integer outside int64 is
 * JSON-INVALID. */
json_t *json_parse_strict(const char *data, size_t length, int max_depth, const char *file,
                          struct error *err);
json_t *json_read_file(const char *path, size_t limit, int max_depth, struct error *err);

/* A view of one object for reading: remembers its path for messages. */
struct json_view {
    const json_t *object;
    const char *file;
    const char *path; /* "" at the root, else "a.b[2]" */
};

/* Every key of the object must be in the NULL-terminated list. Error JSON-UNKNOWN-KEY. */
bool json_view_closed(const struct json_view *v, const char *const *keys, struct error *err);

/* Required fields: missing, null or of another type is JSON-FIELD-MISSING / JSON-FIELD-TYPE, an
 * integer outside [min, max] JSON-FIELD-RANGE; field is "path.key" or "path.key[3]". A JSON real
 * never passes for an integer. Strings point into the value. */
bool json_get_string(const struct json_view *v, const char *key, const char **out, struct error *);
bool json_get_int64(const struct json_view *v, const char *key, int64_t min, int64_t max,
                    int64_t *out, struct error *err);
bool json_get_double(const struct json_view *v, const char *key, double *out, struct error *err);
bool json_get_bool(const struct json_view *v, const char *key, bool *out, struct error *err);
bool json_get_array(const struct json_view *v, const char *key, const json_t **out, struct error *);
bool json_get_object(const struct json_view *v, const char *key, const json_t **out,
                     struct error *err);
/* True when the key is there (even as null). */
bool json_has(const struct json_view *v, const char *key);
/* An array of integers in [min, max], copied to the arena. Error names the index and the value. */
bool json_get_int64_array(struct arena *a, const struct json_view *v, const char *key, int64_t min,
                          int64_t max, int64_t **out, size_t *count, struct error *err);

/* Writers. Canonical: keys sorted bytewise, 2-space indentation or compact, shortest round-trip
 * doubles (number.h), no final newline, UTF-8 as it is with only ", \ and control bytes escaped. */
void json_write_canonical(const json_t *value, int indent,
                          struct buffer *out); /* indent 0: compact */
/* Keys in the order they came (jansson keeps it), otherwise as above. */
void json_write_ordered(const json_t *value, int indent, struct buffer *out);
void json_write_string(const char *text, size_t length, struct buffer *out); /* with quotes */

#endif
