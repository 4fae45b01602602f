"""tools/speculation-bench: runs its pairs, and fails where the tokens differ. No speed is asserted."""

import json
import os
import stat
import subprocess

from conftest import BUILD, ROOT

TOOL = ROOT / "tools/speculation-bench"


def bench(*arguments):
    return subprocess.run([str(TOOL), "--prompts", "2", "--repeats", "1", "-n", "24", *arguments],
                          capture_output=True, text=True)


def test_pairs(build):
    out = bench("--worker", str(BUILD / "bench-worker"), "--widths", "4,auto", "--json")
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert result["prompts"] == 2 and result["tokens"] == 24
    assert [row["width"] for row in result["widths"]] == ["4", "auto"]
    for row in result["widths"]:
        assert row["pairs"] == 2 and 1 <= row["tokens_per_round"] <= 16
        assert row["ratio"] > 0 and row["round_us"] > 0 and row["serial_step_us"] > 0


def test_other_tokens_are_an_error(build, tmp_path):
    fake = tmp_path / "worker"
    fake.write_text("#!/bin/sh\n"
                    "case \"$*\" in *--drafter*) t=2;; *) t=1;; esac\n"
                    "echo '{\"engine\":\"fake\",\"token_ids\":[1,'$t'],\"rounds\":1,\"decode_seconds\":1,"
                    "\"decode_tokens_per_second\":1}'\n")
    os.chmod(fake, fake.stat().st_mode | stat.S_IXUSR)
    out = bench("--worker", str(fake), "--widths", "4")
    assert out.returncode != 0 and "other tokens than serial decoding" in out.stderr
