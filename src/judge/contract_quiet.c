/* How quiet a machine must be for a ranked run (contract-and-scoring.md section 7). Not declared:
 * the platform's defaults. */
#include "judge/contract_read.h"

/* Beyond these a value is a slip: no machine is that hot, no run waits that long. */
static const double CELSIUS_END = 120, WAIT_END = 86400, WINDOW_END = 60;
/* Below it the clock of processor times is too coarse. */
static const double WINDOW_LEAST = 0.2;

static bool check_ranges(const struct contract_reader *r, const struct quiet_rules *q)
{
    if (q->gpu_use_max > 1)
        return contract_refuse_value(r, "gpu_use_max", "must be 1 at most");
    if (q->celsius_max > CELSIUS_END)
        return contract_refuse_value(r, "celsius_max", "must be 120 at most");
    if (q->quiescence_wait_seconds > WAIT_END)
        return contract_refuse_value(r, "wait_seconds", "must be 86400 at most");
    if (q->window_seconds < WINDOW_LEAST || q->window_seconds > WINDOW_END)
        return contract_refuse_value(r, "window_seconds", "must be from 0.2 to 60");
    return q->loaded_use <= 1 || contract_refuse_value(r, "loaded_use", "must be 1 at most");
}

bool contract_read_quiet(const struct contract_reader *root)
{
    static const char key[] = "quiet";
    static const char *const needed[] = {"load_max",     "gpu_use_max",
                                         "celsius_max",  "temperature_required",
                                         "wait_seconds", "clock_floor_mhz"};
    struct contract *c = root->c;
    struct contract_reader r;
    struct quiet_rules *q = &c->quiet;
    *q = quiet_rules_default(c->platform);
    c->has_quiet = contract_has(root, key);
    if (!c->has_quiet)
        return true;
    if (!contract_open_object(root, CONTRACT_QUIET, key, &r) ||
        !contract_is_whole(&r, needed, sizeof needed / sizeof *needed))
        return false;
    if (!contract_get_real(&r, "load_max", CONTRACT_REAL_POSITIVE, &q->load_max) ||
        !contract_get_real(&r, "gpu_use_max", CONTRACT_REAL_POSITIVE, &q->gpu_use_max) ||
        !contract_get_real(&r, "celsius_max", CONTRACT_REAL_POSITIVE, &q->celsius_max) ||
        !contract_get_flag(&r, "temperature_required", &q->temperature_required) ||
        !contract_get_real(&r, "wait_seconds", CONTRACT_REAL_NOT_NEGATIVE,
                           &q->quiescence_wait_seconds) ||
        !contract_get_real(&r, "clock_floor_mhz", CONTRACT_REAL_NOT_NEGATIVE, &q->clock_floor_mhz))
        return false;
    q->cool_wait_seconds = q->quiescence_wait_seconds;
    /* These have defaults of their own. */
    if (contract_has(&r, "window_seconds") &&
        !contract_get_real(&r, "window_seconds", CONTRACT_REAL_POSITIVE, &q->window_seconds))
        return false;
    if (contract_has(&r, "others_cpu_max") &&
        !contract_get_real(&r, "others_cpu_max", CONTRACT_REAL_POSITIVE, &q->others_cpu_max))
        return false;
    q->run_delay_max = QUIET_RUN_DELAY * q->others_cpu_max;
    if (contract_has(&r, "run_delay_max") &&
        !contract_get_real(&r, "run_delay_max", CONTRACT_REAL_POSITIVE, &q->run_delay_max))
        return false;
    if (contract_has(&r, "loaded_use") &&
        !contract_get_real(&r, "loaded_use", CONTRACT_REAL_POSITIVE, &q->loaded_use))
        return false;
    return check_ranges(&r, q);
}
