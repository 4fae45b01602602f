"""Shared by the whole-program tests: where the repository, the build and the shared data are."""

import os
import pathlib
import re
import signal
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve()
# Set where programs run with sanitizers: the longest tests take fewer or shorter runs then.
QUICK = "MLXFAST_TEST_QUICK" in os.environ
SHARED = pathlib.Path(os.environ.get("MLXFAST_SHARED", ROOT.parent / "shared")).resolve()


# A job of a shell without job control inherits SIGINT ignored, and programs of a test would too: Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def said(errors):
    """Standard error without the line on how weights are held, which bench-worker shows when reading them takes longer
    than a moment: on a busy machine it may (docs/memory.md)."""
    return re.sub(r"^bench-worker: memory profile .*\n", "", errors, flags=re.M)


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
