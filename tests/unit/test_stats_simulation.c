/* What the statistics of pairs are worth, by simulation with fixed seeds: how often the verdict is
 * wrong on machines that drift and have slow legs, what intervals cover, what effects are seen.
 *
 * With --tables it prints the tables of docs/statistics.md instead of testing. */
#include "base/buffer.h"
#include "judge/fidelity.h"
#include "judge/stats/paired.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
/* Sanitizers look at the code and not at the figures. */
#ifdef MLXFAST_DEBUG
enum { NULL_RUNS = 2000, STOP_RUNS = 1000 };
#else
enum { NULL_RUNS = 10000, STOP_RUNS = 4000 };
#endif
enum { PAIRS_MOST = 40, POWER_RUNS = 4000, BOOTSTRAP_RUNS = 1000 };

enum order { ABBA, CONTROL_FIRST };

/* A machine: everything is of log seconds. Drift is common to both legs and goes on from leg to
 * leg; some legs are slow by an exponential amount. */
struct scene {
    const char *name;
    double noise;      /* of a leg, normal, independent */
    double linear;     /* each leg slower than the one before by this */
    double walk;       /* or by a normal step of this size */
    double slow_share; /* of legs */
    double slow_mean;
};

static const struct scene scenes[] = {
    {"quiet machine", .noise = 0.005},
    {"linear drift, 0.5 % a leg", .noise = 0.005, .linear = 0.005},
    {"random walk, 0.5 % a leg", .noise = 0.005, .walk = 0.005},
    {"5 % of legs slow, by 10 % on average", .noise = 0.005, .slow_share = 0.05, .slow_mean = 0.1},
    {"20 % of legs slow, by 10 % on average", .noise = 0.005, .slow_share = 0.2, .slow_mean = 0.1},
    {"walk, linear drift and 10 % slow legs", 0.005, 0.002, 0.005, 0.1, 0.1},
    {"noisy machine, 2 % a leg", .noise = 0.02},
};

static double uniform(uint64_t *state)
{
    return ((double)(fidelity_splitmix64(state) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    const double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

/* n pairs; the candidate's legs are longer by -effect (log ratio: effect). */
static void make_pairs(const struct scene *s, enum order order, double effect, size_t n,
                       uint64_t *state, double *control, double *candidate)
{
    double level = 0;
    for (size_t k = 0; k < n; k++) {
        for (int half = 0; half < 2; half++) {
            const bool is_control = order == CONTROL_FIRST || k % 2 == 0 ? half == 0 : half == 1;
            level += s->linear + s->walk * normal(state);
            double leg = level + s->noise * normal(state) - (is_control ? 0 : effect);
            if (s->slow_share > 0 && uniform(state) < s->slow_share)
                leg += -s->slow_mean * log(uniform(state));
            (is_control ? control : candidate)[k] = exp(leg);
        }
    }
}

struct rates {
    double faster, slower; /* what is claimed */
    double outside;        /* the interval does not hold the truth */
    double pairs;          /* on average */
};

/* `runs` measurements under a rule, as benchd makes and judges them. */
static struct rates simulate(const struct scene *s, enum order order, double effect,
                             const struct paired_rule *rule, int runs, uint64_t seed)
{
    double control[PAIRS_MOST], candidate[PAIRS_MOST];
    const double confidence = paired_rule_confidence(rule), truth = exp(effect);
    const size_t most = paired_rule_is_sequential(rule) ? rule->max_pairs : rule->min_pairs;
    struct rates r = {0};
    for (int i = 0; i < runs; i++) {
        struct paired_estimate e;
        size_t n = rule->min_pairs;
        make_pairs(s, order, effect, most, &seed, control, candidate);
        while (paired_next(rule, control, candidate, n) == PAIRED_MORE)
            n++;
        if (!paired_interval(control, candidate, n, confidence, &e))
            fail_msg("no interval");
        const enum paired_verdict v = paired_verdict(&e, PAIRED_CLAIM_FLOOR);
        r.faster += v == PAIRED_FASTER;
        r.slower += v == PAIRED_SLOWER;
        r.outside += e.t_low > truth || e.t_high < truth;
        r.pairs += (double)n;
    }
    r.faster /= runs;
    r.slower /= runs;
    r.outside /= runs;
    r.pairs /= runs;
    return r;
}

static struct paired_rule fixed_rule(size_t pairs)
{
    return (struct paired_rule){
        .min_pairs = pairs, .max_pairs = pairs, .confidence = PAIRED_CONFIDENCE};
}

static const size_t fixed_counts[] = {2, 3, 4, 6, 8, 12};
static const struct paired_rule sequential_rules[] = {
    {.min_pairs = 2, .max_pairs = 12, .half_width = 0.005, .confidence = PAIRED_CONFIDENCE},
    {.min_pairs = 4, .max_pairs = 12, .half_width = 0.005, .confidence = PAIRED_CONFIDENCE},
    {.min_pairs = 6, .max_pairs = 36, .half_width = 0.003, .confidence = PAIRED_CONFIDENCE},
};

static uint64_t seed_of(size_t a, size_t b, size_t c)
{
    return PAIRED_BOOTSTRAP_SEED + 1000003 * a + 1009 * b + c;
}

/* False positives of one scene: fixed numbers of pairs, then the sequential rules. */
enum { NULL_COLUMNS = COUNT_OF(fixed_counts) + COUNT_OF(sequential_rules) };
static struct rates null_rates(size_t scene, size_t column)
{
    const struct paired_rule rule = column < COUNT_OF(fixed_counts)
                                        ? fixed_rule(fixed_counts[column])
                                        : sequential_rules[column - COUNT_OF(fixed_counts)];
    return simulate(&scenes[scene], ABBA, 0, &rule, NULL_RUNS, seed_of(1, scene, column));
}

/* What a share of so many runs may be off by: three standard errors at 5 %. */
static double leeway(int runs)
{
    return 3 * sqrt(0.05 * 0.95 / runs);
}

static void test_false_positives(void **state)
{
    (void)state;
    double sum = 0;
    for (size_t s = 0; s < COUNT_OF(scenes); s++)
        for (size_t k = 0; k < NULL_COLUMNS; k++) {
            const struct rates r = null_rates(s, k);
            const double wrong = r.faster + r.slower;
            if (wrong > 0.05 + leeway(NULL_RUNS))
                fail_msg("%s, column %zu: %.2f %% wrong claims", scenes[s].name, k, 100 * wrong);
            sum += wrong;
        }
    assert_true(sum / (double)(COUNT_OF(scenes) * NULL_COLUMNS) <= 0.05);
}

/* The check can fail: legs in a fixed order on a machine that drifts are taken for a difference. */
static void test_fixed_order_is_fooled_by_drift(void **state)
{
    (void)state;
    const struct paired_rule rule = fixed_rule(12);
    const struct rates r =
        simulate(&scenes[1], CONTROL_FIRST, 0, &rule, POWER_RUNS, seed_of(2, 0, 0));
    assert_true(r.slower > 0.1);
}

static const double effects[] = {0.003, 0.01, 0.02, 0.03, 0.05};
static const double noises[] = {0.002, 0.005, 0.01, 0.02};
static const size_t power_counts[] = {4, 6, 12};

/* The candidate is slower by the effect. */
static struct rates power(size_t noise, size_t count, size_t effect)
{
    const struct scene s = {.name = "", .noise = noises[noise]};
    const struct paired_rule rule = fixed_rule(power_counts[count]);
    return simulate(&s, ABBA, -log1p(effects[effect]), &rule, POWER_RUNS,
                    seed_of(3, noise * 10 + count, effect));
}

static void test_power(void **state)
{
    (void)state;
    /* Legs that vary by 0.5 %, six pairs: 3 % is seen, 0.3 % is not claimed, and what is claimed
     * of it has the right sign nearly always. */
    assert_true(power(1, 1, 3).slower > 0.98);
    const struct rates small = power(1, 1, 0);
    assert_true(small.slower < 0.035 && small.faster < 0.01);
    /* However quiet or noisy the machine: of a difference as large as the floor, a claim is a
     * chance's, one of the interval's two sides. */
    for (size_t k = 0; k < COUNT_OF(noises); k++)
        for (size_t c = 0; c < COUNT_OF(power_counts); c++)
            assert_true(power(k, c, 0).slower < 0.025 + leeway(POWER_RUNS));
    for (size_t k = 0; k < COUNT_OF(noises); k++)
        for (size_t e = 1; e < COUNT_OF(effects); e++)
            assert_true(power(k, 1, e).slower >= power(k, 1, e - 1).slower - 0.03);
}

/* paired_smallest_claim is what is seen with PAIRED_POWER. */
static void test_smallest_effect_is_seen_so_often(void **state)
{
    (void)state;
    const double noise = 0.02;
    const struct scene s = {.name = "", .noise = noise};
    for (size_t k = 0; k < COUNT_OF(fixed_counts); k++) {
        const size_t n = fixed_counts[k];
        /* n log ratios of exactly the scene's standard deviation, sqrt(2) times a leg's. */
        double a[PAIRS_MOST], b[PAIRS_MOST], square = 0;
        for (size_t i = 0; i < n; i++)
            square += (i % 2 ? 1 : -1) * (i % 2 ? 1 : -1);
        const double mean = n % 2 ? -1.0 / (double)n : 0;
        const double sd = sqrt((square - (double)n * mean * mean) / ((double)n - 1));
        for (size_t i = 0; i < n; i++) {
            a[i] = exp((i % 2 ? 1 : -1) * sqrt(2) * noise / sd);
            b[i] = 1;
        }
        struct paired_estimate e;
        assert_true(paired_estimate(a, b, n, PAIRED_CONFIDENCE, 1, &e));
        assert_true(fabs(e.sd - sqrt(2) * noise) < 1e-12);
        const struct paired_rule rule = fixed_rule(n);
        const struct rates r =
            simulate(&s, ABBA, log1p(paired_smallest_claim(&e, PAIRED_CLAIM_FLOOR)), &rule,
                     POWER_RUNS, seed_of(4, k, 0));
        assert_true(fabs(r.faster - PAIRED_POWER) < 0.025);
    }
}

/* What stopping does to coverage, at the confidence that is stated and at the one that is used. */
static double coverage_after_stop(size_t k, bool adjusted, double half_widths)
{
    struct paired_rule rule = sequential_rules[k];
    const struct scene s = {.name = "", .noise = 0.005};
    rule.half_width = half_widths * s.noise;
    /* A rule that states more is computed at half its misses: stating 90 % gives plain 95 %. */
    rule.confidence = adjusted ? PAIRED_CONFIDENCE : 1 - 2 * (1 - PAIRED_CONFIDENCE);
    return 1 - simulate(&s, ABBA, 0, &rule, STOP_RUNS, seed_of(5, k, adjusted)).outside;
}

static double worst_coverage(size_t k, bool adjusted)
{
    static const double widths[] = {0.5, 0.7, 0.85, 1.0, 1.2, 2.0};
    double worst = 1;
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        const double c = coverage_after_stop(k, adjusted, widths[i]);
        worst = c < worst ? c : worst;
    }
    return worst;
}

static void test_stopping_keeps_its_confidence(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(sequential_rules); k++) {
        assert_true(worst_coverage(k, true) >= 0.95 - leeway(STOP_RUNS));
        assert_true(worst_coverage(k, false) < 0.94); /* why it is adjusted */
    }
}

/* How often the bootstrap's interval and the t interval miss the truth. */
static void misses(size_t scene, size_t n, double *t, double *boot)
{
    uint64_t state = seed_of(6, scene, n);
    double a[PAIRS_MOST], b[PAIRS_MOST], logs[PAIRS_MOST], low, high;
    *t = *boot = 0;
    for (int i = 0; i < BOOTSTRAP_RUNS; i++) {
        struct paired_estimate e;
        make_pairs(&scenes[scene], ABBA, 0, n, &state, a, b);
        for (size_t j = 0; j < n; j++)
            logs[j] = log(a[j] / b[j]);
        assert_true(paired_interval(a, b, n, PAIRED_CONFIDENCE, &e));
        paired_bootstrap(logs, n, PAIRED_CONFIDENCE, (uint64_t)i, &low, &high);
        *t += (e.t_low > 1 || e.t_high < 1) / (double)BOOTSTRAP_RUNS;
        *boot += (low > 0 || high < 0) / (double)BOOTSTRAP_RUNS;
    }
}

static const size_t choice_counts[] = {3, 6, 12};
static const size_t choice_scenes[] = {0, 1, 3, 5};

static void test_bootstrap_is_not_to_be_quoted(void **state)
{
    (void)state;
    double t, boot;
    misses(0, 6, &t, &boot);
    assert_true(t < 0.07 && boot > 0.08);
}

/* The tables. */

static void print_null_table(void)
{
    printf("| wrong claims, %% |");
    for (size_t k = 0; k < COUNT_OF(fixed_counts); k++)
        printf(" %zu pairs |", fixed_counts[k]);
    for (size_t k = 0; k < COUNT_OF(sequential_rules); k++)
        printf(" %zu..%zu, %.1f %% |", sequential_rules[k].min_pairs, sequential_rules[k].max_pairs,
               100 * sequential_rules[k].half_width);
    printf("\n|---|");
    for (size_t k = 0; k < NULL_COLUMNS; k++)
        printf("---|");
    for (size_t s = 0; s < COUNT_OF(scenes); s++) {
        printf("\n| %s |", scenes[s].name);
        for (size_t k = 0; k < NULL_COLUMNS; k++) {
            const struct rates r = null_rates(s, k);
            printf(" %.1f |", 100 * (r.faster + r.slower));
        }
    }
    printf("\n\n");
}

static void print_power_table(void)
{
    printf("| a leg's noise | pairs |");
    for (size_t e = 0; e < COUNT_OF(effects); e++)
        printf(" seen at %.1f %% |", 100 * effects[e]);
    printf("\n|---|---|");
    for (size_t e = 0; e < COUNT_OF(effects); e++)
        printf("---|");
    for (size_t k = 0; k < COUNT_OF(noises); k++)
        for (size_t c = 0; c < COUNT_OF(power_counts); c++) {
            printf("\n| %.1f %% | %zu |", 100 * noises[k], power_counts[c]);
            for (size_t e = 0; e < COUNT_OF(effects); e++)
                printf(" %.0f %% |", 100 * power(k, c, e).slower);
        }
    printf("\n\n");
}

static void print_stopping_table(void)
{
    printf("| rule | coverage if computed at 95 %% | as computed, at 97.5 %% |\n|---|---|---|\n");
    for (size_t k = 0; k < COUNT_OF(sequential_rules); k++)
        printf("| %zu..%zu pairs | %.1f %% | %.1f %% |\n", sequential_rules[k].min_pairs,
               sequential_rules[k].max_pairs, 100 * worst_coverage(k, false),
               100 * worst_coverage(k, true));
    printf("\n");
}

static void print_choice_table(void)
{
    printf("| interval misses the truth, %% |");
    for (size_t k = 0; k < COUNT_OF(choice_counts); k++)
        printf(" t, %zu pairs | bootstrap, %zu pairs |", choice_counts[k], choice_counts[k]);
    printf("\n|---|---|---|---|---|---|---|");
    for (size_t s = 0; s < COUNT_OF(choice_scenes); s++) {
        printf("\n| %s |", scenes[choice_scenes[s]].name);
        for (size_t k = 0; k < COUNT_OF(choice_counts); k++) {
            double t, boot;
            misses(choice_scenes[s], choice_counts[k], &t, &boot);
            printf(" %.1f | %.1f |", 100 * t, 100 * boot);
        }
    }
    printf("\n\n");
}

static void print_order_table(void)
{
    static const double drifts[] = {0.001, 0.002, 0.005};
    printf("| linear drift a leg | alternating, 6 pairs | control first, 6 pairs | control first, "
           "12 pairs |\n|---|---|---|---|\n");
    for (size_t k = 0; k < COUNT_OF(drifts); k++) {
        const struct scene s = {.name = "", .noise = 0.005, .linear = drifts[k]};
        const struct paired_rule six = fixed_rule(6), twelve = fixed_rule(12);
        const struct rates r[] = {
            simulate(&s, ABBA, 0, &six, NULL_RUNS, seed_of(7, k, 0)),
            simulate(&s, CONTROL_FIRST, 0, &six, NULL_RUNS, seed_of(7, k, 1)),
            simulate(&s, CONTROL_FIRST, 0, &twelve, NULL_RUNS, seed_of(7, k, 2))};
        printf("| %.1f %% |", 100 * drifts[k]);
        for (size_t i = 0; i < COUNT_OF(r); i++)
            printf(" %.1f %% |", 100 * (r[i].faster + r[i].slower));
        printf("\n");
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--tables") == 0) {
        print_null_table();
        print_power_table();
        print_stopping_table();
        print_choice_table();
        print_order_table();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_false_positives),
        cmocka_unit_test(test_fixed_order_is_fooled_by_drift),
        cmocka_unit_test(test_power),
        cmocka_unit_test(test_smallest_effect_is_seen_so_often),
        cmocka_unit_test(test_stopping_keeps_its_confidence),
        cmocka_unit_test(test_bootstrap_is_not_to_be_quoted),
    };
    return cmocka_run_group_tests_name("stats_simulation", tests, NULL, NULL);
}
