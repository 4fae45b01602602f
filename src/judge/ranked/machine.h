/* What a measurement was made on, in the system's own words. */
#ifndef MLXFAST_JUDGE_RANKED_MACHINE_H
#define MLXFAST_JUDGE_RANKED_MACHINE_H

#include <jansson.h>

/* {"processor", "processors", "memory_bytes", "kernel", "governor", "gpus"}; a new reference. What
 * the system does not tell is null, no GPU an empty array. */
json_t *machine_describe(void);

#endif
