#include "judge/blocks/loop.h"

#include "base/buffer.h"

#include <math.h>

const char *blocks_role_name(enum blocks_role role)
{
    static const char *const names[] = {[BLOCKS_CONTROL] = "control",
                                        [BLOCKS_CANDIDATE] = "candidate",
                                        [BLOCKS_NULL_A] = "null-a",
                                        [BLOCKS_NULL_B] = "null-b"};
    return names[role];
}

struct paired_rule blocks_rule(const struct contract *c)
{
    struct paired_rule rule;
    contract_paired_rule(c, &rule);
    rule.min_pairs = (size_t)c->block_decode.target_pairs;
    if (rule.max_pairs < rule.min_pairs)
        rule.max_pairs = rule.min_pairs;
    rule.axis = "decode";
    return rule;
}

/* What was measured of pairs of one kind. */
struct side {
    struct block_retries retries;
    double *control, *candidate; /* seconds per token of those that count */
    size_t accepted;
};

struct loop {
    const struct contract *c;
    const struct paired_rule *rule;
    const struct blocks_doors *doors;
    struct arena *a;
    struct blocks_runs *out;
    struct side pairs, nulls;
    struct error *err;
};

static bool machine_held(const struct blocks_leg *leg)
{
    return leg->temperature_held && leg->telemetry_holds;
}

static struct blocks_slot slot_of(const struct blocks_attempt *t, bool control)
{
    const enum blocks_role role = t->null_pair ? (control ? BLOCKS_NULL_A : BLOCKS_NULL_B)
                                               : (control ? BLOCKS_CONTROL : BLOCKS_CANDIDATE);
    return (struct blocks_slot){.role = role, .pair = t->pair, .attempt = t->attempt};
}

static struct blocks_leg *leg_of(struct blocks_attempt *t, bool control)
{
    return control ? &t->control : &t->candidate;
}

/* The second leg is left out where the machine has spoilt the first: the pair cannot count. */
static bool measure_legs(struct loop *l, struct blocks_attempt *t)
{
    for (int i = 0; i < 2; i++) {
        const bool control = (i == 0) == t->control_first;
        const struct blocks_slot slot = slot_of(t, control);
        struct blocks_leg *leg = leg_of(t, control);
        if (i == 1 && !machine_held(leg_of(t, !control)))
            return true;
        l->out->failed = slot.role;
        if (!l->doors->measure(l->doors->context, &slot, leg, l->err))
            return false;
    }
    return true;
}

static bool judge_legs(struct loop *l, struct blocks_attempt *t)
{
    for (int i = 0; i < 2; i++) {
        const bool control = (i == 0) == t->control_first;
        const struct blocks_slot slot = slot_of(t, control);
        struct blocks_leg *leg = leg_of(t, control);
        if (!leg->measured)
            continue;
        l->out->failed = slot.role;
        if (!l->doors->judge(l->doors->context, &slot, leg, l->err))
            return false;
    }
    return true;
}

static bool both_in_band(const struct contract_block_decode *b, const struct blocks_attempt *t)
{
    return block_calibration_holds(b, b->decode_tokens, t->control.report.seconds_per_token) &&
           block_calibration_holds(b, b->decode_tokens, t->candidate.report.seconds_per_token);
}

/* A leg that the machine did not let run has no tokens: the machine is the reason. */
static enum block_rejection decide(const struct contract_block_decode *b,
                                   const struct blocks_attempt *t)
{
    const struct blocks_leg *x = &t->control, *y = &t->candidate;
    if (!x->temperature_held || !y->temperature_held)
        return BLOCK_REJECTION_temperature_timeout;
    if ((!x->measured || !y->measured) && (!x->telemetry_holds || !y->telemetry_holds))
        return BLOCK_REJECTION_telemetry;
    const struct block_pair pair = {.serial = x->report.seconds_per_token,
                                    .candidate = y->report.seconds_per_token,
                                    .serial_tokens = x->measured ? x->report.tokens : 0,
                                    .candidate_tokens = y->measured ? y->report.tokens : 0,
                                    .stalled = x->stalled || y->stalled,
                                    .telemetry_holds = x->telemetry_holds && y->telemetry_holds,
                                    .temperature_held = true};
    const enum block_rejection why = block_pair_rejection(b, b->decode_tokens, &pair);
    if (why == BLOCK_REJECTION_COUNT && t->null_pair && b->has_calibration && !both_in_band(b, t))
        return BLOCK_REJECTION_calibration_band; /* both are controls */
    return why;
}

static void keep(struct loop *l, struct side *s, const struct blocks_attempt *t)
{
    struct blocks_runs *o = l->out;
    s->control[s->accepted] = t->control.report.seconds_per_token;
    s->candidate[s->accepted] = t->candidate.report.seconds_per_token;
    s->accepted++;
    if (t->null_pair) {
        o->null_accepted++;
        return;
    }
    o->control[o->accepted] = t->control.report;
    o->candidate[o->accepted] = t->candidate.report;
    o->accepted++;
}

/* One pair, and again as long as its class allows it. */
static bool run_pair(struct loop *l, bool null_pair, size_t index)
{
    struct side *s = null_pair ? &l->nulls : &l->pairs;
    static const struct blocks_leg not_run = {.temperature_held = true, .telemetry_holds = true};
    for (int attempt = 1;; attempt++) {
        struct blocks_attempt *t = &l->out->attempts[l->out->count++];
        *t = (struct blocks_attempt){.pair = (int)index + 1,
                                     .attempt = attempt,
                                     .null_pair = null_pair,
                                     .control_first = null_pair || block_pair_serial_first(index),
                                     .control = not_run,
                                     .candidate = not_run,
                                     .rejection = BLOCK_REJECTION_COUNT,
                                     .unfinished = true};
        if (!measure_legs(l, t) || !judge_legs(l, t))
            return false;
        t->unfinished = false;
        t->rejection = decide(&l->c->block_decode, t);
        const bool counts = t->rejection == BLOCK_REJECTION_COUNT;
        const bool again = !counts && block_retry_take(&s->retries, t->rejection);
        const struct blocks_slot slot = slot_of(t, true);
        if (l->doors->decided)
            l->doors->decided(l->doors->context, &slot, t->rejection, again);
        if (counts)
            keep(l, s, t);
        else
            l->out->rejected[t->rejection]++;
        if (!again)
            return true;
    }
}

static bool run_nulls(struct loop *l, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (!run_pair(l, true, i))
            return false;
    return true;
}

static bool run_all(struct loop *l)
{
    const struct paired_rule *r = l->rule;
    const struct side *s = &l->pairs;
    const size_t nulls = r->null_pairs;
    for (size_t i = 0;; i++) {
        if (i >= r->min_pairs) {
            /* A fixed number of pairs is not filled up: what was lost is lost. */
            const bool more = paired_rule_is_sequential(r) && i < r->max_pairs;
            l->out->stopped = PAIRED_BOUND_REACHED;
            if (s->accepted >= r->min_pairs)
                l->out->stopped = paired_next(r, s->control, s->candidate, s->accepted);
            if (l->out->stopped == PAIRED_MORE && !more)
                l->out->stopped = PAIRED_BOUND_REACHED;
            if (!more || l->out->stopped == PAIRED_NARROW_ENOUGH)
                break;
        }
        if (!run_pair(l, false, i) || (i < nulls && !run_nulls(l, i, i + 1)))
            return false;
        if (i + 1 == r->min_pairs && !run_nulls(l, i + 1, nulls))
            return false;
    }
    return true;
}

static void estimate(struct loop *l)
{
    struct blocks_runs *o = l->out;
    const double confidence = paired_rule_confidence(l->rule);
    o->has_statistics = l->pairs.accepted > 0 &&
                        paired_estimate(l->pairs.control, l->pairs.candidate, l->pairs.accepted,
                                        confidence, PAIRED_BOOTSTRAP_SEED, &o->estimate);
    if (l->nulls.accepted == 0 ||
        !paired_estimate(l->nulls.control, l->nulls.candidate, l->nulls.accepted, confidence,
                         PAIRED_BOOTSTRAP_SEED, &o->null_estimate))
        o->null_estimate = (struct paired_estimate){0};
}

static struct side make_side(struct arena *a, size_t most)
{
    return (struct side){.control = arena_array(a, most, sizeof(double)),
                         .candidate = arena_array(a, most, sizeof(double))};
}

bool blocks_loop_run(const struct contract *c, const struct paired_rule *rule,
                     const struct blocks_doors *doors, struct arena *a, struct blocks_runs *out,
                     struct error *err)
{
    const size_t pairs = rule->max_pairs > rule->min_pairs ? rule->max_pairs : rule->min_pairs;
    /* Each class is measured again once, of pairs and of null pairs. */
    const size_t most = pairs + rule->null_pairs + 2 * (size_t)BLOCK_REJECTION_COUNT;
    *out = (struct blocks_runs){.attempts = arena_array(a, most, sizeof *out->attempts),
                                .control = arena_array(a, pairs, sizeof *out->control),
                                .candidate = arena_array(a, pairs, sizeof *out->candidate),
                                .stopped = PAIRED_BOUND_REACHED};
    struct loop l = {.c = c,
                     .rule = rule,
                     .doors = doors,
                     .a = a,
                     .out = out,
                     .pairs = make_side(a, pairs),
                     .nulls = make_side(a, rule->null_pairs + 1),
                     .err = err};
    const bool ok = run_all(&l);
    estimate(&l);
    return ok;
}

bool blocks_loop_suffices(const struct contract *c, const struct blocks_runs *runs,
                          struct error *err)
{
    const int64_t wanted = c->block_decode.min_accepted_pairs;
    if (block_pairs_suffice(&c->block_decode, runs->accepted) && runs->null_accepted > 0)
        return true;
    struct buffer why = {0};
    for (size_t i = 0; i < BLOCK_REJECTION_COUNT; i++)
        if (runs->rejected[i] > 0)
            buffer_printf(&why, "%s%s (%zu)", why.length > 0 ? ", " : "",
                          block_rejection_name((enum block_rejection)i), runs->rejected[i]);
    const bool outside = runs->rejected[BLOCK_REJECTION_calibration_band] > 0;
    error_set(err, outside ? "SERIAL-CONTROL-LEG-OUTSIDE-BAND" : "BLOCK-PAIRS-REJECTED",
              "no score, and no failure of the submission: %zu pairs count, %lld are needed, and "
              "%zu null pairs, 1 is needed; the measurement was not valid: %s",
              runs->accepted, (long long)wanted, runs->null_accepted,
              why.length > 0 ? why.data : "no attempt was rejected");
    buffer_free(&why);
    return false;
}
