/* What replies must hold: the free-run equations in their order, the cohort form, the spec echo. */
#include "judge/reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct error err;

#define assert_refused(name_, field_, call)                                                        \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        assert_false(call);                                                                        \
        assert_string_equal(err.name, name_);                                                      \
        assert_string_equal(err.field, field_);                                                    \
    } while (0)

static int64_t six[] = {1, 2, 3, 4, 5, 6};
static uint32_t widths[] = {3, 2, 1};

static struct wire_response honest(void)
{
    return (struct wire_response){
        .tokens = {true, 6, six},
        .acceptance_lengths = {true, 3, widths},
        .drafted_total = {true, 6},
        .accepted_total = {true, 3},
        .committed_total = {true, 6},
    };
}

static void free_run_equations(void **state)
{
    (void)state;
    struct wire_response r = honest();
    assert_true(reply_check_free_run(&r, 6, &err));
    r.accepted_total.value = 6; /* just inside */
    assert_true(reply_check_free_run(&r, 6, &err));
    r.accepted_total.value = 7;
    assert_refused("FreeRunConsistency", "DraftedLessThanAccepted",
                   reply_check_free_run(&r, 6, &err));
    r = honest();
    r.tokens.count = 5;
    assert_refused("FreeRunConsistency", "TokenCount", reply_check_free_run(&r, 6, &err));
    r = honest();
    r.tokens.present = false;
    r.tokens.count = 0;
    assert_refused("FreeRunConsistency", "TokenCount", reply_check_free_run(&r, 6, &err));
    r = honest();
    r.committed_total.value = 5;
    assert_refused("FreeRunConsistency", "CommittedTotal", reply_check_free_run(&r, 6, &err));
    r.committed_total = (struct wire_u64){false, 6};
    assert_refused("FreeRunConsistency", "CommittedTotal", reply_check_free_run(&r, 6, &err));
    r = honest();
    r.acceptance_lengths.count = 2;
    assert_refused("FreeRunConsistency", "AcceptanceSum", reply_check_free_run(&r, 6, &err));
    r = honest();
    r.tokens.count = 5; /* the earlier name wins */
    r.committed_total.value = 1;
    r.accepted_total.value = 9;
    assert_refused("FreeRunConsistency", "TokenCount", reply_check_free_run(&r, 6, &err));
}

static void free_run_close(void **state)
{
    (void)state;
    struct wire_response r = honest();
    r.verify_replay_disagreements = (struct wire_u64){true, 3}; /* 6 drafted, 3 accepted */
    struct free_run_close c = reply_free_run_close(&r);
    struct wire_i64 work = {true, 4};
    assert_true(reply_check_free_run_close(&c, &work, &err));
    work.value = 3;
    assert_refused("FreeRunConsistency", "RoundCounter",
                   reply_check_free_run_close(&c, &work, &err));
    work = (struct wire_i64){false, 4};
    assert_refused("FreeRunConsistency", "RoundCounter",
                   reply_check_free_run_close(&c, &work, &err));
    work = (struct wire_i64){true, 4};
    c.disagreements.value = 4;
    assert_refused("FreeRunConsistency", "VerifyReplayDisagreementsExceedRejected",
                   reply_check_free_run_close(&c, &work, &err));
    c.disagreements.present = false; /* absent is not 0: nothing to check */
    assert_true(reply_check_free_run_close(&c, &work, &err));
}

static int64_t stream[2][6] = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}};
static struct wire_tokens streams[2] = {{true, 6, stream[0]}, {true, 6, stream[1]}};
static uint32_t natural[2][3] = {{3, 2, 1}, {3, 3, 2}};
static struct wire_u32s naturals[2] = {{true, 3, natural[0]}, {true, 3, natural[1]}};
static uint32_t active[3] = {2, 2, 1};

static struct wire_response cohort(void)
{
    struct wire_response r = honest();
    r.tokens = (struct wire_tokens){0};
    r.committed_total.value = 12;
    r.tokens_by_stream = (struct wire_token_lists){true, 2, streams};
    r.natural_accepted_by_stream = (struct wire_u32_lists){true, 2, naturals};
    r.rounds = (struct wire_u32){true, 3};
    r.active_streams_by_round = (struct wire_u32s){true, 3, active};
    return r;
}

static void cohort_equations(void **state)
{
    (void)state;
    struct wire_response r = cohort();
    assert_true(reply_check_cohort(&r, 2, 6, &err));
#define COHORT(name) assert_refused("FreeRunConsistency", name, reply_check_cohort(&r, 2, 6, &err))
    r.tokens_by_stream.count = 1;
    COHORT("CohortWidth");
    r = cohort();
    streams[1].count = 5;
    COHORT("CohortStreamTokenCount");
    streams[1].count = 6;
    r.committed_total.value = 6;
    COHORT("CohortCommittedTotal");
    r = cohort();
    r.rounds.value = 2;
    COHORT("CohortRoundsDisagree");
    r = cohort();
    r.natural_accepted_by_stream.count = 1;
    COHORT("CohortNaturalWidth");
    r = cohort();
    naturals[0].count = 2;
    COHORT("CohortNaturalRoundCount");
    naturals[0].count = 3;
    natural[1][0] = 2;
    COHORT("CohortNaturalBelowCommitted");
    natural[1][0] = 3;
    r.active_streams_by_round.count = 2;
    COHORT("CohortActiveStreamsLength");
    r = cohort();
    active[2] = 0;
    COHORT("CohortActiveStreamsOutOfRange");
    active[0] = 3;
    active[2] = 1;
    COHORT("CohortActiveStreamsOutOfRange");
    active[0] = 1;
    COHORT("CohortActiveStreamsIncreased");
    active[0] = 2;
    assert_true(reply_check_cohort(&r, 2, 6, &err));
#undef COHORT
}

static struct wire_spec spec_of(struct arena *a, const char *text)
{
    struct wire_spec s = {0};
    if (text != NULL) {
        assert_true(wire_spec_decode(a, text, strlen(text), &s, &err));
        s.present = true;
    }
    return s;
}

static void spec_free(struct wire_spec *s)
{
    json_decref(s->dflash);
    json_decref(s->dspark);
}

static bool echo(const char *requested, const char *effective)
{
    struct arena a = {0};
    struct wire_spec q = spec_of(&a, requested), r = spec_of(&a, effective);
    memset(&err, 0, sizeof err);
    const bool ok = reply_check_spec_echo(&q, &r, &err);
    if (!ok)
        assert_string_equal(err.name, "SpecEchoDivergence");
    spec_free(&q);
    spec_free(&r);
    arena_free(&a);
    return ok;
}

static void spec_echo(void **state)
{
    (void)state;
    assert_true(echo(NULL, NULL));
    assert_true(echo(NULL, "{\"mode\":\"mtp\",\"mtp\":{\"depth\":3}}")); /* nothing was asked */
    assert_true(echo("{\"mode\":\"serial\"}", "{\"mode\":\"serial\"}"));
    assert_false(echo("{\"mode\":\"serial\"}", NULL));
    assert_false(echo("{\"mode\":\"serial\"}", "{\"mode\":\"serial\",\"mtp\":{\"depth\":0}}"));
    const char *two = "{\"mode\":\"mtp\",\"mtp\":{\"depth\":2}}";
    const char *none = "{\"mode\":\"mtp\",\"mtp\":{}}";
    assert_true(echo(two, two));
    assert_true(echo(none, two));
    assert_false(echo(two, none));
    assert_false(echo(none, none));
    assert_false(echo(two, "{\"mode\":\"mtp\",\"mtp\":{\"depth\":3}}"));
    assert_false(echo(two, "{\"mode\":\"serial\"}"));
    assert_false(echo(two, "{\"mode\":\"mtp\"}"));
    const char *flash = "{\"mode\":\"dflash\",\"dflash\":{\"depth\":1}}";
    assert_true(echo(flash, flash));
    assert_true(echo(flash, "{\"mode\":\"dflash\",\"dflash\":{\"depth\":1,\"draft\":{\"x\":1}}}"));
    assert_false(echo(flash, "{\"mode\":\"dflash\",\"dflash\":{\"depth\":2}}"));
    assert_false(
        echo("{\"mode\":\"dflash\",\"dflash\":{}}", "{\"mode\":\"dflash\",\"dflash\":{}}"));
    assert_true(echo("{\"mode\":\"dflash\",\"dflash\":{}}", flash));
    assert_false(echo("{\"mode\":\"dflash\",\"dflash\":{\"depth\":1,\"draft\":{\"a\":[1,2]}}}",
                      "{\"mode\":\"dflash\",\"dflash\":{\"depth\":1,\"draft\":{\"a\":[1]}}}"));
}

/* A refusal's message is sealed: what an engine wrote into an open block is not in it. */
static void spec_echo_is_not_repeated(void **state)
{
    (void)state;
    assert_false(echo("{\"mode\":\"dflash\",\"dflash\":{\"depth\":1}}",
                      "{\"mode\":\"dflash\",\"dflash\":{\"depth\":2,\"prompt\":[101,202]}}"));
    assert_null(strstr(err.message, "101"));
    assert_non_null(strstr(err.value, "101")); /* for the terminal */
    assert_false(echo("{\"mode\":\"mtp\",\"mtp\":{\"depth\":2}}",
                      "{\"mode\":\"mtp\",\"mtp\":{\"depth\":3}}"));
    assert_non_null(strstr(err.message, "effective {\"mode\":\"mtp\",\"mtp\":{\"depth\":3}}"));
}

static void top_logits_are_eight(void **state)
{
    (void)state;
    struct wire_top_logit items[9] = {{0}};
    const struct wire_request q = {0};
    struct wire_response r = {.token = {true, 1}, .top_logits = {true, 8, items}};
    assert_true(reply_check(WIRE_KIND_correctness_step, &q, &r, &err));
    r.top_logits.count = 7;
    assert_refused("Protocol", "top_logits", reply_check(WIRE_KIND_correctness_step, &q, &r, &err));
    assert_string_equal(err.message, "expected 8 top_logits, got 7");
    r.top_logits.count = 9;
    assert_refused("Protocol", "top_logits",
                   reply_check(WIRE_KIND_correctness_begin, &q, &r, &err));
    r.top_logits.count = 8;
    r.token.present = false;
    assert_refused("Protocol", "token", reply_check(WIRE_KIND_correctness_step, &q, &r, &err));
}

static void batch_echo(void **state)
{
    (void)state;
    int64_t seeds[] = {1, 2};
    const struct wire_request q = {.batch_size = {true, 2}, .count = {true, 6}};
    struct wire_response r = {.effective_batch_size = {true, 2},
                              .seed_token_by_stream = {true, 2, seeds}};
    assert_true(reply_check(WIRE_KIND_free_decode_begin, &q, &r, &err));
    r.effective_batch_size.value = 1;
    assert_refused("BatchEchoDivergence", "effective_batch_size",
                   reply_check(WIRE_KIND_free_decode_begin, &q, &r, &err));
    r.effective_batch_size = (struct wire_u32){false, 2};
    assert_refused("BatchEchoDivergence", "effective_batch_size",
                   reply_check(WIRE_KIND_free_decode_begin, &q, &r, &err));
    r = cohort();
    assert_true(reply_check(WIRE_KIND_free_decode_run, &q, &r, &err)); /* no echo: not checked */
    r.effective_batch_size = (struct wire_u32){true, 3};
    assert_refused("BatchEchoDivergence", "", reply_check(WIRE_KIND_free_decode_run, &q, &r, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_run_equations),
        cmocka_unit_test(free_run_close),
        cmocka_unit_test(cohort_equations),
        cmocka_unit_test(spec_echo),
        cmocka_unit_test(spec_echo_is_not_repeated),
        cmocka_unit_test(top_logits_are_eight),
        cmocka_unit_test(batch_echo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
