"""Cheats of block decoding, each refused by name and its honest twin accepted in the same test; what no
rule refuses and what it gains; the page that lists them. docs/cheats.md tells of each."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import BUILD, QUICK, ROOT
from judge_kit import CONTRACT as SERIAL, DEADLINES

CHEATS = ROOT / "tests" / "cheats"
TOY = CHEATS / "toy_engine.py"
PAGE = ROOT / "docs" / "cheats.md"
VOCAB, SEED, TOKENS, WIDEST = 64, 48, 48, 8
TOLERANCE = 0.0625

BLOCKS = {"protocol": "trusted_dflash_block_v1", "block_size": WIDEST, "maximum_block_size": 16,
          "decode_tokens": TOKENS, "maximum_decode_tokens": 512, "local_iterate_decode_tokens": TOKENS,
          "local_submit_decode_tokens": TOKENS, "min_accepted_pairs": 3, "target_pairs": 4,
          "stall_factor": 4.0, "raw_speedup_min": 0.5, "raw_speedup_max": 5.0}


def fidelity(tolerance, relative, near_tie):
    return {"near_tie_logits": near_tie, "near_tie_per_thousand": 40, "residual_per_thousand": 5,
            "work_binding_absolute": tolerance, "work_binding_relative": relative,
            "conditions": {"largest_honest_drift": 0.0, "nearest_cheat": 100.0,
                           "nearest_cheat_name": "of these tests", "decode_tokens": TOKENS,
                           "machine": "any", "measured_with": "benchd calibrate-fidelity"}}


def write(path, document):
    path.write_text(json.dumps(document))
    return path


class Track:
    """Weights, drafter, contract, goldens of two prompts: "known" and "fresh"."""

    def __init__(self, folder, **toy):
        self.folder = pathlib.Path(folder)
        self.weights, self.drafter = self.folder / "weights", self.folder / "drafter"
        for part, keys in ((self.weights, {"vocab": VOCAB, **toy}),
                           (self.drafter, {"right_per_thousand": 700})):
            part.mkdir()
            write(part / "toy.json", keys)
        self.vocab = toy.get("vocab", VOCAB)
        self.contract = write(self.folder / "contract.json", {
            **SERIAL, "track_id": "toy-dflash-v1", "vocab_size": self.vocab, "seed_tokens": SEED,
            "block_decode": BLOCKS, "fidelity": fidelity(TOLERANCE, 0.01, TOLERANCE)})
        self.golden = {}
        for name, step in (("known", 7), ("fresh", 11)):
            seed = [(i * step + i * i * 3 + 5) % self.vocab for i in range(SEED)]
            self.golden[name] = self.folder / f"{name}.golden.json"
            emitted = write(self.folder / f"{name}.emitted.json", {"seed_tokens": seed})
            self.benchd("dflash-reference", "--engine", TOY, "--emitted", emitted, "--output",
                        self.golden[name], "--generate", TOKENS, "--block-size", WIDEST)
        known = json.loads(self.golden["known"].read_text())
        self.text = known["seed_tokens"] + [known["reference_seed_token"]] + known["emitted_tokens"]
        write(self.drafter / "answers.json", self.text)

    def benchd(self, command, *arguments, sandbox=False, env=None, check=True):
        extra = [] if sandbox else ["--no-sandbox"]
        result = subprocess.run(
            [str(a) for a in (BUILD / "benchd", command, "--weights", self.weights, "--drafter",
                              self.drafter, "--contract", self.contract, "--quiet", *extra,
                              *arguments)],
            capture_output=True, text=True, timeout=120, cwd=self.folder,
            env={**os.environ, **DEADLINES, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})})
        if check:
            assert result.returncode == 0, result.stderr
        return result

    def run(self, engine, prompt="known", *extra, **keys):
        """The report of one leg and the process."""
        result = self.benchd("dflash-benchmark", "--engine", CHEATS / engine, "--reference-engine",
                             TOY, "--golden", self.golden[prompt], *extra, check=False, **keys)
        return json.loads(result.stdout), result

    @functools.lru_cache(maxsize=None)
    def honest(self, prompt="known"):
        report, result = self.run(TOY.name, prompt)
        assert result.returncode == 0, result.stderr
        assert report["all_tokens_matched"] and report["decode_token_count"] == TOKENS
        assert report["max_top2_logit_delta"] == report["max_rejected_tail_logit_delta"] == 0
        return report


@pytest.fixture(scope="module")
def track(tmp_path_factory):
    return Track(tmp_path_factory.mktemp("toy"))


# File: the name that it is refused by.
CAUGHT = {
    "acceptance_inflated.py": "dflash_draft_token_binding_mismatch",
    "blind_acceptance.py": "dflash_token_not_admissible",
    "counters_forged.py": "dflash_row_accounting_mismatch",
    "drafts_hidden.py": "dflash_row_accounting_mismatch",
    "drafts_rewritten.py": "dflash_draft_token_binding_mismatch",
    "early_stop.py": "dflash_empty_block",
    "error_text.py": "dflash_work_binding_logit_mismatch",
    "fabricated_rejection.py": "dflash_fabricated_rejection",
    "fake_drafts.py": "dflash_rejected_row_readout_mismatch",
    "fewer_experts.py": "dflash_token_not_admissible",
    "head_skipped.py": "dflash_token_not_admissible",
    "incomplete_run.py": "EngineExited",
    "invented_tail.py": "dflash_rejected_row_readout_mismatch",
    "lenient_acceptance.py": "dflash_residual_budget_exhausted",
    "lookup_answer.py": "dflash_work_binding_logit_mismatch",
    "offset_forged.py": "dflash_cache_offset_diverged",
    "one_head_row.py": "dflash_work_binding_logit_mismatch",
    "outside_vocabulary.py": "dflash_out_of_vocabulary_token",
    "over_emission.py": "dflash_oversized_block",
    "readout_missing.py": "dflash_work_binding_missing",
    "rows_under_declared.py": "dflash_declared_rows_missing",
    "trunk_truncated.py": "dflash_token_not_admissible",
    "warm_up_refused.py": "Engine",
    "widths_detected.py": "dflash_token_not_admissible",
    "error_text_own.py": "Engine",
    "error_text_spelt.py": "Engine",
}


@pytest.mark.parametrize("cheat", CAUGHT)
def test_refused_by_name(track, cheat):
    track.honest()
    report, result = track.run(cheat)
    assert (report.get("error"), result.returncode) == (CAUGHT[cheat], 1), result.stderr
    assert f"benchd dflash-benchmark: {CAUGHT[cheat]}: " in result.stderr
    assert "parent_measured_seconds_per_token" not in report


def test_near_ties_within_the_budget_are_accepted_and_beyond_it_refused(track, tmp_path):
    """near_ties_spent.py gives the second token of every near tie. dflash_residual_budget_exhausted."""
    report, result = track.run("near_ties_spent.py")
    assert result.returncode == 0 and not report["all_tokens_matched"]
    assert 1 <= report["admissible_near_tie_count"] <= 2  # 40 of 1000 of 48
    many = Track(tmp_path, near_ties_per_thousand=300)
    many.honest()
    report, result = many.run("near_ties_spent.py")
    assert report["error"] == "dflash_residual_budget_exhausted" and result.returncode == 1


# ---- Hidden text in what the judge says ----

def test_no_token_of_the_golden_is_in_a_refusal(tmp_path):
    """error_text.py errs on purpose, error_text_own.py carries the prompt into its own error."""
    wide = Track(tmp_path, vocab=6007, layers=1, experts=1, experts_per_token=1)
    golden = json.loads(wide.golden["known"].read_text())
    secret = {str(t) for t in golden["seed_tokens"] + golden["emitted_tokens"] if t > 512}
    assert len(secret) > 40
    for cheat in ("error_text.py", "error_text_own.py"):
        report, result = wide.run(cheat)
        assert result.returncode == 1 and report["error"] == CAUGHT[cheat]
        said = set(re.findall(r"\d+", result.stdout + result.stderr))
        assert not said & secret
    assert "prompt was" not in result.stderr


# ---- Work in the wrong phase ----

def test_the_window_holds_all_that_is_done_between_its_ends(track):
    """decoded_in_begin.py waits 250 ms in the seed's request, drafted_between.py 5 ms behind each answer:
    what a request does not hold the window does. Both are accepted and have gained nothing."""
    track.honest()
    report, result = track.run("decoded_in_begin.py")
    assert result.returncode == 0 and report["decode_seconds"] >= 0.25
    report, result = track.run("drafted_between.py")
    assert result.returncode == 0
    assert report["decode_seconds"] >= 0.005 * (report["round_count"] - 1)


def test_a_seed_that_was_run_ahead_must_have_been_known(track):
    """prefilled_in_warm.py: accepted on the known prompt, and waits for its prefill on a fresh one."""
    assert track.run("prefilled_in_warm.py")[1].returncode == 0
    report, result = track.run("prefilled_in_warm.py", "fresh")
    assert result.returncode == 0 and report["decode_seconds"] >= 0.2


def test_a_block_that_builds_what_warming_up_should_have(track):
    """warm_up_in_window.py: its first block is longer than the contract's stall_factor times the median."""
    report, result = track.run("warm_up_in_window.py")
    assert result.returncode == 0
    assert report["max_over_median_round_latency"] > 4.0
    assert report["max_block_request_seconds"] >= 2.0 and report["decode_seconds"] >= 2.0


# ---- Known prompts ----

def test_drafts_from_a_table_are_worth_nothing_on_a_fresh_prompt(track):
    """lookup_drafts.py: every draft is accepted on the known prompt, which no rule refuses; on a fresh one it
    is the honest engine."""
    assert track.honest()["accepted_draft_rate"] < 0.9
    report, result = track.run("lookup_drafts.py")
    assert result.returncode == 0 and report["round_count"] < track.honest()["round_count"]
    report, result = track.run("lookup_drafts.py", "fresh")
    assert result.returncode == 0
    assert report["accepted_draft_rate"] == track.honest("fresh")["accepted_draft_rate"]


def test_answers_from_a_table_are_worth_nothing_on_a_fresh_prompt(track):
    report, result = track.run("lookup_answer.py", "fresh")
    assert result.returncode == 0
    assert report["round_count"] == track.honest("fresh")["round_count"]


def test_a_table_that_is_the_golden_is_seen(track, tmp_path):
    copy = tmp_path / "drafter"
    shutil.copytree(track.drafter, copy)
    shutil.copyfile(track.golden["known"], copy / "table.bin")
    report, result = track.run("lookup_drafts.py", "known", env={})
    assert result.returncode == 0
    result = subprocess.run(
        [str(a) for a in (BUILD / "benchd", "dflash-benchmark", "--engine", TOY, "--weights",
                          track.weights, "--drafter", copy, "--contract", track.contract, "--golden",
                          track.golden["known"], "--no-sandbox", "--quiet")],
        capture_output=True, text=True, timeout=60)
    assert json.loads(result.stdout)["error"] == "GOLDEN-IN-WEIGHTS" and result.returncode == 1


def test_memory_across_runs_needs_a_place_to_write(track, tmp_path):
    """memory_across_runs.py: unsandboxed its second run has every draft right; that is what a local number
    is worth. In the sandbox the second run is the first."""
    env = {"TMPDIR": str(tmp_path)}
    first = track.run("memory_across_runs.py", env=env)[0]
    second = track.run("memory_across_runs.py", env=env)[0]
    assert first["accepted_draft_rate"] == track.honest()["accepted_draft_rate"]
    assert second["round_count"] < first["round_count"]
    probe = subprocess.run([BUILD / "benchd", "probe-sandbox", "--json"], capture_output=True,
                           text=True, timeout=60)
    if probe.returncode != 0:
        pytest.skip("the second half needs a sandbox, and none can be built here")
    for folder in (track.folder, *track.folder.parents[:2]):
        folder.chmod(0o755)
    for _ in range(2):
        report, result = track.run("memory_across_runs.py", "known", "--engine-tree", CHEATS,
                                   sandbox=True, env=env)
        assert result.returncode == 0, result.stderr
        assert report["accepted_draft_rate"] == first["accepted_draft_rate"]


# ---- What is not caught ----

def test_what_no_rule_sees(track):
    """tail_hidden.py tells of no rejected row (acceptance looks perfect, the time is what it is),
    digest_invented.py sends any digest, head_pruned.py never computes two ids and is refused only where they
    would have shown."""
    honest = track.honest()
    report, result = track.run("tail_hidden.py")
    assert result.returncode == 0 and report["accepted_draft_rate"] == 1.0
    assert report["round_count"] == honest["round_count"] and report["rejected_draft_total"] == 0
    report, result = track.run("digest_invented.py")
    assert result.returncode == 0 and report["all_tokens_matched"]
    report, result = track.run("head_pruned.py")
    assert report["error"] == "dflash_work_binding_logit_mismatch" and result.returncode == 1
    report, result = track.run("head_pruned.py", "known", "--tokens", 4)
    assert result.returncode == 0


# ---- The real engine ----

NANO, DRAFTER = ROOT / "models" / "laguna-nano", ROOT / "models" / "laguna-nano-dflash"
NANO_TOKENS = 64  # the fewest for which the mean is judged
# The track's own limits, of the widths that it ranks.
NANO_LIMITS = json.loads((ROOT / "tracks/laguna-nano-dflash-v1/contract.json").read_text())["fidelity"]
NANO_BLOCKS = {**BLOCKS, "block_size": 4, "decode_tokens": NANO_TOKENS}


class Nano:
    def __init__(self, folder, limits=NANO_LIMITS):
        self.folder = folder
        prompt = json.loads((ROOT / "tracks/laguna-nano-serial-v1/pool/novel-austen.golden.json")
                            .read_text())["benchmark"]["decode_seed_tokens"][:SEED]
        self.contract = write(folder / "contract.json", {
            **SERIAL, "track_id": "nano-dflash-v1", "golden_model_type": "laguna", "vocab_size": 4096,
            "num_hidden_layers": 8, "seed_tokens": SEED,
            "block_decode": NANO_BLOCKS, "fidelity": limits})
        emitted = write(folder / "emitted.json", {"seed_tokens": prompt})
        self.golden = folder / "golden.json"
        result = self.benchd("dflash-reference", NANO, "--emitted", emitted, "--output",
                             self.golden, "--generate", NANO_TOKENS)
        assert result.returncode == 0, result.stderr

    def benchd(self, command, weights, *arguments, engine=None, env=None):
        return subprocess.run(
            [str(a) for a in (BUILD / "benchd", command, "--engine", engine or BUILD / "bench-worker",
                              "--weights", weights, "--drafter", DRAFTER, "--contract",
                              self.contract, "--no-sandbox", "--quiet", *arguments)],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, **DEADLINES, **(env or {})})

    def run(self, weights=NANO, **keys):
        result = self.benchd("dflash-benchmark", weights, "--reference-engine",
                             BUILD / "bench-worker", "--reference-weights", NANO, "--golden",
                             self.golden, "--tokens", NANO_TOKENS, **keys)
        return json.loads(result.stdout), result

    @functools.lru_cache(maxsize=None)
    def honest(self):
        report, result = self.run()
        assert result.returncode == 0 and report["all_tokens_matched"], result.stderr
        return report

    def calibrate(self, *arguments):
        result = subprocess.run(
            [str(a) for a in (BUILD / "benchd", "calibrate-fidelity", "--reference-engine",
                              BUILD / "bench-worker", "--weights", NANO, "--drafter", DRAFTER,
                              "--contract", self.contract, "--golden", self.golden, "--quiet",
                              "--json", *arguments)], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def nano_track(tmp_path_factory):
    return Nano(tmp_path_factory.mktemp("nano"))


PROXIED = {
    "OneHeadRow": "dflash_work_binding_logit_mismatch",
    "InventedTail": "dflash_rejected_row_readout_mismatch",
    "BlindAcceptance": "dflash_token_not_admissible",
    "HeadSkipped": "dflash_token_not_admissible",
}


@pytest.mark.parametrize("cheat", PROXIED)
def test_a_real_engine_altered(nano_track, cheat):
    """proxy.py; its honest twin passes everything on."""
    env = {"BENCH_WORKER_PROXIED": str(BUILD / "bench-worker")}
    report, result = nano_track.run(engine=CHEATS / "proxy.py", env=env)
    assert result.returncode == 0 and report["all_tokens_matched"], result.stderr
    assert report["max_top2_logit_delta"] == report["max_rejected_tail_logit_delta"] == 0
    report, result = nano_track.run(engine=CHEATS / "proxy.py",
                                    env={**env, "BENCH_WORKER_CHEAT": cheat})
    assert (report.get("error"), result.returncode) == (PROXIED[cheat], 1), result.stderr


# Checkpoints of doctor.py, run by the honest engine against a reference with the true weights.
DOCTORED = {
    "attention_int4_all": "dflash_work_binding_logit_mismatch",
    "experts_per_token_2": "dflash_token_not_admissible",
    "experts_per_token_3": "dflash_work_binding_logit_mismatch",
    "head_int4": "dflash_rejected_row_readout_mismatch",
    "head_pruned": "dflash_rejected_row_readout_mismatch",
    "last_expert_zeroed": "decode_seed_token_mismatch",
    "last_layer_zeroed": "dflash_work_binding_logit_mismatch",
    "last_mlp_zeroed": "dflash_rejected_row_readout_mismatch",
    "window_halved": "dflash_work_binding_logit_mismatch",
}
# Within what another order of sums does: listed in docs/cheats.md as not caught.
MISSED = ("attention_int4", "attention_int8_all", "attention_perturbed", "last_expert_of_one_layer")


def doctored(folder, name):
    result = subprocess.run([sys.executable, CHEATS / "doctor.py", name, NANO, folder],
                            capture_output=True, text=True, timeout=60,
                            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("name", DOCTORED)
def test_doctored_weights_against_the_true_ones(nano_track, tmp_path, name):
    assert nano_track.honest()["max_top2_logit_delta"] == 0
    report, result = nano_track.run(doctored(tmp_path / name, name))
    assert (report.get("error"), result.returncode) == (DOCTORED[name], 1), result.stderr


# Of these the mean alone says as much: no single difference is looked at.
BY_THE_MEAN = ("attention_int4_all", "experts_per_token_2", "experts_per_token_3", "head_int4",
               "last_layer_zeroed", "last_mlp_zeroed", "window_halved")


def test_the_mean_alone_refuses_what_leaves_something_out_everywhere(tmp_path):
    wide = Nano(tmp_path, {**NANO_LIMITS, "near_tie_logits": 50, "near_tie_per_thousand": 1000,
                           "work_binding_absolute": 50, "work_binding_relative": 1.9,
                           "conditions": {**NANO_LIMITS["conditions"], "nearest_cheat": 100}})
    assert wide.honest()["mean_top2_logit_delta"] == 0
    for name in BY_THE_MEAN[::3] if QUICK else BY_THE_MEAN:
        report, result = wide.run(doctored(tmp_path / name, name))
        assert report.get("error") == "dflash_work_binding_logit_mismatch", (name, result.stderr)
        assert result.stderr.endswith(f" mean_over={2 * NANO_TOKENS}\n"), (name, result.stderr)


def test_another_order_of_sums_is_accepted(nano_track, tmp_path):
    """make SUM_ORDER=sequential BUILD=build/drift build/drift/bench-worker: every sum as one chain."""
    worker = BUILD / "drift" / "bench-worker"
    if not worker.exists():
        pytest.skip(f"{worker} is not built (docs/calibration.md)")
    engine = tmp_path / "portable"
    engine.write_text(f'#!/bin/sh\nBENCH_WORKER_CPU=portable exec {worker} "$@"\n')
    engine.chmod(0o755)
    report, result = nano_track.run(engine=engine)
    assert result.returncode == 0, result.stderr
    assert 0 < report["mean_top2_logit_delta"] <= NANO_LIMITS["work_binding_mean"]


def test_what_lies_within_honest_drift_is_accepted(nano_track, tmp_path):
    for name in MISSED:
        assert nano_track.run(doctored(tmp_path / name, name))[1].returncode == 0


# ---- Calibration ----

def test_instruction_sets_drift_by_exactly_nothing(nano_track, tmp_path):
    """Every build of ours that this machine can run, and a cheat beyond them: the middle separates."""
    sets = ["portable"]
    flags = pathlib.Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
    sets += [name for name, flag in (("avx2", " avx2 "), ("avx512", " avx512_bf16"))
             if flag in flags + " "]
    honest = [a for name in sets for a in ("--honest", BUILD / "bench-worker", "--honest-env",
                                           f"MLXFAST_CPU={name}")]
    page = nano_track.calibrate(*honest, "--cheat-weights",
                                doctored(tmp_path / "last_layer_zeroed", "last_layer_zeroed"),
                                "--tokens", 8, "--block-size", 4)
    engines = page["engines"]
    assert [e["kind"] for e in engines] == ["honest"] * len(sets) + ["cheat"]
    for engine, name in zip(engines, sets):
        run = engine["runs"][0]
        assert engine["environment"] == f"MLXFAST_CPU={name}" and run["tokens"] == 8
        assert run["emitted"]["rows"] == 8 and run["near_tie_gap"] == 0 == run["other_tokens"]
        for part in ("emitted", "rejected"):
            assert run[part]["absolute"] == run[part]["relative"] == run[part]["mean"] == 0
    verdict = page["verdicts"]["absolute"]
    assert verdict["largest_honest"] == 0 and verdict["separates"] is True
    assert 0 < verdict["tolerance"] < verdict["nearest_cheat"] == verdict["nearest_caught"]
    assert verdict["nearest_cheat_name"] == "last_layer_zeroed" and verdict["missed"] == []


def calibrate_toy(track, *arguments):
    return subprocess.run(
        [str(a) for a in (BUILD / "benchd", "calibrate-fidelity", "--reference-engine", TOY,
                          "--weights", track.weights, "--drafter", track.drafter, "--contract",
                          track.contract, "--quiet", *arguments)],
        capture_output=True, text=True, timeout=60, env={**os.environ, **DEADLINES})


@pytest.mark.parametrize("drift, separates", [(0.25, True), (8.0, False)])
def test_the_verdict_follows_the_drift(track, tmp_path, drift, separates):
    """An honest engine whose forwards of several rows err by so much, a cheat that errs by about 2."""
    engine = tmp_path / "drifting.py"
    engine.write_text(f"#!/usr/bin/python3\nimport sys\nsys.path.insert(0, {str(CHEATS)!r})\n"
                      "from toy_engine import Engine, serve\n\n\nclass Drifting(Engine):\n"
                      "    def __init__(self, *a):\n        super().__init__(*a)\n"
                      f"        self.model['width_drift'] = {drift}\n\n\nserve(Drifting)\n")
    engine.chmod(0o755)
    result = calibrate_toy(track, "--golden", track.golden["known"], "--golden",
                           track.golden["fresh"], "--honest", engine, "--honest", TOY, "--cheat",
                           CHEATS / "trunk_truncated.py", "--json")
    page = json.loads(result.stdout)
    assert page["decode_tokens"] == TOKENS and page["block_size"] == WIDEST
    drifting, exact, cheat = page["engines"]
    run = drifting["runs"][0]
    assert result.returncode == 0 and 0 < run["emitted"]["absolute"] <= drift
    assert exact["runs"][1]["emitted"]["absolute"] == 0
    verdict = page["verdicts"]["absolute"]
    assert verdict["separates"] is separates
    assert verdict["largest_honest"] == max(max(r[p]["absolute"] for p in ("emitted", "rejected"))
                                            for r in drifting["runs"])
    least = min(max(r[p]["absolute"] for p in ("emitted", "rejected")) for r in cheat["runs"]
                if "refused" not in r)
    assert verdict["nearest_cheat"] == least
    if separates:
        assert verdict["tolerance"] == pytest.approx((verdict["largest_honest"] + least) / 2)
        assert verdict["margin"] == pytest.approx((least - verdict["largest_honest"]) / 2)
    else:
        assert verdict["missed"] == ["trunk_truncated.py"] and "tolerance" not in verdict


def test_calibration_says_what_is_wrong_with_its_arguments(track):
    golden, honest = ("--golden", track.golden["known"]), ("--honest", TOY)
    for arguments, said in ((honest, "--golden"), (golden, "--honest"),
                            ((*golden, *honest, "--honest-env", "SECRET=1"), "SECRET=1"),
                            ((*golden, *honest, "--honest-env", "", "--honest-env", "LANG=C"),
                             "LANG=C")):
        result = calibrate_toy(track, *arguments)
        assert result.returncode == 2 and said in result.stderr and result.stdout == ""


def test_calibration_tells_of_engines_that_a_rule_refuses(track):
    """As an honest engine it is the rule's trouble (exit 1), as a cheat it is caught without a tolerance."""
    golden = ("--golden", track.golden["known"])
    cheat = CHEATS / "offset_forged.py"
    result = calibrate_toy(track, *golden, "--honest", cheat)
    assert result.returncode == 1 and "dflash_cache_offset_diverged" in result.stderr
    result = calibrate_toy(track, *golden, "--honest", TOY, "--cheat", cheat)
    assert result.returncode == 0 and "1/1" in result.stdout
    assert "no cheat ran to its end" in result.stdout


# ---- The page ----

OTHERS = {"near_ties_spent.py", "decoded_in_begin.py", "drafted_between.py", "prefilled_in_warm.py",
          "warm_up_in_window.py", "lookup_drafts.py", "memory_across_runs.py", "tail_hidden.py",
          "digest_invented.py", "head_pruned.py", "golden_from_parent.py", "second_invented.py",
          "logits_shifted.py", "judge_in_league.py"}
# serial_engine.py is the cheats of tests/cli/test_ranked_cheats.py, which holds them to their names.
TOOLS = {"toy_engine.py", "doctor.py", "proxy.py", "serial_engine.py"}


def test_every_cheat_is_in_the_page_with_the_name_that_is_asserted_here():
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        for file in re.findall(r"`([a-zA-Z0-9_]+(?:\.py)?)`", cells[1] if len(cells) > 2 else ""):
            rows[file] = cells[2]
    files = {p.name for p in CHEATS.glob("*.py")} - TOOLS
    assert files == set(CAUGHT) | OTHERS
    for table in (CAUGHT, PROXIED, DOCTORED, dict.fromkeys(OTHERS, ""), dict.fromkeys(MISSED, "")):
        for file, name in table.items():
            assert file in rows, f"docs/cheats.md has no row of {file}"
            assert name in rows[file], f"docs/cheats.md: {file} is refused by {name}"
    asserted = "".join(p.read_text() for p in pathlib.Path(__file__).parent.glob("test_*.py"))
    for file, cell in rows.items():
        for name in re.findall(r"`((?:dflash_)[a-z_]+|[A-Z][A-Za-z-]+)`", cell):
            assert name in asserted, f"docs/cheats.md: no test asserts {name} of {file}"
