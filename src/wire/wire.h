/* Engine Protocol v1: the messages, as structs, and their one encoder and decoder.
 *
 * One JSON object per line. Both envelopes are closed, keys are written in the order of the tables
 * below (so a canonical line survives decode + encode byte for byte), an optional field that is not
 * set is left out and never written as null. A reader takes keys in any order, and null as absent
 * for an optional field. Token ids are int64, logits double.
 *
 * Everything a decoder returns lives in the caller's arena. Encoders append one line with its '\n'.
 * This header is the table from which structs, encoder, decoder and JSON Schema are made.
 *
 * Two protocols share it. Engine Protocol v1 is the first set of tables; the block protocol
 * (trusted_dflash_block_v1, docs/block-protocol.md) is the second, "BLOCK", for the kinds
 * dflash_*. Each is closed: a key of one is unknown in a message of the other. */
#ifndef MLXFAST_WIRE_WIRE_H
#define MLXFAST_WIRE_WIRE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Field types. `present` false means absent. */
struct wire_i64 {
    bool present;
    int64_t value;
};
struct wire_u32 {
    bool present;
    uint32_t value;
};
struct wire_u64 {
    bool present;
    uint64_t value;
};
struct wire_f64 {
    bool present;
    double value;
};
struct wire_flag {
    bool present;
    bool value;
};
struct wire_text { /* absent when text is NULL; UTF-8, NUL-terminated (no NUL inside) */
    const char *text;
};
struct wire_tokens { /* i64[] */
    bool present;
    size_t count;
    int64_t *items;
};
struct wire_token_lists { /* i64[][] */
    bool present;
    size_t count;
    struct wire_tokens *items;
};
struct wire_f64s {
    bool present;
    size_t count;
    double *items;
};
struct wire_f64_lists {
    bool present;
    size_t count;
    struct wire_f64s *items;
};
struct wire_u32s {
    bool present;
    size_t count;
    uint32_t *items;
};
struct wire_u32_lists {
    bool present;
    size_t count;
    struct wire_u32s *items;
};
struct wire_u64s {
    bool present;
    size_t count;
    uint64_t *items;
};
struct wire_texts {
    bool present;
    size_t count;
    const char **items;
};
struct wire_top_logit {
    int64_t token;
    double logit;
};
struct wire_top_logits {
    bool present;
    size_t count;
    struct wire_top_logit *items;
};
struct wire_counts { /* object of string -> u32, written with sorted keys */
    bool present;
    size_t count;
    const char **keys;
    uint32_t *values;
};
struct wire_expert_stats { /* all required when present */
    bool present;
    uint64_t expert_cache_hits, expert_cache_misses, expert_cache_evictions, expert_bytes_read;
    double expert_read_seconds;
    uint64_t expert_peak_cached_tensors;
};
struct wire_head_provenance {
    bool present;
    const char *sha256;
    uint64_t bytes;
    uint32_t file_count;
};
struct wire_runner {
    bool present;
    const char *id, *model_type, *manifest_sha256, *build;
};
struct wire_resident {
    bool present;
    uint32_t pid;
    uint64_t load_epoch;
};
/* SpecConfig. dflash and dspark are opaque objects, kept as JSON that the arena's owner must not
 * free: they are released with the message (wire_request_free,
 * wire_response_free) or, for a spec on its own, with wire_spec_free. */
struct wire_spec {
    bool present;
    const char *mode; /* "serial", "mtp", "dflash", "dspark" */
    bool has_mtp;
    struct wire_u32 mtp_depth; /* optional inside mtp */
    json_t *dflash, *dspark;   /* NULL: absent */
};
/* The replay report: open objects, only two numbers of each position are load-bearing. The whole
 * report is kept as JSON for the seal; positions are parsed out for use. */
struct wire_replay {
    bool present;
    json_t *report;
};

/* X(type, name, required): wire order is table order. */
#define WIRE_REQUEST_FIELDS(X)                                                                     \
    X(i64, id, true)                                                                               \
    X(text, kind, true)                                                                            \
    X(tokens, prompt_tokens, false)                                                                \
    X(i64, token, false)                                                                           \
    X(tokens, seed_tokens, false)                                                                  \
    X(i64, steps, false)                                                                           \
    X(u32, count, false)                                                                           \
    X(spec, spec, false)                                                                           \
    X(token_lists, seed_tokens_by_stream, false)                                                   \
    X(u32, batch_size, false)                                                                      \
    X(token_lists, replay_seeds_by_stream, false)                                                  \
    X(token_lists, committed_by_stream, false)                                                     \
    X(u32, logit_top_k, false)                                                                     \
    X(f64, rel_envelope, false)                                                                    \
    X(text, replay_width, false)

#define WIRE_RESPONSE_FIELDS(X)                                                                    \
    X(i64, id, true)                                                                               \
    X(text, nonce, false)                                                                          \
    X(flag, ok, true)                                                                              \
    X(text, error, false)                                                                          \
    X(i64, token, false)                                                                           \
    X(top_logits, top_logits, false)                                                               \
    X(i64, seed_token, false)                                                                      \
    X(tokens, tokens, false)                                                                       \
    X(expert_stats, expert_stats, false)                                                           \
    X(f64, peak_ram_gb, false)                                                                     \
    X(u32, protocol_version, false)                                                                \
    X(text, backend, false)                                                                        \
    X(text, device, false)                                                                         \
    X(i64, completed_work, false)                                                                  \
    X(i64, cache_memory, false)                                                                    \
    X(texts, capabilities, false)                                                                  \
    X(u32s, acceptance_lengths, false)                                                             \
    X(u64, drafted_total, false)                                                                   \
    X(u64, accepted_total, false)                                                                  \
    X(u64, committed_total, false)                                                                 \
    X(spec, effective_spec, false)                                                                 \
    X(texts, spec_modes, false)                                                                    \
    X(head_provenance, head_provenance, false)                                                     \
    X(u64, mlx_active_memory_bytes, false)                                                         \
    X(u64, mlx_cache_memory_bytes, false)                                                          \
    X(u64, mlx_peak_memory_bytes, false)                                                           \
    X(f64, top_logit_margin, false)                                                                \
    X(f64, expected_token_logit, false)                                                            \
    X(u32, expected_token_rank, false)                                                             \
    X(text, spec_decoder, false)                                                                   \
    X(u32, max_batch_size, false)                                                                  \
    X(tokens, seed_token_by_stream, false)                                                         \
    X(u32, effective_batch_size, false)                                                            \
    X(token_lists, tokens_by_stream, false)                                                        \
    X(u32_lists, natural_accepted_by_stream, false)                                                \
    X(u32, rounds, false)                                                                          \
    X(u32s, active_streams_by_round, false)                                                        \
    X(counts, depth_clamp_reasons, false)                                                          \
    X(u64s, prefill_ns_by_stream, false)                                                           \
    X(u64s, decode_ns_by_stream, false)                                                            \
    X(replay, cohort_reference_replay, false)                                                      \
    X(u64, verify_replay_disagreements, false)                                                     \
    X(text, verification_mode, false)                                                              \
    X(u64, rectangular_verification_rounds, false)                                                 \
    X(u64, serial_verification_rounds, false)                                                      \
    X(runner, runner, false)                                                                       \
    X(resident, resident, false)                                                                   \
    X(text, arithmetic, false)

/* The block protocol (dflash-track.md section 5). A request may carry these and id, kind,
 * prompt_tokens, token, seed_tokens, steps and count; a response these and all of v1's. Rows are
 * those of one forward of the target, row r at position target_cache_offset's of the round's start
 * + r; arrays per row have one entry for each declared row. */
#define WIRE_BLOCK_REQUEST_FIELDS(X)                                                               \
    X(i64, top_k, false)                                                                           \
    X(i64, expected_token, false)                                                                  \
    X(i64, max_block_size, false)                                                                  \
    X(tokens, prefix_tokens, false)                                                                \
    X(i64, start_offset, false)                                                                    \
    X(i64, declared_block_width, false)                                                            \
    X(i64, seed_token_count, false)                                                                \
    X(tokens, verify_block_tokens, false)
#define WIRE_BLOCK_SHARED_REQUEST_FIELDS(X)                                                        \
    X(id) X(kind) X(prompt_tokens) X(token) X(seed_tokens) X(steps) X(count)

#define WIRE_BLOCK_RESPONSE_FIELDS(X)                                                              \
    X(i64, declared_rows, false)                                                                   \
    X(texts, per_row_hidden_digest, false)                                                         \
    X(token_lists, per_row_top2_tokens, false)                                                     \
    X(f64_lists, per_row_top2_logits, false)                                                       \
    X(tokens, draft_tokens, false)                                                                 \
    X(i64, accepted_draft_count, false)                                                            \
    X(i64, rejected_draft_count, false)                                                            \
    X(i64, rollback_round_count, false)                                                            \
    X(i64, target_cache_offset, false)                                                             \
    X(tokens, reference_k1_argmax, false)                                                          \
    X(tokens, reference_block_argmax, false)                                                       \
    X(token_lists, reference_top2_tokens, false)                                                   \
    X(f64_lists, reference_top2_logits, false)                                                     \
    X(f64s, reference_top1_logits, false)                                                          \
    X(tokens, reference_emitted_tokens, false)                                                     \
    X(f64s, reference_emitted_token_logits, false)                                                 \
    X(tokens, reference_frame_widths, false)                                                       \
    X(token_lists, reference_frame_argmax, false)                                                  \
    X(token_lists, reference_verify_top2_tokens, false)                                            \
    X(f64_lists, reference_verify_top2_logits, false)                                              \
    X(text, kv_digest, false)                                                                      \
    X(text, kv_vacancy_digest, false)                                                              \
    X(text, target_verification_mode, false)                                                       \
    X(i64, exact_pair_segment_count, false)                                                        \
    X(i64, exact_pair_rollback_row_count, false)                                                   \
    X(i64, serial_verification_row_count, false)

#define WIRE_DECLARE(type, name, required) struct wire_##type name;
struct wire_request {
    WIRE_REQUEST_FIELDS(WIRE_DECLARE)
    WIRE_BLOCK_REQUEST_FIELDS(WIRE_DECLARE)
};
struct wire_response {
    WIRE_RESPONSE_FIELDS(WIRE_DECLARE)
    WIRE_BLOCK_RESPONSE_FIELDS(WIRE_DECLARE)
};
#undef WIRE_DECLARE

/* X(kind): the request kinds. hello is a response only. */
#define WIRE_REQUEST_KINDS(X)                                                                      \
    X(prefill)                                                                                     \
    X(decode_begin)                                                                                \
    X(decode_step)                                                                                 \
    X(correctness)                                                                                 \
    X(correctness_begin)                                                                           \
    X(correctness_step)                                                                            \
    X(phase_diagnostics)                                                                           \
    X(free_decode_begin)                                                                           \
    X(free_decode_run)                                                                             \
    X(cohort_reference_replay)
#define WIRE_BLOCK_KINDS(X)                                                                        \
    X(dflash_decode_warm)                                                                          \
    X(dflash_decode_begin)                                                                         \
    X(dflash_decode_block)                                                                         \
    X(dflash_phase_diagnostics)                                                                    \
    X(dflash_reference_prefill)                                                                    \
    X(dflash_reference_rows)

enum wire_kind {
#define WIRE_KIND(name) WIRE_KIND_##name,
    WIRE_REQUEST_KINDS(WIRE_KIND)
    /* clang-format off */
    WIRE_KIND_V1_COUNT, /* the kinds before it are Engine Protocol v1's */
    WIRE_KIND_BEFORE_BLOCK = WIRE_KIND_V1_COUNT - 1,
    WIRE_BLOCK_KINDS(WIRE_KIND)
    WIRE_KIND_COUNT,
    WIRE_KIND_UNKNOWN = WIRE_KIND_COUNT
/* clang-format on */
#undef WIRE_KIND
};
bool wire_kind_is_block(enum wire_kind kind);
const char *wire_kind_name(enum wire_kind kind);
enum wire_kind wire_kind_find(const char *name);

enum {
    WIRE_PROTOCOL_VERSION = 1,
    WIRE_TOP_LOGITS = 8,
    WIRE_REQUEST_LIMIT = 64 << 20, /* bytes of a request line an engine must accept at most */
    WIRE_HELLO_LIMIT = 1 << 20,
    WIRE_RESPONSE_LIMIT = 64 << 20, /* upper bound of any response; see wire_response_limit */
    WIRE_ERROR_ID = -1
};

/* Longest response line a parent accepts for this request (limits per kind, from the token counts
 * asked for), so that a flood is cut early. Documented in docs/engine-protocol.md. */
size_t wire_response_limit(enum wire_kind kind, const struct wire_request *request);

/* Decoders: line is one line without its newline. Errors: WIRE-INVALID (not JSON, duplicate key,
 * wrong type, out of range), WIRE-UNKNOWN-KEY, WIRE-MISSING-KEY, WIRE-UNKNOWN-KIND (request only);
 * field names the key. On success the message must be released with wire_*_free before its arena
 * goes (it holds the opaque JSON parts). */
bool wire_request_decode(struct arena *a, const char *line, size_t length, struct wire_request *out,
                         struct error *err);
bool wire_response_decode(struct arena *a, const char *line, size_t length,
                          struct wire_response *out, struct error *err);
/* A reply to a dflash_* request, or the hello of a worker that may speak the block protocol only.
 */
bool wire_block_response_decode(struct arena *a, const char *line, size_t length,
                                struct wire_response *out, struct error *err);
void wire_request_free(struct wire_request *m);
void wire_response_free(struct wire_response *m);

void wire_request_encode(const struct wire_request *m, struct buffer *out);
void wire_response_encode(const struct wire_response *m, struct buffer *out);

/* SpecConfig on its own (command-line flags, the seal). */
bool wire_spec_decode(struct arena *a, const char *text, size_t length, struct wire_spec *out,
                      struct error *err);
void wire_spec_free(struct wire_spec *s);
void wire_spec_encode(const struct wire_spec *s, struct buffer *out); /* no newline */

/* The JSON Schema (Draft 2020-12) of both envelopes of a protocol, made from the tables above. */
void wire_schema_write(struct buffer *out);
void wire_block_schema_write(struct buffer *out);

#endif
