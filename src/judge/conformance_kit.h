/* Inside the conformance kit only: one engine process that is asked anything, honest or not, and
 * what every check leans on. Unlike judge/client.h it goes on after an engine's refusal. */
#ifndef MLXFAST_JUDGE_CONFORMANCE_KIT_H
#define MLXFAST_JUDGE_CONFORMANCE_KIT_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/child.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/launch.h"
#include "judge/manifest_check.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KIT_STEPS = 16, KIT_SHORT = 32, KIT_EXIT_MS = 2000 };

enum kit_verdict { KIT_PASS, KIT_FAIL, KIT_SKIPPED };
struct verdict {
    enum kit_verdict is;
    char detail[600];
};
void kit_fail(struct verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kit_skip(struct verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A fault that shows in passing, whatever was being checked: counted, the first one kept. */
struct observation {
    uint64_t count;
    char first[256];
};
void kit_observe(struct observation *o, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* One engine process. dead: it is no longer asked anything. */
struct peer {
    struct child *child;
    struct launch_log *log;
    struct arena session, reply_arena;
    struct wire_response hello, reply;
    bool has_hello, has_reply, dead;
    int64_t next_id;
};

enum kit_mode { KIT_V1, KIT_V11, KIT_MODES };

struct kit {
    const char *engine, *weights, *yarn;
    const char *const *resources;
    double hello_seconds, reply_seconds, barrier_seconds;
    bool trusted;
    int64_t vocab;
    struct wire_tokens seed, other;            /* of the track's length; two different ones */
    struct wire_tokens brief, forced;          /* at most KIT_SHORT; KIT_STEPS tokens of any kind */
    const struct runner_description *manifest; /* NULL: none given */

    struct peer *peers[KIT_MODES];
    bool tried[KIT_MODES], said_hello[KIT_MODES];
    struct error start_error[KIT_MODES];
    bool has_brief_token; /* what prefill says to brief: the measure of every recovery */
    int64_t brief_token;
    int64_t greedy[KIT_STEPS + 1]; /* what correctness says to seed */
    bool has_greedy;
    struct observation nonce, id, unasked, chatter;
    struct arena arena;
    struct buffer line;
};

/* A new process with its hello read and its rules checked. Error: what was wrong with it. */
struct peer *kit_start(struct kit *k, enum kit_mode mode, struct error *err);
void kit_stop(struct peer *p);

/* The shared process of a mode in a fresh phase; started when there is none, or the last one died.
 * NULL: the verdict is set. */
struct peer *kit_peer(struct kit *k, enum kit_mode mode, struct verdict *v);
/* The same when the hello also carries the capability; else skipped. */
struct peer *kit_peer_with(struct kit *k, const char *capability, struct verdict *v);
bool kit_has_capability(const struct peer *p, const char *name);
bool kit_texts_hold(const struct wire_texts *t, const char *name);

/* Raw bytes out; one reply in, decoded, whatever it says. */
bool kit_write(struct kit *k, struct peer *p, const void *data, size_t length, struct error *err);
bool kit_read(struct kit *k, struct peer *p, size_t limit, double seconds,
              const struct wire_response **reply, struct error *err);

/* An honest request: written, answered with ok true and with what its kind must carry; nonce and id
 * are observed. The id is filled in unless present. False: the verdict is KIT_FAIL. */
bool kit_ask(struct kit *k, struct peer *p, struct wire_request *q,
             const struct wire_response **reply, struct verdict *v);
/* The same without the checks of reply.h, for checks that judge the reply themselves. */
bool kit_ask_loosely(struct kit *k, struct peer *p, struct wire_request *q,
                     const struct wire_response **reply, struct verdict *v);
/* Closes the phase; expected_work below 0: any. */
bool kit_barrier(struct kit *k, struct peer *p, int64_t expected_work,
                 const struct wire_response **reply, struct verdict *v);

/* Which id a refusal must carry: KIT_ANY_ID allows -1 or the request's own. */
#define KIT_ANY_ID INT64_MIN
/* A line (its newline is added) that must be refused: ok false with a text. own_id is the id in the
 * line, for KIT_ANY_ID. */
bool kit_refused(struct kit *k, struct peer *p, const char *what, const char *line, size_t length,
                 int64_t id_rule, int64_t own_id, struct verdict *v);
/* The same for a well-formed request: refused under its own id. */
bool kit_request_refused(struct kit *k, struct peer *p, const char *what, struct wire_request *q,
                         struct verdict *v);
/* After a refusal the engine serves again: a barrier, and prefill of brief gives the token it gave
 * before. */
bool kit_recovers(struct kit *k, struct peer *p, const char *after, struct verdict *v);
bool kit_learn_brief(struct kit *k, struct verdict *v);  /* brief_token, on a process of its own */
bool kit_learn_greedy(struct kit *k, struct verdict *v); /* greedy */
bool kit_token_in_range(const struct kit *k, int64_t token, const char *what, struct verdict *v);
bool kit_same_tokens(const int64_t *got, const int64_t *wanted, size_t count, const char *what,
                     struct verdict *v);

/* Ends the input and waits: true when the process ended by itself within KIT_EXIT_MS. left counts
 * other processes, of its group or daemons that left it, that were still there then. The peer is
 * stopped. */
bool kit_end_input(struct peer *p, int *left, char *status, size_t status_size);

/* Shorthands. */
struct wire_request kit_prompt(enum wire_kind kind, const struct wire_tokens *tokens);
struct wire_request kit_token(enum wire_kind kind, int64_t token);

/* The checks, in the order of the table. */
struct kit_check {
    const char *name, *section, *rule; /* section: a heading of docs/writing-an-engine.md */
    void (*run)(struct kit *k, struct verdict *v);
};
extern const struct kit_check kit_verb_checks[], kit_free_run_checks[], kit_fault_checks[],
    kit_end_checks[];
extern const size_t kit_verb_count, kit_free_run_count, kit_fault_count, kit_end_count;

#endif
