/* Dishonest use: lines that are no requests, requests that ask for the impossible, odd but legal
 * framing. After each refusal the engine must serve on and give the token that it gave before. */
#include "judge/conformance_kit.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum {
    OVERSIZE_TOKENS = 1 << 22, /* more than any context: 8 MiB of text */
    LONG_LINE = 4 << 20,
    BEYOND_LIMIT = WIRE_REQUEST_LIMIT + (1 << 20),
    NESTING = 100000,
    PIECE_PAUSE_MS = 20
};

static struct peer *fault_peer(struct kit *k, struct verdict *v)
{
    return kit_learn_brief(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
}

/* One bad line, then service as before. */
static bool bad_line(struct kit *k, struct peer *p, const char *what, const char *line,
                     size_t length, int64_t id_rule, int64_t own_id, struct verdict *v)
{
    return kit_refused(k, p, what, line, length, id_rule, own_id, v) && kit_recovers(k, p, what, v);
}

static void unreadable_lines(struct kit *k, const char *const *lines, struct verdict *v)
{
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && lines[i] != NULL; i++)
        if (!bad_line(k, p, lines[i], lines[i], strlen(lines[i]), WIRE_ERROR_ID, 0, v))
            return;
}

static void check_malformed(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {"hello",
                                        "{id:7}",
                                        "{\"id\":7,\"kind\":'prefill'}",
                                        "{\"id\":7,\"kind\":\"phase_diagnostics\"}}",
                                        "{\"id\":7,,\"kind\":\"phase_diagnostics\"}",
                                        NULL};
    unreadable_lines(k, lines, v);
}

static void check_truncated(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {"{", "{\"id\":7,\"kind\":\"prefill\",\"prompt_tok",
                                        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[1,2",
                                        "{\"id\":7,\"kind\":\"phase_diagnostics\"", NULL};
    unreadable_lines(k, lines, v);
}

static void check_no_object(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {"[]", "7", "\"prefill\"", "null", "true", NULL};
    unreadable_lines(k, lines, v);
}

static void check_bad_utf8(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {"{\"id\":7,\"kind\":\"\xff\xfe\"}", "\x80\x80", NULL};
    unreadable_lines(k, lines, v);
}

static void check_nesting(struct kit *k, struct verdict *v)
{
    struct peer *p = fault_peer(k, v);
    if (p == NULL)
        return;
    char *line = memory_alloc(NESTING);
    memset(line, '[', NESTING);
    bad_line(k, p, "a line of 100000 brackets", line, NESTING, WIRE_ERROR_ID, 0, v);
    free(line);
}

/* Requests that read as JSON and cannot be served: -1 or their own id (7). */
static void unservable_lines(struct kit *k, const char *const *lines, struct verdict *v)
{
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && lines[i] != NULL; i++)
        if (!bad_line(k, p, lines[i], lines[i], strlen(lines[i]), KIT_ANY_ID, 7, v))
            return;
}

static void check_unknown_kind(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {
        "{\"id\":7,\"kind\":\"shutdown\"}", "{\"id\":7,\"kind\":\"hello\"}",
        "{\"id\":7,\"kind\":\"\"}", "{\"id\":7,\"kind\":\"Prefill\",\"prompt_tokens\":[1]}", NULL};
    unservable_lines(k, lines, v);
}

static void check_unknown_key(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {
        "{\"id\":7,\"kind\":\"phase_diagnostics\",\"verbose\":true}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[1],\"temperature\":0.5}", NULL};
    unservable_lines(k, lines, v);
}

static void check_wrong_type(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":1}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":\"1\"}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[\"1\"]}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[1.5]}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[[1]]}",
        "{\"id\":7,\"kind\":\"prefill\",\"prompt_tokens\":[true]}",
        "{\"id\":7,\"kind\":\"correctness\",\"prompt_tokens\":[1],\"steps\":\"2\"}",
        "{\"id\":7,\"kind\":8}",
        NULL};
    unservable_lines(k, lines, v);
}

static void check_missing_field(struct kit *k, struct verdict *v)
{
    static const char *const lines[] = {"{\"id\":7}",
                                        "{\"id\":7,\"kind\":\"prefill\"}",
                                        "{\"id\":7,\"kind\":\"correctness\",\"prompt_tokens\":[1]}",
                                        "{\"id\":7,\"kind\":\"correctness\",\"steps\":2}",
                                        "{\"id\":7,\"kind\":\"correctness_begin\"}",
                                        "{\"id\":7,\"kind\":\"decode_begin\"}",
                                        "{\"id\":7,\"kind\":\"decode_step\"}",
                                        "{\"id\":7,\"kind\":\"correctness_step\"}",
                                        NULL};
    static const char *const no_id[] = {"{}",
                                        "{\"kind\":\"phase_diagnostics\"}",
                                        "{\"id\":\"7\",\"kind\":\"phase_diagnostics\"}",
                                        "{\"id\":true,\"kind\":\"phase_diagnostics\"}",
                                        "{\"id\":7.5,\"kind\":\"phase_diagnostics\"}",
                                        NULL};
    unservable_lines(k, lines, v);
    if (v->is == KIT_PASS)
        unreadable_lines(k, no_id, v);
}

/* ---- tokens and sizes ---- */

static bool prompt_refused(struct kit *k, struct peer *p, const char *about,
                           const struct wire_tokens *tokens, struct verdict *v)
{
    static const enum wire_kind kinds[] = {WIRE_KIND_prefill, WIRE_KIND_correctness_begin,
                                           WIRE_KIND_correctness, WIRE_KIND_decode_begin,
                                           WIRE_KIND_free_decode_begin};
    const size_t count = kit_has_capability(p, "free_run_decode") ? 5 : 4;
    for (size_t i = 0; i < count; i++) {
        char what[96];
        struct wire_request q = kit_prompt(kinds[i], tokens);
        if (kinds[i] == WIRE_KIND_correctness)
            q.steps = (struct wire_i64){.present = true, .value = 2};
        snprintf(what, sizeof what, "%s with %s", wire_kind_name(kinds[i]), about);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return false;
    }
    return true;
}

static void check_prompt_tokens(struct kit *k, struct verdict *v)
{
    const int64_t bad[] = {-1, k->vocab, INT64_C(1) << 40};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 3; i++) {
        int64_t tokens[3] = {k->brief.items[0], bad[i], k->brief.items[0]};
        const struct wire_tokens prompt = client_tokens(tokens, 3);
        char about[64];
        snprintf(about, sizeof about, "token %" PRId64, bad[i]);
        if (!prompt_refused(k, p, about, &prompt, v))
            return;
    }
}

static void check_step_tokens(struct kit *k, struct verdict *v)
{
    static const enum wire_kind begins[] = {WIRE_KIND_decode_begin, WIRE_KIND_correctness_begin};
    static const enum wire_kind steps[] = {WIRE_KIND_decode_step, WIRE_KIND_correctness_step};
    const int64_t bad[] = {-1, k->vocab, INT64_C(1) << 40};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 6; i++) {
        struct wire_request q = kit_prompt(begins[i / 3], &k->brief);
        char what[96];
        if (!kit_ask(k, p, &q, NULL, v))
            return;
        snprintf(what, sizeof what, "%s with token %" PRId64, wire_kind_name(steps[i / 3]),
                 bad[i % 3]);
        q = kit_token(steps[i / 3], bad[i % 3]);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
}

static void check_empty_prompt(struct kit *k, struct verdict *v)
{
    int64_t none = 0;
    const struct wire_tokens empty = client_tokens(&none, 0);
    struct peer *p = fault_peer(k, v);
    if (p != NULL)
        prompt_refused(k, p, "no token", &empty, v);
}

static void check_oversize_prompt(struct kit *k, struct verdict *v)
{
    struct peer *p = fault_peer(k, v);
    if (p == NULL)
        return;
    static const enum wire_kind kinds[] = {WIRE_KIND_prefill, WIRE_KIND_decode_begin};
    struct wire_tokens many =
        client_tokens(memory_alloc(OVERSIZE_TOKENS * sizeof(int64_t)), OVERSIZE_TOKENS);
    for (size_t i = 0; i < 2; i++) {
        char what[96];
        struct wire_request q = kit_prompt(kinds[i], &many);
        snprintf(what, sizeof what, "%s with %d tokens", wire_kind_name(kinds[i]), OVERSIZE_TOKENS);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            break;
    }
    free(many.items);
}

static void check_steps_bounds(struct kit *k, struct verdict *v)
{
    static const int64_t bad[] = {0, -1, INT64_C(1) << 40};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 3; i++) {
        char what[64];
        struct wire_request q = kit_prompt(WIRE_KIND_correctness, &k->brief);
        q.steps = (struct wire_i64){.present = true, .value = bad[i]};
        snprintf(what, sizeof what, "correctness with steps %" PRId64, bad[i]);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
}

/* ---- order ---- */

/* What may come between a step and nothing of its own: the other kind's begin, and the kinds that
 * leave no sequence open. */
static void check_step_elsewhere(struct kit *k, struct peer *p, struct verdict *v)
{
    static const struct {
        enum wire_kind before, step;
        bool own_begin; /* before it */
    } rows[] = {
        {WIRE_KIND_decode_begin, WIRE_KIND_correctness_step, false},
        {WIRE_KIND_correctness_begin, WIRE_KIND_decode_step, false},
        {WIRE_KIND_free_decode_begin, WIRE_KIND_decode_step, false},
        {WIRE_KIND_prefill, WIRE_KIND_decode_step, true},
        {WIRE_KIND_correctness, WIRE_KIND_correctness_step, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char what[64];
        struct wire_request q =
            kit_prompt(rows[i].step == WIRE_KIND_decode_step ? WIRE_KIND_decode_begin
                                                             : WIRE_KIND_correctness_begin,
                       &k->brief);
        if (rows[i].before == WIRE_KIND_free_decode_begin &&
            !kit_has_capability(p, "free_run_decode"))
            continue;
        if (rows[i].own_begin && !kit_ask(k, p, &q, NULL, v))
            return;
        q = kit_prompt(rows[i].before, &k->brief);
        if (rows[i].before == WIRE_KIND_correctness)
            q.steps = (struct wire_i64){.present = true, .value = 2};
        if (!kit_ask(k, p, &q, NULL, v))
            return;
        snprintf(what, sizeof what, "%s after %s", wire_kind_name(rows[i].step),
                 wire_kind_name(rows[i].before));
        q = kit_token(rows[i].step, k->brief.items[0]);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
}

static void check_step_before_begin(struct kit *k, struct verdict *v)
{
    static const enum wire_kind steps[] = {WIRE_KIND_decode_step, WIRE_KIND_correctness_step};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 2; i++) {
        char what[64];
        struct wire_request q = kit_token(steps[i], k->brief.items[0]);
        snprintf(what, sizeof what, "%s without a begin", wire_kind_name(steps[i]));
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
    if (p != NULL)
        check_step_elsewhere(k, p, v);
}

/* A step after a refused one has nothing to stand on. */
static void check_error_drops(struct kit *k, struct verdict *v)
{
    static const enum wire_kind begins[] = {WIRE_KIND_decode_begin, WIRE_KIND_correctness_begin};
    static const enum wire_kind steps[] = {WIRE_KIND_decode_step, WIRE_KIND_correctness_step};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 2; i++) {
        struct wire_request q = kit_prompt(begins[i], &k->brief);
        char what[96];
        if (!kit_ask(k, p, &q, NULL, v))
            return;
        q = kit_token(steps[i], k->vocab);
        snprintf(what, sizeof what, "%s after a refused one", wire_kind_name(steps[i]));
        if (!kit_request_refused(k, p, "a token outside the vocabulary", &q, v))
            return;
        q = kit_token(steps[i], k->brief.items[0]);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
}

/* ---- framing ---- */

/* Reads a reply to prefill of brief. */
static bool brief_answered(struct kit *k, struct peer *p, int64_t id, const char *what,
                           struct verdict *v)
{
    struct error err = {0};
    const struct wire_response *r;
    if (!kit_read(k, p, WIRE_RESPONSE_LIMIT, k->reply_seconds, &r, &err)) {
        kit_fail(v, "%s: %s: %s", what, err.name, err.message);
        return false;
    }
    if (!r->ok.value)
        kit_fail(v, "%s: refused: %.200s", what, r->error.text != NULL ? r->error.text : "");
    else if (r->id.value != id)
        kit_fail(v, "%s: answered with id %" PRId64 ", not %" PRId64, what, r->id.value, id);
    else if (!r->token.present || r->token.value != k->brief_token)
        kit_fail(v, "%s: another token than before", what);
    else
        return true;
    return false;
}

static void put_brief(const struct kit *k, int64_t id, struct buffer *out)
{
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->brief);
    q.id = (struct wire_i64){.present = true, .value = id};
    wire_request_encode(&q, out);
}

static bool send_text(struct kit *k, struct peer *p, const char *what, const void *data,
                      size_t length, struct verdict *v)
{
    struct error err = {0};
    if (kit_write(k, p, data, length, &err))
        return true;
    kit_fail(v, "%s: %s: %s", what, err.name, err.message);
    return false;
}

static void check_two_at_once(struct kit *k, struct verdict *v)
{
    static const char what[] = "three requests in one write";
    struct peer *p = fault_peer(k, v);
    struct buffer out = {0};
    if (p == NULL)
        return;
    for (int64_t id = 1000501; id <= 1000503; id++)
        put_brief(k, id, &out);
    bool ok = send_text(k, p, what, out.data, out.length, v);
    for (int64_t id = 1000501; ok && id <= 1000503; id++)
        ok = brief_answered(k, p, id, what, v);
    buffer_free(&out);
}

static void check_split_write(struct kit *k, struct verdict *v)
{
    static const char what[] = "a request in three writes";
    struct peer *p = fault_peer(k, v);
    struct buffer out = {0};
    if (p == NULL)
        return;
    put_brief(k, 1000511, &out);
    const size_t third = out.length / 3;
    bool ok = send_text(k, p, what, out.data, third, v);
    poll(NULL, 0, PIECE_PAUSE_MS); /* so that the pieces do not meet in the pipe */
    ok = ok && send_text(k, p, what, out.data + third, third, v);
    poll(NULL, 0, PIECE_PAUSE_MS);
    if (ok && send_text(k, p, what, out.data + 2 * third, out.length - 2 * third, v))
        brief_answered(k, p, 1000511, what, v);
    buffer_free(&out);
}

static void check_blank_lines(struct kit *k, struct verdict *v)
{
    static const char what[] = "a request after a blank line";
    static const char *const blanks[] = {"\n", "\r\n", " \t\n"};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < 3; i++) {
        struct error err = {0};
        const struct wire_response *r;
        struct buffer out = {0};
        buffer_text(&out, blanks[i]);
        put_brief(k, 1000521, &out);
        const bool sent = send_text(k, p, what, out.data, out.length, v);
        buffer_free(&out);
        if (!sent)
            return;
        if (!kit_read(k, p, WIRE_RESPONSE_LIMIT, k->reply_seconds, &r, &err)) {
            kit_fail(v, "%s: %s: %s", what, err.name, err.message);
            return;
        }
        /* The blank line may have been refused; then the request's own answer follows. */
        const bool refused = r->id.value == WIRE_ERROR_ID && !r->ok.value;
        if (refused ? !brief_answered(k, p, 1000521, what, v)
                    : !r->ok.value || r->id.value != 1000521 || r->token.value != k->brief_token) {
            if (v->is == KIT_PASS)
                kit_fail(v, "%s: not answered as alone", what);
            return;
        }
    }
}

static void check_crlf(struct kit *k, struct verdict *v)
{
    static const char what[] = "a request that ends in \\r\\n";
    struct peer *p = fault_peer(k, v);
    struct buffer out = {0};
    if (p == NULL)
        return;
    put_brief(k, 1000531, &out);
    out.length--;
    buffer_text(&out, "\r\n");
    if (send_text(k, p, what, out.data, out.length, v))
        brief_answered(k, p, 1000531, what, v);
    buffer_free(&out);
}

/* Keys sorted backwards and spaces between them. */
static void check_key_order(struct kit *k, struct verdict *v)
{
    static const char what[] = "a request with its keys in another order";
    struct peer *p = fault_peer(k, v);
    struct buffer out = {0};
    if (p == NULL)
        return;
    buffer_text(&out, "{ \"prompt_tokens\" : [");
    for (size_t i = 0; i < k->brief.count; i++)
        buffer_printf(&out, "%s%" PRId64, i > 0 ? " , " : " ", k->brief.items[i]);
    buffer_text(&out, " ] , \"kind\" : \"prefill\" , \"id\" : 1000541 }\n");
    if (send_text(k, p, what, out.data, out.length, v))
        brief_answered(k, p, 1000541, what, v);
    buffer_free(&out);
}

static void check_long_line(struct kit *k, struct verdict *v)
{
    static const char what[] = "a request of 4 MiB, most of it spaces";
    struct peer *p = fault_peer(k, v);
    struct buffer out = {0};
    if (p == NULL)
        return;
    buffer_reserve(&out, LONG_LINE + 4096);
    memset(out.data, ' ', LONG_LINE);
    out.data[0] = '{';
    out.length = LONG_LINE;
    struct buffer request = {0};
    put_brief(k, 1000551, &request);
    buffer_append(&out, request.data + 1, request.length - 1);
    if (send_text(k, p, what, out.data, out.length, v))
        brief_answered(k, p, 1000551, what, v);
    buffer_free(&request);
    buffer_free(&out);
}

static void check_beyond_limit(struct kit *k, struct verdict *v)
{
    static const char what[] = "a line of 65 MiB";
    struct peer *p = fault_peer(k, v);
    if (p == NULL)
        return;
    char *line = memory_alloc(BEYOND_LIMIT);
    memset(line, 'x', BEYOND_LIMIT);
    bad_line(k, p, what, line, BEYOND_LIMIT, WIRE_ERROR_ID, 0, v);
    free(line);
}

/* Ids are the parent's: the engine repeats them, whatever they are. */
static void check_ids(struct kit *k, struct verdict *v)
{
    static const int64_t ids[] = {7, 7, 3, 0, -5, INT64_C(9007199254740993), INT64_MAX, INT64_MIN};
    struct peer *p = fault_peer(k, v);
    for (size_t i = 0; p != NULL && i < sizeof ids / sizeof *ids; i++) {
        char what[64];
        struct buffer out = {0};
        snprintf(what, sizeof what, "a request with id %" PRId64, ids[i]);
        put_brief(k, ids[i], &out);
        const bool ok =
            send_text(k, p, what, out.data, out.length, v) && brief_answered(k, p, ids[i], what, v);
        buffer_free(&out);
        if (!ok)
            return;
    }
}

const struct kit_check kit_fault_checks[] = {
    {"malformed_json", "Lines", "A line that is no JSON is refused with id -1.", check_malformed},
    {"truncated_json", "Lines", "A line that ends inside its object is refused with id -1.",
     check_truncated},
    {"no_object", "Lines", "JSON that is no object is refused with id -1.", check_no_object},
    {"invalid_utf8", "Lines", "A line that is no UTF-8 is refused with id -1.", check_bad_utf8},
    {"deep_nesting", "Lines", "100,000 brackets are refused with id -1.", check_nesting},
    {"unknown_kind", "Replies and refusals", "A kind that does not exist is refused.",
     check_unknown_kind},
    {"unknown_key", "Replies and refusals", "A key that the protocol does not know is refused.",
     check_unknown_key},
    {"wrong_type", "Replies and refusals", "A field of a wrong type is refused.", check_wrong_type},
    {"missing_field", "Replies and refusals",
     "A request without a field that its kind needs is refused; without a usable id, under -1.",
     check_missing_field},
    {"prompt_token_range", "Replies and refusals",
     "A prompt with a token outside the vocabulary is refused.", check_prompt_tokens},
    {"step_token_range", "Replies and refusals",
     "A step with a token outside the vocabulary is refused.", check_step_tokens},
    {"empty_prompt", "Replies and refusals", "A prompt of no tokens is refused.",
     check_empty_prompt},
    {"oversize_prompt", "Replies and refusals",
     "A prompt of 4,194,304 tokens, beyond the context, is refused.", check_oversize_prompt},
    {"steps_range", "correctness", "steps below 1 or beyond the context are refused.",
     check_steps_bounds},
    {"step_before_begin", "Replies and refusals",
     "A step without an open begin of its own kind is refused; prefill and correctness leave none.",
     check_step_before_begin},
    {"error_drops_sequence", "Replies and refusals",
     "A refusal ends the open sequence: the next step is refused too.", check_error_drops},
    {"several_in_one_write", "Lines", "Requests that arrive together are answered in order.",
     check_two_at_once},
    {"split_write", "Lines", "A request may arrive in pieces.", check_split_write},
    {"blank_line", "Lines",
     "A blank line is skipped, or refused with id -1; what follows is served.", check_blank_lines},
    {"crlf", "Lines", "\\r before \\n is no part of the request.", check_crlf},
    {"key_order", "Lines", "Keys may come in any order, with spaces between them.",
     check_key_order},
    {"long_line", "Lines", "A request of 4 MiB is served.", check_long_line},
    {"line_too_long", "Lines", "A line beyond 64 MiB is read to its end and refused with id -1.",
     check_beyond_limit},
    {"ids", "Replies and refusals",
     "Every id is repeated exactly: equal ones, falling ones, from -2^63 to 2^63 - 1.", check_ids},
};
const size_t kit_fault_count = sizeof kit_fault_checks / sizeof *kit_fault_checks;
