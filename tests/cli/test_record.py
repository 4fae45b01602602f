"""record-correctness-golden: what it writes, that it writes the same bytes again, what it refuses."""

import json
import os
import subprocess

import pytest

from conftest import BUILD
from judge_kit import DEADLINES, ENGINE, SEED, STEPS, SUBMIT, Kit, next_token, prompt


@pytest.fixture
def kit(build, tmp_path):
    return Kit(tmp_path)


def continuation(tokens, count):
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens[-1], len(tokens)))
    return tokens[len(tokens) - count:]


def test_a_full_golden(kit):
    kit.record()
    g = json.loads(kit.golden.read_text())
    assert (g["version"], g["model_type"]) == (1, "mock")
    assert g["model_provenance"] == {"repository": "mlxfast/mock", "revision": "0" * 40}
    assert [c["name"] for c in g["cases"]] == ["one", "two"]
    for number, case in enumerate(g["cases"]):
        assert case["prompt_tokens"] == prompt(number)
        assert case["expected_tokens"] == continuation(prompt(number), SUBMIT + 1)
    gates = g["correctness_gates"]
    assert [a["expected_token"] for a in gates["anchors"]] == \
        [continuation(prompt(2), 1)[0], continuation(prompt(9, 7), 1)[0]]
    assert gates["free_run"][0]["expected_tokens"] == continuation(prompt(3), 24)
    behavior = gates["behavior"][0]
    assert behavior["accepted_token_sequences"] == [continuation(prompt(9, 7), 8)]
    assert behavior["max_new_tokens"] == 8
    b = g["benchmark"]
    assert b["prefill_prompt_tokens"] == b["decode_seed_tokens"] == prompt(0)
    assert [b["expected_decode_seed_token"], *b["expected_decode_tokens"]] == \
        continuation(prompt(0), SUBMIT + 1)
    assert b["expected_prefill_token"] == b["expected_decode_seed_token"]


def test_the_bytes_are_the_same_and_end_with_a_newline(kit):
    kit.record()
    other = kit.folder / "again.json"
    kit.record(out=other)
    assert kit.golden.read_bytes() == other.read_bytes()
    assert kit.golden.read_bytes().endswith(b"}\n")


def test_a_live_engine_gives_the_same_golden(kit):
    """The scripted engine is the mock model behind the wire."""
    kit.record()
    live = kit.folder / "live.json"
    f = kit.folder
    result = subprocess.run(
        [BUILD / "record-correctness-golden", "--worker-bin", ENGINE, "--weights", kit.weights,
         "--contract", kit.contract, "--out", live, "--prompt-tokens", f / "p0.json",
         "--case-name", "one", "--prompt-tokens", f / "p1.json", "--case-name", "two", "--steps",
         str(SUBMIT + 1), "--anchor", f"anchor-a={f / 'p2.json'}", "--anchor",
         f"anchor-b={f / 'short.txt'}", "--free-run", f"free-a={f / 'p3.json'}",
         "--free-run-steps", "24", "--behavior", f"says={f / 'short.txt'}", "--behavior-steps",
         "8", "--benchmark-free-run", "--benchmark-steps", str(SUBMIT), "--engine-resource",
         f"script={kit.script()}", "--quiet"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **DEADLINES})
    assert result.returncode == 0, result.stderr
    assert live.read_bytes() == kit.golden.read_bytes()


def test_validate_golden_accepts_it(build, run, kit):
    kit.record()
    result = run([build / "benchd", "validate-golden", "--golden", kit.golden, "--contract",
                  kit.contract])
    assert result.returncode == 0, result.stderr
    assert "cases=2, gate_cases=" in result.stderr


def test_other_prompts_for_the_benchmark(kit):
    kit.record("--benchmark-prefill-prompt", kit.folder / "p4.json", "--benchmark-decode-prompt",
               kit.folder / "p5.json")
    b = json.loads(kit.golden.read_text())["benchmark"]
    assert b["prefill_prompt_tokens"] == prompt(4) and b["decode_seed_tokens"] == prompt(5)
    assert b["expected_prefill_token"] == continuation(prompt(4), 1)[0]
    assert b["expected_decode_tokens"] == continuation(prompt(5), SUBMIT + 1)[1:]


def test_anchor_leniency_and_provenance_flags(kit):
    kit.write_contract(target=None)
    kit.record("--anchor-max-rank", "3", "--anchor-max-delta", "0.5", "--model-provenance-repo",
               "a/b", "--model-provenance-rev", "1" * 40)
    g = json.loads(kit.golden.read_text())
    anchor = g["correctness_gates"]["anchors"][0]
    assert (anchor["max_expected_rank"], anchor["max_top_logit_delta"]) == (3, 0.5)
    assert g["model_provenance"] == {"repository": "a/b", "revision": "1" * 40}


def test_screen_report(kit):
    report = kit.folder / "screen.json"
    kit.record("--screen-report", report)
    screens = json.loads(report.read_text())
    assert [s["name"] for s in screens] == ["one", "two"]
    assert screens[0]["distinct_token_fraction"] == len(set(prompt(0))) / SEED
    assert screens[0]["ngram"]["continuation_token_count"] == 129
    assert screens[0]["row_count"] == SUBMIT + 1
    assert all(s["seed_row_top2_gap"] >= s["minimum_top2_gap"] for s in screens)


@pytest.mark.parametrize("extra, status, text", [
    (["--track", "another"], 1, "TRACK-ID-MISMATCH"),
    (["--case-name", "three"], 2, "--case-name"),
    (["--prompt-tokens", "{f}/short.txt", "--case-name", "three"], 1, "RECORD-PROMPT-INVALID"),
    (["--prompt-tokens", "{f}/absent", "--case-name", "three"], 1, "IO"),
    (["--prompt-tokens", "{f}/p2.json", "--case-name", "one"], 1, "GOLDEN-INVALID"),
    (["--anchor", "nofile"], 2, "--anchor"), (["--backend", "real"], 2, "--backend"),
    (["--free-run", "x={f}/short.txt"], 1, "RECORD-PROMPT-INVALID"),
    (["--anchor-max-delta", "0.5"], 2, "--anchor-max-rank"), (["--steps", "63"], 2, "--steps"),
    (["--benchmark-steps", "127"], 2, "--benchmark-steps"),
    (["--model-provenance-rev", "x"], 1, "GOLDEN-INVALID"),
])
def test_refusals_write_nothing(kit, extra, status, text):
    result = kit.record(*[e.format(f=kit.folder) for e in extra], check=False)
    assert result.returncode == status, result.stderr
    assert text in result.stderr
    assert not kit.golden.exists()
    assert not [p for p in kit.folder.iterdir() if ".tmp" in p.name]


def record_live(kit, script, *extra):
    f = kit.folder
    return subprocess.run(
        [BUILD / "record-correctness-golden", "--worker-bin", ENGINE, "--weights", kit.weights,
         "--contract", kit.contract, "--out", kit.golden, "--prompt-tokens", f / "p0.json",
         "--case-name", "one", "--steps", str(STEPS), "--engine-resource",
         f"script={kit.script(**script)}", "--engine-resource", f"log={f / 'log.json'}",
         "--no-sandbox", *extra],
        capture_output=True, text=True, timeout=60, env={**os.environ, **DEADLINES})


def test_an_engine_that_contradicts_itself(kit):
    script = {"at": {"kind": "free_decode_run", "number": 1}, "do": "wrong_token", "with": 3}
    result = record_live(kit, script, "--benchmark-free-run")
    assert result.returncode == 1 and "RECORD-NOT-SELF-CONSISTENT" in result.stderr
    assert not kit.golden.exists()


def test_an_engine_that_dies(kit):
    script = {"at": {"kind": "correctness_step", "number": 5}, "do": "die"}
    result = record_live(kit, script)
    assert result.returncode == 1 and "EngineExited" in result.stderr
    assert not kit.golden.exists()
    kit.assert_nothing_left()


def test_strict_v1_for_cases(kit):
    """Base cases are recorded without the v1.1 surface, the benchmark with it."""
    assert record_live(kit, {}).returncode == 0
    assert "--speculative-protocol" not in kit.log()["argv"]
    assert record_live(kit, {}, "--benchmark-free-run").returncode == 0
    assert "--speculative-protocol" in kit.log()["argv"]
