/* The sandbox of an engine process: bubblewrap builds an empty world of read-only binds, then this
 * program itself, started inside it as `sandbox-exec`, sets limits, installs the system call
 * filters and becomes the engine's first process (docs/sandbox.md says why so).
 *
 * A plan is made once per run. Official mode fails closed (benchd-cli.md, "Sandbox"); local mode
 * goes on without where the machine has no namespaces, and the seal says so. */
#ifndef MLXFAST_JUDGE_SANDBOX_H
#define MLXFAST_JUDGE_SANDBOX_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum sandbox_mode { SANDBOX_LOCAL, SANDBOX_OFFICIAL };

/* What differs between one policy and another. */
enum sandbox_feature {
    SANDBOX_GPU = 1,      /* the contract's platform is cuda: the GPU's device nodes */
    SANDBOX_RESIDENT = 2, /* one AF_UNIX socket */
    SANDBOX_RING = 4,     /* io_uring; no contract asks for it yet */
    SANDBOX_AS_ROOT = 8,  /* the judge is root: the engine is uid 65534, without a user namespace */
    SANDBOX_DRAFTER = 16, /* a drafter folder beside the weights */
};

enum {
    SANDBOX_NOFILE = 1024, /* open files */
    SANDBOX_THREADS = 4096,
    SANDBOX_TMP_BYTES = 256 << 20,
    SANDBOX_FILE_BYTES = 256 << 20,
    SANDBOX_STACK_BYTES = 64 << 20,
    SANDBOX_NOBODY = 65534,
};

struct sandbox_request {
    enum sandbox_mode mode;
    bool switched_off;  /* --no-sandbox */
    bool reference_leg; /* MLXFAST_RUNTIME_WORKER_EXECUTABLE does not replace its worker */
    const char *engine, *weights;
    const char *drafter;             /* folder; NULL: none */
    const char *const *engine_trees; /* folders that the engine may read; NULL-terminated or NULL */
    const char *const *resources;    /* NAME=PATH; likewise */
    const char *const *hidden; /* goldens, contract; likewise. MLXFAST_PRIVATE_DIR and the home
                                  folder are always added */
    unsigned features;         /* SANDBOX_GPU, SANDBOX_RING; the others are found out */
    char *const *environment;  /* the judge's own */
    const char *bwrap;         /* NULL: looked for where systems install it */
};

struct sandbox_plan {
    bool active;
    unsigned features;
    const char *seal;   /* the integrity record's text */
    const char *reason; /* why it is not active; NULL when it is or was switched off */
    const char *policy; /* canonical text; also when not active */
    char policy_sha256[SHA256_HEX];
    uint64_t data_bytes;          /* limit of private writable memory: the machine's memory */
    const char *engine, *weights; /* as the engine sees them: absolute when active */
    const char *drafter;          /* likewise; NULL: none */
    const char *const *resources;
    const char *const *prefix; /* argv in front of the engine's, NULL-terminated; NULL: none */
};

/* All in the arena. Errors: WorkerDisabled, SandboxDisabled, NoExecutable, SandboxExecNotFound,
 * NoProfile, SANDBOX-UNAVAILABLE (official mode only); InvalidResidentSocket, SANDBOX-CONFLICT (a
 * path the engine needs is one that it must not see, or it could not read it). */
bool sandbox_plan(struct arena *a, const struct sandbox_request *r, struct sandbox_plan *out,
                  struct error *err);

/* The policy of these features, for people and for the hash. */
const char *sandbox_policy_text(struct arena *a, unsigned features);

/* The engine's command line and environment under the plan (unchanged when it is not active).
 * TMPDIR and HOME become the sandbox's /tmp; SSH_AUTH_SOCK goes. */
const char *const *sandbox_argv(struct arena *a, const struct sandbox_plan *p,
                                const char *const *engine_argv);
const char *const *sandbox_environment(struct arena *a, const struct sandbox_plan *p,
                                       const char *const *environment);

/* The engine's process as this system numbers it, below the sandbox's outer process; 0: not there
 * (yet). */
pid_t sandbox_engine_pid(pid_t outer);

/* The part inside: a program whose first argument is SANDBOX_EXEC hands the rest over. */
#define SANDBOX_EXEC "sandbox-exec"
int sandbox_exec_main(int argc, char **argv);

#endif
