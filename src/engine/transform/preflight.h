/* `mlxfast preflight`: whether a folder of weights can start, in seconds: sizes against headers,
 * the index both ways, every tensor's dtype and shape against what the configuration implies,
 * tokenizer, links, the limit of bytes. No weight is read. Where checkpoint_open stops at the first
 * fault, this tells all of them, and the one command that mends them. */
#ifndef MLXFAST_ENGINE_TRANSFORM_PREFLIGHT_H
#define MLXFAST_ENGINE_TRANSFORM_PREFLIGHT_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct preflight_options {
    const char *weights;
    const char *source;    /* what the weights are made from, or NULL: names a mend */
    const char *track;     /* what to fetch, for the mend */
    const char *contract;  /* what permits INT8, for the mend; NULL: the track's */
    bool int8_attention;   /* the mend makes it; false: where config.json says so */
    const char *program;   /* how this program was called, for the mend; NULL: none is named */
    const char *max_bytes; /* as weights_cap_read */
    bool no_tokenizer;     /* need not be there: a made-up checkpoint has none */
};

struct preflight_report {
    struct arena arena; /* preflight_free */
    struct error *findings;
    size_t count;
    size_t untold;          /* faults beyond those that findings has room for */
    size_t shards, tensors; /* that could be read */
    uint64_t files, bytes;  /* of the folder, .benchmark-source.sha256 and .gitkeep left out */
    uint64_t max_bytes;     /* UINT64_MAX: no limit */
    const char *mend;       /* a shell's command; NULL where there is no finding */
    double seconds;
};

/* False only where it could not be done (USAGE, INTERRUPTED); faults of the weights are findings.
 * Their names: CHECKPOINT-MISSING-FILE, SAFETENSORS-INVALID, CHECKPOINT-INDEX-MISMATCH,
 * CONFIG-INVALID, UNKNOWN-MODEL-TYPE, QUANTIZATION-NOT-PERMITTED, INVENTORY-MISMATCH,
 * TOKENIZER-INVALID, TOKENIZER-UNSUPPORTED, NOT-A-FOLDER, NOT-A-REGULAR-FILE, WEIGHTS-TOO-LARGE,
 * IO. */
bool preflight(const struct preflight_options *o, struct preflight_report *out, struct error *err);
void preflight_free(struct preflight_report *r);

#endif
