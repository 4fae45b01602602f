/* The drafter that a worker serves: opened for its model, with the provenance that the hello tells
 * and a spec may ask for. */
#ifndef MLXFAST_ENGINE_SERVE_SERVED_DRAFTER_H
#define MLXFAST_ENGINE_SERVE_SERVED_DRAFTER_H

#include "base/error.h"
#include "base/sha256.h"
#include "engine/model/dflash.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>

struct served_drafter { /* all zero: none */
    struct dflash *dflash;
    const struct dflash_config *config;
    uint64_t weight_bytes;
    /* Of its *.safetensors: the SHA-256 of their bytes one after the other in name order
     * (runner-contract.md section 4), how many bytes, how many files. */
    char sha256[SHA256_HEX];
    uint64_t bytes;
    uint32_t file_count;
};

/* Errors: those of dflash_open. */
bool served_drafter_open(const char *folder, struct model *m, struct served_drafter *out,
                         struct error *err);
void served_drafter_close(struct served_drafter *d);

#endif
