#include "arena/fetch/plan.h"

#include "arena/fetch/digest.h"
#include "arena/fetch/store.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MOST = 16 };
static const uint64_t MARGIN = 64 << 20; /* for what a file system keeps to itself */

/* Length and kind. */
static bool look(struct fetch_item *item, struct error *err)
{
    struct stat st;
    if (stat(item->path, &st) != 0) {
        item->state = FETCH_MISSING;
        if (errno == ENOENT || errno == ELOOP) {
            /* A link that leads nowhere has a name that is in the way. */
            if (lstat(item->path, &st) == 0)
                item->state = FETCH_WRONG;
            return true;
        }
        return errno == ENOTDIR || error_errno(err, item->path, "cannot look at it");
    }
    if (!S_ISREG(st.st_mode)) {
        error_set(err, "NOT-A-REGULAR-FILE", "expected a file or nothing; move it away");
        return error_at(err, item->path, NULL, NULL);
    }
    item->found_bytes = (uint64_t)st.st_size;
    item->state = item->found_bytes == item->file->bytes ? FETCH_RIGHT : FETCH_WRONG;
    return true;
}

struct reading {
    struct fetch_item *item;
    struct digest *digest;
    int fd;
    int64_t started;
};

static bool start(struct reading *r, struct fetch_item *item, struct error *err)
{
    *r = (struct reading){.item = item, .started = clock_now_ns()};
    r->fd = open(item->path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0)
        return error_errno(err, item->path, "cannot open");
    posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    r->digest = digest_begin(r->fd, item->path, NULL, NULL);
    digest_advance(r->digest, item->found_bytes);
    digest_close(r->digest, false);
    return true;
}

static bool finish(struct reading *r, struct fetch_progress *progress, struct error *err)
{
    struct fetch_item *item = r->item;
    const bool ok = digest_take(r->digest, item->found_sha256, err);
    close(r->fd);
    r->digest = NULL;
    if (!ok)
        return false;
    if (strcmp(item->found_sha256, item->file->sha256) != 0)
        item->state = FETCH_WRONG;
    fetch_progress_file(progress, item->file->path, item->file->bytes, clock_seconds(r->started),
                        item->state == FETCH_RIGHT ? "is right" : "has another SHA-256");
    return true;
}

/* Every file of the right length, several at once. */
static bool hash_all(struct fetch_plan *plan, int64_t threads, struct mutation_lock *lock,
                     struct fetch_progress *progress, struct error *err)
{
    struct reading readings[THREADS_MOST] = {0};
    struct fetch_view views[THREADS_MOST];
    const size_t most = threads < THREADS_MOST ? (size_t)threads : THREADS_MOST;
    size_t next = 0, busy = 0;
    uint64_t finished = 0;
    bool ok = true;
    do {
        uint64_t under_way = 0;
        size_t view_count = 0;
        for (size_t i = 0; ok && i < most; i++) {
            struct reading *r = &readings[i];
            if (r->digest && digest_is_ready(r->digest)) {
                ok = finish(r, progress, err);
                finished += r->item->found_bytes;
                busy--;
            }
            while (ok && !r->digest && next < plan->manifest->count) {
                struct fetch_item *item = &plan->items[next++];
                if (item->state == FETCH_RIGHT && (ok = start(r, item, err)))
                    busy++;
            }
            if (r->digest) {
                const uint64_t hashed = digest_hashed(r->digest);
                under_way += hashed;
                views[view_count++] =
                    (struct fetch_view){r->item->file->path, NULL, hashed, r->item->found_bytes};
            }
        }
        fetch_progress_update(progress, finished + under_way, views, view_count);
        if (lock)
            mutation_lock_touch(lock);
        if (ok && interrupt_requested())
            ok = error_set(err, "INTERRUPTED", "stopped by a signal");
        if (ok && busy)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    } while (ok && (busy || next < plan->manifest->count));
    for (size_t i = 0; i < most; i++)
        if (readings[i].digest) {
            digest_abandon(readings[i].digest);
            close(readings[i].fd);
        }
    return ok;
}

bool fetch_plan_make(struct arena *a, const char *folder, const struct fetch_manifest *m,
                     enum fetch_check check, int64_t threads, struct mutation_lock *lock,
                     struct fetch_progress *progress, struct fetch_plan *plan, struct error *err)
{
    uint64_t to_read = 0;
    size_t files = 0;
    *plan = (struct fetch_plan){.manifest = m, .folder = folder};
    plan->items = arena_array(a, m->count, sizeof *plan->items);
    for (size_t i = 0; i < m->count; i++) {
        struct fetch_item *item = &plan->items[i];
        *item = (struct fetch_item){.file = &m->files[i],
                                    .path = path_join(a, folder, m->files[i].path)};
        if (!look(item, err))
            return false;
        to_read += item->state == FETCH_RIGHT ? item->found_bytes : 0;
        files += item->state == FETCH_RIGHT;
    }
    if (check == FETCH_CHECK_HASHES && files) {
        const bool quiet = progress->quiet;
        fetch_progress_begin(progress, "verify", files, to_read, progress->every_ns / 1000000000,
                             quiet);
        const bool ok = hash_all(plan, threads, lock, progress, err);
        fetch_progress_end(progress);
        if (!ok)
            return false;
    }
    for (size_t i = 0; i < m->count; i++) {
        const struct fetch_item *item = &plan->items[i];
        plan->missing += item->state == FETCH_MISSING;
        plan->wrong += item->state == FETCH_WRONG;
        plan->right += item->state == FETCH_RIGHT;
        plan->bytes_to_get += item->state == FETCH_RIGHT ? 0 : item->file->bytes;
    }
    return true;
}

bool fetch_plan_fault(const struct fetch_item *item, struct error *err)
{
    const struct fetch_file *f = item->file;
    if (item->state == FETCH_MISSING)
        error_set(err, "FETCH-MISSING", "expected %" PRIu64 " bytes with SHA-256 %s, found nothing",
                  f->bytes, f->sha256);
    else if (!item->found_sha256[0])
        error_set(err, "FETCH-LENGTH", "expected %" PRIu64 " bytes, found %" PRIu64, f->bytes,
                  item->found_bytes);
    else
        error_set(err, "FETCH-SHA256", "expected SHA-256 %s, found %s", f->sha256,
                  item->found_sha256);
    return error_at(err, item->path, NULL, NULL);
}

bool fetch_plan_check_space(struct arena *a, const struct fetch_plan *plan, uint64_t min_free,
                            struct error *err)
{
    struct statvfs fs;
    uint64_t there = 0, needed = MARGIN;
    for (size_t i = 0; i < plan->manifest->count; i++) {
        const struct fetch_item *item = &plan->items[i];
        const uint64_t part = fetch_store_part_bytes(a, plan->folder, item->file);
        there += item->state == FETCH_RIGHT ? item->file->bytes : part;
        needed += item->state == FETCH_RIGHT ? 0 : item->file->bytes - part;
    }
    if (min_free > there && min_free - there > needed)
        needed = min_free - there;
    if (statvfs(plan->folder, &fs) != 0)
        return error_errno(err, plan->folder, "cannot ask for its free space");
    const uint64_t block = fs.f_frsize ? fs.f_frsize : fs.f_bsize;
    if (block == 0 || needed / block < fs.f_bavail)
        return true;
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, (uint64_t)fs.f_bavail * block);
    error_set(err, "FETCH-NO-SPACE",
              "expected %" PRIu64 " free bytes (%" PRIu64
              " are still to come), fewer are free; another folder: --dir or --cache-dir",
              needed, plan->bytes_to_get);
    return error_at(err, plan->folder, "free bytes", value);
}
