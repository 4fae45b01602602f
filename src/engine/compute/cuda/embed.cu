/* Where a forward begins: the step and the rows of the embedding table. */
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum { EMBED_THREADS = 256 };

/* A block for each row. The host's memory is asked by one thread of each: it answers requests one
 * after the other, a microsecond each. */
__global__ static void embed_rows(const struct cuda_input *from, struct cuda_step *step,
                                  const uint16_t *table, int hidden, int rows, uint16_t *x,
                                  const struct head_pick *drafted)
{
    __shared__ int32_t id;
    pdl_launch_next();
    pdl_wait();
    const int row = (int)blockIdx.x;
    if (table != NULL && threadIdx.x == EMBED_THREADS - 1) {
        const bool may = drafted != NULL && row > 0;
        const int32_t given = *(const volatile int32_t *)(from->ids + row);
        const int32_t pick =
            may ? *(const volatile int32_t *)&drafted[row - 1].token[0] : 0; /* both under way */
        const int32_t wanted = given < 0 ? pick : given;
        id = wanted < 0 ? 0 : wanted;
    }
    if (row == 0 && threadIdx.x == 0) {
        step->pos0 = *(const volatile int64_t *)&from->pos0;
        step->rows = rows;
    }
    if (table == NULL)
        return;
    __syncthreads();
    const uint16_t *source = table + (size_t)id * (size_t)hidden;
    uint16_t *target = x + (size_t)row * (size_t)hidden;
    if (hidden % 8 == 0) {
        for (int i = (int)threadIdx.x; i < hidden / 8; i += EMBED_THREADS)
            ((uint4 *)target)[i] = ((const uint4 *)source)[i];
    } else {
        for (int i = (int)threadIdx.x; i < hidden; i += EMBED_THREADS)
            target[i] = source[i];
    }
}

/* Both begin after all earlier work, not while it ends: later kernels read keys and values of
 * earlier forwards before they wait for anything. */
static struct cuda_launch launch_apart(const struct cuda_launch *l)
{
    struct cuda_launch first = *l;
    first.overlap = false;
    return first;
}

void cuda_embed(const struct cuda_launch *l, const struct cuda_input *from, struct cuda_step *step,
                const uint16_t *table, int hidden, int rows, uint16_t *x,
                const struct head_pick *drafted)
{
    const struct cuda_launch first = launch_apart(l);
    cuda_launch(&first, "embed_rows", embed_rows, dim3((unsigned)rows), dim3(EMBED_THREADS), 0,
                from, step, table, hidden, rows, x, drafted);
}

void cuda_set_step(const struct cuda_launch *l, const struct cuda_input *from,
                   struct cuda_step *step)
{
    const struct cuda_launch first = launch_apart(l);
    cuda_launch(&first, "set_step", embed_rows, dim3(1), dim3(32), 0, from, step,
                (const uint16_t *)NULL, 0, 1, (uint16_t *)NULL, (const struct head_pick *)NULL);
}
