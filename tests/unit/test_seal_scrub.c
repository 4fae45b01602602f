/* Scrubbing: what goes and what stays (engine-protocol.md section 9, last lines). */
#include "base/buffer.h"
#include "judge/seal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

struct row {
    const char *text, *scrubbed;
};

static void check(const struct row *rows, size_t count)
{
    struct buffer out = {0};
    for (size_t i = 0; i < count; i++) {
        seal_scrub(rows[i].text, &out);
        if (strcmp(out.data, rows[i].scrubbed) != 0)
            fail_msg("'%s'\n became '%s'\n not '%s'", rows[i].text, out.data, rows[i].scrubbed);
    }
    buffer_free(&out);
}

static void test_control_bytes(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"", ""},
        {"plain", "plain"},
        {"a\nb\tc\rd", "a\\x0ab\\x09c\\x0dd"},
        {"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
        {"\x7f", "\\x7f"},
        {"caf\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x98\x80"},
        {"\xc2\x85", "\\xc2\\x85"}, /* a control above ASCII */
        {"bad \xff\xfe", "bad \\xff\\xfe"},
        {"cut \xe2\x80", "cut \\xe2\\x80"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* a surrogate */
    };
    check(rows, COUNT_OF(rows));
}

static void test_paths(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"cannot open /home/ada/models/x/config.json: No such file",
         "cannot open <path>/config.json: No such file"},
        {"/usr/lib/libc.so.6", "<path>/libc.so.6"},
        {"at /tmp", "at <path>/tmp"},
        {"in /home/ada/", "in <path>/ada"},
        {"~/w/score.json", "<path>/score.json"},
        {"~ada/w/score.json", "<path>/score.json"},
        {"a=/x/y,b=/x/z;", "a=<path>/y,b=<path>/z;"},
        {"(/opt/a/b.c:12)", "(<path>/b.c:12)"},
        {"\"/home/Ada L/my models/a b.json\" is bad", "\"<path>/a b.json\" is bad"},
        {"/home/Ada\\ L/x.json y", "<path>/x.json y"},
        {"'/home/x/y", "'<path>/y"},
        {"tokens / second", "tokens / second"},
        {"read/write and 3/4 and a//b", "read/write and 3/4 and a//b"},
        {"// comment", "// comment"},
        {"src/judge/seal.c:12", "src/judge/seal.c:12"},
        {"./build/benchd ../x", "./build/benchd ../x"},
        {"//server/share/f", "<path>/f"},
        {"/home/ada/caf\xc3\xa9/x", "<path>/x"},
    };
    check(rows, COUNT_OF(rows));
}

static void test_urls_and_addresses(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"see https://user:pw@example.com:8080/a?token=b#c now", "see <url> now"},
        {"file:///home/ada/x", "<url>"},
        {"<https://a.b/c>", "<<url>>"},
        {"s3://bucket/key, then", "<url> then"},
        {"unix+http://%2Frun%2Fx", "<url>"},
        {"http and https: none", "http and https: none"},
        {"a://b", "<url>"},
        {"ada@example.com wrote", "<user@host> wrote"},
        {"git@github.com:org/repo.git", "<user@host>:org/repo.git"},
        {"root@gpu-box.", "<user@host>."},
        {"a @ b and @name", "a @ b and @name"},
    };
    check(rows, COUNT_OF(rows));
}

static void test_hosts(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"connect to gpu-7.internal.corp:5432 failed", "connect to <host>:5432 failed"},
        {"api.example.com.", "<host>."},
        {"bench.fritz.box m5.lan", "bench.fritz.box <host>"},
        {"host.example.de", "<host>"},
        {"10.0.0.7 and 192.168.1.254:80", "<host> and <host>:80"},
        {"localhost:8080 127.0.0.1 127.1.2.3 [::1]:9 ::1", "localhost:8080 127.0.0.1 127.1.2.3 "
                                                           "[::1]:9 ::1"},
        {"fe80::1 [2001:db8::7]:443", "<host> [<host>]:443"},
        {"00:1b:44:11:3a:b7", "<host>"},
        {"score.json model.safetensors libc.so libc.so.6 seal.c main.py run.sh",
         "score.json model.safetensors libc.so libc.so.6 seal.c main.py run.sh"},
        {"version 1.2.3 or 1.2.3.4.5, at 12:34:56, 300.1.1.1",
         "version 1.2.3 or 1.2.3.4.5, at 12:34:56, 300.1.1.1"},
        {"std::vector a.b e.g. i.e. Qwen3.8-27B", "std::vector a.b e.g. i.e. Qwen3.8-27B"},
        {"0.95 1e-7 laguna-xs-2.1", "0.95 1e-7 laguna-xs-2.1"},
    };
    check(rows, COUNT_OF(rows));
}

/* The machine of this program is called what the test says. */
static const char *machine_name = "Gpu-Box7.example";
int gethostname(char *name, size_t size)
{
    text_copy(name, size, machine_name);
    return 0;
}

static void test_this_machines_name(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"engine on gpu-box7 died, ungpu-box7, gpu-box77", "engine on <host> died, ungpu-box7, "
                                                           "gpu-box77"},
        {"GPU-BOX7.example:7", "<host>:7"},
        {"(gpu-box7)", "(<host>)"},
    };
    check(rows, COUNT_OF(rows));
    machine_name = "localhost";
    static const struct row local[] = {{"on localhost", "on localhost"}};
    check(local, COUNT_OF(local));
    machine_name = "ab"; /* too short to be told from a word */
    static const struct row brief[] = {{"ab ovo", "ab ovo"}};
    check(brief, COUNT_OF(brief));
}

static void test_credentials(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"HF_TOKEN=hf_abc def", "HF_TOKEN=<redacted>"},
        {"a password: hunter2, and more", "a password:<redacted>"},
        {"Authorization: Bearer abc.def", "Authorization:<redacted>"},
        {"{\"api_key\": \"k\", \"x\": 1}", "{\"api_key\":<redacted>"},
        {"apiKey=1 x-api-key: 2", "apiKey=<redacted>"},
        {"AWS_SECRET_ACCESS_KEY = AKIA", "AWS_SECRET_ACCESS_KEY =<redacted>"},
        {"sessionToken:xyz", "sessionToken:<redacted>"},
        {"client-secret=1\nnext line", "client-secret=<redacted>\\x0anext line"},
        {"token=abcdef", "token=<redacted>"},
        {"token=12345678", "token=<redacted>"},
        {"Set-Cookie: a=b", "Set-Cookie:<redacted>"},
        /* The domain's own words stay. */
        {"TokenMismatch: step 3", "TokenMismatch: step 3"},
        {"prompt_tokens=512", "prompt_tokens=512"},
        {"expected token: 5991, actual token: 17", "expected token: 5991, actual token: 17"},
        {"seed_token=42", "seed_token=42"},
        {"key: value; unknown key bogus", "key: value; unknown key bogus"},
        {"duplicate key name", "duplicate key name"},
        {"secretary: Ada", "secretary: Ada"},
        {"the password was wrong", "the password was wrong"},
    };
    check(rows, COUNT_OF(rows));
}

static void test_clip(void **state)
{
    (void)state;
    static const char marker[] = "\xe2\x80\xa6[clipped]\xe2\x80\xa6";
    struct buffer text = {0}, out = {0};
    for (int i = 0; i < 2048; i++)
        buffer_char(&text, 'a');
    seal_scrub(text.data, &out);
    assert_string_equal(out.data, text.data);
    buffer_text(&text, "b");
    seal_scrub(text.data, &out);
    assert_int_equal(out.length, 2048);
    const char *at = strstr(out.data, marker);
    assert_non_null(at);
    assert_true(out.data[0] == 'a' && out.data[2047] == 'b');
    assert_null(strstr(at + 1, marker));
    /* Cut between characters, whatever their length and position. */
    for (int shift = 0; shift < 4; shift++) {
        buffer_clear(&text);
        for (int i = 0; i < shift; i++)
            buffer_char(&text, 'x');
        for (int i = 0; i < 3000; i++)
            buffer_text(&text, i % 2 ? "\xe2\x82\xac" : "\xf0\x9f\x98\x80");
        seal_scrub(text.data, &out);
        assert_true(out.length <= 2048 && out.length > 2040);
        assert_true(utf8_valid(out.data, out.length));
        assert_non_null(strstr(out.data, marker));
    }
    /* Control bytes grow on the way: the limit is on what comes out. */
    buffer_clear(&text);
    for (int i = 0; i < 1000; i++)
        buffer_char(&text, '\x01');
    seal_scrub(text.data, &out);
    assert_true(out.length <= 2048);
    buffer_free(&text);
    buffer_free(&out);
}

/* Whatever goes in, what comes out is valid UTF-8 without control bytes, and within the limit. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const char alphabet[] = "/~@:.=\"' \\\n\x01\xff\xc3\xa9token-key1ab<>::1127.0.0";
    struct buffer out = {0};
    char text[300];
    uint32_t seed = 12345;
    for (int round = 0; round < 20000; round++) {
        size_t length = 0;
        seed = seed * 1664525u + 1013904223u;
        size_t wanted = (seed >> 8) % (sizeof text - 1);
        while (length < wanted) {
            seed = seed * 1664525u + 1013904223u;
            text[length++] = alphabet[(seed >> 8) % (sizeof alphabet - 1)];
        }
        text[length] = '\0';
        seal_scrub(text, &out);
        assert_true(out.length <= 2048);
        assert_true(utf8_valid(out.data, out.length));
        for (size_t i = 0; i < out.length; i++)
            assert_true((unsigned char)out.data[i] >= 0x20 && out.data[i] != 0x7f);
    }
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_bytes),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_urls_and_addresses),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_this_machines_name),
        cmocka_unit_test(test_credentials),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
