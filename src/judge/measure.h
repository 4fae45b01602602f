/* The timed window of one leg: one attached session, warm-ups, one timed prefill, one timed free
 * run, each phase closed by its barrier (benchd-cli.md section 2, engine-protocol.md section 8).
 * The judge's monotonic clock around the round trips is the only source of time. */
#ifndef MLXFAST_JUDGE_MEASURE_H
#define MLXFAST_JUDGE_MEASURE_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/client.h"
#include "judge/golden.h"

#include <stdbool.h>
#include <stdint.h>

enum { MEASURE_WARMUP_DECODE_TOKENS = 16, MEASURE_PREFILL_PASSES = 1 };

/* The oracle of a window: from the golden's benchmark block. A decode list shorter than the window
 * is completed by the base case with the same prompt (in local modes expected_tokens[0] is the seed
 * token and expected_tokens[k + 1] the output of decode step k: goldens.md section 1). */
struct measure_oracle {
    struct golden_tokens prefill_prompt, decode_seed;
    int64_t prefill_token, seed_token;
    const int64_t *decode_tokens; /* steps of them, the golden's */
    int64_t steps;
};
/* Error GOLDEN-INVALID: the golden has no oracle of that length. */
bool measure_find_oracle(const struct golden *g, int64_t steps, struct measure_oracle *out,
                         struct error *err);

/* Told around each timed phase, "prefill" and "decode", while the engine waits: what must hold of
 * the machine, and what is read of it meanwhile. Either may refuse. */
struct measure_watch {
    bool (*before)(void *context, const char *phase, struct error *err);
    bool (*after)(void *context, const char *phase, struct error *err);
    void *context;
};

struct measure_plan {
    struct measure_oracle oracle;
    int64_t warmup_runs;          /* extra prefills before the timed one */
    int64_t rewarm_runs;          /* prefills between watch->before and each phase's clock */
    const struct wire_spec *spec; /* sent on decode windows; NULL: none */
    double run_ceiling_seconds;   /* per token */
    /* Other tokens in the decode window than the golden's are kept and do not end the run
     * (contract-and-scoring.md section 5); those of the prefill do. */
    bool tolerant;
    const struct measure_watch *watch; /* NULL: nobody */
    bool quiet;
};

/* Which token was wrong, when err is TokenMismatch. */
struct token_mismatch {
    bool present;
    const char *label; /* "prefill", "decode-seed", "decode" */
    int64_t step, expected, actual;
};

struct measure_result {
    bool timed; /* the whole window was measured and every token was right */
    double prefill_seconds, prefill_seconds_per_token;
    /* From a phase's answer to that of its barrier. */
    double prefill_barrier_seconds, decode_barrier_seconds;
    double seed_window_seconds, seed_window_seconds_per_token;
    double decode_window_seconds, decode_seconds_per_token;
    int64_t decode_tokens;
    struct token_mismatch mismatch;
    /* What the engine said in a window that was wholly measured: its seed token and decode_tokens
     * of them, in the arena; and where they are not the golden's (first_different -1: nowhere; the
     * seed's token is not counted here). */
    int64_t said_seed_token;
    const int64_t *said_tokens;
    int64_t different, first_different;

    bool speculated;
    struct wire_spec
        effective_spec; /* texts in the arena given to measure_run; opaque parts NULL */
    struct wire_u32s acceptance_lengths;
    uint64_t rounds, drafted, accepted;
    const char *verification_mode; /* NULL: not reported */
    struct wire_u64 disagreements, rectangular_rounds, serial_rounds;
    struct wire_expert_stats expert_stats; /* of the decode window's barrier */
    uint64_t resident_bytes;               /* of the engine after the window */
};

/* The tokens in an order that the kernel's random source draws, in the arena: for warm-ups. */
bool measure_shuffle(struct arena *a, const int64_t *items, size_t count, struct wire_tokens *out,
                     struct error *err);

bool measure_run(struct client *c, const struct measure_plan *plan, struct arena *a,
                 struct measure_result *out, struct error *err);

#endif
