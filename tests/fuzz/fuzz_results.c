/* Any JSON as the results of a job: refused by name, or what is made of it is finite. */
#include "base/json.h"
#include "judge/job/overlay.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char hash[] = "0000000000000000000000000000000000000000000000000000000000000000";
    const struct overlay_rules rules = {.track_id = "t-0-cuda-v1",
                                        .contract_sha256 = hash,
                                        .harness_hash = hash,
                                        .pool_size = 1,
                                        .prefill_exponent = 0.25,
                                        .decode_exponent = 0.75,
                                        .min_pairs_per_prompt = 1};
    struct error err = {0};
    struct overlay_outcome out;
    json_t *root =
        json_parse_strict((const char *)data, size, JSON_DEPTH_DEFAULT, "results.json", &err);
    if (root == NULL)
        return 0;
    if (overlay_check_results(root, &rules, &out, &err)) {
        require(isfinite(out.serial_mean) && out.candidate_mean > 0);
        require(out.cohorts || (isfinite(out.score) && out.score > 0));
    } else {
        require(err.name[0] && err.message[0]);
    }
    err = (struct error){0};
    require(overlay_check_gates(root, &rules, &err) || err.name[0]);
    err = (struct error){0};
    require(overlay_check_both(root, root, &rules, &err) || err.name[0]);
    json_decref(root);
    return 0;
}
