/* Traces: which special paths ran, and which could have and did not, each said once with the
 * reason. A path that silently gives way to a slower one is the commonest way to lose speed; here
 * it is seen. Off unless a program asks; the library prints nothing by itself.
 *
 * To add one: a line in the table, trace_ran where it runs, trace_fell_back where it does not. */
#ifndef MLXFAST_ENGINE_COMPUTE_TRACE_H
#define MLXFAST_ENGINE_COMPUTE_TRACE_H

#include <stdbool.h>

/* name, as it is printed */
#define TRACE_SITE_TABLE(X)                                                                        \
    X(BEST_KERNELS, "best-instruction-set")                                                        \
    X(BF16_DOT, "bf16-dot-instruction")                                                            \
    X(SHARED_REGIONS, "regions-shared-by-threads")                                                 \
    X(EXPERT_UNION, "experts-grouped-over-rows")                                                   \
    X(SHARED_EXPERT, "shared-expert-with-routed")                                                  \
    X(ATTENTION_GROUP, "attention-one-pass-per-kv-head")                                           \
    X(HEAD_PICKS, "head-top2-in-pass")                                                             \
    X(POPULATED, "weights-in-memory-at-load")                                                      \
    X(ALIGNED, "weights-on-cache-lines")                                                           \
    X(HUGE_PAGES, "weights-in-huge-pages")                                                         \
    X(SPECULATION, "drafted-blocks")

enum trace_site {
#define TRACE_ENUM(name, text) TRACE_##name,
    TRACE_SITE_TABLE(TRACE_ENUM)
#undef TRACE_ENUM
        TRACE_SITES
};
const char *trace_site_name(enum trace_site s);

/* ran false: it could have, and did not; reason is then one clause, and NULL otherwise. */
typedef void trace_sink(void *context, enum trace_site s, bool ran, const char *reason);
/* Process-wide, before a model is opened; NULL: off. */
void trace_begin(trace_sink *sink, void *context);

/* For the thread that runs the model; each (site, ran) reaches the sink once. */
extern bool trace_on;
void trace_note(enum trace_site s, bool ran, const char *reason);

static inline void trace_ran(enum trace_site s)
{
    if (__builtin_expect(trace_on, 0))
        trace_note(s, true, 0);
}

static inline void trace_fell_back(enum trace_site s, const char *reason)
{
    if (__builtin_expect(trace_on, 0))
        trace_note(s, false, reason);
}

#endif
