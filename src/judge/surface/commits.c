/* The gate between a commit and HEAD. git is asked by its plumbing alone, which runs nothing that
 * the candidate's repository could name: no external diff, no filters, no hooks, no replaced
 * objects, no fetches, no configuration but the repository's own. */
#include "judge/surface/surface.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"

#include <pthread.h>
#include <string.h>
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
        error_set(err, "write-divergence",
                  "\"%s\" was %s outside the modifiable surface (editablePaths)", path,
                  how_text(status));
        return error_at(err, tree, NULL, NULL);
    }
    return true;
}

bool surface_check_commits(const struct surface *s, const char *tree, const char *commit,
                           struct error *err)
{
    const char *const rest[] = {"diff-tree",    "-r",   "-z",   "--name-status",
                                "--no-renames", commit, "HEAD", NULL};
    struct buffer out = {0};
    const bool ok = check_commit_id(tree, commit, err) && ask_git(tree, rest, &out, err) &&
                    check_records(s, tree, &out, err);
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
