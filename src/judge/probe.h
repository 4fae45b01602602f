/* The sandbox's probe: this program again, started as an engine is, tries everything that an engine
 * must not do and what it must be able to do, and says what happened. */
#ifndef MLXFAST_JUDGE_PROBE_H
#define MLXFAST_JUDGE_PROBE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* What the tries need to know, as text in this order on the role's command line. */
enum probe_place {
    PROBE_WEIGHTS, /* folder with PROBE_WEIGHTS_FILE */
    PROBE_GOLDEN,  /* beside the weights */
    PROBE_MASKED,  /* a golden inside a folder that is shown */
    PROBE_CONTRACT,
    PROBE_PRIVATE, /* a file below MLXFAST_PRIVATE_DIR */
    PROBE_HOME,
    PROBE_FOLDER, /* where golden and weights lie */
    PROBE_ENGINE,
    PROBE_PORT,   /* of a TCP listener on loopback */
    PROBE_SOCKET, /* of a listener on AF_UNIX; also its abstract name */
    PROBE_JUDGE_PID,
    PROBE_PLACES
};
#define PROBE_ROLE "probe-role"
#define PROBE_WEIGHTS_FILE "part.bin"
#define PROBE_LEFT_FILE                                                                            \
    ".left-by-the-probe" /* done only if it is there outside                                       \
                          */
#define PROBE_LEFT_TRY "leave a file beside the weights"
#define PROBE_LEFT_HOME_TRY "create a file in the home folder"
#define PROBE_PASSED_VARIABLE "BENCH_WORKER_PROBE"
enum { PROBE_WEIGHTS_BYTES = 1 << 20 };

struct probe_try {
    const char *group, *name;
    bool allowed; /* what a working sandbox lets through */
    /* True: it was done. May leave a word in detail. */
    bool (*run)(const char *const *places, const char **detail);
    unsigned lifted; /* the sandbox's features under which it is allowed after all */
};
bool probe_expected(const struct probe_try *t, unsigned features);
const struct probe_try *probe_tries(size_t *count);

/* The role inside: one line for each try, "number done|refused detail". */
int probe_role_main(int argc, char **argv);

enum { PROBE_DETAIL = 48 };
struct probe_seen {
    bool ran, done;
    char detail[PROBE_DETAIL];
};
struct probe_result {
    struct probe_seen *seen; /* one for each try; probe_result_free */
    size_t count, wrong;
    unsigned features;
    char seal[128], policy_sha256[65];
};
/* Error SANDBOX-UNAVAILABLE where there is none to probe. unprotected: without a sandbox, to see
 * that the probe can tell. */
bool probe_sandbox(bool gpu, bool unprotected, struct probe_result *out, struct error *err);
void probe_result_free(struct probe_result *r);
bool probe_as_expected(const struct probe_result *r, size_t i);

/* benchd probe-sandbox */
int probe_command(int argc, char **argv);

#endif
