#include "judge/ranked/resident.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "judge/launch.h"
#include "judge/ranked/resident_guard.h"
#include "judge/run.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char socket_variable[] = "BENCH_WORKER_RESIDENT_SOCKET";
static const char cuda_variable[] = "DS4_RESIDENT_SOCKET";
/* The guard's own work beside the scripts: a second's, unless the machine is stuck. */
enum { GUARD_MARGIN_SECONDS = 30 };

struct resident {
    struct arena arena;
    struct child *guard;
    struct launch_log *log;
    const char *script, *folder, *socket;
    const char *variables[4];
    int boot_seconds, stop_seconds;
    bool silent, withhold_text, stopped;
    struct error outcome; /* of the stop; name "" where it went well */
};

static const char *script_name(bool cuda)
{
    return cuda ? RESIDENT_SCRIPT_CUDA : RESIDENT_SCRIPT;
}

bool resident_is_used(const char *reference_workspace, bool cuda)
{
    struct arena a = {0};
    const bool used = file_exists(path_join(&a, reference_workspace, script_name(cuda)));
    arena_free(&a);
    return used;
}

static bool names(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

bool resident_check_environment(char *const *environment, struct error *err)
{
    const char *const both[] = {socket_variable, cuda_variable};
    for (char *const *e = environment; e != NULL && *e != NULL; e++)
        for (size_t i = 0; i < 2; i++)
            if (names(*e, both[i])) {
                error_set(err, "LEG-SERVE-INHERITED-SOCKET",
                          "the environment names a resident already; in a paired run each leg "
                          "boots its own");
                return error_at(err, NULL, both[i], *e + strlen(both[i]) + 1);
            }
    return true;
}

/* ---- boot ---- */

static bool boot_failed(const struct resident *r, struct error *err, const char *field,
                        const char *value, const char *what)
{
    error_set(err, "LEG-SERVE-BOOT-FAILED", "%s", what);
    return error_at(err, r->script, field, value);
}

static bool script_missing(const char *path, const char *what, struct error *err)
{
    error_set(err, "LEG-SERVE-SCRIPT-MISSING", "%s", what);
    return error_at(err, path, NULL, NULL);
}

/* The tree's own file, reached without a link, so that no other tree's is run. */
static bool find_script(struct resident *r, const struct resident_plan *p, char *workspace,
                        struct error *err)
{
    struct stat s;
    char real[PATH_MAX];
    const char *name = script_name(p->cuda);
    if (realpath(p->workspace, workspace) == NULL)
        return script_missing(path_join(&r->arena, p->workspace, name),
                              "the leg's tree is not there", err);
    r->script = path_join(&r->arena, workspace, name);
    if (lstat(r->script, &s) != 0)
        return script_missing(r->script, "the leg's tree has no script that boots its resident",
                              err);
    if (!S_ISREG(s.st_mode) || realpath(r->script, real) == NULL || strcmp(real, r->script) != 0)
        return script_missing(r->script,
                              "the script that boots the resident is no file of the "
                              "tree itself: links are not followed",
                              err);
    if (access(r->script, X_OK) != 0)
        return script_missing(r->script, "the script that boots the resident is not executable",
                              err);
    return true;
}

static bool make_folder(struct resident *r, struct error *err)
{
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] != '/')
        parent = "/tmp";
    char *path = arena_printf(&r->arena, "%s/mlxfast-leg-XXXXXX", parent);
    if (mkdtemp(path) == NULL)
        return error_errno(err, path, "cannot make a folder for the resident's socket file");
    r->folder = path;
    return true;
}

static bool start_guard(struct resident *r, const struct resident_plan *p, const char *workspace,
                        struct error *err)
{
    const char *self = run_own_path(&r->arena);
    if (self == NULL)
        return error_set(err, "IO", "/proc is not there");
    r->boot_seconds = p->boot_seconds > 0 ? p->boot_seconds : RESIDENT_BOOT_SECONDS;
    r->stop_seconds = p->stop_seconds > 0 ? p->stop_seconds : RESIDENT_STOP_SECONDS;
    const char *const argv[] = {self,
                                RESIDENT_GUARD,
                                r->folder,
                                arena_printf(&r->arena, "%d", r->boot_seconds),
                                arena_printf(&r->arena, "%d", r->stop_seconds),
                                r->script,
                                p->spec_mode != NULL ? p->spec_mode : "serial",
                                arena_printf(&r->arena, "%lld", (long long)p->draft_length),
                                NULL};
    r->log = launch_log_new(!p->silent);
    const char *const *environment = launch_environment_arithmetic(
        &r->arena, launch_environment(&r->arena, p->environment, p->yarn_magnitude), p->arithmetic);
    const struct child_options options = {.argv = argv,
                                          .envp = environment,
                                          .working_directory = workspace,
                                          .on_stderr_line = launch_log_line,
                                          .context = r->log,
                                          .end_strays = true};
    return child_start(&options, &r->guard, err);
}

/* The end of a script's own words, if they may be told; all of them are there when its guard, which
 * has nothing to guard, has ended. */
static const char *said(struct resident *r)
{
    static const char prefix[] = "worker stderr tail: ";
    child_end(r->guard, (r->stop_seconds + GUARD_MARGIN_SECONDS) * 1000);
    const char *tail = r->withhold_text ? "" : launch_log_tail(r->log);
    return text_starts(tail, prefix) ? arena_printf(&r->arena, ": %s", tail + sizeof prefix - 1)
                                     : "";
}

static bool wait_for_boot(struct resident *r, struct error *err)
{
    const char *line;
    size_t length;
    const int64_t deadline =
        clock_now_ns() + (int64_t)(r->boot_seconds + GUARD_MARGIN_SECONDS) * 1000000000;
    switch (child_read_line(r->guard, 128, deadline, &line, &length, err)) {
    case CHILD_READ_LINE:
        break;
    case CHILD_READ_ERROR:
        if (interrupt_requested())
            return error_set(err, "Interrupted", "interrupted while a resident was booted");
        return false;
    default:
        return boot_failed(r, err, NULL, NULL, "the guard of the resident ended");
    }
    if (strcmp(line, GUARD_BOOTED) == 0)
        return true;
    const char *status = arena_strdup(&r->arena, line);
    if (strcmp(status, GUARD_TIMEOUT) == 0)
        return boot_failed(r, err, "--boot", NULL,
                           arena_printf(&r->arena,
                                        "the script did not boot a resident within %d seconds%s",
                                        r->boot_seconds, said(r)));
    return boot_failed(r, err, "--boot", status,
                       arena_printf(&r->arena, "the script failed to boot a resident%s", said(r)));
}

bool resident_read_socket_text(const char *file, const char *data, size_t length, struct arena *a,
                               const char **out, struct error *err)
{
    const char *end = length > 0 ? memchr(data, '\n', length) : NULL;
    const size_t n = end != NULL ? (size_t)(end - data) : length;
    const char *why = NULL;
    char *path = arena_strndup(a, data, n); /* ends at a NUL, if there is one */
    if (n == 0)
        why = "the socket file's first line is empty";
    else if (path[0] != '/')
        why = "the socket file names no absolute path";
    else if (n >= sizeof((struct sockaddr_un *)0)->sun_path)
        why = "the socket file names a path of more than 107 bytes, which no socket can have";
    for (size_t i = 0; i < n && why == NULL; i++)
        if ((unsigned char)data[i] < 0x20 || data[i] == 0x7f)
            why = "the socket file's path has control characters";
    if (why == NULL && !utf8_valid(data, n))
        why = "the socket file's path is not UTF-8";
    if (why != NULL) {
        error_set(err, "LEG-SERVE-BOOT-FAILED", "%s", why);
        return error_at(err, file, "--socket-out", path);
    }
    *out = path;
    return true;
}

static bool find_socket(struct resident *r, struct error *err)
{
    static const char field[] = "--socket-out";
    struct buffer text = {0};
    struct error why = {0};
    struct stat s;
    const char *file = path_join(&r->arena, r->folder, GUARD_SOCKET_FILE);
    const bool plain = lstat(file, &s) == 0 && S_ISREG(s.st_mode);
    const bool read = plain && file_read(file, GUARD_SOCKET_FILE_LIMIT, &text, &why) &&
                      resident_read_socket_text(r->script, text.data != NULL ? text.data : "",
                                                text.length, &r->arena, &r->socket, &why);
    buffer_free(&text);
    if (!plain)
        return boot_failed(r, err, field, NULL, "the script wrote no socket file");
    if (!read)
        return boot_failed(r, err, field, why.value, why.message);
    const char *path = r->socket;
    r->socket = NULL; /* until it has been looked at */
    if (lstat(path, &s) != 0)
        return boot_failed(r, err, field, path, "the script named a socket that is not there");
    if (!S_ISSOCK(s.st_mode))
        return boot_failed(r, err, field, path, "the script named something that is no socket");
    if (s.st_uid != geteuid())
        return boot_failed(r, err, field, path, "the script named a socket of another user");
    r->socket = path;
    return true;
}

bool resident_boot(const struct resident_plan *p, struct resident **out, struct error *err)
{
    char workspace[PATH_MAX];
    struct resident *r = memory_alloc(sizeof *r);
    struct error ours = {0}; /* names are looked at, also where the caller does not care */
    r->silent = p->silent;
    r->withhold_text = p->withhold_text;
    *out = NULL;
    if (!resident_check_environment(p->environment, &ours) ||
        !find_script(r, p, workspace, &ours) || !make_folder(r, &ours) ||
        !start_guard(r, p, workspace, &ours) || !wait_for_boot(r, &ours) ||
        !find_socket(r, &ours)) {
        resident_free(r);
        if (err != NULL)
            *err = ours;
        return false;
    }
    r->variables[0] = arena_printf(&r->arena, "%s=%s", socket_variable, r->socket);
    r->variables[1] = "BENCH_WORKER_RESIDENT_HELLO=1";
    if (p->cuda)
        r->variables[2] = arena_printf(&r->arena, "%s=%s", cuda_variable, r->socket);
    *out = r;
    return true;
}

const char *resident_socket(const struct resident *r)
{
    return r->socket;
}

const char *const *resident_variables(const struct resident *r)
{
    return r->variables;
}

char *const *resident_environment(const struct resident *r, struct arena *a,
                                  char *const *environment)
{
    size_t count = 0, n = 0;
    while (environment != NULL && environment[count] != NULL)
        count++;
    char **all = arena_array(a, count + 4, sizeof *all);
    for (size_t i = 0; i < count; i++)
        if (!names(environment[i], socket_variable) && !names(environment[i], cuda_variable))
            all[n++] = environment[i];
    for (size_t i = 0; r->variables[i] != NULL; i++)
        all[n++] = arena_strdup(a, r->variables[i]);
    return all;
}

/* ---- stop ---- */

static bool answers(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    const bool fits = text_copy(address.sun_path, sizeof address.sun_path, path);
    const bool taken =
        fits && (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ||
                 errno == EAGAIN); /* its queue is full: somebody listens */
    close(fd);
    return taken;
}

static void stop_failed(struct resident *r, const char *what)
{
    error_set(&r->outcome, "LEG-SERVE-STOP-FAILED", "%s", what);
    error_at(&r->outcome, r->script, "--stop", r->socket);
}

static void end_guard(struct resident *r)
{
    const char *status = child_end(r->guard, (r->stop_seconds + GUARD_MARGIN_SECONDS) * 1000);
    if (r->socket == NULL)
        return; /* it was never booted: the boot's error says why */
    if (strcmp(status, "exit status 1") == 0)
        stop_failed(r, "the script failed to stop the resident; its processes were killed");
    else if (strcmp(status, "exit status 2") == 0)
        stop_failed(r, arena_printf(&r->arena,
                                    "the script did not stop the resident within %d seconds; its "
                                    "processes were killed",
                                    r->stop_seconds));
    else if (!child_exited_normally(r->guard))
        stop_failed(r, arena_printf(&r->arena, "the guard of the resident ended with %s", status));
    else if (answers(r->socket))
        stop_failed(r, "something that is no process of the script's still answers at the socket");
}

bool resident_stop(struct resident *r, struct error *err)
{
    if (r == NULL)
        return true;
    if (!r->stopped) {
        r->stopped = true;
        if (r->guard != NULL)
            end_guard(r);
        if (r->folder != NULL)
            guard_remove_folder(r->folder); /* the guard did, unless it was killed */
    }
    if (r->outcome.name[0] == '\0')
        return true;
    if (err != NULL)
        *err = r->outcome;
    return false;
}

void resident_free(struct resident *r)
{
    if (r == NULL)
        return;
    resident_stop(r, NULL);
    child_free(r->guard);
    launch_log_free(r->log);
    arena_free(&r->arena);
    free(r);
}

bool resident_check_legs(const struct leg_identity *one, const struct leg_identity *other,
                         struct error *err)
{
    const struct leg_identity *const both[] = {one, other};
    char value[64];
    for (size_t i = 0; i < 2; i++)
        if (!both[i]->has_resident) {
            error_set(err, "LEG-SERVE-IDENTITY-MISSING",
                      "a leg was served by a resident and its hello does not say by which");
            return error_at(err, NULL, "resident", NULL);
        }
    if (one->resident_pid != other->resident_pid ||
        one->resident_load_epoch != other->resident_load_epoch)
        return true;
    snprintf(value, sizeof value, "pid %lld, load_epoch %llu", (long long)one->resident_pid,
             (unsigned long long)one->resident_load_epoch);
    error_set(err, "LEG-SERVE-SHARED-RESIDENT",
              "two legs were served by the same load of one resident process; each must have its "
              "own");
    return error_at(err, NULL, "resident", value);
}
