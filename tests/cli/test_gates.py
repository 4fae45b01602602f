"""The gates in whole runs, just inside and just outside their limits; the pure rules are in
tests/unit/test_gates.c."""

import json
import re

import pytest

from judge_kit import STEPS, Kit


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


def at(kind, number):
    return {"kind": kind, "number": number}


@pytest.mark.parametrize("gap, distance, count, error", [
    (None, 5.0, 6, None),  # no gap demanded: the budget alone
    (0.25, 0.25, 6, None),
    (0.25, 0.25, 7, "teacher-forced token mismatch"),
    (0.25, 0.250001, 1, "teacher-forced mismatch beyond the logit gap"),
    (0, 0.25, 1, "teacher-forced mismatch beyond the logit gap"),
    (0, 0.9e-6, 64, None),  # ties are no mismatches
    (0.25, 0.250001, 7, "teacher-forced token mismatch"),
])
def test_logit_gap_of_mismatches(kit, gap, distance, count, error):
    kit.write_contract(mismatch_logit_gap=gap)
    script = {"at": at("correctness_step", 5), "do": "near_wrong",
              "with": {"gap": distance, "count": min(count, STEPS - 6)}}
    result = kit.iterate(script=script)
    assert result.returncode == (1 if error else 0), result.stderr
    if error:
        m = kit.assert_failed_score(error)
        assert (m["first_failing_case"], m["first_failing_step"]) == ("one", 5)
        assert m["checked_steps"] == 6


def test_a_wrong_token_far_from_its_logits(kit):
    """`wrong_token` reports a list in which the expected token does not stand at all."""
    kit.write_contract(mismatch_logit_gap=100)
    script = {"at": at("correctness_step", 5), "do": "wrong_token", "with": 0}
    assert kit.iterate(script=script).returncode == 1
    kit.assert_failed_score("teacher-forced mismatch beyond the logit gap")


@pytest.mark.parametrize("fault, error, case, step", [
    # the two base cases open with correctness_begin 1 and 2, the anchors are 3 and 4
    ({"at": at("correctness_begin", 3), "do": "wrong_token"}, "anchor token mismatch", "anchor-a", 0),
    ({"at": at("correctness_begin", 4), "do": "near_wrong", "with": {"gap": 1.1e-6}},
     "anchor token mismatch", "anchor-b", 0),
    ({"at": at("correctness_begin", 4), "do": "near_wrong", "with": {"gap": 0.9e-6}}, None, None, 0),
    ({"at": at("correctness", 1), "do": "wrong_token", "with": 23}, "free-run token mismatch",
     "free-a", 23),
    ({"at": at("correctness", 2), "do": "wrong_token", "with": 7}, "behavior token mismatch",
     "says", 7),
])
def test_strict_gates(kit, fault, error, case, step):
    result = kit.iterate("--strict", script=fault)
    assert result.returncode == (1 if error else 0), result.stderr
    if error:
        m = kit.assert_failed_score(error)
        assert (m["first_failing_case"], m["first_failing_step"]) == (case, step)
        assert m["error"] == f"{error}: case {case}, step {step}"
    assert kit.iterate(script=fault).returncode == 0, "base cases only"


def test_behaviour_starts_with_any_accepted_sequence(kit):
    document = json.loads(kit.golden.read_text())
    says = document["correctness_gates"]["behavior"][0]
    right = says["accepted_token_sequences"][0]
    says["accepted_token_sequences"] = [[right[0], 1 + right[1]], right[:5]]
    kit.golden.write_text(json.dumps(document))
    after = {"at": at("correctness", 2), "do": "wrong_token", "with": 5}
    assert kit.iterate("--strict", script=after).returncode == 0
    inside = {"at": at("correctness", 2), "do": "wrong_token", "with": 4}
    assert kit.iterate("--strict", script=inside).returncode == 1
    m = kit.assert_failed_score("behavior token mismatch")
    assert (m["first_failing_step"], m["expected_token"]) == (4, right[4])


@pytest.mark.parametrize("prefix, passes", [(10, False), (9, True)])
def test_free_run_compares_its_prefix(kit, prefix, passes):
    document = json.loads(kit.golden.read_text())
    document["correctness_gates"]["free_run"][0]["exact_prefix_tokens"] = prefix
    kit.golden.write_text(json.dumps(document))
    script = {"at": at("correctness", 1), "do": "wrong_token", "with": 9}
    assert kit.iterate("--strict", script=script).returncode == (0 if passes else 1)


SECRET_LINES = ("opened /home/someone/private/hidden.golden.json\n"
                "Authorization: Bearer abcdef0123456789\n"
                "api_key=sk-verysecret\n"
                "prompt 101 202 303 404 505\n"
                "see https://evil.example.org/upload?x=1 and someone@evil.example.org")


def published(kit, result):
    """Everything a run leaves in its folder but the engine's own log and script, and its table."""
    names = [p for p in kit.folder.iterdir() if p.is_file() and
             p.name.startswith(("score", "benchmark-integrity"))]
    assert len(names) == 3, names
    return [p.read_text() for p in names] + [result.stdout]


@pytest.mark.parametrize("kind, number", [
    ("prefill", 2), ("free_decode_run", 2), ("correctness_step", 3), ("correctness", 2),
    ("phase_diagnostics", 3)])
def test_stderr_and_error_text_stay_out_of_what_is_published(kit, kind, number):
    words = {"stderr": SECRET_LINES, "error": SECRET_LINES.replace("\n", " ")}
    script = {"at": at(kind, number), "do": "say_and_fail", "with": words}
    result = kit.iterate("--strict", script=script)
    assert result.returncode == 1
    kit.assert_failed_score("Engine")
    for text in published(kit, result):
        for secret in ("/home/someone", "private", "abcdef0123456789", "sk-verysecret",
                       "evil.example.org", "someone@"):
            assert secret not in text, (secret, text)
        # Tokens as whole numbers: the digits of one may stand in any digest or time.
        assert not re.search(r"(?<![0-9a-z.])(101|202|303|404|505)(?![0-9a-z.])", text), text


def test_stderr_of_a_passing_run_stays_out(kit):
    script = {"at": at("prefill", 1), "do": "stderr", "with": SECRET_LINES}
    result = kit.iterate("--strict", script=script)
    assert result.returncode == 0
    for text in published(kit, result):
        for line in SECRET_LINES.splitlines():
            assert line not in text


@pytest.mark.parametrize("error, shown", [
    ("expected token 17", "token-validation-failed"), ("ACTUAL 4", "token-validation-failed"),
    ("1 2 3 4 5 6 7 8 9", "engine-text-withheld"),
    ("1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8"), ("out of memory", "out of memory")])
def test_an_engines_words(kit, error, shown):
    script = {"at": at("prefill", 1), "do": "set", "with": {"ok": False, "error": error}}
    result = kit.iterate(script=script)
    assert result.returncode == 1
    assert kit.assert_failed_score("Engine")["error"] == f"Engine: prefill: {shown}"
    if shown != error:
        assert error not in result.stderr


def test_a_repeated_key_full_of_numbers(kit):
    """The decoder's message repeats the key: another way out for what an engine has read."""
    key = " ".join(map(str, range(101, 130)))
    line = '{"id":1,"nonce":"c0ffee","ok":true,"' + key + '":1,"' + key + '":1}'
    script = {"at": at("prefill", 1), "do": "raw", "with": line}
    result = kit.iterate(script=script)
    assert result.returncode == 1
    assert kit.assert_failed_score("Json")["error"].endswith(": engine-text-withheld")
    assert not [text for text in published(kit, result) if "101 102" in text]


def test_residents_of_a_recording(kit, run, root):
    """A recording opens several sessions: one load of the model answers in all of them."""
    from conftest import BUILD
    from judge_kit import ENGINE
    f = kit.folder
    command = [BUILD / "record-correctness-golden", "--worker-bin", ENGINE, "--weights", kit.weights,
               "--contract", kit.contract, "--out", f / "new.golden.json", "--prompt-tokens",
               f / "p0.json", "--case-name", "one", "--steps", "70", "--anchor", f"a={f / 'p1.json'}",
               "--no-sandbox"]
    result = run([*command, "--engine-resource", f"script={kit.script(resident='own')}"])
    assert result.returncode != 0
    assert "resident_identity_changed_within_window: " in result.stderr, result.stderr
    assert not (f / "new.golden.json").exists()
    same = {"hello": {"resident": {"pid": 5, "load_epoch": 1}}}
    result = run([*command, "--engine-resource", f"script={kit.script(**same)}"])
    assert result.returncode == 0, result.stderr
