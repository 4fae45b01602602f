/* Faults on purpose, one at a time: tests/device/run sees by them whether compute-sanitizer finds
 * anything in what the engine launches, plainly and from a graph, before it believes "0 errors".
 * Without arguments there is no fault and nothing to check. */
#include "engine/compute/cuda/cuda.h"

#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, THREADS = 64, REPLAYS = 2 };

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

/* In front of each fault, so that this has what the engine's kernels have: one to wait for. */
static __global__ void prelude(int *to)
{
    pdl_launch_next();
    pdl_wait();
    to[threadIdx.x] = (int)threadIdx.x;
}

/* The last thread writes one element behind the buffer. */
static __global__ void write_behind(const int *from, int *to)
{
    pdl_wait();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= COUNT)
        to[i] = from[threadIdx.x];
}

/* `never` was allocated and not written. */
static __global__ void read_unwritten(const int *never, int *to)
{
    pdl_wait();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT)
        to[i] = never[i] + 1;
}

/* Each warp reads what the other one writes, with nothing between the two. */
static __global__ void race(const int *from, int *to)
{
    __shared__ volatile int shared[THREADS];
    pdl_wait();
    shared[threadIdx.x] = from[threadIdx.x];
    to[threadIdx.x] = shared[THREADS - 1 - threadIdx.x];
}

static const struct {
    const char *tool;
    void (*kernel)(const int *from, int *to);
    unsigned blocks;
    bool unwritten;
} faults[] = {{"memcheck", write_behind, COUNT / THREADS + 1, false},
              {"initcheck", read_unwritten, COUNT / THREADS + 1, true},
              {"racecheck", race, 1, false}};

enum { FAULTS = sizeof faults / sizeof *faults };

static void commit(int which, bool graph)
{
    struct cuda_device device;
    struct error err = {};
    struct cuda_fault fault = {};
    unsigned kernels = 0;
    int *from, *never, *to, last;
    cudaStream_t stream;
    if (!cuda_device_open(&device, &err)) {
        printf("%s: %s\n", err.name, err.message);
        exit(1);
    }
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    must(cudaMalloc((void **)&from, THREADS * sizeof *from), "memory");
    must(cudaMalloc((void **)&never, COUNT * sizeof *never), "memory");
    must(cudaMalloc((void **)&to, COUNT * sizeof *to), "memory");
    struct cuda_launch l = {};
    l.stream = stream;
    l.fault = &fault;
    l.device = &device;
    l.overlap = graph && device.major >= 9; /* as the engine does, and as it does when plain */
    l.kernels = &kernels;
    if (graph)
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording");
    cuda_launch(&l, "prelude", prelude, dim3(1), dim3(THREADS), 0, from);
    cuda_launch(&l, faults[which].tool, faults[which].kernel, dim3(faults[which].blocks),
                dim3(THREADS), 0, faults[which].unwritten ? never : from, to);
    if (graph) {
        cudaGraph_t recorded = NULL;
        cudaGraphExec_t exec = NULL;
        must(cudaStreamEndCapture(stream, &recorded), "recording");
        must(cudaGraphInstantiate(&exec, recorded, 0), "recording");
        for (int i = 0; i < REPLAYS; i++)
            must(cudaGraphLaunch(exec, stream), "replaying");
        must(cudaStreamSynchronize(stream), "a graph");
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(recorded);
    }
    must(cudaMemcpyAsync(&last, to, sizeof last, cudaMemcpyDeviceToHost, stream), "reading");
    must(cudaStreamSynchronize(stream), "the kernels");
    if (fault.set) {
        printf("%s: %s\n", fault.error.name, fault.error.message);
        exit(1);
    }
    printf("a fault for %s, %s: %u kernels, done\n", faults[which].tool,
           graph ? "in a graph" : "launched plainly", kernels);
    cudaFree(from);
    cudaFree(never);
    cudaFree(to);
    cudaStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return 0;
    const bool graph = argc == 4 && strcmp(argv[3], "--graph") == 0;
    int which = 0;
    while (argc > 2 && which < FAULTS && strcmp(argv[2], faults[which].tool) != 0)
        which++;
    if (argc < 3 || argc > 3 + (graph ? 1 : 0) || strcmp(argv[1], "--fault") != 0 ||
        which == FAULTS) {
        fprintf(stderr, "usage: %s [--fault memcheck|initcheck|racecheck [--graph]]\n", argv[0]);
        return 2;
    }
    commit(which, graph);
    return 0;
}
