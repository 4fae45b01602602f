/* benchd compare. */
#include "judge/tools.h"

#include "base/file.h"
#include "base/terminal.h"
#include "judge/compare/compare.h"
#include "judge/compare/output.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* A rule that may add pairs, where no number is asked for. */
enum { MIN_PAIRS = 4, MAX_PAIRS = 12 };

static struct {
    struct bench_flags bench;
    const char *trees[2];
    const char *weights, *weights_b, *engine_a, *engine_b, *vary, *axis, *json;
    struct option_list a, b;
    int64_t pairs, max_pairs;
    double half_width, claim_floor; /* percent */
    bool has_pairs, has_max_pairs, has_half_width, allow_contention;
} f;

static const char *const positional[] = {"[A]", "[B]", NULL};
static const struct option_spec options[] = {
    {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &f.weights, NULL, 0, 0},
    {"--weights-b", OPTION_TEXT, false, "DIR", "The weights folder of B. Default: --weights.",
     &f.weights_b, NULL, 0, 0},
    BENCH_FLAG_ROWS(&f.bench),
    {"--engine-a", OPTION_TEXT, false, "PATH", "The worker of A, instead of a tree.", &f.engine_a,
     NULL, 0, 0},
    {"--engine-b", OPTION_TEXT, false, "PATH", "The worker of B, instead of a tree.", &f.engine_b,
     NULL, 0, 0},
    {"--a", OPTION_LIST, false, "NAME=VALUE", "A variable of A's environment.", &f.a, NULL, 0, 0},
    {"--b", OPTION_LIST, false, "NAME=VALUE", "A variable of B's environment.", &f.b, NULL, 0, 0},
    {"--vary", OPTION_TEXT, false, "NAME=V1,V2,...",
     "One engine with each of these values of a variable; the first is what the others are "
     "compared with.",
     &f.vary, NULL, 0, 0},
    {"--axis", OPTION_TEXT, false, "AXIS",
     "What the verdict is about: composite, decode or prefill. Default: composite, where the "
     "contract declares its weights, else decode.",
     &f.axis, NULL, 0, 0},
    {"--pairs", OPTION_INT, false, "N",
     "So many pairs. Default: from 4 on, until the interval is narrow enough.", &f.pairs,
     &f.has_pairs, 2, ROUNDS_PAIRS_MOST / 2},
    {"--max-pairs", OPTION_INT, false, "N", "So many pairs at most, without --pairs (default 12).",
     &f.max_pairs, &f.has_max_pairs, MIN_PAIRS, ROUNDS_PAIRS_MOST / 2},
    {"--half-width", OPTION_REAL, false, "PERCENT",
     "Narrow enough is the estimate plus or minus this, without --pairs (default 0.5).",
     &f.half_width, &f.has_half_width, 0, 0},
    {"--claim-floor", OPTION_REAL, false, "PERCENT",
     "A difference is claimed where all of its interval is larger (default 0.3).", &f.claim_floor,
     NULL, 0, 0},
    {"--allow-contention", OPTION_SWITCH, false, NULL,
     "Count pairs that were measured beside other work, or while the machine slowed itself down.",
     &f.allow_contention, NULL, 0, 0},
    {"--json", OPTION_TEXT, false, "FILE", "The whole report goes there.", &f.json, NULL, 0, 0},
};
static const struct command command = {
    .name = "benchd compare",
    .summary = "Compares two engines, or settings of one, in turns, and says which is faster.",
    .notes = "A and B are trees with a build/bench-worker, or one tree A with --a and --b or "
             "--vary. Each setting runs once uncounted; then rounds of one leg each, every second "
             "one backwards. Several comparisons share the confidence of 95 % (Bonferroni).\n"
             "Exit codes: 0 every comparison has a verdict; 1 one was declined, or it failed; 2 "
             "usage or an unusable contract; 130 interrupted.\n" BENCH_ENVIRONMENT,
    .positional = positional,
    .options = options,
    .option_count = COUNT_OF(options)};

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

/* NAME=V1,V2,... into one setting for each value. */
static bool vary_settings(struct arena *a, const char *engine, struct bench_setting *out,
                          size_t *count, struct error *err)
{
    const char *equals = strchr(f.vary, '=');
    const size_t name = equals != NULL ? (size_t)(equals - f.vary) : 0;
    if (name == 0)
        return misuse(err, "--vary", f.vary, "NAME=V1,V2,... is wanted");
    *count = 0;
    for (const char *p = equals + 1;; p++) {
        const size_t length = strcspn(p, ",");
        if (*count == ROUNDS_SETTINGS_MOST)
            return misuse(err, "--vary", f.vary, "too many values");
        const char **environment = arena_array(a, 2, sizeof *environment);
        const char *text = arena_printf(a, "%.*s=%.*s", (int)name, f.vary, (int)length, p);
        environment[0] = text;
        for (size_t i = 0; i < *count; i++)
            if (strcmp(out[i].label, text) == 0)
                return misuse(err, "--vary", f.vary, "a value is given twice");
        out[(*count)++] = (struct bench_setting){
            .label = text, .engine = engine, .weights = f.weights, .environment = environment};
        p += length;
        if (*p == '\0')
            break;
    }
    return *count > 1 || misuse(err, "--vary", f.vary, "at least two values are compared");
}

static const char *engine_of(struct arena *a, const char *tree, const char *engine)
{
    return tree != NULL ? path_join(a, tree, "build/bench-worker") : engine;
}

static bool make_settings(struct arena *a, struct bench_setting *out, size_t *count,
                          struct error *err)
{
    if (f.trees[0] != NULL && f.engine_a != NULL)
        return misuse(err, "--engine-a", f.engine_a, "a tree A and --engine-a exclude each other");
    if (f.trees[1] != NULL && f.engine_b != NULL)
        return misuse(err, "--engine-b", f.engine_b, "a tree B and --engine-b exclude each other");
    if (f.a.count == COUNT_OF(f.a.items) || f.b.count == COUNT_OF(f.b.items))
        return misuse(err, f.a.count < f.b.count ? "--b" : "--a", NULL, "too many variables");
    const char *first = engine_of(a, f.trees[0], f.engine_a);
    const char *second = engine_of(a, f.trees[1], f.engine_b);
    if (first == NULL)
        return misuse(err, "A", NULL, "a tree or --engine-a is wanted");
    if (f.vary != NULL) {
        if (second != NULL || f.weights_b != NULL || f.a.count + f.b.count > 0)
            return misuse(err, "--vary", f.vary,
                          "--vary is of one engine: no B, --weights-b, --a or --b beside it");
        return vary_settings(a, first, out, count, err);
    }
    if (second == NULL && f.weights_b == NULL && f.a.count + f.b.count == 0)
        return misuse(err, "B", NULL,
                      "nothing to compare with: a second tree, --engine-b, --a, --b or --vary");
    out[0] = (struct bench_setting){
        .label = "A", .engine = first, .weights = f.weights, .environment = f.a.items};
    out[1] = (struct bench_setting){.label = "B",
                                    .engine = second != NULL ? second : first,
                                    .weights = f.weights_b != NULL ? f.weights_b : f.weights,
                                    .environment = f.b.items};
    *count = 2;
    return true;
}

static bool read_axis(const struct bench *b, enum rounds_axis *out, struct error *err)
{
    *out = b->has_composite ? ROUNDS_COMPOSITE : ROUNDS_DECODE;
    if (f.axis == NULL)
        return true;
    for (int axis = 0; axis < ROUNDS_AXES; axis++)
        if (strcmp(f.axis, rounds_axis_name(axis)) == 0) {
            *out = axis;
            return axis != ROUNDS_COMPOSITE || b->has_composite ||
                   misuse(err, "--axis", f.axis, "the contract declares no scoring weights");
        }
    return misuse(err, "--axis", f.axis, "an axis is composite, decode or prefill");
}

static bool check_rule(struct error *err)
{
    if (f.has_pairs && (f.has_max_pairs || f.has_half_width))
        return misuse(err, "--pairs", NULL, "--pairs excludes --max-pairs and --half-width");
    if (!(f.half_width > 0 && f.half_width < 100))
        return misuse(err, "--half-width", NULL, "above 0 and below 100 percent");
    if (!(f.claim_floor >= 0 && f.claim_floor < 100))
        return misuse(err, "--claim-floor", NULL, "0 or more and below 100 percent");
    return true;
}

static void fill_plan(const struct bench *b, size_t count, enum rounds_axis axis,
                      struct rounds_plan *p)
{
    *p = (struct rounds_plan){.axis = axis,
                              .weight_prefill = b->weight_prefill,
                              .weight_decode = b->weight_decode,
                              .comparisons = count - 1,
                              .claim_floor = f.claim_floor / 100};
    p->rule.confidence = PAIRED_CONFIDENCE;
    p->rule.min_pairs = f.has_pairs ? (size_t)f.pairs : MIN_PAIRS;
    p->rule.max_pairs = f.has_pairs ? (size_t)f.pairs : (size_t)f.max_pairs;
    p->rule.half_width = f.has_pairs ? 0 : f.half_width / 100;
}

static void ratio_cell(const struct compare_outcome *o, enum rounds_axis axis, char *out,
                       size_t size)
{
    const struct paired_estimate *e = &o->result.estimates[axis];
    if (o->declined || !o->result.known[axis])
        snprintf(out, size, "-");
    else
        snprintf(out, size, "%.4f (%.4f to %.4f)", e->ratio, e->t_low, e->t_high);
}

static void print_report(const struct compare_run *r)
{
    const struct compare_plan *plan = r->plan;
    struct buffer text = {0};
    json_t *records = quiet_records(r->bench->quiet);
    struct table *t = table_new(6);
    table_row(t, "speed, times that of the first", "pairs", "prefill", "decode", "composite",
              "verdict");
    table_row(t, plan->settings[0].label, "", "1", "1", "1", "");
    for (size_t i = 1; i < plan->count; i++) {
        const struct compare_outcome *o = &r->outcomes[i];
        char count[24], cells[ROUNDS_AXES][64];
        snprintf(count, sizeof count, "%zu", o->pairs.count);
        for (int axis = 0; axis < ROUNDS_AXES; axis++)
            ratio_cell(o, axis, cells[axis], sizeof cells[axis]);
        table_row(t, plan->settings[i].label, count, cells[ROUNDS_PREFILL], cells[ROUNDS_DECODE],
                  cells[ROUNDS_COMPOSITE], compare_verdict_name(o));
    }
    table_print(t);
    for (size_t i = 1; i < plan->count; i++) {
        buffer_clear(&text);
        compare_sentence(r, i, &text);
        tool_put_line(stdout, text.data);
        putchar('\n');
    }
    buffer_clear(&text);
    bench_conditions_text(records, &text);
    size_t disturbed = 0;
    for (size_t i = 0; i < r->record_count; i++)
        disturbed += !bench_is_clean(&r->records[i].times);
    printf("%zu rounds; %s; %zu of %zu legs beside other work or slowed down\n", r->rounds,
           text.data, disturbed, r->record_count);
    json_decref(records);
    buffer_free(&text);
}

static bool same_thing(const struct bench_setting *a, const struct bench_setting *b)
{
    const char *const *x = a->environment, *const *y = b->environment;
    for (; *x != NULL && *y != NULL && strcmp(*x, *y) == 0; x++)
        y++;
    return *x == NULL && *y == NULL && strcmp(a->engine_sha256, b->engine_sha256) == 0 &&
           strcmp(a->weights, b->weights) == 0;
}

static int compare(struct bench *bench, struct error *err)
{
    static struct bench_setting settings[ROUNDS_SETTINGS_MOST];
    struct compare_plan plan = {.settings = settings, .allow_contention = f.allow_contention};
    struct compare_run run = {.plan = &plan, .bench = bench};
    enum rounds_axis axis;
    int code = TOOL_OK;
    if (!check_rule(err) || !bench_check_output(&f.bench, "--json", f.json, err) ||
        !bench_open(bench, &f.bench, err) || !read_axis(bench, &axis, err) ||
        !make_settings(&bench->arena, settings, &plan.count, err))
        return bench_exit(bench, err);
    fill_plan(bench, plan.count, axis, &plan.rounds);
    for (size_t i = 0; i < plan.count; i++)
        if (!bench_prepare(bench, &settings[i], err))
            return bench_exit(bench, err);
    if (plan.count == 2 && same_thing(&settings[0], &settings[1]) && !f.bench.quiet)
        fprintf(stderr, "A and B are the same executable with the same settings: what differs is "
                        "the machine's noise\n");
    if (!compare_run(&run, err)) {
        code = bench_exit(bench, err);
    } else {
        json_t *report = compare_report(&run);
        print_report(&run);
        if (compare_is_declined(&run))
            code = TOOL_REJECTED;
        if (f.json != NULL && !compare_write_json(f.json, report, err))
            code = TOOL_REJECTED;
        json_decref(report);
    }
    compare_free(&run);
    return code;
}

int tool_compare(int argc, char **argv)
{
    static const char tool[] = "compare";
    struct error err = {0};
    struct bench bench = {0};
    int code;
    f.max_pairs = MAX_PAIRS;
    f.half_width = 0.5;
    f.claim_floor = 100 * PAIRED_CLAIM_FLOOR;
    if (!tool_parse(&command, tool, argc, argv, f.trees, &code))
        return code;
    code = compare(&bench, &err);
    if (err.name[0] != '\0')
        tool_complain(tool, &err);
    bench_close(&bench);
    return code;
}
