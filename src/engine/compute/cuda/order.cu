#include "engine/compute/cuda/order.h"

extern "C" {
#include "base/arena.h"
}

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, INT8_GROUP = 32, NVFP4_GROUP = 16 };

/* One allocation, in which several pieces lie. */
struct holding {
    void *memory;
    size_t bytes;
    int uses; /* blocks that have a piece in it */
};

/* A piece that is there, for whoever needs the same data in the same order. */
struct taken {
    uint64_t key;
    const void *from;
    uint8_t *to;
    struct holding *in;
};

struct registered {
    enum block_kind kind;
    const void *host, *owner;
    void *block; /* struct cuda_attention .. cuda_context; BLOCK_EMBEDDING: NULL */
    const void *table;
    struct holding *in[ORDER_MOST_PIECES];
    int in_count;
};

struct cuda_weights {
    struct cuda_fault *fault;
    struct staging *staging;
    const void *owner;
    struct taken *taken;
    size_t taken_count, taken_room;
    struct registered *blocks;
    size_t block_count, block_room;
    uint64_t bytes;
};

/* ---- Sizes ---- */

static int group_of(enum weight_format format)
{
    return format == WEIGHT_BF16    ? CUDA_BF16_GROUP
           : format == WEIGHT_NVFP4 ? CUDA_NVFP4_GROUP
                                    : CUDA_INT8_GROUP;
}

/* Bytes of n values; of the scales of n values. */
static size_t data_bytes(enum weight_format format, size_t n)
{
    return format == WEIGHT_BF16 ? n * 2 : format == WEIGHT_NVFP4 ? n / 2 : n;
}

static size_t scale_bytes(enum weight_format format, size_t n)
{
    return format == WEIGHT_BF16    ? 0
           : format == WEIGHT_NVFP4 ? n / NVFP4_GROUP
                                    : n / INT8_GROUP * 2;
}

static struct cuda_matrix shape_of(enum weight_format format, int out, int in)
{
    const int group = group_of(format);
    struct cuda_matrix m = {};
    m.format = format;
    m.out = out;
    m.in = in;
    m.padded = (in + group - 1) / group * group;
    m.row_bytes = data_bytes(format, (size_t)m.padded);
    m.scale_bytes = scale_bytes(format, (size_t)m.padded);
    return m;
}

uint64_t cuda_matrix_bytes(enum weight_format format, int out, int in)
{
    const struct cuda_matrix m = shape_of(format, out, in);
    const uint64_t row = m.row_bytes + m.scale_bytes * (format == WEIGHT_INT8_AFFINE32 ? 2 : 1);
    return (uint64_t)out * row;
}

/* ---- An order: what one block needs, planned whole before anything is done ---- */

bool order_begin(struct cuda_weights *w, struct order *o)
{
    memset(o, 0, sizeof *o);
    o->w = w;
    return !w->fault->set;
}

bool order_refuse(struct cuda_weights *w, const char *what)
{
    w->fault->set = true;
    return error_set(&w->fault->error, "CUDA-FAILED", "weights of this kind are not supported: %s",
                     what);
}

int order_piece(struct order *o, enum staging_layout layout, int in, size_t row_bytes,
                size_t device_row_bytes, int sources)
{
    const int i = o->count++;
    struct staging_piece *p = &o->pieces[i];
    o->sources[i] = (struct staging_source *)memory_alloc((size_t)sources * sizeof **o->sources);
    *p = {};
    p->layout = layout;
    p->in = in;
    p->row_bytes = row_bytes;
    p->device_row_bytes = device_row_bytes;
    p->sources = o->sources[i];
    return i;
}

/* Rows that follow the last ones in memory are one source with them. */
void order_add_rows(struct order *o, int piece, const void *from, size_t rows)
{
    struct staging_piece *p = &o->pieces[piece];
    struct staging_source *last =
        p->source_count > 0 ? &o->sources[piece][p->source_count - 1] : NULL;
    if (last != NULL && last->from + last->rows * p->row_bytes == (const uint8_t *)from)
        last->rows += rows;
    else
        o->sources[piece][p->source_count++] = staging_source{(const uint8_t *)from, rows};
}

int order_plain(struct order *o, const void *from, size_t rows, size_t row_bytes)
{
    const int i = order_piece(o, STAGING_PLAIN, 0, row_bytes, row_bytes, 1);
    order_add_rows(o, i, from, rows);
    return i;
}

bool order_check(struct cuda_weights *w, const struct weight_matrix *m)
{
    if (m->data == NULL || m->out < 1 || m->in < 1)
        return order_refuse(w, "a matrix is not there");
    if (m->format == WEIGHT_NVFP4 && (m->in % NVFP4_GROUP != 0 || m->scales == NULL))
        return order_refuse(w,
                            "nvfp4 with inputs that are not a multiple of 16, or without scales");
    if (m->format == WEIGHT_INT8_AFFINE32 &&
        (m->in % INT8_GROUP != 0 || m->scales == NULL || m->biases == NULL))
        return order_refuse(
            w, "int8 with inputs that are not a multiple of 32, without scales or biases");
    return true;
}

/* Codes, scales, biases: as many as the format has. */
static int parts_of(enum weight_format format)
{
    return format == WEIGHT_BF16 ? 1 : format == WEIGHT_NVFP4 ? 2 : 3;
}

static enum staging_layout layout_of(enum weight_format format, int part)
{
    if (format == WEIGHT_BF16)
        return STAGING_BF16;
    if (format == WEIGHT_NVFP4)
        return part == 0 ? STAGING_NVFP4 : STAGING_NVFP4_SCALES;
    return part == 0 ? STAGING_INT8 : STAGING_INT8_SCALES;
}

bool order_run(struct order *o, const struct weight_matrix *const *matrices, int count,
               struct run *out)
{
    const struct weight_matrix *first = matrices[0];
    const enum weight_format format = first->format;
    const struct cuda_matrix shape = shape_of(format, first->out, first->in);
    *out = run{o->count, 0, first->in, format};
    for (int part = 0; part < parts_of(format); part++) {
        const size_t in = (size_t)first->in;
        order_piece(o, layout_of(format, part), first->in,
                    part == 0 ? data_bytes(format, in) : scale_bytes(format, in),
                    part == 0 ? shape.row_bytes : shape.scale_bytes, count);
    }
    for (int i = 0; i < count; i++) {
        const struct weight_matrix *m = matrices[i];
        if (!order_check(o->w, m))
            return false;
        if (m->format != format || m->in != first->in)
            return order_refuse(o->w, "experts of several formats or sizes");
        const void *const from[] = {m->data, m->scales, m->biases};
        for (int part = 0; part < parts_of(format); part++)
            order_add_rows(o, out->piece + part, from[part], (size_t)m->out);
        out->out += m->out;
    }
    return true;
}

bool order_matrix(struct order *o, const struct weight_matrix *m, struct run *out)
{
    return order_run(o, &m, 1, out);
}

/* `out` outputs of a run, the first of them number `from`. After order_place. */
struct cuda_matrix order_bind_rows(const struct order *o, const struct run *r, int from, int out)
{
    struct cuda_matrix m = shape_of(r->format, out, r->in);
    const struct staging_piece *p = &o->pieces[r->piece];
    m.data = p[0].to + (size_t)from * m.row_bytes;
    if (r->format != WEIGHT_BF16)
        m.scales = p[1].to + (size_t)from * m.scale_bytes;
    if (r->format == WEIGHT_INT8_AFFINE32)
        m.biases = p[2].to + (size_t)from * m.scale_bytes;
    return m;
}

struct cuda_matrix order_bind(const struct order *o, const struct run *r)
{
    return order_bind_rows(o, r, 0, r->out);
}

const void *order_bind_plain(const struct order *o, int piece)
{
    return piece < 0 ? NULL : o->pieces[piece].to;
}

/* ---- What is there ---- */

static uint64_t mix(uint64_t key, uint64_t value)
{
    key = (key ^ value) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

static uint64_t key_of(const struct staging_piece *p)
{
    uint64_t key = mix(mix(p->layout, (uint64_t)p->in), p->row_bytes);
    for (int i = 0; i < p->source_count; i++)
        key = mix(mix(key, (uintptr_t)p->sources[i].from), p->sources[i].rows);
    return key;
}

static size_t rows_of(const struct staging_piece *p)
{
    size_t rows = 0;
    for (int i = 0; i < p->source_count; i++)
        rows += p->sources[i].rows;
    return rows;
}

static const struct taken *find_taken(const struct cuda_weights *w, uint64_t key, const void *from)
{
    for (size_t i = 0; i < w->taken_count; i++)
        if (w->taken[i].key == key && w->taken[i].from == from)
            return &w->taken[i];
    return NULL;
}

/* Every piece gets its address: where it is already, or in one new allocation. */
static bool order_place(struct order *o, const char *what)
{
    struct cuda_weights *w = o->w;
    size_t offset[ORDER_MOST_PIECES], bytes = 0;
    for (int i = 0; i < o->count; i++) {
        struct staging_piece *p = &o->pieces[i];
        o->key[i] = key_of(p);
        const struct taken *t = find_taken(w, o->key[i], p->sources[0].from);
        offset[i] = bytes;
        if (t != NULL) {
            o->in[i] = t->in;
            p->to = t->to;
        } else {
            bytes += (rows_of(p) * p->device_row_bytes + ALIGN - 1) / ALIGN * ALIGN;
        }
    }
    if (bytes == 0)
        return true;
    void *memory;
    if (!cuda_memory_new(w->fault, bytes, what, &memory))
        return false;
    o->own = (struct holding *)memory_alloc(sizeof *o->own);
    *o->own = holding{memory, bytes, 0};
    for (int i = 0; i < o->count; i++)
        if (o->in[i] == NULL)
            o->pieces[i].to = (uint8_t *)memory + offset[i];
    return true;
}

static bool order_send(struct order *o)
{
    struct staging_piece missing[ORDER_MOST_PIECES];
    int count = 0;
    for (int i = 0; i < o->count; i++)
        if (o->in[i] == NULL)
            missing[count++] = o->pieces[i];
    return staging_copy(o->w->staging, missing, count);
}

static void *grow(void *p, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return p;
    *room = *room > 0 ? *room * 2 : 64;
    return memory_realloc(p, *room * size);
}

static void use(struct registered *r, struct holding *h)
{
    for (int i = 0; i < r->in_count; i++)
        if (r->in[i] == h)
            return;
    r->in[r->in_count++] = h;
    h->uses++;
}

/* From here on the block is there; the order has nothing more to give back but its lists. */
void order_enter(struct order *o, enum block_kind kind, const void *host, void *block)
{
    struct cuda_weights *w = o->w;
    struct registered r = {};
    r.kind = kind;
    r.host = host;
    r.owner = w->owner;
    r.block = block;
    r.table = o->pieces[0].to;
    for (int i = 0; i < o->count; i++) {
        const bool is_new = o->in[i] == NULL;
        struct holding *in = is_new ? o->own : o->in[i];
        use(&r, in);
        if (!is_new)
            continue;
        w->taken = (struct taken *)grow(w->taken, w->taken_count, &w->taken_room, sizeof *w->taken);
        w->taken[w->taken_count++] =
            taken{o->key[i], o->pieces[i].sources[0].from, o->pieces[i].to, in};
    }
    w->bytes += o->own != NULL ? o->own->bytes : 0;
    o->own = NULL;
    w->blocks =
        (struct registered *)grow(w->blocks, w->block_count, &w->block_room, sizeof *w->blocks);
    w->blocks[w->block_count++] = r;
}

void order_end(struct order *o)
{
    for (int i = 0; i < o->count; i++)
        free(o->sources[i]);
    if (o->own != NULL) {
        cuda_memory_free(o->own->memory);
        free(o->own);
    }
}

bool order_fetch(struct order *o, const char *what)
{
    return order_place(o, what) && order_send(o);
}

static const struct registered *find_block(const struct cuda_weights *w, enum block_kind kind,
                                           const void *host)
{
    for (size_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].host == host && w->blocks[i].kind == kind)
            return &w->blocks[i];
    return NULL;
}

bool order_is_taken(const struct cuda_weights *w, enum block_kind kind, const void *host)
{
    for (size_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].host == host && w->blocks[i].kind == kind &&
            w->blocks[i].owner == w->owner)
            return true;
    return false;
}

/* ---- Finding, letting go ---- */

static const void *block_of(const struct cuda_weights *w, enum block_kind kind, const void *host)
{
    const struct registered *r = find_block(w, kind, host);
    return r != NULL ? r->block : NULL;
}

const uint16_t *cuda_weights_embedding(const struct cuda_weights *w, const void *host)
{
    const struct registered *r = find_block(w, BLOCK_EMBEDDING, host);
    return r != NULL ? (const uint16_t *)r->table : NULL;
}

const struct cuda_attention *cuda_weights_attention(const struct cuda_weights *w,
                                                    const struct attention_block *b)
{
    return (const struct cuda_attention *)block_of(w, BLOCK_ATTENTION, b);
}

const struct cuda_ffn *cuda_weights_ffn(const struct cuda_weights *w, const struct ffn_block *b)
{
    return (const struct cuda_ffn *)block_of(w, BLOCK_FFN, b);
}

const struct cuda_head *cuda_weights_head(const struct cuda_weights *w, const struct head_block *b)
{
    return (const struct cuda_head *)block_of(w, BLOCK_HEAD, b);
}

const struct cuda_context *cuda_weights_context(const struct cuda_weights *w,
                                                const struct context_block *b)
{
    return (const struct cuda_context *)block_of(w, BLOCK_CONTEXT, b);
}

uint64_t cuda_weights_bytes(const struct cuda_weights *w)
{
    return w->bytes;
}

static void free_holding(struct cuda_weights *w, struct holding *h)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->taken_count; i++)
        if (w->taken[i].in != h)
            w->taken[kept++] = w->taken[i];
    w->taken_count = kept;
    w->bytes -= h->bytes;
    cuda_memory_free(h->memory);
    free(h);
}

static void free_block(struct cuda_weights *w, const struct registered *r)
{
    for (int i = 0; i < r->in_count; i++)
        if (--r->in[i]->uses == 0)
            free_holding(w, r->in[i]);
    free(r->block);
}

void cuda_weights_owner(struct cuda_weights *w, const void *owner)
{
    w->owner = owner;
}

void cuda_weights_release(struct cuda_weights *w, const void *owner)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->block_count; i++)
        if (w->blocks[i].owner == owner)
            free_block(w, &w->blocks[i]);
        else
            w->blocks[kept++] = w->blocks[i];
    w->block_count = kept;
}

void cuda_weights_progress(struct cuda_weights *w,
                           void (*progress)(void *context, uint64_t done, uint64_t total),
                           void *context, uint64_t total)
{
    staging_progress(w->staging, progress, context, total);
}

bool cuda_weights_finish(struct cuda_weights *w)
{
    return staging_finish(w->staging);
}

bool cuda_weights_new(struct cuda_fault *fault, cudaStream_t stream, struct cuda_weights **out)
{
    *out = NULL;
    if (fault->set)
        return false;
    struct cuda_weights *w = (struct cuda_weights *)memory_alloc(sizeof *w);
    w->fault = fault;
    w->staging = staging_new(fault, stream);
    *out = w;
    return true;
}

void cuda_weights_free(struct cuda_weights *w)
{
    if (w == NULL)
        return;
    staging_free(w->staging);
    for (size_t i = 0; i < w->block_count; i++)
        free_block(w, &w->blocks[i]);
    free(w->blocks);
    free(w->taken);
    free(w);
}
