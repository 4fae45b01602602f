"""mlxfast convert-drafter: the repacked form of a published drafter, byte for byte, against a construction
in Python that shares nothing with it; every refusal; nothing left behind.

The form is docs/convert-drafter.md's. The published fixture's numbers (the header's 7,356 bytes, config.json's
1,121 bytes and SHA-256) are the proof that the form is right."""

import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess

import numpy
import pytest

from conftest import ROOT

AT = "2026-07-27T04:23:30Z"
REPO, REVISION = "someone/a-drafter", "0123456789abcdef0123456789abcdef01234567"
RECORD = ["--source-repo", REPO, "--source-revision", REVISION, "--converted-at", AT]
CONFIG_ORDER = ["hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
                "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "rope_theta",
                "max_position_embeddings", "sliding_window", "layer_types"]


def sizes(layers=2, hidden=16, heads=4, kv=2, dim=6, width=24, vocab=64, taps=(0, 2, 3), block=4,
          eps=1e-6, theta=10000.0):
    """A config in the published form: the block's settings nested."""
    return {"architectures": ["DFlashLagunaForCausalLM"], "model_type": "laguna", "gating": "per-head",
            "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": width,
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
            "vocab_size": vocab, "draft_vocab_size": vocab, "rms_norm_eps": eps,
            "rope_theta": theta, "max_position_embeddings": 512, "sliding_window": 32,
            "layer_types": ["sliding_attention"] * layers, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "dflash_config": {"block_size": block, "mask_token_id": 3, "num_target_layers": 5,
                              "target_layer_ids": list(taps), "causal": True}}


def fused_shapes(c):
    h, w, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    taps = c["dflash_config"]["target_layer_ids"]
    out = {"fc.weight": [h, h * len(taps)], "hidden_norm.weight": [h], "norm.weight": [h]}
    out |= {f"aux_hidden_norms.{j}.weight": [h] for j in range(len(taps))}
    for n in range(c["num_hidden_layers"]):
        p = f"layers.{n}."
        out |= {p + "self_attn.qkv_proj.weight": [q + 2 * kv, h],
                p + "self_attn.o_proj.weight": [h, q],
                p + "self_attn.g_proj.weight": [c["num_attention_heads"], h],
                p + "self_attn.q_norm.weight": [d], p + "self_attn.k_norm.weight": [d],
                p + "mlp.gate_proj.weight": [w, h], p + "mlp.up_proj.weight": [w, h],
                p + "mlp.down_proj.weight": [h, w], p + "input_layernorm.weight": [h],
                p + "post_attention_layernorm.weight": [h]}
    return out


def safetensors(tensors, metadata=None, pad=True):
    """{name: (dtype, shape, bytes)} in the given order, as the published writer pads it."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values())


def random_fused(c, seed=7):
    """Any 16 bits, NaN patterns and negative zeros among them: values must not be touched."""
    random = numpy.random.RandomState(seed)
    return {name: ("BF16", shape,
                   random.randint(0, 65536, int(numpy.prod(shape)), dtype=numpy.uint16).tobytes())
            for name, shape in sorted(fused_shapes(c).items())}


def split(tensors, c):
    """The 68-tensor form of the 58: rows of the fused tensor, then sorted by name."""
    d = c["head_dim"]
    rows = {"q": c["num_attention_heads"] * d, "k": c["num_key_value_heads"] * d,
            "v": c["num_key_value_heads"] * d}
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        if ".qkv_proj." not in name:
            out[name] = (dtype, shape, data)
            continue
        matrix = numpy.frombuffer(data, numpy.uint16).reshape(shape)
        at = 0
        for part, n in rows.items():
            piece = matrix[at:at + n]
            out[name.replace("qkv", part)] = (dtype, [n, shape[1]], piece.tobytes())
            at += n
    return dict(sorted(out.items()))


def header(shapes, repo, revision, sha256):
    """Compact JSON, the payload's order, the record last, no padding."""
    out, at = {}, 0
    for name in sorted(shapes):
        n = 2 * int(numpy.prod(shapes[name]))
        out[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + n]}
        at += n
    out["__metadata__"] = {"format": "mlx", "source_repo": repo, "source_revision": revision,
                           "source_sha256": sha256, "converter": "convert_laguna_dflash.py v1"}
    return json.dumps(out, separators=(",", ":")).encode(), at


def config_text(c, repo, revision, sha256, at):
    nested = c["dflash_config"]
    out = {"architectures": ["DFlashDraftModel"], "model_type": "laguna",
           "decoder_layer_type": "laguna_xs", "gating": "per-head"}
    out |= {k: c[k] for k in CONFIG_ORDER}
    out["tie_word_embeddings"] = c.get("tie_word_embeddings", False)
    out |= {k: nested.get(k, c.get(k)) for k in ("block_size", "num_target_layers")}
    out["dflash_config"] = {k: nested[k] for k in ("target_layer_ids", "mask_token_id")}
    out["_mlx_conversion"] = {"source_repo": repo, "source_revision": revision,
                              "source_sha256": sha256,
                              "converter": "convert_laguna_dflash.py v1", "converted_at": at}
    return (json.dumps(out, indent=2) + "\n").encode()


def expected(c, tensors, source_bytes, repo=REPO, revision=REVISION, at=AT):
    sha = hashlib.sha256(source_bytes).hexdigest()
    parts = split(tensors, c)
    text, payload = header({k: v[1] for k, v in parts.items()}, repo, revision, sha)
    data = b"".join(v[2] for v in parts.values())
    assert len(data) == payload
    return (struct.pack("<Q", len(text)) + text + data, config_text(c, repo, revision, sha, at))


def write(folder, c, tensors, **kwargs):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1))
    data = safetensors(tensors, {"format": "pt"}, **kwargs)
    (folder / "model.safetensors").write_bytes(data)
    return data


@pytest.fixture
def source(tmp_path):
    c = sizes()
    tensors = random_fused(c)
    return tmp_path / "source", c, tensors, write(tmp_path / "source", c, tensors)


@pytest.fixture
def convert(build, run):
    def call(source, out, *flags, **kwargs):
        return run([build / "mlxfast", "convert-drafter", "--source", source, "--out", out, *flags],
                   **kwargs)
    return call


def nothing_left(folder, *kept):
    return sorted(p.name for p in folder.iterdir()) == sorted(kept)


@pytest.mark.parametrize("shape", [
    {}, {"layers": 12, "hidden": 8, "heads": 2, "kv": 1, "dim": 4, "width": 8, "taps": (4,)},
    {"eps": 1e-5, "theta": 500000.0}, {"eps": 0.00012345, "theta": 1e16},
    {"theta": 500000}, {"kv": 4, "block": 16, "hidden": 250, "width": 2},
])
def test_the_result_is_the_published_form_byte_for_byte(convert, tmp_path, shape):
    c = sizes(**shape)
    tensors = random_fused(c)
    data = write(tmp_path / "source", c, tensors)
    result = convert(tmp_path / "source", tmp_path / "out", *RECORD)
    assert result.returncode == 0, result.stderr
    model, config = expected(c, tensors, data)
    assert (tmp_path / "out/model.safetensors").read_bytes() == model
    assert (tmp_path / "out/config.json").read_bytes() == config
    assert nothing_left(tmp_path / "out", "config.json", "model.safetensors")
    assert nothing_left(tmp_path, "out", "source")
    assert hashlib.sha256(data).hexdigest() in result.stdout
    assert hashlib.sha256(model).hexdigest() in result.stdout
    assert hashlib.sha256(config).hexdigest() in result.stdout


def test_json_says_the_same(convert, source, tmp_path):
    folder, c, tensors, data = source
    result = convert(folder, tmp_path / "out", *RECORD, "--json")
    model, config = expected(c, tensors, data)
    assert json.loads(result.stdout) == {
        "out": str(tmp_path / "out"), "verified_only": False, "written": True, "published": False,
        "source_tensors": len(tensors), "ignored_tensors": 0, "tensors": len(tensors) + 4,
        "source_bytes": len(data), "bytes": len(model), "config_bytes": len(config),
        "source_sha256": hashlib.sha256(data).hexdigest(),
        "sha256": hashlib.sha256(model).hexdigest(),
        "config_sha256": hashlib.sha256(config).hexdigest(), "source_repo": REPO,
        "source_revision": REVISION, "converted_at": AT}


def test_payload_order_of_the_source_does_not_matter(convert, tmp_path):
    """The source's tensors in any order, unpadded header: the result is still sorted."""
    c = sizes()
    tensors = random_fused(c)
    names = list(tensors)
    numpy.random.RandomState(1).shuffle(names)
    data = write(tmp_path / "source", c, {n: tensors[n] for n in names}, pad=False)
    assert convert(tmp_path / "source", tmp_path / "out", *RECORD).returncode == 0
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(c, tensors, data)[0]


def test_the_targets_tables_are_left_out(convert, tmp_path):
    c = sizes()
    tensors = random_fused(c)
    more = {"embed_tokens.weight": ("BF16", [2, 2], b"12345678"),
            "lm_head.weight": ("F32", [1], b"1234")}
    data = write(tmp_path / "source", c, dict(sorted((tensors | more).items())))
    result = convert(tmp_path / "source", tmp_path / "out", *RECORD, "--json")
    assert json.loads(result.stdout)["ignored_tensors"] == 2
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(c, tensors, data)[0]


def test_settings_at_the_top_serve_as_well(convert, tmp_path):
    c = sizes()
    for key in ("block_size", "num_target_layers"):
        c[key] = c["dflash_config"].pop(key)
    tensors = random_fused(c)
    data = write(tmp_path / "source", c, tensors)
    assert convert(tmp_path / "source", tmp_path / "out", *RECORD).returncode == 0
    assert (tmp_path / "out/config.json").read_bytes() == expected(c, tensors, data)[1]


def test_the_origin_is_unknown_unless_said(convert, source, tmp_path):
    folder, *_ = source
    result = convert(folder, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "out/config.json").read_text())["_mlx_conversion"]
    assert record["source_repo"] == record["source_revision"] == "unknown"
    assert record["converted_at"].endswith("Z") and len(record["converted_at"]) == len(AT)


# ---- the published artifact ----

REAL = {"architectures": ["DFlashLagunaForCausalLM"], "model_type": "laguna", "gating": "per-head",
        "hidden_size": 2048, "num_hidden_layers": 5, "intermediate_size": 8192,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 100352,
        "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "max_position_embeddings": 262144,
        "sliding_window": 512, "layer_types": ["sliding_attention"] * 5,
        "dflash_config": {"block_size": 16, "mask_token_id": 12, "num_target_layers": 40,
                          "target_layer_ids": [1, 13, 25, 33, 39], "causal": True}}
PUBLISHED = ("poolside/Laguna-XS-2.1-DFlash-NVFP4", "6c0564233472e9572ec3d9ecc6025a1dc77799e9",
             "67beb7f0dcb8a121ef912782396335cb5103e39f30328decdc83981509d4db84")


def test_this_files_form_is_the_published_one(shared_data):
    """The construction that the converter is held to meets every published number that needs no weights."""
    track = json.loads((shared_data / "laguna-xs-2.1-dflash-track.json").read_text())
    pins = {f["path"]: f for f in track["assistant"]["files"]}
    config = config_text(REAL, *PUBLISHED, AT)
    assert len(config) == pins["config.json"]["bytes"] == 1121
    assert hashlib.sha256(config).hexdigest() == pins["config.json"]["sha256"]
    fused = fused_shapes(REAL)
    shapes = {k: v for k, v in fused.items() if "qkv" not in k}
    for n in range(5):
        for part, rows in (("q", 8192), ("k", 1024), ("v", 1024)):
            shapes[f"layers.{n}.self_attn.{part}_proj.weight"] = [rows, 2048]
    text, payload = header(shapes, *PUBLISHED)
    assert (len(fused), len(shapes), payload, len(text)) == (58, 68, 924129792, 7356)
    assert 8 + len(text) + payload == pins["model.safetensors"]["bytes"]


def test_a_sparse_source_of_the_real_sizes(convert, tmp_path):
    """The real 58 tensors, all zeros in a file with a hole: 924 MB go through in bounded memory, and the
    header has the published length."""
    shapes = fused_shapes(REAL)
    text, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(shapes):
        n = 2 * int(numpy.prod(shapes[name]))
        text[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + n]}
        at += n
    blob = json.dumps(text, separators=(",", ":")).encode()
    blob += b" " * (-len(blob) % 8)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(REAL))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(blob)) + blob)
        f.truncate(8 + len(blob) + at)
    assert (folder / "model.safetensors").stat().st_size == 924135848  # the published source's
    if shutil.disk_usage(tmp_path).free < 2 << 30:
        pytest.skip("needs 2 GiB of disk")
    result = convert(folder, tmp_path / "out", "--source-repo", PUBLISHED[0], "--source-revision",
                     PUBLISHED[1], "--converted-at", AT, "--json", "--quiet", timeout=300)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["source_tensors"], said["tensors"]) == (58, 68)
    assert (said["bytes"], said["config_bytes"]) == (924137156, 1121)
    with open(tmp_path / "out/model.safetensors", "rb") as f:
        assert struct.unpack("<Q", f.read(8))[0] == 7356
    shutil.rmtree(tmp_path / "out")


def test_memory_is_bounded(build, run, tmp_path):
    """A source of 96 MB is converted by a program that never holds a third of it."""
    c = sizes(layers=1, hidden=2048, heads=2, kv=1, dim=64, width=7680, taps=(0,))
    tensors = random_fused(c)
    write(tmp_path / "source", c, tensors)
    assert (tmp_path / "source/model.safetensors").stat().st_size > 96 << 20
    # Started by a small process: a child's peak counts from its parent's size on.
    script = ("import resource, subprocess, sys\n"
              "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
              "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    result = run(["/usr/bin/python3", "-c", script, build / "mlxfast", "convert-drafter",
                  "--source", tmp_path / "source", "--out", tmp_path / "out", "--quiet"])
    code, peak = map(int, result.stdout.split())
    assert code == 0
    if "asan" not in run(["ldd", build / "mlxfast"]).stdout:
        assert peak < 32 << 10  # kB


# ---- the engine ----

def fuse(folder, c):
    """A repacked drafter's tensors in the published layout."""
    data = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8:8 + length])
    base, out = 8 + length, {}
    piece = {n: data[base + t["data_offsets"][0]:base + t["data_offsets"][1]]
             for n, t in table.items() if n != "__metadata__"}
    for name, blob in piece.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            continue
        shape = table[name]["shape"]
        if name.endswith("q_proj.weight"):
            parts = [name, name.replace("q_proj", "k_proj"), name.replace("q_proj", "v_proj")]
            blob = b"".join(piece[p] for p in parts)
            shape = [sum(table[p]["shape"][0] for p in parts), shape[1]]
            name = name.replace("q_proj", "qkv_proj")
        out[name] = ("BF16", shape, blob)
    return dict(sorted(out.items()))


def test_the_engine_drafts_the_same_from_both_layouts(build, run, convert, nano, tmp_path):
    bundled = ROOT / "models/laguna-nano-dflash"
    c = json.loads((bundled / "config.json").read_text())
    write(tmp_path / "fused", c, fuse(bundled, c))
    assert convert(tmp_path / "fused", tmp_path / "back", *RECORD).returncode == 0

    def payload(folder):
        data = (folder / "model.safetensors").read_bytes()
        return data[8 + struct.unpack("<Q", data[:8])[0]:]

    assert payload(tmp_path / "back") == payload(bundled)
    keys = ("tokens", "text", "rounds", "drafted", "accepted", "accepted_by_position")
    said = []
    for drafter in (bundled, tmp_path / "fused", tmp_path / "back"):
        result = run([build / "bench-worker", "generate", "--weights", nano, "--drafter", drafter,
                      "--block", "6", "--prompt", "The sea was calm and", "-n", "48", "--json"])
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        said.append({k: document[k] for k in keys if k in document})
    assert said[0] == said[1] == said[2]
    assert said[0]["rounds"] > 0 and said[0]["accepted"] > 0


# ---- a folder that is there ----

def test_an_equal_folder_is_left_alone(convert, source, tmp_path):
    folder, *_ = source
    out = tmp_path / "out"
    assert convert(folder, out).returncode == 0
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in out.iterdir()}
    again = convert(folder, f"{out}/", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["written"] is False
    assert convert(folder, out, "--verify-only").returncode == 0
    assert before == {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in out.iterdir()}
    assert nothing_left(tmp_path, "out", "source")


def spoil_byte(out):
    data = bytearray((out / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "model.safetensors").write_bytes(data)


def spoil_header(out):
    data = bytearray((out / "model.safetensors").read_bytes())
    data[20] ^= 1
    (out / "model.safetensors").write_bytes(data)


SPOILED = {
    "payload": (spoil_byte, "norm.weight"), "header": (spoil_header, "header"),
    "longer": (lambda o: (o / "model.safetensors").open("ab").write(b"x"), "bytes"),
    "config": (lambda o: (o / "config.json").write_text("{}"), "config.json"),
    "more": (lambda o: (o / "extra.txt").write_text(""), "unexpected"),
    "less": (lambda o: (o / "model.safetensors").unlink(), "missing"),
    "empty": (lambda o: [p.unlink() for p in o.iterdir()], "missing"),
}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("flag", [[], ["--verify-only"]])
def test_a_folder_that_differs_is_refused_and_kept(convert, source, tmp_path, how, flag):
    folder, *_ = source
    out = tmp_path / "out"
    assert convert(folder, out, *RECORD).returncode == 0
    spoil, word = SPOILED[how]
    spoil(out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    result = convert(folder, out, *RECORD, "--quiet", *flag)
    assert result.returncode == 1
    assert "DRAFTER-OUT-DIFFERS: " in result.stderr and word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert before == {p.name: p.read_bytes() for p in out.iterdir()}


def test_a_link_in_the_folder_is_refused(convert, source, tmp_path):
    folder, *_ = source
    out = tmp_path / "out"
    assert convert(folder, out, *RECORD).returncode == 0
    (out / "model.safetensors").rename(tmp_path / "aside")
    (out / "model.safetensors").symlink_to(tmp_path / "aside")
    result = convert(folder, out, *RECORD)
    assert result.returncode == 1 and "NOT-A-REGULAR-FILE: " in result.stderr


@pytest.mark.parametrize("stands", ["file", "dangling"])
def test_something_else_at_out_is_refused(convert, source, tmp_path, stands):
    folder, *_ = source
    out = tmp_path / "out"
    if stands == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    result = convert(folder, out)
    assert result.returncode == 1 and "DRAFTER-OUT-DIFFERS: " in result.stderr
    assert out.is_symlink() or out.read_text() == "mine"


def test_verify_only_writes_nothing(convert, source, tmp_path):
    folder, *_ = source
    result = convert(folder, tmp_path / "out", "--verify-only")
    assert result.returncode == 1 and "missing" in result.stderr
    assert nothing_left(tmp_path, "source")


# ---- pins ----

def test_pins(convert, source, tmp_path):
    folder, c, tensors, data = source
    model, _ = expected(c, tensors, data)
    right = ["--expect-source-sha256", hashlib.sha256(data).hexdigest(), "--expect-sha256",
             hashlib.sha256(model).hexdigest()]
    out = tmp_path / "out"
    for i in (1, 3):
        wrong = [*right[:i], "0" * 64, *right[i + 1:]]
        result = convert(folder, out, *RECORD, *wrong)
        assert result.returncode == 1
        assert "DRAFTER-PIN-MISMATCH: " in result.stderr and right[i - 1] in result.stderr
        assert right[i] in result.stderr and "0" * 64 in result.stderr
        assert "model.safetensors" in result.stderr
        assert nothing_left(tmp_path, "source")
    assert convert(folder, out, *RECORD, *right).returncode == 0
    result = convert(folder, out, *RECORD, "--verify-only", "--expect-sha256", "1" * 64)
    assert result.returncode == 1 and "DRAFTER-PIN-MISMATCH: " in result.stderr


# ---- refused sources ----

def change(key, value, nested=False):
    def apply(c, tensors):
        (c["dflash_config"] if nested else c)[key] = value
    return apply


def retype(name, dtype, shape, n):
    def apply(c, tensors):
        tensors[name] = (dtype, shape, bytes(n))
    return apply


def remove(name):
    return lambda c, tensors: tensors.pop(name)


def add(name):
    return lambda c, tensors: tensors.update({name: ("BF16", [1], b"12")})


QKV = "layers.1.self_attn.qkv_proj.weight"
BAD_SOURCES = {
    "architecture": (change("architectures", ["LagunaForCausalLM"]), "CONFIG-INVALID: ",
                     ["architectures", "LagunaForCausalLM"]),
    "model type": (change("model_type", "qwen3"), "CONFIG-INVALID: ", ["model_type", "qwen3"]),
    "gating": (change("gating", "per-element"), "CONFIG-INVALID: ", ["gating", "per-element"]),
    "draft vocabulary": (change("draft_vocab_size", 63), "CONFIG-INVALID: ",
                         ["draft_vocab_size", "63"]),
    "not causal": (change("causal", False, True), "CONFIG-INVALID: ", ["dflash_config.causal"]),
    "mask": (change("mask_token_id", 64, True), "CONFIG-INVALID: ", ["mask_token_id", "64"]),
    "tap": (change("target_layer_ids", [0, 2, 5], True), "CONFIG-INVALID: ", ["target_layer_ids"]),
    "two block sizes": (change("block_size", 8), "CONFIG-INVALID: ",
                        ["dflash_config.block_size", "4"]),
    "full attention": (change("layer_types", ["full_attention", "sliding_attention"]),
                       "CONFIG-INVALID: ", ["layer_types"]),
    "tied": (change("tie_word_embeddings", "no"), "CONFIG-INVALID: ", ["tie_word_embeddings"]),
    "no block": (lambda c, t: c.pop("dflash_config"), "CONFIG-INVALID: ", ["dflash_config"]),
    "missing": (remove("norm.weight"), "INVENTORY-MISMATCH: ", ["norm.weight", "missing"]),
    "unexpected": (add("layers.0.bias"), "INVENTORY-MISMATCH: ", ["layers.0.bias", "unexpected"]),
    "dtype": (retype("norm.weight", "F32", [16], 64), "INVENTORY-MISMATCH: ",
              ["norm.weight", "F32 [16]"]),
    "shape": (retype(QKV, "BF16", [47, 16], 47 * 32), "INVENTORY-MISMATCH: ",
              [QKV, "BF16 [47,16]", "[48,16]"]),
    "half repacked": (lambda c, t: t.update({n.replace("qkv", "q"): t.pop(n)
                                             for n in [QKV]}), "INVENTORY-MISMATCH: ", [QKV]),
}


@pytest.mark.parametrize("fault", BAD_SOURCES)
def test_a_bad_source_is_refused(convert, tmp_path, fault):
    c = sizes()
    tensors = random_fused(c)
    spoil, name, words = BAD_SOURCES[fault]
    spoil(c, tensors)
    write(tmp_path / "source", c, tensors)
    result = convert(tmp_path / "source", tmp_path / "out", "--quiet")
    assert result.returncode == 1 and result.stdout == ""
    assert name in result.stderr and len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr, result.stderr
    file = "config.json" if name.startswith("CONFIG") else "model.safetensors"
    assert f"file {tmp_path / 'source' / file}" in result.stderr
    assert nothing_left(tmp_path, "source")


def test_broken_files(convert, source, tmp_path):
    folder, c, tensors, data = source
    out = tmp_path / "out"
    (folder / "model.safetensors").write_bytes(data[:-1])
    assert "SAFETENSORS-INVALID: " in convert(folder, out).stderr
    (folder / "model.safetensors").unlink()
    assert "CHECKPOINT-MISSING-FILE: " in convert(folder, out).stderr
    result = convert(tmp_path / "nowhere", out)
    assert result.returncode == 1 and "CHECKPOINT-MISSING-FILE: " in result.stderr
    (folder / "model.safetensors").write_bytes(data)
    result = convert(folder, tmp_path / "no/such/out")
    assert result.returncode == 1 and "IO: " in result.stderr
    assert nothing_left(tmp_path, "source")


def test_shards_are_refused(convert, source, tmp_path):
    folder, c, tensors, _ = source
    names = list(tensors)
    place = {}
    for file, part in (("a.safetensors", names[:5]), ("b.safetensors", names[5:])):
        (folder / file).write_bytes(safetensors({n: tensors[n] for n in part}))
        place |= {n: file for n in part}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    result = convert(folder, tmp_path / "out")
    assert result.returncode == 1 and "DRAFTER-NOT-ONE-FILE: " in result.stderr


def test_a_repacked_source_is_recognised(convert, source, tmp_path):
    folder, *_ = source
    assert convert(folder, tmp_path / "out", *RECORD).returncode == 0
    result = convert(tmp_path / "out", tmp_path / "again")
    assert result.returncode == 1
    assert "DRAFTER-ALREADY-REPACKED: " in result.stderr and "use this folder" in result.stderr
    assert nothing_left(tmp_path, "source", "out")


@pytest.mark.parametrize("flags, field", [
    (["--expect-sha256", "AB" * 32], "--expect-sha256"),
    (["--expect-source-sha256", "12"], "--expect-source-sha256"),
    (["--converted-at", "yesterday"], "--converted-at"),
    (["--converted-at", AT + "Z"], "--converted-at"),
    (["--source-repo", ""], "--source-repo"), (["--source-repo", "a b"], "--source-repo"),
    (["--source-revision", 'x"y'], "--source-revision"),
    (["--source-revision", "é"], "--source-revision"), (["--nonsense"], "--nonsense"),
    (["surplus"], "surplus"),
])
def test_usage(convert, source, tmp_path, flags, field):
    result = convert(source[0], tmp_path / "out", *flags)
    assert result.returncode == 2
    assert "USAGE: " in result.stderr and field in result.stderr and "--help" in result.stderr
    assert nothing_left(tmp_path, "source")


def test_the_program_itself(build, run):
    assert run([build / "mlxfast"]).returncode == 2
    assert run([build / "mlxfast", "nonsense"]).returncode == 2
    text = run([build / "mlxfast", "--help"])
    assert text.returncode == 0 and "convert-drafter" in text.stdout
    lost = subprocess.run([build / "mlxfast", "--help"], stdout=open("/dev/full", "w"),
                          stderr=subprocess.PIPE, text=True)
    assert lost.returncode == 1 and "IO: " in lost.stderr


# ---- stopped in the middle ----

def slow_source(folder):
    """Large enough that a signal meets the program at work: it is stopped before it can end."""
    c = sizes(layers=1, hidden=2048, heads=2, kv=1, dim=64, width=4096, taps=(0,))
    tensors = {n: ("BF16", s, bytes(2 * int(numpy.prod(s))))
               for n, s in sorted(fused_shapes(c).items())}
    write(folder, c, tensors)


def at_work(build, tmp_path):
    """The program, halted (SIGSTOP) with a part of the file in its temporary folder, and at least two more
    pieces of it to write."""
    enough = (tmp_path / "source/model.safetensors").stat().st_size - (8 << 20)
    for _ in range(20):
        child = subprocess.Popen([build / "mlxfast", "convert-drafter", "--source",
                                  tmp_path / "source", "--out", tmp_path / "out", "--quiet"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        part = tmp_path / f"out.tmp.{child.pid}" / "model.safetensors"
        while child.poll() is None and not (part.exists() and part.stat().st_size > 0):
            pass
        child.send_signal(signal.SIGSTOP)
        if child.returncode is None:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if part.exists() and 0 < part.stat().st_size < enough:
            return child, part
        child.send_signal(signal.SIGCONT)  # it was through, or nearly
        child.communicate(timeout=60)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    pytest.fail("the program was never met at work")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_in_the_middle(build, tmp_path, how):
    slow_source(tmp_path / "source")
    child, part = at_work(build, tmp_path)
    child.send_signal(how)
    child.send_signal(signal.SIGCONT)
    _, said = child.communicate(timeout=60)
    assert not (tmp_path / "out").exists()
    if how == signal.SIGKILL:
        assert child.returncode == -signal.SIGKILL
        assert nothing_left(tmp_path, "source", part.parent.name)
    else:
        assert child.returncode == 130 and "INTERRUPTED: " in said
        assert nothing_left(tmp_path, "source")


def test_a_source_that_changes_is_refused(build, tmp_path):
    slow_source(tmp_path / "source")
    child, _ = at_work(build, tmp_path)
    with open(tmp_path / "source/model.safetensors", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"\x01")
    child.send_signal(signal.SIGCONT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 1 and "FILE-CHANGED: " in said
    assert nothing_left(tmp_path, "source")


def test_a_full_disk_leaves_nothing(convert, source, tmp_path):
    """A limit on the length of files stands for the disk: the write fails in the middle."""
    folder, *_ = source
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    result = convert(folder, tmp_path / "out", "--quiet", preexec_fn=limit)
    assert result.returncode == 1 and "IO: " in result.stderr and "model.safetensors" in result.stderr
    assert nothing_left(tmp_path, "source")


def test_a_folder_that_may_not_be_written_to(build, source, tmp_path):
    folder, *_ = source
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    result = subprocess.run([build / "mlxfast", "convert-drafter", "--source", folder, "--out",
                             closed / "out", "--quiet"], capture_output=True, text=True)
    assert result.returncode == 1 and "IO: " in result.stderr
