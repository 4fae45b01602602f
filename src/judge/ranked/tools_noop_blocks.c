/* measure-noop on a track of block decoding: the same engine with blocks of width 1 and with the
 * contract's, each leg replayed by it, as a ranked run measures them. */
#include "judge/ranked/noop.h"

#include "base/file.h"
#include "judge/blocks/legs.h"
#include "judge/dflash_command.h"
#include "judge/dflash_golden.h"
#include "judge/ranked/resident.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct measuring {
    struct noop *n;
    struct dflash_flags flags;
    struct dflash_setup setup;
    struct leg_roots roots;
    struct dflash_golden *goldens[NOOP_GOLDENS_MOST];
    struct quiet *quiet;
};

/* What a golden is called: its file's name without its ending. */
static const char *name_of(struct noop *n, size_t g)
{
    static const char *const endings[] = {".golden.json", ".json"};
    if (n->flags->prompts.count > 0)
        return n->flags->prompts.items[g];
    const char *name = path_basename(n->flags->goldens.items[g]);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (text_ends(name, endings[i]))
            return arena_strndup(&n->arena, name, strlen(name) - strlen(endings[i]));
    return name;
}

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

static bool open_it(struct measuring *m, struct error *err)
{
    struct noop *n = m->n;
    const struct reference_flags *f = n->flags;
    struct reference_options checked;
    if (n->drafter == NULL)
        return misuse(err, "--drafter", NULL, "a track of block decoding has a drafter");
    if (f->goldens.count > NOOP_GOLDENS_MOST)
        return misuse(err, "--golden", NULL, "at most 8 goldens at once");
    if (f->prompts.count > 0 && f->prompts.count != f->goldens.count) {
        error_set(err, "GOLDEN-COUNT-MISMATCH", "--prompt is given once for each --golden, or not");
        return error_at(err, NULL, "--prompt", NULL);
    }
    if (!reference_flags_read(f, &checked, err))
        return false;
    m->flags =
        (struct dflash_flags){.engine = f->engine,
                              .weights = f->weights,
                              .drafter = n->drafter,
                              .contract = f->contract,
                              .resources = f->resources.count > 0 ? f->resources.items : NULL,
                              .trees = f->trees,
                              .no_sandbox = f->no_sandbox,
                              .quiet = f->quiet};
    return dflash_setup_open(&m->setup, &m->flags, err);
}

static bool prepare(struct measuring *m, struct error *err)
{
    struct noop *n = m->n;
    const struct reference_flags *f = n->flags;
    const struct contract *c = m->setup.contract;
    const struct dflash_golden_rules rules = {.vocab_size = c->vocab_size,
                                              .seed_tokens = c->seed_tokens,
                                              .maximum_rows = c->block_decode.maximum_decode_tokens,
                                              .require_self_consistent = true};
    const char *hidden[NOOP_GOLDENS_MOST + 1] = {NULL};
    const char *const *trees = f->trees.count > 0 ? f->trees.items : NULL;
    /* As a ranked run of blocks: no leg has a resident, and none is inherited. */
    if (!resident_check_environment(environ, err) ||
        !roots_resolve(roots_workspace(f->workspace), f->engine,
                       f->weights != NULL ? f->weights : "weights", &n->arena, &m->roots, err) ||
        !roots_engine_trees(m->roots.workspace, trees, &n->arena, &trees, err))
        return false;
    for (size_t i = 0; i < f->trees.count; i++)
        m->flags.trees.items[i] = trees[i];
    /* From here on the tree's own, for the stamps too. */
    m->flags.engine = m->setup.candidate.engine = m->roots.engine;
    m->flags.weights = m->setup.candidate.weights = m->roots.weights;
    m->setup.reference_engine = m->setup.reference.engine = m->roots.engine;
    m->setup.reference.weights = m->roots.weights;
    for (size_t g = 0; g < f->goldens.count; g++) {
        const char *path = f->goldens.items[g];
        hidden[g] = path;
        if (!dflash_golden_load(path, &rules, &m->goldens[g], err) ||
            !contract_check_pooled(c, m->goldens[g]->sha256, m->goldens[g]->bytes, err) ||
            !weights_check_golden(m->roots.weights, path, err) ||
            !weights_check_golden(n->drafter, path, err))
            return false;
    }
    return dflash_prepare(&m->setup, hidden, err) &&
           quiet_open(&c->quiet, !f->no_cool_gate, f->quiet, &m->quiet, err);
}

/* One leg, timed and replayed; its working memory is its own. */
static bool run_leg(struct measuring *m, size_t g, size_t pair, bool control, double *out,
                    struct error *err)
{
    struct arena a = {0};
    struct blocks_legs legs = {.contract = m->setup.contract,
                               .limits = &m->setup.limits,
                               .prompt = m->goldens[g],
                               .control = m->setup.candidate,
                               .candidate = m->setup.candidate,
                               .reference = m->setup.reference,
                               .run_ceiling_seconds = m->setup.run_ceiling_seconds,
                               .quiet = m->quiet,
                               .silent = m->flags.quiet,
                               .own_reference = true,
                               .arena = &a};
    const struct blocks_doors doors = blocks_legs_doors(&legs);
    const struct blocks_slot slot = {
        .role = control ? BLOCKS_CONTROL : BLOCKS_CANDIDATE, .pair = (int)pair + 1, .attempt = 1};
    struct blocks_leg leg;
    struct error ours = {0};
    bool ok = doors.measure(doors.context, &slot, &leg, &ours);
    /* What costs a ranked run a pair costs a normaliser its measurement: the quiet gates' own
     * errors are still in place. */
    if (ok && (!leg.measured || !leg.telemetry_holds))
        ok = false;
    ok = ok && doors.judge(doors.context, &slot, &leg, &ours);
    if (ok)
        *out = leg.report.seconds_per_token;
    else if (err != NULL)
        *err = ours;
    arena_free(&a);
    return ok;
}

static bool measure(struct measuring *m, struct error *err)
{
    struct noop *n = m->n;
    for (size_t pair = 0; pair < n->pairs; pair++) {
        if (!n->flags->quiet)
            fprintf(stderr, "pair %zu of %zu\n", pair + 1, n->pairs);
        for (size_t leg = 0; leg < 2 * n->prompt_count; leg++) {
            struct noop_prompt *p = &n->prompts[leg / 2];
            const bool control = (leg % 2 == 0) == noop_control_first(pair);
            if (!run_leg(m, leg / 2, pair, control, &(control ? p->control : p->candidate)[pair],
                         err))
                return false;
        }
    }
    return dflash_check_unchanged(&m->setup, err);
}

bool noop_measure_blocks(struct noop *n, bool *misused, struct error *err)
{
    struct measuring m = {.n = n};
    *misused = true;
    bool ok = open_it(&m, err);
    if (ok) {
        *misused = false;
        ok = prepare(&m, err);
    }
    n->prompt_count = n->flags->goldens.count;
    n->prompts = arena_array(&n->arena, n->prompt_count, sizeof *n->prompts);
    for (size_t g = 0; ok && g < n->prompt_count; g++) {
        n->prompts[g] =
            (struct noop_prompt){.prompt = name_of(n, g),
                                 .control = arena_array(&n->arena, n->pairs, sizeof(double)),
                                 .candidate = arena_array(&n->arena, n->pairs, sizeof(double))};
        text_copy(n->prompts[g].sha256, SHA256_HEX, m.goldens[g]->sha256);
    }
    if (ok) {
        n->decode_tokens = m.setup.contract->block_decode.decode_tokens;
        n->block_size = m.setup.contract->block_decode.block_size;
        ok = measure(&m, err);
    }
    if (m.quiet != NULL)
        n->gates = quiet_records(m.quiet);
    quiet_close(m.quiet);
    for (size_t g = 0; g < NOOP_GOLDENS_MOST; g++)
        dflash_golden_free(m.goldens[g]);
    dflash_setup_close(&m.setup);
    return ok;
}
