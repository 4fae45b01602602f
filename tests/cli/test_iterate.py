"""benchd iterate in the local modes, with an honest engine and with wrong tokens."""

import hashlib
import json
import re
import signal
import subprocess

import pytest

from conftest import BUILD
from judge_kit import DECODE, ENGINE, STEPS, VOCAB, Kit, assert_sealed


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


def test_honest_run_passes_and_is_sealed(kit):
    result = kit.iterate()
    assert result.returncode == 0, result.stderr
    document = json.loads(kit.score.read_text())
    assert document["passed"] is True and document["score"] is None
    m = document["metrics"]
    assert m["error"] == "" and m["passed_correctness"] is True
    assert m["runtime"] == "rust-local-iterate"
    assert m["baseline_source"] == "none (local mode: unscored)"
    assert (m["case_count"], m["checked_steps"]) == (6, 2 * STEPS)
    assert m["local_phases"] == {"correctness": "passed", "timing": "passed",
                                 "correctness_checked_steps": 2 * STEPS}
    assert m["prefill_seconds_per_token"] > 0 and m["decode_seconds_per_token"] > 0
    assert m["candidate_leg_decode_window_seconds_per_token"] == m["decode_seconds_per_token"]
    assert m["candidate_leg_seed_prefill_window_seconds_per_token"] > 0
    assert m["peak_ram_gb"] >= m["process_resident_memory_gb"] > 0
    assert (m["engine_backend"], m["engine_device"], m["engine_protocol_version"]) == \
        ("scripted", "python", 1)
    assert (m["effective_spec_mode"], m["effective_spec_depth"]) == ("serial", 0)
    assert "spec_rounds" not in m and "runner_id" not in m
    assert m["contract_sha256"] == hashlib.sha256(kit.contract.read_bytes()).hexdigest()
    assert m["golden_hash"] == hashlib.sha256(kit.golden.read_bytes()).hexdigest()
    assert m["num_layers"] == 2 and m["weights_file_count"] == 1
    assert m["first_failing_case"] is None and m["expected_token"] is None
    assert_sealed(kit)
    integrity = json.loads(kit.integrity.read_text())
    assert integrity["score_sha256"] == hashlib.sha256(kit.score.read_bytes()).hexdigest()
    assert integrity["sandbox"] == "none (switched off)"
    for line in ("correctness", "prefill", "decode", "sealed in"):
        assert line in result.stdout
    kit.assert_nothing_left()


def test_progress_is_plain_lines_away_from_a_terminal(kit):
    result = kit.iterate()
    for phase in ("warm-up", "prefill", "decode", "correctness"):
        assert re.search(rf"^{phase}: ", result.stderr, re.M), result.stderr
    assert "\r" not in result.stderr and "\033" not in result.stderr


def test_quiet_says_nothing(kit):
    result = kit.iterate("--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_strict_runs_every_gate(kit):
    assert kit.iterate("--strict").returncode == 0
    m = kit.metrics()
    assert m["checked_steps"] == 2 * STEPS + 2 + 24 + 8


def test_local_submit(kit):
    result = kit.iterate("--mode", "local-submit")
    assert result.returncode == 0, result.stderr
    assert "cool gate: skipped" in result.stderr
    assert kit.metrics()["runtime"] == "rust-local-submit"
    assert (kit.folder / "benchmark-integrity.json").exists()


@pytest.mark.parametrize("what", ["public.golden.json", "contract.json", "weights/score.json"])
def test_a_score_replaces_no_input(kit, what):
    kit.score = kit.folder / what
    before = kit.score.read_bytes() if kit.score.exists() else None
    result = kit.iterate()
    assert result.returncode == 2 and "SCORE-PATH-INVALID" in result.stderr
    assert (kit.score.read_bytes() if kit.score.exists() else None) == before


def test_default_score_paths(kit):
    base = [BUILD / "benchd", "iterate", "--engine", ENGINE, "--weights", kit.weights, "--golden",
            kit.golden, "--contract", kit.contract, "--quiet"]
    assert subprocess.run(base, cwd=kit.folder, timeout=60).returncode == 0
    assert (kit.folder / "score.local-iterate.json").exists()
    assert (kit.folder / "benchmark-integrity.local-iterate.json").exists()
    assert subprocess.run([*base, "--mode", "local-submit"], cwd=kit.folder,
                          timeout=60).returncode == 0
    assert (kit.folder / "score.json").exists()
    assert (kit.folder / "benchmark-integrity.json").exists()


def test_worker_arguments_and_environment(kit):
    kit.iterate(env={"MLX_X": "1", "LC_ALL": "C", "SECRET": "s", "MLXFAST_PRIVATE_DIR": "p",
                     "BENCH_GOLDEN_PATH": "g", "BENCH_WORKER_DRAFTER": "d",
                     "MLXFAST_USE_RUNTIME_WORKER": "1"})
    log = kit.log()
    assert log["argv"][1:4] == ["runtime-worker", "--weights", str(kit.weights)]
    assert log["argv"][-2:] == ["--speculative-protocol", "v1.1"]
    assert log["argv"][4] == "--resource"
    environment = log["env"]
    assert environment["MLX_X"] == "1" and environment["BENCH_WORKER_DRAFTER"] == "d"
    assert environment["MLXFAST_USE_RUNTIME_WORKER"] == "0"
    assert "SECRET" not in environment and "BENCH_GOLDEN_PATH" not in environment
    assert [n for n in environment if n.startswith("MLXFAST_")] == ["MLXFAST_USE_RUNTIME_WORKER"]


def test_yarn_magnitude_reaches_the_engine(kit):
    kit.write_contract(yarn_magnitude="attention_factor")
    assert kit.iterate(env={"BENCH_WORKER_YARN_MAGNITUDE": "derived"}).returncode == 0
    assert kit.log()["env"]["BENCH_WORKER_YARN_MAGNITUDE"] == "attention_factor"


@pytest.mark.parametrize("at, label, step", [
    ({"kind": "prefill", "number": 2}, "prefill", 0),
    ({"kind": "free_decode_begin", "number": 2}, "decode-seed", 0),
    ({"kind": "free_decode_run", "number": 2}, "decode", 5),
])
def test_wrong_timed_token(kit, at, label, step):
    result = kit.iterate(script={"at": at, "do": "wrong_token", "with": step})
    assert result.returncode == 1
    m = kit.assert_failed_score("TokenMismatch")
    assert m["error"] == f"TokenMismatch: {label}: the token at step {step} is not the golden's"
    assert (m["first_failing_case"], m["first_failing_step"]) == (label, step)
    assert m["actual_token"] == (m["expected_token"] + 1) % VOCAB
    assert m["local_phases"]["timing"] == "failed"
    assert m["local_phases"]["correctness"] == "not_run"
    assert str(m["expected_token"]) not in re.sub(r"step \d+", "", m["error"])
    kit.assert_nothing_left()


def test_warm_up_tokens_are_not_judged(kit):
    """The warm-up runs on another prompt: nobody has an oracle for it."""
    at = {"kind": "prefill", "number": 1}
    assert kit.iterate(script={"at": at, "do": "wrong_token", "with": 0}).returncode == 0


@pytest.mark.parametrize("wrong, passes", [(6, True), (7, False)])
def test_base_budget_of_ten_percent(kit, wrong, passes):
    """64 steps: 6 mismatches are inside 10 %, 7 are not."""
    script = {"at": {"kind": "correctness_step", "number": 3}, "do": "wrong_tokens_from_here",
              "with": wrong}
    result = kit.iterate(script=script)
    assert result.returncode == (0 if passes else 1), result.stderr
    if not passes:
        m = kit.assert_failed_score("teacher-forced token mismatch")
        assert (m["first_failing_case"], m["first_failing_step"]) == ("one", 3)
        assert m["checked_steps"] == 4
        assert m["local_phases"]["correctness"] == "failed"
        assert m["local_phases"]["timing"] == "passed"
        assert m["decode_seconds_per_token"] > 0 and m["passed_correctness"] is False


@pytest.mark.parametrize("kind, number, case, error", [
    ("correctness_begin", 3, "anchor-a", "anchor token mismatch"),
    ("correctness", 1, "free-a", "free-run token mismatch"),
    ("correctness", 2, "says", "behavior token mismatch"),
])
def test_strict_gates_fail(kit, kind, number, case, error):
    script = {"at": {"kind": kind, "number": number}, "do": "wrong_token", "with": 0}
    assert kit.iterate(script=script).returncode == 0, "local modes run base cases only"
    assert kit.iterate("--strict", script=script).returncode == 1
    m = kit.assert_failed_score(error)
    assert m["first_failing_case"] == case


def test_speculation_is_requested_and_sealed(kit):
    result = kit.iterate("--mtp-depth", "2", script={"spec": "mtp"})
    assert result.returncode == 0, result.stderr
    m = kit.metrics()
    assert (m["effective_spec_mode"], m["effective_spec_depth"]) == ("mtp", 2)
    assert sum(m["acceptance_lengths"]) == DECODE
    assert m["spec_rounds"] == len(m["acceptance_lengths"])
    assert m["spec_acceptance_rate"] == m["spec_accepted_total"] / m["spec_drafted_total"]


def test_candidate_spec_without_depth_takes_the_engines(kit):
    spec = '{"mode":"mtp","mtp":{}}'
    assert kit.iterate("--candidate-spec", spec, script={"spec": "mtp"}).returncode == 0
    assert kit.metrics()["effective_spec_depth"] == 2


def test_oracle_from_the_case_when_the_benchmark_is_short(kit):
    """goldens.md section 1: in local modes expected_tokens[k+1] is the output of decode step k."""
    document = json.loads(kit.golden.read_text())
    document["benchmark"]["expected_decode_tokens"] = \
        document["benchmark"]["expected_decode_tokens"][:DECODE]
    kit.golden.write_text(json.dumps(document))
    assert kit.iterate("--mode", "local-submit").returncode == 0
    document["cases"] = document["cases"][1:]
    kit.golden.write_text(json.dumps(document))
    assert kit.iterate("--mode", "local-submit").returncode == 1
    kit.assert_failed_score("GOLDEN-INVALID")


@pytest.mark.parametrize("changes", [{"revision": "1" * 40}, {"repository": "mlxfast/another"}])
def test_a_golden_of_another_model_is_refused(kit, changes):
    """The contract's target pins who made the golden."""
    document = json.loads(kit.golden.read_text())
    document["model_provenance"].update(changes)
    kit.golden.write_text(json.dumps(document))
    assert kit.iterate().returncode == 1
    kit.assert_failed_score("GOLDEN-INVALID")
    kit.write_contract(target=None)
    assert kit.iterate().returncode == 0


def test_stored_pair_track_scores_against_its_pair(build, tmp_path):
    stored = dict(scores_against_live_control_leg=False,
                  official_baseline_prefill_seconds_per_token=10.0,
                  official_baseline_decode_seconds_per_token=10.0,
                  prefill_band_up_tolerance=0.1, prefill_band_down_tolerance=0.1,
                  prefill_band_down_enabled=False, decode_band_up_tolerance=0.1,
                  decode_band_down_tolerance=0.1, decode_band_down_enabled=False)
    kit = Kit(tmp_path, **stored)
    kit.record()
    assert kit.iterate().returncode == 0
    document = json.loads(kit.score.read_text())
    m = document["metrics"]
    composite = m["decode_speedup"] ** 0.75 * m["prefill_speedup"] ** 0.25
    assert document["score"] == pytest.approx(composite, rel=1e-12)
    assert m["passed_decode_speedup_floor"] is True
    stored["official_baseline_decode_seconds_per_token"] = 1e-12
    kit.write_contract(**stored)
    assert kit.iterate().returncode == 1
    kit.assert_failed_score("performance floor failed")


@pytest.mark.parametrize("axis", ["prefill", "decode"])
def test_a_time_below_the_acceptance_band_is_not_believed(build, tmp_path, axis):
    """10 seconds for a token are stored: no engine of these tests is that slow."""
    stored = {"scores_against_live_control_leg": False}
    for each in ("prefill", "decode"):
        stored[f"official_baseline_{each}_seconds_per_token"] = 10.0
        stored[f"{each}_band_up_tolerance"] = stored[f"{each}_band_down_tolerance"] = 0.1
        stored[f"{each}_band_down_enabled"] = each == axis
    kit = Kit(tmp_path, **stored)
    kit.record()
    assert kit.iterate().returncode == 1
    error = kit.assert_failed_score("acceptance band failed")["error"]
    assert f"{axis}_seconds_per_token=" in error and error.endswith("is less than 9")
    kit.write_contract(**{**stored, f"{axis}_band_down_tolerance": 1.0})
    assert kit.iterate().returncode == 0, "a tolerance of 1 believes every time"


def test_what_is_asked_and_in_which_order(kit):
    """A transcript of a run: the timed prompts are asked once, the warm-up before them with the same
    tokens in an order that is drawn, the cases after them, a barrier between any two."""
    copy = kit.folder / "asked"
    wrapper = kit.folder / "wrapper"
    wrapper.write_text(f'#!/bin/sh\ntee "{copy}" | "{ENGINE}" "$@"\n')
    wrapper.chmod(0o755)
    result = kit.iterate(engine=wrapper)
    assert result.returncode == 0, result.stderr
    golden = json.loads(kit.golden.read_text())
    oracle = golden["benchmark"]
    asked = [json.loads(line) for line in copy.read_text().splitlines()]
    intervals = [[]]
    for q in asked:
        if q["kind"] == "phase_diagnostics":
            intervals.append([])
        else:
            intervals[-1].append(q)
    warm_prefill, warm_decode, prefill, decode, *cases = [i for i in intervals if i]
    assert [q["kind"] for q in warm_prefill] == ["prefill"]
    assert [q["kind"] for q in warm_decode] == ["free_decode_begin", "free_decode_run"]
    drawn = warm_prefill[0]["prompt_tokens"], warm_decode[0]["seed_tokens"]
    for order, name in zip(drawn, ("prefill_prompt_tokens", "decode_seed_tokens")):
        assert sorted(order) == sorted(oracle[name])
        assert order != oracle[name] and order != oracle[name][::-1]
    assert kit.iterate(engine=wrapper).returncode == 0
    again = [json.loads(line) for line in copy.read_text().splitlines()]
    assert again[0]["prompt_tokens"] != drawn[0], "an order that can be foreseen can be undone"
    assert [(q["kind"], q["prompt_tokens"]) for q in prefill] == \
        [("prefill", oracle["prefill_prompt_tokens"])]
    assert [q["kind"] for q in decode] == ["free_decode_begin", "free_decode_run"]
    assert decode[0]["seed_tokens"] == oracle["decode_seed_tokens"] and decode[1]["count"] == DECODE
    assert len(cases) == len(golden["cases"]) == 2
    for interval, case in zip(cases, golden["cases"]):
        assert [q["kind"] for q in interval] == ["correctness_begin"] + ["correctness_step"] * (STEPS - 1)
        assert interval[0]["prompt_tokens"] == case["prompt_tokens"]
        assert [q["token"] for q in interval[1:]] == case["expected_tokens"][:STEPS - 1]


def test_the_budget_of_the_timed_run_ends_with_it(kit):
    """Cases that take longer than the whole budget of the timed run (2 s) are not in it."""
    wrapper = kit.folder / "wrapper"
    slow = "sleep 2.5; printf '%s\\n' \"$line\";;"
    wrapper.write_text(f'''#!/bin/sh
while IFS= read -r line; do case $line in
*correctness_begin*) {slow}
*) printf '%s\\n' "$line";;
esac; done | "{ENGINE}" "$@"
''')
    wrapper.chmod(0o755)
    result = kit.iterate(engine=wrapper, env={"MLXFAST_RUN_CEILING_S": str(2 / 4 / DECODE)})
    assert result.returncode == 0, result.stderr


def test_interrupt_leaves_nothing(kit):
    process = kit.iterate(script={"at": {"kind": "free_decode_run", "number": 2}, "do": "hang"},
                          popen=True)
    # The log is written when the engine is up; the last progress line before the hang is prefill's.
    for line in process.stderr:
        if line.startswith("prefill:"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Interrupted" in err
    assert not kit.score.exists() and not kit.integrity.exists()
    kit.assert_nothing_left()
