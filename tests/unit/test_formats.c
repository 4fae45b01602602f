/* bf16, E2M1, E4M3 and NVFP4 (laguna.md section 7): cases by hand, and the vectors of an
 * independent implementation (tests/vectors/nvfp4.json). */
#include "base/json.h"
#include "engine/checkpoint/formats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char VECTORS[] = "tests/vectors/nvfp4.json";

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void test_bf16(void **state)
{
    (void)state;
    assert_int_equal(bits(bf16_to_f32(0x3F80)), 0x3F800000);
    assert_int_equal(f32_to_bf16(1.0f), 0x3F80);
    assert_int_equal(f32_to_bf16(from_bits(0x3F808000)), 0x3F80); /* tie to even, down */
    assert_int_equal(f32_to_bf16(from_bits(0x3F818000)), 0x3F82); /* tie to even, up */
    assert_int_equal(f32_to_bf16(from_bits(0x3F808001)), 0x3F81);
    assert_int_equal(f32_to_bf16(from_bits(0x7F7FFFFF)), 0x7F80); /* overflow to infinity */
    assert_int_equal(f32_to_bf16(from_bits(0xFF800000)), 0xFF80);
    assert_int_equal(f32_to_bf16(from_bits(0x7F800001)), 0x7FC0); /* NaN stays NaN */
    assert_int_equal(f32_to_bf16(-0.0f), 0x8000);
    for (uint32_t b = 0; b < 0x10000; b++)
        if ((b & 0x7FFF) <= 0x7F80)
            assert_int_equal(f32_to_bf16(bf16_to_f32((uint16_t)b)), b);
}

static void test_tables_by_hand(void **state)
{
    (void)state;
    assert_true(e2m1_values[7] == 6.0f && e2m1_values[9] == -0.5f);
    assert_int_equal(bits(e2m1_values[8]), 0x80000000);
    assert_true(e4m3_values[0x01] == 0.001953125f); /* 2^-9 */
    assert_true(e4m3_values[0x07] == 7 * 0.001953125f);
    assert_true(e4m3_values[0x08] == 0.015625f); /* 2^-6, the smallest normal */
    assert_true(e4m3_values[0x38] == 1.0f);
    assert_true(e4m3_values[0x7E] == 448.0f);
    assert_true(e4m3_values[0x7F] == 480.0f); /* no NaN */
    assert_true(e4m3_values[0xFF] == -480.0f);
    assert_int_equal(bits(e4m3_values[0x80]), 0x80000000);
    for (int b = 0; b < 128; b++) {
        /* The spec's own recipe: the low seven bits at bit 7 of a half, times 256. */
        const int exponent = b >> 3, mantissa = b & 7;
        const float half = exponent == 0 ? ldexpf((float)mantissa / 8, -14)
                                         : ldexpf(1 + (float)mantissa / 8, exponent - 15);
        assert_true(e4m3_values[b] == half * 256);
        assert_true(e4m3_values[b + 128] == -half * 256);
    }
}

static void test_e2m1_ties_go_to_even(void **state)
{
    (void)state;
    static const struct {
        float tie;
        int at, above;
    } ties[] = {{0.25f, 0, 1}, {0.75f, 2, 2}, {1.25f, 2, 3}, {1.75f, 4, 4},
                {2.5f, 4, 5},  {3.5f, 6, 6},  {5.0f, 6, 7}};
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
        const float t = ties[i].tie;
        assert_int_equal(e2m1_encode(t), ties[i].at);
        assert_int_equal(e2m1_encode(nextafterf(t, 9)), ties[i].above);
        assert_int_equal(e2m1_encode(nextafterf(t, 0)), (int)i);
        assert_int_equal(e2m1_encode(-t), 8 + ties[i].at);
    }
    assert_int_equal(e2m1_encode(0.0f), 0);
    assert_int_equal(e2m1_encode(-0.0f), 8);
    assert_int_equal(e2m1_encode(1e30f), 7);
    assert_int_equal(e2m1_encode(-INFINITY), 15);
    assert_int_equal(e2m1_encode(NAN), 7);
    assert_int_equal(e2m1_encode(-NAN), 7);
    for (int code = 0; code < 16; code++)
        assert_int_equal(e2m1_encode(e2m1_values[code]), code);
}

static void test_e4m3_rounding(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        if ((b & 0x7F) != 0x7F)
            assert_int_equal(e4m3_encode(e4m3_values[b]), b);
    for (int b = 0; b < 0x7E; b++) {
        const float middle = (e4m3_values[b] + e4m3_values[b + 1]) / 2; /* exact */
        assert_int_equal(e4m3_encode(middle), b + (b & 1));
        assert_int_equal(e4m3_encode(nextafterf(middle, 0)), b);
        assert_int_equal(e4m3_encode(nextafterf(middle, 1e9f)), b + 1);
        assert_int_equal(e4m3_encode(-middle), 0x80 | (b + (b & 1)));
    }
    assert_int_equal(e4m3_encode(464.0f), 0x7E); /* saturates: 480 is never written */
    assert_int_equal(e4m3_encode(1e30f), 0x7E);
    assert_int_equal(e4m3_encode(-INFINITY), 0xFE);
    assert_int_equal(e4m3_encode(NAN), 0x7E);
    assert_int_equal(e4m3_encode(from_bits(1)), 0); /* a denormal */
}

static void test_groups_by_hand(void **state)
{
    (void)state;
    float x[16] = {0}, back[16];
    uint32_t codes[2];
    uint8_t scale;
    x[0] = 6.0f;
    x[1] = -3.0f;
    x[2] = 0.25f; /* a tie, down */
    x[3] = 0.75f; /* a tie, up */
    x[15] = -0.1f;
    nvfp4_quantize(x, 16, codes, &scale);
    assert_int_equal(scale, 0x38); /* 6/6 = 1 */
    assert_int_equal(codes[0], 7 | 0xD << 4 | 0 << 8 | 2 << 12);
    assert_int_equal(codes[1], 0x80000000u); /* -0 at element 15 */
    nvfp4_dequantize(codes, &scale, 16, back);
    assert_true(back[0] == 6.0f && back[1] == -3.0f && back[2] == 0 && back[3] == 1.0f);

    /* Saturation: 6000/6 is beyond 448, the codes too are the largest. */
    x[0] = 6000.0f;
    nvfp4_quantize(x, 16, codes, &scale);
    assert_int_equal(scale, 0x7E);
    assert_int_equal(codes[0] & 15, 7);

    /* A group so small that its scale is zero: code 0 everywhere, whatever the sign. */
    for (int i = 0; i < 16; i++)
        x[i] = i % 2 ? -1e-3f : 1e-3f;
    nvfp4_quantize(x, 16, codes, &scale);
    assert_int_equal(scale, 0);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);

    /* NaN: code 7, and the largest scale. */
    memset(x, 0, sizeof x);
    x[5] = NAN;
    x[6] = 448.0f;
    nvfp4_quantize(x, 16, codes, &scale);
    assert_int_equal(scale, 0x7E);
    assert_int_equal(codes[0], 7u << 20 | 2u << 24);

    /* The sign of a scale counts when reading. */
    codes[0] = 2;
    codes[1] = 0;
    scale = 0xB8;
    nvfp4_dequantize(codes, &scale, 16, back);
    assert_true(back[0] == -1.0f);
}

static void test_products_are_exact_in_bf16(void **state)
{
    (void)state;
    for (int code = 0; code < 16; code++)
        for (int s = 0; s < 256; s++) {
            const float product = e2m1_values[code] * e4m3_values[s];
            assert_int_equal(bits(bf16_to_f32(f32_to_bf16(product))), bits(product));
        }
}

/* --- vectors ----------------------------------------------------------------------------------*/

static uint32_t hex_at(const json_t *value)
{
    const char *text = json_string_value(value);
    assert_non_null(text);
    return (uint32_t)strtoul(text, NULL, 16);
}

static json_t *vectors(const char *key)
{
    struct error err = {0};
    json_t *root = json_read_file(VECTORS, 16 << 20, 64, &err);
    if (!root)
        fail_msg("%s: %s", VECTORS, err.message);
    json_t *list = json_incref(json_object_get(root, key));
    json_decref(root);
    assert_true(json_array_size(list) > 0);
    return list;
}

static void test_vector_codes(void **state)
{
    (void)state;
    json_t *e2m1 = vectors("e2m1"), *e4m3 = vectors("e4m3");
    for (size_t i = 0; i < json_array_size(e2m1); i++) {
        const json_t *row = json_array_get(e2m1, i);
        assert_int_equal(e2m1_encode(from_bits(hex_at(json_array_get(row, 0)))),
                         json_integer_value(json_array_get(row, 1)));
    }
    for (size_t i = 0; i < json_array_size(e4m3); i++) {
        const json_t *row = json_array_get(e4m3, i);
        assert_int_equal(e4m3_encode(from_bits(hex_at(json_array_get(row, 0)))),
                         json_integer_value(json_array_get(row, 1)));
    }
    json_decref(e2m1);
    json_decref(e4m3);
}

static void test_vector_tables(void **state)
{
    (void)state;
    json_t *decode = vectors("decode"), *codes = vectors("codes");
    assert_int_equal(json_array_size(decode), 256);
    assert_int_equal(json_array_size(codes), 16);
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(bits(e4m3_values[i]), hex_at(json_array_get(decode, i)));
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(bits(e2m1_values[i]), hex_at(json_array_get(codes, i)));
    json_decref(decode);
    json_decref(codes);
}

static void test_vector_groups(void **state)
{
    (void)state;
    json_t *list = vectors("groups");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *group = json_array_get(list, i);
        float x[16], out[16];
        uint32_t codes[2];
        uint8_t scale;
        for (size_t j = 0; j < 16; j++)
            x[j] = from_bits(hex_at(json_array_get(json_object_get(group, "x"), j)));
        nvfp4_quantize(x, 16, codes, &scale);
        nvfp4_dequantize(codes, &scale, 16, out);
        assert_int_equal(scale, json_integer_value(json_object_get(group, "scale")));
        for (size_t j = 0; j < 16; j++) {
            const json_int_t code =
                json_integer_value(json_array_get(json_object_get(group, "codes"), j));
            if ((codes[j / 8] >> (4 * (j % 8)) & 15) != (uint32_t)code)
                fail_msg("group %zu element %zu: code %u, expected %lld", i, j,
                         codes[j / 8] >> (4 * (j % 8)) & 15, (long long)code);
            assert_int_equal(bits(out[j]),
                             hex_at(json_array_get(json_object_get(group, "values"), j)));
        }
    }
    json_decref(list);
}

static void test_vector_packing(void **state)
{
    (void)state;
    json_t *list = vectors("packing");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(row, "codes"));
        const json_t *words = json_object_get(row, "words");
        const json_t *scales = json_object_get(row, "scales");
        const json_t *values = json_object_get(row, "values");
        const size_t n = strlen(text);
        uint32_t packed[64];
        uint8_t bytes[32];
        float out[512];
        assert_true(n <= 512 && n % 16 == 0 && json_array_size(words) == n / 8);
        for (size_t j = 0; j < n / 8; j++)
            packed[j] = (uint32_t)json_integer_value(json_array_get(words, j));
        for (size_t j = 0; j < n / 16; j++)
            bytes[j] = (uint8_t)json_integer_value(json_array_get(scales, j));
        nvfp4_dequantize(packed, bytes, n, out);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(bits(out[j]), hex_at(json_array_get(values, j)));
    }
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_tables_by_hand),
        cmocka_unit_test(test_e2m1_ties_go_to_even),
        cmocka_unit_test(test_e4m3_rounding),
        cmocka_unit_test(test_groups_by_hand),
        cmocka_unit_test(test_products_are_exact_in_bf16),
        cmocka_unit_test(test_vector_codes),
        cmocka_unit_test(test_vector_tables),
        cmocka_unit_test(test_vector_groups),
        cmocka_unit_test(test_vector_packing),
    };
    return cmocka_run_group_tests_name("formats", tests, NULL, NULL);
}
