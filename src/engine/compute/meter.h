/* A meter: where the time of forwards goes and what they read, by part. Off unless one is set: then
 * each part costs one look at a pointer. Times are the caller's between barriers, so that of a
 * shared region they are wall time. Bytes are those of the weights that a block really uses, each
 * once per forward, however often a kernel comes back to them. */
#ifndef MLXFAST_ENGINE_COMPUTE_METER_H
#define MLXFAST_ENGINE_COMPUTE_METER_H

#include "engine/compute/blocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, key in JSON, what a person reads */
#define METER_PART_TABLE(X)                                                                        \
    X(EMBED, "embed", "embedding")                                                                 \
    X(PROJECT, "attention_projections", "attention: q, k, v, gate")                                \
    X(ATTEND, "attention_proper", "attention: keys and values")                                    \
    X(OUTPUT, "attention_output", "attention: output")                                             \
    X(ROUTER, "router", "router")                                                                  \
    X(EXPERTS, "experts", "experts")                                                               \
    X(SHARED, "shared", "shared expert")                                                           \
    X(DENSE, "dense", "dense MLP")                                                                 \
    X(HEAD, "head", "head")                                                                        \
    X(REST, "rest", "norms, combine, waking threads")

enum meter_part {
#define METER_ENUM(name, key, text) METER_##name,
    METER_PART_TABLE(METER_ENUM)
#undef METER_ENUM
        METER_PARTS
};
const char *meter_part_key(enum meter_part p);
const char *meter_part_text(enum meter_part p);

struct meter_count {
    int64_t ns;
    uint64_t bytes; /* weights */
    double flops;   /* two for each multiply-add */
};

/* One stretch of time, for a profile. */
struct meter_event {
    enum meter_part part;
    int layer; /* -1: outside the layers */
    int64_t start, end;
};

/* Keeps the stretches of one prefill chunk and of one decode step: of the first few forwards of
 * each kind the widest, or the latest of equal ones, since the first are not warm. */
enum { METER_KINDS = 2, METER_EVENTS = 1 << 15 };
struct meter_recording {
    int rows; /* 0: none yet */
    int64_t position;
    int seen;
    size_t count, dropped;
    struct meter_event *events; /* [METER_EVENTS] */
};
struct meter_recorder {
    struct meter_recording kind[METER_KINDS]; /* several rows; one row */
};
struct meter_recorder *meter_recorder_new(void);
void meter_recorder_free(struct meter_recorder *r);

struct compute_meter {
    struct meter_count part[METER_PARTS];
    uint64_t kv_bytes; /* keys and values read */
    uint64_t forwards, rows;
    int64_t ns;            /* of the forwards in all */
    uint64_t *expert_rows; /* [expert_layers, expert_stride] rows per expert, or NULL */
    int expert_layers, expert_stride;
    struct meter_recorder *recorder; /* or NULL */
    /* its own: */
    enum meter_part now;
    int layer;
    int64_t began, since;
    struct meter_recording *recording;
};

void meter_reset(struct compute_meter *m); /* the counts; pointers stay */

/* NULL: off. The meter is the caller's and outlives its use. */
void compute_set_meter(struct compute *c, struct compute_meter *m);
struct compute_meter *compute_get_meter(const struct compute *c);
/* What compute_new gives a new instance: for a program that profiles whatever it opens. */
void compute_set_default_meter(struct compute_meter *m);
struct compute_meter *compute_default_meter(void);

/* Around a forward. */
void meter_forward_begin(struct compute_meter *m, int rows, int64_t position);
void meter_forward_end(struct compute_meter *m);

/* For backends. From now on time is this part's. */
void meter_switch(struct compute_meter *m, enum meter_part to);
void meter_linear(struct compute_meter *m, enum meter_part p, const struct weight_matrix *w,
                  int rows);
/* The routed and the shared expert run in the same regions: the time since the last switch is cut
 * in proportion to what they read. Ends METER_EXPERTS. */
void meter_end_experts(struct compute_meter *m, uint64_t routed_bytes, uint64_t shared_bytes);
uint64_t meter_matrix_bytes(const struct weight_matrix *w);

#endif
