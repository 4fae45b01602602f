/* The gate between a commit and HEAD. git is asked by its plumbing alone, which runs nothing that
 * the candidate's repository could name: no external diff, no filters, no hooks, no replaced
 * objects, no fetches, no configuration but the repository's own. */
#include "judge/surface/surface.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GIT_OUTPUT_MAX = 256 << 20, GIT_GRACE_MS = 2000 };

struct complaint {
    pthread_mutex_t lock;
    char text[256];
};

static void keep_first(void *context, const char *line, size_t length)
{
    struct complaint *c = context;
    (void)length;
    pthread_mutex_lock(&c->lock);
    if (c->text[0] == '\0')
        text_copy(c->text, sizeof c->text, line);
    pthread_mutex_unlock(&c->lock);
}

static bool git_failed(const char *tree, const char *why, struct error *err)
{
    error_set(err, "WRITE-GATE-GIT-FAILED", "git could not compare the commits: %s", why);
    return error_at(err, tree, NULL, NULL);
}

static const char *find_git(void)
{
    static const char *const places[] = {"/usr/bin/git", "/usr/local/bin/git", "/bin/git"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return NULL;
}

static bool run_git(const char *tree, const char *const *argv, struct buffer *out,
                    struct error *err)
{
    static const char *const environment[] = {
        "PATH=/usr/bin:/bin",      "LC_ALL=C",
        "HOME=/nonexistent",       "GIT_CONFIG_NOSYSTEM=1",
        "GIT_ATTR_NOSYSTEM=1",     "GIT_CONFIG_GLOBAL=/dev/null",
        "GIT_OPTIONAL_LOCKS=0",    "GIT_TERMINAL_PROMPT=0",
        "GIT_ALLOW_PROTOCOL=none", "GIT_NO_REPLACE_OBJECTS=1",
        "GIT_NO_LAZY_FETCH=1",     NULL};
    struct complaint said = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const struct child_options o = {
        .argv = argv, .envp = environment, .on_stderr_line = keep_first, .context = &said};
    struct child *c;
    struct error inner = {0};
    if (!child_start(&o, &c, &inner))
        return git_failed(tree, inner.message, err);
    child_close_input(c);
    const int64_t deadline = clock_now_ns() + SURFACE_GIT_SECONDS * INT64_C(1000000000);
    const bool read = child_read_rest(c, GIT_OUTPUT_MAX, deadline, out, &inner) == CHILD_READ_EOF;
    const char *status = child_end(c, read ? GIT_GRACE_MS : 0);
    const bool ok =
        (read && child_exited_normally(c)) || git_failed(tree,
                                                         !read                  ? inner.message
                                                         : said.text[0] != '\0' ? said.text
                                                                                : status,
                                                         err);
    child_free(c);
    return ok;
}

/* argv of git on the tree's own repository, never one around it; rest: NULL-terminated. */
static bool ask_git(const char *tree, const char *const *rest, struct buffer *out,
                    struct error *err)
{
    struct arena a = {0};
    const char *argv[24] = {find_git()};
    size_t n = 1;
    if (argv[0] == NULL)
        return git_failed(tree, "it is not installed", err);
    const char *repository = path_join(&a, tree, ".git");
    bool ok = file_exists(repository) || git_failed(tree, "the tree is no repository", err);
    argv[n++] = "-c";
    argv[n++] = "safe.directory=*"; /* the judge's user need not own the tree */
    argv[n++] = "-c";
    argv[n++] = "core.fsmonitor=false";
    argv[n++] = arena_printf(&a, "--git-dir=%s", repository);
    while (*rest != NULL && n + 1 < sizeof argv / sizeof *argv)
        argv[n++] = *rest++;
    ok = ok && run_git(tree, argv, out, err);
    arena_free(&a);
    return ok;
}

static bool check_commit_id(const char *tree, const char *commit, struct error *err)
{
    return text_is_lower_hex(commit, 40) ||
           git_failed(tree, "a commit is 40 lower-case hex digits", err);
}

static bool diverges(const char *tree, const char *path, const char *how, struct error *err)
{
    error_set(err, "write-divergence",
              "\"%s\" was %s outside the modifiable surface (editablePaths)", path, how);
    return error_at(err, tree, NULL, NULL);
}

static const char *how_text(const char *status)
{
    return *status == 'A' ? "added" : *status == 'D' ? "deleted" : "changed";
}

/* Records of status and path, each ended by a NUL. */
static bool check_records(const struct surface *s, const char *tree, const struct buffer *text,
                          struct error *err)
{
    for (size_t at = 0; at < text->length;) {
        const char *status = text->data + at;
        at += strlen(status) + 1;
        if (at >= text->length)
            return git_failed(tree, "its list of paths ends early", err);
        const char *path = text->data + at;
        at += strlen(path) + 1;
        if (surface_find(s, path) != NULL || surface_is_left_out(path))
            continue;
        return diverges(tree, path, how_text(status), err);
    }
    return true;
}

/* ---- the working tree ---- */

enum { OBJECT_HEX_MAX = 64, LINK_MAX = 4096 };

/* git's name of a file's content: of "blob <size>", a NUL and the bytes, by the hash that the
 * repository uses (40 digits: SHA-1, 64: SHA-256). */
static bool blob_name(const void *data, size_t length, size_t digits, char out[])
{
    char header[48];
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    const int n = snprintf(header, sizeof header, "blob %zu", length);
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    const bool ok =
        h != NULL && EVP_DigestInit_ex(h, digits == 40 ? EVP_sha1() : EVP_sha256(), NULL) == 1 &&
        EVP_DigestUpdate(h, header, (size_t)n + 1) == 1 && EVP_DigestUpdate(h, data, length) == 1 &&
        EVP_DigestFinal_ex(h, digest, &size) == 1 && 2 * size == digits;
    EVP_MD_CTX_free(h);
    if (ok)
        text_hex(out, digest, size);
    return ok;
}

/* One tracked file or link as HEAD has it. */
struct tracked {
    bool is_link;
    const char *object; /* hex, not terminated */
    size_t digits;
    const char *path;
};

static bool check_tracked(const char *tree, const struct tracked *f, struct error *err)
{
    struct arena a = {0};
    struct stat s;
    struct file_map map = {0};
    char target[LINK_MAX], name[OBJECT_HEX_MAX + 1];
    const char *path = path_join(&a, tree, f->path);
    bool ok = true;
    if (lstat(path, &s) != 0) {
        ok = diverges(tree, f->path, "deleted", err);
    } else if (f->is_link ? !S_ISLNK(s.st_mode) : !S_ISREG(s.st_mode)) {
        ok = diverges(tree, f->path, "changed", err);
    } else if (f->is_link) {
        const ssize_t n = readlink(path, target, sizeof target);
        ok = n >= 0 && blob_name(target, (size_t)n, f->digits, name);
    } else {
        ok = file_map_open(path, &map, err) &&
             blob_name(map.data != NULL ? (const void *)map.data : "", map.length, f->digits, name);
        file_unmap(&map);
    }
    arena_free(&a);
    if (!ok)
        return strcmp(err->name, "write-divergence") == 0 ||
                       strcmp(err->name, "WRITE-GATE-GIT-FAILED") == 0
                   ? false
                   : git_failed(tree, "a tracked file cannot be read", err);
    return memcmp(name, f->object, f->digits) == 0 || diverges(tree, f->path, "changed", err);
}

/* "<mode> <type> <object>\t<path>". Modules have no content here. */
static bool read_tracked(const char *record, struct tracked *f)
{
    const char *tab = strchr(record, '\t'), *space = tab;
    while (space != NULL && space > record && *space != ' ')
        space--;
    if (space == NULL || *space != ' ')
        return false;
    *f = (struct tracked){.is_link = text_starts(record, "120"),
                          .object = space + 1,
                          .digits = (size_t)(tab - space) - 1,
                          .path = tab + 1};
    return f->digits == 40 || f->digits == 64;
}

/* What is built and timed is the working tree, so it must be HEAD outside the surface too. Files
 * that git does not track are what a build leaves. */
static bool check_working_tree(const struct surface *s, const char *tree, struct error *err)
{
    const char *const rest[] = {"ls-tree", "-r", "-z", "--full-tree", "HEAD", NULL};
    struct buffer out = {0};
    bool ok = ask_git(tree, rest, &out, err);
    for (size_t at = 0; ok && at < out.length; at += strlen(out.data + at) + 1) {
        struct tracked f;
        if (!read_tracked(out.data + at, &f))
            ok = git_failed(tree, "its list of a commit's files has another form", err);
        else if (!text_starts(out.data + at, "160") && surface_find(s, f.path) == NULL &&
                 !surface_is_left_out(f.path))
            ok = check_tracked(tree, &f, err);
    }
    buffer_free(&out);
    return ok;
}

bool surface_check_commits(const struct surface *s, const char *tree, const char *commit,
                           struct error *err)
{
    const char *const rest[] = {"diff-tree",    "-r",   "-z",   "--name-status",
                                "--no-renames", commit, "HEAD", NULL};
    struct buffer out = {0};
    const bool ok = check_commit_id(tree, commit, err) && ask_git(tree, rest, &out, err) &&
                    check_records(s, tree, &out, err) && check_working_tree(s, tree, err);
    buffer_free(&out);
    return ok;
}

/* "<mode> blob <object> <size>\t<path>": regular files are charged, links and modules not. */
static bool add_record(const struct surface *s, const char *tree, const char *record,
                       struct surface_size *size, struct error *err)
{
    const char *tab = strchr(record, '\t');
    if (tab == NULL)
        return git_failed(tree, "its list of a commit's files has another form", err);
    const struct surface_entry *entry = surface_find(s, tab + 1);
    if (entry == NULL || !text_starts(record, "100"))
        return true;
    const char *digits = tab;
    while (digits > record && digits[-1] != ' ')
        digits--;
    char number[32];
    uint64_t bytes;
    const size_t n = (size_t)(tab - digits);
    if (n >= sizeof number)
        return git_failed(tree, "its list of a commit's files has another form", err);
    memcpy(number, digits, n);
    number[n] = '\0';
    if (!number_uint64(number, INT64_MAX, &bytes))
        return git_failed(tree, "a file of the commit has no size", err);
    *(entry->exempt ? &size->exempt_bytes : &size->bytes) += bytes;
    size->files++;
    return true;
}

bool surface_measure_commit(const struct surface *s, const char *tree, const char *commit,
                            struct surface_size *out, struct error *err)
{
    const char *const rest[] = {"ls-tree", "-r", "-l", "-z", "--full-tree", commit, NULL};
    struct buffer text = {0};
    *out = (struct surface_size){0};
    bool ok = check_commit_id(tree, commit, err) && ask_git(tree, rest, &text, err);
    for (size_t at = 0; ok && at < text.length; at += strlen(text.data + at) + 1)
        ok = add_record(s, tree, text.data + at, out, err);
    buffer_free(&text);
    return ok;
}
