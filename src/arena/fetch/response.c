#include "arena/fetch/response.h"

#include "base/buffer.h"
#include "base/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool digits(const char **at, uint64_t *out)
{
    char text[24];
    const size_t n = strspn(*at, "0123456789");
    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, *at, n);
    text[n] = '\0';
    *at += n;
    return number_uint64(text, INT64_MAX, out);
}

bool fetch_response_range(const char *text, struct fetch_response *r)
{
    r->has_range = r->has_total = false;
    if (strncasecmp(text, "bytes", 5) != 0 || (text[5] != ' ' && text[5] != '='))
        return false;
    const char *at = text + 6;
    bool range = false;
    if (*at == '*') {
        at++;
    } else {
        if (!digits(&at, &r->first) || *at++ != '-' || !digits(&at, &r->last) || r->last < r->first)
            return false;
        range = true;
    }
    if (*at++ != '/')
        return false;
    if (strcmp(at, "*") != 0) {
        if (!digits(&at, &r->total) || *at || (range && r->last >= r->total))
            return false;
        r->has_total = true;
    } else if (!range) {
        return false;
    }
    r->has_range = range;
    return true;
}

static void parse_status(struct fetch_response *r, const char *text)
{
    const char *space = strchr(text, ' ');
    uint64_t status = 0;
    *r = (struct fetch_response){0};
    if (space && (space++, digits(&space, &status)) && status < 1000)
        r->status = (int)status;
}

void fetch_response_header(struct fetch_response *r, const char *line, size_t length)
{
    char text[1024];
    while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r' ||
                          line[length - 1] == ' ' || line[length - 1] == '\t'))
        length--;
    if (length >= sizeof text)
        return; /* nothing that is read here is so long */
    memcpy(text, line, length);
    text[length] = '\0';
    if (strncmp(text, "HTTP/", 5) == 0) {
        parse_status(r, text);
        return;
    }
    char *value = strchr(text, ':');
    if (!value)
        return;
    *value++ = '\0';
    value += strspn(value, " \t");
    uint64_t number;
    if (strcasecmp(text, "content-length") == 0 && number_uint64(value, INT64_MAX, &number)) {
        r->has_length = true;
        r->length = number;
    } else if (strcasecmp(text, "content-range") == 0) {
        r->bad_range = !fetch_response_range(value, r);
    } else if (strcasecmp(text, "etag") == 0) {
        if (value[0] != '"' || !text_copy(r->etag, sizeof r->etag, value))
            r->etag[0] = '\0';
    } else if (strcasecmp(text, "content-encoding") == 0) {
        r->encoded = strcasecmp(value, "identity") != 0 && *value;
        text_copy(r->encoding, sizeof r->encoding, value);
    } else if (strcasecmp(text, "retry-after") == 0 && number_uint64(value, 86400, &number)) {
        r->retry_after = (int64_t)number;
    }
}

static enum fetch_verdict length_differs(uint64_t bytes, uint64_t total, struct error *err)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, total);
    error_set(err, "FETCH-LENGTH",
              "expected %" PRIu64 " bytes, the server offers a file of %" PRIu64, bytes, total);
    error_at(err, NULL, "length", value);
    return FETCH_REFUSED;
}

static enum fetch_verdict judge_partial(const struct fetch_response *r, uint64_t have,
                                        uint64_t bytes, const char *etag, uint64_t *offset,
                                        struct error *err)
{
    if (!r->has_range) {
        error_set(err, "FETCH-RANGE",
                  "expected Content-Range \"bytes %" PRIu64 "-.../%" PRIu64 "\", the server's 206 "
                  "has %s",
                  have, bytes, r->bad_range ? "one that cannot be read" : "none");
        return FETCH_AFRESH;
    }
    if (r->has_total && r->total != bytes)
        return length_differs(bytes, r->total, err);
    if (r->last >= bytes)
        return length_differs(bytes, r->last + 1, err);
    if (r->first > have) {
        error_set(err, "FETCH-RANGE",
                  "expected bytes from %" PRIu64 " on, the server sends them from %" PRIu64, have,
                  r->first);
        return FETCH_AFRESH;
    }
    if (etag[0] && r->etag[0] && strcmp(etag, r->etag) != 0) {
        error_set(err, "FETCH-CHANGED",
                  "expected ETag %s as before, the server's is now %s: the file there has changed",
                  etag, r->etag);
        return FETCH_AFRESH;
    }
    *offset = r->first;
    return FETCH_TAKE;
}

enum fetch_verdict fetch_response_judge(const struct fetch_response *r, uint64_t have,
                                        uint64_t bytes, bool asked, const char *etag,
                                        uint64_t *offset, struct error *err)
{
    const int s = r->status;
    if (s == 301 || s == 302 || s == 303 || s == 307 || s == 308)
        return FETCH_MOVED;
    if ((s == 200 || s == 206) && r->encoded) {
        error_set(err, "FETCH-ENCODING", "expected the file's bytes, the server encodes them as %s",
                  r->encoding);
        return FETCH_REFUSED;
    }
    if (s == 206 && asked)
        return judge_partial(r, have, bytes, etag, offset, err);
    if (s == 200) {
        if (r->has_length && r->length != bytes)
            return length_differs(bytes, r->length, err);
        *offset = 0;
        return FETCH_TAKE;
    }
    if (s == 416 && asked) {
        if (r->has_total && r->total != bytes)
            return length_differs(bytes, r->total, err);
        if (have == bytes)
            return FETCH_DONE;
        error_set(err, "FETCH-RANGE",
                  "expected bytes %" PRIu64 " to %" PRIu64 ", the server says there are none (416)",
                  have, bytes);
        return FETCH_AFRESH;
    }
    char value[16];
    snprintf(value, sizeof value, "%d", s);
    error_set(err, "FETCH-HTTP", "expected status 200%s, the server answers %d%s",
              asked ? " or 206" : "", s,
              s == 401 || s == 403 ? " (an authorization header is missing, or not accepted)" : "");
    error_at(err, NULL, "status", value);
    return s == 408 || s == 425 || s == 429 || s >= 500 || s < 200 ? FETCH_LATER : FETCH_REFUSED;
}
