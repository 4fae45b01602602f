/* Digests of trees: the definition of the weights digest recomputed here by hand, its edges, and
 * the harness hash. */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "judge/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_digest.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "chmod -R u+rwx %s && rm -rf %s", folder, folder);
    return system(command);
}

static const char *at(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void put(const char *name, const void *data, size_t length)
{
    struct error err = {0};
    char parent[256];
    text_copy(parent, sizeof parent, at(name));
    *strrchr(parent, '/') = '\0';
    assert_true(file_make_directories(parent, &err));
    if (!file_write_atomic(at(name), data, length, &err))
        fail_msg("%s", err.message);
}

struct item {
    const char *name;
    const void *data;
    size_t length;
};

/* Section 4, on items that are already in bytewise order of their names. */
static void fold(const struct item *items, size_t count, char out[SHA256_HEX])
{
    struct buffer all = {0};
    for (size_t i = 0; i < count; i++) {
        uint8_t digest[SHA256_BYTES];
        sha256_bytes(items[i].data, items[i].length, digest);
        buffer_append(&all, items[i].name, strlen(items[i].name) + 1);
        buffer_append(&all, digest, sizeof digest);
        buffer_char(&all, '\0');
    }
    sha256_hex(all.data ? all.data : "", all.length, out);
    buffer_free(&all);
}

static void test_definition(void **state)
{
    (void)state;
    /* Bytewise order: '-' < '.' < '/' < letters, capitals first; UTF-8 last. */
    const struct item items[] = {
        {"A", "upper", 5},          {"a-b", "dash", 4},       {"a.b", "dot", 3},
        {"a/.gitkeep", "inner", 5}, {"a/b", "slash", 5},      {"a/c/d", "", 0},
        {"ab", "two\0nul", 7},      {"config.json", "{}", 2}, {"\xc3\xa9", "e", 1}};
    struct tree_digest digest;
    struct error err = {0};
    char wanted[SHA256_HEX];
    uint64_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(items); i++) {
        put(items[i].name, items[i].data, items[i].length);
        bytes += items[i].length;
    }
    /* Left out, at the root only. */
    put(".benchmark-source.sha256", "x", 1);
    put(".gitkeep", "x", 1);
    fold(items, COUNT_OF(items), wanted);
    assert_true(weights_digest(folder, &digest, &err));
    assert_string_equal(digest.sha256, wanted);
    assert_int_equal(digest.bytes, bytes);
    assert_int_equal(digest.files, COUNT_OF(items));
    /* A change of one byte, of a name, or of what is where, changes it. */
    put("ab", "two\0nuL", 7);
    assert_true(weights_digest(folder, &digest, &err));
    assert_string_not_equal(digest.sha256, wanted);
}

static void test_many_files_and_a_long_one(void **state)
{
    (void)state;
    enum { FILES = 40, LONG = (8 << 20) + 12345 }; /* longer than one piece of reading */
    struct item items[FILES + 1];
    char names[FILES][16], *data = malloc(LONG);
    struct tree_digest digest;
    struct error err = {0};
    char wanted[SHA256_HEX];
    assert_non_null(data);
    for (size_t i = 0; i < LONG; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof names[i], "f%03d", i);
        items[i] = (struct item){names[i], data + i, (size_t)i * 1000};
        put(names[i], items[i].data, items[i].length);
    }
    items[FILES] = (struct item){"g", data, LONG};
    put("g", data, LONG);
    fold(items, FILES + 1, wanted);
    for (int again = 0; again < 3; again++) {
        assert_true(weights_digest(folder, &digest, &err));
        assert_string_equal(digest.sha256, wanted);
    }
    assert_int_equal(digest.files, FILES + 1);
    free(data);
}

static void test_empty_folder(void **state)
{
    (void)state;
    struct tree_digest digest;
    struct error err = {0};
    assert_true(weights_digest(folder, &digest, &err));
    assert_string_equal(digest.sha256, EMPTY_SHA256);
    assert_int_equal(digest.bytes, 0);
    assert_int_equal(digest.files, 0);
}

static void test_links_and_special_files_are_refused(void **state)
{
    (void)state;
    struct tree_digest digest;
    struct error err = {0};
    put("config.json", "{}", 2);
    assert_int_equal(symlink("config.json", at("copy.json")), 0);
    assert_false(weights_digest(folder, &digest, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    assert_non_null(strstr(err.file, "copy.json"));
    unlink(at("copy.json"));
    assert_int_equal(symlink("/", at("loop")), 0);
    assert_false(weights_digest(folder, &digest, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    unlink(at("loop"));
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_false(weights_digest(folder, &digest, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    unlink(at("pipe"));
    assert_true(weights_digest(folder, &digest, &err));
    assert_false(weights_digest(at("absent"), &digest, &err));
    assert_string_equal(err.name, "IO");
}

static int missing_count;
static void count_missing(const char *name)
{
    assert_true(strlen(name) > 0);
    missing_count++;
}

static void test_harness_hash(void **state)
{
    (void)state;
    const struct item items[] = {{"Makefile", "all:", 4},
                                 {"Sources/main.swift", "old", 3},
                                 {"src/base/a.c", "base", 4},
                                 {"src/judge/deep/b.c", "judge", 5}};
    struct tree_digest digest;
    struct error err = {0};
    char wanted[SHA256_HEX];
    put("tools/a", "", 0);
    assert_int_equal(symlink("/", at("tests")), 0);
    assert_false(harness_hash(folder, NULL, &digest, &err));
    assert_string_equal(err.name, "HARNESS-EMPTY");
    assert_int_equal(unlink(at("tests")), 0);
    assert_int_equal(unlink(at("tools/a")), 0);
    for (size_t i = 0; i < COUNT_OF(items); i++)
        put(items[i].name, items[i].data, items[i].length);
    fold(items, COUNT_OF(items), wanted);
    missing_count = 0;
    assert_true(harness_hash(folder, count_missing, &digest, &err));
    assert_string_equal(digest.sha256, wanted);
    assert_int_equal(digest.files, COUNT_OF(items));
    /* Eleven roots of this tree less four; the original's are not missed. */
    assert_int_equal(missing_count, 7);
    /* What a participant edits, what tools leave, and what is hidden, does not count. */
    put("src/engine/compute/fast.c", "x", 1);
    put("src/judge/.swp", "x", 1);
    put("src/judge/__pycache__/m.pyc", "x", 1);
    put("notes.txt", "x", 1);
    assert_true(harness_hash(folder, NULL, &digest, &err));
    assert_string_equal(digest.sha256, wanted);
    /* The judge's sources do. */
    put("src/judge/deep/b.c", "judgf", 5);
    assert_true(harness_hash(folder, NULL, &digest, &err));
    assert_string_not_equal(digest.sha256, wanted);
    assert_int_equal(symlink("b.c", at("src/judge/deep/c.c")), 0);
    assert_false(harness_hash(folder, NULL, &digest, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
}

/* The same content hashes the same wherever the tree lies. */
static void test_harness_hash_is_relative(void **state)
{
    (void)state;
    struct tree_digest one, two;
    struct error err = {0};
    put("x/src/judge/a.c", "w", 1);
    put("y/z/src/judge/a.c", "w", 1);
    assert_true(harness_hash(at("x"), NULL, &one, &err));
    assert_true(harness_hash(at("y/z"), NULL, &two, &err));
    assert_string_equal(one.sha256, two.sha256);
}

/* Run by a user who may not read everything: root becomes nobody in a child. */
static int hash_unreadable(void)
{
    struct tree_digest digest;
    struct error err = {0};
    enum { NOBODY = 65534 };
    if (geteuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0))
        return 1;
    if (harness_hash(folder, NULL, &digest, &err))
        return 2;
    if (strcmp(err.name, "IO") != 0 || !strstr(err.file, "src/judge/a.c"))
        return 3;
    if (weights_digest(folder, &digest, &err))
        return 4;
    return strcmp(err.name, "IO") == 0 ? 0 : 5;
}

static void test_unreadable_file_is_an_error(void **state)
{
    (void)state;
    int status = -1;
    put("src/judge/a.c", "w", 1);
    put("src/judge/b.c", "w", 1);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(at("src/judge/b.c"), 0644), 0);
    assert_int_equal(chmod(at("src/judge/a.c"), 0), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(hash_unreadable());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_definition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_files_and_a_long_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_empty_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links_and_special_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_harness_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_harness_hash_is_relative, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_file_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
