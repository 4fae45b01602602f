/* mlxfast doctor on made-up machines: each finding well and not well. Nothing of the machine that
 * the test runs on is looked at but its temporary folder. */
#include "doctor_machine.h"

#include "arena/doctor/disk.h"

#include <sys/socket.h>
#include <sys/un.h>

/* ---- processors ---- */

static void test_kernels(void **state)
{
    struct made *t = *state;
    put(t, "/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made Up 9\nflags\t\t: fpu\n");
    examine_kernels(&t->p);
    expect(t, "cpu", FINDING_OK, "Made Up 9: the engine takes its avx2 kernels", NULL);
    set(t, "MLXFAST_CPU", "portable");
    t->m.engine.kernels = "portable";
    examine_kernels(&t->p);
    expect(t, "cpu", FINDING_WARN, "because MLXFAST_CPU says so", "unset MLXFAST_CPU");
    set(t, "MLXFAST_CPU", "");
    t->m.engine.best_kernels = "portable";
    examine_kernels(&t->p);
    expect(t, "cpu", FINDING_WARN, "the slowest", "-cpu host");
    set(t, "BENCH_WORKER_CPU", "neon");
    error_set(&t->m.engine.kernels_fault, "CPU-UNSUPPORTED", "no neon here");
    examine_kernels(&t->p);
    expect(t, "cpu", FINDING_FIX, "no neon here", "unset BENCH_WORKER_CPU");
}

static void test_processors(void **state)
{
    struct made *t = *state;
    put(t, "/sys/devices/system/cpu/online", "0-2,7\n");
    examine_processors(&t->p);
    expect(t, "processors", FINDING_OK, "4 may be used, of 4", NULL);
    t->m.engine.processors = 2;
    examine_processors(&t->p);
    expect(t, "processors", FINDING_WARN, "2 of 4 may be used: a control group's quota", "cpu.max");
    t->m.engine.processors = t->m.engine.processors_in_mask = 2;
    examine_processors(&t->p);
    expect(t, "processors", FINDING_WARN, "affinity mask", "taskset -pc 0-2,7 $$");
    set(t, "MLXFAST_THREADS", "2"); /* what there is: nothing to say */
    put(t, "/sys/devices/system/cpu/online", "0-1\n");
    examine_processors(&t->p);
    expect(t, "processors", FINDING_OK, "2 may be used, of 2", NULL);
    set(t, "MLXFAST_THREADS", "16");
    examine_processors(&t->p);
    expect(t, "processors", FINDING_WARN, "MLXFAST_THREADS asks for 16", "unset MLXFAST_THREADS");
    set(t, "MLXFAST_THREADS", "many");
    examine_processors(&t->p);
    expect(t, "processors", FINDING_FIX, "\"many\"", "unset MLXFAST_THREADS");
}

static void test_siblings(void **state)
{
    struct made *t = *state;
    examine_siblings(&t->p);
    expect(t, "smt", FINDING_OK, "does not say", NULL);
    put(t, "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0\n");
    put(t, "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1\n");
    examine_siblings(&t->p);
    expect(t, "smt", FINDING_OK, "a core of its own", NULL);
    put(t, "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n");
    put(t, "/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2\n");
    put(t, "/sys/devices/system/cpu/smt/control", "on\n");
    examine_siblings(&t->p);
    expect(t, "smt", FINDING_WARN, "2 of 3", "echo off | sudo tee");
    put(t, "/sys/devices/system/cpu/smt/control", "notsupported\n");
    examine_siblings(&t->p);
    expect(t, "smt", FINDING_WARN, "2 of 3", "firmware");
}

static void test_governor(void **state)
{
    struct made *t = *state;
    examine_governor(&t->p);
    expect(t, "governor", FINDING_OK, "none", NULL);
    put(t, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    put(t, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3000000\n");
    put(t, "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000\n");
    examine_governor(&t->p);
    expect(t, "governor", FINDING_OK, "performance", NULL);
    put(t, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "2000000\n");
    examine_governor(&t->p);
    expect(t, "governor", FINDING_WARN, "1 of 1", "scaling_max_freq");
    put(t, "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "schedutil\n");
    examine_governor(&t->p);
    expect(t, "governor", FINDING_WARN, "1 of 2 processors are clocked by \"schedutil\"",
           "echo performance | sudo tee");
}

static void test_power_and_timer(void **state)
{
    struct made *t = *state;
    examine_power(&t->p);
    expect(t, "power", FINDING_OK, "mains", NULL);
    put(t, "/sys/class/power_supply/BAT0/type", "Battery\n");
    put(t, "/sys/class/power_supply/AC/type", "Mains\n");
    put(t, "/sys/class/power_supply/AC/online", "0\n");
    examine_power(&t->p);
    expect(t, "power", FINDING_WARN, "battery", "plug it in");
    put(t, "/sys/class/power_supply/AC/online", "1\n");
    examine_power(&t->p);
    expect(t, "power", FINDING_OK, "mains", NULL);

    examine_timer(&t->p);
    expect(t, "timer", FINDING_OK, "does not say", NULL);
    const char *file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    put(t, file, "tsc\n");
    examine_timer(&t->p);
    expect(t, "timer", FINDING_OK, "tsc", NULL);
    put(t, file, "hpet\n");
    examine_timer(&t->p);
    expect(t, "timer", FINDING_WARN, "hpet", "tsc=reliable");
    put(t, "/sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet tsc\n");
    examine_timer(&t->p);
    expect(t, "timer", FINDING_WARN, "hpet", "echo tsc | sudo tee");
}

/* ---- what else happens ---- */

static void put_process(struct made *t, int pid, const char *name, int parent, int session,
                        int ticks, int start)
{
    put(t, arena_printf(&t->arena, "/proc/%d/stat", pid),
        arena_printf(&t->arena,
                     "%d (%s) S %d %d %d 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 %d 4096 1000 0 0\n", pid,
                     name, parent, pid, session, ticks, start));
}

/* Half a second of two processors on which others took all of one, and the host 2 ticks. A child of
 * make's with 500 ticks has ended after 7 more. */
static void pass_busy(struct made *t)
{
    put(t, "/proc/stat", "cpu  1058 0 0 1040 0 0 0 2 0 0\n");
    put_process(t, 100, "mlxfast", 1, 100, 8, 50);
    put_process(t, 31, "cc1) x", 1, 31, 1040, 7);
    put_process(t, 32, "make", 1, 32, 510, 7);
    assert_int_equal(remove(in_root(t, "/proc/34/stat")), 0);
    put_process(t, 33, "new", 1, 33, 5, 99); /* the number of one that ended */
}

static void pass_quiet(struct made *t)
{
    put(t, "/proc/stat", "cpu  1003 0 0 1097 0 0 0 0 0 0\n");
    put_process(t, 100, "mlxfast", 1, 100, 3, 50);
}

static const char judged[] =
    "{\"readers\": {}, \"temperature\": {\"celsius\": %s, \"limit\": 60.0, \"reader\": %s}}";

static void put_quiet_machine(struct made *t)
{
    put(t, "/proc/loadavg", "0.10 0.20 0.30 1/100 9\n");
    put(t, "/proc/stat", "cpu  1000 0 0 1000 0 0 0 0 0 0\n");
    put_process(t, 100, "mlxfast", 1, 100, 0, 50);
    put_process(t, 31, "cc1) x", 1, 31, 1000, 7);
    put_process(t, 32, "make", 1, 32, 3, 7);
    put_process(t, 33, "old", 1, 33, 4000, 7);
    put_process(t, 34, "child", 32, 32, 500, 8);
    t->pass = pass_quiet;
    say(t, "benchd", "quiet", ASKED_FAILED,
        arena_printf(&t->arena, judged, "41.5", "\"hwmon k10temp\""), NULL);
}

static void test_quiet_activity(void **state)
{
    struct made *t = *state;
    put_quiet_machine(t);
    assert_true(examine_activity(&t->p));
    assert_int_equal(t->f.count, 3);
    expect_of(t, "load", FINDING_OK, "others: 0.00 processors; 1-minute load 0.10", NULL);
    expect_of(t, "virtual-machine", FINDING_OK, "none", NULL);
    expect(t, "thermal", FINDING_OK, "41.5 C by hwmon k10temp (60 C at most)", NULL);
    /* Others have gone, what they did is still in the load. */
    put(t, "/proc/loadavg", "3.50 0.20 0.30 1/100 9\n");
    put(t, "/proc/stat", "cpu  1000 0 0 1000 0 0 0 0 0 0\n");
    put_process(t, 100, "mlxfast", 1, 100, 0, 50);
    assert_true(examine_activity(&t->p));
    expect(t, "load", FINDING_WARN, "1-minute load is still 3.50", "wait a minute");
}

static void test_busy_activity(void **state)
{
    struct made *t = *state;
    put_quiet_machine(t);
    put(t, "/proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t\t: fpu hypervisor avx2\n");
    t->pass = pass_busy;
    say(t, "benchd", "quiet", ASKED_FAILED, arena_printf(&t->arena, judged, "71", "\"nvml\""),
        NULL);
    assert_true(examine_activity(&t->p));
    expect_of(
        t, "load", FINDING_WARN,
        "1.00 processors at work: cc1) x (pid 31) 80 %, make (pid 32) 14 %, new (pid 33) 10 %",
        "end them");
    expect_of(t, "virtual-machine", FINDING_WARN, "takes 2.0 %", "machine of your own");
    expect(t, "thermal", FINDING_WARN, "71.0 C by nvml: a ranked run waits for 60 C", "cool");
}

static void test_virtual_machines(void **state)
{
    struct made *t = *state;
    put_quiet_machine(t);
    put(t, "/sys/class/dmi/id/sys_vendor", "QEMU\n");
    put(t, "/sys/class/dmi/id/product_name", "Standard PC\n");
    assert_true(examine_activity(&t->p));
    expect(t, "virtual-machine", FINDING_OK, "Standard PC: its host takes no time away", NULL);
    put(t, "/proc/stat", "cpu  1000 0 0 1000 0 0 0 100 0 0\n");
    t->pass = NULL;
    assert_true(examine_activity(&t->p));
    expect(t, "virtual-machine", FINDING_WARN, "took 4.8 %", "machine of your own");
}

static void test_heat(void **state)
{
    struct made *t = *state;
    put_quiet_machine(t);
    const char *none = arena_printf(&t->arena, judged, "null", "null");
    say(t, "benchd", "quiet", ASKED_FAILED, none, NULL);
    put(t, "/proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t: fpu\n");
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "TEMPERATURE-READER-MISSING", "sudo modprobe k10temp");
    put(t, "/proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t: fpu\n");
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "no temperature", "sudo modprobe coretemp");
    put(t, "/proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t: hypervisor\n");
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "no temperature", "MLXFAST_GPU_TEMP_CMD");
    say(t, "benchd", "quiet", ASKED_WELL, arena_printf(&t->arena, judged, "null", "\"my command\""),
        NULL);
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "my command gives no usable", "what the reader prints");
    say(t, "benchd", "quiet", ASKED_WELL, arena_printf(&t->arena, judged, "40", "\"hwmon x\""),
        NULL);
    put(t, "/sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count", "12\n");
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "slow down 12 times", "cool it");
    say(t, "benchd", "quiet", ASKED_WELL, "no JSON", NULL);
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "says nothing that can be read", NULL);
    say(t, "benchd", "quiet", ASKED_TOO_LONG, "", NULL);
    assert_true(examine_activity(&t->p));
    expect(t, "thermal", FINDING_WARN, "did not end in time", NULL);
}

/* ---- memory and disk ---- */

static void test_memory(void **state)
{
    struct made *t = *state;
    struct engine_facts *e = &t->m.engine;
    examine_memory(&t->p);
    expect(t, "memory", FINDING_OK, "21.5 GB of 25.8 GB left by MemAvailable", NULL);
    t->p.pinned_bytes = 21600000000u;
    examine_memory(&t->p);
    expect(t, "memory", FINDING_WARN, "21.6 GB do not fit", "more");
    t->p.pinned_bytes = 0;
    e->limit_addresses = (uint64_t)4 << 30;
    examine_memory(&t->p);
    expect(t, "memory", FINDING_WARN, "4.3 GB of addresses", "ulimit -v unlimited");
    e->limit_addresses = UINT64_MAX;
    e->limit_data = (uint64_t)2 << 30;
    examine_memory(&t->p);
    expect(t, "memory", FINDING_WARN, "2.1 GB of data", "ulimit -d unlimited");
    e->limit_data = UINT64_MAX;
    e->memory = 500000000;
    examine_memory(&t->p);
    expect(t, "memory", FINDING_WARN, "500.0 MB", "ps aux");

    assert_true(examine_memory_rate(&t->p));
    expect(t, "memory-bandwidth", FINDING_OK, "40.0 GB/s read by 8 threads", NULL);
    t->memory.bytes_per_second = 2e9;
    assert_true(examine_memory_rate(&t->p));
    expect(t, "memory-bandwidth", FINDING_WARN, "2.0 GB/s", "see load");
    error_set(&t->fault, "OUT-OF-MEMORY", "no memory to read");
    assert_true(examine_memory_rate(&t->p));
    expect(t, "memory-bandwidth", FINDING_WARN, "not measured: no memory", NULL);
    error_set(&t->fault, "INTERRUPTED", "stopped");
    assert_false(examine_memory_rate(&t->p));
}

static void test_huge_pages(void **state)
{
    struct made *t = *state;
    const char *file = "/sys/kernel/mm/transparent_hugepage/enabled";
    examine_huge_pages(&t->p);
    expect(t, "huge-pages", FINDING_WARN, "no transparent", "CONFIG_TRANSPARENT_HUGEPAGE");
    put(t, file, "always [madvise] never\n");
    examine_huge_pages(&t->p);
    expect(t, "huge-pages", FINDING_OK, "madvise", NULL);
    put(t, "/proc/meminfo", "HugePages_Free: 1024\nHugepagesize:    2048 kB\n");
    examine_huge_pages(&t->p);
    expect(t, "huge-pages", FINDING_WARN, "2.1 GB are set aside", "nr_hugepages");
    put(t, file, "always madvise [never]\n");
    examine_huge_pages(&t->p);
    expect(t, "huge-pages", FINDING_WARN, "never", "echo madvise | sudo tee");
}

static void test_swap(void **state)
{
    struct made *t = *state;
    examine_swap(&t->p);
    expect(t, "swap", FINDING_OK, "none", NULL);
    put(t, "/proc/meminfo", "SwapTotal: 4000000 kB\nSwapFree: 4000000 kB\n");
    examine_swap(&t->p);
    expect(t, "swap", FINDING_OK, "4.1 GB, hardly in use", NULL);
    t->p.pinned_bytes = 1 << 30;
    examine_swap(&t->p);
    expect(t, "swap", FINDING_WARN, "may lock 8.4 MB only", "ulimit -l unlimited");
    put(t, "/proc/meminfo", "SwapTotal: 4000000 kB\nSwapFree: 1000000 kB\n");
    examine_swap(&t->p);
    expect(t, "swap", FINDING_WARN, "3.1 GB of 4.1 GB in use", "sudo swapoff -a && sudo swapon -a");
}

static void test_disk(void **state)
{
    struct made *t = *state;
    t->p.track = "a-track";
    t->p.weights = in_root(t, "/not/there/yet");
    examine_space(&t->p);
    expect(t, "disk-space", FINDING_OK, "107.4 GB free", NULL);
    t->p.missing_bytes = (uint64_t)200 << 30;
    examine_space(&t->p);
    expect(t, "disk-space", FINDING_FIX, "214.7 GB of a-track are still to be fetched",
           "MLXFAST_REFERENCE_DIR");
    t->p.missing_bytes = 0;
    t->space = 1000000;
    examine_space(&t->p);
    expect(t, "disk-space", FINDING_FIX, "1.0 MB free", "du -xh");

    assert_true(examine_disk_rate(&t->p));
    expect(t, "disk-read", FINDING_OK, "2000 MB/s", NULL);
    t->disk = (struct disk_rate){100e6, 64 << 20, NULL};
    assert_true(examine_disk_rate(&t->p));
    expect(t, "disk-read", FINDING_WARN,
           "100 MB/s past the page cache, 67.1 MB of a temporary file", "faster disk");
    error_set(&t->fault, "DISK-UNREAD", "this file system has none");
    examine_space(&t->p);
    expect(t, "disk-space", FINDING_WARN, "this file system", NULL);
    assert_true(examine_disk_rate(&t->p));
    expect(t, "disk-read", FINDING_OK, "not measured: this file system has none", NULL);
}

/* The real reader, on the file system of the temporary folder: a rate, or the word that there is
 * none; nothing is left behind either way. */
static void test_disk_reader(void **state)
{
    struct made *t = *state;
    struct disk_rate r;
    struct error err = {0};
    if (disk_read_rate(&t->arena, in_root(t, "/tmp"), 0.05, &r, &err)) {
        assert_null(r.file);
        assert_true(r.bytes >= 4 << 20 && r.bytes_per_second > 0);
    } else {
        assert_true(strcmp(err.name, "DISK-UNREAD") == 0 || strcmp(err.name, "IO") == 0);
    }
    const char **names;
    assert_int_equal(machine_list(&t->m, &t->arena, "/tmp", 16, &names), 1);
    assert_string_equal(names[0], "unrelated");
    assert_false(disk_read_rate(&t->arena, in_root(t, "/none"), 0.05, &r, &err));
    assert_string_equal(err.name, "DISK-UNREAD");
}

/* ---- GPU ---- */

static void put_card(struct made *t, const char *vendor)
{
    put(t, "/sys/bus/pci/devices/0000:01:00.0/vendor", vendor);
    put(t, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
}

static void test_gpu(void **state)
{
    static const int capabilities[] = {80, 90};
    struct made *t = *state;
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK, "none, the CPU engine is used", NULL);
    put_card(t, "0x1002\n");
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK, "no NVIDIA card", NULL);
    put_card(t, "0x10de\n");
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_WARN, "1 NVIDIA card, but no driver", "apt-get install nvidia-driver");
    put(t, "/proc/driver/nvidia/version", "NVRM version: 550\n");
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_WARN, "no nvidia-smi", "apt-get install nvidia-smi");

    put_program(t, "/bin/nvidia-smi");
    say(t, "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", ASKED_WELL,
        "NVIDIA H200, 550.1, 9.0\nNVIDIA L4, 550.1, 8.9\n", NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK,
           "2 GPUs, the first NVIDIA H200, compute capability 9.0, driver 550.1, "
           "no nvcc: not used",
           NULL);
    t->m.engine.capabilities = capabilities;
    t->m.engine.capability_count = 2;
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK, "this build has code for it", NULL);
    t->m.engine.capabilities = capabilities + 1; /* 9.0 alone */
    t->m.engine.capability_count = 1;
    put_program(t, "/bin/nvcc");
    say(t, "nvcc", "--version", ASKED_WELL, "Cuda compilation tools, release 12.4, V12.4.131\n",
        NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_FIX, "nvcc 12.4: this build has no code for 1 of 2", "make CUDA=1");
    say(t, "nvcc", "--version", ASKED_FAILED, "", NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_FIX, "no nvcc", "install the CUDA toolkit");

    /* What is for 9.0 runs on later ones; of those before 8.0 no build makes code. */
    say(t, "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", ASKED_WELL,
        "NVIDIA B200, 580.1, 10.0\n", NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK, "B200, compute capability 10.0, driver 580.1", NULL);
    say(t, "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", ASKED_WELL,
        "Tesla V100, 550.1, 7.0\n", NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_OK, "not used, compute capability 8.0 is needed", NULL);

    say(t, "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", ASKED_FAILED,
        "Failed to initialize NVML: Driver/library version mismatch\n", NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_FIX, "version mismatch", "restart the machine");
    t->m.engine.capability_count = 0;
    say(t, "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", ASKED_WELL, "what?\n",
        NULL);
    assert_true(examine_gpu(&t->p));
    expect(t, "gpu", FINDING_WARN, "says nothing that can be read", "restart the machine");
}

/* ---- programs ---- */

static void test_tools(void **state)
{
    static const char *const names[] = {"git",  "curl", "python3",     "bwrap",
                                        "make", "gcc",  "clang-format"};
    struct made *t = *state;
    assert_true(examine_tools(&t->p));
    assert_int_equal(t->f.count, 7);
    expect_of(t, "git", FINDING_WARN, "missing; needed by benchd measure-job", "install git");
    expect_of(t, "curl", FINDING_WARN, "missing; needed by tools/fetch-benchd.sh", "install curl");
    expect_of(t, "python3", FINDING_FIX, "./benchmark.sh", "sudo apt-get install python3");
    expect_of(t, "bwrap", FINDING_WARN, "sandbox", "install bubblewrap");
    expect_of(t, "make", FINDING_WARN, "building", "install make");
    expect_of(t, "gcc", FINDING_WARN, "building", "install gcc");
    expect(t, "clang-format", FINDING_WARN, "make format", "install clang-format");
    for (size_t i = 0; i < 7; i++) {
        put_program(t, arena_printf(&t->arena, "/bin/%s", names[i]));
        say(t, names[i], "--version", ASKED_WELL,
            "the tool (of 1999 (x)) version 2.39.5 20240507\n", NULL);
    }
    assert_true(examine_tools(&t->p));
    for (size_t i = 0; i < 7; i++)
        expect_of(t, names[i], FINDING_OK, " 2.39.5; needed by", NULL);
    t->f.count = 0;
    say(t, "python3", "--version", ASKED_FAILED, "", "cannot open shared object file");
    assert_true(examine_tools(&t->p));
    expect(t, "python3", FINDING_FIX, "cannot open shared object file", "--reinstall python3");
    t->interrupted = true;
    assert_false(examine_tools(&t->p));
}

static void test_sandbox(void **state)
{
    struct made *t = *state;
    say(t, "benchd", "probe-sandbox", ASKED_WELL, "{\"count\": 122, \"wrong\": 0}", NULL);
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_OK, "122 tries", NULL);
    say(t, "benchd", "probe-sandbox", ASKED_FAILED, "{\"count\": 122, \"wrong\": 2}", NULL);
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_FIX, "2 of 122", "probe-sandbox");
    say(t, "benchd", "probe-sandbox", ASKED_FAILED, "", "SANDBOX-UNAVAILABLE: no bwrap");
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_WARN, "no bwrap", "install bubblewrap");
    put_program(t, "/bin/bwrap");
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_WARN, "none can be made", "allow user namespaces");
    put(t, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_WARN, "none can be made",
           "sysctl kernel.apparmor_restrict_unprivileged_userns=0");
    put(t, "/proc/sys/kernel/unprivileged_userns_clone", "0\n");
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_WARN, "none can be made", "unprivileged_userns_clone=1");
    say(t, "benchd", "probe-sandbox", ASKED_IN_VAIN, "", "no such file");
    assert_true(examine_sandbox(&t->p));
    expect(t, "sandbox", FINDING_WARN, "not known: ", NULL);
}

static void test_libraries(void **state)
{
    struct made *t = *state;
    struct library all[] = {{"jansson", "2.14", "2.14"}, {"PCRE2", "10.42", "10.42 2022-12-11"}};
    t->m.libraries = all;
    t->m.library_count = 2;
    examine_libraries(&t->p);
    expect(t, "libraries", FINDING_OK, "jansson 2.14, PCRE2 10.42", NULL);
    all[0].here = "2.9.1";
    examine_libraries(&t->p);
    expect(t, "libraries", FINDING_WARN, "jansson 2.9.1 (built with 2.14)", "make clean && make");
}

static void test_builds(void **state)
{
    static const char *const programs[] = {"bench-worker", "benchd", "record-correctness-golden",
                                           "mlxfast"};
    static const char *const sources[] = {
        "/repository/src/base/a.c", "/repository/src/engine/x/e.h",
        "/repository/src/judge/page/page.css", "/repository/src/arena/f.c", "/repository/Makefile"};
    struct made *t = *state;
    for (size_t i = 0; i < 5; i++) {
        put(t, sources[i], "");
        put_time(t, sources[i], 1000);
    }
    assert_true(examine_builds(&t->p));
    expect_of(t, "bench-worker", FINDING_FIX, "is not there", "make -C ");
    expect_of(t, "benchd", FINDING_FIX, "is not there", "make -C ");
    expect_of(t, "mlxfast", FINDING_WARN, "is not there", "make -C ");
    expect(t, "record-correctness-golden", FINDING_WARN, "is not there", "make -C ");
    for (size_t i = 0; i < 4; i++) {
        const char *path = arena_printf(&t->arena, "/repository/build/%s", programs[i]);
        put_program(t, path);
        put_time(t, path, 2000);
        say(t, programs[i], "--help", ASKED_WELL, "usage", NULL);
    }
    assert_true(examine_builds(&t->p));
    for (size_t i = 0; i < 4; i++)
        expect_of(t, programs[i], FINDING_OK, "newer than all its sources", NULL);
    t->f.count = 0;
    /* What the machine here does not compile makes nothing old; nor does a page. */
#if defined(__x86_64__)
    put(t, "/repository/src/engine/k_neon.c", "");
#endif
    put(t, "/repository/src/engine/README.md", "");
    put_time(t, "/repository/src/engine/x/e.h", 3000);
    assert_true(examine_builds(&t->p));
    expect_of(t, "bench-worker", FINDING_FIX, "is older than src/engine/x/e.h", "make -C ");
    expect_of(t, "mlxfast", FINDING_FIX, "is older than src/engine/x/e.h", "make -C ");
    expect(t, "benchd", FINDING_OK, "newer than all", NULL);
    put_time(t, "/repository/src/engine/x/e.h", 1000);
    put_time(t, "/repository/src/judge/page/page.css", 3000);
    say(t, "bench-worker", "--help", ASKED_FAILED, "", "libpcre2-8.so.0: cannot open");
    assert_true(examine_builds(&t->p));
    expect_of(t, "benchd", FINDING_FIX, "is older than src/judge/page/page.css", "make -C ");
    expect(t, "bench-worker", FINDING_FIX, "does not start here", "tools/install-deps && make");
    /* Another folder is named to make, quoted. */
    t->m.build = in_root(t, "/my build");
    assert_true(examine_builds(&t->p));
    expect(t, "benchd", FINDING_FIX, "is not there", "BUILD='");
    t->m.repository = NULL;
    assert_true(examine_builds(&t->p));
    expect(t, "benchd", FINDING_FIX, "is not there", "./setup.sh");
}

/* ---- leftovers ---- */

static void look_for_orphans(struct made *t)
{
    struct process_table table;
    processes_read(&t->m, t->p.a, &table);
    examine_orphans(&t->p, &table);
}

static void test_orphans(void **state)
{
    struct made *t = *state;
    put_process(t, 1, "init", 0, 1, 0, 1);
    put_process(t, 50, "bash", 1, 50, 0, 2);
    look_for_orphans(t);
    expect(t, "orphans", FINDING_OK, "no bench-worker runs", NULL);
    /* A judge's engine, by way of bwrap. */
    put_process(t, 60, "benchd", 50, 50, 0, 3);
    put_process(t, 61, "bwrap", 60, 50, 0, 4);
    put_process(t, 62, "bench-worker", 61, 50, 0, 5);
    look_for_orphans(t);
    expect(t, "orphans", FINDING_WARN, "1 bench-worker of somebody's run", "wait");
    /* The judge is gone: handed to init, or to a session manager. */
    put_process(t, 61, "bwrap", 1, 50, 0, 4);
    put_process(t, 40, "systemd", 1, 40, 0, 2);
    put_process(t, 70, "bench-worker", 40, 55, 0, 5);
    look_for_orphans(t);
    expect(t, "orphans", FINDING_FIX,
           "2 bench-worker left behind by a run that is gone (first: pid 62)", "kill 62 70");
    t->m.user = geteuid() + 1;
    look_for_orphans(t);
    expect(t, "orphans", FINDING_FIX, "8.2 MB", "sudo kill 62 70");
}

static void look_for_residents(struct made *t)
{
    struct process_table table;
    processes_read(&t->m, t->p.a, &table);
    examine_residents(&t->p, &table);
}

static void test_residents(void **state)
{
    struct made *t = *state;
    put_process(t, 1, "init", 0, 1, 0, 1);
    look_for_residents(t);
    expect(t, "residents", FINDING_OK, "nothing of a resident", NULL);
    /* A socket without a .pid or .ready is somebody else's. */
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(text_copy(place.sun_path, sizeof place.sun_path, in_root(t, "/tmp/r.sock")));
    assert_int_equal(bind(fd, (const struct sockaddr *)&place, sizeof place), 0);
    close(fd);
    look_for_residents(t);
    expect(t, "residents", FINDING_OK, "nothing of a resident", NULL);
    put(t, "/tmp/r.sock.pid", "77\n");
    put(t, "/tmp/mlxfast-leg-abc/file", "");
    look_for_residents(t);
    expect(t, "residents", FINDING_WARN, "1 sockets that nobody answers, 1 folders",
           "/tmp/r.sock.pid");
    put(t, "/tmp/r.sock.ready", "");
    t->socket_answers = true;
    look_for_residents(t);
    expect(t, "residents", FINDING_FIX, "answers at", "resident-up.sh --stop --socket");
    put_process(t, 77, "engine", 1, 77, 0, 5);
    look_for_residents(t);
    expect(t, "residents", FINDING_FIX, "answers at", "kill 77");
    put_process(t, 60, "benchd", 1, 60, 0, 3);
    look_for_residents(t);
    expect(t, "residents", FINDING_OK, "a benchd is at work", NULL);
    set(t, "DS4_RESIDENT_SOCKET", "/x");
    look_for_residents(t);
    expect(t, "residents", FINDING_FIX, "LEG-SERVE-INHERITED-SOCKET", "unset DS4_RESIDENT_SOCKET");
}

static void test_environment(void **state)
{
    struct made *t = *state;
    set(t, "MLXFAST_LOCAL_COOL_GATE", "1"); /* its default */
    examine_environment(&t->p);
    expect(t, "environment", FINDING_OK, "no variable", NULL);
    set(t, "MLXFAST_LOCAL_COOL_GATE", "0");
    set(t, "LD_PRELOAD", "/x.so");
    examine_environment(&t->p);
    expect(t, "environment", FINDING_WARN, "MLXFAST_LOCAL_COOL_GATE (times at any heat",
           "unset MLXFAST_LOCAL_COOL_GATE LD_PRELOAD");
}

/* ---- weights ---- */

static void test_weights(void **state)
{
    struct made *t = *state;
    struct error err = {0};
    unsetenv("MLXFAST_REFERENCE_DIR"); /* as `mlxfast fetch` reads them */
    unsetenv("MLXFAST_REFERENCE_CACHE_DIR");
    unsetenv("MLXFAST_REFERENCE_MANIFEST_PATH");
    assert_true(patient_find_weights(&t->p, NULL, NULL, &err));
    assert_true(examine_weights(&t->p));
    assert_int_equal(t->f.count, 0);
    assert_string_equal(t->p.weights, t->m.repository);

    put(t, "/repository/tracks/one/fetch.json",
        "{\"target\": {\"manifest\": \"m\", \"repo\": \"a/b\", \"revision\": \"c\", "
        "\"folder\": \"w\"}}");
    put(t, "/repository/tracks/one/m",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef 4 x\n"
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef 5 y\n");
    assert_true(patient_find_weights(&t->p, "one", NULL, &err));
    assert_int_equal(t->p.pinned_bytes, 9);
    assert_int_equal(t->p.missing_bytes, 9);
    assert_true(examine_weights(&t->p));
    expect(t, "weights", FINDING_FIX, "is not there", "./setup.sh one");
    put(t, "/repository/w/x", "1234");
    put(t, "/repository/w/y", "1234");
    assert_true(patient_find_weights(&t->p, "one", NULL, &err));
    assert_int_equal(t->p.missing_bytes, 5);
    t->weights = (struct weights_report){.files = 2, .bytes = 9000000};
    assert_true(examine_weights(&t->p));
    expect(t, "weights", FINDING_OK, "one: 2 files, 9.0 MB", NULL);
    t->weights = (struct weights_report){2, "SAFETENSORS-INVALID: y", "mlxfast fetch one", 2, 9};
    assert_true(examine_weights(&t->p));
    expect(t, "weights", FINDING_FIX, "2 faults, the first: SAFETENSORS-INVALID: y",
           "mlxfast fetch one");
    error_set(&t->fault, "USAGE", "a bad variable");
    assert_true(examine_weights(&t->p));
    expect(t, "weights", FINDING_FIX, "a bad variable", NULL);
    error_set(&t->fault, "INTERRUPTED", "stopped");
    assert_false(examine_weights(&t->p));

    set(t, "MLXFAST_WEIGHTS_PATH", in_root(t, "/elsewhere"));
    assert_true(patient_find_weights(&t->p, "one", NULL, &err));
    assert_string_equal(t->p.weights, in_root(t, "/elsewhere"));
    assert_true(examine_weights(&t->p));
    expect(t, "weights", FINDING_FIX, "/elsewhere is not there",
           arena_printf(&t->arena, "MLXFAST_REFERENCE_DIR=%s/elsewhere ./setup.sh one", t->root));
    assert_true(patient_find_weights(&t->p, "one", "mine", &err));
    assert_string_equal(t->p.weights, "mine");
    assert_false(patient_find_weights(&t->p, "two", NULL, &err));
    assert_string_equal(err.name, "TRACK-UNKNOWN");
}

/* ---- the whole ---- */

static size_t told;
static void count_told(void *context, const struct finding *f)
{
    (void)context, (void)f;
    told++;
}

static void test_whole(void **state)
{
    struct made *t = *state;
    const struct doctor_settings s = {0};
    struct error err = {0};
    struct buffer text = {0};
    put_quiet_machine(t);
    told = 0;
    t->f.tell = count_told;
    assert_true(doctor_examine(&t->m, &s, &t->f, &err));
    assert_int_equal(told, t->f.count);
    assert_int_equal(t->f.of[FINDING_OK] + t->f.of[FINDING_WARN] + t->f.of[FINDING_FIX],
                     t->f.count);
    for (size_t i = 0; i < t->f.count; i++) /* each thing once */
        assert_ptr_equal(finding_find(&t->f, t->f.items[i].id), &t->f.items[i]);
    json_t *o = doctor_to_json(&t->f, 1.5);
    assert_int_equal(json_array_size(json_object_get(o, "findings")), t->f.count);
    assert_true(json_is_false(json_object_get(o, "passed"))); /* no python3 here */
    json_decref(o);
    doctor_write_summary(&t->f, &text);
    assert_non_null(strstr(text.data, "FIX"));
    buffer_free(&text);
}

static void test_programs_that_hang_end_it_all_the_same(void **state)
{
    struct made *t = *state;
    const struct doctor_settings s = {0};
    struct error err = {0};
    put_quiet_machine(t);
    put_program(t, "/bin/git");
    put_program(t, "/bin/gcc");
    t->ask_takes = 4;
    assert_true(doctor_examine(&t->m, &s, &t->f, &err));
    assert_int_equal(t->asked, 3); /* 4, 8 and 12 seconds: then no more */
    assert_non_null(strstr(finding_find(&t->f, "gcc")->what, "was not asked"));
}

static void test_an_interrupt_ends_it(void **state)
{
    struct made *t = *state;
    const struct doctor_settings s = {0};
    struct error err = {0};
    put_quiet_machine(t);
    t->interrupted = true;
    assert_false(doctor_examine(&t->m, &s, &t->f, &err));
    assert_string_equal(err.name, "INTERRUPTED");
    assert_int_equal(t->asked, 1);
}

static void test_lines(void **state)
{
    struct made *t = *state;
    struct buffer text = {0};
    finding_add(&t->f, "x", FINDING_WARN, "kill 1\n2", "a\033[2Jb\xc2\x9b\xff%s", "\xc3\xa9");
    finding_write_line(&t->f.items[0], &text);
    assert_string_equal(text.data,
                        "warn  x                          a?[2Jb???\xc3\xa9; to mend: kill 1?2");
    buffer_free(&text);
    for (int i = 0; i < FINDINGS_MOST; i++)
        finding_add(&t->f, "y", FINDING_OK, NULL, "y");
    assert_int_equal(t->f.count, FINDINGS_MOST);
    assert_string_equal(shell_word(&t->arena, "a/b-c_1.0"), "a/b-c_1.0");
    assert_string_equal(shell_word(&t->arena, "it's"), "'it'\\''s'");
    assert_string_equal(shell_word(&t->arena, ""), "''");
    assert_null(text_value(&t->arena, "abc: 1\nab", "ab"));
    assert_string_equal(text_value(&t->arena, "abc: 1\nab\t:  2 \n", "ab"), "2 ");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        TEST(test_kernels),
        TEST(test_processors),
        TEST(test_siblings),
        TEST(test_governor),
        TEST(test_power_and_timer),
        TEST(test_quiet_activity),
        TEST(test_busy_activity),
        TEST(test_virtual_machines),
        TEST(test_heat),
        TEST(test_memory),
        TEST(test_huge_pages),
        TEST(test_swap),
        TEST(test_disk),
        TEST(test_disk_reader),
        TEST(test_gpu),
        TEST(test_tools),
        TEST(test_sandbox),
        TEST(test_libraries),
        TEST(test_builds),
        TEST(test_orphans),
        TEST(test_residents),
        TEST(test_environment),
        TEST(test_weights),
        TEST(test_whole),
        TEST(test_programs_that_hang_end_it_all_the_same),
        TEST(test_an_interrupt_ends_it),
        TEST(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
