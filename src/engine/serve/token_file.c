/* Token ids from a file. */
#include "engine/serve/token_file.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_FILE_LIMIT = 256 << 20, NUMBER_LONGEST = 24 };

static const char separators[] = " \t\r\n,";

static bool bad_token(struct error *err, const char *path, size_t index, const char *value)
{
    char field[32];
    snprintf(field, sizeof field, "tokens[%zu]", index);
    error_set(err, "TOKENS-INVALID", "a token id must be a whole number of 0 or more");
    return error_at(err, path, field, value);
}

static bool read_json(const struct buffer *text, const char *path, struct token_file *out,
                      struct error *err)
{
    json_t *array = json_parse_strict(text->data, text->length, JSON_DEPTH_DEFAULT, path, err);
    if (!array)
        return false;
    out->ids = memory_alloc((json_array_size(array) + 1) * sizeof *out->ids);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (json_is_integer(item) && json_integer_value(item) >= 0) {
            out->ids[out->count++] = json_integer_value(item);
        } else {
            struct buffer value = {0};
            json_write_canonical(item, 0, &value);
            ok = bad_token(err, path, i, value.data);
            buffer_free(&value);
        }
    }
    json_decref(array);
    return ok;
}

static bool read_plain(struct buffer *text, const char *path, struct token_file *out,
                       struct error *err)
{
    size_t capacity = 0;
    const char *end = text->data + text->length;
    for (char *p = text->data; p < end;) {
        size_t skip = strspn(p, separators);
        p += skip;
        size_t length = strcspn(p, separators);
        if (p + length >= end && length == 0)
            break;
        char value[NUMBER_LONGEST + 8];
        int64_t id;
        snprintf(value, sizeof value, "%.*s%s",
                 (int)(length < NUMBER_LONGEST ? length : NUMBER_LONGEST), p,
                 length > NUMBER_LONGEST ? "..." : "");
        if (!number_int64(value, 0, INT64_MAX, &id))
            return bad_token(err, path, out->count, value);
        if (out->count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            out->ids = memory_realloc(out->ids, capacity * sizeof *out->ids);
        }
        out->ids[out->count++] = id;
        p += length;
    }
    return true;
}

bool token_file_read(const char *path, struct token_file *out, struct error *err)
{
    struct buffer text = {0};
    *out = (struct token_file){0};
    bool ok = file_read(path, TOKEN_FILE_LIMIT, &text, err);
    if (ok && text.length > 0 && memchr(text.data, '\0', text.length)) {
        error_set(err, "TOKENS-INVALID", "the file holds a zero byte: it is not text");
        ok = error_at(err, path, NULL, NULL);
    }
    if (ok && text.length > 0)
        ok = text.data[strspn(text.data, " \t\r\n")] == '[' ? read_json(&text, path, out, err)
                                                            : read_plain(&text, path, out, err);
    if (ok && out->count == 0) {
        error_set(err, "EMPTY-PROMPT", "the file holds no token id");
        ok = error_at(err, path, NULL, NULL);
    }
    buffer_free(&text);
    if (!ok)
        token_file_free(out);
    return ok;
}

void token_file_free(struct token_file *t)
{
    free(t->ids);
    *t = (struct token_file){0};
}

bool tokens_check_range(const int64_t *ids, size_t count, int vocab, const char *path,
                        struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab) {
            char field[32], value[32];
            snprintf(field, sizeof field, "tokens[%zu]", i);
            snprintf(value, sizeof value, "%lld", (long long)ids[i]);
            error_set(err, "TOKEN-OUT-OF-RANGE", "a token is outside the vocabulary of %d", vocab);
            return error_at(err, path, field, value);
        }
    return true;
}
