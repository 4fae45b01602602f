"""synth-checkpoint: the same bytes for the same seed, shapes that the loader takes, slices, refusals,
and nothing left behind."""

import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_experts": 16, "num_experts_per_tok": 4,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 512, "sliding_window": 32, "max_position_embeddings": 1024,
}
# Of the tiny config below with --seed 7: pinned, so that no change of compiler or machine moves a byte.
PINNED = {
    "weights": "337f0622fa5a9fd303e64e8d3b941b1080470e68eaeb01bcd2c7f20867d14a62",
    "index": "e38bf38ab549dcd5c3cc8777097baaf99fb43440d43d8a09682038d319afd506",
}


@pytest.fixture
def program(build):
    return build / "synth-checkpoint"


@pytest.fixture
def tiny(root, tmp_path):
    """A small config.json with every kind of layer."""
    config = json.loads((root / "tracks/laguna-xs-2.1-dflash-v1/config.json").read_text())
    config.update(TINY)
    n = config["num_hidden_layers"]
    config["num_attention_heads_per_layer"] = [4 if i % 4 == 0 else 8 for i in range(n)]
    for key in ("layer_types", "mlp_layer_types", "gating_types"):
        config[key] = config[key][:n]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def left_over(folder):
    return sorted(p.name for p in folder.iterdir() if ".tmp." in p.name)


def test_same_seed_same_bytes(program, run, tiny, tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        result = run([program, "--config", tiny, "--out", tmp_path / name, "--seed", seed])
        assert result.returncode == 0, result.stderr
    a, b, c = (digests(tmp_path / n) for n in "abc")
    assert a == b
    assert a["model.safetensors"] != c["model.safetensors"]
    assert a["config.json"] == c["config.json"] == hashlib.sha256(tiny.read_bytes()).hexdigest()
    assert a["model.safetensors"] == PINNED["weights"]
    assert a["model.safetensors.index.json"] == PINNED["index"]
    assert left_over(tmp_path) == []


def tensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__")
    return {name: (t["dtype"], tuple(t["shape"]),
                   data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for name, t in header.items()}


def test_a_slice_has_the_weights_of_the_whole(program, run, tiny, tmp_path):
    for name, more in (("whole", []), ("slice", ["--layers", "2"])):
        assert run([program, "--config", tiny, "--out", tmp_path / name, *more]).returncode == 0
    whole, cut = (tensors(tmp_path / n / "model.safetensors") for n in ("whole", "slice"))
    assert set(cut) < set(whole)
    assert all(whole[name] == cut[name] for name in cut)
    config = json.loads((tmp_path / "slice/config.json").read_text())
    assert config["num_hidden_layers"] == 2 and len(config["layer_types"]) == 2
    assert len(config["num_attention_heads_per_layer"]) == 2 and config["mlp_only_layers"] == [0]


def test_values_are_valid_and_varied(program, run, tiny, tmp_path):
    numpy = pytest.importorskip("numpy")
    assert run([program, "--config", tiny, "--out", tmp_path / "m"]).returncode == 0
    for name, (dtype, shape, data) in tensors(tmp_path / "m/model.safetensors").items():
        raw = numpy.frombuffer(data, numpy.uint8)
        if dtype == "BF16":
            v = (numpy.frombuffer(data, "<u2").astype("u4") << 16).view("f4")
            assert numpy.isfinite(v).all(), name
            if len(shape) == 1:
                assert abs(v - 1).max() <= 0.11, name
            elif len(v) > 4000:
                wanted = {"model.embed_tokens.weight": 1.0, "lm_head.weight": 3 / shape[-1] ** 0.5}
                want = wanted.get(name, (0.5 if "o_proj" in name else 0.7 if "down_proj" in name else 1)
                                  / shape[-1] ** 0.5)
                rms = float(numpy.sqrt((v.astype("f8") ** 2).mean()))
                assert abs(rms / want - 1) < 0.05, (name, rms, want)
        elif dtype == "U32":
            codes = numpy.concatenate([raw & 15, raw >> 4])
            assert len(set(codes.tolist())) == 16, name
        elif dtype == "U8":
            assert raw.min() >= 1 and raw.max() <= 0x7e, name
            assert len(set(raw.tolist())) >= 8, name


def test_any_number_of_threads_gives_the_same_bytes(program, run, tiny, tmp_path):
    for threads in (1, 3):
        assert run([program, "--config", tiny, "--out", tmp_path / str(threads), "--seed", "7",
                    "--threads", str(threads)]).returncode == 0
    assert digests(tmp_path / "1") == digests(tmp_path / "3")
    assert digests(tmp_path / "1")["model.safetensors"] == PINNED["weights"]


def test_int8_attention(program, run, build, tiny, tmp_path):
    """The tensors and the config that transform would make, about zero and of the same size."""
    numpy = pytest.importorskip("numpy")
    for name, more in (("plain", []), ("int8", ["--int8-attention"])):
        result = run([program, "--config", tiny, "--out", tmp_path / name, *more])
        assert result.returncode == 0, result.stderr
    (tmp_path / "contract.json").write_text('{"quantization_envelope": {"attention_int8_group32": true}}')
    result = run([build / "mlxfast", "transform", "--source", tmp_path / "plain", "--out", tmp_path / "made",
                  "--int8-attention", "--contract", tmp_path / "contract.json"])
    assert result.returncode == 0, result.stderr
    plain, synth, made = (tensors(tmp_path / n / "model.safetensors") for n in ("plain", "int8", "made"))
    assert {n: t[:2] for n, t in synth.items()} == {n: t[:2] for n, t in made.items()}
    configs = [json.loads((tmp_path / n / "config.json").read_text()) for n in ("int8", "made")]
    assert configs[0]["quantization"] == configs[1]["quantization"] == configs[0]["quantization_config"]
    seen = 0
    for name, (dtype, shape, data) in synth.items():
        if "self_attn" not in name or dtype != "U32":
            if "self_attn" not in name:
                assert plain[name][2] == data, name
            continue
        base = name.removesuffix(".weight")
        scales, biases = ((numpy.frombuffer(synth[f"{base}.{k}"][2], "<u2").astype("u4") << 16).view("f4")
                          for k in ("scales", "biases"))
        codes = numpy.frombuffer(data, numpy.uint8).reshape(-1, 32)
        w = codes * scales[:, None] + biases[:, None]
        want = (0.5 if "o_proj" in name else 1) / (shape[1] * 4) ** 0.5
        rms = float(numpy.sqrt((w.astype("f8") ** 2).mean()))
        assert abs(w.mean()) < 0.1 * want and (w.size < 4000 or abs(rms / want - 1) < 0.1), (name, rms, want)
        seen += 1
    assert seen == 5 * 4
    (tmp_path / "ids.json").write_text("[3, 50, 400, 7]")
    out = run([build / "bench-worker", "generate", "--weights", tmp_path / "int8", "--tokens-file",
               tmp_path / "ids.json", "-n", "8", "--json"])
    assert out.returncode == 0, out.stderr


def test_tiny_model_generates(program, run, build, tiny, tmp_path):
    assert run([program, "--config", tiny, "--out", tmp_path / "m", "--layers", "2"]).returncode == 0
    (tmp_path / "ids.json").write_text(json.dumps([3, 50, 400, 7] * 20))
    out = run([build / "bench-worker", "generate", "--weights", tmp_path / "m", "--tokens-file",
               tmp_path / "ids.json", "-n", "24", "--json"])
    assert out.returncode == 0, out.stderr
    ids = json.loads(out.stdout)["token_ids"]
    assert 1 <= len(ids) <= 24 and all(0 <= i < 512 for i in ids)


def test_xs21_is_complete(program, run, build, root, tmp_path, shared_data):
    """Headers alone: the published inventory and, to the byte, the published index."""
    config = root / "tracks/laguna-xs-2.1-dflash-v1/config.json"
    dry = run([program, "--config", config, "--dry-run"])
    assert "40 layers, 912 tensors, 21561408512 bytes of tensors, 5 files" in dry.stdout
    result = run([program, "--config", config, "--out", tmp_path / "xs", "--headers-only"])
    assert result.returncode == 0, result.stderr
    index = (tmp_path / "xs/model.safetensors.index.json").read_bytes()
    pins = (root / "tracks/laguna-xs-2.1-dflash-v1/target.sha256").read_text()
    assert f"{hashlib.sha256(index).hexdigest()} {len(index)} model.safetensors.index.json" in pins
    shards = {i + 1: s["name"] for i, s in enumerate(
        json.loads((shared_data / "laguna-xs-2.1-tensor-inventory.json").read_text())["shards"])}
    wanted = {t[0]: (t[1], tuple(t[2]), shards[t[3]]) for t in json.loads(
        (shared_data / "laguna-xs-2.1-tensor-inventory.json").read_text())["tensors"]}
    found = {}
    for path in (tmp_path / "xs").glob("*.safetensors"):
        with path.open("rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        header.pop("__metadata__")
        found |= {n: (t["dtype"], tuple(t["shape"]), path.name) for n, t in header.items()}
        assert path.stat().st_blocks * 512 < 1 << 20, "the weights should be holes"
    assert found == wanted


def test_drafter_of_a_slice_drafts(program, run, build, root, tiny, tmp_path):
    config = json.loads((root / "tracks/laguna-xs-2.1-dflash-v1/drafter-config.json").read_text())
    config.update({k: TINY[k] for k in ("hidden_size", "head_dim", "vocab_size", "sliding_window",
                                        "num_key_value_heads", "max_position_embeddings")})
    config.update(num_attention_heads=4, intermediate_size=96, num_target_layers=40)
    config["dflash_config"]["target_layer_ids"] = [1, 20, 39]
    (tmp_path / "drafter.json").write_text(json.dumps(config))
    for args in (["--config", tiny, "--out", tmp_path / "m", "--layers", "3"],
                 ["--config", tmp_path / "drafter.json", "--out", tmp_path / "d", "--layers", "2",
                  "--target-layers", "3"]):
        result = run([program, *args])
        assert result.returncode == 0, result.stderr
    made = json.loads((tmp_path / "d/config.json").read_text())
    assert made["dflash_config"]["target_layer_ids"] == [0, 1, 2] and made["num_hidden_layers"] == 2
    (tmp_path / "ids.json").write_text(json.dumps(list(range(100, 160))))
    plain, drafted = ([build / "bench-worker", "generate", "--weights", tmp_path / "m",
                       "--tokens-file", tmp_path / "ids.json", "-n", "20", "--json", *more]
                      for more in ([], ["--drafter", tmp_path / "d", "--block", "4"]))
    a, b = run(plain), run(drafted)
    assert a.returncode == 0 and b.returncode == 0, a.stderr + b.stderr
    assert json.loads(a.stdout)["token_ids"] == json.loads(b.stdout)["token_ids"]
    assert json.loads(b.stdout)["drafted"] > 0


def edited(tiny, tmp_path, **changes):
    config = json.loads(tiny.read_text())
    config.update(changes)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(config))
    return path


def test_refusals(program, run, root, tiny, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "keep").write_text("x")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    cases = [
        (["--config", tiny, "--out", there], 1, "OUT-EXISTS"),
        (["--config", tiny, "--out", tmp_path / "no/such/parent"], 1, "IO"),
        (["--config", tmp_path / "absent.json", "--out", tmp_path / "o"], 1, "absent.json"),
        (["--config", broken, "--out", tmp_path / "o"], 1, "JSON-INVALID"),
        (["--config", edited(tiny, tmp_path, head_dim=15), "--out", tmp_path / "o"], 1, "head_dim"),
        (["--config", tiny, "--out", tmp_path / "o", "--layers", "5"], 1, "num_hidden_layers"),
        (["--config", tiny, "--out", tmp_path / "o", "--target-layers", "2"], 2, "--target-layers"),
        (["--config", tiny, "--out", tmp_path / "o", "--align", "0"], 2, "--align"),
        (["--config", root / "tracks/laguna-xs-2.1-dflash-v1/drafter-config.json", "--out", tmp_path / "o",
          "--int8-attention"], 2, "--int8-attention"),
        (["--config", tiny], 2, "--out"),
        (["--out", tmp_path / "o"], 2, "--config"),
    ]
    for arguments, code, text in cases:
        result = run([program, *arguments])
        assert result.returncode == code and text in result.stderr, (arguments, result.stderr)
        assert not (tmp_path / "o").exists() and left_over(tmp_path) == []
    assert (there / "keep").read_text() == "x"


def test_too_little_space_is_said_before_writing(program, run, tiny, tmp_path):
    """Far more than any disk has: a petabyte of vocabulary and experts."""
    huge = edited(tiny, tmp_path, num_experts=1 << 20, moe_intermediate_size=1 << 17, hidden_size=4096)
    result = run([program, "--config", huge, "--out", tmp_path / "o"])
    assert result.returncode == 1 and "NO-SPACE" in result.stderr and "free bytes" in result.stderr
    assert not (tmp_path / "o").exists() and left_over(tmp_path) == []


def test_align(program, run, tiny, tmp_path):
    assert run([program, "--config", tiny, "--out", tmp_path / "m", "--align", "64"]).returncode == 0
    with (tmp_path / "m/model.safetensors").open("rb") as f:
        assert (8 + int.from_bytes(f.read(8), "little")) % 64 == 0


def test_interrupt_leaves_nothing(program, root, tmp_path):
    """A whole XS would take a minute: the signal comes while it writes."""
    config = root / "tracks/laguna-xs-2.1-dflash-v1/config.json"
    p = subprocess.Popen([str(program), "--config", str(config), "--out", str(tmp_path / "o"),
                          "--layers", "2"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not any(f.suffix == ".safetensors" for d in tmp_path.glob("o.tmp.*") for f in d.iterdir()):
        assert time.monotonic() < deadline and p.poll() is None
    p.send_signal(signal.SIGINT)
    _, errors = p.communicate(timeout=60)
    assert p.returncode == 130 and "INTERRUPTED" in errors
    assert os.listdir(tmp_path) == []
