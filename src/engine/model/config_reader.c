#include "engine/model/config_reader.h"

#include <math.h>
#include <string.h>

bool config_renamed(struct error *err)
{
    if (err && text_starts(err->name, "JSON-"))
        text_copy(err->name, sizeof err->name, "CONFIG-INVALID");
    return false;
}

bool config_refuse(const struct config_reader *r, const char *key, const char *why)
{
    struct buffer field = {0}, value = {0};
    const json_t *found = json_object_get(r->view.object, key);
    buffer_printf(&field, "%s%s%s", r->view.path, *r->view.path ? "." : "", key);
    if (found)
        json_write_canonical(found, 0, &value);
    error_set(r->err, "CONFIG-INVALID", "%s", why);
    error_at(r->err, r->view.file, field.data, value.data);
    buffer_free(&field);
    buffer_free(&value);
    return false;
}

bool config_given(const struct config_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->view.object, key);
    return v && !json_is_null(v);
}

bool config_int64(const struct config_reader *r, const char *key, int64_t min, int64_t max,
                  int64_t *out)
{
    return json_get_int64(&r->view, key, min, max, out, r->err) || config_renamed(r->err);
}

bool config_int(const struct config_reader *r, const char *key, int min, int max, int *out)
{
    int64_t wide;
    if (!config_int64(r, key, min, max, &wide))
        return false;
    *out = (int)wide;
    return true;
}

bool config_double(const struct config_reader *r, const char *key, double *out)
{
    return json_get_double(&r->view, key, out, r->err) || config_renamed(r->err);
}

bool config_positive(const struct config_reader *r, const char *key, double *out)
{
    if (!config_double(r, key, out))
        return false;
    return (isfinite(*out) && *out > 0) || config_refuse(r, key, "must be a positive number");
}

bool config_bool(const struct config_reader *r, const char *key, bool *out)
{
    return json_get_bool(&r->view, key, out, r->err) || config_renamed(r->err);
}
