/* file.h: limits, whole-or-nothing writes, listings. */
#include "base/file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct arena arena;
static char folder[64];

static int set_up(void **state)
{
    (void)state;
    text_copy(folder, sizeof folder, "/tmp/mlxfast-test-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void remove_below(const char *path)
{
    char *command = arena_printf(&arena, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static int tear_down(void **state)
{
    (void)state;
    remove_below(folder);
    arena_free(&arena);
    return 0;
}

static char *in_folder(const char *name)
{
    return path_join(&arena, folder, name);
}

static size_t count_files(void)
{
    char **names;
    size_t count;
    struct error err;
    assert_true(file_list_recursive(&arena, folder, &names, &count, &err));
    return count;
}

static void write_and_read(void **state)
{
    (void)state;
    struct error err;
    struct buffer b = {0};
    char *path = in_folder("a.bin");
    assert_true(file_write_atomic(path, "one\0two", 7, &err));
    assert_true(file_read(path, 7, &b, &err));
    assert_int_equal(b.length, 7);
    assert_memory_equal(b.data, "one\0two", 8);
    assert_true(file_write_atomic(path, NULL, 0, &err));
    assert_true(file_read(path, 0, &b, &err));
    assert_int_equal(b.length, 0);
    assert_int_equal(count_files(), 1);
    buffer_free(&b);
}

static void read_refusals(void **state)
{
    (void)state;
    struct error err;
    struct buffer b = {0};
    char *path = in_folder("big");
    assert_true(file_write_atomic(path, "12345678", 8, &err));
    assert_false(file_read(path, 7, &b, &err));
    assert_string_equal(err.name, "FILE-TOO-LARGE");
    assert_string_equal(err.file, path);
    assert_int_equal(b.length, 0);
    assert_false(file_read(in_folder("gone"), 100, &b, &err));
    assert_string_equal(err.name, "IO");
    assert_false(file_read(folder, 100, &b, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    char *fifo = in_folder("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_false(file_read(fifo, 100, &b, &err)); /* and does not wait for a writer */
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    struct file_map map;
    assert_false(file_map_open(fifo, &map, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    unlink(fifo);
    /* A file whose size is not known beforehand. */
    assert_true(file_read("/proc/self/stat", 1 << 20, &b, &err));
    assert_true(b.length > 10);
    assert_false(file_read("/proc/self/stat", 10, &b, &err));
    assert_string_equal(err.name, "FILE-TOO-LARGE");
    buffer_free(&b);
}

static void maps(void **state)
{
    (void)state;
    struct error err;
    struct file_map map;
    char *path = in_folder("m");
    assert_true(file_write_atomic(path, "abc", 3, &err));
    assert_true(file_map_open(path, &map, &err));
    assert_int_equal(map.length, 3);
    assert_memory_equal(map.data, "abc", 3);
    file_unmap(&map);
    assert_null(map.data);
    assert_true(file_write_atomic(path, "", 0, &err));
    assert_true(file_map_open(path, &map, &err));
    assert_null(map.data);
    assert_int_equal(map.length, 0);
    file_unmap(&map);
    assert_false(file_map_open(in_folder("gone"), &map, &err));
    assert_string_equal(err.name, "IO");
}

static void failed_write_leaves_nothing(void **state)
{
    (void)state;
    struct error err;
    char *path = in_folder("kept");
    assert_int_equal(mkdir(path, 0777), 0);
    char *inside = in_folder("kept/x");
    assert_true(file_write_atomic(inside, "x", 1, &err));
    assert_false(file_write_atomic(path, "data", 4, &err)); /* a folder is in the way */
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    assert_string_equal(err.file, path);
    assert_int_equal(count_files(), 1);
    assert_false(file_write_atomic(in_folder("no/such/folder"), "data", 4, &err));
    assert_int_equal(count_files(), 1);
}

static void only_files_are_targets(void **state)
{
    (void)state;
    struct error err;
    const char *fifo = in_folder("fifo"), *link = in_folder("link"), *file = in_folder("file");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("file", link), 0);
    assert_true(file_check_target(file, &err));
    assert_true(file_write_atomic(file, "x", 1, &err));
    assert_true(file_check_target(file, &err));
    const char *const wrong[] = {fifo, link, folder};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(file_check_target(wrong[i], &err));
        assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
        assert_false(file_write_atomic(wrong[i], "x", 1, &err));
    }
    const char *const nowhere[] = {"", in_folder("no/such"), in_folder("file/x"), in_folder("no/")};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        assert_false(file_check_target(nowhere[i], &err));
        assert_string_equal(err.name, "IO");
    }
    assert_int_equal(unlink(fifo) + unlink(link), 0);
    assert_int_equal(count_files(), 1);
}

static void stale_temporary_is_replaced(void **state)
{
    (void)state;
    struct error err;
    struct buffer b = {0};
    char *path = in_folder("a");
    char *stale = arena_printf(&arena, "%s.tmp.%ld", path, (long)getpid());
    int fd = open(stale, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_true(file_write_atomic(path, "new", 3, &err));
    assert_false(file_exists(stale));
    assert_true(file_read(path, 10, &b, &err));
    assert_string_equal(b.data, "new");
    buffer_free(&b);
}

static void folders(void **state)
{
    (void)state;
    struct error err;
    char *deep = in_folder("a/b//c/");
    assert_true(file_make_directories(deep, &err));
    assert_true(file_make_directories(deep, &err));
    assert_true(file_is_directory(in_folder("a/b/c")));
    assert_true(file_write_atomic(in_folder("a/file"), "x", 1, &err));
    assert_false(file_make_directories(in_folder("a/file/d"), &err));
    assert_string_equal(err.name, "IO");
    assert_string_equal(err.file, in_folder("a/file"));
    assert_true(file_exists(in_folder("a/file")));
    assert_false(file_is_directory(in_folder("a/file")));
    assert_false(file_exists(in_folder("a/none")));
}

static void paths(void **state)
{
    (void)state;
    assert_string_equal(path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(&arena, "/", "b"), "/b");
    assert_string_equal(path_join(&arena, "", "b"), "b");
    assert_string_equal(path_basename("a/b/c.txt"), "c.txt");
    assert_string_equal(path_basename("c.txt"), "c.txt");
}

static void listing(void **state)
{
    (void)state;
    struct error err;
    const char *const names[] = {"b", "a/z", "a/y", "a.txt", "B", "a/deep/er/f", "\xc3\xa9"};
    const char *const sorted[] = {"B", "a.txt", "a/deep/er/f", "a/y", "a/z", "b", "\xc3\xa9"};
    assert_true(file_make_directories(in_folder("a/deep/er"), &err));
    assert_true(file_make_directories(in_folder("empty"), &err));
    for (size_t i = 0; i < 7; i++)
        assert_true(file_write_atomic(in_folder(names[i]), "x", 1, &err));
    char **out;
    size_t count;
    assert_true(file_list_recursive(&arena, folder, &out, &count, &err));
    assert_int_equal(count, 7);
    for (size_t i = 0; i < 7; i++)
        assert_string_equal(out[i], sorted[i]);
    assert_int_equal(symlink("../b", in_folder("a/link")), 0);
    assert_false(file_list_recursive(&arena, folder, &out, &count, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    assert_string_equal(err.file, in_folder("a/link"));
    assert_false(file_list_recursive(&arena, in_folder("gone"), &out, &count, &err));
    assert_string_equal(err.name, "IO");
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ROW(write_and_read),
        ROW(read_refusals),
        ROW(maps),
        ROW(failed_write_leaves_nothing),
        ROW(only_files_are_targets),
        ROW(stale_temporary_is_replaced),
        ROW(folders),
        ROW(paths),
        ROW(listing),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
