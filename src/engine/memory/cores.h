/* How many processors this process may use. */
#ifndef MLXFAST_ENGINE_MEMORY_CORES_H
#define MLXFAST_ENGINE_MEMORY_CORES_H

/* The processors of its affinity mask, at most as many as the control groups' quota (cpu.max,
 * cpu.cfs_quota_us) pays for in whole ones, at least 1: a thread that runs on the fraction is
 * stopped for the rest of each period, and all others wait for it (docs/decisions.md). */
int cores_allowed(void);
int cores_in_mask(void); /* by the mask alone */

#endif
