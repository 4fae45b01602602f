/* Which sensor a run goes by, and its reading. MLXFAST_GPU_TEMP_CMD wins over all; on a GPU then
 * NVML, then nvidia-smi; on a CPU the hottest sensor of its chip (hwmon), then of its thermal
 * zones. A sensor of another part (a disk, a board) is none. */
#ifndef MLXFAST_JUDGE_QUIET_THERMOMETER_H
#define MLXFAST_JUDGE_QUIET_THERMOMETER_H

#include "judge/quiet/gpu.h"
#include "judge/quiet/system.h"

enum { SENSORS_MAX = 64 };

enum thermometer_kind {
    THERMOMETER_NONE,
    THERMOMETER_COMMAND, /* too dear to ask during a phase */
    THERMOMETER_GPU,
    THERMOMETER_FILES
};
struct thermometer {
    enum thermometer_kind kind;
    char name[64];       /* "hwmon k10temp", "nvml", ...; "" without a sensor */
    const char *command; /* of THERMOMETER_COMMAND */
    char files[SENSORS_MAX][128];
    size_t file_count;
    const struct quiet_system *system;
    const struct gpu *gpu;
};
/* The system and the GPU must outlive it. */
void thermometer_open(struct thermometer *t, const struct quiet_system *s, const struct gpu *gpu,
                      enum quiet_device device);
/* The hottest; false: nothing usable this time. */
bool thermometer_read(const struct thermometer *t, double *celsius);

#endif
