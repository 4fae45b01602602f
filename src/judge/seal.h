/* Sealing: score.json, its .sha256 sidecar and the integrity file, each whole or not at all. */
#ifndef MLXFAST_JUDGE_SEAL_H
#define MLXFAST_JUDGE_SEAL_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "judge/score.h"

#include <stdint.h>

/* The integrity record (section 2), NULL texts are written as "". Paths are published relative to
 * the working directory where they lie below it, else as their base name. */
struct seal_inputs {
    const char *score_path;
    const char *weights_path, *weights_sha256;
    uint64_t weights_file_count, weights_byte_count;
    const char *golden_path, *golden_sha256;
    const char *transform_source_sha256;
    const char *candidate_executable, *benchd_executable; /* hashed here */
    const char *sandbox;
    bool local_iterate; /* chooses benchmark-integrity.local-iterate.json */
};

/* Whether a score could be sealed at score_path, tried with files of the names that sealing uses:
 * asked before a run that would be lost otherwise. Errors: SCORE-PATH-INVALID, NOT-A-REGULAR-FILE,
 * IO. */
bool seal_check(const char *score_path, bool local_iterate, struct error *err);

/* What would be sealed replaces none of these, and lies in none that is a folder (NULL: none).
 * Error SCORE-PATH-INVALID, and as seal_check of the path itself. */
bool seal_keeps(const char *score_path, bool local_iterate, const char *const *inputs, size_t count,
                struct error *err);

bool seal_write(struct score_document *d, const struct seal_inputs *in, struct error *err);

/* The same three files of a document and an integrity record that the caller has made: the older
 * flow's. The record is named integrity_name and lies beside the document. */
bool seal_write_bytes(const char *path, const char *integrity_name, const struct buffer *document,
                      const struct buffer *integrity, struct error *err);

/* What is published of a path: relative to the working directory where it lies below it, else its
 * last part. In the arena or path itself. */
const char *seal_published_path(struct arena *a, const char *path);

/* Text from an engine or the system on its way into an artifact: control bytes, absolute paths,
 * URLs, addresses, host names, credentials (engine-protocol.md section 9), at most 2048 bytes. */
void seal_scrub(const char *text, struct buffer *out);

#endif
