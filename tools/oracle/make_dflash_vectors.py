#!/usr/bin/env python3
"""Random small drafters and what they draft: tests/vectors/dflash/*/.

    make_dflash_vectors.py             writes all of them
    make_dflash_vectors.py --check     writes nothing; recomputes and compares

Two implementations, both written from dflash.md sections 1 to 4. `Plain` is float32 PyTorch and
follows the text literally: it keeps at most window - 1 context rows and a position counter.
`Rounded` is bf16 mode bit for bit on the arithmetic of laguna_bf16.py (numerics.md): it keeps every
row and lets the window hide the old ones. In float64 without rounding it must agree with `Plain`.

A folder holds config.json, model.safetensors (repacked layout), upstream.safetensors (the fused
layout of the same values, in one folder only), target.safetensors (embed_tokens and lm_head),
taps.bin (float32 [context rows of all rounds, taps * hidden], bf16 values), logits_f32.bin and
logits_bf16.bin (float32 [rows 1..K-1 of all rounds, vocabulary]) and vector.json: for each round
the context rows C that it takes from taps.bin, the block's ids (K = their number), the first
position of the context and the draft of the bf16 logits, the lowest id at a tie.
"""

import argparse
import json
import math
import os
import struct
import tempfile

import numpy as np
import torch

from laguna_bf16 import Bf16Arithmetic, ExactArithmetic, Laguna

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/vectors/dflash")
MASK = 12

CASES = {
    "wrap": dict(
        about="3 layers, 3 taps; contexts that fill the ring of 23 rows, cross its end twice, and K from 2 to 16",
        hidden=64, layers=3, dense=64, heads=4, kv=2, dim=16, vocab=128, window=24, eps=1e-6, theta=10000.0,
        target_layers=8, taps=[1, 4, 7],
        rounds=[(5, 16), (1, 2), (4, 8), (2, 3), (9, 16), (1, 4), (16, 5), (3, 16), (2, 2)],
    ),
    "narrow": dict(
        about="hidden 48, one KV head of 32, one layer, one tap; a window of 8, shorter than the block; C beyond 7 truncated",
        hidden=48, layers=1, dense=40, heads=3, kv=1, dim=32, vocab=77, window=8, eps=1e-5, theta=500000.0,
        target_layers=4, taps=[2], rounds=[(20, 16), (1, 16), (7, 3), (8, 9), (30, 4)],
    ),
    "five-taps": dict(
        about="2 layers, 5 taps in no order, as many KV heads as query heads; the first context is one row",
        hidden=32, layers=2, dense=64, heads=4, kv=4, dim=16, vocab=64, window=64, eps=1e-6, theta=500000.0,
        target_layers=40, taps=[33, 1, 13, 39, 25], upstream=True, rounds=[(1, 16), (1, 16), (16, 2), (3, 7)],
    ),
    "long-window": dict(
        about="window 300: a ring wider than a chunk of 256 keys, chunks at absolute multiples, positions past 600",
        hidden=32, layers=2, dense=32, heads=2, kv=1, dim=16, vocab=48, window=300, eps=1e-6, theta=10000.0,
        target_layers=8, taps=[0, 7], rounds=[(250, 16), (4, 4), (60, 8), (310, 16), (2, 2)],
    ),
}


def config_of(c):
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "laguna",
        "decoder_layer_type": "laguna_xs",
        "gating": "per-head",
        "hidden_size": c["hidden"],
        "num_hidden_layers": c["layers"],
        "intermediate_size": c["dense"],
        "num_attention_heads": c["heads"],
        "num_key_value_heads": c["kv"],
        "head_dim": c["dim"],
        "vocab_size": c["vocab"],
        "rms_norm_eps": c["eps"],
        "rope_theta": c["theta"],
        "max_position_embeddings": 4096,
        "sliding_window": c["window"],
        "layer_types": ["sliding_attention"] * c["layers"],
        "tie_word_embeddings": False,
        "block_size": 16,
        "num_target_layers": c["target_layers"],
        "dflash_config": {"target_layer_ids": c["taps"], "mask_token_id": MASK},
    }


def to_bf16(x):
    """Float32 to the nearest bf16 value, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def make_tensors(c, rng):
    def normal(shape, std, mean=0.0):
        return to_bf16(rng.normal(mean, std, shape).astype(np.float32))

    def linear(rows, cols, gain=1.0):
        return normal((rows, cols), gain / math.sqrt(cols))

    h, d, out = c["hidden"], c["dim"], {}
    for i in range(c["layers"]):
        p = f"layers.{i}."
        out[p + "self_attn.q_proj.weight"] = linear(c["heads"] * d, h)
        out[p + "self_attn.k_proj.weight"] = linear(c["kv"] * d, h)
        out[p + "self_attn.v_proj.weight"] = linear(c["kv"] * d, h)
        out[p + "self_attn.o_proj.weight"] = linear(h, c["heads"] * d)
        out[p + "self_attn.g_proj.weight"] = linear(c["heads"], h)
        out[p + "self_attn.q_norm.weight"] = normal((d,), 0.2, 1.2)
        out[p + "self_attn.k_norm.weight"] = normal((d,), 0.2, 1.2)
        out[p + "mlp.gate_proj.weight"] = linear(c["dense"], h, 1.3)
        out[p + "mlp.up_proj.weight"] = linear(c["dense"], h, 1.3)
        out[p + "mlp.down_proj.weight"] = linear(h, c["dense"], 1.3)
        out[p + "input_layernorm.weight"] = normal((h,), 0.15, 1.0)
        out[p + "post_attention_layernorm.weight"] = normal((h,), 0.15, 1.0)
    out["fc.weight"] = linear(h, h * len(c["taps"]))
    out["hidden_norm.weight"] = normal((h,), 0.15, 1.0)
    out["norm.weight"] = normal((h,), 0.15, 1.0)
    for j in range(len(c["taps"])):
        out[f"aux_hidden_norms.{j}.weight"] = normal((h,), 0.15, 1.0)
    target = {"model.embed_tokens.weight": normal((c["vocab"], h), 1.0),
              "lm_head.weight": linear(c["vocab"], h, 2.5)}
    return out, target


def write_safetensors(path, tensors):
    """BF16, names sorted, compact header, no padding: the repack's layout."""
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name in sorted(tensors):
        size = tensors[name].size * 2
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            words = np.ascontiguousarray(tensors[name], np.float32).view(np.uint32) >> 16
            f.write(words.astype("<u2").tobytes())


def fused(tensors):
    """The upstream layout: q, k and v of a layer stacked in one tensor."""
    out = {}
    for name, value in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", which)] for which in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[name] = value
    return out


# --- float32, literally --------------------------------------------------------------------------


class Plain:
    def __init__(self, config, tensors, target):
        self.c = config
        self.t = {k: torch.from_numpy(v.copy()) for k, v in {**tensors, **target}.items()}
        self.cache = [[torch.zeros(0, config["num_key_value_heads"], config["head_dim"])] * 2
                      for _ in range(config["num_hidden_layers"])]
        self.off = 0

    def norm(self, x, name):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return x * scale * self.t[name + ".weight"]

    def linear(self, x, name):
        return x @ self.t[name + ".weight"].T

    def rope(self, x, first):
        d = self.c["head_dim"]
        inv_freq = self.c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = (torch.arange(first, first + len(x)).double()[:, None] * inv_freq)[:, None, :]
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def round(self, taps, block):
        c = self.c
        window, dim, kv = c["sliding_window"], c["head_dim"], c["num_key_value_heads"]
        group = c["num_attention_heads"] // kv
        taps = torch.from_numpy(taps)
        if len(taps) > window - 1:
            self.off += len(taps) - (window - 1)
            taps = taps[-(window - 1) :]
            self.cache = [[old[:0] for old in pair] for pair in self.cache]
        hidden = c["hidden_size"]
        parts = [self.norm(taps[:, j * hidden : (j + 1) * hidden], f"aux_hidden_norms.{j}")
                 for j in range(len(c["dflash_config"]["target_layer_ids"]))]
        ctx = self.norm(self.linear(torch.cat(parts, -1), "fc"), "hidden_norm")
        h = self.t["model.embed_tokens.weight"][torch.tensor(block)]
        rows, size = len(ctx), len(block)
        for i in range(c["num_hidden_layers"]):
            a = f"layers.{i}.self_attn."
            n, x = (self.norm(s, f"layers.{i}.input_layernorm") for s in (h, ctx))
            q = self.norm(self.linear(n, a + "q_proj").view(size, -1, dim), a + "q_norm")
            kp = self.norm(self.linear(n, a + "k_proj").view(size, kv, dim), a + "k_norm")
            kc = self.norm(self.linear(x, a + "k_proj").view(rows, kv, dim), a + "k_norm")
            vp, vc = self.linear(n, a + "v_proj").view(size, kv, dim), self.linear(x, a + "v_proj").view(rows, kv, dim)
            kc, q, kp = self.rope(kc, self.off), self.rope(q, self.off + rows), self.rope(kp, self.off + rows)
            self.cache[i] = [torch.cat(pair)[-(window - 1) :] for pair in zip(self.cache[i], (kc, vc))]
            k, v = (torch.cat(pair) for pair in zip(self.cache[i], (kp, vp)))
            held = len(k) - size
            o = torch.zeros(size, c["num_attention_heads"], dim)
            for r in range(size):
                low = max(held + r - window + 1, 0)
                for head in range(c["num_attention_heads"]):
                    keys, values = (s[low : held + r + 1, head // group] for s in (k, v))
                    weights = torch.softmax(keys @ q[r, head] * dim**-0.5, 0)
                    o[r, head] = weights @ values
            gate = torch.nn.functional.softplus(self.linear(n, a + "g_proj"))
            h = h + self.linear((o * gate[..., None]).flatten(1), a + "o_proj")
            r = self.norm(h, f"layers.{i}.post_attention_layernorm")
            m = f"layers.{i}.mlp."
            u = torch.nn.functional.silu(self.linear(r, m + "gate_proj")) * self.linear(r, m + "up_proj")
            h = h + self.linear(u, m + "down_proj")
        self.off += rows
        return (self.norm(h[1:], "norm") @ self.t["lm_head.weight"].T).numpy()


# --- bf16, bit for bit ---------------------------------------------------------------------------


class Rounded(Laguna):
    """Every context row so far stands before the block; row index = absolute position."""

    def __init__(self, config, tensors, target, arithmetic):
        self.config, self.tensors, self.ar = config, {**tensors, **target}, arithmetic
        self.taps = np.zeros((0, config["hidden_size"] * len(config["dflash_config"]["target_layer_ids"])))

    def context(self):
        hidden = self.config["hidden_size"]
        parts = [self.rms_norm(self.taps[:, j * hidden : (j + 1) * hidden], f"aux_hidden_norms.{j}")
                 for j in range(self.taps.shape[1] // hidden)]
        return self.rms_norm(self.linear("fc", np.concatenate(parts, -1)), "hidden_norm")

    def round(self, taps, block):
        ar, c = self.ar, self.config
        rope = {"rope_theta": c["rope_theta"], "rope_type": "default"}
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.taps = np.concatenate((self.taps, taps)).astype(ar.number)
        ctx = self.context()
        h = self.tensors["model.embed_tokens.weight"][block].astype(ar.number)
        size = len(block)
        for i in range(c["num_hidden_layers"]):
            a, norm = f"layers.{i}.self_attn.", f"layers.{i}.input_layernorm"
            n = self.rms_norm(h, norm)
            every = np.concatenate((self.rms_norm(ctx, norm), n))
            q = self.linear(a + "q_proj", every).reshape(-1, heads, dim)
            k = self.linear(a + "k_proj", every).reshape(-1, kv, dim)
            v = self.linear(a + "v_proj", every).reshape(-1, kv, dim)
            q = self.rope(self.rms_norm(q, a + "q_norm"), rope)
            k = self.rope(self.rms_norm(k, a + "k_norm"), rope)
            g = ar.bf16(ar.softplus(self.linear(a + "g_proj", n)))
            out = []
            for head in range(heads):
                u = head // (heads // kv)
                o = ar.bf16(self.attend(q[:, head], k[:, u], v[:, u], c["sliding_window"]))
                out.append(ar.bf16(ar.mul(o[-size:], g[:, head, None])))
            h = ar.bf16(ar.add(h, self.linear(a + "o_proj", np.concatenate(out, -1))))
            m = self.rms_norm(h, f"layers.{i}.post_attention_layernorm")
            h = ar.bf16(ar.add(h, self.dense(m, f"layers.{i}.mlp.")))
        return self.linear("lm_head", self.rms_norm(h[1:], "norm"))


# --- files ---------------------------------------------------------------------------------------


def noise(a, b):
    """Median over rows of the root mean square difference over that of the row."""
    return float(np.median(np.sqrt(((a - b) ** 2).mean(1) / (b**2).mean(1))))


def make(name, c, folder):
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(sum((i + 1) * b for i, b in enumerate(name.encode())))
    config, (tensors, target) = config_of(c), make_tensors(c, rng)
    runs = {"logits_f32": Plain(config, tensors, target),
            "logits_bf16": Rounded(config, tensors, target, Bf16Arithmetic),
            "exact": Rounded(config, tensors, target, ExactArithmetic)}
    logits, taps, rounds, position = {key: [] for key in runs}, [], [], 0
    for rows, width in c["rounds"]:
        # Rows of unlike size, as a residual stream has them.
        part = rng.normal(0, 1, (rows, c["hidden"] * len(c["taps"]))) * np.exp(rng.normal(0, 0.7, (rows, 1)))
        taps.append(to_bf16(part.astype(np.float32)))
        block = [int(rng.integers(0, c["vocab"]))] + [MASK] * (width - 1)
        for key, run in runs.items():
            logits[key].append(run.round(taps[-1], block))
        drafts = [int(row.argmax()) for row in logits["logits_bf16"][-1]]
        rounds.append({"context_rows": rows, "context_position": position, "block": block, "drafts": drafts})
        position += rows
    logits = {key: np.concatenate(rows) for key, rows in logits.items()}
    f32, exact = logits["logits_f32"], logits["exact"]
    error = float((np.abs(f32 - exact).max(1) / np.abs(exact).max(1)).max())
    assert error < 1e-5, f"{name}: the two implementations differ by {error}"

    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    write_safetensors(os.path.join(folder, "target.safetensors"), target)
    if c.get("upstream"):
        write_safetensors(os.path.join(folder, "upstream.safetensors"), fused(tensors))
    np.concatenate(taps).astype("<f4").tofile(os.path.join(folder, "taps.bin"))
    for key in ("logits_f32", "logits_bf16"):
        logits[key].astype("<f4").tofile(os.path.join(folder, key + ".bin"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(config, indent=2) + "\n")
    measured = {"bf16_noise_against_f32": float(f"{noise(logits['logits_bf16'], f32):.3g}"),
                "f32_against_unrounded_below": 1e-5}
    lines = ",\n".join("  " + json.dumps(r) for r in rounds)
    with open(os.path.join(folder, "vector.json"), "w", encoding="utf-8") as f:
        f.write(f'{{\n "about": {json.dumps(c["about"])},\n "measured": {json.dumps(measured)},\n'
                f' "rounds": [\n{lines}\n ]\n}}\n')
    print(f"{name}: f32 against unrounded {error:.1e}, bf16 noise {measured['bf16_noise_against_f32']:.3f}")


def check(name, c):
    """Everything but the float32 logits, whose last bits belong to PyTorch, must be the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        make(name, c, folder)
        for file in sorted(os.listdir(folder)):
            with open(os.path.join(folder, file), "rb") as a, open(os.path.join(ROOT, name, file), "rb") as b:
                new, old = a.read(), b.read()
            if file == "logits_f32.bin":
                assert np.allclose(np.frombuffer(new, "<f4"), np.frombuffer(old, "<f4"), rtol=1e-5, atol=1e-5)
            elif new != old:
                raise SystemExit(f"{name}/{file}: differs from the committed file")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="recompute and compare, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, c in CASES.items():
        if args.check:
            check(name, c)
        else:
            make(name, c, os.path.join(ROOT, name))


if __name__ == "__main__":
    main()
