/* Re-rooting: every name, and every way out of the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "judge/ranked/roots.h"

#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    struct arena a;
    char folder[64];
    const char *tree; /* <folder>/tree */
    struct leg_roots roots;
    struct error err;
};

static const char *at(struct fixture *f, const char *name)
{
    return arena_printf(&f->a, "%s/%s", f->folder, name);
}

static void put(struct fixture *f, const char *name, mode_t mode)
{
    const char *path = at(f, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("#!/bin/sh\n", out);
    fclose(out);
    assert_int_equal(chmod(path, mode), 0);
}

static void folder(struct fixture *f, const char *name)
{
    assert_int_equal(mkdir(at(f, name), 0755), 0);
}

static void hang(struct fixture *f, const char *target, const char *name)
{
    assert_int_equal(symlink(target, at(f, name)), 0);
}

static int begin(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    text_copy(f->folder, sizeof f->folder, "/tmp/mlxfast-roots-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    folder(f, "tree");
    folder(f, "tree/bin");
    folder(f, "tree/weights");
    folder(f, "outside");
    folder(f, "outside/weights");
    put(f, "tree/bin/engine", 0755);
    put(f, "tree/bin/notes", 0644);
    put(f, "outside/engine", 0755);
    f->tree = at(f, "tree");
    *state = f;
    return 0;
}

static int end(void **state)
{
    struct fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    const int code = system(command);
    arena_free(&f->a);
    free(f);
    return code;
}

static bool resolve(struct fixture *f, const char *engine, const char *weights)
{
    return roots_resolve(f->tree, engine, weights, &f->a, &f->roots, &f->err);
}

static void refused(struct fixture *f, const char *name, const char *field, bool resolved)
{
    assert_false(resolved);
    assert_string_equal(f->err.name, name);
    assert_string_equal(f->err.field, field);
    assert_true(f->err.message[0] != '\0');
}

static void test_what_is_there_is_found(void **state)
{
    struct fixture *f = *state;
    assert_true(resolve(f, "bin/engine", "weights"));
    assert_string_equal(f->roots.workspace, f->tree);
    assert_string_equal(f->roots.engine, at(f, "tree/bin/engine"));
    assert_string_equal(f->roots.weights, at(f, "tree/weights"));
    assert_true(resolve(f, "./bin//engine", "weights/"));
    assert_string_equal(f->roots.engine, at(f, "tree/bin/engine"));
}

/* A relative workspace is one of the working folder. */
static void test_workspace_is_made_absolute(void **state)
{
    struct fixture *f = *state;
    char before[512];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(f->folder), 0);
    const bool ok = roots_resolve("tree/", "bin/engine", "weights", &f->a, &f->roots, &f->err);
    assert_int_equal(chdir(before), 0);
    assert_true(ok);
    assert_string_equal(f->roots.workspace, f->tree);
}

static void test_workspace_missing(void **state)
{
    struct fixture *f = *state;
    static const char name[] = "BASELINE-WORKSPACE-MISSING", field[] = "--baseline-workspace";
    f->tree = NULL;
    refused(f, name, field, resolve(f, "bin/engine", "weights"));
    f->tree = at(f, "nothing");
    refused(f, name, field, resolve(f, "bin/engine", "weights"));
    f->tree = at(f, "outside/engine");
    refused(f, name, field, resolve(f, "bin/engine", "weights"));
    hang(f, "tree", "link");
    f->tree = at(f, "link");
    refused(f, name, field, resolve(f, "bin/engine", "weights"));
    f->tree = at(f, "link/"); /* behind the slash stands the folder */
    refused(f, name, field, resolve(f, "bin/engine", "weights"));
    assert_string_equal(f->err.value, f->tree);
}

static void test_texts_that_are_not_root_relative(void **state)
{
    struct fixture *f = *state;
    const char *const wrong[] = {
        NULL, "",   "/bin/engine", "..",   "../outside", "bin/../bin/x",          "bin/..",
        ".",  "./", "bin//../..",  "./..", "bin/../.",   at(f, "tree/bin/engine")};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        refused(f, "BASELINE-ENGINE-NOT-ROOT-RELATIVE", "--engine",
                resolve(f, wrong[i], "weights"));
        refused(f, "BASELINE-WEIGHTS-NOT-ROOT-RELATIVE", "--weights",
                resolve(f, "bin/engine", wrong[i]));
    }
    /* Two dots are no parent where there is more of the name. */
    folder(f, "tree/..hidden");
    assert_true(resolve(f, "bin/engine", "..hidden"));
}

static void test_links_that_stay_inside(void **state)
{
    struct fixture *f = *state;
    hang(f, "bin/engine", "tree/short");
    hang(f, "../weights", "tree/bin/w");
    hang(f, "w", "tree/bin/again");
    assert_true(resolve(f, "short", "bin/again"));
    assert_string_equal(f->roots.engine, at(f, "tree/bin/engine"));
    assert_string_equal(f->roots.weights, at(f, "tree/weights"));
}

static void test_links_that_lead_out(void **state)
{
    struct fixture *f = *state;
    hang(f, "../outside/engine", "tree/last");          /* the last component */
    hang(f, "../outside", "tree/middle");               /* one before it */
    hang(f, "../../outside/engine", "tree/bin/up");     /* from below */
    hang(f, "../tree/bin/engine", "tree/round");        /* out and back in */
    hang(f, "bin/up", "tree/chain");                    /* through another link */
    hang(f, at(f, "tree/bin/engine"), "tree/absolute"); /* in, but by an absolute path */
    hang(f, "bin/../../outside/engine", "tree/winding");
    hang(f, "..", "tree/parent");
    const char *const engines[] = {"last",  "middle/engine", "bin/up",  "round",
                                   "chain", "absolute",      "winding", "parent/outside/engine"};
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        refused(f, "BASELINE-ENGINE-NOT-ROOT-RELATIVE", "--engine",
                resolve(f, engines[i], "weights"));
    const char *const weights[] = {"middle/weights", "parent/outside/weights", "middle"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        refused(f, "BASELINE-WEIGHTS-NOT-ROOT-RELATIVE", "--weights",
                resolve(f, "bin/engine", weights[i]));
}

static void test_no_engine(void **state)
{
    struct fixture *f = *state;
    hang(f, "loop", "tree/loop");
    hang(f, "nowhere", "tree/broken");
    const char *const wrong[] = {"bin/other", "bin/notes",    "bin",   "bin/engine/x",
                                 "loop",      "weights/none", "broken"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(f, "BASELINE-WORKSPACE-NO-ENGINE", "--engine", resolve(f, wrong[i], "weights"));
    assert_string_equal(f->err.file, f->tree);
    assert_string_equal(f->err.value, "broken");
}

static void test_no_weights(void **state)
{
    struct fixture *f = *state;
    const char *const wrong[] = {"other", "bin/engine", "weights/x", "bin/notes/weights"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(f, "BASELINE-WORKSPACE-NO-WEIGHTS", "--weights",
                resolve(f, "bin/engine", wrong[i]));
}

static void test_the_flag_wins(void **state)
{
    (void)state;
    setenv("MLXFAST_BASELINE_WORKSPACE", "/of/the/environment", 1);
    assert_string_equal(roots_workspace("/of/the/flag"), "/of/the/flag");
    assert_string_equal(roots_workspace(NULL), "/of/the/environment");
    setenv("MLXFAST_BASELINE_WORKSPACE", "", 1);
    assert_null(roots_workspace(NULL));
    unsetenv("MLXFAST_BASELINE_WORKSPACE");
    assert_null(roots_workspace(NULL));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {T(test_what_is_there_is_found),
                                       T(test_workspace_is_made_absolute),
                                       T(test_workspace_missing),
                                       T(test_texts_that_are_not_root_relative),
                                       T(test_links_that_stay_inside),
                                       T(test_links_that_lead_out),
                                       T(test_no_engine),
                                       T(test_no_weights),
                                       cmocka_unit_test(test_the_flag_wins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
