/* The calibration of a box: what the organiser's serial tree takes there, prompt by prompt, as a
 * file of version 3 (contract-and-scoring.md section 6; docs/baseline-calibration.md). A run reads
 * it as a gate on the health of its control leg and for nothing else: no score has a part in it. */
#ifndef MLXFAST_JUDGE_RANKED_CALIBRATION_H
#define MLXFAST_JUDGE_RANKED_CALIBRATION_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "judge/contract.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the contract declares no calibration_cv_max: half of the narrower band (docs/decisions.md).
 */
#define CALIBRATION_CV_MAX 0.01
/* Where it declares no bands. Lower ends are recorded and not looked at. */
#define CALIBRATION_PREFILL_UP 0.05
#define CALIBRATION_DECODE_UP 0.02
enum { CALIBRATION_VERSION = 3, CALIBRATION_PASSES_LEAST = 2, CALIBRATION_PASSES = 4 };

struct calibration_axis {
    double seconds_per_token_mean, cv; /* cv: sample standard deviation over mean */
    double band_low, band_high;
};
struct calibration_prompt {
    const char *prompt;
    int64_t passes;
    struct calibration_axis prefill, decode; /* decode: the window's seconds over its tokens */
};
struct calibration {
    struct arena arena;
    const char *path;
    const char *track_id, *box, *captured_at;
    const char *reference_commit, *benchd_source_commit; /* 40 lower-case hex digits */
    struct calibration_prompt *prompts;
    size_t prompt_count;
    json_t *gates; /* array of metrics.gates records, `pass` for `pair`, no `leg`; NULL: none */
};

/* Errors: BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE (version 1 or 2), CALIBRATION-CV-EXCEEDED,
 * BASELINE-CALIBRATION-INVALID (everything else), each with file, field and value. path only names
 * the source. */
bool calibration_parse(const char *path, const char *data, size_t length, double cv_max,
                       struct calibration **out, struct error *err);
/* BASELINE-CALIBRATION-MISSING: path is NULL, or nothing is there. */
bool calibration_load(const char *path, double cv_max, struct calibration **out, struct error *err);
void calibration_free(struct calibration *c);
/* The flag, or else MLXFAST_BASELINE_CALIBRATION; NULL when neither names one. */
const char *calibration_path(const char *flag);

/* Canonical JSON. c->arena and c->path are not looked at. */
void calibration_render(const struct calibration *c, struct buffer *out);
/* The file, whole or not at all, and only one that calibration_parse accepts. */
bool calibration_write(const struct calibration *c, const char *path, double cv_max,
                       struct error *err);

/* The name of this machine: RUNNER_NAME over the flag (NULL: not given). Error
 * BASELINE-BOX-UNRESOLVED. */
bool calibration_box(const char *flag, const char **out, struct error *err);
double calibration_cv_limit(const struct contract *c);

/* Track, box and prompt must match to the letter; looked at in this order. Errors
 * BASELINE-CALIBRATION-TRACK-MISMATCH, -BOX-MISMATCH, -PROMPT-MISMATCH. */
bool calibration_find(const struct calibration *c, const char *prompt, const char *box,
                      const char *track, const struct calibration_prompt **out, struct error *err);

struct calibration_bands {
    double prefill_low, prefill_high, decode_low, decode_high; /* factors of the mean */
};
/* The contract's acceptance bands, or the defaults. */
struct calibration_bands calibration_bands(const struct contract *c);
/* A control leg is healthy where it is no slower than mean times high on either axis; a faster one
 * only raises the bar. Error SERIAL-CONTROL-LEG-OUTSIDE-BAND, with the axis as the field. */
bool calibration_health(const struct calibration_prompt *p, const struct calibration_bands *bands,
                        double prefill_seconds_per_token, double decode_seconds_per_token,
                        struct error *err);

/* The control legs of a run, null pairs' among them. Every leg must be healthy where every pair
 * counts (the mean of pairs); where the median of pairs is what counts, half of them must be: a
 * single slow leg is weather then, and moves nothing. */
struct calibration_tally {
    bool every;
    size_t planned, legs, outside; /* planned: at least so many legs will be there */
};
/* One more leg; false as soon as too many were outside. */
bool calibration_tally_add(struct calibration_tally *t, bool healthy);

/* Mean and coefficient of variation of n >= 2 measured values. */
struct calibration_axis calibration_axis_of(const double *seconds_per_token, size_t n,
                                            double band_low, double band_high);

#endif
