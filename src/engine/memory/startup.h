/* The start-up memory profile: what a model will take is set against what the machine leaves it,
 * before anything is loaded. No profile changes a bit of any output. */
#ifndef MLXFAST_ENGINE_MEMORY_STARTUP_H
#define MLXFAST_ENGINE_MEMORY_STARTUP_H

#include "base/error.h"
#include "engine/memory/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* full: weights are copied into huge pages. low: they stay in the files' pages, which the machine
 * may drop and read again; scratch is small, in ordinary pages. auto: full where it fits with a
 * tenth to spare, else low. */
enum memory_profile { MEMORY_AUTO, MEMORY_FULL, MEMORY_LOW };
/* "auto", "full", "low". */
bool memory_profile_parse(const char *text, enum memory_profile *out);
const char *memory_profile_name(enum memory_profile p);

/* What a program asks for, and how it hears of it; the library prints nothing. */
struct memory_request {
    enum memory_profile profile;
    /* One line, before loading. May be NULL. */
    void (*announce)(void *context, const char *line);
    /* The device that they are copied to, before the first progress; never called where they stay
     * in the machine's memory. May be NULL. */
    void (*destination)(void *context, const char *device);
    /* While weights are copied, at the latest every few hundred milliseconds. May be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

/* Bytes. Keys, values and scratch depend on the rows of one forward, which low takes fewer of. */
struct memory_need {
    const char *folder; /* for messages */
    uint64_t weights;   /* all, as a copy */
    uint64_t token;     /* of them what one token reads: below it nothing would stay in memory */
    uint64_t caches, scratch;         /* of full */
    uint64_t low_caches, low_scratch; /* of low */
    uint64_t tables;                  /* of either */
};

struct memory_plan {
    enum memory_profile profile; /* full or low */
    bool fits;                   /* low: all weights can stay in memory */
    bool lock;                   /* full: RLIMIT_MEMLOCK leaves room for the weights */
    bool device;                 /* full: all of it in a device's memory; files stay mapped */
    char line[400];              /* what was chosen and why */
};

/* Error MEMORY-INSUFFICIENT: needed, left, by which limit, and what to lower. */
bool memory_plan_make(enum memory_profile asked, const struct memory_need *n,
                      const struct memory_limits *l, struct memory_plan *out, struct error *err);
/* The same for a device with memory of its own, of which so much is free; weights are as they lie
 * there. There is no low profile: badValue. */
bool memory_plan_device(enum memory_profile asked, const struct memory_need *n, const char *device,
                        uint64_t available, struct memory_plan *out, struct error *err);

#endif
