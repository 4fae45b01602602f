/* sha256.h against the published vectors of FIPS 180-4. */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char empty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char million[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void vectors(void **state)
{
    (void)state;
    char hex[SHA256_HEX];
    sha256_hex("", 0, hex);
    assert_string_equal(hex, empty);
    sha256_hex("abc", 3, hex);
    assert_string_equal(hex, abc);
    uint8_t digest[SHA256_BYTES];
    sha256_bytes("abc", 3, digest);
    text_hex(hex, digest, sizeof digest);
    assert_string_equal(hex, abc);
}

static void in_pieces(void **state)
{
    (void)state;
    char piece[1000], hex[SHA256_HEX];
    uint8_t digest[SHA256_BYTES];
    memset(piece, 'a', sizeof piece);
    struct sha256 *h = sha256_begin();
    for (int i = 0; i < 1000; i++)
        sha256_update(h, piece, sizeof piece);
    sha256_finish(h, digest);
    text_hex(hex, digest, sizeof digest);
    assert_string_equal(hex, million);
}

static void of_files(void **state)
{
    (void)state;
    char path[] = "/tmp/mlxfast-test-sha-XXXXXX", hex[SHA256_HEX];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct error err;
    uint8_t digest[SHA256_BYTES], again[SHA256_BYTES];
    uint64_t bytes = 9;
    assert_true(sha256_file(path, digest, &bytes, &err));
    text_hex(hex, digest, sizeof digest);
    assert_string_equal(hex, empty);
    assert_int_equal(bytes, 0);
    size_t length = (8 << 20) + 17; /* more than one piece */
    char *data = memory_alloc(length);
    for (size_t i = 0; i < length; i++)
        data[i] = (char)(i * 7 + i / 251);
    assert_true(file_write_atomic(path, data, length, &err));
    assert_true(sha256_file(path, digest, &bytes, &err));
    sha256_bytes(data, length, again);
    assert_memory_equal(digest, again, sizeof digest);
    assert_int_equal(bytes, length);
    assert_true(sha256_file(path, digest, NULL, &err));
    free(data);
    unlink(path);
    assert_false(sha256_file(path, digest, &bytes, &err));
    assert_string_equal(err.name, "IO");
    assert_string_equal(err.file, path);
    assert_false(sha256_file("/tmp", digest, NULL, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(of_files),
    };
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
