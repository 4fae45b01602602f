/* SHA-256 through libcrypto: see sha256.h. libcrypto fails here only when memory is gone. */
#include "base/sha256.h"

#include "base/arena.h"
#include "base/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct sha256 {
    EVP_MD_CTX *context;
};

static void must(int ok)
{
    if (ok != 1) {
        fputs("mlxfast: SHA-256 is not available from libcrypto\n", stderr);
        abort();
    }
}

struct sha256 *sha256_begin(void)
{
    struct sha256 *h = memory_alloc(sizeof *h);
    h->context = EVP_MD_CTX_new();
    must(h->context != NULL);
    must(EVP_DigestInit_ex(h->context, EVP_sha256(), NULL));
    return h;
}

void sha256_update(struct sha256 *h, const void *data, size_t length)
{
    must(EVP_DigestUpdate(h->context, data, length));
}

void sha256_finish(struct sha256 *h, uint8_t out[SHA256_BYTES])
{
    must(EVP_DigestFinal_ex(h->context, out, NULL));
    EVP_MD_CTX_free(h->context);
    free(h);
}

void sha256_bytes(const void *data, size_t length, uint8_t out[SHA256_BYTES])
{
    struct sha256 *h = sha256_begin();
    sha256_update(h, data, length);
    sha256_finish(h, out);
}

void sha256_hex(const void *data, size_t length, char out[SHA256_HEX])
{
    uint8_t digest[SHA256_BYTES];
    sha256_bytes(data, length, digest);
    text_hex(out, digest, sizeof digest);
}

bool sha256_file(const char *path, uint8_t out[SHA256_BYTES], uint64_t *bytes, struct error *err)
{
    enum { PIECE = 8 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block the open */
    if (fd < 0)
        return error_errno(err, path, "cannot open");
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        error_set(err, "NOT-A-REGULAR-FILE", "not a regular file");
        return error_at(err, path, NULL, NULL);
    }
    uint8_t *piece = memory_alloc(PIECE);
    struct sha256 *h = sha256_begin();
    uint64_t total = 0;
    ssize_t n;
    while ((n = read(fd, piece, PIECE)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        sha256_update(h, piece, (size_t)n);
        total += (uint64_t)n;
    }
    bool ok = n == 0;
    if (!ok)
        error_errno(err, path, "cannot read");
    uint8_t digest[SHA256_BYTES];
    sha256_finish(h, digest);
    free(piece);
    close(fd);
    if (!ok)
        return false;
    for (size_t i = 0; i < sizeof digest; i++)
        out[i] = digest[i];
    if (bytes)
        *bytes = total;
    return true;
}
