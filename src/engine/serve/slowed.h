/* The slowed engine (make SLOWED=30, per thousand): after it has computed an answer to a timed
 * request it spins for that share of the time the answer took. The organiser's proof that a ranked
 * run sees what it should (docs/ranked-run.md). Without the variable none of it is compiled in. */
#ifndef MLXFAST_ENGINE_SERVE_SLOWED_H
#define MLXFAST_ENGINE_SERVE_SLOWED_H

#include "wire/wire.h"

#include <stdint.h>

#ifdef SLOWED_PER_THOUSAND
/* Follows the build's name in the hello and on stderr: nobody takes it for the real one. */
const char *slowed_name(void);
/* Around the computation of an answer. */
int64_t slowed_begin(void);
void slowed_end(int64_t begun, enum wire_kind kind);
#else
static inline const char *slowed_name(void)
{
    return "";
}
static inline int64_t slowed_begin(void)
{
    return 0;
}
static inline void slowed_end(int64_t begun, enum wire_kind kind)
{
    (void)begun;
    (void)kind;
}
#endif

#endif
