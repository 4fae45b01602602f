#include "arena/fetch/store.h"

#include "arena/fetch/writer.h"
#include "base/buffer.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char PARTS[] = ".mlxfast-fetch";

static const char *part_path(struct arena *a, const char *folder, const struct fetch_file *f)
{
    char of_path[SHA256_HEX]; /* two files may have the same bytes */
    sha256_hex(f->path, strlen(f->path), of_path);
    return arena_printf(a, "%s/%s/%s-%.8s.part", folder, PARTS, f->sha256, of_path);
}

static bool sync_folder(const char *path, struct error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, path, "cannot open the folder");
    const bool ok = fsync(fd) == 0 || errno == EINVAL || errno == EROFS || errno == EBADF;
    if (!ok)
        error_errno(err, path, "cannot write the folder to the disk");
    close(fd);
    return ok;
}

bool fetch_store_open(struct arena *a, const char *folder, struct fetch_store *s, struct error *err)
{
    *s = (struct fetch_store){.arena = a, .folder = folder, .parts = path_join(a, folder, PARTS)};
    return file_make_directories(s->parts, err);
}

bool fetch_part_open(struct fetch_store *s, const struct fetch_file *f, struct fetch_part *part,
                     struct error *err)
{
    struct stat st;
    const char *path = part_path(s->arena, s->folder, f);
    *part = (struct fetch_part){
        .fd = -1, .path = path, .etag_path = arena_printf(s->arena, "%s.etag", path)};
    part->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (part->fd < 0)
        return error_errno(err, path, "cannot create");
    if (fstat(part->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        error_set(err, "NOT-A-REGULAR-FILE", "not a regular file");
        return error_at(err, path, NULL, NULL);
    }
    part->length = (uint64_t)st.st_size;
    return part->length <= f->bytes || fetch_part_cut(part, 0, err);
}

static bool write_failed(const struct fetch_part *part, int why, struct error *err)
{
    struct statvfs fs;
    errno = why;
    if (why != ENOSPC && why != EDQUOT && why != EFBIG)
        return error_errno(err, part->path, "cannot write");
    char value[32];
    const bool known = fstatvfs(part->fd, &fs) == 0;
    error_set(err, "FETCH-DISK-FULL", "%s after %" PRIu64 " bytes; what is there is kept",
              strerror(why), part->length);
    snprintf(value, sizeof value, "%" PRIu64,
             known ? (uint64_t)fs.f_bavail * (fs.f_frsize ? fs.f_frsize : fs.f_bsize) : 0);
    return error_at(err, part->path, known ? "free bytes" : NULL, known ? value : NULL);
}

void fetch_part_hash(struct fetch_part *part, struct digest *digest)
{
    part->digest = digest;
    if (part->writer)
        writer_tell(part->writer, digest);
}

/* What is held is on its way, to the file and to the hash. */
static void put(struct fetch_part *part)
{
    if (part->held == 0)
        return;
    part->piece->length = part->held;
    part->held = 0;
    if (part->digest)
        digest_hand(part->digest, part->piece);
    writer_put(part->writer, part->piece);
    part->piece = NULL;
}

bool fetch_part_flush(struct fetch_part *part, struct error *err)
{
    int why;
    uint64_t length;
    put(part);
    if (!part->writer || writer_drain(part->writer, &why, &length))
        return true;
    part->length = length;
    return write_failed(part, why, err);
}

static void take_piece(struct fetch_part *part)
{
    if (!part->ring)
        part->ring = piece_ring_make();
    if (!part->writer) {
        part->writer = writer_begin(part->fd, part->path);
        writer_tell(part->writer, part->digest);
    }
    part->piece = piece_ring_take(part->ring, part->length);
}

bool fetch_part_write(struct fetch_part *part, const void *data, size_t length, struct error *err)
{
    for (const uint8_t *p = data; length > 0;) {
        if (!part->piece)
            take_piece(part);
        const size_t room = part->piece->room - part->held, n = length < room ? length : room;
        memcpy(part->piece->data + part->held, p, n);
        part->held += n;
        part->length += n;
        p += n;
        length -= n;
        if (n == room)
            put(part);
    }
    return !part->writer || !writer_has_failed(part->writer) || fetch_part_flush(part, err);
}

static void drop_piece(struct fetch_part *part)
{
    part->held = 0;
    if (part->piece)
        piece_let_go(part->piece);
    part->piece = NULL;
}

bool fetch_part_cut(struct fetch_part *part, uint64_t length, struct error *err)
{
    if (length == 0)
        drop_piece(part);
    if (!fetch_part_flush(part, err))
        return false;
    if (part->digest)
        digest_restart(part->digest); /* first: it must not see the file end before its time */
    if (ftruncate(part->fd, (off_t)length) != 0)
        return error_errno(err, part->path, "cannot cut");
    part->length = length;
    if (part->digest)
        digest_advance(part->digest, length);
    if (length == 0)
        unlink(part->etag_path);
    return true;
}

void fetch_part_keep_etag(struct fetch_part *part, const char *base, const char *etag)
{
    struct buffer text = {0};
    buffer_printf(&text, "%s\n%s\n", base, etag);
    const int fd =
        open(part->etag_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    /* Without it, or with half of it, the next run trusts Content-Range alone, and the hash. */
    if (fd >= 0) {
        const ssize_t n = write(fd, text.data, text.length);
        (void)n;
        close(fd);
    }
    buffer_free(&text);
}

void fetch_part_etag(const struct fetch_part *part, const char *base, char out[FETCH_ETAG_MOST])
{
    struct buffer text = {0};
    const size_t n = strlen(base);
    out[0] = '\0';
    if (file_read(part->etag_path, 8192, &text, NULL) && text.length > n + 2 &&
        strlen(text.data) == text.length && strncmp(text.data, base, n) == 0 &&
        text.data[n] == '\n' && text.data[n + 1] == '"') {
        char *end = strchr(text.data + n + 1, '\n');
        if (end && end[1] == '\0') {
            *end = '\0';
            if (!text_copy(out, FETCH_ETAG_MOST, text.data + n + 1) || strpbrk(out, "\r\n"))
                out[0] = '\0';
        }
    }
    buffer_free(&text);
}

bool fetch_part_commit(struct fetch_store *s, const struct fetch_file *f, struct fetch_part *part,
                       struct error *err)
{
    const char *path = path_join(s->arena, s->folder, f->path);
    char *parent = arena_strndup(s->arena, path, (size_t)(path_basename(path) - path));
    struct stat st;
    if (fstat(part->fd, &st) != 0)
        return error_errno(err, part->path, "cannot read its size");
    if ((uint64_t)st.st_size != f->bytes) {
        error_set(err, "FILE-CHANGED", "expected %" PRIu64 " bytes, it now has %" PRIu64, f->bytes,
                  (uint64_t)st.st_size);
        return error_at(err, part->path, NULL, NULL);
    }
    if (!file_make_directories(parent, err))
        return false;
    if (rename(part->path, path) != 0)
        return error_errno(err, path, "cannot put in place");
    unlink(part->etag_path);
    fetch_part_close(part);
    return sync_folder(parent, err);
}

void fetch_part_close(struct fetch_part *part)
{
    if (part->fd < 0)
        return;
    fetch_part_flush(part, NULL); /* what is lost is asked for again */
    drop_piece(part);
    writer_end(part->writer);
    piece_ring_free(part->ring);
    part->writer = NULL;
    part->ring = NULL;
    close(part->fd);
    part->fd = -1;
    if (part->length == 0) { /* nothing to continue */
        unlink(part->etag_path);
        unlink(part->path);
    }
}

bool fetch_store_retire(struct fetch_store *s, const struct fetch_file *f, const char *path,
                        uint64_t length, struct error *err)
{
    struct stat st;
    const char *part = part_path(s->arena, s->folder, f);
    /* A link is not followed: what it leads to belongs to somebody else. */
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 && length > 0 &&
        length < f->bytes && !file_exists(part)) {
        if (rename(path, part) == 0)
            return true;
        return error_errno(err, path, "cannot set aside");
    }
    return unlink(path) == 0 || error_errno(err, path, "cannot remove");
}

uint64_t fetch_store_part_bytes(struct arena *a, const char *folder, const struct fetch_file *f)
{
    struct stat st;
    if (stat(part_path(a, folder, f), &st) != 0 || (uint64_t)st.st_size > f->bytes)
        return 0;
    return (uint64_t)st.st_size;
}

void fetch_store_clean(struct fetch_store *s, bool all)
{
    DIR *d = all ? opendir(s->parts) : NULL;
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, ".part")) /* what earlier runs and manifests left */
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(s->parts);
}

bool fetch_store_link(struct arena *a, const char *path, const char *folder, struct error *err)
{
    struct stat st;
    char real[PATH_MAX];
    if (!realpath(folder, real))
        return error_errno(err, folder, "cannot resolve");
    if (lstat(path, &st) == 0) {
        char to[PATH_MAX];
        if (!S_ISLNK(st.st_mode)) {
            if (realpath(path, to) && strcmp(to, real) == 0)
                return true;
            error_set(err, "LINK-IN-THE-WAY",
                      "expected a symbolic link or nothing, found another "
                      "thing, which is left alone");
            return error_at(err, path, NULL, NULL);
        }
        if (realpath(path, to) && strcmp(to, real) == 0)
            return true;
    }
    const char *parent = arena_strndup(a, path, (size_t)(path_basename(path) - path));
    const char *temporary = arena_printf(a, "%s.tmp.%ld", path, (long)getpid());
    if (*parent && !file_make_directories(parent, err))
        return false;
    unlink(temporary);
    if (symlink(real, temporary) != 0)
        return error_errno(err, temporary, "cannot link");
    if (rename(temporary, path) != 0) {
        error_errno(err, path, "cannot put in place");
        unlink(temporary);
        return false;
    }
    return true;
}
