"""setup-dflash.sh: what is there is checked against a track's pins, a published drafter is converted, and
what is missing is named with its place."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading

import pytest

from conftest import ROOT
from test_convert_drafter import AT, RECORD, REPO, REVISION, random_fused, sizes, write

SCRIPT = ROOT / "setup-dflash.sh"
NAMES = ("MLXFAST_REFERENCE_DIR", "MLXFAST_WEIGHTS_PATH", "MLXFAST_DFLASH_DRAFTER_DIR",
         "MLXFAST_DFLASH_ASSISTANT_DIR")
XS = ROOT / "tracks/laguna-xs-2.1-dflash-v1"


def environment(build, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_")}
    return {**clean, "BUILD": str(build), "MLXFAST_SKIP_WEIGHTS_DOWNLOAD": "1"} | {k: str(v) for k, v in more.items()}


@pytest.fixture
def setup(build, run):
    def call(*arguments, script=SCRIPT, cwd="/", **variables):
        return run([script, *arguments], env=environment(build, **variables), cwd=cwd)
    return call


def pins(folder, names):
    return "# <sha256> <bytes> <path>\n" + "".join(
        f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()} {(folder / n).stat().st_size} {n}\n"
        for n in names)


@pytest.fixture
def small(setup, build, run, tmp_path):
    """A repository of its own with a track of its own: a target of two files, a drafter as published and
    as pinned. call(...) runs the script there."""
    home = tmp_path / "home"
    track = home / "tracks/small-v1"
    track.mkdir(parents=True)
    shutil.copy(SCRIPT, home / "setup-dflash.sh")
    c = sizes()
    tensors = random_fused(c)
    data = write(tmp_path / "published", c, tensors)
    result = run([build / "mlxfast", "convert-drafter", "--source", tmp_path / "published", "--out",
                  tmp_path / "pinned", *RECORD])
    assert result.returncode == 0, result.stderr
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"a": 1}')
    (target / "model.safetensors").write_bytes(b"values")
    (track / "target.sha256").write_text(pins(target, ["config.json", "model.safetensors"]))
    (track / "drafter.sha256").write_text(
        pins(tmp_path / "pinned", ["config.json", "model.safetensors"]))
    (track / "contract.json").write_text(json.dumps({"assistant": {"source": {
        "model_id": REPO, "revision": REVISION, "converted_at": AT,
        "model_sha256": hashlib.sha256(data).hexdigest()}}}))

    def call(*arguments, cwd="/", **variables):
        variables.setdefault("MLXFAST_REFERENCE_DIR", target)
        variables.setdefault("MLXFAST_DFLASH_DRAFTER_DIR", tmp_path / "pinned")
        return setup("--track", "small-v1", *arguments, script=home / "setup-dflash.sh", cwd=cwd,
                     **{k: v for k, v in variables.items() if v is not None})

    call.home, call.track, call.target, call.tmp = home, track, target, tmp_path
    return call


def refused(result, *words):
    assert result.returncode == 1, result.stdout + result.stderr
    assert "ready" not in result.stdout
    for word in words:
        assert str(word) in result.stderr, result.stderr


def test_shell_style():
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_bundled_track_is_ready(setup):
    for flags in ([], ["--verify-only"], ["--track", "laguna-nano-dflash-v1"]):
        result = setup(*flags)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1] == "ready: laguna-nano-dflash-v1"
        assert "1457776 model.safetensors" in result.stdout


def test_help_and_usage(setup):
    text = setup("--help")
    assert text.returncode == 0 and text.stderr == ""
    for word in ("--track", "--verify-only", "--print-paths", *NAMES, "exit codes"):
        assert word in text.stdout
    assert "set -eu" not in text.stdout
    for flags in (["--nonsense"], ["--track"], ["--verify-only", "--print-paths"],
                  ["--track", "../x"], ["--track", ""]):
        result = setup(*flags)
        assert result.returncode == 2 and "--help" in result.stderr or "track's id" in result.stderr
    assert setup("--track", "no-such-v1").returncode == 1


def test_print_paths(setup, small):
    result = setup("--print-paths")
    assert result.stdout.splitlines() == [
        f"MLXFAST_DFLASH_CONTRACT_PATH={ROOT}/tracks/laguna-nano-dflash-v1/contract.json",
        f"MLXFAST_WEIGHTS_PATH={ROOT}/models/laguna-nano",
        f"MLXFAST_DFLASH_DRAFTER_DIR={ROOT}/models/laguna-nano-dflash"]
    published = small.tmp / "published"
    before = small("--print-paths", MLXFAST_DFLASH_DRAFTER_DIR=published)
    assert f"MLXFAST_DFLASH_DRAFTER_DIR={published}" in before.stdout
    assert small(MLXFAST_DFLASH_DRAFTER_DIR=published).returncode == 0
    after = small("--print-paths", MLXFAST_DFLASH_DRAFTER_DIR=published)
    assert f"MLXFAST_DFLASH_DRAFTER_DIR={small.home}/out/drafter/small-v1" in after.stdout


def test_paths_are_meant_from_where_the_caller_stands(small):
    result = small("--print-paths", cwd=small.tmp, MLXFAST_REFERENCE_DIR="target",
                   MLXFAST_DFLASH_DRAFTER_DIR="pinned")
    assert f"MLXFAST_WEIGHTS_PATH={small.target}\n" in result.stdout
    assert f"MLXFAST_DFLASH_DRAFTER_DIR={small.tmp}/pinned\n" in result.stdout
    assert small("--verify-only", cwd=small.tmp, MLXFAST_REFERENCE_DIR="target",
                 MLXFAST_DFLASH_DRAFTER_DIR="pinned").returncode == 0


def test_the_real_track_says_what_to_put_where(setup):
    result = setup("--track", "laguna-xs-2.1-dflash-v1")
    refused(result, "MLXFAST_REFERENCE_DIR", "model-00001-of-00005.safetensors (5363064795 bytes)",
            "MLXFAST_DFLASH_DRAFTER_DIR", "model.safetensors (924137156 bytes)",
            "poolside/Laguna-XS-2.1-DFlash-NVFP4", "6c0564233472e9572ec3d9ecc6025a1dc77799e9")
    for row in (XS / "target.sha256").read_text().splitlines():
        if not row.startswith("#"):
            assert row.split()[2] in result.stderr


def test_a_pinned_drafter(small):
    for flags in ([], ["--verify-only"]):
        result = small(*flags)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1].startswith(("ready", "  export"))
    assert not (small.home / "out").exists()


def test_the_alias(small):
    pinned = small.tmp / "pinned"
    assert small(MLXFAST_DFLASH_DRAFTER_DIR=None,
                 MLXFAST_DFLASH_ASSISTANT_DIR=pinned).returncode == 0
    assert small(MLXFAST_DFLASH_ASSISTANT_DIR=pinned).returncode == 0
    refused(small(MLXFAST_DFLASH_ASSISTANT_DIR=small.tmp / "published"), "disagree")
    refused(small(MLXFAST_DFLASH_DRAFTER_DIR=None), "set MLXFAST_DFLASH_DRAFTER_DIR")


def test_a_published_drafter_is_converted(small):
    """The pinned files come out of it, under the record that the contract names."""
    published, out = small.tmp / "published", small.home / "out/drafter/small-v1"
    refused(small("--verify-only", MLXFAST_DFLASH_DRAFTER_DIR=published), "nothing was converted",
            "./setup-dflash.sh --track small-v1")
    assert not out.exists()
    for _ in range(2):  # the second time it is there already
        result = small(MLXFAST_DFLASH_DRAFTER_DIR=published)
        assert result.returncode == 0, result.stderr
        assert f"export MLXFAST_DFLASH_DRAFTER_DIR={out}" in result.stdout
        for name in ("config.json", "model.safetensors"):
            assert (out / name).read_bytes() == (small.tmp / "pinned" / name).read_bytes()
    assert small("--verify-only", MLXFAST_DFLASH_DRAFTER_DIR=published).returncode == 0
    (out / "config.json").write_text("{}")
    refused(small("--verify-only", MLXFAST_DFLASH_DRAFTER_DIR=published), "out/drafter/small-v1/config")
    refused(small(MLXFAST_DFLASH_DRAFTER_DIR=published), "DRAFTER-OUT-DIFFERS")


def test_another_drafter_is_not_converted(small):
    c = sizes()
    write(small.tmp / "other", c, random_fused(c, seed=8))
    refused(small(MLXFAST_DFLASH_DRAFTER_DIR=small.tmp / "other"), "DRAFTER-PIN-MISMATCH",
            REPO, REVISION)
    assert not (small.home / "out/drafter/small-v1").exists()
    contract = small.track / "contract.json"
    contract.write_text("{}")
    refused(small(MLXFAST_DFLASH_DRAFTER_DIR=small.tmp / "published"), "another length")


def spoil(what, folder, tmp):
    model = folder / "model.safetensors"
    if what == "symbolic link":
        model.rename(tmp / "aside")
        model.symlink_to(tmp / "aside")
    elif what == "hard link":
        os.link(model, tmp / "aside")
    elif what == "not expected":
        (folder / ".hidden").write_text("x")
    elif what == "is not a file":
        (folder / "more").mkdir()
    elif what == "is missing":
        (folder / "config.json").unlink()
    elif what == "has SHA-256":
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
    else:
        (folder / "config.json").write_text("{}")


@pytest.mark.parametrize("side", ["target", "pinned"])
@pytest.mark.parametrize("what", ["symbolic link", "hard link", "not expected", "is not a file",
                                  "is missing", "has SHA-256", "bytes, pinned are"])
@pytest.mark.parametrize("flags", [[], ["--verify-only"]])
def test_what_is_not_as_pinned_is_refused(small, side, what, flags):
    folder = small.tmp / side
    spoil(what, folder, small.tmp)
    refused(small(*flags), what, folder)


def test_a_model_card_may_stand_there(small):
    (small.target / "README.md").write_text("a card")
    (small.target / ".mlxfast-reference-cache.lock").write_text("what mlxfast fetch leaves")
    assert small("--verify-only").returncode == 0


def test_what_was_fetched_is_found(small, build, run):
    """Where `mlxfast fetch` puts the target, this looks for it when nothing else is named."""
    (small.track / "fetch.json").write_text(
        '{"target": {"manifest": "target.sha256", "repo": "owner/small", "revision": "r1"}}')
    cache = small.tmp / "cache"
    refused(small("--verify-only", MLXFAST_REFERENCE_DIR=None, MLXFAST_HF_HOME=cache), "./setup.sh small-v1 fetches it")
    there = cache / "hub/models--owner--small/snapshots/r1"
    shutil.copytree(small.target, there)
    result = small("--verify-only", MLXFAST_REFERENCE_DIR=None, MLXFAST_HF_HOME=cache)
    assert result.returncode == 0 and f"target: {there}\n" in result.stdout, result.stderr


def test_weights_beside_the_reference(small):
    """The folder that the engine loads may have the track's config; nothing else differs."""
    weights = small.tmp / "weights"
    shutil.copytree(small.target, weights)
    (weights / "config.json").write_text('{"b": 2}')
    refused(small(MLXFAST_WEIGHTS_PATH=weights), weights, "config.json")
    (small.track / "config.json").write_text('{"b": 2}')
    assert small(MLXFAST_WEIGHTS_PATH=weights).returncode == 0
    alone = small("--verify-only", MLXFAST_WEIGHTS_PATH=weights, MLXFAST_REFERENCE_DIR=None)
    assert alone.returncode == 0, alone.stderr
    refused(small(MLXFAST_REFERENCE_DIR=weights), weights)
    refused(small(MLXFAST_WEIGHTS_PATH=small.tmp / "nowhere"), "MLXFAST_WEIGHTS_PATH")


def test_missing_programs_are_built(small, build):
    """With the machine's make, a Makefile that brings the programs, and one that fails."""
    (small.home / "tools").mkdir()
    script = small.home / "tools/install-deps"
    script.write_text("#!/bin/sh\ntest \"$1\" = build\n")
    script.chmod(0o755)
    makefile = small.home / "Makefile"
    makefile.write_text("all:\n\techo the reason; false\n")
    refused(small(BUILD="fresh"), "the reason", "fresh/setup-build.log")
    makefile.write_text(f"all:\n\tcp {build}/benchd {build}/bench-worker {build}/mlxfast $(BUILD)\n")
    result = small("--verify-only", BUILD="fresh")
    assert result.returncode == 0 and "building" not in result.stdout
    result = small(BUILD="fresh")
    assert result.returncode == 0 and "building in fresh" in result.stdout
    assert "building" not in small(BUILD="fresh").stdout


# ---- from nothing ----

@pytest.fixture
def served(small):
    """The small track with everything on a server and nothing here. serve(...) runs the script."""
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *a):
            super().__init__(*a, directory=small.tmp)

        def log_message(self, *a):
            requests.append(f"{self.command} {self.path}")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    (small.track / "fetch.json").write_text(json.dumps({
        "target": {"manifest": "target.sha256", "repo": "owner/small", "revision": "r1", "base_url": f"{url}/target"},
        "drafter": {"manifest": "drafter.sha256", "repo": "owner/draft", "revision": "r2"}}))
    shutil.copy(small.tmp / "pinned/config.json", small.track / "drafter-config.json")

    def call(*arguments, **variables):
        return small(*arguments, **{"MLXFAST_REFERENCE_DIR": None, "MLXFAST_DFLASH_DRAFTER_DIR": None,
                                    "MLXFAST_HF_HOME": small.tmp / "cache", "MLXFAST_SKIP_WEIGHTS_DOWNLOAD": "",
                                    "MLXFAST_REFERENCE_RETRIES": 0,
                                    "MLXFAST_DFLASH_PUBLISHED_BASE_URL": f"{url}/published"} | variables)
    call.url, call.requests, call.cache = url, requests, small.tmp / "cache/hub"
    yield call
    server.shutdown()
    server.server_close()


def test_from_nothing_to_ready(served, small):
    """Target and published drafter are fetched, the drafter is converted, both are as pinned; once."""
    out = small.home / "out/drafter/small-v1"
    refused(served("--verify-only"), "the target is not there", "the drafter is not there")
    assert served.requests == [] and not (small.home / "out").exists()
    result = served()
    assert result.returncode == 0 and "ready: small-v1" in result.stdout, result.stdout + result.stderr
    assert "converting" in result.stdout
    for name in ("config.json", "model.safetensors"):
        assert (out / name).read_bytes() == (small.tmp / "pinned" / name).read_bytes()
    assert [p.name for p in (small.home / "out").iterdir() if p.name != "drafter"] in ([], ["drafter-published"])
    assert not (small.home / "out/drafter-published/small-v1").exists()
    paths = served("--print-paths").stdout
    assert f"MLXFAST_DFLASH_DRAFTER_DIR={out}\n" in paths
    assert f"MLXFAST_WEIGHTS_PATH={served.cache}/models--owner--small/snapshots/r1\n" in paths
    served.requests.clear()
    for flags in ([], ["--verify-only"]):
        assert served(*flags).returncode == 0
    assert served.requests == []


def test_what_an_interrupted_run_left_is_fetched_on(served, small):
    """A folder that is there is not yet a target: files that are missing or wrong in it are fetched."""
    there = served.cache / "models--owner--small/snapshots/r1"
    (there / ".mlxfast-fetch").mkdir(parents=True)
    refused(served("--verify-only"), "the target is not there", "./setup.sh small-v1 fetches it")
    result = served()
    assert result.returncode == 0 and "ready: small-v1" in result.stdout, result.stdout + result.stderr
    (there / "model.safetensors").write_bytes(b"valves")
    os.utime(there / "model.safetensors", (1000, 1000))
    refused(served("--verify-only"), "model.safetensors", "pinned is")
    assert served().returncode == 0 and (there / "model.safetensors").read_bytes() == b"values"
    named = shutil.copytree(there, small.tmp / "named")
    (named / ".mlxfast-fetch").mkdir()
    refused(served(MLXFAST_REFERENCE_DIR=named), "named/.mlxfast-fetch", "was interrupted")


def test_a_mirror_of_the_pinned_drafter_needs_no_conversion(served, small):
    result = served(MLXFAST_DFLASH_ASSISTANT_BASE_URL=f"{served.url}/pinned")
    assert result.returncode == 0 and "converting" not in result.stdout, result.stdout + result.stderr
    assert (served.cache / "models--owner--draft/snapshots/r2/model.safetensors").exists()
    assert served("--verify-only").returncode == 0


def test_what_cannot_be_fetched_is_named_and_leaves_nothing(served, small):
    out = small.home / "out/drafter/small-v1"
    refused(served(MLXFAST_DFLASH_PUBLISHED_BASE_URL=f"{served.url}/nowhere"), "nowhere/model.safetensors", "404")
    model = small.tmp / "published/model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    refused(served(), "FETCH-SHA256", "model.safetensors", "the drafter as published was not fetched")
    assert not out.exists()
    data[-1] ^= 1
    model.write_bytes(data)
    assert served().returncode == 0
