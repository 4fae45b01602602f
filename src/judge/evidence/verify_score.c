/* The score again, from what is sealed of its pairs and from the contract, by the contract's
 * arithmetic (contract-and-scoring.md sections 2 and 3, dflash-track.md section 2). */
#include "judge/evidence/verify.h"

#include "base/arena.h"
#include "judge/block_score.h"
#include "judge/ranked/combine.h"
#include "judge/score.h"
#include "judge/stats/paired.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char subject[] = "score";
static const char barriers_subject[] = "untimed work";
static const char statistics_subject[] = "metrics.statistics";

/* ---- Pairs ---- */

static bool read_pair(const json_t *record, size_t index, struct ranked_pair *out)
{
    *out = (struct ranked_pair){
        .number = (int)index + 1,
        .control = {.prefill = verify_number(record, "control_prefill_seconds_per_token"),
                    .decode = verify_number(record, "control_decode_seconds_per_token"),
                    .seed_prefill_window =
                        verify_number(record, "control_seed_prefill_window_seconds_per_token"),
                    .prefill_barrier = verify_number(record, "control_prefill_barrier_seconds"),
                    .decode_barrier = verify_number(record, "control_decode_barrier_seconds")},
        .candidate = {.prefill = verify_number(record, "candidate_prefill_seconds_per_token"),
                      .decode = verify_number(record, "candidate_decode_seconds_per_token"),
                      .seed_prefill_window =
                          verify_number(record, "candidate_seed_prefill_window_seconds_per_token"),
                      .prefill_barrier = verify_number(record, "candidate_prefill_barrier_seconds"),
                      .decode_barrier = verify_number(record, "candidate_decode_barrier_seconds")}};
    text_copy(out->prompt_sha256, sizeof out->prompt_sha256, verify_text(record, "prompt_sha256"));
    return json_integer_value(json_object_get(record, "pair")) == (json_int_t)index + 1;
}

/* An attempt at a pair of block decoding; those that were rejected do not count. */
static bool read_attempt(const json_t *record, size_t index, struct ranked_pair *out)
{
    *out = (struct ranked_pair){
        .number = (int)index + 1,
        .control.decode = verify_number(record, "control_seconds_per_token"),
        .candidate.decode = verify_number(record, "candidate_seconds_per_token")};
    return json_is_true(json_object_get(record, "accepted"));
}

static bool is_of_blocks(const struct verify_run *run)
{
    return json_object_get(run->metrics, "mode") != NULL;
}

/* metrics.paired_legs or null_pairs, of blocks block_pairs or block_null_pairs: numbered from 1
 * without a gap. */
static bool read_pairs(const struct verify_run *run, bool nulls, struct arena *a,
                       struct ranked_pair **out, size_t *count, struct findings *f)
{
    const bool blocks = is_of_blocks(run);
    const char *key = blocks ? (nulls ? "block_null_pairs" : "block_pairs")
                             : (nulls ? "null_pairs" : "paired_legs");
    const json_t *list = json_object_get(run->metrics, key);
    *count = json_array_size(list);
    if (*count > PAIRED_COUNT_MAX)
        return findings_add(f, FINDING_FAILED, subject, "metrics.%s holds more pairs than a run",
                            key);
    *out = arena_array(a, *count + 1, sizeof **out);
    const size_t records = *count;
    *count = 0;
    for (size_t i = 0; i < records; i++) {
        const json_t *record = json_array_get(list, i);
        struct ranked_pair *p = &(*out)[*count];
        if (blocks ? read_attempt(record, *count, p) : read_pair(record, i, p))
            ++*count;
        else if (!blocks)
            return findings_add(f, FINDING_FAILED, subject,
                                "metrics.%s: record %zu is not pair %zu", key, i + 1, i + 1);
    }
    return true;
}

static bool figure(struct findings *f, const json_t *m, const char *key, double again)
{
    const double sealed = verify_number(m, key);
    return verify_same(sealed, again) ||
           findings_add(f, FINDING_FAILED, subject,
                        "metrics.%s is %.17g, and %.17g by the sealed times and the contract", key,
                        sealed, again);
}

static bool flag(struct findings *f, const json_t *m, const char *key, bool again)
{
    return json_is_true(json_object_get(m, key)) == again ||
           findings_add(f, FINDING_FAILED, subject,
                        "metrics.%s is not what the sealed times and the contract give", key);
}

/* The number itself: what the arithmetic gives, or null in a run that failed. */
static bool final_score(const struct verify_run *run, double again, struct findings *f)
{
    const json_t *score = json_object_get(run->score, "score");
    if (!run->passed)
        return true;
    if (!json_is_number(score))
        return findings_add(f, FINDING_FAILED, subject,
                            "is null, and %.17g by the sealed times and the contract", again);
    return verify_same(json_number_value(score), again) ||
           findings_add(f, FINDING_FAILED, subject,
                        "is %.17g, and %.17g by the sealed times and the contract",
                        json_number_value(score), again);
}

/* How many pairs, and on which goldens. */
static bool check_counts(const struct verify_run *run, const struct ranked_pair *pairs,
                         size_t count, struct findings *f)
{
    const struct contract *c = run->contract;
    const json_t *combine = json_object_get(run->metrics, "official_pair_combine");
    bool ok = true;
    if (run->passed && c->has_official_pairs && count < c->official_pairs)
        ok = findings_add(f, FINDING_FAILED, subject, "stands on %zu pairs; the contract asks %u",
                          count, c->official_pairs);
    if (combine && strcmp(json_string_value(combine), c->combine_mean ? "mean" : "lower_median"))
        ok =
            findings_add(f, FINDING_FAILED, subject, "official_pair_combine is not the contract's");
    for (size_t i = 0; run->golden_count > 0 && i < count; i++) {
        size_t at = 0;
        while (at < run->golden_count &&
               strcmp(run->goldens[at].sha256, pairs[i].prompt_sha256) != 0)
            at++;
        if (at == run->golden_count)
            ok = findings_add(f, FINDING_FAILED, subject,
                              "pair %zu was measured on a golden that the bundle does not hold, %s",
                              i + 1, pairs[i].prompt_sha256);
    }
    return ok;
}

/* A failure that the arithmetic decides, and the one that is sealed. */
static bool check_verdict(const struct verify_run *run, const struct combined *all,
                          struct findings *f)
{
    const char *error = verify_text(run->metrics, "error");
    if (run->passed && all->error)
        return findings_add(f, FINDING_FAILED, subject, "passed, where the contract says: %s: %s",
                            all->error, all->text);
    static const char *const decided[] = {"performance floor failed", "acceptance band failed",
                                          "seed window failed", "decode barrier failed"};
    for (size_t i = 0; i < sizeof decided / sizeof *decided; i++)
        if (strncmp(error, decided[i], strlen(decided[i])) == 0 &&
            (!all->error || strcmp(all->error, decided[i]) != 0))
            return findings_add(f, FINDING_FAILED, subject,
                                "failed by \"%s\", which the sealed times do not bear out",
                                decided[i]);
    return true;
}

/* Work outside the clock has been judged with the score, where the score tells of it. */
static void check_barriers(const struct verify_run *run, struct findings *f)
{
    static const char *const keys[] = {
        "control_prefill_barrier_seconds", "control_decode_barrier_seconds",
        "candidate_prefill_barrier_seconds", "candidate_decode_barrier_seconds"};
    const json_t *pairs = json_object_get(run->metrics, "paired_legs");
    size_t told = 0;
    for (size_t i = 0; i < json_array_size(pairs); i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            told += json_object_get(json_array_get(pairs, i), keys[k]) != NULL;
    if (told == sizeof keys / sizeof *keys * json_array_size(pairs))
        findings_add(f, FINDING_OK, barriers_subject,
                     "the decode's seed and the barriers of %zu pairs leave no room for untimed "
                     "work beyond what the contract lets through",
                     json_array_size(pairs));
    else if (told == 0)
        findings_add(f, FINDING_SKIPPED, barriers_subject,
                     "not checked: the run did not seal its barriers");
    else
        findings_add(f, FINDING_FAILED, barriers_subject, "not every pair has its four barriers");
}

static void check_paired(const struct verify_run *run, const struct ranked_pair *pairs,
                         size_t count, struct findings *f)
{
    const json_t *m = run->metrics;
    const struct contract *c = run->contract;
    struct combined all;
    struct error err = {0};
    if (!contract_require_weights(c, &err) || !contract_require_floors(c, &err)) {
        findings_error(f, BUNDLE_CONTRACT, &err);
        return;
    }
    combine_pairs(c, pairs, count, &all);
    bool ok = check_counts(run, pairs, count, f);
    if (run->passed) { /* a run that failed earlier has no figures to speak of */
        ok &= figure(f, m, "prefill_speedup", all.gains.prefill);
        ok &= figure(f, m, "decode_speedup", all.gains.decode);
        ok &= figure(f, m, "prefill_seconds_per_token", all.candidate.prefill);
        ok &= figure(f, m, "decode_seconds_per_token", all.candidate.decode);
        ok &= figure(f, m, "baseline_prefill_seconds_per_token", all.control.prefill);
        ok &= figure(f, m, "baseline_decode_seconds_per_token", all.control.decode);
        ok &= figure(f, m, "prefill_speedup_floor", c->prefill_speedup_floor);
        ok &= figure(f, m, "decode_speedup_floor", c->decode_speedup_floor);
        ok &= flag(f, m, "passed_prefill_speedup_floor", all.prefill_floor);
        ok &= flag(f, m, "passed_decode_speedup_floor", all.decode_floor);
    }
    ok = ok && final_score(run, all.score, f);
    ok = ok && check_verdict(run, &all, f);
    if (!ok)
        return;
    if (run->passed)
        findings_add(f, FINDING_OK, subject,
                     "%.17g is what %zu pairs and the contract give: gains %.6f prefill, %.6f "
                     "decode, %s, floors cleared",
                     all.score, count, all.gains.prefill, all.gains.decode,
                     c->combine_mean ? "mean" : "lower median");
    if (run->passed)
        check_barriers(run, f);
    else
        findings_add(f, FINDING_OK, subject, "failed and has no score, as it must be: %s",
                     verify_text(m, "error"));
}

/* ---- A stored pair of the contract ---- */

static void check_stored(const struct verify_run *run, struct findings *f)
{
    const json_t *m = run->metrics;
    const struct contract *c = run->contract;
    struct error err = {0};
    if (!contract_require_official_baseline(c, &err) || !contract_require_weights(c, &err)) {
        findings_error(f, BUNDLE_CONTRACT, &err);
        return;
    }
    const double prefill =
        score_speedup(c->official_baseline_prefill, verify_number(m, "prefill_seconds_per_token"));
    const double decode =
        score_speedup(c->official_baseline_decode, verify_number(m, "decode_seconds_per_token"));
    const double score =
        score_composite(prefill, decode, c->score_prefill_weight, c->score_decode_weight);
    bool ok = figure(f, m, "prefill_speedup", prefill);
    ok &= figure(f, m, "decode_speedup", decode);
    ok &= figure(f, m, "baseline_prefill_seconds_per_token", c->official_baseline_prefill);
    ok &= figure(f, m, "baseline_decode_seconds_per_token", c->official_baseline_decode);
    const bool clears = score_clears_floor(prefill, c->prefill_speedup_floor) &&
                        score_clears_floor(decode, c->decode_speedup_floor);
    if (run->passed && !clears)
        ok = findings_add(f, FINDING_FAILED, subject, "passed below a floor of the contract");
    if (ok && final_score(run, score, f))
        findings_add(f, FINDING_OK, subject,
                     "%.17g is what the sealed times and the contract's stored pair give", score);
}

/* ---- Block decoding ---- */

static double mean_of(const struct ranked_pair *pairs, size_t count, bool control)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += control ? pairs[i].control.decode : pairs[i].candidate.decode;
    return sum / (double)count;
}

/* The speedup that the contract pins for the prompt. A ranked run's prompt is hidden: there, what
 * is sealed must be what is pinned for one of the pool. False: neither. */
static bool find_normaliser(const struct verify_run *run, double *out, struct findings *f)
{
    const struct contract *c = run->contract;
    const double sealed = verify_number(run->metrics, "noop_reference_decode_speedup");
    *out = block_score_normaliser(c, verify_text(run->metrics, "golden_hash"));
    if (!verify_is_ranked(run))
        return true;
    *out = sealed;
    for (size_t i = 0; sealed > 0 && i < c->pool_count; i++)
        if (c->pool[i].noop_decode_speedup == sealed)
            return true;
    return findings_add(f, FINDING_FAILED, subject,
                        "is divided by %.17g, which the contract pins for no prompt of its pool",
                        sealed);
}

static bool check_block_count(const struct verify_run *run, size_t count, struct findings *f)
{
    const int64_t least = run->contract->block_decode.min_accepted_pairs;
    return !verify_is_ranked(run) || (int64_t)count >= least ||
           findings_add(f, FINDING_FAILED, subject, "stands on %zu pairs; the contract asks %lld",
                        count, (long long)least);
}

/* The ratio of the means over the pairs that count, divided by the normaliser. A local run seals
 * its means alone. */
static void check_blocks(const struct verify_run *run, const struct ranked_pair *pairs,
                         size_t count, struct findings *f)
{
    const json_t *m = run->metrics;
    const struct contract *c = run->contract;
    const bool ranked = verify_is_ranked(run);
    const char *serial_key =
        ranked ? "baseline_serial_seconds_per_token_mean" : "serial_seconds_per_token";
    const char *blocks_key =
        ranked ? "candidate_dflash_seconds_per_token_mean" : "dflash_seconds_per_token";
    struct error err = {0};
    double noop;
    if (!contract_require_block_decode(c, &err) || !contract_require_decode_floor(c, &err)) {
        findings_error(f, BUNDLE_CONTRACT, &err);
        return;
    }
    if (!run->passed) {
        findings_add(f, FINDING_OK, subject, "failed and has no score, as it must be: %s",
                     verify_text(m, "error"));
        return;
    }
    bool ok = check_block_count(run, count, f) & find_normaliser(run, &noop, f);
    const double serial = count ? mean_of(pairs, count, true) : verify_number(m, serial_key);
    const double blocks = count ? mean_of(pairs, count, false) : verify_number(m, blocks_key);
    const double raw = score_speedup(serial, blocks);
    const double score = noop > 0 ? raw / noop : raw;
    ok &= figure(f, m, serial_key, serial);
    ok &= figure(f, m, blocks_key, blocks);
    ok &= figure(f, m, "dflash_decode_speedup_ratio_of_means", raw);
    ok &= flag(f, m, "scoring_normalized", noop > 0);
    if (noop > 0) {
        ok &= figure(f, m, "noop_reference_decode_speedup", noop);
        ok &= figure(f, m, "dflash_decode_speedup_normalized", score);
    }
    if (!block_score_check_raw(&c->block_decode, raw, &err))
        ok = findings_error(f, subject, &err);
    if (noop > 0 && !score_clears_floor(score, c->decode_speedup_floor))
        ok = findings_add(f, FINDING_FAILED, subject, "passed below the contract's floor of %.6f",
                          c->decode_speedup_floor);
    if (ok && final_score(run, score, f))
        findings_add(f, FINDING_OK, subject, "%.17g is the ratio of the means of %s%s", score,
                     count ? "the sealed pairs that count" : "the legs, as they are sealed",
                     noop > 0 ? ", divided by the speedup that the contract pins" : "");
}

void verify_score(const struct verify_run *run, struct findings *f)
{
    const char *source = verify_text(run->metrics, "baseline_source");
    struct arena a = {0};
    struct ranked_pair *pairs;
    size_t count;
    struct error err = {0};
    if (run->contract && run->passed && verify_is_ranked(run) &&
        !contract_require_official_scoring(run->contract, &err))
        findings_error(f, subject, &err);
    if (verify_is_overlaid(run) || bundle_find(run->bundle, BUNDLE_RESULTS)) {
        verify_results(run, f);
    } else if (!run->contract) {
        findings_add(f, FINDING_SKIPPED, subject,
                     "not checked: there is no contract to score by in the bundle");
    } else if (!read_pairs(run, false, &a, &pairs, &count, f)) {
        ; /* said already */
    } else if (is_of_blocks(run)) {
        check_blocks(run, pairs, count, f);
    } else if (count > 0) {
        check_paired(run, pairs, count, f);
    } else if (!run->passed) {
        findings_add(f, FINDING_OK, subject, "failed and has no score, as it must be: %s",
                     verify_text(run->metrics, "error"));
    } else if (strcmp(source, "contract") == 0) {
        check_stored(run, f);
    } else {
        findings_check(f, json_is_null(json_object_get(run->score, "score")), subject,
                       "is null: nothing was measured to compare with, and no score is claimed",
                       "is a number, and no pair is sealed that it could stand on");
    }
    arena_free(&a);
}

/* ---- The statistics ---- */

/* Two values of JSON, numbers to within their last bits. */
static bool same_value(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_is_number(a) && json_is_number(b))
        return fabs(json_number_value(a) - json_number_value(b)) <=
               1e-9 * fmax(1e-6, fabs(json_number_value(b)));
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        for (size_t i = 0; i < json_array_size(a); i++)
            if (i >= json_array_size(b) || !same_value(json_array_get(a, i), json_array_get(b, i)))
                return false;
        return json_array_size(a) == json_array_size(b);
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !same_value(value, other))
            return false;
    }
    return json_object_size(a) == json_object_size(b);
}

/* What of the sealed object differs, by its first key that does. */
static bool compare(const json_t *sealed, const json_t *again, struct findings *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)again, key, value)
    {
        const json_t *was = json_object_get(sealed, key);
        if (!was || !same_value(was, value))
            return findings_add(f, FINDING_FAILED, statistics_subject,
                                "%s is not what the sealed pairs give", key);
    }
    return true;
}

/* What goes into the estimate: composites against one, or the decode times themselves. */
static bool estimate(const struct contract *c, const struct paired_rule *rule, bool composite,
                     const struct ranked_pair *pairs, size_t count, struct arena *a,
                     struct paired_estimate *out)
{
    double *control = arena_array(a, count + 1, sizeof *control);
    double *candidate = arena_array(a, count + 1, sizeof *candidate);
    if (composite)
        combine_composites(c, pairs, count, control);
    for (size_t i = 0; i < count; i++) {
        candidate[i] = composite ? 1 : pairs[i].candidate.decode;
        control[i] = composite ? control[i] : pairs[i].control.decode;
    }
    return paired_estimate(control, candidate, count, paired_rule_confidence(rule),
                           PAIRED_BOOTSTRAP_SEED, out);
}

void verify_statistics(const struct verify_run *run, struct findings *f)
{
    const json_t *sealed = json_object_get(run->metrics, "statistics");
    const char *axis = verify_text(sealed, "axis");
    const bool composite = strcmp(axis, "composite") == 0;
    const struct contract *c = run->contract;
    if (!sealed) {
        if (run->passed && verify_is_ranked(run))
            findings_add(f, FINDING_FAILED, statistics_subject,
                         "are not there: a ranked run seals them");
        return;
    }
    if (!c || (composite && !c->has_weights)) {
        findings_add(f, FINDING_SKIPPED, statistics_subject,
                     "not checked: there is no contract with weights in the bundle");
        return;
    }
    struct arena a = {0};
    struct ranked_pair *pairs, *nulls;
    size_t count, null_count;
    struct paired_estimate e, null_estimate = {0};
    struct paired_rule rule;
    contract_paired_rule(c, &rule);
    rule.axis = axis;
    const json_t *ends = json_object_get(sealed, "sequential");
    if (!composite) { /* a track of blocks asks for target_pairs at least */
        rule.min_pairs = (size_t)json_integer_value(json_object_get(ends, "min_pairs"));
        rule.max_pairs = (size_t)json_integer_value(json_object_get(ends, "max_pairs"));
    }
    const bool narrow = strcmp(verify_text(ends, "stopped"), "narrow-enough") == 0;
    if (!read_pairs(run, false, &a, &pairs, &count, f) ||
        !read_pairs(run, true, &a, &nulls, &null_count, f)) {
        ; /* said already */
    } else if (count == 0) {
        findings_add(f, FINDING_SKIPPED, statistics_subject, "not checked: no pairs are sealed");
    } else if (!estimate(c, &rule, composite, pairs, count, &a, &e) ||
               (null_count > 0 &&
                !estimate(c, &rule, composite, nulls, null_count, &a, &null_estimate))) {
        findings_add(f, FINDING_FAILED, statistics_subject,
                     "cannot be of the sealed pairs: a time is not above 0");
    } else {
        json_t *again = paired_seal(&e, null_count ? &null_estimate : NULL, &rule,
                                    narrow ? PAIRED_NARROW_ENOUGH : PAIRED_BOUND_REACHED);
        if (compare(sealed, again, f))
            findings_add(f, FINDING_OK, statistics_subject,
                         "ratio %.6f, interval %.6f to %.6f: what %zu pairs and %zu null pairs "
                         "give",
                         e.ratio, e.t_low, e.t_high, count, null_count);
        json_decref(again);
    }
    arena_free(&a);
}
