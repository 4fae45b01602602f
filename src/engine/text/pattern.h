/* Patterns of tokenizer.json, which are written for Oniguruma, run by PCRE2.
 *
 * The two engines read some things differently (\s and U+180E, \w, \h, $, {n,m}+, scripts, nested
 * classes). A pattern is translated first: what can be said exactly in PCRE2 is rewritten, what
 * cannot is refused by name, so that a pattern that loads splits as the original does. */
#ifndef MLXFAST_ENGINE_TEXT_PATTERN_H
#define MLXFAST_ENGINE_TEXT_PATTERN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern; /* compiled; immutable, safe to share between threads */

/* literal: text is a plain string. Error TOKENIZER-UNSUPPORTED, whose value is the pattern. */
bool pattern_new(const char *text, bool literal, struct pattern **out, struct error *err);
void pattern_free(struct pattern *p);

struct matcher; /* scratch of one thread: match data and a stack for compiled code */
struct matcher *matcher_new(void);
void matcher_free(struct matcher *m);

enum pattern_result { PATTERN_NONE, PATTERN_FOUND, PATTERN_LIMIT };
/* The first match at or after start in text, which is valid UTF-8. PATTERN_LIMIT: the pattern
 * backtracks beyond all reason on this text. */
enum pattern_result pattern_find(const struct pattern *p, struct matcher *m, const char *text,
                                 size_t length, size_t start, size_t *match_start,
                                 size_t *match_end);

#endif
