/* `mlxfast verify-transform`: the transform again, into a temporary folder, compared with a folder
 * of weights: the same files, every byte (dflash-track.md section 14, deepseek-track.md section
 * 10). */
#ifndef MLXFAST_ENGINE_TRANSFORM_VERIFY_TRANSFORM_H
#define MLXFAST_ENGINE_TRANSFORM_VERIFY_TRANSFORM_H

#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stdint.h>

struct verify_transform_options {
    const char *source, *weights;
    const char *temporary_parent; /* where the second result is made and removed; NULL: beside
                                     weights */
    const char *max_bytes;        /* as weights_cap_read */
    const char *contract;         /* these two: with what the weights were made */
    bool int8_attention;
    bool quiet;
};

struct verify_transform_report {
    bool compared;           /* the rest means something */
    bool deterministic;      /* the same files, to the byte */
    uint64_t files, bytes;   /* of weights, .benchmark-source.sha256 and .gitkeep left out */
    uint64_t max_bytes;      /* UINT64_MAX: no limit */
    char sha256[SHA256_HEX]; /* the weights digest (sealing-and-digests.md section 4) */
    double seconds;
};

/* False too where they differ: TRANSFORM-MISMATCH, the report compared but not deterministic; the
 * message names missing and extra files and the first difference. Other errors: NOT-A-REGULAR-FILE
 * (a link, hard ones included, or a special file), FILE-NAME-INVALID, WEIGHTS-TOO-LARGE, those of
 * transform. */
bool verify_transform(const struct verify_transform_options *o, struct verify_transform_report *out,
                      struct error *err);

#endif
