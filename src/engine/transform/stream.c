#include "engine/transform/stream.h"

#include "base/child.h"
#include "base/uncached.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 8 << 20 };

bool stream_open(const char *path, struct stream_source *out, struct error *err)
{
    struct stat st;
    *out = (struct stream_source){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (out->fd < 0)
        return error_errno(err, path, "cannot open");
    if (fstat(out->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(out->fd);
        error_set(err, "NOT-A-REGULAR-FILE", "not a regular file");
        return error_at(err, path, NULL, NULL);
    }
    out->path = path;
    out->bytes = (uint64_t)st.st_size;
    posix_fadvise(out->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return true;
}

void stream_close(struct stream_source *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

static bool ended_early(const struct stream_source *s, uint64_t at, struct error *err)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, at);
    error_set(err, "SOURCE-CHANGED", "the file ends early: it had %" PRIu64 " bytes", s->bytes);
    return error_at(err, s->path, "bytes", value);
}

bool stream_read(const struct stream_source *s, uint64_t at, void *out, size_t length,
                 struct error *err)
{
    for (char *p = out; length > 0;) {
        const ssize_t n = uncached_pread(s->fd, p, length, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, s->path, "cannot read");
        if (n == 0)
            return ended_early(s, at, err);
        p += n;
        at += (uint64_t)n;
        length -= (size_t)n;
    }
    return true;
}

static bool add(struct stream *t, uint64_t n)
{
    progress_update(t->progress, t->done += n);
    return !interrupt_requested() || error_set(t->err, "INTERRUPTED", "stopped by a signal");
}

bool stream_write(struct stream *t, struct folder_file *to, const void *data, uint64_t length)
{
    bool ok = true;
    for (uint64_t at = 0; ok && at < length; at += PIECE) {
        const size_t n = length - at < PIECE ? (size_t)(length - at) : PIECE;
        ok = folder_write_file(to, (const char *)data + at, n, t->err) && add(t, n);
    }
    return ok;
}

bool stream_copy(struct stream *t, const struct stream_source *from, uint64_t at, uint64_t length,
                 struct folder_file *to)
{
    void *piece = memory_alloc(PIECE);
    bool ok = true;
    while (ok && length > 0) {
        const size_t n = length < PIECE ? (size_t)length : PIECE;
        ok = stream_read(from, at, piece, n, t->err) && folder_write_file(to, piece, n, t->err) &&
             add(t, n);
        at += n;
        length -= n;
    }
    free(piece);
    return ok;
}

bool stream_clone(struct stream *t, const struct stream_source *from, struct folder_file *to)
{
    struct stat st;
    if (ioctl(to->fd, FICLONE, from->fd) != 0)
        return stream_copy(t, from, 0, from->bytes, to);
    if (fstat(to->fd, &st) != 0 || (uint64_t)st.st_size != from->bytes)
        return ended_early(from, (uint64_t)st.st_size, t->err);
    return add(t, from->bytes);
}

bool stream_shares_blocks(const char *path, const char *folder)
{
    const int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int to = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    const bool shares = from >= 0 && to >= 0 && ioctl(to, FICLONE, from) == 0;
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return shares;
}

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool stream_stamp_take(const char *path, struct stream_stamp *out, struct error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return error_errno(err, path, "cannot look");
    *out = (struct stream_stamp){st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                 nanoseconds(st.st_mtim), nanoseconds(st.st_ctim)};
    return true;
}

bool stream_stamp_check(const char *path, const struct stream_stamp *before, struct error *err)
{
    struct stream_stamp now;
    char value[32];
    if (!stream_stamp_take(path, &now, err)) {
        error_set(err, "SOURCE-CHANGED", "the file went away while it was read");
        return error_at(err, path, NULL, NULL);
    }
    if (now.bytes != before->bytes) {
        snprintf(value, sizeof value, "%" PRIu64, now.bytes);
        error_set(err, "SOURCE-CHANGED",
                  "the file changed while it was read: it had %" PRIu64 " bytes", before->bytes);
        return error_at(err, path, "bytes", value);
    }
    if (now.device == before->device && now.inode == before->inode &&
        now.modified_ns == before->modified_ns && now.changed_ns == before->changed_ns)
        return true;
    snprintf(value, sizeof value, "%" PRId64, now.changed_ns);
    error_set(err, "SOURCE-CHANGED",
              "the file changed while it was read: its time of change was %" PRId64,
              before->changed_ns);
    return error_at(err, path, "time of change", value);
}
