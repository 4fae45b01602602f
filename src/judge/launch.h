/* What a worker process is given, and what is kept of what it says on stderr
 * (engine-protocol.md section 9). The argument vector and the environment are built from nothing;
 * stderr is redacted before anybody sees it and never goes into a sealed text. */
#ifndef MLXFAST_JUDGE_LAUNCH_H
#define MLXFAST_JUDGE_LAUNCH_H

#include "base/arena.h"
#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>

struct launch_options {
    const char *engine, *weights;
    const char *drafter;          /* folder; NULL: none */
    const char *const *resources; /* NAME=PATH, NULL-terminated; may be NULL */
    bool speculative_v1_1;
    bool trusted; /* a reference worker */
};
/* <engine> runtime-worker --weights <DIR> [--drafter <DIR>] [--trusted] [--resource NAME=PATH]...
 * [--speculative-protocol v1.1]. NULL-terminated, in the arena; the texts are the caller's. */
const char *const *launch_argv(struct arena *a, const struct launch_options *o);

/* The worker's whole environment out of the parent's: an allowlist of names and prefixes, then
 * MLXFAST_USE_RUNTIME_WORKER=0 and BENCH_WORKER_ARITHMETIC_HELLO=1, then
 * BENCH_WORKER_YARN_MAGNITUDE when yarn_magnitude is not NULL (replacing an inherited one).
 * NULL-terminated, in the arena. */
const char *const *launch_environment(struct arena *a, char *const *parent,
                                      const char *yarn_magnitude);
/* With the arithmetic that a contract asks for: "strict" is passed on as BENCH_WORKER_ARITHMETIC,
 * replacing an inherited one; "any" and NULL leave it as it is. */
const char *const *launch_environment_arithmetic(struct arena *a, const char *const *base,
                                                 const char *arithmetic);
/* An environment with more on top: NAME=VALUE texts (NULL-terminated; NULL: none), which replace
 * what the base says of the same names. In the arena; the texts are the caller's. */
const char *const *launch_environment_add(struct arena *a, const char *const *base,
                                          const char *const *more);
/* True when a variable of this name may pass to a worker. */
bool launch_environment_allows(const char *name, size_t length);

/* A resource argument is NAME=PATH with a NAME of letters, digits, '.', '_' and '-'. */
bool launch_resource_valid(const char *argument, size_t *name_length);

/* The kept stderr of one worker. Lines arrive on the reader's thread. */
struct launch_log;
enum { LAUNCH_TAIL_LIMIT = 65536, LAUNCH_TAIL_LINE = 2048, LAUNCH_TAIL_LINES = 4096 };
struct launch_log *launch_log_new(bool echo);
void launch_log_line(void *log, const char *line, size_t length); /* child_options.on_stderr_line */
/* "worker stderr tail: a | b | c", or "no worker stderr was emitted". Valid until the next call. */
const char *launch_log_tail(struct launch_log *log);
void launch_log_free(struct launch_log *log);
/* One line as it is shown: "token-validation-failed" when it speaks of expected or actual. */
void launch_redact(const char *line, size_t length, struct buffer *out);

#endif
