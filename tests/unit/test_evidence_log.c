/* The log of signed scores: the Merkle tree against published vectors, entries of one spelling,
 * every edit, deletion and swap named, torn lines, the file under its lock. */
#include "base/file.h"
#include "judge/evidence/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 9 };
static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_evidence_log.XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/scores.log", folder);
    setenv("SOURCE_DATE_EPOCH", "1767225600", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* ---- The tree ---- */

static void leaf_of(const char *hex, struct merkle_hash *out)
{
    uint8_t bytes[32];
    const size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (uint8_t)value;
    }
    merkle_leaf(bytes, n, out);
}

/* The inputs and roots that implementations of RFC 6962 are commonly tested with. */
static void test_published_roots(void **state)
{
    (void)state;
    static const char *const inputs[] = {"",
                                         "00",
                                         "10",
                                         "2021",
                                         "3031",
                                         "40414243",
                                         "5051525354555657",
                                         "606162636465666768696a6b6c6d6e6f"};
    static const char *const roots[] = {
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"};
    struct merkle_hash leaves[8], root;
    char hex[SHA256_HEX];
    for (size_t i = 0; i < 8; i++)
        leaf_of(inputs[i], &leaves[i]);
    for (size_t n = 0; n <= 8; n++) {
        merkle_root(leaves, n, &root);
        text_hex(hex, root.bytes, sizeof root.bytes);
        assert_string_equal(hex, roots[n]);
    }
}

static void test_every_proof_holds_and_no_other(void **state)
{
    (void)state;
    enum { MOST = 17 };
    struct merkle_hash leaves[MOST], root, path_of[MERKLE_PATH_MOST];
    for (size_t i = 0; i < MOST; i++)
        merkle_leaf(&i, sizeof i, &leaves[i]);
    for (size_t n = 1; n <= MOST; n++) {
        merkle_root(leaves, n, &root);
        for (size_t i = 0; i < n; i++) {
            const size_t length = merkle_prove(leaves, n, i, path_of);
            assert_true(merkle_check(&leaves[i], i, n, path_of, length, &root));
            for (size_t j = 0; j < n; j++)
                assert_int_equal(merkle_check(&leaves[j], i, n, path_of, length, &root), i == j);
            if (n > 1)
                assert_false(merkle_check(&leaves[i], i, n, path_of, length - 1, &root));
            path_of[length] = root;
            assert_false(merkle_check(&leaves[i], i, n, path_of, length + 1, &root));
            for (size_t k = 0; k < length; k++) {
                path_of[k].bytes[k] ^= 1;
                assert_false(merkle_check(&leaves[i], i, n, path_of, length, &root));
                path_of[k].bytes[k] ^= 1;
            }
        }
        assert_false(merkle_check(&leaves[0], n, n, path_of, 0, &root));
    }
}

static void test_every_extension_holds_and_no_other(void **state)
{
    (void)state;
    enum { MOST = 17 };
    struct merkle_hash leaves[MOST], root, before, path_of[MERKLE_PATH_MOST];
    for (size_t i = 0; i < MOST; i++)
        merkle_leaf(&i, sizeof i, &leaves[i]);
    for (size_t n = 1; n <= MOST; n++) {
        merkle_root(leaves, n, &root);
        for (size_t m = 1; m <= n; m++) {
            const size_t length = merkle_prove_extends(leaves, n, m, path_of);
            merkle_root(leaves, m, &before);
            assert_true(merkle_check_extends(m, n, &before, &root, path_of, length));
            before.bytes[0] ^= 1;
            assert_false(merkle_check_extends(m, n, &before, &root, path_of, length));
            before.bytes[0] ^= 1;
            root.bytes[0] ^= 1;
            assert_false(merkle_check_extends(m, n, &before, &root, path_of, length));
            root.bytes[0] ^= 1;
            for (size_t k = 0; k < length; k++) {
                path_of[k].bytes[3] ^= 1;
                assert_false(merkle_check_extends(m, n, &before, &root, path_of, length));
                path_of[k].bytes[3] ^= 1;
            }
        }
        assert_false(merkle_check_extends(0, n, &root, &root, path_of, 0));
        assert_false(merkle_check_extends(n + 1, n, &root, &root, path_of, 0));
    }
}

/* ---- The file ---- */

static void digest_of(int number, char out[SHA256_HEX])
{
    sha256_hex(&number, sizeof number, out);
}

static struct log_entry append_one(int number)
{
    struct error err = {0};
    struct log_writer *w;
    struct log_entry e;
    char statement[SHA256_HEX], score[SHA256_HEX];
    digest_of(number, statement);
    digest_of(1000 + number, score);
    if (!log_open(path, &w, &err) || !log_append(w, statement, score, &e, &err))
        fail_msg("%s", err.message);
    log_close(w);
    return e;
}

/* The whole file of so many entries. */
static struct buffer make_log(int count)
{
    struct buffer text = {0};
    unlink(path);
    for (int i = 0; i < count; i++)
        append_one(i);
    assert_true(file_read(path, 1 << 20, &text, NULL));
    return text;
}

static void put(const void *data, size_t length)
{
    struct error err = {0};
    if (!file_write_atomic(path, data, length, &err))
        fail_msg("%s", err.message);
}

static bool parses(const char *data, size_t length, struct log *out, struct arena *a,
                   struct error *err)
{
    *err = (struct error){0};
    return log_parse("x.log", data, length, a, out, err);
}

static void test_appended_entries_are_read(void **state)
{
    (void)state;
    struct arena a = {0};
    struct log l;
    struct error err = {0};
    struct buffer text = make_log(ENTRIES);
    assert_true(log_read(path, &a, &l, &err));
    assert_int_equal(l.count, ENTRIES);
    assert_int_equal(l.bytes, text.length);
    assert_string_equal(l.entries[0].time, "2026-01-01T00:00:00Z");
    for (int i = 0; i < ENTRIES; i++) {
        char statement[SHA256_HEX];
        digest_of(i, statement);
        assert_int_equal(log_find(&l, statement)->index, i);
        if (i)
            assert_string_equal(l.entries[i].previous, l.entries[i - 1].hash);
    }
    assert_null(log_find(&l, l.entries[0].hash));
    buffer_free(&text);
    arena_free(&a);
}

/* One flipped bit anywhere: the line is named, or, in the last line feed, the line is torn. */
static void test_every_flipped_bit_is_found(void **state)
{
    (void)state;
    struct buffer text = make_log(3);
    for (size_t i = 0; i < text.length; i++) {
        for (int bit = 0; bit < 8; bit += 3) {
            struct arena a = {0};
            struct log l;
            struct error err;
            char wanted[32];
            size_t line = 1;
            for (size_t k = 0; k < i; k++)
                line += text.data[k] == '\n';
            text.data[i] ^= (char)(1 << bit);
            const bool ok = parses(text.data, text.length, &l, &a, &err);
            if (ok) {
                assert_int_equal(i, text.length - 1);
                assert_int_not_equal(l.torn, 0);
            } else {
                snprintf(wanted, sizeof wanted, "line %zu ", line);
                assert_string_equal(err.name, "LOG-INVALID");
                assert_non_null(strstr(err.message, wanted));
            }
            text.data[i] ^= (char)(1 << bit);
            arena_free(&a);
        }
    }
    buffer_free(&text);
}

/* The lines of a log in another order or with some left out. */
static void check_order(const struct buffer *text, const int *order, size_t count, bool good)
{
    const char *lines[ENTRIES + 1] = {text->data};
    struct buffer moved = {0};
    struct arena a = {0};
    struct log l;
    struct error err;
    for (size_t i = 0; i < ENTRIES; i++)
        lines[i + 1] = strchr(lines[i], '\n') + 1;
    for (size_t i = 0; i < count; i++)
        buffer_append(&moved, lines[order[i]], (size_t)(lines[order[i] + 1] - lines[order[i]]));
    assert_int_equal(parses(moved.data, moved.length, &l, &a, &err), good);
    if (!good)
        assert_string_equal(err.name, "LOG-INVALID");
    buffer_free(&moved);
    arena_free(&a);
}

static void test_deletions_swaps_and_copies_are_found(void **state)
{
    (void)state;
    struct buffer text = make_log(ENTRIES);
    check_order(&text, (const int[]){0, 1, 2, 3}, 4, true);
    check_order(&text, (const int[]){1, 2, 3}, 3, false);
    check_order(&text, (const int[]){0, 2, 3}, 3, false);
    check_order(&text, (const int[]){0, 2, 1, 3}, 4, false);
    check_order(&text, (const int[]){0, 1, 1, 2}, 4, false);
    check_order(&text, (const int[]){1, 0}, 2, false);
    buffer_free(&text);
}

/* An entry rewritten together with everything behind it is a whole log, and not the one whose root
 * was published; nor is one whose end was cut off. */
static void test_a_published_root_finds_rewriting_and_cutting(void **state)
{
    (void)state;
    struct arena a = {0};
    struct log l;
    struct error err = {0};
    struct merkle_hash root;
    char hex[SHA256_HEX], published[128];
    struct buffer text = make_log(ENTRIES);
    assert_true(log_read(path, &a, &l, &err));
    log_root(&l, 5, &root);
    text_hex(hex, root.bytes, sizeof root.bytes);
    snprintf(published, sizeof published, "5:%s", hex);
    assert_true(log_expect(path, &l, published, NULL, &err));
    l.count = 4;
    assert_false(log_expect(path, &l, published, NULL, &err));
    assert_non_null(strstr(err.message, "cut off"));
    unlink(path);
    for (int i = 0; i < ENTRIES; i++)
        append_one(i == 2 ? 77 : i);
    assert_true(log_read(path, &a, &l, &err));
    assert_false(log_expect(path, &l, published, NULL, &err));
    assert_string_equal(err.name, "LOG-INVALID");
    assert_non_null(strstr(err.message, "rewritten"));
    static const char *const bad[] = {"", "5", ":", "5:", "x:00", "99999999999999999999999:aa"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(log_expect(path, &l, bad[i], NULL, &err));
        assert_string_equal(err.name, "USAGE");
    }
    buffer_free(&text);
    arena_free(&a);
}

/* Cut off at every byte of its last line: found, never appended to, mended by the repair alone. */
static void test_a_torn_line_is_named_and_mended(void **state)
{
    (void)state;
    struct buffer text = make_log(3);
    size_t last = text.length - 1;
    while (text.data[last - 1] != '\n')
        last--;
    for (size_t length = last; length <= text.length; length++) {
        struct arena a = {0};
        struct log l;
        struct error err = {0};
        struct log_writer *w;
        struct log_repaired done;
        const bool torn = length > last && length < text.length;
        put(text.data, length);
        assert_int_equal(log_read(path, &a, &l, &err), !torn);
        if (torn) {
            assert_string_equal(err.name, "LOG-TORN");
            assert_non_null(strstr(err.message, "line 3"));
            assert_false(log_open(path, &w, &err));
            assert_string_equal(err.name, "LOG-TORN");
        }
        assert_true(log_repair(path, &done, &err));
        assert_int_equal(done.completed, length == text.length - 1);
        assert_int_equal(done.removed, torn && !done.completed ? length - last : 0);
        assert_true(log_read(path, &a, &l, &err));
        assert_int_equal(l.count, length < text.length - 1 ? 2 : 3);
        arena_free(&a);
    }
    buffer_free(&text);
}

/* The repair touches nothing that is wrong elsewhere. */
static void test_repair_leaves_other_damage(void **state)
{
    (void)state;
    struct error err = {0};
    struct log_repaired done;
    struct buffer text = make_log(3), after = {0};
    text.data[20] ^= 1;
    put(text.data, text.length - 5);
    assert_false(log_repair(path, &done, &err));
    assert_string_equal(err.name, "LOG-INVALID");
    assert_true(file_read(path, 1 << 20, &after, NULL));
    assert_int_equal(after.length, text.length - 5);
    assert_memory_equal(after.data, text.data, after.length);
    buffer_free(&after);
    buffer_free(&text);
}

/* Writers killed while they append: the log is whole, or torn in its last line and mended. */
static void test_killed_writers_leave_a_usable_log(void **state)
{
    (void)state;
    unlink(path);
    append_one(0);
    for (int round = 0; round < 20; round++) {
        int ready[2];
        char byte;
        struct error err = {0};
        struct log_repaired done;
        struct arena a = {0};
        struct log l;
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) {
            for (int i = 1;; i++) {
                append_one(100 * round + i);
                if (write(ready[1], "x", 1) != 1)
                    _exit(1);
            }
        }
        close(ready[1]);
        for (int i = 0; i <= round % 4; i++)
            assert_int_equal(read(ready[0], &byte, 1), 1);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        if (!log_repair(path, &done, &err) || !log_read(path, &a, &l, &err))
            fail_msg("%s", err.message);
        assert_true(l.count > (size_t)round);
        arena_free(&a);
    }
}

/* Several at once: every entry is there, in one chain. */
static void test_writers_take_turns(void **state)
{
    (void)state;
    enum { WRITERS = 4, EACH = 10 };
    struct arena a = {0};
    struct log l;
    struct error err = {0};
    unlink(path);
    for (int w = 0; w < WRITERS; w++) {
        if (fork() == 0) {
            for (int i = 0; i < EACH; i++)
                append_one(100 * w + i);
            _exit(0);
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        wait(&status);
        assert_int_equal(status, 0);
    }
    assert_true(log_read(path, &a, &l, &err));
    assert_int_equal(l.count, WRITERS * EACH);
    for (int w = 0; w < WRITERS; w++)
        for (int i = 0; i < EACH; i++) {
            char statement[SHA256_HEX];
            digest_of(100 * w + i, statement);
            assert_non_null(log_find(&l, statement));
        }
    arena_free(&a);
}

static void test_places_that_are_no_log(void **state)
{
    (void)state;
    struct arena a = {0};
    struct log l;
    struct log_writer *w;
    struct error err = {0};
    unlink(path);
    assert_false(log_read(path, &a, &l, &err));
    assert_string_equal(err.name, "IO");
    assert_false(log_open(folder, &w, &err));
    assert_string_equal(err.name, "IO");
    assert_int_equal(symlink("/tmp/elsewhere", path), 0);
    assert_false(log_open(path, &w, &err));
    assert_string_equal(err.name, "IO");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(log_open(path, &w, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    assert_false(log_read(path, &a, &l, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    unlink(path);
    arena_free(&a);
}

/* ---- Inclusion ---- */

static void test_inclusion_stands_alone(void **state)
{
    (void)state;
    struct arena a = {0};
    struct log l;
    struct error err = {0};
    struct buffer text = make_log(ENTRIES);
    assert_true(log_read(path, &a, &l, &err));
    for (size_t i = 0; i < ENTRIES; i++) {
        struct log_inclusion p, again;
        struct buffer proof = {0};
        log_prove(&l, &l.entries[i], i, &p);
        log_inclusion_render(&p, &proof);
        assert_true(log_inclusion_parse("p", proof.data, proof.length, &again, &err));
        assert_int_equal(again.entry.index, i);
        assert_int_equal(again.size, ENTRIES);
        assert_int_equal(again.before, i);
        assert_string_equal(again.entry.hash, l.entries[i].hash);
        for (size_t k = 0; i % 4 == 0 && k < proof.length; k++) {
            proof.data[k] ^= 1;
            assert_false(log_inclusion_parse("p", proof.data, proof.length, &again, &err));
            assert_string_equal(err.name, "LOG-INVALID");
            proof.data[k] ^= 1;
        }
        assert_false(log_inclusion_parse("p", proof.data, proof.length - 1, &again, &err));
        buffer_free(&proof);
    }
    buffer_free(&text);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_roots),
        cmocka_unit_test(test_every_proof_holds_and_no_other),
        cmocka_unit_test(test_every_extension_holds_and_no_other),
        cmocka_unit_test(test_appended_entries_are_read),
        cmocka_unit_test(test_every_flipped_bit_is_found),
        cmocka_unit_test(test_deletions_swaps_and_copies_are_found),
        cmocka_unit_test(test_a_published_root_finds_rewriting_and_cutting),
        cmocka_unit_test(test_a_torn_line_is_named_and_mended),
        cmocka_unit_test(test_repair_leaves_other_damage),
        cmocka_unit_test(test_killed_writers_leave_a_usable_log),
        cmocka_unit_test(test_writers_take_turns),
        cmocka_unit_test(test_places_that_are_no_log),
        cmocka_unit_test(test_inclusion_stands_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
