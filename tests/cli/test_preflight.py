"""mlxfast preflight: every fault of a folder of weights by name, file, expected and actual; the command that mends."""

import json
import os
import shutil
import struct
import subprocess

import pytest
from peak_memory import run_measured

from conftest import ROOT
from test_transform_weights import FIRST, INDEX, NANO, SECOND, read_shard, write_shard

HEAD, NORM, EMBEDDING = "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"


def run(arguments, **kwargs):
    env = {k: v for k, v in os.environ.items() if k != "MLXFAST_MAX_WEIGHTS_BYTES"} | kwargs.pop("env", {})
    return subprocess.run([str(a) for a in arguments], timeout=120, capture_output=True, text=True, env=env, **kwargs)


@pytest.fixture
def weights(tmp_path):
    return shutil.copytree(NANO, tmp_path / "weights")


@pytest.fixture
def preflight(build, tmp_path):
    def call(*flags, weights=tmp_path / "weights", **kwargs):
        return run([build / "mlxfast", "preflight", "--weights", weights, *flags], **kwargs)

    return call


def edit_json(path, change):
    value = json.loads(path.read_text())
    value = change(value) or value
    path.write_text(json.dumps(value))


def edit_index(weights, change):
    edit_json(weights / INDEX, lambda v: change(v["weight_map"]))


def edit_shard(weights, name, change):
    path = weights / name
    write_shard(path, change(read_shard(path)))


def cut(path, by):
    os.truncate(path, path.stat().st_size - by)


def overwrite(path, at, data):
    with path.open("r+b") as f:
        f.seek(at)
        f.write(data)


def move(weights):
    """lm_head to the other shard, the index as it was."""
    head = [t for t in read_shard(weights / SECOND) if t[0] == HEAD]
    edit_shard(weights, SECOND, lambda ts: [t for t in ts if t[0] != HEAD])
    edit_shard(weights, FIRST, lambda ts: ts + head)


def without(name):
    return lambda ts: [t for t in ts if t[0] != name]


def forget(weights):
    """Neither the index nor a shard has it."""
    edit_shard(weights, SECOND, without(HEAD))
    edit_index(weights, lambda m: m.pop(HEAD) and None)


def retyped(tensors):
    return [(n, "F16" if n == NORM else d, s, b) for n, d, s, b in tensors]


def reshaped(tensors):
    return [(n, d, [s[1], s[0]] if n == HEAD else s, b) for n, d, s, b in tensors]


SIZE = (NANO / FIRST).stat().st_size
SECOND_COUNT = sum(s == SECOND for s in json.loads((NANO / INDEX).read_text())["weight_map"].values())

FAULTS = {
    "no folder": (shutil.rmtree, ["CHECKPOINT-MISSING-FILE", "no such folder"]),
    "shard missing": (lambda w: (w / SECOND).unlink(),
                      ["CHECKPOINT-MISSING-FILE", "the shard is missing", f"{SECOND_COUNT} tensors of the index", SECOND]),
    "in the index, not in its shard": (lambda w: edit_shard(w, SECOND, without(HEAD)),
                                       ["CHECKPOINT-INDEX-MISMATCH", "1 tensor is in the index and not in its shard",
                                        f"{HEAD} ({SECOND})"]),
    "in a shard, not in the index": (lambda w: edit_index(w, lambda m: m.pop(HEAD) and None),
                                     ["CHECKPOINT-INDEX-MISMATCH", "1 tensor is in a shard and not in the index",
                                      f"{HEAD} ({SECOND})"]),
    "in neither": (forget, ["INVENTORY-MISMATCH", f"1 missing ({HEAD})", "in neither the index nor a shard"]),
    "in another shard": (move, ["CHECKPOINT-INDEX-MISMATCH", f"{HEAD} (in {FIRST}, the index says {SECOND})"]),
    "cut by one": (lambda w: cut(w / FIRST, 1), ["SAFETENSORS-INVALID", f"by its header it has {SIZE} bytes",
                                                f"value {SIZE - 1}", FIRST, "cut"]),
    "too long": (lambda w: (w / FIRST).open("ab").write(b"abc"),
                 ["SAFETENSORS-INVALID", "too long", f"has {SIZE} bytes", f"value {SIZE + 3}"]),
    "cut in the header": (lambda w: os.truncate(w / FIRST, 100), ["SAFETENSORS-INVALID", "has 92 bytes after it", FIRST]),
    "empty shard": (lambda w: os.truncate(w / FIRST, 0), ["SAFETENSORS-INVALID", "0 bytes", FIRST]),
    "header of noise": (lambda w: overwrite(w / FIRST, 8, b"\xff" * 64), ["SAFETENSORS-INVALID", FIRST]),
    "dtype": (lambda w: [edit_shard(w, s, retyped) for s in (FIRST, SECOND)],
              ["INVENTORY-MISMATCH", "1 re-typed", f"{NORM} is F16, expected BF16"]),
    "shape": (lambda w: edit_shard(w, SECOND, reshaped), ["INVENTORY-MISMATCH", "1 re-shaped", HEAD, ", expected ["]),
    "tensor of no model": (lambda w: (edit_shard(w, FIRST, lambda ts: ts + [("model.more", "U8", [1], b"x")]),
                                      edit_index(w, lambda m: m.update({"model.more": FIRST}))),
                           ["INVENTORY-MISMATCH", "1 extra (model.more)"]),
    "two shards": (lambda w: (w / "z.safetensors").write_bytes((w / SECOND).read_bytes()),
                   ["CHECKPOINT-INDEX-MISMATCH", "in two shards", "z.safetensors"]),
    "no config": (lambda w: (w / "config.json").unlink(), ["CHECKPOINT-MISSING-FILE", "config.json"]),
    "config of noise": (lambda w: (w / "config.json").write_text("{"), ["CONFIG-INVALID", "config.json"]),
    "another model": (lambda w: edit_json(w / "config.json", lambda c: c.update(model_type="gemma")),
                      ["UNKNOWN-MODEL-TYPE", "expected laguna", "gemma"]),
    "a config of other sizes": (lambda w: edit_json(w / "config.json", lambda c: c.update(vocab_size=c["vocab_size"] * 2)),
                                ["INVENTORY-MISMATCH", EMBEDDING]),
    "no tokenizer": (lambda w: (w / "tokenizer.json").unlink(), ["CHECKPOINT-MISSING-FILE", "tokenizer.json"]),
    "tokenizer of noise": (lambda w: (w / "tokenizer.json").write_text("[]"), ["TOKENIZER-INVALID", "tokenizer.json"]),
    "no index": (lambda w: (w / INDEX).unlink(), ["CHECKPOINT-MISSING-FILE", INDEX, "and so is model.safetensors"]),
    "index of noise": (lambda w: (w / INDEX).write_text('{"weight_map": {"a": "b.safetensors", "a": "c"}}'),
                       ["CHECKPOINT-INDEX-MISMATCH", INDEX]),
    "empty index": (lambda w: (w / INDEX).write_text("{}"), ["CHECKPOINT-INDEX-MISMATCH", "weight_map"]),
    "metadata of noise": (lambda w: edit_json(w / INDEX, lambda v: v.update(metadata=[])),
                          ["CHECKPOINT-INDEX-MISMATCH", "metadata"]),
    "a shard outside": (lambda w: edit_index(w, lambda m: m.update({HEAD: "../x.safetensors"})),
                        ["CHECKPOINT-INDEX-MISMATCH", "../x.safetensors", HEAD]),
    "a link": (lambda w: ((w / "config.json").rename(w.parent / "c"), (w / "config.json").symlink_to("../c")),
               ["NOT-A-REGULAR-FILE", "config.json"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_mended(preflight, build, weights, tmp_path, fault):
    change, told = FAULTS[fault]
    change(weights)
    result = preflight("--source", NANO)
    assert result.returncode == 1 and result.stdout == ""
    for text in told:
        assert text in result.stderr
    *findings, mend = result.stderr.splitlines()
    assert all(line.startswith("mlxfast preflight: ") and str(weights) in line for line in findings)
    assert mend.startswith("to mend: ") and result.stderr.count("to mend: ") == 1
    mended = run(["sh", "-c", mend.removeprefix("to mend: ")])
    assert mended.returncode == 0, mended.stderr
    result = preflight()
    assert result.returncode == 0 and result.stdout.startswith("ok: 2 shards, 176 tensors, ")


def test_all_faults_at_once(preflight, weights):
    (weights / "config.json").unlink()
    (weights / "tokenizer.json").unlink()
    cut(weights / FIRST, 7)
    (weights / SECOND).unlink()
    result = preflight("--json")
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["passed"] is False
    assert [f["name"] for f in report["findings"]] == ["CHECKPOINT-MISSING-FILE"] * 2 + ["SAFETENSORS-INVALID",
                                                                                        "CHECKPOINT-MISSING-FILE"]
    assert [f["file"].rsplit("/", 1)[1] for f in report["findings"]] == ["config.json", "tokenizer.json", FIRST, SECOND]


def test_an_index_of_very_many_shards(preflight, weights):
    """As many shards as tensors: each is looked at once, a few are named, the rest counted."""
    edit_index(weights, lambda m: m.update({f"t{i}": f"s{i:06}.safetensors" for i in range(5000)}))
    result = preflight()
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == 66, result.stderr[:2000]
    assert "s000000.safetensors" in lines[0] and "1 tensor of the index" in lines[0]
    assert lines[-2] == f"mlxfast preflight: and {5000 - 64} more faults (file {weights})" and lines[-1].startswith("to mend: ")


def test_what_is_not_sound_is_fetched(preflight, build, weights, tmp_path):
    """No source, or one that is broken too."""
    cut(weights / FIRST, 1)
    for flags, track in [([], "laguna-xs-2.1-dflash-v1"), (["--source", weights, "--track", "mine"], "mine"),
                         (["--source", tmp_path / "none"], "laguna-xs-2.1-dflash-v1"),
                         (["--track", "./my tracks/x;y"], "'./my tracks/x;y'")]:
        assert preflight(*flags).stderr.splitlines()[-1] == f"to mend: {build}/mlxfast fetch {track}"


def test_a_source_of_links_is_sound(preflight, weights, tmp_path):
    """As caches of downloads hold it."""
    cache = tmp_path / "it's a cache"
    cache.mkdir()
    for path in NANO.iterdir():
        (cache / path.name).symlink_to(path)
    cut(weights / FIRST, 1)
    mend = preflight("--source", cache).stderr.splitlines()[-1].removeprefix("to mend: ")
    assert run(["sh", "-c", mend]).returncode == 0
    assert preflight().returncode == 0


def test_the_limit(preflight, build, weights):
    total = sum(p.stat().st_size for p in weights.iterdir())
    (weights / ".gitkeep").write_text("x")
    assert preflight("--max-bytes", str(total)).returncode == 0
    for flags, env in [(["--max-bytes", str(total - 1)], {}), ([], {"MLXFAST_MAX_WEIGHTS_BYTES": str(total - 1)})]:
        result = preflight(*flags, env=env)
        assert result.returncode == 1 and "WEIGHTS-TOO-LARGE" in result.stderr
        assert str(total) in result.stderr and str(total - 1) in result.stderr
        mend = result.stderr.splitlines()[-1].removeprefix("to mend: ")
        assert run(["sh", "-c", mend]).returncode == 0
    assert preflight("--max-bytes", "much").returncode == 2


def test_weights_that_are_a_link(preflight, weights, tmp_path):
    (tmp_path / "link").symlink_to("weights")
    result = preflight(weights=tmp_path / "link")
    assert result.returncode == 1 and "NOT-A-FOLDER" in result.stderr


def test_made_up_weights_have_no_tokenizer(preflight, weights):
    (weights / "tokenizer.json").unlink()
    assert preflight().returncode == 1
    assert preflight("--no-tokenizer").returncode == 0


def test_one_file_without_an_index(preflight, weights):
    write_shard(weights / "model.safetensors", read_shard(weights / FIRST) + read_shard(weights / SECOND))
    for name in (FIRST, SECOND, INDEX):
        (weights / name).unlink()
    result = preflight()
    assert result.returncode == 0 and result.stdout.startswith("ok: 1 shards, 176 tensors")


def test_no_weight_is_read(build, tmp_path):
    """A layer of true size: it does not become resident."""
    made = run([build / "synth-checkpoint", "--config", ROOT / "tracks/laguna-xs-2.1-dflash-v1/config.json", "--layers",
                "1", "--headers-only", "--out", tmp_path / "big"])
    assert made.returncode == 0, made.stderr
    code, printed, peak = run_measured([build / "mlxfast", "preflight", "--weights", tmp_path / "big", "--no-tokenizer"])
    assert code == 0 and printed.startswith("ok: ") and peak < 200 << 10


@pytest.mark.parametrize("seed", range(60 if "MLXFAST_TEST_QUICK" not in os.environ else 10))
def test_noise_anywhere_is_told_or_harmless(preflight, build, weights, seed):
    """A few bytes of a header or of a JSON file: never a crash, never passed where the engine's loader refuses."""
    import random

    chance = random.Random(seed)
    path = weights / chance.choice([FIRST, SECOND, INDEX, "config.json"])
    (header,) = struct.unpack("<Q", path.read_bytes()[:8]) if path.suffix == ".safetensors" else (path.stat().st_size - 8,)
    for _ in range(chance.choice([1, 1, 1, 5])):
        overwrite(path, chance.randrange(8 + header), bytes([chance.randrange(256)]))
    result = preflight()
    assert result.returncode in (0, 1), result.stderr
    out = weights.parent / "out"
    copied = run([build / "mlxfast", "transform", "--source", weights, "--out", out, "--quiet"])
    if result.returncode == 0:
        assert copied.returncode == 0, copied.stderr
    else:
        assert len(result.stderr.splitlines()) >= 2


def test_int8_weights_are_mended_as_they_were_made(build, weights, preflight, tmp_path):
    """The command repeats --int8-attention and names the contract: where config.json tells, or where asked."""
    permit = tmp_path / "permit.json"
    permit.write_text('{"quantization_envelope": {"attention_int8_group32": true}}')
    shutil.rmtree(weights)
    made = run([build / "mlxfast", "transform", "--source", NANO, "--out", weights, "--int8-attention", "--contract",
                permit, "--quiet"])
    assert made.returncode == 0, made.stderr
    whole = {p.name: p.read_bytes() for p in weights.iterdir()}
    (weights / FIRST).unlink()
    plain = preflight("--source", NANO, "--track", "a-track").stderr.splitlines()[-1]
    assert plain.endswith(" --int8-attention --contract 'tracks/a-track/contract.json'")
    mend = preflight("--source", NANO, "--contract", permit).stderr.splitlines()[-1].removeprefix("to mend: ")
    assert mend.endswith(f" --int8-attention --contract '{permit}'")
    assert run(["sh", "-c", mend]).returncode == 0
    assert {p.name: p.read_bytes() for p in weights.iterdir()} == whole
    (weights / "config.json").write_text("{")  # tells nothing
    assert "--int8-attention" not in preflight("--source", NANO).stderr
    asked = preflight("--source", NANO, "--int8-attention", "--contract", permit).stderr.splitlines()[-1]
    assert asked.endswith(f" --int8-attention --contract '{permit}'")
