"""Shared by the whole-program tests: where the repository, the build and the shared data are."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
# Set where programs run with sanitizers: the longest tests take fewer or shorter runs then.
QUICK = "MLXFAST_TEST_QUICK" in os.environ
SHARED = pathlib.Path(os.environ.get("MLXFAST_SHARED", ROOT.parent / "shared")).resolve()


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build():
    """The folder with the built programs; building is ./check's or make's job."""
    if not (BUILD / "benchd").exists() and not (BUILD / "bench-worker").exists():
        pytest.fail(f"nothing is built in {BUILD}: run make first")
    return BUILD


@pytest.fixture(scope="session")
def nano(root):
    return root / "models" / "laguna-nano"


@pytest.fixture(scope="session")
def shared_data():
    """The published fixtures; a test that needs them skips where they are absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the shared data folder ({folder}); set MLXFAST_SHARED")
    return folder


@pytest.fixture
def run():
    """run([program, ...], **kwargs) -> CompletedProcess with text output and a time limit."""

    def call(arguments, timeout=120, **kwargs):
        kwargs.setdefault("capture_output", True)
        kwargs.setdefault("text", True)
        return subprocess.run([str(a) for a in arguments], timeout=timeout, **kwargs)

    return call
