/* The table of refusals: the page made from it, and the sources held to it in both directions.
 * Runs from the repository's root. */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "judge/refusals.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void read_whole(const char *path, struct buffer *out)
{
    struct error err = {0};
    if (!file_read(path, 4 << 20, out, &err))
        fail_msg("%s: %s", path, err.message);
    buffer_text(out, "");
}

/* The sources of a folder and its folders in one text, the table itself left out. */
static void read_sources(const char *folder, struct buffer *out)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    const struct dirent *e;
    while ((e = readdir(d))) {
        char path[512];
        struct buffer text = {0};
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && file_is_directory(path))
            read_sources(path, out);
        if (!text_ends(e->d_name, ".c") && !text_ends(e->d_name, ".h"))
            continue;
        if (strcmp(e->d_name, "refusals.h") == 0)
            continue;
        read_whole(path, &text);
        buffer_append(out, text.data, text.length);
        buffer_free(&text);
    }
    closedir(d);
}

static void test_page_is_the_generators(void **state)
{
    (void)state;
    struct buffer page = {0}, made = {0};
    read_whole("docs/refusals.md", &page);
    refusals_write_markdown(&made);
    if (strcmp(page.data, made.data) != 0)
        fail_msg("docs/refusals.md is not what `benchd refusals` prints: write it anew");
    buffer_free(&page);
    buffer_free(&made);
}

static void test_rows_are_sound(void **state)
{
    (void)state;
    size_t count;
    const struct refusal *all = refusals_all(&count);
    assert_true(count > 30);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(all[i].name) > 1 && !strpbrk(all[i].name, " :|`"));
        assert_true(text_ends(all[i].meaning, ".") && !strpbrk(all[i].meaning, "|\n"));
        assert_ptr_equal(refusals_find(all[i].name), &all[i]); /* no name stands twice */
    }
    assert_null(refusals_find("NO-SUCH-NAME"));
}

/* error_set(err, "NAME", ...) in the judge: NAME has a row. */
static void test_every_name_used_has_a_row(void **state)
{
    (void)state;
    struct buffer text = {0};
    int seen = 0;
    read_sources("src/judge", &text);
    for (const char *p = text.data; (p = strstr(p, "error_set(")); p++) {
        const char *quote = strchr(p, '"'), *end = quote ? strchr(quote + 1, '"') : NULL;
        int commas = 0;
        assert_non_null(end);
        for (const char *q = p; q < quote; q++)
            commas += *q == ',' ? 1 : *q == ';' || *q == '{' ? 100 : 0;
        if (commas != 1)
            continue; /* the name is a variable */
        char *name = strndup(quote + 1, (size_t)(end - quote - 1));
        if (!refusals_find(name))
            fail_msg("%s is used and has no row in src/judge/refusals.h", name);
        free(name);
        seen++;
    }
    assert_true(seen > 30);
    buffer_free(&text);
}

static void test_every_row_is_used(void **state)
{
    (void)state;
    struct buffer text = {0};
    size_t count;
    const struct refusal *all = refusals_all(&count);
    read_sources("src/judge", &text);
    read_sources("src/base", &text);
    read_sources("src/programs", &text);
    for (size_t i = 0; i < count; i++) {
        char quoted[128];
        snprintf(quoted, sizeof quoted, "\"%s\"", all[i].name);
        if (!strstr(text.data, quoted))
            fail_msg("%s has a row and is not used", all[i].name);
    }
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_is_the_generators),
        cmocka_unit_test(test_rows_are_sound),
        cmocka_unit_test(test_every_name_used_has_a_row),
        cmocka_unit_test(test_every_row_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
