/* The section of explain.h about the machine: the gates before a timed phase, telemetry in it. */
#ifndef MLXFAST_JUDGE_EXPLAIN_QUIET_H
#define MLXFAST_JUDGE_EXPLAIN_QUIET_H

#include "judge/contract.h"
#include "judge/explain_page.h"

void explain_quiet(const struct page *p, const struct contract *c);

#endif
