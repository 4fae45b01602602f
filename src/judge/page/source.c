/* Reading what a report is made from. */
#include "judge/page/source.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "judge/score.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Steps and telemetry of a long run are some megabytes. */
enum { SCORE_BYTES_MAX = 64 << 20, BENCH_BYTES_MAX = 8 << 20, SIDECAR_BYTES_MAX = 8192 };

double source_real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *source_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

bool source_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

size_t source_size(const json_t *object, const char *key)
{
    return json_array_size(json_object_get(object, key));
}

static enum source_sidecar read_sidecar(struct arena *a, const struct source_score *s)
{
    struct buffer text = {0};
    const char *path = arena_printf(a, "%s.sha256", s->path);
    enum source_sidecar found = SIDECAR_ABSENT;
    if (file_exists(path))
        found = file_read(path, SIDECAR_BYTES_MAX, &text, NULL) && text.length >= 64 &&
                        memcmp(text.data, s->sha256, 64) == 0
                    ? SIDECAR_HOLDS
                    : SIDECAR_DIFFERS;
    buffer_free(&text);
    return found;
}

static bool read_score(struct arena *a, const char *path, struct source_score *out,
                       struct error *err)
{
    struct buffer bytes = {0};
    bool ok = file_read(path, SCORE_BYTES_MAX, &bytes, err);
    const char *data = bytes.data ? bytes.data : "";
    if (ok && !score_validate(data, bytes.length, err))
        ok = error_at(err, path, NULL, NULL);
    if (ok) {
        *out = (struct source_score){.path = path, .name = path_basename(path)};
        sha256_hex(data, bytes.length, out->sha256);
        out->document = json_parse_strict(data, bytes.length, JSON_DEPTH_DEFAULT, path, err);
        ok = out->document != NULL;
        out->metrics = json_object_get(out->document, "metrics");
        out->sidecar = read_sidecar(a, out);
    }
    buffer_free(&bytes);
    return ok;
}

static bool bad_bench(struct error *err, const char *path, const char *field, const char *what)
{
    error_set(err, "REPORT-BENCH-INVALID", "%s", what);
    return error_at(err, path, field, NULL);
}

/* A number of an amount or a time: never below 0. */
static bool check_amount(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) >= 0;
}

static bool check_decode(const struct report_source *r, const json_t *decode, size_t index,
                         struct error *err)
{
    static const char *const amounts[] = {"context",
                                          "tokens_per_second",
                                          "step_seconds_median",
                                          "best_read_bytes_per_second",
                                          "roofline_tokens_per_second",
                                          "share_of_roofline"};
    static const char *const part_amounts[] = {"seconds", "share", "bytes", "bytes_per_second"};
    char field[200];
    for (size_t i = 0; i < sizeof amounts / sizeof amounts[0]; i++)
        if (!check_amount(json_object_get(decode, amounts[i]))) {
            snprintf(field, sizeof field, "decode[%zu].%s", index, amounts[i]);
            return bad_bench(err, r->bench_path, field, "a number, 0 or more, must stand there");
        }
    const json_t *parts = json_object_get(decode, "parts");
    snprintf(field, sizeof field, "decode[%zu].parts", index);
    if (!json_is_object(parts) || json_object_size(parts) == 0 || json_object_size(parts) > 64)
        return bad_bench(err, r->bench_path, field, "an object of 1 to 64 parts must stand there");
    const char *name;
    json_t *part;
    json_object_foreach((json_t *)parts, name,
                        part) for (size_t i = 0; i < sizeof part_amounts / sizeof part_amounts[0];
                                   i++) if (!check_amount(json_object_get(part, part_amounts[i])))
    {
        snprintf(field, sizeof field, "decode[%zu].parts.%.100s.%s", index, name, part_amounts[i]);
        return bad_bench(err, r->bench_path, field, "a number, 0 or more, must stand there");
    }
    return true;
}

static bool read_bench(struct report_source *r, const char *path, struct error *err)
{
    r->bench_path = path;
    r->bench = json_read_file(path, BENCH_BYTES_MAX, JSON_DEPTH_DEFAULT, err);
    if (!r->bench)
        return false;
    const json_t *decode = json_object_get(r->bench, "decode");
    if (json_integer_value(json_object_get(r->bench, "bench")) != 1)
        return bad_bench(err, path, "bench",
                         "must be 1: what `bench-worker bench --json` writes is meant");
    if (!json_is_array(decode) || json_array_size(decode) == 0 || json_array_size(decode) > 32)
        return bad_bench(err, path, "decode", "an array of 1 to 32 measurements must stand there");
    for (size_t i = 0; i < json_array_size(decode); i++)
        if (!check_decode(r, json_array_get(decode, i), i, err))
            return false;
    return true;
}

static bool read_contract(struct report_source *r, const char *path, struct error *err)
{
    if (!contract_load(path, NULL, &r->contract, err))
        return false;
    const char *sealed = source_text(r->score.metrics, "contract_sha256");
    if (*sealed == '\0' || strcmp(sealed, r->contract->sha256) == 0)
        return true;
    error_set(err, "REPORT-CONTRACT-MISMATCH",
              "the score was sealed under another contract: this file's SHA-256 is %s",
              r->contract->sha256);
    return error_at(err, path, "contract_sha256", sealed);
}

/* Files of one name from several folders are told by their paths. */
static void name_apart(struct report_source *r)
{
    bool same = false;
    for (size_t i = 0; i < r->other_count; i++) {
        same |= strcmp(r->others[i].name, r->score.name) == 0;
        for (size_t k = 0; k < i; k++)
            same |= strcmp(r->others[i].name, r->others[k].name) == 0;
    }
    if (!same)
        return;
    r->score.name = r->score.path;
    for (size_t i = 0; i < r->other_count; i++)
        r->others[i].name = r->others[i].path;
}

bool source_read(const struct source_paths *paths, struct report_source *out, struct error *err)
{
    *out = (struct report_source){0};
    out->others = arena_array(&out->arena, paths->other_count + 1, sizeof *out->others);
    if (!read_score(&out->arena, paths->score, &out->score, err))
        return false;
    for (size_t i = 0; i < paths->other_count; i++) {
        if (!read_score(&out->arena, paths->others[i], &out->others[i], err))
            return false;
        out->other_count++;
    }
    name_apart(out);
    return (!paths->contract || read_contract(out, paths->contract, err)) &&
           (!paths->bench || read_bench(out, paths->bench, err));
}

void source_free(struct report_source *r)
{
    json_decref(r->score.document);
    for (size_t i = 0; i < r->other_count; i++)
        json_decref(r->others[i].document);
    json_decref(r->bench);
    contract_free(r->contract);
    arena_free(&r->arena);
}
