/* Runner manifests (runner-contract.md sections 2 to 4): what a runner claims, its canonical bytes
 * and their digest, and what of it a hello says. The only source of every capability claim. */
#ifndef MLXFAST_ENGINE_SERVE_MANIFEST_H
#define MLXFAST_ENGINE_SERVE_MANIFEST_H

#include "base/buffer.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>

struct manifest_decoder {
    const char *mode;    /* serial, mtp, dflash, dspark */
    const char *drafter; /* none, embeddedHead, assistantCheckpoint, ngram */
    const char *state;   /* stateless, requestStateful */
    bool has_depth;      /* absent depth is written as null */
    int depth_low, depth_high;
};

struct manifest_regime {
    int batch; /* 1: "single"; n > 1: {"upTo":n} */
    bool free_run;
    bool per_stream_timing;
};

struct manifest_engine {
    bool prefix_reuse, paged_kv, compiled_decode, packed_prefill, mtp, compact_recurrent_mtp_replay;
};

struct runner_manifest {
    const char *runner_id;
    const char *const *model_types; /* NULL-terminated, order matters */
    const char *backend;
    struct manifest_engine engine;
    const char *const *kv_backends; /* NULL-terminated */
    const struct manifest_decoder *decoders;
    size_t decoder_count;
    const struct manifest_regime *regimes;
    size_t regime_count;
    bool multimodal, recurrent_layers, requires_keep_mask;
};

/* Compact JSON in the frozen order, no newline; and the SHA-256 of it. */
void manifest_write(const struct runner_manifest *m, struct buffer *out);
void manifest_digest(const struct runner_manifest *m, char hex[SHA256_HEX]);

/* The registry of runners, each as it is on a backend ("cpu", "cuda"): NULL when there is none. */
const struct runner_manifest *manifest_find_runner(const char *runner_id, const char *backend);
const struct runner_manifest *manifest_find_model_type(const char *model_type, const char *backend);
bool manifest_claims(const struct runner_manifest *m, const char *model_type);

/* Capabilities of a v1.1 hello, derived. names holds at least 4; returns how many. */
size_t manifest_capabilities(const struct runner_manifest *m, bool trusted, const char **names);
/* Largest n of the regimes; 1 when all are single (and the hello field is then left out). */
int manifest_max_batch(const struct runner_manifest *m);

/* "mlxfast 0.1.0 (gcc 12.2.0)" */
const char *manifest_build_text(void);

#endif
