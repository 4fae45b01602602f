#include "judge/compare/noise.h"

#include "base/stats.h"
#include "base/terminal.h"

#include <math.h>

struct noise_floor noise_floor_of(const double *seconds, size_t n)
{
    struct noise_floor f = {.runs = n,
                            .mean = stats_mean(seconds, n),
                            .sd = stats_sample_sd(seconds, n),
                            .min = stats_min(seconds, n),
                            .max = stats_max(seconds, n)};
    f.kill_bar = fmax(NOISE_BAR_FLOOR, NOISE_BAR_DEVIATIONS * f.sd / f.mean);
    return f;
}

bool noise_run(struct noise_run *r, struct error *err)
{
    double prefill[NOISE_RUNS_MOST], decode[NOISE_RUNS_MOST];
    struct bench_times cold;
    struct progress p = {.quiet = r->bench->flags->quiet};
    progress_begin(&p, "noise", "legs", r->runs + 1);
    bool ok = bench_leg(r->bench, r->setting, 0, &cold, err);
    for (size_t i = 0; ok && i < r->runs; i++) {
        progress_update(&p, i + 1);
        ok = bench_leg(r->bench, r->setting, (int)i + 1, &r->times[i], err);
        prefill[i] = r->times[i].prefill;
        decode[i] = r->times[i].decode;
        r->disturbed += !bench_is_clean(&r->times[i]);
    }
    if (ok)
        progress_update(&p, r->runs + 1);
    progress_end(&p);
    if (!ok || !bench_check_unchanged(r->setting, err))
        return false;
    r->prefill = noise_floor_of(prefill, r->runs);
    r->decode = noise_floor_of(decode, r->runs);
    return true;
}

static json_t *seal_floor(const struct noise_floor *f)
{
    json_t *o = json_object();
    json_object_set_new(o, "mean_seconds_per_token", json_real(f->mean));
    json_object_set_new(o, "sd_seconds_per_token", json_real(f->sd));
    json_object_set_new(o, "min_seconds_per_token", json_real(f->min));
    json_object_set_new(o, "max_seconds_per_token", json_real(f->max));
    json_object_set_new(o, "relative_sd", json_real(f->sd / f->mean));
    json_object_set_new(o, "kill_bar", json_real(f->kill_bar));
    return o;
}

json_t *noise_report(const struct noise_run *r)
{
    json_t *o = json_object(), *legs = json_array();
    for (size_t i = 0; i < r->runs; i++) {
        const struct bench_times *t = &r->times[i];
        json_t *l = json_object();
        json_object_set_new(l, "run", json_integer((json_int_t)i + 1));
        json_object_set_new(l, "prefill_seconds_per_token", json_real(t->prefill));
        json_object_set_new(l, "decode_seconds_per_token", json_real(t->decode));
        json_object_set_new(l, "contended", json_boolean(t->contended));
        json_object_set_new(l, "throttled", json_boolean(t->throttled));
        json_array_append_new(legs, l);
    }
    json_object_set_new(o, "kind", json_string("benchd noise"));
    json_object_set_new(o, "runs", json_integer((json_int_t)r->runs));
    json_object_set_new(o, "runs_disturbed", json_integer((json_int_t)r->disturbed));
    json_object_set_new(o, "prefill", seal_floor(&r->prefill));
    json_object_set_new(o, "decode", seal_floor(&r->decode));
    json_object_set_new(o, "decode_steps", json_integer(r->bench->oracle.steps));
    json_object_set_new(o, "contract_sha256", json_string(r->bench->contract->sha256));
    json_object_set_new(o, "golden_sha256", json_string(r->bench->golden->sha256));
    json_object_set_new(o, "setting", bench_seal_setting(r->setting));
    json_object_set_new(o, "legs", legs);
    json_object_set_new(o, "conditions", quiet_records(r->bench->quiet));
    return o;
}
