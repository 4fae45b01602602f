/* See transfer.h. One thread moves the bytes of every file (libcurl multi); each file has a thread
 * that writes and one that hashes what came. A task is a file: it waits, transfers, is hashed, and
 * is done or failed.
 */
#include "arena/fetch/transfer.h"

#include "arena/fetch/digest.h"
#include "arena/fetch/response.h"
#include "arena/fetch/url.h"
#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DISCARD_MOST = 1 << 20,
    RECEIVE_BYTES = 512 * 1024,
    DELAY_MOST_S = 30,
    RETRY_AFTER_MOST_S = 60
};
/* An attempt that brought the file so much further than any before is not counted: a bad line may
 * take long, but it ends. */
static const uint64_t PROGRESS_BYTES = 1 << 20;
static const int64_t MS_NS = 1000000, FLUSH_AFTER_NS = 1000000000;

enum task_state { TASK_IDLE, TASK_WAITS, TASK_TRANSFERS, TASK_HASHED, TASK_DONE, TASK_FAILED };

struct task {
    struct work *work;
    struct fetch_item *item;
    enum task_state state;
    struct fetch_part part;
    struct digest *digest;
    CURL *easy;
    struct curl_slist *headers;
    char curl_text[CURL_ERROR_SIZE];
    size_t source;
    const char *url; /* of this request */
    int redirects;
    int64_t attempts;        /* that brought nothing, at this source */
    bool afresh, mismatched; /* ask without a range; the hash was wrong once at this source */
    struct fetch_response response;
    bool asked, judged;
    enum fetch_verdict verdict;
    uint64_t furthest, discarded; /* the most that was there; of this answer, not wanted */
    char etag[FETCH_ETAG_MOST];   /* of the bytes that are there, at this source */
    int64_t resume_ns, started_ns, flushed_ns;
    uint64_t resumed; /* bytes that were there before this run */
    struct error err; /* of the latest attempt */
    struct error local;
    bool is_local; /* a failure on this side: nothing can go on */
};

struct work {
    struct arena *arena;
    const struct fetch_rules *rules;
    struct fetch_store *store;
    struct fetch_progress *progress;
    CURLM *multi;
    struct task *tasks;
    size_t count;
};

static const char *base_of(const struct task *t)
{
    return t->work->rules->sources[t->source];
}

static bool local_failure(struct task *t)
{
    t->is_local = true;
    return false;
}

/* As it is written down: a password in it is not for the disk. */
static const char *base_shown(const struct task *t)
{
    return fetch_url_shown(t->work->arena, base_of(t));
}

/* Nothing of the part is kept. */
static bool start_over(struct task *t)
{
    t->etag[0] = '\0';
    return fetch_part_cut(&t->part, 0, &t->local) || local_failure(t);
}

/* ---- what libcurl calls ---- */

static size_t on_header(char *data, size_t size, size_t count, void *argument)
{
    struct task *t = argument;
    fetch_response_header(&t->response, data, size * count);
    return size * count;
}

/* The answer's head is there: whether its body is wanted, and where it belongs. */
static bool judge(struct task *t)
{
    uint64_t offset = 0;
    t->judged = true;
    t->verdict = fetch_response_judge(&t->response, t->part.length, t->item->file->bytes, t->asked,
                                      t->etag, &offset, &t->err);
    if (t->verdict != FETCH_TAKE)
        return true;
    if (offset < t->part.length && !fetch_part_cut(&t->part, offset, &t->local))
        return local_failure(t);
    if (t->response.etag[0] && offset == 0) {
        text_copy(t->etag, sizeof t->etag, t->response.etag);
        fetch_part_keep_etag(&t->part, base_shown(t), t->etag);
    }
    return true;
}

static bool flush(struct task *t)
{
    t->flushed_ns = clock_now_ns();
    return fetch_part_flush(&t->part, &t->local) || local_failure(t);
}

static size_t on_body(char *data, size_t size, size_t count, void *argument)
{
    struct task *t = argument;
    const size_t length = size * count;
    const uint64_t bytes = t->item->file->bytes;
    if (!t->judged && !judge(t))
        return 0;
    if (t->verdict != FETCH_TAKE) {
        t->discarded += length;
        return t->discarded > DISCARD_MOST ? 0 : length;
    }
    if (length > bytes - t->part.length) {
        t->verdict = FETCH_REFUSED;
        error_set(&t->err, "FETCH-LENGTH", "expected %" PRIu64 " bytes, the server sends more",
                  bytes);
        return 0;
    }
    const uint64_t put = t->part.length - t->part.held;
    if (!fetch_part_write(&t->part, data, length, &t->local)) {
        local_failure(t);
        return 0;
    }
    if (t->part.length - t->part.held != put)
        t->flushed_ns = clock_now_ns();
    return length;
}

/* ---- one request ---- */

static bool wants_credentials(const struct task *t)
{
    const struct fetch_rules *r = t->work->rules;
    return r->auth_header && fetch_url_same_origin(r->sources[0], base_of(t)) &&
           fetch_url_same_origin(r->sources[0], t->url);
}

static void set_protocols(CURL *easy)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

static void request(struct task *t)
{
    const struct fetch_rules *rules = t->work->rules;
    CURL *easy = t->easy;
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    t->response = (struct fetch_response){0};
    t->judged = false;
    t->discarded = 0;
    t->curl_text[0] = '\0';
    t->asked = t->part.length > 0 && !t->afresh;
    curl_easy_reset(easy);
    if (t->asked) {
        char range[64];
        snprintf(range, sizeof range, "Range: bytes=%" PRIu64 "-", t->part.length);
        t->headers = curl_slist_append(t->headers, range);
        if (t->etag[0]) {
            char if_range[FETCH_ETAG_MOST + 16];
            snprintf(if_range, sizeof if_range, "If-Range: %s", t->etag);
            t->headers = curl_slist_append(t->headers, if_range);
        }
    }
    if (wants_credentials(t))
        t->headers = curl_slist_append(t->headers, rules->auth_header);
    set_protocols(easy);
    curl_easy_setopt(easy, CURLOPT_URL, t->url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "mlxfast");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)rules->connect_seconds);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)rules->stall_bytes);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)rules->stall_seconds);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->curl_text);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
    if (rules->ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, rules->ca_file);
    curl_multi_add_handle(t->work->multi, easy);
    t->state = TASK_TRANSFERS;
}

static void whole(struct task *t)
{
    digest_close(t->digest, true);
    t->state = TASK_HASHED;
}

static void attempt(struct task *t)
{
    if (t->part.length == t->item->file->bytes) {
        whole(t);
        return;
    }
    if (!t->easy)
        t->easy = curl_easy_init();
    if (!t->easy) {
        error_set(&t->local, "FETCH-CONNECTION", "libcurl cannot be started");
        local_failure(t);
        return;
    }
    t->redirects = 0;
    t->url = fetch_url_of_file(t->work->arena, base_of(t), t->item->file->path);
    if (!t->etag[0] && t->part.length)
        fetch_part_etag(&t->part, base_shown(t), t->etag);
    request(t);
}

static void wake(void *multi)
{
    curl_multi_wakeup(multi);
}

static void begin_digest(struct task *t)
{
    t->digest = digest_begin(t->part.fd, t->part.path, wake, t->work->multi);
    fetch_part_hash(&t->part, t->digest);
    digest_advance(t->digest, t->part.length);
}

static void end_digest(struct task *t)
{
    fetch_part_hash(&t->part, NULL);
    digest_abandon(t->digest);
    t->digest = NULL;
}

static bool begin(struct task *t)
{
    const struct fetch_item *item = t->item;
    t->started_ns = clock_now_ns();
    if (item->state == FETCH_WRONG &&
        !fetch_store_retire(t->work->store, item->file, item->path, item->found_bytes, &t->local))
        return local_failure(t);
    if (!fetch_part_open(t->work->store, item->file, &t->part, &t->local))
        return local_failure(t);
    t->resumed = t->furthest = t->part.length;
    begin_digest(t);
    attempt(t);
    return !t->is_local;
}

/* ---- after an attempt ---- */

/* The attempt's error, with the file's name and the place it was asked of. */
static void name_the_file(struct task *t)
{
    struct error e = t->err;
    error_set(&t->err, e.name, "%s (from %s)", e.message, fetch_url_shown(t->work->arena, t->url));
    error_at(&t->err, t->item->file->path, e.field[0] ? e.field : NULL,
             e.value[0] ? e.value : NULL);
}

static void next_source(struct task *t)
{
    t->attempts = 0;
    t->afresh = t->mismatched = false;
    t->etag[0] = '\0';
    if (t->source + 1 < t->work->rules->source_count) {
        char line[2048];
        fetch_progress_note(
            t->work->progress, "%s; trying %s", error_line(&t->err, line, sizeof line),
            fetch_url_shown(t->work->arena, t->work->rules->sources[t->source + 1]));
        t->source++;
        t->state = TASK_WAITS;
        t->resume_ns = clock_now_ns();
        return;
    }
    t->state = TASK_FAILED;
    end_digest(t);
    fetch_part_close(&t->part);
}

/* Again at the same source, after a while; or, after too many, at the next one. */
static void again(struct task *t)
{
    const struct fetch_rules *rules = t->work->rules;
    const bool further = t->part.length >= t->furthest + PROGRESS_BYTES;
    if (t->part.length > t->furthest)
        t->furthest = t->part.length;
    t->attempts = further ? 1 : t->attempts + 1;
    if (t->attempts > rules->retries) {
        next_source(t);
        return;
    }
    int64_t delay = rules->retry_delay_ms;
    for (int64_t i = 1; i < t->attempts && delay < DELAY_MOST_S * 1000; i++)
        delay *= 2;
    delay = delay < DELAY_MOST_S * 1000 ? delay : DELAY_MOST_S * 1000;
    int64_t wanted = t->response.retry_after;
    wanted = wanted < RETRY_AFTER_MOST_S ? wanted : RETRY_AFTER_MOST_S;
    if (wanted * 1000 > delay && rules->retry_delay_ms > 0)
        delay = wanted * 1000;
    char line[2048];
    fetch_progress_note(t->work->progress,
                        "%s; trying again in %.1f s (%" PRId64 " of %" PRId64
                        "), from byte %" PRIu64,
                        error_line(&t->err, line, sizeof line), (double)delay * 1e-3, t->attempts,
                        rules->retries, t->afresh ? 0 : t->part.length);
    t->state = TASK_WAITS;
    t->resume_ns = clock_now_ns() + delay * MS_NS;
}

/* What libcurl could not do, as our error. */
static bool explain(struct task *t, CURLcode code)
{
    const char *text = t->curl_text[0] ? t->curl_text : curl_easy_strerror(code);
    curl_off_t connected = 0;
    curl_easy_getinfo(t->easy, CURLINFO_CONNECT_TIME_T, &connected);
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
        error_set(&t->err, "FETCH-TLS", "expected a certificate that can be trusted: %s", text);
        return false;
    case CURLE_OPERATION_TIMEDOUT:
        if (connected > 0) {
            error_set(&t->err, "FETCH-STALLED",
                      "expected at least %" PRId64 " bytes/s, for %" PRId64 " s there came fewer; "
                      "%" PRIu64 " of %" PRIu64 " bytes are there",
                      t->work->rules->stall_bytes, t->work->rules->stall_seconds, t->part.length,
                      t->item->file->bytes);
            return true;
        }
        break;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
        error_set(&t->err, "FETCH-TRUNCATED",
                  "expected %" PRIu64 " bytes, the connection ended after %" PRIu64 ": %s",
                  t->item->file->bytes, t->part.length, text);
        return true;
    default:
        break;
    }
    error_set(&t->err, "FETCH-CONNECTION", "expected an answer: %s", text);
    return code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_URL_MALFORMAT;
}

static void follow(struct task *t)
{
    char *to = NULL;
    curl_easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &to);
    const char *why = NULL;
    if (!to)
        why = "leads nowhere";
    else if (t->redirects >= FETCH_REDIRECTS_MOST)
        why = "is one too many";
    else if (!fetch_url_may_follow(t->url, to))
        why = "leaves https, or http altogether";
    if (why) {
        error_set(&t->err, "FETCH-REDIRECT", "expected the file, redirect %d %s%s%s",
                  t->redirects + 1, why, to ? ": " : "",
                  to ? fetch_url_shown(t->work->arena, to) : "");
        name_the_file(t);
        next_source(t);
        return;
    }
    t->redirects++;
    t->url = arena_strdup(t->work->arena, to);
    request(t);
}

/* The connection has ended, in whatever way. */
static void settle(struct task *t, CURLcode code)
{
    curl_multi_remove_handle(t->work->multi, t->easy);
    if (t->is_local || !flush(t))
        return;
    const bool cut_by_us = code == CURLE_WRITE_ERROR;
    if (code != CURLE_OK && !cut_by_us) {
        const bool may_pass = explain(t, code);
        name_the_file(t);
        if (may_pass)
            again(t);
        else
            next_source(t);
        return;
    }
    if (!t->judged && !judge(t))
        return;
    switch (t->verdict) {
    case FETCH_MOVED:
        follow(t);
        return;
    case FETCH_TAKE:
    case FETCH_DONE:
        if (t->part.length == t->item->file->bytes) {
            whole(t);
            return;
        }
        error_set(&t->err, "FETCH-TRUNCATED",
                  "expected %" PRIu64 " bytes, the answer ended after %" PRIu64,
                  t->item->file->bytes, t->part.length);
        break;
    case FETCH_AFRESH:
        t->afresh = true;
        if (!start_over(t))
            return;
        break;
    case FETCH_REFUSED:
        name_the_file(t);
        if (start_over(t))
            next_source(t);
        return;
    case FETCH_LATER:
        break;
    }
    name_the_file(t);
    again(t);
}

/* Every byte is there and hashed. */
static void conclude(struct task *t)
{
    char hex[SHA256_HEX];
    const struct fetch_file *f = t->item->file;
    fetch_part_hash(&t->part, NULL);
    const bool read = digest_take(t->digest, hex, &t->local);
    t->digest = NULL;
    if (!read) {
        local_failure(t);
        return;
    }
    if (strcmp(hex, f->sha256) == 0) {
        if (!fetch_part_commit(t->work->store, f, &t->part, &t->local)) {
            local_failure(t);
            return;
        }
        t->item->state = FETCH_RIGHT;
        t->state = TASK_DONE;
        fetch_progress_file(t->work->progress, f->path, f->bytes, clock_seconds(t->started_ns),
                            t->resumed ? "is right (continued)" : "is right");
        return;
    }
    text_copy(t->item->found_sha256, SHA256_HEX, hex);
    if (!t->url) /* every byte was there before */
        t->url = fetch_url_of_file(t->work->arena, base_of(t), f->path);
    error_set(&t->err, "FETCH-SHA256", "expected SHA-256 %s, the %" PRIu64 " bytes have %s",
              f->sha256, f->bytes, hex);
    name_the_file(t);
    begin_digest(t);
    if (!start_over(t))
        return;
    t->afresh = true;
    if (t->mismatched) {
        next_source(t);
        return;
    }
    t->mismatched = true; /* once more from nothing: what was continued may have been at fault */
    again(t);
}

/* ---- all of them ---- */

static void show(struct work *w)
{
    struct fetch_view views[FETCH_VIEWS_MOST];
    size_t n = 0;
    uint64_t done = 0;
    for (size_t i = 0; i < w->count; i++) {
        const struct task *t = &w->tasks[i];
        const uint64_t bytes = t->item->file->bytes;
        if (t->state == TASK_DONE)
            done += bytes;
        if (t->state == TASK_IDLE || t->state == TASK_DONE || t->state == TASK_FAILED)
            continue;
        done += t->part.length;
        if (n < FETCH_VIEWS_MOST)
            views[n++] =
                (struct fetch_view){t->item->file->path,
                                    t->state == TASK_WAITS    ? "waits to try again"
                                    : t->state == TASK_HASHED ? "is hashed and brought to the disk"
                                                              : NULL,
                                    t->part.length, bytes};
    }
    fetch_progress_update(w->progress, done, views, n);
}

/* Starts what may start. False where every task has ended. */
static bool start_tasks(struct work *w)
{
    int64_t active = 0, hashing = 0;
    bool open = false;
    for (size_t i = 0; i < w->count; i++) {
        active += w->tasks[i].state == TASK_TRANSFERS || w->tasks[i].state == TASK_WAITS;
        hashing += w->tasks[i].state == TASK_HASHED;
    }
    for (size_t i = 0; i < w->count; i++) {
        struct task *t = &w->tasks[i];
        if (t->state == TASK_IDLE && active < w->rules->jobs && hashing < w->rules->jobs) {
            begin(t);
            active++;
        } else if (t->state == TASK_WAITS && clock_now_ns() >= t->resume_ns) {
            attempt(t);
        } else if (t->state == TASK_HASHED && digest_is_ready(t->digest)) {
            conclude(t);
        }
        open |= t->state != TASK_DONE && t->state != TASK_FAILED;
    }
    return open;
}

/* A slow line: what has come is not held back for long. */
static void flush_old(struct work *w)
{
    const int64_t now = clock_now_ns();
    for (size_t i = 0; i < w->count; i++) {
        struct task *t = &w->tasks[i];
        if (t->state == TASK_TRANSFERS && !t->is_local && now - t->flushed_ns > FLUSH_AFTER_NS)
            flush(t);
    }
}

static bool run(struct work *w, struct mutation_lock *lock, struct error *err)
{
    while (start_tasks(w)) {
        int running = 0, left = 0;
        curl_multi_perform(w->multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(w->multi, &left)) != NULL;) {
            char *task = NULL;
            const CURLcode code = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &task);
            settle((struct task *)(void *)task, code);
        }
        flush_old(w);
        for (size_t i = 0; i < w->count; i++)
            if (w->tasks[i].is_local) {
                if (err)
                    *err = w->tasks[i].local;
                return false;
            }
        if (interrupt_requested())
            return error_set(
                err, "INTERRUPTED",
                "stopped by a signal; what has come is kept, and the next run goes on");
        show(w);
        mutation_lock_touch(lock);
        curl_multi_poll(w->multi, NULL, 0, 100, NULL);
    }
    return true;
}

bool fetch_transfer(struct arena *a, const struct fetch_rules *rules, struct fetch_plan *plan,
                    struct fetch_store *store, struct mutation_lock *lock,
                    struct fetch_progress *progress, size_t *failed, struct error *err)
{
    struct work w = {.arena = a, .rules = rules, .store = store, .progress = progress};
    *failed = 0;
    w.tasks = arena_array(a, plan->manifest->count, sizeof *w.tasks);
    for (size_t i = 0; i < plan->manifest->count; i++)
        if (plan->items[i].state != FETCH_RIGHT)
            w.tasks[w.count++] =
                (struct task){.work = &w, .item = &plan->items[i], .part = {.fd = -1}};
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(w.multi = curl_multi_init()))
        return error_set(err, "FETCH-CONNECTION", "libcurl cannot be started");
    curl_multi_setopt(w.multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    bool ok = run(&w, lock, err);
    for (size_t i = 0; i < w.count; i++) {
        struct task *t = &w.tasks[i];
        if (t->state == TASK_FAILED && (*failed)++ == 0 && ok && err)
            *err = t->err;
        if (t->easy) {
            curl_multi_remove_handle(w.multi, t->easy);
            curl_easy_cleanup(t->easy);
        }
        curl_slist_free_all(t->headers);
        end_digest(t);
        fetch_part_close(&t->part);
    }
    curl_multi_cleanup(w.multi);
    curl_global_cleanup();
    return ok && *failed == 0;
}
