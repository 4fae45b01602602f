/* The worker: loads a checkpoint, says hello, answers one request at a time until its input ends.
 */
#ifndef MLXFAST_ENGINE_SERVE_WORKER_H
#define MLXFAST_ENGINE_SERVE_WORKER_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/model/model.h"
#include "engine/serve/lines.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORKER_KV_BYTES ((int64_t)8 << 30) /* unless said otherwise */

struct worker_options {
    const char *weights;
    const char *runner;  /* NULL: by the checkpoint's model_type */
    const char *drafter; /* a folder; NULL: serial decoding only */
    bool trusted;
    const char *speculative_protocol; /* NULL: plain v1 */
    const char *const *resources;     /* "NAME=PATH" each */
    size_t resource_count;
    int64_t kv_bytes; /* keys and values may take at most this */
    struct model_options model;
};

/* Everything that can be said about the options without reading a file. Errors: missingWeights,
 * emptyRunnerID, unknownRunner, badValue. */
bool worker_check_options(const struct worker_options *o, struct error *err);

struct worker;
/* Checks the options, loads, warms up with tokens that no prompt chose. Errors: those above,
 * unexpectedModel, KV-BYTES-EXCEEDED, VOCABULARY-TOO-SMALL, model_open's and
 * dflash_open's. */
bool worker_open(const struct worker_options *o, struct worker **out, struct error *err);
void worker_close(struct worker *w);
const struct model_info *worker_model_info(const struct worker *w);

/* Writes the hello, then one line per request line; with tell_arithmetic the hello has a field that
 * only our judge knows and asks for. True when the input ended between lines. Errors: IO,
 * REQUEST-CUT (the input ended inside a line). Refusals of requests are answers, not errors. */
bool worker_serve(struct worker *w, bool tell_arithmetic, int input, int output, struct error *err);

/* The same in parts, for a process that serves one session after the other. A session begins with
 * nothing of the last one: no sequence, no poison, another nonce. The hello is one line with its
 * '\n', appended to out. The reader's own errors are returned as they are. */
bool worker_begin_session(struct worker *w, struct error *err);
struct wire_resident;
void worker_write_hello(const struct worker *w, const struct wire_resident *resident,
                        bool tell_arithmetic, struct buffer *out);
bool worker_answer_lines(struct worker *w, struct line_reader *input, int output,
                         struct error *err);

/* What the parent is told of an error: name, sentence and field, never a value that was sent, and
 * never the words that a parent must redact. out has room for size bytes. */
char *worker_error_text(const struct error *err, char *out, size_t size);

#endif
