/* Two folders side by side: one thread reads both and compares, another hashes what was read. */
#include "engine/transform/verify_transform.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "engine/transform/stream.h"
#include "engine/transform/transform.h"
#include "engine/transform/weights_cap.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 4 << 20, PIECES = 4, NAMES_SHOWN = 8 };

/* ---- a hash on a thread of its own ---- */

struct hasher {
    struct sha256 *hash;
    uint8_t *pieces[PIECES];
    size_t lengths[PIECES]; /* 0: the end of the file */
    sem_t empty, full;
    size_t next; /* the piece that is filled next */
};

static void *hash_pieces(void *context)
{
    struct hasher *h = context;
    for (size_t i = 0;; i = (i + 1) % PIECES) {
        while (sem_wait(&h->full) != 0)
            continue;
        const size_t n = h->lengths[i];
        if (n)
            sha256_update(h->hash, h->pieces[i], n);
        sem_post(&h->empty);
        if (n == 0)
            return NULL;
    }
}

static uint8_t *next_piece(struct hasher *h)
{
    while (sem_wait(&h->empty) != 0)
        continue;
    return h->pieces[h->next];
}

static void hand_on(struct hasher *h, size_t length)
{
    h->lengths[h->next] = length;
    h->next = (h->next + 1) % PIECES;
    sem_post(&h->full);
}

/* ---- what is compared ---- */

struct list {
    struct buffer text;
    size_t count;
};

struct job {
    const struct verify_transform_options *o;
    struct verify_transform_report *report;
    struct error *err;
    struct arena arena;
    char **names; /* of weights, sorted */
    size_t count;
    struct list missing, extra;
    char difference[512]; /* the first one; "": none */
    struct hasher hasher;
    uint8_t *expected_piece;
    struct sha256 *whole;
    struct progress progress;
    uint64_t done;
};

static void list_add(struct list *l, const char *name)
{
    if (l->count++ < NAMES_SHOWN)
        buffer_printf(&l->text, "%s%s", l->count > 1 ? ", " : "", name);
}

static void list_tell(const struct list *l, const char *what, struct buffer *out)
{
    if (l->count == 0)
        return;
    buffer_printf(out, "%s%zu %s (%s", out->length ? "; " : "", l->count, what, l->text.data);
    if (l->count > NAMES_SHOWN)
        buffer_printf(out, " and %zu more", l->count - NAMES_SHOWN);
    buffer_char(out, ')');
}

static bool refuse_file(struct job *j, const char *name, const char *path, const char *why)
{
    error_set(j->err, name, "%s", why);
    return error_at(j->err, path, NULL, NULL);
}

/* Names that count, sorted; in place. */
static size_t leave_out_unsealed(char **names, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!transform_is_unsealed(names[i]))
            names[n++] = names[i];
    return n;
}

static bool list_weights(struct job *j)
{
    const char *folder = j->o->weights;
    struct stat st;
    if (lstat(folder, &st) != 0)
        return error_errno(j->err, folder, "cannot look");
    if (!S_ISDIR(st.st_mode))
        return refuse_file(j, "NOT-A-FOLDER", folder,
                           "weights must be a folder, not a link to one");
    if (!file_list_recursive(&j->arena, folder, &j->names, &j->count, j->err))
        return false;
    j->count = leave_out_unsealed(j->names, j->count);
    for (size_t i = 0; i < j->count; i++) {
        const char *path = path_join(&j->arena, folder, j->names[i]);
        if (strchr(path, '\n'))
            return refuse_file(j, "FILE-NAME-INVALID", path, "a file's name holds a newline");
        if (lstat(path, &st) != 0)
            return error_errno(j->err, path, "cannot look");
        if (st.st_nlink > 1)
            return refuse_file(j, "NOT-A-REGULAR-FILE", path,
                               "a hard link: the file has another name too");
        j->report->bytes += (uint64_t)st.st_size;
    }
    j->report->files = j->count;
    return weights_cap_check(j->report->max_bytes, j->report->bytes, folder, j->err);
}

/* ---- comparing ---- */

static void note_difference(struct job *j, const char *name, uint64_t at, int expected, int found)
{
    char e[16] = "its end", f[16] = "its end";
    if (expected >= 0)
        snprintf(e, sizeof e, "0x%02x", (unsigned)expected);
    if (found >= 0)
        snprintf(f, sizeof f, "0x%02x", (unsigned)found);
    snprintf(j->difference, sizeof j->difference,
             "first difference in %s at byte %" PRIu64 ": expected %s, found %s", name, at, e, f);
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return i;
    return n;
}

/* Reads all of the weights' file for the hash, of the expected one as far as they are equal. */
static bool read_both(struct job *j, const char *name, const struct stream_source *found,
                      const struct stream_source *expected)
{
    for (uint64_t at = 0; at < found->bytes;) {
        const size_t n = found->bytes - at < PIECE ? (size_t)(found->bytes - at) : PIECE;
        uint8_t *piece = next_piece(&j->hasher);
        if (!stream_read(found, at, piece, n, j->err)) {
            sem_post(&j->hasher.empty); /* not filled */
            return false;
        }
        hand_on(&j->hasher, n);
        if (expected && !*j->difference) { /* the hash only reads it too */
            const uint64_t left = expected->bytes > at ? expected->bytes - at : 0;
            const size_t m = left < n ? (size_t)left : n;
            if (!stream_read(expected, at, j->expected_piece, m, j->err))
                return false;
            if (memcmp(piece, j->expected_piece, m) != 0) {
                const size_t i = first_difference(piece, j->expected_piece, m);
                note_difference(j, name, at + i, j->expected_piece[i], piece[i]);
            } else if (m < n) {
                note_difference(j, name, at + m, -1, piece[m]);
            }
        }
        at += n;
        progress_update(&j->progress, j->done += n);
        if (interrupt_requested())
            return error_set(j->err, "INTERRUPTED", "stopped by a signal");
    }
    uint8_t next;
    if (expected && !*j->difference && expected->bytes > found->bytes) {
        if (!stream_read(expected, found->bytes, &next, 1, j->err))
            return false;
        note_difference(j, name, found->bytes, next, -1);
    }
    return true;
}

static bool hash_file(struct job *j, const char *name, const struct stream_source *found,
                      const struct stream_source *expected)
{
    static const uint8_t zero[1] = {0};
    uint8_t digest[SHA256_BYTES];
    pthread_t thread;
    j->hasher.hash = sha256_begin();
    j->hasher.next = 0;
    if (pthread_create(&thread, NULL, hash_pieces, &j->hasher) != 0) {
        sha256_finish(j->hasher.hash, digest);
        return error_set(j->err, "IO", "cannot start a thread");
    }
    const bool ok = read_both(j, name, found, expected);
    next_piece(&j->hasher);
    hand_on(&j->hasher, 0);
    pthread_join(thread, NULL);
    sha256_finish(j->hasher.hash, digest);
    sha256_update(j->whole, name, strlen(name));
    sha256_update(j->whole, zero, sizeof zero);
    sha256_update(j->whole, digest, sizeof digest);
    sha256_update(j->whole, zero, sizeof zero);
    return ok;
}

/* folder: the second result's, or NULL where the file is not in it. */
static bool compare_file(struct job *j, const char *name, const char *folder)
{
    struct stream_source found, expected = {.fd = -1};
    if (!stream_open(path_join(&j->arena, j->o->weights, name), &found, j->err))
        return false;
    bool ok = !folder || stream_open(path_join(&j->arena, folder, name), &expected, j->err);
    ok = ok && hash_file(j, name, &found, folder ? &expected : NULL);
    stream_close(&found);
    if (folder)
        stream_close(&expected);
    return ok;
}

static bool compare_folders(struct job *j, const char *folder)
{
    char **made;
    size_t made_count, i = 0, k = 0;
    if (!file_list_recursive(&j->arena, folder, &made, &made_count, j->err))
        return false;
    made_count = leave_out_unsealed(made, made_count);
    progress_begin(&j->progress, "comparing weights", "bytes", j->report->bytes);
    bool ok = true;
    while (ok && (i < j->count || k < made_count)) {
        const int way = i == j->count ? 1 : k == made_count ? -1 : strcmp(j->names[i], made[k]);
        if (way > 0) {
            list_add(&j->missing, made[k++]);
            continue;
        }
        if (way < 0)
            list_add(&j->extra, j->names[i]);
        ok = compare_file(j, j->names[i++], way == 0 ? folder : NULL);
        k += way == 0;
    }
    progress_end(&j->progress);
    return ok;
}

static bool conclude(struct job *j)
{
    uint8_t digest[SHA256_BYTES];
    struct buffer text = {0};
    sha256_finish(j->whole, digest);
    j->whole = NULL;
    text_hex(j->report->sha256, digest, sizeof digest);
    j->report->compared = true;
    list_tell(&j->missing, "missing", &text);
    list_tell(&j->extra, "extra", &text);
    if (*j->difference)
        buffer_printf(&text, "%s%s", text.length ? "; " : "", j->difference);
    j->report->deterministic = text.length == 0;
    if (!j->report->deterministic) {
        error_set(j->err, "TRANSFORM-MISMATCH", "the transform gives something else: %s",
                  text.data);
        error_at(j->err, j->o->weights, NULL, NULL);
    }
    buffer_free(&text);
    return j->report->deterministic;
}

/* Called on the second result, before it is removed. */
static bool inspect(void *context, const char *folder, struct error *err)
{
    struct job *j = context;
    struct hasher *h = &j->hasher;
    (void)err; /* the same as j->err */
    for (size_t i = 0; i < PIECES; i++)
        h->pieces[i] = memory_alloc(PIECE);
    j->expected_piece = memory_alloc(PIECE);
    sem_init(&h->empty, 0, PIECES);
    sem_init(&h->full, 0, 0);
    j->whole = sha256_begin();
    const bool ok = compare_folders(j, folder) && conclude(j);
    uint8_t unused[SHA256_BYTES];
    if (j->whole)
        sha256_finish(j->whole, unused);
    sem_destroy(&h->empty);
    sem_destroy(&h->full);
    for (size_t i = 0; i < PIECES; i++)
        free(h->pieces[i]);
    free(j->expected_piece);
    return ok;
}

/* "<parent>/<name of weights>.verify": a fixed name, so that a later run removes what a killed one
 * left. */
static const char *second_place(struct job *j)
{
    const char *weights = j->o->weights;
    size_t length = strlen(weights);
    while (length > 1 && weights[length - 1] == '/')
        length--;
    const char *whole = arena_printf(&j->arena, "%.*s.verify", (int)length, weights);
    return j->o->temporary_parent
               ? path_join(&j->arena, j->o->temporary_parent, path_basename(whole))
               : whole;
}

bool verify_transform(const struct verify_transform_options *o, struct verify_transform_report *out,
                      struct error *err)
{
    struct error own = {0};
    const int64_t started = clock_now_ns();
    *out = (struct verify_transform_report){0};
    struct job j = {
        .o = o, .report = out, .err = err ? err : &own, .progress = {.quiet = o->quiet}};
    struct transform_result result;
    const struct transform_options again = {.source = o->source,
                                            .out = second_place(&j),
                                            .placed_at = o->weights,
                                            .contract = o->contract,
                                            .max_bytes = o->max_bytes,
                                            .int8_attention = o->int8_attention,
                                            .quiet = o->quiet,
                                            .inspect = inspect,
                                            .context = &j};
    const bool ok = weights_cap_read(o->max_bytes, &out->max_bytes, j.err) && list_weights(&j) &&
                    transform(&again, &result, j.err);
    out->deterministic = out->deterministic && ok;
    out->seconds = clock_seconds(started);
    buffer_free(&j.missing.text);
    buffer_free(&j.extra.text);
    arena_free(&j.arena);
    return ok;
}
