/* A golden between decoding and checking: the public structs, plus what a check must know and a
 * reader of an accepted golden need not (which optional fields were given). Only the golden_*.c
 * files include this. */
#ifndef MLXFAST_JUDGE_GOLDEN_DRAFT_H
#define MLXFAST_JUDGE_GOLDEN_DRAFT_H

#include "judge/golden.h"

#include <jansson.h>

struct golden_anchor_draft {
    struct golden_anchor anchor;
    bool has_accepted;
};
struct golden_free_run_draft {
    struct golden_free_run free_run;
    bool has_exact_prefix;
    int64_t exact_prefix;
};
struct golden_benchmark_draft {
    struct golden_benchmark benchmark;
    bool has_baseline_prefill, has_baseline_decode;
};

struct golden_draft {
    struct golden *golden; /* cases, texts and the arena live here from the start */
    bool has_version;
    int64_t version;
    bool has_provenance;
    bool has_anchors, has_free_runs, has_behaviors; /* sections present */
    struct golden_anchor_draft *anchors;
    struct golden_free_run_draft *free_runs;
    struct golden_behavior *behaviors;
    size_t anchor_count, free_run_count, behavior_count;
    struct golden_benchmark_draft benchmark;
};

/* Always false: GOLDEN-INVALID with the place. value may be NULL. */
bool golden_refuse(const struct golden *g, struct error *err, const char *field, const char *value,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Types, presence and closed objects: everything that a typed decoder refuses. */
bool golden_decode(struct golden_draft *d, const json_t *root, struct error *err);

/* The rules on decoded values, in the order of goldens.md section 1. */
bool golden_check(struct golden_draft *d, const struct golden_rules *rules, struct error *err);

#endif
