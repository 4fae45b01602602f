"""One arithmetic everywhere: the same logits, to the bit, whatever the rows per forward, the
threads and the instruction set. With MLXFAST_AARCH64_WORKER set (./check does), NEON too."""

import hashlib
import json
import os
import pathlib
import subprocess

import pytest

from conftest import ROOT

TOKENS = 600  # more than two attention chunks, many windows


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    golden = json.loads((ROOT / "tracks/laguna-nano-serial-v1/public.golden.json").read_text())
    tokens = (golden["benchmark"]["decode_seed_tokens"]
              + golden["benchmark"]["expected_decode_tokens"])[:TOKENS]
    assert len(tokens) == TOKENS
    path = tmp_path_factory.mktemp("arithmetic") / "tokens.json"
    path.write_text(json.dumps(tokens))
    return path


def logits_hash(worker, prompt, out, *flags, cpu=None, prefix=()):
    env = dict(os.environ)
    env.pop("MLXFAST_CPU", None)
    if cpu:
        env["MLXFAST_CPU"] = cpu
    result = subprocess.run([*prefix, str(worker), "logits", "--weights",
                             str(ROOT / "models/laguna-nano"), "--tokens-file", str(prompt), "--out",
                             str(out), *flags], capture_output=True, text=True, env=env, timeout=900)
    if result.returncode != 0 and "CPU-UNSUPPORTED" in result.stderr:
        pytest.skip(f"this machine has no {cpu}")
    assert result.returncode == 0, result.stderr
    data = pathlib.Path(out).read_bytes()
    assert len(data) == TOKENS * 4096 * 4
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def reference(prompt, tmp_path_factory):
    build = pathlib.Path(os.environ.get("BUILD", ROOT / "build"))
    return logits_hash(build / "bench-worker", prompt, tmp_path_factory.mktemp("ref") / "logits",
                       "--rows", "1", "--threads", "1")


def test_hash_is_the_committed_one(reference):
    """The table that every build, on every machine, must meet."""
    table = json.loads((ROOT / "tests/vectors/nano_600_logits.json").read_text())
    assert reference == table["sha256"]


@pytest.mark.parametrize("rows", ["7", "64", "512"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_rows_and_threads(build, prompt, reference, tmp_path, rows, threads):
    assert logits_hash(build / "bench-worker", prompt, tmp_path / "logits", "--rows", rows,
                       "--threads", threads) == reference


@pytest.mark.parametrize("cpu", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("rows", ["1", "64"])
def test_instruction_sets(build, prompt, reference, tmp_path, cpu, rows):
    assert logits_hash(build / "bench-worker", prompt, tmp_path / "logits", "--rows", rows,
                       cpu=cpu) == reference


@pytest.mark.parametrize("cpu, rows", [("neon", "64"), ("neon", "1"), ("portable", "64")])
def test_neon_under_an_emulator(prompt, reference, tmp_path, cpu, rows):
    worker = os.environ.get("MLXFAST_AARCH64_WORKER")
    if not worker:
        pytest.skip("needs MLXFAST_AARCH64_WORKER, an aarch64 build (./check makes it)")
    emulator = os.environ.get("MLXFAST_AARCH64_EMULATOR", "qemu-aarch64")
    assert logits_hash(worker, prompt, tmp_path / "logits", "--rows", rows, cpu=cpu,
                       prefix=[emulator]) == reference
