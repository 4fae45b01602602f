/* pack.h: every tensor keeps its bytes and gets a cache line; the maps go; a stop leaves all as it
 * was. */
#include "../malformed/files.h"
#include "base/child.h"
#include "base/file.h"
#include "engine/checkpoint/pack.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char CONFIG[] = "config.json";
static const char INDEX[] = "model.safetensors.index.json";
static const char SINGLE[] = "model.safetensors";
static const char ONE[] = "one.safetensors";
static const char TWO[] = "two.safetensors";

/* Odd sizes at odd places, an empty tensor, names in another order than places, two shards. */
static struct folder odd(void)
{
    struct folder f = folder_new();
    folder_text(&f, CONFIG, "{'model_type':'laguna'}");
    folder_text(&f, INDEX,
                "{'weight_map':{'z':'one.safetensors','a':'one.safetensors','m':'one.safetensors',"
                "'e':'two.safetensors','c':'two.safetensors'}}");
    folder_write(&f, ONE,
                 bytes_safetensors("{'z':{'dtype':'U8','shape':[3],'data_offsets':[0,3]},"
                                   "'a':{'dtype':'BF16','shape':[2,33],'data_offsets':[3,135]},"
                                   "'m':{'dtype':'U8','shape':[64],'data_offsets':[135,199]}}",
                                   199));
    folder_write(&f, TWO,
                 bytes_safetensors("{'e':{'dtype':'F32','shape':[0],'data_offsets':[0,0]},"
                                   "'c':{'dtype':'U8','shape':[7],'data_offsets':[0,7]}}",
                                   7));
    return f;
}

struct heard {
    uint64_t done, total;
    int calls;
};

static void hear(void *context, uint64_t done, uint64_t total)
{
    struct heard *h = context;
    assert_true(done >= h->done && done <= total);
    *h = (struct heard){done, total, h->calls + 1};
}

static void values_stay_and_lie_on_cache_lines(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads += 2) {
        struct folder f = odd();
        struct error err;
        struct checkpoint *mapped, *packed;
        struct heard heard = {0};
        const struct pack_options o = {.threads = threads, .progress = hear, .context = &heard};
        assert_true(checkpoint_open(f.path, &mapped, &err));
        assert_true(checkpoint_open(f.path, &packed, &err));
        assert_int_equal(checkpoint_packed_bytes(packed), 64 + 192 + 64 + 0 + 64);
        assert_true(checkpoint_pack(packed, &o, &err));
        assert_int_equal(packed->tensor_count, 5);
        for (size_t i = 0; i < 5; i++) {
            const struct tensor *from = &mapped->tensors[i], *to = &packed->tensors[i];
            assert_string_equal(from->name, to->name);
            assert_ptr_not_equal(from->data, to->data);
            assert_int_equal((uintptr_t)to->data % PACK_ALIGN, 0);
            assert_int_equal(from->bytes, to->bytes);
            assert_memory_equal(from->data, to->data, to->bytes);
        }
        for (size_t i = 0; i < packed->shard_count; i++)
            assert_null(packed->shards[i].map.data);
        assert_int_equal(heard.done, 206);
        assert_int_equal(heard.total, 206);
        assert_true(heard.calls >= 2);
        checkpoint_close(mapped);
        checkpoint_close(packed);
        static const char *const all[] = {CONFIG, INDEX, ONE, TWO, NULL};
        folder_free(&f, all);
    }
}

/* A shard of 81 MB, of it a few bytes that are not zero, on both sides of a piece's end. */
static struct folder large(void)
{
    enum { BYTES = 81000001 };
    struct folder f = folder_new();
    char header[160];
    folder_text(&f, CONFIG, "{'model_type':'laguna'}");
    snprintf(header, sizeof header,
             "{'w':{'dtype':'U8','shape':[%d],'data_offsets':[0,%d]},"
             "'x':{'dtype':'U8','shape':[1],'data_offsets':[%d,%d]}}",
             BYTES - 1, BYTES - 1, BYTES - 1, BYTES);
    struct bytes b = bytes_safetensors(header, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f.path, SINGLE);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b.data, 1, b.length, file), b.length);
    const long at[] = {0, (4 << 20) - 1, 4 << 20, 8 << 20, BYTES - 2, BYTES - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        assert_int_equal(fseek(file, (long)b.length + at[i], SEEK_SET), 0);
        assert_int_not_equal(fputc((int)i + 1, file), EOF);
    }
    assert_int_equal(fclose(file), 0);
    free(b.data);
    return f;
}

static void stops_when_it_is_told(void **state)
{
    (void)state;
    struct folder f = large();
    struct error err = {0};
    struct checkpoint *c, *mapped;
    const struct pack_options o = {.threads = 2};
    assert_true(checkpoint_open(f.path, &c, &err));
    assert_true(checkpoint_open(f.path, &mapped, &err));
    const uint8_t *before = c->tensors[0].data;
    interrupt_install();
    raise(SIGINT);
    assert_false(checkpoint_pack(c, &o, &err));
    assert_string_equal(err.name, "INTERRUPTED");
    assert_ptr_equal(c->tensors[0].data, before);
    assert_null(c->packed.data);
    assert_int_equal(before[4 << 20], 3);
    interrupt_reset();
    assert_true(checkpoint_pack(c, &o, &err));
    for (int i = 0; i < 2; i++)
        assert_int_equal(memcmp(c->tensors[i].data, mapped->tensors[i].data, c->tensors[i].bytes),
                         0);
    assert_int_equal(c->tensors[1].data[0], 6);
    checkpoint_close(c);
    checkpoint_close(mapped);
    static const char *const all[] = {CONFIG, SINGLE, NULL};
    folder_free(&f, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stay_and_lie_on_cache_lines),
        cmocka_unit_test(stops_when_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
