"""overlay-timing: a gates-only score and made-up results; every check with its own message, what a good
pair becomes, and what fails the floor and the ceiling. And once with a real job's results."""

import copy
import json
import os
import pathlib
import statistics
import subprocess

import pytest

from conftest import BUILD
from job_kit import COMMIT, JobKit, needs_sandbox, sha256
from judge_kit import Kit

WEIGHTS = "ab" * 32
TAG = "free_run_v1_1"


def pair(serial, candidate, prefill=(2.0, 1.0), tag=TAG):
    return {"parity_ok": True, "serial_seconds_per_token": serial,
            "mtp_seconds_per_token": candidate, "raw_ratio": serial / candidate,
            "order": "serial-first", "serial_timed_mode": tag, "candidate_timed_mode": tag,
            "phase_windows": {"certified": True, "serial_prefill_window_seconds": prefill[0],
                              "candidate_prefill_window_seconds": prefill[1],
                              "serial_decode_window_seconds": serial * 1024,
                              "candidate_decode_window_seconds": candidate * 1024}}


def series(tag):
    return {"serial_leg_timed_mode": tag, "candidate_leg_timed_mode": tag, "homogeneous": True,
            "legs_comparable": True}


def top(pairs, track, tag):
    return {"track_id": track, "tag": "t", "candidate_accepted": True, "commit": COMMIT,
            "weights_hash": WEIGHTS, "accepted_pair_count": len(pairs), "pairs": pairs,
            "timed_series": series(tag)}


def single(prompts, track="mock-0-cuda-v1"):
    """prompts: for each, its pairs as (serial, candidate)."""
    pairs, units = [], []
    for i, times in enumerate(prompts):
        pairs += [pair(*t) for t in times]
        serial, candidate = (statistics.fmean(t[k] for t in times) for k in (0, 1))
        units.append({"prompt_sha256": f"{i:064x}", "parity_ok": True,
                      "accepted_pair_count": len(times), "serial_seconds_per_token_mean": serial,
                      "mtp_seconds_per_token_mean": candidate,
                      "raw_ratio_of_means": serial / candidate, "effective_mean_draft_len": 1.5})
    return {**top(pairs, track, TAG), "per_prompt": units, "aggregate": {
        "raw_decode_speedup_median": statistics.median(u["raw_ratio_of_means"] for u in units)}}


def cohort(times, exponents=(0.25, 0.75), track="mock-0-cuda-v1"):
    tag = "batched_free_run_v1_2_b8"
    pairs = [pair(*t, tag=tag) for t in times]
    serial, candidate = (statistics.fmean(t[k] for t in times) for k in (0, 1))
    windows = [p["phase_windows"] for p in pairs]
    gain = {k: sum(w[f"serial_{k}_window_seconds"] for w in windows) /
            sum(w[f"candidate_{k}_window_seconds"] for w in windows)
            for k in ("prefill", "decode")}
    unit = {"cohort_sha256": "c" * 64, "parity_ok": True, "accepted_pair_count": len(pairs),
            "serial_seconds_per_token_mean": serial, "candidate_seconds_per_token_mean": candidate,
            "raw_ratio_of_means": serial / candidate,
            "composite_scored_exponents": {"prefill_gain_exponent": exponents[0],
                                           "decode_gain_exponent": exponents[1]},
            "composite": {"composite_score": gain["prefill"] ** exponents[0] *
                          gain["decode"] ** exponents[1]}}
    return {**top(pairs, track, tag), "per_cohort": [unit],
            "aggregate": {"raw_decode_speedup_median": serial / candidate}}


class Overlay:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.contract = self.folder / "contract.json"
        (self.folder / "Package.swift").write_text("p")
        self.gates, self.results, self.score = (
            self.folder / n for n in ("gates.json", "results.json", "score.json"))
        self.integrity = self.folder / "benchmark-integrity.json"
        (self.folder / "kit").mkdir()
        kit = Kit(self.folder / "kit")
        kit.record()
        # An engine that is not there: a failed score, which has every key.
        assert kit.iterate(engine="/nonexistent").returncode == 1
        self.metrics = json.loads(kit.score.read_text())["metrics"]
        document = json.loads(kit.contract.read_text())
        self.contract.write_text(json.dumps({
            **document, "paired_flow_retired": False, "official_scoring_enabled": True,
            "scored_batch_size": 8, "prefill_gain_exponent": 0.25, "decode_gain_exponent": 0.75}))
        for key in [k for k in self.metrics if k.startswith(("local_", "contract_"))]:
            del self.metrics[key]
        self.metrics.update(error="", passed_correctness=True, partial_result=True, commit=COMMIT,
                            weights_hash=WEIGHTS, baseline_prefill_seconds_per_token=0.1,
                            baseline_decode_seconds_per_token=0.2, harness_hash=self.harness())

    def harness(self):
        return subprocess.run([BUILD / "benchd", "harness-hash"], cwd=self.folder, text=True,
                              capture_output=True, timeout=30, check=True).stdout.strip()

    def run(self, results, *extra, gates=None, env=None, passed=True, score=None):
        self.gates.write_text(json.dumps({"metrics": {**self.metrics, **(gates or {})},
                                          "passed": passed, "score": score}))
        self.results.write_text(json.dumps(results))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_QWEN")}
        environment.pop("MLXFAST_TRACK_ID", None)
        return subprocess.run(
            [str(a) for a in [BUILD / "benchd", "overlay-timing", "--gates-score", self.gates,
                              "--results", self.results, "--score-path", self.score, "--contract",
                              self.contract, *extra]],
            capture_output=True, text=True, timeout=60, cwd=self.folder,
            env={**environment, **(env or {})})

    def assert_refused(self, result, name, message, code=1):
        assert result.returncode == code, (result.returncode, result.stderr)
        assert result.stderr.startswith(f"benchd overlay-timing: {name}: ")
        assert message in result.stderr, result.stderr
        assert not self.score.exists() and not self.integrity.exists()

    def document(self):
        result = subprocess.run(["sha256sum", "-c", "score.json.sha256"], cwd=self.folder,
                                capture_output=True, text=True, timeout=30)
        assert result.returncode == 0, result.stderr
        record = json.loads(self.integrity.read_text())
        assert record["score_sha256"] == sha256(self.score.read_bytes())
        assert record["score_path"] == "score.json"
        return json.loads(self.score.read_text())


@pytest.fixture
def overlay(tmp_path, build):
    return Overlay(tmp_path)


GOOD = single([[(2.0, 1.0), (2.2, 1.0)], [(3.0, 2.0)], [(1.0, 1.0)]])


# ---- what comes of it ----

def test_one_stream(overlay):
    result = overlay.run(GOOD)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "overlay-timing: score 1.500000\n"
    d = overlay.document()
    assert d["passed"] is True and d["score"] == 1.5
    m = d["metrics"]
    assert m["partial_result"] is False and m["error"] == ""
    assert m["scoring_mode"] == "qwen-native-mtp-paired-decode-only"
    assert m["aggregation"] == "median_of_per_prompt_raw_ratio_of_means"
    assert (m["decode_speedup_floor"], m["decode_speedup_ceiling"]) == (0.9, 5.0)
    assert m["decode_speedup"] == 1.5 and m["passed_decode_speedup_floor"] is True
    assert m["decode_seconds_per_token"] == 1.25
    assert abs(m["baseline_decode_seconds_per_token"] - 2.05) < 1e-12
    assert m["baseline_prefill_seconds_per_token"] == 0.1
    assert m["per_prompt"][1] == {"prompt_sha256": f"{1:064x}", "effective_mean_draft_len": 1.5,
                                  "mtp_seconds_per_token_mean": 2.0}
    assert list(json.loads(overlay.integrity.read_text())) == ["score_path", "score_sha256"]


def test_an_even_number_of_prompts(overlay):
    overlay.run(single([[(2.0, 1.0)], [(3.0, 1.0)]]))
    assert overlay.document()["score"] == 2.5


def test_a_cohort(overlay):
    results = cohort([(2.0, 1.0), (4.0, 2.0)])
    result = overlay.run(results)
    assert result.returncode == 0, result.stderr
    d = overlay.document()
    assert d["score"] == pytest.approx(2 ** 0.25 * 2 ** 0.75, rel=1e-12)
    m = d["metrics"]
    assert m["aggregation"] == "shared_window_composite_prefill_decode_gain"
    assert m["scoring_mode"] == "qwen-native-mtp-paired-decode-only"
    assert (m["prefill_speedup"], m["decode_speedup"]) == (2.0, 2.0)
    assert "per_prompt" not in m


def test_an_integrity_record_is_kept(overlay):
    kept = overlay.folder / "earlier.json"
    kept.write_text('{"weights_path": "w", "score_sha256": "old", "sandbox": "none"}')
    assert overlay.run(GOOD, "--integrity", kept).returncode == 0
    overlay.document()
    record = json.loads(overlay.integrity.read_text())
    assert record["weights_path"] == "w" and record["sandbox"] == "none"
    assert list(record) == ["weights_path", "score_sha256", "sandbox", "score_path"]
    assert overlay.run(GOOD, "--integrity", overlay.integrity).returncode == 0
    overlay.document()
    overlay.score.unlink()
    overlay.integrity.unlink()
    overlay.assert_refused(overlay.run(GOOD, "--integrity", "absent.json"), "IO", "")
    kept.write_text("[]")
    overlay.assert_refused(overlay.run(GOOD, "--integrity", kept), "JSON-FIELD-TYPE", "object")


# ---- a stranger's look at it ----

def packed(overlay, *results):
    """The lines of `benchd verify` of a bundle with these results."""
    bundle = overlay.folder / "bundle.tar"
    result = subprocess.run([str(a) for a in [
        BUILD / "benchd", "bundle", "--score", overlay.score, "--contract", overlay.contract, "--out", bundle,
        *results]], capture_output=True, text=True, timeout=60)
    if result.returncode:
        return result.stderr
    result = subprocess.run([BUILD / "benchd", "verify", bundle], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_a_bundle_with_results(overlay):
    kept = overlay.folder / "earlier.json"
    order = ["score_path", "score_sha256", "weights_path", "weights_sha256", "weights_file_count",
             "weights_byte_count", "golden_path", "golden_sha256", "transform_source_sha256",
             "candidate_executable", "candidate_executable_sha256", "baseline_executable",
             "baseline_executable_sha256", "candidate_executable_resolution", "benchd_executable",
             "benchd_executable_sha256", "candidate_workspace_sha256", "sandbox"]
    known = {"weights_sha256": WEIGHTS, "weights_file_count": 0, "weights_byte_count": 0,
             "golden_sha256": overlay.metrics["golden_hash"], "golden_path": "golden.json"}
    kept.write_text(json.dumps({k: known.get(k, "") for k in order}))
    (overlay.folder / "other").mkdir()
    kit = Kit(overlay.folder / "other")  # what a run under this contract seals of it
    kit.record()
    kit.contract.write_bytes(overlay.contract.read_bytes())
    assert kit.iterate(engine="/nonexistent").returncode == 1
    under = json.loads(kit.score.read_text())["metrics"]
    gates = {"weights_file_count": 0, "weights_byte_count": 0,
             "contract_sha256": under["contract_sha256"], "contract_sources": under["contract_sources"]}
    assert overlay.run(GOOD, "--integrity", kept, gates=gates).returncode == 0
    out = packed(overlay, "--results", overlay.results)
    assert "ok    results.json: its figures are what its 4 pairs give" in out, out
    assert "ok    score: 1.5 is what the pairs of results.json give" in out
    out = packed(overlay)
    assert "-     results.json: not checked: it is not in the bundle" in out, out
    for path, value, words in ((["pairs", 2, "raw_ratio"], 1.4, "OVERLAY-RESULTS-REFUSED"),
                               (["commit"], "f" * 40, "OVERLAY-MISMATCH"),
                               (["pairs", 3, "mtp_seconds_per_token"], 1.0 + 5e-8, "by the pairs of results.json")):
        overlay.results.write_text(json.dumps(changed(path, value)))
        assert words in packed(overlay, "--results", overlay.results)


# ---- the gates on the score ----

def failed(overlay, results, name, text):
    result = overlay.run(results)
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith(f"benchd overlay-timing: {name}: ")
    d = overlay.document()
    assert d["passed"] is False and d["score"] is None
    assert d["metrics"]["error"].startswith(text)
    assert d["metrics"]["partial_result"] is False
    return d["metrics"]


def test_floor(overlay):
    m = failed(overlay, single([[(0.8999, 1.0)]]), "Floor",
               "performance floor failed: decode_speedup=0.899900 floor=0.900000 prefill_speedup=")
    assert m["passed_decode_speedup_floor"] is False
    assert overlay.run(single([[(0.9, 1.0)]])).returncode == 0
    assert overlay.document()["score"] == 0.9


def test_ceiling(overlay):
    failed(overlay, single([[(5.001, 1.0)]]), "Ceiling",
           "performance ceiling failed: decode_speedup=5.001000 ceiling=5.000000")
    assert overlay.run(single([[(5.0, 1.0)]])).returncode == 0


def test_a_cohorts_floor(overlay):
    document = json.loads(overlay.contract.read_text())
    overlay.contract.write_text(json.dumps({**document, "prefill_gain_exponent": 0,
                                            "decode_gain_exponent": 1}))
    failed(overlay, cohort([(0.8, 1.0)], exponents=(0.0, 1.0)), "Floor",
           "performance floor failed: decode_speedup=0.800000")


def test_pair_bound(overlay):
    overlay.assert_refused(overlay.run(single([[(8.1, 1.0), (1.0, 1.0)]])), "PerPairBound",
                           "of pair 1")
    assert overlay.run(single([[(8.0, 1.0), (1.0, 1.0)]])).returncode == 0


# ---- the gates' side ----

@pytest.mark.parametrize("gates, message", [
    ({"partial_result": False}, "it is no gates-only result"),
    ({"passed_correctness": False}, "correctness did not pass"),
    ({"baseline_prefill_seconds_per_token": 0.0}, "its baseline is not finite and above 0"),
    ({"baseline_decode_seconds_per_token": -1.0}, "its baseline is not finite and above 0"),
    ({"harness_hash": "A" * 64}, "its harness hash is not 64 lower-case hex digits"),
    ({"harness_hash": ""}, "its harness hash is not 64 lower-case hex digits"),
    ({"harness_hash": "0" * 64}, "the harness of the working folder is another now"),
])
def test_gates_side(overlay, gates, message):
    overlay.assert_refused(overlay.run(GOOD, gates=gates), "OVERLAY-GATES-REFUSED", message)


def test_gates_side_outcome(overlay):
    overlay.assert_refused(overlay.run(GOOD, passed=False, gates={"error": "x: y"}),
                           "OVERLAY-GATES-REFUSED", "the gates did not pass")
    overlay.assert_refused(overlay.run(GOOD, score=1.0), "OVERLAY-GATES-REFUSED",
                           "it has a score already")
    # an error in a passed score is no score at all
    overlay.assert_refused(overlay.run(GOOD, gates={"error": "x: y"}), "SCORE-INVALID",
                           "must be empty exactly when passed is true")
    (overlay.folder / "Package.swift").write_text("changed")
    overlay.assert_refused(overlay.run(GOOD), "OVERLAY-GATES-REFUSED", "another now")


# ---- both sides ----

@pytest.mark.parametrize("gates, results, message", [
    ({"commit": ""}, {}, "the gates' score names no commit"),
    ({}, {"commit": ""}, "the results name no commit"),
    ({}, {"commit": "f" * 40}, "a different commit"),
    ({"weights_hash": ""}, {}, "the gates' score names no weights_hash"),
    ({}, {"weights_hash": None}, "the results name no weights_hash"),
    ({}, {"weights_hash": "cd" * 32}, "a different weights_hash"),
    ({}, {"track_id": "other-0-cuda-v1"}, "of another track than the contract"),
    ({}, {"contract_sha256": "0" * 64}, "the results were made under another contract"),
    ({"contract_sha256": "0" * 64}, {}, "the gates' score was made under another contract"),
])
def test_both_sides(overlay, gates, results, message):
    overlay.assert_refused(overlay.run({**GOOD, **results}, gates=gates), "OVERLAY-MISMATCH",
                           message)


# ---- the results' side ----

def changed(path, value, base=GOOD):
    d = copy.deepcopy(base)
    at = d
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return d


SUM = "it is not what the pairs add up to"


@pytest.mark.parametrize("path, value, message", [
    (["candidate_accepted"], False, "the candidate was not accepted"),
    (["candidate_accepted"], None, "the candidate was not accepted"),
    (["local_dev"], True, "a developer's run is not scored"),
    (["calibration_bootstrap"], True, "a run for a calibration is not scored"),
    (["accepted_pair_count"], 5, "it is not the number of the pairs"),
    (["timed_series", "homogeneous"], False, "the pairs were not all timed in one way"),
    (["timed_series", "serial_leg_timed_mode"], "teacher_forced_v1",
     "the legs were timed in different ways"),
    (["pairs", 2, "candidate_timed_mode"], "teacher_forced_v1",
     "a pair was timed in another way than the series says"),
    (["pairs", 1, "parity_ok"], False, "a pair's tokens were not the golden's"),
    (["pairs", 1, "serial_seconds_per_token"], 0, "it is no finite number above 0"),
    (["pairs", 1, "mtp_seconds_per_token"], "1", "it is no finite number above 0"),
    (["pairs", 1, "raw_ratio"], 2.2 + 2e-7, "it is not the ratio of the pair's two figures"),
    (["per_prompt", 0, "parity_ok"], False, "its tokens were not the golden's"),
    (["per_prompt", 0, "accepted_pair_count"], 0, "it has too few pairs, or more than there are"),
    (["per_prompt", 2, "accepted_pair_count"], 2, "it has too few pairs, or more than there are"),
    (["per_prompt", 0, "prompt_sha256"], "x", "it is no SHA-256"),
    (["per_prompt", 1, "prompt_sha256"], "0" * 64, "two of them are the same"),
    (["pairs", 0, "prompt_sha256"], "f" * 64, "a pair among its own is of another"),
    (["per_prompt", 0, "serial_seconds_per_token_mean"], 2.1 + 2e-7, SUM),
    (["per_prompt", 0, "mtp_seconds_per_token_mean"], 1 + 2e-7, SUM),
    (["per_prompt", 0, "raw_ratio_of_means"], 2.1 + 2e-7, SUM),
    (["aggregate", "raw_decode_speedup_median"], 1.5 + 2e-7,
     "it is not the median of the ratios of means"),
    (["aggregate", "raw_decode_speedup_median"], None,
     "it is not the median of the ratios of means"),
])
def test_results_side(overlay, path, value, message):
    overlay.assert_refused(overlay.run(changed(path, value)), "OVERLAY-RESULTS-REFUSED", message)


def test_within_the_tolerances(overlay):
    for path in (["pairs", 1, "raw_ratio"], ["per_prompt", 0, "raw_ratio_of_means"],
                 ["aggregate", "raw_decode_speedup_median"]):
        value = GOOD
        for key in path:
            value = value[key]
        assert overlay.run(changed(path, value + 9e-8)).returncode == 0


def test_pairs_that_no_prompt_has(overlay):
    results = copy.deepcopy(GOOD)
    results["per_prompt"].pop()
    results["aggregate"]["raw_decode_speedup_median"] = 1.8
    overlay.assert_refused(overlay.run(results), "OVERLAY-RESULTS-REFUSED",
                           "their pairs are fewer than the results have")


def test_cohort_side(overlay):
    good = cohort([(2.0, 1.0), (4.0, 2.0)])
    score = good["per_cohort"][0]["composite"]["composite_score"]
    unit = ["per_cohort", 0]
    refused = [
        ([*unit, "composite", "composite_score"], score * (1 + 2e-9),
         "it is not what the pairs' windows add up to"),
        ([*unit, "composite"], None, "the cohort has no composite"),
        ([*unit, "composite_scored_exponents", "prefill_gain_exponent"], "x",
         "the exponents are no two numbers"),
        ([*unit, "composite_scored_exponents", "decode_gain_exponent"], 0.5,
         "the exponents are not the contract's"),
        (["pairs", 1, "phase_windows", "certified"], False, "a pair's windows are not certified"),
        ([*unit, "cohort_sha256"], "C" * 64, "it is no SHA-256"),
        ([*unit, "candidate_seconds_per_token_mean"], 3.0, SUM),
        (["pairs", 0, "phase_windows", "serial_prefill_window_seconds"], None,
         "it is no finite number above 0"),
        (["pairs", 0, "phase_windows", "candidate_decode_window_seconds"], 9.0,
         "it is not what the pairs' windows add up to"),
    ]
    for path, value, message in refused:
        overlay.assert_refused(overlay.run(changed(path, value, good)), "OVERLAY-RESULTS-REFUSED",
                               message)
    near = changed([*unit, "composite", "composite_score"], score * (1 + 9e-10), good)
    assert overlay.run(near).returncode == 0


@pytest.mark.parametrize("path, value", [
    (["pairs"], {}), (["per_prompt"], []), (["aggregate"], []), (["timed_series"], "x")])
def test_form(overlay, path, value):
    overlay.assert_refused(overlay.run(changed(path, value)), "RESULTS-INVALID", "")


def test_not_json(overlay):
    overlay.assert_refused(overlay.run([]), "OVERLAY-MISMATCH", "the results name no commit")
    overlay.run(GOOD)
    overlay.score.unlink()
    overlay.integrity.unlink()
    overlay.assert_refused(overlay.run(GOOD, gates={"extra": 1}), "SCORE-INVALID", "extra")


# ---- the environment ----

def test_how_many_pairs_are_needed(overlay):
    """GOOD has four: pool size x pairs per prompt, of cohorts the pairs alone."""
    few = "fewer pairs were accepted than the 5 that are needed"
    size, least = "MLXFAST_QWEN_MTP_POOL_SIZE", "MLXFAST_QWEN_MTP_MIN_PAIRS_PER_PROMPT"
    assert overlay.run(GOOD, env={size: "4"}).returncode == 0
    overlay.score.unlink()
    overlay.integrity.unlink()
    overlay.assert_refused(overlay.run(GOOD, env={size: "5"}), "OVERLAY-RESULTS-REFUSED", few)
    overlay.assert_refused(overlay.run(GOOD, env={least: "2"}), "OVERLAY-RESULTS-REFUSED",
                           "it has too few pairs")
    pairs = cohort([(2.0, 1.0)] * 4)
    overlay.assert_refused(overlay.run(pairs, env={least: "5", size: "1"}),
                           "OVERLAY-RESULTS-REFUSED", few)
    assert overlay.run(pairs, env={least: "4", size: "9"}).returncode == 0


def test_environment(overlay):
    series_name = "MLXFAST_QWEN_MTP_TIMED_SERIES"
    for name in ("MLXFAST_QWEN_MTP_POOL_SIZE", "MLXFAST_QWEN_MTP_MIN_PAIRS_PER_PROMPT"):
        for text in ("0", "x", "-1"):
            overlay.assert_refused(overlay.run(GOOD, env={name: text}), "USAGE", name, 2)
    overlay.assert_refused(overlay.run(GOOD, env={series_name: "teacher_forced_v1"}),
                           "OVERLAY-RESULTS-REFUSED", "asks for another way of timing")
    overlay.assert_refused(overlay.run(GOOD, env={"MLXFAST_QWEN_MTP_TRACK_ID": "a-0-cuda-v1"}),
                           "TRACK-ID-MISMATCH", "")
    assert overlay.run(GOOD, env={series_name: TAG}).returncode == 0


def test_the_contract(overlay):
    document = json.loads(overlay.contract.read_text())
    overlay.contract.write_text(json.dumps({**document, "paired_flow_retired": True}))
    overlay.assert_refused(overlay.run(GOOD), "PAIRED-FLOW-RETIRED-FOR-TRACK", "")
    overlay.contract.write_text(json.dumps({**document, "official_scoring_enabled": False}))
    overlay.assert_refused(overlay.run(GOOD), "OFFICIAL-SCORING-DISABLED-FOR-TRACK", "")


def test_the_sidecar_of_the_results(overlay):
    sidecar = overlay.folder / "results.json.sha256"
    sidecar.write_text("0" * 64 + "  results.json\n")
    overlay.assert_refused(overlay.run(GOOD), "OVERLAY-RESULTS-REFUSED",
                           "the results are not those of their sidecar")
    sidecar.write_text(sha256(overlay.results.read_bytes()) + "  results.json\n")
    assert overlay.run(GOOD).returncode == 0


def test_usage(overlay):
    result = overlay.run(GOOD, "--nonsense")
    assert result.returncode == 2


# ---- the whole flow ----

@needs_sandbox()
@pytest.mark.parametrize("streams", [1, 8])
def test_a_real_jobs_results(tmp_path, build, streams):
    (tmp_path / "job").mkdir()
    kit = JobKit(tmp_path / "job", prompts=streams, scored_batch_size=streams)
    result = kit.measure("--exactness-probe", "none", pairs=1)
    assert result.returncode == 0, result.stderr
    (tmp_path / "overlay").mkdir()
    overlay = Overlay(tmp_path / "overlay")
    overlay.contract = kit.contract
    results = kit.document()
    result = overlay.run(results, gates={"weights_hash": results["weights_hash"]})
    assert result.returncode == 0, result.stderr
    score = overlay.document()["score"]
    sealed = results["per_cohort"][0]["composite"]["composite_score"] if streams == 8 else \
        results["aggregate"]["raw_decode_speedup_median"]
    assert abs(score - sealed) <= 1e-9 * sealed
