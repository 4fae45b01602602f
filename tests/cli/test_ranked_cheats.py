"""Engines that cheat in a serial ranked run (tests/cheats/serial_engine.py), and their honest twin under the
same contract: who works where nothing is scored is refused, or does not get to it."""

import json

import pytest
from official_kit import ARMED, QUIET, ROOT, STATISTICS, OfficialKit

ENGINE = (ROOT / "tests" / "cheats" / "serial_engine.py").read_text()
# A busy machine may make one request twice as long as another; the cheats do ten times what they tell.
RULES = {**ARMED, "seed_window_tolerance": 2, "statistics": {**STATISTICS, "max_pairs": 1},
         "official_pairs": 1}


@pytest.fixture(scope="module")
def made(build, tmp_path_factory):
    return OfficialKit(tmp_path_factory.mktemp("cheats"))


@pytest.fixture
def kit(made):
    made.write_contract(**RULES)
    return made


def run(kit, mode):
    assert ENGINE.count('MODE = "honest"') == 1
    for tree, own in ((kit.base, "honest"), (kit.sub, mode)):
        (tree / "engine").write_text(ENGINE.replace('MODE = "honest"', f'MODE = "{own}"'))
    result = kit.official("--quiet")
    return result, json.loads(kit.score.read_text())


def passed(kit, mode):
    result, document = run(kit, mode)
    assert result.returncode == 0, result.stderr
    assert document["passed"] is True


def test_an_honest_engine(kit):
    passed(kit, "honest")


@pytest.mark.parametrize("mode", ["begin", "barrier", "trim", "late", "behind"])
def test_work_where_nothing_is_scored(kit, mode):
    result, document = run(kit, mode)
    assert result.returncode == 1, result.stderr
    assert document["passed"] is False and document["score"] is None
    failure = "decode barrier failed" if mode == "behind" else "seed window failed"
    assert document["metrics"]["error"].startswith(f"{failure}: in pair 1 "), document["metrics"]["error"]
    pair = document["metrics"]["paired_legs"][0]
    place = {"barrier": "prefill", "late": "prefill", "behind": "decode"}.get(mode)
    for phase in ("prefill", "decode"):  # where the work was done, a reader of the score sees
        assert pair[f"control_{phase}_barrier_seconds"] >= 0
        took = pair[f"candidate_{phase}_barrier_seconds"]
        assert took > 0.04 if phase == place else took >= 0  # of processor time, which the clock cannot undercut


def test_an_engine_stands_still_between_phases(kit):
    """It would give a wrong token had its thread got to work while the judge waited a second."""
    # Awake again its thread shares the interpreter with the seed, which takes twice as long by that alone.
    kit.write_contract(**{**RULES, "seed_window_tolerance": 20, "quiet": {**QUIET, "window_seconds": 1}})
    passed(kit, "gate")


def test_a_warm_up_gives_nothing_away(kit):
    """It would give a wrong token had the timed prompt been the warm-up's read backwards."""
    passed(kit, "undo")
