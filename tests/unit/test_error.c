/* error.h: one sentence, safe to print, its place beside it. */
#include "base/buffer.h"
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void sets_and_clears(void **state)
{
    (void)state;
    struct error e;
    memset(&e, 'x', sizeof e);
    assert_false(error_set(&e, "NAME", "count %d", 3));
    assert_string_equal(e.name, "NAME");
    assert_string_equal(e.message, "count 3");
    assert_string_equal(e.file, "");
    assert_false(error_at(&e, "f", NULL, "v"));
    assert_string_equal(e.file, "f");
    assert_string_equal(e.field, "");
    assert_string_equal(e.value, "v");
    assert_false(error_at(&e, NULL, "a.b", NULL));
    assert_string_equal(e.file, "f");
    assert_string_equal(e.field, "a.b");
    assert_false(error_set(&e, "NEXT", "again"));
    assert_string_equal(e.field, "");
}

static void null_is_allowed(void **state)
{
    (void)state;
    assert_false(error_set(NULL, "NAME", "text"));
    assert_false(error_at(NULL, "f", "g", "v"));
    errno = ENOENT;
    assert_false(error_errno(NULL, "f", "what"));
}

static void own_text_may_be_an_argument(void **state)
{
    (void)state;
    struct error e;
    error_set(&e, "INNER", "the cause");
    error_set(&e, e.name, "outer: %s", e.message);
    assert_string_equal(e.name, "INNER");
    assert_string_equal(e.message, "outer: the cause");
}

static void control_bytes_are_shown(void **state)
{
    (void)state;
    struct error e;
    error_set(&e, "N", "%s", "a\nb\x1b[31m\x7f\xff\xc2\x9bz caf\xc3\xa9");
    assert_string_equal(e.message, "a\\x0Ab\\x1B[31m\\x7F\\xFF\\xC2\\x9Bz caf\xc3\xa9");
    error_at(&e, "bad\rname", NULL, NULL);
    assert_string_equal(e.file, "bad\\x0Dname");
}

static void long_text_is_clipped_at_a_character(void **state)
{
    (void)state;
    char text[2000];
    struct error e;
    for (int shift = 0; shift < 4; shift++) {
        memset(text, 'a', sizeof text);
        for (size_t i = (size_t)shift; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xf0\x9f\x98\x80", 4);
        text[sizeof text - 1] = '\0';
        error_set(&e, "N", "x");
        error_at(&e, NULL, NULL, text);
        assert_true(utf8_valid(e.value, strlen(e.value)));
        assert_true(text_ends(e.value, "..."));
        assert_true(strlen(e.value) < sizeof e.value);
        assert_true(strlen(e.value) > sizeof e.value - 12);
    }
    /* What just fits stays whole; one byte more is clipped. */
    memset(text, 'b', sizeof text);
    text[sizeof e.value - 1] = '\0';
    error_at(&e, NULL, NULL, text);
    assert_string_equal(e.value, text);
    text[sizeof e.value - 1] = 'b';
    text[sizeof e.value] = '\0';
    error_at(&e, NULL, NULL, text);
    assert_int_equal(strlen(e.value), sizeof e.value - 1);
    assert_true(text_ends(e.value, "b..."));
}

static void one_line(void **state)
{
    (void)state;
    char line[200], small[12];
    struct error e;
    error_set(&e, "NAME", "text");
    assert_string_equal(error_line(&e, line, sizeof line), "NAME: text");
    error_at(&e, "f.json", NULL, NULL);
    assert_string_equal(error_line(&e, line, sizeof line), "NAME: text (file f.json)");
    error_at(&e, NULL, "a[0]", "7");
    assert_string_equal(error_line(&e, line, sizeof line),
                        "NAME: text (file f.json, field a[0], value 7)");
    assert_string_equal(error_line(&e, small, sizeof small), "NAME: text ");
}

static void from_errno(void **state)
{
    (void)state;
    struct error e;
    errno = ENOENT;
    assert_false(error_errno(&e, "gone", "cannot open"));
    assert_string_equal(e.name, "IO");
    assert_string_equal(e.message, "cannot open: No such file or directory");
    assert_string_equal(e.file, "gone");
    assert_int_equal(errno, ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_and_clears),
        cmocka_unit_test(null_is_allowed),
        cmocka_unit_test(own_text_may_be_an_argument),
        cmocka_unit_test(control_bytes_are_shown),
        cmocka_unit_test(long_text_is_clipped_at_a_character),
        cmocka_unit_test(one_line),
        cmocka_unit_test(from_errno),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
