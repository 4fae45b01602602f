/* Chart.js as the system's package brings it: read when a page is made, and put into it. */
#ifndef MLXFAST_JUDGE_PAGE_CHART_LIBRARY_H
#define MLXFAST_JUDGE_PAGE_CHART_LIBRARY_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>

/* The file that MLXFAST_CHART_JS names, else the package's. Errors: CHART-LIBRARY-MISSING (which
 * names the package), CHART-LIBRARY-INVALID: not Chart.js 3 or 4, or a text that cannot stand in a
 * page. */
bool chart_library_read(struct buffer *out, struct error *err);

/* What must travel with it. */
const char *chart_library_notice(void);

#endif
