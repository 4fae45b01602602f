#include "judge/conformance_kit.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "judge/reply.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOISE_LINES = 4096, TEXT_SHOWN = 160 };

void kit_fail(struct verdict *v, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    v->is = KIT_FAIL;
    vsnprintf(v->detail, sizeof v->detail, format, ap);
    va_end(ap);
}

void kit_skip(struct verdict *v, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    v->is = KIT_SKIPPED;
    vsnprintf(v->detail, sizeof v->detail, format, ap);
    va_end(ap);
}

void kit_observe(struct observation *o, const char *format, ...)
{
    if (o->count++ > 0)
        return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(o->first, sizeof o->first, format, ap);
    va_end(ap);
}

/* An engine's text in a message of ours: clipped, and no control bytes. */
static const char *shown(const char *text, size_t length, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < length && n + 4 < size && n < TEXT_SHOWN; i++) {
        const unsigned char c = (unsigned char)text[i];
        out[n++] = c < 0x20 || c >= 0x7f ? '?' : (char)c;
    }
    out[n] = '\0';
    return out;
}

static bool fail_of(struct verdict *v, const char *what, const struct error *err)
{
    kit_fail(v, "%s: %s: %s%s%s%s", what, err->name, err->message,
             err->field[0] != '\0' ? " (field " : "", err->field, err->field[0] != '\0' ? ")" : "");
    return false;
}

/* ---- one process ---- */

static int64_t deadline_after(double seconds)
{
    const double ns = seconds * 1e9, now = (double)clock_now_ns();
    return now + ns > 9e18 ? INT64_MAX : clock_now_ns() + (int64_t)ns;
}

static bool peer_died(struct peer *p, struct error *err)
{
    p->dead = true;
    const char *status = child_end(p->child, KIT_EXIT_MS);
    if (p->has_hello)
        return error_set(err, "EngineExited", "the engine closed its output (%s)", status);
    /* It never began: what it said on its way out is what its author needs. */
    return error_set(err, "EngineExited", "the engine closed its output (%s); %.700s", status,
                     launch_log_tail(p->log));
}

/* Lines that begin no object are the parent's to skip, and this kit's to report. */
static bool is_object(struct kit *k, const char **line, size_t *length)
{
    char text[TEXT_SHOWN + 8];
    const char *whole = *line;
    const size_t whole_length = *length;
    while (*length > 0 && (**line == ' ' || **line == '\t' || **line == '\r'))
        ++*line, --*length;
    if (*length > 0 && **line == '{')
        return true;
    kit_observe(&k->chatter, "a line that is no reply: \"%s\"",
                shown(whole, whole_length, text, sizeof text));
    return false;
}

bool kit_read(struct kit *k, struct peer *p, size_t limit, double seconds,
              const struct wire_response **reply, struct error *err)
{
    const int64_t deadline = deadline_after(seconds);
    if (p->has_reply)
        wire_response_free(&p->reply);
    p->has_reply = false;
    arena_free(&p->reply_arena);
    for (int skipped = 0; skipped < NOISE_LINES; skipped++) {
        const char *line;
        size_t length;
        struct error inner = {0};
        switch (child_read_line(p->child, limit, deadline, &line, &length, &inner)) {
        case CHILD_READ_LINE:
            break;
        case CHILD_READ_EOF:
            return peer_died(p, err);
        case CHILD_READ_TIMEOUT:
            p->dead = true;
            return error_set(err, "ReplyTimeout", "no reply within %.3g s", seconds);
        case CHILD_READ_TOO_LONG:
            p->dead = true;
            return error_set(err, "LineTooLong", "a line longer than %zu bytes", limit);
        case CHILD_READ_ERROR:
            p->dead = true;
            return error_set(err, interrupt_requested() ? "Interrupted" : "Io", "%s",
                             inner.message);
        }
        if (!is_object(k, &line, &length))
            continue;
        if (!wire_response_decode(&p->reply_arena, line, length, &p->reply, &inner)) {
            error_set(err, "Json", "the reply does not decode: %s: %s", inner.name, inner.message);
            return error_at(err, NULL, inner.field[0] != '\0' ? inner.field : NULL, NULL);
        }
        p->has_reply = true;
        *reply = &p->reply;
        return true;
    }
    p->dead = true;
    return error_set(err, "StdoutFlood", "more than %d lines that are no reply", NOISE_LINES);
}

/* Whatever stands in the pipe now was not asked for. */
static void see_unasked(struct kit *k, struct peer *p)
{
    char text[TEXT_SHOWN + 8];
    const char *line;
    size_t length;
    for (int n = 0; n < NOISE_LINES; n++) {
        if (child_read_line(p->child, WIRE_RESPONSE_LIMIT, 0, &line, &length, NULL) !=
            CHILD_READ_LINE)
            return;
        if (is_object(k, &line, &length))
            kit_observe(&k->unasked, "an object that answers no request: %s",
                        shown(line, length, text, sizeof text));
    }
}

bool kit_write(struct kit *k, struct peer *p, const void *data, size_t length, struct error *err)
{
    struct error inner = {0};
    see_unasked(k, p);
    if (child_write(p->child, data, length, deadline_after(k->reply_seconds), &inner))
        return true;
    if (interrupt_requested()) {
        p->dead = true;
        return error_set(err, "Interrupted", "interrupted while writing to the engine");
    }
    if (strcmp(inner.name, "ENGINE-CLOSED") == 0)
        return peer_died(p, err);
    p->dead = true;
    return error_set(err, strcmp(inner.name, "ENGINE-WRITE-TIMEOUT") == 0 ? "ReplyTimeout" : "Io",
                     "%s", inner.message);
}

static bool check_hello(const struct wire_response *h, struct error *err)
{
    if (h->id.value != 0)
        return error_set(err, "Protocol", "the first line has id %" PRId64 ", a hello has 0",
                         h->id.value);
    if (!h->ok.value)
        return error_set(err, "Protocol", "the hello is not ok");
    if (h->nonce.text == NULL || h->nonce.text[0] == '\0')
        return error_set(err, "Protocol", "the hello carries no nonce");
    if (!h->protocol_version.present || h->protocol_version.value != WIRE_PROTOCOL_VERSION)
        return error_set(err, "Protocol", "protocol_version is not 1");
    return true;
}

struct peer *kit_start(struct kit *k, enum kit_mode mode, struct error *err)
{
    struct peer *p = memory_alloc(sizeof *p);
    const struct wire_response *hello;
    p->next_id = 1;
    p->log = launch_log_new(false);
    const struct launch_options launch = {.engine = k->engine,
                                          .weights = k->weights,
                                          .resources = k->resources,
                                          .speculative_v1_1 = mode == KIT_V11};
    const struct child_options child = {.argv = launch_argv(&p->session, &launch),
                                        .envp = launch_environment(&p->session, environ, k->yarn),
                                        .on_stderr_line = launch_log_line,
                                        .context = p->log,
                                        .end_strays = true};
    if (!child_start(&child, &p->child, err)) {
        p->child = NULL;
        kit_stop(p);
        return NULL;
    }
    if (!kit_read(k, p, WIRE_HELLO_LIMIT, k->hello_seconds, &hello, err) ||
        !check_hello(hello, err)) {
        if (strcmp(err->name, "ReplyTimeout") == 0)
            error_set(err, "HelloTimeout", "no hello within %.3g s", k->hello_seconds);
        kit_stop(p);
        return NULL;
    }
    /* The hello outlives the replies: its arena changes hands. */
    p->hello = p->reply;
    p->has_hello = true;
    p->has_reply = false;
    struct arena swap = p->session;
    p->session = p->reply_arena;
    p->reply_arena = (struct arena){0};
    arena_free(&swap); /* the argument vector, which the child has by now */
    return p;
}

void kit_stop(struct peer *p)
{
    if (p == NULL)
        return;
    if (p->has_reply)
        wire_response_free(&p->reply);
    if (p->has_hello)
        wire_response_free(&p->hello);
    if (p->child != NULL)
        child_free(p->child); /* kills the group, joins the stderr reader */
    launch_log_free(p->log);
    arena_free(&p->reply_arena);
    arena_free(&p->session);
    free(p);
}

/* Of the group, and what left it and was handed to this process when its parent ended. */
static int count_left(pid_t group)
{
    int found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc != NULL && (e = readdir(proc)) != NULL;) {
        char path[300], stat[512];
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        const size_t n = f != NULL ? fread(stat, 1, sizeof stat - 1, f) : 0;
        if (f != NULL)
            fclose(f);
        stat[n] = '\0';
        const char *after = strrchr(stat, ')');
        char state;
        int parent, pgrp;
        if (after != NULL && sscanf(after + 1, " %c %d %d", &state, &parent, &pgrp) == 3)
            found += state != 'Z' && (pgrp == (int)group ||
                                      (parent == (int)getpid() &&
                                       !interrupt_knows_group((pid_t)strtol(e->d_name, NULL, 10))));
    }
    if (proc != NULL)
        closedir(proc);
    return found;
}

bool kit_end_input(struct peer *p, int *left, char *status, size_t status_size)
{
    const pid_t pid = child_pid(p->child);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    /* The descriptor stays the child's to close; what it stood for is gone. */
    if (null >= 0) {
        dup2(null, child_input_descriptor(p->child));
        close(null);
    }
    const int64_t deadline = clock_now_ns() + (int64_t)KIT_EXIT_MS * 1000000;
    bool ended = false;
    while (!ended && clock_now_ns() < deadline && !interrupt_requested()) {
        siginfo_t info = {0};
        ended =
            waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
        if (!ended)
            poll(NULL, 0, 2);
    }
    *left = ended ? count_left(pid) : 0;
    p->dead = true;
    text_copy(status, status_size, child_end(p->child, 0));
    return ended;
}

/* ---- the shared processes ---- */

static const char no_hello[] = "the engine gives no hello that holds";

bool kit_texts_hold(const struct wire_texts *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->items[i], name) == 0)
            return true;
    return false;
}

bool kit_has_capability(const struct peer *p, const char *name)
{
    return kit_texts_hold(&p->hello.capabilities, name);
}

static bool drop_phase(struct kit *k, struct peer *p)
{
    struct verdict unused = {0};
    return !p->dead && kit_barrier(k, p, -1, NULL, &unused);
}

struct peer *kit_peer(struct kit *k, enum kit_mode mode, struct verdict *v)
{
    struct peer *p = k->peers[mode];
    if (p != NULL && drop_phase(k, p))
        return p;
    kit_stop(p);
    k->peers[mode] = NULL;
    if (k->tried[mode] && !k->said_hello[mode]) {
        kit_skip(v, "%s", no_hello);
        return NULL;
    }
    struct error err = {0};
    k->tried[mode] = true;
    k->peers[mode] = p = kit_start(k, mode, &err);
    if (p != NULL) {
        k->said_hello[mode] = true;
        return p;
    }
    if (k->said_hello[mode]) {
        fail_of(v, "a new process, after another check ended the last one", &err);
    } else {
        k->start_error[mode] = err;
        kit_skip(v, "%s", no_hello);
    }
    return NULL;
}

struct peer *kit_peer_with(struct kit *k, const char *capability, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p == NULL || kit_has_capability(p, capability))
        return p;
    kit_skip(v, "the hello does not advertise %s", capability);
    return NULL;
}

/* ---- honest requests ---- */

struct wire_request kit_prompt(enum wire_kind kind, const struct wire_tokens *tokens)
{
    struct wire_request q = client_request(kind);
    if (kind == WIRE_KIND_decode_begin || kind == WIRE_KIND_free_decode_begin)
        q.seed_tokens = *tokens;
    else
        q.prompt_tokens = *tokens;
    return q;
}

struct wire_request kit_token(enum wire_kind kind, int64_t token)
{
    struct wire_request q = client_request(kind);
    q.token = (struct wire_i64){.present = true, .value = token};
    return q;
}

static void observe_envelope(struct kit *k, const struct peer *p, const struct wire_response *r,
                             const char *what)
{
    char text[TEXT_SHOWN + 8];
    const char *nonce = r->nonce.text != NULL ? r->nonce.text : "";
    if (strcmp(nonce, p->hello.nonce.text) != 0)
        kit_observe(&k->nonce, "the reply to %s has nonce \"%s\"", what,
                    shown(nonce, strlen(nonce), text, sizeof text));
}

static bool send_request(struct kit *k, struct peer *p, struct wire_request *q, struct error *err)
{
    if (!q->id.present)
        q->id = (struct wire_i64){.present = true, .value = p->next_id++};
    buffer_clear(&k->line);
    wire_request_encode(q, &k->line);
    return kit_write(k, p, k->line.data, k->line.length, err);
}

static double seconds_of(const struct kit *k, enum wire_kind kind)
{
    return kind == WIRE_KIND_phase_diagnostics ? k->barrier_seconds : k->reply_seconds;
}

bool kit_ask_loosely(struct kit *k, struct peer *p, struct wire_request *q,
                     const struct wire_response **reply, struct verdict *v)
{
    const enum wire_kind kind = wire_kind_find(q->kind.text);
    struct error err = {0};
    char text[TEXT_SHOWN + 8];
    const struct wire_response *r;
    if (!send_request(k, p, q, &err) ||
        !kit_read(k, p, wire_response_limit(kind, q), seconds_of(k, kind), &r, &err))
        return fail_of(v, q->kind.text, &err);
    observe_envelope(k, p, r, q->kind.text);
    if (!r->ok.value) {
        const char *why = r->error.text != NULL ? r->error.text : "";
        kit_fail(v, "an honest %s was refused: %s", q->kind.text,
                 shown(why, strlen(why), text, sizeof text));
        return false;
    }
    if (r->id.value != q->id.value)
        kit_observe(&k->id, "%s with id %" PRId64 " was answered with id %" PRId64, q->kind.text,
                    q->id.value, r->id.value);
    if (reply != NULL)
        *reply = r;
    return true;
}

bool kit_ask(struct kit *k, struct peer *p, struct wire_request *q,
             const struct wire_response **reply, struct verdict *v)
{
    struct error err = {0};
    const struct wire_response *r;
    if (!kit_ask_loosely(k, p, q, &r, v))
        return false;
    const enum wire_kind kind = wire_kind_find(q->kind.text);
    if (kind == WIRE_KIND_correctness_begin || kind == WIRE_KIND_correctness_step) {
        /* top_logits have a check of their own; what is wrong with them is said once. */
        if (!r->token.present) {
            kit_fail(v, "%s: the reply carries no token", q->kind.text);
            return false;
        }
    } else if (!reply_check(kind, q, r, &err)) {
        fail_of(v, q->kind.text, &err);
        return false;
    }
    if (reply != NULL)
        *reply = r;
    return true;
}

bool kit_barrier(struct kit *k, struct peer *p, int64_t expected_work,
                 const struct wire_response **reply, struct verdict *v)
{
    struct wire_request q = client_request(WIRE_KIND_phase_diagnostics);
    const struct wire_response *r;
    if (!kit_ask_loosely(k, p, &q, &r, v))
        return false;
    if (expected_work >= 0 && !r->completed_work.present) {
        kit_fail(v, "phase_diagnostics carries no completed_work");
        return false;
    }
    if (expected_work >= 0 && r->completed_work.value != expected_work) {
        kit_fail(v, "completed_work is %" PRId64 ", %" PRId64 " is right", r->completed_work.value,
                 expected_work);
        return false;
    }
    if (reply != NULL)
        *reply = r;
    return true;
}

bool kit_token_in_range(const struct kit *k, int64_t token, const char *what, struct verdict *v)
{
    if (token >= 0 && token < k->vocab)
        return true;
    kit_fail(v, "%s is %" PRId64 ", outside the vocabulary of %" PRId64, what, token, k->vocab);
    return false;
}

bool kit_same_tokens(const int64_t *got, const int64_t *wanted, size_t count, const char *what,
                     struct verdict *v)
{
    for (size_t i = 0; i < count; i++)
        if (got[i] != wanted[i]) {
            kit_fail(v, "%s: token %zu is %" PRId64 ", not %" PRId64, what, i, got[i], wanted[i]);
            return false;
        }
    return true;
}

/* ---- refusals ---- */

bool kit_refused(struct kit *k, struct peer *p, const char *what, const char *line, size_t length,
                 int64_t id_rule, int64_t own_id, struct verdict *v)
{
    struct error err = {0};
    const struct wire_response *r;
    struct buffer out = {0};
    buffer_append(&out, line, length);
    buffer_char(&out, '\n');
    const bool talked = kit_write(k, p, out.data, out.length, &err) &&
                        kit_read(k, p, WIRE_RESPONSE_LIMIT, k->reply_seconds, &r, &err);
    buffer_free(&out);
    if (!talked)
        return fail_of(v, what, &err);
    observe_envelope(k, p, r, what);
    if (r->ok.value) {
        kit_fail(v, "%s was not refused: ok is true", what);
        return false;
    }
    if (r->error.text == NULL || r->error.text[0] == '\0') {
        kit_fail(v, "%s: the refusal carries no error text", what);
        return false;
    }
    const bool right_id = id_rule == KIT_ANY_ID
                              ? r->id.value == own_id || r->id.value == WIRE_ERROR_ID
                              : r->id.value == id_rule;
    if (!right_id) {
        kit_fail(v, "%s: the refusal has id %" PRId64 ", not %" PRId64, what, r->id.value,
                 id_rule == KIT_ANY_ID ? own_id : id_rule);
        return false;
    }
    return true;
}

bool kit_request_refused(struct kit *k, struct peer *p, const char *what, struct wire_request *q,
                         struct verdict *v)
{
    struct buffer line = {0};
    q->id = (struct wire_i64){.present = true, .value = p->next_id++};
    wire_request_encode(q, &line);
    const bool ok =
        kit_refused(k, p, what, line.data, line.length - 1, q->id.value, q->id.value, v);
    buffer_free(&line);
    return ok;
}

bool kit_recovers(struct kit *k, struct peer *p, const char *after, struct verdict *v)
{
    const struct wire_response *r;
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->brief);
    struct verdict inner = {0};
    if (!kit_barrier(k, p, -1, NULL, &inner) || !kit_ask(k, p, &q, &r, &inner)) {
        kit_fail(v, "after %s: %.400s", after, inner.detail);
        return false;
    }
    if (r->token.value == k->brief_token)
        return true;
    kit_fail(v, "after %s prefill gives token %" PRId64 ", before it gave %" PRId64, after,
             r->token.value, k->brief_token);
    return false;
}

/* ---- what is learnt once ---- */

/* A process of its own, so that no check's history stands behind the answer. NULL: the verdict is
 * set. An engine that has given no hello is not waited for again. */
static struct peer *start_to_learn(struct kit *k, struct verdict *v)
{
    struct error err = {0};
    struct peer *p = NULL;
    if (!k->tried[KIT_V11] || k->said_hello[KIT_V11]) {
        k->tried[KIT_V11] = true;
        p = kit_start(k, KIT_V11, &err);
        if (p == NULL && !k->said_hello[KIT_V11])
            k->start_error[KIT_V11] = err;
    }
    if (p != NULL)
        k->said_hello[KIT_V11] = true;
    else if (k->said_hello[KIT_V11])
        kit_fail(v, "a new process: %s: %s", err.name, err.message);
    else
        kit_skip(v, "%s", no_hello);
    return p;
}

bool kit_learn_brief(struct kit *k, struct verdict *v)
{
    struct peer *p = k->has_brief_token ? NULL : start_to_learn(k, v);
    if (p == NULL)
        return k->has_brief_token;
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->brief);
    const struct wire_response *r;
    struct verdict inner = {0};
    if (kit_ask(k, p, &q, &r, &inner)) {
        k->has_brief_token = true;
        k->brief_token = r->token.value;
    } else {
        kit_skip(v, "needs prefill: %.500s", inner.detail);
    }
    kit_stop(p);
    return k->has_brief_token;
}

bool kit_learn_greedy(struct kit *k, struct verdict *v)
{
    struct peer *p = k->has_greedy ? NULL : start_to_learn(k, v);
    if (p == NULL)
        return k->has_greedy;
    struct wire_request q = kit_prompt(WIRE_KIND_correctness, &k->seed);
    q.steps = (struct wire_i64){.present = true, .value = KIT_STEPS + 1};
    const struct wire_response *r;
    struct verdict inner = {0};
    if (kit_ask(k, p, &q, &r, &inner)) {
        k->has_greedy = true;
        for (size_t i = 0; i < KIT_STEPS + 1; i++)
            k->greedy[i] = r->tokens.items[i];
    } else {
        kit_skip(v, "needs correctness: %.500s", inner.detail);
    }
    kit_stop(p);
    return k->has_greedy;
}
