/* What the ranked run of block decoding came to, in the score (docs/ranked-blocks.md): the pairs
 * with their verdicts, the statistics. Nothing of the hidden prompt. */
#ifndef MLXFAST_JUDGE_BLOCKS_DOCUMENT_H
#define MLXFAST_JUDGE_BLOCKS_DOCUMENT_H

#include "judge/blocks/loop.h"
#include "judge/score.h"

#include <jansson.h>
#include <stdbool.h>

/* metrics.block_pairs, or metrics.block_null_pairs: every attempt that was decided, in the order of
 * the run; a new reference. */
json_t *blocks_pair_records(const struct blocks_runs *runs, bool null_pairs);

/* Both of them, and metrics.statistics where a pair counts. */
void blocks_seal_runs(const struct blocks_runs *runs, const struct paired_rule *rule,
                      struct score_document *d);

/* The table of a run that was measured, on stdout. */
void blocks_print_table(const struct blocks_runs *runs, const struct score_document *d);

#endif
