/* A bundle: what a third party needs to check a score, in one tar file of one spelling. Members
 * stand in the order of bundle_names, with the names fixed, plain, and no times, owners or modes of
 * their own; every byte of the archive follows from the members, so that none can be changed
 * unseen. Read from memory, never extracted. Any tar program reads it. */
#ifndef MLXFAST_JUDGE_EVIDENCE_BUNDLE_H
#define MLXFAST_JUDGE_EVIDENCE_BUNDLE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { BUNDLE_MEMBERS_MOST = 80, BUNDLE_NAME_MOST = 96 };
/* Of one member, and of all: what a verifier takes into memory. */
#define BUNDLE_MEMBER_BYTES_MOST ((size_t)256 << 20)
#define BUNDLE_BYTES_MOST ((size_t)512 << 20)

struct bundle_member {
    const char *name;
    const char *data;
    size_t length;
};
/* Members sorted bytewise by name. Data is borrowed. */
struct bundle {
    struct bundle_member members[BUNDLE_MEMBERS_MOST];
    size_t count;
};

/* The names: one of each at most, golden/01.json up to golden/64.json in sequence. */
#define BUNDLE_SUMS "SHA256SUMS"
#define BUNDLE_CALIBRATION "calibration.json"
#define BUNDLE_CONTRACT "contract.json"
#define BUNDLE_ENGINE "engine"
#define BUNDLE_GOLDENS "golden/"
#define BUNDLE_INTEGRITY "integrity.json"
#define BUNDLE_LOG "log-inclusion.json"
#define BUNDLE_KEY "public-key.pem"
#define BUNDLE_RESULTS "results.json"
#define BUNDLE_SCORE "score.json"
#define BUNDLE_SIDECAR "score.json.sha256"
#define BUNDLE_STATEMENT "statement.json"
#define BUNDLE_SIGNATURE "statement.sig"

/* NULL: not there. */
const struct bundle_member *bundle_find(const struct bundle *b, const char *name);
/* Whether a bundle may hold a member of that name. */
bool bundle_knows(const char *name);
/* In its place; the name is known and not there yet, and there is room. */
void bundle_add(struct bundle *b, const char *name, const void *data, size_t length);

/* SHA256SUMS of all other members, as `sha256sum -c` reads it; its last line is a comment with the
 * digest of the lines above, so that a change of this file is not taken for one of another. */
void bundle_render_sums(const struct bundle *b, struct buffer *out);

/* The archive: SHA256SUMS is among the members. */
void bundle_write(const struct bundle *b, struct buffer *out);
/* Names are copied to the arena, data points into the archive. Error BUNDLE-INVALID, naming the
 * member: cut off, changed, a path that climbs, a link, a second of one name, a name that no bundle
 * has, too large, bytes behind the end. */
bool bundle_parse(const char *file, const char *data, size_t length, struct arena *a,
                  struct bundle *out, struct error *err);

#endif
