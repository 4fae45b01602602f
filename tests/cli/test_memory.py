"""The start-up memory profile and what is checked before loading, by whole programs."""

import json
import os
import re
import resource
import subprocess

import pytest

VECTOR = "tests/vectors/laguna/full-yarn"
LINE = re.compile(r"bench-worker: memory profile (full|low)( \(auto\))?: .+")
VARIABLES = ("DARKBLOOM_STARTUP_MEMORY_PROFILE", "MLXFAST_MEMORY_PROFILE", "MLXFAST_SYSTEM_FILES")


def clean(**more):
    return {**{k: v for k, v in os.environ.items() if k not in VARIABLES}, **more}


def generate(build, nano, *flags, env=None, **kwargs):
    return subprocess.run([str(build / "bench-worker"), "generate", "--weights", str(nano), "--prompt", "It was",
                           "-n", "4", *flags], capture_output=True, text=True, timeout=120, env=env or clean(),
                          **kwargs)


def machine(tmp_path, available_kb):
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kb} kB\n")
    return clean(MLXFAST_SYSTEM_FILES=str(tmp_path))


def profile(stderr):
    found = [line for line in stderr.splitlines() if "memory profile" in line]
    assert len(found) == 1, stderr
    return LINE.fullmatch(found[0]).groups()


def test_every_profile_gives_the_same_bits(build, nano, tmp_path):
    tokens = tmp_path / "ids.json"
    tokens.write_text(json.dumps([5 + 13 * i % 4000 for i in range(150)]))
    seen = {}
    for name in ("full", "low", "auto"):
        for threads in ("1", "2"):
            out = tmp_path / f"{name}{threads}"
            result = subprocess.run([str(build / "bench-worker"), "logits", "--weights", str(nano), "--tokens-file",
                                     str(tokens), "--out", str(out), "--memory-profile", name, "--threads", threads],
                                    capture_output=True, text=True, timeout=120, env=clean())
            assert result.returncode == 0, result.stderr
            chosen, auto = profile(result.stderr)
            assert (auto is not None) == (name == "auto") and (name == "auto" or chosen == name)
            seen[name, threads] = out.read_bytes()
    assert len(seen["full", "1"]) == 150 * 4096 * 4
    assert len(set(seen.values())) == 1


def test_flag_before_variables(build, nano):
    low = {"MLXFAST_MEMORY_PROFILE": "low"}
    assert profile(generate(build, nano, env=clean(**low)).stderr) == ("low", None)
    both = clean(DARKBLOOM_STARTUP_MEMORY_PROFILE="full", **low)
    assert profile(generate(build, nano, env=both).stderr) == ("full", None)
    assert profile(generate(build, nano, "--memory-profile", "low", env=both).stderr) == ("low", None)


@pytest.mark.parametrize("command", ["generate", "logits", "bench", "runtime-worker"])
@pytest.mark.parametrize("name", ["DARKBLOOM_STARTUP_MEMORY_PROFILE", "MLXFAST_MEMORY_PROFILE", "--memory-profile"])
@pytest.mark.parametrize("value", ["", "tiny", "FULL"])
def test_any_other_value_is_refused(build, command, name, value):
    flags = {"generate": ["--prompt", "x"], "logits": ["--tokens-file", "/nowhere", "--out", "/nowhere"]}
    by_flag = name.startswith("--")
    result = subprocess.run([str(build / "bench-worker"), command, "--weights", "/nowhere", *flags.get(command, []),
                             *([name, value] if by_flag else [])], capture_output=True, text=True, timeout=60,
                            stdin=subprocess.DEVNULL, env=clean(**({} if by_flag else {name: value})))
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert f"({name})" in result.stderr


def test_auto_follows_what_is_available(build, nano, tmp_path):
    full = generate(build, nano, env=machine(tmp_path, 100_000))
    assert profile(full.stderr) == ("full", " (auto)")
    low = generate(build, nano, env=machine(tmp_path, 58_000))
    assert profile(low.stderr)[0] == "low"
    assert low.stdout == full.stdout


def test_too_little_memory_is_one_line(build, nano, tmp_path):
    for flags, hint in (([], "lower --context"), (["--memory-profile", "full"], "--memory-profile low")):
        result = generate(build, nano, *flags, env=machine(tmp_path, 20_000))
        assert result.returncode == 1 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
        assert "MEMORY-INSUFFICIENT" in result.stderr and hint in result.stderr
        assert "20.5 MB are left by MemAvailable of /proc/meminfo" in result.stderr


def test_control_group_counts(build, nano, tmp_path):
    env = machine(tmp_path, 10_000_000)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("30000000\n")
    result = generate(build, nano, env=env)
    assert result.returncode == 1
    assert "30.0 MB are left by memory.max of /sys/fs/cgroup/job" in result.stderr


@pytest.mark.parametrize("kind, name, bytes_", [
    ("AS", "RLIMIT_AS", 60 << 20), ("DATA", "RLIMIT_DATA", 20 << 20)])
def test_resource_limits(build, nano, kind, name, bytes_):
    if "san" in build.parts:
        pytest.skip("a sanitized program needs terabytes of addresses")

    def limit():
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (bytes_, bytes_))

    result = generate(build, nano, preexec_fn=limit)
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "MEMORY-INSUFFICIENT" in result.stderr and name in result.stderr


def test_threads_of_the_environment(build, nano):
    def engine(*flags, **more):
        return json.loads(generate(build, nano, "--json", *flags, env=clean(**more)).stdout)["engine"]

    assert engine(MLXFAST_THREADS="3").endswith("3 threads")
    assert engine(MLXFAST_THREADS="3", BENCH_WORKER_THREADS="2").endswith("3 threads")
    assert engine("--threads", "1", MLXFAST_THREADS="3").endswith("1 thread")
    bad = generate(build, nano, env=clean(MLXFAST_THREADS="many"))
    assert bad.returncode == 2 and "badValue(MLXFAST_THREADS)" in bad.stderr


def test_worker_says_its_profile_once(build, nano):
    result = subprocess.run([str(build / "bench-worker"), "--weights", str(nano), "--drafter",
                             str(nano.parent / "laguna-nano-dflash")], input="", capture_output=True, text=True,
                            timeout=120, env=clean(DARKBLOOM_STARTUP_MEMORY_PROFILE="low"))
    assert result.returncode == 0, result.stderr
    assert profile(result.stderr) == ("low", None)


def test_threads_stay_on_their_node(build, nano, tmp_path):
    """Two made-up nodes of one processor each: workers are kept on one of them in turn, the answers are the same."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two processors")
    env = machine(tmp_path, 10_000_000)
    nodes = tmp_path / "sys/devices/system/node"
    for i in range(2):
        (nodes / f"node{i}").mkdir(parents=True)
        (nodes / f"node{i}/cpulist").write_text(f"{cores[i]}\n")
    (nodes / "has_memory").write_text("0-1\n")
    assert generate(build, nano, "--threads", "4", env=env).stdout == generate(build, nano).stdout
    worker = subprocess.Popen([str(build / "bench-worker"), "--weights", str(nano), "--threads", "4"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=env)
    try:
        assert '"ok":true' in worker.stdout.readline()
        where = {int(task): os.sched_getaffinity(int(task)) for task in os.listdir(f"/proc/{worker.pid}/task")}
        assert where.pop(worker.pid) == set(cores), "the caller's own thread is left alone"
        assert [where[task] for task in sorted(where)] == [{cores[1]}, {cores[0]}, {cores[1]}]
    finally:
        worker.stdin.close()
        assert worker.wait(timeout=60) == 0
