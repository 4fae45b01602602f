/* What a person may set: one table of flags, each with its variable; a flag beats its variable, a
 * variable the track's fetch.json, that the default. An empty variable counts as not set. */
#ifndef MLXFAST_ARENA_FETCH_SETTINGS_H
#define MLXFAST_ARENA_FETCH_SETTINGS_H

#include "arena/fetch/track.h"
#include "base/options.h"

struct fetch_settings {
    const char *track; /* the argument */
    bool drafter, verify_only, print_path, skip_download, full_verify, no_hash_verify, json, quiet;
    const char *base_url, *fallback, *auth_header, *auth_header_file, *cache_dir, *dir, *hf_home,
        *manifest, *lock_path, *link, *ca_file;
    int64_t jobs, retries, retry_delay_ms, min_free_gib, stall_bytes, stall_seconds,
        connect_seconds, lock_wait_seconds, lock_stale_seconds, progress_seconds;
};

extern const struct command fetch_command;

/* Arguments, then the environment. On OPTIONS_OK s is whole, its texts live in a or argv or the
 * environment. Errors: USAGE, with the flag or the variable as field. */
enum options_result fetch_settings_parse(struct arena *a, int argc, char **argv,
                                         struct fetch_settings *s, struct error *err);

/* Where the files go: --dir, --cache-dir, the track's own folder, or the cache's layout
 * <home>/hub/models--<owner>--<name>/snapshots/<revision>. Error USAGE (two that differ, no home).
 */
bool fetch_settings_folder(struct arena *a, const struct fetch_settings *s,
                           const struct fetch_track *t, const char **folder, struct error *err);

#endif
