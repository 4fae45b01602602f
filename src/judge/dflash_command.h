/* What the commands of block decoding share (docs/dflash.md): their flags, the contract's groups,
 * the two workers with their sandboxes, and whether weights, drafter and engines are afterwards
 * what they were. Only the tools_*.c files include this. */
#ifndef MLXFAST_JUDGE_DFLASH_COMMAND_H
#define MLXFAST_JUDGE_DFLASH_COMMAND_H

#include "base/arena.h"
#include "base/error.h"
#include "base/options.h"
#include "base/sha256.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/fidelity.h"
#include "judge/sandbox.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dflash_flags {
    const char *engine, *reference_engine, *weights, *drafter, *contract, *output;
    const char *reference_weights; /* the organiser's; NULL: weights */
    const char *const *resources;  /* NAME=PATH, NULL-terminated, of every worker; NULL: none */
    struct option_list trees;
    bool no_sandbox, quiet;
};
/* The rows of a command's table that every one has; f is its struct dflash_flags. */
#define DFLASH_FLAG_ROWS(f)                                                                          \
    {"--engine", OPTION_TEXT, true, "PATH", "The worker executable.", &(f)->engine, NULL, 0, 0},     \
        {"--weights",   OPTION_TEXT, true, "DIR", "The target's weights folder.",                    \
         &(f)->weights, NULL,        0,    0},                                                       \
        {"--drafter", OPTION_TEXT, true, "DIR", "The drafter's folder.", &(f)->drafter, NULL, 0, 0}, \
        {"--contract",   OPTION_TEXT, true, "FILE", "The track's contract.",                         \
         &(f)->contract, NULL,        0,    0},                                                      \
        {"--engine-tree",                                                                            \
         OPTION_LIST,                                                                                \
         false,                                                                                      \
         "DIR",                                                                                      \
         "A folder that a sandboxed worker may read: its libraries, kernels, modules.",              \
         &(f)->trees,                                                                                \
         NULL,                                                                                       \
         0,                                                                                          \
         0},                                                                                         \
        {"--no-sandbox",   OPTION_SWITCH, false, NULL, "Run the workers without the sandbox.",       \
         &(f)->no_sandbox, NULL,          0,     0},                                                 \
    {                                                                                                \
        "--quiet", OPTION_SWITCH, false, NULL, "No progress and no engine log.", &(f)->quiet,        \
            NULL, 0, 0                                                                               \
    }

struct dflash_setup {
    const struct dflash_flags *f;
    struct arena arena;
    struct contract *contract;
    struct fidelity_limits limits;
    double run_ceiling_seconds;
    const char *reference_engine; /* the engine itself where no other is named */
    struct client_options candidate, reference;
    struct sandbox_plan candidate_sandbox, reference_sandbox;
    char weights[SHA256_HEX], drafter[SHA256_HEX]; /* stamps */
    char engine[SHA256_HEX], reference_stamp[SHA256_HEX];
    char reference_weights[SHA256_HEX]; /* "": the same folder */
    char weights_sha256[SHA256_HEX], drafter_sha256[SHA256_HEX];
    bool own_reference; /* the reference's program is the engine's, whatever its name */
};

/* The contract with its groups, environment and output target: what fails here is misuse (exit 2,
 * nothing is written). */
bool dflash_setup_open(struct dflash_setup *s, const struct dflash_flags *f, struct error *err);
/* Folders, stamps, digests, sandboxes. hidden: what no worker may see (NULL-terminated, the
 * contract is added); the first of them, if any, must not lie in the weights or with the drafter.
 */
bool dflash_prepare(struct dflash_setup *s, const char *const *hidden, struct error *err);
/* Nothing was changed while the workers ran. */
bool dflash_check_unchanged(const struct dflash_setup *s, struct error *err);
void dflash_setup_close(struct dflash_setup *s);

/* --tokens and --block-size against the contract's limits. Error USAGE. */
bool dflash_check_tokens(const struct dflash_setup *s, const char *flag, int64_t tokens,
                         struct error *err);
bool dflash_check_block_size(const struct dflash_setup *s, int64_t size, struct error *err);

/* MLXFAST_OFFICIAL_BENCHMARK_RUN is 1. */
bool dflash_is_official(void);

#endif
