/* `bench-worker bench`: how fast the engine runs a checkpoint beside what the machine allows. All
 * tokens are made up (fixed seed), so that experts are chosen as widely as the router spreads them,
 * whatever the model would say. */
#ifndef MLXFAST_ENGINE_SERVE_BENCH_H
#define MLXFAST_ENGINE_SERVE_BENCH_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "engine/compute/meter.h"
#include "engine/compute/roofline.h"
#include "engine/compute/timeline.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { BENCH_CONTEXTS = 2, BENCH_WIDTHS = 5, BENCH_MOST_BLOCK = 16 };

struct bench_options {
    const char *weights;
    struct model_options model; /* its context is chosen here */
    int64_t prompt_tokens, decode_tokens;
    int64_t block;       /* verification is measured for 1, 2, 4 .. rows up to it */
    int64_t context;     /* decode there alone; 0: at 512 and 8192, or as far as the model goes */
    const char *drafter; /* NULL: none. Only with an acceptance that is simulated: */
    double acceptance;   /* of a draft whose predecessors were accepted; -1: not given */
    bool no_cold;        /* leave the page cache alone */
    bool timeline;       /* of decode steps; the backend has one */
    bool quiet;
};

/* Opening and the first token. */
struct bench_load {
    bool measured;
    double resident_before; /* share of the weights' pages that were in memory */
    double open_seconds, first_token_seconds;
};

struct bench_verify {
    int rows;
    double median, least; /* seconds */
    double weight_bytes;  /* read by one block of so many rows, mean */
    unsigned kernels;     /* 0: the backend has none */
};

struct bench_decode {
    int64_t context;
    int tokens;
    double seconds;                       /* of them all, unmetered, without the readings */
    double median, least;                 /* of one step */
    double read_before, read_after;       /* bytes a second, the best pass */
    double read_between;                  /* the median of the passes between the steps; 0: none */
    double weight_bytes, kv_bytes;        /* of one step */
    int metered_steps;                    /* the quicker half of those that were metered */
    double metered_seconds;               /* of one metered step, mean; a device's is that of
                                             its kernels one after the other */
    unsigned kernels;                     /* of one step; 0: the backend has none */
    struct meter_count part[METER_PARTS]; /* of them all */
    struct timeline_summary timeline;     /* of the last steps */
    int widths;
    struct bench_verify verify[BENCH_WIDTHS];
};

/* Rounds of so many rows; seconds of them all. Draft and verify: of one of those that were cut in
 * two behind them, which take longer together where a device need not wait in between. */
struct bench_rounds {
    int rows;
    size_t rounds, tokens;
    double seconds, draft_seconds, verify_seconds;
};

/* Drafting as if drafts were right so often: timing only. */
struct bench_simulated {
    bool there;
    double acceptance;
    int64_t context;
    uint64_t drafter_bytes;
    size_t serial_tokens;
    double serial_seconds;
    int widths;
    struct bench_rounds width[BENCH_WIDTHS];
};

struct bench_result {
    struct model_info info; /* strings live as long as the result */
    struct arena arena;
    const char *weights, *engine, *cpu, *drafter;
    bool on_device; /* then the caches and the readings are the device's */
    bool fast;      /* ARITHMETIC_FAST */
    bool timeline;  /* was asked for */
    struct device_facts device;
    double copy_rate; /* bytes a second, each read and written; of a device */
    int threads, cores;
    uint64_t cache_bytes, page_bytes, memory_bytes;
    struct bench_load cold, warm;
    uint64_t buffer_bytes, weights_read_bytes; /* 0: the weights would fit into the cache */
    double read_anonymous, read_weights;       /* bytes a second, the best */
    struct roofline_peak peak;
    int prompt_tokens;
    double prefill_seconds; /* of a device: the median of several */
    struct meter_count prefill[METER_PARTS];
    int expert_layers, experts, least_chosen; /* least_chosen: of a layer, of all experts */
    double busiest_over_mean;
    int contexts;
    struct bench_decode decode[BENCH_CONTEXTS];
    struct bench_simulated simulated;
    uint64_t kv_bytes, device_weight_bytes; /* the latter 0: it works on the checkpoint's */
    uint64_t resident_bytes, resident_anonymous, resident_file, resident_peak;
};

/* Whether the options go together and the backend, which is there, has what they ask for. Errors:
 * badValue, USAGE, TIMELINE-NOT-BUILT. */
bool bench_check(const struct bench_options *o, struct error *err);
/* Errors: the model's, INTERRUPTED, OUT-OF-MEMORY, CONTEXT-EXCEEDED (what was asked does not fit).
 */
bool bench_run(const struct bench_options *o, struct bench_result *r, struct error *err);
void bench_result_free(struct bench_result *r);

/* What a decode figure is compared with: the passes between the steps; where the weights fit into
 * the cache, the better of before and after. */
double bench_read_rate(const struct bench_result *r, const struct bench_decode *d);
/* (weight bytes + keys and values) / median step / read rate. */
double bench_share(const struct bench_result *r, const struct bench_decode *d);
/* One sentence: what bounds decoding there. */
void bench_explain(const struct bench_result *r, const struct bench_decode *d, struct buffer *out);

void bench_write_json(const struct bench_result *r, struct buffer *out);
void bench_print(const struct bench_result *r);

/* ---- the machine's side (bench_machine.c) ---- */

/* Asks for the files' pages to be dropped; returns the share that is in memory after it (0 for
 * files that are not there). With ask false only looks. */
double bench_resident_share(const char *folder, bool ask);
void bench_read_memory(struct bench_result *r); /* resident_* of this process */
void bench_read_machine(struct bench_result *r);
/* What the device is, where there is one, and its copying; how much is read for its rate. */
void bench_read_device(struct compute *c, struct bench_result *r);

/* ---- drafting (bench_simulate.c) ---- */

/* Tokens beyond the prompt that it needs. */
int64_t bench_simulate_tokens(const struct bench_options *o);
bool bench_simulate(struct model *m, const struct bench_options *o, const int64_t *prompt,
                    size_t prompt_count, struct bench_simulated *r, struct error *err);

#endif
