/* One function for each thing that is looked at: each adds its findings. For the files of this
 * folder and their tests. A function that waits or asks a program returns false where a signal asks
 * for the end. */
#ifndef MLXFAST_ARENA_DOCTOR_EXAMINE_H
#define MLXFAST_ARENA_DOCTOR_EXAMINE_H

#include "arena/doctor/finding.h"
#include "arena/doctor/machine.h"
#include "arena/doctor/processes.h"

struct patient {
    const struct machine *m;
    struct findings *f;
    struct arena *a;       /* of the findings */
    double began;          /* m->now */
    const char *track;     /* NULL: none */
    const char *weights;   /* the folder that is measured; may not be there */
    uint64_t pinned_bytes; /* of the track; 0: not known */
    uint64_t missing_bytes;
    bool weights_named; /* by a flag or a variable: not the track's own folder */
};

/* Asks a program within what is left of the whole time; see machine.h. */
enum asked patient_ask(const struct patient *p, const char *const *argv, double seconds,
                       struct buffer *out, struct buffer *complaint);
/* What became of it, for people: "did not end in time". Only where it did not go well. */
const char *asked_text(const struct patient *p, enum asked how, const struct buffer *complaint);

/* processor.c */
void examine_kernels(const struct patient *p);
void examine_processors(const struct patient *p);
void examine_siblings(const struct patient *p);
void examine_governor(const struct patient *p);
void examine_power(const struct patient *p);
void examine_timer(const struct patient *p);
/* activity.c: virtual-machine, load, thermal. The judge's own look at quiet is the window over
 * which others' work is seen; without a judge it is half a second. */
bool examine_activity(const struct patient *p);
/* memory.c */
void examine_memory(const struct patient *p);
bool examine_memory_rate(const struct patient *p);
void examine_huge_pages(const struct patient *p);
void examine_swap(const struct patient *p);
/* storage.c */
void examine_space(const struct patient *p);
bool examine_disk_rate(const struct patient *p);
/* gpu.c */
bool examine_gpu(const struct patient *p);
/* tools.c */
bool examine_sandbox(const struct patient *p);
bool examine_tools(const struct patient *p);
void examine_libraries(const struct patient *p);
/* builds.c */
bool examine_builds(const struct patient *p);
/* leftovers.c */
void examine_orphans(const struct patient *p, const struct process_table *t);
void examine_residents(const struct patient *p, const struct process_table *t);
/* environment.c */
void examine_environment(const struct patient *p);
/* weights.c */
bool patient_find_weights(struct patient *p, const char *track, const char *weights,
                          struct error *err);
bool examine_weights(const struct patient *p);

#endif
