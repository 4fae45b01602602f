#include "judge/pool.h"

#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    DRAW_VALUES = 65536,
    /* The tail is less than half of all numbers: so many in a row are no chance (2^-64). */
    DRAW_TRIES = 64,
    POOL_FILE_MAX = 64 << 20
};

static bool entry_fail(const struct contract *c, size_t index, const char *key, const char *value,
                       const char *what, struct error *err)
{
    char field[96];
    snprintf(field, sizeof field, "timed_prompt_pool[%zu]%s%s", index, *key ? "." : "", key);
    error_set(err, "POOL-INVALID", "the pool of \"%s\": %s", c->track_id, what);
    return error_at(err, c->path, field, value);
}

/* How many entries have a value that none before has. */
static size_t count_different(const struct contract *c, bool by_path)
{
    size_t different = 0;
    for (size_t i = 0; i < c->pool_count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = by_path ? strcmp(c->pool[i].path, c->pool[j].path) == 0
                           : strcmp(c->pool[i].sha256, c->pool[j].sha256) == 0;
        different += !seen;
    }
    return different;
}

static bool check_count(const struct contract *c, struct error *err)
{
    const size_t digests = count_different(c, false), paths = count_different(c, true);
    if (digests >= POOL_LEAST && paths >= POOL_LEAST)
        return true;
    error_set(err, "POOL-INVALID",
              "the pool of \"%s\" has %zu different digests and %zu different paths; a draw needs "
              "%d of each",
              c->track_id, digests, paths, POOL_LEAST);
    return error_at(err, c->path, "timed_prompt_pool", NULL);
}

static bool check_entry(const struct contract *c, size_t index, bool normalised, struct error *err)
{
    const struct contract_pool_entry *e = &c->pool[index];
    if (!e->path)
        return entry_fail(c, index, "path", "missing", "an entry needs its path", err);
    if (e->bytes == 0)
        return entry_fail(c, index, "bytes", "missing", "an entry needs its length", err);
    if (normalised && e->noop_decode_speedup == 0)
        return entry_fail(c, index, "noop_decode_speedup", "missing",
                          "an entry needs the speedup of the unmodified engine", err);
    const char *name = path_basename(e->path);
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return entry_fail(c, index, "path", e->path, "a path must end in a file's name", err);
    return true;
}

/* One prompt in two spellings would be drawn twice as often. What is no golden has no prompt to
 * compare: its digest is all that is asked of it. seeds: those before. */
static bool check_prompt(const struct contract *c, size_t index, const struct buffer *bytes,
                         json_t *seeds, struct error *err)
{
    json_t *golden =
        json_parse_strict(bytes->data, bytes->length, JSON_DEPTH_DEFAULT, "pool", NULL);
    json_t *seed = json_object_get(golden, "seed_tokens");
    bool ok = true;
    for (size_t i = 0; ok && seed && i < json_array_size(seeds); i++)
        ok = !json_equal(seed, json_array_get(seeds, i)) ||
             entry_fail(c, index, "path", c->pool[index].path, "two entries hold the same prompt",
                        err);
    if (seed)
        json_array_append(seeds, seed);
    json_decref(golden);
    return ok;
}

static bool check_file(const struct contract *c, size_t index, const char *folder, json_t *seeds,
                       struct error *err)
{
    const struct contract_pool_entry *e = &c->pool[index];
    struct arena a = {0};
    struct buffer bytes = {0};
    char sha256[SHA256_HEX];
    const char *path = path_join(&a, folder, path_basename(e->path));
    bool ok = file_read(path, POOL_FILE_MAX, &bytes, err);
    if (ok) {
        sha256_hex(bytes.data ? bytes.data : "", bytes.length, sha256);
        ok = bytes.length == e->bytes && strcmp(sha256, e->sha256) == 0;
        if (!ok) {
            error_set(err, "GOLDEN-PIN-MISMATCH",
                      "the file has %zu bytes with SHA-256 %s; the pool pins %llu bytes with %s",
                      bytes.length, sha256, (unsigned long long)e->bytes, e->sha256);
            error_at(err, path, NULL, NULL);
        }
        ok = ok && (bytes.length == 0 || check_prompt(c, index, &bytes, seeds, err));
    }
    buffer_free(&bytes);
    arena_free(&a);
    return ok;
}

static bool check_pool(const struct contract *c, const char *folder, bool normalised,
                       struct error *err)
{
    for (size_t i = 0; i < c->pool_count; i++)
        if (!check_entry(c, i, normalised, err))
            return false;
    if (!check_count(c, err))
        return false;
    json_t *seeds = json_array();
    bool ok = true;
    for (size_t i = 0; ok && folder && i < c->pool_count; i++)
        ok = check_file(c, i, folder, seeds, err);
    json_decref(seeds);
    return ok;
}

bool pool_check(const struct contract *c, const char *folder, struct error *err)
{
    return check_pool(c, folder, true, err);
}

bool pool_check_plain(const struct contract *c, const char *folder, struct error *err)
{
    return check_pool(c, folder, false, err);
}

bool pool_kernel_random(void *context, uint16_t *out)
{
    (void)context;
    return getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out;
}

bool pool_draw(pool_random *next, void *context, size_t count, size_t *out, struct error *err)
{
    if (count < 1 || count > DRAW_VALUES)
        return error_set(err, "PROMPT-DRAW-FAILED", "one of %zu cannot be drawn with 16 bits",
                         count);
    const size_t end = DRAW_VALUES / count * count; /* from here on the tail */
    for (int i = 0; i < DRAW_TRIES; i++) {
        uint16_t number;
        if (!next(context, &number))
            return error_set(err, "PROMPT-DRAW-FAILED", "the kernel gave no random number");
        if (number < end) {
            *out = number % count;
            return true;
        }
    }
    return error_set(err, "PROMPT-DRAW-FAILED", "%d random numbers in a row were in the tail",
                     DRAW_TRIES);
}
