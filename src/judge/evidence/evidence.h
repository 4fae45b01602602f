/* Evidence for a sealed run: the one call that a ranked run makes when it is asked to sign, and the
 * packing of a bundle. docs/evidence.md walks through all of it. */
#ifndef MLXFAST_JUDGE_EVIDENCE_EVIDENCE_H
#define MLXFAST_JUDGE_EVIDENCE_EVIDENCE_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/evidence/bundle.h"
#include "judge/evidence/key.h"
#include "judge/evidence/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What was sealed and what it stands on, as files. The score's sidecar and integrity file stand
 * beside it, as seal_write leaves them. NULL: there is none. */
struct evidence_files {
    const char *score;
    const char *integrity; /* NULL: benchmark-integrity.json or .local-iterate.json beside it,
                              whichever names the score */
    const char *contract;
    const char *const *goldens;
    size_t golden_count;
    const char *calibration; /* needed where the score names one */
    const char *results;     /* results.json of measure-job, where overlay-timing made the score */
};

/* After sealing, and only then: signs for the score.
 *
 * The files are read and held against each other first, as a verifier would: a statement about
 * files that disagree is not made (EVIDENCE-MISMATCH). With a log, its lock is held from the
 * reading of the last entry to the appending of this one, which is the last thing that happens. On
 * true "<score>.statement.json" and "<score>.statement.sig" are there and, with a log, its entry;
 * on false none of them is new: earlier ones of the same score are gone. */
struct evidence_signing {
    struct evidence_files files;
    const char *key;             /* the private key's file */
    const char *drafter;         /* folder, hashed here; NULL: none */
    const char *baseline_engine; /* the control legs' program, hashed here; NULL: none, or the
                                    integrity file names it */
    const char *box;             /* NULL: metrics.baseline_box, else not known */
    const char *log;             /* NULL: none */
    const char *source_commit;   /* of benchd's own sources; NULL: that of the work tree around the
                                    program's file, else not known */
};
struct evidence_signed {
    char key[KEY_ID];
    char statement_sha256[SHA256_HEX];
    bool logged;
    struct log_entry entry;
    char root[SHA256_HEX]; /* of the log with it */
};
/* Errors: IO and those of file_read, KEY-INVALID, EVIDENCE-MISMATCH, LOG-TORN, LOG-INVALID,
 * Interrupted. */
bool evidence_sign(const struct evidence_signing *in, struct evidence_signed *out,
                   struct error *err);
/* Whether a run of hours could be signed at its end: the key is one, the log is whole and can be
 * written to. NULL key and log: true. Errors: as above, and USAGE for a log without a key. */
bool evidence_ready(const char *key, const char *log, struct error *err);

/* The key and the log that a run is asked to use: the flags, else MLXFAST_SIGNING_KEY and
 * MLXFAST_SIGNING_LOG; NULL: neither. */
const char *evidence_key_of(const char *flag);
const char *evidence_log_of(const char *flag);

/* The files of a run as members (without SHA256SUMS); data lives in the arena. Errors: as above,
 * BUNDLE-INVALID (too many or too large). */
bool evidence_gather(const struct evidence_files *files, struct arena *a, struct bundle *out,
                     struct error *err);

/* A whole bundle in memory: the files, the statement and signature where they stand beside the
 * score, the public key, the proof of the statement's place in the log, the engine. It is verified
 * first; what fails is not packed (EVIDENCE-MISMATCH). */
struct evidence_packing {
    struct evidence_files files;
    const char *public_key, *log, *engine; /* NULL: none */
    const char
        *log_root; /* an earlier root of the log, to be proved to be its beginning; or NULL */
    const char *weights_digest; /* "<sha256>:<bytes>:<files>": must be the score's */
};
bool evidence_pack(const struct evidence_packing *in, struct buffer *out, struct error *err);

#endif
