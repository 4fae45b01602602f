/* What answers of a server mean, and what a manifest may say. */
#include "arena/fetch/manifest.h"
#include "arena/fetch/response.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct fetch_response parse(const char *head)
{
    struct fetch_response r = {0};
    while (*head) {
        const size_t n = strcspn(head, "\n");
        fetch_response_header(&r, head, n);
        head += n + (head[n] == '\n');
    }
    return r;
}

static void content_ranges(void **state)
{
    (void)state;
    struct fetch_response r;
    assert_true(fetch_response_range("bytes 5-9/10", &r));
    assert_true(r.has_range && r.has_total && r.first == 5 && r.last == 9 && r.total == 10);
    assert_true(fetch_response_range("Bytes 0-0/*", &r));
    assert_true(r.has_range && !r.has_total && r.last == 0);
    assert_true(fetch_response_range("bytes */7", &r));
    assert_true(!r.has_range && r.has_total && r.total == 7);
    static const char *const bad[] = {"",
                                      "bytes",
                                      "bytes */*",
                                      "bytes 5-4/10",
                                      "bytes 5-10/10",
                                      "bytes -5/10",
                                      "bytes 5-/10",
                                      "bytes 1-2/3x",
                                      "bytes 1-2",
                                      "bytes 1 -2/3",
                                      "items 1-2/3",
                                      "bytes 0-99999999999999999999/*",
                                      "bytes 0-9223372036854775808/*"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(fetch_response_range(bad[i], &r));
        assert_false(r.has_range);
    }
}

static void heads(void **state)
{
    (void)state;
    struct fetch_response r =
        parse("HTTP/1.1 302 Found\r\nContent-Length: 9\r\n\r\nHTTP/2 206\r\nETAG: \"a\" \r\n"
              "retry-after: 7\r\nContent-Encoding: identity\r\ncontent-length:  12\r\n");
    assert_int_equal(r.status, 206);
    assert_true(r.has_length && r.length == 12 && !r.encoded && r.retry_after == 7);
    assert_string_equal(r.etag, "\"a\"");
    r = parse("HTTP/1.1 200 OK\nETag: W/\"a\"\nContent-Length: -1\nContent-Range: nonsense\n"
              "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\nContent-Encoding: gzip\n");
    assert_string_equal(r.etag, ""); /* a weak one says nothing about bytes */
    assert_true(!r.has_length && !r.has_range && r.bad_range && r.encoded && r.retry_after == 0);
}

struct row {
    const char *head;
    uint64_t have;
    bool asked;
    enum fetch_verdict verdict;
    uint64_t offset;
    const char *name;
};

static void verdicts(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"HTTP/1.1 200 OK\nContent-Length: 1000", 0, false, FETCH_TAKE, 0, ""},
        {"HTTP/1.1 200 OK", 400, true, FETCH_TAKE, 0, ""},
        {"HTTP/1.1 200 OK\nContent-Length: 600", 400, true, FETCH_REFUSED, 0, "FETCH-LENGTH"},
        {"HTTP/1.1 206 x\nContent-Range: bytes 400-999/1000", 400, true, FETCH_TAKE, 400, ""},
        {"HTTP/1.1 206 x\nContent-Range: bytes 400-499/*", 400, true, FETCH_TAKE, 400, ""},
        {"HTTP/1.1 206 x\nContent-Range: bytes 100-999/1000", 400, true, FETCH_TAKE, 100, ""},
        {"HTTP/1.1 206 x\nContent-Range: bytes 401-999/1000", 400, true, FETCH_AFRESH, 0,
         "FETCH-RANGE"},
        {"HTTP/1.1 206 x\nContent-Range: bytes 400-999/1001", 400, true, FETCH_REFUSED, 0,
         "FETCH-LENGTH"},
        {"HTTP/1.1 206 x\nContent-Range: bytes 400-1000/*", 400, true, FETCH_REFUSED, 0,
         "FETCH-LENGTH"},
        {"HTTP/1.1 206 x", 400, true, FETCH_AFRESH, 0, "FETCH-RANGE"},
        {"HTTP/1.1 206 x\nContent-Range: bytes 400-999/1000\nETag: \"b\"", 400, true, FETCH_AFRESH,
         0, "FETCH-CHANGED"},
        {"HTTP/1.1 206 x\nContent-Range: bytes 0-999/1000", 0, false, FETCH_REFUSED, 0,
         "FETCH-HTTP"},
        {"HTTP/1.1 416 x\nContent-Range: bytes */1000", 1000, true, FETCH_DONE, 0, ""},
        {"HTTP/1.1 416 x", 1000, true, FETCH_DONE, 0, ""},
        {"HTTP/1.1 416 x\nContent-Range: bytes */1000", 400, true, FETCH_AFRESH, 0, "FETCH-RANGE"},
        {"HTTP/1.1 416 x\nContent-Range: bytes */400", 400, true, FETCH_REFUSED, 0, "FETCH-LENGTH"},
        {"HTTP/1.1 307 x", 0, false, FETCH_MOVED, 0, ""},
        {"HTTP/1.1 304 x", 0, false, FETCH_REFUSED, 0, "FETCH-HTTP"},
        {"HTTP/1.1 404 x", 0, false, FETCH_REFUSED, 0, "FETCH-HTTP"},
        {"HTTP/1.1 429 x", 0, false, FETCH_LATER, 0, "FETCH-HTTP"},
        {"HTTP/1.1 503 x", 400, true, FETCH_LATER, 0, "FETCH-HTTP"},
        {"nonsense", 0, false, FETCH_LATER, 0, "FETCH-HTTP"},
        {"HTTP/1.1 200 OK\nContent-Encoding: br", 0, false, FETCH_REFUSED, 0, "FETCH-ENCODING"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error err = {0};
        uint64_t offset = 0;
        const struct fetch_response r = parse(rows[i].head);
        const enum fetch_verdict v =
            fetch_response_judge(&r, rows[i].have, 1000, rows[i].asked, "\"a\"", &offset, &err);
        if (v != rows[i].verdict || offset != rows[i].offset || strcmp(err.name, rows[i].name) != 0)
            fail_msg("%s: verdict %d, offset %d, %s", rows[i].head, (int)v, (int)offset, err.name);
    }
}

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void manifests(void **state)
{
    (void)state;
    struct arena a = {0};
    struct fetch_manifest m;
    struct error err;
    static const char text[] = "# remark\n\n" SHA " 12 b\n" SHA " 0 a/b.c\n" SHA " 30 a.b";
    assert_true(fetch_manifest_parse(&a, "m", text, strlen(text), &m, &err));
    assert_int_equal(m.count, 3);
    assert_int_equal(m.bytes, 42);
    assert_string_equal(m.files[1].path, "a/b.c");
    assert_string_equal(m.files[2].sha256, SHA);
    static const char twice[] = SHA " 1 a\n" SHA " 1 a.b\n" SHA " 1 a/b/c\n";
    assert_false(fetch_manifest_parse(&a, "m", twice, strlen(twice), &m, &err));
    assert_string_equal(err.name, "MANIFEST-INVALID");
    assert_string_equal(err.value, "a/b/c");
    static const char high[] = SHA " 1 a\n" SHA " 1 b\x80\n";
    assert_false(fetch_manifest_parse(&a, "m", high, strlen(high), &m, &err));
    assert_string_equal(err.field, "line 2");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_ranges),
        cmocka_unit_test(heads),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(manifests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
