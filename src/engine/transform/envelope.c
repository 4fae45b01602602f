#include "engine/transform/envelope.h"

#include "base/json.h"

#include <string.h>

enum { CONTRACT_BYTES_MAX = 4 << 20 };

static const char GROUP[] = "quantization_envelope", INT8[] = "attention_int8_group32";

static bool refuse(struct error *err, const char *file, const char *name, const char *field,
                   const char *what)
{
    error_set(err, name, "%s", what);
    return error_at(err, file, field, NULL);
}

static bool read_group(const json_t *group, const char *file, struct quantization_envelope *out,
                       struct error *err)
{
    static const char field[] = "quantization_envelope.attention_int8_group32";
    const char *key;
    json_t *value;
    if (!json_is_object(group))
        return refuse(err, file, "CONTRACT-INVALID", GROUP, "must be an object");
    json_object_foreach((json_t *)(uintptr_t)group, key, value)
    {
        if (strcmp(key, INT8) != 0 && !text_ends(key, "_note"))
            return refuse(err, file, "CONTRACT-UNKNOWN-KEY", key,
                          "no such key of quantization_envelope");
    }
    const json_t *flag = json_object_get(group, INT8);
    if (!json_is_boolean(flag))
        return refuse(err, file, "CONTRACT-INVALID", field, "must be true or false");
    out->attention_int8_group32 = json_is_true(flag);
    return true;
}

bool envelope_read(const char *contract, struct quantization_envelope *out, struct error *err)
{
    *out = (struct quantization_envelope){0};
    json_t *root = json_read_file(contract, CONTRACT_BYTES_MAX, JSON_DEPTH_DEFAULT, err);
    if (!root) {
        if (err && text_starts(err->name, "JSON-"))
            text_copy(err->name, sizeof err->name, "CONTRACT-INVALID");
        return false;
    }
    const json_t *group = json_object_get(root, GROUP);
    bool ok = json_is_object(root) ||
              refuse(err, contract, "CONTRACT-INVALID", NULL, "the contract is not a JSON object");
    ok = ok && (!group || read_group(group, contract, out, err));
    json_decref(root);
    return ok;
}
