"""mlxfast transform of a DeepSeek V4: dense tensors here, routed experts in the source's shards, experts/manifest.json
between them. The checkpoint is made up: names and kinds of the real one, small sizes."""

import json
import os
import random
import shutil
import struct
import subprocess

import pytest

from test_transform_weights import INDEX, NANO, files, read_shard, write_shard

EXPERTS, LAYERS = 4, 3
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
SIZE = {"BF16": 2, "U32": 4, "U8": 1}


def run(arguments, **kwargs):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLXFAST_MAX") and k != "MLXFAST_REFERENCE_DIR"}
    return subprocess.run([str(a) for a in arguments], timeout=120, capture_output=True, text=True,
                          env=env | kwargs.pop("env", {}), **kwargs)


def make_source(folder):
    """The experts of layer 1 share a shard with dense tensors, those of layer 2 fill one of their own."""
    rng = random.Random(4)
    folder.mkdir()

    def tensor(name, dtype, *shape):
        count = SIZE[dtype]
        for d in shape:
            count *= d
        return name, dtype, list(shape), rng.randbytes(count)

    shards = {s: [] for s in SHARDS}
    shards[SHARDS[0]] += [tensor("model.embed.weight", "BF16", 16, 8), tensor("model.norm.weight", "BF16", 8)]
    for layer in range(LAYERS):
        shard = SHARDS[layer]
        prefix = f"model.layers.{layer}.ffn"
        for projection in ("up_proj", "gate_proj", "down_proj"):
            shards[shard] += [tensor(f"{prefix}.switch_mlp.{projection}.weight", "U32", EXPERTS, 8, 2),
                              tensor(f"{prefix}.switch_mlp.{projection}.scales", "U8", EXPERTS, 8, 1)]
        dense = SHARDS[min(layer, 1)]
        shards[dense] += [tensor(f"{prefix}.shared_experts.up_proj.weight", "U32", 8, 2),
                          tensor(f"{prefix}.gate.weight", "BF16", EXPERTS, 8)]
    for name, tensors in shards.items():
        rng.shuffle(tensors)
        write_shard(folder / name, tensors)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "other": [1],
                                            "weight_map": {t[0]: s for s, ts in shards.items() for t in ts}}))
    (folder / "config.json").write_text(json.dumps({"model_type": "deepseek_v4", "n_routed_experts": EXPERTS}))
    shutil.copy(NANO / "tokenizer.json", folder)
    return folder


def is_expert(name):
    return (".ffn.experts." in name or ".ffn.switch_mlp." in name) and ".shared_experts." not in name


@pytest.fixture
def source(tmp_path):
    return make_source(tmp_path / "source")


@pytest.fixture
def transform(build, source, tmp_path):
    def call(*flags, out=tmp_path / "weights", **kwargs):
        return run([build / "mlxfast", "transform", "--source", source, "--out", out, "--quiet", *flags], **kwargs)

    return call


@pytest.fixture
def preflight(build, tmp_path):
    def call(weights=tmp_path / "weights", **kwargs):
        return run([build / "mlxfast", "preflight", "--weights", weights], **kwargs)

    return call


def all_tensors(folder):
    return {t[0]: t for s in sorted(folder.glob("*.safetensors")) for t in read_shard(s)}


def test_dense_here_experts_there(transform, source, tmp_path):
    result = transform("--json")
    assert result.returncode == 0, result.stderr
    weights, report, whole = tmp_path / "weights", json.loads(result.stdout), all_tensors(source)
    dense = {n: t for n, t in whole.items() if not is_expert(n)}
    assert all_tensors(weights) == dense
    assert set(files(weights)) == {*SHARDS[:2], INDEX, "config.json", "tokenizer.json", "experts/manifest.json",
                                   ".benchmark-source.sha256"}
    for shard in SHARDS[:2]:
        names = [t[0] for t in read_shard(weights / shard)]
        assert names == sorted(names)
    index = json.loads((weights / INDEX).read_text())
    assert set(index["weight_map"]) == set(dense) and index["other"] == [1]
    assert list(index) == sorted(index) and index["metadata"]["total_size"] == sum(len(t[3]) for t in dense.values())
    experts = [t for n, t in whole.items() if is_expert(n)]
    assert (report["expert_tensors"], report["expert_bytes"]) == (len(experts), sum(len(t[3]) for t in experts))
    assert report["tensors"] == len(dense)


def test_the_manifest_leads_to_every_expert(transform, source, tmp_path):
    assert transform().returncode == 0
    weights, whole = tmp_path / "weights", all_tensors(source)
    manifest = json.loads((weights / "experts/manifest.json").read_text())
    assert set(manifest) == {"version", "source", "reference_path", "expert_tensors"}
    assert (manifest["version"], manifest["source"], manifest["reference_path"]) == (1, "safetensors", "../source")
    records = manifest["expert_tensors"]
    assert [(r["shard"], r["name"]) for r in records] == sorted((r["shard"], r["name"]) for r in records)
    assert {r["name"] for r in records} == {n for n in whole if is_expert(n)} and len(records) == 6 * LAYERS
    for r in records:
        _, dtype, shape, data = whole[r["name"]]
        raw = (weights / manifest["reference_path"] / r["shard"]).read_bytes()
        base = 8 + struct.unpack("<Q", raw[:8])[0]
        assert (r["dtype"], r["shape"], r["byte_length"]) == (dtype, shape, len(data))
        assert r["byte_offset"] == base + r["data_offsets"][0] and r["data_offsets"][1] - r["data_offsets"][0] == len(data)
        slice_bytes = r["byte_length"] // EXPERTS
        for e in range(EXPERTS):
            at = r["byte_offset"] + e * slice_bytes
            assert raw[at : at + slice_bytes] == data[e * slice_bytes : (e + 1) * slice_bytes]


@pytest.mark.parametrize("out, path", [("w", "../source"), ("a/b/w", "../../../source"), ("source2", "../source"),
                                       ("source/w", "..")])
def test_the_path_is_relative(transform, tmp_path, out, path):
    (tmp_path / out).parent.mkdir(parents=True, exist_ok=True)
    assert transform(out=tmp_path / out).returncode == 0
    assert json.loads((tmp_path / out / "experts/manifest.json").read_text())["reference_path"] == path


def test_both_may_move_together(transform, preflight, source, tmp_path):
    assert transform().returncode == 0
    (tmp_path / "moved").mkdir()
    for folder in (source, tmp_path / "weights"):
        shutil.move(folder, tmp_path / "moved")
    assert preflight(tmp_path / "moved/weights").returncode == 0


def test_it_is_verified(build, transform, source, tmp_path):
    """From another temporary folder too: the path in the manifest is that of the weights."""
    assert transform().returncode == 0
    (tmp_path / "deep/er").mkdir(parents=True)
    command = [build / "mlxfast", "verify-transform", "--source", source, "--weights", tmp_path / "weights", "--quiet"]
    for flags in ([], ["--tmp-parent", tmp_path / "deep/er"]):
        result = run([*command, *flags])
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["fileCount"] == 6
    (tmp_path / "weights/experts/manifest.json").write_text("{}")
    result = run(command)
    assert result.returncode == 1 and "first difference in experts/manifest.json at byte 1" in result.stderr


@pytest.mark.parametrize("keep, told", [(is_expert, "every tensor is an expert's"),
                                        (lambda n: not is_expert(n), "no tensor is an expert's")])
def test_both_kinds_must_be_there(transform, source, tmp_path, keep, told):
    tensors = [t for n, t in all_tensors(source).items() if keep(n)]
    for shard in SHARDS:
        (source / shard).unlink()
    (source / INDEX).unlink()
    write_shard(source / "model.safetensors", tensors)
    result = transform()
    assert result.returncode == 1 and "EXPERTS-INVALID" in result.stderr and told in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_int8_is_for_lagunas(transform, tmp_path):
    from test_transform import PERMITTED, contract_with

    result = transform("--int8-attention", "--contract", contract_with(tmp_path, PERMITTED))
    assert result.returncode == 1 and "UNKNOWN-MODEL-TYPE" in result.stderr and "deepseek_v4" in result.stderr


def test_preflight_finds_the_experts(transform, preflight, source, tmp_path):
    assert preflight(source).returncode == 0
    assert transform().returncode == 0 and preflight().returncode == 0
    source.rename(tmp_path / "elsewhere")
    result = preflight()
    assert result.returncode == 1 and "CHECKPOINT-MISSING-FILE" in result.stderr and "MLXFAST_REFERENCE_DIR" in result.stderr
    assert preflight(env={"MLXFAST_REFERENCE_DIR": str(tmp_path / "elsewhere")}).returncode == 0
    (tmp_path / "weights/experts/manifest.json").unlink()
    result = preflight()
    assert result.returncode == 1 and "experts/manifest.json" in result.stderr


def change_record(key, value):
    return lambda m: m["expert_tensors"][3].update({key: value})


MANIFESTS = {
    "version": (lambda m: m.update(version=2), "version"),
    "source": (lambda m: m.update(source="gguf"), "expected safetensors"),
    "empty": (lambda m: m.update(expert_tensors=[]), "no expert tensor"),
    "twice": (lambda m: m["expert_tensors"].insert(0, m["expert_tensors"][0]), "twice"),
    "a dense name": (change_record("name", "model.norm.weight"), "not an expert's"),
    "an unknown name": (change_record("name", "model.layers.9.ffn.experts.0.w1.weight"), "does not hold this tensor"),
    "an unsafe shard": (change_record("shard", "../x.safetensors"), "not a plain name"),
    "dtype": (change_record("dtype", "I8"), "another dtype"),
    "shape": (change_record("shape", [1]), "another shape"),
    "offset": (change_record("byte_offset", 8), "byte_offset of"),
    "length": (change_record("byte_length", 1), "byte_length of"),
    "length of nothing": (change_record("byte_length", 0), "byte_length"),
    "offsets": (change_record("data_offsets", [5, 4]), "data_offsets of"),
    "offsets of one": (change_record("data_offsets", [0]), "data_offsets"),
    "offsets of reals": (lambda m: m["expert_tensors"][0].update(
        data_offsets=[float(n) for n in m["expert_tensors"][0]["data_offsets"]]), "expected two whole numbers"),
    "offsets of text": (change_record("data_offsets", "0"), "data_offsets"),
    "no record": (lambda m: m["expert_tensors"].append(7), "expert_tensors"),
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_a_manifest_is_held_to_the_shards(transform, preflight, tmp_path, fault):
    assert transform().returncode == 0
    path = tmp_path / "weights/experts/manifest.json"
    change, told = MANIFESTS[fault]
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    result = preflight()
    assert result.returncode == 1 and "EXPERTS-INVALID" in result.stderr and told in result.stderr


def test_a_cut_shard_of_experts(transform, preflight, source):
    assert transform().returncode == 0
    os.truncate(source / SHARDS[2], (source / SHARDS[2]).stat().st_size - 1)
    result = preflight()
    assert result.returncode == 1 and "SAFETENSORS-INVALID" in result.stderr and SHARDS[2] in result.stderr
