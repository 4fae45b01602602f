/* Signing: the files held against each other, the statement, the signature, the log's entry. */
#include "judge/evidence/evidence.h"

#include "base/clock.h"
#include "base/file.h"
#include "judge/commit.h"
#include "judge/digest.h"
#include "judge/evidence/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *evidence_key_of(const char *flag)
{
    const char *value = flag ? flag : getenv("MLXFAST_SIGNING_KEY");
    return value && *value ? value : NULL;
}

const char *evidence_log_of(const char *flag)
{
    const char *value = flag ? flag : getenv("MLXFAST_SIGNING_LOG");
    return value && *value ? value : NULL;
}

bool evidence_ready(const char *key, const char *log, struct error *err)
{
    struct private_key *k = NULL;
    struct log_writer *w = NULL;
    if (key == NULL && log != NULL) {
        error_set(err, "USAGE", "a log takes signed statements only: a key is missing");
        return error_at(err, NULL, "--log", log);
    }
    const bool ok =
        (key == NULL || key_load_private(key, &k, err)) && (log == NULL || log_open(log, &w, err));
    log_close(w);
    key_free(k);
    return ok;
}

static bool mismatch(struct error *err, const char *file, const char *what)
{
    error_set(err, "EVIDENCE-MISMATCH", "%s", what);
    return error_at(err, file, NULL, NULL);
}

/* Of the sources of this program; "": not known. */
static const char *own_commit(struct arena *a)
{
    char commit[COMMIT_HEX];
    return commit_find_own(commit) ? arena_strdup(a, commit) : "";
}

/* As a verifier would: whatever fails, or what a statement must name and was not given. */
static bool check_files(const struct evidence_signing *in, const struct verify_run *run,
                        const struct findings *f, struct error *err)
{
    const struct finding *first = findings_first_failure(f);
    const char *box = verify_text(run->metrics, "baseline_box");
    if (first) {
        error_set(err, "EVIDENCE-MISMATCH", "%s: %s", first->subject, first->text);
        return error_at(err, in->files.score, NULL, NULL);
    }
    if (run->contract == NULL)
        return mismatch(err, in->files.score, "a statement needs the contract of the score");
    if (*verify_text(run->metrics, "golden_hash") && run->golden_count == 0)
        return mismatch(err, in->files.score, "a statement needs the goldens of the score");
    if (*verify_text(run->metrics, "baseline_calibration_sha256") && !in->files.calibration)
        return mismatch(err, in->files.score,
                        "the score names a calibration, and none was given to sign for");
    if (in->box && *box && strcmp(in->box, box) != 0)
        return mismatch(err, in->files.score, "the score was measured on another box");
    return true;
}

/* Everything but the place in the log. */
static bool fill(const struct evidence_signing *in, const struct verify_run *run,
                 const char *key_id, struct arena *a, struct statement *s, struct error *err)
{
    const json_t *m = run->metrics, *integrity = run->integrity;
    const json_t *score = json_object_get(run->score, "score");
    char gates[SHA256_HEX], when[32];
    struct tree_digest drafter = {0};
    char baseline[SHA256_HEX];
    uint8_t digest[SHA256_BYTES];
    text_copy(baseline, sizeof baseline, verify_text(integrity, "baseline_executable_sha256"));
    if ((in->drafter && !weights_digest(in->drafter, &drafter, err)) ||
        (in->baseline_engine && !sha256_file(in->baseline_engine, digest, NULL, err)))
        return false;
    if (in->baseline_engine)
        text_hex(baseline, digest, sizeof digest);
    statement_gates_digest(m, gates);
    const char *box = verify_text(m, "baseline_box");
    *s = (struct statement){
        .box = *box ? box : in->box,
        .key = key_id,
        .source_commit = in->source_commit ? in->source_commit : own_commit(a),
        .time = arena_strdup(a, clock_utc_text(when, sizeof when)),
        .track_id = run->contract->track_id,
        .score_sha256 = run->score_sha256,
        .integrity_sha256 = run->integrity_sha256,
        .contract_sha256 = run->contract_sha256,
        .calibration_sha256 = run->calibration_sha256,
        .drafter_sha256 = arena_strdup(a, drafter.sha256),
        .gates_sha256 = arena_strdup(a, gates),
        .harness_sha256 = verify_text(m, "harness_hash"),
        .baseline_sha256 = arena_strdup(a, baseline),
        .benchd_sha256 = verify_text(integrity, "benchd_executable_sha256"),
        .candidate_sha256 = verify_text(integrity, "candidate_executable_sha256"),
        .weights_sha256 = verify_text(m, "weights_hash"),
        .weights_bytes = (uint64_t)json_integer_value(json_object_get(m, "weights_byte_count")),
        .weights_files = (uint64_t)json_integer_value(json_object_get(m, "weights_file_count")),
        .golden_count = run->golden_count,
        .passed = run->passed,
        .has_score = json_is_number(score),
        .score = json_number_value(score)};
    memcpy(s->goldens, run->goldens, run->golden_count * sizeof *s->goldens);
    return true;
}

/* A statement without its signature is never there: the signature goes first and comes last. */
static bool write_pair(const char *statement_path, const char *signature_path,
                       const struct buffer *text, const uint8_t signature[KEY_SIGNATURE_BYTES],
                       struct error *err)
{
    if (file_write_atomic(statement_path, text->data, text->length, err) &&
        file_write_atomic(signature_path, signature, KEY_SIGNATURE_BYTES, err))
        return true;
    unlink(statement_path);
    return false;
}

static void take_root(const struct log *l, char out[SHA256_HEX])
{
    struct merkle_hash root;
    log_root(l, l->count, &root);
    text_hex(out, root.bytes, SHA256_BYTES);
}

static bool sign(const struct evidence_signing *in, const struct verify_run *run,
                 const struct private_key *key, struct log_writer *log, struct arena *a,
                 struct evidence_signed *out, struct error *err)
{
    const char *statement_path = arena_printf(a, "%s.statement.json", in->files.score);
    const char *signature_path = arena_printf(a, "%s.statement.sig", in->files.score);
    struct statement s;
    struct buffer text = {0};
    uint8_t signature[KEY_SIGNATURE_BYTES];
    if (!fill(in, run, key_public(key)->id, a, &s, err))
        return false;
    if (log) {
        s.has_log = true;
        s.log_index = log_of(log)->count;
        s.log_previous = log_head(log_of(log));
    }
    statement_render(&s, &text);
    key_sign(key, text.data, text.length, signature);
    sha256_hex(text.data, text.length, out->statement_sha256);
    text_copy(out->key, sizeof out->key, key_public(key)->id);
    unlink(signature_path);
    bool ok = write_pair(statement_path, signature_path, &text, signature, err);
    if (ok && log) {
        ok = log_append(log, out->statement_sha256, run->score_sha256, &out->entry, err);
        if (ok) {
            out->logged = true;
            take_root(log_of(log), out->root);
        } else {
            unlink(signature_path);
            unlink(statement_path);
        }
    }
    buffer_free(&text);
    return ok;
}

bool evidence_sign(const struct evidence_signing *in, struct evidence_signed *out,
                   struct error *err)
{
    struct arena a = {0};
    struct bundle b;
    struct verify_run run = {0};
    struct findings f = {0};
    struct private_key *key = NULL;
    struct log_writer *log = NULL;
    *out = (struct evidence_signed){0};
    bool ok = key_load_private(in->key, &key, err) && evidence_gather(&in->files, &a, &b, err);
    if (ok) {
        verify_files(&b, &run, &f);
        if (run.metrics)
            verify_score(&run, &f);
        ok = check_files(in, &run, &f, err) && (!in->log || log_open(in->log, &log, err)) &&
             sign(in, &run, key, log, &a, out, err);
    }
    log_close(log);
    key_free(key);
    verify_run_free(&run);
    findings_free(&f);
    arena_free(&a);
    return ok;
}
