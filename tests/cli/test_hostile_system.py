"""The programs in bad surroundings: streams that are closed or full, readers that go away, targets
that cannot be written, files that shrink in use, two runs at once."""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import tempfile

import pytest

from conftest import BUILD, ROOT
from judge_kit import Kit, assert_sealed

WORKER, JUDGE, RECORDER = (BUILD / n for n in ("bench-worker", "benchd",
                                               "record-correctness-golden"))
CONTRACT = ROOT / "tracks" / "laguna-nano-serial-v1" / "contract.json"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(" ".join(str(i) for i in range(1, 41)))
    return path


def logits(nano, tokens, out, redirection=""):
    command = f'"$0" logits --weights "$1" --tokens-file "$2" --out "$3" {redirection}'
    return subprocess.run(["sh", "-c", command, WORKER, nano, tokens, out], capture_output=True,
                          text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_nothing_is_printed_into_a_file(build, nano, tokens, tmp_path, closed):
    """Where stderr is closed, the first file opened would get its number and the progress."""
    assert logits(nano, tokens, tmp_path / "whole").returncode == 0
    assert logits(nano, tokens, tmp_path / "closed", closed).returncode == 0
    assert (tmp_path / "closed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_score_is_whole_with_every_stream_closed(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    arguments = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", JUDGE, "iterate", "--engine",
                 ROOT / "tests" / "engines" / "scripted_engine.py", "--weights", kit.weights,
                 "--golden", kit.golden, "--contract", kit.contract, "--score-path", kit.score,
                 "--no-sandbox"]
    assert subprocess.run(arguments, timeout=60, cwd=tmp_path).returncode == 0
    assert_sealed(kit)


@pytest.mark.parametrize("restore", [True, False])
def test_generate_ends_with_its_reader(build, nano, restore):
    """Whether or not the one who started it had SIGPIPE ignored."""
    process = subprocess.Popen([WORKER, "generate", "--weights", nano, "--prompt", "The sea", "-n",
                                "2000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               restore_signals=restore)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert error == "bench-worker: IO: writing the text: Broken pipe\n"


def test_a_run_outlives_the_reader_of_its_progress(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    process = kit.iterate(popen=True)
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert_sealed(kit)
    kit.assert_nothing_left()


@pytest.mark.parametrize("command", [
    [JUDGE, "refusals"], [JUDGE, "--help"], [JUDGE, "weights-digest", "--weights", "NANO"],
    [JUDGE, "explain-contract", CONTRACT], [WORKER, "generate", "--help"],
    [WORKER, "manifest", "--weights", "NANO"], [RECORDER, "--help"]], ids=str)
def test_output_that_is_lost_is_an_error(build, nano, command):
    command = [nano if part == "NANO" else part for part in command]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode not in (0, 2), result.stderr
    assert len(result.stderr.splitlines()) == 1 and "IO: " in result.stderr


def test_a_file_beyond_the_limit_of_its_size(build, nano, tokens, tmp_path):
    """SIGXFSZ would end the program with its unfinished file left."""
    result = subprocess.run(
        ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", WORKER, "logits", "--weights", nano,
         "--tokens-file", tokens, "--out", tmp_path / "out"], capture_output=True, text=True,
        timeout=60)
    assert result.returncode == 1
    assert "IO: writing logits: File too large" in result.stderr
    assert os.listdir(tmp_path) == ["tokens"]


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def as_nobody(command):
    """Where the tests run as root, permissions bind only someone else."""
    if os.geteuid() == 0:
        return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    return command


@pytest.mark.parametrize("target", ["folder", "config.json", "tokenizer.json",
                                    "model-00001-of-00002.safetensors"])
def test_what_may_not_be_read_is_not_called_absent(build, nano, target):
    with tempfile.TemporaryDirectory() as base:  # pytest's own folders are closed to others
        os.chmod(base, 0o755)
        programs, weights = pathlib.Path(base) / "bin", pathlib.Path(base) / "weights"
        programs.mkdir()
        for program in (WORKER, JUDGE):
            shutil.copy(program, programs)
        shutil.copytree(nano, weights)
        path = weights if target == "folder" else weights / target
        os.chmod(path, 0)
        try:
            for command in ([programs / "bench-worker", "generate", "--weights", weights,
                             "--prompt", "x", "-n", "1"],
                            [programs / "benchd", "weights-digest", "--weights", weights],
                            [programs / "benchd", "validate-weights", "--weights", weights]):
                result = subprocess.run(as_nobody(command), capture_output=True, text=True,
                                        timeout=60, cwd="/")
                assert result.returncode == (1 if "generate" in command else 3), result.stderr
                assert len(result.stderr.splitlines()) == 1
                assert "IO: " in result.stderr and "Permission denied" in result.stderr
                assert str(path) in result.stderr
        finally:
            os.chmod(path, 0o755)


def make_node(path):
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["device", "folder", "link"])
def test_nothing_but_a_file_is_replaced(build, nano, tokens, tmp_path, kind):
    """Renaming over /dev/null takes it away from the whole machine."""
    target = tmp_path / "target"
    {"device": make_node, "folder": os.mkdir,
     "link": lambda p: os.symlink("elsewhere", p)}[kind](target)
    before = target.lstat()
    result = logits(nano, tokens, target)
    assert result.returncode == 1
    assert "NOT-A-REGULAR-FILE" in result.stderr and len(result.stderr.splitlines()) == 1
    prompt = tmp_path / "prompt"
    prompt.write_text(json.dumps([1] * 512))
    result = subprocess.run([RECORDER, "--backend", "mock", "--contract", CONTRACT, "--out", target,
                             "--prompt-tokens", prompt, "--case-name", "a", "--steps", "64"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "NOT-A-REGULAR-FILE" in result.stderr and len(result.stderr.splitlines()) == 1
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("name, error", [
    ("absent/score.json", "IO"), ("folder", "NOT-A-REGULAR-FILE"), ("x" * 246, "IO"),
    ("a\nb", "SCORE-PATH-INVALID"), ("", "SCORE-PATH-INVALID"),
    ("benchmark-integrity.local-iterate.json", "SCORE-PATH-INVALID")])
def test_an_impossible_score_path_is_told_before_the_run(build, tmp_path, name, error):
    kit = Kit(tmp_path)
    kit.record()
    (tmp_path / "folder").mkdir()
    names = sorted(os.listdir(tmp_path))
    kit.score = tmp_path / name if name else ""
    result = kit.iterate()
    assert result.returncode == 2
    assert result.stderr.startswith(f"benchd iterate: {error}: ")
    assert sorted(os.listdir(tmp_path)) == names  # the engine did not even start: no log.json


def test_runs_that_end_at_once_leave_one_whole_set(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    for _ in range(3):
        runs = [kit.iterate("--quiet", popen=True) for _ in range(4)]
        for run in runs:
            assert run.wait(timeout=60) == 0, run.stderr.read()
            run.stdout.close()
            run.stderr.close()
        assert_sealed(kit)
        sidecar = kit.score.with_name("score.json.sha256").read_text().split()[0]
        assert json.loads(kit.integrity.read_text())["score_sha256"] == sidecar


@pytest.mark.parametrize("profile, threads", [("low", "1"), ("low", "2"), ("full", "2")])
def test_a_shard_that_shrinks_in_use(build, nano, tmp_path, profile, threads):
    """Mapped: one line and exit 1, not a crash; the unfinished file goes too. Copied: nothing is lost."""
    weights = tmp_path / "weights"
    shutil.copytree(nano, weights)
    tokens, out = tmp_path / "tokens", tmp_path / "out"
    tokens.write_text(" ".join(str(i) for i in range(2000)))
    command = [WORKER, "logits", "--weights", weights, "--tokens-file", tokens, "--threads", threads,
               "--memory-profile", profile]
    process = subprocess.Popen([*command, "--rows", "1", "--out", out], stderr=subprocess.PIPE, text=True)
    temporary = tmp_path / f"out.tmp.{process.pid}"
    while size_of(temporary) == 0:  # until it is at work
        assert process.poll() is None
    for shard in weights.glob("*.safetensors"):
        os.chmod(shard, 0o644)
        os.truncate(shard, 4096)
    error = process.communicate(timeout=60)[1]
    if profile == "low":
        assert process.returncode == 1
        assert error.splitlines()[-1].startswith("bench-worker: FILE-CHANGED: ")
        assert not out.exists() and not temporary.exists()
    else:
        assert process.returncode == 0, error
        again = tmp_path / "again"
        command[command.index(weights)] = nano
        subprocess.run([*command, "--out", again], check=True, capture_output=True, timeout=60)
        assert out.read_bytes() == again.read_bytes()


def test_a_second_signal_removes_the_unfinished_file(build, nano, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(" ".join(str(i) for i in range(2000)))
    process = subprocess.Popen([WORKER, "logits", "--weights", nano, "--tokens-file", tokens,
                                "--rows", "2000", "--threads", "1", "--cpu", "portable", "--out",
                                tmp_path / "out"], stderr=subprocess.PIPE, text=True)
    temporary = tmp_path / f"out.tmp.{process.pid}"
    while not temporary.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # another one, so that the two are not merged
    process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGTERM, -signal.SIGINT)
    assert not [n for n in os.listdir(tmp_path) if n.startswith("out")]


def test_two_signals_in_the_midst_of_sealing(build, tmp_path):
    """Held there by the folder's lock: the three files are put in place all the same."""
    kit = Kit(tmp_path)
    kit.record()
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    process = kit.iterate("--quiet", popen=True)
    temporary = tmp_path / f"score.json.tmp.{process.pid}"
    while size_of(temporary) == 0:  # the look before the run makes it too, and empty
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    os.close(folder)
    process.communicate(timeout=60)
    assert process.returncode in (0, 1, -signal.SIGINT, -signal.SIGTERM)
    assert_sealed(kit)
    kit.assert_nothing_left()
