"""The committed hashes of laguna-nano's logits, which every build on every machine must meet
(numerics.md, Proof), and byte equality over rows, threads and instruction sets.

    /usr/bin/python3 tests/cli/test_nano_logits.py

makes tests/vectors/nano_logits.sha256 again after the model has changed: only if the plain Python
emulation (tools/oracle/laguna_bf16.py, about a minute) gives the engine's bytes."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conftest import BUILD, ROOT  # noqa: E402

MODEL = ROOT / "models/laguna-nano"
TABLE = ROOT / "tests/vectors/nano_logits.sha256"
VOCAB = 4096
# A fixed sequence over the vocabulary, longer than an attention chunk and many windows.
TOKENS = [10 + (7 * i * i + 31 * i) % (VOCAB - 10) for i in range(300)]
MODES = ("attention_factor", "derived")


def engine_logits(folder, *flags, command=None):
    tokens, out = pathlib.Path(folder) / "tokens.json", pathlib.Path(folder) / "logits"
    tokens.write_text(json.dumps(TOKENS))
    result = subprocess.run(
        [*(command or [str(BUILD / "bench-worker")]), "logits", "--weights", str(MODEL), "--tokens-file",
         str(tokens), "--out", str(out), *flags], capture_output=True, text=True, timeout=600,
        env={k: v for k, v in os.environ.items() if not k.endswith("_CPU")})
    if result.returncode == 1 and "CPU-UNSUPPORTED" in result.stderr:
        pytest.skip("this machine has not this instruction set")
    assert result.returncode == 0, result.stderr
    data = out.read_bytes()
    assert len(data) == 4 * VOCAB * len(TOKENS)
    return data


def table():
    return dict(reversed(line.split("  ")) for line in TABLE.read_text().splitlines())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows, threads, cpu", [
    (1, 1, None), (1, 2, None), (7, 2, None), (64, 1, None), (512, 2, None),
    (1, 1, "portable"), (512, 2, "portable"), (1, 2, "avx2"), (7, 1, "avx2"), (512, 2, "avx2"),
    (1, 2, "avx512"), (7, 1, "avx512"), (64, 2, "avx512"), (512, 1, "avx512"),
    (1, 2, "neon"), (64, 1, "neon")])
def test_logits_are_the_committed_ones(build, tmp_path, mode, rows, threads, cpu):
    flags = ["--rows", str(rows), "--threads", str(threads), "--yarn-magnitude", mode]
    data = engine_logits(tmp_path, *flags, *(["--cpu", cpu] if cpu else []))
    assert hashlib.sha256(data).hexdigest() == table()[mode]


@pytest.mark.parametrize("cpu, rows, mode", [
    ("neon", 64, "attention_factor"), ("neon", 1, "attention_factor"), ("neon", 7, "derived"),
    ("portable", 64, "attention_factor")])
def test_aarch64_under_an_emulator(tmp_path, cpu, rows, mode):
    """./check cross-builds a worker and names it here."""
    worker = os.environ.get("MLXFAST_AARCH64_WORKER")
    if not worker:
        pytest.skip("needs MLXFAST_AARCH64_WORKER, an aarch64 build (./check makes it)")
    emulator = os.environ.get("MLXFAST_AARCH64_EMULATOR", "qemu-aarch64")
    data = engine_logits(tmp_path, "--rows", str(rows), "--threads", "2", "--cpu", cpu,
                         "--yarn-magnitude", mode, command=[emulator, worker])
    assert hashlib.sha256(data).hexdigest() == table()[mode]


def remake():
    lines = []
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            data = engine_logits(folder, "--yarn-magnitude", mode)
            emulated = pathlib.Path(folder) / "emulated"
            subprocess.run([sys.executable, str(ROOT / "tools/oracle/laguna_bf16.py"), str(MODEL),
                            f"{folder}/tokens.json", str(emulated), "--yarn", mode], check=True)
            if emulated.read_bytes() != data:
                sys.exit(f"{mode}: the engine and the emulation differ; nothing was written")
            lines.append(f"{hashlib.sha256(data).hexdigest()}  {mode}\n")
    TABLE.write_text("".join(lines))
    print(TABLE.read_text(), end="")


if __name__ == "__main__":
    remake()
