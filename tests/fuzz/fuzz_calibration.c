/* Any bytes into the calibration reader; what is accepted must hold its rules, read back from its
 * own writing as the same text, and answer lookup and health. */
#include "judge/ranked/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_axis(const struct calibration_axis *x)
{
    require(isfinite(x->seconds_per_token_mean) && x->seconds_per_token_mean > 0);
    require(x->cv >= 0 && x->cv <= CALIBRATION_CV_MAX);
    require(x->band_low > 0 && x->band_low <= 1);
    require(x->band_high >= 1 && isfinite(x->band_high));
}

static void require_same_again(const struct calibration *c)
{
    struct buffer first = {0}, second = {0};
    struct calibration *again = NULL;
    calibration_render(c, &first);
    require(calibration_parse("again.json", first.data, first.length, CALIBRATION_CV_MAX, &again,
                              NULL));
    calibration_render(again, &second);
    require(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
    calibration_free(again);
    buffer_free(&first);
    buffer_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct calibration *c = NULL;
    struct error err = {0};
    if (!calibration_parse("c.json", (const char *)data, size, CALIBRATION_CV_MAX, &c, &err)) {
        require(c == NULL && err.name[0] && err.message[0]);
        require(strcmp(err.name, "BASELINE-CALIBRATION-INVALID") == 0 ||
                strcmp(err.name, "BASELINE-CALIBRATION-WHOLE-WINDOW-DECODE") == 0 ||
                strcmp(err.name, "CALIBRATION-CV-EXCEEDED") == 0);
        return 0;
    }
    const struct contract bare = {0};
    const struct calibration_bands bands = calibration_bands(&bare);
    require(c->prompt_count > 0 && strlen(c->reference_commit) == 40);
    for (size_t i = 0; i < c->prompt_count; i++) {
        const struct calibration_prompt *p = &c->prompts[i], *found = NULL;
        require(p->passes >= CALIBRATION_PASSES_LEAST);
        require_axis(&p->prefill);
        require_axis(&p->decode);
        require(calibration_find(c, p->prompt, c->box, c->track_id, &found, &err) && found == p);
        require(calibration_health(p, &bands, p->prefill.seconds_per_token_mean,
                                   p->decode.seconds_per_token_mean, &err));
    }
    require_same_again(c);
    calibration_free(c);
    return 0;
}
