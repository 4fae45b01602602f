"""A program built with CUDA=1 (BUILD names that build): it starts where there is no driver, and says so."""

import os
import pathlib
import shutil
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "models/laguna-nano"


@pytest.fixture(scope="module")
def worker():
    path = BUILD / "bench-worker"
    if not path.exists():
        pytest.skip("there is no build")
    if b"cudaLaunchKernelExC" not in path.read_bytes():
        pytest.skip("this is not a build with CUDA=1")
    return path


def generate(worker, *flags):
    return subprocess.run([str(worker), "generate", "--weights", str(NANO), "--prompt", "Once", "-n", "4", *flags],
                          capture_output=True, text=True, timeout=120,
                          env={k: v for k, v in os.environ.items() if not k.startswith(("MLXFAST_", "BENCH_WORKER_"))})


def test_the_processor_is_still_the_default(worker):
    result = generate(worker)
    assert result.returncode == 0, result.stderr


def test_without_a_device_one_line_says_so(worker):
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a device: tests/device/run")
    result = generate(worker, "--backend", "cuda")
    assert result.returncode == 1 and result.stdout == ""
    line, = result.stderr.splitlines()
    assert "CUDA-NO-DEVICE" in line and "CUDA 1" in line
