#include "engine/serve/attach.h"

#include "base/arena.h"
#include "base/json.h"
#include "engine/serve/lines.h"
#include "engine/serve/local_socket.h"
#include "engine/serve/resident.h"
#include "wire/wire.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELLO_MS = 30000, PIECE = 64 << 10 };

/* ---- the hello ---- */

static bool no_hello(const struct attach_options *o, const char *why, struct error *err)
{
    error_set(err, "noHello", "noHello(%s): %s", o->socket, why);
    return error_at(err, NULL, "BENCH_WORKER_RESIDENT_SOCKET", o->socket);
}

/* One folder may have two names where one of the two is in a sandbox, or behind a link. */
static bool check_weights(const struct attach_options *o, const json_t *hello, struct error *err)
{
    const char *theirs = json_string_value(json_object_get(hello, RESIDENT_KEY_WEIGHTS));
    const char *folder = json_string_value(json_object_get(hello, RESIDENT_KEY_FOLDER));
    char ours[PATH_MAX], id[64];
    if (!theirs || !folder)
        return no_hello(o, "its hello does not say which weights it holds", err);
    if (realpath(o->weights, ours) == NULL || !resident_folder_identity(o->weights, id, err))
        return error_errno(err, o->weights, "looking at the weights");
    if (strcmp(ours, theirs) == 0 || strcmp(id, folder) == 0)
        return true;
    error_set(err, "weightsMismatch",
              "weightsMismatch(%s, %s): the resident holds other weights than --weights names",
              theirs, ours);
    return error_at(err, NULL, "--weights", o->weights);
}

/* Plain v1 claims nothing of v1.1 (runner-contract.md section 4), and an untrusted worker nothing
 * of what the organiser's does. */
static void keep_own_claims(const struct attach_options *o, struct wire_response *hello)
{
    size_t kept = 0;
    for (size_t i = 0; i < hello->capabilities.count; i++) {
        const char *name = hello->capabilities.items[i];
        const bool of_trusted =
            strcmp(name, "cohort_reference_replay") == 0 || strcmp(name, "dflash_reference") == 0;
        if ((o->speculative || text_starts(name, "dflash_")) && (o->trusted || !of_trusted))
            hello->capabilities.items[kept++] = name;
    }
    hello->capabilities.count = kept;
    if (o->speculative)
        return;
    hello->capabilities.present = kept > 0;
    hello->spec_modes.present = hello->max_batch_size.present = false;
}

/* What only the attaching worker reads is taken out, so that the rest is a hello of the wire. */
static bool rewrite(const struct attach_options *o, json_t *hello, struct buffer *out,
                    struct error *err)
{
    struct arena arena = {0};
    struct buffer text = {0};
    struct wire_response r;
    struct error why;
    json_object_del(hello, RESIDENT_KEY_WEIGHTS);
    json_object_del(hello, RESIDENT_KEY_FOLDER);
    json_write_ordered(hello, 0, &text);
    const bool ok = wire_response_decode(&arena, text.data, text.length, &r, &why);
    if (ok) {
        keep_own_claims(o, &r);
        r.resident.present = o->tell_resident && o->speculative;
        if (!o->tell_arithmetic)
            r.arithmetic.text = NULL;
        wire_response_encode(&r, out);
        wire_response_free(&r);
    } else {
        no_hello(o, why.message, err);
    }
    buffer_free(&text);
    arena_free(&arena);
    return ok;
}

bool attach_rewrite_hello(const struct attach_options *o, const char *line, size_t length,
                          struct buffer *out, struct error *err)
{
    struct error why;
    json_t *hello = json_parse_strict(line, length, JSON_DEPTH_DEFAULT, o->socket, &why);
    const char *said = json_string_value(json_object_get(hello, "error"));
    bool ok = false;
    if (!json_is_object(hello)) {
        no_hello(o, "what came first is no JSON object", err);
    } else if (json_is_false(json_object_get(hello, "ok"))) {
        error_set(err, "refused", "refused(%s)", said ? said : "the resident says no more");
        error_at(err, NULL, "BENCH_WORKER_RESIDENT_SOCKET", o->socket);
    } else if (!json_is_object(json_object_get(hello, "resident"))) {
        no_hello(o, "what came first is no resident's hello", err);
    } else {
        ok = check_weights(o, hello, err) && rewrite(o, hello, out, err);
    }
    json_decref(hello);
    return ok;
}

/* ---- the relay ---- */

static bool take_hello(const struct attach_options *o, struct line_reader *reader, int output,
                       struct error *err)
{
    const char *line;
    size_t length;
    struct buffer hello = {0};
    struct error why = {0};
    const enum line_result result = line_reader_next(reader, &line, &length, &why);
    if (result == LINE_ERROR)
        return no_hello(o, why.message, err);
    if (result != LINE_READ)
        return no_hello(o,
                        result == LINE_TOO_LONG ? "its first line is too long"
                                                : "it ended the session first",
                        err);
    /* It speaks when asked, and was not yet: nothing follows its hello. */
    const bool alone = reader->held.length == reader->start;
    const bool ok = attach_rewrite_hello(o, line, length, &hello, err) &&
                    (alone || no_hello(o, "more than a hello came", err)) &&
                    line_write(output, hello.data, hello.length, err);
    buffer_free(&hello);
    return ok;
}

struct relay {
    int input, socket, output;
    char request[PIECE];
    size_t from, to; /* of request: read, and not yet sent */
    bool ended, cut; /* the input has; inside a line */
};

/* 0: the input has ended, now or before. */
static ssize_t take_requests(struct relay *r)
{
    ssize_t n;
    do
        n = read(r->input, r->request, sizeof r->request);
    while (n < 0 && errno == EINTR);
    r->from = 0;
    r->to = n > 0 ? (size_t)n : 0;
    if (n > 0)
        r->cut = r->request[n - 1] != '\n';
    return n;
}

/* Never waits: a resident that waits for its answer to be taken takes no request meanwhile. */
static bool send_requests(struct relay *r, struct error *err)
{
    const ssize_t n =
        send(r->socket, r->request + r->from, r->to - r->from, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0)
        r->from += (size_t)n;
    if (n >= 0 || errno == EAGAIN || errno == EINTR)
        return true;
    if (errno == EPIPE) { /* its last words may still be there to read */
        r->from = r->to;
        return true;
    }
    return error_errno(err, NULL, "handing a request on");
}

static bool lost(struct error *err)
{
    return error_set(err, "RESIDENT-LOST", "the resident ended the session before its input did");
}

/* *more false: the resident has said its last. */
static bool take_answers(struct relay *r, bool *more, struct error *err)
{
    char piece[PIECE];
    ssize_t n;
    do
        n = read(r->socket, piece, sizeof piece);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        return line_write(r->output, piece, (size_t)n, err);
    *more = false;
    if (n < 0 && errno != ECONNRESET)
        return error_errno(err, NULL, "reading from the resident");
    if (!r->ended)
        return lost(err);
    return !r->cut || error_set(err, "REQUEST-CUT", "the input ended inside a request line");
}

static bool relay(struct relay *r, struct error *err)
{
    for (bool more = true; more;) {
        const bool full = r->to > r->from;
        struct pollfd all[2] = {{r->socket, (short)(POLLIN | (full ? POLLOUT : 0)), 0},
                                {full || r->ended ? -1 : r->input, POLLIN, 0}};
        if (poll(all, 2, -1) < 0) {
            if (errno == EINTR)
                continue;
            return error_errno(err, NULL, "waiting for the resident");
        }
        if (all[1].revents) {
            const ssize_t n = take_requests(r);
            if (n < 0)
                return error_errno(err, NULL, "reading requests");
            r->ended = n == 0;
            if (r->ended)
                shutdown(r->socket, SHUT_WR);
        }
        if (r->to > r->from && !send_requests(r, err))
            return false;
        if ((all[0].revents & ~POLLOUT) && !take_answers(r, &more, err))
            return false;
    }
    return true;
}

bool attach_serve(const struct attach_options *o, int input, int output, struct error *err)
{
    struct error why = {0};
    if (!local_path_check(o->socket, "BENCH_WORKER_RESIDENT_SOCKET", err))
        return false;
    const int fd = local_connect(o->socket, &why);
    if (fd < 0) {
        error_set(err, "unreachable", "unreachable(%s, %s)", o->socket, why.message);
        return error_at(err, NULL, "BENCH_WORKER_RESIDENT_SOCKET", o->socket);
    }
    struct line_reader reader = {.fd = fd, .limit = WIRE_HELLO_LIMIT, .silent_ms = HELLO_MS};
    bool ok = take_hello(o, &reader, output, err);
    line_reader_free(&reader);
    struct relay r = {.input = input, .socket = fd, .output = output};
    ok = ok && relay(&r, err);
    close(fd);
    return ok;
}
