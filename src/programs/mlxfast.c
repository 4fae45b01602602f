/* mlxfast, the participant's program: a table of subcommands. */
#include "arena/doctor/doctor.h"
#include "arena/doctor/libraries.h"
#include "arena/fetch/fetch.h"
#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/options.h"
#include "base/standard.h"
#include "engine/compute/blocks.h"
#include "engine/compute/cpu/bandwidth.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/memory/cores.h"
#include "engine/memory/limits.h"
#include "engine/memory/pages.h"
#include "engine/memory/system.h"
#include "engine/transform/convert_drafter.h"
#include "engine/transform/preflight.h"
#include "engine/transform/transform.h"
#include "engine/transform/verify_transform.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

static const char *program_name = "mlxfast"; /* as it was called, for commands that are named */

static int fail(const char *command, const struct error *err)
{
    char line[2048];
    fprintf(stderr, "%s: %s\n", command, error_line(err, line, sizeof line));
    if (strcmp(err->name, "USAGE") == 0) {
        fprintf(stderr, "try: %s --help\n", command);
        return EXIT_USAGE;
    }
    return strcmp(err->name, "INTERRUPTED") == 0 ? EXIT_INTERRUPTED : EXIT_FAILED;
}

/* ---- convert-drafter ---- */

static struct convert_drafter_options convert;
static bool convert_json;

static const struct option_spec convert_specs[] = {
    {"--source", OPTION_TEXT, true, "DIR",
     "The drafter as published: config.json and one model.safetensors with q, k and v of a layer "
     "in one tensor.",
     &convert.source, NULL, 0, 0},
    {"--out", OPTION_TEXT, true, "DIR",
     "The folder to make. One that is there is left alone: it is compared, and refused unless it "
     "holds this very conversion.",
     &convert.out, NULL, 0, 0},
    {"--source-repo", OPTION_TEXT, false, "R",
     "The repository that the result names as its origin. Default: that of a published source, "
     "known by its SHA-256, else unknown.",
     &convert.source_repo, NULL, 0, 0},
    {"--source-revision", OPTION_TEXT, false, "SHA", "Its revision; the same default.",
     &convert.source_revision, NULL, 0, 0},
    {"--converted-at", OPTION_TEXT, false, "TIME",
     "The time that config.json records, such as 2026-07-27T04:23:30Z. Default: that of the "
     "published repack of this source, else of the folder that is there, else now.",
     &convert.converted_at, NULL, 0, 0},
    {"--expect-source-sha256", OPTION_TEXT, false, "H",
     "Pin of the source's model.safetensors, checked before anything is written.",
     &convert.expect_source_sha256, NULL, 0, 0},
    {"--expect-sha256", OPTION_TEXT, false, "H",
     "Pin of the result's model.safetensors, checked before it is put in place.",
     &convert.expect_sha256, NULL, 0, 0},
    {"--verify-only", OPTION_SWITCH, false, NULL,
     "Write nothing: --out must hold this conversion already.", &convert.verify_only, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object on stdout instead of lines.",
     &convert_json, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress on stderr; errors only.", &convert.quiet,
     NULL, 0, 0},
};

static const struct command convert_command = {
    .name = "mlxfast convert-drafter",
    .summary = "Splits the fused q, k and v of a published DFlash drafter: a copy of its bytes in "
               "the layout that the track pins.",
    .notes = "Exit codes: 0 the folder is there and right; 1 refused or failed; 2 usage; 130 "
             "interrupted.\n"
             "Files: the two of --out, made in <out>.tmp.<pid> beside it and renamed when they are "
             "whole, on the disk and as pinned.",
    .options = convert_specs,
    .option_count = sizeof convert_specs / sizeof *convert_specs};

static void print_json(const struct convert_drafter_result *r)
{
    json_t *o = json_pack(
        "{s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s}", "out",
        convert.out, "verified_only", convert.verify_only, "written", r->written, "published",
        r->published, "source_tensors", (json_int_t)r->source_tensors, "ignored_tensors",
        (json_int_t)r->ignored_tensors, "tensors", (json_int_t)r->tensors, "source_bytes",
        (json_int_t)r->source_bytes, "bytes", (json_int_t)r->bytes, "config_bytes",
        (json_int_t)r->config_bytes, "source_sha256", r->source_sha256, "sha256", r->sha256,
        "config_sha256", r->config_sha256, "source_repo", r->repo, "source_revision", r->revision,
        "converted_at", r->converted_at);
    struct buffer text = {0};
    json_write_ordered(o, 0, &text);
    printf("%s\n", text.data);
    buffer_free(&text);
    json_decref(o);
}

static void print_lines(const struct convert_drafter_result *r)
{
    printf("source %s %" PRIu64 " model.safetensors, %zu tensors", r->source_sha256,
           r->source_bytes, r->source_tensors);
    if (r->ignored_tensors)
        printf(" (and %zu of the target's, ignored)", r->ignored_tensors);
    printf("\nresult %s %" PRIu64 " model.safetensors, %zu tensors\n", r->sha256, r->bytes,
           r->tensors);
    printf("result %s %" PRIu64 " config.json\n", r->config_sha256, r->config_bytes);
    printf("%s %s%s\n", r->written ? "wrote" : "nothing to write, the same bytes are in",
           convert.out, r->published ? ": the published repack" : "");
}

static int run_convert(int argc, char **argv)
{
    struct error err = {0};
    struct convert_drafter_result result;
    switch (options_parse(&convert_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&convert_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return fail(convert_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    if (!convert_drafter(&convert, &result, &err))
        return fail(convert_command.name, &err);
    if (convert_json)
        print_json(&result);
    else
        print_lines(&result);
    return EXIT_OK;
}

/* ---- transform ---- */

static struct transform_options shape;
static bool shape_json;

static const struct option_spec transform_specs[] = {
    {"--source", OPTION_TEXT, true, "DIR",
     "A checkpoint of a Laguna or a DeepSeek V4; it is left as it is. Files may be links, as "
     "caches of downloads have "
     "them.",
     &shape.source, NULL, 0, 0},
    {"--out", OPTION_TEXT, true, "DIR", "The folder to make. Nothing may stand there.", &shape.out,
     NULL, 0, 0},
    {"--int8-attention", OPTION_SWITCH, false, NULL,
     "Store q, k, v, o and g of attention as affine INT8 in groups of 32. Lossy: the contract must "
     "permit it.",
     &shape.int8_attention, NULL, 0, 0},
    {"--contract", OPTION_TEXT, false, "FILE",
     "The track's contract, whose quantization_envelope says what is permitted.", &shape.contract,
     NULL, 0, 0},
    {"--max-bytes", OPTION_TEXT, false, "N",
     "The limit of the result's bytes, checked before anything is written; 0, none, unlimited: no "
     "limit. Default: MLXFAST_MAX_WEIGHTS_BYTES, else 26843545600.",
     &shape.max_bytes, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object on stdout instead of lines.",
     &shape_json, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress on stderr; errors only.", &shape.quiet,
     NULL, 0, 0},
};

static const struct command transform_command = {
    .name = "mlxfast transform",
    .summary = "Writes a checkpoint as an engine is to load it: the tensors of text, unchanged but "
               "for what is asked for.",
    .notes = "Exit codes: 0 written; 1 refused or failed; 2 usage; 130 interrupted.\n"
             "Files: made in <out>.tmp.<pid> beside --out, which appears whole or not at all; what "
             "a killed run left under such a name is removed. The same source and flags give the "
             "same bytes.\n"
             "Environment: MLXFAST_MAX_WEIGHTS_BYTES.",
    .options = transform_specs,
    .option_count = sizeof transform_specs / sizeof *transform_specs};

static void print_transform_json(const struct transform_result *r)
{
    json_t *o = json_pack(
        "{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:s, s:f, s:f}",
        "out", shape.out, "int8_attention", shape.int8_attention, "files", (json_int_t)r->files,
        "shards", (json_int_t)r->shards, "tensors", (json_int_t)r->tensors, "projections_quantized",
        (json_int_t)r->quantized, "projections_kept", (json_int_t)r->kept,
        "projections_int8_before", (json_int_t)r->int8_before, "source_bytes",
        (json_int_t)r->source_bytes, "bytes", (json_int_t)r->bytes, "source_bytes_per_token",
        (json_int_t)r->source_bytes_per_token, "bytes_per_token", (json_int_t)r->bytes_per_token,
        "shards_cloned", (json_int_t)r->cloned, "tensors_dropped", (json_int_t)r->dropped,
        "dropped_bytes", (json_int_t)r->dropped_bytes, "file_bytes", (json_int_t)r->file_bytes,
        "max_bytes", r->max_bytes > INT64_MAX ? (json_int_t)0 : (json_int_t)r->max_bytes,
        "expert_tensors", (json_int_t)r->experts, "expert_bytes", (json_int_t)r->expert_bytes,
        "transform_source_sha256", transform_source_sha256, "relative_error", r->relative_error,
        "seconds", r->seconds);
    struct buffer text = {0};
    json_write_ordered(o, 0, &text);
    printf("%s\n", text.data);
    buffer_free(&text);
    json_decref(o);
}

static void print_transform(const struct transform_result *r)
{
    if (shape.int8_attention) {
        printf("%zu projections of attention to INT8", r->quantized);
        if (r->kept)
            printf(", %zu left as they are (inputs no multiple of 32)", r->kept);
        if (r->int8_before)
            printf(", %zu INT8 before", r->int8_before);
        if (r->quantized)
            printf("; they differ by %.3g %% (root mean square)", 100 * r->relative_error);
        printf("\n");
    }
    if (r->experts)
        printf("%zu tensors of experts, %" PRIu64 " bytes, stay in %s: experts/manifest.json\n",
               r->experts, r->expert_bytes, shape.source);
    if (r->dropped)
        printf("%zu tensors left out that are not of text, %" PRIu64 " bytes\n", r->dropped,
               r->dropped_bytes);
    printf("%" PRIu64 " bytes of tensors (source %" PRIu64 ")", r->bytes, r->source_bytes);
    if (r->bytes_per_token)
        printf("; one decoded token reads %" PRIu64 " (source %" PRIu64 ")", r->bytes_per_token,
               r->source_bytes_per_token);
    printf("\n");
    printf("wrote %s: %zu files, %" PRIu64
           " bytes, %zu of %zu shards cloned, %zu tensors, %.1f s\n",
           shape.out, r->files, r->file_bytes, r->cloned, r->shards, r->tensors, r->seconds);
}

static int run_transform(int argc, char **argv)
{
    struct error err = {0};
    struct transform_result result;
    switch (options_parse(&transform_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&transform_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return fail(transform_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    if (!transform(&shape, &result, &err))
        return fail(transform_command.name, &err);
    if (shape_json)
        print_transform_json(&result);
    else
        print_transform(&result);
    return EXIT_OK;
}

/* ---- verify-transform ---- */

static struct verify_transform_options verify;

static const struct option_spec verify_specs[] = {
    {"--source", OPTION_TEXT, true, "DIR", "The checkpoint that the weights were made from.",
     &verify.source, NULL, 0, 0},
    {"--weights", OPTION_TEXT, true, "DIR", "What mlxfast transform made of it.", &verify.weights,
     NULL, 0, 0},
    {"--int8-attention", OPTION_SWITCH, false, NULL, "As they were made.", &verify.int8_attention,
     NULL, 0, 0},
    {"--contract", OPTION_TEXT, false, "FILE", "As they were made.", &verify.contract, NULL, 0, 0},
    {"--tmp-parent", OPTION_TEXT, false, "DIR",
     "Where the second result is made, and removed. Default: beside the weights.",
     &verify.temporary_parent, NULL, 0, 0},
    {"--max-bytes", OPTION_TEXT, false, "N",
     "The limit of the weights' bytes; 0, none, unlimited: no limit. Default: "
     "MLXFAST_MAX_WEIGHTS_BYTES, else 26843545600.",
     &verify.max_bytes, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress on stderr; errors only.", &verify.quiet,
     NULL, 0, 0},
};

static const struct command verify_command = {
    .name = "mlxfast verify-transform",
    .summary = "Runs the transform again into a temporary folder and compares: the same files, "
               "every byte. Prints a JSON report.",
    .notes =
        "Exit codes: 0 the same; 1 different (TRANSFORM-MISMATCH), refused or failed; 2 usage; "
        "130 interrupted.\n"
        "Files: .benchmark-source.sha256 and .gitkeep are passed over. The temporary folder "
        "is <weights>.verify.tmp.<pid>.\n"
        "Environment: MLXFAST_MAX_WEIGHTS_BYTES.",
    .options = verify_specs,
    .option_count = sizeof verify_specs / sizeof *verify_specs};

static void print_canonical(json_t *o)
{
    struct buffer text = {0};
    json_write_canonical(o, 2, &text);
    printf("%s\n", text.data);
    buffer_free(&text);
    json_decref(o);
}

/* null: no limit */
static json_t *limit_value(uint64_t bytes)
{
    return bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

static int run_verify(int argc, char **argv)
{
    struct error err = {0};
    struct verify_transform_report r;
    switch (options_parse(&verify_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&verify_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return fail(verify_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    const bool ok = verify_transform(&verify, &r, &err);
    if (r.compared)
        print_canonical(json_pack("{s:s, s:s, s:I, s:I, s:o, s:s, s:b}", "referencePath",
                                  verify.source, "weightsPath", verify.weights, "fileCount",
                                  (json_int_t)r.files, "byteCount", (json_int_t)r.bytes,
                                  "maxByteCount", limit_value(r.max_bytes), "sha256", r.sha256,
                                  "deterministic", r.deterministic));
    return ok ? EXIT_OK : fail(verify_command.name, &err);
}

/* ---- preflight ---- */

static struct preflight_options flight = {.track = "laguna-xs-2.1-dflash-v1"};
static bool flight_json;

static const struct option_spec preflight_specs[] = {
    {"--weights", OPTION_TEXT, true, "DIR", "The folder that an engine is to load.",
     &flight.weights, NULL, 0, 0},
    {"--source", OPTION_TEXT, false, "DIR",
     "What they were made from: where it is sound, the command that mends is the transform.",
     &flight.source, NULL, 0, 0},
    {"--track", OPTION_TEXT, false, "ID",
     "What the command that mends fetches. Default laguna-xs-2.1-dflash-v1.", &flight.track, NULL,
     0, 0},
    {"--int8-attention", OPTION_SWITCH, false, NULL,
     "The transform that mends makes attention INT8; so it does too where config.json says that "
     "it was.",
     &flight.int8_attention, NULL, 0, 0},
    {"--contract", OPTION_TEXT, false, "FILE",
     "What permits that, for the command that mends. Default: the track's contract.json.",
     &flight.contract, NULL, 0, 0},
    {"--max-bytes", OPTION_TEXT, false, "N",
     "The limit of the weights' bytes; 0, none, unlimited: no limit. Default: "
     "MLXFAST_MAX_WEIGHTS_BYTES, else 26843545600.",
     &flight.max_bytes, NULL, 0, 0},
    {"--no-tokenizer", OPTION_SWITCH, false, NULL,
     "tokenizer.json may be missing: the judge asks with ids, and made-up checkpoints have none.",
     &flight.no_tokenizer, NULL, 0, 0},
    {"--json", OPTION_SWITCH, false, NULL, "One JSON object on stdout instead of lines.",
     &flight_json, NULL, 0, 0},
};

static const struct command preflight_command = {
    .name = "mlxfast preflight",
    .summary = "Says in seconds whether a folder of weights can start: all faults, and the one "
               "command that mends them. Reads no weight.",
    .notes = "Exit codes: 0 sound; 1 a fault, each a line on stderr; 2 usage; 130 interrupted.\n"
             "Environment: MLXFAST_MAX_WEIGHTS_BYTES.",
    .options = preflight_specs,
    .option_count = sizeof preflight_specs / sizeof *preflight_specs};

static void print_preflight_json(const struct preflight_report *r)
{
    json_t *findings = json_array();
    for (size_t i = 0; i < r->count; i++) {
        const struct error *e = &r->findings[i];
        json_array_append_new(findings, json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", e->name,
                                                  "message", e->message, "file", e->file, "field",
                                                  e->field, "value", e->value));
    }
    print_canonical(json_pack("{s:s, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:s?, s:f}", "weights",
                              flight.weights, "passed", r->count == 0, "findings", findings,
                              "more_findings", (json_int_t)r->untold, "shards",
                              (json_int_t)r->shards, "tensors", (json_int_t)r->tensors, "files",
                              (json_int_t)r->files, "bytes", (json_int_t)r->bytes, "max_bytes",
                              limit_value(r->max_bytes), "mend", r->mend, "seconds", r->seconds));
}

static int run_preflight(int argc, char **argv)
{
    struct error err = {0};
    struct preflight_report r;
    switch (options_parse(&preflight_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&preflight_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return fail(preflight_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    flight.program = program_name;
    const bool ok = preflight(&flight, &r, &err);
    int status = r.count ? EXIT_FAILED : EXIT_OK;
    if (!ok) {
        status = fail(preflight_command.name, &err);
    } else {
        for (size_t i = 0; i < r.count; i++)
            fail(preflight_command.name, &r.findings[i]);
        if (r.untold)
            fprintf(stderr, "%s: and %zu more faults (file %s)\n", preflight_command.name, r.untold,
                    flight.weights);
        if (r.mend)
            fprintf(stderr, "to mend: %s\n", r.mend);
        if (flight_json)
            print_preflight_json(&r);
        else if (r.count == 0)
            printf("ok: %zu shards, %zu tensors, %" PRIu64 " files, %" PRIu64 " bytes, %.2f s\n",
                   r.shards, r.tensors, r.files, r.bytes, r.seconds);
    }
    preflight_free(&r);
    return status;
}

/* ---- fetch ---- */

static void print_fetch_json(const struct fetch_result *r)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s?, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:f}",
                          "track", r->track, "folder", r->folder, "repo", r->repo, "revision",
                          r->revision, "link", r->link, "manifest_sha256", r->manifest_sha256,
                          "files", (json_int_t)r->files, "bytes", (json_int_t)r->bytes, "fetched",
                          (json_int_t)r->fetched, "fetched_bytes", (json_int_t)r->fetched_bytes,
                          "skipped", r->skipped, "unchanged_by_lock", r->by_lock, "hashed",
                          r->hashed, "seconds", r->seconds);
    struct buffer text = {0};
    json_write_ordered(o, 0, &text);
    printf("%s\n", text.data);
    buffer_free(&text);
    json_decref(o);
}

static void print_fetch(struct arena *a, const struct fetch_result *r, bool drafter)
{
    if (r->skipped) {
        printf("skipped: nothing was fetched or checked; the %zu files of %s (%" PRIu64
               " bytes) belong into %s\n",
               r->files, r->track, r->bytes, r->folder);
        return;
    }
    printf("%s: %zu files, %" PRIu64 " bytes, %s\n", r->track, r->files, r->bytes,
           r->by_lock  ? "as they were when last hashed (sizes and times)"
           : r->hashed ? "all hashed and right"
                       : "right by their lengths, not all hashed");
    if (r->fetched)
        printf("fetched %zu files, %" PRIu64 " bytes, in %.1f s\n", r->fetched, r->fetched_bytes,
               r->seconds);
    if (r->link)
        printf("link %s\n", r->link);
    printf("in %s\n", r->folder);
    if (!drafter)
        printf("to transform: %s transform --source %s --out weights\n",
               shell_word(a, program_name), shell_word(a, r->folder));
}

static void note_fault(const struct error *fault)
{
    fail("mlxfast fetch", fault);
}

static int run_fetch(int argc, char **argv)
{
    struct error err = {0};
    struct arena a = {0};
    struct fetch_settings settings;
    struct fetch_result result;
    int status = EXIT_OK;
    switch (fetch_settings_parse(&a, argc, argv, &settings, &err)) {
    case OPTIONS_HELP:
        options_help(&fetch_command, stdout);
        break;
    case OPTIONS_ERROR:
        status = fail(fetch_command.name, &err);
        break;
    case OPTIONS_OK:
        if (settings.print_path) {
            const char *folder;
            if (fetch_folder(&a, &settings, &folder, &err))
                printf("%s\n", folder);
            else
                status = fail(fetch_command.name, &err);
        } else if (!fetch(&a, &settings, note_fault, &result, &err)) {
            status = fail(fetch_command.name, &err);
        } else if (settings.json) {
            print_fetch_json(&result);
        } else {
            print_fetch(&a, &result, settings.drafter);
        }
    }
    arena_free(&a);
    return status;
}

/* ---- doctor: what it cannot ask the engine itself, being of another layer ---- */

/* Of the first core: what threads share is no larger on the machines that we know. */
static uint64_t last_cache(void)
{
    struct buffer text = {0};
    uint64_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[96], *unit;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!system_read(path, &text))
            break;
        const uint64_t size = strtoull(text.data, &unit, 10);
        const uint64_t bytes = size < UINT32_MAX ? size << (*unit == 'M' ? 20 : 10) : 0;
        most = bytes > most ? bytes : most;
    }
    buffer_free(&text);
    return most;
}

/* The engine's threads and loop, over a piece that no cache holds. */
static bool doctor_read_memory(void *context, double seconds, struct memory_rate *out,
                               struct error *err)
{
    enum { LEAST = 256 << 20, MOST = 1 << 30 };
    const struct machine *m = context;
    struct pool *pool;
    struct pages p;
    uint64_t bytes = 2 * last_cache();
    bytes = bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
    if (bytes > m->engine.memory / 4)
        return error_set(err, "MEMORY-INSUFFICIENT", "too little memory is left to read");
    if (!pool_new(0, &pool, err))
        return false;
    if (!pages_new(bytes, PAGES_HUGE, &p)) {
        pool_free(pool);
        return error_set(err, "OUT-OF-MEMORY", "no memory to read");
    }
    memset(p.data, 1, p.bytes); /* pages that were only read would all be the one of zeros */
    *out = (struct memory_rate){0, bytes, pool_threads(pool)};
    for (const int64_t began = clock_now_ns(); clock_seconds(began) < seconds;) {
        const double rate = (double)bytes / bandwidth_pass(pool, pool_threads(pool), p.data, bytes);
        out->bytes_per_second = rate > out->bytes_per_second ? rate : out->bytes_per_second;
        if (interrupt_requested())
            break;
    }
    pages_free(&p);
    pool_free(pool);
    return !interrupt_requested() || error_set(err, "INTERRUPTED", "stopped by a signal");
}

static bool doctor_preflight(void *context, struct arena *a, const char *weights, const char *track,
                             struct weights_report *out, struct error *err)
{
    const struct preflight_options o = {
        .weights = weights, .track = track, .program = program_name};
    struct preflight_report r;
    char line[2048];
    (void)context;
    const bool ok = preflight(&o, &r, err);
    *out =
        (struct weights_report){.faults = r.count + r.untold, .files = r.files, .bytes = r.bytes};
    if (r.count > 0)
        out->first = arena_strdup(a, error_line(&r.findings[0], line, sizeof line));
    out->mend = r.mend ? arena_strdup(a, r.mend) : NULL;
    preflight_free(&r);
    return ok;
}

static void read_engine(struct engine_facts *e, struct arena *a)
{
    const struct cpu_kernels *have[KERNELS_MAX], *chosen;
    struct memory_limits l;
    *e = (struct engine_facts){.best_kernels = have[kernels_available(have) - 1]->name};
    e->kernels = kernels_choose(NULL, &chosen, &e->kernels_fault) ? chosen->name : e->best_kernels;
    e->processors = cores_allowed();
    e->processors_in_mask = cores_in_mask();
    memory_limits_read(&l);
    e->memory = l.available;
    e->memory_source = arena_strdup(a, l.source);
    e->limit_data = l.data;
    e->limit_addresses = l.addresses;
    e->lockable = l.lockable;
    e->capability_count = compute_capabilities("cuda", &e->capabilities);
}

static void tell_finding(void *context, const struct finding *f)
{
    struct buffer line = {0};
    (void)context;
    finding_write_line(f, &line);
    printf("%s\n", line.data);
    fflush(stdout); /* it takes seconds: each line as it is known */
    buffer_free(&line);
}

static int report_doctor(const struct findings *f, bool as_json, double seconds)
{
    struct buffer text = {0};
    if (as_json) {
        json_t *o = doctor_to_json(f, seconds);
        json_write_ordered(o, 2, &text);
        json_decref(o);
    } else {
        doctor_write_summary(f, &text);
    }
    printf("%s\n", text.data);
    buffer_free(&text);
    return f->of[FINDING_FIX] ? EXIT_FAILED : EXIT_OK;
}

static int run_doctor(int argc, char **argv)
{
    struct error err = {0};
    struct arena a = {0};
    struct machine m;
    struct doctor_settings s;
    struct findings f = {0};
    const int64_t began = clock_now_ns();
    switch (doctor_settings_parse(argc, argv, &s, &err)) {
    case OPTIONS_HELP:
        options_help(&doctor_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return fail(doctor_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    machine_open(&m, &a);
    read_engine(&m.engine, &a);
    libraries_read(&m, &a);
    m.context = &m;
    m.read_memory = doctor_read_memory;
    m.preflight = doctor_preflight;
    f.tell = s.json ? NULL : tell_finding;
    int status;
    if (doctor_examine(&m, &s, &f, &err))
        status = report_doctor(&f, s.json, clock_seconds(began));
    else if ((status = fail(doctor_command.name, &err)) == EXIT_FAILED)
        status = EXIT_USAGE; /* of a track that is none: 1 is a finding's */
    finding_list_free(&f);
    arena_free(&a);
    return status;
}

/* ---- the table ---- */

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} subcommands[] = {
    {"fetch", "gets the files that a track pins, and proves them", run_fetch},
    {"convert-drafter", "brings a published DFlash drafter into the layout that the track pins",
     run_convert},
    {"transform", "writes a checkpoint as an engine is to load it", run_transform},
    {"verify-transform", "runs the transform again and compares every byte", run_verify},
    {"preflight", "says what is wrong with a folder of weights, without reading them",
     run_preflight},
    {"doctor", "says what of machine, builds and weights needs mending, and how", run_doctor},
};

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: mlxfast SUBCOMMAND [FLAGS]\n\nFor participants: what a track needs, made "
                 "ready.\n\nSubcommands (each has --help):\n");
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        fprintf(out, "  %-18s%s\n", subcommands[i].name, subcommands[i].summary);
    fprintf(out, "\nExit codes: 0 success, 1 refused or failed, 2 usage, 130 interrupted.\n");
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    program_name = argv[0];
    const char *name = argv[1];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return EXIT_OK;
    }
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        if (strcmp(subcommands[i].name, name) == 0)
            return subcommands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "mlxfast: unknown subcommand \"%s\"\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct error err;
    standard_begin("mlxfast");
    interrupt_install();
    const int status = run_command(argc, argv);
    if (standard_finish(&err))
        return status;
    fail("mlxfast", &err);
    return status == EXIT_OK ? EXIT_FAILED : status;
}
