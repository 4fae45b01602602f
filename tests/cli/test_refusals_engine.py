"""Engines that break the protocol: each refused by its documented name, within its deadline, with a
valid failed score and nothing left behind."""

import json
import os
import subprocess
import time

import pytest

from conftest import BUILD
from judge_kit import Kit


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


def at(kind, number=1):
    return {"kind": kind, "number": number}


SHORT = {"MLXFAST_HELLO_TIMEOUT_S": "0.5"}
SHORT_REPLY = {"MLXFAST_REPLY_TIMEOUT_S": "0.5"}
SHORT_BARRIER = {"MLXFAST_BARRIER_TIMEOUT_S": "0.5"}

# name of the test: (refusal, script, environment)
FAULTS = {
    "dies-at-hello": ("EngineExited", {"at": at("hello"), "do": "die"}, {}),
    "dies-at-prefill": ("EngineExited", {"at": at("prefill"), "do": "die"}, {}),
    "dies-by-signal": ("EngineExited", {"at": at("free_decode_run"), "do": "kill"}, {}),
    "dies-in-correctness": ("EngineExited", {"at": at("correctness_step", 9), "do": "die"}, {}),
    "dies-at-barrier": ("EngineExited", {"at": at("phase_diagnostics"), "do": "die"}, {}),
    "partial-line-then-eof": ("EngineExited", {"at": at("prefill"), "do": "partial"}, {}),
    "hangs-before-hello": ("HelloTimeout", {"at": at("hello"), "do": "hang"}, SHORT),
    "hangs-at-prefill": ("ReplyTimeout", {"at": at("prefill"), "do": "hang"}, SHORT_REPLY),
    "hangs-with-a-grandchild":
        ("ReplyTimeout", {"at": at("prefill"), "do": "hang_with_grandchild"}, SHORT_REPLY),
    "hangs-at-barrier":
        ("BarrierTimeout", {"at": at("phase_diagnostics"), "do": "hang"}, SHORT_BARRIER),
    "hangs-in-the-timed-window": ("RunTimeout", {"at": at("free_decode_run", 2), "do": "hang"},
                                  {"MLXFAST_RUN_CEILING_S": "0.002"}),
    "drips-bytes": ("ReplyTimeout", {"at": at("prefill"), "do": "drip"}, SHORT_REPLY),
    "floods-stdout": ("StdoutFlood", {"at": at("prefill"), "do": "flood"}, {}),
    "floods-before-hello": ("StdoutFlood", {"at": at("hello"), "do": "flood"}, {}),
    "giant-line": ("LineTooLong", {"at": at("prefill"), "do": "giant"}, {}),
    "giant-hello": ("LineTooLong", {"at": at("hello"), "do": "giant"}, {}),
    "not-json": ("Json", {"at": at("prefill"), "do": "raw", "with": "{nonsense"}, {}),
    "not-utf-8": ("Json", {"at": at("prefill"), "do": "raw",
                           "with": '{"id":1,"nonce":"\xff\xfe","ok":true,"token":1}'}, {}),
    "unknown-key": ("Json", {"at": at("prefill"), "do": "set", "with": {"tokn": 1}}, {}),
    "duplicate-key": ("Json", {"at": at("prefill"), "do": "raw",
                               "with": '{"id":1,"id":1,"nonce":"c0ffee","ok":true,"token":1}'}, {}),
    "token-as-text": ("Json", {"at": at("prefill"), "do": "set", "with": {"token": "7"}}, {}),
    "no-ok": ("Json", {"at": at("prefill"), "do": "set", "with": {"ok": None}}, {}),
    "wrong-nonce": ("NonceMismatch", {"at": at("prefill"), "do": "set",
                                      "with": {"nonce": "other"}}, {}),
    "no-nonce": ("NonceMismatch", {"at": at("prefill"), "do": "set", "with": {"nonce": None}}, {}),
    "wrong-id": ("Protocol", {"at": at("prefill"), "do": "set", "with": {"id": 99}}, {}),
    "answers-early": ("Protocol", {"at": at("prefill"), "do": "twice"}, {}),
    "id-minus-one": ("Engine", {"at": at("prefill"), "do": "set",
                                "with": {"id": -1, "ok": False, "nonce": None,
                                         "error": "cannot read that"}}, {}),
    "not-ok": ("Engine", {"at": at("prefill"), "do": "set",
                          "with": {"ok": False, "error": "out of memory", "token": None}}, {}),
    "no-token": ("Protocol", {"at": at("prefill"), "do": "set", "with": {"token": None}}, {}),
    "seven-top-logits": ("Protocol", {"at": at("correctness_step"), "do": "top_logits",
                                      "with": 7}, {}),
    "cache-not-drained": ("AllocatorCacheNotDrained",
                          {"at": at("phase_diagnostics"), "do": "set",
                           "with": {"cache_memory": 4096}}, {}),
    "wrong-completed-work": ("CompletedWorkMismatch",
                             {"at": at("phase_diagnostics", 5), "do": "set",
                              "with": {"completed_work": 63}}, {}),
    "no-completed-work": ("CompletedWorkMismatch",
                          {"at": at("phase_diagnostics"), "do": "set",
                           "with": {"completed_work": None}}, {}),
    "no-free-run": ("CapabilityNotAdvertised", {"hello": {"capabilities": []}}, {}),
    "hello-id": ("Protocol", {"hello": {"id": 1}}, {}),
    "hello-not-ok": ("Protocol", {"hello": {"ok": False, "error": "no weights"}}, {}),
    "hello-no-nonce": ("Protocol", {"hello": {"nonce": None}}, {}),
    "hello-empty-nonce": ("Protocol", {"hello": {"nonce": ""}}, {}),
    "hello-version-2": ("Protocol", {"hello": {"protocol_version": 2}}, {}),
    "hello-no-version": ("Protocol", {"hello": {"protocol_version": None}}, {}),
    "hello-unknown-key": ("Json", {"hello": {"hallo": 1}}, {}),
    "free-run-count": ("FreeRunConsistency", {"at": at("free_decode_run", 2), "do": "set",
                                              "with": {"tokens": [1, 2, 3]}}, {}),
    "free-run-committed": ("FreeRunConsistency", {"at": at("free_decode_run", 2), "do": "set",
                                                  "with": {"committed_total": 127}}, {}),
    "free-run-drafted": ("FreeRunConsistency", {"at": at("free_decode_run", 2), "do": "set",
                                                "with": {"accepted_total": 5}}, {}),
    "free-run-sum": ("FreeRunConsistency", {"at": at("free_decode_run", 2), "do": "set",
                                            "with": {"acceptance_lengths": [64, 65]}}, {}),
    "free-run-rounds": ("FreeRunConsistency", {"at": at("phase_diagnostics", 4), "do": "set",
                                               "with": {"completed_work": 128}}, {}),
    "free-run-disagreements":
        ("FreeRunConsistency", {"at": at("free_decode_run", 2), "do": "set",
                                "with": {"verify_replay_disagreements": 1}}, {}),
}

TEXTS = {
    "hello-id": "hello had id 1, expected 0",
    "hello-not-ok": "hello was not ok: no weights",
    "hello-no-nonce": "hello did not carry a non-empty nonce",
    "hello-version-2": "hello protocol_version 2 does not match supported 1",
    "seven-top-logits": "expected 8 top_logits, got 7",
    "dies-at-prefill": "engine closed the stream before returning a response (exit status 3)",
    "cache-not-drained": "runtime worker failed to clear the MLX allocator cache at phase start "
                         "(cache_memory=4096 bytes, expected 0)",
    "free-run-count": "TokenCount: ", "free-run-committed": "CommittedTotal: ",
    "free-run-drafted": "DraftedLessThanAccepted: ", "free-run-sum": "AcceptanceSum: ",
    "free-run-rounds": "RoundCounter: ",
    "free-run-disagreements": "VerifyReplayDisagreementsExceedRejected: ",
    "hangs-in-the-timed-window": "run timeout (free_decode_run): the timed round-trip exceeded the "
                                 "1.024s benchd budget",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_by_its_name(kit, fault):
    name, script, env = FAULTS[fault]
    began = time.monotonic()
    result = kit.iterate(script=script, env=env)
    assert time.monotonic() - began < 20, "within its deadline"
    assert result.returncode == 1, result.stderr
    assert f"benchd iterate: {name}: " in result.stderr, result.stderr
    m = kit.assert_failed_score(name)
    assert TEXTS.get(fault, "") in m["error"]
    assert m["passed_correctness"] is False
    kit.assert_nothing_left()


def test_every_name_is_documented(build, run):
    table = run([build / "benchd", "refusals"]).stdout
    for name in {name for name, _, _ in FAULTS.values()} | {"TokenMismatch", "SpecModeNotRunnable"}:
        assert f"`{name}`" in table, name


def test_spec_mode_the_engine_lacks(kit):
    assert kit.iterate("--mtp-depth", "2").returncode == 1
    kit.assert_failed_score("SpecModeNotRunnable")


@pytest.mark.parametrize("echo", [None, {"mode": "serial"}, {"mode": "mtp", "mtp": {"depth": 3}},
                                  {"mode": "mtp", "mtp": {}}, {"mode": "mtp"}])
def test_spec_echo_must_honour_the_request(kit, echo):
    script = {"spec": "mtp", "at": at("free_decode_begin"), "do": "set",
              "with": {"effective_spec": echo}}
    assert kit.iterate("--mtp-depth", "2", script=script).returncode == 1
    kit.assert_failed_score("SpecEchoDivergence")


def test_chatter_on_stdout_is_skipped(kit):
    script = {"at": at("correctness_step", 7), "do": "chatter", "with": 200}
    assert kit.iterate(script=script).returncode == 0


def test_invalid_run_budget(kit):
    assert kit.iterate(env={"MLXFAST_RUN_CEILING_S": "0"}).returncode == 1
    kit.assert_failed_score("RunTimeoutBudgetInvalid")


def test_stderr_is_echoed_and_redacted_and_never_sealed(kit):
    script = {"at": at("prefill"), "do": "stderr", "with": "Expected token 17, sorry"}
    result = kit.iterate(script=script)
    assert "mlxfast-worker: token-validation-failed" in result.stderr
    assert "sorry" not in result.stderr
    script = {"at": at("prefill"), "do": "stderr", "with": "layer 3 is warm"}
    result = kit.iterate(script=script)
    assert "mlxfast-worker: layer 3 is warm" in result.stderr
    assert "layer 3" not in kit.score.read_text()


def test_engine_text_is_scrubbed_before_it_is_sealed(kit):
    text = "cannot open /home/someone/secret/model.bin at https://example.org/x"
    script = {"at": at("prefill"), "do": "set", "with": {"ok": False, "error": text}}
    assert kit.iterate(script=script).returncode == 1
    error = kit.metrics()["error"]
    assert "/home/someone" not in error and "example.org" not in error
    assert "<path>/model.bin" in error


def test_missing_artifacts_still_write_a_failed_score(kit):
    golden = kit.golden.read_bytes()
    kit.golden.unlink()
    assert kit.iterate().returncode == 1
    assert kit.assert_failed_score("IO")["weights_file_count"] == 1
    kit.golden.write_bytes(golden + b"x")
    assert kit.iterate().returncode == 1
    kit.assert_failed_score("GOLDEN-INVALID")
    kit.golden.write_bytes(golden)
    assert kit.iterate(engine=kit.folder / "no-engine").returncode == 1
    m = kit.assert_failed_score("ENGINE-MISSING")
    assert m["local_phases"]["timing"] == "not_run" and m["golden_hash"]
    (kit.weights / "config.json").unlink()
    kit.weights.rmdir()
    assert kit.iterate().returncode == 1
    kit.assert_failed_score("WEIGHTS-MISSING")


def test_engine_that_is_no_program(kit):
    engine = kit.folder / "engine"
    engine.write_text("no program")
    engine.chmod(0o755)
    assert kit.iterate(engine=engine).returncode == 1
    kit.assert_failed_score("SPAWN-FAILED")


def test_commit_that_is_no_id(kit):
    assert kit.iterate(env={"MLXFAST_COMMIT_SHA": "HEAD"}).returncode == 1
    kit.assert_failed_score("COMMIT-INVALID")


def test_a_complete_run_that_did_not_pass(kit):
    script = {"at": at("correctness_step"), "do": "wrong_tokens_from_here", "with": 7}
    result = kit.iterate(script=script)
    assert result.returncode == 1
    assert "benchd iterate: NOT-PASSED: teacher-forced token mismatch: case one" in result.stderr


def test_golden_pin(kit):
    import hashlib
    data = kit.golden.read_bytes()
    sha = hashlib.sha256(data).hexdigest()
    size = str(len(data))
    assert kit.iterate("--golden-sha256", sha, "--golden-bytes", size).returncode == 0
    assert kit.iterate("--golden-sha256", "0" * 64, "--golden-bytes", size).returncode == 1
    kit.assert_failed_score("GOLDEN-PIN-MISMATCH")
    assert kit.iterate("--golden-sha256", sha).returncode == 2


def test_golden_with_a_stored_baseline(kit):
    document = json.loads(kit.golden.read_text())
    document["benchmark"]["baseline_prefill_seconds_per_token"] = 0.1
    document["benchmark"]["baseline_decode_seconds_per_token"] = 0.1
    kit.golden.write_text(json.dumps(document))
    assert kit.iterate().returncode == 1
    kit.assert_failed_score("GOLDEN-CARRIES-STORED-BASELINE")


@pytest.mark.parametrize("arguments, text", [
    (["--mode", "official"], "OFFICIAL-SCORING-DISABLED-FOR-TRACK"),
    (["--mode", "ranked"], "--mode"),
    (["--cool-gate", "--no-cool-gate"], "exclude each other"),
    (["--mtp-depth", "2", "--candidate-spec", '{"mode":"serial"}'], "excludes"),
    (["--mtp-depth", "0"], "--mtp-depth"), (["--mtp-depth", "33"], "--mtp-depth"),
    (["--candidate-spec", '{"mode":'], "--candidate-spec"),
    (["--candidate-spec", '{"mode":"dflash","dflash":{"depth":1}}'],
     "SPEC-MODE-NOT-ALLOWED-FOR-TRACK"),
    (["--engine-resource", "a b=c"], "--engine-resource"),
    (["--engine-resource", "x="], "--engine-resource"),
    (["--engine-resource", "log=again"], "a resource is named once"),
    (["--golden-sha256", "0" * 64, "--golden-bytes", "1", "--golden-sha256", "1" * 64,
      "--golden-bytes", "1"], "GOLDEN-COUNT-MISMATCH"),
    (["--golden", "another.json"], "MULTIPLE-GOLDENS-WITHOUT-PAIRED-PATH"),
    (["--control-golden", "c.json"], "CONTROL-GOLDEN-WITHOUT-PAIRED-PATH"),
    (["--baseline-prefill-spt", "1", "--baseline-decode-spt", "1"],
     "STORED-BASELINE-OVERRIDE-REFUSED"),
    (["--baseline-prefill-spt", "1"], "together"),
    (["--golden", "another.json", "--baseline-workspace", "w"], "MULTIPLE-GOLDENS-WITHOUT-PAIRED-PATH"),
    (["--baseline-workspace", "w", "--baseline-calibration", "c", "--prompt", "a", "--prompt", "b"],
     "GOLDEN-COUNT-MISMATCH"),
    (["--capture-baseline", "b.json"], "not in this version"),
    (["--no-such-flag"], "--no-such-flag"), (["--strict", "--strict"], "--strict"),
])
def test_usage_and_contract_refusals_write_no_score(kit, arguments, text):
    result = kit.iterate(*arguments)
    assert result.returncode == 2, result.stderr
    assert text in result.stderr
    assert not kit.score.exists() and not (kit.folder / "log.json").exists()


@pytest.mark.parametrize("changes, name", [
    ({"seed_tokens": None}, "CONTRACT-INVALID"),
    ({"benchmark_decode_steps": None}, "CONTRACT-INVALID"),
    ({k: None for k in ("correctness_steps", "benchmark_decode_steps",
                        "local_submit_benchmark_decode_steps", "official_prefill_warmup_runs")},
     "WINDOW-SHAPE-UNDECLARED-FOR-TRACK"),
    ({k: None for k in ("golden_model_type", "vocab_size", "num_hidden_layers", "seed_tokens")},
     "MODEL-IDENTITY-UNDECLARED-FOR-TRACK"),
    ({"scores_against_live_control_leg": False}, "OFFICIAL-BASELINE-PENDING-CAPTURE"),
    ({"scores_against_live_control_leg": None}, "scores_against_live_control_leg"),
])
def test_unusable_contract(kit, changes, name):
    kit.write_contract(**changes)
    result = kit.iterate()
    assert result.returncode == 2 and name in result.stderr, result.stderr
    assert not kit.score.exists()


def test_track_id_must_agree(kit):
    assert kit.iterate(env={"MLXFAST_TRACK_ID": "other"}).returncode == 2
    assert kit.iterate(env={"MLXFAST_TRACK_ID": "mock-0-cuda-v1"}).returncode == 0


FIRST, SECOND, OWN = "MLXFAST_QWEN_MTP_TRACK_ID", "MLXFAST_TRACK_ID", "mock-0-cuda-v1"


@pytest.mark.parametrize("env, code", [
    ({FIRST: "", SECOND: OWN}, 0), ({FIRST: "", SECOND: ""}, 0), ({FIRST: OWN, SECOND: OWN}, 0),
    ({FIRST: OWN, SECOND: "other-v1"}, 2), ({FIRST: "", SECOND: "other-v1"}, 2),
    ({FIRST: "other-v1", SECOND: OWN}, 2)])
def test_both_track_variables_count_and_empty_ones_do_not(kit, env, code):
    result = kit.iterate(env=env)
    assert result.returncode == code, result.stderr
    assert ("TRACK-ID-MISMATCH" in result.stderr) == (code == 2)
    recorded = subprocess.run([str(a) for a in [
        BUILD / "record-correctness-golden", "--backend", "mock", "--contract", kit.contract,
        "--out", kit.folder / "again.json", "--prompt-tokens", kit.folder / "p0.json",
        "--case-name", "one"]], capture_output=True, text=True, timeout=60,
        env={**os.environ, **env})
    assert recorded.returncode == (1 if code else 0), recorded.stderr
    assert ("TRACK-ID-MISMATCH" in recorded.stderr) == (code == 2)


def test_deadlines_must_be_numbers(kit):
    result = kit.iterate(env={"MLXFAST_REPLY_TIMEOUT_S": "soon"})
    assert result.returncode == 2 and "MLXFAST_REPLY_TIMEOUT_S" in result.stderr
