"""tools/serve-up.sh: the script that boots and stops this engine's resident for a leg, by hand and as benchd does."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from conftest import ROOT
from job_kit import needs_sandbox
from judge_kit import DEADLINES
from test_baseline import TAKEN
from test_bench_worker import VECTOR, Worker

SCRIPT = ROOT / "tools" / "serve-up.sh"
NANO = ROOT / "models" / "laguna-nano"
pytestmark = needs_sandbox()


class Tree:
    def __init__(self, folder, build, weights=VECTOR, name="serve-up.sh"):
        self.folder = folder / "tree"
        # A socket's path has at most 107 bytes, and folders of tests have long names.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="up"))
        self.lock = folder / "lock"
        self.out = folder / "out"
        for made in (self.folder / "tools", self.folder / "build"):
            made.mkdir(parents=True)
        self.script = self.folder / "tools" / name
        shutil.copy(SCRIPT, self.script)
        shutil.copy2(build / "bench-worker", self.folder / "build" / "bench-worker")
        shutil.copytree(weights, self.folder / "weights")

    def environment(self, **more):
        kept = {k: v for k, v in os.environ.items() if k not in TAKEN and not k.startswith("BENCH_WORKER_")}
        return kept | {"TMPDIR": str(self.home), "BENCH_WORKER_BOX_LOCK": str(self.lock),
                       "BENCH_WORKER_BACKEND": "cpu", **more}

    @contextlib.contextmanager
    def held(self):
        """The lock of the box, as whoever measures holds it."""
        with open(self.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def run(self, *arguments, env=None):
        errors = self.folder / "errors"
        with open(errors, "w") as said:  # no pipe: nothing that stays may keep us waiting
            done = subprocess.run([self.script, *map(str, arguments)], cwd=self.folder, stdout=subprocess.DEVNULL,
                                  stderr=said, timeout=60, env=self.environment(**(env or {})))
        return done.returncode, errors.read_text()

    def boot(self, spec="serial", length=0, **env):
        return self.run("--boot", "--spec", spec, "--draft-len", length, "--socket-out", self.out, env=env)

    def stop(self, path):
        return self.run("--stop", "--socket", path)

    def alive(self):
        """Processes that the folder of a resident was made for."""
        found = []
        for command in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.home).encode() + b"/mlxfast-resident-" in command.read_bytes():
                    found.append(command.parent.name)
        return found


@pytest.fixture
def tree(tmp_path, build):
    tree = Tree(tmp_path, build)
    yield tree
    for left in tree.home.glob("mlxfast-resident-*/socket"):
        tree.stop(left)
    shutil.rmtree(tree.home)


def test_boot_attach_stop(tree, build):
    with tree.held():
        code, said = tree.boot()
        assert code == 0, said
        path = pathlib.Path(tree.out.read_text().splitlines()[0])
        assert path.is_socket() and path.with_name("socket.ready").exists()
        assert path.with_name("socket.pid").read_text().strip() in tree.alive()
        code, said = tree.boot()
        assert code == 1 and "another resident is alive on this box" in said
        assert path.is_socket()
    worker = Worker(build, "--speculative-protocol", "v1.1", weights=tree.folder / "weights",
                    env={"BENCH_WORKER_RESIDENT_SOCKET": str(path), "BENCH_WORKER_RESIDENT_HELLO": "1"})
    assert worker.hello["resident"]["load_epoch"] > 0 and worker.ok("prefill", prompt_tokens=[1, 2, 3])["ok"]
    worker.close()
    assert tree.stop(path) == (0, "")
    assert not list(tree.home.iterdir()) and tree.alive() == []
    assert tree.stop(path) == (0, "")  # stopped before
    with tree.held():  # it was no lock of the resident's
        assert tree.boot() == (0, "")
    assert tree.stop(tree.out.read_text().strip())[0] == 0


def test_one_that_was_killed_is_tidied_up(tree):
    with tree.held():
        assert tree.boot() == (0, "")
        first = pathlib.Path(tree.out.read_text().strip())
        for pid in tree.alive():
            with contextlib.suppress(OSError):
                os.kill(int(pid), 9)
        while tree.alive():
            pass
        assert tree.boot() == (0, "")
        second = pathlib.Path(tree.out.read_text().strip())
        assert not first.parent.exists() and second.is_socket()
    assert tree.stop(second)[0] == 0 and tree.stop(first)[0] == 0


def test_with_a_drafter(tmp_path, build):
    tree = Tree(tmp_path, build, weights=NANO, name="resident-up.sh")
    with tree.held():
        assert "needs BENCH_WORKER_DRAFTER" in tree.boot("dflash", 4)[1]
        code, said = tree.boot("dflash", 4, BENCH_WORKER_DRAFTER=str(ROOT / "models/laguna-nano-dflash"))
        assert code == 0, said
    path = tree.out.read_text().strip()
    worker = Worker(build, "--speculative-protocol", "v1.1", weights=tree.folder / "weights",
                    env={"BENCH_WORKER_RESIDENT_SOCKET": path})
    assert worker.hello["spec_modes"] == ["serial", "dflash"]
    worker.close()
    assert tree.stop(path)[0] == 0
    shutil.rmtree(tree.home)


@pytest.mark.parametrize("arguments, env, code, why", [
    (("serial", 1), {}, 1, "a serial leg drafts nothing"),
    (("mtp", 1), {}, 1, "does not serve --spec mtp"),
    (("dflash", 16), {}, 1, "1 to 15, not 16"),
    (("dflash", 2), {"BENCH_WORKER_DRAFTER": "/nonexistent"}, 1, "no drafter /nonexistent"),
    (("serial", 0), {"BENCH_WORKER_RESIDENT_WEIGHTS": "none"}, 1, "the weights are not there"),
    (("serial", 0), {"BENCH_WORKER_RESIDENT_ENGINE": "none"}, 1, "the engine is not there"),
    (("serial", 0), {"BENCH_WORKER_RESIDENT_ENGINE": "/usr/bin/true"}, 1, "ended before it was ready"),
    (("serial", 0), {"BENCH_WORKER_BACKEND": "metal"}, 1, "BACKEND-UNKNOWN"),
])
def test_what_cannot_be_booted(tree, arguments, env, code, why):
    with tree.held():
        got, said = tree.boot(*arguments, **env)
    assert got == code and why in said
    assert not tree.out.exists() and not list(tree.home.iterdir()) and tree.alive() == []


def test_nobody_holds_the_box(tree):
    assert "nobody holds the box's lock" in tree.boot()[1]
    tree.lock.write_text("")  # there, and free
    code, said = tree.boot()
    assert code == 1 and "nobody holds the box's lock" in said and not list(tree.home.iterdir())


def test_usage(tree):
    for arguments in ((), ("--boot",), ("--stop", "--socket"), ("--boot", "--spec", "serial", "--n", "0", "--o", "x")):
        assert tree.run(*arguments)[0] == 2
    assert "is no socket of this script" in tree.stop("/tmp/mlxfast-resident-aaaaaa/../socket")[1]


def test_legs_of_benchd(tree, build):
    """measure-noop: the tree against itself, each leg with a resident of its own."""
    contract = json.loads((ROOT / "tracks/laguna-nano-serial-v1/contract.json").read_text())
    contract |= {"track_id": "laguna-nano-cuda-v1", "benchmark_decode_steps": 32, "rewarm_runs": 0,
                 "local_submit_benchmark_decode_steps": 32, "engine_arithmetic": "strict"}
    contract.pop("quiet", None)
    (tree.folder.parent / "contract.json").write_text(json.dumps(contract))
    shutil.rmtree(tree.folder / "weights")
    shutil.copytree(NANO, tree.folder / "weights")
    line = [build / "benchd", "measure-noop", "--no-cool-gate", "--baseline-workspace", tree.folder, "--engine",
            "build/bench-worker", "--weights", "weights", "--golden",
            ROOT / "tracks/laguna-nano-serial-v1/public.golden.json", "--contract", tree.folder.parent / "contract.json",
            "--pairs", "2", "--out", tree.folder.parent / "noop.json"]
    with tree.held():
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=tree.environment(**DEADLINES))
    assert done.returncode == 0, done.stderr
    assert not list(tree.home.iterdir()) and tree.alive() == []
