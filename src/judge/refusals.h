/* Every name under which the judge refuses or fails, with its meaning in one sentence. The page
 * docs/refusals.md is written from this table (`benchd refusals`), and a test holds the sources to
 * it. A new name is a new row, in its group. */
#ifndef MLXFAST_JUDGE_REFUSALS_H
#define MLXFAST_JUDGE_REFUSALS_H

#include "base/buffer.h"

#include <stddef.h>

/* X(name, meaning). One sentence, no '|'. */

/* Inputs: the command line, files, JSON. */
#define REFUSALS_INPUT(X)                                                                          \
    X("USAGE", "A flag is unknown, missing, repeated, without its value, or out of range.")        \
    X("IO", "The system could not read or write a file or folder.")                                \
    X("FILE-TOO-LARGE", "A file is longer than its reader accepts.")                               \
    X("NOT-A-REGULAR-FILE", "A symbolic link or special file stands where a file must be.")        \
    X("JSON-INVALID", "A file is not strict JSON, or repeats a key.")                              \
    X("JSON-TOO-DEEP", "A JSON file is nested deeper than its reader accepts.")                    \
    X("JSON-UNKNOWN-KEY", "A closed JSON object holds a key that it may not hold.")                \
    X("JSON-FIELD-MISSING", "A required JSON field is absent or null.")                            \
    X("JSON-FIELD-TYPE", "A JSON field has another type than required.")                           \
    X("JSON-FIELD-RANGE", "A JSON number is outside its range.")

/* The contract. */
#define REFUSALS_CONTRACT(X)                                                                       \
    X("CONTRACT-INVALID", "The contract has a wrong type, a value out of range, or half a group.") \
    X("CONTRACT-UNKNOWN-KEY", "The contract declares a key that no reader knows.")                 \
    X("TRACK-ID-MISMATCH", "The environment or a flag names another track than the contract.")     \
    X("WINDOW-SHAPE-UNDECLARED-FOR-TRACK", "The contract declares no step counts.")                \
    X("MODEL-IDENTITY-UNDECLARED-FOR-TRACK",                                                       \
      "The contract declares no model type, vocabulary, layers or seed length.")                   \
    X("SCORING-WEIGHTS-UNDECLARED-FOR-TRACK", "The contract declares no scoring weights.")         \
    X("SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK", "The contract declares no speedup floor of an axis.")  \
    X("SCORED-REGIME-PENDING-DECLARATION",                                                         \
      "The contract declares no batch size with both gain exponents.")                             \
    X("OFFICIAL-BASELINE-PENDING-CAPTURE", "The contract declares no stored baseline pair.")       \
    X("ACCEPTANCE-BANDS-UNDECLARED-FOR-TRACK", "The contract declares no acceptance bands.")

/* Goldens and weights. */
#define REFUSALS_GOLDEN(X)                                                                         \
    X("GOLDEN-INVALID", "The golden breaks a rule of its schema.")                                 \
    X("GOLDEN-PIN-MISMATCH", "The golden's bytes are not those that were pinned.")                 \
    X("GOLDEN-CARRIES-STORED-BASELINE",                                                            \
      "The golden stores a baseline on a track that measures its own.")                            \
    X("GOLDEN-IN-WEIGHTS", "A golden lies where the engine could read it: in the weights folder.") \
    X("WEIGHTS-INVALID", "The weights folder is not a real folder, or a file it needs is absent.") \
    X("WEIGHTS-TOO-LARGE", "The weights are larger than the limit for a submission.")

/* Scores and seals. */
#define REFUSALS_SEAL(X)                                                                           \
    X("SCORE-INVALID",                                                                             \
      "A score has a missing or unknown key, a wrong type, or contradicts itself.")                \
    X("SCORE-PATH-INVALID", "The score file's name cannot stand in a checksum line.")              \
    X("HARNESS-EMPTY", "Nothing of the harness was found in the working directory.")

#define JUDGE_REFUSALS(X) REFUSALS_INPUT(X) REFUSALS_CONTRACT(X) REFUSALS_GOLDEN(X) REFUSALS_SEAL(X)

struct refusal {
    const char *group, *name, *meaning;
};
const struct refusal *refusals_all(size_t *count);
const struct refusal *refusals_find(const char *name); /* NULL: not in the table */

/* docs/refusals.md, byte for byte. */
void refusals_write_markdown(struct buffer *out);

#endif
