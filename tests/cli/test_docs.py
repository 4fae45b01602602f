"""What the documentation says and what the programs do are the same: every flag in a command's
--help stands in its table in docs/, and the other way round."""

import re
import subprocess

import pytest

from conftest import ROOT

HEADING = re.compile(r"^#{2,4} `((?:benchd|bench-worker|record-correctness-golden|mlxfast|synth-checkpoint)[a-z -]*)`", re.M)


def documented():
    """(page, command, flags): a heading such as ## `benchd iterate` owns the flags of the table
    rows below it, up to the next heading."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        parts = re.split(r"^(#{1,4} .*)$", page.read_text(), flags=re.M)
        for heading, body in zip(parts[1::2], parts[2::2]):
            match = HEADING.match(heading)
            if match:
                flags = set()
                for row in body.splitlines():
                    if row.startswith("|"):
                        flags |= set(re.findall(r"--[a-z0-9][a-z0-9-]*", row.split("|")[1]))
                found.append((page.name, match.group(1).strip(), flags))
    return found


COMMANDS = documented()


def test_every_command_is_documented():
    names = {command for _, command, _ in COMMANDS}
    for needed in ("benchd iterate", "benchd validate-golden", "benchd weights-digest",
                   "bench-worker runtime-worker", "bench-worker resident", "bench-worker manifest", "bench-worker generate",
                   "bench-worker logits", "bench-worker bench", "record-correctness-golden", "mlxfast convert-drafter", "mlxfast fetch",
                   "synth-checkpoint"):
        assert needed in names, f"no docs page has a heading `{needed}`"


@pytest.mark.parametrize("page, command, flags", COMMANDS, ids=[c[1] for c in COMMANDS])
def test_flags_equal_help(build, page, command, flags):
    program, *sub = command.split()
    result = subprocess.run([str(build / program), *sub, "--help"], capture_output=True, text=True,
                            timeout=60)
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout or "usage" in result.stdout
    in_help = set(re.findall(r"^\s+(--[a-z0-9][a-z0-9-]*)", result.stdout, flags=re.M)) - {"--help"}
    assert in_help == flags - {"--help"}, f"{page}: `{command}` and its --help differ"
