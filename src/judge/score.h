/* The arithmetic of scores (contract-and-scoring.md section 2) and the score document
 * (sealing-and-digests.md section 1): 56 metric keys always there, others when set. */
#ifndef MLXFAST_JUDGE_SCORE_H
#define MLXFAST_JUDGE_SCORE_H

#include "base/buffer.h"
#include "base/error.h"
#include "judge/contract.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double score_speedup(double baseline, double candidate); /* 0 when not finite or <= 0 */
/* prefill_gain^wp x decode_gain^wd, weights divided by their sum; NaN where it has no value. */
double score_composite(double prefill_gain, double decode_gain, double prefill_weight,
                       double decode_weight);
bool score_clears_floor(double gain, double floor);
/* The fast side of an acceptance band: a time is believed when it is at least reference x
 * (1 - down). */
bool score_is_believed(double seconds, double reference, double down);
double score_coarsen(double value); /* %.1e and back; 0 and non-finite unchanged */

/* A score document under construction. metrics holds the 56 keys with their defaults from the
 * start, so that a run that fails at any point still has a valid document. */
struct score_document {
    json_t *metrics;
    bool passed;
    bool has_score;
    double score;
};
void score_document_init(struct score_document *d, const char *runtime);
void score_document_free(struct score_document *d);
void score_set_text(struct score_document *d, const char *key, const char *value);
void score_set_number(struct score_document *d, const char *key, double value); /* non-finite: 0 */
void score_set_int(struct score_document *d, const char *key, int64_t value);
void score_set_bool(struct score_document *d, const char *key, bool value);
void score_set_json(struct score_document *d, const char *key, json_t *value); /* steals */
/* Marks the run failed: passed false, score null, error "<class>: <text>" (the class is a refusal
 * name as it stands in the table; who compares classes lower-cases what is before the first ':').
 * The text is already scrubbed; NULL or "" leaves the class alone. The first failure wins. */
void score_fail(struct score_document *d, const char *error_class, const char *text);
/* The same of a run on a hidden prompt: the error is the published category and, of a violation of
 * token fidelity, its counts (fidelity_publish). */
void score_fail_hidden(struct score_document *d, const char *error_class, const char *text);

/* Coarsens the public diagnostics, orders the keys, writes canonical JSON (2 spaces, no final
 * newline). A passed run whose score is not finite becomes a failed one ("computed score was not
 * finite"); a document that neither passed nor says why gets the class "incomplete". Fails
 * (SCORE-INVALID) when a required key is missing, a key is on neither list of the spec, or a value
 * has the wrong type. */
bool score_render(struct score_document *d, struct buffer *out, struct error *err);
/* Checks a rendered score (keys, types, passed/score agreement): used by tests and the demo. */
bool score_validate(const char *data, size_t length, struct error *err);

#endif
