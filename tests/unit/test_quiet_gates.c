/* The two gates: every state, and the bounds from both sides. */
#include "quiet_machine.h"

/* What one look finds, from the start of the gate on. */
struct script {
    struct machine *m;
    double began;
    double (*celsius)(double seconds); /* NAN: nothing usable */
    void (*look)(double seconds, struct quiescence *out);
    int looks, said;
};

static bool script_celsius(void *context, double *celsius)
{
    struct script *s = context;
    const double value = s->celsius(s->m->clock - s->began);
    s->looks++;
    if (isnan(value))
        return false;
    *celsius = value;
    return true;
}

static void script_look(void *context, struct quiescence *out)
{
    struct script *s = context;
    s->looks++;
    *out = (struct quiescence){.gpu_use = NAN};
    s->look(s->m->clock - s->began, out);
}

static void script_say(void *context, const char *text)
{
    ((struct script *)context)->said++;
    assert_true(strlen(text) > 0);
}

static struct cool_result cool(struct machine *m, struct script *s, double (*celsius)(double),
                               double wait)
{
    struct cool_result r;
    struct error err;
    *s = (struct script){.m = m, .began = m->clock, .celsius = celsius};
    assert_true(cool_gate(&m->system, 60, wait, script_celsius, script_say, s, &r, &err));
    return r;
}

static double at_limit(double t)
{
    (void)t;
    return 60;
}
static double just_above(double t)
{
    (void)t;
    return 60.01;
}
static double after_95(double t)
{
    return t < 95 ? 70 : 59;
}
static double never_readable(double t)
{
    (void)t;
    return NAN;
}
static double two_gaps(double t) /* twice unusable, then hot, twice unusable, then cool */
{
    return t < 4 ? NAN : t < 14 ? 61 : t < 18 ? NAN : 50;
}
static double goes_away(double t)
{
    return t < 20 ? 70 : NAN;
}

static void test_cool_states(void **state)
{
    struct machine *m = *state;
    struct script s;
    struct cool_result r = cool(m, &s, at_limit, 900);
    assert_int_equal(r.state, COOL_FIRED);
    assert_true(r.celsius == 60 && r.waited_seconds == 0 && s.looks == 1 && s.said == 0);
    r = cool(m, &s, after_95, 900);
    assert_int_equal(r.state, COOL_WAITED);
    assert_true(r.celsius == 59 && r.waited_seconds == 100 && s.looks == 11 && s.said == 1);
    r = cool(m, &s, never_readable, 900);
    assert_int_equal(r.state, COOL_SKIPPED_NO_READER);
    assert_true(isnan(r.celsius) && r.waited_seconds == 4 && s.looks == 3); /* 2 s apart */
    r = cool(m, &s, two_gaps, 900);
    assert_int_equal(r.state, COOL_WAITED);
    assert_true(r.celsius == 50 && r.waited_seconds == 18);
    r = cool(m, &s, goes_away, 900);
    assert_int_equal(r.state, COOL_SKIPPED_NO_READER);
    assert_true(r.celsius == 70 && r.waited_seconds == 24);
}

static double falls_quarter_at_100(double t)
{
    return t < 100 ? 70 : 69.75;
}
static double falls_less_at_100(double t)
{
    return t < 100 ? 70 : 69.76;
}
static double falls_at_90(double t)
{
    return t < 90 ? 70 : 69.5;
}
static double cools_slowly(double t) /* 0.25 C in every poll: never stalls, never gets there */
{
    return 100 - 0.025 * t;
}

static void test_cool_bounds(void **state)
{
    struct machine *m = *state;
    struct script s;
    /* Not before 180 s, though nothing has moved for longer than 90. */
    struct cool_result r = cool(m, &s, just_above, 900);
    assert_int_equal(r.state, COOL_NOT_COOL);
    assert_true(r.stalled && r.waited_seconds == 180 && s.looks == 19);
    /* A new minimum at 90 s: 90 s later is 180, and it has stalled. */
    r = cool(m, &s, falls_at_90, 900);
    assert_true(r.state == COOL_NOT_COOL && r.stalled && r.waited_seconds == 180);
    /* At 100 s: at 180 only 80 s have passed; at 190 it has. */
    r = cool(m, &s, falls_quarter_at_100, 900);
    assert_true(r.stalled && r.waited_seconds == 190);
    /* Less than a quarter of a degree is no progress. */
    r = cool(m, &s, falls_less_at_100, 900);
    assert_true(r.stalled && r.waited_seconds == 180);
    /* The hard limit, without a stall. */
    r = cool(m, &s, cools_slowly, 900);
    assert_int_equal(r.state, COOL_NOT_COOL);
    assert_true(!r.stalled && r.waited_seconds == 900);
    /* A bound that is no multiple of the poll is looked at once more when it is over. */
    r = cool(m, &s, cools_slowly, 15);
    assert_true(r.state == COOL_NOT_COOL && r.waited_seconds == 15 && s.looks == 3);
    /* No wait at all: one look. */
    r = cool(m, &s, just_above, 0);
    assert_true(r.state == COOL_NOT_COOL && !r.stalled && s.looks == 1);
    r = cool(m, &s, at_limit, 0);
    assert_int_equal(r.state, COOL_FIRED);
}

static void look_busy_until_25(double t, struct quiescence *out)
{
    out->load = t < 25 ? 2 : 1.99;
}
static void look_always_busy(double t, struct quiescence *out)
{
    (void)t;
    out->load = 2;
}
static void look_quiet(double t, struct quiescence *out)
{
    (void)t;
    out->load = 1.99;
}

static struct quiescence_result quiesce(struct machine *m, struct script *s,
                                        const struct quiet_rules *rules,
                                        void (*look)(double, struct quiescence *))
{
    struct quiescence_result r;
    struct error err;
    *s = (struct script){.m = m, .began = m->clock, .look = look};
    assert_true(quiescence_gate(&m->system, rules, 2, script_look, script_say, s, &r, &err));
    return r;
}

static void test_quiescence_states(void **state)
{
    struct machine *m = *state;
    struct script s;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct quiescence_result r = quiesce(m, &s, &rules, look_quiet);
    assert_int_equal(r.state, QUIESCENCE_QUIET);
    assert_true(r.waited_seconds == 0 && s.looks == 1 && s.said == 0);
    assert_string_equal(r.why, "");
    r = quiesce(m, &s, &rules, look_busy_until_25);
    assert_int_equal(r.state, QUIESCENCE_WAITED);
    assert_true(r.waited_seconds == 30 && s.looks == 4 && s.said == 1);
    assert_string_equal(r.why, "");
    r = quiesce(m, &s, &rules, look_always_busy);
    assert_int_equal(r.state, QUIESCENCE_NOT_QUIET);
    assert_true(r.waited_seconds == 900 && s.looks == 91);
    assert_non_null(strstr(r.why, "others' part of the 1-minute load is 2.00"));
    rules.quiescence_wait_seconds = 0;
    r = quiesce(m, &s, &rules, look_always_busy);
    assert_true(r.state == QUIESCENCE_NOT_QUIET && r.waited_seconds == 0 && s.looks == 1);
}

static void test_interrupted(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct quiescence_result q;
    struct cool_result c;
    struct error err = {0};
    struct script s = {.m = m, .celsius = just_above, .look = look_always_busy};
    m->interrupted = true;
    assert_false(quiescence_gate(&m->system, &rules, 2, script_look, script_say, &s, &q, &err));
    assert_string_equal(err.name, "Interrupted");
    err = (struct error){0};
    assert_false(cool_gate(&m->system, 60, 900, script_celsius, script_say, &s, &c, &err));
    assert_string_equal(err.name, "Interrupted");
}

/* One line a rule, from both sides of its bound. */
static void test_what_breaks_quiet(void **state)
{
    (void)state;
    const struct quiet_rules rules = quiet_rules_default(NULL);
    static const struct {
        struct quiescence q;
        const char *strict, *local; /* a part of the reason; NULL: quiet */
    } rows[] = {
        {{.load = 1.99, .gpu_use = NAN}, NULL, NULL},
        {{.load = 2, .gpu_use = NAN}, "1-minute load", "1-minute load"},
        /* our own legs' part is taken off, and no more than there is */
        {{.load = 3.9, .own_load = 2, .gpu_use = NAN}, NULL, NULL},
        {{.load = 4, .own_load = 2, .gpu_use = NAN}, "1-minute load", "1-minute load"},
        {{.load = 1, .own_load = 8, .gpu_use = NAN}, NULL, NULL},
        {{.others_cpu = 0.24, .gpu_use = NAN}, NULL, NULL},
        {{.others_cpu = 0.25, .gpu_use = NAN}, "others take 0.25", "others take 0.25"},
        /* a process of ours that does not rest between phases */
        {{.own_cpu = 1.99, .gpu_use = NAN}, NULL, NULL},
        {{.own_cpu = 2, .gpu_use = NAN}, "at work between the phases", NULL},
        {{.own_cpu = 1.9, .others_cpu = 0.2, .gpu_use = NAN}, "at work between the phases", NULL},
        {{.gpu_use = 0.09}, NULL, NULL},
        {{.gpu_use = 0.10}, "GPU's use", "GPU's use"},
        /* what cannot be read is not quiet, where it counts */
        {{.load = NAN, .gpu_use = NAN}, "load cannot be read", NULL},
        {{.others_cpu = NAN, .gpu_use = NAN}, "work cannot be read", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        const char *strict = quiescence_broken(&rows[i].q, &rules, true, text, sizeof text);
        if (!strict != !rows[i].strict || (strict && !strstr(strict, rows[i].strict)))
            fail_msg("row %zu, strict: %s", i, strict ? strict : "quiet");
        const char *local = quiescence_broken(&rows[i].q, &rules, false, text, sizeof text);
        if (!local != !rows[i].local || (local && !strstr(local, rows[i].local)))
            fail_msg("row %zu, local: %s", i, local ? local : "quiet");
    }
}

static void test_platforms(void **state)
{
    (void)state;
    assert_true(quiet_rules_default("mlx").celsius_max == 40);
    assert_true(quiet_rules_default("cuda").celsius_max == 60);
    assert_true(quiet_rules_default(NULL).celsius_max == 60);
    assert_int_equal(quiet_rules_default("cuda").device, QUIET_GPU);
    assert_int_equal(quiet_rules_default("mlx").device, QUIET_CPU);
    const struct quiet_rules r = quiet_rules_default(NULL);
    assert_true(r.load_max == 2 && r.gpu_use_max == 0.1 && r.temperature_required &&
                r.quiescence_wait_seconds == 900 && r.cool_wait_seconds == 900 &&
                r.clock_floor_mhz == 0 && !r.cool_gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cool_states, machine_set_up, machine_tear_down),
        cmocka_unit_test_setup_teardown(test_cool_bounds, machine_set_up, machine_tear_down),
        cmocka_unit_test_setup_teardown(test_quiescence_states, machine_set_up, machine_tear_down),
        cmocka_unit_test_setup_teardown(test_interrupted, machine_set_up, machine_tear_down),
        cmocka_unit_test(test_what_breaks_quiet),
        cmocka_unit_test(test_platforms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
