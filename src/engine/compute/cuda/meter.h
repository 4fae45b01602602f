/* The meter of blocks on the device: events between the parts of a forward that is not recorded,
 * and what the parts read; and the rate at which the device reads its memory. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_METER_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_METER_H

#include "engine/compute/cuda/cuda.h"

struct cuda_meter;
/* Makes it at its first use. */
void cuda_meter_begin(struct cuda_meter **m, struct cuda_fault *fault, cudaStream_t stream);
/* From here on the stream's time is this part's. */
void cuda_meter_mark(struct cuda_meter *m, struct cuda_fault *fault, cudaStream_t stream,
                     enum meter_part part, int layer);
/* The same from within a stage that has several parts; nothing where nothing is metered. */
void cuda_meter_stage(enum meter_part part);
/* After the stream has come to its end: the times go to the parts. Where the shared expert runs in
 * the kernels of the routed ones, their time is cut in proportion to what they read. */
void cuda_meter_end(struct cuda_meter *m, struct cuda_fault *fault, struct compute_meter *out);
void cuda_meter_free(struct cuda_meter *m);

void cuda_meter_attention(struct compute_meter *m, const struct attention_block *b, int64_t pos0,
                          int rows);
/* Routed experts: what one row reads, for each row (rows that share experts read less). */
void cuda_meter_ffn(struct compute_meter *m, const struct ffn_block *b, int rows);

/* Seconds of one pass over so many bytes of device memory, the best of several; 0: it failed. */
double cuda_meter_read_seconds(struct cuda_fault *fault, cudaStream_t stream,
                               const struct cuda_device *device, size_t bytes);

#endif
