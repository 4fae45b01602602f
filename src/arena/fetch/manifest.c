#include "arena/fetch/manifest.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char UNKNOWN[] = "-";

static const uint64_t FILE_BYTES_MOST = UINT64_C(1) << 50;

static bool invalid(struct error *err, const char *source, size_t line, const char *value,
                    const char *why)
{
    char field[32];
    snprintf(field, sizeof field, "line %zu", line);
    error_set(err, "MANIFEST-INVALID", "%s", why);
    return error_at(err, source, line ? field : NULL, value);
}

/* What is wrong with a path, or NULL. */
static const char *path_fault(const char *path)
{
    if (strlen(path) > FETCH_MANIFEST_PATH_MOST)
        return "the path is longer than 255 bytes";
    for (const char *p = path; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '\\')
            return "a path is of printable ASCII without spaces and backslashes";
    for (const char *part = path;; part++) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return "a path is relative and has no empty part, '.' or '..'";
        if (strncmp(part, ".mlxfast-", 9) == 0)
            return "names that begin with .mlxfast- are the fetcher's own";
        part += n;
        if (*part == '\0')
            return NULL;
    }
}

static bool parse_line(struct arena *a, char *line, struct fetch_file *f, const char **why)
{
    char *bytes = strchr(line, ' ');
    char *path = bytes ? strchr(bytes + 1, ' ') : NULL;
    *why = "a line is <sha256> <bytes> <path>";
    if (!path)
        return false;
    *bytes++ = *path++ = '\0';
    *why = "the SHA-256 is not 64 lower-case hexadecimal digits";
    const bool pinned = strcmp(line, UNKNOWN) != 0;
    if (pinned && !text_is_lower_hex(line, SHA256_HEX - 1))
        return false;
    *why = "the length is not a number of bytes";
    if (strcmp(bytes, UNKNOWN) == 0) {
        if (pinned)
            return false; /* who has the SHA-256 has the file */
    } else if ((bytes[0] == '0' && bytes[1]) || !number_uint64(bytes, FILE_BYTES_MOST, &f->bytes))
        return false;
    *why = path_fault(path);
    if (*why)
        return false;
    text_copy(f->sha256, sizeof f->sha256, pinned ? line : "");
    f->path = arena_strdup(a, path);
    return true;
}

/* '/' sorts first, so that a folder is followed by what lies in it. */
static int compare_paths(const void *x, const void *y)
{
    const unsigned char *a = *(const unsigned char *const *)x,
                        *b = *(const unsigned char *const *)y;
    for (; *a && *a == *b; a++, b++)
        ;
    const int left = *a == '/' ? 1 : *a, right = *b == '/' ? 1 : *b;
    return left - right;
}

/* Two lines for one path, or a path that is another one's folder. */
static bool check_distinct(struct arena *a, const struct fetch_manifest *m, struct error *err)
{
    const char **sorted = arena_array(a, m->count, sizeof *sorted);
    for (size_t i = 0; i < m->count; i++)
        sorted[i] = m->files[i].path;
    qsort(sorted, m->count, sizeof *sorted, compare_paths);
    for (size_t i = 1; i < m->count; i++) {
        const size_t n = strlen(sorted[i - 1]);
        if (strncmp(sorted[i - 1], sorted[i], n) == 0 &&
            (sorted[i][n] == '\0' || sorted[i][n] == '/'))
            return invalid(err, m->source, 0, sorted[i],
                           sorted[i][n] ? "a file's path lies in another file" : "listed twice");
    }
    return true;
}

/* A list whose pins nobody has published yet fetches nothing: it could prove nothing. */
static bool check_pinned(const struct fetch_manifest *m, struct error *err)
{
    size_t missing = 0;
    const char *first = NULL;
    for (size_t i = 0; i < m->count; i++)
        if (!m->files[i].sha256[0] && missing++ == 0)
            first = m->files[i].path;
    if (missing == 0)
        return true;
    error_set(err, "PINS-MISSING",
              "expected a SHA-256 for each of %zu files, %zu have none (the first: %s): they are "
              "not published. Who has the files makes the list: docs/setup.md, \"Pins\"; then "
              "--manifest",
              m->count, missing, first);
    return error_at(err, m->source, NULL, NULL);
}

bool fetch_manifest_parse(struct arena *a, const char *source, const char *text, size_t length,
                          struct fetch_manifest *out, struct error *err)
{
    *out = (struct fetch_manifest){.source = arena_strdup(a, source)};
    if (length > FETCH_MANIFEST_BYTES_MOST)
        return invalid(err, source, 0, NULL, "longer than 1 MiB");
    sha256_hex(text, length, out->sha256);
    size_t most = 1, number = 0;
    for (size_t i = 0; i < length; i++)
        most += text[i] == '\n';
    most = most < FETCH_MANIFEST_FILES_MOST ? most : FETCH_MANIFEST_FILES_MOST;
    struct fetch_file *files = arena_array(a, most, sizeof *files);
    for (size_t at = 0; at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        const size_t n = end ? (size_t)(end - text) - at : length - at;
        char *line = arena_strndup(a, text + at, n);
        const char *why = "the line holds a NUL byte";
        at += n + 1;
        number++;
        if (strlen(line) != n)
            return invalid(err, source, number, NULL, why);
        if (line[0] == '#' || line[0] == '\0')
            continue;
        const char *shown = arena_strdup(a, line);
        if (out->count == most)
            return invalid(err, source, number, shown, "more than 4096 files");
        if (!parse_line(a, line, &files[out->count], &why))
            return invalid(err, source, number, shown, why);
        out->bytes += files[out->count++].bytes; /* 4096 x 2^50 fits */
    }
    out->files = files;
    if (out->count == 0)
        return invalid(err, source, 0, NULL, "lists no file");
    return check_distinct(a, out, err) && check_pinned(out, err);
}

bool fetch_manifest_read(struct arena *a, const char *path, struct fetch_manifest *out,
                         struct error *err)
{
    struct buffer text = {0};
    const bool ok =
        file_read(path, FETCH_MANIFEST_BYTES_MOST, &text, err) &&
        fetch_manifest_parse(a, path, text.data ? text.data : "", text.length, out, err);
    buffer_free(&text);
    return ok;
}
