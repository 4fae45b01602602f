#include "arena/fetch/fetch.h"

#include "arena/fetch/lock.h"
#include "arena/fetch/plan.h"
#include "arena/fetch/store.h"
#include "arena/fetch/transfer.h"
#include "arena/fetch/url.h"
#include "base/clock.h"
#include "base/file.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    struct arena *a;
    const struct fetch_settings *s;
    struct fetch_track track;
    struct fetch_manifest manifest;
    struct fetch_rules rules;
    const char *folder, *lock_path, *link;
    struct fetch_progress progress;
    struct mutation_lock lock;
    bool bundled; /* the repository's own folder: nothing but its files goes there */
    void (*note)(const struct error *fault);
};

/* Here and not where the track is read, so that whoever only reads it needs no libcurl. */
static bool check_url(const struct fetch_track *t, const char *key, const char *url,
                      struct error *err)
{
    struct error why = {0};
    if (!url || !*url || fetch_url_check_base(key, url, &why))
        return true;
    error_set(err, "TRACK-INVALID", "%s", why.message);
    return error_at(err, t->file, key, why.value);
}

static bool read_track(struct arena *a, const struct fetch_settings *s, struct fetch_track *t,
                       struct error *err)
{
    return fetch_track_read(a, s->track, s->drafter, t, err) &&
           check_url(t, "base_url", t->base_url, err) &&
           check_url(t, "fallback_url", t->fallback_url, err);
}

bool fetch_folder(struct arena *a, const struct fetch_settings *s, const char **folder,
                  struct error *err)
{
    struct fetch_track track;
    return read_track(a, s, &track, err) && fetch_settings_folder(a, s, &track, folder, err);
}

static bool gather(struct job *j, struct error *err)
{
    const struct fetch_settings *s = j->s;
    struct fetch_rules *r = &j->rules;
    if (!read_track(j->a, s, &j->track, err) ||
        !fetch_settings_folder(j->a, s, &j->track, &j->folder, err) ||
        !fetch_manifest_read(j->a, s->manifest ? s->manifest : j->track.manifest, &j->manifest,
                             err))
        return false;
    *r = (struct fetch_rules){.auth_header = s->auth_header,
                              .ca_file = s->ca_file,
                              .jobs = s->jobs,
                              .retries = s->retries,
                              .retry_delay_ms = s->retry_delay_ms,
                              .stall_bytes = s->stall_bytes,
                              .stall_seconds = s->stall_seconds,
                              .connect_seconds = s->connect_seconds};
    const char *first = s->base_url ? s->base_url : j->track.base_url;
    const char *second = s->fallback ? s->fallback : j->track.fallback_url;
    if (first && *first)
        r->sources[r->source_count++] = first;
    if (second && *second)
        r->sources[r->source_count++] = second;
    if (first && !fetch_url_check_base(s->base_url ? "--base-url" : "base_url", first, err))
        return false;
    if (second && *second && !fetch_url_check_base("--fallback", second, err))
        return false;
    if (!first)
        r->auth_header = NULL; /* it is the first URL's, not the fallback's */
    j->bundled = j->folder == j->track.folder ||
                 (j->track.folder && file_is_same(j->folder, j->track.folder));
    j->lock_path =
        s->lock_path ? s->lock_path : path_join(j->a, j->folder, ".mlxfast-reference-cache.lock");
    j->link = s->link ? s->link : j->track.link;
    if (j->link && !*j->link)
        j->link = NULL;
    j->progress.quiet = s->quiet;
    j->progress.every_ns = s->progress_seconds * INT64_C(1000000000);
    return true;
}

static bool lock_holds(struct job *j, struct error *why)
{
    return fetch_lock_holds(j->lock_path, j->folder, &j->manifest, j->track.repo, j->track.revision,
                            why);
}

static bool make_plan(struct job *j, bool hashes, struct fetch_plan *plan, struct error *err)
{
    long threads = sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads > 0 && threads < j->s->jobs ? threads : j->s->jobs;
    return fetch_plan_make(j->a, j->folder, &j->manifest,
                           hashes ? FETCH_CHECK_HASHES : FETCH_CHECK_SIZES, threads,
                           j->lock.fd >= 0 ? &j->lock : NULL, &j->progress, plan, err);
}

/* Each item that is not right to the caller; the first is the error. */
static bool report(struct job *j, const struct fetch_plan *plan, struct error *err)
{
    bool first = true;
    for (size_t i = 0; i < plan->manifest->count; i++) {
        struct error fault;
        if (plan->items[i].state == FETCH_RIGHT)
            continue;
        fetch_plan_fault(&plan->items[i], &fault);
        if (first && err)
            *err = fault;
        else if (j->note)
            j->note(&fault);
        first = false;
    }
    return first;
}

static bool verify(struct job *j, struct fetch_result *r, struct error *err)
{
    struct fetch_plan plan;
    r->hashed = !j->s->no_hash_verify;
    return make_plan(j, r->hashed, &plan, err) && report(j, &plan, err);
}

static void tell_waiting(double waited, const char *holder)
{
    fprintf(stderr, "another set-up works in this folder (%s); waiting, %.0f s so far\n", holder,
            waited);
}

static bool download(struct job *j, struct fetch_plan *plan, struct fetch_result *r,
                     struct error *err)
{
    struct fetch_store store;
    size_t failed = 0;
    if (j->rules.source_count == 0) {
        struct error fault = {0};
        for (size_t i = 0; i < plan->manifest->count && !fault.name[0]; i++)
            if (plan->items[i].state != FETCH_RIGHT)
                fetch_plan_fault(&plan->items[i], &fault);
        error_set(err, "FETCH-NO-SOURCE",
                  "%s; the track names nowhere to fetch it from: give --base-url, or bring it back "
                  "(git checkout, where it is bundled)",
                  fault.message);
        return error_at(err, fault.file, NULL, NULL);
    }
    const int64_t gib = j->s->min_free_gib >= 0 ? j->s->min_free_gib : j->track.min_free_gib;
    if (!fetch_plan_check_space(j->a, plan, (uint64_t)gib << 30, err) ||
        !fetch_store_open(j->a, j->folder, &store, err))
        return false;
    r->fetched = plan->missing + plan->wrong;
    r->fetched_bytes = plan->bytes_to_get;
    fetch_progress_begin(&j->progress, "fetch", r->fetched, plan->bytes_to_get,
                         j->s->progress_seconds, j->s->quiet);
    fetch_progress_note(&j->progress, "%zu of %zu files to fetch, %.2f GB, from %s", r->fetched,
                        j->manifest.count, (double)plan->bytes_to_get / 1e9,
                        fetch_url_shown(j->a, j->rules.sources[0]));
    const bool ok =
        fetch_transfer(j->a, &j->rules, plan, &store, &j->lock, &j->progress, &failed, err);
    fetch_progress_end(&j->progress);
    if (!ok && failed > 1)
        fetch_progress_note(&j->progress, "%zu files could not be fetched; the first:", failed);
    fetch_store_clean(&store, ok);
    return ok;
}

/* Bundled files that are right need no lock, and leave no trace. */
static bool bundled_is_right(struct job *j)
{
    struct fetch_plan plan;
    return j->bundled && make_plan(j, true, &plan, NULL) && plan.right == j->manifest.count;
}

static bool check_folder(const char *path, struct error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISDIR(st.st_mode))
        return true; /* what else is wrong is told where it is used */
    error_set(err, "NOT-A-FOLDER", "expected a folder or nothing, found %s; it is left alone",
              S_ISLNK(st.st_mode) ? "a link" : "another thing");
    return error_at(err, path, NULL, NULL);
}

/* What is written and removed in the folder stays in it: no link leads a part or a file elsewhere.
 */
static bool check_folders(struct job *j, struct error *err)
{
    if (!check_folder(path_join(j->a, j->folder, ".mlxfast-fetch"), err))
        return false;
    for (size_t i = 0; i < j->manifest.count; i++) {
        const char *path = j->manifest.files[i].path;
        for (const char *end = path; (end = strchr(end, '/')) != NULL; end++) {
            const char *part = arena_strndup(j->a, path, (size_t)(end - path));
            if (!check_folder(path_join(j->a, j->folder, part), err))
                return false;
        }
    }
    return true;
}

/* The folder is ours alone. */
static bool work(struct job *j, struct fetch_result *r, struct error *err)
{
    struct fetch_plan plan;
    struct error why = {0};
    /* Who waited for another set-up finds its lock. */
    if (!j->s->full_verify && lock_holds(j, &why)) {
        r->by_lock = true;
        return true;
    }
    /* Whatever is found from here on, it is of the past. */
    if (!check_folders(j, err) || !fetch_lock_forget(j->a, j->lock_path, err))
        return false;
    const bool hashes = !j->s->no_hash_verify;
    if (!make_plan(j, hashes, &plan, err))
        return false;
    const bool complete = plan.right == j->manifest.count;
    if (!complete && !download(j, &plan, r, err))
        return false;
    if (!complete && j->s->full_verify &&
        (!make_plan(j, true, &plan, err) || !report(j, &plan, err)))
        return false;
    r->hashed = hashes || r->fetched == j->manifest.count;
    if (!r->hashed || (j->bundled && !j->s->lock_path))
        return true;
    return fetch_lock_write(j->lock_path, j->folder, &j->manifest, j->track.repo, j->track.revision,
                            err);
}

static bool mutate(struct job *j, struct fetch_result *r, struct error *err)
{
    if (!file_make_directories(j->folder, err) ||
        !mutation_lock_take(j->a, j->folder, j->s->lock_wait_seconds, j->s->lock_stale_seconds,
                            j->s->quiet ? NULL : tell_waiting, &j->lock, err))
        return false;
    const bool ok = work(j, r, err);
    mutation_lock_release(&j->lock);
    return ok;
}

bool fetch(struct arena *a, const struct fetch_settings *s, void (*note)(const struct error *fault),
           struct fetch_result *r, struct error *err)
{
    struct job j = {.a = a, .s = s, .lock = {.fd = -1}, .note = note};
    struct error why = {0};
    const int64_t started = clock_now_ns();
    *r = (struct fetch_result){0};
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of the write */
    if (!gather(&j, err))
        return false;
    char real[PATH_MAX];
    r->track = j.track.id;
    r->repo = j.track.repo;
    r->revision = j.track.revision;
    r->files = j.manifest.count;
    r->bytes = j.manifest.bytes;
    r->folder = j.folder;
    snprintf(r->manifest_sha256, sizeof r->manifest_sha256, "%s", j.manifest.sha256);
    bool ok = true;
    if (s->skip_download)
        r->skipped = true;
    else if (s->verify_only)
        ok = verify(&j, r, err);
    else if (!s->full_verify && lock_holds(&j, &why))
        r->by_lock = true;
    else if (bundled_is_right(&j))
        r->hashed = true;
    else
        ok = mutate(&j, r, err);
    if (ok && realpath(j.folder, real))
        r->folder = arena_strdup(a, real);
    if (ok && j.link && !s->skip_download && !s->verify_only) {
        ok = fetch_store_link(a, j.link, j.folder, err);
        r->link = j.link;
    }
    r->seconds = clock_seconds(started);
    return ok;
}
