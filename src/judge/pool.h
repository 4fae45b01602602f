/* The pool of hidden prompts of a track, and the draw of one for a run
 * (dflash-track.md section 2). A pool that is not whole is never drawn from. */
#ifndef MLXFAST_JUDGE_POOL_H
#define MLXFAST_JUDGE_POOL_H

#include "base/error.h"
#include "judge/contract.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { POOL_LEAST = 8 }; /* different digests, and different paths */

/* Every entry of the contract's pool has a path, its bytes and its no-op speedup, and there are
 * enough different ones. Error POOL-INVALID, with the entry. folder: where the entries' files lie,
 * by the last part of their paths; each is read and must be what is pinned (GOLDEN-PIN-MISMATCH,
 * IO), and no two may hold the same seed_tokens in other bytes (POOL-INVALID). NULL: the files are
 * not looked at. */
bool pool_check(const struct contract *c, const char *folder, struct error *err);
/* The same of a pool whose scores are not normalised: entries need no speedup. */
bool pool_check_plain(const struct contract *c, const char *folder, struct error *err);

/* A number from 0 to 65535 from its source; false: the source has failed. */
typedef bool pool_random(void *context, uint16_t *out);
bool pool_kernel_random(void *context, uint16_t *out); /* getrandom; context unused */

/* Uniform in [0, count): numbers in the biased tail are thrown away and another is asked for. Error
 * PROMPT-DRAW-FAILED: the source fails, gives nothing but the tail, or count is not 1..65536. */
bool pool_draw(pool_random *next, void *context, size_t count, size_t *out, struct error *err);

#endif
