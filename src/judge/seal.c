/* Sealing: three files that belong together, so that a score is never there without its companions.
 *
 * Order: the three are written whole under temporary names in the score's folder and flushed; then
 * an earlier score of that name is removed; then the integrity file, the sidecar and last the score
 * get their names. After a crash at any point either the earlier set stands untouched, or there is
 * no score file: a score file, when it is there, has the sidecar and integrity file that belong to
 * it. Runs that seal into one folder at once take turns in the second half. */
#include "judge/seal.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const int64_t LOCK_NS = INT64_C(10000000000);

enum { SEALED_SCORE, SEALED_SIDECAR, SEALED_INTEGRITY, SEALED_COUNT };

struct sealed_file {
    const char *path, *temporary;
    struct buffer bytes;
    bool written;
};

static const char *folder_of(struct arena *a, const char *path)
{
    const char *name = path_basename(path);
    size_t length = (size_t)(name - path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length ? arena_strndup(a, path, length) : ".";
}

/* The real path; a file that is not there yet stands in its real folder. NULL: not resolvable. */
static const char *real_path(struct arena *a, const char *path)
{
    char *real = realpath(path, NULL);
    const char *out = NULL;
    if (real) {
        out = arena_strdup(a, real);
    } else if ((real = realpath(folder_of(a, path), NULL))) {
        out = path_join(a, real, path_basename(path));
    }
    free(real);
    return out;
}

/* A relative path that stays below where it starts, as far as its text tells. */
static bool stays_below(const char *path)
{
    if (*path == '/')
        return false;
    for (const char *part = path; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

/* What is published of a path: relative to the working directory where it lies below it, else its
 * last part, so that no home directory gets out. */
const char *seal_published_path(struct arena *a, const char *path)
{
    if (!path || !*path)
        return "";
    char *here = realpath(".", NULL);
    const char *real = real_path(a, path), *out = NULL;
    size_t length = here ? strlen(here) : 0;
    if (here && real && strncmp(real, here, length) == 0) {
        if (real[length] == '\0')
            out = ".";
        else if (real[length] == '/')
            out = real + length + 1;
        else if (length == 1)
            out = real + 1; /* the working directory is the root */
    }
    free(here);
    if (!out && !real && stays_below(path))
        out = path; /* it is not there, nor is its folder */
    if (out)
        return out;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    return path_basename(arena_strndup(a, path, end));
}

/* Where the weights were made from: the transform leaves its source's digest in the folder. */
static const char *source_digest(struct arena *a, const struct seal_inputs *in)
{
    if (in->transform_source_sha256)
        return in->transform_source_sha256;
    if (!in->weights_path)
        return "";
    struct buffer text = {0};
    const char *out = "";
    const char *path = path_join(a, in->weights_path, ".benchmark-source.sha256");
    if (file_read(path, 4096, &text, NULL) && text.length >= SHA256_HEX - 1) {
        const char *digest = arena_strndup(a, text.data, SHA256_HEX - 1);
        bool alone = text.length == SHA256_HEX - 1 || text.data[SHA256_HEX - 1] == '\n' ||
                     text.data[SHA256_HEX - 1] == ' ';
        if (alone && text_is_lower_hex(digest, SHA256_HEX - 1))
            out = digest;
    }
    buffer_free(&text);
    return out;
}

/* Digest of a program's bytes, "" when it cannot be read: a run whose engine is missing is sealed
 * as failed all the same. */
static const char *program_digest(struct arena *a, const char *path)
{
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    if (!path || !sha256_file(path, digest, NULL, NULL))
        return "";
    text_hex(hex, digest, sizeof digest);
    return arena_strdup(a, hex);
}

/* The text of a member: bytes that are not UTF-8 (a path may hold any) as \xNN. */
static void write_text(struct buffer *out, const char *text)
{
    struct buffer clean = {0};
    size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        int n = utf8_sequence((const uint8_t *)text + i, length - i);
        if (n > 0)
            buffer_append(&clean, text + i, (size_t)n);
        else
            buffer_printf(&clean, "\\x%02x", (unsigned char)text[i]);
        i += n > 0 ? (size_t)n : 1;
    }
    json_write_string(clean.data ? clean.data : "", clean.length, out);
    buffer_free(&clean);
}

static void write_integrity(struct arena *a, const struct seal_inputs *in, const char *score_sha256,
                            struct buffer *out)
{
    char *real = in->candidate_executable ? realpath(in->candidate_executable, NULL) : NULL;
    const char *resolution = real ? "canonical" : "unresolved";
    free(real);
    /* Section 2 fixes this order. NULL value: the count that stands beside it. */
    const struct {
        const char *key, *value;
        uint64_t count;
    } members[] = {
        {"score_path", seal_published_path(a, in->score_path), 0},
        {"score_sha256", score_sha256, 0},
        {"weights_path", seal_published_path(a, in->weights_path), 0},
        {"weights_sha256", in->weights_sha256 ? in->weights_sha256 : "", 0},
        {"weights_file_count", NULL, in->weights_file_count},
        {"weights_byte_count", NULL, in->weights_byte_count},
        {"golden_path", seal_published_path(a, in->golden_path), 0},
        {"golden_sha256", in->golden_sha256 ? in->golden_sha256 : "", 0},
        {"transform_source_sha256", source_digest(a, in), 0},
        {"candidate_executable", seal_published_path(a, in->candidate_executable), 0},
        {"candidate_executable_sha256", program_digest(a, in->candidate_executable), 0},
        {"baseline_executable", "", 0},
        {"baseline_executable_sha256", "", 0},
        {"candidate_executable_resolution", resolution, 0},
        {"benchd_executable", seal_published_path(a, in->benchd_executable), 0},
        {"benchd_executable_sha256", program_digest(a, in->benchd_executable), 0},
        {"candidate_workspace_sha256", "", 0},
        {"sandbox", in->sandbox ? in->sandbox : "none", 0},
    };
    const size_t count = sizeof members / sizeof members[0];
    buffer_text(out, "{\n");
    for (size_t i = 0; i < count; i++) {
        buffer_printf(out, "  \"%s\": ", members[i].key);
        if (members[i].value)
            write_text(out, members[i].value);
        else
            buffer_printf(out, "%llu", (unsigned long long)members[i].count);
        buffer_text(out, i + 1 < count ? ",\n" : "\n");
    }
    buffer_text(out, "}\n");
}

static bool check_target(const struct sealed_file *f, struct error *err)
{
    struct stat s;
    if (lstat(f->path, &s) == 0 && !S_ISREG(s.st_mode)) {
        error_set(err, "NOT-A-REGULAR-FILE", "a sealed file cannot replace this");
        return error_at(err, f->path, NULL, NULL);
    }
    return true;
}

static bool write_temporary(struct sealed_file *f, struct error *err)
{
    int fd = open(f->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return error_errno(err, f->path, "create");
    f->written = true;
    size_t done = 0;
    while (done < f->bytes.length) {
        ssize_t n = write(fd, f->bytes.data + done, f->bytes.length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            error_errno(err, f->path, "write");
            close(fd);
            return false;
        }
        done += (size_t)n;
    }
    if (fsync(fd) != 0) {
        error_errno(err, f->path, "flush");
        close(fd);
        return false;
    }
    return close(fd) == 0 || error_errno(err, f->path, "close");
}

static bool flush_folder(const char *folder, struct error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, folder, "open folder");
    /* Some file systems have nothing to flush for a folder and say so. */
    bool ok = fsync(fd) == 0 || errno == EINVAL || error_errno(err, folder, "flush folder");
    close(fd);
    return ok;
}

/* Two runs may end at once with the same score path: the folder's lock keeps one's files together.
 * Whoever holds it for longer than a seal takes is no run, and is not waited for. -1: no folder. */
static int lock_folder(const char *folder)
{
    const struct timespec pause = {0, 5000000};
    const int64_t deadline = clock_now_ns() + LOCK_NS;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           clock_now_ns() < deadline)
        nanosleep(&pause, NULL);
    return fd;
}

/* A second signal ends the program at once, which must not be in the midst of three files. */
static void hold_signals(sigset_t *before)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &wanted, before);
}

static bool put_in_place(struct sealed_file *files, const char *folder, struct error *err)
{
    static const int order[] = {SEALED_INTEGRITY, SEALED_SIDECAR, SEALED_SCORE};
    if (unlink(files[SEALED_SCORE].path) != 0 && errno != ENOENT)
        return error_errno(err, files[SEALED_SCORE].path, "remove the earlier score");
    for (int i = 0; i < SEALED_COUNT; i++) {
        struct sealed_file *f = &files[order[i]];
        /* Before the score gets its name, what it stands on must be on the disk. */
        if (order[i] == SEALED_SCORE && !flush_folder(folder, err))
            return false;
        if (rename(f->temporary, f->path) != 0)
            return error_errno(err, f->path, "rename into place");
        f->written = false;
    }
    return flush_folder(folder, err);
}

static bool commit_files(struct sealed_file *files, const char *folder, struct error *err)
{
    for (int i = 0; i < SEALED_COUNT; i++)
        if (!check_target(&files[i], err))
            return false;
    for (int i = 0; i < SEALED_COUNT; i++)
        if (!write_temporary(&files[i], err))
            return false;
    const int lock = lock_folder(folder);
    const bool ok = put_in_place(files, folder, err);
    if (lock >= 0)
        close(lock);
    return ok;
}

/* sha256sum escapes names with these; a plain line would not check. */
static bool check_name(const char *path, const char *integrity_name, struct error *err)
{
    const char *name = path_basename(path);
    if (*name == '\0' || strpbrk(name, "\n\r\\") || strcmp(name, integrity_name) == 0) {
        error_set(err, "SCORE-PATH-INVALID",
                  "a score file needs a plain name that is not %s, without line breaks and "
                  "backslashes",
                  integrity_name);
        return error_at(err, path, NULL, NULL);
    }
    return true;
}

/* The three files' names, final and temporary. */
static bool name_files(struct arena *a, const char *score_path, const char *integrity_name,
                       struct sealed_file *files, const char **folder, struct error *err)
{
    if (!check_name(score_path, integrity_name, err))
        return false;
    *folder = folder_of(a, score_path);
    files[SEALED_SCORE].path = score_path;
    files[SEALED_SIDECAR].path = arena_printf(a, "%s.sha256", score_path);
    files[SEALED_INTEGRITY].path = path_join(a, *folder, integrity_name);
    for (int i = 0; i < SEALED_COUNT; i++)
        files[i].temporary = arena_printf(a, "%s.tmp.%ld", files[i].path, (long)getpid());
    return true;
}

static const char *integrity_name_of(bool local_iterate)
{
    return local_iterate ? "benchmark-integrity.local-iterate.json" : "benchmark-integrity.json";
}

static void remove_temporaries(struct sealed_file *files)
{
    for (int i = 0; i < SEALED_COUNT; i++) {
        if (files[i].written)
            unlink(files[i].temporary);
        buffer_free(&files[i].bytes);
    }
}

bool seal_check(const char *score_path, bool local_iterate, struct error *err)
{
    struct arena arena = {0};
    struct sealed_file files[SEALED_COUNT] = {0};
    const char *folder;
    sigset_t before;
    hold_signals(&before);
    bool ok = name_files(&arena, score_path, integrity_name_of(local_iterate), files, &folder, err);
    for (int i = 0; ok && i < SEALED_COUNT; i++)
        ok = check_target(&files[i], err) && write_temporary(&files[i], err);
    remove_temporaries(files);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    arena_free(&arena);
    return ok;
}

/* Where a file will be written: its folder without links. A link of its name would be replaced. */
static const char *place_of(struct arena *a, const char *path)
{
    char *real = realpath(folder_of(a, path), NULL);
    const char *out = real ? path_join(a, real, path_basename(path)) : NULL;
    free(real);
    return out;
}

static bool is_in(const char *place, const char *input)
{
    const size_t n = strlen(input);
    return strncmp(place, input, n) == 0 && (place[n] == '\0' || place[n] == '/');
}

bool seal_keeps(const char *score_path, bool local_iterate, const char *const *inputs, size_t count,
                struct error *err)
{
    struct arena arena = {0};
    struct sealed_file files[SEALED_COUNT] = {0};
    const char *folder;
    bool kept = true;
    const bool named =
        name_files(&arena, score_path, integrity_name_of(local_iterate), files, &folder, err);
    for (size_t i = 0; named && i < count; i++) {
        const char *input = inputs[i] ? real_path(&arena, inputs[i]) : NULL;
        for (int k = 0; input && k < SEALED_COUNT; k++) {
            const char *place = place_of(&arena, files[k].path);
            kept = kept && !(place && is_in(place, input));
        }
    }
    arena_free(&arena);
    if (!named || kept)
        return named;
    error_set(err, "SCORE-PATH-INVALID",
              "the score, its digest or its integrity file would replace an input of the run, or "
              "lie in one");
    return error_at(err, NULL, "--score-path", score_path);
}

bool seal_write(struct score_document *d, const struct seal_inputs *in, struct error *err)
{
    struct arena arena = {0};
    struct sealed_file files[SEALED_COUNT] = {0};
    char sha256[SHA256_HEX];
    const char *folder;
    sigset_t before;
    hold_signals(&before);
    bool ok = name_files(&arena, in->score_path, integrity_name_of(in->local_iterate), files,
                         &folder, err) &&
              score_render(d, &files[SEALED_SCORE].bytes, err);
    if (ok) {
        sha256_hex(files[SEALED_SCORE].bytes.data, files[SEALED_SCORE].bytes.length, sha256);
        buffer_printf(&files[SEALED_SIDECAR].bytes, "%s  %s\n", sha256,
                      path_basename(in->score_path));
        write_integrity(&arena, in, sha256, &files[SEALED_INTEGRITY].bytes);
        ok = commit_files(files, folder, err);
    }
    remove_temporaries(files);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    arena_free(&arena);
    return ok;
}

bool seal_write_bytes(const char *path, const char *integrity_name, const struct buffer *document,
                      const struct buffer *integrity, struct error *err)
{
    struct arena arena = {0};
    struct sealed_file files[SEALED_COUNT] = {0};
    char sha256[SHA256_HEX];
    const char *folder;
    sigset_t before;
    hold_signals(&before);
    bool ok = name_files(&arena, path, integrity_name, files, &folder, err);
    if (ok) {
        sha256_hex(document->data, document->length, sha256);
        buffer_append(&files[SEALED_SCORE].bytes, document->data, document->length);
        buffer_append(&files[SEALED_INTEGRITY].bytes, integrity->data, integrity->length);
        buffer_printf(&files[SEALED_SIDECAR].bytes, "%s  %s\n", sha256, path_basename(path));
        ok = commit_files(files, folder, err);
    }
    remove_temporaries(files);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    arena_free(&arena);
    return ok;
}
