"""benchd noise and benchd compare with scripted engines: what runs, in which order, what is
declined and why, the reports, Ctrl-C. What a time means is for tests/unit/test_compare.c."""

import json
import os
import signal
import stat
import subprocess

import pytest

from conftest import BUILD
from judge_kit import DEADLINES, ENGINE, Kit, group_members


class Bench(Kit):
    """Engines that are wrappers of the scripted one: each notes its start and its setting."""

    def __init__(self, folder, **contract):
        super().__init__(folder, **contract)
        self.record()
        self.starts = self.folder / "starts"
        self.tree_a, self.tree_b = self.tree("a"), self.tree("b")

    def tree(self, name, when="true", **script):
        """A tree whose worker runs the script when the shell condition holds."""
        tree = self.folder / name
        (tree / "build").mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"vocab": 509, **script}))
        worker = tree / "build" / "bench-worker"
        worker.write_text(
            f"#!/bin/sh\necho \"$$ {name} $BENCH_WORKER_X\" >> {self.starts}\n"
            f"if {when}; then exec {ENGINE} \"$@\" --resource script={path}; fi\n"
            f"exec {ENGINE} \"$@\"\n")
        worker.chmod(worker.stat().st_mode | stat.S_IXUSR)
        return tree

    def run(self, command, *extra, popen=False, allow=True):
        arguments = [BUILD / "benchd", command, "--weights", self.weights, "--golden", self.golden,
                     "--contract", self.contract, "--no-sandbox",
                     *(["--allow-contention"] if allow and command == "compare" else []), *extra]
        arguments = [str(a) for a in arguments]
        environment = {**os.environ, **DEADLINES, "MLXFAST_LOCAL_COOL_GATE": "0"}
        for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "BENCH_WORKER_X"):
            environment.pop(name, None)
        if popen:
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env=environment)
        return subprocess.run(arguments, capture_output=True, text=True, timeout=120,
                              env=environment)

    def compare(self, *extra, **kwargs):
        return self.run("compare", *extra, **kwargs)

    def report(self):
        return json.loads((self.folder / "out.json").read_text())

    def started(self):
        return [line.split()[1:] for line in self.starts.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


VERDICTS = {"faster", "slower", "no difference seen"}


def test_two_trees_in_turns(bench):
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, bench.tree_b, "--pairs", "3", "--json", out)
    assert result.returncode == 0, result.stderr
    # One leg each that does not count, then A B, B A, A B.
    assert [s[0] for s in bench.started()] == ["a", "b", "a", "b", "b", "a", "a", "b"]
    report = bench.report()
    assert set(report) == {"kind", "axis", "confidence", "confidence_each", "adjustment",
                           "claim_floor", "decode_steps", "contract_sha256", "golden_sha256", "settings",
                           "comparisons", "legs", "conditions"}
    assert report["kind"] == "benchd compare" and report["axis"] == "composite"
    assert report["confidence"] == report["confidence_each"] == 0.95
    assert [(leg["round"], leg["setting"]) for leg in report["legs"]] == \
        [(0, "A"), (0, "B"), (1, "A"), (1, "B"), (2, "B"), (2, "A"), (3, "A"), (3, "B")]
    assert all(leg["decode_seconds_per_token"] > 0 for leg in report["legs"])
    (one,) = report["comparisons"]
    assert one["verdict"] in VERDICTS and one["declined"] is None and one["pairs"] == 3
    assert one["label"] == "B" and one["against"] == "A"
    assert set(one["statistics"]) == {"composite", "decode", "prefill"}
    s = one["statistics"]["decode"]
    assert s["axis"] == "decode" and s["pairs"] == 3
    assert s["interval"][0] <= s["ratio"] <= s["interval"][1]
    assert s["sequential"] == {"min_pairs": 3, "max_pairs": 3, "half_width": 0.0,
                               "stopped": "fixed"}
    # What was measured is named: a stale worker shows.
    a, b = report["settings"]
    assert a["engine"].endswith("a/build/bench-worker") and a["environment"] == []
    assert len(a["engine_sha256"]) == 64 and a["engine_sha256"] != b["engine_sha256"]
    assert {(r["leg"], r["phase"]) for r in report["conditions"]} == \
        {(leg, phase) for leg in "AB" for phase in ("prefill", "decode")}
    assert f"B: {one['verdict']}" in result.stdout or "no difference to A seen" in result.stdout
    assert one["sentence"] in result.stdout and "8 of" not in result.stderr


def test_a_rule_that_stops(bench):
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, bench.tree_b, "--half-width", "99", "--max-pairs", "5",
                           "--axis", "decode", "--json", out)
    assert result.returncode == 0, result.stderr
    (one,) = bench.report()["comparisons"]
    s = one["statistics"]["decode"]
    assert s["computed_confidence"] == 0.975 and s["confidence"] == 0.95
    assert (one["pairs"], s["sequential"]["stopped"]) in ((4, "narrow-enough"), (5, "narrow-enough"),
                                                          (5, "bound-reached"))
    narrow = bench.compare(bench.tree_a, bench.tree_b, "--half-width", "1e-9", "--max-pairs", "5",
                           "--json", out)
    assert narrow.returncode == 0, narrow.stderr
    (one,) = bench.report()["comparisons"]
    assert one["pairs"] == 5
    assert one["statistics"]["composite"]["sequential"]["stopped"] == "bound-reached"


def test_two_settings_of_one_tree(bench):
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, "--a", "BENCH_WORKER_X=1", "--b", "BENCH_WORKER_X=two",
                           "--b", "OTHER_NAME=3", "--pairs", "2", "--json", out,
                           "--engine-resource", f"log={bench.folder / 'log.json'}")
    assert result.returncode == 0, result.stderr
    assert [s[1] for s in bench.started()] == ["1", "two", "1", "two", "two", "1"]
    assert [s["environment"] for s in bench.report()["settings"]] == \
        [["BENCH_WORKER_X=1"], ["BENCH_WORKER_X=two", "OTHER_NAME=3"]]
    assert bench.log()["env"]["BENCH_WORKER_X"] == "1" and "OTHER_NAME" not in bench.log()["env"]


def test_an_ablation_list(bench):
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, "--vary", "BENCH_WORKER_X=p,q,r", "--pairs", "4",
                           "--json", out)
    assert result.returncode == 0, result.stderr
    assert "".join(s[1] for s in bench.started()) == "pqr" "pqr" "rqp" "prq" "qrp"
    report = bench.report()
    assert [c["label"] for c in report["comparisons"]] == ["BENCH_WORKER_X=q", "BENCH_WORKER_X=r"]
    assert {c["against"] for c in report["comparisons"]} == {"BENCH_WORKER_X=p"}
    assert report["adjustment"] == "bonferroni" and report["confidence_each"] == 0.975
    assert all(c["statistics"]["composite"]["confidence"] == 0.975
               for c in report["comparisons"])


def test_other_tokens_are_declined(bench):
    bench.tree("b", at={"kind": "free_decode_run", "number": 2}, do="wrong_token", **{"with": 5})
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, bench.tree_b, "--pairs", "2", "--json", out)
    assert result.returncode == 1, result.stderr
    assert "B: declined: tokens differ: TokenMismatch" in result.stdout
    (one,) = bench.report()["comparisons"]
    assert one["verdict"] == "declined" and one["statistics"] is None
    assert one["declined"].startswith("tokens differ: TokenMismatch") and one["pairs"] == 0
    assert [s[0] for s in bench.started()] == ["a", "b"]  # no pair is measured for nothing


def test_a_failing_value_declines_itself_alone(bench):
    bench.tree("a", when='[ "$BENCH_WORKER_X" = q ]', at={"kind": "prefill", "number": 2}, do="die")
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, "--vary", "BENCH_WORKER_X=p,q,r", "--pairs", "2",
                           "--json", out)
    assert result.returncode == 1
    q, r = bench.report()["comparisons"]
    assert q["verdict"] == "declined" and q["declined"].startswith("the engine failed: ")
    assert r["verdict"] in VERDICTS and r["pairs"] == 2
    assert "".join(s[1] for s in bench.started()) == "pqr" "pr" "rp"


def test_a_failing_base_declines_all(bench):
    bench.tree("a", at={"kind": "prefill", "number": 1}, do="die")
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, "--vary", "BENCH_WORKER_X=p,q,r", "--json", out)
    assert result.returncode == 1
    assert [c["verdict"] for c in bench.report()["comparisons"]] == ["declined"] * 2
    assert all("in what is compared with" in c["declined"] for c in bench.report()["comparisons"])
    assert len(bench.started()) == 1


def test_the_same_twice_is_said_to_be_noise(bench):
    result = bench.compare(bench.tree_a, bench.tree_a, "--pairs", "2")
    assert result.returncode == 0
    assert "the same executable with the same settings" in result.stderr


@pytest.mark.parametrize("extra, text", [
    ([], "a tree or --engine-a is wanted"),
    (["A"], "nothing to compare with"),
    (["A", "B", "C"], "a surplus argument"),
    (["A", "B", "--engine-a", "x"], "exclude each other"),
    (["A", "B", "--engine-b", "x"], "exclude each other"),
    (["A", "B", "--vary", "X=1,2"], "--vary is of one engine"),
    (["A", "--vary", "X=1"], "at least two values"),
    (["A", "--vary", "X=1,1"], "a value is given twice"),
    (["A", "--vary", "=1,2"], "NAME=V1,V2,... is wanted"),
    (["A", "--a", "1X=2"], "a setting is NAME=VALUE"),
    (["A", "--a", "X"], "a setting is NAME=VALUE"),
    (["A", "--a", "BENCH_WORKER_YARN_MAGNITUDE=derived"], "the judge sets"),
    (["A", "B", "--axis", "speed"], "an axis is composite, decode or prefill"),
    (["A", "B", "--pairs", "1"], "not a whole number from 2"),
    (["A", "B", "--pairs", "4", "--max-pairs", "8"], "--pairs excludes --max-pairs"),
    (["A", "B", "--half-width", "0"], "above 0 and below 100"),
    (["A", "B", "--claim-floor", "-1"], "0 or more"),
    (["A", "B", "--engine-resource", "=x"], "NAME=PATH"),
    (["A", "B", "--json", "GOLDEN"], "--json"),
])
def test_misuse(bench, extra, text):
    names = {"A": bench.tree_a, "B": bench.tree_b, "GOLDEN": bench.golden}
    before = bench.golden.read_bytes()
    result = bench.compare(*[names.get(e, e) for e in extra])
    assert result.returncode == 2, result.stderr
    assert "USAGE: " in result.stderr and text in result.stderr and result.stdout == ""
    assert not bench.starts.exists() and bench.golden.read_bytes() == before


def test_what_is_missing_is_named(bench, tmp_path):
    result = bench.compare(tmp_path / "none", bench.tree_b)
    assert result.returncode == 1 and "ENGINE-MISSING" in result.stderr
    result = bench.compare(bench.tree_a, bench.tree_b, "--weights-b", tmp_path / "none")
    assert result.returncode == 1 and "WEIGHTS-MISSING" in result.stderr
    bench.write_contract(correctness_steps=None, benchmark_decode_steps=None,
                         local_submit_benchmark_decode_steps=None,
                         official_prefill_warmup_runs=None)
    result = bench.compare(bench.tree_a, bench.tree_b)
    assert result.returncode == 2 and "WINDOW-SHAPE-UNDECLARED-FOR-TRACK" in result.stderr
    assert not bench.starts.exists()


def test_without_weights_there_is_no_composite(bench):
    bench.write_contract(score_decode_weight=None, score_prefill_weight=None)
    out = bench.folder / "out.json"
    result = bench.compare(bench.tree_a, bench.tree_b, "--pairs", "2", "--json", out)
    assert result.returncode == 0, result.stderr
    report = bench.report()
    assert report["axis"] == "decode"
    assert set(report["comparisons"][0]["statistics"]) == {"decode", "prefill"}
    result = bench.compare(bench.tree_a, bench.tree_b, "--axis", "composite")
    assert result.returncode == 2 and "no scoring weights" in result.stderr


@pytest.mark.parametrize("command", ["compare", "noise"])
def test_interrupt_leaves_nothing(bench, command):
    bench.tree("a", at={"kind": "free_decode_run", "number": 2}, do="hang_with_grandchild")
    out = bench.folder / "out.json"
    os.mkfifo(bench.starts)
    if command == "compare":
        process = bench.compare(bench.tree_a, bench.tree_b, "--json", out, popen=True)
    else:
        process = bench.run("noise", "--engine", bench.tree_a / "build" / "bench-worker",
                            "--output", out, popen=True)
    with open(bench.starts) as starts:
        worker = int(starts.readline().split()[0])
    process.send_signal(signal.SIGINT)
    stdout, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "nterrupted" in err or "INTERRUPTED" in err
    assert stdout == "" and not out.exists()
    assert group_members(worker) == []
    assert not [p for p in bench.folder.iterdir() if ".tmp" in p.name]


def test_noise(bench):
    out = bench.folder / "out.json"
    result = bench.run("noise", "--engine", bench.tree_a / "build" / "bench-worker", "--runs", "4",
                       "--output", out)
    assert result.returncode == 0, result.stderr
    assert "kill bar" in result.stdout and "4 runs; load " in result.stdout
    assert len(bench.started()) == 5  # the first does not count
    report = bench.report()
    assert set(report) == {"kind", "runs", "runs_disturbed", "prefill", "decode", "decode_steps",
                           "contract_sha256", "golden_sha256", "setting", "legs", "conditions"}
    assert report["kind"] == "benchd noise" and report["runs"] == 4 == len(report["legs"])
    for axis in ("prefill", "decode"):
        times = [leg[f"{axis}_seconds_per_token"] for leg in report["legs"]]
        mean = sum(times) / 4
        sd = (sum((t - mean) ** 2 for t in times) / 3) ** 0.5
        floor = report[axis]
        assert floor["mean_seconds_per_token"] == pytest.approx(mean)
        assert floor["sd_seconds_per_token"] == pytest.approx(sd)
        assert floor["kill_bar"] == pytest.approx(max(0.01, 2 * sd / mean))
        assert floor["min_seconds_per_token"] == min(times)
    assert {r["leg"] for r in report["conditions"]} == {"noise"}


def test_the_window_may_be_longer(bench):
    engine = bench.tree_a / "build" / "bench-worker"
    log = bench.folder / "log.json"
    result = bench.run("noise", "--engine", engine, "--runs", "3", "--json", "--decode-steps", "200",
                       "--engine-resource", f"log={log}")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["decode_steps"] == 200
    bad = bench.run("noise", "--engine", engine, "--decode-steps", "201")
    assert bad.returncode == 1 and "GOLDEN-INVALID" in bad.stderr


def test_noise_as_json(bench):
    result = bench.run("noise", "--engine", bench.tree_a / "build" / "bench-worker", "--runs", "3",
                       "--json", "--quiet")
    assert result.returncode == 0 and result.stderr == ""
    assert json.loads(result.stdout)["runs"] == 3


def test_noise_checks_every_token(bench):
    bench.tree("a", at={"kind": "prefill", "number": 2}, do="wrong_token")
    out = bench.folder / "out.json"
    result = bench.run("noise", "--engine", bench.tree_a / "build" / "bench-worker", "--output", out)
    assert result.returncode == 1 and "TokenMismatch" in result.stderr
    assert result.stdout == "" and not out.exists()
    for extra in (["--runs", "2"], ["--output", bench.contract]):
        bad = bench.run("noise", "--engine", bench.tree_a / "build" / "bench-worker", *extra)
        assert bad.returncode == 2 and "USAGE" in bad.stderr
