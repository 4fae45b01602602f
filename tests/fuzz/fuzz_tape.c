/* Any bytes into the tape loader and the routing; what is accepted must hold the rules. */
#include "judge/tape.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 100 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_token(int64_t token)
{
    return token >= 0 && token < VOCAB;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tape *t = NULL;
    struct error err = {0};
    enum timed_input shape = TIMED_INPUT_GOLDEN;
    const char *text = (const char *)data;
    const bool routed = timed_input_route_bytes("x.json", text, size, &shape, &err);
    require(routed || (err.name[0] && err.message[0]));
    if (!tape_parse("x.json", text, size, VOCAB, &t, &err)) {
        require(t == NULL && err.name[0] && err.message[0]);
        return 0;
    }
    require(routed && shape == TIMED_INPUT_TAPE && t->bytes == size);
    require(t->seed_count > 0 && t->row_count > 0 && is_token(t->reference_seed_token));
    for (size_t i = 0; i < t->seed_count; i++)
        require(is_token(t->seed_tokens[i]));
    for (size_t i = 0; i < t->row_count; i++) {
        const struct tape_row *row = &t->rows[i];
        require(is_token(row->sequential_argmax));
        require(!row->has_top2_tokens ||
                (is_token(row->top2_tokens[0]) && is_token(row->top2_tokens[1])));
        require(!row->has_top2_logits ||
                (isfinite(row->top2_logits[0]) && isfinite(row->top2_logits[1])));
        require(!row->has_top1_logit || isfinite(row->top1_logit));
    }
    tape_free(t);
    return 0;
}
