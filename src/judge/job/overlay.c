/* `benchd overlay-timing`: its files, its environment, its command line. */
#include "judge/job/overlay.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/job/inputs.h"
#include "judge/seal.h"
#include "judge/tools.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENT_MAX = 64 << 20, SIDECAR_MAX = 8192, COUNT_MOST = 1000000 };

struct overlay {
    const struct overlay_options *o;
    struct arena arena;
    struct contract *contract;
    struct tree_digest harness;
    struct overlay_rules rules;
    json_t *gates, *results, *integrity;
};

/* ---- the environment ---- */

static bool read_count(const char *name, size_t otherwise, size_t *out, struct error *err)
{
    const char *text = getenv(name);
    uint64_t value;
    *out = otherwise;
    if (text == NULL || *text == '\0')
        return true;
    if (!number_uint64(text, COUNT_MOST, &value) || value == 0) {
        error_set(err, "USAGE", "%s is an integer from 1 to %d", name, COUNT_MOST);
        return error_at(err, NULL, name, text);
    }
    *out = (size_t)value;
    return true;
}

static bool read_rules(struct overlay *v, struct error *err)
{
    const char *series = getenv("MLXFAST_QWEN_MTP_TIMED_SERIES");
    struct overlay_rules *r = &v->rules;
    r->track_id = v->contract->track_id;
    r->contract_sha256 = v->contract->sha256;
    r->timed_series = series != NULL && *series != '\0' ? series : NULL;
    r->harness_hash = v->harness.sha256;
    return job_contract_exponents(v->contract, &r->prefill_exponent, &r->decode_exponent, err) &&
           read_count("MLXFAST_QWEN_MTP_POOL_SIZE",
                      v->contract->pool_count > 0 ? v->contract->pool_count : 1, &r->pool_size,
                      err) &&
           read_count("MLXFAST_QWEN_MTP_MIN_PAIRS_PER_PROMPT", 1, &r->min_pairs_per_prompt, err);
}

/* ---- the files ---- */

static bool refuse_file(struct error *err, const char *name, const char *path)
{
    const struct error inner = *err;
    error_set(err, name, "%s", inner.message);
    return error_at(err, path, inner.field, inner.value);
}

/* A gates-only score is a score: its keys and types are the score's. */
static bool read_gates(struct overlay *v, struct error *err)
{
    struct buffer text = {0};
    const char *path = v->o->gates_score;
    bool ok = file_read(path, DOCUMENT_MAX, &text, err);
    if (ok && !score_validate(text.data != NULL ? text.data : "", text.length, err))
        ok = refuse_file(err, "SCORE-INVALID", path);
    if (ok)
        v->gates = json_parse_strict(text.data, text.length, JSON_DEPTH_DEFAULT, path, err);
    buffer_free(&text);
    return ok && v->gates != NULL;
}

/* The sidecar, where there is one, must be that of these bytes. */
static bool check_sidecar(struct overlay *v, const struct buffer *text, struct error *err)
{
    struct buffer line = {0};
    char sha256[SHA256_HEX];
    const char *path = arena_printf(&v->arena, "%s.sha256", v->o->results);
    if (!file_exists(path))
        return true;
    sha256_hex(text->data, text->length, sha256);
    bool ok = file_read(path, SIDECAR_MAX, &line, err);
    if (ok && (line.length < 64 || memcmp(line.data, sha256, 64) != 0)) {
        error_set(err, "OVERLAY-RESULTS-REFUSED", "the results are not those of their sidecar");
        ok = error_at(err, path, NULL, sha256);
    }
    buffer_free(&line);
    return ok;
}

static bool read_results(struct overlay *v, struct error *err)
{
    struct buffer text = {0};
    const char *path = v->o->results;
    bool ok = file_read(path, DOCUMENT_MAX, &text, err);
    if (ok) {
        v->results = json_parse_strict(text.data != NULL ? text.data : "", text.length,
                                       JSON_DEPTH_DEFAULT, path, err);
        ok = v->results != NULL && check_sidecar(v, &text, err);
    }
    buffer_free(&text);
    return ok;
}

static bool read_integrity(struct overlay *v, struct error *err)
{
    const char *path = v->o->integrity;
    if (path == NULL) {
        v->integrity = json_object();
        return true;
    }
    v->integrity = json_read_file(path, DOCUMENT_MAX, JSON_DEPTH_DEFAULT, err);
    if (v->integrity == NULL || json_is_object(v->integrity))
        return v->integrity != NULL;
    error_set(err, "JSON-FIELD-TYPE", "an integrity record is an object");
    return error_at(err, path, "(root)", NULL);
}

/* The score, its sidecar, and the record with these two members new and the rest kept. */
static bool write_score(struct overlay *v, struct score_document *d, struct error *err)
{
    struct buffer text = {0}, record = {0};
    char sha256[SHA256_HEX];
    const char *path = v->o->score_path;
    bool ok = score_render(d, &text, err);
    if (ok) {
        sha256_hex(text.data, text.length, sha256);
        json_object_set_new(v->integrity, "score_path",
                            json_string(seal_published_path(&v->arena, path)));
        json_object_set_new(v->integrity, "score_sha256", json_string(sha256));
        json_write_ordered(v->integrity, 2, &record);
        buffer_char(&record, '\n');
        ok = seal_write_bytes(path, "benchmark-integrity.json", &text, &record, err);
    }
    buffer_free(&text);
    buffer_free(&record);
    return ok;
}

static bool in_file(bool ok, const char *path, struct error *err)
{
    return ok || error_at(err, path, NULL, NULL);
}

static bool open_all(struct overlay *v, struct overlay_outcome *out, struct error *err)
{
    const struct overlay_options *o = v->o;
    const char *track;
    return contract_track_from_environment(&track, err) &&
           contract_load(o->contract, track, &v->contract, err) &&
           contract_require_paired_flow(v->contract, err) &&
           contract_require_official_scoring(v->contract, err) && read_gates(v, err) &&
           read_results(v, err) && read_integrity(v, err) &&
           harness_hash(".", NULL, &v->harness, err) && read_rules(v, err) &&
           in_file(overlay_check_gates(v->gates, &v->rules, err), o->gates_score, err) &&
           in_file(overlay_check_both(v->gates, v->results, &v->rules, err), o->results, err) &&
           in_file(overlay_check_results(v->results, &v->rules, out, err), o->results, err);
}

static enum overlay_exit run(struct overlay *v, struct error *err)
{
    struct overlay_outcome outcome;
    struct score_document d;
    struct error failed = {0};
    if (!open_all(v, &outcome, err))
        return strcmp(err->name, "USAGE") == 0 ? OVERLAY_USAGE : OVERLAY_FAILED;
    const bool passed = overlay_apply(v->gates, v->results, &outcome, &d, &failed);
    const bool written = write_score(v, &d, err);
    score_document_free(&d);
    if (written && !passed)
        *err = failed;
    if (!written || !passed)
        return OVERLAY_FAILED;
    printf("overlay-timing: score %.6f\n", outcome.score);
    return OVERLAY_PASSED;
}

enum overlay_exit overlay_run(const struct overlay_options *o, struct error *err)
{
    struct overlay v = {.o = o};
    const enum overlay_exit code = run(&v, err);
    json_decref(v.gates);
    json_decref(v.results);
    json_decref(v.integrity);
    if (v.contract != NULL)
        contract_free(v.contract);
    arena_free(&v.arena);
    return code;
}

int tool_overlay_timing(int argc, char **argv)
{
    static const char tool[] = "overlay-timing";
    struct overlay_options o = {0};
    const struct option_spec options[] = {
        {"--gates-score", OPTION_TEXT, true, "FILE", "The gates-only score.", &o.gates_score, NULL,
         0, 0},
        {"--results", OPTION_TEXT, true, "FILE",
         "results.json of measure-job; its sidecar, where there is one, must agree.", &o.results,
         NULL, 0, 0},
        {"--score-path", OPTION_TEXT, true, "FILE",
         "Where the timed score goes; its sidecar and benchmark-integrity.json go beside it.",
         &o.score_path, NULL, 0, 0},
        {"--contract", OPTION_TEXT, true, "FILE", "The track's contract.", &o.contract, NULL, 0, 0},
        {"--integrity", OPTION_TEXT, false, "FILE",
         "An integrity record whose members are kept, the score's path and digest apart.",
         &o.integrity, NULL, 0, 0},
    };
    const struct command command = {
        "benchd overlay-timing",
        "Joins a gates-only score with the results of measure-job (the older paired flow).",
        "Run it where the gates were run: the harness hash is computed anew in the working "
        "folder.\n"
        "Exit: 0 passed, 1 refused (nothing is written) or below the floor or above the ceiling "
        "(a failing score is), 2 usage.\n"
        "Environment: MLXFAST_QWEN_MTP_TRACK_ID must be the contract's where set; "
        "MLXFAST_QWEN_MTP_POOL_SIZE (the contract's pool) and "
        "MLXFAST_QWEN_MTP_MIN_PAIRS_PER_PROMPT (1) say how many pairs are needed; "
        "MLXFAST_QWEN_MTP_TIMED_SERIES is the way of timing that is asked for.",
        NULL,
        options,
        sizeof options / sizeof *options};
    struct error err = {0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    code = (int)overlay_run(&o, &err);
    if (code != OVERLAY_PASSED)
        tool_complain(tool, &err);
    return code;
}
