/* Numbers from text, and text from numbers: one function each, whole input, in range. */
#ifndef MLXFAST_BASE_NUMBER_H
#define MLXFAST_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal only, no leading '+' or spaces, no trailing bytes. On failure NUMBER-INVALID is set by
 * the caller: these return false and leave *out alone. */
bool number_int64(const char *text, int64_t min, int64_t max, int64_t *out);
bool number_uint64(const char *text, uint64_t max, uint64_t *out);
bool number_double(const char *text, double *out); /* finite, JSON number syntax */

/* Shortest text that reads back as the same double (JSON number; integers below 1e16 are written
 * with ".0" as Rust and Python do, exponents as e-7 / e21). out has at least 32 bytes. */
char *number_format_double(double value, char *out, size_t size);

/* Checked arithmetic on sizes; false on overflow. */
bool size_multiply(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);

#endif
