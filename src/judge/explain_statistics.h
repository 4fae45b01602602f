/* The sentences of explain.h about the pairs' statistics: how many, and how sure. */
#ifndef MLXFAST_JUDGE_EXPLAIN_STATISTICS_H
#define MLXFAST_JUDGE_EXPLAIN_STATISTICS_H

#include "judge/contract.h"
#include "judge/explain_page.h"

/* For a contract with official_pairs and a control leg. */
void explain_statistics(const struct page *p, const struct contract *c);

#endif
