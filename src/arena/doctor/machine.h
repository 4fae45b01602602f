/* Everything that the doctor takes from outside, as a struct of functions and facts: a test makes
 * up a machine, its programs, its disk and its clock. */
#ifndef MLXFAST_ARENA_DOCTOR_MACHINE_H
#define MLXFAST_ARENA_DOCTOR_MACHINE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* How a program that was asked something ended. */
enum asked {
    ASKED_WELL,       /* by itself, with status 0 */
    ASKED_FAILED,     /* with another status, or by a signal */
    ASKED_IN_VAIN,    /* it could not be started */
    ASKED_TOO_LONG,   /* no end in time, or too much to say: it was killed */
    ASKED_INTERRUPTED /* a signal asks this program to stop */
};

/* What the engine says of itself and of this machine. Texts outlive the machine. */
struct engine_facts {
    const char *kernels;                /* the instruction set that it takes: "avx512", ... */
    const char *best_kernels;           /* that it would take without a variable that names one */
    struct error kernels_fault;         /* name not empty: a variable names one that is not here */
    int processors, processors_in_mask; /* quota and mask; the mask alone */
    uint64_t memory;                    /* bytes that it may still take, and by whose word */
    const char *memory_source;
    uint64_t limit_data, limit_addresses, lockable; /* of ulimit; UINT64_MAX: none */
    /* Compute capabilities that a CUDA build has code for, ten times: 90 is 9.0, ascending; the
     * last one's runs on later ones too. 0 of them: a build without CUDA. */
    const int *capabilities;
    size_t capability_count;
};

struct memory_rate {
    double bytes_per_second;
    uint64_t bytes; /* of the piece that was read again and again */
    int threads;
};

struct disk_rate {
    double bytes_per_second;
    uint64_t bytes;
    const char *file; /* its name; NULL: a temporary one without a name */
};

/* What a preflight of weights found. Texts live in the arena that was given. */
struct weights_report {
    size_t faults;
    const char *first; /* of them */
    const char *mend;  /* a shell's command; NULL where there is no fault */
    uint64_t files, bytes;
};

/* A library: the version that was built against, and the one that is here. */
struct library {
    const char *name, *built, *here;
};

struct machine {
    const char *root;       /* "", or a folder that holds proc/ and sys/ */
    const char *repository; /* the folder with src/ and tracks/; NULL: not found */
    const char *build;      /* where our programs lie */
    const char *temporary;  /* folder for temporary files, where leftovers are looked for */
    pid_t self;
    uid_t user;
    double ticks; /* per second, of /proc */
    uint64_t page_bytes;
    struct engine_facts engine;
    const struct library *libraries;
    size_t library_count;

    void *context;
    double (*now)(void *context);                 /* seconds of a clock that never jumps */
    bool (*sleep)(void *context, double seconds); /* false: interrupted */
    const char *(*variable)(void *context, const char *name); /* environment; NULL: not set */
    /* argv[0] is a path. out and complaint (the first line of stderr) are cleared first, and
     * NUL-terminated. */
    enum asked (*ask)(void *context, const char *const *argv, double seconds, struct buffer *out,
                      struct buffer *complaint);
    bool (*answers)(void *context, const char *socket); /* somebody takes connections there */
    bool (*space)(void *context, const char *folder, uint64_t *free_bytes, struct error *err);
    bool (*read_memory)(void *context, double seconds, struct memory_rate *out, struct error *err);
    bool (*read_disk)(void *context, struct arena *a, const char *folder, double seconds,
                      struct disk_rate *out, struct error *err);
    bool (*preflight)(void *context, struct arena *a, const char *weights, const char *track,
                      struct weights_report *out, struct error *err);
};

/* This machine, but for what the engine knows: engine, libraries, read_memory and preflight are the
 * program's to fill in. MLXFAST_SYSTEM_FILES=DIR, for tests, is its root. Its texts live in a. */
void machine_open(struct machine *m, struct arena *a);

/* A whole small file below the root; false: it cannot be read. out is cleared first and
 * NUL-terminated. */
bool machine_read(const struct machine *m, const char *path, struct buffer *out);
/* Its first line without blanks at the end, in an arena; NULL: it cannot be read, or is empty. */
const char *machine_line(const struct machine *m, struct arena *a, const char *path);
bool machine_number(const struct machine *m, const char *path, uint64_t *out);
/* Names in a folder below the root, sorted; at most `most`. */
size_t machine_list(const struct machine *m, struct arena *a, const char *folder, size_t most,
                    const char ***out);
/* The value after "key" and blanks and perhaps ':' at the beginning of a line; NULL: none. */
const char *text_value(struct arena *a, const char *text, const char *key);
/* Where a program of that name is found by PATH; NULL: nowhere. */
const char *machine_program(const struct machine *m, struct arena *a, const char *name);
/* An environment variable that is set and not empty; else NULL. */
const char *machine_variable(const struct machine *m, const char *name);

#endif
