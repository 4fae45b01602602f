#include "engine/compute/meter.h"

#include "base/arena.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *text;
} parts[METER_PARTS] = {
#define METER_ROW(name, key, text) [METER_##name] = {key, text},
    METER_PART_TABLE(METER_ROW)
#undef METER_ROW
};

const char *meter_part_key(enum meter_part p)
{
    return parts[p].key;
}

const char *meter_part_text(enum meter_part p)
{
    return parts[p].text;
}

struct meter_recorder *meter_recorder_new(void)
{
    struct meter_recorder *r = memory_alloc(sizeof *r);
    for (int k = 0; k < METER_KINDS; k++)
        r->kind[k].events = memory_alloc(METER_EVENTS * sizeof *r->kind[k].events);
    return r;
}

void meter_recorder_free(struct meter_recorder *r)
{
    for (int k = 0; r && k < METER_KINDS; k++)
        free(r->kind[k].events);
    free(r);
}

void meter_reset(struct compute_meter *m)
{
    memset(m->part, 0, sizeof m->part);
    m->kv_bytes = m->forwards = m->rows = 0;
    m->ns = 0;
    if (m->expert_rows)
        memset(m->expert_rows, 0,
               (size_t)m->expert_layers * (size_t)m->expert_stride * sizeof *m->expert_rows);
}

/* The recording that this forward replaces, if it is worth more. */
static struct meter_recording *choose_recording(struct meter_recorder *r, int rows)
{
    enum { FIRST_FEW = 8 };
    struct meter_recording *k = &r->kind[rows > 1 ? 0 : 1];
    if (k->seen >= FIRST_FEW || rows < k->rows)
        return NULL;
    k->seen++;
    return k;
}

void meter_forward_begin(struct compute_meter *m, int rows, int64_t position)
{
    m->layer = -1;
    m->now = METER_REST;
    m->forwards++;
    m->rows += (uint64_t)rows;
    m->recording = m->recorder ? choose_recording(m->recorder, rows) : NULL;
    if (m->recording) {
        m->recording->rows = rows;
        m->recording->position = position;
        m->recording->count = m->recording->dropped = 0;
    }
    m->began = m->since = clock_now_ns();
}

static void keep(struct compute_meter *m, enum meter_part p, int64_t start, int64_t end)
{
    struct meter_recording *r = m->recording;
    m->part[p].ns += end - start;
    if (!r || end == start)
        return;
    if (r->count == METER_EVENTS)
        r->dropped++;
    else
        r->events[r->count++] = (struct meter_event){p, m->layer, start, end};
}

void meter_switch(struct compute_meter *m, enum meter_part to)
{
    if (to == m->now)
        return;
    const int64_t now = clock_now_ns();
    keep(m, m->now, m->since, now);
    m->now = to;
    m->since = now;
}

void meter_end_experts(struct compute_meter *m, uint64_t routed_bytes, uint64_t shared_bytes)
{
    const int64_t now = clock_now_ns();
    const double all = (double)routed_bytes + (double)shared_bytes;
    const double share = all > 0 ? (double)routed_bytes / all : 1;
    const int64_t middle = m->since + (int64_t)((double)(now - m->since) * share);
    keep(m, METER_EXPERTS, m->since, middle);
    keep(m, METER_SHARED, middle, now);
    m->now = METER_REST;
    m->since = now;
}

void meter_forward_end(struct compute_meter *m)
{
    const int64_t now = clock_now_ns();
    keep(m, m->now, m->since, now);
    m->ns += now - m->began;
    m->recording = NULL;
}

uint64_t meter_matrix_bytes(const struct weight_matrix *w)
{
    const uint64_t n = (uint64_t)w->out * (uint64_t)w->in;
    if (w->format == WEIGHT_INT8_AFFINE32)
        return n + n / 8; /* a scale and a bias of two bytes for 32 */
    return w->format == WEIGHT_BF16 ? 2 * n : n / 2 + n / 16;
}

void meter_linear(struct compute_meter *m, enum meter_part p, const struct weight_matrix *w,
                  int rows)
{
    m->part[p].bytes += meter_matrix_bytes(w);
    m->part[p].flops += 2.0 * w->out * w->in * rows;
}
