/* What a verification found, line by line: proved, failed, or not checked and why. */
#ifndef MLXFAST_JUDGE_EVIDENCE_FINDINGS_H
#define MLXFAST_JUDGE_EVIDENCE_FINDINGS_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum finding_state { FINDING_OK, FINDING_FAILED, FINDING_SKIPPED };
struct finding {
    enum finding_state state;
    const char *subject; /* a member of the bundle, or what else was looked at */
    const char *text;
};
struct findings {
    struct arena arena;
    struct finding *items; /* malloc'd */
    size_t count, capacity;
    size_t of[3]; /* by state */
};
/* Returns whether the state is not FINDING_FAILED. */
bool findings_add(struct findings *f, enum finding_state state, const char *subject,
                  const char *format, ...) __attribute__((format(printf, 4, 5)));
/* OK with the text where holds, else FAILED with the other. */
bool findings_check(struct findings *f, bool holds, const char *subject, const char *proved,
                    const char *failed);
/* FAILED in the words of an error: its message, field and value. */
bool findings_error(struct findings *f, const char *subject, const struct error *err);
const struct finding *findings_first_failure(const struct findings *f); /* NULL: none */
void findings_free(struct findings *f);

#endif
