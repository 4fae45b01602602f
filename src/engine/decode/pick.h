/* Picking tokens from logits: argmax and top-k, with the one tie rule (lowest id first) and the one
 * NaN rule (NaN never wins). */
#ifndef MLXFAST_ENGINE_DECODE_PICK_H
#define MLXFAST_ENGINE_DECODE_PICK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct top_logit {
    int32_t token;
    float logit;
};
/* Fills out[0..k) in descending logit, ties by ascending id. Returns how many were found: fewer
 * than k only when NaNs leave fewer (0: every logit is NaN). +Inf is an ordinary largest value. */
int pick_top_k(const float *logits, int vocab, int k, struct top_logit *out);
/* -1 when every logit is NaN. */
int32_t pick_argmax(const float *logits, int vocab);

#endif
