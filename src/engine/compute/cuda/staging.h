/* How weights come onto the device: through pinned buffers that several threads fill from the
 * mapped files while the bus carries the last ones away, then from a buffer on the device into
 * their place and order by a kernel. The bus is the limit, or the disk where the files are cold. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_STAGING_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_STAGING_H

#include "engine/compute/cuda/cuda.h"

/* What a row becomes on its way. */
enum staging_layout {
    STAGING_PLAIN,        /* stays as it is */
    STAGING_BF16,         /* bf16, into lanes order */
    STAGING_INT8,         /* codes, into lanes order */
    STAGING_INT8_SCALES,  /* bf16 for each block; biases too */
    STAGING_NVFP4,        /* codes, into lanes order */
    STAGING_NVFP4_SCALES, /* E4M3 for each half of a block, into two halves */
};

struct staging_source { /* rows that follow each other in the host's memory, at any address */
    const uint8_t *from;
    size_t rows;
};

/* Rows of one kind, brought from their sources to one place on the device, one after the other. */
struct staging_piece {
    enum staging_layout layout;
    int in;                  /* inputs of a row, where it has any */
    size_t row_bytes;        /* of the host */
    size_t device_row_bytes; /* of the device */
    const struct staging_source *sources;
    int source_count;
    uint8_t *to; /* aligned to 16; STAGING_PLAIN: to anything */
};

/* Rows that lie on the device as the host has them, from -> to. */
struct staging_rows {
    enum staging_layout layout;
    int in;
    uint32_t rows, row_bytes, device_row_bytes;
    const uint8_t *from; /* aligned to 4 */
    uint8_t *to;         /* aligned to 16 */
};
void staging_repack(const struct cuda_launch *l, const struct staging_rows *r); /* repack.cu */

struct staging;
/* What is done on `stream` after a staging_copy comes after the copies. */
struct staging *staging_new(struct cuda_fault *fault, cudaStream_t stream);
void staging_free(struct staging *s);
/* Returns when all has been read of the host; it is on its way then. Errors go to the fault:
 * INTERRUPTED, CUDA-FAILED. Nothing is under way then. */
bool staging_copy(struct staging *s, const struct staging_piece *pieces, int count);
/* Waits for all, and gives back the buffers and threads until the next copy. */
bool staging_finish(struct staging *s);
void staging_progress(struct staging *s,
                      void (*progress)(void *context, uint64_t done, uint64_t total), void *context,
                      uint64_t total);
/* Bytes on the device that it takes while it copies. */
uint64_t staging_device_bytes(void);

#endif
