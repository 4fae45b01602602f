#include "judge/commit.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMIT_FILE_LIMIT = 64 << 20, COMMIT_LEVELS = 64 };

static void first_line(struct buffer *b)
{
    if (b->data != NULL)
        b->data[strcspn(b->data, "\r\n")] = '\0';
}

/* A ref that is not a file of its own stands in packed-refs, as "<id> <name>" lines. */
static bool find_packed(const char *text, const char *ref, char out[COMMIT_HEX])
{
    const size_t n = strlen(ref);
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        const size_t length = end != NULL ? (size_t)(end - line) : strlen(line);
        if (length == 41 + n && line[40] == ' ' && memcmp(line + 41, ref, n) == 0) {
            memcpy(out, line, 40);
            out[40] = '\0';
            return text_is_lower_hex(out, 40);
        }
        line = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static bool read_head(struct arena *a, const char *git, struct buffer *b, char out[COMMIT_HEX])
{
    if (!file_read(path_join(a, git, "HEAD"), 4096, b, NULL))
        return false;
    first_line(b);
    if (b->data == NULL)
        return false;
    if (text_is_lower_hex(b->data, 40))
        return text_copy(out, COMMIT_HEX, b->data);
    if (!text_starts(b->data, "ref: refs/") || strstr(b->data, "..") != NULL)
        return false;
    const char *ref = arena_strdup(a, b->data + 5);
    /* A linked work tree keeps its refs in the common folder. */
    if (file_read(path_join(a, git, "commondir"), 4096, b, NULL) && b->data != NULL) {
        first_line(b);
        git = b->data[0] == '/' ? arena_strdup(a, b->data) : path_join(a, git, b->data);
    }
    if (file_read(path_join(a, git, ref), 4096, b, NULL) && b->data != NULL) {
        first_line(b);
        return text_is_lower_hex(b->data, 40) && text_copy(out, COMMIT_HEX, b->data);
    }
    return file_read(path_join(a, git, "packed-refs"), COMMIT_FILE_LIMIT, b, NULL) &&
           b->data != NULL && find_packed(b->data, ref, out);
}

/* The work tree around a folder, up to so many levels. */
static bool find_around(const char *folder, int levels, char out[COMMIT_HEX])
{
    struct arena a = {0};
    struct buffer b = {0};
    out[0] = '\0';
    for (int level = 0; level < levels; level++) {
        const char *git = path_join(&a, folder, ".git");
        if (file_is_directory(git)) {
            if (!read_head(&a, git, &b, out))
                out[0] = '\0';
            break;
        }
        if (file_exists(git) && file_read(git, 4096, &b, NULL) && b.data != NULL &&
            text_starts(b.data, "gitdir: ")) {
            first_line(&b);
            const char *target = b.data + 8;
            git = target[0] == '/' ? arena_strdup(&a, target) : path_join(&a, folder, target);
            if (!read_head(&a, git, &b, out))
                out[0] = '\0';
            break;
        }
        folder = path_join(&a, folder, "..");
    }
    buffer_free(&b);
    arena_free(&a);
    return out[0] != '\0';
}

bool commit_find(char out[COMMIT_HEX])
{
    out[0] = '\0';
    const char *given = getenv("MLXFAST_COMMIT_SHA");
    if (given != NULL && given[0] != '\0')
        return text_is_lower_hex(given, 40) && text_copy(out, COMMIT_HEX, given);
    find_around(".", COMMIT_LEVELS, out);
    return true;
}

bool commit_find_of(const char *folder, char out[COMMIT_HEX])
{
    return find_around(folder, 1, out);
}

/* A program of a release has its manifest beside it (docs/dist.md), which holds its digest. */
static bool find_in_manifest(const char *program, char out[COMMIT_HEX])
{
    struct arena a = {0};
    struct error ignored = {0};
    const char *folder = arena_strdup(&a, program), *sha256, *commit;
    char *slash = strrchr(folder, '/');
    bool found = false;
    *slash = '\0';
    json_t *o = json_read_file(path_join(&a, folder, "benchd.manifest.json"), 1 << 16, 8, &ignored);
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    if (json_unpack(o, "{s:s, s:s}", "sha256", &sha256, "source_commit", &commit) == 0 &&
        sha256_file(program, digest, NULL, &ignored)) {
        text_hex(hex, digest, sizeof digest);
        found = strcmp(hex, sha256) == 0 && text_is_lower_hex(commit, 40) &&
                strspn(commit, "0") < 40 && text_copy(out, COMMIT_HEX, commit);
    }
    json_decref(o);
    arena_free(&a);
    return found;
}

bool commit_find_own(char out[COMMIT_HEX])
{
    enum { LEVELS = 6 }; /* build/san/aarch64/benchd */
    char place[PATH_MAX];
    out[0] = '\0';
    const ssize_t n = readlink("/proc/self/exe", place, sizeof place);
    if (n <= 0 || (size_t)n >= sizeof place)
        return false;
    place[n] = '\0';
    if (find_in_manifest(place, out))
        return true;
    for (int level = 0; level < LEVELS; level++) {
        char *slash = strrchr(place, '/');
        if (slash == NULL || slash == place)
            return false;
        *slash = '\0';
        if (commit_find_of(place, out))
            return true;
    }
    return false;
}
