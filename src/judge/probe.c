/* The probe's outer half: a scene with everything that there is to steal, one run of the role in
 * the sandbox, and the table. */
#include "judge/probe.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/terminal.h"
#include "judge/launch.h"
#include "judge/sandbox.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, PROBE_SECONDS = 60 };

extern char **environ;

/* ---- the scene ---- */

struct scene {
    struct arena arena;
    char folder[64];
    const char *places[PROBE_PLACES + 1];
    const char *tree;
    int listeners[3];
};

static bool put(const char *path, const void *data, size_t length, struct error *err)
{
    return file_write_atomic(path, data, length, err) &&
           (chmod(path, 0644) == 0 || error_errno(err, path, "chmod"));
}

static bool put_folder(const char *path, struct error *err)
{
    return (mkdir(path, 0755) == 0 && chmod(path, 0755) == 0) ||
           error_errno(err, path, "create folder");
}

static bool listen_tcp(struct scene *s, struct error *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    const int fd = s->listeners[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &length) != 0)
        return error_errno(err, NULL, "listen on 127.0.0.1");
    s->places[PROBE_PORT] = arena_printf(&s->arena, "%u", ntohs(a.sin_port));
    /* The same port on ::1, where this machine has one; without, that row cannot tell. */
    struct sockaddr_in6 b = {
        .sin6_family = AF_INET6, .sin6_port = a.sin_port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (six >= 0 && bind(six, (struct sockaddr *)&b, sizeof b) == 0)
        (void)listen(six, 16);
    s->listeners[1] = six;
    return true;
}

static bool listen_unix(struct scene *s, const char *path, bool abstract, struct error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    if (n + 1 >= sizeof a.sun_path)
        return error_set(err, "IO", "the folder for temporary files has too long a name");
    memcpy(a.sun_path + abstract, path, n);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!abstract)
        s->listeners[2] = fd;
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + abstract + n);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, length) != 0 || listen(fd, 16) != 0)
        return error_errno(err, path, "listen on");
    return abstract || chmod(path, 0777) == 0 || error_errno(err, path, "chmod");
}

static bool set_scene(struct scene *s, struct error *err)
{
    static const char secret[] = "{\"secret\": 1}\n";
    struct arena *a = &s->arena;
    unsigned char *weights = arena_alloc(a, PROBE_WEIGHTS_BYTES);
    char self[PATH_MAX];
    const char *home = getenv("HOME");
    const char *temporary = getenv("TMPDIR");
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    if (n <= 0 || (size_t)n >= sizeof self)
        return error_errno(err, NULL, "find this program");
    if (temporary == NULL || strlen(temporary) > 20)
        temporary = "/tmp";
    snprintf(s->folder, sizeof s->folder, "%s/mlxfast-probe-XXXXXX", temporary);
    if (mkdtemp(s->folder) == NULL) {
        error_errno(err, s->folder, "create folder");
        s->folder[0] = '\0';
        return false;
    }
    chmod(s->folder, 0755);
    for (size_t i = 0; i < PROBE_WEIGHTS_BYTES; i++)
        weights[i] = (unsigned char)(i * 7 + 1);
    const char *private_folder = path_join(a, s->folder, "private");
    s->tree = path_join(a, s->folder, "tree");
    s->places[PROBE_WEIGHTS] = path_join(a, s->folder, "weights");
    s->places[PROBE_GOLDEN] = path_join(a, s->folder, "public.golden.json");
    s->places[PROBE_MASKED] = path_join(a, s->tree, "other.golden.json");
    s->places[PROBE_CONTRACT] = path_join(a, s->folder, "contract.json");
    s->places[PROBE_PRIVATE] = path_join(a, private_folder, "hidden.golden.json");
    s->places[PROBE_HOME] =
        home != NULL && file_is_directory(home) ? arena_strdup(a, home) : "/root";
    s->places[PROBE_FOLDER] = s->folder;
    s->places[PROBE_ENGINE] = arena_strndup(a, self, (size_t)n);
    s->places[PROBE_SOCKET] = path_join(a, s->folder, "socket");
    s->places[PROBE_JUDGE_PID] = arena_printf(a, "%ld", (long)getpid());
    /* What must not get through is really there. */
    setenv("MLXFAST_PRIVATE_DIR", private_folder, 1);
    setenv("BENCH_GOLDEN_PATH", s->places[PROBE_GOLDEN], 1);
    setenv("LD_PRELOAD", "/nowhere/mlxfast-probe.so", 1);
    setenv("SSH_AUTH_SOCK", s->places[PROBE_SOCKET], 1);
    setenv(PROBE_PASSED_VARIABLE, "1", 1);
    return put_folder(s->places[PROBE_WEIGHTS], err) && put_folder(private_folder, err) &&
           put_folder(s->tree, err) &&
           put(path_join(a, s->places[PROBE_WEIGHTS], PROBE_WEIGHTS_FILE), weights,
               PROBE_WEIGHTS_BYTES, err) &&
           put(s->places[PROBE_GOLDEN], secret, sizeof secret - 1, err) &&
           put(s->places[PROBE_MASKED], secret, sizeof secret - 1, err) &&
           put(s->places[PROBE_CONTRACT], secret, sizeof secret - 1, err) &&
           put(s->places[PROBE_PRIVATE], secret, sizeof secret - 1, err) && listen_tcp(s, err) &&
           listen_unix(s, s->places[PROBE_SOCKET], false, err) &&
           listen_unix(s, s->places[PROBE_SOCKET], true, err);
}

static void clear_scene(struct scene *s)
{
    char **names;
    size_t count;
    for (size_t i = 0; i < sizeof s->listeners / sizeof *s->listeners; i++)
        if (s->listeners[i] >= 0)
            close(s->listeners[i]);
    if (s->folder[0] != '\0') {
        unlink(path_join(&s->arena, s->folder, "socket"));
        if (file_list_recursive(&s->arena, s->folder, &names, &count, NULL))
            for (size_t i = 0; i < count; i++)
                unlink(path_join(&s->arena, s->folder, names[i]));
        rmdir(path_join(&s->arena, s->folder, "weights"));
        rmdir(path_join(&s->arena, s->folder, "private"));
        rmdir(path_join(&s->arena, s->folder, "tree"));
        rmdir(s->folder);
    }
    arena_free(&s->arena);
}

/* ---- the run ---- */

static void read_rows(struct child *c, struct probe_result *out)
{
    const int64_t deadline = clock_now_ns() + PROBE_SECONDS * INT64_C(1000000000);
    const char *line;
    size_t length, number;
    while (child_read_line(c, 4096, deadline, &line, &length, NULL) == CHILD_READ_LINE) {
        char word[16], detail[PROBE_DETAIL];
        if (sscanf(line, "%zu %15s %47[^\n]", &number, word, detail) != 3 || number >= out->count)
            continue;
        out->seen[number].ran = true;
        out->seen[number].done = strcmp(word, "done") == 0;
        text_copy(out->seen[number].detail, sizeof out->seen[number].detail, detail);
    }
}

/* Files that the role could leave are done only when they can be seen from outside. */
static void look_for_left_files(struct scene *s, struct probe_result *out)
{
    const struct {
        const char *name, *folder;
    } left[] = {{PROBE_LEFT_TRY, s->folder}, {PROBE_LEFT_HOME_TRY, s->places[PROBE_HOME]}};
    const struct probe_try *tries = probe_tries(&out->count);
    for (size_t k = 0; k < sizeof left / sizeof *left; k++) {
        const bool there = unlink(path_join(&s->arena, left[k].folder, PROBE_LEFT_FILE)) == 0;
        for (size_t i = 0; i < out->count; i++)
            if (strcmp(tries[i].name, left[k].name) == 0 && out->seen[i].done && !there) {
                out->seen[i].done = false;
                text_copy(out->seen[i].detail, sizeof out->seen[i].detail, "only inside");
            }
    }
}

bool probe_expected(const struct probe_try *t, unsigned features)
{
    return t->allowed || (t->lifted & features) != 0;
}

bool probe_as_expected(const struct probe_result *r, size_t i)
{
    size_t count;
    const struct probe_try *t = &probe_tries(&count)[i];
    return r->seen[i].ran && r->seen[i].done == probe_expected(t, r->features);
}

static bool run_role(struct scene *s, bool gpu, bool unprotected, struct probe_result *out,
                     struct error *err)
{
    struct arena *a = &s->arena;
    const char *const hidden[] = {s->places[PROBE_GOLDEN], s->places[PROBE_MASKED],
                                  s->places[PROBE_CONTRACT], NULL};
    const char *const trees[] = {s->tree, NULL};
    const struct sandbox_request request = {.mode = SANDBOX_LOCAL,
                                            .switched_off = unprotected,
                                            .engine = s->places[PROBE_ENGINE],
                                            .weights = s->places[PROBE_WEIGHTS],
                                            .engine_trees = trees,
                                            .hidden = hidden,
                                            .features = gpu ? SANDBOX_GPU : 0,
                                            .environment = environ};
    struct sandbox_plan plan;
    if (!sandbox_plan(a, &request, &plan, err))
        return false;
    if (!plan.active && !unprotected)
        return error_set(err, "SANDBOX-UNAVAILABLE", "no sandbox can be built here: %s",
                         plan.reason != NULL ? plan.reason : "MLXFAST_NO_SANDBOX is set");
    out->features = plan.features;
    text_copy(out->seal, sizeof out->seal, plan.seal);
    text_copy(out->policy_sha256, sizeof out->policy_sha256, plan.policy_sha256);
    const char **argv = arena_array(a, PROBE_PLACES + 3, sizeof *argv);
    argv[0] = plan.engine;
    argv[1] = PROBE_ROLE;
    memcpy(argv + 2, s->places, PROBE_PLACES * sizeof *argv);
    const struct child_options options = {
        .argv = sandbox_argv(a, &plan, argv),
        .envp = sandbox_environment(a, &plan, launch_environment(a, environ, NULL))};
    struct child *c;
    if (!child_start(&options, &c, err))
        return false;
    read_rows(c, out);
    child_free(c);
    look_for_left_files(s, out);
    return true;
}

bool probe_sandbox(bool gpu, bool unprotected, struct probe_result *out, struct error *err)
{
    struct scene s = {.listeners = {-1, -1, -1}};
    probe_tries(&out->count);
    out->seen = memory_alloc(out->count * sizeof *out->seen);
    out->wrong = 0;
    const bool ok = set_scene(&s, err) && run_role(&s, gpu, unprotected, out, err);
    clear_scene(&s);
    for (size_t i = 0; i < out->count; i++)
        out->wrong += !probe_as_expected(out, i);
    return ok;
}

void probe_result_free(struct probe_result *r)
{
    free(r->seen);
    r->seen = NULL;
}

/* ---- the command ---- */

static struct {
    bool json, print_policy, no_sandbox, gpu;
} f;

static const struct option_spec specs[] = {
    {"--print-policy", OPTION_SWITCH, false, NULL,
     "Print the policy text, whose SHA-256 the integrity file names, and try nothing.",
     &f.print_policy, NULL, 0, 0},
    {"--gpu", OPTION_SWITCH, false, NULL, "The policy of tracks whose platform is cuda.", &f.gpu,
     NULL, 0, 0},
    {"--no-sandbox", OPTION_SWITCH, false, NULL,
     "Run the tries without a sandbox, to see that they can tell; expect exit code 1.",
     &f.no_sandbox, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object instead of the table.", &f.json, NULL,
     0, 0},
};
static const struct command command = {
    .name = "benchd probe-sandbox",
    .summary =
        "Tries, inside the engine's sandbox, everything that an engine must not do, and what "
        "it needs.",
    .notes = "Exit codes: 0 everything as expected; 1 not, or no sandbox can be built here; 2 "
             "usage.",
    .options = specs,
    .option_count = sizeof specs / sizeof *specs};

static const char *word(bool done)
{
    return done ? "allowed" : "denied";
}

static const char *seen_word(const struct probe_seen *s)
{
    return s->ran ? word(s->done) : "nothing";
}

static void print_group(struct table *t, const struct probe_result *r, const char *group)
{
    size_t count;
    const struct probe_try *tries = probe_tries(&count);
    table_row(t, group, "", "", "", "");
    for (size_t i = 0; i < count; i++) {
        if (strcmp(group, tries[i].group) != 0)
            continue;
        char name[96];
        snprintf(name, sizeof name, "  %s", tries[i].name);
        table_row(t, name, word(probe_expected(&tries[i], r->features)), seen_word(&r->seen[i]),
                  r->seen[i].detail, probe_as_expected(r, i) ? "ok" : "WRONG");
    }
}

static void print_table(const struct probe_result *r)
{
    size_t count;
    const struct probe_try *tries = probe_tries(&count);
    struct table *t = table_new(5);
    table_row(t, "thing", "expected", "seen", "how", "");
    for (size_t first = 0; first < count; first++) {
        bool begun = false;
        for (size_t i = 0; i < first; i++)
            begun = begun || strcmp(tries[i].group, tries[first].group) == 0;
        if (!begun)
            print_group(t, r, tries[first].group);
    }
    table_print(t);
    printf("sandbox: %s\n%zu of %zu as expected\n", r->seal, count - r->wrong, count);
}

static void print_json(const struct probe_result *r)
{
    size_t count;
    const struct probe_try *tries = probe_tries(&count);
    json_t *rows = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(rows, json_pack("{s:s,s:s,s:s,s:s,s:s,s:b}", "group", tries[i].group,
                                              "thing", tries[i].name, "expected",
                                              word(probe_expected(&tries[i], r->features)), "seen",
                                              seen_word(&r->seen[i]), "detail", r->seen[i].detail,
                                              "ok", probe_as_expected(r, i)));
    json_t *document = json_pack("{s:s,s:s,s:b,s:I,s:I,s:o}", "sandbox", r->seal, "policy_sha256",
                                 r->policy_sha256, "passed", r->wrong == 0, "count",
                                 (json_int_t)count, "wrong", (json_int_t)r->wrong, "rows", rows);
    char *text = json_dumps(document, JSON_INDENT(2));
    printf("%s\n", text);
    free(text);
    json_decref(document);
}

int probe_command(int argc, char **argv)
{
    struct error err = {0};
    char line[2048];
    switch (options_parse(&command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        fprintf(stderr, "%s: %s\ntry: %s --help\n", command.name,
                error_line(&err, line, sizeof line), command.name);
        return EXIT_USAGE;
    case OPTIONS_OK:
        break;
    }
    if (f.print_policy) {
        struct arena a = {0};
        fputs(sandbox_policy_text(&a, (f.gpu ? SANDBOX_GPU : 0) |
                                          (geteuid() == 0 ? SANDBOX_AS_ROOT : 0)),
              stdout);
        arena_free(&a);
        return EXIT_OK;
    }
    struct probe_result r = {0};
    const bool ok = probe_sandbox(f.gpu, f.no_sandbox, &r, &err);
    const bool passed = ok && r.wrong == 0;
    if (!ok)
        fprintf(stderr, "%s: %s\n", command.name, error_line(&err, line, sizeof line));
    else if (f.json)
        print_json(&r);
    else
        print_table(&r);
    probe_result_free(&r);
    return passed ? EXIT_OK : EXIT_FAILED;
}
