"""benchd correctness: each manifest check failing by its name, and the gates that a local run without
--strict leaves out."""

import hashlib
import json
import os
import shlex
import subprocess

import pytest

from conftest import BUILD
from judge_kit import DEADLINES, ENGINE, STEPS, Kit, prompt

MANIFEST = {
    "schemaVersion": 1, "runnerID": "test/scripted", "modelTypes": ["mock"], "backend": "scripted",
    "engine": {"supportsPrefixReuse": False, "supportsPagedKV": False,
               "supportsCompiledDecode": False, "supportsPackedPrefill": False,
               "supportsMTP": False, "supportsCompactRecurrentMTPReplay": False},
    "kvBackends": ["contiguous"],
    "decoders": [{"mode": "serial", "drafter": "none", "state": "stateless", "depth": None}],
    "regimes": [{"batch": "single", "timing": "freeRun", "perStreamTiming": False},
                {"batch": "single", "timing": "teacherForced", "perStreamTiming": False}],
    "multimodal": False, "recurrentLayers": False, "requiresKeepMask": False,
}
DIGEST = hashlib.sha256(json.dumps(MANIFEST, separators=(",", ":")).encode()).hexdigest()
RUNNER = {"id": "test/scripted", "model_type": "mock", "manifest_sha256": DIGEST, "build": "1"}


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


def correctness(kit, *extra, script=None, env=None):
    command = [BUILD / "benchd", "correctness", "--engine", ENGINE, "--weights", kit.weights,
               "--golden", kit.golden, "--contract", kit.contract, "--quiet", *extra]
    if script is not None:
        command += ["--engine-resource", f"script={kit.script(**script)}"]
    return subprocess.run([str(a) for a in command], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **DEADLINES, **(env or {})})


def with_manifest(kit, hello, manifest=None):
    path = kit.folder / "manifest.json"
    path.write_text(json.dumps(manifest or MANIFEST, indent=3))
    return correctness(kit, "--manifest", path,
                       script={"hello": {"runner": RUNNER, **hello}})


def test_honest_engine_meets_its_manifest(kit):
    result = with_manifest(kit, {})
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"passed": True, "case_count": 6, "error": "",
                                         "first_failing_case": None, "first_failing_step": None}


@pytest.mark.parametrize("hello, name", [
    ({"spec_modes": ["serial", "mtp"]}, "spec_modes_declared"),
    ({"capabilities": []}, "capabilities_derived"),
    ({"capabilities": ["free_run_decode", "per_stream_timing"]}, "capabilities_derived"),
    ({"max_batch_size": 1}, "max_batch_size_derived"),
    ({"backend": "other"}, "backend_matches"),
    ({"runner": None}, "runner_identity_present"),
    ({"runner": {**RUNNER, "manifest_sha256": "0" * 64}}, "manifest_digest_matches"),
])
def test_manifest_check_fails_by_its_name(kit, hello, name):
    result = with_manifest(kit, hello)
    assert result.returncode == 1, result.stderr
    failed = [line.split(": ")[1].split()[-1] for line in result.stderr.splitlines()
              if "manifest check FAILED" in line]
    assert failed == [name]


def test_malformed_manifest(kit):
    result = with_manifest(kit, {}, {**MANIFEST, "schemaVersion": "1"})
    assert result.returncode == 2 and "MANIFEST-INVALID: " in result.stderr, result.stderr


def says(result):
    assert result.returncode == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["passed"] is False
    return document["error"], document["first_failing_case"], document["first_failing_step"]


def test_every_gate_is_run(kit):
    assert correctness(kit).returncode == 0
    for kind, number, at, expected in [
            ("correctness_begin", 3, 0, ("anchor token mismatch", "anchor-a", 0)),
            ("correctness", 1, 3, ("free-run token mismatch", "free-a", 3)),
            ("correctness", 2, 5, ("behavior token mismatch", "says", 5))]:
        script = {"at": {"kind": kind, "number": number}, "do": "wrong_token", "with": at}
        assert says(correctness(kit, script=script)) == expected


def test_the_contracts_gap_holds_here_too(kit):
    kit.write_contract(mismatch_logit_gap=0.25)
    script = {"at": {"kind": "correctness_step", "number": STEPS}, "do": "near_wrong"}
    near = {**script, "with": {"gap": 0.25}}
    far = {**script, "with": {"gap": 0.5}}
    assert correctness(kit, script=near).returncode == 0
    assert says(correctness(kit, script=far)) == \
        ("teacher-forced mismatch beyond the logit gap", "two", 1)


def test_meanings_are_judged(kit):
    document = json.loads(kit.golden.read_text())
    document["correctness_gates"]["behavior"].append(
        {"name": "gpqa-0", "prompt_tokens": prompt(20, 11), "accepted_token_sequences": [[1]],
         "max_new_tokens": 4, "semantic_prompt": "who?", "semantic_answer_key": "she"})
    kit.golden.write_text(json.dumps(document))
    result = correctness(kit)
    assert result.returncode == 2 and "SEMANTIC-JUDGE-MISSING: " in result.stderr
    for verdict, status in (("true", 0), ("false", 1)):
        judge = "cat > /dev/null; echo " + shlex.quote('{"pass": %s, "model": "m"}' % verdict)
        result = correctness(kit, env={"MLXFAST_SEMANTIC_JUDGE_CMD": judge})
        assert result.returncode == status, result.stderr
    assert says(result)[:2] == ("semantic answers below the threshold", "semantic cases")
