/* Sealing: the three files, their order, what is published of paths, and no half state. */
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/seal.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static char folder[64], home[1024];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_seal.XXXXXX");
    return getcwd(home, sizeof home) && mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "chmod -R u+rwx %s && rm -rf %s", folder, folder);
    return chdir(home) || system(command);
}

static void put(const char *path, const char *text)
{
    struct error err = {0};
    if (!file_write_atomic(path, text, strlen(text), &err))
        fail_msg("%s", err.message);
}

static char *get(const char *path)
{
    struct buffer text = {0};
    struct error err = {0};
    if (!file_read(path, 1 << 20, &text, &err))
        fail_msg("%s: %s", path, err.message);
    char *out = strdup(text.data ? text.data : "");
    buffer_free(&text);
    return out;
}

static int entries(const char *path)
{
    int count = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    const struct dirent *e;
    while ((e = readdir(d)))
        count += e->d_name[0] != '.';
    closedir(d);
    return count;
}

static bool seal(const char *score_path, bool local_iterate, struct error *err)
{
    struct score_document d;
    memset(err, 0, sizeof *err);
    score_document_init(&d, "rust-local-iterate");
    d.passed = d.has_score = true;
    d.score = 1.25;
    const struct seal_inputs in = {.score_path = score_path,
                                   .weights_path = "weights",
                                   .weights_sha256 = HEX64,
                                   .weights_file_count = 3,
                                   .weights_byte_count = 12345678901,
                                   .golden_path = "/nonexistent/secret/public.golden.json",
                                   .golden_sha256 = HEX64,
                                   .candidate_executable = "bin/engine",
                                   .benchd_executable = "/bin/true",
                                   .sandbox = "none",
                                   .local_iterate = local_iterate};
    bool ok = seal_write(&d, &in, err);
    score_document_free(&d);
    return ok;
}

static void test_the_three_files(void **state)
{
    (void)state;
    struct error err;
    char hex[SHA256_HEX], engine[SHA256_HEX], true_hex[SHA256_HEX];
    assert_int_equal(mkdir("out", 0755) || mkdir("weights", 0755) || mkdir("bin", 0755), 0);
    put("bin/engine", "#!engine");
    put("weights/.benchmark-source.sha256", HEX64 "\n");
    if (!seal("out/score.json", false, &err))
        fail_msg("%s", err.message);
    assert_int_equal(entries("out"), 3);

    char *score = get("out/score.json");
    assert_true(score_validate(score, strlen(score), &err));
    sha256_hex(score, strlen(score), hex);
    char *sidecar = get("out/score.json.sha256"), line[128];
    snprintf(line, sizeof line, "%s  score.json\n", hex);
    assert_string_equal(sidecar, line);
    assert_int_equal(system("cd out && sha256sum -c --status score.json.sha256"), 0);

    sha256_hex("#!engine", 8, engine);
    uint8_t raw[SHA256_BYTES];
    assert_true(sha256_file("/bin/true", raw, NULL, &err));
    text_hex(true_hex, raw, sizeof raw);
    struct buffer wanted = {0};
    buffer_printf(&wanted,
                  "{\n"
                  "  \"score_path\": \"out/score.json\",\n"
                  "  \"score_sha256\": \"%s\",\n"
                  "  \"weights_path\": \"weights\",\n"
                  "  \"weights_sha256\": \"" HEX64 "\",\n"
                  "  \"weights_file_count\": 3,\n"
                  "  \"weights_byte_count\": 12345678901,\n"
                  "  \"golden_path\": \"public.golden.json\",\n"
                  "  \"golden_sha256\": \"" HEX64 "\",\n"
                  "  \"transform_source_sha256\": \"" HEX64 "\",\n"
                  "  \"candidate_executable\": \"bin/engine\",\n"
                  "  \"candidate_executable_sha256\": \"%s\",\n"
                  "  \"baseline_executable\": \"\",\n"
                  "  \"baseline_executable_sha256\": \"\",\n"
                  "  \"candidate_executable_resolution\": \"canonical\",\n"
                  "  \"benchd_executable\": \"true\",\n"
                  "  \"benchd_executable_sha256\": \"%s\",\n"
                  "  \"candidate_workspace_sha256\": \"\",\n"
                  "  \"sandbox\": \"none\"\n"
                  "}\n",
                  hex, engine, true_hex);
    char *integrity = get("out/benchmark-integrity.json");
    assert_string_equal(integrity, wanted.data);
    buffer_free(&wanted);
    free(integrity);
    free(sidecar);
    free(score);
}

static void test_missing_engine_and_local_name(void **state)
{
    (void)state;
    struct error err;
    assert_true(seal("score.local-iterate.json", true, &err));
    char *text = get("benchmark-integrity.local-iterate.json");
    json_t *integrity = json_loads(text, 0, NULL);
    assert_non_null(integrity);
    assert_int_equal(json_object_size(integrity), 18);
    const struct {
        const char *key, *value;
    } rows[] = {{"score_path", "score.local-iterate.json"},
                {"weights_path", "weights"},
                {"candidate_executable", "bin/engine"},
                {"candidate_executable_sha256", ""},
                {"candidate_executable_resolution", "unresolved"},
                {"transform_source_sha256", ""}};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_string_equal(json_string_value(json_object_get(integrity, rows[i].key)),
                            rows[i].value);
    json_decref(integrity);
    free(text);
}

/* Paths below the working directory are told relative to it, however they are written. */
static void test_published_paths(void **state)
{
    (void)state;
    struct error err;
    char path[256];
    assert_int_equal(mkdir("out", 0755), 0);
    snprintf(path, sizeof path, "%s/out/../out/score.json", folder);
    assert_true(seal(path, false, &err));
    char *text = get("out/benchmark-integrity.json");
    assert_non_null(strstr(text, "\"score_path\": \"out/score.json\""));
    assert_null(strstr(text, folder));
    assert_null(strstr(text, "secret"));
    free(text);
    /* Above the working directory: the name alone. */
    assert_int_equal(chdir("out"), 0);
    assert_true(seal("../score.json", false, &err));
    text = get("../benchmark-integrity.json");
    assert_non_null(strstr(text, "\"score_path\": \"score.json\""));
    assert_null(strstr(text, ".."));
    free(text);
}

static void test_an_earlier_set_is_replaced_whole(void **state)
{
    (void)state;
    struct error err;
    put("score.json", "old");
    put("score.json.sha256", "old");
    put("benchmark-integrity.json", "old");
    assert_true(seal("score.json", false, &err));
    assert_int_equal(system("sha256sum -c --status score.json.sha256"), 0);
    assert_int_equal(entries("."), 3);
}

/* When any of the three cannot be written, the earlier set stands and nothing else is left. */
static void test_failure_leaves_no_half_state(void **state)
{
    (void)state;
    struct error err;
    static const char *const blocked[] = {"score.json.sha256", "benchmark-integrity.json"};
    for (size_t i = 0; i < COUNT_OF(blocked); i++) {
        put("score.json", "old");
        assert_int_equal(mkdir(blocked[i], 0755), 0);
        assert_false(seal("score.json", false, &err));
        assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
        assert_string_equal(path_basename(err.file), blocked[i]);
        char *text = get("score.json");
        assert_string_equal(text, "old");
        free(text);
        assert_int_equal(entries("."), 2);
        assert_int_equal(rmdir(blocked[i]), 0);
        assert_int_equal(unlink("score.json"), 0);
    }
    assert_int_equal(symlink("/dev/null", "score.json"), 0);
    assert_false(seal("score.json", false, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    assert_int_equal(unlink("score.json"), 0);
    assert_false(seal("absent/score.json", false, &err));
    assert_string_equal(err.name, "IO");
    /* A temporary name that is taken by a folder: the two others are cleaned up. */
    char taken[96];
    snprintf(taken, sizeof taken, "benchmark-integrity.json.tmp.%ld", (long)getpid());
    assert_int_equal(mkdir(taken, 0755), 0);
    assert_false(seal("score.json", false, &err));
    assert_int_equal(entries("."), 1);
}

/* The system's calls that change the folder, so that a child can die just before the nth of them.
 */
static int calls_until_death = -1;
static void count_call(void)
{
    if (calls_until_death >= 0 && calls_until_death-- == 0)
        _exit(42);
}
int rename(const char *from, const char *to)
{
    count_call();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int unlink(const char *path)
{
    count_call();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int fsync(int fd)
{
    count_call();
    return (int)syscall(SYS_fsync, fd);
}

/* Whatever call a run dies before, a score that is there has the companions that belong to it. */
static void test_death_at_every_step(void **state)
{
    (void)state;
    int deaths = 0;
    for (int n = 0;; n++) {
        struct error err;
        int status;
        put("score.json", "old");
        assert_int_equal(system("sha256sum score.json > score.json.sha256"), 0);
        put("benchmark-integrity.json", "old");
        pid_t child = fork();
        if (child == 0) {
            calls_until_death = n;
            _exit(seal("score.json", false, &err) ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 0));
        if (access("score.json", F_OK) == 0) {
            char *score = get("score.json"), *integrity = get("benchmark-integrity.json");
            assert_int_equal(system("sha256sum -c --status score.json.sha256"), 0);
            assert_true((strcmp(score, "old") == 0) == (strcmp(integrity, "old") == 0));
            free(score);
            free(integrity);
        }
        if (WEXITSTATUS(status) == 0)
            break;
        deaths++;
    }
    /* Three flushes, one removal, two names, a flush of the folder, the last name and flush. */
    assert_int_equal(deaths, 9);
    char *score = get("score.json");
    assert_string_not_equal(score, "old");
    free(score);
}

static void test_an_invalid_document_writes_nothing(void **state)
{
    (void)state;
    struct score_document d;
    struct error err = {0};
    const struct seal_inputs in = {.score_path = "score.json"};
    score_document_init(&d, "rust");
    score_set_int(&d, "no_such_key", 1);
    assert_false(seal_write(&d, &in, &err));
    assert_string_equal(err.name, "SCORE-INVALID");
    assert_int_equal(entries("."), 0);
    score_document_free(&d);
}

static void test_names_that_cannot_stand_in_a_sidecar(void **state)
{
    (void)state;
    struct error err;
    static const char *const names[] = {"a\nb.json", "a\\b.json", "out/",
                                        "benchmark-integrity.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_false(seal(names[i], false, &err));
        assert_string_equal(err.name, "SCORE-PATH-INVALID");
    }
    assert_int_equal(entries("."), 0);
    assert_true(seal("with space.json", false, &err));
    assert_int_equal(system("sha256sum -c --status 'with space.json.sha256'"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_three_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_engine_and_local_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_published_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_earlier_set_is_replaced_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failure_leaves_no_half_state, setup, teardown),
        cmocka_unit_test_setup_teardown(test_death_at_every_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_invalid_document_writes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_that_cannot_stand_in_a_sidecar, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
