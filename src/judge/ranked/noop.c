#include "judge/ranked/noop.h"

#include "base/stats.h"
#include "judge/ranked/machine.h"

#include <math.h>
#include <stdio.h>

bool noop_control_first(size_t pair)
{
    return pair % 2 == 0;
}

bool noop_figures_of(const struct noop_prompt *p, size_t pairs, double confidence,
                     struct noop_figures *out)
{
    if (pairs < NOOP_PAIRS_LEAST || !paired_estimate(p->control, p->candidate, pairs, confidence,
                                                     PAIRED_BOOTSTRAP_SEED, &out->paired))
        return false;
    out->ratio_of_means = stats_mean(p->control, pairs) / stats_mean(p->candidate, pairs);
    out->ratio_of_fastest = stats_min(p->control, pairs) / stats_min(p->candidate, pairs);
    return true;
}

bool noop_measure_serial(struct noop *n, bool *misused, struct error *err)
{
    struct reference_options options;
    struct reference r = {0};
    *misused = true;
    bool ok = reference_flags_read(n->flags, &options, err) && reference_open(&r, &options, err);
    if (ok) {
        *misused = false;
        ok = reference_prepare(&r, err);
    }
    n->decode_tokens = ok ? r.contract->benchmark_decode_steps : 0;
    n->prompt_count = options.golden_count;
    n->prompts = arena_array(&n->arena, n->prompt_count, sizeof *n->prompts);
    for (size_t g = 0; ok && g < n->prompt_count; g++) {
        n->prompts[g] =
            (struct noop_prompt){.prompt = arena_strdup(&n->arena, r.goldens[g].prompt),
                                 .control = arena_array(&n->arena, n->pairs, sizeof(double)),
                                 .candidate = arena_array(&n->arena, n->pairs, sizeof(double))};
        text_copy(n->prompts[g].sha256, SHA256_HEX, r.goldens[g].golden->sha256);
    }
    for (size_t pair = 0; ok && pair < n->pairs; pair++)
        for (size_t leg = 0; ok && leg < 2 * n->prompt_count; leg++) {
            const size_t g = leg / 2;
            const bool control = (leg % 2 == 0) == noop_control_first(pair);
            const struct quiet_point at = {.pair = (int)pair + 1,
                                           .leg = control ? "null-a" : "null-b"};
            struct reference_times t;
            if (leg == 0 && !n->flags->quiet)
                fprintf(stderr, "pair %zu of %zu\n", pair + 1, n->pairs);
            ok = reference_leg(&r, g, &at, &t, err);
            if (ok)
                (control ? n->prompts[g].control : n->prompts[g].candidate)[pair] =
                    t.decode_seconds_per_token;
        }
    ok = ok && reference_check_unchanged(&r, err);
    if (r.quiet != NULL)
        n->gates = quiet_records(r.quiet);
    reference_close(&r);
    return ok;
}

void noop_free(struct noop *n)
{
    json_decref(n->gates);
    contract_free(n->contract);
    arena_free(&n->arena);
}

/* ---- the report ---- */

/* A bound of one pair is infinite: null. */
static json_t *bound(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *interval(double low, double high)
{
    json_t *both = json_array();
    json_array_append_new(both, bound(low));
    json_array_append_new(both, bound(high));
    return both;
}

static json_t *pairs_of(const struct noop_prompt *p, size_t pairs)
{
    json_t *list = json_array();
    for (size_t i = 0; i < pairs; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "control_seconds_per_token", json_real(p->control[i]));
        json_object_set_new(o, "candidate_seconds_per_token", json_real(p->candidate[i]));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *prompt_report(const struct noop *n, const struct noop_prompt *p, double confidence)
{
    struct noop_figures f;
    if (!noop_figures_of(p, n->pairs, confidence, &f))
        return NULL;
    json_t *o = json_object();
    json_object_set_new(o, "prompt", json_string(p->prompt));
    json_object_set_new(o, "golden_sha256", json_string(p->sha256));
    json_object_set_new(o, "noop_decode_speedup", json_real(f.paired.ratio));
    json_object_set_new(o, "interval", interval(f.paired.t_low, f.paired.t_high));
    json_object_set_new(o, "bootstrap_interval", interval(f.paired.boot_low, f.paired.boot_high));
    json_object_set_new(o, "sd", bound(f.paired.sd));
    json_object_set_new(o, "smallest_effect", bound(f.paired.smallest_effect));
    json_object_set_new(o, "ratio_of_means", json_real(f.ratio_of_means));
    json_object_set_new(o, "ratio_of_fastest", json_real(f.ratio_of_fastest));
    json_object_set_new(o, "pairs", pairs_of(p, n->pairs));
    return o;
}

json_t *noop_report(const struct noop *n, const char *when)
{
    struct paired_rule rule;
    json_t *o = json_object(), *prompts = json_array();
    contract_paired_rule(n->contract, &rule);
    bool ok = true;
    for (size_t i = 0; ok && i < n->prompt_count; i++) {
        json_t *p = prompt_report(n, &n->prompts[i], rule.confidence);
        ok = p != NULL && json_array_append_new(prompts, p) == 0;
    }
    json_object_set_new(o, "measured_with", json_string("benchd measure-noop"));
    json_object_set_new(o, "captured_at", json_string(when));
    json_object_set_new(o, "track_id", json_string(n->contract->track_id));
    json_object_set_new(o, "contract_sha256", json_string(n->contract->sha256));
    json_object_set_new(o, "kind", json_string(n->blocks ? "blocks" : "serial"));
    json_object_set_new(o, "decode_tokens", json_integer(n->decode_tokens));
    json_object_set_new(o, "block_size", n->blocks ? json_integer(n->block_size) : json_null());
    json_object_set_new(o, "pairs", json_integer((json_int_t)n->pairs));
    json_object_set_new(o, "confidence", json_real(rule.confidence));
    json_object_set_new(o, "machine", machine_describe());
    json_object_set_new(o, "prompts", prompts);
    json_object_set(o, "gates", n->gates);
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}
