/* A ranked run in a folder, made up: contract, golden, a score of three pairs with statistics and
 * gates, sealed; a key and a log beside it. What a run of hours would leave, in milliseconds. */
#ifndef MLXFAST_TESTS_EVIDENCE_RUN_H
#define MLXFAST_TESTS_EVIDENCE_RUN_H

#include "base/file.h"
#include "base/json.h"
#include "judge/evidence/evidence.h"
#include "judge/evidence/verify.h"
#include "judge/ranked/combine.h"
#include "judge/score.h"
#include "judge/seal.h"
#include "judge/stats/paired.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
enum { RUN_PAIRS = 3, RUN_NULLS = 2 };

static char run_folder[64], run_home[1024];
static bool run_drawn; /* the golden is of the pool, and named nowhere */
static struct public_key run_key;

static const char run_contract[] =
    "{\"track_id\": \"toy-1-cuda-v1\", \"official_scoring_enabled\": true, \"official_pairs\": 3,\n"
    " \"official_pair_combine\": \"lower_median\", \"scores_against_live_control_leg\": true,\n"
    " \"decode_speedup_floor\": 0.95, \"prefill_speedup_floor\": 0.95,\n"
    " \"score_decode_weight\": 0.75, \"score_prefill_weight\": 0.25, \"correctness_steps\": 2,\n"
    " \"benchmark_decode_steps\": 2, \"local_submit_benchmark_decode_steps\": 2,\n"
    " \"official_prefill_warmup_runs\": 0, \"golden_model_type\": \"toy\", \"vocab_size\": 100,\n"
    " \"num_hidden_layers\": 1, \"seed_tokens\": 3,\n"
    " \"statistics\": {\"null_pairs\": 2, \"max_pairs\": 3, \"half_width\": 0.0, \"confidence\": "
    "0.95},\n"
    " \"quiet\": {\"load_max\": 2.0, \"gpu_use_max\": 0.1, \"celsius_max\": 60.0,\n"
    "  \"temperature_required\": true, \"wait_seconds\": 900.0, \"clock_floor_mhz\": 0.0}}\n";
static const char run_golden[] =
    "{\"version\": 1, \"model_type\": \"toy\", \"cases\": [{\"name\": \"one\", \"prompt_tokens\": "
    "[1, 2, 3],\n"
    " \"expected_tokens\": [4, 5, 6]}], \"benchmark\": {\"prefill_prompt_tokens\": [1, 2, 3],\n"
    " \"expected_prefill_token\": 4, \"decode_seed_tokens\": [1, 2, 3], "
    "\"expected_decode_seed_token\": 4,\n"
    " \"expected_decode_tokens\": [5, 6]}}\n";

static void run_put(const char *path, const char *text)
{
    struct error err = {0};
    if (!file_write_atomic(path, text, strlen(text), &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

static json_t *run_gate(int pair, const char *leg, const char *phase)
{
    return json_pack(
        "{s:i, s:s, s:s, s:{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}, s:{s:s, s:f, s:f, s:f, s:s},"
        " s:n}",
        "pair", pair, "leg", leg, "phase", phase, "quiescence", "state", "quiet", "waited_seconds",
        0.0, "load", 0.5, "own_load", 0.25, "others_cpu", 0.01, "own_cpu", 0.0, "window_seconds",
        1.0, "gpu_use", 0.0, "temperature", "state", "fired", "waited_seconds", 0.0, "celsius",
        41.5, "limit", 60.0, "reader", "hwmon", "telemetry");
}

/* What changes a run before it is sealed; NULL: a good run. */
typedef void run_change(struct score_document *d);

static void run_fill(struct score_document *d, const struct contract *c, const char *golden)
{
    static const double control[RUN_PAIRS][2] = {{0.004, 0.050}, {0.0041, 0.051}, {0.0039, 0.049}};
    static const double candidate[RUN_PAIRS][2] = {{0.003, 0.04}, {0.0031, 0.0405}, {0.003, 0.041}};
    struct ranked_pair pairs[RUN_PAIRS] = {0}, nulls[RUN_NULLS] = {0};
    struct combined all;
    struct paired_estimate e, n;
    struct paired_rule rule;
    double composites[RUN_PAIRS], ones[RUN_PAIRS] = {1, 1, 1}, null_composites[RUN_NULLS];
    for (int i = 0; i < RUN_PAIRS; i++) {
        pairs[i].number = i + 1;
        text_copy(pairs[i].prompt_sha256, SHA256_HEX, golden);
        pairs[i].control =
            (struct pair_times){control[i][0], control[i][1], control[i][0], 1e-4, 2e-4};
        pairs[i].candidate =
            (struct pair_times){candidate[i][0], candidate[i][1], candidate[i][0], 1e-4, 2e-4};
    }
    for (int i = 0; i < RUN_NULLS; i++) {
        nulls[i] = pairs[i];
        nulls[i].candidate = pairs[i + 1].control;
    }
    combine_pairs(c, pairs, RUN_PAIRS, &all);
    combine_composites(c, pairs, RUN_PAIRS, composites);
    combine_composites(c, nulls, RUN_NULLS, null_composites);
    contract_paired_rule(c, &rule);
    paired_estimate(composites, ones, RUN_PAIRS, paired_rule_confidence(&rule),
                    PAIRED_BOOTSTRAP_SEED, &e);
    paired_estimate(null_composites, ones, RUN_NULLS, paired_rule_confidence(&rule),
                    PAIRED_BOOTSTRAP_SEED, &n);
    score_set_text(d, "golden_hash", golden);
    score_set_text(d, "contract_sha256", c->sha256);
    score_set_json(d, "contract_sources", contract_sources(c));
    score_set_text(d, "harness_hash", RUN_HEX);
    score_set_text(d, "weights_hash", RUN_HEX);
    score_set_int(d, "weights_byte_count", 12);
    score_set_int(d, "weights_file_count", 3);
    score_set_text(d, "baseline_source", "serial-control-leg");
    score_set_text(d, "baseline_box", "box-7");
    score_set_bool(d, "passed_correctness", true);
    score_set_text(d, "official_pair_combine", "lower_median");
    score_set_json(d, "paired_legs", combine_seal(pairs, RUN_PAIRS));
    score_set_json(d, "null_pairs", combine_seal(nulls, RUN_NULLS));
    score_set_json(d, "statistics", paired_seal(&e, &n, &rule, PAIRED_BOUND_REACHED));
    score_set_number(d, "prefill_speedup", all.gains.prefill);
    score_set_number(d, "decode_speedup", all.gains.decode);
    score_set_number(d, "prefill_seconds_per_token", all.candidate.prefill);
    score_set_number(d, "decode_seconds_per_token", all.candidate.decode);
    score_set_number(d, "baseline_prefill_seconds_per_token", all.control.prefill);
    score_set_number(d, "baseline_decode_seconds_per_token", all.control.decode);
    score_set_number(d, "prefill_speedup_floor", 0.95);
    score_set_number(d, "decode_speedup_floor", 0.95);
    score_set_bool(d, "passed_prefill_speedup_floor", true);
    score_set_bool(d, "passed_decode_speedup_floor", true);
    json_t *gates = json_array();
    for (int pair = 1; pair <= RUN_PAIRS; pair++) {
        json_array_append_new(gates, run_gate(pair, "control", "prefill"));
        json_array_append_new(gates, run_gate(pair, "candidate", "decode"));
    }
    score_set_json(d, "gates", gates);
    d->passed = true;
    d->has_score = true;
    d->score = all.score;
}

/* Seals the run anew: whatever was signed before is gone. */
static void run_seal(run_change *change)
{
    struct contract *c = NULL;
    struct score_document d;
    struct error err = {0};
    char golden[SHA256_HEX];
    sha256_hex(run_golden, strlen(run_golden), golden);
    if (!contract_load("contract.json", NULL, &c, &err)) {
        fprintf(stderr, "%s %s\n", err.message, err.field);
        abort();
    }
    score_document_init(&d, "benchd");
    run_fill(&d, c, golden);
    if (change)
        change(&d);
    const struct seal_inputs in = {.score_path = "score.json",
                                   .weights_path = "weights",
                                   .weights_sha256 = RUN_HEX,
                                   .weights_file_count = 3,
                                   .weights_byte_count = 12,
                                   .golden_path = run_drawn ? NULL : "golden.json",
                                   .golden_sha256 = golden,
                                   .candidate_executable = "engine",
                                   .benchd_executable = "engine",
                                   .sandbox = "none"};
    if (!seal_write(&d, &in, &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    unlink("score.json.statement.json");
    unlink("score.json.statement.sig");
    score_document_free(&d);
    contract_free(c);
}

static const char *const run_goldens[] = {"golden.json"};
static const struct evidence_files run_files = {
    .score = "score.json", .contract = "contract.json", .goldens = run_goldens, .golden_count = 1};

static bool run_sign(const char *log, struct error *err)
{
    struct evidence_signed out;
    const struct evidence_signing in = {.files = run_files, .key = "key", .log = log};
    return evidence_sign(&in, &out, err);
}

static bool run_pack(const char *log, struct buffer *out, struct error *err)
{
    const struct evidence_packing in = {
        .files = run_files, .public_key = "key.pub", .log = log, .engine = "engine"};
    return evidence_pack(&in, out, err);
}

/* In a folder of its own, which is the working folder from here on. */
static int run_begin(void)
{
    struct error err = {0};
    setenv("SOURCE_DATE_EPOCH", "1767225600", 1);
    snprintf(run_folder, sizeof run_folder, "/tmp/test_evidence.XXXXXX");
    if (!getcwd(run_home, sizeof run_home) || !mkdtemp(run_folder) || chdir(run_folder) != 0)
        return -1;
    run_put("contract.json", run_contract);
    run_put("golden.json", run_golden);
    run_put("engine", "an engine\n");
    if (!key_generate("key", &run_key, &err))
        return -1;
    run_seal(NULL);
    return 0;
}

static int run_end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", run_folder);
    return chdir(run_home) || system(command);
}

#endif
