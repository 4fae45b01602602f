/* Forwards: recorded once as graphs, and replayed. */
#include "engine/compute/cuda/instance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuda_chunks(int64_t pos0, int rows)
{
    const int64_t need = (pos0 + rows - 1) / CUDA_CHUNK + 1;
    int chunks = 2;
    while (chunks < need)
        chunks *= 2;
    return chunks;
}

static struct cuda_launch launch_on_stem(struct compute *c)
{
    struct cuda_launch l = {};
    l.stream = c->shared->stream;
    l.fault = &c->shared->fault;
    l.device = &c->shared->device;
    l.step = c->step;
    l.overlap = c->meter == NULL && !c->shared->no_overlap;
    l.fast = c->shared->arithmetic == ARITHMETIC_FAST;
    l.kernels = &c->kernels;
    return l;
}

static void branches_join(struct compute *c)
{
    struct cuda_shared *s = c->shared;
    for (int i = 0; i < c->branches && i < BRANCHES; i++)
        if (!cuda_ok(&s->fault, cudaEventRecord(c->branched[i], c->branch[i]), "a branch") ||
            !cuda_ok(&s->fault, cudaStreamWaitEvent(s->stream, c->branched[i], 0), "a branch"))
            break;
    c->branches = 0;
}

struct cuda_launch cuda_launch_of(struct compute *c)
{
    branches_join(c);
    return launch_on_stem(c);
}

/* Only in a recording: one by one, launches of several streams take longer than what they run. */
struct cuda_launch cuda_branch_of(struct compute *c, size_t elements, uint16_t **room)
{
    struct cuda_shared *s = c->shared;
    if ((size_t)(c->branches + 1) * elements > c->projected_elements)
        branches_join(c);
    struct cuda_launch l = launch_on_stem(c);
    *room = c->projected + (size_t)c->branches * elements;
    if (c->mode != MODE_RECORD || c->branches == BRANCHES)
        return l;
    if (c->branches == 0)
        cuda_ok(&s->fault, cudaEventRecord(c->branched[BRANCHES], s->stream), "a branch");
    l.stream = c->branch[c->branches++];
    l.overlap = false; /* it begins behind all that the stem has done */
    cuda_ok(&s->fault, cudaStreamWaitEvent(l.stream, c->branched[BRANCHES], 0), "a branch");
    return l;
}

void cuda_recording_drop(struct cuda_recording *r)
{
    if (r->graph != NULL)
        cudaGraphExecDestroy(r->graph);
    memset(r, 0, sizeof *r);
}

void cuda_forget_all(struct compute *c)
{
    for (int i = 0; i < RECORDINGS_MOST; i++)
        cuda_recording_drop(&c->recordings[i]);
}

void cuda_forget(struct compute *c, const void *owner)
{
    struct error nobodys;
    cudaStreamSynchronize(c->shared->stream);
    if (c->shared->fault.set && owner != NULL && c->shared->untold == owner)
        cuda_say(c->shared, &nobodys); /* who would have been told goes */
    for (int i = 0; i < RECORDINGS_MOST; i++)
        if (c->recordings[i].owner == owner)
            cuda_recording_drop(&c->recordings[i]);
}

/* Where the ids of a forward may come from. */
const struct head_pick *cuda_drafted(const struct compute_forward *f)
{
    return f->drafted != NULL ? f->drafted->picks : NULL;
}

static struct cuda_recording *find(struct compute *c, const struct compute_forward *f, int chunks)
{
    for (int i = 0; i < RECORDINGS_MOST; i++) {
        struct cuda_recording *r = &c->recordings[i];
        if (r->graph != NULL && r->owner == f->owner && r->kind == f->kind && r->rows == f->rows &&
            r->logit_rows == f->logit_rows && r->chunks == chunks && r->drafted == cuda_drafted(f))
            return r;
    }
    return NULL;
}

static struct cuda_recording *oldest(struct compute *c)
{
    struct cuda_recording *least = &c->recordings[0];
    for (int i = 0; i < RECORDINGS_MOST; i++)
        if (c->recordings[i].used < least->used)
            least = &c->recordings[i];
    return least;
}

void cuda_fill_input(struct compute *c, const int32_t *ids, int64_t pos0, int rows)
{
    c->input->pos0 = pos0;
    c->input->rows = rows;
    if (ids != NULL)
        memcpy(c->input->ids, ids, (size_t)rows * sizeof *ids);
}

/* Until the last forward of that kind has ended. */
static void wait_for(struct compute *c, int kind)
{
    if (c->pending[kind])
        cuda_ok(&c->shared->fault, cudaEventSynchronize(c->ran[kind]), "a forward");
    c->pending[kind] = false;
}

/* All of the forward is on the stream; what is read of it follows. */
static void is_running(struct compute *c)
{
    struct cuda_shared *s = c->shared;
    const struct compute_forward *f = &c->forward;
    c->running = true;
    if (!s->fault.set && f->logits != NULL && f->logit_rows > 0 && f->logit_rows <= LOGIT_ROWS)
        cuda_ok(&s->fault,
                cudaMemcpyAsync(f->logits, c->logits,
                                (size_t)f->logit_rows * (size_t)c->shape.vocab * sizeof(float),
                                cudaMemcpyDeviceToHost, s->stream),
                "reading logits");
    if (!s->fault.set)
        c->pending[f->kind % KINDS] =
            cuda_ok(&s->fault, cudaEventRecord(c->ran[f->kind % KINDS], s->stream), "a forward");
}

bool cuda_begin(struct compute *c, const struct compute_forward *f)
{
    struct cuda_shared *s = c->shared;
    c->forward = *f;
    c->mode = MODE_DIRECT;
    c->running = false;
    c->kernels = 0;
    c->chunks = cuda_chunks(f->pos0, f->rows);
    if (s->fault.set)
        return false;
    c->input = c->inputs[f->kind % KINDS];
    wait_for(c, f->kind % KINDS);
    cuda_fill_input(c, f->ids, f->pos0, f->rows);
    if (f->rows <= CUDA_RECORD_ROWS && c->meter == NULL && !s->no_graphs) {
        struct cuda_recording *r = find(c, f, c->chunks);
        if (r != NULL) {
            c->mode = MODE_REPLAYED;
            c->kernels = r->kernels;
            r->used = ++c->clock;
            cuda_ok(&s->fault, cudaGraphLaunch(r->graph, s->stream), "replaying a forward");
            is_running(c);
            return true;
        }
        if (!cuda_ok(&s->fault, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal),
                     "recording a forward"))
            return false;
        c->mode = MODE_RECORD;
    }
    if (c->meter != NULL)
        cuda_meter_begin(&c->events, &s->fault, s->stream);
    if (f->ids == NULL) {
        const struct cuda_launch l = cuda_launch_of(c);
        cuda_set_step(&l, c->input, c->step);
    }
    return false;
}

/* Ends the capture, keeps the graph and runs it. */
static void finish_recording(struct compute *c)
{
    struct cuda_shared *s = c->shared;
    cudaGraph_t graph = NULL;
    struct cuda_recording *r = oldest(c);
    cuda_recording_drop(r);
    branches_join(c);
    /* Always ended: a stream that captures can do nothing else. */
    const cudaError_t ended = cudaStreamEndCapture(s->stream, &graph);
    if (!s->fault.set && cuda_ok(&s->fault, ended, "recording a forward") &&
        cuda_ok(&s->fault, cudaGraphInstantiate(&r->graph, graph, 0), "recording a forward")) {
        r->owner = c->forward.owner;
        r->kind = c->forward.kind;
        r->rows = c->forward.rows;
        r->logit_rows = c->forward.logit_rows;
        r->chunks = c->chunks;
        r->drafted = cuda_drafted(&c->forward);
        r->kernels = c->kernels;
        r->used = ++c->clock;
        cuda_ok(&s->fault, cudaGraphLaunch(r->graph, s->stream), "running a forward");
    }
    if (graph != NULL)
        cudaGraphDestroy(graph);
}

void cuda_run(struct compute *c)
{
    if (c->running)
        return;
    if (c->mode == MODE_RECORD)
        finish_recording(c);
    is_running(c);
}

bool cuda_end(struct compute *c, struct error *err)
{
    struct cuda_shared *s = c->shared;
    const struct compute_forward *f = &c->forward;
    cuda_run(c);
    c->mode = MODE_NONE;
    c->input = c->inputs[0]; /* of blocks by themselves: nothing that is not waited for reads it */
    c->last_kernels = c->kernels;
    /* What gives nothing back is not waited for: the next forward that does shows its failure. */
    const bool waits = c->meter != NULL || (!f->later && (f->kind == 0 || f->logit_rows > 0));
    if (f->later)
        c->later_kind = f->kind % KINDS;
    if (waits && !s->fault.set)
        wait_for(c, f->kind % KINDS);
    if (s->fault.set) {
        if (err == NULL && s->untold == NULL)
            s->untold = f->owner;
        return cuda_say(s, err);
    }
    if (waits && f->picks != NULL && f->logit_rows > 0)
        memcpy(f->picks, c->picks, (size_t)f->logit_rows * sizeof *f->picks);
    if (c->meter != NULL)
        cuda_meter_end(c->events, &s->fault, c->meter);
    return true;
}

void cuda_picks(struct compute *c, struct head_pick *out, int rows)
{
    wait_for(c, c->later_kind);
    memcpy(out, c->picks, (size_t)rows * sizeof *out);
}

bool cuda_read_logits(struct compute *c, int row, float *out)
{
    struct cuda_shared *s = c->shared;
    const size_t vocab = (size_t)c->shape.vocab;
    if (s->fault.set || row < 0 || row >= LOGIT_ROWS ||
        !cuda_ok(&s->fault,
                 cudaMemcpyAsync(c->logits_row, c->logits + (size_t)row * vocab,
                                 vocab * sizeof(float), cudaMemcpyDeviceToHost, s->stream),
                 "reading logits") ||
        !cuda_ok(&s->fault, cudaStreamSynchronize(s->stream), "reading logits"))
        return false;
    memcpy(out, c->logits_row, vocab * sizeof *out);
    return true;
}

/* Blocks that are called by themselves (tests): each is a forward of its own. */
bool cuda_alone_begin(struct compute *c, int64_t pos0, int rows)
{
    if (c->mode != MODE_NONE)
        return false;
    memset(&c->forward, 0, sizeof c->forward);
    c->kernels = 0;
    c->chunks = cuda_chunks(pos0, rows);
    cuda_fill_input(c, NULL, pos0, rows);
    const struct cuda_launch l = cuda_launch_of(c);
    cuda_set_step(&l, c->input, c->step);
    return true;
}

void cuda_alone_end(struct compute *c, bool alone)
{
    if (alone)
        cuda_ok(&c->shared->fault, cudaStreamSynchronize(c->shared->stream), "a block");
}
