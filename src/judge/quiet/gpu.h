/* The GPUs of this machine, all of them: a neighbour on any of them heats and takes the bus. */
#ifndef MLXFAST_JUDGE_QUIET_GPU_H
#define MLXFAST_JUDGE_QUIET_GPU_H

#include "judge/quiet/system.h"

enum gpu_source { GPU_NONE, GPU_NVML, GPU_SMI };

struct gpu {
    enum gpu_source source;
    const struct quiet_system *system;
    const char *query; /* of nvidia-smi */
    bool query_has_throttle;
};
void gpu_open(struct gpu *g, const struct quiet_system *s);
const char *gpu_name(const struct gpu *g); /* "nvml", "nvidia-smi", NULL: none */
bool gpu_read(const struct gpu *g, struct gpu_reading *out);

/* Over the devices: the highest use and temperature; NAN where none says. */
double gpu_use(const struct gpu_reading *r);
double gpu_celsius(const struct gpu_reading *r);
/* The lowest clock of those in use from loaded on; where none is, that of the busiest. */
double gpu_clock(const struct gpu_reading *r, double loaded);
uint64_t gpu_throttle(const struct gpu_reading *r); /* of any */

#endif
