#include "arena/doctor/disk.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PIECE = 4 << 20,         /* one read; a multiple of every block size */
    LARGE_ENOUGH = 32 << 20, /* a file that is worth reading */
    READ_MOST = 512 << 20,
    TEMPORARY_BYTES = 64 << 20
};

/* Links are followed: caches of downloads consist of them. */
static const char *largest_file(struct arena *a, const char *folder, uint64_t *bytes)
{
    const char *best = NULL;
    DIR *d = opendir(folder);
    *bytes = 0;
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        struct stat s;
        if (fstatat(dirfd(d), e->d_name, &s, 0) == 0 && S_ISREG(s.st_mode) && s.st_size > 0 &&
            (uint64_t)s.st_size > *bytes) {
            best = arena_strdup(a, e->d_name);
            *bytes = (uint64_t)s.st_size;
        }
    }
    if (d)
        closedir(d);
    return best;
}

static bool unread(struct error *err, const char *folder, const char *why)
{
    error_set(err, "DISK-UNREAD", "%s", why);
    return error_at(err, folder, NULL, NULL);
}

static bool interrupted(struct error *err)
{
    return error_set(err, "INTERRUPTED", "stopped by a signal");
}

/* A file that nobody sees and that goes when it is closed. -1: none can be made. */
static int open_temporary(struct arena *a, const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        char *path = arena_printf(a, "%s/.mlxfast-doctor-XXXXXX", folder);
        fd = mkostemp(path, O_DIRECT | O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    return fd;
}

/* Past the page cache, so that reading it meets the disk. Returns the bytes written. */
static uint64_t fill(int fd, void *piece, double seconds)
{
    const int64_t began = clock_now_ns();
    uint64_t written = 0, state = 0x9e3779b97f4a7c15u;
    while (written < TEMPORARY_BYTES && clock_seconds(began) < seconds && !interrupt_requested()) {
        /* Nothing that a disk could leave out or pack: xorshift. */
        for (size_t i = 0; i < PIECE / sizeof state; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            memcpy((uint8_t *)piece + i * sizeof state, &state, sizeof state);
        }
        if (pwrite(fd, piece, PIECE, (off_t)written) != PIECE)
            break;
        written += PIECE;
    }
    return written;
}

static bool time_reads(int fd, void *piece, uint64_t bytes, double seconds, struct disk_rate *out,
                       struct error *err)
{
    const int64_t began = clock_now_ns();
    uint64_t done = 0;
    double took = 0;
    while (done < bytes && done < READ_MOST && took < seconds) {
        const ssize_t n = pread(fd, piece, PIECE, (off_t)done);
        if (interrupt_requested())
            return interrupted(err);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, NULL, "cannot read past the page cache");
        took = clock_seconds(began);
        done += (uint64_t)n;
        if (n < PIECE)
            break; /* its end: the next read would begin off a block */
    }
    if (done == 0 || took <= 0)
        return error_set(err, "DISK-UNREAD", "nothing could be read");
    out->bytes = done;
    out->bytes_per_second = (double)done / took;
    return true;
}

static bool read_with(struct arena *a, void *piece, const char *folder, double seconds,
                      struct disk_rate *out, struct error *err)
{
    uint64_t bytes;
    *out = (struct disk_rate){0};
    const char *name = largest_file(a, folder, &bytes);
    int fd = -1;
    if (name && bytes >= LARGE_ENOUGH) {
        fd = open(path_join(a, folder, name), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
        out->file = name;
    }
    if (fd < 0) {
        out->file = NULL;
        seconds /= 2;
        fd = open_temporary(a, folder);
        if (fd < 0)
            return unread(err, folder,
                          errno == EINVAL
                              ? "this file system has no reads past the page cache"
                              : "no file of 32 MB or more to read, and none can be made here");
        bytes = fill(fd, piece, seconds);
    }
    const bool ok =
        interrupt_requested() ? interrupted(err) : time_reads(fd, piece, bytes, seconds, out, err);
    close(fd);
    return ok;
}

bool disk_read_rate(struct arena *a, const char *folder, double seconds, struct disk_rate *out,
                    struct error *err)
{
    void *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece == MAP_FAILED)
        return error_errno(err, NULL, "no memory to read into");
    const bool ok = read_with(a, piece, folder, seconds, out, err);
    munmap(piece, PIECE);
    return ok;
}
