/* Products of many rows with bf16 weights, as in prefill: a part of kernels_avx512.c. The weights
 * of eight outputs are laid side by side, a block of each after the other, in a panel that stays in
 * the first-level cache while rows pass by; so many rows are taken at once as stay in the second-
 * level cache while the outputs pass by. An output's chain of sums is the same as everywhere: over
 * more inputs than a panel holds it is put down and taken up again. */

enum {
    PANEL_OUTPUTS = DOT_OUTPUTS,
    PANEL_BLOCKS = 64, /* 32 KiB of weights */
    PANEL_TILE_ROWS = 6,
    PANEL_TILE_OUTPUTS = 4,
    PANEL_LEAST = 17,             /* rows for which a panel is made, */
    PANEL_INPUTS = 512,           /* and inputs */
    PANEL_ROW_BYTES = 512 * 1024, /* of rows taken at once, */
    PANEL_ROWS_LEAST = 36,        /* but as many rows */
    PANEL_ROWS_MOST = 144
};

struct panel {
    _Alignas(64) uint8_t weights[PANEL_BLOCKS * PANEL_OUTPUTS * 64];
    _Alignas(64) float sums[PANEL_ROWS_MOST * PANEL_OUTPUTS * KERNEL_LANES];
};

/* What the tiles of a panel bring into the second-level cache meanwhile: the next one. */
struct panel_next {
    uintptr_t at; /* of its output now */
    size_t stride;
    int line, width; /* of an output */
    int left;        /* of all */
};

static void panel_fill(struct panel *p, const uint8_t *w, size_t stride, int blocks)
{
    for (int b = 0; b < blocks; b++) {
        UNROLL
        for (int t = 0; t < PANEL_OUTPUTS; t++)
            _mm512_store_si512(p->weights + 64 * (size_t)(b * PANEL_OUTPUTS + t),
                               _mm512_loadu_si512(w + (size_t)t * stride + 64 * (size_t)b));
    }
}

/* R rows and four outputs over the panel's blocks. first and last: of an output's chain. */
INLINE void panel_tile(const struct dot_call *c, struct panel *p, const int R, int r0, int within,
                       int o, int t0, int b0, int blocks, bool first, bool last)
{
    enum { T = PANEL_TILE_OUTPUTS };
    v16 acc[PANEL_TILE_ROWS * T];
    float *sums = p->sums + (size_t)(within * PANEL_OUTPUTS + t0 * R) * KERNEL_LANES;
    UNROLL
    for (int i = 0; i < R * T; i++)
        acc[i] = first ? v16_zero() : v16_load(sums + i * KERNEL_LANES);
    const uint8_t *x[PANEL_TILE_ROWS];
    UNROLL
    for (int r = 0; r < R; r++)
        x[r] = (const uint8_t *)c->x[r0 + r] + 64 * (size_t)b0;
    const uint8_t *w = p->weights + 64 * (size_t)t0;
    for (size_t b = 0; b < (size_t)blocks; b++) {
        __m512bh wp[T];
        UNROLL
        for (int t = 0; t < T; t++)
            wp[t] = (__m512bh)_mm512_load_si512(w + 64 * (b * PANEL_OUTPUTS + (size_t)t));
        UNROLL
        for (int r = 0; r < R; r++) {
            const __m512bh xp = (__m512bh)_mm512_load_si512(x[r] + 64 * b);
            UNROLL
            for (int t = 0; t < T; t++)
                acc[r * T + t] = _mm512_dpbf16_ps(acc[r * T + t], wp[t], xp);
        }
    }
    if (last) {
        packed_emit(c, acc, R, T, r0, o + t0);
        return;
    }
    UNROLL
    for (int i = 0; i < R * T; i++)
        v16_store(sums + i * KERNEL_LANES, acc[i]);
}

static void panel_fetch(struct panel_next *n, int lines)
{
    lines = lines < n->left ? lines : n->left;
    n->left -= lines;
    for (; lines > 0; lines--) {
        prefetch_far(n->at + 64 * (uintptr_t)n->line);
        if (++n->line == n->width) {
            n->line = 0;
            n->at += n->stride;
        }
    }
}

static void panel_rows(const struct dot_call *c, struct panel *p, int r0, int rows, int o, int b0,
                       int blocks, bool first, bool last, struct panel_next *next)
{
    const int share = next->left * PANEL_TILE_ROWS / rows / 2 + 1;
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        const int n = left <= PANEL_TILE_ROWS       ? left
                      : left >= 2 * PANEL_TILE_ROWS ? PANEL_TILE_ROWS
                                                    : (left + 1) / 2;
        for (int t = 0; t < PANEL_OUTPUTS; t += PANEL_TILE_OUTPUTS) {
            panel_fetch(next, share);
            switch (n) {
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        panel_tile(c, p, R, r0 + r, r, o, t, b0, blocks, first, last);                             \
        break;
                CASE(1)
                CASE(2)
                CASE(3)
                CASE(4)
                CASE(5)
                CASE(6)
#undef CASE
            }
        }
        r += n;
    }
}

/* count: a multiple of PANEL_OUTPUTS; inputs are whole blocks. */
static __attribute__((noinline)) void panel_whole(const struct dot_call *c, int rows, int count)
{
    struct panel p;
    const int whole = c->in / KERNEL_BLOCK;
    int most = PANEL_ROW_BYTES / (c->in * 2);
    most = most < PANEL_ROWS_LEAST ? PANEL_ROWS_LEAST : most;
    most = most < PANEL_ROWS_MOST ? most : PANEL_ROWS_MOST;
    const int turns = (rows + most - 1) / most;
    for (int i = 0; i < turns; i++) {
        const int r0 = (int)((int64_t)rows * i / turns);
        const int end = (int)((int64_t)rows * (i + 1) / turns);
        for (int o = 0; o < count; o += PANEL_OUTPUTS) {
            const uint8_t *w = c->w + (size_t)o * c->w_stride;
            for (int b0 = 0; b0 < whole; b0 += PANEL_BLOCKS) {
                const int left = whole - b0, blocks = left < PANEL_BLOCKS ? left : PANEL_BLOCKS;
                const bool last = blocks == left;
                panel_fill(&p, w + 64 * (size_t)b0, c->w_stride, blocks);
                const int after = last ? whole : left - blocks;
                const int width = after < PANEL_BLOCKS ? after : PANEL_BLOCKS;
                struct panel_next next = {.at =
                                              (uintptr_t)w + (last ? PANEL_OUTPUTS * c->w_stride
                                                                   : 64 * (uintptr_t)(b0 + blocks)),
                                          .stride = c->w_stride,
                                          .width = width,
                                          .left = PANEL_OUTPUTS * width};
                panel_rows(c, &p, r0, end - r0, o, b0, blocks, b0 == 0, last, &next);
            }
        }
    }
}

static void panel_bf16(const struct dot_call *c, int rows, int count)
{
    const int whole = c->in % KERNEL_BLOCK == 0 ? count / PANEL_OUTPUTS * PANEL_OUTPUTS : 0;
    struct dot_call rest = *c;
    rest.w += (size_t)whole * c->w_stride;
    rest.y += whole;
    if (whole > 0)
        panel_whole(c, rows, whole);
    if (whole < count)
        packed_bf16(&rest, rows, count - whole);
}
