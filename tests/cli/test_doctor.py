"""mlxfast doctor as people run it: real processes, a stale build, a made-up /sys, an interrupt."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from conftest import ROOT

LINE = re.compile(r"(ok  |warn|FIX )  ([a-z0-9-]+) +(\S.*)")
TRACK = "laguna-nano-serial-v1"
CHANGES = re.compile(r"MLXFAST_|BENCH_WORKER_|DS4_|LD_PRELOAD")


def environment(**more):
    return {k: v for k, v in os.environ.items() if not CHANGES.match(k)} | more


def documented():
    rows = re.findall(r"^\| (`[a-z0-9`, -]+`) \|", (ROOT / "docs/doctor.md").read_text().split("## What is looked at")[1], re.M)
    return {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}


@pytest.fixture
def repository(build, tmp_path):
    """A repository of ours with programs that are older than one source of the engine's."""
    for source in ("src/programs/mlxfast.c", "src/base/a.c", "src/engine/deep/er.c", "src/judge/j.c", "Makefile"):
        path = tmp_path / "repository" / source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (1000, 1000))
    (tmp_path / "repository/build").mkdir()
    for program in ("benchd", "bench-worker", "record-correctness-golden", "mlxfast"):
        shutil.copyfile(build / program, tmp_path / "repository/build" / program)
        os.chmod(tmp_path / "repository/build" / program, 0o755)
    os.utime(tmp_path / "repository/build/bench-worker", (2000, 2000))
    os.utime(tmp_path / "repository/src/engine/deep/er.c", (3000, 3000))
    return tmp_path / "repository"


@pytest.fixture
def orphan(tmp_path):
    """A process by an engine's name whose parent has ended."""
    shutil.copyfile(shutil.which("sleep"), tmp_path / "bench-worker")
    os.chmod(tmp_path / "bench-worker", 0o755)
    out = subprocess.run(["setsid", "sh", "-c", f"'{tmp_path}/bench-worker' 300 >/dev/null 2>&1 & echo $!"], check=True,
                         capture_output=True, text=True)
    pid = int(out.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)  # it is there still: the doctor kills nobody


def test_lines_name_what_must_be_mended(repository, orphan, tmp_path):
    resident = str(tmp_path / "r.sock")
    result = subprocess.run([repository / "build/mlxfast", "doctor"], cwd=repository, capture_output=True, text=True, timeout=60,
                            env=environment(BENCH_WORKER_RESIDENT_SOCKET=resident, MLXFAST_LOCAL_COOL_GATE="0"))
    *lines, summary = result.stdout.splitlines()
    assert all(LINE.fullmatch(line) for line in lines), result.stdout
    found = {m[2]: (m[1].strip(), m[3]) for m in map(LINE.fullmatch, lines)}
    assert len(found) == len(lines)
    assert set(found) == documented() - {"weights"}
    assert result.returncode == 1 and result.stderr == ""
    assert found["bench-worker"] == ("FIX", f"{repository}/build/bench-worker is older than src/engine/deep/er.c; "
                                            f"to mend: make -C {repository}")
    assert found["benchd"][0] == "ok"
    state, text = found["orphans"]
    assert state == "FIX" and re.search(rf"to mend: (sudo )?kill( \d+)* {orphan}\b", text)
    assert found["residents"][0] == "FIX" and "unset BENCH_WORKER_RESIDENT_SOCKET" in found["residents"][1]
    assert found["environment"][0] == "warn" and "unset MLXFAST_LOCAL_COOL_GATE" in found["environment"][1]
    states = [state for state, _ in found.values()]
    assert summary.startswith(f"{states.count('ok')} ok, {states.count('warn')} warn, {states.count('FIX')} FIX")


def test_json_of_a_made_up_machine_and_a_tracks_weights(build, tmp_path):
    for path, text in (("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\nSwapTotal: 900000 kB\nSwapFree: 1 kB\n"),
                       ("proc/cpuinfo", "model name\t: Made Up 9\n"),
                       ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
                       ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    weights = shutil.copytree(ROOT / "models/laguna-nano", tmp_path / "weights")
    (weights / "tokenizer.json").unlink()
    result = subprocess.run([build / "mlxfast", "doctor", "--json", "--track", ROOT / "tracks" / TRACK, "--weights", weights],
                            cwd=tmp_path, capture_output=True, text=True, timeout=60,
                            env=environment(MLXFAST_SYSTEM_FILES=str(tmp_path)))
    report = json.loads(result.stdout)
    found = {f["id"]: f for f in report["findings"]}
    assert set(found) == documented()
    assert result.returncode == 1 and report["passed"] is False
    for state, key in (("ok", "ok"), ("warn", "warn"), ("FIX", "fix")):
        assert report[key] == sum(f["state"] == state for f in found.values())
    assert found["cpu"]["what"].startswith("Made Up 9: ")
    assert found["memory"]["what"].startswith("8.2 GB of 9.2 GB left")
    for name, fix in (("huge-pages", "echo madvise"), ("governor", "echo performance"), ("swap", "sudo swapoff -a"),
                      ("environment", "unset MLXFAST_SYSTEM_FILES")):
        assert found[name]["state"] == "warn" and found[name]["fix"].startswith(fix), found[name]
    assert found["weights"]["state"] == "FIX" and "tokenizer.json" in found["weights"]["what"]
    assert f"fetch {TRACK}" in found["weights"]["fix"]
    assert not list(weights.glob(".mlxfast*")), "the disk's reader leaves nothing"


def test_an_interrupt_and_a_track_that_is_none(build, tmp_path):
    with subprocess.Popen([build / "mlxfast", "doctor"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as process:
        assert LINE.fullmatch(process.stdout.readline().rstrip())  # lines come as they are known
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert complaint == "mlxfast doctor: INTERRUPTED: stopped by a signal\n"
    for arguments, name in ((["--track", "none"], "TRACK-UNKNOWN"), (["surplus"], "USAGE")):
        result = subprocess.run([build / "mlxfast", "doctor", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=30,
                                env=environment())
        assert result.returncode == 2 and result.stdout == "" and f"mlxfast doctor: {name}: " in result.stderr
