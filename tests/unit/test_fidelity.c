/* Token fidelity: what an answer, a run and its reference must hold, each limit from both sides. */
#include "judge/fidelity.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { VOCAB = 100, ROUNDS = 3, SEEDS = 10 };

/* Three rounds. 0: width 4, four rows, three tokens, one draft rejected. 1: width 2, one row. 2:
 * width 4, four rows, all accepted; two of its tokens are beyond the wanted six. Tokens are 20..27,
 * the rejected draft 60; every row's logits are 8 and 4, so no row is flat. */
struct fixture {
    struct fidelity_limits limits;
    struct fidelity_run run;
    struct fidelity_round rounds[ROUNDS];
    int64_t tokens[ROUNDS][4], drafts[ROUNDS][4];
    struct fidelity_readout readouts[ROUNDS][4];
    struct fidelity_reference_round refs[ROUNDS];
    int64_t k1[ROUNDS][4], declared[ROUNDS][4], emitted[ROUNDS][4];
    struct fidelity_readout top[ROUNDS][4], verify[ROUNDS][4];
    double top1[ROUNDS][4], emitted_logit[ROUNDS][4];
    struct arena arena;
    struct fidelity_judgement out;
    struct error err;
};

static struct fidelity_readout readout(int64_t token)
{
    return (struct fidelity_readout){.token = {token, token + 25}, .logit = {8, 4}};
}

static void build(struct fixture *f)
{
    static const struct {
        int width, rows, count, scored, accepted;
    } shape[ROUNDS] = {{4, 4, 3, 3, 2}, {2, 1, 1, 1, 0}, {4, 4, 4, 2, 3}};
    memset(f, 0, sizeof *f);
    f->limits = (struct fidelity_limits){.vocab_size = VOCAB,
                                         .near_tie_logits = 1,
                                         .near_tie_per_thousand = 40,
                                         .residual_per_thousand = 5,
                                         .absolute = 0.5,
                                         .relative = 0.0625};
    static const int64_t seed[SEEDS] = {1};
    f->run = (struct fidelity_run){.seed = seed,
                                   .seed_count = SEEDS,
                                   .seed_token = 19,
                                   .wanted = 6,
                                   .block_size = 4,
                                   .rounds = f->rounds,
                                   .round_count = ROUNDS};
    int64_t next = 20;
    int64_t given = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct fidelity_round *r = &f->rounds[i];
        for (int k = 0; k < 4; k++) /* nobody may look beyond what is told */
            f->tokens[i][k] = f->drafts[i][k] = -99;
        for (int k = 0; k < shape[i].rows; k++) {
            const bool is_token = k < shape[i].count;
            const int64_t token = is_token ? next++ : 70;
            f->tokens[i][k] = is_token ? token : -99;
            f->k1[i][k] = f->declared[i][k] = f->emitted[i][k] = token;
            if (k < shape[i].rows - 1)
                f->drafts[i][k] = k < shape[i].accepted ? token : 60;
            f->readouts[i][k] = f->top[i][k] = f->verify[i][k] = readout(token);
            f->top1[i][k] = f->emitted_logit[i][k] = 8;
        }
        given += shape[i].count;
        *r = (struct fidelity_round){.width = shape[i].width,
                                     .token = 19 + given - shape[i].count,
                                     .tokens = f->tokens[i],
                                     .count = shape[i].count,
                                     .scored = shape[i].scored,
                                     .rows = shape[i].rows,
                                     .accepted = shape[i].accepted,
                                     .rejected = shape[i].rows - 1 - shape[i].accepted,
                                     .drafts = f->drafts[i],
                                     .draft_count = shape[i].rows - 1,
                                     .readouts = f->readouts[i],
                                     .readout_count = shape[i].rows,
                                     .offset = SEEDS + given,
                                     .seconds = 1};
        f->refs[i] = (struct fidelity_reference_round){.count = shape[i].scored,
                                                       .k1_argmax = f->k1[i],
                                                       .declared_argmax = f->declared[i],
                                                       .top = f->top[i],
                                                       .top1_logit = f->top1[i],
                                                       .emitted = f->emitted[i],
                                                       .emitted_logit = f->emitted_logit[i],
                                                       .verify = f->verify[i],
                                                       .verify_count = shape[i].rows};
    }
}

static bool judge(struct fixture *f)
{
    arena_free(&f->arena);
    memset(&f->err, 0, sizeof f->err);
    return fidelity_judge(&f->limits, &f->run, f->refs, &f->arena, &f->out, &f->err);
}

/* Answer by answer, as the recorder asks. */
static bool check_answers(struct fixture *f)
{
    int64_t given = 0;
    memset(&f->err, 0, sizeof f->err);
    for (size_t i = 0; i < f->run.round_count; i++) {
        if (!fidelity_check_round(&f->limits, &f->rounds[i], i, SEEDS, given, &f->err))
            return false;
        given += f->rounds[i].count;
    }
    return true;
}

/* One change to a sound run, and what it is called; NULL: it is still sound. */
struct change {
    const char *label;
    void (*make)(struct fixture *f);
    const char *name;
};

static void try_changes(const struct change *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fixture f;
        build(&f);
        rows[i].make(&f);
        const bool ok = judge(&f);
        if (ok != !rows[i].name || (!ok && strcmp(f.err.name, rows[i].name) != 0))
            fail_msg("%s: %s: %s", rows[i].label, ok ? "accepted" : f.err.name, f.err.message);
        arena_free(&f.arena);
    }
}

#define CHANGE(label, body)                                                                        \
    static void label(struct fixture *f)                                                           \
    {                                                                                              \
        body;                                                                                      \
    }
#define ROW(label, name)                                                                           \
    {                                                                                              \
#label, label, name                                                                        \
    }

/* ---- One answer ---- */

CHANGE(as_it_is, (void)f)
CHANGE(no_token, f->rounds[1].count = 0)
CHANGE(more_than_width, f->rounds[0].width = 2)
CHANGE(as_many_as_width, f->rounds[1].width = 1)
CHANGE(token_last, (f->tokens[1][0] = f->k1[1][0] = f->emitted[1][0] = VOCAB - 1,
                    f->readouts[1][0].token[0] = f->top[1][0].token[0] = VOCAB - 1,
                    f->verify[1][0].token[0] = VOCAB - 1))
CHANGE(token_beyond, f->tokens[1][0] = VOCAB)
CHANGE(token_zero,
       (f->tokens[1][0] = f->k1[1][0] = f->emitted[1][0] = 0,
        f->readouts[1][0].token[0] = f->top[1][0].token[0] = 0, f->verify[1][0].token[0] = 0))
CHANGE(token_below, f->tokens[1][0] = -1)
CHANGE(draft_last, f->drafts[0][2] = VOCAB - 1)
CHANGE(draft_beyond, f->drafts[0][2] = VOCAB)
CHANGE(draft_below, f->drafts[0][2] = -1)
CHANGE(first_draft_beyond, f->drafts[0][0] = VOCAB)
CHANGE(first_top_beyond, f->readouts[0][0].token[0] = VOCAB)
CHANGE(first_second_beyond, f->readouts[0][0].token[1] = VOCAB)
CHANGE(top_beyond, f->readouts[0][3].token[0] = VOCAB)
CHANGE(second_last, f->readouts[0][3].token[1] = VOCAB - 1)
CHANGE(second_beyond, f->readouts[0][3].token[1] = VOCAB)
CHANGE(second_below, f->readouts[0][3].token[1] = -1)
CHANGE(rows_below_tokens, f->rounds[0].rows = 2)
CHANGE(rows_above_width, f->rounds[0].width = 3)
CHANGE(drafts_too_few, f->rounds[0].draft_count = 2)
CHANGE(drafts_too_many, (f->rounds[1].draft_count = 1, f->drafts[1][0] = 60))
CHANGE(accepted_below_tokens, (f->rounds[0].accepted = 1, f->rounds[0].rejected = 2))
CHANGE(accepted_beyond_tokens, (f->rounds[0].accepted = 3, f->rounds[0].rejected = 0,
                                f->rounds[0].count = f->rounds[0].scored = 3, f->drafts[0][2] = 22))
CHANGE(accepted_above_drafts, (f->rounds[2].accepted = 4, f->rounds[2].rejected = -1))
CHANGE(rejected_too_many, f->rounds[0].rejected = 2)
CHANGE(rejected_too_few, f->rounds[0].rejected = 0)
CHANGE(totals_that_cancel, (f->rounds[0].rejected = 0, f->rounds[1].rejected = 1))
CHANGE(first_draft_other, f->drafts[0][0] = 61)
CHANGE(last_accepted_draft_other, f->drafts[0][1] = 61)
CHANGE(accepted_draft_beyond_tokens_other,
       (f->rounds[0].accepted = 3, f->rounds[0].rejected = 0, f->drafts[0][2] = 61))
CHANGE(readout_left_out, f->rounds[0].readout_count = 3)
CHANGE(readout_too_many, f->rounds[1].readout_count = 2)
CHANGE(readout_of_other_token, f->readouts[0][1].token[0] = 61)
CHANGE(readout_ascending, (f->readouts[0][0].logit[0] = 8, f->readouts[0][0].logit[1] = 8.25))
CHANGE(readout_tied, (f->readouts[0][0].logit[1] = 8, f->top[0][0].logit[1] = 8))
CHANGE(readout_not_a_number, f->readouts[0][0].logit[1] = NAN)
CHANGE(readout_top_not_a_number, f->readouts[0][0].logit[0] = NAN)
CHANGE(readout_infinite, f->readouts[0][3].logit[0] = INFINITY)
CHANGE(readout_minus_infinite, f->readouts[0][3].logit[1] = -INFINITY)
CHANGE(readout_twice_the_token, f->readouts[0][0].token[1] = f->readouts[0][0].token[0])
CHANGE(offset_above, f->rounds[0].offset++)
CHANGE(offset_below, f->rounds[1].offset--)
CHANGE(offset_of_scored_only, f->rounds[2].offset -= 2)

static void test_one_answer(void **state)
{
    (void)state;
    static const struct change rows[] = {
        ROW(as_it_is, NULL),
        ROW(no_token, "dflash_empty_block"),
        ROW(more_than_width, "dflash_oversized_block"),
        ROW(as_many_as_width, NULL),
        ROW(token_last, NULL),
        ROW(token_beyond, "dflash_out_of_vocabulary_token"),
        ROW(token_zero, NULL),
        ROW(token_below, "dflash_out_of_vocabulary_token"),
        ROW(draft_last, NULL),
        ROW(draft_beyond, "dflash_out_of_vocabulary_token"),
        ROW(draft_below, "dflash_out_of_vocabulary_token"),
        ROW(first_draft_beyond, "dflash_out_of_vocabulary_token"),
        ROW(first_top_beyond, "dflash_out_of_vocabulary_token"),
        ROW(first_second_beyond, "dflash_out_of_vocabulary_token"),
        ROW(top_beyond, "dflash_out_of_vocabulary_token"),
        ROW(second_last, NULL),
        ROW(second_beyond, "dflash_out_of_vocabulary_token"),
        ROW(second_below, "dflash_out_of_vocabulary_token"),
        ROW(rows_below_tokens, "dflash_declared_rows_missing"),
        ROW(rows_above_width, "dflash_row_accounting_mismatch"),
        ROW(drafts_too_few, "dflash_row_accounting_mismatch"),
        ROW(drafts_too_many, "dflash_row_accounting_mismatch"),
        ROW(accepted_below_tokens, "dflash_row_accounting_mismatch"),
        ROW(accepted_above_drafts, "dflash_row_accounting_mismatch"),
        ROW(rejected_too_many, "dflash_row_accounting_mismatch"),
        ROW(rejected_too_few, "dflash_row_accounting_mismatch"),
        ROW(totals_that_cancel, "dflash_row_accounting_mismatch"),
        ROW(first_draft_other, "dflash_draft_token_binding_mismatch"),
        ROW(last_accepted_draft_other, "dflash_draft_token_binding_mismatch"),
        ROW(accepted_beyond_tokens, NULL),
        ROW(accepted_draft_beyond_tokens_other, "dflash_draft_token_binding_mismatch"),
        ROW(readout_left_out, "dflash_work_binding_missing"),
        ROW(readout_too_many, "dflash_work_binding_missing"),
        ROW(readout_of_other_token, "dflash_work_binding_logit_mismatch"),
        ROW(readout_ascending, "dflash_work_binding_logit_mismatch"),
        ROW(readout_tied, NULL),
        ROW(readout_not_a_number, "dflash_work_binding_logit_mismatch"),
        ROW(readout_top_not_a_number, "dflash_work_binding_logit_mismatch"),
        ROW(readout_infinite, "dflash_work_binding_logit_mismatch"),
        ROW(readout_minus_infinite, "dflash_work_binding_logit_mismatch"),
        ROW(readout_twice_the_token, "dflash_work_binding_logit_mismatch"),
        ROW(offset_above, "dflash_cache_offset_diverged"),
        ROW(offset_below, "dflash_cache_offset_diverged"),
        ROW(offset_of_scored_only, "dflash_cache_offset_diverged"),
    };
    try_changes(rows, COUNT_OF(rows));
    for (size_t i = 0; i < COUNT_OF(rows); i++) { /* and without a reference */
        struct fixture f;
        build(&f);
        rows[i].make(&f);
        if (check_answers(&f) != !rows[i].name ||
            (rows[i].name && strcmp(f.err.name, rows[i].name) != 0))
            fail_msg("%s: %s: %s", rows[i].label, f.err.name, f.err.message);
    }
}

static void test_round_alone(void **state)
{
    (void)state;
    struct fixture f;
    build(&f);
    assert_true(fidelity_check_round(&f.limits, &f.rounds[0], 0, SEEDS, 0, &f.err));
    assert_true(fidelity_check_round(&f.limits, &f.rounds[2], 2, SEEDS, 4, &f.err));
    assert_false(fidelity_check_round(&f.limits, &f.rounds[2], 2, SEEDS, 3, &f.err));
    assert_string_equal(f.err.name, "dflash_cache_offset_diverged");
    assert_false(fidelity_check_round(&f.limits, &f.rounds[2], 2, SEEDS + 1, 4, &f.err));
    f.rounds[2].count = 2; /* more accepted than given: bound as far as given */
    f.rounds[2].offset -= 2;
    f.tokens[2][2] = -99;
    assert_true(fidelity_check_round(&f.limits, &f.rounds[2], 2, SEEDS, 4, &f.err));
    f.rounds[2].count = 5;
    assert_false(fidelity_check_round(&f.limits, &f.rounds[2], 2, SEEDS, 4, &f.err));
    assert_string_equal(f.err.name, "dflash_oversized_block");
    assert_string_equal(f.err.message,
                        "A round gave more tokens than its width: round=2 tokens=5 width=4");
}

/* ---- A run ---- */

CHANGE(run_too_short, f->run.wanted = 7)
CHANGE(run_too_long, f->run.wanted = 5)
CHANGE(run_stops_early, f->run.round_count = 2)
CHANGE(overrun_inside, (f->rounds[0].scored = 2, f->refs[0].count = 2, f->run.wanted = 5))
CHANGE(overrun_before_the_last,
       (f->rounds[0].scored = 2, f->run.round_count = 2, f->run.wanted = 3))
CHANGE(round_without_score, (f->rounds[2].scored = 0, f->refs[2].count = 0, f->run.wanted = 4))
CHANGE(scored_beyond_tokens, (f->rounds[2].scored = 5, f->run.wanted = 9))
CHANGE(whole_last_round, (f->rounds[2].scored = f->refs[2].count = 4, f->run.wanted = 8))
CHANGE(one_of_the_last, (f->rounds[2].scored = f->refs[2].count = 1, f->run.wanted = 5))
CHANGE(no_round, f->run.round_count = 0)

static void test_run(void **state)
{
    (void)state;
    static const struct change rows[] = {
        ROW(run_too_short, "dflash_incomplete_run"),
        ROW(run_too_long, "dflash_incomplete_run"),
        ROW(run_stops_early, "dflash_incomplete_run"),
        ROW(overrun_inside, "dflash_incomplete_run"),
        ROW(overrun_before_the_last, "dflash_incomplete_run"),
        ROW(round_without_score, "dflash_incomplete_run"),
        ROW(scored_beyond_tokens, "dflash_incomplete_run"),
        ROW(whole_last_round, NULL),
        ROW(one_of_the_last, NULL),
        ROW(no_round, "dflash_incomplete_run"),
    };
    try_changes(rows, COUNT_OF(rows));
}

/* The totals, of a run whose answers nobody has looked at one by one. */
static void test_run_totals(void **state)
{
    (void)state;
    static const struct {
        int round;
        int64_t accepted, rejected;
        int rows;
        bool good;
        int rows_of_next; /* round 1 has so many; 0: as built */
    } rows[] = {
        /* What one round lacks another has: each must be possible on its own. */
        {0, 16, 0, 16, false, 2},       {0, 0, 16, 16, false, 2},       {0, 2, 1, 6, false, -1},
        {0, 2, 1, 4, true, 0},          {0, 1, 2, 4, true, 0},          {0, 3, 1, 4, false, 0},
        {0, 2, 0, 4, false, 0},         {0, 2, 1, 5, false, 0},         {1, 0, 0, 2, false, 0},
        {0, 2, 2, 5, true, 0},          {0, -1, 4, 4, false, 0},        {0, 4, -1, 4, false, 0},
        {0, 0, 15, 16, true, 0},        {0, 15, 0, 16, true, 0},        {0, 16, 0, 17, false, 0},
        {0, 0, 16, 17, false, 0},       {1, 0, -1, 0, false, 0},        {2, 3, 0, 5, false, 0},
        {0, INT64_MAX, 1, 4, false, 0}, {0, 2, INT64_MIN, 4, false, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f);
        struct fidelity_round *r = &f.rounds[rows[i].round];
        r->accepted = rows[i].accepted;
        r->rejected = rows[i].rejected;
        r->rows = rows[i].rows;
        if (rows[i].rows_of_next)
            f.rounds[1].rows = rows[i].rows_of_next;
        if (fidelity_check_run(&f.run, &f.err) != rows[i].good)
            fail_msg("row %zu: %s", i, f.err.message);
        if (!rows[i].good)
            assert_string_equal(f.err.name, "dflash_row_accounting_mismatch");
    }
}

/* ---- The ladder ---- */

/* Row 1 of round 0 gives a token that the chain does not; its logit lies gap below the first. */
static void other_token(struct fixture *f, double gap)
{
    f->k1[0][1] = f->declared[0][1] = 81;
    f->top[0][1].token[0] = 81;
    f->top[0][1].token[1] = 82;
    f->emitted_logit[0][1] = 8 - gap;
}

CHANGE(declared_frame_only, (f->k1[0][1] = 81, f->emitted_logit[0][1] = 1))
CHANGE(k1_only, (f->declared[0][1] = 81, f->emitted_logit[0][1] = 1))
CHANGE(near_tie_at_limit, other_token(f, 1))
CHANGE(near_tie_beyond, other_token(f, 1.0001))
CHANGE(near_tie_and_exact, other_token(f, 0))
CHANGE(second_beyond_near, (other_token(f, 3), f->top[0][1].token[1] = f->tokens[0][1]))
/* A near tie goes by the token's own logit, not by the gap of the first two (section 17). */
CHANGE(own_logit_far_gap_small,
       (other_token(f, 3), f->top[0][1].logit[1] = 7.5, f->readouts[0][1].logit[1] = 7.5))
CHANGE(untold_in_top_two_near,
       (other_token(f, 0), f->refs[0].emitted_logit = NULL, f->top[0][1].token[1] = f->tokens[0][1],
        f->top[0][1].logit[1] = 7, f->readouts[0][1].logit[1] = 7,
        f->limits.residual_per_thousand = 0))
CHANGE(untold_in_top_two_far,
       (other_token(f, 0), f->refs[0].emitted_logit = NULL, f->top[0][1].token[1] = f->tokens[0][1],
        f->top[0][1].logit[1] = 6.9999, f->readouts[0][1].logit[1] = 6.9999,
        f->limits.residual_per_thousand = 0))
CHANGE(untold_id_in_top_two_near,
       (other_token(f, 0), f->refs[0].emitted = NULL, f->top[0][1].token[1] = f->tokens[0][1],
        f->top[0][1].logit[1] = 7, f->readouts[0][1].logit[1] = 7,
        f->limits.residual_per_thousand = 0))
CHANGE(untold_outside_top_two, (other_token(f, 0), f->refs[0].emitted = NULL,
                                f->top[0][1].logit[1] = 8, f->readouts[0][1].logit[1] = 8))
CHANGE(untold_first_of_top_two,
       (other_token(f, 0), f->refs[0].emitted = NULL, f->top[0][1].token[0] = f->tokens[0][1],
        f->top[0][1].logit[1] = 7.5, f->readouts[0][1].logit[1] = 7.5,
        f->limits.residual_per_thousand = 0))
CHANGE(first_of_top_two_is_residual, (other_token(f, 3), f->top[0][1].token[0] = f->tokens[0][1]))

static void test_ladder(void **state)
{
    (void)state;
    static const struct change rows[] = {
        ROW(declared_frame_only, NULL),
        ROW(k1_only, NULL),
        ROW(near_tie_at_limit, NULL),
        ROW(near_tie_beyond, "dflash_token_not_admissible"),
        ROW(near_tie_and_exact, NULL),
        ROW(second_beyond_near, NULL),
        ROW(own_logit_far_gap_small, "dflash_token_not_admissible"),
        ROW(untold_in_top_two_near, NULL),
        ROW(untold_in_top_two_far, "dflash_residual_budget_exhausted"),
        ROW(untold_id_in_top_two_near, NULL),
        ROW(untold_outside_top_two, "dflash_token_not_admissible"),
        ROW(untold_first_of_top_two, NULL),
        ROW(first_of_top_two_is_residual, NULL),
    };
    try_changes(rows, COUNT_OF(rows));
}

static void test_ladder_counts(void **state)
{
    (void)state;
    static const struct {
        void (*make)(struct fixture *f);
        int64_t exact, declared, near, residual;
    } rows[] = {
        {as_it_is, 6, 0, 0, 0},
        {k1_only, 6, 0, 0, 0},
        {declared_frame_only, 5, 1, 0, 0},
        {near_tie_at_limit, 5, 0, 1, 0},
        {second_beyond_near, 5, 0, 0, 1},
        {untold_in_top_two_near, 5, 0, 1, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f);
        rows[i].make(&f);
        assert_true(judge(&f));
        const struct fidelity_counts *n = &f.out.counts;
        assert_int_equal(n->exact, rows[i].exact);
        assert_int_equal(n->declared_frame, rows[i].declared);
        assert_int_equal(n->near_tie, rows[i].near);
        assert_int_equal(n->residual, rows[i].residual);
        arena_free(&f.arena);
    }
}

/* ---- Logits ---- */

CHANGE(first_at_absolute, f->readouts[0][0].logit[0] = 8.5)
CHANGE(first_beyond_absolute, f->readouts[0][0].logit[0] = 8.5001)
CHANGE(first_below_absolute, f->readouts[0][0].logit[0] = 7.4999)
CHANGE(second_at_relative, f->readouts[0][0].logit[1] = 3.75)
CHANGE(second_beyond_relative, f->readouts[0][0].logit[1] = 3.7499)
CHANGE(second_above_relative, f->readouts[0][0].logit[1] = 4.27)
/* Within each of the two alone, and not of the other. */
CHANGE(absolute_alone_broken, (f->limits.relative = 1.5, f->readouts[0][0].logit[0] = 8.51))
CHANGE(relative_alone_broken, (f->limits.absolute = 100, f->readouts[0][0].logit[1] = 3.7))
CHANGE(last_scored_row, f->readouts[2][1].logit[0] = 9)
CHANGE(zero_and_zero, (f->readouts[1][0].logit[1] = 0, f->top[1][0].logit[1] = -0.0,
                       f->limits.absolute = 0, f->limits.relative = 0))
CHANGE(zero_tolerances, (f->limits.absolute = 0, f->limits.relative = 0))
CHANGE(zero_tolerances_broken,
       (f->limits.absolute = 0, f->limits.relative = 0, f->readouts[1][0].logit[1] += 0x1p-40))
CHANGE(opposite_signs,
       (f->readouts[1][0].logit[1] = -0.2, f->top[1][0].logit[1] = 0.2, f->limits.relative = 1.99))
CHANGE(beyond_doubles,
       (f->limits.absolute = 1e308, f->limits.relative = 1.99,
        f->readouts[1][0].logit[1] = -1.7e308, f->top[1][0].logit[1] = 1.7e308,
        f->top[1][0].logit[0] = f->top1[1][0] = 1.7e308, f->emitted_logit[1][0] = 1.7e308))
CHANGE(tolerance_not_a_number, f->limits.absolute = NAN)
CHANGE(relative_not_a_number, f->limits.relative = NAN)

static void test_work_binding(void **state)
{
    (void)state;
    static const struct change rows[] = {
        ROW(first_at_absolute, NULL),
        ROW(first_beyond_absolute, "dflash_work_binding_logit_mismatch"),
        ROW(first_below_absolute, "dflash_work_binding_logit_mismatch"),
        ROW(second_at_relative, NULL),
        ROW(second_beyond_relative, "dflash_work_binding_logit_mismatch"),
        ROW(second_above_relative, "dflash_work_binding_logit_mismatch"),
        ROW(absolute_alone_broken, "dflash_work_binding_logit_mismatch"),
        ROW(relative_alone_broken, "dflash_work_binding_logit_mismatch"),
        ROW(last_scored_row, "dflash_work_binding_logit_mismatch"),
        ROW(zero_and_zero, NULL),
        ROW(zero_tolerances, NULL),
        ROW(zero_tolerances_broken, "dflash_work_binding_logit_mismatch"),
        ROW(opposite_signs, "dflash_work_binding_logit_mismatch"),
        ROW(beyond_doubles, "dflash_work_binding_logit_mismatch"),
        ROW(tolerance_not_a_number, "dflash_work_binding_logit_mismatch"),
        ROW(relative_not_a_number, "dflash_work_binding_logit_mismatch"),
    };
    try_changes(rows, COUNT_OF(rows));
}

static void test_deltas(void **state)
{
    (void)state;
    struct fixture f;
    build(&f);
    f.readouts[0][0].logit[0] = 8.5;
    f.readouts[1][0].logit[1] = 3.75;
    assert_true(judge(&f));
    assert_int_equal(f.out.counts.binding_comparisons, 12);
    for (int i = 0; i < 12; i++) {
        const double want = i == 0 ? 0.5 : i == 7 ? 0.25 : 0;
        assert_true(f.out.deltas[i] == want);
        assert_true(f.out.relative_deltas[i] == (i == 0 ? 0.5 / 8.5 : i == 7 ? 0.25 / 4 : 0));
        assert_int_equal(f.out.delta_widths[i], i == 6 || i == 7 ? 2 : 4);
    }
    arena_free(&f.arena);
}

/* ---- The rows behind the tokens ---- */

static void flatten(struct fixture *f, int round, int row, double gap)
{
    f->verify[round][row].logit[1] = f->verify[round][row].logit[0] - gap;
    f->readouts[round][row].logit[1] = f->verify[round][row].logit[1];
}

CHANGE(rejection_fabricated, f->verify[0][2].token[0] = 60)
/* The row gave a token, so that work binding holds its logits to the chain's. */
CHANGE(rejection_on_flat_row,
       (f->verify[0][2].token[0] = 60, flatten(f, 0, 2, 1), f->top[0][2].logit[1] = 7))
CHANGE(rejection_on_steeper_row,
       (f->verify[0][2].token[0] = 60, flatten(f, 0, 2, 1.0001), f->top[0][2].logit[1] = 6.9999))
CHANGE(second_is_the_draft, f->verify[0][2].token[1] = 60)
CHANGE(accepted_row_otherwise, f->verify[0][1].token[0] = 60)
CHANGE(nothing_rejected, f->verify[2][3].token[0] = f->drafts[2][3] = 71)
CHANGE(tail_id_other, f->readouts[0][3].token[0] = 71)
CHANGE(tail_id_other_on_flat_row, (f->readouts[0][3].token[0] = 71, flatten(f, 0, 3, 1)))
CHANGE(tail_id_other_on_steeper_row, (f->readouts[0][3].token[0] = 71, flatten(f, 0, 3, 1.0001)))
CHANGE(tail_second_id_other, f->readouts[0][3].token[1] = 72)
CHANGE(tail_first_at_absolute, f->readouts[0][3].logit[0] = 8.5)
CHANGE(tail_first_beyond_absolute, f->readouts[0][3].logit[0] = 8.5001)
CHANGE(tail_second_at_relative, f->readouts[0][3].logit[1] = 3.75)
CHANGE(tail_second_beyond_relative, f->readouts[0][3].logit[1] = 3.7499)
CHANGE(tail_flat_but_far, (flatten(f, 0, 3, 1), f->readouts[0][3].logit[0] = 8.5001))
CHANGE(tail_not_replayed, (f->refs[0].verify_count = 0, f->readouts[0][3].logit[0] = 20,
                           f->verify[0][2].token[0] = 60))
CHANGE(overrun_token_other, (f->readouts[2][2].token[0] = f->tokens[2][2] = f->drafts[2][2] = 71))
CHANGE(overrun_logit_other, f->readouts[2][3].logit[0] = 9)
/* The last round, cut to two tokens with its three drafts accepted: what row 2 says holds draft 2.
 */
static void cut(struct fixture *f)
{
    f->rounds[2].count = 2;
    f->rounds[2].offset -= 2;
}
CHANGE(cut_round, cut(f))
CHANGE(cut_draft_other, (cut(f), f->drafts[2][2] = 60))
CHANGE(cut_draft_other_on_flat_row, (cut(f), f->drafts[2][2] = 60, flatten(f, 2, 2, 1)))
CHANGE(cut_draft_other_on_steeper_row, (cut(f), f->drafts[2][2] = 60, flatten(f, 2, 2, 1.0001)))
CHANGE(cut_draft_other_not_replayed, (cut(f), f->drafts[2][2] = 60, f->refs[2].verify_count = 0))
CHANGE(scored_row_of_replay_other, f->verify[2][1].logit[0] = 20)

static void test_tail(void **state)
{
    (void)state;
    static const struct change rows[] = {
        ROW(rejection_fabricated, "dflash_fabricated_rejection"),
        ROW(rejection_on_flat_row, NULL),
        ROW(rejection_on_steeper_row, "dflash_fabricated_rejection"),
        ROW(second_is_the_draft, NULL),
        ROW(accepted_row_otherwise, NULL),
        ROW(nothing_rejected, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_id_other, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_id_other_on_flat_row, NULL),
        ROW(tail_id_other_on_steeper_row, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_second_id_other, NULL),
        ROW(tail_first_at_absolute, NULL),
        ROW(tail_first_beyond_absolute, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_second_at_relative, NULL),
        ROW(tail_second_beyond_relative, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_flat_but_far, "dflash_rejected_row_readout_mismatch"),
        ROW(tail_not_replayed, NULL),
        ROW(overrun_token_other, "dflash_rejected_row_readout_mismatch"),
        ROW(overrun_logit_other, "dflash_rejected_row_readout_mismatch"),
        ROW(cut_round, NULL),
        ROW(cut_draft_other, "dflash_draft_token_binding_mismatch"),
        ROW(cut_draft_other_on_flat_row, NULL),
        ROW(cut_draft_other_on_steeper_row, "dflash_draft_token_binding_mismatch"),
        ROW(cut_draft_other_not_replayed, NULL),
        ROW(scored_row_of_replay_other, NULL),
    };
    try_changes(rows, COUNT_OF(rows));
}

static void test_counts(void **state)
{
    (void)state;
    struct fixture f;
    build(&f);
    f.readouts[0][3].logit[0] = 8.25;
    f.readouts[2][3].logit[1] = 4.125;
    f.refs[1].verify_count = 0;
    assert_true(judge(&f));
    const struct fidelity_counts *n = &f.out.counts;
    assert_int_equal(n->emitted, 6);
    assert_int_equal(n->checked_rows, 6);
    assert_int_equal(n->declared_rows, 9);
    assert_int_equal(n->accepted, 5);
    assert_int_equal(n->rejected, 1);
    assert_int_equal(n->target_tail, 3);
    assert_int_equal(n->rounds, 3);
    assert_int_equal(n->replayed_blocks, 2);
    assert_int_equal(n->checked_rejected_rows, 3); /* one rejected, two of the overrun */
    assert_int_equal(n->tail_comparisons, 6);
    assert_true(n->max_tail_delta == 0.25);
    assert_int_equal(n->accepted + n->rejected + n->target_tail, n->declared_rows);
    arena_free(&f.arena);
}

/* ---- A reference that is none ---- */

CHANGE(ref_rows_too_few, f->refs[0].count = 2)
CHANGE(ref_rows_too_many, f->refs[0].count = 4)
CHANGE(ref_without_k1, f->refs[0].k1_argmax = NULL)
CHANGE(ref_without_declared, f->refs[0].declared_argmax = NULL)
CHANGE(ref_without_top, f->refs[0].top = NULL)
CHANGE(ref_without_top1, f->refs[0].top1_logit = NULL)
CHANGE(ref_top_not_a_number, (f->top[1][0].logit[0] = f->top1[1][0] = NAN))
CHANGE(ref_top_infinite, (f->top[1][0].logit[0] = f->top1[1][0] = INFINITY))
CHANGE(ref_second_not_a_number, f->top[1][0].logit[1] = NAN)
CHANGE(ref_second_minus_infinite, f->top[1][0].logit[1] = -INFINITY)
CHANGE(ref_ascending, f->top[1][0].logit[1] = 8.25)
CHANGE(ref_one_token_twice, f->top[1][0].token[1] = f->top[1][0].token[0])
CHANGE(ref_first_outside, f->top[1][0].token[0] = VOCAB)
CHANGE(ref_first_below, f->top[1][0].token[0] = -1)
CHANGE(ref_second_outside, f->top[1][0].token[1] = VOCAB)
CHANGE(ref_second_zero, f->top[1][0].token[1] = 0)
CHANGE(ref_second_below, f->top[1][0].token[1] = -1)
CHANGE(ref_top1_differs, f->top1[1][0] = 8.25)
CHANGE(ref_echo_differs, f->emitted[1][0] = 5)
CHANGE(ref_own_logit_not_a_number, f->emitted_logit[1][0] = NAN)
CHANGE(ref_own_logit_minus_infinite, f->emitted_logit[1][0] = -INFINITY)
CHANGE(ref_own_logit_above, f->emitted_logit[1][0] = 8.0001)
CHANGE(ref_untold_own_logit, (f->refs[1].emitted_logit = NULL, f->emitted[1][0] = 5))
CHANGE(ref_untold_echo, (f->refs[1].emitted = NULL, f->emitted_logit[1][0] = NAN))
CHANGE(ref_replay_too_short, f->refs[0].verify_count = 3)
CHANGE(ref_replay_too_long, f->refs[1].verify_count = 2)
CHANGE(ref_replay_absent, f->refs[0].verify = NULL)
CHANGE(ref_replay_not_a_number, f->verify[0][0].logit[0] = NAN)
CHANGE(ref_replay_infinite, f->verify[0][3].logit[1] = -INFINITY)

static void test_reference_must_be_sound(void **state)
{
    (void)state;
    static const char invalid[] = "ReferenceInvalid";
    const struct change rows[] = {
        ROW(ref_rows_too_few, invalid),
        ROW(ref_rows_too_many, invalid),
        ROW(ref_without_k1, invalid),
        ROW(ref_without_declared, invalid),
        ROW(ref_without_top, invalid),
        ROW(ref_without_top1, invalid),
        ROW(ref_top_not_a_number, invalid),
        ROW(ref_top_infinite, invalid),
        ROW(ref_second_not_a_number, invalid),
        ROW(ref_second_minus_infinite, invalid),
        ROW(ref_ascending, invalid),
        ROW(ref_one_token_twice, invalid),
        ROW(ref_first_outside, invalid),
        ROW(ref_first_below, invalid),
        ROW(ref_second_outside, invalid),
        ROW(ref_second_zero, NULL),
        ROW(ref_second_below, invalid),
        ROW(ref_top1_differs, invalid),
        ROW(ref_echo_differs, invalid),
        ROW(ref_own_logit_not_a_number, invalid),
        ROW(ref_own_logit_minus_infinite, invalid),
        ROW(ref_own_logit_above, invalid),
        ROW(ref_untold_own_logit, NULL),
        ROW(ref_untold_echo, NULL),
        ROW(ref_replay_too_short, invalid),
        ROW(ref_replay_too_long, invalid),
        ROW(ref_replay_absent, invalid),
        ROW(ref_replay_not_a_number, invalid),
        ROW(ref_replay_infinite, invalid),
    };
    try_changes(rows, COUNT_OF(rows));
}

/* ---- Budgets ---- */

static void test_budgets(void **state)
{
    (void)state;
    static const struct {
        int64_t per_thousand, tokens, budget;
    } rows[] = {
        {40, 1, 1},    {40, 25, 1},  {40, 26, 2},
        {40, 50, 2},   {40, 51, 3},  {40, 128, 6},
        {40, 512, 21}, {5, 1, 1},    {5, 25, 1},
        {5, 26, 1},    {5, 128, 1},  {5, 200, 1},
        {5, 201, 2},   {5, 512, 3},  {0, 512, 0},
        {1000, 7, 7},  {1, 1, 1},    {1, 1000, 1},
        {1, 1001, 2},  {-1, 512, 0}, {1000, INT32_MAX, INT32_MAX},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (fidelity_budget(rows[i].per_thousand, rows[i].tokens) != rows[i].budget)
            fail_msg("%lld of %lld: %lld", (long long)rows[i].per_thousand,
                     (long long)rows[i].tokens,
                     (long long)fidelity_budget(rows[i].per_thousand, rows[i].tokens));
}

/* A run of n rounds of one token, the first `odd` of which are near ties, or residuals. */
static bool judge_long_run(int64_t n, int64_t odd, bool near, struct error *err)
{
    struct arena a = {0};
    struct fidelity_judgement out;
    struct fixture f;
    build(&f);
    f.run.wanted = n;
    f.run.round_count = (size_t)n;
    f.run.rounds = arena_array(&a, (size_t)n, sizeof *f.run.rounds);
    struct fidelity_reference_round *refs = arena_array(&a, (size_t)n, sizeof *refs);
    static const int64_t other = 81;
    static const double far_logit = 5, near_logit = 7.5, top1 = 8;
    struct fidelity_readout *top = arena_array(&a, 1, sizeof *top);
    *top = (struct fidelity_readout){.token = {other, near ? 82 : 23}, .logit = {8, 4}};
    for (int64_t i = 0; i < n; i++) {
        f.run.rounds[i] = f.rounds[1]; /* token 23 */
        f.run.rounds[i].offset = SEEDS + i + 1;
        refs[i] = f.refs[1];
        if (i < odd) {
            refs[i].k1_argmax = refs[i].declared_argmax = &other;
            refs[i].top = top;
            refs[i].top1_logit = &top1;
            refs[i].emitted_logit = near ? &near_logit : &far_logit;
        }
    }
    const bool ok = fidelity_judge(&f.limits, &f.run, refs, &a, &out, err);
    arena_free(&a);
    return ok;
}

static void test_budgets_of_runs(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, near, residual;
    } rows[] = {{1, 1, 1},  {1, 1000, 1}, {1, 1001, 2}, {25, 1, 1},
                {26, 2, 1}, {128, 6, 1},  {512, 21, 3}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int near = 0; near < 2; near++) {
            const int64_t n = rows[i].tokens, most = near ? rows[i].near : rows[i].residual;
            struct error err = {0};
            if (!judge_long_run(n, most, near, &err))
                fail_msg("%lld of %lld: %s", (long long)most, (long long)n, err.message);
            if (most + 1 > n)
                continue;
            assert_false(judge_long_run(n, most + 1, near, &err));
            assert_string_equal(err.name, "dflash_residual_budget_exhausted");
            assert_non_null(strstr(err.message, near ? "near_ties=" : "residuals="));
        }
    }
}

/* ---- The mean ---- */

/* A run of n rounds of one token whose first logits lie so far off, the last one's farther. */
struct drifting {
    int64_t tokens;
    double each, last;
    bool limited;
    bool good;
    int64_t early; /* above 0: only so many at the beginning lie off */
};

static void try_drifting(const struct drifting *d)
{
    struct arena a = {0};
    struct fidelity_judgement out;
    struct fixture f;
    struct error err = {0};
    build(&f);
    f.limits.has_mean = d->limited;
    f.limits.mean = 0.0625;
    f.run.wanted = d->tokens;
    f.run.round_count = (size_t)d->tokens;
    f.run.rounds = arena_array(&a, f.run.round_count, sizeof *f.run.rounds);
    struct fidelity_reference_round *refs = arena_array(&a, f.run.round_count, sizeof *refs);
    struct fidelity_readout *own = arena_array(&a, f.run.round_count, sizeof *own);
    for (int64_t i = 0; i < d->tokens; i++) {
        own[i] = f.readouts[1][0];
        if (d->early == 0 || i < d->early)
            own[i].logit[0] += i + 1 < d->tokens ? d->each : d->last;
        f.run.rounds[i] = f.rounds[1];
        f.run.rounds[i].readouts = &own[i];
        f.run.rounds[i].offset = SEEDS + i + 1;
        refs[i] = f.refs[1];
    }
    if (fidelity_judge(&f.limits, &f.run, refs, &a, &out, &err) != d->good)
        fail_msg("%lld tokens, %g and %g: %s", (long long)d->tokens, d->each, d->last, err.message);
    if (!d->good) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, ": round=%lld mean_over=%lld", (long long)d->tokens,
                 d->early > 0 ? (long long)FIDELITY_MEAN_FIRST : 2 * (long long)d->tokens);
        assert_string_equal(err.name, "dflash_work_binding_logit_mismatch");
        assert_non_null(strstr(err.message, wanted));
        assert_string_equal(strstr(err.message, ": round="), wanted);
    }
    arena_free(&a);
}

/* Two comparisons a token, of which the second differs by nothing: the mean is half of each. */
static void test_mean(void **state)
{
    (void)state;
    static const struct drifting rows[] = {
        {64, 0.125, 0.125, true, true, 0},
        {64, 0.125, 0.12501, true, false, 0},
        {512, 0.125, 0.125, true, true, 0},
        {512, 0.125, 0.126, true, false, 0},
        {512, -0.125, -0.125, true, true, 0},
        {512, -0.1251, -0.1251, true, false, 0},
        {64, 0.5, 0.5, true, false, 0},
        {63, 0.5, 0.5, true, true, 0},
        {64, 0, 0.5, true, true, 0},
        {512, 0.5, 0.5, false, true, 0},
        {2 * 64, 0.1875, 0.1875, true, false, 0},
        {512, 0.125, 0, true, true, 128},
        {512, 0.1251, 0, true, false, 128},
        {512, 0.25, 0, true, true, 64},
        {512, 0.2501, 0, true, false, 64},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        try_drifting(&rows[i]);
    const int64_t least = FIDELITY_MEAN_LEAST;
    assert_int_equal(least, 2 * 64);
}

/* ---- Widths and times ---- */

static void test_splitmix64(void **state)
{
    (void)state;
    uint64_t zero = 0, other = 1234567;
    assert_true(fidelity_splitmix64(&zero) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(fidelity_splitmix64(&zero) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(fidelity_splitmix64(&zero) == UINT64_C(0x06c45d188009454f));
    assert_true(fidelity_splitmix64(&other) == UINT64_C(6457827717110365317));
    assert_true(fidelity_splitmix64(&other) == UINT64_C(3203168211198807973));
}

static void test_schedule(void **state)
{
    (void)state;
    for (int low = 1; low <= FIDELITY_BLOCK_MOST; low++) {
        for (int high = low; high <= FIDELITY_BLOCK_MOST; high++) {
            struct fidelity_schedule s = fidelity_schedule_begin(7, low, high);
            uint64_t numbers = 7;
            bool seen[FIDELITY_BLOCK_MOST + 1] = {false};
            for (int i = 0; i < 400; i++) {
                const int width = fidelity_schedule_next(&s);
                const uint64_t span = (uint64_t)(high - low + 1);
                assert_int_equal(width, low + (int)(fidelity_splitmix64(&numbers) % span));
                assert_in_range(width, low, high);
                seen[width] = true;
            }
            for (int w = low; w <= high; w++)
                assert_true(seen[w]);
        }
    }
}

static void test_latency(void **state)
{
    (void)state;
    static const struct {
        double seconds[5];
        size_t count;
        double median, longest;
        bool stalled;
    } rows[] = {
        {{0}, 0, 0, 0, false},
        {{2}, 1, 2, 2, false},
        {{8, 2}, 2, 8, 8, false}, /* sorted[1]: the upper of two */
        {{3, 1, 2}, 3, 2, 3, false},
        {{4, 1, 1}, 3, 1, 4, false}, /* exactly four times */
        {{1, 4.0001, 1}, 3, 1, 4.0001, true},
        {{1, 2, 8, 1}, 4, 2, 8, false}, /* sorted[2] */
        {{8.0001, 2, 1, 1}, 4, 2, 8.0001, true},
        {{5, 1, 1, 1, 1}, 5, 1, 5, true},
        {{1, NAN, 1}, 3, 0, 0, true},
        {{INFINITY, 1, 1}, 3, 0, 0, true},
        {{0, 0, 1}, 3, 0, 1, true},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fidelity_round rounds[5] = {{0}};
        struct arena a = {0};
        for (size_t k = 0; k < 5; k++)
            rounds[k].seconds = rows[i].seconds[k];
        for (size_t k = rows[i].count; k < 5; k++)
            rounds[k].seconds = NAN;
        const struct fidelity_run run = {.rounds = rounds, .round_count = rows[i].count};
        const struct fidelity_latency l = fidelity_latency_of(&run, 4, &a);
        if (l.median != rows[i].median || l.longest != rows[i].longest ||
            l.stalled != rows[i].stalled)
            fail_msg("row %zu: %g %g %d", i, l.median, l.longest, l.stalled);
        for (size_t k = 0; k < rows[i].count; k++) /* the run is left as it was */
            assert_memory_equal(&rounds[k].seconds, &rows[i].seconds[k], sizeof(double));
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_answer),
        cmocka_unit_test(test_round_alone),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_totals),
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_ladder_counts),
        cmocka_unit_test(test_work_binding),
        cmocka_unit_test(test_deltas),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_reference_must_be_sound),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_budgets_of_runs),
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_splitmix64),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_latency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
