#include "judge/evidence/key.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    KEY_FILE_MOST = 4096,
    DER_HEAD = 12,
    DER_BYTES = DER_HEAD + KEY_BYTES,
    BASE64_BYTES = 60 /* of 44 */
};
/* SubjectPublicKeyInfo of an Ed25519 key up to its 32 bytes (RFC 8410). */
static const uint8_t der_head[DER_HEAD] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03,
                                           0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
static const char pem_head[] = "-----BEGIN PUBLIC KEY-----\n";
static const char pem_tail[] = "\n-----END PUBLIC KEY-----\n";

struct private_key {
    EVP_PKEY *pair;
    struct public_key public;
};

/* libcrypto fails in these calls only when memory is gone. */
static void must(bool ok)
{
    if (!ok) {
        fputs("mlxfast: Ed25519 is not available from libcrypto\n", stderr);
        abort();
    }
}

static bool invalid(struct error *err, const char *file, const char *what)
{
    error_set(err, "KEY-INVALID", "%s", what);
    return error_at(err, file, NULL, NULL);
}

static void name_key(struct public_key *k)
{
    char hex[SHA256_HEX];
    sha256_hex(k->raw, sizeof k->raw, hex);
    text_copy(k->id, sizeof k->id, hex);
}

void key_render_public(const struct public_key *k, struct buffer *out)
{
    uint8_t der[DER_BYTES], text[BASE64_BYTES + 1];
    memcpy(der, der_head, DER_HEAD);
    memcpy(der + DER_HEAD, k->raw, KEY_BYTES);
    EVP_EncodeBlock(text, der, DER_BYTES);
    buffer_text(out, pem_head);
    buffer_append(out, text, BASE64_BYTES);
    buffer_text(out, pem_tail);
}

bool key_parse_public(const char *name, const char *data, size_t length, struct public_key *out,
                      struct error *err)
{
    static const char what[] = "not the public key of an Ed25519 pair as keygen writes it";
    const size_t head = sizeof pem_head - 1, tail = sizeof pem_tail - 1;
    uint8_t der[BASE64_BYTES];
    struct buffer again = {0};
    if (length != head + BASE64_BYTES + tail ||
        EVP_DecodeBlock(der, (const uint8_t *)data + head, BASE64_BYTES) < DER_BYTES)
        return invalid(err, name, what);
    memcpy(out->raw, der + DER_HEAD, KEY_BYTES);
    name_key(out);
    key_render_public(out, &again);
    const bool same = memcmp(again.data, data, length) == 0;
    buffer_free(&again);
    return same || invalid(err, name, what);
}

bool key_load_public(const char *path, struct public_key *out, struct error *err)
{
    struct buffer text = {0};
    const bool ok = file_read(path, KEY_FILE_MOST, &text, err) &&
                    key_parse_public(path, text.data, text.length, out, err);
    buffer_free(&text);
    return ok;
}

bool key_verify(const struct public_key *k, const void *data, size_t length,
                const uint8_t signature[KEY_SIGNATURE_BYTES])
{
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, k->raw, KEY_BYTES);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    must(context != NULL);
    const bool ok = key != NULL && EVP_DigestVerifyInit(context, NULL, NULL, NULL, key) == 1 &&
                    EVP_DigestVerify(context, signature, KEY_SIGNATURE_BYTES, data, length) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    return ok;
}

static bool fill_public(struct private_key *k)
{
    size_t length = KEY_BYTES;
    if (EVP_PKEY_get_id(k->pair) != EVP_PKEY_ED25519 ||
        EVP_PKEY_get_raw_public_key(k->pair, k->public.raw, &length) != 1 || length != KEY_BYTES)
        return false;
    name_key(&k->public);
    return true;
}

/* A new file, whole or not at all; what stands there stays. */
static bool write_new(const char *path, const void *data, size_t length, mode_t mode,
                      struct error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 && errno == EEXIST) {
        error_set(err, "KEY-EXISTS", "a key is never replaced: move this file away first");
        return error_at(err, path, NULL, NULL);
    }
    if (fd < 0)
        return error_errno(err, path, "create");
    const bool ok = write(fd, data, length) == (ssize_t)length && fsync(fd) == 0;
    if (!ok) {
        error_errno(err, path, "write");
        unlink(path);
    }
    close(fd);
    return ok;
}

bool key_generate(const char *path, struct public_key *out, struct error *err)
{
    struct arena a = {0};
    struct buffer text = {0};
    struct private_key k = {0};
    char *pem = NULL;
    const char *public_path = arena_printf(&a, "%s.pub", path);
    struct stat s;
    if (lstat(public_path, &s) == 0) {
        error_set(err, "KEY-EXISTS", "a key is never replaced: move this file away first");
        error_at(err, public_path, NULL, NULL);
        arena_free(&a);
        return false;
    }
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, NULL);
    must(context != NULL && EVP_PKEY_keygen_init(context) == 1 &&
         EVP_PKEY_keygen(context, &k.pair) == 1);
    EVP_PKEY_CTX_free(context);
    must(fill_public(&k));
    BIO *memory = BIO_new(BIO_s_mem());
    must(memory != NULL &&
         PEM_write_bio_PKCS8PrivateKey(memory, k.pair, NULL, NULL, 0, NULL, NULL) == 1);
    const long length = BIO_get_mem_data(memory, &pem);
    bool ok = write_new(path, pem, (size_t)length, 0600, err);
    OPENSSL_cleanse(pem, (size_t)length);
    if (ok) {
        key_render_public(&k.public, &text);
        ok = write_new(public_path, text.data, text.length, 0644, err);
        if (!ok)
            unlink(path); /* a pair or nothing */
    }
    *out = k.public;
    BIO_free(memory);
    EVP_PKEY_free(k.pair);
    buffer_free(&text);
    arena_free(&a);
    return ok;
}

/* A key under a passphrase is not asked for: a run signs by itself. */
static int no_passphrase(char *buffer, int size, int writing, void *context)
{
    (void)buffer, (void)size, (void)writing, (void)context;
    return -1;
}

bool key_load_private(const char *path, struct private_key **out, struct error *err)
{
    struct buffer text = {0};
    struct stat s;
    *out = NULL;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && (s.st_mode & 077) != 0)
        return invalid(err, path, "a signing key that others may read or write: chmod 600");
    if (!file_read(path, KEY_FILE_MOST, &text, err)) {
        buffer_free(&text);
        return false;
    }
    struct private_key *k = memory_alloc(sizeof *k);
    BIO *memory = BIO_new_mem_buf(text.length ? text.data : "", (int)text.length);
    must(memory != NULL);
    k->pair = PEM_read_bio_PrivateKey(memory, NULL, no_passphrase, NULL);
    BIO_free(memory);
    if (text.data)
        OPENSSL_cleanse(text.data, text.length);
    buffer_free(&text);
    if (k->pair == NULL || !fill_public(k)) {
        key_free(k);
        return invalid(err, path, "not the private key of an Ed25519 pair in PEM, unencrypted");
    }
    *out = k;
    return true;
}

const struct public_key *key_public(const struct private_key *k)
{
    return &k->public;
}

void key_sign(const struct private_key *k, const void *data, size_t length,
              uint8_t signature[KEY_SIGNATURE_BYTES])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    size_t written = KEY_SIGNATURE_BYTES;
    must(context != NULL && EVP_DigestSignInit(context, NULL, NULL, NULL, k->pair) == 1 &&
         EVP_DigestSign(context, signature, &written, data, length) == 1 &&
         written == KEY_SIGNATURE_BYTES);
    EVP_MD_CTX_free(context);
}

void key_free(struct private_key *k)
{
    if (k == NULL)
        return;
    EVP_PKEY_free(k->pair);
    free(k);
}
