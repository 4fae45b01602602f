"""The ranked run by the whole program: what a good one seals, every refusal, what differs and is let through,
hidden prompts, interrupts at any moment."""

import hashlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BUILD
from judge_kit import assert_sealed
from official_kit import ARMED, BOX, QUIET, STATISTICS, OfficialKit, composite, lower_median, status_of

DECODE = {"kind": "free_decode_run", "number": 2}  # the timed one; the first is the warm-up's


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return OfficialKit(tmp_path_factory.mktemp("official"))


@pytest.fixture
def kit(made, tmp_path):
    """A copy, since tests change trees and contracts."""
    shutil.copytree(made.folder, tmp_path / "k")
    for left in (tmp_path / "k" / "out").iterdir():
        left.unlink()
    copy = OfficialKit.__new__(OfficialKit)
    for name, value in vars(made).items():
        inside = isinstance(value, pathlib.Path) and value.is_relative_to(made.folder)
        setattr(copy, name, tmp_path / "k" / value.relative_to(made.folder) if inside else value)
    contract(copy)  # whatever a test before has made of it
    return copy


def contract(kit, **changes):
    pairs = changes.get("official_pairs", 2)
    kit.write_contract(**{**ARMED, "statistics": {**STATISTICS, "max_pairs": pairs}, **changes})


def no_orphans(folder):
    """No process whose command line or folder is of the kit."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(folder) in command or where.startswith(str(folder)):
            found.append((entry.name, command))
    return found


# ---- a good run ----

@pytest.fixture(scope="module")
def passed(made, tmp_path_factory):
    contract(made, official_pairs=3, statistics={**STATISTICS, "null_pairs": 2, "max_pairs": 3})
    result = made.official("--quiet")
    assert result.returncode == 0, result.stderr
    return json.loads(made.score.read_text())


def test_the_score_is_the_lower_median_of_what_was_sealed(made, passed):
    m = passed["metrics"]
    assert passed["passed"] is True and m["error"] == "" and m["partial_result"] is False
    assert len(m["paired_legs"]) == 3 and [p["pair"] for p in m["paired_legs"]] == [1, 2, 3]
    gains = [composite(p) for p in m["paired_legs"]]
    wanted = lower_median([g[2] for g in gains])
    assert math.isclose(passed["score"], wanted, rel_tol=1e-12)
    enforced = m["paired_legs"][[g[2] for g in gains].index(wanted)]
    for side, ours in (("candidate", ""), ("control", "baseline_")):
        for axis in ("prefill", "decode"):
            assert m[f"{ours}{axis}_seconds_per_token"] == enforced[f"{side}_{axis}_seconds_per_token"]
    assert math.isclose(m["decode_speedup"], composite(enforced)[1], rel_tol=1e-12)
    assert m["official_pair_combine"] == "lower_median" and m["runtime"] == "rust"
    assert m["passed_correctness"] is True and m["checked_steps"] > 64
    assert_sealed_in(made)


def assert_sealed_in(kit):
    kit = type("Sealed", (), {"score": kit.score, "folder": kit.score.parent})
    assert_sealed(kit)


def test_statistics_are_of_the_sealed_pairs(passed):
    m = passed["metrics"]
    s = m["statistics"]
    logs = [math.log(composite(p)[2]) for p in m["paired_legs"]]
    assert s["pairs"] == 3 and math.isclose(s["mean_log_ratio"], sum(logs) / 3, abs_tol=1e-12)
    assert s["interval"][0] < s["ratio"] < s["interval"][1]
    nulls = [math.log(composite(p)[2]) for p in m["null_pairs"]]
    assert s["null"]["pairs"] == len(nulls) == 2
    assert math.isclose(s["null"]["ratio"], math.exp(sum(nulls) / 2), rel_tol=1e-12)


def test_every_leg_has_its_gates_in_order(passed):
    gates = passed["metrics"]["gates"]
    legs = [(g["pair"], g["leg"], g["phase"]) for g in gates]
    order = [(1, "control"), (1, "candidate"), (1, "null-a"), (1, "null-b"), (2, "control"),
             (2, "candidate"), (2, "null-a"), (2, "null-b"), (3, "control"), (3, "candidate")]
    assert legs == [(*leg, phase) for leg in order for phase in ("prefill", "decode")]
    assert all(g["temperature"]["celsius"] == 30 for g in gates)


def test_where_it_stands_is_sealed(made, passed):
    m = passed["metrics"]
    assert m["baseline_source"] == "serial-control-leg" and m["baseline_box"] == BOX
    assert m["baseline_calibration_sha256"] == hashlib.sha256(made.calibration.read_bytes()).hexdigest()
    assert m["baseline_reference_commit"] == "1" * 40 and m["baseline_band_passed"] is True
    assert m["golden_hash"] == hashlib.sha256(made.golden.read_bytes()).hexdigest()
    assert m["contract_sha256"] == hashlib.sha256(made.contract.read_bytes()).hexdigest()
    assert len(m["harness_hash"]) == 64
    assert len(m["step_seconds"]) == 63 and all(s > 0 for s in m["step_seconds"])
    integrity = json.loads(made.integrity.read_text())
    assert integrity["sandbox"].startswith("bubblewrap+seccomp sha256:")
    assert integrity["score_sha256"] == hashlib.sha256(made.score.read_bytes()).hexdigest()
    assert integrity["candidate_executable"] == "engine"


def test_mean_of_pairs(kit):
    contract(kit, official_pairs=2, official_pair_combine="mean")
    result = kit.official("--quiet")
    assert result.returncode == 0, result.stderr
    document = json.loads(kit.score.read_text())
    gains = [composite(p) for p in document["metrics"]["paired_legs"]]
    assert math.isclose(document["score"], sum(g[2] for g in gains) / 2, rel_tol=1e-12)
    assert math.isclose(document["metrics"]["decode_speedup"], sum(g[1] for g in gains) / 2, rel_tol=1e-12)


def test_several_goldens_take_turns(kit):
    second = kit.folder / "second.golden.json"
    kit.record("--anchor", f"anchor-c={kit.folder / 'p4.json'}", out=second)
    contract(kit, official_pairs=4)
    calibration = json.loads(kit.calibration.read_text())
    calibration["prompts"].append({**calibration["prompts"][0], "prompt": "other"})
    kit.calibration.write_text(json.dumps(calibration))
    result = kit.official("--golden", second, "--prompt", "public", "--prompt", "other", "--quiet")
    assert result.returncode == 0, result.stderr
    digests = [p["prompt_sha256"] for p in json.loads(kit.score.read_text())["metrics"]["paired_legs"]]
    a, b = (hashlib.sha256(f.read_bytes()).hexdigest() for f in (kit.golden, second))
    assert digests == [a, b, a, b] and a != b


def test_speculation_is_the_candidates_alone(kit):
    kit.engines(sub={"spec": "mtp"}, base={"spec": "mtp"})
    result = kit.official("--mtp-depth", "2", "--quiet")
    assert result.returncode == 0, result.stderr
    m = json.loads(kit.score.read_text())["metrics"]
    assert m["effective_spec_mode"] == "mtp" and m["spec_drafted_total"] == 86
    assert m["per_prompt"][0]["spec_rounds"] == 2 * 43


def test_gates_only(kit):
    result = kit.official("--quiet", env={"MLXFAST_BENCHMARK_SKIP_TIMED": "1"}, baseline=False, box=None)
    assert result.returncode == 0, result.stderr
    document = json.loads(kit.score.read_text())
    m = document["metrics"]
    assert document["passed"] is True and document["score"] is None and m["partial_result"] is True
    assert m["decode_seconds_per_token"] == m["decode_speedup"] == 0 and "paired_legs" not in m
    assert m["passed_correctness"] is True and m["checked_steps"] > 64
    assert kit.official("--quiet", env={"MLXFAST_BENCHMARK_SKIP_TIMED": "true"}).returncode == 0
    assert json.loads(kit.score.read_text())["metrics"]["partial_result"] is False


# ---- what is refused before any engine starts: no score ----

def refused(result, name, status=2):
    assert result.returncode == status, result.stderr
    line = result.stderr.strip().splitlines()[-1 if status == 1 else 0]
    assert f": {name}: " in line, result.stderr
    return line


@pytest.mark.parametrize("changes, name", [
    ({"official_scoring_enabled": False}, "OFFICIAL-SCORING-DISABLED-FOR-TRACK"),
    ({"official_scoring_enabled": None}, "OFFICIAL-SCORING-UNDECLARED-FOR-TRACK"),
    ({"official_pairs": None, "statistics": None}, "OFFICIAL-PAIRS-UNDECLARED-FOR-TRACK"),
    ({"scores_against_live_control_leg": None}, "CONTROL-LEG-UNDECLARED-FOR-TRACK"),
    ({"decode_speedup_floor": None}, "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK"),
    ({"score_decode_weight": None, "score_prefill_weight": None}, "SCORING-WEIGHTS-UNDECLARED-FOR-TRACK"),
    ({"scored_batch_size": 8}, "SCORED-BATCH-SIZE-UNSUPPORTED"),
])
def test_contracts_that_score_nothing(kit, changes, name):
    contract(kit, **changes)
    refused(kit.official(), name)
    assert not kit.score.exists()


def test_stored_denominators(kit):
    refused(kit.official("--baseline-prefill-spt", "1", "--baseline-decode-spt", "1"),
            "STORED-BASELINE-OVERRIDE-REFUSED")
    for axis in ("PREFILL", "DECODE"):
        name = f"MLXFAST_PAIRED_BASELINE_{axis}_SECONDS_PER_TOKEN"
        assert name in refused(kit.official(env={name: "0.1"}), "STORED-BASELINE-OVERRIDE-REFUSED")


def test_counts_of_goldens(kit):
    contract(kit)
    refused(kit.official("--golden", kit.golden, "--prompt", "a"), "GOLDEN-COUNT-MISMATCH")
    refused(kit.official("--golden-sha256", "0" * 64, "--golden-sha256", "0" * 64, "--golden-bytes", "1",
                         "--golden-bytes", "1"), "GOLDEN-COUNT-MISMATCH")
    refused(kit.official("--golden", kit.golden, "--control-golden", kit.golden), "GOLDEN-COUNT-MISMATCH")
    refused(kit.official("--golden", kit.golden, "--golden", kit.golden),
            "OFFICIAL-PAIRS-NOT-A-MULTIPLE-OF-GOLDENS")
    refused(kit.official(golden=False), "USAGE")
    refused(kit.official("--pool", kit.folder), "USAGE")
    refused(kit.official(env={"BENCH_WORKER_RESIDENT_SOCKET": "/tmp/s"}), "LEG-SERVE-INHERITED-SOCKET")


# ---- what is refused with a failed score ----

def failed(kit, result, name):
    assert result.returncode == status_of(name), result.stderr
    document = json.loads(kit.score.read_text())
    assert document["passed"] is False and document["score"] is None
    assert document["metrics"]["error"].split(":")[0] == name, document["metrics"]["error"]
    assert_sealed_in(kit)
    return document["metrics"]


def test_the_calibration_must_fit(kit):
    failed(kit, kit.official(baseline=False, env={"MLXFAST_BASELINE_WORKSPACE": str(kit.base)}),
           "BASELINE-CALIBRATION-MISSING")
    failed(kit, kit.official(box=None), "BASELINE-BOX-UNRESOLVED")
    failed(kit, kit.official(box="other"), "BASELINE-CALIBRATION-BOX-MISMATCH")
    failed(kit, kit.official(env={"RUNNER_NAME": "other"}), "BASELINE-CALIBRATION-BOX-MISMATCH")
    failed(kit, kit.official("--prompt", "other"), "BASELINE-CALIBRATION-PROMPT-MISMATCH")
    kit.calibrate(track_id="mock-1-cuda-v1")
    failed(kit, kit.official(), "BASELINE-CALIBRATION-TRACK-MISMATCH")


def test_the_reference_tree_must_fit(kit):
    failed(kit, kit.official("--baseline-workspace", kit.folder / "none", baseline=False,
                             env={"MLXFAST_BASELINE_CALIBRATION": str(kit.calibration)}),
           "BASELINE-WORKSPACE-MISSING")
    (kit.base / "engine").rename(kit.base / "engine2")
    failed(kit, kit.official(), "BASELINE-WORKSPACE-NO-ENGINE")
    (kit.base / "engine").symlink_to(kit.sub / "engine")
    failed(kit, kit.official(), "BASELINE-ENGINE-NOT-ROOT-RELATIVE")
    (kit.base / "engine").unlink()
    (kit.base / "engine2").rename(kit.base / "engine")
    (kit.base / "weights").rename(kit.base / "w")
    failed(kit, kit.official(), "BASELINE-WORKSPACE-NO-WEIGHTS")


def test_a_control_golden_is_of_the_same_prompt(kit):
    other = kit.folder / "other.golden.json"
    kit.record(out=other)
    failed(kit, kit.official("--control-golden", other), "CONTROL-GOLDEN-PROMPT-MISMATCH")
    (kit.folder / "c").mkdir()
    same = kit.folder / "c" / "public.golden.json"
    shutil.copy(other, same)
    result = kit.official("--control-golden", same, "--quiet")
    assert result.returncode == 0, result.stderr


def test_weights_of_another_shape(kit):
    (kit.sub / "weights" / "config.json").write_text('{"model_type":"mock","vocab_size":508}')
    m = failed(kit, kit.official(), "WEIGHTS-SHAPE-MISMATCH")
    assert m["weights_hash"] != ""
    (kit.sub / "weights" / "config.json").write_text('{"text_config":{"num_hidden_layers":3}}')
    failed(kit, kit.official(), "WEIGHTS-SHAPE-MISMATCH")
    (kit.sub / "weights" / "config.json").write_text('{"model_type":"other"}')
    failed(kit, kit.official(), "WEIGHTS-SHAPE-MISMATCH")
    (kit.sub / "weights" / "config.json").write_text(
        '{"model_type":"m","text_config":{"model_type":"mock","vocab_size":509}}')
    assert kit.official("--quiet").returncode == 0


def test_no_run_without_a_sandbox(kit):
    failed(kit, kit.official("--no-sandbox"), "SandboxDisabled")


def test_a_harness_must_be_there(kit):
    shutil.rmtree(kit.sub / "src")
    failed(kit, kit.official(), "HARNESS-EMPTY")


# ---- legs that fail ----

@pytest.mark.parametrize("script", [
    {"at": DECODE, "do": "wrong_token", "with": 9},
    {"at": DECODE, "do": "die", "with": 3},
    {"at": {"kind": "prefill", "number": 2}, "do": "wrong_token", "with": 0},
    {"hello": {"protocol_version": 2}},
])
def test_a_control_leg_that_fails_is_not_the_candidates_failure(kit, script):
    kit.engines(base=script)
    m = failed(kit, kit.official(), "SERIAL-CONTROL-LEG-FAILED")
    assert "paired_legs" not in m


def test_a_slow_control_leg(kit):
    kit.calibrate(decode=1e-12)
    failed(kit, kit.official(), "SERIAL-CONTROL-LEG-OUTSIDE-BAND")
    kit.calibrate(prefill=1e-12)
    failed(kit, kit.official(), "SERIAL-CONTROL-LEG-OUTSIDE-BAND")


@pytest.mark.parametrize("combine", ["lower_median", "mean"])
def test_one_slow_control_leg_of_several(kit, combine):
    """Of the lower median it matters only where it is the scored pair's; of the mean it always does."""
    contract(kit, official_pairs=2, official_pair_combine=combine)
    second = kit.folder / "second.golden.json"
    second.write_text(kit.golden.read_text() + "\n")
    calibration = json.loads(kit.calibration.read_text())
    slow = {**calibration["prompts"][0], "prompt": "second", "decode_seconds_per_token_mean": 1e-12}
    kit.calibration.write_text(json.dumps({**calibration, "prompts": [*calibration["prompts"], slow]}))
    result = kit.official("--golden", second, "--quiet")
    metrics = json.loads(kit.score.read_text())["metrics"]
    if combine == "mean":
        failed(kit, result, "SERIAL-CONTROL-LEG-OUTSIDE-BAND")
        assert len(metrics["paired_legs"]) == 1
        return
    first_is_scored = composite(metrics["paired_legs"][0])[2] <= composite(metrics["paired_legs"][1])[2]
    if first_is_scored:
        assert result.returncode == 0, result.stderr
        assert metrics["baseline_band_passed"] is True and metrics["baseline_legs_outside_band"] == 1
    else:
        failed(kit, result, "SERIAL-CONTROL-LEG-OUTSIDE-BAND")
        assert metrics["baseline_band_passed"] is False


@pytest.mark.parametrize("parted, number, do, passes", [
    (False, 3, "wrong_token", True), (False, 4, "wrong_token", False),  # of one warm-up, two more, the timed one
    (True, 5, "wrong_token", True), (True, 6, "die", False), (True, 7, "die", True),
    (False, 5, "die", True),  # whoever has seen the seed is not given time before it
])
def test_warmed_again_between_gates_and_clock(kit, parted, number, do, passes):
    contract(kit, official_pairs=1, rewarm_runs=2)
    kit.record(*(["--benchmark-decode-prompt", kit.folder / "p1.json"] if parted else []))
    kit.engines(base={"at": {"kind": "prefill", "number": number}, "do": do, "with": 0})
    result = kit.official("--quiet")
    if passes:
        assert result.returncode == 0, result.stderr
    else:
        failed(kit, result, "SERIAL-CONTROL-LEG-FAILED")


def test_a_candidates_wrong_token(kit):
    kit.engines(sub={"at": DECODE, "do": "wrong_token", "with": 9})
    m = failed(kit, kit.official(), "TokenMismatch")
    assert m["first_failing_case"] == "decode" and m["first_failing_step"] == 9
    assert m["expected_token"] != m["actual_token"] and m["engine_backend"] == "scripted"


def test_correctness_comes_after_the_timing(kit):
    kit.engines(sub={"at": {"kind": "correctness_begin", "number": 3}, "do": "wrong_token", "with": 0})
    m = failed(kit, kit.official(), "anchor token mismatch")
    assert len(m["paired_legs"]) == 2 and m["decode_speedup"] > 0 and m["passed_correctness"] is False


def test_floors_gate(kit):
    contract(kit, decode_speedup_floor=1e6)
    m = failed(kit, kit.official(), "performance floor failed")
    assert m["passed_decode_speedup_floor"] is False and m["passed_prefill_speedup_floor"] is True


@pytest.mark.parametrize("degrees, name", [("rubbish", "TEMPERATURE-READER-MISSING"), ("90", "COOL-GATE-TIMEOUT")])
def test_a_machine_that_is_not_fit_is_nobodys_failure(kit, degrees, name):
    contract(kit, quiet={**QUIET, "wait_seconds": 0})
    m = failed(kit, kit.official(env={"MLXFAST_GPU_TEMP_CMD": f"echo {degrees}"}), name)
    assert "paired_legs" not in m and m["gates"][-1]["telemetry"] is None


def test_gates_cannot_be_switched_off(kit):
    failed(kit, kit.official(env={"MLXFAST_LOCAL_COOL_GATE": "0"}), "QUIET-GATES-DISABLED")


def test_each_leg_reads_the_engines_folder_of_its_own_tree(kit):
    """A relative --engine-tree is the submission's, and the control legs' is the same of theirs."""
    for tree in (kit.base, kit.sub):
        (tree / "lib").mkdir()
        (tree / "lib" / "whose").write_text(tree.name)
        engine = (tree / "engine").read_text()
        first, rest = engine.split("\n", 1)
        look = f"assert open({str(tree / 'lib' / 'whose')!r}).read() == {tree.name!r}"
        (tree / "engine").write_text(f"{first}\n{look}\n{rest}")
    failed(kit, kit.official(), "SERIAL-CONTROL-LEG-FAILED")
    result = kit.official("--quiet", "--engine-tree", "lib")
    assert result.returncode == 0, result.stderr
    shutil.rmtree(kit.base / "lib")
    failed(kit, kit.official("--engine-tree", "lib"), "BASELINE-WORKSPACE-NO-ENGINE")
    failed(kit, kit.official("--engine-tree", "../sub/lib"), "BASELINE-ENGINE-NOT-ROOT-RELATIVE")


def test_the_table_says_what_was_seen(kit):
    contract(kit, official_pairs=2)
    result = kit.official()
    assert result.returncode == 0, result.stderr
    s = json.loads(kit.score.read_text())["metrics"]["statistics"]
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines() if line.startswith(("score", "interval")))
    assert rows["interval"].strip() == f"{s['interval'][0]:.4f} to {s['interval'][1]:.4f} at confidence 0.95"
    for row in (f"1; ratio {s['null']['ratio']:.4f}", f"{s['null']['interval'][0]:.4f} to ", "the candidate is",
                "could have been seen"):
        assert row in result.stdout, result.stdout


# ---- tokens that are not the golden's ----

def test_differing_tokens_within_the_tolerance(kit):
    contract(kit, timed_token_tolerance_per_thousand=100)
    kit.engines(sub={"at": DECODE, "do": "wrong_token", "with": 9})
    result = kit.official("--quiet")
    assert result.returncode == 0, result.stderr
    m = json.loads(kit.score.read_text())["metrics"]
    # Position 0 is the seed's token; what follows is the golden's, and not what the reference says
    # after another token, so that the next one is counted too.
    assert m["timed_token_tolerance_per_thousand"] == 100
    assert m["token_mismatch_count"] == 2 and m["token_mismatch_first_step"] == 10
    assert m["paired_legs"][0]["token_mismatch_count"] == 2


def test_differing_tokens_beyond_the_tolerance(kit):
    contract(kit, timed_token_tolerance_per_thousand=15)  # 129 positions: 1 would pass
    kit.engines(sub={"at": DECODE, "do": "wrong_token", "with": 9})
    m = failed(kit, kit.official(), "TIMED-DIVERGENCE-OVER-TOLERANCE")
    assert len(m["paired_legs"]) == 2
    contract(kit, timed_token_tolerance_per_thousand=16)
    assert kit.official("--quiet").returncode == 0


def test_near_ties(kit):
    contract(kit, timed_token_tolerance_per_thousand=100, timed_token_near_tie_relative_gap=0.5)
    kit.engines(sub={"at": {"kind": "free_decode_run", "number": 2}, "do": "wrong_token", "with": 127})
    result = kit.official("--quiet")  # the last token: second choice of the reference, 0.125 below
    assert result.returncode == 0, result.stderr
    m = json.loads(kit.score.read_text())["metrics"]
    assert m["token_mismatch_near_tie_count"] == m["token_mismatch_second_choice_count"] == 1
    assert m["token_mismatch_second_choice_max_relative_gap"] == 0.125
    contract(kit, timed_token_tolerance_per_thousand=100, timed_token_near_tie_relative_gap=0.124)
    failed(kit, kit.official(), "TIMED-DIVERGENCE-NOT-A-NEAR-TIE")


def test_the_replays_own_failure_has_a_name(kit):
    contract(kit, timed_token_tolerance_per_thousand=100)
    kit.engines(sub={"at": DECODE, "do": "wrong_token", "with": 9},
                base={"at": {"kind": "correctness_begin"}, "do": "die", "with": 3})
    failed(kit, kit.official(), "TIMED-REPLAY-FAILED")


# ---- hidden prompts ----

def pooled(kit):
    pool = kit.folder / "pool"
    pool.mkdir()
    entries = []
    for i in range(8):
        path = pool / f"hidden-prose-{i}.golden.json"
        kit.record("--anchor", f"anchor-{i}-c={kit.folder / f'p{i % 6}.json'}", out=path)
        data = path.read_bytes()
        entries.append({"path": f"pool/{path.name}", "sha256": hashlib.sha256(data).hexdigest(),
                        "bytes": len(data)})
    contract(kit, timed_prompt_pool=entries)
    calibration = json.loads(kit.calibration.read_text())
    calibration["prompts"] = [{**calibration["prompts"][0], "prompt": f"hidden-prose-{i}"} for i in range(8)]
    kit.calibration.write_text(json.dumps(calibration))
    return pool, entries


def test_a_drawn_prompt_is_named_nowhere(kit):
    pool, entries = pooled(kit)
    note = kit.folder / "private.json"
    result = kit.official("--pool", pool, "--draw-file", note, golden=False)
    assert result.returncode == 0, result.stderr
    drawn = json.loads(note.read_text())
    assert note.stat().st_mode & 0o077 == 0 and drawn["sha256"] == entries[drawn["index"]]["sha256"]
    text = "".join(p.read_text() for p in kit.score.parent.iterdir()) + result.stdout + result.stderr
    assert "hidden-prose" not in text
    assert json.loads(kit.score.read_text())["metrics"]["golden_hash"] == drawn["sha256"]
    kit.engines(sub={"at": DECODE, "do": "wrong_token", "with": 9})
    result = kit.official("--pool", pool, golden=False)
    assert result.returncode == 1
    m = json.loads(kit.score.read_text())["metrics"]
    assert m["expected_token"] is None and m["first_failing_step"] is None
    assert m["error"] == "decode_token_mismatch"
    document = json.loads(kit.contract.read_text())  # and where some are let through, and too many are wrong
    kit.contract.write_text(json.dumps({**document, "timed_token_tolerance_per_thousand": 1}))
    again = kit.official("--pool", pool, golden=False)
    assert again.returncode == 1 and "TIMED-DIVERGENCE-OVER-TOLERANCE" in again.stderr
    assert json.loads(kit.score.read_text())["metrics"]["error"] == "decode_token_mismatch"
    assert "hidden-prose" not in kit.score.read_text() + result.stderr


def test_a_hidden_prompts_failure_that_is_not_the_submissions(kit):
    """No category of the submission's, and still no word of the prompt in what is published."""
    pool, _ = pooled(kit)
    result = kit.official("--pool", pool, golden=False, env={"MLXFAST_GPU_TEMP_CMD": "echo 90"})
    assert result.returncode == 7 and ": COOL-GATE-TIMEOUT: " in result.stderr
    assert json.loads(kit.score.read_text())["metrics"]["error"] == "no_score"
    kit.calibrate()  # of another prompt alone
    result = kit.official("--pool", pool, golden=False)
    assert result.returncode == 6 and ": BASELINE-CALIBRATION-PROMPT-MISMATCH: " in result.stderr
    assert json.loads(kit.score.read_text())["metrics"]["error"] == "no_score"
    assert "hidden-prose" not in "".join(p.read_text() for p in kit.score.parent.iterdir())


def test_a_pool_that_is_not_whole(kit):
    pool, entries = pooled(kit)
    contract(kit, timed_prompt_pool=entries[:7])
    failed(kit, kit.official("--pool", pool, golden=False), "POOL-INVALID")
    (pool / "hidden-prose-3.golden.json").write_text("{}")
    contract(kit, timed_prompt_pool=entries)
    failed(kit, kit.official("--pool", pool, golden=False), "GOLDEN-PIN-MISMATCH")


# ---- a participant's rehearsal ----

def local(kit, *extra, env=None):
    return kit.official("--mode", "local-iterate", *extra, env=env)


def test_pairs_locally(kit):
    """Under a contract that scores nothing officially, where nothing tells the temperature."""
    contract(kit, official_scoring_enabled=False)
    kit.integrity = kit.score.parent / "benchmark-integrity.local-iterate.json"
    result = local(kit, "--no-sandbox", "--quiet", env={"MLXFAST_GPU_TEMP_CMD": "false"})
    assert result.returncode == 0, result.stderr
    document = json.loads(kit.score.read_text())
    m = document["metrics"]
    assert m["runtime"] == "rust-local-iterate" and m["baseline_source"] == "serial-control-leg"
    gains = [composite(p)[2] for p in m["paired_legs"]]
    assert len(gains) == 2 and math.isclose(document["score"], min(gains), rel_tol=1e-12)
    assert m["checked_steps"] == 128  # base cases; --strict has the rest
    assert json.loads(kit.integrity.read_text())["sandbox"] == "none (switched off)"
    assert local(kit, "--strict", "--quiet").returncode == 0
    assert json.loads(kit.score.read_text())["metrics"]["checked_steps"] > 128


def test_one_of_the_two_is_no_pair(kit):
    result = kit.official("--mode", "local-iterate", "--baseline-workspace", kit.base, baseline=False)
    assert result.returncode == 0, result.stderr
    assert "paired_legs" not in json.loads(kit.score.read_text())["metrics"]


def test_what_only_a_ranked_run_has(kit):
    for flag in ("--pool", "--draw-file", "--signing-key", "--log"):
        assert flag in refused(local(kit, flag, kit.folder), "USAGE")


# ---- interrupts ----

@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("after", [1, 3, 5, 8])
def test_killed_at_any_moment(kit, how, after):
    """After the line of leg `after` (of six): no orphan, no score, nothing half-written."""
    contract(kit, statistics={**STATISTICS, "null_pairs": 2, "max_pairs": 2})
    process = kit.official(popen=True)
    seen = 0
    while seen < after:
        line = process.stderr.readline()
        if not line:
            break
        seen += line.startswith("leg ")
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    deadline = time.monotonic() + 20
    while no_orphans(kit.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert no_orphans(kit.folder) == []
    assert list(kit.score.parent.iterdir()) == []


# ---- where the score goes ----

@pytest.mark.parametrize("what", ["contract", "golden", "calibration", "sub/engine", "sub/weights/score.json",
                                  "base/engine", "base/weights/score.json", "log", "key"])
def test_a_score_replaces_no_input(kit, what):
    where = kit.folder / {"contract": "contract.json", "golden": "public.golden.json",
                          "calibration": "calibration.json"}.get(what, what)
    assert where.exists() or where.parent.exists()
    (kit.folder / "log").touch()
    shutil.copy(kit.golden, kit.folder / "key")
    before = where.read_bytes() if where.exists() else None
    kit.score = where
    extra = ["--signing-key", kit.folder / "key", "--log", kit.folder / "log"] if what in ("log", "key") else []
    result = kit.official("--quiet", *extra)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("benchd iterate: SCORE-PATH-INVALID: "), result.stderr
    assert (where.read_bytes() if where.exists() else None) == before


def test_a_log_is_no_sealed_file(kit):
    """The run would have passed, and then have lost its entry."""
    result = kit.official("--quiet", "--signing-key", kit.calibration, "--log", kit.integrity)
    assert result.returncode == 2 and "SCORE-PATH-INVALID" in result.stderr, result.stderr


def test_a_full_disk(kit):
    """No file may grow past 2000 bytes: the run ends with a line, and nothing is half-written."""
    line = ["prlimit", "--fsize=2000:2000", BUILD / "benchd", "official", "--engine", "engine", "--weights",
            "weights", "--contract", kit.contract, "--golden", kit.golden, "--score-path", kit.score,
            "--baseline-workspace", kit.base, "--baseline-calibration", kit.calibration, "--box", BOX, "--quiet"]
    result = subprocess.run([str(a) for a in line], cwd=kit.sub, capture_output=True, text=True, timeout=120,
                            env={**os.environ, "MLXFAST_GPU_TEMP_CMD": "echo 30"})
    assert result.returncode == 1 and "IO: write: File too large" in result.stderr, result.stderr
    assert list(kit.score.parent.iterdir()) == []
