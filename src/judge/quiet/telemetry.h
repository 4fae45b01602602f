/* What was read during a phase, and what it says: steady clock, throttling, temperatures
 * (dflash-track.md section 3). Arithmetic only; sampler.h does the reading. */
#ifndef MLXFAST_JUDGE_QUIET_TELEMETRY_H
#define MLXFAST_JUDGE_QUIET_TELEMETRY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reasons for a lower clock: NVML's bits, and two of ours above them. Idle clocks (1) and clocks
 * that somebody has set (2, 0x100) are no reasons of the machine's own. */
enum {
    THROTTLE_POWER_CAP = 0x4,
    THROTTLE_HARDWARE = 0x8,
    THROTTLE_SYNC_BOOST = 0x10,
    THROTTLE_SOFTWARE_THERMAL = 0x20,
    THROTTLE_HARDWARE_THERMAL = 0x40,
    THROTTLE_POWER_BRAKE = 0x80,
    THROTTLE_CPU_THERMAL = 0x1000000, /* a processor's throttle counter went up */
    THROTTLE_CLOCK_FLOOR = 0x2000000  /* the steady clock is below the contract's floor */
};
/* A cap on power is how a loaded GPU lives: sealed as a reason, not throttling by itself. */
bool throttle_is_throttling(uint64_t bits);
json_t *throttle_names(uint64_t bits); /* array of words, in the order above; a new reference */

/* NAN: not known. */
struct sample {
    double seconds; /* since the phase began */
    double celsius, clock_mhz, load;
    double use; /* 0..1: of the busiest GPU, or of the busiest processor since the sample before */
    uint64_t throttle;
};

struct samples {
    struct sample *all; /* the caller frees it */
    size_t count, capacity;
};
enum { SAMPLES_MAX = 100000 }; /* nearly three hours at 10 a second; later ones are left out */
void samples_add(struct samples *s, const struct sample *one);

struct telemetry {
    size_t samples, steady;
    double clock_min, clock_median, clock_steady_min, celsius_max, use_median, load_max;
    uint64_t throttle;
};
/* A sample is loaded from loaded_use on; it is steady when the one before was loaded too, which
 * drops the ramp-up. floor_mhz 0: none. extra: bits that no sample has. */
void telemetry_summarise(const struct samples *s, double loaded_use, double floor_mhz,
                         uint64_t extra, struct telemetry *out);

/* {"seconds","celsius","clock_mhz"}, at most SERIES_MOST of each, evenly thinned, the last one
 * kept; a new reference. */
enum { SERIES_MOST = 60 };
json_t *telemetry_series(const struct samples *s);

/* Three decimals, as sealed: what is judged is what can be judged again from the seal. */
double telemetry_rounded(double x);
/* null for NAN, else three decimals. */
json_t *telemetry_number(double x);

#endif
