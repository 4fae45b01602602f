/* The two gates before a timed phase, as loops over a clock and two readings: nothing here knows
 * where a reading comes from (contract-and-scoring.md section 7). */
#ifndef MLXFAST_JUDGE_QUIET_GATES_H
#define MLXFAST_JUDGE_QUIET_GATES_H

#include "judge/quiet/system.h"

/* What the machine was found to be doing just before a phase. NAN: not known. */
struct quiescence {
    double load;     /* 1 minute, as the kernel tells it */
    double own_load; /* our own legs' part of it */
    double gpu_use;
    double others_cpu, own_cpu, window_seconds; /* processors' worth over the window */
};
/* NULL: quiet. Else what is not, in words, into text; strict: a ranked run, where our own
 * processes too must be at rest, and what cannot be read is not quiet. */
const char *quiescence_broken(const struct quiescence *q, const struct quiet_rules *rules,
                              bool strict, char *text, size_t size);

enum quiescence_state { QUIESCENCE_QUIET, QUIESCENCE_WAITED, QUIESCENCE_OFF, QUIESCENCE_NOT_QUIET };
struct quiescence_result {
    enum quiescence_state state;
    double waited_seconds; /* from the end of the first window */
    struct quiescence last;
    char why[256]; /* of the last look; "": quiet */
};
typedef void quiescence_look(void *context, struct quiescence *out);
typedef void gate_say(void *context, const char *text);

/* Looks until quiet or the bound is over. first_window: seconds slept before the first look, whose
 * window that is; later ones are as long as the poll. False: Interrupted only. */
bool quiescence_gate(const struct quiet_system *s, const struct quiet_rules *rules,
                     double first_window, quiescence_look *look, gate_say *say, void *context,
                     struct quiescence_result *out, struct error *err);

/* fired: cool at the first reading; not-cool: the bound is over, or it does not get cooler. */
enum cool_state { COOL_FIRED, COOL_WAITED, COOL_SKIPPED_NO_READER, COOL_OFF, COOL_NOT_COOL };
struct cool_result {
    enum cool_state state;
    double waited_seconds;
    double celsius; /* the last usable reading; NAN: none */
    bool stalled;   /* of COOL_NOT_COOL: gave up before the bound */
};
typedef bool cool_look(void *context, double *celsius);
bool cool_gate(const struct quiet_system *s, double limit, double wait_seconds, cool_look *look,
               gate_say *say, void *context, struct cool_result *out, struct error *err);

const char *quiescence_state_name(enum quiescence_state state);
const char *cool_state_name(enum cool_state state);

#endif
