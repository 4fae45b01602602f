"""benchd calibrate-baseline and measure-noop by the whole program: what is written, every refusal, and
that nothing is left behind. Engines wait fixed times, so that their passes are alike; no test looks at a
time."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BUILD, ROOT
from judge_kit import DEADLINES, ENGINE, Kit, VOCAB

RESIDENT = ROOT / "tests" / "engines" / "resident"
COMMIT, SOURCE = "0123456789" * 4, "abcdef0123" * 4
# Long against what a busy machine adds.
STEADY = {"vocab": VOCAB, "slow": {"prefill": 0.15, "free_decode_run": 0.2}}
TAKEN = ("RUNNER_NAME", "MLXFAST_BASELINE_WORKSPACE", "MLXFAST_BENCHD_SOURCE_COMMIT",
         "MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "BENCH_WORKER_RESIDENT_SOCKET",
         "DS4_RESIDENT_SOCKET", "MLXFAST_COMMIT_SHA")


class Box(Kit):
    """A kit whose organiser's tree is <folder>/tree."""

    def __init__(self, folder, **contract):
        super().__init__(folder, **{"calibration_cv_max": 0.1, **contract})
        self.tree = self.folder / "tree"
        (self.tree / "bin").mkdir(parents=True)
        (self.tree / "weights").mkdir()
        (self.tree / "weights" / "config.json").write_text("{}")
        shutil.copy(ENGINE, self.tree / "bin" / "engine")
        self.out = self.folder / "box.json"
        self.conditions = self.folder / "box.json.conditions.json"
        self.record()

    def with_resident(self, variant="good", script=STEADY):
        shutil.copytree(RESIDENT, self.tree, dirs_exist_ok=True)
        shutil.copy(ENGINE, self.tree / "bin" / "scripted_engine.py")
        (self.tree / "variant").write_text(variant)
        (self.tree / "script.json").write_text(json.dumps(script))

    def run(self, command, *extra, script=STEADY, env=None, drop=(), popen=False, sandbox=False):
        arguments = {"--baseline-workspace": self.tree, "--engine": "bin/engine",
                     "--golden": self.golden, "--contract": self.contract, "--out": self.out}
        if command == "calibrate-baseline":
            arguments |= {"--passes": 2, "--box": "box-1", "--reference-commit": COMMIT,
                          "--benchd-source-commit": SOURCE}
        else:
            arguments |= {"--pairs": 2}
        given = dict(zip(extra[::2], extra[1::2]))
        line = [BUILD / "benchd", command, "--no-cool-gate"]
        line += [] if sandbox else ["--no-sandbox"]
        if script is not None and not (self.tree / "variant").exists():
            line += ["--engine-resource", f"script={self.script(**script)}"]
        for flag, value in arguments.items():
            if flag not in drop and flag not in given:
                line += [flag, value]
        line = [str(a) for a in [*line, *extra]]
        environment = {k: v for k, v in os.environ.items() if k not in TAKEN}
        environment |= DEADLINES | (env or {})
        if popen:
            return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=environment, cwd=self.folder)
        return subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment,
                              cwd=self.folder)

    def calibrate(self, *extra, **keys):
        return self.run("calibrate-baseline", *extra, **keys)

    def noop(self, *extra, **keys):
        return self.run("measure-noop", *extra, **keys)

    def refused(self, result, name, code=1):
        assert result.returncode == code, result.stderr
        last = result.stderr.strip().splitlines()[-1]
        assert f": {name}: " in last, result.stderr
        assert not self.out.exists() and not self.conditions.exists()
        assert not [p for p in self.folder.iterdir() if ".tmp" in p.name]
        return last

    def calls(self):
        return (self.tree / "calls").read_text().splitlines()

    def assert_no_resident(self):
        assert not list(self.tree.glob("*.sock*"))
        pid = int((self.tree / "pid").read_text())
        assert not pathlib.Path(f"/proc/{pid}").exists()


@pytest.fixture
def box(tmp_path, build):
    return Box(tmp_path)


# ---- what is written ----

def test_the_commit_of_this_program_is_found_beside_it(box):
    result = box.calibrate(drop=("--benchd-source-commit",))
    assert result.returncode == 0, result.stderr
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert json.loads(box.out.read_text())["benchd_source_commit"] == head


def test_a_calibration(box):
    result = box.calibrate("--passes", "3")
    assert result.returncode == 0, result.stderr
    document = json.loads(box.out.read_text())
    # A small cv has an exponent in Python's spelling and none in ours.
    lines = [re.sub(r": [-+.e0-9]+(,?)$", r": 0\1", line) for line in box.out.read_text().splitlines()]
    alike = json.dumps(document, indent=2, sort_keys=True).splitlines()
    assert lines == [re.sub(r": [-+.e0-9]+(,?)$", r": 0\1", line) for line in alike]
    assert set(document) == {"version", "track_id", "box", "captured_at", "reference_commit",
                             "benchd_source_commit", "prompts", "gates"}
    assert document["version"] == 3 and document["track_id"] == "mock-0-cuda-v1"
    assert document["box"] == "box-1"
    assert document["reference_commit"] == COMMIT and document["benchd_source_commit"] == SOURCE
    [p] = document["prompts"]
    assert p["prompt"] == "public" and p["passes"] == 3
    assert p["prefill_seconds_per_token_mean"] > 0 and p["decode_seconds_per_token_mean"] > 0
    assert [p[f"{axis}_band_{end}"] for axis in ("prefill", "decode") for end in ("low", "high")] \
        == [0.95, 1.05, 0.98, 1.02]
    assert [(g["pass"], g["phase"]) for g in document["gates"]] == \
        [(n, phase) for n in (1, 2, 3) for phase in ("prefill", "decode")]
    for gate in document["gates"]:
        assert set(gate) == {"pass", "phase", "quiescence", "temperature", "telemetry"}


def test_its_conditions(box):
    assert box.calibrate().returncode == 0
    c = json.loads(box.conditions.read_text())
    digest = subprocess.run(["sha256sum", box.out], capture_output=True, text=True, check=True)
    assert c["calibration_sha256"] == digest.stdout.split()[0]
    assert set(c["machine"]) == {"processor", "processors", "memory_bytes", "kernel", "governor",
                                 "gpus"}
    assert c["machine"]["processors"] >= 1 and c["machine"]["memory_bytes"] > 0
    assert c["cool_gate"] is False and c["residents"] is False and c["cv_max"] == 0.1
    [p] = c["prompts"]
    document = json.loads(box.out.read_text())["prompts"][0]
    for axis in ("prefill", "decode"):
        times = [row[f"{axis}_seconds_per_token"] for row in p["passes"]]
        mean = document[f"{axis}_seconds_per_token_mean"]
        assert abs(sum(times) / 2 - mean) < 1e-9 * mean


def test_several_prompts_and_declared_bands(box):
    box.write_contract(calibration_cv_max=0.1, prefill_band_up_tolerance=0.5,
                       prefill_band_down_tolerance=0.25, prefill_band_down_enabled=True,
                       decode_band_up_tolerance=0.125, decode_band_down_tolerance=0,
                       decode_band_down_enabled=True)
    second = box.folder / "second.golden.json"
    box.record("--prompt-tokens", box.folder / "p4.json", "--case-name", "three", out=second)
    result = box.calibrate("--golden", box.golden, "--golden", second, "--prompt", "a", "--prompt",
                           "b")
    assert result.returncode == 0, result.stderr
    prompts = json.loads(box.out.read_text())["prompts"]
    assert [p["prompt"] for p in prompts] == ["a", "b"]
    assert [prompts[1][f"{axis}_band_{end}"] for axis in ("prefill", "decode")
            for end in ("low", "high")] == [0.75, 1.5, 1.0, 1.125]


def test_names_from_the_environment(box):
    result = box.calibrate(drop=("--baseline-workspace", "--box", "--benchd-source-commit"),
                           env={"MLXFAST_BASELINE_WORKSPACE": str(box.tree),
                                "RUNNER_NAME": "runner-7", "MLXFAST_BENCHD_SOURCE_COMMIT": SOURCE})
    assert result.returncode == 0, result.stderr
    document = json.loads(box.out.read_text())
    assert document["box"] == "runner-7" and document["benchd_source_commit"] == SOURCE
    result = box.calibrate(env={"RUNNER_NAME": "runner-8"})  # over --box
    assert json.loads(box.out.read_text())["box"] == "runner-8", result.stderr


def test_reference_commit_is_the_tree_s_head(box):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=box.tree,
                       check=True, capture_output=True)

    box.refused(box.calibrate(drop=("--reference-commit",)), "USAGE", 2)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=box.tree, capture_output=True, text=True)
    result = box.calibrate(drop=("--reference-commit",))
    assert result.returncode == 0, result.stderr
    assert json.loads(box.out.read_text())["reference_commit"] == head.stdout.strip()


# ---- refusals ----

def test_passes_that_vary(box):
    """Nothing is written, and a file from before stays."""
    box.write_contract(calibration_cv_max=None)
    wild = {**STEADY, "slower": 1.3}
    line = box.refused(box.calibrate(script=wild), "CALIBRATION-CV-EXCEEDED")
    assert "prompts[0].prefill_cv" in line
    box.out.write_text("as it was")
    result = box.calibrate(script=wild)
    assert result.returncode == 1 and box.out.read_text() == "as it was"
    assert not box.conditions.exists()


@pytest.mark.parametrize("fault", [
    {"at": {"kind": "free_decode_begin", "number": 2}, "do": "set",
     "with": {"effective_spec": {"mode": "mtp", "mtp": {"depth": 2}}}},
    {"at": {"kind": "free_decode_run", "number": 2}, "do": "set",
     "with": {"drafted_total": 3}},
], ids=["said", "counted"])
def test_an_engine_that_speculates(box, fault):
    box.refused(box.calibrate(script={"vocab": VOCAB, **fault}), "CALIBRATION-SPEC-ARMED")


def test_a_leg_that_is_wrong(box):
    fault = {"at": {"kind": "prefill", "number": 2}, "do": "wrong_token", "with": 0}
    box.refused(box.calibrate(script={"vocab": VOCAB, **fault}), "TokenMismatch")


def test_tree_changes_meanwhile(box):
    process = box.calibrate(popen=True, script={"vocab": VOCAB, "slow": {"prefill": 0.4}})
    for line in process.stderr:
        if "pass 2 of 2" in line:
            os.utime(box.tree / "weights" / "config.json")
            break
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 1 and ": WEIGHTS-CHANGED: " in rest
    assert not box.out.exists()


def refusals_of_trees():
    def link_weights(box):
        (box.folder / "elsewhere").mkdir()
        shutil.rmtree(box.tree / "weights")
        (box.tree / "weights").symlink_to("../elsewhere")

    def link_tree(box):
        box.tree.rename(box.folder / "real")
        box.tree.symlink_to("real")

    return [
        ("BASELINE-WORKSPACE-MISSING", None, {"--baseline-workspace": "nothing"}),
        ("BASELINE-WORKSPACE-MISSING", link_tree, {}),
        ("BASELINE-WORKSPACE-NO-ENGINE", None, {"--engine": "bin/other"}),
        ("BASELINE-WORKSPACE-NO-ENGINE", lambda b: (b.tree / "bin/engine").chmod(0o644), {}),
        ("BASELINE-WORKSPACE-NO-WEIGHTS", None, {"--weights": "bin/engine"}),
        ("BASELINE-ENGINE-NOT-ROOT-RELATIVE", None, {"--engine": "../tree/bin/engine"}),
        ("BASELINE-ENGINE-NOT-ROOT-RELATIVE", None, {"--engine": str(ENGINE)}),
        ("BASELINE-WEIGHTS-NOT-ROOT-RELATIVE", link_weights, {}),
        ("BASELINE-WEIGHTS-NOT-ROOT-RELATIVE", None, {"--weights": "/tmp"}),
    ]


@pytest.mark.parametrize("name,arrange,flags", refusals_of_trees())
@pytest.mark.parametrize("command", ["calibrate-baseline", "measure-noop"])
def test_trees(box, command, name, arrange, flags):
    if arrange:
        arrange(box)
    extra = [word for pair in flags.items() for word in pair]
    box.refused(box.run(command, *extra), name)


def test_no_workspace_and_no_box(box):
    box.refused(box.calibrate(drop=("--baseline-workspace",)), "BASELINE-WORKSPACE-MISSING")
    box.refused(box.calibrate(drop=("--box",)), "BASELINE-BOX-UNRESOLVED")
    box.refused(box.calibrate(drop=("--box",), env={"RUNNER_NAME": "  "}),
                "BASELINE-BOX-UNRESOLVED")


@pytest.mark.parametrize("extra,name,code", [
    (("--track", "other-v1"), "TRACK-ID-MISMATCH", 2),
    (("--prompt", "a", "--prompt", "b"), "GOLDEN-COUNT-MISMATCH", 2),
    (("--passes", "1"), "USAGE", 2),
    (("--reference-commit", "0123"), "USAGE", 2),
    (("--benchd-source-commit", "G" * 40), "USAGE", 2),
    (("--engine-resource", "a=1", "--engine-resource", "a=2"), "USAGE", 2),
    (("--engine-resource", "nameless"), "USAGE", 2),
    (("--out", "no-folder/box.json"), "IO", 2),
    (("--contract", "nothing.json"), "IO", 2),
    (("--golden", "nothing.json"), "IO", 1),
])
def test_misuse(box, extra, name, code):
    box.refused(box.calibrate(*extra), name, code)


def test_outputs_do_not_replace_inputs(box):
    before = box.golden.read_bytes()
    for path in (box.golden, box.contract):
        assert box.calibrate("--out", path).returncode == 2
        assert box.noop("--out", path).returncode == 2
    assert box.golden.read_bytes() == before


def test_two_goldens_of_one_name(box):
    box.refused(box.calibrate("--golden", box.golden, "--golden", box.golden), "USAGE")


def test_bands_without_a_low_end(box):
    box.write_contract(prefill_band_up_tolerance=0.1, prefill_band_down_tolerance=1,
                       prefill_band_down_enabled=False, decode_band_up_tolerance=0.1,
                       decode_band_down_tolerance=0.1, decode_band_down_enabled=False)
    line = box.refused(box.calibrate(), "CONTRACT-INVALID", 2)
    assert "prefill_band_down_tolerance" in line


def test_a_golden_among_the_weights(box):
    shutil.copy(box.golden, box.tree / "weights" / "copy.json")
    box.refused(box.calibrate(), "GOLDEN-IN-WEIGHTS")


def test_gates_of_a_calibration_are_a_ranked_run_s(box):
    """With the cool gate a machine that is too warm is not calibrated."""
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1,
                       quiet={"load_max": 1000, "gpu_use_max": 1, "celsius_max": 20,
                              "temperature_required": True, "wait_seconds": 0,
                              "clock_floor_mhz": 0, "others_cpu_max": 1000, "window_seconds": 0.2})
    line = [str(BUILD / "benchd"), "calibrate-baseline", "--baseline-workspace", str(box.tree),
            "--engine", "bin/engine", "--golden", str(box.golden), "--contract", str(box.contract),
            "--out", str(box.out), "--box", "b", "--reference-commit", COMMIT,
            "--benchd-source-commit", SOURCE, "--no-sandbox", "--engine-resource",
            f"script={box.script(**STEADY)}"]
    environment = {k: v for k, v in os.environ.items() if k not in TAKEN}
    environment |= {**DEADLINES, "MLXFAST_GPU_TEMP_CMD": "echo 95"}
    result = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment)
    box.refused(result, "COOL-GATE-TIMEOUT")


# ---- residents ----

@pytest.mark.parametrize("sandbox", [False, True])
def test_each_leg_has_its_own_resident(box, sandbox):
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident()
    result = box.calibrate(sandbox=sandbox)
    assert result.returncode == 0, result.stderr
    calls = box.calls()
    assert len(calls) == 4  # two passes
    for boot, stop in zip(calls[::2], calls[1::2]):
        words = boot.split()
        assert words[:-1] == ["--boot", "--spec", "serial", "--draft-len", "0", "--socket-out"]
        assert not pathlib.Path(words[-1]).parent.exists()
        assert stop.startswith(f"--stop --socket {box.tree}/resident-")
    assert calls[1] != calls[3]
    box.assert_no_resident()
    assert json.loads(box.conditions.read_text())["residents"] is True


def test_cuda_tracks_have_a_script_of_another_name(box):
    box.with_resident()
    (box.tree / "tools" / "resident-up.sh").rename(box.tree / "tools" / "serve-up.sh")
    result = box.calibrate()
    assert result.returncode == 0, result.stderr
    assert len(box.calls()) == 4
    box.assert_no_resident()


@pytest.mark.parametrize("variant,name,about", [
    ("fail", "LEG-SERVE-BOOT-FAILED", "exit status 3"),
    ("no-socket", "LEG-SERVE-BOOT-FAILED", "not there"),
    ("relative", "LEG-SERVE-BOOT-FAILED", "absolute"),
    ("stop-fails", "LEG-SERVE-STOP-FAILED", "--stop"),
    ("shared", "LEG-SERVE-SHARED-RESIDENT", "load_epoch 1"),
    ("nameless", "LEG-SERVE-IDENTITY-MISSING", "resident"),
])
def test_residents_that_misbehave(box, variant, name, about):
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident(variant)
    assert about in box.refused(box.calibrate(), name)
    pid = int((box.tree / "pid").read_text())
    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_a_daemon_that_was_not_stopped_is_ended(box):
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident("not-stopped")
    result = box.calibrate()
    assert result.returncode == 0, result.stderr
    box.assert_no_resident()


def test_script_missing(box):
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident()
    (box.tree / "tools" / "resident-up.sh").chmod(0o644)
    box.refused(box.calibrate(), "LEG-SERVE-SCRIPT-MISSING")


@pytest.mark.parametrize("variable", ["BENCH_WORKER_RESIDENT_SOCKET", "DS4_RESIDENT_SOCKET"])
def test_inherited_socket(box, variable):
    box.refused(box.calibrate(env={variable: "/tmp/x.sock"}), "LEG-SERVE-INHERITED-SOCKET")


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 130),
                                         (signal.SIGKILL, -9)])
def test_stopped_in_a_leg(box, number, code):
    """Killed as well: the guard stops the resident when the judge is gone."""
    box.write_contract(track_id="mock-0-mlx-v1", calibration_cv_max=0.1)
    box.with_resident(script={"vocab": VOCAB, "slow": {"prefill": 600}})
    process = box.calibrate(popen=True)
    until = time.monotonic() + 60
    while not (box.tree / "attached").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    while (list(box.tree.glob("*.sock*")) or box.calls()[-1].startswith("--boot")) and \
            time.monotonic() < until:
        time.sleep(0.01)
    assert box.calls()[-1].startswith("--stop --socket ")
    pid = int((box.tree / "pid").read_text())
    while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    box.assert_no_resident()
    assert not box.out.exists() and not box.conditions.exists()


# ---- measure-noop ----

def test_noop_of_a_serial_track(box):
    result = box.noop("--pairs", "3")
    assert result.returncode == 0, result.stderr
    report = json.loads(box.out.read_text())
    assert report["kind"] == "serial" and report["pairs"] == 3 and report["block_size"] is None
    assert report["decode_tokens"] == 128
    [p] = report["prompts"]
    assert p["prompt"] == "public" and len(p["pairs"]) == 3
    low, high = p["interval"]
    assert 0 < low <= p["noop_decode_speedup"] <= high
    legs = [(g["pair"], g["leg"]) for g in report["gates"] if g["phase"] == "decode"]
    assert legs == [(1, "null-a"), (1, "null-b"), (2, "null-b"), (2, "null-a"), (3, "null-a"),
                    (3, "null-b")]
    assert "public" in result.stdout


def test_noop_says_no_on_misuse(box):
    assert box.noop("--pairs", "1").returncode == 2
    box.refused(box.noop("--drafter", str(box.weights)), "USAGE", 2)
    fault = {"at": {"kind": "free_decode_run", "number": 2}, "do": "set",
             "with": {"drafted_total": 3}}
    box.refused(box.noop(script={"vocab": VOCAB, **fault}), "CALIBRATION-SPEC-ARMED")


def test_noop_under_its_own_name(build, run):
    result = run([build / "measure-noop", "--help"])
    assert result.returncode == 0 and result.stdout.startswith("Measures the organiser's tree")
