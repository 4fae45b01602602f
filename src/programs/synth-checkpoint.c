/* synth-checkpoint: a checkpoint of true shapes with made-up weights. */
#include "base/child.h"
#include "base/error.h"
#include "base/options.h"
#include "base/standard.h"
#include "engine/transform/synth_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

static int fail(const struct error *err)
{
    char line[2048];
    fprintf(stderr, "synth-checkpoint: %s\n", error_line(err, line, sizeof line));
    if (strcmp(err->name, "USAGE") == 0) {
        fprintf(stderr, "try: synth-checkpoint --help\n");
        return EXIT_USAGE;
    }
    return strcmp(err->name, "INTERRUPTED") == 0 ? EXIT_INTERRUPTED : EXIT_FAILED;
}

static void print_result(const struct synth_options *o, const struct synth_result *r)
{
    printf("%d layers, %zu tensors, %" PRIu64 " bytes of tensors, %zu file%s of %" PRIu64
           " bytes\n",
           r->layers, r->tensors, r->tensor_bytes, r->shards, r->shards == 1 ? "" : "s",
           r->file_bytes);
    if (o->dry_run)
        printf("nothing was written\n");
    else if (o->headers_only)
        printf("wrote %s: headers only, every weight is zero\n", o->out);
    else
        printf("wrote %s in %.1f s, %.2f GB a second\n", o->out, r->seconds,
               r->seconds > 0 ? (double)r->file_bytes / r->seconds / 1e9 : 0.0);
}

int main(int argc, char **argv)
{
    standard_begin("synth-checkpoint");
    struct synth_options o = {.align = 1};
    int64_t seed = 1;
    const struct option_spec options[] = {
        {"--config", OPTION_TEXT, true, "FILE",
         "A Laguna's config.json, or a DFlash drafter's: the shapes.", &o.config, NULL, 0, 0},
        {"--out", OPTION_TEXT, false, "DIR",
         "The folder to make. Nothing may stand there. Needed unless --dry-run.", &o.out, NULL, 0,
         0},
        {"--layers", OPTION_INT, false, "N",
         "The first N layers only; config.json is cut to them. Default: all.", &o.layers, NULL, 1,
         1 << 20},
        {"--target-layers", OPTION_INT, false, "N",
         "Of a drafter: its target is a slice of N layers. num_target_layers is set, and the "
         "layers it takes rows of are brought into its range. Default: as in the config.",
         &o.target_layers, NULL, 1, 1 << 20},
        {"--seed", OPTION_INT, false, "S",
         "The same seed gives the same bytes everywhere; a layer has the same weights in every "
         "slice. Default: 1.",
         &seed, NULL, 0, INT64_MAX},
        {"--int8-attention", OPTION_SWITCH, false, NULL,
         "q, k, v, o and g of attention as affine INT8 in groups of 32, as `mlxfast transform` "
         "would store them.",
         &o.int8_attention, NULL, 0, 0},
        {"--threads", OPTION_INT, false, "T",
         "Threads that make and write; the bytes do not depend on it. Default: one per available "
         "core.",
         &o.threads, NULL, 0, 64},
        {"--align", OPTION_INT, false, "N",
         "The weights of a file begin at a multiple of N bytes. Default: 1, headers without "
         "padding as in published files, where weights lie at odd addresses.",
         &o.align, NULL, 1, 4096},
        {"--headers-only", OPTION_SWITCH, false, NULL,
         "Files of the full length whose weights are holes: zeros that take no space.",
         &o.headers_only, NULL, 0, 0},
        {"--dry-run", OPTION_SWITCH, false, NULL, "Only says what would be written.", &o.dry_run,
         NULL, 0, 0},
        {"--quiet", OPTION_SWITCH, false, NULL, "No progress and no summary; errors only.",
         &o.quiet, NULL, 0, 0},
    };
    const struct command command = {
        .name = "synth-checkpoint",
        .summary = "Writes a checkpoint of the config's shapes with made-up weights: safetensors "
                   "shards below 5 GiB, their index, config.json.",
        .notes = "Exit codes: 0 written, 1 refused or failed, 2 usage, 130 interrupted.\n"
                 "Files: made in <out>.tmp.<pid> beside --out, which appears whole or not at all. "
                 "The free space is checked first.",
        .options = options,
        .option_count = sizeof options / sizeof *options};
    struct error err = {0};
    struct synth_result result;
    switch (options_parse(&command, argc - 1, argv + 1, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return standard_finish(&err) ? EXIT_SUCCESS : fail(&err);
    case OPTIONS_ERROR:
        return fail(&err);
    case OPTIONS_OK:
        break;
    }
    if (!o.out && !o.dry_run) {
        error_set(&err, "USAGE", "--out is needed unless --dry-run is given");
        error_at(&err, NULL, "--out", NULL);
        return fail(&err);
    }
    o.seed = (uint64_t)seed;
    interrupt_install();
    if (!synth_checkpoint(&o, &result, &err))
        return fail(&err);
    if (!o.quiet)
        print_result(&o, &result);
    return standard_finish(&err) ? EXIT_SUCCESS : fail(&err);
}
