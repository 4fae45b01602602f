"""docs/ranked-run.md by its own commands: every one is run as it stands on the page, by an organiser and then by a
stranger with the bundle, on laguna-nano. The contract that the page arms is made to allow a busy machine, and what
needs a quiet one may fail for that reason and no other."""

import json
import os
import re
import shutil
import stat
import subprocess

import pytest

from conftest import BUILD, ROOT
from official_kit import status_of

pytestmark = pytest.mark.xdist_group("ranked-docs")  # the walk is made once

PAGE = ROOT / "docs" / "ranked-run.md"
MARK = re.compile(r"^<!-- (run.*|by hand) -->$")
# Of the repository, what the page's commands use.
TREE = ("Makefile", "README.md", "src/judge/README.md", "src/base/README.md", "tracks/laguna-nano-serial-v1",
        "models/laguna-nano")
BUSY = {"official_pairs": 2, "statistics": {"null_pairs": 1, "max_pairs": 2, "half_width": 0, "confidence": 0.95},
        "calibration_cv_max": 0.1, "seed_window_tolerance": 1e6, "prefill_speedup_floor": 1e-6, "decode_speedup_floor": 1e-6,
        "prefill_band_up_tolerance": 1e6, "decode_band_up_tolerance": 1e6,
        "quiet": {"load_max": 100000, "gpu_use_max": 1, "celsius_max": 120, "temperature_required": False,
                  "wait_seconds": 2, "clock_floor_mhz": 0, "others_cpu_max": 100000, "window_seconds": 0.2}}
# What only makes the run of a page longer.
SHORTER = {"benchd noise ": "benchd noise --runs 3 ", "benchd calibrate-baseline ": "benchd calibrate-baseline --passes 2 "}
TAKEN = ("RUNNER_NAME", "BENCH_WORKER_RESIDENT_SOCKET", "DS4_RESIDENT_SOCKET", "GIT_DIR")


def blocks():
    """(mark, text) of the page's indented blocks, in order; the mark is the comment above it."""
    found, mark, lines = [], None, []
    for line in [*PAGE.read_text().splitlines(), "end"]:
        if line.startswith("    "):
            lines.append(line[4:])
        elif line and lines:
            found.append((mark, "\n".join(lines)))
            mark, lines = None, []
        elif lines:
            lines.append("")
        if MARK.match(line):
            mark = MARK.match(line).group(1)
    return found


class Shell:
    """Runs blocks one after the other as one shell would: variables and the folder last."""

    def __init__(self, folder):
        self.folder = self.cwd = folder
        self.env = {k: v for k, v in os.environ.items() if k not in TAKEN and not k.startswith("MLXFAST_")}
        self.env |= {"A": str(folder), "NO_COLOR": "1", "MLXFAST_GPU_TEMP_CMD": "echo 30", "PATH": os.defpath + ":/usr/sbin"}

    def run(self, text):
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        state = self.folder / "state"
        state.unlink(missing_ok=True)
        result = subprocess.run(["bash", "-e"], input=f"{text}\n{{ pwd; env -0; }} > {state}\n", env=self.env,
                                cwd=self.cwd, capture_output=True, text=True, timeout=600)
        if state.exists():
            self.cwd, rest = state.read_text().split("\n", 1)
            self.env = dict(pair.split("=", 1) for pair in rest.split("\0") if pair)
        return result


def plant(tree):
    """A clone with what was built."""
    tree.mkdir()
    for name in TREE:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    (tree / "build").mkdir()
    for program in ("benchd", "bench-worker"):
        shutil.copy(BUILD / program, tree / "build" / program)
    git = ["git", "-C", str(tree), "-c", "user.name=o", "-c", "user.email=o@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a commit"], check=True)


def calibration_by_hand(path):
    """What calibrate-baseline would have written on a quiet machine."""
    pool = sorted(p.name[:-len(".golden.json")] for p in (path.parent / "pool").iterdir())
    one = {"passes": 4, "prefill_seconds_per_token_mean": 1.0, "decode_seconds_per_token_mean": 1.0,
           "prefill_cv": 0.004, "decode_cv": 0.003, "prefill_band_low": 0.95, "prefill_band_high": 1.05,
           "decode_band_low": 0.98, "decode_band_high": 1.02}
    path.write_text(json.dumps({
        "version": 3, "track_id": "laguna-nano-serial-v1", "box": "box-1", "captured_at": "2026-11-30T00:00:00Z",
        "reference_commit": "1" * 40, "benchd_source_commit": "2" * 40, "prompts": [{"prompt": p, **one} for p in pool]}))


@pytest.fixture(scope="module")
def arena(tmp_path_factory, build):
    """The page up to its last command of the organiser: the folder, and what each command came to."""
    if not (build / "bench-worker").exists():
        pytest.fail("bench-worker is not built")
    folder = tmp_path_factory.mktemp("arena")
    for tree in ("reference", "submission"):
        plant(folder / tree)
    shell, said = Shell(folder), {}
    for mark, text in blocks():
        if mark is None or not mark.startswith("run") or "stranger" in mark:
            continue
        result = shell.run(text)
        said[text] = result
        if result.returncode == 1 and "quiet machine" in mark:
            if "calibrate-baseline" in text:
                assert "CALIBRATION-CV-EXCEEDED" in result.stderr, result.stderr
                calibration_by_hand(folder / "private" / "box-1.json")
            else:
                assert "a ranked run would" in result.stdout, result.stdout
            continue
        assert result.returncode == 0, f"{text}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
        if "arm" in mark.split():
            path = folder / "track" / "contract.json"
            armed = json.loads(path.read_text())
            path.write_text(json.dumps(armed | BUSY))
    shell.said = said
    return shell


def of(arena, word):
    return next(result for text, result in arena.said.items() if word in text)


def test_every_block_says_whether_it_is_run():
    assert len(blocks()) > 12
    assert [text for mark, text in blocks() if mark is None] == []


def test_three_runs_pass_and_seal_what_the_page_says(arena):
    page = PAGE.read_text()
    for run in (1, 2, 3):
        document = json.loads((arena.folder / "out" / f"run-{run}" / "score.json").read_text())
        m = document["metrics"]
        assert document["passed"] is True and document["score"] > 0 and m["baseline_box"] == "box-1"
        for key in ("paired_legs", "null_pairs", "statistics", "gates", "step_seconds"):
            assert m[key] and f"`{key}`" in page
        assert m["statistics"]["null"]["pairs"] == 1 and len(m["gates"]) == 2 * 2 * 3
        note = arena.folder / "private" / f"draw-{run}.json"
        assert json.loads(note.read_text())["sha256"] == m["golden_hash"]
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
    gates = json.loads((arena.folder / "out" / "gates" / "score.json").read_text())
    assert gates["passed"] is True and gates["score"] is None and gates["metrics"]["partial_result"] is True


def test_both_trees_have_one_harness(arena):
    digests = of(arena, "harness-hash").stdout.split()
    assert len(digests) == 2 and digests[0] == digests[1]


def test_the_log_holds_every_run(arena):
    assert len((arena.folder / "scores.log").read_text().splitlines()) == 4
    assert re.search(r"\b4:[0-9a-f]{64}\b", of(arena, "log check").stdout)


def test_a_stranger_verifies_and_sees_a_changed_byte(arena, tmp_path):
    for name in ("out/run-1/bundle.tar", "private/signing.key.pub", "scores.log"):
        shutil.copy(arena.folder / name, tmp_path)
    stranger = Shell(tmp_path)
    stranger.env["PATH"] = f"{BUILD}:{stranger.env['PATH']}"
    for text in (text for mark, text in blocks() if mark == "run stranger"):
        result = stranger.run(text)
        assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
        if "verify bundle" in text:
            assert " 0 failed" in result.stdout and "the key that you gave" in result.stdout
    assert "<canvas" in (tmp_path / "score.report.html").read_text()
    whole = (tmp_path / "bundle.tar").read_bytes()
    for at in range(1, len(whole), len(whole) // 25):
        changed = tmp_path / "changed.tar"
        changed.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        result = subprocess.run([BUILD / "benchd", "verify", changed, "--public-key", tmp_path / "signing.key.pub"],
                                capture_output=True, text=True)
        assert result.returncode in (1, 3), f"byte {at}: {result.stdout}"
        assert "FAIL" in result.stdout or "BUNDLE-INVALID" in result.stderr


def test_the_table_of_refusals_is_true(build):
    known = {r["name"] for r in json.loads(subprocess.run([build / "benchd", "refusals", "--json"],
                                                          capture_output=True, text=True).stdout)}
    rows = re.findall(r"^\| (`[A-Z].*?) \| ([0-9]+) \|", PAGE.read_text(), re.M)
    assert len(rows) > 10
    for names, status in rows:
        for name in re.findall(r"`([A-Za-z-]+[A-Za-z])(?:-?\.\.\.)?`", names):
            assert any(k.startswith(name) for k in known), name
            if status != "2":
                assert status_of(name) == int(status), name
