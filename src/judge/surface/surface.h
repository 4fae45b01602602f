/* The editable surface of a track's tree (contract-and-scoring.md section 9): what a submission may
 * change, and how much of it. The manifest is benchmark.json of the trusted tree; every check names
 * the first path that breaks it. Paths are relative to a tree's root, with '/'.
 *
 * A file belongs to the entry that names it most closely: an entry inside another is charged by
 * itself. Symbolic links and special files are not charged, and are no way out either: the gate
 * sees them. */
#ifndef MLXFAST_JUDGE_SURFACE_SURFACE_H
#define MLXFAST_JUDGE_SURFACE_SURFACE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes; the defaults of section 9 where the manifest has none. */
enum {
    SURFACE_TOTAL_DEFAULT = 4404587,
    SURFACE_FILE_DEFAULT = 524288,
    SURFACE_GROWTH_DEFAULT = 262144,
    SURFACE_EXEMPT_TOTAL_DEFAULT = 512000000,
    SURFACE_EXEMPT_FILE_DEFAULT = 100000000,
};
#define SURFACE_MANIFEST "benchmark.json"

struct surface_entry {
    const char *path;
    bool exempt; /* charged to the exempt caps */
};
struct surface {
    const char *manifest;          /* the file's path, for messages */
    struct surface_entry *entries; /* editablePaths, then optionalEditablePaths */
    size_t entry_count;
    const char **exempt; /* exemptPaths, whether or not they are entries */
    size_t exempt_count;
    const char **scope; /* what no entry may reach: the eight of section 9, or trustedScope */
    size_t scope_count;
    int64_t total_max, file_max, growth_max, exempt_total_max, exempt_file_max;
};

/* All in the arena. Errors: IO, JSON-INVALID and its like, SURFACE-MANIFEST-INVALID (a type, an
 * unknown key of the budget, a cap that is no integer above 0, a file's cap above its total, an
 * illegal shape of an entry, no usable editablePaths). */
bool surface_load(struct arena *a, const char *trusted_tree, struct surface *out,
                  struct error *err);
bool surface_parse(struct arena *a, const char *path, const char *data, size_t length,
                   struct surface *out, struct error *err);

/* The entry that holds this path most closely; NULL: it is outside the surface. */
const struct surface_entry *surface_find(const struct surface *s, const char *path);
/* Whether path is `folder` or below it. */
bool surface_is_below(const char *path, const char *folder);
/* Whether the gate passes over it: .git, .build, .build-worker, weights at the root. */
bool surface_is_left_out(const char *path);

/* No entry of any list may be, hold, or lie in a trusted path, by its letters without regard to
 * their case or by the file that it leads to. Errors: TRUSTED-SCOPE-MISSING, one of them is not
 * there; TRUSTED-SCOPE-EDITABLE, with the entry. */
bool surface_check_scope(const struct surface *s, const char *trusted_tree, struct error *err);

struct surface_size {
    uint64_t bytes; /* without the exempt ones */
    uint64_t exempt_bytes;
    uint64_t files;
};
/* The candidate's files of the surface within their caps: each file before the sum. Errors:
 * SURFACE-FILE-TOO-LARGE, SURFACE-TOO-LARGE, SURFACE-UNREADABLE, SURFACE-EMPTY. */
bool surface_check_budget(const struct surface *s, const char *tree, struct surface_size *out,
                          struct error *err);
/* The same sizes without caps, of a tree or of a commit of a tree's repository: what a candidate
 * grew from. Errors: SURFACE-UNREADABLE, WRITE-GATE-GIT-FAILED. */
bool surface_measure_tree(const struct surface *s, const char *tree, struct surface_size *out,
                          struct error *err);
bool surface_measure_commit(const struct surface *s, const char *tree, const char *commit,
                            struct surface_size *out, struct error *err);
/* Error SURFACE-GROWTH-EXCEEDED. Exempt bytes do not count; shrinking is free. */
bool surface_check_growth(const struct surface *s, const struct surface_size *before,
                          const struct surface_size *after, struct error *err);

/* Nothing outside the surface differs: files by their bytes, links by their targets. .git, .build,
 * .build-worker and weights at the root are left out. Errors: write-divergence with the first path
 * in bytewise order, SURFACE-UNREADABLE. */
bool surface_check_trees(const struct surface *s, const char *baseline, const char *candidate,
                         struct error *err);
/* The same between a commit (40 lower-case hex digits) and HEAD of the candidate's repository, by
 * git's plumbing in an empty environment, within SURFACE_GIT_SECONDS; and between HEAD and the
 * files that it tracks as they lie in the tree. What git does not track is not looked at. Errors:
 * write-divergence, WRITE-GATE-GIT-FAILED. */
enum { SURFACE_GIT_SECONDS = 60 };
bool surface_check_commits(const struct surface *s, const char *candidate, const char *commit,
                           struct error *err);

/* A digest of all that the gate compares: path, 0, SHA-256 of (a byte: 0 a file, 1 a link, 2
 * another thing; then the content or the target), 0, in bytewise order. Error SURFACE-UNREADABLE.
 */
bool surface_tree_sha256(const char *tree, char out[SHA256_HEX], struct error *err);

#endif
