/* The commit that a score speaks of: MLXFAST_COMMIT_SHA, or the HEAD of the git work tree around
 * the working directory, read from its files. */
#ifndef MLXFAST_JUDGE_COMMIT_H
#define MLXFAST_JUDGE_COMMIT_H

#include <stdbool.h>

enum { COMMIT_HEX = 41 };
/* "" when there is none. False (and ""): MLXFAST_COMMIT_SHA is set and no commit id. */
bool commit_find(char out[COMMIT_HEX]);
/* The HEAD of the work tree whose root the folder is; false (and ""): it is none. */
bool commit_find_of(const char *folder, char out[COMMIT_HEX]);
/* What this program was built from: the source_commit of the benchd.manifest.json beside it, where
 * that has its digest; else the HEAD of the work tree around it, if it was built in its place.
 * False (and ""): there is neither. */
bool commit_find_own(char out[COMMIT_HEX]);

#endif
