/* Choosing the table of kernels once, and the rows of key and value rings. */
#include "engine/compute/cpu/kernels.h"
#include "engine/checkpoint/formats.h"

#include <stdlib.h>
#include <string.h>

size_t kernel_key_bytes(enum activations a, int head_dim)
{
    const size_t n = (size_t)kernel_pad(head_dim, KERNEL_BLOCK);
    return n * (a == ACTIVATIONS_BF16 ? sizeof(uint16_t) : sizeof(float));
}

size_t kernel_value_bytes(enum activations a, int head_dim)
{
    const size_t n = (size_t)kernel_pad(head_dim, KERNEL_LANES);
    return n * (a == ACTIVATIONS_BF16 ? sizeof(uint16_t) : sizeof(float));
}

static void store_bf16(const float *x, int n, int padded, void *out)
{
    uint16_t *b = out;
    for (int i = 0; i < n; i++)
        b[i] = f32_to_bf16(x[i]);
    for (int i = n; i < padded; i++)
        b[i] = 0;
}

void kernel_key_store(const struct cpu_kernels *k, enum activations a, const float *x, int head_dim,
                      void *out)
{
    if (a == ACTIVATIONS_BF16)
        store_bf16(x, head_dim, kernel_pad(head_dim, KERNEL_BLOCK), out);
    else
        k->prepare(a, x, head_dim, out);
}

void kernel_value_store(enum activations a, const float *x, int head_dim, void *out)
{
    const int padded = kernel_pad(head_dim, KERNEL_LANES);
    if (a == ACTIVATIONS_BF16) {
        store_bf16(x, head_dim, padded, out);
        return;
    }
    float *f = out;
    memcpy(f, x, (size_t)head_dim * sizeof *f);
    for (int i = head_dim; i < padded; i++)
        f[i] = 0.0f;
}

size_t kernel_attention_scratch(int head_dim)
{
    /* two rows of outputs, a chunk's and the total, per head in hand */
    return 2 * KERNEL_HEADS * (size_t)kernel_pad(head_dim, KERNEL_LANES);
}

#if defined(__x86_64__)

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

/* Every feature that the file is compiled for. */
static bool have_avx512(void)
{
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
}

int kernels_available(const struct cpu_kernels *out[KERNELS_MAX])
{
    int n = 0;
    out[n++] = &cpu_kernels_portable;
    if (have_avx2())
        out[n++] = &cpu_kernels_avx2;
    if (have_avx512())
        out[n++] = &cpu_kernels_avx512;
    return n;
}

#elif defined(__aarch64__)

int kernels_available(const struct cpu_kernels *out[KERNELS_MAX])
{
    int n = 0;
    out[n++] = &cpu_kernels_portable;
    out[n++] = &cpu_kernels_neon; /* part of the base architecture */
    return n;
}

#else

int kernels_available(const struct cpu_kernels *out[KERNELS_MAX])
{
    out[0] = &cpu_kernels_portable;
    return 1;
}

#endif

bool kernels_choose(const char *name, const struct cpu_kernels **out, struct error *err)
{
    /* A judge hands a worker only variables that begin with BENCH_WORKER_. */
    static const char *const variables[] = {"MLXFAST_CPU", "BENCH_WORKER_CPU"};
    const char *field = "cpu";
    for (size_t i = 0; name == NULL && i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0') {
            name = value;
            field = variables[i];
        }
    }
    const struct cpu_kernels *have[KERNELS_MAX];
    const int n = kernels_available(have);
    *out = have[n - 1];
    if (name == NULL)
        return true;
    for (int i = 0; i < n; i++) {
        if (strcmp(have[i]->name, name) == 0) {
            *out = have[i];
            return true;
        }
    }
    char list[64] = "";
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(have[i]->name);
        if (used + length + 3 > sizeof list)
            break;
        if (i > 0) {
            memcpy(list + used, ", ", 2);
            used += 2;
        }
        memcpy(list + used, have[i]->name, length + 1);
        used += length;
    }
    static const char *const known[] = {"portable", "avx2", "avx512", "neon"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        is_known = is_known || strcmp(known[i], name) == 0;
    error_set(err, "CPU-UNSUPPORTED",
              is_known ? "this machine has no such instruction set; it can run: %s"
                       : "unknown instruction set; this machine can run: %s",
              list);
    return error_at(err, NULL, field, name);
}
