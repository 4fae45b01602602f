/* Whole runs on made-up machines: readers chosen, gates, verdicts, records. */
#include "quiet_machine.h"

#include "judge/score.h"
#include "judge/score_keys.h"

static void put_sensor(struct machine *m, double celsius)
{
    machine_write(m, "/sys/class/hwmon/hwmon0/name", "k10temp\n");
    machine_write(m, "/sys/class/hwmon/hwmon0/temp1_input",
                  arena_printf(&m->arena, "%.0f\n", celsius * 1000));
}

static struct quiet *open_quiet(struct machine *m, const struct quiet_rules *rules, bool ranked)
{
    struct quiet *q = NULL;
    struct error err = {0};
    if (!quiet_open_on(&m->system, rules, ranked, true, &q, &err))
        fail_msg("%s: %s", err.name, err.message);
    return q;
}

static const struct quiet_point first = {1, "control", "decode"};

/* The records as they will be sealed: closed objects. */
static void check_records(const struct quiet *q, size_t count)
{
    struct score_document d;
    struct error err = {0};
    json_t *records = quiet_records(q);
    assert_int_equal(json_array_size(records), count);
    score_document_init(&d, "rust");
    score_set_json(&d, "gates", records);
    if (!score_keys_check(d.metrics, &err))
        fail_msg("%s", err.message);
    score_document_free(&d);
}

/* A text or number by its path in the last record, as JSON. */
static const char *last(struct machine *m, const struct quiet *q, const char *part, const char *key)
{
    const json_t *record = json_array_get(q->records, json_array_size(q->records) - 1);
    const json_t *value = json_object_get(json_object_get(record, part), key);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    char *kept = arena_strdup(&m->arena, text ? text : "(none)");
    free(text);
    return kept;
}

static void test_a_quiet_phase(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41.5);
    m->load = 0.4;
    m->gpu = (struct gpu_reading){1, {{0.05, 30, 200, 1}}};
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    m->own_rate = 2;
    machine_pass(m, 3);
    assert_true(quiet_after(q, &err));
    assert_false(quiet_last_was_throttled(q) || quiet_last_was_contended(q));
    assert_true(quiet_after(q, &err)); /* nothing is under way */
    check_records(q, 1);
    assert_string_equal(last(m, q, "quiescence", "state"), "\"quiet\"");
    assert_string_equal(last(m, q, "quiescence", "load"), "0.40000000000000002");
    assert_string_equal(last(m, q, "quiescence", "gpu_use"), "0.050000000000000003");
    assert_string_equal(last(m, q, "quiescence", "window_seconds"), "2.0");
    assert_string_equal(last(m, q, "quiescence", "others_cpu"), "0.0");
    assert_string_equal(last(m, q, "temperature", "state"), "\"fired\"");
    assert_string_equal(last(m, q, "temperature", "celsius"), "41.5");
    assert_string_equal(last(m, q, "temperature", "limit"), "60.0");
    assert_string_equal(last(m, q, "temperature", "reader"), "\"hwmon k10temp\"");
    assert_string_equal(last(m, q, "telemetry", "samples"), "2");
    assert_string_equal(last(m, q, "telemetry", "seconds"), "3.0");
    assert_string_equal(last(m, q, "telemetry", "throttled"), "false");
    assert_string_equal(last(m, q, "telemetry", "clock_reader"), "null");
    assert_string_equal(last(m, q, "telemetry", "others_cpu"), "0.0");
    quiet_close(q);
}

/* Our own legs on every processor of a machine of two: no gate waits longer than its window, though
 * the 1-minute load is over the limit after each. */
static void test_own_legs_are_told_apart(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    double highest = 0;
    put_sensor(m, 41);
    m->kernel_load = true;
    struct quiet *q = open_quiet(m, &rules, true);
    for (int pair = 1; pair <= 6; pair++) {
        const struct quiet_point at = {pair, "candidate", "decode"};
        const int sleeps = m->sleeps;
        m->own_rate = 0;
        assert_true(quiet_before(q, &at, &err));
        assert_int_equal(m->sleeps, sleeps + 1);
        assert_string_equal(last(m, q, "quiescence", "state"), "\"quiet\"");
        m->own_rate = 2.5; /* and a helper */
        for (int i = 0; i < 30; i++)
            machine_pass(m, 5);
        assert_true(quiet_after(q, &err));
        assert_false(quiet_last_was_contended(q));
        machine_pass(m, 10); /* the end of one leg, the beginning of the next */
        highest = fmax(highest, m->load);
    }
    assert_true(highest > 2);
    check_records(q, 6);
    quiet_close(q);
}

static void expect_contention(struct machine *m, struct quiet *q, const char *why)
{
    struct error err = {0};
    assert_false(quiet_before(q, &first, &err));
    assert_string_equal(err.name, "QUIESCENCE-TIMEOUT");
    assert_non_null(strstr(err.message, "declined: contention: "));
    if (!strstr(err.message, why))
        fail_msg("%s", err.message);
    assert_string_equal(last(m, q, "quiescence", "state"), "\"not-quiet\"");
    assert_string_equal(last(m, q, "quiescence", "waited_seconds"), "900.0");
    assert_true(quiet_after(q, &err)); /* none is due */
}

/* Who fails rather than rejects a pair: two ranked runs that passed their gates together. */
static void test_a_neighbour_during_the_phase(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    m->others_rate = 0.5;
    for (int i = 0; i < 12; i++)
        machine_pass(m, 5);
    assert_false(quiet_after_alone(q, &err));
    assert_string_equal(err.name, "TELEMETRY-CONTENDED");
    assert_non_null(strstr(err.message, "others took 0.50 processors"));
    err = (struct error){0};
    assert_true(quiet_after_alone(q, &err)); /* none is due */
    m->others_rate = 0.24;
    assert_true(quiet_before(q, &first, &err));
    machine_pass(m, 5);
    assert_true(quiet_after_alone(q, &err));
    quiet_close(q);
}

/* A phase of 28 ms in which others work, the engine's threads wait, and the host takes its part. */
static bool brief_phase(struct machine *m, struct quiet *q, double others, double waited,
                        double stolen, struct error *err)
{
    m->others_rate = m->own_rate = 0;
    assert_true(quiet_before(q, &first, err));
    m->others += others;
    m->waited += waited;
    m->stolen += stolen;
    machine_pass(m, 0.028);
    return quiet_after_alone(q, err);
}

/* Too short for the ticks of /proc/stat: the clocks of processes and the run queue tell. */
static void test_neighbours_of_a_brief_phase(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    const struct {
        double others, waited, stolen;
        const char *cpu, *delay;
        bool contended;
    } rows[] = {
        {0.0002, 0.0001, 0, "0.0070000000000000001", "0.0040000000000000001", false},
        {0.0069, 0, 0, "0.246", "0.0", false}, /* on a processor that the engine did not want */
        {0.0071, 0, 0, "0.254", "0.0", true},  /* though too much */
        {0.003, 0.0027, 0, "0.107", "0.096000000000000002", false},
        {0.003, 0.0029, 0, "0.107", "0.104", true},                /* on one that it wanted */
        {0.0005, 0.05, 0, "0.017999999999999999", "1.786", false}, /* its threads, each other */
        {0, 0, 0.02, "0.35699999999999998", "0.0", true}, /* the host: one tick at the least */
        {0, 0, 0.01, "0.0", "0.0", false},                /* or less than one */
    };
    put_sensor(m, 41);
    struct quiet *q = open_quiet(m, &rules, true);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!brief_phase(m, q, rows[i].others, rows[i].waited, rows[i].stolen, &err))
            fail_msg("%zu: %s", i, err.message);
        assert_string_equal(last(m, q, "telemetry", "others_cpu"), rows[i].cpu);
        assert_string_equal(last(m, q, "telemetry", "engine_run_delay"), rows[i].delay);
        assert_true(quiet_last_was_contended(q) == rows[i].contended);
    }
    /* Three are let through, and a quarter: eight phases so far. */
    assert_false(brief_phase(m, q, 0.01, 0, 0, &err));
    assert_string_equal(err.name, "TELEMETRY-CONTENDED");
    assert_non_null(strstr(err.message, "others took 0.36 processors"));
    for (int i = 0; i < 10; i++)
        assert_true(brief_phase(m, q, 0, 0, 0, &err));
    assert_true(brief_phase(m, q, 0.003, 0.01, 0, &err)); /* the fifth of twenty */
    assert_false(brief_phase(m, q, 0.003, 0.01, 0, &err));
    assert_non_null(strstr(err.message, "waited for a processor for 0.36 of the phase while others "
                                        "took 0.11, the limit is 0.10"));
    m->no_clocks = true;
    assert_true(brief_phase(m, q, 1, 0, 0, &err)); /* a kernel without such clocks */
    assert_string_equal(last(m, q, "telemetry", "others_cpu"), "null");
    check_records(q, 22);
    quiet_close(q);
}

static void test_a_newcomer_of_a_brief_phase(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    m->newcomer = 0.01;
    machine_pass(m, 0.028);
    assert_true(quiet_after(q, &err) && quiet_last_was_contended(q));
    assert_string_equal(last(m, q, "telemetry", "others_cpu"), "0.35699999999999998");
    quiet_close(q);
}

/* The same machine with a neighbour, while our own load hides nothing of him. */
static void test_a_neighbour_is_declined(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    m->kernel_load = true;
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    m->own_rate = 2;
    m->others_rate = 0.5; /* he comes while we run */
    for (int i = 0; i < 12; i++)
        machine_pass(m, 5);
    assert_true(quiet_after(q, &err));
    assert_true(quiet_last_was_contended(q));
    assert_string_equal(last(m, q, "telemetry", "others_cpu"), "0.5");
    m->own_rate = 0;
    expect_contention(m, q, "others take 0.50 processors, the limit is 0.25");
    check_records(q, 2);
    /* Just below the limit he is let be. */
    m->others_rate = 0.24;
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "others_cpu"), "0.23999999999999999");
    quiet_close(q);
}

/* He was busy and has stopped: the load remembers him, and he is waited for. */
static void test_a_neighbour_who_left(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    m->kernel_load = true;
    struct quiet *q = open_quiet(m, &rules, true);
    m->others_rate = 4;
    m->own_rate = 2;
    for (int i = 0; i < 24; i++)
        machine_pass(m, 5);
    m->others_rate = m->own_rate = 0;
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "state"), "\"waited\"");
    /* 4 x (1 - e^-2) falls to 2 in 33 s; looks come at 2, 12, 22, 32 and 42 s. */
    assert_string_equal(last(m, q, "quiescence", "waited_seconds"), "40.0");
    quiet_close(q);
}

/* What is judged is what is sealed: a share that rounds to the limit is at the limit. */
static void test_judged_as_sealed(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    rules.quiescence_wait_seconds = 0;
    struct quiet *q = open_quiet(m, &rules, true);
    m->load = 2;
    q->own.load = 0.002; /* decays over the window to 0.0019, which is sealed as 0.002 */
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "own_load"), "0.002");
    q->own.load = 0.0004; /* sealed as 0 */
    assert_false(quiet_before(q, &first, &err));
    assert_string_equal(err.name, "QUIESCENCE-TIMEOUT");
    assert_string_equal(last(m, q, "quiescence", "own_load"), "0.0");
    quiet_close(q);
}

static void on_sleep_stop(struct machine *m, double seconds)
{
    (void)seconds;
    if (++m->step == 3)
        m->own_rate = 0;
}

/* A process of ours that works between phases is no neighbour, but two processors of it are no
 * rest either. */
static void test_own_unrest(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 41);
    struct quiet *q = open_quiet(m, &rules, true);
    m->own_rate = 1;
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "own_cpu"), "1.0");
    assert_true(quiet_after(q, &err));
    m->own_rate = 2;
    m->on_sleep = on_sleep_stop;
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "state"), "\"waited\"");
    quiet_close(q);
}

static void test_gpu_contention(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default("cuda");
    m->gpu = (struct gpu_reading){2, {{0, 30, 200, 0}, {0.5, 30, 200, 0}}};
    struct quiet *q = open_quiet(m, &rules, true);
    expect_contention(m, q, "the GPU's use is 0.50");
    quiet_close(q);
}

static void test_hot(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 60.1);
    struct quiet *q = open_quiet(m, &rules, true);
    assert_false(quiet_before(q, &first, &err));
    assert_string_equal(err.name, "COOL-GATE-TIMEOUT");
    assert_non_null(strstr(err.message, "60.1 C after 180 s and not getting cooler"));
    assert_string_equal(last(m, q, "temperature", "state"), "\"not-cool\"");
    check_records(q, 1);
    put_sensor(m, 60);
    assert_true(quiet_before(q, &first, &err));
    check_records(q, 2);
    quiet_close(q);
}

/* The machine cools down after the fifth sleep: the first window and four polls. */
static void on_sleep_cool(struct machine *m, double seconds)
{
    (void)seconds;
    if (++m->step == 5)
        put_sensor(m, 50);
}

/* As above, and a neighbour comes while the temperature is waited for; he stays for so long. */
static void on_sleep_neighbour(struct machine *m, double seconds)
{
    on_sleep_cool(m, seconds);
    m->others_rate = m->step >= 3 && m->step < 8 ? 1 : 0;
}

static void on_sleep_neighbour_stays(struct machine *m, double seconds)
{
    on_sleep_cool(m, seconds);
    m->others_rate = m->step >= 3 ? 1 : 0;
}

static void test_quiet_again_after_cooling(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 70);
    struct quiet *q = open_quiet(m, &rules, true);
    m->on_sleep = on_sleep_cool;
    assert_true(quiet_before(q, &first, &err) && quiet_after(q, &err));
    assert_string_equal(last(m, q, "temperature", "state"), "\"waited\"");
    assert_string_equal(last(m, q, "temperature", "waited_seconds"), "40.0");
    assert_string_equal(last(m, q, "quiescence", "state"), "\"quiet\"");
    m->step = 0;
    put_sensor(m, 70);
    m->on_sleep = on_sleep_neighbour;
    assert_true(quiet_before(q, &first, &err) && quiet_after(q, &err));
    /* Busy in the window after the wait and in the poll that he leaves in. */
    assert_string_equal(last(m, q, "quiescence", "state"), "\"waited\"");
    assert_string_equal(last(m, q, "quiescence", "waited_seconds"), "30.0");
    m->step = 0;
    put_sensor(m, 70);
    m->on_sleep = on_sleep_neighbour_stays;
    expect_contention(m, q, "others take 1.00 processors");
    assert_string_equal(last(m, q, "temperature", "state"), "\"waited\"");
    check_records(q, 3);
    quiet_close(q);
}

static void test_no_reader(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct quiet *q = NULL;
    struct error err = {0};
    assert_false(quiet_open_on(&m->system, &rules, true, true, &q, &err));
    assert_null(q);
    assert_string_equal(err.name, "TEMPERATURE-READER-MISSING");
    assert_non_null(strstr(err.message, "no reader"));
    /* A GPU's temperature is not the processor's, and the other way round. */
    m->gpu = (struct gpu_reading){1, {{0, 30, 200, 0}}};
    assert_false(quiet_open_on(&m->system, &rules, true, true, &q, &err));
    m->gpu.count = 0;
    put_sensor(m, 40);
    rules = quiet_rules_default("cuda");
    assert_false(quiet_open_on(&m->system, &rules, true, true, &q, &err));
    /* A contract may say that none is needed. */
    rules.temperature_required = false;
    q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "temperature", "state"), "\"skipped-no-reader\"");
    assert_string_equal(last(m, q, "temperature", "reader"), "null");
    assert_true(quiet_after(q, &err));
    check_records(q, 1);
    quiet_close(q);
}

/* It was there when the run began, and then gives nothing. */
static void test_reader_goes_away(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    m->command = "thermometer";
    m->output = "41\n";
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(m->query, "thermometer");
    assert_string_equal(last(m, q, "temperature", "reader"), "\"MLXFAST_GPU_TEMP_CMD\"");
    assert_true(quiet_after(q, &err));
    m->output = "rubbish\n";
    assert_false(quiet_before(q, &first, &err));
    assert_string_equal(err.name, "TEMPERATURE-READER-MISSING");
    assert_string_equal(last(m, q, "temperature", "state"), "\"skipped-no-reader\"");
    check_records(q, 2);
    quiet_close(q);
}

static void test_switch(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct quiet *q = NULL;
    struct error err = {0};
    put_sensor(m, 90);
    m->load = 50;
    m->gate = "0";
    assert_false(quiet_open_on(&m->system, &rules, true, true, &q, &err));
    assert_string_equal(err.name, "QUIET-GATES-DISABLED");
    rules.cool_gate = true;
    q = open_quiet(m, &rules, false);
    assert_true(quiet_before(q, &first, &err));
    assert_string_equal(last(m, q, "quiescence", "state"), "\"off\"");
    assert_string_equal(last(m, q, "temperature", "state"), "\"off\"");
    assert_string_equal(last(m, q, "temperature", "celsius"), "90.0");
    quiet_close(q);
    m->gate = "1";
    m->load = 0;
    put_sensor(m, 40);
    q = open_quiet(m, &rules, true);
    quiet_close(q);
}

/* A local run reports and goes on; with --cool-gate it waits for the temperature alone. */
static void test_local(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 90);
    m->load = 50;
    machine_tell(m);
    struct quiet *q = open_quiet(m, &rules, false);
    assert_true(quiet_before(q, &first, &err));
    assert_int_equal(m->sleeps, 0);
    assert_string_equal(last(m, q, "quiescence", "state"), "\"not-quiet\"");
    assert_string_equal(last(m, q, "quiescence", "others_cpu"), "null"); /* no window yet */
    assert_string_equal(last(m, q, "temperature", "state"), "\"off\"");
    m->others_rate = 1;
    machine_pass(m, 5);
    assert_true(quiet_after(q, &err) && quiet_last_was_contended(q));
    assert_true(quiet_before(q, &first, &err)); /* again, within a phase: it ends the one before */
    check_records(q, 2);
    quiet_close(q);
    rules.cool_gate = true;
    q = open_quiet(m, &rules, false);
    assert_true(quiet_before(q, &first, &err));
    assert_int_equal(m->sleeps, 18); /* 180 s */
    assert_string_equal(last(m, q, "temperature", "state"), "\"not-cool\"");
    check_records(q, 1);
    quiet_close(q);
    /* A command may hang: where nobody asks, it is not run. */
    rules.cool_gate = false;
    m->command = "thermometer";
    q = open_quiet(m, &rules, false);
    m->query = NULL;
    assert_true(quiet_before(q, &first, &err));
    assert_null(m->query);
    assert_string_equal(last(m, q, "temperature", "celsius"), "null");
    quiet_close(q);
}

static void test_throttled(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default("cuda");
    struct error err = {0};
    rules.clock_floor_mhz = 1500;
    m->gpu = (struct gpu_reading){1, {{0, 40, 300, 0}}};
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    m->gpu.each[0] = (struct gpu_device){1, 80, 1499, 0x4};
    sampler_take(q->sampler);
    machine_pass(m, 3);
    assert_false(quiet_after(q, &err));
    assert_string_equal(err.name, "TELEMETRY-THROTTLED");
    assert_non_null(strstr(err.message, "power-cap, clock-floor; lowest steady clock 1499 MHz"));
    assert_true(quiet_last_was_throttled(q));
    assert_string_equal(last(m, q, "telemetry", "throttled"), "true");
    assert_string_equal(last(m, q, "telemetry", "throttle_reasons"),
                        "[\"power-cap\",\"clock-floor\"]");
    assert_string_equal(last(m, q, "telemetry", "steady_samples"), "1");
    assert_string_equal(last(m, q, "telemetry", "clock_steady_mhz_min"), "1499.0");
    assert_string_equal(last(m, q, "telemetry", "celsius_max"), "80.0");
    /* At the floor: not. */
    m->gpu.each[0] = (struct gpu_device){0, 40, 300, 0};
    assert_true(quiet_before(q, &first, &err));
    assert_false(quiet_last_was_throttled(q));
    m->gpu.each[0] = (struct gpu_device){1, 80, 1500, 0x4};
    sampler_take(q->sampler);
    machine_pass(m, 3);
    assert_true(quiet_after(q, &err));
    check_records(q, 2);
    quiet_close(q);
    /* A local run hears of it and goes on. */
    m->gpu.each[0] = (struct gpu_device){0, 40, 300, 0};
    q = open_quiet(m, &rules, false);
    assert_true(quiet_before(q, &first, &err));
    m->gpu.each[0] = (struct gpu_device){1, 80, 1600, 0x40};
    assert_true(quiet_after(q, &err) && quiet_last_was_throttled(q));
    quiet_close(q);
}

static void test_cpu_throttle_counter(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    static const char core[] = "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
    put_sensor(m, 40);
    machine_write(m, core, "5\n");
    machine_write(m, "/sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count", "7\n");
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    assert_true(quiet_after(q, &err)); /* it stood still */
    assert_true(quiet_before(q, &first, &err));
    machine_write(m, core, "6\n");
    assert_false(quiet_after(q, &err));
    assert_string_equal(err.name, "TELEMETRY-THROTTLED");
    assert_non_null(strstr(err.message, "cpu-thermal"));
    quiet_close(q);
}

static void test_telemetry_missing(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default("cuda");
    struct error err = {0};
    m->gpu = (struct gpu_reading){1, {{0, 40, 300, 0}}};
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    machine_pass(m, 1.99);
    assert_true(quiet_after(q, &err)); /* too short to show anything */
    assert_true(quiet_before(q, &first, &err));
    machine_pass(m, 2);
    assert_false(quiet_after(q, &err));
    assert_string_equal(err.name, "TELEMETRY-MISSING");
    check_records(q, 2);
    quiet_close(q);
    /* On processors only where a floor is declared. */
    put_sensor(m, 40);
    rules = quiet_rules_default(NULL);
    q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    machine_pass(m, 5);
    assert_true(quiet_after(q, &err));
    quiet_close(q);
    rules.clock_floor_mhz = 1000;
    q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err));
    machine_pass(m, 5);
    assert_false(quiet_after(q, &err));
    assert_string_equal(err.name, "TELEMETRY-MISSING");
    quiet_close(q);
}

static void test_interrupted(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 40);
    struct quiet *q = open_quiet(m, &rules, true);
    m->interrupted = true;
    assert_false(quiet_before(q, &first, &err));
    assert_string_equal(err.name, "Interrupted");
    check_records(q, 0);
    quiet_close(q);
}

/* Which sensor is taken. */
static void test_thermometers(void **state)
{
    struct machine *m = *state;
    struct thermometer t;
    struct gpu gpu;
    double celsius;
    gpu_open(&gpu, &m->system);
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_int_equal(t.kind, THERMOMETER_NONE);
    assert_false(thermometer_read(&t, &celsius));
    /* A disk's sensor and a board's zone are none of ours. */
    machine_write(m, "/sys/class/hwmon/hwmon0/name", "nvme\n");
    machine_write(m, "/sys/class/hwmon/hwmon0/temp1_input", "30000\n");
    machine_write(m, "/sys/class/thermal/thermal_zone0/type", "acpitz\n");
    machine_write(m, "/sys/class/thermal/thermal_zone0/temp", "27800\n");
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_int_equal(t.kind, THERMOMETER_NONE);
    machine_write(m, "/sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
    machine_write(m, "/sys/class/thermal/thermal_zone1/temp", "51000\n");
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_string_equal(t.name, "thermal x86_pkg_temp");
    assert_true(thermometer_read(&t, &celsius) && celsius == 51);
    /* The chip wins; the hottest of two sockets counts; what cannot be read is passed over. */
    machine_write(m, "/sys/class/hwmon/hwmon1/name", "coretemp\n");
    machine_write(m, "/sys/class/hwmon/hwmon1/temp1_input", "44000\n");
    machine_write(m, "/sys/class/hwmon/hwmon2/name", "coretemp\n");
    machine_write(m, "/sys/class/hwmon/hwmon2/temp1_input", "48000\n");
    machine_write(m, "/sys/class/hwmon/hwmon2/temp2_input", "rubbish\n");
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_string_equal(t.name, "hwmon coretemp");
    assert_true(thermometer_read(&t, &celsius) && celsius == 48);
    /* A chip of which nothing can be read is no reader. */
    machine_write(m, "/sys/class/hwmon/hwmon3/name", "k10temp\n");
    machine_write(m, "/sys/class/hwmon/hwmon3/temp1_input", "rubbish\n");
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_int_equal(t.kind, THERMOMETER_NONE);
    m->command = "";
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    assert_int_equal(t.kind, THERMOMETER_NONE);
}

/* nvidia-smi where NVML is not to be had. */
static void test_nvidia_smi(void **state)
{
    struct machine *m = *state;
    struct gpu gpu;
    struct gpu_reading r;
    gpu_open(&gpu, &m->system);
    assert_null(gpu_name(&gpu));
    assert_string_equal(m->query, "command -v nvidia-smi");
    m->output = "12, 50, 1410, 0x0000000000000020\n";
    gpu_open(&gpu, &m->system);
    assert_string_equal(gpu_name(&gpu), "nvidia-smi");
    assert_true(gpu_read(&gpu, &r) && r.each[0].throttle == 0x20);
    m->output = "12, 50, 1410\n"; /* a driver that does not know the bits by either name */
    gpu_open(&gpu, &m->system);
    assert_string_equal(gpu_name(&gpu), "nvidia-smi");
    assert_true(gpu_read(&gpu, &r) && r.each[0].use == 0.12 && r.each[0].throttle == 0);
    m->output = "NVIDIA-SMI has failed\n";
    assert_false(gpu_read(&gpu, &r));
    gpu_open(&gpu, &m->system);
    assert_null(gpu_name(&gpu));
}

/* What is not of this record is refused where a score is read or written. */
static void test_records_are_closed(void **state)
{
    struct machine *m = *state;
    struct quiet_rules rules = quiet_rules_default(NULL);
    struct error err = {0};
    put_sensor(m, 40);
    struct quiet *q = open_quiet(m, &rules, true);
    assert_true(quiet_before(q, &first, &err) && quiet_after(q, &err));
    static const struct {
        const char *part, *key, *value, *field; /* value NULL: taken away */
    } rows[] = {
        {NULL, "leg", NULL, "metrics.gates[0].leg"},
        {NULL, "pair", "1.5", "metrics.gates[0].pair"},
        {NULL, "extra", "1", "metrics.gates[0].extra"},
        {"quiescence", "state", "\"calm\"", "metrics.gates[0].quiescence.state"},
        {"quiescence", "load", NULL, "metrics.gates[0].quiescence.load"},
        {"temperature", "state", "\"quiet\"", "metrics.gates[0].temperature.state"},
        {"temperature", "limit", "null", "metrics.gates[0].temperature.limit"},
        {"telemetry", "throttled", "0", "metrics.gates[0].telemetry.throttled"},
        {"telemetry", "throttle_reasons", "[1]", "metrics.gates[0].telemetry.throttle_reasons"},
        {"telemetry", "series", "{\"seconds\":[],\"celsius\":[]}",
         "metrics.gates[0].telemetry.series"},
        {"telemetry", "series", "{\"seconds\":[1],\"celsius\":[],\"clock_mhz\":[]}",
         "metrics.gates[0].telemetry.series.celsius"},
        {"telemetry", "series", "{\"seconds\":[true],\"celsius\":[1],\"clock_mhz\":[1]}",
         "metrics.gates[0].telemetry.series.seconds"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct score_document d;
        json_t *records = quiet_records(q), *at = json_array_get(records, 0);
        if (rows[i].part)
            at = json_object_get(at, rows[i].part);
        if (rows[i].value)
            json_object_set_new(at, rows[i].key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(at, rows[i].key);
        score_document_init(&d, "rust");
        score_set_json(&d, "gates", records);
        if (score_keys_check(d.metrics, &err))
            fail_msg("row %zu was accepted", i);
        assert_string_equal(err.name, "SCORE-INVALID");
        assert_string_equal(err.field, rows[i].field);
        score_document_free(&d);
    }
    quiet_close(q);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, machine_set_up, machine_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_a_quiet_phase),
        TEST(test_own_legs_are_told_apart),
        TEST(test_a_neighbour_during_the_phase),
        TEST(test_neighbours_of_a_brief_phase),
        TEST(test_a_newcomer_of_a_brief_phase),
        TEST(test_a_neighbour_is_declined),
        TEST(test_a_neighbour_who_left),
        TEST(test_own_unrest),
        TEST(test_judged_as_sealed),
        TEST(test_gpu_contention),
        TEST(test_hot),
        TEST(test_quiet_again_after_cooling),
        TEST(test_no_reader),
        TEST(test_reader_goes_away),
        TEST(test_switch),
        TEST(test_local),
        TEST(test_throttled),
        TEST(test_cpu_throttle_counter),
        TEST(test_telemetry_missing),
        TEST(test_interrupted),
        TEST(test_thermometers),
        TEST(test_nvidia_smi),
        TEST(test_records_are_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
