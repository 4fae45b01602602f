#include "judge/ranked/calibration.h"

#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "base/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

static void set_axis(json_t *object, const char *axis, const struct calibration_axis *x)
{
    const struct {
        const char *suffix;
        double value;
    } members[] = {{"seconds_per_token_mean", x->seconds_per_token_mean},
                   {"cv", x->cv},
                   {"band_low", x->band_low},
                   {"band_high", x->band_high}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", axis, members[i].suffix);
        json_object_set_new(object, key, json_real(members[i].value));
    }
}

void calibration_render(const struct calibration *c, struct buffer *out)
{
    json_t *root = json_object(), *prompts = json_array();
    json_object_set_new(root, "version", json_integer(CALIBRATION_VERSION));
    json_object_set_new(root, "track_id", json_string(c->track_id));
    json_object_set_new(root, "box", json_string(c->box));
    json_object_set_new(root, "captured_at", json_string(c->captured_at));
    json_object_set_new(root, "reference_commit", json_string(c->reference_commit));
    json_object_set_new(root, "benchd_source_commit", json_string(c->benchd_source_commit));
    for (size_t i = 0; i < c->prompt_count; i++) {
        const struct calibration_prompt *p = &c->prompts[i];
        json_t *object = json_object();
        json_object_set_new(object, "prompt", json_string(p->prompt));
        json_object_set_new(object, "passes", json_integer(p->passes));
        set_axis(object, "prefill", &p->prefill);
        set_axis(object, "decode", &p->decode);
        json_array_append_new(prompts, object);
    }
    json_object_set_new(root, "prompts", prompts);
    if (c->gates != NULL && json_array_size(c->gates) > 0)
        json_object_set(root, "gates", c->gates);
    buffer_clear(out);
    json_write_canonical(root, 2, out);
    buffer_char(out, '\n');
    json_decref(root);
}

bool calibration_write(const struct calibration *c, const char *path, double cv_max,
                       struct error *err)
{
    struct buffer text = {0};
    struct calibration *again = NULL;
    calibration_render(c, &text);
    const bool ok = calibration_parse(path, text.data, text.length, cv_max, &again, err) &&
                    file_write_atomic(path, text.data, text.length, err);
    calibration_free(again);
    buffer_free(&text);
    return ok;
}

/* ---- whose it is ---- */

static const char *from_environment(const char *flag, const char *name)
{
    if (flag != NULL)
        return flag;
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

const char *calibration_path(const char *flag)
{
    return from_environment(flag, "MLXFAST_BASELINE_CALIBRATION");
}

static bool is_blank(const char *text)
{
    return text == NULL || text[strspn(text, " \t\r\n\v\f")] == '\0';
}

bool calibration_box(const char *flag, const char **out, struct error *err)
{
    const char *runner = getenv("RUNNER_NAME");
    *out = is_blank(runner) ? flag : runner;
    if (!is_blank(*out) && utf8_valid(*out, strlen(*out)))
        return true;
    error_set(err, "BASELINE-BOX-UNRESOLVED", "neither RUNNER_NAME nor --box names this machine");
    return error_at(err, NULL, "--box", *out);
}

double calibration_cv_limit(const struct contract *c)
{
    return c->has_calibration_cv_max ? c->calibration_cv_max : CALIBRATION_CV_MAX;
}

static bool differs(const struct calibration *c, const char *name, const char *field,
                    const char *theirs, const char *wanted, struct error *err)
{
    error_set(err, name, "the calibration is of \"%s\", the run of \"%s\"", theirs, wanted);
    return error_at(err, c->path, field, theirs);
}

bool calibration_find(const struct calibration *c, const char *prompt, const char *box,
                      const char *track, const struct calibration_prompt **out, struct error *err)
{
    *out = NULL;
    if (strcmp(c->track_id, track) != 0)
        return differs(c, "BASELINE-CALIBRATION-TRACK-MISMATCH", "track_id", c->track_id, track,
                       err);
    if (strcmp(c->box, box) != 0)
        return differs(c, "BASELINE-CALIBRATION-BOX-MISMATCH", "box", c->box, box, err);
    for (size_t i = 0; i < c->prompt_count; i++)
        if (strcmp(c->prompts[i].prompt, prompt) == 0) {
            *out = &c->prompts[i];
            return true;
        }
    error_set(err, "BASELINE-CALIBRATION-PROMPT-MISMATCH",
              "the calibration holds no prompt of this name");
    return error_at(err, c->path, "prompts", prompt);
}

/* ---- health ---- */

struct calibration_bands calibration_bands(const struct contract *c)
{
    if (!c->has_bands)
        return (struct calibration_bands){1 - CALIBRATION_PREFILL_UP, 1 + CALIBRATION_PREFILL_UP,
                                          1 - CALIBRATION_DECODE_UP, 1 + CALIBRATION_DECODE_UP};
    return (struct calibration_bands){1 - c->prefill_band_down, 1 + c->prefill_band_up,
                                      1 - c->decode_band_down, 1 + c->decode_band_up};
}

bool calibration_health(const struct calibration_prompt *p, const struct calibration_bands *bands,
                        double prefill_seconds_per_token, double decode_seconds_per_token,
                        struct error *err)
{
    const struct {
        const char *axis;
        double measured, limit;
    } axes[] = {{"prefill", prefill_seconds_per_token,
                 p->prefill.seconds_per_token_mean * bands->prefill_high},
                {"decode", decode_seconds_per_token,
                 p->decode.seconds_per_token_mean * bands->decode_high}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        char field[64], value[32];
        if (isfinite(axes[i].measured) && axes[i].measured > 0 && axes[i].measured <= axes[i].limit)
            continue;
        snprintf(field, sizeof field, "%s_seconds_per_token", axes[i].axis);
        snprintf(value, sizeof value, "%.9g", axes[i].measured);
        error_set(
            err, "SERIAL-CONTROL-LEG-OUTSIDE-BAND",
            "the control leg on \"%s\" is not as fast as this box's calibration: at most %.9g "
            "was expected",
            p->prompt, axes[i].limit);
        return error_at(err, NULL, field, value);
    }
    return true;
}

bool calibration_tally_add(struct calibration_tally *t, bool healthy)
{
    t->legs++;
    t->outside += !healthy;
    const size_t of = t->legs > t->planned ? t->legs : t->planned;
    return t->every ? t->outside == 0 : 2 * t->outside <= of;
}

struct calibration_axis calibration_axis_of(const double *seconds_per_token, size_t n,
                                            double band_low, double band_high)
{
    const double mean = stats_mean(seconds_per_token, n);
    return (struct calibration_axis){.seconds_per_token_mean = mean,
                                     .cv = stats_sample_sd(seconds_per_token, n) / mean,
                                     .band_low = band_low,
                                     .band_high = band_high};
}
