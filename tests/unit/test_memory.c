/* engine/memory: limits, quotas and nodes from made-up system files; the profile on both sides of
 * each limit; pages. */
#include "base/file.h"
#include "engine/memory/cores.h"
#include "engine/memory/limits.h"
#include "engine/memory/nodes.h"
#include "engine/memory/pages.h"
#include "engine/memory/startup.h"
#include "engine/memory/system.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];
static struct arena names;

static int make_root(void **state)
{
    (void)state;
    text_copy(root, sizeof root, "/tmp/mlxfast-memory-XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    return setenv("MLXFAST_SYSTEM_FILES", root, 1);
}

static int remove_root(void **state)
{
    (void)state;
    struct error err;
    char **files;
    size_t count;
    if (file_list_recursive(&names, root, &files, &count, &err))
        for (size_t i = 0; i < count; i++) {
            char *path = path_join(&names, root, files[i]);
            unlink(path);
            for (char *slash;
                 (slash = strrchr(path, '/')) != NULL && slash > path + strlen(root);) {
                *slash = '\0';
                rmdir(path);
            }
        }
    rmdir(root);
    arena_free(&names);
    return unsetenv("MLXFAST_SYSTEM_FILES");
}

static void put(const char *path, const char *text)
{
    struct error err;
    char *whole = arena_printf(&names, "%s%s", root, path);
    char *folder = arena_strdup(&names, whole);
    *strrchr(folder, '/') = '\0';
    assert_true(file_make_directories(folder, &err));
    assert_true(file_write_atomic(whole, text, strlen(text), &err));
}

static void limits_come_from_the_least(void **state)
{
    (void)state;
    struct memory_limits l;
    memory_limits_read(&l);
    assert_int_equal(l.available, UINT64_MAX); /* nothing is known: nothing is limited */
    put("/proc/meminfo", "MemTotal:  100000 kB\nMemAvailable:   5000 kB\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 5000 * 1024);
    assert_string_equal(l.source, "MemAvailable of /proc/meminfo");

    /* Version 2: the group above limits; what it holds of files can be dropped. */
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.max", "4000000\n");
    put("/sys/fs/cgroup/a/memory.current", "3000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500000\nactive_file 250000\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 4000000 - 2250000);
    assert_string_equal(l.source, "memory.max of /sys/fs/cgroup/a");
    put("/sys/fs/cgroup/a/b/memory.high", "1000\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 1000); /* none of it is known to be used */
    assert_string_equal(l.source, "memory.high of /sys/fs/cgroup/a/b");
    put("/sys/fs/cgroup/a/b/memory.current", "5000\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 0);

    /* Version 1, seen from inside a container: the path is the host's, the files are the root's. */
    put("/proc/self/cgroup", "9:name=systemd:/x\n4:cpuset,memory:/docker/123\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 5000 * 1024);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\ntotal_active_file 1\n");
    memory_limits_read(&l);
    assert_int_equal(l.available, 2000000 - 1399999);
    assert_string_equal(l.source, "memory.limit_in_bytes of /sys/fs/cgroup/memory");
}

static void resource_limits_leave_what_is_not_used(void **state)
{
    (void)state;
    struct memory_limits l;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_DATA, &old), 0);
    small = (struct rlimit){(rlim_t)1 << 40, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_DATA, &small), 0);
    memory_limits_read(&l);
    assert_int_equal(l.data, (uint64_t)1 << 40); /* no status file here */
    put("/proc/self/status", "Name:\tx\nVmData:\t   1000 kB\nVmLck:\t 1 kB\n");
    memory_limits_read(&l);
    assert_int_equal(l.data, ((uint64_t)1 << 40) - 1000 * 1024);
    assert_int_equal(setrlimit(RLIMIT_DATA, &old), 0);

    struct error err = {0};
    l.addresses = 100 << 20;
    assert_true(memory_check_mapping(&l, 30 << 20, "there", &err));
    assert_false(memory_check_mapping(&l, 40 << 20, "there", &err));
    assert_string_equal(err.name, "MEMORY-INSUFFICIENT");
    assert_string_equal(err.file, "there");
    assert_non_null(strstr(err.message, "RLIMIT_AS"));
}

static void quotas_pay_for_whole_cores(void **state)
{
    (void)state;
    const int mask = cores_in_mask();
    assert_true(mask >= 1);
    assert_int_equal(cores_allowed(), mask);
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/cpu.max", "max 100000\n");
    assert_int_equal(cores_allowed(), mask);
    const struct {
        const char *text;
        int cores;
    } cases[] = {{"150000 100000\n", 1}, {"50000 100000\n", 1},  {"1000 100000\n", 1},
                 {"200000 100000\n", 2}, {"299999 100000\n", 2}, {"99900000 100000\n", 999},
                 {"\n", 1 << 20},        {"x y\n", 1 << 20},     {"100 0\n", 1 << 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("/sys/fs/cgroup/g/cpu.max", cases[i].text);
        assert_int_equal(cores_allowed(), cases[i].cores < mask ? cases[i].cores : mask);
    }
    put("/sys/fs/cgroup/g/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n"); /* a group above */
    assert_int_equal(cores_allowed(), 1);
    put("/proc/self/cgroup", "3:cpu,cpuacct:/j\n");
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_allowed(), mask);
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "120000\n");
    assert_int_equal(cores_allowed(), 1);
}

static void lists_of_nodes(void **state)
{
    (void)state;
    uint64_t bits = 5;
    const struct {
        const char *text;
        uint64_t bits;
    } good[] = {{"0\n", 1},           {"0-1\n", 3}, {"0,2", 5},     {"1-2,5\n", 38},
                {"63\n", 1ull << 63}, {"\n", 0},    {"0-63", ~0ull}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(nodes_parse(good[i].text, &bits));
        assert_true(bits == good[i].bits);
    }
    static const char *const bad[] = {
        "64", "1-", "-1", "2-1", "0,", "0,,1", "a", "0 1", "0-1-2", "99999999999999999999", "0,x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bits = 7;
        if (nodes_parse(bad[i], &bits))
            fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(bits, 7);
    }
}

static void nodes_with_memory_and_cores(void **state)
{
    (void)state;
    assert_int_equal(nodes_read(), 0); /* nothing is known */
    put("/sys/devices/system/node/has_memory", "0-3\n");
    assert_int_equal(nodes_read(), 0);
    put("/sys/devices/system/node/node0/cpulist", "0-1023\n");
    put("/sys/devices/system/node/node1/cpulist", "\n"); /* memory without processors */
    put("/sys/devices/system/node/node2/cpulist", "0-1023,2000-2001\n");
    put("/sys/devices/system/node/node3/cpulist", "8000\n"); /* none of ours */
    assert_int_equal(nodes_read(), 5);
    put("/proc/self/status", "Mems_allowed:\tff\nMems_allowed_list:\t1-2\n");
    assert_int_equal(nodes_read(), 4);
    put("/sys/devices/system/node/has_memory", "nonsense\n");
    assert_int_equal(nodes_read(), 0);
}

enum { MB = 1 << 20 };

/* In MB: full takes 1000 + 100 + 50 + 10 + 32, low 200 + 80 + 20 + 10 + 32 (of it 142 its own). */
static struct memory_need need(void)
{
    return (struct memory_need){.folder = "there",
                                .weights = (uint64_t)1000 * MB,
                                .token = (uint64_t)200 * MB,
                                .caches = (uint64_t)100 * MB,
                                .scratch = (uint64_t)50 * MB,
                                .low_caches = (uint64_t)80 * MB,
                                .low_scratch = (uint64_t)20 * MB,
                                .tables = (uint64_t)10 * MB};
}

static const struct memory_limits none = {UINT64_MAX, "nobody", UINT64_MAX, UINT64_MAX, 0};

enum { REFUSED = -1 };

static int chosen(enum memory_profile asked, const struct memory_limits *l, const char *limit)
{
    struct memory_need n = need();
    struct memory_plan p;
    struct error err = {0};
    if (memory_plan_make(asked, &n, l, &p, &err)) {
        assert_true(text_starts(p.line, "memory profile "));
        assert_true((strstr(p.line, "(auto)") != NULL) == (asked == MEMORY_AUTO));
        assert_true(p.profile == MEMORY_FULL || p.profile == MEMORY_LOW);
        return (int)p.profile;
    }
    assert_string_equal(err.name, "MEMORY-INSUFFICIENT");
    assert_string_equal(err.file, "there");
    if (limit == NULL || strstr(err.message, limit) == NULL)
        fail_msg("%s", err.message);
    return REFUSED;
}

static void profile_on_both_sides_of_each_limit(void **state)
{
    (void)state;
    assert_int_equal(chosen(MEMORY_AUTO, &none, NULL), MEMORY_FULL);
    assert_int_equal(chosen(MEMORY_LOW, &none, NULL), MEMORY_LOW);

    struct memory_limits l = none;
    text_copy(l.source, sizeof l.source, "the machine");
    l.available = (uint64_t)1192 * MB;
    assert_int_equal(chosen(MEMORY_FULL, &l, NULL), MEMORY_FULL);
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_LOW); /* not a tenth to spare */
    l.available--;
    assert_int_equal(chosen(MEMORY_FULL, &l, "the machine"), REFUSED);
    l.available = (uint64_t)1325 * MB; /* nine tenths are 1192.5 */
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_FULL);
    l.available = (uint64_t)1324 * MB;
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_LOW);
    l.available = (uint64_t)342 * MB;
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_LOW);
    l.available--;
    assert_int_equal(chosen(MEMORY_AUTO, &l, "the machine"), REFUSED);
    assert_int_equal(chosen(MEMORY_LOW, &l, "the machine"), REFUSED);

    l = none;
    l.data = (uint64_t)1192 * MB;
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_FULL);
    l.data--;
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_LOW);
    assert_int_equal(chosen(MEMORY_FULL, &l, "RLIMIT_DATA"), REFUSED);
    l.data = (uint64_t)142 * MB;
    assert_int_equal(chosen(MEMORY_LOW, &l, NULL), MEMORY_LOW);
    l.data--;
    assert_int_equal(chosen(MEMORY_LOW, &l, "RLIMIT_DATA"), REFUSED);

    l = none;
    l.addresses = (uint64_t)142 * MB;
    assert_int_equal(chosen(MEMORY_AUTO, &l, NULL), MEMORY_LOW);
    l.addresses--;
    assert_int_equal(chosen(MEMORY_AUTO, &l, "RLIMIT_AS"), REFUSED);
}

static void plan_says_what_it_leaves_out(void **state)
{
    (void)state;
    struct memory_need n = need();
    struct memory_limits l = none;
    struct memory_plan p;
    struct error err = {0};
    l.available = (uint64_t)1141 * MB;
    assert_true(memory_plan_make(MEMORY_LOW, &n, &l, &p, &err));
    assert_false(p.fits);
    assert_non_null(strstr(p.line, "more than fits"));
    l.available = (uint64_t)1142 * MB;
    assert_true(memory_plan_make(MEMORY_LOW, &n, &l, &p, &err));
    assert_true(p.fits);
    assert_false(p.lock);

    l.available = UINT64_MAX;
    l.lockable = n.weights - 1;
    assert_true(memory_plan_make(MEMORY_FULL, &n, &l, &p, &err));
    assert_false(p.lock);
    assert_non_null(strstr(p.line, "RLIMIT_MEMLOCK"));
    l.lockable = n.weights;
    assert_true(memory_plan_make(MEMORY_FULL, &n, &l, &p, &err));
    assert_true(p.lock);

    n.caches = UINT64_MAX; /* more than can be counted is more than there is */
    l.available = UINT64_MAX - 1;
    assert_false(memory_plan_make(MEMORY_FULL, &n, &l, &p, &err));
}

static void device_is_full_or_refused(void **state)
{
    (void)state;
    const uint64_t needed = (uint64_t)(1000 + 100 + 50 + 10 + 384) * MB;
    struct memory_need n = need();
    struct memory_plan p;
    struct error err = {0};
    const enum memory_profile asked[] = {MEMORY_AUTO, MEMORY_FULL};
    for (int i = 0; i < 2; i++) {
        assert_true(memory_plan_device(asked[i], &n, "NVIDIA H200", needed, &p, &err));
        assert_true(p.device && p.fits && !p.lock);
        assert_int_equal(p.profile, MEMORY_FULL);
        assert_non_null(strstr(p.line, "1.62 GB of 1.62 GB (free on NVIDIA H200); weights are"));
        assert_true((strstr(p.line, "(auto)") != NULL) == (asked[i] == MEMORY_AUTO));
    }
    assert_false(memory_plan_device(MEMORY_AUTO, &n, "NVIDIA H200", needed - 1, &p, &err));
    assert_string_equal(err.name, "MEMORY-INSUFFICIENT");
    assert_string_equal(err.file, "there");
    assert_non_null(strstr(err.message, "profile full needs 1.62 GB (of it 1.05 GB for weights"));
    assert_non_null(strstr(err.message, "1.62 GB are free on NVIDIA H200; lower --context"));

    assert_false(memory_plan_device(MEMORY_LOW, &n, "NVIDIA H200", needed, &p, &err));
    assert_string_equal(err.name, "badValue");
    assert_string_equal(err.value, "low");

    n.caches = UINT64_MAX;
    assert_false(memory_plan_device(MEMORY_AUTO, &n, "NVIDIA H200", UINT64_MAX - 1, &p, &err));
}

static void names_of_profiles(void **state)
{
    (void)state;
    enum memory_profile p = MEMORY_LOW;
    for (int i = MEMORY_AUTO; i <= MEMORY_LOW; i++) {
        assert_true(memory_profile_parse(memory_profile_name((enum memory_profile)i), &p));
        assert_int_equal(p, i);
    }
    static const char *const bad[] = {"", "Full", "full ", "tiny", "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(memory_profile_parse(bad[i], &p));
}

static void pages_are_zeroed_and_aligned(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 4097, 2 * MB - 1, 2 * MB, 2 * MB + 1, 7 * MB + 3};
    for (int kind = PAGES_HUGE; kind <= PAGES_ORDINARY; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct pages p;
            assert_true(pages_new(sizes[i], (enum pages_kind)kind, &p));
            assert_true(p.bytes >= sizes[i]);
            assert_int_equal((uintptr_t)p.data % 64, 0);
            pages_populate(&p);
            uint8_t *bytes = p.data;
            for (size_t at = 0; at < sizes[i]; at += 509) {
                assert_int_equal(bytes[at], 0);
                bytes[at] = 1;
            }
            pages_free(&p);
            assert_null(p.data);
            pages_free(&p);
        }
    struct pages p;
    assert_false(pages_new((size_t)1 << 43, PAGES_HUGE, &p));
    assert_false(pages_new(SIZE_MAX, PAGES_ORDINARY, &p));
    assert_null(p.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(limits_come_from_the_least, make_root, remove_root),
        cmocka_unit_test_setup_teardown(resource_limits_leave_what_is_not_used, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(quotas_pay_for_whole_cores, make_root, remove_root),
        cmocka_unit_test(lists_of_nodes),
        cmocka_unit_test_setup_teardown(nodes_with_memory_and_cores, make_root, remove_root),
        cmocka_unit_test(profile_on_both_sides_of_each_limit),
        cmocka_unit_test(plan_says_what_it_leaves_out),
        cmocka_unit_test(device_is_full_or_refused),
        cmocka_unit_test(names_of_profiles),
        cmocka_unit_test(pages_are_zeroed_and_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
