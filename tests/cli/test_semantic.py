"""Cases that are judged by their meaning: the organiser's judge command, its faults by name, the time
to the first token, and that nothing of a question, a key or an answer gets out."""

import json
import shlex

import pytest

from conftest import BUILD
from judge_kit import ENGINE, Kit, assert_sealed, prompt

SECRETS = {"semantic_prompt": "Which particle carries the zweihander force?",
           "semantic_answer_key": "the-sesame-boson", "semantic_reference_answer": "sesame, surely",
           "semantic_domain": "swordphysics", "semantic_subdomain": "hilts"}
COUNT, NEW_TOKENS = 4, 6

JUDGE = """
import json, sys
question = json.loads(sys.stdin.read())
with open(%(log)r, "a") as f:
    f.write(json.dumps(question) + "\\n")
print(json.dumps({"pass": question["case"] not in %(wrong)r, "model": "test/judge-1",
                  "reason": "because of " + str(question["answer_key"])}))
print("the key was", question["answer_key"], file=sys.stderr)
"""


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    add_cases(kit)
    return kit


def add_cases(kit, count=COUNT):
    document = json.loads(kit.golden.read_text())
    for i in range(count):
        document["correctness_gates"]["behavior"].append(
            {"name": f"gpqa-{i}", "prompt_tokens": prompt(20 + i, 11),
             "accepted_token_sequences": [[1, 2]], "max_new_tokens": NEW_TOKENS, **SECRETS})
    kit.golden.write_text(json.dumps(document))


def judge(kit, wrong=(), text=None):
    """The environment of a run whose judge finds these cases wrong."""
    script = kit.folder / "judge.py"
    script.write_text(text or JUDGE % {"log": str(kit.folder / "questions.log"),
                                       "wrong": list(wrong)})
    return {"MLXFAST_SEMANTIC_JUDGE_CMD": f"/usr/bin/python3 {shlex.quote(str(script))}",
            "MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S": "30"}


def questions(kit):
    return [json.loads(line) for line in (kit.folder / "questions.log").read_text().splitlines()]


def assert_nothing_told(kit, result):
    """No artifact and no line of the run holds a part of a question, a key, a reason or an answer."""
    texts = [result.stdout, result.stderr]
    texts += [p.read_text() for p in kit.folder.glob("*score*")]
    texts += [p.read_text() for p in kit.folder.glob("benchmark-integrity*")]
    for text in texts:
        for secret in [*SECRETS.values(), "because of", "the key was", "gpqa-1", "gpqa-2"]:
            assert secret not in text, secret


def test_every_answer_right(kit):
    result = kit.iterate("--strict", env=judge(kit))
    assert result.returncode == 0, result.stderr
    m = kit.metrics()
    assert (m["semantic_gpqa_case_count"], m["semantic_gpqa_pass_count"]) == (COUNT, COUNT)
    assert m["semantic_gpqa_passed"] is True and m["semantic_gpqa_model"] == "test/judge-1"
    assert (m["gpqa_ttft_case_count"], m["gpqa_ttft_pass_count"]) == (COUNT, COUNT)
    assert m["gpqa_ttft_passed"] is True
    assert m["gpqa_ttft_max_seconds"] >= m["gpqa_ttft_p50_seconds"] > 0
    assert m["gpqa_ttft_seconds"] > 0
    for key in ("gpqa_ttft_seconds", "gpqa_ttft_p50_seconds", "gpqa_ttft_max_seconds"):
        assert float(f"{m[key]:.1e}") == m[key], "two significant figures"
    assert m["gpqa_ttft_source"] == "parent clock, one-token correctness request"
    assert_sealed(kit)
    assert_nothing_told(kit, result)
    asked = questions(kit)
    assert [q["case"] for q in asked] == [f"gpqa-{i}" for i in range(COUNT)]
    assert set(asked[0]) == {"case", "semantic_prompt", "answer_key", "reference_answer", "domain",
                             "subdomain", "answer_tokens"}
    assert asked[0]["semantic_prompt"] == SECRETS["semantic_prompt"]
    assert all(len(q["answer_tokens"]) == NEW_TOKENS for q in asked)


def test_the_text_of_a_detokeniser(kit):
    env = judge(kit)
    script = kit.folder / "words.py"
    script.write_text("import json, sys\nt = json.load(sys.stdin)['tokens']\n"
                      "print('words', *t, end='')\n")
    env["MLXFAST_DETOKENIZE_CMD"] = f"/usr/bin/python3 {shlex.quote(str(script))}"
    assert kit.iterate("--strict", env=env).returncode == 0
    for q in questions(kit):
        assert q["text"] == " ".join(["words", *map(str, q["answer_tokens"])])


@pytest.mark.parametrize("needed, wrong, passes", [
    (None, [], True), (None, ["gpqa-2"], False),  # undeclared: every one
    (3, ["gpqa-2"], True), (3, ["gpqa-0", "gpqa-2"], False),
    (4, [], True), (1, ["gpqa-0", "gpqa-1", "gpqa-2"], True)])
def test_threshold_of_right_answers(kit, needed, wrong, passes):
    kit.write_contract(semantic_min_pass=needed)
    result = kit.iterate("--strict", env=judge(kit, wrong))
    assert result.returncode == (0 if passes else 1), result.stderr
    m = kit.metrics()
    assert m["semantic_gpqa_pass_count"] == COUNT - len(wrong)
    assert m["semantic_gpqa_passed"] is passes and m["passed_correctness"] is passes
    if not passes:
        m = kit.assert_failed_score("semantic answers below the threshold")
        assert m["error"].endswith(f": {COUNT - len(wrong)} of {COUNT} right, {needed or COUNT} "
                                   "needed")
        assert m["first_failing_case"] == "semantic cases"
        assert m["first_failing_step"] is None and m["expected_token"] is None
        assert m["actual_token"] is None
    assert_nothing_told(kit, result)


def test_a_hurried_first_token(kit):
    """The request for one token gets another answer than the first of the whole one. Behaviour
    comes before it (number 2 of correctness; 1 is the free run)."""
    script = {"at": {"kind": "correctness", "number": 5}, "do": "wrong_token", "with": 0}
    result = kit.iterate("--strict", script=script, env=judge(kit))
    assert result.returncode == 1
    m = kit.assert_failed_score("first token differs from the answer's")
    assert m["error"].endswith(f": {COUNT - 1} of {COUNT} first tokens agree")
    assert (m["gpqa_ttft_case_count"], m["gpqa_ttft_pass_count"]) == (COUNT, COUNT - 1)
    assert m["gpqa_ttft_passed"] is False and m["actual_token"] is None
    assert not (kit.folder / "questions.log").exists(), "a failed run asks nobody"


def test_nothing_is_left_for_the_whole_answer(kit):
    """A barrier lies before the request for one token, and another between it and the whole answer."""
    copy, wrapper = kit.folder / "asked", kit.folder / "wrapper"
    wrapper.write_text(f'#!/bin/sh\ntee "{copy}" | "{ENGINE}" "$@"\n')
    wrapper.chmod(0o755)
    assert kit.iterate("--strict", env=judge(kit), engine=wrapper).returncode == 0
    asked = [json.loads(line) for line in copy.read_text().splitlines()]
    kinds = [(q["kind"], q.get("steps")) for q in asked][-4 * COUNT - 1:]
    barrier = ("phase_diagnostics", None)
    assert kinds == [barrier] + [("correctness", 1), barrier, ("correctness", NEW_TOKENS), barrier] * COUNT


def test_a_run_that_failed_before_asks_nobody(kit):
    script = {"at": {"kind": "correctness", "number": 1}, "do": "wrong_token", "with": 0}
    assert kit.iterate("--strict", script=script, env=judge(kit)).returncode == 1
    m = kit.assert_failed_score("free-run token mismatch")
    assert m["semantic_gpqa_case_count"] == 0 and m["gpqa_ttft_case_count"] == COUNT
    assert not (kit.folder / "questions.log").exists()


def test_without_strict_no_case_of_meaning_is_run(kit):
    assert kit.iterate().returncode == 0
    m = kit.metrics()
    assert m["semantic_gpqa_case_count"] == 0 and m["gpqa_ttft_source"] == ""


@pytest.mark.parametrize("text, name", [
    ("raise SystemExit(2)", "SEMANTIC-JUDGE-FAILED"),
    ("print('x' * 100000)", "SEMANTIC-JUDGE-FAILED"),
    ("print('{}')", "SEMANTIC-JUDGE-INVALID"),
    ("print('the sesame-boson')", "SEMANTIC-JUDGE-INVALID"),
    ("import sys, json\nq = json.load(sys.stdin)\n"
     "print(json.dumps({'pass': True, 'model': 'm' + q['case']}))", "SEMANTIC-JUDGE-INVALID"),
    ("import time\ntime.sleep(1000)", "SEMANTIC-JUDGE-TIMEOUT"),
])
def test_faults_of_the_judge(kit, text, name):
    env = judge(kit, text=text)
    if name == "SEMANTIC-JUDGE-TIMEOUT":
        env["MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S"] = "0.5"
    result = kit.iterate("--strict", env=env)
    assert result.returncode == 1
    m = kit.assert_failed_score(name)
    assert m["passed_correctness"] is False and m["semantic_gpqa_passed"] is False
    assert f"benchd iterate: {name}: " in result.stderr
    for secret in [*SECRETS.values(), "the sesame-boson"]:
        assert secret not in result.stderr + kit.score.read_text()
    kit.assert_nothing_left()


def test_fault_of_the_detokeniser(kit):
    env = {**judge(kit), "MLXFAST_DETOKENIZE_CMD": "exit 1"}
    assert kit.iterate("--strict", env=env).returncode == 1
    kit.assert_failed_score("SEMANTIC-DETOKENIZE-FAILED")


def test_no_judge_is_named_before_the_engine_starts(kit):
    assert kit.iterate("--strict").returncode == 1
    kit.assert_failed_score("SEMANTIC-JUDGE-MISSING")
    assert not (kit.folder / "log.json").exists()


def test_fewer_cases_than_must_be_right(kit):
    kit.write_contract(semantic_min_pass=COUNT + 1)
    assert kit.iterate("--strict", env=judge(kit)).returncode == 1
    kit.assert_failed_score("SEMANTIC-CASES-TOO-FEW")
    assert not (kit.folder / "log.json").exists()


def test_the_threshold_is_explained(kit, run):
    kit.write_contract(semantic_min_pass=3)
    page = run([BUILD / "benchd", "explain-contract", kit.contract]).stdout
    assert "at least 3 must be right (semantic_min_pass)" in " ".join(page.split())
    kit.write_contract()
    page = run([BUILD / "benchd", "explain-contract", kit.contract]).stdout
    assert "every one must be right (semantic_min_pass is not declared)" in " ".join(page.split())


def test_time_limit_must_be_a_number(kit):
    result = kit.iterate(env={"MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S": "soon"})
    assert result.returncode == 2 and "MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S" in result.stderr
    assert not kit.score.exists()


def test_the_engine_does_not_learn_the_judge(kit):
    assert kit.iterate("--strict", env=judge(kit)).returncode == 0
    assert not [n for n in kit.log()["env"] if "SEMANTIC" in n or "DETOKENIZE" in n]
