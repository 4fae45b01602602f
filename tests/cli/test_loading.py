"""Copying the weights at load, by whole programs: what is said meanwhile, and Ctrl-C.

The copy of a small checkpoint is over before a program would say anything. So the program's clock is
hastened from outside (a shim in front of clock_gettime), and where the moment matters stderr is a
pipe without room: the program waits in its first line, which comes in the middle of the copy."""

import errno
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* The monotonic clock, a thousand times as fast from the first look on. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    static long long first;
    const int failed = (int)syscall(SYS_clock_gettime, id, t);
    if (failed || id != CLOCK_MONOTONIC)
        return failed;
    const long long now = t->tv_sec * 1000000000LL + t->tv_nsec;
    if (first == 0)
        first = now;
    const long long told = first + (now - first) * 1000;
    t->tv_sec = told / 1000000000;
    t->tv_nsec = told % 1000000000;
    return 0;
}
"""
SAID = re.compile(r"bench-worker: memory profile full: .+")
STEP = re.compile(r"copying weights: (\d+ bytes|[\d.]+ MB) of 82\.9 MB \((\d+)%\), (\d+ bytes|[\d.]+ [MG]B)/s"
                  r"(, \d+ s left)?")
END = re.compile(r"copying weights: 82\.9 MB in [\d.]+ s, [\d.]+ (bytes|[MG]B)/s")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """The environment of a program whose clock runs fast."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "clock.c").write_text(SHIM)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(folder / "clock.so"), str(folder / "clock.c")],
                   check=True, timeout=60)
    options = ":".join(o for o in (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0") if o)
    clean = {k: v for k, v in os.environ.items()
             if k not in ("DARKBLOOM_STARTUP_MEMORY_PROFILE", "MLXFAST_MEMORY_PROFILE")}
    return {**clean, "LD_PRELOAD": str(folder / "clock.so"), "ASAN_OPTIONS": options, "TERM": "xterm"}


@pytest.fixture(scope="module")
def made_up(build, root, tmp_path_factory):
    """One layer and a wide vocabulary: 82.9 MB, above the 64 MB from which a copy hears a signal."""
    folder = tmp_path_factory.mktemp("made-up")
    config = json.loads((root / "tracks/laguna-xs-2.1-dflash-v1/config.json").read_text())
    config.update(hidden_size=256, intermediate_size=512, head_dim=32, num_key_value_heads=2,
                  num_attention_heads=4, vocab_size=80000)
    config["num_attention_heads_per_layer"] = [4 if i % 4 == 0 else 8 for i in range(40)]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "ids.json").write_text("[5, 6, 7]")
    (folder / "cwd").mkdir()
    subprocess.run([str(build / "synth-checkpoint"), "--config", str(folder / "config.json"), "--layers", "1",
                    "--out", str(folder / "m"), "--quiet"], check=True, timeout=60)
    return folder


def files_below(folder):
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*")}


def start(build, made_up, env, stderr, **more):
    return subprocess.Popen(
        [str(build / "bench-worker"), "generate", "--weights", str(made_up / "m"), "--tokens-file",
         str(made_up / "ids.json"), "-n", "1", "--json", "--threads", "1", "--memory-profile", "full"],
        stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, cwd=made_up / "cwd", env=env,
        start_new_session=True, **more)


def test_plain_lines_without_a_terminal(build, made_up, hasty):
    program = start(build, made_up, hasty, subprocess.PIPE)
    out, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert len(json.loads(out)["token_ids"]) == 1
    assert b"\r" not in errors and b"\033" not in errors and errors.endswith(b"\n")
    lines = errors.decode().splitlines()
    copying = [line for line in lines if line.startswith("copying weights")]
    assert SAID.fullmatch(lines[0]) and lines[1:1 + len(copying)] == copying, "said once, first, then the copy"
    assert sum("memory profile" in line for line in lines) == 1
    steps = [STEP.fullmatch(line) for line in copying[:-1]]
    assert steps and all(steps) and END.fullmatch(copying[-1]), copying
    shares = [int(step[2]) for step in steps]
    assert shares == sorted(shares) and shares[0] < 100 and shares[-1] <= 100


def test_one_line_on_a_terminal(build, made_up, hasty):
    parent, child = os.openpty()
    program = start(build, made_up, hasty, child)
    os.close(child)
    errors = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError as e:
            assert e.errno == errno.EIO
            break
        errors += piece
        if not piece:
            break
    os.close(parent)
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 0 and len(json.loads(out)["token_ids"]) == 1
    shown = re.findall(rb"\r(copying weights: [^\r\033]*)\033\[K", errors)
    assert len(shown) > 1 and STEP.fullmatch(shown[0].decode()) and END.fullmatch(shown[-1].decode())
    assert all(STEP.fullmatch(line.decode()) for line in shown[:-1])


def test_ctrl_c_during_the_copy(build, made_up, hasty):
    before = files_below(made_up)
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    assert os.write(writing, b"." * room) == room
    program = start(build, made_up, hasty, writing)
    os.close(writing)
    # It sleeps only where the pipe has no room: in the line that it says during the copy.
    end = time.monotonic() + 60
    while state(program.pid) != "S":
        assert program.poll() is None and time.monotonic() < end, "it never said anything"
    program.send_signal(signal.SIGINT)
    with os.fdopen(reading, "rb") as pipe:
        errors = pipe.read().lstrip(b".").decode()
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 130 and out == b""
    lines = errors.splitlines()
    assert SAID.fullmatch(lines[0]) and lines[-1] == "bench-worker: INTERRUPTED: stopped by a signal", lines
    assert all(STEP.fullmatch(line) for line in lines[1:-1]), "not copied to the end"
    with pytest.raises(ProcessLookupError):
        os.killpg(program.pid, 0)
    assert files_below(made_up) == before, "nothing was made, changed or removed"


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
