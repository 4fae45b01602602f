/* Digests of trees: the weights digest, byte for byte, and the harness hash (sections 4 and 5). */
#include "judge/digest.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HASH_THREADS_MAX = 8, HARNESS_DEPTH_MAX = 64 };

/* What the judge is made of in this tree. Folders that a participant edits (src/engine) and what
 * others pin (models, goldens) are not the harness. A missing one is reported. */
static const char *const harness_roots[] = {"Makefile", "README.md", "check",        "demo",
                                            "src/base", "src/judge", "src/programs", "src/wire",
                                            "tests",    "tools",     "tracks"};
/* The original's other roots: hashed where they exist, not missed where they do not. */
static const char *const older_roots[] = {
    "Package.swift", "Sources", "Tests", "benchmark.json",  "benchmark.sh",       "setup.sh",
    "TASK.md",       "harness", "vllm",  "setup-dflash.sh", "benchmark-dflash.sh"};

/* A folder with none of these is no harness, whatever `tools` or `tests` may lie there. */
static const char *const harness_marks[] = {"src/judge", "Package.swift", "Sources",
                                            "benchmark.json"};

struct file_digest {
    const char *name; /* relative */
    const char *path;
    uint8_t sha256[SHA256_BYTES];
    uint64_t bytes;
    bool failed;
    struct error err;
};

struct hash_job {
    struct file_digest *files;
    size_t count;
    atomic_size_t next;
};

static void *hash_files(void *context)
{
    struct hash_job *job = context;
    for (;;) {
        size_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->count)
            return NULL;
        struct file_digest *f = &job->files[i];
        f->failed = !sha256_file(f->path, f->sha256, &f->bytes, &f->err);
    }
}

/* Hashes every file, on as many threads as there are processors and files for, and folds the
 * results in the order of the array, so that the thread count cannot be seen in the digest. */
static bool fold_files(struct file_digest *files, size_t count, struct tree_digest *out,
                       struct error *err)
{
    struct hash_job job = {.files = files, .count = count};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = processors < 1 ? 1 : (size_t)processors;
    pthread_t threads[HASH_THREADS_MAX];
    size_t started = 0;
    wanted = wanted > HASH_THREADS_MAX ? HASH_THREADS_MAX : wanted;
    wanted = wanted > count ? count : wanted;
    atomic_init(&job.next, 0);
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, hash_files, &job) == 0)
        started++;
    hash_files(&job);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);

    static const char zero = 0;
    struct sha256 *h = sha256_begin();
    uint8_t digest[SHA256_BYTES];
    const struct file_digest *bad = NULL;
    out->bytes = 0;
    out->files = count;
    for (size_t i = 0; i < count; i++) {
        const struct file_digest *f = &files[i];
        bad = bad ? bad : f->failed ? f : NULL;
        sha256_update(h, f->name, strlen(f->name));
        sha256_update(h, &zero, 1);
        sha256_update(h, f->sha256, sizeof f->sha256);
        sha256_update(h, &zero, 1);
        out->bytes += f->bytes;
    }
    sha256_finish(h, digest);
    text_hex(out->sha256, digest, sizeof digest);
    if (bad && err)
        *err = bad->err;
    return !bad;
}

bool weights_digest(const char *folder, struct tree_digest *out, struct error *err)
{
    struct arena arena = {0};
    char **names = NULL;
    size_t count = 0, kept = 0;
    if (!file_list_recursive(&arena, folder, &names, &count, err)) {
        arena_free(&arena);
        return false;
    }
    struct file_digest *files = arena_array(&arena, count + 1, sizeof *files);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], ".benchmark-source.sha256") == 0 || strcmp(names[i], ".gitkeep") == 0)
            continue;
        files[kept].name = names[i];
        files[kept++].path = path_join(&arena, folder, names[i]);
    }
    bool ok = fold_files(files, kept, out, err);
    arena_free(&arena);
    return ok;
}

static bool same_bytes(const char *path, const uint8_t wanted[SHA256_BYTES], uint64_t bytes,
                       bool *same, struct error *err)
{
    struct stat s;
    uint8_t found[SHA256_BYTES];
    *same = false;
    if (lstat(path, &s) != 0)
        return error_errno(err, path, "stat");
    if ((uint64_t)s.st_size != bytes)
        return true;
    if (!sha256_file(path, found, NULL, err))
        return false;
    *same = memcmp(wanted, found, sizeof found) == 0;
    return true;
}

bool weights_check_golden(const char *folder, const char *golden, struct error *err)
{
    struct arena arena = {0};
    uint8_t wanted[SHA256_BYTES];
    uint64_t bytes = 0;
    char **names = NULL;
    size_t count = 0;
    bool ok = sha256_file(golden, wanted, &bytes, err) &&
              file_list_recursive(&arena, folder, &names, &count, err);
    for (size_t i = 0; ok && i < count; i++) {
        const char *path = path_join(&arena, folder, names[i]);
        bool same;
        ok = same_bytes(path, wanted, bytes, &same, err);
        if (ok && same) {
            error_set(err, "GOLDEN-IN-WEIGHTS", "the weights folder holds the golden");
            ok = error_at(err, path, NULL, NULL);
        }
    }
    arena_free(&arena);
    return ok;
}

static bool stamp_one(struct sha256 *h, const char *path, struct error *err)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return error_errno(err, path, "stat");
    const int64_t facts[] = {(int64_t)s.st_dev,          (int64_t)s.st_ino,
                             (int64_t)s.st_size,         (int64_t)s.st_mtim.tv_sec,
                             (int64_t)s.st_mtim.tv_nsec, (int64_t)s.st_ctim.tv_sec,
                             (int64_t)s.st_ctim.tv_nsec};
    sha256_update(h, facts, sizeof facts);
    return true;
}

bool path_stamp(const char *path, char out[SHA256_HEX], struct error *err)
{
    struct arena arena = {0};
    char **names = NULL;
    size_t count = 0;
    uint8_t digest[SHA256_BYTES];
    struct sha256 *h = sha256_begin();
    const bool folder = file_is_directory(path);
    bool ok =
        folder ? file_list_recursive(&arena, path, &names, &count, err) : stamp_one(h, path, err);
    for (size_t i = 0; ok && i < count; i++) {
        sha256_update(h, names[i], strlen(names[i]) + 1);
        ok = stamp_one(h, path_join(&arena, path, names[i]), err);
    }
    sha256_finish(h, digest);
    text_hex(out, digest, sizeof digest);
    arena_free(&arena);
    return ok;
}

static bool stamp_differs(const char *path, const char *stamp)
{
    char now[SHA256_HEX];
    return !path_stamp(path, now, NULL) || strcmp(now, stamp) != 0;
}

bool stamp_check_weights(const char *path, const char stamp[SHA256_HEX], struct error *err)
{
    if (!stamp_differs(path, stamp))
        return true;
    error_set(err, "WEIGHTS-CHANGED", "files of the weights folder were changed during the run");
    return error_at(err, path, NULL, NULL);
}

bool stamp_check_drafter(const char *path, const char stamp[SHA256_HEX], struct error *err)
{
    if (!stamp_differs(path, stamp))
        return true;
    error_set(err, "DRAFTER-CHANGED", "files of the drafter's folder were changed during the run");
    return error_at(err, path, NULL, NULL);
}

bool stamp_check_engine(const char *path, const char stamp[SHA256_HEX], struct error *err)
{
    if (!stamp_differs(path, stamp))
        return true;
    error_set(err, "ENGINE-CHANGED", "the engine's file was changed during the run");
    return error_at(err, path, NULL, NULL);
}

void run_stamps_take(const char *weights, const char *engine, struct run_stamps *out)
{
    if (!path_stamp(weights, out->weights, NULL))
        out->weights[0] = '\0';
    if (!path_stamp(engine, out->engine, NULL))
        out->engine[0] = '\0';
}

bool run_stamps_check(const struct run_stamps *before, const char *weights, const char *engine,
                      struct error *err)
{
    return (before->weights[0] == '\0' || stamp_check_weights(weights, before->weights, err)) &&
           (before->engine[0] == '\0' || stamp_check_engine(engine, before->engine, err));
}

struct harness_walk {
    struct arena arena;
    const char *root;
    struct file_digest *files; /* grows; malloc'd */
    size_t count, capacity;
    struct error *err;
};

static bool harness_walk(struct harness_walk *w, const char *name, int depth);

static bool harness_walk_folder(struct harness_walk *w, const char *name, const char *path,
                                int depth)
{
    DIR *folder = opendir(path);
    if (!folder)
        return error_errno(w->err, path, "open folder");
    bool ok = true;
    const struct dirent *entry;
    errno = 0;
    while (ok && (entry = readdir(folder))) {
        /* What tools leave behind is not the harness: dot files, Python's caches. */
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "__pycache__") != 0)
            ok = harness_walk(w, path_join(&w->arena, name, entry->d_name), depth + 1);
        errno = 0;
    }
    if (ok && errno)
        ok = error_errno(w->err, path, "read folder");
    closedir(folder);
    return ok;
}

static bool harness_walk(struct harness_walk *w, const char *name, int depth)
{
    struct stat s;
    const char *path = path_join(&w->arena, w->root, name);
    if (lstat(path, &s) != 0)
        return error_errno(w->err, path, "stat");
    if (depth > HARNESS_DEPTH_MAX) {
        error_set(w->err, "IO", "folders are nested more than %d deep", HARNESS_DEPTH_MAX);
        return error_at(w->err, path, NULL, NULL);
    }
    if (S_ISDIR(s.st_mode))
        return harness_walk_folder(w, name, path, depth);
    if (!S_ISREG(s.st_mode)) {
        error_set(w->err, "NOT-A-REGULAR-FILE",
                  "the harness holds something that is neither a file nor a folder");
        return error_at(w->err, path, NULL, NULL);
    }
    if (w->count == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 256;
        w->files = memory_realloc(w->files, w->capacity * sizeof *w->files);
    }
    memset(&w->files[w->count], 0, sizeof *w->files);
    w->files[w->count].name = name;
    w->files[w->count++].path = path;
    return true;
}

static int by_name(const void *a, const void *b)
{
    const struct file_digest *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool harness_walk_roots(struct harness_walk *w, const char *const *roots, size_t count,
                               void (*on_missing)(const char *name))
{
    for (size_t i = 0; i < count; i++) {
        struct stat s;
        if (lstat(path_join(&w->arena, w->root, roots[i]), &s) == 0) {
            if (!harness_walk(w, roots[i], 0))
                return false;
        } else if (errno != ENOENT && errno != ENOTDIR) {
            return error_errno(w->err, roots[i], "stat");
        } else if (on_missing) {
            on_missing(roots[i]);
        }
    }
    return true;
}

static bool is_harness(struct harness_walk *w)
{
    for (size_t i = 0; i < sizeof harness_marks / sizeof harness_marks[0]; i++) {
        struct stat s;
        if (lstat(path_join(&w->arena, w->root, harness_marks[i]), &s) == 0)
            return true;
    }
    error_set(w->err, "HARNESS-EMPTY",
              "the folder holds no harness: no src/judge; start it in "
              "the root of the tree");
    return error_at(w->err, w->root, NULL, NULL);
}

bool harness_hash(const char *root, void (*on_missing)(const char *name), struct tree_digest *out,
                  struct error *err)
{
    struct harness_walk w = {.root = root, .err = err};
    bool ok = is_harness(&w) &&
              harness_walk_roots(&w, harness_roots, sizeof harness_roots / sizeof harness_roots[0],
                                 on_missing) &&
              harness_walk_roots(&w, older_roots, sizeof older_roots / sizeof older_roots[0], NULL);
    if (ok && w.count)
        qsort(w.files, w.count, sizeof *w.files, by_name);
    ok = ok && fold_files(w.files, w.count, out, err);
    free(w.files);
    arena_free(&w.arena);
    return ok;
}
