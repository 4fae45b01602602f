/* The resident process (runner-contract.md section 7): holds a loaded model and serves one session
 * after the other over a Unix socket. Each begins with nothing of the last one. While one is being
 * served, whoever else comes waits half a second for its end, and is then told so and let go. */
#ifndef MLXFAST_ENGINE_SERVE_RESIDENT_H
#define MLXFAST_ENGINE_SERVE_RESIDENT_H

#include "base/error.h"
#include "engine/serve/worker.h"

#include <stdbool.h>

enum { RESIDENT_IDLE_SECONDS = 1800, RESIDENT_WAIT_MS = 500 };

struct resident_options {
    const char *socket;
    const char *weights;
    int idle_seconds; /* a session that asks nothing for so long is ended */
};

/* Before the model is loaded. Errors: badValue, RESIDENT-SOCKET-TAKEN, IO. */
bool resident_check(const struct resident_options *o, struct error *err);

/* Serves until the program is asked to stop (child.h, interrupt_install), which is success. The
 * socket, <socket>.pid and <socket>.ready (there once it listens) are gone then. Errors: as above;
 * a session that fails is told on stderr and ends no more than itself. */
bool resident_serve(struct worker *w, const struct resident_options *o, struct error *err);

/* What a resident's hello says beyond that of a worker, for the worker that attaches (attach.h) and
 * nobody else: the folder of the weights, links resolved, and its device
 * and inode as "DEV:INO": the same folder may have another name inside a sandbox. */
#define RESIDENT_KEY_WEIGHTS "resident_weights"
#define RESIDENT_KEY_FOLDER "resident_weights_folder"
/* False where there is no such folder. text has room for 64 bytes. */
bool resident_folder_identity(const char *folder, char text[64], struct error *err);

#endif
