/* Evidence for a made-up ranked run: keys, the statement, the bundle and its verification. One
 * flipped byte anywhere is caught and its member named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "evidence_run.h"

#include <sys/stat.h>

static int setup(void **state)
{
    (void)state;
    return run_begin();
}

static int teardown(void **state)
{
    (void)state;
    return run_end();
}

/* A signed and logged run, packed. */
static struct buffer packed_with(run_change *change)
{
    struct error err = {0};
    struct buffer out = {0};
    unlink("log");
    run_seal(change);
    if (!run_sign("log", &err) || !run_pack("log", &out, &err))
        fail_msg("%s", err.message);
    return out;
}

static struct buffer packed(void)
{
    return packed_with(NULL);
}

static const struct verify_options by_key = {.public_key = "key.pub", .log = "log"};

/* ---- Keys ---- */

static void test_a_key_pair(void **state)
{
    (void)state;
    struct error err = {0};
    struct public_key made, read;
    struct private_key *k;
    struct stat s;
    uint8_t signature[KEY_SIGNATURE_BYTES];
    assert_true(key_generate("pair", &made, &err));
    assert_int_equal(stat("pair", &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_true(key_load_public("pair.pub", &read, &err));
    assert_string_equal(read.id, made.id);
    assert_true(key_load_private("pair", &k, &err));
    key_sign(k, "words", 5, signature);
    assert_true(key_verify(&read, "words", 5, signature));
    assert_false(key_verify(&read, "Words", 5, signature));
    assert_false(key_verify(&run_key, "words", 5, signature));
    for (size_t i = 0; i < sizeof signature; i++) {
        signature[i] ^= 1;
        assert_false(key_verify(&read, "words", 5, signature));
        signature[i] ^= 1;
    }
    key_free(k);
}

static void test_a_key_is_never_replaced(void **state)
{
    (void)state;
    struct error err = {0};
    struct public_key made;
    assert_false(key_generate("key", &made, &err));
    assert_string_equal(err.name, "KEY-EXISTS");
    run_put("lone.pub", "x");
    assert_false(key_generate("lone", &made, &err));
    assert_string_equal(err.name, "KEY-EXISTS");
    assert_false(file_exists("lone"));
    assert_false(key_generate("nowhere/key", &made, &err));
    assert_string_equal(err.name, "IO");
}

static void test_keys_that_are_none(void **state)
{
    (void)state;
    struct error err = {0};
    struct public_key read;
    struct private_key *k;
    struct buffer text = {0};
    assert_true(file_read("key.pub", 4096, &text, &err));
    for (size_t i = 0; i < text.length; i++) {
        text.data[i] ^= 1;
        const bool ok = key_parse_public("k", text.data, text.length, &read, &err);
        assert_true(!ok || strcmp(read.id, run_key.id) != 0);
        if (!ok)
            assert_string_equal(err.name, "KEY-INVALID");
        text.data[i] ^= 1;
    }
    assert_false(key_parse_public("k", text.data, text.length - 1, &read, &err));
    buffer_free(&text);
    run_put("other", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    chmod("other", 0600);
    assert_false(key_load_private("other", &k, &err));
    assert_string_equal(err.name, "KEY-INVALID");
    chmod("key", 0640);
    assert_false(key_load_private("key", &k, &err));
    assert_string_equal(err.name, "KEY-INVALID");
    assert_non_null(strstr(err.message, "chmod 600"));
    chmod("key", 0600);
    assert_false(key_load_private("key.pub.none", &k, &err));
    assert_string_equal(err.name, "IO");
}

/* ---- Signing ---- */

static void test_the_statement_of_a_run(void **state)
{
    (void)state;
    struct error err = {0};
    struct arena a = {0};
    struct statement s;
    struct buffer text = {0};
    unlink("log");
    run_seal(NULL);
    assert_true(run_sign("log", &err));
    assert_true(file_read("score.json.statement.json", 1 << 16, &text, &err));
    assert_true(statement_parse("s", text.data, text.length, &a, &s, &err));
    assert_string_equal(s.box, "box-7");
    assert_string_equal(s.track_id, "toy-1-cuda-v1");
    assert_string_equal(s.key, run_key.id);
    assert_string_equal(s.weights_sha256, RUN_HEX);
    assert_int_equal(s.weights_files, 3);
    assert_int_equal(s.golden_count, 1);
    assert_int_equal(s.goldens[0].bytes, strlen(run_golden));
    assert_true(s.passed && s.has_score && s.score > 1);
    assert_true(s.has_log && s.log_index == 0);
    assert_string_equal(s.drafter_sha256, "");
    /* Its spelling is one: any change is another statement or none. */
    for (size_t i = 0; i < text.length; i++) {
        struct statement other;
        struct buffer again = {0};
        text.data[i] ^= 1;
        if (statement_parse("s", text.data, text.length, &a, &other, &err)) {
            statement_render(&other, &again);
            assert_int_equal(again.length, text.length);
            assert_memory_equal(again.data, text.data, text.length);
        } else {
            assert_string_equal(err.name, "STATEMENT-INVALID");
        }
        buffer_free(&again);
        text.data[i] ^= 1;
    }
    buffer_free(&text);
    arena_free(&a);
}

static void change_score(struct score_document *d)
{
    d->score += 0.01;
}

static void change_box(struct score_document *d)
{
    score_set_text(d, "baseline_calibration_sha256", RUN_HEX);
}

static void expect_no_signature(const char *words)
{
    struct error err = {0};
    assert_false(run_sign(NULL, &err));
    assert_string_equal(err.name, "EVIDENCE-MISMATCH");
    if (!strstr(err.message, words))
        fail_msg("%s", err.message);
    assert_false(file_exists("score.json.statement.json"));
    assert_false(file_exists("score.json.statement.sig"));
}

static void test_files_that_disagree_are_not_signed(void **state)
{
    (void)state;
    run_seal(change_score);
    expect_no_signature("by the sealed times and the contract");
    run_seal(change_box);
    expect_no_signature("calibration");
    run_seal(NULL);
    run_put("score.json.sha256", RUN_HEX "  score.json\n");
    expect_no_signature("score.json.sha256");
    run_seal(NULL);
    run_put("contract.json", run_contract + 1);
    expect_no_signature("contract.json");
    run_put("contract.json", run_contract);
    run_put("golden.json", "{}");
    expect_no_signature("golden");
    run_put("golden.json", run_golden);
    run_put("benchmark-integrity.json", "{}\n");
    expect_no_signature("integrity.json");
    run_seal(NULL);
}

static void test_a_log_that_cannot_take_it_leaves_no_statement(void **state)
{
    (void)state;
    struct error err = {0};
    run_seal(NULL);
    run_put("log", "{\"torn\":");
    assert_false(run_sign("log", &err));
    assert_string_equal(err.name, "LOG-TORN");
    assert_false(file_exists("score.json.statement.json"));
    run_put("log", "{}\n");
    assert_false(run_sign("log", &err));
    assert_string_equal(err.name, "LOG-INVALID");
    assert_false(file_exists("score.json.statement.sig"));
    unlink("log");
}

/* ---- Bundles ---- */

static void verify(const struct buffer *archive, const struct verify_options *o, struct findings *f)
{
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    *f = (struct findings){0};
    if (!bundle_parse("bundle.tar", archive->data, archive->length, &a, &b, &err))
        findings_error(f, "archive", &err);
    else
        verify_bundle(&b, o, f);
    arena_free(&a);
}

static void expect_failure(const struct buffer *archive, const struct verify_options *o,
                           const char *subject, const char *words)
{
    struct findings f;
    bool found = false;
    verify(archive, o, &f);
    for (size_t i = 0; i < f.count; i++)
        found =
            found || (f.items[i].state == FINDING_FAILED &&
                      strcmp(f.items[i].subject, subject) == 0 && strstr(f.items[i].text, words));
    if (!found) {
        for (size_t i = 0; i < f.count; i++)
            fprintf(stderr, "%d %s: %s\n", f.items[i].state, f.items[i].subject, f.items[i].text);
        fail_msg("no failure of %s with \"%s\"", subject, words);
    }
    findings_free(&f);
}

static void test_a_good_bundle_is_proved(void **state)
{
    (void)state;
    struct buffer one = packed(), two = {0};
    struct findings f;
    struct error err = {0};
    verify(&one, &by_key, &f);
    for (size_t i = 0; i < f.count; i++)
        if (f.items[i].state == FINDING_FAILED)
            fail_msg("%s: %s", f.items[i].subject, f.items[i].text);
    assert_int_equal(f.of[FINDING_SKIPPED], 1); /* the weights */
    assert_true(f.of[FINDING_OK] >= 20);
    findings_free(&f);
    assert_true(run_pack("log", &two, &err)); /* the same bytes again */
    assert_int_equal(one.length, two.length);
    assert_memory_equal(one.data, two.data, one.length);
    buffer_free(&one);
    buffer_free(&two);
}

/* The member that a byte of the archive belongs to: its header, its data or the zeros behind. */
static const char *member_at(const struct bundle *b, const struct buffer *archive, size_t at)
{
    const char *name = "";
    for (size_t i = 0; i < b->count; i++)
        if ((size_t)(b->members[i].data - archive->data) <= at + 512)
            name = b->members[i].name;
    return name;
}

static void no_statistics(struct score_document *d)
{
    json_object_del(d->metrics, "statistics");
}

/* The bootstrap is a millisecond for each of so many verifications: a run that failed has none. */
static void failed_run(struct score_document *d)
{
    no_statistics(d);
    score_fail(d, "TokenMismatch", "step 1");
}

static void test_one_flipped_byte_is_caught_and_named(void **state)
{
    (void)state;
    struct buffer archive = packed_with(failed_run), copy = {0};
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    buffer_append(&copy, archive.data, archive.length);
    assert_true(bundle_parse("b", archive.data, archive.length, &a, &b, &err));
    for (size_t i = 0; i < copy.length; i++) {
        struct findings f;
        const char *name = member_at(&b, &archive, i);
        bool named = false;
        copy.data[i] ^= (char)(1 << (i % 8));
        verify(&copy, &by_key, &f);
        for (size_t k = 0; k < f.count; k++)
            named = named || (f.items[k].state == FINDING_FAILED &&
                              (strcmp(f.items[k].subject, name) == 0 ||
                               strcmp(f.items[k].subject, "archive") == 0));
        if (f.of[FINDING_FAILED] == 0 || !named)
            fail_msg("byte %zu, of %s, was flipped unseen", i, name);
        copy.data[i] ^= (char)(1 << (i % 8));
        findings_free(&f);
    }
    buffer_free(&copy);
    buffer_free(&archive);
    arena_free(&a);
}

/* A change of the archive's own bytes names the member by its place or its name. */
static void test_a_flipped_header_names_the_member(void **state)
{
    (void)state;
    struct buffer archive = packed();
    struct arena a = {0}, other = {0};
    struct bundle b, again;
    struct error err = {0};
    assert_true(bundle_parse("b", archive.data, archive.length, &a, &b, &err));
    for (size_t m = 0; m < b.count; m++) {
        const size_t header = (size_t)(b.members[m].data - archive.data) - 512;
        char place[32];
        snprintf(place, sizeof place, "member %zu", m + 1);
        for (size_t i = 101; i < 512; i++) {
            archive.data[header + i] ^= 1;
            assert_false(bundle_parse("b", archive.data, archive.length, &other, &again, &err));
            assert_string_equal(err.name, "BUNDLE-INVALID");
            assert_non_null(strstr(err.message, b.members[m].name));
            assert_non_null(strstr(err.message, place));
            archive.data[header + i] ^= 1;
        }
    }
    buffer_free(&archive);
    arena_free(&a);
    arena_free(&other);
}

static void test_a_cut_or_longer_archive(void **state)
{
    (void)state;
    struct buffer archive = packed();
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    for (size_t length = 0; length < archive.length; length += length < 2048 ? 1 : 97) {
        assert_false(bundle_parse("b", archive.data, length, &a, &b, &err));
        assert_string_equal(err.name, "BUNDLE-INVALID");
        assert_non_null(strstr(err.message, "cut off"));
    }
    buffer_char(&archive, '\0');
    assert_false(bundle_parse("b", archive.data, archive.length, &a, &b, &err));
    assert_non_null(strstr(err.message, "behind the end"));
    buffer_free(&archive);
    arena_free(&a);
}

/* ---- Hostile archives ---- */

/* A ustar header with a right checksum. */
static void header(struct buffer *out, const char *name, char type, const char *size)
{
    char h[512] = {0};
    unsigned sum = 0;
    memcpy(h, name, strlen(name));
    memcpy(h + 100, "0000644\0000000000\0000000000", 24);
    memcpy(h + 124, size, strlen(size));
    memcpy(h + 136, "00000000000", 12);
    memset(h + 148, ' ', 8);
    h[156] = type;
    memcpy(h + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 7, "%06o", sum);
    h[155] = ' ';
    buffer_append(out, h, sizeof h);
}

static void zeros(struct buffer *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buffer_char(out, '\0');
}

static void test_hostile_archives(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        char type;
        const char *size, *words;
    } rows[] = {
        {"../score.json", '0', "00000000000", "climbs"},
        {"/etc/passwd", '0', "00000000000", "climbs"},
        {"golden/../../x", '0', "00000000000", "climbs"},
        {"golden/..", '0', "00000000000", "climbs"},
        {"score.json", '1', "00000000000", "hard link"},
        {"score.json", '2', "00000000000", "symbolic link"},
        {"score.json", '3', "00000000000", "device"},
        {"score.json", '5', "00000000000", "folder"},
        {"score.json", 'x', "00000000000", "another kind"},
        {"score.json", 'L', "00000000000", "another kind"},
        {"score.json", '\0', "00000000000", "another kind"},
        {"notes.txt", '0', "00000000000", "no bundle has"},
        {"golden/00.json", '0', "00000000000", "no bundle has"},
        {"golden/65.json", '0', "00000000000", "no bundle has"},
        {"golden/", '0', "00000000000", "no bundle has"},
        {"score.json", '0', "77777777777", "larger than a member"},
        {"score.json", '0', "2000000000 ", "no octal"},
        {"score.json", '0', "\x80\0\0\0\0\0\0\0\0\0\0", "no octal"},
        {"score.json", '0', "00000001000", "cut off"},
    };
    struct arena a = {0};
    struct bundle b;
    struct error err = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buffer archive = {0};
        header(&archive, rows[i].name, rows[i].type, rows[i].size);
        assert_false(bundle_parse("b", archive.data, archive.length, &a, &b, &err));
        assert_string_equal(err.name, "BUNDLE-INVALID");
        if (!strstr(err.message, rows[i].words))
            fail_msg("row %zu: %s", i, err.message);
        buffer_free(&archive);
    }
    struct buffer twice = {0};
    header(&twice, "score.json", '0', "00000000000");
    header(&twice, "score.json", '0', "00000000000");
    assert_false(bundle_parse("b", twice.data, twice.length, &a, &b, &err));
    assert_non_null(strstr(err.message, "second member"));
    buffer_clear(&twice);
    header(&twice, "score.json", '0', "00000000000");
    header(&twice, "contract.json", '0', "00000000000");
    assert_false(bundle_parse("b", twice.data, twice.length, &a, &b, &err));
    assert_non_null(strstr(err.message, "order of their names"));
    buffer_clear(&twice);
    zeros(&twice, 1024);
    assert_false(bundle_parse("b", twice.data, twice.length, &a, &b, &err));
    assert_non_null(strstr(err.message, "empty"));
    buffer_free(&twice);
    arena_free(&a);
}

/* ---- Lies that are well packed ---- */

/* The good bundle with one member replaced (data NULL: taken out), and its sums made new. */
static struct buffer forge(const char *name, const char *data, size_t length)
{
    struct buffer archive = packed(), sums = {0}, out = {0};
    struct arena a = {0};
    struct bundle b, forged = {.count = 0};
    struct error err = {0};
    assert_true(bundle_parse("b", archive.data, archive.length, &a, &b, &err));
    for (size_t i = 0; i < b.count; i++) {
        const struct bundle_member *m = &b.members[i];
        if (strcmp(m->name, BUNDLE_SUMS) == 0 || (strcmp(m->name, name) == 0 && !data))
            continue;
        if (strcmp(m->name, name) == 0)
            bundle_add(&forged, name, data, length);
        else
            bundle_add(&forged, m->name, m->data, m->length);
    }
    bundle_render_sums(&forged, &sums);
    bundle_add(&forged, BUNDLE_SUMS, sums.data, sums.length);
    bundle_write(&forged, &out);
    buffer_free(&sums);
    buffer_free(&archive);
    arena_free(&a);
    return out;
}

static void expect_forged(const char *name, const char *data, const char *subject,
                          const char *words)
{
    struct buffer archive = forge(name, data, data ? strlen(data) : 0);
    expect_failure(&archive, &by_key, subject, words);
    buffer_free(&archive);
}

static void test_members_taken_out(void **state)
{
    (void)state;
    expect_forged(BUNDLE_SIGNATURE, NULL, BUNDLE_SIGNATURE, "not signed");
    expect_forged(BUNDLE_STATEMENT, NULL, BUNDLE_STATEMENT, "nobody signed");
    expect_forged(BUNDLE_LOG, NULL, BUNDLE_LOG, "no proof");
    expect_forged(BUNDLE_SCORE, NULL, BUNDLE_SCORE, "not in the bundle");
    expect_forged(BUNDLE_SIDECAR, NULL, BUNDLE_SIDECAR, "not in the bundle");
    expect_forged(BUNDLE_INTEGRITY, NULL, BUNDLE_INTEGRITY, "not in the bundle");
}

static void test_members_replaced(void **state)
{
    (void)state;
    expect_forged(BUNDLE_ENGINE, "another engine\n", BUNDLE_ENGINE, "not the engine");
    expect_forged(BUNDLE_CONTRACT, "{}", BUNDLE_CONTRACT, "track_id");
    expect_forged("golden/01.json", "{}", BUNDLE_GOLDENS, "golden_hash");
    expect_forged(BUNDLE_KEY, "x", BUNDLE_KEY, "Ed25519");
    expect_forged(BUNDLE_STATEMENT, "{}", BUNDLE_STATEMENT, "STATEMENT-INVALID");
    expect_forged(BUNDLE_SCORE, "{}", BUNDLE_SCORE, "SCORE-INVALID");
}

static void test_another_key_is_seen(void **state)
{
    (void)state;
    struct error err = {0};
    struct public_key mine;
    struct buffer archive = packed();
    const struct verify_options o = {.public_key = "mine.pub"};
    assert_true(key_generate("mine", &mine, &err));
    expect_failure(&archive, &o, BUNDLE_KEY, "not yours");
    buffer_free(&archive);
    archive = forge(BUNDLE_KEY, NULL, 0);
    expect_failure(&archive, &o, BUNDLE_STATEMENT, "the key at hand");
    buffer_free(&archive);
}

/* A log that was rewritten since, or never held the statement. */
static void test_another_log_is_seen(void **state)
{
    (void)state;
    struct error err = {0};
    struct buffer archive = packed();
    struct verify_options o = {.public_key = "key.pub", .log = "other-log"};
    run_seal(change_score);
    unlink("other-log");
    struct log_writer *w;
    struct log_entry e;
    assert_true(log_open("other-log", &w, &err));
    assert_true(log_append(w, RUN_HEX, RUN_HEX, &e, &err));
    log_close(w);
    expect_failure(&archive, &o, "--log", "rewritten");
    o = (struct verify_options){.log_root = "1:" RUN_HEX};
    expect_failure(&archive, &o, "--log-root", "is not the root");
    buffer_free(&archive);
}

/* ---- Scores that do not follow ---- */

static void lower_time(struct score_document *d)
{
    json_t *pair = json_array_get(json_object_get(d->metrics, "paired_legs"), 2);
    json_object_set_new(pair, "candidate_decode_seconds_per_token", json_real(0.02));
}

static void one_pair_less(struct score_document *d)
{
    json_array_remove(json_object_get(d->metrics, "paired_legs"), 2);
}

static void set_barriers(struct score_document *d, const char *key, json_t *value)
{
    for (size_t i = 0; i < 2; i++) {
        json_t *pair = json_array_get(json_object_get(d->metrics, "paired_legs"), i);
        if (value)
            json_object_set(pair, key, value);
        else
            json_object_del(pair, key);
    }
    json_decref(value);
}

static void work_before_the_window(struct score_document *d)
{
    set_barriers(d, "candidate_prefill_barrier_seconds", json_real(0.5));
}

static void work_behind_the_window(struct score_document *d)
{
    set_barriers(d, "candidate_decode_barrier_seconds", json_real(0.5));
}

static void barriers_left_out(struct score_document *d)
{
    set_barriers(d, "candidate_decode_barrier_seconds", NULL);
}

static void hot_gate(struct score_document *d)
{
    json_t *record = json_array_get(json_object_get(d->metrics, "gates"), 3);
    json_object_set_new(json_object_get(record, "temperature"), "celsius", json_real(61));
}

/* A run that hides what it is, to be held to nothing. */
static void other_source(struct score_document *d)
{
    hot_gate(d);
    score_set_text(d, "baseline_source", "none (local mode: unscored)");
}

static void loose_gate(struct score_document *d)
{
    json_t *record = json_array_get(json_object_get(d->metrics, "gates"), 0);
    json_object_set_new(json_object_get(record, "temperature"), "limit", json_real(80));
}

static void no_gates(struct score_document *d)
{
    json_object_del(d->metrics, "gates");
}

static void narrow_interval(struct score_document *d)
{
    json_object_set_new(json_object_get(d->metrics, "statistics"), "interval",
                        json_pack("[f, f]", 1.23, 1.24));
}

static void renumbered(struct score_document *d)
{
    json_t *pair = json_array_get(json_object_get(d->metrics, "paired_legs"), 1);
    json_object_set_new(pair, "pair", json_integer(7));
}

static void other_floor(struct score_document *d)
{
    score_set_number(d, "decode_speedup_floor", 0.5);
}

static void mean_of_pairs(struct score_document *d)
{
    score_set_text(d, "official_pair_combine", "mean");
}

static void test_a_score_that_does_not_follow(void **state)
{
    (void)state;
    static const struct {
        run_change *change;
        const char *subject, *words;
    } rows[] = {{change_score, "score", "by the sealed times"},
                {lower_time, "metrics.statistics", "not what the sealed pairs give"},
                {one_pair_less, "score", "stands on 2 pairs"},
                {work_before_the_window, "score", "seed window failed"},
                {work_behind_the_window, "score", "decode barrier failed"},
                {barriers_left_out, "untimed work", "not every pair"},
                {hot_gate, "metrics.gates", "record 4, pair 2 candidate decode"},
                {loose_gate, "metrics.gates", "limit of temperature"},
                {no_gates, "metrics.gates", "without a record"},
                {narrow_interval, "metrics.statistics", "interval"},
                {no_statistics, "metrics.statistics", "not there"},
                {other_source, "metrics.gates", "record 4"},
                {renumbered, "score", "is not pair 2"},
                {other_floor, "score", "decode_speedup_floor"},
                {mean_of_pairs, "score", "official_pair_combine"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct arena a = {0};
        struct bundle b;
        struct buffer sums = {0}, archive = {0};
        struct error err = {0};
        static const struct verify_options none;
        run_seal(rows[i].change);
        assert_true(evidence_gather(&run_files, &a, &b, &err));
        bundle_render_sums(&b, &sums);
        bundle_add(&b, BUNDLE_SUMS, sums.data, sums.length);
        bundle_write(&b, &archive);
        expect_failure(&archive, &none, rows[i].subject, rows[i].words);
        buffer_free(&sums);
        buffer_free(&archive);
        arena_free(&a);
    }
    run_seal(NULL);
}

/* A contract whose pool has one prompt. */
static void pin(const char *sha256)
{
    struct buffer text = {0};
    buffer_append(&text, run_contract, strlen(run_contract) - 2);
    buffer_printf(&text, ",\n \"timed_prompt_pool\": [{\"sha256\": \"%s\"}]}\n", sha256);
    run_put("contract.json", text.data);
    buffer_free(&text);
}

static void another_prompt(struct score_document *d)
{
    json_t *pair = json_array_get(json_object_get(d->metrics, "paired_legs"), 1);
    json_object_set_new(pair, "prompt_sha256", json_string(RUN_HEX));
}

/* It is not in the bundle, and its digest tells whether it is one of the contract's pool. */
static void test_a_hidden_golden(void **state)
{
    (void)state;
    char sha256[SHA256_HEX];
    static const struct verify_options none;
    sha256_hex(run_golden, strlen(run_golden), sha256);
    const struct {
        const char *pinned;
        bool drawn;
        run_change *change;
        enum finding_state state;
        const char *words;
    } rows[] = {{sha256, true, NULL, FINDING_OK, "is pinned by the contract"},
                {sha256, false, NULL, FINDING_OK, "is pinned by the contract"},
                {RUN_HEX, true, NULL, FINDING_FAILED, "pool does not pin it"},
                {RUN_HEX, false, NULL, FINDING_SKIPPED, "not checked: golden_hash"},
                {sha256, true, another_prompt, FINDING_FAILED, "pair 2 was measured on " RUN_HEX}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena a = {0};
        struct bundle b;
        struct findings f = {0};
        struct error err = {0};
        struct evidence_files files = run_files;
        bool found = false;
        files.golden_count = 0;
        run_drawn = rows[i].drawn;
        pin(rows[i].pinned);
        run_seal(rows[i].change);
        assert_true(evidence_gather(&files, &a, &b, &err));
        verify_bundle(&b, &none, &f);
        for (size_t k = 0; k < f.count; k++)
            found = found || (f.items[k].state == rows[i].state &&
                              strcmp(f.items[k].subject, BUNDLE_GOLDENS) == 0 &&
                              strstr(f.items[k].text, rows[i].words));
        if (!found)
            fail_msg("row %zu: no line with \"%s\"", i, rows[i].words);
        findings_free(&f);
        arena_free(&a);
    }
    run_drawn = false;
    run_put("contract.json", run_contract);
    run_seal(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_pair),
        cmocka_unit_test(test_a_key_is_never_replaced),
        cmocka_unit_test(test_keys_that_are_none),
        cmocka_unit_test(test_the_statement_of_a_run),
        cmocka_unit_test(test_files_that_disagree_are_not_signed),
        cmocka_unit_test(test_a_log_that_cannot_take_it_leaves_no_statement),
        cmocka_unit_test(test_a_good_bundle_is_proved),
        cmocka_unit_test(test_one_flipped_byte_is_caught_and_named),
        cmocka_unit_test(test_a_flipped_header_names_the_member),
        cmocka_unit_test(test_a_cut_or_longer_archive),
        cmocka_unit_test(test_hostile_archives),
        cmocka_unit_test(test_members_taken_out),
        cmocka_unit_test(test_members_replaced),
        cmocka_unit_test(test_another_key_is_seen),
        cmocka_unit_test(test_another_log_is_seen),
        cmocka_unit_test(test_a_score_that_does_not_follow),
        cmocka_unit_test(test_a_hidden_golden),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
