/* Pinned files: lines "<sha256> <bytes> <path>", comments from '#' in the first column, empty lines
 * (deepseek-track.md section 11). Nothing else: one space between fields, LF, printable ASCII. */
#ifndef MLXFAST_ARENA_FETCH_MANIFEST_H
#define MLXFAST_ARENA_FETCH_MANIFEST_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FETCH_MANIFEST_BYTES_MOST = 1 << 20, /* of its text */
    FETCH_MANIFEST_FILES_MOST = 4096,
    FETCH_MANIFEST_PATH_MOST = 255
};

struct fetch_file {
    const char
        *path; /* relative, '/' between parts; never above its folder, never a name of ours */
    uint64_t bytes;
    char sha256[SHA256_HEX];
};

struct fetch_manifest {
    const char *source; /* where it was read from */
    const struct fetch_file *files;
    size_t count;            /* at least one */
    uint64_t bytes;          /* of all files */
    char sha256[SHA256_HEX]; /* of the manifest's own text */
};

/* Errors: MANIFEST-INVALID with source, "line N" and the text at fault; PINS-MISSING where a line
 * has "-" for what is not published. */
bool fetch_manifest_parse(struct arena *a, const char *source, const char *text, size_t length,
                          struct fetch_manifest *out, struct error *err);
bool fetch_manifest_read(struct arena *a, const char *path, struct fetch_manifest *out,
                         struct error *err);

#endif
