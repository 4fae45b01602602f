/* A worker that attaches to a resident process instead of loading (runner-contract.md section 7):
 * the hello is checked and told as the worker's own, every other byte is handed on as it is. */
#ifndef MLXFAST_ENGINE_SERVE_ATTACH_H
#define MLXFAST_ENGINE_SERVE_ATTACH_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct attach_options {
    const char *socket;
    const char *weights;
    bool speculative, trusted; /* else what a hello claims of them is left out */
    /* Keep what only a judge reads that asks for it: "resident" (with speculative), "arithmetic".
     */
    bool tell_resident, tell_arithmetic;
};

/* Until the input ends and the resident has answered all of it. Errors: unreachable (nobody listens
 * there), refused (another session is being served), noHello (what came first, within half a
 * minute, is no resident's hello), weightsMismatch, RESIDENT-LOST (it ended the session),
 * REQUEST-CUT, IO. Never anything else than this resident serves. */
bool attach_serve(const struct attach_options *o, int input, int output, struct error *err);

/* The hello that is told for the line that the resident said (without its newline), appended to out
 * with a newline. Errors: refused, noHello, weightsMismatch. */
bool attach_rewrite_hello(const struct attach_options *o, const char *line, size_t length,
                          struct buffer *out, struct error *err);

#endif
