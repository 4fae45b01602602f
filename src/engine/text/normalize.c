/* Normal forms, through utf8proc. */
#include "engine/text/normalize.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const char *const form_names[NORMAL_FORMS] = {"NFC", "NFD", "NFKC", "NFKD"};

static bool refuse(struct error *err, const char *name, const char *file, const char *field,
                   const char *value, const char *why)
{
    error_set(err, name, "%s", why);
    return error_at(err, file, field, value);
}

static bool read_one(const json_t *value, const char *file, const char *field,
                     struct normalizer *out, int depth, struct error *err)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type || depth > 8)
        return refuse(err, "TOKENIZER-INVALID", file, field, NULL, "not a normalizer");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(value, "normalizers");
        if (!json_is_array(list))
            return refuse(err, "TOKENIZER-INVALID", file, field, NULL, "no list of normalizers");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!read_one(json_array_get(list, i), file, field, out, depth + 1, err))
                return false;
        return true;
    }
    for (int i = 0; i < NORMAL_FORMS; i++)
        if (strcmp(type, form_names[i]) == 0) {
            if (out->count == MAX_NORMALIZERS)
                return refuse(err, "TOKENIZER-UNSUPPORTED", file, field, type,
                              "more than 8 normalizers");
            out->forms[out->count++] = (enum normal_form)i;
            return true;
        }
    return refuse(err, "TOKENIZER-UNSUPPORTED", file, field, type, "unknown normalizer");
}

bool normalizer_read(const json_t *value, const char *file, struct normalizer *out,
                     struct error *err)
{
    out->count = 0;
    return !value || json_is_null(value) || read_one(value, file, "normalizer", out, 0, err);
}

static bool apply(enum normal_form form, const char *text, size_t length, struct buffer *out,
                  struct error *err)
{
    static const utf8proc_option_t options[NORMAL_FORMS] = {
        [NORMAL_NFC] = UTF8PROC_COMPOSE,
        [NORMAL_NFD] = UTF8PROC_DECOMPOSE,
        [NORMAL_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMAL_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *mapped = NULL;
    const utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &mapped,
                     (utf8proc_option_t)(UTF8PROC_STABLE | options[form]));
    if (n < 0)
        return error_set(err, "TOKENIZER-LIMIT", "the text cannot be normalised: %s",
                         utf8proc_errmsg(n));
    buffer_append(out, mapped, (size_t)n);
    free(mapped);
    return true;
}

bool normalizer_run(const struct normalizer *n, const char *text, size_t length, struct buffer *out,
                    struct error *err)
{
    if (n->count == 0) {
        buffer_append(out, text, length);
        return true;
    }
    bool ok = true;
    struct buffer now = {0};
    buffer_append(&now, text, length);
    for (size_t i = 0; ok && i < n->count; i++) {
        struct buffer next = {0};
        ok = apply(n->forms[i], now.data ? now.data : "", now.length, &next, err);
        buffer_free(&now);
        now = next;
    }
    if (ok)
        buffer_append(out, now.data, now.length);
    buffer_free(&now);
    return ok;
}
