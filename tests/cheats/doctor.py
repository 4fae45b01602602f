#!/usr/bin/python3
"""Copies a checkpoint with something taken out of it: doctor.py NAME SOURCE TARGET, or all of them,
doctor.py all SOURCE FOLDER.

Each is what an engine would gain from computing less: the engine is honest about the weights that it was
given, and they are not the track's. Works on model.safetensors shards of BF16, NVFP4 (codes U32, scales U8)
and F32 tensors, in place of their bytes; nothing else of the folder changes."""

import json
import pathlib
import shutil
import struct
import sys

import numpy

INT4_GROUP, INT8_GROUP = 32, 32


def as_float(raw):
    return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").copy()


def as_bf16(values):
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def zero(raw, shape):
    return bytes(len(raw))


def last_expert_zero(raw, shape):
    one = len(raw) // shape[0]
    return raw[:-one] + bytes(one)


def rounded_to(bits, group):
    def change(raw, shape):
        most = 2 ** (bits - 1) - 1
        values = as_float(raw).reshape(-1, group)
        scale = numpy.maximum(numpy.abs(values).max(axis=1, keepdims=True), 1e-30) / most
        return as_bf16((numpy.round(values / scale) * scale).reshape(-1))
    return change


def last_quarter_zero(raw, shape):
    """The head's rows of the ids from three quarters on: merges made last, so the rarest tokens."""
    kept = len(raw) // shape[0] * (shape[0] * 3 // 4)
    return raw[:kept] + bytes(len(raw) - kept)


def perturbed(raw, shape):
    """One part in a hundred, at random."""
    noise = numpy.random.default_rng(4).standard_normal(len(raw) // 2).astype("<f4")
    return as_bf16(as_float(raw) * (1 + numpy.float32(0.01) * noise))


def parts(layer, *names):
    return {f"model.layers.{layer}.{name}" for name in names}


LAST = 7
DOWN = ("mlp.switch_mlp.down_proj.scales",)
ATTENTION = tuple(f"self_attn.{m}_proj.weight" for m in "qkvo")
# name: (what, tensors of the last layer or of all, the change of their bytes, changes of config.json)
CHANGES = {
    "last_layer_zeroed": ("the last layer adds nothing",
                          parts(LAST, "self_attn.o_proj.weight", *DOWN,
                                "mlp.shared_expert.down_proj.scales"), zero, {}),
    "last_mlp_zeroed": ("the last layer's experts add nothing", parts(LAST, *DOWN), zero, {}),
    "experts_per_token_3": ("3 experts of 4 for each token", set(), None,
                            {"num_experts_per_tok": 3}),
    "experts_per_token_2": ("2 experts of 4 for each token", set(), None,
                            {"num_experts_per_tok": 2}),
    "last_expert_zeroed": ("the last expert of each layer adds nothing",
                           {n for at in range(1, LAST + 1) for n in parts(at, *DOWN)},
                           last_expert_zero, {}),
    "last_expert_of_one_layer": ("the last expert of the last layer adds nothing",
                                 parts(LAST, *DOWN), last_expert_zero, {}),
    "attention_int4": ("one layer's attention rounded to 4 bits in groups of 32",
                       parts(LAST, *ATTENTION), rounded_to(4, INT4_GROUP), {}),
    "attention_int4_all": ("every layer's attention rounded to 4 bits in groups of 32",
                           {n for at in range(LAST + 1) for n in parts(at, *ATTENTION)},
                           rounded_to(4, INT4_GROUP), {}),
    "attention_int8_all": ("every layer's attention rounded to 8 bits in groups of 32",
                           {n for at in range(LAST + 1) for n in parts(at, *ATTENTION)},
                           rounded_to(8, INT8_GROUP), {}),
    "attention_perturbed": ("one attention matrix off by 1%",
                            parts(LAST, "self_attn.o_proj.weight"), perturbed, {}),
    "window_halved": ("sliding layers look back half as far", set(), None, {"sliding_window": 32}),
    "head_pruned": ("the rarest quarter of the vocabulary is never computed", {"lm_head.weight"},
                    last_quarter_zero, {}),
    "head_int4": ("the head rounded to 4 bits in groups of 32", {"lm_head.weight"},
                  rounded_to(4, INT4_GROUP), {}),
}


def doctor(name, source, target):
    source, target = pathlib.Path(source), pathlib.Path(target)
    _, tensors, change, config = CHANGES[name]
    target.mkdir(parents=True, exist_ok=True)
    left = set(tensors)
    for path in source.iterdir():
        if path.suffix == ".safetensors" and tensors:
            data = bytearray(path.read_bytes())
            size = struct.unpack("<Q", data[:8])[0]
            for tensor, entry in json.loads(data[8:8 + size]).items():
                if tensor in left:
                    first, last = (8 + size + at for at in entry["data_offsets"])
                    data[first:last] = change(bytes(data[first:last]), entry["shape"])
                    left.discard(tensor)
            (target / path.name).write_bytes(data)
        elif path.name == "config.json":
            document = {**json.loads(path.read_text()), **config}
            (target / path.name).write_text(json.dumps(document, indent=2))
        elif path.suffix == ".json":
            shutil.copyfile(path, target / path.name)
        elif path.suffix == ".safetensors":
            shutil.copyfile(path, target / path.name)
    if left:
        raise SystemExit(f"doctor: the checkpoint has no {sorted(left)[0]}")
    return target


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in (*CHANGES, "all"):
        raise SystemExit(__doc__ + "\n\n" + "\n".join(f"{n:26} {c[0]}" for n, c in CHANGES.items()))
    if sys.argv[1] == "all":
        for each in CHANGES:
            doctor(each, sys.argv[2], pathlib.Path(sys.argv[3]) / each)
    else:
        doctor(*sys.argv[1:])
