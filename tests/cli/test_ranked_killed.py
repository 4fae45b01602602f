"""A ranked run with everything it can have, residents, a key and a log, stopped at random moments: nothing of
it goes on, what is sealed is whole, the log can be used, and the next run is as good as any."""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time

import pytest
from conftest import BUILD, QUICK
from judge_kit import ENGINE
from official_kit import ARMED, ROOT, STATISTICS, OfficialKit

MOMENTS = 6 if QUICK else 20
SEALED = {"score.json", "score.json.sha256", "benchmark-integrity.json"}


@pytest.fixture(scope="module")
def kit(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    kit = OfficialKit(folder)
    # Residents of the script's first name: of a track that is not cuda's.
    kit.write_contract(**{**ARMED, "official_pairs": 1, "statistics": {**STATISTICS, "max_pairs": 1},
                          "track_id": "mock-0-mlx-v1"})
    kit.calibrate(track_id="mock-0-mlx-v1")
    for tree in (kit.base, kit.sub):
        shutil.copytree(ROOT / "tests" / "engines" / "resident", tree, dirs_exist_ok=True)
        shutil.copy(ENGINE, tree / "bin" / "scripted_engine.py")
        shutil.move(tree / "bin" / "engine", tree / "engine")
        (tree / "script.json").write_text(json.dumps({"vocab": 509}))
    kit.key, kit.log = folder / "key", folder / "scores.log"
    assert benchd("keygen", "--out", kit.key).returncode == 0
    kit.extra = ["--signing-key", kit.key, "--log", kit.log]
    kit.temporary = folder / "tmp"
    kit.temporary.mkdir()
    return kit


def benchd(*arguments):
    return subprocess.run([str(a) for a in (BUILD / "benchd", *arguments)], capture_output=True, text=True,
                          timeout=60)


def ours(folder):
    """Processes whose command line, folder or program is of the kit."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(folder) in line or where.startswith(str(folder)):
            found.append((entry.name, line))
    return found


def nothing_goes_on(kit, killed=False):
    """What SIGKILL stopped in the middle of writing may keep its temporary name."""
    end = time.monotonic() + 30
    while ours(kit.folder):
        assert time.monotonic() < end, ours(kit.folder)
        time.sleep(0.02)
    # A boot script that was ended before it named its socket cannot be asked to remove it (docs/resident.md):
    # nobody answers there.
    for left in [p for p in kit.folder.rglob("*") if p.is_socket()]:
        with socket.socket(socket.AF_UNIX) as s:
            assert s.connect_ex(str(left)) != 0
        left.unlink()
    assert list(kit.temporary.iterdir()) == []
    assert killed or [p for p in kit.folder.rglob("*") if ".tmp" in p.name] == []


def the_log_is_usable(kit, entries):
    if not kit.log.exists():
        assert entries == 0
        return 0
    result = benchd("log", "check", "--log", kit.log)
    assert result.returncode == 0, result.stdout + result.stderr
    count = len(kit.log.read_text().splitlines())
    assert count in (entries, entries + 1)
    return count


def run(kit, **keys):
    return kit.official(*kit.extra, env={"TMPDIR": str(kit.temporary)}, **keys)


def test_twenty_random_moments(kit):
    began = time.monotonic()
    result = run(kit)
    assert result.returncode == 0, result.stderr
    whole = time.monotonic() - began
    whole_set = {p.name for p in kit.score.parent.iterdir()}
    assert SEALED < whole_set
    entries = the_log_is_usable(kit, 0)
    chance = random.Random(6)
    for _ in range(MOMENTS):
        for left in kit.score.parent.iterdir():
            left.unlink()
        how = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        process = run(kit, popen=True)
        try:
            process.communicate(timeout=chance.random() * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            process.communicate(timeout=60)
        killed = process.returncode == -signal.SIGKILL
        nothing_goes_on(kit, killed)
        left = {p.name for p in kit.score.parent.iterdir() if not (killed and ".tmp" in p.name)}
        # All of a score or none of it; its statement and its entry come after it.
        if kit.score.exists() and (kit.score.parent / "benchmark-integrity.json").exists():
            assert SEALED <= left <= whole_set
            json.loads(kit.score.read_text())
        elif process.returncode != -signal.SIGKILL:
            assert left == set(), left
        entries = the_log_is_usable(kit, entries)
    result = run(kit)
    assert result.returncode == 0, result.stderr
    the_log_is_usable(kit, entries)
    nothing_goes_on(kit)
