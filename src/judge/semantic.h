/* Answers that are judged by their meaning: the organiser's judge is a command of his own, asked
 * once for each case (docs/gates.md). Its question is one line of JSON on stdin, its verdict one
 * closed JSON object on stdout. It is the organiser's program on the trusted side: it runs in this
 * program's environment and folder, never in the engine's sandbox.
 *
 * Nothing of a question or a reason is printed, sealed or put into an error. */
#ifndef MLXFAST_JUDGE_SEMANTIC_H
#define MLXFAST_JUDGE_SEMANTIC_H

#include "base/error.h"
#include "judge/golden.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEMANTIC_TIMEOUT_DEFAULT 120.0
enum {
    SEMANTIC_VERDICT_LIMIT = 64 << 10, /* bytes of a verdict */
    SEMANTIC_TEXT_LIMIT = 256 << 10,   /* bytes of a detokenised answer */
    SEMANTIC_MODEL_LIMIT = 128         /* bytes of the judge's model name */
};

struct semantic_judge {
    const char *command;    /* for /bin/sh -c; NULL: none */
    const char *detokenize; /* the same; NULL: the judge gets token ids only */
    double timeout_seconds; /* of either, for each case */
};

struct semantic_verdict {
    bool pass;
    char model[SEMANTIC_MODEL_LIMIT + 1];
};

/* MLXFAST_SEMANTIC_JUDGE_CMD, MLXFAST_DETOKENIZE_CMD and MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S; an empty
 * command counts as none. Error USAGE: the limit is not a number above 0. */
bool semantic_judge_from_environment(struct semantic_judge *out, struct error *err);

/* A case with a semantic_prompt is judged by its meaning, any other token by token. */
bool semantic_is_case(const struct golden_behavior *b);
size_t semantic_case_count(const struct golden *g);
/* A run that judges every case needs a command as soon as there is a case for it, and at least
 * `needed` of them (0: no number is set). Errors SEMANTIC-JUDGE-MISSING, SEMANTIC-CASES-TOO-FEW. */
bool semantic_check_ready(const struct semantic_judge *j, const struct golden *g, int64_t needed,
                          struct error *err);

/* Asks for one answer. Errors: SEMANTIC-JUDGE-FAILED (it cannot be started, fails, or says more
 * than its limit), SEMANTIC-JUDGE-TIMEOUT, SEMANTIC-JUDGE-INVALID (no verdict),
 * SEMANTIC-DETOKENIZE-FAILED, Interrupted; field is the case's name. */
bool semantic_judge_ask(const struct semantic_judge *j, const struct golden_behavior *b,
                        const int64_t *answer, size_t count, struct semantic_verdict *out,
                        struct error *err);
/* The same, given what the judge wrote. */
bool semantic_verdict_parse(const char *data, size_t length, struct semantic_verdict *out,
                            struct error *err);

#endif
