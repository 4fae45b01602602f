/* The host's calls. One device, one thread of work: what is submitted is done at once, or kept by a
 * capture as closures that a graph replays. */
#include "emulator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MULTIPROCESSORS = 4,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    SHARED_DEFAULT = 48 * 1024,
    SHARED_PER_MULTIPROCESSOR = 228 * 1024,
    SHARED_RESERVED = 1024,
    MOST_THREADS = 1024,
    REGISTERS = 65536,
    L2_BYTES = 50 * 1024 * 1024,
    RUNTIME = CUDART_VERSION,
    MOST_FAILURES = 16,
    MOST_CALLS = 128,
    DEVICE_ALIGNMENT = 256
};

/* ---- The environment ---- */

static struct {
    bool read;
    enum emulator_order order;
    uint64_t seed;
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
} state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
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
    state.failure_count = 0;
    while (text != NULL && *text) {
        const char *colon = strchr(text, ':');
        char *end;
        if (colon == NULL || state.failure_count == MOST_FAILURES ||
            (size_t)(colon - text) >= sizeof state.failures[0].call)
            emulator_abort("CUDA_EMULATOR_FAIL has '%s', not CALL:NUMBER[,CALL:NUMBER]", text);
        const int i = state.failure_count++;
        memcpy(state.failures[i].call, text, (size_t)(colon - text));
        state.failures[i].call[colon - text] = 0;
        state.failures[i].number = strtoull(colon + 1, &end, 10);
        if (end == colon + 1 || (*end != 0 && *end != ','))
            emulator_abort("CUDA_EMULATOR_FAIL has '%s', not CALL:NUMBER[,CALL:NUMBER]", text);
        text = *end == ',' ? end + 1 : end;
    }
}

static void read_environment(void)
{
    state.read = true;
    state.call_count = 0;
    state.memory = number_of("CUDA_EMULATOR_MEMORY", (size_t)16 << 30);
    state.devices = (int)number_of("CUDA_EMULATOR_DEVICES", 1);
    state.driver = (int)number_of("CUDA_EMULATOR_DRIVER", RUNTIME);
    state.major = 9;
    state.minor = 0;
    const char *cc = getenv("CUDA_EMULATOR_CC");
    char rest;
    if (cc != NULL && *cc && sscanf(cc, "%d.%d%c", &state.major, &state.minor, &rest) != 2)
        emulator_abort("CUDA_EMULATOR_CC is '%s', not MAJOR.MINOR", cc);
    const char *order = getenv("CUDA_EMULATOR_ORDER");
    state.order = EMULATOR_FORWARD;
    if (order != NULL && strcmp(order, "reverse") == 0) {
        state.order = EMULATOR_REVERSE;
    } else if (order != NULL && strncmp(order, "shuffle:", 8) == 0 && order[8]) {
        char *end;
        state.order = EMULATOR_SHUFFLE;
        state.seed = strtoull(order + 8, &end, 10);
        if (*end)
            emulator_abort("CUDA_EMULATOR_ORDER is '%s', not reverse or shuffle:SEED", order);
    } else if (order != NULL && *order && strcmp(order, "forward") != 0) {
        emulator_abort("CUDA_EMULATOR_ORDER is '%s', not reverse or shuffle:SEED", order);
    }
    read_failures(getenv("CUDA_EMULATOR_FAIL"));
}

void emulator_reset(void)
{
    pthread_mutex_lock(&lock);
    read_environment();
    pthread_mutex_unlock(&lock);
    last_error = cudaSuccess;
}

uint64_t emulator_launches(void)
{
    return __atomic_load_n(&state.launches, __ATOMIC_RELAXED);
}

/* Counts a call; true when it is one that is to fail. */
static bool counted(const char *call)
{
    bool fails = false;
    pthread_mutex_lock(&lock);
    if (!state.read)
        read_environment();
    if (state.failure_count > 0) {
        int i = 0;
        while (i < state.call_count && strcmp(state.calls[i].call, call) != 0)
            i++;
        if (i == state.call_count && i < MOST_CALLS)
            state.calls[state.call_count++] = {call, 0};
        if (i < MOST_CALLS)
            state.calls[i].number++;
        for (int f = 0; f < state.failure_count; f++)
            fails = fails || (strcmp(state.failures[f].call, call) == 0 &&
                              state.failures[f].number == state.calls[i].number);
    }
    pthread_mutex_unlock(&lock);
    return fails;
}

static cudaError_t result(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

static cudaError_t device_error(void)
{
    if (state.driver / 1000 < RUNTIME / 1000)
        return cudaErrorInsufficientDriver;
    return state.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

static __thread bool capturing_globally; /* a capture that forbids unsafe calls of this thread */

enum { ANYWHERE = 0, NOT_CAPTURING = 1, NO_DEVICE = 2 };

static cudaError_t entered(const char *call, cudaError_t failure, int flags)
{
    if (counted(call))
        return result(failure);
    if (!(flags & NO_DEVICE)) {
        const cudaError_t e = device_error();
        if (e != cudaSuccess)
            return result(e);
    }
    if (flags & NOT_CAPTURING && capturing_globally)
        return result(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

#define ENTER(call, failure, flags)                                                                \
    do {                                                                                           \
        const cudaError_t entered_ = entered(call, failure, flags);                                \
        if (entered_ != cudaSuccess)                                                               \
            return entered_;                                                                       \
    } while (0)

/* ---- Errors ---- */

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

/* ---- Device memory ---- */

enum memory_kind { DEVICE_MEMORY, HOST_MEMORY, REGISTERED_MEMORY };

struct memory {
    unsigned char *p;
    size_t bytes;
    enum memory_kind kind;
};

static struct memory *memories;
static size_t memory_count, memory_room, device_bytes;

enum { BEHIND = 256 }; /* bytes behind an allocation that must stay as they are */

/* Index of the piece that holds p, or memory_count. */
static size_t memory_find(const void *p)
{
    size_t i = 0;
    while (i < memory_count && !((const unsigned char *)p >= memories[i].p &&
                                 (const unsigned char *)p - memories[i].p <
                                     (ptrdiff_t)(memories[i].bytes ? memories[i].bytes : 1)))
        i++;
    return i;
}

static bool memory_note(unsigned char *p, size_t bytes, enum memory_kind kind)
{
    if (memory_count == memory_room) {
        const size_t room = memory_room ? 2 * memory_room : 64;
        struct memory *more = (struct memory *)realloc(memories, room * sizeof *more);
        if (more == NULL)
            return false;
        memories = more;
        memory_room = room;
    }
    memories[memory_count++] = {p, bytes, kind};
    return true;
}

static cudaError_t memory_new(void **out, size_t bytes, enum memory_kind kind)
{
    const size_t whole =
        (bytes + BEHIND + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    cudaError_t e = cudaErrorMemoryAllocation;
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    if (whole >= bytes && (kind != DEVICE_MEMORY || bytes <= state.memory - device_bytes)) {
#ifdef __SANITIZE_ADDRESS__
        void *p = NULL;
        if (posix_memalign(&p, DEVICE_ALIGNMENT, bytes) != 0)
            p = NULL;
        const size_t filled = bytes;
#else
        void *p = aligned_alloc(DEVICE_ALIGNMENT, whole);
        const size_t filled = bytes + BEHIND;
#endif
        if (p != NULL && memory_note((unsigned char *)p, bytes, kind)) {
            memset(p, 0xff, filled);
            if (kind == DEVICE_MEMORY)
                device_bytes += bytes;
            *out = p;
            e = cudaSuccess;
        } else {
            free(p);
        }
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static cudaError_t memory_release(void *p, enum memory_kind kind)
{
    cudaError_t e = cudaErrorInvalidValue;
    if (p == NULL)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    const size_t i = memory_find(p);
    if (i < memory_count && memories[i].p == p && memories[i].kind == kind) {
        const size_t bytes = memories[i].bytes;
#ifndef __SANITIZE_ADDRESS__
        for (size_t b = 0; b < BEHIND && kind != REGISTERED_MEMORY; b++)
            if (memories[i].p[bytes + b] != 0xff)
                emulator_abort("something wrote behind a piece of %s memory of %zu bytes",
                               kind == DEVICE_MEMORY ? "device" : "pinned", bytes);
        if (kind == DEVICE_MEMORY)
            memset(p, 0xff, bytes);
#endif
        if (kind != REGISTERED_MEMORY)
            free(p);
        if (kind == DEVICE_MEMORY)
            device_bytes -= bytes;
        memories[i] = memories[--memory_count];
        e = cudaSuccess;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

extern "C" char __data_start[], _end[];

/* Whether a copy may take `bytes` at p as the device's, or as the host's. The program's own
 * variables count as both: device symbols are among them. */
static bool memory_fits(const void *p, size_t bytes, bool device)
{
    pthread_mutex_lock(&lock);
    const size_t i = memory_find(p);
    bool fits = !device || ((const char *)p >= __data_start && (const char *)p < _end);
    if (i < memory_count) {
        fits = (const unsigned char *)p - memories[i].p + bytes <= memories[i].bytes;
        if (device ? memories[i].kind == REGISTERED_MEMORY : memories[i].kind == DEVICE_MEMORY)
            fits = false;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    ENTER("cudaMalloc", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return result(memory_new(p, bytes, DEVICE_MEMORY));
}

cudaError_t cudaFree(void *p)
{
    ENTER("cudaFree", cudaErrorUnknown, NOT_CAPTURING);
    return result(memory_release(p, DEVICE_MEMORY));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER("cudaHostAlloc", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return result(memory_new(p, bytes, HOST_MEMORY));
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    ENTER("cudaMallocHost", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return result(memory_new(p, bytes, HOST_MEMORY));
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER("cudaFreeHost", cudaErrorUnknown, NOT_CAPTURING);
    return result(memory_release(p, HOST_MEMORY));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    ENTER("cudaHostGetDevicePointer", cudaErrorInvalidValue, ANYWHERE);
    pthread_mutex_lock(&lock);
    const size_t i = memory_find(host);
    const bool known = i < memory_count && memories[i].kind != DEVICE_MEMORY;
    pthread_mutex_unlock(&lock);
    if (flags != 0 || !known)
        return result(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER("cudaHostRegister", cudaErrorMemoryAllocation, NOT_CAPTURING);
    cudaError_t e = cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    if (p != NULL && bytes > 0)
        e = memory_find(p) < memory_count
                ? cudaErrorHostMemoryAlreadyRegistered
                : (memory_note((unsigned char *)p, bytes, REGISTERED_MEMORY)
                       ? cudaSuccess
                       : cudaErrorMemoryAllocation);
    pthread_mutex_unlock(&lock);
    return result(e);
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER("cudaHostUnregister", cudaErrorUnknown, NOT_CAPTURING);
    return result(p != NULL && memory_release(p, REGISTERED_MEMORY) == cudaSuccess
                      ? cudaSuccess
                      : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    ENTER("cudaMemGetInfo", cudaErrorUnknown, ANYWHERE);
    pthread_mutex_lock(&lock);
    *total = state.memory;
    *available = state.memory - device_bytes;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- Streams, captures, graphs ---- */

/* Something to do, with the bytes it needs behind it. */
struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    enum cudaGraphNodeType type;
    void (*run)(const void *payload);
    size_t bytes;
    alignas(16) unsigned char payload[];
};

struct CUgraph_st {
    struct CUgraphNode_st *first, **last;
    size_t nodes;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

struct capture {
    struct CUgraph_st *graph;
    enum cudaStreamCaptureMode mode;
    bool invalid;
    struct CUstream_st *origin;
};

struct CUstream_st {
    struct capture *capture;
    bool joined; /* it came into the capture by an event */
    struct CUstream_st *next;
};

struct CUevent_st {
    bool recorded, timing;
    struct capture *capture;
    struct timespec at;
};

static struct CUstream_st *streams;

static bool graph_add(struct CUgraph_st *g, enum cudaGraphNodeType type,
                      void (*run)(const void *payload), const void *payload, size_t bytes)
{
    struct CUgraphNode_st *n = (struct CUgraphNode_st *)malloc(sizeof *n + bytes);
    if (n == NULL)
        return false;
    n->next = NULL;
    n->type = type;
    n->run = run;
    n->bytes = bytes;
    if (bytes > 0)
        memcpy(n->payload, payload, bytes);
    *g->last = n;
    g->last = &n->next;
    g->nodes++;
    return true;
}

static void graph_begin(struct CUgraph_st *g)
{
    g->first = NULL;
    g->last = &g->first;
    g->nodes = 0;
}

static void graph_end(struct CUgraph_st *g)
{
    while (g->first != NULL) {
        struct CUgraphNode_st *n = g->first;
        g->first = n->next;
        free(n);
    }
    graph_begin(g);
}

static struct capture *capture_of(cudaStream_t stream)
{
    return stream != NULL ? stream->capture : NULL;
}

/* Runs it, or keeps it where the stream is being captured. */
static cudaError_t submit(cudaStream_t stream, enum cudaGraphNodeType type,
                          void (*run)(const void *payload), const void *payload, size_t bytes)
{
    struct capture *c = capture_of(stream);
    if (c == NULL && stream == NULL && capturing_globally)
        return cudaErrorStreamCaptureUnsupported;
    if (c == NULL) {
        run(payload);
        return cudaSuccess;
    }
    if (c->invalid)
        return cudaErrorStreamCaptureInvalidated;
    return graph_add(c->graph, type, run, payload, bytes) ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t stream_new(const char *call, cudaStream_t *out)
{
    ENTER(call, cudaErrorMemoryAllocation, ANYWHERE);
    struct CUstream_st *s = (struct CUstream_st *)calloc(1, sizeof *s);
    if (s == NULL)
        return result(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return stream_new("cudaStreamCreate", out);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    return stream_new("cudaStreamCreateWithFlags", out);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    return stream_new("cudaStreamCreateWithPriority", out);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER("cudaStreamDestroy", cudaErrorUnknown, ANYWHERE);
    if (stream == NULL)
        return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    struct CUstream_st **at = &streams;
    while (*at != NULL && *at != stream)
        at = &(*at)->next;
    const bool found = *at != NULL;
    if (found)
        *at = stream->next;
    pthread_mutex_unlock(&lock);
    if (!found)
        return result(cudaErrorInvalidResourceHandle);
    free(stream);
    return cudaSuccess;
}

/* A wait inside of a capture spoils it. */
static cudaError_t outside_capture(cudaStream_t stream)
{
    struct capture *c = capture_of(stream);
    if (c == NULL && !(stream == NULL && capturing_globally))
        return cudaSuccess;
    if (c != NULL)
        c->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER("cudaStreamSynchronize", cudaErrorLaunchFailure, ANYWHERE);
    return result(outside_capture(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER("cudaStreamQuery", cudaErrorLaunchFailure, ANYWHERE);
    return result(outside_capture(stream));
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER("cudaDeviceSynchronize", cudaErrorLaunchFailure, NOT_CAPTURING);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    ENTER("cudaStreamWaitEvent", cudaErrorUnknown, ANYWHERE);
    if (event == NULL)
        return result(cudaErrorInvalidResourceHandle);
    if (event->capture != NULL && stream != NULL && stream->capture == NULL) {
        stream->capture = event->capture;
        stream->joined = true;
    }
    return cudaSuccess;
}

struct host_call {
    cudaHostFn_t f;
    void *user;
};
static void run_host(const void *payload)
{
    const struct host_call *h = (const struct host_call *)payload;
    h->f(h->user);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void *user)
{
    ENTER("cudaLaunchHostFunc", cudaErrorUnknown, ANYWHERE);
    const struct host_call h = {f, user};
    return result(submit(stream, cudaGraphNodeTypeHost, run_host, &h, sizeof h));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER("cudaStreamBeginCapture", cudaErrorUnknown, ANYWHERE);
    if (stream == NULL)
        return result(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != NULL)
        return result(cudaErrorInvalidValue);
    struct capture *c = (struct capture *)calloc(1, sizeof *c);
    if (c != NULL)
        c->graph = (struct CUgraph_st *)calloc(1, sizeof *c->graph);
    if (c == NULL || c->graph == NULL) {
        free(c);
        return result(cudaErrorMemoryAllocation);
    }
    graph_begin(c->graph);
    c->mode = mode;
    c->origin = stream;
    stream->capture = c;
    stream->joined = false;
    capturing_globally = mode != cudaStreamCaptureModeRelaxed;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    struct capture *c = capture_of(stream);
    cudaError_t e = entered("cudaStreamEndCapture", cudaErrorUnknown, ANYWHERE);
    *out = NULL;
    if (c == NULL || c->origin != stream)
        return e != cudaSuccess ? e : result(cudaErrorStreamCaptureUnmatched);
    pthread_mutex_lock(&lock);
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (s->capture == c) {
            s->capture = NULL;
            s->joined = false;
        }
    pthread_mutex_unlock(&lock);
    capturing_globally = false;
    if (e == cudaSuccess && c->invalid)
        e = result(cudaErrorStreamCaptureInvalidated);
    if (e == cudaSuccess) {
        *out = c->graph;
    } else {
        graph_end(c->graph);
        free(c->graph);
    }
    free(c);
    return e;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    ENTER("cudaStreamIsCapturing", cudaErrorUnknown, ANYWHERE);
    const struct capture *c = capture_of(stream);
    *status = c == NULL    ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    ENTER("cudaGraphInstantiate", cudaErrorMemoryAllocation, ANYWHERE);
    *out = NULL;
    if (graph == NULL)
        return result(cudaErrorInvalidValue);
    struct CUgraphExec_st *x = (struct CUgraphExec_st *)calloc(1, sizeof *x);
    bool ok = x != NULL;
    if (ok) {
        graph_begin(&x->graph);
        for (const struct CUgraphNode_st *n = graph->first; ok && n != NULL; n = n->next)
            ok = graph_add(&x->graph, n->type, n->run, n->payload, n->bytes);
    }
    if (!ok) {
        if (x != NULL)
            graph_end(&x->graph);
        free(x);
        return result(cudaErrorMemoryAllocation);
    }
    *out = x;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)stream;
    ENTER("cudaGraphUpload", cudaErrorUnknown, ANYWHERE);
    return graph != NULL ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    ENTER("cudaGraphLaunch", cudaErrorLaunchFailure, ANYWHERE);
    if (graph == NULL)
        return result(cudaErrorInvalidValue);
    for (const struct CUgraphNode_st *n = graph->graph.first; n != NULL; n = n->next) {
        const cudaError_t e = submit(stream, n->type, n->run, n->payload, n->bytes);
        if (e != cudaSuccess)
            return result(e);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER("cudaGraphDestroy", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL)
        return result(cudaErrorInvalidValue);
    graph_end(graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    ENTER("cudaGraphExecDestroy", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL)
        return result(cudaErrorInvalidValue);
    graph_end(&graph->graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ENTER("cudaGraphGetNodes", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL || count == NULL)
        return result(cudaErrorInvalidValue);
    if (nodes != NULL) {
        size_t i = 0;
        for (struct CUgraphNode_st *n = graph->first; n != NULL && i < *count; n = n->next)
            nodes[i++] = n;
        for (size_t rest = i; rest < *count; rest++)
            nodes[rest] = NULL;
        *count = i;
    } else {
        *count = graph->nodes;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    ENTER("cudaGraphNodeGetType", cudaErrorUnknown, ANYWHERE);
    if (node == NULL)
        return result(cudaErrorInvalidValue);
    *type = node->type;
    return cudaSuccess;
}

/* ---- Events ---- */

static cudaError_t event_new(const char *call, cudaEvent_t *out, unsigned flags)
{
    ENTER(call, cudaErrorMemoryAllocation, ANYWHERE);
    struct CUevent_st *e = (struct CUevent_st *)calloc(1, sizeof *e);
    if (e == NULL)
        return result(cudaErrorMemoryAllocation);
    e->timing = !(flags & cudaEventDisableTiming);
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return event_new("cudaEventCreate", out, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    return event_new("cudaEventCreateWithFlags", out, flags);
}

static void run_record(const void *payload)
{
    struct CUevent_st *e;
    memcpy(&e, payload, sizeof e);
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    e->recorded = true;
    e->capture = NULL;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    ENTER("cudaEventRecord", cudaErrorUnknown, ANYWHERE);
    if (event == NULL)
        return result(cudaErrorInvalidResourceHandle);
    struct capture *c = capture_of(stream);
    if (c != NULL && !(flags & cudaEventRecordExternal)) {
        event->capture = c;
        return cudaSuccess;
    }
    return result(submit(stream, cudaGraphNodeTypeEventRecord, run_record, &event, sizeof event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER("cudaEventSynchronize", cudaErrorLaunchFailure, ANYWHERE);
    return event != NULL ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER("cudaEventQuery", cudaErrorLaunchFailure, ANYWHERE);
    return event != NULL ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    ENTER("cudaEventElapsedTime", cudaErrorUnknown, ANYWHERE);
    if (from == NULL || to == NULL || !from->recorded || !to->recorded || !from->timing ||
        !to->timing)
        return result(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
                            (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER("cudaEventDestroy", cudaErrorUnknown, ANYWHERE);
    if (event == NULL)
        return result(cudaErrorInvalidResourceHandle);
    free(event);
    return cudaSuccess;
}

/* ---- Copies ---- */

struct copy {
    void *to;
    const void *from;
    size_t width, height, to_pitch, from_pitch;
};
static void run_copy(const void *payload)
{
    const struct copy *c = (const struct copy *)payload;
    for (size_t row = 0; row < c->height; row++)
        memmove((char *)c->to + row * c->to_pitch, (const char *)c->from + row * c->from_pitch,
                c->width);
}

static cudaError_t copy_async(const char *call, const struct copy *c, enum cudaMemcpyKind kind,
                              cudaStream_t stream, int flags)
{
    ENTER(call, cudaErrorUnknown, flags);
    if (c->width == 0 || c->height == 0)
        return cudaSuccess;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return result(cudaErrorInvalidMemcpyDirection);
    const size_t to_bytes = (c->height - 1) * c->to_pitch + c->width;
    const size_t from_bytes = (c->height - 1) * c->from_pitch + c->width;
    if (c->to == NULL || c->from == NULL || (c->height > 1 && c->to_pitch < c->width) ||
        (kind != cudaMemcpyDefault &&
         (!memory_fits(c->to, to_bytes,
                       kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
          !memory_fits(c->from, from_bytes,
                       kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice))))
        return result(cudaErrorInvalidValue);
    return result(submit(stream, cudaGraphNodeTypeMemcpy, run_copy, c, sizeof *c));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    const struct copy c = {to, from, bytes, 1, bytes, bytes};
    return copy_async("cudaMemcpy", &c, kind, NULL, NOT_CAPTURING);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const struct copy c = {to, from, bytes, 1, bytes, bytes};
    return copy_async("cudaMemcpyAsync", &c, kind, stream, ANYWHERE);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    const struct copy c = {to, from, width, height, to_pitch, from_pitch};
    return copy_async("cudaMemcpy2DAsync", &c, kind, stream, ANYWHERE);
}

cudaError_t emulator_copy_symbol(const char *call, void *symbol, size_t size, const void *host,
                                 size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                 cudaStream_t stream, bool from)
{
    ENTER(call, cudaErrorUnknown, ANYWHERE);
    if (offset > size || bytes > size - offset ||
        (from ? kind == cudaMemcpyHostToDevice : kind == cudaMemcpyDeviceToHost))
        return result(cudaErrorInvalidValue);
    char *at = (char *)symbol + offset;
    const struct copy c = {from ? (void *)host : at, from ? at : host, bytes, 1, bytes, bytes};
    return result(submit(stream, cudaGraphNodeTypeMemcpy, run_copy, &c, sizeof c));
}

struct fill {
    void *p;
    int value;
    size_t bytes;
};
static void run_fill(const void *payload)
{
    const struct fill *f = (const struct fill *)payload;
    memset(f->p, f->value, f->bytes);
}

static cudaError_t fill_async(const char *call, const struct fill *f, cudaStream_t stream,
                              int flags)
{
    ENTER(call, cudaErrorUnknown, flags);
    if (f->bytes == 0)
        return cudaSuccess;
    if (!memory_fits(f->p, f->bytes, true))
        return result(cudaErrorInvalidValue);
    return result(submit(stream, cudaGraphNodeTypeMemset, run_fill, f, sizeof *f));
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    const struct fill f = {p, value, bytes};
    return fill_async("cudaMemset", &f, NULL, NOT_CAPTURING);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const struct fill f = {p, value, bytes};
    return fill_async("cudaMemsetAsync", &f, stream, ANYWHERE);
}

/* ---- Kernels ---- */

/* What cudaFuncSetAttribute has allowed. */
struct allowance {
    const void *kernel;
    size_t shared;
    struct allowance *next;
};
static struct allowance *allowances;

static size_t shared_allowed(const void *kernel)
{
    size_t bytes = SHARED_DEFAULT;
    pthread_mutex_lock(&lock);
    for (const struct allowance *a = allowances; a != NULL; a = a->next)
        if (a->kernel == kernel)
            bytes = a->shared;
    pthread_mutex_unlock(&lock);
    return bytes;
}

static cudaError_t image_error(void)
{
    return state.major < 8 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

static size_t shared_static(const void *kernel)
{
    const struct emulator_range *ranges;
    size_t bytes;
    emulator_kernel_shared(kernel, &ranges, &bytes);
    return bytes;
}

cudaError_t emulator_set_attribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    ENTER("cudaFuncSetAttribute", cudaErrorInvalidValue, ANYWHERE);
    if (image_error() != cudaSuccess)
        return result(image_error());
    if (a == cudaFuncAttributePreferredSharedMemoryCarveout)
        return value >= -1 && value <= 100 ? cudaSuccess : result(cudaErrorInvalidValue);
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + shared_static(kernel) > EMULATOR_SHARED_MOST)
        return result(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    struct allowance *found = allowances;
    while (found != NULL && found->kernel != kernel)
        found = found->next;
    if (found == NULL) {
        found = (struct allowance *)calloc(1, sizeof *found);
        if (found != NULL) {
            found->kernel = kernel;
            found->next = allowances;
            allowances = found;
        }
    }
    if (found != NULL)
        found->shared = (size_t)value;
    pthread_mutex_unlock(&lock);
    return found != NULL ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

cudaError_t emulator_get_attributes(struct cudaFuncAttributes *out, const void *kernel)
{
    ENTER("cudaFuncGetAttributes", cudaErrorInvalidDeviceFunction, ANYWHERE);
    if (image_error() != cudaSuccess)
        return result(image_error());
    memset(out, 0, sizeof *out);
    out->sharedSizeBytes = shared_static(kernel);
    out->maxThreadsPerBlock = MOST_THREADS;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = state.major * 10 + state.minor;
    out->maxDynamicSharedSizeBytes = (int)shared_allowed(kernel);
    return cudaSuccess;
}

static size_t occupancy(const void *kernel, size_t threads, size_t shared)
{
    const size_t bytes = shared + shared_static(kernel) + SHARED_RESERVED;
    const size_t by_shared = SHARED_PER_MULTIPROCESSOR / bytes, each = BLOCKS_PER_MULTIPROCESSOR;
    const size_t by_threads = THREADS_PER_MULTIPROCESSOR / ((threads + 31) / 32 * 32);
    const size_t most = by_threads < by_shared ? by_threads : by_shared;
    return most < each ? most : each;
}

cudaError_t emulator_occupancy(int *blocks, const void *kernel, int threads, size_t shared)
{
    ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorInvalidDeviceFunction,
          ANYWHERE);
    if (threads < 1 || threads > MOST_THREADS)
        return result(cudaErrorInvalidValue);
    *blocks = (int)occupancy(kernel, (size_t)threads, shared);
    return cudaSuccess;
}

static void run_launch(const void *payload)
{
    struct emulator_launch l;
    memcpy(&l, payload, sizeof l);
    l.closure = (const unsigned char *)payload + sizeof l;
    __atomic_add_fetch(&state.launches, 1, __ATOMIC_RELAXED);
    emulator_run(&l, state.order, state.seed);
}

static cudaError_t launch_error(const struct emulator_launch *l)
{
    const uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    const uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    if (image_error() != cudaSuccess)
        return image_error();
    if (threads == 0 || threads > MOST_THREADS || l->block.z > 64 || blocks == 0 ||
        l->grid.x > 0x7fffffffu || l->grid.y > 65535 || l->grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (l->shared > shared_allowed(l->kernel) ||
        l->shared + shared_static(l->kernel) > EMULATOR_SHARED_MOST)
        return cudaErrorInvalidValue;
    if (l->cooperative && blocks > occupancy(l->kernel, threads, l->shared) * MULTIPROCESSORS)
        return cudaErrorCooperativeLaunchTooLarge;
    return cudaSuccess;
}

cudaError_t emulator_submit(const char *call, const struct emulator_launch *l, cudaStream_t stream)
{
    ENTER(call, cudaErrorLaunchFailure, ANYWHERE);
    const cudaError_t e = launch_error(l);
    if (e != cudaSuccess)
        return result(e);
    if (capture_of(stream) == NULL && !(stream == NULL && capturing_globally)) {
        __atomic_add_fetch(&state.launches, 1, __ATOMIC_RELAXED);
        emulator_run(l, state.order, state.seed);
        return cudaSuccess;
    }
    static_assert(sizeof *l % alignof(max_align_t) == 0, "a closure lies behind the launch");
    const size_t bytes = sizeof *l + l->closure_bytes;
    unsigned char *payload = (unsigned char *)malloc(bytes);
    if (payload == NULL)
        return result(cudaErrorMemoryAllocation);
    memcpy(payload, l, sizeof *l);
    memcpy(payload + sizeof *l, l->closure, l->closure_bytes);
    const cudaError_t kept = submit(stream, cudaGraphNodeTypeKernel, run_launch, payload, bytes);
    free(payload);
    return result(kept);
}

/* ---- The device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    ENTER("cudaGetDeviceCount", cudaErrorUnknown, ANYWHERE);
    *count = state.devices;
    return cudaSuccess;
}

static cudaError_t known_device(int device)
{
    return device >= 0 && device < state.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER("cudaSetDevice", cudaErrorInitializationError, ANYWHERE);
    return result(known_device(device));
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    (void)device_flags;
    (void)flags;
    ENTER("cudaInitDevice", cudaErrorInitializationError, ANYWHERE);
    return result(known_device(device));
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER("cudaGetDevice", cudaErrorUnknown, ANYWHERE);
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    ENTER("cudaSetDeviceFlags", cudaErrorUnknown, ANYWHERE);
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    ENTER("cudaDeviceReset", cudaErrorUnknown, NOT_CAPTURING);
    return cudaSuccess;
}

/* As CUDA's: without a driver the version is 0. */
cudaError_t cudaDriverGetVersion(int *version)
{
    ENTER("cudaDriverGetVersion", cudaErrorUnknown, NO_DEVICE);
    *version = state.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    ENTER("cudaRuntimeGetVersion", cudaErrorUnknown, NO_DEVICE);
    *version = RUNTIME;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER("cudaGetDeviceProperties", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated");
    p->totalGlobalMem = state.memory;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->warpSize = 32;
    p->maxThreadsPerBlock = MOST_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = MOST_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = state.major;
    p->minor = state.minor;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->canMapHostMemory = 1;
    p->concurrentKernels = 1;
    p->asyncEngineCount = 1;
    p->unifiedAddressing = 1;
    p->memoryBusWidth = 64;
    p->l2CacheSize = L2_BYTES;
    p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
    p->sharedMemPerMultiprocessor = SHARED_PER_MULTIPROCESSOR;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = EMULATOR_SHARED_MOST;
    p->maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR;
    p->reservedSharedMemPerBlock = SHARED_RESERVED;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER("cudaDeviceGetAttribute", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return result(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = MOST_THREADS;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = SHARED_DEFAULT;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = REGISTERS;
        return cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000; /* kHz */
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = 64;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = MULTIPROCESSORS;
        return cudaSuccess;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrEccEnabled:
    case cudaDevAttrMaxPersistingL2CacheSize:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = L2_BYTES;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = THREADS_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = state.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = state.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = SHARED_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = EMULATOR_SHARED_MOST;
        return cudaSuccess;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = BLOCKS_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = SHARED_RESERVED;
        return cudaSuccess;
    }
    return result(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    ENTER("cudaDeviceGetPCIBusId", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return result(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:00:00.0");
    return cudaSuccess;
}
