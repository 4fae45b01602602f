/* arena.h: aligned, zeroed, together; the guard aborts in debug builds. */
#include "base/arena.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct arena a = {0};
    const size_t sizes[] = {0, 1, 63, 64, 65, 4000, 300000, 7, 5000000, 12, 16384, 1 << 20};
    unsigned char *parts[12];
    size_t total = 0;
    for (size_t i = 0; i < 12; i++) {
        parts[i] = arena_alloc(&a, sizes[i]);
        total += sizes[i];
        assert_non_null(parts[i]);
        assert_int_equal((uintptr_t)parts[i] % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(parts[i][k], 0);
        if (sizes[i])
            memset(parts[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < 12; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(parts[i][k], (int)i + 1);
    assert_int_equal(a.total, total);
    arena_free(&a);
    assert_null(a.head);
    assert_int_equal(a.total, 0);
    assert_non_null(arena_alloc(&a, 10)); /* usable again */
    arena_free(&a);
}

static void many_small_ones(void **state)
{
    (void)state;
    struct arena a = {0};
    uint32_t *kept[5000];
    for (uint32_t i = 0; i < 5000; i++) {
        kept[i] = arena_array(&a, 1 + i % 40, sizeof **kept);
        kept[i][0] = i;
        kept[i][i % 40] = i;
    }
    for (uint32_t i = 0; i < 5000; i++)
        assert_int_equal(kept[i][i % 40], i);
    arena_free(&a);
}

static void texts(void **state)
{
    (void)state;
    struct arena a = {0};
    assert_string_equal(arena_strdup(&a, "abc"), "abc");
    assert_string_equal(arena_strndup(&a, "abcdef", 2), "ab");
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_string_equal(arena_printf(&a, "%s-%05d", "x", 42), "x-00042");
    char *long_text = arena_printf(&a, "%70000d", 1);
    assert_int_equal(strlen(long_text), 70000);
    arena_free(&a);
}

/* Runs act in a child process and gives the signal that ended it, 0 for none. */
static int signal_of(void (*act)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        act();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void overflowing_array(void)
{
    struct arena a = {0};
    arena_array(&a, SIZE_MAX / 2, 3);
}

static void impossible_size(void)
{
    struct arena a = {0};
    arena_alloc(&a, SIZE_MAX - 10);
}

static void allocate_under_guard(void)
{
    struct arena a = {0};
    memory_guard_begin();
    arena_alloc(&a, 1);
}

static void reallocate_under_nested_guard(void)
{
    memory_guard_begin();
    memory_guard_begin();
    memory_guard_end();
    free(memory_realloc(NULL, 1));
}

static void allocate_after_guard(void)
{
    memory_guard_begin();
    memory_guard_end();
    free(memory_alloc(1));
}

static void aborts_rather_than_wraps(void **state)
{
    (void)state;
    assert_int_equal(signal_of(overflowing_array), SIGABRT);
    assert_int_equal(signal_of(impossible_size), SIGABRT);
}

static void guard(void **state)
{
    (void)state;
#ifdef MLXFAST_DEBUG
    const int expected = SIGABRT;
#else
    const int expected = 0;
#endif
    assert_int_equal(signal_of(allocate_under_guard), expected);
    assert_int_equal(signal_of(reallocate_under_nested_guard), expected);
    assert_int_equal(signal_of(allocate_after_guard), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_zeroed_and_apart),
        cmocka_unit_test(many_small_ones),
        cmocka_unit_test(texts),
        cmocka_unit_test(aborts_rather_than_wraps),
        cmocka_unit_test(guard),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
