/* Ed25519 keys: PEM files that stock OpenSSL reads, signatures of 64 bytes over the file's bytes as
 * they are (`openssl pkeyutl -verify -rawin` checks them too). */
#ifndef MLXFAST_JUDGE_EVIDENCE_KEY_H
#define MLXFAST_JUDGE_EVIDENCE_KEY_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEY_BYTES = 32, KEY_SIGNATURE_BYTES = 64, KEY_ID = 17 };

struct public_key {
    uint8_t raw[KEY_BYTES];
    char id[KEY_ID]; /* the first 16 hex digits of the SHA-256 of raw */
};
/* One text of a key is accepted: the one that key_render_public writes. Errors: KEY-INVALID; of the
 * second also IO and those of file_read. */
bool key_parse_public(const char *name, const char *data, size_t length, struct public_key *out,
                      struct error *err);
bool key_load_public(const char *path, struct public_key *out, struct error *err);
void key_render_public(const struct public_key *k, struct buffer *out);
bool key_verify(const struct public_key *k, const void *data, size_t length,
                const uint8_t signature[KEY_SIGNATURE_BYTES]);

struct private_key; /* free with key_free */
/* Makes a pair: path (mode 0600) and "<path>.pub". Neither may stand there. Errors: KEY-EXISTS, IO.
 */
bool key_generate(const char *path, struct public_key *out, struct error *err);
/* Errors: IO, KEY-INVALID (no Ed25519 key, or a file that others may read or write). */
bool key_load_private(const char *path, struct private_key **out, struct error *err);
const struct public_key *key_public(const struct private_key *k);
void key_sign(const struct private_key *k, const void *data, size_t length,
              uint8_t signature[KEY_SIGNATURE_BYTES]);
void key_free(struct private_key *k);

#endif
