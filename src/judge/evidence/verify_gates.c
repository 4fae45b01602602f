/* The records of the quiet gates against the limits that the contract declares (or the platform's
 * where it declares none): no phase of a run that passed was timed on a busy or hot machine. */
#include "judge/evidence/verify.h"

#include "judge/quiet/quiet.h"
#include "judge/ranked/pairs.h"

#include <stdio.h>
#include <string.h>

static const char subject[] = "metrics.gates";

static bool is_number_at(const json_t *o, const char *key)
{
    return json_is_number(json_object_get(o, key));
}

static bool is_one_of(const char *text, const char *one, const char *other)
{
    return strcmp(text, one) == 0 || strcmp(text, other) == 0;
}

static bool is_contended(const json_t *seen, const struct quiet_rules *r)
{
    return is_number_at(seen, "others_cpu") &&
           quiet_is_contended(r, verify_number(seen, "others_cpu"),
                              verify_number(seen, "engine_run_delay"));
}

/* What is wrong with a record; NULL: it is within the limits. */
static const char *broken(const json_t *record, const struct quiet_rules *r)
{
    const json_t *quiet = json_object_get(record, "quiescence");
    const json_t *heat = json_object_get(record, "temperature");
    const json_t *seen = json_object_get(record, "telemetry");
    const char *heat_state = verify_text(heat, "state");
    if (!is_one_of(verify_text(quiet, "state"), "quiet", "waited"))
        return "the machine was not quiet";
    if (is_number_at(quiet, "load") &&
        !(verify_number(quiet, "load") - verify_number(quiet, "own_load") < r->load_max))
        return "the load is not below the limit";
    if (is_number_at(quiet, "gpu_use") && !(verify_number(quiet, "gpu_use") < r->gpu_use_max))
        return "the GPU's use is not below the limit";
    if (strcmp(heat_state, "skipped-no-reader") == 0)
        return r->temperature_required ? "no temperature was read" : NULL;
    if (!is_one_of(heat_state, "fired", "waited"))
        return "the machine was not cool";
    if (verify_number(heat, "limit") != r->celsius_max)
        return "the limit of temperature is not the contract's";
    if (!is_number_at(heat, "celsius") || verify_number(heat, "celsius") > r->celsius_max)
        return "the temperature is above the limit";
    if (json_is_true(json_object_get(seen, "throttled")))
        return "the clocks were throttled";
    if (is_contended(seen, r) && !quiet_is_brief(verify_number(seen, "seconds")))
        return "others were at work during the phase";
    return NULL;
}

/* Legs with a record outside the limits that the score owns up to: a pair that was set aside ended
 * in such a leg; of an attempt at a block pair that was rejected for what the machine did, null
 * pairs among them, both may be. */
static size_t spoiled_legs(const json_t *metrics)
{
    const json_t *aside = json_object_get(metrics, "pairs_set_aside");
    static const char *const lists[] = {"block_pairs", "block_null_pairs"};
    size_t count = 0;
    for (size_t k = 0; k < 2; k++) {
        const json_t *list = json_object_get(metrics, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            count += is_one_of(verify_text(json_array_get(list, i), "rejection"),
                               "temperature_timeout", "telemetry");
    }
    return 2 * count + (json_integer_value(aside) > 0 ? (size_t)json_integer_value(aside) : 0);
}

void verify_gates(const struct verify_run *run, struct findings *f)
{
    const json_t *gates = json_object_get(run->metrics, "gates");
    const struct contract *c = run->contract;
    if (!verify_is_ranked(run) || !run->passed || !c) {
        if (gates)
            findings_add(f, FINDING_SKIPPED, subject,
                         "not checked: only a ranked run that passed is held to the limits of its "
                         "contract");
        return;
    }
    const struct quiet_rules *rules = &c->quiet;
    const size_t count = json_array_size(gates);
    const size_t allowed = spoiled_legs(run->metrics);
    size_t outside = 0;
    const int64_t aside = json_integer_value(json_object_get(run->metrics, "pairs_set_aside"));
    const size_t pairs = json_array_size(json_object_get(run->metrics, "paired_legs")) +
                         json_array_size(json_object_get(run->metrics, "null_pairs"));
    if (aside < 0 || (size_t)aside > RANKED_SET_ASIDE_MOST(pairs)) {
        findings_add(f, FINDING_FAILED, subject, "%lld pairs set aside of %zu that count",
                     (long long)aside, pairs);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *record = json_array_get(gates, i);
        const char *what = broken(record, rules);
        if (what && ++outside > allowed) {
            findings_add(f, FINDING_FAILED, subject, "record %zu, pair %lld %s %s: %s", i + 1,
                         (long long)json_integer_value(json_object_get(record, "pair")),
                         verify_text(record, "leg"), verify_text(record, "phase"), what);
            return;
        }
    }
    size_t brief = 0, contended = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *seen = json_object_get(json_array_get(gates, i), "telemetry");
        const bool is_brief =
            json_is_object(seen) && quiet_is_brief(verify_number(seen, "seconds"));
        brief += is_brief;
        contended += is_brief && is_contended(seen, rules);
    }
    if (count == 0)
        findings_add(f, FINDING_FAILED, subject, "a ranked run without a record of its gates");
    else if (contended > allowed && !quiet_lets_through(contended - allowed, brief))
        findings_add(f, FINDING_FAILED, subject,
                     "others were at work during %zu of %zu phases of less than 0.2 s", contended,
                     brief);
    else
        findings_add(f, FINDING_OK, subject,
                     "%zu of %zu records are within the limits: load %.3g, GPU use %.3g, %.3g "
                     "degrees%s",
                     count - outside, count, rules->load_max, rules->gpu_use_max,
                     rules->celsius_max,
                     outside ? "; the others are of pairs that do not count" : "");
}
