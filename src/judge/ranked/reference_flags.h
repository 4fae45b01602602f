/* The flags that calibrate-baseline and measure-noop share. Only the tools_*.c files include this.
 */
#ifndef MLXFAST_JUDGE_RANKED_REFERENCE_FLAGS_H
#define MLXFAST_JUDGE_RANKED_REFERENCE_FLAGS_H

#include "base/options.h"
#include "judge/ranked/reference.h"

#include <stdbool.h>

struct reference_flags {
    const char *workspace, *engine, *weights, *contract, *track, *out;
    struct option_list goldens, prompts, resources, trees;
    bool no_sandbox, no_cool_gate, quiet;
};

/* The rows of a command's table; f is its struct reference_flags. */
#define REFERENCE_FLAG_ROWS(f)                                                                     \
    {"--baseline-workspace",                                                                       \
     OPTION_TEXT,                                                                                  \
     false,                                                                                        \
     "DIR",                                                                                        \
     "The organiser's tree. Default: MLXFAST_BASELINE_WORKSPACE; one of the two is needed.",       \
     &(f)->workspace,                                                                              \
     NULL,                                                                                         \
     0,                                                                                            \
     0},                                                                                           \
        {"--engine",                                                                               \
         OPTION_TEXT,                                                                              \
         true,                                                                                     \
         "RELPATH",                                                                                \
         "The worker executable, relative to that tree.",                                          \
         &(f)->engine,                                                                             \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--weights",                                                                              \
         OPTION_TEXT,                                                                              \
         false,                                                                                    \
         "RELPATH",                                                                                \
         "The weights folder, relative to that tree. Default: weights.",                           \
         &(f)->weights,                                                                            \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--golden",    OPTION_LIST, true, "FILE", "A golden of the track.",                       \
         &(f)->goldens, NULL,        0,    0},                                                     \
        {"--prompt",                                                                               \
         OPTION_LIST,                                                                              \
         false,                                                                                    \
         "NAME",                                                                                   \
         "The prompt's name, once for each --golden. Default: the file's name without its "        \
         "ending.",                                                                                \
         &(f)->prompts,                                                                            \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--contract",   OPTION_TEXT, true, "FILE", "The track's contract.",                       \
         &(f)->contract, NULL,        0,    0},                                                    \
        {"--track",   OPTION_TEXT, false, "ID", "Refuses a contract of another track.",            \
         &(f)->track, NULL,        0,     0},                                                      \
        {"--engine-resource",                                                                      \
         OPTION_LIST,                                                                              \
         false,                                                                                    \
         "NAME=PATH",                                                                              \
         "Forwarded to the worker as --resource NAME=PATH.",                                       \
         &(f)->resources,                                                                          \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--engine-tree",                                                                          \
         OPTION_LIST,                                                                              \
         false,                                                                                    \
         "DIR",                                                                                    \
         "A folder that the sandboxed engine may read: its libraries, kernels, modules.",          \
         &(f)->trees,                                                                              \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--no-sandbox",   OPTION_SWITCH, false, NULL, "Run the engine without the sandbox.",      \
         &(f)->no_sandbox, NULL,          0,     0},                                               \
        {"--no-cool-gate",                                                                         \
         OPTION_SWITCH,                                                                            \
         false,                                                                                    \
         NULL,                                                                                     \
         "Wait for no gate and refuse for none: the machine's condition is recorded only.",        \
         &(f)->no_cool_gate,                                                                       \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
    {                                                                                              \
        "--quiet", OPTION_SWITCH, false, NULL, "No progress and no engine log.", &(f)->quiet,      \
            NULL, 0, 0                                                                             \
    }

/* What they ask of reference.h; the options borrow from the flags, which end in NULL. Errors USAGE:
 * a resource that is not NAME=PATH or repeats a name. */
bool reference_flags_read(const struct reference_flags *f, struct reference_options *out,
                          struct error *err);

#endif
