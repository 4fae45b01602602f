/* What the small tools share: the one line of an error, the parsing of arguments, the opening of a
 * contract. Only the tools_*.c files include this. */
#ifndef MLXFAST_JUDGE_TOOLS_COMMON_H
#define MLXFAST_JUDGE_TOOLS_COMMON_H

#include "base/error.h"
#include "base/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* "benchd <tool>: <error>" on stderr. */
void tool_complain(const char *tool, const struct error *err);

/* True: go on; else *exit_code is the tool's (help was printed, or a usage error). positional gets
 * the positional arguments; NULL where the command has none. */
bool tool_parse(const struct command *command, const char *tool, int argc, char **argv,
                const char **positional, int *exit_code);

/* A path or message on one line of its own: control bytes shown. */
void tool_put_line(FILE *out, const char *text);

/* An output that would replace what is read, or another output, is a slip that loses work: refused
 * before anything runs. output and others may be NULL. Error USAGE at the flag. */
bool tool_check_output(const char *flag, const char *output, const char *const *others,
                       size_t count, struct error *err);

#endif
