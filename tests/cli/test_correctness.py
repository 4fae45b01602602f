"""benchd correctness: its order, its one line on stdout, its exit codes, the six checks of a manifest."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import BUILD
from judge_kit import DEADLINES, ENGINE, Kit



@pytest.fixture
def kit(build, tmp_path):
    made = Kit(tmp_path)
    made.record()
    return made


def correctness(kit, *flags, script=None, env=None, engine=ENGINE, weights=None, timeout=60,
                sandbox=False):
    """Unsandboxed unless asked: the scripted engine writes its log where it may not otherwise."""
    arguments = [BUILD / "benchd", "correctness", "--engine", engine, "--weights",
                 weights or kit.weights, "--golden", kit.golden, "--contract", kit.contract, "--quiet"]
    if not sandbox:
        arguments += ["--no-sandbox", "--engine-resource", f"log={kit.folder / 'log.json'}"]
    if script is not None:
        arguments += ["--engine-resource", f"script={kit.script(**script)}"]
    environment = {**os.environ, **DEADLINES, **(env or {})}
    for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID"):
        if name not in (env or {}):
            environment.pop(name, None)
    return subprocess.run([str(a) for a in [*arguments, *flags]], capture_output=True, text=True,
                          timeout=timeout, env=environment, cwd=kit.folder)


def document(result, passed):
    assert result.returncode == (0 if passed else 1), result.stderr
    found = json.loads(result.stdout)
    assert list(found) == ["passed", "case_count", "first_failing_case", "first_failing_step", "error"]
    assert found["passed"] is passed
    # One line on stderr says the same.
    word = "true" if passed else "false"
    assert f"benchd correctness: passed={word} case_count={found['case_count']}" in result.stderr
    return found


def test_an_honest_engine_passes(kit):
    result = correctness(kit)
    assert result.stdout == ('{"passed":true,"case_count":6,"first_failing_case":null,'
                             '"first_failing_step":null,"error":""}')
    assert result.stderr == "benchd correctness: passed=true case_count=6\n"
    assert "--speculative-protocol" not in kit.log()["argv"]
    kit.assert_nothing_left()


def test_in_the_sandbox(kit):
    """The default: no log, no write, no golden within reach; the answers are the same."""
    document(correctness(kit, sandbox=True), True)
    kit.assert_nothing_left()


@pytest.mark.parametrize("gap, distance, passed", [(None, 5.0, True), (0.25, 0.25, True),
                                                   (0.25, 0.250001, False)])
def test_the_contracts_logit_gap(kit, gap, distance, passed):
    kit.write_contract(mismatch_logit_gap=gap)
    at = {"kind": "correctness_step", "number": 5}
    found = document(correctness(kit, script={"at": at, "do": "near_wrong",
                                              "with": {"gap": distance, "count": 2}}), passed)
    if not passed:
        assert (found["first_failing_case"], found["first_failing_step"]) == ("one", 5)
        assert found["error"] == "teacher-forced mismatch beyond the logit gap"


@pytest.mark.parametrize("at, case, step, error", [
    ({"kind": "correctness", "number": 1}, "free-a", 5, "free-run token mismatch"),
    ({"kind": "correctness", "number": 2}, "says", 5, "behavior token mismatch"),
])
def test_a_wrong_run_is_named(kit, at, case, step, error):
    found = document(correctness(kit, script={"at": at, "do": "wrong_token", "with": 5}), False)
    assert (found["first_failing_case"], found["first_failing_step"]) == (case, step)
    assert found["error"] == error and found["case_count"] == 6


def test_a_wrong_anchor_is_named(kit):
    found = document(correctness(kit, script={"at": {"kind": "correctness_begin", "number": 3},
                                              "do": "wrong_token"}), False)
    assert (found["first_failing_case"], found["first_failing_step"]) == ("anchor-a", 0)
    assert found["error"] == "anchor token mismatch"


@pytest.mark.parametrize("wrong, passed", [(6, True), (7, False)])
def test_the_budget_of_a_base_case(kit, wrong, passed):
    """Ten in a hundred of 64 steps: six may be wrong, seven not."""
    found = document(correctness(kit, script={"at": {"kind": "correctness_step", "number": 11},
                                              "do": "wrong_tokens_from_here", "with": wrong}), passed)
    assert found["first_failing_step"] == (None if passed else 11)
    assert found["error"] == ("" if passed else "teacher-forced token mismatch")


@pytest.mark.parametrize("script, name", [
    ({"at": {"kind": "correctness_step", "number": 3}, "do": "die"}, "EngineExited"),
    ({"at": {"kind": "correctness_step", "number": 3}, "do": "top_logits", "with": 7}, "Protocol"),
    ({"at": {"kind": "correctness_begin"}, "do": "set", "with": {"nonce": "x"}}, "NonceMismatch"),
    ({"at": {"kind": "phase_diagnostics"}, "do": "set", "with": {"cache_memory": 1}},
     "AllocatorCacheNotDrained"),
    ({"at": {"kind": "phase_diagnostics"}, "do": "set", "with": {"completed_work": 1}},
     "CompletedWorkMismatch"),
    ({"hello": {"protocol_version": 2}}, "Protocol"),
])
def test_an_engine_that_fails_is_named(kit, script, name):
    found = document(correctness(kit, script=script), False)
    assert found["error"].startswith(name + ":") and found["first_failing_case"] is None
    assert found["case_count"] == 6
    kit.assert_nothing_left()


# ---- order and misuse ----


def refused(result, code, says):
    assert result.returncode == code, result.stderr
    assert result.stdout == "" and says in result.stderr, result.stderr


def test_pins(kit):
    data = kit.golden.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    pin = ["--golden-sha256", digest, "--golden-bytes", len(data)]
    document(correctness(kit, *pin), True)
    refused(correctness(kit, *pin[:2]), 2, "USAGE")
    refused(correctness(kit, *pin[2:]), 2, "USAGE")
    refused(correctness(kit, "--golden-sha256", "0" * 64, *pin[2:]), 1, "GOLDEN-PIN-MISMATCH")


@pytest.mark.parametrize("flags, says", [
    (["--trusted"], "--trusted needs --manifest"),
    (["--manifest", "/nowhere.json"], "/nowhere.json"),
    (["--engine-resource", "log=twice"], "a resource is named once"),
    (["--no-such-flag"], "USAGE"),
])
def test_misuse(kit, flags, says):
    refused(correctness(kit, *flags), 2, says)
    assert not (kit.folder / "log.json").exists(), "the engine was started"


def test_another_track(kit):
    refused(correctness(kit, env={"MLXFAST_TRACK_ID": "another"}), 2, "TRACK-ID-MISMATCH")


def test_a_bad_golden_comes_before_a_bad_manifest(kit):
    (kit.folder / "m.json").write_text("{}")
    golden = kit.golden.read_text()
    kit.golden.write_text("{}")
    refused(correctness(kit, "--manifest", kit.folder / "m.json"), 1, "GOLDEN-INVALID")
    kit.golden.write_text(golden)
    refused(correctness(kit, "--manifest", kit.folder / "m.json"), 2, "MANIFEST-INVALID")
    assert not (kit.folder / "log.json").exists()


# ---- manifests ----

MANIFEST = {
    "schemaVersion": 1, "runnerID": "test/scripted", "modelTypes": ["mock"], "backend": "scripted",
    "engine": {"supportsPrefixReuse": False, "supportsPagedKV": False, "supportsCompiledDecode": False,
               "supportsPackedPrefill": False, "supportsMTP": False,
               "supportsCompactRecurrentMTPReplay": False},
    "kvBackends": ["contiguous"],
    "decoders": [{"mode": "serial", "drafter": "none", "state": "stateless", "depth": None}],
    "regimes": [{"batch": "single", "timing": "freeRun", "perStreamTiming": False},
                {"batch": "single", "timing": "teacherForced", "perStreamTiming": False}],
    "multimodal": False, "recurrentLayers": False, "requiresKeepMask": False}


def digest_of(manifest):
    return hashlib.sha256(json.dumps(manifest, separators=(",", ":")).encode()).hexdigest()


def with_manifest(kit, *flags, manifest=MANIFEST, **hello):
    path = kit.folder / "manifest.json"
    # Keys sorted and indented: the file's layout does not matter.
    path.write_text(json.dumps(manifest, indent=3, sort_keys=True))
    runner = {"id": "test/scripted", "model_type": "mock", "manifest_sha256": digest_of(MANIFEST),
              "build": "1"}
    return correctness(kit, "--manifest", path, *flags, script={"hello": {"runner": runner, **hello}})


def failed_checks(result):
    assert result.returncode == 1 and result.stdout == "", result.stderr
    mark = "benchd correctness: manifest check FAILED "
    return [line[len(mark):].split(":")[0] for line in result.stderr.splitlines()
            if line.startswith(mark)]


def test_a_manifest_that_holds(kit):
    result = with_manifest(kit)
    document(result, True)
    assert kit.log()["argv"][-2:] == ["--speculative-protocol", "v1.1"]


def test_a_manifest_without_capabilities_keeps_plain_v1(kit):
    plain = {**MANIFEST, "regimes": MANIFEST["regimes"][1:]}
    runner = {"id": "x", "model_type": "mock", "manifest_sha256": digest_of(plain), "build": "1"}
    document(with_manifest(kit, manifest=plain, runner=runner), True)
    assert "--speculative-protocol" not in kit.log()["argv"]


@pytest.mark.parametrize("hello, names", [
    ({"spec_modes": ["serial", "mtp"]}, ["spec_modes_declared"]),
    ({"capabilities": []}, ["capabilities_derived"]),
    ({"capabilities": None}, ["capabilities_derived"]),
    ({"capabilities": ["free_run_decode", "per_stream_timing"]}, ["capabilities_derived"]),
    ({"capabilities": ["free_run_decode", "cohort_reference_replay"]}, ["capabilities_derived"]),
    ({"max_batch_size": 1}, ["max_batch_size_derived"]),
    ({"backend": "cuda"}, ["backend_matches"]),
    ({"backend": None}, ["backend_matches"]),
    ({"runner": None}, ["runner_identity_present"]),
    ({"runner": {"id": "test/scripted", "model_type": "mock", "manifest_sha256": "0" * 64,
                 "build": "1"}}, ["manifest_digest_matches"]),
    ({"spec_modes": ["dflash"], "capabilities": [], "max_batch_size": 8, "backend": "x",
      "runner": None}, ["spec_modes_declared", "capabilities_derived", "max_batch_size_derived",
                        "backend_matches", "runner_identity_present"]),
])
def test_each_manifest_check(kit, hello, names):
    assert failed_checks(with_manifest(kit, **hello)) == names
    kit.assert_nothing_left()


def test_trusted_demands_the_replay(kit):
    assert failed_checks(with_manifest(kit, "--trusted")) == ["capabilities_derived"]
    document(with_manifest(kit, "--trusted",
                           capabilities=["cohort_reference_replay", "free_run_decode"]), True)


def test_batches_and_stream_timing_are_derived(kit):
    regimes = [{"batch": {"upTo": n}, "timing": "freeRun", "perStreamTiming": n == 8} for n in (2, 8)]
    manifest = {**MANIFEST, "regimes": regimes}
    runner = {"id": "x", "model_type": "mock", "manifest_sha256": digest_of(manifest), "build": "1"}
    right = ["per_stream_timing", "batched_free_run_decode", "free_run_decode"]
    document(with_manifest(kit, manifest=manifest, runner=runner, capabilities=right,
                           max_batch_size=8), True)
    assert failed_checks(with_manifest(kit, manifest=manifest, runner=runner, capabilities=right,
                                       max_batch_size=2)) == ["max_batch_size_derived"]


def test_the_digest_is_of_the_canonical_bytes(kit):
    other = {**MANIFEST, "kvBackends": ["contiguous", "paged"]}
    assert failed_checks(with_manifest(kit, manifest=other)) == ["manifest_digest_matches"]


def test_the_golden_is_not_among_the_weights(kit):
    (kit.weights / "notes.json").write_bytes(kit.golden.read_bytes())
    result = correctness(kit)
    assert result.returncode == 1 and "GOLDEN-IN-WEIGHTS" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("trick, name", [("weights_back_while_checked", "WEIGHTS-CHANGED"),
                                         ("engine_appended_while_checked", "ENGINE-CHANGED")])
def test_what_was_judged_is_what_was_named(kit, tmp_path, trick, name):
    folder = tmp_path / "engine"
    folder.mkdir()
    for file in ("hostile_engine.py", "scripted_engine.py"):
        shutil.copy(ENGINE.parent / file, folder / file)
    found = document(correctness(kit, engine=folder / "hostile_engine.py", script={"evil": trick}),
                     False)
    assert name in found["error"]


@pytest.mark.parametrize("wrong, passed", [(0, True), (2, True), (7, False)])
def test_the_report_names_what_diverged(kit, wrong, passed):
    """Also what a base case's leniency lets pass: a drift is a drift."""
    report = kit.folder / "report.json"
    script = {"at": {"kind": "correctness_step", "number": 11}, "do": "wrong_tokens_from_here",
              "with": wrong} if wrong else None
    document(correctness(kit, "--report", report, script=script), passed)
    found = json.loads(report.read_text())
    assert (found["passed"], found["case_count"], found["run_count"]) == (passed, 6, 6)
    assert (found["error"] == "") is passed
    if wrong == 0:
        assert found["diverged"] == []
    else:
        expected = json.loads(kit.golden.read_text())["cases"][0]["expected_tokens"][11]
        (only,) = found["diverged"]
        assert (only["case"], only["step"], only["mismatches"]) == ("one", 11, wrong)
        assert only["expected_token"] == expected != only["actual_token"]


def test_a_report_that_cannot_be_written_is_found_before_the_run(kit):
    refused(correctness(kit, "--report", kit.folder / "absent" / "report.json"), 2, "IO")
    assert not (kit.folder / "log.json").exists()
