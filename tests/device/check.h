/* What the tests of the device count, and how a failed check is told. */
#ifndef MLXFAST_TESTS_DEVICE_CHECK_H
#define MLXFAST_TESTS_DEVICE_CHECK_H

#include <stdio.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        checks++;                                                                                  \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

#endif
