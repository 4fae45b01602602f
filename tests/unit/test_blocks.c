/* blocks.h: a row's result is the same bits for any rows per call, threads, instruction set, ring
 * and history of rewinding; and blocks do what the model's equations say on small cases. */
#include "compute_random.h"
#include "engine/compute/cpu/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { MAX_ROWS = 64, POSITIONS = 800, LAYERS = 2, EXPERTS_MOST = 8 };

/* ---- A small random model: two layers, one windowed, one full; dense, then sparse ---- */

struct sizes {
    int hidden, heads, kv_heads, head_dim, window, rotary;
    int dense, width, shared, experts, top_k, vocab;
    bool normalize;
    enum weight_format attention_format, expert_format;
    float input_scale, routed_scale;
};

struct model {
    struct sizes s;
    struct weight_matrix embedding;
    struct rope_table rope;
    struct attention_block attention[LAYERS];
    struct ffn_block ffn[LAYERS];
    struct mlp_weights expert[EXPERTS_MOST];
    struct head_block head;
    void *memory[128];
    int used;
};

static void *keep(struct model *m, size_t size)
{
    assert_in_range(m->used, 0, 127);
    return m->memory[m->used++] = malloc(size);
}

static uint16_t *random_norm(struct model *m, struct random *r, int n)
{
    uint16_t *w = keep(m, (size_t)n * 2);
    for (int i = 0; i < n; i++)
        w[i] = f32_to_bf16(1.0f + random_float(r) * 0.3f);
    return w;
}

static struct weight_matrix random_matrix(struct model *m, struct random *r,
                                          enum weight_format format, int out, int in)
{
    struct weight_matrix w = {.format = format, .out = out, .in = in};
    const size_t n = (size_t)out * (size_t)in;
    const float size = 1.7f / sqrtf((float)in);
    if (format == WEIGHT_BF16) {
        uint16_t *data = keep(m, n * 2);
        for (size_t i = 0; i < n; i++)
            data[i] = f32_to_bf16(random_float(r) * size);
        w.data = data;
        return w;
    }
    if (format == WEIGHT_INT8_AFFINE32) {
        float *x = malloc(n * sizeof *x);
        uint8_t *bytes = keep(m, n);
        uint16_t *scale = keep(m, n / 16), *bias = keep(m, n / 16);
        for (size_t i = 0; i < n; i++)
            x[i] = to_bf16(random_float(r) * size);
        assert_true(affine_quantize(x, n, bytes, scale, bias));
        free(x);
        w.data = bytes;
        w.scales = (const uint8_t *)scale;
        w.biases = (const uint8_t *)bias;
        return w;
    }
    uint8_t *codes = keep(m, n / 2), *scales = keep(m, n / 16);
    for (size_t i = 0; i < n / 2; i++)
        codes[i] = (uint8_t)random_next(r);
    for (size_t i = 0; i < n / 16; i++)
        scales[i] = e4m3_encode(size * 0.3f * (1.0f + random_float(r) * 0.5f));
    w.data = codes;
    w.scales = scales;
    return w;
}

static struct mlp_weights random_mlp(struct model *m, struct random *r, enum weight_format format,
                                     int width)
{
    return (struct mlp_weights){.gate = random_matrix(m, r, format, width, m->s.hidden),
                                .up = random_matrix(m, r, format, width, m->s.hidden),
                                .down = random_matrix(m, r, format, m->s.hidden, width)};
}

static struct model *model_new(const struct sizes *s, uint64_t seed)
{
    struct model *m = calloc(1, sizeof *m);
    struct random r = {seed};
    m->s = *s;
    const int half = s->rotary / 2;
    float *cosine = keep(m, (size_t)POSITIONS * (size_t)half * sizeof *cosine);
    float *sine = keep(m, (size_t)POSITIONS * (size_t)half * sizeof *sine);
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < half; i++) {
            const double angle = p * pow(1000.0, -2.0 * i / s->rotary);
            cosine[p * half + i] = (float)cos(angle);
            sine[p * half + i] = (float)sin(angle);
        }
    m->rope = (struct rope_table){.dim = s->rotary,
                                  .positions = POSITIONS,
                                  .cosine = cosine,
                                  .sine = sine,
                                  .input_scale = s->input_scale};
    m->embedding = random_matrix(m, &r, WEIGHT_BF16, s->vocab, s->hidden);
    const int wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    for (int i = 0; i < LAYERS; i++)
        m->attention[i] = (struct attention_block){
            .heads = s->heads,
            .kv_heads = s->kv_heads,
            .head_dim = s->head_dim,
            .window = i == 0 ? s->window : 0,
            .eps = 1e-6f,
            .input_norm = random_norm(m, &r, s->hidden),
            .q_norm = random_norm(m, &r, s->head_dim),
            .k_norm = random_norm(m, &r, s->head_dim),
            .q = random_matrix(m, &r, s->attention_format, wide, s->hidden),
            .k = random_matrix(m, &r, WEIGHT_BF16, narrow, s->hidden),
            .v = random_matrix(m, &r, s->attention_format, narrow, s->hidden),
            .o = random_matrix(m, &r, s->attention_format, s->hidden, wide),
            .gate = random_matrix(m, &r, s->attention_format, s->heads, s->hidden),
            .rope = &m->rope};
    m->ffn[0] = (struct ffn_block){.eps = 1e-6f, .norm = random_norm(m, &r, s->hidden)};
    m->ffn[0].dense = random_mlp(m, &r, WEIGHT_BF16, s->dense);
    for (int e = 0; e < s->experts; e++)
        m->expert[e] = random_mlp(m, &r, s->expert_format, s->width);
    float *bias = keep(m, (size_t)s->experts * sizeof *bias);
    for (int e = 0; e < s->experts; e++)
        bias[e] = random_float(&r) * 0.2f;
    m->ffn[1] = (struct ffn_block){.eps = 1e-6f,
                                   .norm = random_norm(m, &r, s->hidden),
                                   .sparse = true,
                                   .experts = s->experts,
                                   .top_k = s->top_k,
                                   .normalize_top_k = s->normalize,
                                   .routed_scale = s->routed_scale,
                                   .selection_bias = bias,
                                   .expert = m->expert,
                                   .has_shared = s->shared > 0};
    m->ffn[1].router = random_matrix(m, &r, WEIGHT_BF16, s->experts, s->hidden);
    if (s->shared > 0)
        m->ffn[1].shared = random_mlp(m, &r, s->expert_format, s->shared);
    m->head = (struct head_block){.eps = 1e-6f,
                                  .norm = random_norm(m, &r, s->hidden),
                                  .output = random_matrix(m, &r, WEIGHT_BF16, s->vocab, s->hidden)};
    return m;
}

static void model_free(struct model *m)
{
    for (int i = 0; i < m->used; i++)
        free(m->memory[i]);
    free(m);
}

static struct compute_shape shape_of(const struct sizes *s, int max_rows)
{
    int widest = s->dense > s->width ? s->dense : s->width;
    widest = widest > s->shared ? widest : s->shared;
    return (struct compute_shape){.max_rows = max_rows,
                                  .hidden = s->hidden,
                                  .vocab = s->vocab,
                                  .max_heads = s->heads,
                                  .max_kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .max_ffn_width = widest,
                                  .max_experts = s->experts,
                                  .max_top_k = s->top_k};
}

/* ---- Running it ---- */

struct runner {
    const struct model *m;
    struct compute *c;
    struct kv_layer *kv[LAYERS];
};

/* cpu: the name of its kernels, or "cuda". */
static struct runner runner_new(const struct model *m, const char *cpu, int threads,
                                enum activations a, int max_rows)
{
    struct runner run = {.m = m};
    struct error err;
    const bool cuda = cpu != NULL && strcmp(cpu, "cuda") == 0;
    const struct compute_options options = {.backend = cuda ? "cuda" : NULL,
                                            .threads = threads,
                                            .cpu = cuda ? NULL : cpu,
                                            .activations = a};
    const struct compute_shape shape = shape_of(&m->s, max_rows);
    if (!compute_new(&options, &shape, &run.c, &err))
        fail_msg("%s: %s", err.name, err.message);
    if (!cuda) {
        run.c->cost_alone = 0; /* small as the blocks are, share them out */
        run.c->cost_per_thread = 1;
    }
    assert_true(compute_prepare_embedding(run.c, &m->embedding, &err));
    for (int i = 0; i < LAYERS; i++)
        assert_true(compute_prepare_attention(run.c, &m->attention[i], &err) &&
                    compute_prepare_ffn(run.c, &m->ffn[i], &err));
    assert_true(compute_prepare_head(run.c, &m->head, &err));
    for (int i = 0; i < LAYERS; i++) {
        const int window = m->attention[i].window;
        const int64_t capacity = window > 0 ? window + max_rows - 1 : POSITIONS;
        assert_true(kv_layer_new(run.c, m->s.kv_heads, m->s.head_dim, capacity, &run.kv[i], &err));
    }
    return run;
}

static void runner_free(struct runner *run)
{
    for (int i = 0; i < LAYERS; i++)
        kv_layer_free(run->kv[i]);
    compute_free(run->c);
}

/* Logits [rows, vocab] and the final stream [rows, hidden]. */
static void runner_step(struct runner *run, const int32_t *ids, int64_t position, int rows,
                        float *logits, float *stream)
{
    const struct compute_forward f = {.owner = run,
                                      .ids = ids,
                                      .pos0 = position,
                                      .rows = rows,
                                      .logit_rows = rows,
                                      .logits = logits};
    struct error err;
    if (!compute_begin(run->c, &f)) {
        compute_embed(run->c, &run->m->embedding, ids, rows);
        for (int i = 0; i < LAYERS; i++) {
            compute_attention(run->c, &run->m->attention[i], run->kv[i], position, rows);
            compute_ffn(run->c, &run->m->ffn[i], rows);
        }
        compute_head(run->c, &run->m->head, 0, rows, logits, NULL);
    }
    if (!compute_end(run->c, &err))
        fail_msg("%s: %s", err.name, err.message);
    compute_read_rows(run->c, 0, rows, stream);
}

struct outcome {
    int positions;
    float *logits, *stream; /* [positions, vocab], [positions, hidden] */
};

static struct outcome outcome_new(const struct model *m, int positions)
{
    struct outcome o = {.positions = positions};
    o.logits = calloc((size_t)positions * (size_t)m->s.vocab, sizeof *o.logits);
    o.stream = calloc((size_t)positions * (size_t)m->s.hidden, sizeof *o.stream);
    return o;
}

static void outcome_free(struct outcome *o)
{
    free(o->logits);
    free(o->stream);
}

/* most_rows 1: serial. Otherwise blocks of random size, some of them first tried with other tokens
 * and taken back, wholly or after the first few rows, as a drafter's would be. */
static void run_all(const struct model *m, const char *cpu, int threads, enum activations a,
                    int most_rows, const int32_t *ids, struct random *r, struct outcome *o)
{
    struct runner run = runner_new(m, cpu, threads, a, most_rows);
    const size_t vocab = (size_t)m->s.vocab, hidden = (size_t)m->s.hidden;
    float *spare = malloc((size_t)MAX_ROWS * (vocab + hidden) * sizeof *spare);
    for (int p = 0; p < o->positions;) {
        int rows = most_rows == 1 ? 1 : random_int(r, 1, most_rows);
        if (rows > o->positions - p)
            rows = o->positions - p;
        int right = 0; /* rows of the first try that were not wrong */
        if (most_rows > 1 && random_int(r, 0, 2) == 0) {
            int32_t tried[MAX_ROWS];
            right = random_int(r, 0, rows - 1);
            for (int i = 0; i < rows; i++)
                tried[i] = i < right ? ids[p + i] : random_int(r, 0, m->s.vocab - 1);
            runner_step(&run, tried, p, rows, spare, spare + (size_t)MAX_ROWS * vocab);
        }
        runner_step(&run, ids + p, p, rows, o->logits + (size_t)p * vocab,
                    o->stream + (size_t)p * hidden);
        assert_true(same_floats(spare, o->logits + (size_t)p * vocab, (size_t)right * vocab));
        p += rows;
    }
    free(spare);
    runner_free(&run);
}

static void check_model(const struct sizes *s, enum activations a, int positions, uint64_t seed)
{
    struct model *m = model_new(s, seed);
    struct random r = {seed + 1};
    int32_t ids[POSITIONS];
    for (int i = 0; i < positions; i++)
        ids[i] = random_int(&r, 0, s->vocab - 1);
    struct outcome expected = outcome_new(m, positions), got = outcome_new(m, positions);
    const size_t logits = (size_t)positions * (size_t)s->vocab;
    const size_t stream = (size_t)positions * (size_t)s->hidden;
    run_all(m, "portable", 1, a, 1, ids, &r, &expected);
    for (size_t i = 0; i < logits; i++)
        assert_true(isfinite(expected.logits[i]));

    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    static const int most_rows[] = {1, 7, 17, MAX_ROWS};
    for (int k = 0; k < count; k++)
        for (int threads = 1; threads <= 4; threads++) {
            const int most = most_rows[(k + threads) % 4];
            if (k == 0 && threads == 1)
                continue;
            run_all(m, have[k]->name, threads, a, most, ids, &r, &got);
            if (!same_floats(got.stream, expected.stream, stream) ||
                !same_floats(got.logits, expected.logits, logits))
                fail_msg("%s, %d threads, blocks of up to %d rows, mode %d", have[k]->name, threads,
                         most, (int)a);
        }
#ifdef MLXFAST_CUDA
    for (int i = 0; i < 4 && a == ACTIVATIONS_BF16; i++) {
        run_all(m, "cuda", 1, a, most_rows[i], ids, &r, &got);
        if (!same_floats(got.stream, expected.stream, stream) ||
            !same_floats(got.logits, expected.logits, logits))
            fail_msg("cuda, blocks of up to %d rows", most_rows[i]);
    }
#endif
    outcome_free(&expected);
    outcome_free(&got);
    model_free(m);
}

static const struct sizes ragged = {.hidden = 80,
                                    .heads = 6,
                                    .kv_heads = 2,
                                    .head_dim = 48,
                                    .window = 70,
                                    .rotary = 24,
                                    .dense = 100,
                                    .width = 48,
                                    .shared = 32,
                                    .experts = 5,
                                    .top_k = 2,
                                    .vocab = 50,
                                    .normalize = true,
                                    .expert_format = WEIGHT_NVFP4,
                                    .input_scale = 1.3465735903f,
                                    .routed_scale = 2.5f};

static const struct sizes plain = {.hidden = 64,
                                   .heads = 4,
                                   .kv_heads = 1,
                                   .head_dim = 32,
                                   .window = 300,
                                   .rotary = 32,
                                   .dense = 64,
                                   .width = 33,
                                   .experts = 8,
                                   .top_k = 1,
                                   .vocab = 32,
                                   .expert_format = WEIGHT_BF16,
                                   .input_scale = 1.0f,
                                   .routed_scale = 1.0f};

/* k stays bf16: the inputs of a layer may have both formats. */
static const struct sizes int8 = {.hidden = 96,
                                  .heads = 6,
                                  .kv_heads = 2,
                                  .head_dim = 48,
                                  .window = 70,
                                  .rotary = 24,
                                  .dense = 100,
                                  .width = 48,
                                  .shared = 32,
                                  .experts = 5,
                                  .top_k = 2,
                                  .vocab = 50,
                                  .normalize = true,
                                  .attention_format = WEIGHT_INT8_AFFINE32,
                                  .expert_format = WEIGHT_NVFP4,
                                  .input_scale = 1.0f,
                                  .routed_scale = 2.5f};

static void one_arithmetic_with_int8(void **state)
{
    (void)state;
    check_model(&int8, ACTIVATIONS_BF16, 200, 8);
    check_model(&int8, ACTIVATIONS_F32, 100, 9);
}

static void one_arithmetic_over_chunks(void **state)
{
    (void)state;
    check_model(&plain, ACTIVATIONS_BF16, POSITIONS, 3);
}

static void one_arithmetic_ragged(void **state)
{
    (void)state;
    check_model(&ragged, ACTIVATIONS_BF16, 300, 5);
}

static void one_arithmetic_in_float32(void **state)
{
    (void)state;
    check_model(&ragged, ACTIVATIONS_F32, 300, 6);
    check_model(&plain, ACTIVATIONS_F32, 100, 7);
}

static void many_heads_and_experts(void **state)
{
    (void)state;
    struct sizes s = ragged;
    s.heads = 20; /* more than eight query heads of one key/value head */
    s.kv_heads = 2;
    s.head_dim = 16;
    s.rotary = 16;
    s.experts = 8;
    s.top_k = 8; /* all of them */
    s.shared = 0;
    check_model(&s, ACTIVATIONS_BF16, 150, 8);
}

/* ---- Rows of one call that do not start at the stream's first ---- */

static void head_of_some_rows(void **state)
{
    (void)state;
    struct model *m = model_new(&ragged, 9);
    struct runner run = runner_new(m, NULL, 2, ACTIVATIONS_BF16, 16);
    const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float all[8 * 50], some[3 * 50];
    compute_embed(run.c, &m->embedding, ids, 8);
    compute_attention(run.c, &m->attention[0], run.kv[0], 0, 8);
    compute_head(run.c, &m->head, 0, 8, all, NULL);
    compute_head(run.c, &m->head, 5, 3, some, NULL);
    assert_memory_equal(some, all + 5 * 50, sizeof some);
    float row[80], second[80];
    compute_embed(run.c, &m->embedding, ids, 2);
    compute_read_rows(run.c, 1, 1, row);
    compute_embed(run.c, &m->embedding, ids + 1, 1);
    compute_read_rows(run.c, 0, 1, second);
    assert_memory_equal(row, second, sizeof row);
    for (int i = 0; i < 80; i++) {
        uint16_t b;
        memcpy(&b, (const uint8_t *)m->embedding.data + (2 * 80 + i) * 2, 2);
        assert_true(row[i] == bf16_to_f32(b));
    }
    runner_free(&run);
    model_free(m);
}

/* ---- The largest two of each row, whatever the cut over threads and pieces ---- */

static struct head_pick picked_by_hand(const float *logits, int n)
{
    struct head_pick p = {{-1, -1}, {-INFINITY, -INFINITY}};
    for (int place = 0; place < 2; place++)
        for (int i = n - 1; i >= 0; i--)
            if (!isnan(logits[i]) && !(place == 1 && i == p.token[0]) &&
                (p.token[place] < 0 || logits[i] >= p.logit[place])) {
                p.token[place] = i;
                p.logit[place] = logits[i];
            }
    return p;
}

static void check_picks(const struct head_block *head, const char *cpu, int threads,
                        enum activations a)
{
    enum { ROWS = 17, HIDDEN = 32 };
    const int vocab = head->output.out;
    const struct compute_options options = {.threads = threads, .cpu = cpu, .activations = a};
    const struct compute_shape shape = {.max_rows = ROWS,
                                        .hidden = HIDDEN,
                                        .vocab = vocab,
                                        .max_heads = 1,
                                        .max_kv_heads = 1,
                                        .head_dim = 16,
                                        .max_ffn_width = 16};
    uint16_t rows[ROWS * HIDDEN];
    const struct weight_matrix table = {WEIGHT_BF16, ROWS, HIDDEN, rows, NULL, NULL};
    int32_t ids[ROWS];
    struct compute *c;
    struct error err;
    for (int r = 0; r < ROWS; r++) {
        ids[r] = r;
        for (int i = 0; i < HIDDEN; i++) /* only the first two inputs matter: their sign, which */
            rows[r * HIDDEN + i] = f32_to_bf16(i == r % 2 ? (r % 4 < 2 ? 3.0f : -3.0f) : 0.0f);
    }
    assert_true(compute_new(&options, &shape, &c, &err));
    c->cost_alone = 0;
    c->cost_per_thread = 1;
    float *logits = malloc(2 * ROWS * (size_t)vocab * sizeof *logits);
    float *without = logits + (size_t)ROWS * (size_t)vocab;
    for (int count = 1; count <= ROWS; count += count < 9 ? 1 : 4) {
        const int first = ROWS - count;
        struct head_pick picks[ROWS];
        compute_embed(c, &table, ids, ROWS);
        compute_head(c, head, first, count, logits, picks);
        compute_head(c, head, first, count, without, NULL);
        assert_memory_equal(logits, without, (size_t)(count * vocab) * sizeof *logits);
        for (int r = 0; r < count; r++) {
            const struct head_pick want = picked_by_hand(logits + (size_t)(r * vocab), vocab);
            assert_int_equal(picks[r].token[0], want.token[0]);
            assert_int_equal(picks[r].token[1], want.token[1]);
            assert_true(picks[r].logit[0] == want.logit[0] && picks[r].logit[1] == want.logit[1]);
        }
    }
    free(logits);
    compute_free(c);
}

static void head_picks_the_largest_two(void **state)
{
    (void)state;
    enum { HIDDEN = 32, MOST = 1000 };
    static const int vocabs[] = {1, 2, 7, 50, 128, 131, 640, MOST};
    static uint16_t weights[MOST * HIDDEN], norm[HIDDEN];
    struct random r = {23};
    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    for (int i = 0; i < HIDDEN; i++)
        norm[i] = f32_to_bf16(1.0f);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (int kind = 0; kind < 5; kind++) {
            const struct head_block head = {
                1e-6f, norm, {WEIGHT_BF16, vocabs[v], HIDDEN, weights, NULL, NULL}};
            for (int o = 0; o < vocabs[v]; o++)
                for (int i = 0; i < HIDDEN; i++) {
                    /* ties everywhere; ascending; few numbers; none; infinite ones */
                    float w = kind == 1 ? (float)o : (float)random_int(&r, -2, 2);
                    const int odd = random_int(&r, 0, 30);
                    if (kind == 3 || (kind == 2 && odd != 0))
                        w = NAN;
                    else if (kind == 4 && odd < 2)
                        w = odd == 0 ? INFINITY : NAN;
                    weights[o * HIDDEN + i] = f32_to_bf16(i < 2 ? w : 0.0f);
                }
            for (int k = 0; k < count; k++)
                for (int threads = 1; threads <= 4; threads++)
                    check_picks(&head, have[k]->name, threads,
                                threads % 2 ? ACTIVATIONS_BF16 : ACTIVATIONS_F32);
        }
}

/* ---- Router: ties, order, bias for selection only ---- */

struct router_case {
    float logit[EXPERTS_MOST], bias[EXPERTS_MOST];
    int chosen[4];
};

static void router_by_hand(void **state)
{
    (void)state;
    /* The normed row is ones, and expert e's router weights add up to logit[e]. Selection in
     * descending key, ties to the lower index, NaN last. */
    static const struct router_case cases[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0}, {0}, {0, 1, 2, 3}},
        {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0.5f, 0, 0, 0.5f, 0.25f}, {3, 6, 7, 0}},
        {{-1, 2, 1, 2, -1, 3, 3, 1}, {0}, {5, 6, 1, 3}},
        {{4, 0, 0, 0, 0, 0, 0, 0}, {-1, 0, 0, 0, 0, 0, 0, 0}, {1, 2, 3, 4}},
        {{1, NAN, 1, 1, 0, 0, 0, 0}, {0}, {0, 2, 3, 4}},
    };
    struct sizes s = plain;
    s.top_k = 4;
    s.normalize = true;
    s.width = 16;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct router_case *k = &cases[i];
        struct model *m = model_new(&s, 10);
        uint16_t ones[64], router[EXPERTS_MOST * 64] = {0};
        for (int j = 0; j < 64; j++)
            ones[j] = f32_to_bf16(1.0f);
        for (int e = 0; e < EXPERTS_MOST; e++)
            router[e * 64 + e] = f32_to_bf16(k->logit[e]);
        const struct weight_matrix table = {
            .format = WEIGHT_BF16, .out = 1, .in = 64, .data = ones};
        struct ffn_block b = m->ffn[1];
        b.eps = 0.0f;
        b.norm = ones;
        b.router.data = router;
        b.selection_bias = k->bias;
        for (int threads = 1; threads <= 2; threads++) {
            struct runner run = runner_new(m, NULL, threads, ACTIVATIONS_BF16, 4);
            const int32_t ids[2] = {0, 0};
            for (int rows = 1; rows <= 2; rows++) {
                compute_embed(run.c, &table, ids, rows);
                compute_ffn(run.c, &b, rows);
                for (int r = 0; r < rows; r++) {
                    float sum = 0.0f;
                    for (int j = 0; j < 4; j++) {
                        assert_int_equal(run.c->chosen[r * 4 + j], k->chosen[j]);
                        const float z = k->logit[k->chosen[j]];
                        sum += 1.0f / (1.0f + expf(-z));
                    }
                    for (int j = 0; j < 4; j++) {
                        const float z = k->logit[k->chosen[j]];
                        const float w = 1.0f / (1.0f + expf(-z)) / sum;
                        /* unbiased scores; bf16 has 8 bits */
                        assert_true(fabsf(run.c->mix[r * 4 + j] - w) <= w / 256.0f);
                    }
                }
            }
            runner_free(&run);
        }
        model_free(m);
    }
}

/* ---- One row, one key: attention is v times the gate, worked out by hand ---- */

static void attention_of_the_first_token(void **state)
{
    (void)state;
    enum { HIDDEN = 32, DIM = 16 };
    /* x is ones, so norm(x) is ones; v picks weight 1/32 * 32 ones = 1, the gate's logit is 0, so
     * softplus is ln 2 = 0.69140625 in bf16; o copies head value d to hidden d and 16 + d. */
    uint16_t ones[HIDDEN], even[DIM * HIDDEN], zero[HIDDEN] = {0}, copy[HIDDEN * DIM] = {0};
    for (int i = 0; i < HIDDEN; i++)
        ones[i] = f32_to_bf16(1.0f);
    for (int i = 0; i < DIM * HIDDEN; i++)
        even[i] = f32_to_bf16(1.0f / 32.0f);
    for (int i = 0; i < HIDDEN; i++)
        copy[i * DIM + i % DIM] = f32_to_bf16(1.0f);
    float cosine[1] = {1}, sine[1] = {0};
    const struct rope_table rope = {
        .dim = 2, .positions = 1, .cosine = cosine, .sine = sine, .input_scale = 1.0f};
    const struct weight_matrix table = {.out = 1, .in = HIDDEN, .data = ones};
    const struct weight_matrix narrow = {.out = DIM, .in = HIDDEN, .data = even};
    const struct attention_block b = {.heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .eps = 0.0f,
                                      .input_norm = ones,
                                      .q_norm = ones,
                                      .k_norm = ones,
                                      .q = narrow,
                                      .k = narrow,
                                      .v = narrow,
                                      .o = {.out = HIDDEN, .in = DIM, .data = copy},
                                      .gate = {.out = 1, .in = HIDDEN, .data = zero},
                                      .rope = &rope};
    const struct compute_shape shape = {.max_rows = 1,
                                        .hidden = HIDDEN,
                                        .vocab = 1,
                                        .max_heads = 1,
                                        .max_kv_heads = 1,
                                        .head_dim = DIM,
                                        .max_ffn_width = 1};
    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    for (int k = 0; k < count; k++) {
        const struct compute_options options = {.threads = 1, .cpu = have[k]->name};
        struct error err;
        struct compute *c;
        struct kv_layer *kv;
        assert_true(compute_new(&options, &shape, &c, &err));
        assert_true(kv_layer_new(c, 1, DIM, 1, &kv, &err));
        const int32_t id = 0;
        float x[HIDDEN];
        compute_embed(c, &table, &id, 1);
        compute_attention(c, &b, kv, 0, 1);
        compute_read_rows(c, 0, 1, x);
        for (int i = 0; i < HIDDEN; i++)
            assert_true(x[i] == 1.6875f); /* 1 + 0.69140625 to the nearest bf16 */
        kv_layer_free(kv);
        compute_free(c);
    }
}

/* ---- Making a backend ---- */

static void names_and_refusals(void **state)
{
    (void)state;
    const struct compute_shape shape = shape_of(&plain, 4);
    struct error err;
    struct compute *c;
    struct compute_options options = {.threads = 3, .cpu = "portable"};
    assert_true(compute_new(&options, &shape, &c, &err));
    assert_string_equal(compute_name(c), "cpu portable, 3 threads");
    assert_string_equal(compute_cpu_name(c), "portable");
    assert_int_equal(compute_threads(c), 3);
    struct kv_layer *kv;
    assert_true(kv_layer_new(c, 2, 48, 100, &kv, &err));
    assert_int_equal(kv_layer_bytes(kv), 2 * 100 * (64 + 48) * 2); /* keys padded to 32s */
    kv_layer_free(kv);
    assert_false(kv_layer_new(c, 8, 128, INT64_MAX / 4, &kv, &err));
    assert_string_equal(err.name, "OUT-OF-MEMORY");
    compute_free(c);

    static const char *const lacking[] = {
        "neon",
        "avx9",
        "",
        "AVX2",
#if defined(__aarch64__)
        "avx2"
#else
        "neon"
#endif
    };
#if defined(__aarch64__)
    const size_t first = 1;
#else
    const size_t first = 0;
#endif
    for (size_t i = first; i < sizeof lacking / sizeof lacking[0]; i++) {
        options.cpu = lacking[i];
        assert_false(compute_new(&options, &shape, &c, &err));
        assert_null(c);
        assert_string_equal(err.name, "CPU-UNSUPPORTED");
        assert_string_equal(err.value, lacking[i]);
        assert_string_equal(err.field, "cpu");
    }

    options.cpu = NULL;
    assert_int_equal(setenv("BENCH_WORKER_CPU", "portable", 1), 0);
    assert_int_equal(unsetenv("MLXFAST_CPU"), 0);
    assert_true(compute_new(&options, &shape, &c, &err));
    assert_string_equal(compute_cpu_name(c), "portable");
    compute_free(c);
    assert_int_equal(setenv("MLXFAST_CPU", "abacus", 1), 0); /* goes before the other */
    assert_false(compute_new(&options, &shape, &c, &err));
    assert_string_equal(err.name, "CPU-UNSUPPORTED");
    assert_string_equal(err.value, "abacus");
    assert_string_equal(err.field, "MLXFAST_CPU");
    options.cpu = "portable"; /* the caller's choice goes before both */
    assert_true(compute_new(&options, &shape, &c, &err));
    compute_free(c);
    options.cpu = NULL;
    assert_int_equal(setenv("MLXFAST_CPU", "", 1), 0);
    assert_int_equal(unsetenv("BENCH_WORKER_CPU"), 0);
    assert_true(compute_new(&options, &shape, &c, &err)); /* nothing asked: the best */
    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    assert_string_equal(compute_cpu_name(c), have[count - 1]->name);
    compute_free(c);

    struct compute_shape bad = shape;
    bad.hidden = 0;
    assert_false(compute_new(&options, &bad, &c, &err));
    bad = shape;
    bad.max_rows = 1 << 24;
    bad.max_ffn_width = 1 << 24; /* more than any machine has */
    assert_false(compute_new(&options, &bad, &c, &err));
    assert_string_equal(err.name, "OUT-OF-MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_refusals),           cmocka_unit_test(router_by_hand),
        cmocka_unit_test(attention_of_the_first_token), cmocka_unit_test(head_of_some_rows),
        cmocka_unit_test(head_picks_the_largest_two),   cmocka_unit_test(one_arithmetic_ragged),
        cmocka_unit_test(one_arithmetic_over_chunks),   cmocka_unit_test(one_arithmetic_in_float32),
        cmocka_unit_test(one_arithmetic_with_int8),     cmocka_unit_test(many_heads_and_experts),
    };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
