/* The sections of a report, in the order of the page. Each begins its own section of the sheet; one
 * that has nothing to show says so in one line. */
#ifndef MLXFAST_JUDGE_PAGE_PARTS_H
#define MLXFAST_JUDGE_PAGE_PARTS_H

#include "judge/page/sheet.h"
#include "judge/page/source.h"

void part_verdict(struct sheet *s, const struct report_source *r);
void part_pairs(struct sheet *s, const struct report_source *r);
void part_intervals(struct sheet *s, const struct report_source *r);
void part_steps(struct sheet *s, const struct report_source *r);
void part_gates(struct sheet *s, const struct report_source *r);
void part_noise(struct sheet *s, const struct report_source *r);
void part_roofline(struct sheet *s, const struct report_source *r);
void part_speculation(struct sheet *s, const struct report_source *r);
void part_correctness(struct sheet *s, const struct report_source *r);
void part_memory(struct sheet *s, const struct report_source *r);
void part_identity(struct sheet *s, const struct report_source *r);
void part_contract(struct sheet *s, const struct report_source *r);
void part_metrics(struct sheet *s, const struct report_source *r);

#endif
