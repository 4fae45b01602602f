/* Child processes with pipes, each in its own process group; reads with deadlines and length
 * limits. Teardown kills the whole group, and so does a watcher when this program is killed, so
 * that nothing is left behind. */
#ifndef MLXFAST_BASE_CHILD_H
#define MLXFAST_BASE_CHILD_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct child; /* opaque: pid, group, pipes, buffers, the stderr thread */

struct child_options {
    const char *const *argv;       /* NULL-terminated; argv[0] is the path */
    const char *const *envp;       /* NULL-terminated "NAME=value", the complete environment */
    const char *working_directory; /* NULL: inherit */
    /* Called for each stderr line (no newline, at most 65536 bytes) on the reader's thread; may be
     * NULL. */
    void (*on_stderr_line)(void *context, const char *line, size_t length);
    void *context;
    /* child_end also ends what the child left outside its group: daemons. For a program that starts
     * processes by child_start alone, and on one thread. */
    bool end_strays;
};

/* Starts the child in a new process group with PR_SET_PDEATHSIG, default signal mask and
 * dispositions, no inherited descriptors but 0, 1, 2. Error SPAWN-FAILED (also when exec fails:
 * reported through a close-on-exec pipe). A relative argv[0] is looked up after the change of
 * folder. Call it on a thread that outlives the child: the kernel sends PDEATHSIG when that thread
 * ends. SIGCHLD is set to its default if it was ignored. */
bool child_start(const struct child_options *options, struct child **out, struct error *err);

/* Writes all of data to the child's stdin before deadline_ns (clock_now_ns scale). Errors:
 * ENGINE-WRITE-TIMEOUT, ENGINE-CLOSED (EPIPE). */
bool child_write(struct child *c, const void *data, size_t length, int64_t deadline_ns,
                 struct error *err);

enum child_read_result {
    CHILD_READ_LINE,
    CHILD_READ_EOF,
    CHILD_READ_TIMEOUT,
    CHILD_READ_TOO_LONG,
    CHILD_READ_ERROR
};
/* Reads one line (without \n and a preceding \r) from stdout into a buffer that the child owns and
 * that is valid until the next read. A line longer than limit bytes is CHILD_READ_TOO_LONG. A last
 * line without its \n is CHILD_READ_EOF. The line is NUL-terminated. Errors, one for each result:
 * ENGINE-CLOSED, ENGINE-READ-TIMEOUT, ENGINE-LINE-TOO-LONG, INTERRUPTED or IO. */
enum child_read_result child_read_line(struct child *c, size_t limit, int64_t deadline_ns,
                                       const char **line, size_t *length, struct error *err);

/* For programs that are asked once: the end of their input, and all of their output to its end,
 * appended to out. CHILD_READ_EOF is success; more than limit bytes is CHILD_READ_TOO_LONG. */
void child_close_input(struct child *c);
enum child_read_result child_read_rest(struct child *c, size_t limit, int64_t deadline_ns,
                                       struct buffer *out, struct error *err);

/* Ends it: closes stdin, gives the child grace_ms to exit by itself, then SIGKILLs the group and
 * reaps it; the group is killed in any case, so that no grandchild holds the pipes. The stderr
 * reader is joined (at most 500 ms of further output). Returns the wait status text, such as
 * "exit status 3" or "signal 9 (Killed)". Safe to call twice; child_free ends it if needed. */
const char *child_end(struct child *c, int grace_ms);
bool child_exited_normally(const struct child *c); /* after child_end: by itself, status 0 */
pid_t child_pid(const struct child *c);
/* The parent's ends of its pipes, non-blocking: for measuring what the functions above add. */
int child_input_descriptor(const struct child *c);
int child_output_descriptor(const struct child *c);
/* Peak resident memory of the reaped child in bytes (wait4), 0 before child_end. Linux counts the
 * copy of this program before exec too, so it is never below this program's own at the start. */
uint64_t child_peak_rss(const struct child *c);
void child_free(struct child *c);

/* Interrupt: the first SIGINT/SIGTERM/SIGHUP after interrupt_install sets a flag and makes every
 * child_read_line / child_write return at once with error INTERRUPTED. A second one kills the
 * groups of all children and then the program, as it would have by default. */
void interrupt_install(void);
bool interrupt_requested(void);
bool interrupt_is_cause(const struct error *err); /* INTERRUPTED, or a client's Interrupted */
/* For tests: clears the flag. */
void interrupt_reset(void);

#endif
