/* `mlxfast doctor`: looks at everything that a run stands on, in about five seconds, and says of
 * each thing whether it is well and, if not, what mends it. Reads only; kills nothing.
 *
 * A finding's id is stable; which there are: docs/doctor.md. */
#ifndef MLXFAST_ARENA_DOCTOR_DOCTOR_H
#define MLXFAST_ARENA_DOCTOR_DOCTOR_H

#include "arena/doctor/finding.h"
#include "arena/doctor/machine.h"
#include "base/options.h"

struct doctor_settings {
    const char *track;   /* whose weights are looked at; NULL: none */
    const char *weights; /* the folder; NULL: the track's, MLXFAST_WEIGHTS_PATH, the repository */
    bool json;
};

extern const struct command doctor_command;
/* On OPTIONS_OK the texts live in argv. */
enum options_result doctor_settings_parse(int argc, char **argv, struct doctor_settings *s,
                                          struct error *err);

/* Everything, in turn. Errors: INTERRUPTED; TRACK-UNKNOWN and what else fetch_track_read says of
 * --track. What was found before an error stays in f. */
bool doctor_examine(const struct machine *m, const struct doctor_settings *s, struct findings *f,
                    struct error *err);

/* "30 ok, 2 warn, nothing to mend", and the whole as JSON (a new reference). */
void doctor_write_summary(const struct findings *f, struct buffer *out);
json_t *doctor_to_json(const struct findings *f, double seconds);

#endif
