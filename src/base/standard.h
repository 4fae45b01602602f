/* What every program does first and last with its standard streams. */
#ifndef MLXFAST_BASE_STANDARD_H
#define MLXFAST_BASE_STANDARD_H

#include "base/error.h"

#include <stdbool.h>

/* First in main. A standard stream that the program was started without is taken by /dev/null, so
 * that no file it opens gets the number of stdout or stderr and with it what is printed there; a
 * write to such a stream fails. A reader that goes away is an error of the write, not a signal that
 * ends the program half-way. A mapped file that is cut short ends the program with one line in the
 * form of its other errors (FILE-CHANGED) and exit code 1, its unfinished output file removed. */
void standard_begin(const char *program);

/* Last in main: true when everything printed has reached stdout. */
bool standard_finish(struct error *err);

#endif
