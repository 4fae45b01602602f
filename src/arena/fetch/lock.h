/* Two locks. The verified-cache lock (deepseek-track.md section 11) remembers that every file was
 * hashed: while sizes and times agree with it, later runs need not hash again. The mutation lock
 * keeps two set-ups from changing one folder at once. */
#ifndef MLXFAST_ARENA_FETCH_LOCK_H
#define MLXFAST_ARENA_FETCH_LOCK_H

#include "arena/fetch/manifest.h"

/* Whether the lock at path is of this manifest, repository and revision, and every file in folder
 * has the size and the modification time that it lists. Anything else is false; why says what. */
bool fetch_lock_holds(const char *path, const char *folder, const struct fetch_manifest *m,
                      const char *repo, const char *revision, struct error *why);
/* Written beside itself and renamed. Every file has just been hashed. */
bool fetch_lock_write(const char *path, const char *folder, const struct fetch_manifest *m,
                      const char *repo, const char *revision, struct error *err);
/* Removes it, and what killed runs left of it beside it. Error LOCK-IN-THE-WAY: what stands there
 * is no lock, and is left alone. */
bool fetch_lock_forget(struct arena *a, const char *path, struct error *err);

struct mutation_lock {
    int fd;
    const char *path;
    int64_t touched_ns;
};
/* Waits for the folder's mutation lock at most timeout seconds (FETCH-LOCKED names the holder;
 * INTERRUPTED). A holder on this machine that has died holds nothing; one on another machine counts
 * as dead once it has not touched the lock for stale seconds. tell(waited_s, holder) is called now
 * and then while waiting; may be NULL. */
bool mutation_lock_take(struct arena *a, const char *folder, int64_t timeout, int64_t stale,
                        void (*tell)(double waited, const char *holder), struct mutation_lock *l,
                        struct error *err);
void mutation_lock_touch(struct mutation_lock *l); /* cheap: call it often */
void mutation_lock_release(struct mutation_lock *l);

#endif
