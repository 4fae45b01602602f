"""Read and write checkpoints in the real format: shards, index, config; NVFP4 experts, BF16 rest.

The bytes are a function of the values alone: names sorted, one header layout, no time stamps.
"""

import json
import os
import struct

import numpy as np
import torch

import nvfp4

ITEM_SIZE = {"BF16": 2, "F32": 4, "U32": 4, "U8": 1}
NUMPY_TYPE = {"BF16": "<u2", "F32": "<f4", "U32": "<u4", "U8": "u1"}


def tensor_kind(name):
    """How a weight of the model is stored: NVFP4 (two tensors), F32 or BF16."""
    if ".switch_mlp." in name or ".shared_expert." in name:
        return "NVFP4"
    return "F32" if name.endswith("e_score_correction_bias") else "BF16"


def as_stored(state):
    """The float32 values that a reader will get back: what ships, before it is written."""
    kinds = {"NVFP4": nvfp4.round_trip, "F32": torch.Tensor.float,
             "BF16": lambda weight: weight.bfloat16().float()}
    return {name: kinds[tensor_kind(name)](weight) for name, weight in state.items()}


def bf16_words(weight):
    return weight.detach().cpu().bfloat16().contiguous().view(torch.int16).numpy().view("<u2")


def encode(state):
    """Model weights to stored tensors: name to (dtype, little-endian array)."""
    stored = {}
    for name, weight in state.items():
        weight = weight.detach().float().cpu()
        kind = tensor_kind(name)
        if kind == "NVFP4":
            codes, scales = nvfp4.quantise(weight)
            stored[name] = ("U32", nvfp4.pack(codes))
            scales_name = name.removesuffix(".weight") + ".scales"
            stored[scales_name] = ("U8", scales.view(torch.uint8).numpy())
        elif kind == "F32":
            stored[name] = ("F32", weight.numpy().astype("<f4"))
        else:
            stored[name] = ("BF16", bf16_words(weight))
    return stored


def decode(stored):
    """The inverse of encode: float32 weights, exact."""
    state = {}
    for name, (dtype, array) in stored.items():
        if name.endswith(".scales"):
            continue
        if dtype == "U32":
            scales = stored[name.removesuffix(".weight") + ".scales"][1]
            scales = torch.from_numpy(scales.copy()).view(torch.float8_e4m3fn)
            state[name] = nvfp4.dequantise(nvfp4.unpack(array), scales)
        elif dtype == "BF16":
            state[name] = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).float()
        else:
            state[name] = torch.from_numpy(array.astype(np.float32))
    return state


def write_safetensors(path, tensors):
    """tensors: name to (dtype, array). Sorted by name; the header is padded to 8 bytes."""
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            out.write(np.ascontiguousarray(tensors[name][1]).tobytes())


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors, body = {}, memoryview(data)[8 + length:]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(body[begin:end], dtype=NUMPY_TYPE[entry["dtype"]])
        tensors[name] = (entry["dtype"], array.reshape(entry["shape"]))
    return tensors


def reading_order(name):
    """Embedding, layers from first to last, final norm, head: the order that fills the shards."""
    parts = name.split(".")
    if name.startswith("model.layers."):
        return 1, int(parts[2]), name
    return {"model.embed_tokens.weight": 0, "model.norm.weight": 2}.get(name, 3), 0, name


def split_shards(stored, count):
    """Names of each shard, cut by bytes and not by layer, as the real checkpoint's are."""
    total, seen = sum(array.nbytes for _, array in stored.values()), 0
    shards = [[] for _ in range(count)]
    for name in sorted(stored, key=reading_order):
        shards[min(seen * count // total, count - 1)].append(name)
        seen += stored[name][1].nbytes
    return shards


def write_json(path, value):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")


def write_checkpoint(folder, cfg, state, shard_count=2):
    """config.json, the shards and their index. `state` is the model's state dict."""
    os.makedirs(folder, exist_ok=True)
    stored, weight_map = encode(state), {}
    for i, names in enumerate(split_shards(stored, shard_count)):
        shard = f"model-{i + 1:05d}-of-{shard_count:05d}.safetensors"
        write_safetensors(os.path.join(folder, shard), {name: stored[name] for name in names})
        weight_map.update({name: shard for name in names})
    metadata = {
        "total_size": sum(array.nbytes for _, array in stored.values()),
        "total_parameters": sum(weight.numel() for weight in state.values()),
    }
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))})
    write_json(os.path.join(folder, "config.json"), cfg)


def read_checkpoint(folder):
    """(config, float32 state dict) of a checkpoint on disk."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        cfg = json.load(file)
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        weight_map = json.load(file)["weight_map"]
    stored = {}
    for shard in sorted(set(weight_map.values())):
        stored.update(read_safetensors(os.path.join(folder, shard)))
    if set(stored) != set(weight_map):
        raise ValueError(f"{folder}: the index and the shards name different tensors")
    return cfg, decode(stored)
