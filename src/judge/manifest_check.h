/* A runner manifest as the judge reads it, its canonical bytes and digest, and the six checks of a
 * hello against it (conformance.md section 2). Independent of the engine's own writer. */
#ifndef MLXFAST_JUDGE_MANIFEST_CHECK_H
#define MLXFAST_JUDGE_MANIFEST_CHECK_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/sha256.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct runner_decoder {
    const char *mode, *drafter, *state;
    bool has_depth;
    uint32_t depth_low, depth_high;
};
struct runner_regime {
    bool single;
    uint32_t up_to; /* when not single */
    const char *timing;
    bool per_stream_timing;
};
enum { RUNNER_ENGINE_FLAGS = 6 };
struct runner_description {
    uint32_t schema_version;
    const char *runner_id, *backend;
    const char **model_types, **kv_backends;
    size_t model_type_count, kv_backend_count;
    bool engine[RUNNER_ENGINE_FLAGS]; /* in the manifest's order */
    struct runner_decoder *decoders;
    size_t decoder_count;
    struct runner_regime *regimes;
    size_t regime_count;
    bool multimodal, recurrent_layers, requires_keep_mask;
};

/* Closed at every level, every field required. Everything lives in the arena. Errors: IO,
 * MANIFEST-INVALID (field and value named). */
bool manifest_check_load(struct arena *a, const char *path, struct runner_description *out,
                         struct error *err);
bool manifest_check_parse(struct arena *a, const char *path, const char *data, size_t length,
                          struct runner_description *out, struct error *err);

/* Compact JSON in the frozen field order, and its SHA-256. */
void manifest_check_write(const struct runner_description *m, struct buffer *out);
void manifest_check_digest(const struct runner_description *m, char hex[SHA256_HEX]);

/* The capabilities that a v1.1 hello must carry, sorted; at most MANIFEST_CAPABILITIES. */
enum { MANIFEST_CAPABILITIES = 4 };
size_t manifest_check_capabilities(const struct runner_description *m, bool trusted,
                                   const char *names[MANIFEST_CAPABILITIES]);

/* A capability of the block protocol (docs/block-protocol.md): it comes with the drafter that is
 * loaded, not with the manifest. */
bool manifest_check_is_block_capability(const char *name);

/* The six checks, all evaluated, in the spec's order. detail tells what was wrong. */
enum { MANIFEST_CHECKS = 6 };
struct manifest_verdict {
    const char *name;
    bool applies, passed; /* manifest_digest_matches applies only where there is a digest */
    char detail[512];
};
extern const char *const manifest_check_names[MANIFEST_CHECKS];
void manifest_check_hello(const struct runner_description *m, bool trusted,
                          const struct wire_response *hello,
                          struct manifest_verdict out[MANIFEST_CHECKS]);

#endif
