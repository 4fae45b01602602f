"""The ranked run of block decoding by the whole program: a run that passes, every class of rejection with its
retry, failures of the submission and of the organiser's side, every refusal; nothing of the hidden prompt
anywhere (docs/ranked-blocks.md). Runs that are killed: test_ranked_blocks_killed.py."""

import hashlib
import json
import math
import stat
import subprocess
import sys

import pytest

from conftest import BUILD
from ranked_blocks_kit import BLOCKS, BOX, CALIBRATION, RankedKit, TOKENS, prompt

ONE = {"target_pairs": 1, "min_accepted_pairs": 1}


def needs_sandbox():
    probe = subprocess.run([BUILD / "benchd", "probe-sandbox"], capture_output=True)
    return pytest.mark.skipif(probe.returncode != 0, reason="no sandbox on this machine, which an "
                              "official run must have")


pytestmark = needs_sandbox() if (BUILD / "benchd").exists() else pytest.mark.skip(reason="no build")


@pytest.fixture(scope="module")
def made(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    return RankedKit(folder).make()


@pytest.fixture
def kit(made, tmp_path):
    return made.copy(tmp_path)


def assert_no_leak(kit, result, *more):
    """Of every entry of the pool: its name, its digest and its tokens are in nothing that a run leaves but
    the private record."""
    texts = {"stdout": result.stdout, "stderr": result.stderr}
    for path in kit.score.parent.iterdir():
        texts[path.name] = path.read_text(errors="replace")  # a signature is no text
    assert len(texts) >= 2
    for i, entry in enumerate(kit.entries()):
        seed = prompt(i)
        secrets = [entry["path"], entry["path"].split("/")[1].split(".")[0], entry["sha256"],
                   json.dumps(seed[:6])[1:-1], ",".join(map(str, seed[:6])), *more]
        for name, text in texts.items():
            for secret in secrets:
                assert secret not in text, f"{secret!r} is in {name}"


# ---- a run that passes ----

def test_a_run_that_passes(kit):
    result = kit.run()
    document = kit.passed(result)
    m = document["metrics"]
    assert m["mode"] == "dflash-paired-decode-only" and m["aggregation"] == "ratio_of_means"
    assert m["official_score"] is True and m["rankable"] is True
    assert "not_rankable_reason" not in m and "public_drift_tripwire_passed" not in m
    assert m["passed_correctness"] is True and m["parity_all_ok"] is True and m["case_count"] == 2
    assert m["decode_tokens"] == TOKENS and m["block_size"] == 4 and m["decode_speedup_floor"] == 0.95
    assert m["golden_hash"] == hashlib.sha256(kit.golden.read_bytes()).hexdigest()
    assert m["reference_engine"] == "the engine itself" and m["all_tokens_matched"] is True
    assert m["baseline_source"] == "serial-control-leg" and m["baseline_box"] == BOX
    assert len(m["harness_hash"]) == 64 and m["partial_result"] is False

    # The pairs, and what is made of them again by hand.
    pairs, nulls = m["block_pairs"], m["block_null_pairs"]
    assert [(p["pair"], p["attempt"], p["order"], p["accepted"], p["rejection"]) for p in pairs] == \
        [(1, 1, "control-first", True, None), (2, 1, "candidate-first", True, None)]
    assert [(p["pair"], p["accepted"]) for p in nulls] == [(1, True)]
    serial = [p["control_seconds_per_token"] for p in pairs]
    blocks = [p["candidate_seconds_per_token"] for p in pairs]
    raw = sum(serial) / sum(blocks)
    assert m["accepted_pair_count"] == m["target_pair_count"] == 2
    assert math.isclose(m["dflash_decode_speedup_ratio_of_means"], raw, rel_tol=1e-12)
    assert math.isclose(m["baseline_serial_seconds_per_token_mean"], sum(serial) / 2, rel_tol=1e-12)
    assert math.isclose(m["candidate_dflash_seconds_per_token_mean"], sum(blocks) / 2, rel_tol=1e-12)
    ratios = [a / b for a, b in zip(serial, blocks)]
    assert math.isclose(m["dflash_decode_speedup_min"], min(ratios), rel_tol=1e-12)
    assert math.isclose(m["dflash_decode_speedup_median"], sum(ratios) / 2, rel_tol=1e-12)
    noop = m["noop_reference_decode_speedup"]
    assert document["score"] == m["dflash_decode_speedup_normalized"]
    assert math.isclose(document["score"], raw / noop, rel_tol=1e-12)

    statistics = m["statistics"]
    assert statistics["axis"] == "decode" and statistics["pairs"] == 2
    logs = [math.log(r) for r in ratios]
    assert math.isclose(statistics["mean_log_ratio"], sum(logs) / 2, rel_tol=1e-9)
    assert statistics["null"]["pairs"] == 1 and statistics["sequential"]["stopped"] == "fixed"

    # A gate before every leg, in the order of the run, and telemetry with it.
    assert [(g["pair"], g["leg"], g["phase"]) for g in m["gates"]] == [
        (1, "control", "block-decode"), (1, "candidate", "block-decode"),
        (1, "null-a", "block-decode"), (1, "null-b", "block-decode"),
        (2, "candidate", "block-decode"), (2, "control", "block-decode")]
    assert all(g["telemetry"]["samples"] > 0 for g in m["gates"])

    # What was drawn is in the private record alone.
    assert stat.S_IMODE(kit.draw.stat().st_mode) == 0o600
    draw = json.loads(kit.draw.read_text())
    entry = kit.entries()[draw["index"]]
    assert {k: draw[k] for k in entry} == entry and draw["noop_decode_speedup"] == noop
    assert draw["contract_sha256"] == m["contract_sha256"]
    assert_no_leak(kit, result)
    assert "PASSED" in result.stdout and result.stdout.count("counts") == 3
    assert kit.processes() == []


def test_a_signed_run_is_verified_by_a_stranger(kit):
    """From the bundle alone the score, its pairs and its statistics are worked out again; the hidden prompt is
    in none of it."""
    kit.write_contract(blocks=ONE)
    key, log, bundle = kit.folder / "key", kit.folder / "log", kit.folder / "bundle.tar"

    def benchd(*arguments):
        result = subprocess.run([str(a) for a in [BUILD / "benchd", *arguments]], capture_output=True,
                                text=True, timeout=60, cwd=kit.folder)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    benchd("keygen", "--out", key)
    result = kit.run("--signing-key", key, "--log", log)
    kit.passed(result)
    assert "signed by" in result.stderr and (kit.score.parent / "score.json.statement.json").exists()
    benchd("bundle", "--score", kit.score, "--contract", kit.contract, "--golden", kit.golden, "--key",
           f"{key}.pub", "--log", log, "--out", bundle)
    said = benchd("verify", bundle, "--public-key", f"{key}.pub", "--log", log)
    assert "0 failed" in said and "ratio of the means of the sealed pairs that count" in said
    (kit.score.parent / "log").write_text(log.read_text())
    assert_no_leak(kit, result)
    held = subprocess.run(["tar", "tf", bundle], capture_output=True, text=True).stdout
    assert "hidden-prose" not in held and "golden/01.json" in held


def test_a_quiet_run_says_nothing(kit):
    kit.write_contract(blocks=ONE)
    result = kit.run("--quiet")
    kit.passed(result)
    assert result.stdout == "" and result.stderr == ""


def test_pairs_are_added_up_to_the_bound(kit):
    kit.write_contract(blocks=ONE, official_pairs=1, statistics={
        "null_pairs": 1, "max_pairs": 2, "half_width": 1e-9, "confidence": 0.95})
    m = kit.passed(kit.run())["metrics"]
    assert m["accepted_pair_count"] == 2 and m["target_pair_count"] == 1
    assert m["statistics"]["sequential"]["stopped"] == "bound-reached"


def test_correctness_alone(kit):
    """Nothing is timed or drawn; what a ranked run would refuse is refused all the same."""
    alone = {"MLXFAST_BENCHMARK_SKIP_TIMED": "1"}
    result = kit.run(env=alone)
    document = kit.passed(result)
    m = document["metrics"]
    assert document["score"] is None and m["partial_result"] is True and m["passed_correctness"] is True
    assert m["checked_steps"] == 128 and "mode" not in m and "gates" not in m
    assert not kit.draw.exists() and "PASSED, no score" in result.stdout
    kit.fault(wrong_correctness=True)
    result = kit.run(env=alone)
    assert result.returncode == 1 and kit.document()["metrics"]["error"] == "correctness_failed"
    for path in kit.score.parent.iterdir():
        path.unlink()
    kit.refused(kit.run(without=["--pool"], env=alone), "USAGE")


def test_the_private_folder_holds_the_record(kit):
    kit.write_contract(blocks=ONE)
    private = kit.folder / "keep"
    private.mkdir()
    kit.passed(kit.run(without=["--draw-file"], env={"MLXFAST_PRIVATE_DIR": str(private)}))
    assert [p.name for p in private.iterdir()] == ["prompt-draw.json"] and not kit.draw.exists()


# ---- pairs that do not count ----

def attempts(metrics, key="block_pairs"):
    return [(p["pair"], p["attempt"], p["rejection"]) for p in metrics[key]]


def rejected(kit, result, why):
    """Nothing counts; one class has its one retry, of pairs and of null pairs."""
    m = kit.failed(result, "no_score", code=7, name="BLOCK-PAIRS-REJECTED")
    assert "no failure of the submission" in result.stderr
    assert attempts(m) == [(1, 1, why), (1, 2, why), (2, 1, why)]
    assert m["accepted_pair_count"] == 0 and "statistics" not in m
    assert result.stderr.count("measured again") >= 1
    assert_no_leak(kit, result)
    return m


def test_temperature_is_measured_again_once_and_then_counts(kit):
    """Hot at the two looks of the first attempt's gate, at its begin and at its end."""
    kit.write_contract(blocks=ONE, quiet={"wait_seconds": 0.2})
    looks = kit.folder / "looks"
    command = f"n=0; [ -f {looks} ] && read n < {looks}; echo $((n + 1)) > {looks}; [ $n -lt 2 ] && echo 99 || echo 41"
    result = kit.run(temperature=command)
    m = kit.passed(result)["metrics"]
    assert attempts(m) == [(1, 1, "temperature_timeout"), (1, 2, None)]
    first = m["block_pairs"][0]
    assert first["control_seconds_per_token"] is None and first["candidate_seconds_per_token"] is None
    assert "pair 1: rejected, temperature_timeout: " in result.stderr


def test_a_machine_that_stays_hot(kit):
    kit.write_contract(quiet={"wait_seconds": 0.2})
    m = rejected(kit, kit.run(temperature="echo 99"), "temperature_timeout")
    assert attempts(m, "block_null_pairs") == [(1, 1, "temperature_timeout"),
                                               (1, 2, "temperature_timeout")]


def test_clocks_that_are_too_slow(kit):
    """Legs that compute for half a second: some samples are of a loaded processor for sure."""
    kit.write_contract(quiet={"clock_floor_mhz": 1e9, "loaded_use": 0.2})
    for tree in ("base", "sub"):
        kit.fault(tree, seconds=0.05, spin=True)
    m = rejected(kit, kit.run(), "telemetry")
    assert m["block_pairs"][0]["control_seconds_per_token"] > 0  # measured, and not believed
    assert m["block_pairs"][0]["candidate_seconds_per_token"] is None


def test_a_leg_that_stalls(kit):
    kit.write_contract(blocks={"stall_factor": 4.0})
    kit.fault(stall=[4, 0.4])
    m = rejected(kit, kit.run(), "stall_guardrail")
    pair = m["block_pairs"][0]
    assert pair["candidate_max_request_seconds"] > 4 * pair["candidate_p50_request_seconds"]


def test_a_control_leg_outside_the_band(kit):
    kit.write_contract(blocks={"calibration": {**CALIBRATION, "serial_seconds_per_token": 10.0,
                                               "band": 0.05}})
    result = kit.run()
    m = kit.failed(result, "no_score", code=6, name="SERIAL-CONTROL-LEG-OUTSIDE-BAND")
    why = "calibration_band"
    assert attempts(m) == [(1, 1, why), (1, 2, why), (2, 1, why)]
    assert attempts(m, "block_null_pairs") == [(1, 1, why), (1, 2, why)]
    assert_no_leak(kit, result)


# ---- failures of the submission: categories, and no word of the engine's ----

def test_floor(kit):
    kit.write_contract(blocks=ONE, timed_prompt_pool=kit.entries(noop=50.0))
    result = kit.run()
    m = kit.failed(result, "floor_failed", name="NOT-PASSED")
    assert m["dflash_decode_speedup_normalized"] < 0.95 and m["accepted_pair_count"] == 1
    assert attempts(m) == [(1, 1, None)]
    assert_no_leak(kit, result)


def test_a_speedup_that_is_not_believed(kit):
    kit.write_contract(blocks={**ONE, "raw_speedup_max": 0.02})
    kit.failed(kit.run(), "invalid_score")


def test_correctness_comes_first(kit):
    """Nothing is drawn and nothing is timed; the tokens of the golden, which may be hidden, are not told."""
    kit.fault(wrong_correctness=True)
    result = kit.run()
    m = kit.failed(result, "correctness_failed")
    assert m["passed_correctness"] is False and m["gates"] == [] and not kit.draw.exists()
    assert m["first_failing_case"] is None and m["expected_token"] is None and m["actual_token"] is None
    assert "block_pairs" not in m


@pytest.mark.parametrize("fault, category", [
    ({"forged": 3}, "dflash_work_binding_logit_mismatch round=2 row=0"),
    ({"wrong_token": 2}, "dflash_token_not_admissible round=1 row=0"),
    ({"die": 2}, "runtime_error"),
    ({"wrong_seed": True}, "decode_seed_token_mismatch"),
])
def test_a_leg_of_the_submission_that_fails(kit, fault, category):
    kit.fault(**fault)
    result = kit.run()
    m = kit.failed(result, category)
    assert "block_pairs" not in m and "statistics" not in m
    assert m["dflash_decode_speedup"] == 0 and m["noop_reference_decode_speedup"] == 0
    assert_no_leak(kit, result)
    assert kit.processes() == []


def test_the_words_of_an_engine_are_told_nowhere(kit):
    kit.fault(says="the prompt was seven one eight")
    result = kit.run()
    kit.failed(result, "runtime_error")
    assert_no_leak(kit, result, "seven one eight")


def test_a_hidden_prompt_among_the_weights(kit):
    stolen = sorted(kit.pool.iterdir())[3]
    (kit.sub / "weights" / "table.bin").write_bytes(stolen.read_bytes())
    result = kit.run()
    kit.failed(result, "runtime_error", name="GOLDEN-IN-WEIGHTS")
    assert not kit.draw.exists()
    for text in [p.read_text() for p in kit.score.parent.iterdir()]:
        assert stolen.name not in text


def test_an_engine_that_is_not_there(kit):
    (kit.sub / "engine").unlink()
    kit.failed(kit.run(), "runtime_error", name="ENGINE-MISSING")


# ---- the organiser's side ----

def test_a_control_leg_that_fails_is_no_failure_of_the_submission(kit):
    kit.fault("base", die=3)
    result = kit.run()
    kit.failed(result, "no_score", code=6, name="SERIAL-CONTROL-LEG-FAILED")
    assert "no failure of the submission" in result.stderr and "EngineExited" in result.stderr
    assert_no_leak(kit, result)


@pytest.mark.parametrize("path, name, category, code", [
    ("base/engine", "ENGINE-CHANGED", "no_score", 6),
    ("base/weights/toy.json", "WEIGHTS-CHANGED", "no_score", 6),
    ("drafter/toy.json", "DRAFTER-CHANGED", "no_score", 6),
    ("sub/engine", "ENGINE-CHANGED", "runtime_error", 1),
    ("sub/weights/toy.json", "WEIGHTS-CHANGED", "runtime_error", 1),
])
def test_files_that_change_during_the_run(kit, path, name, category, code):
    """Whose file it is tells whose failure it is. The reader of temperature, outside of every sandbox, is what
    touches it here."""
    kit.write_contract(blocks=ONE)
    result = kit.run(temperature=f"touch {kit.folder / path}; echo 41")
    m = kit.failed(result, category, code=code, name=name)
    assert m["accepted_pair_count"] == 0


def test_a_machine_that_others_use(kit):
    kit.write_contract(quiet={"others_cpu_max": 1e-3, "wait_seconds": 0, "window_seconds": 2})
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        result = kit.run()
    finally:
        neighbour.kill()
        neighbour.wait()
    m = kit.failed(result, "no_score", code=7, name="QUIESCENCE-TIMEOUT")
    assert "declined: contention" in result.stderr
    assert [g["quiescence"]["state"] for g in m["gates"]] == ["not-quiet"]


def test_a_reader_that_reads_nothing(kit):
    kit.failed(kit.run(temperature="false"), "no_score", code=7, name="TEMPERATURE-READER-MISSING")


# ---- refusals: one line, nothing written ----

@pytest.mark.parametrize("changes, name, code", [
    ({"official_scoring_enabled": False}, "OFFICIAL-SCORING-DISABLED-FOR-TRACK", 2),
    ({"official_scoring_enabled": None}, "OFFICIAL-SCORING-UNDECLARED-FOR-TRACK", 2),
    ({"fidelity": None}, "FIDELITY-UNDECLARED-FOR-TRACK", 2),
    ({"decode_speedup_floor": None}, "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK", 2),
    ({"blocks": {"calibration": None}}, "BASELINE-CALIBRATION-MISSING", 6),
    ({"blocks": {"calibration": {**CALIBRATION, "machine": "another"}}},
     "BASELINE-CALIBRATION-BOX-MISMATCH", 6),
    ({"blocks": {"calibration": {**CALIBRATION, "decode_tokens": 12}}}, "CONTRACT-INVALID", 2),
    ({"blocks": {"target_pairs": 1001}}, "CONTRACT-INVALID", 2),
    ({"timed_prompt_pool": []}, "POOL-INVALID", 2),
])
def test_contracts_that_are_not_for_a_ranked_run(kit, changes, name, code):
    kit.write_contract(**changes)
    kit.refused(kit.run(), name, code)


def test_a_pool_of_seven(kit):
    kit.write_contract(timed_prompt_pool=kit.entries()[:7])
    kit.refused(kit.run(), "POOL-INVALID")


def test_a_pool_with_an_entry_that_has_no_normaliser(kit):
    entries = kit.entries()
    del entries[5]["noop_decode_speedup"]
    kit.write_contract(timed_prompt_pool=entries)
    kit.refused(kit.run(), "POOL-INVALID", field="timed_prompt_pool[5].noop_decode_speedup")


def test_a_pool_file_that_was_changed(kit):
    path = sorted(kit.pool.iterdir())[6]
    path.write_text(path.read_text() + " ")
    kit.refused(kit.run(), "GOLDEN-PIN-MISMATCH")


def test_every_entry_is_read_before_one_is_drawn(kit):
    path = sorted(kit.pool.iterdir())[2]
    golden = json.loads(path.read_text())
    golden["seed_tokens"][0] = 4096
    path.write_text(json.dumps(golden))
    kit.write_contract()
    for _ in range(3):
        kit.refused(kit.run(), "GOLDEN-INVALID", field="hidden-prose-2")


@pytest.mark.parametrize("without, name, code", [
    ("--pool", "USAGE", 2), ("--golden", "USAGE", 2), ("--drafter", "USAGE", 2),
    ("--draw-file", "USAGE", 2), ("--baseline-workspace", "BASELINE-WORKSPACE-MISSING", 2),
    ("--box", "BASELINE-BOX-UNRESOLVED", 6),
])
def test_flags_that_a_ranked_run_needs(kit, without, name, code):
    kit.refused(kit.run(without=[without]), name, code)


@pytest.mark.parametrize("extra, name", [
    (["--engine", "/bin/true"], "BASELINE-ENGINE-NOT-ROOT-RELATIVE"),
    (["--engine", "../sub/engine"], "BASELINE-ENGINE-NOT-ROOT-RELATIVE"),
    (["--weights", "../sub/weights"], "BASELINE-WEIGHTS-NOT-ROOT-RELATIVE"),
    (["--engine-tree", "../sub"], "BASELINE-ENGINE-NOT-ROOT-RELATIVE"),
    (["--no-sandbox"], "SandboxDisabled"),
    (["--candidate-spec", '{"mode":"serial"}'], "USAGE"),
    (["--mtp-depth", "2"], "USAGE"),
    (["--baseline-calibration", "x.json"], "USAGE"),
    (["--baseline-prefill-spt", "1", "--baseline-decode-spt", "1"], "STORED-BASELINE-OVERRIDE-REFUSED"),
])
def test_what_has_no_place_in_it(kit, extra, name):
    kit.refused(kit.run(*extra), name)


def test_outputs_replace_nothing_that_is_read(kit):
    kit.refused(kit.run("--draw-file", kit.contract), "USAGE", field="--draw-file")
    kit.refused(kit.run("--draw-file", kit.score), "USAGE", field="--draw-file")
    for what in (kit.golden, kit.contract, kit.sub / "weights" / "score.json", kit.base / "engine",
                 kit.pool / "score.json", kit.drafter / "score.json"):
        kit.refused(kit.run("--score-path", what), "SCORE-PATH-INVALID", field="--score-path")
    assert json.loads(kit.golden.read_text())["version"] == 1


def test_a_baseline_without_its_engine(kit):
    (kit.base / "engine").unlink()
    kit.refused(kit.run(), "BASELINE-WORKSPACE-NO-ENGINE")
    kit.refused(kit.run("--weights", "other"), "BASELINE-WORKSPACE-NO-ENGINE")


def test_a_resident_that_was_there_before(kit):
    kit.refused(kit.run(env={"BENCH_WORKER_RESIDENT_SOCKET": "/tmp/x"}), "LEG-SERVE-INHERITED-SOCKET")


def test_a_tree_without_the_harness(kit):
    (kit.sub / "src" / "judge" / "judge.c").unlink()
    (kit.sub / "src" / "judge").rmdir()
    kit.refused(kit.run(), "HARNESS-EMPTY")


def test_gates_cannot_be_switched_off(kit):
    kit.refused(kit.run(env={"MLXFAST_LOCAL_COOL_GATE": "0"}), "QUIET-GATES-DISABLED")


def test_the_runners_name_wins_over_the_flag(kit):
    kit.refused(kit.run(env={"RUNNER_NAME": "another"}), "BASELINE-CALIBRATION-BOX-MISMATCH", 6)
    assert BOX == "toy-box" and BLOCKS["calibration"]["machine"] == BOX
