/* What the readers' sources say, read strictly: texts in, numbers out. Nothing here opens a file.
 * Texts are NUL-terminated and may hold anything. A value that is not there is NAN. */
#ifndef MLXFAST_JUDGE_QUIET_PARSE_H
#define MLXFAST_JUDGE_QUIET_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { QUIET_CPUS_MAX = 1024, QUIET_GPUS_MAX = 16 };

/* A temperature that a sensor of a running machine can give, in degrees Celsius. */
bool parse_celsius_is_usable(double celsius);
/* The first line of a command's output: a number, "C" or "°C" after it allowed. */
bool parse_celsius_line(const char *text, double *celsius);
/* temp*_input of hwmon, temp of a thermal zone: thousandths. */
bool parse_millidegrees(const char *text, double *celsius);
/* scaling_cur_freq: kilohertz. */
bool parse_kilohertz(const char *text, double *mhz);
bool parse_count(const char *text, uint64_t *count); /* a throttle counter */
bool parse_load(const char *text, double *load);     /* /proc/loadavg: the 1-minute load */

struct cpu_ticks {
    uint64_t busy;   /* user, nice, system, irq, softirq, steal: work, and time that others took */
    uint64_t all;    /* with idle and iowait */
    uint64_t stolen; /* of busy: what the host gave to others */
};
struct cpu_times {
    struct cpu_ticks whole;
    size_t count; /* of each; by number, offline ones are zero */
    struct cpu_ticks each[QUIET_CPUS_MAX];
};
/* /proc/stat. Only the first line is needed; processors beyond QUIET_CPUS_MAX are left out. */
bool parse_stat(const char *text, struct cpu_times *out);

/* /proc/PID/stat: the parent, and the time of the process with its reaped children, in ticks. */
bool parse_process(const char *text, pid_t *parent, uint64_t *ticks);

/* /proc/PID/task/TID/schedstat: how long the thread stood in a run queue so far, in seconds. */
bool parse_run_delay(const char *text, double *seconds);

/* "cpu MHz" lines of /proc/cpuinfo, by processor. Returns how many there are, at most room. */
size_t parse_cpuinfo_clocks(const char *text, double *mhz, size_t room);

struct gpu_device {
    double use; /* 0..1 */
    double celsius, clock_mhz;
    uint64_t throttle; /* telemetry.h; 0 where it is not known */
};
struct gpu_reading {
    size_t count;
    struct gpu_device each[QUIET_GPUS_MAX];
};
/* nvidia-smi, csv,noheader,nounits: use, temperature, SM clock and, with_throttle, the bits. False:
 * no line, or a line of another shape. What it cannot say ("[N/A]") is NAN. */
bool parse_nvidia_smi(const char *text, bool with_throttle, struct gpu_reading *out);

#endif
