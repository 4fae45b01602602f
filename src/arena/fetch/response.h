/* What an answer means for a file of which `have` bytes are there: the rules of HTTP ranges, as
 * trusted here. Content-Range says where bytes belong and how long the file is; the hash has the
 * last word. No input or output: everything here is a function of text. */
#ifndef MLXFAST_ARENA_FETCH_RESPONSE_H
#define MLXFAST_ARENA_FETCH_RESPONSE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fetch_response {
    int status;
    bool has_length, has_range, bad_range, has_total, encoded;
    uint64_t length, first, last, total; /* of Content-Length and Content-Range */
    char etag[256];                      /* strong ones only; else "" */
    char encoding[64];
    int64_t retry_after; /* seconds, 0 unless said */
};

/* One header line (with or without CRLF). A status line begins the response anew. */
void fetch_response_header(struct fetch_response *r, const char *line, size_t length);

/* "bytes a-b/total", "bytes a-b/STAR", "bytes STAR/total" with STAR for '*'. */
bool fetch_response_range(const char *text, struct fetch_response *r);

enum fetch_verdict {
    FETCH_TAKE,    /* the body's bytes belong at *offset: 0 .. have */
    FETCH_DONE,    /* the server says that there are no more: let the hash decide */
    FETCH_AFRESH,  /* ask again, without a range, from nothing */
    FETCH_LATER,   /* this may pass: try again */
    FETCH_REFUSED, /* this source will not give the file */
    FETCH_MOVED    /* a redirect */
};
/* bytes: the pinned length; asked: a range from have on was asked for; etag: what the bytes there
 * had, or "". For every verdict but FETCH_TAKE, FETCH_DONE and FETCH_MOVED err says why, without
 * file: FETCH-HTTP, FETCH-LENGTH, FETCH-RANGE, FETCH-CHANGED, FETCH-ENCODING. */
enum fetch_verdict fetch_response_judge(const struct fetch_response *r, uint64_t have,
                                        uint64_t bytes, bool asked, const char *etag,
                                        uint64_t *offset, struct error *err);

#endif
