/* What the samples of a phase say: steady clock, throttling, the series, the sampler's own cost. */
#include "quiet_machine.h"

static struct samples list(struct sample *all, size_t count)
{
    return (struct samples){all, count, count};
}

static struct sample at(double seconds, double use, double clock)
{
    return (struct sample){seconds, NAN, clock, NAN, use, 0};
}

/* dflash-track.md section 3: loaded from 0.95, and the one before loaded too. */
static void test_steady(void **state)
{
    (void)state;
    struct sample all[] = {
        at(0.0, NAN, 300),  /* first */
        at(0.1, 0.94, 400), /* not loaded */
        at(0.2, 0.95, 900), /* loaded, after one that was not: the ramp-up */
        at(0.3, 0.95, 1600), at(0.4, 1.00, 1500), at(0.5, 1.00, NAN), /* no clock: not counted */
        at(0.6, 1.00, 1700), at(0.7, 0.50, 200),  at(0.8, 0.99, 210),
    };
    const struct samples s = list(all, sizeof all / sizeof *all);
    struct telemetry t;
    telemetry_summarise(&s, 0.95, 1500, 0, &t);
    assert_int_equal(t.samples, 9);
    assert_int_equal(t.steady, 3);
    assert_true(t.clock_steady_min == 1500 && t.clock_min == 200 && t.clock_median == 650);
    assert_true(t.use_median == (0.95 + 0.99) / 2 && isnan(t.celsius_max) && isnan(t.load_max));
    assert_int_equal(t.throttle, 0); /* the floor itself is not below it */
    telemetry_summarise(&s, 0.95, 1500.001, 0, &t);
    assert_int_equal(t.throttle, THROTTLE_CLOCK_FLOOR);
    telemetry_summarise(&s, 1.01, 1500.001, 0, &t);
    assert_true(t.steady == 0 && isnan(t.clock_steady_min) && t.throttle == 0);
}

static void test_nothing_read(void **state)
{
    (void)state;
    const struct samples s = {0};
    struct telemetry t;
    telemetry_summarise(&s, 0.95, 1500, 0, &t);
    assert_true(t.samples == 0 && t.steady == 0 && t.throttle == 0 && isnan(t.clock_min) &&
                isnan(t.use_median));
    json_t *series = telemetry_series(&s);
    assert_int_equal(json_array_size(json_object_get(series, "seconds")), 0);
    json_decref(series);
}

static void test_throttle_bits(void **state)
{
    (void)state;
    static const struct {
        uint64_t bits;
        bool throttling;
        const char *names;
    } rows[] = {
        {0, false, "[]"},
        {0x1, false, "[]"},   /* idle clocks */
        {0x102, false, "[]"}, /* clocks that somebody has set */
        {THROTTLE_POWER_CAP, false, "[\"power-cap\"]"},
        {THROTTLE_SYNC_BOOST, false, "[\"sync-boost\"]"},
        {THROTTLE_HARDWARE, true, "[\"hardware-slowdown\"]"},
        {THROTTLE_SOFTWARE_THERMAL | THROTTLE_POWER_CAP, true,
         "[\"power-cap\", \"software-thermal\"]"},
        {THROTTLE_HARDWARE_THERMAL, true, "[\"hardware-thermal\"]"},
        {THROTTLE_POWER_BRAKE, true, "[\"power-brake\"]"},
        {THROTTLE_CPU_THERMAL, true, "[\"cpu-thermal\"]"},
        {THROTTLE_CLOCK_FLOOR, true, "[\"clock-floor\"]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *names = throttle_names(rows[i].bits);
        char *text = json_dumps(names, 0);
        assert_string_equal(text, rows[i].names);
        assert_int_equal(throttle_is_throttling(rows[i].bits), rows[i].throttling);
        free(text);
        json_decref(names);
    }
    struct sample all[] = {at(0, 1, 1), at(1, 1, 1)};
    all[1].throttle = THROTTLE_HARDWARE;
    const struct samples s = list(all, 2);
    struct telemetry t;
    telemetry_summarise(&s, 0.95, 0, THROTTLE_CPU_THERMAL, &t);
    assert_int_equal(t.throttle, THROTTLE_HARDWARE | THROTTLE_CPU_THERMAL);
}

static void test_series(void **state)
{
    (void)state;
    struct samples s = {0};
    for (int i = 0; i < 1000; i++) {
        struct sample one = at(i / 10.0, 1, 2000 + i);
        one.celsius = i % 2 ? NAN : 41.23456;
        samples_add(&s, &one);
        const size_t kept = s.count < SERIES_MOST ? s.count : SERIES_MOST;
        if (i != 0 && i != 58 && i != 59 && i != 60 && i != 999)
            continue;
        json_t *series = telemetry_series(&s);
        const json_t *seconds = json_object_get(series, "seconds");
        assert_int_equal(json_array_size(seconds), kept);
        assert_int_equal(json_array_size(json_object_get(series, "celsius")), kept);
        assert_int_equal(json_array_size(json_object_get(series, "clock_mhz")), kept);
        assert_true(json_real_value(json_array_get(seconds, 0)) == 0);
        assert_true(json_real_value(json_array_get(seconds, kept - 1)) == i / 10.0);
        const json_t *celsius = json_object_get(series, "celsius");
        assert_true(json_real_value(json_array_get(celsius, 0)) == 41.235);
        if (i % 2)
            assert_true(json_is_null(json_array_get(celsius, kept - 1)));
        json_decref(series);
    }
    for (size_t i = s.count; i < SAMPLES_MAX + 5; i++) {
        const struct sample one = at((double)i, 1, 1);
        samples_add(&s, &one);
    }
    assert_int_equal(s.count, SAMPLES_MAX);
    free(s.all);
}

static void test_sampler_interval(void **state)
{
    (void)state;
    assert_true(sampler_interval(0.1, 0.0001) == 0.1);
    assert_true(sampler_interval(0.1, 0.0003) == 0.1);
    /* Ten times dearer: ten times less often. The share stays under 0.5 %. */
    assert_true(sampler_interval(0.1, 0.003) == 0.003 / 0.003);
    for (double cost = 1e-6; cost < 1; cost *= 3)
        assert_true(cost / sampler_interval(0.1, cost) < 0.005);
}

/* The busiest processor's share and clock: /proc/stat and cpufreq. */
static void put_processors(struct machine *m, const char *stat)
{
    machine_write(m, "/proc/stat", stat);
}

static void test_processor_samples(void **state)
{
    struct machine *m = *state;
    struct gpu gpu;
    struct thermometer t;
    double share;
    machine_write(m, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1000000\n");
    machine_write(m, "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "3000000\n");
    machine_write(m, "/sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "2500000\n");
    machine_write(m, "/sys/class/hwmon/hwmon0/name", "k10temp\n");
    machine_write(m, "/sys/class/hwmon/hwmon0/temp1_input", "41500\n");
    gpu_open(&gpu, &m->system);
    thermometer_open(&t, &m->system, &gpu, QUIET_CPU);
    struct sampler *p = sampler_open(&m->system, &gpu, &t, QUIET_CPU, 0.95);
    assert_string_equal(sampler_clock_source(p), "cpufreq");
    put_processors(m, "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n"
                      "cpu2 0 0 0 0 0 0 0 0\n");
    sampler_start(p);
    /* cpu0 rests, cpu1 and cpu2 are at work: the slower of the two counts. */
    put_processors(m, "cpu  21 0 0 9 0 0 0 0\ncpu0 1 0 0 9 0 0 0 0\ncpu1 10 0 0 0 0 0 0 0\n"
                      "cpu2 10 0 0 0 0 0 0 0\n");
    m->clock += 0.5;
    machine_write(m, "/sys/class/hwmon/hwmon0/temp1_input", "80000\n");
    sampler_take(p);
    /* None is loaded: the busiest. */
    put_processors(m, "cpu  21 0 0 19 0 0 0 0\ncpu0 1 0 0 19 0 0 0 0\ncpu1 12 0 0 8 0 0 0 0\n"
                      "cpu2 19 0 0 1 0 0 0 0\n");
    m->clock += 0.5;
    machine_write(m, "/sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "2400000\n");
    const struct samples *s = sampler_stop(p, &share);
    assert_int_equal(s->count, 3);
    assert_true(isnan(share)); /* no thread */
    assert_true(isnan(s->all[0].use) && s->all[0].clock_mhz == 1000 && s->all[0].celsius == 41.5);
    assert_true(s->all[1].use == 1 && s->all[1].clock_mhz == 2500);
    assert_true(s->all[1].celsius == 41.5); /* read once a second */
    assert_true(s->all[2].use == 0.9 && s->all[2].clock_mhz == 2400 && s->all[2].celsius == 80);
    assert_true(s->all[2].seconds == 1);
    sampler_close(p);
}

static void test_gpu_samples(void **state)
{
    struct machine *m = *state;
    struct gpu gpu;
    struct thermometer t;
    double share;
    m->gpu = (struct gpu_reading){2, {{0.97, 61, 1500, 0x4}, {0.1, 65, 300, 0x1}}};
    gpu_open(&gpu, &m->system);
    thermometer_open(&t, &m->system, &gpu, QUIET_GPU);
    assert_string_equal(t.name, "nvml");
    struct sampler *p = sampler_open(&m->system, &gpu, &t, QUIET_GPU, 0.95);
    sampler_start(p);
    m->gpu.each[1].use = 0.96; /* now both count */
    sampler_take(p);
    m->gpu.each[0].use = 0.2; /* none loaded: the busiest */
    m->gpu.each[1].use = 0.3;
    const struct samples *s = sampler_stop(p, &share);
    assert_int_equal(s->count, 3);
    assert_true(s->all[0].use == 0.97 && s->all[0].clock_mhz == 1500 && s->all[0].celsius == 65);
    assert_int_equal(s->all[0].throttle, 0x5);
    assert_true(s->all[1].clock_mhz == 300 && s->all[2].use == 0.3 && s->all[2].clock_mhz == 300);
    sampler_close(p);
}

/* The thread starts, samples and is joined; how often it came round is the machine's affair. */
static void test_thread(void **state)
{
    (void)state;
    struct quiet_system *s = quiet_system_open();
    struct gpu gpu;
    struct thermometer t;
    double share;
    s->sample_seconds = 0.001;
    gpu_open(&gpu, s);
    thermometer_open(&t, s, &gpu, QUIET_CPU);
    struct sampler *p = sampler_open(s, &gpu, &t, QUIET_CPU, 0.95);
    for (int i = 0; i < 3; i++) {
        sampler_start(p);
        const struct samples *found = sampler_stop(p, &share);
        assert_true(found->count >= 2 && isnan(share)); /* of less than a second */
        assert_true(found->all[0].load >= 0);
    }
    sampler_start(p);
    sampler_close(p); /* joins */
    quiet_system_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_nothing_read),
        cmocka_unit_test(test_throttle_bits),
        cmocka_unit_test(test_series),
        cmocka_unit_test(test_sampler_interval),
        cmocka_unit_test_setup_teardown(test_processor_samples, machine_set_up, machine_tear_down),
        cmocka_unit_test_setup_teardown(test_gpu_samples, machine_set_up, machine_tear_down),
        cmocka_unit_test(test_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
