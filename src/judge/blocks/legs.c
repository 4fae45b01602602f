#include "judge/blocks/legs.h"

#include "judge/block_run.h"
#include "judge/fidelity_replay.h"

#include <stdio.h>
#include <string.h>

enum { SCHEDULE_SEED = 0 };

static bool is_named(const struct error *err, const char *name)
{
    return strcmp(err->name, name) == 0;
}

/* ---- Gates and telemetry, around the timed phase ---- */

static bool before_phase(void *context, const char *phase, struct error *err)
{
    struct blocks_legs *l = context;
    const struct quiet_point at = {
        .pair = l->slot.pair, .leg = blocks_role_name(l->slot.role), .phase = phase};
    return quiet_before(l->quiet, &at, err);
}

/* Bad clocks, and others at work, spoil the pair and not the run. */
static bool after_phase(void *context, const char *phase, struct error *err)
{
    (void)phase;
    struct blocks_legs *l = context;
    const bool held = quiet_after(l->quiet, err);
    l->spoilt = held ? quiet_last_was_contended(l->quiet)
                     : is_named(err, "TELEMETRY-THROTTLED") || is_named(err, "TELEMETRY-MISSING");
    return held || l->spoilt;
}

/* ---- One leg ---- */

static bool is_candidate(const struct blocks_slot *slot)
{
    return slot->role == BLOCKS_CANDIDATE;
}

static void note(const struct blocks_legs *l, const struct block_run_result *r,
                 const struct blocks_slot *slot, struct blocks_leg *out)
{
    const int64_t tokens = l->contract->block_decode.decode_tokens;
    const struct fidelity_latency latency =
        fidelity_latency_of(&r->run, l->contract->block_decode.stall_factor, l->arena);
    out->measured = true;
    out->median_request = latency.median;
    out->longest_request = latency.longest;
    out->stalled = latency.stalled;
    out->report = (struct block_report){
        .tokens = tokens,
        .block_size = r->run.block_size,
        .seconds_per_token = r->decode_seconds / (double)tokens,
        .decode_seconds = r->decode_seconds,
        .seed_count = (int64_t)r->run.seed_count,
        .longest = latency.longest,
        .has_latency = latency.median > 0,
        .max_over_median = latency.median > 0 ? latency.longest / latency.median : 0,
        .trained_drafter = is_candidate(slot),
        .own_reference = l->own_reference};
}

static bool measure(void *context, const struct blocks_slot *slot, struct blocks_leg *out,
                    struct error *err)
{
    struct blocks_legs *l = context;
    const struct contract_block_decode *b = &l->contract->block_decode;
    const struct measure_watch watch = {before_phase, after_phase, l};
    const struct block_run_plan plan = {.seed = l->prompt->seed,
                                        .seed_count = l->prompt->seed_count,
                                        .seed_token = l->prompt->seed_token,
                                        .tokens = b->decode_tokens,
                                        .block_size = is_candidate(slot) ? (int)b->block_size : 1,
                                        .schedule_seed = SCHEDULE_SEED,
                                        .limits = l->limits,
                                        .run_ceiling_seconds = l->run_ceiling_seconds,
                                        .watch = &watch,
                                        .rewarm_runs = l->contract->rewarm_runs,
                                        .quiet = l->silent};
    struct block_run_result *r = arena_array(l->arena, 1, sizeof *r);
    struct client *c = NULL;
    struct error ignored;
    *out = (struct blocks_leg){.temperature_held = true, .telemetry_holds = true};
    l->slot = *slot;
    l->spoilt = false;
    bool ok = client_start(is_candidate(slot) ? &l->candidate : &l->control, &c, err) &&
              block_run(c, &plan, l->arena, r, err);
    client_free(c);
    quiet_after(l->quiet, &ignored); /* a leg that failed within its phase */
    out->telemetry_holds = !l->spoilt;
    if (!ok && is_named(err, "COOL-GATE-TIMEOUT")) {
        out->temperature_held = false;
        return true;
    }
    if (!ok)
        return false;
    note(l, r, slot, out);
    out->record = r;
    return true;
}

static bool judge(void *context, const struct blocks_slot *slot, struct blocks_leg *leg,
                  struct error *err)
{
    (void)slot;
    struct blocks_legs *l = context;
    const struct block_run_result *r = leg->record;
    struct fidelity_reference_round *rounds = NULL;
    struct fidelity_judgement judgement;
    struct client *c = NULL;
    bool ok = replay_start(&l->reference, &c, err) &&
              replay_run(c, &r->run, l->limits->vocab_size, l->silent, l->arena, &rounds, err);
    client_free(c);
    if (!ok || !fidelity_judge(l->limits, &r->run, rounds, l->arena, &judgement, err))
        return false;
    const struct fidelity_counts *n = &judgement.counts;
    const int64_t drafted = n->accepted + n->rejected;
    leg->report.rounds = n->rounds;
    leg->report.accepted = n->accepted;
    leg->report.rejected = n->rejected;
    leg->report.residual = n->residual;
    leg->report.accepted_rate = drafted > 0 ? (double)n->accepted / (double)drafted : 0;
    leg->report.all_matched = n->exact + n->declared_frame == n->emitted;
    return true;
}

static void decided(void *context, const struct blocks_slot *slot, enum block_rejection why,
                    bool again)
{
    const struct blocks_legs *l = context;
    const char *kind = slot->role == BLOCKS_NULL_A ? "null pair" : "pair";
    if (why != BLOCK_REJECTION_COUNT)
        fprintf(stderr, "%s %d: rejected, %s: %s; %s\n", kind, slot->pair,
                block_rejection_name(why), block_rejection_meaning(why),
                again ? "measured again" : "left out: this class has had its retry");
    else if (!l->silent)
        fprintf(stderr, "%s %d: counts\n", kind, slot->pair);
}

struct blocks_doors blocks_legs_doors(struct blocks_legs *l)
{
    return (struct blocks_doors){
        .context = l, .measure = measure, .judge = judge, .decided = decided};
}
