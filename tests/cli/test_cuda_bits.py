"""The CUDA backend's bits on the processor: strict mode gives those of the CPU's kernels, for any rows, in any order of
threads and blocks, and where launches begin as early as they may. For builds with CUDA=emulated (tests/cuda-emulator):
BUILD=build/cuda-emulated."""

import json
import os
import re
import subprocess

import pytest

TOKENS = [10 + (7 * i * i + 31 * i) % 4000 for i in range(18)]


@pytest.fixture(scope="module")
def worker(build, nano):
    errors = subprocess.run([build / "bench-worker", "generate", "--weights", nano, "--backend", "cuda", "--prompt",
                             "Once", "-n", "1"], capture_output=True, text=True, timeout=300, check=False).stderr
    if "emulated" not in errors:
        pytest.skip("needs a build with CUDA=emulated")
    return build / "bench-worker"


@pytest.fixture(scope="module")
def logits(worker, nano, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logits")
    tokens, out = folder / "tokens.json", folder / "logits"
    tokens.write_text(json.dumps(TOKENS))

    def run(*flags, **environment):
        answer = subprocess.run([worker, "logits", "--weights", nano, "--tokens-file", tokens, "--out", out, *flags],
                                env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
                                check=False)
        assert answer.returncode == 0, answer.stderr
        return out.read_bytes()
    return run


@pytest.fixture(scope="module")
def expected(logits):
    data = logits("--backend", "cpu")
    assert len(data) % (4 * len(TOKENS)) == 0 and any(data)
    return data


@pytest.mark.parametrize("rows, environment", [
    (1, {}), (1, {"CUDA_EMULATOR_EARLY": "2"}), (2, {"CUDA_EMULATOR_CC": "8.0"}),
    (3, {"CUDA_EMULATOR_ORDER": "reverse", "CUDA_EMULATOR_COPIES": "early"}), (7, {"CUDA_EMULATOR_EARLY": "2"}),
    (18, {"CUDA_EMULATOR_ORDER": "shuffle:7"})])
def test_strict_mode_gives_the_bits_of_the_cpu(logits, expected, rows, environment):
    assert logits("--backend", "cuda", "--rows", str(rows), **environment) == expected


def test_fast_mode_gives_the_same_bits_in_any_order(logits):
    fast = ["--backend", "cuda", "--arithmetic", "fast", "--rows", "18"]
    assert logits(*fast, CUDA_EMULATOR_ORDER="shuffle:3", CUDA_EMULATOR_EARLY="2") == logits(*fast)


@pytest.mark.parametrize("program, environment", [
    ("test_cuda_linear", {}), ("test_cuda_upload", {}), ("test_cuda_attention", {"CUDA_EMULATOR_COPIES": "early"}),
    ("test_cuda_ffn --few", {}), ("test_cuda_tile", {}), ("test_cuda_memory", {}),
    ("test_cuda_linear", {"CUDA_EMULATOR_ORDER": "reverse", "CUDA_EMULATOR_COPIES": "early"}),
    ("test_cuda_ffn --moe", {"CUDA_EMULATOR_ORDER": "reverse", "CUDA_EMULATOR_COPIES": "early"}),
    # the position that attention begins with is an older one then
    ("test_cuda_attention", {"CUDA_EMULATOR_EARLY": "2", "CUDA_EMULATOR_ORDER": "reverse"}),
    ("test_cuda_attention", {"CUDA_EMULATOR_CC": "8.0"}), ("test_cuda_linear", {"CUDA_EMULATOR_CC": "8.0"})])
def test_kernels_alone(worker, build, program, environment):
    """The tests of single stages, which the GPU runs too (tests/device); of compute capability 9.0 if not told otherwise."""
    program, *flags = program.split()
    answer = subprocess.run([build / "tests/device" / program, *flags], env={**os.environ, **environment},
                            capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-4000:]
    assert int(re.search(r"(\d+) checks, 0 fail", answer.stdout)[1]) > (15 if "--moe" in flags else 60)


@pytest.mark.parametrize("mode", [[], ["--graph"]])
def test_faults_for_the_sanitizers_are_there(worker, build, mode):
    """What tests/device/run has compute-sanitizer find; the emulator sees the first, which writes behind a buffer."""
    program = build / "tests/device/test_cuda_sanitizer"
    assert subprocess.run([program], check=False).returncode == 0
    for tool in ("memcheck", "initcheck", "racecheck"):
        answer = subprocess.run([program, "--fault", tool, *mode], capture_output=True, text=True, check=False)
        assert "2 kernels, done" in answer.stdout
        assert (answer.returncode != 0 and "wrote behind" in answer.stderr) == (tool == "memcheck"), answer.stderr
