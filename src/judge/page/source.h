/* What a report is made from: files, read strictly before anything is written. */
#ifndef MLXFAST_JUDGE_PAGE_SOURCE_H
#define MLXFAST_JUDGE_PAGE_SOURCE_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/contract.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum source_sidecar { SIDECAR_ABSENT, SIDECAR_HOLDS, SIDECAR_DIFFERS };

struct source_score {
    const char *path, *name; /* name: the last part of the path, or all */
    char sha256[65];         /* of the file's bytes */
    enum source_sidecar sidecar;
    json_t *document;
    const json_t *metrics;
};
struct report_source {
    struct arena arena;
    struct source_score score;
    struct source_score *others; /* --pairs */
    size_t other_count;
    struct contract *contract; /* NULL: not given */
    const char *bench_path;
    json_t *bench; /* NULL: not given */
};

struct source_paths {
    const char *score, *contract, *bench; /* the last two may be NULL */
    const char *const *others;
    size_t other_count;
};
/* Errors: IO and the like; SCORE-INVALID with file and field; those of a contract;
 * REPORT-CONTRACT-MISMATCH where the score was sealed under another contract; REPORT-BENCH-INVALID
 * with file and field. out is to be freed in either case. */
bool source_read(const struct source_paths *paths, struct report_source *out, struct error *err);
void source_free(struct report_source *r);

/* Members of objects whose form is not certain: the default where absent or of another type. An
 * object may be NULL. */
double source_real(const json_t *object, const char *key);      /* NaN */
const char *source_text(const json_t *object, const char *key); /* "" */
bool source_flag(const json_t *object, const char *key);
size_t source_size(const json_t *object, const char *key); /* of an array */

#endif
