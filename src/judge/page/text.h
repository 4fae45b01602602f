/* A sheet on a terminal: sentences and tables on stdout. Charts are left out: their numbers are in
 * the tables. */
#ifndef MLXFAST_JUDGE_PAGE_TEXT_H
#define MLXFAST_JUDGE_PAGE_TEXT_H

#include "judge/page/sheet.h"

#include <stdbool.h>

void text_print(const struct sheet *s, bool colours);

#endif
