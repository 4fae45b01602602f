/* Engines or settings against each other, in turns (docs/compare.md): runs the legs, says how far
 * it is, and makes the report. */
#ifndef MLXFAST_JUDGE_COMPARE_COMPARE_H
#define MLXFAST_JUDGE_COMPARE_COMPARE_H

#include "judge/compare/bench.h"
#include "judge/compare/rounds.h"

struct compare_record { /* one leg */
    size_t round;       /* from 1; 0: before the rounds, not counted */
    size_t setting;
    struct bench_times times;
};

/* How one setting does against the first. */
struct compare_outcome {
    bool declined;
    char why[1200]; /* of declined: "contention: ...", "tokens differ: ...", ... */
    struct rounds_pairs pairs;
    enum paired_next stopped;
    struct rounds_result result;
};

struct compare_plan {
    struct bench_setting *settings; /* the first is compared with each of the others */
    size_t count;                   /* 2 to ROUNDS_SETTINGS_MOST */
    struct rounds_plan rounds;
    bool allow_contention; /* pairs beside other work count too */
};

struct compare_run {
    const struct compare_plan *plan;
    struct bench *bench;
    struct compare_record *records;
    size_t record_count;
    struct compare_outcome *outcomes; /* [count]; the first is not used */
    size_t rounds;
};

/* Runs until every comparison has its pairs or is declined. A leg that fails declines its setting's
 * comparison, one of the first setting all of them: that is no error. Errors: the person's
 * interrupt, and settings that changed meanwhile. Free the run in any case. */
bool compare_run(struct compare_run *r, struct error *err);
void compare_free(struct compare_run *r);

bool compare_is_declined(const struct compare_run *r); /* any of them */
/* "faster", "slower", "no difference seen", "declined". */
const char *compare_verdict_name(const struct compare_outcome *o);
/* One sentence about setting i: "B: 1.9 % slower than A in decode (...)". */
void compare_sentence(const struct compare_run *r, size_t i, struct buffer *out);
json_t *compare_report(const struct compare_run *r); /* a new reference */

#endif
