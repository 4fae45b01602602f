/* libFuzzer: config.json of a Laguna model, and what follows from an accepted one. */
#include "base/json.h"
#include "engine/checkpoint/formats.h"
#include "engine/model/laguna_config.h"

#include <stdlib.h>
#include <string.h>

/* The fuzz library holds checkpoint and text only. */
#include "engine/model/config_reader.c"
#include "engine/model/laguna_config.c"
#include "engine/model/laguna_quantization.c"
#include "engine/model/laguna_tensors.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    json_t *config = json_parse_strict((const char *)data, size, JSON_DEPTH_DEFAULT, "fuzz", &err);
    if (!config)
        return 0;
    struct arena a = {0};
    struct laguna_config c;
    if (laguna_config_parse(&a, config, "fuzz", &c, &err)) {
        /* Sizes that pass are sizes that the code after them can multiply. */
        if (c.layer_count <= 64) {
            struct inventory inventory = {.arena = &a};
            uint64_t total = 0;
            laguna_config_inventory(&c, &inventory);
            for (size_t i = 0; i < inventory.count; i++) {
                uint64_t bytes = dtype_size(inventory.items[i].dtype);
                for (int d = 0; d < inventory.items[i].rank; d++)
                    if (__builtin_mul_overflow(bytes, (uint64_t)inventory.items[i].shape[d],
                                               &bytes))
                        abort();
                if (__builtin_add_overflow(total, bytes, &total) || total > (uint64_t)1 << 60)
                    abort();
            }
            if (laguna_config_bytes_per_token(&c) > total)
                abort();
        }
    } else if ((strcmp(err.name, "CONFIG-INVALID") != 0 &&
                strcmp(err.name, "QUANTIZATION-NOT-PERMITTED") != 0) ||
               !*err.message) {
        abort();
    }
    laguna_config_pin_xs21(config, "fuzz", &err);
    json_decref(config);
    arena_free(&a);
    return 0;
}
