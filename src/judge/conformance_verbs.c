/* Honest use: the hello, prefill, the teacher-forced kinds, barriers, and that all of them agree.
 */
#include "judge/conformance_kit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- hello ---- */

static void check_hello_v1(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V1, v);
    if (p == NULL) {
        kit_fail(v, "%s: %s", k->start_error[KIT_V1].name, k->start_error[KIT_V1].message);
        return;
    }
    /* The block protocol's are no part of v1.1; an empty list would be a claim. */
    const struct wire_texts *said = &p->hello.capabilities;
    bool claims = said->present && said->count == 0;
    for (size_t i = 0; i < said->count; i++)
        claims = claims || !manifest_check_is_block_capability(said->items[i]);
    if (claims || p->hello.spec_modes.present || p->hello.max_batch_size.present)
        kit_fail(v, "without --speculative-protocol the hello carries capabilities, spec_modes or "
                    "max_batch_size");
}

static bool known(const char *name, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool check_list(const struct wire_texts *t, const char *field, const char *const *names,
                       struct verdict *v)
{
    for (size_t i = 0; i < t->count; i++) {
        if (!known(t->items[i], names)) {
            kit_fail(v, "%s holds \"%.64s\", which the protocol does not know", field, t->items[i]);
            return false;
        }
        for (size_t j = 0; j < i; j++)
            if (strcmp(t->items[i], t->items[j]) == 0) {
                kit_fail(v, "%s holds \"%s\" twice", field, t->items[i]);
                return false;
            }
    }
    return true;
}

static void check_hello_v11(struct kit *k, struct verdict *v)
{
    static const char *const capabilities[] = {"free_run_decode",
                                               "batched_free_run_decode",
                                               "per_stream_timing",
                                               "cohort_reference_replay",
                                               "dflash_block_decode",
                                               "dflash_reference",
                                               NULL};
    static const char *const modes[] = {"serial", "mtp", "dflash", "dspark", NULL};
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p == NULL) {
        kit_fail(v, "%s: %s", k->start_error[KIT_V11].name, k->start_error[KIT_V11].message);
        return;
    }
    const struct wire_response *h = &p->hello;
    if (!check_list(&h->capabilities, "capabilities", capabilities, v) ||
        !check_list(&h->spec_modes, "spec_modes", modes, v))
        return;
    const bool batched = kit_has_capability(p, "batched_free_run_decode");
    if (kit_has_capability(p, "cohort_reference_replay") && !k->trusted)
        kit_fail(v, "cohort_reference_replay is for an organiser's build; --trusted was not given");
    else if (kit_has_capability(p, "dflash_reference") && !k->trusted)
        kit_fail(v, "dflash_reference is for an organiser's build; --trusted was not given");
    else if (batched && !kit_has_capability(p, "free_run_decode"))
        kit_fail(v, "batched_free_run_decode without free_run_decode");
    else if (batched && (!h->max_batch_size.present || h->max_batch_size.value < 2))
        kit_fail(v, "batched_free_run_decode without a max_batch_size of 2 or more");
    else if (!batched && h->max_batch_size.present)
        kit_fail(v, "max_batch_size without batched_free_run_decode");
}

static void check_nonce_fresh(struct kit *k, struct verdict *v)
{
    struct error err = {0};
    struct peer *p = kit_peer(k, KIT_V11, v);
    if (p == NULL)
        return;
    struct peer *other = kit_start(k, KIT_V11, &err);
    if (other == NULL)
        kit_fail(v, "a second process: %s: %s", err.name, err.message);
    else if (strcmp(p->hello.nonce.text, other->hello.nonce.text) == 0)
        kit_fail(v, "two processes have the same nonce");
    kit_stop(other);
}

/* ---- one kind each ---- */

static void check_prefill(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->seed);
    const struct wire_response *r;
    if (p != NULL && kit_ask(k, p, &q, &r, v))
        kit_token_in_range(k, r->token.value, "the token of prefill", v);
}

static void check_correctness(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    struct wire_request q = kit_prompt(WIRE_KIND_correctness, &k->seed);
    const struct wire_response *r;
    q.steps = (struct wire_i64){.present = true, .value = KIT_STEPS + 1};
    if (p == NULL || !kit_ask(k, p, &q, &r, v))
        return;
    for (size_t i = 0; i < r->tokens.count; i++)
        if (!kit_token_in_range(k, r->tokens.items[i], "a token of correctness", v))
            return;
}

/* A window of one token is the shortest there is. */
static void check_correctness_one(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    struct wire_request q = kit_prompt(WIRE_KIND_correctness, &k->seed);
    const struct wire_response *r;
    q.steps = (struct wire_i64){.present = true, .value = 1};
    if (p != NULL && kit_ask(k, p, &q, &r, v))
        kit_same_tokens(r->tokens.items, k->greedy, 1, "correctness with steps 1", v);
}

/* begin, then KIT_STEPS steps fed with `feed`; answers[KIT_STEPS + 1]. */
static bool walk(struct kit *k, struct peer *p, enum wire_kind begin, enum wire_kind step,
                 const int64_t *feed, int64_t *answers, struct verdict *v)
{
    struct wire_request q = kit_prompt(begin, &k->seed);
    const struct wire_response *r;
    if (!kit_ask(k, p, &q, &r, v))
        return false;
    answers[0] = begin == WIRE_KIND_decode_begin ? r->seed_token.value : r->token.value;
    for (size_t i = 0; i < KIT_STEPS; i++) {
        q = kit_token(step, feed[i]);
        if (!kit_ask(k, p, &q, &r, v))
            return false;
        answers[i + 1] = r->token.value;
    }
    return true;
}

static bool walk_decode(struct kit *k, struct peer *p, const int64_t *feed, int64_t *answers,
                        struct verdict *v)
{
    return walk(k, p, WIRE_KIND_decode_begin, WIRE_KIND_decode_step, feed, answers, v);
}

static bool walk_correctness(struct kit *k, struct peer *p, const int64_t *feed, int64_t *answers,
                             struct verdict *v)
{
    return walk(k, p, WIRE_KIND_correctness_begin, WIRE_KIND_correctness_step, feed, answers, v);
}

static void check_decode(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    int64_t answers[KIT_STEPS + 1];
    if (p == NULL || !walk_decode(k, p, k->forced.items, answers, v))
        return;
    for (size_t i = 0; i < KIT_STEPS + 1; i++)
        if (!kit_token_in_range(k, answers[i], "a token of decode", v))
            return;
}

static void check_teacher_forced(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    int64_t answers[KIT_STEPS + 1];
    if (p == NULL || !walk_correctness(k, p, k->forced.items, answers, v))
        return;
    for (size_t i = 0; i < KIT_STEPS + 1; i++)
        if (!kit_token_in_range(k, answers[i], "a token of correctness_step", v))
            return;
}

static bool list_is_sound(const struct kit *k, const struct wire_response *r, struct verdict *v)
{
    const struct wire_top_logits *t = &r->top_logits;
    if (t->count != WIRE_TOP_LOGITS) {
        kit_fail(v, "%zu top_logits, 8 are required", t->count);
        return false;
    }
    if (t->items[0].token != r->token.value) {
        kit_fail(v, "the first of top_logits is token %" PRId64 ", the reply's token is %" PRId64,
                 t->items[0].token, r->token.value);
        return false;
    }
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *e = &t->items[i];
        if (!kit_token_in_range(k, e->token, "a token of top_logits", v))
            return false;
        if (!isfinite(e->logit)) {
            kit_fail(v, "logit %zu is not finite", i);
            return false;
        }
        for (size_t j = 0; j < i; j++)
            if (t->items[j].token == e->token) {
                kit_fail(v, "token %" PRId64 " stands twice in top_logits", e->token);
                return false;
            }
        if (i == 0)
            continue;
        if (e->logit > t->items[i - 1].logit) {
            kit_fail(v, "top_logits rise at entry %zu", i);
            return false;
        }
        if (e->logit == t->items[i - 1].logit && e->token < t->items[i - 1].token) {
            kit_fail(v, "equal logits at entry %zu are not in the order of their tokens", i);
            return false;
        }
    }
    return true;
}

static void check_top_logits(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    struct wire_request q = kit_prompt(WIRE_KIND_correctness_begin, &k->seed);
    const struct wire_response *r;
    if (p == NULL || !kit_ask_loosely(k, p, &q, &r, v) || !list_is_sound(k, r, v))
        return;
    for (size_t i = 0; i < KIT_STEPS; i++) {
        q = kit_token(WIRE_KIND_correctness_step, k->forced.items[i]);
        if (!kit_ask_loosely(k, p, &q, &r, v) || !list_is_sound(k, r, v))
            return;
    }
}

/* ---- barriers ---- */

static void check_work_prefill(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->brief);
    if (p == NULL || !kit_ask(k, p, &q, NULL, v) || !kit_barrier(k, p, 0, NULL, v))
        return;
    q = kit_prompt(WIRE_KIND_correctness, &k->brief);
    q.steps = (struct wire_i64){.present = true, .value = 4};
    if (kit_ask(k, p, &q, NULL, v))
        kit_barrier(k, p, 0, NULL, v);
}

static void check_work_steps(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    int64_t answers[KIT_STEPS + 1];
    if (p == NULL || !walk_decode(k, p, k->forced.items, answers, v) ||
        !kit_barrier(k, p, KIT_STEPS + 1, NULL, v) ||
        !walk_correctness(k, p, k->forced.items, answers, v))
        return;
    kit_barrier(k, p, KIT_STEPS + 1, NULL, v);
}

/* Two sequences in one phase add up; a barrier starts from zero. */
static void check_work_reset(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    for (int i = 0; p != NULL && i < 2; i++) {
        struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k->brief);
        if (!kit_ask(k, p, &q, NULL, v))
            return;
    }
    if (p != NULL && kit_barrier(k, p, 2, NULL, v) && kit_barrier(k, p, 0, NULL, v))
        kit_barrier(k, p, 0, NULL, v);
}

static bool is_drained(const struct wire_response *r, const char *after, struct verdict *v)
{
    if (!r->cache_memory.present || r->cache_memory.value == 0)
        return true;
    kit_fail(v, "after %s cache_memory is %" PRId64 ", 0 is right", after, r->cache_memory.value);
    return false;
}

static void check_drained(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    int64_t answers[KIT_STEPS + 1];
    const struct wire_response *r;
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->seed);
    if (p == NULL || !kit_barrier(k, p, -1, &r, v) || !is_drained(r, "a barrier", v) ||
        !kit_ask(k, p, &q, NULL, v) || !kit_barrier(k, p, -1, &r, v) ||
        !is_drained(r, "prefill", v) || !walk_decode(k, p, k->forced.items, answers, v) ||
        !kit_barrier(k, p, -1, &r, v) || !is_drained(r, "decode", v) ||
        !walk_correctness(k, p, k->forced.items, answers, v) || !kit_barrier(k, p, -1, &r, v))
        return;
    is_drained(r, "correctness_step", v);
}

static void check_step_after_barrier(struct kit *k, struct verdict *v)
{
    static const enum wire_kind begins[] = {WIRE_KIND_decode_begin, WIRE_KIND_correctness_begin};
    static const enum wire_kind steps[] = {WIRE_KIND_decode_step, WIRE_KIND_correctness_step};
    struct peer *p = kit_learn_brief(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    for (size_t i = 0; p != NULL && i < 2; i++) {
        char what[64];
        struct wire_request q = kit_prompt(begins[i], &k->brief);
        if (!kit_ask(k, p, &q, NULL, v) || !kit_barrier(k, p, -1, NULL, v))
            return;
        snprintf(what, sizeof what, "%s after a barrier", wire_kind_name(steps[i]));
        q = kit_token(steps[i], k->forced.items[0]);
        if (!kit_request_refused(k, p, what, &q, v) || !kit_recovers(k, p, what, v))
            return;
    }
}

/* ---- one answer, whoever asks ---- */

static void check_prefill_agrees(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    struct wire_request q = kit_prompt(WIRE_KIND_prefill, &k->seed);
    const struct wire_response *r;
    if (p != NULL && kit_ask(k, p, &q, &r, v))
        kit_same_tokens(&r->token.value, k->greedy, 1, "prefill beside correctness", v);
}

static void check_decode_agrees(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    int64_t answers[KIT_STEPS + 1];
    if (p != NULL && walk_decode(k, p, k->greedy, answers, v))
        kit_same_tokens(answers, k->greedy, KIT_STEPS + 1,
                        "decode, fed with the tokens of correctness", v);
}

static void check_forced_agrees(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    int64_t answers[KIT_STEPS + 1];
    if (p != NULL && walk_correctness(k, p, k->greedy, answers, v))
        kit_same_tokens(answers, k->greedy, KIT_STEPS + 1,
                        "correctness_step, fed with the tokens of correctness", v);
}

/* Fed with tokens that the engine would not have chosen. */
static void check_steps_agree(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_peer(k, KIT_V11, v);
    int64_t decode[KIT_STEPS + 1], forced[KIT_STEPS + 1];
    if (p != NULL && walk_decode(k, p, k->forced.items, decode, v) &&
        kit_barrier(k, p, -1, NULL, v) && walk_correctness(k, p, k->forced.items, forced, v))
        kit_same_tokens(decode, forced, KIT_STEPS + 1, "decode_step beside correctness_step", v);
}

static bool greedy_of(struct kit *k, struct peer *p, const struct wire_tokens *prompt,
                      int64_t out[KIT_STEPS + 1], struct verdict *v)
{
    struct wire_request q = kit_prompt(WIRE_KIND_correctness, prompt);
    const struct wire_response *r;
    q.steps = (struct wire_i64){.present = true, .value = KIT_STEPS + 1};
    if (!kit_ask(k, p, &q, &r, v))
        return false;
    memcpy(out, r->tokens.items, (KIT_STEPS + 1) * sizeof *out);
    return true;
}

/* Another sequence between two equal ones, with a barrier and without. */
static void check_no_memory(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    int64_t again[KIT_STEPS + 1], other[KIT_STEPS + 1];
    if (p == NULL || !greedy_of(k, p, &k->other, other, v) ||
        !greedy_of(k, p, &k->seed, again, v) ||
        !kit_same_tokens(again, k->greedy, KIT_STEPS + 1, "seed after another prompt", v) ||
        !kit_barrier(k, p, -1, NULL, v) || !walk_decode(k, p, k->forced.items, again, v) ||
        !kit_barrier(k, p, -1, NULL, v) || !greedy_of(k, p, &k->other, again, v))
        return;
    kit_same_tokens(again, other, KIT_STEPS + 1, "the other prompt after a decode", v);
}

static void check_processes_agree(struct kit *k, struct verdict *v)
{
    struct error err = {0};
    if (!kit_learn_greedy(k, v))
        return;
    struct peer *p = kit_start(k, KIT_V11, &err);
    int64_t again[KIT_STEPS + 1];
    if (p == NULL)
        kit_fail(v, "a second process: %s: %s", err.name, err.message);
    else if (greedy_of(k, p, &k->seed, again, v))
        kit_same_tokens(again, k->greedy, KIT_STEPS + 1, "another process", v);
    kit_stop(p);
}

static void check_v1_agrees(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V1, v) : NULL;
    int64_t again[KIT_STEPS + 1];
    if (p != NULL && walk_correctness(k, p, k->greedy, again, v) &&
        kit_same_tokens(again, k->greedy, KIT_STEPS + 1, "plain v1 beside v1.1", v))
        kit_barrier(k, p, KIT_STEPS + 1, NULL, v);
}

const struct kit_check kit_verb_checks[] = {
    {"hello_v1", "Hello",
     "The first line of a plain v1 session is a hello: id 0, ok, a nonce, protocol_version 1, and "
     "no v1.1 fields.",
     check_hello_v1},
    {"hello_v1_1", "Hello",
     "With --speculative-protocol v1.1 the hello may carry known capabilities and modes that fit "
     "one another.",
     check_hello_v11},
    {"nonce_fresh", "Hello", "Each process makes a nonce of its own.", check_nonce_fresh},
    {"prefill", "prefill", "prefill answers with a token of the vocabulary.", check_prefill},
    {"correctness", "correctness", "correctness answers with exactly `steps` tokens.",
     check_correctness},
    {"correctness_one_step", "correctness", "steps 1 gives the first token alone.",
     check_correctness_one},
    {"decode", "decode_begin and decode_step",
     "decode_begin answers with seed_token, each decode_step with token.", check_decode},
    {"teacher_forced", "correctness_begin and correctness_step",
     "correctness_begin and each correctness_step answer with a token of the vocabulary.",
     check_teacher_forced},
    {"top_logits", "correctness_begin and correctness_step",
     "top_logits are 8 finite logits of different tokens, falling, ties by lower token, the "
     "reply's token first.",
     check_top_logits},
    {"work_untimed", "phase_diagnostics", "prefill and correctness count as no work.",
     check_work_prefill},
    {"work_steps", "phase_diagnostics", "Each begin and each step counts as 1.", check_work_steps},
    {"work_reset", "phase_diagnostics",
     "completed_work adds up over a phase and starts from 0 after each barrier.", check_work_reset},
    {"cache_drained", "phase_diagnostics", "cache_memory is 0 or absent at every barrier.",
     check_drained},
    {"step_after_barrier", "phase_diagnostics",
     "A barrier ends the open sequence: a step after it is refused.", check_step_after_barrier},
    {"prefill_agrees", "One answer",
     "The token of prefill is the first token of correctness for the same prompt.",
     check_prefill_agrees},
    {"decode_agrees", "One answer",
     "decode_step fed with the greedy tokens gives the tokens of correctness.",
     check_decode_agrees},
    {"teacher_forced_agrees", "One answer",
     "correctness_step fed with the greedy tokens gives the tokens of correctness.",
     check_forced_agrees},
    {"steps_agree", "One answer",
     "decode_step and correctness_step give the same tokens for any tokens fed.",
     check_steps_agree},
    {"no_memory", "One answer", "An answer does not depend on what was asked before.",
     check_no_memory},
    {"processes_agree", "One answer", "Two processes give the same tokens.", check_processes_agree},
    {"v1_agrees", "One answer", "A plain v1 session gives the tokens of a v1.1 session.",
     check_v1_agrees},
};
const size_t kit_verb_count = sizeof kit_verb_checks / sizeof *kit_verb_checks;
