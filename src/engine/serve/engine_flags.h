/* The flags that every command of bench-worker has which opens a model, and what they and the
 * environment come to. */
#ifndef MLXFAST_ENGINE_SERVE_ENGINE_FLAGS_H
#define MLXFAST_ENGINE_SERVE_ENGINE_FLAGS_H

#include "base/error.h"
#include "base/options.h"
#include "engine/model/model.h"
#include "engine/serve/loading.h"

#include <stdbool.h>
#include <stdint.h>

struct engine_flags {
    const char *backend, *arithmetic, *yarn, *cpu, *memory;
    int64_t threads, context;
};
static const struct engine_flags engine_flag_defaults = {.threads = -1};

#define ENGINE_BACKEND_OPTION(f)                                                                   \
    {                                                                                              \
        .name = "--backend", .kind = OPTION_TEXT, .value_name = "NAME",                            \
        .help = "What computes: cpu, or cuda where the program was built with it. Default: "       \
                "MLXFAST_BACKEND, else BENCH_WORKER_BACKEND, else cpu.",                           \
        .target = &(f)->backend                                                                    \
    }

#define ENGINE_OPTIONS(f)                                                                          \
    {.name = "--threads",                                                                          \
     .kind = OPTION_INT,                                                                           \
     .value_name = "T",                                                                            \
     .help = "Threads; 0 is one per available core. Default: MLXFAST_THREADS, else "               \
             "BENCH_WORKER_THREADS, else 0.",                                                      \
     .target = &(f)->threads,                                                                      \
     .min = 0,                                                                                     \
     .max = 1024},                                                                                 \
        {.name = "--context",                                                                      \
         .kind = OPTION_INT,                                                                       \
         .value_name = "C",                                                                        \
         .help = "Positions to serve. Default: the model's maximum, at most 8192.",                \
         .target = &(f)->context,                                                                  \
         .min = 1,                                                                                 \
         .max = 1 << 24},                                                                          \
        {.name = "--yarn-magnitude",                                                               \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "MODE",                                                                     \
         .help = "Which authority the YaRN factor of q and k follows: attention_factor (the "      \
                 "config's) or derived (0.1 ln(factor) + 1). Default: "                            \
                 "BENCH_WORKER_YARN_MAGNITUDE, else attention_factor.",                            \
         .target = &(f)->yarn},                                                                    \
        {.name = "--memory-profile",                                                               \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "PROFILE",                                                                  \
         .help = "full (weights are copied into huge pages), low (they stay in the files' pages, " \
                 "scratch is small) or auto (full where it fits); every one gives the same bits. " \
                 "Default: DARKBLOOM_STARTUP_MEMORY_PROFILE, else MLXFAST_MEMORY_PROFILE, else "   \
                 "auto.",                                                                          \
         .target = &(f)->memory},                                                                  \
        {.name = "--cpu",                                                                          \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "NAME",                                                                     \
         .help = "Instruction set: portable, avx2, avx512 or neon; every one gives the same "      \
                 "bits. Default: MLXFAST_CPU, else BENCH_WORKER_CPU, else the best one here.",     \
         .target = &(f)->cpu},                                                                     \
        ENGINE_BACKEND_OPTION(f),                                                                  \
    {                                                                                              \
        .name = "--arithmetic", .kind = OPTION_TEXT, .value_name = "KIND",                         \
        .help = "strict (the same bits on every backend) or fast (a backend may sum many rows in " \
                "quicker ways; cpu knows none). Default: MLXFAST_ARITHMETIC, else "                \
                "BENCH_WORKER_ARITHMETIC, else strict.",                                           \
        .target = &(f)->arithmetic                                                                 \
    }

/* What a worker serves, in this process or as a resident: o is a struct worker_options, resources a
 * struct option_list. */
#define WORKER_OPTIONS(o, list)                                                                    \
    {.name = "--weights",                                                                          \
     .kind = OPTION_TEXT,                                                                          \
     .required = true,                                                                             \
     .value_name = "DIR",                                                                          \
     .help = "The checkpoint: config.json, safetensors shards, their index.",                      \
     .target = &(o)->weights},                                                                     \
        {.name = "--runner",                                                                       \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "ID",                                                                       \
         .help = "The runner to use. Default: the one that claims the checkpoint's model_type.",   \
         .target = &(o)->runner},                                                                  \
        {.name = "--drafter",                                                                      \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "DIR",                                                                      \
         .help = "A DFlash drafter of this model: serves the block protocol and, with v1.1, free " \
                 "runs of spec mode dflash. Default: BENCH_WORKER_DRAFTER, else none.",            \
         .target = &(o)->drafter},                                                                 \
        {.name = "--trusted",                                                                      \
         .kind = OPTION_SWITCH,                                                                    \
         .help = "Organiser's build only: with v1.1, serves and advertises "                       \
                 "cohort_reference_replay; with --drafter, the reference of the block protocol.",  \
         .target = &(o)->trusted},                                                                 \
        {.name = "--speculative-protocol",                                                         \
         .kind = OPTION_TEXT,                                                                      \
         .value_name = "v1.1",                                                                     \
         .help = "Serves and advertises the v1.1 surface (free-run decoding). Absent: plain v1.",  \
         .target = &(o)->speculative_protocol},                                                    \
        {.name = "--resource",                                                                     \
         .kind = OPTION_LIST,                                                                      \
         .value_name = "NAME=PATH",                                                                \
         .help = "A named resource for the runner; checked for form, not used by laguna.",         \
         .target = (list)},                                                                        \
    {                                                                                              \
        .name = "--kv-bytes", .kind = OPTION_INT, .value_name = "N",                               \
        .help = "Bytes that keys and values may take. Default: 8589934592.",                       \
        .target = &(o)->kv_bytes, .min = 1, .max = INT64_MAX                                       \
    }

/* The value of a variable; NULL where it is not set or empty. */
const char *engine_environment(const char *name);

/* Flags first, then the environment, into out; then whether the backend is there and this machine
 * can run it. Nothing is read from disk. loading must live as long as out. Errors: badValue,
 * BACKEND-UNKNOWN, BACKEND-NOT-BUILT, CPU-UNSUPPORTED and those of the device (blocks.h). */
bool engine_flags_resolve(const struct engine_flags *f, struct loading *loading,
                          struct model_options *out, struct error *err);
/* The first half of it: no backend is looked for. Error badValue. */
bool engine_flags_parse(const struct engine_flags *f, struct loading *loading,
                        struct model_options *out, struct error *err);
/* The backend's name by flag and environment, alone: known and in this build, with or without a
 * device. Errors: BACKEND-UNKNOWN, BACKEND-NOT-BUILT. */
bool engine_flags_backend(const char *flag, const char **out, struct error *err);
/* The command line or the environment is wrong, as against the machine: exit code 2. */
bool engine_flags_is_usage(const struct error *err);

#endif
