/* What a person sees of a fetch: on a terminal one line for each file under way and one for all,
 * redrawn; elsewhere the same as plain lines every few seconds; a line for each file that is done.
 * All of it to stderr; nothing when quiet. */
#ifndef MLXFAST_ARENA_FETCH_PROGRESS_H
#define MLXFAST_ARENA_FETCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FETCH_VIEWS_MOST = 34, FETCH_RATE_SAMPLES = 16 };

struct fetch_view {
    const char *path, *doing; /* "waits", "hashes"; NULL: its bytes come in */
    uint64_t done, bytes;
};

struct fetch_progress {
    bool quiet, is_terminal;
    const char *phase; /* "fetch" */
    int64_t every_ns, started_ns, shown_ns, sampled_ns;
    size_t files, files_done;
    uint64_t bytes, done; /* of everything */
    struct {
        int64_t at_ns;
        uint64_t done;
    } samples[FETCH_RATE_SAMPLES]; /* one a second: the rate is of now, not of the whole run */
    size_t sample_count;
    int drawn; /* lines on the terminal that the next drawing replaces */
};

void fetch_progress_begin(struct fetch_progress *p, const char *phase, size_t files, uint64_t bytes,
                          int64_t every_seconds, bool quiet);
/* done: bytes of everything; may fall where a file starts over. Cheap: call it often. */
void fetch_progress_update(struct fetch_progress *p, uint64_t done, const struct fetch_view *views,
                           size_t count);
void fetch_progress_file(struct fetch_progress *p, const char *path, uint64_t bytes, double seconds,
                         const char *how);
/* A line of its own between the others. */
void fetch_progress_note(struct fetch_progress *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fetch_progress_end(struct fetch_progress *p);

#endif
