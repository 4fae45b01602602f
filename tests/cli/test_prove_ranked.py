"""tools/prove-ranked: its judgement of runs with fixed numbers; the slowed engine's name and the build's refusals.
That it all holds on a machine is measured by hand (docs/ranked-run.md), never asserted here."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import types

import pytest

from conftest import ROOT

TOOL = ROOT / "tools" / "prove-ranked"


@pytest.fixture(scope="module")
def tool():
    loader = importlib.machinery.SourceFileLoader("prove_ranked", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("prove_ranked", loader))
    loader.exec_module(module)
    return module


def run(tree, number, ratio, half, score=None, null=(0.99, 1.01), verdict=None):
    low, high = ratio - half, ratio + half
    return {"tree": tree, "run": number, "passed": True, "why": "", "score": ratio if score is None else score, "ratio": ratio,
            "interval": [low, high], "sd": 0.01, "pairs": 24,
            "null": {"ratio": sum(null) / 2, "interval": list(null), "contains_one": null[0] <= 1 <= null[1]},
            "smallest_effect": 1.5 * half, "seconds": 60, "phases": 120, "phases_disturbed": 0,
            "verdict": verdict or ("slower" if high < 1 and ratio <= 0.995 else "faster" if low > 1 and ratio >= 1.005
                                   else "no difference seen")}


GOOD = [run("same", 1, 1.001, 0.006), run("same", 2, 0.998, 0.006), run("slowed 3 %", 1, 0.97, 0.006),
        run("slowed 3 %", 2, 0.972, 0.006), run("slowed 0.3 %", 1, 0.996, 0.006), run("slowed 0.3 %", 2, 0.998, 0.006)]


def proof(tool, results):
    p = tool.Proof.__new__(tool.Proof)
    p.o = types.SimpleNamespace(slowed=30, slight=3)
    p.results, p.trees = results, dict.fromkeys(r["tree"] for r in results)
    p.slowed, p.slight = "slowed 3 %", "slowed 0.3 %"
    return p


def failing(tool, *changed):
    results = [next((c for c in changed if (c["tree"], c["run"]) == (g["tree"], g["run"])), g) for g in GOOD]
    return [(c["what"], c["but"]) for c in proof(tool, results).checks() if not c["holds"]]


def test_good_runs_hold(tool):
    assert failing(tool) == []
    assert proof(tool, GOOD).agreement() == (6, 6)
    assert proof(tool, GOOD).is_noisy() == (False, pytest.approx(0.009))


@pytest.mark.parametrize("changed, what, but", [
    (run("same", 2, 1.001, 0.006, score=1.0062), "same: the score is 1.00", "run 2: 1.0062"),
    ({**run("same", 2, 0.998, 0.006), "passed": False, "score": None, "why": "performance floor failed"},
     "every run passes", "run 2: same: performance floor failed"),
    ({**run("same", 2, 0.998, 0.006), "score": None}, "same: the score is 1.00", "run 2: none"),
    (run("same", 1, 1.004, 0.003), "same: 1 in its interval", "run 1: 1.0010 to 1.0070"),
    (run("same", 1, 1.001, 0.006, null=(1.002, 1.02)), "same: 1 in the null pairs' interval",
     "run 1: 1.0110, 1.0020 to 1.0200"),
    (run("slowed 3 %", 1, 0.98, 0.03), "slowed 3 %: seen as slower", "run 1: no difference seen, 0.9500 to 1.0100"),
    (run("slowed 3 %", 2, 0.95, 0.006), "slowed 3 %: the intervals of its runs have a value in common",
     "0.9560 < 0.9640"),
    (run("slowed 0.3 %", 2, 0.994, 0.005), "slowed 0.3 %: not claimed", "run 2: slower, 0.9890 to 0.9990")])
def test_each_thing_that_does_not_hold_is_named(tool, changed, what, but):
    assert (what, [but]) in failing(tool, changed)


def test_a_noisy_machine_is_called_so(tool):
    noisy = [*GOOD, run("same", 3, 1.0, 0.05)]
    assert proof(tool, noisy).is_noisy() == (True, pytest.approx(0.075))


def test_usage(run_tool=subprocess.run):
    result = run_tool([TOOL, "--runs", "0"], capture_output=True, text=True)
    assert result.returncode == 2 and "--runs" in result.stderr
    result = run_tool([TOOL, "--keep", ROOT], capture_output=True, text=True)
    assert result.returncode == 2 and "is there already" in result.stderr


def test_the_honest_worker_does_not_call_itself_slowed(build, nano):
    result = subprocess.run([build / "bench-worker", "runtime-worker", "--weights", nano], stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "SLOWED" not in result.stderr
    assert "SLOWED" not in json.loads(result.stdout.splitlines()[0])["runner"]["build"]


@pytest.mark.parametrize("share", ["0", "x", "3.5", "30;", "10000"])
def test_make_refuses_a_share_that_is_none(share):
    result = subprocess.run(["make", "-n", f"SLOWED={share}"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "SLOWED is a number of thousandths" in result.stderr


UNSET = {k: v for k, v in os.environ.items() if k not in ("BUILD", "MAKEFLAGS")}


def test_a_slowed_build_is_a_folder_of_its_own_and_differs_in_the_serving_part_alone():
    text = subprocess.run(["make", "-nB", "SLOWED=30", "build/slowed-30/bench-worker"], cwd=ROOT, capture_output=True,
                          text=True, timeout=60, env=UNSET).stdout
    slowed = {line.split(" -c ")[1].split()[0] for line in text.splitlines()
              if "-DSLOWED_PER_THOUSAND=30" in line and " -c " in line}
    assert "src/engine/serve/slowed.c" in slowed and "src/engine/serve/worker.c" in slowed
    assert all(s.startswith("src/engine/serve/") or s == "src/programs/bench-worker.c" for s in slowed)
