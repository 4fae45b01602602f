"""benchd measure-noop on a track of block decoding, with the toy engine and its drafter."""

import json
import os
import subprocess

import pytest

from conftest import BUILD, ROOT
from judge_kit import DEADLINES
from ranked_blocks_kit import BLOCKS, RankedKit, TOKENS


@pytest.fixture(scope="module")
def made(tmp_path_factory, build):
    return RankedKit(tmp_path_factory.mktemp("blocks")).make()


@pytest.fixture
def kit(made, tmp_path):
    return made.copy(tmp_path / "kit")


def noop(kit, *extra, goldens=2, without=(), env=None):
    flags = {"--baseline-workspace": kit.base, "--engine": "engine", "--weights": "weights",
             "--drafter": kit.drafter, "--contract": kit.contract, "--pairs": 2,
             "--out": kit.folder / "noop.json", "--engine-tree": ROOT / "tests"}
    line = [BUILD / "benchd", "measure-noop", "--no-cool-gate", "--quiet"]
    for flag, value in flags.items():
        if flag not in without:
            line += [flag, value]
    for path in sorted(kit.pool.iterdir())[:goldens]:
        line += ["--golden", path]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
    return subprocess.run([str(a) for a in [*line, *extra]], capture_output=True, text=True,
                          timeout=120, env=environment | DEADLINES | (env or {}))


def refused(kit, result, name, code):
    assert result.returncode == code, result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith(f"benchd measure-noop: {name}: ")
    assert not (kit.folder / "noop.json").exists()


def test_serial_against_blocks(kit):
    result = noop(kit)
    assert result.returncode == 0, result.stderr
    report = json.loads((kit.folder / "noop.json").read_text())
    assert report["kind"] == "blocks" and report["decode_tokens"] == TOKENS
    assert report["block_size"] == BLOCKS["block_size"]
    assert [p["prompt"] for p in report["prompts"]] == ["hidden-prose-0", "hidden-prose-1"]
    pinned = [entry["sha256"] for entry in kit.entries()]
    assert [p["golden_sha256"] for p in report["prompts"]] == pinned[:2]
    for p in report["prompts"]:
        low, high = p["interval"]
        assert 0 < low <= p["noop_decode_speedup"] <= high and len(p["pairs"]) == 2
    legs = [(g["pair"], g["leg"], g["phase"]) for g in report["gates"]]
    assert legs == [(pair, leg, "block-decode")
                    for pair, order in ((1, ("control", "candidate")),
                                        (2, ("candidate", "control")))
                    for _ in range(2) for leg in order]


@pytest.mark.parametrize("fault,name", [
    ({"wrong_token": 3}, "dflash_token_not_admissible: "),
    ({"forged": 3}, "dflash_work_binding_logit_mismatch: "),
    ({"die": 2}, "EngineExited: "),
], ids=["wrong token", "forged", "dies"])
def test_each_leg_is_replayed(kit, fault, name):
    """An engine whose rows are not its reference's own: refused, and no report."""
    kit.fault("base", **fault)
    result = noop(kit)
    assert result.returncode == 1 and name in result.stderr
    assert not (kit.folder / "noop.json").exists()


def test_misuse(kit):
    refused(kit, noop(kit, without=("--drafter",)), "USAGE", 2)
    refused(kit, noop(kit, "--engine-resource", "a=1", "--engine-resource", "a=2"), "USAGE", 2)
    refused(kit, noop(kit, "--prompt", "one", goldens=2), "GOLDEN-COUNT-MISMATCH", 2)
    extra = ("--golden", next(kit.pool.iterdir()))
    refused(kit, noop(kit, *extra, goldens=8), "USAGE", 2)
    refused(kit, noop(kit, without=("--baseline-workspace",)), "BASELINE-WORKSPACE-MISSING", 1)


def test_the_flags_of_a_ranked_run(kit):
    """Resources reach every worker, in its sandbox; a relative tree is one of the workspace; no resident."""
    (kit.base / "libraries").mkdir()
    (kit.base / "libraries" / "one").write_text("1")
    resource = kit.folder / "resource.txt"
    resource.write_text("2")
    engine = kit.base / "engine"
    text = engine.read_text()
    first, rest = text.split("\n", 1)
    engine.write_text(f'''{first}
import sys
at = sys.argv.index("--resource")
kind, path = sys.argv[at + 1].split("=", 1)
assert kind == "table" and open(path).read() == "2"
assert open({str(kit.base / "libraries" / "one")!r}).read() == "1"
del sys.argv[at:at + 2]
{rest}''')
    flags = ("--engine-resource", f"table={resource}", "--engine-tree", "libraries")
    result = noop(kit, *flags, goldens=1)
    assert result.returncode == 0, result.stderr
    (kit.folder / "noop.json").unlink()
    assert noop(kit, *flags[2:], goldens=1).returncode == 1
    result = noop(kit, *flags, goldens=1, env={"BENCH_WORKER_RESIDENT_SOCKET": "/tmp/x"})
    refused(kit, result, "LEG-SERVE-INHERITED-SOCKET", 1)


def test_unpinned_bytes(kit):
    path = sorted(kit.pool.iterdir())[0]
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document) + "\n")
    kit.write_contract(timed_prompt_pool=[{**kit.entries()[0], "bytes": path.stat().st_size + 1}])
    refused(kit, noop(kit, goldens=1), "GOLDEN-PIN-MISMATCH", 1)
