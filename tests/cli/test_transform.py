"""mlxfast transform --int8-attention: attention as INT8 where the contract permits it; the judge
holds weights to the same key; the result runs, with the same tokens on every path."""

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT

NANO = ROOT / "models" / "laguna-nano"
CONTRACT = json.loads((ROOT / "tracks/laguna-nano-serial-v1/contract.json").read_text())
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "g_proj")


def run(arguments):
    return subprocess.run([str(a) for a in arguments], timeout=120, capture_output=True, text=True)


def contract_with(folder, envelope):
    path = folder / "contract.json"
    path.write_text(json.dumps(CONTRACT if envelope is None else {**CONTRACT, "quantization_envelope": envelope}))
    return path


PERMITTED = {"attention_int8_group32": True}


@pytest.fixture
def transform(build, tmp_path):
    def call(*flags, source=NANO, out=tmp_path / "out"):
        return run([build / "mlxfast", "transform", "--source", source, "--out", out, *flags])

    return call


@pytest.fixture(scope="module")
def int8(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    result = run([build / "mlxfast", "transform", "--source", NANO, "--out", folder / "w", "--int8-attention",
                  "--contract", contract_with(folder, PERMITTED), "--json"])
    assert result.returncode == 0, result.stderr
    return folder / "w", json.loads(result.stdout)


def files(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def tensors(folder):
    """name: (dtype, shape, bytes) of all shards."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, t in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                found[name] = (t["dtype"], t["shape"], data[8 + length + begin : 8 + length + end])
    return found


def bf16(raw):
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def test_without_a_change_the_weights_are_a_copy(transform, tmp_path):
    result = transform()
    assert result.returncode == 0, result.stderr
    assert tensors(tmp_path / "out") == tensors(NANO)
    for path in NANO.glob("*.safetensors"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_every_projection_becomes_int8_and_nothing_else_changes(int8):
    folder, report = int8
    before, after = tensors(NANO), tensors(folder)
    modules = [n.removesuffix(".weight") for n in before
               if n.endswith(tuple(f".self_attn.{p}.weight" for p in PROJECTIONS))]
    assert len(modules) == report["projections_quantized"] == 40 and report["projections_kept"] == 0
    assert set(after) == set(before) | {f"{m}.{s}" for m in modules for s in ("scales", "biases")}
    errors = squares = 0.0
    for m in modules:
        _, (rows, columns), raw = before[f"{m}.weight"]
        assert after[f"{m}.weight"][:2] == ("U32", [rows, columns // 4])
        assert after[f"{m}.scales"][:2] == after[f"{m}.biases"][:2] == ("BF16", [rows, columns // 32])
        w = bf16(raw).reshape(-1, 32)
        codes = np.frombuffer(after[f"{m}.weight"][2], np.uint8).reshape(-1, 32).astype(np.float32)
        scale, bias = (bf16(after[f"{m}.{s}"][2])[:, None] for s in ("scales", "biases"))
        back = scale * codes + bias
        assert (np.abs(back - w) <= 2 * np.abs(scale)).all()
        errors += float(((back - w).astype(np.float64) ** 2).sum())
        squares += float((w.astype(np.float64) ** 2).sum())
    assert report["relative_error"] == pytest.approx((errors / squares) ** 0.5, rel=1e-6)
    assert report["relative_error"] < 0.01
    for name in set(before) - {f"{m}.weight" for m in modules}:
        assert after[name] == before[name], name
    config, old = (json.loads((f / "config.json").read_text()) for f in (folder, NANO))
    for block in ("quantization", "quantization_config"):
        entries = {m: config[block].pop(m) for m in modules}
        assert all(e == {"group_size": 32, "bits": 8, "mode": "affine"} for e in entries.values())
    assert config == old
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(after)
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in after.values()) == report["bytes"]
    assert report["source_bytes_per_token"] - report["bytes_per_token"] == sum(
        len(before[f"{m}.weight"][2]) - sum(len(after[f"{m}.{s}"][2]) for s in ("weight", "scales", "biases"))
        for m in modules)


def test_it_is_mlx_quantize(int8):
    """By the emulation that was compared with mlx bit by bit."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("affine", ROOT / "tools/oracle/affine.py")
    affine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(affine)
    before, after = tensors(NANO), tensors(int8[0])
    for m in ("model.layers.0.self_attn.q_proj", "model.layers.5.self_attn.o_proj"):
        rows, columns = before[f"{m}.weight"][1]
        codes, scales, biases = affine.quantise(bf16(before[f"{m}.weight"][2]).reshape(rows, columns))
        assert codes.tobytes() == after[f"{m}.weight"][2]
        assert scales.tobytes() == after[f"{m}.scales"][2] and biases.tobytes() == after[f"{m}.biases"][2]


def test_a_second_run_gives_the_same_bytes(transform, int8, tmp_path):
    permitted = contract_with(tmp_path, PERMITTED)
    assert transform("--int8-attention", "--contract", permitted).returncode == 0
    assert files(tmp_path / "out") == files(int8[0])
    again = transform("--int8-attention", "--contract", permitted, source=tmp_path / "out", out=tmp_path / "again")
    assert again.returncode == 0 and files(tmp_path / "again") == files(int8[0])


REFUSED = [
    (None, "QUANTIZATION-NOT-PERMITTED"),
    ({"attention_int8_group32": False}, "QUANTIZATION-NOT-PERMITTED"),
    ({}, "CONTRACT-INVALID"),
    (True, "CONTRACT-INVALID"),
    ({"attention_int8_group32": 1}, "CONTRACT-INVALID"),
    ({"attention_int8_group32": None}, "CONTRACT-INVALID"),
    ({"attention_int8_group23": True}, "CONTRACT-UNKNOWN-KEY"),
    ({"attention_int8_group32": True, "experts": True}, "CONTRACT-UNKNOWN-KEY"),
]


@pytest.mark.parametrize("envelope, name", REFUSED)
def test_both_sides_refuse_without_permission(transform, build, int8, tmp_path, envelope, name):
    contract = contract_with(tmp_path, envelope)
    result = transform("--int8-attention", "--contract", contract)
    assert result.returncode == 1 and name in result.stderr and len(result.stderr.splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["contract.json"]
    judged = run([build / "benchd", "validate-weights", "--weights", int8[0], "--contract", contract])
    assert judged.returncode == (1 if name.startswith("QUANT") else 2) and name in judged.stderr


@pytest.mark.parametrize("envelope", [PERMITTED, {**PERMITTED, "why_note": "a remark"}])
def test_both_sides_accept_with_permission(transform, build, int8, tmp_path, envelope):
    contract = contract_with(tmp_path, envelope)
    assert transform("--int8-attention", "--contract", contract).returncode == 0
    for weights in (int8[0], NANO):
        judged = run([build / "benchd", "validate-weights", "--weights", weights, "--contract", contract])
        assert judged.returncode == 0 and "ACCEPT" in judged.stderr
    assert "INT8" in run([build / "benchd", "explain-contract", contract]).stdout


def test_a_contract_is_needed(transform, tmp_path):
    result = transform("--int8-attention")
    assert result.returncode == 1 and "QUANTIZATION-NOT-PERMITTED" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_misspelt_key_is_named(build, tmp_path):
    path = tmp_path / "contract.json"
    path.write_text(json.dumps({**CONTRACT, "quantisation_envelope": PERMITTED}))
    result = run([build / "benchd", "explain-contract", path])
    assert result.returncode != 0 and "did you mean quantization_envelope?" in result.stderr


@pytest.mark.parametrize("name", ["laguna-nano-serial-v1", "laguna-nano-dflash-v1", "laguna-xs-2.1-dflash-v1"])
def test_no_track_permits_it(build, int8, name):
    contract = ROOT / "tracks" / name / "contract.json"
    judged = run([build / "benchd", "validate-weights", "--weights", int8[0], "--contract", contract])
    assert judged.returncode == 1 and "QUANTIZATION-NOT-PERMITTED" in judged.stderr


def test_iterate_refuses_before_an_engine_starts(build, int8, tmp_path):
    track = ROOT / "tracks/laguna-nano-serial-v1"
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    engine.chmod(0o755)
    result = run([build / "benchd", "iterate", "--engine", engine, "--weights", int8[0], "--contract",
                  track / "contract.json", "--golden", track / "public.golden.json", "--score-path",
                  tmp_path / "score.json", "--no-sandbox"])
    assert result.returncode != 0 and "QUANTIZATION-NOT-PERMITTED" in result.stderr + result.stdout
    assert not (tmp_path / "started").exists()


def leg(build, int8, folder, contract):
    track = ROOT / "tracks/laguna-nano-dflash-v1"
    return run([build / "benchd", "dflash-benchmark", "--engine", build / "bench-worker", "--weights", int8,
                "--reference-weights", NANO, "--drafter", ROOT / "models/laguna-nano-dflash", "--contract", contract,
                "--golden", track / "pool/novel-eliot.golden.json", "--no-sandbox", "--quiet",
                "--output", folder / "report.json"])


def test_a_leg_and_a_correctness_run_refuse_too(build, int8, tmp_path):
    judged = leg(build, int8[0], tmp_path, ROOT / "tracks/laguna-nano-dflash-v1/contract.json")
    assert judged.returncode != 0 and "QUANTIZATION-NOT-PERMITTED" in judged.stderr
    track = ROOT / "tracks/laguna-nano-serial-v1"
    judged = run([build / "benchd", "correctness", "--engine", build / "bench-worker", "--weights", int8[0], "--contract",
                  track / "contract.json", "--golden", track / "public.golden.json", "--no-sandbox"])
    assert judged.returncode != 0 and "QUANTIZATION-NOT-PERMITTED" in judged.stderr


def test_a_leg_runs_with_permission(build, int8, tmp_path):
    """Judged against the bf16 weights: near enough, and not the same."""
    contract = tmp_path / "contract.json"
    dflash = json.loads((ROOT / "tracks/laguna-nano-dflash-v1/contract.json").read_text())
    contract.write_text(json.dumps({**dflash, "quantization_envelope": PERMITTED}))
    judged = leg(build, int8[0], tmp_path, contract)
    assert judged.returncode == 0, judged.stderr
    report = (tmp_path / "report.json").read_text()
    assert json.loads(report)["max_rejected_tail_logit_delta"] > 0


def doctored(int8, tmp_path, change):
    """The weights with config.json changed, or a header."""
    folder = tmp_path / "doctored"
    shutil.copytree(int8, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def without_entries(config):
    for block in ("quantization", "quantization_config"):
        config[block] = {"bits": 4, "group_size": 16, "mode": "nvfp4"}


def test_the_shards_are_looked_at_too(build, int8, tmp_path):
    """A config that keeps silent: the judge finds the biases, the engine the tensors that are not right."""
    folder = doctored(int8[0], tmp_path, without_entries)
    judged = run([build / "benchd", "validate-weights", "--weights", folder, "--contract", contract_with(tmp_path, None)])
    assert judged.returncode == 1 and "QUANTIZATION-NOT-PERMITTED" in judged.stderr and ".safetensors" in judged.stderr
    loaded = run([build / "bench-worker", "generate", "--weights", folder, "--prompt", "x", "-n", "1"])
    assert loaded.returncode != 0 and "INVENTORY-MISMATCH" in loaded.stderr


@pytest.mark.parametrize("module, entry", [
    ("lm_head", {"group_size": 32, "bits": 8, "mode": "affine"}),
    ("model.layers.1.mlp.gate", {"group_size": 32, "bits": 8, "mode": "affine"}),
    ("model.layers.0.self_attn.q_proj", {"group_size": 32, "bits": 4, "mode": "affine"}),
    ("model.layers.0.self_attn.q_proj", {"group_size": 64, "bits": 8, "mode": "affine"}),
])
def test_other_modules_and_formats_are_refused_even_with_permission(build, int8, tmp_path, module, entry):
    def change(config):
        for block in ("quantization", "quantization_config"):
            config[block][module] = entry

    folder = doctored(int8[0], tmp_path, change)
    judged = run([build / "benchd", "validate-weights", "--weights", folder, "--contract",
                  contract_with(tmp_path, PERMITTED)])
    assert judged.returncode == 1 and "QUANTIZATION-NOT-PERMITTED" in judged.stderr and module in judged.stderr
    loaded = run([build / "bench-worker", "generate", "--weights", folder, "--prompt", "x", "-n", "1"])
    assert loaded.returncode != 0 and "QUANTIZATION-NOT-PERMITTED" in loaded.stderr and module in loaded.stderr


def rewrite_header(path, change):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_wrong_shape_is_refused_by_name(build, int8, tmp_path):
    folder = tmp_path / "wrong"
    shutil.copytree(int8[0], folder)
    name = "model.layers.0.self_attn.k_proj.scales"

    def change(header):
        rows, columns = header[name]["shape"]
        header[name]["shape"] = [rows * 2, columns // 2]

    rewrite_header(folder / "model-00001-of-00002.safetensors", change)
    loaded = run([build / "bench-worker", "generate", "--weights", folder, "--prompt", "x", "-n", "1"])
    assert loaded.returncode != 0 and "INVENTORY-MISMATCH" in loaded.stderr and name in loaded.stderr


def test_values_that_are_not_finite_are_refused(transform, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(NANO, source)
    name = "model.layers.0.self_attn.v_proj.weight"
    path = source / "model-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    at = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0] + 100
    data[at : at + 2] = struct.pack("<H", 0x7F80)
    path.write_bytes(data)
    result = transform("--int8-attention", "--contract", contract_with(tmp_path, PERMITTED), source=source)
    assert result.returncode == 1 and "WEIGHTS-NOT-FINITE" in result.stderr and name in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["contract.json", "source"]


def test_what_stands_there_is_left_alone(transform, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    result = transform()
    assert result.returncode == 1 and "OUT-EXISTS" in result.stderr
    assert files(tmp_path / "out") == {"mine": b"x"}


def test_a_signal_leaves_nothing(build, tmp_path):
    made = run([build / "synth-checkpoint", "--config", ROOT / "tracks/laguna-xs-2.1-dflash-v1/config.json",
                "--layers", "1", "--headers-only", "--out", tmp_path / "big"])
    assert made.returncode == 0, made.stderr
    process = subprocess.Popen([build / "mlxfast", "transform", "--source", tmp_path / "big", "--out", tmp_path / "out"],
                               stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out.tmp.*/*")) and process.poll() is None and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "INTERRUPTED" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


def logits(build, tmp_path, weights, *flags):
    out = tmp_path / "logits.bin"
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([(7 * i * i + 3) % 500 + 3 for i in range(80)]))
    result = run([build / "bench-worker", "logits", "--weights", weights, "--tokens-file", tokens, "--out", out, *flags])
    assert result.returncode == 0, result.stderr
    return out.read_bytes()


def test_the_same_bits_on_every_path(build, int8, tmp_path):
    """Portable is the reference; rows of a forward and threads do not matter. Near the bf16 model."""
    one = logits(build, tmp_path, int8[0], "--cpu", "portable")
    for flags in (["--threads", "1"], ["--threads", "2"], ["--rows", "1"], ["--rows", "7"]):
        assert logits(build, tmp_path, int8[0], *flags) == one, flags
    whole = logits(build, tmp_path, NANO)
    a, b = (np.frombuffer(x, np.float32) for x in (one, whole))
    assert one != whole and np.isfinite(a).all() and np.abs(a - b).mean() < 0.1
