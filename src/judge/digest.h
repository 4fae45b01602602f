/* Digests of trees (sealing-and-digests.md sections 4 and 5). */
#ifndef MLXFAST_JUDGE_DIGEST_H
#define MLXFAST_JUDGE_DIGEST_H

#include "base/error.h"
#include "base/sha256.h"

#include <stdint.h>

struct tree_digest {
    char sha256[SHA256_HEX];
    uint64_t bytes, files;
};
/* The weights digest: byte-exact definition of section 4. Symbolic links are refused
 * (NOT-A-REGULAR-FILE): valid weights hold none. Hashes with up to 8 threads. Errors: IO. */
bool weights_digest(const char *folder, struct tree_digest *out, struct error *err);
/* The harness hash, new form: the same roots relative to `root`, relative paths, separators of the
 * weights digest, an unreadable file is an error. Missing roots are skipped (each reported through
 * on_missing when not NULL). */
bool harness_hash(const char *root, void (*on_missing)(const char *name), struct tree_digest *out,
                  struct error *err);

#endif
