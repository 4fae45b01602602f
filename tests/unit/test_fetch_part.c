/* A part that is written past the page cache and hashed from memory holds what came, wherever it
 * was continued and however the bytes came in. */
#include "arena/fetch/digest.h"
#include "arena/fetch/store.h"
#include "base/buffer.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = (13 << 20) + 777 };

static char folder[64];
static uint8_t *content;
static struct arena arena;

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_fetch_part.XXXXXX");
    content = malloc(MOST);
    for (size_t i = 0; content && i < MOST; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 17);
    return content && mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    free(content);
    arena_free(&arena);
    return system(command);
}

static void open_part(struct fetch_store *s, struct fetch_part *part, struct digest **digest)
{
    static struct fetch_file f;
    struct error err = {0};
    f = (struct fetch_file){.path = "model", .bytes = MOST};
    sha256_hex(content, MOST, f.sha256);
    assert_true(fetch_store_open(&arena, folder, s, &err));
    assert_true(fetch_part_open(s, &f, part, &err));
    *digest = digest_begin(part->fd, part->path, NULL, NULL);
    fetch_part_hash(part, *digest);
    digest_advance(*digest, part->length);
}

static void append(struct fetch_part *part, size_t to, size_t step)
{
    struct error err = {0};
    while (part->length < to) {
        const size_t left = to - part->length;
        assert_true(
            fetch_part_write(part, content + part->length, left < step ? left : step, &err));
    }
}

static void holds(const char *path, size_t length)
{
    struct buffer text = {0};
    struct error err = {0};
    assert_true(file_read(path, MOST + 1, &text, &err));
    assert_int_equal(text.length, length);
    assert_memory_equal(text.data, content, length);
    buffer_free(&text);
}

static void finish(struct fetch_part *part, struct digest *digest)
{
    char hex[SHA256_HEX], wanted[SHA256_HEX];
    struct error err = {0};
    const char *path = part->path;
    assert_true(fetch_part_flush(part, &err));
    digest_close(digest, true);
    fetch_part_hash(part, NULL);
    assert_true(digest_take(digest, hex, &err));
    sha256_hex(content, MOST, wanted);
    assert_string_equal(hex, wanted);
    fetch_part_close(part);
    holds(path, MOST);
}

/* What an earlier run left ends anywhere: within a block, far beyond what fits into memory. */
static void test_continued(void **state)
{
    (void)state;
    static const size_t starts[] = {0, 1, 4096, 5000, (1 << 20) - 1, (11 << 20) + 3, MOST};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        struct fetch_store s;
        struct fetch_part part;
        struct digest *digest;
        open_part(&s, &part, &digest);
        append(&part, starts[i], 100000);
        fetch_part_hash(&part, NULL);
        digest_abandon(digest);
        const char *path = part.path;
        fetch_part_close(&part);
        if (starts[i])
            holds(path, starts[i]);
        open_part(&s, &part, &digest);
        assert_int_equal(part.length, starts[i]);
        append(&part, MOST, 16384 + i * 777);
        finish(&part, digest);
        assert_int_equal(unlink(path), 0);
    }
}

/* Slow lines flush often; what was flushed is there, to the byte. */
static void test_flushed_and_cut(void **state)
{
    (void)state;
    struct fetch_store s;
    struct fetch_part part;
    struct digest *digest;
    struct error err = {0};
    open_part(&s, &part, &digest);
    for (size_t to = 1; to < MOST; to = to * 3 + 5) {
        append(&part, to, 65536);
        assert_true(fetch_part_flush(&part, &err));
        holds(part.path, to);
    }
    append(&part, MOST - 5, 1 << 19);
    assert_true(fetch_part_cut(&part, 6 << 20, &err));
    holds(part.path, 6 << 20);
    append(&part, (7 << 20) + 1, 1 << 19);
    assert_true(fetch_part_cut(&part, 0, &err));
    append(&part, MOST, 1 << 19);
    finish(&part, digest);
}

/* Where the file cannot be opened past the page cache, it is written through it. */
static void test_without_direct(void **state)
{
    (void)state;
    struct fetch_store s;
    struct fetch_part part;
    struct digest *digest;
    open_part(&s, &part, &digest);
    const char *path = part.path;
    part.path = "/no/such/file"; /* the writer begins with the first byte */
    append(&part, 1000, 1000);
    part.path = path;
    append(&part, MOST, 1 << 18);
    finish(&part, digest);
}

/* A write that fails later than it was asked for: nothing follows it, length is what is there. */
static void test_a_limit(void **state)
{
    (void)state;
    struct fetch_store s;
    struct fetch_part part;
    struct digest *digest;
    struct error err = {0};
    struct rlimit before, limit;
    const size_t most = (5 << 20) + 100;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){most, before.rlim_max};
    open_part(&s, &part, &digest);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    bool ok = true;
    while (ok && part.length < MOST) {
        const size_t left = MOST - part.length;
        ok = fetch_part_write(&part, content + part.length, left < 4000 ? left : 4000, &err);
    }
    ok = ok && fetch_part_flush(&part, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(ok);
    assert_string_equal(err.name, "FETCH-DISK-FULL");
    assert_int_equal(part.length, most);
    holds(part.path, most);
    fetch_part_hash(&part, NULL);
    digest_abandon(digest);
    fetch_part_close(&part);
    open_part(&s, &part, &digest);
    append(&part, MOST, 1 << 20);
    finish(&part, digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_continued, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flushed_and_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_direct, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_limit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
