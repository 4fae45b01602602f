/* Weights on the device against an order written here anew from the words of cuda.h: every format,
 * odd sizes and addresses, runs, experts, sharing, letting go, and every call that can fail.
 *
 *     test_cuda_upload                 the checks; in an emulated build also each call failing
 *     test_cuda_upload --time [GB]     uploads so much from memory (8) and prints the rate
 *     test_cuda_upload --time-file F   the same from the file F, dropped from the page cache before
 */
#include "check.h"
#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/staging.h"

extern "C" {
#include "base/child.h"
}

#ifdef CUDA_EMULATED
#include "emulator.h"
#endif

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t seed = 20261130;

static uint32_t random32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* Random bytes at an address that is odd where `skew` says so. Never freed: sharing goes by
 * address. */
static uint8_t *random_bytes(size_t bytes, int skew)
{
    uint8_t *p = (uint8_t *)malloc(bytes + 64) + skew;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)random32();
    return p;
}

/* ---- The order of cuda.h, element by element ---- */

static int inputs_of_group(enum weight_format f)
{
    return f == WEIGHT_BF16 ? 128 : f == WEIGHT_NVFP4 ? 512 : 256;
}

static int padded_of(enum weight_format f, int in)
{
    const int g = inputs_of_group(f);
    return (in + g - 1) / g * g;
}

static size_t host_row(enum weight_format f, int in)
{
    return f == WEIGHT_BF16 ? (size_t)in * 2 : f == WEIGHT_NVFP4 ? (size_t)in / 2 : (size_t)in;
}

static size_t host_scale_row(enum weight_format f, int in)
{
    return f == WEIGHT_BF16 ? 0 : f == WEIGHT_NVFP4 ? (size_t)in / 16 : (size_t)in / 32 * 2;
}

/* "per output, groups of n blocks: [group][lane 16][block n][2]" */
static void expect_row(enum weight_format f, const uint8_t *row, int in, uint8_t *out)
{
    const int blocks = inputs_of_group(f) / 32;
    size_t at = 0;
    for (int group = 0; group < padded_of(f, in) / inputs_of_group(f); group++)
        for (int lane = 0; lane < 16; lane++)
            for (int block = 0; block < blocks; block++) {
                uint8_t nibbles[2] = {0, 0};
                for (int e = 0; e < 2; e++) {
                    const int k = 32 * (group * blocks + block) + 2 * lane + e;
                    const bool there = k < in;
                    if (f == WEIGHT_BF16) {
                        out[at++] = there ? row[2 * k] : 0;
                        out[at++] = there ? row[2 * k + 1] : 0;
                    } else if (f == WEIGHT_INT8_AFFINE32) {
                        out[at++] = there ? row[k] : 0;
                    } else if (there) {
                        /* code k of a row of 32-bit words, eight to a word, the first lowest */
                        nibbles[e] = row[k / 8 * 4 + k % 8 / 2] >> (k % 2 * 4) & 15;
                    }
                }
                if (f == WEIGHT_NVFP4)
                    out[at++] = (uint8_t)(nibbles[0] | nibbles[1] << 4);
            }
}

static void expect_scales(enum weight_format f, const uint8_t *row, int in, uint8_t *out)
{
    const int blocks = padded_of(f, in) / 32;
    size_t at = 0;
    if (f == WEIGHT_NVFP4)
        for (int half = 0; half < 2; half++)
            for (int b = 0; b < blocks; b++)
                out[at++] = 32 * b + 16 * half < in ? row[2 * b + half] : 0;
    else
        for (int b = 0; b < blocks; b++)
            for (int byte = 0; byte < 2; byte++)
                out[at++] = 32 * b < in ? row[2 * b + byte] : 0;
}

/* ---- The device ---- */

static struct {
    struct cuda_fault fault;
    cudaStream_t stream;
    struct cuda_weights *w;
} t;

static void open_weights(void)
{
    memset(&t, 0, sizeof t);
    CHECK(cuda_ok(&t.fault, cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), "stream"),
          "%s", t.fault.error.message);
    CHECK(cuda_weights_new(&t.fault, t.stream, &t.w), "%s", t.fault.error.message);
}

static void close_weights(void)
{
    cuda_weights_free(t.w);
    CHECK(cudaStreamDestroy(t.stream) == cudaSuccess, "stream");
}

/* On the instance's stream, with nothing waited for: what was copied before it is there. */
static bool same(const void *device, const void *expected, size_t bytes)
{
    uint8_t *got = (uint8_t *)malloc(bytes);
    memset(got, 0xa5, bytes);
    const bool read =
        cudaMemcpyAsync(got, device, bytes, cudaMemcpyDeviceToHost, t.stream) == cudaSuccess &&
        cudaStreamSynchronize(t.stream) == cudaSuccess;
    const bool equal = read && memcmp(got, expected, bytes) == 0;
    free(got);
    return equal;
}

static bool aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}

/* m holds the rows of h, and is aligned so; quiet: a failure is told by the caller. */
static bool matrix_is(const struct cuda_matrix *m, const struct weight_matrix *h)
{
    const size_t row = host_row(h->format, h->in), scale_row = host_scale_row(h->format, h->in);
    const int padded = padded_of(h->format, h->in);
    const size_t device_row = host_row(h->format, padded);
    const size_t device_scale_row = host_scale_row(h->format, padded);
    bool good = m->format == h->format && m->out == h->out && m->in == h->in &&
                m->padded == padded && m->row_bytes == device_row &&
                m->scale_bytes == device_scale_row && aligned(m->data, 256);
    uint8_t *expected = (uint8_t *)malloc(device_row * (size_t)h->out);
    for (int r = 0; r < h->out; r++)
        expect_row(h->format, (const uint8_t *)h->data + (size_t)r * row, h->in,
                   expected + (size_t)r * device_row);
    good = good && same(m->data, expected, device_row * (size_t)h->out);
    const uint8_t *const parts[2][2] = {{h->scales, m->scales}, {h->biases, m->biases}};
    for (int i = 0; i < (h->format == WEIGHT_BF16 ? 0 : h->format == WEIGHT_NVFP4 ? 1 : 2); i++) {
        for (int r = 0; r < h->out; r++)
            expect_scales(h->format, parts[i][0] + (size_t)r * scale_row, h->in,
                          expected + (size_t)r * device_scale_row);
        good = good && aligned(parts[i][1], 16) &&
               same(parts[i][1], expected, device_scale_row * (size_t)h->out);
    }
    free(expected);
    return good;
}

static struct weight_matrix random_matrix(enum weight_format f, int out, int in, int skew)
{
    struct weight_matrix m = {};
    m.format = f;
    m.out = out;
    m.in = in;
    m.data = random_bytes((size_t)out * host_row(f, in), skew);
    if (f != WEIGHT_BF16)
        m.scales = random_bytes((size_t)out * host_scale_row(f, in), (skew + 1) % 4);
    if (f == WEIGHT_INT8_AFFINE32)
        m.biases = random_bytes((size_t)out * host_scale_row(f, in), (skew + 3) % 4);
    return m;
}

static const uint16_t *random_norm(int n, int skew)
{
    return (const uint16_t *)random_bytes((size_t)n * 2, skew);
}

/* ---- Checks ---- */

static void check_formats(void)
{
    static const struct {
        enum weight_format format;
        int in[8];
    } sizes[] = {{WEIGHT_BF16, {1, 31, 33, 64, 127, 128, 200, 2048}},
                 {WEIGHT_NVFP4, {16, 48, 64, 512, 528, 1008, 1024, 2048}},
                 {WEIGHT_INT8_AFFINE32, {32, 64, 224, 256, 288, 512, 1056, 2048}}};
    static const int outs[] = {1, 3, 17, 64};
    open_weights();
    for (size_t f = 0; f < sizeof sizes / sizeof *sizes; f++)
        for (int i = 0; i < 8; i++)
            for (int o = 0; o < 4; o++) {
                struct head_block *b = (struct head_block *)calloc(1, sizeof *b);
                const int skew = (i + o) % 4, in = sizes[f].in[i];
                const uint64_t before = cuda_weights_bytes(t.w);
                b->output = random_matrix(sizes[f].format, outs[o], in, skew);
                b->norm = random_norm(in, 1 + skew % 2);
                CHECK(cuda_weights_take_head(t.w, b), "%s", t.fault.error.message);
                const struct cuda_head *h = cuda_weights_head(t.w, b);
                CHECK(h != NULL && h->block == b && matrix_is(&h->output, &b->output) &&
                          same(h->norm, b->norm, (size_t)in * 2),
                      "format %d, %d outputs, %d inputs", (int)sizes[f].format, outs[o], in);
                const uint64_t need =
                    cuda_matrix_bytes(sizes[f].format, outs[o], in) + (size_t)in * 2;
                const uint64_t took = cuda_weights_bytes(t.w) - before;
                CHECK(took >= need && took < need + 4 * 256, "%llu of %llu bytes",
                      (unsigned long long)took, (unsigned long long)need);
            }
    close_weights();
}

static struct mlp_weights random_mlp(enum weight_format f, int width, int hidden, int skew)
{
    struct mlp_weights m;
    m.gate = random_matrix(f, width, hidden, skew);
    m.up = random_matrix(f, width, hidden, (skew + 1) % 4);
    m.down = random_matrix(f, hidden, width, (skew + 2) % 4);
    return m;
}

static void check_attention(void)
{
    const enum weight_format B = WEIGHT_BF16, I = WEIGHT_INT8_AFFINE32;
    /* formats of q, k, v, gate, output; runs; appends; the run that k is in; rows before it */
    static const struct {
        enum weight_format f[5];
        int runs, appends, k_run;
        bool k_after_q;
    } cases[] = {{{B, B, B, B, B}, 1, 1, 0, true},  {{I, I, I, B, I}, 2, 1, 0, true},
                 {{I, B, B, B, B}, 2, 1, 1, false}, {{B, I, B, I, B}, 4, 2, 1, false},
                 {{I, I, B, B, I}, 2, 2, 0, true},  {{B, B, I, I, I}, 2, 2, 0, true}};
    enum { HIDDEN = 96, HEADS = 6, KV = 2, DIM = 32, POSITIONS = 37 };
    open_weights();
    struct rope_table *rope = (struct rope_table *)calloc(1, sizeof *rope);
    rope->dim = DIM / 2;
    rope->positions = POSITIONS;
    rope->cosine = (const float *)random_bytes(POSITIONS * DIM / 4 * 4, 0);
    rope->sine = (const float *)random_bytes(POSITIONS * DIM / 4 * 4, 0);
    rope->input_scale = 1.25f;
    const float *cosine = NULL;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct attention_block *b = (struct attention_block *)calloc(1, sizeof *b);
        b->heads = HEADS;
        b->kv_heads = KV;
        b->head_dim = DIM;
        b->rope = rope;
        b->input_norm = random_norm(HIDDEN, 1);
        b->q_norm = random_norm(DIM, 2);
        b->k_norm = random_norm(DIM, 3);
        b->q = random_matrix(cases[c].f[0], HEADS * DIM, HIDDEN, 0);
        b->k = random_matrix(cases[c].f[1], KV * DIM, HIDDEN, 1);
        b->v = random_matrix(cases[c].f[2], KV * DIM, HIDDEN, 2);
        b->gate = random_matrix(cases[c].f[3], HEADS, HIDDEN, 3);
        b->o = random_matrix(cases[c].f[4], HIDDEN, HEADS * DIM, 1);
        CHECK(cuda_weights_take_attention(t.w, b), "%s", t.fault.error.message);
        const struct cuda_attention *a = cuda_weights_attention(t.w, b);
        CHECK(a != NULL && a->block == b, "case %zu", c);
        if (a == NULL)
            continue;
        CHECK(a->projects == cases[c].runs && a->appends == cases[c].appends, "%d runs, %d appends",
              a->projects, a->appends);
        /* each matrix within its run */
        const struct weight_matrix *const all[] = {&b->q, &b->k, &b->v, &b->gate};
        int run = 0, row = 0;
        for (int i = 0; i < 4; i++) {
            if (i > 0 && all[i]->format != all[i - 1]->format) {
                CHECK(row == a->project[run].out, "%d outputs", a->project[run].out);
                run++;
                row = 0;
            }
            struct cuda_matrix m = a->project[run];
            m.data += (size_t)row * m.row_bytes;
            if (m.scales != NULL)
                m.scales += (size_t)row * m.scale_bytes;
            if (m.biases != NULL)
                m.biases += (size_t)row * m.scale_bytes;
            m.out = all[i]->out;
            CHECK(matrix_is(&m, all[i]), "case %zu, projection %d", c, i);
            row += all[i]->out;
        }
        CHECK(run + 1 == a->projects && row == a->project[run].out, "the last run");
        CHECK(a->append[0].data ==
                  a->project[cases[c].k_run].data +
                      (cases[c].k_after_q ? (size_t)b->q.out : 0) * a->append[0].row_bytes,
              "case %zu: k lies elsewhere", c);
        struct cuda_matrix k = a->append[0];
        CHECK(k.out == (a->appends == 1 ? 2 : 1) * b->k.out, "%d outputs of k", k.out);
        k.out = b->k.out;
        CHECK(matrix_is(&k, &b->k), "case %zu: k", c);
        if (a->appends == 2)
            CHECK(matrix_is(&a->append[1], &b->v), "case %zu: v", c);
        CHECK(matrix_is(&a->output, &b->o), "case %zu: output", c);
        CHECK(same(a->input_norm, b->input_norm, HIDDEN * 2) &&
                  same(a->q_norm, b->q_norm, DIM * 2) && same(a->k_norm, b->k_norm, DIM * 2),
              "case %zu: norms", c);
        CHECK(a->rotary == rope->dim && a->input_scale == 1.25f &&
                  same(a->cosine, rope->cosine, POSITIONS * DIM / 4 * 4) &&
                  same(a->sine, rope->sine, POSITIONS * DIM / 4 * 4),
              "case %zu: tables", c);
        CHECK(cosine == NULL || cosine == a->cosine, "a table that was there was copied again");
        cosine = a->cosine;
    }
    close_weights();
}

/* One tensor for all experts, as files have them, or each expert's own. */
static void random_experts(struct mlp_weights *e, int experts, enum weight_format f, int width,
                           int hidden, bool contiguous)
{
    const struct mlp_weights all = random_mlp(f, width * experts, hidden, 1);
    struct weight_matrix down = random_matrix(f, hidden * experts, width, 3);
    for (int i = 0; i < experts; i++) {
        if (!contiguous) {
            e[i] = random_mlp(f, width, hidden, i % 4);
            continue;
        }
        e[i] = all;
        e[i].down = down;
        struct weight_matrix *const parts[] = {&e[i].gate, &e[i].up, &e[i].down};
        const int outs[] = {width, width, hidden};
        for (int p = 0; p < 3; p++) {
            struct weight_matrix *m = parts[p];
            const size_t rows = (size_t)i * (size_t)outs[p];
            m->out = outs[p];
            m->data = (const uint8_t *)m->data + rows * host_row(f, m->in);
            m->scales = m->scales ? m->scales + rows * host_scale_row(f, m->in) : NULL;
            m->biases = m->biases ? m->biases + rows * host_scale_row(f, m->in) : NULL;
        }
    }
}

static bool expert_is(const struct cuda_experts *all, int e, const struct weight_matrix *h)
{
    struct cuda_matrix m = all->first;
    m.data += (size_t)e * all->data_stride;
    if (m.scales != NULL)
        m.scales += (size_t)e * all->scale_stride;
    if (m.biases != NULL)
        m.biases += (size_t)e * all->scale_stride;
    return matrix_is(&m, h);
}

static void check_sparse(enum weight_format f, bool contiguous, int shared_width)
{
    enum { HIDDEN = 96, WIDTH = 32, EXPERTS = 5 };
    struct ffn_block *b = (struct ffn_block *)calloc(1, sizeof *b);
    struct mlp_weights *e = (struct mlp_weights *)calloc(EXPERTS, sizeof *e);
    random_experts(e, EXPERTS, f, WIDTH, HIDDEN, contiguous);
    b->sparse = true;
    b->experts = EXPERTS;
    b->top_k = 2;
    b->norm = random_norm(HIDDEN, 1);
    b->router = random_matrix(WEIGHT_BF16, EXPERTS, HIDDEN, 3);
    b->selection_bias = (const float *)random_bytes(EXPERTS * sizeof(float), 2);
    b->expert = e;
    b->has_shared = shared_width > 0;
    if (b->has_shared)
        b->shared = random_mlp(f, shared_width, HIDDEN, 1);
    CHECK(cuda_weights_take_ffn(t.w, b), "%s", t.fault.error.message);
    const struct cuda_ffn *d = cuda_weights_ffn(t.w, b);
    CHECK(d != NULL && d->block == b && same(d->norm, b->norm, HIDDEN * 2) &&
              matrix_is(&d->router, &b->router) &&
              same(d->selection_bias, b->selection_bias, EXPERTS * sizeof(float)),
          "router");
    if (d == NULL)
        return;
    const bool inside = shared_width == WIDTH;
    CHECK(d->shared_inside == inside && d->gate.count == EXPERTS + (inside ? 1 : 0) &&
              d->up.count == d->gate.count && d->down.count == d->gate.count,
          "%d experts", d->gate.count);
    for (int i = 0; i < d->gate.count; i++) {
        const struct mlp_weights *m = i < EXPERTS ? &e[i] : &b->shared;
        CHECK(expert_is(&d->gate, i, &m->gate) && expert_is(&d->up, i, &m->up) &&
                  expert_is(&d->down, i, &m->down),
              "format %d, expert %d, %s", (int)f, i, contiguous ? "one tensor" : "each its own");
    }
    if (b->has_shared && !inside)
        CHECK(matrix_is(&d->shared_gate, &b->shared.gate) &&
                  matrix_is(&d->shared_up, &b->shared.up) &&
                  matrix_is(&d->shared_down, &b->shared.down),
              "the shared expert");
}

static void check_ffn(void)
{
    open_weights();
    for (int f = 0; f < 3; f++)
        for (int contiguous = 0; contiguous < 2; contiguous++)
            for (int shared = 0; shared <= 64; shared += 32)
                check_sparse((enum weight_format)f, contiguous != 0, shared);
    struct ffn_block *b = (struct ffn_block *)calloc(1, sizeof *b);
    b->norm = random_norm(96, 1);
    b->dense = random_mlp(WEIGHT_BF16, 160, 96, 1);
    CHECK(cuda_weights_take_ffn(t.w, b), "%s", t.fault.error.message);
    const struct cuda_ffn *d = cuda_weights_ffn(t.w, b);
    CHECK(d != NULL && matrix_is(&d->dense_gate, &b->dense.gate) &&
              matrix_is(&d->dense_up, &b->dense.up) && matrix_is(&d->dense_down, &b->dense.down) &&
              same(d->norm, b->norm, 96 * 2),
          "dense");
    close_weights();
}

static void check_context(void)
{
    enum { HIDDEN = 96, TAPS = 3 };
    static const uint16_t *norms[TAPS];
    struct context_block b = {};
    open_weights();
    uint8_t all[TAPS][HIDDEN * 2];
    for (int i = 0; i < TAPS; i++) {
        norms[i] = random_norm(HIDDEN, i);
        memcpy(all[i], norms[i], HIDDEN * 2);
    }
    b.taps = TAPS;
    b.tap_norm = norms;
    b.hidden_norm = random_norm(HIDDEN, 3);
    b.fc = random_matrix(WEIGHT_BF16, HIDDEN, TAPS * HIDDEN, 1);
    CHECK(cuda_weights_take_context(t.w, &b), "%s", t.fault.error.message);
    const struct cuda_context *d = cuda_weights_context(t.w, &b);
    CHECK(d != NULL && d->block == &b && same(d->tap_norm, all, sizeof all) &&
              same(d->hidden_norm, b.hidden_norm, HIDDEN * 2) && matrix_is(&d->fc, &b.fc),
          "context");
    close_weights();
}

/* More than all staging buffers hold, in rows that do not divide one. */
static void check_large(void)
{
    struct head_block b = {};
    open_weights();
    b.output = random_matrix(WEIGHT_NVFP4, 17001, 5008, 1);
    b.norm = random_norm(5008, 0);
    CHECK(cuda_weights_take_head(t.w, &b), "%s", t.fault.error.message);
    CHECK(matrix_is(&cuda_weights_head(t.w, &b)->output, &b.output), "42 MB of nvfp4");
    const struct weight_matrix table = random_matrix(WEIGHT_BF16, 10007, 4001, 1);
    CHECK(cuda_weights_take_embedding(t.w, &table), "%s", t.fault.error.message);
    CHECK(same(cuda_weights_embedding(t.w, table.data), table.data, (size_t)10007 * 4001 * 2),
          "a table of 80 MB");
    CHECK(cuda_weights_finish(t.w), "%s", t.fault.error.message);
    close_weights();
}

static void check_sharing(void)
{
    const int owner[2] = {0, 0};
    open_weights();
    const struct weight_matrix table = random_matrix(WEIGHT_BF16, 50, 64, 1);
    struct head_block heads[3] = {};
    for (int i = 0; i < 3; i++) {
        heads[i].output = i < 2 ? table : random_matrix(WEIGHT_BF16, 50, 64, 1);
        heads[i].norm = random_norm(64, i);
    }
    cuda_weights_owner(t.w, &owner[0]);
    CHECK(cuda_weights_take_embedding(t.w, &table) && cuda_weights_take_head(t.w, &heads[0]), "%s",
          t.fault.error.message);
    const uint64_t first = cuda_weights_bytes(t.w);
    CHECK(cuda_weights_take_embedding(t.w, &table) && cuda_weights_take_head(t.w, &heads[0]) &&
              cuda_weights_bytes(t.w) == first,
          "taken twice");
    cuda_weights_owner(t.w, &owner[1]);
    CHECK(cuda_weights_take_embedding(t.w, &table) && cuda_weights_take_head(t.w, &heads[1]) &&
              cuda_weights_bytes(t.w) == first + 256,
          "a head on the same matrix takes more than its norm");
    CHECK(cuda_weights_head(t.w, &heads[1])->output.data ==
              cuda_weights_head(t.w, &heads[0])->output.data,
          "not shared");
    CHECK(cuda_weights_take_head(t.w, &heads[2]), "%s", t.fault.error.message);
    /* the same address in natural and in lanes order: two copies */
    CHECK(same(cuda_weights_embedding(t.w, table.data), table.data, 50 * 64 * 2) &&
              matrix_is(&cuda_weights_head(t.w, &heads[0])->output, &table),
          "one address, two orders");

    /* fewer rows from the same address are another piece */
    struct head_block fewer = heads[0];
    fewer.output.out = 20;
    CHECK(cuda_weights_take_head(t.w, &fewer) &&
              matrix_is(&cuda_weights_head(t.w, &fewer)->output, &fewer.output) &&
              cuda_weights_head(t.w, &fewer)->output.data !=
                  cuda_weights_head(t.w, &heads[0])->output.data,
          "shared with a larger one");

    cuda_weights_release(t.w, &owner[0]);
    CHECK(cuda_weights_head(t.w, &heads[0]) == NULL, "let go of");
    CHECK(cuda_weights_head(t.w, &heads[1]) != NULL &&
              matrix_is(&cuda_weights_head(t.w, &heads[1])->output, &table) &&
              same(cuda_weights_embedding(t.w, table.data), table.data, 50 * 64 * 2),
          "the other owner's");
    cuda_weights_release(t.w, &owner[1]);
    CHECK(cuda_weights_bytes(t.w) == 0 && cuda_weights_embedding(t.w, table.data) == NULL,
          "%llu bytes are left", (unsigned long long)cuda_weights_bytes(t.w));

    /* new data at an old address, after its owner let go */
    memset((void *)(uintptr_t)table.data, 0x5a, 50 * 64 * 2);
    CHECK(cuda_weights_take_head(t.w, &heads[0]) &&
              matrix_is(&cuda_weights_head(t.w, &heads[0])->output, &table),
          "an old address");
    close_weights();
}

static void check_refusals(void)
{
    struct head_block b = {};
    static const struct {
        enum weight_format format;
        int in;
    } bad[] = {{WEIGHT_NVFP4, 24}, {WEIGHT_INT8_AFFINE32, 48}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        open_weights();
        b.output = random_matrix(bad[i].format, 4, bad[i].in, 0);
        b.norm = random_norm(64, 0);
        CHECK(!cuda_weights_take_head(t.w, &b) && t.fault.set &&
                  strcmp(t.fault.error.name, "CUDA-FAILED") == 0,
              "%s", t.fault.error.message);
        CHECK(cuda_weights_head(t.w, &b) == NULL && cuda_weights_bytes(t.w) == 0, "half a block");
        close_weights();
    }
}

struct told {
    uint64_t last, total;
    int times, backwards;
};

static void tell(void *context, uint64_t done, uint64_t total)
{
    struct told *told = (struct told *)context;
    told->backwards += done < told->last || done > total;
    told->last = done;
    told->total = total;
    told->times++;
    if (told->times == 6)
        raise(SIGINT);
}

static void check_interrupt(void)
{
    struct told told = {};
    interrupt_install();
    open_weights();
    const struct weight_matrix table = random_matrix(WEIGHT_BF16, 32768, 2048, 0);
    const uint64_t bytes = (uint64_t)32768 * 2048 * 2;
    cuda_weights_progress(t.w, tell, &told, bytes);
    CHECK(!cuda_weights_take_embedding(t.w, &table) &&
              strcmp(t.fault.error.name, "INTERRUPTED") == 0,
          "%s", t.fault.error.name);
    CHECK(told.times == 6 && told.backwards == 0 && told.total == bytes, "%d times", told.times);
    CHECK(cuda_weights_bytes(t.w) == 0 && cuda_weights_embedding(t.w, table.data) == NULL, "half");
    interrupt_reset();
    t.fault.set = false;
    told = {};
    told.times = 100;
    cuda_weights_progress(t.w, tell, &told, bytes);
    CHECK(cuda_weights_take_embedding(t.w, &table) && cuda_weights_finish(t.w), "%s",
          t.fault.error.message);
    CHECK(told.last == bytes && told.backwards == 0, "%llu bytes", (unsigned long long)told.last);
    CHECK(same(cuda_weights_embedding(t.w, table.data), table.data, bytes), "after an interrupt");
    close_weights();
}

static void check_device(void)
{
    struct cuda_device d;
    struct error err = {};
    uint64_t available = 0;
    char source[96] = "";
    CHECK(cuda_device_open(&d, &err), "%s: %s", err.name, err.message);
    CHECK(d.major >= 8 && d.multiprocessors > 0 && d.shared_most >= 48 * 1024 && d.l2_bytes > 0 &&
              d.name[0] != '\0' && d.driver >= d.runtime / 1000 * 1000,
          "%s", d.name);
    CHECK(cuda_device_memory(NULL, &available, source) && available > 0 &&
              strcmp(source, d.name) == 0,
          "%s", source);
    printf("device: %s, sm_%d%d, driver %d, runtime %d, %.1f GB free\n", d.name, d.major, d.minor,
           d.driver, d.runtime, (double)available / 1e9);

    struct cuda_fault f = {};
    void *p = &f;
    CHECK(!cuda_memory_new(&f, (size_t)1 << 50, "a test", &p) && f.set && p == NULL &&
              strcmp(f.error.name, "OUT-OF-MEMORY") == 0,
          "%s: %s", f.error.name, f.error.message);
    CHECK(!cuda_memory_new(&f, 16, "a test", &p) && p == NULL, "after an error");
    f = {};
    setenv("MLXFAST_CUDA_POISON", "1", 1);
    uint8_t poison[1000];
    memset(poison, 0xff, sizeof poison);
    CHECK(cuda_memory_new(&f, sizeof poison, "a test", &p), "%s", f.error.message);
    uint8_t got[sizeof poison];
    CHECK(cudaMemcpy(got, p, sizeof got, cudaMemcpyDeviceToHost) == cudaSuccess &&
              memcmp(got, poison, sizeof got) == 0,
          "not poisoned");
    cuda_memory_free(p);
    unsetenv("MLXFAST_CUDA_POISON");
    CHECK(!cuda_ok(&f, cudaErrorInvalidValue, "a call") && f.set &&
              strcmp(f.error.name, "CUDA-FAILED") == 0 && strstr(f.error.message, "a call") &&
              strstr(f.error.message, "cudaErrorInvalidValue"),
          "%s", f.error.message);
    CHECK(!cuda_ok(&f, cudaErrorMemoryAllocation, "another") &&
              strcmp(f.error.name, "CUDA-FAILED") == 0,
          "the first error stays");
    CHECK(cuda_ok(&f, cudaSuccess, "a call"), "success");
}

#ifdef CUDA_EMULATED

static void with(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
    emulator_reset();
}

static void check_unusable(void)
{
    static const struct {
        const char *variable, *value, *name, *words;
    } cases[] = {
        {"CUDA_EMULATOR_DRIVER", "0", "CUDA-NO-DEVICE", "no NVIDIA driver"},
        {"CUDA_EMULATOR_DRIVER", "12020", "CUDA-DRIVER-TOO-OLD", "CUDA 12.2, and this"},
        {"CUDA_EMULATOR_DEVICES", "0", "CUDA-NO-DEVICE", "shows no GPU"},
        {"CUDA_EMULATOR_CC", "7.5", "CUDA-ARCHITECTURE", "7.5"},
        {"CUDA_EMULATOR_FAIL", "cudaFuncGetAttributes:1", "CUDA-ARCHITECTURE", "no code for"},
        {"CUDA_EMULATOR_FAIL", "cudaDriverGetVersion:1", "CUDA-FAILED", "cudaDriverGetVersion"},
        {"CUDA_EMULATOR_FAIL", "cudaRuntimeGetVersion:1", "CUDA-FAILED", "cudaRuntimeGetVersion"},
        {"CUDA_EMULATOR_FAIL", "cudaGetDeviceCount:1", "CUDA-", ""},
        {"CUDA_EMULATOR_FAIL", "cudaGetDeviceProperties:1", "CUDA-FAILED", "Properties"},
        {"CUDA_EMULATOR_FAIL", "cudaDeviceGetAttribute:3", "CUDA-FAILED", "Attribute"},
        {"CUDA_EMULATOR_FAIL", "cudaSetDevice:1", "CUDA-FAILED", "cudaSetDevice"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cuda_device d;
        struct error err = {};
        uint64_t available = 7;
        char source[96];
        with(cases[i].variable, cases[i].value);
        CHECK(!cuda_device_open(&d, &err) &&
                  strncmp(err.name, cases[i].name, strlen(cases[i].name)) == 0 &&
                  strstr(err.message, cases[i].words) != NULL,
              "%s=%s: %s: %s", cases[i].variable, cases[i].value, err.name, err.message);
        printf("  %s=%s: %s: %s\n", cases[i].variable, cases[i].value, err.name, err.message);
        with(cases[i].variable, cases[i].value);
        CHECK(!cuda_device_memory(NULL, &available, source) && available == 7, "no device");
        with(cases[i].variable, NULL);
    }
}

/* Each call of a loading fails in its turn; after it nothing is left, and it can be done again. */
static void check_failures(void)
{
    static const struct {
        const char *call;
        int most;
    } calls[] = {{"cudaStreamCreateWithFlags", 4},
                 {"cudaEventCreateWithFlags", 4},
                 {"cudaMallocHost", 4},
                 {"cudaMalloc", 5},
                 {"cudaMemcpyAsync", 4},
                 {"cudaLaunchKernelEx", 3},
                 {"cudaEventRecord", 1},
                 {"cudaStreamWaitEvent", 1},
                 {"cudaEventSynchronize", 1}};
    struct head_block b = {};
    b.output = random_matrix(WEIGHT_INT8_AFFINE32, 33, 96, 1);
    b.norm = random_norm(96, 1);
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (int n = 1; n <= calls[c].most; n++) {
            char text[96];
            size_t before = 0, after = 0, total = 0;
            open_weights();
            cudaMemGetInfo(&before, &total);
            snprintf(text, sizeof text, "%s:%d", calls[c].call, n);
            with("CUDA_EMULATOR_FAIL", text);
            const bool ok = cuda_weights_take_head(t.w, &b);
            with("CUDA_EMULATOR_FAIL", NULL);
            if (ok && n > 1) { /* fewer such calls than that */
                close_weights();
                break;
            }
            CHECK(!ok && t.fault.set && t.fault.error.message[0], "%s", text);
            cudaMemGetInfo(&after, &total);
            CHECK(cuda_weights_bytes(t.w) == 0 && cuda_weights_head(t.w, &b) == NULL &&
                      before == after,
                  "%s: %zu bytes are left", text, before - after);
            CHECK(!cuda_weights_take_head(t.w, &b), "after an error");
            t.fault.set = false;
            CHECK(cuda_weights_take_head(t.w, &b) &&
                      matrix_is(&cuda_weights_head(t.w, &b)->output, &b.output),
                  "%s: not the second time either: %s", text, t.fault.error.message);
            close_weights();
        }
}

#endif

/* ---- The rate ---- */

static double now(void)
{
    struct timespec s;
    clock_gettime(CLOCK_MONOTONIC, &s);
    return (double)s.tv_sec + (double)s.tv_nsec * 1e-9;
}

/* What the bus gives: pinned memory, one copy after the other. */
static void time_bus(void)
{
    const size_t bytes = 64 << 20;
    void *host = NULL, *device = NULL;
    if (cudaMallocHost(&host, bytes) != cudaSuccess || cudaMalloc(&device, bytes) != cudaSuccess)
        return;
    memset(host, 1, bytes);
    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, t.stream);
    cudaStreamSynchronize(t.stream);
    const double begun = now();
    for (int i = 0; i < 32; i++)
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, t.stream);
    cudaStreamSynchronize(t.stream);
    printf("bus, pinned: %.1f GB/s\n", 32.0 * (double)bytes / (now() - begun) / 1e9);
    cudaFreeHost(host);
    cudaFree(device);
}

/* A layer's experts of XS: 256 of 512 x 2048, stacked, nvfp4. */
enum { XS_EXPERTS = 256, XS_WIDTH = 512, XS_HIDDEN = 2048 };

static size_t take_layer(const uint8_t *from)
{
    struct ffn_block *b = (struct ffn_block *)calloc(1, sizeof *b);
    struct mlp_weights *e = (struct mlp_weights *)calloc(XS_EXPERTS, sizeof *e);
    size_t at = 0;
    b->sparse = true;
    b->experts = XS_EXPERTS;
    b->top_k = 8;
    b->norm = (const uint16_t *)from;
    b->router.format = WEIGHT_BF16;
    b->router.out = XS_EXPERTS;
    b->router.in = XS_HIDDEN;
    b->router.data = from;
    b->expert = e;
    for (int part = 0; part < 3; part++) {
        const int out = part < 2 ? XS_WIDTH : XS_HIDDEN, in = part < 2 ? XS_HIDDEN : XS_WIDTH;
        const size_t data = (size_t)out * (size_t)in / 2, scales = data / 8;
        for (int i = 0; i < XS_EXPERTS; i++) {
            struct weight_matrix *m = part == 0 ? &e[i].gate : part == 1 ? &e[i].up : &e[i].down;
            m->format = WEIGHT_NVFP4;
            m->out = out;
            m->in = in;
            m->data = from + at + (size_t)i * data;
            m->scales = from + at + XS_EXPERTS * data + (size_t)i * scales;
        }
        at += XS_EXPERTS * (data + scales);
    }
    if (from != NULL && !cuda_weights_take_ffn(t.w, b))
        printf("%s: %s\n", t.fault.error.name, t.fault.error.message);
    return at;
}

static int time_upload(const uint8_t *data, size_t bytes, const char *what)
{
    open_weights();
    time_bus();
    const size_t layer = take_layer(NULL);
    size_t done = 0;
    const double begun = now();
    while (done + layer <= bytes && !t.fault.set) {
        take_layer(data + done);
        done += layer;
    }
    const bool ok = cuda_weights_finish(t.w);
    const double took = now() - begun;
    printf("%s: %.2f GB in %zu layers in %.3f s: %.1f GB/s%s\n", what, (double)done / 1e9,
           done / layer, took, (double)done / took / 1e9, ok ? "" : " FAILED");
    cuda_weights_free(t.w);
    return ok ? 0 : 1;
}

static int time_memory(double gigabytes)
{
    const size_t bytes = (size_t)(gigabytes * 1e9);
    uint8_t *data =
        (uint8_t *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < bytes; i += 4096)
        data[i] = (uint8_t)(i >> 12);
    return time_upload(data, bytes, "from memory");
}

static int time_file(const char *path)
{
    struct stat status;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        return 1;
    for (int warm = 0; warm < 2; warm++) {
        if (!warm)
            posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        const size_t bytes = (size_t)status.st_size;
        const uint8_t *data = (const uint8_t *)mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
        if (data == MAP_FAILED || time_upload(data, bytes, warm ? "warm file" : "cold file") != 0)
            return 1;
        munmap((void *)(uintptr_t)data, bytes);
    }
    close(file);
    return 0;
}

int main(int argc, char **argv)
{
    struct cuda_device device;
    struct error err = {};
    if (!cuda_device_open(&device, &err)) {
        printf("test_cuda_upload: %s: %s\n", err.name, err.message);
        return 1;
    }
    if (argc > 1 && strcmp(argv[1], "--time") == 0)
        return time_memory(argc > 2 ? strtod(argv[2], NULL) : 8);
    if (argc > 2 && strcmp(argv[1], "--time-file") == 0)
        return time_file(argv[2]);
    check_device();
    check_formats();
    check_attention();
    check_ffn();
    check_context();
    check_sharing();
    check_refusals();
    check_large();
    check_interrupt();
#ifdef CUDA_EMULATED
    check_unusable();
    check_failures();
#endif
    printf("test_cuda_upload: %d checks, %d failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
