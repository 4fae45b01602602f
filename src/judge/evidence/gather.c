/* From files to members, and from members to a bundle. */
#include "judge/evidence/evidence.h"

#include "base/file.h"
#include "base/json.h"
#include "judge/evidence/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole file as a member; the bytes are the arena's. */
static bool add_file(struct bundle *b, const char *name, const char *path, struct arena *a,
                     struct error *err)
{
    struct buffer text = {0};
    const bool ok = file_read(path, BUNDLE_MEMBER_BYTES_MOST, &text, err);
    if (ok)
        bundle_add(b, name, text.length ? arena_strndup(a, text.data, text.length) : "",
                   text.length);
    buffer_free(&text);
    return ok;
}

static bool names_score(const char *data, size_t length, const char *score_sha256)
{
    json_t *o = json_parse_strict(data, length, 4, NULL, NULL);
    const bool ok = strcmp(verify_text(o, "score_sha256"), score_sha256) == 0;
    json_decref(o);
    return ok;
}

/* The integrity file beside the score that names it. */
static const char *find_integrity(const char *score, const char *score_sha256, struct arena *a)
{
    static const char *const names[] = {"benchmark-integrity.json",
                                        "benchmark-integrity.local-iterate.json"};
    const size_t folder = (size_t)(path_basename(score) - score);
    const char *found = NULL;
    for (size_t i = 0; i < 2; i++) {
        const char *path =
            arena_printf(a, "%s%s", folder ? arena_strndup(a, score, folder) : "", names[i]);
        struct buffer text = {0};
        const bool there = file_read(path, 1 << 20, &text, NULL) && text.length;
        const bool right = there && names_score(text.data, text.length, score_sha256);
        /* Where neither is right, one that is there is what is wrong. */
        if (right || !found || (there && !file_exists(found)))
            found = path;
        buffer_free(&text);
        if (right)
            break;
    }
    return found;
}

bool evidence_gather(const struct evidence_files *files, struct arena *a, struct bundle *out,
                     struct error *err)
{
    out->count = 0;
    if (files->golden_count > STATEMENT_GOLDENS_MOST) {
        error_set(err, "BUNDLE-INVALID", "at most %d goldens can be named", STATEMENT_GOLDENS_MOST);
        return error_at(err, NULL, "--golden", NULL);
    }
    if (!add_file(out, BUNDLE_SCORE, files->score, a, err) ||
        !add_file(out, BUNDLE_SIDECAR, arena_printf(a, "%s.sha256", files->score), a, err))
        return false;
    const struct bundle_member *score = bundle_find(out, BUNDLE_SCORE);
    char sha256[SHA256_HEX];
    sha256_hex(score->data, score->length, sha256);
    const char *integrity =
        files->integrity ? files->integrity : find_integrity(files->score, sha256, a);
    if (!add_file(out, BUNDLE_INTEGRITY, integrity, a, err) ||
        (files->contract && !add_file(out, BUNDLE_CONTRACT, files->contract, a, err)) ||
        (files->calibration && !add_file(out, BUNDLE_CALIBRATION, files->calibration, a, err)) ||
        (files->results && !add_file(out, BUNDLE_RESULTS, files->results, a, err)))
        return false;
    for (size_t i = 0; i < files->golden_count; i++)
        if (!add_file(out, arena_printf(a, BUNDLE_GOLDENS "%02zu.json", i + 1), files->goldens[i],
                      a, err))
            return false;
    return true;
}

/* What the statement is of, where it stands beside the score. */
static bool add_statement(const struct evidence_packing *in, struct arena *a, struct bundle *b,
                          struct error *err)
{
    const char *statement = arena_printf(a, "%s.statement.json", in->files.score);
    const char *signature = arena_printf(a, "%s.statement.sig", in->files.score);
    if (file_exists(statement) && (!add_file(b, BUNDLE_STATEMENT, statement, a, err) ||
                                   !add_file(b, BUNDLE_SIGNATURE, signature, a, err)))
        return false;
    return (!in->public_key || add_file(b, BUNDLE_KEY, in->public_key, a, err)) &&
           (!in->engine || add_file(b, BUNDLE_ENGINE, in->engine, a, err));
}

static bool add_proof(const char *path, const char *earlier, struct arena *a, struct bundle *b,
                      struct error *err)
{
    size_t before = 0;
    const struct bundle_member *m = bundle_find(b, BUNDLE_STATEMENT);
    struct log l;
    struct log_inclusion p;
    struct buffer text = {0};
    char sha256[SHA256_HEX];
    if (!log_read(path, a, &l, err) || (earlier && !log_expect(path, &l, earlier, &before, err)))
        return false;
    sha256_hex(m ? m->data : "", m ? m->length : 0, sha256);
    const struct log_entry *e = m ? log_find(&l, sha256) : NULL;
    if (!e) {
        error_set(err, "EVIDENCE-MISMATCH",
                  m ? "the log holds no entry of the score's statement"
                    : "a log proves the place of a statement, and there "
                      "is none beside the score");
        return error_at(err, path, "--log", NULL);
    }
    log_prove(&l, e, before, &p);
    log_inclusion_render(&p, &text);
    bundle_add(b, BUNDLE_LOG, arena_strndup(a, text.data, text.length), text.length);
    buffer_free(&text);
    return true;
}

static bool check_weights(const struct bundle *b, const char *digest, struct error *err)
{
    const struct bundle_member *m = bundle_find(b, BUNDLE_SCORE);
    json_t *score = json_parse_strict(m->data, m->length, JSON_DEPTH_DEFAULT, BUNDLE_SCORE, NULL);
    const json_t *metrics = json_object_get(score, "metrics");
    char text[160];
    snprintf(text, sizeof text, "%s:%lld:%lld", verify_text(metrics, "weights_hash"),
             (long long)json_integer_value(json_object_get(metrics, "weights_byte_count")),
             (long long)json_integer_value(json_object_get(metrics, "weights_file_count")));
    json_decref(score);
    if (strcmp(text, digest) == 0)
        return true;
    error_set(err, "EVIDENCE-MISMATCH", "the score was measured on the weights %s", text);
    return error_at(err, NULL, "--weights-digest", digest);
}

bool evidence_pack(const struct evidence_packing *in, struct buffer *out, struct error *err)
{
    struct arena a = {0};
    struct bundle b;
    struct findings f = {0};
    struct buffer sums = {0};
    const struct verify_options o = {.public_key = in->public_key, .log = in->log};
    bool ok = in->log || !in->log_root ||
              error_set(err, "USAGE", "--log-root is a root of --log, which is not given");
    ok = ok && evidence_gather(&in->files, &a, &b, err) && add_statement(in, &a, &b, err) &&
         (!in->log || add_proof(in->log, in->log_root, &a, &b, err)) &&
         (!in->weights_digest || check_weights(&b, in->weights_digest, err));
    if (ok) {
        bundle_render_sums(&b, &sums);
        bundle_add(&b, BUNDLE_SUMS, sums.data, sums.length);
        verify_bundle(&b, &o, &f);
        const struct finding *first = findings_first_failure(&f);
        if (first) {
            error_set(err, "EVIDENCE-MISMATCH", "%s: %s", first->subject, first->text);
            ok = error_at(err, in->files.score, NULL, NULL);
        } else {
            bundle_write(&b, out);
        }
    }
    if (ok && out->length > BUNDLE_BYTES_MOST) {
        error_set(err, "BUNDLE-INVALID", "larger than a bundle may be (512 MiB)");
        ok = error_at(err, in->files.score, NULL, NULL);
    }
    findings_free(&f);
    buffer_free(&sums);
    arena_free(&a);
    return ok;
}
