/* Which stages each block is made of. */
#include "engine/compute/cuda/instance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void mark(struct compute *c, enum meter_part part)
{
    if (c->meter != NULL && c->mode == MODE_DIRECT)
        cuda_meter_mark(c->events, &c->shared->fault, c->shared->stream, part, c->meter->layer);
}

void cuda_block_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                      int rows)
{
    const bool alone = c->mode == MODE_NONE;
    if (c->shared->fault.set || rows <= 0)
        return;
    if (alone) {
        c->kernels = 0;
        cuda_fill_input(c, ids, 0, rows);
    }
    mark(c, METER_EMBED);
    const struct cuda_launch l = cuda_launch_of(c);
    cuda_embed(&l, c->input, c->step, cuda_weights_embedding(c->shared->weights, table->data),
               c->shape.hidden, rows, c->x, alone ? NULL : cuda_drafted(&c->forward));
    if (c->meter != NULL)
        c->meter->part[METER_EMBED].bytes += (uint64_t)rows * (uint64_t)c->shape.hidden * 2;
    cuda_alone_end(c, alone);
}

static void linear_run(const struct cuda_launch *l, const struct cuda_matrix *w, int count,
                       struct cuda_linear *a)
{
    for (int i = 0; i < count; i++) {
        a->w = &w[i];
        cuda_linear(l, a);
        a->y += w[i].out;
    }
}

void cuda_block_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                          int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const struct cuda_attention *w = cuda_weights_attention(c->shared->weights, b);
    const bool alone = cuda_alone_begin(c, pos0, rows);
    const size_t hidden = (size_t)c->shape.hidden, wide = (size_t)(b->heads * b->head_dim);
    const size_t projected = wide + 2 * (size_t)(b->kv_heads * b->head_dim) + (size_t)b->heads;
    struct cuda_launch l = cuda_launch_of(c);

    mark(c, METER_PROJECT);
    struct cuda_linear in = {};
    in.x = c->x;
    in.x_stride = hidden;
    in.norm = w->input_norm;
    in.eps = b->eps;
    in.rows = rows;
    in.y = c->projected;
    in.y_stride = projected;
    linear_run(&l, w->project, w->projects, &in);

    mark(c, METER_ATTEND);
    struct cuda_attend attend = {};
    attend.w = w;
    attend.kv = kv;
    attend.projected = c->projected;
    attend.projected_stride = projected;
    attend.rows = rows;
    attend.chunks = c->chunks < c->attend_chunks ? c->chunks : c->attend_chunks;
    attend.out = c->attended;
    attend.scratch = c->attend_scratch;
    cuda_attend(&l, &attend);

    mark(c, METER_OUTPUT);
    struct cuda_linear out = {};
    out.x = c->attended;
    out.x_stride = wide;
    out.rows = rows;
    out.y = c->x;
    out.y_stride = hidden;
    out.add = true;
    linear_run(&l, &w->output, 1, &out);
    if (c->meter != NULL) {
        cuda_meter_attention(c->meter, b, pos0, rows);
        mark(c, METER_REST);
    }
    cuda_alone_end(c, alone);
}

void cuda_block_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                       int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const struct cuda_attention *w = cuda_weights_attention(c->shared->weights, b);
    const bool alone = cuda_alone_begin(c, pos0, rows);
    const size_t projected = 2 * (size_t)(b->kv_heads * b->head_dim);
    uint16_t *room;
    struct cuda_launch l = cuda_branch_of(c, (size_t)rows * projected, &room);
    struct cuda_linear in = {};
    in.x = c->x;
    in.x_stride = (size_t)c->shape.hidden;
    in.norm = w->input_norm;
    in.eps = b->eps;
    in.rows = rows;
    in.y = room;
    in.y_stride = projected;
    linear_run(&l, w->append, w->appends, &in);
    struct cuda_attend attend = {};
    attend.w = w;
    attend.kv = kv;
    attend.projected = room;
    attend.projected_stride = projected;
    attend.rows = rows;
    attend.scratch = c->attend_scratch;
    cuda_append(&l, &attend);
    cuda_alone_end(c, alone);
}

void cuda_block_ffn(struct compute *c, const struct ffn_block *b, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = cuda_alone_begin(c, 0, rows);
    struct cuda_launch l = cuda_launch_of(c);
    struct cuda_ffn_run run = {};
    run.w = cuda_weights_ffn(c->shared->weights, b);
    run.x = c->x;
    run.hidden = c->shape.hidden;
    run.rows = rows;
    run.scratch = c->ffn_scratch;
    mark(c, b->sparse ? METER_EXPERTS : METER_DENSE);
    cuda_ffn_forward(&l, &run);
    if (c->meter != NULL) {
        cuda_meter_ffn(c->meter, b, rows);
        mark(c, METER_REST);
    }
    cuda_alone_end(c, alone);
}

/* Logits of more rows than fit at once leave for the host in pieces. */
void cuda_block_head(struct compute *c, const struct head_block *b, int first_row, int rows,
                     float *logits, struct head_pick *picks)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = cuda_alone_begin(c, 0, rows);
    const struct cuda_launch l = cuda_launch_of(c);
    const size_t hidden = (size_t)c->shape.hidden, vocab = (size_t)c->shape.vocab;
    const struct cuda_head *w = cuda_weights_head(c->shared->weights, b);
    float *wanted = alone ? logits : c->forward.logits;
    mark(c, METER_HEAD);
    for (int at = 0; at < rows; at += LOGIT_ROWS) {
        const int n = rows - at < LOGIT_ROWS ? rows - at : LOGIT_ROWS;
        cuda_head_run(&l, w, c->x + (size_t)(first_row + at) * hidden, c->shape.hidden, n,
                      c->logits, c->picks + at, c->head_scratch);
        if (wanted != NULL && (alone || rows > LOGIT_ROWS))
            cuda_ok(&c->shared->fault,
                    cudaMemcpyAsync(wanted + (size_t)at * vocab, c->logits,
                                    (size_t)n * vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                    c->shared->stream),
                    "reading logits");
    }
    if (c->meter != NULL) {
        meter_linear(c->meter, METER_HEAD, &b->output, rows);
        mark(c, METER_REST);
    }
    cuda_alone_end(c, alone);
    if (alone && picks != NULL && !c->shared->fault.set)
        memcpy(picks, c->picks, (size_t)rows * sizeof *picks);
}

void cuda_block_tap(struct compute *c, struct tap_rows *t, int number, int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = cuda_alone_begin(c, pos0, rows);
    const struct cuda_launch l = cuda_launch_of(c);
    cuda_tap(&l, c->x, t, number, rows);
    cuda_alone_end(c, alone);
}

void cuda_block_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                        int64_t pos0, int rows)
{
    if (c->shared->fault.set || rows <= 0)
        return;
    const bool alone = cuda_alone_begin(c, pos0, rows);
    const struct cuda_launch l = cuda_launch_of(c);
    cuda_context_run(&l, cuda_weights_context(c->shared->weights, b), t, rows, c->x,
                     c->context_scratch);
    cuda_alone_end(c, alone);
}
