#include "judge/client.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"
#include "judge/launch.h"
#include "judge/reply.h"
#include "judge/sandbox.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct client {
    struct client_options options;
    struct arena session; /* the hello and what lives as long */
    struct arena reply_arena;
    struct child *child;
    pid_t engine_pid;  /* not the child's where a sandbox stands between */
    int engine_handle; /* of that process, where it may be stopped; else -1 */
    bool frozen;
    struct launch_log *log;
    struct buffer line;
    struct wire_response hello, reply;
    bool has_hello, has_reply;
    bool discarded;
    int64_t next_id;
    int64_t timed_steps; /* issued since the phase was opened */
    bool has_free_run;
    struct free_run_close free_run;
    int64_t run_deadline_ns; /* 0: not armed */
    double run_budget_seconds;
    bool bare; /* its hello held nothing but the envelope: the block protocol only */
    struct client_interval last;
    char wait_status[64];
};

enum { GRACE_EOF_MS = 2000, GRACE_END_MS = 2000 };

bool client_deadlines_from_environment(struct client_options *o, struct error *err)
{
    const struct {
        const char *name;
        double *target;
    } table[] = {{"MLXFAST_HELLO_TIMEOUT_S", &o->hello_seconds},
                 {"MLXFAST_REPLY_TIMEOUT_S", &o->reply_seconds},
                 {"MLXFAST_BARRIER_TIMEOUT_S", &o->barrier_seconds}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *text = getenv(table[i].name);
        if (text == NULL)
            continue;
        double seconds;
        if (!number_double(text, &seconds) || !(seconds > 0)) {
            error_set(err, "USAGE", "a deadline is a number of seconds above 0");
            return error_at(err, NULL, table[i].name, text);
        }
        *table[i].target = seconds;
    }
    return true;
}

bool client_ceiling_from_environment(double *seconds, struct error *err)
{
    const char *text = getenv("MLXFAST_RUN_CEILING_S");
    *seconds = CLIENT_RUN_FALLBACK_CEILING;
    if (text == NULL || number_double(text, seconds))
        return true;
    error_set(err, "USAGE", "the run ceiling is a number of seconds per token");
    return error_at(err, NULL, "MLXFAST_RUN_CEILING_S", text);
}

struct wire_request client_request(enum wire_kind kind)
{
    struct wire_request q = {0};
    q.kind.text = wire_kind_name(kind);
    return q;
}

struct wire_tokens client_tokens(const int64_t *items, size_t count)
{
    return (struct wire_tokens){.present = true, .count = count, .items = (int64_t *)items};
}

static int64_t deadline_after(int64_t from_ns, double seconds)
{
    const double ns = seconds * 1e9;
    return ns > 9e18 - (double)from_ns ? INT64_MAX : from_ns + (int64_t)ns;
}

static bool timed_out(struct client *c, const char *name, const char *what, double seconds,
                      struct error *err)
{
    if (strcmp(name, "RunTimeout") == 0)
        return error_set(err, name,
                         "run timeout (%s): the timed round-trip exceeded the %.3fs benchd budget",
                         what, c->run_budget_seconds);
    return error_set(err, name, "no reply to %s within %.3f s", what, seconds);
}

static bool engine_exited(struct client *c, struct error *err)
{
    const char *status = child_end(c->child, GRACE_EOF_MS);
    text_copy(c->wait_status, sizeof c->wait_status, status);
    /* A program that dies at start in there often misses a file or a right that it has outside. */
    const bool inside = !c->has_hello && c->options.sandbox != NULL && c->options.sandbox->active;
    return error_set(err, "EngineExited",
                     "engine closed the stream before returning a response (%s)%s", status,
                     inside ? "; it ran in the sandbox, --no-sandbox runs it without" : "");
}

/* A lower-layer error keeps its text under the client's name. */
static bool renamed(struct error *err, const char *name, const char *prefix)
{
    if (err == NULL)
        return false;
    struct error inner = *err;
    error_set(err, name, "%s%s", prefix, inner.message);
    return error_at(err, NULL, inner.field[0] != '\0' ? inner.field : NULL,
                    inner.value[0] != '\0' ? inner.value : NULL);
}

struct read_rules {
    size_t limit;
    int64_t deadline_ns;
    const char *timeout_name, *what;
    double seconds;
};

/* Reads on to the next line that begins an object. What an engine prints between is ignored, but
 * not without bounds. */
static bool read_object(struct client *c, const struct read_rules *rules, const char **line,
                        size_t *length, int64_t *end_ns, struct error *err)
{
    size_t lines = 0, bytes = 0;
    for (;;) {
        struct error inner = {0};
        const enum child_read_result r =
            child_read_line(c->child, rules->limit, rules->deadline_ns, line, length, &inner);
        *end_ns = clock_now_ns();
        switch (r) {
        case CHILD_READ_LINE:
            break;
        case CHILD_READ_EOF:
            return engine_exited(c, err);
        case CHILD_READ_TIMEOUT:
            return timed_out(c, rules->timeout_name, rules->what, rules->seconds, err);
        case CHILD_READ_TOO_LONG:
            return error_set(err, "LineTooLong",
                             "the engine's line in reply to %s is longer than %zu bytes",
                             rules->what, rules->limit);
        case CHILD_READ_ERROR:
            if (interrupt_requested())
                return error_set(err, "Interrupted", "interrupted while waiting for the engine");
            if (err != NULL)
                *err = inner;
            return renamed(err, "Io", "");
        }
        const char *p = *line;
        size_t n = *length;
        while (n > 0 && (*p == ' ' || *p == '\t' || *p == '\r'))
            p++, n--;
        if (n > 0 && *p == '{') {
            *line = p;
            *length = n;
            return true;
        }
        lines++;
        bytes += *length + 1;
        if (lines > CLIENT_SKIPPED_LINES || bytes > CLIENT_SKIPPED_BYTES)
            return error_set(err, "StdoutFlood",
                             "the engine wrote %zu lines (%zu bytes) that are no reply to %s",
                             lines, bytes, rules->what);
    }
}

/* An engine has seen every prompt, so its own words are a way out for them: what speaks of expected
 * or actual tokens is withheld as on stderr, and so is what holds more numbers than a message
 * needs. */
static const char *engine_text(const char *text, struct buffer *out)
{
    enum { NUMBERS_MAX = 8 };
    size_t numbers = 0;
    for (const char *p = text; *p != '\0'; p++)
        numbers += isdigit((unsigned char)p[0]) && !isdigit((unsigned char)p[1]);
    if (numbers > NUMBERS_MAX)
        buffer_text(out, "engine-text-withheld");
    else
        launch_redact(text, strlen(text), out);
    return out->data != NULL ? out->data : "";
}

static bool decode_reply(struct arena *a, bool block, bool withhold, const char *line,
                         size_t length, struct wire_response *out, struct error *err)
{
    if (block ? wire_block_response_decode(a, line, length, out, err)
              : wire_response_decode(a, line, length, out, err))
        return true;
    if (withhold)
        return error_set(err, "Json", "engine response line could not be decoded");
    if (err != NULL) { /* the decoder's message may repeat a key */
        struct buffer text = {0};
        const struct error inner = *err;
        error_set(err, "Json", "engine response line could not be decoded: %s",
                  engine_text(inner.message, &text));
        error_at(err, NULL, inner.field[0] != '\0' ? inner.field : NULL,
                 inner.value[0] != '\0' ? inner.value : NULL);
        buffer_free(&text);
    }
    return false;
}

/* Nothing but id, nonce and ok (docs/block-protocol.md). */
static bool hello_is_bare(const struct wire_response *h)
{
    const struct wire_response envelope = {.id = h->id, .nonce = h->nonce, .ok = h->ok};
    struct buffer whole = {0}, bare = {0};
    wire_response_encode(h, &whole);
    wire_response_encode(&envelope, &bare);
    const bool same = strcmp(whole.data, bare.data) == 0;
    buffer_free(&whole);
    buffer_free(&bare);
    return same;
}

/* Hello: engine-protocol.md section 6, first row. */
static bool check_hello(const struct wire_response *h, bool bare, struct error *err)
{
    if (h->id.value != 0)
        return error_set(err, "Protocol", "hello had id %" PRId64 ", expected 0", h->id.value);
    if (!h->ok.value)
        return error_set(err, "Protocol", "hello was not ok: %s",
                         h->error.text != NULL ? h->error.text : "no error text");
    if (h->nonce.text == NULL || h->nonce.text[0] == '\0')
        return error_set(err, "Protocol", "hello did not carry a non-empty nonce");
    if (bare)
        return true;
    if (!h->protocol_version.present)
        return error_set(err, "Protocol",
                         "hello protocol_version absent does not match supported 1");
    if (h->protocol_version.value != WIRE_PROTOCOL_VERSION)
        return error_set(err, "Protocol", "hello protocol_version %u does not match supported 1",
                         h->protocol_version.value);
    return true;
}

static bool requires_strict(const struct client_options *o)
{
    return o->arithmetic != NULL && strcmp(o->arithmetic, "strict") == 0;
}

/* Whoever does not say does not pass: to say nothing is easier than to be exact. */
static bool check_arithmetic(const struct client *c, struct error *err)
{
    const char *said = c->hello.arithmetic.text;
    if (!requires_strict(&c->options) || (said != NULL && strcmp(said, "strict") == 0))
        return true;
    error_set(err, "ENGINE-ARITHMETIC-MISMATCH",
              "the contract requires strict arithmetic, and the engine's hello does not say that "
              "it is");
    return error_at(err, NULL, "arithmetic", said != NULL ? said : "absent");
}

static bool read_hello(struct client *c, struct error *err)
{
    const double seconds = c->options.hello_seconds;
    const struct read_rules rules = {.limit = WIRE_HELLO_LIMIT,
                                     .deadline_ns = deadline_after(clock_now_ns(), seconds),
                                     .timeout_name = "HelloTimeout",
                                     .what = "hello",
                                     .seconds = seconds};
    const char *line;
    size_t length;
    int64_t end_ns;
    if (!read_object(c, &rules, &line, &length, &end_ns, err) ||
        !decode_reply(&c->session, false, c->options.withhold_text, line, length, &c->hello, err))
        return false;
    c->has_hello = true;
    c->bare = c->options.block_protocol && hello_is_bare(&c->hello);
    return check_hello(&c->hello, c->bare, err) && check_arithmetic(c, err) &&
           (c->options.window == NULL ||
            reply_check_resident(c->options.window, &c->hello.resident, err));
}

bool client_start(const struct client_options *o, struct client **out, struct error *err)
{
    struct client *c = memory_alloc(sizeof *c);
    *out = NULL;
    c->options = *o;
    c->engine_handle = -1;
    if (c->options.hello_seconds == 0)
        c->options.hello_seconds = 600;
    if (c->options.reply_seconds == 0)
        c->options.reply_seconds = 600;
    if (c->options.barrier_seconds == 0)
        c->options.barrier_seconds = 60;
    c->next_id = 1;
    c->log = launch_log_new(o->echo_stderr);
    static const struct sandbox_plan none;
    const struct sandbox_plan *plan = o->sandbox != NULL ? o->sandbox : &none;
    const struct launch_options launch = {.engine = plan->active ? plan->engine : o->engine,
                                          .weights = plan->active ? plan->weights : o->weights,
                                          .drafter = plan->active ? plan->drafter : o->drafter,
                                          .resources =
                                              plan->active ? plan->resources : o->resources,
                                          .speculative_v1_1 = o->speculative_v1_1,
                                          .trusted = o->trusted};
    const char *const *argv = launch_argv(&c->session, &launch);
    const char *const *environment = launch_environment_add(
        &c->session,
        launch_environment_arithmetic(&c->session,
                                      launch_environment(&c->session, environ, o->yarn_magnitude),
                                      o->arithmetic),
        o->environment);
    const struct child_options child = {.argv = sandbox_argv(&c->session, plan, argv),
                                        .envp = sandbox_environment(&c->session, plan, environment),
                                        .on_stderr_line = launch_log_line,
                                        .context = c->log,
                                        .end_strays = true};
    if (!child_start(&child, &c->child, err)) {
        client_free(c);
        return false;
    }
    /* The client is handed out even when its hello failed, so that the caller can show the tail. */
    *out = c;
    if (!read_hello(c, err)) {
        client_discard(c);
        client_end(c);
        return false;
    }
    c->engine_pid = plan->active ? sandbox_engine_pid(child_pid(c->child)) : child_pid(c->child);
    if (plan->active && c->engine_pid > 1)
        c->engine_handle = (int)syscall(SYS_pidfd_open, c->engine_pid, 0);
    return true;
}

static void signal_engine(const struct client *c, int signal)
{
    syscall(SYS_pidfd_send_signal, c->engine_handle, signal, NULL, 0);
}

void client_freeze(struct client *c)
{
    if (c->engine_handle < 0 || c->frozen)
        return;
    c->frozen = true;
    signal_engine(c, SIGSTOP);
}

void client_thaw(struct client *c)
{
    if (c->frozen)
        signal_engine(c, SIGCONT);
    c->frozen = false;
}

const struct wire_response *client_hello(const struct client *c)
{
    return &c->hello;
}

static bool texts_hold(const struct wire_texts *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->items[i], name) == 0)
            return true;
    return false;
}

bool client_has_capability(const struct client *c, const char *name)
{
    return texts_hold(&c->hello.capabilities, name);
}

/* Asking for a gated verb without its capability is a hard refusal before any work (section 4). */
static bool check_capability(const struct client *c, const char *name, struct error *err)
{
    if (client_has_capability(c, name))
        return true;
    error_set(err, "CapabilityNotAdvertised", "the engine's hello does not advertise \"%s\"", name);
    return error_at(err, NULL, "capabilities", name);
}

static bool check_block_verb(const struct client *c, enum wire_kind kind, struct error *err)
{
    if (c->bare)
        return true;
    if (kind == WIRE_KIND_dflash_reference_prefill || kind == WIRE_KIND_dflash_reference_rows)
        return check_capability(c, "dflash_reference", err);
    return check_capability(c, "dflash_block_decode", err);
}

static bool check_may_ask(const struct client *c, enum wire_kind kind, const struct wire_request *q,
                          struct error *err)
{
    if (wire_kind_is_block(kind))
        return check_block_verb(c, kind, err);
    if (c->bare) {
        error_set(err, "CapabilityNotAdvertised",
                  "the engine's hello is that of a worker without Engine Protocol v1");
        return error_at(err, NULL, "protocol_version", NULL);
    }
    if (kind == WIRE_KIND_free_decode_begin || kind == WIRE_KIND_free_decode_run) {
        if (!check_capability(c, "free_run_decode", err))
            return false;
        if (q->batch_size.present) {
            if (!check_capability(c, "batched_free_run_decode", err))
                return false;
            const uint32_t most =
                c->hello.max_batch_size.present ? c->hello.max_batch_size.value : 1;
            if (q->batch_size.value > most)
                return error_set(err, "BatchWidthExceedsEngineMax",
                                 "%u streams requested, the engine's max_batch_size is %u",
                                 q->batch_size.value, most);
        }
    }
    if (kind == WIRE_KIND_cohort_reference_replay &&
        !check_capability(c, "cohort_reference_replay", err))
        return false;
    if (q->spec.present && strcmp(q->spec.mode, "serial") != 0 &&
        !texts_hold(&c->hello.spec_modes, q->spec.mode)) {
        struct buffer modes = {0};
        for (size_t i = 0; i < c->hello.spec_modes.count; i++)
            buffer_printf(&modes, "%s%s", i > 0 ? ", " : "", c->hello.spec_modes.items[i]);
        error_set(err, "SpecModeNotRunnable", "mode \"%s\" is not among the engine's modes [%s]",
                  q->spec.mode, modes.data != NULL ? modes.data : "");
        buffer_free(&modes);
        return error_at(err, NULL, "spec_modes", q->spec.mode);
    }
    return true;
}

static bool engine_failed(const struct client *c, const struct wire_response *r,
                          enum wire_kind kind, struct error *err)
{
    if (c->options.withhold_text)
        return error_set(err, "Engine", "%s: engine-text-withheld", wire_kind_name(kind));
    const char *said = r->error.text != NULL ? r->error.text : "no error text";
    struct buffer text = {0};
    error_set(err, "Engine", "%s: %s", wire_kind_name(kind), engine_text(said, &text));
    buffer_free(&text);
    return false;
}

/* (a) a line the engine could not read, (b) nonce, (c) id, (d) ok. */
static bool check_envelope(const struct client *c, enum wire_kind kind, int64_t id,
                           const struct wire_response *r, struct error *err)
{
    if (r->id.value == WIRE_ERROR_ID && !r->ok.value)
        return engine_failed(c, r, kind, err);
    if (r->nonce.text == NULL || strcmp(r->nonce.text, c->hello.nonce.text) != 0)
        return error_set(err, "NonceMismatch", "the reply's nonce is %s",
                         r->nonce.text != NULL ? "not the session's" : "absent");
    if (r->id.value != id && c->options.withhold_text)
        return error_set(err, "Protocol", "response had another id than %" PRId64, id);
    if (r->id.value != id)
        return error_set(err, "Protocol", "response had id %" PRId64 ", expected %" PRId64,
                         r->id.value, id);
    return r->ok.value || engine_failed(c, r, kind, err);
}

static bool is_timed_step(enum wire_kind kind)
{
    return kind == WIRE_KIND_decode_begin || kind == WIRE_KIND_decode_step ||
           kind == WIRE_KIND_correctness_begin || kind == WIRE_KIND_correctness_step;
}

static void release_reply(struct client *c)
{
    if (c->has_reply)
        wire_response_free(&c->reply);
    c->has_reply = false;
    arena_free(&c->reply_arena);
}

static struct read_rules rules_for(const struct client *c, enum wire_kind kind,
                                   const struct wire_request *q, double seconds, int64_t from_ns)
{
    const bool barrier =
        kind == WIRE_KIND_phase_diagnostics || kind == WIRE_KIND_dflash_phase_diagnostics;
    struct read_rules rules = {.limit = wire_response_limit(kind, q),
                               .timeout_name = barrier ? "BarrierTimeout" : "ReplyTimeout",
                               .what = wire_kind_name(kind),
                               .seconds = seconds > 0 ? seconds
                                          : barrier   ? c->options.barrier_seconds
                                                      : c->options.reply_seconds};
    rules.deadline_ns = deadline_after(from_ns, rules.seconds);
    if (c->run_deadline_ns != 0) {
        /* Inside a timed window the run deadline alone decides. */
        rules.deadline_ns = c->run_deadline_ns;
        rules.timeout_name = "RunTimeout";
    }
    return rules;
}

/* A reply that was there before its request would have cost no time: whatever stands in the pipe
 * now is read, and an object among it is refused. */
static bool refuse_unasked(struct client *c, const struct read_rules *rules, struct error *err)
{
    for (size_t lines = 0;; lines++) {
        const char *line;
        size_t length;
        const enum child_read_result r =
            child_read_line(c->child, rules->limit, 0, &line, &length, NULL);
        if (r == CHILD_READ_TOO_LONG)
            return error_set(err, "LineTooLong",
                             "the engine wrote a line longer than %zu bytes unasked", rules->limit);
        if (r != CHILD_READ_LINE) /* an end or a fault shows when the reply is read */
            return true;
        while (length > 0 && (*line == ' ' || *line == '\t' || *line == '\r'))
            line++, length--;
        if (length > 0 && *line == '{')
            return error_set(err, "Protocol", "the engine answered before %s was asked",
                             rules->what);
        if (lines >= CLIENT_SKIPPED_LINES)
            return error_set(err, "StdoutFlood", "the engine wrote %zu lines unasked", lines);
    }
}

static bool write_request(struct client *c, const struct read_rules *rules, struct error *err)
{
    struct error inner = {0};
    if (child_write(c->child, c->line.data, c->line.length, rules->deadline_ns, &inner))
        return true;
    if (interrupt_requested())
        return error_set(err, "Interrupted", "interrupted while writing to the engine");
    if (strcmp(inner.name, "ENGINE-WRITE-TIMEOUT") == 0)
        return timed_out(c, rules->timeout_name, rules->what, rules->seconds, err);
    if (strcmp(inner.name, "ENGINE-CLOSED") == 0)
        return engine_exited(c, err);
    if (err != NULL)
        *err = inner;
    return renamed(err, "Io", "");
}

static bool call_checked(struct client *c, struct wire_request *q, double seconds,
                         int64_t *elapsed_ns, struct error *err)
{
    const enum wire_kind kind = wire_kind_find(q->kind.text);
    if (!check_may_ask(c, kind, q, err))
        return false;
    const int64_t id = c->next_id++;
    q->id = (struct wire_i64){.present = true, .value = id};
    buffer_clear(&c->line);
    wire_request_encode(q, &c->line);
    if (is_timed_step(kind))
        c->timed_steps++;
    struct read_rules rules = rules_for(c, kind, q, seconds, clock_now_ns());
    if (!refuse_unasked(c, &rules, err))
        return false;
    /* The clock runs from here to the last byte of the reply; encoding lies before, parsing
     * after. */
    const int64_t start_ns = clock_now_ns();
    const char *line;
    size_t length;
    int64_t end_ns;
    if (!write_request(c, &rules, err) || !read_object(c, &rules, &line, &length, &end_ns, err))
        return false;
    c->last = (struct client_interval){start_ns, end_ns};
    if (elapsed_ns != NULL)
        *elapsed_ns = end_ns - start_ns;
    if (!decode_reply(&c->reply_arena, wire_kind_is_block(kind), c->options.withhold_text, line,
                      length, &c->reply, err))
        return false;
    c->has_reply = true;
    if (!check_envelope(c, kind, id, &c->reply, err) || !reply_check(kind, q, &c->reply, err))
        return false;
    if (kind == WIRE_KIND_free_decode_run) {
        c->has_free_run = true;
        c->free_run = reply_free_run_close(&c->reply);
    }
    return true;
}

bool client_call(struct client *c, struct wire_request *request, double deadline_seconds,
                 const struct wire_response **reply, int64_t *elapsed_ns, struct error *err)
{
    if (reply != NULL)
        *reply = NULL;
    if (c->discarded)
        return error_set(err, "SessionDiscarded", "the session ended with an earlier failure");
    release_reply(c);
    client_thaw(c);
    if (interrupt_requested()) {
        client_discard(c);
        return error_set(err, "Interrupted", "interrupted before %s", request->kind.text);
    }
    if (!call_checked(c, request, deadline_seconds, elapsed_ns, err)) {
        client_discard(c);
        return false;
    }
    if (reply != NULL)
        *reply = &c->reply;
    return true;
}

struct client_interval client_last_interval(const struct client *c)
{
    return c->last;
}

bool client_barrier(struct client *c, int64_t expected_work, const struct wire_response **reply,
                    struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_phase_diagnostics);
    const struct wire_response *r;
    if (!client_call(c, &q, 0, &r, NULL, err))
        return false;
    const int64_t issued = expected_work >= 0 ? expected_work : c->timed_steps;
    bool ok = true;
    if (r->cache_memory.present && r->cache_memory.value != 0) {
        ok = error_set(err, "AllocatorCacheNotDrained",
                       "runtime worker failed to clear the MLX allocator cache at phase start "
                       "(cache_memory=%" PRId64 " bytes, expected 0)",
                       r->cache_memory.value);
    } else if (c->has_free_run) {
        ok = reply_check_free_run_close(&c->free_run, &r->completed_work, err);
    } else if (!r->completed_work.present || r->completed_work.value != issued) {
        char value[32] = "absent";
        if (r->completed_work.present)
            snprintf(value, sizeof value, "%" PRId64, r->completed_work.value);
        error_set(err, "CompletedWorkMismatch",
                  "the engine reports %s completed steps, %" PRId64 " were issued", value, issued);
        ok = error_at(err, NULL, "completed_work", value);
    }
    c->timed_steps = 0;
    c->has_free_run = false;
    if (!ok) {
        client_discard(c);
        return false;
    }
    if (reply != NULL)
        *reply = r;
    return true;
}

bool client_arm_run_deadline(struct client *c, uint64_t count, double ceiling_seconds,
                             struct error *err)
{
    const double budget = (double)count * ceiling_seconds * CLIENT_RUN_TIMEOUT_MARGIN;
    if (count == 0 || !isfinite(ceiling_seconds) || ceiling_seconds <= 0 || !isfinite(budget) ||
        budget <= 0)
        return error_set(err, "RunTimeoutBudgetInvalid",
                         "%" PRIu64 " tokens x %g s x %g is no usable run budget", count,
                         ceiling_seconds, CLIENT_RUN_TIMEOUT_MARGIN);
    c->run_budget_seconds = budget;
    c->run_deadline_ns = deadline_after(clock_now_ns(), budget);
    return true;
}

void client_disarm_run_deadline(struct client *c)
{
    c->run_deadline_ns = 0;
}

void client_discard(struct client *c)
{
    c->discarded = true;
}

const char *client_stderr_tail(struct client *c)
{
    return launch_log_tail(c->log);
}

uint64_t client_resident_bytes(const struct client *c)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/statm", (long)c->engine_pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return 0;
    unsigned long long size, resident;
    const int n = fscanf(f, "%llu %llu", &size, &resident);
    fclose(f);
    return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t client_peak_rss(const struct client *c)
{
    return c->child != NULL ? child_peak_rss(c->child) : 0;
}

const char *client_wait_status(const struct client *c)
{
    return c->wait_status;
}

struct child *client_child(const struct client *c)
{
    return c->child;
}

void client_end(struct client *c)
{
    if (c->child == NULL || c->wait_status[0] != '\0')
        return;
    client_thaw(c);
    /* An engine that has already failed gets no time to tidy up. */
    const char *status = child_end(c->child, c->discarded ? 0 : GRACE_END_MS);
    text_copy(c->wait_status, sizeof c->wait_status, status);
}

void client_free(struct client *c)
{
    if (c == NULL)
        return;
    client_end(c);
    if (c->engine_handle >= 0)
        close(c->engine_handle);
    release_reply(c);
    if (c->has_hello)
        wire_response_free(&c->hello);
    child_free(c->child); /* joins the stderr reader, which still holds the log */
    launch_log_free(c->log);
    buffer_free(&c->line);
    arena_free(&c->session);
    free(c);
}
