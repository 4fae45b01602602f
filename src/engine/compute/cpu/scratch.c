/* An instance's scratch: every piece is measured, then cut from one allocation. */
#include "engine/compute/cpu/backend.h"

enum { ALIGN = 64 };

struct layout {
    uint8_t *base; /* NULL while measuring */
    size_t used;
    bool overflow;
};

static void *take(struct layout *l, size_t a, size_t b, size_t element)
{
    size_t bytes;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
        bytes > SIZE_MAX / 4 || l->used > SIZE_MAX / 4) {
        l->overflow = true;
        return NULL;
    }
    uint8_t *p = l->base == NULL ? NULL : l->base + l->used;
    l->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

size_t prepared_stride(const struct compute *c, int n)
{
    const size_t bytes =
        (size_t)kernel_pad(n, KERNEL_BLOCK) * (size_t)c->kernels->prepared_bytes[c->activations];
    /* An odd number of cache lines, so that the rows of a tile do not fall into one set. */
    return (bytes + ALIGN - 1) / ALIGN * ALIGN | ALIGN;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void lay_out(struct compute *c, struct layout *l)
{
    const struct compute_shape *s = &c->shape;
    const size_t rows = (size_t)s->max_rows, hidden = (size_t)s->hidden;
    const size_t dim = (size_t)s->head_dim;
    const size_t wide = dim * (size_t)s->max_heads, narrow = dim * (size_t)s->max_kv_heads;
    const size_t experts = (size_t)s->max_experts, top_k = (size_t)s->max_top_k;
    const int expert_width = s->max_expert_width > 0 ? s->max_expert_width : s->max_ffn_width;
    const size_t entries = rows * (top_k + 1);
    const size_t f = sizeof(float);

    c->x = take(l, rows, hidden, f);
    const size_t context = (size_t)s->max_context_width;
    const int widest = (int)larger(larger(hidden, wide), context);
    /* Room behind each row for its sums (group_sums); an odd number of lines again. */
    c->input_stride =
        (prepared_stride(c, widest) + kernel_sums_bytes(widest) + ALIGN - 1) / ALIGN * ALIGN |
        ALIGN;
    c->input = take(l, rows, c->input_stride, 1);
    c->q = take(l, rows, wide, f);
    c->k = take(l, rows, narrow, f);
    c->v = take(l, rows, narrow, f);
    c->gate_logit = take(l, rows, (size_t)s->max_heads, f);
    c->heads = take(l, rows, wide, f);

    const size_t inner =
        larger(rows * (size_t)s->max_ffn_width, experts > 0 ? entries * (size_t)expert_width : 0);
    c->ffn_gate = take(l, inner, 1, f);
    c->ffn_up = take(l, inner, 1, f);
    c->ffn_input = take(l,
                        larger(rows * prepared_stride(c, s->max_ffn_width),
                               experts > 0 ? entries * prepared_stride(c, expert_width) : 0),
                        1, 1);
    c->ffn_out = take(l, entries, hidden, f);
    c->router = take(l, rows, experts, f);
    c->router_key = take(l, rows, experts, f);
    c->chosen = take(l, rows, top_k, sizeof(int));
    c->mix = take(l, rows, top_k, f);
    c->entry_of = take(l, rows, top_k, sizeof(int));
    c->expert_start = take(l, experts + 1, 1, sizeof(int));
    c->expert_filled = take(l, experts, 1, sizeof(int));
    /* inputs of the rows, of their routed entries (and room for one more each), of all entries */
    c->rows = take(l, rows * (2 * top_k + 3), 1, sizeof(void *));
    c->jobs = take(l, 3 * (experts + 1), 1, sizeof(struct linear_job));

    c->picks = take(l, (size_t)c->threads, rows, sizeof *c->picks);

    /* attention: prepared queries and softplus gates of a group, the kernel's own; a norm's row */
    const size_t attention = (size_t)s->max_heads * (prepared_stride(c, s->head_dim) + f + ALIGN) +
                             kernel_attention_scratch(s->head_dim) * f + 4 * ALIGN;
    c->thread_bytes = larger(attention, larger(hidden, context) * f + ALIGN);
    c->thread_bytes = (c->thread_bytes + ALIGN - 1) / ALIGN * ALIGN;
    c->thread_scratch = take(l, (size_t)c->threads, c->thread_bytes, 1);
}

size_t scratch_bytes(const struct compute *c)
{
    struct compute measured = *c;
    struct layout l = {0};
    lay_out(&measured, &l);
    return l.overflow ? SIZE_MAX : l.used;
}

bool scratch_new(struct compute *c)
{
    if (!pages_new(scratch_bytes(c), c->pages, &c->memory))
        return false;
    struct layout l = {.base = c->memory.data};
    lay_out(c, &l);
    return true;
}
