"""A ranked run of block decoding that is stopped: at every stage, by every signal, nothing is sealed and
nothing goes on."""

import json
import os
import pathlib
import select
import signal
import time

import pytest

from ranked_blocks_kit import RankedKit
from test_ranked_blocks import pytestmark  # noqa: F401

ONE = {"target_pairs": 1, "min_accepted_pairs": 1}


@pytest.fixture(scope="module")
def made(build, tmp_path_factory):
    return RankedKit(tmp_path_factory.mktemp("killed")).make()


@pytest.fixture
def kit(made, tmp_path):
    kit = made.copy(tmp_path)
    kit.write_contract(blocks=ONE)
    return kit


def wait_for(process, line, seconds=60):
    """Reads stderr until a line that begins so; what was read."""
    seen, end = b"", time.monotonic() + seconds
    descriptor = process.stderr.fileno()
    while not any(text.startswith(line.encode()) for text in seen.split(b"\n")):
        assert select.select([descriptor], [], [], max(0, end - time.monotonic()))[0], seen
        part = os.read(descriptor, 4096)
        assert part, f"it ended before it said {line!r}: {seen.decode()}"
        seen += part
    return seen


def wait_for_engine(kit, tree, seconds=60):
    """Until an engine of that tree runs."""
    path, end = str(kit.folder / tree / "weights").encode(), time.monotonic() + seconds
    while not any(b"runtime-worker" in line for _, line in kit.processes() if path in line):
        assert time.monotonic() < end
    return path


def assert_nothing_is_left(kit, process, number, seconds=20):
    """Nothing goes on or is sealed. SIGKILL may come between a temporary file and its name (base/file.h): only that one
    file, and under its name stands nothing or a whole document."""
    end = time.monotonic() + seconds
    while kit.processes():
        assert time.monotonic() < end, kit.processes()
    kit.assert_nothing_sealed()
    left = [p for p in kit.folder.rglob("*") if ".tmp" in p.name]
    own = f".tmp.{process.pid}"
    if number == signal.SIGKILL and len(left) == 1 and left[0].name.endswith(own):
        named = left.pop().name.removesuffix(own)
        for path in kit.folder.rglob(named):
            json.loads(path.read_text())
    assert left == []


STAGES = ["quiet: ", "correctness: ", "serial: ", "blocks: ", "reference: ", "pair 1: ", "null pair 1: "]


@pytest.mark.parametrize("stage", STAGES[:-1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_at_a_stage(kit, stage, number):
    process = kit.run(popen=True)
    wait_for(process, stage)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130, errors
        assert "Interrupted" in errors or "INTERRUPTED" in errors
    assert_nothing_is_left(kit, process, number)


@pytest.mark.parametrize("tree", ["base", "sub"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_killed_while_an_engine_hangs(kit, tree, number):
    """The engine of one tree does not answer in its second round."""
    kit.fault(tree, hang=2)
    process = kit.run(popen=True)
    wait_for(process, "correctness: ")
    if tree == "sub":
        wait_for(process, "serial: ")  # the control leg is over, and the candidate's begins
    else:
        hanging = str(kit.base / "weights")
        end = time.monotonic() + 60
        while not any(hanging.encode() in line for _, line in kit.processes()
                      if b"iterate" not in line):
            assert time.monotonic() < end
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert_nothing_is_left(kit, process, number)


def test_a_score_that_was_there_is_whole_or_as_it_was(kit):
    """Killed when the last pair is decided: the old score stands, or the new one does, each with its seal."""
    old = kit.score
    old.write_text("old")
    process = kit.run(popen=True)
    wait_for(process, "null pair 1: ")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    if old.read_text() != "old":
        assert kit.document()["passed"] is True
    assert not [p for p in old.parent.iterdir() if ".tmp" in p.name and
                not pathlib.Path(f"/proc/{p.name.rsplit('.', 1)[1]}").exists()] or \
        old.read_text() == "old"


def test_runs_after_a_killed_one_go_on(kit):
    process = kit.run(popen=True)
    wait_for(process, "serial: ")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    kit.passed(kit.run())
