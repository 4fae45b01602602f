/* Findings: one for each thing that was looked at. */
#ifndef MLXFAST_ARENA_DOCTOR_FINDING_H
#define MLXFAST_ARENA_DOCTOR_FINDING_H

#include "base/arena.h"
#include "base/buffer.h"

#include <jansson.h>
#include <stddef.h>

/* FIX: something will not run, or runs what it should not. warn: it runs, and figures suffer, or
 * one command of ours is missing what it needs. */
enum finding_state { FINDING_OK, FINDING_WARN, FINDING_FIX, FINDING_STATES };

struct finding {
    const char *id; /* "huge-pages": stable, lower case */
    enum finding_state state;
    const char *what; /* one line for people */
    const char *fix;  /* a shell's command or a setting, one line; NULL: there is none to give */
};

enum { FINDINGS_MOST = 64 };

/* A zeroed struct is empty. tell hears of each finding as it comes; may be NULL. */
struct findings {
    struct arena arena; /* of all texts; finding_list_free */
    struct finding items[FINDINGS_MOST];
    size_t count, of[FINDING_STATES];
    void (*tell)(void *context, const struct finding *f);
    void *context;
};

/* Texts may hold what files and processes are called: bytes that could move a terminal's cursor are
 * shown as '?'. At most FINDINGS_MOST; more are a mistake of the caller's and are left out. */
void finding_add(struct findings *f, const char *id, enum finding_state state, const char *fix,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
const struct finding *finding_find(const struct findings *f, const char *id); /* NULL: not there */
const char *finding_state_name(enum finding_state s);                         /* ok, warn, FIX */
void finding_write_line(const struct finding *f, struct buffer *out); /* no newline at the end */
json_t *finding_list_to_json(const struct findings *f);               /* an array; new reference */
void finding_list_free(struct findings *f);

/* A word as a shell takes it: quoted where it must be. */
const char *shell_word(struct arena *a, const char *text);
/* "21.6 GB", "512.0 MB", "12 kB". */
const char *bytes_text(struct arena *a, double bytes);

#endif
