/* Who says so, and when: the statement, its signature, its place in the log; and the things that a
 * verifier has at hand. */
#include "judge/evidence/verify.h"

#include "base/file.h"
#include "judge/digest.h"
#include "judge/evidence/key.h"
#include "judge/evidence/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One member of the statement against what it speaks of. Both may be "": nothing of the kind. */
static bool agrees(struct findings *f, const char *field, const char *stated, const char *found)
{
    stated = stated ? stated : "";
    if (strcmp(stated, found) == 0)
        return true;
    return findings_add(f, FINDING_FAILED, BUNDLE_STATEMENT, "%s is %s, and the files say %s",
                        field, *stated ? stated : "null", *found ? found : "nothing");
}

static bool agrees_number(struct findings *f, const char *field, double stated, double found)
{
    return stated == found ||
           findings_add(f, FINDING_FAILED, BUNDLE_STATEMENT, "%s is %.17g, and the files say %.17g",
                        field, stated, found);
}

static bool check_goldens(const struct verify_run *run, const struct statement *s,
                          struct findings *f)
{
    bool ok = true;
    for (size_t i = 0; i < run->golden_count; i++) {
        size_t at = 0;
        while (at < s->golden_count &&
               (strcmp(s->goldens[at].sha256, run->goldens[i].sha256) != 0 ||
                s->goldens[at].bytes != run->goldens[i].bytes))
            at++;
        if (at == s->golden_count)
            ok = findings_add(f, FINDING_FAILED, BUNDLE_STATEMENT,
                              "names no golden of the digest %s, which the bundle holds",
                              run->goldens[i].sha256);
    }
    if (run->golden_count < s->golden_count)
        findings_add(f, FINDING_SKIPPED, BUNDLE_STATEMENT,
                     "not checked: %zu of its goldens are not in the bundle",
                     s->golden_count - run->golden_count);
    return ok;
}

static bool check_statement(const struct verify_run *run, const struct statement *s,
                            struct findings *f)
{
    const json_t *m = run->metrics, *in = run->integrity;
    char gates[SHA256_HEX];
    statement_gates_digest(m, gates);
    const json_t *score = json_object_get(run->score, "score");
    bool ok = agrees(f, "score_sha256", s->score_sha256, run->score_sha256);
    ok &= agrees(f, "integrity_sha256", s->integrity_sha256, run->integrity_sha256);
    ok &= agrees(f, "contract_sha256", s->contract_sha256, verify_text(m, "contract_sha256"));
    ok &= agrees(f, "calibration_sha256", s->calibration_sha256,
                 verify_text(m, "baseline_calibration_sha256"));
    ok &= agrees(f, "gates_sha256", s->gates_sha256, gates);
    ok &= agrees(f, "harness_sha256", s->harness_sha256, verify_text(m, "harness_hash"));
    ok &= agrees(f, "weights.sha256", s->weights_sha256, verify_text(m, "weights_hash"));
    ok &= agrees_number(f, "weights.bytes", (double)s->weights_bytes,
                        verify_number(m, "weights_byte_count"));
    ok &= agrees_number(f, "weights.files", (double)s->weights_files,
                        verify_number(m, "weights_file_count"));
    ok &= agrees(f, "executables.candidate", s->candidate_sha256,
                 verify_text(in, "candidate_executable_sha256"));
    /* The integrity file of `iterate` leaves the control legs' program open: the signer tells it.
     */
    if (*verify_text(in, "baseline_executable_sha256"))
        ok &= agrees(f, "executables.baseline", s->baseline_sha256,
                     verify_text(in, "baseline_executable_sha256"));
    ok &= agrees(f, "executables.benchd", s->benchd_sha256,
                 verify_text(in, "benchd_executable_sha256"));
    if (json_object_get(m, "baseline_box"))
        ok &= agrees(f, "box", s->box, verify_text(m, "baseline_box"));
    if (json_object_get(m, "dflash_weights_hash"))
        ok &= agrees(f, "drafter_sha256", s->drafter_sha256, verify_text(m, "dflash_weights_hash"));
    if (run->contract)
        ok &= agrees(f, "track_id", s->track_id, run->contract->track_id);
    ok &= agrees(f, "passed", s->passed ? "true" : "false", run->passed ? "true" : "false");
    ok &= agrees(f, "score", s->has_score ? "a number" : "null",
                 json_is_number(score) ? "a number" : "null");
    ok &= agrees_number(f, "score", s->has_score ? s->score : 0, json_number_value(score));
    ok &= check_goldens(run, s, f);
    return ok && findings_add(f, FINDING_OK, BUNDLE_STATEMENT,
                              "agrees in every member with the files that it speaks of");
}

/* ---- The signature ---- */

/* The key to check by: the verifier's own, else the bundle's. */
static bool find_key(const struct verify_run *run, const struct verify_options *o,
                     struct public_key *key, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_KEY);
    struct public_key bundled;
    struct error err = {0};
    if (m && !key_parse_public(BUNDLE_KEY, m->data, m->length, &bundled, &err))
        return findings_error(f, BUNDLE_KEY, &err);
    if (!o->public_key) {
        *key = bundled;
        return m != NULL || (findings_add(f, FINDING_SKIPPED, BUNDLE_SIGNATURE,
                                          "not checked: no public key is at hand (--public-key)"),
                             false);
    }
    if (!key_load_public(o->public_key, key, &err))
        return findings_error(f, "--public-key", &err);
    if (m && memcmp(bundled.raw, key->raw, KEY_BYTES) != 0)
        return findings_add(f, FINDING_FAILED, BUNDLE_KEY, "is key %s, not yours, %s", bundled.id,
                            key->id);
    return true;
}

static void check_signature(const struct verify_run *run, const struct verify_options *o,
                            const struct statement *s, const struct bundle_member *text,
                            struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_SIGNATURE);
    struct public_key key;
    if (!m || m->length != KEY_SIGNATURE_BYTES) {
        findings_add(f, FINDING_FAILED, BUNDLE_SIGNATURE,
                     "is not there in its 64 bytes: the statement is not signed");
        return;
    }
    if (!find_key(run, o, &key, f))
        return;
    if (strcmp(key.id, s->key) != 0) {
        findings_add(f, FINDING_FAILED, BUNDLE_STATEMENT, "names key %s; the key at hand is %s",
                     s->key, key.id);
        return;
    }
    if (!key_verify(&key, text->data, text->length, (const uint8_t *)m->data))
        findings_add(f, FINDING_FAILED, BUNDLE_SIGNATURE,
                     "is no signature of statement.json by key %s", key.id);
    else
        findings_add(f, FINDING_OK, BUNDLE_SIGNATURE, "key %s signed statement.json%s", key.id,
                     o->public_key ? ", and it is the key that you gave"
                                   : "; that the key is the organiser's is not proved: give it "
                                     "with --public-key");
}

/* ---- The log ---- */

static bool entry_agrees(const struct log_entry *e, const struct verify_run *run,
                         const struct statement *s, const char *statement_sha256)
{
    return strcmp(e->statement, statement_sha256) == 0 &&
           strcmp(e->score, run->score_sha256) == 0 && s->has_log && e->index == s->log_index &&
           strcmp(e->previous, s->log_previous) == 0;
}

static void write_root(uint64_t size, const struct merkle_hash *root, struct buffer *out)
{
    char hex[SHA256_HEX];
    text_hex(hex, root->bytes, SHA256_BYTES);
    buffer_printf(out, "%llu:%s", (unsigned long long)size, hex);
}

/* A root that was published: the proof's own, or the earlier one that it goes on from, or one of
 * the verifier's own log (l, or NULL). */
static void check_root(const struct log_inclusion *p, const struct log *l, const char *published,
                       const char *root, struct findings *f)
{
    struct buffer earlier = {0};
    struct error err = {0};
    write_root(p->before, &p->before_root, &earlier);
    if (strcmp(published, root) == 0)
        findings_add(f, FINDING_OK, "--log-root", "is the root that the proof leads to");
    else if (p->before > 0 && strcmp(published, earlier.data) == 0)
        findings_add(f, FINDING_OK, "--log-root",
                     "the log of the proof begins with those entries, and goes on behind them");
    else if (l && log_expect("--log", l, published, NULL, &err))
        findings_add(f, FINDING_OK, "--log-root", "your log begins with those entries");
    else if (l)
        findings_error(f, "--log-root", &err);
    else
        findings_add(f, FINDING_FAILED, "--log-root",
                     "is not the root that the proof leads to, nor the earlier one that it speaks "
                     "of; with --log LOG any root can be checked");
    buffer_free(&earlier);
}

/* The verifier's own copy of the log: it begins with the tree of the proof, and is whole. */
static void check_published(const struct log_inclusion *p, const struct verify_options *o,
                            struct findings *f)
{
    struct arena a = {0};
    struct log l;
    struct error err = {0};
    struct buffer root = {0};
    write_root(p->size, &p->root, &root);
    const bool whole =
        o->log && log_read(o->log, &a, &l, &err) && log_expect(o->log, &l, root.data, NULL, &err);
    if (whole)
        findings_add(f, FINDING_OK, "--log",
                     "your log of %zu entries is whole, and begins with the bundle's %llu", l.count,
                     (unsigned long long)p->size);
    else if (o->log)
        findings_error(f, "--log", &err);
    if (o->log_root)
        check_root(p, whole ? &l : NULL, o->log_root, root.data, f);
    if (!o->log && !o->log_root)
        findings_add(f, FINDING_SKIPPED, "--log",
                     "not checked: that the log with the root %s is the published one (--log, "
                     "--log-root)",
                     root.data);
    buffer_free(&root);
    arena_free(&a);
}

static void check_log(const struct verify_run *run, const struct verify_options *o,
                      const struct statement *s, const char *statement_sha256, struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_LOG);
    struct log_inclusion p;
    struct error err = {0};
    if (!m && (s->has_log || o->log || o->log_root)) {
        findings_add(f, o->log || o->log_root ? FINDING_FAILED : FINDING_SKIPPED, BUNDLE_LOG,
                     "%sthe bundle holds no proof of a place in a log",
                     o->log || o->log_root ? "" : "not checked: ");
    } else if (m && !log_inclusion_parse(BUNDLE_LOG, m->data, m->length, &p, &err)) {
        findings_error(f, BUNDLE_LOG, &err);
    } else if (m && !entry_agrees(&p.entry, run, s, statement_sha256)) {
        findings_add(f, FINDING_FAILED, BUNDLE_LOG,
                     "proves an entry of another statement, or at another place than the "
                     "statement's");
    } else if (m) {
        findings_add(f, FINDING_OK, BUNDLE_LOG, "the statement is entry %llu of a log of %llu",
                     (unsigned long long)p.entry.index, (unsigned long long)p.size);
        check_published(&p, o, f);
    } else {
        findings_add(f, FINDING_SKIPPED, BUNDLE_LOG, "not checked: the statement names no log");
    }
}

/* The verifier's own files of what the statement alone names. */
static void check_named(const struct verify_options *o, const struct statement *s,
                        struct findings *f)
{
    struct tree_digest d;
    struct error err = {0};
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    if (o->drafter && !weights_digest(o->drafter, &d, &err))
        findings_error(f, "--drafter", &err);
    else if (o->drafter)
        findings_check(f, strcmp(d.sha256, s->drafter_sha256) == 0, "--drafter",
                       "is the drafter that the statement names",
                       "is not the drafter that the statement names");
    if (o->baseline_engine && !sha256_file(o->baseline_engine, digest, NULL, &err)) {
        findings_error(f, "--baseline-engine", &err);
    } else if (o->baseline_engine) {
        text_hex(hex, digest, sizeof digest);
        findings_check(f, strcmp(hex, s->baseline_sha256) == 0, "--baseline-engine",
                       "is the control legs' engine that the statement names",
                       "is not the control legs' engine that the statement names");
    }
}

void verify_statement(const struct verify_run *run, const struct verify_options *o,
                      struct findings *f)
{
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_STATEMENT);
    struct arena a = {0};
    struct statement s;
    struct error err = {0};
    char sha256[SHA256_HEX];
    if (!m) {
        const bool asked = o->public_key || o->log || o->log_root ||
                           bundle_find(run->bundle, BUNDLE_SIGNATURE) ||
                           bundle_find(run->bundle, BUNDLE_LOG);
        findings_add(f, asked ? FINDING_FAILED : FINDING_SKIPPED, BUNDLE_STATEMENT,
                     asked ? "is not in the bundle: nobody signed for the score"
                           : "not checked: there is none; nobody signed for the score");
        return;
    }
    if (!statement_parse(BUNDLE_STATEMENT, m->data, m->length, &a, &s, &err)) {
        findings_error(f, BUNDLE_STATEMENT, &err);
    } else {
        sha256_hex(m->data, m->length, sha256);
        check_statement(run, &s, f);
        check_signature(run, o, &s, m, f);
        check_log(run, o, &s, sha256, f);
        check_named(o, &s, f);
    }
    arena_free(&a);
}

/* ---- The verifier's own files ---- */

static void check_engine(const struct verify_run *run, const struct verify_options *o,
                         struct findings *f)
{
    const char *wanted = verify_text(run->integrity, "candidate_executable_sha256");
    const struct bundle_member *m = bundle_find(run->bundle, BUNDLE_ENGINE);
    char hex[SHA256_HEX];
    uint8_t digest[SHA256_BYTES];
    struct error err = {0};
    if (m) {
        sha256_hex(m->data, m->length, hex);
        findings_check(f, strcmp(hex, wanted) == 0, BUNDLE_ENGINE, "is the engine that was judged",
                       "is not the engine that was judged, by its digest");
    }
    if (!o->engine) {
        if (!m)
            findings_add(f, FINDING_SKIPPED, "--engine",
                         "not checked: the engine is not in the bundle and was not given");
        return;
    }
    if (!sha256_file(o->engine, digest, NULL, &err)) {
        findings_error(f, "--engine", &err);
        return;
    }
    text_hex(hex, digest, sizeof digest);
    findings_check(f, strcmp(hex, wanted) == 0, "--engine", "is the engine that was judged",
                   "is not the engine that was judged, by its digest");
}

void verify_machine(const struct verify_run *run, const struct verify_options *o,
                    struct findings *f)
{
    struct tree_digest d;
    struct error err = {0};
    check_engine(run, o, f);
    if (!o->weights) {
        findings_add(f, FINDING_SKIPPED, "--weights",
                     "not checked: the weights were not given; their digest is %s",
                     verify_text(run->metrics, "weights_hash"));
    } else if (!weights_digest(o->weights, &d, &err)) {
        findings_error(f, "--weights", &err);
    } else {
        const bool same = strcmp(d.sha256, verify_text(run->metrics, "weights_hash")) == 0 &&
                          (double)d.bytes == verify_number(run->metrics, "weights_byte_count") &&
                          (double)d.files == verify_number(run->metrics, "weights_file_count");
        findings_check(f, same, "--weights", "are the weights that were judged",
                       "are not the weights that were judged, by their digest");
    }
    if ((o->drafter || o->baseline_engine) && !bundle_find(run->bundle, BUNDLE_STATEMENT))
        findings_add(f, FINDING_FAILED, o->drafter ? "--drafter" : "--baseline-engine",
                     "no statement names it");
}

void verify_bundle(const struct bundle *b, const struct verify_options *o, struct findings *f)
{
    struct verify_run run;
    verify_sums(b, f);
    verify_files(b, &run, f);
    verify_statement(&run, o, f);
    if (run.metrics) {
        verify_score(&run, f);
        verify_statistics(&run, f);
        verify_gates(&run, f);
    }
    verify_machine(&run, o, f);
    verify_run_free(&run);
}
