/* The libraries that this program is linked with: for the doctor alone. */
#ifndef MLXFAST_ARENA_DOCTOR_LIBRARIES_H
#define MLXFAST_ARENA_DOCTOR_LIBRARIES_H

#include "arena/doctor/machine.h"

/* Fills in the machine's libraries, their texts in a. */
void libraries_read(struct machine *m, struct arena *a);

#endif
