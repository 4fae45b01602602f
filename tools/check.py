"""Builds and runs every test, one stage after the other, and counts. Used by ./check.

The tests of the programs wait more than they compute: what later stages need is built beside them, at
the lowest priority and on half of the processors. Each stage prints one line; the output of a stage that fails is shown whole. Logs stay under
build/check/. The last line is `N passed, N failed, N skipped`; exit 0 only when nothing failed and
something passed."""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "check"
JOBS = str(os.cpu_count() or 2)
WORKERS = str((os.cpu_count() or 2) * 3 // 2)  # of pytest: a test of programs waits for a third of its time
LONGEST = ["test_blocks", "test_speculate", "test_stats_simulation", "test_laguna", "test_evidence", "test_session_blocks",
           "test_kernels"]
passed = failed = skipped = 0


def say(text):
    print(text, flush=True)


def run(name, command, env=None, timeout=1800):
    """Runs a command with its output in a log; (exit code, output)."""
    log = LOGS / (re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")
    started = time.monotonic()
    with open(log, "w+", errors="replace") as out:
        try:
            code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                                  timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            out.write(f"\ntime limit of {timeout} s reached\n")
            code = 124
        out.seek(0)
        text = out.read()
    return code, text, time.monotonic() - started


def stage(name, ok, counts, seconds, text):
    global passed, failed, skipped
    p, f, s = counts
    if not ok and f == 0:
        f = 1
    passed, failed, skipped = passed + p, failed + f, skipped + s
    skip = f", {s} skipped" if s else ""
    say(f"{'ok  ' if ok else 'FAIL'} {name}: {p} passed, {f} failed{skip} ({seconds:.1f} s)")
    if not ok:
        say(text[-12000:])


def build(name, arguments):
    """A build is a stage of its own; False stops the stages that need it."""
    code, text, seconds = run(name, ["make", "-j", JOBS, *arguments])
    return built(name, code, text, seconds)


def built(name, code, text, seconds):
    stage(name, code == 0, (1 if code == 0 else 0, 0, 0), seconds, text)
    return code == 0


def build_beside(cancelled):
    """The builds of the later stages, {name: run()'s answer}; an end of the whole stops after the build
    that is being made."""
    answers = {}

    def make(name, *arguments):
        if not cancelled.is_set():
            answers[name] = run(name, ["nice", "-n", "19", "make", "-j", JOBS, *arguments])

    make("build-sanitizers", "SAN=1", "all", "tests", "engines")
    if shutil.which("g++"):
        make("build-cuda-emulated", "CUDA=emulated", "build/cuda-emulated/tests/test_emulator",
             "build/cuda-emulated/bench-worker", "device-tests")
    if nvcc():
        make("build-cuda", "CUDA=1", "CUDA_ARCH=90", "build/cuda/bench-worker")
    if shutil.which("clang"):
        make("build-fuzz", "fuzz")
    if emulator() and shutil.which("aarch64-linux-gnu-gcc"):
        answers["sysroot"] = run("sysroot", ["tools/fetch-sysroot-aarch64"])
        if answers["sysroot"][0] == 0:
            make("build-aarch64", "ARCH=aarch64", "all", "tests")
    return answers


def cmocka(name, folder, prefix=(), env=None, only=None):
    """Runs unit test programs and adds up cmocka's own counts. only: their names, each with the filter of
    its tests, or None for all of them."""
    total = [0, 0, 0]
    ok, texts, started = True, [], time.monotonic()
    programs = sorted((folder / "tests").glob("test_*"))
    programs = [p for p in programs if p.suffix == "" and (only is None or p.name in only)]
    # The longest first, so that none of them is left over alone.
    programs.sort(key=lambda p: LONGEST.index(p.name) if p.name in LONGEST else len(LONGEST))

    def one(p):
        pattern = only and only[p.name]
        return run(f"{name}-{p.name}", [*prefix, str(p)],
                   {**(env or {}), **({"MLXFAST_TEST_FILTER": pattern} if pattern else {})})
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        results = list(pool.map(one, programs))
    for program, (code, text, _) in zip(programs, results):
        done = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
        bad = sum(int(n) for n in re.findall(r"\[  FAILED  \] *\w*:? *(\d+) test", text))
        skips = len(re.findall(r"\[  SKIPPED \] \w+", text.split("[==========]")[-2]
                               if "[==========]" in text else text))
        total[0] += done
        total[2] += skips
        if code != 0 or done == 0:
            ok = False
            total[1] += max(bad, 1)
            texts.append(f"--- {program.name} (exit {code})\n{text[-6000:]}")
    if not programs:
        ok = False
        texts.append(f"no unit test was built in {folder}/tests")
    stage(name, ok, total, time.monotonic() - started, "\n".join(texts))


def pytest(name, arguments, env=None):
    code, text, seconds = run(name, ["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-n", WORKERS, "--dist",
                                     "loadgroup", "-p", "no:cacheprovider", *arguments], env)
    last = text.strip().splitlines()[-1] if text.strip() else ""
    count = lambda word: sum(int(n) for n in re.findall(rf"(\d+) {word}", last))
    counts = (count("passed"), count("failed") + count("error"), count("skipped"))
    stage(name, code == 0 and counts[0] > 0, counts, seconds, text)
    for line in text.splitlines():
        if line.startswith("SKIPPED"):
            say("     " + line)


def nvcc():
    """The CUDA compiler, where it is one that can build the backend (docs/cuda.md)."""
    path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout if path else ""
    version = re.search(r"release (\d+)\.(\d+)", text)
    return path if version and tuple(map(int, version.groups())) >= (12, 4) else None


def cuda(builds):
    """The CUDA backend as it is given away: compiled and linked. tests/device/run is what a GPU can tell."""
    if "build-cuda" not in builds:
        return say("skip CUDA: nvcc of CUDA 12.4 or later is not installed")
    if built("build-cuda", *builds["build-cuda"]):
        pytest("cuda", ["tests/cli/test_cuda_build.py"], {"BUILD": str(ROOT / "build" / "cuda")})


def cuda_emulated(builds):
    """The CUDA kernels on the processor: tests/cuda-emulator."""
    if "build-cuda-emulated" not in builds:
        return say("skip emulated CUDA: g++ is not installed")
    if built("build-cuda-emulated", *builds["build-cuda-emulated"]):
        cmocka("cuda-emulator", ROOT / "build" / "cuda-emulated")
        pytest("cuda-emulated", ["tests/cli/test_cuda_bits.py", "tests/cli/test_cuda_loading.py",
                                 "tests/cli/test_cuda_bench.py"],
               {"BUILD": str(ROOT / "build" / "cuda-emulated")})


def fuzz_replay(builds):
    """Each fuzz target runs its kept corpus once: yesterday's findings stay fixed."""
    if "build-fuzz" not in builds:
        return say("skip fuzz targets: clang is not installed")
    if not built("build-fuzz", *builds["build-fuzz"]):
        return
    for target in sorted((ROOT / "build" / "fuzz").glob("fuzz_*")):
        if target.suffix or not target.is_file():
            continue
        corpus = ROOT / "tests" / "fuzz" / "corpus" / target.name.removeprefix("fuzz_")
        files = sorted(str(p) for p in corpus.rglob("*") if p.is_file())
        if not files:  # without files libFuzzer would fuzz for ever
            stage(f"{target.name} (corpus)", False, (0, 1, 0), 0, f"no corpus in {corpus}")
            continue
        code, text, seconds = run(target.name, [str(target), "-rss_limit_mb=4096", *files])
        stage(f"{target.name} (corpus)", code == 0, (len(files) if code == 0 else 0, 0, 0), seconds,
              text)


def emulator():
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def aarch64(builds):
    """The NEON kernels and the arm64 programs, under an emulator."""
    if "sysroot" not in builds:
        return say("skip aarch64: qemu-user or the cross compiler is not installed")
    code, text, seconds = builds["sysroot"]
    if code == 3:
        return say("skip aarch64: " + text.strip().splitlines()[-1])
    if code != 0:
        return stage("sysroot", False, (0, 1, 0), seconds, text)
    if not built("build-aarch64", *builds["build-aarch64"]):
        return
    libraries = ROOT / "build" / "sysroot-aarch64" / "usr" / "lib" / "aarch64-linux-gnu"
    prefix = [emulator(), "-L", "/usr/aarch64-linux-gnu", "-E",
              f"LD_LIBRARY_PATH={libraries}:/usr/aarch64-linux-gnu/lib"]
    cmocka("unit-aarch64", ROOT / "build" / "aarch64", prefix,
           {"MLXFAST_TEST_QUICK": "1"},
           only={"test_elementary": None, "test_kernels": None, "test_blocks": None, "test_formats": None,
                 "test_rope": None, "test_laguna": None, "test_dflash": None,
                 "test_speculate": "*_lossless"})  # the others take laguna-nano: minutes each
    pytest("neon-bits", ["tests/cli/test_nano_logits.py", "-k", "aarch64"],
           {"MLXFAST_AARCH64_WORKER": str(ROOT / "build" / "aarch64" / "bench-worker"),
            "MLXFAST_AARCH64_EMULATOR": emulator()})


def main():
    fast = "--fast" in sys.argv[1:]
    unknown = [a for a in sys.argv[1:] if a != "--fast"]
    if unknown:
        print(f"check: unknown argument '{unknown[0]}'", file=sys.stderr)
        return 2
    # Tests interrupt programs. What is started in the background inherits SIGINT ignored: not so the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nor what nohup has ignored
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    ok = build("build", ["all", "tests", "engines", "tools"])
    if ok:
        code, text, seconds = run("format", ["make", "format-check"])
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
        if " 14." in version:
            stage("format", code == 0, (1 if code == 0 else 0, 0, 0), seconds, text)
        else:
            say(f"skip format: the style is that of clang-format 14, here is {version.strip()}")
        cmocka("unit", ROOT / "build")
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        try:
            later = None if fast else beside.submit(build_beside, cancelled)
            if ok:
                pytest("programs", ["tests/cli", "tests/web"])
            builds = later.result() if later else {}
        except BaseException:
            cancelled.set()
            raise
    if not fast:
        if built("build-sanitizers", *builds["build-sanitizers"]):
            cmocka("unit-sanitizers", ROOT / "build" / "san", env={"MLXFAST_TEST_QUICK": "1"})
            pytest("programs-sanitizers", ["tests/cli", "-k", "malformed or refus or worker"],
                   {"BUILD": str(ROOT / "build" / "san"), "MLXFAST_TEST_QUICK": "1"})
        cuda_emulated(builds)
        cuda(builds)
        fuzz_replay(builds)
        aarch64(builds)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"total {time.monotonic() - started:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor")
    say(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
