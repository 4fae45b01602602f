/* The plan: which paths, which rules, whether at all. One table is both bubblewrap's command line
 * and the policy that is hashed, so that the two cannot differ. */
#include "judge/sandbox.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "judge/launch.h"
#include "judge/sandbox_filter.h"

#include <dirent.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- the table ---- */

enum role {
    ROLE_NONE,
    ROLE_PARENT,
    ROLE_JUDGE,
    ROLE_ENGINE,
    ROLE_TREE,
    ROLE_WEIGHTS,
    ROLE_DRAFTER,
    ROLE_RESOURCE,
    ROLE_GPU,
    ROLE_SOCKET,
    ROLE_HIDDEN_FOLDER,
    ROLE_HIDDEN_FILE,
    ROLE_COUNT
};

#define JUDGE_INSIDE "/run/mlxfast/sandbox-exec"
#define TMP_INSIDE "/tmp"
#define TEXT_OF(x) TEXT_OF_IT(x)
#define TEXT_OF_IT(x) #x
#define TMP_BYTES_TEXT "268435456"

enum { ROW_WORDS = 6 };
/* needs, unless: features. Of a row with a role there are as many as the role has paths: "<role>"
 * is the path there, "<role at>" the path as the engine sees it. */
static const struct row {
    unsigned needs, unless;
    enum role role;
    const char *words[ROW_WORDS];
} rows[] = {
    {0, 0, ROLE_NONE, {"--die-with-parent"}},
    /* No --new-session: the kernel schedules a session of its own as a group, which made a round
     * trip half as long again; a terminal is out of reach in any case (docs/sandbox.md). */
    {0, 0, ROLE_NONE, {"--unshare-pid"}},
    {0, 0, ROLE_NONE, {"--unshare-net"}},
    {0, 0, ROLE_NONE, {"--unshare-ipc"}},
    {0, 0, ROLE_NONE, {"--unshare-uts"}},
    {0, 0, ROLE_NONE, {"--unshare-cgroup-try"}},
    {0, SANDBOX_AS_ROOT, ROLE_NONE, {"--unshare-user"}},
    {0, 0, ROLE_NONE, {"--as-pid-1"}},
    {0, 0, ROLE_NONE, {"--hostname", "sandbox"}},
    {0, 0, ROLE_NONE, {"--cap-drop", "ALL"}},
    /* Only to become uid 65534, which takes them away. */
    {SANDBOX_AS_ROOT, 0, ROLE_NONE, {"--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/usr", "/usr"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/bin", "/bin"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/lib", "/lib"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/lib64", "/lib64"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/etc/alternatives", "/etc/alternatives"}},
    {0, 0, ROLE_NONE, {"--proc", "/proc"}},
    {0, 0, ROLE_NONE, {"--perms", "1777", "--size", TMP_BYTES_TEXT, "--tmpfs", TMP_INSIDE}},
    {0, 0, ROLE_PARENT, {"--perms", "0755", "--dir", "<parent of what follows>"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/sys/devices/system/cpu", "/sys/devices/system/cpu"}},
    {0, 0, ROLE_NONE, {"--ro-bind-try", "/sys/devices/system/node", "/sys/devices/system/node"}},
    {SANDBOX_GPU, 0, ROLE_NONE, {"--ro-bind-try", "/sys/bus/pci", "/sys/bus/pci"}},
    {SANDBOX_GPU, 0, ROLE_NONE, {"--ro-bind-try", "/sys/devices", "/sys/devices"}},
    {SANDBOX_GPU, 0, ROLE_NONE, {"--ro-bind-try", "/sys/module/nvidia", "/sys/module/nvidia"}},
    {0, 0, ROLE_NONE, {"--dev-bind", "/dev/null", "/dev/null"}},
    {0, 0, ROLE_NONE, {"--dev-bind", "/dev/urandom", "/dev/urandom"}},
    {0, 0, ROLE_NONE, {"--symlink", "/proc/self/fd", "/dev/fd"}},
    {SANDBOX_GPU, 0, ROLE_GPU, {"--dev-bind", "<gpu>", "<gpu>"}},
    {0, 0, ROLE_JUDGE, {"--ro-bind", "<judge>", JUDGE_INSIDE}},
    {0, 0, ROLE_TREE, {"--ro-bind", "<engine tree>", "<engine tree at>"}},
    {0, 0, ROLE_WEIGHTS, {"--ro-bind", "<weights>", "<weights at>"}},
    {SANDBOX_DRAFTER, 0, ROLE_DRAFTER, {"--ro-bind", "<drafter>", "<drafter at>"}},
    {0, 0, ROLE_RESOURCE, {"--ro-bind", "<resource>", "<resource at>"}},
    {0, 0, ROLE_ENGINE, {"--ro-bind", "<engine>", "<engine at>"}},
    {SANDBOX_RESIDENT, 0, ROLE_SOCKET, {"--ro-bind", "<socket>", "<socket at>"}},
    {0,
     0,
     ROLE_HIDDEN_FOLDER,
     {"--tmpfs", "<hidden folder at>", "--remount-ro", "<hidden folder at>"}},
    {0, 0, ROLE_HIDDEN_FILE, {"--ro-bind", "/dev/null", "<hidden file at>"}},
    {0, 0, ROLE_NONE, {"--remount-ro", "/"}},
    {0, 0, ROLE_NONE, {"--chdir", TMP_INSIDE}},
};
_Static_assert(SANDBOX_TMP_BYTES == 268435456, "TMP_BYTES_TEXT says the same");

/* What of the system is visible, for masks below it. */
static const char *const system_folders[] = {"/usr", "/bin", "/lib", "/lib64", "/etc/alternatives"};

static bool row_applies(const struct row *r, unsigned features)
{
    return (features & r->needs) == r->needs && !(features & r->unless);
}

const char *sandbox_policy_text(struct arena *a, unsigned features)
{
    struct buffer b = {0};
    buffer_text(&b, "mlxfast sandbox policy 1\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!row_applies(&rows[i], features))
            continue;
        buffer_text(&b, rows[i].role > ROLE_DRAFTER || rows[i].role == ROLE_TREE ||
                                rows[i].role == ROLE_PARENT
                            ? "bwrap, each:"
                            : "bwrap:");
        for (size_t w = 0; w < ROW_WORDS && rows[i].words[w] != NULL; w++)
            buffer_printf(&b, " %s", rows[i].words[w]);
        buffer_char(&b, '\n');
    }
    buffer_printf(
        &b,
        "then " SANDBOX_EXEC " as the first process: no_new_privs, killed with its parent, "
        "not dumpable, waits only\n"
        "environment: TMPDIR=" TMP_INSIDE " HOME=" TMP_INSIDE ", no SSH_AUTH_SOCK, no PWD\n"
        "limit DATA: the machine's memory\nlimit STACK: %d\nlimit FSIZE: %d\n"
        "limit NOFILE: %d\nlimit NPROC: %d\nlimit CORE: 0\n",
        SANDBOX_STACK_BYTES, SANDBOX_FILE_BYTES, SANDBOX_NOFILE, SANDBOX_THREADS);
    if (features & SANDBOX_AS_ROOT)
        buffer_printf(&b, "user and group: %d\n", SANDBOX_NOBODY);
    sandbox_filter_describe(features, &b);
    const char *text = arena_strndup(a, b.data, b.length);
    buffer_free(&b);
    return text;
}

/* ---- paths ---- */

struct bound { /* one thing that the engine may see */
    const char *real, *at;
};
struct paths {
    struct bound *items;
    size_t count, room;
};
struct builder {
    struct arena *a;
    const struct sandbox_request *r;
    struct paths paths[ROLE_COUNT];
};

static void path_add(struct builder *b, enum role role, const char *real, const char *at)
{
    struct paths *p = &b->paths[role];
    if (p->count == p->room) {
        const size_t room = p->room > 0 ? 2 * p->room : 8;
        struct bound *items = arena_array(b->a, room, sizeof *items);
        if (p->count > 0)
            memcpy(items, p->items, p->count * sizeof *items);
        p->items = items;
        p->room = room;
    }
    p->items[p->count++] = (struct bound){real, at};
}

/* The folders above a path, outermost first: bubblewrap would make them for its own user alone. */
static void parents_add(struct builder *b, const char *at)
{
    for (const char *slash = strchr(at + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        const char *folder = arena_strndup(b->a, at, (size_t)(slash - at));
        bool known = strcmp(folder, TMP_INSIDE) == 0 || strcmp(folder, "/proc") == 0;
        for (size_t i = 0; !known && i < b->paths[ROLE_PARENT].count; i++)
            known = strcmp(b->paths[ROLE_PARENT].items[i].at, folder) == 0;
        if (!known)
            path_add(b, ROLE_PARENT, folder, folder);
    }
}

static const char *real_path(struct arena *a, const char *path)
{
    char *real = path != NULL ? realpath(path, NULL) : NULL;
    const char *out = real != NULL ? arena_strdup(a, real) : NULL;
    free(real);
    return out;
}

static bool has_dots(const char *path)
{
    for (const char *p = path; p != NULL; p = strchr(p + 1, '/')) {
        const char *part = *p == '/' ? p + 1 : p;
        const size_t n = strcspn(part, "/");
        if ((n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return true;
    }
    return false;
}

/* Where the engine finds it: the same path, absolute; the real one where the text winds. */
static const char *path_inside(struct arena *a, const char *path, const char *real)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    if (has_dots(path))
        return real;
    if (path[0] == '/')
        return arena_strndup(a, path, end);
    char here[PATH_MAX];
    if (getcwd(here, sizeof here) == NULL)
        return real;
    return path_join(a, here, arena_strndup(a, path, end));
}

/* The part of path below folder ("" when they are the same), NULL when it is elsewhere. */
static const char *below(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    if (strcmp(folder, "/") == 0)
        return path;
    if (strncmp(path, folder, n) != 0 || (path[n] != '\0' && path[n] != '/'))
        return NULL;
    return path + n;
}

static bool conflict(struct error *err, const char *path, const char *what)
{
    error_set(err, "SANDBOX-CONFLICT", "%s", what);
    return error_at(err, path, NULL, NULL);
}

/* Hides one path wherever it lies below something that is shown. */
static bool hide(struct builder *b, const char *path, struct error *err)
{
    const char *real = real_path(b->a, path);
    if (real == NULL)
        return true;
    const enum role mask = file_is_directory(real) ? ROLE_HIDDEN_FOLDER : ROLE_HIDDEN_FILE;
    static const enum role shown[] = {ROLE_ENGINE, ROLE_TREE, ROLE_WEIGHTS, ROLE_DRAFTER,
                                      ROLE_RESOURCE};
    for (size_t s = 0; s < sizeof shown / sizeof *shown; s++)
        for (size_t i = 0; i < b->paths[shown[s]].count; i++) {
            const struct bound *v = &b->paths[shown[s]].items[i];
            const char *rest = below(real, v->real);
            if (rest == NULL)
                continue;
            if (*rest == '\0')
                return conflict(err, path, "the engine needs what the sandbox must hide from it");
            if (*rest != '\0')
                path_add(b, mask, real, arena_printf(b->a, "%s%s", v->at, rest));
        }
    for (size_t s = 0; s < sizeof system_folders / sizeof *system_folders; s++) {
        const char *folder = real_path(b->a, system_folders[s]);
        const char *rest = folder != NULL ? below(real, folder) : NULL;
        if (rest != NULL && *rest != '\0')
            path_add(b, mask, real, arena_printf(b->a, "%s%s", system_folders[s], rest));
    }
    return true;
}

static const char *variable(const struct sandbox_request *r, const char *name)
{
    const size_t n = strlen(name);
    for (char *const *e = r->environment; e != NULL && *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

static bool is_on(const char *value)
{
    return value != NULL && *value != '\0' && strcmp(value, "0") != 0;
}

static bool show(struct builder *b, enum role role, const char *path, const char **at)
{
    const char *real = real_path(b->a, path);
    if (real == NULL)
        return false;
    const char *inside = path_inside(b->a, path, real);
    path_add(b, role, real, inside);
    parents_add(b, inside);
    if (at != NULL)
        *at = inside;
    return true;
}

static bool show_socket(struct builder *b, struct error *err)
{
    const char *path = variable(b->r, "BENCH_WORKER_RESIDENT_SOCKET");
    struct stat s;
    const char *why = NULL;
    if (path == NULL)
        return true;
    if (*path != '/')
        why = "a resident socket's path is absolute";
    for (const char *p = path; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            why = "a resident socket's path has no control characters";
    if (why == NULL && strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        why = "a resident socket's path is at most 107 bytes long";
    if (why == NULL && (stat(path, &s) != 0 || !S_ISSOCK(s.st_mode)))
        why = "there is no socket of that name";
    if (why != NULL) {
        error_set(err, "InvalidResidentSocket", "%s", why);
        return error_at(err, NULL, "BENCH_WORKER_RESIDENT_SOCKET", path);
    }
    show(b, ROLE_SOCKET, path, NULL);
    return true;
}

static void show_gpu(struct builder *b)
{
    glob_t g = {0};
    if (glob("/dev/nvidia*", 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc; i++) {
            const char *path = arena_strdup(b->a, g.gl_pathv[i]);
            path_add(b, ROLE_GPU, path, path);
        }
    globfree(&g);
}

/* Resources that name nothing on this machine are passed on as they stand. */
static const char *const *show_resources(struct builder *b)
{
    size_t count = 0;
    while (b->r->resources != NULL && b->r->resources[count] != NULL)
        count++;
    const char **out = arena_array(b->a, count + 1, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        const char *text = b->r->resources[i], *at;
        const char *equals = strchr(text, '=');
        out[i] = text;
        if (equals != NULL && show(b, ROLE_RESOURCE, equals + 1, &at))
            out[i] = arena_printf(b->a, "%.*s=%s", (int)(equals - text), text, at);
    }
    return out;
}

/* Straight from the file: a static program has no name services. NULL: not there. */
static const char *account_home(struct arena *a)
{
    const char *home = NULL;
    FILE *f = fopen("/etc/passwd", "re");
    if (f == NULL)
        return NULL;
    for (const struct passwd *user; home == NULL && (user = fgetpwent(f)) != NULL;)
        if (user->pw_uid == getuid())
            home = arena_strdup(a, user->pw_dir);
    fclose(f);
    return home;
}

static bool hide_all(struct builder *b, struct error *err)
{
    const char *private_folder = variable(b->r, "MLXFAST_PRIVATE_DIR");
    const char *golden = variable(b->r, "BENCH_GOLDEN_PATH");
    const char *home = variable(b->r, "HOME");
    const char *account = account_home(b->a);
    for (const char *const *h = b->r->hidden; h != NULL && *h != NULL; h++)
        if (!hide(b, *h, err))
            return false;
    if (private_folder != NULL && !hide(b, private_folder, err))
        return false;
    if (golden != NULL && !hide(b, golden, err))
        return false;
    if (home != NULL && file_is_directory(home) && !hide(b, home, err))
        return false;
    return account == NULL || !file_is_directory(account) || hide(b, account, err);
}

/* As root the engine becomes another user; better to say so now than to let it fail at a file. */
static bool readable_by_all(const char *path, struct error *err)
{
    struct stat s;
    const bool folder = file_is_directory(path);
    if (stat(path, &s) == 0 && (s.st_mode & S_IROTH) && (!folder || (s.st_mode & S_IXOTH)))
        return true;
    return conflict(err, path,
                    "the sandbox's engine runs as uid 65534 when the judge is root, and that user "
                    "may not read this (chmod -R a+rX mends it)");
}

static bool files_readable(struct builder *b, const char *folder, struct error *err)
{
    char **names;
    size_t count;
    if (!file_is_directory(folder) ||
        !file_list_recursive(b->a, folder, &names, &count,
                             NULL)) /* the digest says what is wrong */
        return true;
    for (size_t i = 0; i < count; i++)
        if (!readable_by_all(path_join(b->a, folder, names[i]), err))
            return false;
    return true;
}

static bool check_readable(struct builder *b, struct error *err)
{
    static const enum role read[] = {ROLE_ENGINE, ROLE_TREE, ROLE_RESOURCE, ROLE_WEIGHTS,
                                     ROLE_DRAFTER};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        for (size_t j = 0; j < b->paths[read[i]].count; j++)
            if (!readable_by_all(b->paths[read[i]].items[j].real, err))
                return false;
    return files_readable(b, b->paths[ROLE_WEIGHTS].items[0].real, err) &&
           (b->paths[ROLE_DRAFTER].count == 0 ||
            files_readable(b, b->paths[ROLE_DRAFTER].items[0].real, err));
}

/* ---- the command line ---- */

static const char *fill(const char *word, const struct bound *v)
{
    if (*word != '<')
        return word;
    return strcmp(word + strlen(word) - 4, " at>") == 0 ? v->at : v->real;
}

static size_t append_row(const struct row *r, const struct bound *v, const char **argv, size_t n)
{
    for (size_t w = 0; w < ROW_WORDS && r->words[w] != NULL; w++)
        argv[n++] = fill(r->words[w], v);
    return n;
}

static const char *const *build_prefix(struct builder *b, const char *bwrap,
                                       const struct sandbox_plan *p)
{
    size_t room = 8;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        room += ROW_WORDS * (1 + b->paths[rows[i].role].count);
    const char **argv = arena_array(b->a, room, sizeof *argv);
    size_t n = 0;
    argv[n++] = bwrap;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!row_applies(&rows[i], p->features))
            continue;
        if (rows[i].role == ROLE_NONE)
            n = append_row(&rows[i], NULL, argv, n);
        for (size_t j = 0; rows[i].role != ROLE_NONE && j < b->paths[rows[i].role].count; j++)
            n = append_row(&rows[i], &b->paths[rows[i].role].items[j], argv, n);
    }
    argv[n++] = "--";
    argv[n++] = JUDGE_INSIDE;
    argv[n++] = SANDBOX_EXEC;
    argv[n++] = arena_printf(b->a, "%u", p->features);
    argv[n++] = arena_printf(b->a, "%" PRIu64, p->data_bytes);
    return argv;
}

const char *const *sandbox_argv(struct arena *a, const struct sandbox_plan *p,
                                const char *const *engine_argv)
{
    size_t n = 0, m = 0;
    if (!p->active)
        return engine_argv;
    while (p->prefix[n] != NULL)
        n++;
    while (engine_argv[m] != NULL)
        m++;
    const char **argv = arena_array(a, n + m + 1, sizeof *argv);
    memcpy(argv, p->prefix, n * sizeof *argv);
    memcpy(argv + n, engine_argv, m * sizeof *argv);
    return argv;
}

const char *const *sandbox_environment(struct arena *a, const struct sandbox_plan *p,
                                       const char *const *environment)
{
    size_t count = 0, n = 0;
    if (!p->active)
        return environment;
    while (environment[count] != NULL)
        count++;
    const char **out = arena_array(a, count + 3, sizeof *out);
    for (size_t i = 0; i < count; i++)
        if (!text_starts(environment[i], "TMPDIR=") && !text_starts(environment[i], "HOME=") &&
            !text_starts(environment[i], "SSH_AUTH_SOCK="))
            out[n++] = environment[i];
    out[n++] = "TMPDIR=" TMP_INSIDE;
    out[n++] = "HOME=" TMP_INSIDE;
    return out;
}

/* ---- whether it works here ---- */

struct first_line {
    pthread_mutex_t lock;
    char text[256];
};

static void keep_first_line(void *context, const char *line, size_t length)
{
    struct first_line *f = context;
    pthread_mutex_lock(&f->lock);
    if (f->text[0] == '\0')
        snprintf(f->text, sizeof f->text, "%.*s", (int)(length < 200 ? length : 200), line);
    pthread_mutex_unlock(&f->lock);
}

/* Their shadow memory passes every limit, and their check for leaks makes processes. */
#if defined(__SANITIZE_ADDRESS__)
enum { WITH_SANITIZERS = true };
#else
enum { WITH_SANITIZERS = false };
#endif

/* Builds the very sandbox of the plan and ends it at once. NULL: it works. */
static const char *try_it(struct arena *a, const struct sandbox_plan *p)
{
    if (WITH_SANITIZERS)
        return "a judge built with sanitizers cannot enter it";
    static const char *const nothing[] = {"--check", NULL};
    static const char *const environment[] = {NULL};
    struct first_line said = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct child *c;
    struct error err = {0};
    const struct child_options o = {.argv = sandbox_argv(a, p, nothing),
                                    .envp = environment,
                                    .on_stderr_line = keep_first_line,
                                    .context = &said};
    if (!child_start(&o, &c, &err))
        return arena_strdup(a, err.message);
    const char *line;
    size_t length;
    while (child_read_line(c, 4096, clock_now_ns() + INT64_C(10000000000), &line, &length, NULL) ==
           CHILD_READ_LINE)
        continue;
    const char *status = arena_strdup(a, child_end(c, 2000));
    const bool ok = child_exited_normally(c);
    child_free(c);
    if (ok)
        return NULL;
    return said.text[0] != '\0' ? arena_strdup(a, said.text) : status;
}

static const char *find_bwrap(const struct sandbox_request *r)
{
    static const char *const places[] = {"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"};
    if (r->bwrap != NULL)
        return access(r->bwrap, X_OK) == 0 ? r->bwrap : NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return NULL;
}

/* An organiser may pin the policy: the file then holds the text that probe-sandbox prints. */
static bool check_pinned_profile(const struct sandbox_request *r, const struct sandbox_plan *p,
                                 struct error *err)
{
    static const char name[] = "MLXFAST_RUNTIME_WORKER_SANDBOX_PROFILE";
    const char *path = variable(r, name);
    struct buffer text = {0};
    if (path == NULL)
        return true;
    if (!file_read(path, 1 << 20, &text, NULL)) {
        error_set(err, "NoProfile", "the pinned sandbox policy cannot be read");
        return error_at(err, path, name, NULL);
    }
    const bool same =
        text.length == strlen(p->policy) && memcmp(text.data, p->policy, text.length) == 0;
    buffer_free(&text);
    if (same)
        return true;
    error_set(err, "NoProfile", "the pinned sandbox policy is not the one in force (sha256:%s)",
              p->policy_sha256);
    return error_at(err, path, name, NULL);
}

static bool official_switches(const struct sandbox_request *r, struct error *err)
{
    const char *worker = variable(r, "MLXFAST_USE_RUNTIME_WORKER");
    const char *off = variable(r, "MLXFAST_NO_SANDBOX");
    if (worker != NULL && !is_on(worker)) {
        error_set(err, "WorkerDisabled", "an official run judges a worker process");
        return error_at(err, NULL, "MLXFAST_USE_RUNTIME_WORKER", worker);
    }
    if (r->switched_off || is_on(off)) {
        error_set(err, "SandboxDisabled", "an official run is never unsandboxed");
        return error_at(err, NULL, r->switched_off ? "--no-sandbox" : "MLXFAST_NO_SANDBOX",
                        r->switched_off ? NULL : off);
    }
    return true;
}

static bool collect(struct builder *b, struct sandbox_plan *p, const char *engine,
                    struct error *err)
{
    const char *self = real_path(b->a, "/proc/self/exe");
    if (self == NULL)
        return error_set(err, "SANDBOX-UNAVAILABLE", "/proc is not there");
    path_add(b, ROLE_JUDGE, self, JUDGE_INSIDE);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].role == ROLE_NONE && rows[i].words[1] != NULL && rows[i].words[2] != NULL &&
            rows[i].words[2][0] == '/')
            parents_add(b, rows[i].words[2]);
    parents_add(b, JUDGE_INSIDE);
    if (access(engine, X_OK) != 0 || file_is_directory(engine) ||
        !show(b, ROLE_ENGINE, engine, &p->engine)) {
        error_set(err, "NoExecutable", "the engine is no executable file");
        return error_at(err, engine, NULL, NULL);
    }
    if (!show(b, ROLE_WEIGHTS, b->r->weights, &p->weights)) {
        error_set(err, "WEIGHTS-MISSING", "the weights folder is not there");
        return error_at(err, b->r->weights, NULL, NULL);
    }
    if (b->r->drafter != NULL && !show(b, ROLE_DRAFTER, b->r->drafter, &p->drafter)) {
        error_set(err, "DRAFTER-MISSING", "the drafter's folder is not there");
        return error_at(err, b->r->drafter, NULL, NULL);
    }
    for (const char *const *t = b->r->engine_trees; t != NULL && *t != NULL; t++)
        if (!show(b, ROLE_TREE, *t, NULL))
            return conflict(err, *t, "the engine's folder is not there");
    p->resources = show_resources(b);
    if (!show_socket(b, err))
        return false;
    if (b->paths[ROLE_SOCKET].count > 0)
        p->features |= SANDBOX_RESIDENT;
    if (p->features & SANDBOX_GPU)
        show_gpu(b);
    return hide_all(b, err);
}

static void set_policy(struct arena *a, struct sandbox_plan *p)
{
    p->policy = sandbox_policy_text(a, p->features);
    sha256_hex(p->policy, strlen(p->policy), p->policy_sha256);
}

bool sandbox_plan(struct arena *a, const struct sandbox_request *r, struct sandbox_plan *out,
                  struct error *err)
{
    const bool official = r->mode == SANDBOX_OFFICIAL;
    struct builder b = {.a = a, .r = r};
    *out = (struct sandbox_plan){.features = r->features & (SANDBOX_GPU | SANDBOX_RING),
                                 .engine = r->engine,
                                 .weights = r->weights,
                                 .drafter = r->drafter,
                                 .resources = r->resources,
                                 .seal = "none (switched off)"};
    if (geteuid() == 0)
        out->features |= SANDBOX_AS_ROOT;
    if (r->drafter != NULL)
        out->features |= SANDBOX_DRAFTER;
    set_policy(a, out);
    if (official && !official_switches(r, err))
        return false;
    const char *engine = r->engine;
    const char *instead = variable(r, "MLXFAST_RUNTIME_WORKER_EXECUTABLE");
    if (official && !r->reference_leg && instead != NULL)
        engine = instead;
    if (engine == NULL)
        return error_set(err, "NoExecutable", "no engine is given");
    if (r->switched_off || is_on(variable(r, "MLXFAST_NO_SANDBOX")))
        return true;
    const char *bwrap = find_bwrap(r);
    if (bwrap == NULL && official)
        return error_set(err, "SandboxExecNotFound",
                         "bubblewrap (bwrap) is not installed; an official run needs it");
    struct sandbox_plan p = *out;
    if (!collect(&b, &p, engine, err))
        return false;
    set_policy(a, &p);
    if (official && !check_pinned_profile(r, &p, err))
        return false;
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    p.data_bytes = (uint64_t)pages * (uint64_t)page;
    p.reason = bwrap == NULL ? "bubblewrap (bwrap) is not installed" : NULL;
    if (bwrap != NULL) {
        p.prefix = build_prefix(&b, bwrap, &p);
        p.active = true; /* for sandbox_argv */
        p.reason = try_it(a, &p);
    }
    if (p.reason != NULL) {
        if (official)
            return error_set(err, "SANDBOX-UNAVAILABLE", "no sandbox can be built here: %s",
                             p.reason);
        out->reason = p.reason;
        out->seal = "none (unavailable)";
        return true;
    }
    struct error unreadable = {0};
    if ((p.features & SANDBOX_AS_ROOT) && !check_readable(&b, &unreadable)) {
        if (official) {
            *err = unreadable;
            return false;
        }
        /* A checkout made under umask 077 by root: a local run goes on, and says so. */
        out->reason = arena_printf(a, "%s: %s", unreadable.file, unreadable.message);
        out->seal = "none (unavailable)";
        return true;
    }
    p.seal = arena_printf(a, "bubblewrap+seccomp sha256:%s", p.policy_sha256);
    *out = p;
    return true;
}

/* ---- the engine's process ---- */

static pid_t only_child(pid_t parent)
{
    pid_t found = 0;
    DIR *d = opendir("/proc");
    if (d == NULL)
        return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[300], text[512];
        int of;
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (f == NULL)
            continue;
        const size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[n] = '\0';
        const char *end = strrchr(text, ')'); /* the name before it may hold anything */
        char state;
        if (end != NULL && sscanf(end + 1, " %c %d", &state, &of) == 2 && of == (int)parent)
            found = (pid_t)strtol(e->d_name, NULL, 10);
    }
    closedir(d);
    return found;
}

pid_t sandbox_engine_pid(pid_t outer)
{
    const pid_t first = only_child(outer);
    return first > 0 ? only_child(first) : 0;
}
