/* The system call filters of the sandbox: two, stacked. The first lets through what engines need
 * and answers ENOSYS to the rest, so that libraries fall back as they would on an older kernel; the
 * second answers EPERM to what is forbidden, by name or by argument. */
#ifndef MLXFAST_JUDGE_SANDBOX_FILTER_H
#define MLXFAST_JUDGE_SANDBOX_FILTER_H

#include "base/buffer.h"

#include <stdbool.h>
#include <sys/types.h>

/* For the calling thread and what it becomes; no_new_privs is set. errno says why not. An execveat
 * after it waits for the holder of *listener (close-on-exec), who lets it pass with
 * sandbox_filter_pass_once; once every copy of that descriptor is closed, it is ENOSYS for ever. */
bool sandbox_filter_install(unsigned features, int *listener);
/* Lets the next execveat pass if it is that process's, and closes the listener. */
bool sandbox_filter_pass_once(int listener, pid_t pid);
/* The first process inside: wait and exit, nothing else. */
bool sandbox_filter_install_init(void);
/* The rules as lines of the policy. */
void sandbox_filter_describe(unsigned features, struct buffer *out);

#endif
