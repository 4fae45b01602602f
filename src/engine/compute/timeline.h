/* A timeline: stamps of the device's clock by thread 0 of block 0, at places in the kernels of a
 * layer. Only in a build with CUDA_TIMELINE=1 (cuda/timeline.cuh), for measurements. */
#ifndef MLXFAST_ENGINE_COMPUTE_TIMELINE_H
#define MLXFAST_ENGINE_COMPUTE_TIMELINE_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;

/* name; early: before the kernel waits for the one before it; what a person reads. A kernel's
 * places stand together in its order. The other linear layers of few rows pass the project's
 * places with a norm, the output's without. */
#define TIMELINE_TABLE(X)                                                                          \
    X(PROJECT_STARTS, true, "project: starts")                                                     \
    X(PROJECT_WAITS, true, "project: first weights asked for")                                     \
    X(PROJECT_THERE, false, "project: row is there")                                               \
    X(PROJECT_STAGED, false, "project: normed")                                                    \
    X(PROJECT_MULTIPLIED, false, "project: multiplied")                                            \
    X(PROJECT_ENDS, false, "project: ends")                                                        \
    X(ATTEND_STARTS, true, "attention: starts")                                                    \
    X(ATTEND_WAITS, true, "attention: old keys and values asked for")                              \
    X(ATTEND_THERE, false, "attention: projections are there")                                     \
    X(ATTEND_HEADS, false, "attention: heads normed and rotated")                                  \
    X(ATTEND_SCORED, false, "attention: scores")                                                   \
    X(ATTEND_SUMMED, false, "attention: values summed")                                            \
    X(ATTEND_ENDS, false, "attention: chunks put together")                                        \
    X(TOGETHER_THERE, false, "attention: chunks are there for a kernel of their own")              \
    X(OUTPUT_STARTS, true, "output: starts")                                                       \
    X(OUTPUT_WAITS, true, "output: first weights asked for")                                       \
    X(OUTPUT_THERE, false, "output: row is there")                                                 \
    X(OUTPUT_STAGED, false, "output: row in shared memory")                                        \
    X(OUTPUT_MULTIPLIED, false, "output: multiplied")                                              \
    X(OUTPUT_ENDS, false, "output: ends")                                                          \
    X(MOE_STARTS, true, "sparse ffn: starts")                                                      \
    X(MOE_WAITS, true, "sparse ffn: router's weights asked for")                                   \
    X(MOE_THERE, false, "sparse ffn: row is there")                                                \
    X(MOE_STAGED, false, "sparse ffn: normed")                                                     \
    X(MOE_ROUTED, false, "sparse ffn: router")                                                     \
    X(MOE_SCORED, false, "sparse ffn: all experts' scores are there")                              \
    X(MOE_CHOSEN, false, "sparse ffn: experts chosen")                                             \
    X(MOE_UP_THERE, false, "sparse ffn: weights of gate and up are there")                         \
    X(MOE_UP_MULTIPLIED, false, "sparse ffn: gate and up multiplied")                              \
    X(MOE_UP_ENDS, false, "sparse ffn: gate and up end")                                           \
    X(MOE_INNER_STAGED, false, "sparse ffn: inner rows in shared memory")                          \
    X(MOE_DOWN_THERE, false, "sparse ffn: weights of down are there")                              \
    X(MOE_DOWN_MULTIPLIED, false, "sparse ffn: down multiplied")                                   \
    X(MOE_ENDS, false, "sparse ffn: mixed, ends")

enum timeline_place {
#define TIMELINE_ENUM(name, early, text) TIMELINE_##name,
    TIMELINE_TABLE(TIMELINE_ENUM)
#undef TIMELINE_ENUM
        TIMELINE_PLACES
};
const char *timeline_place_text(int place);

/* A layer begins here. */
enum { TIMELINE_LAYER = TIMELINE_PROJECT_THERE };

/* A place has a ring of slots by time, so that a stamp is one store: of stamps within one slot's
 * time the last is kept, and all are for as long as the ring is (17 ms). */
enum {
    TIMELINE_SLOT_BITS = 9,
    TIMELINE_SLOTS = 1 << 15,
    TIMELINE_SPAN_NS = TIMELINE_SLOTS << TIMELINE_SLOT_BITS
};

struct timeline_stamp {
    uint64_t ns;
    int place;
};

/* Of all times that block 0 went from one place to the next. An early place is set against the
 * early one before it of its kernel (from -1: it is the kernel's first), all others against the
 * latest that was not early, of this kernel or of the one before. */
struct timeline_step {
    int from, to;
    size_t count;
    double median, low, high; /* seconds; a tenth is below low, a tenth above high */
    double into;              /* median seconds from the begin of the layer until `to` */
};

struct timeline_summary {
    size_t layers; /* that were followed by another */
    double layer;  /* median seconds from one's begin to the next one's */
    size_t count;
    struct timeline_step *step; /* [count] by `into`, the arena's */
};

/* Sorts the stamps; those that are older than the ring are not looked at. */
void timeline_summarise(struct timeline_stamp *stamp, size_t count, struct arena *arena,
                        struct timeline_summary *out);

/* Whether this build of that backend (NULL: cpu) has one. */
bool compute_has_timeline(const char *backend);
/* The stamps since the last call, in no order; the caller frees *out. 0: there are none, or a fault
 * has been noted. */
size_t compute_take_timeline(struct compute *c, struct timeline_stamp **out);

#endif
