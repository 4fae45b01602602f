/* How the parts of a contract are read: getters for declared fields and the refusals, each of which
 * names the track, the field's whole path and the value. Only the contract*.c files include this.
 */
#ifndef MLXFAST_JUDGE_CONTRACT_READ_H
#define MLXFAST_JUDGE_CONTRACT_READ_H

#include "base/json.h"
#include "judge/contract.h"
#include "judge/contract_keys.h"

/* Counts are used in sums and products of int64: 31 bits leave room for all of them. */
enum { CONTRACT_COUNT_MAX = 0x7fffffff };

/* One reading of one object of one file. */
struct contract_reader {
    struct contract *c;
    struct json_view view; /* path: "" at the top, else the object's own */
    struct error *err;
};

/* The refusals return false. field is the key's whole path. */
bool contract_refuse(const struct contract_reader *r, const char *field, const char *value,
                     const char *what);
/* key: a key of the reader's object, whose value is shown. */
bool contract_refuse_value(const struct contract_reader *r, const char *key, const char *what);
/* A near known key is named. */
bool contract_refuse_key(const struct contract_reader *r, enum contract_place place,
                         const char *key, const char *field, const char *value);
/* The whole path of a key of the reader's object. */
const char *contract_field(const struct contract_reader *r, const char *key);
/* The short form of a value for a message. Returns out. */
const char *contract_value_text(const json_t *value, char *out, size_t size);
bool contract_text_is_blank(const char *text); /* or padded */

bool contract_has(const struct contract_reader *r, const char *key);
bool contract_get_text(const struct contract_reader *r, const char *key, const char **out);
bool contract_get_name(const struct contract_reader *r, const char *key, const char **out);
bool contract_get_flag(const struct contract_reader *r, const char *key, bool *out);
bool contract_get_count(const struct contract_reader *r, const char *key, int64_t min, int64_t max,
                        int64_t *out);
enum contract_real { CONTRACT_REAL_POSITIVE, CONTRACT_REAL_NOT_NEGATIVE };
bool contract_get_real(const struct contract_reader *r, const char *key, enum contract_real rule,
                       double *out);
/* A declared object of known keys: a reader of it. */
bool contract_open_object(const struct contract_reader *outer, enum contract_place place,
                          const char *key, struct contract_reader *out);
/* All of these keys are declared in the reader's object. */
bool contract_is_whole(const struct contract_reader *r, const char *const *keys, size_t count);
/* All or nothing: sets *has, and refuses a half-declared group by the first missing field. */
bool contract_has_group(const struct contract_reader *r, const char *const *keys, size_t count,
                        bool *has);

/* The groups of block decoding (contract_blocks.c). */
bool contract_read_block_decode(const struct contract_reader *root);
bool contract_read_fidelity(const struct contract_reader *root);
/* How steady a box must be to be calibrated (contract_calibration.c). */
bool contract_read_calibration_cv(const struct contract_reader *root);
/* Pairs and their interval (contract_statistics.c). */
bool contract_read_statistics(const struct contract_reader *root);
/* What the weights may be stored as (contract_envelope.c). */
bool contract_read_envelope(const struct contract_reader *root);
/* How quiet the machine must be (contract_quiet.c). After the platform was read. */
bool contract_read_quiet(const struct contract_reader *root);

#endif
