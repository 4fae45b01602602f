"""docs/setup.md from the checkpoint to the weights: its commands, as they stand."""

import re
import subprocess

from conftest import ROOT


def test_the_commands_of_the_page(build, tmp_path):
    page = (ROOT / "docs/setup.md").read_text()
    section = page.split("## From the checkpoint to the folder that an engine loads", 1)[1].split("\n## ", 1)[0]
    commands = re.findall(r"^    (build/mlxfast .*?)(?:  +#.*)?$", section, re.M)
    assert [c.split()[1] for c in commands] == ["preflight", "transform", "verify-transform", "preflight"]
    (tmp_path / "build").symlink_to(build)
    (tmp_path / "models").symlink_to(ROOT / "models")
    for command in commands:
        result = subprocess.run(command.replace("/tmp/", f"{tmp_path}/"), shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, f"{command}\n{result.stderr}"
