/* The keys of a contract: those that the judge reads, those that it knows to be others', and what a
 * misspelt one may have meant. */
#ifndef MLXFAST_JUDGE_CONTRACT_KEYS_H
#define MLXFAST_JUDGE_CONTRACT_KEYS_H

#include <stdbool.h>
#include <stddef.h>

/* The object that a key stands in: the whole, a timed_prompt_pool entry, hidden_correctness_golden,
 * block_decode and its calibration, fidelity and its conditions, quantization_envelope, quiet,
 * statistics. */
enum contract_place {
    CONTRACT_TOP,
    CONTRACT_POOL_ENTRY,
    CONTRACT_HIDDEN_GOLDEN,
    CONTRACT_BLOCK_DECODE,
    CONTRACT_CALIBRATION,
    CONTRACT_FIDELITY,
    CONTRACT_CONDITIONS,
    CONTRACT_ENVELOPE,
    CONTRACT_QUIET,
    CONTRACT_STATISTICS
};

/* Read by the judge, meant for other readers, or a remark ("..._note"). */
bool contract_key_is_known(enum contract_place place, const char *key);
/* A key of the top level that is meant for other readers. */
bool contract_key_is_for_others(const char *key);
/* The known key that differs least from an unknown one, by letters inserted, left out, changed or
 * swapped; NULL when none is near enough to be a misspelling. */
const char *contract_key_nearest(enum contract_place place, const char *key);

#endif
