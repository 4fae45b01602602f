/* Whether the weights are stored as the contract permits: config.json and the headers of the shards
 * are read, no weight. */
#ifndef MLXFAST_JUDGE_WEIGHTS_FORMAT_H
#define MLXFAST_JUDGE_WEIGHTS_FORMAT_H

#include "base/error.h"
#include "judge/contract.h"

#include <stdbool.h>

/* A checkpoint may be in the format that its config.json says of the whole. A module in another
 * one (an entry of its own in quantization, or codes with scales and biases where the whole is not
 * affine) must be q, k, v, o or g of attention as affine INT8 in groups of 32, and the contract
 * must permit that. What an engine derives from the weights when it loads them is not seen here:
 * its tokens and logits are judged. A config.json or a shard that is not in its format says
 * nothing: no engine of these formats loads it. Errors: QUANTIZATION-NOT-PERMITTED (file, module),
 * IO, NOT-A-REGULAR-FILE. */
bool weights_check_format(const char *folder, const struct contract *c, struct error *err);

/* config.json tells of the model that the contract pins: model_type (golden_model_type), vocab_size
 * and num_hidden_layers, at its top or in text_config. What it does not tell, or the contract does
 * not pin, is not compared. Error WEIGHTS-SHAPE-MISMATCH (file, key, value). */
bool weights_check_shape(const char *folder, const struct contract *c, struct error *err);

#endif
