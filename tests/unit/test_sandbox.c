/* The sandbox's plan: what it refuses and under which name, what it shows and hides, the policy. */
#include "judge/sandbox.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct fixture {
    struct arena a;
    char folder[64];
    const char *engine, *weights, *golden, *environment[8];
    struct sandbox_request r;
    struct sandbox_plan p;
    struct error err;
};

static const char *put(struct fixture *f, const char *name, const char *text, mode_t mode)
{
    const char *path = path_join(&f->a, f->folder, name);
    assert_true(file_write_atomic(path, text, strlen(text), NULL));
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static const char *put_folder(struct fixture *f, const char *name)
{
    const char *path = path_join(&f->a, f->folder, name);
    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static int begin(void **state)
{
    struct fixture *f = memory_alloc(sizeof *f);
    snprintf(f->folder, sizeof f->folder, "/tmp/mlxfast-sandbox-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    assert_int_equal(chmod(f->folder, 0755), 0);
    f->weights = put_folder(f, "weights");
    put(f, "weights/config.json", "{}", 0644);
    f->engine = put(f, "engine", "#!/bin/sh\n", 0755);
    f->golden = put(f, "golden.json", "{}", 0644);
    f->r = (struct sandbox_request){.mode = SANDBOX_OFFICIAL,
                                    .engine = f->engine,
                                    .weights = f->weights,
                                    .environment = (char *const *)(uintptr_t)f->environment};
    *state = f;
    return 0;
}

static int end(void **state)
{
    struct fixture *f = *state;
    char **names;
    size_t count;
    unlink(path_join(&f->a, f->folder, "socket"));
    if (file_list_recursive(&f->a, f->folder, &names, &count, NULL))
        for (size_t i = 0; i < count; i++)
            unlink(path_join(&f->a, f->folder, names[i]));
    rmdir(path_join(&f->a, f->folder, "weights/inner"));
    rmdir(f->weights);
    rmdir(path_join(&f->a, f->folder, "tree"));
    rmdir(f->folder);
    arena_free(&f->a);
    free(f);
    return 0;
}

static void refused(struct fixture *f, const char *name)
{
    assert_false(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_string_equal(f->err.name, name);
    assert_false(f->p.active);
}

/* ---- official mode fails closed ---- */

static void test_worker_disabled(void **state)
{
    struct fixture *f = *state;
    f->environment[0] = "MLXFAST_USE_RUNTIME_WORKER=0";
    refused(f, "WorkerDisabled");
    f->environment[0] = "MLXFAST_USE_RUNTIME_WORKER=";
    refused(f, "WorkerDisabled");
}

static void test_sandbox_disabled(void **state)
{
    struct fixture *f = *state;
    f->r.switched_off = true;
    refused(f, "SandboxDisabled");
    f->r.switched_off = false;
    f->environment[0] = "MLXFAST_NO_SANDBOX=1";
    refused(f, "SandboxDisabled");
}

static void test_no_executable(void **state)
{
    struct fixture *f = *state;
    f->r.bwrap = "/bin/true"; /* found; what it is does not matter here */
    f->r.engine = NULL;
    refused(f, "NoExecutable");
    f->r.engine = f->golden;
    refused(f, "NoExecutable");
    f->r.engine = f->weights;
    refused(f, "NoExecutable");
    f->r.engine = f->engine;
    f->environment[0] = "MLXFAST_RUNTIME_WORKER_EXECUTABLE=/nowhere/engine";
    refused(f, "NoExecutable");
    assert_string_equal(f->err.file, "/nowhere/engine");
    /* The reference leg keeps its own: it comes as far as the trial, which /bin/false fails. */
    f->r.reference_leg = true;
    f->r.bwrap = "/bin/false";
    refused(f, "SANDBOX-UNAVAILABLE");
}

static void test_bubblewrap_not_found(void **state)
{
    struct fixture *f = *state;
    f->r.bwrap = "/nowhere/bwrap";
    refused(f, "SandboxExecNotFound");
}

static void test_a_sandbox_that_does_not_start(void **state)
{
    struct fixture *f = *state;
    f->r.bwrap = "/bin/false";
    refused(f, "SANDBOX-UNAVAILABLE");
}

static void test_pinned_policy(void **state)
{
    struct fixture *f = *state;
    f->r.bwrap = "/bin/false";
    f->environment[0] = "MLXFAST_RUNTIME_WORKER_SANDBOX_PROFILE=/nowhere/policy";
    refused(f, "NoProfile");
    const char *policy =
        sandbox_policy_text(&f->a, geteuid() == 0 ? (unsigned)SANDBOX_AS_ROOT : 0u);
    const char *other = arena_printf(&f->a, "%s ", policy);
    f->environment[0] = arena_printf(&f->a, "MLXFAST_RUNTIME_WORKER_SANDBOX_PROFILE=%s",
                                     put(f, "policy", other, 0644));
    refused(f, "NoProfile");
    put(f, "policy", policy, 0644); /* the right one: on to the trial */
    refused(f, "SANDBOX-UNAVAILABLE");
}

static void test_resident_socket(void **state)
{
    struct fixture *f = *state;
    const char *path = path_join(&f->a, f->folder, "socket");
    const char *const wrong[] = {"relative/socket", "/a/b\nc", "/a/\x7f", "",
                                 "/nowhere/socket", f->golden};
    static char text[200];
    f->r.bwrap = "/bin/false";
    for (int mode = 0; mode < 2; mode++) { /* in local runs too */
        f->r.mode = mode == 0 ? SANDBOX_OFFICIAL : SANDBOX_LOCAL;
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            f->environment[0] = arena_printf(&f->a, "BENCH_WORKER_RESIDENT_SOCKET=%s", wrong[i]);
            refused(f, "InvalidResidentSocket");
        }
        memset(text, 'a', sizeof text - 1);
        text[0] = '/';
        f->environment[0] = arena_printf(&f->a, "BENCH_WORKER_RESIDENT_SOCKET=%s", text);
        refused(f, "InvalidResidentSocket");
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    f->environment[0] = arena_printf(&f->a, "BENCH_WORKER_RESIDENT_SOCKET=%s", path);
    f->r.mode = SANDBOX_OFFICIAL;
    refused(f, "SANDBOX-UNAVAILABLE");
    close(fd);
}

/* ---- local mode ---- */

static void test_local_goes_on_and_says_so(void **state)
{
    struct fixture *f = *state;
    f->r.mode = SANDBOX_LOCAL;
    f->r.bwrap = "/nowhere/bwrap";
    assert_true(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_false(f->p.active);
    assert_string_equal(f->p.seal, "none (unavailable)");
    assert_non_null(strstr(f->p.reason, "bubblewrap"));
    f->r.bwrap = "/bin/false";
    assert_true(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_string_equal(f->p.seal, "none (unavailable)");
    assert_non_null(f->p.reason);
    f->r.switched_off = true;
    assert_true(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_string_equal(f->p.seal, "none (switched off)");
    assert_null(f->p.reason);
    f->r.switched_off = false;
    f->environment[0] = "MLXFAST_NO_SANDBOX=1";
    assert_true(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_string_equal(f->p.seal, "none (switched off)");
    /* Nothing changes for an engine without a sandbox. */
    const char *const argv[] = {"a", "b", NULL};
    assert_ptr_equal(sandbox_argv(&f->a, &f->p, argv), argv);
    assert_ptr_equal(sandbox_environment(&f->a, &f->p, argv), argv);
}

static void test_what_the_engine_needs_cannot_be_hidden(void **state)
{
    struct fixture *f = *state;
    const char *const weights_hidden[] = {f->weights, NULL};
    const char *const resources[] = {arena_printf(&f->a, "oracle=%s", f->golden), NULL};
    const char *const golden_hidden[] = {f->golden, NULL};
    f->r.mode = SANDBOX_LOCAL;
    f->r.bwrap = "/bin/false";
    f->r.hidden = weights_hidden;
    refused(f, "SANDBOX-CONFLICT");
    f->r.hidden = golden_hidden;
    f->r.resources = resources;
    refused(f, "SANDBOX-CONFLICT");
    assert_string_equal(f->err.file, f->golden);
    f->r.resources = NULL;
    f->r.hidden = NULL;
    f->environment[0] = arena_printf(&f->a, "MLXFAST_PRIVATE_DIR=%s", f->weights);
    refused(f, "SANDBOX-CONFLICT");
    f->environment[0] = arena_printf(&f->a, "HOME=%s", f->weights);
    refused(f, "SANDBOX-CONFLICT");
    f->environment[0] = arena_printf(&f->a, "BENCH_GOLDEN_PATH=%s", f->weights);
    refused(f, "SANDBOX-CONFLICT");
}

static bool has_sequence(const char *const *argv, const char *a, const char *b, const char *c)
{
    for (size_t i = 0; argv[i] != NULL && argv[i + 1] != NULL && argv[i + 2] != NULL; i++)
        if (strcmp(argv[i], a) == 0 && strcmp(argv[i + 1], b) == 0 && strcmp(argv[i + 2], c) == 0)
            return true;
    return false;
}

/* A stand-in that always starts shows the command line without needing namespaces. */
static void test_command_line(void **state)
{
    struct fixture *f = *state;
    const char *tree = put_folder(f, "tree");
    const char *masked = put(f, "tree/golden.json", "{}", 0644);
    const char *inner = put_folder(f, "weights/inner");
    const char *const trees[] = {tree, NULL};
    const char *const resources[] = {arena_printf(&f->a, "data=%s", f->golden), "mode=fast", NULL};
    const char *const hidden[] = {masked, inner, "/nowhere/else", NULL};
    f->r.bwrap = "/bin/true";
    f->r.engine_trees = trees;
    f->r.resources = resources;
    f->r.hidden = hidden;
    if (!sandbox_plan(&f->a, &f->r, &f->p, &f->err)) {
        /* A judge with sanitizers never enters a sandbox. */
        assert_string_equal(f->err.name, "SANDBOX-UNAVAILABLE");
        skip();
    }
    assert_true(f->p.active);
    const char *const engine[] = {f->p.engine, "runtime-worker", NULL};
    const char *const *argv = sandbox_argv(&f->a, &f->p, engine);
    assert_string_equal(argv[0], "/bin/true");
    assert_true(has_sequence(argv, "--ro-bind", f->weights, f->weights));
    assert_true(has_sequence(argv, "--ro-bind", f->engine, f->engine));
    assert_true(has_sequence(argv, "--ro-bind", tree, tree));
    assert_true(has_sequence(argv, "--ro-bind", f->golden, f->golden)); /* a resource, not hidden */
    assert_true(has_sequence(argv, "--ro-bind", "/dev/null", masked));
    assert_true(has_sequence(argv, "--tmpfs", inner, "--remount-ro"));
    assert_false(has_sequence(argv, "--dev-bind", "/dev/zero", "/dev/zero"));
    assert_string_equal(f->p.resources[1], "mode=fast");
    size_t n = 0;
    while (argv[n] != NULL)
        n++;
    assert_string_equal(argv[n - 1], "runtime-worker");
    assert_string_equal(argv[n - 2], f->engine);
    assert_string_equal(argv[n - 5], SANDBOX_EXEC);
    assert_true(strlen(f->p.seal) == strlen("bubblewrap+seccomp sha256:") + 64);
    assert_non_null(strstr(f->p.seal, f->p.policy_sha256));
    /* The hash is that of the text alone: paths are roles. */
    assert_null(strstr(f->p.policy, f->folder));
    char again[SHA256_HEX];
    sha256_hex(f->p.policy, strlen(f->p.policy), again);
    assert_string_equal(again, f->p.policy_sha256);

    const char *const environment[] = {"HOME=/root", "TMPDIR=/x", "SSH_AUTH_SOCK=/y", "LANG=C",
                                       NULL};
    const char *const *inside = sandbox_environment(&f->a, &f->p, environment);
    assert_string_equal(inside[0], "LANG=C");
    assert_string_equal(inside[1], "TMPDIR=/tmp");
    assert_string_equal(inside[2], "HOME=/tmp");
    assert_null(inside[3]);
}

/* A drafter is bound like the weights; without one the policy is what it was. */
static void test_drafter(void **state)
{
    struct fixture *f = *state;
    const char *drafter = put_folder(f, "tree");
    const char *masked = put(f, "tree/golden.json", "{}", 0644);
    const char *const hidden[] = {masked, NULL};
    f->r.bwrap = "/bin/true";
    f->r.drafter = drafter;
    f->r.hidden = hidden;
    if (!sandbox_plan(&f->a, &f->r, &f->p, &f->err)) {
        assert_string_equal(f->err.name, "SANDBOX-UNAVAILABLE"); /* sanitizers */
        skip();
    }
    assert_true(f->p.active && (f->p.features & SANDBOX_DRAFTER));
    assert_string_equal(f->p.drafter, drafter);
    const char *const engine[] = {f->p.engine, NULL};
    const char *const *argv = sandbox_argv(&f->a, &f->p, engine);
    assert_true(has_sequence(argv, "--ro-bind", drafter, drafter));
    assert_true(has_sequence(argv, "--ro-bind", "/dev/null", masked));
    assert_non_null(strstr(f->p.policy, "bwrap: --ro-bind <drafter> <drafter at>\n"));
    assert_null(
        strstr(sandbox_policy_text(&f->a, f->p.features & ~(unsigned)SANDBOX_DRAFTER), "drafter"));
    f->r.drafter = "/nowhere/drafter";
    refused(f, "DRAFTER-MISSING");
}

static void test_root_says_what_its_engine_cannot_read(void **state)
{
    struct fixture *f = *state;
    if (geteuid() != 0)
        skip();
    f->r.mode = SANDBOX_OFFICIAL;
    f->r.bwrap = "/bin/true";
    put(f, "weights/config.json", "{}", 0600);
    if (sandbox_plan(&f->a, &f->r, &f->p, &f->err))
        fail();
    if (strcmp(f->err.name, "SANDBOX-UNAVAILABLE") == 0)
        skip(); /* sanitizers */
    assert_string_equal(f->err.name, "SANDBOX-CONFLICT");
    assert_non_null(strstr(f->err.file, "config.json"));
    f->r.mode = SANDBOX_LOCAL; /* goes on without, and says why */
    assert_true(sandbox_plan(&f->a, &f->r, &f->p, &f->err));
    assert_false(f->p.active);
    assert_string_equal(f->p.seal, "none (unavailable)");
    assert_non_null(strstr(f->p.reason, "config.json"));
}

/* ---- the policy ---- */

static void test_policies_differ_by_feature(void **state)
{
    struct fixture *f = *state;
    const char *plain = sandbox_policy_text(&f->a, 0);
    const unsigned features[] = {SANDBOX_GPU, SANDBOX_RESIDENT, SANDBOX_RING, SANDBOX_AS_ROOT,
                                 SANDBOX_DRAFTER};
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        assert_string_not_equal(plain, sandbox_policy_text(&f->a, features[i]));
    assert_string_equal(plain, sandbox_policy_text(&f->a, 0));
    assert_non_null(strstr(plain, "seccomp io_uring_setup: EPERM\n"));
    assert_non_null(
        strstr(sandbox_policy_text(&f->a, SANDBOX_RING), "seccomp io_uring_setup: allowed\n"));
    assert_null(strstr(plain, "nvidia"));
    assert_non_null(strstr(plain, "bwrap: --unshare-net\n"));
    assert_non_null(strstr(plain, "seccomp execve: EPERM\n"));
}

static void test_engine_pid(void **state)
{
    (void)state;
    assert_int_equal(sandbox_engine_pid(getpid()), 0); /* no child, no grandchild */
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], SANDBOX_EXEC) == 0)
        return sandbox_exec_main(argc - 2, argv + 2);
#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {T(test_worker_disabled),
                                       T(test_sandbox_disabled),
                                       T(test_no_executable),
                                       T(test_bubblewrap_not_found),
                                       T(test_a_sandbox_that_does_not_start),
                                       T(test_pinned_policy),
                                       T(test_resident_socket),
                                       T(test_local_goes_on_and_says_so),
                                       T(test_what_the_engine_needs_cannot_be_hidden),
                                       T(test_command_line),
                                       T(test_drafter),
                                       T(test_root_says_what_its_engine_cannot_read),
                                       T(test_policies_differ_by_feature),
                                       T(test_engine_pid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
