/* Streams, captures, graphs and events. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

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

cudaError_t runtime_submit(cudaStream_t stream, enum cudaGraphNodeType type,
                           void (*run)(const void *payload), const void *payload, size_t bytes)
{
    struct capture *c = capture_of(stream);
    if (c == NULL && stream == NULL && runtime_capturing)
        return cudaErrorStreamCaptureUnsupported;
    if (c == NULL) {
        run(payload);
        return cudaSuccess;
    }
    if (c->invalid)
        return cudaErrorStreamCaptureInvalidated;
    return graph_add(c->graph, type, run, payload, bytes) ? cudaSuccess : cudaErrorMemoryAllocation;
}

bool runtime_is_captured(cudaStream_t stream)
{
    return capture_of(stream) != NULL || (stream == NULL && runtime_capturing);
}

static cudaError_t stream_new(const char *call, cudaStream_t *out)
{
    ENTER(call, cudaErrorMemoryAllocation, ANYWHERE);
    struct CUstream_st *s = (struct CUstream_st *)calloc(1, sizeof *s);
    if (s == NULL)
        return runtime_result(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&runtime_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&runtime_lock);
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
        return runtime_result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&runtime_lock);
    struct CUstream_st **at = &streams;
    while (*at != NULL && *at != stream)
        at = &(*at)->next;
    const bool found = *at != NULL;
    if (found)
        *at = stream->next;
    pthread_mutex_unlock(&runtime_lock);
    if (!found)
        return runtime_result(cudaErrorInvalidResourceHandle);
    free(stream);
    return cudaSuccess;
}

/* A wait inside of a capture spoils it. */
static cudaError_t outside_capture(cudaStream_t stream)
{
    struct capture *c = capture_of(stream);
    if (c == NULL && !(stream == NULL && runtime_capturing))
        return cudaSuccess;
    if (c != NULL)
        c->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER("cudaStreamSynchronize", cudaErrorLaunchFailure, ANYWHERE);
    return runtime_result(outside_capture(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER("cudaStreamQuery", cudaErrorLaunchFailure, ANYWHERE);
    return runtime_result(outside_capture(stream));
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
        return runtime_result(cudaErrorInvalidResourceHandle);
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
    return runtime_result(runtime_submit(stream, cudaGraphNodeTypeHost, run_host, &h, sizeof h));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER("cudaStreamBeginCapture", cudaErrorUnknown, ANYWHERE);
    if (stream == NULL)
        return runtime_result(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != NULL)
        return runtime_result(cudaErrorInvalidValue);
    struct capture *c = (struct capture *)calloc(1, sizeof *c);
    if (c != NULL)
        c->graph = (struct CUgraph_st *)calloc(1, sizeof *c->graph);
    if (c == NULL || c->graph == NULL) {
        free(c);
        return runtime_result(cudaErrorMemoryAllocation);
    }
    graph_begin(c->graph);
    c->mode = mode;
    c->origin = stream;
    stream->capture = c;
    stream->joined = false;
    runtime_capturing = mode != cudaStreamCaptureModeRelaxed;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    struct capture *c = capture_of(stream);
    cudaError_t e = runtime_enter("cudaStreamEndCapture", cudaErrorUnknown, ANYWHERE);
    *out = NULL;
    if (c == NULL || c->origin != stream)
        return e != cudaSuccess ? e : runtime_result(cudaErrorStreamCaptureUnmatched);
    pthread_mutex_lock(&runtime_lock);
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (s->capture == c) {
            s->capture = NULL;
            s->joined = false;
        }
    pthread_mutex_unlock(&runtime_lock);
    runtime_capturing = false;
    if (e == cudaSuccess && c->invalid)
        e = runtime_result(cudaErrorStreamCaptureInvalidated);
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
        return runtime_result(cudaErrorInvalidValue);
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
        return runtime_result(cudaErrorMemoryAllocation);
    }
    *out = x;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)stream;
    ENTER("cudaGraphUpload", cudaErrorUnknown, ANYWHERE);
    return graph != NULL ? cudaSuccess : runtime_result(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    ENTER("cudaGraphLaunch", cudaErrorLaunchFailure, GOES_ON);
    if (graph == NULL)
        return runtime_result(cudaErrorInvalidValue);
    for (const struct CUgraphNode_st *n = graph->graph.first; n != NULL; n = n->next) {
        if (n->type != cudaGraphNodeTypeKernel)
            emulator_finish();
        const cudaError_t e = runtime_submit(stream, n->type, n->run, n->payload, n->bytes);
        if (e != cudaSuccess)
            return runtime_result(e);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER("cudaGraphDestroy", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL)
        return runtime_result(cudaErrorInvalidValue);
    graph_end(graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    ENTER("cudaGraphExecDestroy", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL)
        return runtime_result(cudaErrorInvalidValue);
    graph_end(&graph->graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ENTER("cudaGraphGetNodes", cudaErrorUnknown, ANYWHERE);
    if (graph == NULL || count == NULL)
        return runtime_result(cudaErrorInvalidValue);
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
        return runtime_result(cudaErrorInvalidValue);
    *type = node->type;
    return cudaSuccess;
}

static cudaError_t event_new(const char *call, cudaEvent_t *out, unsigned flags)
{
    ENTER(call, cudaErrorMemoryAllocation, ANYWHERE);
    struct CUevent_st *e = (struct CUevent_st *)calloc(1, sizeof *e);
    if (e == NULL)
        return runtime_result(cudaErrorMemoryAllocation);
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
        return runtime_result(cudaErrorInvalidResourceHandle);
    struct capture *c = capture_of(stream);
    if (c != NULL && !(flags & cudaEventRecordExternal)) {
        event->capture = c;
        return cudaSuccess;
    }
    return runtime_result(
        runtime_submit(stream, cudaGraphNodeTypeEventRecord, run_record, &event, sizeof event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER("cudaEventSynchronize", cudaErrorLaunchFailure, ANYWHERE);
    return event != NULL ? cudaSuccess : runtime_result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER("cudaEventQuery", cudaErrorLaunchFailure, ANYWHERE);
    return event != NULL ? cudaSuccess : runtime_result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    ENTER("cudaEventElapsedTime", cudaErrorUnknown, ANYWHERE);
    if (from == NULL || to == NULL || !from->recorded || !to->recorded || !from->timing ||
        !to->timing)
        return runtime_result(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
                            (double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER("cudaEventDestroy", cudaErrorUnknown, ANYWHERE);
    if (event == NULL)
        return runtime_result(cudaErrorInvalidResourceHandle);
    free(event);
    return cudaSuccess;
}
