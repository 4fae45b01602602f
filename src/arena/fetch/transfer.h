/* Files over HTTP: several at once, each continued where it was, hashed while it comes in, put in
 * place once it is whole, right and on the disk. */
#ifndef MLXFAST_ARENA_FETCH_TRANSFER_H
#define MLXFAST_ARENA_FETCH_TRANSFER_H

#include "arena/fetch/plan.h"
#include "arena/fetch/store.h"

enum { FETCH_SOURCES_MOST = 2, FETCH_JOBS_MOST = 16, FETCH_REDIRECTS_MOST = 10 };

struct fetch_rules {
    const char *sources[FETCH_SOURCES_MOST]; /* bases, in the order of trying */
    size_t source_count;
    const char *auth_header; /* "Name: value" for the first base's origin, nobody else; or NULL */
    const char *ca_file;     /* or NULL: the system's */
    int64_t jobs, retries;
    int64_t stall_bytes, stall_seconds; /* slower than that for so long: connect anew */
    int64_t connect_seconds, retry_delay_ms;
};

/* Gets every item of the plan that is not right; their states become FETCH_RIGHT. A file that no
 * source gives right does not stop the others; the error is the first such file's, and failed says
 * how many there are. Errors of the disk and INTERRUPTED stop everything. Errors name the file, the
 * source without its secrets, what was expected and what came: FETCH-HTTP, FETCH-LENGTH,
 * FETCH-RANGE, FETCH-CHANGED, FETCH-ENCODING, FETCH-REDIRECT, FETCH-CONNECTION, FETCH-TLS,
 * FETCH-STALLED, FETCH-TRUNCATED, FETCH-SHA256, FETCH-DISK-FULL, IO. */
bool fetch_transfer(struct arena *a, const struct fetch_rules *rules, struct fetch_plan *plan,
                    struct fetch_store *store, struct mutation_lock *lock,
                    struct fetch_progress *progress, size_t *failed, struct error *err);

#endif
