/* Times by events, bytes by the blocks' shapes. */
#include "engine/compute/cuda/meter.h"

#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

extern "C" {
#include "base/clock.h"
}

#include <stdlib.h>

enum { MARKS_MOST = 2048 };

struct cuda_meter {
    cudaEvent_t event[MARKS_MOST];
    enum meter_part part[MARKS_MOST];
    int made, marks;
};

/* The forward that is being metered; one thread works on a device. */
static thread_local struct {
    struct cuda_meter *meter;
    struct cuda_fault *fault;
    cudaStream_t stream;
} metered;

void cuda_meter_begin(struct cuda_meter **m, struct cuda_fault *fault, cudaStream_t stream)
{
    if (*m == NULL)
        *m = (struct cuda_meter *)calloc(1, sizeof **m);
    if (*m == NULL)
        return;
    (*m)->marks = 0;
    metered.meter = *m;
    metered.fault = fault;
    metered.stream = stream;
    cuda_meter_mark(*m, fault, stream, METER_REST, -1);
}

void cuda_meter_mark(struct cuda_meter *m, struct cuda_fault *fault, cudaStream_t stream,
                     enum meter_part part, int layer)
{
    (void)layer;
    if (m == NULL || m->marks == MARKS_MOST)
        return;
    if (m->marks == m->made) {
        if (!cuda_ok(fault, cudaEventCreate(&m->event[m->made]), "an event"))
            return;
        m->made++;
    }
    m->part[m->marks] = part;
    cuda_ok(fault, cudaEventRecord(m->event[m->marks++], stream), "an event");
}

void cuda_meter_stage(enum meter_part part)
{
    if (metered.meter != NULL)
        cuda_meter_mark(metered.meter, metered.fault, metered.stream, part, -1);
}

/* What the shared expert's bytes say that it took of the experts' time, unless it had its own. */
static void cut_experts(struct compute_meter *m, int64_t experts, int64_t shared)
{
    struct meter_count *e = &m->part[METER_EXPERTS], *s = &m->part[METER_SHARED];
    if (shared > 0 || e->bytes + s->bytes == 0)
        return;
    const double share = (double)s->bytes / ((double)e->bytes + (double)s->bytes);
    const int64_t ns = (int64_t)((double)experts * share);
    e->ns -= ns;
    s->ns += ns;
}

void cuda_meter_end(struct cuda_meter *m, struct cuda_fault *fault, struct compute_meter *out)
{
    const int64_t experts = out->part[METER_EXPERTS].ns, shared = out->part[METER_SHARED].ns;
    metered.meter = NULL;
    for (int i = 0; m != NULL && i + 1 < m->marks; i++) {
        float ms = 0;
        if (!cuda_ok(fault, cudaEventElapsedTime(&ms, m->event[i], m->event[i + 1]), "an event"))
            return;
        out->part[m->part[i]].ns += (int64_t)(ms * 1e6f);
    }
    cut_experts(out, out->part[METER_EXPERTS].ns - experts, out->part[METER_SHARED].ns - shared);
    out->since = clock_now_ns(); /* what the host waited is in the events' times */
}

void cuda_meter_free(struct cuda_meter *m)
{
    if (m != NULL && metered.meter == m) /* a forward that failed was not ended */
        metered.meter = NULL;
    for (int i = 0; m != NULL && i < m->made; i++)
        cudaEventDestroy(m->event[i]);
    free(m);
}

void cuda_meter_attention(struct compute_meter *m, const struct attention_block *b, int64_t pos0,
                          int rows)
{
    const struct weight_matrix *const project[] = {&b->q, &b->k, &b->v, &b->gate};
    for (int i = 0; i < 4; i++)
        meter_linear(m, METER_PROJECT, project[i], rows);
    meter_linear(m, METER_OUTPUT, &b->o, rows);
    for (int r = 0; r < rows; r++) {
        const int64_t p = pos0 + r + 1, seen = b->window > 0 && p > b->window ? b->window : p;
        m->part[METER_ATTEND].flops += 4.0 * (double)seen * b->heads * b->head_dim;
    }
    const int64_t oldest = b->window > 0 ? pos0 - b->window + 1 : 0;
    m->kv_bytes += (uint64_t)(pos0 + rows - (oldest > 0 ? oldest : 0)) * (uint64_t)b->kv_heads *
                   (uint64_t)b->head_dim * 2 * sizeof(uint16_t);
}

static void mlp(struct compute_meter *m, enum meter_part part, const struct mlp_weights *w,
                int times, int rows)
{
    for (int i = 0; i < times; i++) {
        meter_linear(m, part, &w->gate, rows);
        meter_linear(m, part, &w->up, rows);
        meter_linear(m, part, &w->down, rows);
    }
}

void cuda_meter_ffn(struct compute_meter *m, const struct ffn_block *b, int rows)
{
    if (!b->sparse) {
        mlp(m, METER_DENSE, &b->dense, 1, rows);
        return;
    }
    const int entries = rows * b->top_k;
    mlp(m, METER_EXPERTS, &b->expert[0], entries < b->experts ? entries : b->experts, 1);
    if (b->has_shared)
        mlp(m, METER_SHARED, &b->shared, 1, rows);
    meter_linear(m, METER_ROUTER, &b->router, rows);
}

static __global__ void read_all(const uint4 *data, size_t count, unsigned *sink)
{
    enum { UNROLL = 8 };
    unsigned sum = 0;
    pdl_wait();
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * stride < count; i += UNROLL * stride) {
        uint4 v[UNROLL];
        for (int u = 0; u < UNROLL; u++)
            v[u] = load_stream(data + i + u * stride);
        for (int u = 0; u < UNROLL; u++)
            sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    for (; i < count; i += stride)
        sum += load_stream(data + i).x;
    if (sum == 0x12345678u)
        *sink = sum;
}

double cuda_meter_read_seconds(struct cuda_fault *fault, cudaStream_t stream,
                               const struct cuda_device *device, size_t bytes)
{
    enum { PASSES = 5 };
    void *data = NULL, *sink = NULL;
    cudaEvent_t from = NULL, to = NULL;
    unsigned kernels = 0;
    double best = 0;
    struct cuda_launch l = {};
    l.stream = stream;
    l.fault = fault;
    l.device = device;
    l.kernels = &kernels;
    if (cuda_memory_new(fault, bytes, "a buffer to read", &data) &&
        cuda_memory_new(fault, sizeof(unsigned), "a buffer to read", &sink) &&
        cuda_ok(fault, cudaMemsetAsync(data, 1, bytes, stream), "a buffer to read") &&
        cuda_ok(fault, cudaEventCreate(&from), "an event") &&
        cuda_ok(fault, cudaEventCreate(&to), "an event")) {
        for (int i = 0; i < PASSES && !fault->set; i++) {
            float ms = 0;
            cuda_ok(fault, cudaEventRecord(from, stream), "an event");
            cuda_launch(&l, "read_all", read_all, dim3((unsigned)device->multiprocessors * 4),
                        dim3(512), 0, (const uint4 *)data, bytes / sizeof(uint4), (unsigned *)sink);
            cuda_ok(fault, cudaEventRecord(to, stream), "an event");
            if (!cuda_ok(fault, cudaEventSynchronize(to), "reading device memory") ||
                !cuda_ok(fault, cudaEventElapsedTime(&ms, from, to), "an event"))
                break;
            if (i > 0 && (best == 0 || ms * 1e-3 < best))
                best = ms * 1e-3;
        }
    }
    if (from != NULL)
        cudaEventDestroy(from);
    if (to != NULL)
        cudaEventDestroy(to);
    cuda_memory_free(data);
    cuda_memory_free(sink);
    return best;
}
