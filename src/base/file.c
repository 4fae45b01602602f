/* Files: see file.h. */
#include "base/file.h"

#include "base/interrupt.h"
#include "base/number.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool not_regular(struct error *err, const char *path)
{
    error_set(err, "NOT-A-REGULAR-FILE", "not a regular file");
    return error_at(err, path, NULL, NULL);
}

/* Opens a regular file; O_NONBLOCK so that a FIFO cannot hold the open (no effect on files). */
static int open_regular(const char *path, struct stat *st, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_errno(err, path, "cannot open");
        return -1;
    }
    if (fstat(fd, st) != 0) {
        error_errno(err, path, "cannot read its size");
        close(fd);
        return -1;
    }
    if (!S_ISREG(st->st_mode)) {
        not_regular(err, path);
        close(fd);
        return -1;
    }
    return fd;
}

static bool too_large(struct error *err, const char *path, size_t limit)
{
    error_set(err, "FILE-TOO-LARGE", "larger than the %zu bytes allowed here", limit);
    return error_at(err, path, NULL, NULL);
}

bool file_read(const char *path, size_t limit, struct buffer *out, struct error *err)
{
    struct stat st;
    buffer_clear(out);
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return false;
    bool ok = true;
    if ((uint64_t)st.st_size > limit) {
        ok = too_large(err, path, limit);
    } else {
        buffer_reserve(out, (size_t)st.st_size);
    }
    while (ok) { /* to the end, not to st_size: the file may be growing */
        buffer_reserve(out, 4096);
        ssize_t n = read(fd, out->data + out->length, out->capacity - out->length - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            ok = error_errno(err, path, "cannot read");
        if (n <= 0)
            break;
        out->length += (size_t)n;
        if (out->length > limit)
            ok = too_large(err, path, limit);
    }
    close(fd);
    if (!ok)
        buffer_clear(out);
    else if (out->data)
        out->data[out->length] = '\0';
    return ok;
}

bool file_map_open(const char *path, struct file_map *out, struct error *err)
{
    struct stat st;
    *out = (struct file_map){0};
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return false;
    bool ok = true;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            ok = error_errno(err, path, "cannot map");
        } else {
            out->data = p;
            out->length = (size_t)st.st_size;
        }
    }
    close(fd);
    return ok;
}

void file_unmap(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->length);
    *map = (struct file_map){0};
}

static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        length -= (size_t)n;
    }
    return true;
}

static bool sync_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == path ? memory_strdup("/")
                   : slash       ? strndup(path, (size_t)(slash - path))
                                 : memory_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd < 0)
        return false;
    /* Some file systems cannot sync a folder; the rename is then as durable as they make it. */
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == EROFS || errno == EBADF;
    close(fd);
    return ok;
}

bool file_check_target(const char *path, struct error *err)
{
    struct stat st;
    struct arena scratch = {0};
    const char *name = path_basename(path);
    const size_t length = (size_t)(name - path);
    const char *folder = length > 0 ? arena_strndup(&scratch, path, length) : ".";
    bool ok = true;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        ok = not_regular(err, path);
    } else if (*name == '\0') {
        error_set(err, "IO", "a file needs a name");
        ok = error_at(err, path, NULL, NULL);
    } else if (!file_is_directory(folder)) {
        errno = file_exists(folder) ? ENOTDIR : ENOENT;
        ok = error_errno(err, path, "cannot create");
    } else if (access(folder, W_OK | X_OK) != 0) {
        ok = error_errno(err, path, "cannot create");
    }
    arena_free(&scratch);
    return ok;
}

bool file_write_atomic(const char *path, const void *data, size_t length, struct error *err)
{
    if (!file_check_target(path, err))
        return false;
    struct buffer temporary = {0};
    buffer_printf(&temporary, "%s.tmp.%ld", path, (long)getpid());
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = open(temporary.data, flags, 0666);
    if (fd < 0 && errno == EEXIST) { /* left by an earlier process that had our number */
        unlink(temporary.data);
        fd = open(temporary.data, flags, 0666);
    }
    bool ok = fd >= 0;
    if (ok)
        interrupt_partial_file(temporary.data);
    else
        error_errno(err, path, "cannot create");
    if (ok && !write_all(fd, data, length))
        ok = error_errno(err, path, "cannot write");
    if (ok && fsync(fd) != 0)
        ok = error_errno(err, path, "cannot write to the disk");
    if (fd >= 0 && close(fd) != 0 && ok)
        ok = error_errno(err, path, "cannot write");
    if (ok && rename(temporary.data, path) != 0)
        ok = error_errno(err, path, "cannot put in place");
    if (!ok && fd >= 0)
        unlink(temporary.data);
    interrupt_partial_file(NULL);
    if (ok && !sync_folder_of(path))
        ok = error_errno(err, path, "cannot write its folder to the disk");
    buffer_free(&temporary);
    return ok;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool file_is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool file_is_same(const char *a, const char *b)
{
    if (same_inode(a, b))
        return true;
    const char *name_a = path_basename(a), *name_b = path_basename(b);
    if (strcmp(name_a, name_b) != 0)
        return false;
    struct arena scratch = {0};
    const char *in_a = name_a > a ? arena_strndup(&scratch, a, (size_t)(name_a - a)) : ".";
    const char *in_b = name_b > b ? arena_strndup(&scratch, b, (size_t)(name_b - b)) : ".";
    const bool same = same_inode(in_a, in_b);
    arena_free(&scratch);
    return same;
}

bool file_make_directories(const char *path, struct error *err)
{
    char *copy = memory_strdup(path);
    bool ok = true;
    for (char *p = copy + (*copy == '/'); ok; p++) {
        if (*p && *p != '/')
            continue;
        char kept = *p;
        *p = '\0';
        if (*copy && mkdir(copy, 0777) != 0 && !file_is_directory(copy))
            ok = error_errno(err, copy, "cannot make the folder");
        *p = kept;
        if (!kept)
            break;
    }
    free(copy);
    return ok;
}

char *path_join(struct arena *a, const char *folder, const char *name)
{
    if (!*folder)
        return arena_strdup(a, name);
    return arena_printf(a, "%s%s%s", folder, text_ends(folder, "/") ? "" : "/", name);
}

const char *path_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

struct path_list {
    char **items;
    size_t count, capacity;
};

static void path_list_add(struct path_list *l, char *path)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 64;
        l->items = memory_realloc(l->items, l->capacity * sizeof *l->items);
    }
    l->items[l->count++] = path;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b); /* strcmp compares as unsigned bytes */
}

static bool list_folder(struct arena *a, const char *folder, const char *below,
                        struct path_list *files, struct path_list *folders, struct error *err)
{
    const char *whole = *below ? path_join(a, folder, below) : folder;
    DIR *dir = opendir(whole);
    if (!dir)
        return error_errno(err, whole, "cannot list the folder");
    bool ok = true;
    struct dirent *entry;
    while (ok && (errno = 0, entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *path = path_join(a, below, entry->d_name);
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            ok = error_errno(err, path_join(a, folder, path), "cannot look at");
        else if (S_ISDIR(st.st_mode))
            path_list_add(folders, path);
        else if (S_ISREG(st.st_mode))
            path_list_add(files, path);
        else
            ok = not_regular(err, path_join(a, folder, path));
    }
    if (ok && errno != 0)
        ok = error_errno(err, whole, "cannot list the folder");
    closedir(dir);
    return ok;
}

bool file_list_recursive(struct arena *a, const char *folder, char ***out, size_t *count,
                         struct error *err)
{
    struct path_list files = {0}, folders = {0};
    path_list_add(&folders, arena_strdup(a, ""));
    bool ok = true;
    for (size_t i = 0; ok && i < folders.count; i++) /* grows while it is walked */
        ok = list_folder(a, folder, folders.items[i], &files, &folders, err);
    if (ok) {
        if (files.count)
            qsort(files.items, files.count, sizeof *files.items, compare_paths);
        *out = arena_array(a, files.count, sizeof **out);
        if (files.count)
            memcpy(*out, files.items, files.count * sizeof **out);
        *count = files.count;
    }
    free(files.items);
    free(folders.items);
    return ok;
}
