/* benchd dflash-score and benchd draw-prompt. */
#include "judge/tools.h"

#include "base/clock.h"
#include "base/json.h"
#include "judge/block_score.h"
#include "judge/commit.h"
#include "judge/dflash_golden.h"
#include "judge/digest.h"
#include "judge/fidelity.h"
#include "judge/pool.h"
#include "judge/seal.h"
#include "judge/tools_common.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static int exit_of(const struct error *err, int refused)
{
    static const char *const io[] = {"IO", "NOT-A-REGULAR-FILE", "FILE-TOO-LARGE"};
    for (size_t i = 0; i < COUNT_OF(io); i++)
        if (strcmp(err->name, io[i]) == 0)
            return TOOL_IO;
    return refused;
}

static bool load_contract(const char *path, struct contract **out, struct error *err)
{
    const char *track = NULL;
    return contract_track_from_environment(&track, err) && contract_load(path, track, out, err);
}

/* ---- dflash-score ---- */

struct score_flags {
    const char *contract, *golden, *mode, *tripwire, *tripwire_report, *score_path;
    const char *weights, *engine;
    struct option_list probes, benchmarks;
    int64_t tokens;
    bool has_tokens;
};

struct scoring {
    const struct score_flags *f;
    struct arena arena;
    struct contract *contract;
    struct dflash_golden *golden;
    struct block_tripwire_report tripwire;
    struct block_score_inputs in;
    const struct block_report *first; /* of the legs that hold */
    struct score_document document;
    struct tree_digest weights;
};

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

static bool read_flags(struct scoring *s, struct error *err)
{
    const struct score_flags *f = s->f;
    struct block_score_inputs *in = &s->in;
    if (!block_mode_parse(f->mode, &in->mode))
        return misuse(err, "--mode", f->mode,
                      "must be dflash-local-iterate or dflash-local-submit");
    const char *const read[] = {f->contract, f->golden, f->tripwire_report, f->engine};
    if (!tool_check_output("--score-path", f->score_path, read, COUNT_OF(read), err) ||
        !tool_check_output("--score-path", f->score_path, f->probes.items, f->probes.count, err) ||
        !tool_check_output("--score-path", f->score_path, f->benchmarks.items, f->benchmarks.count,
                           err))
        return false;
    if (f->probes.count != f->benchmarks.count)
        return misuse(err, "--probe", NULL, "each pair needs one --probe and one --benchmark");
    in->pair_count = f->probes.count;
    if (!f->tripwire) {
        if (f->tripwire_report)
            return misuse(err, "--tripwire-report", f->tripwire_report, "needs --tripwire");
    } else if (strcmp(f->tripwire, "passed") == 0) {
        in->tripwire = BLOCK_TRIPWIRE_PASSED;
    } else if (strcmp(f->tripwire, "drifted") == 0) {
        in->tripwire = BLOCK_TRIPWIRE_DRIFTED;
    } else {
        return misuse(err, "--tripwire", f->tripwire, "must be passed or drifted");
    }
    return true;
}

static bool read_contract(struct scoring *s, struct error *err)
{
    const struct score_flags *f = s->f;
    struct fidelity_limits limits;
    if (!load_contract(f->contract, &s->contract, err) ||
        !contract_require_block_decode(s->contract, err) ||
        !contract_fidelity_limits(s->contract, &limits, err) ||
        !contract_require_decode_floor(s->contract, err))
        return false;
    const struct contract_block_decode *b = &s->contract->block_decode;
    if (f->has_tokens && f->tokens > b->maximum_decode_tokens)
        return misuse(err, "--tokens", NULL, "is more than the contract's maximum_decode_tokens");
    s->in.contract = s->contract;
    s->in.tokens = f->has_tokens ? f->tokens : block_mode_tokens(b, s->in.mode);
    return true;
}

static bool read_golden(struct scoring *s, struct error *err)
{
    const struct contract *c = s->contract;
    const struct dflash_golden_rules rules = {.vocab_size = c->vocab_size,
                                              .seed_tokens = c->seed_tokens,
                                              .maximum_rows = c->block_decode.maximum_decode_tokens,
                                              .require_self_consistent = true};
    if (!dflash_golden_load(s->f->golden, &rules, &s->golden, err) ||
        !contract_check_pooled(c, s->golden->sha256, s->golden->bytes, err))
        return false;
    s->in.golden_sha256 = s->golden->sha256;
    return true;
}

static bool refuse_report(const char *path, const char *field, const char *what, struct error *err)
{
    error_set(err, "BLOCK-REPORT-INVALID", "%s", what);
    return error_at(err, path, field, NULL);
}

/* One leg is one measurement, and all of a score's legs ran the same files. The clock counts
 * nanoseconds: two legs never took the same times. */
static bool check_leg(struct scoring *s, const struct block_report *legs,
                      const struct option_list *paths, size_t i, struct error *err)
{
    const struct block_report *r = &legs[i];
    if (r->error)
        return true;
    const struct block_report *first = s->first ? s->first : (s->first = r);
    for (size_t j = 0; j < i; j++)
        if (!legs[j].error && legs[j].decode_seconds == r->decode_seconds &&
            legs[j].longest == r->longest)
            return refuse_report(paths->items[i], "decode_seconds",
                                 "the report of one leg is given for two pairs", err);
    if (strcmp(r->weights, first->weights) != 0 ||
        (s->f->weights && strcmp(r->weights, s->weights.sha256) != 0))
        return refuse_report(paths->items[i], "weights_sha256", "the leg ran other weights", err);
    return strcmp(r->drafter, first->drafter) == 0 ||
           refuse_report(paths->items[i], "drafter_sha256", "the leg ran another drafter", err);
}

static bool check_legs(struct scoring *s, struct error *err)
{
    if (s->f->weights && !weights_digest(s->f->weights, &s->weights, err))
        return false;
    for (size_t i = 0; i < s->in.pair_count; i++)
        if (!check_leg(s, s->in.probes, &s->f->probes, i, err) ||
            !check_leg(s, s->in.benchmarks, &s->f->benchmarks, i, err))
            return false;
    return true;
}

static bool read_reports(struct scoring *s, struct error *err)
{
    const struct contract *c = s->contract;
    const size_t count = s->in.pair_count;
    struct block_report *probes = arena_array(&s->arena, count, sizeof *probes);
    struct block_report *benchmarks = arena_array(&s->arena, count, sizeof *benchmarks);
    struct block_report_rules rules = {.track_id = c->track_id,
                                       .tokens = s->in.tokens,
                                       .seed_count = (int64_t)s->golden->seed_count,
                                       .golden_sha256 = s->golden->sha256};
    if (!contract_fidelity_limits(c, &rules.limits, err))
        return false;
    for (size_t i = 0; i < count; i++) {
        rules.least_block_size = rules.most_block_size = 1;
        if (!block_report_load(s->f->probes.items[i], &rules, &s->arena, &probes[i], err))
            return false;
        /* Every pair decodes with the first one's width. */
        rules.least_block_size = i == 0 ? 2 : benchmarks[0].block_size;
        rules.most_block_size =
            i == 0 ? c->block_decode.maximum_block_size : benchmarks[0].block_size;
        if (!block_report_load(s->f->benchmarks.items[i], &rules, &s->arena, &benchmarks[i], err))
            return false;
    }
    s->in.probes = probes;
    s->in.benchmarks = benchmarks;
    return check_legs(s, err);
}

static bool read_tripwire(struct scoring *s, struct error *err)
{
    const char *path = s->f->tripwire_report;
    if (!path)
        return true;
    if (!block_tripwire_load(path, &s->tripwire, err))
        return false;
    if (s->in.tripwire == BLOCK_TRIPWIRE_PASSED && !s->tripwire.passed)
        return misuse(err, "--tripwire", "passed", "the report says that the golden did not pass");
    s->in.tripwire_cases = s->tripwire.case_count;
    s->in.diverged = s->tripwire.diverged;
    return true;
}

static bool set_provenance(struct scoring *s, struct error *err)
{
    struct score_document *d = &s->document;
    struct tree_digest harness;
    char commit[COMMIT_HEX], when[64];
    if (!commit_find(commit)) {
        error_set(err, "COMMIT-INVALID", "MLXFAST_COMMIT_SHA must be 40 lower-case hex digits");
        return error_at(err, NULL, "MLXFAST_COMMIT_SHA", getenv("MLXFAST_COMMIT_SHA"));
    }
    score_set_text(d, "commit", commit);
    score_set_text(d, "timestamp", clock_utc_text(when, sizeof when));
    if (harness_hash(".", NULL, &harness, err))
        score_set_text(d, "harness_hash", harness.sha256);
    else if (strcmp(err->name, "HARNESS-EMPTY") != 0)
        return false;
    if (!s->f->weights)
        return true;
    score_set_text(d, "weights_hash", s->weights.sha256);
    score_set_int(d, "weights_byte_count", (int64_t)s->weights.bytes);
    score_set_int(d, "weights_file_count", (int64_t)s->weights.files);
    return true;
}

static bool seal(struct scoring *s, struct error *err)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const struct seal_inputs in = {.score_path = s->f->score_path,
                                   .weights_path = s->f->weights,
                                   .weights_sha256 = s->f->weights ? s->weights.sha256 : NULL,
                                   .weights_file_count = s->weights.files,
                                   .weights_byte_count = s->weights.bytes,
                                   .golden_path = s->f->golden,
                                   .golden_sha256 = s->golden->sha256,
                                   .candidate_executable = s->f->engine,
                                   .benchd_executable = self,
                                   .local_iterate = s->in.mode == BLOCK_LOCAL_ITERATE};
    return seal_write(&s->document, &in, err);
}

static bool score(struct scoring *s, struct error *err)
{
    return read_flags(s, err) && read_contract(s, err) &&
           seal_check(s->f->score_path, s->in.mode == BLOCK_LOCAL_ITERATE, err) &&
           read_golden(s, err) && read_reports(s, err) && read_tripwire(s, err) &&
           set_provenance(s, err) && (block_score_fill(&s->document, &s->in), true) && seal(s, err);
}

static void tell_stall(const struct scoring *s)
{
    const struct block_stall stall = block_score_stall(&s->in);
    const double factor = s->contract->block_decode.stall_factor;
    if (stall.stalled)
        fprintf(stderr,
                "dflash-score: stalled: the longest round of pair %zu's %s took %.2f times its "
                "median one, %.6g are allowed; a ranked pair is measured again\n",
                stall.pair + 1, stall.of_the_benchmark ? "benchmark" : "probe", stall.worst,
                factor);
    else if (!stall.known && !stall.failed)
        fprintf(stderr, "dflash-score: whether a leg stalled is not known: a report does not tell "
                        "how long its rounds took\n");
}

static void tell(const struct scoring *s)
{
    const json_t *m = s->document.metrics;
    tell_stall(s);
    if (s->document.passed)
        fprintf(stderr, "dflash-score: passed, score %.6f (%s), not rankable\n", s->document.score,
                json_is_true(json_object_get(m, "scoring_normalized")) ? "normalised"
                                                                       : "raw speedup");
    else
        fprintf(stderr, "dflash-score: not passed: %s\n",
                json_string_value(json_object_get(m, "error")));
}

int tool_dflash_score(int argc, char **argv)
{
    static const char tool[] = "dflash-score";
    struct score_flags f = {0};
    const struct option_spec options[] = {
        {"--contract", OPTION_TEXT, true, "FILE", "The track's contract.", &f.contract, NULL, 0, 0},
        {"--golden", OPTION_TEXT, true, "FILE", "The golden that the legs ran on.", &f.golden, NULL,
         0, 0},
        {"--probe", OPTION_LIST, true, "FILE",
         "A report of dflash-probe: the serial control. Once for each pair, in order.", &f.probes,
         NULL, 0, 0},
        {"--benchmark", OPTION_LIST, true, "FILE",
         "A report of dflash-benchmark. Once for each pair, in order.", &f.benchmarks, NULL, 0, 0},
        {"--mode", OPTION_TEXT, true, "MODE", "dflash-local-iterate or dflash-local-submit.",
         &f.mode, NULL, 0, 0},
        {"--tokens", OPTION_INT, false, "N",
         "How many tokens each leg was to decode; default: the mode's, from the contract.",
         &f.tokens, &f.has_tokens, 1, INT32_MAX},
        {"--tripwire", OPTION_TEXT, false, "RESULT",
         "What comparing with the public golden came to: passed or drifted. Without it the score "
         "has not passed.",
         &f.tripwire, NULL, 0, 0},
        {"--tripwire-report", OPTION_TEXT, false, "FILE",
         "Its report (benchd correctness --report): the diverging tokens go into the score.",
         &f.tripwire_report, NULL, 0, 0},
        {"--score-path", OPTION_TEXT, true, "FILE",
         "Where the score goes; its sidecar and the integrity file go beside it.", &f.score_path,
         NULL, 0, 0},
        {"--weights", OPTION_TEXT, false, "DIR", "The weights folder, to be sealed by its digest.",
         &f.weights, NULL, 0, 0},
        {"--engine", OPTION_TEXT, false, "PATH", "The worker executable, to be sealed likewise.",
         &f.engine, NULL, 0, 0},
    };
    const struct command command = {
        "benchd dflash-score",
        "Makes the score of local block decoding from the reports of its legs.",
        "Exit: 0 passed, 1 sealed and not passed, 2 usage or an input that is refused, 3 something "
        "cannot be read or written.\n"
        "Environment: MLXFAST_QWEN_MTP_TRACK_ID or MLXFAST_TRACK_ID must agree with the contract "
        "where set; MLXFAST_COMMIT_SHA names the commit.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct scoring s = {.f = &f};
    struct error err = {0};
    score_document_init(&s.document, "");
    if (score(&s, &err)) {
        tell(&s);
        code = s.document.passed ? TOOL_OK : TOOL_REJECTED;
    } else {
        tool_complain(tool, &err);
        code = exit_of(&err, TOOL_USAGE);
    }
    score_document_free(&s.document);
    json_decref(s.tripwire.diverged);
    dflash_golden_free(s.golden);
    contract_free(s.contract);
    arena_free(&s.arena);
    return code;
}

/* ---- draw-prompt ---- */

static void print_entry(const struct contract_pool_entry *e, size_t index, bool as_json)
{
    if (!as_json) {
        printf("%zu %s %s\n", index, e->sha256, e->path);
        return;
    }
    struct buffer out = {0};
    json_t *o = json_object();
    json_object_set_new(o, "index", json_integer((json_int_t)index));
    json_object_set_new(o, "path", json_string(e->path));
    json_object_set_new(o, "sha256", json_string(e->sha256));
    json_object_set_new(o, "bytes", json_integer((json_int_t)e->bytes));
    json_object_set_new(o, "noop_decode_speedup", json_real(e->noop_decode_speedup));
    json_write_ordered(o, 0, &out);
    printf("%s\n", out.data);
    json_decref(o);
    buffer_free(&out);
}

int tool_draw_prompt(int argc, char **argv)
{
    static const char tool[] = "draw-prompt";
    const char *path = NULL, *folder = NULL;
    bool as_json = false;
    const struct option_spec options[] = {
        {"--contract", OPTION_TEXT, true, "FILE", "The track's contract, with its pool.", &path,
         NULL, 0, 0},
        {"--pool-dir", OPTION_TEXT, false, "DIR",
         "Where the pool's files lie, by the last part of their paths: each is read and must be "
         "what is pinned.",
         &folder, NULL, 0, 0},
        {"--json", OPTION_SWITCH, false, NULL, "The entry as a JSON object.", &as_json, NULL, 0, 0},
    };
    const struct command command = {
        "benchd draw-prompt",
        "Checks the whole pool of hidden prompts and draws one.",
        "Prints the index, the SHA-256 and the path: keep them to yourself. 16 bits of the "
        "kernel's randomness, the biased tail thrown away.\n"
        "Exit: 0 drawn, 1 the contract or the pool is refused, 2 usage, 3 something cannot be "
        "read.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct contract *c = NULL;
    struct error err = {0};
    size_t index = 0;
    if (load_contract(path, &c, &err) && pool_check(c, folder, &err) &&
        pool_draw(pool_kernel_random, NULL, c->pool_count, &index, &err)) {
        print_entry(&c->pool[index], index, as_json);
        code = fflush(stdout) == 0 ? TOOL_OK : TOOL_IO;
    } else {
        tool_complain(tool, &err);
        code = exit_of(&err, TOOL_REJECTED);
    }
    contract_free(c);
    return code;
}
