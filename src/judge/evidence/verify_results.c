/* A score of the older flow: overlay-timing made it of the gates' score and of results.json, whose
 * pairs give it again (benchd-cli.md section 5). */
#include "judge/evidence/verify.h"

#include "base/json.h"
#include "judge/job/inputs.h"
#include "judge/job/overlay.h"
#include "judge/job/score.h"

#include <stdio.h>
#include <string.h>

static const char subject[] = BUNDLE_RESULTS;

bool verify_is_overlaid(const struct verify_run *run)
{
    return strcmp(verify_text(run->metrics, "scoring_mode"), OVERLAY_SCORING_MODE) == 0;
}

static bool figure(struct findings *f, const json_t *m, const char *key, double again)
{
    const double sealed = verify_number(m, key);
    return verify_same(sealed, again) ||
           findings_add(f, FINDING_FAILED, "score",
                        "metrics.%s is %.17g, and %.17g by the pairs of " BUNDLE_RESULTS, key,
                        sealed, again);
}

/* Every prompt that was timed is one of the pool; cohorts have digests of their own. */
static bool check_prompts(const struct verify_run *run, const json_t *results, struct findings *f)
{
    const struct contract *c = run->contract;
    const json_t *prompts = json_object_get(results, "per_prompt");
    for (size_t i = 0; c->pool_count > 0 && i < json_array_size(prompts); i++) {
        const char *digest = verify_text(json_array_get(prompts, i), "prompt_sha256");
        size_t at = 0;
        while (at < c->pool_count && strcmp(c->pool[at].sha256, digest) != 0)
            at++;
        if (at == c->pool_count)
            return findings_add(f, FINDING_FAILED, subject,
                                "per_prompt[%zu] was timed on %s, which the contract's pool does "
                                "not pin",
                                i, digest);
    }
    return true;
}

static void compare(const struct verify_run *run, const json_t *results,
                    const struct overlay_outcome *o, struct findings *f)
{
    const json_t *m = run->metrics, *score = json_object_get(run->score, "score");
    struct error why = {0};
    const bool passes = job_judge_score(o->score, &why);
    bool ok = check_prompts(run, results, f);
    ok &= figure(f, m, "decode_speedup", o->decode_gain);
    ok &= !o->cohorts || figure(f, m, "prefill_speedup", o->prefill_gain);
    ok &= figure(f, m, "decode_seconds_per_token", o->candidate_mean);
    ok &= figure(f, m, "baseline_decode_seconds_per_token", o->serial_mean);
    if (passes != run->passed)
        ok = findings_add(f, FINDING_FAILED, "score",
                          run->passed
                              ? "passed, and %.17g by the pairs of " BUNDLE_RESULTS " does not"
                              : "failed, and %.17g by the pairs of " BUNDLE_RESULTS " does not",
                          o->score);
    else if (passes && !verify_same(json_number_value(score), o->score))
        ok = findings_add(f, FINDING_FAILED, "score",
                          "is %.17g, and %.17g by the pairs of " BUNDLE_RESULTS,
                          json_number_value(score), o->score);
    if (!ok)
        return;
    findings_add(f, FINDING_OK, subject,
                 "its figures are what its %zu pairs give, on the score's commit and weights",
                 json_array_size(json_object_get(results, "pairs")));
    if (passes)
        findings_add(f, FINDING_OK, "score", "%.17g is what the pairs of " BUNDLE_RESULTS " give",
                     o->score);
    else
        findings_add(f, FINDING_OK, "score", "failed and has no score, as it must be: %s",
                     why.message);
}

static bool open_results(const struct verify_run *run, const json_t *results,
                         struct overlay_outcome *out, struct error *err)
{
    const struct contract *c = run->contract;
    struct overlay_rules r = {.track_id = c->track_id,
                              .contract_sha256 = c->sha256,
                              .pool_size = c->pool_count > 0 ? c->pool_count : 1,
                              .min_pairs_per_prompt = 1};
    return job_contract_exponents(c, &r.prefill_exponent, &r.decode_exponent, err) &&
           overlay_check_both(run->score, results, &r, err) &&
           overlay_check_results(results, &r, out, err);
}

void verify_results(const struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_RESULTS);
    struct overlay_outcome outcome;
    struct error err = {0};
    if (m && !verify_is_overlaid(run)) {
        findings_add(f, FINDING_FAILED, subject,
                     "is in the bundle, and the score was not made of it");
        return;
    }
    if (!m || !run->contract) {
        findings_add(f, FINDING_SKIPPED, subject, "not checked: %s is not in the bundle",
                     m ? "the contract" : "it");
        findings_add(f, FINDING_SKIPPED, "score",
                     "not checked: it stands on the pairs of " BUNDLE_RESULTS);
        return;
    }
    json_t *results = json_parse_strict(m->data, m->length, JSON_DEPTH_DEFAULT, subject, &err);
    if (results && open_results(run, results, &outcome, &err))
        compare(run, results, &outcome, f);
    else
        findings_error(f, subject, &err);
    json_decref(results);
}
