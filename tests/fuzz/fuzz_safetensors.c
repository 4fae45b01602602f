/* libFuzzer: a whole checkpoint folder. The input is cut at the first two FF bytes into the index
 * and two shards; what is missing is left out of the folder. Each shard also goes straight to the
 * header parser from memory of its exact length. */
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inventory.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static void write_file(const char *name, const uint8_t *data, size_t length)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!data) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, length, f) != length || fclose(f) != 0)
        abort();
}

static void remove_folder(void)
{
    write_file("config.json", NULL, 0);
    write_file("model.safetensors.index.json", NULL, 0);
    write_file("model.safetensors", NULL, 0);
    write_file("two.safetensors", NULL, 0);
    rmdir(folder);
}

/* A child that outlives us by a moment: libFuzzer ends by _Exit when it is interrupted or has found
 * something, where atexit does not reach. */
static void remove_folder_at_the_end(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        abort();
    const pid_t child = fork();
    if (child < 0)
        abort();
    if (child > 0) {
        close(ends[0]); /* the other end closes with this process */
        return;
    }
    char byte;
    setsid();
    signal(SIGPIPE, SIG_IGN);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    close(ends[1]);
    while (read(ends[0], &byte, 1) < 0)
        continue;
    remove_folder();
    _exit(0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    static const char config[] = "{\"model_type\":\"laguna\"}";
    snprintf(folder, sizeof folder, "%s/mlxfast-fuzz-XXXXXX", base);
    if (!mkdtemp(folder))
        abort();
    write_file("config.json", (const uint8_t *)config, sizeof config - 1);
    remove_folder_at_the_end();
    return 0;
}

/* What a reader does with an accepted file: every byte of every tensor is there. */
static unsigned touch(const struct tensor *t, size_t count)
{
    unsigned sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t elements = 1;
        for (int d = 0; d < t[i].rank; d++)
            elements *= (uint64_t)t[i].shape[d];
        if (elements * dtype_size(t[i].dtype) != t[i].bytes)
            abort();
        for (uint64_t b = 0; b < t[i].bytes; b++)
            sum += t[i].data[b];
        if (i > 0 && strcmp(t[i - 1].name, t[i].name) >= 0)
            abort();
    }
    return sum;
}

static void parse_alone(const uint8_t *data, size_t length)
{
    struct arena a = {0};
    struct tensor *t;
    size_t n;
    struct error err = {0};
    uint8_t *copy = malloc(length ? length : 1);
    if (!copy)
        abort();
    if (length)
        memcpy(copy, data, length);
    if (safetensors_parse(&a, "fuzz", copy, length, &t, &n, &err))
        touch(t, n);
    else if (strcmp(err.name, "SAFETENSORS-INVALID") != 0 || !*err.message)
        abort();
    arena_free(&a);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *parts[3] = {data, NULL, NULL};
    size_t lengths[3] = {size, 0, 0};
    for (int i = 0; i < 2; i++) {
        const uint8_t *cut = memchr(parts[i], 0xFF, lengths[i]);
        if (!cut)
            break;
        parts[i + 1] = cut + 1;
        lengths[i + 1] = lengths[i] - (size_t)(cut + 1 - parts[i]);
        lengths[i] = (size_t)(cut - parts[i]);
    }
    for (int i = 1; i < 3; i++)
        if (parts[i])
            parse_alone(parts[i], lengths[i]);
    write_file("model.safetensors.index.json", lengths[0] ? parts[0] : NULL, lengths[0]);
    write_file("model.safetensors", parts[1], lengths[1]);
    write_file("two.safetensors", parts[2], lengths[2]);
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (checkpoint_open(folder, &c, &err)) {
        char hex[65];
        touch(c->tensors, c->tensor_count);
        inventory_canonical_sha256(c, hex);
        checkpoint_close(c);
    } else if (!*err.name || !*err.message) {
        abort();
    }
    return 0;
}
