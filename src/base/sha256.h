/* SHA-256 through OpenSSL's libcrypto. */
#ifndef MLXFAST_BASE_SHA256_H
#define MLXFAST_BASE_SHA256_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX = 65 };

struct sha256; /* a running hash */
struct sha256 *sha256_begin(void);
void sha256_update(struct sha256 *h, const void *data, size_t length);
void sha256_finish(struct sha256 *h, uint8_t out[SHA256_BYTES]); /* frees h */

void sha256_bytes(const void *data, size_t length, uint8_t out[SHA256_BYTES]);
void sha256_hex(const void *data, size_t length, char out[SHA256_HEX]);
/* Streams the file in 8 MiB pieces; *bytes may be NULL. */
bool sha256_file(const char *path, uint8_t out[SHA256_BYTES], uint64_t *bytes, struct error *err);

#endif
