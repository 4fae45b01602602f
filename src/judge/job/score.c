#include "judge/job/score.h"

#include <math.h>
#include <stdio.h>

static bool observed(double seconds, uint64_t tokens)
{
    return isfinite(seconds) && seconds > 0 && tokens > 0;
}

static bool uncertified(struct error *err, const char *name, const char *field, double seconds,
                        const char *what)
{
    char value[40];
    snprintf(value, sizeof value, "%.9g", seconds);
    error_set(err, name, "%s", what);
    return error_at(err, NULL, field, value);
}

bool job_windows_certify(const struct job_windows *w, struct error *err)
{
    static const char unseen[] = "PREFILL-WINDOW-NOT-OBSERVED";
    if (!observed(w->prefill, w->prefill_tokens))
        return uncertified(err, unseen, "prefill_window_seconds", w->prefill,
                           "the prefill window has no duration or no token");
    if (!observed(w->decode, w->decode_tokens))
        return uncertified(err, unseen, "decode_window_seconds", w->decode,
                           "the decode window has no duration or no token");
    if (!isfinite(w->whole) || w->whole <= 0)
        return uncertified(err, unseen, "whole_window_seconds", w->whole,
                           "the whole window has no duration");
    if (fabs(w->prefill + w->decode - w->whole) > JOB_WINDOW_TOLERANCE * w->whole)
        return uncertified(err, "PREFILL-WINDOW-DISAGREES", "whole_window_seconds", w->whole,
                           "the prefill and decode windows do not add up to the whole window");
    return true;
}

double job_pair_ratio(const struct job_times *t)
{
    return t->serial / t->candidate;
}

struct job_means job_ratio_of_means(const struct job_times *pairs, size_t count)
{
    struct job_means m = {NAN, NAN, NAN};
    if (count == 0)
        return m;
    m.serial = m.candidate = 0;
    for (size_t i = 0; i < count; i++) {
        m.serial += pairs[i].serial;
        m.candidate += pairs[i].candidate;
    }
    m.serial /= (double)count;
    m.candidate /= (double)count;
    m.ratio = m.serial / m.candidate;
    return m;
}

static double factor(double gain, double exponent)
{
    if (exponent == 0)
        return 1;
    return isfinite(gain) && gain > 0 ? pow(gain, exponent) : NAN;
}

struct job_composite job_cohort_composite(const struct job_times *pairs, size_t count,
                                          double prefill_exponent, double decode_exponent)
{
    double prefill[2] = {0, 0}, decode[2] = {0, 0}; /* serial, candidate */
    for (size_t i = 0; i < count; i++) {
        prefill[0] += pairs[i].serial_prefill;
        prefill[1] += pairs[i].candidate_prefill;
        decode[0] += pairs[i].serial_decode;
        decode[1] += pairs[i].candidate_decode;
    }
    struct job_composite c = {prefill[0] / prefill[1], decode[0] / decode[1], 0};
    c.score = factor(c.decode_gain, decode_exponent) * factor(c.prefill_gain, prefill_exponent);
    return c;
}

bool job_judge_score(double score, struct error *err)
{
    if (!isfinite(score))
        return error_set(err, "SCORE-NOT-FINITE", "computed score was not finite");
    if (score < JOB_SPEEDUP_FLOOR)
        return error_set(err, "Floor", "the speedup %.6f is below the floor of %.2f", score,
                         JOB_SPEEDUP_FLOOR);
    if (score > JOB_SPEEDUP_CEILING)
        return error_set(err, "Ceiling", "the speedup %.6f is above the ceiling of %.1f", score,
                         JOB_SPEEDUP_CEILING);
    return true;
}

bool job_judge_pairs(const double *ratios, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (isfinite(ratios[i]) && ratios[i] > 0 && ratios[i] <= JOB_PAIR_RATIO_MAX)
            continue;
        char field[40];
        snprintf(field, sizeof field, "pairs[%zu].raw_ratio", i);
        error_set(err, "PerPairBound", "the ratio %.6f of pair %zu is not within (0, %.1f]",
                  ratios[i], i + 1, JOB_PAIR_RATIO_MAX);
        return error_at(err, NULL, field, NULL);
    }
    return true;
}
