"""benchd iterate against tests/engines/hostile_engine.py: every trick is refused by its documented
name with a valid, sealed failed score, or changes nothing; and nothing is left behind."""

import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT
from judge_kit import Kit, assert_sealed

TIGHT = {"MLXFAST_REPLY_TIMEOUT_S": "2"}


@pytest.fixture
def kit(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    return kit


@pytest.fixture
def play(kit, tmp_path):
    """play(trick) runs a copy of the hostile engine, which it may change."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for name in ("hostile_engine.py", "scripted_engine.py"):
        shutil.copy(ROOT / "tests" / "engines" / name, folder / name)

    def run(trick, *extra, env=TIGHT):
        return kit.iterate(*extra, engine=folder / "hostile_engine.py", script={"evil": trick},
                           env=env)

    return run


@pytest.mark.parametrize("trick", ["none", "spaces", "crlf", "shout"])
def test_what_is_only_untidy_passes(kit, play, trick):
    result = play(trick, "--quiet", env={})
    assert result.returncode == 0, result.stderr
    assert kit.metrics()["passed_correctness"] is True
    kit.assert_nothing_left()


@pytest.mark.parametrize("trick, name", [
    ("drip", "ReplyTimeout"),
    ("bom", "ReplyTimeout"),  # a line that begins no object is talk, and no answer comes
    ("long_line", "LineTooLong"),
    ("duplicate_key", "Json"),
    ("deep", "Json"),
    ("huge_int", "Json"),
    ("float_token", "Json"),
    ("nan", "Json"),
    ("infinite", "Json"),
    ("nul", "Json"),
    ("not_utf8", "Json"),
    ("stop_talking", "EngineExited"),
])
def test_a_bad_answer_is_refused_by_name(kit, play, trick, name):
    result = play(trick)
    assert result.returncode == 1, result.stderr
    kit.assert_failed_score(name)
    kit.assert_nothing_left()


def test_right_only_while_it_is_timed(kit, play):
    assert play("only_timed").returncode == 1
    metrics = kit.assert_failed_score("teacher-forced token mismatch")
    assert metrics["passed_correctness"] is False


@pytest.mark.parametrize("trick", ["weights_appended", "weights_and_back", "weights_removed",
                                   "weights_added"])
def test_other_weights_than_were_hashed_are_not_sealed(kit, play, trick):
    """Even when their bytes and times are put back before the end."""
    result = play(trick)
    assert result.returncode == 1, result.stderr
    kit.assert_failed_score("WEIGHTS-CHANGED")


@pytest.mark.parametrize("trick", ["engine_appended", "engine_removed"])
def test_another_engine_than_was_started_is_not_sealed(kit, play, trick):
    result = play(trick)
    assert result.returncode == 1, result.stderr
    kit.assert_failed_score("ENGINE-CHANGED")


def test_a_daemon_is_not_left(kit, play):
    """It has left the engine's process group and holds all of its pipes."""
    result = play("daemon", env={})
    assert result.returncode == 0, result.stderr
    pid = int((kit.folder / "script.json.daemon").read_text())
    assert not pathlib.Path(f"/proc/{pid}").exists()


def test_an_engine_that_ignores_the_end_of_its_input_is_killed(kit, play):
    result = play("stays", env={})
    assert result.returncode == 0, result.stderr
    assert_sealed(kit)
    kit.assert_nothing_left()


def test_the_engine_is_not_told_where_the_golden_is(kit):
    """Neither by its arguments nor by its environment, whatever the judge's own hold."""
    result = kit.iterate("--quiet", env={"LC_GOLDEN": "x", "GOLDEN": str(kit.golden),
                                         "MLXFAST_GOLDEN": str(kit.golden)})
    assert result.returncode == 0, result.stderr
    told = [*kit.log()["argv"], *kit.log()["env"].values()]
    assert not [t for t in told if kit.golden.name in t]
    assert os.path.isabs(kit.log()["argv"][0])


@pytest.mark.parametrize("name", ["public.golden.json", "below/innocent.bin"])
def test_a_golden_that_the_engine_could_read_is_refused(kit, name):
    """The sandbox shows the engine its weights; a copy under another name is a copy."""
    copy = kit.weights / name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(kit.golden, copy)
    result = kit.iterate("--quiet")
    assert result.returncode == 1
    kit.assert_failed_score("GOLDEN-IN-WEIGHTS")
    assert not (kit.folder / "log.json").exists()  # no engine was started


@pytest.mark.parametrize("trick, error", [
    ("none", None), ("stop_talking", "EngineExited"), ("drip", "ReplyTimeout"), ("deep", "Json"),
    ("only_timed", "RECORD-NOT-SELF-CONSISTENT"), ("weights_and_back", "WEIGHTS-CHANGED"),
    ("engine_appended", "ENGINE-CHANGED")])
def test_no_golden_is_recorded_from_a_hostile_engine(kit, play, trick, error):
    kit.golden.unlink()
    result = subprocess.run(
        [BUILD / "record-correctness-golden", "--worker-bin",
         kit.folder / "engine" / "hostile_engine.py", "--weights", kit.weights, "--contract",
         kit.contract, "--out", kit.golden, "--prompt-tokens", kit.folder / "p0.json",
         "--case-name", "one", "--steps", "64", "--benchmark-free-run", "--no-sandbox",
         "--engine-resource", f"script={kit.script(evil=trick)}", "--quiet"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **TIGHT})
    assert kit.golden.exists() == (error is None)
    assert result.returncode == (0 if error is None else 1), result.stderr
    if error is not None:
        assert result.stderr.startswith(f"record-correctness-golden: {error}: ")
    kit.assert_nothing_left()
