/* Clocks. The monotonic clock is the only one that times anything. */
#ifndef MLXFAST_BASE_CLOCK_H
#define MLXFAST_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t clock_now_ns(void);          /* CLOCK_MONOTONIC */
double clock_seconds(int64_t since); /* seconds since a clock_now_ns value */
/* UTC, "2026-01-31T12:00:00Z". SOURCE_DATE_EPOCH is honoured. out holds 32 bytes. */
char *clock_utc_text(char *out, size_t size);

#endif
