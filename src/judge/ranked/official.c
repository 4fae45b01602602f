#include "judge/ranked/official.h"

#include "base/child.h"
#include "base/clock.h"
#include "judge/blocks/dispatch.h"
#include "judge/ranked/official_run.h"

#include <string.h>

/* Everything that is timed, and what is made of it. Timing comes first, correctness last. */
static bool measure(struct official *r, struct error *err)
{
    if (r->gates_only)
        return official_check_correctness(r, err);
    const struct contract *c = r->contract;
    struct quiet_rules rules = c->quiet;
    rules.cool_gate = r->o->cool_gate;
    if (!quiet_open(&rules, !r->o->local, r->o->quiet, &r->quiet, err) ||
        !ranked_pairs_run(c, &r->rule, r->prompt_sha256, r->prompt_count, official_measure, r,
                          &r->arena, &r->runs, err))
        return false;
    combine_pairs(c, r->runs.pairs, r->runs.count, &r->combined);
    return official_check_enforced(r, err) && official_replay(r, err) &&
           official_check_correctness(r, err);
}

static enum iterate_exit run_and_seal(struct official *r, struct error *err)
{
    struct error why = {0};
    const bool ready = official_prepare(r, &why);
    r->preflight_seconds = clock_seconds(r->started_ns);
    if (interrupt_requested()) { /* hashing large weights takes a while */
        error_set(err, "Interrupted", "interrupted before the first leg");
        return ITERATE_INTERRUPTED;
    }
    bool ran = ready && measure(r, &why);
    if (interrupt_requested() || strcmp(why.name, "Interrupted") == 0) {
        *err = why;
        if (err->name[0] == '\0')
            error_set(err, "Interrupted", "interrupted by a signal");
        return ITERATE_INTERRUPTED;
    }
    ran = ran && official_check_unchanged(r, &why);
    official_fill(r, ran, &why);
    const bool passed = r->score.passed;
    if (!official_seal(r, err) || !official_sign(r, err))
        return ITERATE_NOT_PASSED;
    if (!r->o->quiet)
        official_show(r);
    if (passed)
        return ITERATE_PASSED;
    if (!ran) {
        *err = why;
        return official_blame(why.name);
    }
    error_set(err, "NOT-PASSED", "%s",
              json_string_value(json_object_get(r->score.metrics, "error")));
    return ITERATE_NOT_PASSED;
}

enum iterate_exit official_run(const struct official_options *o, struct error *err)
{
    enum iterate_exit result;
    if (!o->local && blocks_dispatch(o, &result, err))
        return result;
    struct official r = {.o = o, .started_ns = clock_now_ns()};
    score_document_init(&r.score, !o->local                         ? "rust"
                                  : o->mode == ITERATE_LOCAL_SUBMIT ? "rust-local-submit"
                                                                    : "rust-local-iterate");
    result = official_open(&r, err) ? run_and_seal(&r, err) : ITERATE_REFUSED;
    official_close(&r);
    return result;
}
