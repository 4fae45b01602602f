/* A contract in plain words: what a run under it does and what can fail it, group by group, with
 * the contract's numbers; and for what it does not declare, what is then refused and by which name.
 */
#ifndef MLXFAST_JUDGE_EXPLAIN_H
#define MLXFAST_JUDGE_EXPLAIN_H

#include "base/buffer.h"
#include "judge/contract.h"

#include <stdbool.h>

/* Appends the page. markdown: the participants' page tracks/<id>/CONTRACT.md; else plain text of 80
 * columns. The page depends on the contract's bytes alone. */
void explain_contract(const struct contract *c, bool markdown, struct buffer *out);

#endif
