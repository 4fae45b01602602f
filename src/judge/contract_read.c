/* See contract_read.h. */
#include "judge/contract_read.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

/* Before the id was read, what stands in its place. */
static const char *read_track(const struct contract_reader *r)
{
    const char *id = r->c->track_id;
    if (!id)
        id = json_string_value(json_object_get(r->c->json, "track_id"));
    return id ? id : "?";
}

bool contract_refuse(const struct contract_reader *r, const char *field, const char *value,
                     const char *what)
{
    error_set(r->err, "CONTRACT-INVALID", "the --contract track fixture for \"%s\" declares %s: %s",
              read_track(r), field, what);
    return error_at(r->err, r->c->path, field, value);
}

const char *contract_field(const struct contract_reader *r, const char *key)
{
    return *r->view.path ? arena_printf(&r->c->arena, "%s.%s", r->view.path, key)
                         : arena_strdup(&r->c->arena, key);
}

const char *contract_value_text(const json_t *value, char *out, size_t size)
{
    struct buffer text = {0};
    json_write_canonical(value, 0, &text);
    text_copy(out, size, text.data ? text.data : "");
    buffer_free(&text);
    return out;
}

bool contract_refuse_value(const struct contract_reader *r, const char *key, const char *what)
{
    char text[128];
    const json_t *value = json_object_get(r->view.object, key);
    return contract_refuse(r, contract_field(r, key),
                           value ? contract_value_text(value, text, sizeof text) : NULL, what);
}

/* field is the key's whole path; a near known key is named. */
bool contract_refuse_key(const struct contract_reader *r, enum contract_place place,
                         const char *key, const char *field, const char *value)
{
    const char *nearest = contract_key_nearest(place, key);
    error_set(r->err, "CONTRACT-UNKNOWN-KEY",
              "the --contract track fixture for \"%s\" declares %s, which no reader knows%s%s%s",
              read_track(r), field, nearest ? "; did you mean " : "", nearest ? nearest : "",
              nearest ? "?" : "");
    return error_at(r->err, r->c->path, field, value);
}

bool contract_has(const struct contract_reader *r, const char *key)
{
    return json_has(&r->view, key);
}

/* Getters for fields that are declared: a field that is there must have its type. */
bool contract_get_text(const struct contract_reader *r, const char *key, const char **out)
{
    const json_t *value = json_object_get(r->view.object, key);
    if (!json_is_string(value) || json_string_length(value) != strlen(json_string_value(value)))
        return contract_refuse_value(r, key, "must be a string");
    *out = json_string_value(value);
    return true;
}

bool contract_text_is_blank(const char *text)
{
    static const char spaces[] = " \t\r\n\v\f";
    size_t length = strlen(text);
    return length == 0 || strchr(spaces, text[0]) || strchr(spaces, text[length - 1]);
}

bool contract_get_name(const struct contract_reader *r, const char *key, const char **out)
{
    if (!contract_get_text(r, key, out))
        return false;
    if (contract_text_is_blank(*out))
        return contract_refuse_value(r, key, "must be a string that is not blank and not padded");
    return true;
}

bool contract_get_flag(const struct contract_reader *r, const char *key, bool *out)
{
    const json_t *value = json_object_get(r->view.object, key);
    if (!json_is_boolean(value))
        return contract_refuse_value(r, key, "must be true or false");
    *out = json_is_true(value);
    return true;
}

bool contract_get_count(const struct contract_reader *r, const char *key, int64_t min, int64_t max,
                        int64_t *out)
{
    const json_t *value = json_object_get(r->view.object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max) {
        char what[96];
        struct buffer text = {0};
        buffer_printf(&text, "must be an integer from %lld to %lld", (long long)min,
                      (long long)max);
        text_copy(what, sizeof what, text.data);
        buffer_free(&text);
        return contract_refuse_value(r, key, what);
    }
    *out = json_integer_value(value);
    return true;
}

bool contract_get_real(const struct contract_reader *r, const char *key, enum contract_real rule,
                       double *out)
{
    const json_t *value = json_object_get(r->view.object, key);
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    if (!isfinite(x) || x < 0 || (rule == CONTRACT_REAL_POSITIVE && x == 0))
        return contract_refuse_value(r, key,
                                     rule == CONTRACT_REAL_POSITIVE
                                         ? "must be a finite number above 0"
                                         : "must be a finite number, 0 or more");
    *out = x;
    return true;
}

/* All or nothing: sets *has, and refuses a half-declared group by the first missing field. */
bool contract_has_group(const struct contract_reader *r, const char *const *keys, size_t count,
                        bool *has)
{
    size_t there = 0;
    const char *missing = NULL, *present = NULL;
    for (size_t i = 0; i < count; i++) {
        if (contract_has(r, keys[i])) {
            there++;
            present = present ? present : keys[i];
        } else if (!missing) {
            missing = keys[i];
        }
    }
    *has = there == count;
    if (there == 0 || there == count)
        return true;
    error_set(r->err, "CONTRACT-INVALID",
              "the --contract track fixture for \"%s\" declares %s without %s: the group is "
              "declared whole or not at all",
              read_track(r), present, missing);
    return error_at(r->err, r->c->path, contract_field(r, missing), "missing");
}

bool contract_open_object(const struct contract_reader *outer, enum contract_place place,
                          const char *key, struct contract_reader *out)
{
    const json_t *object = json_object_get(outer->view.object, key);
    if (!json_is_object(object))
        return contract_refuse_value(outer, key, "must be an object");
    *out = (struct contract_reader){
        outer->c, {object, outer->c->path, contract_field(outer, key)}, outer->err};
    const char *member;
    json_t *value;
    json_object_foreach((json_t *)object, member, value)
    {
        if (!contract_key_is_known(place, member))
            return contract_refuse_key(out, place, member, contract_field(out, member), NULL);
    }
    return true;
}

bool contract_is_whole(const struct contract_reader *r, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!contract_has(r, keys[i]))
            return contract_refuse(r, contract_field(r, keys[i]), "missing",
                                   "the group is declared whole or not at all");
    return true;
}
