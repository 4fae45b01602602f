"""benchd's table of subcommands, its terminal manners, and the developer's judge-overhead."""

import os
import pty
import re
import signal
import subprocess

import pytest

from conftest import BUILD
from judge_kit import ENGINE, Kit


@pytest.mark.parametrize("arguments, status, text", [
    ([], 2, "Usage: benchd SUBCOMMAND"), (["-h"], 0, "Usage: benchd SUBCOMMAND"),
    (["--help"], 0, "iterate"), (["help"], 0, "weights-digest"),
    (["no-such"], 2, 'unknown subcommand "no-such"'),
    (["official"], 2, "--engine"),
    (["official", "--help"], 0, "--baseline-workspace"),
    (["transform"], 2, "benchd transform: not implemented in this wave"),
    (["submit"], 2, "benchd submit: not implemented in this wave"),
    (["iterate"], 2, "a required flag is missing"),
    (["iterate", "--help"], 0, "Exit codes"), (["iterate", "x", "-h"], 0, "--engine PATH"),
])
def test_top_level(build, run, arguments, status, text):
    result = run([build / "benchd", *arguments])
    assert result.returncode == status
    assert text in (result.stdout if status == 0 else result.stderr)
    assert (result.stderr if status == 0 else result.stdout) == ""


def test_hidden_subcommands_are_not_listed(build, run):
    listed = run([build / "benchd", "--help"]).stdout
    assert "judge-overhead" not in listed and "refusals" not in listed
    assert run([build / "benchd", "judge-overhead", "--help"]).returncode == 0


def test_judge_overhead_reports_its_figures(build, run):
    engine = build / "engines" / "null_engine"
    if not engine.exists():
        pytest.skip("needs `make engines`")
    result = run([build / "benchd", "judge-overhead", "--engine", engine, "--steps", "200"])
    assert result.returncode == 0, result.stderr
    for row in ("raw pipe ping-pong", "judge, timed interval", "judge, whole call"):
        assert re.search(rf"^{row}( +[\d.]+ us){{2}}( +[\d.]+){{2}}$", result.stdout, re.M), \
            result.stdout
    assert re.search(r"the judge adds -?[\d.]+ us to the timed interval and -?[\d.]+ us in all",
                     result.stdout)


def test_judge_overhead_needs_an_engine(build, run, tmp_path):
    result = run([build / "benchd", "judge-overhead", "--engine", tmp_path / "none"])
    assert result.returncode == 1 and "SPAWN-FAILED" in result.stderr


def test_one_updated_line_on_a_terminal(build, tmp_path):
    kit = Kit(tmp_path)
    kit.record()
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [BUILD / "benchd", "iterate", "--engine", ENGINE, "--weights", kit.weights, "--golden",
         kit.golden, "--contract", kit.contract, "--score-path", kit.score],
        stdout=subprocess.DEVNULL, stderr=child, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(parent)
    assert process.wait(timeout=60) == 0
    assert b"\r" in seen and b"correctness: " in seen


def test_the_recorder_is_interrupted_cleanly(build, tmp_path):
    kit = Kit(tmp_path)
    script = kit.script(at={"kind": "correctness_step", "number": 5}, do="stderr_and_hang")
    process = subprocess.Popen(
        [BUILD / "record-correctness-golden", "--worker-bin", ENGINE, "--weights", kit.weights,
         "--contract", kit.contract, "--out", kit.golden, "--prompt-tokens",
         kit.folder / "p0.json", "--case-name", "one", "--steps", "64", "--engine-resource",
         f"script={script}", "--engine-resource", f"log={kit.folder / 'log.json'}", "--no-sandbox"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "now it hangs" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Interrupted" in err
    assert not kit.golden.exists()
    kit.assert_nothing_left()
