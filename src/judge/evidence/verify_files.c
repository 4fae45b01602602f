/* The files of a run: each by itself, then what each says of the others. */
#include "judge/evidence/verify.h"

#include "base/json.h"
#include "base/sha256.h"
#include "judge/golden.h"
#include "judge/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *verify_text(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

double verify_number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

bool verify_same(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

bool verify_is_ranked(const struct verify_run *run)
{
    const json_t *m = run->metrics;
    return !json_is_true(json_object_get(m, "partial_result")) && !verify_is_overlaid(run) &&
           (strcmp(verify_text(m, "baseline_source"), "serial-control-leg") == 0 ||
            json_is_true(json_object_get(m, "official_score")) ||
            json_array_size(json_object_get(m, "paired_legs")) > 0);
}

static bool digests_are(struct findings *f, const char *subject, const char *found,
                        const char *wanted, const char *of)
{
    if (strcmp(found, wanted) == 0)
        return findings_add(f, FINDING_OK, subject, "is the %s", of);
    return findings_add(f, FINDING_FAILED, subject, "is not the %s: its digest is %s, not %s", of,
                        found, *wanted ? wanted : "(none)");
}

/* ---- SHA256SUMS ---- */

/* Whose fault a difference is. own: the digest on the last line holds. */
static void blame(const struct bundle *b, const struct bundle_member *sums, bool own,
                  struct findings *f)
{
    size_t named = 0;
    if (!own) {
        findings_add(f, FINDING_FAILED, BUNDLE_SUMS,
                     "was changed: its last line is not the digest of those above");
        return;
    }
    for (size_t i = 0; i < b->count; i++) {
        const struct bundle_member *m = &b->members[i];
        char line[SHA256_HEX + BUNDLE_NAME_MOST + 4];
        if (m == sums)
            continue;
        sha256_hex(m->data, m->length, line);
        const size_t n = strlen(line);
        snprintf(line + n, sizeof line - n, "  %s\n", m->name);
        if (memmem(sums->data, sums->length, line, strlen(line)) == NULL) {
            findings_add(f, FINDING_FAILED, m->name, "its bytes are not those that %s names",
                         BUNDLE_SUMS);
            named++;
        }
    }
    if (named == 0)
        findings_add(f, FINDING_FAILED, BUNDLE_SUMS, "names members that are not there");
}

void verify_sums(const struct bundle *b, struct findings *f)
{
    const struct bundle_member *sums = bundle_find(b, BUNDLE_SUMS);
    struct buffer expected = {0};
    if (!sums) {
        findings_add(f, FINDING_FAILED, BUNDLE_SUMS, "is not in the bundle");
        return;
    }
    bundle_render_sums(b, &expected);
    if (expected.length == sums->length && memcmp(expected.data, sums->data, sums->length) == 0) {
        findings_add(f, FINDING_OK, BUNDLE_SUMS, "names all %zu members, by digests that hold",
                     b->count - 1);
    } else {
        static const char head[] = "# sha256 of the lines above: ";
        const size_t last = sizeof head - 1 + SHA256_HEX; /* with its line feed */
        const size_t above = sums->length > last ? sums->length - last : 0;
        char hex[SHA256_HEX];
        sha256_hex(sums->data, above, hex);
        const bool own = above > 0 && memcmp(sums->data + above, head, sizeof head - 1) == 0 &&
                         memcmp(sums->data + above + sizeof head - 1, hex, SHA256_HEX - 1) == 0 &&
                         sums->data[sums->length - 1] == '\n';
        blame(b, sums, own, f);
    }
    buffer_free(&expected);
}

/* ---- The score and its companions ---- */

static void read_score(struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_SCORE);
    struct error err = {0};
    if (!m) {
        findings_add(f, FINDING_FAILED, BUNDLE_SCORE, "is not in the bundle");
        return;
    }
    sha256_hex(m->data, m->length, run->score_sha256);
    if (!score_validate(m->data, m->length, &err)) {
        findings_error(f, BUNDLE_SCORE, &err);
        return;
    }
    run->score = json_parse_strict(m->data, m->length, JSON_DEPTH_DEFAULT, BUNDLE_SCORE, &err);
    run->metrics = json_object_get(run->score, "metrics");
    run->passed = json_is_true(json_object_get(run->score, "passed"));
    struct buffer again = {0};
    json_write_canonical(run->score, 2, &again);
    const bool same = again.length == m->length && memcmp(again.data, m->data, m->length) == 0;
    buffer_free(&again);
    findings_check(f, same, BUNDLE_SCORE,
                   "is a valid score in canonical form: all required keys, no unknown ones",
                   "is not in canonical form: the judge did not write these bytes");
}

static void read_sidecar(const struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_SIDECAR);
    const size_t head = SHA256_HEX + 1; /* the digest and two spaces */
    if (!m) {
        findings_add(f, FINDING_FAILED, BUNDLE_SIDECAR, "is not in the bundle");
        return;
    }
    const bool shaped =
        m->length > head + 1 && memcmp(m->data + head - 2, "  ", 2) == 0 &&
        m->data[m->length - 1] == '\n' && memchr(m->data, '\n', m->length - 1) == NULL &&
        memchr(m->data, '\0', m->length) == NULL && memchr(m->data, '/', m->length) == NULL;
    findings_check(f, shaped && memcmp(m->data, run->score_sha256, SHA256_HEX - 1) == 0,
                   BUNDLE_SIDECAR, "names the digest of score.json",
                   "does not name the digest of score.json in one line and a bare file name");
}

/* sealing-and-digests.md section 2, in its order. */
static const char *const integrity_keys[] = {"score_path",
                                             "score_sha256",
                                             "weights_path",
                                             "weights_sha256",
                                             "weights_file_count",
                                             "weights_byte_count",
                                             "golden_path",
                                             "golden_sha256",
                                             "transform_source_sha256",
                                             "candidate_executable",
                                             "candidate_executable_sha256",
                                             "baseline_executable",
                                             "baseline_executable_sha256",
                                             "candidate_executable_resolution",
                                             "benchd_executable",
                                             "benchd_executable_sha256",
                                             "candidate_workspace_sha256",
                                             "sandbox"};

static bool integrity_is_shaped(const json_t *o, const struct bundle_member *m)
{
    const size_t count = sizeof integrity_keys / sizeof integrity_keys[0];
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach((json_t *)o, key, value)
    {
        const bool number = i == 4 || i == 5;
        if (i == count || strcmp(key, integrity_keys[i]) != 0 ||
            !(number ? json_is_integer(value) : json_is_string(value)))
            return false;
        i++;
    }
    struct buffer again = {0};
    json_write_ordered(o, 2, &again);
    buffer_char(&again, '\n');
    const bool same = again.length == m->length && memcmp(again.data, m->data, m->length) == 0;
    buffer_free(&again);
    return same && i == count;
}

static void read_integrity(struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_INTEGRITY);
    struct error err = {0};
    if (!m) {
        findings_add(f, FINDING_FAILED, BUNDLE_INTEGRITY, "is not in the bundle");
        return;
    }
    sha256_hex(m->data, m->length, run->integrity_sha256);
    run->integrity = json_parse_strict(m->data, m->length, 4, BUNDLE_INTEGRITY, &err);
    if (!run->integrity) {
        findings_error(f, BUNDLE_INTEGRITY, &err);
        return;
    }
    const json_t *o = run->integrity, *metrics = run->metrics;
    if (!findings_check(f, integrity_is_shaped(o, m), BUNDLE_INTEGRITY,
                        "holds the 18 members of an integrity file, in their order",
                        "does not hold exactly the 18 members of an integrity file, in their order "
                        "and spelling"))
        return;
    findings_check(
        f, strcmp(verify_text(o, "score_sha256"), run->score_sha256) == 0, BUNDLE_INTEGRITY,
        "belongs to score.json, by its digest",
        "belongs to another score: score_sha256 is not the digest of score.json (a folder "
        "has one integrity file: one folder for each run)");
    if (!metrics)
        return;
    const bool weights =
        strcmp(verify_text(o, "weights_sha256"), verify_text(metrics, "weights_hash")) == 0 &&
        json_equal(json_object_get(o, "weights_byte_count"),
                   json_object_get(metrics, "weights_byte_count")) &&
        json_equal(json_object_get(o, "weights_file_count"),
                   json_object_get(metrics, "weights_file_count"));
    findings_check(f, weights, BUNDLE_INTEGRITY, "names the weights that score.json names",
                   "names other weights than score.json");
    findings_check(
        f, strcmp(verify_text(o, "golden_sha256"), verify_text(metrics, "golden_hash")) == 0,
        BUNDLE_INTEGRITY, "names the golden that score.json names",
        "names another golden than score.json");
}

/* ---- What the run was measured by ---- */

static void read_contract(struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_CONTRACT);
    struct error err = {0};
    if (!m) {
        findings_add(f, FINDING_SKIPPED, BUNDLE_CONTRACT, "not checked: it is not in the bundle");
        return;
    }
    sha256_hex(m->data, m->length, run->contract_sha256);
    if (!contract_parse(BUNDLE_CONTRACT, m->data, m->length, NULL, &run->contract, &err)) {
        findings_error(f, BUNDLE_CONTRACT, &err);
        return;
    }
    if (!run->metrics ||
        !digests_are(f, BUNDLE_CONTRACT, run->contract_sha256,
                     verify_text(run->metrics, "contract_sha256"), "contract that the score names"))
        return;
    json_t *sources = contract_sources(run->contract);
    findings_check(f, json_equal(sources, json_object_get(run->metrics, "contract_sources")),
                   BUNDLE_CONTRACT, "is where contract_sources says that values came from",
                   "does not declare what contract_sources says");
    json_decref(sources);
}

/* A correctness golden under the contract's rules; a golden of block decoding by its form alone. */
static bool read_golden(const struct verify_run *run, const struct bundle_member *m,
                        const char *sha256, struct error *err)
{
    const struct contract *c = run->contract;
    json_t *value = json_parse_strict(m->data, m->length, JSON_DEPTH_DEFAULT, m->name, err);
    const bool of_cases = json_object_get(value, "cases") != NULL;
    json_decref(value);
    if (!value || !c || !of_cases || !c->has_window || !c->has_model)
        return value != NULL;
    const struct golden_rules rules = {.required_steps = c->correctness_steps,
                                       .required_prompt_tokens = c->seed_tokens,
                                       .vocab_size = c->vocab_size,
                                       .required_decode_steps = 1,
                                       .required_model_type = c->golden_model_type};
    struct golden *g = NULL;
    const bool ok = golden_parse(m->name, m->data, m->length, &rules, &g, err) &&
                    contract_check_pooled(c, sha256, m->length, err);
    golden_free(g);
    return ok;
}

static const struct statement_golden *find_golden(const struct verify_run *run, const char *sha256)
{
    for (size_t i = 0; i < run->golden_count; i++)
        if (strcmp(run->goldens[i].sha256, sha256) == 0)
            return &run->goldens[i];
    return NULL;
}

/* A prompt that was drawn for the run is named nowhere: the integrity file has no path of it. */
static bool is_hidden(const struct verify_run *run)
{
    return run->integrity && !*verify_text(run->integrity, "golden_path");
}

static bool is_pinned(const struct verify_run *run, const char *sha256)
{
    const struct contract *c = run->contract;
    for (size_t i = 0; i < c->pool_count; i++)
        if (strcmp(c->pool[i].sha256, sha256) == 0)
            return true;
    return strcmp(c->hidden_golden_sha256, sha256) == 0;
}

/* A golden that is not in the bundle, and every pair's: of the contract's pool. */
static void check_pinned(const struct verify_run *run, const char *key, const char *sha256,
                         struct findings *f)
{
    const json_t *pairs = json_object_get(run->metrics, "paired_legs");
    if (!is_pinned(run, sha256)) {
        findings_add(f, FINDING_FAILED, BUNDLE_GOLDENS,
                     "%s %s was drawn for the run, and the contract's pool does not pin it", key,
                     sha256);
        return;
    }
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const char *one = verify_text(json_array_get(pairs, i), "prompt_sha256");
        if (is_pinned(run, one))
            continue;
        findings_add(f, FINDING_FAILED, BUNDLE_GOLDENS,
                     "pair %zu was measured on %s, which the contract's pool does not pin", i + 1,
                     one);
        return;
    }
    findings_add(f, FINDING_OK, BUNDLE_GOLDENS,
                 "%s %s is pinned by the contract; the golden itself is not in the bundle", key,
                 sha256);
}

static void read_goldens(struct verify_run *run, struct findings *f)
{
    for (size_t i = 0; i < run->bundle->count; i++) {
        const struct bundle_member *m = &run->bundle->members[i];
        struct error err = {0};
        if (strncmp(m->name, BUNDLE_GOLDENS, strlen(BUNDLE_GOLDENS)) != 0)
            continue;
        struct statement_golden *g = &run->goldens[run->golden_count++];
        sha256_hex(m->data, m->length, g->sha256);
        g->bytes = m->length;
        if (read_golden(run, m, g->sha256, &err))
            findings_add(f, FINDING_OK, m->name, "reads as a golden of the contract");
        else
            findings_error(f, m->name, &err);
    }
    static const char *const keys[] = {"golden_hash", "baseline_golden_sha256"};
    for (size_t i = 0; i < 2; i++) {
        const char *digest = verify_text(run->metrics, keys[i]);
        if (!*digest)
            continue;
        if (run->golden_count == 0 && run->contract && (is_hidden(run) || is_pinned(run, digest)))
            check_pinned(run, keys[i], digest, f);
        else if (run->golden_count == 0)
            findings_add(f, FINDING_SKIPPED, BUNDLE_GOLDENS,
                         "not checked: %s %s names a golden that is not in the bundle", keys[i],
                         digest);
        else if (find_golden(run, digest))
            findings_add(f, FINDING_OK, BUNDLE_GOLDENS, "hold what %s of score.json names",
                         keys[i]);
        else
            findings_add(f, FINDING_FAILED, BUNDLE_GOLDENS,
                         "do not hold what %s of score.json names, %s", keys[i], digest);
    }
}

static void read_calibration(struct verify_run *run, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_CALIBRATION);
    const char *wanted = verify_text(run->metrics, "baseline_calibration_sha256");
    if (m)
        sha256_hex(m->data, m->length, run->calibration_sha256);
    if (m)
        digests_are(f, BUNDLE_CALIBRATION, run->calibration_sha256, wanted,
                    "calibration that the score names");
    else if (*wanted)
        findings_add(f, FINDING_SKIPPED, BUNDLE_CALIBRATION,
                     "not checked: the score names one that is not in the bundle");
}

void verify_files(const struct bundle *b, struct verify_run *run, struct findings *f)
{
    *run = (struct verify_run){.bundle = b};
    read_score(run, f);
    read_sidecar(run, f);
    read_integrity(run, f);
    read_contract(run, f);
    read_goldens(run, f);
    read_calibration(run, f);
}

void verify_run_free(struct verify_run *run)
{
    json_decref(run->score);
    json_decref(run->integrity);
    contract_free(run->contract);
    *run = (struct verify_run){0};
}
