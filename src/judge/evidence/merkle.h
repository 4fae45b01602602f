/* The tree over a log's entries (RFC 6962 section 2.1, SHA-256): leaves are hashed behind a zero
 * byte and nodes behind a one, so that no node passes for an entry. One hash, the root, stands for
 * all entries in their order; short proofs show that an entry is one of them, or that a longer log
 * goes on where a shorter one ended. */
#ifndef MLXFAST_JUDGE_EVIDENCE_MERKLE_H
#define MLXFAST_JUDGE_EVIDENCE_MERKLE_H

#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct merkle_hash {
    uint8_t bytes[SHA256_BYTES];
};
enum { MERKLE_PATH_MOST = 66 };

void merkle_leaf(const void *data, size_t length, struct merkle_hash *out);
/* leaves: [count] leaf hashes. The root of none is the digest of no bytes. */
void merkle_root(const struct merkle_hash *leaves, size_t count, struct merkle_hash *out);
/* The hashes beside the way from leaf `index` to the root, lowest first; index < count. Returns
 * their number. */
size_t merkle_prove(const struct merkle_hash *leaves, size_t count, size_t index,
                    struct merkle_hash path[MERKLE_PATH_MOST]);
bool merkle_check(const struct merkle_hash *leaf, uint64_t index, uint64_t count,
                  const struct merkle_hash *path, size_t length, const struct merkle_hash *root);
/* That the tree of the first `before` leaves is the beginning of this one; 0 < before <= count. */
size_t merkle_prove_extends(const struct merkle_hash *leaves, size_t count, size_t before,
                            struct merkle_hash path[MERKLE_PATH_MOST]);
bool merkle_check_extends(uint64_t before, uint64_t count, const struct merkle_hash *before_root,
                          const struct merkle_hash *root, const struct merkle_hash *path,
                          size_t length);

#endif
