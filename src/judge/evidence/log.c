/* The file of the log: reading it whole, appending under its lock, cutting off a torn line. */
#include "judge/evidence/log.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOG_BYTES_MOST = 1 << 28 };
static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";

struct log_writer {
    const char *path; /* in the arena */
    int fd;
    struct arena arena;
    struct log log;
};

static bool invalid_line(struct error *err, const char *file, size_t line, const char *what)
{
    error_set(err, "LOG-INVALID", "line %zu %s", line, what);
    return error_at(err, file, NULL, NULL);
}

/* The entry at its place: what the chain says of it. */
static bool check_place(const struct log *l, const struct log_entry *e, const char *file,
                        struct error *err)
{
    char what[160];
    if (e->index != l->count) {
        snprintf(what, sizeof what,
                 "is entry %llu where entry %zu belongs: entries were taken out, put in or moved",
                 (unsigned long long)e->index, l->count);
        return invalid_line(err, file, l->count + 1, what);
    }
    if (strcmp(e->previous, log_head(l)) != 0)
        return invalid_line(err, file, l->count + 1,
                            "does not carry the hash of the entry before it");
    return true;
}

bool log_parse(const char *file, const char *data, size_t length, struct arena *a, struct log *out,
               struct error *err)
{
    size_t lines = 0;
    *out = (struct log){0};
    for (size_t i = 0; i < length; i++)
        lines += data[i] == '\n';
    out->entries = arena_array(a, lines + 1, sizeof *out->entries);
    while (out->bytes < length) {
        const char *line = data + out->bytes;
        const char *end = memchr(line, '\n', length - out->bytes);
        if (!end) {
            out->torn = length - out->bytes;
            return true;
        }
        struct log_entry *e = &out->entries[out->count];
        struct error why = {0};
        if (!log_entry_parse(NULL, line, (size_t)(end - line), e, &why)) {
            char what[1300];
            snprintf(what, sizeof what, "%s%s%s", why.field, *why.field ? " " : "", why.message);
            return invalid_line(err, file, out->count + 1, what);
        }
        if (!check_place(out, e, file, err))
            return false;
        out->count++;
        out->bytes += (size_t)(end - line) + 1;
    }
    return true;
}

const char *log_head(const struct log *l)
{
    return l->count ? l->entries[l->count - 1].hash : zeros;
}

void log_root(const struct log *l, size_t count, struct merkle_hash *out)
{
    struct merkle_hash *leaves = memory_alloc((count + 1) * sizeof *leaves);
    for (size_t i = 0; i < count; i++)
        leaves[i] = l->entries[i].leaf;
    merkle_root(leaves, count, out);
    free(leaves);
}

void log_prove(const struct log *l, const struct log_entry *e, size_t before,
               struct log_inclusion *out)
{
    struct merkle_hash *leaves = memory_alloc((l->count + 1) * sizeof *leaves);
    for (size_t i = 0; i < l->count; i++)
        leaves[i] = l->entries[i].leaf;
    *out = (struct log_inclusion){.entry = *e, .size = l->count, .before = before};
    merkle_root(leaves, l->count, &out->root);
    out->length = merkle_prove(leaves, l->count, (size_t)e->index, out->path);
    if (before > 0) {
        merkle_root(leaves, before, &out->before_root);
        out->before_length = merkle_prove_extends(leaves, l->count, before, out->before_path);
    }
    free(leaves);
}

const struct log_entry *log_find(const struct log *l, const char *statement_sha256)
{
    for (size_t i = l->count; i-- > 0;)
        if (strcmp(l->entries[i].statement, statement_sha256) == 0)
            return &l->entries[i];
    return NULL;
}

bool log_expect(const char *file, const struct log *l, const char *published, size_t *entries,
                struct error *err)
{
    char digits[24], hex[SHA256_HEX];
    uint64_t count = 0;
    struct merkle_hash root;
    const char *colon = strchr(published, ':');
    const size_t length = colon ? (size_t)(colon - published) : 0;
    if (length > 0 && length < sizeof digits) {
        memcpy(digits, published, length);
        digits[length] = '\0';
    }
    if (length == 0 || length >= sizeof digits || !number_uint64(digits, INT64_MAX, &count) ||
        !text_is_lower_hex(colon + 1, SHA256_HEX - 1)) {
        error_set(err, "USAGE", "a published root is \"<entries>:<64 hex digits>\"");
        return error_at(err, NULL, NULL, published);
    }
    if (count > l->count) {
        error_set(err, "LOG-INVALID", "has %zu entries and had %llu: its end was cut off", l->count,
                  (unsigned long long)count);
        return error_at(err, file, NULL, NULL);
    }
    log_root(l, (size_t)count, &root);
    text_hex(hex, root.bytes, SHA256_BYTES);
    if (entries)
        *entries = (size_t)count;
    if (strcmp(hex, colon + 1) == 0)
        return true;
    error_set(err, "LOG-INVALID",
              "its first %llu entries are not those of the published root: it was rewritten",
              (unsigned long long)count);
    return error_at(err, file, "root", hex);
}

/* ---- The file ---- */

static bool torn(struct error *err, const char *path, const struct log *l)
{
    error_set(err, "LOG-TORN",
              "line %zu, at byte %zu, is %zu bytes without an end: its writing was cut off; "
              "`benchd log repair` takes it away",
              l->count + 1, l->bytes, l->torn);
    return error_at(err, path, NULL, NULL);
}

/* Waits for the lock, and for nothing longer than until the program is to end. */
static bool take_lock(int fd, int kind, const char *path, struct error *err)
{
    const struct timespec pause = {0, 5000000};
    while (flock(fd, kind | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_errno(err, path, "lock");
        if (interrupt_requested()) {
            error_set(err, "Interrupted", "interrupted while waiting for the log's lock");
            return error_at(err, path, NULL, NULL);
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

/* An open, locked file of the log into `out`. */
static bool read_locked(int fd, const char *path, struct buffer *text, struct error *err)
{
    struct stat s;
    if (fstat(fd, &s) != 0)
        return error_errno(err, path, "stat");
    if (!S_ISREG(s.st_mode)) {
        error_set(err, "NOT-A-REGULAR-FILE", "a log is a regular file");
        return error_at(err, path, NULL, NULL);
    }
    if (s.st_size > LOG_BYTES_MOST) {
        error_set(err, "FILE-TOO-LARGE", "larger than the %d bytes allowed for a log",
                  LOG_BYTES_MOST);
        return error_at(err, path, NULL, NULL);
    }
    buffer_reserve(text, (size_t)s.st_size + 1);
    while (text->length < (size_t)s.st_size) {
        const ssize_t n = pread(fd, text->data + text->length, (size_t)s.st_size - text->length,
                                (off_t)text->length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, path, "read");
        if (n == 0)
            break;
        text->length += (size_t)n;
    }
    return true;
}

bool log_read(const char *path, struct arena *a, struct log *out, struct error *err)
{
    *out = (struct log){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_errno(err, path, "cannot open");
    struct buffer text = {0};
    const bool ok = take_lock(fd, LOCK_SH, path, err) && read_locked(fd, path, &text, err) &&
                    log_parse(path, text.data, text.length, a, out, err);
    close(fd);
    buffer_free(&text);
    return ok && (out->torn == 0 || torn(err, path, out));
}

/* Opened, locked, read, with every whole line proved. Torn lines are the caller's. */
static bool open_locked(const char *path, int flags, struct log_writer **out, struct error *err)
{
    struct log_writer *w = memory_alloc(sizeof *w);
    struct buffer text = {0};
    w->path = arena_strdup(&w->arena, path);
    w->fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0644);
    bool ok = w->fd >= 0 || error_errno(err, path, "open");
    ok = ok && take_lock(w->fd, LOCK_EX, path, err) && read_locked(w->fd, path, &text, err) &&
         log_parse(w->path, text.data, text.length, &w->arena, &w->log, err);
    buffer_free(&text);
    if (ok) {
        *out = w;
        return true;
    }
    log_close(w);
    return false;
}

static bool sync_folder(const char *path, struct error *err)
{
    struct arena a = {0};
    const size_t length = (size_t)(path_basename(path) - path);
    const int fd =
        open(length ? arena_strndup(&a, path, length) : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot flush a folder and say so. */
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == EROFS);
    if (!ok)
        error_errno(err, path, "flush the log's folder");
    if (fd >= 0)
        close(fd);
    arena_free(&a);
    return ok;
}

bool log_open(const char *path, struct log_writer **out, struct error *err)
{
    *out = NULL;
    struct log_writer *w;
    if (!open_locked(path, O_CREAT, &w, err))
        return false;
    if (w->log.torn ? torn(err, path, &w->log) : w->log.count || sync_folder(path, err)) {
        *out = w;
        return true;
    }
    log_close(w);
    return false;
}

const struct log *log_of(const struct log_writer *w)
{
    return &w->log;
}

bool log_append(struct log_writer *w, const char *statement_sha256, const char *score_sha256,
                struct log_entry *out, struct error *err)
{
    struct buffer line = {0};
    struct log_entry e = {.index = w->log.count};
    clock_utc_text(e.time, sizeof e.time);
    text_copy(e.statement, sizeof e.statement, statement_sha256);
    text_copy(e.score, sizeof e.score, score_sha256);
    text_copy(e.previous, sizeof e.previous, log_head(&w->log));
    log_entry_seal(&e);
    log_entry_render(&e, &line);
    buffer_char(&line, '\n');
    ssize_t n;
    do
        n = write(w->fd, line.data, line.length);
    while (n < 0 && errno == EINTR);
    bool ok = n == (ssize_t)line.length && fsync(w->fd) == 0;
    if (!ok) {
        if (n >= 0 && n < (ssize_t)line.length)
            errno = ENOSPC;
        error_errno(err, w->path, "append to the log");
        if (ftruncate(w->fd, (off_t)w->log.bytes) != 0 && err)
            text_copy(err->field, sizeof err->field, "the half line could not be taken away");
    } else {
        struct log_entry *grown = arena_array(&w->arena, w->log.count + 1, sizeof *w->log.entries);
        memcpy(grown, w->log.entries, w->log.count * sizeof *grown);
        grown[w->log.count++] = e;
        w->log.entries = grown;
        w->log.bytes += line.length;
        *out = e;
    }
    buffer_free(&line);
    return ok;
}

void log_close(struct log_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    arena_free(&w->arena);
    free(w);
}

bool log_repair(const char *path, struct log_repaired *out, struct error *err)
{
    struct log_writer *w;
    struct log_entry e;
    struct buffer text = {0};
    *out = (struct log_repaired){0};
    if (!open_locked(path, 0, &w, err))
        return false;
    const struct log *l = &w->log;
    bool ok = l->torn == 0 || read_locked(w->fd, path, &text, err);
    if (ok && l->torn > 0) {
        out->completed = log_entry_parse(NULL, text.data + l->bytes, l->torn, &e, NULL) &&
                         check_place(l, &e, NULL, NULL);
        out->removed = out->completed ? 0 : l->torn;
        ok = (out->completed ? write(w->fd, "\n", 1) == 1
                             : ftruncate(w->fd, (off_t)l->bytes) == 0) &&
             fsync(w->fd) == 0;
        if (!ok)
            error_errno(err, path, "mend the torn line");
    }
    buffer_free(&text);
    log_close(w);
    return ok;
}
