"""Whole jobs of the older flow on made-up trees with a toy worker: what is sealed, what is retried, who is
to blame, and cohorts. The toy's windows take times far apart, so that no verdict hangs on the machine."""

import json
import signal

import pytest

from conftest import QUICK
from job_kit import COMMIT, JobKit, error_name, needs_sandbox, sha256
from judge_kit import group_members

official = needs_sandbox()


@pytest.fixture
def kit(tmp_path, build):
    return JobKit(tmp_path)


def cohort_kit(folder, **manners):
    kit = JobKit(folder, prompts=8, scored_batch_size=8)
    for tree in (kit.baseline, kit.candidate):
        kit.manners(tree, **manners)
    return kit


def mean(values):
    return sum(values) / len(values)


def near(a, b):
    return abs(a - b) <= 1e-12 * abs(b)


# ---- accepted jobs ----

@official
def test_official_job(kit):
    """In the sandbox, with the quiet gates, the pool, the commit and the calibration."""
    result = kit.measure(pairs=1)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("measure-job: accepted, 1 pairs, score ")
    record = kit.assert_sealed()
    assert record["candidate_executable"] == "candidate/.build/release/mlxfast-runtime-worker"
    assert record["golden_sha256"] == sha256(kit.goldens[0].read_bytes())
    assert record["contract_sha256"] == sha256(kit.contract.read_bytes())
    assert record["candidate_workspace_sha256"] == record["baseline_workspace_sha256"]
    assert record["gates_producer"] == "undeclared"
    d = kit.document()
    assert d["candidate_accepted"] is True and d["parity_all_ok"] is True
    assert d["commit"] == COMMIT and d["weights_hash"] == record["weights_sha256"]
    assert d["rejected_pairs"] == [] and "rejection" not in d and "score_refused" not in d
    assert (d["timed_mode"], d["timed_regime"]) == ("free_run_v1_1", "free-run-v1_1-timed")
    assert d["mode"] == "qwen-native-mtp-paired-decode-only"
    assert d["prefill_component"] == "none" and d["serial_control_depth"] == 0
    assert d["pairs"][0]["serial_gate_state"] == "skipped-no-reader"
    assert [(g["leg"], g["phase"]) for g in d["gates"]] == [("control", "decode"),
                                                            ("candidate", "decode")]
    assert d["exactness_probe"] == {"mode": "once", "prompts_checked": 1, "tokens_checked": 129}
    thermal = d["provenance"]["thermal"]
    assert thermal["cool_gate_c"] == 120 and thermal["cool_gate_c_source"] == "contract"
    assert d["provenance"]["sandbox"].startswith("bubblewrap+seccomp")
    assert thermal["loaded_util"] == 0.7 and thermal["loaded_util_source"] == "default"


def test_two_prompts_and_their_arithmetic(tmp_path, build):
    kit = JobKit(tmp_path, prompts=2)
    result = kit.local("--tag", "t", drop=("--tag",), env={"GPU_LOADED_UTIL": "0.5"})
    assert result.returncode == 0, result.stderr
    d = kit.document()
    kit.assert_sealed()
    assert d["local_dev"] is True and d["prompt_count"] == 2 and d["accepted_pair_count"] == 4
    assert [p["order"] for p in d["pairs"]] == ["serial-first", "mtp-first"] * 2
    digests = [sha256(p.read_bytes()) for p in kit.goldens]
    assert [p["prompt_sha256"] for p in d["pairs"]] == [digests[0]] * 2 + [digests[1]] * 2
    ratios = []
    for i, unit in enumerate(d["per_prompt"]):
        pairs = d["pairs"][2 * i:2 * i + 2]
        serial = mean([p["serial_seconds_per_token"] for p in pairs])
        candidate = mean([p["mtp_seconds_per_token"] for p in pairs])
        assert unit["prompt_sha256"] == digests[i] and unit["accepted_pair_count"] == 2
        assert near(unit["serial_seconds_per_token_mean"], serial)
        assert near(unit["mtp_seconds_per_token_mean"], candidate)
        assert near(unit["raw_ratio_of_means"], serial / candidate)
        assert unit["noop_reference_decode_speedup"] == 0.994
        assert unit["effective_spec"] == {"mode": "serial", "depth": 0}
        assert unit["effective_mean_draft_len"] == 1
        ratios.append(serial / candidate)
    a = d["aggregate"]
    assert near(a["raw_decode_speedup_median"], mean(ratios))
    assert near(a["mtp_decode_speedup_median"], mean(ratios) / 0.994)
    assert near(a["mtp_decode_speedup_min"], min(ratios) / 0.994)
    assert near(a["baseline_serial_seconds_per_token_mean"],
                mean([p["serial_seconds_per_token"] for p in d["pairs"]]))
    for p in d["pairs"]:
        w = p["phase_windows"]
        assert w["certified"] is True and w["cross_check"] == "agreed"
        assert (w["prefill_token_total"], w["decode_token_total"]) == (32, 128)
        assert near(w["serial_decode_window_seconds"] / 128, p["serial_seconds_per_token"])
        assert near(p["raw_ratio"], p["serial_seconds_per_token"] / p["mtp_seconds_per_token"])
    assert d["provenance"]["sandbox"] == "none (switched off)"
    assert d["provenance"]["thermal"]["loaded_util"] == 0.5
    assert d["provenance"]["thermal"]["loaded_util_source"] == "environment"


def test_speculation(kit):
    kit.manners(kit.candidate, spec=["mtp"])
    result = kit.local("--mtp-depth", "2", pairs=1)
    assert result.returncode == 0, result.stderr
    d = kit.document()
    assert d["mtp_depth"] == 2
    assert d["per_prompt"][0]["effective_spec"] == {"mode": "mtp", "depth": 2}
    assert near(d["per_prompt"][0]["effective_mean_draft_len"], 128 / 43)


def test_heads_reach_the_candidate_alone(kit, tmp_path):
    log, head = tmp_path / "starts", tmp_path / "head"
    head.mkdir()
    for tree in (kit.baseline, kit.candidate):
        kit.manners(tree, log=str(log), spec=["mtp"])
    result = kit.local("--mtp-depth", "2", "--exactness-probe", "none", pairs=1,
                       env={"QMTP_HEAD_DIR": head})
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line)["argv"] for line in log.read_text().splitlines()]
    with_head = [argv for argv in lines if f"mtp_head={head}" in argv]
    assert with_head and all("/candidate/" in argv[0] for argv in with_head)
    assert any("/baseline/" in argv[0] for argv in lines)


def test_teacher_forced_where_one_engine_has_no_free_run(kit):
    kit.manners(kit.baseline, free_run=False)
    result = kit.local("--tokens", "130", pairs=1)
    assert result.returncode == 0, result.stderr
    d = kit.document()
    assert (d["timed_mode"], d["timed_regime"]) == ("teacher_forced_v1", "tf-serial-timed")
    assert d["pairs"][0]["phase_windows"]["decode_token_total"] == 130
    assert "effective_mean_draft_len" not in d["per_prompt"][0]
    # the default of 512 tokens is more than the tape has
    kit.results.unlink()
    kit.assert_refused(kit.local(pairs=1), "TAPE-INVALID")
    # speculation cannot be timed so
    result = kit.local("--mtp-depth", "2", pairs=1)
    kit.assert_refused(result, "CapabilityNotAdvertised", 6)
    kit.manners(kit.baseline, free_run=True)
    kit.manners(kit.candidate, free_run=False)
    kit.assert_refused(kit.local("--mtp-depth", "2", pairs=1), "CapabilityNotAdvertised", 5)


def test_without_a_prefill_exponent_windows_are_not_certified(kit):
    kit.write_contract(prefill_gain_exponent=0)
    assert kit.local(pairs=1).returncode == 0
    w = kit.document()["pairs"][0]["phase_windows"]
    assert w["certified"] is False and w["cross_check"] == "not-observed"


@pytest.mark.parametrize("when, checked", [("none", 0), ("once", 1), ("per-prompt", 2),
                                           ("per-pair", 4)])
def test_probes(tmp_path, build, when, checked):
    kit = JobKit(tmp_path, prompts=2, baseline={"decode_seconds": 0.1},
                 candidate={"decode_seconds": 0.05})
    result = kit.local("--exactness-probe", when)
    assert result.returncode in (0, 5), result.stderr  # its speed is not what is asked
    assert kit.document()["exactness_probe"]["prompts_checked"] == checked


# ---- rejected candidates, failed baselines ----

@official
def test_a_wrong_token_ends_an_official_job(kit):
    kit.manners(kit.candidate, wrong={"kind": "free_decode_run", "at": 100})
    result = kit.measure("--exactness-probe", "none", pairs=2)
    assert result.returncode == 5 and error_name(result) == "TokenMismatch", result.stderr
    d = kit.document()
    kit.assert_sealed()
    assert d["candidate_accepted"] is False and d["parity_all_ok"] is False
    assert d["rejection"]["class"] == "TokenMismatch"
    assert [(p["leg"], p["class"], p["order"]) for p in d["rejected_pairs"]] == [
        ("candidate", "TokenMismatch", "serial-first")]
    assert d["pairs"] == [] and d["aggregate"]["raw_decode_speedup_median"] is None


def test_a_wrong_token_of_the_baseline(kit):
    kit.manners(kit.baseline, wrong={"kind": "free_decode_begin", "at": 0})
    result = kit.local(pairs=1)
    kit.assert_refused(result, "PAIRS-TOO-FEW", 6)
    assert "TokenMismatch" in result.stderr


@official
def test_the_probe_fails(kit):
    kit.manners(kit.candidate, serial_wrong=7)
    result = kit.measure(pairs=1)
    assert result.returncode == 5 and error_name(result) == "EXACTNESS-PROBE-FAILED"
    assert "at token 7" in result.stderr
    assert kit.document()["rejection"]["class"] == "EXACTNESS-PROBE-FAILED"


def test_a_leg_is_retried_once(kit, tmp_path):
    die = {"kind": "free_decode_begin", "times": 1, "count": str(tmp_path / "count")}
    kit.manners(kit.candidate, die=die)
    result = kit.local(pairs=1)
    assert result.returncode == 0, result.stderr
    assert kit.document()["rejected_pairs"] == []


def test_a_developers_run_goes_on(kit, tmp_path):
    """Two deaths reject the first pair; the next are accepted."""
    die = {"kind": "free_decode_begin", "times": 2, "count": str(tmp_path / "count")}
    kit.manners(kit.candidate, die=die)
    result = kit.local(pairs=1)
    assert result.returncode == 0, result.stderr
    d = kit.document()
    assert [p["class"] for p in d["rejected_pairs"]] == ["EngineExited"]
    assert d["accepted_pair_count"] == 1 and d["parity_all_ok"] is False


def test_a_developers_budget_is_four_times_the_target(kit):
    kit.manners(kit.candidate, wrong={"kind": "free_decode_run", "at": 0})
    result = kit.local(pairs=1)
    assert result.returncode == 5 and error_name(result) == "PAIRS-TOO-FEW", result.stderr
    assert [p["class"] for p in kit.document()["rejected_pairs"]] == ["TokenMismatch"] * 4


@official
def test_the_controls_health(kit):
    kit.write_calibration(mean=0.0001)
    result = kit.measure(pairs=1)
    kit.assert_refused(result, "SERIAL-CONTROL-LEG-OUTSIDE-BAND", 6)
    result = kit.local(pairs=1, env={"BASELINE_BAND_ENFORCE": "0"})
    assert result.returncode == 0, result.stderr


def test_an_implausible_pair(tmp_path, build):
    kit = JobKit(tmp_path, baseline={"decode_seconds": 2.0}, candidate={"decode_seconds": 0.01})
    result = kit.local(pairs=1)
    assert result.returncode == 5 and error_name(result) == "PerPairBound", result.stderr
    d = kit.document()
    assert d["candidate_accepted"] is False and d["rejection"]["class"] == "PerPairBound"
    assert d["pairs"][0]["raw_ratio"] > 8


def test_a_slow_candidate(tmp_path, build):
    """Its pairs stand and its score does not: overlay-timing seals it as failed."""
    kit = JobKit(tmp_path, baseline={"decode_seconds": 0.1}, candidate={"decode_seconds": 0.6})
    result = kit.local(pairs=1)
    assert result.returncode == 5 and error_name(result) == "Floor", result.stderr
    d = kit.document()
    assert d["candidate_accepted"] is True and d["score_refused"]["class"] == "Floor"


def test_an_engine_that_changes_during_the_job(kit, tmp_path):
    """Each start of the candidate appends to a file of the weights."""
    kit.manners(kit.candidate, log=str(kit.weights / "grown"))
    kit.assert_refused(kit.local(pairs=1), "WEIGHTS-CHANGED")


def test_an_earlier_jobs_results_do_not_stay(kit):
    kit.out.mkdir()
    kit.results.write_text("old")
    kit.manners(kit.baseline, wrong={"kind": "free_decode_begin", "at": 0})
    assert kit.local(pairs=1).returncode == 6
    assert not kit.results.exists()


def test_an_unwritable_place(kit):
    kit.out.write_text("a file")
    result = kit.local(pairs=1)
    assert result.returncode == 1 and error_name(result) == "IO"


def test_interrupted(kit, tmp_path):
    log = tmp_path / "starts"
    kit.manners(kit.candidate, log=str(log), decode_seconds=30)
    process = kit.local("--exactness-probe", "none", pairs=1, popen=True)
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 2):
        pass  # the second start is the leg's, after the look at its hello
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert not kit.results.exists()
    pids = [json.loads(line)["pid"] for line in log.read_text().splitlines()]
    assert all(group_members(pid) == [] for pid in pids)
    assert not [p for p in kit.folder.rglob("*.tmp*")]


# ---- cohorts ----

def test_cohort(tmp_path, build):
    kit = cohort_kit(tmp_path, timing=True)
    result = kit.local("--exactness-probe", "per-prompt")
    assert result.returncode == 0, result.stderr
    d = kit.document()
    kit.assert_sealed()
    assert d["mode"] == "batched-cohort-paired-decode-only" and d["scored_batch_size"] == 8
    assert d["timed_mode"] == "batched_free_run_v1_2_b8"
    assert d["timed_regime"] == "batched-free-run-v1_2-timed"
    assert d["exactness_probe"]["prompts_checked"] == 8
    digests = [sha256(p.read_bytes()) for p in kit.goldens]
    cohort, = d["per_cohort"]
    assert cohort["members"] == [{"slot_index": i, "prompt_sha256": h}
                                 for i, h in enumerate(digests)]
    assert cohort["cohort_sha256"] == sha256("".join(h + "\n" for h in digests).encode())
    assert cohort["batch_size"] == 8 and cohort["accepted_pair_count"] == 2
    windows = [p["phase_windows"] for p in d["pairs"]]
    assert all((w["prefill_token_total"], w["decode_token_total"]) == (8 * 32, 8 * 128)
               for w in windows)
    gains = [sum(w[f"serial_{k}_window_seconds"] for w in windows) /
             sum(w[f"candidate_{k}_window_seconds"] for w in windows) for k in ("prefill", "decode")]
    composite = cohort["composite"]
    assert near(composite["prefill_gain"], gains[0]) and near(composite["decode_gain"], gains[1])
    assert near(composite["composite_score"], gains[0] ** 0.25 * gains[1] ** 0.75)
    assert composite["composite_speedup_floor"] == 0.9
    assert composite["composite_speedup_floor_met"] is True
    for p in d["pairs"]:
        for role in ("serial_cohort", "candidate_cohort"):
            seal = p[role]
            assert seal["mismatches"] == [0] * 8
            assert seal["near_ties"]["committed_total"] == 8 * 129
            assert seal["near_ties"]["rel_envelope"] == 0.05
            assert seal["attestation"]["tolerance_state"] == "unpinned-tolerances"
            assert len(seal["attestation"]["decode_bounding"]) == 8


def test_cohort_in_the_pools_order(tmp_path, build):
    kit = cohort_kit(tmp_path)
    order = list(reversed(kit.goldens))
    result = kit.local(pairs=1, goldens=order)
    assert result.returncode == 0, result.stderr
    assert [m["prompt_sha256"] for m in kit.document()["per_cohort"][0]["members"]] == \
        [sha256(p.read_bytes()) for p in kit.goldens]


@pytest.mark.parametrize("every, wrong", [(11, 12), (10, 13)])
def test_the_cohorts_gate(tmp_path, build, every, wrong):
    """Of a stream's 129 tokens 12 may be others: 100 per thousand."""
    kit = cohort_kit(tmp_path)
    kit.manners(kit.candidate, wrong={"kind": "cohort_run", "at": 0, "every": every})
    result = kit.local("--exactness-probe", "none", pairs=1)
    d = kit.document()
    if wrong == 13:
        assert result.returncode == 5, result.stderr
        assert [p["class"] for p in d["rejected_pairs"]] == ["GateRejected"] * 4
        assert d["per_cohort"][0]["composite_absent_reason"] == "no pair was accepted"
        return
    assert result.returncode == 0, result.stderr
    seal = d["pairs"][0]["candidate_cohort"]
    assert seal["mismatches"] == [12] + [0] * 7
    assert seal["near_ties"]["near_tie_mismatches_total"] == 12
    assert d["pairs"][0]["serial_cohort"]["mismatches"] == [0] * 8


def test_the_cohorts_seed_tokens_are_exact(tmp_path, build):
    kit = cohort_kit(tmp_path)
    kit.manners(kit.candidate, wrong={"kind": "cohort_begin", "at": 3})
    result = kit.local("--exactness-probe", "none", pairs=1)
    assert result.returncode == 5, result.stderr
    assert "TokenMismatch" in result.stderr


FAILURES = [
    ({"replay": "refuse"}, {}, 6, "TIMED-REPLAY-FAILED"),
    ({"replay": "echo"}, {}, 6, "TIMED-REPLAY-FAILED"),
    ({"cohort": 4}, {}, 6, "BatchWidthExceedsEngineMax"),
    ({}, {"cohort": 0}, 5, "CapabilityNotAdvertised"),
    ({}, {"cohort": 7}, 5, "BatchWidthExceedsEngineMax"),
    ({}, {"timing": "broken"}, 5, "VectorLength"),
]


@official
@pytest.mark.parametrize("baseline, candidate, code, name", FAILURES[::3] if QUICK else FAILURES)
def test_cohort_failures(tmp_path, build, baseline, candidate, code, name):
    kit = cohort_kit(tmp_path)
    kit.manners(kit.baseline, **baseline)
    kit.manners(kit.candidate, **candidate)
    result = kit.measure("--exactness-probe", "none", pairs=1)
    assert result.returncode == code, result.stderr
    assert error_name(result) == name, result.stderr
    assert kit.results.exists() == (code == 5)


def test_reports_that_an_engine_need_not_make(tmp_path, build):
    kit = cohort_kit(tmp_path, replay="no_envelope")
    result = kit.local(pairs=1)
    assert result.returncode == 0, result.stderr
    seal = kit.document()["pairs"][0]["candidate_cohort"]
    assert seal["near_ties_absent_reason"] == "UnusableEnvelope" and "near_ties" not in seal
    assert seal["attestation_absent_reason"] == "CapabilityAbsent" and "attestation" not in seal
