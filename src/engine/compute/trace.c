#include "engine/compute/trace.h"

#include <stddef.h>
#include <string.h>

bool trace_on;
static trace_sink *sink;
static void *sink_context;
static bool noted[TRACE_SITES][2];

static const char *const names[TRACE_SITES] = {
#define TRACE_ROW(name, text) [TRACE_##name] = text,
    TRACE_SITE_TABLE(TRACE_ROW)
#undef TRACE_ROW
};

const char *trace_site_name(enum trace_site s)
{
    return names[s];
}

void trace_begin(trace_sink *to, void *context)
{
    sink = to;
    sink_context = context;
    memset(noted, 0, sizeof noted);
    trace_on = to != NULL;
}

void trace_note(enum trace_site s, bool ran, const char *reason)
{
    if (!trace_on || noted[s][ran])
        return;
    noted[s][ran] = true;
    sink(sink_context, s, ran, reason);
}
