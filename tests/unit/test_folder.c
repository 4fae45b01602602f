/* Folders that appear whole or not at all. */
#include "base/file.h"
#include "base/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    struct arena arena;
    char root[64];
    struct error err;
    struct folder_build build;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->root, sizeof f->root, "/tmp/mlxfast-folder-XXXXXX");
    *state = f;
    return f && mkdtemp(f->root) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    folder_abandon(&(struct folder_build){.temporary = path_join(&f->arena, f->root, "out")});
    rmdir(f->root);
    const int left = access(f->root, F_OK) == 0;
    arena_free(&f->arena);
    free(f);
    return left; /* whatever a test left would keep the folder */
}

static void begin(struct fixture *f, const char *name)
{
    assert_true(folder_plan(&f->arena, path_join(&f->arena, f->root, name), &f->build, &f->err));
    assert_true(folder_begin(&f->build, &f->err));
    assert_true(file_write_atomic(path_join(&f->arena, f->build.temporary, "a"), "x", 1, &f->err));
}

static void test_commit(void **state)
{
    struct fixture *f = *state;
    begin(f, "out///");
    assert_false(file_exists(f->build.out));
    assert_true(folder_commit(&f->build, &f->err));
    assert_true(file_exists(path_join(&f->arena, f->build.out, "a")));
    assert_false(file_exists(f->build.temporary));
    struct folder_build again;
    assert_false(folder_plan(&f->arena, f->build.out, &again, &f->err));
    assert_string_equal(f->err.name, "OUT-EXISTS");
}

static void test_files(void **state)
{
    struct fixture *f = *state;
    struct folder_file file;
    struct buffer found = {0};
    begin(f, "out");
    assert_false(folder_create_file(&f->build, "a", &file, &f->err)); /* it is there */
    assert_string_equal(f->err.name, "IO");
    assert_true(folder_create_file(&f->build, "b", &file, &f->err));
    assert_true(folder_write_file(&file, "one ", 4, &f->err));
    assert_true(folder_write_file(&file, "", 0, &f->err));
    assert_true(folder_write_file(&file, "two", 3, &f->err));
    assert_true(folder_close_file(&file, true, &f->err));
    assert_true(file_read(file.path, 64, &found, &f->err));
    assert_int_equal(found.length, 7);
    assert_memory_equal(found.data, "one two", 7);
    buffer_free(&found);

    /* What failed before stays failed, with its error. */
    assert_true(folder_create_file(&f->build, "c", &file, &f->err));
    error_set(&f->err, "NAME", "before");
    assert_false(folder_close_file(&file, false, &f->err));
    assert_string_equal(f->err.name, "NAME");

    /* A disk that is full. */
    struct folder_file full = {.fd = open("/dev/full", O_WRONLY | O_CLOEXEC), .path = "full"};
    assert_true(full.fd >= 0);
    assert_false(folder_write_file(&full, "x", 1, &f->err));
    assert_string_equal(f->err.name, "IO");
    close(full.fd);
    folder_abandon(&f->build);
    assert_false(file_exists(f->build.temporary));
}

static void test_abandon(void **state)
{
    struct fixture *f = *state;
    begin(f, "out");
    folder_abandon(&f->build);
    assert_false(file_exists(f->build.temporary));
    assert_false(file_exists(f->build.out));
}

/* A run that was killed leaves its folder unlocked: the next removes it, folders in it too. One
 * that lives, and what only looks alike, stay. */
static void test_left_over(void **state)
{
    struct fixture *f = *state;
    struct folder_file file;
    begin(f, "out");
    static const char *const names[] = {"out.tmp.1", "out.tmp.x", "other.tmp.1"};
    for (size_t i = 0; i < 3; i++) {
        const char *path = path_join(&f->arena, f->root, names[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        assert_int_equal(mkdir(path_join(&f->arena, path, "in"), 0777), 0);
        assert_true(file_write_atomic(path_join(&f->arena, path, "in/a"), "x", 1, &f->err));
    }
    struct folder_build second;
    assert_true(folder_plan(&f->arena, path_join(&f->arena, f->root, "out"), &second, &f->err));
    assert_false(file_exists(path_join(&f->arena, f->root, names[0])));
    assert_true(file_exists(f->build.temporary));
    for (size_t i = 1; i < 3; i++) {
        const char *path = path_join(&f->arena, f->root, names[i]);
        assert_true(file_exists(path_join(&f->arena, path, "in/a")));
        folder_abandon(&(struct folder_build){.temporary = path});
    }
    /* A name with folders before it. */
    assert_true(folder_create_file(&f->build, "in/deep/b", &file, &f->err));
    assert_true(folder_close_file(&file, true, &f->err));
    assert_true(folder_commit(&f->build, &f->err));
    assert_true(file_exists(path_join(&f->arena, f->build.out, "in/deep/b")));
}

/* Something came to stand there while the files were made. */
static void test_never_onto_another(void **state)
{
    struct fixture *f = *state;
    begin(f, "out");
    assert_int_equal(mkdir(f->build.out, 0777), 0);
    assert_false(folder_commit(&f->build, &f->err));
    assert_string_equal(f->err.name, "IO");
    assert_true(file_exists(path_join(&f->arena, f->build.temporary, "a")));
    folder_abandon(&f->build);
}

static void test_space(void **state)
{
    struct fixture *f = *state;
    assert_true(folder_plan(&f->arena, path_join(&f->arena, f->root, "o"), &f->build, &f->err));
    assert_true(folder_check_space(&f->build, 1, &f->err));
    assert_false(folder_check_space(&f->build, (uint64_t)1 << 62, &f->err));
    assert_string_equal(f->err.name, "NO-SPACE");
    assert_true(strtoull(f->err.value, NULL, 10) > 0);
}

static void test_refused_places(void **state)
{
    struct fixture *f = *state;
    static const char *const places[] = {"", "/", "/nowhere/at/all"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_false(folder_plan(&f->arena, places[i], &f->build, &f->err));
        assert_string_equal(f->err.name, "IO");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_commit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_left_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_abandon, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_never_onto_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused_places, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
