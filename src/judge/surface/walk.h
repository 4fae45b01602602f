/* Walking trees that nobody has looked at yet: names in bytewise order, links never followed, depth
 * bounded. Only the files of this room include this. */
#ifndef MLXFAST_JUDGE_SURFACE_WALK_H
#define MLXFAST_JUDGE_SURFACE_WALK_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* Called for everything below (and for path itself where it is no folder), folders included before
 * what they hold. path: relative to the tree. *descend (true at first): false leaves a folder out.
 * False ends the walk with the visitor's error. */
typedef bool walk_visit(void *context, const char *path, const struct stat *s, bool *descend,
                        struct error *err);
/* path "": the whole tree. A path that is not there, or that leads through a link, is no error and
 * nothing is visited. Error SURFACE-UNREADABLE. */
bool walk_tree(struct arena *a, const char *tree, const char *path, walk_visit *visit,
               void *context, struct error *err);

#endif
