#include "base/folder.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/uncached.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Removes an entry of an open folder with all that is below it; no link is followed. */
static void remove_below(int folder, const char *name)
{
    const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        unlinkat(folder, name, 0);
        return;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            remove_below(fd, e->d_name);
    closedir(d);
    unlinkat(folder, name, AT_REMOVEDIR);
}

static bool is_temporary_of(const char *name, const char *out)
{
    static const char middle[] = ".tmp.";
    const char *base = path_basename(out);
    if (!text_starts(name, base) || !text_starts(name + strlen(base), middle))
        return false;
    const char *rest = name + strlen(base) + sizeof middle - 1;
    return *rest && strspn(rest, "0123456789") == strlen(rest);
}

/* A run that lives holds the lock of its folder; where there are no locks nothing is removed. */
static void remove_left_over(const struct folder_build *b)
{
    DIR *d = opendir(b->parent);
    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!is_temporary_of(e->d_name, b->out))
            continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            remove_below(dirfd(d), e->d_name);
        close(fd);
    }
    closedir(d);
}

bool folder_plan(struct arena *a, const char *out, struct folder_build *b, struct error *err)
{
    struct stat st;
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    *b = (struct folder_build){.arena = a, .out = arena_strndup(a, out, length)};
    if (length == 0 || strcmp(b->out, "/") == 0) {
        error_set(err, "IO", "a folder to make needs a name");
        return error_at(err, out, NULL, NULL);
    }
    if (lstat(b->out, &st) == 0) {
        error_set(err, "OUT-EXISTS", "something stands there already, and is left alone");
        return error_at(err, b->out, NULL, NULL);
    }
    if (errno != ENOENT)
        return error_errno(err, b->out, "cannot look");
    const size_t folder = (size_t)(path_basename(b->out) - b->out);
    b->parent = folder ? arena_strndup(a, b->out, folder) : ".";
    b->temporary = arena_printf(a, "%s.tmp.%ld", b->out, (long)getpid());
    if (access(b->parent, W_OK | X_OK) != 0)
        return error_errno(err, b->parent, "cannot write to the folder");
    remove_left_over(b);
    return true;
}

bool folder_check_space(const struct folder_build *b, uint64_t bytes, struct error *err)
{
    struct statvfs fs;
    if (statvfs(b->parent, &fs) != 0)
        return error_errno(err, b->parent, "cannot ask for its free space");
    const uint64_t block = fs.f_frsize ? fs.f_frsize : fs.f_bsize;
    if (block == 0 || bytes / block < fs.f_bavail)
        return true;
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, (uint64_t)fs.f_bavail * block);
    error_set(err, "NO-SPACE", "%" PRIu64 " bytes are needed, fewer are free", bytes);
    return error_at(err, b->parent, "free bytes", value);
}

bool folder_begin(struct folder_build *b, struct error *err)
{
    struct stat st;
    for (;;) {
        if (mkdir(b->temporary, 0777) != 0)
            return error_errno(err, b->temporary, "cannot create");
        const int fd = open(b->temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            flock(fd, LOCK_EX); /* it waits only for another run that removes it as a left over */
        b->lock = fd + 1;
        if (fd < 0 || (fstat(fd, &st) == 0 && st.st_nlink > 0))
            return true;
        close(fd); /* another run took it for left over before it was locked */
        b->lock = 0;
    }
}

static void let_go(struct folder_build *b)
{
    if (b->lock > 0)
        close(b->lock - 1);
    b->lock = 0;
}

static bool make_folders_of(const struct folder_build *b, const char *name, struct error *err)
{
    const char *last = path_basename(name);
    if (last == name)
        return true;
    return file_make_directories(
        path_join(b->arena, b->temporary, arena_strndup(b->arena, name, (size_t)(last - name) - 1)),
        err);
}

bool folder_create_file(const struct folder_build *b, const char *name, struct folder_file *f,
                        struct error *err)
{
    f->path = path_join(b->arena, b->temporary, name);
    f->scratch = b->scratch;
    if (!make_folders_of(b, name, err))
        return false;
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return error_errno(err, f->path, "cannot create");
    interrupt_partial_file(f->path);
    return true;
}

bool folder_write_file(struct folder_file *f, const void *data, size_t length, struct error *err)
{
    for (const char *p = data; length > 0;) {
        if (interrupt_requested())
            return error_set(err, "INTERRUPTED", "stopped by a signal");
        const ssize_t n = uncached_write(f->fd, p, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, f->path, "cannot write");
        p += n;
        length -= (size_t)n;
    }
    if (!f->scratch)
        sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return true;
}

bool folder_write_file_at(const struct folder_file *f, const void *data, size_t length, uint64_t at,
                          struct error *err)
{
    const uint64_t begin = at, whole = length;
    for (const char *p = data; length > 0;) {
        if (interrupt_requested())
            return error_set(err, "INTERRUPTED", "stopped by a signal");
        const ssize_t n = uncached_pwrite(f->fd, p, length, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, f->path, "cannot write");
        p += n;
        at += (uint64_t)n;
        length -= (size_t)n;
    }
    if (!f->scratch)
        sync_file_range(f->fd, (off_t)begin, (off_t)whole, SYNC_FILE_RANGE_WRITE);
    return true;
}

bool folder_close_file(struct folder_file *f, bool ok, struct error *err)
{
    if (ok && !f->scratch && fsync(f->fd) != 0)
        ok = error_errno(err, f->path, "cannot write to the disk");
    if (close(f->fd) != 0 && ok)
        ok = error_errno(err, f->path, "cannot write");
    interrupt_partial_file(NULL);
    return ok;
}

/* Some file systems cannot sync a folder; the rename is then as durable as they make it. */
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

/* Folders in it, too, are brought to the disk. */
static bool sync_folders_below(const char *path, struct arena *a, struct error *err)
{
    struct stat st;
    bool ok = sync_folder(path, err);
    DIR *d = ok ? opendir(path) : NULL;
    for (const struct dirent *e; ok && d && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
            ok = sync_folders_below(path_join(a, path, e->d_name), a, err);
    if (d)
        closedir(d);
    return ok;
}

bool folder_commit(struct folder_build *b, struct error *err)
{
    struct stat st;
    if (!sync_folders_below(b->temporary, b->arena, err))
        return false;
    if (renameat2(AT_FDCWD, b->temporary, AT_FDCWD, b->out, RENAME_NOREPLACE) != 0) {
        /* EINVAL: a file system without that flag */
        const bool plain = errno == EINVAL && lstat(b->out, &st) != 0 && errno == ENOENT &&
                           rename(b->temporary, b->out) == 0;
        if (!plain)
            return error_errno(err, b->out, "cannot put in place");
    }
    let_go(b);
    return sync_folder(b->parent, err);
}

void folder_abandon(struct folder_build *b)
{
    remove_below(AT_FDCWD, b->temporary);
    let_go(b);
}
