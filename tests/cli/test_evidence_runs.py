"""Ranked runs that sign by themselves, and the verification of what they leave: the serial loop and that
of block decoding, whole programs with toy engines."""

import json
import os
import subprocess

import pytest

from conftest import BUILD
from official_kit import OfficialKit
from ranked_blocks_kit import RankedKit


def needs_sandbox():
    probe = subprocess.run([BUILD / "benchd", "probe-sandbox"], capture_output=True)
    return pytest.mark.skipif(probe.returncode != 0, reason="no sandbox on this machine, which an "
                              "official run must have")


pytestmark = needs_sandbox() if (BUILD / "benchd").exists() else pytest.mark.skip(reason="no build")


def benchd(*arguments):
    environment = {k: v for k, v in os.environ.items()
                   if k not in ("MLXFAST_SIGNING_KEY", "MLXFAST_SIGNING_LOG", "RUNNER_NAME")}
    return subprocess.run([str(a) for a in (BUILD / "benchd", *arguments)], capture_output=True, text=True,
                          timeout=60, env=environment)


def keygen(folder):
    assert benchd("keygen", "--out", folder / "key").returncode == 0
    return folder / "key", folder / "scores.log"


def pack_and_verify(kit, folder, *more, verify=()):
    result = benchd("bundle", "--score", kit.score, "--contract", kit.contract, "--golden", kit.golden,
                    "--key", folder / "key.pub", "--log", folder / "scores.log", "--engine",
                    kit.sub / "engine", "--out", folder / "bundle.tar", *more)
    assert result.returncode == 0, result.stderr
    result = benchd("verify", folder / "bundle.tar", "--public-key", folder / "key.pub", "--log",
                    folder / "scores.log", "--weights", kit.sub / "weights", "--baseline-engine",
                    kit.base / "engine", "--strict", *verify)
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_a_serial_run(build, tmp_path):
    kit = OfficialKit(tmp_path)
    key, log = keygen(tmp_path)
    result = kit.official("--signing-key", key, "--log", log)
    assert result.returncode == 0, result.stderr
    assert "signed by " in result.stderr
    out = pack_and_verify(kit, tmp_path, "--calibration", kit.calibration)
    for line in ("ok    score: ", "ok    metrics.statistics: ", "ok    metrics.gates: ",
                 "ok    calibration.json: ", "ok    --baseline-engine: "):
        assert line in out
    assert "2 pairs and the contract give" in out


def test_a_run_of_block_decoding(build, tmp_path):
    kit = RankedKit(tmp_path).make()
    key, log = keygen(tmp_path)
    result = kit.run("--log", log, env={"MLXFAST_SIGNING_KEY": str(key)})
    kit.passed(result)
    out = pack_and_verify(kit, tmp_path, verify=("--drafter", kit.drafter))
    assert "ok    score: " in out and "the ratio of the means of the sealed pairs" in out
    assert "ok    metrics.statistics: " in out
    statement = json.loads((kit.score.parent / "score.json.statement.json").read_text())
    digests = {entry["sha256"] for entry in kit.entries()}
    assert not digests & {golden["sha256"] for golden in statement["goldens"]}  # the prompt is hidden


def test_a_key_or_log_that_will_not_do_ends_a_run_before_it_begins(build, tmp_path):
    kit = OfficialKit(tmp_path)
    key, log = keygen(tmp_path)
    log.write_text("{")
    for extra, name in ((("--signing-key", key, "--log", log), "LOG-TORN"),
                        (("--signing-key", tmp_path / "key.pub"), "KEY-INVALID"),
                        (("--log", log), "USAGE")):
        result = kit.official(*extra)
        assert result.returncode == 2
        assert f"{name}: " in result.stderr and "leg 1" not in result.stderr
        assert not kit.score.exists()
