/* wire.h: the one decoder and the one encoder. The whole corpus stands in
 * tests/cli/test_wire_schema.py, which checks it against an independent validator as well. */
#include "wire/wire.h"

#include "base/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct arena arena;

static int clean_up(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Every request field, in wire order. */
static const char every_request_field[] =
    "{\"id\":-7,\"kind\":\"cohort_reference_replay\",\"prompt_tokens\":[1,-2],\"token\":3,"
    "\"seed_tokens\":[],\"steps\":-4,\"count\":4294967295,"
    "\"spec\":{\"mode\":\"dflash\",\"mtp\":{\"depth\":0},\"dflash\":{\"z\":1.5,\"a\":[{},null]},"
    "\"dspark\":{}},\"seed_tokens_by_stream\":[[5],[]],\"batch_size\":2,"
    "\"replay_seeds_by_stream\":[[6]],\"committed_by_stream\":[[7,8]],\"logit_top_k\":16,"
    "\"rel_envelope\":0.05,\"replay_width\":\"canonical\"}\n";

/* Every response field, in wire order. */
static const char every_response_field[] =
    "{\"id\":9223372036854775807,\"nonce\":\"n\\\"\\\\\\u0001\\n\xc3\xa9\",\"ok\":false,"
    "\"error\":\"\",\"token\":-9223372036854775808,"
    "\"top_logits\":[{\"token\":1,\"logit\":5.0},{\"token\":2,\"logit\":-1e-7}],\"seed_token\":3,"
    "\"tokens\":[4],\"expert_stats\":{\"expert_cache_hits\":1,\"expert_cache_misses\":2,"
    "\"expert_cache_evictions\":3,\"expert_bytes_read\":4,\"expert_read_seconds\":0.25,"
    "\"expert_peak_cached_tensors\":5},\"peak_ram_gb\":1.5,\"protocol_version\":1,"
    "\"backend\":\"cpu\",\"device\":\"x\",\"completed_work\":6,\"cache_memory\":0,"
    "\"capabilities\":[\"a\",\"b\"],\"acceptance_lengths\":[1,2],\"drafted_total\":7,"
    "\"accepted_total\":8,\"committed_total\":9,\"effective_spec\":{\"mode\":\"mtp\",\"mtp\":{}},"
    "\"spec_modes\":[],\"head_provenance\":{\"sha256\":\"s\",\"bytes\":10,\"file_count\":11},"
    "\"mlx_active_memory_bytes\":12,\"mlx_cache_memory_bytes\":13,\"mlx_peak_memory_bytes\":14,"
    "\"top_logit_margin\":0.0,\"expected_token_logit\":-0.0,\"expected_token_rank\":15,"
    "\"spec_decoder\":\"mtp\",\"max_batch_size\":16,\"seed_token_by_stream\":[17],"
    "\"effective_batch_size\":18,\"tokens_by_stream\":[[19],[20,21]],"
    "\"natural_accepted_by_stream\":[[22],[]],\"rounds\":23,\"active_streams_by_round\":[24],"
    "\"depth_clamp_reasons\":{\"a\":1,\"b\":2},\"prefill_ns_by_stream\":[25],"
    "\"decode_ns_by_stream\":[26],\"cohort_reference_replay\":{\"x\":1e300,\"streams\":[{\"slot\":"
    "0,"
    "\"positions\":[{\"committed_token\":1,\"sequential_argmax\":2,\"y\":[0.1]}]}]},"
    "\"verify_replay_disagreements\":27,\"verification_mode\":\"serial\","
    "\"rectangular_verification_rounds\":28,\"serial_verification_rounds\":29,"
    "\"runner\":{\"id\":\"i\",\"model_type\":\"m\",\"manifest_sha256\":\"" HASH
    "\",\"build\":\"b\"},\"resident\":{\"pid\":30,\"load_epoch\":31},"
    "\"arithmetic\":\"strict\"}\n";

static void every_field_survives(void **state)
{
    (void)state;
    struct buffer out = {0};
    struct error err;
    struct wire_request q;
    struct wire_response r;
    assert_true(wire_request_decode(&arena, every_request_field, strlen(every_request_field) - 1,
                                    &q, &err));
    wire_request_encode(&q, &out);
    assert_string_equal(out.data, every_request_field);
    assert_int_equal(q.id.value, -7);
    assert_int_equal(q.prompt_tokens.count, 2);
    assert_int_equal(q.prompt_tokens.items[1], -2);
    assert_true(q.seed_tokens.present);
    assert_int_equal(q.seed_tokens.count, 0);
    assert_int_equal(q.committed_by_stream.items[0].items[1], 8);
    assert_true(q.spec.has_mtp && q.spec.mtp_depth.present && q.spec.dflash && q.spec.dspark);
    wire_request_free(&q);
    assert_false(q.id.present);
    buffer_clear(&out);
    if (!wire_response_decode(&arena, every_response_field, strlen(every_response_field) - 1, &r,
                              &err))
        fail_msg("%s %s: %s", err.name, err.field, err.message);
    wire_response_encode(&r, &out);
    assert_string_equal(out.data, every_response_field);
    assert_true(r.top_logits.items[0].logit == 5);
    assert_true(r.token.value == INT64_MIN);
    assert_string_equal(r.nonce.text, "n\"\\\x01\n\xc3\xa9");
    assert_int_equal(r.expert_stats.expert_peak_cached_tensors, 5);
    assert_false(r.effective_spec.mtp_depth.present);
    assert_true(r.effective_spec.has_mtp);
    assert_string_equal(r.runner.manifest_sha256, HASH);
    assert_int_equal(r.natural_accepted_by_stream.items[0].items[0], 22);
    wire_response_free(&r);
    assert_null(r.cohort_reference_replay.report);
    buffer_free(&out);
}

static void absent_fields(void **state)
{
    (void)state;
    struct error err;
    struct wire_response r;
    struct buffer out = {0};
    const char line[] = " { \"ok\" : true , \"nonce\" : null, \"tokens\": null, \"id\" : 3, "
                        "\"effective_spec\":null,\"peak_ram_gb\":2 } \r";
    assert_true(wire_response_decode(&arena, line, sizeof line - 1, &r, &err));
    assert_null(r.nonce.text);
    assert_false(r.tokens.present || r.effective_spec.present || r.token.present);
    assert_true(r.peak_ram_gb.present && r.peak_ram_gb.value == 2);
    wire_response_encode(&r, &out);
    assert_string_equal(out.data, "{\"id\":3,\"ok\":true,\"peak_ram_gb\":2.0}\n");
    wire_response_free(&r);
    buffer_free(&out);
}

static void refused(const char *line, const char *name, const char *field, const char *value)
{
    struct error err = {0};
    struct wire_request q;
    bool request = strstr(line, "\"ok\"") == NULL;
    struct wire_response r;
    bool ok = request ? wire_request_decode(&arena, line, strlen(line), &q, &err)
                      : wire_response_decode(&arena, line, strlen(line), &r, &err);
    if (ok)
        fail_msg("accepted: %s", line);
    assert_string_equal(err.name, name);
    assert_string_equal(err.field, field);
    assert_string_equal(err.value, value);
    assert_true(err.message[0] != '\0');
    /* Nothing is left to release, and releasing again does no harm. */
    if (request)
        wire_request_free(&q);
    else
        wire_response_free(&r);
}

static void refusals(void **state)
{
    (void)state;
    refused("", "WIRE-INVALID", "", "");
    refused("{", "WIRE-INVALID", "", "");
    refused("[]", "WIRE-INVALID", "", "");
    refused("7", "WIRE-INVALID", "", "7");
    refused("{\"id\":1,\"kind\":\"prefill\"}{}", "WIRE-INVALID", "", "");
    refused("{\"id\":1,\"kind\":\"prefill\",\"token\":1,\"token\":2}", "WIRE-INVALID", "token", "");
    refused("{\"kind\":\"prefill\"}", "WIRE-MISSING-KEY", "id", "");
    refused("{\"id\":null,\"kind\":\"prefill\"}", "WIRE-INVALID", "id", "null");
    refused("{\"id\":1}", "WIRE-MISSING-KEY", "kind", "");
    refused("{\"id\":1,\"kind\":\"warp\"}", "WIRE-UNKNOWN-KIND", "kind", "\"warp\"");
    refused("{\"id\":1,\"kind\":\"prefill\",\"golden\":1}", "WIRE-UNKNOWN-KEY", "golden", "");
    refused("{\"id\":1,\"kind\":\"prefill\",\"token\":5.0}", "WIRE-INVALID", "token", "5.0");
    refused("{\"id\":1,\"kind\":\"prefill\",\"count\":-1}", "WIRE-INVALID", "count", "-1");
    refused("{\"id\":1,\"ok\":true,\"tokens_by_stream\":[[1],[2,\"3\"]]}", "WIRE-INVALID",
            "tokens_by_stream[1][1]", "\"3\"");
    /* What was taken over before the fault is released: the leak check of SAN=1 sees to it. */
    refused("{\"id\":1,\"ok\":true,\"effective_spec\":{\"mode\":\"dflash\",\"dflash\":{\"a\":1},"
            "\"dspark\":{\"b\":2}},\"resident\":{\"pid\":1}}",
            "WIRE-MISSING-KEY", "resident.load_epoch", "");
    refused("{\"id\":1,\"ok\":true,\"effective_spec\":{\"mode\":\"dflash\",\"dflash\":{\"a\":1},"
            "\"dspark\":7}}",
            "WIRE-INVALID", "effective_spec.dspark", "7");
    refused("{\"id\":1,\"ok\":true,\"cohort_reference_replay\":{\"streams\":[]},\"x\":1}",
            "WIRE-UNKNOWN-KEY", "x", "");
}

static void encoder_always_writes_a_line(void **state)
{
    (void)state;
    struct wire_response r = {.id = {true, 1}, .ok = {true, false}};
    struct wire_response back;
    struct buffer out = {0};
    struct error err;
    r.error.text = "bad \xff byte\nand \xe2\x82 half";
    r.peak_ram_gb = (struct wire_f64){true, NAN};
    r.drafted_total = (struct wire_u64){true, UINT64_MAX};
    wire_response_encode(&r, &out);
    assert_string_equal(out.data, "{\"id\":1,\"ok\":false,\"error\":\"bad \xef\xbf\xbd byte\\nand "
                                  "\xef\xbf\xbd\xef\xbf\xbd half\",\"peak_ram_gb\":null,"
                                  "\"drafted_total\":18446744073709551615}\n");
    r.drafted_total.present = false;
    buffer_clear(&out);
    wire_response_encode(&r, &out);
    assert_true(wire_response_decode(&arena, out.data, out.length - 1, &back, &err));
    wire_response_free(&back);
    /* Counts are sorted by key whatever order they come in. */
    const char *keys[] = {"tail_depth", "batch_gate"};
    uint32_t values[] = {1, 2};
    struct wire_response counts = {.id = {true, 2}, .ok = {true, true}};
    counts.depth_clamp_reasons = (struct wire_counts){true, 2, keys, values};
    buffer_clear(&out);
    wire_response_encode(&counts, &out);
    assert_string_equal(out.data, "{\"id\":2,\"ok\":true,"
                                  "\"depth_clamp_reasons\":{\"batch_gate\":2,\"tail_depth\":1}}\n");
    /* Lines are appended. */
    struct wire_request q = {.id = {true, 3}, .kind = {"prefill"}};
    wire_request_encode(&q, &out);
    assert_true(text_ends(out.data, "}\n{\"id\":3,\"kind\":\"prefill\"}\n"));
    buffer_free(&out);
}

static void spec_alone(void **state)
{
    (void)state;
    struct wire_spec s;
    struct error err;
    struct buffer out = {0};
    const char text[] =
        "{\"mode\":\"dflash\",\"dflash\":{\"depth\":4,\"draft\":{\"artifact\":\"d\"}}}";
    assert_true(wire_spec_decode(&arena, text, sizeof text - 1, &s, &err));
    wire_spec_encode(&s, &out);
    assert_string_equal(out.data, text);
    wire_spec_free(&s);
    assert_false(wire_spec_decode(&arena, "{\"mode\":\"x\"}", 12, &s, &err));
    assert_string_equal(err.name, "WIRE-INVALID");
    assert_string_equal(err.field, "mode");
    assert_false(wire_spec_decode(&arena, "{\"mtp\":{}}", 10, &s, &err));
    assert_string_equal(err.name, "WIRE-MISSING-KEY");
    buffer_free(&out);
}

static void kinds(void **state)
{
    (void)state;
    assert_int_equal(WIRE_KIND_V1_COUNT, 10);
    assert_int_equal(WIRE_KIND_COUNT, 16);
    assert_false(wire_kind_is_block(WIRE_KIND_cohort_reference_replay));
    assert_true(wire_kind_is_block(WIRE_KIND_dflash_decode_warm));
    assert_true(wire_kind_is_block(WIRE_KIND_dflash_reference_rows));
    assert_false(wire_kind_is_block(WIRE_KIND_UNKNOWN));
    for (int i = 0; i < WIRE_KIND_COUNT; i++)
        assert_int_equal(wire_kind_find(wire_kind_name((enum wire_kind)i)), i);
    assert_int_equal(wire_kind_find("hello"), WIRE_KIND_UNKNOWN);
    assert_int_equal(wire_kind_find(""), WIRE_KIND_UNKNOWN);
    assert_string_equal(wire_kind_name(WIRE_KIND_UNKNOWN), "unknown");
    assert_string_equal(wire_kind_name(WIRE_KIND_free_decode_run), "free_decode_run");
}

static void limits(void **state)
{
    (void)state;
    struct wire_request q = {0};
    for (int i = 0; i < WIRE_KIND_COUNT; i++)
        assert_int_equal(wire_response_limit((enum wire_kind)i, &q) >= 65536, 1);
    assert_int_equal(wire_response_limit(WIRE_KIND_decode_step, &q), 65536);
    q.steps = (struct wire_i64){true, -5};
    assert_int_equal(wire_response_limit(WIRE_KIND_correctness, &q), 65536);
    q.steps.value = INT64_MAX;
    assert_int_equal(wire_response_limit(WIRE_KIND_correctness, &q), WIRE_RESPONSE_LIMIT);
    q.count = (struct wire_u32){true, UINT32_MAX};
    q.batch_size = (struct wire_u32){true, UINT32_MAX};
    assert_int_equal(wire_response_limit(WIRE_KIND_free_decode_run, &q), WIRE_RESPONSE_LIMIT);
}

/* The widest honest reply fits, written with ", " and ": " too. */
static void widest_reply_fits(void **state)
{
    (void)state;
    enum { STREAMS = 3, COUNT = 5000 };
    static int64_t tokens[COUNT];
    static uint32_t widths[COUNT];
    struct wire_tokens lists[STREAMS];
    struct wire_u32s naturals[STREAMS];
    uint64_t times[STREAMS];
    for (size_t i = 0; i < COUNT; i++) {
        tokens[i] = INT64_MIN;
        widths[i] = UINT32_MAX;
    }
    for (size_t i = 0; i < STREAMS; i++) {
        lists[i] = (struct wire_tokens){true, COUNT, tokens};
        naturals[i] = (struct wire_u32s){true, COUNT, widths};
        times[i] = UINT64_MAX;
    }
    struct wire_response r = {.id = {true, 1}, .ok = {true, true}};
    r.tokens_by_stream = (struct wire_token_lists){true, STREAMS, lists};
    r.natural_accepted_by_stream = (struct wire_u32_lists){true, STREAMS, naturals};
    r.acceptance_lengths = r.active_streams_by_round = (struct wire_u32s){true, COUNT, widths};
    r.decode_ns_by_stream = (struct wire_u64s){true, STREAMS, times};
    struct buffer out = {0};
    wire_response_encode(&r, &out);
    size_t separators = 0;
    for (size_t i = 0; i < out.length; i++)
        separators += out.data[i] == ',' || out.data[i] == ':';
    struct wire_request q = {.count = {true, COUNT}, .batch_size = {true, STREAMS}};
    size_t limit = wire_response_limit(WIRE_KIND_free_decode_run, &q);
    assert_true(out.length + separators <= limit);
    assert_true(limit < 2 * out.length); /* and a flood is cut soon after */
    buffer_free(&out);
}

static void expect_schema(const char *path, void (*write)(struct buffer *))
{
    struct buffer made = {0}, committed = {0};
    struct error err;
    if (!file_exists(path))
        fail_msg("%s: run this from the root of the repository", path);
    assert_true(file_read(path, 1 << 20, &committed, &err));
    write(&made);
    assert_int_equal(made.length, committed.length);
    assert_memory_equal(made.data, committed.data, made.length);
    buffer_free(&made);
    buffer_free(&committed);
}

static void schemas_are_the_committed_ones(void **state)
{
    (void)state;
    expect_schema("docs/schema/engine-protocol-v1.schema.json", wire_schema_write);
    expect_schema("docs/schema/block-protocol-v1.schema.json", wire_block_schema_write);
}

/* Each protocol is closed to the keys of the other. */
static void two_protocols(void **state)
{
    (void)state;
    static const struct {
        bool request;
        const char *line, *error; /* NULL: accepted */
        bool block;               /* response decoder */
    } rows[] = {
        {true, "{\"id\":1,\"kind\":\"dflash_decode_block\",\"token\":5,\"max_block_size\":4}", NULL,
         0},
        {true, "{\"id\":1,\"kind\":\"decode_step\",\"token\":5,\"max_block_size\":4}",
         "WIRE-UNKNOWN-KEY", 0},
        {true, "{\"id\":1,\"kind\":\"dflash_decode_warm\",\"spec\":{\"mode\":\"serial\"}}",
         "WIRE-UNKNOWN-KEY", 0},
        {true, "{\"id\":1,\"kind\":\"dflash_decode_warm\",\"batch_size\":null}", "WIRE-UNKNOWN-KEY",
         0},
        {true, "{\"id\":1,\"kind\":\"dflash_decode_warm\",\"other\":1}", "WIRE-UNKNOWN-KEY", 0},
        {true, "{\"id\":1,\"kind\":\"dflash_reference_rows\",\"count\":-1}", "WIRE-INVALID", 0},
        {true, "{\"kind\":\"dflash_decode_warm\"}", "WIRE-MISSING-KEY", 0},
        {false, "{\"id\":1,\"ok\":true,\"declared_rows\":2}", NULL, true},
        {false, "{\"id\":1,\"ok\":true,\"declared_rows\":2}", "WIRE-UNKNOWN-KEY", false},
        {false, "{\"id\":1,\"ok\":true,\"per_row_top2_logits\":[[1.5,0.25],[1,\"x\"]]}",
         "WIRE-INVALID", true},
        {false, "{\"id\":1,\"ok\":true,\"other\":2}", "WIRE-UNKNOWN-KEY", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena a = {0};
        struct buffer again = {0};
        struct error err = {0};
        const size_t length = strlen(rows[i].line);
        bool ok;
        if (rows[i].request) {
            struct wire_request q;
            ok = wire_request_decode(&a, rows[i].line, length, &q, &err);
            if (ok)
                wire_request_encode(&q, &again);
            wire_request_free(&q);
        } else {
            struct wire_response r;
            ok = rows[i].block ? wire_block_response_decode(&a, rows[i].line, length, &r, &err)
                               : wire_response_decode(&a, rows[i].line, length, &r, &err);
            if (ok)
                wire_response_encode(&r, &again);
            wire_response_free(&r);
        }
        assert_int_equal(ok, rows[i].error == NULL);
        if (rows[i].error)
            assert_string_equal(err.name, rows[i].error);
        else
            assert_memory_equal(again.data, rows[i].line, length);
        buffer_free(&again);
        arena_free(&a);
    }
}

/* Every row of a round at its longest fits the limit of its reply. */
static void block_limits(void **state)
{
    (void)state;
    struct wire_request q = {.max_block_size = {true, 16}};
    size_t narrow = wire_response_limit(WIRE_KIND_dflash_decode_block, &q);
    q.max_block_size.value = INT64_MAX;
    assert_int_equal(wire_response_limit(WIRE_KIND_dflash_decode_block, &q), WIRE_RESPONSE_LIMIT);
    q.max_block_size.value = -1;
    assert_true(wire_response_limit(WIRE_KIND_dflash_decode_block, &q) < narrow);
    q = (struct wire_request){.count = {true, 16}, .declared_block_width = {true, 16}};
    assert_true(wire_response_limit(WIRE_KIND_dflash_reference_rows, &q) > 65536);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_field_survives, clean_up),
        cmocka_unit_test_teardown(absent_fields, clean_up),
        cmocka_unit_test_teardown(refusals, clean_up),
        cmocka_unit_test_teardown(encoder_always_writes_a_line, clean_up),
        cmocka_unit_test_teardown(spec_alone, clean_up),
        cmocka_unit_test(kinds),
        cmocka_unit_test(limits),
        cmocka_unit_test(widest_reply_fits),
        cmocka_unit_test(schemas_are_the_committed_ones),
        cmocka_unit_test(two_protocols),
        cmocka_unit_test(block_limits),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
