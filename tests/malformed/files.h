/* Builders of safetensors files and checkpoint folders for tests. Texts are written with ' for "
 * so that JSON can be read in C. */
#ifndef MLXFAST_TESTS_MALFORMED_FILES_H
#define MLXFAST_TESTS_MALFORMED_FILES_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct bytes {
    uint8_t *data; /* of exactly length bytes, so that a sanitizer sees any read beyond */
    size_t length;
};

static inline struct bytes bytes_raw(const void *data, size_t length)
{
    struct bytes b = {malloc(length ? length : 1), length};
    assert(b.data);
    if (length)
        memcpy(b.data, data, length);
    return b;
}

/* A file whose first eight bytes claim `claimed`, then the header as it is, then `payload` bytes
 * that count upwards. */
static inline struct bytes bytes_claiming(uint64_t claimed, const char *header, size_t payload)
{
    const size_t n = strlen(header);
    struct bytes b = {malloc(8 + n + payload), 8 + n + payload};
    assert(b.data);
    for (int i = 0; i < 8; i++)
        b.data[i] = (uint8_t)(claimed >> (8 * i));
    for (size_t i = 0; i < n; i++)
        b.data[8 + i] = (uint8_t)(header[i] == '\'' ? '"' : header[i]);
    for (size_t i = 0; i < payload; i++)
        b.data[8 + n + i] = (uint8_t)i;
    return b;
}

static inline struct bytes bytes_safetensors(const char *header, size_t payload)
{
    return bytes_claiming(strlen(header), header, payload);
}

/* --- folders ----------------------------------------------------------------------------------*/

struct folder {
    char path[64];
};

static inline struct folder folder_new(void)
{
    struct folder f = {"/tmp/mlxfast-malformed-XXXXXX"};
    if (!mkdtemp(f.path))
        abort();
    return f;
}

static inline void folder_write(const struct folder *f, const char *name, struct bytes b)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(b.data, 1, b.length, out) != b.length || fclose(out) != 0)
        abort();
    free(b.data);
}

static inline void folder_text(const struct folder *f, const char *name, const char *text)
{
    struct bytes b = bytes_raw(text, strlen(text));
    for (size_t i = 0; i < b.length; i++)
        if (b.data[i] == '\'')
            b.data[i] = '"';
    folder_write(f, name, b);
}

static inline void folder_remove_file(const struct folder *f, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    unlink(path);
}

/* Removes the files named and then the folder, which must be empty by then. */
static inline void folder_free(const struct folder *f, const char *const *names)
{
    for (; *names; names++)
        folder_remove_file(f, *names);
    if (rmdir(f->path) != 0)
        abort();
}

#endif
