/* benchd dflash-reference: the golden of a block decoder, made by a reference worker. */
#include "judge/tools.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "base/terminal.h"
#include "judge/block_run.h"
#include "judge/dflash_command.h"
#include "judge/dflash_golden.h"
#include "judge/fidelity_replay.h"
#include "judge/tools_common.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { TOOL_INTERRUPTED = 130, INPUT_BYTES_MAX = 64 << 20, INPUT_DEPTH_MAX = 4 };

struct reference_flags {
    struct dflash_flags common;
    const char *emitted, *plan;
    int64_t generate, seed_generate, block_size, schedule_seed;
    bool has_generate, has_seed_generate, has_block_size;
};

struct reference_run {
    struct dflash_setup setup;
    const struct reference_flags *f;
    struct client *client;
    struct dflash_golden golden; /* made, not loaded; all of it in the setup's arena */
    int64_t *emitted;            /* [golden.row_count] */
    struct dflash_plan_round *rounds;
    size_t round_count;
    int block_size;
};

static bool invalid(struct error *err, const char *path, const char *field, const char *what)
{
    error_set(err, "RECORD-PROMPT-INVALID", "%s", what);
    return error_at(err, path, field, NULL);
}

/* {"seed_tokens": [...], "emitted": [...]}. */
static bool read_input(struct reference_run *r, struct error *err)
{
    static const char *const keys[] = {"seed_tokens", "emitted", NULL};
    const struct reference_flags *f = r->f;
    struct dflash_setup *s = &r->setup;
    const int64_t top = s->limits.vocab_size - 1;
    struct dflash_golden *g = &r->golden;
    json_t *root = json_read_file(f->emitted, INPUT_BYTES_MAX, INPUT_DEPTH_MAX, err);
    if (root == NULL)
        return false;
    const struct json_view v = {root, f->emitted, ""};
    bool ok = json_is_object(root) || invalid(err, f->emitted, NULL, "the file is no object");
    ok = ok && json_view_closed(&v, keys, err) &&
         json_get_int64_array(&s->arena, &v, "seed_tokens", 0, top, &g->seed, &g->seed_count, err);
    if (ok && !f->has_generate)
        ok =
            json_get_int64_array(&s->arena, &v, "emitted", 0, top, &r->emitted, &g->row_count, err);
    json_decref(root);
    if (!ok)
        return false;
    if (f->has_seed_generate) {
        if ((size_t)f->seed_generate > g->seed_count)
            return invalid(err, f->emitted, "seed_tokens",
                           "the file holds fewer tokens than --seed-generate takes");
        g->seed_count = (size_t)f->seed_generate;
    }
    if (g->seed_count != (size_t)s->contract->seed_tokens)
        return invalid(err, f->emitted, "seed_tokens", "the seed is not as long as the track's");
    if (f->has_generate) {
        g->row_count = (size_t)f->generate;
        r->emitted = arena_array(&s->arena, g->row_count, sizeof *r->emitted);
    }
    if (g->row_count == 0 || g->row_count > (size_t)s->contract->block_decode.maximum_decode_tokens)
        return invalid(err, f->emitted, "emitted",
                       "the tokens given out are none, or more than the track decodes");
    return true;
}

/* The rounds as the judge would ask for them; the last one is cut to the tokens that are left. */
static void plan_rounds(struct reference_run *r)
{
    struct fidelity_schedule widths = fidelity_schedule_begin(
        (uint64_t)r->f->schedule_seed, block_run_narrowest(r->block_size), r->block_size);
    r->rounds = arena_array(&r->setup.arena, r->golden.row_count, sizeof *r->rounds);
    for (size_t done = 0; done < r->golden.row_count;) {
        const int width = fidelity_schedule_next(&widths);
        const size_t left = r->golden.row_count - done;
        struct dflash_plan_round *round = &r->rounds[r->round_count++];
        *round = (struct dflash_plan_round){.block_size = width,
                                            .count = left < (size_t)width ? (int)left : width};
        done += (size_t)round->count;
    }
}

static bool begin(struct reference_run *r, struct replay *chain, struct error *err)
{
    return replay_begin(r->client, r->golden.seed, r->golden.seed_count, r->golden.row_count,
                        r->setup.limits.vocab_size, &r->setup.arena, chain, err);
}

/* As a candidate of width 1 would: the walk afterwards is another way to the same tokens. */
static bool next_token(struct reference_run *r, struct wire_request *q, int64_t *token,
                       struct error *err)
{
    const bool first = q->seed_tokens.present;
    const struct wire_response *reply;
    if (!replay_call(r->client, q, &reply, err))
        return false;
    const bool told = first ? reply->seed_token.present : reply->tokens.count == 1;
    *token = !told ? -1 : first ? reply->seed_token.value : reply->tokens.items[0];
    if (*token >= 0 && *token < r->setup.limits.vocab_size)
        return true;
    error_set(err, "ReferenceInvalid", "the reference gave no token of the vocabulary");
    return error_at(err, NULL, first ? "seed_token" : "tokens", NULL);
}

static bool generate(struct reference_run *r, struct error *err)
{
    const struct dflash_golden *g = &r->golden;
    struct wire_request begin_request = client_request(WIRE_KIND_dflash_decode_begin);
    struct wire_request end = client_request(WIRE_KIND_dflash_phase_diagnostics);
    const struct wire_response *reply;
    begin_request.seed_tokens = client_tokens(g->seed, g->seed_count);
    int64_t token;
    struct progress p = {.quiet = r->setup.f->quiet};
    progress_begin(&p, "generate", "tokens", g->row_count);
    bool ok = next_token(r, &begin_request, &token, err);
    for (size_t i = 0; ok && i < g->row_count; i++) {
        struct wire_request q = client_request(WIRE_KIND_dflash_decode_block);
        q.token = (struct wire_i64){.present = true, .value = token};
        q.max_block_size = (struct wire_i64){.present = true, .value = 1};
        ok = next_token(r, &q, &token, err);
        r->emitted[i] = token;
        progress_update(&p, i + (ok ? 1 : 0));
    }
    progress_end(&p);
    return ok && replay_call(r->client, &end, &reply, err);
}

static void keep_rows(const struct replay_answer *a, const int64_t *given, struct dflash_row *rows)
{
    const struct fidelity_reference_round *round = &a->round;
    for (int i = 0; i < round->count; i++) {
        struct dflash_row *row = &rows[i];
        row->sequential_argmax = round->k1_argmax[i];
        for (int w = 0; w <= FIDELITY_BLOCK_MOST; w++)
            row->frame_argmax[w] = -1;
        for (int w = 0; w < a->width_count; w++)
            row->frame_argmax[a->widths[w]] = a->frame_argmax[w][i];
        row->top = round->top[i];
        row->top1_logit = round->top1_logit[i];
        row->emitted_token = given[i];
        row->emitted_token_logit = round->emitted_logit[i];
    }
}

static bool walk(struct reference_run *r, size_t rounds, struct dflash_row *rows,
                 int64_t *seed_token, struct error *err)
{
    struct replay chain;
    if (!begin(r, &chain, err))
        return false;
    *seed_token = chain.seed_token;
    struct progress p = {.quiet = r->setup.f->quiet || rounds == 1};
    progress_begin(&p, "reference", "rounds", rounds);
    bool ok = true;
    size_t done = 0;
    for (size_t i = 0; ok && i < rounds; i++) {
        const struct dflash_plan_round *round = &r->rounds[i];
        const struct replay_question q = {
            .given = r->emitted + done, .count = round->count, .width = round->block_size};
        struct replay_answer answer;
        ok = replay_rows(&chain, &q, &r->setup.arena, &answer, err);
        if (ok && answer.round.emitted_logit == NULL) {
            error_set(err, "ReferenceInvalid", "the reference's answer lacks the tokens' logits");
            ok = error_at(err, NULL, "reference_emitted_token_logits", NULL);
        }
        if (ok)
            keep_rows(&answer, q.given, rows + done);
        done += (size_t)round->count;
        progress_update(&p, i + 1);
    }
    progress_end(&p);
    return ok;
}

/* Bit for bit: rows are compared as values, and no logit is NaN. */
static bool same_row(const struct dflash_row *a, const struct dflash_row *b)
{
    return a->sequential_argmax == b->sequential_argmax &&
           memcmp(a->frame_argmax, b->frame_argmax, sizeof a->frame_argmax) == 0 &&
           memcmp(&a->top, &b->top, sizeof a->top) == 0 &&
           memcmp(&a->top1_logit, &b->top1_logit, sizeof a->top1_logit) == 0 &&
           memcmp(&a->emitted_token_logit, &b->emitted_token_logit,
                  sizeof a->emitted_token_logit) == 0;
}

/* Section 8 (a): the first round again gives the same rows, and every token is its row's argmax. */
static bool check_consistency(struct reference_run *r, struct error *err)
{
    struct dflash_golden *g = &r->golden;
    const size_t count = (size_t)r->rounds[0].count;
    struct dflash_row again[FIDELITY_BLOCK_MOST];
    int64_t seed_token;
    if (!walk(r, 1, again, &seed_token, err))
        return false;
    g->self_consistent = seed_token == g->seed_token && dflash_golden_rows_agree(g);
    for (size_t i = 0; i < count; i++)
        g->self_consistent = g->self_consistent && same_row(&again[i], &g->rows[i]);
    return true;
}

static bool ask_reference(struct reference_run *r, struct error *err)
{
    struct dflash_golden *g = &r->golden;
    plan_rounds(r);
    g->rows = arena_array(&r->setup.arena, g->row_count, sizeof *g->rows);
    const bool ok = replay_start(&r->setup.reference, &r->client, err) &&
                    (!r->f->has_generate || generate(r, err)) &&
                    walk(r, r->round_count, g->rows, &g->seed_token, err) &&
                    check_consistency(r, err);
    client_free(r->client);
    r->client = NULL;
    return ok && dflash_check_unchanged(&r->setup, err);
}

/* The document passes its own loader before it is written. */
static bool write_files(struct reference_run *r, struct error *err)
{
    const char *output = r->f->common.output;
    const struct dflash_golden_rules rules = {.vocab_size = r->setup.limits.vocab_size,
                                              .seed_tokens = r->setup.contract->seed_tokens};
    struct buffer golden = {0}, plan = {0};
    struct dflash_golden *read = NULL;
    dflash_golden_write(&r->golden, &golden);
    dflash_plan_write(&r->golden, r->rounds, r->round_count, &plan);
    const bool ok =
        dflash_golden_parse(output, golden.data, golden.length, &rules, &read, err) &&
        file_write_atomic(output, golden.data, golden.length, err) &&
        (r->f->plan == NULL || file_write_atomic(r->f->plan, plan.data, plan.length, err));
    if (ok)
        printf("{\"sha256\": \"%s\", \"bytes\": %" PRIu64 ", \"seed_token_count\": %zu, "
               "\"row_count\": %zu, \"round_count\": %zu, \"reference_self_consistent\": %s}\n",
               read->sha256, read->bytes, read->seed_count, read->row_count, r->round_count,
               read->self_consistent ? "true" : "false");
    dflash_golden_free(read);
    buffer_free(&golden);
    buffer_free(&plan);
    if (ok && !r->golden.self_consistent) {
        error_set(err, "GOLDEN-NOT-SELF-CONSISTENT",
                  "the reference disagreed with itself or with the tokens given out; the golden "
                  "says so");
        return error_at(err, output, "reference_self_consistent", "false");
    }
    return ok;
}

static bool open_run(struct reference_run *r, struct error *err)
{
    const struct reference_flags *f = r->f;
    if (!dflash_setup_open(&r->setup, &f->common, err) ||
        (f->plan != NULL && !file_check_target(f->plan, err)))
        return false;
    const char *const read[] = {f->emitted, f->common.contract, f->common.engine, f->plan};
    if (!tool_check_output("--output", f->common.output, read, COUNT_OF(read), err) ||
        !tool_check_output("--plan-output", f->plan, read, COUNT_OF(read) - 1, err))
        return false;
    const int64_t size =
        f->has_block_size ? f->block_size : r->setup.contract->block_decode.block_size;
    r->block_size = (int)size;
    if (!dflash_check_block_size(&r->setup, size, err))
        return false;
    return !f->has_generate || dflash_check_tokens(&r->setup, "--generate", f->generate, err);
}

int tool_dflash_reference(int argc, char **argv)
{
    static const char tool[] = "dflash-reference";
    struct reference_flags f = {0};
    const struct option_spec options[] = {
        DFLASH_FLAG_ROWS(&f.common),
        {"--emitted", OPTION_TEXT, true, "FILE",
         "{\"seed_tokens\": [...], \"emitted\": [...]}; without emitted where --generate is given.",
         &f.emitted, NULL, 0, 0},
        {"--output", OPTION_TEXT, true, "FILE", "The golden.", &f.common.output, NULL, 0, 0},
        {"--generate", OPTION_INT, false, "N",
         "The reference makes N tokens greedily; emitted is not read.", &f.generate,
         &f.has_generate, 1, INT32_MAX},
        {"--seed-generate", OPTION_INT, false, "M", "Only the first M of seed_tokens are the seed.",
         &f.seed_generate, &f.has_seed_generate, 1, INT32_MAX},
        {"--block-size", OPTION_INT, false, "K",
         "Widest block of the plan. Default: the contract's block_size.", &f.block_size,
         &f.has_block_size, 1, FIDELITY_BLOCK_MOST},
        {"--schedule-seed", OPTION_INT, false, "S", "Seed of the plan's widths. Default 0.",
         &f.schedule_seed, NULL, 0, INT64_MAX},
        {"--plan-output", OPTION_TEXT, false, "FILE", "The plan: seed, tokens, rounds.", &f.plan,
         NULL, 0, 0},
    };
    const struct command command = {
        "benchd dflash-reference",
        "Makes the golden of a block decoder with a reference worker.",
        "--engine is started as a reference (--trusted). With --generate it first decodes by "
        "itself, one row "
        "at a time.\n"
        "Output: one JSON object on stdout: sha256, bytes, seed_token_count, row_count, "
        "round_count, reference_self_consistent.\n"
        "Exit codes: 0 made; 1 not made, or made and not self-consistent; 2 usage or an unusable "
        "contract; 130 interrupted.",
        NULL,
        options,
        COUNT_OF(options)};
    struct reference_run r = {.f = &f};
    struct error err = {0};
    const char *const hidden[] = {NULL, NULL};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    code = TOOL_USAGE;
    bool ok = open_run(&r, &err);
    if (ok) {
        code = TOOL_REJECTED;
        ok = read_input(&r, &err) && dflash_prepare(&r.setup, hidden, &err) &&
             ask_reference(&r, &err) && write_files(&r, &err);
    }
    if (ok)
        code = TOOL_OK;
    else
        tool_complain(tool, &err);
    if (!ok && strcmp(err.name, "Interrupted") == 0)
        code = TOOL_INTERRUPTED;
    dflash_setup_close(&r.setup);
    return code;
}
