/* `mlxfast convert-drafter`: a drafter as published to the layout that engines load. The values are
 * copied in pieces of fixed size; the result is put in place by renaming a finished folder. */
#ifndef MLXFAST_ENGINE_TRANSFORM_CONVERT_DRAFTER_H
#define MLXFAST_ENGINE_TRANSFORM_CONVERT_DRAFTER_H

#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct convert_drafter_options {
    const char *source, *out; /* folders */
    /* What the result records of its origin. NULL: as the published repack of this source does
     * where the source is a published one, else "unknown" and, for the time, what an existing out
     * says or now. */
    const char *source_repo, *source_revision, *converted_at;
    /* Pins of model.safetensors as read and as written; NULL: none. */
    const char *expect_source_sha256, *expect_sha256;
    bool verify_only; /* write nothing: out must hold the conversion already */
    bool quiet;
};

struct convert_drafter_result {
    bool written;   /* false: out held the same bytes before */
    bool published; /* the files are the published repack's, by digest */
    size_t source_tensors, ignored_tensors, tensors;
    uint64_t source_bytes, bytes, config_bytes;
    char source_sha256[SHA256_HEX], sha256[SHA256_HEX], config_sha256[SHA256_HEX];
    char repo[256], revision[256], converted_at[32];
};

/* Errors: USAGE (an option's form), those of checkpoint_open, CONFIG-INVALID, INVENTORY-MISMATCH
 * (file, tensor, value), DRAFTER-ALREADY-REPACKED, DRAFTER-NOT-ONE-FILE, DRAFTER-PIN-MISMATCH,
 * DRAFTER-OUT-DIFFERS (out is there and is not this conversion), FILE-CHANGED (the source, while it
 * was read), INTERRUPTED, IO. After an error nothing stands at out that did not stand there. */
bool convert_drafter(const struct convert_drafter_options *o, struct convert_drafter_result *result,
                     struct error *err);

#endif
