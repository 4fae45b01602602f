/* Shared by the files of the host's calls. One device, one thread of work: what is submitted is
 * done at once, or kept by a capture as closures that a graph replays. */
#ifndef MLXFAST_CUDA_EMULATOR_RUNTIME_STATE_H
#define MLXFAST_CUDA_EMULATOR_RUNTIME_STATE_H

#include "emulator.h"

#include <pthread.h>

enum {
    MULTIPROCESSORS = 4,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    SHARED_DEFAULT = 48 * 1024,
    SHARED_PER_MULTIPROCESSOR = 228 * 1024,
    SHARED_RESERVED = 1024,
    MOST_THREADS = 1024,
    REGISTERS = 65536,
    CLUSTER_MOST = 8,
    L2_BYTES = 50 * 1024 * 1024,
    RUNTIME = CUDART_VERSION,
    MOST_FAILURES = 16,
    MOST_CALLS = 128,
    DEVICE_ALIGNMENT = 256
};

struct runtime {
    bool read;
    enum emulator_order order;
    uint64_t seed;
    unsigned early;
    size_t memory;
    int devices, driver, major, minor;
    struct {
        char call[64];
        uint64_t number;
    } failures[MOST_FAILURES];
    int failure_count;
    struct {
        const char *call;
        uint64_t number;
    } calls[MOST_CALLS];
    int call_count;
    uint64_t launches;
};
extern struct runtime runtime;
extern pthread_mutex_t runtime_lock;
/* A capture is under way that forbids unsafe calls of this thread. */
extern __thread bool runtime_capturing;

/* Remembers an error as the thread's last one; returns it. */
cudaError_t runtime_result(cudaError_t e);

enum { ANYWHERE = 0, NOT_CAPTURING = 1, NO_DEVICE = 2, GOES_ON = 4 /* waits for nothing */ };
/* Begins a call: cudaSuccess, or why it fails at once. */
cudaError_t runtime_enter(const char *call, cudaError_t failure, int flags);

#define ENTER(call, failure, flags)                                                                \
    do {                                                                                           \
        const cudaError_t entered_ = runtime_enter(call, failure, flags);                          \
        if (entered_ != cudaSuccess)                                                               \
            return entered_;                                                                       \
    } while (0)

/* Does it, or keeps it where the stream is being captured. */
cudaError_t runtime_submit(cudaStream_t stream, enum cudaGraphNodeType type,
                           void (*run)(const void *payload), const void *payload, size_t bytes);
bool runtime_is_captured(cudaStream_t stream);

#endif
