/* What a comparison says: sentences and JSON (docs/compare.md). */
#include "judge/compare/compare.h"

#include <math.h>
#include <stdio.h>

const char *compare_verdict_name(const struct compare_outcome *o)
{
    return o->declined ? "declined" : paired_verdict_text(o->result.verdict);
}

void compare_sentence(const struct compare_run *r, size_t i, struct buffer *out)
{
    const struct rounds_plan *p = &r->plan->rounds;
    const struct compare_outcome *o = &r->outcomes[i];
    const struct paired_estimate *e = &o->result.estimates[p->axis];
    const char *label = r->plan->settings[i].label, *base = r->plan->settings[0].label;
    if (o->declined) {
        buffer_printf(out, "%s: declined: %s", label, o->why);
        return;
    }
    if (o->result.verdict == PAIRED_NO_DIFFERENCE)
        buffer_printf(out, "%s: no difference to %s seen at this power (smallest effect %.2f %%)",
                      label, base, 100 * rounds_smallest_claim(p, e));
    else
        buffer_printf(out, "%s: %s than %s", label, compare_verdict_name(o), base);
    buffer_printf(out, ": %s speed x %.4f, %.3g %% interval %.4f to %.4f, %zu pairs",
                  rounds_axis_name(p->axis), e->ratio, 100 * rounds_confidence(p), e->t_low,
                  e->t_high, e->count);
}

static json_t *seal_statistics(const struct compare_run *r, const struct compare_outcome *o)
{
    const struct rounds_plan *p = &r->plan->rounds;
    json_t *all = json_object();
    for (int axis = 0; axis < ROUNDS_AXES; axis++) {
        if (!o->result.known[axis])
            continue;
        struct paired_rule rule = p->rule;
        rule.confidence = rounds_confidence(p);
        rule.axis = rounds_axis_name(axis);
        json_object_set_new(all, rule.axis,
                            paired_seal(&o->result.estimates[axis], NULL, &rule, o->stopped));
    }
    return all;
}

static json_t *seal_outcome(const struct compare_run *r, size_t i)
{
    const struct rounds_plan *p = &r->plan->rounds;
    const struct compare_outcome *o = &r->outcomes[i];
    json_t *c = json_object();
    struct buffer sentence = {0};
    compare_sentence(r, i, &sentence);
    json_object_set_new(c, "label", json_string(r->plan->settings[i].label));
    json_object_set_new(c, "against", json_string(r->plan->settings[0].label));
    json_object_set_new(c, "verdict", json_string(compare_verdict_name(o)));
    json_object_set_new(c, "declined", o->declined ? json_string(o->why) : json_null());
    json_object_set_new(c, "sentence", json_string(sentence.data));
    json_object_set_new(c, "pairs", json_integer((json_int_t)o->pairs.count));
    json_object_set_new(c, "pairs_set_aside", json_integer((json_int_t)o->pairs.set_aside));
    json_object_set_new(c, "smallest_claim",
                        o->declined
                            ? json_null()
                            : json_real(rounds_smallest_claim(p, &o->result.estimates[p->axis])));
    json_object_set_new(c, "statistics", o->declined ? json_null() : seal_statistics(r, o));
    buffer_free(&sentence);
    return c;
}

static json_t *seal_record(const struct compare_run *r, const struct compare_record *l)
{
    json_t *o = json_object();
    json_object_set_new(o, "round", json_integer((json_int_t)l->round));
    json_object_set_new(o, "setting", json_string(r->plan->settings[l->setting].label));
    json_object_set_new(o, "prefill_seconds_per_token", json_real(l->times.prefill));
    json_object_set_new(o, "decode_seconds_per_token", json_real(l->times.decode));
    json_object_set_new(o, "contended", json_boolean(l->times.contended));
    json_object_set_new(o, "throttled", json_boolean(l->times.throttled));
    return o;
}

json_t *compare_report(const struct compare_run *r)
{
    const struct compare_plan *plan = r->plan;
    const struct rounds_plan *p = &plan->rounds;
    json_t *o = json_object(), *settings = json_array(), *comparisons = json_array(),
           *legs = json_array();
    for (size_t s = 0; s < plan->count; s++)
        json_array_append_new(settings, bench_seal_setting(&plan->settings[s]));
    for (size_t i = 1; i < plan->count; i++)
        json_array_append_new(comparisons, seal_outcome(r, i));
    for (size_t i = 0; i < r->record_count; i++)
        json_array_append_new(legs, seal_record(r, &r->records[i]));
    json_object_set_new(o, "kind", json_string("benchd compare"));
    json_object_set_new(o, "axis", json_string(rounds_axis_name(p->axis)));
    json_object_set_new(o, "confidence", json_real(p->rule.confidence));
    json_object_set_new(o, "confidence_each", json_real(rounds_confidence(p)));
    json_object_set_new(o, "adjustment", json_string(p->comparisons > 1 ? "bonferroni" : "none"));
    json_object_set_new(o, "claim_floor", json_real(p->claim_floor));
    json_object_set_new(o, "decode_steps", json_integer(r->bench->oracle.steps));
    json_object_set_new(o, "contract_sha256", json_string(r->bench->contract->sha256));
    json_object_set_new(o, "golden_sha256", json_string(r->bench->golden->sha256));
    json_object_set_new(o, "settings", settings);
    json_object_set_new(o, "comparisons", comparisons);
    json_object_set_new(o, "legs", legs);
    json_object_set_new(o, "conditions", quiet_records(r->bench->quiet));
    return o;
}
