"""The judge's small tools as a user meets them: validate-golden, validate-weights, weights-digest
and harness-hash, against independent definitions of the digests."""

import hashlib
import json
import os
import re
import shutil

import pytest

VOCAB, SEED, STEPS, DECODE = 97, 16, 64, 128
REVISION = "0123456789abcdef0123456789abcdef01234567"
CONTRACT = {
    "track_id": "toy-serial-v1", "scores_against_live_control_leg": True,
    "correctness_steps": STEPS, "benchmark_decode_steps": DECODE,
    "local_submit_benchmark_decode_steps": 200, "official_prefill_warmup_runs": 0,
    "golden_model_type": "toy", "vocab_size": VOCAB, "num_hidden_layers": 1, "seed_tokens": SEED,
    "target": {"upstream_model_id": "a/toy", "upstream_revision": REVISION},
}


def tokens(count):
    return [i % VOCAB for i in range(count)]


def golden(**changes):
    document = {
        "version": 1, "model_type": "toy",
        "model_provenance": {"repository": "a/toy", "revision": REVISION},
        "cases": [{"name": "c1", "prompt_tokens": tokens(SEED), "expected_tokens": tokens(STEPS)}],
        "correctness_gates": {"anchors": [
            {"name": "a1", "context_tokens": [1], "expected_token": 2},
            {"name": "a2", "context_tokens": [1, 2], "expected_token": 3}]},
        "benchmark": {
            "prefill_prompt_tokens": tokens(SEED), "expected_prefill_token": 1,
            "decode_seed_tokens": tokens(SEED), "expected_decode_seed_token": 2,
            "expected_decode_tokens": tokens(DECODE)},
    }
    document.update(changes)
    return {key: value for key, value in document.items() if value is not None}


@pytest.fixture
def clean_env():
    env = dict(os.environ)
    for name in ("MLXFAST_TRACK_ID", "MLXFAST_QWEN_MTP_TRACK_ID", "MLXFAST_MAX_WEIGHTS_BYTES"):
        env.pop(name, None)
    return env


@pytest.fixture
def validate(build, run, tmp_path, clean_env):
    """validate(document, *flags, contract=..., env=...) -> (exit code, its one line of stderr)"""

    def call(document, *flags, contract=CONTRACT, env=None):
        path = tmp_path / "x.golden.json"
        if document is not None:
            text = document if isinstance(document, str) else json.dumps(document)
            path.write_text(text)
        (tmp_path / "contract.json").write_text(json.dumps(contract))
        result = run([build / "benchd", "validate-golden", "--golden", path, "--contract",
                      tmp_path / "contract.json", *flags], env={**clean_env, **(env or {})})
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
        return result.returncode, result.stderr.rstrip("\n")

    call.path = tmp_path / "x.golden.json"
    return call


def test_accept(validate):
    code, line = validate(golden())
    digest = hashlib.sha256(validate.path.read_bytes()).hexdigest()
    assert code == 0
    assert line == f"ACCEPT {validate.path} (sha256={digest}, cases=1, gate_cases=2)"


@pytest.mark.parametrize("changes, why", [
    ({"version": 2}, "correctness golden file version must be 1"),
    ({"extra": 1}, "extra"),
    ({"model_type": "toy2"}, "toy2"),
    ({"benchmark": None}, "benchmark"),
    ({"cases": []}, "cases is empty"),
    ({"model_provenance": {"repository": "b/toy", "revision": REVISION}},
     "golden names b/toy@" + REVISION + ", the track pins a/toy@" + REVISION),
    ({"benchmark": {**golden()["benchmark"], "baseline_prefill_seconds_per_token": 0.1,
                    "baseline_decode_seconds_per_token": 0.1}}, "GOLDEN-CARRIES-STORED-BASELINE"),
])
def test_reject(validate, changes, why):
    code, line = validate(golden(**changes))
    assert code == 1
    assert line.startswith(f"REJECT {validate.path} (schema): ")
    assert why in line


def test_gates_only(validate):
    assert validate(golden(benchmark=None), "--gates-only")[0] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100000, '{"version":1}{"version":1}'])
def test_reject_what_is_no_document(validate, text):
    code, line = validate(text)
    assert code == 1 and "(schema)" in line


def test_pins(validate):
    validate(golden())
    data = validate.path.read_bytes()
    digest, size = hashlib.sha256(data).hexdigest(), str(len(data))
    pin = ("--golden-sha256", digest, "--golden-bytes", size)
    assert validate(golden(), *pin)[0] == 0
    code, line = validate("no golden", *pin)
    assert code == 1 and "(integrity pin)" in line
    assert f"correctness golden byte count mismatch: expected {size}, actual 9" in line
    code, line = validate(golden(), "--golden-sha256", "0" * 64, "--golden-bytes", size)
    assert code == 1 and f"expected {'0' * 64}, actual {digest}" in line
    for half in (pin[:2], pin[2:]):
        code, line = validate(golden(), *half)
        assert code == 2 and "given together" in line


@pytest.mark.parametrize("change, name", [
    ({"vocab_size": None}, "CONTRACT-INVALID"),
    ({"correctness_stepz": 64}, "CONTRACT-UNKNOWN-KEY"),
    ({"track_id": None}, "CONTRACT-INVALID"),
])
def test_unusable_contract(validate, change, name):
    contract = {k: v for k, v in {**CONTRACT, **change}.items() if v is not None}
    code, line = validate(golden(), contract=contract)
    assert code == 2 and name in line and "contract.json" in line


def test_undeclared_groups(validate):
    bare = {"track_id": "toy-serial-v1"}
    code, line = validate(golden(), contract=bare)
    assert code == 2 and "WINDOW-SHAPE-UNDECLARED-FOR-TRACK" in line


def test_track_must_agree(validate):
    assert validate(golden(), "--track", "toy-serial-v1")[0] == 0
    assert validate(golden(), env={"MLXFAST_TRACK_ID": "toy-serial-v1"})[0] == 0
    for flags, env in ((["--track", "other-v1"], {}), ([], {"MLXFAST_TRACK_ID": "other-v1"}),
                       ([], {"MLXFAST_QWEN_MTP_TRACK_ID": "other-v1"})):
        code, line = validate(golden(), *flags, env=env)
        assert code == 2 and "TRACK-ID-MISMATCH" in line


def test_golden_that_cannot_be_read(validate):
    code, line = validate(None)
    assert code == 3 and str(validate.path) in line
    validate.path.mkdir()
    assert validate(None)[0] == 3


def test_usage(build, run, clean_env):
    for arguments in (["validate-golden"], ["validate-golden", "--golden", "x"],
                      ["validate-golden", "--no-such"], ["weights-digest"], ["validate-weights"],
                      ["harness-hash", "surplus"]):
        result = run([build / "benchd", *arguments], env=clean_env)
        assert result.returncode == 2 and "USAGE" in result.stderr and result.stdout == ""


def fold(root, names):
    """Section 4 of the sealing page, in Python."""
    digest, total = hashlib.sha256(), 0
    for name in sorted(names, key=os.fsencode):
        data = (root / name).read_bytes()
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(data).digest() + b"\0")
        total += len(data)
    return f"{digest.hexdigest()}:{total}:{len(names)}"


def regular_files(root):
    return [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]


def make_tree(root):
    for name, data in {"config.json": b"{}", "model.safetensors.index.json": b"{}",
                       "a/b": b"", "a-b": b"1", "a.b": b"2", "ab": os.urandom(9_000_000),
                       "caf\u00e9 x": b"3", "deep/er/.gitkeep": b"4",
                       ".benchmark-source.sha256": b"5", ".gitkeep": b""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_weights_digest(build, run, tmp_path):
    make_tree(tmp_path)
    names = set(regular_files(tmp_path)) - {".benchmark-source.sha256", ".gitkeep"}
    result = run([build / "benchd", "weights-digest", "--weights", tmp_path])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == fold(tmp_path, names) + "\n"


def test_weights_digest_of_the_small_model(build, run, nano):
    if not nano.is_dir():
        pytest.skip("models/laguna-nano is not here")
    result = run([build / "benchd", "weights-digest", "--weights", nano])
    assert result.stdout == fold(nano, regular_files(nano)) + "\n"


def test_weights_digest_refuses(build, run, tmp_path):
    result = run([build / "benchd", "weights-digest", "--weights", tmp_path / "absent"])
    assert result.returncode == 3 and "absent" in result.stderr and result.stdout == ""
    make_tree(tmp_path)
    (tmp_path / "link").symlink_to("config.json")
    result = run([build / "benchd", "weights-digest", "--weights", tmp_path])
    assert result.returncode == 3 and "NOT-A-REGULAR-FILE" in result.stderr
    assert "link" in result.stderr and result.stdout == ""


def test_harness_hash(build, run, tmp_path):
    files = {"Makefile": b"all:", "src/judge/a.c": b"1", "src/base/b.c": b"2",
             "Sources/old.swift": b"3", "README.md": b"4"}
    left_out = {"src/engine/e.c": b"5", "src/judge/.hidden": b"6", "tools/__pycache__/x.pyc": b"7",
                "build/x": b"8", "tools/t.py": None}
    for name, data in {**files, **left_out}.items():
        if data is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    result = run([build / "benchd", "harness-hash"], cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout == fold(tmp_path, list(files)).split(":")[0] + "\n"
    assert "harnessHash root absent, skipped: src/wire" in result.stderr.splitlines()
    assert "Package.swift" not in result.stderr


def test_harness_hash_of_nothing(build, run, tmp_path):
    result = run([build / "benchd", "harness-hash"], cwd=tmp_path)
    assert result.returncode == 1 and "HARNESS-EMPTY" in result.stderr and result.stdout == ""


@pytest.fixture
def validate_weights(build, run, tmp_path, clean_env):
    root = tmp_path / "w"
    root.mkdir()
    make_tree(root)

    def call(*flags, limit=None, weights=None):
        env = dict(clean_env)
        if limit is not None:
            env["MLXFAST_MAX_WEIGHTS_BYTES"] = limit
        result = run([build / "benchd", "validate-weights", "--weights", weights or root, *flags],
                     env=env)
        assert result.stdout == "" and result.stderr.count("\n") == 1
        return result.returncode, result.stderr

    call.root = root
    return call


def test_weights_accepted(validate_weights):
    root = validate_weights.root
    total = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    code, line = validate_weights()
    assert code == 0 and line == f"ACCEPT {root} (bytes={total}, files=10)\n"
    for limit in ("", "0", "none", "unlimited", str(total)):
        assert validate_weights(limit=limit)[0] == 0
    code, line = validate_weights(limit=str(total - 1))
    assert code == 1 and "WEIGHTS-TOO-LARGE" in line
    for limit in ("-1", "25G", "1e9", " 1"):
        code, line = validate_weights(limit=limit)
        assert code == 2 and "MLXFAST_MAX_WEIGHTS_BYTES" in line


@pytest.mark.parametrize("needed", ["config.json", "model.safetensors.index.json"])
def test_weights_without_a_needed_file(validate_weights, needed):
    (validate_weights.root / needed).unlink()
    code, line = validate_weights()
    assert code == 1 and "WEIGHTS-INVALID" in line and needed in line
    (validate_weights.root / needed).mkdir()
    assert validate_weights()[0] == 1


def test_weights_with_links_and_special_files(validate_weights):
    root = validate_weights.root
    (root.parent / "link").symlink_to(root)
    code, line = validate_weights(weights=root.parent / "link")
    assert code == 1 and "WEIGHTS-INVALID" in line
    assert validate_weights(weights=root / "config.json")[0] == 1
    assert validate_weights(weights=root / "absent")[0] == 3
    (root / "a" / "up").symlink_to("..")
    code, line = validate_weights()
    assert code == 1 and "NOT-A-REGULAR-FILE" in line and "a/up" in line
    (root / "a" / "up").unlink()
    os.mkfifo(root / "pipe")
    code, line = validate_weights()
    assert code == 1 and "pipe" in line


def test_no_golden_among_the_weights(validate_weights):
    outside = validate_weights.root.parent / "g.json"
    outside.write_text(json.dumps(golden()))
    assert validate_weights("--golden", outside)[0] == 0
    shutil.copy(outside, validate_weights.root / "a" / "tokenizer_extra.json")
    code, line = validate_weights("--golden", outside)
    assert code == 1 and "GOLDEN-IN-WEIGHTS" in line and "tokenizer_extra.json" in line
    assert validate_weights("--golden", outside.parent / "absent")[0] == 3


def test_refusals_page_is_printed(build, run, root):
    result = run([build / "benchd", "refusals"])
    assert result.returncode == 0
    assert result.stdout == (root / "docs" / "refusals.md").read_text()
    names = re.findall(r"^\| `([^`]+)` \|", result.stdout, flags=re.M)
    assert len(names) == len(set(names)) > 30
    assert "refusals" not in run([build / "benchd", "--help"]).stdout
