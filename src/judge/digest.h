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
/* The weights digest: byte-exact definition of section 4. Symbolic links inside the folder are
 * refused (NOT-A-REGULAR-FILE): valid weights hold none. Hashes with up to 8 threads; an empty
 * folder has the digest of no bytes. Errors: IO. */
bool weights_digest(const char *folder, struct tree_digest *out, struct error *err);

/* Refuses (GOLDEN-IN-WEIGHTS) a folder with a file of the same bytes as the golden: the engine
 * reads the weights. Errors: as weights_digest. */
bool weights_check_golden(const char *folder, const char *golden, struct error *err);

/* What the system says of a file (through links), or of every file of a folder: place, size, times
 * of change. A program cannot set the time of an inode's change, so a stamp that is still the same
 * means that the bytes are, without reading them again. Errors: as weights_digest. */
bool path_stamp(const char *path, char out[SHA256_HEX], struct error *err);

/* Whether they still have the stamp that they had before the run: what was measured must be what
 * was named before it. Errors: WEIGHTS-CHANGED, DRAFTER-CHANGED, ENGINE-CHANGED. */
bool stamp_check_weights(const char *path, const char stamp[SHA256_HEX], struct error *err);
bool stamp_check_drafter(const char *path, const char stamp[SHA256_HEX], struct error *err);
bool stamp_check_engine(const char *path, const char stamp[SHA256_HEX], struct error *err);

/* Both stamps, for runs that need not have them: a folder of links has none, and an engine that is
 * not there fails by its own name. What has no stamp is not checked. */
struct run_stamps {
    char weights[SHA256_HEX], engine[SHA256_HEX]; /* "": cannot be told */
};
void run_stamps_take(const char *weights, const char *engine, struct run_stamps *out);
bool run_stamps_check(const struct run_stamps *before, const char *weights, const char *engine,
                      struct error *err);

/* The harness hash, new form: named roots below `root`, relative paths sorted bytewise, separators
 * of the weights digest. Dot names and __pycache__ are skipped; an unreadable file (IO) or a
 * symbolic link (NOT-A-REGULAR-FILE) is an error. A root of this tree that is not there is skipped
 * and reported through on_missing when that is not NULL. A folder with no src/judge and none of
 * the original's Package.swift, Sources, benchmark.json is HARNESS-EMPTY. */
bool harness_hash(const char *root, void (*on_missing)(const char *name), struct tree_digest *out,
                  struct error *err);

/* The harness hash, old form: the original's roots in the working folder, absolute paths, no
 * separators; whatever cannot be read is passed over, roots that are not there are reported. It
 * changes with the place of the tree: only for comparing with published scores. */
bool harness_hash_legacy(void (*on_missing)(const char *name), char out[SHA256_HEX],
                         struct error *err);

#endif
