/* buffer.h: growing text, and UTF-8 by the table of the Unicode standard. */
#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void grows(void **state)
{
    (void)state;
    struct buffer b = {0};
    buffer_append(&b, NULL, 0);
    assert_int_equal(b.length, 0);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 1000; i++) {
        buffer_printf(&b, "%d,", i % 10);
        assert_int_equal(b.data[b.length], 0);
    }
    assert_int_equal(b.length, 2000);
    assert_memory_equal(b.data + 1998, "9,", 3);
    buffer_clear(&b);
    assert_int_equal(b.length, 0);
    buffer_text(&b, "ab");
    buffer_char(&b, '\0');
    buffer_append(&b, "cd", 2);
    assert_int_equal(b.length, 5);
    assert_memory_equal(b.data, "ab\0cd", 6);
    buffer_free(&b);
    assert_null(b.data);
    buffer_free(&b);
    buffer_clear(&b);
}

static void small_texts(void **state)
{
    (void)state;
    char out[4];
    assert_true(text_copy(out, sizeof out, "abc"));
    assert_string_equal(out, "abc");
    assert_false(text_copy(out, sizeof out, "abcd"));
    assert_string_equal(out, "abc");
    assert_false(text_copy(out, 0, "abc"));
    assert_true(text_starts("abc", "ab") && text_starts("abc", ""));
    assert_false(text_starts("a", "ab"));
    assert_true(text_ends("abc", "bc") && text_ends("abc", ""));
    assert_false(text_ends("c", "bc"));
}

static void hexadecimal(void **state)
{
    (void)state;
    const uint8_t bytes[] = {0x00, 0x0f, 0xa5, 0xff};
    char out[9];
    text_hex(out, bytes, 4);
    assert_string_equal(out, "000fa5ff");
    assert_true(text_is_lower_hex(out, 8));
    assert_false(text_is_lower_hex(out, 7));
    assert_false(text_is_lower_hex(out, 9));
    assert_false(text_is_lower_hex("000FA5ff", 8));
    assert_false(text_is_lower_hex("000ga5ff", 8));
    assert_true(text_is_lower_hex("", 0));
}

static int sequence(const char *text)
{
    return utf8_sequence((const uint8_t *)text, strlen(text));
}

static void utf8(void **state)
{
    (void)state;
    assert_int_equal(sequence("a"), 1);
    assert_int_equal(sequence("\xc2\x80"), 2);
    assert_int_equal(sequence("\xe0\xa0\x80"), 3);
    assert_int_equal(sequence("\xed\x9f\xbf"), 3);
    assert_int_equal(sequence("\xee\x80\x80"), 3);
    assert_int_equal(sequence("\xf0\x90\x80\x80"), 4);
    assert_int_equal(sequence("\xf4\x8f\xbf\xbfxyz"), 4);
    const char *const never[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf", "\xc2\x7f", "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf", "\xf4\x90",         "\xf5\x80", "\xff",     "\xfe",
        "\xe1\x80\x7f", "\xc2\xc2",     "\xf1\x80\x80\x7f", "\xed\xbf"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        assert_int_equal(sequence(never[i]), 0);
    const char *const beginnings[] = {"",     "\xc2",     "\xe0",         "\xe0\xa0",
                                      "\xf0", "\xf0\x90", "\xf0\x90\x80", "\xf4\x8f\xbf"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        assert_int_equal(sequence(beginnings[i]), -1);
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\0\xc3\xa9", 4));
    assert_false(utf8_valid("a\xc3", 2));
}

/* Every code point encodes to a valid sequence exactly when it is no surrogate. */
static void utf8_every_code_point(void **state)
{
    (void)state;
    for (uint32_t c = 0x800; c < 0x110000; c++) {
        uint8_t s[4];
        int n = c < 0x10000 ? 3 : 4;
        for (int i = n - 1; i > 0; i--)
            s[i] = (uint8_t)(0x80 | ((c >> (6 * (n - 1 - i))) & 63));
        s[0] = (uint8_t)(n == 3 ? 0xe0 | (c >> 12) : 0xf0 | (c >> 18));
        int expected = c >= 0xd800 && c < 0xe000 ? 0 : n;
        if (utf8_sequence(s, 4 < n ? 4 : (size_t)n) != expected)
            fail_msg("U+%04X", c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),
        cmocka_unit_test(small_texts),
        cmocka_unit_test(hexadecimal),
        cmocka_unit_test(utf8),
        cmocka_unit_test(utf8_every_code_point),
    };
    return cmocka_run_group_tests_name("buffer", tests, NULL, NULL);
}
