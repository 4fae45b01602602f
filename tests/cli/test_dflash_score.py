"""benchd dflash-score and draw-prompt: reports of legs to a sealed score, every refusal of their inputs; the
pool of hidden prompts."""

import collections
import hashlib
import json
import os
import re
import subprocess

import pytest

from conftest import BUILD, ROOT
from dflash_kit import BLOCK_DECODE, BlockKit

SERIAL, BLOCK = 0.5, 0.25


@pytest.fixture(scope="module")
def legs(build, tmp_path_factory):
    """A real probe and a real benchmark of the toy engine, with times that are set: no test depends on
    how fast this machine is."""
    kit = BlockKit(tmp_path_factory.mktemp("score"))
    kit.reference()
    probe = kit.report(kit.probe("--tokens", 32))
    benchmark = kit.report(kit.benchmark("--tokens", 32))
    raw = json.dumps(probe), json.dumps(benchmark)
    return kit, timed(probe, SERIAL), timed(benchmark, BLOCK), raw


def timed(report, seconds):
    return {**report, "parent_measured_seconds_per_token": seconds,
            "decode_seconds": seconds * report["decode_token_count"]}


class Score:
    def __init__(self, legs, folder):
        self.kit, self.probe, self.benchmark, self.raw = legs
        self.folder, self.path = folder, folder / "score.json"
        self.contract = folder / "contract.json"
        self.change_contract()

    def change_contract(self, **changes):
        document = {**json.loads(self.kit.contract.read_text()), "decode_speedup_floor": 0.95, **changes}
        self.contract.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    def golden_sha256(self):
        return hashlib.sha256(self.kit.golden.read_bytes()).hexdigest()

    def pin(self, noop):
        self.change_contract(timed_prompt_pool=[{"sha256": self.golden_sha256(), "noop_decode_speedup": noop}])

    def run(self, *extra, pairs=None, mode="dflash-local-iterate", tripwire="passed", env=None):
        arguments = []
        for i, (probe, benchmark) in enumerate(pairs or [(self.probe, self.benchmark)]):
            for flag, report in (("--probe", probe), ("--benchmark", benchmark)):
                path = self.folder / f"{flag[2:]}{i}.json"
                path.write_text(report if isinstance(report, str) else json.dumps(report))
                arguments += [flag, path]
        if tripwire:
            arguments += ["--tripwire", tripwire]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
        return subprocess.run(
            [str(a) for a in [BUILD / "benchd", "dflash-score", "--contract", self.contract, "--golden",
                              self.kit.golden, "--mode", mode, "--score-path", self.path,
                              *arguments, *extra]],
            capture_output=True, text=True, timeout=60, env={**clean, **(env or {})}, cwd=self.folder)

    def passed(self, result):
        assert result.returncode == 0, result.stderr
        return self.document()

    def failed(self, result, error):
        assert result.returncode == 1, result.stderr
        document = self.document()
        assert document["passed"] is False and document["score"] is None
        assert document["metrics"]["error"].startswith(error), document["metrics"]["error"]
        return document

    def refused(self, result, name, field=None, code=2):
        assert result.returncode == code, result.stderr
        assert result.stderr.startswith(f"benchd dflash-score: {name}: "), result.stderr
        assert result.stderr.count("\n") == 1
        assert field is None or f"field {field}" in result.stderr, result.stderr
        assert not list(self.folder.glob("*integrity*")) and not self.path.exists()

    def document(self):
        text = self.path.read_bytes()
        sidecar = (self.folder / "score.json.sha256").read_text()
        assert sidecar == f"{hashlib.sha256(text).hexdigest()}  score.json\n"
        return json.loads(text)


@pytest.fixture
def score(legs, tmp_path):
    return Score(legs, tmp_path)


LOCAL_KEYS = """mode oracle official_score rankable not_rankable_reason ranked_decode_speedup_floor
public_drift_tripwire_passed decode_tokens block_size all_tokens_matched uses_trained_drafter
serial_seconds_per_token dflash_seconds_per_token dflash_decode_speedup accepted_draft_rate
residual_divergence_count""".split()


def test_local_score_of_an_unpinned_golden(score):
    document = score.passed(score.run())
    metrics = document["metrics"]
    assert set(LOCAL_KEYS) <= set(metrics)
    assert document["score"] == metrics["dflash_decode_speedup"] == SERIAL / BLOCK
    assert metrics["scoring_normalized"] is False and "noop_reference_decode_speedup" not in metrics
    assert metrics["official_score"] is False and metrics["rankable"] is False
    assert metrics["not_rankable_reason"].startswith("a local run")
    assert metrics["mode"] == "dflash-local-iterate" and metrics["decode_tokens"] == 32
    assert metrics["golden_hash"] == score.golden_sha256()
    assert metrics["accepted_draft_rate"] == score.benchmark["accepted_draft_rate"]
    integrity = json.loads((score.folder / "benchmark-integrity.local-iterate.json").read_text())
    assert integrity["score_sha256"] == hashlib.sha256(score.path.read_bytes()).hexdigest()
    assert integrity["golden_sha256"] == score.golden_sha256()
    assert integrity["benchd_executable_sha256"] == hashlib.sha256((BUILD / "benchd").read_bytes()).hexdigest()


def test_score_is_normalised_where_the_golden_is_pinned(score):
    score.pin(0.8)
    document = score.passed(score.run())
    assert document["score"] == document["metrics"]["dflash_decode_speedup_normalized"] == 2.0 / 0.8
    assert document["metrics"]["noop_reference_decode_speedup"] == 0.8
    assert document["metrics"]["dflash_decode_speedup"] == 2.0


def test_floor_is_on_the_normalised_number(score):
    score.pin(2.0)
    assert score.passed(score.run())["score"] == 1.0
    score.pin(2.2)
    failed = score.failed(score.run(), "performance floor failed: decode_speedup=0.909091 floor=0.950000")
    assert failed["metrics"]["passed_decode_speedup_floor"] is False
    assert failed["metrics"]["dflash_decode_speedup"] == 2.0


def test_pairs_are_a_ratio_of_means(score):
    pairs = [(timed(score.probe, 1.0), timed(score.benchmark, 0.5)),
             (timed(score.probe, 2.0), timed(score.benchmark, 0.25))]
    metrics = score.passed(score.run(pairs=pairs))["metrics"]
    assert metrics["dflash_decode_speedup"] == 4.0 and metrics["accepted_pair_count"] == 2
    assert metrics["dflash_decode_speedup_median"] == 5.0 and metrics["dflash_decode_speedup_min"] == 2.0


@pytest.mark.parametrize("serial, good", [(1.25, True), (1.251, False), (0.125, True), (0.1249, False)])
def test_speedups_that_are_not_believed(score, serial, good):
    result = score.run(pairs=[(timed(score.probe, serial), score.benchmark)])
    if good:
        score.passed(result)
    else:
        score.failed(result, "RAW-SPEEDUP-IMPLAUSIBLE: ")


def test_local_submit_has_its_own_tokens_and_integrity_file(score):
    score.refused(score.run(mode="dflash-local-submit"), "DECODE-TOKENS-MISMATCH", "decode_token_count")
    assert score.passed(score.run("--tokens", 32, mode="dflash-local-submit"))["metrics"]["mode"] == \
        "dflash-local-submit"
    assert (score.folder / "benchmark-integrity.json").exists()


def test_tripwire(score, tmp_path):
    diverged = [{"case": "a", "step": 3, "expected_token": 5, "actual_token": 6, "mismatches": 1}]
    report = tmp_path / "tripwire.json"
    report.write_text(json.dumps({"passed": False, "case_count": 2, "run_count": 2, "error": "e",
                                  "diverged": diverged}))
    metrics = score.failed(score.run("--tripwire-report", report, tripwire="drifted"),
                           "PUBLIC-DRIFT-TRIPWIRE: the engine's tokens have drifted")["metrics"]
    assert metrics["passed_correctness"] is False and metrics["public_drift_tripwire_passed"] is False
    assert metrics["public_drift_divergences"] == diverged and metrics["dflash_decode_speedup"] == 2.0
    assert (metrics["first_failing_case"], metrics["first_failing_step"], metrics["expected_token"],
            metrics["actual_token"]) == ("a", 3, 5, 6)
    score.failed(score.run(tripwire=None), "PUBLIC-DRIFT-TRIPWIRE: the engine's tokens were not compared")
    for name in ["score.json", "score.json.sha256", "benchmark-integrity.local-iterate.json"]:
        (score.folder / name).unlink()
    score.refused(score.run("--tripwire-report", report), "USAGE", "--tripwire")
    score.refused(score.run("--tripwire-report", report, tripwire=None), "USAGE", "--tripwire-report")
    report.write_text('{"passed":true}')
    score.refused(score.run("--tripwire-report", report), "BLOCK-REPORT-INVALID", "case_count")
    score.refused(score.run(tripwire="maybe"), "USAGE", "--tripwire")


def test_a_failed_leg_fails_the_score(score):
    error = {"track_id": score.probe["track_id"], "official_score_produced": False,
             "error": "dflash_token_not_admissible: at /home/someone/x, round=3",
             "decode_token_count": 32, "block_size": 4}
    document = score.failed(score.run(pairs=[(score.probe, error)]), "dflash_token_not_admissible: ")
    assert "/home/" not in document["metrics"]["error"]
    assert document["metrics"]["passed_correctness"] is False


def latency(report, ratio):
    """Rounds of which the longest takes so many times the median one, in a time that has room for them."""
    report = timed(report, report["parent_measured_seconds_per_token"])
    if ratio is None:
        return {k: v for k, v in report.items() if k != "max_over_median_round_latency"}
    return {**report, "p50_block_request_seconds": 0.001, "max_block_request_seconds": 0.001 * ratio,
            "max_over_median_round_latency": ratio}


@pytest.mark.parametrize("probe, benchmark, passed, said", [
    (4.0, 4.0, True, None),
    (1.0, 4.1, False, "stalled: the longest round of pair 1's benchmark took 4.10 times its median one, 4 are"),
    (5.5, 4.1, False, "stalled: the longest round of pair 1's probe took 5.50 times"),
    (None, 1.0, None, "whether a leg stalled is not known"),
    (1.0, None, None, "whether a leg stalled is not known"),
    (None, 4.1, False, "pair 1's benchmark took 4.10 times"),
])
def test_a_stalled_leg_is_told_and_decides_nothing(score, probe, benchmark, passed, said):
    result = score.run(pairs=[(latency(score.probe, probe), latency(score.benchmark, benchmark))])
    document = score.passed(result)
    assert document["metrics"]["stall_guardrail_passed"] is passed
    assert document["score"] == SERIAL / BLOCK
    lines = result.stderr.splitlines()
    assert len(lines) == (2 if said else 1)
    assert said is None or said in lines[0]


def test_reports_of_this_machine_are_accepted(score):
    """Unchanged: whatever the speedup is, the reports are sound."""
    assert score.run(pairs=[score.raw]).returncode in (0, 1)
    assert score.document()["metrics"]["timed_benchmark_seconds"] > 0


@pytest.mark.parametrize("side, change, field", [
    ("probe", {"block_size": 4}, "block_size"),
    ("benchmark", {"block_size": 1}, "block_size"),
    ("benchmark", {"track_id": "other-v1"}, "track_id"),
    ("benchmark", {"decode_seconds": 1e9}, "decode_seconds"),
    ("benchmark", {"work_binding_tolerance_absolute": 9.0}, "work_binding_tolerance_absolute"),
    ("benchmark", {"work_binding_logit_deltas": []}, "work_binding_tolerance_absolute"),
    ("benchmark", {"seed_token_count": 25, "target_cache_offset_final": 57}, "seed_token_count"),
    ("benchmark", {"surprise": 1}, "surprise"),
    ("benchmark", {"round_count": None}, "round_count"),
    ("probe", {"round_count": "7"}, "round_count"),
])
def test_reports_that_are_refused(score, side, change, field):
    report = {**getattr(score, side), **change}
    report = {k: v for k, v in report.items() if v is not None}
    pair = (report, score.benchmark) if side == "probe" else (score.probe, report)
    score.refused(score.run(pairs=[pair]), "BLOCK-REPORT-INVALID", field)


def test_other_refusals(score, tmp_path):
    both = [(score.probe, score.benchmark)]
    score.refused(score.run(pairs=[("{", score.benchmark)]), "BLOCK-REPORT-INVALID")
    score.refused(score.run(pairs=[(json.dumps(score.probe).replace("0.5", "NaN", 1), score.benchmark)]),
                  "BLOCK-REPORT-INVALID")
    score.refused(score.run("--probe", tmp_path / "probe0.json"), "USAGE", "--probe")
    score.refused(score.run("--probe", tmp_path / "absent", "--benchmark", tmp_path / "absent"), "IO", code=3)
    score.refused(score.run(mode="official"), "USAGE", "--mode")
    score.refused(score.run("--tokens", 97), "USAGE", "--tokens")
    score.refused(score.run("--tokens", 33), "DECODE-TOKENS-MISMATCH")
    score.refused(score.run(env={"MLXFAST_TRACK_ID": "x-v1"}), "TRACK-ID-MISMATCH")
    score.refused(score.run(env={"MLXFAST_COMMIT_SHA": "x"}), "COMMIT-INVALID")
    different = {**score.benchmark, "block_size": 8}
    score.refused(score.run(pairs=both + [(score.probe, different)]), "BLOCK-REPORT-INVALID", "block_size")
    for group, name in (("block_decode", "BLOCK-DECODE-UNDECLARED-FOR-TRACK"),
                        ("fidelity", "FIDELITY-UNDECLARED-FOR-TRACK"),
                        ("decode_speedup_floor", "SPEEDUP-FLOOR-UNDECLARED-FOR-TRACK")):
        score.change_contract(**{group: None})
        score.refused(score.run(), name, group)
    score.change_contract(timed_prompt_pool=[{"sha256": score.golden_sha256(), "bytes": 1}])
    score.refused(score.run(), "GOLDEN-PIN-MISMATCH")


def test_weights_and_engine_are_sealed(score):
    weights = score.kit.weights
    metrics = score.passed(score.run("--weights", weights, "--engine", BUILD / "benchd"))["metrics"]
    digest = subprocess.run([BUILD / "benchd", "weights-digest", "--weights", weights], capture_output=True,
                            text=True, check=True).stdout.strip()
    assert f'{metrics["weights_hash"]}:{metrics["weights_byte_count"]}:{metrics["weights_file_count"]}' == digest
    integrity = json.loads((score.folder / "benchmark-integrity.local-iterate.json").read_text())
    assert integrity["weights_sha256"] == metrics["weights_hash"]
    assert integrity["candidate_executable_resolution"] == "canonical"


# ---- draw-prompt ----


def write_pool(folder, count=8, **contract):
    (folder / "pool").mkdir(exist_ok=True)
    entries = []
    for i in range(count):
        content = f"prompt {i}".encode()
        (folder / "pool" / f"{i}.json").write_bytes(content)
        entries.append({"r2_path": f"store/{i}.json", "sha256": hashlib.sha256(content).hexdigest(),
                        "bytes": len(content), "noop_decode_speedup": 0.88 + i / 1000})
    path = folder / "contract.json"
    path.write_text(json.dumps({"track_id": "t-v1", "timed_prompt_pool": entries, **contract}))
    return path, entries


@pytest.fixture
def draw(build, run):
    return lambda *arguments: run([build / "benchd", "draw-prompt", "--contract", *arguments],
                                  env={k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")})


def test_a_prompt_is_drawn(draw, tmp_path):
    path, entries = write_pool(tmp_path)
    seen = collections.Counter()
    for _ in range(40):
        result = draw(path, "--pool-dir", tmp_path / "pool", "--json")
        assert result.returncode == 0, result.stderr
        drawn = json.loads(result.stdout)
        entry = entries[drawn.pop("index")]
        assert drawn == {"path": entry["r2_path"], **{k: entry[k] for k in entry if k != "r2_path"}}
        seen[entry["sha256"]] += 1
    assert len(seen) >= 3  # fewer in 40 draws of eight: once in 10^23
    line = draw(path).stdout
    assert re.fullmatch(r"[0-7] [0-9a-f]{64} store/[0-7]\.json\n", line)


def test_a_pool_that_is_not_whole_is_not_drawn_from(draw, tmp_path):
    def refused(name, text, *extra, code=1):
        result = draw(path, *extra)
        assert result.returncode == code and result.stdout == "", result.stdout
        assert result.stderr.startswith(f"benchd draw-prompt: {name}: ") and text in result.stderr

    path, entries = write_pool(tmp_path, 7)
    refused("POOL-INVALID", "7 different digests")
    path, entries = write_pool(tmp_path, 8)
    for key in ("bytes", "noop_decode_speedup", "r2_path"):
        broken = [dict(e) for e in entries]
        del broken[7][key]
        path.write_text(json.dumps({"track_id": "t-v1", "timed_prompt_pool": broken}))
        refused("POOL-INVALID", "timed_prompt_pool[7].")
    path.write_text('{"track_id":"t-v1"}')
    refused("POOL-INVALID", "0 different digests")
    path, entries = write_pool(tmp_path, 8)
    (tmp_path / "pool" / "7.json").write_text("prompt 8")
    refused("GOLDEN-PIN-MISMATCH", "7.json", "--pool-dir", tmp_path / "pool")
    (tmp_path / "pool" / "7.json").unlink()
    refused("IO", "7.json", "--pool-dir", tmp_path / "pool", code=3)
    path.write_text("{")
    refused("CONTRACT-INVALID", "contract.json")


def test_the_published_pool_is_whole(draw, root):
    contract = root / "tracks" / "laguna-xs-2.1-dflash-v1" / "contract.json"
    result = draw(contract)
    assert result.returncode == 0, result.stderr
    assert "pool-" in result.stdout


# ---- the contract in words ----


def test_block_decoding_is_explained(build, run, tmp_path):
    contract = {"track_id": "t-v1", "allowed_modes": ["serial", "dflash"], "block_decode": {
        **BLOCK_DECODE, "calibration": {"serial_seconds_per_token": 0.014873, "band": 0.05,
                                        "decode_tokens": 64, "machine": "m5`bench"}},
        "fidelity": {"near_tie_logits": 4.875, "near_tie_per_thousand": 40, "residual_per_thousand": 5,
                     "work_binding_absolute": 4.75, "work_binding_relative": 0.25,
                     "conditions": {"largest_honest_drift": 4.625, "nearest_cheat": 5.0,
                                    "nearest_cheat_name": "fewer experts", "decode_tokens": 512,
                                    "machine": "a box", "measured_with": "a tool"}}}
    path = tmp_path / "contract.json"

    def page():
        path.write_text(json.dumps(contract))
        result = run([build / "benchd", "explain-contract", path])
        assert result.returncode == 0, result.stderr
        return re.sub(r"\n +", " ", result.stdout)

    text = page()
    for part in ("decodes 64 tokens in rounds of at most 4", "within 5 % of 0.014873 seconds per token",
                 "RAW-SPEEDUP-IMPLAUSIBLE", "4.875 logits below", "That is 3 and 1 of 64 tokens.",
                 "honest builds differ by 4.625 at most", "(fewer experts) differs by 5.",
                 "Token fidelity (dflash-benchmark): granted."):
        assert part in text, part
    assert "On average" not in text
    contract["fidelity"]["work_binding_mean"] = 0.75
    contract["fidelity"]["conditions"].update(largest_honest_mean=0.5, nearest_cheat_mean=0.875)
    text = page()
    for part in ("On average over a run's scored rows, and over the first 256 comparisons of them, they may differ by "
                 "0.75 at most, where there are 128 comparisons or more",
                 "on average: honest builds 0.5 at most, the nearest cheat 0.875."):
        assert part in text, part
    named = set(re.findall(r"\bdflash_[a-z_]+|[A-Z]+(?:-[A-Z]+)+", text))
    known = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "refusals.md").read_text(), re.M))
    assert {n for n in named if n.startswith("dflash_")} and named - known <= {"SHA"}, named - known
    del contract["block_decode"], contract["fidelity"]
    text = page()
    assert "refused, BLOCK-DECODE-UNDECLARED-FOR-TRACK" in text
    assert "refused, FIDELITY-UNDECLARED-FOR-TRACK" in text
    contract["allowed_modes"] = ["serial"]
    assert "BLOCK-DECODE" not in page()
