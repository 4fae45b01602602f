/* benchd dflash-benchmark and dflash-probe: one leg, its replay, the report. */
#include "judge/tools.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "judge/block_run.h"
#include "judge/dflash_command.h"
#include "judge/dflash_golden.h"
#include "judge/dflash_report.h"
#include "judge/fidelity_replay.h"
#include "judge/tools_common.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { TOOL_INTERRUPTED = 130 };

struct leg_flags {
    struct dflash_flags common;
    const char *golden;
    int64_t tokens, block_size, schedule_seed;
    bool has_tokens, has_block_size, has_absolute, has_relative, has_mean;
    double absolute, relative, mean;
};

#define LEG_ROWS(f)                                                                                \
    DFLASH_FLAG_ROWS(&(f)->common),                                                                \
        {"--reference-engine",                                                                     \
         OPTION_TEXT,                                                                              \
         false,                                                                                    \
         "PATH",                                                                                   \
         "The worker that judges the leg afterwards. Default: --engine, and the report says so.",  \
         &(f)->common.reference_engine,                                                            \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--reference-weights",                                                                    \
         OPTION_TEXT,                                                                              \
         false,                                                                                    \
         "DIR",                                                                                    \
         "The reference's weights folder, the organiser's. Default: --weights.",                   \
         &(f)->common.reference_weights,                                                           \
         NULL,                                                                                     \
         0,                                                                                        \
         0},                                                                                       \
        {"--golden",   OPTION_TEXT, true, "FILE", "The golden with the seed.",                     \
         &(f)->golden, NULL,        0,    0},                                                      \
        {"--tokens",                                                                               \
         OPTION_INT,                                                                               \
         false,                                                                                    \
         "N",                                                                                      \
         "Tokens to commit, 1 to the contract's maximum_decode_tokens. Default: its "              \
         "local_submit_decode_tokens.",                                                            \
         &(f)->tokens,                                                                             \
         &(f)->has_tokens,                                                                         \
         1,                                                                                        \
         INT32_MAX},                                                                               \
    {                                                                                              \
        "--output", OPTION_TEXT, false, "FILE", "The report goes there too.", &(f)->common.output, \
            NULL, 0, 0                                                                             \
    }

static const char exits[] =
    "Output: one JSON object on stdout; a failed leg's has the failure's name as \"error\" and no "
    "time.\n"
    "Exit codes: 0 the leg holds; 1 it does not, or it could not be run; 2 usage or an unusable "
    "contract (no report); 130 interrupted (no report).\n"
    "Environment: MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "
    "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from a worker; MLXFAST_RUN_CEILING_S "
    "(0.1336139485703125) is the seconds per token whose fourfold bounds the timed run.";

struct leg_run {
    struct dflash_setup setup;
    const struct leg_flags *f;
    struct dflash_golden *golden;
    struct dflash_leg leg;
    struct block_run_result result;
    struct fidelity_judgement judgement;
};

/* A tolerance may be widened to look at drift, never narrowed, and in no official run. */
static bool widen(struct leg_run *r, const char *flag, bool given, double value, double *limit,
                  struct error *err)
{
    if (!given)
        return true;
    char text[40];
    snprintf(text, sizeof text, "%g", value);
    if (dflash_is_official()) {
        error_set(err, "TOLERANCE-WIDENING-REFUSED", "an official run has the contract's limits");
        return error_at(err, NULL, flag, text);
    }
    if (!(value >= *limit)) {
        error_set(err, "USAGE", "a tolerance is widened, not narrowed: the contract's is %g",
                  *limit);
        return error_at(err, NULL, flag, text);
    }
    *limit = value;
    r->leg.widened = true;
    return true;
}

static bool widen_mean(struct leg_run *r, struct error *err)
{
    static const char flag[] = "--work-binding-tolerance-mean";
    const struct leg_flags *f = r->f;
    struct fidelity_limits *l = &r->setup.limits;
    if (f->has_mean && !l->has_mean) {
        error_set(err, "USAGE", "the contract has no limit of the mean");
        return error_at(err, NULL, flag, NULL);
    }
    return widen(r, flag, f->has_mean, f->mean, &l->mean, err);
}

static bool open_leg(struct leg_run *r, struct error *err)
{
    const struct leg_flags *f = r->f;
    struct dflash_setup *s = &r->setup;
    const struct dflash_flags *common = &f->common;
    const char *const read[] = {f->golden, common->contract, common->engine,
                                common->reference_engine};
    if (!dflash_setup_open(s, common, err) ||
        !tool_check_output("--output", common->output, read, COUNT_OF(read), err))
        return false;
    const struct contract_block_decode *b = &s->contract->block_decode;
    const int64_t tokens = f->has_tokens ? f->tokens : b->local_submit_decode_tokens;
    const int64_t size = f->has_block_size ? f->block_size : b->block_size;
    if (!dflash_check_tokens(s, "--tokens", tokens, err) ||
        !dflash_check_block_size(s, size, err) ||
        !widen(r, "--work-binding-tolerance-absolute", f->has_absolute, f->absolute,
               &s->limits.absolute, err) ||
        !widen(r, "--work-binding-tolerance-relative", f->has_relative, f->relative,
               &s->limits.relative, err) ||
        !widen_mean(r, err))
        return false;
    r->leg.track_id = s->contract->track_id;
    r->leg.tokens = tokens;
    r->leg.block_size = (int)size;
    r->leg.limits = &s->limits;
    r->leg.stall_factor = b->stall_factor;
    return true;
}

static bool load_golden(struct leg_run *r, struct error *err)
{
    const struct contract *c = r->setup.contract;
    const struct dflash_golden_rules rules = {.vocab_size = c->vocab_size,
                                              .seed_tokens = c->seed_tokens,
                                              .maximum_rows = c->block_decode.maximum_decode_tokens,
                                              .require_self_consistent = true};
    return dflash_golden_load(r->f->golden, &rules, &r->golden, err) &&
           contract_check_pooled(c, r->golden->sha256, r->golden->bytes, err);
}

static bool time_it(struct leg_run *r, struct error *err)
{
    struct dflash_setup *s = &r->setup;
    const struct block_run_plan plan = {.seed = r->golden->seed,
                                        .seed_count = r->golden->seed_count,
                                        .seed_token = r->golden->seed_token,
                                        .tokens = r->leg.tokens,
                                        .block_size = r->leg.block_size,
                                        .schedule_seed = (uint64_t)r->f->schedule_seed,
                                        .limits = &s->limits,
                                        .run_ceiling_seconds = s->run_ceiling_seconds,
                                        .quiet = s->f->quiet};
    struct client *c = NULL;
    const bool ok =
        client_start(&s->candidate, &c, err) && block_run(c, &plan, &s->arena, &r->result, err);
    client_free(c); /* before the reference starts: it must have the machine to itself */
    return ok;
}

static bool judge_it(struct leg_run *r, struct error *err)
{
    struct dflash_setup *s = &r->setup;
    struct fidelity_reference_round *rounds = NULL;
    struct client *c = NULL;
    if (s->own_reference && !s->f->quiet)
        fprintf(stderr, "reference: the engine itself (--reference-engine names another)\n");
    bool ok =
        replay_start(&s->reference, &c, err) &&
        replay_run(c, &r->result.run, s->limits.vocab_size, s->f->quiet, &s->arena, &rounds, err);
    client_free(c);
    return ok && dflash_check_unchanged(s, err) &&
           fidelity_judge(&s->limits, &r->result.run, rounds, &s->arena, &r->judgement, err);
}

static bool write_report(const struct leg_run *r, const struct buffer *text, struct error *err)
{
    const char *output = r->f->common.output;
    if (output != NULL && !file_write_atomic(output, text->data, text->length, err))
        return false;
    fputs(text->data, stdout);
    fflush(stdout);
    return true;
}

static int close_leg(struct leg_run *r, const char *tool, bool held, struct error *err)
{
    struct buffer text = {0};
    struct error unwritten = {0};
    if (!held && (strcmp(err->name, "Interrupted") == 0 || interrupt_requested())) {
        tool_complain(tool, err);
        return TOOL_INTERRUPTED;
    }
    r->leg.own_reference = r->setup.own_reference;
    r->leg.golden_sha256 = r->golden != NULL ? r->golden->sha256 : "";
    r->leg.weights_sha256 = r->setup.weights_sha256;
    r->leg.drafter_sha256 = r->setup.drafter_sha256;
    if (held)
        dflash_report(&r->leg, &r->result, &r->judgement, &text);
    else
        dflash_report_failure(&r->leg, err->name, &text);
    const bool written = write_report(r, &text, &unwritten);
    buffer_free(&text);
    if (!held)
        tool_complain(tool, err);
    if (!written)
        tool_complain(tool, &unwritten);
    return held && written ? TOOL_OK : TOOL_REJECTED;
}

static int run_leg(const struct leg_flags *f, const char *tool)
{
    struct leg_run r = {.f = f};
    struct error err = {0};
    const char *const hidden[] = {f->golden, NULL};
    int code = TOOL_USAGE;
    if (open_leg(&r, &err)) {
        const bool held = load_golden(&r, &err) && dflash_prepare(&r.setup, hidden, &err) &&
                          time_it(&r, &err) && judge_it(&r, &err);
        code = close_leg(&r, tool, held, &err);
    } else {
        tool_complain(tool, &err);
    }
    dflash_golden_free(r.golden);
    dflash_setup_close(&r.setup);
    return code;
}

int tool_dflash_benchmark(int argc, char **argv)
{
    static const char tool[] = "dflash-benchmark";
    struct leg_flags f = {0};
    const struct option_spec options[] = {
        LEG_ROWS(&f),
        {"--block-size", OPTION_INT, false, "K",
         "Widest block, 1 to the contract's maximum_block_size. Default: its block_size.",
         &f.block_size, &f.has_block_size, 1, FIDELITY_BLOCK_MOST},
        {"--schedule-seed", OPTION_INT, false, "S",
         "Seed of the widths that the judge asks for, 2 to the widest. Default 0.",
         &f.schedule_seed, NULL, 0, INT64_MAX},
        {"--work-binding-tolerance-absolute", OPTION_REAL, false, "X",
         "Widens the contract's limit, to look at drift; every delta is listed then. Refused where "
         "MLXFAST_OFFICIAL_BENCHMARK_RUN is 1.",
         &f.absolute, &f.has_absolute, 0, 0},
        {"--work-binding-tolerance-relative", OPTION_REAL, false, "Y",
         "The same for the relative limit.", &f.relative, &f.has_relative, 0, 0},
        {"--work-binding-tolerance-mean", OPTION_REAL, false, "Z",
         "The same for the limit of the mean, where the contract has one.", &f.mean, &f.has_mean, 0,
         0},
    };
    const struct command command = {"benchd dflash-benchmark",
                                    "Times one leg of block decoding and checks it against a "
                                    "reference.",
                                    exits,
                                    NULL,
                                    options,
                                    COUNT_OF(options)};
    int code;
    return tool_parse(&command, tool, argc, argv, NULL, &code) ? run_leg(&f, tool) : code;
}

int tool_dflash_probe(int argc, char **argv)
{
    static const char tool[] = "dflash-probe";
    struct leg_flags f = {.block_size = 1, .has_block_size = true};
    const struct option_spec options[] = {LEG_ROWS(&f)};
    const struct command command = {"benchd dflash-probe",
                                    "Times the serial control of block decoding: the same leg, "
                                    "every block of width 1.",
                                    exits,
                                    NULL,
                                    options,
                                    COUNT_OF(options)};
    int code;
    return tool_parse(&command, tool, argc, argv, NULL, &code) ? run_leg(&f, tool) : code;
}
