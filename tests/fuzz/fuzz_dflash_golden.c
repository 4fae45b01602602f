/* Any bytes into the loader of block goldens. What is accepted holds the rules, and is read again
 * from what the writer makes of it. */
#include "judge/dflash_golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 100, ROWS = 8 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_token(int64_t t)
{
    return t >= 0 && t < VOCAB;
}

static void require_row(const struct dflash_row *row)
{
    require(is_token(row->sequential_argmax) && is_token(row->emitted_token));
    require(is_token(row->top.token[0]) && is_token(row->top.token[1]));
    require(row->top.token[0] == row->sequential_argmax && row->top.token[0] != row->top.token[1]);
    require(isfinite(row->top.logit[0]) && isfinite(row->top.logit[1]));
    require(row->top.logit[0] >= row->top.logit[1] && row->top1_logit == row->top.logit[0]);
    require(row->emitted_token_logit <= row->top1_logit);
    int told = 0;
    for (int w = 0; w <= FIDELITY_BLOCK_MOST; w++) {
        require(row->frame_argmax[w] == -1 || (w > 0 && is_token(row->frame_argmax[w])));
        told += row->frame_argmax[w] >= 0;
    }
    require(told > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dflash_golden_rules rules = {.vocab_size = VOCAB, .maximum_rows = ROWS};
    struct dflash_golden *g = NULL, *again = NULL;
    struct error err = {0};
    if (!dflash_golden_parse("g.json", (const char *)data, size, &rules, &g, &err)) {
        require(g == NULL && err.name[0] && err.message[0]);
        return 0;
    }
    require(g->seed_count > 0 && is_token(g->seed_token));
    for (size_t i = 0; i < g->seed_count; i++)
        require(is_token(g->seed[i]));
    require(g->row_count > 0 && g->row_count <= ROWS);
    for (size_t i = 0; i < g->row_count; i++)
        require_row(&g->rows[i]);
    require(!g->self_consistent || dflash_golden_rows_agree(g));
    struct buffer text = {0};
    dflash_golden_write(g, &text);
    require(dflash_golden_parse("g.json", text.data, text.length, &rules, &again, &err));
    require(again->row_count == g->row_count && again->seed_token == g->seed_token);
    for (size_t i = 0; i < g->row_count; i++)
        require(again->rows[i].emitted_token_logit == g->rows[i].emitted_token_logit &&
                again->rows[i].top.logit[1] == g->rows[i].top.logit[1]);
    dflash_golden_free(again);
    dflash_golden_free(g);
    buffer_free(&text);
    return 0;
}
