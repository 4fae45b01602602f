/* What the small tools share: the one line of an error, the parsing of arguments, the opening of a
 * contract. Only the tools_*.c files include this. */
#ifndef MLXFAST_JUDGE_TOOLS_COMMON_H
#define MLXFAST_JUDGE_TOOLS_COMMON_H

#include "base/error.h"
#include "base/options.h"

#include <stdbool.h>
#include <stdio.h>

/* "benchd <tool>: <error>" on stderr. */
void tool_complain(const char *tool, const struct error *err);

/* True: go on; else *exit_code is the tool's (help was printed, or a usage error). positional gets
 * the positional arguments; NULL where the command has none. */
bool tool_parse(const struct command *command, const char *tool, int argc, char **argv,
                const char **positional, int *exit_code);

/* A path or message on one line of its own: control bytes shown. */
void tool_put_line(FILE *out, const char *text);

#endif
