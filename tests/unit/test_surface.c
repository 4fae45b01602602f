/* The editable surface: the manifest's form, the byte budget and growth at both sides of every
 * limit, the trusted scope, the gate between trees and between commits. */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "judge/surface/surface.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct arena arena;
    const char *folder, *trusted, *candidate;
};

static const char *at(struct fixture *f, const char *tree, const char *path)
{
    return path_join(&f->arena, tree, path);
}

static void put_bytes(struct fixture *f, const char *tree, const char *path, const char *data,
                      size_t length)
{
    const char *whole = at(f, tree, path);
    const char *slash = strrchr(whole, '/');
    const char *parent = arena_strndup(&f->arena, whole, (size_t)(slash - whole));
    assert_true(file_make_directories(parent, NULL));
    assert_true(file_write_atomic(whole, data, length, NULL));
}

static void put(struct fixture *f, const char *tree, const char *path, const char *text)
{
    put_bytes(f, tree, path, text, strlen(text));
}

static void put_size(struct fixture *f, const char *tree, const char *path, size_t length)
{
    char *data = arena_alloc(&f->arena, length + 1);
    memset(data, 'x', length);
    put_bytes(f, tree, path, data, length);
}

/* Both trees with the eight trusted paths and one editable folder. */
static void make_tree(struct fixture *f, const char *tree)
{
    put(f, tree, "Package.swift", "p");
    put(f, tree, "Package.resolved", "r");
    put(f, tree, "Sources/MLXFastTrustedHarness/h.swift", "h");
    put(f, tree, "Sources/MLXFastCLI/c.swift", "c");
    put(f, tree, "Sources/MLXFastCore/k.swift", "k");
    put(f, tree, ".github/w.yml", "w");
    put(f, tree, "tools/t.sh", "t");
    put(f, tree, "benchmark.json", "{\"editablePaths\":[\"Sources/Model\"]}");
    put(f, tree, "Sources/Model/a.swift", "model");
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char template[] = "/tmp/mlxfast-surface-XXXXXX";
    f->folder = arena_strdup(&f->arena, mkdtemp(template));
    f->trusted = path_join(&f->arena, f->folder, "trusted");
    f->candidate = path_join(&f->arena, f->folder, "candidate");
    make_tree(f, f->trusted);
    make_tree(f, f->candidate);
    *state = f;
    return 0;
}

static int run(const char *const *argv)
{
    const pid_t pid = fork();
    if (pid == 0) {
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    const char *const argv[] = {"/bin/rm", "-rf", f->folder, NULL};
    assert_int_equal(run(argv), 0);
    arena_free(&f->arena);
    free(f);
    return 0;
}

/* ---- the manifest ---- */

static bool parse(struct fixture *f, const char *text, struct surface *s, struct error *err)
{
    return surface_parse(&f->arena, "benchmark.json", text, strlen(text), s, err);
}

static void refused(struct fixture *f, const char *text, const char *field)
{
    struct surface s;
    struct error err = {0};
    if (parse(f, text, &s, &err))
        fail_msg("%s was taken", text);
    assert_string_equal(err.name, "SURFACE-MANIFEST-INVALID");
    assert_string_equal(err.field, field);
    assert_string_equal(err.file, "benchmark.json");
}

static void test_defaults(void **state)
{
    struct surface s;
    struct error err = {0};
    assert_true(parse(*state, "{\"editablePaths\":[\"a\"],\"anything\":1}", &s, &err));
    assert_int_equal(s.total_max, 4404587);
    assert_int_equal(s.file_max, 524288);
    assert_int_equal(s.growth_max, 262144);
    assert_int_equal(s.exempt_total_max, 512000000);
    assert_int_equal(s.exempt_file_max, 100000000);
    assert_int_equal(s.entry_count, 1);
    assert_int_equal(s.scope_count, 8);
}

static void test_budget_block(void **state)
{
    struct surface s;
    struct error err = {0};
    assert_true(parse(*state,
                      "{\"editablePaths\":[\"a\",\"b\",\"a\"],\"optionalEditablePaths\":[\"c\"],"
                      "\"editableSurfaceByteBudget\":{\"exemptPaths\":[\"b\",\"z\"],"
                      "\"exemptPathMaxBytes\":50,\"exemptPathMaxFileBytes\":50,"
                      "\"maxTotalBytes\":9,\"maxFileBytes\":9,\"maxGrowthBytes\":1}}",
                      &s, &err));
    assert_int_equal(s.entry_count, 3);
    assert_false(s.entries[0].exempt);
    assert_true(s.entries[1].exempt);
    assert_string_equal(s.entries[2].path, "c");
    assert_int_equal(s.file_max, 9);
    assert_int_equal(s.growth_max, 1);

    static const char budget[] = "{\"editablePaths\":[\"a\"],\"editableSurfaceByteBudget\":%s}";
    static const struct {
        const char *block, *field;
    } bad[] = {
        {"{\"maxBytes\":5}", "editableSurfaceByteBudget.maxBytes"},
        {"{\"maxTotalBytes\":0}", "editableSurfaceByteBudget.maxTotalBytes"},
        {"{\"maxTotalBytes\":-1}", "editableSurfaceByteBudget.maxTotalBytes"},
        {"{\"maxTotalBytes\":null}", "editableSurfaceByteBudget.maxTotalBytes"},
        {"{\"maxFileBytes\":\"5\"}", "editableSurfaceByteBudget.maxFileBytes"},
        {"{\"maxGrowthBytes\":1.5}", "editableSurfaceByteBudget.maxGrowthBytes"},
        {"{\"exemptPathMaxBytes\":true}", "editableSurfaceByteBudget.exemptPathMaxBytes"},
        {"{\"exemptPathMaxFileBytes\":[]}", "editableSurfaceByteBudget.exemptPathMaxFileBytes"},
        {"{\"maxTotalBytes\":9,\"maxFileBytes\":10}", "editableSurfaceByteBudget.maxFileBytes"},
        {"{\"maxTotalBytes\":524287}", "editableSurfaceByteBudget.maxFileBytes"},
        {"{\"exemptPathMaxBytes\":5,\"exemptPathMaxFileBytes\":6}",
         "editableSurfaceByteBudget.exemptPathMaxFileBytes"},
        {"{\"exemptPaths\":\"a\"}", "editableSurfaceByteBudget.exemptPaths"},
        {"{\"exemptPaths\":[\"../a\"]}", "editableSurfaceByteBudget.exemptPaths[0]"},
        {"[]", "editableSurfaceByteBudget"},
        {"null", "editableSurfaceByteBudget"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text, budget, bad[i].block);
        refused(*state, text, bad[i].field);
    }
}

static void test_entries(void **state)
{
    struct surface s;
    struct error err = {0};
    static const char *const bad[] = {"",    "/a",   ":a",     "a\\\\b", ".",  "..",   "./a",
                                      "a/.", "a/..", "a/../b", "a//b",   "a/", "a/./b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"editablePaths\":[\"ok\",\"%s\"]}", bad[i]);
        refused(*state, text, "editablePaths[1]");
    }
    refused(*state, "{}", "editablePaths");
    refused(*state, "{\"editablePaths\":[]}", "editablePaths");
    refused(*state, "{\"editablePaths\":null}", "editablePaths");
    refused(*state, "{\"editablePaths\":[7]}", "editablePaths[0]");
    refused(*state, "{\"editablePaths\":[\"a\"],\"optionalEditablePaths\":[\"/b\"]}",
            "optionalEditablePaths[0]");
    refused(*state, "{\"editablePaths\":[\"a\"],\"trustedScope\":[]}", "trustedScope");
    refused(*state, "[]", "(root)");
    assert_true(parse(*state, "{\"editablePaths\":[\"..a\",\"a.b/c..\",\"...\"]}", &s, &err));
    assert_false(parse(*state, "{\"editablePaths\":[\"a\"],\"editablePaths\":[]}", &s, &err));
    assert_string_equal(err.name, "JSON-INVALID");
}

static void test_closest_entry(void **state)
{
    struct surface s;
    assert_true(parse(*state,
                      "{\"editablePaths\":[\"a\",\"a/b\"],"
                      "\"editableSurfaceByteBudget\":{\"exemptPaths\":[\"a/b\"]}}",
                      &s, NULL));
    assert_string_equal(surface_find(&s, "a")->path, "a");
    assert_string_equal(surface_find(&s, "a/c")->path, "a");
    assert_string_equal(surface_find(&s, "a/b/c")->path, "a/b");
    assert_null(surface_find(&s, "ab"));
    assert_null(surface_find(&s, "A/c"));
    assert_null(surface_find(&s, "x/a"));
}

/* ---- the byte budget ---- */

static struct surface surface_of(struct fixture *f, const char *manifest)
{
    struct surface s;
    struct error err = {0};
    put(f, f->trusted, "benchmark.json", manifest);
    if (!surface_load(&f->arena, f->trusted, &s, &err))
        fail_msg("%s: %s", err.name, err.message);
    return s;
}

static const char small[] = "{\"editablePaths\":[\"e\",\"big\"],\"editableSurfaceByteBudget\":{"
                            "\"exemptPaths\":[\"big\"],\"exemptPathMaxBytes\":300,"
                            "\"exemptPathMaxFileBytes\":200,\"maxTotalBytes\":100,"
                            "\"maxFileBytes\":60,\"maxGrowthBytes\":10}}";

static void check_budget_refused(struct fixture *f, const struct surface *s, const char *name,
                                 const char *path)
{
    struct surface_size size;
    struct error err = {0};
    assert_false(surface_check_budget(s, f->candidate, &size, &err));
    assert_string_equal(err.name, name);
    assert_string_equal(err.field, path);
}

static void test_budget_limits(void **state)
{
    struct fixture *f = *state;
    const struct surface s = surface_of(f, small);
    struct surface_size size;
    struct error err = {0};
    check_budget_refused(f, &s, "SURFACE-EMPTY", "e");
    put_size(f, f->candidate, "e/a", 60); /* the limit of a file */
    put_size(f, f->candidate, "e/b", 40); /* with it that of the sum */
    put_size(f, f->candidate, "big/m", 200);
    put_size(f, f->candidate, "big/n", 100);
    assert_true(surface_check_budget(&s, f->candidate, &size, &err));
    assert_int_equal(size.bytes, 100);
    assert_int_equal(size.exempt_bytes, 300);
    assert_int_equal(size.files, 4);

    put_size(f, f->candidate, "e/b", 41);
    check_budget_refused(f, &s, "SURFACE-TOO-LARGE", "e/b");
    put_size(f, f->candidate, "e/a", 61); /* a file comes before the sum */
    check_budget_refused(f, &s, "SURFACE-FILE-TOO-LARGE", "e/a");
    put_size(f, f->candidate, "e/a", 1);
    put_size(f, f->candidate, "big/n", 101);
    check_budget_refused(f, &s, "SURFACE-TOO-LARGE", "big/n");
    put_size(f, f->candidate, "big/m", 201);
    check_budget_refused(f, &s, "SURFACE-FILE-TOO-LARGE", "big/m");
}

/* Links and special files are not charged, wherever they lead; nor is what lies behind a link. */
static void test_budget_skips(void **state)
{
    struct fixture *f = *state;
    const struct surface s =
        surface_of(f, "{\"editablePaths\":[\"e\",\"link/in\",\"gone\"],"
                      "\"editableSurfaceByteBudget\":{\"maxTotalBytes\":5,\"maxFileBytes\":5}}");
    struct surface_size size;
    struct error err = {0};
    put_size(f, f->candidate, "e/a", 5);
    put_size(f, f->candidate, "elsewhere/in", 90);
    assert_int_equal(symlink("../elsewhere/in", at(f, f->candidate, "e/link")), 0);
    assert_int_equal(symlink("../elsewhere", at(f, f->candidate, "e/folder")), 0);
    assert_int_equal(symlink("elsewhere", at(f, f->candidate, "link")), 0);
    assert_int_equal(mkfifo(at(f, f->candidate, "e/pipe"), 0600), 0);
    assert_true(surface_check_budget(&s, f->candidate, &size, &err));
    assert_int_equal(size.bytes, 5);
    assert_int_equal(size.files, 1);
    if (geteuid() == 0)
        return; /* root reads everything */
    assert_int_equal(mkdir(at(f, f->candidate, "e/closed"), 0), 0);
    assert_false(surface_check_budget(&s, f->candidate, &size, &err));
    assert_string_equal(err.name, "SURFACE-UNREADABLE");
    assert_int_equal(chmod(at(f, f->candidate, "e/closed"), 0700), 0);
}

static void test_depth_is_bounded(void **state)
{
    struct fixture *f = *state;
    const struct surface s = surface_of(f, "{\"editablePaths\":[\"e\"]}");
    struct surface_size size;
    struct error err = {0};
    struct buffer path = {0};
    buffer_text(&path, "e");
    for (int i = 0; i < 210; i++)
        buffer_text(&path, "/d");
    put(f, f->candidate, arena_printf(&f->arena, "%s/x", path.data), "x");
    assert_false(surface_check_budget(&s, f->candidate, &size, &err));
    assert_string_equal(err.name, "SURFACE-UNREADABLE");
    assert_non_null(strstr(err.message, "deeper"));
    buffer_free(&path);
}

static void test_growth(void **state)
{
    struct fixture *f = *state;
    const struct surface s = surface_of(f, small);
    struct surface_size before = {.bytes = 50, .exempt_bytes = 1},
                        after = {.bytes = 60, .exempt_bytes = 1000};
    struct error err = {0};
    assert_true(surface_check_growth(&s, &before, &after, &err));
    after.bytes = 61;
    assert_false(surface_check_growth(&s, &before, &after, &err));
    assert_string_equal(err.name, "SURFACE-GROWTH-EXCEEDED");
    after.bytes = 0;
    assert_true(surface_check_growth(&s, &before, &after, &err));
    put_size(f, f->trusted, "e/a", 500); /* no caps where it grew from */
    assert_true(surface_measure_tree(&s, f->trusted, &before, &err));
    assert_int_equal(before.bytes, 500);
}

/* ---- the trusted scope ---- */

static void check_scope(struct fixture *f, const char *entry, bool taken)
{
    const struct surface s = surface_of(
        f, arena_printf(&f->arena, "{\"editablePaths\":[\"Sources/Model\",\"%s\"]}", entry));
    struct error err = {0};
    if (surface_check_scope(&s, f->trusted, &err) != taken)
        fail_msg("%s: %s", entry, taken ? err.message : "taken");
    if (taken)
        return;
    assert_string_equal(err.name, "TRUSTED-SCOPE-EDITABLE");
    assert_string_equal(err.field, entry);
}

static void test_scope(void **state)
{
    struct fixture *f = *state;
    check_scope(f, "Sources/Other", true);
    check_scope(f, "toolsmith", true);
    check_scope(f, "Sources/MLXFastCore2", true);
    check_scope(f, "Package.swift.md", true);
    check_scope(f, "tools", false);
    check_scope(f, "tools/t.sh", false);
    check_scope(f, "Tools/new", false);
    check_scope(f, "Sources", false);
    check_scope(f, "SOURCES/mlxfastcore", false);
    check_scope(f, "Sources/MLXFastCLI/c.swift", false);
    check_scope(f, "benchmark.json", false);
    check_scope(f, ".github/workflows", false);
    /* other names of the same files */
    assert_int_equal(symlink("tools", at(f, f->trusted, "alias")), 0);
    assert_int_equal(symlink(".", at(f, f->trusted, "around")), 0);
    assert_int_equal(link(at(f, f->trusted, "Package.swift"), at(f, f->trusted, "second")), 0);
    check_scope(f, "alias", false);
    check_scope(f, "alias/t.sh", false);
    check_scope(f, "around/tools", false);
    check_scope(f, "second", false);

    struct surface s =
        surface_of(f, "{\"editablePaths\":[\"Sources/Model\"],"
                      "\"editableSurfaceByteBudget\":{\"exemptPaths\":[\"tools\"]}}");
    struct error err = {0};
    assert_false(surface_check_scope(&s, f->trusted, &err));
    assert_string_equal(err.name, "TRUSTED-SCOPE-EDITABLE");

    s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\"]}");
    assert_int_equal(unlink(at(f, f->trusted, "Package.resolved")), 0);
    assert_false(surface_check_scope(&s, f->trusted, &err));
    assert_string_equal(err.name, "TRUSTED-SCOPE-MISSING");
    assert_string_equal(err.field, "Package.resolved");

    /* a tree of another shape */
    s = surface_of(f, "{\"editablePaths\":[\"src/engine\"],\"trustedScope\":[\"tools\"]}");
    assert_int_equal(s.scope_count, 2);
    assert_true(surface_check_scope(&s, f->trusted, &err));
    s = surface_of(f, "{\"editablePaths\":[\"Benchmark.json\"],\"trustedScope\":[\"tools\"]}");
    assert_false(surface_check_scope(&s, f->trusted, &err));
    assert_string_equal(err.name, "TRUSTED-SCOPE-EDITABLE");
}

/* ---- the gate between trees ---- */

static void diverges(struct fixture *f, const struct surface *s, const char *message)
{
    struct error err = {0};
    assert_false(surface_check_trees(s, f->trusted, f->candidate, &err));
    assert_string_equal(err.name, "write-divergence");
    assert_string_equal(err.message, message);
}

static void test_trees(void **state)
{
    struct fixture *f = *state;
    struct surface s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\"]}");
    struct error err = {0};
    put(f, f->candidate, "Sources/Model/a.swift", "other");
    put(f, f->candidate, "Sources/Model/deep/new.swift", "new");
    put(f, f->candidate, ".build/release/x", "built");
    put(f, f->candidate, ".git/HEAD", "x");
    put(f, f->candidate, ".build-worker/y", "y");
    put(f, f->candidate, "weights/z", "z");
    if (!surface_check_trees(&s, f->trusted, f->candidate, &err))
        fail_msg("%s", err.message);

    put(f, f->candidate, "zz", "added");
    diverges(f, &s, "\"zz\" was added outside the modifiable surface (editablePaths)");
    put(f, f->candidate, "tools/t.sh", "T"); /* same length: the bytes tell */
    diverges(f, &s, "\"tools/t.sh\" was changed outside the modifiable surface (editablePaths)");
    assert_int_equal(unlink(at(f, f->candidate, "Sources/MLXFastCLI/c.swift")), 0);
    diverges(f, &s,
             "\"Sources/MLXFastCLI/c.swift\" was deleted outside the modifiable surface "
             "(editablePaths)");
    /* bytewise order of whole paths: '-' stands before '/' */
    put(f, f->candidate, "Sources-x", "added");
    diverges(f, &s, "\"Sources-x\" was added outside the modifiable surface (editablePaths)");
    put(f, f->candidate, ".build2/x", "x"); /* not what is left out */
    diverges(f, &s, "\".build2/x\" was added outside the modifiable surface (editablePaths)");
}

static void test_links_are_compared(void **state)
{
    struct fixture *f = *state;
    struct surface s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\"]}");
    struct error err = {0};
    char one[SHA256_HEX], other[SHA256_HEX];
    assert_int_equal(symlink("there", at(f, f->trusted, "l")), 0);
    assert_int_equal(symlink("there", at(f, f->candidate, "l")), 0);
    assert_true(surface_check_trees(&s, f->trusted, f->candidate, &err));
    assert_true(surface_tree_sha256(f->trusted, one, &err));
    assert_true(surface_tree_sha256(f->candidate, other, &err));
    assert_string_equal(one, other);
    assert_int_equal(unlink(at(f, f->candidate, "l")), 0);
    assert_int_equal(symlink("where", at(f, f->candidate, "l")), 0);
    diverges(f, &s, "\"l\" was changed outside the modifiable surface (editablePaths)");
    assert_true(surface_tree_sha256(f->candidate, other, &err));
    assert_string_not_equal(one, other);
    assert_int_equal(unlink(at(f, f->candidate, "l")), 0);
    put(f, f->candidate, "l", "there"); /* the target's text as a file is no link */
    diverges(f, &s, "\"l\" was changed outside the modifiable surface (editablePaths)");
    /* a folder of the surface's parents may not become a link either */
    assert_int_equal(rename(at(f, f->candidate, "Sources"), at(f, f->candidate, "S")), 0);
    assert_int_equal(symlink("S", at(f, f->candidate, "Sources")), 0);
    assert_false(surface_check_trees(&s, f->trusted, f->candidate, &err));
    assert_string_equal(err.name, "write-divergence");
}

/* ---- the gate between commits ---- */

static void git(const char *tree, const char *const *rest)
{
    const char *argv[24] = {
        "/usr/bin/git",           "-C", tree, "-c", "user.name=t", "-c", "user.email=t@t", "-c",
        "init.defaultBranch=main"};
    size_t n = 9;
    while (*rest != NULL)
        argv[n++] = *rest++;
    assert_int_equal(run(argv), 0);
}

static const char *commit_all(struct fixture *f, const char *tree)
{
    const char *const add[] = {"add", "-A", NULL};
    const char *const commit[] = {"commit", "-q", "--allow-empty", "-m", "c", NULL};
    git(tree, add);
    git(tree, commit);
    struct buffer b = {0};
    assert_true(file_read(at(f, tree, ".git/refs/heads/main"), 100, &b, NULL));
    const char *id = arena_strndup(&f->arena, b.data, 40);
    buffer_free(&b);
    return id;
}

static void test_commits(void **state)
{
    struct fixture *f = *state;
    struct surface s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\",\"big\"],"
                                     "\"editableSurfaceByteBudget\":{\"exemptPaths\":[\"big\"]}}");
    struct error err = {0};
    struct surface_size size;
    const char *const init[] = {"init", "-q", NULL};
    assert_false(
        surface_check_commits(&s, f->candidate, "0123456789012345678901234567890123456789", &err));
    assert_string_equal(err.name, "WRITE-GATE-GIT-FAILED");
    assert_non_null(strstr(err.message, "no repository"));

    git(f->candidate, init);
    put(f, f->candidate, "big/b", "123");
    assert_int_equal(symlink("a.swift", at(f, f->candidate, "Sources/Model/l")), 0);
    const char *base = commit_all(f, f->candidate);
    assert_true(surface_measure_commit(&s, f->candidate, base, &size, &err));
    assert_int_equal(size.bytes, 5);
    assert_int_equal(size.exempt_bytes, 3);
    assert_int_equal(size.files, 2);

    put(f, f->candidate, "Sources/Model/a.swift", "edited");
    put(f, f->candidate, "Sources/Model/n\nl.swift", "a name with a line break");
    commit_all(f, f->candidate);
    if (!surface_check_commits(&s, f->candidate, base, &err))
        fail_msg("%s", err.message);

    put(f, f->candidate, "notes.md", "n");
    const char *with_notes = commit_all(f, f->candidate);
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_string_equal(err.name, "write-divergence");
    assert_string_equal(err.message,
                        "\"notes.md\" was added outside the modifiable surface (editablePaths)");
    assert_true(surface_check_commits(&s, f->candidate, with_notes, &err));

    put(f, f->candidate, "notes.md", "m");
    commit_all(f, f->candidate);
    assert_false(surface_check_commits(&s, f->candidate, with_notes, &err));
    assert_non_null(strstr(err.message, "was changed"));
    assert_int_equal(unlink(at(f, f->candidate, "notes.md")), 0);
    commit_all(f, f->candidate);
    assert_false(surface_check_commits(&s, f->candidate, with_notes, &err));
    assert_non_null(strstr(err.message, "was deleted"));
}

/* What is built is the working tree: HEAD outside the surface, but for what git does not track. */
static void test_working_tree(void **state)
{
    struct fixture *f = *state;
    struct surface s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\"]}");
    struct error err = {0};
    const char *const init[] = {"init", "-q", NULL};
    assert_int_equal(symlink("tools", at(f, f->candidate, "l")), 0);
    put(f, f->candidate, "empty", "");
    git(f->candidate, init);
    const char *base = commit_all(f, f->candidate);
    put(f, f->candidate, "untracked", "u");
    put(f, f->candidate, "Sources/Model/a.swift", "edited, not committed");
    if (!surface_check_commits(&s, f->candidate, base, &err))
        fail_msg("%s: %s", err.name, err.message);
    put(f, f->candidate, "tools/t.sh", "T");
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_string_equal(err.name, "write-divergence");
    assert_non_null(strstr(err.message, "\"tools/t.sh\" was changed"));
    put(f, f->candidate, "tools/t.sh", "t");
    assert_true(surface_check_commits(&s, f->candidate, base, &err));
    assert_int_equal(unlink(at(f, f->candidate, "l")), 0);
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_non_null(strstr(err.message, "\"l\" was deleted"));
    assert_int_equal(symlink("tool", at(f, f->candidate, "l")), 0);
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_non_null(strstr(err.message, "\"l\" was changed"));
    assert_int_equal(unlink(at(f, f->candidate, "l")), 0);
    put(f, f->candidate, "l", "tools"); /* the target's text as a file is no link */
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_non_null(strstr(err.message, "\"l\" was changed"));
}

/* Nothing that the candidate's repository says is run or believed. */
static void test_hostile_repository(void **state)
{
    struct fixture *f = *state;
    struct surface s = surface_of(f, "{\"editablePaths\":[\"Sources/Model\"]}");
    struct error err = {0};
    const char *const init[] = {"init", "-q", NULL};
    git(f->candidate, init);
    const char *base = commit_all(f, f->candidate);
    put(f, f->candidate, "evil.sh", "#!/bin/sh\ntouch \"$(dirname \"$0\")/ran\"\ncat\n");
    assert_int_equal(chmod(at(f, f->candidate, "evil.sh"), 0755), 0);
    const char *head = commit_all(f, f->candidate);
    /* The base commit replaced by HEAD would hide every change. */
    const char *const replace[] = {"replace", base, head, NULL};
    git(f->candidate, replace);
    struct buffer config = {0};
    buffer_printf(&config,
                  "[core]\n\tfsmonitor = %s/evil.sh\n\tpager = %s/evil.sh\n[diff]\n\texternal = "
                  "%s/evil.sh\n[alias]\n\tdiff-tree = !%s/evil.sh\n",
                  f->candidate, f->candidate, f->candidate, f->candidate);
    put(f, f->candidate, ".git/config", config.data);
    buffer_free(&config);
    assert_false(surface_check_commits(&s, f->candidate, base, &err));
    assert_string_equal(err.name, "write-divergence");
    assert_non_null(strstr(err.message, "\"evil.sh\" was added"));
    assert_false(file_exists(at(f, f->candidate, "ran")));

    assert_false(surface_check_commits(&s, f->candidate, "HEAD", &err));
    assert_string_equal(err.name, "WRITE-GATE-GIT-FAILED");
    assert_false(
        surface_check_commits(&s, f->candidate, "0123456789012345678901234567890123456789", &err));
    assert_string_equal(err.name, "WRITE-GATE-GIT-FAILED");
    /* a repository around the tree is not the tree's */
    put(f, f->candidate, "inner/x", "x");
    assert_false(surface_check_commits(&s, at(f, f->candidate, "inner"), base, &err));
    assert_non_null(strstr(err.message, "no repository"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_budget_block),
        TEST(test_entries),
        TEST(test_closest_entry),
        TEST(test_budget_limits),
        TEST(test_budget_skips),
        TEST(test_depth_is_bounded),
        TEST(test_growth),
        TEST(test_scope),
        TEST(test_trees),
        TEST(test_links_are_compared),
        TEST(test_commits),
        TEST(test_working_tree),
        TEST(test_hostile_repository),
    };
    return cmocka_run_group_tests_name("surface", tests, NULL, NULL);
}
