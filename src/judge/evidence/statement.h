/* The statement that is signed: what a score stands on, by digests, in one closed object of one
 * spelling (keys sorted, two spaces, no final newline, as a score). null: there is none, or it is
 * not known.
 *
 *   {"box","calibration_sha256","contract_sha256","drafter_sha256",
 *    "executables":{"baseline","benchd","candidate"},"gates_sha256","goldens":[{"bytes","sha256"}],
 *    "harness_sha256","integrity_sha256","key","log":{"index","previous"},"passed","score",
 *    "score_sha256","source_commit","time","track_id","type":"mlxfast-statement","version":1,
 *    "weights":{"bytes","files","sha256"}}
 */
#ifndef MLXFAST_JUDGE_EVIDENCE_STATEMENT_H
#define MLXFAST_JUDGE_EVIDENCE_STATEMENT_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/sha256.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STATEMENT_GOLDENS_MOST = 64, STATEMENT_BYTES_MOST = 1 << 16 };

struct statement_golden {
    char sha256[SHA256_HEX];
    uint64_t bytes;
};
/* Texts are "" where the file says null. */
struct statement {
    const char *box, *key, *source_commit, *time, *track_id;
    const char *score_sha256, *integrity_sha256, *contract_sha256; /* always there */
    const char *calibration_sha256, *drafter_sha256, *gates_sha256, *harness_sha256;
    const char *baseline_sha256, *benchd_sha256, *candidate_sha256; /* executables */
    const char *weights_sha256;
    uint64_t weights_bytes, weights_files;
    struct statement_golden goldens[STATEMENT_GOLDENS_MOST];
    size_t golden_count;
    bool passed, has_score, has_log;
    double score;
    uint64_t log_index;       /* the place that its entry gets */
    const char *log_previous; /* the hash of the entry before */
};

void statement_render(const struct statement *s, struct buffer *out);
/* Error STATEMENT-INVALID: shape, a value, or another spelling. Texts are copied to the arena. */
bool statement_parse(const char *file, const char *data, size_t length, struct arena *a,
                     struct statement *out, struct error *err);

/* What gates_sha256 is of: the canonical compact text of metrics.gates. "" where there is none. */
void statement_gates_digest(const json_t *metrics, char out[SHA256_HEX]);

#endif
