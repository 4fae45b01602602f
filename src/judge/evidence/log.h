/* The append-only log: a file of one JSON line for each statement, in the order of signing. A line
 * carries the hash of the line before, and its own; all are the leaves of one Merkle tree.
 *
 *   {"hash":H,"index":0,"previous":H,"score":D,"statement":D,"time":T,"version":1}
 *
 * hash is that of the line without "hash" (merkle_leaf), previous the hash of the entry before, 64
 * zeros in the first. A line has one spelling: sorted keys, no spaces. An edit, a deletion, a swap
 * or an insertion breaks a hash or the chain at a line that is named; that lines were cut off the
 * end shows only against a root published earlier (log_expect). */
#ifndef MLXFAST_JUDGE_EVIDENCE_LOG_H
#define MLXFAST_JUDGE_EVIDENCE_LOG_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "judge/evidence/merkle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_TIME = 32 };
struct log_entry {
    uint64_t index;
    char time[LOG_TIME];        /* UTC, 2026-01-31T12:00:00Z */
    char statement[SHA256_HEX]; /* digest of the statement's bytes */
    char score[SHA256_HEX];     /* digest of score.json */
    char previous[SHA256_HEX];
    char hash[SHA256_HEX];
    struct merkle_hash leaf; /* the same in bytes */
};
/* Fills in hash and leaf. */
void log_entry_seal(struct log_entry *e);
/* One line, without its end. */
void log_entry_render(const struct log_entry *e, struct buffer *out);
/* Shape, spelling and own hash; the chain is the log's. Error LOG-INVALID. */
bool log_entry_parse(const char *file, const char *data, size_t length, struct log_entry *out,
                     struct error *err);

struct log {
    struct log_entry *entries; /* in the arena */
    size_t count;
    size_t bytes; /* of the whole lines */
    size_t torn;  /* bytes behind them: a line whose writing was cut off; 0: none */
};
/* Every line's own hash, the chain, the indices. A torn last line is no error of the parser. Error
 * LOG-INVALID: the line and what is wrong with it. */
bool log_parse(const char *file, const char *data, size_t length, struct arena *a, struct log *out,
               struct error *err);
/* The same of a file, under a shared lock. A file that is not there: IO. With a torn last line:
 * LOG-TORN, out filled all the same. */
bool log_read(const char *path, struct arena *a, struct log *out, struct error *err);
void log_root(const struct log *l, size_t count, struct merkle_hash *out); /* of the first count */
/* The hash that the next entry carries. */
const char *log_head(const struct log *l);
/* NULL: no entry of that statement. The last one, where it stands more than once. */
const struct log_entry *log_find(const struct log *l, const char *statement_sha256);
/* "<entries>:<root>" as it was published: the log still begins with exactly those entries; count is
 * their number (may be NULL). Errors: USAGE (the text), LOG-INVALID. */
bool log_expect(const char *file, const struct log *l, const char *published, size_t *count,
                struct error *err);

/* Writing: the file (made where it is not there) is held under an exclusive lock from open to
 * close, so that a statement can name its place before it is signed. Waits for the lock until it
 * is interrupted. Errors: IO, LOG-TORN, LOG-INVALID, Interrupted. */
struct log_writer;
bool log_open(const char *path, struct log_writer **out, struct error *err);
const struct log *log_of(const struct log_writer *w);
/* One write, then fsync: it has happened when this returns true. After an error the file is as it
 * was, as far as the system lets it. */
bool log_append(struct log_writer *w, const char *statement_sha256, const char *score_sha256,
                struct log_entry *out, struct error *err);
void log_close(struct log_writer *w);

/* Mends a torn last line, having proved that all before it is a whole log and that nothing stands
 * behind it. A whole entry that lacks only its end gets it; anything less was never acknowledged
 * and is cut off. */
struct log_repaired {
    size_t removed; /* bytes */
    bool completed;
};
bool log_repair(const char *path, struct log_repaired *out, struct error *err);

/* That an entry is in a log of so many, without the log; and, where before is not 0, that the log
 * is one of so many of an earlier root with more behind it. */
struct log_inclusion {
    struct log_entry entry;
    uint64_t size, before;
    struct merkle_hash root, path[MERKLE_PATH_MOST];
    size_t length;
    struct merkle_hash before_root, before_path[MERKLE_PATH_MOST];
    size_t before_length;
};
/* before: at most the log's number of entries; 0: nothing of an earlier root. */
void log_prove(const struct log *l, const struct log_entry *e, size_t before,
               struct log_inclusion *out);
void log_inclusion_render(const struct log_inclusion *p, struct buffer *out);
/* Closed, one spelling, the ways lead to the root. Error LOG-INVALID. */
bool log_inclusion_parse(const char *file, const char *data, size_t length,
                         struct log_inclusion *out, struct error *err);

#endif
