/* What stands in a folder against a manifest: which files are right, wrong or missing, and the
 * space that the rest needs. */
#ifndef MLXFAST_ARENA_FETCH_PLAN_H
#define MLXFAST_ARENA_FETCH_PLAN_H

#include "arena/fetch/lock.h"
#include "arena/fetch/manifest.h"
#include "arena/fetch/progress.h"

enum fetch_state { FETCH_MISSING, FETCH_WRONG, FETCH_RIGHT };

struct fetch_item {
    const struct fetch_file *file;
    const char *path; /* in the folder */
    enum fetch_state state;
    uint64_t found_bytes;          /* of what stands there */
    char found_sha256[SHA256_HEX]; /* "" where the length already says that it is wrong */
};

struct fetch_plan {
    const struct fetch_manifest *manifest;
    const char *folder;
    struct fetch_item *items; /* in the manifest's order */
    size_t missing, wrong, right;
    uint64_t bytes_to_get; /* of files that are missing or wrong */
};

enum fetch_check {
    FETCH_CHECK_SIZES, /* a file of the right length passes */
    FETCH_CHECK_HASHES /* every file of the right length is read */
};

/* lock may be NULL. Links are followed. Errors: IO, NOT-A-REGULAR-FILE (a folder or device under a
 * pinned name), INTERRUPTED. */
bool fetch_plan_make(struct arena *a, const char *folder, const struct fetch_manifest *m,
                     enum fetch_check check, int64_t threads, struct mutation_lock *lock,
                     struct fetch_progress *progress, struct fetch_plan *plan, struct error *err);
/* One sentence about an item that is not right, as an error: FETCH-MISSING, FETCH-LENGTH,
 * FETCH-SHA256, with file, what was expected and what is there. Returns false. */
bool fetch_plan_fault(const struct fetch_item *item, struct error *err);
/* Room for what is still to come, but at least min_free less what is there already. Error
 * FETCH-NO-SPACE. */
bool fetch_plan_check_space(struct arena *a, const struct fetch_plan *plan, uint64_t min_free,
                            struct error *err);

#endif
