"""mlxfast transform beyond INT8: which tensors and files, how they are written, the limit of bytes, a source that
changes, kill -9; mlxfast verify-transform."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from peak_memory import run_measured

from conftest import ROOT

NANO = ROOT / "models" / "laguna-nano"
DIGEST, INDEX = ".benchmark-source.sha256", "model.safetensors.index.json"
FIRST, SECOND, THIRD = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2, 3))


def run(arguments, **kwargs):
    env = {k: v for k, v in os.environ.items() if k != "MLXFAST_MAX_WEIGHTS_BYTES"} | kwargs.pop("env", {})
    return subprocess.run([str(a) for a in arguments], timeout=120, capture_output=True, text=True, env=env, **kwargs)


@pytest.fixture
def transform(build, tmp_path):
    def call(*flags, source=NANO, out=tmp_path / "out", **kwargs):
        return run([build / "mlxfast", "transform", "--source", source, "--out", out, *flags], **kwargs)

    return call


@pytest.fixture
def weights(transform, tmp_path):
    assert transform("--quiet").returncode == 0
    return tmp_path / "out"


@pytest.fixture
def verify(build, tmp_path):
    def call(*flags, source=NANO, weights=tmp_path / "out", **kwargs):
        return run([build / "mlxfast", "verify-transform", "--source", source, "--weights", weights, "--quiet", *flags],
                   **kwargs)

    return call


@pytest.fixture(scope="module")
def big(build, tmp_path_factory):
    """One layer of true size, its weights holes: what takes long enough to be interrupted."""
    folder = tmp_path_factory.mktemp("big") / "big"
    made = run([build / "synth-checkpoint", "--config", ROOT / "tracks/laguna-xs-2.1-dflash-v1/config.json", "--layers",
                "1", "--headers-only", "--out", folder])
    assert made.returncode == 0, made.stderr
    return folder


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def read_shard(path):
    """[(name, dtype, shape, bytes)] in the order of the data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    base = 8 + length
    return [(n, t["dtype"], t["shape"], data[base + t["data_offsets"][0] : base + t["data_offsets"][1]])
            for n, t in sorted(header.items(), key=lambda i: i[1]["data_offsets"])]


def write_shard(path, tensors):
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))


def with_a_vision_tower(folder):
    """nano with tensors that are not of text: frequencies amid the first shard, a shard of its own, a vision_config."""
    shutil.copytree(NANO, folder)
    tensors = read_shard(folder / FIRST)
    frequencies = ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [4], b"f" * 16)
    write_shard(folder / FIRST, tensors[:3] + [frequencies] + tensors[3:])
    tower = [("vision_tower.patch.weight", "BF16", [3, 5], b"v" * 30), ("multi_modal_projector.bias", "F32", [2], b"p" * 8)]
    write_shard(folder / THIRD, tower)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {frequencies[0]: FIRST} | {t[0]: THIRD for t in tower}
    (folder / INDEX).write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vision_config": {"layers": 3}}))
    return folder


def test_shards_are_the_source_and_linked_to_nothing(weights):
    for name in (FIRST, SECOND):
        assert (weights / name).read_bytes() == (NANO / name).read_bytes()
    for path in weights.iterdir():
        assert path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1, path
        assert not (NANO / path.name).exists() or path.stat().st_ino != (NANO / path.name).stat().st_ino


def test_files_and_their_form(weights):
    assert set(files(weights)) == {FIRST, SECOND, INDEX, "config.json", "tokenizer.json", "tokenizer_config.json", DIGEST}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (weights / name).read_bytes() == (NANO / name).read_bytes()
    for name in ("config.json", INDEX):
        text, source = (weights / name).read_text(), json.loads((NANO / name).read_text())
        assert json.loads(text) == source
        lines = text.splitlines()
        assert lines[0] == "{" and lines[-1] == "}" and text.endswith("}\n")
        top = [line for line in lines if line.startswith('  "')]
        assert [json.loads(line.split(": ")[0]) for line in top] == sorted(source)


def test_the_digest_of_the_sources_can_be_made_by_hand(weights):
    """docs/transform.md says how."""
    paths = sorted(str(p.relative_to(ROOT)) for f in ("base", "engine/checkpoint", "engine/model", "engine/transform")
                   for p in (ROOT / "src" / f).rglob("*.[ch]"))
    lines = run(["sha256sum", *paths], cwd=ROOT).stdout
    by_hand = subprocess.run(["sha256sum"], input=lines, capture_output=True, text=True).stdout[:64]
    text = (weights / DIGEST).read_text()
    assert len(text) == 65 and text.endswith("\n")
    assert text[:64] == by_hand, "was everything built since the last change?"


def test_what_is_not_of_text_is_left_out(build, transform, verify, tmp_path):
    source = with_a_vision_tower(tmp_path / "source")
    result = transform("--json", source=source)
    assert result.returncode == 0, result.stderr
    report, out = json.loads(result.stdout), tmp_path / "out"
    assert (report["tensors_dropped"], report["dropped_bytes"]) == (3, 16 + 30 + 8)
    assert (report["shards"], report["shards_cloned"]) == (2, 1)
    assert report["file_bytes"] == sum(len(b) for n, b in files(out).items() if n != DIGEST)
    assert not (out / THIRD).exists() and (out / SECOND).read_bytes() == (NANO / SECOND).read_bytes()
    assert read_shard(out / FIRST) == read_shard(NANO / FIRST)
    assert json.loads((out / INDEX).read_text()) == json.loads((NANO / INDEX).read_text())
    assert json.loads((out / "config.json").read_text()) == json.loads((NANO / "config.json").read_text())
    assert verify(source=source).returncode == 0
    told = [run([build / "bench-worker", "generate", "--weights", w, "--prompt", "One", "-n", "4"]).stdout
            for w in (out, NANO)]
    assert told[0] == told[1] != ""


def test_an_unknown_tensor_of_the_text_model_is_refused(transform, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(NANO, source)
    write_shard(source / FIRST, read_shard(source / FIRST) + [("model.extra", "BF16", [1], b"xx")])
    index = json.loads((source / INDEX).read_text())
    index["weight_map"]["model.extra"] = FIRST
    (source / INDEX).write_text(json.dumps(index))
    result = transform(source=source)
    assert result.returncode == 1 and "INVENTORY-MISMATCH" in result.stderr and "model.extra" in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_links_of_a_cache_become_files(transform, tmp_path):
    cache, blobs = tmp_path / "snapshots", tmp_path / "blobs"
    cache.mkdir(), blobs.mkdir()
    for i, path in enumerate(sorted(NANO.iterdir())):
        shutil.copy(path, blobs / str(i))
        (cache / path.name).symlink_to(f"../blobs/{i}")
    assert transform(source=cache).returncode == 0
    assert transform(out=tmp_path / "plain").returncode == 0
    assert files(tmp_path / "out") == files(tmp_path / "plain")
    assert not any(p.is_symlink() for p in (tmp_path / "out").iterdir())


def test_the_limit_is_checked_before_anything_is_written(transform, weights, tmp_path):
    total = sum(len(b) for n, b in files(weights).items() if n != DIGEST)
    at = tmp_path / "again"
    result = transform("--max-bytes", str(total - 1), out=at)
    assert result.returncode == 1 and "WEIGHTS-TOO-LARGE" in result.stderr
    assert str(total) in result.stderr and str(total - 1) in result.stderr
    assert transform(out=at, env={"MLXFAST_MAX_WEIGHTS_BYTES": "1000"}).returncode == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    for flags, env in [(["--max-bytes", str(total)], "1000"), ([], str(total)), ([], "0"), ([], "none"), ([], "unlimited"),
                       ([], ""), (["--max-bytes", "none"], "1000"), (["--max-bytes", "0"], "1000")]:
        assert transform(*flags, out=at, env={"MLXFAST_MAX_WEIGHTS_BYTES": env}).returncode == 0
        shutil.rmtree(at)


@pytest.mark.parametrize("text", ["-1", "1.5", "25GiB", "all", ""])
def test_a_limit_that_is_no_number(transform, tmp_path, text):
    result = transform("--max-bytes", text)
    assert result.returncode == 2 and "--max-bytes must be a number" in result.stderr
    if text:
        result = transform(env={"MLXFAST_MAX_WEIGHTS_BYTES": text})
        assert result.returncode == 2 and "MLXFAST_MAX_WEIGHTS_BYTES" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_name_with_a_newline_is_refused(transform, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(NANO, source)
    (source / "a\nb.json").write_text("{}")
    result = transform(source=source)
    assert result.returncode == 1 and "FILE-NAME-INVALID" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("out*"))


def small_disk(tmp_path, command):
    """The command in a mount of 4 MB at tmp_path/disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"mount -t tmpfs -o size=4m none {disk} && exec \"$@\""
    wrapped = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if run([*wrapped, "true"]).returncode != 0:
        pytest.skip("needs unshare with a tmpfs")
    return run([*wrapped, *command])


def test_no_room(build, tmp_path):
    result = small_disk(tmp_path, [build / "mlxfast", "transform", "--source", NANO, "--out", tmp_path / "disk/out"])
    assert result.returncode == 1 and "NO-SPACE" in result.stderr and "free bytes" in result.stderr


def begun(process, pattern, folder):
    """Stopped as soon as a file of the result is there."""
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)) and process.poll() is None and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGSTOP)
    assert process.poll() is None, "it ended before it was stopped"


def test_a_source_that_changes_is_refused(build, big, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in big.iterdir():
        (source / path.name).symlink_to(path)
    (source / "tokenizer.json").write_text("{}")
    process = subprocess.Popen([build / "mlxfast", "transform", "--source", source, "--out", tmp_path / "out", "--quiet"],
                               stderr=subprocess.PIPE, text=True)
    begun(process, "out.tmp.*/*", tmp_path)
    (source / "tokenizer.json").write_text("{ }")
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1 and "SOURCE-CHANGED" in stderr and "tokenizer.json" in stderr
    assert "had 2 bytes" in stderr and "value 3" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_killed_in_the_middle_and_run_again(build, big, tmp_path):
    command = [build / "mlxfast", "transform", "--source", big, "--out", tmp_path / "out", "--quiet"]
    process = subprocess.Popen(command)
    begun(process, "out.tmp.*/*", tmp_path)
    process.kill()
    process.wait(timeout=60)
    (left,) = [p.name for p in tmp_path.iterdir()]
    assert left.startswith("out.tmp.")
    code, _, peak = run_measured(command)
    assert code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    for path in big.glob("*.safetensors"):
        assert run(["cmp", path, tmp_path / "out" / path.name]).returncode == 0
    assert peak < 200 << 10, "KiB, of 0.9 GB"


@pytest.fixture
def sharing(tmp_path):
    """A folder on a file system that shares blocks: XFS in a file."""
    image, folder = tmp_path / "image", tmp_path / "xfs"
    folder.mkdir()
    with open(image, "wb") as f:
        f.truncate(400 << 20)
    if not shutil.which("mkfs.xfs", path="/usr/sbin:/sbin:/usr/bin"):
        pytest.skip("mkfs.xfs is not installed")
    made = run(["mkfs.xfs", "-q", "-m", "reflink=1", image], env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    if made.returncode or run(["mount", "-o", "loop", image, folder]).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    run(["umount", folder])


def test_blocks_are_shared_where_the_file_system_can(build, sharing):
    """Whole shards take no room, the result and its proof are the same, and either may change without the other."""
    source, out = sharing / "source", sharing / "out"
    shutil.copytree(NANO, source)

    def free():
        os.sync()
        return os.statvfs(sharing).f_bavail * os.statvfs(sharing).f_frsize
    before = free()
    filler = sharing / "filler"  # the room for a copy is not there
    with open(filler, "wb") as f:
        os.posix_fallocate(f.fileno(), 0, before - (9 << 20))
    full = free()
    result = run([build / "mlxfast", "transform", "--source", source, "--out", out, "--json"])
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["shards_cloned"] == 2
    assert full - free() < 1 << 20
    proof = run([build / "mlxfast", "verify-transform", "--source", source, "--weights", out, "--quiet"])
    assert proof.returncode == 0 and json.loads(proof.stdout)["deterministic"] is True, proof.stderr
    for name in (FIRST, SECOND):
        assert (out / name).read_bytes() == (NANO / name).read_bytes()
    with open(source / FIRST, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\xff" if (NANO / FIRST).read_bytes()[-1] != 0xff else b"\0")
    assert (out / FIRST).read_bytes() == (NANO / FIRST).read_bytes()


def test_killed_at_twenty_random_moments(build, tmp_path):
    """After each there is no result or the whole one; the run after it removes what is left and ends right."""
    out = tmp_path / "out"
    command = [build / "mlxfast", "transform", "--source", NANO, "--out", out, "--quiet"]
    started = time.monotonic()
    assert run(command).returncode == 0
    takes, whole = time.monotonic() - started, {p.name: p.read_bytes() for p in out.iterdir()}
    chance, cut = random.Random(7), 0
    for _ in range(20):
        shutil.rmtree(out, ignore_errors=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0, takes))
        process.kill()
        process.wait(timeout=60)
        cut += process.returncode != 0
        if out.exists():
            assert {p.name: p.read_bytes() for p in out.iterdir()} == whole
        else:
            assert run(command).returncode == 0
        assert [p.name for p in tmp_path.iterdir()] == ["out"]
        assert {p.name: p.read_bytes() for p in out.iterdir()} == whole
    assert cut > 0


def test_two_at_once_do_not_take_each_other_away(build, big, tmp_path):
    command = [build / "mlxfast", "transform", "--source", big, "--out", tmp_path / "out", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun(process, "out.tmp.*/*", tmp_path)
    other = run([build / "mlxfast", "transform", "--source", NANO, "--out", tmp_path / "out", "--quiet"])
    assert other.returncode == 0, other.stderr
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1 and "cannot put in place" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and (tmp_path / "out" / SECOND).exists()


# ---- verify-transform ----

KEYS = ["byteCount", "deterministic", "fileCount", "maxByteCount", "referencePath", "sha256", "weightsPath"]


def test_the_report(build, verify, weights, tmp_path):
    (weights / ".gitkeep").write_text("")
    (weights / DIGEST).write_text("another\n")
    result = verify()
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == KEYS and report["deterministic"] is True
    digest = run([build / "benchd", "weights-digest", "--weights", weights]).stdout.strip()
    assert f"{report['sha256']}:{report['byteCount']}:{report['fileCount']}" == digest
    assert report["referencePath"] == str(NANO) and report["weightsPath"] == str(weights)
    assert report["maxByteCount"] == 26843545600
    assert json.loads(verify("--max-bytes", "none").stdout)["maxByteCount"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DIFFERENT = {
    "a bit": (lambda w: flip(w / SECOND, 5000000), [f"{SECOND} at byte 5000000", "expected 0x", "found 0x"]),
    "cut": (lambda w: os.truncate(w / SECOND, 12345), [f"{SECOND} at byte 12345", "found its end"]),
    "longer": (lambda w: (w / "config.json").open("ab").write(b"!"), ["config.json at byte", "expected its end, found 0x21"]),
    "missing": (lambda w: (w / "tokenizer.json").unlink(), ["1 missing (tokenizer.json)"]),
    "extra": (lambda w: (w / "mine.bin").write_text("x"), ["1 extra (mine.bin)"]),
    "extra, below": (lambda w: ((w / "sub").mkdir(), (w / "sub/.gitkeep").write_text("x")), ["1 extra (sub/.gitkeep)"]),
    "both": (lambda w: (w / "tokenizer.json").rename(w / "t.json"), ["1 missing (tokenizer.json); 1 extra (t.json)"]),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference_is_told(build, verify, weights, tmp_path, case):
    change, told = DIFFERENT[case]
    change(weights)
    result = verify()
    assert result.returncode == 1 and "TRANSFORM-MISMATCH" in result.stderr and str(weights) in result.stderr
    for text in told:
        assert text in result.stderr
    report = json.loads(result.stdout)
    assert report["deterministic"] is False
    digest = run([build / "benchd", "weights-digest", "--weights", weights]).stdout.strip()
    assert f"{report['sha256']}:{report['byteCount']}:{report['fileCount']}" == digest
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


REFUSED = {
    "a link": (lambda w: ((w / "t").symlink_to("config.json")), "NOT-A-REGULAR-FILE"),
    "a link for a file": (lambda w: ((w / "config.json").unlink(), (w / "config.json").symlink_to(NANO / "config.json")),
                          "NOT-A-REGULAR-FILE"),
    "a hard link": (lambda w: os.link(w / "config.json", w.parent / "other"), "NOT-A-REGULAR-FILE"),
    "a fifo": (lambda w: os.mkfifo(w / "pipe"), "NOT-A-REGULAR-FILE"),
    "a newline": (lambda w: (w / "a\nb").write_text(""), "FILE-NAME-INVALID"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_plain_file_is_refused(verify, weights, case):
    change, name = REFUSED[case]
    change(weights)
    result = verify()
    assert result.returncode == 1 and name in result.stderr and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_weights_that_are_a_link_or_not_there(verify, weights, tmp_path):
    (tmp_path / "link").symlink_to("out")
    result = verify(weights=tmp_path / "link")
    assert result.returncode == 1 and "NOT-A-FOLDER" in result.stderr
    result = verify(weights=tmp_path / "none")
    assert result.returncode == 1 and str(tmp_path / "none") in result.stderr


def test_the_limit_and_the_place(verify, weights, tmp_path):
    result = verify("--max-bytes", "1000")
    assert result.returncode == 1 and "WEIGHTS-TOO-LARGE" in result.stderr
    place = tmp_path / "place"
    result = verify("--tmp-parent", place)
    assert result.returncode == 1 and str(place) in result.stderr
    place.mkdir()
    assert verify("--tmp-parent", place).returncode == 0
    assert not list(place.iterdir()) and sorted(p.name for p in tmp_path.iterdir()) == ["out", "place"]


def test_int8_is_verified_with_its_flags(transform, verify, tmp_path):
    contract = json.loads((ROOT / "tracks/laguna-nano-serial-v1/contract.json").read_text())
    path = tmp_path / "contract.json"
    path.write_text(json.dumps({**contract, "quantization_envelope": {"attention_int8_group32": True}}))
    flags = ["--int8-attention", "--contract", path]
    assert transform(*flags).returncode == 0
    assert verify(*flags).returncode == 0
    assert verify().returncode == 1


def test_verify_is_killed_and_run_again(build, big, tmp_path):
    assert run([build / "mlxfast", "transform", "--source", big, "--out", tmp_path / "out", "--quiet"]).returncode == 0
    command = [build / "mlxfast", "verify-transform", "--source", big, "--weights", tmp_path / "out", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun(process, "out.verify.tmp.*/*", tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    assert "INTERRUPTED" in process.communicate(timeout=60)[1] and process.returncode == 130
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    process = subprocess.Popen(command)
    begun(process, "out.verify.tmp.*/*", tmp_path)
    process.kill()
    process.wait(timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    code, printed, peak = run_measured(command)
    assert json.loads(printed)["deterministic"] is True
    assert code == 0 and peak < 200 << 10
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
