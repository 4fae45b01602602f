/* `synth-checkpoint`: a checkpoint of a configuration's shapes with made-up weights, to measure and
 * test with where the real ones are not to be had. Streams; memory does not grow with the model. */
#ifndef MLXFAST_ENGINE_TRANSFORM_SYNTH_CHECKPOINT_H
#define MLXFAST_ENGINE_TRANSFORM_SYNTH_CHECKPOINT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct synth_options {
    const char *config; /* a Laguna's config.json, or a drafter's (architecture DFlashDraftModel) */
    const char *out;    /* the folder to make; NULL with dry_run: only count */
    int64_t layers;     /* 0: all; the first so many otherwise */
    int64_t target_layers; /* a drafter's: its target is a slice of so many; 0: as it stands */
    uint64_t seed;
    int64_t threads;     /* that make and write; 0: one per core that may be used */
    int64_t align;       /* tensor data of a file begins at a multiple of it; 1: as published */
    bool int8_attention; /* as transform stores it; not of a drafter */
    bool dry_run;        /* check and count, write nothing */
    bool headers_only;   /* the weights are holes: zeros that take no space */
    bool quiet;
};

struct synth_result {
    int layers;
    size_t tensors, shards;
    uint64_t tensor_bytes, file_bytes; /* of the shards */
    double seconds;
};

/* Errors: CONFIG-INVALID (also: more layers than there are), JSON's of the config's file, USAGE,
 * OUT-EXISTS, NO-SPACE, INTERRUPTED, IO. After an error nothing stands at out. */
bool synth_checkpoint(const struct synth_options *o, struct synth_result *result,
                      struct error *err);

#endif
