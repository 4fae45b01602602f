"""measure-job before an engine starts: its command line, every check in its order, each refusal by its
name and exit code."""

import json
import os
import subprocess

import pytest

from conftest import BUILD
from job_kit import COMMIT, JobKit, error_name, has_sandbox, sha256, tape
from judge_kit import CONTRACT, prompt


@pytest.fixture
def kit(tmp_path, build):
    return JobKit(tmp_path)


def preflight(kit, *extra, **kwargs):
    return kit.measure("--preflight-only", *extra, **kwargs)


def assert_clean(result):
    """Nothing is refused. Without a sandbox on the machine the last check of all is what speaks."""
    if has_sandbox() or result.returncode == 0:
        assert result.returncode == 0, result.stderr
    else:
        assert error_name(result) in ("SANDBOX-UNAVAILABLE", "SandboxExecNotFound"), result.stderr


def usage(kit, result, flag):
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("benchd measure-job: USAGE: ") and flag in result.stderr


# ---- the command line ----

def test_preflight_clean(kit):
    result = preflight(kit)
    assert_clean(result)
    assert result.stdout == ("measure-job: preflight clean\n" if result.returncode == 0 else "")
    assert not kit.out.exists()


def test_aliases_of_the_pair_flags(kit):
    result = preflight(kit, "--min-pairs-per-prompt", "1", "--pairs-per-prompt", "2",
                       drop=("--min-pairs", "--target-pairs"))
    assert_clean(result)
    usage(kit, preflight(kit, "--pairs-per-prompt", "2"), "--target-pairs")
    usage(kit, preflight(kit, drop=("--min-pairs",)), "--min-pairs")
    usage(kit, preflight(kit, pairs=1, minimum=2), "--target-pairs")


@pytest.mark.parametrize("extra, flag", [
    (["--depth", "3"], "--mtp-depth"),
    (["--depth=3"], "--mtp-depth"),
    (["--mtp-depth", "33"], "--mtp-depth"),
    (["--mtp-depth", "0"], "--mtp-depth"),
    (["--mtp-depth", "2", "--candidate-spec", '{"mode":"serial"}'], "--mtp-depth"),
    (["--candidate-spec", '{"mode":"fast"}'], "--candidate-spec"),
    (["--baseline-spec", '{"mode":"mtp","mtp":{}}'], "--baseline-spec"),
    (["--exactness-probe", "always"], "--exactness-probe"),
    (["--prompt", "x"], "--prompt"),
    (["--prompt", "x", "--prompt-sha256", "0" * 64], "--prompt"),
    (["--prompt", "x", "--prompt-sha256", "0" * 63, "--target-id", "a"], "--prompt-sha256"),
    (["--prompt", "x", "--prompt-sha256", "0" * 64, "--target-id", "a b"], "--target-id"),
    (["--write-gate-base", "A" * 40], "--write-gate-base"),
    (["--gates-producer", "a b"], "--gates-producer"),
    (["--gates-producer", ""], "--gates-producer"),
    (["--no-sandbox"], "--no-sandbox"),
    (["--engine-resource", "a b=c"], "--engine-resource"),
    (["--engine-resource", "a=b", "--engine-resource", "a=c"], "--engine-resource"),
    (["--tokens", "0"], "--tokens"),
    (["--nonsense"], "--nonsense"),
])
def test_usage(kit, extra, flag):
    usage(kit, preflight(kit, *extra), flag)


def test_depth_cap_is_a_developers_to_raise(kit):
    result = preflight(kit, "--mtp-depth", "40", env={"MLXFAST_MAX_DRAFT_DEPTH": 40})
    assert result.returncode == 2
    result = preflight(kit, "--local-dev", "--mtp-depth", "40", env={"MLXFAST_MAX_DRAFT_DEPTH": 40})
    assert_clean(result)
    assert_clean(preflight(kit, "--mtp-depth", "32"))


# ---- contract, model, goldens ----

@pytest.mark.parametrize("changes, name", [
    ({"paired_flow_retired": True}, "PAIRED-FLOW-RETIRED-FOR-TRACK"),
    ({"paired_flow_retired": None}, "PAIRED-FLOW-UNDECLARED-FOR-TRACK"),
    ({"official_scoring_enabled": False}, "OFFICIAL-SCORING-DISABLED-FOR-TRACK"),
    ({"official_scoring_enabled": None}, "OFFICIAL-SCORING-UNDECLARED-FOR-TRACK"),
    ({"golden_model_type": None, "vocab_size": None, "num_hidden_layers": None,
      "seed_tokens": None}, "MODEL-IDENTITY-UNDECLARED-FOR-TRACK"),
    ({"allowed_modes": ["serial", "dflash"]}, None),
    ({"timed_prompt_pool": None}, "GOLDEN-NOT-POOLED"),
    ({"scored_batch_size": None, "prefill_gain_exponent": None, "decode_gain_exponent": None},
     "SCORED-REGIME-PENDING-DECLARATION"),
    ({"prefill_gain_exponent": None, "decode_gain_exponent": None, "score_decode_weight": None,
      "score_prefill_weight": None}, "SCORED-REGIME-PENDING-DECLARATION"),
    ({"prefill_gain_exponent": None, "decode_gain_exponent": None}, None),
    ({"scored_batch_size": 4}, "SCORED-BATCH-SIZE-UNSUPPORTED"),
    ({"scored_batch_size": 9}, "SCORED-BATCH-SIZE-UNSUPPORTED"),
    ({"scored_batch_size": 8}, "COHORT-MEMBERSHIP-INVALID"),
    ({"scored_exponents": {"prefill_gain_exponent": 0.5, "decode_gain_exponent": 0.75}},
     "SCORED-EXPONENTS-CONFLICT"),
    ({"scored_exponents": {"prefill_gain_exponent": 0.25}}, "SCORED-EXPONENTS-CONFLICT"),
    ({"scored_exponents": {"prefill_gain_exponent": 0.25, "decode_gain_exponent": 0.75}}, None),
    ({"hidden_correctness_golden": {"sha256": "0" * 64, "bytes": 5}},
     "CORRECTNESS-GOLDEN-UNATTESTED"),
    ({"track_id": "mock-0-mlx-v1"}, "METALLIB-MISSING"),
])
def test_contract(kit, changes, name):
    kit.write_contract(**changes)
    result = preflight(kit)
    if name is None:
        assert_clean(result)
    else:
        kit.assert_refused(result, name)


def test_a_developer_needs_no_armed_track(kit):
    kit.write_contract(official_scoring_enabled=False, timed_prompt_pool=None)
    result = preflight(kit, "--local-dev", env={"MLXFAST_CANDIDATE_SHA_FILE": None,
                                                "BASELINE_CALIBRATION": None, "RUNNER_NAME": None})
    assert_clean(result)
    kit.write_contract(paired_flow_retired=True)
    kit.assert_refused(preflight(kit, "--local-dev"), "PAIRED-FLOW-RETIRED-FOR-TRACK")


def test_track_of_the_environment(kit):
    kit.assert_refused(preflight(kit, env={"MLXFAST_QWEN_MTP_TRACK_ID": "other-0-cuda-v1"}),
                       "TRACK-ID-MISMATCH")
    assert_clean(preflight(kit, env={"MLXFAST_QWEN_MTP_TRACK_ID": CONTRACT["track_id"]}))


def test_goldens(kit):
    copy = kit.folder / "copy.json"
    copy.write_bytes(kit.goldens[0].read_bytes())
    kit.assert_refused(preflight(kit, goldens=[kit.goldens[0], copy]), "GOLDEN-REPEATED")
    kit.assert_refused(preflight(kit, goldens=[kit.folder / "absent.json"]), "IO", 1)
    copy.write_text("[]")
    kit.assert_refused(preflight(kit, goldens=[copy]), "TIMED-INPUT-UNKNOWN")
    copy.write_text(json.dumps({**tape(0), "reference_self_consistent": False}))
    kit.assert_refused(preflight(kit, goldens=[copy]), "TAPE-NOT-SELF-CONSISTENT")
    copy.write_text(json.dumps(tape(0, rows=127)))
    kit.write_contract(timed_prompt_pool=[{"sha256": sha256(copy.read_bytes()),
                                           "noop_decode_speedup": 1.0}])
    kit.assert_refused(preflight(kit, goldens=[copy]), "TAPE-INVALID")
    copy.write_text(json.dumps(tape(0, rows=128)))
    kit.write_contract(timed_prompt_pool=[{"sha256": sha256(copy.read_bytes()),
                                           "noop_decode_speedup": 1.0}])
    kit.goldens = [copy]
    kit.write_calibration()
    assert_clean(preflight(kit))


def test_the_captured_prompt(kit):
    wire = kit.folder / "wire"
    for text in (json.dumps(prompt(0)), " ".join(map(str, prompt(0))) + "\n"):
        wire.write_text(text)
        given = ["--prompt", wire, "--target-id", "m5.a_b-1", "--prompt-sha256"]
        assert_clean(preflight(kit, *given, sha256(wire.read_bytes())))
    kit.assert_refused(preflight(kit, *given, "0" * 64), "PROMPT-DIGEST-MISMATCH")
    for text in (json.dumps(prompt(1)), "", "1 2 x", json.dumps(prompt(0)[:-1])):
        wire.write_text(text)
        kit.assert_refused(preflight(kit, *given, sha256(wire.read_bytes())),
                           "PROMPT-WIRE-MISMATCH")


def test_modes(kit):
    kit.assert_refused(preflight(kit, "--candidate-spec", '{"mode":"dflash","dflash":{"depth":2}}'),
                       "SPEC-MODE-NOT-ALLOWED-FOR-TRACK")
    assert_clean(preflight(kit, "--mtp-depth", "2"))


def test_pool(kit):
    entry = kit.pool()[0]
    other = {"sha256": "f" * 64, "noop_decode_speedup": 1.0}
    for pool, name in (([other], "GOLDEN-NOT-POOLED"),
                       ([entry, entry], "GOLDEN-NOT-POOLED"),
                       ([{"sha256": entry["sha256"]}], "GOLDEN-NOT-POOLED"),
                       ([{**entry, "bytes": entry["bytes"] + 1}], "GOLDEN-PIN-MISMATCH"),
                       ([entry, other], "POOL-NOT-COVERED")):
        kit.write_contract(timed_prompt_pool=pool)
        kit.assert_refused(preflight(kit), name)
    # a run that a calibration is made of needs no no-op speedup, and no calibration
    kit.write_contract(timed_prompt_pool=[{"sha256": entry["sha256"]}])
    result = preflight(kit, "--calibration-bootstrap", env={"BASELINE_CALIBRATION": None})
    assert_clean(result)


def test_cohort_members(tmp_path, build):
    kit = JobKit(tmp_path, prompts=8, scored_batch_size=8)
    assert_clean(preflight(kit))
    short = kit.folder / "short.json"
    short.write_text(json.dumps(tape(9, seed=prompt(9, 31))))
    kit.goldens[3] = short
    kit.write_contract(scored_batch_size=8)
    kit.assert_refused(preflight(kit), "COHORT-MEMBERSHIP-INVALID")
    kit.goldens.pop()
    kit.write_contract(scored_batch_size=8)
    kit.assert_refused(preflight(kit), "COHORT-MEMBERSHIP-INVALID")


def test_correctness_golden(kit):
    hidden = kit.folder / "hidden.json"
    hidden.write_text("{}")
    pin = {"sha256": sha256(b"{}"), "bytes": 2}
    given = ["--correctness-golden", hidden]
    kit.assert_refused(preflight(kit, *given), "CORRECTNESS-GOLDEN-UNATTESTED")
    kit.write_contract(hidden_correctness_golden=pin)
    assert_clean(preflight(kit, *given))
    kit.assert_refused(preflight(kit), "CORRECTNESS-GOLDEN-UNATTESTED")
    assert_clean(preflight(kit, "--local-dev"))
    hidden.write_text("[]")
    kit.assert_refused(preflight(kit, *given), "CORRECTNESS-GOLDEN-UNATTESTED")


# ---- the trees ----

def test_workers(kit):
    worker = kit.candidate / ".build/release/mlxfast-runtime-worker"
    kit.assert_refused(preflight(kit, env={"MLXFAST_RUNTIME_WORKER_EXECUTABLE": "/bin/true"}),
                       "WORKER-OVERRIDE-CONFLICT")
    assert_clean(preflight(kit, env={"MLXFAST_RUNTIME_WORKER_EXECUTABLE": worker}))
    usage(kit, preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "../x"}),
          "MLXFAST_MEASURE_WORKER_BIN")
    kit.assert_refused(preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "other"}), "ENGINE-MISSING")
    for tree in (kit.candidate, kit.baseline):
        os.rename(tree / ".build/release/mlxfast-runtime-worker", tree / ".build/release/other")
    kit.assert_refused(preflight(kit), "ENGINE-MISSING")
    assert_clean(preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "other"}))
    os.chmod(kit.candidate / ".build/release/other", 0o644)
    kit.assert_refused(preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "other"}), "ENGINE-MISSING")
    # a link that leads out of the tree is none of its workers; one within it is
    os.remove(kit.candidate / ".build/release/other")
    os.symlink(kit.baseline / ".build/release/other", kit.candidate / ".build/release/other")
    kit.assert_refused(preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "other"}), "ENGINE-MISSING")
    os.rename(kit.baseline / ".build/release", kit.baseline / ".build/x86_64")
    os.symlink("x86_64", kit.baseline / ".build/release")
    os.remove(kit.candidate / ".build/release/other")
    (kit.candidate / ".build/release/other").write_bytes(
        (kit.baseline / ".build/release/other").read_bytes())
    os.chmod(kit.candidate / ".build/release/other", 0o755)
    assert_clean(preflight(kit, env={"MLXFAST_MEASURE_WORKER_BIN": "other"}))


def test_metallib_of_a_mac_track(kit):
    kit.write_contract(track_id="mock-0-mlx-v1")
    document = json.loads(kit.calibration.read_text())
    kit.calibration.write_text(json.dumps({**document, "track_id": "mock-0-mlx-v1"}))
    (kit.candidate / ".build/release/mlx.metallib").write_text("m")
    kit.assert_refused(preflight(kit), "METALLIB-MISSING")
    (kit.baseline / ".build/release/mlx.metallib").write_text("m")
    result = preflight(kit)
    assert_clean(result)


@pytest.mark.parametrize("manifest, name", [
    ("{}", "SURFACE-MANIFEST-INVALID"),
    ('{"editablePaths":["../x"]}', "SURFACE-MANIFEST-INVALID"),
    ('{"editablePaths":["Sources/Model"],"editableSurfaceByteBudget":{"maxBytes":1}}',
     "SURFACE-MANIFEST-INVALID"),
    ('{"editablePaths":["Sources/Model"],"editableSurfaceByteBudget":{"maxFileBytes":null}}',
     "SURFACE-MANIFEST-INVALID"),
    ('{"editablePaths":["Sources"]}', "TRUSTED-SCOPE-EDITABLE"),
    ('{"editablePaths":["TOOLS/x"]}', "TRUSTED-SCOPE-EDITABLE"),
    ('{"editablePaths":["Sources/Other"]}', "SURFACE-EMPTY"),
    ('{"editablePaths":["Sources/Model"],"editableSurfaceByteBudget":{"maxFileBytes":4}}',
     "SURFACE-FILE-TOO-LARGE"),
    ('{"editablePaths":["Sources/Model"],"editableSurfaceByteBudget":{"maxFileBytes":5}}', None),
    ("{", "JSON-INVALID"),
])
def test_manifest(kit, manifest, name):
    for tree in (kit.baseline, kit.candidate):
        (tree / "benchmark.json").write_text(manifest)
    result = preflight(kit)
    if name is None:
        assert_clean(result)
    else:
        kit.assert_refused(result, name)


def test_budget_growth_and_gate(kit):
    manifest = {"editablePaths": ["Sources/Model"], "editableSurfaceByteBudget": {
        "maxTotalBytes": 100, "maxFileBytes": 60, "maxGrowthBytes": 50}}
    for tree in (kit.baseline, kit.candidate):
        (tree / "benchmark.json").write_text(json.dumps(manifest))
    model = kit.candidate / "Sources/Model"
    (model / "a.swift").write_text("x" * 55)
    assert_clean(preflight(kit))  # grown by exactly 50
    (model / "a.swift").write_text("x" * 56)
    kit.assert_refused(preflight(kit), "SURFACE-GROWTH-EXCEEDED")
    (model / "b.swift").write_text("x" * 45)
    kit.assert_refused(preflight(kit), "SURFACE-TOO-LARGE")
    (model / "b.swift").unlink()
    (model / "a.swift").write_text("x")
    (kit.candidate / "README").write_text("new")
    result = preflight(kit)
    kit.assert_refused(result, "write-divergence")
    assert '"README" was added outside the modifiable surface (editablePaths)' in result.stderr
    (kit.candidate / "README").unlink()
    (kit.candidate / "tools/t.sh").write_text("#!")
    kit.assert_refused(preflight(kit), "write-divergence")
    (kit.baseline / "Package.resolved").unlink()
    kit.assert_refused(preflight(kit), "TRUSTED-SCOPE-MISSING")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_surface(kit):
    (kit.candidate / "Sources/Model/closed").mkdir(mode=0)
    kit.assert_refused(preflight(kit), "SURFACE-UNREADABLE")


def git(tree, *arguments):
    return subprocess.run(["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@t",
                           *arguments], capture_output=True, text=True, timeout=30, check=True).stdout


def test_write_gate_by_commit(kit):
    """The fork point counts, not what became of the baseline's tree since."""
    git(kit.candidate, "init", "-q")
    git(kit.candidate, "add", "-A")
    git(kit.candidate, "commit", "-q", "-m", "base")
    base = git(kit.candidate, "rev-parse", "HEAD").strip()
    (kit.candidate / "Sources/Model/a.swift").write_text("edited")
    git(kit.candidate, "commit", "-q", "-a", "-m", "edit")
    (kit.baseline / "tools/new.sh").write_text("the organiser went on")
    kit.assert_refused(preflight(kit), "write-divergence")
    gate = ["--write-gate-base", base]
    result = preflight(kit, *gate)
    assert_clean(result)
    kit.assert_refused(preflight(kit, "--write-gate-base", "0" * 40), "WRITE-GATE-GIT-FAILED")
    (kit.candidate / "tools/t.sh").write_text("not committed")
    kit.assert_refused(preflight(kit, *gate), "write-divergence")
    git(kit.candidate, "checkout", "-q", "tools/t.sh")
    (kit.candidate / "notes").write_text("n")
    assert_clean(preflight(kit, *gate))  # git does not track it
    git(kit.candidate, "add", "-A")
    git(kit.candidate, "commit", "-q", "-m", "notes")
    kit.assert_refused(preflight(kit, *gate), "write-divergence")


# ---- heads, weights, commit, calibration ----

def test_heads_and_weights(kit):
    kit.assert_refused(preflight(kit, env={"QMTP_HEAD_DIR": kit.folder / "absent"}), "HEAD-MISSING")
    kit.assert_refused(preflight(kit, env={"QMTP_CANDIDATE_DFLASH_HEAD_DIR": "absent"}),
                       "HEAD-MISSING")
    kit.assert_refused(preflight(kit, drop=("--weights",)), "WEIGHTS-MISSING")
    assert_clean(preflight(kit, drop=("--weights",), env={"QMTP_TARGET_DIR": kit.weights}))
    (kit.weights / "p.json").write_bytes(kit.goldens[0].read_bytes())
    kit.assert_refused(preflight(kit), "GOLDEN-IN-WEIGHTS")


def test_commit(kit):
    kit.assert_refused(preflight(kit, env={"MLXFAST_CANDIDATE_SHA_FILE": None}),
                       "CANDIDATE-COMMIT-MISSING")
    kit.assert_refused(preflight(kit, env={"MLXFAST_COMMIT_SHA": "f" * 40}),
                       "CANDIDATE-COMMIT-INVALID")
    kit.assert_refused(preflight(kit, env={"MLXFAST_COMMIT_SHA": "f"}), "COMMIT-INVALID")
    assert_clean(preflight(kit, env={"MLXFAST_COMMIT_SHA": COMMIT}))
    kit.commit_file.write_text("main\n")
    kit.assert_refused(preflight(kit), "CANDIDATE-COMMIT-INVALID")


def test_calibration(kit):
    kit.assert_refused(preflight(kit, env={"BASELINE_CALIBRATION": None}),
                       "BASELINE-CALIBRATION-MISSING", 6)
    off = {"BASELINE_CALIBRATION": None, "BASELINE_BAND_ENFORCE": "0"}
    assert_clean(preflight(kit, env=off))
    kit.assert_refused(preflight(kit, env={"RUNNER_NAME": None}), "BASELINE-BOX-UNRESOLVED", 6)
    kit.assert_refused(preflight(kit, env={"RUNNER_NAME": "other"}),
                       "BASELINE-CALIBRATION-BOX-MISMATCH", 6)
    kit.calibration.write_text("{}")
    kit.assert_refused(preflight(kit), "BASELINE-CALIBRATION-INVALID", 6)


def test_loaded_share(kit):
    usage(kit, preflight(kit, env={"GPU_LOADED_UTIL": "1.5"}), "GPU_LOADED_UTIL")
    assert_clean(preflight(kit, env={"GPU_LOADED_UTIL": "1"}))


def test_the_order_of_the_checks(kit):
    """Each is mended in turn, and the next speaks."""
    (kit.candidate / "README").write_text("new")
    kit.write_contract(paired_flow_retired=True, allowed_modes=["serial"], timed_prompt_pool=None,
                       scored_batch_size=4)
    spec = ["--mtp-depth", "2"]
    env = {"MLXFAST_CANDIDATE_SHA_FILE": None, "BASELINE_CALIBRATION": None,
           "QMTP_HEAD_DIR": "absent"}
    steps = [
        ("PAIRED-FLOW-RETIRED-FOR-TRACK", lambda: kit.write_contract(
            allowed_modes=["serial"], timed_prompt_pool=None, scored_batch_size=4)),
        ("SPEC-MODE-NOT-ALLOWED-FOR-TRACK", lambda: kit.write_contract(
            timed_prompt_pool=None, scored_batch_size=4)),
        ("GOLDEN-NOT-POOLED", lambda: kit.write_contract(scored_batch_size=4)),
        ("SCORED-BATCH-SIZE-UNSUPPORTED", kit.write_contract),
        ("write-divergence", (kit.candidate / "README").unlink),
        ("HEAD-MISSING", lambda: env.pop("QMTP_HEAD_DIR")),
        ("CANDIDATE-COMMIT-MISSING", lambda: env.pop("MLXFAST_CANDIDATE_SHA_FILE")),
    ]
    for name, mend in steps:
        kit.assert_refused(preflight(kit, *spec, env=env), name)
        mend()
    kit.assert_refused(preflight(kit, *spec, env=env), "BASELINE-CALIBRATION-MISSING", 6)
    env.pop("BASELINE_CALIBRATION")
    assert_clean(preflight(kit, *spec, env=env))


def test_help_names_every_exit():
    result = subprocess.run([BUILD / "benchd", "measure-job", "--help"], capture_output=True,
                            text=True, timeout=30)
    assert result.returncode == 0
    for code in ("0 accepted", "1 a file", "2 usage", "5 the", "6 the", "8 refused", "130"):
        assert code in " ".join(result.stdout.split())
