/* The timing of test_cuda_linear.cu, which includes it: launches of a kind over many matrices,
 * recorded as a graph, so that no weights are in L2. */
#ifndef MLXFAST_TESTS_LINEAR_TIMING_CUH
#define MLXFAST_TESTS_LINEAR_TIMING_CUH

static __global__ void fill_kernel(uint32_t *p, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t v = (uint32_t)i * 2654435761u;
        v ^= v >> 15;
        v *= 2246822519u;
        v ^= v >> 13;
        p[i] = (v & 0x807f807fu) | 0x3c003c00u; /* bf16 about 0.01 */
    }
}

static __global__ void read_kernel(const uint4 *p, size_t count, uint32_t *out)
{
    uint32_t sum = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = load_stream(p + i + (size_t)j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static uint8_t *pool;
static size_t pool_bytes;
static double plain; /* bytes per second */

/* Milliseconds of a graph of what `body` launches, the best of a few. */
static double graph_time(void (*body)(void *), void *context)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    must(cudaEventCreate(&from), "an event");
    must(cudaEventCreate(&to), "an event");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    body(context);
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    double best = 1e9;
    for (int i = 0; i < 4; i++) {
        float ms;
        must(cudaEventRecord(from, stream), "event");
        must(cudaGraphLaunch(exec, stream), "graph");
        must(cudaEventRecord(to, stream), "event");
        finish();
        must(cudaEventElapsedTime(&ms, from, to), "event");
        if (i > 0 && ms < best)
            best = ms;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return best;
}

static void read_all(void *context)
{
    read_kernel<<<device.multiprocessors * 8, 256, 0, stream>>>(
        (const uint4 *)pool, pool_bytes / 16, (uint32_t *)context);
}

struct timed {
    enum weight_format format;
    int out, in, rows, copies;
    bool norm, add, overlap;
    uint16_t *x, *y, *weights;
    bool (*launch)(const struct cuda_launch *, const struct cuda_linear *,
                   const struct linear_plan *);
    struct linear_plan plan;
    float *logits; /* the head */
    struct head_pick *picks;
    void *scratch;
};

static struct cuda_matrix matrix_of_pool(const struct timed *t, int copy)
{
    struct cuda_matrix m = {};
    const int group = t->format == WEIGHT_BF16            ? CUDA_BF16_GROUP
                      : t->format == WEIGHT_INT8_AFFINE32 ? CUDA_INT8_GROUP
                                                          : CUDA_NVFP4_GROUP;
    m.format = t->format;
    m.out = t->out;
    m.in = t->in;
    m.padded = (t->in + group - 1) / group * group;
    m.row_bytes = (size_t)(m.padded / group) * 256;
    if (t->format != WEIGHT_BF16)
        m.scale_bytes = (size_t)m.padded / 16;
    const size_t bytes = (m.row_bytes + m.scale_bytes * 2) * (size_t)m.out;
    m.data = pool + (size_t)copy * ((bytes + 255) / 256 * 256);
    m.scales = m.data + m.row_bytes * (size_t)m.out;
    m.biases = m.scales + m.scale_bytes * (size_t)m.out;
    return m;
}

static size_t matrix_read(const struct timed *t)
{
    const struct cuda_matrix m = matrix_of_pool(t, 0);
    return (m.row_bytes + m.scale_bytes * (t->format == WEIGHT_NVFP4 ? 1 : 2)) * (size_t)m.out;
}

static void timed_body(void *context)
{
    const struct timed *t = (const struct timed *)context;
    struct cuda_launch l = launch_new();
    l.overlap = t->overlap;
    for (int i = 0; i < t->copies; i++) {
        struct cuda_matrix w = matrix_of_pool(t, i);
        struct cuda_linear a = {};
        a.w = &w;
        a.x = t->x;
        a.x_stride = (size_t)t->in;
        a.norm = t->norm ? t->weights : NULL;
        a.eps = 1e-6f;
        a.rows = t->rows;
        a.y = t->y;
        a.y_stride = (size_t)t->out;
        a.add = t->add;
        if (t->logits != NULL) {
            struct head_block block = {};
            block.eps = 1e-6f;
            struct cuda_head h = {};
            h.block = &block;
            h.norm = t->weights;
            h.output = w;
            cuda_head_run(&l, &h, t->x, t->in, t->rows, t->logits, t->picks, t->scratch);
        } else if (t->launch != NULL) {
            if (!t->launch(&l, &a, &t->plan))
                printf("  (not launched)");
        } else {
            cuda_linear(&l, &a);
        }
    }
}

static double timed_run(struct timed *t)
{
    const size_t each = (matrix_read(t) + 4095) / 256 * 256;
    t->copies = (int)(pool_bytes / (each + each / 8));
    if (t->copies > 60)
        t->copies = 60;
    return graph_time(timed_body, t) * 1e3 / t->copies;
}

struct shape {
    const char *name;
    int out, in;
    bool norm, add;
};

static const struct shape shapes[] = {
    {"project 64", 10304, 2048, true, false}, {"project 48", 8240, 2048, true, false},
    {"output 64", 2048, 8192, false, true},   {"output 48", 2048, 6144, false, true},
    {"dense gate", 8192, 2048, true, false},  {"dense down", 2048, 8192, false, true},
    {"fc", 2048, 10240, false, false}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct timed timed_new(const struct shape *s, enum weight_format format, int rows)
{
    static uint16_t *x, *y, *weights;
    if (x == NULL) {
        x = (uint16_t *)device_new((size_t)1024 * 10304 * 2);
        y = (uint16_t *)device_new((size_t)1024 * 10304 * 2);
        weights = (uint16_t *)device_new((size_t)16384 * 2);
        fill_kernel<<<1024, 256, 0, stream>>>((uint32_t *)x, (size_t)1024 * 10304 / 2);
        fill_kernel<<<1024, 256, 0, stream>>>((uint32_t *)y, (size_t)1024 * 10304 / 2);
        fill_kernel<<<16, 256, 0, stream>>>((uint32_t *)weights, 8192);
        finish();
    }
    struct timed t = {};
    t.format = format;
    t.out = s->out;
    t.in = s->in;
    t.rows = rows;
    t.norm = s->norm;
    t.add = s->add;
    t.overlap = true;
    t.x = x;
    t.y = y;
    t.weights = weights;
    return t;
}

static void tell(const char *name, const struct timed *t, double us, double one)
{
    const double rate = (double)matrix_read(t) / us / 1e6;
    printf("%-11s %-5s %6d x %-5d rows %3d%s %8.2f us %6.2f TB/s %5.1f %%", name,
           format_name(t->format), t->out, t->in, t->rows, t->overlap ? "" : " alone", us, rate,
           100.0 * rate * 1e12 / plain);
    if (one > 0)
        printf("  %.2f of one row", us / one);
    printf("\n");
    fflush(stdout);
}

static void time_open(void)
{
    pool_bytes = (size_t)3 << 30;
    pool = (uint8_t *)device_new(pool_bytes);
    fill_kernel<<<4096, 256, 0, stream>>>((uint32_t *)pool, pool_bytes / 4);
    finish();
    uint32_t *sink = (uint32_t *)device_new(4);
    const double ms = graph_time(read_all, sink);
    plain = (double)pool_bytes / ms * 1e3;
    printf("%s, %d multiprocessors; plain reading of %.1f GB: %.3f TB/s\n", device.name,
           device.multiprocessors, (double)pool_bytes / 1e9, plain / 1e12);
}

/* Many rows as if they were few, several times. */
static bool launch_by_sixteen(const struct cuda_launch *l, const struct cuda_linear *a,
                              const struct linear_plan *plan)
{
    (void)plan;
    struct cuda_linear part = *a;
    for (int at = 0; at < a->rows; at += CUDA_RECORD_ROWS) {
        part.x = a->x + (size_t)at * a->x_stride;
        part.y = a->y + (size_t)at * a->y_stride;
        part.rows = a->rows - at < CUDA_RECORD_ROWS ? a->rows - at : CUDA_RECORD_ROWS;
        cuda_linear(l, &part);
    }
    return true;
}

static void time_all(void)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 8, 16};
    time_open();
    for (int s = 0; s < SHAPES; s++) {
        double one = 0;
        for (int i = 0; i < 8; i++) {
            struct timed t = timed_new(&shapes[s], WEIGHT_BF16, rows[i]);
            const double us = timed_run(&t);
            tell(shapes[s].name, &t, us, one);
            if (i == 0) {
                one = us;
                t.overlap = false;
                tell(shapes[s].name, &t, timed_run(&t), 0);
            }
        }
    }
    for (int s = 0; s < 4; s++) {
        double one = 0;
        for (int i = 0; i < 5; i++) {
            struct timed t = timed_new(&shapes[s], WEIGHT_INT8_AFFINE32, rows[i]);
            const double us = timed_run(&t);
            tell(shapes[s].name, &t, us, one);
            one = i == 0 ? us : one;
        }
    }
    double one = 0;
    for (int i = 0; i < 8; i++) {
        const struct shape head = {"head", 100352, 2048, true, false};
        struct timed t = timed_new(&head, WEIGHT_BF16, rows[i]);
        static void *scratch;
        static float *logits;
        static struct head_pick *picks;
        if (scratch == NULL) {
            scratch = device_new(cuda_head_scratch(100352, 16));
            logits = (float *)device_new((size_t)16 * 100352 * 4);
            device_set(scratch, 0, cuda_head_scratch(100352, 16), "scratch");
            must(cudaHostAlloc((void **)&picks, 16 * sizeof *picks, cudaHostAllocMapped), "picks");
        }
        t.scratch = scratch;
        t.logits = logits;
        t.picks = picks;
        const double us = timed_run(&t);
        tell("head", &t, us, one);
        one = i == 0 ? us : one;
    }
    static const int many[] = {17, 32, 64, 128, 512};
    for (int s = 0; s < 4; s += 2) {
        for (int i = 0; i < 5; i++) {
            for (int kind = 0; kind < 3; kind++) {
                struct timed t =
                    timed_new(&shapes[s], kind == 1 ? WEIGHT_INT8_AFFINE32 : WEIGHT_BF16, many[i]);
                t.launch = kind == 2 ? launch_by_sixteen : NULL;
                const double us = timed_run(&t);
                printf("%-11s %-5s %6d x %-5d rows %3d strict%s %8.1f us %6.1f TFLOP/s\n",
                       shapes[s].name, format_name(t.format), t.out, t.in, t.rows,
                       kind == 2 ? " by 16" : "", us, 2.0 * t.out * t.in * t.rows / us / 1e6);
            }
        }
    }
}

struct way {
    int outputs, depth;
    bool (*launch[4])(const struct cuda_launch *, const struct cuda_linear *,
                      const struct linear_plan *);
};

#define WAY(O, D)                                                                                  \
    {                                                                                              \
        O, D,                                                                                      \
        {                                                                                          \
            linear_few_launch<WEIGHT_BF16, 1, O, D>, linear_few_launch<WEIGHT_BF16, 2, O, D>,      \
                linear_few_launch<WEIGHT_BF16, 4, O, D>, linear_few_launch<WEIGHT_BF16, 8, O, D>   \
        }                                                                                          \
    }

static void tune_all(void)
{
    static const struct way ways[] = {WAY(1, 8), WAY(1, 16), WAY(2, 8), WAY(2, 16), WAY(4, 16)};
    static const int rows[] = {1, 2, 4, 8}, which[] = {0, 1, 2, 3};
    time_open();
    for (int w = 0; w < 4; w++) {
        const struct shape *s = &shapes[which[w]];
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 5; i++) {
                for (int kind = 0; kind < 4; kind++) {
                    struct timed t = timed_new(s, WEIGHT_BF16, rows[r]);
                    t.plan.outputs = ways[i].outputs;
                    t.plan.depth = ways[i].depth;
                    t.plan.warps = kind % 2 ? 8 : 4;
                    t.plan.late = kind / 2;
                    t.plan.tiles = 1;
                    t.launch = ways[i].launch[r];
                    const double us = timed_run(&t);
                    char name[64];
                    snprintf(name, sizeof name, "O%d D%d W%d%s", t.plan.outputs, t.plan.depth,
                             t.plan.warps, t.plan.late ? " late" : "");
                    tell(name, &t, us, 0);
                }
            }
        }
    }
}

#endif
