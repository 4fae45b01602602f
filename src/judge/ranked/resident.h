/* The resident service of one leg: a process that holds the model, booted and stopped by a script
 * of the tree that the leg belongs to (benchd-cli.md, "Per-leg resident service";
 * runner-contract.md section 7). docs/resident.md tells a script's author what is asked of it.
 *
 * The script runs below a guard, this same program in another role: whatever it starts, daemons
 * included, is ended with the guard, and the guard ends when this program does, however it ends. */
#ifndef MLXFAST_JUDGE_RANKED_RESIDENT_H
#define MLXFAST_JUDGE_RANKED_RESIDENT_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/leg.h"

#include <stdbool.h>
#include <stdint.h>

#define RESIDENT_SCRIPT "tools/resident-up.sh"
#define RESIDENT_SCRIPT_CUDA "tools/serve-up.sh"
enum { RESIDENT_BOOT_SECONDS = 900, RESIDENT_STOP_SECONDS = 60 };

/* Whether the legs of a run have residents: the organiser's tree has the script. Then the
 * candidate's must have it too. */
bool resident_is_used(const char *reference_workspace, bool cuda);

/* Error LEG-SERVE-INHERITED-SOCKET: the environment already names a resident, which no leg of a
 * paired run may share. */
bool resident_check_environment(char *const *environment, struct error *err);

struct resident_plan {
    const char *workspace;          /* of the leg's tree: the script's working folder */
    bool cuda;                      /* which script, and which variables */
    const char *spec_mode;          /* "serial", "mtp", ...; NULL: serial */
    int64_t draft_length;           /* 0: serial, as the control leg always is */
    int boot_seconds, stop_seconds; /* 0: the defaults above */
    char *const *environment;       /* the judge's own; the script gets what a worker would */
    const char *yarn_magnitude, *arithmetic; /* the contract's: it loads what the worker would */
    bool silent;                             /* the script's stderr is not shown */
    bool withhold_text;                      /* official runs: no error holds a word of it */
};

struct resident;
/* Boots it: true when the script ended with 0 and named a socket. On false nothing is left of it.
 * Errors: LEG-SERVE-SCRIPT-MISSING, LEG-SERVE-BOOT-FAILED, Interrupted. */
bool resident_boot(const struct resident_plan *p, struct resident **out, struct error *err);
const char *resident_socket(const struct resident *r); /* absolute */
/* NAME=VALUE for the worker, NULL-terminated: BENCH_WORKER_RESIDENT_SOCKET,
 * BENCH_WORKER_RESIDENT_HELLO=1, and on cuda DS4_RESIDENT_SOCKET. Valid until resident_free. */
const char *const *resident_variables(const struct resident *r);
/* The judge's environment with them: what sandbox_plan must see to let the worker reach it. */
char *const *resident_environment(const struct resident *r, struct arena *a,
                                  char *const *environment);

/* Runs the script's --stop, then ends what is left; also while the program is being interrupted. A
 * second call does nothing and says the same. Error LEG-SERVE-STOP-FAILED: the script failed or did
 * not end in time, or something outside its processes still answers at the socket. NULL: true. */
bool resident_stop(struct resident *r, struct error *err);
void resident_free(struct resident *r); /* stops it if need be */

/* What two engines said of the residents behind them. Within one leg it must be the same
 * (client.h); two legs must not have shared one. Errors: LEG-SERVE-IDENTITY-MISSING (a hello
 * without), and LEG-SERVE-SHARED-RESIDENT. */
bool resident_check_legs(const struct leg_identity *one, const struct leg_identity *other,
                         struct error *err);

/* The guard: a program whose first argument is RESIDENT_GUARD hands the rest over. */
#define RESIDENT_GUARD "resident-guard"
int resident_guard_main(int argc, char **argv);

/* The path in a socket file: its first line, an absolute path of at most 107 bytes without control
 * characters. Pure; error LEG-SERVE-BOOT-FAILED with the file and the value. */
bool resident_read_socket_text(const char *file, const char *data, size_t length, struct arena *a,
                               const char **out, struct error *err);

#endif
