#include "arena/fetch/lock.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCK_BYTES_MOST = 4 << 20 };

/* The lock's text as the folder is now; verified_at: its line's value. */
static bool render(struct buffer *out, const char *verified_at, const char *folder,
                   const struct fetch_manifest *m, const char *repo, const char *revision,
                   struct error *err)
{
    struct arena a = {0};
    buffer_printf(out,
                  "version=1\nmodel_repo=%s\nrevision=%s\nmanifest_sha256=%s\nfile_count=%zu\n"
                  "byte_count=%" PRIu64 "\nverified_at=%s\n--files--\n",
                  repo, revision, m->sha256, m->count, m->bytes, verified_at);
    bool ok = true;
    for (size_t i = 0; ok && i < m->count; i++) {
        struct stat st;
        const char *path = path_join(&a, folder, m->files[i].path);
        if (stat(path, &st) != 0)
            ok = error_errno(err, path, "cannot read its size");
        else
            buffer_printf(out, "%s\t%" PRIu64 "\t%" PRId64 "\n", m->files[i].path,
                          (uint64_t)st.st_size, (int64_t)st.st_mtime);
        if (ok && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != m->files[i].bytes)) {
            error_set(err, "FILE-CHANGED", "expected a file of %" PRIu64 " bytes, found %" PRIu64,
                      m->files[i].bytes, (uint64_t)st.st_size);
            ok = error_at(err, path, NULL, NULL);
        }
    }
    arena_free(&a);
    return ok;
}

/* The value of verified_at, or NULL. */
static char *find_time(const char *text, char out[32])
{
    static const char key[] = "\nverified_at=";
    const char *at = strstr(text, key);
    const size_t n = at ? strcspn(at + sizeof key - 1, "\n") : 0;
    if (n == 0 || n >= 32)
        return NULL;
    memcpy(out, at + sizeof key - 1, n);
    out[n] = '\0';
    return out;
}

bool fetch_lock_holds(const char *path, const char *folder, const struct fetch_manifest *m,
                      const char *repo, const char *revision, struct error *why)
{
    struct buffer text = {0}, now = {0};
    char time[32];
    bool ok = file_read(path, LOCK_BYTES_MOST, &text, why);
    if (ok && (!text.data || strlen(text.data) != text.length || !find_time(text.data, time))) {
        error_set(why, "LOCK-DIFFERS", "not a lock of this form");
        ok = error_at(why, path, NULL, NULL);
    }
    ok = ok && render(&now, time, folder, m, repo, revision, why);
    if (ok && (text.length != now.length || memcmp(text.data, now.data, now.length) != 0)) {
        const char *a = text.data, *b = now.data;
        while (strcspn(a, "\n") == strcspn(b, "\n") && strncmp(a, b, strcspn(a, "\n")) == 0 &&
               a[strcspn(a, "\n")] && b[strcspn(b, "\n")]) {
            a += strcspn(a, "\n") + 1;
            b += strcspn(b, "\n") + 1;
        }
        error_set(why, "LOCK-DIFFERS", "it says \"%.*s\", now is \"%.*s\"", (int)strcspn(a, "\n"),
                  a, (int)strcspn(b, "\n"), b);
        ok = error_at(why, path, NULL, NULL);
    }
    buffer_free(&text);
    buffer_free(&now);
    return ok;
}

bool fetch_lock_write(const char *path, const char *folder, const struct fetch_manifest *m,
                      const char *repo, const char *revision, struct error *err)
{
    struct buffer text = {0};
    char time[32];
    const bool ok =
        render(&text, clock_utc_text(time, sizeof time), folder, m, repo, revision, err) &&
        file_write_atomic(path, text.data, text.length, err);
    buffer_free(&text);
    return ok;
}

bool fetch_lock_forget(struct arena *a, const char *path, struct error *err)
{
    struct stat st;
    struct buffer text = {0};
    if (lstat(path, &st) == 0) {
        const bool ours = file_read(path, LOCK_BYTES_MOST, &text, NULL) &&
                          (text.length == 0 || text_starts(text.data, "version="));
        buffer_free(&text);
        if (!ours) {
            error_set(err, "LOCK-IN-THE-WAY",
                      "expected a lock of this program or nothing; it is left alone");
            return error_at(err, path, NULL, NULL);
        }
    }
    const char *name = path_basename(path);
    const char *folder = name == path ? "." : arena_strndup(a, path, (size_t)(name - path));
    const char *temporary = arena_printf(a, "%s.tmp.", name);
    DIR *d = opendir(folder);
    unlink(path);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (text_starts(e->d_name, temporary))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return true;
}
