/* Screening of prompts for a pool (dflash-track.md sections 2 and 8): is the text degenerate, does
 * the model's continuation hold near-ties, does it repeat itself so that drafting is a lottery. */
#ifndef MLXFAST_JUDGE_SCREEN_H
#define MLXFAST_JUDGE_SCREEN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define SCREEN_NEAR_TIE_GAP 0.25      /* logits */
#define SCREEN_MINIMUM_GAP 1.0        /* the smallest top-2 gap may be this at most */
#define SCREEN_DISTINCT_FRACTION 0.40 /* of the prompt's tokens, at least */
#define SCREEN_NGRAM_HIT_RATE 0.03    /* of the continuation, at most */
enum { SCREEN_NGRAM_CONTINUATION = 129, SCREEN_NGRAM_ORDERS = 3 };

double screen_distinct_fraction(const int64_t *tokens, size_t count);

struct screen_ngram {
    size_t context, continuation;
    unsigned asked; /* the mask of orders */
    struct {
        size_t recurrent; /* the last `order` tokens had occurred before */
        size_t most_recent_hits, any_hits;
    } orders[SCREEN_NGRAM_ORDERS];
    size_t longest_opportunities, longest_hits; /* the longest matching order, most recent place */
    size_t optimistic_hits;                     /* any order, any place */
};
void screen_ngram(const int64_t *prompt, size_t prompt_count, const int64_t *continuation,
                  size_t count, struct screen_ngram *out);
/* The same with some orders only: bit (order - 1) of the mask. The others' counts stay 0. */
void screen_ngram_orders(const int64_t *prompt, size_t prompt_count, const int64_t *continuation,
                         size_t count, unsigned orders, struct screen_ngram *out);
/* The report keys of section 8, of the orders that were asked for; a new reference. */
json_t *screen_ngram_json(const struct screen_ngram *s);

#endif
