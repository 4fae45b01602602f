"""tracks/laguna-xs-2.1-dflash-v1: the contract loads, its pins are the published ones, its configs are
runnable. The weights are not here."""

import hashlib
import json
import shutil

import pytest

from conftest import ROOT

TRACK = ROOT / "tracks" / "laguna-xs-2.1-dflash-v1"
CONTRACT = json.loads((TRACK / "contract.json").read_text())


def manifest(path):
    """{path: (sha256, bytes)}; every line is a remark or a pin."""
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        sha, size, name = line.split(" ")
        assert len(sha) == 64 and set(sha) <= set("0123456789abcdef")
        assert name not in found
        found[name] = (sha, int(size))
    return found


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_contract_loads_and_says_what_fails(build, run):
    result = run([build / "benchd", "explain-contract", TRACK / "contract.json"])
    assert result.returncode == 0, result.stderr
    assert "OFFICIAL-SCORING-DISABLED-FOR-TRACK" in result.stdout
    assert CONTRACT["official_scoring_enabled"] is False
    assert "measured on" in CONTRACT["official_scoring_enabled_note"]


def test_the_pool(build):
    pool = CONTRACT["timed_prompt_pool"]
    assert len(pool) == 8
    assert len({e["sha256"] for e in pool}) == len({e["r2_path"] for e in pool}) == 8
    page = (TRACK / "POOL.md").read_text()
    for e in pool:
        assert e["r2_path"].startswith("correctness_prompts/laguna-xs-2.1-dflash/pool-")
        name = e["r2_path"].split("pool-")[1]
        row = next(line for line in page.splitlines() if f"`{name}`" in line)
        assert f"{e['bytes']:,}" in row and str(e["noop_decode_speedup"]) in row


def test_the_manifests_are_whole():
    target, drafter = manifest(TRACK / "target.sha256"), manifest(TRACK / "drafter.sha256")
    assert len(target) == 13 and sum(n for _, n in target.values()) == 21568905520
    assert sum(n for _, n in target.values()) == CONTRACT["target"]["expected_source_bytes"]
    assert sum(n for _, n in drafter.values()) == CONTRACT["assistant"]["expected_bytes"]
    assert drafter == {f["path"]: (f["sha256"], f["bytes"]) for f in CONTRACT["assistant"]["files"]}


def test_the_manifests_are_pinned():
    """Their remarks are ours, so their digests are not those of the published manifests."""
    assert sha256(TRACK / "target.sha256") == \
        "499fd2a22249617d165221ac1159392280337ecb44381bbdb5732f4a2ec9f77c"
    assert sha256(TRACK / "drafter.sha256") == \
        "52352ab720d61b9441575078f7aab1fe7c0768f076277c022ee514e2a8c251d0"
    assert CONTRACT["target"]["published_manifest_sha256"] != sha256(TRACK / "target.sha256")


def test_the_drafters_config_is_the_pinned_one():
    path = TRACK / "drafter-config.json"
    assert (sha256(path), path.stat().st_size) == manifest(TRACK / "drafter.sha256")["config.json"]
    document = json.loads(path.read_text())
    a = CONTRACT["assistant"]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "head_dim", "sliding_window", "layer_types", "vocab_size",
                "num_target_layers", "block_size"):
        assert document[key] == a[key], key
    assert document["dflash_config"] == {k: a[k] for k in ("target_layer_ids", "mask_token_id")}
    record = document["_mlx_conversion"]
    assert (record["source_repo"], record["source_revision"], record["source_sha256"],
            record["converted_at"]) == tuple(a["source"][k] for k in (
                "model_id", "revision", "model_sha256", "converted_at"))


def test_the_targets_config_is_as_a_transform_writes_it(build, run, tmp_path):
    path = TRACK / "config.json"
    document = json.loads(path.read_text())
    assert path.read_text() == json.dumps(document, indent=2, sort_keys=True) + "\n"
    assert "vision_config" not in document
    for key in ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                "head_dim", "sliding_window", "num_experts", "num_experts_per_tok",
                "moe_intermediate_size", "shared_expert_intermediate_size", "mlp_only_layers",
                "quantization"):
        assert document[key] == CONTRACT["target"][key], key
    shutil.copy(path, tmp_path / "config.json")
    result = run([build / "bench-worker", "manifest", "--weights", tmp_path])
    assert result.returncode == 0, result.stderr


def test_numbers_that_stand_twice_are_equal():
    blocks, protocol = CONTRACT["block_decode"], CONTRACT["protocol"]
    assert blocks["protocol"] == protocol["name"]
    for key in ("block_size", "maximum_block_size", "decode_tokens", "maximum_decode_tokens"):
        assert blocks[key] == protocol[key], key
    assert CONTRACT["vocab_size"] == CONTRACT["target"]["vocab_size"]
    assert CONTRACT["num_hidden_layers"] == CONTRACT["target"]["num_hidden_layers"]
    assert CONTRACT["official_pairs"] == blocks["target_pairs"]
    assert blocks["calibration"]["decode_tokens"] == blocks["decode_tokens"] == \
        CONTRACT["fidelity"]["conditions"]["decode_tokens"]


# ---- against the published fixture ----


@pytest.fixture
def published(shared_data):
    return json.loads((shared_data / "laguna-xs-2.1-dflash-track.json").read_text())


def test_pins_are_the_published_ones(published):
    assert CONTRACT["track_id"] == published["track_id"]
    assert [{k: e[k] for k in ("r2_path", "sha256", "bytes", "noop_decode_speedup")}
            for e in published["timed_prompt_pool"]] == CONTRACT["timed_prompt_pool"]
    # What is ours, and says so in a remark beside it.
    ours = {"manifest_path", "maximum_transformed_bytes", "quantization", "files"}
    for side in ("target", "assistant"):
        common = set(CONTRACT[side]) & set(published[side]) - ours
        common -= {k for k in common if k.endswith("_note")}
        assert len(common) > 10
        for key in common:
            assert CONTRACT[side][key] == published[side][key], key
        assert CONTRACT[side]["published_manifest_sha256"] == published[side]["manifest_sha256"]
    for key in set(CONTRACT["protocol"]) & set(published["protocol"]):
        assert CONTRACT["protocol"][key] == published["protocol"][key], key
    for mine, theirs in zip(CONTRACT["assistant"]["files"], published["assistant"]["files"]):
        assert mine.items() <= theirs.items()
    assert CONTRACT["mlx_swift_lm_revision"] == published["mlx_swift_lm_revision"]
    assert CONTRACT["license"]["spdx"] == published["license"]["spdx"]


def test_manifests_hold_the_published_pins(shared_data, published):
    for mine, theirs, side in (("target", "laguna-xs-2.1", "target"),
                               ("drafter", "laguna-xs-2.1-dflash", "assistant")):
        path = shared_data / f"{theirs}.sha256"
        assert manifest(TRACK / f"{mine}.sha256") == \
            manifest_of_lines(path)
        assert sha256(path) == published[side]["manifest_sha256"] == \
            CONTRACT[side]["published_manifest_sha256"]


def manifest_of_lines(path):
    rows = [line.split() for line in path.read_text().splitlines()
            if line.strip() and not line.startswith("#")]
    return {name: (sha, int(size)) for sha, size, name in rows}


def test_the_targets_config_has_the_published_values(shared_data):
    assert json.loads((TRACK / "config.json").read_text()) == \
        json.loads((shared_data / "laguna-xs-2.1-config.json").read_text())
