/* The safetensors header: everything it says is checked against the file before it is believed. */
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100 * 1000 * 1000 };

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", 1},       [DTYPE_U8] = {"U8", 1},           [DTYPE_I8] = {"I8", 1},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [DTYPE_I16] = {"I16", 2},
    [DTYPE_U16] = {"U16", 2},         [DTYPE_F16] = {"F16", 2},         [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_I32] = {"I32", 4},         [DTYPE_U32] = {"U32", 4},         [DTYPE_F32] = {"F32", 4},
    [DTYPE_F64] = {"F64", 8},         [DTYPE_I64] = {"I64", 8},         [DTYPE_U64] = {"U64", 8},
};

const char *dtype_name(enum dtype t)
{
    return dtypes[t].name;
}

size_t dtype_size(enum dtype t)
{
    return dtypes[t].size;
}

static bool invalid_name(struct error *err)
{
    if (err)
        text_copy(err->name, sizeof err->name, "SAFETENSORS-INVALID");
    return false;
}

/* The field "tensor.key" and the JSON text of the value at fault. */
static bool refuse_value(struct error *err, const char *file, const char *tensor, const char *key,
                         const json_t *value, const char *why)
{
    char field[256], text[256] = "";
    struct buffer b = {0};
    buffer_printf(&b, "%s%s%s", tensor, *key ? "." : "", key);
    text_copy(field, sizeof field, b.data);
    if (value) {
        buffer_clear(&b);
        json_write_canonical(value, 0, &b);
        text_copy(text, sizeof text, b.data ? b.data : "");
    }
    buffer_free(&b);
    error_set(err, "SAFETENSORS-INVALID", "%s", why);
    return error_at(err, file, field, value ? text : NULL);
}

static bool read_dtype(const char *file, const char *name, const json_t *entry, struct tensor *t,
                       struct error *err)
{
    const json_t *value = json_object_get(entry, "dtype");
    const char *text = json_string_value(value);
    if (!text)
        return refuse_value(err, file, name, "dtype", value, "the dtype is not a string");
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, text) == 0) {
            t->dtype = (enum dtype)i;
            return true;
        }
    return refuse_value(err, file, name, "dtype", value, "unknown dtype");
}

/* Leaves the size in bytes in *bytes; every step of the product is checked. */
static bool read_shape(const char *file, const char *name, const json_t *entry, struct tensor *t,
                       uint64_t *bytes, struct error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return refuse_value(err, file, name, "shape", shape, "the shape is not an array");
    const size_t rank = json_array_size(shape);
    if (rank > TENSOR_MAX_RANK)
        return refuse_value(err, file, name, "shape", shape,
                            "the shape has more than 8 dimensions");
    t->rank = (int)rank;
    *bytes = dtype_size(t->dtype);
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse_value(err, file, name, "shape", shape,
                                "a dimension is not a non-negative integer");
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes) || *bytes > INT64_MAX)
            return refuse_value(err, file, name, "shape", shape,
                                "the product of the dimensions overflows");
    }
    return true;
}

static bool read_range(const char *file, const char *name, const json_t *entry, uint64_t bytes,
                       uint64_t available, uint64_t *begin, uint64_t *end, struct error *err)
{
    const json_t *range = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(range, 0), *last = json_array_get(range, 1);
    if (!json_is_array(range) || json_array_size(range) != 2 || !json_is_integer(first) ||
        !json_is_integer(last) || json_integer_value(first) < 0 ||
        json_integer_value(last) < json_integer_value(first))
        return refuse_value(err, file, name, "data_offsets", range,
                            "data_offsets is not [begin, end] with 0 <= begin <= end");
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    char why[256];
    if (*end - *begin != bytes) {
        snprintf(why, sizeof why,
                 "data_offsets covers %" PRIu64 " bytes but shape and dtype need %" PRIu64,
                 *end - *begin, bytes);
        return refuse_value(err, file, name, "data_offsets", range, why);
    }
    if (*end > available) {
        snprintf(why, sizeof why,
                 "the file is cut: this tensor ends %" PRIu64 " bytes beyond its end",
                 *end - available);
        return refuse_value(err, file, name, "data_offsets", range, why);
    }
    return true;
}

static bool read_tensor(struct arena *a, const char *file, const char *name, const json_t *entry,
                        const uint8_t *data, uint64_t available, struct tensor *t,
                        struct error *err)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    if (!*name)
        return refuse_value(err, file, "", "", entry, "a tensor has an empty name");
    if (!json_is_object(entry))
        return refuse_value(err, file, name, "", entry, "a tensor's entry is not an object");
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(entry, keys[i]))
            return refuse_value(err, file, name, keys[i], NULL, "the key is missing");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strcmp(key, keys[0]) != 0 && strcmp(key, keys[1]) != 0 && strcmp(key, keys[2]) != 0)
            return refuse_value(err, file, name, key, value, "unknown key");
    }
    uint64_t bytes = 0, begin = 0, end = 0;
    if (!read_dtype(file, name, entry, t, err) || !read_shape(file, name, entry, t, &bytes, err) ||
        !read_range(file, name, entry, bytes, available, &begin, &end, err))
        return false;
    t->name = arena_strdup(a, name);
    t->data = data + begin;
    t->bytes = bytes;
    return true;
}

static bool check_metadata(const char *file, const json_t *metadata, struct error *err)
{
    if (!json_is_object(metadata))
        return refuse_value(err, file, "__metadata__", "", metadata, "metadata is not an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return refuse_value(err, file, "__metadata__", key, value,
                                "a metadata value is not a string");
    }
    return true;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* Every byte of the data has exactly one owner: no overlap, no gap, nothing after the last. */
static bool check_cover(const char *file, struct tensor *tensors, size_t count, const uint8_t *data,
                        uint64_t available, struct error *err)
{
    qsort(tensors, count, sizeof *tensors, compare_ranges);
    uint64_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t begin = (uint64_t)(tensors[i].data - data);
        if (begin < covered) {
            error_set(err, "SAFETENSORS-INVALID",
                      "tensors overlap: the range begins at %" PRIu64
                      " but %s already owns the data up to %" PRIu64,
                      begin, tensors[i - 1].name, covered);
            return error_at(err, file, tensors[i].name, NULL);
        }
        if (begin > covered) {
            error_set(err, "SAFETENSORS-INVALID",
                      "the data has a gap: bytes %" PRIu64 " to %" PRIu64 " belong to no tensor",
                      covered, begin);
            return error_at(err, file, tensors[i].name, NULL);
        }
        covered = begin + tensors[i].bytes;
    }
    if (covered != available) {
        error_set(err, "SAFETENSORS-INVALID",
                  "the data has %" PRIu64 " bytes but the tensors own only %" PRIu64, available,
                  covered);
        return error_at(err, file, "data_offsets", NULL);
    }
    return true;
}

static bool read_header(struct arena *a, const char *file, const json_t *header,
                        const uint8_t *data, uint64_t available, struct tensor **tensors,
                        size_t *count, struct error *err)
{
    if (!json_is_object(header)) {
        error_set(err, "SAFETENSORS-INVALID", "the header is not a JSON object");
        return error_at(err, file, NULL, NULL);
    }
    struct tensor *list = arena_array(a, json_object_size(header) + 1, sizeof *list);
    size_t n = 0;
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!check_metadata(file, entry, err))
                return false;
        } else if (!read_tensor(a, file, name, entry, data, available, &list[n++], err)) {
            return false;
        }
    }
    if (!check_cover(file, list, n, data, available, err))
        return false;
    qsort(list, n, sizeof *list, compare_names);
    *tensors = list;
    *count = n;
    return true;
}

bool safetensors_parse(struct arena *a, const char *file, const uint8_t *data, size_t length,
                       struct tensor **tensors, size_t *count, struct error *err)
{
    if (length < LENGTH_BYTES) {
        error_set(err, "SAFETENSORS-INVALID", "the file has %zu bytes, a header length needs 8",
                  length);
        return error_at(err, file, NULL, NULL);
    }
    uint64_t header_length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        header_length |= (uint64_t)data[i] << (8 * i);
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, header_length);
    /* Never header_length + 8: near UINT64_MAX that wraps (cases.md A-ST2). */
    if (header_length > length - LENGTH_BYTES) {
        error_set(err, "SAFETENSORS-INVALID",
                  "the header length is beyond the file, which has %zu bytes after it",
                  length - LENGTH_BYTES);
        return error_at(err, file, "header length", value);
    }
    if (header_length > HEADER_LIMIT) {
        error_set(err, "SAFETENSORS-INVALID", "the header is longer than 100,000,000 bytes");
        return error_at(err, file, "header length", value);
    }
    const char *text = (const char *)data + LENGTH_BYTES;
    if (header_length == 0 || text[0] != '{') {
        error_set(err, "SAFETENSORS-INVALID", "the header does not begin with '{'");
        return error_at(err, file, "header length", value);
    }
    /* Trailing spaces are JSON white space and so allowed: writers pad with them. */
    json_t *header = json_parse_strict(text, header_length, JSON_DEPTH_DEFAULT, file, err);
    if (!header)
        return invalid_name(err);
    const bool ok = read_header(a, file, header, data + LENGTH_BYTES + header_length,
                                length - LENGTH_BYTES - header_length, tensors, count, err);
    json_decref(header);
    return ok;
}
