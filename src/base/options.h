/* Command lines from tables: one struct option_spec per flag, one parser, one --help text, so
 * that help and behaviour cannot differ. Only "--flag VALUE" (and "--flag=VALUE") forms. */
#ifndef MLXFAST_BASE_OPTIONS_H
#define MLXFAST_BASE_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
    OPTION_SWITCH, /* no value: bool */
    OPTION_TEXT,   /* const char* */
    OPTION_LIST,   /* repeatable text: struct option_list */
    OPTION_INT,    /* int64_t within [min, max] */
    OPTION_REAL    /* double, finite */
};

struct option_list {
    const char *items[64];
    size_t count;
};

struct option_spec {
    const char *name; /* "--weights" */
    enum option_kind kind;
    bool required;
    const char *value_name; /* "DIR"; NULL for a switch */
    const char *help;       /* one or more sentences, ends with a full stop */
    void *target;           /* where the value goes; keeps its default when absent */
    bool *given;            /* may be NULL */
    int64_t min, max;       /* OPTION_INT; both 0: any */
};

struct command {
    const char *name;    /* "benchd iterate" */
    const char *summary; /* one line */
    const char *notes; /* further help after the flags (exit codes, files, environment); or NULL */
    const char *const
        *positional; /* names of positional arguments, NULL-terminated; or NULL. Required, but for
                        the last ones that stand in brackets: "[OLD]". Not given: NULL. */
    const struct option_spec *options;
    size_t option_count;
};

enum options_result { OPTIONS_OK, OPTIONS_HELP, OPTIONS_ERROR };

/* Parses argv[0..argc) (the arguments after the command's own name). -h/--help anywhere wins.
 * Errors (USAGE): unknown flag, missing value, bad number, a single-valued flag given twice, a
 * missing required flag, a surplus argument. positional_out receives the positional arguments. */
enum options_result options_parse(const struct command *c, int argc, char **argv,
                                  const char **positional_out, struct error *err);
void options_help(const struct command *c, FILE *out); /* complete, wrapped at 80 columns */

#endif
