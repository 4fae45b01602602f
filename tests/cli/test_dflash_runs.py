"""Legs of block decoding end to end: the three commands with the toy engine, every fault of a worker or
a reference under its name, and the real engine on laguna-nano."""

import itertools
import json
import signal
import subprocess
import time

import pytest

from conftest import BUILD, ROOT
from dflash_kit import (BLOCK_DECODE, FAULTY, FIDELITY, MOST, REPORT, SEED, TOKENS, TOY, VOCAB, WIDENED,
                        BlockKit, seed_tokens)
from judge_kit import group_members


@pytest.fixture(scope="module")
def ready(build, tmp_path_factory):
    """A kit with its golden, made once: tests must not change its contract or weights."""
    kit = BlockKit(tmp_path_factory.mktemp("toy"))
    kit.reference("--plan-output", kit.folder / "plan.json")
    return kit


@pytest.fixture
def kit(ready, tmp_path):
    """A fresh kit with the same golden."""
    fresh = BlockKit(tmp_path)
    fresh.golden.write_bytes(ready.golden.read_bytes())
    return fresh


# ---- the golden ----

def test_golden_and_plan(ready):
    golden = json.loads(ready.golden.read_text())
    assert list(golden) == ["seed_tokens", "reference_seed_token", "rows",
                            "reference_self_consistent", "emitted_tokens"]
    assert golden["seed_tokens"] == seed_tokens() and golden["reference_self_consistent"] is True
    assert len(golden["rows"]) == len(golden["emitted_tokens"]) == TOKENS
    for row, token in zip(golden["rows"], golden["emitted_tokens"]):
        assert list(row) == ["sequential_argmax", "declared_frame_argmax", "top2_tokens",
                             "top2_logits", "top1_logit", "emitted_token", "emitted_token_logit"]
        assert row["sequential_argmax"] == row["emitted_token"] == token == row["top2_tokens"][0]
        assert row["top1_logit"] == row["emitted_token_logit"] == row["top2_logits"][0]
    plan = json.loads((ready.folder / "plan.json").read_text())
    assert list(plan) == ["seed_tokens", "emitted", "rounds"]
    assert plan["emitted"] == golden["emitted_tokens"]
    assert sum(r["count"] for r in plan["rounds"]) == TOKENS
    assert all(2 <= r["block_size"] <= 4 and r["count"] <= r["block_size"] for r in plan["rounds"])
    assert len({r["block_size"] for r in plan["rounds"]}) == 3
    widths = [w for r in plan["rounds"] for w in [r["block_size"]] * r["count"]]
    assert [list(row["declared_frame_argmax"]) for row in golden["rows"]] == [[str(w)] for w in widths]


def test_golden_is_the_same_twice_and_for_given_tokens(ready, kit):
    assert kit.reference().returncode == 0
    assert kit.golden.read_bytes() == ready.golden.read_bytes()
    golden = json.loads(ready.golden.read_text())
    kit.emitted.write_text(json.dumps({"seed_tokens": golden["seed_tokens"],
                                       "emitted": golden["emitted_tokens"]}))
    result = kit.reference(generate=None)
    assert kit.golden.read_bytes() == ready.golden.read_bytes()
    summary = json.loads(result.stdout)
    assert summary["reference_self_consistent"] is True and summary["row_count"] == TOKENS
    assert summary["bytes"] == kit.golden.stat().st_size
    kit.reference("--schedule-seed", "5", "--block-size", "7")
    again = json.loads(kit.golden.read_text())
    assert again["emitted_tokens"] == golden["emitted_tokens"] and again != golden


def test_golden_of_other_tokens_is_not_self_consistent(ready, kit):
    golden = json.loads(ready.golden.read_text())
    emitted = [(t + 1) % VOCAB for t in golden["emitted_tokens"]]
    kit.emitted.write_text(json.dumps({"seed_tokens": seed_tokens(), "emitted": emitted}))
    result = kit.reference(generate=None, check=False)
    assert result.returncode == 1 and "GOLDEN-NOT-SELF-CONSISTENT: " in result.stderr
    assert json.loads(kit.golden.read_text())["reference_self_consistent"] is False
    kit.assert_failed(kit.benchmark(), "GOLDEN-NOT-SELF-CONSISTENT")


@pytest.mark.parametrize("content, name, field", [
    ("[]", "RECORD-PROMPT-INVALID", None),
    ({"seed_tokens": seed_tokens()}, "JSON-FIELD-MISSING", "emitted"),
    ({"seed_tokens": seed_tokens(), "emitted": []}, "RECORD-PROMPT-INVALID", "emitted"),
    ({"seed_tokens": seed_tokens(), "emitted": [1] * (MOST + 1)}, "RECORD-PROMPT-INVALID", "emitted"),
    ({"seed_tokens": seed_tokens(), "emitted": [VOCAB]}, "JSON-FIELD-RANGE", "emitted[0]"),
    ({"seed_tokens": seed_tokens(5), "emitted": [1]}, "RECORD-PROMPT-INVALID", "seed_tokens"),
    ({"seed_tokens": seed_tokens(), "emitted": [1], "x": 1}, "JSON-UNKNOWN-KEY", "x"),
])
def test_bad_input_of_the_reference(kit, content, name, field):
    kit.golden.unlink()
    kit.emitted.write_text(content if isinstance(content, str) else json.dumps(content))
    result = kit.reference(generate=None, check=False)
    assert result.returncode == 1 and f"{name}: " in result.stderr and not kit.golden.exists()
    assert str(kit.emitted) in result.stderr
    assert field is None or f"field {field}" in result.stderr


def test_seed_generate_takes_no_more_than_is_there(kit):
    kit.emitted.write_text(json.dumps({"seed_tokens": seed_tokens(5)}))
    result = kit.reference(check=False)
    assert result.returncode == 1 and "RECORD-PROMPT-INVALID: " in result.stderr


# ---- legs that hold ----

def test_benchmark_report(kit):
    report = kit.report(kit.benchmark())
    assert list(report) == REPORT
    assert report["track_id"] == "toy-dflash-v1" and report["official_score_produced"] is False
    assert report["all_tokens_matched"] is True and report["uses_trained_drafter"] is True
    assert report["decode_token_count"] == report["emitted_token_total"] == TOKENS
    assert report["admissible_exact_count"] == report["reference_checked_row_total"] == TOKENS
    assert report["block_size"] == BLOCK_DECODE["block_size"]
    rounds = report["round_count"]
    assert report["target_tail_total"] == report["verify_block_replayed_round_count"] == rounds
    assert report["accepted_draft_total"] + report["rejected_draft_total"] + rounds == \
        report["declared_rows_total"]
    assert 0 < report["accepted_draft_rate"] < 1
    assert report["target_cache_offset_final"] == SEED + TOKENS
    assert report["rejected_rows_reference_checked"] == report["declared_rows_total"] - TOKENS
    assert report["rejected_tail_comparison_count"] == 2 * report["rejected_rows_reference_checked"]
    assert report["work_binding_comparison_count"] == 2 * TOKENS
    for key in REPORT:
        if "delta" in key:
            assert report[key] == 0.0, key
    assert report["decode_seconds"] == pytest.approx(
        report["parent_measured_seconds_per_token"] * TOKENS)
    assert 0 < report["p50_block_request_seconds"] <= report["max_block_request_seconds"]
    assert rounds * report["p50_block_request_seconds"] / 2 <= report["decode_seconds"]
    assert report["work_binding_tolerance_absolute"] == FIDELITY["work_binding_absolute"]
    assert report["reference_engine"] == "the engine itself"


def test_probe_is_the_serial_control(kit):
    kit.fault(log=str(kit.folder / "log"))
    report = kit.report(kit.probe("--reference-engine", TOY, engine=FAULTY))
    assert list(report) == REPORT
    assert report["block_size"] == 1 and report["uses_trained_drafter"] is False
    assert report["round_count"] == report["declared_rows_total"] == TOKENS
    assert report["accepted_draft_rate"] == 0.0 and report["rejected_rows_reference_checked"] == 0
    assert report["reference_engine"] == "another engine"
    seen = json.loads((kit.folder / "log.candidate").read_text())["seen"]
    assert {q["max_block_size"] for q in seen if q["kind"] == "dflash_decode_block"} == {1}


def test_what_a_candidate_is_asked(kit):
    kit.fault(log=str(kit.folder / "log"))
    report = kit.report(kit.benchmark("--tokens", 17, "--schedule-seed", 3, "--block-size", 5,
                                      engine=FAULTY))
    seen = json.loads((kit.folder / "log.candidate").read_text())["seen"]
    assert [q["id"] for q in seen] == list(range(1, len(seen) + 1))
    kinds = [k for k, _ in itertools.groupby(q["kind"] for q in seen)]
    assert kinds == ["dflash_decode_warm", "dflash_decode_begin", "dflash_decode_block",
                     "dflash_phase_diagnostics"]
    assert seen[1]["seed_tokens"] == seed_tokens()
    blocks = [q for q in seen if q["kind"] == "dflash_decode_block"]
    assert len(blocks) == report["round_count"]
    assert all(set(q) == {"id", "kind", "token", "max_block_size"} for q in blocks)
    # SplitMix64 of the seed, in a second implementation: never cut to what remains.
    state, widths, mask = 3, [], (1 << 64) - 1
    for _ in blocks:
        state = (state + 0x9e3779b97f4a7c15) & mask
        z = state
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & mask
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb & mask
        widths.append(2 + (z ^ (z >> 31)) % 4)
    assert [q["max_block_size"] for q in blocks] == widths


@pytest.mark.parametrize("tokens, size", [(1, 16), (2, 2), (MOST, 16), (5, 1)])
def test_any_length_and_width(kit, tokens, size):
    report = kit.report(kit.benchmark("--tokens", tokens, "--block-size", size))
    assert report["emitted_token_total"] == tokens and report["block_size"] == size
    assert report["target_cache_offset_final"] == SEED + tokens


def test_the_report_of_a_leg_goes_to_stdout_only_when_no_file_is_asked(kit):
    result = kit.run("dflash-benchmark", "--golden", kit.golden, "--quiet")
    assert result.returncode == 0 and result.stderr == ""
    assert json.loads(result.stdout)["all_tokens_matched"] is True and not kit.output.exists()


def test_in_the_sandbox(kit):
    report = kit.report(kit.benchmark(sandbox=True))
    assert report["all_tokens_matched"] is True


def test_a_bare_hello_is_enough(kit):
    kit.fault(bare=True)
    assert kit.report(kit.benchmark(engine=FAULTY))["all_tokens_matched"] is True
    kit.fault(bare=True, role="reference")
    assert kit.report(kit.benchmark(engine=FAULTY))["all_tokens_matched"] is True


def test_a_reference_need_not_tell_the_logits_of_what_was_given(kit):
    for number in range(1, 3):
        kit.fault(role="reference", at="dflash_reference_rows", number=number, do="set",
                  **{"with": {"reference_emitted_tokens": None,
                              "reference_emitted_token_logits": None}})
        assert kit.report(kit.benchmark(engine=FAULTY))["admissible_exact_count"] == TOKENS


# ---- tolerances ----

def test_widened_tolerances_list_every_delta(kit):
    report = kit.report(kit.benchmark("--work-binding-tolerance-absolute", "0.5"))
    assert list(report) == REPORT[:-5] + WIDENED + REPORT[-5:]
    assert report["work_binding_tolerance_absolute"] == 0.5
    assert report["work_binding_tolerance_relative"] == 0.25
    assert report["work_binding_logit_deltas"] == [0.0] * (2 * TOKENS)
    assert set(report["work_binding_comparison_widths"]) == {2, 3, 4}
    assert len(report["work_binding_comparison_widths"]) == 2 * TOKENS


def test_drift_beyond_the_tolerance_fails_and_passes_when_widened(ready, tmp_path):
    """Drift of width 2 and more: exact tokens, other logits."""
    kit = BlockKit(tmp_path, model={"width_drift": 0.125, "near_ties_per_thousand": 0})
    kit.golden.write_bytes(ready.golden.read_bytes())
    kit.reference()
    kit.assert_failed(kit.benchmark(), "dflash_work_binding_logit_mismatch")
    report = kit.report(kit.benchmark("--work-binding-tolerance-absolute", "0.5"))
    assert 0.0625 < report["max_top2_logit_delta"] <= 0.125
    assert report["max_top2_logit_delta"] == max(report["work_binding_logit_deltas"])
    ranks = sorted(report["work_binding_logit_deltas"])
    assert report["p50_top2_logit_delta"] == ranks[len(ranks) // 2]
    assert report["p99_top2_logit_delta"] == ranks[len(ranks) * 99 // 100]
    assert report["mean_top2_logit_delta"] == pytest.approx(sum(ranks) / len(ranks))


def test_both_sides_of_the_limit_on_the_mean(ready, tmp_path):
    """Each logit within its tolerance; what they come to together is the contract's limit, or just above it."""
    kit = BlockKit(tmp_path, model={"width_drift": 0.125, "near_ties_per_thousand": 0})

    def limit(mean, absolute=0.125):
        conditions = {**FIDELITY["conditions"], "nearest_cheat": 100}
        if mean:
            conditions.update(largest_honest_mean=0, nearest_cheat_mean=100)
        kit.write_contract(fidelity={**FIDELITY, "work_binding_absolute": absolute, "conditions": conditions,
                                     **({"work_binding_mean": mean} if mean else {})})

    limit(None)
    kit.reference()
    mean = kit.report(kit.benchmark("--tokens", 64))["mean_top2_logit_delta"]
    assert 0 < mean < 0.125
    limit(mean)
    assert kit.report(kit.benchmark("--tokens", 64))["mean_top2_logit_delta"] == mean
    limit(mean * 0.999)
    line = kit.assert_failed(kit.benchmark("--tokens", 64), "dflash_work_binding_logit_mismatch")
    assert line.endswith(" mean_over=128")
    report = kit.report(kit.benchmark("--tokens", 64, "--work-binding-tolerance-mean", "0.125"))
    assert report["mean_top2_logit_delta"] == mean and len(report["work_binding_logit_deltas"]) == 128
    limit(0.0001)
    kit.assert_failed(kit.benchmark("--tokens", 64), "dflash_work_binding_logit_mismatch")
    assert kit.report(kit.benchmark("--tokens", 63))["mean_top2_logit_delta"] > 0.0001  # too few to tell


def test_a_mean_that_has_no_limit_is_not_widened(kit):
    result = kit.benchmark("--work-binding-tolerance-mean", "1")
    assert result.returncode == 2 and "USAGE: the contract has no limit of the mean" in result.stderr


@pytest.mark.parametrize("flag", ["--work-binding-tolerance-absolute",
                                  "--work-binding-tolerance-relative",
                                  "--work-binding-tolerance-mean"])
def test_an_official_run_has_the_contracts_tolerances(kit, flag):
    kit.write_contract(fidelity={**FIDELITY, "work_binding_mean": 0.0625, "conditions": {
        **FIDELITY["conditions"], "largest_honest_mean": 0, "nearest_cheat_mean": 1}})
    result = kit.benchmark(flag, "1", env={"MLXFAST_OFFICIAL_BENCHMARK_RUN": "1"})
    assert result.returncode == 2 and "TOLERANCE-WIDENING-REFUSED: " in result.stderr
    assert flag in result.stderr and result.stdout == "" and not kit.output.exists()
    result = kit.benchmark(flag, "0.01")
    assert result.returncode == 2 and "USAGE: " in result.stderr and "narrowed" in result.stderr


def test_an_official_run_needs_the_sandbox(kit):
    official = {"MLXFAST_OFFICIAL_BENCHMARK_RUN": "1"}
    kit.assert_failed(kit.benchmark(env=official), "SandboxDisabled")
    kit.assert_failed(kit.benchmark(sandbox=True, env={**official, "MLXFAST_NO_SANDBOX": "1"}),
                      "SandboxDisabled")
    result = kit.benchmark(sandbox=True, env=official)
    if subprocess.run([BUILD / "benchd", "probe-sandbox"], capture_output=True).returncode == 0:
        assert kit.report(result)["all_tokens_matched"] is True
    else:
        kit.assert_failed(result, "SANDBOX-UNAVAILABLE")


# ---- misuse ----

@pytest.mark.parametrize("flags", [
    ["--tokens", "0"], ["--tokens", str(MOST + 1)], ["--block-size", "0"], ["--block-size", "17"],
    ["--schedule-seed", "-1"], ["--work-binding-tolerance-absolute", "x"],
])
def test_flags_out_of_range(kit, flags):
    result = kit.benchmark(*flags)
    assert result.returncode == 2 and "USAGE: " in result.stderr and flags[0] in result.stderr
    assert result.stdout == "" and not kit.output.exists()


def test_block_size_within_the_contracts(kit):
    kit.write_contract(block_decode={**BLOCK_DECODE, "maximum_block_size": 4})
    result = kit.benchmark("--block-size", "5")
    assert result.returncode == 2 and "--block-size" in result.stderr
    assert kit.benchmark("--block-size", "4").returncode == 0


@pytest.mark.parametrize("group, name", [
    ("block_decode", "BLOCK-DECODE-UNDECLARED-FOR-TRACK"),
    ("fidelity", "FIDELITY-UNDECLARED-FOR-TRACK"),
])
@pytest.mark.parametrize("command", ["benchmark", "probe", "reference"])
def test_a_contract_without_the_groups(kit, command, group, name):
    kit.write_contract(**{group: None})
    arguments = {"check": False} if command == "reference" else {}
    result = getattr(kit, command)(**arguments)
    assert result.returncode == 2 and f"{name}: " in result.stderr and result.stdout == ""


@pytest.mark.parametrize("what, name", [
    ("weights", "WEIGHTS-MISSING"), ("drafter", "DRAFTER-MISSING"), ("engine", "ENGINE-MISSING"),
    ("reference", "ENGINE-MISSING"),
])
def test_missing_inputs(kit, what, name):
    kwargs, extra = {}, []
    if what == "engine":
        kwargs["engine"] = kit.folder / "nothing"
    elif what == "reference":
        extra = ["--reference-engine", kit.folder / "nothing"]
    else:
        setattr(kit, what, kit.folder / "nothing")
    kit.assert_failed(kit.benchmark(*extra, **kwargs), name)


def test_a_golden_in_reach_of_the_engine(kit):
    (kit.drafter / "copy.json").write_bytes(kit.golden.read_bytes())
    kit.assert_failed(kit.benchmark(), "GOLDEN-IN-WEIGHTS")


def test_a_golden_of_another_vocabulary(kit):
    golden = json.loads(kit.golden.read_text())
    golden["seed_tokens"][3] = VOCAB
    kit.golden.write_text(json.dumps(golden))
    last = kit.assert_failed(kit.benchmark(), "GOLDEN-INVALID")
    assert "seed_tokens[3]" in last


def test_a_drafter_that_changes(kit):
    kit.fault(log=str(kit.drafter / "log"))  # the engine writes into the folder while it runs
    result = kit.benchmark(engine=FAULTY)
    kit.assert_failed(result, "DRAFTER-CHANGED")


# ---- faults of a candidate ----

BLOCK = "dflash_decode_block"


def block_fault(do, argument=None, number=3):
    return {"at": BLOCK, "number": number, "do": do, "with": argument}


def removed(key, number=3):
    return block_fault("set", {key: None}, number)


CANDIDATE = [
    ("NonceMismatch", block_fault("set", {"nonce": "beef"})),
    ("Protocol", block_fault("set", {"token": 1})),
    ("Protocol", block_fault("set", {"acceptance_lengths": [1]})),
    ("Protocol", block_fault("set", {"completed_work": 1})),
    ("Protocol", block_fault("set", {"expert_stats": {
        "expert_cache_hits": 0, "expert_cache_misses": 0, "expert_cache_evictions": 0,
        "expert_bytes_read": 0, "expert_read_seconds": 0.0, "expert_peak_cached_tensors": 0}})),
    ("Protocol", block_fault("set", {"id": 77})),
    ("Protocol", block_fault("twice")),
    ("Json", block_fault("set", {"unknown": 1})),
    ("Json", block_fault("set", {"declared_rows": "3"})),
    ("Engine", block_fault("refuse", "no more")),
    ("EngineExited", block_fault("die")),
    ("dflash_empty_block", removed("tokens")),
    ("dflash_empty_block", block_fault("set", {"tokens": []})),
    ("dflash_oversized_block", block_fault("set", {"tokens": [1] * 40})),
    ("dflash_out_of_vocabulary_token", block_fault("replace", {"tokens": [0, VOCAB]})),
    ("dflash_declared_rows_missing", removed("declared_rows")),
    ("dflash_row_accounting_mismatch", block_fault("set", {"declared_rows": 1 << 40})),
    ("dflash_row_accounting_mismatch", removed("draft_tokens")),
    ("dflash_row_accounting_mismatch", block_fault("set", {"draft_tokens": [1] * 30})),
    ("dflash_row_accounting_mismatch", removed("accepted_draft_count")),
    ("dflash_row_accounting_mismatch", removed("rejected_draft_count")),
    ("dflash_work_binding_missing", removed("per_row_hidden_digest")),
    ("dflash_work_binding_missing", block_fault("shorten", ["per_row_hidden_digest"])),
    ("dflash_work_binding_missing", block_fault("replace", {"per_row_hidden_digest": [0, "00"]})),
    ("dflash_work_binding_missing", removed("per_row_top2_tokens")),
    ("dflash_work_binding_missing", removed("per_row_top2_logits")),
    ("dflash_work_binding_missing", block_fault("replace", {"per_row_top2_tokens": [0, [1]]})),
    ("dflash_work_binding_missing", block_fault("replace", {"per_row_top2_logits": [0, [1.0] * 3]})),
    ("dflash_cache_offset_diverged", removed("target_cache_offset")),
    ("dflash_cache_offset_diverged", block_fault("add", {"target_cache_offset": 1})),
    ("decode_seed_token_mismatch", {"at": "dflash_decode_begin", "do": "set",
                                    "with": {"seed_token": VOCAB + 1}}),
    ("Protocol", {"at": "dflash_decode_begin", "do": "set", "with": {"seed_token": None}}),
    ("CapabilityNotAdvertised", {"hello": {"capabilities": ["dflash_reference"]}}),
    ("CapabilityNotAdvertised", {"hello": {"capabilities": None}}),
    ("Protocol", {"hello": {"protocol_version": None}}),
    ("Protocol", {"hello": {"protocol_version": 2}}),
    ("Protocol", {"bare": True, "hello": {}, "at": "dflash_decode_warm", "do": "set",
                  "with": {"top_logit_margin": 1.0}}),
    ("Json", {"hello": {"declared_rows": 1}}),
]
DIAGNOSTICS = "dflash_phase_diagnostics"
CANDIDATE += [(name, {"at": DIAGNOSTICS, "do": do, "with": argument}) for name, do, argument in [
    ("dflash_row_accounting_mismatch", "add", {"accepted_draft_count": 1}),
    ("dflash_row_accounting_mismatch", "add", {"rejected_draft_count": -1}),
    ("dflash_row_accounting_mismatch", "add", {"rollback_round_count": 1}),
    ("dflash_row_accounting_mismatch", "set", {"rollback_round_count": None}),
    ("dflash_cache_offset_diverged", "add", {"target_cache_offset": 1}),
    ("dflash_cache_offset_diverged", "set", {"target_cache_offset": None}),
    ("EngineExited", "die", None),
]]


@pytest.mark.parametrize("name, fault", CANDIDATE,
                         ids=[f"{i}-{n}" for i, (n, _) in enumerate(CANDIDATE)])
def test_faults_of_a_candidate(kit, name, fault):
    kit.fault(**fault)
    last = kit.assert_failed(kit.benchmark("--block-size", 6, "--schedule-seed", 1,
                                           "--reference-engine", TOY, engine=FAULTY), name)
    assert "expected" not in last or name in ("Protocol", "NonceMismatch"), last


LATE = [
    ("ReplyTimeout", "dflash_decode_warm", {"MLXFAST_REPLY_TIMEOUT_S": "0.3"}),
    ("RunTimeout", "dflash_decode_begin", {"MLXFAST_RUN_CEILING_S": "0.002"}),
    ("RunTimeout", "dflash_decode_block", {"MLXFAST_RUN_CEILING_S": "0.002"}),
    ("BarrierTimeout", "dflash_phase_diagnostics", {"MLXFAST_BARRIER_TIMEOUT_S": "0.3"}),
]


@pytest.mark.parametrize("name, kind, env", LATE, ids=[f"{n}-{k}" for n, k, _ in LATE])
def test_late_answers(kit, name, kind, env):
    kit.fault(at=kind, do="hang")
    kit.assert_failed(kit.benchmark(engine=FAULTY, env=env), name)


def test_no_usable_run_budget(kit):
    kit.assert_failed(kit.benchmark(env={"MLXFAST_RUN_CEILING_S": "0"}), "RunTimeoutBudgetInvalid")
    result = kit.benchmark(env={"MLXFAST_RUN_CEILING_S": "soon"})
    assert result.returncode == 2 and "MLXFAST_RUN_CEILING_S" in result.stderr


# ---- faults of a reference ----

ROWS = "dflash_reference_rows"
COLUMNS = ["reference_k1_argmax", "reference_block_argmax", "reference_top2_tokens",
           "reference_top2_logits", "reference_top1_logits", "reference_frame_widths",
           "reference_frame_argmax", "reference_verify_top2_tokens", "reference_verify_top2_logits"]
EMITTED = ["reference_emitted_tokens", "reference_emitted_token_logits"]


def rows_fault(do, argument=None):
    return {"at": ROWS, "number": 2, "do": do, "with": argument}


REFERENCE = [("ReferenceInvalid", rows_fault("set", {key: None})) for key in COLUMNS + EMITTED]
REFERENCE += [("ReferenceInvalid", rows_fault("shorten", [key])) for key in COLUMNS + EMITTED]
REFERENCE += [("ReferenceInvalid", rows_fault("replace", {key: value})) for key, value in [
    ("reference_k1_argmax", [0, -1]), ("reference_k1_argmax", [0, VOCAB]),
    ("reference_block_argmax", [0, VOCAB]), ("reference_top2_tokens", [0, [1]]),
    ("reference_top2_tokens", [0, [1, 1]]), ("reference_top2_logits", [0, [1.0, 2.0]]),
    ("reference_top1_logits", [0, 1e6]), ("reference_emitted_tokens", [0, 63]),
    ("reference_emitted_token_logits", [0, 1e6]), ("reference_frame_widths", [0, 1]),
    ("reference_frame_argmax", [0, [1]]), ("reference_verify_top2_tokens", [0, [-1, 2]]),
]]
REFERENCE += [
    ("ReferenceInvalid", {"at": "dflash_reference_prefill", "do": "set", "with": {"seed_token": VOCAB}}),
    ("ReferenceInvalid", {"at": "dflash_reference_prefill", "do": "set", "with": {"seed_token": 0}}),
    ("ReferenceFailed", rows_fault("die")),
    ("ReferenceFailed", rows_fault("refuse", "tired")),
    ("ReferenceFailed", rows_fault("set", {"nonce": "beef"})),
    ("ReferenceFailed", rows_fault("set", {"token": 1})),
    ("ReferenceFailed", {"at": "dflash_reference_prefill", "do": "set", "with": {"seed_token": None}}),
    ("ReferenceFailed", {"hello": {"capabilities": ["dflash_block_decode"]}}),
    ("ReferenceFailed", {"hello": {"protocol_version": 3}}),
]


@pytest.mark.parametrize("name, fault", REFERENCE,
                         ids=[f"{i}-{n}" for i, (n, _) in enumerate(REFERENCE)])
def test_faults_of_a_reference(kit, name, fault):
    kit.fault(role="reference", **fault)
    last = kit.assert_failed(kit.benchmark("--block-size", 6, "--reference-engine", FAULTY), name)
    assert "dflash_token" not in last
    assert fault.get("with") is None or name != "ReferenceInvalid" or "field " in last


def test_a_reference_that_hangs(kit):
    kit.fault(role="reference", at=ROWS, do="hang")
    last = kit.assert_failed(kit.benchmark("--reference-engine", FAULTY,
                                           env={"MLXFAST_REPLY_TIMEOUT_S": "1"}), "ReferenceFailed")
    assert "ReplyTimeout: " in last


def test_a_reference_that_differs_from_itself_makes_no_golden_that_counts(kit):
    """The first round, asked again behind the last one, has another frame."""
    kit.reference("--plan-output", kit.folder / "plan.json")
    rounds = json.loads((kit.folder / "plan.json").read_text())["rounds"]
    count = rounds[0]["count"]
    for number, code in [(len(rounds) + 1, 1), (len(rounds) + 2, 0)]:
        kit.fault(role="reference", at=ROWS, number=number, do="set",
                  **{"with": {"reference_frame_argmax": [[7] * count],
                              "reference_block_argmax": [7] * count}})
        result = kit.reference(check=False, engine=FAULTY)
        assert result.returncode == code, result.stderr
        assert ("GOLDEN-NOT-SELF-CONSISTENT: " in result.stderr) == (code == 1)
        assert json.loads(kit.golden.read_text())["reference_self_consistent"] == (code == 0)


# ---- interruption ----

@pytest.mark.parametrize("role, kind", [("candidate", BLOCK), ("reference", ROWS)])
def test_interrupted(kit, role, kind):
    """130, no report, and no process of the worker's group is left."""
    kit.fault(role=role, at=kind, number=2, do="hang", log=str(kit.folder / "log"))
    kit.output.unlink(missing_ok=True)
    process = kit.benchmark(engine=FAULTY, popen=True)
    log = kit.folder / f"log.{role}"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # until the worker is where it hangs
        try:
            if [q["kind"] for q in json.loads(log.read_text())["seen"]].count(kind) == 2:
                break
        except (OSError, ValueError):
            pass
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == "" and not kit.output.exists()
    assert "Interrupted: " in err.strip().splitlines()[-1]
    assert group_members(json.loads(log.read_text())["pid"]) == []


# ---- similarity ----

def similarity(run, *arguments):
    return run([BUILD / "benchd", "analyze-ngram-similarity", *arguments])


def test_similarity_of_a_text_that_repeats_itself(run, tmp_path):
    golden = tmp_path / "g.json"
    golden.write_text(json.dumps({"seed_tokens": [1, 2, 3, 1, 2], "reference_seed_token": 3,
                                  "emitted_tokens": [1, 2, 9]}))
    result = similarity(run, "--golden", golden)
    report = json.loads(result.stdout)
    assert result.returncode == 1 and "3 of 4" in result.stderr
    assert list(report) == [
        "context_token_count", "continuation_token_count", "orders", "longest_match_opportunity_count",
        "longest_match_opportunity_rate", "longest_match_most_recent_hit_count",
        "longest_match_most_recent_hit_rate", "optimistic_any_order_hit_count",
        "optimistic_any_order_hit_rate"]
    assert (report["context_token_count"], report["continuation_token_count"]) == (5, 4)
    assert [o["order"] for o in report["orders"]] == [1, 2, 3]
    assert report["longest_match_most_recent_hit_count"] == 3
    assert report["longest_match_most_recent_hit_rate"] == 0.75
    assert similarity(run, "--golden", golden, "--max-hit-rate", "0.75").returncode == 0
    assert similarity(run, "--golden", golden, "--max-hit-rate", "0.74").returncode == 1
    only = json.loads(similarity(run, "--golden", golden, "--orders", "3").stdout)
    assert [o["order"] for o in only["orders"]] == [3]
    assert only["longest_match_opportunity_count"] == 3  # but for the first, [3 1 2]


def test_similarity_of_a_text_that_does_not(run, tmp_path):
    golden = tmp_path / "g.json"
    golden.write_text(json.dumps({"benchmark": {
        "decode_seed_tokens": list(range(100)), "expected_decode_seed_token": 100,
        "expected_decode_tokens": list(range(101, 400))}}))
    report = json.loads(similarity(run, "--golden", golden).stdout)
    assert report["continuation_token_count"] == 129
    assert report["longest_match_opportunity_count"] == 0


def test_similarity_of_the_public_golden(run, shared_data):
    """A continuation that copies its own prompt: it must not be in a pool."""
    result = similarity(run, "--golden", shared_data / "laguna-public-golden.json", "--orders",
                        "1,2,3", "--max-hit-rate", "0.03")
    assert result.returncode == 1
    assert json.loads(result.stdout)["continuation_token_count"] == 129


@pytest.mark.parametrize("flags, code, name", [
    (["--orders", "4"], 2, "USAGE"), (["--orders", "2,1"], 2, "USAGE"), (["--orders", "1,"], 2, "USAGE"),
    (["--orders", ""], 2, "USAGE"), (["--max-hit-rate", "1.5"], 2, "USAGE"), ([], 3, "GOLDEN-INVALID"),
])
def test_similarity_misused(run, tmp_path, flags, code, name):
    golden = tmp_path / "g.json"
    golden.write_text("[]")
    result = similarity(run, "--golden", golden, *flags)
    assert result.returncode == code and f"{name}: " in result.stderr and result.stdout == ""
    golden.write_text('{"cases": []}')
    assert similarity(run, "--golden", golden, *flags).returncode == code


# ---- the real engine ----

NANO = ROOT / "models" / "laguna-nano"
NANO_DRAFTER = ROOT / "models" / "laguna-nano-dflash"
PROMPT = ROOT / "tracks/laguna-nano-serial-v1/prompts/novel-austen.txt"


@pytest.fixture(scope="module")
def nano_kit(build, tmp_path_factory):
    """laguna-nano: its own golden over a prompt that passes its window."""
    kit = BlockKit(tmp_path_factory.mktemp("nano"), vocab_size=4096, seed_tokens=120,
                   golden_model_type="laguna", num_hidden_layers=8, yarn_magnitude="attention_factor")
    kit.weights, kit.drafter = NANO, NANO_DRAFTER
    ids = [int(t) for t in PROMPT.read_text().split()]
    kit.emitted.write_text(json.dumps({"seed_tokens": ids}))
    arguments = ["--emitted", kit.emitted, "--output", kit.golden, "--generate", "40",
                 "--seed-generate", "120", "--block-size", "16"]
    result = kit.run("dflash-reference", *arguments, engine=build / "bench-worker")
    assert result.returncode == 0, result.stderr
    return kit


@pytest.mark.parametrize("size", [2, 7, 16])
def test_nano_blocks_are_the_references_to_the_last_bit(build, nano_kit, size):
    report = nano_kit.report(nano_kit.benchmark("--block-size", size, "--tokens", "96",
                                                engine=build / "bench-worker"))
    assert report["all_tokens_matched"] is True and report["admissible_exact_count"] == 96
    assert report["max_top2_logit_delta"] == report["max_rejected_tail_logit_delta"] == 0.0
    assert report["rejected_rows_reference_checked"] > 0
    assert report["accepted_draft_total"] > 0


def test_nano_serial_control(build, nano_kit):
    report = nano_kit.report(nano_kit.probe(engine=build / "bench-worker"))
    assert report["round_count"] == TOKENS and report["max_top2_logit_delta"] == 0.0


def test_nano_in_the_sandbox(build, nano_kit):
    """The drafter is bound like the weights."""
    report = nano_kit.report(nano_kit.benchmark(engine=build / "bench-worker", sandbox=True))
    assert report["all_tokens_matched"] is True
