/* The judge's side of the wire: one engine process, one request at a time, every reply checked in
 * the order of engine-protocol.md section 6, every read with a deadline and a length limit. Any
 * failure discards the session: later calls fail with SessionDiscarded.
 *
 * Error names are the spec's (section 11): Io, Json, Protocol, NonceMismatch, Engine,
 * CompletedWorkMismatch, AllocatorCacheNotDrained, TokenMismatch, SessionDiscarded,
 * CapabilityNotAdvertised, FreeRunConsistency, RunTimeout, RunTimeoutBudgetInvalid,
 * SpecEchoDivergence, SpecModeNotRunnable, BatchEchoDivergence, BatchWidthExceedsEngineMax,
 * resident_identity_changed_within_window (section 10); and ours for what the original left
 * unbounded: HelloTimeout, ReplyTimeout, BarrierTimeout, LineTooLong, StdoutFlood, EngineExited,
 * Interrupted; and ENGINE-ARITHMETIC-MISMATCH. */
#ifndef MLXFAST_JUDGE_CLIENT_H
#define MLXFAST_JUDGE_CLIENT_H

#include "base/arena.h"
#include "base/child.h"
#include "base/error.h"
#include "judge/reply.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sandbox_plan;

struct client_options {
    const char *engine;           /* path */
    const char *weights;          /* folder */
    const char *drafter;          /* folder, for --drafter; NULL: none */
    const char *const *resources; /* NAME=PATH, NULL-terminated; may be NULL */
    bool speculative_v1_1;        /* --speculative-protocol v1.1 */
    bool trusted;                 /* --trusted: a reference worker */
    bool block_protocol;        /* dflash_* will be asked: a bare hello is one that speaks no v1 */
    const char *yarn_magnitude; /* passed as BENCH_WORKER_YARN_MAGNITUDE; NULL: not set */
    /* "strict": passed as BENCH_WORKER_ARITHMETIC, and the hello must say so. "any", NULL:
     * neither.*/
    const char *arithmetic;
    const char *const *environment; /* NAME=VALUE over the cleaned one; NULL-terminated or NULL */
    bool echo_stderr;               /* local runs */
    bool withhold_text; /* official runs: no error holds a word or number of the engine's */
    double hello_seconds, reply_seconds, barrier_seconds; /* deadlines; 0: defaults 600, 600, 60 */
    const struct sandbox_plan *sandbox; /* NULL: none; lives as long as the client */
    struct reply_window *window; /* shared by the sessions of one window; NULL: not checked */
};

/* Between the objects of a reply an engine may write log lines; this much, for each read. */
enum { CLIENT_SKIPPED_LINES = 4096, CLIENT_SKIPPED_BYTES = 1 << 20 };

/* Deadlines from MLXFAST_HELLO_TIMEOUT_S, MLXFAST_REPLY_TIMEOUT_S and MLXFAST_BARRIER_TIMEOUT_S
 * where they are set. Error USAGE: not a number above 0. */
bool client_deadlines_from_environment(struct client_options *o, struct error *err);
/* Seconds per token for client_arm_run_deadline: MLXFAST_RUN_CEILING_S, or the fallback. Error
 * USAGE: not a number. */
bool client_ceiling_from_environment(double *seconds, struct error *err);

struct client;
bool client_start(const struct client_options *o, struct client **out, struct error *err);
const struct wire_response *client_hello(const struct client *c); /* valid until client_free */
bool client_has_capability(const struct client *c, const char *name);

/* Sends one request (id is filled in) and reads its checked reply, valid until the next call.
 * deadline_seconds 0: the default of its kind. elapsed_ns (may be NULL) is the round trip on the
 * judge's clock, from just before the write to just after the line was read. */
bool client_call(struct client *c, struct wire_request *request, double deadline_seconds,
                 const struct wire_response **reply, int64_t *elapsed_ns, struct error *err);

/* The last call's interval on the judge's clock: just before the write, just after the line. */
struct client_interval {
    int64_t start_ns, end_ns;
};
struct client_interval client_last_interval(const struct client *c);

/* Closes the open phase: phase_diagnostics with the drain and completed_work checks. timed steps
 * issued since the last barrier are counted by client_call. For free-run phases pass the expected
 * count (rounds + 1) instead of -1. */
bool client_barrier(struct client *c, int64_t expected_work, const struct wire_response **reply,
                    struct error *err);

/* The run deadline of a timed free-run window: count x ceiling x 4.0 seconds from now, over every
 * call until it is disarmed (engine-protocol.md section 8). Error RunTimeoutBudgetInvalid. */
#define CLIENT_RUN_TIMEOUT_MARGIN 4.0
#define CLIENT_RUN_FALLBACK_CEILING 0.1336139485703125 /* seconds per token, no calibration */
bool client_arm_run_deadline(struct client *c, uint64_t count, double ceiling_seconds,
                             struct error *err);
void client_disarm_run_deadline(struct client *c);

/* Between phases a sandboxed engine stands still: neither does it work ahead, nor does it keep the
 * machine busy. Nothing where there is no sandbox: an engine that is stopped when its judge is
 * killed would stay. Every request thaws. */
void client_freeze(struct client *c);
void client_thaw(struct client *c);

/* Throws the session away: the reason is the caller's (a wrong token). */
void client_discard(struct client *c);

/* Engine stderr kept by the parent (redacted, at most 64 KiB): for local messages only. */
const char *client_stderr_tail(struct client *c);
uint64_t client_resident_bytes(const struct client *c); /* now, from /proc; 0 when not known */
uint64_t client_peak_rss(const struct client *c);       /* 0 before client_end */
const char *client_wait_status(const struct client *c); /* "" before client_end */
struct child *client_child(const struct client *c);     /* for judge-overhead's raw ping-pong */
void client_end(struct client *c);                      /* closes pipes, kills the group, reaps */
void client_free(struct client *c);

/* Requests by kind, so that callers need not fill structs. Tokens are borrowed. */
struct wire_request client_request(enum wire_kind kind);
struct wire_tokens client_tokens(const int64_t *items, size_t count);

#endif
