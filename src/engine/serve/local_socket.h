/* Unix sockets by their path, for the resident process and for the worker that attaches to it. */
#ifndef MLXFAST_ENGINE_SERVE_LOCAL_SOCKET_H
#define MLXFAST_ENGINE_SERVE_LOCAL_SOCKET_H

#include "base/error.h"

#include <stdbool.h>

/* Each returns a descriptor, close-on-exec, or -1. */

/* Error badValue: not 1 to 107 bytes, or control characters in them. field names whose value path
 * is. */
bool local_path_check(const char *path, const char *field, struct error *err);
/* Error IO with the system's reason. */
int local_connect(const char *path, struct error *err);
/* Listens at path, for its user alone (mode 0600). What stands there is replaced where it is a
 * socket of ours that nobody listens at. Errors: RESIDENT-SOCKET-TAKEN, IO. */
int local_listen(const char *path, struct error *err);
/* Whether local_listen could, without doing it: for a program to ask before it loads. */
bool local_listen_check(const char *path, struct error *err);

#endif
