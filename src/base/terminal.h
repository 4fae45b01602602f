/* What a person sees while work is going on: one updated line on a terminal, plain lines at most
 * every few seconds elsewhere, nothing when quiet. All of it goes to stderr. */
#ifndef MLXFAST_BASE_TERMINAL_H
#define MLXFAST_BASE_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *phase;
    const char *unit; /* "tokens", "bytes", ... ; bytes are shown as MB, GB */
    uint64_t total;   /* 0: not known */
    uint64_t done;
    int64_t started_ns;
    int64_t last_shown_ns;
    bool quiet;
    bool is_terminal;
    bool shown;
};

/* p->quiet is kept: set it, or zero the struct, before. */
void progress_begin(struct progress *p, const char *phase, const char *unit, uint64_t total);
void progress_update(struct progress *p, uint64_t done); /* cheap: shows at most 5 times a second */
void progress_end(struct progress *p);                   /* last line with total time and rate */

/* A table for people: columns padded, first left-aligned, others right-aligned, to stdout. */
struct table; /* rows of strings */
struct table *table_new(int columns);
void table_row(struct table *t, ...);                         /* columns const char* arguments */
void table_row_of(struct table *t, const char *const *cells); /* the same from an array */
void table_print(struct table *t);                            /* prints and frees */

#endif
