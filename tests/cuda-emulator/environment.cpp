/* What the environment asks for, calls that are to fail, and errors by name. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct runtime runtime;
pthread_mutex_t runtime_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread cudaError_t last_error;

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL || *text == 0)
        return otherwise;
    const uint64_t v = strtoull(text, &end, 10);
    if (*end != 0)
        emulator_abort("%s is '%s', not a number", name, text);
    return v;
}

static void read_failures(const char *text)
{
    runtime.failure_count = 0;
    while (text != NULL && *text) {
        const char *colon = strchr(text, ':');
        char *end;
        if (colon == NULL || runtime.failure_count == MOST_FAILURES ||
            (size_t)(colon - text) >= sizeof runtime.failures[0].call)
            emulator_abort("CUDA_EMULATOR_FAIL has '%s', not CALL:NUMBER[,CALL:NUMBER]", text);
        const int i = runtime.failure_count++;
        memcpy(runtime.failures[i].call, text, (size_t)(colon - text));
        runtime.failures[i].call[colon - text] = 0;
        runtime.failures[i].number = strtoull(colon + 1, &end, 10);
        if (end == colon + 1 || (*end != 0 && *end != ','))
            emulator_abort("CUDA_EMULATOR_FAIL has '%s', not CALL:NUMBER[,CALL:NUMBER]", text);
        text = *end == ',' ? end + 1 : end;
    }
}

bool emulator_hopper, emulator_copies_early;

static void read_environment(void)
{
    runtime.read = true;
    runtime.call_count = 0;
    runtime.memory = number_of("CUDA_EMULATOR_MEMORY", (size_t)16 << 30);
    runtime.devices = (int)number_of("CUDA_EMULATOR_DEVICES", 1);
    runtime.driver = (int)number_of("CUDA_EMULATOR_DRIVER", RUNTIME);
    runtime.early = (unsigned)number_of("CUDA_EMULATOR_EARLY", 0);
    runtime.major = 9;
    runtime.minor = 0;
    const char *cc = getenv("CUDA_EMULATOR_CC");
    char rest;
    if (cc != NULL && *cc && sscanf(cc, "%d.%d%c", &runtime.major, &runtime.minor, &rest) != 2)
        emulator_abort("CUDA_EMULATOR_CC is '%s', not MAJOR.MINOR", cc);
    emulator_hopper = runtime.major >= 9;
    const char *copies = getenv("CUDA_EMULATOR_COPIES");
    if (copies != NULL && *copies && strcmp(copies, "early") != 0 && strcmp(copies, "late") != 0)
        emulator_abort("CUDA_EMULATOR_COPIES is '%s', not early or late", copies);
    emulator_copies_early = copies != NULL && strcmp(copies, "early") == 0;
    const char *order = getenv("CUDA_EMULATOR_ORDER");
    runtime.order = EMULATOR_FORWARD;
    if (order != NULL && strcmp(order, "reverse") == 0) {
        runtime.order = EMULATOR_REVERSE;
    } else if (order != NULL && strncmp(order, "shuffle:", 8) == 0 && order[8]) {
        char *end;
        runtime.order = EMULATOR_SHUFFLE;
        runtime.seed = strtoull(order + 8, &end, 10);
        if (*end)
            emulator_abort("CUDA_EMULATOR_ORDER is '%s', not reverse or shuffle:SEED", order);
    } else if (order != NULL && *order && strcmp(order, "forward") != 0) {
        emulator_abort("CUDA_EMULATOR_ORDER is '%s', not reverse or shuffle:SEED", order);
    }
    read_failures(getenv("CUDA_EMULATOR_FAIL"));
}

void emulator_reset(void)
{
    pthread_mutex_lock(&runtime_lock);
    read_environment();
    pthread_mutex_unlock(&runtime_lock);
    last_error = cudaSuccess;
}

uint64_t emulator_launches(void)
{
    return __atomic_load_n(&runtime.launches, __ATOMIC_RELAXED);
}

/* Counts a call; true when it is one that is to fail. */
static bool counted(const char *call)
{
    bool fails = false;
    pthread_mutex_lock(&runtime_lock);
    if (!runtime.read)
        read_environment();
    if (runtime.failure_count > 0) {
        int i = 0;
        while (i < runtime.call_count && strcmp(runtime.calls[i].call, call) != 0)
            i++;
        if (i == runtime.call_count && i < MOST_CALLS)
            runtime.calls[runtime.call_count++] = {call, 0};
        if (i < MOST_CALLS)
            runtime.calls[i].number++;
        for (int f = 0; f < runtime.failure_count; f++)
            fails = fails || (strcmp(runtime.failures[f].call, call) == 0 &&
                              runtime.failures[f].number == runtime.calls[i].number);
    }
    pthread_mutex_unlock(&runtime_lock);
    return fails;
}

cudaError_t runtime_result(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

static cudaError_t device_error(void)
{
    if (runtime.driver / 1000 < RUNTIME / 1000)
        return cudaErrorInsufficientDriver;
    return runtime.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

__thread bool runtime_capturing;

cudaError_t runtime_enter(const char *call, cudaError_t failure, int flags)
{
    if (!(flags & GOES_ON))
        emulator_finish();
    if (counted(call))
        return runtime_result(failure);
    if (!(flags & NO_DEVICE)) {
        const cudaError_t e = device_error();
        if (e != cudaSuccess)
            return runtime_result(e);
    }
    if (flags & NOT_CAPTURING && runtime_capturing)
        return runtime_result(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
#define X(name, number, sentence)                                                                  \
    case name:                                                                                     \
        return #name;
        EMULATOR_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
#define X(name, number, sentence)                                                                  \
    case name:                                                                                     \
        return sentence;
        EMULATOR_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}
