/* Re-rooting: the control leg runs the same relative paths of another tree (benchd-cli.md, "Per-leg
 * resident service"). The tree may be anybody's, so nothing that is found in it lies outside of it:
 * no '..', no absolute path, no symbolic link that leads out, at any component. */
#ifndef MLXFAST_JUDGE_RANKED_ROOTS_H
#define MLXFAST_JUDGE_RANKED_ROOTS_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>

struct leg_roots {
    const char *workspace;        /* absolute, the real one */
    const char *engine, *weights; /* below it, without links: what was checked is what is used */
};

/* Relative paths of the submission, found in the workspace. All in the arena. Errors, with the flag
 * as the field: BASELINE-WORKSPACE-MISSING (NULL, not there, no folder, or itself a link),
 * BASELINE-ENGINE-NOT-ROOT-RELATIVE and BASELINE-WEIGHTS-NOT-ROOT-RELATIVE (absolute, empty, '..',
 * or a link that leads out), BASELINE-WORKSPACE-NO-ENGINE (no executable file),
 * BASELINE-WORKSPACE-NO-WEIGHTS (no folder). */
bool roots_resolve(const char *workspace, const char *relative_engine, const char *relative_weights,
                   struct arena *a, struct leg_roots *out, struct error *err);

/* --engine-tree: a relative folder is of each leg's own tree, so the workspace's legs read the same
 * one below it; an absolute one is everybody's. trees and *out end with NULL; both may be NULL.
 * Errors as of the engine. */
bool roots_engine_trees(const char *workspace, const char *const *trees, struct arena *a,
                        const char *const **out, struct error *err);

/* The flag, or else MLXFAST_BASELINE_WORKSPACE; NULL when neither names one. */
const char *roots_workspace(const char *flag);

#endif
