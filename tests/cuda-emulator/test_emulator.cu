/* The emulator itself: that it computes what CUDA says, and that it sees what kernels may not do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
extern "C" {
#include <cmocka.h>
}
#include <cuda_runtime.h>

static __global__ void first(int *p)
{
    p[threadIdx.x] = (int)threadIdx.x;
}

static void test_launch(void **state)
{
    (void)state;
    int *p, h[64];
    assert_int_equal(cudaMalloc(&p, sizeof h), cudaSuccess);
    cudaLaunchConfig_t c = {};
    c.blockDim = 64;
    assert_int_equal(cudaLaunchKernelEx(&c, first, p), cudaSuccess);
    assert_int_equal(cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 64; i++)
        assert_int_equal(h[i], i);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
