/* What noise and compare run: legs of some settings on one golden, every token checked against it,
 * the machine watched. Nothing is waited for and nothing written. */
#ifndef MLXFAST_JUDGE_COMPARE_BENCH_H
#define MLXFAST_JUDGE_COMPARE_BENCH_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/options.h"
#include "base/sha256.h"
#include "judge/contract.h"
#include "judge/golden.h"
#include "judge/measure.h"
#include "judge/quiet/quiet.h"
#include "judge/sandbox.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct bench_flags {
    const char *golden, *contract;
    struct option_list resources, trees;
    bool no_sandbox, quiet;
    int64_t decode_steps; /* 0: the contract's benchmark_decode_steps */
};
/* The rows of both commands' tables; f is a struct bench_flags. */
#define BENCH_FLAG_ROWS(f)                                                                         \
    {"--golden",                                                                                   \
     OPTION_TEXT,                                                                                  \
     true,                                                                                         \
     "FILE",                                                                                       \
     "The golden that every leg's tokens are checked "                                             \
     "against.",                                                                                   \
     &(f)->golden,                                                                                 \
     NULL,                                                                                         \
     0,                                                                                            \
     0},                                                                                           \
        {"--contract",   OPTION_TEXT, true, "FILE", "The track's contract.",                       \
         &(f)->contract, NULL,        0,    0},                                                    \
        {"--decode-steps",                                                                         \
         OPTION_INT,                                                                               \
         false,                                                                                    \
         "N",                                                                                      \
         "Tokens of the timed decode; the golden must hold them. Default: the contract's "         \
         "benchmark_decode_steps.",                                                                \
         &(f)->decode_steps,                                                                       \
         NULL,                                                                                     \
         1,                                                                                        \
         INT32_MAX},                                                                               \
        {"--engine-resource",                                                                      \
         OPTION_LIST,                                                                              \
         false,                                                                                    \
         "NAME=PATH",                                                                              \
         "Forwarded to every worker as --resource NAME=PATH.",                                     \
         &(f)->resources,                                                                          \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--engine-tree",                                                                          \
         OPTION_LIST,                                                                              \
         false,                                                                                    \
         "DIR",                                                                                    \
         "A folder that a sandboxed worker may read: its libraries, kernels, modules.",            \
         &(f)->trees,                                                                              \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--no-sandbox",   OPTION_SWITCH, false, NULL, "Run the workers without the sandbox.",     \
         &(f)->no_sandbox, NULL,          0,     0},                                               \
    {                                                                                              \
        "--quiet", OPTION_SWITCH, false, NULL,                                                     \
            "No progress and no remarks; results and errors "                                      \
            "only.",                                                                               \
            &(f)->quiet, NULL, 0, 0                                                                \
    }

/* One way to run: an engine, weights, and variables for its environment. */
struct bench_setting {
    const char *label; /* "A", "B", "NAME=v2" */
    const char *engine, *weights;
    const char *const *environment; /* NAME=VALUE, NULL-terminated; NULL: none */
    /* filled in by bench_prepare */
    char engine_sha256[SHA256_HEX], engine_stamp[SHA256_HEX], weights_stamp[SHA256_HEX];
    struct sandbox_plan sandbox;
};

struct bench_times {
    double prefill, decode; /* seconds per token, the judge's clock */
    /* It was not quiet before a phase or others used it during one; it slowed itself down. */
    bool contended, throttled;
};

struct bench {
    const struct bench_flags *flags;
    struct arena arena;
    struct contract *contract;
    struct golden *golden;
    struct measure_oracle oracle;
    struct quiet *quiet;
    size_t record_count;                  /* of the legs so far */
    double weight_prefill, weight_decode; /* of the composite; their sum is 1 */
    bool has_composite;
    bool usable; /* flags and contract were; bench_open may have failed after that */
};

/* Contract, golden, readers; nothing has run. Close it in any case. */
bool bench_open(struct bench *b, const struct bench_flags *f, struct error *err);
/* Checks a setting's engine, weights and variables, takes stamps, plans its sandbox. */
bool bench_prepare(struct bench *b, struct bench_setting *s, struct error *err);
/* One leg. Errors: leg.h's; TokenMismatch where a token is not the golden's. */
bool bench_leg(struct bench *b, const struct bench_setting *s, int round, struct bench_times *out,
               struct error *err);
/* Engine and weights are what they were. Errors ENGINE-CHANGED, WEIGHTS-CHANGED. */
bool bench_check_unchanged(const struct bench_setting *s, struct error *err);
void bench_close(struct bench *b);

/* {"label", "engine", "engine_sha256", "weights", "environment"}; a new reference. */
json_t *bench_seal_setting(const struct bench_setting *s);
/* "load 0.1 to 0.4, 41 to 43 C", as far as it is known, of metrics.gates' records. */
void bench_conditions_text(const json_t *records, struct buffer *out);
bool bench_is_clean(const struct bench_times *t); /* neither contended nor throttled */

#endif
